/* What the sanitizers' runtimes ask a program at its start: an allocation that cannot be is answered with NULL, as malloc
 * answers it, so that tests of absurd sizes run in every build. Nobody else calls these. */
#define ASKED __attribute__((visibility("default"), used))

ASKED const char *__asan_default_options(void);
ASKED const char *__tsan_default_options(void);

const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }
