/* Element types on the device: how they are loaded, widened for the arithmetic, and stored. For the kernels. */
#ifndef GPU_CUDA_TYPES_CUH
#define GPU_CUDA_TYPES_CUH

#define _Static_assert static_assert         /* C's, in the headers that C and CUDA share */
#include "gpu/cuda_kernels.h"
#include "gpu/half.h"
#include "gpu/whole.h"

#define REAL float
#define REAL_ROOT sqrtf
#define NAME(x) x##_f32
#include "gpu/rules.h"
#include "gpu/whole_rules.h"
#undef REAL
#undef REAL_ROOT
#undef NAME
#define REAL double
#define REAL_ROOT sqrt
#define NAME(x) x##_f64
#include "gpu/rules.h"
#include "gpu/whole_rules.h"
#undef REAL
#undef REAL_ROOT
#undef NAME

/* The address of a kernel for the host. The stand-in that runs kernels on the CPU wants to know them by name. */
#ifdef CUSIM
template <class A, void (*F)(A)> static const void *kernel_entry(const char *name, int flags)
{
    /* Each time, which is nothing after the first: threads of several devices come here, and would race for a static. */
    cusim_register((const void *)F, name, [](void **a) { F(*(A *)a[0]); }, sizeof(A), flags);
    return (const void *)F;
}
#define KERNEL(A, flags, ...) kernel_entry<A, __VA_ARGS__>(#__VA_ARGS__, flags)
#else
enum { CUSIM_PLAIN, CUSIM_BARRIER };
#define KERNEL(A, flags, ...) ((const void *)(void (*)(A))__VA_ARGS__)
#endif

/* f16 and bf16 are bits; the arithmetic is that of f32 (gpu/half.h, as on the CPU). */
struct bits_f16 { uint16_t bits; };
struct bits_bf16 { uint16_t bits; };

template <class T> struct type_of { typedef T real; };
template <> struct type_of<bits_f16> { typedef float real; };
template <> struct type_of<bits_bf16> { typedef float real; };
template <class T> using real_of = typename type_of<T>::real;

#define DEVICE_INLINE static __device__ __forceinline__
/* What many kernels have in them: inline on a card; for the stand-in once, which takes a fifth of the time to compile. */
#ifdef CUSIM
#define KERNEL_INLINE __attribute__((noinline))
#else
#define KERNEL_INLINE __forceinline__
#endif

DEVICE_INLINE float widened(float x) { return x; }
DEVICE_INLINE double widened(double x) { return x; }
DEVICE_INLINE float widened(bits_f16 x) { return half_widen_f16(x.bits); }
DEVICE_INLINE float widened(bits_bf16 x) { return half_widen_bf16(x.bits); }
DEVICE_INLINE void narrow_to(float *to, float x) { *to = x; }
DEVICE_INLINE void narrow_to(double *to, double x) { *to = x; }
DEVICE_INLINE void narrow_to(bits_f16 *to, float x) { to->bits = half_narrow_f16(x); }
DEVICE_INLINE void narrow_to(bits_bf16 *to, float x) { to->bits = half_narrow_bf16(x); }

/* N elements, in one access each where the hardware has one as wide. */
template <class T, int N> struct alignas(N * sizeof(T) > 16 ? 16 : N * sizeof(T)) pack { T x[N]; };

template <int N, class T> static __device__ __forceinline__ pack<T, N> load(const void *from, uint64_t at)
{
    return *(const pack<T, N> *)((const T *)from + at);
}

template <int N, class T> static __device__ __forceinline__ void store(void *to, uint64_t at, const pack<T, N> &p)
{
    *(pack<T, N> *)((T *)to + at) = p;
}

/* What steps, whole rules and programs have in common: `A` has sum, last, from, to and master. */
template <class T, int N, class A>
static __device__ KERNEL_INLINE pack<real_of<T>, N> load_gradient(const A &a, uint64_t at)
{
    typedef real_of<T> R;
    pack<R, N> g;

    if (a.sum != NULL) g = load<N, R>(a.sum, at);
    if (a.last != NULL) {
        pack<T, N> last = load<N, T>(a.last, at);
        for (int k = 0; k < N; k++) g.x[k] = a.sum != NULL ? g.x[k] + widened(last.x[k]) : widened(last.x[k]);
    }
    return g;
}

template <class T, int N, class A>
static __device__ KERNEL_INLINE pack<real_of<T>, N> load_value(const A &a, uint64_t at)
{
    pack<real_of<T>, N> w;

    if (a.master != NULL) return load<N, real_of<T>>(a.master, at);
    pack<T, N> from = load<N, T>(a.from, at);
    for (int k = 0; k < N; k++) w.x[k] = widened(from.x[k]);
    return w;
}

template <class T, int N, class A>
static __device__ KERNEL_INLINE void store_value(const A &a, uint64_t at, const pack<real_of<T>, N> &w)
{
    pack<T, N> to;

    if (a.master != NULL) store<N, real_of<T>>(a.master, at, w);
    for (int k = 0; k < N; k++) narrow_to(&to.x[k], w.x[k]);
    store<N, T>(a.to, at, to);
}

#define REAL_TYPES(X) X(f32, float) X(f64, double) X(f16, bits_f16) X(bf16, bits_bf16)
#define INTEGER_TYPES(X) X(i8, int8_t) X(u8, uint8_t) X(i32, int32_t) X(i64, int64_t)

#endif
