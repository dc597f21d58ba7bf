/* The options document of paramd_create, checked. Any thread; the environment is read in options_read only. */
#ifndef API_CLIENT_CLIENT_OPTIONS_H
#define API_CLIENT_CLIENT_OPTIONS_H

#include "api/client/address.h"
#include "api/client/type.h"
#include "api/limits.h"
#include "api/wire.h"
#include "service/base/bytes.h"

struct client_options {
    bool embedded;
    bool needs_gpu;                              /* of the type: no other device will do */
    char url[ADDRESS_TEXT_MAX];
    struct address front;
    bool own_worker;                             /* worker holds what the caller wants */
    struct wire_id worker;
    char worker_name[WORKER_NAME_SIZE_MAX + 1];  /* "": none */
    char token[TOKEN_SIZE_MAX + 1];              /* "": none */
    uint32_t connect_ms;
    enum on_reinit on_reinit;
    bool nanomsg;                                /* libnanomsg carries it, not our own engine */
    bool bulk;
    unsigned connections;                        /* for data */
    uint64_t mailbox;                            /* bytes; 0: none is asked for */
    bool store_named;
    bool join;                                   /* false: only looks; neither creates the store nor joins it */
    struct buf create;                           /* the Create document: the type and what was stated */
    struct buf find;                             /* the GetStore document, for one that only looks */
};

/* Reads `document` (NULL: nothing stated) for a type. Unknown names are refused with the nearest known one. */
enum status client_options_read(const struct client_type *type, const char *document, struct client_options *out,
                                struct error *e) MUST_CHECK;
void client_options_fini(struct client_options *o);

#endif
