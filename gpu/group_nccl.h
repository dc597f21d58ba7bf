/* A group by NCCL, over GPUs of one machine or of several. Stand-in only: it has run with tests/cusim, never on a
 * GPU.
 *
 * NCCL is opened when first wanted (never linked); what is used of it is declared here, so that
 * nothing has to be installed to build. It knows bare addresses and streams, so a member is a CUDA device, whose
 * thread makes the calls, in the order of a queue (device_queue_call).
 *
 * Nothing waits for a rank that may never come: communicators do not block, and group_look asks each for its errors.
 * Where one fails, or group_abort is called, the communicators of all members are aborted; that lets go what waits
 * on their streams, so marks pass and queues can be freed. Ranks elsewhere see it as an error of their own, or are
 * told by whoever keeps the list of members.
 *
 * NCCL's sockets are open to who can reach them: set NCCL_SOCKET_IFNAME to a network of one's own. */
#ifndef GPU_GROUP_NCCL_H
#define GPU_GROUP_NCCL_H

#include "gpu/group.h"

/* As nccl.h has it (2.14 and later). */
enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_SUM = 0 };
enum { NCCL_TYPE_U8 = 1, NCCL_TYPE_F32 = 7, NCCL_TYPE_F64 = 8 };
struct nccl_id { char bytes[128]; };
/* The beginning of NCCL's own, which goes by the size and the version how much of it there is. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu
enum { NCCL_CONFIG_VERSION = 21400 };

/*    result, name, arguments */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(int, GetUniqueId, (struct nccl_id *id))                                                                          \
    X(int, CommInitRankConfig, (void **comm, int ranks, struct nccl_id id, int rank, struct nccl_config *config))      \
    X(int, CommGetAsyncError, (void *comm, int *error))                                                                \
    X(int, CommAbort, (void *comm))                                                                                    \
    X(int, CommDestroy, (void *comm))                                                                                  \
    X(const char *, GetErrorString, (int error))                                                                       \
    X(int, Reduce, (const void *from, void *to, size_t count, int type, int op, int root, void *comm, void *stream))   \
    X(int, AllReduce, (const void *from, void *to, size_t count, int type, int op, void *comm, void *stream))          \
    X(int, Broadcast, (const void *from, void *to, size_t count, int type, int root, void *comm, void *stream))        \
    X(int, ReduceScatter, (const void *from, void *to, size_t count, int type, int op, void *comm, void *stream))      \
    X(int, AllGather, (const void *from, void *to, size_t count, int type, void *comm, void *stream))

struct nccl {
#define NCCL_FIELD(result, name, arguments) result (*name) arguments;
    NCCL_FUNCTIONS(NCCL_FIELD)
#undef NCCL_FIELD
};

/* Opens NCCL, which is libnccl.so.2 or what PARAMD_NCCL says (NCCL of pip lies where the loader does not look); it stays
 * until the process ends. UNIMPLEMENTED: there is none here, or one that lacks a function. */
enum status nccl_open(struct nccl *out, struct error *e) MUST_CHECK;
/* An id for one group, to be handed to all its ranks. Needs no GPU; it opens a listening socket. */
enum status nccl_id_new(const struct nccl *n, struct nccl_id *out, struct error *e) MUST_CHECK;

struct nccl_group {
    const struct nccl *nccl;         /* lent; must outlive the group */
    struct nccl_id id;
    unsigned ranks, first, count;    /* of them, what this process brings */
    struct queue *const *queues;     /* one for each member; only for the call */
    uint64_t join_by_ms;
};

/* Begins to join; group_look tells when all are there. */
enum status group_nccl_new(const struct nccl_group *g, struct group **out, struct error *e) MUST_CHECK;

#endif
