/* The binary protocol as lists: methods, and for each message its fields. From a list come the struct, the size, the
 * writer and the reader, so a message cannot be written one way and read another. Bytes are in api/protocol.md, and a
 * test reads that document's frames back through this file.
 *
 * No I/O and no allocation beyond the struct buf that is written to. Any thread. Little-endian on the wire. */
#ifndef API_WIRE_H
#define API_WIRE_H

#include "api/limits.h"
#include "service/base/bytes.h"
#include "service/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct wire_id { uint8_t at[16]; };          /* of a worker or of a daemon's life; all zero: none */

/* Kinds: json = one JSON document each way; data = fixed fields, descriptors and raw bytes.
 * Flags: WRITES = bears a name (worker, epoch, sequence) and is executed once; OPEN = before HELLO; BULK = carries
 * tensor bytes, goes through the bulk door when there is one.
 *    number  name            kind  flags */
#define WIRE_METHODS(X)                                      \
    X( 1, Hello,              json, WIRE_OPEN)               \
    X( 2, Create,             json, 0)                       \
    X( 3, DeleteStore,        json, WIRE_WRITES)             \
    X( 4, ListStores,         json, 0)                       \
    X( 5, Join,               json, 0)                       \
    X( 6, Leave,              json, 0)                       \
    X( 7, Heartbeat,          json, 0)                       \
    X( 8, Barrier,            json, WIRE_WRITES)             \
    X( 9, Init,               data, WIRE_BULK)               \
    X(10, Set,                data, WIRE_WRITES | WIRE_BULK) \
    X(11, Delete,             json, WIRE_WRITES)             \
    X(12, Push,               data, WIRE_WRITES | WIRE_BULK) \
    X(13, Pull,               data, WIRE_BULK)               \
    X(15, Wait,               data, 0)                       \
    X(17, Describe,           json, 0)                       \
    X(18, List,               json, 0)                       \
    X(19, SetUpdater,         json, WIRE_WRITES)             \
    X(20, GetUpdater,         json, 0)                       \
    X(22, Stats,              json, 0)                       \
    X(24, Health,             json, WIRE_OPEN)               \
    X(26, Dismiss,            json, 0)                       \
    X(27, GetStore,           json, 0)                       \
    X(28, ResetStore,         json, WIRE_WRITES)             \
    X(29, Workers,            json, 0)                       \
    X(30, Rounds,             json, 0)                       \
    X(31, UpdaterCheck,       json, 0)                       \
    X(32, GetStates,          data, WIRE_BULK)               \
    X(33, SetStates,          data, WIRE_WRITES | WIRE_BULK) \
    X(34, KeyStats,           json, 0)                       \
    X(35, PlaneJoin,          json, WIRE_WRITES)             \
    X(36, Plane,              json, 0)                       \
    X(37, PlaneCall,          json, WIRE_WRITES)             \
    X(38, PlaneLeave,         json, WIRE_WRITES)             \
    X(42, Mailbox,            json, WIRE_BULK)
/* Taken for later rows: 14 RowPull, 16 Cancel, 21 SetCompression, 23 Snapshot, 25 Command. */

enum wire_method {
#define WIRE_METHOD_ENUM(number, name, kind, flags) WIRE_##name = number,
    WIRE_METHODS(WIRE_METHOD_ENUM)
#undef WIRE_METHOD_ENUM
    WIRE_METHODS_END = 64
};

enum { WIRE_OPEN = 1, WIRE_WRITES = 2, WIRE_BULK = 4 };

const char *wire_method_name(unsigned method);       /* "Push", or NULL */
unsigned wire_method_flags(unsigned method);
bool wire_method_is_json(unsigned method);
unsigned wire_method_find(struct bytes name);        /* 0: unknown */

/* Flags of a frame; one that is not here is refused. */
enum {
    WIRE_FLAG_ANSWER = 1,
    WIRE_FLAG_CHECK = 2,         /* Init: descriptors only; what would be done? */
    WIRE_FLAG_BODY_CRC = 4,      /* body_crc holds */
    WIRE_FLAG_MAILBOX = 8,       /* Push, Pull: the values lie in a mailbox; the body says for each entry where */
    WIRE_FLAGS_KNOWN = 15
};

/* Every frame begins with this (after SP's request id). */
#define WIRE_HEADER(F)      \
    F(u32, magic)           \
    F(u8,  version)         \
    F(u8,  method)          \
    F(u16, flags)           \
    F(u16, status)          \
    F(u16, reason)          \
    F(id,  worker)          \
    F(u32, epoch)           \
    F(u64, sequence)        \
    F(u32, session)         \
    F(u32, deadline_ms)     \
    F(i32, priority)        \
    F(u32, fixed_size)      \
    F(u32, desc_size)       \
    F(u64, body_size)       \
    F(u32, body_crc)        \
    F(u32, header_crc)

/* An answer with a status other than OK: this, then the sentence as the body. */
#define WIRE_ERROR(F)       \
    F(u32, retry_ms)

/* One refused entry of an answer; its sentence lies in the body, after the values. */
#define WIRE_FAULT(F)       \
    F(u32, index)           \
    F(u16, status)          \
    F(u16, reason)          \
    F(u32, retry_ms)        \
    F(u32, text_offset)     \
    F(u32, text_size)

/* Init: count entries; each is followed by its dimensions (i64) and its name, zeros to 8. */
#define WIRE_INIT(F)        \
    F(u32, store)           \
    F(u32, count)           \
    F(u64, call)            \
    F(u32, on_reinit)
#define WIRE_INIT_ENTRY(F)  \
    F(i64, number)          \
    F(u64, offset)          \
    F(u64, size)            \
    F(u64, total)           \
    F(u16, name_size)       \
    F(u8,  key_type)        \
    F(u8,  dtype)           \
    F(u8,  ndim)            \
    F(u8,  storage)         \
    F(u16, reserved)
#define WIRE_INIT_DONE(F)   \
    F(u32, count)           \
    F(u32, faults)
#define WIRE_INIT_RESULT(F) \
    F(u64, key)             \
    F(u64, version)         \
    F(u64, next_step)       \
    F(u32, outcome)         \
    F(u32, reserved)

/* Push and Set: count entries, the bytes of each in the body at the next multiple of 16. */
#define WIRE_PUSH(F)        \
    F(u32, store)           \
    F(u32, count)           \
    F(u32, force)
#define WIRE_PUSH_ENTRY(F)  \
    F(u64, key)             \
    F(u64, step)            \
    F(u64, offset)          \
    F(u64, size)            \
    F(u64, total)           \
    F(u8,  dtype)           \
    F(u8,  codec)           \
    F(u16, flags)           \
    F(u32, reserved)
#define WIRE_PUSH_DONE(F)   \
    F(u32, recorded)        \
    F(u32, faults)          \
    F(u64, window)          \
    F(u32, applied)         \
    F(u32, reserved)
#define WIRE_SET_DONE(F)    \
    F(u32, count)           \
    F(u32, faults)          \
    F(u64, version)

/* Pull: results for the first `count` entries (an answer may be full before the last one). */
#define WIRE_PULL(F)        \
    F(u32, store)           \
    F(u32, count)
#define WIRE_PULL_ENTRY(F)  \
    F(u64, key)             \
    F(u64, version)         \
    F(u64, newer)           \
    F(u64, offset)          \
    F(u64, size)
#define WIRE_PULL_DONE(F)   \
    F(u32, count)           \
    F(u32, faults)
#define WIRE_PULL_RESULT(F) \
    F(u64, key)             \
    F(u64, version)         \
    F(u64, offset)          \
    F(u64, size)            \
    F(u64, total)           \
    F(u8,  dtype)           \
    F(u8,  codec)           \
    F(u16, flags)           \
    F(u32, reserved)

/* With WIRE_FLAG_MAILBOX: where the bytes of an entry are, or go to. */
#define WIRE_PLACE(F)       \
    F(u64, mailbox)         \
    F(u64, offset)

/* Wait: count conditions, each followed by a name where its kind has one, zeros to 8. */
#define WIRE_WAIT(F)        \
    F(u32, count)           \
    F(u32, want)            \
    F(u32, time_ms)
#define WIRE_WAIT_ENTRY(F)  \
    F(u32, kind)            \
    F(u32, store)           \
    F(u64, key)             \
    F(u64, number)          \
    F(u16, name_size)       \
    F(u8,  key_type)        \
    F(u8,  reserved)        \
    F(u32, reserved2)
#define WIRE_WAIT_DONE(F)   \
    F(u32, count)           \
    F(u32, faults)
#define WIRE_WAIT_RESULT(F) \
    F(u32, index)           \
    F(u32, state)           \
    F(u64, version)

/* GetStates and SetStates: count entries. A state is its slots and master, each at the next multiple of 16 of its bytes.
 * `state` is a result of GetStates and an entry of SetStates: the type of the updater follows, zeros to 8, and `slots`
 * times a `slot` with its name, zeros to 8. */
#define WIRE_STATES(F)      \
    F(u32, store)           \
    F(u32, count)
#define WIRE_STATES_ENTRY(F) \
    F(u64, key)             \
    F(u64, copy)            \
    F(u64, offset)          \
    F(u64, size)            \
    F(u32, slot)            \
    F(u32, reserved)
#define WIRE_STATES_DONE(F) \
    F(u32, count)           \
    F(u32, faults)
#define WIRE_STATE(F)       \
    F(u64, key)             \
    F(u64, copy)            \
    F(u64, updates)         \
    F(u64, since_begun)     \
    F(u64, product)         \
    F(u64, offset)          \
    F(u64, size)            \
    F(u64, total)           \
    F(u16, slots)           \
    F(u8,  updater_size)    \
    F(u8,  reserved)        \
    F(u32, reserved2)
#define WIRE_SLOT(F)        \
    F(u64, count)           \
    F(u8,  dtype)           \
    F(u8,  name_size)       \
    F(u16, reserved)        \
    F(u32, reserved2)

/*    lower-case name, LIST */
#define WIRE_MESSAGES(X)             \
    X(header, WIRE_HEADER)           \
    X(error, WIRE_ERROR)             \
    X(fault, WIRE_FAULT)             \
    X(init, WIRE_INIT)               \
    X(init_entry, WIRE_INIT_ENTRY)   \
    X(init_done, WIRE_INIT_DONE)     \
    X(init_result, WIRE_INIT_RESULT) \
    X(push, WIRE_PUSH)               \
    X(push_entry, WIRE_PUSH_ENTRY)   \
    X(push_done, WIRE_PUSH_DONE)     \
    X(set_done, WIRE_SET_DONE)       \
    X(pull, WIRE_PULL)               \
    X(pull_entry, WIRE_PULL_ENTRY)   \
    X(pull_done, WIRE_PULL_DONE)     \
    X(pull_result, WIRE_PULL_RESULT) \
    X(place, WIRE_PLACE)             \
    X(wait, WIRE_WAIT)               \
    X(wait_entry, WIRE_WAIT_ENTRY)   \
    X(wait_done, WIRE_WAIT_DONE)     \
    X(wait_result, WIRE_WAIT_RESULT) \
    X(states, WIRE_STATES)           \
    X(states_entry, WIRE_STATES_ENTRY) \
    X(states_done, WIRE_STATES_DONE) \
    X(state, WIRE_STATE)             \
    X(slot, WIRE_SLOT)

/* Numbers inside the fields. */
enum { KEY_INT = 0, KEY_STR = 1 };
enum { STORAGE_DENSE = 0, STORAGE_ROW_SPARSE = 1 };
enum { CODEC_NONE = 0 };
enum { RESULT_IN_MAILBOX = 1 };      /* of a result of Pull, in flags: the bytes are there, not in the body */
enum on_reinit { REINIT_ERROR = 0, REINIT_REPLACE = 1, REINIT_KEEP = 2 };
enum init_outcome {
    INIT_CREATED = 1,            /* by this request */
    INIT_EXISTED = 2,            /* it is there; the value sent does not count */
    INIT_WAIT = 3,               /* rank 0's value is awaited: Wait for it, then ask again */
    INIT_NEED_VALUE = 4,         /* answer to a check: send the value */
    INIT_PART = 5,               /* more parts are to come */
    INIT_REFUSED = 6             /* see the faults */
};
enum wait_kind {
    WAIT_TICKET = 1,             /* key, number = step: the caller's push has been applied */
    WAIT_VERSION = 2,            /* key, number = version: the value is at least that new */
    WAIT_INIT = 3,               /* name: the key exists, or its value is now this worker's to send */
    WAIT_BARRIER = 4,            /* key = ticket of Barrier */
    WAIT_PLANE = 5,              /* key = epoch, number = call: all have announced it; 0: all have joined */
    WAIT_COUNTED = 6             /* key = epoch, number = call: its pushes count */
};
enum wait_state { WAIT_PENDING = 0, WAIT_DONE = 1, WAIT_FAILED = 2 };

/* ---- what the lists become ------------------------------------------------------------------------------------ */

typedef uint8_t wire_u8;
typedef uint16_t wire_u16;
typedef uint32_t wire_u32;
typedef uint64_t wire_u64;
typedef int32_t wire_i32;
typedef int64_t wire_i64;
typedef struct wire_id wire_id;

#define WIRE_FIELD(type, name) wire_##type name;
#define WIRE_FIELD_SIZE(type, name) + sizeof(wire_##type)
#define WIRE_STRUCT(name, LIST)                                 \
    struct wire_##name { LIST(WIRE_FIELD) };                    \
    enum { wire_##name##_size = 0 LIST(WIRE_FIELD_SIZE) };
WIRE_MESSAGES(WIRE_STRUCT)

/* What is left to read. A read past the end sets failed and gives zeros from then on, so a decoder checks once. */
struct reader {
    const uint8_t *at;
    size_t left;
    bool failed;
};

static inline struct reader reader_of(struct bytes b) { return (struct reader){b.at, b.size, false}; }
/* Lends `size` bytes and steps over them; NULL and failed when there are fewer. */
const void *reader_take(struct reader *r, uint64_t size);
/* Steps over zeros so that what has been read since `start` is a multiple of align. */
void reader_pad(struct reader *r, const uint8_t *start, size_t align);

/* wire_put_NAME appends a message; wire_get_NAME reads one, false when it was not whole. */
#define WIRE_DECLARE(name, LIST)                                            \
    void wire_put_##name(struct buf *b, const struct wire_##name *m);       \
    bool wire_get_##name(struct reader *r, struct wire_##name *m);
WIRE_MESSAGES(WIRE_DECLARE)

/* ---- frames --------------------------------------------------------------------------------------------------- */

/* Bytes of zeros between descriptors and body, so that the body is 16-aligned counted from the request id. */
size_t wire_gap(uint32_t fixed_size, uint32_t desc_size);
/* Header, fixed fields, descriptors and gap. Only valid for a checked header. */
size_t wire_head_size(const struct wire_header *h);

/* Reads and checks a header: magic, CRC, version, flags, sizes against FRAME_SIZE_MAX and FRAME_HEAD_MAX, and
 * (frame_size, when not 0) that the parts add up to the frame. frame_size is without the request id.
 * MALFORMED with the place; a header whose CRC held is in *h even then, so that the refusal can be addressed. */
enum status wire_header_read(struct bytes head, uint64_t frame_size, struct wire_header *h, struct error *e) MUST_CHECK;

/* Writes a head: h's sizes and CRCs are computed here from fixed, descriptors and the body's size. `body` (when given
 * and WIRE_FLAG_BODY_CRC is set) is checksummed. Answers what buf says: false when there was no memory. */
bool wire_head_write(struct buf *out, struct wire_header *h, struct bytes fixed, struct bytes desc,
                     uint64_t body_size, const struct bytes *body, size_t body_count);

/* CRC-32C (Castagnoli), as iSCSI (RFC 3720): crc of what came before, 0 at the start. */
uint32_t crc32c(uint32_t crc, const void *at, size_t size);
/* The same without the processor's instruction for it. */
uint32_t crc32c_by_table(uint32_t crc, const void *at, size_t size);

/* A product travels as the bits of an f64. */
static inline uint64_t wire_of_double(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline double wire_to_double(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Where the next slot of a state begins, when so many bytes are used. */
static inline uint64_t wire_aligned(uint64_t n) { return (n + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN; }

/* Product of the dimensions, checked: false when a dimension is negative or count * size exceeds VALUE_SIZE_MAX. */
bool wire_shape_size(const int64_t *dims, unsigned ndim, size_t element_size, uint64_t *count, uint64_t *size);

#endif
