/* Devices, errors and libraries of run-time compiled kernels. */
#include "tests/cusim/ptxi.h"
#include "tests/cusim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices --------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t e = sim_enter(__func__);
    *count = e == cudaSuccess ? sim.devices : 0;
    return sim_leave(e);
}

static bool is_device(int device) { return device >= 0 && device < sim.devices; }

cudaError_t cudaSetDevice(int device)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess && !is_device(device)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) *sim_current_device() = device;
    return sim_leave(e);
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) *device = *sim_current_device();
    return sim_leave(e);
}

static const struct {
    enum cudaDeviceAttr name;
    int value;
} attributes[] = {
    {cudaDevAttrMultiProcessorCount, 2},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrMaxGridDimX, INT32_MAX},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrAsyncEngineCount, 2},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrIpcEventSupport, 0},
    {cudaDevAttrMemoryPoolsSupported, 1},
    {cudaDevAttrComputeMode, cudaComputeModeDefault},
};

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t e = sim_enter(__func__);

    if (e == cudaSuccess && !is_device(device)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) *value = 0;
    for (size_t i = 0; e == cudaSuccess && i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].name == attribute) *value = attributes[i].value;
    return sim_leave(e);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    cudaError_t e = sim_enter(__func__);

    if (e == cudaSuccess && !is_device(device)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) {
        memset(out, 0, sizeof *out);
        snprintf(out->name, sizeof out->name, "stand-in %d", device);
        memset(out->uuid.bytes, 0xc5, sizeof out->uuid.bytes); /* the same in every process */
        out->uuid.bytes[15] = (char)device;
        out->totalGlobalMem = sim.memory;
        out->major = 9;
        out->multiProcessorCount = 2;
        out->maxThreadsPerBlock = 1024;
        out->warpSize = 32;
    }
    return sim_leave(e);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess && (!is_device(device) || size <= 0)) e = cudaErrorInvalidValue;
    if (e == cudaSuccess) snprintf(out, (size_t)size, "0000:%02x:00.0", device + 1);
    return sim_leave(e);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) {
        *least = 0;
        *greatest = -5;
    }
    return sim_leave(e);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess && (!is_device(device) || !is_device(peer))) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) *can = device != peer;
    return sim_leave(e);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    cudaError_t e = sim_enter(__func__);
    unsigned *peers = &sim.peers[*sim_current_device()];

    (void)flags;
    if (e == cudaSuccess && (!is_device(peer) || peer == *sim_current_device())) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess && (*peers >> peer & 1) != 0) e = cudaErrorPeerAccessAlreadyEnabled;
    if (e == cudaSuccess) *peers |= 1u << peer;
    return sim_leave(e);
}

/* These two answer without a driver, too. */
cudaError_t cudaDriverGetVersion(int *version)
{
    cudaError_t e = sim_enter(__func__);
    *version = e == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION;
    return sim_leave(e == cudaErrorInsufficientDriver ? cudaSuccess : e);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* ---- errors ---------------------------------------------------------------------------------------------------- */

#define ERRORS(X) \
    X(cudaSuccess) X(cudaErrorInvalidValue) X(cudaErrorMemoryAllocation) X(cudaErrorInvalidConfiguration) \
    X(cudaErrorInsufficientDriver) X(cudaErrorInvalidDeviceFunction) X(cudaErrorNoDevice) X(cudaErrorInvalidDevice) \
    X(cudaErrorInvalidKernelImage) X(cudaErrorNoKernelImageForDevice) X(cudaErrorInvalidResourceHandle) \
    X(cudaErrorSymbolNotFound) X(cudaErrorNotReady) X(cudaErrorIllegalAddress) X(cudaErrorLaunchTimeout) X(cudaErrorLaunchFailure) X(cudaErrorNotPermitted) \
    X(cudaErrorHostMemoryAlreadyRegistered) X(cudaErrorPeerAccessAlreadyEnabled) X(cudaErrorDeviceUninitialized) \
    X(cudaErrorMapBufferObjectFailed) X(cudaErrorECCUncorrectable) X(cudaErrorMisalignedAddress) X(cudaErrorUnknown)

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
#define NAME(error) case error: return #error;
        ERRORS(NAME)
#undef NAME
    default: return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }

static cudaError_t last_error(bool keep)
{
    sim_lock();
    cudaError_t e = sim_take_last_error(keep);
    sim_unlock();
    return e;
}

cudaError_t cudaGetLastError(void) { return last_error(false); }
cudaError_t cudaPeekAtLastError(void) { return last_error(true); }

/* ---- libraries ------------------------------------------------------------------------------------------------- */

/* Made of PTX, by NVRTC or nvcc. A kernel is its own handle and lives as long as its library. */
static struct library {
    struct library *next;
    char *text;
    struct kernel *kernels[16];
    unsigned kernel_count;
} *libraries;

cudaError_t cudaLibraryLoadData(cudaLibrary_t *out, const void *code, enum cudaJitOption *jit, void **jit_values,
                                unsigned jit_count, enum cudaLibraryOption *options, void **values, unsigned count)
{
    cudaError_t e = sim_enter(__func__);

    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    if (e == cudaSuccess && memcmp(code, "\177ELF", 4) == 0) e = cudaErrorNoKernelImageForDevice;
    if (e == cudaSuccess && strstr(code, ".version") == NULL) e = cudaErrorInvalidKernelImage;
    if (e == cudaSuccess) {
        struct library *l = sim_new(sizeof *l);
        l->text = sim_new(strlen(code) + 1);
        strcpy(l->text, code);
        l->next = libraries;
        libraries = l;
        sim.stats.live_libraries++;
        *out = (cudaLibrary_t)l;
    }
    return sim_leave(e);
}

static cudaError_t library_kernel(struct library *l, const char *name, struct kernel **out)
{
    struct ptxi *ptx;
    char why[200];

    for (unsigned i = 0; i < l->kernel_count; i++)
        if (strcmp(l->kernels[i]->name, name) == 0) {
            *out = l->kernels[i];
            return cudaSuccess;
        }
    if (l->kernel_count == sizeof l->kernels / sizeof l->kernels[0]) return cudaErrorMemoryAllocation;
    ptx = ptxi_load(l->text, name, why, sizeof why);
    if (ptx == NULL) {
        sim_say("%s: %s", name, why);
        return cudaErrorSymbolNotFound;
    }
    *out = l->kernels[l->kernel_count++] = kernel_add(NULL, name);
    (*out)->ptx = ptx;
    (*out)->argument_size = ptxi_arguments_size(ptx);
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *out, cudaLibrary_t library, const char *name)
{
    cudaError_t e = sim_enter(__func__);
    struct kernel *k = NULL;

    if (e == cudaSuccess) e = library_kernel((struct library *)library, name, &k);
    if (e == cudaSuccess) *out = (cudaKernel_t)k;
    return sim_leave(e);
}

/* Only of kernels in libraries, and only that there is one. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function)
{
    cudaError_t e = sim_enter(__func__);

    if (e == cudaSuccess && kernel_find(function) == NULL) e = cudaErrorInvalidDeviceFunction;
    memset(out, 0, sizeof *out);
    return sim_leave(e);
}

static void library_free(struct library *l)
{
    struct library **at = &libraries;

    while (*at != l) at = &(*at)->next;
    *at = l->next;
    for (unsigned i = 0; i < l->kernel_count; i++) kernel_remove(l->kernels[i]);
    free(l->text);
    free(l);
}

void library_reset(void)
{
    while (libraries != NULL) library_free(libraries);
}

/* Work that runs a kernel of it must have ended, as with the real one. */
cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    cudaError_t e = sim_enter(__func__);
    struct library *l = (struct library *)library;

    if (e == cudaSuccess || e == sim.sticky) {
        for (const struct CUstream_st *s = sim.streams; s != NULL; s = s->next)
            for (const struct op *o = s->first; o != NULL; o = o->next)
                for (unsigned i = 0; i < l->kernel_count; i++)
                    if (o->kind == OP_KERNEL && o->kernel == l->kernels[i]) e = cudaErrorIllegalState;
    }
    if (e == cudaErrorIllegalState) {
        sim_say("a library is unloaded while its kernel %s waits to run", l->kernels[0]->name);
        sim.stats.mistakes++;
    } else if (e == cudaSuccess || e == sim.sticky) {
        library_free(l);
        sim.stats.live_libraries--;
    }
    return sim_leave(e);
}
