/* The frames of api/protocol.md, section 10: each is composed here from its fields and must be the bytes that stand in
 * the document, and the document's bytes must read back to the fields. `REGENERATE=1 test_protocol` prints the section
 * as it should be. Runs in the root of the checkout. */
#include "api/wire.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct wire_id worker = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
static const float ones[4] = {1, 1, 1, 1};

struct frame {
    struct wire_header header;
    struct buf fixed, desc, body;
};

static void begin(struct frame *f, unsigned method, unsigned flags, uint64_t sequence)
{
    *f = (struct frame){.header = {.method = (uint8_t)method, .flags = (uint16_t)flags, .worker = worker, .epoch = 1,
                                   .session = 7, .sequence = sequence, .deadline_ms = 75000}};
}

static void hello(struct frame *f)
{
    begin(f, WIRE_Hello, 0, 0);
    f->header.epoch = f->header.session = 0;
    buf_text(&f->body, "{\"client\":\"example 1\"}");
}

static void init_check(struct frame *f)
{
    struct wire_init fixed = {.store = 1, .count = 1, .call = 1, .on_reinit = REINIT_ERROR};
    struct wire_init_entry x = {.total = 16, .name_size = 1, .key_type = KEY_STR, .dtype = 0, .ndim = 1};
    static const uint8_t dim[8] = {4}, name[8] = {'w'};

    begin(f, WIRE_Init, WIRE_FLAG_CHECK, 0);
    wire_put_init(&f->fixed, &fixed);
    wire_put_init_entry(&f->desc, &x);
    buf_add(&f->desc, dim, 8);
    buf_add(&f->desc, name, 8);
}

static void init_check_answer(struct frame *f)
{
    struct wire_init_done fixed = {.count = 1};
    struct wire_init_result x = {.outcome = INIT_NEED_VALUE};

    begin(f, WIRE_Init, WIRE_FLAG_ANSWER, 0);
    f->header.deadline_ms = 0;
    wire_put_init_done(&f->fixed, &fixed);
    wire_put_init_result(&f->desc, &x);
}

static void push(struct frame *f)
{
    struct wire_push fixed = {.store = 1, .count = 1};
    struct wire_push_entry x = {.key = 3, .step = 1, .size = 16, .total = 16};

    begin(f, WIRE_Push, 0, 5);
    wire_put_push(&f->fixed, &fixed);
    wire_put_push_entry(&f->desc, &x);
    buf_add(&f->body, ones, sizeof ones);
}

static void push_answer(struct frame *f)
{
    struct wire_push_done fixed = {.recorded = 1, .window = 1 << 30, .applied = 1};

    begin(f, WIRE_Push, WIRE_FLAG_ANSWER, 5);
    f->header.deadline_ms = 0;
    wire_put_push_done(&f->fixed, &fixed);
}

/* As the one before it, with the four ones in mailbox 2. */
static void push_mailbox(struct frame *f)
{
    struct wire_place place = {.mailbox = 2, .offset = 4096};

    push(f);
    f->header.flags = WIRE_FLAG_MAILBOX;
    buf_clear(&f->body);
    wire_put_place(&f->body, &place);
}

static void pull(struct frame *f)
{
    struct wire_pull fixed = {.store = 1, .count = 1};
    struct wire_pull_entry x = {.key = 3};

    begin(f, WIRE_Pull, 0, 0);
    wire_put_pull(&f->fixed, &fixed);
    wire_put_pull_entry(&f->desc, &x);
}

static void pull_answer(struct frame *f)
{
    struct wire_pull_done fixed = {.count = 1};
    struct wire_pull_result x = {.key = 3, .version = 2, .size = 16, .total = 16};

    begin(f, WIRE_Pull, WIRE_FLAG_ANSWER, 0);
    f->header.deadline_ms = 0;
    wire_put_pull_done(&f->fixed, &fixed);
    wire_put_pull_result(&f->desc, &x);
    buf_add(&f->body, ones, sizeof ones);
}

static void pull_mailbox(struct frame *f)
{
    struct wire_place place = {.mailbox = 2, .offset = 4096};

    pull(f);
    f->header.flags = WIRE_FLAG_MAILBOX;
    wire_put_place(&f->body, &place);
}

static void pull_mailbox_answer(struct frame *f)
{
    struct wire_pull_done fixed = {.count = 1};
    struct wire_pull_result x = {.key = 3, .version = 2, .size = 16, .total = 16, .flags = RESULT_IN_MAILBOX};

    begin(f, WIRE_Pull, WIRE_FLAG_ANSWER, 0);
    f->header.deadline_ms = 0;
    wire_put_pull_done(&f->fixed, &fixed);
    wire_put_pull_result(&f->desc, &x);
}

static void wait_ticket(struct frame *f)
{
    struct wire_wait fixed = {.count = 1, .want = 1, .time_ms = 500};
    struct wire_wait_entry x = {.kind = WAIT_TICKET, .store = 1, .key = 3, .number = 1};

    begin(f, WIRE_Wait, 0, 0);
    wire_put_wait(&f->fixed, &fixed);
    wire_put_wait_entry(&f->desc, &x);
}

static void wait_answer(struct frame *f)
{
    struct wire_wait_done fixed = {.count = 1};
    struct wire_wait_result x = {.index = 0, .state = WAIT_DONE, .version = 2};

    begin(f, WIRE_Wait, WIRE_FLAG_ANSWER, 0);
    f->header.deadline_ms = 0;
    wire_put_wait_done(&f->fixed, &fixed);
    wire_put_wait_result(&f->desc, &x);
}

static const struct wire_slot momentum = {.count = 4, .dtype = 0, .name_size = 8};

static void put_state_names(struct buf *desc)
{
    static const uint8_t sgd[8] = "sgd";

    buf_add(desc, sgd, 8);
    wire_put_slot(desc, &momentum);
    buf_text(desc, "momentum");
}

static void get_states(struct frame *f)
{
    struct wire_states fixed = {.store = 1, .count = 1};
    struct wire_states_entry x = {.key = 3};

    begin(f, WIRE_GetStates, 0, 0);
    wire_put_states(&f->fixed, &fixed);
    wire_put_states_entry(&f->desc, &x);
}

static void get_states_answer(struct frame *f)
{
    struct wire_states_done fixed = {.count = 1};
    struct wire_state x = {.key = 3, .copy = 1, .updates = 2, .since_begun = 2, .product = wire_of_double(1), .size = 16,
                           .total = 16, .slots = 1, .updater_size = 3};

    begin(f, WIRE_GetStates, WIRE_FLAG_ANSWER, 0);
    f->header.deadline_ms = 0;
    wire_put_states_done(&f->fixed, &fixed);
    wire_put_state(&f->desc, &x);
    put_state_names(&f->desc);
    buf_add(&f->body, ones, sizeof ones);
}

static void set_states(struct frame *f)
{
    struct wire_states fixed = {.store = 1, .count = 1};
    struct wire_state x = {.key = 3, .updates = 2, .since_begun = 2, .product = wire_of_double(1), .size = 16, .total = 16,
                           .slots = 1, .updater_size = 3};

    begin(f, WIRE_SetStates, 0, 6);
    wire_put_states(&f->fixed, &fixed);
    wire_put_state(&f->desc, &x);
    put_state_names(&f->desc);
    buf_add(&f->body, ones, sizeof ones);
}

static void set_states_answer(struct frame *f)
{
    struct wire_states_done fixed = {.count = 1};

    begin(f, WIRE_SetStates, WIRE_FLAG_ANSWER, 6);
    f->header.deadline_ms = 0;
    wire_put_states_done(&f->fixed, &fixed);
}

static void error_answer(struct frame *f)
{
    struct wire_error fixed = {.retry_ms = 0};

    begin(f, WIRE_Push, WIRE_FLAG_ANSWER, 5);
    f->header.deadline_ms = 0;
    f->header.status = STATUS_NOT_FOUND;
    f->header.reason = REASON_NO_STORE;
    wire_put_error(&f->fixed, &fixed);
    buf_text(&f->body, "there is no store with id 1");
}

static const struct {
    const char *title;
    void (*make)(struct frame *f);
} frames[] = {
    {"Hello", hello},
    {"Init with flag check: string key w, float32 (4,)", init_check},
    {"its answer: send the value", init_check_answer},
    {"Push of four ones to key id 3, step 1", push},
    {"its answer: recorded", push_answer},
    {"the same Push out of mailbox 2", push_mailbox},
    {"Pull of key id 3", pull},
    {"its answer: version 2", pull_answer},
    {"the same Pull into mailbox 2", pull_mailbox},
    {"its answer: version 2 is there", pull_mailbox_answer},
    {"Wait for push 1 of key id 3", wait_ticket},
    {"its answer: applied, version 2", wait_answer},
    {"GetStates of key id 3", get_states},
    {"its answer: sgd's momentum, four ones, after 2 updates", get_states_answer},
    {"SetStates of the same", set_states},
    {"its answer: in place", set_states_answer},
    {"an error", error_answer},
};
enum { FRAMES = sizeof frames / sizeof frames[0] };

static void composed(unsigned i, struct frame *f, struct buf *out)
{
    frames[i].make(f);
    struct bytes body = bytes_of(f->body.at, f->body.size);
    CHECK(wire_head_write(out, &f->header, bytes_of(f->fixed.at, f->fixed.size), bytes_of(f->desc.at, f->desc.size),
                          body.size, &body, 1));
    buf_add(out, body.at, body.size);
    CHECK(!out->failed);
}

static void frame_fini(struct frame *f, struct buf *b)
{
    buf_fini(&f->fixed);
    buf_fini(&f->desc);
    buf_fini(&f->body);
    buf_fini(b);
}

static void print_section(void)
{
    for (unsigned i = 0; i < FRAMES; i++) {
        struct frame f;
        struct buf b = {0};
        composed(i, &f, &b);
        printf("**%s**\n\n```hex\n", frames[i].title);
        for (size_t k = 0; k < b.size; k++) printf("%02x%s", b.at[k], k % 16 == 15 || k + 1 == b.size ? "\n" : " ");
        printf("```\n\n");
        frame_fini(&f, &b);
    }
}

/* The bytes of the code block that follows **title** in the document. */
static size_t from_document(const char *title, uint8_t *out, size_t room)
{
    static char text[1 << 17];
    FILE *file = fopen("api/protocol.md", "r");
    char mark[128];
    size_t size = 0;

    if (file == NULL) test_fail(__FILE__, __LINE__, "api/protocol.md is not here; run in the root of the checkout");
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    snprintf(mark, sizeof mark, "**%s**\n\n```hex\n", title);
    const char *at = strstr(text, mark);
    if (at == NULL) test_fail(__FILE__, __LINE__, "the document has no frame \"%s\"", title);
    at += strlen(mark);
    for (unsigned v; size < room && *at != '`' && sscanf(at, "%2x", &v) == 1; at += 3) out[size++] = (uint8_t)v;
    return size;
}

TEST(the_documents_frames_are_what_the_lists_make)
{
    if (getenv("REGENERATE") != NULL) print_section();
    for (unsigned i = 0; i < FRAMES; i++) {
        uint8_t golden[4096];
        size_t size = from_document(frames[i].title, golden, sizeof golden);
        struct frame f;
        struct buf b = {0};
        composed(i, &f, &b);
        CHECK_EQ(size, b.size);
        for (size_t k = 0; k < size; k++)
            if (golden[k] != b.at[k])
                test_fail(__FILE__, __LINE__, "%s: byte %zu is %02x in the document, %02x from the lists",
                          frames[i].title, k, golden[k], b.at[k]);
        frame_fini(&f, &b);
    }
}

TEST(the_documents_frames_read_back)
{
    for (unsigned i = 0; i < FRAMES; i++) {
        uint8_t golden[4096];
        size_t size = from_document(frames[i].title, golden, sizeof golden);
        struct wire_header h;
        struct error e;
        CHECK_OK(wire_header_read(bytes_of(golden, size), size, &h, &e), &e);
        CHECK(wire_method_name(h.method) != NULL);
        CHECK_EQ(wire_head_size(&h) + h.body_size, size);
        CHECK_EQ((4 + wire_head_size(&h)) % WIRE_ALIGN, 0);
        /* Any byte of the header that is changed is noticed. */
        for (size_t k = 0; k < WIRE_HEADER_SIZE; k++) {
            golden[k] ^= 0x40;
            CHECK(wire_header_read(bytes_of(golden, size), size, &h, &e) != STATUS_OK);
            golden[k] ^= 0x40;
        }
    }
}

TEST(the_document_names_every_method)
{
    static char text[1 << 17];
    FILE *file = fopen("api/protocol.md", "r");

    CHECK(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    for (unsigned m = 1; m < WIRE_METHODS_END; m++) {
        char row[64];
        if (wire_method_name(m) == NULL) continue;
        snprintf(row, sizeof row, "| %u | %s |", m, wire_method_name(m));
        CHECK_SAYS(text, row);
    }
}
