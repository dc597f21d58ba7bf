/* What is asked of a request before anything of it is used: that it can be read in one way only, that it means this
 * machine and comes from no other page, that it bears the token. libmicrohttpd 0.9.75 lets through what a proxy in
 * front of it may read otherwise (two lengths, chunked beside a length); see the rows in tests/system/test_rest.py. */
#ifndef WEB_GATE_H
#define WEB_GATE_H

#include "web/exchange.h"

#include <microhttpd.h>

struct gate {
    bool probe;                      /* asked by address, by who has no name for it: Host does not matter */
    const char *token;               /* NULL: none is asked for */
    const char *const *hosts;        /* NULL-ended: names besides loopback's and numbers */
};

/* FRAMING and the like end the connection: where the next request would begin is not sure. Sets x->has_body. */
enum status gate_check(struct exchange *x, const struct gate *g, struct error *e) MUST_CHECK;
enum status gate_check_token(const struct exchange *x, const struct gate *g, struct error *e) MUST_CHECK;
/* Length and type of the body, against the route; a body where none belongs. */
enum status gate_check_body(struct exchange *x, struct error *e) MUST_CHECK;
uint64_t gate_body_max(const struct route *r);

#endif
