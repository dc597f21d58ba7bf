/* The books of a server: what it counts, counted again. For tests that do things to it at random; at rest, between two
 * calls, everything here holds whatever has been done. */
#ifndef TESTS_LIB_BOOKS_H
#define TESTS_LIB_BOOKS_H

#include "service/server.h"

/* The first thing that does not agree, as it stands in the source; NULL: all does. */
const char *books_wrong(const struct server *s);

#endif
