#include "tests/cusim/coro.h"

#include "tests/cusim/sim.h"

#include <stdlib.h>

#define WEAK __attribute__((weak))
extern void *__tsan_create_fiber(unsigned flags) WEAK;
extern void __tsan_destroy_fiber(void *fiber) WEAK;
extern void *__tsan_get_current_fiber(void) WEAK;
extern void __tsan_switch_to_fiber(void *fiber, unsigned flags) WEAK;
extern void __tsan_set_fiber_name(void *fiber, const char *name) WEAK;
extern void __tsan_acquire(void *at) WEAK;
extern void __tsan_release(void *at) WEAK;
extern void AnnotateIgnoreReadsBegin(const char *file, int line) WEAK;
extern void AnnotateIgnoreReadsEnd(const char *file, int line) WEAK;
extern void AnnotateIgnoreWritesBegin(const char *file, int line) WEAK;
extern void AnnotateIgnoreWritesEnd(const char *file, int line) WEAK;
extern void __asan_poison_memory_region(const volatile void *at, size_t size) WEAK;
extern void __asan_unpoison_memory_region(const volatile void *at, size_t size) WEAK;
extern void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size) WEAK;
extern void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size) WEAK;

enum { STACK_SIZE = 256 * 1024, STACKS_KEPT_MAX = 1100, NO_EDGE = 1 };

/* ---- stacks: a kernel with barriers wants a thousand for each block -------------------------------------------- */

static void *kept[STACKS_KEPT_MAX];
static unsigned kept_count;

static void *stack_new(void)
{
    return kept_count > 0 ? kept[--kept_count] : sim_new(STACK_SIZE);
}

static void stack_free(void *stack)
{
    memory_allow(stack, STACK_SIZE); /* who left in the midst left marks around its variables */
    if (kept_count < STACKS_KEPT_MAX) kept[kept_count++] = stack;
    else free(stack);
}

/* ---- the switch ------------------------------------------------------------------------------------------------- */

#if defined __x86_64__
/* swapcontext asks the kernel about signals each time, which is most of what a kernel with barriers would cost. This puts what
 * the calling convention has a function keep on the stack, and goes on from another stack. */
__asm__(".text\n"
        ".type jump, @function\n"
        "jump:\n"
        "    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "    sub $8, %rsp; stmxcsr (%rsp); fnstcw 4(%rsp)\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    ldmxcsr (%rsp); fldcw 4(%rsp); add $8, %rsp\n"
        "    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
        "    ret\n"
        ".size jump, . - jump\n");
extern void jump(void **from, void *to) __attribute__((visibility("hidden")));

/* As jump leaves a stack: the control words, six registers, where it goes on; and what that function would return to. */
static void *first_frame(char *stack, void (*run)(void))
{
    struct frame { unsigned mxcsr; unsigned short control, unused; void *registers[6]; void (*run)(void); void *nowhere; };
    struct frame *f = (struct frame *)(void *)(stack + STACK_SIZE - 16 - sizeof *f);

    *f = (struct frame){.run = run};
    __asm__("stmxcsr %0; fnstcw %1" : "=m"(f->mxcsr), "=m"(f->control));
    return f;
}

static void prepare(struct coro *c, void (*run)(void)) { c->at = first_frame(c->stack, run); }
static void go(struct coro *from, const struct coro *to) { jump(&from->at, to->at); }
#else
static void prepare(struct coro *c, void (*run)(void))
{
    if (getcontext(&c->at) != 0) abort();
    c->at.uc_stack.ss_sp = c->stack;
    c->at.uc_stack.ss_size = STACK_SIZE;
    makecontext(&c->at, run, 0);
}

static void go(struct coro *from, const struct coro *to)
{
    if (swapcontext(&from->at, &to->at) != 0) abort();
}
#endif

/* ---- coroutines ------------------------------------------------------------------------------------------------ */

static struct coro *left; /* the one that runs no more since the last switch */

void coro_init(struct coro *c, void (*run)(void), const char *name)
{
    *c = (struct coro){.stack = stack_new(), .size = STACK_SIZE};
    c->bottom = c->stack;
    prepare(c, run);
    if (__tsan_create_fiber == NULL) return;
    c->fiber = __tsan_create_fiber(0);
    __tsan_set_fiber_name(c->fiber, name);
}

void coro_fini(struct coro *c)
{
    if (c->stack == NULL) return;
    if (c->fiber != NULL) __tsan_destroy_fiber(c->fiber);
    stack_free(c->stack);
    *c = (struct coro){0};
}

/* Stacks are used again: what the one before left there is no race with the next. */
void coro_begin(struct coro *me)
{
    if (me->stack != NULL) race_acquire(me->stack);
    if (__sanitizer_finish_switch_fiber != NULL)
        __sanitizer_finish_switch_fiber(me->fake, &left->bottom, &left->size);
}

void coro_switch(struct coro *from, struct coro *to)
{
    left = from;
    if (from->stack != NULL) race_release(from->stack);
    if (__sanitizer_start_switch_fiber != NULL) __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
    if (__tsan_switch_to_fiber != NULL) {
        from->fiber = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(to->fiber, NO_EDGE);
    }
    go(from, to);
    coro_begin(from);
}

/* ---- promises -------------------------------------------------------------------------------------------------- */

bool race_watched(void) { return __tsan_create_fiber != NULL; }

void race_release(void *token)
{
    if (__tsan_release != NULL) __tsan_release(token);
}

void race_acquire(void *token)
{
    if (__tsan_acquire != NULL) __tsan_acquire(token);
}

void race_ignore_begin(void)
{
    if (AnnotateIgnoreReadsBegin == NULL) return;
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

void race_ignore_end(void)
{
    if (AnnotateIgnoreReadsEnd == NULL) return;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

void memory_forbid(void *at, size_t size)
{
    if (__asan_poison_memory_region != NULL) __asan_poison_memory_region(at, size);
}

void memory_allow(void *at, size_t size)
{
    if (__asan_unpoison_memory_region != NULL) __asan_unpoison_memory_region(at, size);
}

bool memory_watched(void) { return __asan_poison_memory_region != NULL; }
