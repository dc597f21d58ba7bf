/* NVRTC, CUDA's compiler as a library. It is opened by name when it is wanted, never linked, and what is used of it is
 * declared here: neither CUDA's headers nor a GPU have to be there. Any thread. */
#ifndef GPU_NVRTC_H
#define GPU_NVRTC_H

#include "service/base/status.h"

#include <stddef.h>

/* As nvrtc.h has it (12.0 and later). A number that is not 0 is an error.
 *    result, name, arguments */
#define NVRTC_FUNCTIONS(X)                                                                                             \
    X(int, GetNumSupportedArchs, (int *count))                                                                         \
    X(int, GetSupportedArchs, (int *numbers))                                                                          \
    X(int, CreateProgram, (void **program, const char *text, const char *name, int headers, const char *const *sources, \
                           const char *const *names))                                                                  \
    X(int, CompileProgram, (void *program, int count, const char *const *options))                                     \
    X(int, GetProgramLogSize, (void *program, size_t *size))                                                           \
    X(int, GetProgramLog, (void *program, char *out))                                                                  \
    X(int, GetPTXSize, (void *program, size_t *size))                                                                  \
    X(int, GetPTX, (void *program, char *out))                                                                         \
    X(int, GetCUBINSize, (void *program, size_t *size))                                                                \
    X(int, GetCUBIN, (void *program, char *out))                                                                       \
    X(int, DestroyProgram, (void **program))                                                                           \
    X(const char *, GetErrorString, (int error))

struct nvrtc {
#define NVRTC_FIELD(result, name, arguments) result (*name) arguments;
    NVRTC_FUNCTIONS(NVRTC_FIELD)
#undef NVRTC_FIELD
    /* 12.8 and later, else NULL: cancelled(ctx, NULL) is asked now and then while a program is compiled. */
    int (*SetFlowCallback)(void *program, int (*cancelled)(void *ctx, void *unused), void *ctx);
};

struct nvrtc_places {
    const char *library;             /* where it lies; NULL: where the loader finds libnvrtc.so.13 or .12, or in the toolkit */
    const char *toolkit;             /* CUDA's folder; NULL: /usr/local/cuda */
};

/* It stays open until the process ends. UNIMPLEMENTED: there is none, or one that lacks a function. */
enum status nvrtc_open(const struct nvrtc_places *p, struct nvrtc *out, struct error *e) MUST_CHECK;

struct nvrtc_wish {
    const char *text;                /* CUDA, which includes nothing */
    unsigned architecture;           /* of the card: 90 for one of capability 9.0 */
    int (*cancelled)(void *ctx, void *unused);       /* NULL: is not to be cancelled */
    void *ctx;
};

/* For nvrtc_code_fini. */
struct nvrtc_code {
    char *cubin;                     /* machine code of that card; NULL: this NVRTC does not know the card */
    char *ptx;                       /* of that card, or of the newest one known that it can stand in for */
};

/* Compiles so that + - * / and roots round as on the CPU. Waits as long as it takes: a tenth of a second or two. SYSTEM: in
 * NVRTC's words; NO_MEMORY. */
enum status nvrtc_compile(const struct nvrtc *n, const struct nvrtc_wish *w, struct nvrtc_code *out,
                          struct error *e) MUST_CHECK;
void nvrtc_code_fini(struct nvrtc_code *c);

#endif
