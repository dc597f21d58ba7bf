/* nanomsg's SP protocol (REQ/REP) on a stream socket, one side of one connection: 8 bytes of greeting each way, then
 * messages of an 8-byte big-endian length, a 4-byte request id with its top bit set, and a paramd frame. On a Unix
 * socket one byte 1 stands before each length. Used by the daemon's bulk door and by libparamd.
 *
 * A frame is taken in two steps: first its head, then `place` says where the body goes, so the bytes of a tensor are
 * read from the socket straight to where they are needed. Answers and requests are sent with writev from where they
 * lie. Nothing blocks: the caller polls and calls sp_read and sp_write.
 *
 * A frame that cannot be understood but whose length is known costs its sender only an error answer: the rest of it is
 * thrown away and `frame` is called with its status set. What breaks SP itself ends the connection.
 *
 * One thread at a time for one connection. Callbacks may call sp_send, sp_detach and sp_discard, nothing else here. */
#ifndef API_SP_H
#define API_SP_H

#include "api/wire.h"
#include "service/base/list.h"

enum {
    SP_REQ = 0x30,
    SP_REP = 0x31,
    SP_WRITE_TURN = 4 << 20          /* one fast reader of a long queue leaves the thread to others after so much */
};

/* A frame that has arrived, or its head. Lent for the time of the call. */
struct incoming {
    uint32_t id;                 /* request id, top bit set */
    enum status status;          /* not OK: the header failed a check, or no memory; *error tells. There is no body. */
    struct error *error;
    struct wire_header header;   /* zeroed when it could not be read */
    struct bytes fixed;          /* header.fixed_size bytes */
    struct bytes desc;           /* header.desc_size bytes */
    void *body;                  /* header.body_size bytes (0 too) once whole; NULL when thrown away */
    const void *const *values;   /* of a Push inside one process, in place of a body: values whose sum is meant */
    size_t value_count;
};

/* Where a body goes. */
enum placement {
    PLACE_SCRATCH,               /* the link's own memory, lent until `frame` returns */
    PLACE_AT,                    /* to *at, body_size bytes */
    PLACE_DROP                   /* nowhere; `frame` is called with body NULL all the same */
};

/* A run of bytes that is sent from where it lies. */
struct segment {
    const void *at;
    size_t size;
    const void *owner;           /* whom sp_detach means; NULL: nobody */
};

/* A frame on its way out. The sender fills it; from sp_send until `done` it belongs to the link. */
struct outgoing {
    struct list_node node;
    uint32_t id;
    struct buf head;             /* header, fixed fields, descriptors, gap */
    struct segment *segments;    /* the body */
    size_t segment_count;
    const void *const *values;   /* as incoming's; for a link that takes them */
    size_t value_count;
    /* sent: all of it went to the kernel. Otherwise the link is gone. The last call for this frame. */
    void (*done)(struct outgoing *o, bool sent);
    /* the link's: */
    uint8_t lead[16];
    size_t lead_size;
    uint64_t written;
    uint64_t size;
    struct buf copies;           /* of detached segments */
};

struct sp_handler {
    /* Once for each frame that has a body and whose head is good. *in is lent for the call. */
    enum placement (*place)(void *ctx, const struct incoming *in, void **at);
    void (*frame)(void *ctx, const struct incoming *in);
};

/* Memory that connections hold for frames half received and for copies of what is still to be sent. Several may share
 * one, which may be part of a larger one (`in`). */
struct sp_account {
    struct sp_account *in;       /* NULL: of none */
    size_t used, max;
};

/* Whether `size` more fit, and then they are counted. NULL counts nothing. */
bool sp_account_take(struct sp_account *a, size_t size);
void sp_account_give(struct sp_account *a, size_t size);

struct sp_conn;

/* Takes fd (non-blocking; closed by sp_free, or here when this fails). self is SP_REQ or SP_REP; the other side must be
 * the counterpart. ipc: the mapping for Unix sockets. frame_max bounds a message with its id. */
enum status sp_new(int fd, unsigned self, bool ipc, size_t frame_max, const struct sp_handler *handler, void *ctx,
                   struct sp_conn **out, struct error *e) MUST_CHECK;
/* Calls `done(false)` for what has not been sent. Not from a callback. NULL is nothing. */
void sp_free(struct sp_conn *c);
int sp_fd(const struct sp_conn *c);
/* From now on what it holds counts there, and frames that would need more are refused. Lent, for its life. Before the
 * first sp_read. */
void sp_set_account(struct sp_conn *c, struct sp_account *a);
/* Frames above `size` are refused for now, read over and answered; 0: only frame_max bounds them. For peers of whom
 * nothing is known yet. May be called from a callback. */
void sp_set_soft_max(struct sp_conn *c, size_t size);

/* Reads what is there, at most about `budget` bytes, and fewer when something waits to be sent, and calls the handler. OK:
 * go on. Anything else: the connection is over (UNREACHABLE: the peer closed; MALFORMED and TOO_LARGE: it broke the
 * protocol); *e tells why.
 *
 * A REP takes no further request while SEND_QUEUE_MAX bytes of answers wait. Requests that had come in with earlier
 * ones then lie here and not in the socket, and polling does not tell of them: see sp_wants_read. */
enum status sp_read(struct sp_conn *c, size_t budget, struct error *e) MUST_CHECK;
/* Sends what the kernel takes, at most about SP_WRITE_TURN bytes; sp_wants_write tells whether something is left. */
enum status sp_write(struct sp_conn *c, struct error *e) MUST_CHECK;
/* Queues a frame; nothing is written before sp_write. */
void sp_send(struct sp_conn *c, struct outgoing *o);
bool sp_wants_write(const struct sp_conn *c);
bool sp_wants_read(const struct sp_conn *c);     /* call sp_read when the queue is short, polled or not */
size_t sp_queued(const struct sp_conn *c);       /* bytes not yet given to the kernel */
bool sp_greeted(const struct sp_conn *c);
bool sp_in_frame(const struct sp_conn *c);       /* a message has begun and is not whole */
uint64_t sp_progress(const struct sp_conn *c);   /* bytes read and written so far; for deadlines */
uint64_t sp_received(const struct sp_conn *c);   /* those read */

/* The bytes of `owner` will change or go: what is still to be sent of them is copied aside. When that fails, the
 * connection is over: sp_read and sp_write touch none of the bytes any more and say so. */
enum status sp_detach(struct sp_conn *c, const void *owner, struct error *e) MUST_CHECK;
/* The memory that the present body goes to will go: the rest of it is thrown away, and `frame` gets body NULL. */
void sp_discard(struct sp_conn *c);
/* on: takes no further message, and leaves alone the memory of the frame that was handed over last, until it is called
 * with false; what has come by then is told of by sp_wants_read. May be called from a callback. */
void sp_hold(struct sp_conn *c, bool on);
bool sp_is_held(const struct sp_conn *c);
/* Called now and then (seconds): gives back memory that the frames since the last call did not need. */
void sp_trim(struct sp_conn *c);

#endif
