/* The loops of the CPU over plain arrays: what the cpu device runs in parts and what test devices run whole. Internal
 * to devices. Any thread; nothing is checked, allocated or kept. Types are those that dtype_computes. */
#ifndef GPU_LOOPS_H
#define GPU_LOOPS_H

#include "gpu/device.h"

/* to (dtype_sum(type)) = from (type). */
void loops_widen(enum dtype type, void *to, const void *from, size_t count);
/* to (dtype_sum(type)) += from (type). Answers WORK_ bits. */
uint32_t loops_add(enum dtype type, void *to, const void *from, size_t count);
/* to (type) = from (dtype_sum(type)), rounded to nearest even; real types. */
void loops_narrow(enum dtype type, void *to, const void *from, size_t count);
/* *out = the statistics of a, or of a - minus when that is not NULL. */
void loops_stats(enum dtype type, const void *a, const void *minus, size_t count, struct stats *out);
/* Elements begin .. begin + count - 1 of a step whose dmem.at are addresses of this process; `flags` is not touched.
 * A whole rule's step is for one piece. Answers WORK_ bits. */
uint32_t loops_step(const struct step *s, size_t begin, size_t count);

/* At most BLOCK elements of a step with a real type, in dtype_sum(type): the gradient, the value from the master if
 * there is one, and the value back. */
void loops_sum(const struct step *s, size_t at, size_t count, void *g);
void loops_value(const struct step *s, size_t at, size_t count, void *w);
void loops_store(const struct step *s, size_t at, size_t count, const void *w);

#endif
