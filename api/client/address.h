/* Where a daemon is: "tcp://HOST:PORT" or "ipc:///PATH" (the same as "unix:///PATH"), taken apart. Any thread. */
#ifndef API_CLIENT_ADDRESS_H
#define API_CLIENT_ADDRESS_H

#include "service/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ADDRESS_TEXT_MAX = 300 };

struct address {
    bool is_path;
    uint16_t port;
    char host[256];              /* a name or a number; [::1] without its brackets */
    char path[108];              /* of a Unix socket */
};

enum status address_of_url(const char *url, struct address *out, struct error *e) MUST_CHECK;
/* The url of an address, as libnanomsg takes it. */
void address_text(const struct address *a, char text[ADDRESS_TEXT_MAX]);

#endif
