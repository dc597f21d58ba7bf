#include "web/viz/shape.h"

#include "service/base/nearest.h"
#include "web/viz/infer.h"
#include "web/viz/ops.h"

#include <string.h>

/* The numbers of an attribute, or of the constant that newer files have in its place. False: they come in at run
 * time, or are too many, so nothing may be concluded from their absence. */
static bool numbers(const struct viz_graph *g, const struct viz_node *n, const char *attr, size_t input,
                    int64_t out[VIZ_DIMS], size_t *count)
{
    const char *text = viz_attr(n, attr);
    uint64_t elements;

    *count = viz_attr_ints(n, attr, out);
    if (*count > 0) return true;
    if (text != NULL && text[strcspn(text, "0123456789")] != '\0') return false;
    if (input >= n->input_count) return true;
    const struct viz_node *c = &g->nodes[n->inputs[input].node];
    if (!viz_shape_count(in(g, n, input), &elements) || elements != c->int_count || elements > VIZ_DIMS) return false;
    for (; *count < elements; ++*count) out[*count] = c->ints[*count];
    return true;
}

static bool is_channels_last(const struct viz_node *n)
{
    const char *layout = viz_attr(n, "layout");
    return layout != NULL && *layout != '\0' && strcmp(layout, "None") != 0 &&
           strncmp(layout, "NC", 2) != 0;
}

/* A shape of a layout that has the channels last, as if they stood behind the batch; and back. */
static struct viz_shape channels_first(const struct viz_node *n, const struct viz_shape *s)
{
    struct viz_shape out = *s;

    for (int i = 2; i < s->ndim && is_channels_last(n); i++) out.dims[i] = s->dims[i - 1];
    if (s->ndim > 2 && is_channels_last(n)) out.dims[1] = s->dims[s->ndim - 1];
    return out;
}

static struct viz_shape channels_back(const struct viz_node *n, const struct viz_shape *s)
{
    struct viz_shape out = *s;

    for (int i = 1; i + 1 < s->ndim && is_channels_last(n); i++) out.dims[i] = s->dims[i + 1];
    if (s->ndim > 2 && is_channels_last(n)) out.dims[s->ndim - 1] = s->dims[1];
    return out;
}

/* Layouts whose first dimension is not the batch, such as CNHW, are not followed. */
static bool is_known_layout(const struct viz_node *n)
{
    const char *layout = viz_attr(n, "layout");
    return !is_channels_last(n) || (layout[0] == 'N' && layout[strlen(layout) - 1] == 'C');
}

/* ---- windows ------------------------------------------------------------------------------------------------- */

struct window {
    int ndim;
    int64_t kernel[VIZ_DIMS], stride[VIZ_DIMS], dilate[VIZ_DIMS], pad[VIZ_DIMS]; /* pad: both sides together */
    bool same, up;                   /* as ONNX's SAME; rounds up */
};

static void window_numbers(const struct viz_node *n, const char *name, int ndim, int64_t otherwise,
                           int64_t out[VIZ_DIMS])
{
    size_t count = viz_attr_ints(n, name, out);

    for (size_t i = count; i < (size_t)ndim; i++) out[i] = count == 1 ? out[0] : otherwise;
    for (int i = 0; i < ndim; i++) out[i] = sane(out[i]);
}

static bool window_read(const struct viz_node *n, int ndim, const struct viz_shape *weight, struct window *w)
{
    int64_t pads[VIZ_DIMS];
    const char *convention = viz_attr(n, "pooling_convention"), *pad = viz_attr(n, "auto_pad");
    size_t count = viz_attr_ints(n, "pad", pads);

    if (ndim < 1 || ndim > 3) return false;
    w->ndim = ndim;
    window_numbers(n, "kernel", ndim, VIZ_UNKNOWN, w->kernel);
    window_numbers(n, "stride", ndim, 1, w->stride);
    window_numbers(n, "dilate", ndim, 1, w->dilate);
    for (int i = 0; i < ndim; i++) {
        if (w->kernel[i] < 0 && weight->ndim == ndim + 2) w->kernel[i] = weight->dims[i + 2];
        int64_t first = (size_t)i < count ? sane(pads[i]) : 0;
        /* ONNX has the ends behind the beginnings. */
        w->pad[i] = count == 2 * (size_t)ndim && count > 1 && viz_attr(n, "pads") != NULL
                        ? dim_plus(first, sane(pads[i + ndim]))
                        : dim_times(2, first);
    }
    w->same = pad != NULL && strncmp(pad, "SAME", 4) == 0;
    w->up = (convention != NULL && strcmp(convention, "full") == 0) || viz_attr_true(n, "ceil_mode");
    return true;
}

static int64_t window_out(const struct window *w, int i, int64_t size)
{
    int64_t k = w->kernel[i], s = w->stride[i], reach;

    if (size < 0 || k < 1 || s < 1 || w->dilate[i] < 1 || w->pad[i] < 0) return VIZ_UNKNOWN;
    if (w->same) return (size + s - 1) / s;
    reach = dim_times(w->dilate[i], k - 1);
    if (k > 1 && reach < 0) return VIZ_UNKNOWN;
    reach = dim_plus(size, w->pad[i]) - (k > 1 ? reach : 0) - 1;
    return reach < 0 ? VIZ_UNKNOWN : (w->up ? (reach + s - 1) / s : reach / s) + 1;
}

static int64_t filters(const struct viz_node *n, const struct viz_shape *weight, int dim)
{
    int64_t said = attr_size(n, "num_filter");
    return said >= 0 ? said : weight->ndim > dim ? weight->dims[dim] : VIZ_UNKNOWN;
}

static void suggest_filters(struct viz_graph *g, struct viz_node *n, const struct window *w, int64_t outer,
                            int64_t inner, int64_t bias)
{
    struct viz_shape weight = {.ndim = w->ndim + 2, .dims = {outer, inner}}, b = shape1(bias);

    for (int i = 0; i < w->ndim; i++) weight.dims[i + 2] = w->kernel[i];
    weight = channels_back(n, &weight);
    suggest(g, n, 1, &weight);
    suggest(g, n, 2, &b);
}

/* Dimensions of the windows: of the data, else of the kernel. */
static int window_dims(const struct viz_node *n, const struct viz_shape *data)
{
    int64_t kernel[VIZ_DIMS];
    return data->ndim > 2              ? data->ndim - 2
           : data->ndim == VIZ_UNKNOWN ? (int)viz_attr_ints(n, "kernel", kernel)
                                       : 0;
}

/* The size before a window of stride 1; any other stride loses it. */
static int64_t window_in(const struct window *w, int i, int64_t size)
{
    int64_t k = w->kernel[i];

    if (size < 0 || k < 1 || w->stride[i] != 1 || w->dilate[i] < 1 || w->pad[i] < 0)
        return VIZ_UNKNOWN;
    if (w->same) return size;
    int64_t reach = k > 1 ? dim_times(w->dilate[i], k - 1) : 0;
    return dim_minus(dim_plus(size, reach), w->pad[i]);
}

/* Batch, channels and what follows from windows of stride 1. */
static void convolution_backwards(struct viz_graph *g, struct viz_node *n, const struct window *w,
                                  int64_t inner)
{
    struct viz_shape out = channels_first(n, out_of(n, 0)), data = shape_of_rank(w->ndim + 2);

    data.dims[1] = inner;
    if (out.ndim == data.ndim) data.dims[0] = out.dims[0];
    for (int i = 0; i < w->ndim && out.ndim == data.ndim; i++)
        data.dims[i + 2] = window_in(w, i, out.dims[i + 2]);
    data = channels_back(n, &data);
    for (int i = 0; i < data.ndim; i++)
        if (data.dims[i] != VIZ_UNKNOWN) {
            suggest(g, n, 0, &data);
            break;
        }
}

void infer_convolution(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape data = channels_first(n, in(g, n, 0)), weight = channels_first(n, in(g, n, 1)),
                     out = data;
    struct window w;
    int64_t groups = viz_attr_int(n, "num_group", 1),
            inner = data.ndim > 1 ? data.dims[1] : VIZ_UNKNOWN;

    if (!is_known_layout(n) || !window_read(n, window_dims(n, &data), &weight, &w)) return;
    int64_t f = filters(n, &weight, 0);
    suggest_filters(g, n, &w, f, dim_by(inner, groups), f);
    if (data.ndim == VIZ_UNKNOWN)
        data = out = shape_of_rank(w.ndim + 2); /* the channels are known all the same */
    out.dims[1] = f;
    for (int i = 0; i < w.ndim; i++) out.dims[i + 2] = window_out(&w, i, data.dims[i + 2]);
    out = channels_back(n, &out);
    give(n, 0, &out);
    weight = channels_first(n, in(g, n, 1));
    bool has_inner = weight.ndim == data.ndim && weight.dims[1] > 0 && groups > 0;
    convolution_backwards(g, n, &w, has_inner ? dim_times(weight.dims[1], groups) : VIZ_UNKNOWN);
}

void infer_deconvolution(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0), *weight = in(g, n, 1);
    struct viz_shape out = *data;
    struct window w;
    int64_t groups = viz_attr_int(n, "num_group", 1), adj[VIZ_DIMS];

    if (data->ndim < 3 || is_channels_last(n) || !window_read(n, data->ndim - 2, weight, &w)) return;
    int64_t f = filters(n, weight, 1), per = dim_by(f, groups);
    window_numbers(n, g->is_onnx ? "output_padding" : "adj", w.ndim, 0, adj);
    suggest_filters(g, n, &w, data->dims[1], per, f);
    out.dims[1] = f;
    for (int i = 0; i < w.ndim; i++) {
        int64_t reach = dim_times(w.dilate[i], w.kernel[i] > 0 ? w.kernel[i] - 1 : VIZ_UNKNOWN);
        int64_t size = data->dims[i + 2] > 0 ? dim_times(w.stride[i], data->dims[i + 2] - 1) : VIZ_UNKNOWN;
        if (w.kernel[i] == 1) reach = 0;
        size = dim_plus(dim_plus(size, reach), dim_plus(1, adj[i]));
        out.dims[i + 2] = size >= 0 && w.pad[i] >= 0 && size > w.pad[i] && viz_attr(n, "target_shape") == NULL &&
                                      viz_attr(n, "output_shape") == NULL && !w.same
                              ? size - w.pad[i]
                              : VIZ_UNKNOWN;
    }
    give(n, 0, &out);
}

/* Batch and channels pass through. */
static void pooling_backwards(struct viz_graph *g, struct viz_node *n, int ndim)
{
    struct viz_shape out = channels_first(n, out_of(n, 0)), data = shape_of_rank(ndim);

    if (out.ndim != ndim) return;
    data.dims[0] = out.dims[0];
    data.dims[1] = out.dims[1];
    data = channels_back(n, &data);
    suggest(g, n, 0, &data);
}

void infer_pooling(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape data = channels_first(n, in(g, n, 0)), out = data;
    struct window w;

    if (viz_attr_true(n, "global_pool")) {
        infer_global_pooling(g, n);
        return;
    }
    if (data.ndim < 3 || !is_known_layout(n) || !window_read(n, data.ndim - 2, &nothing_known, &w))
        return;
    for (int i = 0; i < w.ndim; i++) out.dims[i + 2] = window_out(&w, i, data.dims[i + 2]);
    out = channels_back(n, &out);
    give(n, 0, &out);
    pooling_backwards(g, n, data.ndim);
}

void infer_global_pooling(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = channels_first(n, in(g, n, 0));

    if (out.ndim < 3 || !is_known_layout(n)) return;
    for (int i = 2; i < out.ndim; i++) out.dims[i] = 1;
    out = channels_back(n, &out);
    give(n, 0, &out);
    pooling_backwards(g, n, out.ndim);
}

/* Each window becomes a column: channels times kernel, and one column for each place. */
void infer_im2col(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);
    struct window w;

    if (data->ndim < 3 || !window_read(n, data->ndim - 2, &nothing_known, &w)) return;
    struct viz_shape out = {3, {data->dims[0], data->dims[1], 1}};
    for (int i = 0; i < w.ndim; i++) {
        out.dims[1] = dim_times(out.dims[1], w.kernel[i]);
        out.dims[2] = dim_times(out.dims[2], window_out(&w, i, data->dims[i + 2]));
    }
    give(n, 0, &out);
}

void infer_upsampling(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t scale = attr_size(n, "scale");

    if (out.ndim != 4 || n->input_count > 1) return;
    out.dims[2] = dim_times(out.dims[2], scale);
    out.dims[3] = dim_times(out.dims[3], scale);
    give(n, 0, &out);
}

/* ---- layers -------------------------------------------------------------------------------------------------- */

void infer_nothing(struct viz_graph *g, struct viz_node *n) { (void)g, (void)n; }

void infer_same(struct viz_graph *g, struct viz_node *n)
{
    give(n, 0, in(g, n, 0));
    suggest(g, n, 0, out_of(n, 0));
}

static void infer_gemm(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *a = in(g, n, 0), *b = in(g, n, 1);
    struct viz_shape out = shape2(VIZ_UNKNOWN, VIZ_UNKNOWN);

    if (a->ndim == 2) out.dims[0] = a->dims[viz_attr_true(n, "transA")];
    if (b->ndim == 2) out.dims[1] = b->dims[!viz_attr_true(n, "transB")];
    give(n, 0, &out);
}

/* The batch, or all dimensions but the last; and the width of rows, which the weight has. */
static void dense_backwards(struct viz_graph *g, struct viz_node *n, bool flat)
{
    const struct viz_shape *out = out_of(n, 0), *weight = in(g, n, 1);
    int ndim = in(g, n, 0)->ndim;

    if (ndim < 1) return;
    struct viz_shape data = shape_of_rank(ndim);
    for (int i = 0; i < (flat ? 1 : ndim - 1) && out->ndim > i; i++) data.dims[i] = out->dims[i];
    if (weight->ndim == 2 && ndim > 1 && (!flat || ndim == 2))
        data.dims[ndim - 1] = weight->dims[1];
    suggest(g, n, 0, &data);
}

void infer_dense(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0), *weight = in(g, n, 1);
    const char *flatten = viz_attr(n, "flatten");
    bool flat = flatten == NULL || viz_attr_true(n, "flatten");
    int64_t hidden = attr_size(n, "num_hidden");

    if (n->op[0] == 'G') { /* ONNX's Gemm shares the row */
        infer_gemm(g, n);
        return;
    }
    if (hidden < 0 && weight->ndim == 2) hidden = weight->dims[0];
    int64_t width = data->ndim < 1 ? VIZ_UNKNOWN : flat ? dims_product(data, 1) : data->dims[data->ndim - 1];
    struct viz_shape w = shape2(hidden, width), b = shape1(hidden);
    struct viz_shape out = flat ? shape2(data->ndim > 0 ? data->dims[0] : VIZ_UNKNOWN, hidden) : *data;
    if (!flat && out.ndim > 0) out.dims[out.ndim - 1] = hidden;
    suggest(g, n, 1, &w);
    suggest(g, n, 2, &b);
    give(n, 0, &out);
    dense_backwards(g, n, flat);
}

void infer_embedding(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    struct viz_shape table = shape2(attr_size(n, "input_dim"), attr_size(n, "output_dim")), ids;

    suggest(g, n, 1, &table);
    const struct viz_shape *weight = in(g, n, 1);
    if (out.ndim < 0 || out.ndim == VIZ_DIMS) return;
    out.dims[out.ndim++] = weight->ndim == 2 ? weight->dims[1] : table.dims[1];
    give(n, 0, &out);
    ids = *out_of(n, 0);
    if (ids.ndim == out.ndim) ids.ndim--;
    if (ids.ndim == out.ndim - 1) suggest(g, n, 0, &ids);
}

static void suggest_channels(struct viz_graph *g, struct viz_node *n, int64_t axis)
{
    const struct viz_shape *data = in(g, n, 0);
    int at = data->ndim > 0 ? axis_of(axis, data->ndim) : -1;
    struct viz_shape channels = shape1(at >= 0 ? data->dims[at] : VIZ_UNKNOWN);

    if (at < 0) return;
    struct viz_shape back = shape_of_rank(data->ndim);
    for (size_t i = 1; i < n->input_count && i < 5; i++) {
        suggest(g, n, i, &channels);
        const struct viz_shape *said = in(g, n, i);
        if (said->ndim == 1 && back.dims[at] == VIZ_UNKNOWN) back.dims[at] = said->dims[0];
    }
    suggest(g, n, 0, &back);
}

void infer_batch_norm(struct viz_graph *g, struct viz_node *n)
{
    int64_t axis = viz_attr_int(n, "axis", 1);
    const struct viz_shape *data = in(g, n, 0);
    int at = data->ndim > 0 ? axis_of(axis, data->ndim) : -1;

    suggest_channels(g, n, axis);
    infer_same(g, n);
    for (size_t i = 1; at >= 0 && i < n->output_count; i++) give(n, i, &(struct viz_shape){1, {data->dims[at]}});
}

void infer_layer_norm(struct viz_graph *g, struct viz_node *n)
{
    suggest_channels(g, n, viz_attr_int(n, "axis", -1));
    infer_same(g, n);
}

/* A slope of prelu may be one for all channels: its shape is stated then, and tells nothing of the
 * channels. */
void infer_leaky(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);
    struct viz_shape slope = shape1(data->ndim > 1 ? data->dims[1] : VIZ_UNKNOWN);

    suggest(g, n, 1, &slope);
    infer_same(g, n);
}

/* All weights and biases of all layers lie in one vector. */
static int64_t rnn_parameters(int64_t width, int64_t hidden, int64_t layers, int64_t ways, int64_t gates)
{
    int64_t each = dim_times(dim_times(gates, hidden), ways);
    int64_t first = dim_times(each, dim_plus(dim_plus(width, hidden), 2));
    int64_t other = dim_times(each, dim_plus(dim_plus(dim_times(hidden, ways), hidden), 2));

    return layers == 1 ? first : dim_plus(first, dim_times(other, layers - 1));
}

/* ONNX's RNN, GRU and LSTM: every step's output, then the last of each state. */
void infer_recurrent(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0), *recurrence = in(g, n, 2);
    const char *direction = viz_attr(n, "direction");
    int64_t ways = direction != NULL && strcmp(direction, "bidirectional") == 0 ? 2 : 1;
    int64_t hidden = sane(viz_attr_int(n, "hidden_size", VIZ_UNKNOWN));
    bool batch_first = viz_attr_true(n, "layout");

    if (!g->is_onnx || data->ndim != 3) return;
    if (hidden < 0 && recurrence->ndim == 3) hidden = recurrence->dims[2];
    struct viz_shape all = {4, {data->dims[0], ways, data->dims[1], hidden}};
    struct viz_shape last = {3, {ways, data->dims[1], hidden}};
    if (batch_first) {
        all = (struct viz_shape){4, {data->dims[0], data->dims[1], ways, hidden}};
        last = (struct viz_shape){3, {data->dims[0], ways, hidden}};
    }
    give(n, 0, &all);
    give(n, 1, &last);
    give(n, 2, &last);
}

void infer_rnn(struct viz_graph *g, struct viz_node *n)
{
    if (g->is_onnx) {
        infer_recurrent(g, n);
        return;
    }
    const struct viz_shape *data = in(g, n, 0);
    const char *mode = viz_attr(n, "mode");
    int64_t hidden = attr_size(n, "state_size"), layers = viz_attr_int(n, "num_layers", 1);
    int64_t ways = viz_attr_true(n, "bidirectional") ? 2 : 1;
    int64_t gates = mode != NULL && strcmp(mode, "lstm") == 0  ? 4
                    : mode != NULL && strcmp(mode, "gru") == 0 ? 3
                                                               : 1;

    if (data->ndim != 3 || layers < 1 || layers > 4096) return;
    struct viz_shape out = {3, {data->dims[0], data->dims[1], dim_times(hidden, ways)}};
    struct viz_shape state = {3, {layers * ways, data->dims[1], hidden}};
    struct viz_shape p = shape1(rnn_parameters(data->dims[2], hidden, layers, ways, gates));
    suggest(g, n, 1, &p);
    suggest(g, n, 2, &state);
    if (gates == 4) suggest(g, n, 3, &state);
    give(n, 0, &out);
    give(n, 1, &state);
    give(n, 2, &state);
    const struct viz_shape *begin = in(g, n, 2), *after = out_of(n, 0);
    struct viz_shape back = shape_of_rank(3);
    if (after->ndim == 3)
        back = (struct viz_shape){3, {after->dims[0], after->dims[1], VIZ_UNKNOWN}};
    if (back.dims[1] == VIZ_UNKNOWN && begin->ndim == 3) back.dims[1] = begin->dims[1];
    suggest(g, n, 0, &back);
}

/* ---- other shapes of the same -------------------------------------------------------------------------------- */

void infer_flatten(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);

    if (data->ndim < 1 || viz_attr_int(n, "axis", 1) != 1) return;
    struct viz_shape out = shape2(data->dims[0], dims_product(data, 1)),
                     back = shape_of_rank(data->ndim);
    give(n, 0, &out);
    if (out_of(n, 0)->ndim == 2) back.dims[0] = out_of(n, 0)->dims[0];
    suggest(g, n, 0, &back);
}

struct reshaping {
    const struct viz_shape *data;
    int from;                        /* the dimension of data that comes next */
    struct viz_shape out;
    int guess;                       /* of out, which follows from the rest; -1: none */
};

static int64_t reshaping_next(struct reshaping *r)
{
    return r->from < r->data->ndim ? r->data->dims[r->from++] : VIZ_UNKNOWN;
}

static bool reshaping_add(struct reshaping *r, int64_t dim)
{
    if (r->out.ndim == VIZ_DIMS) return false;
    r->out.dims[r->out.ndim++] = dim;
    return true;
}

/* MXNet's codes: 0 keeps, -1 follows, -2 keeps all the rest, -3 joins two, -4 splits into the next two numbers. */
static bool reshaping_code(struct reshaping *r, const int64_t *codes, size_t count, size_t *i)
{
    int64_t whole, a, b;

    switch (codes[*i]) {
    case 0: return reshaping_add(r, reshaping_next(r));
    case -1:
        if (r->guess >= 0) return false;
        r->guess = r->out.ndim;
        r->from++;
        return reshaping_add(r, VIZ_UNKNOWN);
    case -2:
        while (r->from < r->data->ndim)
            if (!reshaping_add(r, reshaping_next(r))) return false;
        return true;
    case -3:
        a = reshaping_next(r);
        return reshaping_add(r, dim_times(a, reshaping_next(r)));
    case -4:
        if (*i + 2 >= count) return false;
        whole = reshaping_next(r);
        a = codes[*i + 1];
        b = codes[*i + 2];
        *i += 2;
        if (a == -1 && b > 0 && whole >= 0) a = whole / b;
        if (b == -1 && a > 0 && whole >= 0) b = whole / a;
        return reshaping_add(r, sane(a)) && reshaping_add(r, sane(b));
    default:
        r->from++;
        return codes[*i] > 0 && reshaping_add(r, sane(codes[*i]));
    }
}

static void reshaping_guess(struct reshaping *r)
{
    int64_t known = 1, all = dims_product(r->data, 0);
    int batches = 0;

    for (int i = 0; i < r->out.ndim; i++)
        if (i != r->guess && r->out.dims[i] == VIZ_BATCH) batches++;
        else if (i != r->guess) known = dim_times(known, r->out.dims[i]);
    if (batches == 1) { /* the batch is on both sides, so it falls out */
        all = 1;
        for (int i = 0; i < r->data->ndim; i++)
            if (r->data->dims[i] == VIZ_BATCH) batches--;
            else all = dim_times(all, r->data->dims[i]);
    }
    if (batches == 0 && known > 0 && all >= 0 && all % known == 0) r->out.dims[r->guess] = all / known;
    else if (batches == 0 && known > 0 && r->data->ndim > 0 && r->data->dims[0] == VIZ_BATCH &&
             known == dims_product(r->data, 1))
        r->out.dims[r->guess] = VIZ_BATCH;
}

/* Names of numpy's have other codes: -2 keeps, -4 keeps all the rest, -5 joins, -6 splits; a zero
 * is a size. */
static bool reshaping_read(const struct viz_node *n, int64_t *codes, size_t count)
{
    static const int64_t codes_of_mxnet[] = {[2] = 0, [4] = -2, [5] = -3, [6] = -4};

    for (size_t i = 0; i < count && strncmp(n->op, "_np", 3) == 0; i++) {
        bool splits = codes[i] == -6, extends = strncmp(n->op, "_npx", 4) == 0;
        if (codes[i] == 0 || codes[i] == -3 || codes[i] < -6 || (codes[i] < -1 && !extends))
            return false;
        if (codes[i] < -1) codes[i] = codes_of_mxnet[-codes[i]];
        if (splits) i += 2;
    }
    return true;
}

/* One unknown dimension of the data follows from the number of elements. */
static void reshape_backwards(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape data = *in(g, n, 0);
    int64_t all = dims_product(out_of(n, 0), 0), rest = 1;
    int unknown = 0, at = 0;

    for (int i = 0; i < data.ndim; i++)
        if (data.dims[i] == VIZ_UNKNOWN) unknown++, at = i;
        else rest = dim_times(rest, data.dims[i]);
    if (unknown != 1 || out_of(n, 0)->ndim < 0 || rest < 1) return;
    data.dims[at] = dim_by(all, rest);
    suggest(g, n, 0, &data);
}

void infer_reshape(struct viz_graph *g, struct viz_node *n)
{
    int64_t codes[VIZ_DIMS];
    size_t count;
    struct reshaping r = {.data = in(g, n, 0), .guess = -1};

    if (!numbers(g, n, "shape", 1, codes, &count)) return;
    for (size_t i = 0; i < count && g->is_onnx; i++)
        if (codes[i] < -1 || (codes[i] == 0 && viz_attr_true(n, "allowzero"))) return;
    if (count == 0 || viz_attr_true(n, "reverse") || !reshaping_read(n, codes, count)) return;
    for (size_t i = 0; i < count; i++)
        if (!reshaping_code(&r, codes, count, &i)) return;
    if (r.guess >= 0 && r.data->ndim >= 0) reshaping_guess(&r);
    give(n, 0, &r.out);
    reshape_backwards(g, n);
}

void infer_transpose(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);
    struct viz_shape out = *data;
    int64_t axes[VIZ_DIMS];
    size_t count = viz_attr_ints(n, "axes", axes);

    if (data->ndim < 0 || (count > 0 && count != (size_t)data->ndim)) return;
    struct viz_shape after = *out_of(n, 0), back = shape_of_rank(data->ndim);
    for (int i = 0; i < data->ndim; i++) {
        int at = count == 0 ? data->ndim - 1 - i : axis_of(axes[i], data->ndim);
        if (at < 0) return;
        out.dims[i] = data->dims[at];
        if (after.ndim == data->ndim) back.dims[at] = after.dims[i];
    }
    give(n, 0, &out);
    suggest(g, n, 0, &back);
}

static struct viz_shape swapped(const struct viz_shape *s, int a, int b)
{
    struct viz_shape out = *s;

    out.dims[a] = s->dims[b];
    out.dims[b] = s->dims[a];
    return out;
}

void infer_swap_axes(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int a = out.ndim > 0 ? axis_of(viz_attr_int(n, "dim1", 0), out.ndim) : -1;
    int b = out.ndim > 0 ? axis_of(viz_attr_int(n, "dim2", 0), out.ndim) : -1;

    if (a < 0 || b < 0) return;
    out = swapped(&out, a, b);
    give(n, 0, &out);
    if (out_of(n, 0)->ndim != out.ndim) return;
    out = swapped(out_of(n, 0), a, b);
    suggest(g, n, 0, &out);
}

static bool insert(struct viz_shape *s, int64_t axis, int64_t dim)
{
    int at = s->ndim < 0 || s->ndim == VIZ_DIMS ? -1 : axis_of(axis, s->ndim + 1);

    if (at < 0) return false;
    memmove(&s->dims[at + 1], &s->dims[at], (size_t)(s->ndim - at) * sizeof s->dims[0]);
    s->dims[at] = dim;
    s->ndim++;
    return true;
}

void infer_expand_dims(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int64_t axes[VIZ_DIMS];

    size_t count;

    if (!numbers(g, n, "axis", 1, axes, &count) || count != 1 || !insert(&out, axes[0], 1)) return;
    give(n, 0, &out);
    if (out_of(n, 0)->ndim != out.ndim) return;
    struct viz_shape back = *out_of(n, 0);
    shape_drop(&back, axis_of(axes[0], back.ndim));
    suggest(g, n, 0, &back);
}

/* Which dimensions the axes name; false when one is none. No axes: all. */
static bool mark_axes(const int64_t *axes, size_t count, int ndim, bool out[VIZ_DIMS])
{
    for (int i = 0; i < VIZ_DIMS; i++) out[i] = count == 0;
    for (size_t i = 0; i < count; i++) {
        int at = axis_of(axes[i], ndim);
        if (at < 0) return false;
        out[at] = true;
    }
    return true;
}

void infer_squeeze(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);
    struct viz_shape out = {0};
    int64_t axes[VIZ_DIMS];
    bool gone[VIZ_DIMS];
    size_t count;

    if (!numbers(g, n, "axis", 1, axes, &count) || data->ndim < 0 || !mark_axes(axes, count, data->ndim, gone)) return;
    for (int i = 0; i < data->ndim; i++) {
        if (count == 0 && data->dims[i] < 0) return;
        if (!gone[i] || (count == 0 && data->dims[i] != 1)) out.dims[out.ndim++] = data->dims[i];
    }
    give(n, 0, &out);
}

void infer_slice_axis(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);
    int at = out.ndim > 0 ? axis_of(viz_attr_int(n, "axis", 0), out.ndim) : -1;

    if (at < 0) return;
    int64_t size = out.dims[at], begin = viz_attr_int(n, "begin", 0), end = viz_attr_int(n, "end", size);
    if (size >= 0 && begin < 0) begin += size;
    if (size >= 0 && end < 0) end += size;
    out.dims[at] = begin >= 0 && end >= begin && (size < 0 || end <= size) ? sane(end - begin) : VIZ_UNKNOWN;
    give(n, 0, &out);
    if (out_of(n, 0)->ndim != out.ndim) return;
    struct viz_shape back = *out_of(n, 0);
    back.dims[at] = VIZ_UNKNOWN;
    suggest(g, n, 0, &back);
}

/* Equal parts: all have the same shape, and the whole follows from any. */
static void split_evenly(struct viz_graph *g, struct viz_node *n, int at, int64_t parts,
                         bool squeeze)
{
    struct viz_shape part = *in(g, n, 0), whole;

    part.dims[at] = squeeze ? 1 : dim_by(part.dims[at], parts);
    if (squeeze) shape_drop(&part, at);
    for (size_t i = 0; i < n->output_count; i++) refine(&part, &n->shapes[i]);
    for (size_t i = 0; i < n->output_count; i++) give(n, i, &part);
    whole = part;
    if (squeeze && !insert(&whole, at, sane(parts))) return;
    if (!squeeze) whole.dims[at] = dim_times(part.dims[at], parts);
    suggest(g, n, 0, &whole);
}

static bool has_digits(const char *text)
{
    return text != NULL && text[strcspn(text, "0123456789")] != '\0';
}

/* Parts that begin at the indices: MXNet's list begins with 0, numpy's leaves it out. */
static void split_at(struct viz_node *n, const struct viz_shape *data, int at, bool squeeze)
{
    enum { PARTS_MAX = 256 };
    int64_t begins[PARTS_MAX + 1] = {0};
    size_t count = viz_attr_list(n, "indices", VIZ_UNKNOWN, begins + 1, PARTS_MAX),
           from = begins[1] == 0 ? 1 : 0;

    for (size_t i = 0; i < n->output_count && i + from <= count && count > 0; i++) {
        bool last = i + from == count;
        int64_t end = last ? data->dims[at] : begins[i + from + 1];
        struct viz_shape part = *data;
        part.dims[at] = dim_minus(end, begins[i + from]);
        if (squeeze && part.dims[at] != 1) continue;
        if (squeeze) shape_drop(&part, at);
        give(n, i, &part);
    }
}

void infer_split(struct viz_graph *g, struct viz_node *n)
{
    bool is_onnx = n->op[0] == 'S' && n->op[1] == 'p';
    const struct viz_shape *data = in(g, n, 0);
    int at = data->ndim > 0 ? axis_of(viz_attr_int(n, "axis", is_onnx ? 0 : 1), data->ndim) : -1;
    int64_t parts = viz_attr_int(n, "num_outputs", (int64_t)n->output_count);
    bool squeeze = viz_attr_true(n, "squeeze_axis");

    /* Sizes that are stated, or come in at run time, are not those of equal parts. */
    if (is_onnx && (n->input_count > 1 || viz_attr(n, "split") != NULL)) return;
    if (at < 0) return;
    if (has_digits(viz_attr(n, "indices"))) {
        split_at(n, data, at, squeeze);
        return;
    }
    parts = viz_attr_int(n, "sections", parts);
    if (parts < 1) return;
    if (squeeze && data->dims[at] >= 0 && data->dims[at] != parts) return;
    split_evenly(g, n, at, parts, squeeze);
}

void infer_one_hot(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);

    if (g->is_onnx) { /* the depth is an input, the axis may be any */
        if (insert(&out, viz_attr_int(n, "axis", -1), VIZ_UNKNOWN)) give(n, 0, &out);
        return;
    }
    if (insert(&out, -1, attr_size(n, "depth"))) give(n, 0, &out);
}

/* In MXNet's old interface a zero stands for a dimension that is not known, as in the states `(0,
 * 100)` with which a recurrent cell begins. numpy's and ONNX's zeros are sizes. */
static bool is_size(const struct viz_graph *g, const struct viz_node *n, int64_t dim)
{
    return dim > 0 || (dim == 0 && (g->is_np_shape || n->op[0] != '_' || n->op[1] == 'n'));
}

void infer_filled(struct viz_graph *g, struct viz_node *n)
{
    int64_t dims[VIZ_DIMS];
    struct viz_shape out = {0};
    size_t count;

    if (!numbers(g, n, "shape", 0, dims, &count)) return;
    if (count == 0 && !(g->is_onnx && n->input_count > 0)) return;
    out.ndim = (int)count;
    for (size_t i = 0; i < count; i++) out.dims[i] = is_size(g, n, dims[i]) ? sane(dims[i]) : VIZ_UNKNOWN;
    give(n, 0, &out);
}

/* ---- several inputs ------------------------------------------------------------------------------------------ */

/* The first rank that an input or the output has. */
static int any_rank(const struct viz_graph *g, const struct viz_node *n)
{
    int ndim = VIZ_UNKNOWN;

    for (size_t i = 0; i < n->input_count && ndim == VIZ_UNKNOWN; i++) ndim = in(g, n, i)->ndim;
    return ndim != VIZ_UNKNOWN ? ndim : out_of(n, 0)->ndim;
}

/* What all inputs and the output have in common, but for dimension `at`. */
static struct viz_shape common(const struct viz_graph *g, const struct viz_node *n, int ndim,
                               int at)
{
    struct viz_shape s = shape_of_rank(ndim);

    for (size_t i = 0; i <= n->input_count; i++) {
        const struct viz_shape *more = i < n->input_count ? in(g, n, i) : out_of(n, 0);
        if (more->ndim == ndim) refine(&s, more);
        if (at >= 0) s.dims[at] = VIZ_UNKNOWN;
    }
    return s;
}

void infer_concat(struct viz_graph *g, struct viz_node *n)
{
    int64_t axis = viz_attr_int(n, "dim", viz_attr_int(n, "axis", 1)), sum = 0, unknown = 0;
    int ndim = any_rank(g, n), at = ndim > 0 ? axis_of(axis, ndim) : -1;

    if (at < 0) return;
    struct viz_shape each = common(g, n, ndim, at), out = each;
    for (size_t i = 0; i < n->input_count; i++) {
        const struct viz_shape *s = in(g, n, i);
        bool known = s->ndim == ndim && s->dims[at] >= 0;
        unknown += !known;
        if (known) sum = dim_plus(sum, s->dims[at]);
    }
    out.dims[at] = unknown == 0 ? sum : VIZ_UNKNOWN;
    give(n, 0, &out);
    /* What is left of a known whole is the one part that is not known. The parameters of a
     * recurrent layer lie flat behind each other; those of both directions are of one size. */
    int64_t left = out_of(n, 0)->ndim == ndim ? dim_minus(out_of(n, 0)->dims[at], sum)
                                              : VIZ_UNKNOWN;
    if (unknown == 1 || viz_op_is(n, "rnnparamconcat")) each.dims[at] = dim_by(left, unknown);
    for (size_t i = 0; i < n->input_count; i++) suggest(g, n, i, &each);
}

void infer_stack(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape each = nothing_known, out;

    for (size_t i = 0; i < n->input_count; i++) refine(&each, in(g, n, i));
    out = each;
    if (!insert(&out, viz_attr_int(n, "axis", 0), n->input_count)) return;
    give(n, 0, &out);
    out = *out_of(n, 0);
    if (out.ndim == each.ndim + 1) {
        shape_drop(&out, axis_of(viz_attr_int(n, "axis", 0), out.ndim));
        refine(&each, &out);
    }
    for (size_t i = 0; i < n->input_count; i++) suggest(g, n, i, &each);
}

static int64_t broadcast_dim(int64_t a, int64_t b)
{
    if (a == b || b == 1) return a;
    if (a == 1 || (a < 0 && b > 1)) return b;
    if (b < 0 && a > 1) return a;
    return a == VIZ_BATCH && b == VIZ_UNKNOWN ? a : b == VIZ_BATCH && a == VIZ_UNKNOWN ? b : VIZ_UNKNOWN;
}

static struct viz_shape broadcast(const struct viz_shape *a, const struct viz_shape *b)
{
    struct viz_shape out = a->ndim >= b->ndim ? *a : *b;
    const struct viz_shape *other = a->ndim >= b->ndim ? b : a;
    int shift = out.ndim - other->ndim;

    for (int i = 0; i < other->ndim; i++) out.dims[i + shift] = broadcast_dim(out.dims[i + shift], other->dims[i]);
    return out;
}

/* Operators between arrays of one shape; all others stretch dimensions of size 1. */
static bool is_of_equal_shapes(const struct viz_node *n)
{
    static const char *const names[] = {"elemwise_", "add_n", "ElementWiseSum", "_grad_add", NULL};

    for (size_t i = 0; names[i] != NULL; i++)
        if (strncmp(n->op, names[i], strlen(names[i])) == 0) return true;
    return n->op[0] == '_' && strncmp(n->op, "_np", 3) != 0 && strncmp(n->op, "_contrib_", 9) != 0;
}

/* All inputs and the output have one shape; it is what any of them tells. */
void infer_equal(struct viz_graph *g, struct viz_node *n)
{
    int ndim = any_rank(g, n);

    if (ndim == VIZ_UNKNOWN) return;
    struct viz_shape s = common(g, n, ndim, -1);
    for (size_t i = 0; i < n->input_count; i++) suggest(g, n, i, &s);
    give(n, 0, &s);
}

void infer_broadcast(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape out = *in(g, n, 0);

    if (is_of_equal_shapes(n)) {
        infer_equal(g, n);
        return;
    }
    for (size_t i = 0; i < n->input_count; i++) {
        const struct viz_shape *s = in(g, n, i);
        if (s->ndim == VIZ_UNKNOWN) return; /* it could be larger than the others */
        if (i > 0) out = broadcast(&out, s);
    }
    give(n, 0, &out);
}

static void reduce(struct viz_graph *g, struct viz_node *n, const int64_t *axes, size_t count, bool keep)
{
    const struct viz_shape *data = in(g, n, 0);
    struct viz_shape out = {0};
    bool gone[VIZ_DIMS], exclude = viz_attr_true(n, "exclude");

    if (data->ndim < 0 || !mark_axes(axes, count, data->ndim, gone)) return;
    struct viz_shape after = *out_of(n, 0), back = shape_of_rank(data->ndim);
    for (int i = 0; i < data->ndim; i++)
        if (gone[i] == exclude) {
            if (out.ndim < after.ndim) back.dims[i] = after.dims[out.ndim];
            out.dims[out.ndim++] = data->dims[i];
        } else if (keep) {
            out.dims[out.ndim++] = 1;
        }
    if (out.ndim == after.ndim) suggest(g, n, 0, &back);
    /* The sum of everything has the shape (1,) in MXNet's old interface and no dimension elsewhere. */
    if (out.ndim == 0 && strncmp(n->op, "_np", 3) != 0 && n->op[0] != 'R') out = shape1(1);
    give(n, 0, &out);
}

void infer_reduce(struct viz_graph *g, struct viz_node *n)
{
    int64_t axes[VIZ_DIMS];
    bool keep = viz_attr(n, "keepdims") != NULL ? viz_attr_true(n, "keepdims") : n->op[0] == 'R';
    size_t count;

    if (!numbers(g, n, "axis", 1, axes, &count)) {
        /* Which axes, is stated at run time only. Those that are kept leave the rank as it is. */
        if (keep && in(g, n, 0)->ndim >= 0) {
            struct viz_shape rank = shape_of_rank(in(g, n, 0)->ndim);
            give(n, 0, &rank);
        }
        return;
    }
    if (count == 0 && viz_attr_true(n, "noop_with_empty_axes")) infer_same(g, n);
    else reduce(g, n, axes, count, keep);
}

void infer_arg_reduce(struct viz_graph *g, struct viz_node *n)
{
    int64_t axes[VIZ_DIMS];
    size_t count = viz_attr_ints(n, "axis", axes);

    if (count == 0 && g->is_onnx) axes[count++] = 0;
    reduce(g, n, axes, count, viz_attr(n, "keepdims") != NULL ? viz_attr_true(n, "keepdims") : n->op[0] == 'A');
}

static struct viz_shape turned(const struct viz_shape *s, bool turn)
{
    struct viz_shape out = *s;

    if (turn && s->ndim >= 2) {
        out.dims[s->ndim - 2] = s->dims[s->ndim - 1];
        out.dims[s->ndim - 1] = s->dims[s->ndim - 2];
    }
    return out;
}

void infer_dot(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape a = turned(in(g, n, 0), viz_attr_true(n, "transpose_a")),
                     b = turned(in(g, n, 1), viz_attr_true(n, "transpose_b"));
    struct viz_shape out = a;

    if (a.ndim < 1 || b.ndim < 1 || a.ndim + b.ndim - 2 > VIZ_DIMS) return;
    out.ndim = a.ndim - 1;
    for (int i = 1; i < b.ndim; i++) out.dims[out.ndim++] = b.dims[i];
    if (out.ndim == 0) out = shape1(1);
    give(n, 0, &out);
}

static void stacked_product(struct viz_node *n, const struct viz_shape *a, const struct viz_shape *b)
{
    struct viz_shape x = *a, y = *b, out;

    if (a->ndim < 2 || b->ndim < 2) return;
    x.ndim -= 2;
    y.ndim -= 2;
    out = broadcast(&x, &y);
    out.dims[out.ndim++] = a->dims[a->ndim - 2];
    out.dims[out.ndim++] = b->dims[b->ndim - 1];
    give(n, 0, &out);
}

void infer_batch_dot(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape a = turned(in(g, n, 0), viz_attr_true(n, "transpose_a")),
                     b = turned(in(g, n, 1), viz_attr_true(n, "transpose_b"));
    stacked_product(n, &a, &b);
}

void infer_matmul(struct viz_graph *g, struct viz_node *n) { stacked_product(n, in(g, n, 0), in(g, n, 1)); }

void infer_take(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *a = in(g, n, 0), *ids = in(g, n, 1);
    struct viz_shape out = {0};
    int at = a->ndim > 0 ? axis_of(viz_attr_int(n, "axis", 0), a->ndim) : -1;

    if (at < 0 || ids->ndim < 0 || a->ndim - 1 + ids->ndim > VIZ_DIMS) return;
    for (int i = 0; i < at; i++) out.dims[out.ndim++] = a->dims[i];
    for (int i = 0; i < ids->ndim; i++) out.dims[out.ndim++] = ids->dims[i];
    for (int i = at + 1; i < a->ndim; i++) out.dims[out.ndim++] = a->dims[i];
    give(n, 0, &out);
}

/* ---- outputs ------------------------------------------------------------------------------------------------- */

void infer_softmax_output(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape label = *in(g, n, 0);

    if (n->op[0] != 'S') { /* `softmax` has no label; its second input are lengths */
        infer_same(g, n);
        return;
    }
    if (label.ndim > 1 && viz_attr_true(n, "multi_output"))
        memmove(&label.dims[1], &label.dims[2], (size_t)(label.ndim - 2) * sizeof label.dims[0]);
    if (label.ndim > 1)
        label.ndim = viz_attr_true(n, "multi_output") || viz_attr_true(n, "preserve_shape") ? label.ndim - 1 : 1;
    suggest(g, n, 1, &label);
    infer_same(g, n);
}

void infer_regression_output(struct viz_graph *g, struct viz_node *n)
{
    struct viz_shape label = *in(g, n, 0);

    if (label.ndim == 2 && label.dims[1] == 1) label.ndim = 1;
    suggest(g, n, 1, &label);
    infer_same(g, n);
}

void infer_cross_entropy(struct viz_graph *g, struct viz_node *n)
{
    const struct viz_shape *data = in(g, n, 0);
    struct viz_shape label = shape1(data->ndim > 0 ? data->dims[0] : VIZ_UNKNOWN), out = shape1(1);

    suggest(g, n, 1, &label);
    give(n, 0, &out);
}

/* ---- the pass ------------------------------------------------------------------------------------------------ */

static void infer_dtype(const struct viz_graph *g, struct viz_node *n)
{
    size_t from = viz_op_is(n, "embedding") ? 1 : 0;
    const char *said = viz_attr(n, "dtype");

    if ((viz_op_is(n, "cast") || n->input_count == 0) && said != NULL)
        n->dtype = viz_dtype_find(said);
    if (viz_op_is(n, "shapearray") || viz_op_is(n, "sizearray")) n->dtype = VIZ_DTYPE_int64;
    if (n->dtype == VIZ_DTYPE_unknown && from < n->input_count) n->dtype = g->nodes[n->inputs[from].node].dtype;
}

/* Each round goes to the end and back. A network that needs more rounds keeps what is not found as
 * unknown. */
enum { ROUNDS_MAX = 16 };

/* In MXNet's files zero stands for unknown, except under numpy's rules, where -1 does. */
static void read_own_shape(const struct viz_graph *g, struct viz_node *v)
{
    int64_t dims[VIZ_DIMS];
    const char *said = viz_attr(v, "__shape__");
    size_t count = viz_attr_ints(v, "__shape__", dims);
    struct viz_shape s = {.ndim = (int)count};

    if (said == NULL || (count == 0 && (!g->is_np_shape || strcmp(said, "()") != 0))) return;
    for (size_t i = 0; i < count; i++)
        s.dims[i] = dims[i] > 0 || (dims[i] == 0 && g->is_np_shape) ? sane(dims[i]) : VIZ_UNKNOWN;
    give(v, 0, &s);
}

/* How much is known: it grows with each round that finds something. */
static uint64_t known_in(const struct viz_graph *g)
{
    uint64_t known = 0;

    for (size_t i = 0; i < g->node_count; i++)
        for (uint32_t k = 0; k < g->nodes[i].output_count; k++) {
            const struct viz_shape *s = &g->nodes[i].shapes[k];
            known += s->ndim != VIZ_UNKNOWN;
            for (int d = 0; d < s->ndim; d++) known += s->dims[d] != VIZ_UNKNOWN;
        }
    return known;
}

static void infer_node(struct viz_graph *g, size_t i)
{
    if (g->nodes[i].op != NULL) g->nodes[i].kind->infer(g, &g->nodes[i]);
}

void viz_infer(struct viz_graph *g)
{
    uint64_t before = 0, known = 0;

    for (size_t i = 0; i < g->node_count; i++) {
        struct viz_node *n = &g->nodes[i];
        if (n->op != NULL) continue;
        read_own_shape(g, n);
        if (n->dtype == VIZ_DTYPE_unknown && viz_attr(n, "__dtype__") != NULL)
            n->dtype = viz_dtype_mxnet(viz_attr_int(n, "__dtype__", -1));
        if (n->dtype == VIZ_DTYPE_unknown && viz_is_param(n) && !g->is_onnx) n->dtype = VIZ_DTYPE_float32; /* MXNet's standard */
    }
    for (unsigned round = 0; round < ROUNDS_MAX; round++, before = known) {
        for (size_t i = 0; i < g->node_count; i++) infer_node(g, i);
        known = known_in(g);
        if (known == before) break;
        for (size_t i = g->node_count; i > 0; i--) infer_node(g, i - 1);
        known = known_in(g);
    }
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op != NULL) infer_dtype(g, &g->nodes[i]);
}

/* As MXNet reads it: zero and () stand for unknown in its old interface. */
static struct viz_shape given(const struct viz_graph *g, const struct viz_shape *shape)
{
    struct viz_shape s = *shape;

    if (!g->is_np_shape && s.ndim == 0) s.ndim = VIZ_UNKNOWN;
    for (int i = 0; i < s.ndim && !g->is_np_shape; i++)
        if (s.dims[i] == 0) s.dims[i] = VIZ_UNKNOWN;
    return s;
}

enum { NAMES_SHOWN = 64 };

enum status viz_shape_give(struct viz_graph *g, const char *variable, const struct viz_shape *shape,
                           struct error *e)
{
    const char *names[NAMES_SHOWN + 1] = {NULL};
    size_t count = 0;

    for (size_t i = 0; i < g->node_count; i++) {
        struct viz_node *n = &g->nodes[i];
        if (n->op != NULL) continue;
        if (strcmp(n->name, variable) == 0 && n->output_count > 0) {
            if (n->key == NULL) n->shapes[0] = given(g, shape);
            return STATUS_OK;
        }
        if (count < NAMES_SHOWN && !viz_is_param(n)) names[count++] = n->name;
    }
    const char *near = nearest_name(bytes_text(variable), names);
    return error_set(e, REASON_BAD_ARGUMENT,
                     near != NULL       ? "shape: no variable is called '%.100s'; did you mean '%.100s'?"
                     : names[0] != NULL ? "shape: no variable is called '%.100s'; there is '%.100s'"
                                        : "shape: no variable is called '%.100s'",
                     variable, near != NULL ? near : names[0]);
}
