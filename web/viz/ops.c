#include "web/viz/ops.h"

#include "web/viz/shape.h"

#include <ctype.h>
#include <string.h>

const char *const viz_family_names[FAMILY_COUNT] = {
    "other", "data", "layer", "act", "norm", "pool", "shape", "softmax", "loss", "math", "block",
};

#define ELEMENTS(word) "elementwise " word " of {inputs}"

static const struct viz_op rows[] = {
    {"convolution conv", FAMILY_LAYER, "data weight bias", infer_convolution,
     "{kernel|1}/{stride|1}, {num_filter|?}",
     "convolution of {inputs} with {num_filter|?} filters of {kernel|1}, stride {stride|1}"},
    {"deconvolution convtranspose", FAMILY_LAYER, "data weight bias", infer_deconvolution,
     "{kernel|1}/{stride|1}, {num_filter|?}",
     "transposed convolution of {inputs} with {num_filter|?} filters of {kernel|1}, stride {stride|1}"},
    {"fullyconnected gemm", FAMILY_LAYER, "data weight bias", infer_dense, "{num_hidden|?}",
     "fully connected layer over {inputs} with {num_hidden|?} units"},
    {"embedding sparseembedding", FAMILY_LAYER, "data weight", infer_embedding, "{output_dim|?}",
     "embedding of {inputs}: each id becomes the {output_dim|?} numbers of its row"},
    {"rnn", FAMILY_LAYER, "data parameters state state_cell", infer_rnn, "{mode|} {state_size|?}",
     "recurrent layer ({mode|rnn}) over {inputs} with {state_size|?} units"},
    {"lstm gru", FAMILY_LAYER, "data weight recurrence bias", infer_recurrent, "{hidden_size|?}",
     "recurrent layer ({op}) over {inputs} with {hidden_size|?} units"},
    {"batchnorm batchnormwithrelu syncbatchnorm cudnnbatchnorm batchnormalization", FAMILY_NORM,
     "data gamma beta moving_mean moving_var", infer_batch_norm, "", "batch normalisation of {inputs}"},
    {"layernorm layernormalization", FAMILY_NORM, "data gamma beta", infer_layer_norm, "",
     "layer normalisation of {inputs}"},
    {"instancenorm instancenormalization groupnorm groupnormalization", FAMILY_NORM, "data gamma beta",
     infer_batch_norm, "", "{op} of {inputs}"},
    {"lrn l2normalization", FAMILY_NORM, "", infer_same, "", "{op} of {inputs}"},
    {"activation", FAMILY_ACTIVATION, "", infer_same, "{act_type|?}", "{act_type|activation} of {inputs}"},
    {"relu sigmoid tanh softsign softrelu softplus gelu elu selu hardsigmoid hardswish erf silu swish mish",
     FAMILY_ACTIVATION, "", infer_same, "", "{op} of {inputs}"},
    {"leakyrelu prelu", FAMILY_ACTIVATION, "data gamma", infer_leaky, "{act_type|leaky}",
     "{act_type|leaky} relu of {inputs}"},
    {"softmaxactivation logsoftmax softmin", FAMILY_SOFTMAX, "", infer_same, "", "{op} of {inputs}"},
    {"pooling", FAMILY_POOL, "", infer_pooling, "{pool_type|max}, {kernel|all}/{stride|1}",
     "{pool_type|max} pooling of {inputs}, windows of {kernel|all}, stride {stride|1}"},
    {"maxpool averagepool", FAMILY_POOL, "", infer_pooling, "{kernel|all}/{stride|1}",
     "{op} of {inputs}, windows of {kernel|all}, stride {stride|1}"},
    {"globalaveragepool globalmaxpool", FAMILY_POOL, "", infer_global_pooling, "", "{op} of {inputs}"},
    {"concat concatenate rnnparamconcat", FAMILY_SHAPE, "", infer_concat, "", "concatenation of {inputs} along axis {dim|1}"},
    {"stack", FAMILY_SHAPE, "", infer_stack, "", "stack of {inputs} along axis {axis|0}"},
    {"flatten", FAMILY_SHAPE, "", infer_flatten, "", "{inputs} flattened to one row for each example"},
    {"reshape", FAMILY_SHAPE, "data data", infer_reshape, "{shape|}",
     "{inputs} reshaped to {shape|another shape}"},
    {"transpose", FAMILY_SHAPE, "", infer_transpose, "{axes|}", "{inputs} transposed"},
    {"swapaxis swapaxes", FAMILY_SHAPE, "", infer_swap_axes, "{dim1|0}, {dim2|0}",
     "{inputs} with axes {dim1|0} and {dim2|0} swapped"},
    {"expanddims unsqueeze", FAMILY_SHAPE, "", infer_expand_dims, "{axis|}", "{inputs} with a new axis {axis|}"},
    {"squeeze", FAMILY_SHAPE, "", infer_squeeze, "{axis|}", "{inputs} without axes of size 1"},
    {"sliceaxis", FAMILY_SHAPE, "", infer_slice_axis, "{axis|0}: {begin|0} to {end|end}",
     "{inputs} along axis {axis|0} from {begin|0} to {end|the end}"},
    {"slice crop", FAMILY_SHAPE, "", infer_slice, "", "{op} of {inputs}"},
    {"slicelike", FAMILY_SHAPE, "", infer_slice_like, "", "{inputs}: the first, cut to the size of the second"},
    {"pad", FAMILY_SHAPE, "", infer_pad, "{mode|}", "{inputs} padded ({mode|constant})"},
    {"broadcastto", FAMILY_SHAPE, "", infer_broadcast_to, "{shape|}", "{inputs} stretched to {shape|another shape}"},
    {"broadcastlike", FAMILY_SHAPE, "", infer_broadcast_like, "", "{inputs}: the first, stretched like the second"},
    {"broadcastaxis broadcastaxes", FAMILY_SHAPE, "", infer_broadcast_axis, "", "{inputs} stretched over {over}"},
    {"depthtospace", FAMILY_SHAPE, "", infer_depth_to_space, "", "channels of {inputs} moved into blocks of space"},
    {"spacetodepth", FAMILY_SHAPE, "", infer_space_to_depth, "", "blocks of space of {inputs} moved into channels"},
    {"diag", FAMILY_SHAPE, "", infer_diag, "", "diagonal of {inputs}"},
    {"flip reverse", FAMILY_SHAPE, "", infer_same, "{axis|}", "{inputs} reversed along axis {axis|}"},
    {"repeat", FAMILY_SHAPE, "", infer_repeat, "{repeats|}", "elements of {inputs}, each {repeats|several} times"},
    {"tile", FAMILY_SHAPE, "", infer_tile, "{reps|}", "{inputs} repeated as tiles"},
    {"im2col", FAMILY_SHAPE, "", infer_im2col, "{kernel|}", "windows of {inputs} as columns"},
    {"shapearray", FAMILY_SHAPE, "", infer_shape_array, "", "the shape of {inputs}"},
    {"sizearray", FAMILY_SHAPE, "", infer_size_array, "", "the size of {inputs}"},
    {"sort argsort", FAMILY_SHAPE, "", infer_same_or_flat, "", "{op} of {inputs}"},
    {"topk", FAMILY_SHAPE, "", infer_topk, "{k|1}", "the {k|1} largest of {inputs}"},
    {"pick", FAMILY_SHAPE, "", infer_pick, "", "elements picked out of {inputs}"},
    {"shuffle", FAMILY_SHAPE, "", infer_same, "", "rows of {inputs} in random order"},
    {"sequencemask sequencereverse", FAMILY_SHAPE, "data data", infer_sequence, "", "{op} of {inputs}"},
    {"sequencelast", FAMILY_SHAPE, "data data", infer_sequence_last, "", "last step of {inputs}"},
    {"adaptiveavgpooling2d", FAMILY_POOL, "", infer_adaptive_pooling, "{output_size|1}",
     "average pooling of {inputs} to {output_size|1}"},
    {"correlation", FAMILY_LAYER, "", infer_correlation, "", "correlation of {inputs}"},
    {"slicechannel split splitv2", FAMILY_SHAPE, "", infer_split, "{num_outputs|}",
     "{inputs} split into {num_outputs|several}"},
    {"upsampling", FAMILY_SHAPE, "", infer_upsampling, "{scale}", "{inputs} enlarged by {scale}"},
    {"bilinearresize2d", FAMILY_SHAPE, "", infer_resize, "", "{inputs} resized"},
    {"resize", FAMILY_SHAPE, "", infer_nothing, "", "{inputs} resized"},
    {"onehot", FAMILY_SHAPE, "", infer_one_hot, "{depth|}", "one-hot of {inputs}"},
    {"take gather", FAMILY_SHAPE, "", infer_take, "", "rows taken out of {inputs}"},
    {"quantizelinear dequantizelinear dynamicquantizelinear", FAMILY_SHAPE, "", infer_same, "", "{op} of {inputs}"},
    {"cast ampcast", FAMILY_SHAPE, "", infer_same, "{dtype|}", "{inputs} as {dtype|another type}"},
    {"ampmulticast", FAMILY_SHAPE, "", infer_each, "", "{inputs} as one type"},
    {"identity copy blockgrad stopgradient identityattachklsparsereg", FAMILY_OTHER, "", infer_same, "",
     "{op} of {inputs}"},
    {"dropout", FAMILY_OTHER, "", infer_same, "{p|0.5}", "dropout of {inputs}, {p|0.5} of the values"},
    {"elemwiseadd add plus broadcastadd broadcastplus gradadd addn elementwisesum", FAMILY_MATH, "",
     infer_broadcast, "", ELEMENTS("sum")},
    {"elemwisesub sub minus subtract broadcastsub broadcastminus", FAMILY_MATH, "", infer_broadcast, "",
     ELEMENTS("difference")},
    {"elemwisemul mul multiply broadcastmul", FAMILY_MATH, "", infer_broadcast, "", ELEMENTS("product")},
    {"elemwisediv div divide truedivide broadcastdiv", FAMILY_MATH, "", infer_broadcast, "", ELEMENTS("quotient")},
    {"maximum broadcastmaximum", FAMILY_MATH, "", infer_broadcast, "", ELEMENTS("maximum")},
    {"minimum broadcastminimum", FAMILY_MATH, "", infer_broadcast, "", ELEMENTS("minimum")},
    {"power pow broadcastpower mod broadcastmod hypot broadcasthypot equal broadcastequal notequal greater less "
     "lesser greaterequal lesserequal logicaland logicalor logicalxor broadcastnotequal broadcastgreater broadcastlesser "
     "broadcastgreaterequal broadcastlesserequal broadcastlogicaland broadcastlogicalor broadcastlogicalxor", FAMILY_MATH, "", infer_broadcast, "", ELEMENTS("{op}")},
    {"where", FAMILY_MATH, "", infer_where, "", "choice between elements, by {inputs}"},
    {"plusscalar addscalar", FAMILY_MATH, "", infer_same, "{scalar|}", "{inputs} plus {scalar|a number}"},
    {"minusscalar subtractscalar", FAMILY_MATH, "", infer_same, "{scalar|}", "{inputs} minus {scalar|a number}"},
    {"rminusscalar rsubtractscalar", FAMILY_MATH, "", infer_same, "{scalar|}", "{scalar|a number} minus {inputs}"},
    {"mulscalar multiplyscalar", FAMILY_MATH, "", infer_same, "{scalar|}", "{inputs} times {scalar|a number}"},
    {"divscalar truedividescalar", FAMILY_MATH, "", infer_same, "{scalar|}",
     "{inputs} divided by {scalar|a number}"},
    {"rdivscalar rtruedividescalar", FAMILY_MATH, "", infer_same, "{scalar|}",
     "{scalar|a number} divided by {inputs}"},
    {"powerscalar rpowerscalar maximumscalar minimumscalar modscalar rmodscalar hypotscalar equalscalar notequalscalar "
     "greaterscalar greaterequalscalar lesserscalar lesserequalscalar logicalandscalar logicalorscalar "
     "logicalxorscalar", FAMILY_MATH, "", infer_same, "{scalar|}",
     "{op} of {inputs} and {scalar|a number}"},
    {"exp log log2 log10 log1p expm1 sqrt rsqrt square cbrt abs sign negative neg round floor ceil clip sin cos "
     "tan arctan reciprocal smoothl1 logicalnot divsqrtdim gammaln rcbrt fix trunc rint sinh cosh arcsin arccos arcsinh "
     "arccosh arctanh degrees radians erfinv digamma", FAMILY_MATH, "", infer_same, "", "{op} of {inputs}"},
    {"gamma", FAMILY_MATH, "", infer_gamma, "", "gamma function of {inputs}"},
    {"cumsum", FAMILY_MATH, "", infer_same_or_flat, "", "running sums of {inputs}"},
    {"moments", FAMILY_MATH, "", infer_moments, "over {over}", "mean and variance of {inputs} over {over}"},
    {"sum sumaxis reducesum nansum", FAMILY_MATH, "", infer_reduce, "over {over}", "sum of {inputs} over {over}"},
    {"mean reducemean", FAMILY_MATH, "", infer_reduce, "over {over}", "mean of {inputs} over {over}"},
    {"max maxaxis reducemax", FAMILY_MATH, "", infer_reduce, "over {over}", "maximum of {inputs} over {over}"},
    {"min minaxis reducemin", FAMILY_MATH, "", infer_reduce, "over {over}", "minimum of {inputs} over {over}"},
    {"prod nanprod reduceprod norm reducel1 reducel2 reducelogsum reducelogsumexp reducesumsquare", FAMILY_MATH, "", infer_reduce, "over {over}",
     "{op} of {inputs} over {over}"},
    {"argmax argmin", FAMILY_MATH, "", infer_arg_reduce, "over {over}", "{op} of {inputs} over {over}"},
    {"dot", FAMILY_MATH, "", infer_dot, "", "matrix product of {inputs}"},
    {"batchdot linalggemm2", FAMILY_MATH, "", infer_batch_dot, "",
     "matrix product of {inputs}, example by example"},
    {"matmul", FAMILY_MATH, "", infer_matmul, "", "matrix product of {inputs}"},
    {"softmaxoutput softmax", FAMILY_SOFTMAX, "data label", infer_softmax_output, "", "softmax of {data}{label}"},
    {"linearregressionoutput", FAMILY_LOSS, "data label", infer_regression_output, "",
     "squared error of {data}{label}"},
    {"logisticregressionoutput", FAMILY_LOSS, "data label", infer_regression_output, "",
     "logistic loss of {data}{label}"},
    {"maeregressionoutput", FAMILY_LOSS, "data label", infer_regression_output, "",
     "absolute error of {data}{label}"},
    {"svmoutput", FAMILY_LOSS, "data label", infer_softmax_output, "", "hinge loss of {data}{label}"},
    {"softmaxcrossentropy", FAMILY_LOSS, "data label", infer_cross_entropy, "", "cross entropy of {data}{label}"},
    {"ctcloss", FAMILY_LOSS, "data label data_lengths label_lengths", infer_ctc, "", "CTC loss of {data}{label}"},
    {"warpctc", FAMILY_LOSS, "data label", infer_same, "", "CTC loss of {data}{label}"},
    {"makeloss", FAMILY_LOSS, "", infer_same, "", "{inputs}, which is minimised"},
    {"custom", FAMILY_OTHER, "", infer_nothing, "{op_type|}", "{op_type|custom operator} of {inputs}"},
    {"zeros ones full constant constantofshape", FAMILY_OTHER, "", infer_filled, "", "constant ({op})"},
    {"zeroslike oneslike fulllike", FAMILY_OTHER, "", infer_same, "", "constant ({op}) of the shape of {inputs}"},
    {"arange", FAMILY_OTHER, "", infer_arange, "", "numbers in equal steps"},
    {"arangelike", FAMILY_OTHER, "", infer_arange_like, "", "numbers in equal steps, as many as {inputs}"},
    {"linspace", FAMILY_OTHER, "", infer_linspace, "", "numbers in equal steps"},
    {"eye", FAMILY_OTHER, "", infer_eye, "", "identity matrix"},
    {"randomuniform randomnormal randomgamma randomexponential randompoisson randomnegativebinomial "
     "randomgeneralizednegativebinomial randomrandint uniform normal", FAMILY_OTHER, "", infer_random, "{shape|}",
     "random numbers ({op})"},
    {"randomuniformlike randomnormallike randomgammalike randomexponentiallike randompoissonlike "
     "randomnegativebinomiallike randomgeneralizednegativebinomiallike", FAMILY_OTHER, "", infer_same, "",
     "random numbers ({op}) of the shape of {inputs}"},
    {"sampleuniform samplenormal samplegamma sampleexponential samplepoisson samplenegativebinomial "
     "samplegeneralizednegativebinomial", FAMILY_OTHER, "", infer_sample, "{shape|}", "random numbers ({op}) of {inputs}"},
    {"samplemultinomial", FAMILY_OTHER, "", infer_multinomial, "{shape|}", "random indices by {inputs}"},
    {"(keys)", FAMILY_BLOCK, "", infer_nothing, "", "keys under {inputs}"},
};

static const struct viz_op unknown = {"", FAMILY_OTHER, "", infer_nothing, "", "{op} of {inputs}"};
static const struct viz_op variable = {"", FAMILY_DATA, "", infer_nothing, "", "variable"};

/* MXNet's names of every age and ONNX's come down to one: no prefix of a name space, no _, small letters. Four
 * names of ONNX mean something else than the same letters do in MXNet. */
static void canonical(const char *op, char *out, size_t size)
{
    static const char *const prefixes[] = {"_contrib_", "_npx_", "_npi_", "_np_", "_sparse_"};
    static const char *const onnx[][2] = {
        {"Sum", "addn"}, {"Max", "maximum"}, {"Min", "minimum"}, {"Mean", "addn"}};
    size_t at = 0;

    for (size_t i = 0; i < sizeof onnx / sizeof onnx[0]; i++)
        if (strcmp(op, onnx[i][0]) == 0) op = onnx[i][1];
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(op, prefixes[i], strlen(prefixes[i])) == 0) op += strlen(prefixes[i]);
    for (; *op != '\0' && at + 1 < size; op++)
        if (*op != '_' && strcmp(op, "_v1") != 0) out[at++] = (char)tolower((unsigned char)*op);
        else if (strcmp(op, "_v1") == 0) break;
    out[at] = '\0';
}

static bool listed(const char *words, const char *word)
{
    size_t size = strlen(word);

    for (const char *at = words; *at != '\0'; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        if (n == size && memcmp(at, word, n) == 0) return true;
        at += n;
    }
    return false;
}

const struct viz_op *viz_op_find(const char *op)
{
    char name[64];

    if (op == NULL) return &variable;
    canonical(op, name, sizeof name);
    for (size_t i = 0; name[0] != '\0' && i < sizeof rows / sizeof rows[0]; i++)
        if (listed(rows[i].names, name)) return &rows[i];
    return &unknown;
}

bool viz_op_is(const struct viz_node *n, const char *name) { return listed(n->kind->names, name); }

/* Only their first output is for users. */
static const char hiding[] =
    "batchnorm batchnormwithrelu syncbatchnorm cudnnbatchnorm layernorm instancenorm groupnorm dropout leakyrelu lrn "
    "l2normalization correlation ctcloss roipooling bilinearsampler gridgenerator spatialtransformer "
    "deformablepsroipooling";

uint32_t viz_outputs_shown(const struct viz_node *n)
{
    char name[64];

    if (n->op == NULL || n->output_count < 2) return 1;
    canonical(n->op, name, sizeof name);
    if (!listed(hiding, name) || viz_attr_true(n, "output_mean_var")) return n->output_count;
    return n->outputs_used > 1 ? n->outputs_used : 1;
}

struct bytes viz_op_slot(const struct viz_op *op, size_t input)
{
    const char *at = op->slots;

    for (; input > 0 && *at != '\0'; input--) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return bytes_of(at, strcspn(at, " "));
}

/* ---- templates ----------------------------------------------------------------------------------------------- */

void viz_name_quote(struct buf *out, const char *name) { buf_format(out, "`%s`", name); }

enum which { ALL, NO_LABEL, ONLY_LABEL };

static bool is_wanted(const struct viz_node *n, enum which w)
{
    if (viz_is_param(n)) return false;
    return w == ALL || (n->role == ROLE_LABEL) == (w == ONLY_LABEL);
}

enum { NAMES_SAID = 6 };             /* more are counted, not named */

static void fill_inputs(struct buf *out, const struct viz_graph *g, const struct viz_node *n, enum which w)
{
    size_t total = 0, said = 0;

    for (size_t i = 0; i < n->input_count; i++) total += is_wanted(&g->nodes[n->inputs[i].node], w);
    if (total == 0 && w != ONLY_LABEL) buf_text(out, "its parameters");
    for (size_t i = 0; i < n->input_count && said < NAMES_SAID; i++) {
        const struct viz_node *from = &g->nodes[n->inputs[i].node];
        if (!is_wanted(from, w)) continue;
        if (said > 0) buf_text(out, said + 1 == total ? " and " : ", ");
        else if (w == ONLY_LABEL) buf_text(out, " against ");
        viz_name_quote(out, from->name);
        said++;
    }
    if (total > said) buf_format(out, " and %zu more", total - said);
}

/* "(3, 3)" as "3x3", anything else as it is. */
static void fill_value(struct buf *out, const char *value)
{
    bool list = *value == '(' || *value == '[', any = false;

    if (!list) {
        buf_add(out, value,
                strlen(value) < 60           ? strlen(value)
                : strcspn(value, " \n") < 60 ? strcspn(value, " \n")
                                             : 0);
        return;
    }
    for (const char *at = value; *at != '\0';) {
        size_t n = strspn(at, "-0123456789.");
        if (n == 0) at++;
        if (n > 0 && any) buf_text(out, "x");
        buf_add(out, at - (n == 0), n);
        any = any || n > 0;
        at += n;
    }
}

static void fill_over(struct buf *out, const struct viz_node *n)
{
    int64_t axes[VIZ_DIMS];
    size_t count = viz_attr_ints(n, "axis", axes);

    if (count == 0) buf_text(out, "all axes");
    else buf_text(out, count == 1 ? "axis " : "axes ");
    for (size_t i = 0; i < count; i++)
        buf_format(out, "%s%lld", i == 0 ? "" : i + 1 == count ? " and " : ", ", (long long)axes[i]);
}

/* ONNX says in constants and in the shapes of weights what MXNet says in attributes. */
static bool fill_from_input(struct buf *out, const struct viz_graph *g, const struct viz_node *n, struct bytes name)
{
    if (n->input_count < 2) return false;
    const struct viz_node *w = &g->nodes[n->inputs[1].node];
    if (bytes_equal(name, bytes_text("shape"))) {
        for (uint32_t i = 0; i < w->int_count; i++)
            buf_format(out, "%s%lld", i > 0 ? "x" : "", (long long)w->ints[i]);
        return w->int_count > 0;
    }
    const struct viz_shape *s = w->output_count > 0 ? &w->shapes[0] : NULL;
    int dim = 0;

    if (s == NULL || s->ndim < 2) return false;
    if (bytes_equal(name, bytes_text("output_dim")) ||
        (viz_op_is(n, "gemm") && n->op[0] == 'G' && !viz_attr_true(n, "transB")) || viz_op_is(n, "deconvolution"))
        dim = 1;
    else if (!bytes_equal(name, bytes_text("num_filter")) && !bytes_equal(name, bytes_text("num_hidden")))
        return false;
    if (s->dims[dim] < 0) return false;
    buf_format(out, "%lld", (long long)s->dims[dim]);
    return true;
}

static void fill_attr(struct buf *out, const struct viz_graph *g, const struct viz_node *n, struct bytes name,
                      struct bytes other)
{
    char text[32];
    const char *value = NULL;

    if (name.size < sizeof text) {
        memcpy(text, name.at, name.size);
        text[name.size] = '\0';
        value = viz_attr(n, text);
    }
    if (value != NULL && value[strspn(value, "()[] ")] != '\0') fill_value(out, value);
    else if (!fill_from_input(out, g, n, name)) buf_add(out, other.at, other.size);
}

static void fill_token(struct buf *out, const struct viz_graph *g, const struct viz_node *n, struct bytes token,
                       const char *inputs)
{
    const char *at = token.at, *bar = memchr(at, '|', token.size);
    size_t size = bar != NULL ? (size_t)(bar - at) : token.size;
    struct bytes name = bytes_of(at, size),
                 other = bar != NULL ? bytes_of(bar + 1, token.size - size - 1) : bytes_of("", 0);

    bool is_all = bytes_equal(name, bytes_text("inputs")), is_data = bytes_equal(name, bytes_text("data"));
    if ((is_all || is_data) && inputs != NULL) buf_text(out, inputs);
    else if (is_all) fill_inputs(out, g, n, ALL);
    else if (is_data) fill_inputs(out, g, n, NO_LABEL);
    else if (bytes_equal(name, bytes_text("label"))) fill_inputs(out, g, n, ONLY_LABEL);
    else if (bytes_equal(name, bytes_text("op"))) buf_text(out, n->op != NULL ? n->op : "variable");
    else if (bytes_equal(name, bytes_text("over"))) fill_over(out, n);
    else fill_attr(out, g, n, name, other);
}

void viz_op_fill(struct buf *out, const char *template, const struct viz_graph *g, const struct viz_node *n)
{
    viz_op_fill_for(out, template, g, n, NULL);
}

void viz_op_fill_for(struct buf *out, const char *template, const struct viz_graph *g, const struct viz_node *n,
                     const char *inputs)
{
    while (*template != '\0') {
        size_t plain = strcspn(template, "{");
        buf_add(out, template, plain);
        template += plain;
        if (*template == '\0') break;
        size_t size = strcspn(template, "}");
        fill_token(out, g, n, bytes_of(template + 1, size - 1), inputs);
        template += size + (template[size] == '}');
    }
}
