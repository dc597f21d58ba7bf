#include "api/sp.h"
#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct error e;

/* ---- a frame made of its id ----------------------------------------------------------------------------------- */

enum { SEGMENTS_MAX = 90 };      /* more than one sendmsg takes */

struct made {
    uint32_t id;
    size_t fixed_size, desc_size, body_size;
    unsigned segments;
    enum placement where;        /* what its receiver shall say */
};

static size_t skewed(uint64_t *seed, size_t max)
{
    size_t limit = (size_t)1 << rng_next(seed) % 18;
    return rng_next(seed) % (limit < max ? limit : max);
}

static struct made made_of(uint32_t id)
{
    uint64_t seed = id;
    struct made m = {.id = id | 0x80000000u};

    m.fixed_size = skewed(&seed, 200);
    m.desc_size = skewed(&seed, 20000);
    m.body_size = rng_next(&seed) % 4 == 0 ? 0 : skewed(&seed, 120000);
    m.segments = 1 + (unsigned)(rng_next(&seed) % (rng_next(&seed) % 8 == 0 ? SEGMENTS_MAX : 3));
    m.where = (enum placement)(rng_next(&seed) % 3);
    return m;
}

/* Byte `at` of part `part` of frame `id`. */
static uint8_t made_byte(uint32_t id, unsigned part, size_t at)
{
    return (uint8_t)((at * 31 + (at >> 8)) ^ (id * 7 + part));
}

static void made_fill(uint8_t *to, uint32_t id, unsigned part, size_t size)
{
    for (size_t i = 0; i < size; i++) to[i] = made_byte(id, part, i);
}

static bool made_is(const void *at, uint32_t id, unsigned part, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const uint8_t *)at)[i] != made_byte(id, part, i)) return false;
    return true;
}

struct sent {
    struct outgoing o;
    struct segment segments[SEGMENTS_MAX];
    uint8_t *body;
};

static unsigned done_sent, done_lost;

static void sent_done(struct outgoing *o, bool sent)
{
    struct sent *s = CONTAINER_OF(o, struct sent, o);

    if (sent) done_sent++;
    else done_lost++;
    buf_fini(&s->o.head);
    mem_free(s->body);
    mem_free(s);
}

/* NULL without memory. The body's owner is the frame itself. */
static struct sent *sent_new(const struct made *m)
{
    struct wire_header h = {.method = WIRE_Push, .sequence = m->id};
    struct sent *s = mem_zero(sizeof *s);
    struct buf parts = {0};
    uint8_t *p;

    if (s == NULL) return NULL;
    s->o = (struct outgoing){.id = m->id, .segments = s->segments, .done = sent_done};
    s->body = mem_new(m->body_size);
    p = buf_room(&parts, m->fixed_size + m->desc_size + 1);
    if (s->body == NULL || p == NULL) goto failed;
    made_fill(p, m->id, 0, m->fixed_size);
    made_fill(p + m->fixed_size, m->id, 1, m->desc_size);
    made_fill(s->body, m->id, 2, m->body_size);
    if (!wire_head_write(&s->o.head, &h, bytes_of(p, m->fixed_size), bytes_of(p + m->fixed_size, m->desc_size),
                         m->body_size, NULL, 0))
        goto failed;
    s->o.segment_count = m->segments;
    for (size_t i = 0, at = 0; i < m->segments; i++) {
        size_t size = i + 1 == m->segments ? m->body_size - at : m->body_size / m->segments;
        s->segments[i] = (struct segment){s->body + at, size, s};
        at += size;
    }
    buf_fini(&parts);
    return s;
failed:
    buf_fini(&parts);
    sent_done(&s->o, false);
    return NULL;
}

/* ---- two connections and a pump between their sockets --------------------------------------------------------- */

struct end {
    struct sp_conn *sp;
    int tap;                     /* the other end of its socket */
    uint8_t *memory;             /* for PLACE_AT; guarded at its end */
    enum placement where;        /* for all frames; or by the frame when `made` */
    bool made;
    bool echo;
    void (*taken)(void);         /* after each frame; may be NULL */
    unsigned frames, refused, nowhere;
    uint32_t last_id;
    struct incoming last;        /* its pointers are gone */
    char says[ERROR_TEXT_SIZE];
    uint8_t first_bytes[16];
    unsigned wrong;
};

enum { MEMORY_SIZE = 1 << 20 };

static struct end req, rep;

static enum placement end_place(void *ctx, const struct incoming *in, void **at)
{
    struct end *x = ctx;
    struct made m = made_of(in->id & 0x7fffffffu);

    if (in->header.body_size > MEMORY_SIZE) return PLACE_DROP;
    *at = x->memory + MEMORY_SIZE - in->header.body_size;
    return x->made ? m.where : x->where;
}

static void check_made(struct end *x, const struct incoming *in)
{
    struct made m = made_of(in->id & 0x7fffffffu);

    bool dropped = m.where == PLACE_DROP && m.body_size > 0;
    bool right = in->fixed.size == m.fixed_size && in->desc.size == m.desc_size &&
                 in->header.body_size == m.body_size && made_is(in->fixed.at, in->id, 0, m.fixed_size) &&
                 made_is(in->desc.at, in->id, 1, m.desc_size) && (in->body == NULL) == dropped &&
                 (dropped || made_is(in->body, in->id, 2, m.body_size));
    if (!right) x->wrong++;
}

static void end_frame(void *ctx, const struct incoming *in)
{
    struct end *x = ctx;

    x->frames++;
    x->last = *in;
    x->last_id = in->id;
    if (in->status != STATUS_OK) {
        x->refused++;
        strcpy(x->says, in->error->text);
        return;
    }
    if (in->body == NULL) x->nowhere++;
    else memcpy(x->first_bytes, in->body, in->header.body_size < 16 ? in->header.body_size : 16);
    if (x->made) check_made(x, in);
    if (x->taken != NULL) x->taken();
    if (!x->echo) return;
    struct made m = made_of(in->id & 0x7fffffffu);
    struct sent *s = sent_new(&m);
    if (s != NULL) sp_send(x->sp, &s->o);
}

static const struct sp_handler end_handler = {end_place, end_frame};

static enum status end_new(struct end *x, unsigned self, bool ipc)
{
    int fds[2], small = 4096;

    *x = (struct end){.where = PLACE_AT, .tap = -1};
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    (void)setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    x->tap = fds[1];
    x->memory = guard_new(MEMORY_SIZE);
    return sp_new(fds[0], self, ipc, FRAME_SIZE_MAX, &end_handler, x, &x->sp, &e);
}

static void end_free(struct end *x)
{
    sp_free(x->sp);
    if (x->tap >= 0) close(x->tap);
    guard_free(x->memory, MEMORY_SIZE);
}

static void ends_new(bool ipc)
{
    done_sent = done_lost = 0;
    CHECK_OK(end_new(&req, SP_REQ, ipc), &e);
    CHECK_OK(end_new(&rep, SP_REP, ipc), &e);
}

static void ends_free(void)
{
    end_free(&req);
    end_free(&rep);
}

/* At most `limit` bytes from one tap to the other; how many. */
static size_t pump(int from, int to, size_t limit)
{
    uint8_t bytes[4096];
    ssize_t n = recv(from, bytes, limit < sizeof bytes ? limit : sizeof bytes, MSG_PEEK);

    if (n > 0) n = send(to, bytes, (size_t)n, MSG_NOSIGNAL);
    if (n > 0) n = recv(from, bytes, (size_t)n, 0);
    return n > 0 ? (size_t)n : 0;
}

/* One step of everything, with pieces of the stream of random sizes. False: nothing moves any more, or it is over. */
static bool step(uint64_t *seed, enum status *s)
{
    struct end *ends[] = {&req, &rep};
    size_t moved = 0;

    for (int i = 0; i < 2 && *s == STATUS_OK; i++) {
        struct end *x = ends[i], *y = ends[1 - i];
        size_t queued = sp_queued(x->sp);
        *s = sp_write(x->sp, &e);
        moved += queued - sp_queued(x->sp);
        moved += pump(x->tap, y->tap, seed == NULL ? 4096 : 1 + skewed(seed, 4096));
        uint64_t before = sp_progress(y->sp);
        if (*s == STATUS_OK) *s = sp_read(y->sp, seed == NULL ? 1 << 20 : 1 + skewed(seed, 4096), &e);
        moved += sp_progress(y->sp) - before;
    }
    return *s == STATUS_OK && moved > 0;
}

static void settle(uint64_t *seed)
{
    enum status s = STATUS_OK;

    while (step(seed, &s)) continue;
    CHECK_OK(s, &e);
}

static struct sent *send_made(struct end *x, struct made m)
{
    struct sent *s = sent_new(&m);

    CHECK(s != NULL);
    sp_send(x->sp, &s->o);
    return s;
}

/* Requests 1 to count, with a body of `size` bytes each. */
static void send_small(uint32_t count, size_t size)
{
    for (uint32_t id = 1; id <= count; id++)
        (void)send_made(&req, (struct made){.id = id | 0x80000000u, .body_size = size, .segments = 1});
}

/* ---- the way of a frame --------------------------------------------------------------------------------------- */

static void check_random_frames(bool ipc, uint64_t seed)
{
    int64_t live = mem_live();
    unsigned count = 200;

    ends_new(ipc);
    rep.made = req.made = rep.echo = true;
    for (uint32_t id = 1; id <= count; id++) {
        (void)send_made(&req, made_of(id));
        enum status s = STATUS_OK;
        for (uint64_t n = rng_next(&seed) % 40; n > 0; n--) (void)step(&seed, &s);
        CHECK_OK(s, &e);
    }
    settle(&seed);
    CHECK_EQ(rep.frames, count);
    CHECK_EQ(req.frames, count);
    CHECK_EQ(rep.wrong + req.wrong, 0);
    CHECK_EQ(done_sent, 2 * count);
    CHECK_EQ(sp_queued(req.sp), 0);
    CHECK(!sp_in_frame(rep.sp));
    ends_free();
    CHECK_EQ(mem_live(), live);
}

TEST(frames_arrive_as_they_were_sent_however_the_stream_is_cut)
{
    for (uint64_t seed = 1; seed <= 3; seed++) check_random_frames(false, seed);
}

TEST(frames_arrive_on_the_ipc_mapping_too)
{
    for (uint64_t seed = 4; seed <= 6; seed++) check_random_frames(true, seed);
}

TEST(many_small_frames_are_taken_with_one_read)
{
    ends_new(false);
    settle(NULL);
    send_small(20, 64);
    CHECK_OK(sp_write(req.sp, &e), &e);
    CHECK_EQ(sp_queued(req.sp), 0);
    CHECK_EQ(pump(req.tap, rep.tap, 4096), 20 * (8 + 4 + 76 + 64));
    CHECK_OK(sp_read(rep.sp, 1, &e), &e);
    CHECK_EQ(rep.frames, 20);
    ends_free();
}

TEST(a_read_stops_at_about_its_budget)
{
    ends_new(false);
    settle(NULL);
    (void)send_made(&req, (struct made){.id = 0x80000001u, .body_size = 500000, .segments = 1});
    while (sp_write(req.sp, &e) == STATUS_OK && pump(req.tap, rep.tap, 4096) > 0) continue;
    CHECK_OK(sp_read(rep.sp, 1000, &e), &e);
    CHECK(sp_progress(rep.sp) < 70000);
    CHECK(sp_in_frame(rep.sp));
    settle(NULL);
    CHECK_EQ(rep.frames, 1);
    ends_free();
}

static void more_comes(void)
{
    while (sp_write(req.sp, &e) == STATUS_OK && pump(req.tap, rep.tap, 4096) > 0) continue;
}

/* How many of 32 frames of 32 KiB, of which the next is there when one has been taken, one read takes. */
static unsigned taken_at_once(bool answer_waits)
{
    unsigned taken;

    ends_new(false);
    settle(NULL);
    send_small(32, 32 << 10);
    more_comes();
    if (answer_waits) (void)send_made(&rep, (struct made){.id = 0x80000001u, .body_size = 64, .segments = 1});
    rep.taken = more_comes;
    CHECK_OK(sp_read(rep.sp, 4 << 20, &e), &e);
    taken = rep.frames;
    settle(NULL);
    CHECK_EQ(rep.frames, 32);
    CHECK_EQ(req.frames, answer_waits);
    ends_free();
    return taken;
}

TEST(an_answer_does_not_wait_while_megabytes_are_read)
{
    CHECK_EQ(taken_at_once(false), 32);
    unsigned taken = taken_at_once(true);
    CHECK(taken >= 6 && taken <= 10);
}

TEST(an_empty_frame_has_a_body_of_no_bytes)
{
    ends_new(false);
    rep.where = PLACE_DROP;
    (void)send_made(&req, (struct made){.id = 0x80000001u, .segments = 1});
    settle(NULL);
    CHECK_EQ(rep.frames, 1);
    CHECK_EQ(rep.nowhere, 0);
    ends_free();
}

TEST(a_body_ends_up_where_place_said)
{
    const struct made m = {.id = 0x80000005u, .body_size = 300000, .segments = 2};

    ends_new(false);
    memset(rep.memory, 0xee, MEMORY_SIZE);
    for (rep.where = PLACE_SCRATCH; rep.where <= PLACE_DROP; rep.where++) {
        (void)send_made(&req, m);
        settle(NULL);
        CHECK_EQ(made_is(rep.memory + MEMORY_SIZE - m.body_size, m.id, 2, m.body_size), rep.where >= PLACE_AT);
    }
    CHECK_EQ(rep.frames, 3);
    CHECK_EQ(rep.nowhere, 1);
    ends_free();
}

TEST(the_state_of_a_connection_is_told)
{
    ends_new(false);
    CHECK(!sp_greeted(rep.sp));
    CHECK(sp_wants_write(rep.sp));
    settle(NULL);
    CHECK(sp_greeted(rep.sp));
    CHECK(!sp_wants_write(rep.sp));
    CHECK_EQ(sp_progress(rep.sp), 16);
    (void)send_made(&rep, (struct made){.id = 0x80000001u, .body_size = 10, .segments = 1});
    CHECK_EQ(sp_queued(rep.sp), 8 + 4 + 76 + 10);
    CHECK(sp_wants_write(rep.sp));
    CHECK_OK(sp_write(rep.sp, &e), &e);
    pump(rep.tap, req.tap, 3);
    CHECK_OK(sp_read(req.sp, 100, &e), &e);
    CHECK(sp_in_frame(req.sp));
    settle(NULL);
    CHECK(!sp_in_frame(req.sp));
    ends_free();
}

TEST(frames_that_were_not_sent_come_back)
{
    ends_new(false);
    send_small(3, 9);
    ends_free();
    CHECK_EQ(done_lost, 3);
    CHECK_EQ(done_sent, 0);
}

/* ---- memory that goes ----------------------------------------------------------------------------------------- */

static void part_of_a_frame_is_out(size_t *queued)
{
    *queued = sp_queued(rep.sp);
    CHECK_OK(sp_write(rep.sp, &e), &e);
    pump(rep.tap, req.tap, 3000);
    CHECK_OK(sp_write(rep.sp, &e), &e);
    CHECK(sp_queued(rep.sp) > 0);
    CHECK(sp_queued(rep.sp) < *queued);
    *queued = sp_queued(rep.sp);
}

TEST(detached_bytes_arrive_as_they_were)
{
    const struct made n = {.id = 0x80000007u, .body_size = 400000, .segments = SEGMENTS_MAX};
    size_t queued;

    ends_new(false);
    struct sent *first = send_made(&rep, n);
    (void)send_made(&rep, n);
    part_of_a_frame_is_out(&queued);
    CHECK_OK(sp_detach(rep.sp, first, &e), &e);
    memset(first->body, 0xdd, n.body_size);
    settle(NULL);
    CHECK_EQ(req.frames, 2);
    CHECK_EQ(done_sent, 2);
    CHECK(made_is(req.memory + MEMORY_SIZE - n.body_size, n.id, 2, n.body_size));
    ends_free();
}

TEST(detaching_reaches_frames_that_wait_behind_others)
{
    const struct made n = {.id = 0x80000007u, .body_size = 200000, .segments = 3};
    size_t queued;

    ends_new(false);
    (void)send_made(&rep, n);
    struct sent *second = send_made(&rep, n);
    part_of_a_frame_is_out(&queued);
    CHECK_OK(sp_detach(rep.sp, second, &e), &e);
    memset(second->body, 0xdd, n.body_size);
    settle(NULL);
    CHECK(made_is(req.memory + MEMORY_SIZE - n.body_size, n.id, 2, n.body_size));
    ends_free();
}

TEST(two_owners_of_one_frame_are_detached_one_after_the_other)
{
    const struct made n = {.id = 0x80000007u, .body_size = 300000, .segments = 3};
    const char one = 0, two = 0;
    size_t queued;

    ends_new(false);
    struct sent *s = send_made(&rep, n);
    s->segments[0].owner = s->segments[2].owner = &one;
    s->segments[1].owner = &two;
    part_of_a_frame_is_out(&queued);
    CHECK_OK(sp_detach(rep.sp, &two, &e), &e);
    memset(s->body + 100000, 0xdd, 100000);
    CHECK_OK(sp_detach(rep.sp, &one, &e), &e);
    memset(s->body, 0xdd, n.body_size);
    CHECK_EQ(sp_queued(rep.sp), queued);
    settle(NULL);
    CHECK(made_is(req.memory + MEMORY_SIZE - n.body_size, n.id, 2, n.body_size));
    ends_free();
}

TEST(detaching_a_stranger_copies_nothing)
{
    const char stranger = 0;
    size_t queued;

    ends_new(false);
    (void)send_made(&rep, (struct made){.id = 0x80000007u, .body_size = 300000, .segments = 3});
    part_of_a_frame_is_out(&queued);
    int64_t live = mem_live();
    CHECK_OK(sp_detach(rep.sp, &stranger, &e), &e);
    CHECK_EQ(mem_live(), live);
    ends_free();
}

TEST(a_detach_without_memory_ends_the_connection)
{
    size_t queued;

    ends_new(false);
    struct sent *s = send_made(&rep, (struct made){.id = 0x80000007u, .body_size = 300000, .segments = 3});
    part_of_a_frame_is_out(&queued);
    mem_fault_at(1);
    CHECK_EQ(sp_detach(rep.sp, s, &e), STATUS_RESOURCE_EXHAUSTED);
    mem_fault_at(0);
    CHECK_EQ(sp_write(rep.sp, &e), STATUS_RESOURCE_EXHAUSTED);
    CHECK_EQ(sp_queued(rep.sp), queued);
    ends_free();
    CHECK_EQ(done_lost, 1);
}

TEST(a_discarded_body_is_thrown_away_and_the_next_frame_is_whole)
{
    const struct made n = {.id = 0x80000007u, .body_size = 500000, .segments = 1};

    for (rep.where = PLACE_SCRATCH;; rep.where = PLACE_AT) {
        enum placement where = rep.where;
        ends_new(false);
        settle(NULL);
        rep.where = where;
        (void)send_made(&req, n);
        for (int i = 0; i < 20; i++) {
            CHECK_OK(sp_write(req.sp, &e), &e);
            pump(req.tap, rep.tap, 4096);
            CHECK_OK(sp_read(rep.sp, 1 << 20, &e), &e);
        }
        CHECK(sp_in_frame(rep.sp));
        sp_discard(rep.sp);
        memset(rep.memory, 0xee, MEMORY_SIZE);
        settle(NULL);
        CHECK_EQ(rep.frames, 1);
        CHECK_EQ(rep.nowhere, 1);
        CHECK_EQ(rep.last_id, n.id);
        for (size_t i = 0; i < MEMORY_SIZE; i++) CHECK(rep.memory[i] == 0xee);
        (void)send_made(&req, n);
        settle(NULL);
        CHECK_EQ(rep.frames, 2);
        CHECK_EQ(rep.nowhere, 1);
        ends_free();
        if (where == PLACE_AT) break;
    }
}

TEST(a_discard_between_frames_is_nothing)
{
    ends_new(false);
    settle(NULL);
    sp_discard(rep.sp);
    (void)send_made(&req, (struct made){.id = 0x80000007u, .body_size = 50, .segments = 1});
    settle(NULL);
    CHECK_EQ(rep.nowhere, 0);
    ends_free();
}

TEST(memory_of_a_large_frame_is_given_back_when_later_ones_are_small)
{
    ends_new(false);
    rep.where = PLACE_SCRATCH;
    settle(NULL);
    int64_t live = mem_live();
    (void)send_made(&req, (struct made){.id = 0x80000001u, .body_size = 600000, .segments = 1});
    settle(NULL);
    sp_trim(rep.sp);
    CHECK_EQ(mem_live(), live + 1);      /* it was needed since the last time */
    (void)send_made(&req, (struct made){.id = 0x80000002u, .body_size = 60, .segments = 1});
    settle(NULL);
    sp_trim(rep.sp);
    CHECK_EQ(mem_live(), live);
    (void)send_made(&req, (struct made){.id = 0x80000003u, .body_size = 60, .segments = 1});
    settle(NULL);
    CHECK_EQ(rep.frames, 3);
    ends_free();
}

/* ---- what a connection may hold ------------------------------------------------------------------------------- */

TEST(a_frame_for_which_there_is_no_room_in_the_account_is_refused_and_the_next_one_taken)
{
    struct sp_account all = {.max = 1 << 20}, one = {.in = &all, .max = 200000};

    ends_new(false);
    rep.where = PLACE_SCRATCH;
    sp_set_account(rep.sp, &one);
    settle(NULL);
    (void)send_made(&req, (struct made){.id = 0x80000001u, .body_size = 300000, .segments = 1});
    settle(NULL);
    CHECK_EQ(rep.refused, 1);
    CHECK_SAYS(rep.says, "no room for a frame");
    CHECK_EQ(one.used, all.used);
    CHECK(one.used <= one.max);
    (void)send_made(&req, (struct made){.id = 0x80000002u, .body_size = 100000, .segments = 1});
    settle(NULL);
    CHECK_EQ(rep.frames, 2);
    CHECK_EQ(rep.refused, 1);
    for (int i = 0; i < 2; i++) sp_trim(rep.sp); /* idle since the last time */
    CHECK_EQ(one.used, 0);
    all.used = all.max;                          /* others have it all */
    (void)send_made(&req, (struct made){.id = 0x80000003u, .body_size = 100, .segments = 1});
    settle(NULL);
    CHECK_EQ(rep.refused, 2);
    all.used = 0;
    (void)send_made(&req, (struct made){.id = 0x80000004u, .body_size = 100, .segments = 1});
    settle(NULL);
    CHECK_EQ(rep.refused, 2);
    ends_free();
    CHECK_EQ(one.used, 0);
    CHECK_EQ(all.used, 0);
}

TEST(a_copy_for_which_there_is_no_room_in_the_account_ends_the_connection)
{
    struct sp_account one = {.max = 300000};
    size_t queued;

    ends_new(false);
    sp_set_account(rep.sp, &one);
    struct sent *s = send_made(&rep, (struct made){.id = 0x80000007u, .body_size = 300000, .segments = 3});
    struct sent *more = send_made(&rep, (struct made){.id = 0x80000008u, .body_size = 300, .segments = 1});
    part_of_a_frame_is_out(&queued);
    CHECK_OK(sp_detach(rep.sp, s, &e), &e);
    CHECK_EQ(one.used, 300000);
    CHECK_EQ(sp_detach(rep.sp, more, &e), STATUS_RESOURCE_EXHAUSTED);
    CHECK_EQ(e.reason, REASON_LIMIT);
    CHECK_EQ(sp_write(rep.sp, &e), STATUS_RESOURCE_EXHAUSTED);
    ends_free();
    CHECK_EQ(one.used, 0);
}

TEST(a_frame_above_the_soft_bound_is_refused_until_that_is_lifted)
{
    ends_new(false);
    sp_set_soft_max(rep.sp, 5000);
    for (uint32_t id = 1; id <= 2; id++) {
        (void)send_made(&req, (struct made){.id = id | 0x80000000u, .body_size = 10000, .segments = 1});
        settle(NULL);
        CHECK_EQ(rep.frames, id);
        CHECK_EQ(rep.refused, 1);
        CHECK_SAYS(rep.says, "before HELLO");
        sp_set_soft_max(rep.sp, 0);
    }
    ends_free();
}

/* ---- a full queue --------------------------------------------------------------------------------------------- */

static unsigned big_done;
static uint8_t big_body[SEND_QUEUE_MAX];

static void big_done_count(struct outgoing *o, bool sent)
{
    (void)sent;
    buf_fini(&o->head);
    big_done++;
}

TEST(requests_wait_while_too_many_answers_do_and_none_is_lost)
{
    struct segment all = {big_body, sizeof big_body, NULL};
    struct outgoing big = {.id = 0x80000001u, .segments = &all, .segment_count = 1, .done = big_done_count};
    struct wire_header h = {.method = WIRE_Pull};

    ends_new(false);
    settle(NULL);
    big_done = 0;
    CHECK(wire_head_write(&big.head, &h, (struct bytes){0}, (struct bytes){0}, 0, NULL, 0));
    send_small(10, 20);
    CHECK_OK(sp_write(req.sp, &e), &e);
    CHECK_EQ(pump(req.tap, rep.tap, 150), 150);          /* one request and a part of the next */
    CHECK_OK(sp_read(rep.sp, 1 << 20, &e), &e);
    CHECK_EQ(rep.frames, 1);
    sp_send(rep.sp, &big);
    while (pump(req.tap, rep.tap, 4096) > 0) continue;
    CHECK_OK(sp_read(rep.sp, 1 << 20, &e), &e);          /* what has begun is finished, nothing new is begun */
    CHECK_EQ(rep.frames, 2);
    CHECK_OK(sp_read(rep.sp, 1 << 20, &e), &e);
    CHECK_EQ(rep.frames, 2);
    CHECK(sp_wants_read(rep.sp));                        /* polling would not tell */
    while (sp_queued(rep.sp) >= SEND_QUEUE_MAX / 2) {
        uint8_t sink[4096];
        CHECK_OK(sp_write(rep.sp, &e), &e);
        CHECK(recv(rep.tap, sink, sizeof sink, 0) > 0);
    }
    CHECK_OK(sp_read(rep.sp, 1 << 20, &e), &e);
    CHECK_EQ(rep.frames, 10);
    CHECK(!sp_wants_read(rep.sp));
    ends_free();
    CHECK_EQ(big_done, 1);
}

TEST(a_client_reads_answers_however_much_it_has_to_send)
{
    struct segment all = {big_body, sizeof big_body, NULL};
    struct outgoing big = {.id = 0x80000001u, .segments = &all, .segment_count = 1, .done = big_done_count};

    ends_new(false);
    settle(NULL);
    sp_send(req.sp, &big);
    (void)send_made(&rep, (struct made){.id = 0x80000002u, .body_size = 20, .segments = 1});
    CHECK_OK(sp_write(rep.sp, &e), &e);
    pump(rep.tap, req.tap, 4096);
    CHECK_OK(sp_read(req.sp, 1 << 20, &e), &e);
    CHECK_EQ(req.frames, 1);
    ends_free();
}

/* ---- what peers do wrong -------------------------------------------------------------------------------------- */

#define GREETING "\0SP\0\0\x30\0\0"      /* of a REQ */

TEST(what_breaks_sp_ends_the_connection_with_its_reason)
{
    static const struct {
        const char *bytes;
        size_t size;
        bool ipc;
        enum reason reason;
        const char *says;
    } rows[] = {
        {"GET / HTTP/1.1\r\n", 16, false, REASON_MALFORMED, "does not speak"},
        {"\0SP\1\0\x30\0\0", 8, false, REASON_MALFORMED, "does not speak"},
        {"\0SP\0\0\x31\0\0", 8, false, REASON_MALFORMED, "REQ"},
        {"\0SP\0\x30\0\0\0", 8, false, REASON_MALFORMED, "type 0x3000"},
        {GREETING "\0\0\0\0\0\0\0\0", 16, false, REASON_MALFORMED, "without request id"},
        {GREETING "\0\0\0\0\0\0\0\3", 16, false, REASON_MALFORMED, "without request id"},
        {GREETING "\xff\xff\xff\xff\xff\xff\xff\xff", 16, false, REASON_TOO_LARGE, "18446744073709551615"},
        {GREETING "\0\0\0\0\0\x41\0\1", 16, false, REASON_TOO_LARGE, "4259841"},
        {GREETING "\0\0\0\0\0\0\0\4\x7f\xff\xff\xff", 20, false, REASON_MALFORMED, "0x7fffffff"},
        {GREETING "\2\0\0\0\0\0\0\0\4", 17, true, REASON_MALFORMED, "type 2"},
        {GREETING "\0\0\0\0\0\0\0\0\4", 17, true, REASON_MALFORMED, "type 0"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t cut = 0; cut < 2; cut++) {
            ends_new(rows[i].ipc);
            enum status s = STATUS_OK;
            for (size_t at = 0; at < rows[i].size && s == STATUS_OK;) {
                size_t n = cut == 0 ? rows[i].size : 1;
                CHECK(send(rep.tap, rows[i].bytes + at, n, 0) == (ssize_t)n);
                at += n;
                s = sp_read(rep.sp, 1 << 20, &e);
            }
            if (s == STATUS_OK) test_fail(__FILE__, __LINE__, "row %zu is taken", i);
            CHECK_EQ(e.reason, rows[i].reason);
            CHECK_SAYS(e.text, rows[i].says);
            CHECK_EQ(rep.frames, 0);
            ends_free();
        }
}

TEST(a_message_of_the_largest_size_is_begun)
{
    ends_new(false);
    CHECK(send(rep.tap, GREETING "\0\0\0\0\0\x41\0\0", 16, 0) == 16);
    CHECK_OK(sp_read(rep.sp, 1 << 20, &e), &e);
    ends_free();
}

/* A message with sound SP around a frame that is none. */
static void send_raw(struct end *x, uint32_t id, const void *frame, size_t size)
{
    uint8_t lead[12] = {0};

    for (int i = 0; i < 8; i++) lead[i] = (uint8_t)((uint64_t)(size + 4) >> (56 - 8 * i));
    for (int i = 0; i < 4; i++) lead[8 + i] = (uint8_t)(id >> (24 - 8 * i));
    CHECK(send(x->tap, lead, sizeof lead, 0) == sizeof lead);
    for (size_t at = 0; at < size;) {
        ssize_t n = send(x->tap, (const uint8_t *)frame + at, size - at, 0);
        if (n > 0) at += (size_t)n;
        CHECK(n > 0 || errno == EAGAIN);
        CHECK_OK(sp_read(x->sp, 1 << 20, &e), &e);
    }
}

TEST(a_frame_that_is_none_is_refused_and_the_next_one_taken)
{
    static uint8_t junk[300000];
    const size_t sizes[] = {0, 1, 75, 76, 77, 5000, sizeof junk};

    ends_new(false);
    settle(NULL);
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        send_raw(&rep, 0x80000000u + i, junk, sizes[i]);
        CHECK_OK(sp_read(rep.sp, 1 << 20, &e), &e);
        CHECK_EQ(rep.refused, i + 1);
        CHECK_EQ(rep.last_id, 0x80000000u + i);
        CHECK_EQ(rep.last.header.method, 0);
        CHECK(rep.last.body == NULL);
        CHECK_SAYS(rep.says, sizes[i] < WIRE_HEADER_SIZE ? "too short" : "PRMD");
        (void)send_made(&req, (struct made){.id = 0x80000099u, .body_size = 20, .segments = 1});
        settle(NULL);
        CHECK_EQ(rep.frames, 2 * (i + 1));
    }
    ends_free();
}

TEST(a_refused_frame_tells_whose_it_was_when_its_header_is_sound)
{
    struct wire_header h = {.method = WIRE_Push, .sequence = 77};
    struct buf frame = {0};

    ends_new(false);
    settle(NULL);
    CHECK(wire_head_write(&frame, &h, (struct bytes){0}, (struct bytes){0}, 100, NULL, 0));
    send_raw(&rep, 0x80000001u, frame.at, frame.size);       /* the body is missing */
    CHECK_OK(sp_read(rep.sp, 1 << 20, &e), &e);
    CHECK_EQ(rep.refused, 1);
    CHECK_SAYS(rep.says, "add up");
    CHECK_EQ(rep.last.header.sequence, 77);
    buf_fini(&frame);
    ends_free();
}

TEST(a_peer_that_closes_ends_the_connection)
{
    ends_new(false);
    settle(NULL);
    (void)send_made(&req, (struct made){.id = 0x80000001u, .body_size = 200000, .segments = 1});
    CHECK_OK(sp_write(req.sp, &e), &e);
    pump(req.tap, rep.tap, 4096);
    close(rep.tap);
    rep.tap = -1;
    enum status s;
    while ((s = sp_read(rep.sp, 1 << 20, &e)) == STATUS_OK) continue;
    CHECK_EQ(e.reason, REASON_UNREACHABLE);
    CHECK_EQ(rep.frames, 0);
    (void)send_made(&rep, (struct made){.id = 0x80000001u, .body_size = 20, .segments = 1});
    CHECK_EQ(sp_write(rep.sp, &e), STATUS_UNAVAILABLE);
    ends_free();
}

/* ---- no memory ------------------------------------------------------------------------------------------------ */

/* Fails every allocation once, one after the other. A frame is then refused or a connection ends; nothing leaks. */
static bool sweep_once(uint64_t n)
{
    int64_t live = mem_live();
    enum status s;

    done_sent = done_lost = 0;
    mem_fault_at(n);
    s = end_new(&req, SP_REQ, false);
    if (s != STATUS_OK) req.sp = NULL;
    if (s == STATUS_OK) s = end_new(&rep, SP_REP, false);
    else rep = (struct end){.tap = -1, .memory = guard_new(MEMORY_SIZE)};
    if (s != STATUS_OK) rep.sp = NULL;
    rep.where = PLACE_SCRATCH;
    rep.echo = true;
    for (uint32_t id = 1; s == STATUS_OK && id <= 12; id++) {
        struct made m = {.id = id | 0x80000000u, .desc_size = 100 * id, .body_size = id * 20000, .segments = 3};
        struct sent *out = sent_new(&m);
        if (out == NULL) continue;
        sp_send(req.sp, &out->o);
        while (step(NULL, &s)) continue;
        if (s == STATUS_OK && id % 4 == 0) sp_trim(rep.sp);
    }
    bool hit = mem_fault_hit();
    mem_fault_at(0);
    if (s != STATUS_OK) CHECK_EQ(e.reason, REASON_NO_MEMORY);
    if (rep.refused > 0) CHECK_SAYS(rep.says, "no memory");
    if (!hit) CHECK_EQ(rep.frames, 12);
    if (!hit) CHECK_EQ(req.frames, 12);
    ends_free();
    CHECK_EQ(mem_live(), live);
    return hit;
}

TEST(without_memory_a_frame_or_a_connection_is_lost_and_nothing_else)
{
    uint64_t n = 1;

    while (sweep_once(n)) n++;
    CHECK(n > 20);
}
