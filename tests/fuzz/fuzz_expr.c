/* Any bytes as the text of an updater program. What is taken runs in both types on exactly as much memory as it may touch,
 * and is printed and reported; what is refused is told in UTF-8 with its place. */
#include "gpu/program.h"
#include "service/base/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

enum { COUNT = 5 };

static void must(bool holds)
{
    if (!holds) abort();
}

/* One block for each array, so that the byte behind it is an error. Those that the program does not name are NULL. */
static void run(const struct program *p)
{
    const double moments[EXPR_MOMENT_COUNT] = {3, 2, 4, 1};
    double params[PROGRAM_PARAMS_MAX], scalars[PROGRAM_SCALARS_MAX], *f64[PROGRAM_SCRATCH0] = {NULL};
    float *f32[PROGRAM_SCRATCH0] = {NULL};
    unsigned arrays = PROGRAM_SLOT0 + p->slot_count;

    for (unsigned i = 0; i < p->param_count; i++) params[i] = p->params[i].standard;
    for (unsigned i = 0; i < arrays; i++) {
        f32[i] = mem_array(COUNT, sizeof *f32[i]);
        f64[i] = mem_array(COUNT, sizeof *f64[i]);
        must(f32[i] != NULL && f64[i] != NULL);
    }
    program_scalars(p, params, moments, scalars);
    program_run_f32(p, scalars, f32, COUNT);
    program_run_f64(p, scalars, f64, COUNT);
    for (unsigned i = 0; i < arrays; i++) {
        mem_free(f32[i]);
        mem_free(f64[i]);
    }
}

static void check_program(const struct program *p)
{
    must(p->insn_count <= PROGRAM_INSTRUCTIONS_MAX && p->register_count <= PROGRAM_REGISTERS_MAX);
    must(p->scalar_count <= PROGRAM_SCALARS_MAX && p->host_count <= PROGRAM_HOST_MAX);
    must(p->slot_count <= PROGRAM_SLOTS_MAX && p->param_count <= PROGRAM_PARAMS_MAX);
    for (unsigned i = 0; i < p->insn_count; i++) {
        must(p->insns[i].op < PROGRAM_OPS_END);
        must(p->insns[i].to != PROGRAM_GRAD && p->insns[i].to < PROGRAM_SCRATCH0 + p->register_count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct program *p = NULL;
    struct buf out = {0};
    struct error e;

    if (program_new(bytes_of(data, size), &p, &e) != STATUS_OK) {
        must(e.reason == REASON_UPDATER_INVALID && bytes_is_utf8(bytes_text(e.text)));
        must(strncmp(e.text, "line ", 5) == 0 && strchr(e.text, '^') != NULL);
        return 0;
    }
    check_program(p);
    run(p);
    program_cuda(p, DTYPE_f32, &out);
    must(program_report(bytes_of(data, size), NULL, 0, &out, &e) == STATUS_OK);
    buf_fini(&out);
    program_free(p);
    return 0;
}

static const char *const words[] = {"stored", " = ", "grad", "step", "contributors", "param ", "slot ", "sqrt(", "where(", "clamp(",
                                    "min(", "exp(", "(", ")", ", ", "; ", "\n", "+=", "/=", "==", "<", ">=", "^", "-", "*",
                                    "/", "+", "1e-8", "0.5", "#", "m", "x", "lr", "stored = grad;", "slot m = 0; m = grad;"};

/* Half of the changes are words of the language, which bytes alone find too seldom. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    const char *word = words[seed / 2 % (sizeof words / sizeof words[0])];
    size_t n = strlen(word), at = size > 0 ? seed / 128 % (size + 1) : 0;

    if (seed % 2 == 0 || n > most - size) return LLVMFuzzerMutate(data, size, most);
    memmove(data + at + n, data + at, size - at);
    memcpy(data + at, word, n);
    return size + n;
}
