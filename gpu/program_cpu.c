/* Programs on the CPU: the host part, and the element part block by block. Every instruction runs over a block before the
 * next one does, and a block of all that a program touches stays in the first-level cache, so that memory is passed once. */
#include "gpu/program.h"

#include "gpu/clones.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define MATH_INLINE static inline __attribute__((always_inline))

MATH_INLINE unsigned long long math_bits(double x)
{
    unsigned long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

MATH_INLINE double math_real(unsigned long long bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#define MATH(...) __VA_ARGS__
#include "gpu/program_math.h"

#define REAL_EXP math_exp
#define REAL_LOG math_log
#define REAL_TANH math_tanh

/* Measured: 128 floats a block are best where values come from memory. With shorter ones calling the loops costs too much;
 * with longer ones memory rests too long while a block is computed, since what the processor fetches ahead of a loop is
 * about as much as that. Rows of scratch lie a cache line apart from a power of two, so that they do not fall into the
 * same sets. */
enum { BLOCK_SIZE = 512, ROW_GAP = 64 };

/* The compiler may not doubt that an element is read before it is written and no other element is: an instruction's
 * result may lie where its operand lies. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"
#define NO_CARRY _Pragma("clang loop vectorize(assume_safety)")
#else
#define NO_CARRY _Pragma("GCC ivdep")
#endif

#define FROM_V(k) const REAL *const v##k = places[q->from[k]];
#define FROM_U(k) const REAL u##k = scalars[q->from[k]];
#define FROM_v FROM_V(0)
#define FROM_u FROM_U(0)
#define FROM_vv FROM_V(0) FROM_V(1)
#define FROM_vu FROM_V(0) FROM_U(1)
#define FROM_uv FROM_U(0) FROM_V(1)
#define FROM_vvv FROM_vv FROM_V(2)
#define FROM_vvu FROM_vv FROM_U(2)
#define FROM_vuv FROM_vu FROM_V(2)
#define FROM_vuu FROM_vu FROM_U(2)
#define FROM_uvv FROM_uv FROM_V(2)
#define FROM_uvu FROM_uv FROM_U(2)
#define FROM_uuv FROM_U(0) FROM_U(1) FROM_V(2)
#define FROM_uvuv FROM_uvu FROM_V(3)
#define FROM_vuvvu FROM_vuv FROM_V(3) FROM_U(4)

#define APPLY_v(F) F(v0[i])
#define APPLY_u(F) F(u0)
#define APPLY_vv(F) F(v0[i], v1[i])
#define APPLY_vu(F) F(v0[i], u1)
#define APPLY_uv(F) F(u0, v1[i])
#define APPLY_vvv(F) F(v0[i], v1[i], v2[i])
#define APPLY_vvu(F) F(v0[i], v1[i], u2)
#define APPLY_vuv(F) F(v0[i], u1, v2[i])
#define APPLY_vuu(F) F(v0[i], u1, u2)
#define APPLY_uvv(F) F(u0, v1[i], v2[i])
#define APPLY_uvu(F) F(u0, v1[i], u2)
#define APPLY_uuv(F) F(u0, u1, v2[i])
#define APPLY_uvuv(F) F(u0, v1[i], u2, v3[i])
#define APPLY_vuvvu(F) F(v0[i], u1, v2[i], v3[i], u4)

#define REAL float
#define REAL_ROOT sqrtf
#define REAL_SIZE fabsf
#define NAME(x) x##_f32
#include "gpu/program_loops.h"

#define REAL double
#define REAL_ROOT sqrt
#define REAL_SIZE fabs
#define NAME(x) x##_f64
#include "gpu/program_loops.h"

/* ---- the host part: the same formulas, in double ----------------------------------------------------------------- */

#define REAL double
#define REAL_ROOT sqrt
#define REAL_SIZE fabs
#define DO_pow(A, B) pow(A, B)
#define HOST_1(F) F(v[h->from[0]])
#define HOST_2(F) F(v[h->from[0]], v[h->from[1]])
#define HOST_3(F) F(v[h->from[0]], v[h->from[1]], v[h->from[2]])

static double host_result(const struct program_host *h, const double *v)
{
    switch (h->op) {
#define HOST_CASE(name, operands) case EXPR_##name: return HOST_##operands(DO_##name);
    EXPR_OPS(HOST_CASE)
#undef HOST_CASE
    default: return h->number;
    }
}

void program_scalars(const struct program *p, const double *params, const double moments[EXPR_MOMENT_COUNT],
                     double out[PROGRAM_SCALARS_MAX])
{
    double v[PROGRAM_HOST_MAX];

    for (unsigned i = 0; i < p->host_count; i++) {
        const struct program_host *h = &p->host[i];
        if (h->op == PROGRAM_HOST_param) v[i] = params[h->from[0]];
        else if (h->op == PROGRAM_HOST_moment) v[i] = moments[h->from[0]];
        else v[i] = host_result(h, v);
    }
    for (unsigned i = 0; i < p->scalar_count; i++) out[i] = v[p->scalars[i]];
}
