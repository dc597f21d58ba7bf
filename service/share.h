/* What one client has of what all clients share. Its session holds it, and so do its workers, the values that it has
 * begun to send and the rounds that it has opened, some of which outlive the session. Core thread only. */
#ifndef SERVICE_SHARE_H
#define SERVICE_SHARE_H

#include <stdint.h>

struct share {
    unsigned holds;
    uint64_t staging;            /* bytes of staging memory, used and reserved */
    uint32_t stagings;           /* values that have begun to arrive */
    uint32_t stores;             /* that it has created and that are there */
    uint32_t conditions;         /* of its Waits that hang */
    uint64_t slow_ms;            /* when a value of it was last dropped because it came too slowly; 0: never */
};

struct share *share_new(void);                   /* held once; NULL: no memory */
struct share *share_hold(struct share *s);       /* NULL is nothing, here and below */
void share_drop(struct share *s);
/* Bytes of staging memory more, or less. */
void share_add(struct share *s, int64_t bytes);

#endif
