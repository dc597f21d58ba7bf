/* CLONES before a loop of the CPU: it is built three times, for every x86-64, for those with AVX2 and for those with
 * AVX-512, and the loader picks. Rules with roots, divisions and random numbers reach the speed of memory only with the
 * last. It asks before a sanitizer is up, of which the thread sanitizer dies, so sanitized builds have one version. */
#ifndef GPU_CLONES_H
#define GPU_CLONES_H

#if defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && __has_attribute(target_clones) && !SANITIZED
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES
#endif

/* Elements whose sum, value and slots fit the first-level cache together. */
enum { BLOCK = 1024 };

#endif
