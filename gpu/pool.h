/* Pieces out of large chunks: memory that is slow to get and to give back (a GPU's, or pinned) is taken by the chunk and
 * handed out in pieces aligned to POOL_ALIGN. The pool never touches what it hands out, so it may be memory that the CPU
 * cannot reach. A piece larger than a chunk has a chunk of its own, of its size, which goes back as soon as the piece does;
 * of the others one stays when it has become empty.
 *
 * One thread at a time. A piece costs one struct of host memory. */
#ifndef GPU_POOL_H
#define GPU_POOL_H

#include "service/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { POOL_ALIGN = 256 };

/* Where chunks come from. */
struct pool_source {
    void *ctx;
    enum status (*take)(void *ctx, size_t size, void **out, struct error *e);
    void (*give)(void *ctx, void *at);
    const char *what;                /* "GPU memory", for sentences */
    size_t chunk_size;               /* a multiple of POOL_ALIGN; or 1: every piece has a chunk of just its size */
    size_t limit;                    /* bytes of all chunks, never passed; 0: none */
};

struct pool;

struct pool *pool_new(const struct pool_source *source) MUST_CHECK;      /* NULL: no memory */
/* Gives all chunks back, with what is still taken. NULL is nothing. */
void pool_free(struct pool *a);
/* At least `size` bytes, size > 0. NO_MEMORY with figures when source or limit have no more. */
enum status pool_take(struct pool *a, size_t size, void **out, struct error *e) MUST_CHECK;
/* The same in a chunk of just that size, which nothing else will ever lie in: it goes back with the piece. */
enum status pool_take_alone(struct pool *a, size_t size, void **out, struct error *e) MUST_CHECK;
void pool_give(struct pool *a, void *at);
/* keep: from now on nothing is given back; else what has become empty meanwhile goes. */
void pool_keep(struct pool *a, bool keep);
/* Whether all of these bytes lie in one chunk. */
bool pool_holds(const struct pool *a, const void *at, size_t size);
/* Gives back every chunk that is empty, unless it keeps. */
void pool_trim(struct pool *a);
size_t pool_bytes(const struct pool *a);       /* of all chunks */
size_t pool_free_bytes(const struct pool *a);  /* of them, in pieces that nobody has taken */

#endif
