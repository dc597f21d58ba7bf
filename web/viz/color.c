#include "web/viz/view.h"
#include "web/viz/viz.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct { const char *name, *about; } colors[] = {
    {"op", NULL}, {"size", "bytes of parameters"}, {"updater", "updater"},
#define COLOR_ROW(name, about) {#name, about},
    VIZ_MEASURES(COLOR_ROW)
#undef COLOR_ROW
};
enum { COLOR_COUNT = sizeof colors / sizeof colors[0] };

int viz_color_find(const char *name)
{
    for (int i = 0; i < COLOR_COUNT; i++)
        if (strcmp(colors[i].name, name) == 0) return i;
    return -1;
}

/* A version is told without measuring. */
bool viz_is_measured(const char *color)
{
    return color != NULL && viz_color_find(color) >= COLOR_MEASURE && strcmp(color, "version") != 0;
}

const char *viz_color_name(int color) { return colors[color].name; }

struct range {
    double low, high;
    bool any, is_log;
};

static double value_of(const struct viz_picture *p, const struct viz_node *n)
{
    uint64_t count, bytes;

    if (p->look.color == COLOR_SIZE)
        return n->output_count > 0 && viz_shape_count(&n->shapes[0], &count) &&
                       viz_dtype_bytes(n->dtype, count, &bytes)
                   ? (double)bytes
                   : NAN;
    return n->key != NULL ? n->key->measures[p->look.color - COLOR_MEASURE] : NAN;
}

static struct range range_of(const struct viz_picture *p)
{
    struct range r = {INFINITY, -INFINITY, false, false};

    for (size_t i = 0; i < p->graph->node_count; i++) {
        double v = viz_is_param(&p->graph->nodes[i]) ? value_of(p, &p->graph->nodes[i]) : NAN;
        if (!isfinite(v)) continue;
        r.low = fmin(r.low, v);
        r.high = fmax(r.high, v);
        r.any = true;
    }
    r.is_log = r.any && r.low > 0 && r.high / r.low > 100; /* norms spread over decades */
    return r;
}

static double scaled(const struct range *r, double v) { return r->is_log ? log(v) : v; }

static int8_t quantum(const struct range *r, double v)
{
    if (!isfinite(v)) return QUANTUM_NONE;
    double low = scaled(r, r->low), high = scaled(r, r->high);
    return high > low ? (int8_t)fmin(QUANTA - 1, QUANTA * (scaled(r, v) - low) / (high - low)) : QUANTA / 2;
}

static const char *legend_text(struct viz_picture *p, double v)
{
    char text[32];

    if (fabs(v) >= 1e4 && fabs(v) < 1e15) {
        int step = fabs(v) < 1e6 ? 0 : fabs(v) < 1e9 ? 1 : fabs(v) < 1e12 ? 2 : 3;
        snprintf(text, sizeof text, "%.3g%c", v / pow(1000, step + 1), "kMGT"[step]);
    } else {
        snprintf(text, sizeof text, v == floor(v) ? "%.0f" : "%.3g", v);
    }
    return arena_text(&p->arena, text, strlen(text));
}

/* The lower end of each colour, and at the last one the upper end. */
static enum status write_legend(struct viz_picture *p, const struct range *r, struct error *e)
{
    double low = scaled(r, r->low), high = scaled(r, r->high);

    for (int i = 0; i < QUANTA && r->any; i++) {
        double v = i + 1 == QUANTA ? r->high
                   : r->is_log     ? exp(low + (high - low) * i / QUANTA)
                                   : low + (high - low) * i / QUANTA;
        if (r->low == r->high && i != QUANTA / 2) continue;
        p->legend.texts[i] = legend_text(p, v);
        if (p->legend.texts[i] == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the picture");
    }
    return STATUS_OK;
}

/* Updaters are names: the first seven get a colour each, in the order in which they are met. */
static int8_t updater_quantum(struct viz_picture *p, const struct viz_node *n)
{
    const char *name = n->key != NULL ? n->key->updater : NULL;

    for (int8_t i = 0; name != NULL && i < QUANTA; i++) {
        if (p->legend.texts[i] == NULL) p->legend.texts[i] = name;
        if (strcmp(p->legend.texts[i], name) == 0) return i;
    }
    return QUANTUM_NONE;
}

static void color_boxes(struct viz_picture *p)
{
    const struct viz_graph *g = p->graph;

    for (uint32_t b = 0; b < p->layout.box_count; b++)
        for (uint32_t i = p->boxes[b].first; i <= p->boxes[b].last; i++) {
            if (p->box_of[i] != b) continue;
            if (p->quantum_of[i] > p->boxes[b].quantum) p->boxes[b].quantum = p->quantum_of[i];
            for (size_t k = 0; k < g->nodes[i].input_count; k++) {
                uint32_t from = g->nodes[i].inputs[k].node;
                if (p->box_of[from] == VIZ_NO_BOX && p->quantum_of[from] > p->boxes[b].quantum)
                    p->boxes[b].quantum = p->quantum_of[from];
            }
        }
}

enum status viz_picture_color(struct viz_picture *p, struct error *e)
{
    enum status s = STATUS_OK;

    p->quantum_of = ARENA_NEW(&p->arena, p->graph->node_count, int8_t);
    if (p->quantum_of == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the picture");
    memset(p->quantum_of, QUANTUM_NONE, p->graph->node_count);
    p->legend.title = colors[p->look.color].about;
    if (p->look.color == COLOR_OP) return STATUS_OK;
    struct range r = p->look.color == COLOR_UPDATER ? (struct range){0} : range_of(p);
    for (size_t i = 0; i < p->graph->node_count; i++) {
        const struct viz_node *n = &p->graph->nodes[i];
        if (!viz_is_param(n)) continue;
        p->quantum_of[i] = p->look.color == COLOR_UPDATER ? updater_quantum(p, n) : quantum(&r, value_of(p, n));
    }
    if (p->look.color != COLOR_UPDATER) s = write_legend(p, &r, e);
    color_boxes(p);
    return s;
}
