/* What the rules of shape.c and shape_ops.c share: arithmetic over sizes that may be unknown, and
 * reading and refining the shapes of a node. Private to these two files.
 *
 * Shapes are only ever refined: an unknown rank or dimension becomes known, what is known stays. So
 * a rule may run again and again, and the order in which rules run changes nothing. A rule must
 * give "unknown" for whatever rests on something unknown. */
#ifndef WEB_VIZ_INFER_H
#define WEB_VIZ_INFER_H

#include "web/viz/graph.h"

#define DIM_MAX ((int64_t)1 << 48)

static const struct viz_shape nothing_known = {.ndim = VIZ_UNKNOWN};

static inline int64_t dim_times(int64_t a, int64_t b)
{
    int64_t v;

    if (a == 1) return b;
    if (b == 1) return a;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &v) || v > DIM_MAX ? VIZ_UNKNOWN : v;
}

static inline int64_t dim_plus(int64_t a, int64_t b)
{
    return a < 0 || b < 0 || a + b > DIM_MAX ? VIZ_UNKNOWN : a + b;
}

static inline int64_t dim_minus(int64_t a, int64_t b)
{
    return a < 0 || b < 0 || a < b ? VIZ_UNKNOWN : a - b;
}

/* Only if it divides: a rest means that something else is wrong. */
static inline int64_t dim_by(int64_t a, int64_t b)
{
    return a < 0 || b < 1 || a % b != 0 ? VIZ_UNKNOWN : a / b;
}

static inline int64_t dims_product(const struct viz_shape *s, int from)
{
    int64_t v = 1;
    for (int i = from; i < s->ndim; i++) v = dim_times(v, s->dims[i]);
    return v;
}

static inline int64_t sane(int64_t v) { return v >= 0 && v <= DIM_MAX ? v : VIZ_UNKNOWN; }

/* A size that an attribute states. Zero is no size of a layer: it stands for "not known" there,
 * too. */
static inline int64_t attr_size(const struct viz_node *n, const char *name)
{
    int64_t v = viz_attr_int(n, name, VIZ_UNKNOWN);
    return v > 0 ? sane(v) : VIZ_UNKNOWN;
}

static inline struct viz_shape shape1(int64_t a) { return (struct viz_shape){1, {a}}; }
static inline struct viz_shape shape2(int64_t a, int64_t b)
{
    return (struct viz_shape){2, {a, b}};
}

/* So many dimensions, none of which is known. */
static inline struct viz_shape shape_of_rank(int ndim)
{
    struct viz_shape s = {.ndim = ndim};

    for (int i = 0; i < ndim; i++) s.dims[i] = VIZ_UNKNOWN;
    return s;
}

/* An axis counted from the end becomes one from the front; -1 when there is no such. */
static inline int axis_of(int64_t axis, int ndim)
{
    if (axis < 0) axis += ndim;
    return axis >= 0 && axis < ndim ? (int)axis : -1;
}

static inline const struct viz_shape *in(const struct viz_graph *g, const struct viz_node *n,
                                         size_t i)
{
    if (i >= n->input_count) return &nothing_known;
    const struct viz_node *from = &g->nodes[n->inputs[i].node];
    return n->inputs[i].output < from->output_count ? &from->shapes[n->inputs[i].output]
                                                    : &nothing_known;
}

static inline const struct viz_shape *out_of(const struct viz_node *n, size_t output)
{
    return output < n->output_count ? &n->shapes[output] : &nothing_known;
}

/* Fills in what is unknown of a shape. A shape of another rank says nothing. */
static inline void refine(struct viz_shape *to, const struct viz_shape *with)
{
    if (to->ndim == VIZ_UNKNOWN) *to = *with;
    for (int i = 0; i < to->ndim && to->ndim == with->ndim; i++)
        if (to->dims[i] == VIZ_UNKNOWN) to->dims[i] = with->dims[i];
}

static inline void give(struct viz_node *n, size_t output, const struct viz_shape *s)
{
    if (output < n->output_count) refine(&n->shapes[output], s);
}

/* What an input must be like: of a variable, or of the operator before. */
static inline void suggest(struct viz_graph *g, const struct viz_node *n, size_t input,
                           const struct viz_shape *s)
{
    if (input < n->input_count) give(&g->nodes[n->inputs[input].node], n->inputs[input].output, s);
}

/* Drops dimension `at`. */
static inline void shape_drop(struct viz_shape *s, int at)
{
    for (int i = at; i + 1 < s->ndim; i++) s->dims[i] = s->dims[i + 1];
    s->ndim--;
}

#endif
