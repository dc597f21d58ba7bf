/* Keys and their values over HTTP: lists, init, delete, and values as JSON, .npy or raw bytes. */
#include "web/keys.h"

#include "web/json.h"
#include "web/routes.h"
#include "web/tags.h"

#include "service/base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { KEYS_STANDARD = 100, KEYS_PAGE_MAX = 1000, ATTEMPTS = 5 };

/* ---- names ------------------------------------------------------------------------------------------------------ */

/* One way to write a number only, so that a key has one address. */
static bool read_number(const char *text, int64_t *out)
{
    char again[24], *end;

    errno = 0;
    *out = strtoll(text, &end, 10);
    snprintf(again, sizeof again, "%" PRId64, *out);
    return errno == 0 && *end == '\0' && strcmp(again, text) == 0;
}

static bool read_type(struct exchange *x, const char *of_store, struct place *p)
{
    const char *type = exchange_query(x, "type");

    if (type != NULL && strcmp(type, "int") != 0 && strcmp(type, "str") != 0) {
        say_problem(x, REASON_BAD_ARGUMENT, "type is int or str");
        return false;
    }
    type = type != NULL ? type : of_store != NULL ? of_store : "str";
    p->is_int = strcmp(type, "int") == 0;
    p->name = x->key;
    if (!p->is_int || read_number(x->key, &p->number)) return true;
    say_problem(x, REASON_BAD_PATH, "the keys of store '%s' are integers, written without leading zeros; '%.100s' is "
                "none", x->store, x->key);
    return false;
}

static json_t *key_json(const struct place *p) { return p->is_int ? json_integer(p->number) : json_string(p->name); }

bool find_place(struct exchange *x, struct place *p)
{
    json_t *store = ask(x, WIRE_GetStore, json_pack("{s:s}", "store", x->store));

    *p = (struct place){.store = json_integer_value(json_object_get(store, "id"))};
    bool found = store != NULL && read_type(x, json_string_value(json_object_get(store, "key_type")), p);
    json_decref(store);
    return found;
}

/* A row as it leaves: the key as text whatever its type, since a browser's numbers end at 2^53. */
static json_t *row_json(const json_t *said, const struct seen *k)
{
    json_t *key = json_object_get(said, "key");
    char number[32];

    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(key));
    return json_pack("{s:s,s:O,s:I,s:O,s:O,s:I,s:O,s:I,s:O}", "key", json_is_string(key) ? json_string_value(key) : number,
                     "key_type", json_object_get(said, "key_type"), "id", k->id,
                     "dtype", json_object_get(said, "dtype"), "shape", json_object_get(said, "shape"),
                     "version", k->version, "updates", json_object_get(said, "updates"), "bytes", (json_int_t)k->tensor.size,
                     "device", json_object_get(said, "device"));
}

/* The tag tells the creation too: a key that was deleted and made again begins with version 1 again. */
static void set_tag(struct seen *k, uint64_t version)
{
    k->version = (json_int_t)version;
    snprintf(k->tag, sizeof k->tag, "%" PRIu64 ".%" JSON_INTEGER_FORMAT, version, k->id);
}

static void read_seen(const json_t *said, struct seen *k)
{
    const json_t *dim, *shape = json_object_get(said, "shape");
    const char *dtype = json_string_value(json_object_get(said, "dtype"));
    struct tensor *t = &k->tensor;
    size_t i;

    *k = (struct seen){.id = json_integer_value(json_object_get(said, "id"))};
    if (dtype == NULL || !dtype_parse(bytes_text(dtype), &t->dtype)) return;
    json_array_foreach(shape, i, dim)
        if (t->ndim < DIMS_MAX) t->dims[t->ndim++] = json_integer_value(dim);
    if (!wire_shape_size(t->dims, t->ndim, dtype_size(t->dtype), &t->count, &t->size)) return;
    set_tag(k, (uint64_t)json_integer_value(json_object_get(said, "version")));
}

json_t *find_key(struct exchange *x, const struct place *p, struct seen *k)
{
    json_t *said = NULL, *row = NULL;

    if (p->store > 0) {
        said = ask(x, WIRE_Describe, json_pack("{s:I,s:[o]}", "store", p->store, "keys", key_json(p)));
        if (said == NULL) return NULL;
    }
    const json_t *item = json_array_get(json_object_get(said, "items"), 0);
    if (item == NULL || json_is_null(item)) {
        say_problem(x, REASON_NO_KEY, "store '%s' has no key '%.200s'", x->store, x->key);
    } else {
        read_seen(item, k);
        row = row_json(item, k);
        if (row == NULL) say_problem(x, REASON_NO_MEMORY, "no memory for an answer");
    }
    json_decref(said);
    return row;
}

/* ---- lists ------------------------------------------------------------------------------------------------------ */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void base64_write(struct buf *out, struct bytes in)
{
    const uint8_t *at = in.at;

    for (size_t i = 0; i < in.size; i += 3) {
        unsigned left = (unsigned)(in.size - i < 3 ? in.size - i : 3);
        unsigned v = (unsigned)at[i] << 16 | (left > 1 ? (unsigned)at[i + 1] << 8 : 0) | (left > 2 ? at[i + 2] : 0);
        for (unsigned k = 0; k <= left; k++) buf_add(out, &digits[v >> (18 - 6 * k) & 63], 1);
    }
}

static bool base64_read(const char *text, struct buf *out)
{
    unsigned v = 0, bits = 0;

    for (; *text != '\0'; text++) {
        const char *at = strchr(digits, *text);
        if (at == NULL) return false;
        v = (v << 6 | (unsigned)(at - digits)) & 0xffffff;
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        buf_add(out, &(uint8_t){(uint8_t)(v >> bits)}, 1);
    }
    return !out->failed;
}

/* A cursor is the last key that was listed: "s" and its text, or "i" and its digits. It never skips or repeats a key,
 * whatever is made or deleted meanwhile. */
static void add_cursor(json_t *answer, const json_t *next)
{
    struct buf plain = {0}, text = {0};

    if (json_is_integer(next)) buf_format(&plain, "i%" JSON_INTEGER_FORMAT, json_integer_value(next));
    else if (json_is_string(next)) buf_format(&plain, "s%s", json_string_value(next));
    base64_write(&text, bytes_of(plain.at, plain.size));
    json_object_set_new(answer, "next_cursor", plain.size > 0 && !text.failed
                        ? json_stringn((const char *)text.at, text.size) : json_null());
    buf_fini(&plain);
    buf_fini(&text);
}

static json_t *read_cursor(const char *cursor)
{
    struct buf plain = {0};
    json_t *key = NULL;
    int64_t number;

    if (base64_read(cursor, &plain)) {
        buf_add(&plain, "", 1);
        const char *text = plain.failed ? "" : (const char *)plain.at;
        if (text[0] == 's' && text[1] != '\0') key = json_string(text + 1); /* NULL for what is not UTF-8 */
        if (text[0] == 'i' && read_number(text + 1, &number)) key = json_integer(number);
    }
    buf_fini(&plain);
    return key;
}

static bool read_limit(struct exchange *x, int64_t *out)
{
    const char *text = exchange_query(x, "limit");

    *out = KEYS_STANDARD;
    if (text == NULL || (read_number(text, out) && *out >= 1 && *out <= KEYS_PAGE_MAX)) return true;
    say_problem(x, REASON_BAD_ARGUMENT, "limit is a whole number from 1 to %d", KEYS_PAGE_MAX);
    return false;
}

void handle_keys(struct exchange *x)
{
    const char *prefix = exchange_query(x, "prefix"), *cursor = exchange_query(x, "cursor");
    json_t *after = cursor != NULL ? read_cursor(cursor) : NULL, *said, *items = json_array(), *item;
    int64_t limit;
    size_t i;

    if (cursor != NULL && after == NULL) {
        say_problem(x, REASON_BAD_CURSOR, "cursor is what next_cursor of the page before said");
        goto out;
    }
    if (!read_limit(x, &limit)) goto out;
    said = ask(x, WIRE_List, json_pack("{s:s,s:s,s:I,s:O*}", "store", x->store, "prefix", prefix != NULL ? prefix : "",
                                       "limit", (json_int_t)limit, "after", after));
    if (said == NULL) goto out;
    bool whole = true; /* a list with a gap would be taken for the whole */
    json_array_foreach(json_object_get(said, "items"), i, item) {
        struct seen k;
        read_seen(item, &k);
        whole = json_array_append_new(items, row_json(item, &k)) == 0 && whole;
    }
    json_t *answer = whole ? json_pack("{s:O,s:O}", "items", items, "total", json_object_get(said, "total")) : NULL;
    add_cursor(answer, json_object_get(said, "next"));
    say_json(x, 200, answer);
    json_decref(said);
out:
    json_decref(items);
    json_decref(after);
}

/* ---- one key ---------------------------------------------------------------------------------------------------- */

void handle_key_get(struct exchange *x)
{
    struct place p;
    struct seen k;
    json_t *row = find_place(x, &p) ? find_key(x, &p, &k) : NULL;

    if (row == NULL) return;
    say_header(x, "ETag", "\"%s\"", k.tag);
    if (!tag_listed(exchange_header(x, "If-None-Match"), k.tag)) {
        say_json(x, 200, row);
        return;
    }
    say_nothing(x, 304);
    json_decref(row);
}

static json_int_t version_in(const json_t *said, const char *name)
{
    return json_integer_value(json_object_get(json_object_get(said, name), "version"));
}

/* The tag changes when a version has been made or measured. What workers have pulled is told without changing it. */
void handle_key_stats(struct exchange *x)
{
    struct place p;
    json_t *said = NULL;
    char tag[96], number[24];

    if (!find_place(x, &p)) return;
    if (p.store > 0) said = ask(x, WIRE_KeyStats, json_pack("{s:I,s:o}", "store", p.store, "key", key_json(&p)));
    else say_problem(x, REASON_NO_KEY, "store '%s' has no key '%.200s'", x->store, x->key);
    if (said == NULL) return;
    snprintf(tag, sizeof tag, "%" JSON_INTEGER_FORMAT ".%" JSON_INTEGER_FORMAT ".%" JSON_INTEGER_FORMAT ".%"
             JSON_INTEGER_FORMAT, json_integer_value(json_object_get(said, "version")),
             json_integer_value(json_object_get(said, "id")), version_in(said, "value"), version_in(said, "gradient"));
    snprintf(number, sizeof number, "%" PRId64, p.number);
    if (p.is_int) json_object_set_new(said, "key", json_string(number));
    say_header(x, "ETag", "\"%s\"", tag);
    if (!tag_listed(exchange_header(x, "If-None-Match"), tag)) {
        say_json(x, 200, said);
        return;
    }
    say_nothing(x, 304);
    json_decref(said);
}

/* With If-Match only what is still as it was seen goes; without, whatever is there. */
void handle_key_delete(struct exchange *x)
{
    const char *match = exchange_header(x, "If-Match"), *force = exchange_query(x, "force");
    struct place p;
    struct seen k;
    json_t *row, *in, *said;

    if (force != NULL && strcmp(force, "true") != 0 && strcmp(force, "false") != 0) {
        say_problem(x, REASON_BAD_ARGUMENT, "force is true or false");
        return;
    }
    row = find_place(x, &p) ? find_key(x, &p, &k) : NULL;
    if (row == NULL) return;
    if (match != NULL && !tag_listed(match, k.tag)) {
        say_precondition(x, REASON_ETAG_MISMATCH, k.tag, row, "the key is another by now; look at it, then repeat with its "
                         "tag");
        return;
    }
    in = json_pack("{s:I,s:[o],s:b}", "store", p.store, "keys", key_json(&p), "force", force != NULL && *force == 't');
    if (match != NULL && strchr(match, '*') == NULL && in != NULL) {
        json_object_set_new(in, "id", json_integer(k.id));
        json_object_set_new(in, "version", json_integer(k.version));
    }
    said = ask(x, WIRE_Delete, in);
    if (said != NULL) say_nothing(x, 204);
    json_decref(said);
    json_decref(row);
}

/* ---- values out ------------------------------------------------------------------------------------------------- */

enum status fault_of(const struct reply *r, uint64_t at, struct error *e)
{
    struct reader in = reader_of(r->desc);
    struct wire_fault f;

    reader_take(&in, at);
    if (!wire_get_fault(&in, &f) || f.text_offset > r->body.size || f.text_size > r->body.size - f.text_offset)
        return error_set(e, REASON_INTERNAL, "an answer cannot be read");
    return error_retry(e, reason_from_wire(f.reason), f.retry_ms, "%.*s", (int)f.text_size,
                       (const char *)r->body.at + f.text_offset);
}

/* One part into out; *version says of which version it is to be (0: the newest) and was. */
static enum status pull_part(struct exchange *x, const struct place *p, const struct seen *k, uint64_t offset,
                             uint64_t *version, struct buf *out, struct error *e)
{
    struct wire_pull f = {.store = (uint32_t)p->store, .count = 1};
    struct wire_pull_entry entry = {.key = (uint64_t)k->id, .version = *version, .offset = offset, .size = PART_SIZE};
    struct wire_pull_result result;
    struct wire_pull_done done;
    struct buf fixed = {0}, desc = {0};
    struct reply r = {.bytes = {0}};

    wire_put_pull(&fixed, &f);
    wire_put_pull_entry(&desc, &entry);
    struct question q = {.method = WIRE_Pull, .fixed = bytes_of(fixed.at, fixed.size),
                         .desc = bytes_of(desc.at, desc.size)};
    enum status s = fixed.failed || desc.failed ? error_set(e, REASON_NO_MEMORY, "no memory for a request")
                                                : door_call(x->door, &q, &r, e);
    if (s != STATUS_OK) goto out;
    struct reader in = reader_of(r.fixed), results = reader_of(r.desc);
    if (!wire_get_pull_done(&in, &done) || !wire_get_pull_result(&results, &result))
        s = error_set(e, REASON_INTERNAL, "an answer cannot be read");
    else if (done.faults > 0) s = fault_of(&r, wire_pull_result_size, e);
    else if (result.total != k->tensor.size || result.size > r.body.size || (result.size == 0 && offset < result.total))
        s = error_retry(e, REASON_VERSION_REVOKED, RETRY_MS, "the key was made anew meanwhile; ask again");
    if (s != STATUS_OK) goto out;
    *version = result.version;
    buf_add(out, r.body.at, (size_t)result.size);
    if (out->failed) s = error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory for the value");
out:
    buf_fini(&fixed);
    buf_fini(&desc);
    reply_fini(&r);
    return s;
}

/* All bytes of one version, appended. A version that is taken away meanwhile (trainers make new ones) means to begin
 * again with the newest. */
static enum status pull_value(struct exchange *x, const struct place *p, struct seen *k, struct buf *out, struct error *e)
{
    size_t start = out->size;
    enum status s = STATUS_OK;

    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        uint64_t version = 0;
        out->size = start;
        do s = pull_part(x, p, k, out->size - start, &version, out, e);
        while (s == STATUS_OK && out->size - start < k->tensor.size);
        if (s == STATUS_OK) set_tag(k, version);
        if (s == STATUS_OK || e->reason != REASON_VERSION_REVOKED) break;
    }
    return s;
}

static enum status write_json(struct exchange *x, const struct place *p, struct seen *k, struct error *e)
{
    struct buf bytes = {0}, data = {0};
    char shape[SHAPE_TEXT_SIZE];
    enum status s = k->tensor.count > VALUE_JSON_ELEMENTS_MAX ? value_write_json(&k->tensor, NULL, &data, e)
                                                              : pull_value(x, p, k, &bytes, e);

    if (s == STATUS_OK) s = value_write_json(&k->tensor, bytes.at, &data, e);
    if (s != STATUS_OK) goto out;
    shape_text(&k->tensor, shape);
    if (k->tensor.ndim == 1) shape[strlen(shape) - 1] = '\0'; /* JSON has no lone comma */
    buf_text(&x->out, "{\"key\": ");
    json_write_text(&x->out, bytes_text(p->name));
    buf_format(&x->out, ", \"key_type\": \"%s\", \"shape\": [%s], \"dtype\": \"%s\", \"version\": %"
               JSON_INTEGER_FORMAT ", \"data\": ", p->is_int ? "int" : "str", shape, dtype_numpy(k->tensor.dtype),
               k->version);
    buf_add(&x->out, data.at, data.size);
    buf_text(&x->out, "}\n");
out:
    buf_fini(&bytes);
    buf_fini(&data);
    return s;
}

static enum status write_value(struct exchange *x, enum form form, const struct place *p, struct seen *k,
                               struct error *e)
{
    enum status s = STATUS_OK;

    if (form == FORM_JSON) return write_json(x, p, k, e);
    if (k->tensor.size > VALUE_SENT_MAX)
        return error_set(e, REASON_TOO_LARGE, "a value of %" PRIu64 " bytes; over HTTP at most %d are sent: use paramctl "
                         "pull, or a client of the binary protocol", k->tensor.size, VALUE_SENT_MAX);
    if (!exchange_reserve(x, k->tensor.size))
        return error_retry(e, REASON_LIMIT, 1000, "other answers take all the memory there is for them");
    if (form == FORM_NPY) s = npy_write_header(&k->tensor, &x->out, e);
    return s == STATUS_OK ? pull_value(x, p, k, &x->out, e) : s;
}

enum form wanted_form(struct exchange *x)
{
    const char *format = exchange_query(x, "format");
    enum form f = format != NULL ? form_find(format) : form_accept(exchange_header(x, "Accept"));

    if (f == FORM_NONE && format != NULL) say_problem(x, REASON_BAD_ARGUMENT, "format is json, npy or raw");
    else if (f == FORM_NONE)
        say_problem(x, REASON_NOT_ACCEPTABLE, "a value is application/json, application/x-npy or application/"
                    "octet-stream");
    return f;
}

json_t *other_forms(struct exchange *x)
{
    const char *raw = x->target.raw;
    size_t size = strcspn(raw, "?");
    const char *type = exchange_query(x, "type");
    char tail[32];

    snprintf(tail, sizeof tail, "%s%s", type != NULL ? "&type=" : "", type != NULL ? type : "");
    return json_pack("{s:s%++,s:s%++}", "npy", raw, size, "?format=npy", tail, "raw", raw, size, "?format=raw", tail);
}

void handle_key_value(struct exchange *x)
{
    enum form form = wanted_form(x);
    char shape[SHAPE_TEXT_SIZE];
    struct place p;
    struct seen k;
    struct error e;

    if (form == FORM_NONE) return;
    json_t *row = find_place(x, &p) ? find_key(x, &p, &k) : NULL;
    if (row == NULL) return;
    json_decref(row);
    if (tag_listed(exchange_header(x, "If-None-Match"), k.tag)) {
        say_header(x, "ETag", "\"%s\"", k.tag);
        say_nothing(x, 304);
        return;
    }
    if (write_value(x, form, &p, &k, &e) != STATUS_OK) {
        say_error(x, &e, e.reason == REASON_JSON_TOO_LARGE ? other_forms(x) : NULL);
        return;
    }
    x->code = 200;
    x->type = form_media(form);
    say_header(x, "ETag", "\"%s\"", k.tag);
    say_header(x, "Vary", "Accept");
    say_header(x, "Paramd-Version", "%" JSON_INTEGER_FORMAT, k.version);
    say_header(x, "Paramd-Dtype", "%s", dtype_numpy(k.tensor.dtype));
    say_header(x, "Paramd-Shape", "%s", shape_text(&k.tensor, shape));
}

/* ---- values in -------------------------------------------------------------------------------------------------- */

static enum form sent_form(struct exchange *x)
{
    const char *format = exchange_query(x, "format"), *type = exchange_header(x, "Content-Type");

    if (format != NULL) return form_find(format);
    if (type != NULL) return form_of_media(type);
    /* curl -T says no type. */
    if (x->body.size > 6 && memcmp(x->body.at, "\x93NUMPY", 6) == 0) return FORM_NPY;
    return x->body.size > 0 && x->body.at[0] == '{' ? FORM_JSON : FORM_NONE;
}

static enum status read_raw(struct exchange *x, struct tensor *t, struct error *e)
{
    const char *dtype = exchange_query(x, "dtype"), *shape = exchange_query(x, "shape");

    *t = (struct tensor){.dtype = DTYPE_f32};
    if (dtype == NULL || shape == NULL || !dtype_parse(bytes_text(dtype), &t->dtype))
        return error_set(e, REASON_BAD_ARGUMENT, "raw bytes need ?dtype=float32&shape=4,4 (a scalar's shape is empty)");
    enum status s = shape_parse(shape, t, e);
    return s == STATUS_OK ? raw_check(t, x->body.size, e) : s;
}

static enum status read_value(struct exchange *x, struct tensor *t, struct buf *made, struct bytes *out, struct error *e)
{
    struct bytes body = bytes_of(x->body.at, x->body.size);
    enum form form = sent_form(x);
    enum status s = STATUS_OK;

    if (form != FORM_RAW && (exchange_query(x, "dtype") != NULL || exchange_query(x, "shape") != NULL))
        return error_set(e, REASON_BAD_ARGUMENT, "dtype and shape in the query belong to raw bytes; other forms say their "
                         "own");
    if (form == FORM_JSON && body.size > JSON_BODY_MAX)
        return error_set(e, REASON_JSON_TOO_LARGE, "%zu bytes of JSON, at most %d: send .npy (Content-Type: application/"
                         "x-npy) or raw bytes", body.size, JSON_BODY_MAX);
    switch (form) {
    case FORM_JSON:
        s = value_read_json(body, t, made, e);
        *out = bytes_of(made->at != NULL ? (const void *)made->at : "", made->size);
        return s;
    case FORM_NPY: return npy_read(body, t, out, e);
    case FORM_RAW: *out = bytes_of(body.at != NULL ? body.at : "", body.size); return read_raw(x, t, e);
    case FORM_NONE: break;
    }
    return error_set(e, REASON_MEDIA_TYPE, "a value is application/json, application/x-npy or application/octet-stream; "
                     "say so by Content-Type or ?format=");
}

static void put_entry(struct buf *out, const struct place *p, const struct tensor *t, uint64_t offset, uint64_t size)
{
    struct bytes name = p->is_int ? bytes_of("", 0) : bytes_text(p->name);
    struct wire_init_entry entry = {.number = p->number, .offset = offset, .size = size, .total = t->size,
                                    .name_size = (uint16_t)name.size, .key_type = p->is_int ? KEY_INT : KEY_STR,
                                    .dtype = (uint8_t)t->dtype, .ndim = (uint8_t)t->ndim, .storage = STORAGE_DENSE};

    wire_put_init_entry(out, &entry);
    for (unsigned i = 0; i < t->ndim; i++)
        for (unsigned k = 0; k < 64; k += 8) buf_add(out, &(uint8_t){(uint8_t)((uint64_t)t->dims[i] >> k)}, 1);
    buf_add(out, name.at, name.size);
    buf_pad(out, 8);
}

static enum status init_part(struct exchange *x, const struct place *p, const struct tensor *t, uint64_t call,
                             struct bytes part, uint64_t offset, json_int_t *id, struct error *e)
{
    struct wire_init f = {.store = (uint32_t)p->store, .count = 1, .call = call, .on_reinit = REINIT_ERROR};
    struct wire_init_result result;
    struct wire_init_done done;
    struct buf fixed = {0}, desc = {0};
    struct reply r = {.bytes = {0}};

    wire_put_init(&fixed, &f);
    put_entry(&desc, p, t, offset, part.size);
    struct question q = {.method = WIRE_Init, .fixed = bytes_of(fixed.at, fixed.size),
                         .desc = bytes_of(desc.at, desc.size), .body = part};
    enum status s = fixed.failed || desc.failed ? error_set(e, REASON_NO_MEMORY, "no memory for a request")
                                                : door_call(x->door, &q, &r, e);
    if (s != STATUS_OK) goto out;
    struct reader in = reader_of(r.fixed), results = reader_of(r.desc);
    if (!wire_get_init_done(&in, &done) || !wire_get_init_result(&results, &result))
        s = error_set(e, REASON_INTERNAL, "an answer cannot be read");
    else if (done.faults > 0) s = fault_of(&r, wire_init_result_size, e);
    else *id = (json_int_t)result.key;
out:
    buf_fini(&fixed);
    buf_fini(&desc);
    reply_fini(&r);
    return s;
}

static enum status init_value(struct exchange *x, const struct place *p, const struct tensor *t, struct bytes value,
                              json_int_t *id, struct error *e)
{
    uint64_t call = 0, offset = 0;
    enum status s;

    if (getrandom(&call, sizeof call, 0) != sizeof call) return error_set(e, REASON_SYSTEM, "no random numbers");
    call |= 1; /* 0 is nobody's */
    do {
        uint64_t size = value.size - offset < PART_SIZE ? value.size - offset : PART_SIZE;
        s = init_part(x, p, t, call, bytes_of((const char *)value.at + offset, (size_t)size), offset, id, e);
        offset += size;
    } while (s == STATUS_OK && offset < value.size);
    return s;
}

/* `default` becomes what it is at its first create, or here. */
static bool settle_default(struct exchange *x, struct place *p)
{
    if (p->store > 0) return true;
    json_t *made = ask(x, WIRE_Create, json_pack("{s:s,s:s}", "store", x->store, "type", "dist_async"));
    p->store = json_integer_value(json_object_get(made, "id"));
    json_decref(made);
    return made != NULL;
}

static void say_refused(struct exchange *x, struct error *e)
{
    bool conditional = e->reason == REASON_KEY_EXISTS && exchange_header(x, "If-None-Match") != NULL;

    if (e->reason == REASON_KEY_EXISTS)
        error_set(e, REASON_KEY_EXISTS, "key '%.200s' is there, and PUT never replaces; DELETE it first if it may go",
                  x->key);
    /* With If-None-Match it is the condition that failed. */
    say_error(x, e, conditional ? json_pack("{s:i}", "status", 412) : NULL);
}

static void say_made(struct exchange *x, const struct place *p)
{
    struct seen k;
    json_t *row = find_key(x, p, &k);

    if (row == NULL) return;
    say_header(x, "Location", "%.*s", (int)strcspn(x->target.raw, "?"), x->target.raw);
    say_header(x, "ETag", "\"%s\"", k.tag);
    say_json(x, 201, row);
}

/* Inits; never replaces. */
void handle_key_put(struct exchange *x)
{
    const char *none_match = exchange_header(x, "If-None-Match");
    struct buf made = {0};
    struct tensor t;
    struct bytes value;
    struct place p;
    struct error e;
    json_int_t id = 0;

    if (none_match != NULL && strcmp(none_match, "*") != 0)
        say_problem(x, REASON_BAD_ARGUMENT, "If-None-Match can only be * here: a key is made, never replaced");
    else if (read_value(x, &t, &made, &value, &e) != STATUS_OK) say_error(x, &e, NULL);
    else if (find_place(x, &p) && settle_default(x, &p)) {
        if (init_value(x, &p, &t, value, &id, &e) == STATUS_OK) say_made(x, &p);
        else say_refused(x, &e);
    }
    buf_fini(&made);
}
