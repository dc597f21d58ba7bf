/* Kernels: C++ functions run thread by thread, and PTX.
 *
 * Without barriers a block is a loop over its threads. Where races are looked for, threads are dealt out to a few
 * lanes, coroutines that are ordered with the beginning and the end of the kernel only: two threads, of one block or
 * of two, that touch one element race in nearly every run. With barriers each thread of a block is a coroutine, and
 * blocks follow one another: their shared memory is one static variable. */
#include "tests/cusim/ptxi.h"
#include "tests/cusim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARP = 32 };

struct cusim_dim cusim_tid, cusim_bid, cusim_bdim, cusim_gdim;
static struct kernel *kernels;
struct kernel *(*kernel_unknown)(const void *function);

/* ---- the list -------------------------------------------------------------------------------------------------- */

struct kernel *kernel_find(const void *function)
{
    struct kernel *k = kernels;
    while (k != NULL && k->function != function) k = k->next;
    return k == NULL && kernel_unknown != NULL ? kernel_unknown(function) : k;
}

struct kernel *kernel_add(const void *function, const char *name)
{
    struct kernel *k = sim_new(sizeof *k);

    k->function = function != NULL ? function : k;
    snprintf(k->name, sizeof k->name, "%s", name);
    k->next = kernels;
    kernels = k;
    return k;
}

void kernel_remove(struct kernel *k)
{
    struct kernel **at = &kernels;

    while (*at != k) at = &(*at)->next;
    *at = k->next;
    ptxi_free(k->ptx);
    free(k);
}

void cusim_register(const void *function, const char *name, cusim_thunk thunk, size_t argument_size, int flags)
{
    sim_lock();
    if (kernel_find(function) == NULL) {
        struct kernel *k = kernel_add(function, name);
        k->thunk = thunk;
        k->argument_size = argument_size;
        k->flags = flags;
    }
    sim_unlock();
}

/* ---- what runs now --------------------------------------------------------------------------------------------- */

enum state { RUNS, AT_BARRIER, AT_WARP, IS_DONE };

struct thread {
    struct coro coro;
    enum state state;
    const void *site;        /* of the barrier */
    unsigned mask;
    uint64_t value;
    int predicate;
    unsigned barriers;       /* passed */
    char edge;
    struct cusim_dim id;
};

static struct {
    const struct op *op;
    struct coro *main;       /* the stream's */
    uint64_t salt;
    char begin, end;         /* happens-before: from the stream to its threads, and back */
    char barrier[2]; /* and among them; in turn, as one may have come to the next while another leaves the last */
    struct thread *threads;  /* of a block with barriers */
    unsigned count, now;
    unsigned lane;
} run;

static struct cusim_dim position(uint64_t i, dim3 of)
{
    return (struct cusim_dim){(unsigned)(i % of.x), (unsigned)(i / of.x % of.y), (unsigned)(i / of.x / of.y)};
}

static uint64_t volume(dim3 d) { return (uint64_t)d.x * d.y * d.z; }

static void call(void)
{
    void *args[1] = {run.op->argument};
    run.op->kernel->thunk(args);
}

static void lose(const char *why)
{
    sim_say("kernel %s: %s", run.op->kernel->name, why);
    sim.stats.mistakes++;
    sim_lose(cudaErrorLaunchFailure);
}

/* ---- blocks without barriers ----------------------------------------------------------------------------------- */

static bool in_lane(uint64_t thread)
{
    uint64_t mixed = (thread ^ run.salt) * 0x9e3779b97f4a7c15u;
    return (mixed >> 40) % SIM_LANES == run.lane;
}

static void run_threads(bool by_lane)
{
    uint64_t count = volume(run.op->block);
    struct order o = {count, run.salt % count, 1};

    if (sim.policy == CUSIM_EAGER) o.at = 0;
    for (uint64_t n = 0; n < count; n++) {
        uint64_t i = order_next(&o);
        if (by_lane && !in_lane(i)) continue;
        cusim_tid = position(i, run.op->block);
        call();
    }
}

static struct CUstream_st *lanes_of;

static void lane_main(void)
{
    struct coro *me = &lanes_of->lanes[run.lane];

    coro_begin(me);
    for (;;) {
        race_acquire(&run.begin);
        run_threads(true);
        race_release(&run.end);
        coro_switch(me, run.main);
    }
}

static void run_lanes(struct CUstream_st *s)
{
    char name[48];

    lanes_of = s;
    run.salt = sim_random();
    for (run.lane = 0; run.lane < SIM_LANES; run.lane++) {
        struct coro *lane = &s->lanes[run.lane];
        snprintf(name, sizeof name, "cusim threads %u of a kernel", run.lane);
        if (lane->stack == NULL) coro_init(lane, lane_main, name);
        coro_switch(&s->coro, lane);
    }
}

static void run_plain(struct CUstream_st *s)
{
    if (race_watched()) {
        run_lanes(s);
        return;
    }
    run.salt = sim_random();
    run_threads(false);
}

/* ---- blocks with barriers -------------------------------------------------------------------------------------- */

static struct thread *me(const char *what)
{
    if (run.count > 0) return &run.threads[run.now];
    sim_say("%s, but the kernel is not registered with CUSIM_BARRIER", what);
    abort();
}

static void thread_main(void)
{
    struct thread *t = &run.threads[run.now];

    coro_begin(&t->coro);
    race_acquire(&run.begin);
    call();
    t->state = IS_DONE;
    race_release(&t->edge);
    coro_switch(&t->coro, run.main);
}

static void thread_go_on(unsigned i)
{
    run.now = i;
    cusim_tid = run.threads[i].id;
    coro_switch(run.main, &run.threads[i].coro);
}

static void stop(struct thread *t, enum state state)
{
    t->state = state;
    coro_switch(&t->coro, run.main);
}

void cusim_barrier(const void *site)
{
    struct thread *t = me("__syncthreads");
    char *edge = &run.barrier[t->barriers++ % 2];

    t->site = site;
    race_release(edge);
    stop(t, AT_BARRIER);
    race_acquire(edge);
}

static unsigned warp_first(void) { return run.now / WARP * WARP; }

static struct thread *lane_of(unsigned mask, unsigned lane)
{
    unsigned i = warp_first() + lane;
    return (mask >> lane & 1) != 0 && i < run.count ? &run.threads[i] : NULL;
}

static void warp_wait(struct thread *t, unsigned mask)
{
    if ((mask >> run.now % WARP & 1) == 0) lose("a lane is not in its own mask");
    t->mask = mask;
    stop(t, AT_WARP);
}

uint64_t cusim_exchange(unsigned mask, uint64_t value, int from, int *valid)
{
    struct thread *t = me("a warp's exchange"), *source;

    t->value = value;
    warp_wait(t, mask);
    source = lane_of(mask, (unsigned)from % WARP);
    value = source != NULL ? source->value : 0;
    *valid = source != NULL;
    warp_wait(t, mask); /* nobody overwrites what another has yet to read */
    return value;
}

unsigned cusim_ballot(unsigned mask, int predicate)
{
    struct thread *t = me("a ballot");
    unsigned result = 0;

    t->predicate = predicate;
    warp_wait(t, mask);
    for (unsigned lane = 0; lane < WARP; lane++) {
        const struct thread *l = lane_of(mask, lane);
        if (l != NULL && l->predicate) result |= 1u << lane;
    }
    warp_wait(t, mask);
    return result;
}

void cusim_syncwarp(unsigned mask)
{
    struct thread *t = me("__syncwarp");

    race_release(&t->edge);
    warp_wait(t, mask);
    for (unsigned lane = 0; lane < WARP; lane++) {
        struct thread *l = lane_of(mask, lane);
        if (l != NULL) race_acquire(&l->edge);
    }
}

static void threads_begin(void)
{
    race_release(&run.begin); /* of this block, which comes after the one before: they share static variables */
    run.count = (unsigned)volume(run.op->block);
    run.threads = sim_new(run.count * sizeof *run.threads);
    for (unsigned i = 0; i < run.count; i++) {
        run.threads[i].id = position(i, run.op->block);
        coro_init(&run.threads[i].coro, thread_main, "cusim thread of a kernel");
    }
}

static void threads_end(void)
{
    for (unsigned i = 0; i < run.count; i++) {
        race_acquire(&run.threads[i].edge);
        coro_fini(&run.threads[i].coro);
    }
    free(run.threads);
    run.threads = NULL;
    run.count = 0;
}

/* Whether all lanes that thread i waits for have come with the same mask. */
static bool warp_is_here(unsigned i)
{
    unsigned first = i / WARP * WARP, mask = run.threads[i].mask;

    for (unsigned k = first; k < first + WARP && k < run.count; k++) {
        const struct thread *t = &run.threads[k];
        if ((mask >> (k - first) & 1) == 0 || t->state == IS_DONE) continue;
        if (t->state != AT_WARP || t->mask != mask) return false;
    }
    return true;
}

static bool release_warps(void)
{
    bool any = false;

    for (unsigned i = 0; i < run.count; i++) {
        if (run.threads[i].state != AT_WARP || !warp_is_here(i)) continue;
        unsigned first = i / WARP * WARP, mask = run.threads[i].mask;
        for (unsigned k = first; k < first + WARP && k < run.count; k++)
            if ((mask >> (k - first) & 1) != 0 && run.threads[k].state == AT_WARP) run.threads[k].state = RUNS;
        any = true;
    }
    return any;
}

static bool release_barrier(void)
{
    const void *site = NULL;

    for (unsigned i = 0; i < run.count; i++) {
        const struct thread *t = &run.threads[i];
        if (t->state != AT_BARRIER && t->state != IS_DONE) return false;
        if (t->state == AT_BARRIER && site != NULL && t->site != site) {
            lose("threads wait at different __syncthreads");
            return false;
        }
        if (t->state == AT_BARRIER) site = t->site;
    }
    for (unsigned i = 0; i < run.count; i++)
        if (run.threads[i].state == AT_BARRIER) run.threads[i].state = RUNS;
    return site != NULL;
}

static bool all_done(void)
{
    for (unsigned i = 0; i < run.count; i++)
        if (run.threads[i].state != IS_DONE) return false;
    return true;
}

static void run_with_barriers(void)
{
    threads_begin();
    while (!all_done() && sim.sticky == cudaSuccess) {
        struct order o = order_new(run.count);
        bool any = false;
        for (unsigned n = 0; n < run.count; n++) {
            unsigned i = (unsigned)order_next(&o);
            if (run.threads[i].state != RUNS) continue;
            thread_go_on(i);
            any = true;
        }
        if (!release_warps() && !release_barrier() && !any && !all_done())
            lose("threads wait for one another for ever");
    }
    threads_end();
}

/* ---- a launch -------------------------------------------------------------------------------------------------- */

static void run_blocks(struct CUstream_st *s, const struct op *o)
{
    uint64_t count = volume(o->grid);
    struct order order = order_new(count);

    cusim_bdim = (struct cusim_dim){o->block.x, o->block.y, o->block.z};
    cusim_gdim = (struct cusim_dim){o->grid.x, o->grid.y, o->grid.z};
    for (uint64_t n = 0; n < count && sim.sticky == cudaSuccess; n++) {
        cusim_bid = position(order_next(&order), o->grid);
        if ((o->kernel->flags & CUSIM_BARRIER) != 0) run_with_barriers();
        else run_plain(s);
    }
}

/* The memory that kernels of a device may touch; for free. */
static struct ptxi_range *ranges_of(int device, unsigned *count)
{
    struct ptxi_range *ranges;
    unsigned room = 0;

    for (const struct block *b = sim.blocks; b != NULL; b = b->next) room++;
    ranges = sim_new(room * sizeof *ranges);
    *count = 0;
    for (const struct block *b = sim.blocks; b != NULL; b = b->next)
        if (memory_reaches(device, b)) ranges[(*count)++] = (struct ptxi_range){b->at, b->size};
    return ranges;
}

static void run_ptx(int device, const struct op *o)
{
    struct ptxi_launch l = {.arguments = o->argument, .arguments_size = o->kernel->argument_size,
                            .grid = {o->grid.x, o->grid.y, o->grid.z}, .block = {o->block.x, o->block.y, o->block.z},
                            .seed = sim.policy == CUSIM_EAGER ? 0 : sim_random() | 1};
    struct ptxi_range *ranges = ranges_of(device, &l.range_count);
    struct ptxi_count count = {0};
    char why[200];

    l.ranges = ranges;
    if (ptxi_run(o->kernel->ptx, &l, &count, why, sizeof why) != 0) {
        sim_say("kernel %s: %s", o->kernel->name, why);
        sim.stats.mistakes++;
        sim_lose(cudaErrorIllegalAddress);
    }
    sim.stats.ptx_loaded += count.loaded;
    sim.stats.ptx_stored += count.stored;
    free(ranges);
}

static bool meets_fault(void)
{
    if (sim.fault_nth == 0 || --sim.fault_nth > 0) return false;
    sim_lose(sim.fault_error);
    return true;
}

void kernel_run(struct CUstream_st *s, const struct op *o)
{
    if (meets_fault()) return;
    memory_open(s->device);
    if (o->kernel->ptx != NULL) {
        run_ptx(s->device, o);
        return;
    }
    run.op = o;
    run.main = &s->coro;
    race_release(&run.begin);
    run_blocks(s, o);
    race_acquire(&run.end);
}
