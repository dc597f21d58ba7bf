#include "gpu/nvrtc.h"

#include "service/base/mem.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { ARCHITECTURES_MAX = 64 };

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* Without RTLD_NODELETE it could go while threads of its own run. */
static void *open_at(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

static void *open_somewhere(const char *toolkit)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    char place[PATH_MAX];
    void *so = NULL;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && so == NULL; i++) so = open_at(names[i]);
    if (so != NULL) return so;
    snprintf(place, sizeof place, "%s/lib64/libnvrtc.so", toolkit != NULL ? toolkit : "/usr/local/cuda");
    return open_at(place);
}

enum status nvrtc_open(const struct nvrtc_places *p, struct nvrtc *out, struct error *e)
{
    static const char *const names[] = {
#define NVRTC_NAME(result, name, arguments) "nvrtc" #name,
        NVRTC_FUNCTIONS(NVRTC_NAME)
#undef NVRTC_NAME
        "nvrtcSetFlowCallback"
    };
    enum { FUNCTIONS = sizeof names / sizeof names[0] };
    void *found[FUNCTIONS], *so = p->library != NULL ? open_at(p->library) : open_somewhere(p->toolkit);

    _Static_assert(sizeof found == sizeof *out, "a place for each function");
    if (so == NULL) return error_set(e, REASON_UNIMPLEMENTED, "NVRTC is not here: %.300s", dlerror());
    for (size_t i = 0; i < FUNCTIONS; i++) {
        found[i] = dlsym(so, names[i]);
        if (found[i] == NULL && i + 1 < FUNCTIONS)
            return error_set(e, REASON_UNIMPLEMENTED, "NVRTC has no %s; version 12.0 or later is wanted", names[i]);
    }
    memcpy(out, found, sizeof *out);
    return STATUS_OK;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static enum status fault(const struct nvrtc *n, const char *what, int r, struct error *e)
{
    return error_set(e, REASON_SYSTEM, "NVRTC %s: %s", what, n->GetErrorString(r));
}

/* The newest architecture that NVRTC knows and the card has; 0: none. */
static enum status known(const struct nvrtc *n, unsigned card, unsigned *out, struct error *e)
{
    int count = 0, numbers[ARCHITECTURES_MAX];
    int r = n->GetNumSupportedArchs(&count);

    *out = 0;
    if (r == 0 && count <= ARCHITECTURES_MAX) r = n->GetSupportedArchs(numbers);
    if (r != 0) return fault(n, "does not tell what it compiles for", r, e);
    for (int i = 0; i < count && count <= ARCHITECTURES_MAX; i++)
        if ((unsigned)numbers[i] <= card && (unsigned)numbers[i] > *out) *out = (unsigned)numbers[i];
    if (*out == 0) return error_set(e, REASON_SYSTEM, "NVRTC compiles for no card of capability %u.%u", card / 10, card % 10);
    return STATUS_OK;
}

static enum status run(const struct nvrtc *n, void *program, const struct nvrtc_wish *w, unsigned architecture,
                       struct error *e)
{
    char target[32], *log = NULL;
    const char *const options[] = {target, "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-std=c++17"};
    size_t size = 0;

    snprintf(target, sizeof target, "-arch=%s_%u", architecture == w->architecture ? "sm" : "compute", architecture);
    if (w->cancelled != NULL && n->SetFlowCallback != NULL) (void)n->SetFlowCallback(program, w->cancelled, w->ctx);
    int r = n->CompileProgram(program, sizeof options / sizeof options[0], options);
    if (r == 0) return STATUS_OK;
    if (n->GetProgramLogSize(program, &size) == 0) log = mem_zero(size + 1);
    if (log != NULL && n->GetProgramLog(program, log) == 0 && log[0] != '\0')
        error_set(e, REASON_SYSTEM, "NVRTC does not compile it: %.200s", log);
    else fault(n, "does not compile it", r, e);
    mem_free(log);
    return reason_status(REASON_SYSTEM);
}

/* What GetPTX or GetCUBIN give, with a zero behind it; NULL when that is nothing. */
static enum status take(const struct nvrtc *n, void *program, int (*size_of)(void *, size_t *), int (*get)(void *, char *),
                        char **out, struct error *e)
{
    size_t size = 0;
    int r = size_of(program, &size);

    if (r == 0 && size == 0) return STATUS_OK;
    if (r == 0) {
        *out = mem_zero(size + 1);
        if (*out == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a compiled program");
        r = get(program, *out);
    }
    return r == 0 ? STATUS_OK : fault(n, "gives no code", r, e);
}

enum status nvrtc_compile(const struct nvrtc *n, const struct nvrtc_wish *w, struct nvrtc_code *out, struct error *e)
{
    struct nvrtc_code code = {NULL, NULL};
    void *program = NULL;
    unsigned architecture;
    enum status s = known(n, w->architecture, &architecture, e);

    if (s != STATUS_OK) return s;
    int r = n->CreateProgram(&program, w->text, "program.cu", 0, NULL, NULL);
    if (r != 0) return fault(n, "does not begin", r, e);
    s = run(n, program, w, architecture, e);
    if (s == STATUS_OK) s = take(n, program, n->GetCUBINSize, n->GetCUBIN, &code.cubin, e);
    if (s == STATUS_OK) s = take(n, program, n->GetPTXSize, n->GetPTX, &code.ptx, e);
    (void)n->DestroyProgram(&program);
    if (s == STATUS_OK) {
        *out = code;
        return s;
    }
    nvrtc_code_fini(&code);
    return s;
}

void nvrtc_code_fini(struct nvrtc_code *c)
{
    mem_free(c->cubin);
    mem_free(c->ptx);
    *c = (struct nvrtc_code){NULL, NULL};
}
