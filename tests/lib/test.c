#include "tests/lib/test.h"

#include "service/base/mem.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { WALL_FACTOR = 4, REPORT_SIZE = 400 };

static void limit_set(unsigned seconds);

static struct test_case *first, **last = &first;
static jmp_buf out;
static enum { RAN, FAILED, SKIPPED } result;
static const char *running = "";
static unsigned limit = 120;     /* seconds */
static unsigned counts[3];       /* by result */
static int64_t live;              /* blocks of memory when the running test began */

void test_add(struct test_case *t)
{
    *last = t;
    last = &t->next;
}

void test_time_limit(unsigned seconds)
{
    limit = seconds;
    limit_set(seconds);
}

void test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "FAILED %s\n  %s:%d: ", running, file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    result = FAILED;
    longjmp(out, 1);
}

bool test_lacks(const char *what)
{
    const char *lacking = getenv("PARAMD_TEST_BARE");
    return lacking != NULL && strstr(lacking, what) != NULL;
}

void test_skip(const char *why)
{
    if (mem_live() > live)
        test_fail(__FILE__, __LINE__, "skips (%s) with %lld blocks of memory allocated", why, (long long)(mem_live() - live));
    fprintf(stderr, "skipped %s: %s\n", running, why);
    result = SKIPPED;
    longjmp(out, 1);
}

void check_text(const char *file, int line, const char *got, const char *want)
{
    if (got == NULL || strcmp(got, want) != 0)
        test_fail(file, line, "\"%s\" is not \"%s\"", got != NULL ? got : "(null)", want);
}

void check_says(const char *file, int line, const char *got, const char *part)
{
    if (got == NULL || strstr(got, part) == NULL)
        test_fail(file, line, "\"%s\" does not say \"%s\"", got != NULL ? got : "(null)", part);
}

static size_t guard_span(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page + page;
}

void *guard_new(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), span = guard_span(size);
    char *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED || mprotect(p + span - page, page, PROT_NONE) != 0) abort();
    return p + span - page - size;
}

void guard_free(void *p, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), span = guard_span(size);
    munmap((char *)p + size + page - span, span);
}

/* In a signal's handler there is no printf. */
static size_t put_text(char *at, size_t have, const char *text)
{
    while (*text != '\0' && have < REPORT_SIZE) at[have++] = *text++;
    return have;
}

static size_t put_number(char *to, size_t have, unsigned n)
{
    char digits[12];
    size_t at_digit = sizeof digits - 1;

    digits[at_digit] = '\0';
    do digits[--at_digit] = (char)('0' + n % 10); while ((n /= 10) > 0);
    return put_text(to, have, digits + at_digit);
}

/* The running test is one more that failed; those after it did not run. */
static void too_long(int sig)
{
    static char report[REPORT_SIZE];
    size_t n = put_text(report, 0, "FAILED ");

    n = put_text(report, n, running);
    n = put_text(report, n, ": ran past its limit of ");
    n = put_number(report, n, sig == SIGPROF ? limit : limit * WALL_FACTOR);
    n = put_text(report, n, sig == SIGPROF ? " s of processor time" : " s on the clock");
    n = put_text(report, n, "; the tests after it did not run\n");
    n = put_number(report, n, counts[RAN]);
    n = put_text(report, n, " passed, ");
    n = put_number(report, n, counts[FAILED] + 1);
    n = put_text(report, n, " failed, ");
    n = put_number(report, n, counts[SKIPPED]);
    n = put_text(report, n, " skipped\n");
    _exit(write(STDERR_FILENO, report, n) < 0 ? 3 : 2);
}

/* 0: none. */
static void limit_set(unsigned seconds)
{
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = seconds}, NULL);
    alarm(seconds * WALL_FACTOR);
}

int main(int argc, char **argv)
{
    signal(SIGALRM, too_long);
    signal(SIGPROF, too_long);
    signal(SIGPIPE, SIG_IGN);
    static struct test_case *t; /* static: longjmp may not clobber it */
    for (t = first; t != NULL; t = t->next) {
        if (argc > 1 && strstr(t->name, argv[1]) == NULL) continue;
        running = t->name;
        result = RAN;
        live = mem_live();
        limit_set(limit);
        if (setjmp(out) == 0) t->run();
        limit_set(0);
        counts[result]++;
    }
    printf("%u passed, %u failed, %u skipped\n", counts[RAN], counts[FAILED], counts[SKIPPED]);
    return counts[FAILED] > 0;
}
