/* The test harness: TEST(name) { ... } states one fact, and its name is the fact.
 *
 * A test binary is its tests and this header; main is in tests/lib/test.c. `build/.../test_map` runs all of them,
 * `test_map NAME` those whose name contains NAME. A failed CHECK ends its test, not the binary. The last line is
 * "N passed, N failed[, N skipped]". */
#ifndef TESTS_LIB_TEST_H
#define TESTS_LIB_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct test_case {
    const char *name;
    const char *file;
    void (*run)(void);
    struct test_case *next;
};

void test_add(struct test_case *t);
void test_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
/* Ends the test as skipped. Nothing may be open yet: a skip jumps over what would close it, so one that leaves memory of the
 * program allocated (mem_live) fails. Ask first, open then. */
void test_skip(const char *why) __attribute__((noreturn));
/* Whether the tests are to behave as on a machine that lacks `what`, cuda or nvrtc (PARAMD_TEST_BARE="cuda nvrtc"), so that
 * what they do there is tested on every machine. What looks for one of these asks this first. */
bool test_lacks(const char *what);
/* Ends the whole binary as failed after so many seconds of processor time in one test (the default is 120), or four times as
 * many on the clock, so that what a busy machine gives to others is not held against a test. The running test is named, and
 * what passed before it is counted. */
void test_time_limit(unsigned seconds);

#define TEST(name)                                                                          \
    static void test_##name(void);                                                          \
    __attribute__((constructor)) static void test_add_##name(void)                          \
    {                                                                                       \
        static struct test_case t = {#name, __FILE__, test_##name, NULL};                   \
        test_add(&t);                                                                       \
    }                                                                                       \
    static void test_##name(void)

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) test_fail(__FILE__, __LINE__, "%s", #condition);                  \
    } while (0)

/* Integers of any width, compared as 64-bit. */
#define CHECK_EQ(got, want)                                                                 \
    do {                                                                                    \
        long long got_ = (long long)(got), want_ = (long long)(want);                       \
        if (got_ != want_)                                                                  \
            test_fail(__FILE__, __LINE__, "%s is %lld, not %lld (%s)", #got, got_, want_, #want); \
    } while (0)

#define CHECK_NEAR(got, want, tolerance)                                                    \
    do {                                                                                    \
        double got_ = (double)(got), want_ = (double)(want), d_ = got_ - want_;             \
        if (!(d_ <= (tolerance) && -d_ <= (tolerance)))                                     \
            test_fail(__FILE__, __LINE__, "%s is %.17g, not %.17g within %g", #got, got_, want_, (double)(tolerance)); \
    } while (0)

/* Texts; and whether a sentence says something. */
void check_text(const char *file, int line, const char *got, const char *want);
void check_says(const char *file, int line, const char *got, const char *part);
#define CHECK_TEXT(got, want) check_text(__FILE__, __LINE__, (got), (want))
#define CHECK_SAYS(got, part) check_says(__FILE__, __LINE__, (got), (part))

/* A statement that must answer STATUS_OK, with the error's sentence shown when not. Needs `struct error`. */
#define CHECK_OK(call, error_pointer)                                                       \
    do {                                                                                    \
        if ((call) != 0) test_fail(__FILE__, __LINE__, "%s: %s", #call, (error_pointer)->text); \
    } while (0)

/* A small generator for tests: same seed, same numbers (splitmix64). */
static inline uint64_t rng_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A buffer that ends at an unmapped page: the byte behind it faults. */
void *guard_new(size_t size);
void guard_free(void *p, size_t size);

#endif
