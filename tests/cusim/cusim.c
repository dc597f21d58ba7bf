#include "tests/cusim/cusim.h"
#include "tests/cusim/ptxi.h"
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

/* ---- sanitizer hooks: weak, so that a plain build links without them ---- */
#define WEAK __attribute__((weak))
extern void *__tsan_create_fiber(unsigned) WEAK;
extern void __tsan_destroy_fiber(void *) WEAK;
extern void *__tsan_get_current_fiber(void) WEAK;
extern void __tsan_switch_to_fiber(void *, unsigned) WEAK;
extern void __tsan_set_fiber_name(void *, const char *) WEAK;
extern void __tsan_acquire(void *) WEAK;
extern void __tsan_release(void *) WEAK;
extern void AnnotateIgnoreReadsBegin(const char *, int) WEAK;
extern void AnnotateIgnoreReadsEnd(const char *, int) WEAK;
extern void AnnotateIgnoreWritesBegin(const char *, int) WEAK;
extern void AnnotateIgnoreWritesEnd(const char *, int) WEAK;
extern void __asan_poison_memory_region(const volatile void *, size_t) WEAK;
extern void __asan_unpoison_memory_region(const volatile void *, size_t) WEAK;
extern void __sanitizer_start_switch_fiber(void **, const void *, size_t) WEAK;
extern void __sanitizer_finish_switch_fiber(void *, const void **, size_t *) WEAK;
static void acquire(void *p) { if (__tsan_acquire) __tsan_acquire(p); }
static void release(void *p) { if (__tsan_release) __tsan_release(p); }
/* A coroutine: its own stack, and its own thread as TSan sees it. Switching makes no happens-before edge. */
enum { STACK = 256 * 1024 };
struct coro { ucontext_t c; const void *bottom; size_t size; void *stack, *fiber, *fake; };
static struct coro *coro_prev;
static void coro_arrive(struct coro *me)
{
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(me->fake, &coro_prev->bottom, &coro_prev->size);
}
static void coro_swap(struct coro *from, struct coro *to, int last)
{
    coro_prev = from;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(last ? NULL : &from->fake, to->bottom, to->size);
    if (__tsan_switch_to_fiber) {
        from->fiber = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(to->fiber, 1);
    }
    swapcontext(&from->c, &to->c);
    coro_arrive(from);
}
static void coro_init(struct coro *co, void (*fn)(void))
{
    co->bottom = co->stack = malloc(STACK);
    co->size = STACK;
    getcontext(&co->c);
    co->c.uc_stack.ss_sp = co->stack;
    co->c.uc_stack.ss_size = STACK;
    makecontext(&co->c, fn, 0);
    if (__tsan_create_fiber)
        co->fiber = __tsan_create_fiber(0);
}
static void coro_end(struct coro *co)
{
    if (co->fiber)
        __tsan_destroy_fiber(co->fiber);
    free(co->stack);
}

/* ---- state ---- */
struct token { int refs, done; double when; char tok; };   /* one recorded event, or one operation's end */
enum opkind { OP_COPY, OP_SET, OP_KERNEL, OP_RECORD, OP_WAIT, OP_HOSTFN, OP_FREE, OP_EXT };
struct op {
    struct op *next;
    enum opkind kind;
    char tok;                      /* host -> stream edge */
    struct token *t;
    void *dst, *arg;
    const void *src;
    size_t n;
    int value;
    const struct kernel *k;
    dim3 grid, block;
    void (*fn)(void *);
    int (*ready)(void *);
};
struct CUstream_st { struct CUstream_st *link; int dev, nonblocking, dead; struct op *head, **tail; struct token *last; struct coro co; unsigned prio; struct CUgraph_st *capture; };
struct CUevent_st { struct token *t; int timing; };
struct CUgraph_st { struct op *head, **tail; };
struct CUgraphExec_st { struct CUgraph_st *g; };
struct kernel { struct kernel *link; const void *fn; char name[64]; cusim_thunk thunk; size_t argsize; int flags; struct ptxi *ptx; };
struct block { struct block *link; void *p; size_t n; int kind, dev, fd; };   /* kind: 0 device, 1 pinned, 2 registered; fd: shared memory, or -1 */

static struct {
    int ndev, nstream, hostfn, fault, run_dev, ipc;
    size_t mem, used[16];
    enum cusim_policy policy;
    uint64_t rng;
    struct CUstream_st *streams, *dflt[16];
    struct block *blocks;
    cudaError_t sticky;
    char fail_api[48];
    int fail_n, fail_err;
    struct cusim_stats st;
} S;
static struct kernel *kernels;
static __thread int cur_dev;
static __thread cudaError_t last_err;
static volatile int lock_word;

static void lock(void)   /* not a pthread mutex: TSan must not see an edge here */
{
    while (__atomic_exchange_n(&lock_word, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    if (AnnotateIgnoreReadsBegin) {   /* our own queues are no business of TSan's; operations run on other "threads" */
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
}
static void unlock(void)
{
    if (AnnotateIgnoreReadsEnd) {
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    }
    __atomic_store_n(&lock_word, 0, __ATOMIC_RELEASE);
}
static uint64_t rnd(void)
{
    S.rng ^= S.rng << 13;
    S.rng ^= S.rng >> 7;
    S.rng ^= S.rng << 17;
    return S.rng;
}
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static cudaError_t ret(cudaError_t e)
{
    if (e)
        last_err = e;
    unlock();
    return e;
}
static cudaError_t enter(const char *api)
{
    lock();
    if (S.hostfn) {
        fprintf(stderr, "cusim: %s called from a host function on a stream\n", api);
        return cudaErrorNotPermitted;
    }
    if (S.fail_n && !strcmp(api, S.fail_api) && --S.fail_n == 0)
        return (cudaError_t)S.fail_err;
    if (!S.ndev)
        return cudaErrorInsufficientDriver;
    return S.sticky;
}
#define ENTER() do { cudaError_t e_ = enter(__func__); if (e_) return ret(e_); } while (0)

static void poison(int on)   /* host code may not touch device memory */
{
    if (!__asan_poison_memory_region)
        return;
    for (struct block *b = S.blocks; b; b = b->link)
        if (b->kind == 0)
            (on ? __asan_poison_memory_region : __asan_unpoison_memory_region)(b->p, b->n);
}
static void poison_for(int dev)   /* a kernel may touch its own device's memory only */
{
    if (!__asan_poison_memory_region)
        return;
    for (struct block *b = S.blocks; b; b = b->link)
        if (b->kind == 0 && b->dev != dev)
            __asan_poison_memory_region(b->p, b->n);
}
static struct block *find(const void *p, size_t n)
{
    for (struct block *b = S.blocks; b; b = b->link)
        if ((const char *)p >= (char *)b->p && (const char *)p + n <= (char *)b->p + b->n)
            return b;
    return NULL;
}
static struct block *find_base(const void *p)
{
    for (struct block *b = S.blocks; b; b = b->link)
        if (b->p == p)
            return b;
    return NULL;
}
static void forget(struct block *b)
{
    struct block **q = &S.blocks;
    while (*q != b)
        q = &(*q)->link;
    *q = b->link;
    free(b);
}
static void give_back(struct block *b)
{
    if (b->fd < 0) {
        free(b->p);
        return;
    }
    munmap(b->p, b->n);
    close(b->fd);
}
static void unref(struct token *t)
{
    if (t && --t->refs == 0)
        free(t);
}

/* ---- kernels: blocks in turn, threads in turn; with barriers each thread is a fibre ---- */
struct cusim_dim cusim_tid, cusim_bid, cusim_bdim, cusim_gdim;
struct thr { struct coro co; int state; const void *site; unsigned mask; uint64_t val; int pred; char tok; struct cusim_dim tid; };
enum { T_RUN, T_BLOCK, T_WARP, T_DONE };
static struct { struct thr *t; int n, cur; struct coro *main; const struct kernel *k; void **args; char tok; } B;

static void to_main(int last) { coro_swap(&B.t[B.cur].co, B.main, last); }
static void thread_main(void)
{
    coro_arrive(&B.t[B.cur].co);
    acquire(&B.tok);
    B.k->thunk(B.args);
    B.t[B.cur].state = T_DONE;
    release(&B.t[B.cur].tok);
    to_main(1);
}
static void run_thread(int i)
{
    B.cur = i;
    cusim_tid = B.t[i].tid;
    coro_swap(B.main, &B.t[i].co, 0);
}
static void die(const char *m, const char *k)
{
    fprintf(stderr, "cusim: %s in kernel %s\n", m, k);
    abort();
}
void cusim_barrier(const void *site)
{
    if (!B.n)
        die("barrier, but the kernel was registered without CUSIM_BARRIER", "?");
    struct thr *t = &B.t[B.cur];
    t->site = site;
    t->state = T_BLOCK;
    release(&t->tok);
    to_main(0);
    for (int i = 0; i < B.n; i++)
        acquire(&B.t[i].tok);
}
static void warp_wait(unsigned mask)
{
    struct thr *t = &B.t[B.cur];
    if (!(mask >> (B.cur & 31) & 1))
        die("lane not in its own mask", B.k->name);
    t->mask = mask;
    t->state = T_WARP;
    to_main(0);
}
uint64_t cusim_exchange(unsigned mask, uint64_t v, int src, int *valid)
{
    if (!B.n)
        die("warp exchange, but the kernel was registered without CUSIM_BARRIER", "?");
    struct thr *t = &B.t[B.cur];
    t->val = v;
    warp_wait(mask);
    *valid = (mask >> src & 1) && (B.cur & ~31) + src < B.n;
    uint64_t r = *valid ? B.t[(B.cur & ~31) + src].val : 0;
    warp_wait(mask);
    return r;
}
unsigned cusim_ballot(unsigned mask, int pred)
{
    struct thr *t = &B.t[B.cur];
    unsigned r = 0;
    t->pred = pred;
    warp_wait(mask);
    for (int l = 0; l < 32 && (B.cur & ~31) + l < B.n; l++)
        if (mask >> l & 1 && B.t[(B.cur & ~31) + l].pred)
            r |= 1u << l;
    warp_wait(mask);
    return r;
}
void cusim_syncwarp(unsigned mask)
{
    struct thr *t = &B.t[B.cur];
    release(&t->tok);
    warp_wait(mask);
    for (int l = 0; l < 32 && (B.cur & ~31) + l < B.n; l++)
        acquire(&B.t[(B.cur & ~31) + l].tok);
}
static void run_block_fibres(struct coro *me, const struct kernel *k, void **args, dim3 block)
{
    int n = (int)(block.x * block.y * block.z), done = 0;
    B.t = calloc((size_t)n, sizeof *B.t);
    B.n = n;
    B.k = k;
    B.args = args;
    B.main = me;
    release(&B.tok);
    for (int i = 0; i < n; i++) {
        unsigned u = (unsigned)i;
        B.t[i].tid = (struct cusim_dim){u % block.x, u / block.x % block.y, u / block.x / block.y};
        coro_init(&B.t[i].co, thread_main);
    }
    while (done < n) {
        int start = (int)(rnd() % (unsigned)n), step = 1, ran = 0;
        for (int j = 0; j < n; j++) {
            int i = (start + j * step) % n;
            if (B.t[i].state == T_RUN) {
                run_thread(i);
                ran = 1;
                done += B.t[i].state == T_DONE;
            }
        }
        for (int w = 0; w < n; w += 32)   /* release warps whose lanes have all come */
            for (int l = w; l < w + 32 && l < n; l++) {
                if (B.t[l].state != T_WARP)
                    continue;
                unsigned m = B.t[l].mask;
                int all = 1;
                for (int q = 0; q < 32; q++)
                    if (m >> q & 1 && w + q < n && (B.t[w + q].state != T_WARP || B.t[w + q].mask != m) && B.t[w + q].state != T_DONE)
                        all = 0;
                for (int q = 0; all && q < 32; q++)
                    if (m >> q & 1 && w + q < n && B.t[w + q].state == T_WARP)
                        B.t[w + q].state = T_RUN, ran = 1;
            }
        int waiting = 0;
        const void *site = NULL;
        for (int i = 0; i < n; i++)
            if (B.t[i].state == T_BLOCK) {
                waiting++;
                if (site && site != B.t[i].site)
                    die("threads wait at different __syncthreads", k->name);
                site = B.t[i].site;
            }
        if (waiting && waiting + done == n) {
            for (int i = 0; i < n; i++)
                if (B.t[i].state == T_BLOCK)
                    B.t[i].state = T_RUN;
            ran = 1;
        }
        if (!ran)
            die("threads wait for each other for ever", k->name);
    }
    for (int i = 0; i < n; i++) {
        acquire(&B.t[i].tok);
        coro_end(&B.t[i].co);
    }
    free(B.t);
    B.n = 0;
}
static void run_kernel(struct coro *me, const struct op *o)
{
    void *args[1] = {o->arg};
    if (o->k->ptx) {
        struct ptxi_range r[512];
        struct ptxi_count c = {0};
        char err[160];
        int n = 0;
        for (struct block *b = S.blocks; b && n < 512; b = b->link)
            if (b->kind || b->dev == S.run_dev)
                r[n++] = (struct ptxi_range){b->p, b->n};
        if (ptxi_run(o->k->ptx, o->arg, (unsigned[]){o->grid.x, o->grid.y, o->grid.z}, (unsigned[]){o->block.x, o->block.y, o->block.z}, r, n, &c, err, sizeof err)) {
            fprintf(stderr, "cusim: kernel %s: %s\n", o->k->name, err);
            S.sticky = cudaErrorIllegalAddress;
        }
        return;
    }
    cusim_bdim = (struct cusim_dim){o->block.x, o->block.y, o->block.z};
    cusim_gdim = (struct cusim_dim){o->grid.x, o->grid.y, o->grid.z};
    unsigned nb = o->grid.x * o->grid.y * o->grid.z, off = nb ? (unsigned)(rnd() % nb) : 0;
    for (unsigned j = 0; j < nb; j++) {   /* blocks come in no promised order */
        unsigned b = (j + off) % nb;
        cusim_bid = (struct cusim_dim){b % o->grid.x, b / o->grid.x % o->grid.y, b / o->grid.x / o->grid.y};
        if (o->k->flags & CUSIM_BARRIER) {
            run_block_fibres(me, o->k, args, o->block);
            continue;
        }
        for (cusim_tid.z = 0; cusim_tid.z < o->block.z; cusim_tid.z++)
            for (cusim_tid.y = 0; cusim_tid.y < o->block.y; cusim_tid.y++)
                for (cusim_tid.x = 0; cusim_tid.x < o->block.x; cusim_tid.x++)
                    o->k->thunk(args);
    }
}
void cusim_register(const void *fn, const char *name, cusim_thunk thunk, size_t argsize, int flags)
{
    struct kernel *k = calloc(1, sizeof *k);
    k->fn = fn;
    snprintf(k->name, sizeof k->name, "%s", name);
    k->thunk = thunk;
    k->argsize = argsize;
    k->flags = flags;
    k->link = kernels;
    kernels = k;
}

/* ---- queues ---- */
static int runnable(const struct CUstream_st *s)
{
    const struct op *o = s->head;
    return o && (o->kind != OP_WAIT || o->t->done) && (o->kind != OP_EXT || o->ready(o->arg));
}
static struct { struct CUstream_st *s; struct coro host; } R;   /* the stream whose turn it is */
static void exec(struct CUstream_st *s)
{
    struct op *o = s->head;
    struct block *b;
    acquire(&o->tok);
    poison(0);
    S.st.ops_run++;
    switch (o->kind) {
    case OP_COPY: memcpy(o->dst, o->src, o->n); break;
    case OP_SET: memset(o->dst, o->value, o->n); break;
    case OP_KERNEL:
        if (S.fault && --S.fault == 0) {
            S.sticky = cudaErrorIllegalAddress;
            break;
        }
        S.run_dev = s->dev;
        poison_for(s->dev);
        run_kernel(&s->co, o);
        break;
    case OP_WAIT: acquire(&o->t->tok); break;
    case OP_HOSTFN:
        poison(1);
        S.hostfn = 1;
        o->fn(o->arg);
        S.hostfn = 0;
        break;
    case OP_FREE:
        b = find_base(o->dst);
        S.used[b->dev] -= b->n;
        S.st.live_bytes -= b->n;
        give_back(b);
        forget(b);
        break;
    case OP_EXT: o->fn(o->arg); break;
    case OP_RECORD: break;
    }
    poison(1);
    if (o->kind != OP_WAIT) {
        o->t->done = 1;
        o->t->when = now();
        release(&o->t->tok);
    }
}
static void stream_main(void)
{
    struct CUstream_st *s = R.s;
    coro_arrive(&s->co);
    for (;;) {
        exec(s);
        coro_swap(&s->co, &R.host, 0);
    }
}
static void run_op(struct CUstream_st *s)
{
    struct op *o = s->head;
    R.s = s;
    coro_swap(&R.host, &s->co, 0);
    s->head = o->next;
    if (!s->head)
        s->tail = &s->head;
    if (o->kind == OP_KERNEL)
        free(o->arg);
    unref(o->t);
    free(o);
}
/* Lazy: by priorities that change now and then, so that one stream may run far ahead of another.
 * Random: any ready stream. */
static struct CUstream_st *pick(void)
{
    struct CUstream_st *p = NULL;
    unsigned n = 0;
    for (struct CUstream_st *s = S.streams; s; s = s->link) {
        if (!runnable(s))
            continue;
        n++;
        if (S.policy == CUSIM_LAZY ? !p || s->prio > p->prio : rnd() % n == 0)
            p = s;
    }
    if (p && rnd() % 32 == 0)
        p->prio = (unsigned)(rnd() >> 33);
    return p;
}
/* Run until the token is done. Others may still have to queue their part (NCCL): wait for them. */
static cudaError_t drive(struct token *t)
{
    double t0 = now();
    while (t && !t->done) {
        struct CUstream_st *s = pick();
        if (S.sticky)
            return S.sticky;
        if (s) {
            run_op(s);
            t0 = now();
            continue;
        }
        unlock();
        usleep(100);
        lock();
        if (now() - t0 > 5) {
            fprintf(stderr, "cusim: deadlock: a wait for an operation that nothing can run\n");
            abort();
        }
    }
    if (t)
        acquire(&t->tok);
    return S.sticky;
}
static void progress(void)
{
    struct CUstream_st *s;
    if (S.policy == CUSIM_LAZY || (S.policy == CUSIM_RANDOM && rnd() % 3))
        return;
    int n = S.policy == CUSIM_EAGER ? 1 << 30 : (int)(rnd() % 4);
    while (n-- && (s = pick()))
        run_op(s);
}
static struct CUstream_st *stream(cudaStream_t s)
{
    if (s)
        return s;
    S.st.default_stream_uses++;
    return S.dflt[cur_dev];
}
static void push(struct CUstream_st *s, struct op *o)
{
    release(&o->tok);
    o->next = NULL;
    if (s->capture) {
        *s->capture->tail = o;
        s->capture->tail = &o->next;
        return;
    }
    *s->tail = o;
    s->tail = &o->next;
    if (o->kind != OP_WAIT) {
        unref(s->last);
        o->t->refs++;
        s->last = o->t;
    }
    progress();
}
static struct op *mkop(enum opkind k)
{
    struct op *o = calloc(1, sizeof *o);
    o->kind = k;
    if (k != OP_WAIT) {
        o->t = calloc(1, sizeof *o->t);
        o->t->refs = 1;
    }
    return o;
}
void cusim_enqueue(struct CUstream_st *s, int (*ready)(void *), void (*run)(void *), void *arg)
{
    lock();
    struct op *o = mkop(OP_EXT);
    o->ready = ready;
    o->fn = run;
    o->arg = arg;
    push(s, o);
    unlock();
}
int cusim_stream_device(struct CUstream_st *s) { return s->dev; }

/* ---- control ---- */
static struct CUstream_st *mkstream(int dev, int nb)
{
    struct CUstream_st *s = calloc(1, sizeof *s);
    char name[32];
    s->dev = dev;
    s->nonblocking = nb;
    s->tail = &s->head;
    s->prio = (unsigned)(rnd() >> 33);
    coro_init(&s->co, stream_main);
    if (__tsan_set_fiber_name) {
        snprintf(name, sizeof name, "cusim stream %d of device %d", S.nstream++, dev);
        __tsan_set_fiber_name(s->co.fiber, name);
    }
    s->link = S.streams;
    S.streams = s;
    return s;
}
void cusim_reset(int devices, size_t mem, enum cusim_policy policy, uint64_t seed)
{
    lock();
    S.ndev = devices;
    S.mem = mem;
    S.policy = policy;
    S.rng = seed * 0x9e3779b97f4a7c15u + 0x1234567;
    S.sticky = cudaSuccess;
    S.fail_n = S.fault = 0;
    memset(&S.st, 0, sizeof S.st);
    for (int d = 0; d < devices && d < 16; d++)
        if (!S.dflt[d])
            S.dflt[d] = mkstream(d, 0);
    unlock();
}
void cusim_fail(const char *api, int nth, int error)
{
    snprintf(S.fail_api, sizeof S.fail_api, "%s", api);
    S.fail_n = nth;
    S.fail_err = error;
}
void cusim_fault_kernel(int nth) { S.fault = nth; }
void cusim_share_memory(int on) { S.ipc = on; }
void cusim_get_stats(struct cusim_stats *s) { *s = S.st; }
int cusim_pending(void)
{
    int n = 0;
    for (struct CUstream_st *s = S.streams; s; s = s->link)
        for (struct op *o = s->head; o; o = o->next)
            n++;
    return n;
}

/* ---- the runtime's functions ---- */
cudaError_t cudaGetDeviceCount(int *n)
{
    cudaError_t e = enter(__func__);
    *n = S.ndev;
    return ret(e);
}
cudaError_t cudaSetDevice(int d)
{
    ENTER();
    if (d < 0 || d >= S.ndev)
        return ret(cudaErrorInvalidDevice);
    cur_dev = d;
    return ret(cudaSuccess);
}
cudaError_t cudaGetDevice(int *d) { ENTER(); *d = cur_dev; return ret(cudaSuccess); }
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d)
{
    ENTER();
    (void)d;
    *v = a == cudaDevAttrMultiProcessorCount ? 2 : a == cudaDevAttrComputeCapabilityMajor ? 9 : a == cudaDevAttrMaxThreadsPerBlock ? 1024 : 0;
    return ret(cudaSuccess);
}
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) { ENTER(); *t = S.mem; *f = S.mem - S.used[cur_dev]; return ret(cudaSuccess); }
const char *cudaGetErrorName(cudaError_t e) { return e == cudaSuccess ? "cudaSuccess" : e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : e == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaError"; }
const char *cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }
cudaError_t cudaGetLastError(void) { cudaError_t e = last_err; last_err = cudaSuccess; return S.sticky ? S.sticky : e; }
cudaError_t cudaPeekAtLastError(void) { return S.sticky ? S.sticky : last_err; }

static cudaError_t alloc(void **p, size_t n, int kind)
{
    if (!n) {
        *p = NULL;
        return cudaSuccess;
    }
    if (kind == 0 && S.used[cur_dev] + n > S.mem)
        return cudaErrorMemoryAllocation;
    struct block *b = calloc(1, sizeof *b);
    b->fd = -1;
    if (kind == 0 && S.ipc) {   /* memory another process can open; no red zones around it */
        b->fd = memfd_create("cusim", MFD_CLOEXEC);
        if (b->fd < 0 || ftruncate(b->fd, (off_t)n) || (b->p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0)) == MAP_FAILED)
            return cudaErrorMemoryAllocation;
    } else if (posix_memalign(&b->p, 256, n)) {
        return cudaErrorMemoryAllocation;
    }
    memset(b->p, 0xff, n);   /* NaNs: new memory holds no zeros */
    b->n = n;
    b->kind = kind;
    b->dev = cur_dev;
    b->link = S.blocks;
    S.blocks = b;
    S.st.allocs++;
    if (kind == 0) {
        S.used[cur_dev] += n;
        S.st.live_bytes += n;
        if (__asan_poison_memory_region)
            __asan_poison_memory_region(b->p, n);
    } else {
        S.st.live_pinned += n;
    }
    *p = b->p;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n) { ENTER(); return ret(alloc(p, n, 0)); }
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { ENTER(); (void)s; return ret(alloc(p, n, 0)); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) { ENTER(); (void)f; return ret(alloc(p, n, 1)); }
cudaError_t cudaMallocHost(void **p, size_t n) { ENTER(); return ret(alloc(p, n, 1)); }
static cudaError_t drive_all(void)
{
    for (struct CUstream_st *s = S.streams; s; s = s->link)
        if (s->head) {
            cudaError_t e = drive(s->last);
            if (e)
                return e;
        }
    return cudaSuccess;
}
static cudaError_t release_mem(void *p, int kind)
{
    if (!p)
        return cudaSuccess;
    cudaError_t e = drive_all();   /* as the real one: waits for the device */
    struct block *b = find_base(p);
    if (!b || b->kind != kind)
        return cudaErrorInvalidValue;
    if (kind == 0) {
        S.used[b->dev] -= b->n;
        S.st.live_bytes -= b->n;
        if (__asan_unpoison_memory_region)
            __asan_unpoison_memory_region(b->p, b->n);
    } else {
        S.st.live_pinned -= b->n;
    }
    S.st.frees++;
    if (kind != 2)
        give_back(b);
    forget(b);
    return e;
}
cudaError_t cudaFree(void *p) { ENTER(); return ret(release_mem(p, 0)); }
cudaError_t cudaFreeHost(void *p) { ENTER(); return ret(release_mem(p, 1)); }
cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    ENTER();
    if (!find_base(p))
        return ret(cudaErrorInvalidValue);
    struct op *o = mkop(OP_FREE);
    o->dst = p;
    S.st.frees++;
    push(stream(s), o);
    return ret(cudaSuccess);
}
cudaError_t cudaHostRegister(void *p, size_t n, unsigned f)
{
    ENTER();
    (void)f;
    if (find(p, 1))
        return ret(cudaErrorHostMemoryAlreadyRegistered);
    struct block *b = calloc(1, sizeof *b);
    *b = (struct block){S.blocks, p, n, 2, cur_dev, -1};
    S.blocks = b;
    S.st.live_pinned += n;
    return ret(cudaSuccess);
}
cudaError_t cudaHostUnregister(void *p) { ENTER(); return ret(release_mem(p, 2)); }

static cudaError_t copy(void *d, const void *s, size_t n, enum cudaMemcpyKind kind, struct CUstream_st *st, int sync)
{
    struct block *bd = find(d, n), *bs = find(s, n);
    int dd = bd && bd->kind == 0, sd = bs && bs->kind == 0;
    if (kind == cudaMemcpyDefault)
        kind = dd ? sd ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    if (dd != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) || sd != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)) {
        fprintf(stderr, "cusim: copy of %zu bytes: addresses do not fit its kind, or run past an allocation\n", n);
        return cudaErrorInvalidValue;
    }
    *(kind == cudaMemcpyHostToDevice ? &S.st.h2d : kind == cudaMemcpyDeviceToHost ? &S.st.d2h : &S.st.d2d) += n;
    struct op *o = mkop(OP_COPY);
    o->dst = d;
    o->src = s;
    o->n = n;
    int pageable = (!dd && !bd) || (!sd && !bs);
    S.st.pageable_copies += (uint64_t)pageable;
    struct token *t = o->t;
    t->refs++;
    push(st, o);
    cudaError_t e = cudaSuccess;
    if ((sync || pageable) && !st->capture)
        e = drive(t);
    unref(t);
    return e;
}
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) { ENTER(); return ret(n ? copy(d, s, n, k, stream(st), 0) : cudaSuccess); }
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) { ENTER(); return ret(n ? copy(d, s, n, k, stream(0), 1) : cudaSuccess); }
cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t s)
{
    ENTER();
    struct block *b = find(d, n);
    if (!b || b->kind)
        return ret(cudaErrorInvalidValue);
    struct op *o = mkop(OP_SET);
    o->dst = d;
    o->value = v;
    o->n = n;
    push(stream(s), o);
    return ret(cudaSuccess);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { ENTER(); *s = mkstream(cur_dev, f == cudaStreamNonBlocking); S.st.live_streams++; return ret(cudaSuccess); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { (void)p; return cudaStreamCreateWithFlags(s, f); }
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    ENTER();
    s->dead = 1;   /* its queue still runs; memory is kept until the process ends */
    S.st.live_streams--;
    return ret(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) { ENTER(); S.st.syncs++; return ret(drive(stream(s)->last)); }
cudaError_t cudaDeviceSynchronize(void) { ENTER(); S.st.syncs++; return ret(drive_all()); }
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    ENTER();
    struct CUstream_st *p = pick();
    if (p && rnd() % 2)
        run_op(p);
    if (s->head)
        return ret(cudaErrorNotReady);
    if (s->last)
        acquire(&s->last->tok);
    return ret(S.sticky);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f)
{
    ENTER();
    (void)f;
    if (!e->t)
        return ret(cudaSuccess);   /* never recorded: no wait, as the real one */
    struct op *o = mkop(OP_WAIT);
    o->t = e->t;
    o->t->refs++;
    push(stream(s), o);
    return ret(cudaSuccess);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f)
{
    ENTER();
    *e = calloc(1, sizeof **e);
    (*e)->timing = !(f & cudaEventDisableTiming);
    S.st.live_events++;
    return ret(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { ENTER(); unref(e->t); free(e); S.st.live_events--; return ret(cudaSuccess); }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    ENTER();
    struct op *o = mkop(OP_RECORD);
    unref(e->t);
    e->t = o->t;
    o->t->refs++;
    push(stream(s), o);
    return ret(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { ENTER(); S.st.syncs++; return ret(drive(e->t)); }
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    ENTER();
    struct CUstream_st *p = pick();
    if (p && rnd() % 2)
        run_op(p);
    if (e->t && !e->t->done)
        return ret(S.sticky ? S.sticky : cudaErrorNotReady);
    if (e->t)
        acquire(&e->t->tok);
    return ret(S.sticky);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    ENTER();
    if (!a->timing || !b->timing || !a->t || !b->t)
        return ret(cudaErrorInvalidResourceHandle);
    *ms = (float)((b->t->when - a->t->when) * 1e3);
    return ret(cudaSuccess);
}
cudaError_t cudaLaunchKernel(const void *fn, dim3 grid, dim3 block, void **args, size_t shmem, cudaStream_t s)
{
    ENTER();
    (void)shmem;
    const struct kernel *k = kernels;
    while (k && k->fn != fn)
        k = k->link;
    if (!k)
        return ret(cudaErrorInvalidDeviceFunction);
    uint64_t t = (uint64_t)block.x * block.y * block.z;
    if (!t || t > 1024 || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || k->argsize > 32764)
        return ret(cudaErrorInvalidConfiguration);
    struct op *o = mkop(OP_KERNEL);
    o->k = k;
    o->grid = grid;
    o->block = block;
    o->arg = malloc(k->argsize);
    memcpy(o->arg, args[0], k->argsize);   /* the real one copies the arguments at the call, too */
    S.st.launches++;
    push(stream(s), o);
    return ret(cudaSuccess);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
    ENTER();
    struct op *o = mkop(OP_HOSTFN);
    o->fn = fn;
    o->arg = arg;
    push(stream(s), o);
    return ret(cudaSuccess);
}
/* Run-time compiled kernels: real NVRTC makes real PTX here, and ptxi interprets it. */
struct CUlib_st { char *ptx; struct kernel *k; };
cudaError_t cudaLibraryLoadData(cudaLibrary_t *lib, const void *code, enum cudaJitOption *o, void **ov, unsigned no, enum cudaLibraryOption *l, void **lv, unsigned nl)
{
    ENTER();
    (void)o, (void)ov, (void)no, (void)l, (void)lv, (void)nl;
    if (!strstr(code, ".version"))
        return ret(cudaErrorInvalidKernelImage);
    *lib = (cudaLibrary_t)strdup(code);
    return ret(cudaSuccess);
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *out, cudaLibrary_t lib, const char *name)
{
    ENTER();
    char err[160], key[96];
    struct ptxi *p = ptxi_load((char *)lib, name, err, sizeof err);
    if (!p) {
        fprintf(stderr, "cusim: %s: %s\n", name, err);
        return ret(cudaErrorSymbolNotFound);
    }
    snprintf(key, sizeof key, "%s_param_0[", name);
    const char *at = strstr((char *)lib, key);
    cusim_register(p, name, NULL, at ? strtoul(at + strlen(key), NULL, 10) : 8, 0);
    kernels->ptx = p;
    *out = (cudaKernel_t)p;
    return ret(cudaSuccess);
}
cudaError_t cudaLibraryUnload(cudaLibrary_t lib)
{
    ENTER();
    free(lib);
    return ret(cudaSuccess);
}
/* Memory for another process of the same user: opened through /proc, so nothing stays behind. */
struct ipc { long pid; int fd, dev; size_t n; };
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p)
{
    ENTER();
    struct block *b = find(p, 1);
    if (!b || b->kind || b->fd < 0)
        return ret(cudaErrorInvalidValue);
    struct ipc i = {getpid(), b->fd, b->dev, b->n};
    memset(h, 0, sizeof *h);
    memcpy(h->reserved, &i, sizeof i);
    return ret(cudaSuccess);
}
cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned f)
{
    ENTER();
    (void)f;
    struct ipc i;
    char path[64];
    memcpy(&i, h.reserved, sizeof i);
    if (i.pid == getpid())
        return ret(cudaErrorDeviceUninitialized);   /* the real one cannot open its own either */
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", i.pid, i.fd);
    struct block *b = calloc(1, sizeof *b);
    *b = (struct block){S.blocks, NULL, i.n, 0, i.dev, open(path, O_RDWR | O_CLOEXEC)};
    if (b->fd < 0 || (b->p = mmap(NULL, i.n, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0)) == MAP_FAILED) {
        free(b);
        return ret(cudaErrorMapBufferObjectFailed);
    }
    S.blocks = b;
    S.used[i.dev] += i.n;
    S.st.live_bytes += i.n;
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(b->p, b->n);
    *p = b->p;
    return ret(cudaSuccess);
}
cudaError_t cudaIpcCloseMemHandle(void *p) { ENTER(); return ret(release_mem(p, 0)); }
/* Graphs: what a stream would have run is kept and run again, in the order of capture. */
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m)
{
    ENTER();
    (void)m;
    s->capture = calloc(1, sizeof *s->capture);
    s->capture->tail = &s->capture->head;
    return ret(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) { ENTER(); *g = s->capture; s->capture = NULL; return ret(cudaSuccess); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long f)
{
    ENTER();
    (void)f;
    *e = calloc(1, sizeof **e);
    (*e)->g = g;
    return ret(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s)
{
    ENTER();
    for (struct op *q = e->g->head; q; q = q->next) {
        if (q->kind == OP_WAIT || q->kind == OP_RECORD)
            continue;
        struct op *o = mkop(q->kind);
        struct token *t = o->t;
        *o = *q;
        o->t = t;
        if (o->kind == OP_KERNEL) {
            o->arg = malloc(o->k->argsize);
            memcpy(o->arg, q->arg, o->k->argsize);
            S.st.launches++;
        }
        push(s, o);
    }
    return ret(cudaSuccess);
}
