#include "web/viz/ops.h"
#include "web/viz/write.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The table of MXNet's print_summary: its columns, its layers, its formula for the number of
 * parameters. The formula knows four kinds of layers and takes the second dimension of what comes
 * in for the width of a layer. Where MXNet would count an unknown width as zero this says "?";
 * where the formula misses what the arrays hold, a line behind the table says so. */

enum { FIELDS = 4 };

struct printer {
    struct buf *out;
    const struct viz_graph *g;
    unsigned width, ends[FIELDS];
    bool shows_shapes;
};

/* Numbers of a layer; not known: < 0. */
enum { NOT_KNOWN = -1 };

static int64_t times(int64_t a, int64_t b)
{
    int64_t v;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &v) ? NOT_KNOWN : v;
}

static int64_t plus(int64_t a, int64_t b)
{
    int64_t v;
    return a < 0 || b < 0 || __builtin_add_overflow(a, b, &v) ? NOT_KNOWN : v;
}

/* Each field follows the text before it, and all of that is cut, or padded, to the end of the
 * column. */
static void print_row(struct printer *p, const char *const fields[FIELDS])
{
    struct buf line = {0};
    size_t used = 0;

    for (int i = 0; i < FIELDS; i++) {
        bool fits = true;
        /* A column that ends before the last one cuts that, too. */
        while (used > p->ends[i] && line.size > 0)
            if ((line.at[--line.size] & 0xC0) != 0x80) used--;
        for (const char *at = fields[i]; *at != '\0' && fits; at++) {
            if ((*at & 0xC0) != 0x80) fits = used++ < p->ends[i];
            if (fits)
                buf_text(&line, (unsigned char)*at < 32 || *at == 127 ? "\uFFFD"
                                                                      : (const char[]){*at, '\0'});
            else used--;
        }
        for (; used < p->ends[i]; used++) buf_text(&line, " ");
    }
    buf_add(p->out, line.at, line.size);
    p->out->failed = p->out->failed || line.failed;
    buf_text(p->out, "\n");
    buf_fini(&line);
}

static void print_rule(struct printer *p, char c)
{
    for (unsigned i = 0; i < p->width; i++) buf_add(p->out, &c, 1);
    buf_text(p->out, "\n");
}

/* ---- the formula ---- */

/* Among inputs MXNet counts operators, and variables only when they are the first node or an
 * output. */
static bool is_shown(const struct printer *p, const struct viz_input *i)
{
    const struct viz_node *from = &p->g->nodes[i->node];
    return from->op != NULL || i->node == 0 || from->head;
}

/* The second dimensions of the inputs together. Operators of several outputs do not count. */
static int64_t width_in(const struct printer *p, const struct viz_node *n)
{
    int64_t sum = 0;

    for (size_t i = 0; i < n->input_count; i++) {
        const struct viz_node *from = &p->g->nodes[n->inputs[i].node];
        if (!is_shown(p, &n->inputs[i]) || viz_outputs_shown(from) != 1) continue;
        bool known = from->output_count > 0 && from->shapes[0].ndim > 1;
        sum = plus(sum, known ? from->shapes[0].dims[1] : NOT_KNOWN);
    }
    return sum;
}

static int64_t count_convolution(const struct viz_node *n, int64_t width)
{
    int64_t filters = viz_attr_int(n, "num_filter", NOT_KNOWN);
    int64_t groups = viz_attr_int(n, "num_group", 1), kernel[VIZ_DIMS];
    size_t dims = viz_attr_ints(n, "kernel", kernel);
    int64_t count = times(width, filters);

    if (groups < 1 || count < 0 || dims == 0) return NOT_KNOWN;
    count /= groups;
    for (size_t i = 0; i < dims; i++) count = times(count, kernel[i]);
    return viz_attr_true(n, "no_bias") ? count : plus(count, filters);
}

static int64_t count_norm(const struct viz_node *n)
{
    bool known = n->output_count > 0 && n->shapes[0].ndim > 1;
    return known ? times(2, n->shapes[0].dims[1]) : NOT_KNOWN;
}

static int64_t count_of(const struct printer *p, const struct viz_node *n)
{
    const char *op = n->op != NULL ? n->op : "";
    int64_t width = width_in(p, n);

    if (strcmp(op, "Convolution") == 0) return count_convolution(n, width);
    if (strcmp(op, "FullyConnected") == 0)
        return times(viz_attr_true(n, "no_bias") ? width : plus(width, 1),
                     viz_attr_int(n, "num_hidden", NOT_KNOWN));
    if (strcmp(op, "BatchNorm") == 0) return count_norm(n);
    if (strcmp(op, "Embedding") == 0)
        return times(viz_attr_int(n, "input_dim", NOT_KNOWN),
                     viz_attr_int(n, "output_dim", NOT_KNOWN));
    return 0;
}

/* What the arrays hold that are learned; < 0: not known. */
static int64_t learned(const struct viz_graph *g)
{
    int64_t sum = 0;
    uint64_t count;

    for (size_t i = 0; i < g->node_count; i++) {
        const struct viz_node *n = &g->nodes[i];
        if (n->role != ROLE_PARAM) continue;
        bool known = n->output_count > 0 && viz_shape_count(&n->shapes[0], &count);
        sum = plus(sum, known ? (int64_t)count : NOT_KNOWN);
    }
    return sum;
}

/* ---- the table ---- */

/* Without the batch; nothing for operators of several outputs, and for all when no shapes were
 * asked for. */
static const char *shape_text(const struct printer *p, const struct viz_node *n,
                              char out[VIZ_SHAPE_TEXT])
{
    struct viz_shape s = n->output_count > 0 ? n->shapes[0] : (struct viz_shape){VIZ_UNKNOWN, {0}};

    if (!p->shows_shapes || viz_outputs_shown(n) != 1) return "";
    if (s.ndim > 0) memmove(&s.dims[0], &s.dims[1], (size_t)--s.ndim * sizeof s.dims[0]);
    return s.ndim == 0 ? "" : viz_shape_text(&s, out);
}

static int64_t print_layer(struct printer *p, const struct viz_node *n)
{
    char shape[VIZ_SHAPE_TEXT], count[24] = "?";
    struct buf name = {0};
    int64_t numbers = count_of(p, n);
    size_t i = 0;

    buf_format(&name, "%s(%s)", n->name, n->op != NULL ? n->op : "null");
    buf_add(&name, "", 1);
    if (numbers >= 0) snprintf(count, sizeof count, "%" PRId64, numbers);
    while (i < n->input_count && !is_shown(p, &n->inputs[i])) i++;
    const char *before = i < n->input_count ? p->g->nodes[n->inputs[i].node].name : "";
    print_row(p, (const char *[]){name.failed ? "" : (const char *)name.at, shape_text(p, n, shape),
                                  count, before});
    for (i++; i < n->input_count; i++)
        if (is_shown(p, &n->inputs[i]))
            print_row(p, (const char *[]){"", "", "", p->g->nodes[n->inputs[i].node].name});
    p->out->failed = p->out->failed || name.failed;
    buf_fini(&name);
    return numbers;
}

static void print_total(struct printer *p, int64_t known, bool lacks)
{
    int64_t all = learned(p->g);

    buf_text(p->out, "Total params: ");
    if (known > 0 || !lacks) buf_format(p->out, "%" PRId64, known);
    if (lacks) buf_text(p->out, known > 0 ? " + ?" : "?");
    buf_text(p->out, "\n");
    print_rule(p, '_');
    if (lacks || all == known) return;
    buf_text(p->out, "MXNet counts Convolution, FullyConnected, BatchNorm and Embedding, by the "
                     "second dimension of their input.\n");
    if (all >= 0)
        buf_format(p->out, "The arrays that are learned hold %" PRId64 " numbers.\n", all);
    else
        buf_text(p->out,
                 "There are arrays whose shape is not known, and which it does not count.\n");
}

static void read_columns(struct printer *p, const struct viz_table *t)
{
    static const double standard[FIELDS] = {.44, .64, .74, 1.};
    const double *ends = t->position_count == FIELDS ? t->positions : standard;

    p->width = t->width > 0 ? t->width : 120;
    for (int i = 0; i < FIELDS; i++) {
        double end = ends[FIELDS - 1] <= 1 ? ends[i] * p->width : ends[i];
        p->ends[i] = end > 0 && end <= 1000 ? (unsigned)end : 0;
    }
}

void viz_write_print_summary(struct buf *out, const struct viz_graph *g, const struct viz_table *t,
                             bool shows_shapes)
{
    static const char *const titles[FIELDS] = {"Layer (type)", "Output Shape", "Param #",
                                               "Previous Layer"};
    struct printer p = {.out = out, .g = g, .shows_shapes = shows_shapes};
    int64_t total = 0;
    bool lacks = false;

    read_columns(&p, t);
    print_rule(&p, '_');
    print_row(&p, titles);
    print_rule(&p, '=');
    for (size_t i = 0; i < g->node_count; i++) {
        if (g->nodes[i].op == NULL && i > 0) continue;
        int64_t numbers = print_layer(&p, &g->nodes[i]);
        int64_t sum = plus(total, numbers);
        lacks = lacks || sum < 0;
        total = sum < 0 ? total : sum;
        print_rule(&p, i + 1 == g->node_count ? '=' : '_');
    }
    print_total(&p, total, lacks);
}
