/* Sums of several values that lie in memory of the process, taken on the GPUs of a device: value i of a list is brought
 * to GPU i (and on from the first again), and a group (gpu/group.h) reduces what they have to where the sum shall lie.
 *
 * The group is by NCCL where NCCL and streams are, else by copies through the host (group_local). It is made with the
 * first list. When it breaks, the list that it broke on fails, and the next list makes a new one. What is in the way of
 * NCCL alone (UNIMPLEMENTED) is no failure: sums_why_not has it.
 *
 * Lists go in pieces of SUM_PIECE elements through two buffers on each GPU, so that they need little memory however
 * large they are. One thread, the one that calls into the device. */
#ifndef GPU_SUMS_H
#define GPU_SUMS_H

#include "gpu/device.h"

enum { SUM_PIECE = 4 << 20 };    /* elements: 16 MiB of f32 */

struct sums;

struct sum_list {
    const void *const *values;       /* only read */
    size_t value_count;              /* from 1 */
    enum dtype type;                 /* f32 or f64 */
    size_t count;                    /* elements of each */
    struct dmem to;                  /* of the device, and no work that names it unfinished; may lie in parts */
};

/* d: one device, or several as one (gpu/array.h). It outlives the sums. piece: elements; 0: SUM_PIECE. */
enum status sums_new(struct device *d, size_t piece, struct sums **out, struct error *e) MUST_CHECK;
void sums_free(struct sums *s);      /* NULL is nothing */

/* Waits until the sum is there, and then no work names its memory or its values; also when it fails, but for a lost
 * device. */
enum status sums_take(struct sums *s, const struct sum_list *l, struct error *e) MUST_CHECK;

/* What takes them: "nccl", "local"; NULL before the first. */
const char *sums_kind(const struct sums *s);
/* Of "local": why it is not NCCL. */
const char *sums_why_not(const struct sums *s);

#endif
