/* NVRTC, CUDA's compiler as a library, which needs no GPU. Opened when first asked for. Test thread. */
#ifndef TESTS_LIB_NVRTC_H
#define TESTS_LIB_NVRTC_H

/* The PTX of a CUDA text for compute_90, without contraction; for free. Fails the test with the compiler's words
 * when it does not compile, skips it where there is no NVRTC. */
char *nvrtc_ptx(const char *text);

#endif
