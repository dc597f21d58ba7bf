/* paramctl, the command line: what its files share. One process, one thread (and libparamd's own). A command answers
 * its exit status; what went wrong has been said on stderr by then.
 *
 *   main.c       the table of commands and flags, --help
 *   ask.c        handles, JSON methods, errors
 *   table.c      tables and facts for people
 *   value.c      values as text, as JSON and out of arguments; npy.c the same as .npy
 *   cmd_look.c   info health stores keys stats workers rounds call describe
 *   cmd_store.c  store create, delete, reset; delete (of a key)
 *   cmd_updater.c  updater get, set, check
 *   cmd_value.c  get pull put push
 *   cmd_bench.c, cmd_top.c, cmd_viz.c (viz summary) */
#ifndef API_PARAMCTL_PARAMCTL_H
#define API_PARAMCTL_PARAMCTL_H

#include "api/client/paramd.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

enum { EXIT_ERROR = 1, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_CONFLICT, EXIT_AUTH, EXIT_UNAVAILABLE };
enum { ARGS_MAX = 64 };

/* What the command line said. */
struct ctl {
    const char *url, *store, *token_file;        /* NULL: not said */
    double timeout;                              /* seconds, to connect and for a newer version; 0: not given */
    bool json, color;
    const char *npy, *into, *dtype, *key_type;   /* flags of single commands */
    const char *out, *format, *engine, *view, *direction, *color_by, *shape, *expand, *states;
    bool force, wait, once, live, as_text, dry_run;
    uint64_t limit, size;
    double seconds, interval;
    const char *args[ARGS_MAX];
    int arg_count;
};

int run_info(const struct ctl *c);
int run_health(const struct ctl *c);
int run_stores(const struct ctl *c);
int run_keys(const struct ctl *c);
int run_stats(const struct ctl *c);
int run_workers(const struct ctl *c);
int run_rounds(const struct ctl *c);
int run_store(const struct ctl *c);
int run_delete(const struct ctl *c);
int run_updater(const struct ctl *c);
int run_call(const struct ctl *c);
int run_describe(const struct ctl *c);
int run_get(const struct ctl *c);
int run_pull(const struct ctl *c);
int run_put(const struct ctl *c);
int run_push(const struct ctl *c);
int run_bench(const struct ctl *c);
int run_top(const struct ctl *c);
int run_viz(const struct ctl *c);
int run_summary(const struct ctl *c);

/* ---- ask.c ------------------------------------------------------------------------------------------------------ */

/* The store that --store, else PARAMD_STORE, names; "default". */
const char *store_name(const struct ctl *c);
/* Says what is wrong and answers the exit status. */
int complain(const struct ctl *c, const struct paramd_error *e);
int complain_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A handle that looks: at the daemon, or at the store. NULL: *code says. */
struct paramd *open_daemon(const struct ctl *c, int *code);
struct paramd *open_store(const struct ctl *c, int *code);
/* The bytes of a file, or of stdin for "-", and a '\0'. NULL: what is wrong has been said. For free(). */
char *read_file(const char *path, size_t *size);
/* A worker of the store, which has this type. */
struct paramd *open_worker(const struct ctl *c, const char *store, const char *type, int *code);

/* Asks on a handle, or on one opened for it. Takes the document. The answer, or NULL with *code. */
json_t *ask_on(const struct ctl *c, struct paramd *kv, const char *method, json_t *document, int *code);
json_t *ask(const struct ctl *c, const char *method, json_t *document, int *code);
/* The arguments as keys of the store: numbers in a store of numbers, else names. NULL: *code says. */
json_t *ask_keys(const struct ctl *c, struct paramd *kv, int *code);
/* {"store": name} */
json_t *of_store(const struct ctl *c);

/* ---- table.c ---------------------------------------------------------------------------------------------------- */

enum look { LOOK_TEXT, LOOK_NUMBER, LOOK_SECONDS, LOOK_BYTES, LOOK_SHAPE };

struct column {
    const char *title, *member;
    enum look look;
};

/* A member that is a number; 0: there is none. */
double number(const json_t *j, const char *name);
unsigned long long whole(const json_t *j, const char *name);
/* One line, with '?' for what a terminal would obey; say_lines: a text with its own line ends. Everything that may hold
 * a name is printed by these, or by the tables and facts below. */
void say(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_lines(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* JSON of `size` bytes and an ending zero, with escapes instead. */
void say_json(FILE *to, const char *json, size_t size);
/* Takes the document, prints it as REST does and answers the exit status. */
int show_json(json_t *j);
void print_table(const struct ctl *c, FILE *to, const json_t *items, const struct column *columns, size_t count);
#define PRINT_TABLE(c, to, items, ...)                                                            \
    print_table(c, to, items, (const struct column[]){__VA_ARGS__},                               \
                sizeof((const struct column[]){__VA_ARGS__}) / sizeof(struct column))
/* "name        text", one of many lines. */
void print_fact(const struct ctl *c, FILE *to, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
enum { CELL_SIZE = 256 };
/* One value as a person reads it. What a terminal would obey is left out. */
const char *cell(const json_t *v, enum look look, char out[CELL_SIZE]);
const char *bytes_text_of(double bytes, char out[CELL_SIZE]);

/* ---- value.c, npy.c --------------------------------------------------------------------------------------------- */

/* Not to be copied: the tensor's shape lies in it. */
struct value {
    struct paramd_tensor tensor;
    int64_t shape[8];
    size_t count, size;                          /* elements, bytes */
};

/* Room for a value; false: too large, or no memory, and said. */
bool value_new(int dtype, int ndim, const int64_t *shape, struct value *out);
void value_free(struct value *v);
/* Out of an argument: a .npy file, JSON ("[1, 2]", "3.5"), a file with JSON, or "-" for JSON on stdin. JSON is taken as
 * `dtype`. false: it is wrong, and said. */
bool value_read(const char *argument, int dtype, struct value *out);
/* As numpy prints it: more than a thousand elements are abbreviated. */
void value_print(FILE *to, const struct value *v);
/* Nested lists; what JSON has no number for as "NaN", "Infinity", "-Infinity". */
void value_print_json(FILE *to, const struct value *v);
/* One element as a number; of no use for a large int64. */
double value_at(const struct value *v, size_t index);
const char *dtype_text(int dtype);               /* "float32" */
bool dtype_of(const char *name, int *out);
/* "float32 (4, 4)" */
const char *type_text(const struct paramd_tensor *t, char out[CELL_SIZE]);

bool npy_read(const char *path, struct value *out);
bool npy_write(const char *path, const struct value *v);

#endif
