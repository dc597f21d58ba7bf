#include "api/paramctl/paramctl.h"

#include "api/limits.h"
#include "service/base/status.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static int exit_of(int status)
{
    switch (status) {
    case STATUS_OK: return 0;
    case STATUS_NOT_FOUND: return EXIT_NOT_FOUND;
    case STATUS_ALREADY_EXISTS:
    case STATUS_FAILED_PRECONDITION:
    case STATUS_ABORTED: return EXIT_CONFLICT;
    case STATUS_PERMISSION_DENIED:
    case STATUS_UNAUTHENTICATED: return EXIT_AUTH;
    case STATUS_UNAVAILABLE:
    case STATUS_DEADLINE_EXCEEDED: return EXIT_UNAVAILABLE;
    default: return EXIT_ERROR;
    }
}

int complain(const struct ctl *c, const struct paramd_error *e)
{
    json_t *j = c->json ? json_pack("{s:s,s:s,s:s}", "status", paramd_status_name(e->status), "reason", e->reason,
                                    "text", e->text) : NULL;

    if (j != NULL) {
        char *text = json_dumps(j, JSON_COMPACT);
        if (text != NULL) say_json(stderr, text, strlen(text));
        free(text);
        fputc('\n', stderr);
        json_decref(j);
    } else {
        say_lines(stderr, "paramctl: %s\n", e->text);
    }
    return exit_of(e->status);
}

int complain_usage(const char *format, ...)
{
    va_list args;

    char *text = NULL;

    va_start(args, format);
    if (vasprintf(&text, format, args) >= 0) say_lines(stderr, "paramctl: %s\n", text);
    va_end(args);
    free(text);
    return EXIT_USAGE;
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

const char *store_name(const struct ctl *c)
{
    const char *name = c->store != NULL ? c->store : getenv("PARAMD_STORE");
    return name != NULL && name[0] != '\0' ? name : "default";
}

/* The first line of the file, without its end: as the daemon reads it. */
static bool read_token(const char *path, char out[TOKEN_SIZE_MAX + 2])
{
    FILE *f = fopen(path, "re");
    size_t n = f != NULL ? fread(out, 1, TOKEN_SIZE_MAX + 1, f) : 0;

    if (f != NULL) fclose(f);
    while (n > 0 && (out[n - 1] == '\n' || out[n - 1] == '\r' || out[n - 1] == ' ')) n--;
    out[n] = '\0';
    if (n > 0 && n <= TOKEN_SIZE_MAX) return true;
    complain_usage("%s: no token of 1 to %d bytes can be read there", path, TOKEN_SIZE_MAX);
    return false;
}

/* What the environment says libparamd reads by itself. */
static bool add_token(const struct ctl *c, json_t *options)
{
    char token[TOKEN_SIZE_MAX + 2];

    if (c->token_file == NULL) return true;
    if (!read_token(c->token_file, token)) return false;
    json_object_set_new(options, "token", json_string(token));
    return true;
}

/* The library says which call failed; whoever typed `stores` created nothing. */
static int complain_of_opening(const struct ctl *c, struct paramd_error *e)
{
    static const char call[] = "create: ";
    size_t size = sizeof call - 1;

    if (strncmp(e->text, call, size) == 0) memmove(e->text, e->text + size, strlen(e->text + size) + 1);
    return complain(c, e);
}

/* Takes the options. */
static struct paramd *open_handle(const struct ctl *c, const char *type, json_t *options, int *code)
{
    struct paramd *kv = NULL;
    struct paramd_error e;
    char *text = NULL;

    if (c->url != NULL) json_object_set_new(options, "url", json_string(c->url));
    if (c->timeout > 0) json_object_set_new(options, "connect_timeout", json_real(c->timeout));
    if (!add_token(c, options)) *code = EXIT_USAGE;
    else if ((text = json_dumps(options, JSON_COMPACT)) == NULL) *code = complain_usage("a name is no UTF-8");
    else if (paramd_create(type, text, &kv, &e) != 0) *code = complain_of_opening(c, &e);
    free(text);
    json_decref(options);
    return kv;
}

struct paramd *open_daemon(const struct ctl *c, int *code)
{
    return open_handle(c, "dist_async", json_pack("{s:b}", "join", 0), code);
}

struct paramd *open_store(const struct ctl *c, int *code)
{
    return open_handle(c, "dist_async", json_pack("{s:b,s:s}", "join", 0, "store", store_name(c)), code);
}

struct paramd *open_worker(const struct ctl *c, const char *store, const char *type, int *code)
{
    char name[64];

    snprintf(name, sizeof name, "paramctl-%d", (int)getpid());
    return open_handle(c, type, json_pack("{s:s,s:s}", "store", store, "worker_name", name), code);
}

/* ---- JSON methods ----------------------------------------------------------------------------------------------- */

json_t *ask_on(const struct ctl *c, struct paramd *kv, const char *method, json_t *document, int *code)
{
    char *answer = NULL, *text = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
    struct paramd_error e;
    json_t *out = NULL;

    if (text == NULL) {
        *code = complain_usage("a name is no UTF-8");
    } else if (paramd_call(kv, method, text, &answer, &e) != 0) {
        *code = complain(c, &e);
    } else if ((out = json_loads(answer, 0, NULL)) == NULL) {
        say(stderr, "paramctl: the daemon's answer to %s cannot be read", method);
        *code = EXIT_ERROR;
    }
    paramd_text_free(answer);
    free(text);
    json_decref(document);
    return out;
}

json_t *ask(const struct ctl *c, const char *method, json_t *document, int *code)
{
    struct paramd *kv = open_daemon(c, code);
    json_t *out = NULL;

    if (kv != NULL) out = ask_on(c, kv, method, document, code);
    else json_decref(document);
    paramd_close(kv);
    return out;
}

json_t *of_store(const struct ctl *c) { return json_pack("{s:s}", "store", store_name(c)); }
