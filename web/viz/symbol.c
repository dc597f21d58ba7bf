#include "web/viz/read.h"

#include "web/viz/ops.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct symbol {
    struct viz_graph *g;
    uint32_t *index;                 /* node of the file -> node of the graph */
    size_t count;                    /* nodes of the file that are read */
    const char *name;                /* of the node in hand, for errors */
    bool old;                        /* before 0.9: running statistics are no nodes */
    struct error *e;
};

/* Says which node of the file it is. */
static enum status fault(const struct symbol *f, const char *format, ...) PRINTF_LIKE(2, 3);
static enum status fault(const struct symbol *f, const char *format, ...)
{
    char text[ERROR_TEXT_SIZE];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(f->e, REASON_NETWORK_INVALID, "node %zu ('%.100s'): %s", f->count,
                     f->name != NULL ? f->name : "", text);
}

/* What a parser would have to hold is counted before it is given the text. */
static enum status check_text(struct bytes file, struct error *e)
{
    const char *at = file.at;
    size_t depth = 0, values = 0;
    bool quoted = false;

    if (file.size > VIZ_JSON_SIZE_MAX)
        return error_set(e, REASON_TOO_LARGE, "a symbol file of %zu bytes; at most %d", file.size,
                         VIZ_JSON_SIZE_MAX);
    for (size_t i = 0; i < file.size; i++) {
        char c = at[i];
        if (quoted && c == '\\') i++;
        else if (c == '"') quoted = !quoted;
        if (quoted) continue;
        if (c == '[' || c == '{') depth++;
        else if ((c == ']' || c == '}') && depth > 0) depth--;
        values += c == '[' || c == '{' || c == ',';
        if (depth > VIZ_JSON_DEPTH_MAX)
            return error_set(e, REASON_BAD_JSON, "byte %zu: nested deeper than %d", i, VIZ_JSON_DEPTH_MAX);
        if (values > VIZ_JSON_VALUES_MAX)
            return error_set(e, REASON_TOO_LARGE, "byte %zu: more than %d values", i, VIZ_JSON_VALUES_MAX);
    }
    return STATUS_OK;
}

/* ---- attributes ---------------------------------------------------------------------------------------------- */

static const char *hidden_name(const char *name)
{
    static const char *const pairs[][2] = {
        {"lr_mult", "__lr_mult__"}, {"wd_mult", "__wd_mult__"}, {"ctx_group", "__ctx_group__"},
        {"force_mirroring", "__force_mirroring__"}, {"mirror_stage", "__mirror_stage__"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (strcmp(name, pairs[i][0]) == 0) return pairs[i][1];
    return name;
}

static int add_text(const char *text, size_t size, void *out)
{
    buf_add(out, text, size);
    return 0;
}

/* Values are texts in MXNet's files; what others write as numbers or lists is taken as its JSON. */
static const char *value_text(struct symbol *f, const json_t *v)
{
    if (json_is_string(v))
        return viz_text(f->g, bytes_of(json_string_value(v), json_string_length(v)), VIZ_VALUE_MAX);
    if (json_is_true(v)) return "True";
    if (json_is_false(v)) return "False";
    struct buf text = {0};
    const char *kept = NULL;
    if (json_dump_callback(v, add_text, &text, JSON_ENCODE_ANY) == 0 && !text.failed)
        kept = viz_text(f->g, bytes_of(text.at, text.size), VIZ_VALUE_MAX);
    buf_fini(&text);
    return kept;
}

static enum status add_attrs(struct symbol *f, const json_t *from, struct viz_attr *attrs, size_t *count)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)from, name, value) {
        if (strlen(name) > VIZ_NAME_MAX)
            return fault(f, "an attribute's name has %zu bytes; at most %d", strlen(name), VIZ_NAME_MAX);
        struct viz_attr *a = &attrs[(*count)++];
        a->name = viz_text(f->g, bytes_text(hidden_name(name)), VIZ_NAME_MAX);
        a->value = value_text(f, value);
        if (a->name == NULL || a->value == NULL) return viz_no_memory(f->e);
    }
    return STATUS_OK;
}

/* Files of 0.8 have two: `param` for the operator's and `attr` for the user's. */
static enum status read_attrs(struct symbol *f, const json_t *node, struct viz_node *n)
{
    static const char *const places[] = {"param", "attr", "attrs"};
    size_t total = 1, count = 0;
    enum status s = STATUS_OK;

    for (size_t i = 0; i < 3; i++) {
        const json_t *place = json_object_get(node, places[i]);
        if (place != NULL && !json_is_object(place) && !json_is_null(place))
            return fault(f, "%s is no object", places[i]);
        total += json_object_size(place);
    }
    if (total > VIZ_ATTRS_MAX) return fault(f, "%zu attributes; at most %d", total, VIZ_ATTRS_MAX);
    struct viz_attr *attrs = ARENA_NEW(&f->g->arena, total, struct viz_attr);
    if (attrs == NULL) return viz_no_memory(f->e);
    for (size_t i = 0; i < 3 && s == STATUS_OK; i++)
        s = add_attrs(f, json_object_get(node, places[i]), attrs, &count);
    if (json_array_size(json_object_get(node, "subgraphs")) > 0)
        attrs[count++] = (struct viz_attr){"subgraphs", "not drawn"};
    n->attrs = attrs;
    n->attr_count = (uint32_t)count;
    return s;
}

/* ---- inputs -------------------------------------------------------------------------------------------------- */

static bool is_index(const json_t *v, size_t below, size_t *out)
{
    json_int_t i = json_integer_value(v);

    if (!json_is_integer(v) || i < 0 || (uint64_t)i >= below) return false;
    *out = (size_t)i;
    return true;
}

/* [node, output] or [node, output, version]. */
static enum status read_entry(struct symbol *f, const json_t *entry, const char *what, size_t at,
                              struct viz_input *out)
{
    size_t node, output;
    const json_t *first = json_array_get(entry, 0);

    if (json_array_size(entry) < 2 || json_array_size(entry) > 3)
        return fault(f, "%s %zu is no list of two or three numbers", what, at);
    if (!is_index(first, f->count, &node))
        return json_is_integer(first) && json_integer_value(first) >= 0
               ? fault(f, "%s %zu refers to node %" JSON_INTEGER_FORMAT ", which does not come before it", what, at,
                       json_integer_value(first))
               : fault(f, "%s %zu refers to no node", what, at);
    if (!is_index(json_array_get(entry, 1), VIZ_OUTPUTS_MAX, &output))
        return fault(f, "%s %zu: there is no such output", what, at);
    *out = (struct viz_input){f->index[node], (uint32_t)output};
    return STATUS_OK;
}

/* BatchNorm keeps two statistics; files before 0.9 do not list them. They come before the node, as topological
 * order wants it. */
static enum status add_statistics(struct symbol *f, const char *name, uint32_t out[2])
{
    static const char *const ends[] = {"moving_mean", "moving_var"};
    char text[VIZ_NAME_MAX + 1];
    enum status s = STATUS_OK;

    for (int i = 0; i < 2 && s == STATUS_OK; i++) {
        snprintf(text, sizeof text, "%s_%s", name, ends[i]);
        if (!bytes_is_utf8(bytes_text(text)))
            snprintf(text, sizeof text, "%s", ends[i]); /* cut inside a character */
        s = viz_node_add(f->g, bytes_text(text), (struct bytes){0}, &out[i], f->e);
        if (s == STATUS_OK) s = viz_outputs_set(f->g, out[i], 1, f->e);
    }
    return s;
}

static bool needs_statistics(const struct symbol *f, const char *op, size_t inputs)
{
    return f->old && inputs == 3 && strcmp(op, "BatchNorm") == 0;
}

static enum status read_inputs(struct symbol *f, const json_t *list, const uint32_t *statistics)
{
    size_t count = json_array_size(list), i;
    struct viz_input *inputs = viz_inputs_new(f->g, count + (statistics != NULL ? 2 : 0), f->e);
    const json_t *entry;
    enum status s;

    if (inputs == NULL) return f->e->status;
    json_array_foreach(list, i, entry) {
        s = read_entry(f, entry, "input", i, &inputs[i]);
        if (s != STATUS_OK) return s;
    }
    for (i = 0; statistics != NULL && i < 2; i++) inputs[count + i] = (struct viz_input){statistics[i], 0};
    return STATUS_OK;
}

/* ---- nodes --------------------------------------------------------------------------------------------------- */

static enum status read_node(struct symbol *f, const json_t *node)
{
    const char *op = json_string_value(json_object_get(node, "op"));
    const json_t *name = json_object_get(node, "name"), *inputs = json_object_get(node, "inputs");
    uint32_t statistics[2], at;
    struct bytes kind = {0};

    f->name = json_string_value(name);
    if (op == NULL) return fault(f, "no op");
    if (f->name == NULL) return fault(f, "no name");
    if (inputs != NULL && !json_is_array(inputs)) return fault(f, "inputs is no list");
    bool is_variable = strcmp(op, "null") == 0, lacks = needs_statistics(f, op, json_array_size(inputs));
    if (is_variable && json_array_size(inputs) > 0) return fault(f, "a variable has inputs");
    if (!is_variable) kind = bytes_of(op, strlen(op));
    enum status s = lacks ? add_statistics(f, f->name, statistics) : STATUS_OK;
    if (s == STATUS_OK) s = viz_node_add(f->g, bytes_of(f->name, json_string_length(name)), kind, &at, f->e);
    if (s == STATUS_OK) f->index[f->count] = at;
    if (s == STATUS_OK) s = read_attrs(f, node, &f->g->nodes[at]);
    return s == STATUS_OK ? read_inputs(f, inputs, lacks ? statistics : NULL) : s;
}

static enum status read_nodes(struct symbol *f, const json_t *nodes)
{
    const json_t *node;
    size_t i;

    json_array_foreach(nodes, i, node) {
        enum status s = read_node(f, node);
        if (s != STATUS_OK) return s;
        f->count++;
    }
    f->name = NULL;
    return STATUS_OK;
}

static enum status read_heads(struct symbol *f, const json_t *heads)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(heads, i, entry) {
        struct viz_input head;
        enum status s = read_entry(f, entry, "head", i, &head);
        if (s != STATUS_OK)
            return error_set(f->e, REASON_NETWORK_INVALID, "head %zu refers to no output of a node", i);
        struct viz_node *n = &f->g->nodes[head.node];
        n->head = true;
        if (head.output >= n->outputs_used) n->outputs_used = head.output + 1;
    }
    return STATUS_OK;
}

/* How many outputs each has: as node_row_ptr says, and at least as many as are used. */
static enum status count_outputs(struct symbol *f, const json_t *rows)
{
    struct viz_graph *g = f->g;
    uint32_t *counts = ARENA_NEW(&g->arena, g->node_count, uint32_t);
    enum status s = STATUS_OK;

    if (counts == NULL) return viz_no_memory(f->e);
    for (size_t i = 0; i < g->node_count; i++) {
        if (counts[i] == 0) counts[i] = 1;
        for (size_t k = 0; k < g->nodes[i].input_count; k++) {
            const struct viz_input *in = &g->nodes[i].inputs[k];
            if (in->output >= counts[in->node]) counts[in->node] = in->output + 1;
        }
    }
    for (size_t i = 0; i < f->count && json_array_size(rows) == f->count + 1; i++) {
        json_int_t said = json_integer_value(json_array_get(rows, i + 1)) -
                          json_integer_value(json_array_get(rows, i));
        uint32_t *c = &counts[f->index[i]];
        if (said > *c && said <= VIZ_OUTPUTS_MAX) *c = (uint32_t)said;
    }
    for (uint32_t i = 0; i < g->node_count && s == STATUS_OK; i++)
        if (g->nodes[i].shapes == NULL) s = viz_outputs_set(g, i, counts[i], f->e);
    return s;
}

/* Files before 0.9 do not say by which version they were written. */
static bool is_old(const json_t *root)
{
    const json_t *version = json_object_get(json_object_get(root, "attrs"), "mxnet_version");
    json_int_t number = json_integer_value(json_is_array(version) ? json_array_get(version, 1) : version);

    return number < 900 && !json_is_string(version);
}

static enum status read_root(struct symbol *f, const json_t *root)
{
    const json_t *nodes = json_object_get(root, "nodes");
    size_t count = json_array_size(nodes);

    if (!json_is_array(nodes))
        return error_set(f->e, REASON_NETWORK_INVALID, "no list `nodes`: this is no symbol file of MXNet's");
    if (count == 0) return error_set(f->e, REASON_NETWORK_INVALID, "the network has no nodes");
    if (count > VIZ_NODES_MAX)
        return error_set(f->e, REASON_TOO_LARGE, "%zu nodes; at most %d", count, VIZ_NODES_MAX);
    f->old = is_old(root);
    const json_t *np = json_object_get(json_object_get(root, "attrs"), "is_np_shape");
    f->g->is_np_shape = json_integer_value(json_is_array(np) ? json_array_get(np, 1) : np) != 0;
    f->index = ARENA_NEW(&f->g->arena, count, uint32_t);
    if (f->index == NULL) return viz_no_memory(f->e);
    enum status s = read_nodes(f, nodes);
    if (s == STATUS_OK) s = read_heads(f, json_object_get(root, "heads"));
    return s == STATUS_OK ? count_outputs(f, json_object_get(root, "node_row_ptr")) : s;
}

enum status viz_read_symbol(struct viz_graph *g, struct bytes file, struct error *e)
{
    struct symbol f = {.g = g, .e = e};
    json_error_t where;
    enum status s = check_text(file, e);

    if (s != STATUS_OK) return s;
    json_t *root = json_loadb(file.at, file.size, JSON_REJECT_DUPLICATES, &where);
    if (root == NULL)
        return error_set(e, REASON_BAD_JSON, "line %d, column %d: %s", where.line, where.column, where.text);
    s = read_root(&f, root);
    json_decref(root);
    return s;
}

/* A file of ONNX begins with a field number; JSON with a bracket, perhaps behind blanks or a byte order mark. */
enum status viz_read(struct viz_graph *g, struct bytes file, struct error *e)
{
    const unsigned char *at = file.at;
    size_t skip = file.size >= 3 && memcmp(at, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0, first = skip;

    while (first < file.size && strchr(" \t\r\n", at[first]) != NULL && at[first] != '\0') first++;
    if (first == file.size) return error_set(e, REASON_NETWORK_INVALID, "the file is empty");
    if (at[first] == '{' || at[first] == '[') return viz_read_symbol(g, bytes_of(at + skip, file.size - skip), e);
    g->is_np_shape = true;
    return viz_read_onnx(g, file, e);
}
