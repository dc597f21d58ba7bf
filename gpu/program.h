/* The updater language, second half: a checked program, ready to run on any device.
 *
 * A program has two parts. The *host part* is everything that depends on scalars only (numbers, params, step, ...); it
 * runs once a step, in double, for every device, so that a bias correction costs nothing and is the same everywhere. The
 * *element part* is a list of instructions for one element, which devices run over all: the CPU block by block
 * (program_cpu.c), a GPU as a kernel of its own (program_cuda.c). It reads the results of the host part rounded once to
 * the type of the values.
 *
 * A program is immutable and knows no params' values: those come with each step, so to change one compiles nothing.
 * Any thread. */
#ifndef GPU_PROGRAM_H
#define GPU_PROGRAM_H

#include "gpu/dtype.h"
#include "gpu/expr.h"
#include "gpu/program_ops.h"

/* What an instruction reads and writes for each element: an array in memory, or scratch that lives within a block. */
enum program_place {
    PROGRAM_STORED,          /* the value, in place */
    PROGRAM_GRAD,            /* the sum; only read */
    PROGRAM_SLOT0,
    PROGRAM_SCRATCH0 = PROGRAM_SLOT0 + PROGRAM_SLOTS_MAX,
    PROGRAM_PLACES = PROGRAM_SCRATCH0 + PROGRAM_REGISTERS_MAX
};

enum { PROGRAM_OPERANDS_MAX = 5 };

struct program_insn {
    uint8_t op;                              /* enum program_op */
    uint8_t to;                              /* place */
    uint8_t from[PROGRAM_OPERANDS_MAX];      /* places and scalars, as the op's form says */
};

/* Operand i is the result of an earlier one. */
struct program_host {
    double number;                           /* of PROGRAM_HOST_number */
    uint8_t op;                              /* enum expr_op, or a leaf */
    uint8_t from[3];                         /* of a leaf: [0] is the number of the param or moment */
};
enum { PROGRAM_HOST_number = EXPR_number, PROGRAM_HOST_param = EXPR_OPS_END, PROGRAM_HOST_moment };

struct program_param {
    char name[PROGRAM_NAME_SIZE_MAX + 1];
    double standard;
};

struct program_slot {
    char name[PROGRAM_NAME_SIZE_MAX + 1];
    bool starts_as_stored;                   /* else as zero */
};

struct program {
    unsigned param_count, slot_count, host_count, scalar_count, insn_count, register_count;
    bool reads[PROGRAM_SCRATCH0], writes[PROGRAM_SCRATCH0];      /* arrays, as they are before a step and after it */
    struct program_param params[PROGRAM_PARAMS_MAX];
    struct program_slot slots[PROGRAM_SLOTS_MAX];
    struct program_host host[PROGRAM_HOST_MAX];
    uint8_t scalars[PROGRAM_SCALARS_MAX];    /* which results of the host part the element part reads */
    struct program_insn insns[PROGRAM_INSTRUCTIONS_MAX];
};

/* UPDATER_INVALID with the sentence of gpu/expr.h, NO_MEMORY. */
enum status program_new(struct bytes text, struct program **out, struct error *e) MUST_CHECK;
void program_free(struct program *p);                        /* NULL is nothing */

/* The number of a param, or -1. */
int program_param_find(const struct program *p, struct bytes name);

/* Whether slots depend on `step`, so that they must have begun when its count did. */
bool program_counts(const struct program *p);

/* The host part: params is param_count values, moments are in the order of EXPR_MOMENTS. Fills scalar_count of out. */
void program_scalars(const struct program *p, const double *params, const double moments[EXPR_MOMENT_COUNT],
                     double out[PROGRAM_SCALARS_MAX]);

/* The element part over `count` elements on the CPU. arrays: stored, grad and the slots, in the order of the places; those
 * that the program neither reads nor writes may be NULL. No two of them may overlap. */
void program_run_f32(const struct program *p, const double *scalars, float *const *arrays, size_t count);
void program_run_f64(const struct program *p, const double *scalars, double *const *arrays, size_t count);

/* Bytes of memory read and written for each element. */
unsigned program_bytes(const struct program *p, enum dtype type);

/* Facts of an op, for tests and printers: "mul_add", "uvv", "((A) * (B) + (C))". Static text. */
const char *program_op_name(enum program_op op);
const char *program_op_form(enum program_op op);
const char *program_op_formula(enum program_op op);

struct program_setting {
    struct bytes name;
    double value;
};

/* What a person wants to know of a text before it is set: a JSON object with slots, params, instructions, bytes for each
 * element and two steps on a small example. UPDATER_INVALID also for a param that the text does not have. On a lack of
 * memory json->failed is set as well. */
enum status program_report(struct bytes text, const struct program_setting *params, unsigned count, struct buf *json,
                           struct error *e) MUST_CHECK;

/* A kernel's argument, and the layout that the text below declares. Pointers are addresses of the device; what they are is
 * said in struct step (gpu/device.h). */
struct program_arguments {
    uint64_t count;
    const void *sum, *last;                  /* NULL: none; not both */
    const void *from;
    void *to, *master;                       /* master NULL: none */
    void *slots[PROGRAM_SLOTS_MAX];
    union {
        float f32[PROGRAM_SCALARS_MAX];
        double f64[PROGRAM_SCALARS_MAX];
    } scalars;
};
#define PROGRAM_KERNEL "program_step"        /* extern "C" void program_step(struct program_arguments by value) */
enum { PROGRAM_THREADS = 256 };              /* of a block, at most */

/* Whether the texts below are the same for both. */
bool program_equal(const struct program *p, const struct program *other);
/* CUDA text for NVRTC, printed from the program alone: nothing of the user's characters is in it. Equal element parts give
 * equal text, whatever their names and numbers are. To be compiled as gpu/nvrtc.h does. Real types. */
void program_cuda(const struct program *p, enum dtype type, struct buf *out);

#endif
