#include "gpu/cuda_program.h"

#include "gpu/nvrtc.h"
#include "service/base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Who owns an entry: the compiler while it is ASKED, else the device thread. Written last, read first. */
enum state { UNUSED, ASKED, READY, REFUSED };

struct compiled {
    _Atomic int state;
    struct program program;          /* a copy: the step's own may go meanwhile */
    enum dtype type;
    cudaLibrary_t library;           /* while ASKED that of the program before */
    cudaKernel_t kernel;
    struct compiled *next;           /* in programs.first; under the lock */
    /* the device thread's */
    uint64_t used;                   /* programs.steps, when last found */
    unsigned underway;
};

struct programs {
    int card;
    unsigned capability;
    bool forbidden;
    char *library, *toolkit;         /* copies: the environment is no thread's own */

    pthread_mutex_t lock;            /* of what follows, up to the device thread's; held across no call that waits */
    pthread_cond_t there;
    struct compiled *first, **last;  /* ASKED and not begun */
    char why[160];
    atomic_bool stopping;
    _Atomic uint64_t compiled, interpreted;

    /* the device thread's */
    pthread_t compiler;
    bool started;
    uint64_t steps;
    struct compiled kept[PROGRAM_KERNELS_MAX];
};

/* ---- the compiler: a thread -------------------------------------------------------------------------------------- */

static void note(struct programs *p, const char *why)
{
    pthread_mutex_lock(&p->lock);
    snprintf(p->why, sizeof p->why, "%.159s", why);
    pthread_mutex_unlock(&p->lock);
}

static void unload(struct compiled *k)
{
    if (k->library != NULL) (void)cudaLibraryUnload(k->library);
    k->library = NULL;
}

/* Asking for the kernel's attributes makes the driver do now what it would put off until the first launch. */
static cudaError_t load_image(struct compiled *k, const char *image)
{
    struct cudaFuncAttributes attributes;
    cudaError_t r = cudaLibraryLoadData(&k->library, image, NULL, NULL, 0, NULL, NULL, 0);

    if (r != cudaSuccess) {
        k->library = NULL;
        return r;
    }
    r = cudaLibraryGetKernel(&k->kernel, k->library, PROGRAM_KERNEL);
    if (r == cudaSuccess) r = cudaFuncGetAttributes(&attributes, (const void *)k->kernel);
    if (r != cudaSuccess) unload(k);
    return r;
}

/* PTX is for a card whose machine code NVRTC does not make, or not as the driver wants it. */
static cudaError_t load_code(struct compiled *k, const struct nvrtc_code *code)
{
    cudaError_t r = code->cubin != NULL ? load_image(k, code->cubin) : cudaErrorNoKernelImageForDevice;

    return r == cudaSuccess || code->ptx == NULL ? r : load_image(k, code->ptx);
}

static enum status load(struct programs *p, struct compiled *k, const struct nvrtc_code *code, struct error *e)
{
    cudaError_t r = cudaSetDevice(p->card);

    if (r == cudaSuccess) r = load_code(k, code);
    (void)cudaGetLastError();        /* the thread's own; one that stays is met by the device thread */
    if (r == cudaSuccess) return STATUS_OK;
    return error_set(e, REASON_SYSTEM, "loading a program: CUDA error %d %s: %s", (int)r, cudaGetErrorName(r),
                     cudaGetErrorString(r));
}

static int is_cancelled(void *programs, void *unused)
{
    (void)unused;
    return atomic_load(&((struct programs *)programs)->stopping);
}

static enum status make(struct programs *p, const struct nvrtc *n, struct compiled *k, struct error *e)
{
    struct nvrtc_code code = {NULL, NULL};
    struct buf text = {0};
    enum status s = STATUS_OK;

    program_cuda(&k->program, k->type, &text);
    buf_add(&text, "", 1);
    if (text.failed) s = error_set(e, REASON_NO_MEMORY, "no memory for the text of a program");
    if (s == STATUS_OK)
        s = nvrtc_compile(n, &(struct nvrtc_wish){(const char *)text.at, p->capability, is_cancelled, p}, &code, e);
    if (s == STATUS_OK) s = load(p, k, &code, e);
    nvrtc_code_fini(&code);
    buf_fini(&text);
    return s;
}

/* NULL: it is to end. */
static struct compiled *next_asked(struct programs *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->first == NULL && !atomic_load(&p->stopping)) pthread_cond_wait(&p->there, &p->lock);
    struct compiled *k = atomic_load(&p->stopping) ? NULL : p->first;
    if (k != NULL) p->first = k->next;
    if (p->first == NULL) p->last = &p->first;
    pthread_mutex_unlock(&p->lock);
    return k;
}

static void *compiler(void *programs)
{
    struct programs *p = programs;
    struct nvrtc n;
    struct error absent, e;
    enum status opened = nvrtc_open(&(struct nvrtc_places){p->library, p->toolkit}, &n, &absent);

    for (struct compiled *k; (k = next_asked(p)) != NULL;) {
        unload(k);
        enum status s = opened == STATUS_OK ? make(p, &n, k, &e) : opened;
        if (s != STATUS_OK) note(p, opened == STATUS_OK ? e.text : absent.text);
        atomic_store_explicit(&k->state, s == STATUS_OK ? READY : REFUSED, memory_order_release);
    }
    return NULL;
}

/* ---- the device thread ------------------------------------------------------------------------------------------- */

static int state_of(const struct compiled *k) { return atomic_load_explicit(&k->state, memory_order_acquire); }

static struct compiled *known(struct programs *p, const struct program *program, enum dtype type)
{
    for (unsigned i = 0; i < PROGRAM_KERNELS_MAX; i++) {
        struct compiled *k = &p->kept[i];
        if (state_of(k) != UNUSED && k->type == type && program_equal(&k->program, program)) return k;
    }
    return NULL;
}

/* An entry that is unused, or that of the program that has rested longest; NULL: all are in use. */
static struct compiled *room(struct programs *p)
{
    struct compiled *oldest = NULL;

    for (unsigned i = 0; i < PROGRAM_KERNELS_MAX; i++) {
        struct compiled *k = &p->kept[i];
        if (state_of(k) == UNUSED) return k;
        if (state_of(k) == ASKED || k->underway > 0 || p->steps - k->used < PROGRAM_RESTED_STEPS) continue;
        if (oldest == NULL || k->used < oldest->used) oldest = k;
    }
    return oldest;
}

static bool start(struct programs *p)
{
    if (p->started) return true;
    int r = pthread_create(&p->compiler, NULL, compiler, p);
    if (r != 0) {
        char why[80];
        snprintf(why, sizeof why, "no thread for the compiler: %s", strerror(r));
        note(p, why);
        return false;
    }
    pthread_setname_np(p->compiler, "paramd-nvrtc");
    return p->started = true;
}

static void ask(struct programs *p, struct compiled *k, const struct program *program, enum dtype type)
{
    if (!start(p)) return;
    k->program = *program;
    k->type = type;
    k->used = p->steps;
    k->next = NULL;
    atomic_store_explicit(&k->state, ASKED, memory_order_relaxed);
    pthread_mutex_lock(&p->lock);
    *p->last = k;
    p->last = &k->next;
    pthread_cond_signal(&p->there);
    pthread_mutex_unlock(&p->lock);
}

/* One that is asked for now, or that there is no room for, is not ready. */
static struct compiled *ready(struct programs *p, const struct program *program, enum dtype type)
{
    struct compiled *k = known(p, program, type);

    if (k != NULL) {
        k->used = p->steps;
        return state_of(k) == READY ? k : NULL;
    }
    k = room(p);
    if (k != NULL) ask(p, k, program, type);
    return NULL;
}

struct compiled *programs_find(struct programs *p, const struct program *program, enum dtype type)
{
    p->steps++;
    struct compiled *k = p->forbidden ? NULL : ready(p, program, type);
    atomic_fetch_add_explicit(k != NULL ? &p->compiled : &p->interpreted, 1, memory_order_relaxed);
    if (k != NULL) k->underway++;
    return k;
}

const void *compiled_kernel(const struct compiled *k) { return k->kernel; }
void compiled_passed(struct compiled *k) { k->underway--; }

/* ---- all --------------------------------------------------------------------------------------------------------- */

void programs_look(struct programs *p, struct device_programs *out)
{
    *out = (struct device_programs){.compiled = atomic_load_explicit(&p->compiled, memory_order_relaxed),
                                    .interpreted = atomic_load_explicit(&p->interpreted, memory_order_relaxed)};
    for (unsigned i = 0; i < PROGRAM_KERNELS_MAX; i++) {
        int state = state_of(&p->kept[i]);
        out->ready += state == READY;
        out->waiting += state == ASKED;
        out->refused += state == REFUSED;
    }
    pthread_mutex_lock(&p->lock);
    snprintf(out->why, sizeof out->why, "%s", p->why);
    pthread_mutex_unlock(&p->lock);
}

/* A copy of a variable of the environment; NULL where there is none. */
static bool copied(const char *name, char **out)
{
    const char *value = getenv(name);

    *out = value != NULL && value[0] != '\0' ? mem_text(value, strlen(value)) : NULL;
    return *out != NULL || value == NULL || value[0] == '\0';
}

struct programs *programs_new(int card, unsigned capability)
{
    struct programs *p = mem_zero(sizeof *p);

    if (p == NULL) return NULL;
    p->card = card;
    p->capability = capability;
    p->last = &p->first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->there, NULL);
    if (!copied("PARAMD_NVRTC", &p->library) || !copied("CUDA_HOME", &p->toolkit)) {
        programs_free(p);
        return NULL;
    }
    p->forbidden = p->library != NULL && strcmp(p->library, "off") == 0;
    if (p->forbidden) snprintf(p->why, sizeof p->why, "PARAMD_NVRTC is off");
    return p;
}

void programs_free(struct programs *p)
{
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stopping, true);
    pthread_cond_signal(&p->there);
    pthread_mutex_unlock(&p->lock);
    if (p->started) pthread_join(p->compiler, NULL);
    for (unsigned i = 0; i < PROGRAM_KERNELS_MAX; i++) unload(&p->kept[i]);
    pthread_cond_destroy(&p->there);
    pthread_mutex_destroy(&p->lock);
    mem_free(p->library);
    mem_free(p->toolkit);
    mem_free(p);
}
