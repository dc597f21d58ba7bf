#include "web/http.h"

#include "service/base/clock.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/base/net.h"
#include "web/gate.h"
#include "web/json.h"
#include "web/metrics.h"
#include "web/networks.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#if MHD_VERSION < 0x00097500
#error libmicrohttpd 0.9.75 or newer: what older ones let through, the gate does not know
#endif

enum {
    HOST_SIZE = 256, ADMIN_CONNECTIONS = 256, ADMIN_THREADS = 2, PROBE_CONNECTIONS = 64, CONNECTIONS_OF_ONE = 32,
    HEADER_BYTES = 32 << 10,         /* request line and headers of a connection; more is 414 or 431 */
    SILENT_S = 60,                   /* libmicrohttpd's own; the reaper is stricter */
    THROWN_AWAY_MAX = 4 << 20,       /* of a refused body, so that its sender can read why */
    CORE_SILENT_MS = 30000,
    HOSTS_MAX = 6
};

struct http {
    struct http_config config;
    enum http_face face;
    struct MHD_Daemon *daemons[NET_SOCKETS_MAX];     /* one for each address of the host */
    unsigned daemon_count;
    struct door *door;
    struct reaper *reaper;
    struct http_counts *counts;      /* held */
    struct http_counts *shown;       /* held: those that /metrics tells */
    char url[300];
    char *hosts[HOSTS_MAX + 1];      /* NULL-ended */
    pthread_mutex_t lock;            /* guards token */
    char *token;
    _Atomic bool ready;
    _Atomic int active;              /* requests in hand */
    _Atomic uint64_t bodies;         /* bytes of them */
    struct mail beat;                /* shows that the core takes its mail */
    _Atomic uint64_t beat_sent_ms;   /* 0: it has been opened */
    json_t *last_stats;              /* the probe's thread */
    struct networks *networks;       /* the admin door's; else NULL */
};

/* ---- what handlers may ask -------------------------------------------------------------------------------------- */

const char *exchange_header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *exchange_query(const struct exchange *x, const char *name)
{
    for (size_t i = 0; i < x->target.query_count; i++)
        if (strcmp(x->target.query[i].name, name) == 0) return x->target.query[i].value;
    return NULL;
}

void exchange_origin(const struct exchange *x, struct buf *out)
{
    const char *host = exchange_header(x, "Host");

    if (host != NULL) buf_format(out, "http://%s", host);
    else buf_text(out, x->http->url);
}

bool exchange_has_token(const struct exchange *x)
{
    pthread_mutex_lock(&x->http->lock);
    bool has = x->http->token != NULL;
    pthread_mutex_unlock(&x->http->lock);
    return has;
}

static void give_room(struct http *h, uint64_t size)
{
    atomic_fetch_sub(&h->bodies, size);
    atomic_fetch_sub(&h->counts->body_bytes, size);
}

bool exchange_reserve(struct exchange *x, uint64_t size)
{
    struct http *h = x->http;

    if (size > BODIES_MAX || atomic_fetch_add(&h->bodies, size) + size > BODIES_MAX) {
        if (size <= BODIES_MAX) atomic_fetch_sub(&h->bodies, size);
        return false;
    }
    atomic_fetch_add(&h->counts->body_bytes, size);
    x->room += size;
    return true;
}

static void beat_opened(struct mail *m) { atomic_store(&CONTAINER_OF(m, struct http, beat)->beat_sent_ms, 0); }

bool exchange_is_alive(const struct exchange *x)
{
    struct http *h = x->http;
    uint64_t now = clock_ms(), none = 0;

    if (!atomic_compare_exchange_strong(&h->beat_sent_ms, &none, now)) return now - none < CORE_SILENT_MS;
    mailbox_notice(h->config.mailbox, &h->beat);
    return true;
}

bool exchange_is_ready(const struct exchange *x) { return atomic_load(&x->http->ready); }
struct http_counts *exchange_counts(const struct exchange *x) { return x->http->shown; }
struct networks *exchange_networks(const struct exchange *x) { return x->http->networks; }
json_t **exchange_last_stats(const struct exchange *x) { return &x->http->last_stats; }

/* ---- answers ---------------------------------------------------------------------------------------------------- */

void say_header(struct exchange *x, const char *name, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text || x->header_count == HEADERS_MAX) return;
    char *value = mem_text(text, (size_t)n);
    if (value == NULL) return;
    x->headers[x->header_count].name = name;
    x->headers[x->header_count++].value = value;
}

static void say_dump(struct exchange *x, unsigned code, const char *type, json_t *document)
{
    x->code = document != NULL ? code : 507;
    x->type = document != NULL ? type : "text/plain; charset=utf-8";
    buf_clear(&x->out);
    if (document != NULL) json_write(&x->out, document);
    else buf_text(&x->out, "out of memory");
    buf_text(&x->out, "\n");
    json_decref(document);
}

void say_json(struct exchange *x, unsigned code, json_t *document) { say_dump(x, code, "application/json", document); }
void say_nothing(struct exchange *x, unsigned code) { x->code = code; }

void say_text(struct exchange *x, unsigned code, const char *text)
{
    x->code = code;
    x->type = "text/plain; charset=utf-8";
    buf_text(&x->out, text);
}

void say_error(struct exchange *x, const struct error *e, json_t *members)
{
    unsigned code = reason_http(e->reason);
    json_t *j = json_pack("{s:s+,s:s,s:i,s:s,s:s,s:s}", "type", "/problems/", reason_code(e->reason), "title",
                          reason_title(e->reason), "status", (int)code, "code", reason_code(e->reason), "status_name",
                          status_name(e->status), "detail", e->text);

    if (j != NULL && e->retry_ms > 0) {
        json_object_set_new(j, "retry_after_ms", json_integer(e->retry_ms));
        say_header(x, "Retry-After", "%u", (e->retry_ms + 999) / 1000);
    }
    if (j != NULL && members != NULL) json_object_update(j, members);
    const json_t *other = json_object_get(j, "status");
    if (json_is_integer(other)) code = (unsigned)json_integer_value(other);
    json_decref(members);
    if (e->reason == REASON_BAD_TOKEN) say_header(x, "WWW-Authenticate", "Bearer");
    say_dump(x, code, "application/problem+json", j);
}

void say_problem(struct exchange *x, enum reason r, const char *format, ...)
{
    struct error e;
    char text[ERROR_TEXT_SIZE];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    error_set(&e, r, "%s", text);
    say_error(x, &e, NULL);
}

json_t *ask_quietly(struct exchange *x, unsigned method, json_t *in)
{
    json_t *out = NULL;
    return door_json(x->door, method, in, 0, &out, &x->error) == STATUS_OK ? out : NULL;
}

json_t *ask(struct exchange *x, unsigned method, json_t *in)
{
    json_t *out = ask_quietly(x, method, in);
    if (out == NULL) say_error(x, &x->error, NULL);
    return out;
}

/* ---- to and from libmicrohttpd ---------------------------------------------------------------------------------- */

/* The bytes of an answer that is on its way. */
struct sent {
    struct http *http;
    void *at;
    uint64_t room;
};

static void sent_free(void *ctx)
{
    struct sent *s = ctx;

    give_room(s->http, s->room);
    mem_free(s->at);
    mem_free(s);
}

static struct MHD_Response *response_of(struct exchange *x)
{
    struct sent *s;
    struct MHD_Response *r;

    if (x->fixed != NULL || x->out.size == 0)
        return MHD_create_response_from_buffer(x->fixed_size, (void *)(uintptr_t)x->fixed, MHD_RESPMEM_PERSISTENT);
    s = x->out.failed ? NULL : mem_new(sizeof *s);
    if (s == NULL) return NULL;
    *s = (struct sent){x->http, x->out.at, x->room};
    r = MHD_create_response_from_buffer_with_free_callback_cls(x->out.size, x->out.at, sent_free, s);
    if (r == NULL) {
        mem_free(s);
        return NULL;
    }
    x->out = (struct buf){0};
    x->room = 0;
    return r;
}

static void add_headers(struct MHD_Response *r, const struct exchange *x)
{
    bool has_tag = false;

    for (size_t i = 0; i < x->header_count; i++) {
        has_tag = has_tag || strcmp(x->headers[i].name, "ETag") == 0;
        if (MHD_add_response_header(r, x->headers[i].name, x->headers[i].value) != MHD_YES)
            log_debug("http", "header %s was refused", x->headers[i].name);
    }
    if (x->type != NULL) MHD_add_response_header(r, "Content-Type", x->type);
    /* What has a tag may be kept and asked about; nothing is shown without asking. */
    MHD_add_response_header(r, "Cache-Control", has_tag ? "no-cache" : "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (x->hang_up) MHD_add_response_header(r, "Connection", "close");
}

static void count_once(struct exchange *x)
{
    if (!x->counted) http_count(x->http->counts, x->route, x->code, clock_ns() - x->began_ns);
    x->counted = true;
}

/* NO ends the connection without an answer: there is no memory for one. */
static enum MHD_Result answer(struct exchange *x)
{
    struct MHD_Response *r = response_of(x);

    if (r == NULL) return MHD_NO;
    add_headers(r, x);
    line_phase(x->line, LINE_ANSWER);
    count_once(x);                   /* before it is sent: who has seen an answer finds it counted */
    enum MHD_Result result = MHD_queue_response(x->connection, x->code, r);
    MHD_destroy_response(r);
    return result;
}

/* libmicrohttpd would read the parameters once more, into the memory for headers, and end the connection without an
 * answer where a few hundred of them do not fit. target_read has them all; the text is in libmicrohttpd's own buffer. */
static void cut_query(const char *uri)
{
    char *query = strchr(uri, '?');
    if (query != NULL) query[1] = '\0';
}

static void *begin_request(void *ctx, const char *uri, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct exchange *x = mem_zero(sizeof *x);

    if (x == NULL) return NULL;
    x->http = ctx;
    x->door = x->http->door;
    x->connection = c;
    x->line = info != NULL ? info->socket_context : NULL;
    x->began_ns = clock_ns();
    if (target_read(uri, &x->target, &x->error) == STATUS_OK) x->error.status = STATUS_OK;
    cut_query(uri);
    return x;
}

static void end_request(void *ctx, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why)
{
    struct http *h = ctx;
    struct exchange *x = *state;

    (void)c;
    (void)why;
    if (x == NULL) return;
    line_phase(x->line, LINE_IDLE);
    count_once(x);
    if (x->method != NULL && x->target.raw != NULL) {
        /* Without the query: somebody may have put a token there. */
        log_debug("http", "%s %.*s %u", x->method, (int)strcspn(x->target.raw, "?"), x->target.raw, x->code);
    }
    if (x->begun) atomic_fetch_sub(&h->active, 1);
    give_room(h, x->room);
    for (size_t i = 0; i < x->header_count; i++) mem_free(x->headers[i].value);
    target_fini(&x->target);
    buf_fini(&x->body);
    buf_fini(&x->out);
    mem_free(x);
    *state = NULL;
}

static enum status check(struct exchange *x, struct error *e)
{
    struct http *h = x->http;
    struct gate g = {.probe = h->face == HTTP_PROBE, .hosts = (const char *const *)h->hosts};
    char allow[64] = "";
    enum status s;

    pthread_mutex_lock(&h->lock);
    g.token = h->token;
    s = gate_check(x, &g, e);
    if (s == STATUS_OK && x->error.status != STATUS_OK) { /* what target_read found */
        *e = x->error;
        s = e->status;
    }
    if (s == STATUS_OK) s = route_find(x, h->face, allow, e);
    if (s == STATUS_OK) s = gate_check_token(x, &g, e);
    pthread_mutex_unlock(&h->lock);
    if (allow[0] != '\0' && x->route == NULL) say_header(x, "Allow", "%s", allow);
    if (s == STATUS_OK) s = route_check_query(x, e);
    return s == STATUS_OK ? gate_check_body(x, e) : s;
}

/* Of whom, without the port: so that the lines about one machine are folded. */
static void host_of(const struct exchange *x, char out[INET6_ADDRSTRLEN])
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *from = info != NULL ? info->client_addr : NULL;
    const void *number = from == NULL ? NULL
                         : from->sa_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)(const void *)from)->sin6_addr
                         : (const void *)&((const struct sockaddr_in *)(const void *)from)->sin_addr;

    if (number == NULL || inet_ntop(from->sa_family, number, out, INET6_ADDRSTRLEN) == NULL) snprintf(out, INET6_ADDRSTRLEN, "?");
}

/* A page without one asks for it, so only one that was given counts. */
static void take_wrong_token(struct exchange *x)
{
    char host[INET6_ADDRSTRLEN];

    if (exchange_header(x, "Authorization") == NULL) return;
    if (line_wrong_token(x->line) >= WRONG_TOKENS_MAX) x->hang_up = true;
    host_of(x, host);
    log_warn("http", "%s gave a wrong token; --token-file holds the right one", host);
}

/* Headers are there, the body is not: everything that can be refused is refused now. */
static enum MHD_Result begin(struct exchange *x, const char *method)
{
    struct error e;

    x->begun = true;
    atomic_fetch_add(&x->http->active, 1);
    x->head = method;
    x->method = strcmp(method, "HEAD") == 0 ? "GET" : method;
    line_phase(x->line, LINE_WORKING);
    if (check(x, &e) == STATUS_OK) {
        if (x->has_body) line_phase(x->line, LINE_BODY);
        x->error.status = STATUS_OK;
        return MHD_YES;
    }
    x->hang_up = x->hang_up || x->has_body;
    if (e.reason == REASON_BAD_TOKEN) take_wrong_token(x);
    say_error(x, &e, NULL);
    /* An answer at this point ends the connection; one to a request without a body can wait for the next call. */
    return x->hang_up ? answer(x) : MHD_YES;
}

/* A body that is refused is still read for a while, or its sender would see a broken connection instead of a reason. */
static enum MHD_Result take_body(struct exchange *x, const char *bytes, size_t size)
{
    uint64_t most = gate_body_max(x->route);

    x->body_seen += size;
    if (!x->body_refused && x->body_seen > most) {
        error_set(&x->error, REASON_TOO_LARGE, "a body of more than %" PRIu64 " bytes", most);
        x->body_refused = true;
    } else if (!x->body_refused && !exchange_reserve(x, size)) {
        error_retry(&x->error, REASON_LIMIT, 1000, "bodies of other requests take all the memory there is for them");
        x->body_refused = true;
    }
    if (x->body_refused) return x->body_seen > most + THROWN_AWAY_MAX ? MHD_NO : MHD_YES;
    buf_add(&x->body, bytes, size);
    if (!x->body.failed) return MHD_YES;
    error_retry(&x->error, REASON_NO_MEMORY, 1000, "no memory for the body");
    x->body_refused = true;
    return MHD_YES;
}

static enum MHD_Result handle(void *ctx, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state)
{
    struct exchange *x = *state;

    (void)ctx;
    (void)c;
    (void)url; /* decoded by another hand, and cut at a NUL */
    (void)version;
    if (x == NULL) return MHD_NO;
    if (!x->begun) return begin(x, method);
    if (*upload_size > 0) {
        enum MHD_Result r = take_body(x, upload, *upload_size);
        *upload_size = 0;
        return r;
    }
    if (x->code != 0) return answer(x);
    line_phase(x->line, LINE_WORKING);
    if (x->body_refused) {
        x->hang_up = true;
        say_error(x, &x->error, NULL);
    } else {
        x->route->handle(x);
    }
    return answer(x);
}

static void connection(void *ctx, struct MHD_Connection *c, void **state, enum MHD_ConnectionNotificationCode what)
{
    struct http *h = ctx;

    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        atomic_fetch_sub(&h->counts->connections, 1);
        line_close(*state);
        return;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    atomic_fetch_add(&h->counts->connections, 1);
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof from;
    bool known = info != NULL && getpeername(info->connect_fd, (struct sockaddr *)&from, &size) == 0;
    *state = info != NULL ? line_open(h->reaper, info->connect_fd, known ? &from : NULL) : NULL;
}

/* Paths are decoded by target_read, from the raw text. */
static size_t leave_escaped(void *ctx, struct MHD_Connection *c, char *text)
{
    (void)ctx;
    (void)c;
    return strlen(text);
}

static void complain(void *ctx, const char *format, va_list args)
{
    char line[300];

    (void)ctx;
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = '\0';
    log_debug("http", "%s", line);
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* HOST:PORT in parts. The host is as written, an IPv6 number in brackets; *port for net_bind. */
static enum status split(const char *address, char host[HOST_SIZE], unsigned *port, struct error *e)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;

    if (colon != NULL && colon != address && colon - address < HOST_SIZE && isdigit((unsigned char)colon[1])) {
        unsigned long number = strtoul(colon + 1, &end, 10);
        if (*end == '\0' && number <= UINT16_MAX) {
            *port = (unsigned)number;
            memcpy(host, address, (size_t)(colon - address));
            host[colon - address] = '\0';
            return STATUS_OK;
        }
    }
    return error_set(e, REASON_BAD_ARGUMENT, "'%s' is no HOST:PORT, such as 127.0.0.1:7780", address);
}

/* Sockets that listen at every address of the host. */
static enum status listen_on(const char *host, unsigned port, struct net_sockets *out, struct error *e)
{
    char plain[HOST_SIZE];
    size_t size = strlen(host);
    bool bracketed = host[0] == '[' && host[size - 1] == ']';

    snprintf(plain, sizeof plain, "%.*s", (int)(size - (bracketed ? 2 : 0)), host + bracketed);
    enum status s = net_bind(plain, port, out, e);
    for (unsigned i = 0; i < out->count && s == STATUS_OK; i++)
        if (listen(out->fd[i], 128) != 0)
            s = error_set(e, REASON_SYSTEM, "cannot listen on %s: %s", host, strerror(errno));
    if (s != STATUS_OK) net_close(out);
    return s;
}

/* A share of the descriptors there are, so that the other doors and what the daemon opens itself keep theirs. At its
 * limit libmicrohttpd stops accepting and the kernel's queue waits; without descriptors it would spin. */
static unsigned connections_of(unsigned wanted, unsigned share)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / share >= wanted) return wanted;
    unsigned few = (unsigned)files.rlim_cur / share / ADMIN_THREADS * ADMIN_THREADS;
    return few > 2 * ADMIN_THREADS ? few : 2 * ADMIN_THREADS;
}

/* Their threads are joined; the sockets are closed. */
static void stop_daemons(struct http *h)
{
    while (h->daemon_count > 0) MHD_stop_daemon(h->daemons[--h->daemon_count]);
}

static unsigned connections_max(enum http_face face)
{
    return face == HTTP_ADMIN ? connections_of(ADMIN_CONNECTIONS, 8) : connections_of(PROBE_CONNECTIONS, 16);
}

/* One for an address. The reaper keeps the connections of all of them together below the limit that each has. */
static struct MHD_Daemon *start_daemon(struct http *h, int fd)
{
    bool admin = h->face == HTTP_ADMIN;
    unsigned most = connections_max(h->face);
    struct MHD_OptionItem pool[] = {{MHD_OPTION_THREAD_POOL_SIZE, ADMIN_THREADS, NULL}, {MHD_OPTION_END, 0, NULL}};

    return MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0, NULL, NULL, handle, h,
        MHD_OPTION_EXTERNAL_LOGGER, complain, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_CONNECTION_LIMIT, most, MHD_OPTION_CONNECTION_TIMEOUT, SILENT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES, MHD_OPTION_UNESCAPE_CALLBACK, leave_escaped, NULL,
        MHD_OPTION_URI_LOG_CALLBACK, begin_request, h, MHD_OPTION_NOTIFY_COMPLETED, end_request, h,
        MHD_OPTION_NOTIFY_CONNECTION, connection, h, MHD_OPTION_ARRAY, admin ? pool : pool + 1, MHD_OPTION_END);
}

/* libmicrohttpd listens at one socket, so a name with two addresses has two of its daemons. */
static enum status start(struct http *h, const char *address, struct error *e)
{
    struct net_sockets sockets;
    char host[HOST_SIZE];
    unsigned port = 0;
    enum status s = split(address, host, &port, e);

    if (s != STATUS_OK) return s;
    h->hosts[0] = mem_text(host, strlen(host));
    s = listen_on(host, port, &sockets, e);
    if (s != STATUS_OK) return s;
    snprintf(h->url, sizeof h->url, "http://%s:%u", host, sockets.port);
    for (unsigned i = 0; i < sockets.count; i++) {
        struct MHD_Daemon *d = s == STATUS_OK ? start_daemon(h, sockets.fd[i]) : NULL;
        if (d != NULL) {
            h->daemons[h->daemon_count++] = d;
            continue;
        }
        close(sockets.fd[i]);
        s = error_set(e, REASON_SYSTEM, "libmicrohttpd did not start on %s", address);
    }
    if (s != STATUS_OK) stop_daemons(h);
    return s;
}

static void http_free(struct http *h)
{
    if (h == NULL) return;
    mailbox_withdraw(h->config.mailbox, &h->beat);
    reaper_stop(h->reaper);
    door_close(h->door);
    door_free(h->door);
    http_counts_drop(h->counts);
    http_counts_drop(h->shown);
    json_decref(h->last_stats);
    networks_free(h->networks);
    for (size_t i = 0; i < HOSTS_MAX; i++) mem_free(h->hosts[i]);
    mem_free(h->token);
    pthread_mutex_destroy(&h->lock);
    mem_free(h);
}

/* hosts[0] is kept for the host of the address, which is set last. */
static enum status copy_config(struct http *h, const struct http_config *c, struct error *e)
{
    size_t count = 1;

    h->config = *c;
    h->beat.open = beat_opened;
    h->counts = http_counts_new();
    if (h->face == HTTP_ADMIN) h->networks = networks_new();
    if (h->counts == NULL || (h->face == HTTP_ADMIN && h->networks == NULL))
        return error_set(e, REASON_NO_MEMORY, "no memory for the HTTP server");
    h->shown = http_counts_hold(c->beside != NULL ? c->beside->counts : h->counts);
    for (size_t i = 0; i < sizeof c->hosts / sizeof c->hosts[0]; i++)
        if (c->hosts[i] != NULL) h->hosts[count++] = mem_text(c->hosts[i], strlen(c->hosts[i]));
    return http_set_token(h, c->token, e);
}

enum status http_start(const struct http_config *c, enum http_face face, const char *address, struct http **out,
                       struct error *e)
{
    struct http *h = mem_zero(sizeof *h);
    enum status s;

    if (h == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the HTTP server");
    pthread_mutex_init(&h->lock, NULL);
    h->face = face;
    s = copy_config(h, c, e);
    if (s == STATUS_OK) s = door_open(c->server, c->mailbox, c->token, &h->door, e);
    /* Below libmicrohttpd's own limit, where a new connection would wait outside for an old one to end. */
    struct reaper_bounds bounds = {.of_one = CONNECTIONS_OF_ONE, .of_all = connections_max(face) * 3 / 4};
    if (s == STATUS_OK) s = reaper_start(h->counts->cuts, bounds, &h->reaper, e);
    if (s == STATUS_OK) s = start(h, address, e);
    if (s == STATUS_OK) *out = h;
    else http_free(h);
    return s;
}

const char *http_url(const struct http *h) { return h->url; }
void http_set_ready(struct http *h, bool ready) { atomic_store(&h->ready, ready); }
void http_drain(struct http *h) { reaper_drain(h->reaper); }
bool http_idle(const struct http *h) { return atomic_load(&h->active) == 0; }

enum status http_set_token(struct http *h, const char *token, struct error *e)
{
    char *mine = token != NULL ? mem_text(token, strlen(token)) : NULL, *old;

    if (token != NULL && mine == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the token");
    pthread_mutex_lock(&h->lock);
    old = h->token;
    h->token = mine;
    pthread_mutex_unlock(&h->lock);
    mem_free(old);
    return STATUS_OK;
}

void http_stop(struct http *h)
{
    if (h == NULL) return;
    int fd[NET_SOCKETS_MAX];
    const unsigned count = h->daemon_count;

    for (unsigned i = 0; i < count; i++) fd[i] = MHD_quiesce_daemon(h->daemons[i]);
    /* Before the threads are joined: those that wait for the core, on whose thread this runs, come back at once. */
    door_close(h->door);
    stop_daemons(h);
    for (unsigned i = 0; i < count; i++)
        if (fd[i] >= 0) close(fd[i]);
    http_free(h);
}
