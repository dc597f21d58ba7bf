/* Several devices as one: a device whose memory lies on its members, so that the store above needs not know how many
 * GPUs there are.
 *
 * Where a value lies. A value has a home (device_home_new). One of at most `part` elements, and one that has to be
 * whole, lies on one member: the one that has most room at that time. A larger one is cut into parts of
 * `part` elements, which lie on the members in turn, beginning with that one. Parts are counted in elements and not
 * in bytes, so that a value of 2 bytes an element and its sum of 4 are cut at the same elements: each call then is
 * one call a part, each on the member that has the part, and no byte crosses from one member to another.
 *
 * Room is counted ahead: a member's capacity (device.capacity) less what is kept for the values that have their home
 * there, whether they have taken it yet or not. A value that finds too little may go to the last resort, the CPU
 * (array_config.cpu), whole and for as long as it lives. It has room without end, as far as this knows, and is never
 * taken while a member would do. It does the same work with the same bits, so that no one above has to know.
 *
 * What is not cut. Whole rules need sums over all elements, so their step is refused on memory in parts; the store
 * asks for a whole home where the updater has such a rule, and refuses a swap to one on a key in parts
 * (service/state.h). Memory of several homes in one call is refused, too.
 *
 * Order. A queue has a queue on each member, a mark passes when it has passed on all of them. Work on memory of
 * different members may overtake each other within a queue; only marks tell. Host memory that one call writes must
 * therefore not be named in another before a mark has passed.
 *
 * Failures. When a member is lost the whole is lost: a value in parts has lost a part, and a store that goes on with
 * some of its keys is harder to understand than one that is started again. The same holds when a call was refused by
 * one member after another had taken its part of it: then nobody knows what the value is.
 *
 * Threads, ownership and errors as gpu/device.h has them for any device. The figures are those of one device: bits
 * of results do not depend on how many members there are, but for the sums of statistics, whose order is free. */
#ifndef GPU_ARRAY_H
#define GPU_ARRAY_H

#include "gpu/device.h"

enum { ARRAY_MEMBERS_MAX = 16, ARRAY_PART = 16 << 20 };  /* elements: 64 MiB of f32 */

struct array_config {
    struct device *const *members;
    unsigned count;
    size_t part;                     /* elements, a multiple of DMEM_ALIGN; 0: ARRAY_PART */
    struct device *cpu;              /* the last resort; NULL: none */
};

/* Takes the members and the last resort also when it fails. Pinned memory is that of the first member; for the others it
 * is memory like any. */
enum status array_device_new(const struct array_config *c, struct device **out, struct error *e) MUST_CHECK;

/* The members of an array without its last resort, or the device itself; how many. */
unsigned device_members(struct device *d, struct device *out[ARRAY_MEMBERS_MAX]);

/* For work that goes by members: memory of d, which is an array or not, piece by piece in the order of its elements. */
struct array_piece {
    unsigned member;
    struct dmem mem;                 /* the member's; lent */
};
size_t array_piece_count(struct dmem m);
struct array_piece array_piece_at(const struct device *d, struct dmem m, size_t i);

unsigned array_member_count(const struct device *d);           /* the last resort apart */
const struct device *array_member(const struct device *d, unsigned i);

#endif
