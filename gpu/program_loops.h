/* The block interpreter for one real type: a template for program_cpu.c, which defines REAL, REAL_ROOT, REAL_SIZE and NAME
 * first, and once for both types how operands are fetched. */

#define LOOP(name, form)                                                                                          \
    CLONES static void NAME(loop_##name##_##form)(const struct program_insn *q, REAL *const *places,              \
                                                  const REAL *scalars __attribute__((unused)), size_t count)      \
    {                                                                                                             \
        FROM_##form                                                                                               \
        REAL *const to = places[q->to];                                                                           \
        NO_CARRY for (size_t i = 0; i < count; i++) to[i] = APPLY_##form(DO_##name);                              \
    }
PROGRAM_OPS(LOOP)

static void (*const NAME(loops)[PROGRAM_OPS_END])(const struct program_insn *, REAL *const *, const REAL *, size_t) = {
#define LOOP_ROW(name, form) [PROGRAM_##name##_##form] = NAME(loop_##name##_##form),
    PROGRAM_OPS(LOOP_ROW)
#undef LOOP_ROW
};

void NAME(program_run)(const struct program *p, const double *scalars, REAL *const *arrays, size_t count)
{
    enum { ELEMENTS = BLOCK_SIZE / sizeof(REAL), ROW = (BLOCK_SIZE + ROW_GAP) / sizeof(REAL) };
    REAL scratch[PROGRAM_REGISTERS_MAX * ROW] __attribute__((aligned(64)));
    REAL rounded[PROGRAM_SCALARS_MAX], *places[PROGRAM_PLACES];
    unsigned array_count = PROGRAM_SLOT0 + p->slot_count;
    size_t block = p->insn_count == 1 ? count : ELEMENTS;        /* one instruction alone comes back to nothing */

    for (unsigned i = 0; i < p->scalar_count; i++) rounded[i] = (REAL)scalars[i];
    for (unsigned i = 0; i < p->register_count; i++) places[PROGRAM_SCRATCH0 + i] = scratch + (size_t)i * ROW;
    for (size_t done = 0; done < count; done += block) {
        size_t n = count - done < block ? count - done : block;
        for (unsigned i = 0; i < array_count; i++) places[i] = arrays[i] != NULL ? arrays[i] + done : NULL;
        for (unsigned i = 0; i < p->insn_count; i++)
            NAME(loops)[p->insns[i].op](&p->insns[i], places, rounded, n);
    }
}

#undef LOOP
#undef REAL
#undef REAL_ROOT
#undef REAL_SIZE
#undef NAME
