#include "tests/lib/nvrtc.h"

#include "tests/lib/test.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static struct {
    void *library;
    int (*create)(void **program, const char *text, const char *name, int headers, const char *const *sources,
                  const char *const *names);
    int (*compile)(void *program, int count, const char *const *options);
    int (*log_size)(void *program, size_t *size);
    int (*log)(void *program, char *out);
    int (*ptx_size)(void *program, size_t *size);
    int (*ptx)(void *program, char *out);
    int (*destroy)(void **program);
} nvrtc;

static void *function(const char *name)
{
    void *f = dlsym(nvrtc.library, name);
    if (f == NULL) test_fail(__FILE__, __LINE__, "NVRTC has no %s", name);
    return f;
}

/* What dlsym gives is data to ISO C; POSIX says that it may be called. */
#define FIND(member, name)                                          \
    do {                                                            \
        void *f_ = function(name);                                  \
        memcpy(&nvrtc.member, &f_, sizeof f_);                      \
    } while (0)

static void open_library(void)
{
    static const char *const places[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12",
                                         "/usr/local/cuda/lib64/libnvrtc.so"};

    for (size_t i = 0; i < sizeof places / sizeof places[0] && nvrtc.library == NULL; i++)
        nvrtc.library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (nvrtc.library == NULL) test_skip("NVRTC is not installed here");
    FIND(create, "nvrtcCreateProgram");
    FIND(compile, "nvrtcCompileProgram");
    FIND(log_size, "nvrtcGetProgramLogSize");
    FIND(log, "nvrtcGetProgramLog");
    FIND(ptx_size, "nvrtcGetPTXSize");
    FIND(ptx, "nvrtcGetPTX");
    FIND(destroy, "nvrtcDestroyProgram");
}

static char *text_new(size_t size)
{
    char *p = calloc(1, size + 1);
    CHECK(p != NULL);
    return p;
}

char *nvrtc_ptx(const char *text)
{
    static const char *const options[] = {"-arch=compute_90", "-fmad=false", "-std=c++17"};
    void *program = NULL;
    size_t size = 0;

    if (nvrtc.library == NULL) open_library();
    CHECK_EQ(nvrtc.create(&program, text, "program.cu", 0, NULL, NULL), 0);
    if (nvrtc.compile(program, 3, options) != 0) {
        CHECK_EQ(nvrtc.log_size(program, &size), 0);
        char *log = text_new(size);
        CHECK_EQ(nvrtc.log(program, log), 0);
        test_fail(__FILE__, __LINE__, "%s\n%s", log, text);
    }
    CHECK_EQ(nvrtc.ptx_size(program, &size), 0);
    char *ptx = text_new(size);
    CHECK_EQ(nvrtc.ptx(program, ptx), 0);
    CHECK_EQ(nvrtc.destroy(&program), 0);
    return ptx;
}
