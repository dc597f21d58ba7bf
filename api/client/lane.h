/* Lanes: a link, its HELLO, and the requests in flight on it. Part of the engine; not for others. */
#ifndef API_CLIENT_LANE_H
#define API_CLIENT_LANE_H

#include "api/client/op.h"

enum lane_state { LANE_CLOSED, LANE_OPENING, LANE_HELLO, LANE_UP };

struct lane {
    struct engine *engine;
    struct link *link;           /* lent */
    unsigned roles;              /* bits 1 << enum role */
    enum lane_state state;
    bool front;                  /* it goes, or went last, to the front door */
    unsigned attempts;           /* that failed since it was up */
    uint64_t open_at;            /* closed: when to try again */
    uint64_t since;              /* of its state */
    uint64_t down_since;
    uint64_t heard;              /* last sign of life while something was in flight */
    struct error why;            /* of the last failure */
    struct call *hello;
    struct call *held;           /* made, but there was no room */
    struct call *placing;        /* whose answer is being read into memory of the caller */
    struct list flight;          /* in the order in which they were sent */
    struct list again;           /* to be repeated before anything new, in that order */
    struct list later;           /* refused for now */
    unsigned flights, bulk_flights, alone_flights;
    unsigned unsent;             /* of flights: not given to the kernel yet */
};

enum {
    BULK_OPEN_MS = 2000,         /* then data goes through the front door */
    MUTE_MS = 10000,             /* without a sign of life while something is in flight: the link is built anew */
    BACKOFF_MS = 50,             /* doubles */
    BACKOFF_MAX_MS = 1000,
    WAITS_IN_FLIGHT = 48         /* small ones; WAITS_MAX leaves room for other handles of the same worker */
};

/* Opens, says HELLO, gives up: whatever is due. Answers when something is due next. */
uint64_t lane_tick(struct lane *l);
void lane_up(struct lane *l);
/* The link is closed and will be opened again; what was in flight will be repeated. */
void lane_reset(struct lane *l, const struct error *why);
/* Sends what waits on the lane and asks operations for more while there is room. */
void lane_pump(struct lane *l);
void lane_hello_answer(struct lane *l, const struct incoming *in, const struct error *why);
struct call *lane_find(struct lane *l, uint32_t id);
/* Takes a call out of flight. */
void lane_land(struct lane *l, struct call *c);
/* Ends the calls of an operation that are not in flight. */
void lane_drop(struct lane *l, struct op *op, const struct error *why);
/* The call is over. */
void call_close(struct call *c);

#endif
