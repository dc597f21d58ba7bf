/* A link: one connection of the client to one door, as the engine sees it (open, send, close, detach, discard) and as
 * the threads that drive it see it (watch, run, free). There are three kinds: our own SP engine, libnanomsg, and the
 * server inside this process.
 *
 * All calls are made under the handle's lock. A link reports by calling engine_link_up, engine_link_down, engine_place,
 * engine_answer and engine_progress, and only from inside `run`: never from inside the other calls, so the engine is
 * not entered twice. */
#ifndef API_CLIENT_LINK_H
#define API_CLIENT_LINK_H

#include "api/client/address.h"
#include "api/sp.h"

#include <poll.h>

enum { LINK_FDS_MAX = 2 };

struct engine;
struct link;

struct link_ops {
    /* Begins to connect; `run` reports how it went. Only for a link that is closed. */
    void (*open)(struct link *l, const struct address *to);
    /* Takes o until o->done, which may be called from inside. Only between up and close or down. */
    void (*send)(struct link *l, struct outgoing *o);
    /* Ends the connection at once: o->done(false) for what was not sent. Closing a closed one is nothing. */
    void (*close)(struct link *l);
    /* Bytes of `owner` that are still to be sent are copied aside. false: there was no memory for it. */
    bool (*detach)(struct link *l, const void *owner);
    /* The memory that the present body goes to will go. */
    void (*discard)(struct link *l);

    /* Fills what to poll for; answers how many. */
    unsigned (*watch)(struct link *l, struct pollfd fds[LINK_FDS_MAX]);
    /* Moves on: connects, sends what is queued and, when `readable`, receives. Answers when to run it again although
     * nothing was polled (UINT64_MAX: never). */
    uint64_t (*run)(struct link *l, uint64_t now_ms, bool readable);
    void (*free)(struct link *l);
};

/* What every link begins with. */
struct link {
    const struct link_ops *ops;
    struct engine *engine;       /* lent; set by engine_add_link */
    unsigned lane;               /* the engine's */
};

/* Our own engine for nanomsg's wire protocol, on non-blocking sockets. */
enum status link_sp_new(struct link **out, struct error *e) MUST_CHECK;
/* libnanomsg, a raw REQ socket. */
enum status link_nn_new(struct link **out, struct error *e) MUST_CHECK;
/* A private store: server and device live in the link. The device is what PARAMD_DEVICE says, as --device of the daemon,
 * but a library takes no GPU unless it is told to: left out it is the CPU. needs_gpu: left out it is the first GPU, and
 * where there is none NO_GPU says why. PARAMD_DEVICE_FULL is as --device-full, where the CPU is allowed at all. */
enum status link_direct_new(const uint8_t seed[16], bool needs_gpu, struct link **out, struct error *e) MUST_CHECK;

#endif
