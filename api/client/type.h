/* Names of store types: words joined by '_'. Any thread. */
#ifndef API_CLIENT_TYPE_H
#define API_CLIENT_TYPE_H

#include "service/base/status.h"

#include <stdbool.h>

enum { TYPE_NAME_MAX = 64 };

struct client_type {
    char name[TYPE_NAME_MAX];    /* as given, in lower case */
    const char *canonical;       /* "local", "device", "nccl", "dist_sync" or "dist_async": what the store is created as */
    bool embedded;               /* in this process unless a url is given */
};

/* INVALID_ARGUMENT with the list of words for a word that is none, or for words that contradict each other;
 * UNIMPLEMENTED, saying what works instead, for those that this version does not have. */
enum status client_type_parse(const char *name, struct client_type *out, struct error *e) MUST_CHECK;

#endif
