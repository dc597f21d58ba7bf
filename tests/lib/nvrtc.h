/* NVRTC by way of gpu/nvrtc.h, for tests of what it makes of a text. Test thread. */
#ifndef TESTS_LIB_NVRTC_H
#define TESTS_LIB_NVRTC_H

/* Skips the test where there is no NVRTC. */
void need_nvrtc(void);
/* The PTX of a CUDA text for compute_90, as programs are compiled; for free. Fails the test with the compiler's words when
 * it does not compile, skips it where there is no NVRTC. */
char *nvrtc_ptx(const char *text);

#endif
