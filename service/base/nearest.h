/* The known name that a mistyped one is near to, for error sentences. Any thread; nothing is allocated. */
#ifndef SERVICE_BASE_NEAREST_H
#define SERVICE_BASE_NEAREST_H

#include "service/base/bytes.h"

/* The nearest of `names` (NULL-ended) to a mistyped word, or NULL when none is near (Damerau-Levenshtein distance
 * at most a third of its length). */
const char *nearest_name(struct bytes word, const char *const *names);

#endif
