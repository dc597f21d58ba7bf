/* Element types: names, sizes, and in what their sums are taken. Any thread. */
#ifndef GPU_DTYPE_H
#define GPU_DTYPE_H

#include "service/base/bytes.h"

#include <stddef.h>

/* The numbers travel and are stored: a row keeps its number for ever.
 * numpy is the name in numpy and in .npy headers (bf16 has none there).
 *    number name  size  sum   numpy */
#define DTYPES(X)                   \
    X(0, f32,  4, f32, "float32")   \
    X(1, f64,  8, f64, "float64")   \
    X(2, f16,  2, f32, "float16")   \
    X(3, bf16, 2, f32, "bfloat16")  \
    X(4, i8,   1, i64, "int8")      \
    X(5, u8,   1, i64, "uint8")     \
    X(6, i32,  4, i64, "int32")     \
    X(7, i64,  8, i64, "int64")

enum dtype {
#define DTYPE_ENUM(number, name, size, sum, numpy) DTYPE_##name = number,
    DTYPES(DTYPE_ENUM)
#undef DTYPE_ENUM
    DTYPE_COUNT
};

struct dtype_facts {
    const char *name, *numpy;
    size_t size;
    enum dtype sum;
};
extern const struct dtype_facts dtype_facts[DTYPE_COUNT];

/* Inline, as each push asks a dozen times. */
static inline bool dtype_known(unsigned number) { return number < DTYPE_COUNT; }
static inline size_t dtype_size(enum dtype t) { return dtype_facts[t].size; }
/* In what values of this type are summed. */
static inline enum dtype dtype_sum(enum dtype t) { return dtype_facts[t].sum; }
static inline bool dtype_is_integer(enum dtype t) { return dtype_facts[t].sum == DTYPE_i64; }
/* f16, bf16: computed in f32, and may have a master in it. */
static inline bool dtype_is_half(enum dtype t) { return t == DTYPE_f16 || t == DTYPE_bf16; }
static inline const char *dtype_name(enum dtype t) { return dtype_facts[t].name; }      /* "f32" */
static inline const char *dtype_numpy(enum dtype t) { return dtype_facts[t].numpy; }    /* "float32" */
/* Takes both names; false: neither. */
bool dtype_parse(struct bytes name, enum dtype *out);
/* Writes v as an element of a floating type, rounded to nearest. false: v is finite and would become infinite. */
bool dtype_put_real(enum dtype t, double v, void *to);

#endif
