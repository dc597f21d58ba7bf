/* Statuses, reasons and the sentence of an error. */
#include "service/base/status.h"

#include "service/base/bytes.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

struct row {
    unsigned number;
    const char *name, *code, *title;
    enum status status;
    unsigned http;
};

static const struct row rows[] = {
#define ROW(number, name, code, status, http, title) {number, #name, code, title, STATUS_##status, http},
    REASONS(ROW)
#undef ROW
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

/* As gRPC's "Status codes and their use" has them. */
static const char *const grpc[] = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
                                   "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
                                   "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
                                   "UNAUTHENTICATED"};
enum { GRPC_COUNT = sizeof grpc / sizeof grpc[0] };

TEST(statuses_have_the_names_and_numbers_of_grpc)
{
    size_t count = 0;

#define COUNT(name, wire, text) count++;
    STATUSES(COUNT)
#undef COUNT
    CHECK_EQ(count, GRPC_COUNT);
    for (uint32_t i = 0; i < GRPC_COUNT; i++) {
        CHECK_TEXT(status_name((enum status)i), grpc[i]);
        CHECK_EQ(status_from_wire(i), i);
    }
}

TEST(a_number_that_is_no_status_is_unknown)
{
    static const uint32_t wires[] = {GRPC_COUNT, 100, 0x7fffffff, 0x80000000, 0xffffffff};

    for (size_t i = 0; i < sizeof wires / sizeof wires[0]; i++) {
        CHECK_EQ(status_from_wire(wires[i]), STATUS_UNKNOWN);
        CHECK_TEXT(status_name((enum status)wires[i]), "UNKNOWN");
    }
}

TEST(reasons_are_numbered_without_gap_or_repeat)
{
    for (unsigned i = 0; i < ROW_COUNT; i++) {
        CHECK_EQ(rows[i].number, i);
        CHECK_EQ(reason_from_wire(i), i);
    }
}

TEST(a_reason_keeps_its_number)
{
    static const char *const codes[] = {
        "none", "out-of-memory", "malformed-frame", "invalid-argument", "malformed-json", "unknown-parameter",
        "no-such-store", "no-such-key", "no-such-worker", "key-exists", "store-differs", "mixed-key-types",
        "shape-mismatch", "validation-failed", "updater-incompatible", "not-joined", "stale-epoch", "step-ahead",
        "step-order", "staging-full", "in-flight-limit", "too-large", "worker-dead", "round-failed", "round-open",
        "push-late", "start-timeout", "deadline", "sum-overflow", "sequence-too-old", "version-revoked",
        "unknown-method", "unimplemented", "hello-required", "invalid-token", "draining", "unreachable",
        "daemon-restarted", "device-unavailable", "checksum", "cancelled", "closed", "used-after-fork",
        "updater-needed", "limit-reached", "system", "internal", "reentrant-call", "callback-failed", "key-deleted"};

    CHECK(ROW_COUNT >= sizeof codes / sizeof codes[0]);
    for (uint32_t i = 0; i < sizeof codes / sizeof codes[0]; i++) CHECK_TEXT(reason_code(reason_from_wire(i)), codes[i]);
}

TEST(a_number_that_is_no_reason_is_internal)
{
    static const uint32_t wires[] = {ROW_COUNT, ROW_COUNT + 1, 0x7fffffff, 0x80000000, 0xffffffff};

    for (size_t i = 0; i < sizeof wires / sizeof wires[0]; i++) {
        CHECK_EQ(reason_from_wire(wires[i]), REASON_INTERNAL);
        CHECK_TEXT(reason_code((enum reason)wires[i]), "internal");
        CHECK_EQ(reason_status((enum reason)wires[i]), STATUS_INTERNAL);
        CHECK_EQ(reason_http((enum reason)wires[i]), 500);
    }
}

TEST(codes_are_unique)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(rows[i].code, rows[k].code) == 0)
                test_fail(__FILE__, __LINE__, "%s and %s are both \"%s\"", rows[i].name, rows[k].name, rows[i].code);
}

/* lower-case words joined by single dashes */
static bool is_kebab(const char *s)
{
    for (const char *p = s; *p != '\0'; p++) {
        bool word = (*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9' && p > s);
        bool dash = *p == '-' && p > s && p[-1] != '-' && p[1] != '\0';
        if (!word && !dash) return false;
    }
    return *s != '\0';
}

TEST(codes_are_kebab_case)
{
    CHECK(!is_kebab("") && !is_kebab("-a") && !is_kebab("a-") && !is_kebab("a--b") && !is_kebab("a_b") && !is_kebab("A"));
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (!is_kebab(rows[i].code)) test_fail(__FILE__, __LINE__, "\"%s\"", rows[i].code);
}

TEST(each_reason_answers_its_own_row)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        enum reason r = (enum reason)rows[i].number;
        CHECK_TEXT(reason_code(r), rows[i].code);
        CHECK_TEXT(reason_title(r), rows[i].title);
        CHECK_EQ(reason_status(r), rows[i].status);
        CHECK_EQ(reason_http(r), rows[i].http);
    }
}

TEST(only_no_error_is_ok_and_all_others_are_http_errors)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        CHECK_EQ(rows[i].status == STATUS_OK, i == REASON_NONE);
        if (i == REASON_NONE) CHECK_EQ(rows[i].http, 200);
        else CHECK(rows[i].http >= 400 && rows[i].http <= 599);
        CHECK(rows[i].title[0] != '\0' && bytes_is_utf8(bytes_text(rows[i].title)));
    }
}

TEST(error_set_fills_all_and_answers_the_status)
{
    struct error e;

    memset(&e, 0xFF, sizeof e);
    CHECK_EQ(error_set(&e, REASON_NO_KEY, "no key %d in %s", 7, "store"), STATUS_NOT_FOUND);
    CHECK_EQ(e.status, STATUS_NOT_FOUND);
    CHECK_EQ(e.reason, REASON_NO_KEY);
    CHECK_EQ(e.retry_ms, 0);
    CHECK_TEXT(e.text, "no key 7 in store");
}

TEST(error_retry_tells_when)
{
    struct error e;

    CHECK_EQ(error_retry(&e, REASON_DRAINING, 250, "draining"), STATUS_UNAVAILABLE);
    CHECK_EQ(e.retry_ms, 250);
    CHECK_EQ(e.reason, REASON_DRAINING);
    CHECK_TEXT(e.text, "draining");
    CHECK_EQ(error_set(&e, REASON_DRAINING, "%s", ""), STATUS_UNAVAILABLE);
    CHECK_EQ(e.retry_ms, 0);
    CHECK_TEXT(e.text, "");
}

TEST(without_an_error_only_the_status_is_answered)
{
    CHECK_EQ(error_set(NULL, REASON_TOO_LARGE, "%d", 1), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(error_retry(NULL, REASON_DEADLINE, 1, "%d", 1), STATUS_DEADLINE_EXCEEDED);
}

/* `ascii` letters and then characters of the given kind, up to about `size` bytes. */
static size_t fill(char *text, const char *character, size_t ascii, size_t size)
{
    size_t n = strlen(character), at = ascii;

    memset(text, 'a', ascii);
    for (; at + n <= size; at += n) memcpy(text + at, character, n);
    text[at] = '\0';
    return at;
}

TEST(a_text_of_any_length_around_the_limit_is_cut_at_a_character)
{
    static const char *const characters[] = {"z", "\xC3\xB6", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    char text[ERROR_TEXT_SIZE + 64];
    struct error e;

    for (size_t k = 0; k < 4; k++)
        for (size_t ascii = 0; ascii < 5; ascii++)
            for (size_t size = ERROR_TEXT_SIZE - 20; size < ERROR_TEXT_SIZE + 40; size++) {
                size_t length = fill(text, characters[k], ascii, size), width = k + 1;
                size_t most = ERROR_TEXT_SIZE - 1;
                size_t want = length <= most ? length : ascii + (most - ascii) / width * width;
                memset(&e, 'x', sizeof e);
                error_set(&e, REASON_INTERNAL, "%s", text);
                CHECK(memchr(e.text, '\0', sizeof e.text) != NULL);
                CHECK_EQ(strlen(e.text), want);
                CHECK(memcmp(e.text, text, want) == 0);
                CHECK(bytes_is_utf8(bytes_text(e.text)));
            }
}

TEST(a_text_that_is_no_utf8_is_cut_without_reading_outside)
{
    char text[ERROR_TEXT_SIZE + 64];
    struct error e;

    for (unsigned c = 0x80; c <= 0xFF; c++) {
        memset(text, (int)c, sizeof text - 1);
        text[sizeof text - 1] = '\0';
        error_set(&e, REASON_INTERNAL, "%s", text);
        size_t n = strlen(e.text);
        CHECK(n <= ERROR_TEXT_SIZE - 1 && n >= ERROR_TEXT_SIZE - 2);
    }
}

/* What a parser quotes may be cut in a character, or be none. */
TEST(a_sentence_is_utf8_whatever_it_quotes)
{
    struct error e;

    for (unsigned a = 1; a <= 0xFF; a++)
        for (unsigned b = 1; b <= 0xFF; b++) {
            const char quoted[] = {(char)a, (char)b, '\0'};
            error_set(&e, REASON_BAD_JSON, "near '%s', \xC3\xB6", quoted);
            CHECK(bytes_is_utf8(bytes_text(e.text)));
            CHECK_EQ(strlen(e.text), 13);
            bool whole = bytes_is_utf8(bytes_of(quoted, 2));
            CHECK(!whole || memcmp(e.text + 6, quoted, 2) == 0);
            CHECK(memcmp(e.text + 8, "', \xC3\xB6", 5) == 0);
        }
}
