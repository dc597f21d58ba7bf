#include "web/viz/write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What parameters add up to: of a layer, or of all. */
struct sum {
    uint64_t count, bytes, kept;     /* kept: elements of statistics, which are not learned */
    uint32_t arrays, unknown;        /* unknown: arrays whose shape is not known */
    uint32_t unsized;                /* counted, but the bytes of an element are not known */
    uint32_t unknown_kept;           /* statistics among them */
    const char *dtype, *updater;     /* of all of them, or "mixed"; NULL: nothing is known */
};

static const char *same_or_mixed(const char *have, const char *more)
{
    if (more == NULL) return have;
    return have == NULL || strcmp(have, more) == 0 ? more : "mixed";
}

static void sum_add(struct sum *s, const struct viz_node *n)
{
    uint64_t count, bytes = 0;

    s->arrays++;
    s->dtype = same_or_mixed(s->dtype, viz_dtype_name(n->dtype));
    s->updater = same_or_mixed(s->updater, n->key != NULL ? n->key->updater : NULL);
    if (n->output_count == 0 || !viz_shape_count(&n->shapes[0], &count) || count > UINT64_MAX / 16 - s->bytes / 8) {
        s->unknown++;
        s->unknown_kept += n->role == ROLE_AUX;
        return;
    }
    s->count += count;
    if (!viz_dtype_bytes(n->dtype, count, &bytes)) s->unsized++;
    s->bytes += bytes;
    if (n->role == ROLE_AUX) s->kept += count;
}

static void sum_join(struct sum *all, const struct sum *s)
{
    all->count += s->count;
    all->bytes += s->bytes;
    all->kept += s->kept;
    all->arrays += s->arrays;
    all->unknown += s->unknown;
    all->unsized += s->unsized;
    all->unknown_kept += s->unknown_kept;
}

/* The walk over layers that both forms of a summary are. A parameter that several layers share counts for the
 * first. */
struct walk {
    const struct viz_graph *g;
    bool *counted;
    struct sum all;
};

static bool is_layer(const struct viz_node *n) { return n->op != NULL || !viz_is_param(n) || n->consumers == 0; }

static struct sum walk_layer(struct walk *w, uint32_t at)
{
    const struct viz_node *n = &w->g->nodes[at];
    struct sum s = {0};

    for (size_t i = 0; i <= n->input_count; i++) {
        uint32_t from = i < n->input_count ? n->inputs[i].node : at;
        if (!viz_is_param(&w->g->nodes[from]) || w->counted[from]) continue;
        w->counted[from] = true;
        sum_add(&s, &w->g->nodes[from]);
    }
    sum_join(&w->all, &s);
    return s;
}

/* ---- as a table ---------------------------------------------------------------------------------------------- */

enum column { LAYER, SHAPE, PARAMS, BYTES, DTYPE, UPDATER, PREVIOUS, COLUMN_COUNT };
static const char *const titles[COLUMN_COUNT] = {"Layer (type)", "Output Shape", "Param #",       "Bytes",
                                                 "Dtype",        "Updater",      "Previous Layer"};

struct table {
    struct buf *out;
    unsigned width, ends[COLUMN_COUNT];
    enum column columns[COLUMN_COUNT];
    size_t count;
};

enum { WIDTH_MAX = 1000 };

static void table_begin(struct table *t, struct buf *out, const struct viz_table *want)
{
    static const double all[] = {.30, .45, .56, .68, .76, .84, 1.}, mxnet[] = {.44, .64, .74, 1.};
    static const enum column few[] = {LAYER, SHAPE, PARAMS, PREVIOUS};
    bool is_few = want->position_count == 4;

    *t = (struct table){.out = out, .width = want->width, .count = is_few ? 4 : COLUMN_COUNT};
    if (t->width == 0) t->width = 120;
    if (t->width > WIDTH_MAX) t->width = WIDTH_MAX;
    for (size_t i = 0; i < t->count; i++) {
        double end = want->position_count == t->count ? want->positions[i] : is_few ? mxnet[i] : all[i];
        if (want->position_count > 0 && want->positions[want->position_count - 1] <= 1) end *= t->width;
        else if (want->position_count == 0) end *= t->width;
        t->ends[i] = end > 0 && end <= WIDTH_MAX ? (unsigned)end : t->width;
        t->columns[i] = is_few ? few[i] : (enum column)i;
    }
}

/* Characters, not bytes; accents over the one before count nothing. */
static bool is_wide_part(unsigned char c) { return (c & 0xC0) != 0x80; }

static void table_row(struct table *t, const char *const cells[COLUMN_COUNT])
{
    unsigned at = 0;

    for (size_t i = 0; i < t->count; i++) {
        const char *text = cells[t->columns[i]] != NULL ? cells[t->columns[i]] : "";
        unsigned end = t->ends[i],
                 room = end > at + 1 && i + 1 < t->count ? end - at - 1
                        : end > at                       ? end - at
                                                         : 0,
                 used = 0;
        for (; *text != '\0'; text++) {
            if (is_wide_part((unsigned char)*text) && used++ == room) break;
            if ((unsigned char)*text < 32) buf_text(t->out, "\uFFFD");
            else buf_add(t->out, text, 1);
        }
        if (used > room) used = room;
        for (at += used; at < end && i + 1 < t->count; at++) buf_text(t->out, " ");
    }
    buf_text(t->out, "\n");
}

static void table_rule(struct table *t, char c)
{
    for (unsigned i = 0; i < t->width; i++) buf_add(t->out, &c, 1);
    buf_text(t->out, "\n");
}

static const char *kind_of(const struct viz_node *n)
{
    if (n->op != NULL) return viz_is_group_of_keys(n) ? "keys" : n->op;
    return n->role == ROLE_LABEL ? "label" : viz_is_param(n) ? "parameter" : "data";
}

static const char *text_of(struct buf *b)
{
    buf_add(b, "", 1);
    return b->failed ? "" : (const char *)b->at;
}

/* A number that lacks something is never shown as if it were the whole. */
static void count_text(struct buf *b, uint64_t n, bool lacks)
{
    if (n > 0 || !lacks) viz_add_count(b, n);
    if (lacks) buf_text(b, n > 0 ? " + ?" : "?");
}

/* The next input from *i on that is no parameter: "name 64x3", or NULL. */
static const char *previous(const struct viz_graph *g, const struct viz_node *n, size_t *i, struct buf *text)
{
    char shape[VIZ_SHAPE_TEXT];

    for (; *i < n->input_count; ++*i) {
        const struct viz_node *from = &g->nodes[n->inputs[*i].node];
        const struct viz_shape *s = n->inputs[*i].output < from->output_count ? &from->shapes[n->inputs[*i].output]
                                                                              : NULL;
        if (viz_is_param(from)) continue;
        ++*i;
        buf_clear(text);
        buf_text(text, from->name);
        if (s != NULL && s->ndim != VIZ_UNKNOWN) buf_format(text, " %s", viz_shape_text(s, shape));
        return text_of(text);
    }
    return NULL;
}

static void table_layer(struct table *t, const struct viz_graph *g, uint32_t at, const struct sum *s)
{
    const struct viz_node *n = &g->nodes[at];
    struct buf layer = {0}, params = {0}, bytes = {0}, before = {0};
    const char *cells[COLUMN_COUNT] = {NULL}, *more;
    char shape[VIZ_SHAPE_TEXT];
    size_t i = 0;

    buf_format(&layer, "%s(%s)", n->name, kind_of(n));
    count_text(&params, s->count, s->unknown > 0);
    count_text(&bytes, s->bytes, s->unknown + s->unsized > 0);
    cells[LAYER] = text_of(&layer);
    cells[SHAPE] = n->output_count > 0 && !g->is_tree ? viz_shape_text(&n->shapes[0], shape) : "";
    cells[PARAMS] = text_of(&params);
    cells[BYTES] = text_of(&bytes);
    cells[DTYPE] = s->dtype;
    cells[UPDATER] = s->updater;
    cells[PREVIOUS] = previous(g, n, &i, &before);
    table_row(t, cells);
    while ((more = previous(g, n, &i, &before)) != NULL)
        table_row(t, (const char *[COLUMN_COUNT]){[PREVIOUS] = more});
    buf_fini(&layer);
    buf_fini(&params);
    buf_fini(&bytes);
    buf_fini(&before);
}

enum { NAMES_TOLD = 6, NAME_SHOWN = 100 };

/* A list of names in a sentence; control characters become U+FFFD. */
static void add_name(struct buf *out, const char *name, unsigned said)
{
    size_t size = strnlen(name, NAME_SHOWN);

    while (name[size] != '\0' && !is_wide_part((unsigned char)name[size])) size--;
    buf_text(out, said > 0 ? ", '" : "'");
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)name[i] < 32 || name[i] == 127) buf_text(out, "\uFFFD");
        else buf_add(out, &name[i], 1);
    buf_text(out, "'");
}

static bool is_open(const struct viz_node *n)
{
    if (n->output_count == 0 || n->shapes[0].ndim == VIZ_UNKNOWN) return true;
    for (int i = 0; i < n->shapes[0].ndim; i++)
        if (n->shapes[0].dims[i] == VIZ_UNKNOWN) return true;
    return false;
}

static bool is_asked_for(const struct viz_node *n, enum viz_role role)
{
    uint64_t count;

    if (n->op != NULL) return false;
    if (role == ROLE_DATA) return n->role == ROLE_DATA && is_open(n);
    return viz_is_param(n) && (n->output_count == 0 || !viz_shape_count(&n->shapes[0], &count));
}

static unsigned add_names(struct buf *out, const struct viz_graph *g, enum viz_role role)
{
    unsigned total = 0;

    for (size_t i = 0; i < g->node_count; i++)
        if (is_asked_for(&g->nodes[i], role) && total++ < NAMES_TOLD)
            add_name(out, g->nodes[i].name, total - 1);
    if (total > NAMES_TOLD) buf_format(out, " and %u more", total - NAMES_TOLD);
    return total;
}

/* Asks for inputs that nobody gave; when all are known, for the arrays themselves. */
static void table_missing(struct buf *out, const struct viz_graph *g, const struct sum *all)
{
    struct buf names = {0};

    buf_format(out, "Not counted, as their shape is not known: %u array%s. ", all->unknown,
               all->unknown == 1 ? "" : "s");
    if (add_names(&names, g, ROLE_DATA) > 0) {
        buf_format(out, "Give the shape of %s.\n", text_of(&names));
    } else {
        buf_clear(&names);
        add_names(&names, g, ROLE_PARAM);
        buf_text(out, "They do not follow from the shapes of the inputs");
        buf_format(out, names.size > 0 ? "; give those of %s.\n" : "%s.\n", text_of(&names));
    }
    out->failed = out->failed || names.failed;
    buf_fini(&names);
}

static void table_totals(struct table *t, const struct viz_graph *g, const struct sum *all)
{
    buf_text(t->out, "Total params: ");
    count_text(t->out, all->count, all->unknown > 0);
    buf_format(t->out, " in %u array%s, ", all->arrays, all->arrays == 1 ? "" : "s");
    count_text(t->out, all->bytes, all->unknown + all->unsized > 0);
    buf_text(t->out, " bytes\n");
    if (all->kept > 0 || all->unknown_kept > 0) {
        buf_text(t->out, "Learned: ");
        count_text(t->out, all->count - all->kept, all->unknown > all->unknown_kept);
        buf_text(t->out, "; kept without being learned: ");
        count_text(t->out, all->kept, all->unknown_kept > 0);
        buf_text(t->out, "\n");
    }
    if (all->unknown > 0) table_missing(t->out, g, all);
}

void viz_write_summary(struct buf *out, const struct viz_graph *g, const struct viz_table *want)
{
    struct walk w = {.g = g, .counted = mem_array(g->node_count, sizeof *w.counted)};
    struct table t;
    size_t last = 0;

    if (w.counted == NULL) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < g->node_count; i++)
        if (is_layer(&g->nodes[i])) last = i;
    table_begin(&t, out, want);
    table_rule(&t, '_');
    table_row(&t, titles);
    table_rule(&t, '=');
    for (uint32_t i = 0; i < g->node_count; i++) {
        if (!is_layer(&g->nodes[i])) continue;
        struct sum s = walk_layer(&w, i);
        table_layer(&t, g, i, &s);
        table_rule(&t, i == last ? '=' : '_');
    }
    table_totals(&t, g, &w.all);
    table_rule(&t, '_');
    mem_free(w.counted);
}

/* ---- as numbers ---------------------------------------------------------------------------------------------- */

/* null where an unknown shape leaves the number open; `known` has what could be counted. */
static void json_sum(struct buf *out, const struct sum *s)
{
    char count[24] = "null", bytes[24] = "null";

    if (s->unknown == 0) snprintf(count, sizeof count, "%" PRIu64, s->count);
    if (s->unknown + s->unsized == 0) snprintf(bytes, sizeof bytes, "%" PRIu64, s->bytes);
    buf_format(out, "\"parameters\":%s,\"bytes\":%s,\"known\":%" PRIu64 ",\"arrays\":%u,\"unknown\":%u", count,
               bytes, s->count, s->arrays, s->unknown);
}

static void json_layer(struct buf *out, const struct viz_graph *g, uint32_t at, const struct sum *s)
{
    const struct viz_node *n = &g->nodes[at];
    char shape[VIZ_SHAPE_TEXT];
    const char *sep = "";

    buf_text(out, "{\"name\":");
    viz_add_json_text(out, n->name);
    buf_text(out, ",\"type\":");
    viz_add_json_text(out, kind_of(n));
    buf_format(out, ",\"shape\":\"%s\",", n->output_count > 0 ? viz_shape_text(&n->shapes[0], shape) : "?");
    json_sum(out, s);
    if (s->dtype != NULL) buf_format(out, ",\"dtype\":\"%s\"", s->dtype);
    if (s->updater != NULL) {
        buf_text(out, ",\"updater\":");
        viz_add_json_text(out, s->updater);
    }
    buf_text(out, ",\"inputs\":[");
    for (size_t i = 0; i < n->input_count; i++) {
        if (viz_is_param(&g->nodes[n->inputs[i].node])) continue;
        buf_text(out, sep);
        viz_add_json_text(out, g->nodes[n->inputs[i].node].name);
        sep = ",";
    }
    buf_text(out, "]}");
}

void viz_write_summary_json(struct buf *out, const struct viz_graph *g)
{
    struct walk w = {.g = g, .counted = mem_array(g->node_count, sizeof *w.counted)};
    const char *sep = "\n";

    if (w.counted == NULL) {
        out->failed = true;
        return;
    }
    buf_text(out, "{\"layers\":[");
    for (uint32_t i = 0; i < g->node_count; i++) {
        if (!is_layer(&g->nodes[i])) continue;
        struct sum s = walk_layer(&w, i);
        buf_text(out, sep);
        json_layer(out, g, i, &s);
        sep = ",\n";
    }
    buf_text(out, "],\n\"total\":{");
    json_sum(out, &w.all);
    buf_text(out, ",\"statistics\":");
    if (w.all.unknown_kept > 0) buf_text(out, "null}}\n");
    else buf_format(out, "%" PRIu64 "}}\n", w.all.kept);
    mem_free(w.counted);
}
