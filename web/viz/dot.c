#include "web/viz/write.h"

#include <string.h>

/* A quoted string of DOT; a newline becomes the one of labels. Other control characters have no place in it. */
static void add_quoted(struct buf *out, const char *text)
{
    buf_text(out, "\"");
    for (; *text != '\0'; text++)
        if (*text == '"' || *text == '\\') buf_format(out, "\\%c", *text);
        else if (*text == '\n') buf_text(out, "\\n");
        else if ((unsigned char)*text < 32 || *text == 127) buf_text(out, "\uFFFD");
        else buf_add(out, text, 1);
    buf_text(out, "\"");
}

static const char *fill_color(const struct viz_picture *p, const struct viz_box *b)
{
    static const char *const families[FAMILY_COUNT] = {
        [FAMILY_OTHER] = "#eef0f1",      [FAMILY_DATA] = "#dcefe8",    [FAMILY_LAYER] = "#f7e2dd",
        [FAMILY_ACTIVATION] = "#f2eed6", [FAMILY_NORM] = "#e6e4f3",    [FAMILY_POOL] = "#dcebf3",
        [FAMILY_SHAPE] = "#f6ead7",      [FAMILY_SOFTMAX] = "#e6efd8", [FAMILY_LOSS] = "#e6efd8",
        [FAMILY_MATH] = "#f0e3ed",       [FAMILY_BLOCK] = "#e2e8eb",
    };
    static const struct { const char *op, *color; } mxnet[] = {
        {"Convolution", "#fb8072"}, {"FullyConnected", "#fb8072"}, {"Activation", "#ffffb3"},
        {"LeakyReLU", "#ffffb3"},
        {"BatchNorm", "#bebada"}, {"Pooling", "#80b1d3"}, {"Concat", "#fdb462"}, {"Flatten", "#fdb462"},
        {"Reshape", "#fdb462"},
        {"Softmax", "#b3de69"},
    };
    static const char *const quanta[] = {"#e6f0fa", "#cbdff1", "#a6cbe6", "#79b2da",
                                         "#3f86bf", "#1c609f", "#0a3a75"};
    const char *op = p->graph->nodes[b->first].op;

    if (b->quantum >= 0) return quanta[b->quantum];
    if (p->look.view != VIEW_mxnet) return families[b->family];
    for (size_t i = 0; op != NULL && i < sizeof mxnet / sizeof mxnet[0]; i++)
        if (strcmp(mxnet[i].op, op) == 0) return mxnet[i].color;
    return op == NULL ? "#8dd3c7" : "#fccde5";
}

static void write_attrs(struct buf *out, const struct viz_picture *p, const json_t *attrs)
{
    bool mxnet = p->look.view == VIEW_mxnet;
    const struct { const char *name, *value; } standard[] = {
        {"shape", "box"}, {"fixedsize", mxnet ? "true" : "false"}, {"width", mxnet ? "1.3" : "0.8"},
        {"height", mxnet ? "0.8034" : "0.4"}, {"style", mxnet ? "filled" : "filled,rounded"},
        {"fontname", "Helvetica"},
    };
    const char *name, *sep = "";
    json_t *value;

    buf_text(out, "\tnode [");
    for (size_t i = 0; i < sizeof standard / sizeof standard[0]; i++) {
        if (json_object_get(attrs, standard[i].name) != NULL) continue;
        buf_format(out, "%s%s=", sep, standard[i].name);
        add_quoted(out, standard[i].value);
        sep = " ";
    }
    json_object_foreach((json_t *)(uintptr_t)attrs, name, value) {
        if (!json_is_string(value)) continue;
        buf_text(out, sep);
        add_quoted(out, name);
        buf_text(out, "=");
        add_quoted(out, json_string_value(value));
        sep = " ";
    }
    buf_text(out, "]\n");
}

static void write_node(struct buf *out, const struct viz_picture *p, const struct viz_box *b)
{
    struct buf label = {0};

    for (uint32_t i = 0; i < b->line_count; i++) {
        if (i > 0) buf_text(&label, "\n");
        buf_text(&label, p->lines[b->line_first + i].text);
    }
    buf_add(&label, "", 1);
    buf_format(out, "\tn%u [label=", b->first);
    add_quoted(out, label.failed ? "" : (const char *)label.at);
    buf_format(out, " fillcolor=\"%s\"%s", fill_color(p, b), b->quantum >= 4 ? " fontcolor=\"#ffffff\"" : "");
    if (p->graph->nodes[b->first].op == NULL) buf_text(out, " shape=oval");
    buf_text(out, " tooltip=");
    add_quoted(out, p->graph->nodes[b->first].name);
    buf_text(out, "]\n");
    if (label.failed) out->failed = true;
    buf_fini(&label);
}

void viz_write_dot(struct buf *out, const struct viz_picture *p, const char *title, const json_t *attrs)
{
    static const char *const directions[] = {
        [DIRECTION_DOWN] = "TB", [DIRECTION_UP] = "BT", [DIRECTION_RIGHT] = "LR"};

    buf_text(out, "digraph ");
    add_quoted(out, title);
    buf_format(out, " {\n\trankdir=%s\n", directions[p->look.direction]);
    write_attrs(out, p, attrs);
    buf_format(out, "\tedge [arrowhead=%s fontname=\"Helvetica\"]\n",
               p->look.view == VIEW_mxnet ? "open" : "normal");
    for (size_t i = 0; i < p->layout.box_count; i++) write_node(out, p, &p->boxes[i]);
    for (size_t i = 0; i < p->layout.arrow_count; i++) {
        const struct layout_arrow *a = &p->layout.arrows[i];
        buf_format(out, "\tn%u -> n%u", p->boxes[a->from].first, p->boxes[a->to].first);
        if (p->arrows[i].label != NULL && *p->arrows[i].label != '\0') {
            buf_text(out, " [label=");
            add_quoted(out, p->arrows[i].label);
            buf_text(out, "]");
        }
        buf_text(out, "\n");
    }
    buf_text(out, "}\n");
}
