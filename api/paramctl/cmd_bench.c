/* bench: what one client gets out of the daemon as it is, in a store of its own that is deleted afterwards. A quick
 * look, no measurement to compare daemons by: that is `make bench`. */
#include "api/paramctl/paramctl.h"

#include "service/base/clock.h"
#include "service/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES_MAX = 1 << 20, SIZE_MAX_BENCH = 1 << 30 };

struct run {
    const char *name;
    size_t size;                 /* bytes of the value */
    bool push;
};

struct samples {
    uint64_t *ns;
    size_t count;
    uint64_t taken_ns;           /* in all */
};

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int measure(const struct ctl *c, struct paramd *kv, const struct run *r, struct value *v, struct samples *out)
{
    struct paramd_key key = PARAMD_STR(r->name);
    struct paramd_error e;
    uint64_t begin = clock_ns(), end = begin + (uint64_t)(c->seconds * 1e9 / 4), now = begin;
    int s = 0;

    for (out->count = 0; now < end && out->count < SAMPLES_MAX && s == 0; out->count++) {
        s = r->push ? paramd_push(kv, 1, &key, &v->tensor, 0, &e) : paramd_pull(kv, 1, &key, &v->tensor, 0, &e);
        uint64_t then = clock_ns();
        out->ns[out->count] = then - now;
        now = then;
    }
    /* A push counts when it is applied, not when it is recorded. */
    if (s == 0 && r->push) s = paramd_wait(kv, 1, &key, &e);
    out->taken_ns = clock_ns() - begin;
    return s != 0 ? complain(c, &e) : 0;
}

static json_t *row_of(const struct run *r, const struct samples *s)
{
    double seconds = (double)s->taken_ns / 1e9;

    qsort(s->ns, s->count, sizeof *s->ns, by_size);
    return json_pack("{s:s,s:I,s:I,s:f,s:f,s:f,s:f}", "what", r->push ? "push" : "pull", "bytes", (json_int_t)r->size,
                     "calls", (json_int_t)s->count, "calls_per_second", (double)s->count / seconds,
                     "bytes_per_second", (double)s->count * (double)r->size / seconds,
                     "p50", (double)s->ns[s->count / 2] / 1e9, "p99", (double)s->ns[s->count * 99 / 100] / 1e9);
}

static int run_all(const struct ctl *c, struct paramd *kv, json_t *rows)
{
    const struct run runs[] = {
        {"small", 4, true}, {"small", 4, false}, {"large", (size_t)c->size, true}, {"large", (size_t)c->size, false},
    };
    struct samples s = {.ns = mem_array(SAMPLES_MAX, sizeof *s.ns)};
    int code = s.ns != NULL ? 0 : complain_usage("no memory");

    for (size_t i = 0; i < sizeof runs / sizeof runs[0] && code == 0; i++) {
        struct paramd_key key = PARAMD_STR(runs[i].name);
        int64_t shape[] = {(int64_t)(runs[i].size / sizeof(float))};
        struct value v;
        struct paramd_error e;
        if (!value_new(PARAMD_F32, 1, shape, &v)) code = EXIT_ERROR;
        if (code == 0) memset(v.tensor.data, 0, v.size);
        if (code == 0 && runs[i].push && paramd_init(kv, 1, &key, &v.tensor, &e) != 0) code = complain(c, &e);
        if (code == 0) code = measure(c, kv, &runs[i], &v, &s);
        if (code == 0) json_array_append_new(rows, row_of(&runs[i], &s));
        value_free(&v);
    }
    mem_free(s.ns);
    return code;
}

static void print_rows(const struct ctl *c, json_t *rows)
{
    size_t i;
    json_t *row;
    char text[CELL_SIZE], rate[CELL_SIZE + 8];

    json_array_foreach(rows, i, row) {
        double bytes = json_number_value(json_object_get(row, "bytes_per_second"));
        snprintf(rate, sizeof rate, "%s/s", bytes_text_of(bytes, text));
        json_object_set_new(row, "rate", json_string(rate));
        snprintf(rate, sizeof rate, "%.0f", json_number_value(json_object_get(row, "calls_per_second")));
        json_object_set_new(row, "calls_s", json_string(rate));
        for (int k = 0; k < 2; k++) {
            double seconds = json_number_value(json_object_get(row, k == 0 ? "p50" : "p99"));
            snprintf(rate, sizeof rate, "%.1f us", seconds * 1e6);
            json_object_set_new(row, k == 0 ? "p50_us" : "p99_us", json_string(rate));
        }
    }
    PRINT_TABLE(c, stdout, rows, {"WHAT", "what", LOOK_TEXT}, {"VALUE", "bytes", LOOK_BYTES},
                {"CALLS/S", "calls_s", LOOK_NUMBER}, {"RATE", "rate", LOOK_NUMBER}, {"P50", "p50_us", LOOK_NUMBER},
                {"P99", "p99_us", LOOK_NUMBER});
}

int run_bench(const struct ctl *c)
{
    char store[64];
    int code = EXIT_ERROR;
    struct paramd *kv;
    struct paramd_error e;
    char *answer = NULL;

    if (c->size < sizeof(float) || c->size > SIZE_MAX_BENCH)
        return complain_usage("--size: from 4 to %d bytes", SIZE_MAX_BENCH);
    snprintf(store, sizeof store, "paramctl-bench-%d", (int)getpid());
    kv = open_worker(c, store, "dist_async", &code);
    if (kv == NULL) return code;
    json_t *rows = json_array(), *gone = json_pack("{s:s}", "store", store);
    code = run_all(c, kv, rows);
    char *document = json_dumps(gone, JSON_COMPACT);
    if (document == NULL || paramd_call(kv, "DeleteStore", document, &answer, &e) != 0)
        say(stderr, "paramctl: store %s is left behind", store);
    paramd_text_free(answer);
    free(document);
    json_decref(gone);
    paramd_close(kv);
    if (code == 0 && c->json) return show_json(json_pack("{s:o}", "items", rows));
    if (code == 0) print_rows(c, rows);
    json_decref(rows);
    return code;
}
