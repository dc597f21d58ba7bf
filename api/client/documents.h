/* JSON for the client: documents are written by hand into a buffer (so that lack of memory shows) and read with
 * jansson. Any thread. */
#ifndef API_CLIENT_DOCUMENTS_H
#define API_CLIENT_DOCUMENTS_H

#include "service/base/bytes.h"

#include <jansson.h>

/* A JSON string with its quotes; text must be UTF-8. */
void doc_put_text(struct buf *b, struct bytes text);
/* A document of the daemon. INTERNAL when it cannot be read. The caller has the reference. */
enum status doc_read(struct bytes text, json_t **out, struct error *e) MUST_CHECK;
/* Members of an object; the standard when missing or of another type. */
uint64_t doc_u64(const json_t *object, const char *name, uint64_t standard);
bool doc_bool(const json_t *object, const char *name, bool standard);
/* Lent by the object; "" when missing. */
const char *doc_text(const json_t *object, const char *name);

#endif
