#include "api/sp.h"

#include "service/base/mem.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Reading. The stream is a sequence of pieces whose sizes are known when they begin. A piece that misses little is
 * filled from a window on the stack, which takes many small frames from the kernel with one call; one that misses much
 * is read straight to where it belongs. All that is read is used at once, so an idle connection holds no buffer. */
enum {
    WINDOW = 32 << 10,
    WINDOW_BULK = 512,           /* after a large frame: what a window holds of a body is copied once more */
    LARGE = 64 << 10,            /* a frame, or a block of memory, is large from here on */
    DIRECT_MIN = 4 << 10,
    /* Of one call. Measured over loopback at 1 MiB and 4 MiB a frame: 64 KiB 7.5-8.9 GB/s, 256 KiB and 1 MiB 5-6.
     * What a call frees is used again by the sender while it is in the cache, and the window opens steadily. */
    BITE = 64 << 10,
    /* With so much read, what waits to be sent goes first. The other side works on it meanwhile; were all that has come
     * answered in one go, the two would take turns. */
    READ_BEFORE_SEND = 256 << 10,
    IOV = 64
};

enum stage { GREETING, LENGTH, HEADER, DETAILS, BODY, REFUSED };

struct room {                    /* memory that grows as the bytes arrive, so a claim alone costs nothing */
    uint8_t *at;
    size_t capacity;
    size_t peak;                 /* most that was used since the last trim */
};

struct piece {
    uint8_t *at;                 /* NULL: what arrives is thrown away */
    struct room *room;           /* at lies here; NULL: in memory that is large enough */
    size_t have;
    size_t want;
};

struct sp_conn {
    int fd;
    unsigned self;
    bool ipc;
    size_t frame_max;
    size_t soft_max;             /* 0: none */
    struct sp_account *account;  /* NULL: none */
    const struct sp_handler *handler;
    void *ctx;
    uint64_t progress, received;
    bool broken;                 /* a segment is lost before it was sent: nothing more may go out */
    bool held;                   /* the frame in hand is still worked on */
    bool over_account;           /* for lack of room in the account, not of memory */

    enum stage stage;
    struct piece piece;
    uint8_t small[4 + WIRE_HEADER_SIZE];
    uint64_t frame_size;         /* of the message in hand, without its id */
    uint64_t left;               /* of it, behind the present piece */
    struct room details;
    struct room scratch;
    struct incoming in;
    struct error error;
    size_t window;
    struct buf rest;             /* what was read and may not be taken yet because too many answers wait */
    size_t rest_at;

    struct list queue;
    size_t queued;
    size_t greeting_left;
};

static const uint8_t greeting_start[4] = {0, 'S', 'P', 0};
enum { GREETING_SIZE = 8 };

/* ---- what a connection may hold ------------------------------------------------------------------------------- */

void sp_account_give(struct sp_account *a, size_t size)
{
    for (; a != NULL; a = a->in) a->used -= size;
}

bool sp_account_take(struct sp_account *a, size_t size)
{
    for (const struct sp_account *at = a; at != NULL; at = at->in)
        if (size > at->max || at->used > at->max - size) return false;
    for (; a != NULL; a = a->in) a->used += size;
    return true;
}

/* ---- pieces --------------------------------------------------------------------------------------------------- */

static void begin(struct sp_conn *c, enum stage stage, uint8_t *at, uint64_t want)
{
    c->stage = stage;
    c->piece = (struct piece){.at = at, .want = (size_t)want};
}

static void begin_in_room(struct sp_conn *c, enum stage stage, struct room *r, uint64_t want)
{
    begin(c, stage, r->at, want);
    c->piece.room = r;
    if (r->peak < want) r->peak = (size_t)want;
}

static enum status room_grow(struct sp_conn *c, struct room *r, size_t want, struct error *e)
{
    size_t capacity = r->capacity > 0 ? 2 * r->capacity : LARGE;

    if (capacity > want) capacity = want;
    size_t more = capacity - r->capacity;
    if (!sp_account_take(c->account, more))
        return error_retry(e, REASON_IN_FLIGHT, RETRY_MS, "there is no room for a frame of %llu bytes: too many others "
                           "have begun to arrive and are not whole", (unsigned long long)c->frame_size);
    uint8_t *at = mem_resize(r->at, capacity);
    if (at == NULL) {
        sp_account_give(c->account, more);
        return error_set(e, REASON_NO_MEMORY, "no memory for a frame of %llu bytes", (unsigned long long)c->frame_size);
    }
    r->at = at;
    r->capacity = capacity;
    return STATUS_OK;
}

static void room_free(struct sp_conn *c, struct room *r)
{
    sp_account_give(c->account, r->capacity);
    mem_free(r->at);
    *r = (struct room){0};
}

/* An idle connection shall hold nothing, a busy one what it needs. */
static void room_trim(struct sp_conn *c, struct room *r)
{
    if (r->peak == 0 || (r->capacity > LARGE && r->peak <= r->capacity / 4)) room_free(c, r);
    r->peak = 0;
}

/* How much of the piece can be taken now. Without memory for it the frame is refused, not the connection. */
static size_t piece_room(struct sp_conn *c)
{
    struct piece *p = &c->piece;
    size_t missing = p->want - p->have;

    if (p->room == NULL) return missing;
    if (p->have == p->room->capacity) {
        enum status s = room_grow(c, p->room, p->want, &c->error);
        if (s != STATUS_OK) {
            c->in.status = s;
            p->at = NULL;
            p->room = NULL;
            return missing;
        }
    }
    p->at = p->room->at;
    size_t space = p->room->capacity - p->have;
    return missing < space ? missing : space;
}

/* ---- from piece to piece -------------------------------------------------------------------------------------- */

static void begin_message(struct sp_conn *c)
{
    begin(c, LENGTH, c->small, c->ipc ? 9 : 8);
}

static void finish(struct sp_conn *c)
{
    c->window = c->frame_size >= LARGE ? WINDOW_BULK : WINDOW;
    begin_message(c);
    c->handler->frame(c->ctx, &c->in);
}

static void refuse(struct sp_conn *c)
{
    c->in.fixed = c->in.desc = (struct bytes){0};
    c->in.body = NULL;
    if (c->left == 0) finish(c);
    else begin(c, REFUSED, NULL, c->left);
}

static enum status greeting_done(struct sp_conn *c, struct error *e)
{
    unsigned protocol = (unsigned)c->small[4] << 8 | c->small[5];
    unsigned wanted = c->self == SP_REQ ? SP_REP : SP_REQ;

    if (memcmp(c->small, greeting_start, sizeof greeting_start) != 0)
        return error_set(e, REASON_MALFORMED, "the other side does not speak nanomsg's SP protocol");
    if (protocol != wanted)
        return error_set(e, REASON_MALFORMED, "the other side is an SP socket of type 0x%x; %s (0x%x) is needed",
                         protocol, wanted == SP_REQ ? "REQ" : "REP", wanted);
    begin_message(c);
    return STATUS_OK;
}

static enum status length_done(struct sp_conn *c, struct error *e)
{
    uint64_t size;

    if (c->ipc && c->small[0] != 1)
        return error_set(e, REASON_MALFORMED, "message type %u; only 1 is known on a Unix socket", c->small[0]);
    memcpy(&size, c->small + (c->ipc ? 1 : 0), sizeof size);
    size = be64toh(size);
    if (size > c->frame_max)
        return error_set(e, REASON_TOO_LARGE, "a message of %llu bytes; at most %zu are taken",
                         (unsigned long long)size, c->frame_max);
    if (size < 4) return error_set(e, REASON_MALFORMED, "a message without request id");
    c->frame_size = size - 4;
    begin(c, HEADER, c->small, 4 + (c->frame_size < WIRE_HEADER_SIZE ? c->frame_size : WIRE_HEADER_SIZE));
    return STATUS_OK;
}

static void body_done(struct sp_conn *c)
{
    c->in.body = c->piece.at;
    finish(c);
}

static void begin_body(struct sp_conn *c)
{
    void *at = NULL;

    if (c->in.header.body_size == 0) {
        c->in.body = c->small;
        finish(c);
        return;
    }
    switch (c->handler->place(c->ctx, &c->in, &at)) {
    case PLACE_SCRATCH:
        begin_in_room(c, BODY, &c->scratch, c->in.header.body_size);
        break;
    case PLACE_AT:
        assert(at != NULL);
        begin(c, BODY, at, c->in.header.body_size);
        break;
    case PLACE_DROP:
        begin(c, BODY, NULL, c->in.header.body_size);
        break;
    }
}

static void details_done(struct sp_conn *c)
{
    if (c->in.status != STATUS_OK) {
        refuse(c);
        return;
    }
    c->in.fixed = bytes_of(c->piece.at, c->in.header.fixed_size);
    c->in.desc = bytes_of(c->piece.at + c->in.header.fixed_size, c->in.header.desc_size);
    begin_body(c);
}

static enum status header_done(struct sp_conn *c, struct error *e)
{
    uint32_t id;

    memcpy(&id, c->small, sizeof id);
    c->in = (struct incoming){.id = be32toh(id), .error = &c->error};
    /* A word without the top bit is a hop of a device; those are for libnanomsg's door. */
    if ((c->in.id & 0x80000000u) == 0)
        return error_set(e, REASON_MALFORMED, "a message without request id (its first word is 0x%x)", c->in.id);
    c->in.status = wire_header_read(bytes_of(c->small + 4, c->piece.want - 4), c->frame_size, &c->in.header,
                                    &c->error);
    c->left = c->frame_size - (c->piece.want - 4);
    if (c->in.status == STATUS_OK && c->soft_max != 0 && c->frame_size > c->soft_max)
        c->in.status = error_set(&c->error, REASON_TOO_LARGE, "a frame of %llu bytes before HELLO; at most %zu are taken",
                                 (unsigned long long)c->frame_size, c->soft_max);
    if (c->in.status != STATUS_OK) {
        refuse(c);
        return STATUS_OK;
    }
    size_t details = wire_head_size(&c->in.header) - WIRE_HEADER_SIZE;
    c->left -= details;
    if (details > 0) begin_in_room(c, DETAILS, &c->details, details);
    else begin_body(c);
    return STATUS_OK;
}

static enum status check_broken(const struct sp_conn *c, struct error *e)
{
    if (!c->broken) return STATUS_OK;
    if (c->over_account)
        return error_set(e, REASON_LIMIT, "what it has not read yet has been replaced, and there is no room for copies");
    return error_set(e, REASON_NO_MEMORY, "no memory to copy what is not sent yet");
}

static enum status piece_done(struct sp_conn *c, struct error *e)
{
    switch (c->stage) {
    case GREETING: return greeting_done(c, e);
    case LENGTH: return length_done(c, e);
    case HEADER: return header_done(c, e);
    case DETAILS: details_done(c); break;
    case BODY: body_done(c); break;
    case REFUSED: finish(c); break;
    }
    return check_broken(c, e);   /* a callback may have led to sp_detach */
}

/* ---- bytes in ------------------------------------------------------------------------------------------------- */

/* Only between messages, so that the answer to the one in hand need not find room in a full queue. */
static bool stalled(const struct sp_conn *c)
{
    bool shall = c->held || (c->self == SP_REP && c->queued >= SEND_QUEUE_MAX);
    return shall && c->stage == LENGTH && c->piece.have == 0;
}

/* Takes bytes until they are used up or the connection is stalled; *used tells how many. */
static enum status feed(struct sp_conn *c, const uint8_t *from, size_t size, size_t *used, struct error *e)
{
    size_t at = 0;

    while (at < size && !stalled(c)) {
        size_t n = piece_room(c);
        if (n > size - at) n = size - at;
        if (c->piece.at != NULL) memcpy(c->piece.at + c->piece.have, from + at, n);
        c->piece.have += n;
        at += n;
        if (c->piece.have < c->piece.want) continue;
        enum status s = piece_done(c, e);
        if (s != STATUS_OK) return s;
    }
    *used = at;
    return STATUS_OK;
}

static enum status feed_rest(struct sp_conn *c, struct error *e)
{
    size_t used;

    if (c->rest.size == 0) return STATUS_OK;
    enum status s = feed(c, c->rest.at + c->rest_at, c->rest.size - c->rest_at, &used, e);
    if (s != STATUS_OK) return s;
    c->rest_at += used;
    if (c->rest_at == c->rest.size) {
        buf_fini(&c->rest);
        c->rest_at = 0;
    }
    return STATUS_OK;
}

/* *got 0: there is nothing now. */
static enum status receive(struct sp_conn *c, void *to, size_t size, size_t *got, struct error *e)
{
    ssize_t n;

    do n = recv(c->fd, to, size, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    *got = n > 0 ? (size_t)n : 0;
    c->progress += *got;
    c->received += *got;
    if (n == 0) return error_set(e, REASON_UNREACHABLE, "the other side closed the connection");
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        return error_set(e, REASON_UNREACHABLE, "the connection broke: %s", strerror(errno));
    return STATUS_OK;
}

static enum status read_direct(struct sp_conn *c, size_t *asked, size_t *got, struct error *e)
{
    size_t n = piece_room(c);

    *got = *asked = 0;
    if (c->piece.at == NULL) return STATUS_OK;   /* no memory: from now on the window's */
    *asked = n < BITE ? n : BITE;
    enum status s = receive(c, c->piece.at + c->piece.have, *asked, got, e);
    if (s != STATUS_OK) return s;
    c->piece.have += *got;
    return c->piece.have == c->piece.want ? piece_done(c, e) : STATUS_OK;
}

static enum status read_window(struct sp_conn *c, size_t *asked, size_t *got, struct error *e)
{
    uint8_t window[WINDOW];
    size_t used;

    *asked = c->piece.want - c->piece.have + c->window;
    if (*asked > WINDOW) *asked = WINDOW;
    enum status s = receive(c, window, *asked, got, e);
    if (s == STATUS_OK) s = feed(c, window, *got, &used, e);
    if (s != STATUS_OK || used == *got) return s;
    buf_add(&c->rest, window + used, *got - used);
    return c->rest.failed ? error_set(e, REASON_NO_MEMORY, "no memory for requests that wait") : STATUS_OK;
}

enum status sp_read(struct sp_conn *c, size_t budget, struct error *e)
{
    enum status s = feed_rest(c, e);
    size_t sum = 0;

    while (s == STATUS_OK && sum < (c->queued > 0 ? READ_BEFORE_SEND : budget) && c->rest.size == 0 && !stalled(c)) {
        bool direct = c->piece.at != NULL || c->piece.room != NULL;
        size_t asked, got;
        if (direct && c->piece.want - c->piece.have >= DIRECT_MIN) s = read_direct(c, &asked, &got, e);
        else s = read_window(c, &asked, &got, e);
        /* Less than asked for: the socket is empty, most likely, and polling tells when not. */
        if (got < asked) break;
        sum += got;
    }
    return s;
}

/* ---- bytes out ------------------------------------------------------------------------------------------------ */

void sp_send(struct sp_conn *c, struct outgoing *o)
{
    uint64_t size = 4 + (uint64_t)o->head.size;

    for (size_t i = 0; i < o->segment_count; i++) size += o->segments[i].size;
    uint64_t length = htobe64(size);
    uint32_t id = htobe32(o->id);
    o->lead_size = 0;
    if (c->ipc) o->lead[o->lead_size++] = 1;
    memcpy(o->lead + o->lead_size, &length, sizeof length);
    memcpy(o->lead + o->lead_size + sizeof length, &id, sizeof id);
    o->lead_size += sizeof length + sizeof id;
    o->size = o->lead_size - sizeof id + size;
    o->written = 0;
    o->copies = (struct buf){0};
    list_append(&c->queue, &o->node);
    c->queued += o->size;
}

struct gather {
    struct iovec at[IOV];
    size_t count;
    size_t size;
    uint64_t skip;               /* of the present frame, gone already */
};

static void gather_add(struct gather *g, const void *at, size_t size)
{
    if (g->skip >= size) {
        g->skip -= size;
        return;
    }
    if (g->count == IOV) return;
    /* An iovec serves reading too and so is not const; sendmsg does not write there. */
    union { const void *in; void *out; } p = {.in = (const uint8_t *)at + g->skip};
    g->at[g->count++] = (struct iovec){p.out, size - (size_t)g->skip};
    g->size += size - (size_t)g->skip;
    g->skip = 0;
}

static void gather_frame(struct gather *g, const struct outgoing *o)
{
    g->skip = o->written;
    gather_add(g, o->lead, o->lead_size);
    gather_add(g, o->head.at, o->head.size);
    for (size_t i = 0; i < o->segment_count && g->count < IOV; i++)
        gather_add(g, o->segments[i].at, o->segments[i].size);
}

static void finish_frame(struct sp_conn *c, struct outgoing *o, bool sent)
{
    list_remove(&o->node);
    sp_account_give(c->account, o->copies.capacity);
    buf_fini(&o->copies);
    o->done(o, sent);
}

static void sent(struct sp_conn *c, size_t size)
{
    size_t n = size < c->greeting_left ? size : c->greeting_left;

    c->progress += size;
    c->greeting_left -= n;
    size -= n;
    while (size > 0) {
        struct outgoing *o = LIST_FIRST(struct outgoing, node, &c->queue);
        uint64_t missing = o->size - o->written;
        n = size < missing ? size : (size_t)missing;
        o->written += n;
        c->queued -= n;
        size -= n;
        if (o->written == o->size) finish_frame(c, o, true);
    }
}

enum status sp_write(struct sp_conn *c, struct error *e)
{
    const uint8_t greeting[GREETING_SIZE] = {0, 'S', 'P', 0, 0, (uint8_t)c->self, 0, 0};

    for (size_t turn = 0; turn < SP_WRITE_TURN && sp_wants_write(c);) {
        enum status s = check_broken(c, e);
        if (s != STATUS_OK) return s;
        struct gather g = {.skip = GREETING_SIZE - c->greeting_left};
        gather_add(&g, greeting, sizeof greeting);
        LIST_EACH(struct outgoing, o, node, &c->queue) {
            if (g.count == IOV) break;
            gather_frame(&g, o);
        }
        struct msghdr m = {.msg_iov = g.at, .msg_iovlen = g.count};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n < 0) return error_set(e, REASON_UNREACHABLE, "the connection broke: %s", strerror(errno));
        sent(c, (size_t)n);
        turn += (size_t)n;
        if ((size_t)n < g.size) break;
    }
    return STATUS_OK;
}

/* ---- memory that goes ----------------------------------------------------------------------------------------- */

/* Room for all that is still to be sent, at once: further copies then leave earlier ones where they are. */
static bool copies_reserve(struct sp_conn *c, struct outgoing *o)
{
    size_t size = 0;

    if (o->copies.at != NULL) return true;
    for (size_t i = 0; i < o->segment_count; i++) size += o->segments[i].size;
    c->over_account = !sp_account_take(c->account, size);
    if (c->over_account) return false;
    o->copies.at = mem_new(size);
    if (o->copies.at != NULL) o->copies.capacity = size;
    else sp_account_give(c->account, size);
    return o->copies.at != NULL;
}

static bool detach_frame(struct sp_conn *c, struct outgoing *o, const void *owner)
{
    uint64_t end = o->lead_size + o->head.size;

    for (size_t i = 0; i < o->segment_count; i++) {
        struct segment *s = &o->segments[i];
        end += s->size;
        if (s->owner != owner || s->size == 0 || end <= o->written) continue;
        if (!copies_reserve(c, o)) return false;
        memcpy(o->copies.at + o->copies.size, s->at, s->size);
        s->at = o->copies.at + o->copies.size;
        s->owner = NULL;
        o->copies.size += s->size;
    }
    return true;
}

enum status sp_detach(struct sp_conn *c, const void *owner, struct error *e)
{
    assert(owner != NULL);
    LIST_EACH(struct outgoing, o, node, &c->queue)
        if (!c->broken && !detach_frame(c, o, owner)) c->broken = true;
    return check_broken(c, e);
}

void sp_discard(struct sp_conn *c)
{
    if (c->stage != BODY) return;
    c->piece.at = NULL;
    c->piece.room = NULL;
}

void sp_hold(struct sp_conn *c, bool on) { c->held = on; }
bool sp_is_held(const struct sp_conn *c) { return c->held; }

void sp_trim(struct sp_conn *c)
{
    if (sp_in_frame(c) || c->held) return;
    room_trim(c, &c->details);
    room_trim(c, &c->scratch);
}

/* ---- the connection ------------------------------------------------------------------------------------------- */

enum status sp_new(int fd, unsigned self, bool ipc, size_t frame_max, const struct sp_handler *handler, void *ctx,
                   struct sp_conn **out, struct error *e)
{
    struct sp_conn *c = mem_zero(sizeof *c);

    assert(self == SP_REQ || self == SP_REP);
    if (c == NULL) {
        close(fd);
        return error_set(e, REASON_NO_MEMORY, "no memory for a connection");
    }
    c->fd = fd;
    c->self = self;
    c->ipc = ipc;
    c->frame_max = frame_max;
    c->handler = handler;
    c->ctx = ctx;
    c->window = WINDOW;
    c->greeting_left = GREETING_SIZE;
    list_init(&c->queue);
    begin(c, GREETING, c->small, GREETING_SIZE);
    *out = c;
    return STATUS_OK;
}

void sp_free(struct sp_conn *c)
{
    if (c == NULL) return;
    close(c->fd);
    for (struct outgoing *o; (o = LIST_FIRST(struct outgoing, node, &c->queue)) != NULL;) finish_frame(c, o, false);
    room_free(c, &c->details);
    room_free(c, &c->scratch);
    buf_fini(&c->rest);
    mem_free(c);
}

int sp_fd(const struct sp_conn *c) { return c->fd; }
void sp_set_account(struct sp_conn *c, struct sp_account *a) { c->account = a; }
void sp_set_soft_max(struct sp_conn *c, size_t size) { c->soft_max = size; }
bool sp_wants_write(const struct sp_conn *c) { return c->greeting_left > 0 || c->queued > 0; }
bool sp_wants_read(const struct sp_conn *c) { return c->rest.size > 0; }
size_t sp_queued(const struct sp_conn *c) { return c->queued; }
bool sp_greeted(const struct sp_conn *c) { return c->stage != GREETING; }
bool sp_in_frame(const struct sp_conn *c)
{
    return c->stage > LENGTH || (c->stage == LENGTH && c->piece.have > 0);
}
uint64_t sp_progress(const struct sp_conn *c) { return c->progress; }
uint64_t sp_received(const struct sp_conn *c) { return c->received; }
