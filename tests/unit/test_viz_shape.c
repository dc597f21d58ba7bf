#include "tests/lib/nets.h"
#include "tests/lib/test.h"
#include "web/viz/read.h"
#include "web/viz/shape.h"

#include <stdio.h>
#include <string.h>

/* An operator over variables of these shapes, and what its outputs must be. */
struct row {
    const char *op, *attrs;
    const char *inputs[4];           /* "?" for an unknown one */
    const char *output;
    const char *suggested;           /* shape of the second input afterwards, or NULL */
};

static void check_row(const struct row *r)
{
    struct net n = {0};
    struct viz_graph g = {.arena = {.limit = VIZ_MEMORY_MAX}};
    struct error e;
    char name[16], shape[VIZ_SHAPE_TEXT];
    unsigned count = 0;

    while (count < 4 && r->inputs[count] != NULL) {
        snprintf(name, sizeof name, "in%u", count++);
        net_var(&n, name);
    }
    net_op(&n, r->op, "op", r->attrs, count > 0 ? 0 : -1, count > 1 ? 1 : -1, count > 2 ? 2 : -1,
           count > 3 ? 3 : -1, -1);
    CHECK_OK(viz_read(&g, net_end(&n, count), &e), &e);
    viz_roles(&g);
    for (unsigned i = 0; i < count; i++) {
        struct viz_shape s;
        if (strcmp(r->inputs[i], "?") == 0) continue;
        CHECK(viz_shape_read(r->inputs[i], &s));
        snprintf(name, sizeof name, "in%u", i);
        CHECK_OK(viz_shape_give(&g, name, &s, &e), &e);
    }
    viz_infer(&g);
    viz_shape_text(&g.nodes[count].shapes[0], shape);
    if (strcmp(shape, r->output) != 0)
        test_fail(__FILE__, __LINE__, "%s {%s}: %s, not %s", r->op, r->attrs, shape, r->output);
    if (r->suggested != NULL) {
        viz_shape_text(&g.nodes[1].shapes[0], shape);
        if (strcmp(shape, r->suggested) != 0)
            test_fail(__FILE__, __LINE__, "%s {%s}: input 1 is %s, not %s", r->op, r->attrs, shape, r->suggested);
    }
    viz_graph_fini(&g);
    net_fini(&n);
}

#define CONV "\"kernel\": \"(3, 3)\", \"num_filter\": \"8\""

TEST(shapes_follow_as_in_mxnet)
{
    static const struct row rows[] = {
        {"Convolution", CONV, {"2,3,10,12", "?", "?"}, "2x8x8x10", "8x3x3x3"},
        {"Convolution", CONV ", \"stride\": \"(2, 2)\", \"pad\": \"(1, 1)\"", {"N,3,9,9", "?"}, "Nx8x5x5", "8x3x3x3"},
        {"Convolution", CONV ", \"dilate\": \"(2, 2)\"", {"2,3,10,10", "?"}, "2x8x6x6", NULL},
        {"Convolution", CONV ", \"num_group\": \"4\"", {"2,8,5,5", "?"}, "2x8x3x3", "8x2x3x3"},
        {"Convolution", "\"kernel\": \"(3,)\", \"num_filter\": \"8\"", {"2,3,10", "?"}, "2x8x8", "8x3x3"},
        {"Convolution", CONV, {"?", "?"}, "?x8x?x?", "8x?x3x3"},
        {"Convolution", CONV, {"2,3,2,2", "?"}, "2x8x?x?", NULL},
        {"_npx_convolution", CONV, {"2,3,10,12", "?"}, "2x8x8x10", NULL},
        {"Deconvolution", "\"kernel\": \"(4, 4)\", \"stride\": \"(2, 2)\", \"pad\": \"(1, 1)\", \"num_filter\": \"6\"", {"2,3,8,8", "?"},
         "2x6x16x16", "3x6x4x4"},
        {"Pooling", "\"kernel\": \"(3, 3)\", \"stride\": \"(2, 2)\", \"pool_type\": \"max\"", {"1,4,8,8"}, "1x4x3x3", NULL},
        {"Pooling", "\"kernel\": \"(3, 3)\", \"stride\": \"(2, 2)\", \"pooling_convention\": \"full\"", {"1,4,8,8"}, "1x4x4x4", NULL},
        {"Pooling", "\"global_pool\": \"True\", \"kernel\": \"(7, 7)\"", {"1,4,8,8"}, "1x4x1x1", NULL},
        {"FullyConnected", "\"num_hidden\": \"10\"", {"5,4,3", "?", "?"}, "5x10", "10x12"},
        {"FullyConnected", "\"num_hidden\": \"10\", \"flatten\": \"False\"", {"5,4,3", "?"}, "5x4x10", "10x3"},
        {"FullyConnected", "\"num_hidden\": \"10\"", {"?", "?"}, "?x10", "10x?"},
        {"Embedding", "\"input_dim\": \"1000\", \"output_dim\": \"64\"", {"N", "?"}, "Nx64", "1000x64"},
        {"Embedding", "\"input_dim\": \"7\", \"output_dim\": \"2\"", {"3,4", "?"}, "3x4x2", "7x2"},
        {"BatchNorm", "", {"2,5,3,3", "?", "?"}, "2x5x3x3", "5"},
        {"BatchNorm", "\"axis\": \"-1\"", {"2,5,3,7", "?"}, "2x5x3x7", "7"},
        {"LayerNorm", "", {"2,5,9", "?", "?"}, "2x5x9", "9"},
        {"LeakyReLU", "\"act_type\": \"prelu\"", {"2,5", "?"}, "2x5", "5"},
        {"Activation", "\"act_type\": \"relu\"", {"2,5"}, "2x5", NULL},
        {"Dropout", "", {"2,5"}, "2x5", NULL},
        {"softmax", "", {"2,5"}, "2x5", NULL},
        {"Concat", "\"num_args\": \"2\"", {"2,3,4", "2,5,4"}, "2x8x4", NULL},
        {"Concat", "\"dim\": \"2\"", {"2,3,4", "2,3,6"}, "2x3x10", NULL},
        {"Concat", "", {"2,3", "?"}, "2x?", NULL},
        {"Flatten", "", {"N,3,4"}, "Nx12", NULL},
        {"Flatten", "", {"N"}, "Nx1", NULL},
        {"Reshape", "\"shape\": \"(0, -1)\"", {"2,3,4"}, "2x12", NULL},
        {"Reshape", "\"shape\": \"(-1, 12)\"", {"N,3,4"}, "Nx12", NULL},
        {"Reshape", "\"shape\": \"(0, -1)\"", {"N,3,4"}, "Nx12", NULL},
        {"Reshape", "\"shape\": \"(4, -2)\"", {"4,5,6"}, "4x5x6", NULL},
        {"Reshape", "\"shape\": \"(-3, -2)\"", {"4,5,6"}, "20x6", NULL},
        {"Reshape", "\"shape\": \"(-4, 2, -1, -2)\"", {"8,5,6"}, "2x4x5x6", NULL},
        {"Reshape", "\"shape\": \"(-4, 2)\"", {"8,5"}, "?", NULL},
        {"elemwise_add", "", {"2,5", "?"}, "2x5", NULL},
        {"broadcast_mul", "", {"2,1,5", "4,1"}, "2x4x5", NULL},
        {"broadcast_add", "", {"N,4", "1,4"}, "Nx4", NULL},
        {"broadcast_add", "", {"2,4", "?"}, "?", NULL},
        {"_plus_scalar", "\"scalar\": \"1\"", {"2,5"}, "2x5", NULL},
        {"sum", "\"axis\": \"1\"", {"N,64"}, "N", NULL},
        {"sum_axis", "\"axis\": \"(0, 2)\", \"keepdims\": \"True\"", {"3,4,5"}, "1x4x1", NULL},
        {"mean", "\"axis\": \"0\", \"exclude\": \"True\"", {"3,4,5"}, "3", NULL},
        {"sum", "", {"3,4"}, "1", NULL},
        {"_np_sum", "\"axis\": \"None\"", {"3,4"}, "scalar", NULL},
        {"argmax", "\"axis\": \"1\"", {"3,4"}, "3", NULL},
        {"transpose", "", {"3,4,5"}, "5x4x3", NULL},
        {"transpose", "\"axes\": \"(0, 2, 1)\"", {"3,4,5"}, "3x5x4", NULL},
        {"transpose", "\"axes\": \"(0, 9, 1)\"", {"3,4,5"}, "?", NULL},
        {"SwapAxis", "\"dim1\": \"0\", \"dim2\": \"2\"", {"3,4,5"}, "5x4x3", NULL},
        {"expand_dims", "\"axis\": \"1\"", {"3,4"}, "3x1x4", NULL},
        {"squeeze", "\"axis\": \"1\"", {"3,1,4"}, "3x4", NULL},
        {"squeeze", "", {"3,1,4,1"}, "3x4", NULL},
        {"slice_axis", "\"axis\": \"1\", \"begin\": \"2\", \"end\": \"None\"", {"3,9"}, "3x7", NULL},
        {"slice_axis", "\"axis\": \"1\", \"begin\": \"0\", \"end\": \"-1\"", {"3,9"}, "3x8", NULL},
        {"SliceChannel", "\"num_outputs\": \"3\"", {"2,9,4"}, "2x3x4", NULL},
        {"SliceChannel", "\"num_outputs\": \"9\", \"squeeze_axis\": \"1\"", {"2,9,4"}, "2x4", NULL},
        {"stack", "\"axis\": \"1\"", {"3,4", "3,4"}, "3x2x4", NULL},
        {"UpSampling", "\"scale\": \"2\", \"sample_type\": \"nearest\"", {"1,2,3,4"}, "1x2x6x8", NULL},
        {"one_hot", "\"depth\": \"10\"", {"N"}, "Nx10", NULL},
        {"take", "", {"100,8", "N,5"}, "Nx5x8", NULL},
        {"dot", "", {"3,4", "4,5"}, "3x5", NULL},
        {"dot", "\"transpose_b\": \"True\"", {"3,4", "5,4"}, "3x5", NULL},
        {"batch_dot", "\"transpose_a\": \"1\"", {"7,4,3", "7,4,5"}, "7x3x5", NULL},
        {"MatMul", "", {"N,8,3,4", "4,5"}, "Nx8x3x5", NULL},
        {"RNN", "\"mode\": \"lstm\", \"state_size\": \"20\", \"num_layers\": \"2\", \"bidirectional\": \"True\"", {"35,4,10", "?", "?", "?"},
         "35x4x40", "15040"},
        {"SoftmaxOutput", "", {"N,10", "?"}, "Nx10", "N"},
        {"SoftmaxOutput", "\"multi_output\": \"True\"", {"2,10,4,4", "?"}, "2x10x4x4", "2x4x4"},
        {"LinearRegressionOutput", "", {"N,1", "?"}, "Nx1", "N"},
        {"LinearRegressionOutput", "", {"N,3", "?"}, "Nx3", "Nx3"},
        {"softmax_cross_entropy", "", {"8,3", "?"}, "1", "8"},
        {"_zeros", "\"shape\": \"(2, 3)\"", {NULL}, "2x3", NULL},
        {"SomethingNew", "", {"2,3"}, "?", NULL},
        {"Convolution", "\"kernel\": \"(99999999999999, 3)\", \"stride\": \"(0, 0)\", \"num_filter\": \"-4\"", {"2,3,10,12", "?"}, "2x?x?x?", NULL},
        {"Reshape", "\"shape\": \"(9223372036854775807, 4)\"", {"2,3"}, "?x4", NULL},
        {"Concat", "", {"281474976710656,281474976710656", "3,281474976710656"}, "281474976710656x?", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_row(&rows[i]);
}

TEST(a_store_has_the_last_word_on_shapes_and_makes_a_parameter)
{
    const struct viz_key keys[] = {{.name = "table", .shape = {2, {9, 4}}, .dtype = VIZ_DTYPE_float64}};
    struct net n = {0};
    struct viz_graph g = {0};
    struct error e;
    uint64_t count;

    unsigned ids = net_var(&n, "ids"), table = net_var(&n, "table");
    CHECK_OK(viz_read(&g, net_end(&n, net_op(&n, "take", "op", "", table, ids, -1)), &e), &e);
    viz_roles(&g);
    CHECK_EQ(g.nodes[table].role, ROLE_DATA);
    CHECK_OK(viz_bind_keys(&g, keys, 1, &e), &e);
    viz_infer(&g);
    CHECK_EQ(g.nodes[table].role, ROLE_PARAM);
    CHECK(viz_shape_count(&g.nodes[table].shapes[0], &count));
    CHECK_EQ(count, 36);
    CHECK_EQ(g.nodes[table].dtype, VIZ_DTYPE_float64);
    viz_graph_fini(&g);
    net_fini(&n);
}

TEST(a_shape_for_nobody_names_the_nearest)
{
    struct net n = {0};
    struct viz_graph g = {0};
    struct viz_shape s = {1, {3}};
    struct error e;

    CHECK_OK(viz_read(&g, net_factorization(&n, false), &e), &e);
    viz_roles(&g);
    CHECK_EQ(viz_shape_give(&g, "uesr", &s, &e), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "'user'");
    viz_graph_fini(&g);
    net_fini(&n);
}

TEST(a_shape_is_read_from_text_or_refused)
{
    static const struct { const char *text; bool good; const char *shown; } rows[] = {
        {"1,3", true, "1x3"}, {"(1, 3,)", true, "1x3"}, {"[N,?]", true, "Nx?"}, {"()", true, "scalar"}, {"7", true, "7"}, {"1x2", true, "1x2"},
        {"", false, NULL}, {"a", false, NULL}, {"-1", false, NULL}, {"1,,2", false, NULL}, {"1 2", false, NULL}, {"(1", false, NULL},
        {"1,2,3,4,5,6,7,8,9", false, NULL}, {"99999999999999999999", false, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct viz_shape s;
        char shape[VIZ_SHAPE_TEXT];
        if (viz_shape_read(rows[i].text, &s) != rows[i].good) test_fail(__FILE__, __LINE__, "'%s'", rows[i].text);
        if (rows[i].good) CHECK_TEXT(viz_shape_text(&s, shape), rows[i].shown);
    }
}
