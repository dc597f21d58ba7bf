/* Coroutines, and what the stand-in tells the sanitizers.
 *
 * A coroutine has a stack of its own and is a thread of its own to the thread sanitizer. A switch makes no
 * happens-before edge there: edges are made by hand (race_release, race_acquire), exactly where CUDA promises an
 * order. So a missing wait is a race in every run, however the work happened to fall.
 *
 * Every hook is weak: without a sanitizer these are nothing. One thread at a time, the one that holds the stand-in's
 * lock; a coroutine may go on on another thread than the one that it was left on. */
#ifndef TESTS_CUSIM_CORO_H
#define TESTS_CUSIM_CORO_H

#include <stdbool.h>
#include <stddef.h>
#if !defined __x86_64__
#include <ucontext.h>
#endif

struct coro {
#if defined __x86_64__
    void *at;                /* its stack pointer while it does not run */
#else
    ucontext_t at;
#endif
    const void *bottom;      /* of its stack, as the address sanitizer wants it told */
    size_t size;
    void *stack;             /* NULL: the stack of a thread, which is not ours */
    void *fiber, *fake;
};

/* `run` begins with coro_begin and never returns: it ends in a switch that is not answered any more. */
void coro_init(struct coro *c, void (*run)(void), const char *name);
/* Not to be called by itself. What lies on its stack is forgotten. */
void coro_fini(struct coro *c);
void coro_begin(struct coro *me);
/* From the one that runs to another; comes back when somebody switches to `from`. A zeroed struct may be `from`. */
void coro_switch(struct coro *from, struct coro *to);

/* Whether races are looked for, which is worth some more switches. */
bool race_watched(void);
/* All that was done before a release of a token is done before what follows an acquire of it. */
void race_release(void *token);
void race_acquire(void *token);
/* Between these two, what this thread reads and writes is not looked at. */
void race_ignore_begin(void);
void race_ignore_end(void);

/* Memory that may not be touched, and may be again; whether anybody looks. */
bool memory_watched(void);
void memory_forbid(void *at, size_t size);
void memory_allow(void *at, size_t size);

#endif
