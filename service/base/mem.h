/* Memory of paramd's own. Every allocation of the program goes through here, so that a test can fail any one of
 * them: the sweep runs a scenario with the first failing, then the second, until none fails any more.
 *
 * Any thread. The results of mem_new and mem_zero are for mem_free only. */
#ifndef SERVICE_BASE_MEM_H
#define SERVICE_BASE_MEM_H

#include "service/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Uninitialised memory, aligned for any type. NULL when there is none. size 0 gives a valid pointer. */
void *mem_new(size_t size) MUST_CHECK;
/* The same, filled with zeros. */
void *mem_zero(size_t size) MUST_CHECK;
/* count * size zeroed bytes; NULL also when the product does not fit. */
void *mem_array(size_t count, size_t size) MUST_CHECK;
/* Grows or shrinks; NULL leaves the old block as it was. */
void *mem_resize(void *old, size_t size) MUST_CHECK;
/* Large data, aligned to 64 bytes for vector code and to whole pages when big. */
void *mem_aligned(size_t size) MUST_CHECK;
/* A copy of size bytes with an added zero at the end. */
char *mem_text(const char *from, size_t size) MUST_CHECK;
void mem_free(void *p);

/* Room for `count` elements of `size` bytes: *capacity doubles (from 8) until they fit, *array moves, what is new is
 * zeroed. On failure both stay as they were. An empty array is NULL with capacity 0. */
enum status mem_grow(void **array, size_t *capacity, size_t count, size_t size, struct error *e) MUST_CHECK;

/* Fault points, for tests: the n-th allocation from now answers NULL (1: the next), once. 0 switches off.
 * mem_fault_hit tells whether the fault has been met since. Not to be used while other threads allocate, unless
 * the test does not care which one is hit. */
void mem_fault_at(uint64_t n);
int mem_fault_hit(void);
/* Gives pages that only freed blocks lie in back to the system. Costs milliseconds. */
void mem_trim(void);
/* Bytes of the heap in use, of libraries as well, without what malloc keeps free. Looks at all of its free blocks. */
uint64_t mem_heap(void);
/* Blocks that are allocated and not freed, over all threads; for leak checks. */
int64_t mem_live(void);
/* Their bytes, as the allocator rounds them; of blocks allocated since counting was switched on, which tests do before
 * there are others. It is off at first, since it costs a look at each block. */
void mem_count_bytes(int on);
int64_t mem_live_bytes(void);

#endif
