/* The whole rules: steps that need sums over the whole tensor, its rows or its columns before its elements can move.
 *
 * Such a step is a row of passes, each done before the next begins; a pass is cut in parts that may run side by side.
 * Sums are taken in double and in an order that depends on the size alone: a part has WHOLE_PART elements (or the rows
 * that come near to it), in it lane i has the elements i, i + WHOLE_LANES, ...; the lanes are added in a tree, and so
 * are the parts. A column is summed from top to bottom in parts of WHOLE_ROWS rows, and these are added like elements of a
 * part. So the result does not depend on the number of threads, and another processor can take the same order.
 * Sums that the passes hand on lie in step.scratch. Internal to devices; nothing is checked, allocated or kept. */
#ifndef GPU_WHOLE_H
#define GPU_WHOLE_H

#include "gpu/rules.h"

enum { WHOLE_PART = 64 << 10, WHOLE_LANES = 256, WHOLE_SUMS = 4, WHOLE_STRIP = 1024, WHOLE_ROWS = 256 };

enum { LARS_ETA = MOMENTUM_SCALARS, LARS_EPSILON };
/* CORRECTION1 is 1 - beta1^t, CORRECTION2 sqrt(1 - beta2^t); LR is plain. */
enum { LAMB_CORRECTION1 = ADAM_SCALARS, LAMB_CORRECTION2, LAMB_WD, LAMB_LOWER, LAMB_UPPER, LAMB_SCALARS };
enum { ADAFACTOR_LR = GRAD_SCALARS, ADAFACTOR_BETA, ADAFACTOR_REST, ADAFACTOR_CLIP, ADAFACTOR_EPSILON, ADAFACTOR_LEAST,
       ADAFACTOR_SCALE, ADAFACTOR_WD };
_Static_assert((int)LAMB_SCALARS <= (int)RULE_SCALARS_MAX, "the scalars have room");

struct step;

/* Where the partial sums of columns begin in the scratch for so many elements, behind the totals and the sums of parts. */
static inline size_t whole_columns_at(size_t count)
{
    return (size_t)WHOLE_SUMS * (1 + (count + WHOLE_PART / 2 - 1) / (WHOLE_PART / 2) + 1);
}

/* Bytes of scratch for a value of so many elements; 0 for element rules. */
size_t whole_scratch_size(enum rule_id r, size_t count);
unsigned whole_passes(enum rule_id r);
size_t whole_parts(const struct step *s, unsigned pass);
void whole_run(const struct step *s, unsigned pass, size_t part);

#endif
