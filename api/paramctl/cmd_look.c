/* Commands that show what the daemon says, and one that changes without moving values (workers dismiss). */
#include "api/paramctl/paramctl.h"

#include "api/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_MAX = 1000 };

/* ---- the daemon ------------------------------------------------------------------------------------------------- */

static void print_info(const struct ctl *c, const json_t *j)
{
    const json_t *d = json_object_get(j, "daemon"), *n = json_object_get(j, "counters");
    const json_t *m = json_object_get(d, "memory"), *bulk = json_object_get(d, "bulk");
    char a[CELL_SIZE], b[CELL_SIZE], x[CELL_SIZE];

    print_fact(c, stdout, "version", "%s", cell(json_object_get(d, "version"), LOOK_TEXT, a));
    print_fact(c, stdout, "instance", "%s", cell(json_object_get(d, "instance"), LOOK_TEXT, a));
    print_fact(c, stdout, "device", "%s", cell(json_object_get(d, "device"), LOOK_TEXT, a));
    print_fact(c, stdout, "up for", "%s", cell(json_object_get(d, "uptime"), LOOK_SECONDS, a));
    if (json_is_null(bulk)) print_fact(c, stdout, "bulk door", "off");
    else print_fact(c, stdout, "bulk door", "port %llu", whole(bulk, "port"));
    print_fact(c, stdout, "stores", "%llu", whole(d, "stores"));
    print_fact(c, stdout, "clients", "%llu", whole(d, "clients"));
    print_fact(c, stdout, "memory", "%s of the device, %s of %s staging", bytes_text_of(number(m, "device"), a),
               bytes_text_of(number(m, "staging"), b), bytes_text_of(number(m, "staging_max"), x));
    if (whole(d, "keys_on_cpu") > 0)
        print_fact(c, stdout, "on the CPU", "%llu keys, for which no GPU had room, %s", whole(d, "keys_on_cpu"),
                   bytes_text_of(number(m, "cpu"), a));
    print_fact(c, stdout, "pushes", "%llu (%llu repeats), %llu updates", whole(n, "pushes_recorded"),
               whole(n, "pushes_repeated"), whole(n, "updates"));
    print_fact(c, stdout, "pulls", "%llu", whole(n, "pulls"));
    print_fact(c, stdout, "rounds", "%llu closed, %llu failed", whole(n, "rounds_closed"), whole(n, "rounds_failed"));
    print_fact(c, stdout, "bytes", "%s in, %s out", bytes_text_of(number(n, "bytes_in"), a),
               bytes_text_of(number(n, "bytes_out"), b));
    print_fact(c, stdout, "frames", "%llu, %llu refused", whole(n, "frames"), whole(n, "frames_refused"));
}

int run_info(const struct ctl *c)
{
    int code = EXIT_ERROR;
    json_t *j = ask(c, "Stats", json_object(), &code);

    if (j == NULL) return code;
    if (c->json) return show_json(j);
    print_info(c, j);
    json_decref(j);
    return 0;
}

int run_health(const struct ctl *c)
{
    int code = EXIT_ERROR;
    json_t *j = ask(c, "Health", json_object(), &code);
    const char *status = json_string_value(json_object_get(j, "status"));

    if (j == NULL) return code;
    code = status != NULL && strcmp(status, "serving") == 0 ? 0 : EXIT_UNAVAILABLE;
    if (!c->json) say(stdout, "%s", status != NULL ? status : "?");
    if (c->json) show_json(j);
    else json_decref(j);
    return code;
}

/* ---- lists ------------------------------------------------------------------------------------------------------ */

int run_stores(const struct ctl *c)
{
    int code = EXIT_ERROR;
    json_t *j = ask(c, "ListStores", json_object(), &code);

    if (j == NULL) return code;
    if (c->json) return show_json(j);
    PRINT_TABLE(c, stdout, json_object_get(j, "items"),
                {"STORE", "store", LOOK_TEXT}, {"TYPE", "type", LOOK_TEXT}, {"KEY TYPE", "key_type", LOOK_TEXT},
                {"KEYS", "keys", LOOK_NUMBER}, {"WORKERS", "workers", LOOK_NUMBER}, {"DEAD", "dead", LOOK_NUMBER});
    json_decref(j);
    return 0;
}

/* Pages until `limit` (0: all) items are in one list; *total of those that there are. */
static json_t *list_keys(const struct ctl *c, struct paramd *kv, uint64_t limit, json_int_t *total, int *code)
{
    json_t *all = json_array(), *after = NULL, *page = NULL;

    do {
        uint64_t left = limit > 0 ? limit - json_array_size(all) : PAGE_MAX;
        json_t *in = of_store(c);
        json_object_set_new(in, "limit", json_integer((json_int_t)(left < PAGE_MAX ? left : PAGE_MAX)));
        if (c->arg_count > 0) json_object_set_new(in, "prefix", json_string(c->args[0]));
        if (after != NULL) json_object_set(in, "after", after);
        json_decref(after);
        after = NULL;
        page = ask_on(c, kv, "List", in, code);
        if (page == NULL) break;
        json_array_extend(all, json_object_get(page, "items"));
        *total = json_integer_value(json_object_get(page, "total"));
        after = json_incref(json_object_get(page, "next"));
        json_decref(page);
    } while (after != NULL && !json_is_null(after) && (limit == 0 || json_array_size(all) < limit));
    json_decref(after);
    if (page != NULL) return all;
    json_decref(all);
    return NULL;
}

int run_keys(const struct ctl *c)
{
    int code = EXIT_ERROR;
    json_int_t total = 0;
    struct paramd *kv = open_daemon(c, &code);
    json_t *items = kv != NULL ? list_keys(c, kv, c->limit, &total, &code) : NULL;

    paramd_close(kv);
    if (items == NULL) return code;
    if (c->json) return show_json(json_pack("{s:o,s:I}", "items", items, "total", total));
    PRINT_TABLE(c, stdout, items,
                {"KEY", "key", LOOK_TEXT}, {"DTYPE", "dtype", LOOK_TEXT}, {"SHAPE", "shape", LOOK_SHAPE},
                {"VERSION", "version", LOOK_NUMBER}, {"UPDATES", "updates", LOOK_NUMBER}, {"ID", "id", LOOK_NUMBER},
                {"DEVICE", "device", LOOK_TEXT});
    size_t shown = json_array_size(items);
    if ((json_int_t)shown < total)
        printf("... %lld more; --limit 0 lists all\n", (long long)(total - (json_int_t)shown));
    json_decref(items);
    return 0;
}

/* Bars between the powers of two that hold them: from the smallest numbers there are to the largest. */
static json_t *histogram_text(const json_t *histogram)
{
    static const char *const heights[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
    const json_t *counts = json_object_get(histogram, "counts"), *v;
    json_int_t least = json_integer_value(json_object_get(histogram, "least_exponent")), most = 0;
    size_t i, first = SIZE_MAX, last = 0;
    char text[CELL_SIZE];

    json_array_foreach(counts, i, v) {
        if (json_integer_value(v) == 0) continue;
        if (first == SIZE_MAX) first = i;
        last = i;
        if (json_integer_value(v) > most) most = json_integer_value(v);
    }
    if (first == SIZE_MAX) return json_null();
    size_t n = first == 0 ? (size_t)snprintf(text, sizeof text, "0 ")
                          : (size_t)snprintf(text, sizeof text, "2^%lld ", (long long)(least + (json_int_t)first - 1));
    for (i = first; i <= last && n < sizeof text - 16; i++) {
        json_int_t count = json_integer_value(json_array_get(counts, i));
        const char *bar = count > 0 ? heights[(int)(7 * ((double)count / (double)most))] : " ";
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", bar);
    }
    if (last + 1 < json_array_size(counts)) snprintf(text + n, sizeof text - n, " 2^%lld", (long long)(least + (json_int_t)last));
    return json_string(text);
}

static json_t *stats_rows(const json_t *said)
{
    static const char *const parts[] = {"value", "gradient", "update"};
    json_t *rows = json_array();

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        json_t *part = json_object_get(said, parts[i]), *row = json_is_object(part) ? json_copy(part) : json_object();
        json_object_set_new(row, "of", json_string(parts[i]));
        json_object_set_new(row, "bars", histogram_text(json_object_get(part, "histogram")));
        json_array_append_new(rows, row);
    }
    return rows;
}

static void print_stats(const struct ctl *c, const json_t *said)
{
    json_t *rows = stats_rows(said);
    char a[CELL_SIZE], b[CELL_SIZE];

    print_fact(c, stdout, "version", "%llu of %s", whole(said, "version"), cell(json_object_get(said, "dtype"), LOOK_TEXT, a));
    print_fact(c, stdout, "ratio", "%s, norm of update by norm of value",
               cell(json_object_get(said, "update_ratio"), LOOK_NUMBER, a));
    print_fact(c, stdout, "staleness", "%s of the last push, %s of the slowest worker",
               cell(json_object_get(said, "staleness"), LOOK_NUMBER, a),
               cell(json_object_get(said, "behind"), LOOK_NUMBER, b));
    putchar('\n');
    PRINT_TABLE(c, stdout, rows,
                {"OF", "of", LOOK_TEXT}, {"VERSION", "version", LOOK_NUMBER}, {"NORM", "norm", LOOK_NUMBER},
                {"MEAN", "mean", LOOK_NUMBER}, {"MIN", "min", LOOK_NUMBER}, {"MAX", "max", LOOK_NUMBER},
                {"NAN", "nans", LOOK_NUMBER}, {"INF", "infinities", LOOK_NUMBER}, {"ZERO", "zeros", LOOK_NUMBER},
                {"SIZES", "bars", LOOK_TEXT});
    json_decref(rows);
}

int run_stats(const struct ctl *c)
{
    int code = EXIT_ERROR;
    struct paramd *kv = open_daemon(c, &code);
    json_t *keys = kv != NULL ? ask_keys(c, kv, &code) : NULL, *said = NULL, *in;

    if (keys != NULL) {
        in = of_store(c);
        json_object_set(in, "key", json_array_get(keys, 0));
        said = ask_on(c, kv, "KeyStats", in, &code);
    }
    json_decref(keys);
    paramd_close(kv);
    if (said == NULL) return code;
    if (c->json) return show_json(said);
    print_stats(c, said);
    json_decref(said);
    return 0;
}

static int dismiss(const struct ctl *c, const char *who)
{
    int code = EXIT_ERROR;
    char *end;
    long rank = strtol(who, &end, 10);
    json_t *in = of_store(c), *j;

    json_object_set_new(in, "worker", *end == '\0' && end != who ? json_integer(rank) : json_string(who));
    j = ask(c, "Dismiss", in, &code);
    if (j == NULL) return code;
    if (c->json) return show_json(j);
    say(stdout, "worker %s is no longer waited for", who);
    json_decref(j);
    return 0;
}

int run_workers(const struct ctl *c)
{
    int code = EXIT_ERROR;
    json_t *j;

    if (c->arg_count > 0 && (strcmp(c->args[0], "dismiss") != 0 || c->arg_count != 2))
        return complain_usage("usage: paramctl workers [dismiss NAME|RANK]");
    if (c->arg_count > 0) return dismiss(c, c->args[1]);
    j = ask(c, "Workers", of_store(c), &code);
    if (j == NULL) return code;
    if (c->json) return show_json(j);
    PRINT_TABLE(c, stdout, json_object_get(j, "items"),
                {"RANK", "rank", LOOK_NUMBER}, {"NAME", "name", LOOK_TEXT}, {"STATE", "state", LOOK_TEXT},
                {"EPOCH", "epoch", LOOK_NUMBER}, {"SEEN", "seen", LOOK_SECONDS});
    json_decref(j);
    return 0;
}

int run_rounds(const struct ctl *c)
{
    int code = EXIT_ERROR;
    json_t *j = ask(c, "Rounds", of_store(c), &code);
    const json_t *items, *barriers;

    if (j == NULL) return code;
    if (c->json) return show_json(j);
    items = json_object_get(j, "items");
    barriers = json_object_get(j, "barriers");
    if (json_array_size(items) + json_array_size(barriers) == 0) puts("nothing is open: no round waits for anybody");
    if (json_array_size(items) > 0)
        PRINT_TABLE(c, stdout, items, {"KEY", "key", LOOK_TEXT}, {"STEP", "step", LOOK_NUMBER},
                    {"OPEN FOR", "age", LOOK_SECONDS}, {"HAS", "contributions", LOOK_NUMBER},
                    {"WAITS FOR", "waiting", LOOK_TEXT});
    if (json_array_size(barriers) > 0)
        PRINT_TABLE(c, stdout, barriers, {"BARRIER", "name", LOOK_TEXT}, {"OPEN FOR", "age", LOOK_SECONDS},
                    {"WAITS FOR", "waiting", LOOK_TEXT});
    json_decref(j);
    return 0;
}

/* ---- the protocol ----------------------------------------------------------------------------------------------- */

int run_call(const struct ctl *c)
{
    int code = EXIT_ERROR;
    json_error_t why = {.text = "it is something else"};
    json_t *in = c->arg_count > 1 ? json_loads(c->args[1], JSON_REJECT_DUPLICATES, &why) : json_object(), *j;
    unsigned method = wire_method_find(bytes_text(c->args[0]));

    if (method == 0) {
        say(stderr, "paramctl: no method '%s'; `paramctl describe` lists them", c->args[0]);
        json_decref(in);
        return EXIT_NOT_FOUND;
    }
    if (!wire_method_is_json(method)) {
        json_decref(in);
        return complain_usage("%s carries values, no JSON; see get, put and push", wire_method_name(method));
    }
    if (!json_is_object(in)) {
        json_decref(in);
        return complain_usage("the second argument is no JSON object: %s", why.text);
    }
    j = ask(c, wire_method_name(method), in, &code);
    return j != NULL ? show_json(j) : code;
}

/* From the same lists that make the code. */
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

int run_describe(const struct ctl *c)
{
    static const struct { unsigned method; const char *messages[5]; } data[] = {
        {WIRE_Init, {"init", "init_entry", "init_done", "init_result", "fault"}},
        {WIRE_Push, {"push", "push_entry", "push_done", "fault", NULL}},
        {WIRE_Set, {"push", "push_entry", "set_done", NULL, NULL}},
        {WIRE_Pull, {"pull", "pull_entry", "pull_done", "pull_result", "fault"}},
        {WIRE_Wait, {"wait", "wait_entry", "wait_done", "wait_result", "fault"}},
        {WIRE_GetStates, {"states", "states_entry", "states_done", "state", "slot"}},
        {WIRE_SetStates, {"states", "state", "slot", "states_done", NULL}},
    };
    const char *name = c->arg_count > 0 ? c->args[0] : "";
    unsigned m;

    if (strncmp(name, "paramd.v1.", 10) == 0) name += 10;
    if (name[0] == '\0') {
        for (m = 1; m < WIRE_METHODS_END; m++)
            if (wire_method_name(m) != NULL) printf("paramd.v1.%s\n", wire_method_name(m));
        return 0;
    }
    m = wire_method_find(bytes_text(name));
    if (m == 0) {
        say(stderr, "paramctl: no method '%s'; `paramctl describe` lists them", name);
        return EXIT_NOT_FOUND;
    }
    printf("paramd.v1.%s: method %u, %s%s\n", name, m,
           wire_method_is_json(m) ? "one JSON document each way (api/protocol.md, section 4)" : "binary",
           wire_method_flags(m) & WIRE_WRITES ? ", named (executed once)" : "");
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++)
        for (size_t k = 0; data[i].method == m && k < 5 && data[i].messages[k] != NULL; k++)
            print_message(data[i].messages[k]);
    return 0;
}
