#include "web/viz/view.h"

#include "web/viz/blocks.h"
#include "web/viz/font.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const view_names[VIEW_COUNT] = {
#define VIEW_NAME(name) #name,
    VIZ_VIEWS(VIEW_NAME)
#undef VIEW_NAME
};

enum viz_view viz_view_find(const char *name)
{
    unsigned i = 0;
    while (i < VIEW_COUNT && strcmp(view_names[i], name) != 0) i++;
    return (enum viz_view)i;
}

static enum status no_memory(struct error *e)
{
    return error_set(e, REASON_NO_MEMORY, "no memory for the picture");
}

/* ---- what becomes a box -------------------------------------------------------------------------------------- */

/* A box to be: consecutive items. An item is a node that is not folded. */
struct group {
    uint32_t first, last;            /* items */
    uint32_t copies;
    const char *title;               /* of a group by prefix, or NULL */
    uint64_t sign;
    bool fixed;
};

struct maker {
    struct viz_picture *p;
    const struct viz_graph *g;
    uint32_t *items, *item_of;       /* node of an item, item of a node */
    size_t item_count;
    struct viz_item *signs;
    struct group *groups;
    size_t group_count;
    size_t common;                   /* bytes with which all names of operators begin, up to a separator */
    struct error *e;
};

static bool is_folded(const struct maker *m, const struct viz_node *n)
{
    const struct viz_look *look = &m->p->look;

    if (!viz_is_param(n) || n->consumers == 0 || look->view == VIEW_full) return false;
    return look->view != VIEW_mxnet || !look->show_weights;
}

static enum status list_items(struct maker *m)
{
    size_t n = m->g->node_count;

    m->items = ARENA_NEW(&m->p->arena, n, uint32_t);
    m->item_of = ARENA_NEW(&m->p->arena, n, uint32_t);
    m->groups = ARENA_NEW(&m->p->arena, n, struct group);
    m->signs = ARENA_NEW(&m->p->arena, n, struct viz_item);
    if (m->items == NULL || m->item_of == NULL || m->groups == NULL || m->signs == NULL) return no_memory(m->e);
    for (uint32_t i = 0; i < n; i++) {
        m->item_of[i] = VIZ_NO_BOX;
        if (is_folded(m, &m->g->nodes[i])) continue;
        m->item_of[i] = (uint32_t)m->item_count;
        m->items[m->item_count++] = i;
    }
    return STATUS_OK;
}

/* ---- what looks alike ---------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static uint64_t mix_text(uint64_t h, const char *text)
{
    for (; *text != '\0'; text++) h = mix(h, (unsigned char)*text);
    return h;
}

static uint64_t mix_shape(uint64_t h, const struct viz_shape *s)
{
    h = mix(h, (uint64_t)s->ndim);
    for (int i = 0; i < s->ndim; i++) h = mix(h, (uint64_t)s->dims[i]);
    return h;
}

/* Operator, what stands behind it, shapes, and how far back the inputs lie: two blocks of equal signs are the same
 * and hang on what is before them in the same way. */
static enum status sign_item(struct maker *m, uint32_t item)
{
    const struct viz_node *n = &m->g->nodes[m->items[item]];
    struct buf detail = {0};
    uint64_t h = mix_text(1, n->op != NULL ? n->op : "");

    viz_op_fill(&detail, n->kind->detail, m->g, n);
    for (size_t i = 0; i < detail.size; i++) h = mix(h, detail.at[i]);
    bool failed = detail.failed;
    buf_fini(&detail);
    if (failed) return no_memory(m->e);
    for (size_t i = 0; i < n->output_count; i++) h = mix_shape(h, &n->shapes[i]);
    for (size_t i = 0; i < n->input_count; i++) {
        const struct viz_node *from = &m->g->nodes[n->inputs[i].node];
        uint32_t at = m->item_of[n->inputs[i].node];
        h = mix(h, n->inputs[i].output);
        if (at == VIZ_NO_BOX && from->output_count > 0) h = mix_shape(h, &from->shapes[0]);
        else h = mix(h, item - at);
    }
    m->signs[item] = (struct viz_item){.sign = h, .fixed = n->op == NULL && !viz_is_param(n)};
    return STATUS_OK;
}

static bool is_expanded(const struct maker *m, uint32_t node)
{
    char id[16];

    snprintf(id, sizeof id, "n%u", node);
    for (const char *const *at = m->p->look.expanded; at != NULL && *at != NULL; at++)
        if (strcmp(*at, id) == 0) return true;
    return false;
}

/* A network whose names all begin alike says nothing by that beginning. */
static size_t common_size(const struct maker *m)
{
    const char *first = NULL;
    size_t size = 0;

    for (size_t i = 0; i < m->item_count; i++) {
        const struct viz_node *n = &m->g->nodes[m->items[i]];
        size_t same = 0;
        if (n->op == NULL) continue;
        if (first == NULL) size = strlen(first = n->name);
        while (same < size && n->name[same] == first[same]) same++;
        size = same;
    }
    while (size > 0 && strchr("_./", first[size - 1]) == NULL) size--;
    return size;
}

/* "stage1_unit2" of "stage1_unit2_conv1", "/layer1/0" of "/layer1/0/conv/Conv"; 0 where nothing is left of it behind
 * the common beginning. */
static size_t prefix_size(const struct maker *m, const char *whole)
{
    const char *name = strlen(whole) >= m->common ? whole + m->common : whole;
    size_t size = strlen(name), cuts = strchr(name, '/') != NULL ? 2 : 1;

    if (size > 4 && strcmp(name + size - 4, "_fwd") == 0) size -= 4;
    while (cuts > 0 && size > 0)
        if (strchr(cuts == 2 || strchr(name, '/') != NULL ? "/" : "_.", name[--size]) != NULL) cuts--;
    return size > 0 ? size + (size_t)(name - whole) : 0;
}

/* Whether item b's name lies under the prefix of item a's. */
static bool is_under_prefix(const struct maker *m, uint32_t a, uint32_t b)
{
    const char *x = m->g->nodes[m->items[a]].name, *y = m->g->nodes[m->items[b]].name;
    size_t size = prefix_size(m, x);

    return size > 0 && strncmp(x, y, size) == 0 && y[size] != '\0' && strchr("_./", y[size]) != NULL;
}

/* Consecutive items of one prefix become a group; without prefixes each item is one. */
static enum status group_items(struct maker *m)
{
    bool by_prefix = m->p->look.view == VIEW_blocks;

    if (by_prefix) m->common = common_size(m);

    for (uint32_t i = 0, end; i < m->item_count; i = end) {
        struct group *g = &m->groups[m->group_count++];
        *g = (struct group){.first = i, .copies = 1, .sign = m->signs[i].sign, .fixed = m->signs[i].fixed};
        bool open = !by_prefix || g->fixed || is_expanded(m, m->items[i]);
        for (end = i + 1; !open && end < m->item_count && !m->signs[end].fixed && is_under_prefix(m, i, end); end++)
            g->sign = mix(g->sign, m->signs[end].sign);
        g->last = end - 1;
        if (end == i + 1) continue;
        const char *name = m->g->nodes[m->items[i]].name;
        g->title = arena_text(&m->p->arena, name, prefix_size(m, name));
        if (g->title == NULL) return no_memory(m->e);
    }
    return STATUS_OK;
}

/* How many groups before it each input of a group stands; inputs of its own are left out. */
static enum status find_back(struct maker *m, const uint32_t *group_of, uint32_t at, struct viz_item *out)
{
    const struct group *g = &m->groups[at];
    uint32_t *back, count = 0;

    for (uint32_t i = g->first; i <= g->last; i++) count += m->g->nodes[m->items[i]].input_count;
    back = ARENA_NEW(&m->p->arena, count, uint32_t);
    if (back == NULL) return no_memory(m->e);
    count = 0;
    for (uint32_t i = g->first; i <= g->last; i++) {
        const struct viz_node *n = &m->g->nodes[m->items[i]];
        for (uint32_t k = 0; k < n->input_count; k++) {
            uint32_t item = m->item_of[n->inputs[k].node];
            if (item != VIZ_NO_BOX && group_of[item] < at) back[count++] = at - group_of[item];
        }
    }
    out->back = back;
    out->back_count = count;
    return STATUS_OK;
}

static enum status join_repeated(struct maker *m)
{
    uint32_t *group_of = ARENA_NEW(&m->p->arena, m->item_count, uint32_t);
    struct viz_item *items = ARENA_NEW(&m->p->arena, m->group_count, struct viz_item);
    struct viz_run *runs;
    size_t run_count, kept = 0;
    enum status s;

    if (items == NULL || group_of == NULL) return no_memory(m->e);
    for (uint32_t i = 0; i < m->group_count; i++)
        for (uint32_t k = m->groups[i].first; k <= m->groups[i].last; k++) group_of[k] = i;
    for (uint32_t i = 0; i < m->group_count; i++) {
        items[i] = (struct viz_item){m->groups[i].sign, m->groups[i].fixed,
                                     is_expanded(m, m->items[m->groups[i].first]), NULL, 0};
        s = find_back(m, group_of, i, &items[i]);
        if (s != STATUS_OK) return s;
    }
    s = viz_runs_find(items, m->group_count, &m->p->arena, &runs, &run_count, m->e);
    if (s != STATUS_OK) return s;
    for (size_t i = 0, r = 0; i < m->group_count;) {
        struct group *g = &m->groups[kept++];
        *g = m->groups[i];
        if (r == run_count || runs[r].first != i) {
            i++;
            continue;
        }
        i += (size_t)runs[r].length * runs[r].copies;
        g->last = m->groups[i - 1].last;
        g->copies = runs[r++].copies;
    }
    m->group_count = kept;
    return STATUS_OK;
}

static enum status make_groups(struct maker *m)
{
    enum viz_view view = m->p->look.view;
    bool collapse = (view == VIEW_default || view == VIEW_blocks) && !m->g->is_tree;
    enum status s = STATUS_OK;

    for (uint32_t i = 0; i < m->item_count && collapse && s == STATUS_OK; i++) s = sign_item(m, i);
    if (s == STATUS_OK) s = group_items(m);
    return s == STATUS_OK && collapse ? join_repeated(m) : s;
}

/* ---- arrows -------------------------------------------------------------------------------------------------- */

static enum status make_boxes(struct maker *m)
{
    struct viz_picture *p = m->p;

    p->boxes = ARENA_NEW(&p->arena, m->group_count, struct viz_box);
    p->layout.boxes = ARENA_NEW(&p->arena, m->group_count, struct layout_box);
    p->box_of = ARENA_NEW(&p->arena, m->g->node_count, uint32_t);
    if (p->boxes == NULL || p->layout.boxes == NULL || p->box_of == NULL) return no_memory(m->e);
    for (size_t i = 0; i < m->g->node_count; i++) p->box_of[i] = VIZ_NO_BOX;
    for (uint32_t i = 0; i < m->group_count; i++) {
        const struct group *g = &m->groups[i];
        p->boxes[i] = (struct viz_box){.first = m->items[g->first], .last = m->items[g->last], .copies = g->copies,
                                       .is_group = g->first != g->last, .quantum = QUANTUM_NONE};
        p->boxes[i].family = p->boxes[i].is_group ? FAMILY_BLOCK : m->g->nodes[p->boxes[i].first].kind->family;
        for (uint32_t k = g->first; k <= g->last; k++) p->box_of[m->items[k]] = i;
        const struct viz_node *n = &m->g->nodes[p->boxes[i].first];
        p->layout.boxes[i].is_side = n->op == NULL && n->role != ROLE_DATA;
    }
    p->layout.box_count = m->group_count;
    return STATUS_OK;
}

/* Between groups one arrow says enough; two between single nodes (x * x) are two. */
static enum status make_arrows(struct maker *m)
{
    struct viz_picture *p = m->p;
    uint32_t *seen = ARENA_NEW(&p->arena, p->layout.box_count, uint32_t);

    p->arrows = ARENA_NEW(&p->arena, m->g->edge_count, struct viz_arrow);
    p->layout.arrows = ARENA_NEW(&p->arena, m->g->edge_count, struct layout_arrow);
    if (seen == NULL || p->arrows == NULL || p->layout.arrows == NULL) return no_memory(m->e);
    for (uint32_t b = 0; b < p->layout.box_count; b++)
        for (uint32_t i = p->boxes[b].first; i <= p->boxes[b].last; i++) {
            const struct viz_node *n = &m->g->nodes[i];
            for (size_t k = 0; p->box_of[i] == b && k < n->input_count; k++) {
                uint32_t from = p->box_of[n->inputs[k].node];
                if (from == VIZ_NO_BOX || from == b) continue;
                if ((p->boxes[b].is_group || p->boxes[from].is_group) && seen[from] == b + 1) continue;
                seen[from] = b + 1;
                p->arrows[p->layout.arrow_count] = (struct viz_arrow){NULL, n->inputs[k].node, n->inputs[k].output};
                p->layout.arrows[p->layout.arrow_count++] = (struct layout_arrow){.from = from, .to = b};
            }
        }
    return STATUS_OK;
}

/* ---- what stands in a box ------------------------------------------------------------------------------------ */

/* Lines of the box in hand go to the end of the picture's; the arena has room for all. */
static enum status add_line(struct maker *m, struct viz_box *b, enum viz_line_kind kind, struct buf *text,
                            uint32_t node)
{
    struct viz_picture *p = m->p;
    double size = kind == LINE_TITLE ? FONT_SIZE : SMALL_SIZE;
    struct buf fit = {0};

    buf_add(text, "", 1);
    if (!text->failed) viz_text_fit(&fit, (const char *)text->at, size, kind == LINE_TITLE, TEXT_MAX);
    const char *kept = text->failed || fit.failed ? NULL : arena_text(&p->arena, (const char *)fit.at, fit.size);
    buf_fini(&fit);
    buf_clear(text);
    if (kept == NULL) return no_memory(m->e);
    p->lines[p->line_count++] = (struct viz_line){kept, kind, node};
    b->line_count++;
    double room = kind == LINE_CHIP ? viz_text_room(kept, size, false, CHIP_PAD) + 2 * BOX_PAD
                                    : viz_text_room(kept, size, kind == LINE_TITLE, BOX_PAD);
    b->width = fmax(b->width, room);
    return STATUS_OK;
}

const char *viz_short_name(const struct viz_node *of, size_t input, const struct viz_node *param,
                           char out[VIZ_NAME_MAX + 1])
{
    struct bytes slot = viz_op_slot(of->kind, input);
    size_t size = strlen(of->name);

    if (strncmp(param->name, of->name, size) == 0 && param->name[size] != '\0' &&
        strchr("_./", param->name[size]) != NULL)
        snprintf(out, VIZ_NAME_MAX + 1, "%s", param->name + size + 1);
    else if (slot.size > 0 && size > 4 &&
             strncmp(param->name, of->name, size - 4) == 0) /* gluon's names end with _fwd */
        snprintf(out, VIZ_NAME_MAX + 1, "%.*s", (int)slot.size, (const char *)slot.at);
    else snprintf(out, VIZ_NAME_MAX + 1, "%s", param->name);
    return out;
}

static enum status add_chips(struct maker *m, struct viz_box *b, const struct viz_node *n)
{
    char name[VIZ_NAME_MAX + 1], shape[VIZ_SHAPE_TEXT];
    struct buf text = {0};
    enum status s = STATUS_OK;

    for (size_t i = 0; i < n->input_count && s == STATUS_OK; i++) {
        uint32_t at = n->inputs[i].node;
        const struct viz_node *from = &m->g->nodes[at];
        if (m->p->box_of[at] != VIZ_NO_BOX) continue;
        buf_format(&text, "%s %s", viz_short_name(n, i, from, name),
                   viz_shape_text(
                       from->output_count > 0 ? &from->shapes[0] : &(struct viz_shape){VIZ_UNKNOWN, {0}}, shape));
        s = add_line(m, b, LINE_CHIP, &text, at);
    }
    buf_fini(&text);
    return s;
}

static enum status add_shape(struct maker *m, struct viz_box *b, const struct viz_node *n)
{
    char shape[VIZ_SHAPE_TEXT];
    struct buf text = {0};

    if (n->output_count == 0 || n->shapes[0].ndim == VIZ_UNKNOWN || m->g->is_tree) return STATUS_OK;
    buf_format(&text, n->op != NULL ? "\u2192 %s" : "%s", viz_shape_text(&n->shapes[0], shape));
    if (viz_outputs_shown(n) > 1) buf_format(&text, " (1 of %u)", viz_outputs_shown(n));
    enum status s = add_line(m, b, LINE_SHAPE, &text, 0);
    buf_fini(&text);
    return s;
}

static void label_op(struct buf *out, const struct viz_graph *g, const struct viz_node *n)
{
    size_t before;

    if (viz_is_group_of_keys(n)) {
        buf_text(out, n->name);
        return;
    }
    buf_text(out, n->op);
    before = out->size;
    buf_text(out, " ");
    viz_op_fill(out, n->kind->detail, g, n);
    if (out->size == before + 1) out->size = before;
}

static const char *role_name(const struct viz_node *n)
{
    return n->role == ROLE_LABEL   ? "label"
           : n->role == ROLE_PARAM ? "parameter"
           : n->role == ROLE_AUX   ? "statistic"
                                   : "data";
}

static enum status fill_node(struct maker *m, struct viz_box *b)
{
    const struct viz_node *n = &m->g->nodes[b->first];
    struct buf text = {0};
    enum status s;

    if (n->op != NULL) label_op(&text, m->g, n);
    else buf_text(&text, n->name);
    s = add_line(m, b, LINE_TITLE, &text, 0);
    if (s == STATUS_OK && !viz_is_group_of_keys(n)) {
        buf_text(&text, n->op != NULL ? n->name : role_name(n));
        s = add_line(m, b, LINE_NAME, &text, 0);
    }
    if (s == STATUS_OK && n->op != NULL) s = add_chips(m, b, n);
    if (s == STATUS_OK) s = add_shape(m, b, n);
    buf_fini(&text);
    return s;
}

enum { OPS_SHOWN = 8 };

/* One copy's operators, each on a line; runs of the same are counted. */
static enum status fill_group_ops(struct maker *m, struct viz_box *b, uint32_t box, uint32_t *ops)
{
    struct buf text = {0};
    uint32_t shown = 0, in_copy = 0, total = 0;
    enum status s = STATUS_OK;

    for (uint32_t i = b->first; i <= b->last; i++) total += m->p->box_of[i] == box;
    *ops = total;
    for (uint32_t i = b->first; i <= b->last && s == STATUS_OK && in_copy < total / b->copies && shown < OPS_SHOWN;
         i++) {
        if (m->p->box_of[i] != box) continue;
        const struct viz_node *n = &m->g->nodes[i];
        if (n->op != NULL) label_op(&text, m->g, n);
        else buf_text(&text, n->name);
        in_copy++;
        shown++;
        s = add_line(m, b, LINE_DETAIL, &text, 0);
    }
    if (s == STATUS_OK && total / b->copies > in_copy) {
        buf_format(&text, "and %u more", total / b->copies - in_copy);
        s = add_line(m, b, LINE_DETAIL, &text, 0);
    }
    buf_fini(&text);
    return s;
}

static enum status fill_group(struct maker *m, struct viz_box *b, uint32_t box, const struct group *g)
{
    const struct viz_node *first = &m->g->nodes[b->first], *last = &m->g->nodes[b->last];
    struct buf text = {0};
    uint32_t ops = 0;
    enum status s;

    if (g->copies > 1) buf_format(&text, "%u \u00d7 block", g->copies);
    else buf_text(&text, g->title);
    s = add_line(m, b, LINE_TITLE, &text, 0);
    if (s == STATUS_OK) {
        buf_format(&text, "%s \u2026 %s", first->name, last->name);
        s = add_line(m, b, LINE_NAME, &text, 0);
    }
    if (s == STATUS_OK) s = fill_group_ops(m, b, box, &ops);
    if (s == STATUS_OK) s = add_shape(m, b, last);
    buf_fini(&text);
    return s;
}

/* ---- MXNet's look -------------------------------------------------------------------------------------------- */

static void digits(struct buf *out, const char *value, const char *otherwise)
{
    bool any = false;

    for (const char *at = value != NULL ? value : ""; *at != '\0';) {
        size_t n = strspn(at, "0123456789");
        if (n > 0) {
            if (any) buf_text(out, "x");
            buf_add(out, at, n);
            any = true;
        }
        at += n > 0 ? n : 1;
    }
    if (!any) buf_text(out, otherwise);
}

static const char *attr_or(const struct viz_node *n, const char *name, const char *otherwise)
{
    const char *v = viz_attr(n, name);
    return v != NULL ? v : otherwise;
}

/* The label texts of plot_network, with "\n" where it has one. An attribute that is missing is left out, where
 * MXNet raises KeyError. */
static void mxnet_label(struct buf *out, const struct viz_node *n)
{
    const char *op = n->op != NULL ? n->op : "";

    if (strcmp(op, "Convolution") == 0) {
        buf_text(out, "Convolution\n");
        digits(out, viz_attr(n, "kernel"), "");
        buf_text(out, "/");
        digits(out, viz_attr(n, "stride"), "1");
        buf_format(out, ", %s", attr_or(n, "num_filter", ""));
    } else if (strcmp(op, "FullyConnected") == 0) {
        buf_format(out, "FullyConnected\n%s", attr_or(n, "num_hidden", ""));
    } else if (strcmp(op, "Activation") == 0) {
        buf_format(out, "Activation\n%s", attr_or(n, "act_type", ""));
    } else if (strcmp(op, "LeakyReLU") == 0) {
        buf_format(out, "LeakyReLU\n%s", attr_or(n, "act_type", "Leaky"));
    } else if (strcmp(op, "Pooling") == 0) {
        buf_format(out, "Pooling\n%s, ", attr_or(n, "pool_type", "max"));
        digits(out, viz_attr(n, "kernel"), "[]");
        buf_text(out, "/");
        digits(out, viz_attr(n, "stride"), "1");
    } else if (strcmp(op, "Custom") == 0) {
        buf_text(out, attr_or(n, "op_type", n->name));
    } else {
        buf_text(out, n->name);
    }
}

static enum status fill_mxnet(struct maker *m, struct viz_box *b)
{
    struct buf label = {0}, text = {0};
    enum status s = STATUS_OK;

    mxnet_label(&label, &m->g->nodes[b->first]);
    buf_add(&label, "", 1);
    if (label.failed) s = no_memory(m->e);
    for (const char *at = (const char *)label.at; s == STATUS_OK && at != NULL;) {
        const char *end = at == (const char *)label.at ? strchr(at, '\n') : NULL; /* names are not split */
        buf_add(&text, at, end != NULL ? (size_t)(end - at) : strlen(at));
        s = add_line(m, b, LINE_DETAIL, &text, 0);
        at = end != NULL ? end + 1 : NULL;
    }
    /* plot_network's boxes are 1.3 by 0.8034 inches; here they grow with their text. */
    b->width = fmax(b->width, 93.6);
    b->height = 57.8;
    buf_fini(&label);
    buf_fini(&text);
    return s;
}

static enum status label_arrows(struct maker *m)
{
    const struct viz_look *look = &m->p->look;

    for (size_t i = 0; look->edge_shapes && i < m->p->layout.arrow_count; i++) {
        struct viz_arrow *a = &m->p->arrows[i];
        const struct viz_node *from = &m->g->nodes[a->node];
        struct viz_shape s = a->output < from->output_count ? from->shapes[a->output]
                                                            : (struct viz_shape){VIZ_UNKNOWN, {0}};
        char shape[VIZ_SHAPE_TEXT], text[VIZ_SHAPE_TEXT + 32];
        if (s.ndim > 0)
            memmove(&s.dims[0], &s.dims[1], (size_t)--s.ndim * sizeof s.dims[0]); /* MXNet leaves the batch out */
        snprintf(text, sizeof text, "%s%s%s%s", s.ndim == 0 ? "" : viz_shape_text(&s, shape),
                 look->edge_dtypes ? "(" : "",
                 !look->edge_dtypes                 ? ""
                 : from->dtype == VIZ_DTYPE_unknown ? "float32"
                                                    : viz_dtype_name(from->dtype), /* MXNet's standard */
                 look->edge_dtypes ? ")" : "");
        a->label = arena_text(&m->p->arena, text, strlen(text));
        if (a->label == NULL) return no_memory(m->e);
    }
    return STATUS_OK;
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static double box_height(const struct viz_picture *p, const struct viz_box *b)
{
    double h = 2 * BOX_PAD_Y;

    for (uint32_t i = 0; i < b->line_count; i++) {
        enum viz_line_kind kind = p->lines[b->line_first + i].kind;
        h += kind == LINE_CHIP ? LINE_HEIGHT + 3 : kind == LINE_TITLE ? LINE_HEIGHT + 1 : LINE_HEIGHT - 1;
    }
    return h;
}

static enum status fill_boxes(struct maker *m)
{
    struct viz_picture *p = m->p;
    enum status s = STATUS_OK;

    p->lines = ARENA_NEW(&p->arena, m->g->edge_count + (OPS_SHOWN + 4) * p->layout.box_count, struct viz_line);
    if (p->lines == NULL) return no_memory(m->e);
    for (uint32_t i = 0; i < p->layout.box_count && s == STATUS_OK; i++) {
        struct viz_box *b = &p->boxes[i];
        b->line_first = (uint32_t)p->line_count;
        s = p->look.view == VIEW_mxnet ? fill_mxnet(m, b)
            : b->is_group              ? fill_group(m, b, i, &m->groups[i])
                                       : fill_node(m, b);
        b->height = fmax(b->height, box_height(p, b));
        b->width = fmax(b->width, 64) + (m->g->nodes[b->first].op == NULL ? 6 : 0); /* round corners */
    }
    return s == STATUS_OK ? label_arrows(m) : s;
}

enum status viz_picture_make(const struct viz_graph *g, const struct viz_look *look, struct viz_picture *p,
                             struct error *e)
{
    struct maker m = {.p = p, .g = g, .e = e};
    enum status s;

    *p = (struct viz_picture){.graph = g, .look = *look, .arena = {.limit = VIZ_MEMORY_MAX}};
    s = list_items(&m);
    if (s == STATUS_OK) s = make_groups(&m);
    if (s == STATUS_OK) s = make_boxes(&m);
    if (s == STATUS_OK) s = make_arrows(&m);
    if (s == STATUS_OK) s = fill_boxes(&m);
    return s == STATUS_OK ? viz_picture_color(p, e) : s;
}

enum status viz_picture_place(struct viz_picture *p, struct error *e)
{
    bool turned = p->look.direction == DIRECTION_RIGHT;

    p->layout.gap_x = turned ? 12 : 24;
    p->layout.gap_y = p->look.edge_shapes ? 44 : turned ? 48 : 28;
    for (size_t i = 0; i < p->layout.box_count; i++) {
        p->layout.boxes[i].width = turned ? p->boxes[i].height : p->boxes[i].width;
        p->layout.boxes[i].height = turned ? p->boxes[i].width : p->boxes[i].height;
    }
    return layout_run(&p->layout, &p->arena, e);
}

struct layout_point viz_turn(const struct viz_picture *p, struct layout_point at)
{
    switch (p->look.direction) {
    case DIRECTION_DOWN: break;
    case DIRECTION_UP: return (struct layout_point){at.x, p->layout.height - at.y};
    case DIRECTION_RIGHT: return (struct layout_point){at.y, at.x};
    }
    return at;
}

void viz_picture_fini(struct viz_picture *p) { arena_fini(&p->arena); }
