/* NVRTC between the product and the real one: a plug-in made of the stand-in can open itself where it would open
 * libnvrtc.so, and then any call can be made to fail (cusim_fail, with NVRTC's numbers) and a compilation be held up.
 *
 * Real machine code is of no use to the stand-in, and takes three times as long to make as PTX: what is asked for
 * machine code is compiled to PTX, and the machine code is an ELF header. */
#include "gpu/nvrtc.h"
#include "tests/cusim/sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CREATION_FAILURE = 2, INVALID_OPTION = 5, CANCELLED = 16, OPTIONS_MAX = 16, POLL_US = 200 };

static const char machine_code[64] = "\177ELF";

struct program {
    void *real;
    bool wants_machine_code;
    int (*cancelled)(void *ctx, void *unused);
    void *ctx;
};

static struct nvrtc real;
static bool is_there;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_real(void)
{
    is_there = nvrtc_open(&(struct nvrtc_places){NULL, NULL}, &real, &(struct error){.status = STATUS_OK}) == STATUS_OK;
}

static int injected(const char *name)
{
    sim_lock();
    int r = (int)sim_injected(name);
    sim_unlock();
    return r;
}

/* What a call answers that has nothing of its own to do. */
#define PASS(name, ...)                                         \
    do {                                                        \
        int r_ = injected("nvrtc" #name);                       \
        return r_ != 0 ? r_ : real.name(__VA_ARGS__);           \
    } while (0)

CUSIM_API int nvrtcGetNumSupportedArchs(int *count);
int nvrtcGetNumSupportedArchs(int *count)
{
    pthread_once(&once, open_real);
    if (!is_there) return CREATION_FAILURE;
    PASS(GetNumSupportedArchs, count);
}

CUSIM_API int nvrtcGetSupportedArchs(int *numbers);
int nvrtcGetSupportedArchs(int *numbers) { PASS(GetSupportedArchs, numbers); }

CUSIM_API const char *nvrtcGetErrorString(int error);
const char *nvrtcGetErrorString(int error) { return is_there ? real.GetErrorString(error) : "there is no real NVRTC"; }

CUSIM_API int nvrtcCreateProgram(struct program **out, const char *text, const char *name, int headers,
                                 const char *const *sources, const char *const *names);
int nvrtcCreateProgram(struct program **out, const char *text, const char *name, int headers, const char *const *sources,
                       const char *const *names)
{
    int r = injected(__func__);

    if (r != 0) return r;
    *out = sim_new(sizeof **out);
    r = real.CreateProgram(&(*out)->real, text, name, headers, sources, names);
    if (r != 0) free(*out);
    return r;
}

CUSIM_API int nvrtcSetFlowCallback(struct program *p, int (*cancelled)(void *ctx, void *unused), void *ctx);
int nvrtcSetFlowCallback(struct program *p, int (*cancelled)(void *ctx, void *unused), void *ctx)
{
    p->cancelled = cancelled;
    p->ctx = ctx;
    return real.SetFlowCallback != NULL ? real.SetFlowCallback(p->real, cancelled, ctx) : 0;
}

static bool is_held(void)
{
    sim_lock();
    bool held = sim.compiler_held;
    sim_unlock();
    return held;
}

static bool is_cancelled(const struct program *p) { return p->cancelled != NULL && p->cancelled(p->ctx, NULL) != 0; }

static void count_compilation(void)
{
    sim_lock();
    sim.stats.compilations++;
    sim_unlock();
}

CUSIM_API int nvrtcCompileProgram(struct program *p, int count, const char *const *options);
int nvrtcCompileProgram(struct program *p, int count, const char *const *options)
{
    static const char machine[] = "-arch=sm_";
    const char *all[OPTIONS_MAX];
    char target[32];

    count_compilation();
    while (is_held() && !is_cancelled(p)) usleep(POLL_US);
    if (is_cancelled(p)) return CANCELLED;
    int r = injected(__func__);
    if (r == 0 && count > OPTIONS_MAX) r = INVALID_OPTION;
    if (r != 0) return r;
    for (int i = 0; i < count; i++) {
        all[i] = options[i];
        if (strncmp(options[i], machine, sizeof machine - 1) != 0) continue;
        p->wants_machine_code = true;
        snprintf(target, sizeof target, "-arch=compute_%.8s", options[i] + sizeof machine - 1);
        all[i] = target;
    }
    return real.CompileProgram(p->real, count, all);
}

CUSIM_API int nvrtcGetProgramLogSize(struct program *p, size_t *size);
int nvrtcGetProgramLogSize(struct program *p, size_t *size) { PASS(GetProgramLogSize, p->real, size); }

CUSIM_API int nvrtcGetProgramLog(struct program *p, char *out);
int nvrtcGetProgramLog(struct program *p, char *out) { PASS(GetProgramLog, p->real, out); }

CUSIM_API int nvrtcGetPTXSize(struct program *p, size_t *size);
int nvrtcGetPTXSize(struct program *p, size_t *size) { PASS(GetPTXSize, p->real, size); }

CUSIM_API int nvrtcGetPTX(struct program *p, char *out);
int nvrtcGetPTX(struct program *p, char *out) { PASS(GetPTX, p->real, out); }

CUSIM_API int nvrtcGetCUBINSize(struct program *p, size_t *size);
int nvrtcGetCUBINSize(struct program *p, size_t *size)
{
    *size = p->wants_machine_code ? sizeof machine_code : 0;
    return injected(__func__);
}

CUSIM_API int nvrtcGetCUBIN(struct program *p, char *out);
int nvrtcGetCUBIN(struct program *p, char *out)
{
    (void)p;
    memcpy(out, machine_code, sizeof machine_code);
    return injected(__func__);
}

CUSIM_API int nvrtcDestroyProgram(struct program **p);
int nvrtcDestroyProgram(struct program **p)
{
    int r = real.DestroyProgram(&(*p)->real);

    free(*p);
    *p = NULL;
    return r;
}
