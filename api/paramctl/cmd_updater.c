/* paramctl updater: the updater of a store is shown, set, and checked before that. */
#include "api/paramctl/paramctl.h"

#include "gpu/program.h"
#include "service/updater.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN_MAX = 8 };              /* slots of an example */

static int updater_get(const struct ctl *c)
{
    int code = EXIT_ERROR;
    json_t *j = ask(c, "GetUpdater", of_store(c), &code);

    if (j == NULL) return code;
    if (c->json) return show_json(j);
    show_json(json_incref(json_object_get(j, "updater"))); /* as `updater set` takes it */
    json_decref(j);
    return 0;
}

/* A text in the updater language begins with neither. */
static bool is_document(const char *text)
{
    text += strspn(text, " \t\r\n");
    return text[0] == '{' || (strncmp(text, "null", 4) == 0 && text[4 + strspn(text + 4, " \t\r\n")] == '\0');
}

/* The document that an argument is, or that an updater's name stands for, or what the file has that it names. The result
 * is for free(). NULL: what is wrong has been said. */
static char *read_argument(const char *argument, size_t *size)
{
    char *text = NULL;
    bool is_name = updater_row_find(bytes_text(argument)) != NULL && access(argument, F_OK) != 0;

    if (!is_document(argument) && !is_name) return read_file(argument, size);
    int n = asprintf(&text, is_name ? "{\"type\": \"%s\"}" : "%s", argument);
    *size = n > 0 ? (size_t)n : 0;
    if (n < 0) complain_usage("no memory");
    return n >= 0 ? text : NULL;
}

/* A text in the updater language becomes the document of a program. */
static json_t *document_of(const char *argument, const char *text, size_t size)
{
    json_error_t why;
    json_t *j;

    if (!is_document(text)) {
        j = json_pack("{s:s,s:s%}", "type", "program", "text", text, size);
        if (j == NULL) complain_usage("%.100s: the text is no UTF-8", argument);
        return j;
    }
    j = json_loadb(text, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    if (j == NULL) complain_usage("%.100s: line %d, column %d: %s", argument, why.line, why.column, why.text);
    return j;
}

static int updater_check_document(const struct ctl *c, json_t *document);

/* A number as it is written in documents. */
static const char *plain(const json_t *value, char out[CELL_SIZE])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));

    snprintf(out, CELL_SIZE, "%s", text != NULL ? text : "?");
    free(text);
    return out;
}

static void print_dropped(const json_t *j)
{
    char from[CELL_SIZE], to[CELL_SIZE];
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(j, "dropped"), i, row)
        printf("warning: %s %s -> %s: the document does not say it, so it goes back to its "
               "default\n",
               json_string_value(json_object_get(row, "name")),
               plain(json_object_get(row, "from"), from), plain(json_object_get(row, "to"), to));
}

static int updater_set(const struct ctl *c, const char *argument)
{
    size_t size;
    int code = EXIT_ERROR;
    char *text = read_argument(argument, &size);
    json_t *document = text != NULL ? document_of(argument, text, size) : NULL, *in, *j;

    free(text);
    if (c->dry_run) return updater_check_document(c, document);
    if (document == NULL) return EXIT_USAGE;
    in = of_store(c);
    json_object_set_new(in, "updater", document);
    if (c->states != NULL) json_object_set_new(in, "states", json_string(c->states));
    j = ask(c, "SetUpdater", in, &code);
    if (j == NULL) return code;
    if (c->json) return show_json(j);
    print_dropped(j);
    if (json_is_true(json_object_get(j, "changed")))
        printf("set; new from version %llu on\n", whole(j, "effective_from_version"));
    else puts("it was set already");
    json_decref(j);
    return 0;
}

/* ---- check -------------------------------------------------------------------------------------------------------- */

/* "0.5, -1, 0.25" */
static json_t *list_text(const json_t *list)
{
    char text[CELL_SIZE] = "", number[CELL_SIZE];
    size_t at = 0;

    for (size_t i = 0; i < json_array_size(list) && at < sizeof text; i++) {
        const json_t *v = json_array_get(list, i);
        if (json_is_number(v)) snprintf(number, sizeof number, "%.4g", json_number_value(v));
        else cell(v, LOOK_TEXT, number);         /* NaN, Infinity */
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i > 0 ? ", " : "", number);
    }
    return json_string(text);
}

/* The example as a table: the values before and after each step, and a column for each slot. */
static void print_example(const struct ctl *c, const json_t *example, const json_t *slots)
{
    struct column columns[SHOWN_MAX + 3] = {{"EXAMPLE", "step", LOOK_TEXT}, {"STORED", "stored", LOOK_TEXT},
                                            {"GRAD", "grad", LOOK_TEXT}};
    json_t *rows = json_pack("[{s:s,s:o}]", "step", "before", "stored", list_text(json_object_get(example, "stored")));
    size_t count = 3, i;
    json_t *step, *slot;

    json_array_foreach(slots, i, slot) {
        const char *name = json_string_value(json_object_get(slot, "name"));
        if (count < sizeof columns / sizeof columns[0]) columns[count++] = (struct column){name, name, LOOK_TEXT};
    }
    json_array_foreach(json_object_get(example, "steps"), i, step) {
        json_t *row = json_pack("{s:o,s:o,s:o}", "step", json_sprintf("step %zu", i + 1),
                                "stored", list_text(json_object_get(step, "stored")),
                                "grad", list_text(json_object_get(example, "grad")));
        const char *name;
        json_object_foreach(json_object_get(step, "slots"), name, slot)
            if (json_object_get(row, name) == NULL) json_object_set_new(row, name, list_text(slot));
        json_array_append_new(rows, row);
    }
    print_table(c, stdout, rows, columns, count);
    json_decref(rows);
}

/* What UpdaterCheck says of a text. */
static void print_program(const struct ctl *c, const json_t *j)
{
    const json_t *slots = json_object_get(j, "slots"), *params = json_object_get(j, "params");

    print_fact(c, stdout, "computes", "%llu instructions for each element", whole(j, "instructions"));
    print_fact(c, stdout, "memory", "%llu bytes read and written for each element of float32, %llu kept",
               whole(json_object_get(j, "bytes_per_element"), "f32"),
               whole(json_object_get(j, "state_bytes_per_element"), "f32"));
    if (json_array_size(params) > 0)
        PRINT_TABLE(c, stdout, params, {"PARAM", "name", LOOK_TEXT}, {"STANDARD", "value", LOOK_NUMBER});
    if (json_array_size(slots) > 0)
        PRINT_TABLE(c, stdout, slots, {"SLOT", "name", LOOK_TEXT}, {"STARTS AS", "starts_as", LOOK_NUMBER});
    print_example(c, json_object_get(j, "example"), slots);
}

/* What a dry run says of a store's keys. */
static void print_swap(const struct ctl *c, const json_t *j)
{
    const json_t *report = json_object_get(j, "report"), *bytes = json_object_get(report, "state_bytes"), *warning;
    const json_t *overrides = json_object_get(report, "overrides"), *slots = json_object_get(report, "slots");
    char now[CELL_SIZE], then[CELL_SIZE];
    size_t i;

    print_fact(c, stdout, "updater", "%s%s", json_string_value(json_object_get(json_object_get(j, "updater"), "type")),
               json_is_true(json_object_get(j, "changed")) ? "" : ", as it is already");
    if (report == NULL) return;
    print_fact(c, stdout, "keys", "%llu, new from version %llu on", whole(report, "keys"), whole(j, "effective_from_version"));
    print_fact(c, stdout, "state", "%s now, %s then", bytes_text_of(number(bytes, "now"), now),
               bytes_text_of(number(bytes, "then"), then));
    if (json_array_size(overrides) > 0)
        PRINT_TABLE(c, stdout, overrides, {"OVERRIDE", "match", LOOK_TEXT}, {"KEYS", "keys", LOOK_NUMBER});
    if (json_array_size(slots) > 0)
        PRINT_TABLE(c, stdout, slots, {"SLOT", "name", LOOK_TEXT}, {"KEPT", "kept", LOOK_NUMBER},
                    {"CONVERTED", "converted", LOOK_NUMBER}, {"ANEW", "anew", LOOK_NUMBER},
                    {"DROPPED", "dropped", LOOK_NUMBER});
    json_array_foreach(json_object_get(report, "warnings"), i, warning)
        say(stdout, "warning: %s", json_string_value(warning));
}

/* What the daemon says a document would do to the store. Nothing is changed. */
static int updater_check_document(const struct ctl *c, json_t *document)
{
    int code = EXIT_ERROR;
    json_t *in, *j;

    if (document == NULL) return EXIT_USAGE;
    in = of_store(c);
    json_object_set_new(in, "updater", document);
    if (c->states != NULL) json_object_set_new(in, "states", json_string(c->states));
    j = ask(c, "UpdaterCheck", in, &code);
    if (j == NULL) return code;
    if (c->json) return show_json(j);
    print_swap(c, j);
    if (json_object_get(j, "program") != NULL) print_program(c, json_object_get(j, "program"));
    json_decref(j);
    return 0;
}

/* A text in the updater language. Needs no daemon: the checker is the same. */
static int updater_check_text(const struct ctl *c, const char *path, struct bytes text)
{
    struct buf report = {0};
    struct error e;
    enum status s = program_report(text, NULL, 0, &report, &e);
    json_t *j = s == STATUS_OK ? json_loadb((const char *)report.at, report.size, 0, NULL) : NULL;

    buf_fini(&report);
    if (s != STATUS_OK) {
        say_lines(stderr, "paramctl: %s: %s\n", path, e.text);
        return EXIT_ERROR;
    }
    if (c->json) return show_json(j);
    print_program(c, j);
    json_decref(j);
    return 0;
}

/* The report of a program of a document, with the params that stand there. NULL: it is of another type. */
static json_t *program_of(json_t *document, struct error *e)
{
    struct program_setting settings[PROGRAM_PARAMS_MAX];
    const char *text = json_string_value(json_object_get(document, "text")), *name;
    struct buf report = {0};
    unsigned count = 0;
    json_t *value, *j = NULL;

    if (text == NULL) return NULL;
    json_object_foreach(json_object_get(document, "params"), name, value)
        settings[count++] = (struct program_setting){bytes_text(name), json_number_value(value)};
    if (program_report(bytes_text(text), settings, count, &report, e) == STATUS_OK)
        j = json_loadb((const char *)report.at, report.size, 0, NULL);
    buf_fini(&report);
    return j;
}

/* A document, by the checks that the daemon makes of it; what concerns a store's keys needs the daemon. */
static int updater_check_alone(const struct ctl *c, const char *argument, struct bytes text)
{
    struct updater *u = NULL;
    struct error e;
    json_t *j, *program;

    if (updater_parse(text, &u, &e) != STATUS_OK) {
        say_lines(stderr, "paramctl: %.100s: %s\n", argument, e.text);
        return EXIT_ERROR;
    }
    j = json_loads(updater_text(u), 0, NULL);
    program = program_of(j, &e);
    updater_drop(u);
    j = json_pack("{s:o,s:o*}", "updater", j, "program", program);
    if (c->json) return show_json(j);
    print_fact(c, stdout, "updater", "%s; with all its numbers:", json_string_value(json_object_get(json_object_get(j, "updater"), "type")));
    show_json(json_incref(json_object_get(j, "updater")));
    if (program != NULL) print_program(c, program);
    json_decref(j);
    return 0;
}

static int check(const struct ctl *c, const char *argument)
{
    size_t size;
    char *text = read_argument(argument, &size);
    bool alone = c->url == NULL && c->store == NULL && c->states == NULL && !c->dry_run;
    int code = EXIT_USAGE;

    if (text == NULL) return code;
    if (!alone) code = updater_check_document(c, document_of(argument, text, size));
    else if (is_document(text)) code = updater_check_alone(c, argument, bytes_of(text, size));
    else code = updater_check_text(c, argument, bytes_of(text, size));
    free(text);
    return code;
}

int run_updater(const struct ctl *c)
{
    if (c->arg_count == 0 || (c->arg_count == 1 && strcmp(c->args[0], "get") == 0)) return updater_get(c);
    if (c->arg_count == 2 && strcmp(c->args[0], "set") == 0) return updater_set(c, c->args[1]);
    if (c->arg_count == 2 && strcmp(c->args[0], "check") == 0) return check(c, c->args[1]);
    return complain_usage("usage: paramctl updater [get | set NAME|FILE|JSON | check NAME|FILE|JSON]");
}
