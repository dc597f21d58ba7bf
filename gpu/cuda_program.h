/* Kernels of programs: what a text became is compiled by NVRTC for the card, while the interpreter does its work.
 *
 * A program is compiled when its first step comes, by a thread of its own, the *compiler*, which loads the result as
 * well: a driver that has to translate PTX may take as long as NVRTC. So the device thread waits for neither; it finds a
 * kernel that is ready, or none. The bits are the same, so that nobody sees the change.
 *
 * Programs that compute the same share a kernel, whatever their stores, keys, names and numbers. PROGRAM_KERNELS_MAX are
 * kept; then one that has rested makes room. What cannot be compiled or loaded is interpreted for good; the device is no
 * worse for it. A CUDA error that stays is met by the device thread in its own next call. */
#ifndef GPU_CUDA_PROGRAM_H
#define GPU_CUDA_PROGRAM_H

#include "gpu/device.h"
#include "gpu/program.h"

#include <cuda_runtime_api.h>

struct programs;
struct compiled;

/* For a card of this number and capability (90: 9.0). Reads the environment: PARAMD_NVRTC is "off" or where the library
 * lies, CUDA_HOME where the toolkit does. Starts nothing. NULL: no memory. */
struct programs *programs_new(int card, unsigned capability) MUST_CHECK;
/* Stops the compiler and unloads. No launch may be under way on a card that is not lost. NULL is nothing. */
void programs_free(struct programs *p);

/* Device thread: the kernel for one step, which then is under way; NULL: interpret it. */
struct compiled *programs_find(struct programs *p, const struct program *program, enum dtype type);
/* What to give cudaLaunchKernel; it takes a struct program_arguments. */
const void *compiled_kernel(const struct compiled *k);
/* Device thread: what one programs_find answered is under way no more. */
void compiled_passed(struct compiled *k);

/* Any thread. */
void programs_look(struct programs *p, struct device_programs *out);

#endif
