/* The kernels as the host part of the CUDA device sees them: their arguments, and where they are.
 *
 * Every kernel takes one struct by value and is launched with cudaLaunchKernel, so that the host part is C. Pointers in
 * the structs are addresses of the device, or of pinned host memory, which the device reaches as well. For C and for
 * CUDA. Internal to the CUDA plug-in. */
#ifndef GPU_CUDA_KERNELS_H
#define GPU_CUDA_KERNELS_H

#include "api/limits.h"
#include "gpu/dtype.h"
#include "gpu/program_ops.h"
#include "gpu/rule.h"

#ifdef __cplusplus
#define KERNEL_LINKAGE extern "C"
#else
#define KERNEL_LINKAGE extern
#endif

enum {
    KERNEL_THREADS = 256,            /* of a block; what the sums of whole rules take for lanes, too */
    BATCH_MAX = 256,                 /* tensors in a launch */
    BATCH_SCALARS = 24,              /* different sets of scalars in a launch */
    KERNEL_ARGUMENT_MAX = 32764,     /* of the CUDA toolchain for sm_70 and later */
    KERNEL_OVERFLOW = 1,             /* WORK_OVERFLOW, which is for the host */
};

/* One tensor of a step by an element rule. sum, last and master may be NULL. */
struct kernel_tensor {
    const void *sum, *last, *from;
    void *to, *master, *slots[RULE_SLOTS_MAX];
    uint64_t count, stream;
    uint32_t *flags;                 /* integers: a word that may be set to KERNEL_OVERFLOW */
    uint16_t rule;
    uint8_t scalars;                 /* which set */
    uint8_t wide;                    /* all addresses are aligned for four elements at once */
};

/* Rounded to the type of the arithmetic. */
union kernel_scalars {
    float f32[RULE_SCALARS_MAX];
    double f64[RULE_SCALARS_MAX];
    int64_t contributors;            /* integers */
};

/* A launch for one tensor; blocks share it out. */
struct kernel_step {
    struct kernel_tensor tensor;
    union kernel_scalars scalars;
};

/* A launch for many small ones; a block's y says which it works on. */
struct kernel_batch {
    struct kernel_tensor tensors[BATCH_MAX];
    union kernel_scalars scalars[BATCH_SCALARS];
};

/* to (in the type of sums) = or += from. */
struct kernel_sum {
    void *to;
    const void *from;
    uint64_t count;
    uint32_t *flags;
    uint8_t add, wide;
};
struct kernel_sums { struct kernel_sum tensors[BATCH_MAX]; };

/* Bytes, for small copies to and from pinned memory. */
struct kernel_copy {
    void *to;
    const void *from;
    uint64_t size;
};
struct kernel_copies { struct kernel_copy tensors[BATCH_MAX]; };

/* Statistics: each block writes a struct stats of its share to `out`. */
struct kernel_stats {
    const void *at, *minus;          /* minus: NULL, or what is taken away */
    void *out;
    uint64_t count;
};

/* One pass of a whole rule over one tensor (gpu/whole.h). */
struct kernel_whole {
    const void *sum, *last, *from;
    void *to, *master, *slots[RULE_SLOTS_MAX];
    double *scratch;                 /* totals, then what each part came to */
    double *column_sums;             /* of each part of the rows; behind them in the scratch */
    uint64_t count, columns, parts;  /* parts: of the pass before, for WHOLE_SUM_UP */
    uint32_t first, sums;            /* WHOLE_SUM_UP: which sums of the parts become totals */
    double v[RULE_SCALARS_MAX];
};

struct kernel_insn { uint8_t op, to, from[5]; };

/* One tensor of a step by a program: the block interpreter, a thread an element. */
struct kernel_program {
    const void *sum, *last, *from;
    void *to, *master, *slots[PROGRAM_SLOTS_MAX];
    uint64_t count;
    uint32_t insn_count, slot_count;
    struct kernel_insn insns[PROGRAM_INSTRUCTIONS_MAX];
    union {
        float f32[PROGRAM_SCALARS_MAX];
        double f64[PROGRAM_SCALARS_MAX];
    } scalars;
};

/* Passes of whole rules, in the names of gpu/whole.c. What ends in 1 has sums or rows and is launched with a block for
 * each part; the others are over elements. */
#define WHOLE_PASSES(X)                                                                                        \
    X(sum_up, 1) X(lars_norms, 1) X(lars_move, 0) X(lars_momentum_move, 0) X(lamb_norms, 1) X(lamb_move, 0)      \
    X(lans_gradient, 1) X(lans_norms, 1) X(lans_move, 0) X(groupadagrad, 1) X(adafactor_rows, 1)                 \
    X(adafactor_column_parts, 0) X(adafactor_columns, 1) X(adafactor_size, 1) X(adafactor_move, 0) X(adafactor_vector_size, 1)                \
    X(adafactor_vector_move, 0)

enum whole_pass {
#define WHOLE_PASS_ENUM(name, parts) WHOLE_PASS_##name,
    WHOLE_PASSES(WHOLE_PASS_ENUM)
#undef WHOLE_PASS_ENUM
    WHOLE_PASS_COUNT
};

/* What to give cudaLaunchKernel; NULL where there is none. Types: all; rules: element rules; whole rules: real types. */
KERNEL_LINKAGE const void *kernel_of_step(enum dtype type, enum rule_id rule);       /* struct kernel_step */
KERNEL_LINKAGE const void *kernel_of_batch(enum dtype type);                         /* struct kernel_batch */
KERNEL_LINKAGE const void *kernel_of_sum(enum dtype type);                           /* struct kernel_sum */
KERNEL_LINKAGE const void *kernel_of_sums(enum dtype type);                          /* struct kernel_sums */
KERNEL_LINKAGE const void *kernel_of_stats(enum dtype type);                         /* struct kernel_stats */
KERNEL_LINKAGE const void *kernel_of_copies(void);                                   /* struct kernel_copies */
KERNEL_LINKAGE const void *kernel_of_program(enum dtype type);                       /* struct kernel_program */
KERNEL_LINKAGE const void *kernel_of_whole(enum dtype type, enum whole_pass pass);   /* struct kernel_whole */

#endif
