#include "gpu/loops.h"

#include "gpu/rules.h"

#include <math.h>
#include <string.h>

/* Loops are built twice, for every x86-64 and for those with AVX2, and the loader picks. It asks before a sanitizer is
 * up, of which the thread sanitizer dies, so sanitized builds have one version. */
#if defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && __has_attribute(target_clones) && !SANITIZED
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define CLONES
#endif

/* Elements whose sum, value and slots fit the first-level cache together. */
enum { BLOCK = 1024 };

/* The bytes from `offset` of a piece, or NULL when there is no piece. */
static void *part(const struct dmem *m, size_t offset) { return m->size == 0 ? NULL : (char *)m->at + offset; }

#define REAL float
#define REAL_ROOT sqrtf
#define NAME(x) x##_f32
#include "gpu/loops_real.h"

#define REAL double
#define REAL_ROOT sqrt
#define NAME(x) x##_f64
#include "gpu/loops_real.h"

#define INTEGER int8_t
#define NAME(x) x##_i8
#include "gpu/loops_integer.h"

#define INTEGER uint8_t
#define NAME(x) x##_u8
#include "gpu/loops_integer.h"

#define INTEGER int32_t
#define NAME(x) x##_i32
#include "gpu/loops_integer.h"

#define INTEGER int64_t
#define NAME(x) x##_i64
#include "gpu/loops_integer.h"

static const struct {
    void (*widen)(void *to, const void *from, size_t count);
    uint64_t (*add)(void *to, const void *from, size_t count);
    uint64_t (*step_block)(const struct step *s, const struct rule_scalars *scalars, size_t at, size_t count);
} loops[DTYPE_COUNT] = {
#define LOOPS_OF(type) [DTYPE_##type] = {widen_##type, add_##type, step_block_##type}
    LOOPS_OF(f32), LOOPS_OF(f64), LOOPS_OF(i8), LOOPS_OF(u8), LOOPS_OF(i32), LOOPS_OF(i64),
#undef LOOPS_OF
};

static uint32_t flags_of(uint64_t over) { return over != 0 ? WORK_OVERFLOW : 0; }

void loops_widen(enum dtype type, void *to, const void *from, size_t count) { loops[type].widen(to, from, count); }

uint32_t loops_add(enum dtype type, void *to, const void *from, size_t count)
{
    return flags_of(loops[type].add(to, from, count));
}

uint32_t loops_step(const struct step *s, size_t begin, size_t count)
{
    uint64_t over = 0;

    for (size_t done = 0; done < count; done += BLOCK) {
        size_t n = count - done < BLOCK ? count - done : BLOCK;
        over |= loops[s->type].step_block(s, &s->scalars, begin + done, n);
    }
    return flags_of(over);
}
