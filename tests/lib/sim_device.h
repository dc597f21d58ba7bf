/* The CUDA device on the stand-in for CUDA (tests/cusim): build/.../paramd-cusim.so, opened as the daemon opens a plug-in.
 * Where CUDA's headers are missing there is none, and tests of it are left out. */
#ifndef TESTS_LIB_SIM_DEVICE_H
#define TESTS_LIB_SIM_DEVICE_H

#include "gpu/device.h"
#include "tests/cusim/cusim.h"

struct device_plugin;

/* Seeds with which a test asks for an order that only some of them show. */
enum { SIM_ORDERS = 12 };

/* How many seeds in a row a test that runs on all devices takes. Sanitizers see what they look for at any seed, and run kernels
 * ten times as slowly. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SIM_SEEDS = 1 };
#else
enum { SIM_SEEDS = 3 };
#endif
/* The thread sanitizer has work of its own for each thread of a kernel. Under it the stand-in runs what may race; failures are
 * looked at in the other builds. */
#if defined(__SANITIZE_THREAD__)
enum { SIM_RACES_ONLY = 1 };
#else
enum { SIM_RACES_ONLY = 0 };
#endif

/* Whether it was built beside this test, or another plug-in is told. PARAMD_TEST_SIM names another stand-in beside it than
 * paramd-cusim.so: paramd-ptx.so, whose kernels are those of nvcc. */
bool sim_present(void);
/* Whether another stand-in was named: then kernels run in the interpreter of PTX, hundreds of times as slowly. */
bool sim_is_ptx(void);
/* Its absolute path, or that of the plug-in in its place; NULL: there is none. */
const char *sim_path(void);
/* Whether PARAMD_TEST_PLUGIN tells the absolute path of a plug-in to take in place of the stand-in's: on a machine with a
 * GPU that of the GPU (tests/gpu/check.sh). Then a device is card 0 of it, whatever the seed, the calls at the end of this
 * file are not there, and a suite for every device takes this one alone. PARAMD_TEST_CHUNK is its size of a chunk of memory:
 * 1 makes each piece an allocation of its own, for compute-sanitizer. */
bool sim_replaced(void);
/* PARAMD_TEST_ROUND, a number, makes other seeds of all of them: `make test-long` runs the suites with SIM_ROUNDS of these.
 *
 * The stand-in anew, and a device on it. What runs when follows from the seed: of three that follow one another one is
 * lazy, one random, one eager. Every piece of memory is an allocation of its own, so that the address sanitizer sees where
 * it ends. At most one at a time. */
enum status sim_device_new(unsigned seed, struct device **out, struct error *e) MUST_CHECK;
/* In the same way one that compiles programs, by the stand-in's NVRTC in front of the real one (tests/cusim/nvrtc.c); all
 * others interpret them. Skips the test where there is no NVRTC. */
enum status sim_compiling_device_new(unsigned seed, struct device **out, struct error *e) MUST_CHECK;
/* The stand-in anew with so many cards, each opened, for several as one. */
enum status sim_cards_new(unsigned seed, unsigned count, struct device **out, struct error *e) MUST_CHECK;
/* The stand-in anew with so many cards, for a test that opens none: on a seed of the three orders. */
enum status sim_anew(unsigned seed, unsigned cards, struct error *e) MUST_CHECK;
/* Whether NCCL is found from now on: the stand-in's, or with another plug-in the machine's. */
void sim_nccl(bool is_there);
/* After device_free: what the plug-in and the stand-in still hold, or have seen done wrong; NULL: nothing. */
const char *sim_remains(void);
/* The plug-in's table, for faults in its memory. */
const struct device_plugin *sim_plugin(void);

/* Of tests/cusim/cusim.h, in the plug-in. */
void sim_fail(const char *function, int nth, int error);
void sim_skip(const char *function, int nth);
void sim_fault_kernel(int nth, int error);
/* NCCL tells of this ncclResult_t when it is asked next. */
void sim_nccl_async_error(int error);
/* An action on a stream, in its order, and not before it is ready; NULL: it is. */
void sim_enqueue(void *stream, bool (*ready)(void *argument), void (*run)(void *argument), void *argument);
void sim_hold_compiler(bool on);
/* The calling thread's current card and error, and another card. */
void sim_thread(int *card, int *error);
void sim_thread_set(int card);
/* An array on the thread's card, which stays until the stand-in begins anew, and a copy from or to it. */
void *sim_array_new(size_t size);
void sim_array_copy(void *to, const void *from, size_t size);
/* What the sources of the plug-in call of CUDA that can fail; {NULL, NULL} is the last. Which of its tests makes these calls
 * fail follows from the source: those of cuda_trainer tests/system/test_same_host.c, those of cuda_program that no other has
 * tests/device/test_cuda_program.c, all others tests/device/test_cuda.c. */
const struct cusim_call *sim_calls(void);
struct cusim_stats sim_stats(void);
/* Work queued and not yet done. */
int sim_pending(void);

#endif
