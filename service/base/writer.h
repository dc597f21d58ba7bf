/* Lines for a descriptor that may block: a bounded queue, and a thread of its own that writes.
 *
 * Nobody who adds a line waits for its reader, and the descriptor stays as it was inherited: O_NONBLOCK would hold for
 * every process that shares it. A line that finds no room, or that cannot be written (a full disk, a closed pipe), is
 * counted; when writing works again one line in its place tells how many are missing. */
#ifndef SERVICE_BASE_WRITER_H
#define SERVICE_BASE_WRITER_H

#include "service/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WRITER_LINE_MAX = 6 << 10, WRITER_SIZE_MIN = 4 * WRITER_LINE_MAX };

struct writer;

/* Puts the line, ended by '\n', that tells of `lost` missing ones into `to`; its size. Called by the writer's thread. */
typedef size_t writer_tell(char to[WRITER_LINE_MAX], uint64_t lost);

/* size: bytes that may wait, at least WRITER_SIZE_MIN. The thread takes no signals. tell: NULL: nothing is told. */
enum status writer_start(int fd, size_t size, writer_tell *tell, struct writer **out, struct error *e) MUST_CHECK;
/* Any thread, never blocks. `size` bytes that end with '\n', at most WRITER_LINE_MAX; false: there is no room. */
bool writer_add(struct writer *w, const char *line, size_t size);
uint64_t writer_lost(struct writer *w);          /* lines, since the start. Any thread */
/* Waits until all is written, at most until until_ms (of clock_ms). A thread that hangs in a write keeps its memory and
 * ends with the process. Nobody may add any more. NULL is nothing. */
void writer_stop(struct writer *w, uint64_t until_ms);

#endif
