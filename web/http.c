#include "web/http.h"

#include "service/base/log.h"
#include "service/base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_MS = 2000, CONNECTIONS = 64, IDLE_S = 15 };

struct http {
    struct http_config config;
    enum http_face face;
    struct MHD_Daemon *daemon;
    char url[300];
    _Atomic bool ready;
};

/* ---- asking the core -------------------------------------------------------------------------------------------- */

/* Counted: the web thread may stop waiting before the core has answered. */
struct question {
    struct mail mail;
    struct server *server;
    void (*ask)(const struct server *s, struct buf *out);
    struct buf answer;
    pthread_mutex_t lock;            /* guards answered */
    pthread_cond_t changed;
    bool answered;
    _Atomic int holds;
};

static void question_drop(struct question *q)
{
    if (atomic_fetch_sub(&q->holds, 1) > 1) return;
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
    buf_fini(&q->answer);
    mem_free(q);
}

static void question_open(struct mail *m)
{
    struct question *q = CONTAINER_OF(m, struct question, mail);

    q->ask(q->server, &q->answer);
    pthread_mutex_lock(&q->lock);
    q->answered = true;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
    question_drop(q);
}

static bool wait_answered(struct question *q)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ANSWER_MS / 1000;
    pthread_mutex_lock(&q->lock);
    while (!q->answered)
        if (pthread_cond_timedwait(&q->changed, &q->lock, &until) != 0) break;
    bool answered = q->answered;
    pthread_mutex_unlock(&q->lock);
    return answered;
}

/* What `ask` writes on the core thread. false: the core is too busy, or there is no memory. */
static bool ask_core(struct http *h, void (*ask)(const struct server *, struct buf *), struct buf *out)
{
    struct question *q = mem_zero(sizeof *q);
    bool answered;

    if (q == NULL) return false;
    q->mail.open = question_open;
    q->server = h->config.server;
    q->ask = ask;
    atomic_store(&q->holds, 2);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    if (!mailbox_request(h->config.mailbox, &q->mail)) {
        question_drop(q);
        question_drop(q);
        return false;
    }
    answered = wait_answered(q);
    if (answered && !q->answer.failed) {
        *out = q->answer;
        q->answer = (struct buf){0};
    } else {
        answered = false;
    }
    question_drop(q);
    return answered;
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

static enum MHD_Result respond(struct MHD_Connection *c, unsigned code, const char *type, const void *at, size_t size)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(size, (void *)(uintptr_t)at, MHD_RESPMEM_MUST_COPY);

    if (r == NULL) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (code == 405) MHD_add_response_header(r, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result problem(struct MHD_Connection *c, enum reason reason, unsigned code, const char *detail)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "{\"type\": \"/problems/%s\", \"title\": \"%s\", \"status\": %u, \"code\": \"%s\", "
                     "\"detail\": \"%s\"}\n", reason_code(reason), reason_title(reason), code, reason_code(reason), detail);
    return respond(c, code, "application/problem+json", text, n > 0 ? (size_t)n : 0);
}

static enum MHD_Result text(struct MHD_Connection *c, unsigned code, const char *words)
{
    return respond(c, code, "text/plain; charset=utf-8", words, strlen(words));
}

static enum MHD_Result get_info(struct http *h, struct MHD_Connection *c)
{
    struct buf out = {0};

    if (!ask_core(h, server_info, &out))
        return problem(c, REASON_LIMIT, 503, "the daemon is too busy to answer; try again");
    buf_text(&out, "\n");
    enum MHD_Result r = respond(c, 200, "application/json", out.at, out.size);
    buf_fini(&out);
    return r;
}

static enum MHD_Result get_livez(struct http *h, struct MHD_Connection *c)
{
    (void)h;
    return text(c, 200, "alive\n");
}

static enum MHD_Result get_readyz(struct http *h, struct MHD_Connection *c)
{
    return atomic_load(&h->ready) ? text(c, 200, "ready\n") : text(c, 503, "not ready: starting or draining\n");
}

/* What can be got, one row a path. */
static const struct route {
    enum http_face face;
    const char *path;
    enum MHD_Result (*get)(struct http *h, struct MHD_Connection *c);
} routes[] = {
    {HTTP_ADMIN, "/v1/info", get_info},
    {HTTP_PROBE, "/livez", get_livez},
    {HTTP_PROBE, "/readyz", get_readyz},
};

static bool authorised(const struct http *h, struct MHD_Connection *c)
{
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    size_t size;
    unsigned char differ = 0;

    if (h->face == HTTP_PROBE || h->config.token == NULL) return true;
    if (given == NULL || strncmp(given, "Bearer ", 7) != 0) return false;
    size = strlen(h->config.token);
    if (strlen(given + 7) != size) return false;
    for (size_t i = 0; i < size; i++) differ |= (unsigned char)(given[7 + i] ^ h->config.token[i]);
    return differ == 0;
}

static enum MHD_Result handle(void *ctx, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state)
{
    static int seen;
    struct http *h = ctx;

    (void)version;
    (void)upload;
    if (*state == NULL) { /* the first call only says that headers are there */
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_size > 0) { /* a body nobody asked for is read and forgotten */
        *upload_size = 0;
        return MHD_YES;
    }
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (routes[i].face != h->face || strcmp(routes[i].path, url) != 0) continue;
        if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
            return problem(c, REASON_UNKNOWN_METHOD, 405, "only GET and HEAD are answered here");
        if (!authorised(h, c))
            return problem(c, REASON_BAD_TOKEN, 401, "give the token of the daemon's --token-file as Authorization: "
                           "Bearer TOKEN");
        return routes[i].get(h, c);
    }
    return problem(c, REASON_UNKNOWN_METHOD, 404, h->face == HTTP_ADMIN ? "nothing is here; try /v1/info"
                                                                        : "nothing is here; try /livez or /readyz");
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static enum status resolve(const char *address, struct sockaddr_storage *out, socklen_t *size, char *host, struct error *e)
{
    const char *colon = strrchr(address, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;

    if (colon == NULL || colon == address || colon - address > 200)
        return error_set(e, REASON_BAD_ARGUMENT, "'%s' is no HOST:PORT, such as 127.0.0.1:7780", address);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    char *plain = host;
    if (host[0] == '[' && host[strlen(host) - 1] == ']') {
        host[strlen(host) - 1] = '\0';
        plain = host + 1;
    }
    int why = getaddrinfo(plain, colon + 1, &hints, &found);
    if (why != 0) return error_set(e, REASON_BAD_ARGUMENT, "'%s': %s", address, gai_strerror(why));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *size = found->ai_addrlen;
    freeaddrinfo(found);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    return STATUS_OK;
}

static int listen_on(const struct sockaddr_storage *at, socklen_t size)
{
    int one = 1, fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)at, size) == 0 && listen(fd, 128) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static unsigned port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;

    if (getsockname(fd, (struct sockaddr *)&at, &size) != 0) return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&at)->sin6_port
                                          : ((struct sockaddr_in *)(void *)&at)->sin_port);
}

static void complain(void *ctx, const char *format, va_list args)
{
    char line[300];

    (void)ctx;
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = '\0';
    log_debug("http", "%s", line);
}

enum status http_start(const struct http_config *c, enum http_face face, const char *address, struct http **out,
                       struct error *e)
{
    struct sockaddr_storage at;
    socklen_t size = 0;
    char host[256];
    struct http *h = NULL;
    enum status s = resolve(address, &at, &size, host, e);

    if (s != STATUS_OK) return s;
    h = mem_zero(sizeof *h);
    if (h == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the HTTP server");
    h->config = *c;
    h->face = face;
    int fd = listen_on(&at, size);
    if (fd < 0) {
        s = error_set(e, REASON_SYSTEM, "cannot listen on %s: %s", address, strerror(errno));
        goto out;
    }
    snprintf(h->url, sizeof h->url, "http://%s:%u", host, port_of(fd));
    h->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, handle,
                                 h, MHD_OPTION_EXTERNAL_LOGGER, complain, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
                                 MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32 << 10, MHD_OPTION_END);
    if (h->daemon == NULL) {
        close(fd);
        s = error_set(e, REASON_SYSTEM, "libmicrohttpd did not start on %s", address);
        goto out;
    }
    *out = h;
    h = NULL; /* the caller's now */
out:
    mem_free(h);
    return s;
}

const char *http_url(const struct http *h) { return h->url; }
void http_set_ready(struct http *h, bool ready) { atomic_store(&h->ready, ready); }

void http_stop(struct http *h)
{
    if (h == NULL) return;
    MHD_stop_daemon(h->daemon);
    mem_free(h);
}
