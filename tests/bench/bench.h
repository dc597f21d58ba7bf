/* What the benchmarks share: flags, the quiet machine, figures of repetitions, the table, and children.
 *
 * A benchmark measures its peers in turn within every repetition and compares within the repetition, so that what the
 * rest of the machine does meets all of them. One thread; errors end the program with a sentence. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include "service/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { REPETITIONS = 7, REPETITIONS_QUICK = 2, REPETITIONS_MAX = 64, COLUMNS_MAX = 16 };

struct column {
    const char *title;
    int width;                   /* as printf's: negative is flush left */
};

struct bench {
    const char *only;            /* NULL: all rows */
    unsigned repetitions;
    const struct column *columns;
    unsigned column_count;
    FILE *json;
    bool json_begun;
    int latency_fd;
};

/* Reads the flags, keeps idle processors from halting where that is allowed, and prints the header: what runs, on
 * which machine, how often. */
void bench_begin(struct bench *b, int argc, char **argv, const char *what);
void bench_end(struct bench *b);
/* --only matches the id or the words of a row. */
bool bench_wants(const struct bench *b, const char *id, const char *words);

/* The table in Markdown, one line a row; the same cells go to the JSON file under their titles. Everything is lent. */
void bench_table(struct bench *b, const struct column *columns, unsigned count);
void bench_row(struct bench *b, const char *const *cells);
/* A line that is no row. */
void bench_note(const char *format, ...) PRINTF_LIKE(1, 2);
void bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* One number of every repetition. */
struct figures {
    double at[REPETITIONS_MAX];
    unsigned count;
};
void figures_add(struct figures *f, double value);
double figures_median(const struct figures *f);
double figures_least(const struct figures *f);
double figures_most(const struct figures *f);
/* numerator / denominator, repetition by repetition. */
struct figures figures_ratio(const struct figures *numerator, const struct figures *denominator);
/* "2.41", with three digits that count. */
void figures_text(double value, char out[16]);

/* "64 MiB", "256 B". */
void size_text(uint64_t size, char out[16]);
/* mem_aligned or the end. */
void *bench_memory(size_t size);

/* A child that goes with its parent. Answers as fork does. */
pid_t child_fork(void);
/* Ends it and waits. 0 is nothing. */
void child_end(pid_t pid);
/* Reads up to a newline, which is cut off. false: the other end closed, or ms have passed. */
bool child_line(int fd, char *out, size_t size, int ms);

#endif
