/* Networks as gluon exports them: every parameter says its shape, with zeros where gluon had not
 * yet seen an input. The counts are checked against sums that are taken while the network is
 * written, layer by layer, from the width of each layer's input; nothing of the code under test is
 * used for them. */
#include "tests/lib/nets.h"
#include "tests/lib/test.h"
#include "web/viz/read.h"
#include "web/viz/shape.h"
#include "web/viz/viz.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct gluon {
    struct net n;
    const char *prefix;
    unsigned convs, norms, acts;
    uint64_t learned, kept; /* numbers, by arithmetic */
    bool full;              /* shapes say it all, as of a network whose sizes were all given */
};

static int param(struct gluon *m, const char *layer, const char *what, const char *shape,
                 bool is_learned)
{
    char name[200];

    snprintf(name, sizeof name, "%s_%s_%s", m->prefix, layer, what);
    return (int)net_var_with(&m->n, name,
                             "\"__dtype__\": \"0\", \"__init__\": \"zeros\", \"__lr_mult__\": "
                             "\"%s\", \"__shape__\": \"%s\", "
                             "\"__storage_type__\": \"0\", \"__wd_mult__\": \"1.0\"",
                             is_learned ? "1.0" : "0.0", shape);
}

/* A convolution without bias, as all of these networks' are: `width` channels become `filters`. */
static int conv(struct gluon *m, int from, unsigned width, unsigned filters, unsigned kernel,
                unsigned stride, unsigned groups)
{
    char layer[32], name[200], attrs[400], shape[64];
    unsigned pad = kernel / 2;

    snprintf(layer, sizeof layer, "conv%u", m->convs++);
    snprintf(shape, sizeof shape, "(%u, %u, %u, %u)", filters,
             m->full || groups > 1 ? width / groups * (m->full || width == groups) : 0, kernel,
             kernel);
    int weight = param(m, layer, "weight", shape, true);
    snprintf(name, sizeof name, "%s_%s_fwd", m->prefix, layer);
    snprintf(attrs, sizeof attrs,
             "\"dilate\": \"(1, 1)\", \"kernel\": \"(%u, %u)\", \"layout\": \"NCHW\", \"no_bias\": "
             "\"True\", "
             "\"num_filter\": \"%u\", \"num_group\": \"%u\", \"pad\": \"(%u, %u)\", \"stride\": "
             "\"(%u, %u)\"",
             kernel, kernel, filters, groups, pad, pad, stride, stride);
    m->learned += (uint64_t)filters * (width / groups) * kernel * kernel;
    return (int)net_op(&m->n, "Convolution", name, attrs, from, weight, -1);
}

static int norm(struct gluon *m, int from, unsigned width)
{
    static const char *const parts[] = {"gamma", "beta", "running_mean", "running_var"};
    char layer[32], name[200], shape[32];
    int p[4];

    snprintf(layer, sizeof layer, "batchnorm%u", m->norms++);
    snprintf(shape, sizeof shape, "(%u,)", m->full ? width : 0);
    for (int i = 0; i < 4; i++) p[i] = param(m, layer, parts[i], shape, i < 2);
    snprintf(name, sizeof name, "%s_%s_fwd", m->prefix, layer);
    m->learned += 2 * width;
    m->kept += 2 * width;
    return (int)net_op(
        &m->n, "BatchNorm", name,
        "\"axis\": \"1\", \"eps\": \"1e-05\", \"fix_gamma\": \"False\", \"momentum\": \"0.9\", "
        "\"use_global_stats\": \"False\"",
        from, p[0], p[1], p[2], p[3], -1);
}

static int relu(struct gluon *m, int from)
{
    char name[200];

    snprintf(name, sizeof name, "%s_relu%u_fwd", m->prefix, m->acts++);
    return (int)net_op(&m->n, "Activation", name, "\"act_type\": \"relu\"", from, -1);
}

static int residual(struct gluon *m, int from, unsigned width, unsigned filters, unsigned stride)
{
    int x = relu(m, norm(m, conv(m, from, width, filters, 3, stride, 1), filters)), down = from;
    char name[200];

    x = norm(m, conv(m, x, filters, filters, 3, 1, 1), filters);
    if (width != filters) down = norm(m, conv(m, from, width, filters, 1, stride, 1), filters);
    snprintf(name, sizeof name, "%s__plus%u", m->prefix, m->acts);
    return relu(m, (int)net_op(&m->n, "elemwise_add", name, "", down, x, -1));
}

/* The ResNet of 18 layers, version 1, for 1000 classes. */
static struct bytes resnet18(struct gluon *m)
{
    unsigned width = 64;

    m->prefix = "resnetv10";
    int x = (int)net_var(&m->n, "data");
    x = relu(m, norm(m, conv(m, x, 3, 64, 7, 2, 1), 64));
    x = (int)net_op(&m->n, "Pooling", "resnetv10_pool0_fwd",
                    "\"global_pool\": \"False\", \"kernel\": \"(3, 3)\", \"layout\": \"NCHW\", "
                    "\"pad\": \"(1, 1)\", \"pool_type\": \"max\", \"pooling_convention\": "
                    "\"valid\", \"stride\": \"(2, 2)\"",
                    x, -1);
    for (unsigned stage = 0; stage < 4; stage++)
        for (unsigned unit = 0; unit < 2; unit++) {
            unsigned filters = 64u << stage;
            x = residual(m, x, width, filters, stage > 0 && unit == 0 ? 2 : 1);
            width = filters;
        }
    x = (int)net_op(&m->n, "Pooling", "resnetv10_pool1_fwd",
                    "\"global_pool\": \"True\", \"kernel\": \"(1, 1)\", \"pool_type\": \"avg\"", x,
                    -1);
    int weight = param(m, "dense0", "weight", m->full ? "(1000, 512)" : "(1000, 0)", true),
        bias = param(m, "dense0", "bias", "(1000,)", true);
    m->learned += 1000 * 512 + 1000;
    return net_end(&m->n, net_op(&m->n, "FullyConnected", "resnetv10_dense0_fwd",
                                 "\"flatten\": \"True\", \"no_bias\": \"False\", "
                                 "\"num_hidden\": \"1000\"",
                                 x, weight, bias, -1));
}

static int bottleneck(struct gluon *m, int from, unsigned width, unsigned filters, unsigned factor,
                      unsigned stride)
{
    unsigned inner = width * factor;
    char name[200];
    int x = relu(m, norm(m, conv(m, from, width, inner, 1, 1, 1), inner));

    x = relu(m, norm(m, conv(m, x, inner, inner, 3, stride, inner), inner));
    x = norm(m, conv(m, x, inner, filters, 1, 1, 1), filters);
    if (stride > 1 || width != filters) return x;
    snprintf(name, sizeof name, "%s_add%u", m->prefix, m->acts);
    return (int)net_op(&m->n, "elemwise_add", name, "", x, from, -1);
}

/* MobileNet version 2, width 1.0, as in gluon's model zoo: every block widens first, also the one
 * of factor 1. */
static struct bytes mobilenet2(struct gluon *m)
{
    static const struct {
        unsigned factor, filters, count, stride;
    } rows[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    unsigned width = 32;

    m->prefix = "mobilenetv20";
    int x = (int)net_var(&m->n, "data");
    x = relu(m, norm(m, conv(m, x, 3, 32, 3, 2, 1), 32));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (unsigned k = 0; k < rows[i].count; k++) {
            x = bottleneck(m, x, width, rows[i].filters, rows[i].factor,
                           k == 0 ? rows[i].stride : 1);
            width = rows[i].filters;
        }
    x = relu(m, norm(m, conv(m, x, 320, 1280, 1, 1, 1), 1280));
    x = (int)net_op(&m->n, "Pooling", "mobilenetv20_pool0_fwd",
                    "\"global_pool\": \"True\", \"kernel\": \"(1, 1)\", \"pool_type\": \"avg\"", x,
                    -1);
    x = conv(m, x, 1280, 1000, 1, 1, 1);
    return net_end(&m->n, net_op(&m->n, "Flatten", "mobilenetv20_flatten0_flatten0", "", x, -1));
}

static void render(struct bytes file, const char *options, struct buf *out)
{
    struct error e;
    const char *media;
    json_t *o = json_loads(options, 0, NULL);

    CHECK(o != NULL);
    CHECK_OK(viz_render(file, o, out, &media, &e), &e);
    buf_add(out, "", 1);
    json_decref(o);
}

static void check_counts(const struct gluon *m, struct bytes file, const char *options)
{
    struct buf out = {0};
    json_error_t where;

    render(file, options, &out);
    json_t *got = json_loads((const char *)out.at, 0, &where),
           *total = json_object_get(got, "total");
    CHECK_EQ(json_integer_value(json_object_get(total, "unknown")), 0);
    CHECK_EQ(json_integer_value(json_object_get(total, "parameters")), m->learned + m->kept);
    CHECK_EQ(json_integer_value(json_object_get(total, "statistics")), m->kept);
    json_decref(got);
    buf_fini(&out);
}

TEST(networks_of_gluon_are_counted_from_partial_shapes)
{
    static const struct {
        struct bytes (*build)(struct gluon *m);
        uint64_t learned; /* as published */
    } rows[] = {{resnet18, 11689512}, {mobilenet2, 3504960}};

    for (size_t i = 0; i < 2 * (sizeof rows / sizeof rows[0]); i++) {
        struct gluon m = {.full = i % 2 == 1};
        struct bytes file = rows[i / 2].build(&m);
        CHECK_EQ(m.learned, rows[i / 2].learned);
        check_counts(&m, file,
                     "{\"format\": \"summary-json\", \"shapes\": {\"data\": [1, 3, 224, 224]}}");
        if (m.full) check_counts(&m, file, "{\"format\": \"summary-json\"}");
        net_fini(&m.n);
    }
}

TEST(the_closing_line_asks_only_for_inputs_that_were_not_given)
{
    struct gluon m = {0};
    struct bytes file = resnet18(&m);
    struct buf out = {0};

    render(file, "{\"format\": \"summary\"}", &out);
    /* Known without an input: the convolutions and norms behind the first convolution. */
    CHECK_SAYS((const char *)out.at,
               "Learned: 11,680,104 + ?; kept without being learned: 9,600\n");
    CHECK_SAYS((const char *)out.at, "is not known: 1 array. Give the shape of 'data'.\n");
    buf_clear(&out);
    render(file, "{\"format\": \"summary\", \"shapes\": {\"data\": [1, 3, 224, 224]}}", &out);
    CHECK_SAYS((const char *)out.at, "Learned: 11,689,512; kept without being learned: 9,600\n");
    CHECK(strstr((const char *)out.at, "Give the shape") == NULL);
    buf_fini(&out);
    net_fini(&m.n);
}

TEST(what_is_not_known_is_never_counted_as_nothing)
{
    struct net n = {0};
    struct buf out = {0};
    unsigned x = net_var(&n, "data"),
             w = net_var_with(&n, "odd_weight", "\"__shape__\": \"(0, 0)\"");
    struct bytes file = net_end(&n, net_op(&n, "SomethingNew", "odd", "", x, w, -1));

    render(file, "{\"format\": \"summary\", \"shapes\": {\"data\": [2, 3]}}", &out);
    CHECK_SAYS((const char *)out.at, "Total params: ? in 1 array, ? bytes\n");
    CHECK_SAYS((const char *)out.at,
               "do not follow from the shapes of the inputs; give those of 'odd_weight'.");
    buf_clear(&out);
    render(file, "{\"format\": \"summary-json\"}", &out);
    CHECK_SAYS(
        (const char *)out.at,
        "\"total\":{\"parameters\":null,\"bytes\":null,\"known\":0,\"arrays\":1,\"unknown\":1");
    buf_clear(&out);
    render(file, "{\"format\": \"text\"}", &out);
    CHECK_SAYS((const char *)out.at,
               "Parameters: ? numbers in 1 array, 1 of which is of unknown shape");
    buf_fini(&out);
    net_fini(&n);
}

/* ---- backwards ---- */

static void check_shape(const struct viz_graph *g, unsigned node, unsigned output, const char *want)
{
    char shape[VIZ_SHAPE_TEXT];

    CHECK(output < g->nodes[node].output_count);
    viz_shape_text(&g->nodes[node].shapes[output], shape);
    if (strcmp(shape, want) != 0)
        test_fail(__FILE__, __LINE__, "'%s' %u: %s, not %s", g->nodes[node].name, output, shape,
                  want);
}

static void infer(struct net *n, unsigned head, const char *variable, const char *given,
                  struct viz_graph *g)
{
    struct viz_shape s;
    struct error e;

    *g = (struct viz_graph){.arena = {.limit = VIZ_MEMORY_MAX}};
    CHECK_OK(viz_read(g, net_end(n, head), &e), &e);
    viz_roles(g);
    CHECK(viz_shape_read(given, &s));
    CHECK_OK(viz_shape_give(g, variable, &s, &e), &e);
    viz_infer(g);
}

/* An unrolled cell begins with states of which only the width is known: the batch comes back from
 * the input. */
TEST(the_first_state_of_a_cell_gets_its_batch_from_the_input)
{
    struct net n = {0};
    struct viz_graph g;
    unsigned x = net_var(&n, "data"),
             iw = net_var_with(&n, "i2h_weight", "\"__shape__\": \"(400, 0)\"");
    unsigned ib = net_var_with(&n, "i2h_bias", "\"__shape__\": \"(400,)\"");
    unsigned begin = net_op(&n, "_zeros", "begin_state_0", "\"shape\": \"(0, 100)\"", -1);
    unsigned cell = net_op(&n, "_zeros", "begin_state_1", "\"shape\": \"(0, 100)\"", -1);
    unsigned hw = net_var_with(&n, "h2h_weight", "\"__shape__\": \"(0, 0)\"");
    unsigned hb = net_var_with(&n, "h2h_bias", "\"__shape__\": \"(0,)\"");
    unsigned i2h = net_op(&n, "FullyConnected", "i2h", "\"num_hidden\": \"400\"", x, iw, ib, -1);
    unsigned h2h = net_op(&n, "FullyConnected", "h2h", "\"num_hidden\": \"400\"", begin, hw, hb,
                          -1);
    unsigned gates = net_op(&n, "elemwise_add", "gates", "", i2h, h2h, -1);
    unsigned parts = net_op(&n, "SliceChannel", "slice", "\"num_outputs\": \"4\"", gates, -1);
    unsigned gate = net_op(&n, "Activation", "forget", "\"act_type\": \"sigmoid\"", parts, -1);
    unsigned kept = net_op(&n, "elemwise_mul", "kept", "", gate, cell, -1);

    infer(&n, kept, "data", "32,50", &g);
    check_shape(&g, begin, 0, "32x100");
    check_shape(&g, cell, 0, "32x100");
    check_shape(&g, iw, 0, "400x50");
    check_shape(&g, hw, 0, "400x100");
    check_shape(&g, hb, 0, "400");
    check_shape(&g, kept, 0, "32x100");
    viz_graph_fini(&g);
    net_fini(&n);
}

/* gluon's recurrent layers join all parameters, flat; the layer knows the size of the whole. */
TEST(a_recurrent_layer_completes_the_parameters_that_are_joined_for_it)
{
    struct net n = {0};
    struct viz_graph g;
    unsigned x = net_var(&n, "data"), flat[4];
    static const char *const names[] = {"lstm0_l0_i2h_weight", "lstm0_l0_h2h_weight",
                                        "lstm0_l0_i2h_bias", "lstm0_l0_h2h_bias"};
    static const char *const shapes[] = {"(80, 0)", "(80, 20)", "(80,)", "(80,)"};

    for (unsigned i = 0; i < 4; i++) {
        char attrs[64];
        snprintf(attrs, sizeof attrs, "reshape%u", i);
        unsigned v = net_var_with(&n, names[i], "\"__shape__\": \"%s\"", shapes[i]);
        flat[i] = net_op(&n, "Reshape", attrs, "\"shape\": \"(-1,)\"", v, -1);
    }
    unsigned all = net_op(&n, "_rnn_param_concat", "all", "\"dim\": \"0\", \"num_args\": \"4\"",
                          flat[0], flat[1], flat[2], flat[3], -1);
    unsigned begin = net_op(&n, "_zeros", "state", "\"shape\": \"(1, 0, 20)\"", -1);
    unsigned cell = net_op(&n, "_zeros", "cell", "\"shape\": \"(1, 0, 20)\"", -1);
    unsigned out = net_op(&n, "RNN", "lstm0_rnn0",
                          "\"mode\": \"lstm\", \"num_layers\": \"1\", \"state_size\": \"20\"", x,
                          all, begin, cell, -1);

    infer(&n, out, "data", "35,8,10", &g);
    check_shape(&g, 1, 0, "80x10");
    check_shape(&g, all, 0, "2560"); /* 4 * 20 * (10 + 20 + 2) */
    check_shape(&g, begin, 0, "1x8x20");
    check_shape(&g, cell, 0, "1x8x20");
    check_shape(&g, out, 0, "35x8x20");
    viz_graph_fini(&g);
    net_fini(&n);
}

/* An input of which the file knows the rank only; the shapes behind an operator say the rest. */
TEST(partial_shapes_are_completed_backwards)
{
    static const struct {
        const char *op, *attrs, *partial, *after, *want;
    } rows[] = {
        {"Activation", "\"act_type\": \"relu\"", "(0, 5)", "3,5", "3x5"},
        {"Cast", "\"dtype\": \"float16\"", "(0, 0)", "3,5", "3x5"},
        {"transpose", "\"axes\": \"(2, 0, 1)\"", "(0, 4, 0)", "6,3,4", "3x4x6"},
        {"SwapAxis", "\"dim1\": \"0\", \"dim2\": \"1\"", "(0, 0)", "3,5", "5x3"},
        {"expand_dims", "\"axis\": \"0\"", "(0, 5)", "1,3,5", "3x5"},
        {"Reshape", "\"shape\": \"(-1, 6)\"", "(0, 3)", "4,6", "8x3"},
        {"Reshape", "\"shape\": \"(-1, 6)\"", "(0, 0)", "4,6", "?x?"},
        {"Flatten", "", "(0, 3, 2)", "4,6", "4x3x2"},
        {"Pooling", "\"kernel\": \"(2, 2)\", \"pool_type\": \"max\"", "(0, 0, 8, 8)", "2,4,7,7",
         "2x4x8x8"},
        {"sum", "\"axis\": \"1\"", "(0, 9, 0)", "3,5", "3x9x5"},
        {"sum", "\"axis\": \"1\", \"keepdims\": \"True\"", "(0, 9, 0)", "3,1,5", "3x9x5"},
        {"slice_axis", "\"axis\": \"1\", \"begin\": \"0\", \"end\": \"2\"", "(0, 0)", "3,2", "3x?"},
        {"_plus_scalar", "\"scalar\": \"1\"", "(0, 5)", "3,5", "3x5"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct net n = {0};
        struct viz_graph g;
        char shape[64];
        snprintf(shape, sizeof shape, "\"__shape__\": \"%s\"", rows[i].partial);
        net_var_with(&n, "x", "%s", shape);
        unsigned op = net_op(&n, rows[i].op, "op", rows[i].attrs, 0, -1),
                 other = net_var(&n, "other");
        unsigned head = net_op(&n, "elemwise_add", "sum", "", op, other, -1);
        infer(&n, head, "other", rows[i].after, &g);
        check_shape(&g, 0, 0, rows[i].want);
        viz_graph_fini(&g);
        net_fini(&n);
    }
}

TEST(shapes_of_several_inputs_complete_each_other)
{
    struct net n = {0};
    struct viz_graph g;
    unsigned a = net_var_with(&n, "a", "\"__shape__\": \"(0, 3)\""),
             b = net_var_with(&n, "b", "\"__shape__\": \"(0, 0)\"");
    unsigned joined = net_op(&n, "Concat", "joined", "\"dim\": \"1\", \"num_args\": \"2\"", a, b,
                             -1),
             other = net_var(&n, "other");
    unsigned sum = net_op(&n, "elemwise_add", "sum", "", joined, other, -1);

    infer(&n, sum, "other", "4,10", &g);
    check_shape(&g, a, 0, "4x3");
    check_shape(&g, b, 0, "4x7");
    check_shape(&g, joined, 0, "4x10");
    viz_graph_fini(&g);
    net_fini(&n);
}

/* What is known is never replaced: a shape that contradicts is left as the file, or the caller,
 * says it. */
TEST(a_known_shape_is_not_replaced)
{
    struct net n = {0};
    struct viz_graph g;
    unsigned x = net_var(&n, "data"), w = net_var_with(&n, "w", "\"__shape__\": \"(8, 5, 3, 3)\"");
    unsigned out = net_op(&n, "Convolution", "conv",
                          "\"kernel\": \"(3, 3)\", \"num_filter\": \"8\", \"no_bias\": \"True\"", x,
                          w, -1);

    infer(&n, out, "data", "N,4,9,9", &g);
    check_shape(&g, x, 0, "Nx4x9x9");
    check_shape(&g, w, 0, "8x5x3x3");
    check_shape(&g, out, 0, "Nx8x7x7");
    viz_graph_fini(&g);
    net_fini(&n);
}

TEST(channels_may_stand_last)
{
    struct net n = {0};
    struct viz_graph g;
    unsigned x = net_var(&n, "data"), w = net_var_with(&n, "w", "\"__shape__\": \"(8, 3, 3, 0)\"");
    unsigned out = net_op(&n, "Convolution", "conv",
                          "\"kernel\": \"(3, 3)\", \"layout\": \"NHWC\", \"num_filter\": \"8\", "
                          "\"no_bias\": \"True\"",
                          x, w, -1);
    unsigned pool = net_op(&n, "Pooling", "pool",
                           "\"kernel\": \"(2, 2)\", \"layout\": \"NHWC\", \"stride\": \"(2, 2)\"",
                           out, -1);

    infer(&n, pool, "data", "2,10,12,5", &g);
    check_shape(&g, w, 0, "8x3x3x5");
    check_shape(&g, out, 0, "2x8x10x8");
    check_shape(&g, pool, 0, "2x4x5x8");
    viz_graph_fini(&g);
    net_fini(&n);
}

/* ---- print_summary ---- */

/* The network of MXNet's own test of print_summary. */
static struct bytes small_net(struct net *n)
{
    unsigned x = net_var(n, "data"), cw = net_var(n, "conv1_weight"), cb = net_var(n, "conv1_bias");
    unsigned conv = net_op(n, "Convolution", "conv1",
                           "\"kernel\": \"(3, 3)\", \"num_filter\": \"32\", \"stride\": \"(2, 2)\"",
                           x, cw, cb, -1);
    unsigned g = net_var(n, "bn1_gamma"), b = net_var(n, "bn1_beta"),
             m = net_var(n, "bn1_moving_mean"), v = net_var(n, "bn1_moving_var");
    unsigned bn = net_op(n, "BatchNorm", "bn1", "", conv, g, b, m, v, -1);
    unsigned act = net_op(n, "Activation", "relu1", "\"act_type\": \"relu\"", bn, -1);
    unsigned mp = net_op(n, "Pooling", "mp1",
                         "\"kernel\": \"(2, 2)\", \"pool_type\": \"max\", \"stride\": \"(2, 2)\"",
                         act, -1);
    unsigned w1 = net_var(n, "fc1_weight"), b1 = net_var(n, "fc1_bias");
    unsigned fc1 = net_op(n, "FullyConnected", "fc1", "\"num_hidden\": \"10\"", mp, w1, b1, -1);
    unsigned w2 = net_var(n, "fc2_weight"), b2 = net_var(n, "fc2_bias");
    return net_end(n,
                   net_op(n, "FullyConnected", "fc2", "\"num_hidden\": \"10\"", fc1, w2, b2, -1));
}

/* MXNet pads to the end of the last column. */
static void add_line(struct buf *out, const char *layer, const char *shape, const char *count,
                     const char *before)
{
    buf_format(out, "%-52s%-24s%-12s%-32s\n", layer, shape, count, before);
}

static void add_rule(struct buf *out, char c)
{
    for (int i = 0; i < 120; i++) buf_add(out, &c, 1);
    buf_text(out, "\n");
}

struct line {
    const char *layer, *shape, *count, *before;
};

static void check_print_summary(struct bytes file, const char *options, const struct line *lines,
                                const char *end)
{
    struct buf got = {0}, want = {0};

    add_rule(&want, '_');
    add_line(&want, "Layer (type)", "Output Shape", "Param #", "Previous Layer");
    add_rule(&want, '=');
    for (size_t i = 0; lines[i].layer != NULL; i++) {
        add_line(&want, lines[i].layer, lines[i].shape, lines[i].count, lines[i].before);
        add_rule(&want, lines[i + 1].layer == NULL ? '=' : '_');
    }
    buf_format(&want, "Total params: %s", end);
    buf_add(&want, "", 1);
    render(file, options, &got);
    CHECK_TEXT((const char *)got.at, (const char *)want.at);
    buf_fini(&got);
    buf_fini(&want);
}

#define RULE                                                                                       \
    "\n____________________________________________________________"                               \
    "____________________________________________________________\n"

/* By MXNet's formula fc1 has (32 + 1) * 10 numbers; its weight has 32 * 6 * 6 columns. */
TEST(the_summary_of_view_mxnet_is_that_of_print_summary)
{
    static const struct line given[] = {{"data(null)", "3x28x28", "0", ""},
                                        {"conv1(Convolution)", "32x13x13", "896", "data"},
                                        {"bn1(BatchNorm)", "32x13x13", "64", "conv1"},
                                        {"relu1(Activation)", "32x13x13", "0", "bn1"},
                                        {"mp1(Pooling)", "32x6x6", "0", "relu1"},
                                        {"fc1(FullyConnected)", "10", "330", "mp1"},
                                        {"fc2(FullyConnected)", "10", "110", "fc1"},
                                        {NULL, NULL, NULL, NULL}};
    /* Without shapes MXNet takes the image for one of no channels; what follows from the first
     * layer is known. */
    static const struct line open[] = {{"data(null)", "", "0", ""},
                                       {"conv1(Convolution)", "", "?", "data"},
                                       {"bn1(BatchNorm)", "", "64", "conv1"},
                                       {"relu1(Activation)", "", "0", "bn1"},
                                       {"mp1(Pooling)", "", "0", "relu1"},
                                       {"fc1(FullyConnected)", "", "330", "mp1"},
                                       {"fc2(FullyConnected)", "", "110", "fc1"},
                                       {NULL, NULL, NULL, NULL}};
    struct net n = {0};
    struct bytes file = small_net(&n);

    check_print_summary(
        file,
        "{\"format\": \"summary\", \"view\": \"mxnet\", \"shapes\": {\"data\": [1, 3, 28, 28]}}",
        given,
        "1400" RULE "MXNet counts Convolution, FullyConnected, BatchNorm and Embedding, by the "
                    "second dimension of "
        "their input.\nThe arrays that are learned hold 12600 numbers.\n");
    check_print_summary(file, "{\"format\": \"summary\", \"view\": \"mxnet\"}", open,
                        "504 + ?" RULE);
    net_fini(&n);
}

TEST(print_summary_of_the_model_zoo_has_the_published_total)
{
    struct gluon m = {0};
    struct buf out = {0};

    render(
        resnet18(&m),
        "{\"format\": \"summary\", \"view\": \"mxnet\", \"shapes\": {\"data\": [1, 3, 224, 224]}}",
        &out);
    CHECK_SAYS((const char *)out.at, "Total params: 11689512" RULE);
    CHECK(strstr((const char *)out.at, "MXNet counts") == NULL);
    buf_fini(&out);
    net_fini(&m.n);
}
