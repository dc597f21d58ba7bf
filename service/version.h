/* The values of a key. A value is an immutable, counted version: a step reads version v and writes v + 1 into a spare
 * buffer, and the newest is published by one pointer. So a reader never sees half an update and never holds one up.
 *
 * A key normally has two buffers. While readers hold old versions there are up to `versions_max`; a step that finds no
 * buffer then takes the oldest from its readers, who are told (ABORTED) and begin again. */
#ifndef SERVICE_VERSION_H
#define SERVICE_VERSION_H

#include "service/core.h"

struct key;

struct version {
    struct list_node node;       /* key->versions (readable, oldest first) or key->spares */
    struct key *key;
    struct dmem mem;
    void *host;                  /* the bytes for the CPU: mem.host, or a copy fetched once; NULL: not fetched */
    void *pin;                   /* memory of that copy */
    uint64_t number;
    unsigned holds;              /* readers */
    unsigned pins;               /* of them, clients that pull it in parts */
    unsigned lent;               /* of them, work of the device: its memory cannot be taken */
    bool revoked;                /* its memory is gone; only the struct lives for its readers */
    bool fetching;
};

/* A buffer for the next version, from the spares, new, or from the oldest readers. */
enum status version_acquire(struct key *k, struct version **out, struct error *e) MUST_CHECK;
/* Makes v the newest. */
void version_publish(struct key *k, struct version *v, uint64_t number);
/* Gives an acquired one back unused. */
void version_release(struct version *v);

/* Holds the key, too. */
struct version *version_hold(struct version *v);
void version_drop(struct version *v);        /* NULL is nothing */
/* The held version with this number; NULL: no longer there. */
struct version *version_find(struct key *k, uint64_t number);

/* Runs t when v->host is there: at once when the device's memory is the CPU's, else after one copy down, which all
 * readers of the version share. The caller holds v. */
void version_fetch(struct version *v, struct task *t);
/* To be called first by t->run when it was told OK. */
void version_fetched(struct version *v);

/* A struct without memory, to be filled: one of the key's own, or allocated. NULL: no memory. */
struct version *version_blank(struct key *k);
void version_forget(struct version *v);      /* gives such a struct back; NULL is nothing */

void version_free_all(struct key *k);

#endif
