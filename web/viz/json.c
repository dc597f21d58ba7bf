#include "web/viz/write.h"

#include <math.h>
#include <string.h>

static void add_member(struct buf *out, const char *name, const char *text)
{
    buf_format(out, ",\"%s\":", name);
    viz_add_json_text(out, text);
}

static void add_shape(struct buf *out, const struct viz_shape *s)
{
    if (s->ndim == VIZ_UNKNOWN) {
        buf_text(out, "null");
        return;
    }
    buf_text(out, "[");
    for (int i = 0; i < s->ndim; i++) {
        if (i > 0) buf_text(out, ",");
        if (s->dims[i] >= 0) buf_format(out, "%lld", (long long)s->dims[i]);
        else buf_text(out, s->dims[i] == VIZ_BATCH ? "\"N\"" : "null");
    }
    buf_text(out, "]");
}

static void add_quantum(struct buf *out, int8_t q)
{
    if (q >= 0) buf_format(out, ",\"q\":%d", q);
}

static void add_measures(struct buf *out, const struct viz_node *n)
{
    static const char *const names[] = {
#define MEASURE_NAME(name, about) #name,
        VIZ_MEASURES(MEASURE_NAME)
#undef MEASURE_NAME
    };
    if (n->key == NULL) return;
    if (n->key->updater != NULL) add_member(out, "updater", n->key->updater);
    for (int i = 0; i < MEASURE_COUNT; i++)
        if (isfinite(n->key->measures[i])) buf_format(out, ",\"%s\":%.9g", names[i], n->key->measures[i]);
}

static void add_param(struct buf *out, const struct viz_picture *p, uint32_t at)
{
    const struct viz_node *n = &p->graph->nodes[at];

    buf_text(out, "{\"name\":");
    viz_add_json_text(out, n->name);
    add_member(out, "dtype", viz_dtype_name(n->dtype));
    buf_text(out, n->key != NULL ? ",\"key\":true,\"shape\":" : ",\"key\":false,\"shape\":");
    add_shape(out, n->output_count > 0 ? &n->shapes[0] : &(struct viz_shape){VIZ_UNKNOWN, {0}});
    add_quantum(out, p->quantum_of[at]);
    add_measures(out, n);
    buf_text(out, "}");
}

static void add_params(struct buf *out, const struct viz_picture *p, uint32_t box)
{
    const char *sep = "";

    buf_text(out, ",\"parameters\":[");
    for (uint32_t i = p->boxes[box].first; i <= p->boxes[box].last; i++) {
        const struct viz_node *n = &p->graph->nodes[i];
        for (size_t k = 0; p->box_of[i] == box && k < n->input_count; k++) {
            if (p->box_of[n->inputs[k].node] != VIZ_NO_BOX) continue;
            buf_text(out, sep);
            add_param(out, p, n->inputs[k].node);
            sep = ",";
        }
    }
    buf_text(out, "]");
}

static void add_box(struct buf *out, const struct viz_picture *p, uint32_t i)
{
    static const char *const roles[] = {"", "operator", "data", "label", "parameter", "statistic"};
    const struct viz_box *b = &p->boxes[i];
    const struct viz_node *n = &p->graph->nodes[b->first];
    struct layout_point at = viz_turn(p, (struct layout_point){p->layout.boxes[i].x, p->layout.boxes[i].y});

    buf_format(out, "{\"id\":\"n%u\",\"name\":", b->first);
    viz_add_json_text(out, n->name);
    if (b->is_group) add_member(out, "last", p->graph->nodes[b->last].name);
    add_member(out, "role", b->is_group ? "block" : roles[n->role]);
    if (n->op != NULL && !b->is_group) add_member(out, "op", n->op);
    if (b->copies > 1) buf_format(out, ",\"copies\":%u", b->copies);
    buf_format(out, ",\"x\":%.1f,\"y\":%.1f,\"width\":%.1f,\"height\":%.1f", at.x, at.y, b->width, b->height);
    add_quantum(out, b->quantum);
    const struct viz_node *last = &p->graph->nodes[b->last];
    buf_text(out, ",\"shape\":");
    add_shape(out, last->output_count > 0 ? &last->shapes[0] : &(struct viz_shape){VIZ_UNKNOWN, {0}});
    if (n->op == NULL && n->key != NULL) add_measures(out, n);
    add_params(out, p, i);
    buf_text(out, "}");
}

static void add_arrow(struct buf *out, const struct viz_picture *p, size_t i)
{
    const struct layout_arrow *a = &p->layout.arrows[i];

    buf_format(out, "{\"from\":\"n%u\",\"to\":\"n%u\",\"points\":[", p->boxes[a->from].first,
               p->boxes[a->to].first);
    for (uint32_t k = 0; k < a->point_count; k++) {
        struct layout_point at = viz_turn(p, p->layout.points[a->point_first + k]);
        buf_format(out, "%s[%.1f,%.1f]", k > 0 ? "," : "", at.x, at.y);
    }
    buf_text(out, "]}");
}

void viz_write_json(struct buf *out, const struct viz_picture *p, const char *title)
{
    struct layout_point size = viz_turn(
        p, (struct layout_point){p->layout.width, p->look.direction == DIRECTION_UP ? 0 : p->layout.height});

    buf_text(out, "{\"title\":");
    viz_add_json_text(out, title);
    buf_format(out, ",\"width\":%.1f,\"height\":%.1f,\"color\":\"%s\",\"legend\":[", size.x, size.y,
               viz_color_name(p->look.color));
    for (int i = 0; i < QUANTA; i++) {
        if (i > 0) buf_text(out, ",");
        if (p->legend.texts[i] == NULL) buf_text(out, "null");
        else viz_add_json_text(out, p->legend.texts[i]);
    }
    buf_text(out, "],\n\"nodes\":[");
    for (uint32_t i = 0; i < p->layout.box_count; i++) {
        buf_text(out, i > 0 ? ",\n" : "\n");
        add_box(out, p, i);
    }
    buf_text(out, "],\n\"edges\":[");
    for (size_t i = 0; i < p->layout.arrow_count; i++) {
        buf_text(out, i > 0 ? ",\n" : "\n");
        add_arrow(out, p, i);
    }
    buf_text(out, "]}\n");
}
