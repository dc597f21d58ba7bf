/* Inside the stand-in: what its files share. cusim.h is what others see.
 *
 * All state lies in `sim` under one lock, which a call of the CUDA runtime holds from sim_enter to sim_leave, also
 * while kernels run; only a wait for what another thread has yet to queue lets go of it. To the thread sanitizer the
 * lock is no edge, and the state behind it is not looked at.
 *
 * Memory comes from malloc and not from service/base/mem.h: a sweep that fails the project's allocations one by one
 * must not meet those of its tools. */
#ifndef TESTS_CUSIM_SIM_H
#define TESTS_CUSIM_SIM_H

#include "tests/cusim/coro.h"
#include "tests/cusim/cusim.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

enum { SIM_DEVICES_MAX = 16, SIM_FAILURES_MAX = 16, SIM_LANES = 3, CUSIM_ARGUMENTS_MAX = 32764 };

/* Zeroed memory for free; ends the program when there is none. */
void *sim_new(size_t size);

/* ---- work ------------------------------------------------------------------------------------------------------ */

/* The end of an operation, which events and waits name. Counted: an operation, events and waits hold it. */
struct token {
    unsigned held;
    bool done;
    double at_s;
    char edge;               /* happens-before: from the operation to who waits for it */
};

enum op_kind { OP_COPY, OP_SET, OP_KERNEL, OP_RECORD, OP_WAIT, OP_HOST, OP_FREE, OP_OTHER };

struct kernel;
struct block;

struct op {
    struct op *next;
    enum op_kind kind;
    char edge;               /* from who queued it to it */
    struct token *end;       /* of OP_WAIT: the one it waits for */
    void *to;
    const void *from;
    size_t size;
    int value;
    const struct kernel *kernel;
    dim3 grid, block;
    void *argument;          /* of a kernel: a copy, the operation's */
    void (*run)(void *argument);
    bool (*ready)(void *argument);
};

enum { LIVE = 0x11fe11fe, DEAD = 0xdeaddead };

/* Destroyed streams and events stay until the next reset, so that a later use of one is seen. */
struct CUstream_st {
    unsigned mark;           /* LIVE or DEAD */
    int device;
    unsigned priority;       /* the higher, the earlier; changes now and then */
    struct op *first, **last;
    struct token *end;       /* of the latest operation that ends */
    struct coro coro, lanes[SIM_LANES];
    struct CUstream_st *next;
};

struct CUevent_st {
    unsigned mark;
    int device;
    bool timed;
    struct token *end;       /* NULL: never recorded */
    struct CUevent_st *next;
};

/* ---- all of it ------------------------------------------------------------------------------------------------- */

struct sim {
    bool started;            /* by a reset, or by the environment at the first call */
    unsigned life;           /* counts resets: what threads remember of an earlier one is void */
    int devices;
    size_t memory, used[SIM_DEVICES_MAX];
    unsigned peers[SIM_DEVICES_MAX];         /* bit d: kernels of this device may touch memory of device d */
    enum cusim_policy policy;
    uint64_t random;
    unsigned patience_ms;
    bool share, in_host_function, compiler_held;
    cudaError_t sticky;
    struct {
        char name[48];
        unsigned nth;
        cudaError_t error;
    } failures[SIM_FAILURES_MAX];
    struct {
        char name[48];
        unsigned nth;                        /* 0: every one */
    } skip;
    unsigned fault_nth;
    cudaError_t fault_error;
    struct cusim_stats stats;
    struct CUstream_st *streams, *standard[SIM_DEVICES_MAX];
    struct CUevent_st *events;
    struct block *blocks;
};
extern struct sim sim;

void sim_lock(void);
void sim_unlock(void);
/* A call that shall do nothing and say that it has. */
#define SIM_SKIPPED ((cudaError_t)-1)
/* The beginning and the end of a call of the runtime. sim_enter locks and tells what the call must answer at once:
 * an injected failure, a lost device, a call out of a host function, SIM_SKIPPED. sim_leave remembers the error for
 * cudaGetLastError and unlocks, whatever sim_enter said. */
cudaError_t sim_enter(const char *name);
cudaError_t sim_leave(cudaError_t e);
/* The planned failure that this call of the function meets, or 0. Under the lock. */
cudaError_t sim_injected(const char *name);
int *sim_current_device(void);               /* the calling thread's */
cudaError_t sim_take_last_error(bool keep);
/* The device is lost from here on; the first reason stays. */
void sim_lose(cudaError_t why);
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t sim_random(void);
bool sim_chance(unsigned in);                /* one time in so many */
double sim_now_s(void);

/* 0, 1, ... count - 1 in an order that the seed chooses (eager: as they are). */
struct order {
    uint64_t count, at, step;
};
struct order order_new(uint64_t count);
struct order order_of(uint64_t count, uint64_t seed);        /* 0: as they are */
uint64_t order_next(struct order *o);

/* ---- memory.c: blocks of memory that the runtime knows --------------------------------------------------------- */

enum block_kind { BLOCK_DEVICE, BLOCK_PINNED, BLOCK_REGISTERED };

struct block {
    struct block *next;
    char *at;
    size_t size;
    enum block_kind kind;
    int device;
    int file;                /* shared memory, or -1 */
    size_t guard;            /* bytes behind it that nobody may write */
};

/* The block that has all of these bytes, or NULL. */
struct block *block_find(const void *at, size_t size);
void block_free(struct block *b);            /* counts, memory and all */
enum { NO_DEVICE = -1, ALL_DEVICES = -2 };
/* Code that runs now is the host's (NO_DEVICE) or a device's: it may touch that one's memory. */
void memory_open(int device);
/* Whether such code may. */
bool memory_reaches(int device, const struct block *b);
/* memcpy and memset for operations, which may touch all that block_find has seen. */
void memory_copy(void *to, const void *from, size_t size);
void memory_set(void *to, int value, size_t size);
void memory_reset(void);
void library_reset(void);

/* ---- queue.c: streams, and when their work runs ---------------------------------------------------------------- */

struct op *op_new(enum op_kind kind);
struct token *token_hold(struct token *t);
void token_drop(struct token *t);            /* NULL is nothing */
struct CUstream_st *stream_new(int device);
/* The stream that a handle names: the standard one of the current device, which is counted, or NULL: it is none. */
struct CUstream_st *stream_of(cudaStream_t s);
void queue_push(struct CUstream_st *s, struct op *o);
/* Somebody asks how far work is: some of it may run. */
void queue_poll(void);
/* Runs work until the token is done; NULL is done. An error when that cannot come about within the patience, or when
 * another thread resets all meanwhile (cudaErrorContextIsDestroyed). */
cudaError_t queue_wait(struct token *t);
/* For all that a device, or ALL_DEVICES, was given before. */
cudaError_t queue_wait_all(int device);
void queue_reset(void);

/* ---- kernel.c -------------------------------------------------------------------------------------------------- */

struct ptxi;
struct kernel {
    struct kernel *next;
    const void *function;    /* what cudaLaunchKernel is given */
    char name[128];
    cusim_thunk thunk;
    size_t argument_size;
    int flags;
    struct ptxi *ptx;        /* not NULL: interpreted */
};
struct kernel *kernel_find(const void *function);
/* Asked for what nobody has registered, where that is not NULL. */
extern struct kernel *(*kernel_unknown)(const void *function);
struct kernel *kernel_add(const void *function, const char *name);
void kernel_remove(struct kernel *k);
void kernel_run(struct CUstream_st *s, const struct op *o);

#endif
