/* Kernels of the whole rules: lars, lamb, lans, groupadagrad, adafactor. The passes, parts and orders of adding are those
 * of gpu/whole.c, and so are the bits of the results: a block has one part, its thread i is lane i, adds the squares of
 * the elements i, i + 256, ... in double, and the lanes are added in a tree. No atomics: whoever runs first, the order of
 * adding is the same. A pass with sums is followed by WHOLE_SUM_UP, one block, which adds what the parts came to.
 *
 * Between the blocks of one launch nothing is handed on; between launches the stream is in order. */
#include "gpu/cuda_types.cuh"

static_assert((int)KERNEL_THREADS == (int)WHOLE_LANES, "a thread is a lane");

typedef kernel_whole whole;

#define LANES WHOLE_LANES
#define WHOLE_KERNEL(name) \
    template <class T> static __global__ void __launch_bounds__(KERNEL_THREADS) name(const __grid_constant__ kernel_whole a)
#define SUMMED(name, count) __shared__ double lanes[LANES]; double name[count] = {0}

DEVICE_INLINE uint64_t least_of(uint64_t a, uint64_t b) { return a < b ? a : b; }
DEVICE_INLINE double square(double x) { return x * x; }

/* What each thread brings becomes the same total in all of them. All threads of the block call it. */
static __device__ __forceinline__ double total_of_lanes(double *lanes, double own)
{
    unsigned i = threadIdx.x;

    __syncthreads();             /* what is there from before has been read */
    lanes[i] = own;
    for (unsigned half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (i < half) lanes[i] = lanes[i] + lanes[i + half];
    }
    __syncthreads();
    return lanes[0];
}

DEVICE_INLINE double *partial_of(const whole &a, uint64_t part) { return a.scratch + WHOLE_SUMS * (1 + part); }

/* The scalars rounded to the type of the arithmetic. */
template <class R> struct scalars { R v[RULE_SCALARS_MAX]; };
template <class R> static __device__ __forceinline__ scalars<R> rounded(const whole &a)
{
    scalars<R> s;
    for (int i = 0; i < RULE_SCALARS_MAX; i++) s.v[i] = (R)a.v[i];
    return s;
}

/* The formulas by type. */
#define FORMULAS(suffix, R)                                                                                             \
    DEVICE_INLINE R clipped(const R *a, R g) { return clipped_##suffix(a, g); }                                         \
    DEVICE_INLINE void moments(const R *a, R g, R *s) { moments_##suffix(a, g, s); }                                    \
    DEVICE_INLINE void sgd(const R *a, R g, R *w) { rule_sgd_##suffix(a, random_place(0), g, w, NULL); }                \
    DEVICE_INLINE void momentum(const R *a, R g, R *w, R *s) { rule_momentum_##suffix(a, random_place(0), g, w, s); }   \
    DEVICE_INLINE R lamb_u(const R *a, R m, R v, R w) { return lamb_u_##suffix(a, m, v, w); }                           \
    DEVICE_INLINE R lans_q(const R *a, R g, R v, R w) { return lans_q_##suffix(a, g, v, w); }                           \
    DEVICE_INLINE R adagrad_moved(const R *a, R root, R g, R w) { return adagrad_moved_##suffix(a, root, g, w); }       \
    DEVICE_INLINE R mean_of(const R *a, R was, double s, uint64_t of) { return adafactor_mean_##suffix(a, was, s, of); } \
    DEVICE_INLINE R var_of(const R *a, R g, R v) { return adafactor_var_##suffix(a, g, v); }                            \
    DEVICE_INLINE R adafactor_u(R by_row, R column, R g) { return adafactor_u_##suffix(by_row, column, g); }            \
    DEVICE_INLINE R adafactor_moved(R by, R wd, R u, R w) { return adafactor_moved_##suffix(by, wd, u, w); }
FORMULAS(f32, float)
FORMULAS(f64, double)

DEVICE_INLINE float root_of(float x) { return sqrtf(x); }
DEVICE_INLINE double root_of(double x) { return sqrt(x); }

template <class T> static __device__ __forceinline__ real_of<T> gradient_at(const whole &a, uint64_t i)
{
    return load_gradient<T, 1>(a, i).x[0];
}
template <class T> static __device__ __forceinline__ real_of<T> value_at(const whole &a, uint64_t i)
{
    return load_value<T, 1>(a, i).x[0];
}
template <class T> static __device__ __forceinline__ void store_at(const whole &a, uint64_t i, real_of<T> w)
{
    pack<real_of<T>, 1> p = {{w}};
    store_value<T, 1>(a, i, p);
}
template <class T> static __device__ __forceinline__ real_of<T> *slot(const whole &a, int k) { return (real_of<T> *)a.slots[k]; }

/* The elements of the block's part that are this lane's. */
#define EACH_OF_PART(i)                                                                                                \
    for (uint64_t i = (uint64_t)blockIdx.x * WHOLE_PART + threadIdx.x,                                                  \
                  end_of_part = least_of(a.count, ((uint64_t)blockIdx.x + 1) * WHOLE_PART);                             \
         i < end_of_part; i += LANES)

/* Passes without sums may be cut in any way. */
#define EACH_ELEMENT(i)                                                                                                \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, stride_of_all = (uint64_t)gridDim.x * blockDim.x; \
         i < a.count; i += stride_of_all)

WHOLE_KERNEL(sum_up)
{
    __shared__ double lanes[LANES];

    for (uint32_t k = a.first; k < a.first + a.sums; k++) {
        double own = 0;
        for (uint64_t i = threadIdx.x; i < a.parts; i += LANES) own += partial_of(a, i)[k];
        double total = total_of_lanes(lanes, own);
        if (threadIdx.x == 0) a.scratch[k] = total;
    }
}

/* Writes the sums from `first` on of the block's part. */
static __device__ __forceinline__ void end_part(const whole &a, double *lanes, int first, int count, const double *own)
{
    for (int k = 0; k < count; k++) {
        double total = total_of_lanes(lanes, own[k]);
        if (threadIdx.x == 0) partial_of(a, blockIdx.x)[first + k] = total;
    }
}

/* ---- lars ------------------------------------------------------------------------------------------------------------ */

WHOLE_KERNEL(lars_norms)
{
    SUMMED(own, 2);
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);

    EACH_OF_PART(i) {
        own[0] += square((double)value_at<T>(a, i));
        own[1] += square((double)(s.v[GRAD_RESCALE] * gradient_at<T>(a, i)));
    }
    end_part(a, lanes, 0, 2, own);
}

template <class T> static __device__ __forceinline__ scalars<real_of<T>> lars_scalars(const whole &a)
{
    scalars<real_of<T>> s = rounded<real_of<T>>(a);
    s.v[MOMENTUM_LR] = (real_of<T>)whole_lars_rate(a.v, a.scratch);
    return s;
}

WHOLE_KERNEL(lars_move)
{
    const scalars<real_of<T>> s = lars_scalars<T>(a);

    EACH_ELEMENT(i) {
        real_of<T> g = gradient_at<T>(a, i), w = value_at<T>(a, i);
        sgd(s.v, g, &w);
        store_at<T>(a, i, w);
    }
}

WHOLE_KERNEL(lars_momentum_move)
{
    const scalars<real_of<T>> s = lars_scalars<T>(a);

    EACH_ELEMENT(i) {
        real_of<T> g = gradient_at<T>(a, i), w = value_at<T>(a, i), m = slot<T>(a, 0)[i];
        momentum(s.v, g, &w, &m);
        slot<T>(a, 0)[i] = m;
        store_at<T>(a, i, w);
    }
}

/* ---- lamb, lans ------------------------------------------------------------------------------------------------------ */

template <class T>
static __device__ __forceinline__ void move_moments(const whole &a, const scalars<real_of<T>> &s, real_of<T> g, uint64_t i,
                                                    real_of<T> *moment)
{
    moment[0] = slot<T>(a, 0)[i];
    moment[1] = slot<T>(a, 1)[i];
    moments(s.v, g, moment);
    slot<T>(a, 0)[i] = moment[0];
    slot<T>(a, 1)[i] = moment[1];
}

WHOLE_KERNEL(lamb_norms)
{
    SUMMED(own, 2);
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);

    EACH_OF_PART(i) {
        real_of<T> w = value_at<T>(a, i), m[2];
        move_moments<T>(a, s, clipped(s.v, gradient_at<T>(a, i)), i, m);
        own[0] += square((double)w);
        own[1] += square((double)lamb_u(s.v, m[0], m[1], w));
    }
    end_part(a, lanes, 0, 2, own);
}

WHOLE_KERNEL(lamb_move)
{
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);
    double ratio = whole_ratio(whole_bounded_norm(a.v, a.scratch[0]), sqrt(a.scratch[1]));
    real_of<T> by = (real_of<T>)(a.v[ADAM_LR] * ratio);

    EACH_ELEMENT(i) {
        real_of<T> w = value_at<T>(a, i);
        store_at<T>(a, i, w - by * lamb_u(s.v, slot<T>(a, 0)[i], slot<T>(a, 1)[i], w));
    }
}

WHOLE_KERNEL(lans_gradient)
{
    SUMMED(own, 1);
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);

    EACH_OF_PART(i) own[0] += square((double)(s.v[GRAD_RESCALE] * gradient_at<T>(a, i)));
    end_part(a, lanes, 3, 1, own);
}

/* The gradient is divided by its norm before it is clipped. */
template <class T> static __device__ __forceinline__ scalars<real_of<T>> lans_scalars(const whole &a)
{
    scalars<real_of<T>> s = rounded<real_of<T>>(a);
    s.v[GRAD_RESCALE] = (real_of<T>)whole_lans_rescale(a.v, a.scratch[3]);
    return s;
}

WHOLE_KERNEL(lans_norms)
{
    SUMMED(own, 3);
    const scalars<real_of<T>> s = lans_scalars<T>(a);

    EACH_OF_PART(i) {
        real_of<T> w = value_at<T>(a, i), g = clipped(s.v, gradient_at<T>(a, i)), m[2];
        move_moments<T>(a, s, g, i, m);
        own[0] += square((double)w);
        own[1] += square((double)lamb_u(s.v, m[0], m[1], w));
        own[2] += square((double)lans_q(s.v, g, m[1], w));
    }
    end_part(a, lanes, 0, 3, own);
}

WHOLE_KERNEL(lans_move)
{
    const scalars<real_of<T>> s = lans_scalars<T>(a);
    double w_norm = whole_bounded_norm(a.v, a.scratch[0]);
    real_of<T> by_mean = (real_of<T>)(a.v[ADAM_LR] * a.v[ADAM_BETA1] * whole_ratio(w_norm, sqrt(a.scratch[1])));
    real_of<T> by_gradient = (real_of<T>)(a.v[ADAM_LR] * a.v[ADAM_REST1] * whole_ratio(w_norm, sqrt(a.scratch[2])));

    EACH_ELEMENT(i) {
        real_of<T> w = value_at<T>(a, i), g = clipped(s.v, gradient_at<T>(a, i)), v = slot<T>(a, 1)[i];
        real_of<T> u = lamb_u(s.v, slot<T>(a, 0)[i], v, w), q = lans_q(s.v, g, v, w);
        w = w - by_mean * u;
        store_at<T>(a, i, w - by_gradient * q);
    }
}

/* ---- by rows ---------------------------------------------------------------------------------------------------------- */

DEVICE_INLINE uint64_t rows_in_part(const whole &a) { return a.columns >= WHOLE_PART ? 1 : WHOLE_PART / a.columns; }

template <class T>
static __device__ __forceinline__ double clipped_square(const whole &a, const scalars<real_of<T>> &s, uint64_t i)
{
    return square((double)clipped(s.v, gradient_at<T>(a, i)));
}

/* The sum of squares of a row: long ones by all threads, short ones from left to right by one. */
template <class T>
static __device__ __forceinline__ double long_row_squares(const whole &a, const scalars<real_of<T>> &s, uint64_t row,
                                                          double *lanes)
{
    double own = 0;

    for (uint64_t c = threadIdx.x; c < a.columns; c += LANES) own += clipped_square<T>(a, s, row * a.columns + c);
    return total_of_lanes(lanes, own);
}

template <class T>
static __device__ __forceinline__ double short_row_squares(const whole &a, const scalars<real_of<T>> &s, uint64_t row)
{
    double sum = 0;

    for (uint64_t c = 0; c < a.columns; c++) sum += clipped_square<T>(a, s, row * a.columns + c);
    return sum;
}

template <class T>
static __device__ __forceinline__ void adagrad_row(const whole &a, const scalars<real_of<T>> &s, uint64_t row,
                                                   real_of<T> squares, uint64_t from, uint64_t by)
{
    real_of<T> root = root_of(squares) + s.v[ADAGRAD_EPSILON];

    for (uint64_t c = from; c < a.columns; c += by) {
        uint64_t i = row * a.columns + c;
        store_at<T>(a, i, adagrad_moved(s.v, root, clipped(s.v, gradient_at<T>(a, i)), value_at<T>(a, i)));
    }
}

WHOLE_KERNEL(groupadagrad)
{
    __shared__ double lanes[LANES];
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);
    uint64_t row = blockIdx.x * rows_in_part(a), end = least_of(a.count / a.columns, row + rows_in_part(a));
    bool is_long = a.columns >= LANES;
    real_of<T> *squares = slot<T>(a, 0);

    for (row += is_long ? 0 : threadIdx.x; row < end; row += is_long ? 1 : LANES) {
        double now = is_long ? long_row_squares<T>(a, s, row, lanes) : short_row_squares<T>(a, s, row);
        real_of<T> sum = squares[row] + (real_of<T>)(now / (double)a.columns);
        if (is_long) __syncthreads();        /* all have read it */
        if (!is_long || threadIdx.x == 0) squares[row] = sum;
        adagrad_row<T>(a, s, row, sum, is_long ? threadIdx.x : 0, is_long ? LANES : 1);
    }
}

/* ---- adafactor -------------------------------------------------------------------------------------------------------- */

/* The means of rows, their sum from the first row of the part to its last, and the squares of the value. */
WHOLE_KERNEL(adafactor_rows)
{
    SUMMED(own, 1);
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);
    uint64_t begin = blockIdx.x * rows_in_part(a), end = least_of(a.count / a.columns, begin + rows_in_part(a));
    bool is_long = a.columns >= LANES;
    real_of<T> *mean = slot<T>(a, 0);

    for (uint64_t row = begin + (is_long ? 0 : threadIdx.x); row < end; row += is_long ? 1 : LANES) {
        double now = is_long ? long_row_squares<T>(a, s, row, lanes) : short_row_squares<T>(a, s, row);
        if (!is_long || threadIdx.x == 0) mean[row] = mean_of(s.v, mean[row], now, a.columns);
    }
    for (uint64_t i = begin * a.columns + threadIdx.x; i < end * a.columns; i += LANES)
        own[0] += square((double)value_at<T>(a, i));
    end_part(a, lanes, 0, 1, own);           /* after whose barriers every mean is there */
    if (threadIdx.x == 0) {
        double sum = 0;
        for (uint64_t row = begin; row < end; row++) sum += (double)mean[row];
        partial_of(a, blockIdx.x)[1] = sum;
    }
}

DEVICE_INLINE uint64_t row_parts(const whole &a) { return (a.count / a.columns + WHOLE_ROWS - 1) / WHOLE_ROWS; }

template <class T>
static __device__ __forceinline__ void move_column_mean(const whole &a, const scalars<real_of<T>> &s, uint64_t column,
                                                        double squares)
{
    slot<T>(a, 1)[column] = mean_of(s.v, slot<T>(a, 1)[column], squares, a.count / a.columns);
}

/* A thread has a column over a part of the rows, and its neighbour the next column or, behind the last, the first of the next
 * part: so many rows of few columns keep a card as busy as few rows of many. */
WHOLE_KERNEL(adafactor_column_parts)
{
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);
    uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, part = at / a.columns, column = at % a.columns;
    uint64_t rows = a.count / a.columns, end = least_of(rows, (part + 1) * WHOLE_ROWS);
    double squares = 0;

    if (part >= row_parts(a)) return;
    for (uint64_t r = part * WHOLE_ROWS; r < end; r++) squares += clipped_square<T>(a, s, r * a.columns + column);
    if (rows <= WHOLE_ROWS) move_column_mean<T>(a, s, column, squares);
    else a.column_sums[at] = squares;
}

/* A block has a column, whose parts are its lanes'. */
WHOLE_KERNEL(adafactor_columns)
{
    SUMMED(own, 1);
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);

    for (uint64_t part = threadIdx.x; part < row_parts(a); part += LANES) own[0] += a.column_sums[part * a.columns + blockIdx.x];
    double squares = total_of_lanes(lanes, own[0]);
    if (threadIdx.x == 0) move_column_mean<T>(a, s, blockIdx.x, squares);
}

/* The root of the mean of rows is in the factor of a row, so that nothing as small as the product of both means occurs. */
template <class T>
static __device__ __forceinline__ real_of<T> adafactor_direction(const whole &a, const scalars<real_of<T>> &s, double mean,
                                                                 uint64_t i)
{
    uint64_t row = i / a.columns, column = i % a.columns;
    real_of<T> by_row = (real_of<T>)sqrt(mean / (double)slot<T>(a, 0)[row]);

    return adafactor_u(by_row, slot<T>(a, 1)[column], clipped(s.v, gradient_at<T>(a, i)));
}

WHOLE_KERNEL(adafactor_size)
{
    SUMMED(own, 1);
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);
    double mean = a.scratch[1] / (double)(a.count / a.columns);

    EACH_OF_PART(i) own[0] += square((double)adafactor_direction<T>(a, s, mean, i));
    end_part(a, lanes, 2, 1, own);
}

WHOLE_KERNEL(adafactor_move)
{
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);
    double mean = a.scratch[1] / (double)(a.count / a.columns), by, wd;

    whole_adafactor_rates(a.v, a.scratch, (double)a.count, &by, &wd);
    EACH_ELEMENT(i) {
        real_of<T> u = adafactor_direction<T>(a, s, mean, i);
        store_at<T>(a, i, adafactor_moved((real_of<T>)by, (real_of<T>)wd, u, value_at<T>(a, i)));
    }
}

WHOLE_KERNEL(adafactor_vector_size)
{
    SUMMED(own, 3);
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);

    EACH_OF_PART(i) {
        real_of<T> g = clipped(s.v, gradient_at<T>(a, i)), v = var_of(s.v, g, slot<T>(a, 0)[i]);
        slot<T>(a, 0)[i] = v;
        own[0] += square((double)value_at<T>(a, i));
        own[2] += square((double)adafactor_u(1, v, g));
    }
    end_part(a, lanes, 0, 3, own);
}

WHOLE_KERNEL(adafactor_vector_move)
{
    const scalars<real_of<T>> s = rounded<real_of<T>>(a);
    double by, wd;

    whole_adafactor_rates(a.v, a.scratch, (double)a.count, &by, &wd);
    EACH_ELEMENT(i) {
        real_of<T> u = adafactor_u(1, slot<T>(a, 0)[i], clipped(s.v, gradient_at<T>(a, i)));
        store_at<T>(a, i, adafactor_moved((real_of<T>)by, (real_of<T>)wd, u, value_at<T>(a, i)));
    }
}

/* ---- where they are --------------------------------------------------------------------------------------------------- */

#define PASS_FLAGS_0 CUSIM_PLAIN
#define PASS_FLAGS_1 CUSIM_BARRIER
#define PASS_ENTRY_f32(name, parts) KERNEL(kernel_whole, PASS_FLAGS_##parts, name<float>),
#define PASS_ENTRY_f64(name, parts) KERNEL(kernel_whole, PASS_FLAGS_##parts, name<double>),
#define PASS_ENTRY_f16(name, parts) KERNEL(kernel_whole, PASS_FLAGS_##parts, name<bits_f16>),
#define PASS_ENTRY_bf16(name, parts) KERNEL(kernel_whole, PASS_FLAGS_##parts, name<bits_bf16>),
#define PASS_TABLE(name, T) static const void *const passes_##name[] = {WHOLE_PASSES(PASS_ENTRY_##name)};
REAL_TYPES(PASS_TABLE)

const void *kernel_of_whole(enum dtype type, enum whole_pass pass)
{
    switch (type) {
#define PASS_CASE(name, T) case DTYPE_##name: return passes_##name[pass];
        REAL_TYPES(PASS_CASE)
    default: return NULL;
    }
}
