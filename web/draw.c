/* Networks over HTTP: kept, drawn, summed up, described, with what the store knows of their parameters. */
#include "web/json.h"
#include "web/networks.h"
#include "web/page.h"
#include "web/routes.h"
#include "web/tags.h"

#include "service/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = STATS_KEYS_MAX };     /* keys in one question */

/* ---- the store's part ---------------------------------------------------------------------------------------- */

/* What is asked of a store. */
struct wanted {
    json_int_t store;
    const char *updater;
    bool norms;                      /* measured, too */
};

/* The norms of the keys of these rows; NULL: not known. Unknown keys are null, here and there. */
static json_t *norms_of(struct exchange *x, const struct wanted *w, const json_t *rows)
{
    json_t *names = json_array(), *row, *said = NULL;
    size_t i;

    json_array_foreach(rows, i, row) json_array_append(names, json_object_get(row, "key"));
    if (w->norms && json_array_size(names) > 0)
        said = ask_quietly(x, WIRE_KeyStats, json_pack("{s:I,s:O}", "store", w->store, "keys", names));
    json_decref(names);
    return said;
}

/* Adds rows of Describe or List, each with the store's updater. Unknown keys are null. */
static void add_rows(struct exchange *x, json_t *keys, const struct wanted *w, const json_t *rows)
{
    json_t *said = norms_of(x, w, rows), *norms = json_object_get(said, "items"), *row;
    size_t i, known = 0;

    json_array_foreach(rows, i, row) {
        const json_t *key = json_object_get(row, "key");
        char number[32];
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(key));
        if (!json_is_object(row)) continue;
        json_t *drawn = json_pack("{s:s,s:O,s:O,s:O,s:s*}", "key", json_is_string(key) ? json_string_value(key) : number,
                                  "dtype", json_object_get(row, "dtype"), "shape", json_object_get(row, "shape"),
                                  "version", json_object_get(row, "version"), "updater", w->updater);
        json_t *norm = json_array_get(norms, known++);
        if (drawn != NULL && json_is_object(norm)) json_object_update_missing(drawn, norm);
        json_array_append_new(keys, drawn);
    }
    json_decref(said);
}

/* What the store has of these variables. A store whose keys are integers has none: a network's parameters have
 * names. */
static void describe(struct exchange *x, json_t *keys, const struct wanted *w, const json_t *variables)
{
    for (size_t from = 0; from < json_array_size(variables); from += BATCH) {
        json_t *part = json_array(), *said;
        for (size_t i = from; i < from + BATCH && i < json_array_size(variables); i++) {
            const char *name = json_string_value(json_array_get(variables, i));
            if (*name != '\0' && strlen(name) <= KEY_NAME_SIZE_MAX) json_array_append_new(part, json_string(name));
        }
        said = json_array_size(part) > 0
                   ? ask_quietly(x, WIRE_Describe, json_pack("{s:I,s:O}", "store", w->store, "keys", part))
                   : NULL;
        add_rows(x, keys, w, json_object_get(said, "items"));
        json_decref(said);
        json_decref(part);
    }
}

static void list(struct exchange *x, json_t *keys, const struct wanted *w)
{
    json_t *after = NULL, *said;

    do {
        said = ask_quietly(x, WIRE_List,
                           json_pack("{s:I,s:i,s:O*}", "store", w->store, "limit", BATCH, "after", after));
        add_rows(x, keys, w, json_object_get(said, "items"));
        json_decref(after);
        after = json_incref(json_object_get(said, "next"));
        if (json_is_null(after)) {
            json_decref(after);
            after = NULL;
        }
        json_decref(said);
    } while (after != NULL && json_array_size(keys) < 10000);
    json_decref(after);
}

/* Everything in the store, or with `variables` what has these names. NULL: there is no such store, and that was
 * said. */
static json_t *store_keys(struct exchange *x, const char *name, const char *format, const json_t *variables)
{
    json_t *store = ask(x, WIRE_GetStore, json_pack("{s:s}", "store", name)), *keys = NULL;

    if (store == NULL) return NULL;
    struct wanted w = {.store = json_integer_value(json_object_get(store, "id")),
                       .updater = json_string_value(json_object_get(json_object_get(store, "updater"), "type")),
                       .norms = viz_is_measured(exchange_query(x, "color")) || strcmp(format, "json") == 0};
    const char *type = json_string_value(json_object_get(store, "key_type"));
    keys = json_array();
    if (variables == NULL && w.store > 0) list(x, keys, &w);
    else if (w.store > 0 && type != NULL && strcmp(type, "str") == 0) describe(x, keys, &w, variables);
    json_decref(store);
    if (keys == NULL) say_problem(x, REASON_NO_MEMORY, "no memory for an answer");
    return keys;
}

/* ---- drawing ------------------------------------------------------------------------------------------------- */

static json_t *options_of(const struct exchange *x, const char *format, const char *title, const char *store,
                          json_t *keys)
{
    static const struct { const char *query, *option; } same[] = {
        {"view", "view"}, {"direction", "direction"}, {"color", "color"}, {"expand", "expand"}, {"shape", "shapes"},
    };
    const char *style = exchange_query(x, "style");
    json_t *o = json_pack("{s:s,s:s,s:s,s:O}", "format", format, "title", title, "store", store, "keys", keys);

    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        const char *value = exchange_query(x, same[i].query);
        if (value != NULL && *value != '\0') json_object_set_new(o, same[i].option, json_string(value));
    }
    if (style != NULL) json_object_set_new(o, "style", json_boolean(strcmp(style, "none") != 0));
    return o;
}

/* The tag names the bytes: who has them gets 304, also when versions have moved but the drawing has not. */
static void say_drawing(struct exchange *x, struct drawing_id id, struct buf *out, const char *media)
{
    uint64_t h = 0xcbf29ce484222325u;
    char tag[DRAWING_TAG_SIZE];

    for (size_t i = 0; i < out->size; i++) h = (h ^ out->at[i]) * 0x100000001b3u;
    snprintf(tag, sizeof tag, "%zx.%016llx", out->size, (unsigned long long)h);
    networks_remember(exchange_networks(x), id, tag);
    say_header(x, "ETag", "\"%s\"", tag);
    if (tag_listed(exchange_header(x, "If-None-Match"), tag)) {
        say_nothing(x, 304);
        return;
    }
    /* Opened by itself it runs nothing and loads nothing. */
    if (strstr(media, "svg") != NULL)
        say_header(x, "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
    x->code = 200;
    x->type = media;
    x->out = *out;
    *out = (struct buf){0};
}

/* The client has the drawing of these inputs: that is said without drawing. */
static bool say_unchanged(struct exchange *x, struct drawing_id id)
{
    const char *have = exchange_header(x, "If-None-Match");
    char tag[DRAWING_TAG_SIZE];

    if (have == NULL || !networks_recall(exchange_networks(x), id, tag) || !tag_listed(have, tag)) return false;
    say_header(x, "ETag", "\"%s\"", tag);
    say_nothing(x, 304);
    return true;
}

static void render(struct exchange *x, struct bytes file, uint64_t serial, json_t *options)
{
    char *inputs = options != NULL ? json_dumps(options, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    struct drawing_id id = networks_drawing(serial, inputs != NULL ? inputs : "");

    const char *format = json_string_value(json_object_get(options, "format")), *media;
    bool converts = format != NULL && (strcmp(format, "png") == 0 || strcmp(format, "pdf") == 0);
    struct networks *n = exchange_networks(x);
    struct buf out = {0};
    struct error e;

    bool known = inputs != NULL;
    json_text_free(inputs);
    if (!known) {
        say_problem(x, REASON_NO_MEMORY, "no memory for a drawing");
        return;
    }
    if (say_unchanged(x, id)) return;
    if (converts && !networks_begin_convert(n)) {
        error_retry(&e, REASON_LIMIT, 1000,
                    "another drawing is being made into png or pdf; svg can be had at once");
        say_error(x, &e, NULL);
        return;
    }
    enum status s = viz_render(file, options, &out, &media, &e);
    if (converts) networks_end_convert(n);
    if (s == STATUS_OK) say_drawing(x, id, &out, media);
    else say_error(x, &e, NULL);
    buf_fini(&out);
}

static struct network *find(struct exchange *x)
{
    struct network *f = networks_hold(exchange_networks(x), x->name);

    if (f == NULL) say_problem(x, REASON_NO_NETWORK, "there is no network '%.100s'; PUT its file to "
                               "/v1/networks/NAME, and GET /v1/networks lists those that are there", x->name);
    return f;
}

static void draw(struct exchange *x, const char *format)
{
    const char *store = exchange_query(x, "store");
    struct network *f = find(x);

    if (f == NULL) return;
    if (store == NULL) store = "default";
    json_t *keys = store_keys(x, store, format, f->variables);
    if (keys != NULL) {
        json_t *options = options_of(x, format, f->name, store, keys);
        render(x, bytes_of(f->file.at, f->file.size), f->serial, options);
        json_decref(options);
    }
    json_decref(keys);
    network_drop(exchange_networks(x), f);
}

static bool choose_format(struct exchange *x, const char *standard, const char *const *others, const char **out)
{
    const char *said = exchange_query(x, "format");
    struct buf all = {0};

    *out = standard;
    if (said == NULL) return true;
    for (; *others != NULL; others++) {
        if (strcmp(said, *others) == 0) {
            *out = *others;
            buf_fini(&all);
            return true;
        }
        buf_format(&all, " %s", *others);
    }
    say_problem(x, REASON_BAD_ARGUMENT, "format is one of%.*s", (int)all.size, (const char *)all.at);
    buf_fini(&all);
    return false;
}

static const char *const graph_formats[] = {"svg", "dot", "json", "png", "pdf", "text", NULL};

void handle_network_graph(struct exchange *x)
{
    const char *format;

    if (choose_format(x, "svg", graph_formats, &format)) draw(x, format);
}

void handle_network_summary(struct exchange *x)
{
    static const char *const formats[] = {"text", "json", NULL};
    const char *format;

    if (choose_format(x, "text", formats, &format))
        draw(x, strcmp(format, "json") == 0 ? "summary-json" : "summary");
}

void handle_network_text(struct exchange *x) { draw(x, "text"); }

void handle_store_graph(struct exchange *x)
{
    const char *format;

    if (!choose_format(x, "svg", graph_formats, &format)) return;
    json_t *keys = store_keys(x, x->store, format, NULL);
    if (keys == NULL) return;
    json_t *options = options_of(x, format, x->store, x->store, keys);
    render(x, (struct bytes){0}, 0, options);
    json_decref(options);
    json_decref(keys);
}

/* ---- keeping ------------------------------------------------------------------------------------------------- */

void handle_networks(struct exchange *x)
{
    json_t *items = networks_list(exchange_networks(x));
    json_int_t total = (json_int_t)json_array_size(items);

    say_json(x, 200, json_pack("{s:o,s:n,s:I}", "items", items, "next_cursor", "total", total));
}

void handle_network_put(struct exchange *x)
{
    struct networks *n = exchange_networks(x);
    bool replaced = false;
    struct error e;

    if (strlen(x->name) > KEY_NAME_SIZE_MAX) {
        say_problem(x, REASON_BAD_PATH, "a network's name has at most %d bytes", KEY_NAME_SIZE_MAX);
        return;
    }
    if (networks_put(n, x->name, &x->body, &replaced, &e) != STATUS_OK) {
        say_error(x, &e, NULL);
        return;
    }
    struct network *f = networks_hold(n, x->name);
    say_header(x, "Location", "%.*s", (int)strcspn(x->target.raw, "?"), x->target.raw);
    say_json(x, replaced ? 200 : 201,
             json_pack("{s:s,s:I,s:I,s:I}", "name", x->name, "nodes", (json_int_t)(f != NULL ? f->facts.nodes : 0),
                       "edges", (json_int_t)(f != NULL ? f->facts.edges : 0), "parameters",
                       (json_int_t)(f != NULL ? f->facts.parameters : 0)));
    network_drop(n, f);
}

void handle_network_get(struct exchange *x)
{
    struct network *f = find(x);

    if (f == NULL) return;
    if (!exchange_reserve(x, f->file.size)) {
        struct error e;
        error_retry(&e, REASON_LIMIT, 1000, "other answers take all the memory there is for them");
        say_error(x, &e, NULL);
    } else {
        x->code = 200;
        x->type = memchr("{[ \t\r\n\xEF", f->file.at[0], 7) != NULL ? "application/json"
                                                                    : "application/octet-stream";
        buf_add(&x->out, f->file.at, f->file.size);
        if (x->out.failed) say_problem(x, REASON_NO_MEMORY, "no memory for an answer");
    }
    network_drop(exchange_networks(x), f);
}

void handle_network_delete(struct exchange *x)
{
    if (networks_remove(exchange_networks(x), x->name)) say_nothing(x, 204);
    else say_problem(x, REASON_NO_NETWORK, "there is no network '%.100s'", x->name);
}

/* ---- the page ------------------------------------------------------------------------------------------------ */

void handle_network_page(struct exchange *x) { say_file(x, page_network_html(), "text/html; charset=utf-8"); }
void handle_network_css(struct exchange *x) { say_file(x, page_network_css(), "text/css; charset=utf-8"); }
void handle_network_js(struct exchange *x) { say_file(x, page_network_js(), "text/javascript; charset=utf-8"); }
void handle_graph_css(struct exchange *x) { say_file(x, bytes_text(viz_svg_style), "text/css; charset=utf-8"); }
