/* Commands that move values: get and pull read without joining; put writes past the updater; push is a worker's. */
#include "api/paramctl/paramctl.h"

#include "api/limits.h"
#include "service/base/mem.h"
#include "service/base/status.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- keys ------------------------------------------------------------------------------------------------------- */

/* A key as the store has them: "3" is a number in a store of numbers, and in one that has no key yet. */
static bool key_of(const struct ctl *c, const char *text, const char *key_type, struct paramd_key *out)
{
    char *end;
    const char *type = c->key_type != NULL ? c->key_type : key_type;

    errno = 0;
    long long n = strtoll(text, &end, 10);
    bool is_number = errno == 0 && end != text && *end == '\0' && !isspace((unsigned char)text[0]);
    if (type != NULL && strcmp(type, "int") == 0 && !is_number) {
        complain_usage("'%s': the keys of this store are numbers", text);
        return false;
    }
    if (is_number && (type == NULL || strcmp(type, "int") == 0)) *out = (struct paramd_key)PARAMD_INT(n);
    else *out = (struct paramd_key)PARAMD_STR(text);
    return true;
}

/* A handle that looks at the store, and what the store is. */
struct opened {
    struct paramd *kv;
    json_t *store;
};

static bool open_looking(const struct ctl *c, struct opened *o, int *code)
{
    o->store = NULL;
    o->kv = open_store(c, code);
    if (o->kv != NULL) o->store = ask_on(c, o->kv, "GetStore", of_store(c), code);
    return o->store != NULL;
}

static void close_looking(struct opened *o)
{
    json_decref(o->store);
    paramd_close(o->kv);
}

static const char *text_of(const struct opened *o, const char *name)
{
    return json_string_value(json_object_get(o->store, name));
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Values that are fetched together. */
struct fetch {
    size_t count;
    struct paramd_key *keys;
    struct value *values;
    struct paramd_tensor *tensors;
    uint64_t *versions, *newer;
};

static void fetch_free(struct fetch *f)
{
    for (size_t i = 0; f->values != NULL && i < f->count; i++) value_free(&f->values[i]);
    mem_free(f->keys);
    mem_free(f->values);
    mem_free(f->tensors);
    mem_free(f->versions);
    mem_free(f->newer);
}

static bool fetch_new(struct fetch *f, size_t count)
{
    *f = (struct fetch){.count = count, .keys = mem_array(count, sizeof *f->keys),
                        .values = mem_array(count, sizeof *f->values), .tensors = mem_array(count, sizeof *f->tensors),
                        .versions = mem_array(count, sizeof *f->versions), .newer = mem_array(count, sizeof *f->newer)};
    return f->keys != NULL && f->values != NULL && f->tensors != NULL && f->versions != NULL && f->newer != NULL;
}

/* Room for each, and (when waiting) the versions that must be passed. */
static int prepare(const struct ctl *c, struct opened *o, struct fetch *f)
{
    struct paramd_info info;
    struct paramd_error e;

    for (size_t i = 0; i < f->count; i++) {
        if (!key_of(c, c->args[i], text_of(o, "key_type"), &f->keys[i])) return EXIT_USAGE;
        if (paramd_describe(o->kv, &f->keys[i], &info, &e) != 0) {
            if (e.status == STATUS_NOT_FOUND && strcmp(e.reason, "no-such-key") == 0)
                snprintf(e.text, sizeof e.text, "store '%s' has no key '%.200s'; `paramctl keys` lists them",
                         store_name(c), c->args[i]);
            return complain(c, &e);
        }
        if (!value_new(info.dtype, info.ndim, info.shape, &f->values[i])) return EXIT_ERROR;
        f->tensors[i] = f->values[i].tensor;
        f->newer[i] = info.version;
    }
    return 0;
}

static int fetch(const struct ctl *c, struct opened *o, struct fetch *f, bool wait)
{
    struct paramd_op *op = NULL;
    struct paramd_error e;
    int result = 0, code = prepare(c, o, f);

    if (code != 0) return code;
    if (paramd_pull_newer_start(o->kv, f->count, f->keys, f->tensors, wait ? f->newer : NULL, f->versions, wait, 0, &op,
                                &e) != 0)
        return complain(c, &e);
    if (wait) paramd_op_deadline(op, c->timeout > 0 ? (uint32_t)(c->timeout * 1000) : TIMEOUT_MAX_MS);
    while (!paramd_op_wait(op, UINT32_MAX, &result, &e)) continue;
    paramd_op_free(op);
    return result != 0 ? complain(c, &e) : 0;
}

static void put_json(FILE *to, const char *text)
{
    json_t *j = json_string(text);

    char *json = j != NULL ? json_dumps(j, JSON_ENCODE_ANY) : NULL;
    if (json != NULL) say_json(to, json, strlen(json));
    free(json);
    json_decref(j);
}

static void print_json(const struct ctl *c, const struct fetch *f, size_t i)
{
    const struct value *v = &f->values[i];

    printf("{\"store\": ");
    put_json(stdout, store_name(c));
    printf(", \"key\": ");
    if (f->keys[i].name != NULL) put_json(stdout, f->keys[i].name);
    else printf("%" PRId64, f->keys[i].number);
    printf(", \"shape\": [");
    for (int d = 0; d < v->tensor.ndim; d++) printf("%s%" PRId64, d > 0 ? ", " : "", v->shape[d]);
    printf("], \"dtype\": \"%s\", \"version\": %" PRIu64 ", \"data\": ", dtype_text(v->tensor.dtype), f->versions[i]);
    value_print_json(stdout, v);
    printf("}\n");
}

static int show_value(const struct ctl *c, const struct fetch *f)
{
    char type[CELL_SIZE];
    const struct value *v = &f->values[0];

    if (c->npy != NULL && !npy_write(c->npy, v)) return EXIT_ERROR;
    if (c->json && c->npy == NULL) {
        print_json(c, f, 0);
        return 0;
    }
    say(stdout, "%s  %s  version %" PRIu64 "%s%s", c->args[0], type_text(&v->tensor, type), f->versions[0],
           c->npy != NULL ? "  -> " : "", c->npy != NULL ? c->npy : "");
    if (c->npy == NULL) value_print(stdout, v);
    return 0;
}

/* `get` is the value of one key, `pull` a look at several. */
static int read_values(const struct ctl *c, int (*show)(const struct ctl *, const struct fetch *))
{
    struct opened o = {.kv = NULL};
    struct fetch f = {.count = 0};
    int code = EXIT_ERROR;

    if (!open_looking(c, &o, &code)) goto out;
    if (!fetch_new(&f, (size_t)c->arg_count)) {
        code = complain_usage("no memory");
        goto out;
    }
    code = fetch(c, &o, &f, c->wait);
    if (code == 0) code = show(c, &f);
out:
    fetch_free(&f);
    close_looking(&o);
    return code;
}

int run_get(const struct ctl *c) { return read_values(c, show_value); }

/* A name as a file: what is no letter, digit, '.', '_' or '-' as %XX. */
static void file_name(const char *folder, const char *key, char *out, size_t room)
{
    size_t n = (size_t)snprintf(out, room, "%s/", folder);

    for (const unsigned char *s = (const unsigned char *)key; *s != '\0' && n + 8 < room; s++) {
        bool plain = isalnum(*s) || *s == '_' || *s == '-' || (*s == '.' && s != (const unsigned char *)key);
        n += (size_t)snprintf(out + n, room - n, plain ? "%c" : "%%%02X", *s);
    }
    snprintf(out + n, room - n, ".npy");
}

static json_t *summary(const struct ctl *c, const struct fetch *f, size_t i)
{
    const struct value *v = &f->values[i];
    double least = (double)INFINITY, most = -(double)INFINITY, sum = 0;
    json_int_t odd = 0;
    char type[CELL_SIZE];

    for (size_t k = 0; k < v->count; k++) {
        double x = value_at(v, k);
        odd += !isfinite(x);
        if (!isfinite(x)) continue;
        least = x < least ? x : least;
        most = x > most ? x : most;
        sum += x;
    }
    size_t fine = v->count - (size_t)odd;
    json_t *j = json_pack("{s:s,s:s,s:I,s:I}", "key", c->args[i], "type", type_text(&v->tensor, type), "version",
                          (json_int_t)f->versions[i], "nonfinite", odd);
    json_object_set_new(j, "min", fine > 0 ? json_real(least) : json_null());
    json_object_set_new(j, "mean", fine > 0 ? json_real(sum / (double)fine) : json_null());
    json_object_set_new(j, "max", fine > 0 ? json_real(most) : json_null());
    return j;
}

static int show_summaries(const struct ctl *c, const struct fetch *f)
{
    char path[4096];
    json_t *items = json_array();
    bool written = c->into == NULL || mkdir(c->into, 0777) == 0 || errno == EEXIST;

    if (!written) complain_usage("%s: %s", c->into, strerror(errno));
    for (size_t i = 0; i < f->count && written; i++) {
        json_array_append_new(items, summary(c, f, i));
        if (c->into == NULL) continue;
        file_name(c->into, c->args[i], path, sizeof path);
        written = npy_write(path, &f->values[i]);
    }
    if (written && c->json) return show_json(json_pack("{s:o}", "items", items));
    if (written)
        PRINT_TABLE(c, stdout, items, {"KEY", "key", LOOK_TEXT}, {"TYPE", "type", LOOK_TEXT},
                    {"VERSION", "version", LOOK_NUMBER}, {"MIN", "min", LOOK_NUMBER}, {"MEAN", "mean", LOOK_NUMBER},
                    {"MAX", "max", LOOK_NUMBER}, {"NAN/INF", "nonfinite", LOOK_NUMBER});
    json_decref(items);
    return written ? 0 : EXIT_ERROR;
}

int run_pull(const struct ctl *c) { return read_values(c, show_summaries); }

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static int say_written(const struct ctl *c, struct paramd *kv, const struct paramd_key *key, const char *verb)
{
    struct paramd_info info;
    struct paramd_error e;
    char type[CELL_SIZE];
    struct paramd_tensor t;

    if (paramd_describe(kv, key, &info, &e) != 0) return complain(c, &e);
    t = (struct paramd_tensor){.dtype = info.dtype, .ndim = info.ndim, .shape = info.shape};
    if (c->json)
        return show_json(json_pack("{s:s,s:s,s:I}", "key", c->args[0], "done", verb, "version",
                                   (json_int_t)info.version));
    say(stdout, "%s  %s  %s; version %" PRIu64, c->args[0], type_text(&t, type), verb, info.version);
    return 0;
}

enum { INIT_MS = 5000 };

/* The value of rank 0 counts: where there are workers, it is for theirs to initialise a key. */
static int refuse_create(const struct ctl *c)
{
    struct paramd_error e = {.status = STATUS_FAILED_PRECONDITION, .reason = "not-joined"};

    snprintf(e.text, sizeof e.text, "store '%.100s' has no key '%.100s', and it has workers: the one of the lowest rank "
             "is to initialise it. Over HTTP an operator may: PUT /v1/stores/STORE/keys/KEY with the .npy file",
             store_name(c), c->args[0]);
    return complain(c, &e);
}

/* Joins for that time: a new key needs a worker that initialises it. */
static int create_key(const struct ctl *c, struct opened *o, const struct paramd_key *key, const struct value *v)
{
    int code = EXIT_ERROR, result = 0;
    struct paramd_error e;
    struct paramd_op *op = NULL;

    for (int i = 0; i < 2; i++)
        if (json_integer_value(json_object_get(o->store, i == 0 ? "workers" : "dead")) > 0) return refuse_create(c);
    struct paramd *kv = open_worker(c, store_name(c), text_of(o, "type"), &code);
    if (kv == NULL) return code;
    result = paramd_init_start(kv, 1, key, &v->tensor, &op, &e);
    if (result == 0) {
        paramd_op_deadline(op, INIT_MS); /* one that has joined meanwhile may be the one that is waited for */
        while (!paramd_op_wait(op, UINT32_MAX, &result, &e)) continue;
        paramd_op_free(op);
    }
    code = result != 0 ? complain(c, &e) : say_written(c, kv, key, "created");
    paramd_close(kv);
    return code;
}

/* Only a worker may send a value in parts; so a large one joins for the time of the call. */
static int replace_value(const struct ctl *c, struct opened *o, const struct paramd_key *key, const struct value *v)
{
    int code = EXIT_ERROR;
    struct paramd *kv = v->size <= PART_SIZE ? o->kv : open_worker(c, store_name(c), text_of(o, "type"), &code);
    struct paramd_error e;

    if (kv == NULL) return code;
    if (paramd_set(kv, 1, key, &v->tensor, c->force, &e) != 0) code = complain(c, &e);
    else code = say_written(c, kv, key, "replaced");
    if (kv != o->kv) paramd_close(kv);
    return code;
}

/* JSON is taken as what the key holds, else as --dtype says, else as float32. */
static bool wanted_dtype(const struct ctl *c, const struct paramd_info *info, int *out)
{
    *out = info != NULL ? info->dtype : PARAMD_F32;
    if (c->dtype == NULL || dtype_of(c->dtype, out)) return true;
    complain_usage("--dtype %s: one of float32 float64 float16 bfloat16 int8 uint8 int32 int64", c->dtype);
    return false;
}

/* Reads both arguments, against the key if it is there. */
static int read_arguments(const struct ctl *c, struct opened *o, struct paramd_key *key, bool *exists, struct value *v)
{
    struct paramd_info info;
    struct paramd_error e;
    int dtype;

    if (!key_of(c, c->args[0], text_of(o, "key_type"), key)) return EXIT_USAGE;
    *exists = paramd_describe(o->kv, key, &info, &e) == 0;
    if (!*exists && e.status != STATUS_NOT_FOUND) return complain(c, &e);
    if (!wanted_dtype(c, *exists ? &info : NULL, &dtype) || !value_read(c->args[1], dtype, v)) return EXIT_USAGE;
    return 0;
}

int run_put(const struct ctl *c)
{
    struct opened o = {.kv = NULL};
    struct value v = {.count = 0};
    struct paramd_key key;
    bool exists;
    int code = EXIT_ERROR;

    if (!open_looking(c, &o, &code)) goto out;
    code = read_arguments(c, &o, &key, &exists, &v);
    if (code == 0) code = exists ? replace_value(c, &o, &key, &v) : create_key(c, &o, &key, &v);
out:
    value_free(&v);
    close_looking(&o);
    return code;
}

static int push_as_worker(const struct ctl *c, struct opened *o, const struct paramd_key *key, const struct value *v)
{
    int code = EXIT_ERROR;
    struct paramd *kv = open_worker(c, store_name(c), text_of(o, "type"), &code);
    struct paramd_error e;

    if (kv == NULL) return code;
    int s = paramd_push(kv, 1, key, &v->tensor, 0, &e);
    if (s == 0 && c->wait) s = paramd_wait(kv, 1, key, &e);
    code = s != 0 ? complain(c, &e) : say_written(c, kv, key, c->wait ? "applied" : "recorded");
    paramd_close(kv);
    return code;
}

int run_push(const struct ctl *c)
{
    struct opened o = {.kv = NULL};
    struct value v = {.count = 0};
    struct paramd_key key;
    bool exists;
    int code = EXIT_ERROR;

    if (!open_looking(c, &o, &code)) goto out;
    code = read_arguments(c, &o, &key, &exists, &v);
    if (code == 0) code = push_as_worker(c, &o, &key, &v);
out:
    value_free(&v);
    close_looking(&o);
    return code;
}
