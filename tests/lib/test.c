#include "tests/lib/test.h"

#include "service/base/mem.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct test_case *first, **last = &first;
static jmp_buf out;
static enum { RAN, FAILED, SKIPPED } result;
static const char *running = "";
static unsigned limit = 120;
static int64_t live;              /* blocks of memory when the running test began */

void test_add(struct test_case *t)
{
    *last = t;
    last = &t->next;
}

void test_time_limit(unsigned seconds)
{
    limit = seconds;
    alarm(seconds);
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

static void too_long(int sig)
{
    static const char text[] = "FAILED: a test ran past its time limit\n0 passed, 1 failed\n";
    (void)sig;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(3);
    _exit(2);
}

int main(int argc, char **argv)
{
    unsigned counts[3] = {0, 0, 0};

    signal(SIGALRM, too_long);
    signal(SIGPIPE, SIG_IGN);
    static struct test_case *t; /* static: longjmp may not clobber it */
    for (t = first; t != NULL; t = t->next) {
        if (argc > 1 && strstr(t->name, argv[1]) == NULL) continue;
        running = t->name;
        result = RAN;
        live = mem_live();
        alarm(limit);
        if (setjmp(out) == 0) t->run();
        alarm(0);
        counts[result]++;
    }
    printf("%u passed, %u failed, %u skipped\n", counts[RAN], counts[FAILED], counts[SKIPPED]);
    return counts[FAILED] > 0;
}
