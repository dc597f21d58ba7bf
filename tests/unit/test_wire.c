#include "api/wire.h"
#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <string.h>

static struct error e;

/* ---- messages ------------------------------------------------------------------------------------------------- */

/* For each message of the list: random fields written and read are the same; a copy cut short anywhere is refused,
 * without a look behind its end, and reads as zeros. */
#define MESSAGE_TEST(name, LIST)                                                                    \
    static bool same_##name(const struct wire_##name *a, const struct wire_##name *b)               \
    {                                                                                               \
        bool same = true;                                                                           \
        LIST(SAME_FIELD)                                                                            \
        return same;                                                                                \
    }                                                                                               \
    static void random_##name(struct wire_##name *m, uint64_t *seed)                                \
    {                                                                                               \
        memset(m, 0, sizeof *m);                                                                    \
        LIST(RANDOM_FIELD)                                                                          \
    }                                                                                               \
    TEST(wire_##name##_is_read_as_it_was_written)                                                   \
    {                                                                                               \
        uint64_t seed = wire_##name##_size;                                                         \
        struct buf b = {0};                                                                         \
        struct wire_##name in, out;                                                                 \
        for (int i = 0; i < 100; i++) {                                                             \
            random_##name(&in, &seed);                                                              \
            buf_clear(&b);                                                                          \
            wire_put_##name(&b, &in);                                                               \
            CHECK_EQ(b.size, wire_##name##_size);                                                   \
            struct reader r = reader_of(bytes_of(b.at, b.size));                                    \
            CHECK(wire_get_##name(&r, &out));                                                       \
            CHECK(same_##name(&in, &out));                                                          \
            CHECK_EQ(r.left, 0);                                                                    \
        }                                                                                           \
        buf_fini(&b);                                                                               \
    }                                                                                               \
    TEST(wire_##name##_cut_short_is_refused)                                                        \
    {                                                                                               \
        const struct wire_##name zero = {0};                                                        \
        struct wire_##name out;                                                                     \
        for (size_t size = 0; size < wire_##name##_size; size++) {                                  \
            void *p = guard_new(size);                                                              \
            memset(p, 0xff, size);                                                                  \
            struct reader r = reader_of(bytes_of(p, size));                                         \
            CHECK(!wire_get_##name(&r, &out));                                                      \
            CHECK(r.failed);                                                                        \
            CHECK(same_##name(&out, &zero));                                                        \
            guard_free(p, size);                                                                    \
        }                                                                                           \
    }
#define SAME_FIELD(type, name) same = same && memcmp(&a->name, &b->name, sizeof a->name) == 0;
#define RANDOM_FIELD(type, name) random_field(&m->name, sizeof m->name, seed);

static void random_field(void *at, size_t size, uint64_t *seed)
{
    for (size_t i = 0; i < size; i++) ((uint8_t *)at)[i] = (uint8_t)rng_next(seed);
}

WIRE_MESSAGES(MESSAGE_TEST)

TEST(numbers_are_little_endian)
{
    struct buf b = {0};
    const struct wire_push m = {.store = 0x04030201, .count = 0x08070605, .force = 0x0c0b0a09};
    const uint8_t want[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

    wire_put_push(&b, &m);
    CHECK_EQ(b.size, sizeof want);
    CHECK(memcmp(b.at, want, sizeof want) == 0);
    buf_fini(&b);
}

/* ---- readers -------------------------------------------------------------------------------------------------- */

TEST(a_failed_reader_stays_failed)
{
    struct reader r = reader_of(bytes_of("abcd", 4));
    CHECK(reader_take(&r, 5) == NULL);
    CHECK(reader_take(&r, 1) == NULL);
    CHECK(r.failed);
}

TEST(a_take_larger_than_memory_is_refused)
{
    struct reader r = reader_of(bytes_of("abcd", 4));
    CHECK(reader_take(&r, UINT64_MAX) == NULL);
    CHECK(r.failed);
}

TEST(padding_must_be_zeros)
{
    const uint8_t good[8] = {1, 0, 0, 0, 0, 0, 0, 0}, bad[8] = {1, 0, 0, 9, 0, 0, 0, 0};
    struct reader r = reader_of(bytes_of(good, 8));
    (void)reader_take(&r, 1);
    reader_pad(&r, good, 8);
    CHECK(!r.failed);
    CHECK_EQ(r.left, 0);
    r = reader_of(bytes_of(bad, 8));
    (void)reader_take(&r, 1);
    reader_pad(&r, bad, 8);
    CHECK(r.failed);
}

TEST(padding_at_a_multiple_is_nothing)
{
    const uint8_t bytes[8] = {0};
    struct reader r = reader_of(bytes_of(bytes, 8));
    (void)reader_take(&r, 8);
    reader_pad(&r, bytes, 8);
    CHECK(!r.failed);
    r = reader_of(bytes_of(bytes, 3));
    (void)reader_take(&r, 3);
    reader_pad(&r, bytes, 8);
    CHECK(r.failed);
}

/* ---- methods -------------------------------------------------------------------------------------------------- */

TEST(methods_are_found_by_the_names_they_have)
{
    for (unsigned m = 0; m < 2 * WIRE_METHODS_END; m++) {
        const char *name = wire_method_name(m);
        if (name != NULL) CHECK_EQ(wire_method_find(bytes_text(name)), m);
    }
    CHECK_TEXT(wire_method_name(WIRE_Push), "Push");
    CHECK_EQ(wire_method_flags(WIRE_Push), WIRE_WRITES | WIRE_BULK);
    CHECK(wire_method_is_json(WIRE_Hello));
    CHECK(!wire_method_is_json(WIRE_Pull));
}

TEST(an_unknown_method_is_none)
{
    CHECK(wire_method_name(0) == NULL);
    CHECK(wire_method_name(UINT32_MAX) == NULL);
    CHECK_EQ(wire_method_flags(63), 0);
    CHECK_EQ(wire_method_find(bytes_text("push")), 0);
    CHECK_EQ(wire_method_find(bytes_text("")), 0);
}

/* ---- frames --------------------------------------------------------------------------------------------------- */

struct frame {
    struct wire_header header;
    struct buf head;
};

static struct frame frame_of(size_t fixed, size_t desc, uint64_t body)
{
    static const uint8_t zeros[4096];
    struct frame f = {.header = {.method = WIRE_Push, .sequence = 7}};

    CHECK(fixed <= sizeof zeros && desc <= sizeof zeros);
    CHECK(wire_head_write(&f.head, &f.header, bytes_of(zeros, fixed), bytes_of(zeros, desc), body, NULL, 0));
    return f;
}

static enum status read_frame(const struct frame *f, uint64_t frame_size, struct wire_header *h)
{
    return wire_header_read(bytes_of(f->head.at, f->head.size), frame_size, h, &e);
}

/* Writes a changed header again with a right CRC, as a sender with other ideas would. */
static void reseal(struct frame *f)
{
    struct buf b = {0};

    f->header.header_crc = 0;
    wire_put_header(&b, &f->header);
    f->header.header_crc = crc32c(0, b.at, WIRE_HEADER_SIZE - 4);
    buf_clear(&b);
    wire_put_header(&b, &f->header);
    memcpy(f->head.at, b.at, WIRE_HEADER_SIZE);
    buf_fini(&b);
}

TEST(a_head_is_read_as_it_was_written)
{
    struct frame f = frame_of(20, 48, 1000);
    struct wire_header h;

    CHECK_OK(read_frame(&f, f.head.size + 1000, &h), &e);
    CHECK_EQ(h.fixed_size, 20);
    CHECK_EQ(h.desc_size, 48);
    CHECK_EQ(h.body_size, 1000);
    CHECK_EQ(h.sequence, 7);
    CHECK_EQ(wire_head_size(&h), f.head.size);
    buf_fini(&f.head);
}

TEST(a_body_is_16_aligned_counted_from_the_request_id)
{
    for (uint32_t fixed = 0; fixed < 40; fixed++)
        for (uint32_t desc = 0; desc < 40; desc++) {
            struct wire_header h = {.fixed_size = fixed, .desc_size = desc};
            CHECK_EQ((4 + wire_head_size(&h)) % WIRE_ALIGN, 0);
            CHECK(wire_gap(fixed, desc) < WIRE_ALIGN);
        }
}

TEST(a_head_cut_anywhere_is_refused)
{
    struct frame f = frame_of(0, 0, 0);
    struct wire_header h;

    for (size_t size = 0; size < WIRE_HEADER_SIZE; size++) {
        uint8_t *p = guard_new(size);
        memcpy(p, f.head.at, size);
        CHECK_EQ(wire_header_read(bytes_of(p, size), size, &h, &e), STATUS_INVALID_ARGUMENT);
        CHECK_EQ(e.reason, REASON_MALFORMED);
        CHECK_SAYS(e.text, "too short");
        CHECK_EQ(h.method, 0);
        guard_free(p, size);
    }
    buf_fini(&f.head);
}

TEST(every_flipped_bit_of_a_header_is_noticed)
{
    struct frame f = frame_of(8, 8, 0);
    struct wire_header h;

    for (size_t bit = 0; bit < (size_t)8 * WIRE_HEADER_SIZE; bit++) {
        f.head.at[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(read_frame(&f, f.head.size, &h) != STATUS_OK);
        CHECK_EQ(h.sequence, 0);             /* nothing of it is believed */
        f.head.at[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK_OK(read_frame(&f, f.head.size, &h), &e);
    buf_fini(&f.head);
}


TEST(each_wrong_field_of_a_header_is_refused_with_its_reason)
{
    static const struct {
        const char *what;
        uint32_t fixed, desc;
        uint64_t body;
        uint32_t magic;
        uint16_t flags;
        uint8_t version;
        enum reason reason;
        const char *says;
        bool unreadable;                     /* the header is not handed out */
    } rows[] = {
        {"magic", 0, 0, 0, 0x444d5251, 0, 1, REASON_MALFORMED, "PRMD", true},
        {"version", 0, 0, 0, 0, 0, 2, REASON_MALFORMED, "version 2", false},
        {"version 0", 0, 0, 0, 0, 0, 0, REASON_MALFORMED, "version 0", false},
        {"flag", 0, 0, 0, 0, 16, 1, REASON_MALFORMED, "0x10", false},
        {"all flags", 0, 0, 0, 0, 0xffff, 1, REASON_MALFORMED, "0xfff0", false},
        {"fixed 2^32-1", UINT32_MAX, 0, 0, 0, 0, 1, REASON_MALFORMED, "4294967295", false},
        {"desc 2^32-1", 0, UINT32_MAX, 0, 0, 0, 1, REASON_MALFORMED, "4294967295", false},
        {"both 2^32-1", UINT32_MAX, UINT32_MAX, 0, 0, 0, 1, REASON_MALFORMED, "4294967295", false},
        {"sum 2^32", 0x80000000u, 0x80000000u, 0, 0, 0, 1, REASON_MALFORMED, "2147483648", false},
        {"head too large", FRAME_HEAD_MAX / 2, FRAME_HEAD_MAX / 2, 0, 0, 0, 1, REASON_MALFORMED, "at most", false},
        {"body 2^64-1", 0, 0, UINT64_MAX, 0, 0, 1, REASON_TOO_LARGE, "18446744073709551615", false},
        {"body wraps", 0, 0, UINT64_MAX - 75, 0, 0, 1, REASON_TOO_LARGE, "18446744073709551540", false},
        {"frame too large", 0, 0, FRAME_SIZE_MAX - 79, 0, 0, 1, REASON_TOO_LARGE, "at most", false},
        {"parts do not add up", 0, 0, 1, 0, 0, 1, REASON_MALFORMED, "add up", false},
        {"parts do not add up", 16, 0, 0, 0, 0, 1, REASON_MALFORMED, "add up", false},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct frame f = frame_of(0, 0, 0);
        struct wire_header h;
        f.header.fixed_size = rows[i].fixed;
        f.header.desc_size = rows[i].desc;
        f.header.body_size = rows[i].body;
        f.header.flags = rows[i].flags;
        f.header.version = rows[i].version;
        if (rows[i].magic != 0) f.header.magic = rows[i].magic;
        reseal(&f);
        if (read_frame(&f, f.head.size, &h) == STATUS_OK) test_fail(__FILE__, __LINE__, "%s is taken", rows[i].what);
        CHECK_EQ(e.reason, rows[i].reason);
        CHECK_SAYS(e.text, rows[i].says);
        CHECK_EQ(h.method, rows[i].unreadable ? 0 : WIRE_Push);
        buf_fini(&f.head);
    }
}

TEST(a_wrong_checksum_has_a_reason_of_its_own)
{
    struct frame f = frame_of(0, 0, 0);
    struct wire_header h;

    f.head.at[WIRE_HEADER_SIZE - 1] ^= 1;
    CHECK_EQ(read_frame(&f, f.head.size, &h), STATUS_DATA_LOSS);
    CHECK_EQ(e.reason, REASON_CHECKSUM);
    buf_fini(&f.head);
}

TEST(the_largest_frame_is_taken)
{
    struct frame f = frame_of(0, 0, FRAME_SIZE_MAX - 4 - WIRE_HEADER_SIZE);
    struct wire_header h;

    CHECK_OK(read_frame(&f, FRAME_SIZE_MAX - 4, &h), &e);
    buf_fini(&f.head);
}

TEST(the_checksum_of_a_body_is_that_of_its_pieces_joined)
{
    const struct bytes pieces[] = {bytes_text("1234"), bytes_text(""), bytes_text("56789")};
    struct wire_header h = {.flags = WIRE_FLAG_BODY_CRC};
    struct buf head = {0};

    CHECK(wire_head_write(&head, &h, (struct bytes){0}, (struct bytes){0}, 9, pieces, 3));
    CHECK_EQ(h.body_crc, 0xe3069283u);
    buf_fini(&head);
}

TEST(a_head_without_memory_says_so)
{
    struct buf head = {0};
    struct wire_header h = {0};

    mem_fault_at(1);
    CHECK(!wire_head_write(&head, &h, bytes_text("abc"), bytes_text("def"), 0, NULL, 0));
    mem_fault_at(0);
    CHECK(head.failed);
    buf_fini(&head);
}

/* ---- checksums and shapes ------------------------------------------------------------------------------------- */

/* One bit at a time, as the definition has it. */
static uint32_t crc_slow(const uint8_t *p, size_t size)
{
    uint32_t c = 0xffffffffu;

    for (size_t i = 0; i < size; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ 0x82f63b78u : c >> 1;
    }
    return ~c;
}

TEST(crc32c_has_the_published_values)
{
    uint8_t zeros[32] = {0}, ones[32], up[32];

    memset(ones, 0xff, sizeof ones);
    for (size_t i = 0; i < sizeof up; i++) up[i] = (uint8_t)i;
    CHECK_EQ(crc32c(0, "", 0), 0);
    CHECK_EQ(crc32c(0, "123456789", 9), 0xe3069283u);
    CHECK_EQ(crc32c(0, zeros, 32), 0x8a9136aau);     /* RFC 3720, B.4 */
    CHECK_EQ(crc32c(0, ones, 32), 0x62a8ab43u);
    CHECK_EQ(crc32c(0, up, 32), 0x46dd794eu);
}

TEST(crc32c_agrees_with_its_definition_at_every_size_and_offset)
{
    uint8_t data[128];
    uint64_t seed = 1;

    random_field(data, sizeof data, &seed);
    for (size_t from = 0; from < 16; from++)
        for (size_t size = 0; from + size <= sizeof data; size++)
            CHECK_EQ(crc32c(0, data + from, size), crc_slow(data + from, size));
}

TEST(crc32c_by_table_and_by_instruction_are_the_same)
{
    uint8_t data[300];
    uint64_t seed = 2;

    random_field(data, sizeof data, &seed);
    for (size_t size = 0; size <= sizeof data; size++)
        CHECK_EQ(crc32c_by_table(77, data, size), crc32c(77, data, size));
}

TEST(crc32c_goes_on_where_it_stopped)
{
    for (size_t cut = 0; cut <= 9; cut++)
        CHECK_EQ(crc32c(crc32c(0, "123456789", cut), &"123456789"[cut], 9 - cut), 0xe3069283u);
}

TEST(a_shape_is_the_product_of_its_dimensions_within_limits)
{
    static const struct {
        int64_t dims[4];
        unsigned ndim;
        size_t element;
        bool good;
        uint64_t size;
    } rows[] = {
        {{0}, 0, 4, true, 4},                            /* a scalar */
        {{3, 5}, 2, 4, true, 60},
        {{3, 0, 7}, 3, 4, true, 0},
        {{-1}, 1, 4, false, 0},
        {{0, -1}, 2, 4, false, 0},
        {{INT64_MIN}, 1, 1, false, 0},
        {{INT64_MAX}, 1, 1, false, 0},
        {{INT64_MAX, INT64_MAX}, 2, 8, false, 0},
        {{INT64_MAX, 0}, 2, 8, false, 0},                /* absurd all the same */
        {{(int64_t)1 << 32, (int64_t)1 << 32}, 2, 1, false, 0},
        {{(int64_t)1 << 20, (int64_t)1 << 20}, 2, 1, true, VALUE_SIZE_MAX},
        {{(int64_t)1 << 20, ((int64_t)1 << 20) + 1}, 2, 1, false, 0},
        {{(int64_t)1 << 38}, 1, 4, true, VALUE_SIZE_MAX},
        {{((int64_t)1 << 38) + 1}, 1, 4, false, 0},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t count = 0, size = 0;
        bool good = wire_shape_size(rows[i].dims, rows[i].ndim, rows[i].element, &count, &size);
        if (good != rows[i].good) test_fail(__FILE__, __LINE__, "row %zu", i);
        if (good) CHECK_EQ(size, rows[i].size);
        if (good) CHECK_EQ(count * rows[i].element, size);
    }
}
