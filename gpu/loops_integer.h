/* The loops for one integer type: a template for loops.c, which defines INTEGER and NAME first. */

CLONES static void NAME(widen)(void *restrict to, const void *restrict from, size_t count)
{
    int64_t *restrict sum = to;
    const INTEGER *restrict x = from;
    for (size_t i = 0; i < count; i++) sum[i] = x[i];
}

CLONES static uint64_t NAME(add)(void *restrict to, const void *restrict from, size_t count)
{
    int64_t *restrict sum = to;
    const INTEGER *restrict x = from;
    uint64_t over = 0;

    for (size_t i = 0; i < count; i++) sum[i] = integer_sum(sum[i], x[i], &over);
    return over;
}

/* A result that changes when it is narrowed does not fit. */
#define STEP_LOOP(name)                                                                                    \
    CLONES static uint64_t NAME(loop_##name)(int64_t n, const int64_t *restrict g, INTEGER *restrict w,    \
                                             size_t count)                                                 \
    {                                                                                                      \
        uint64_t over = 0;                                                                                 \
        for (size_t i = 0; i < count; i++) {                                                               \
            int64_t v = w[i];                                                                              \
            integer_##name(n, g[i], &v, &over);                                                            \
            w[i] = (INTEGER)v;                                                                             \
            over |= (uint64_t)(v ^ (int64_t)w[i]);                                                         \
        }                                                                                                  \
        return over;                                                                                       \
    }
INTEGER_RULES(STEP_LOOP)

static uint64_t (*const NAME(step_loops)[RULE_COUNT])(int64_t, const int64_t *, INTEGER *, size_t) = {
#define STEP_LOOP_ROW(name) [RULE_##name] = NAME(loop_##name),
    INTEGER_RULES(STEP_LOOP_ROW)
#undef STEP_LOOP_ROW
};

static uint64_t NAME(step_block)(const struct step *s, const struct rule_scalars *scalars, size_t at, size_t count)
{
    int64_t room[BLOCK], n = s->rule == RULE_average ? (int64_t)scalars->v[AVERAGE_CONTRIBUTORS] : 1;
    INTEGER *to = (INTEGER *)s->to.at + at;
    const int64_t *sum = part(&s->sum, at * sizeof *sum);
    const INTEGER *last = part(&s->last, at * sizeof *last), *from = part(&s->from, at * sizeof *from);
    uint64_t over = 0;

    if (sum != NULL) memcpy(room, sum, count * sizeof *room);
    else NAME(widen)(room, last, count);
    if (sum != NULL && last != NULL) over = NAME(add)(room, last, count);
    if (from != to) memcpy(to, from, count * sizeof *to);
    return over | NAME(step_loops)[s->rule](n, room, to, count);
}

#undef STEP_LOOP
#undef INTEGER
#undef NAME
