/* Items as launches and copies, and the pinned ring for copies whose host side is not pinned. Device thread only. */
#include "gpu/cuda_internal.h"

#include "gpu/program.h"
#include "gpu/whole.h"

#include <string.h>

enum {
    ELEMENTS_A_THREAD = 4,
    BLOCKS_A_PROCESSOR = 16,         /* more than are resident at once, so that none is idle at the end */
};

/* ---- launches -------------------------------------------------------------------------------------------------- */

static bool launch(struct cuda *c, const void *kernel, unsigned x, unsigned y, unsigned threads, cudaStream_t stream)
{
    void *arguments[] = {&c->arguments};
    dim3 grid = {x, y, 1}, block = {threads, 1, 1};

    return cuda_ok(c, cudaLaunchKernel(kernel, grid, block, arguments, 0, stream), "starting a kernel");
}

static unsigned blocks_for(size_t count)
{
    size_t blocks = (count + KERNEL_THREADS * ELEMENTS_A_THREAD - 1) / (KERNEL_THREADS * ELEMENTS_A_THREAD);
    return blocks > 0 ? (unsigned)blocks : 1;
}

static unsigned blocks_of_one(const struct cuda *c, size_t count)
{
    size_t most = (size_t)c->processors * BLOCKS_A_PROCESSOR, blocks = count / (KERNEL_THREADS * ELEMENTS_A_THREAD);
    return blocks < most ? blocks_for(count) : (unsigned)most;
}

static bool is_wide(const void *const *at, unsigned n)
{
    uintptr_t all = 0;

    for (unsigned i = 0; i < n; i++) all |= (uintptr_t)at[i];
    return all % 16 == 0;
}

static uint32_t *flag_of(const struct cuda *c, const struct item *it) { return it->place == NO_PLACE ? NULL : &c->flags[it->place]; }

/* ---- sums ------------------------------------------------------------------------------------------------------ */

static struct kernel_sum sum_of(const struct cuda *c, const struct item *it)
{
    const void *at[] = {it->to, it->from};

    return (struct kernel_sum){.to = it->to, .from = it->from, .count = it->count, .flags = flag_of(c, it),
                               .add = it->add, .wide = is_wide(at, 2)};
}

bool launch_sum(struct cuda *c, const struct item *it)
{
    c->arguments.sum = sum_of(c, it);
    return launch(c, kernel_of_sum(it->type), blocks_of_one(c, it->count), 1, KERNEL_THREADS, it->queue->stream);
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static struct kernel_tensor tensor_of(const struct cuda *c, const struct item *it)
{
    const struct cuda_step *s = &it->step;
    struct kernel_tensor t = {.sum = s->sum, .last = s->last, .from = s->from, .to = s->to, .master = s->master,
                              .count = it->count, .stream = s->stream, .flags = flag_of(c, it),
                              .rule = (uint16_t)s->rule, .scalars = (uint8_t)it->set};
    const void *at[] = {s->sum, s->last, s->from, s->to, s->master, s->slots[0], s->slots[1], s->slots[2]};

    memcpy(t.slots, s->slots, sizeof t.slots);
    t.wide = is_wide(at, sizeof at / sizeof at[0]);
    return t;
}

static union kernel_scalars scalars_of(const struct item *it)
{
    union kernel_scalars k = {.contributors = 1};
    const double *v = it->step.scalars.v;

    if (dtype_is_integer(it->type)) {
        if (it->step.rule == RULE_average) k.contributors = (int64_t)v[0];
    } else if (it->type == DTYPE_f64) {
        memcpy(k.f64, v, sizeof k.f64);
    } else {
        for (unsigned i = 0; i < RULE_SCALARS_MAX; i++) k.f32[i] = (float)v[i];
    }
    return k;
}

static bool launch_element(struct cuda *c, const struct item *it)
{
    c->arguments.step = (struct kernel_step){.tensor = tensor_of(c, it), .scalars = scalars_of(it)};
    return launch(c, kernel_of_step(it->type, it->step.rule), blocks_of_one(c, it->count), 1, KERNEL_THREADS,
                  it->queue->stream);
}

/* ---- whole rules: the passes of gpu/whole.c -------------------------------------------------------------------- */

enum cut { BY_ELEMENTS, BY_PARTS, BY_ROWS, BY_ROWS_OF_COLUMNS, BY_COLUMNS, SUM_UP };

struct pass {
    enum cut cut;
    enum whole_pass pass;
    uint32_t first, sums;            /* SUM_UP */
};

enum { PASSES_MAX = 8 };

#define SUMS(first, sums) {SUM_UP, WHOLE_PASS_sum_up, first, sums}
#define PASS(cut, name) {cut, WHOLE_PASS_##name, 0, 0}
#define END {SUM_UP, WHOLE_PASS_COUNT, 0, 0}

static const struct pass passes[RULES_END][PASSES_MAX] = {
    [RULE_lars] = {PASS(BY_PARTS, lars_norms), SUMS(0, 2), PASS(BY_ELEMENTS, lars_move), END},
    [RULE_lars_momentum] = {PASS(BY_PARTS, lars_norms), SUMS(0, 2), PASS(BY_ELEMENTS, lars_momentum_move), END},
    [RULE_lamb] = {PASS(BY_PARTS, lamb_norms), SUMS(0, 2), PASS(BY_ELEMENTS, lamb_move), END},
    [RULE_lans] = {PASS(BY_PARTS, lans_gradient), SUMS(3, 1), PASS(BY_PARTS, lans_norms), SUMS(0, 3),
                   PASS(BY_ELEMENTS, lans_move), END},
    [RULE_groupadagrad] = {PASS(BY_ROWS, groupadagrad), END},
    [RULE_adafactor] = {PASS(BY_ROWS, adafactor_rows), SUMS(0, 2), PASS(BY_ROWS_OF_COLUMNS, adafactor_column_parts),
                        PASS(BY_COLUMNS, adafactor_columns), PASS(BY_PARTS, adafactor_size), SUMS(2, 1),
                        PASS(BY_ELEMENTS, adafactor_move), END},
    [RULE_adafactor_vector] = {PASS(BY_PARTS, adafactor_vector_size), SUMS(0, 3), PASS(BY_ELEMENTS, adafactor_vector_move),
                               END},
};

static size_t parts(size_t whole, size_t part) { return (whole + part - 1) / part; }

static size_t rows_in_part(size_t columns) { return columns >= WHOLE_PART ? 1 : WHOLE_PART / columns; }

/* 0: the pass has nothing to do. */
static size_t blocks_of_pass(const struct cuda *c, const struct item *it, enum cut cut)
{
    size_t columns = it->step.columns, row_parts = columns > 0 ? parts(it->count / columns, WHOLE_ROWS) : 0;

    switch (cut) {
    case BY_ELEMENTS: return blocks_of_one(c, it->count);
    case BY_PARTS: return parts(it->count, WHOLE_PART);
    case BY_ROWS: return parts(it->count / columns, rows_in_part(columns));
    case BY_ROWS_OF_COLUMNS: return parts(row_parts * columns, KERNEL_THREADS);
    case BY_COLUMNS: return row_parts > 1 ? columns : 0;
    case SUM_UP: break;
    }
    return 1;
}

static bool launch_whole(struct cuda *c, const struct item *it)
{
    const struct cuda_step *s = &it->step;
    struct kernel_whole *k = &c->arguments.whole;

    *k = (struct kernel_whole){.sum = s->sum, .last = s->last, .from = s->from, .to = s->to, .master = s->master,
                               .scratch = s->scratch, .column_sums = s->scratch + whole_columns_at(it->count),
                               .count = it->count, .columns = s->columns};
    memcpy(k->slots, s->slots, sizeof k->slots);
    memcpy(k->v, s->scalars.v, sizeof k->v);
    for (const struct pass *p = passes[s->rule]; p->pass != WHOLE_PASS_COUNT; p++) {
        size_t blocks = blocks_of_pass(c, it, p->cut);
        k->first = p->first;
        k->sums = p->sums;
        if (blocks == 0) continue;
        if (!launch(c, kernel_of_whole(it->type, p->pass), (unsigned)blocks, 1, KERNEL_THREADS, it->queue->stream))
            return false;
        k->parts = blocks;
    }
    return true;
}

/* ---- programs -------------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(struct kernel_insn) == sizeof(struct program_insn), "instructions go to the device as they are");
_Static_assert(sizeof(struct kernel_program) <= KERNEL_ARGUMENT_MAX, "a program is an argument");
_Static_assert((int)PROGRAM_THREADS == (int)KERNEL_THREADS, "blocks are counted alike");

/* Rounded to the type of the arithmetic. */
static void fill_scalars(const struct item *it, float *f32, double *f64)
{
    const struct cuda_step *s = &it->step;

    for (unsigned i = 0; i < s->program->scalar_count; i++) {
        if (it->type == DTYPE_f64) f64[i] = s->program_scalars[i];
        else f32[i] = (float)s->program_scalars[i];
    }
}

static bool launch_compiled(struct cuda *c, const struct item *it)
{
    const struct cuda_step *s = &it->step;
    struct program_arguments *k = &c->arguments.compiled;

    *k = (struct program_arguments){.count = it->count, .sum = s->sum, .last = s->last, .from = s->from, .to = s->to,
                                    .master = s->master};
    memcpy(k->slots, s->slots, sizeof k->slots);
    fill_scalars(it, k->scalars.f32, k->scalars.f64);
    return launch(c, compiled_kernel(it->compiled), blocks_of_one(c, it->count), 1, PROGRAM_THREADS, it->queue->stream);
}

static bool launch_interpreted(struct cuda *c, const struct item *it)
{
    const struct cuda_step *s = &it->step;
    const struct program *p = s->program;
    struct kernel_program *k = &c->arguments.program;

    *k = (struct kernel_program){.sum = s->sum, .last = s->last, .from = s->from, .to = s->to, .master = s->master,
                                 .count = it->count, .insn_count = p->insn_count, .slot_count = p->slot_count};
    memcpy(k->slots, s->slots, sizeof k->slots);
    memcpy(k->insns, p->insns, p->insn_count * sizeof p->insns[0]);
    fill_scalars(it, k->scalars.f32, k->scalars.f64);
    return launch(c, kernel_of_program(it->type), blocks_of_one(c, it->count), 1, KERNEL_THREADS, it->queue->stream);
}

bool launch_step(struct cuda *c, const struct item *it)
{
    if (it->compiled != NULL) return launch_compiled(c, it);
    if (it->step.rule == RULE_program) return launch_interpreted(c, it);
    return rule_is_whole(it->step.rule) ? launch_whole(c, it) : launch_element(c, it);
}

/* ---- many at once ---------------------------------------------------------------------------------------------- */

static const void *fill_copies(struct cuda *c, const struct pending *p)
{
    unsigned n = 0;

    for (const struct item *it = p->items.first; it != NULL; it = it->next)
        c->arguments.copies.tensors[n++] = (struct kernel_copy){it->to, it->from, it->count};
    return kernel_of_copies();
}

static const void *fill_sums(struct cuda *c, const struct pending *p)
{
    unsigned n = 0;

    for (const struct item *it = p->items.first; it != NULL; it = it->next) c->arguments.sums.tensors[n++] = sum_of(c, it);
    return kernel_of_sums(p->items.first->type);
}

static const void *fill_steps(struct cuda *c, const struct pending *p)
{
    unsigned n = 0;

    for (const struct item *it = p->items.first; it != NULL; it = it->next)
        c->arguments.batch.tensors[n++] = tensor_of(c, it);
    for (unsigned i = 0; i < p->set_count; i++) c->arguments.batch.scalars[i] = scalars_of(p->sets[i]);
    return kernel_of_batch(p->items.first->type);
}

bool launch_pending(struct cuda *c, struct cuda_queue *q, enum phase phase)
{
    const struct pending *p = &q->pending[phase];
    size_t largest = 0;

    for (const struct item *it = p->items.first; it != NULL; it = it->next)
        if (it->count > largest) largest = it->count;
    if (phase == PHASE_SUM)
        return launch(c, fill_sums(c, p), blocks_for(largest), p->count, KERNEL_THREADS, q->stream);
    if (phase == PHASE_STEP)
        return launch(c, fill_steps(c, p), blocks_for(largest), p->count, KERNEL_THREADS, q->stream);
    /* Bytes: a thread moves 16 at a time. */
    return launch(c, fill_copies(c, p), blocks_for(largest / 16), p->count, KERNEL_THREADS, q->stream);
}

/* ---- the ring: pinned memory between the card and host memory that is not -------------------------------------- */

static void slot_settle(struct ring_slot *s)
{
    if (s->out != NULL) memcpy(s->out, s->at, s->size);
    s->out = NULL;
    s->used = false;
}

/* The oldest slot, free. While it is in use, other queues go on. */
static struct ring_slot *slot_take(struct cuda *c)
{
    struct ring_slot *s = &c->ring[c->ring_next++ % RING_SLOTS];
    unsigned idle = 0;

    while (s->used && !c->dead) {
        cudaError_t r = cudaEventQuery(s->event);
        if (r == cudaErrorNotReady) cuda_pause(c, &idle);
        else if (cuda_ok(c, r, "waiting for a copy")) slot_settle(s);
    }
    return c->dead ? NULL : s;
}

static bool slot_given(struct cuda *c, struct ring_slot *s, const struct item *it, void *out, size_t size)
{
    if (!cuda_ok(c, cudaEventRecord(s->event, it->queue->stream), "recording an event")) return false;
    s->used = true;
    s->out = out;
    s->size = size;
    s->item = it;
    return true;
}

bool launch_upload(struct cuda *c, struct item *it)
{
    if (it->side != SIDE_PAGEABLE)
        return cuda_ok(c, cudaMemcpyAsync(it->to, it->from, it->count, it->side == SIDE_CUDA ? cudaMemcpyDefault
                                          : cudaMemcpyHostToDevice, it->queue->stream), "copying up");
    for (size_t at = 0, n; at < it->count; at += n) {
        struct ring_slot *s = slot_take(c);
        if (s == NULL) return false;
        n = it->count - at < c->slot_size ? it->count - at : c->slot_size;
        memcpy(s->at, (const char *)it->from + at, n);
        if (!cuda_ok(c, cudaMemcpyAsync((char *)it->to + at, s->at, n, cudaMemcpyHostToDevice, it->queue->stream),
                     "copying up") || !slot_given(c, s, it, NULL, n)) return false;
    }
    return true;
}

bool launch_download(struct cuda *c, struct item *it)
{
    if (it->side != SIDE_PAGEABLE)
        return cuda_ok(c, cudaMemcpyAsync(it->to, it->from, it->count, it->side == SIDE_CUDA ? cudaMemcpyDefault
                                          : cudaMemcpyDeviceToHost, it->queue->stream), "copying down");
    for (size_t at = 0, n; at < it->count; at += n) {
        struct ring_slot *s = slot_take(c);
        if (s == NULL) return false;
        n = it->count - at < c->slot_size ? it->count - at : c->slot_size;
        if (!cuda_ok(c, cudaMemcpyAsync(s->at, (const char *)it->from + at, n, cudaMemcpyDeviceToHost, it->queue->stream),
                     "copying down") || !slot_given(c, s, it, (char *)it->to + at, n)) return false;
    }
    return true;
}

/* Its mark has passed, so its copies are done. */
void ring_settle(struct cuda *c, const struct item *it)
{
    for (unsigned i = 0; i < RING_SLOTS; i++)
        if (c->ring[i].used && c->ring[i].item == it && c->ring[i].out != NULL) slot_settle(&c->ring[i]);
}

/* ---- statistics ------------------------------------------------------------------------------------------------ */

bool launch_stats(struct cuda *c, struct item *it)
{
    size_t blocks = parts(it->count, WHOLE_PART / 4);

    it->blocks = blocks < STATS_BLOCKS ? (unsigned)blocks : STATS_BLOCKS;
    c->arguments.stats = (struct kernel_stats){.at = it->from, .minus = it->to, .out = c->stats[it->place], .count = it->count};
    return launch(c, kernel_of_stats(it->type), it->blocks, 1, KERNEL_THREADS, it->queue->stream);
}

/* ---- places for what kernels find ------------------------------------------------------------------------------ */

bool needs_place(const struct item *it) { return it->flags != NULL || it->kind == ITEM_STATS; }

struct places *places_of(struct cuda *c, const struct item *it)
{
    return it->kind == ITEM_STATS ? &c->free_stats : &c->free_flags;
}

bool place_take(struct cuda *c, struct item *it)
{
    struct places *p = places_of(c, it);
    unsigned idle = 0;

    while (p->count == 0) {
        if (c->awaited == 0 && !cuda_drain(c)) return false;
        if (p->count == 0) cuda_pause(c, &idle);
        if (c->dead) return false;
    }
    it->place = p->free[--p->count];
    return true;
}

void place_give(struct cuda *c, struct item *it)
{
    struct places *p = places_of(c, it);

    if (it->kind == ITEM_STATS) {
        for (unsigned i = 0; i < it->blocks; i++) stats_merge(it->stats, &c->stats[it->place][i]);
    } else {
        if (c->flags[it->place] != 0) __atomic_fetch_or(it->flags, WORK_OVERFLOW, __ATOMIC_RELAXED);
        c->flags[it->place] = 0;
    }
    p->free[p->count++] = (uint16_t)it->place;
    it->place = NO_PLACE;
}
