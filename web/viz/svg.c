#include "web/viz/write.h"

#include "web/viz/font.h"
#include "web/viz/viz.h"

#include <math.h>
#include <string.h>

enum { MARGIN = 16, LEGEND_HEIGHT = 46, SWATCH = 54 };

/* A family has one colour: its border is that, its inside a tint, so the same rules do on light and on dark
 * ground. What is solid (colours of a scale, MXNet's) comes behind the rules for dark ground, as it wins over
 * them. */
const char viz_svg_style[] =
    ".graph{font-family:'Liberation Sans',Arial,Helvetica,sans-serif;font-size:11px}.graph .ground{fill:#fff}"
    ".graph text{text-anchor:middle;fill:#22272d}.graph .t{font-size:13px;font-weight:bold}"
    ".graph .n{fill:#5b6570}.graph .s{text-anchor:start}.graph .e{fill:none;stroke:#7a8590;stroke-width:1.3}"
    ".graph .head{fill:#7a8590;stroke:none}"
    ".graph .l{fill:#5b6570;stroke:#fff;stroke-width:3px;paint-order:stroke}.graph .b{color:#7a8590}"
    ".graph .b>rect{fill:currentColor;fill-opacity:.15;stroke:currentColor;stroke-width:1.2}"
    ".graph .p>rect{fill:currentColor;fill-opacity:.13}"
    ".graph.colored .p>rect{stroke:currentColor;stroke-opacity:.6}"
    "@media (prefers-color-scheme:dark){.graph .ground{fill:#14171a}.graph text{fill:#e3e7ea}"
    ".graph .n{fill:#a7b0b8}.graph .l{fill:#c3cad0;stroke:#14171a}.graph .e{stroke:#8d98a3}"
    ".graph .head{fill:#8d98a3}.graph .b>rect{fill-opacity:.24}}.graph .data{color:#2f8f6b}"
    ".graph .label{color:#8a7a1e}.graph .param{color:#6b7680}.graph .layer{color:#cf5a43}"
    ".graph .act{color:#a98f14}.graph .norm{color:#6f63b5}.graph .pool{color:#2f7fb0}.graph .shape{color:#c77e17}"
    ".graph .softmax,.graph .loss{color:#6a9a1c}.graph .math{color:#a5568f}.graph .block{color:#54707f}"
    ".graph.colored .b{color:#9aa3ac}.graph .q0>rect{fill:#e6f0fa}.graph .q1>rect{fill:#cbdff1}"
    ".graph .q2>rect{fill:#a6cbe6}.graph .q3>rect{fill:#79b2da}.graph .q4>rect{fill:#3f86bf}"
    ".graph .q5>rect{fill:#1c609f}.graph .q6>rect{fill:#0a3a75}.graph.categories .q0>rect{fill:#9fd8cc}"
    ".graph.categories .q1>rect{fill:#f6b6a5}.graph.categories .q2>rect{fill:#c9c3ea}"
    ".graph.categories .q3>rect{fill:#f4dc8f}.graph.categories .q4>rect{fill:#a9cdee}"
    ".graph.categories .q5>rect{fill:#cde39b}.graph.categories .q6>rect{fill:#e9bcd9}.graph .q0>rect,"
    ".graph .q1>rect,.graph .q2>rect,.graph .q3>rect,.graph .q4>rect,.graph .q5>rect,"
    ".graph .q6>rect{fill-opacity:1}.graph .q0>text,.graph .q1>text,.graph .q2>text,.graph .q3>text,"
    ".graph.categories .q4>text,.graph.categories .q5>text,.graph.categories .q6>text{fill:#14181c}"
    ".graph .q4>text,.graph .q5>text,.graph .q6>text{fill:#fff}.graph .m0>rect{fill:#8dd3c7}"
    ".graph .m1>rect{fill:#fb8072}.graph .m2>rect{fill:#ffffb3}.graph .m3>rect{fill:#bebada}"
    ".graph .m4>rect{fill:#80b1d3}.graph .m5>rect{fill:#fdb462}.graph .m6>rect{fill:#b3de69}"
    ".graph .m7>rect{fill:#fccde5}.graph.mxnet .b{color:#000}.graph.mxnet .b>rect{fill-opacity:1}"
    ".graph.mxnet .b text{fill:#000}";

static void add_number(struct buf *out, double v)
{
    char text[24];
    size_t at = sizeof text;
    int64_t tenths = (int64_t)llround(fmax(-1e12, fmin(1e12, v)) * 10);
    bool negative = tenths < 0;

    if (negative) tenths = -tenths;
    if (tenths % 10 != 0) {
        text[--at] = (char)('0' + tenths % 10);
        text[--at] = '.';
    }
    tenths /= 10;
    do text[--at] = (char)('0' + tenths % 10);
    while ((tenths /= 10) > 0);
    if (negative) text[--at] = '-';
    buf_add(out, text + at, sizeof text - at);
}

static void add_attr(struct buf *out, const char *name, double v)
{
    buf_text(out, " ");
    buf_text(out, name);
    buf_text(out, "=\"");
    add_number(out, v);
    buf_text(out, "\"");
}

static void add_point(struct buf *out, struct layout_point at)
{
    add_number(out, at.x);
    buf_text(out, " ");
    add_number(out, at.y);
}

/* A text takes the width that was measured, whatever font the reader has, so it stays in its box. */
static void add_length(struct buf *out, const char *text, double size, bool bold, double most)
{
    double width = fmin(viz_text_width(text, size, bold), most);

    if (width < 0.1) return;
    add_attr(out, "textLength", width);
    buf_text(out, " lengthAdjust=\"spacingAndGlyphs\"");
}

/* ---- arrows -------------------------------------------------------------------------------------------------- */

static struct layout_point at_margin(const struct viz_picture *p, double x, double y)
{
    struct layout_point at = viz_turn(p, (struct layout_point){x, y});
    return (struct layout_point){at.x + MARGIN, at.y + MARGIN};
}

/* Straight pieces that follow each other are one. */
static void write_path(struct buf *out, const struct viz_picture *p, const struct layout_arrow *a)
{
    const struct layout_point *points = &p->layout.points[a->point_first];
    uint32_t i = 1;

    buf_text(out, "<path d=\"M");
    add_point(out, at_margin(p, points[0].x, points[0].y));
    while (i < a->point_count) {
        struct layout_point from = points[i - 1], to = points[i];
        if (fabs(from.x - to.x) < 0.05) {
            while (i + 1 < a->point_count && fabs(points[i + 1].x - from.x) < 0.05) i++;
            if (points[i].y > from.y + 0.05) {
                buf_text(out, "L");
                add_point(out, at_margin(p, points[i].x, points[i].y));
            }
        } else {
            double middle = (from.y + to.y) / 2;
            buf_text(out, "C");
            add_point(out, at_margin(p, from.x, middle));
            buf_text(out, " ");
            add_point(out, at_margin(p, to.x, middle));
            buf_text(out, " ");
            add_point(out, at_margin(p, to.x, to.y));
        }
        i++;
    }
    buf_text(out, "\"/>\n");
}

static void write_arrows(struct buf *out, const struct viz_picture *p)
{
    buf_text(out, "<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7.4\" refY=\"4\" markerWidth=\"7\" "
                  "markerHeight=\"7\" "
                  "orient=\"auto\"><path class=\"head\" d=\"M0 .6L8 4 0 7.4z\"/></marker></defs>\n"
                  "<g class=\"e\" marker-end=\"url(#head)\">\n");
    for (size_t i = 0; i < p->layout.arrow_count; i++) write_path(out, p, &p->layout.arrows[i]);
    buf_text(out, "</g>\n");
    for (size_t i = 0; i < p->layout.arrow_count; i++) {
        const struct layout_arrow *a = &p->layout.arrows[i];
        const struct layout_point *end = &p->layout.points[a->point_first + a->point_count - 1];
        if (p->arrows[i].label == NULL || *p->arrows[i].label == '\0') continue;
        struct layout_point at = at_margin(p, (end[-1].x + end[-2].x) / 2, (end[-1].y + end[-2].y) / 2);
        buf_text(out, "<text class=\"l\"");
        add_attr(out, "x", at.x);
        add_attr(out, "y", at.y + 4);
        add_length(out, p->arrows[i].label, SMALL_SIZE, false, INFINITY);
        buf_text(out, ">");
        viz_add_xml(out, p->arrows[i].label);
        buf_text(out, "</text>\n");
    }
}

/* ---- boxes --------------------------------------------------------------------------------------------------- */

enum { TOOLTIP_ATTRS = 12 };

static void write_tooltip(struct buf *out, const struct viz_picture *p, const struct viz_box *b)
{
    const struct viz_node *n = &p->graph->nodes[b->first];

    buf_text(out, "<title>");
    viz_add_xml(out, n->name);
    if (b->is_group) {
        buf_text(out, " \u2026 ");
        viz_add_xml(out, p->graph->nodes[b->last].name);
    } else if (n->op != NULL && !viz_is_group_of_keys(n)) {
        buf_text(out, "&#10;");
        viz_add_xml(out, n->op);
    }
    for (uint32_t i = 0; !b->is_group && i < n->attr_count && i < TOOLTIP_ATTRS; i++) {
        struct buf value = {0};
        viz_text_fit(&value, n->attrs[i].value, 1, false, 40);
        buf_add(&value, "", 1);
        buf_text(out, "&#10;");
        viz_add_xml(out, n->attrs[i].name);
        buf_text(out, " = ");
        viz_add_xml(out, value.failed ? "" : (const char *)value.at);
        if (value.failed) out->failed = true;
        buf_fini(&value);
    }
    buf_text(out, "</title>");
}

static const char *mxnet_class(const struct viz_node *n)
{
    static const struct { const char *op, *name; } classes[] = {
        {"Convolution", "m1"}, {"FullyConnected", "m1"}, {"Activation", "m2"}, {"LeakyReLU", "m2"},
        {"BatchNorm", "m3"},
        {"Pooling", "m4"}, {"Concat", "m5"}, {"Flatten", "m5"}, {"Reshape", "m5"}, {"Softmax", "m6"},
    };
    for (size_t i = 0; n->op != NULL && i < sizeof classes / sizeof classes[0]; i++)
        if (strcmp(classes[i].op, n->op) == 0) return classes[i].name;
    return n->op == NULL ? "m0" : "m7";
}

static const char *box_class(const struct viz_picture *p, const struct viz_box *b)
{
    const struct viz_node *n = &p->graph->nodes[b->first];

    if (p->look.view == VIEW_mxnet) return mxnet_class(n);
    if (b->is_group || n->op != NULL) return viz_family_names[b->family];
    return n->role == ROLE_LABEL ? "label" : viz_is_param(n) ? "param" : "data";
}

static void write_quantum(struct buf *out, int8_t q)
{
    char text[] = " q0";

    if (q < 0) return;
    text[2] = (char)('0' + q);
    buf_text(out, text);
}

static void write_key(struct buf *out, const struct viz_node *n)
{
    if (n->key == NULL) return;
    buf_text(out, " data-key=\"");
    viz_add_xml(out, n->name);
    buf_text(out, "\"");
}

static void write_chip(struct buf *out, const struct viz_picture *p, const struct viz_line *l, double width,
                       double y)
{
    double w = viz_text_room(l->text, SMALL_SIZE, false, CHIP_PAD);
    const struct viz_node *n = &p->graph->nodes[l->node];

    buf_text(out, "<g class=\"p");
    write_quantum(out, p->quantum_of[l->node]);
    buf_text(out, "\"");
    write_key(out, n);
    buf_text(out, "><title>");
    viz_add_xml(out, n->name);
    buf_text(out, "</title><rect");
    add_attr(out, "x", (width - w) / 2);
    add_attr(out, "y", y + 1);
    add_attr(out, "width", w);
    add_attr(out, "height", LINE_HEIGHT);
    buf_text(out, " rx=\"3\"/><text");
    add_attr(out, "x", width / 2);
    add_attr(out, "y", y + 13);
    add_length(out, l->text, SMALL_SIZE, false, w - CHIP_PAD);
    buf_text(out, ">");
    viz_add_xml(out, l->text);
    buf_text(out, "</text></g>");
}

static void write_lines(struct buf *out, const struct viz_picture *p, const struct viz_box *b)
{
    static const char *const classes[] = {
        [LINE_TITLE] = "t", [LINE_NAME] = "n", [LINE_DETAIL] = "d", [LINE_SHAPE] = "n"};
    double y = BOX_PAD_Y;

    if (p->look.view == VIEW_mxnet) y = (b->height - (LINE_HEIGHT - 1) * b->line_count) / 2;
    for (uint32_t i = 0; i < b->line_count; i++) {
        const struct viz_line *l = &p->lines[b->line_first + i];
        if (l->kind == LINE_CHIP) {
            write_chip(out, p, l, b->width, y);
            y += LINE_HEIGHT + 3;
            continue;
        }
        buf_text(out, "<text class=\"");
        buf_text(out, classes[l->kind]);
        buf_text(out, "\"");
        add_attr(out, "x", b->width / 2);
        add_attr(out, "y", y + 12);
        add_length(out, l->text, l->kind == LINE_TITLE ? FONT_SIZE : SMALL_SIZE, l->kind == LINE_TITLE,
                   b->width - BOX_PAD);
        buf_text(out, ">");
        viz_add_xml(out, l->text);
        buf_text(out, "</text>");
        y += l->kind == LINE_TITLE ? LINE_HEIGHT + 1 : LINE_HEIGHT - 1;
    }
}

static void write_rect(struct buf *out, const struct viz_box *b, double shift, double round)
{
    buf_text(out, "<rect");
    if (shift > 0) {
        add_attr(out, "x", shift);
        add_attr(out, "y", -shift);
    }
    add_attr(out, "width", b->width);
    add_attr(out, "height", b->height);
    add_attr(out, "rx", round);
    buf_text(out, "/>");
}

static void write_box(struct buf *out, const struct viz_picture *p, uint32_t i)
{
    const struct viz_box *b = &p->boxes[i];
    const struct viz_node *n = &p->graph->nodes[b->first];
    struct layout_point at = at_margin(p, p->layout.boxes[i].x, p->layout.boxes[i].y);

    buf_format(out, "<g id=\"n%u\" class=\"b %s", b->first, box_class(p, b));
    if (b->is_group) buf_text(out, " group");
    write_quantum(out, b->quantum);
    buf_text(out, "\" data-name=\"");
    viz_add_xml(out, n->name);
    buf_text(out, "\"");
    if (n->op != NULL && !b->is_group) {
        buf_text(out, " data-op=\"");
        viz_add_xml(out, n->op);
        buf_text(out, "\"");
    }
    write_key(out, n);
    buf_text(out, " transform=\"translate(");
    add_point(out, (struct layout_point){at.x - b->width / 2, at.y - b->height / 2});
    buf_text(out, ")\">");
    write_tooltip(out, p, b);
    if (b->copies > 1) write_rect(out, b, 4, 5);
    write_rect(out, b, 0, n->op == NULL && !b->is_group ? fmin(b->height / 2, 15) : 5);
    write_lines(out, p, b);
    buf_text(out, "</g>\n");
}

/* ---- the whole ----------------------------------------------------------------------------------------------- */

static void write_legend(struct buf *out, const struct viz_picture *p, double y)
{
    int count = 0;

    if (p->legend.title == NULL) return;
    buf_format(out, "<g class=\"legend\" transform=\"translate(%d ", MARGIN);
    add_number(out, y);
    buf_text(out, ")\">");
    for (int i = 0; i < QUANTA; i++) {
        if (p->legend.texts[i] == NULL) continue;
        buf_format(out,
                   "<g class=\"b q%d\" transform=\"translate(%d 0)\"><rect width=\"%d\" height=\"18\"/><text "
                   "x=\"%d\" y=\"13\"",
                   i, count++ * SWATCH, SWATCH, SWATCH / 2);
        struct buf fit = {0};
        viz_text_fit(&fit, p->legend.texts[i], SMALL_SIZE, false, SWATCH - 6);
        buf_add(&fit, "", 1);
        add_length(out, fit.failed ? "" : (const char *)fit.at, SMALL_SIZE, false, SWATCH - 6);
        buf_text(out, ">");
        viz_add_xml(out, fit.failed ? "" : (const char *)fit.at);
        buf_fini(&fit);
        buf_text(out, "</text></g>");
    }
    buf_format(out, "<text class=\"n s\" x=\"0\" y=\"%d\">%s%s</text></g>\n", count > 0 ? 34 : 13, p->legend.title,
               count > 0 ? "" : ": not known of any parameter");
}

void viz_write_svg(struct buf *out, const struct viz_picture *p, const char *title, bool with_style)
{
    struct layout_point size = viz_turn(
        p, (struct layout_point){p->layout.width, p->look.direction == DIRECTION_UP ? 0 : p->layout.height});
    bool legend = p->legend.title != NULL;
    double w = size.x + 2 * MARGIN, h = size.y + 2 * MARGIN;

    if (legend) w = fmax(w, QUANTA * SWATCH + 2 * MARGIN);
    buf_text(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"graph");
    if (p->look.view == VIEW_mxnet) buf_text(out, " mxnet");
    if (legend) buf_text(out, p->look.color == COLOR_UPDATER ? " colored categories" : " colored");
    buf_text(out, "\" role=\"img\"");
    add_attr(out, "width", w);
    add_attr(out, "height", h + (legend ? LEGEND_HEIGHT : 0));
    buf_text(out, " viewBox=\"0 0 ");
    add_number(out, w);
    buf_text(out, " ");
    add_number(out, h + (legend ? LEGEND_HEIGHT : 0));
    buf_text(out, "\">\n<title>");
    viz_add_xml(out, title);
    buf_text(out, "</title>\n");
    if (with_style) buf_format(out, "<style>%s</style>\n", viz_svg_style);
    buf_text(out, "<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
    write_arrows(out, p);
    for (uint32_t i = 0; i < p->layout.box_count; i++) write_box(out, p, i);
    write_legend(out, p, h - MARGIN / 2);
    buf_text(out, "</svg>\n");
}
