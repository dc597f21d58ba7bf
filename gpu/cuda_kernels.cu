/* Kernels that see one element at a time: the element rules, sums, small copies, and programs.
 *
 * The formulas are those of gpu/rules.h and gpu/program_ops.h, compiled as they stand. Compiled with -fmad=false, so that
 * + - * / and sqrt round as on the CPU and give the same bits. A thread reads its elements whole before it writes them,
 * because a step may write over what it reads. */
#include "gpu/cuda_types.cuh"

/* ---- one tensor of a step ---------------------------------------------------------------------------------------- */

/* Each rule as a type, for both kinds of arithmetic. */
#define RULE_TYPE(name, slots, slot0, slot1, slot2)                                                              \
    struct rule_of_##name {                                                                                      \
        enum { SLOTS = slots };                                                                                  \
        DEVICE_INLINE void run(const float *a, uint64_t place, float g, float *w, float *s)                      \
        {                                                                                                        \
            rule_##name##_f32(a, random_place(place), g, w, s);                                                  \
        }                                                                                                        \
        DEVICE_INLINE void run(const double *a, uint64_t place, double g, double *w, double *s)                  \
        {                                                                                                        \
            rule_##name##_f64(a, random_place(place), g, w, s);                                                  \
        }                                                                                                        \
    };
ELEMENT_RULES(RULE_TYPE)

template <class T, class RULE, int N>
static __device__ __forceinline__ void step_elements(const kernel_tensor &t, const real_of<T> *scalars, uint64_t at)
{
    typedef real_of<T> R;
    pack<R, N> g = load_gradient<T, N>(t, at), w = load_value<T, N>(t, at), slots[RULE_SLOTS_MAX];

    for (int i = 0; i < RULE::SLOTS; i++) slots[i] = load<N, R>(t.slots[i], at);
    for (int k = 0; k < N; k++) {
        R s[RULE_SLOTS_MAX] = {0, 0, 0};
        for (int i = 0; i < RULE::SLOTS; i++) s[i] = slots[i].x[k];
        RULE::run(scalars, t.stream + at + k, g.x[k], &w.x[k], s);
        for (int i = 0; i < RULE::SLOTS; i++) slots[i].x[k] = s[i];
    }
    for (int i = 0; i < RULE::SLOTS; i++) store<N, R>(t.slots[i], at, slots[i]);
    store_value<T, N>(t, at, w);
}

template <class T, class RULE>
static __device__ KERNEL_INLINE void step_tensor(const kernel_tensor &t, const real_of<T> *scalars, uint64_t index,
                                                 uint64_t stride)
{
    uint64_t groups = t.wide ? t.count / 4 : 0;

    for (uint64_t i = index; i < groups; i += stride) step_elements<T, RULE, 4>(t, scalars, 4 * i);
    for (uint64_t i = 4 * groups + index; i < t.count; i += stride) step_elements<T, RULE, 1>(t, scalars, i);
}

DEVICE_INLINE const float *scalars_of(const kernel_scalars &s, float) { return s.f32; }
DEVICE_INLINE const double *scalars_of(const kernel_scalars &s, double) { return s.f64; }

DEVICE_INLINE uint64_t own_index() { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE_INLINE uint64_t own_stride() { return (uint64_t)gridDim.x * blockDim.x; }

template <class T, class RULE>
static __global__ void __launch_bounds__(KERNEL_THREADS) step_kernel(const __grid_constant__ kernel_step a)
{
    step_tensor<T, RULE>(a.tensor, scalars_of(a.scalars, real_of<T>()), own_index(), own_stride());
}

/* Rules may differ from tensor to tensor; the threads of a block have the same. */
template <class T>
static __global__ void __launch_bounds__(KERNEL_THREADS) batch_kernel(const __grid_constant__ kernel_batch a)
{
    const kernel_tensor &t = a.tensors[blockIdx.y];
    const real_of<T> *scalars = scalars_of(a.scalars[t.scalars], real_of<T>());

    switch (t.rule) {
#define RULE_CASE(name, slots, slot0, slot1, slot2) \
    case RULE_##name: step_tensor<T, rule_of_##name>(t, scalars, own_index(), own_stride()); break;
        ELEMENT_RULES(RULE_CASE)
    }
}

/* ---- integers: computed in i64; what does not fit is told ---------------------------------------------------------- */

template <class T> static __device__ __forceinline__ void step_integers(const kernel_tensor &t, int64_t n, uint64_t at)
{
#define OR_RULE(name) || t.rule == RULE_##name
    bool is_blind = false RULES_WITHOUT_VALUE(OR_RULE);
    uint64_t over = 0;
    int64_t g, w = is_blind ? 0 : ((const T *)t.from)[at];

    if (t.sum == NULL) g = ((const T *)t.last)[at];
    else g = ((const int64_t *)t.sum)[at];
    if (t.sum != NULL && t.last != NULL) g = integer_sum(g, ((const T *)t.last)[at], &over);
    switch (t.rule) {
#define INTEGER_CASE(name) case RULE_##name: integer_##name(n, g, &w, &over); break;
        INTEGER_RULES(INTEGER_CASE)
    }
    T narrow = (T)w;
    ((T *)t.to)[at] = narrow;
    if ((over | (uint64_t)(w ^ (int64_t)narrow)) != 0) *(volatile uint32_t *)t.flags = KERNEL_OVERFLOW;
}

template <class T> static __global__ void __launch_bounds__(KERNEL_THREADS) integer_kernel(const __grid_constant__ kernel_step a)
{
    for (uint64_t i = own_index(); i < a.tensor.count; i += own_stride())
        step_integers<T>(a.tensor, a.scalars.contributors, i);
}

template <class T>
static __global__ void __launch_bounds__(KERNEL_THREADS) integer_batch_kernel(const __grid_constant__ kernel_batch a)
{
    const kernel_tensor &t = a.tensors[blockIdx.y];

    for (uint64_t i = own_index(); i < t.count; i += own_stride())
        step_integers<T>(t, a.scalars[t.scalars].contributors, i);
}

/* ---- sums ---------------------------------------------------------------------------------------------------------- */

template <class T, int N> static __device__ __forceinline__ void sum_elements(const kernel_sum &t, uint64_t at)
{
    typedef real_of<T> R;
    pack<T, N> from = load<N, T>(t.from, at);
    pack<R, N> to;

    if (t.add) to = load<N, R>(t.to, at);
    for (int k = 0; k < N; k++) to.x[k] = t.add ? to.x[k] + widened(from.x[k]) : widened(from.x[k]);
    store<N, R>(t.to, at, to);
}

template <class T> static __device__ __forceinline__ void sum_tensor(const kernel_sum &t)
{
    uint64_t groups = t.wide ? t.count / 4 : 0;

    for (uint64_t i = own_index(); i < groups; i += own_stride()) sum_elements<T, 4>(t, 4 * i);
    for (uint64_t i = 4 * groups + own_index(); i < t.count; i += own_stride()) sum_elements<T, 1>(t, i);
}

template <class T> static __device__ __forceinline__ void sum_integers(const kernel_sum &t)
{
    uint64_t over = 0;

    for (uint64_t i = own_index(); i < t.count; i += own_stride()) {
        int64_t x = ((const T *)t.from)[i], *to = (int64_t *)t.to + i;
        *to = t.add ? integer_sum(*to, x, &over) : x;
    }
    if (over != 0) *(volatile uint32_t *)t.flags = KERNEL_OVERFLOW;
}

#define SUM_KERNELS(name, T, body)                                                                                    \
    static __global__ void __launch_bounds__(KERNEL_THREADS) sum_kernel_##name(const __grid_constant__ kernel_sum a)   \
    {                                                                                                                 \
        body<T>(a);                                                                                                   \
    }                                                                                                                 \
    static __global__ void __launch_bounds__(KERNEL_THREADS) sums_kernel_##name(const __grid_constant__ kernel_sums a) \
    {                                                                                                                 \
        body<T>(a.tensors[blockIdx.y]);                                                                               \
    }
#define REAL_SUM_KERNELS(name, T) SUM_KERNELS(name, T, sum_tensor)
#define INTEGER_SUM_KERNELS(name, T) SUM_KERNELS(name, T, sum_integers)
REAL_TYPES(REAL_SUM_KERNELS)
INTEGER_TYPES(INTEGER_SUM_KERNELS)

/* ---- small copies ---------------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(KERNEL_THREADS) copies_kernel(const __grid_constant__ kernel_copies a)
{
    const kernel_copy &t = a.tensors[blockIdx.y];
    uint64_t words = (((uintptr_t)t.to | (uintptr_t)t.from) & 15) == 0 ? t.size / 16 : 0;

    for (uint64_t i = own_index(); i < words; i += own_stride())
        store<4, uint32_t>(t.to, 4 * i, load<4, uint32_t>(t.from, 4 * i));
    for (uint64_t i = 16 * words + own_index(); i < t.size; i += own_stride())
        ((uint8_t *)t.to)[i] = ((const uint8_t *)t.from)[i];
}

/* ---- programs: the formulas of gpu/program_ops.h, one instruction after the other for one element --------------------- */

#define MATH_INLINE DEVICE_INLINE
DEVICE_INLINE unsigned long long math_bits(double x)
{
    unsigned long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

DEVICE_INLINE double math_real(unsigned long long bits)
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

#define VALUE(k) p[q.from[k]]
#define SCALAR(k) scalars[q.from[k]]
#define APPLY_v(F) F(VALUE(0))
#define APPLY_u(F) F(SCALAR(0))
#define APPLY_vv(F) F(VALUE(0), VALUE(1))
#define APPLY_vu(F) F(VALUE(0), SCALAR(1))
#define APPLY_uv(F) F(SCALAR(0), VALUE(1))
#define APPLY_vvv(F) F(VALUE(0), VALUE(1), VALUE(2))
#define APPLY_vvu(F) F(VALUE(0), VALUE(1), SCALAR(2))
#define APPLY_vuv(F) F(VALUE(0), SCALAR(1), VALUE(2))
#define APPLY_vuu(F) F(VALUE(0), SCALAR(1), SCALAR(2))
#define APPLY_uvv(F) F(SCALAR(0), VALUE(1), VALUE(2))
#define APPLY_uvu(F) F(SCALAR(0), VALUE(1), SCALAR(2))
#define APPLY_uuv(F) F(SCALAR(0), SCALAR(1), VALUE(2))
#define APPLY_uvuv(F) F(SCALAR(0), VALUE(1), SCALAR(2), VALUE(3))
#define APPLY_vuvvu(F) F(VALUE(0), SCALAR(1), VALUE(2), VALUE(3), SCALAR(4))

#define RUN_INSN(name, form) case PROGRAM_##name##_##form: r = APPLY_##form(DO_##name); break;
#define RUN_PROGRAM(suffix, TYPE, ROOT, SIZE)                                                                       \
    static __device__ KERNEL_INLINE TYPE insn_##suffix(const kernel_insn &q, const TYPE *scalars, const TYPE *p)    \
    {                                                                                                               \
        TYPE r = 0;                                                                                                 \
        switch (q.op) { PROGRAM_OPS(RUN_INSN) }                                                                     \
        return r;                                                                                                   \
    }

#define REAL float
#define REAL_ROOT sqrtf
#define REAL_SIZE fabsf
RUN_PROGRAM(f32, float, sqrtf, fabsf)
#undef REAL
#undef REAL_ROOT
#undef REAL_SIZE
#define REAL double
#define REAL_ROOT sqrt
#define REAL_SIZE fabs
RUN_PROGRAM(f64, double, sqrt, fabs)
#undef REAL
#undef REAL_ROOT
#undef REAL_SIZE

DEVICE_INLINE float run_insn(const kernel_program &a, const kernel_insn &q, const float *p)
{
    return insn_f32(q, a.scalars.f32, p);
}
DEVICE_INLINE double run_insn(const kernel_program &a, const kernel_insn &q, const double *p)
{
    return insn_f64(q, a.scalars.f64, p);
}

/* Places in the order of gpu/program.h: the value, the gradient, slots, scratch. */
template <class T> static __global__ void __launch_bounds__(KERNEL_THREADS) program_kernel(const __grid_constant__ kernel_program a)
{
    typedef real_of<T> R;
    R p[2 + PROGRAM_SLOTS_MAX + PROGRAM_REGISTERS_MAX];

    for (uint64_t at = own_index(); at < a.count; at += own_stride()) {
        p[0] = load_value<T, 1>(a, at).x[0];
        p[1] = load_gradient<T, 1>(a, at).x[0];
        for (uint32_t i = 0; i < a.slot_count; i++) p[2 + i] = ((const R *)a.slots[i])[at];
        for (uint32_t i = 0; i < a.insn_count; i++) p[a.insns[i].to] = run_insn(a, a.insns[i], p);
        for (uint32_t i = 0; i < a.slot_count; i++) ((R *)a.slots[i])[at] = p[2 + i];
        pack<R, 1> w = {{p[0]}};
        store_value<T, 1>(a, at, w);
    }
}

/* ---- where they are -------------------------------------------------------------------------------------------------- */

#define RULE_ENTRY_f32(name, ...) KERNEL(kernel_step, CUSIM_PLAIN, step_kernel<float, rule_of_##name>),
#define RULE_ENTRY_f64(name, ...) KERNEL(kernel_step, CUSIM_PLAIN, step_kernel<double, rule_of_##name>),
#define RULE_ENTRY_f16(name, ...) KERNEL(kernel_step, CUSIM_PLAIN, step_kernel<bits_f16, rule_of_##name>),
#define RULE_ENTRY_bf16(name, ...) KERNEL(kernel_step, CUSIM_PLAIN, step_kernel<bits_bf16, rule_of_##name>),
#define RULE_TABLE(name, T) static const void *const steps_##name[] = {ELEMENT_RULES(RULE_ENTRY_##name)};
REAL_TYPES(RULE_TABLE)

const void *kernel_of_step(enum dtype type, enum rule_id rule)
{
    switch (type) {
#define STEP_CASE(name, T) case DTYPE_##name: return steps_##name[rule];
        REAL_TYPES(STEP_CASE)
#define INTEGER_STEP_CASE(name, T) case DTYPE_##name: return KERNEL(kernel_step, CUSIM_PLAIN, integer_kernel<T>);
        INTEGER_TYPES(INTEGER_STEP_CASE)
    default: return NULL;
    }
}

#define BY_TYPE(function, A, real, integer)                        \
    const void *function(enum dtype type)                           \
    {                                                               \
        switch (type) {                                             \
            REAL_TYPES(real)                                        \
            INTEGER_TYPES(integer)                                  \
        default: return NULL;                                       \
        }                                                           \
    }
#define BATCH_CASE(name, T) case DTYPE_##name: return KERNEL(kernel_batch, CUSIM_PLAIN, batch_kernel<T>);
#define INTEGER_BATCH_CASE(name, T) case DTYPE_##name: return KERNEL(kernel_batch, CUSIM_PLAIN, integer_batch_kernel<T>);
#define SUM_CASE(name, T) case DTYPE_##name: return KERNEL(kernel_sum, CUSIM_PLAIN, sum_kernel_##name);
#define SUMS_CASE(name, T) case DTYPE_##name: return KERNEL(kernel_sums, CUSIM_PLAIN, sums_kernel_##name);
#define PROGRAM_CASE(name, T) case DTYPE_##name: return KERNEL(kernel_program, CUSIM_PLAIN, program_kernel<T>);
#define NO_CASE(name, T)
BY_TYPE(kernel_of_batch, kernel_batch, BATCH_CASE, INTEGER_BATCH_CASE)
BY_TYPE(kernel_of_sum, kernel_sum, SUM_CASE, SUM_CASE)
BY_TYPE(kernel_of_sums, kernel_sums, SUMS_CASE, SUMS_CASE)
BY_TYPE(kernel_of_program, kernel_program, PROGRAM_CASE, NO_CASE)

const void *kernel_of_copies(void) { return KERNEL(kernel_copies, CUSIM_PLAIN, copies_kernel); }

static_assert(sizeof(kernel_batch) <= KERNEL_ARGUMENT_MAX && sizeof(kernel_sums) <= KERNEL_ARGUMENT_MAX, "arguments fit a launch");
