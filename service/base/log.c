#include "service/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static _Atomic int level_now = LOG_WARN;

void log_set_level(enum log_level least) { atomic_store(&level_now, least); }

void log_write(enum log_level level, const char *module, const char *format, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    char line[1024];
    struct timespec t;
    struct tm day;
    va_list args;

    if ((int)level > atomic_load_explicit(&level_now, memory_order_relaxed)) return;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &day);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &day);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %-5s %s: ", t.tv_nsec / 1000000, names[level], module);
    va_start(args, format);
    int more = vsnprintf(line + n, sizeof line - n - 1, format, args);
    va_end(args);
    if (more > 0) n += (size_t)more < sizeof line - n - 1 ? (size_t)more : sizeof line - n - 2;
    /* A name that a peer chose may hold line ends; it must not forge a line. */
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f) line[i] = '?';
    line[n++] = '\n';
    /* One write a line, so that lines of several threads do not mix. A log that cannot be written is no reason to stop. */
    if (write(STDERR_FILENO, line, n) < 0) return;
}
