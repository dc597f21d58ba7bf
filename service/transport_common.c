#include "service/transport_common.h"

#include "service/base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DESCRIPTORS_OF_DAEMON = 28,      /* what it opens besides connections */
    ADDRESS_ALONE = 64               /* connections that one address may have though they are more than a quarter */
};

/* ---- the doors' common face ----------------------------------------------------------------------------------- */

static const struct transport_server server_calls = {server_peer_new, server_peer_gone, server_place, server_frame,
                                                    server_count_refused, server_is_spent};

/* A door's share of the process's descriptors; HTTP takes as little as an eighth. When they run out, libnanomsg's thread
 * spins. */
static unsigned within_descriptors(unsigned wanted)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur <= DESCRIPTORS_OF_DAEMON ||
        (files.rlim_cur - DESCRIPTORS_OF_DAEMON) / 3 >= wanted)
        return wanted;
    return (unsigned)(files.rlim_cur - DESCRIPTORS_OF_DAEMON) / 3;
}

/* A quarter, so that none can take them all; but one machine may be all there is. */
static unsigned of_one_address(const struct transport_config *given, unsigned max)
{
    if (given->connections_max != 0 || max < ADDRESS_ALONE) return max;
    return max / 4 > ADDRESS_ALONE ? max / 4 : ADDRESS_ALONE;
}

void transport_init(struct transport *t, const struct transport_ops *ops, const struct transport_config *config)
{
    t->ops = ops;
    t->config = *config;
    if (t->config.calls == NULL) t->config.calls = &server_calls;
    if (t->config.connections_max == 0) t->config.connections_max = CONNECTIONS_MAX;
    t->config.connections_max = within_descriptors(t->config.connections_max);
    if (t->config.address_max == 0) t->config.address_max = of_one_address(config, t->config.connections_max);
}

bool transport_is_spent(const struct transport *t)
{
    return t->config.calls->is_spent != NULL && t->config.calls->is_spent(t->config.server);
}

void transport_count_refused(struct transport *t, enum reason why, uint64_t count)
{
    t->refused += count;
    if (count > 0 && t->config.calls->refused != NULL) t->config.calls->refused(t->config.server, why, count);
}

const char *transport_url(const struct transport *t) { return t->url; }
unsigned transport_port(const struct transport *t) { return t->port; }
unsigned transport_connections(const struct transport *t) { return t->ops->connections(t); }
uint64_t transport_refused(const struct transport *t) { return t->ops->refused(t); }
uint64_t transport_tick(struct transport *t, uint64_t now_ms) { return t->ops->tick(t, now_ms); }
void transport_drain(struct transport *t) { t->ops->drain(t); }
bool transport_idle(const struct transport *t) { return t->ops->idle(t); }

void transport_close(struct transport *t)
{
    if (t != NULL) t->ops->close(t);
}

/* ---- deadlines ------------------------------------------------------------------------------------------------ */

bool motion_stands(struct motion *m, bool busy, uint64_t bytes, uint64_t now_ms)
{
    if (!busy || !m->busy || (bytes > m->bytes && bytes - m->bytes >= PROGRESS_SIZE_MIN))
        *m = (struct motion){.busy = busy, .since_ms = now_ms, .bytes = bytes};
    return now_ms - m->since_ms >= PROGRESS_MS;
}

/* ---- addresses ------------------------------------------------------------------------------------------------ */

static enum status parse_port(const char *text, struct address *out, struct error *e)
{
    char *end;
    unsigned long port = strtoul(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end != '\0' || port > 65535)
        return error_set(e, REASON_BAD_ARGUMENT, "\"%.40s\" is no port; 0 to 65535 are", text);
    out->port = (unsigned)port;
    return STATUS_OK;
}

static enum status parse_tcp(const char *rest, struct address *out, struct error *e)
{
    const char *colon = strrchr(rest, ':'), *start = rest;

    if (colon == NULL || colon == rest)
        return error_set(e, REASON_BAD_ARGUMENT, "\"tcp://%.200s\" has no port; tcp://HOST:PORT is expected", rest);
    size_t size = (size_t)(colon - rest);
    if (rest[0] == '[' && colon[-1] == ']') {
        start++;
        size -= 2;
    }
    if (size == 0 || size > HOST_SIZE_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "a host name has 1 to %d bytes", HOST_SIZE_MAX);
    memcpy(out->host, start, size);
    out->host[size] = '\0';
    return parse_port(colon + 1, out, e);
}

static enum status parse_path(const char *path, struct address *out, struct error *e)
{
    if (path[0] == '\0' || strlen(path) >= sizeof out->path)
        return error_set(e, REASON_BAD_ARGUMENT, "the path of a Unix socket has 1 to %zu bytes", sizeof out->path - 1);
    out->ipc = true;
    strcpy(out->path, path);
    return STATUS_OK;
}

enum status address_parse(const char *url, struct address *out, struct error *e)
{
    *out = (struct address){0};
    if (strncmp(url, "tcp://", 6) == 0) return parse_tcp(url + 6, out, e);
    if (strncmp(url, "ipc://", 6) == 0) return parse_path(url + 6, out, e);
    if (strncmp(url, "unix://", 7) == 0) return parse_path(url + 7, out, e);
    return error_set(e, REASON_BAD_ARGUMENT, "\"%.200s\" is no address of a door; tcp://HOST:PORT or ipc:///PATH is",
                     url);
}

char *address_url(const struct address *a)
{
    char text[HOST_SIZE_MAX + 32];
    const char *form = strchr(a->host, ':') != NULL ? "tcp://[%s]:%u" : "tcp://%s:%u";
    int n;

    if (a->ipc) n = snprintf(text, sizeof text, "ipc://%s", a->path);
    else n = snprintf(text, sizeof text, form, a->host, a->port);
    return mem_text(text, (size_t)n);
}

void address_of_peer(int fd, const struct sockaddr_storage *from, char out[TEXT_ADDRESS_SIZE])
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    struct ucred who = {.pid = 0, .uid = (uid_t)-1};
    socklen_t size = sizeof who;

    if (from->ss_family == AF_UNIX) {
        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
        snprintf(out, TEXT_ADDRESS_SIZE, "unix:uid=%u,pid=%d", who.uid, who.pid);
        return;
    }
    if (getnameinfo((const struct sockaddr *)from, sizeof *from, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(out, TEXT_ADDRESS_SIZE, "tcp://?");
        return;
    }
    const char *form = strchr(host, ':') != NULL ? "tcp://[%.100s]:%.8s" : "tcp://%.100s:%.8s";
    snprintf(out, TEXT_ADDRESS_SIZE, form, host, port);
}

/* ---- sockets -------------------------------------------------------------------------------------------------- */

static int unix_address(const char *path, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path, path, strlen(path) + 1);       /* address_parse has measured it */
    return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

/* Only a socket is ever removed, and only when connecting is refused: a full backlog answers EAGAIN and is alive. */
enum status unix_path_clear(const char *path, struct error *e)
{
    struct sockaddr_un to;
    struct stat file;
    enum status s = STATUS_OK;

    if (lstat(path, &file) != 0) return STATUS_OK;
    if (!S_ISSOCK(file.st_mode))
        return error_set(e, REASON_BAD_ARGUMENT, "%s exists and is no socket; give another path", path);
    int fd = unix_address(path, &to);
    if (fd < 0) return error_set(e, REASON_SYSTEM, "no socket: %s", strerror(errno));
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 || errno != ECONNREFUSED)
        s = error_set(e, REASON_SYSTEM, "%s is in use by another process; end it or give another path", path);
    else if (unlink(path) != 0)
        s = error_set(e, REASON_SYSTEM, "the old socket %s cannot be removed: %s", path, strerror(errno));
    close(fd);
    return s;
}

static enum status bind_unix(struct address *a, struct net_sockets *out, struct error *e)
{
    struct sockaddr_un to;
    int fd = unix_address(a->path, &to);

    if (fd < 0) return error_set(e, REASON_SYSTEM, "no socket: %s", strerror(errno));
    if (bind(fd, (const struct sockaddr *)&to, sizeof to) != 0) {
        enum status s = error_set(e, REASON_SYSTEM, "cannot listen on %s: %s", a->path, strerror(errno));
        close(fd);
        return s;
    }
    *out = (struct net_sockets){.fd = {fd}, .count = 1};
    return STATUS_OK;
}

enum status address_bind(struct address *a, struct net_sockets *out, struct error *e)
{
    if (a->ipc) return bind_unix(a, out, e);
    enum status s = net_bind(a->host, a->port, out, e);
    if (s == STATUS_OK) a->port = out->port;
    return s;
}
