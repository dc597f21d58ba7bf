/* Shapes of operators that move, cut, repeat or make elements: each row is worked out by hand from
 * the definition of MXNet's operator. And which outputs of an operator a user is shown. */
#include "tests/lib/nets.h"
#include "tests/lib/test.h"
#include "web/viz/ops.h"
#include "web/viz/read.h"
#include "web/viz/shape.h"
#include "web/viz/viz.h"

#include <stdio.h>
#include <string.h>

struct row {
    const char *op, *attrs; /* attributes with ' for " */
    const char *inputs[4];  /* "?" for an unknown one */
    const char *output;
};

static void check_row(const struct row *r)
{
    struct net n = {0};
    struct viz_graph g = {.arena = {.limit = VIZ_MEMORY_MAX}};
    struct error e;
    char name[16], attrs[400], shape[VIZ_SHAPE_TEXT];
    unsigned count = 0;

    snprintf(attrs, sizeof attrs, "%s", r->attrs);
    for (char *at = attrs; *at != '\0'; at++)
        if (*at == '\'') *at = '"';
    while (count < 4 && r->inputs[count] != NULL) {
        snprintf(name, sizeof name, "in%u", count++);
        net_var(&n, name);
    }
    net_op(&n, r->op, "op", attrs, count > 0 ? 0 : -1, count > 1 ? 1 : -1, count > 2 ? 2 : -1,
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
    viz_graph_fini(&g);
    net_fini(&n);
}

TEST(shapes_of_operators_follow_from_their_definitions)
{
    static const struct row rows[] = {
        /* Copies: sizes before and behind, per axis. */
        {"Pad",
         "'mode': 'constant', 'pad_width': '(0, 0, 0, 0, 1, 2, 3, 4)'",
         {"N,3,8,8"},
         "Nx3x11x15"},
        {"Pad",
         "'mode': 'edge', 'pad_width': '(0, 0, 0, 0, 1, 1, 2, 2, 3, 3)'",
         {"2,3,4,5,6"},
         "2x3x6x9x12"},
        {"Pad", "'mode': 'edge', 'pad_width': '(1, 1)'", {"2,3,4,5"}, "?"},
        {"repeat", "'repeats': '3'", {"2,4"}, "24"},
        {"repeat", "'axis': 'None', 'repeats': '3'", {"2,4"}, "24"},
        {"repeat", "'axis': '1', 'repeats': '3'", {"2,4"}, "2x12"},
        {"repeat", "'axis': '-2', 'repeats': '3'", {"2,4"}, "6x4"},
        {"tile", "'reps': '(2, 3)'", {"4,5"}, "8x15"},
        {"tile", "'reps': '(2,)'", {"4,5"}, "4x10"},
        {"tile", "'reps': '(2, 1, 3)'", {"5"}, "2x1x15"},
        {"broadcast_to", "'shape': '(8, 0, 5)'", {"1,3,1"}, "8x3x5"},
        {"broadcast_to", "'shape': '(8, 0, 5)'", {"?"}, "8x?x5"},
        {"broadcast_axis", "'axis': '(0, 2)', 'size': '(2, 7)'", {"1,3,1"}, "2x3x7"},
        {"broadcast_like", "", {"1,3,1", "6,3,9"}, "6x3x9"},
        {"broadcast_like", "'lhs_axes': '(0,)', 'rhs_axes': '(-1,)'", {"1,3", "5,6,7"}, "7x3"},
        /* Parts. */
        {"slice", "'begin': '(0, 1)', 'end': '(2, 4)'", {"3,5,6"}, "2x3x6"},
        {"slice", "'begin': '(None, -2)', 'end': '(None, None)'", {"N,5"}, "Nx2"},
        {"slice", "'begin': '(-1,)', 'end': '(None,)'", {"7"}, "1"},
        {"slice", "'begin': '(None, 0)', 'end': '(None, 5)', 'step': '(-1, 2)'", {"4,6"}, "4x3"},
        {"slice", "'begin': '(5, 0)', 'end': '(1, 4)', 'step': '(-2, None)'", {"8,6"}, "2x4"},
        {"crop", "'begin': '(0, 1)', 'end': '(2, 4)'", {"3,5"}, "2x3"},
        {"slice", "'begin': '(0, 1)', 'end': '(2, 4)'", {"?"}, "?"},
        {"slice", "'begin': '(2,)', 'end': '(2,)'", {"5"}, "?"},
        {"slice", "'begin': '(1,)', 'end': '(4,)', 'step': '(9223372036854775807,)'", {"5"}, "?"},
        {"slice_like", "", {"5,6", "3,4"}, "3x4"},
        {"slice_like", "'axes': '(1, -1)'", {"2,6,7", "3,4,5"}, "2x4x5"},
        {"slice_like", "", {"5,6", "3,4,5"}, "?"},
        {"Crop", "'h_w': '(4, 5)', 'num_args': '1', 'offset': '(1, 1)'", {"2,3,9,9"}, "2x3x4x5"},
        {"Crop", "'center_crop': 'True', 'num_args': '2'", {"2,3,9,9", "2,8,6,7"}, "2x3x6x7"},
        {"diag", "", {"4"}, "4x4"},
        {"diag", "'k': '-2'", {"4"}, "6x6"},
        {"diag", "", {"3,5"}, "3"},
        {"diag", "'k': '3'", {"3,5"}, "2"},
        {"diag", "'k': '-1'", {"3,5"}, "2"},
        {"diag", "'axis1': '0', 'axis2': '2'", {"3,4,5"}, "4x3"},
        {"pick", "'axis': '-1'", {"N,10", "N"}, "N"},
        {"pick", "'axis': '0', 'keepdims': 'True'", {"4,10", "10"}, "1x10"},
        {"topk", "'k': '3'", {"2,9"}, "2x3"},
        {"topk", "", {"2,9"}, "2x1"},
        {"topk", "'axis': '0', 'k': '1', 'ret_typ': 'value'", {"2,9"}, "1x9"},
        {"topk", "'axis': 'None', 'k': '4'", {"2,9"}, "4"},
        {"topk", "'k': '3', 'ret_typ': 'mask'", {"2,9"}, "2x9"},
        {"topk", "'k': '0'", {"2,9"}, "2x9"},
        {"SequenceLast", "'use_sequence_length': 'True'", {"7,2,5", "2"}, "2x5"},
        {"SequenceLast", "'axis': '1'", {"2,7,5"}, "2x5"},
        {"SequenceMask", "'use_sequence_length': 'True'", {"7,2,5", "?"}, "7x2x5"},
        {"SequenceReverse", "", {"7,2,5"}, "7x2x5"},
        /* All elements, in another order or with another value. */
        {"sort", "", {"2,9"}, "2x9"},
        {"sort", "'axis': 'None'", {"2,9"}, "18"},
        {"argsort", "'axis': '0', 'is_ascend': 'False'", {"2,9"}, "2x9"},
        {"argsort", "'axis': 'None'", {"2,9"}, "18"},
        {"cumsum", "'axis': '1'", {"2,9"}, "2x9"},
        {"cumsum", "", {"2,9"}, "18"},
        {"_np_cumsum", "'axis': 'None'", {"2,9"}, "18"},
        {"flip", "'axis': '(1,)'", {"2,9"}, "2x9"},
        {"reverse", "'axis': '0'", {"2,9"}, "2x9"},
        {"gamma", "", {"2,9"}, "2x9"},
        {"gammaln", "", {"2,9"}, "2x9"},
        {"ones_like", "", {"2,9"}, "2x9"},
        {"zeros_like", "", {"2,9"}, "2x9"},
        {"logical_not", "", {"2,9"}, "2x9"},
        {"_shuffle", "", {"2,9"}, "2x9"},
        {"_contrib_div_sqrt_dim", "", {"2,9"}, "2x9"},
        {"amp_cast", "'dtype': 'float16'", {"2,9"}, "2x9"},
        {"amp_multicast", "'num_outputs': '1'", {"2,9"}, "2x9"},
        {"where", "", {"2,9", "2,9", "?"}, "2x9"},
        {"where", "", {"2", "?", "2,9"}, "2x9"},
        {"_npi_where", "", {"2,1", "9", "1"}, "2x9"},
        {"_npi_add", "", {"2,1", "9"}, "2x9"},
        {"_equal_scalar", "'scalar': '1'", {"2,9"}, "2x9"},
        {"broadcast_lesser_equal", "", {"2,1", "1,9"}, "2x9"},
        /* Space. */
        {"depth_to_space", "'block_size': '2'", {"1,12,3,5"}, "1x3x6x10"},
        {"space_to_depth", "'block_size': '2'", {"1,3,6,10"}, "1x12x3x5"},
        {"space_to_depth", "'block_size': '2'", {"1,3,7,10"}, "1x12x?x5"},
        {"depth_to_space", "'block_size': '2'", {"1,6,3,5"}, "1x?x6x10"},
        {"_contrib_AdaptiveAvgPooling2D", "", {"N,7,9,9"}, "Nx7x1x1"},
        {"_contrib_AdaptiveAvgPooling2D", "'output_size': '3'", {"N,7,9,9"}, "Nx7x3x3"},
        {"_contrib_AdaptiveAvgPooling2D", "'output_size': '(3, 5)'", {"N,7,9,9"}, "Nx7x3x5"},
        {"_contrib_BilinearResize2D", "'height': '20', 'width': '30'", {"1,3,8,9"}, "1x3x20x30"},
        {"_contrib_BilinearResize2D",
         "'scale_height': '2.0', 'scale_width': '1.5'",
         {"1,3,8,9"},
         "1x3x16x13"},
        {"_contrib_BilinearResize2D", "'mode': 'like'", {"1,3,8,9", "1,5,6,7"}, "1x3x6x7"},
        {"_contrib_BilinearResize2D", "'mode': 'to_even_up'", {"1,3,8,9"}, "1x3x8x10"},
        {"im2col", "'kernel': '(3, 3)'", {"2,4,6,7"}, "2x36x20"},
        {"im2col",
         "'kernel': '(2, 2)', 'pad': '(1, 1)', 'stride': '(2, 2)'",
         {"2,4,6,6"},
         "2x16x16"},
        {"Correlation",
         "'kernel_size': '1', 'max_displacement': '4', 'pad_size': '4', 'stride1': '1', 'stride2': "
         "'1'",
         {"1,256,48,64", "?"},
         "1x81x48x64"},
        {"Correlation",
         "'kernel_size': '3', 'max_displacement': '4', 'pad_size': '2', 'stride1': '2', 'stride2': "
         "'2'",
         {"1,8,20,21", "1,8,20,21"},
         "1x25x7x8"},
        /* What is said about arrays, and what is made. */
        {"shape_array", "", {"2,3,4"}, "3"},
        {"size_array", "", {"2,3,4"}, "1"},
        {"shape_array", "", {"?"}, "?"},
        {"moments", "'axes': '(0, 2)'", {"3,4,5"}, "4"},
        {"moments", "'axes': '(0, 2)', 'keepdims': 'True'", {"3,4,5"}, "1x4x1"},
        {"_random_uniform", "'shape': '(3, 4)'", {NULL}, "3x4"},
        {"_random_normal", "'shape': '(0, 4)'", {NULL}, "?x4"},
        {"_random_randint", "'high': '9', 'low': '0', 'shape': '5'", {NULL}, "5"},
        {"_random_normal_like", "", {"3,4"}, "3x4"},
        {"_sample_uniform", "'shape': '(5,)'", {"3,4", "3,4"}, "3x4x5"},
        {"_sample_multinomial", "", {"3,4"}, "3"},
        {"_sample_multinomial", "'shape': '(7,)'", {"3,4"}, "3x7"},
        {"_sample_multinomial", "", {"4"}, "1"},
        {"_arange", "'start': '0', 'stop': '10'", {NULL}, "10"},
        {"_arange", "'start': '2', 'step': '3.0', 'stop': '10'", {NULL}, "3"},
        {"_arange", "'start': '5', 'step': '1.0', 'stop': 'None'", {NULL}, "5"},
        {"_arange", "'start': '0', 'step': '0.5', 'stop': '1.25', 'repeat': '2'", {NULL}, "6"},
        {"_arange", "'start': '0', 'infer_range': 'True', 'stop': 'None'", {NULL}, "?"},
        {"_contrib_arange_like", "'axis': '1'", {"3,4"}, "4"},
        {"_linspace", "'num': '9', 'start': '0', 'stop': '1'", {NULL}, "9"},
        {"_eye", "'M': '0', 'N': '4'", {NULL}, "4x4"},
        {"_eye", "'M': '6', 'N': '4'", {NULL}, "4x6"},
        {"_zeros", "'shape': '(0, 5)'", {NULL}, "?x5"},
        {"_npi_zeros", "'shape': '(0, 5)'", {NULL}, "0x5"},
        {"CTCLoss", "", {"20,3,9", "?"}, "3"},
        {"_contrib_ctc_loss", "", {"?", "3,5"}, "3"},
        {"_split_v2", "'indices': '(0, 2, 5)', 'axis': '1'", {"2,9"}, "2x2"},
        {"_split_v2", "'sections': '3', 'axis': '1'", {"2,9"}, "2x3"},
        {"_split_v2", "'indices': '(0, 1, 2, 3, 4, 5, 6, 7, 8, 10)', 'axis': '0'", {"20"}, "1"},
        {"_npx_reshape", "'newshape': '(-2, -1)'", {"2,3,4"}, "2x12"},
        {"_npx_reshape", "'newshape': '(6, -4)'", {"6,3,4"}, "6x3x4"},
        {"_npx_reshape", "'newshape': '(-5, -2)'", {"2,3,4"}, "6x4"},
        {"_npx_reshape", "'newshape': '(-6, 2, -1, -4)'", {"8,3"}, "2x4x3"},
        {"_np_reshape", "'newshape': '(-1, 4)'", {"2,3,4"}, "6x4"},
        {"_np_reshape", "'newshape': '(-2, 4)'", {"2,3,4"}, "?"},
        {"relu", "", {"0,3"}, "?x3"},
        {"relu", "", {"()"}, "?"},
        {"one_hot", "'depth': '0'", {"5"}, "5x?"},
        {"_contrib_BilinearResize2D", "'height': '20'", {"1,3,8,9"}, "1x3x20x1"},
        {"_contrib_BilinearResize2D",
         "'height': '20', 'scale_width': '2.0', 'width': '30'",
         {"1,3,8,9"},
         "1x3x20x30"},
        /* More than eight numbers are not cut to eight. */
        {"Reshape", "'shape': '(1, 1, 1, 1, 1, 1, 1, 1, 6)'", {"2,3"}, "?"},
        {"_zeros", "'shape': '(1, 1, 1, 1, 1, 1, 1, 1, 6)'", {NULL}, "?"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_row(&rows[i]);
}

/* ---- outputs ---- */

/* MXNet counts hidden outputs in node_row_ptr. The last operator uses one of them where it says so.
 */
static void file_of(struct buf *out, const char *op, const char *attrs, unsigned outputs,
                    unsigned used)
{
    buf_clear(out);
    buf_format(out,
               "{\"nodes\": [{\"op\": \"null\", \"name\": \"x\", \"inputs\": []}, {\"op\": \"%s\", "
               "\"name\": \"op\", \"attrs\": {%s}, "
               "\"inputs\": [[0, 0, 0]]}, {\"op\": \"relu\", \"name\": \"end\", \"inputs\": [[1, "
               "%u, 0]]}], \"arg_nodes\": [0], "
               "\"node_row_ptr\": [0, 1, %u, %u], \"heads\": [[2, 0, 0]], \"attrs\": "
               "{\"mxnet_version\": [\"int\", 10901]}}",
               op, attrs, used, 1 + outputs, 2 + outputs);
    CHECK(!out->failed);
}

TEST(hidden_outputs_are_not_shown)
{
    static const struct {
        const char *op, *attrs;
        unsigned outputs, used, shown;
    } rows[] = {
        {"BatchNorm", "", 3, 0, 1},
        {"BatchNorm", "\"output_mean_var\": \"True\"", 3, 0, 3},
        {"BatchNorm", "", 3, 1, 2},
        {"LayerNorm", "", 3, 0, 1},
        {"Dropout", "\"p\": \"0.5\"", 2, 0, 1},
        {"LeakyReLU", "\"act_type\": \"rrelu\"", 2, 0, 1},
        {"LRN", "\"nsize\": \"5\"", 2, 0, 1},
        {"L2Normalization", "", 2, 0, 1},
        {"_contrib_CTCLoss", "", 2, 0, 1},
        {"SliceChannel", "\"num_outputs\": \"4\"", 4, 0, 4},
        {"topk", "\"k\": \"2\", \"ret_typ\": \"both\"", 2, 0, 2},
        {"moments", "\"axes\": \"(1,)\"", 2, 0, 2},
        {"Activation", "\"act_type\": \"relu\"", 1, 0, 1},
    };
    struct buf file = {0}, text = {0};
    struct error e;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct viz_graph g = {.arena = {.limit = VIZ_MEMORY_MAX}};
        json_t *options = json_pack("{s:s, s:{s:[i,i]}}", "format", "svg", "shapes", "x", 4, 8);
        const char *media;
        char mark[32];

        file_of(&file, rows[i].op, rows[i].attrs, rows[i].outputs, rows[i].used);
        CHECK_OK(viz_read(&g, bytes_of(file.at, file.size), &e), &e);
        viz_roles(&g);
        CHECK_EQ(viz_outputs_shown(&g.nodes[1]), rows[i].shown);
        viz_graph_fini(&g);
        buf_clear(&text);
        CHECK_OK(viz_render(bytes_of(file.at, file.size), options, &text, &media, &e), &e);
        buf_add(&text, "", 1);
        snprintf(mark, sizeof mark, "(1 of %u)", rows[i].outputs);
        if ((strstr((const char *)text.at, mark) != NULL) !=
            (rows[i].shown == rows[i].outputs && rows[i].shown > 1))
            test_fail(__FILE__, __LINE__, "%s: '%s' in %s", rows[i].op, mark,
                      (const char *)text.at);
        json_decref(options);
    }
    buf_fini(&file);
    buf_fini(&text);
}

TEST(all_outputs_of_an_operator_have_shapes)
{
    static const struct {
        const char *op, *attrs, *shapes[4];
    } rows[] = {
        {"SliceChannel", "\"num_outputs\": \"3\"", {"2x3", "2x3", "2x3"}},
        {"_split_v2", "\"axis\": \"1\", \"indices\": \"(0, 2, 5)\"", {"2x2", "2x3", "2x4"}},
        {"_split_v2", "\"axis\": \"1\", \"indices\": \"(2, 5)\"", {"2x2", "2x3", "2x4"}},
        {"topk", "\"k\": \"2\", \"ret_typ\": \"both\"", {"2x2", "2x2"}},
        {"moments", "\"axes\": \"(1,)\"", {"2", "2"}},
    };
    struct buf file = {0};
    struct error e;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct viz_graph g = {.arena = {.limit = VIZ_MEMORY_MAX}};
        unsigned count = 0;
        char shape[VIZ_SHAPE_TEXT];

        while (rows[i].shapes[count] != NULL) count++;
        file_of(&file, rows[i].op, rows[i].attrs, count, 0);
        CHECK_OK(viz_read(&g, bytes_of(file.at, file.size), &e), &e);
        viz_roles(&g);
        CHECK_OK(viz_shape_give(&g, "x", &(struct viz_shape){2, {2, 9}}, &e), &e);
        viz_infer(&g);
        for (unsigned k = 0; k < count; k++)
            CHECK_TEXT(viz_shape_text(&g.nodes[1].shapes[k], shape), rows[i].shapes[k]);
        viz_graph_fini(&g);
    }
    buf_fini(&file);
}

/* ---- hostile attributes
 * -------------------------------------------------------------------------------------- */

static uint64_t state;

static unsigned draw(unsigned below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

/* A list of 1 to 17 numbers, most of them sensible. */
static const char *draw_value(char out[400])
{
    static const char *const values[] = {
        "0",
        "1",
        "2",
        "3",
        "-1",
        "-2",
        "-3",
        "-4",
        "-5",
        "-6",
        "None",
        "0.5",
        "True",
        "",
        "9223372036854775807",
        "-9223372036854775808",
        "281474976710656",
        "1e300",
        "nan",
        "(",
    };
    unsigned count = 1 + draw(draw(8) == 0 ? 17 : 4);
    int used = snprintf(out, 400, "(");

    for (unsigned i = 0; i < count; i++)
        used += snprintf(out + used, 400 - (size_t)used, "%s%s", i > 0 ? ", " : "",
                         values[draw(draw(2) == 0 ? 5 : sizeof values / sizeof values[0])]);
    snprintf(out + used, 400 - (size_t)used, count > 1 || draw(2) == 0 ? ")" : "");
    return count == 1 && draw(2) == 0 ? out + 1 : out;
}

static void check_sane(const struct viz_graph *g)
{
    for (size_t i = 0; i < g->node_count; i++)
        for (uint32_t k = 0; k < g->nodes[i].output_count; k++) {
            const struct viz_shape *s = &g->nodes[i].shapes[k];
            CHECK(s->ndim >= VIZ_UNKNOWN && s->ndim <= VIZ_DIMS);
            for (int d = 0; d < s->ndim; d++)
                if (s->dims[d] < VIZ_BATCH || s->dims[d] > (int64_t)1 << 48)
                    test_fail(__FILE__, __LINE__, "%s: dimension %d is %lld", g->nodes[i].op, d,
                              (long long)s->dims[d]);
        }
}

TEST(no_attribute_makes_a_shape_that_cannot_be)
{
    static const char *const ops[] = {
        "Convolution",
        "Deconvolution",
        "Pooling",
        "FullyConnected",
        "Embedding",
        "RNN",
        "BatchNorm",
        "Concat",
        "_rnn_param_concat",
        "stack",
        "Flatten",
        "Reshape",
        "_npx_reshape",
        "transpose",
        "SwapAxis",
        "expand_dims",
        "squeeze",
        "slice_axis",
        "slice",
        "Crop",
        "slice_like",
        "Pad",
        "broadcast_to",
        "broadcast_like",
        "broadcast_axis",
        "depth_to_space",
        "space_to_depth",
        "diag",
        "repeat",
        "tile",
        "im2col",
        "argsort",
        "topk",
        "pick",
        "SequenceMask",
        "SequenceLast",
        "SliceChannel",
        "_split_v2",
        "UpSampling",
        "_contrib_AdaptiveAvgPooling2D",
        "_contrib_BilinearResize2D",
        "Correlation",
        "one_hot",
        "take",
        "where",
        "cumsum",
        "moments",
        "sum",
        "argmax",
        "dot",
        "batch_dot",
        "CTCLoss",
        "SoftmaxOutput",
        "_zeros",
        "_arange",
        "_eye",
        "_linspace",
        "_random_uniform",
        "_sample_uniform",
        "_sample_multinomial",
        "_contrib_arange_like",
        "amp_multicast",
        "broadcast_add",
        "elemwise_add",
    };
    static const char *const attrs[] = {
        "axis",         "dim",          "axes",
        "shape",        "newshape",     "kernel",
        "stride",       "pad",          "dilate",
        "num_filter",   "num_group",    "num_hidden",
        "input_dim",    "output_dim",   "begin",
        "end",          "step",         "pad_width",
        "reps",         "repeats",      "k",
        "axis1",        "axis2",        "block_size",
        "num_outputs",  "indices",      "sections",
        "squeeze_axis", "output_size",  "height",
        "scale_height", "mode",         "max_displacement",
        "stride1",      "stride2",      "kernel_size",
        "pad_size",     "lhs_axes",     "rhs_axes",
        "size",         "start",        "stop",
        "repeat",       "num",          "N",
        "depth",        "scale",        "h_w",
        "keepdims",     "state_size",   "num_layers",
        "ret_typ",      "dim1",         "dim2",
        "flatten",      "target_shape", "adj",
    };
    struct error e;

    state = 7;
    for (unsigned round = 0; round < 6000; round++) {
        struct net n = {0};
        struct viz_graph g = {.arena = {.limit = VIZ_MEMORY_MAX}};
        char text[1600], value[400];
        unsigned inputs = draw(4), outputs = draw(6) == 0 ? 3 : 1;
        int used = 0;

        for (unsigned i = 0; i < inputs; i++) {
            snprintf(text, sizeof text, "in%u", i);
            if (draw(4) == 0) net_var(&n, text);
            else net_var_with(&n, text, "\"__shape__\": \"%s\"", draw_value(value));
        }
        text[0] = '\0';
        for (unsigned i = draw(6), at = draw(50); i > 0; i--, at += 1 + draw(9))
            used += snprintf(text + used, sizeof text - (size_t)used, "%s\"%s\": \"%s\"",
                             used > 0 ? ", " : "", attrs[at % (sizeof attrs / sizeof attrs[0])],
                             draw_value(value));
        unsigned op = net_op(&n, ops[round % (sizeof ops / sizeof ops[0])], "op", text,
                             inputs > 0 ? 0 : -1, inputs > 1 ? 1 : -1, inputs > 2 ? 2 : -1, -1);
        unsigned other = net_var_with(&n, "other", "\"__shape__\": \"%s\"", draw_value(value));
        for (unsigned i = 0; i < outputs; i++) {
            snprintf(value, sizeof value, "end%u", i);
            net_op_of(&n, "elemwise_add", value, op, i, other);
        }
        enum status s = viz_read(&g, net_end(&n, op), &e);
        if (s == STATUS_OK) {
            viz_roles(&g);
            viz_infer(&g);
            check_sane(&g);
        }
        viz_graph_fini(&g);
        net_fini(&n);
    }
}
