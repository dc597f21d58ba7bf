/* paramctl: the command line. Each command is a row: what it asks of the daemon, and how the answer is shown.
 * Exit status: 0 ok, 1 error, 2 usage, 3 not found, 4 conflict, 5 not authorised, 6 unavailable. */
#include "api/client/paramd.h"
#include "api/wire.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2 };

struct options {
    const char *url;
    const char *store;
    bool json;
    const char *args[8];
    int arg_count;
};

struct command {
    const char *name, *arguments, *text;
    int least, most;                                         /* arguments */
    int (*run)(const struct options *o);
};

/* ---- asking ----------------------------------------------------------------------------------------------------- */

static int exit_of(int status)
{
    switch (status) {
    case STATUS_OK: return 0;
    case STATUS_NOT_FOUND: return 3;
    case STATUS_ALREADY_EXISTS:
    case STATUS_FAILED_PRECONDITION:
    case STATUS_ABORTED: return 4;
    case STATUS_PERMISSION_DENIED:
    case STATUS_UNAUTHENTICATED: return 5;
    case STATUS_UNAVAILABLE:
    case STATUS_DEADLINE_EXCEEDED: return 6;
    default: return 1;
    }
}

static int complain(const struct paramd_error *e)
{
    fprintf(stderr, "paramctl: %s\n", e->text);
    return exit_of(e->status);
}

/* The daemon's answer, or NULL with *code set and the reason said. */
static json_t *ask(const struct options *o, const char *method, json_t *document, int *code)
{
    struct paramd *kv = NULL;
    struct paramd_error e;
    char *answer = NULL, *text = json_dumps(document, JSON_COMPACT);
    json_t *set = json_pack("{s:b}", "join", 0), *out = NULL;

    if (o->url != NULL) json_object_set_new(set, "url", json_string(o->url));
    char *settings = json_dumps(set, JSON_COMPACT);
    int s = paramd_create("dist_async", settings, &kv, &e);
    if (s == 0) s = paramd_call(kv, method, text, &answer, &e);
    if (s == 0) out = json_loads(answer, 0, NULL);
    if (s != 0) *code = complain(&e);
    paramd_text_free(answer);
    paramd_close(kv);
    json_decref(set);
    json_decref(document);
    free(settings);
    free(text);
    return out;
}

static int show_json(json_t *j)
{
    json_dumpf(j, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
    putchar('\n');
    json_decref(j);
    return 0;
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static void cell(const json_t *v, char *out, size_t room)
{
    char *text;

    if (json_is_string(v)) snprintf(out, room, "%s", json_string_value(v));
    else if (json_is_real(v)) snprintf(out, room, "%.1f", json_real_value(v));
    else if (v == NULL || json_is_null(v)) snprintf(out, room, "-");
    else {
        text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        snprintf(out, room, "%s", text != NULL ? text : "?");
        free(text);
    }
}

/* columns ends with NULL: the members shown of each item, also as head lines. */
static void print_table(json_t *items, const char *const *columns)
{
    size_t width[8] = {0}, i;
    char text[128];
    json_t *item;

    for (size_t c = 0; columns[c] != NULL; c++) width[c] = strlen(columns[c]);
    json_array_foreach(items, i, item)
        for (size_t c = 0; columns[c] != NULL; c++) {
            cell(json_object_get(item, columns[c]), text, sizeof text);
            if (strlen(text) > width[c]) width[c] = strlen(text);
        }
    for (size_t c = 0; columns[c] != NULL; c++) printf("%-*s%s", (int)width[c], columns[c], columns[c + 1] ? "  " : "\n");
    json_array_foreach(items, i, item)
        for (size_t c = 0; columns[c] != NULL; c++) {
            cell(json_object_get(item, columns[c]), text, sizeof text);
            printf("%-*s%s", (int)width[c], text, columns[c + 1] ? "  " : "\n");
        }
}
#define COLUMNS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int show_items(const struct options *o, const char *method, json_t *document, const char *const *columns)
{
    int code = 1;
    json_t *j = ask(o, method, document, &code);

    if (j == NULL) return code;
    if (o->json) return show_json(j);
    print_table(json_object_get(j, "items"), columns);
    json_decref(j);
    return 0;
}

/* ---- commands --------------------------------------------------------------------------------------------------- */

static int run_stores(const struct options *o)
{
    return show_items(o, "ListStores", json_object(), COLUMNS("store", "type", "keys", "workers"));
}

static int run_keys(const struct options *o)
{
    json_t *in = json_pack("{s:s}", "store", o->store);

    if (o->arg_count > 0) json_object_set_new(in, "prefix", json_string(o->args[0]));
    return show_items(o, "List", in, COLUMNS("key", "dtype", "shape", "version", "id"));
}

static int run_whole(const struct options *o, const char *method, json_t *document)
{
    int code = 1;
    json_t *j = ask(o, method, document, &code);
    return j != NULL ? show_json(j) : code;
}

static int run_info(const struct options *o) { return run_whole(o, "Stats", json_object()); }
static int run_health(const struct options *o) { return run_whole(o, "Health", json_object()); }
static int run_updater(const struct options *o) { return run_whole(o, "GetUpdater", json_pack("{s:s}", "store", o->store)); }
static int run_store(const struct options *o) { return run_whole(o, "Stats", json_pack("{s:s}", "store", o->store)); }

static int run_dismiss(const struct options *o)
{
    return run_whole(o, "Dismiss", json_pack("{s:s,s:s}", "store", o->store, "worker", o->args[0]));
}

static int run_call(const struct options *o)
{
    json_error_t why;
    json_t *in = o->arg_count > 1 ? json_loads(o->args[1], JSON_REJECT_DUPLICATES, &why) : json_object();

    if (!json_is_object(in)) {
        fprintf(stderr, "paramctl: the second argument is no JSON object: %s\n", in == NULL ? why.text : "it is something else");
        json_decref(in);
        return EXIT_USAGE;
    }
    return run_whole(o, o->args[0], in);
}

/* ---- describe: from the same lists that make the code ----------------------------------------------------------- */

#define FIELD_PRINT(type, name) printf("  %-5s %s\n", #type, #name);
#define MESSAGE_PRINT(name, LIST)                                                           \
    if (strcmp(what, #name) == 0) {                                                         \
        printf("%s (%d bytes)\n", #name, (int)wire_##name##_size);                          \
        LIST(FIELD_PRINT)                                                                   \
    }

static void print_message(const char *what)
{
    WIRE_MESSAGES(MESSAGE_PRINT)
}

static int run_describe(const struct options *o)
{
    static const struct { unsigned method; const char *messages[5]; } data[] = {
        {WIRE_Init, {"init", "init_entry", "init_done", "init_result", "fault"}},
        {WIRE_Push, {"push", "push_entry", "push_done", "fault", NULL}},
        {WIRE_Set, {"push", "push_entry", "set_done", NULL, NULL}},
        {WIRE_Pull, {"pull", "pull_entry", "pull_done", "pull_result", "fault"}},
        {WIRE_Wait, {"wait", "wait_entry", "wait_done", "wait_result", "fault"}},
    };
    const char *name = o->arg_count > 0 ? o->args[0] : "";
    unsigned m;

    if (strncmp(name, "paramd.v1.", 10) == 0) name += 10;
    if (name[0] == '\0') {
        for (m = 1; m < WIRE_METHODS_END; m++)
            if (wire_method_name(m) != NULL) printf("paramd.v1.%s\n", wire_method_name(m));
        return 0;
    }
    m = wire_method_find(bytes_text(name));
    if (m == 0) {
        fprintf(stderr, "paramctl: no method '%s'; `paramctl describe` lists them\n", name);
        return 3;
    }
    printf("paramd.v1.%s: method %u, %s%s\n", name, m, wire_method_is_json(m) ? "one JSON document each way" : "binary",
           wire_method_flags(m) & WIRE_WRITES ? ", named (executed once)" : "");
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++)
        for (size_t k = 0; data[i].method == m && k < 5 && data[i].messages[k] != NULL; k++)
            print_message(data[i].messages[k]);
    return 0;
}

static const struct command commands[] = {
    {"info", "", "what the daemon is and has done", 0, 0, run_info},
    {"health", "", "whether it serves", 0, 0, run_health},
    {"stores", "", "the stores", 0, 0, run_stores},
    {"store", "", "workers, open rounds and who is missing in them (--store)", 0, 0, run_store},
    {"keys", "[PREFIX]", "the keys of a store", 0, 1, run_keys},
    {"updater", "", "the updater of a store", 0, 0, run_updater},
    {"dismiss", "WORKER", "a dead worker is no longer waited for", 1, 1, run_dismiss},
    {"describe", "[METHOD]", "methods of the protocol and their fields", 0, 1, run_describe},
    {"call", "METHOD [JSON]", "any JSON method", 1, 2, run_call},
};

static int usage(FILE *to, int code)
{
    fputs("paramctl: looks into a paramd daemon.\n\nusage: paramctl [--url URL] [--store NAME] [--json] COMMAND ...\n\n", to);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char left[40];
        snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].arguments);
        fprintf(to, "  %-22s %s\n", left, commands[i].text);
    }
    fputs("\n--url is the front door [PARAMD_URL, else tcp://127.0.0.1:7700], --store [default]; PARAMD_TOKEN is the token.\n"
          "Exit status: 0 ok, 1 error, 2 usage, 3 not found, 4 conflict, 5 not authorised, 6 unavailable.\n", to);
    return code;
}

static int run(const struct command *c, const struct options *o)
{
    if (o->arg_count >= c->least && o->arg_count <= c->most) return c->run(o);
    fprintf(stderr, "usage: paramctl %s %s\n", c->name, c->arguments);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    struct options o = {.store = "default"};
    const char *name = NULL;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return usage(stdout, 0);
        if (strcmp(argv[i], "--version") == 0) return puts(paramd_version()) < 0;
        if (strcmp(argv[i], "--json") == 0) o.json = true;
        else if (strcmp(argv[i], "--url") == 0 && i + 1 < argc) o.url = argv[++i];
        else if (strcmp(argv[i], "--store") == 0 && i + 1 < argc) o.store = argv[++i];
        else if (strncmp(argv[i], "--", 2) == 0) {
            fprintf(stderr, "paramctl: %s is no flag, or needs a value; see --help\n", argv[i]);
            return EXIT_USAGE;
        } else if (name == NULL) name = argv[i];
        else if (o.arg_count < 8) o.args[o.arg_count++] = argv[i];
    }
    if (name == NULL) return usage(stderr, EXIT_USAGE);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, name) == 0) return run(&commands[i], &o);
    fprintf(stderr, "paramctl: no command '%s'; see --help\n", name);
    return EXIT_USAGE;
}
