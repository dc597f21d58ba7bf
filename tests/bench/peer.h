/* Peers of the store benchmark: servers that take values and give them back, and their clients.
 *
 * A row of the table is a job. For every peer the benchmark starts a fresh server and `clients` client processes; each
 * opens a client here and is told to run operations. Operation `op` of a job touches keys_per_op keys from
 * op * keys_per_op on; all clients push the same numbers to the same keys. */
#ifndef TESTS_BENCH_PEER_H
#define TESTS_BENCH_PEER_H

#include "tests/bench/bench.h"

enum work { WORK_PUSH, WORK_PULL, WORK_BOTH };
enum answer { ANSWER_RECORDED, ANSWER_APPLIED };

enum { PAYLOAD_MAX = 64 << 20, ADDRESS_MAX = 128 };

struct job {
    enum work work;
    enum answer answer;          /* what a push waits for, where a peer knows the difference */
    unsigned clients;
    unsigned depth;              /* operations of one client under way; 1 for WORK_BOTH and ANSWER_APPLIED */
    unsigned keys, keys_per_op;
    size_t size;                 /* bytes of a key; keys * size is at most PAYLOAD_MAX */
};

static inline unsigned job_ops(const struct job *j) { return j->keys / j->keys_per_op; }    /* distinct ones */
static inline size_t job_op_size(const struct job *j) { return j->size * j->keys_per_op; }
static inline size_t job_size(const struct job *j) { return j->size * j->keys; }

/* What every client begins with. */
struct peer_client {
    const struct job *job;
    const char *address;         /* of the server */
    unsigned number;             /* of the client, from 0 */
    float *grad;                 /* job_size bytes that pushes send */
    float *out;                  /* the same for pulls */
    uint64_t lost;               /* answers that never came */
};

struct peer {
    const char *name;
    size_t frame_max;            /* a value travels in pieces of at most so many bytes; 0: in one */
    bool sums;                   /* pushes add up; else the last one is held */
    bool own_memory;             /* every client has values of its own */
    bool many_keys;              /* only in rows with several keys an operation */
    const char *checksum;        /* of frames */
    const char *pushed;          /* what the answer to a push means */
    const char *pulled;

    /* Starts a server as a child and writes where it listens. false: not on this machine, and *pid is 0. */
    bool (*start)(char address[ADDRESS_MAX], pid_t *pid);

    /* The calls of a client process; c is `client_size` zeroed bytes that begin with a struct peer_client. begin sends
     * one operation, finish waits for the oldest one and is told the same. A failure ends the process. */
    size_t client_size;
    void (*open)(struct peer_client *c);
    void (*begin)(struct peer_client *c, enum work w, unsigned op);
    void (*finish)(struct peer_client *c, enum work w, unsigned op);
    void (*settle)(struct peer_client *c);       /* waits until all own pushes are applied; may be NULL */
};

extern const struct peer peer_paramd, peer_tcp, peer_tcp_adds, peer_tcp_keys, peer_nanomsg, peer_redis;

/* Loopback sockets: answer or end the process. */
int tcp_listen(unsigned *port);
int tcp_connect(unsigned port);
/* Starts a server for a peer's `start`: a thread for each connection, which is given the descriptor in a pointer. */
bool tcp_start(void *(*serve_fd)(void *fd), char address[ADDRESS_MAX], pid_t *pid);
void tcp_set_up(int fd);
/* Whole buffers. false: the other end is gone. Reads take 64 KiB at a time, which stay in the cache until they are
 * copied on. */
bool tcp_read(int fd, void *to, size_t size);
bool tcp_write(int fd, const void *head, size_t head_size, const void *body, size_t body_size);

#endif
