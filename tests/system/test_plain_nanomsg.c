/* How little a client needs: libnanomsg's own REQ socket and api/wire.h. It says HELLO, creates a store, joins it, and
 * inits, pushes and pulls one key. A cooked REQ has one request at a time, which is all that is wanted here. */
#include "api/wire.h"
#include "tests/lib/daemon.h"
#include "tests/lib/test.h"

#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 4 };

static struct error e;
static int sock;
static struct wire_header mine = {.worker = {{0x70, 0x6c, 0x61, 0x69, 0x6e}}};     /* any id, but always the same one */

/* An answer: the message of libnanomsg, and where its parts lie. */
struct answer {
    uint8_t *message;
    struct wire_header header;
    struct reader fixed, desc;
    struct bytes body;
};

/* One request and its answer, which must be OK. The caller frees the message. */
static struct answer call(unsigned method, unsigned flags, struct buf *fixed, struct buf *desc, const void *body,
                          size_t size)
{
    struct wire_header h = mine;
    struct buf frame = {0};
    struct answer a = {0};

    h.method = (uint8_t)method;
    h.flags = (uint16_t)flags;
    if (wire_method_flags(method) & WIRE_WRITES) h.sequence = ++mine.sequence;
    CHECK(wire_head_write(&frame, &h, bytes_of(fixed->at, fixed->size), bytes_of(desc->at, desc->size), size, NULL, 0));
    buf_add(&frame, body, size);
    CHECK(nn_send(sock, frame.at, frame.size, 0) == (int)frame.size);
    int got = nn_recv(sock, &a.message, NN_MSG, 0);
    CHECK(got > 0);
    CHECK_OK(wire_header_read(bytes_of(a.message, (size_t)got), (uint64_t)got, &a.header, &e), &e);
    a.fixed = reader_of(bytes_of(a.message + WIRE_HEADER_SIZE, a.header.fixed_size));
    a.desc = reader_of(bytes_of(a.message + WIRE_HEADER_SIZE + a.header.fixed_size, a.header.desc_size));
    a.body = bytes_of(a.message + wire_head_size(&a.header), a.header.body_size);
    if (a.header.status != 0) test_fail(__FILE__, __LINE__, "%.*s", (int)a.body.size, (const char *)a.body.at);
    buf_fini(&frame);
    buf_fini(fixed);
    buf_fini(desc);
    return a;
}

static char text[4096];          /* of the last JSON answer */

static void ask(unsigned method, const char *document)
{
    struct buf none = {0};
    struct answer a = call(method, 0, &none, &none, document, strlen(document));

    snprintf(text, sizeof text, "%.*s", (int)a.body.size, (const char *)a.body.at);
    nn_freemsg(a.message);
}

/* A number of the answer, found the short way: a real client reads JSON. */
static uint32_t number(const char *member)
{
    char quoted[64];
    unsigned value = 0;

    snprintf(quoted, sizeof quoted, "\"%s\":", member);
    const char *at = strstr(text, quoted);
    CHECK(at != NULL && sscanf(at + strlen(quoted), "%u", &value) == 1);
    return value;
}

static struct wire_init_result init(uint32_t store, unsigned flags, const float *value)
{
    struct buf fixed = {0}, desc = {0};
    int64_t dims[] = {COUNT};
    uint64_t size = sizeof(float[COUNT]);
    struct wire_init_result r;

    wire_put_init(&fixed, &(struct wire_init){.store = store, .count = 1, .call = 1});
    wire_put_init_entry(&desc, &(struct wire_init_entry){
        .size = value != NULL ? size : 0, .total = size, .name_size = 1, .key_type = KEY_STR, .ndim = 1});
    buf_add(&desc, dims, sizeof dims); /* as they lie in memory here: little-endian */
    buf_text(&desc, "w");
    buf_pad(&desc, 8);
    struct answer a = call(WIRE_Init, flags, &fixed, &desc, value, value != NULL ? size : 0);
    CHECK(wire_get_init_result(&a.desc, &r));
    nn_freemsg(a.message);
    return r;
}

static void push(uint32_t store, uint64_t key, uint64_t step, const float *value)
{
    struct buf fixed = {0}, desc = {0};
    uint64_t size = sizeof(float[COUNT]);
    struct wire_push_done done;

    wire_put_push(&fixed, &(struct wire_push){.store = store, .count = 1});
    wire_put_push_entry(&desc, &(struct wire_push_entry){.key = key, .step = step, .size = size, .total = size});
    struct answer a = call(WIRE_Push, 0, &fixed, &desc, value, size);
    CHECK(wire_get_push_done(&a.fixed, &done));
    CHECK_EQ(done.recorded, 1);
    nn_freemsg(a.message);
}

static void wait_applied(uint32_t store, uint64_t key, uint64_t step)
{
    struct buf fixed = {0}, desc = {0};
    struct wire_wait_result r;

    wire_put_wait(&fixed, &(struct wire_wait){.count = 1, .want = 1, .time_ms = 1000});
    wire_put_wait_entry(&desc, &(struct wire_wait_entry){.kind = WAIT_TICKET, .store = store, .key = key, .number = step});
    struct answer a = call(WIRE_Wait, 0, &fixed, &desc, NULL, 0);
    CHECK(wire_get_wait_result(&a.desc, &r));
    CHECK_EQ(r.state, WAIT_DONE);
    nn_freemsg(a.message);
}

static void pull(uint32_t store, uint64_t key, float *value)
{
    struct buf fixed = {0}, desc = {0};

    wire_put_pull(&fixed, &(struct wire_pull){.store = store, .count = 1});
    wire_put_pull_entry(&desc, &(struct wire_pull_entry){.key = key});
    struct answer a = call(WIRE_Pull, 0, &fixed, &desc, NULL, 0);
    CHECK_EQ(a.body.size, sizeof(float[COUNT]));
    memcpy(value, a.body.at, a.body.size);
    nn_freemsg(a.message);
}

TEST(a_few_lines_of_plain_nanomsg_are_a_client)
{
    struct daemon *d = daemon_start(NULL);
    float value[COUNT] = {1, 2, 3, 4}, gradient[COUNT] = {8, 8, 8, 8};
    char join[64];

    sock = nn_socket(AF_SP, NN_REQ);
    CHECK(sock >= 0 && nn_connect(sock, d->data) >= 0);

    ask(WIRE_Hello, "{\"client\": \"plain\"}");
    mine.session = number("session");
    mine.epoch = number("epoch");
    ask(WIRE_Create, "{\"store\": \"default\", \"type\": \"dist_async\"}");
    uint32_t store = number("id");
    snprintf(join, sizeof join, "{\"store\": %u}", store);
    ask(WIRE_Join, join);
    CHECK_EQ(number("rank"), 0);

    CHECK_EQ(init(store, WIRE_FLAG_CHECK, NULL).outcome, INIT_NEED_VALUE);
    struct wire_init_result key = init(store, 0, value);
    CHECK_EQ(key.outcome, INIT_CREATED);
    push(store, key.key, key.next_step, gradient);
    wait_applied(store, key.key, key.next_step);
    pull(store, key.key, value);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(value[i], 8, 0);

    nn_close(sock);
    CHECK_EQ(daemon_stop(d), 0);
}
