/* Borrowed bytes, UTF-8 and growing buffers. */
#include "service/base/bytes.h"

#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <string.h>
#include <wchar.h>

TEST(equal_means_same_size_and_content)
{
    CHECK(bytes_equal(bytes_text("abc"), bytes_text("abc")));
    CHECK(!bytes_equal(bytes_text("abc"), bytes_text("abd")));
    CHECK(!bytes_equal(bytes_text("abc"), bytes_text("ab")));
    CHECK(bytes_equal(bytes_of(NULL, 0), bytes_text("")));
    CHECK(bytes_equal(bytes_of("a\0b", 3), bytes_of("a\0b", 3)));
    CHECK(!bytes_equal(bytes_of("a\0b", 3), bytes_of("a\0c", 3)));
}

TEST(order_is_bytewise_unsigned_and_a_prefix_is_smaller)
{
    static const struct bytes sorted[] = {{NULL, 0}, {"\0", 1}, {"\0\0", 2}, {"a", 1}, {"a\0", 2}, {"aa", 2},
                                          {"b", 1}, {"\x7f", 1}, {"\x80", 1}, {"\xff", 1}, {"\xff\xff", 2}};
    enum { N = sizeof sorted / sizeof sorted[0] };

    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            int c = bytes_compare(sorted[i], sorted[k]);
            CHECK_EQ((c > 0) - (c < 0), (i > k) - (i < k));
        }
}

/* A second way to the same answer: decode by the bits of the lead, then judge the code point. */
static size_t decode(const uint8_t *p, size_t left)
{
    static const uint32_t least[] = {0, 1, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80 ? 1 : (p[0] & 0xE0) == 0xC0 ? 2 : (p[0] & 0xF0) == 0xE0 ? 3 : (p[0] & 0xF8) == 0xF0 ? 4 : 0;

    if (n == 0 || n > left) return 0;
    uint32_t point = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (p[i] >> 6 != 2) return 0;
        point = point << 6 | (p[i] & 0x3Fu);
    }
    if (point < least[n] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return 0;
    return n;
}

static bool decodes(const uint8_t *p, size_t size)
{
    for (size_t n; size > 0; p += n, size -= n)
        if ((n = decode(p, size)) == 0) return false;
    return true;
}

TEST(every_sequence_of_one_to_four_boundary_bytes_is_judged_right)
{
    static const uint8_t edges[] = {0x00, 0x01, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                    0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF7, 0xF8, 0xFF};
    enum { N = sizeof edges };
    size_t good = 0;

    for (size_t size = 1; size <= 4; size++) {
        uint8_t *p = guard_new(size);
        size_t all = 1;
        for (size_t i = 0; i < size; i++) all *= N;
        for (size_t at = 0; at < all; at++) {
            for (size_t i = 0, rest = at; i < size; i++, rest /= N) p[i] = edges[rest % N];
            bool want = decodes(p, size);
            if (bytes_is_utf8(bytes_of(p, size)) != want)
                test_fail(__FILE__, __LINE__, "%zu bytes %02x.. number %zu: should be %d", size, p[0], at, want);
            good += want;
        }
        guard_free(p, size);
    }
    CHECK(good > 100);
}

TEST(every_pair_of_bytes_is_judged_right)
{
    uint8_t *p = guard_new(2);

    for (unsigned i = 0; i < 0x10000; i++) {
        p[0] = (uint8_t)(i >> 8);
        p[1] = (uint8_t)i;
        CHECK_EQ(bytes_is_utf8(bytes_of(p, 2)), decodes(p, 2));
    }
    guard_free(p, 2);
}

static size_t encode(uint32_t point, uint8_t to[4])
{
    size_t n = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;

    for (size_t i = n - 1; i > 0; i--, point >>= 6) to[i] = (uint8_t)(0x80 | (point & 0x3F));
    to[0] = (uint8_t)(n == 1 ? point : (0xF00u >> n & 0xFF) | point);
    return n;
}

TEST(every_code_point_but_nul_and_the_surrogates_is_good)
{
    uint8_t c[4];

    for (uint32_t point = 0; point <= 0x110FFF; point++) {
        bool want = point != 0 && !(point >= 0xD800 && point <= 0xDFFF) && point <= 0x10FFFF;
        size_t n = encode(point, c);
        if (bytes_is_utf8(bytes_of(c, n)) != want) test_fail(__FILE__, __LINE__, "U+%04X should be %d", point, want);
    }
}

TEST(a_character_that_is_cut_is_bad_and_nothing_behind_the_cut_is_read)
{
    static const uint32_t points[] = {0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF,
                                      0x10000, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, 0x10FFFF};
    uint8_t c[4];

    for (size_t k = 0; k < sizeof points / sizeof points[0]; k++) {
        size_t n = encode(points[k], c);
        for (size_t before = 0; before < 3; before++)
            for (size_t cut = 0; cut <= n; cut++) {
                size_t size = before + cut;
                uint8_t *p = guard_new(size);
                if (size > 0) memset(p, 'a', size);
                if (cut > 0) memcpy(p + before, c, cut);
                CHECK_EQ(bytes_is_utf8(bytes_of(p, size)), cut == 0 || cut == n);
                guard_free(p, size);
            }
    }
}

TEST(forms_that_look_like_characters_are_refused)
{
    static const char *const bad[] = {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80",
                                      "\xED\xBF\xBF", "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80", "\xFE", "\xFF", "\x80", "\xBF", "a\x80", "\xC2-",
                                      "\xF8\x88\x80\x80\x80", "\xE2\x82", "\xE2\x28\xA1", "\xED\xA0\xBD\xED\xB8\x80"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (bytes_is_utf8(bytes_text(bad[i]))) test_fail(__FILE__, __LINE__, "form %zu is taken", i);
    CHECK(bytes_is_utf8(bytes_of(NULL, 0)));
    CHECK(bytes_is_utf8(bytes_text("Gr\xC3\xB6\xC3\x9F" "e \xE2\x82\xAC \xF0\x9F\x98\x80")));
    CHECK(!bytes_is_utf8(bytes_of("a\0b", 3)));
}

TEST(a_name_on_its_way_to_a_terminal_loses_what_the_terminal_would_obey)
{
    static const struct { const char *from, *line, *lines; } rows[] = {
        {"", "", ""},
        {"plain \xC3\xB6 \xE2\x82\xAC \xF0\x9F\x98\x80", "plain \xC3\xB6 \xE2\x82\xAC \xF0\x9F\x98\x80",
         "plain \xC3\xB6 \xE2\x82\xAC \xF0\x9F\x98\x80"},
        {"a\x1b[2J\x7f\r\t", "a?[2J???", "a?[2J???"},
        {"a\nb", "a?b", "a\nb"},
        {"\xC2\x80\xC2\x9B\xC2\xA0", "??\xC2\xA0", "??\xC2\xA0"},
        {"\xE2\x80\xAA\xE2\x80\xAE\xE2\x81\xA6\xE2\x81\xA9\xE2\x80\xAF", "????\xE2\x80\xAF", "????\xE2\x80\xAF"},
        {"\xE2\x80\x8E\xE2\x80\xA8\xE2\x80\xA7", "??\xE2\x80\xA7", "??\xE2\x80\xA7"},
        {"\xE2\x82\xAC\x9B\xE2\x82", "\xE2\x82\xAC???", "\xE2\x82\xAC???"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[64];
        strcpy(text, rows[i].from);
        text_plain(text, false);
        CHECK_TEXT(text, rows[i].line);
        strcpy(text, rows[i].from);
        text_plain(text, true);
        CHECK_TEXT(text, rows[i].lines);
    }
}

TEST(a_buffer_holds_what_was_added_in_order)
{
    enum { MOST = 200000 };
    static uint8_t want[MOST], piece[700];
    struct buf b = {0};
    uint64_t rng = 1;
    size_t size = 0;

    for (;;) {
        size_t n = rng_next(&rng) % sizeof piece;
        if (size + n > MOST) break;
        for (size_t i = 0; i < n; i++) want[size + i] = piece[i] = (uint8_t)rng_next(&rng);
        buf_add(&b, piece, n);
        size += n;
        CHECK_EQ(b.size, size);
        CHECK(b.capacity >= size);
    }
    CHECK(!b.failed && memcmp(b.at, want, size) == 0);
    buf_fini(&b);
    CHECK(b.at == NULL && b.size == 0 && b.capacity == 0 && !b.failed);
}

TEST(a_buffer_grows_by_doubling)
{
    struct buf b = {0};
    size_t grown = 0, capacity = 0;

    for (unsigned i = 0; i < 1u << 20; i++) {
        buf_add(&b, "x", 1);
        if (b.capacity == capacity) continue;
        CHECK(capacity == 0 || b.capacity == capacity * 2);
        capacity = b.capacity;
        grown++;
    }
    CHECK(grown < 20);
    buf_fini(&b);
}

TEST(text_and_format_leave_no_zero_in_the_content)
{
    struct buf b = {0};

    buf_text(&b, "one ");
    buf_format(&b, "%d%s", 2, "nd");
    buf_format(&b, "%s", "");
    buf_text(&b, "");
    buf_add(&b, NULL, 0);
    CHECK(bytes_equal(bytes_of(b.at, b.size), bytes_text("one 2nd")));
    buf_fini(&b);
}

TEST(format_of_every_length_around_a_growth_is_whole)
{
    for (int n = 500; n < 530; n++) {
        struct buf b = {0};
        buf_format(&b, "%*d", n, 7);
        CHECK_EQ(b.size, n);
        CHECK(b.at[0] == ' ' && b.at[n - 1] == '7' && b.capacity > b.size);
        buf_fini(&b);
    }
}

TEST(a_format_that_cannot_be_printed_fails_the_buffer)
{
    static const wchar_t euro[] = {0x20AC, 0};
    struct buf b = {0};

    buf_text(&b, "four");
    buf_format(&b, "%ls", euro); /* has no bytes in the locale "C" */
    CHECK(b.failed);
    CHECK_EQ(b.size, 4);
    buf_fini(&b);
}

TEST(room_of_nothing_is_not_a_failure)
{
    struct buf b = {0};

    CHECK(buf_room(&b, 0) != NULL);
    CHECK(!b.failed);
    CHECK_EQ(b.size, 0);
    buf_fini(&b);
}

TEST(pad_adds_zeros_up_to_the_multiple)
{
    for (size_t align = 1; align <= 4096; align *= 2)
        for (size_t size = 0; size < 140; size += 1 + align / 64) {
            struct buf b = {0};
            uint8_t *to = buf_room(&b, size);
            CHECK(to != NULL);
            memset(to, 0xFF, size);
            buf_pad(&b, align);
            CHECK_EQ(b.size, (size + align - 1) / align * align);
            for (size_t i = 0; i < b.size; i++) CHECK_EQ(b.at[i], i < size ? 0xFF : 0);
            buf_fini(&b);
        }
}

TEST(a_failure_sticks_until_clear_and_adds_nothing)
{
    struct buf b = {0};

    buf_text(&b, "kept");
    mem_fault_at(1);
    CHECK(buf_room(&b, 10000) == NULL);
    CHECK(mem_fault_hit() && b.failed);
    mem_fault_at(0);
    buf_text(&b, "x");
    buf_format(&b, "%d", 1);
    buf_pad(&b, 64);
    CHECK(buf_room(&b, 1) == NULL && buf_room(&b, 0) == NULL);
    CHECK(b.failed);
    CHECK_EQ(b.size, 4);
    uint8_t *block = b.at;
    buf_clear(&b);
    CHECK(!b.failed && b.size == 0 && b.at == block && b.capacity > 0);
    buf_text(&b, "again");
    CHECK(bytes_equal(bytes_of(b.at, b.size), bytes_text("again")));
    buf_fini(&b);
}

TEST(a_size_that_no_memory_can_hold_fails_without_overflow)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 3, SIZE_MAX / 2 + 1, SIZE_MAX / 2,
                                   SIZE_MAX / 2 - 3, SIZE_MAX / 4};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct buf b = {0};
        buf_text(&b, "four");
        CHECK(buf_room(&b, sizes[i]) == NULL);
        CHECK(b.failed && b.size == 4);
        buf_fini(&b);
    }
}

static void compose(struct buf *b)
{
    buf_text(b, "{\"a\":");
    for (int i = 0; i < 300; i++) buf_format(b, "%d,", i);
    buf_pad(b, 8);
    void *room = buf_room(b, 3000);
    if (room != NULL) memset(room, 'r', 3000);
    buf_add(b, "end", 3);
}

TEST(a_composer_with_any_allocation_failing_ends_failed_and_leaks_nothing)
{
    int64_t before = mem_live();
    bool hit = true;
    uint64_t n = 0;

    while (hit) {
        struct buf b = {0};
        mem_fault_at(++n);
        compose(&b);
        hit = mem_fault_hit();
        mem_fault_at(0);
        CHECK_EQ(b.failed, hit);
        if (!hit) CHECK(memcmp(b.at + b.size - 4, "rend", 4) == 0);
        buf_fini(&b);
        CHECK_EQ(mem_live(), before);
    }
    CHECK(n >= 5);
}

TEST(a_number_is_written_as_short_as_it_reads_back)
{
    static const struct {
        double number;
        const char *text;
    } cases[] = {
        {0, "0.0"}, {1, "1.0"}, {-2.5, "-2.5"}, {0.1, "0.1"}, {1e-8, "1e-08"}, {1e300, "1e+300"},
        {0.30000000000000004, "0.30000000000000004"}, {5e-324, "4.94065645841247e-324"}, {1.0 / 0.0, "null"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b = {0};
        buf_number(&b, cases[i].number);
        buf_add(&b, "", 1);
        CHECK(!b.failed);
        CHECK_TEXT((const char *)b.at, cases[i].text);
        buf_fini(&b);
    }
}
