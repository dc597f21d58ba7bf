/* A bounded mailbox: many threads post, one takes. A descriptor becomes readable when something lies in it, so the
 * taker can sleep in its event loop. Two kinds of mail: requests, which are refused when the box is full, and notices
 * (fences, disconnects, stop), whose nodes are preallocated by their senders and which are never refused. */
#ifndef SERVICE_BASE_MAILBOX_H
#define SERVICE_BASE_MAILBOX_H

#include "service/base/list.h"
#include "service/base/status.h"

struct mail {
    struct list_node node;                   /* the box's while posted */
    void (*open)(struct mail *m);            /* called by the taker; m is the sender's again */
};

struct mailbox;

enum status mailbox_new(size_t requests_max, struct mailbox **out, struct error *e) MUST_CHECK;
void mailbox_free(struct mailbox *b);                    /* what is still inside is not opened */
int mailbox_fd(const struct mailbox *b);                 /* readable: call mailbox_take */

/* Asked after each mail that mailbox_take opens: true leaves the rest for the next call. ctx is lent. */
void mailbox_bound(struct mailbox *b, bool (*is_spent)(void *ctx), void *ctx);

/* Any thread. A request to a full box: false, and m stays the sender's. */
bool mailbox_request(struct mailbox *b, struct mail *m);
/* Any thread. Posting a notice that is already in the box does nothing. */
void mailbox_notice(struct mailbox *b, struct mail *m);
/* Any thread. Takes m back if it is still inside: true, and it will not be opened. */
bool mailbox_withdraw(struct mailbox *b, struct mail *m);
/* The taker's thread: opens all that lies there, in order. What is posted while it runs, also from inside open, is left
 * for the next call, and the descriptor is readable again. */
void mailbox_take(struct mailbox *b);

#endif
