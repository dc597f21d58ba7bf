/* viz and summary: networks drawn and summed up, out of a file, with what a store knows of their parameters, or of
 * a store alone. Without --live, and with a file, no daemon is asked. */
#include "api/paramctl/paramctl.h"

#include "api/client/paramd_viz.h"
#include "api/limits.h"
#include "service/base/status.h"
#include "web/viz/viz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_PIECE = 1 << 20, KEYS_MAX_DRAWN = 20000 };
static const size_t FILE_SIZE_MAX = (size_t)2 << 30;     /* what protobuf can express */

char *read_file(const char *path, size_t *size)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *bytes = NULL;
    size_t got = 1;

    *size = 0;
    while (f != NULL && got > 0 && *size < FILE_SIZE_MAX) {
        char *more = realloc(bytes, *size + FILE_PIECE);
        if (more == NULL) break;
        bytes = more;
        got = fread(bytes + *size, 1, FILE_PIECE, f);
        *size += got;
    }
    bool good = f != NULL && got == 0 && ferror(f) == 0;
    if (!good)
        say(stderr, "paramctl: %s: %s", path,
                f == NULL || errno != 0 ? strerror(errno) : "cannot be read, or is too large");
    if (f != NULL && f != stdin) fclose(f);
    if (good) bytes[*size] = '\0'; /* the last read, of nothing, had room */
    if (good) return bytes;
    free(bytes);
    return NULL;
}

/* A row of List as viz takes it. */
static json_t *key_row(const json_t *row, const char *updater)
{
    const json_t *key = json_object_get(row, "key");
    char number[32];

    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(key));
    return json_pack("{s:s,s:O,s:O,s:O,s:s*}", "key", json_is_string(key) ? json_string_value(key) : number,
                     "dtype", json_object_get(row, "dtype"), "shape", json_object_get(row, "shape"), "version",
                     json_object_get(row, "version"), "updater", updater);
}

/* Adds what the store measures to the last `count` rows, in the order of the keys that List told. */
static void add_norms(const struct ctl *c, struct paramd *kv, json_t *keys, const json_t *told, int *code)
{
    size_t count = json_array_size(told), first = json_array_size(keys) - count, i;
    json_t *names = json_array(), *row, *said;

    json_array_foreach(told, i, row) json_array_append(names, json_object_get(row, "key"));
    said = ask_on(c, kv, "KeyStats", json_pack("{s:s,s:o}", "store", store_name(c), "keys", names), code);
    json_array_foreach(json_object_get(said, "items"), i, row)
        if (i < count && json_is_object(row)) json_object_update_missing(json_array_get(keys, first + i), row);
    json_decref(said);
}

static json_t *list_keys(const struct ctl *c, struct paramd *kv, const char *updater, int *code)
{
    bool measured = viz_is_measured(c->color_by);
    json_t *keys = json_array(), *after = NULL, *row;
    size_t i;

    do {
        json_t *said = ask_on(c, kv, "List",
                              json_pack("{s:s,s:i,s:O*}", "store", store_name(c), "limit",
                                        measured ? (int)STATS_KEYS_MAX : 1000, "after", after),
                              code);
        json_array_foreach(json_object_get(said, "items"), i, row)
            json_array_append_new(keys, key_row(row, updater));
        if (measured && json_array_size(json_object_get(said, "items")) > 0)
            add_norms(c, kv, keys, json_object_get(said, "items"), code);
        json_decref(after);
        after = json_is_null(json_object_get(said, "next")) ? NULL : json_incref(json_object_get(said, "next"));
        json_decref(said);
    } while (after != NULL && json_array_size(keys) < KEYS_MAX_DRAWN);
    json_decref(after);
    if (*code == 0) return keys;
    json_decref(keys);
    return NULL;
}

/* NULL: said, with *code. */
static json_t *store_keys(const struct ctl *c, int *code)
{
    struct paramd *kv = open_daemon(c, code);
    json_t *store = kv != NULL ? ask_on(c, kv, "GetStore", of_store(c), code) : NULL, *keys = NULL;

    if (store != NULL)
        keys = list_keys(c, kv, json_string_value(json_object_get(json_object_get(store, "updater"), "type")),
                         code);
    json_decref(store);
    paramd_close(kv);
    return keys;
}

/* By --format, else by the name of the file that is written. */
static const char *format_of(const struct ctl *c)
{
    const char *dot = c->out != NULL ? strrchr(c->out, '.') : NULL;

    if (c->as_text) return "text";
    if (c->format != NULL) return c->format;
    if (dot == NULL || strcmp(dot, ".gv") == 0) return dot == NULL ? "svg" : "dot";
    return strcmp(dot, ".txt") == 0 ? "text" : dot + 1;
}

static json_t *options_of(const struct ctl *c, const char *format, json_t *keys)
{
    const struct { const char *name, *value; } texts[] = {
        {"engine", c->engine}, {"view", c->view}, {"direction", c->direction}, {"color", c->color_by}, {"shapes", c->shape},
        {"expand", c->expand},
    };
    json_t *o = json_pack("{s:s,s:s,s:O*}", "format", format, "store", store_name(c), "keys", keys);

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].value != NULL) json_object_set_new(o, texts[i].name, json_string(texts[i].value));
    return o;
}

static int write_out(const struct ctl *c, const char *bytes, size_t size, const char *format)
{
    bool is_binary = strcmp(format, "png") == 0 || strcmp(format, "pdf") == 0;

    if (c->out == NULL && is_binary && isatty(STDOUT_FILENO))
        return complain_usage("%s is not for a terminal; say -o FILE", format);
    FILE *f = c->out != NULL ? fopen(c->out, "wb") : stdout;
    bool good = f != NULL, shown = c->out == NULL && isatty(STDOUT_FILENO);
    if (good && strstr(format, "json") != NULL) say_json(f, bytes, size);
    else if (good && (shown || strcmp(format, "text") == 0 || strcmp(format, "summary") == 0))
        say_lines(f, "%s", bytes);
    else good = good && fwrite(bytes, 1, size, f) == size;
    good = good && ferror(f) == 0;
    if (f != NULL && f != stdout) good = fclose(f) == 0 && good;
    if (good) return 0;
    say(stderr, "paramctl: %s: %s", c->out != NULL ? c->out : "stdout", strerror(errno));
    return EXIT_ERROR;
}

/* A fault of the file is told with its name. */
static int complain_of(const struct ctl *c, const char *path, const struct paramd_error *e)
{
    struct paramd_error named = *e;
    bool is_files = strcmp(e->reason, reason_code(REASON_NETWORK_INVALID)) == 0 ||
                    strcmp(e->reason, reason_code(REASON_BAD_JSON)) == 0;

    if (path != NULL && is_files)
        snprintf(named.text, sizeof named.text, "%.100s: %.380s", path, e->text);
    return complain(c, &named);
}

static int draw(const struct ctl *c, const char *format)
{
    const char *path = c->arg_count > 0 ? c->args[0] : NULL;
    char *file = NULL, *options = NULL, *result = NULL;
    size_t size = 0, result_size;
    struct paramd_error e;
    json_t *keys = NULL, *o = NULL;
    int code = 0;

    if (path != NULL && (file = read_file(path, &size)) == NULL) return EXIT_USAGE;
    if (path == NULL || c->live) keys = store_keys(c, &code);
    if (code != 0) goto out;
    o = options_of(c, format, keys);
    options = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
    if (options == NULL) code = complain_usage("a name is no UTF-8");
    else if (path != NULL && size == 0) code = complain_usage("%s is empty", path);
    else if (paramd_viz_render(file, size, options, &result, &result_size, &e) != 0) code = complain_of(c, path, &e);
    else code = write_out(c, result, result_size, format);
out:
    paramd_viz_free(result);
    json_decref(o);
    json_decref(keys);
    free(options);
    free(file);
    return code;
}

int run_viz(const struct ctl *c) { return draw(c, format_of(c)); }
int run_summary(const struct ctl *c) { return draw(c, c->json ? "summary-json" : "summary"); }
