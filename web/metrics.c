#include "web/metrics.h"

#include "service/base/clock.h"
#include "service/base/log.h"
#include "service/base/mem.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- counters of the HTTP doors --------------------------------------------------------------------------------- */

static const unsigned codes[HTTP_CODE_COUNT] = {
#define HTTP_CODE_ITEM(code) code,
    HTTP_CODES(HTTP_CODE_ITEM)
#undef HTTP_CODE_ITEM
};

static const uint32_t bounds_us[HTTP_BUCKETS] = {100,    250,    500,     1000,    2500,    5000,
                                                 10000,  50000,  100000,  500000,  1000000, 10000000};

struct http_counts *http_counts_new(void)
{
    struct http_counts *c = mem_zero(sizeof *c);

    if (c != NULL) atomic_store(&c->holds, 1);
    return c;
}

struct http_counts *http_counts_hold(struct http_counts *c)
{
    atomic_fetch_add(&c->holds, 1);
    return c;
}

void http_counts_drop(struct http_counts *c)
{
    if (c != NULL && atomic_fetch_sub(&c->holds, 1) == 1) mem_free(c);
}

void http_count(struct http_counts *c, const struct route *r, unsigned code, uint64_t ns)
{
    size_t i = 0, b = 0;

    while (i < HTTP_CODE_COUNT - 1 && codes[i] != code) i++;
    while (b < HTTP_BUCKETS && ns > (uint64_t)bounds_us[b] * 1000) b++;
    atomic_fetch_add(&c->requests[route_index(r)][i], 1);
    atomic_fetch_add(&c->buckets[b], 1);
    atomic_fetch_add(&c->duration_us, ns / 1000);
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

/* Where a number comes from: CORE: a path in what the method Stats answers; STORE: a member of each row of ListStores,
 * with the store as a label; REASON: an object of Stats with a number for each reason; SELF: this process; the rest
 * writes its own lines.
 *
 *    type     name                                     from   what             help */
#define METRICS(X)                                                                                                     \
    X(gauge,   paramd_build_info,                       BUILD, "",              "1, with version and device as labels") \
    X(gauge,   paramd_core_answers,                     LIVE,  "",              "1 while the core answers; at 0 the "   \
                                                                                "numbers below are its last ones")     \
    X(gauge,   paramd_uptime_seconds,                   CORE,  "daemon.uptime", "time since the daemon began")         \
    X(gauge,   paramd_core_longest_turn_seconds,        CORE,  "daemon.longest_turn", "processor time of the core's "     \
                                                                                "thread in its longest turn so far")   \
    X(gauge,   paramd_stores,                           CORE,  "daemon.stores", "stores that have been created")       \
    X(gauge,   paramd_clients,                          CORE,  "daemon.clients", "clients that the daemon knows")      \
    X(gauge,   paramd_keys,                             STORE, "keys",          "keys of a store")                     \
    X(gauge,   paramd_workers,                          STORE, "workers",       "members of a store's job")            \
    X(gauge,   paramd_dead_workers,                     STORE, "dead",          "workers found dead and waited for")   \
    X(gauge,   paramd_device_memory_bytes,              CORE,  "daemon.memory.device", "memory held on the device")    \
    X(gauge,   paramd_keys_on_cpu,                      CORE,  "daemon.keys_on_cpu", "keys for which no GPU had room")   \
    X(gauge,   paramd_cpu_memory_bytes,                 CORE,  "daemon.memory.cpu", "of the device's memory, what "     \
                                                                                "these keys have on the CPU")          \
    X(gauge,   paramd_staging_bytes,                    CORE,  "daemon.memory.staging", "pushes that wait to be "      \
                                                                                "applied")                             \
    X(gauge,   paramd_staging_limit_bytes,              CORE,  "daemon.memory.staging_max", "the most that may wait")  \
    X(gauge,   paramd_memory_used_bytes,                CORE,  "daemon.memory.used", "what counts against --memory-max") \
    X(gauge,   paramd_memory_limit_bytes,               CORE,  "daemon.memory.max", "--memory-max; 0: no cap")          \
    X(gauge,   paramd_cached_bytes,                     CORE,  "daemon.memory.cached", "taken from the system and free; " \
                                                                                "goes back after a rest")              \
    X(gauge,   paramd_heap_bytes,                       CORE,  "daemon.memory.heap", "of the heap, in use")             \
    X(gauge,   paramd_heap_blocks,                      CORE,  "daemon.memory.blocks", "allocated by the daemon itself") \
    X(gauge,   paramd_mailbox_bytes,                    CORE,  "daemon.memory.mailboxes", "lent to trainers")         \
    X(counter, paramd_program_steps_compiled_total,     CORE,  "daemon.programs.compiled", "steps of updater texts by "   \
                                                                                "kernels of their own, on a GPU")      \
    X(counter, paramd_program_steps_interpreted_total,  CORE,  "daemon.programs.interpreted", "the others on a GPU")   \
    X(counter, paramd_pushes_recorded_total,            CORE,  "counters.pushes_recorded", "pushes that count")        \
    X(counter, paramd_pushes_repeated_total,            CORE,  "counters.pushes_repeated", "pushes that came again")   \
    X(counter, paramd_updates_total,                    CORE,  "counters.updates", "changes of values")                \
    X(counter, paramd_rounds_closed_total,              CORE,  "counters.rounds_closed", "rounds that became values")  \
    X(counter, paramd_rounds_failed_total,              CORE,  "counters.rounds_failed", "rounds that failed")         \
    X(counter, paramd_pulls_total,                      CORE,  "counters.pulls", "values answered to pulls")           \
    X(counter, paramd_received_bytes_total,             CORE,  "counters.bytes_in", "tensor bytes taken")              \
    X(counter, paramd_sent_bytes_total,                 CORE,  "counters.bytes_out", "bytes of answers")               \
    X(counter, paramd_versions_revoked_total,           CORE,  "counters.versions_revoked", "versions taken from "     \
                                                                                "their readers for a new one")         \
    X(counter, paramd_copies_down_total,                CORE,  "counters.copies_down", "values copied from the device") \
    X(counter, paramd_frames_total,                     CORE,  "counters.frames", "requests of the binary protocol")   \
    X(counter, paramd_frames_refused_total,             CORE,  "counters.frames_refused", "of them, refused at once")  \
    X(counter, paramd_refused_total,                    REASON, "refused",      "requests of the binary protocol that "    \
                                                                                "were refused, and entries of them, by why") \
    X(counter, paramd_connections_refused_total,        REASON, "connections_refused", "connections to the data doors " \
                                                                                "that were refused or ended, by why")  \
    X(counter, paramd_log_lost_total,                   LOG,   "",              "lines of the log that could not be "  \
                                                                                "written")                             \
    X(counter, paramd_http_requests_total,              HTTP,  "",              "requests to the admin port")          \
    X(histogram, paramd_http_request_duration_seconds,  TIMES, "",              "from the request line to the end of " \
                                                                                "the answer")                          \
    X(counter, paramd_http_cut_connections_total,       CUTS,  "",              "connections that were too slow, or " \
                                                                                "idle when others came")               \
    X(gauge,   paramd_http_connections,                 OPEN,  "",              "connections to the admin port")       \
    X(gauge,   paramd_http_body_bytes,                  BODIES, "",             "bodies that the admin port holds")    \
    X(counter, process_cpu_seconds_total,               SELF,  "cpu",           "user and system time")                \
    X(gauge,   process_resident_memory_bytes,           SELF,  "resident",      "resident memory")                     \
    X(gauge,   process_open_fds,                        SELF,  "open",          "descriptors in use")                  \
    X(gauge,   process_max_fds,                         SELF,  "most",          "descriptors there may be")            \
    X(gauge,   process_start_time_seconds,              SELF,  "start",         "when the process began, since 1970")

struct scrape {
    struct http_counts *counts;
    const json_t *stats, *stores;    /* NULL: never got */
    bool live;
    struct buf *out;
};

static void write_label(struct buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"') buf_add(out, "\\", 1);
        if (*text == '\n') buf_text(out, "\\n");
        else buf_add(out, text, 1);
    }
}

static const json_t *find(const json_t *j, const char *path)
{
    char text[64];

    snprintf(text, sizeof text, "%s", path);
    for (char *at = text, *word; j != NULL && (word = strsep(&at, ".")) != NULL;) j = json_object_get(j, word);
    return j;
}

/* Counts are exact, seconds have a fraction. */
static void write_number(struct buf *out, const json_t *v)
{
    if (json_is_real(v)) buf_format(out, " %.3f\n", json_real_value(v));
    else buf_format(out, " %" JSON_INTEGER_FORMAT "\n", json_integer_value(v));
}

static void from_CORE(const struct scrape *s, const char *name, const char *what)
{
    const json_t *v = find(s->stats, what);

    if (v == NULL) return;
    buf_text(s->out, name);
    write_number(s->out, v);
}

static void from_STORE(const struct scrape *s, const char *name, const char *what)
{
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(s->stores, "items"), i, row) {
        buf_format(s->out, "%s{store=\"", name);
        write_label(s->out, json_string_value(json_object_get(row, "store")));
        buf_text(s->out, "\"}");
        write_number(s->out, json_object_get(row, what));
    }
}

static void from_REASON(const struct scrape *s, const char *name, const char *what)
{
    json_t *all = json_object_get(s->stats, what), *count;
    const char *reason;

    json_object_foreach(all, reason, count) {
        buf_format(s->out, "%s{reason=\"%s\"}", name, reason);
        write_number(s->out, count);
    }
}

static void from_LOG(const struct scrape *s, const char *name, const char *what)
{
    (void)what;
    buf_format(s->out, "%s %" PRIu64 "\n", name, log_lost());
}

static void from_BUILD(const struct scrape *s, const char *name, const char *what)
{
    const json_t *version = find(s->stats, "daemon.version"), *device = find(s->stats, "daemon.device");

    (void)what;
    if (version != NULL && device != NULL)
        buf_format(s->out, "%s{version=\"%s\",device=\"%s\"} 1\n", name, json_string_value(version),
                   json_string_value(device));
}

static void from_LIVE(const struct scrape *s, const char *name, const char *what)
{
    (void)what;
    buf_format(s->out, "%s %d\n", name, s->live);
}

static void from_HTTP(const struct scrape *s, const char *name, const char *what)
{
    (void)what;
    for (size_t r = 0; r <= ROUTE_COUNT; r++)
        for (size_t c = 0; c < HTTP_CODE_COUNT; c++) {
            uint64_t n = atomic_load(&s->counts->requests[r][c]);
            if (n == 0) continue;
            buf_format(s->out, "%s{route=\"%s\",method=\"%s\",code=\"", name, r < ROUTE_COUNT ? routes[r].path : "none",
                       r < ROUTE_COUNT ? routes[r].method : "any");
            if (codes[c] != 0) buf_format(s->out, "%u", codes[c]);
            else buf_text(s->out, "other");
            buf_format(s->out, "\"} %" PRIu64 "\n", n);
        }
}

static void from_TIMES(const struct scrape *s, const char *name, const char *what)
{
    uint64_t sum = 0;

    (void)what;
    for (size_t i = 0; i <= HTTP_BUCKETS; i++) {
        sum += atomic_load(&s->counts->buckets[i]);
        if (i < HTTP_BUCKETS) buf_format(s->out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds_us[i] / 1e6, sum);
    }
    buf_format(s->out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.6f\n%s_count %" PRIu64 "\n", name, sum, name,
               (double)atomic_load(&s->counts->duration_us) / 1e6, name, sum);
}

static void from_CUTS(const struct scrape *s, const char *name, const char *what)
{
    (void)what;
    for (int p = 0; p < LINE_PHASES; p++)
        if (p != LINE_WORKING)
            buf_format(s->out, "%s{phase=\"%s\"} %" PRIu64 "\n", name, line_phase_names[p],
                       atomic_load(&s->counts->cuts[p]));
}

static void from_OPEN(const struct scrape *s, const char *name, const char *what)
{
    (void)what;
    buf_format(s->out, "%s %" PRId64 "\n", name, atomic_load(&s->counts->connections));
}

static void from_BODIES(const struct scrape *s, const char *name, const char *what)
{
    (void)what;
    buf_format(s->out, "%s %" PRIu64 "\n", name, atomic_load(&s->counts->body_bytes));
}

/* ---- this process ----------------------------------------------------------------------------------------------- */

static double self_cpu(void)
{
    struct rusage u;

    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* A field of a file of /proc/self, counted from 0 behind `skip`. */
static double self_field(const char *path, char skip, int index)
{
    char text[1024];
    FILE *f = fopen(path, "re");
    size_t size = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;

    if (f != NULL) fclose(f);
    text[size] = '\0';
    char *at = skip != '\0' ? strrchr(text, skip) : text;
    if (at == NULL) return 0;
    at += skip != '\0' ? 2 : 0;
    for (; index > 0 && at != NULL; index--) at = strchr(at, ' ') != NULL ? strchr(at, ' ') + 1 : NULL;
    return at != NULL ? strtod(at, NULL) : 0;
}

/* Reckoned once: the clocks are never read at the same moment, and the wall clock is set now and then, so a second
 * reckoning would tell a restart that was none. */
static double start_time;

static void reckon_start(void)
{
    struct timespec now, up;
    double began = self_field("/proc/self/stat", ')', 19) / (double)sysconf(_SC_CLK_TCK);

    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &up);  /* what the kernel's start time counts from */
    start_time = (double)(now.tv_sec - up.tv_sec) + (double)(now.tv_nsec - up.tv_nsec) / 1e9 + began;
}

static double self_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, reckon_start);
    return start_time;
}

static double self_open(void)
{
    DIR *d = opendir("/proc/self/fd");
    double count = -3; /* . and .. and this one */

    if (d == NULL) return 0;
    while (readdir(d) != NULL) count++;
    closedir(d);
    return count;
}

static double self_most(void)
{
    struct rlimit r;
    return getrlimit(RLIMIT_NOFILE, &r) == 0 ? (double)r.rlim_cur : 0;
}

static void from_SELF(const struct scrape *s, const char *name, const char *what)
{
    double v = strcmp(what, "cpu") == 0 ? self_cpu()
             : strcmp(what, "resident") == 0 ? self_field("/proc/self/statm", '\0', 1) * (double)sysconf(_SC_PAGESIZE)
             : strcmp(what, "open") == 0 ? self_open()
             : strcmp(what, "most") == 0 ? self_most() : self_start();

    buf_format(s->out, "%s %.15g\n", name, v);
}

/* ---- the page --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *type, *what, *help;
    void (*write)(const struct scrape *s, const char *name, const char *what);
} rows[] = {
#define METRIC_ROW(type, name, from, what, help) {#name, #type, what, help, from_##from},
    METRICS(METRIC_ROW)
#undef METRIC_ROW
};

/* Short: the probe port has one thread, and /livez must not wait behind a busy core. */
enum { STATS_WAIT_MS = 200 };

/* Fresh numbers, or those of the last time. */
static bool get_stats(struct exchange *x, const json_t **stats, const json_t **stores)
{
    json_t **last = exchange_last_stats(x), *a = NULL, *b = NULL;
    struct error e;
    bool live = door_json(x->door, WIRE_Stats, json_object(), STATS_WAIT_MS, &a, &e) == STATUS_OK &&
                door_json(x->door, WIRE_ListStores, json_object(), STATS_WAIT_MS, &b, &e) == STATUS_OK;

    if (live) {
        json_decref(*last);
        *last = json_pack("{s:o,s:o}", "stats", a, "stores", b);
    } else {
        json_decref(a);
    }
    *stats = json_object_get(*last, "stats");
    *stores = json_object_get(*last, "stores");
    return live;
}

void handle_metrics(struct exchange *x)
{
    struct scrape s = {.counts = exchange_counts(x), .out = &x->out};

    s.live = get_stats(x, &s.stats, &s.stores);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        buf_format(&x->out, "# HELP %s %s\n# TYPE %s %s\n", rows[i].name, rows[i].help, rows[i].name, rows[i].type);
        rows[i].write(&s, rows[i].name, rows[i].what);
    }
    x->code = 200;
    x->type = "text/plain; version=0.0.4; charset=utf-8";
}
