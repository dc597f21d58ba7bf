/* What ONNX's operators make of shapes, and which weights a file of ONNX has wherever they lie. Each row is worked
 * out by hand from the definition of the operator. */
#include "tests/lib/test.h"
#include "web/viz/graph.h"
#include "web/viz/read.h"
#include "web/viz/shape.h"
#include "web/viz/viz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- protobuf ------------------------------------------------------------------------------------------------ */

static void put_varint(struct buf *b, uint64_t v)
{
    do {
        uint8_t byte = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        buf_add(b, &byte, 1);
    } while ((v >>= 7) > 0);
}

static void put_number(struct buf *b, unsigned field, int64_t v)
{
    put_varint(b, field << 3);
    put_varint(b, (uint64_t)v);
}

static void put_bytes(struct buf *b, unsigned field, const void *at, size_t size)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, size);
    buf_add(b, at, size);
}

static void put_text(struct buf *b, unsigned field, const char *text) { put_bytes(b, field, text, strlen(text)); }

static void put_message(struct buf *b, unsigned field, struct buf *m)
{
    put_bytes(b, field, m->size > 0 ? (const void *)m->at : "", m->size);
    buf_fini(m);
    *m = (struct buf){0};
}

/* "2,3": field `field` once for each, up to what is no number. */
static void put_list(struct buf *b, unsigned field, const char *list)
{
    for (char *end;; list = end + 1) {
        long long v = strtoll(list, &end, 10);
        if (end == list) return;
        put_number(b, field, v);
        if (*end != ',') return;
    }
}

static void put_tensor(struct buf *to, unsigned field, const char *name, unsigned dtype, const char *dims,
                       const char *ints)
{
    struct buf t = {0};

    put_list(&t, 1, dims);
    put_number(&t, 2, dtype);
    if (ints != NULL) put_list(&t, 7, ints);
    put_text(&t, 8, name);
    put_message(to, field, &t);
}

static void put_input(struct buf *graph, const char *name, unsigned dtype, const char *dims)
{
    struct buf shape = {0}, dim = {0}, tensor = {0}, type = {0}, info = {0};

    while (*dims != '\0') {
        size_t size = strcspn(dims, ",");
        if (*dims >= '0' && *dims <= '9') put_number(&dim, 1, strtoll(dims, NULL, 10));
        else put_bytes(&dim, 2, dims, size);
        put_message(&shape, 1, &dim);
        dims += size + (dims[size] == ',');
    }
    put_number(&tensor, 1, dtype);
    put_message(&tensor, 2, &shape);
    put_message(&type, 1, &tensor);
    put_text(&info, 1, name);
    put_message(&info, 2, &type);
    put_message(graph, 11, &info);
}

/* "axis=1 perm=[0,1] mode='x'": an integer, a list, a text. */
static void put_attrs(struct buf *node, const char *text)
{
    while (*text != '\0') {
        struct buf a = {0};
        size_t name = strcspn(text, "="), size = strcspn(text, " ");
        const char *value = text + name + 1;
        put_bytes(&a, 1, text, name);
        if (*value == '[') put_list(&a, 8, value[1] == ']' ? "" : value + 1);
        else if (*value == '\'') put_bytes(&a, 4, value + 1, size - name - 3);
        else put_number(&a, 3, strtoll(value, NULL, 10));
        put_message(node, 5, &a);
        text += size + (text[size] == ' ');
    }
}

static void begin_node(struct buf *node, const char *op, const char *attrs, const char *inputs, const char *outputs)
{
    for (size_t size; *inputs != '\0'; inputs += size + (inputs[size] == ' ')) {
        size = strcspn(inputs, " ");
        put_bytes(node, 1, inputs, size);
    }
    for (size_t size; *outputs != '\0'; outputs += size + (outputs[size] == ' ')) {
        size = strcspn(outputs, " ");
        put_bytes(node, 2, outputs, size);
    }
    put_text(node, 3, op);
    put_text(node, 4, op);
    put_attrs(node, attrs);
}

static void put_node(struct buf *graph, const char *op, const char *attrs, const char *inputs, const char *outputs)
{
    struct buf node = {0};

    begin_node(&node, op, attrs, inputs, outputs);
    put_message(graph, 1, &node);
}

static void read_model(struct viz_graph *g, struct buf *graph, struct buf *functions)
{
    struct buf file = {0};
    struct error e;

    *g = (struct viz_graph){.arena = {.limit = VIZ_MEMORY_MAX}};
    put_number(&file, 1, 10);
    put_message(&file, 7, graph);
    if (functions != NULL) put_message(&file, 25, functions);
    CHECK_OK(viz_read(g, bytes_of(file.at, file.size), &e), &e);
    viz_roles(g);
    viz_infer(g);
    buf_fini(&file);
}

static const struct viz_node *node_of(const struct viz_graph *g, const char *op)
{
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op != NULL && strcmp(g->nodes[i].op, op) == 0) return &g->nodes[i];
    return NULL;
}

/* ---- shapes -------------------------------------------------------------------------------------------------- */

/* Up to four inputs: "2,3" a tensor, "=1,2" the integers that an initializer has, ":1,2" those of a Constant's
 * value_ints, "*2" two integers that come in at run time. */
struct row {
    const char *op, *attrs;
    const char *inputs[4];
    const char *outputs[3];
};

static void check_row(const struct row *r)
{
    struct buf graph = {0};
    struct viz_graph g;
    char names[64] = "", name[8], text[64], shape[VIZ_SHAPE_TEXT];

    for (unsigned i = 0; i < 4 && r->inputs[i] != NULL; i++) {
        const char *in = r->inputs[i];
        unsigned count = in[1] != '\0';
        snprintf(name, sizeof name, "i%u", i);
        for (const char *c = in; *c != '\0'; c++) count += *c == ',';
        snprintf(text, sizeof text, "%u", count);
        if (*in == '=') put_tensor(&graph, 5, name, 7, text, in + 1);
        else if (*in == '*') put_input(&graph, name, 7, in + 1);
        else if (*in != ':') put_input(&graph, name, 1, in);
        snprintf(text, sizeof text, "value_ints=[%s]", in + 1);
        if (*in == ':') put_node(&graph, "Constant", text, "", name);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i > 0 ? " " : "", name);
    }
    put_node(&graph, r->op, r->attrs, names, "o0 o1 o2");
    read_model(&g, &graph, NULL);
    const struct viz_node *n = node_of(&g, r->op);
    for (unsigned i = 0; i < 3 && n != NULL && r->outputs[i] != NULL; i++)
        if (strcmp(viz_shape_text(&n->shapes[i], shape), r->outputs[i]) != 0)
            test_fail(__FILE__, __LINE__, "%s {%s}: output %u is %s, not %s", r->op, r->attrs, i, shape,
                      r->outputs[i]);
    CHECK(n != NULL);
    viz_graph_fini(&g);
}

TEST(onnx_shapes_are_stated_where_they_follow_and_unknown_elsewhere)
{
    static const struct row rows[] = {
        /* Axes in an attribute, in an initializer, in a Constant, at run time, and none. */
        {"ReduceSum", "axes=[1]", {"2,3,4"}, {"2x1x4"}},
        {"ReduceMean", "keepdims=0", {"2,3,4", "=1"}, {"2x4"}},
        {"ReduceMax", "keepdims=0", {"2,3,4", ":0,-1"}, {"3"}},
        {"ReduceSum", "", {"2,3,4", "*1"}, {"?x?x?"}},
        {"ReduceSum", "keepdims=0", {"2,3,4", "*1"}, {"?"}},
        {"ReduceL2", "keepdims=0 noop_with_empty_axes=1", {"2,3,4", "*1"}, {"?"}},
        {"ReduceMin", "", {"2,3,4"}, {"1x1x1"}},
        {"ReduceProd", "keepdims=0", {"2,3,4"}, {"scalar"}},
        {"ReduceSum", "noop_with_empty_axes=1", {"2,3,4"}, {"2x3x4"}},
        {"ReduceSum", "noop_with_empty_axes=1", {"2,3,4", "="}, {"2x3x4"}},
        {"ReduceSum", "noop_with_empty_axes=1", {"2,3,4", "=2"}, {"2x3x1"}},
        {"ReduceSum", "noop_with_empty_axes=0", {"2,3,4", "="}, {"1x1x1"}},
        {"ReduceLogSumExp", "axes=[2] keepdims=0", {"2,3,4"}, {"2x3"}},
        {"ReduceLogSum", "axes=[0]", {"2,3,4"}, {"1x3x4"}},
        {"ReduceSumSquare", "axes=[0] keepdims=0", {"2,3,4"}, {"3x4"}},
        {"ReduceL1", "axes=[0,1]", {"2,3,4"}, {"1x1x4"}},
        {"ArgMax", "", {"2,3,4"}, {"1x3x4"}},
        {"ArgMin", "axis=-1 keepdims=0", {"2,3,4"}, {"2x3"}},
        /* Other shapes of the same. */
        {"Reshape", "", {"2,3,4", ":6,-1"}, {"6x4"}},
        {"Reshape", "", {"2,3,4", "=0,-1"}, {"2x12"}},
        {"Reshape", "", {"2,3,4", "*2"}, {"?"}},
        {"Reshape", "allowzero=1", {"0,3,4", "=0,12"}, {"?"}},
        {"Squeeze", "", {"1,3,1", ":0"}, {"3x1"}},
        {"Squeeze", "", {"1,3,1"}, {"3"}},
        {"Squeeze", "", {"1,3,1", "*1"}, {"?"}},
        {"Unsqueeze", "", {"2,3", ":1"}, {"2x1x3"}},
        {"Unsqueeze", "", {"2,3", "*1"}, {"?"}},
        {"Split", "axis=1", {"2,6", "*3"}, {"?", "?", "?"}},
        {"Split", "axis=1", {"2,6"}, {"2x2", "2x2", "2x2"}},
        {"OneHot", "axis=0", {"2,3", "*1"}, {"?x2x3"}},
        {"OneHot", "", {"2,3", "*1"}, {"2x3x?"}},
        {"Flatten", "axis=2", {"2,3,4"}, {"?"}},
        {"ConstantOfShape", "", {"*2"}, {"?"}},
        /* Windows. */
        {"ConvTranspose", "strides=[2,2] output_padding=[1,1]", {"1,3,5,5", "3,8,3,3"}, {"1x8x12x12"}},
        {"ConvTranspose", "strides=[2,2] output_shape=[10,10]", {"1,3,5,5", "3,8,3,3"}, {"1x8x?x?"}},
        {"ConvTranspose", "strides=[2,2] auto_pad='SAME_UPPER'", {"1,3,5,5", "3,8,3,3"}, {"1x8x?x?"}},
        /* Recurrent: every step, then the last states. */
        {"GRU", "hidden_size=7", {"5,2,3", "1,21,3", "1,21,7"}, {"5x1x2x7", "1x2x7"}},
        {"LSTM", "direction='bidirectional'", {"5,2,3", "2,28,3", "2,28,7"}, {"5x2x2x7", "2x2x7", "2x2x7"}},
        {"RNN", "hidden_size=7 layout=1", {"2,5,3", "1,7,3", "1,7,7"}, {"2x5x1x7", "2x1x7"}},
        {"RNN", "", {"5,2,3"}, {"5x1x2x?"}},
        /* Quantized. */
        {"QuantizeLinear", "", {"2,3", "1"}, {"2x3"}},
        {"DequantizeLinear", "", {"2,3", "1"}, {"2x3"}},
        /* Two names are two sizes. */
        {"Relu", "", {"batch,length,8"}, {"Nx?x8"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_row(&rows[i]);
}

/* ---- weights ------------------------------------------------------------------------------------------------- */

static uint64_t weights(const struct viz_graph *g)
{
    uint64_t all = 0, count;

    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].role == ROLE_PARAM && viz_shape_count(&g->nodes[i].shapes[0], &count)) all += count;
    return all;
}

static void put_constant(struct buf *graph, const char *name, const char *dims, unsigned node_field)
{
    struct buf node = {0}, a = {0};

    begin_node(&node, "Constant", "", "", name);
    put_text(&a, 1, "value");
    put_tensor(&a, 5, "", 1, dims, NULL);
    put_message(&node, 5, &a);
    put_message(graph, node_field, &node);
}

TEST(weights_in_constants_count_and_scalars_do_not)
{
    struct buf graph = {0};
    struct viz_graph g;

    put_input(&graph, "x", 1, "N,3");
    put_constant(&graph, "w", "3,5", 1);
    put_constant(&graph, "one", "", 1);
    put_node(&graph, "MatMul", "", "x w", "y");
    put_node(&graph, "Add", "", "y one", "z");
    put_tensor(&graph, 5, "dims", 7, "2", "4,6");
    put_node(&graph, "ConstantOfShape", "", "dims", "filled");
    put_node(&graph, "MatMul", "", "z filled", "o");
    read_model(&g, &graph, NULL);
    CHECK_EQ(weights(&g), 15 + 24);
    CHECK_EQ(node_of(&g, "MatMul")->shapes[0].dims[1], 5);
    viz_graph_fini(&g);
}

TEST(weights_in_bodies_and_those_that_only_bodies_use_count_once)
{
    struct buf graph = {0}, inner = {0}, body = {0}, a = {0}, node = {0};
    struct viz_graph g;

    put_input(&graph, "x", 1, "N,3");
    put_input(&graph, "c", 9, "");
    put_tensor(&graph, 5, "outer", 1, "3,7", NULL);
    put_tensor(&inner, 5, "deep", 1, "11", NULL);
    put_node(&inner, "Add", "", "outer deep", "s");
    put_tensor(&body, 5, "own", 1, "3,5", NULL);
    put_constant(&body, "held", "13", 1);
    put_node(&body, "MatMul", "", "x own", "m");
    put_node(&body, "MatMul", "", "x outer", "n");
    begin_node(&node, "Loop", "", "", "l");
    put_text(&a, 1, "body");
    put_message(&a, 6, &inner);
    put_message(&node, 5, &a);
    put_message(&body, 1, &node);
    begin_node(&node, "If", "", "c", "y");
    put_text(&a, 1, "then_branch");
    put_message(&a, 6, &body);
    put_message(&node, 5, &a);
    put_message(&graph, 1, &node);
    read_model(&g, &graph, NULL);
    CHECK_EQ(weights(&g), 21 + 11 + 15 + 13);
    viz_graph_fini(&g);
}

TEST(weights_in_a_function_count_once_however_often_it_is_called)
{
    struct buf graph = {0}, function = {0}, node = {0};
    struct viz_graph g;

    put_input(&graph, "x", 1, "N,3");
    for (int i = 0; i < 2; i++) {
        begin_node(&node, "Relu", "", i == 0 ? "x" : "y", i == 0 ? "y" : "z");
        put_text(&node, 7, "mine");
        put_message(&graph, 1, &node);
    }
    put_text(&function, 1, "Relu");
    put_constant(&function, "w", "3,9", 7);
    put_text(&function, 10, "mine");
    read_model(&g, &graph, &function);
    CHECK_EQ(weights(&g), 27);
    CHECK_EQ(node_of(&g, "Relu")->shapes[0].ndim, VIZ_UNKNOWN); /* only the name is that of an operator */
    viz_graph_fini(&g);
}

TEST(a_sparse_initializer_has_the_dimensions_of_the_whole)
{
    struct buf graph = {0}, sparse = {0};
    struct viz_graph g;

    put_input(&graph, "x", 1, "N,30");
    put_tensor(&sparse, 1, "w", 1, "4", NULL);
    put_tensor(&sparse, 2, "", 7, "4", "0,1,2,3");
    put_list(&sparse, 3, "30,20");
    put_message(&graph, 15, &sparse);
    put_node(&graph, "MatMul", "", "x w", "y");
    read_model(&g, &graph, NULL);
    CHECK_EQ(weights(&g), 600);
    CHECK_EQ(node_of(&g, "MatMul")->shapes[0].dims[1], 20);
    viz_graph_fini(&g);
}

TEST(bytes_of_every_element_type_are_those_of_onnx)
{
    static const struct { unsigned onnx; uint64_t bytes; } rows[] = { /* of five elements; 0: not known */
        {1, 20}, {2, 5}, {3, 5}, {4, 10}, {5, 10}, {6, 20}, {7, 40}, {8, 0}, {9, 5}, {10, 10}, {11, 40}, {12, 20},
        {13, 40}, {14, 40}, {15, 80}, {16, 10}, {17, 5}, {18, 5}, {19, 5}, {20, 5}, {21, 3}, {22, 3}, {23, 3},
        {24, 5}, {25, 2}, {26, 2}, {27, 0}, {99, 0}, {0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 0;
        CHECK_EQ(viz_dtype_bytes(viz_dtype_onnx(rows[i].onnx), 5, &bytes), rows[i].bytes != 0);
        CHECK_EQ(bytes, rows[i].bytes);
    }
}

/* ---- what repeats -------------------------------------------------------------------------------------------- */

static void describe(struct buf *graph, struct buf *text)
{
    json_t *options = json_pack("{s:s}", "format", "text");
    struct buf file = {0};
    const char *media;
    struct error e;

    put_message(&file, 7, graph);
    CHECK_OK(viz_render(bytes_of(file.at, file.size), options, text, &media, &e), &e);
    buf_add(text, "", 1);
    json_decref(options);
    buf_fini(&file);
}

TEST(equal_nodes_that_do_not_hang_on_each_other_are_no_block)
{
    struct buf graph = {0}, text = {0};
    char name[16], before[16] = "c0";

    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "c%d", i);
        put_node(&graph, "Constant", "value_float=1", "", name);
    }
    put_node(&graph, "Sum", "", "c0 c1 c2 c3 c4 c5", "y");
    describe(&graph, &text);
    CHECK(strstr((const char *)text.at, "times") == NULL);
    buf_clear(&text);
    for (int i = 0; i < 8; i++) { /* and those that do, are one */
        snprintf(name, sizeof name, "r%d", i);
        if (i == 0) put_node(&graph, "Constant", "value_float=1", "", "c0");
        put_node(&graph, "Relu", "", before, name);
        snprintf(before, sizeof before, "%s", name);
    }
    describe(&graph, &text);
    CHECK_SAYS((const char *)text.at, "times");
    buf_fini(&text);
}
