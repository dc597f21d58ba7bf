/* Both doors with real sockets, our own clients and libnanomsg's. The server behind them is a small one in this file,
 * and the clock is the test's. */
#include "service/transport.h"
#include "service/base/mem.h"
#include "service/transport_common.h"
#include "tests/lib/test.h"

#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <nanomsg/tcp.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static struct error e;

/* ---- the server ----------------------------------------------------------------------------------------------- */

struct peer {
    const struct peer_ops *ops;
    void *link;
    unsigned waiting;            /* answers that have not come back */
};

struct answer {
    struct outgoing o;
    struct segment segment;
    struct peer *peer;
};

enum { BODY_MAX = 4 << 20 };

static uint8_t pattern[BODY_MAX];
static uint8_t landing[BODY_MAX];
static struct {
    unsigned peers, gone, frames, refused, lost;
    enum placement where;
    bool hold;                   /* answers are kept, for the test to give */
    struct answer *held[64];
    unsigned held_count;
    uint32_t body_crc;           /* of the last request */
    bool body;
    char says[ERROR_TEXT_SIZE];
} server;

static void answer_done(struct outgoing *o, bool sent)
{
    struct answer *a = CONTAINER_OF(o, struct answer, o);

    if (!sent) server.lost++;
    a->peer->waiting--;
    buf_fini(&o->head);
    mem_free(a);
}

static enum status small_peer_new(struct server *s, const struct peer_ops *ops, void *link, const char *address,
                                  struct peer **out, struct error *err)
{
    struct peer *p = mem_zero(sizeof *p);

    (void)s, (void)err;
    CHECK(p != NULL && address[0] != '\0');
    p->ops = ops;
    p->link = link;
    server.peers++;
    *out = p;
    return STATUS_OK;
}

static void small_peer_gone(struct peer *p)
{
    CHECK_EQ(p->waiting, 0);     /* a door gives back its frames first */
    mem_free(p);
    server.gone++;
}

static enum placement small_place(struct peer *p, const struct incoming *in, void **at)
{
    (void)p;
    CHECK(in->header.body_size <= BODY_MAX);
    *at = landing;
    return server.where;
}

/* The first fixed field of a request says how large a body its answer shall have. */
static void small_frame(struct peer *p, const struct incoming *in)
{
    struct answer *a = mem_zero(sizeof *a);
    struct wire_header h = in->header;
    struct reader r = reader_of(in->fixed);
    struct wire_error size;

    CHECK(a != NULL);
    server.frames++;
    (void)wire_get_error(&r, &size);
    if (in->status != STATUS_OK) {
        server.refused++;
        strcpy(server.says, in->error->text);
        size.retry_ms = 0;
        h.status = (uint16_t)in->status;
    }
    server.body = in->body != NULL;
    if (server.body) server.body_crc = crc32c(0, in->body, in->header.body_size);
    h.flags = WIRE_FLAG_ANSWER;
    a->peer = p;
    a->segment = (struct segment){pattern, size.retry_ms, pattern};
    a->o = (struct outgoing){.id = in->id, .segments = &a->segment, .segment_count = 1, .done = answer_done};
    CHECK(wire_head_write(&a->o.head, &h, (struct bytes){0}, (struct bytes){0}, size.retry_ms, NULL, 0));
    p->waiting++;
    if (server.hold) server.held[server.held_count++] = a;
    else p->ops->answer(p->link, &a->o);
}

static const struct transport_server small = {small_peer_new, small_peer_gone, small_place, small_frame, NULL, NULL};

/* ---- the daemon around the doors ------------------------------------------------------------------------------ */

static struct loop *loop;
static struct mailbox *box;
static struct watch box_watch;
static struct transport *door;
static uint64_t now;
static int64_t live;

static uint64_t clock_of_test(void) { return now; }
static void box_ready(struct watch *w, uint32_t events) { (void)w, (void)events, mailbox_take(box); }

typedef enum status door_open(const struct transport_config *c, const char *url, struct transport **out,
                              struct error *err);

static enum status open_with(door_open *open, const char *url, unsigned connections_max)
{
    struct transport_config c = {.calls = &small, .loop = loop, .mailbox = box, .now_ms = clock_of_test,
                                 .connections_max = connections_max};
    return open(&c, url, &door, &e);
}

static void begin(void)
{
    live = mem_live();
    memset(&server, 0, sizeof server);
    server.where = PLACE_AT;
    for (size_t i = 0; i < BODY_MAX; i++) pattern[i] = (uint8_t)(i * 7 + (i >> 9));
    now = 1000000;
    door = NULL;
    CHECK_OK(loop_new(&loop, &e), &e);
    CHECK_OK(mailbox_new(100, &box, &e), &e);
    box_watch = (struct watch){.fd = mailbox_fd(box), .ready = box_ready};
    CHECK_OK(loop_add(loop, &box_watch, EPOLLIN, &e), &e);
}

static void begin_with(door_open *open, const char *url, unsigned connections_max)
{
    begin();
    CHECK_OK(open_with(open, url, connections_max), &e);
}

static void end(void)
{
    transport_close(door);
    loop_remove(loop, &box_watch);
    mailbox_free(box);
    loop_free(loop);
    CHECK_EQ(server.gone, server.peers);
    CHECK_EQ(mem_live(), live);
}

/* Runs the daemon until a condition holds; the harness ends a test in which it never does, and names the test. */
#define TURN_UNTIL(condition)                       \
    do {                                            \
        while (!(condition)) loop_turn(loop, 5);    \
    } while (0)

/* ---- our own client ------------------------------------------------------------------------------------------- */

struct client {
    struct sp_conn *sp;
    unsigned sent, got, wrong, refused;
};

static enum placement client_place(void *ctx, const struct incoming *in, void **at)
{
    (void)ctx, (void)in, (void)at;
    return PLACE_SCRATCH;
}

static void client_frame(void *ctx, const struct incoming *in)
{
    struct client *c = ctx;

    c->got++;
    if (in->status != STATUS_OK || in->header.flags != WIRE_FLAG_ANSWER) c->wrong++;
    else if (in->header.status != STATUS_OK) c->refused++;
    else if (memcmp(in->body, pattern, in->header.body_size) != 0) c->wrong++;
}

static const struct sp_handler client_handler = {client_place, client_frame};

static int dial(void)
{
    struct address a;
    int fd, done;

    CHECK_OK(address_parse(transport_url(door), &a, &e), &e);
    if (a.ipc) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        strcpy(to.sun_path, a.path);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        done = connect(fd, (struct sockaddr *)&to, sizeof to);
    } else {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)a.port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fd = socket(AF_INET, SOCK_STREAM, 0);
        done = connect(fd, (struct sockaddr *)&to, sizeof to);
    }
    CHECK_EQ(done, 0);
    CHECK_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

static void client_new(struct client *c)
{
    bool ipc = strncmp(transport_url(door), "ipc", 3) == 0;

    *c = (struct client){0};
    CHECK_OK(sp_new(dial(), SP_REQ, ipc, FRAME_SIZE_MAX, &client_handler, c, &c->sp, &e), &e);
}

struct request {
    struct outgoing o;
    struct segment segment;
};

static void request_done(struct outgoing *o, bool sent)
{
    (void)sent;
    buf_fini(&o->head);
    mem_free(CONTAINER_OF(o, struct request, o));
}

static void write_head(struct buf *head, uint32_t sequence, size_t body_size, uint32_t answer_size)
{
    struct wire_header h = {.method = WIRE_Push, .sequence = sequence};
    struct wire_error size = {.retry_ms = answer_size};
    struct buf fixed = {0};

    wire_put_error(&fixed, &size);
    CHECK(wire_head_write(head, &h, bytes_of(fixed.at, fixed.size), (struct bytes){0}, body_size, NULL, 0));
    buf_fini(&fixed);
}

static void ask(struct client *c, size_t body_size, uint32_t answer_size)
{
    struct request *r = mem_zero(sizeof *r);

    CHECK(r != NULL);
    r->segment = (struct segment){pattern, body_size, NULL};
    r->o = (struct outgoing){.id = c->sent++ | 0x80000000u, .segments = &r->segment, .segment_count = 1,
                             .done = request_done};
    write_head(&r->o.head, c->sent, body_size, answer_size);
    sp_send(c->sp, &r->o);
}

/* Status of the client's connection after it did what it can. */
static enum status client_run(struct client *c, bool reads)
{
    enum status s = sp_write(c->sp, &e);
    return s == STATUS_OK && reads ? sp_read(c->sp, 1 << 20, &e) : s;
}

static void get_all(struct client *c)
{
    TURN_UNTIL((client_run(c, true), c->got == c->sent));
    CHECK_EQ(c->wrong, 0);
}

static bool client_is_closed(struct client *c) { return client_run(c, true) != STATUS_OK; }

/* ---- libnanomsg's client -------------------------------------------------------------------------------------- */

static int nn_client(int domain)
{
    int s = nn_socket(domain, NN_REQ), size = 16 << 20, on = 1;

    CHECK(s >= 0);
    CHECK_EQ(nn_setsockopt(s, NN_SOL_SOCKET, NN_RCVMAXSIZE, &size, sizeof size), 0);
    CHECK_EQ(nn_setsockopt(s, NN_TCP, NN_TCP_NODELAY, &on, sizeof on), 0);
    CHECK(nn_connect(s, transport_url(door)) >= 0);
    return s;
}

/* A frame with an SP header: the hops given, and an id. hops NULL: a cooked socket writes its own. */
static void nn_ask(int s, const uint32_t *path, size_t words, size_t body_size, uint32_t answer_size)
{
    _Alignas(struct nn_cmsghdr) uint8_t control[NN_CMSG_SPACE(sizeof(size_t) + 64)] = {0};
    struct nn_cmsghdr *c = (void *)control;
    size_t size = 4 * words;
    struct buf frame = {0};

    c->cmsg_len = NN_CMSG_SPACE(sizeof size + size);
    c->cmsg_level = PROTO_SP;
    c->cmsg_type = SP_HDR;
    memcpy(NN_CMSG_DATA(c), &size, sizeof size);
    for (size_t i = 0; i < words; i++) {
        uint32_t word = htonl(path[i]);
        memcpy(NN_CMSG_DATA(c) + sizeof size + 4 * i, &word, sizeof word);
    }
    write_head(&frame, words > 0 ? path[words - 1] & 0xffff : 0, body_size, answer_size);
    buf_add(&frame, pattern, body_size);
    struct nn_iovec v = {frame.at, frame.size};
    struct nn_msghdr h = {&v, 1, words > 0 ? control : NULL, words > 0 ? c->cmsg_len : 0};
    CHECK_EQ(nn_sendmsg(s, &h, 0), frame.size);
    buf_fini(&frame);
}

/* Waits for an answer; its sequence. `skip` bytes of the path are left in front of the frame by a raw socket. */
static uint64_t nn_get(int s, size_t skip, uint32_t answer_size)
{
    void *body, *control = NULL;
    struct nn_iovec v = {&body, NN_MSG};
    struct nn_msghdr h = {&v, 1, &control, NN_MSG};
    struct wire_header header;
    int n = -1;

    TURN_UNTIL((n = nn_recvmsg(s, &h, NN_DONTWAIT)) >= 0);
    const uint8_t *frame = (const uint8_t *)body + skip;
    CHECK_OK(wire_header_read(bytes_of(frame, (size_t)n - skip), (size_t)n - skip, &header, &e), &e);
    CHECK_EQ(header.status, 0);
    CHECK_EQ(header.body_size, answer_size);
    CHECK(memcmp(frame + wire_head_size(&header), pattern, answer_size) == 0);
    nn_freemsg(body);
    if (control != NULL) nn_freemsg(control);
    return header.sequence;
}

/* ---- every client at every door ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    door_open *open;
    const char *url;
} doors[] = {
    {"sp tcp", transport_sp_open, "tcp://127.0.0.1:0"},
    {"nanomsg tcp", transport_nanomsg_open, "tcp://127.0.0.1:0"},
    {"sp ipc", transport_sp_open, "ipc:///tmp/paramd-test-doors.sock"},
    {"nanomsg ipc", transport_nanomsg_open, "ipc:///tmp/paramd-test-doors.sock"},
};
enum { DOORS = sizeof doors / sizeof doors[0] };

TEST(our_client_is_served_at_every_door)
{
    for (size_t i = 0; i < DOORS; i++) {
        begin_with(doors[i].open, doors[i].url, 0);
        struct client c;
        client_new(&c);
        for (server.where = PLACE_SCRATCH; server.where <= PLACE_DROP; server.where++) {
            ask(&c, 1000000, 0);
            get_all(&c);
            CHECK_EQ(server.body, server.where != PLACE_DROP);
            CHECK_EQ(server.body_crc, crc32c(0, pattern, 1000000));
        }
        server.where = PLACE_AT;
        for (int k = 0; k < 16; k++) ask(&c, 64, 16000);
        get_all(&c);
        ask(&c, 0, BODY_MAX);
        get_all(&c);
        CHECK_EQ(server.refused, 0);
        sp_free(c.sp);
        end();
    }
}

TEST(cooked_and_raw_libnanomsg_clients_are_served_at_every_door)
{
    for (size_t i = 0; i < DOORS; i++) {
        begin_with(doors[i].open, doors[i].url, 0);
        int cooked = nn_client(AF_SP), raw = nn_client(AF_SP_RAW);
        for (uint32_t size = 0; size <= 1 << 20; size += 1 << 18) {
            nn_ask(cooked, NULL, 0, size, size);
            (void)nn_get(cooked, 0, size);
        }
        bool seen[17] = {false};
        for (uint32_t id = 1; id <= 16; id++) nn_ask(raw, &(uint32_t){0x80000000u + id}, 1, 100, 16000);
        for (uint32_t id = 1; id <= 16; id++) {
            uint64_t sequence = nn_get(raw, 0, 16000);
            CHECK(sequence >= 1 && sequence <= 16 && !seen[sequence]);
            seen[sequence] = true;
        }
        CHECK_EQ(nn_close(cooked), 0);
        CHECK_EQ(nn_close(raw), 0);
        end();
    }
}

TEST(a_frame_that_is_none_is_answered_at_every_door)
{
    for (size_t i = 0; i < DOORS; i++) {
        begin_with(doors[i].open, doors[i].url, 0);
        int s = nn_client(AF_SP);
        void *in;
        CHECK_EQ(nn_send(s, "hello", 5, 0), 5);
        int n = -1;
        TURN_UNTIL((n = nn_recv(s, &in, NN_MSG, NN_DONTWAIT)) >= 0);
        CHECK_EQ(n, WIRE_HEADER_SIZE);
        CHECK_EQ(server.refused, 1);
        CHECK_SAYS(server.says, "5 bytes");
        nn_freemsg(in);
        nn_ask(s, NULL, 0, 10, 10);
        (void)nn_get(s, 0, 10);
        CHECK_EQ(nn_close(s), 0);
        end();
    }
}

TEST(an_answer_given_later_is_sent_at_every_door)
{
    for (size_t i = 0; i < DOORS; i++) {
        begin_with(doors[i].open, doors[i].url, 0);
        struct client c;
        client_new(&c);
        server.hold = true;
        for (int k = 0; k < 5; k++) ask(&c, 10, 100);
        TURN_UNTIL((client_run(&c, true), server.held_count == 5));
        CHECK_EQ(c.got, 0);
        while (server.held_count > 0) {
            struct answer *a = server.held[--server.held_count];
            a->peer->ops->answer(a->peer->link, &a->o);
        }
        get_all(&c);
        sp_free(c.sp);
        end();
    }
}

/* ---- the bulk door -------------------------------------------------------------------------------------------- */

TEST(pipelined_large_answers_all_arrive_although_their_reader_is_late)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < 32; k++) ask(&c, 0, 1 << 20);
        for (int k = 0; k < 20; k++) {
            (void)client_run(&c, false);
            loop_turn(loop, 1);
        }
        /* The queue is full long before the last request is taken. */
        CHECK(server.frames < 32u * (unsigned)round + 32);
        get_all(&c);
    }
    CHECK_EQ(c.got, 96);
    sp_free(c.sp);
    end();
}

TEST(bytes_that_change_are_copied_for_a_late_reader)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    server.hold = true;
    ask(&c, 0, BODY_MAX);
    ask(&c, 0, BODY_MAX);
    TURN_UNTIL((client_run(&c, false), server.held_count == 2));
    const struct peer *p = server.held[0]->peer;
    for (int i = 0; i < 2; i++) p->ops->answer(p->link, &server.held[i]->o);
    for (int i = 0; i < 20; i++) loop_turn(loop, 1);
    CHECK(server.lost == 0 && p->waiting > 0);
    p->ops->detach(p->link, pattern);
    for (size_t i = 0; i < BODY_MAX; i++) pattern[i] ^= 0xff;
    for (int i = 0; i < 20; i++) loop_turn(loop, 1);
    for (size_t i = 0; i < BODY_MAX; i++) pattern[i] ^= 0xff;
    get_all(&c);
    sp_free(c.sp);
    end();
}

TEST(without_memory_for_that_copy_the_connection_ends)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    ask(&c, 0, BODY_MAX);
    ask(&c, 0, BODY_MAX);
    server.hold = true;
    TURN_UNTIL((client_run(&c, false), server.held_count == 2));
    const struct peer *p = server.held[0]->peer;
    for (int i = 0; i < 2; i++) p->ops->answer(p->link, &server.held[i]->o);
    for (int i = 0; i < 20; i++) loop_turn(loop, 1);
    mem_fault_at(1);
    p->ops->detach(p->link, pattern);
    mem_fault_at(0);
    TURN_UNTIL(transport_connections(door) == 0);
    CHECK(server.lost > 0);
    CHECK_EQ(transport_refused(door), 0);
    sp_free(c.sp);
    end();
}

TEST(connections_above_the_cap_are_closed_and_counted)
{
    struct client c[20];
    unsigned closed = 0;

    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 8);
    for (int i = 0; i < 20; i++) client_new(&c[i]);
    TURN_UNTIL(transport_refused(door) == 12);
    CHECK_EQ(transport_connections(door), 8);
    for (int i = 0; i < 20; i++) {
        if (i < 8) ask(&c[i], 10, 10);
        if (i < 8) get_all(&c[i]);
        else closed += client_is_closed(&c[i]);
    }
    CHECK_EQ(closed, 12);
    sp_free(c[0].sp);
    TURN_UNTIL(transport_connections(door) == 7);
    client_new(&c[0]);
    ask(&c[0], 10, 10);
    get_all(&c[0]);
    for (int i = 0; i < 20; i++) sp_free(c[i].sp);
    TURN_UNTIL(transport_connections(door) == 0);
    end();
}

TEST(without_descriptors_connections_are_refused_and_later_taken_again)
{
    struct rlimit before, tight;

    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(0);
    CHECK(next >= 0);
    close(next);
    tight = before;
    tight.rlim_cur = (rlim_t)next;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
    for (int i = 0; i < 10; i++) loop_turn(loop, 1);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(transport_connections(door), 0);
    CHECK(transport_refused(door) > 0);
    CHECK(client_is_closed(&c));
    sp_free(c.sp);
    now += 1000;
    (void)transport_tick(door, now);
    client_new(&c);
    ask(&c, 10, 10);
    get_all(&c);
    sp_free(c.sp);
    end();
}

TEST(a_peer_that_says_nothing_is_closed_after_the_greeting_time)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    int fd = dial();
    TURN_UNTIL(transport_connections(door) == 1);
    CHECK(transport_tick(door, now) > now);
    now += GREETING_MS - 1;
    (void)transport_tick(door, now);
    CHECK_EQ(transport_connections(door), 1);
    now += 501;
    (void)transport_tick(door, now);
    CHECK_EQ(transport_connections(door), 0);
    CHECK_EQ(transport_refused(door), 1);
    close(fd);
    end();
}

/* Greeted, silent and idle: that is a client at rest. Then a part of a frame that does not go on. */
TEST(a_frame_that_does_not_move_is_closed_and_an_idle_client_is_not)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    ask(&c, 10, 10);
    get_all(&c);
    for (int i = 0; i < 100; i++) {
        now += PROGRESS_MS;
        (void)transport_tick(door, now);
    }
    CHECK_EQ(transport_connections(door), 1);
    CHECK_EQ(send(sp_fd(c.sp), "\0\0\0", 3, 0), 3);
    for (int i = 0; i < 5; i++) loop_turn(loop, 1);
    (void)transport_tick(door, now += 1000);
    (void)transport_tick(door, now += PROGRESS_MS - 1);
    CHECK_EQ(transport_connections(door), 1);
    (void)transport_tick(door, now += 1000);
    CHECK_EQ(transport_connections(door), 0);
    CHECK_EQ(transport_refused(door), 1);
    sp_free(c.sp);
    end();
}

TEST(a_byte_now_and_then_is_no_motion)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client slow, good;
    client_new(&slow);
    client_new(&good);
    ask(&slow, 10, 10);
    ask(&good, 10, 10);
    get_all(&slow);
    get_all(&good);
    for (int i = 0; i < 40; i++) {
        static const uint8_t length[8] = {0, 0, 0, 0, 0, 1, 0, 0};
        uint8_t part[PROGRESS_SIZE_MIN / 25];
        if (transport_connections(door) == 2) CHECK_EQ(send(sp_fd(slow.sp), i < 8 ? &length[i] : part, 1, MSG_NOSIGNAL), 1);
        /* The other one comes to enough: a length, then at least PROGRESS_SIZE_MIN in PROGRESS_MS. */
        if (i == 0) CHECK_EQ(send(sp_fd(good.sp), length, sizeof length, MSG_NOSIGNAL), 8);
        else CHECK_EQ(send(sp_fd(good.sp), i == 1 ? (const void *)"\x80\0\0\1" : part, i == 1 ? 4 : sizeof part, MSG_NOSIGNAL),
                      i == 1 ? 4 : (ssize_t)sizeof part);
        for (int k = 0; k < 3; k++) loop_turn(loop, 1);
        (void)transport_tick(door, now += 1000);
    }
    CHECK_EQ(transport_connections(door), 1);
    CHECK_EQ(transport_refused(door), 1);
    sp_free(slow.sp);
    sp_free(good.sp);
    end();
}

TEST(a_connection_that_only_greets_is_closed_after_a_while)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    CHECK_OK(client_run(&c, false), &e);
    for (int i = 0; i < 5; i++) loop_turn(loop, 1);
    (void)transport_tick(door, now += GREETING_MS + 1000);
    CHECK_EQ(transport_connections(door), 1);
    (void)transport_tick(door, now += PROGRESS_MS);
    CHECK_EQ(transport_connections(door), 0);
    sp_free(c.sp);
    end();
}

TEST(one_address_has_its_own_cap)
{
    begin();
    struct transport_config config = {.calls = &small, .loop = loop, .mailbox = box, .now_ms = clock_of_test,
                                      .connections_max = 100, .address_max = 3};
    CHECK_OK(transport_sp_open(&config, "tcp://127.0.0.1:0", &door, &e), &e);
    struct client clients[4];
    for (int i = 0; i < 4; i++) client_new(&clients[i]);
    for (int i = 0; i < 3; i++) {
        ask(&clients[i], 10, 10);
        get_all(&clients[i]);
    }
    TURN_UNTIL(client_is_closed(&clients[3]));
    CHECK_EQ(transport_refused(door), 1);
    sp_free(clients[3].sp);
    sp_free(clients[0].sp);
    TURN_UNTIL(transport_connections(door) == 2);
    client_new(&clients[0]);
    ask(&clients[0], 10, 10);
    get_all(&clients[0]);
    for (int i = 0; i < 3; i++) sp_free(clients[i].sp);
    end();
}

TEST(a_reader_that_does_not_read_is_closed_and_its_answers_come_back)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    for (int i = 0; i < 4; i++) ask(&c, 0, BODY_MAX);
    TURN_UNTIL((client_run(&c, false), server.frames >= 2));
    for (int i = 0; i < 20; i++) loop_turn(loop, 1);
    (void)transport_tick(door, now += 1000);
    (void)transport_tick(door, now += PROGRESS_MS + 1000);
    CHECK_EQ(transport_connections(door), 0);
    CHECK(server.lost > 0);
    sp_free(c.sp);
    end();
}

TEST(garbage_ends_one_connection_and_no_other)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    ask(&c, 10, 10);
    get_all(&c);
    int fd = dial();
    CHECK_EQ(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    TURN_UNTIL(transport_refused(door) == 1);
    CHECK_EQ(transport_connections(door), 1);
    ask(&c, 10, 10);
    get_all(&c);
    close(fd);
    sp_free(c.sp);
    end();
}

TEST(a_draining_door_sends_what_is_queued_and_takes_nothing_new)
{
    begin_with(transport_sp_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    ask(&c, 0, BODY_MAX);
    ask(&c, 0, BODY_MAX);
    TURN_UNTIL((client_run(&c, false), server.frames == 2));
    transport_drain(door);
    CHECK(!transport_idle(door));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)transport_port(door)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&to, sizeof to), -1);
    CHECK_EQ(errno, ECONNREFUSED);
    close(fd);
    TURN_UNTIL((client_run(&c, true), c.got == 2));
    CHECK(transport_idle(door));
    ask(&c, 0, 10);
    for (int i = 0; i < 10; i++) {
        (void)client_run(&c, true);
        loop_turn(loop, 1);
    }
    CHECK_EQ(server.frames, 2);
    sp_free(c.sp);
    end();
}

TEST(a_draining_door_gives_up_who_takes_nothing_and_waits_for_who_reads)
{
    const char *const urls[] = {"tcp://127.0.0.1:0", "ipc:///tmp/paramd-test-drain.ipc"};

    for (int i = 0; i < 2; i++) {
        struct client silent, reader;
        begin_with(transport_sp_open, urls[i], 0);
        client_new(&silent);
        client_new(&reader);
        for (int k = 0; k < 2; k++) ask(&silent, 0, BODY_MAX);
        for (int k = 0; k < 2; k++) ask(&reader, 0, BODY_MAX);
        TURN_UNTIL((client_run(&silent, false), client_run(&reader, false), server.frames == 4));
        transport_drain(door);
        (void)transport_tick(door, now += DRAIN_STILL_MS - 1);
        CHECK_EQ(transport_connections(door), 2);
        unsigned lost = server.lost;
        for (int turns = 0; transport_connections(door) == 2; turns++) { /* each takes a part of it, but for one */
            CHECK(turns < 1000);
            CHECK_OK(sp_read(reader.sp, 256 << 10, &e), &e);
            loop_turn(loop, 1);
            (void)transport_tick(door, now += DRAIN_STILL_MS / 4);
        }
        CHECK(server.lost > lost);
        TURN_UNTIL((client_run(&reader, true), reader.got == 2));
        CHECK_EQ(reader.wrong, 0);
        CHECK(transport_idle(door));
        sp_free(silent.sp);
        sp_free(reader.sp);
        end();
    }
}

/* ---- addresses ------------------------------------------------------------------------------------------------ */

TEST(a_dead_unix_socket_is_replaced_and_a_living_one_is_not)
{
    static const char path[] = "/tmp/paramd-test-doors.sock";
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    strcpy(at.sun_path, path);
    for (size_t i = 2; i < DOORS; i++) {
        unlink(path);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK_EQ(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
        CHECK_EQ(listen(fd, 1), 0);
        begin();
        CHECK(open_with(doors[i].open, doors[i].url, 0) != STATUS_OK);
        CHECK_SAYS(e.text, "in use");
        CHECK_EQ(access(path, F_OK), 0);
        close(fd);
        CHECK_OK(open_with(doors[i].open, doors[i].url, 0), &e);
        end();
        CHECK_EQ(access(path, F_OK), -1);
    }
}

TEST(a_file_that_is_no_socket_is_left_alone)
{
    static const char path[] = "/tmp/paramd-test-doors.sock";

    for (size_t i = 2; i < DOORS; i++) {
        begin();
        close(open(path, O_CREAT | O_WRONLY, 0600));
        CHECK(open_with(doors[i].open, doors[i].url, 0) != STATUS_OK);
        CHECK_SAYS(e.text, "no socket");
        CHECK_EQ(unlink(path), 0);
        end();
    }
}

TEST(an_address_that_is_none_is_refused_with_its_reason)
{
    static const struct { const char *url, *says; } rows[] = {
        {"", "no address"}, {"ws://127.0.0.1:1", "tcp://"}, {"inproc://x", "tcp://"}, {"tcp://127.0.0.1", "no port"},
        {"tcp://:7700", "no port"}, {"tcp://127.0.0.1:70000", "no port"}, {"tcp://127.0.0.1:7x", "no port"},
        {"tcp://127.0.0.1:", "no port"}, {"ipc://", "path"}, {"tcp://name.invalid:1", "no address"},
        {"tcp://203.0.113.9:1", "cannot"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t k = 0; k < 2; k++) {
            begin();
            if (open_with(doors[k].open, rows[i].url, 0) == STATUS_OK) test_fail(__FILE__, __LINE__, "row %zu", i);
            CHECK_SAYS(e.text, rows[i].says);
            end();
        }
}

TEST(an_address_in_use_is_refused)
{
    char url[64];

    for (size_t k = 0; k < 2; k++) {
        begin_with(doors[k].open, "tcp://localhost:0", 0);
        CHECK(transport_port(door) > 0);
        snprintf(url, sizeof url, "tcp://localhost:%u", transport_port(door));
        CHECK_TEXT(transport_url(door), url);
        struct transport *first = door;
        CHECK(open_with(doors[1 - k].open, url, 0) != STATUS_OK);
        CHECK_SAYS(e.text, "in use");
        door = first;
        end();
    }
}

static bool answers(const char *address, unsigned port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    CHECK_EQ(inet_pton(AF_INET, address, &to.sin_addr), 1);
    bool done = connect(fd, (struct sockaddr *)&to, sizeof to) == 0;
    close(fd);
    return done;
}

TEST(a_name_listens_on_all_of_its_addresses)
{
    for (size_t k = 0; k < 2; k++) {
        begin_with(doors[k].open, "tcp://two.test:0", 0);
        unsigned port = transport_port(door);
        CHECK(answers("127.0.0.1", port) && answers("127.0.0.2", port));
        CHECK(!answers("127.0.0.3", port));
        end();
    }
}

TEST(a_name_of_which_one_address_is_in_use_is_refused_and_lets_go_of_the_others)
{
    for (size_t k = 0; k < 2; k++) {
        char url[64];
        begin_with(doors[1].open, "tcp://127.0.0.2:0", 0);
        struct transport *first = door;
        unsigned port = transport_port(first);
        snprintf(url, sizeof url, "tcp://two.test:%u", port);
        CHECK(open_with(doors[k].open, url, 0) != STATUS_OK);
        CHECK_SAYS(e.text, "in use");
        CHECK(!answers("127.0.0.1", port) && answers("127.0.0.2", port));
        door = first;
        end();
    }
}

/* ---- libnanomsg's door ---------------------------------------------------------------------------------------- */

/* Two clients behind a device share its connection, and may have chosen the same request id. */
TEST(answers_find_their_way_back_through_devices)
{
    begin_with(transport_nanomsg_open, "tcp://127.0.0.1:0", 0);
    int s = nn_client(AF_SP_RAW);
    const uint32_t a[] = {17, 0x80000005u}, b[] = {18, 0x80000005u}, c[] = {0x80000005u};
    server.hold = true;
    nn_ask(s, a, 2, 10, 10);
    nn_ask(s, b, 2, 10, 11);
    nn_ask(s, c, 1, 10, 12);
    TURN_UNTIL(server.held_count == 3);
    CHECK_EQ(server.peers, 3);
    for (unsigned i = 3; i-- > 0;) {
        struct answer *x = server.held[i];
        uint32_t hop = i == 0 ? 17 : 18, size = 10 + i;
        x->peer->ops->answer(x->peer->link, &x->o);
        void *body, *control = NULL;
        struct nn_iovec v = {&body, NN_MSG};
        struct nn_msghdr h = {&v, 1, &control, NN_MSG};
        int n = -1;
        TURN_UNTIL((n = nn_recvmsg(s, &h, NN_DONTWAIT)) >= 0);
        uint32_t word;
        memcpy(&word, NN_CMSG_DATA(NN_CMSG_FIRSTHDR(&h)) + sizeof(size_t), sizeof word);
        CHECK_EQ(ntohl(word), i == 2 ? 0x80000005u : hop);
        CHECK_EQ(n, WIRE_HEADER_SIZE + size + (i == 2 ? 0 : 4));
        nn_freemsg(body);
        nn_freemsg(control);
    }
    CHECK_EQ(nn_close(s), 0);
    end();
}

TEST(a_client_silent_for_long_is_ended_unless_it_waits_for_an_answer)
{
    begin_with(transport_nanomsg_open, "tcp://127.0.0.1:0", 0);
    struct client one, two;
    client_new(&one);
    client_new(&two);
    ask(&one, 10, 10);
    get_all(&one);
    server.hold = true;
    ask(&two, 10, 10);
    TURN_UNTIL((client_run(&two, true), server.held_count == 1));
    CHECK(transport_tick(door, now + 60000) > now + 60000);
    CHECK_EQ(server.gone, 0);
    /* The kernel's acknowledgements take their own time; the door must see them before a day passes at once. */
    for (int i = 0; i < 50; i++) loop_turn(loop, 5);
    CHECK(transport_tick(door, now + 120000) > now + 120000);
    now += 24 * 3600 * 1000;
    (void)transport_tick(door, now);
    CHECK_EQ(server.gone, 1);
    struct answer *a = server.held[0];
    a->peer->ops->answer(a->peer->link, &a->o);
    get_all(&two);
    (void)transport_tick(door, now);
    CHECK_EQ(server.gone, 2);
    server.hold = false;
    ask(&one, 10, 10);           /* its connection is still there */
    get_all(&one);
    CHECK_EQ(server.peers, 3);
    sp_free(one.sp);
    sp_free(two.sp);
    end();
}

/* Sixteen paths over one connection stand for sixteen clients. */
TEST(too_many_clients_push_out_the_one_silent_longest_or_are_refused)
{
    begin_with(transport_nanomsg_open, "tcp://127.0.0.1:0", 8);
    int s = nn_client(AF_SP_RAW);
    for (uint32_t i = 0; i < 16; i++) {
        nn_ask(s, (uint32_t[]){i, 0x80000001u}, 2, 0, 10);
        (void)nn_get(s, 4, 10);
    }
    CHECK_EQ(server.peers, 16);
    CHECK_EQ(server.gone, 8);
    server.hold = true;
    for (uint32_t i = 8; i < 16; i++) nn_ask(s, (uint32_t[]){i, 0x80000002u}, 2, 0, 10);
    TURN_UNTIL(server.held_count == 8);
    nn_ask(s, (uint32_t[]){99, 0x80000003u}, 2, 0, 10);
    void *body;
    struct wire_header h;
    int n = -1;
    TURN_UNTIL((n = nn_recv(s, &body, NN_MSG, NN_DONTWAIT)) >= 0);
    CHECK_OK(wire_header_read(bytes_of((uint8_t *)body + 4, (size_t)n - 4), (size_t)n - 4, &h, &e), &e);
    CHECK_EQ(h.flags, WIRE_FLAG_ANSWER);
    CHECK_EQ(h.status, STATUS_RESOURCE_EXHAUSTED);
    CHECK_EQ(h.sequence, 3);
    CHECK_EQ(transport_refused(door), 1);
    nn_freemsg(body);
    while (server.held_count > 0) {
        struct answer *a = server.held[--server.held_count];
        a->peer->ops->answer(a->peer->link, &a->o);
    }
    CHECK_EQ(nn_close(s), 0);
    end();
}

/* More requests than the door owns: the rest waits in the sockets, and none is lost. */
TEST(a_flood_waits_outside_and_is_served)
{
    begin_with(transport_nanomsg_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    for (int i = 0; i < 1000; i++) ask(&c, 1000, 10);
    get_all(&c);
    CHECK_EQ(server.frames, 1000);
    sp_free(c.sp);
    end();
}

TEST(a_door_closes_with_requests_in_the_mailbox)
{
    begin_with(transport_nanomsg_open, "tcp://127.0.0.1:0", 0);
    int s = nn_client(AF_SP_RAW);
    for (uint32_t i = 0; i < 200; i++) nn_ask(s, (uint32_t[]){0x80000000u + i}, 1, 100, 10);
    struct pollfd p = {.fd = mailbox_fd(box), .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 10000), 1);
    transport_close(door);
    door = NULL;
    mailbox_take(box);
    CHECK_EQ(server.frames, 0);
    CHECK_EQ(nn_close(s), 0);
    end();
}

TEST(libnanomsgs_door_drains)
{
    begin_with(transport_nanomsg_open, "tcp://127.0.0.1:0", 0);
    struct client c;
    client_new(&c);
    ask(&c, 10, 10);
    get_all(&c);
    CHECK(!transport_idle(door));        /* the answer may be on its way still */
    transport_drain(door);
    now += 1000;
    CHECK(transport_idle(door));
    ask(&c, 10, 10);
    for (int i = 0; i < 20; i++) {
        (void)client_run(&c, true);
        loop_turn(loop, 1);
    }
    CHECK_EQ(server.frames, 1);
    sp_free(c.sp);
    end();
}

TEST(doors_open_and_close_many_times)
{
    for (int i = 0; i < 40; i++) {
        begin_with(doors[i % 2].open, doors[i % 2].url, 0);
        struct client c;
        client_new(&c);
        if (i % 3 > 0) ask(&c, 10, 10);
        if (i % 3 > 1) get_all(&c);
        else (void)client_run(&c, true);
        sp_free(c.sp);
        end();
    }
}

TEST(a_door_without_memory_is_refused_and_leaks_nothing)
{
    for (size_t i = 0; i < DOORS; i++)
        for (uint64_t n = 1;; n++) {
            begin();
            mem_fault_at(n);
            enum status s = open_with(doors[i].open, doors[i].url, 0);
            bool hit = mem_fault_hit();
            mem_fault_at(0);
            CHECK_EQ(s == STATUS_OK, !hit);
            end();
            if (!hit) break;
        }
}

/* ---- libnanomsg's accepting, capped --------------------------------------------------------------------------- */

TEST(libnanomsgs_door_has_a_cap_too)
{
    struct client c[20];
    unsigned served = 0;

    begin_with(transport_nanomsg_open, "tcp://127.0.0.1:0", 8);
    for (int i = 0; i < 20; i++) {
        client_new(&c[i]);
        ask(&c[i], 10, 10);
    }
    for (int i = 0; i < 300 && transport_refused(door) < 12; i++) loop_turn(loop, 10);
    if (transport_refused(door) == 0) {
        for (int i = 0; i < 20; i++) sp_free(c[i].sp);
        end();
        test_skip("off under sanitizers");
    }
    CHECK_EQ(transport_refused(door), 12);
    CHECK_EQ(transport_connections(door), 8);
    TURN_UNTIL(({
        served = 0;
        for (int i = 0; i < 20; i++) served += client_run(&c[i], true) == STATUS_OK && c[i].got == 1;
        served;
    }) == 8);
    for (int i = 0; i < 20; i++) sp_free(c[i].sp);
    TURN_UNTIL(transport_connections(door) == 0);
    struct client again;
    client_new(&again);
    ask(&again, 10, 10);
    get_all(&again);
    sp_free(again.sp);
    end();
}
