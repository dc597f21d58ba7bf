/* What the two doors share: the head of struct transport, addresses, and the tasks by which a connection is ended
 * only when no call of the server is on the stack. For service/transport_*.c. */
#ifndef SERVICE_TRANSPORT_COMMON_H
#define SERVICE_TRANSPORT_COMMON_H

#include "service/base/net.h"
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
/* Sockets bound to every address of the host, not yet listening (net_bind); a->port becomes the real one. May wait for a
 * name: at start only. The path of a Unix socket must be free (unix_path_clear). */
enum status address_bind(struct address *a, struct net_sockets *out, struct error *e) MUST_CHECK;
/* Removes a Unix socket that nobody answers on any more; a living one is an error. */
enum status unix_path_clear(const char *path, struct error *e) MUST_CHECK;
/* The address as a URL. NULL without memory; for mem_free. */
char *address_url(const struct address *a);
/* "tcp://192.0.2.1:4711", or "unix:uid=1000,pid=17" from the credentials of fd's peer. */
void address_of_peer(int fd, const struct sockaddr_storage *from, char out[TEXT_ADDRESS_SIZE]);

/* Sets the fields above; what config leaves open gets its default. */
/* Of a host that is gone with bytes on their way to it (TCP_USER_TIMEOUT). Long, because the kernel sees no motion in a
 * reader whose window is smaller than a segment; our own deadlines see it. */
enum { HOST_GONE_MS = 10 * PROGRESS_MS };

/* Bytes of one direction of a connection, as deadlines see them. */
struct motion {
    bool busy;                   /* there was something to move when it was last looked at */
    uint64_t since_ms;           /* when it last moved by enough, and the bytes then */
    uint64_t bytes;
};

/* Has nothing moved for PROGRESS_MS although there is something to move? Fewer bytes than PROGRESS_SIZE_MIN do not
 * count: what a peer begins it has to go on with. */
bool motion_stands(struct motion *m, bool busy, uint64_t bytes, uint64_t now_ms);

/* So many connections were refused or ended for this fault of the peer. */
void transport_count_refused(struct transport *t, enum reason why, uint64_t count);
/* Is the turn's work spent? */
bool transport_is_spent(const struct transport *t);
void transport_init(struct transport *t, const struct transport_ops *ops, const struct transport_config *config);

#endif
