#include "service/options.h"

#include "service/updater.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

enum option_kind { kind_count, kind_flag, kind_seconds, kind_choice };

struct option_row {
    enum option_kind kind;
    const char *name;
    size_t offset;
    uint32_t standard, least, most;
    const char *words;
};

static const struct option_row rows[] = {
#define OPTION_ROW(kind, name, standard, least, most, words) \
    {kind_##kind, #name, offsetof(struct store_options, name), standard, least, most, words},
    STORE_OPTIONS(OPTION_ROW)
#undef OPTION_ROW
};

enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

static uint32_t *field(struct store_options *o, const struct option_row *r)
{
    return (uint32_t *)(void *)((char *)o + r->offset);
}

static uint32_t value_of(const struct store_options *o, const struct option_row *r)
{
    return *(const uint32_t *)(const void *)((const char *)o + r->offset);
}

/* ---- type names ------------------------------------------------------------------------------------------------- */

enum { WORD_LOCAL = 1, WORD_DIST = 2, WORD_SYNC = 4, WORD_ASYNC = 8, WORD_DEVICE = 16, WORD_NOTED = 32,
       WORD_PLANNED = 64, WORD_NCCL = 128 };

static const struct {
    const char *word;
    unsigned bits;
} type_words[] = {
    {"local", WORD_LOCAL},     {"device", WORD_DEVICE},  {"nccl", WORD_NCCL},    {"dist", WORD_DIST},
    {"sync", WORD_SYNC},       {"async", WORD_ASYNC},    {"ssp", WORD_PLANNED},  {"p3", WORD_PLANNED},
    {"tree", WORD_NOTED},      {"update", WORD_NOTED},   {"allreduce", WORD_NOTED}, {"cpu", WORD_NOTED},
    {"gpu", WORD_DEVICE},
};

static enum status add_word(const char *word, size_t size, unsigned *bits, const char *whole, struct error *e)
{
    for (size_t i = 0; i < sizeof type_words / sizeof type_words[0]; i++) {
        if (strlen(type_words[i].word) != size || memcmp(type_words[i].word, word, size) != 0) continue;
        if (type_words[i].bits == WORD_PLANNED)
            return error_set(e, REASON_UNIMPLEMENTED,
                             "type '%s': '%s' is not available in this version; use local, device, dist_sync or "
                             "dist_async", whole, type_words[i].word);
        *bits |= type_words[i].bits;
        return STATUS_OK;
    }
    return error_set(e, REASON_BAD_ARGUMENT,
                     "type '%s': '%.*s' is no word of a store type; the words are local device nccl dist sync async "
                     "tree update allreduce cpu gpu, joined by '_'", whole, (int)size, word);
}

/* A store in a daemon sums over its workers: then nccl says no more than device. */
static bool type_needs_gpu(const char *type, enum store_mode mode)
{
    for (const char *word = type; mode == MODE_LOCAL; word++) {
        size_t size = strcspn(word, "_");
        if (size == 4 && memcmp(word, "nccl", 4) == 0) return true;
        word += size;
        if (*word == '\0') break;
    }
    return false;
}

enum status type_parse(struct bytes name, char out[64], enum store_mode *mode, struct error *e)
{
    char text[64];
    unsigned bits = 0;

    if (name.size == 0 || name.size >= sizeof text)
        return error_set(e, REASON_BAD_ARGUMENT, "a store type is 1 to 63 letters, such as dist_sync");
    for (size_t i = 0; i < name.size; i++) text[i] = (char)tolower(((const unsigned char *)name.at)[i]);
    text[name.size] = '\0';
    for (const char *word = text;;) {
        size_t size = strcspn(word, "_");
        enum status s = add_word(word, size, &bits, text, e);
        if (s != STATUS_OK) return s;
        if (word[size] == '\0') break;
        word += size + 1;
    }
    if ((bits & WORD_SYNC) && (bits & WORD_ASYNC))
        return error_set(e, REASON_BAD_ARGUMENT, "type '%s' is both sync and async", text);
    if ((bits & WORD_LOCAL) && (bits & WORD_DIST))
        return error_set(e, REASON_BAD_ARGUMENT, "type '%s' is both local and dist", text);
    /* "async" and "sync" alone mean the distributed kind; there is no other. */
    if ((bits & (WORD_DIST | WORD_SYNC | WORD_ASYNC)) == 0) *mode = MODE_LOCAL;
    else *mode = (bits & WORD_ASYNC) ? MODE_ASYNC : MODE_SYNC;
    memcpy(out, text, sizeof text);
    return STATUS_OK;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static bool parse_choice(const char *words, const char *word, uint32_t *out)
{
    size_t size = strlen(word);

    for (uint32_t i = 0; *words != '\0'; i++) {
        size_t n = strcspn(words, " ");
        if (n == size && memcmp(words, word, n) == 0) {
            *out = i;
            return true;
        }
        words += n + (words[n] == ' ');
    }
    return false;
}

static void choice_word(const char *words, uint32_t index, char out[32])
{
    while (index-- > 0) words += strcspn(words, " ") + 1;
    size_t n = strcspn(words, " ");
    memcpy(out, words, n);
    out[n] = '\0';
}

static enum status parse_value(const struct option_row *r, json_t *v, uint32_t *out, struct error *e)
{
    double n = json_number_value(v);

    switch (r->kind) {
    case kind_flag:
        if (!json_is_boolean(v)) return error_set(e, REASON_BAD_ARGUMENT, "/%s: true or false", r->name);
        *out = json_is_true(v);
        return STATUS_OK;
    case kind_choice:
        if (!json_is_string(v) || !parse_choice(r->words, json_string_value(v), out))
            return error_set(e, REASON_BAD_ARGUMENT, "/%s: one of: %s", r->name, r->words);
        return STATUS_OK;
    case kind_count:
        if (!json_is_integer(v) || n < r->least || n > r->most)
            return error_set(e, REASON_BAD_ARGUMENT, "/%s: a whole number from %u to %u", r->name, r->least, r->most);
        *out = (uint32_t)n;
        return STATUS_OK;
    case kind_seconds:
        if (!json_is_number(v) || !(n * 1000 >= r->least && n * 1000 <= r->most))
            return error_set(e, REASON_BAD_ARGUMENT, "/%s: seconds from %g to %g", r->name, r->least / 1000.0,
                             r->most / 1000.0);
        *out = (uint32_t)lround(n * 1000);
        return STATUS_OK;
    }
    return STATUS_OK;
}

static const struct option_row *row_find(const char *name)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

static bool is_known(const char *name, const char *const *known)
{
    for (; *known != NULL; known++)
        if (strcmp(*known, name) == 0) return true;
    return strcmp(name, "type") == 0;
}

static enum status unknown(const char *name, struct error *e)
{
    const char *names[ROW_COUNT + 2] = {"type"};
    for (size_t i = 0; i < ROW_COUNT; i++) names[i + 1] = rows[i].name;
    const char *near = nearest_name(bytes_text(name), names);
    if (near != NULL)
        return error_set(e, REASON_UNKNOWN_FIELD, "/%s: no such option; did you mean '%s'?", name, near);
    return error_set(e, REASON_UNKNOWN_FIELD, "/%s: no such option of a store", name);
}

enum status options_parse(json_t *document, const char *const *known, struct store_options *out, struct error *e)
{
    struct store_options o = {.given = 0};
    const char *name;
    json_t *value, *type = json_object_get(document, "type");

    for (size_t i = 0; i < ROW_COUNT; i++) *field(&o, &rows[i]) = rows[i].standard;
    if (!json_is_string(type)) return error_set(e, REASON_BAD_ARGUMENT, "/type: a store type, such as \"dist_sync\"");
    enum status s = type_parse(bytes_text(json_string_value(type)), o.type, &o.mode, e);
    if (s != STATUS_OK) return s;
    o.needs_gpu = type_needs_gpu(o.type, o.mode);
    json_object_foreach(document, name, value) {
        const struct option_row *r = row_find(name);
        if (r == NULL) {
            if (is_known(name, known)) continue;
            return unknown(name, e);
        }
        s = parse_value(r, value, field(&o, r), e);
        if (s != STATUS_OK) return s;
        o.given |= (uint64_t)1 << (r - rows);
    }
    *out = o;
    return STATUS_OK;
}

enum {
#define OPTION_INDEX(kind, name, standard, least, most, words) INDEX_##name,
    STORE_OPTIONS(OPTION_INDEX)
#undef OPTION_INDEX
};

void options_fill(struct store_options *o, const struct option_standards *s)
{
    if (s->start_timeout > 0 && !(o->given >> INDEX_start_timeout & 1)) o->start_timeout = s->start_timeout;
    if (s->round_timeout > 0 && !(o->given >> INDEX_round_timeout & 1)) o->round_timeout = s->round_timeout;
    if (s->worker_timeout > 0 && !(o->given >> INDEX_worker_timeout & 1)) o->worker_timeout = s->worker_timeout;
}

static void print_value(const struct option_row *r, uint32_t v, char out[32])
{
    switch (r->kind) {
    case kind_count: snprintf(out, 32, "%u", v); break;
    case kind_flag: snprintf(out, 32, "%s", v ? "true" : "false"); break;
    case kind_seconds: snprintf(out, 32, "%g s", v / 1000.0); break;
    case kind_choice: choice_word(r->words, v, out); break;
    }
}

enum status options_agree(const struct store_options *have, const struct store_options *wanted, const char *store,
                          struct error *e)
{
    char a[32], b[32];

    if (have->mode != wanted->mode)
        return error_set(e, REASON_STORE_DIFFERS, "store '%s' is of type '%s', not '%s'; name another store, or "
                         "delete this one: paramctl store delete %s", store, have->type, wanted->type, store);
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!(wanted->given >> i & 1) || value_of(have, &rows[i]) == value_of(wanted, &rows[i])) continue;
        print_value(&rows[i], value_of(have, &rows[i]), a);
        print_value(&rows[i], value_of(wanted, &rows[i]), b);
        return error_set(e, REASON_STORE_DIFFERS, "store '%s' has %s = %s, not %s; leave it out, name another "
                         "store, or delete this one: paramctl store delete %s", store, rows[i].name, a, b, store);
    }
    return STATUS_OK;
}

static json_t *json_value(const struct option_row *r, uint32_t v)
{
    char word[32];

    switch (r->kind) {
    case kind_count: return json_integer(v);
    case kind_flag: return json_boolean(v);
    case kind_seconds: return json_real(v / 1000.0);
    case kind_choice: choice_word(r->words, v, word); return json_string(word);
    }
    return NULL;
}

bool options_json(const struct store_options *o, json_t *object)
{
    if (json_object_set_new(object, "type", json_string(o->type)) != 0) return false;
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (json_object_set_new(object, rows[i].name, json_value(&rows[i], value_of(o, &rows[i]))) != 0) return false;
    return true;
}
