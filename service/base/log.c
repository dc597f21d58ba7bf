#include "service/base/log.h"

#include "service/base/bytes.h"
#include "service/base/clock.h"
#include "service/base/writer.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_SIZE = 900, LINE_SIZE = 6 * MESSAGE_SIZE + 200, KINDS = 32 };

static _Atomic int level_now = LOG_WARN, format_now = LOG_TEXT;
static atomic_bool priorities;
static struct writer *_Atomic writer;            /* NULL: who logs writes */

void log_set_level(enum log_level least) { atomic_store(&level_now, least); }
void log_set_format(enum log_format format) { atomic_store(&format_now, format); }
void log_set_priorities(bool on) { atomic_store(&priorities, on); }
bool log_wants(enum log_level level) { return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed); }

/* ---- one line --------------------------------------------------------------------------------------------------- */

struct event {
    enum log_level level;
    const char *module;
    const char *message;
    uint64_t repeated;                       /* more of the kind that were not written; 0: none */
};

/* As a JSON string, which logfmt reads as well. A name that a peer chose may hold line ends and escapes of a terminal;
 * it must not forge a line. Bytes that are no UTF-8 become '?'. */
static size_t put_quoted(char *to, const char *from)
{
    char *at = to;

    *at++ = '"';
    for (const char *s = from; *s != '\0';) {
        size_t n = utf8_length(s, strnlen(s, 4));
        char escaped[7];
        if (*s == '"' || *s == '\\') {
            *at++ = '\\';
            *at++ = *s;
        } else if (*s == '\n') {
            *at++ = '\\';
            *at++ = 'n';
        } else if (n == 0) {
            *at++ = '?';
        } else if (text_escape(escaped, s) > 0) {
            memcpy(at, escaped, 6);
            at += 6;
        } else {
            memcpy(at, s, n);
            at += n;
        }
        s += n > 0 ? n : 1;
    }
    *at++ = '"';
    return (size_t)(at - to);
}

static size_t put_time(char *to, size_t room)
{
    struct timespec t;
    struct tm day;

    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &day);
    size_t n = strftime(to, room, "%Y-%m-%dT%H:%M:%S", &day);
    return n + (size_t)snprintf(to + n, room - n, ".%03ldZ", t.tv_nsec / 1000000);
}

/* Lines to be written when no lock is held: at most one that ends a kind, and one event. */
struct lines {
    size_t size;
    char text[2 * LINE_SIZE];
};

static void put_line(struct lines *to, const struct event *v)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    static const int journal[] = {3, 4, 6, 7};
    bool json = atomic_load(&format_now) == LOG_JSON;
    char *at = to->text + to->size, ts[40];

    put_time(ts, sizeof ts);
    if (atomic_load(&priorities)) at += sprintf(at, "<%d>", journal[v->level]);
    at += snprintf(at, 150, json ? "{\"ts\":\"%s\",\"level\":\"%s\",\"component\":\"%s\",\"msg\":"
                                 : "ts=%s level=%s component=%s msg=", ts, names[v->level], v->module);
    at += put_quoted(at, v->message);
    if (v->repeated > 0)
        at += sprintf(at, json ? ",\"repeated\":%llu" : " repeated=%llu", (unsigned long long)v->repeated);
    if (json) *at++ = '}';
    *at++ = '\n';
    to->size = (size_t)(at - to->text);
}

/* One write, so that lines of several threads do not mix. A log that cannot be written is no reason to stop. */
static void write_line(const char *line, size_t size)
{
    struct writer *w = atomic_load(&writer);

    if (w != NULL) (void)writer_add(w, line, size);
    else if (write(STDERR_FILENO, line, size) < 0) return;
}

static void write_lines(const struct lines *l)
{
    for (size_t from = 0, size; from < l->size; from += size) {
        size = (size_t)((const char *)memchr(l->text + from, '\n', l->size - from) - (l->text + from)) + 1;
        write_line(l->text + from, size);
    }
}

void log_line(const char *line) { write_line(line, strlen(line)); }

/* ---- the thread that writes ------------------------------------------------------------------------------------- */

_Static_assert((int)LINE_SIZE <= (int)WRITER_LINE_MAX, "a line of the log is one line of the writer");

static size_t tell_lost(char to[WRITER_LINE_MAX], uint64_t lost)
{
    char message[100];
    struct event v = {LOG_WARN, "log", message, 0};
    struct lines out;

    out.size = 0;
    snprintf(message, sizeof message, "%llu lines of the log could not be written here", (unsigned long long)lost);
    put_line(&out, &v);
    memcpy(to, out.text, out.size);
    return out.size;
}

enum status log_start(struct error *e)
{
    struct writer *w = NULL;
    enum status s = writer_start(STDERR_FILENO, LOG_QUEUE_SIZE, tell_lost, &w, e);

    if (s == STATUS_OK) atomic_store(&writer, w);
    return s;
}

void log_stop(uint64_t until_ms) { writer_stop(atomic_exchange(&writer, NULL), until_ms); }

uint64_t log_lost(void)
{
    struct writer *w = atomic_load(&writer);
    return w != NULL ? writer_lost(w) : 0;
}

/* ---- folding ---------------------------------------------------------------------------------------------------- */

/* One kind of event that has been written lately. */
struct kind {
    const char *format;                      /* NULL: free */
    const char *module;
    enum log_level level;
    uint64_t until_ms;
    unsigned written;
    uint64_t folded;
    char last[MESSAGE_SIZE];                 /* the sentence */
};

static pthread_mutex_t kinds_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kind kinds[KINDS];

static void kind_end(struct kind *k, struct lines *to)
{
    if (k->format != NULL && k->folded > 0) put_line(to, &(struct event){k->level, k->module, k->last, k->folded});
    k->format = NULL;
}

/* That of the format if its time is not over; else a free one, or the one whose time is over first, which ends. */
static struct kind *kind_of(const char *format, uint64_t now_ms, struct lines *to)
{
    struct kind *best = &kinds[0];

    for (size_t i = 0; i < KINDS; i++) {
        struct kind *k = &kinds[i];
        if (k->format == format && now_ms < k->until_ms) return k;
        if (k->format == format) {
            best = k;
            break;
        }
        if (best->format != NULL && (k->format == NULL || k->until_ms < best->until_ms)) best = k;
    }
    kind_end(best, to);
    return best;
}

static void fold(const struct event *v, const char *format, uint64_t now_ms, struct lines *to)
{
    struct kind *k = kind_of(format, now_ms, to);
    bool same = k->format != NULL && strcmp(k->last, v->message) == 0;

    if (k->format == NULL)
        *k = (struct kind){.format = format, .module = v->module, .level = v->level, .until_ms = now_ms + LOG_FOLD_MS};
    memcpy(k->last, v->message, strlen(v->message) + 1);
    if (same || k->written == LOG_BURST) {
        k->folded++;
    } else {
        k->written++;
        put_line(to, v);
    }
}

void log_flush(uint64_t now_ms)
{
    struct lines out;

    out.size = 0;
    for (size_t i = 0; i < KINDS; i++) {
        pthread_mutex_lock(&kinds_lock);
        if (kinds[i].format != NULL && now_ms >= kinds[i].until_ms) kind_end(&kinds[i], &out);
        pthread_mutex_unlock(&kinds_lock);
        write_lines(&out);
        out.size = 0;
    }
}

void log_write(enum log_level level, const char *module, const char *format, ...)
{
    char message[MESSAGE_SIZE];
    struct event v = {level, module, message, 0};
    struct lines out;
    va_list args;

    if (!log_wants(level)) return;
    out.size = 0;
    va_start(args, format);
    if (vsnprintf(message, sizeof message, format, args) < 0) message[0] = '\0';
    va_end(args);
    if (level > LOG_WARN) {                  /* of these none comes once per request, or somebody wants them all */
        put_line(&out, &v);
    } else {
        pthread_mutex_lock(&kinds_lock);
        fold(&v, format, clock_ms(), &out);
        pthread_mutex_unlock(&kinds_lock);
    }
    write_lines(&out);
}
