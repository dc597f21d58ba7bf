#include "gpu/loops.h"

#include "gpu/clones.h"
#include "gpu/half.h"
#include "gpu/program.h"
#include "gpu/rules.h"
#include "gpu/whole.h"

#include <assert.h>
#include <math.h>
#include <string.h>

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

#define NAME(x) x##_f16
#include "gpu/loops_half.h"

#define NAME(x) x##_bf16
#include "gpu/loops_half.h"

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
    void (*narrow)(void *to, const void *from, size_t count);    /* NULL: an integer */
} loops[DTYPE_COUNT] = {
#define LOOPS_OF(type) [DTYPE_##type] = {widen_##type, add_##type, step_block_##type, NULL}
#define REAL_LOOPS_OF(type) [DTYPE_##type] = {widen_##type, add_##type, step_block_##type, narrow_##type}
    REAL_LOOPS_OF(f32), REAL_LOOPS_OF(f64), REAL_LOOPS_OF(f16), REAL_LOOPS_OF(bf16),
    LOOPS_OF(i8), LOOPS_OF(u8), LOOPS_OF(i32), LOOPS_OF(i64),
#undef LOOPS_OF
#undef REAL_LOOPS_OF
};

static uint32_t flags_of(uint64_t over) { return over != 0 ? WORK_OVERFLOW : 0; }

void loops_widen(enum dtype type, void *to, const void *from, size_t count) { loops[type].widen(to, from, count); }
void loops_narrow(enum dtype type, void *to, const void *from, size_t count) { loops[type].narrow(to, from, count); }

uint32_t loops_add(enum dtype type, void *to, const void *from, size_t count)
{
    return flags_of(loops[type].add(to, from, count));
}

void loops_sum(const struct step *s, size_t at, size_t count, void *g)
{
    const void *sum = part(&s->sum, at * dtype_size(dtype_sum(s->type)));
    const void *last = part(&s->last, at * dtype_size(s->type));

    if (sum == NULL) {
        loops[s->type].widen(g, last, count);
        return;
    }
    memcpy(g, sum, count * dtype_size(dtype_sum(s->type)));
    if (last != NULL) loops[s->type].add(g, last, count);
}

void loops_value(const struct step *s, size_t at, size_t count, void *w)
{
    size_t size = dtype_size(dtype_sum(s->type));

    if (s->master.size > 0) memcpy(w, part(&s->master, at * size), count * size);
    else loops[s->type].widen(w, part(&s->from, at * dtype_size(s->type)), count);
}

void loops_store(const struct step *s, size_t at, size_t count, const void *w)
{
    size_t size = dtype_size(dtype_sum(s->type));

    if (s->master.size > 0) memcpy(part(&s->master, at * size), w, count * size);
    loops[s->type].narrow(part(&s->to, at * dtype_size(s->type)), w, count);
}

static void step_whole(const struct step *s)
{
    for (unsigned pass = 0; pass < whole_passes(s->rule); pass++)
        for (size_t i = 0; i < whole_parts(s, pass); i++) whole_run(s, pass, i);
}

uint32_t loops_step(const struct step *s, size_t begin, size_t count)
{
    uint64_t over = 0;

    if (rule_is_whole(s->rule)) {
        assert(begin == 0 && count == s->count);
        step_whole(s);
        return 0;
    }
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t n = count - done < BLOCK ? count - done : BLOCK;
        over |= loops[s->type].step_block(s, &s->scalars, begin + done, n);
    }
    return flags_of(over);
}
