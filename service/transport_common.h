/* What the two doors share: the head of struct transport, addresses, and the tasks by which a connection is ended
 * only when no call of the server is on the stack. For service/transport_*.c. */
#ifndef SERVICE_TRANSPORT_COMMON_H
#define SERVICE_TRANSPORT_COMMON_H

#include "service/transport.h"

#include <sys/socket.h>
#include <sys/un.h>

struct transport_ops {
    uint64_t (*tick)(struct transport *t, uint64_t now_ms);
    void (*drain)(struct transport *t);
    bool (*idle)(const struct transport *t);
    unsigned (*connections)(const struct transport *t);
    uint64_t (*refused)(const struct transport *t);
    void (*close)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    struct transport_config config;
    char *url;                   /* as bound */
    unsigned port;
    uint64_t refused;
};

enum { HOST_SIZE_MAX = 255, TEXT_ADDRESS_SIZE = 160 };

/* A door's address in parts. */
struct address {
    bool ipc;
    char host[HOST_SIZE_MAX + 1];                        /* as written, without brackets; "*" is every interface */
    unsigned port;
    char path[sizeof ((struct sockaddr_un *)0)->sun_path];
};

/* tcp://HOST:PORT, ipc://PATH, unix://PATH. */
enum status address_parse(const char *url, struct address *out, struct error *e) MUST_CHECK;
/* A stream socket bound to the address, not yet listening; a->port becomes the real one. Names are resolved, which may
 * wait: at start only. The path of a Unix socket must be free (unix_path_clear). */
enum status address_bind(struct address *a, int *fd, struct error *e) MUST_CHECK;
/* Removes a Unix socket that nobody answers on any more; a living one is an error. */
enum status unix_path_clear(const char *path, struct error *e) MUST_CHECK;
/* The address as a URL. NULL without memory; for mem_free. */
char *address_url(const struct address *a);
/* "tcp://192.0.2.1:4711", or "unix:uid=1000,pid=17" from the credentials of fd's peer. */
void address_of_peer(int fd, const struct sockaddr_storage *from, char out[TEXT_ADDRESS_SIZE]);

/* Sets the fields above; what config leaves open gets its default. */
void transport_init(struct transport *t, const struct transport_ops *ops, const struct transport_config *config);

#endif
