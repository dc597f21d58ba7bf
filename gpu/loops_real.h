/* The loops for one real type: a template for loops.c, which defines REAL, REAL_ROOT and NAME first. */
#include "gpu/rules.h"

struct NAME(scalars) {
    REAL v[RULE_SCALARS_MAX];
};

/* first: place of the first element in the sequence of random numbers; the others' do not cross a multiple of 2^32. */
typedef void NAME(step_loop)(const struct NAME(scalars) *scalars, uint64_t first, const REAL *restrict g,
                             REAL *restrict w, REAL *restrict s0, REAL *restrict s1, REAL *restrict s2, size_t count);

/* One loop a rule. The scalars are copied so that they are seen not to change, and stay in registers. */
#define STEP_LOOP(name, begin, end)                                                                        \
    CLONES static void NAME(loop_##name)(const struct NAME(scalars) *scalars, uint64_t first,              \
                                         const REAL *restrict g, REAL *restrict w, REAL *restrict s0,      \
                                         REAL *restrict s1, REAL *restrict s2, size_t count)               \
    {                                                                                                      \
        const struct NAME(scalars) a = *scalars;                                                           \
        struct place place = random_place(first);                                                          \
        (void)s0, (void)s1, (void)s2;                                                                      \
        for (size_t i = 0; i < count; i++) {                                                               \
            REAL v = w[i], s[RULE_SLOTS_MAX] = {0, 0, 0};                                                  \
            begin;                                                                                         \
            NAME(rule_##name)(a.v, place, g[i], &v, s);                                                \
            end;                                                                                           \
            place.low++;                                                                                   \
            w[i] = v;                                                                                      \
        }                                                                                                  \
    }
#define STEP_LOOP_0(name) STEP_LOOP(name, (void)0, (void)0)
#define STEP_LOOP_1(name) STEP_LOOP(name, s[0] = s0[i], s0[i] = s[0])
#define STEP_LOOP_2(name) STEP_LOOP(name, (s[0] = s0[i], s[1] = s1[i]), (s0[i] = s[0], s1[i] = s[1]))
#define STEP_LOOP_3(name)                                                                                  \
    STEP_LOOP(name, (s[0] = s0[i], s[1] = s1[i], s[2] = s2[i]), (s0[i] = s[0], s1[i] = s[1], s2[i] = s[2]))
#define STEP_LOOP_OF(name, slots, slot0, slot1, slot2) STEP_LOOP_##slots(name)
ELEMENT_RULES(STEP_LOOP_OF)

static NAME(step_loop) *const NAME(step_loops)[RULE_COUNT] = {
#define STEP_LOOP_ROW(name, slots, slot0, slot1, slot2) [RULE_##name] = NAME(loop_##name),
    ELEMENT_RULES(STEP_LOOP_ROW)
#undef STEP_LOOP_ROW
};

static void NAME(run_program)(const struct step *s, size_t at, const REAL *g, REAL *w, size_t count)
{
    REAL *arrays[PROGRAM_SCRATCH0] = {[PROGRAM_STORED] = w, [PROGRAM_GRAD] = (REAL *)g};     /* which is only read */

    for (unsigned i = 0; i < s->program->slot_count; i++)
        arrays[PROGRAM_SLOT0 + i] = part(&s->slots[i], at * sizeof(REAL));
    NAME(program_run)(s->program, s->program_scalars, arrays, count);
}

static void NAME(run)(const struct step *s, const struct rule_scalars *scalars, size_t at, const REAL *g, REAL *w,
                      size_t count)
{
    struct NAME(scalars) a;
    unsigned slots = rule_slots(s->rule);

    if (s->rule == RULE_program) {
        NAME(run_program)(s, at, g, w, count);
        return;
    }
    for (unsigned i = 0; i < RULE_SCALARS_MAX; i++) a.v[i] = (REAL)scalars->v[i];
    for (size_t done = 0, n; done < count; done += n) {
        REAL *slot[RULE_SLOTS_MAX] = {NULL, NULL, NULL};
        uint64_t place = s->stream + at + done, row = ((uint64_t)1 << 32) - (uint32_t)place;
        n = count - done < row ? count - done : (size_t)row;
        for (unsigned i = 0; i < slots; i++) slot[i] = part(&s->slots[i], (at + done) * sizeof(REAL));
        NAME(step_loops)[s->rule](&a, place, g + done, w + done, slot[0], slot[1], slot[2], n);
    }
}

static void NAME(widen)(void *to, const void *from, size_t count) { memcpy(to, from, count * sizeof(REAL)); }
static void NAME(narrow)(void *to, const void *from, size_t count) { memcpy(to, from, count * sizeof(REAL)); }

CLONES static uint64_t NAME(add)(void *restrict to, const void *restrict from, size_t count)
{
    REAL *restrict sum = to;
    const REAL *restrict x = from;
    for (size_t i = 0; i < count; i++) sum[i] += x[i];
    return 0;
}

/* room = sum + last; one of them may be NULL. */
CLONES static void NAME(gather)(REAL *restrict room, const REAL *restrict sum, const REAL *restrict last,
                                size_t count)
{
    if (sum == NULL || last == NULL) {
        memcpy(room, sum == NULL ? last : sum, count * sizeof *room);
        return;
    }
    for (size_t i = 0; i < count; i++) room[i] = sum[i] + last[i];
}

/* One block: the gradient lies in the first-level cache by the time the rule reads it, and is read where it lies when
 * nothing is to be added to it. The rule then works in place on `to`, so that `to` may be any of what is read. */
static uint64_t NAME(step_block)(const struct step *s, const struct rule_scalars *scalars, size_t at, size_t count)
{
    REAL room[BLOCK], *to = (REAL *)s->to.at + at;
    const REAL *sum = part(&s->sum, at * sizeof(REAL)), *last = part(&s->last, at * sizeof(REAL));
    const REAL *from = part(&s->from, at * sizeof(REAL)), *g = sum == NULL ? last : sum;

    if ((sum != NULL && last != NULL) || g == to) {
        NAME(gather)(room, sum, last, count);
        g = room;
    }
    if (from != to) memcpy(to, from, count * sizeof *to);
    NAME(run)(s, scalars, at, g, to, count);
    return 0;
}

#undef STEP_LOOP
#undef STEP_LOOP_0
#undef STEP_LOOP_1
#undef STEP_LOOP_2
#undef STEP_LOOP_3
#undef STEP_LOOP_OF
#undef REAL
#undef REAL_ROOT
#undef NAME
