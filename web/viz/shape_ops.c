#include "web/viz/infer.h"
#include "web/viz/ops.h"
#include "web/viz/shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rules of operators that move, cut, repeat or make elements. Each is by the definition of MXNet's
 * operator of that name. An ONNX operator of the same name states other attributes; without the one
 * that a rule needs it gives nothing. */

enum { NO_VALUE = INT32_MIN };          /* None in a list, where -1 is the last */

static bool is_none(const char *text)
{
    return text == NULL || strcmp(text, "None") == 0 || *text == '\0';
}

/* A number that may have a fraction. */
static bool attr_real(const struct viz_node *n, const char *name, double *out)
{
    const char *text = viz_attr(n, name);
    char *end;

    if (is_none(text)) return false;
    *out = strtod(text, &end);
    return end != text && isfinite(*out);
}

static int64_t rounded(double v)
{
    return v >= 0 && v <= (double)DIM_MAX ? (int64_t)v : VIZ_UNKNOWN;
}

/* ---- elements stay where they are ---- */

/* Without an axis the array is flattened first. */
void infer_same_or_flat(struct viz_graph *g, struct viz_node *n)
{
    const char *axis = viz_attr(n, "axis");
    bool standard_is_flat = viz_op_is(n, "cumsum") && n->op[0] != 'C';

    if (axis != NULL ? strcmp(axis, "None") == 0 : standard_is_flat) {
        if (in(g, n, 0)->ndim >= 0)
            give(n, 0, &(struct viz_shape){1, {dims_product(in(g, n, 0), 0)}});
    } else {
        infer_same(g, n);
    }
}

/* numpy's operator of this name draws random numbers. */
void infer_gamma(struct viz_graph *g, struct viz_node *n)
{
    if (strncmp(n->op, "_npi", 4) != 0) infer_same(g, n);
}

/* As many outputs as inputs, each like its own. */
void infer_each(struct viz_graph *g, struct viz_node *n)
{
    for (size_t i = 0; i < n->input_count && i < n->output_count; i++) {
        give(n, i, in(g, n, i));
        suggest(g, n, i, out_of(n, i));
    }
}

void infer_where(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape s = *out_of(n, 0);

    if (n->op[0] != 'w') { /* numpy's and ONNX's broadcast */
        infer_broadcast(g, n);
        return;
    }
    refine(&s, in(g, n, 1));
    refine(&s, in(g, n, 2));
    give(n, 0, &s);
    suggest(g, n, 1, &s);
    suggest(g, n, 2, &s);
}

/* The lengths are one for each example of the batch, which is the axis beside that of time. */
static void suggest_lengths(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);
    int64_t time = viz_attr_int(n, "axis", 0);

    if (data->ndim < 2 || time < 0 || time > 1) return;
    suggest(g, n, 1, &(struct viz_shape){1, {data->dims[1 - time]}});
}

void infer_sequence(struct viz_graph *g, struct viz_node *n)
{
    suggest_lengths(g, n);
    infer_same(g, n);
}

void infer_sequence_last(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t time = viz_attr_int(n, "axis", 0);

    suggest_lengths(g, n);
    if (out.ndim < 2 || time < 0 || time > 1) return;
    shape_drop(&out, (int)time);
    give(n, 0, &out);
}

/* ---- copies ---- */

void infer_pad(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t widths[2 * VIZ_DIMS];
    size_t count = viz_attr_list(n, "pad_width", VIZ_UNKNOWN, widths, 2 * VIZ_DIMS);

    if (out.ndim < 1 || count != 2 * (size_t)out.ndim) return;
    for (int i = 0; i < out.ndim; i++) {
        int64_t more = dim_plus(sane(widths[2 * i]), sane(widths[2 * i + 1]));
        if (more != 0) out.dims[i] = dim_plus(out.dims[i], more); /* a batch stays a batch */
    }
    give(n, 0, &out);
}

void infer_repeat(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t times = attr_size(n, "repeats");

    if (out.ndim < 0) return;
    if (is_none(viz_attr(n, "axis"))) {
        out = shape1(dim_times(dims_product(&out, 0), times));
    } else {
        int at = axis_of(viz_attr_int(n, "axis", 0), out.ndim);
        if (at < 0) return;
        out.dims[at] = dim_times(out.dims[at], times);
    }
    give(n, 0, &out);
}

void infer_tile(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);
    int64_t reps[VIZ_DIMS];
    int count = (int)viz_attr_list(n, "reps", VIZ_UNKNOWN, reps, VIZ_DIMS);
    struct viz_shape out = {.ndim = count > data->ndim ? count : data->ndim};

    if (data->ndim < 0 || count == 0) return;
    for (int i = 1; i <= out.ndim; i++) { /* both are aligned at their ends */
        int64_t dim = i <= data->ndim ? data->dims[data->ndim - i] : 1;
        out.dims[out.ndim - i] = dim_times(dim, i <= count ? sane(reps[count - i]) : 1);
    }
    give(n, 0, &out);
}

/* A zero keeps the dimension of the data. */
void infer_broadcast_to(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);
    int64_t dims[VIZ_DIMS];
    size_t count = viz_attr_list(n, "shape", VIZ_UNKNOWN, dims, VIZ_DIMS);
    struct viz_shape out = {.ndim = (int)count};

    if (count == 0) return;
    for (size_t i = 0; i < count; i++)
        out.dims[i] = dims[i] > 0              ? sane(dims[i])
                      : data->ndim == out.ndim ? data->dims[i]
                                               : VIZ_UNKNOWN;
    give(n, 0, &out);
}

void infer_broadcast_axis(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t axes[VIZ_DIMS], sizes[VIZ_DIMS];
    size_t count = viz_attr_ints(n, "axis", axes);

    if (out.ndim < 1 || count == 0 || viz_attr_ints(n, "size", sizes) != count) return;
    for (size_t i = 0; i < count; i++) {
        int at = axis_of(axes[i], out.ndim);
        if (at < 0) return;
        out.dims[at] = sane(sizes[i]);
    }
    give(n, 0, &out);
}

void infer_broadcast_like(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *like = in(g, n, 1);
    struct viz_shape out = *in(g, n, 0);
    int64_t left[VIZ_DIMS], right[VIZ_DIMS];
    size_t count = viz_attr_ints(n, "lhs_axes", left);

    if (count == 0 && is_none(viz_attr(n, "lhs_axes"))) {
        give(n, 0, like);
        return;
    }
    if (out.ndim < 1 || like->ndim < 1 || count == 0 ||
        viz_attr_ints(n, "rhs_axes", right) != count)
        return;
    for (size_t i = 0; i < count; i++) {
        int to = axis_of(left[i], out.ndim), from = axis_of(right[i], like->ndim);
        if (to < 0 || from < 0) return;
        out.dims[to] = like->dims[from];
    }
    give(n, 0, &out);
}

/* ---- parts ---- */

/* Elements of begin:end:step along an axis; an end that is not stated is the last. */
static int64_t slice_count(int64_t size, int64_t begin, int64_t end, int64_t step)
{
    bool whole = (begin == NO_VALUE || begin == 0) && end == NO_VALUE;

    if (step == NO_VALUE || step == 0) step = 1;
    if (step > DIM_MAX || step < -DIM_MAX) return VIZ_UNKNOWN;
    if (whole && step == 1) return size; /* a batch stays a batch */
    if (size < 0) return VIZ_UNKNOWN;
    if (begin == NO_VALUE) begin = step > 0 ? 0 : size - 1;
    else if (begin < 0) begin += size;
    if (end == NO_VALUE) end = step > 0 ? size : -1;
    else if (end < 0) end += size;
    if (begin < 0 || end < -1) return VIZ_UNKNOWN;
    if (begin >= size) begin = step > 0 ? size : size - 1;
    if (end > size) end = size;
    int64_t count = step > 0 ? (end - begin + step - 1) / step : (begin - end - step - 1) / -step;
    return count > 0 ? count : VIZ_UNKNOWN;
}

/* `Crop`, of four dimensions: the last two as stated, or as those of a second input. */
static void infer_crop(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    const struct viz_shape *like = in(g, n, 1);
    int64_t sizes[VIZ_DIMS];
    bool stated = viz_attr_ints(n, "h_w", sizes) == 2;

    if (out.ndim != 4) return;
    for (int i = 0; i < 2; i++)
        out.dims[2 + i] = n->input_count > 1 ? (like->ndim == 4 ? like->dims[2 + i] : VIZ_UNKNOWN)
                          : stated && sizes[i] > 0 ? sane(sizes[i])
                                                   : VIZ_UNKNOWN;
    give(n, 0, &out);
}

void infer_slice(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t begin[VIZ_DIMS], end[VIZ_DIMS], step[VIZ_DIMS];
    size_t count = viz_attr_list(n, "begin", NO_VALUE, begin, VIZ_DIMS);
    size_t ends = viz_attr_list(n, "end", NO_VALUE, end, VIZ_DIMS);
    size_t steps = viz_attr_list(n, "step", NO_VALUE, step, VIZ_DIMS);

    if (n->op[0] == 'C') {
        infer_crop(g, n);
        return;
    }
    if (out.ndim < 1 || count == 0 || ends != count || (int)count > out.ndim) return;
    for (size_t i = 0; i < count; i++)
        out.dims[i] = slice_count(out.dims[i], begin[i], end[i], i < steps ? step[i] : NO_VALUE);
    give(n, 0, &out);
}

void infer_slice_like(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *like = in(g, n, 1);
    struct viz_shape out = *in(g, n, 0);
    int64_t axes[VIZ_DIMS];
    size_t count = viz_attr_ints(n, "axes", axes);

    if (out.ndim < 1 || like->ndim < 1 || (count == 0 && like->ndim != out.ndim)) return;
    for (size_t i = 0; i < (count > 0 ? count : (size_t)out.ndim); i++) {
        int64_t axis = count > 0 ? axes[i] : (int64_t)i;
        int to = axis_of(axis, out.ndim), from = axis_of(axis, like->ndim);
        if (to < 0 || from < 0) return;
        out.dims[to] = like->dims[from];
    }
    give(n, 0, &out);
}

/* Of two dimensions or more the diagonals stand last. */
void infer_diag(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t k = viz_attr_int(n, "k", 0);

    if (out.ndim < 1 || k < -DIM_MAX || k > DIM_MAX) return;
    if (out.ndim == 1) {
        int64_t side = dim_plus(out.dims[0], k < 0 ? -k : k);
        give(n, 0, &(struct viz_shape){2, {side, side}});
        return;
    }
    int a = axis_of(viz_attr_int(n, "axis1", 0), out.ndim),
        b = axis_of(viz_attr_int(n, "axis2", 1), out.ndim);
    if (a < 0 || b < 0 || a == b) return;
    int64_t high = out.dims[a], wide = out.dims[b], length = VIZ_UNKNOWN;
    if (high >= 0 && wide >= 0) {
        if (k < 0) high += k;
        else wide -= k;
        length = high < wide ? high : wide;
    }
    shape_drop(&out, a > b ? a : b);
    shape_drop(&out, a > b ? b : a);
    out.dims[out.ndim++] = length > 0 ? length : VIZ_UNKNOWN;
    give(n, 0, &out);
}

void infer_pick(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int at = out.ndim > 0 ? axis_of(viz_attr_int(n, "axis", -1), out.ndim) : -1;

    if (at < 0) return;
    if (viz_attr_true(n, "keepdims")) out.dims[at] = 1;
    else shape_drop(&out, at);
    if (out.ndim == 0) out = shape1(1);
    give(n, 0, &out);
}

/* Indices, values or both of the k largest; or a mask over all. */
void infer_topk(struct viz_graph *g, struct viz_node *n)
{
    const char *kind = viz_attr(n, "ret_typ"), *axis = viz_attr(n, "axis");
    struct viz_shape out = *in(g, n, 0);
    int64_t k = viz_attr_int(n, "k", 1);

    if (out.ndim < 1 || n->op[0] == 'T') return; /* ONNX states k in an input */
    if (kind != NULL && strcmp(kind, "mask") == 0) {
        infer_same(g, n);
        return;
    }
    if (axis != NULL && strcmp(axis, "None") == 0) out = shape1(dims_product(&out, 0));
    int at = axis_of(viz_attr_int(n, "axis", -1), out.ndim);
    if (at < 0) return;
    if (k > 0) out.dims[at] = sane(k); /* none or less: all of them, in order */
    for (size_t i = 0; i < n->output_count; i++) give(n, i, &out);
}

/* ---- space ---- */

static void infer_blocks(struct viz_graph *g, struct viz_node *n, bool into_depth)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t b = attr_size(n, viz_attr(n, "blocksize") != NULL ? "blocksize" : "block_size");

    if (out.ndim != 4) return;
    out.dims[1] = into_depth ? dim_times(out.dims[1], dim_times(b, b))
                             : dim_by(out.dims[1], dim_times(b, b));
    for (int i = 2; i < 4; i++)
        out.dims[i] = into_depth ? dim_by(out.dims[i], b) : dim_times(out.dims[i], b);
    give(n, 0, &out);
}

void infer_depth_to_space(struct viz_graph *g, struct viz_node *n) { infer_blocks(g, n, false); }
void infer_space_to_depth(struct viz_graph *g, struct viz_node *n) { infer_blocks(g, n, true); }

void infer_adaptive_pooling(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t sizes[VIZ_DIMS];
    size_t count = viz_attr_ints(n, "output_size", sizes);

    if (out.ndim != 4 || count > 2) return;
    for (size_t i = 0; i < 2; i++)
        out.dims[2 + i] = count == 0 ? 1 : sane(sizes[count == 1 ? 0 : i]);
    give(n, 0, &out);
}

/* One side of BilinearResize2D: modes either take a size, scale, or make the size even or odd. */
static int64_t resized(const struct viz_node *n, int64_t from, int64_t like, const char *size,
                       const char *scale)
{
    const char *mode = viz_attr(n, "mode");
    double factor = 1, other;
    bool scales = attr_real(n, "scale_height", &other) &&
                  attr_real(n, scale, &factor); /* or neither does */

    if (mode == NULL || strcmp(mode, "size") == 0)
        return !scales     ? (viz_attr(n, size) != NULL ? attr_size(n, size) : 1)
               : from >= 0 ? rounded((float)factor * (float)from)
                           : VIZ_UNKNOWN;
    if (strcmp(mode, "like") == 0) return like;
    if (from < 0) return VIZ_UNKNOWN;
    if (strcmp(mode, "odd_scale") == 0 && scales)
        return from % 2 == 0 ? rounded((float)from * (float)factor)
                             : dim_plus(rounded((float)(from - 1) * (float)factor), 1);
    static const struct {
        const char *mode;
        int odd, change;
    } parities[] = {
        {"to_even_down", 1, -1}, {"to_even_up", 1, 1}, {"to_odd_down", 0, -1}, {"to_odd_up", 0, 1}};
    for (size_t i = 0; i < sizeof parities / sizeof parities[0]; i++)
        if (strcmp(mode, parities[i].mode) == 0)
            return from % 2 == parities[i].odd ? from + parities[i].change : from;
    return VIZ_UNKNOWN;
}

void infer_resize(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *like = in(g, n, 1);
    struct viz_shape out = *in(g, n, 0);

    if (out.ndim != 4) return;
    out.dims[2] = resized(n, out.dims[2], like->ndim == 4 ? like->dims[2] : VIZ_UNKNOWN, "height",
                          "scale_height");
    out.dims[3] = resized(n, out.dims[3], like->ndim == 4 ? like->dims[3] : VIZ_UNKNOWN, "width",
                          "scale_width");
    give(n, 0, &out);
}

/* FlowNet's: for each place the products with those at most max_displacement away. */
void infer_correlation(struct viz_graph *g, struct viz_node *n)
{
    int64_t kernel = viz_attr_int(n, "kernel_size", 1),
            reach = viz_attr_int(n, "max_displacement", 1);
    int64_t stride = viz_attr_int(n, "stride1", 1), grid = viz_attr_int(n, "stride2", 1),
            pad = viz_attr_int(n, "pad_size", 0);
    const int64_t most = 1 << 20;

    struct viz_shape both = nothing_known;
    refine(&both, in(g, n, 0));
    refine(&both, in(g, n, 1));
    if (both.ndim != 4) return;
    suggest(g, n, 0, &both);
    suggest(g, n, 1, &both);
    if (kernel < 1 || stride < 1 || grid < 1 || reach < 0 || pad < 0 || kernel > most ||
        reach > most || pad > most)
        return;
    int64_t border = reach + (kernel - 1) / 2, side = 2 * (reach / grid) + 1;
    struct viz_shape out = {4, {both.dims[0], side * side}};
    for (int i = 2; i < 4; i++) {
        int64_t inner = dim_minus(dim_plus(both.dims[i], 2 * pad), 2 * border);
        out.dims[i] = inner > 0 ? (inner + stride - 1) / stride : VIZ_UNKNOWN;
    }
    give(n, 0, &out);
}

/* ---- what is said about shapes, and what is made ---- */

void infer_shape_array(struct viz_graph *g, struct viz_node *n)
{
    if (in(g, n, 0)->ndim >= 0) give(n, 0, &(struct viz_shape){1, {in(g, n, 0)->ndim}});
}

void infer_size_array(struct viz_graph *g, struct viz_node *n)
{
    (void)g;
    give(n, 0, &(struct viz_shape){1, {1}});
}

/* The dimensions of attribute `shape` (numpy's: `size`) behind those of `before`. */
static void give_drawn(struct viz_node *n, const struct viz_shape *before)
{
    int64_t dims[VIZ_DIMS];
    struct viz_shape out = *before;
    size_t count = viz_attr_ints(n, viz_attr(n, "shape") != NULL ? "shape" : "size", dims);

    if (out.ndim < 0 || out.ndim + (int)count > VIZ_DIMS || out.ndim + (int)count == 0) return;
    for (size_t i = 0; i < count; i++)
        out.dims[out.ndim++] = dims[i] > 0 ? sane(dims[i]) : VIZ_UNKNOWN;
    give(n, 0, &out);
}

void infer_random(struct viz_graph *g, struct viz_node *n)
{
    (void)g;
    if (n->input_count == 0) give_drawn(n, &(struct viz_shape){0});
}

/* So many for each element of the distributions' parameters. */
void infer_sample(struct viz_graph *g, struct viz_node *n) { give_drawn(n, in(g, n, 0)); }

/* Each row is a distribution. */
void infer_multinomial(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape rows = *in(g, n, 0);
    int64_t dims[VIZ_DIMS];

    if (rows.ndim < 1) return;
    rows.ndim--;
    if (rows.ndim == 0 && viz_attr_ints(n, "shape", dims) == 0) rows = shape1(1);
    give_drawn(n, &rows);
}

void infer_arange(struct viz_graph *g, struct viz_node *n)
{
    double start = 0, stop = 0, step = 1;
    int64_t repeat = viz_attr_int(n, "repeat", 1);

    (void)g;
    if (n->op[0] == 'R' || viz_attr_true(n, "infer_range") || repeat < 1)
        return; /* ONNX's Range has inputs */
    attr_real(n, "start", &start);
    attr_real(n, "step", &step);
    if (!attr_real(n, "stop", &stop)) {
        if (!attr_real(n, "start", &stop)) return;
        start = 0;
    }
    if (!(step > 0 || step < 0)) return;
    give(n, 0, &(struct viz_shape){1, {dim_times(rounded(ceil((stop - start) / step)), repeat)}});
}

void infer_arange_like(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);

    if (is_none(viz_attr(n, "axis"))) {
        give(n, 0, data);
        return;
    }
    int at = data->ndim > 0 ? axis_of(viz_attr_int(n, "axis", 0), data->ndim) : -1;
    if (at >= 0) give(n, 0, &(struct viz_shape){1, {data->dims[at]}});
}

void infer_linspace(struct viz_graph *g, struct viz_node *n)
{
    (void)g;
    give(n, 0, &(struct viz_shape){1, {attr_size(n, "num")}});
}

void infer_eye(struct viz_graph *g, struct viz_node *n)
{
    int64_t rows = attr_size(n, "N"), columns = attr_size(n, "M");

    (void)g;
    give(n, 0, &(struct viz_shape){2, {rows, columns < 0 ? rows : columns}});
}

/* Time, batch, classes: one loss for each example. */
void infer_ctc(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0), *label = in(g, n, 1);
    int64_t batch = data->ndim == 3 ? data->dims[1] : VIZ_UNKNOWN;

    if (batch == VIZ_UNKNOWN && label->ndim == 2) batch = label->dims[0];
    suggest(g, n, 0, &(struct viz_shape){3, {VIZ_UNKNOWN, batch, VIZ_UNKNOWN}});
    suggest(g, n, 1, &(struct viz_shape){2, {batch, VIZ_UNKNOWN}});
    for (size_t i = 2; i < n->input_count; i++) suggest(g, n, i, &(struct viz_shape){1, {batch}});
    give(n, 0, &(struct viz_shape){1, {batch}});
}

void infer_moments(struct viz_graph *g, struct viz_node *n)
{
    infer_reduce(g, n);
    give(n, 1, out_of(n, 0));
}
