/* Stand-in for the part of NCCL that the back end uses: ranks are threads (or devices) of one process.
 * A collective is two operations on each rank's stream: arrive, and finish once every rank has arrived. */
#include "gpu/half.h"
#include "tests/cusim/cusim.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void __tsan_acquire(void *) __attribute__((weak));
extern void __tsan_release(void *) __attribute__((weak));
enum kind { K_REDUCE, K_ALLREDUCE, K_BCAST, K_SCATTER, K_GATHER };
struct part { const void *send; void *recv; size_t n; int here; };
struct coll { struct coll *next; uint64_t seq; enum kind kind; ncclDataType_t type; ncclRedOp_t op; int root, arrived, done, left, bad; char tok; struct part *p; };
struct clique { struct clique *next; char id[NCCL_UNIQUE_ID_BYTES]; int n, joined, aborted, left; ncclResult_t async; struct coll *colls; };
struct ncclComm { struct clique *q; int rank, dev; uint64_t seq; };
static struct clique *cliques;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static __thread int group;
static __thread struct { struct { ncclComm_t *c; int n, rank, dev; ncclUniqueId id; } init[16]; int n; } later;
int cusim_nccl_async_error;   /* the next ncclCommGetAsyncError tells of it */

static size_t size_of(ncclDataType_t t) { return t == ncclFloat32 || t == ncclInt32 ? 4 : t == ncclBfloat16 || t == ncclFloat16 ? 2 : t == ncclInt8 || t == ncclUint8 ? 1 : 8; }
ncclResult_t ncclGetVersion(int *v) { *v = NCCL_VERSION_CODE; return ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t r) { return r == ncclSuccess ? "no error" : "stand-in error"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int next;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "cusim %d %d", getpid(), __atomic_add_fetch(&next, 1, __ATOMIC_RELAXED));
    return ncclSuccess;
}
static struct clique *join(const ncclUniqueId *id, int n)
{
    pthread_mutex_lock(&mu);
    struct clique *q = cliques;
    while (q && memcmp(q->id, id->internal, sizeof q->id))
        q = q->next;
    if (!q) {
        q = calloc(1, sizeof *q);
        memcpy(q->id, id->internal, sizeof q->id);
        q->n = q->left = n;
        q->next = cliques;
        cliques = q;
    }
    q->joined++;
    pthread_mutex_unlock(&mu);
    return q;
}
static ncclResult_t await(struct clique *q)
{
    for (int i = 0; __atomic_load_n(&q->joined, __ATOMIC_ACQUIRE) < q->n; i++) {
        if (i > 20000) {
            fprintf(stderr, "cusim: ncclCommInitRank: %d of %d ranks came\n", q->joined, q->n);
            return ncclSystemError;
        }
        usleep(100);
    }
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *c, int n, ncclUniqueId id, int rank)
{
    int dev;
    if (rank < 0 || rank >= n || cudaGetDevice(&dev))
        return ncclInvalidArgument;
    *c = calloc(1, sizeof **c);
    (*c)->rank = rank;
    (*c)->dev = dev;
    (*c)->q = join(&id, n);
    if (group) {
        later.init[later.n++].c = c;
        return ncclSuccess;
    }
    return await((*c)->q);
}
ncclResult_t ncclCommInitAll(ncclComm_t *c, int n, const int *devs)
{
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclGroupStart();
    for (int i = 0; i < n; i++) {
        if (cudaSetDevice(devs ? devs[i] : i))
            return ncclInvalidArgument;
        ncclCommInitRank(&c[i], n, id, i);
    }
    return ncclGroupEnd();
}
/* nccl.h declares these two without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupStart(void) { group++; return ncclSuccess; }
ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t r = ncclSuccess;
    if (--group)
        return r;
    for (int i = 0; i < later.n; i++)
        if (await((*later.init[i].c)->q))
            r = ncclSystemError;
    later.n = 0;
    return r;
}
struct turn { struct turn *next; struct clique *q; struct coll *k; int rank; struct part p; };
static struct turn *spent;
static int always(void *a) { (void)a; return 1; }
static void arrive(void *a)
{
    struct turn *t = a;
    t->k->p[t->rank] = t->p;
    t->k->p[t->rank].here = 1;
    if (__tsan_release)
        __tsan_release(&t->k->tok);
    t->k->arrived++;
}
static int all_here(void *a) { struct turn *t = a; return t->k->arrived == t->q->n || t->q->aborted; }
static float get(const void *p, size_t i, ncclDataType_t t)
{
    if (t == ncclBfloat16) {
        uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
    return t == ncclFloat16 ? half_widen_f16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
static void put(void *p, size_t i, ncclDataType_t t, float f)
{
    if (t == ncclBfloat16) {
        uint32_t u;
        memcpy(&u, &f, 4);
        ((uint16_t *)p)[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    } else if (t == ncclFloat16) {
        ((uint16_t *)p)[i] = half_narrow_f16(f);
    } else {
        ((float *)p)[i] = f;
    }
}
static void finish(void *a)
{
    struct turn *t = a;
    struct coll *k = t->k;
    int n = t->q->n;
    if (__tsan_acquire)
        __tsan_acquire(&k->tok);
    if (!k->done && !t->q->aborted) {
        size_t m = k->p[0].n, es = size_of(k->type);
        k->done = 1;
        if (k->kind == K_BCAST) {
            for (int r = 0; r < n; r++)
                memmove(k->p[r].recv, k->p[k->root].send, m * es);
        } else if (k->kind == K_GATHER) {
            for (int r = 0; r < n; r++)
                for (int s = 0; s < n; s++)
                    memmove((char *)k->p[r].recv + (size_t)s * m * es, k->p[s].send, m * es);
        } else {
            size_t tot = k->kind == K_SCATTER ? m * (size_t)n : m;
            float *sum = malloc(tot * sizeof *sum);
            for (size_t i = 0; i < tot; i++) {
                sum[i] = get(k->p[0].send, i, k->type);
                for (int r = 1; r < n; r++) {
                    float x = get(k->p[r].send, i, k->type);
                    sum[i] = k->op == ncclMax ? (x > sum[i] ? x : sum[i]) : sum[i] + x;
                }
                if (k->op == ncclAvg)
                    sum[i] /= (float)n;
            }
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < m; i++)
                    if (k->kind != K_REDUCE || r == k->root)
                        put(k->p[r].recv, i, k->type, sum[(k->kind == K_SCATTER ? (size_t)r * m : 0) + i]);
            free(sum);
        }
    }
    if (__tsan_release)
        __tsan_release(&k->tok);
    t->next = spent;   /* freed later: on a stream, TSan would take it for an access of the stream's */
    spent = t;
}
static ncclResult_t collective(enum kind kind, const void *s, void *r, size_t n, ncclDataType_t ty, ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t st)
{
    struct clique *q = c->q;
    if (q->aborted)
        return ncclInvalidUsage;
    if (cusim_stream_device(st) != c->dev || root < 0 || root >= q->n)
        return ncclInvalidArgument;
    pthread_mutex_lock(&mu);
    struct coll *k = q->colls;
    while (k && k->seq != c->seq)
        k = k->next;
    if (!k) {
        k = calloc(1, sizeof *k);
        *k = (struct coll){.next = q->colls, .seq = c->seq, .kind = kind, .type = ty, .op = op, .root = root, .p = calloc((size_t)q->n, sizeof *k->p)};
        q->colls = k;
    } else if (k->kind != kind || k->type != ty || k->root != root || k->op != op) {
        fprintf(stderr, "cusim: rank %d calls another collective than the others as its number %lu\n", c->rank, (unsigned long)c->seq);
        abort();   /* the real one would hang or mix up data */
    }
    c->seq++;
    pthread_mutex_unlock(&mu);
    struct turn *t = malloc(sizeof *t);
    *t = (struct turn){NULL, q, k, c->rank, {s, r, n, 0}};
    cusim_enqueue(st, always, arrive, t);
    cusim_enqueue(st, all_here, finish, t);
    return ncclSuccess;
}
ncclResult_t ncclReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t st) { return collective(K_REDUCE, s, r, n, t, op, root, c, st); }
ncclResult_t ncclAllReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t st) { return collective(K_ALLREDUCE, s, r, n, t, op, 0, c, st); }
ncclResult_t ncclBroadcast(const void *s, void *r, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t st) { return collective(K_BCAST, s, r, n, t, ncclSum, root, c, st); }
ncclResult_t ncclReduceScatter(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t st) { return collective(K_SCATTER, s, r, n, t, op, 0, c, st); }
ncclResult_t ncclAllGather(const void *s, void *r, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t st) { return collective(K_GATHER, s, r, n, t, ncclSum, 0, c, st); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *e) { *e = cusim_nccl_async_error ? (ncclResult_t)cusim_nccl_async_error : c->q->async; return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t c) { c->q->aborted = 1; c->q->async = ncclRemoteError; free(c); return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t c) { free(c); return ncclSuccess; }
