#include "web/viz/viz.h"

#include "service/base/nearest.h"
#include "web/viz/read.h"
#include "web/viz/shape.h"
#include "web/viz/write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- options ------------------------------------------------------------------------------------------------- */

enum format {
    FORMAT_SVG,
    FORMAT_PNG,
    FORMAT_PDF,
    FORMAT_DOT,
    FORMAT_JSON,
    FORMAT_SUMMARY,
    FORMAT_SUMMARY_JSON,
    FORMAT_TEXT,
    FORMAT_COUNT
};

static const struct { const char *name, *media; } formats[FORMAT_COUNT] = {
    {"svg", "image/svg+xml"}, {"png", "image/png"}, {"pdf", "application/pdf"},
    {"dot", "text/vnd.graphviz; charset=utf-8"},
    {"json", "application/json"}, {"summary", "text/plain; charset=utf-8"}, {"summary-json", "application/json"},
    {"text", "text/plain; charset=utf-8"},
};

struct request {
    struct bytes file;
    const json_t *options;
    enum format format;
    bool by_dot;                     /* Graphviz draws */
    struct viz_look look;
    struct viz_table table;
    const char *title, *store;
    struct viz_key *keys;
    size_t key_count;
    const char **expanded;
    char *expand_text;
    bool with_style;
    struct viz_graph graph;
    struct viz_picture picture;
    struct error *e;
};

const char *viz_media(const char *format)
{
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (strcmp(formats[i].name, format) == 0) return formats[i].media;
    return NULL;
}

static enum status wrong(struct request *r, const char *option, const char *what)
{
    return error_set(r->e, REASON_BAD_ARGUMENT, "%s: %s", option, what);
}

static enum status no_memory(struct request *r)
{
    return error_set(r->e, REASON_NO_MEMORY, "no memory for the drawing");
}

static const char *const known[] = {
    "format", "engine", "view", "direction", "color", "title", "shapes", "dtypes", "keys", "store", "expand",
    "hide_weights", "node_attrs",
    "style", "line_length", "positions", NULL,
};

static enum status check_names(struct request *r)
{
    const char *name;
    json_t *value;

    if (r->options != NULL && !json_is_object(r->options))
        return error_set(r->e, REASON_BAD_ARGUMENT, "options are an object");
    json_object_foreach((json_t *)(uintptr_t)r->options, name, value) {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], name) != 0) i++;
        if (known[i] != NULL) continue;
        const char *near = nearest_name(bytes_text(name), known);
        return error_set(r->e, REASON_UNKNOWN_FIELD,
                         near != NULL ? "%.100s: unknown; did you mean %s?" : "%.100s: unknown", name, near);
    }
    return STATUS_OK;
}

/* A text among those that an option may have; *out is its place. */
static enum status choose(struct request *r, const char *option, const char *const *names, int *out)
{
    const json_t *value = json_object_get(r->options, option);
    const char *text = json_string_value(value);
    struct buf all = {0};

    if (value == NULL) return STATUS_OK;
    for (int i = 0; names[i] != NULL; i++) {
        if (text != NULL && strcmp(names[i], text) == 0) {
            *out = i;
            buf_fini(&all);
            return STATUS_OK;
        }
        buf_format(&all, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    buf_add(&all, "", 1);
    enum status s = error_set(r->e, REASON_BAD_ARGUMENT, "%s: '%.60s' is none of %s", option,
                              text != NULL ? text : "", all.failed ? "those there are" : (const char *)all.at);
    buf_fini(&all);
    return s;
}

static enum status read_text(struct request *r, const char *option, const char **out)
{
    const json_t *value = json_object_get(r->options, option);

    if (value == NULL) return STATUS_OK;
    if (!json_is_string(value) || json_string_length(value) > VIZ_NAME_MAX)
        return wrong(r, option, "is no text, or too long");
    *out = json_string_value(value);
    return STATUS_OK;
}

static enum status read_bool(struct request *r, const char *option, bool *out)
{
    const json_t *value = json_object_get(r->options, option);

    if (value == NULL) return STATUS_OK;
    if (!json_is_boolean(value)) return wrong(r, option, "is true or false");
    *out = json_is_true(value);
    return STATUS_OK;
}

static enum status read_look(struct request *r)
{
    static const char *const views[] = {"default", "full", "blocks", "mxnet", NULL}, *const directions[] = {
                                                                                         "down", "up", "right",
                                                                                         NULL};
    const char *names[FORMAT_COUNT + 1] = {NULL}, *colors[4 + MEASURE_COUNT] = {NULL};
    static const char *const engines[] = {"own", "dot", NULL};
    int format = FORMAT_SVG, view = VIEW_default, direction = -1, color = COLOR_OP, engine = 0;
    bool hide = true;

    for (int i = 0; i < FORMAT_COUNT; i++) names[i] = formats[i].name;
    for (int i = 0; i < COLOR_MEASURE + MEASURE_COUNT; i++) colors[i] = viz_color_name(i);
    enum status s = choose(r, "format", names, &format);
    if (s == STATUS_OK) s = choose(r, "engine", engines, &engine);
    if (s == STATUS_OK && engine > 0 && format > FORMAT_PDF)
        s = wrong(r, "engine", "dot is for svg, png and pdf; other formats have nothing to place");
    if (s == STATUS_OK) s = choose(r, "view", views, &view);
    if (s == STATUS_OK) s = choose(r, "direction", directions, &direction);
    if (s == STATUS_OK) s = choose(r, "color", colors, &color);
    if (s == STATUS_OK) s = read_bool(r, "hide_weights", &hide);
    if (s == STATUS_OK) s = read_bool(r, "style", &r->with_style);
    if (s == STATUS_OK) s = read_text(r, "title", &r->title);
    if (s == STATUS_OK) s = read_text(r, "store", &r->store);
    r->format = (enum format)format;
    r->by_dot = engine > 0;
    if (direction < 0)
        direction = r->file.size == 0 ? DIRECTION_RIGHT : view == VIEW_mxnet ? DIRECTION_UP : DIRECTION_DOWN;
    r->look = (struct viz_look){.view = (enum viz_view)view,
                                .direction = (enum viz_direction)direction,
                                .color = color,
                                .show_weights = !hide};
    r->look.edge_shapes = view == VIEW_mxnet && json_object_get(r->options, "shapes") != NULL;
    r->look.edge_dtypes = r->look.edge_shapes && json_object_get(r->options, "dtypes") != NULL;
    return s;
}

enum { EXPANDED_MAX = 64 };

/* "n12,n40", or a list of such. */
static enum status read_expand(struct request *r)
{
    const json_t *value = json_object_get(r->options, "expand"), *item;
    struct buf all = {0};
    size_t i, count = 0;

    if (value == NULL) return STATUS_OK;
    if (json_is_string(value)) buf_text(&all, json_string_value(value));
    json_array_foreach(value, i, item) buf_format(&all, "%s,", json_is_string(item) ? json_string_value(item) : "");
    r->expanded = mem_array(EXPANDED_MAX + 1, sizeof *r->expanded);
    r->expand_text = mem_text((const char *)all.at, all.size);
    bool failed = all.failed || r->expanded == NULL || r->expand_text == NULL;
    buf_fini(&all);
    if (failed) return no_memory(r);
    for (char *at = r->expand_text, *word; (word = strsep(&at, ",")) != NULL;) {
        if (*word == '\0') continue;
        if (count == EXPANDED_MAX) return wrong(r, "expand", "at most 64 blocks");
        r->expanded[count++] = word;
    }
    r->look.expanded = r->expanded;
    return STATUS_OK;
}

static enum status read_table(struct request *r)
{
    const json_t *length = json_object_get(r->options, "line_length"),
                 *positions = json_object_get(r->options, "positions"), *item;
    size_t i;

    if (length != NULL &&
        (!json_is_integer(length) || json_integer_value(length) < 10 || json_integer_value(length) > 1000))
        return wrong(r, "line_length", "is a number from 10 to 1000");
    r->table.width = (unsigned)json_integer_value(length);
    if (positions == NULL || json_is_null(positions)) return STATUS_OK;
    if (json_array_size(positions) != 4 && json_array_size(positions) != 7)
        return wrong(r, "positions", "are four numbers, or seven");
    json_array_foreach(positions, i, item) {
        if (!json_is_number(item)) return wrong(r, "positions", "are numbers");
        r->table.positions[r->table.position_count++] = json_number_value(item);
    }
    return STATUS_OK;
}

/* ---- the store's keys ---------------------------------------------------------------------------------------- */

static struct viz_shape shape_of(const json_t *list)
{
    struct viz_shape s = {.ndim = VIZ_UNKNOWN};
    const json_t *dim;
    size_t i;

    if (!json_is_array(list) || json_array_size(list) > VIZ_DIMS) return s;
    s.ndim = (int)json_array_size(list);
    json_array_foreach(list, i, dim) {
        json_int_t v = json_integer_value(dim);
        const char *text = json_string_value(dim);
        s.dims[i] = json_is_integer(dim) && v >= 0 && v <= (json_int_t)1 << 48 ? v
                  : text != NULL && strcmp(text, "N") == 0 ? VIZ_BATCH : VIZ_UNKNOWN;
    }
    return s;
}

static enum status read_key(struct request *r, const json_t *item, struct viz_key *k)
{
    static const char *const measures[] = {
#define MEASURE_NAME(name, about) #name,
        VIZ_MEASURES(MEASURE_NAME)
#undef MEASURE_NAME
    };
    const char *dtype = json_string_value(json_object_get(item, "dtype"));

    k->name = json_string_value(json_object_get(item, "key"));
    if (k->name == NULL || strlen(k->name) > VIZ_NAME_MAX)
        return wrong(r, "keys", "each has a `key`, which is a text");
    k->shape = shape_of(json_object_get(item, "shape"));
    k->dtype = dtype != NULL ? viz_dtype_find(dtype) : VIZ_DTYPE_unknown;
    k->updater = json_string_value(json_object_get(item, "updater"));
    for (int m = 0; m < MEASURE_COUNT; m++) {
        const json_t *v = json_object_get(item, measures[m]);
        k->measures[m] = json_is_number(v) ? json_number_value(v) : NAN;
    }
    return STATUS_OK;
}

static enum status read_keys(struct request *r)
{
    const json_t *list = json_object_get(r->options, "keys"), *item;
    enum status s = STATUS_OK;
    size_t i;

    if (list != NULL && !json_is_array(list)) return wrong(r, "keys", "is a list");
    if (json_array_size(list) > VIZ_NODES_MAX) return wrong(r, "keys", "at most 20000 can be drawn");
    r->key_count = json_array_size(list);
    r->keys = mem_array(r->key_count, sizeof *r->keys);
    if (r->keys == NULL) return no_memory(r);
    json_array_foreach(list, i, item) {
        s = read_key(r, item, &r->keys[i]);
        if (s != STATUS_OK) break;
    }
    return s;
}

/* ---- shapes -------------------------------------------------------------------------------------------------- */

static enum status give_shape(struct request *r, const char *name, const json_t *value)
{
    struct viz_shape s = shape_of(value);

    if (json_is_string(value) ? !viz_shape_read(json_string_value(value), &s) : s.ndim == VIZ_UNKNOWN)
        return error_set(r->e, REASON_BAD_ARGUMENT,
                         "shape of '%.100s': no list of at most %d numbers (N stands for the batch)", name,
                         VIZ_DIMS);
    return viz_shape_give(&r->graph, name, &s, r->e);
}

/* "data=1,3,224,224;label=N" */
static enum status give_shape_texts(struct request *r, const char *text)
{
    enum status s = STATUS_OK;

    while (*text != '\0' && s == STATUS_OK) {
        size_t size = strcspn(text, ";");
        const char *equals = memrchr(text, '=', size);
        if (equals == NULL) return wrong(r, "shapes", "is like data=1,3,224,224;label=N");
        char *name = mem_text(text, (size_t)(equals - text));
        json_t *value = json_stringn(equals + 1, size - (size_t)(equals + 1 - text));
        s = name == NULL || value == NULL ? no_memory(r) : give_shape(r, name, value);
        mem_free(name);
        json_decref(value);
        text += size + (text[size] == ';');
    }
    return s;
}

static enum status give_dtypes(struct request *r)
{
    const char *name;
    json_t *value;

    json_object_foreach(json_object_get(r->options, "dtypes"), name, value) {
        const char *text = json_string_value(value);
        enum viz_dtype t = text != NULL ? viz_dtype_find(text) : VIZ_DTYPE_unknown;
        if (t == VIZ_DTYPE_unknown)
            return error_set(r->e, REASON_BAD_ARGUMENT, "dtypes: of '%.100s' it is none, such as float32", name);
        for (size_t i = 0; i < r->graph.node_count; i++)
            if (r->graph.nodes[i].op == NULL && strcmp(r->graph.nodes[i].name, name) == 0)
                r->graph.nodes[i].dtype = t;
    }
    return STATUS_OK;
}

static enum status give_shapes(struct request *r)
{
    const json_t *shapes = json_object_get(r->options, "shapes");
    enum status s = STATUS_OK;
    const char *name;
    json_t *value;

    if (json_is_string(shapes)) s = give_shape_texts(r, json_string_value(shapes));
    else if (shapes != NULL && !json_is_object(shapes)) s = wrong(r, "shapes", "is an object of lists");
    json_object_foreach((json_t *)(uintptr_t)shapes, name, value) {
        s = give_shape(r, name, value);
        if (s != STATUS_OK) break;
    }
    return s == STATUS_OK ? give_dtypes(r) : s;
}

/* ---- the way through ----------------------------------------------------------------------------------------- */

static enum status read_request(struct request *r)
{
    enum status s = check_names(r);

    if (s == STATUS_OK) s = read_look(r);
    if (s == STATUS_OK) s = read_expand(r);
    if (s == STATUS_OK) s = read_table(r);
    return s == STATUS_OK ? read_keys(r) : s;
}

static enum status read_graph(struct request *r)
{
    struct viz_graph *g = &r->graph;
    enum status s;

    g->arena.limit = VIZ_MEMORY_MAX;
    if (r->file.size > 0) s = viz_read(g, r->file, r->e);
    else if (json_object_get(r->options, "keys") != NULL)
        s = viz_read_keys(g, r->store, r->keys, r->key_count, r->e);
    else s = error_set(r->e, REASON_BAD_ARGUMENT, "there is neither a network nor keys to draw");
    if (s == STATUS_OK) viz_roles(g);
    if (s == STATUS_OK) s = viz_bind_keys(g, r->keys, r->key_count, r->e);
    if (s == STATUS_OK) s = give_shapes(r);
    if (s == STATUS_OK) viz_infer(g);
    return s;
}

static enum status draw_once(struct request *r, bool placed, struct buf *out)
{
    enum status s;

    viz_picture_fini(&r->picture);
    s = viz_picture_make(&r->graph, &r->look, &r->picture, r->e);
    if (s == STATUS_OK && placed) s = viz_picture_place(&r->picture, r->e);
    if (s != STATUS_OK) return s;
    switch (r->format) {
    case FORMAT_DOT: viz_write_dot(out, &r->picture, r->title, json_object_get(r->options, "node_attrs")); break;
    case FORMAT_JSON: viz_write_json(out, &r->picture, r->title); break;
    case FORMAT_TEXT: viz_write_description(out, &r->picture); break;
    default: viz_write_svg(out, &r->picture, r->title, r->with_style); break;
    }
    return out->failed ? no_memory(r) : STATUS_OK;
}

/* What is too large in detail is drawn by blocks; what is too large then is refused. */
static enum status draw(struct request *r, struct buf *out)
{
    bool is_svg = r->format <= FORMAT_PDF, placed = is_svg || r->format == FORMAT_JSON;
    size_t start = out->size, most = is_svg ? VIZ_SVG_MAX : VIZ_TEXT_MAX;
    enum status s = draw_once(r, placed, out);
    bool too_large = s == STATUS_OK ? out->size - start > most : r->e->reason == REASON_TOO_LARGE;

    if (too_large && r->look.view == VIEW_default && placed) {
        r->look.view = VIEW_blocks;
        out->size = start;
        s = draw_once(r, placed, out);
    }
    if (s == STATUS_OK && out->size - start > most)
        s = error_set(r->e, REASON_TOO_LARGE,
                      "the result has %zu bytes; at most %zu. Try view=blocks, or format=summary",
                      out->size - start, most);
    return s;
}

static enum status draw_converted(struct request *r, struct buf *out)
{
    struct buf svg = {0};
    enum status s = draw(r, &svg);

    if (s == STATUS_OK) s = viz_convert(bytes_of(svg.at, svg.size), formats[r->format].name, out, r->e);
    buf_fini(&svg);
    return s;
}

/* Our DOT text, placed and drawn by Graphviz. */
static enum status draw_by_dot(struct request *r, struct buf *out)
{
    enum format wanted = r->format;
    struct buf dot = {0};

    r->format = FORMAT_DOT;
    enum status s = draw(r, &dot);
    r->format = wanted;
    if (s == STATUS_OK) s = viz_run_dot(bytes_of(dot.at, dot.size), formats[wanted].name, out, r->e);
    buf_fini(&dot);
    return s;
}

static enum status write_result(struct request *r, struct buf *out)
{
    if (r->by_dot) return draw_by_dot(r, out);
    switch (r->format) {
    case FORMAT_SUMMARY:
        if (r->look.view == VIEW_mxnet) viz_write_print_summary(out, &r->graph, &r->table, r->look.edge_shapes);
        else viz_write_summary(out, &r->graph, &r->table);
        break;
    case FORMAT_SUMMARY_JSON: viz_write_summary_json(out, &r->graph); break;
    case FORMAT_PNG: case FORMAT_PDF: return draw_converted(r, out);
    case FORMAT_TEXT: r->look = (struct viz_look){.view = VIEW_default}; return draw(r, out);
    default: return draw(r, out);
    }
    return out->failed ? no_memory(r) : STATUS_OK;
}

enum status viz_render(struct bytes file, const json_t *options, struct buf *out, const char **media,
                       struct error *e)
{
    struct request r = {
        .file = file, .options = options, .title = "plot", .store = "default", .with_style = true, .e = e};
    enum status s = read_request(&r);

    if (s == STATUS_OK) s = read_graph(&r);
    if (s == STATUS_OK) s = write_result(&r, out);
    if (s == STATUS_OK) *media = formats[r.format].media;
    viz_picture_fini(&r.picture);
    viz_graph_fini(&r.graph);
    mem_free(r.keys);
    mem_free(r.expanded);
    mem_free(r.expand_text);
    return s;
}

static enum status list_variables(const struct viz_graph *g, json_t **out, struct error *e)
{
    bool failed = false;

    *out = json_array();
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == NULL)
            failed = json_array_append_new(*out, json_string(g->nodes[i].name)) != 0 || failed;
    if (*out != NULL && !failed) return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return error_set(e, REASON_NO_MEMORY, "no memory for the network");
}

enum status viz_check(struct bytes file, struct viz_facts *facts, json_t **variables, struct error *e)
{
    struct viz_graph g = {.arena = {.limit = VIZ_MEMORY_MAX}};
    enum status s = viz_read(&g, file, e);

    if (s == STATUS_OK) viz_roles(&g);
    *facts = (struct viz_facts){g.node_count, g.edge_count, 0};
    for (size_t i = 0; i < g.node_count; i++) facts->parameters += viz_is_param(&g.nodes[i]);
    if (s == STATUS_OK && variables != NULL) s = list_variables(&g, variables, e);
    viz_graph_fini(&g);
    return s;
}
