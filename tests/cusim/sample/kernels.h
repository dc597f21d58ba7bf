/* A few kernels for tests of the stand-in, and their arguments, shared by C and CUDA. */
#ifndef TESTS_CUSIM_SAMPLE_KERNELS_H
#define TESTS_CUSIM_SAMPLE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { SAMPLE_THREADS = 64, SAMPLE_TENSORS = 16, SAMPLE_CHUNK = 4096 };

struct sample_add {          /* sum = sum + gradient * scale; or without the old sum */
    uint64_t count;
    float *sum;
    const void *gradient;
    float scale;
    int sets;
};

struct sample_tensor {
    const float *from;
    float *to, *mean, *var;
    const float *sum;
    uint64_t count;
};

struct sample_adam {         /* a block works on SAMPLE_CHUNK elements of one tensor */
    struct sample_tensor tensors[SAMPLE_TENSORS];
    uint32_t first[SAMPLE_TENSORS + 1];      /* blocks before each */
    int count;
    float rate, beta1, rest1, beta2, rest2, epsilon;
};

struct sample_norm {         /* *sum += squares of x */
    uint64_t count;
    const float *x;
    float *sum;
};

enum sample_kernel {
    SAMPLE_ADD_F32, SAMPLE_ADD_BF16, SAMPLE_ADD_F16, SAMPLE_ADAM,
    SAMPLE_NORM,             /* by shuffles, a barrier and an atomic */
    SAMPLE_TOTAL,            /* by a tree in shared memory; one block */
    SAMPLE_TOTAL_UNSYNCED,   /* wrong: a barrier is missing */
    SAMPLE_CHAIN,            /* wrong: each block takes what the one before it left */
    SAMPLE_CLASH             /* wrong: all threads write one element */
};

#ifdef __cplusplus
extern "C"
#endif
const void *sample_kernel(enum sample_kernel k);

#endif
