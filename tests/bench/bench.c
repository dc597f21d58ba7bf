#include "tests/bench/bench.h"

#include "service/base/clock.h"
#include "service/base/mem.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

void bench_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void bench_note(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static void usage(const char *program, int status)
{
    fprintf(status == 0 ? stdout : stderr,
            "usage: %s [--only WORDS] [--quick] [--repetitions N] [--json FILE]\n\n"
            "  --only WORDS       rows whose id is WORDS, or whose text contains them (P2, adam)\n"
            "  --quick            %d repetitions, for a look\n"
            "  --repetitions N    1 to %d [%d]\n"
            "  --json FILE        the table once more, for programs\n",
            program, REPETITIONS_QUICK, REPETITIONS_MAX, REPETITIONS);
    exit(status);
}

static void read_flags(struct bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--help") == 0) usage(argv[0], 0);
        if (strcmp(argv[i], "--quick") == 0) {
            b->repetitions = REPETITIONS_QUICK;
            continue;
        }
        if (value == NULL) usage(argv[0], 2);
        i++;
        if (strcmp(argv[i - 1], "--only") == 0) b->only = value;
        else if (strcmp(argv[i - 1], "--repetitions") == 0) b->repetitions = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--json") == 0) b->json = fopen(value, "w");
        else usage(argv[0], 2);
        if (b->repetitions < 1 || b->repetitions > REPETITIONS_MAX) usage(argv[0], 2);
        if (strcmp(argv[i - 1], "--json") == 0 && b->json == NULL) bench_fail("%s cannot be written", value);
    }
}

/* An idle virtual processor halts, and to wake it costs more than a small request: that would hide all differences.
 * The request holds while the file is open. */
static int hold_latency(void)
{
    int fd = open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
    const int32_t none = 0;

    if (fd >= 0 && write(fd, &none, sizeof none) != (ssize_t)sizeof none) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void processor_name(char *out, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];

    snprintf(out, size, "processor");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            snprintf(out, size, "%.*s", (int)strcspn(strchr(line, ':') + 2, "\n"), strchr(line, ':') + 2);
            break;
        }
    if (f != NULL) fclose(f);
}

void bench_begin(struct bench *b, int argc, char **argv, const char *what)
{
    char name[128];
    double load = 0;

    *b = (struct bench){.repetitions = REPETITIONS};
    read_flags(b, argc, argv);
    signal(SIGPIPE, SIG_IGN);
    b->latency_fd = hold_latency();
    processor_name(name, sizeof name);
    if (getloadavg(&load, 1) != 1) load = 0;
    printf("%s\n%ld x %s, load %.1f, %u repetitions with the peers in turn, median [least..most]; idle processors %s\n",
           what, sysconf(_SC_NPROCESSORS_ONLN), name, load, b->repetitions,
           b->latency_fd >= 0 ? "are kept awake (/dev/cpu_dma_latency = 0)"
                              : "may halt (/dev/cpu_dma_latency cannot be held: small requests look slow)");
    fflush(stdout);
}

void bench_end(struct bench *b)
{
    if (b->json != NULL) {
        fputs(b->json_begun ? "\n]\n" : "[]\n", b->json);
        fclose(b->json);
    }
    if (b->latency_fd >= 0) close(b->latency_fd);
}

bool bench_wants(const struct bench *b, const char *id, const char *words)
{
    return b->only == NULL || strcmp(b->only, id) == 0 || strstr(words, b->only) != NULL;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static void print_cells(const struct bench *b, const char *const *cells)
{
    for (unsigned i = 0; i < b->column_count; i++) printf("| %*s ", b->columns[i].width, cells[i]);
    puts("|");
    fflush(stdout);
}

static void print_rule(const struct bench *b)
{
    for (unsigned i = 0; i < b->column_count; i++) {
        int width = b->columns[i].width, size = width < 0 ? -width : width;
        printf(width < 0 ? "|:%.*s-" : "|-%.*s:", size, "------------------------------------------------------------");
    }
    puts("|");
}

void bench_table(struct bench *b, const struct column *columns, unsigned count)
{
    const char *titles[COLUMNS_MAX];

    b->columns = columns;
    b->column_count = count;
    for (unsigned i = 0; i < count; i++) titles[i] = columns[i].title;
    putchar('\n');
    print_cells(b, titles);
    print_rule(b);
}

static bool is_number(const char *text)
{
    char *end;

    if (*text < '0' || *text > '9') return false;
    strtod(text, &end);
    return *end == '\0';
}

void bench_row(struct bench *b, const char *const *cells)
{
    print_cells(b, cells);
    if (b->json == NULL) return;
    fputs(b->json_begun ? ",\n  {" : "[\n  {", b->json);
    b->json_begun = true;
    for (unsigned i = 0; i < b->column_count; i++) {
        const char *quote = is_number(cells[i]) ? "" : "\"";
        fprintf(b->json, "%s\"%s\": %s%s%s", i > 0 ? ", " : "", b->columns[i].title, quote, cells[i], quote);
    }
    fputc('}', b->json);
}

/* ---- figures ---------------------------------------------------------------------------------------------------- */

void figures_add(struct figures *f, double value)
{
    if (f->count < REPETITIONS_MAX) f->at[f->count++] = value;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static struct figures sorted(const struct figures *f)
{
    struct figures s = *f;

    qsort(s.at, s.count, sizeof s.at[0], by_value);
    return s;
}

double figures_median(const struct figures *f)
{
    struct figures s = sorted(f);

    return s.count == 0 ? (double)NAN : (s.at[(s.count - 1) / 2] + s.at[s.count / 2]) / 2;
}

double figures_least(const struct figures *f) { return f->count == 0 ? (double)NAN : sorted(f).at[0]; }
double figures_most(const struct figures *f) { return f->count == 0 ? (double)NAN : sorted(f).at[f->count - 1]; }

struct figures figures_ratio(const struct figures *numerator, const struct figures *denominator)
{
    struct figures r = {.count = 0};

    for (unsigned i = 0; i < numerator->count && i < denominator->count; i++)
        figures_add(&r, numerator->at[i] / denominator->at[i]);
    return r;
}

void figures_text(double value, char out[16])
{
    int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;

    snprintf(out, 16, "%.*f", digits, value);
}

void size_text(uint64_t size, char out[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    unsigned u = 0;
    double n = (double)size;

    for (; n >= 1024 && u < 3; u++) n /= 1024;
    snprintf(out, 16, n == floor(n) ? "%.0f %s" : "%.1f %s", n, units[u]);
}

void *bench_memory(size_t size)
{
    void *p = mem_aligned(size);

    if (p == NULL) bench_fail("no memory: %zu bytes", size);
    return p;
}

/* ---- children --------------------------------------------------------------------------------------------------- */

pid_t child_fork(void)
{
    pid_t parent = getpid(), pid;

    fflush(NULL);
    pid = fork();
    if (pid < 0) bench_fail("fork failed");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
    }
    return pid;
}

void child_end(pid_t pid)
{
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

bool child_line(int fd, char *out, size_t size, int ms)
{
    uint64_t until = clock_ms() + (uint64_t)ms;
    size_t n = 0;

    while (n + 1 < size) {
        uint64_t now = clock_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= until || poll(&p, 1, (int)(until - now)) <= 0 || read(fd, out + n, 1) != 1) return false;
        if (out[n] == '\n') break;
        n++;
    }
    out[n] = '\0';
    return true;
}
