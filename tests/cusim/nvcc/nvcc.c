/* Kernels as nvcc makes them, on the stand-in: the objects of the real plug-in call these functions of the runtime when they
 * are loaded, and say which address stands for which kernel. What runs is the PTX that nvcc compiled into the same objects;
 * the makefile keeps it, and puts that of all files into one text. */
#include "tests/cusim/ptxi.h"
#include "tests/cusim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The assembler brings the texts in as they are; KEPT is the makefile's. */
#define TEXT(name, file)                                                                                   \
    __asm__(".pushsection .rodata\n" #name ":\n.incbin \"" KEPT file "\"\n.byte 0\n.popsection\n");         \
    extern const char name[] __attribute__((visibility("hidden")));
TEXT(ptx_90, "compute_90.ptx")
TEXT(ptx_100, "compute_100.ptx")

enum { ARCHITECTURES = 2 };

/* That of 80 is that of 90, but for a line: tests/unit/test_cuda_link.sh sees to it. */
static const struct { const char *name, *text; } architectures[ARCHITECTURES] = {{"90", ptx_90}, {"100", ptx_100}};

static struct entry {
    struct entry *next;
    const void *function;
    const char *name;
    struct kernel *made[ARCHITECTURES];
} *entries;

static unsigned architecture(void)
{
    const char *text = getenv("CUSIM_PTX");

    for (unsigned i = 0; i < ARCHITECTURES; i++)
        if (text == NULL || strcmp(text, architectures[i].name) == 0) return i;
    sim_say("CUSIM_PTX=%s is none of 90 and 100", text);
    abort();
}

/* The kernel's part of the text, so that not all of it is read for each; for free. */
static char *part_of(const char *text, const char *name)
{
    char key[300];

    snprintf(key, sizeof key, ".entry %s(", name);
    const char *from = strstr(text, key), *to = from != NULL ? strstr(from, "\n}") : NULL;
    if (to == NULL) return NULL;
    size_t size = (size_t)(to - from) + 3;
    char *part = sim_new(size + 1);
    memcpy(part, from, size);
    return part;
}

static struct kernel *make(const struct entry *e, const char *text)
{
    char why[200] = "it is not in the text", *part = part_of(text, e->name);
    struct ptxi *ptx = part != NULL ? ptxi_load(part, e->name, why, sizeof why) : NULL;
    struct kernel *k = NULL;

    free(part);
    if (ptx == NULL) {
        sim_say("%s: %s", e->name, why);
        sim.stats.mistakes++;
        return NULL;
    }
    k = kernel_add(NULL, e->name);
    k->ptx = ptx;
    k->argument_size = ptxi_arguments_size(ptx);
    return k;
}

static struct kernel *kernel_of_nvcc(const void *function)
{
    unsigned a = architecture();
    struct entry *e = entries;

    while (e != NULL && e->function != function) e = e->next;
    if (e == NULL) return NULL;
    if (e->made[a] == NULL) e->made[a] = make(e, architectures[a].text);
    return e->made[a];
}

/* ---- what the code of nvcc calls; no header has these for others -------------------------------------------------- */

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp);
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);

void **__cudaRegisterFatBinary(void *binary)
{
    (void)binary;
    kernel_unknown = kernel_of_nvcc;
    return NULL;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp)
{
    struct entry *e = sim_new(sizeof *e);

    (void)handle, (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    *e = (struct entry){.next = entries, .function = function, .name = name};
    entries = e;
}

/* Of kernel<<<...>>>(...), which the plug-in does not have. */
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function)
{
    (void)out, (void)function;
    abort();
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s)
{
    (void)kernel, (void)grid, (void)block, (void)args, (void)shared, (void)s;
    abort();
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    (void)grid, (void)block, (void)shared, (void)stream;
    abort();
}
