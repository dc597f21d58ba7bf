/* The loops for f16 or bf16: a template for loops.c, which defines NAME first. The arithmetic is that of f32. */

CLONES static void NAME(widen)(void *restrict to, const void *restrict from, size_t count)
{
    float *restrict y = to;
    const uint16_t *restrict x = from;
    for (size_t i = 0; i < count; i++) y[i] = NAME(half_widen)(x[i]);
}

CLONES static uint64_t NAME(add)(void *restrict to, const void *restrict from, size_t count)
{
    float *restrict sum = to;
    const uint16_t *restrict x = from;
    for (size_t i = 0; i < count; i++) sum[i] += NAME(half_widen)(x[i]);
    return 0;
}

CLONES static void NAME(narrow)(void *restrict to, const void *restrict from, size_t count)
{
    uint16_t *restrict y = to;
    const float *restrict x = from;
    for (size_t i = 0; i < count; i++) y[i] = NAME(half_narrow)(x[i]);
}

/* The rule works in place on the master, or on the value widened for one block. */
static uint64_t NAME(step_block)(const struct step *s, const struct rule_scalars *scalars, size_t at, size_t count)
{
    float gradient[BLOCK], value[BLOCK], *w = part(&s->master, at * sizeof *w);
    const float *g = part(&s->sum, at * sizeof *g);

    if (g == NULL || s->last.size > 0) {
        loops_sum(s, at, count, gradient);
        g = gradient;
    }
    if (w == NULL) {
        w = value;
        NAME(widen)(w, (const uint16_t *)s->from.at + at, count);
    }
    run_f32(s, scalars, at, g, w, count);
    NAME(narrow)((uint16_t *)s->to.at + at, w, count);
    return 0;
}

#undef NAME
