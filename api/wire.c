#include "api/wire.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

static_assert((size_t)wire_header_size == WIRE_HEADER_SIZE, "the header has its documented size");
static_assert(WIRE_HEADER_SIZE % 16 == 12, "with the request id the fixed fields start 16-aligned");
static_assert(FRAME_SIZE_MAX >= PART_SIZE_MAX + KIB(32), "a part fits a frame");

static const uint32_t magic = 0x444D5250;      /* "PRMD" as bytes */

struct method_row {
    const char *name;
    unsigned flags;
    bool json;
};

enum { kind_json = 1, kind_data = 0 };

static const struct method_row method_rows[WIRE_METHODS_END] = {
#define METHOD_ROW(number, name, kind, flags) [number] = {#name, flags, kind_##kind},
    WIRE_METHODS(METHOD_ROW)
#undef METHOD_ROW
};

static const struct method_row *method(unsigned m)
{
    static const struct method_row none;
    return m < WIRE_METHODS_END ? &method_rows[m] : &none;
}

const char *wire_method_name(unsigned m) { return method(m)->name; }
unsigned wire_method_flags(unsigned m) { return method(m)->flags; }
bool wire_method_is_json(unsigned m) { return method(m)->json; }

unsigned wire_method_find(struct bytes name)
{
    for (unsigned m = 1; m < WIRE_METHODS_END; m++)
        if (method_rows[m].name != NULL && bytes_equal(bytes_text(method_rows[m].name), name)) return m;
    return 0;
}

/* ---- numbers -------------------------------------------------------------------------------------------------- */

/* `size` is a constant everywhere, so that each of these is one instruction. */
static inline void store_le(uint8_t *to, uint64_t value, size_t size)
{
    value = htole64(value);
    memcpy(to, &value, size);
}

static inline uint64_t load_le(const uint8_t *from, size_t size)
{
    uint64_t value = 0;
    memcpy(&value, from, size);
    return le64toh(value);
}

const void *reader_take(struct reader *r, uint64_t size)
{
    if (r->failed || size > r->left) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->at;
    r->at += size;
    r->left -= size;
    return p;
}

void reader_pad(struct reader *r, const uint8_t *start, size_t align)
{
    if (r->failed) return;
    size_t over = (size_t)(r->at - start) % align;
    const uint8_t *p = over > 0 ? reader_take(r, align - over) : NULL;
    for (size_t i = 0; p != NULL && i < align - over; i++)
        if (p[i] != 0) r->failed = true;
}

#define NUMBER(type)                                                                                \
    static void put_##type(uint8_t **to, wire_##type value)                                         \
    {                                                                                               \
        store_le(*to, (uint64_t)value, sizeof value);                                               \
        *to += sizeof value;                                                                        \
    }                                                                                               \
    static void get_##type(const uint8_t **from, wire_##type *value)                                \
    {                                                                                               \
        *value = (wire_##type)load_le(*from, sizeof *value);                                        \
        *from += sizeof *value;                                                                     \
    }
NUMBER(u8)
NUMBER(u16)
NUMBER(u32)
NUMBER(u64)
NUMBER(i32)
NUMBER(i64)

static void put_id(uint8_t **to, struct wire_id value)
{
    memcpy(*to, value.at, sizeof value.at);
    *to += sizeof value.at;
}

static void get_id(const uint8_t **from, struct wire_id *value)
{
    memcpy(value->at, *from, sizeof value->at);
    *from += sizeof value->at;
}

#define PUT_FIELD(type, name) put_##type(&to, m->name);
#define GET_FIELD(type, name) get_##type(&from, &m->name);
#define DEFINE(name, LIST)                                                                          \
    void wire_put_##name(struct buf *b, const struct wire_##name *m)                                \
    {                                                                                               \
        uint8_t *to = buf_room(b, wire_##name##_size);                                              \
        if (to == NULL) return;                                                                     \
        LIST(PUT_FIELD)                                                                             \
    }                                                                                               \
    bool wire_get_##name(struct reader *r, struct wire_##name *m)                                   \
    {                                                                                               \
        const uint8_t *from = reader_take(r, wire_##name##_size);                                   \
        if (from == NULL) {                                                                         \
            memset(m, 0, sizeof *m);                                                                \
            return false;                                                                           \
        }                                                                                           \
        LIST(GET_FIELD)                                                                             \
        return true;                                                                                \
    }
WIRE_MESSAGES(DEFINE)

/* ---- frames --------------------------------------------------------------------------------------------------- */

size_t wire_gap(uint32_t fixed_size, uint32_t desc_size)
{
    size_t end = 4 + WIRE_HEADER_SIZE + (size_t)fixed_size + desc_size;
    return (WIRE_ALIGN - end % WIRE_ALIGN) % WIRE_ALIGN;
}

size_t wire_head_size(const struct wire_header *h)
{
    return WIRE_HEADER_SIZE + (size_t)h->fixed_size + h->desc_size + wire_gap(h->fixed_size, h->desc_size);
}

static enum status check_sizes(const struct wire_header *h, uint64_t frame_size, struct error *e)
{
    if (h->fixed_size > FRAME_HEAD_MAX || h->desc_size > FRAME_HEAD_MAX ||
        wire_head_size(h) > FRAME_HEAD_MAX)
        return error_set(e, REASON_MALFORMED, "fixed fields of %u and descriptors of %u bytes, at most %d together",
                         h->fixed_size, h->desc_size, FRAME_HEAD_MAX);
    if (h->body_size > FRAME_SIZE_MAX || wire_head_size(h) + h->body_size + 4 > FRAME_SIZE_MAX)
        return error_set(e, REASON_TOO_LARGE, "a body of %llu bytes; a frame has at most %d",
                         (unsigned long long)h->body_size, FRAME_SIZE_MAX);
    if (frame_size != 0 && wire_head_size(h) + h->body_size != frame_size)
        return error_set(e, REASON_MALFORMED, "the frame has %llu bytes, its parts add up to %llu",
                         (unsigned long long)frame_size, (unsigned long long)(wire_head_size(h) + h->body_size));
    return STATUS_OK;
}

enum status wire_header_read(struct bytes head, uint64_t frame_size, struct wire_header *h, struct error *e)
{
    struct reader r = reader_of(head);
    struct wire_header got;

    memset(h, 0, sizeof *h);
    if (!wire_get_header(&r, &got))
        return error_set(e, REASON_MALFORMED, "a frame of %zu bytes is too short for its header of %d", head.size,
                         WIRE_HEADER_SIZE);
    if (got.magic != magic)
        return error_set(e, REASON_MALFORMED, "no paramd frame: it does not begin with PRMD");
    if (crc32c(0, head.at, WIRE_HEADER_SIZE - 4) != got.header_crc)
        return error_set(e, REASON_CHECKSUM, "the header's checksum differs");
    *h = got;
    if (h->version != WIRE_VERSION)
        return error_set(e, REASON_MALFORMED, "protocol version %u; this side speaks %d", h->version, WIRE_VERSION);
    if ((h->flags & ~WIRE_FLAGS_KNOWN) != 0)
        return error_set(e, REASON_MALFORMED, "unknown flags 0x%x", h->flags & ~WIRE_FLAGS_KNOWN);
    return check_sizes(h, frame_size, e);
}

bool wire_head_write(struct buf *out, struct wire_header *h, struct bytes fixed, struct bytes desc,
                     uint64_t body_size, const struct bytes *body, size_t body_count)
{
    size_t start = out->size;

    assert(fixed.size <= FRAME_HEAD_MAX && desc.size <= FRAME_HEAD_MAX);
    h->magic = magic;
    h->version = WIRE_VERSION;
    h->fixed_size = (uint32_t)fixed.size;
    h->desc_size = (uint32_t)desc.size;
    h->body_size = body_size;
    h->body_crc = 0;
    h->header_crc = 0;
    if (h->flags & WIRE_FLAG_BODY_CRC)
        for (size_t i = 0; i < body_count; i++) h->body_crc = crc32c(h->body_crc, body[i].at, body[i].size);
    wire_put_header(out, h);
    if (!out->failed) {
        h->header_crc = crc32c(0, out->at + start, WIRE_HEADER_SIZE - 4);
        store_le(out->at + start + WIRE_HEADER_SIZE - 4, h->header_crc, 4);
    }
    buf_add(out, fixed.at, fixed.size);
    buf_add(out, desc.at, desc.size);
    size_t gap = wire_gap(h->fixed_size, h->desc_size);
    void *zeros = gap > 0 ? buf_room(out, gap) : NULL;
    if (zeros != NULL) memset(zeros, 0, gap);
    return !out->failed;
}

bool wire_shape_size(const int64_t *dims, unsigned ndim, size_t element_size, uint64_t *count, uint64_t *size)
{
    uint64_t n = 1;
    bool empty = false;

    for (unsigned i = 0; i < ndim; i++) {
        if (dims[i] < 0) return false;
        if (dims[i] == 0) empty = true;
        else if (__builtin_mul_overflow(n, (uint64_t)dims[i], &n) || n > VALUE_SIZE_MAX) return false;
    }
    *count = empty ? 0 : n;
    return !__builtin_mul_overflow(*count, element_size, size) && *size <= VALUE_SIZE_MAX;
}
