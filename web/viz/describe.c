#include "web/viz/write.h"

#include <stdlib.h>
#include <string.h>

/* A description goes step by step from the inputs to the outputs: boxes of the default picture, nearest to the
 * inputs first; boxes that do the same to one input each are one sentence. */
struct teller {
    struct buf *out;
    const struct viz_picture *p;
    const struct viz_graph *g;
    struct step { uint32_t depth, box; } *steps;
    size_t step_count;
    unsigned said;                   /* numbers used */
};

static const struct viz_node *node_of(const struct teller *t, size_t step)
{
    return &t->g->nodes[t->p->boxes[t->steps[step].box].first];
}

static int by_depth(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    if (x->depth != y->depth) return x->depth < y->depth ? -1 : 1;
    return x->box < y->box ? -1 : x->box > y->box;
}

static void list_steps(struct teller *t)
{
    const struct layout *l = &t->p->layout;
    uint32_t *depth = mem_array(l->box_count, sizeof *depth);

    t->steps = mem_array(l->box_count, sizeof *t->steps);
    if (depth == NULL || t->steps == NULL) t->out->failed = true;
    for (size_t i = 0; !t->out->failed && i < l->arrow_count; i++)
        if (depth[l->arrows[i].to] <= depth[l->arrows[i].from])
            depth[l->arrows[i].to] = depth[l->arrows[i].from] + 1;
    for (uint32_t i = 0; !t->out->failed && i < l->box_count; i++) {
        const struct viz_node *n = &t->g->nodes[t->p->boxes[i].first];
        if (n->op != NULL || t->p->boxes[i].is_group) t->steps[t->step_count++] = (struct step){depth[i], i};
    }
    if (t->step_count > 0) qsort(t->steps, t->step_count, sizeof *t->steps, by_depth);
    mem_free(depth);
}

/* ---- parts of sentences -------------------------------------------------------------------------------------- */

/* "`a`", "`a` and `b`", "`a`, `b` and `c`" */
static void add_joint(struct buf *out, size_t i, size_t count)
{
    if (i > 0) buf_text(out, i + 1 == count ? " and " : ", ");
}

static void add_shape(struct buf *out, const struct viz_node *n)
{
    char text[VIZ_SHAPE_TEXT];

    if (n->output_count > 0 && n->shapes[0].ndim != VIZ_UNKNOWN)
        buf_format(out, " %s", viz_shape_text(&n->shapes[0], text));
}

static void tell_number(struct teller *t) { buf_format(t->out, "%u. ", ++t->said); }

static void tell_inputs(struct teller *t)
{
    size_t count = 0, said = 0;

    for (size_t i = 0; i < t->g->node_count; i++) count += t->g->nodes[i].role == ROLE_DATA;
    if (count == 0) return;
    tell_number(t);
    buf_text(t->out, count == 1 ? "Input: " : "Inputs: ");
    for (size_t i = 0; i < t->g->node_count; i++) {
        if (t->g->nodes[i].role != ROLE_DATA) continue;
        add_joint(t->out, said++, count);
        viz_name_quote(t->out, t->g->nodes[i].name);
        add_shape(t->out, &t->g->nodes[i]);
    }
    buf_text(t->out, ".\n");
}

/* What parameters add up to; `unknown` arrays of them could not be counted. */
struct numbers {
    uint64_t elements;
    uint32_t unknown;
};

static void numbers_add(struct numbers *all, const struct viz_node *v)
{
    uint64_t n;

    if (v->output_count > 0 && viz_shape_count(&v->shapes[0], &n) &&
        n < UINT64_MAX / 2 - all->elements)
        all->elements += n;
    else all->unknown++;
}

static void tell_numbers(struct buf *out, const struct numbers *n)
{
    if (n->elements > 0 || n->unknown == 0) viz_add_count(out, n->elements);
    if (n->unknown > 0) buf_text(out, n->elements > 0 ? " + ?" : "?");
}

/* Parameters of the boxes [from, to). */
static uint32_t walk_params(const struct teller *t, size_t from, size_t to, bool tell,
                            uint32_t total, struct numbers *all)
{
    uint32_t count = 0;

    for (size_t s = from; s < to; s++)
        for (uint32_t b = t->steps[s].box, i = t->p->boxes[b].first; i <= t->p->boxes[b].last; i++)
            for (size_t k = 0; t->p->box_of[i] == b && k < t->g->nodes[i].input_count; k++) {
                const struct viz_node *v = &t->g->nodes[t->g->nodes[i].inputs[k].node];
                if (!viz_is_param(v) || v->op != NULL) continue;
                if (tell) {
                    add_joint(t->out, count, total);
                    viz_name_quote(t->out, v->name);
                    add_shape(t->out, v);
                }
                count++;
                numbers_add(all, v);
            }
    return count;
}

enum { PARAMS_NAMED = 8 };

static void tell_params(struct teller *t, size_t from, size_t to)
{
    struct numbers all = {0}, again = {0};
    uint32_t count = walk_params(t, from, to, false, 0, &all);

    if (count == 0) return;
    if (count <= PARAMS_NAMED) {
        buf_text(t->out, count == 1 ? " Parameter: " : " Parameters: ");
        walk_params(t, from, to, true, count, &again);
    } else {
        buf_format(t->out, " Parameters: %u arrays", count);
    }
    if (all.elements > 0 && (count > 1 || count > PARAMS_NAMED)) {
        buf_text(t->out, " (");
        tell_numbers(t->out, &all);
        buf_text(t->out, " numbers)");
    }
    buf_text(t->out, ".");
}

/* ---- steps --------------------------------------------------------------------------------------------------- */

/* The only input that is no parameter; NULL: there are several, or none. */
static const struct viz_node *only_input(const struct teller *t, const struct viz_node *n)
{
    const struct viz_node *found = NULL;

    for (size_t i = 0; i < n->input_count; i++) {
        const struct viz_node *from = &t->g->nodes[n->inputs[i].node];
        if (viz_is_param(from)) continue;
        if (found != NULL) return NULL;
        found = from;
    }
    return found;
}

static bool same_deed(const struct teller *t, size_t a, size_t b)
{
    const struct viz_node *x = node_of(t, a), *y = node_of(t, b);
    struct buf left = {0}, right = {0};

    if (t->g->is_tree || t->steps[a].depth != t->steps[b].depth || t->p->boxes[t->steps[a].box].is_group ||
        t->p->boxes[t->steps[b].box].is_group || x->op == NULL || y->op == NULL || strcmp(x->op, y->op) != 0 ||
        only_input(t, x) == NULL || only_input(t, y) == NULL)
        return false;
    viz_op_fill_for(&left, x->kind->phrase, t->g, x, "");
    viz_op_fill_for(&right, y->kind->phrase, t->g, y, "");
    bool same = !left.failed && !right.failed &&
                bytes_equal(bytes_of(left.at, left.size), bytes_of(right.at, right.size));
    buf_fini(&left);
    buf_fini(&right);
    return same;
}

/* A group of keys; those with no keys of their own are the way to others. */
static void tell_keys(struct teller *t, size_t at)
{
    struct numbers all = {0};

    if (walk_params(t, at, at + 1, false, 0, &all) == 0) return;
    tell_number(t);
    viz_name_quote(t->out, node_of(t, at)->name);
    buf_text(t->out, ".");
    tell_params(t, at, at + 1);
    buf_text(t->out, "\n");
}

/* Boxes [from, to) do the same. */
static void tell_step(struct teller *t, size_t from, size_t to)
{
    const struct viz_node *n = node_of(t, from);
    struct buf inputs = {0};

    tell_number(t);
    for (size_t i = from; i < to; i++) {
        add_joint(t->out, i - from, to - from);
        viz_name_quote(t->out, node_of(t, i)->name);
        if (to - from == 1) continue;
        add_joint(&inputs, i - from, to - from);
        viz_name_quote(&inputs, only_input(t, node_of(t, i))->name);
    }
    buf_add(&inputs, "", 1);
    buf_text(t->out, ": ");
    viz_op_fill_for(t->out, n->kind->phrase, t->g, n,
                    to - from > 1 && !inputs.failed ? (const char *)inputs.at : NULL);
    buf_text(t->out, ".");
    tell_params(t, from, to);
    if (n->output_count > 0 && n->shapes[0].ndim != VIZ_UNKNOWN) {
        buf_text(t->out, " Result:");
        for (size_t i = from; i < to; i++) {
            if (i > from) buf_text(t->out, i + 1 == to ? " and" : ",");
            add_shape(t->out, node_of(t, i));
        }
        buf_text(t->out, ".");
    }
    buf_text(t->out, "\n");
    buf_fini(&inputs);
}

static void tell_block(struct teller *t, size_t at)
{
    const struct viz_box *b = &t->p->boxes[t->steps[at].box];
    const char *sep = "";

    tell_number(t);
    viz_name_quote(t->out, t->g->nodes[b->first].name);
    buf_text(t->out, " to ");
    viz_name_quote(t->out, t->g->nodes[b->last].name);
    buf_format(t->out, ": a block, %u times over, each behind the one before: ", b->copies);
    for (uint32_t i = 0; i < b->line_count; i++) {
        const struct viz_line *l = &t->p->lines[b->line_first + i];
        if (l->kind != LINE_DETAIL) continue;
        buf_format(t->out, "%s%s", sep, l->text);
        sep = ", ";
    }
    buf_text(t->out, ".");
    tell_params(t, at, at + 1);
    buf_text(t->out, "\n");
}

static void tell_end(struct teller *t)
{
    size_t heads = 0, said = 0;
    struct numbers all = {0};
    uint32_t arrays = 0;

    for (size_t i = 0; i < t->g->node_count; i++) heads += t->g->nodes[i].head;
    buf_text(t->out, t->g->is_tree ? "\n" : heads == 1 ? "\nOutput: " : "\nOutputs: ");
    for (size_t i = 0; i < t->g->node_count; i++) {
        const struct viz_node *v = &t->g->nodes[i];
        if (v->head && !t->g->is_tree) {
            add_joint(t->out, said++, heads);
            viz_name_quote(t->out, v->name);
        }
        if (!viz_is_param(v)) continue;
        arrays++;
        numbers_add(&all, v);
    }
    buf_text(t->out, t->g->is_tree ? "Parameters: " : heads == 0 ? "none. Parameters: " : ". Parameters: ");
    tell_numbers(t->out, &all);
    buf_format(t->out, " numbers in %u array%s", arrays, arrays == 1 ? "" : "s");
    if (all.unknown > 0)
        buf_format(t->out, ", %u of which %s of unknown shape and not counted", all.unknown,
                   all.unknown == 1 ? "is" : "are");
    buf_text(t->out, ".\n");
}

void viz_write_description(struct buf *out, const struct viz_picture *p)
{
    struct teller t = {.out = out, .p = p, .g = p->graph};

    list_steps(&t);
    if (!out->failed) tell_inputs(&t);
    for (size_t from = 0, to; from < t.step_count && !out->failed; from = to) {
        to = from + 1;
        if (t.g->is_tree) {
            tell_keys(&t, from);
            continue;
        }
        if (p->boxes[t.steps[from].box].is_group) {
            tell_block(&t, from);
            continue;
        }
        while (to < t.step_count && same_deed(&t, from, to)) to++;
        tell_step(&t, from, to);
    }
    if (!out->failed) tell_end(&t);
    mem_free(t.steps);
}
