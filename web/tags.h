/* ETags, and what is said when one does not fit: with the line to type that would. */
#ifndef WEB_TAGS_H
#define WEB_TAGS_H

#include "web/exchange.h"

/* Does If-Match or If-None-Match (NULL: false) name this tag, or *? Weak tags name nothing. */
bool tag_listed(const char *header, const char *tag);
/* ETAG_REQUIRED or ETAG_MISMATCH: 428 or 412 with the present tag, the present state (taken; may be NULL), and the curl
 * line of the same request with that tag. */
void say_precondition(struct exchange *x, enum reason r, const char *tag, json_t *current, const char *detail);

#endif
