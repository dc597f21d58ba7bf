/* Frames in, answers out. A request: server_place (when it has a body) -> server_frame -> its method -> one answer,
 * at once or, for what waits (Wait, a copy down from the device), when that is decided. */
#include "service/op.h"

#include "service/base/log.h"
#include "service/base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct method_row {
    method_json *json;
    method_data *data;
};

static const struct method_row methods[WIRE_METHODS_END] = {
#define METHOD_ROW(number, name, kind, flags) [number] = {.kind = method_##name},
    WIRE_METHODS(METHOD_ROW)
#undef METHOD_ROW
};

/* Those that the turn has no time for are answered in the next one. */
static void flush_decided(struct server *s)
{
    for (struct wait *w; (w = LIST_FIRST(struct wait, node, &s->core.decided)) != NULL;) {
        list_remove(&w->node);
        core_spend(&s->core, 1 + w->count / 32);
        w->answer(w);
        if (core_is_spent(&s->core)) return;
    }
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void detach(void *ctx, const void *owner)
{
    const struct version *v = owner; /* held by its caller */
    struct server *s = ctx;

    LIST_EACH(struct peer, p, node, &s->peers) p->ops->detach(p->link, owner);
    LIST_EACH(struct session, at, node, &s->sessions) {
        if (v->pins == 0) break;
        session_unpin_revoked(at, v);
    }
}

static enum status copy_text(const char *from, char **out, struct error *e)
{
    if (from == NULL) return STATUS_OK;
    *out = mem_text(from, strlen(from));
    return *out != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for a setting");
}

enum status server_new(const struct server_config *config, uint64_t now_ms, struct server **out, struct error *e)
{
    struct server *s = mem_zero(sizeof *s);
    enum status st;

    if (s == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a server");
    s->config = *config;
    s->next_session = 1;
    s->next_epoch = 1;
    s->next_box = 1;
    s->started_ms = now_ms;
    list_init(&s->sessions);
    list_init(&s->peers);
    s->by_id = map_new(config->seed);
    st = s->by_id != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for clients");
    if (st == STATUS_OK) st = copy_text(config->token, &s->token, e);
    if (st == STATUS_OK) st = copy_text(config->advertise, &s->advertise, e);
    if (st == STATUS_OK) st = copy_text(config->bulk_path, &s->bulk_path, e);
    if (st == STATUS_OK) st = copy_text(config->host, &s->host, e);
    if (st == STATUS_OK) st = core_init(&s->core, config->device, config->seed, config->staging_max, now_ms, e);
    if (st != STATUS_OK) goto out;
    s->core.embedded = config->embedded;
    s->core.nccl = config->nccl;
    s->core.hook_ctx = s;
    s->core.detach = detach;
    *out = s;
    s = NULL; /* the caller's now */
out:
    server_free(s);
    return st;
}

void server_free(struct server *s)
{
    if (s == NULL) return;
    assert(list_empty(&s->peers));
    if (s->core.device != NULL) {
        server_settle(s);
        for (struct wait *w; (w = LIST_FIRST(struct wait, node, &s->core.waits)) != NULL;) {
            list_remove(&w->node);
            w->answer(w); /* to nobody: the peers are gone */
        }
        sessions_free(s);
        core_fini(&s->core);
    }
    map_free(s->by_id);
    mem_free(s->token);
    mem_free(s->advertise);
    mem_free(s->bulk_path);
    mem_free(s->host);
    mem_free(s);
}

void server_set_bulk(struct server *s, unsigned port, const char *path)
{
    s->config.bulk_port = port;
    mem_free(s->bulk_path);
    s->bulk_path = path != NULL ? mem_text(path, strlen(path)) : NULL;
}

void server_set_limits(struct server *s, uint64_t staging_max, const struct core_limits *limits)
{
    core_set_limits(&s->core, staging_max, limits);
}

void server_give_token(struct server *s, char *token)
{
    mem_free(s->token);
    s->token = token;
}

void server_drain(struct server *s) { s->draining = true; }

/* ---- turns ------------------------------------------------------------------------------------------------------ */

void server_turn(struct server *s)
{
    core_turn(&s->core);
    flush_decided(s);
}

bool server_is_spent(void *server) { return core_is_spent(&((struct server *)server)->core); }
bool server_has_work(const struct server *s) { return core_has_work(&s->core) || !list_empty(&s->core.decided); }

void server_tell_turn(struct server *s, uint64_t ns)
{
    if (ns > s->turn_ns_max) s->turn_ns_max = ns;
}

/* ---- connections ------------------------------------------------------------------------------------------------ */

static void frame_drop(struct peer *p);

static void discard(struct landing *l)
{
    struct peer *p = CONTAINER_OF(CONTAINER_OF(l, struct placed, landing), struct peer, placed);
    p->ops->discard(p->link);
}

enum status server_peer_new(struct server *s, const struct peer_ops *ops, void *link, const char *address,
                            struct peer **out, struct error *e)
{
    struct peer *p = mem_zero(sizeof *p);
    char *text = mem_text(address, strlen(address));

    if (p == NULL || text == NULL) {
        mem_free(p);
        mem_free(text);
        return error_set(e, REASON_NO_MEMORY, "no memory for a connection");
    }
    p->server = s;
    p->ops = ops;
    p->link = link;
    p->address = text;
    p->placed.landing.discard = discard;
    list_init(&p->requests);
    list_append(&s->peers, &p->node);
    if (ops->bound != NULL) ops->bound(link, HELLO_FRAME_MAX);
    *out = p;
    return STATUS_OK;
}

void server_count_refused(struct server *s, enum reason why, uint64_t count) { s->connections_refused[why] += count; }

void server_peer_gone(struct peer *p)
{
    frame_drop(p);
    landing_cancel(&p->placed.landing);
    LIST_EACH(struct request, r, node, &p->requests) {
        list_remove(&r->node);
        r->peer = NULL;
    }
    session_detach(p);
    list_remove(&p->node);
    mem_free(p->address);
    mem_free(p);
}

struct request *request_keep(const struct request *r)
{
    struct request *kept = mem_new(sizeof *kept);

    if (kept == NULL) return NULL;
    *kept = *r;
    kept->node = (struct list_node){0};
    kept->holds = false;
    if (kept->peer != NULL) list_append(&kept->peer->requests, &kept->node);
    if (kept->session != NULL) kept->session->requests++;
    return kept;
}

void request_free(struct request *r)
{
    if (r == NULL) return;
    if (r->session != NULL) r->session->requests--;
    if (r->holds && r->peer != NULL) r->peer->ops->hold(r->peer->link, false);
    list_remove(&r->node);
    mem_free(r);
}

void request_begin(struct request *kept, struct job *j)
{
    if (j->run(j)) return;
    kept->holds = kept->peer != NULL && kept->peer->ops->hold != NULL;
    if (kept->holds) kept->peer->ops->hold(kept->peer->link, true);
    list_append(&kept->server->core.jobs, &j->node);
}

/* ---- frames ----------------------------------------------------------------------------------------------------- */

static enum status check_session(const struct peer *p, const struct wire_header *h, struct error *e)
{
    const struct session *s = p->session;

    if (s == NULL) return error_set(e, REASON_NO_HELLO, "HELLO must come first on every connection");
    if (h->session != s->number || h->epoch != s->epoch || memcmp(&h->worker, &s->id, sizeof s->id) != 0)
        return error_set(e, REASON_NO_HELLO, "the header's worker, epoch and session are not those of this "
                         "connection's HELLO");
    return STATUS_OK;
}

static enum status check_request(const struct peer *p, const struct incoming *in, struct error *e)
{
    const struct wire_header *h = &in->header;
    const char *name = wire_method_name(h->method);

    if (in->status != STATUS_OK) {
        if (e != NULL) *e = *in->error;
        return in->status;
    }
    if (name == NULL) return error_set(e, REASON_UNKNOWN_METHOD, "method %u is not known to this daemon", h->method);
    if (h->flags & WIRE_FLAG_ANSWER) return error_set(e, REASON_MALFORMED, "an answer was sent to the daemon");
    if ((h->flags & WIRE_FLAG_MAILBOX) && h->method != WIRE_Push && h->method != WIRE_Pull)
        return error_set(e, REASON_MALFORMED, "%s has no values in a mailbox; Push and Pull have", name);
    if (p->session == NULL && wire_head_size(h) + h->body_size > HELLO_FRAME_MAX) /* before a parser is let at it */
        return error_set(e, REASON_TOO_LARGE, "a frame of %llu bytes before HELLO; at most %d are taken",
                         (unsigned long long)(wire_head_size(h) + h->body_size), HELLO_FRAME_MAX);
    if ((wire_method_flags(h->method) & WIRE_OPEN) == 0) return check_session(p, h, e);
    return STATUS_OK;
}

/* Nothing of one frame may be left when the next begins, whichever way the first one ended. */
static void forget_placed(struct peer *p)
{
    landing_cancel(&p->placed.landing);
    p->placed.decided = p->placed.repeat = p->placed.failed = false;
}

enum placement server_place(struct peer *p, const struct incoming *in, void **at)
{
    forget_placed(p);
    if (check_request(p, in, NULL) != STATUS_OK) return PLACE_DROP;
    switch (in->header.method) {
    case WIRE_Init:
    case WIRE_Push:
    case WIRE_Set: return data_place(p, in, at);
    case WIRE_SetStates: return in->header.flags & WIRE_FLAG_CHECK ? PLACE_DROP : PLACE_SCRATCH;
    default: return in->header.body_size <= JSON_SIZE_MAX ? PLACE_SCRATCH : PLACE_DROP;
    }
}

static enum status check_body(const struct incoming *in, struct error *e)
{
    if ((in->header.flags & WIRE_FLAG_BODY_CRC) == 0 || in->body == NULL) return STATUS_OK;
    if (crc32c(0, in->body, (size_t)in->header.body_size) == in->header.body_crc) return STATUS_OK;
    return error_retry(e, REASON_CHECKSUM, RETRY_MS, "the body's checksum differs; it was not used");
}

static enum status parse_document(const struct incoming *in, json_t **out, struct error *e)
{
    json_error_t why;

    if (in->body == NULL || in->header.body_size > JSON_SIZE_MAX)
        return error_set(e, REASON_BAD_JSON, "a %s request has a JSON document of at most %d bytes as its body",
                         wire_method_name(in->header.method), JSON_SIZE_MAX);
    *out = json_loadb(in->body, (size_t)in->header.body_size, JSON_REJECT_DUPLICATES, &why);
    if (*out == NULL && (why.text[0] == '\0' || json_error_code(&why) == json_error_out_of_memory))
        return error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory to read a document");
    if (*out == NULL)
        return error_set(e, REASON_BAD_JSON, "line %d, column %d: %s", why.line, why.column, why.text);
    if (json_is_object(*out)) return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return error_set(e, REASON_BAD_JSON, "the document must be an object, {...}");
}

/* Has this name been answered already? Then it is answered the same again. */
static bool answered_before(struct request *r)
{
    const struct named_result *known;
    bool named = (wire_method_flags(r->header.method) & WIRE_WRITES) && r->header.sequence > 0;
    struct error e;

    if (!named || r->session == NULL) return false;
    switch (session_repeat(r->session, &r->header, &known, &e)) {
    case REPEAT_FRESH: return false;
    case REPEAT_DONE: answer_text(r, (const char *)known->bytes, known->size); break;
    case REPEAT_REFUSED: answer_refusal(r, &e); break;
    }
    return true;
}

static bool frame_goes_on(struct job *j)
{
    struct frame_job *f = CONTAINER_OF(j, struct frame_job, job);
    struct peer *p = f->request.peer;

    if (!f->run(f)) return false;
    p->frame = NULL;
    forget_placed(p);
    p->ops->hold(p->link, false);
    mem_free(f);
    return true;
}

static void frame_drop(struct peer *p)
{
    struct frame_job *f = p->frame;

    if (f == NULL) return;
    p->frame = NULL;
    list_remove(&f->job.node);
    f->drop(f);
    mem_free(f);
}

static void frame_run_all(struct frame_job *f)
{
    struct core *c = &f->request.server->core;
    uint64_t until = c->work_until;

    c->work_until = UINT64_MAX;
    while (!f->run(f)) continue;
    c->work_until = until;
}

void frame_begin(struct frame_job *f, size_t size)
{
    struct peer *p = f->request.peer;
    struct frame_job *copy;

    if (p->ops->hold == NULL) {
        frame_run_all(f);
        return;
    }
    if (f->run(f)) return;
    copy = mem_new(size);
    if (copy == NULL) {
        frame_run_all(f);
        return;
    }
    memcpy(copy, f, size);
    copy->job = (struct job){.run = frame_goes_on};
    p->frame = copy;
    p->ops->hold(p->link, true);
    list_append(&p->server->core.jobs, &copy->job.node);
}

static void run_json(struct request *r, const struct incoming *in)
{
    json_t *document = NULL;
    struct error e;

    if (answered_before(r)) return;
    if (parse_document(in, &document, &e) != STATUS_OK) answer_error(r, &e);
    else methods[r->header.method].json(r, document);
    json_decref(document);
}



void server_frame(struct peer *p, const struct incoming *in)
{
    struct server *s = p->server;
    struct request r = {.server = s, .peer = p, .id = in->id, .header = in->header, .session = p->session};
    struct error e;

    assert(p->frame == NULL);
    s->frames++;
    core_spend(&s->core, 1 + in->header.body_size / WORK_BYTES);
    enum status st = check_request(p, in, &e);
    if (st == STATUS_OK) st = check_body(in, &e);
    if (st != STATUS_OK) {
        s->frames_refused++;
        answer_refusal(&r, &e);
    } else {
        if (p->session != NULL) session_touch(p->session);
        if (methods[in->header.method].json != NULL) run_json(&r, in);
        else methods[in->header.method].data(&r, in);
    }
    if (p->frame == NULL) forget_placed(p);
    flush_decided(s);
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

struct sending {
    struct outgoing out;
    struct server *server;
    struct segment *segments;
    struct buf small, faults;
    struct piece *pieces;
    size_t piece_count;
};

static void sending_free(struct sending *o)
{
    for (size_t i = 0; i < o->piece_count; i++) version_drop(o->pieces[i].version);
    buf_fini(&o->out.head);
    buf_fini(&o->small);
    buf_fini(&o->faults);
    mem_free(o->pieces);
    mem_free(o->segments);
    mem_free(o);
}

static void sent(struct outgoing *out, bool whole)
{
    struct sending *o = CONTAINER_OF(out, struct sending, out);

    (void)whole;
    sending_free(o);
}

void answer_fini(struct answer *a)
{
    for (size_t i = 0; i < a->piece_count; i++) version_drop(a->pieces[i].version);
    mem_free(a->pieces);
    buf_fini(&a->fixed);
    buf_fini(&a->desc);
    buf_fini(&a->faults);
    buf_fini(&a->fault_text);
    buf_fini(&a->small);
    *a = (struct answer){0};
}

static void add_piece(struct answer *a, struct version *v, uint64_t offset, uint64_t size)
{
    struct piece *last = a->piece_count > 0 ? &a->pieces[a->piece_count - 1] : NULL;

    a->body_size += size;
    if (v == NULL && last != NULL && last->version == NULL && last->offset + last->size == offset) {
        last->size += size;
        return;
    }
    if (mem_grow((void **)&a->pieces, &a->piece_capacity, a->piece_count + 1, sizeof *a->pieces, NULL) != STATUS_OK) {
        a->failed = true;
        return;
    }
    a->pieces[a->piece_count++] = (struct piece){v != NULL ? version_hold(v) : NULL, offset, size};
}

static void pad_body(struct answer *a)
{
    uint64_t over = a->body_size % WIRE_ALIGN;

    if (over == 0) return;
    void *zeros = buf_room(&a->small, WIRE_ALIGN - over);
    if (zeros == NULL) return;
    memset(zeros, 0, WIRE_ALIGN - over);
    add_piece(a, NULL, a->small.size - (WIRE_ALIGN - over), WIRE_ALIGN - over);
}

void answer_copy(struct answer *a, const void *from, uint64_t size)
{
    pad_body(a);
    if (size == 0) return;
    buf_add(&a->small, from, (size_t)size);
    if (!a->small.failed) add_piece(a, NULL, a->small.size - size, size);
}

void answer_refer(struct answer *a, struct version *v, uint64_t offset, uint64_t size)
{
    pad_body(a);
    if (size > 0) add_piece(a, v, offset, size);
}

void answer_fault(struct answer *a, uint32_t index, const struct error *e)
{
    struct wire_fault f = {.index = index, .status = (uint16_t)e->status, .reason = (uint16_t)e->reason,
                           .retry_ms = e->retry_ms};

    if (a->fault_count++ < FAULT_TEXTS_MAX) {
        f.text_offset = (uint32_t)a->fault_text.size;
        f.text_size = (uint32_t)strlen(e->text);
        buf_add(&a->fault_text, e->text, f.text_size);
    }
    wire_put_fault(&a->faults, &f);
}

/* Offsets of fault texts count from the start of the body, which is only now known. */
static void place_fault_texts(struct server *s, struct answer *a)
{
    for (uint32_t i = 0; i < a->fault_count && !a->faults.failed; i++) {
        struct reader r = reader_of(bytes_of(a->faults.at + i * wire_fault_size, wire_fault_size));
        struct wire_fault f;
        struct buf again = {0};
        if (!wire_get_fault(&r, &f)) return;
        /* A Wait that has to be asked again says for what; that is no refusal. */
        enum reason why = reason_from_wire(f.reason);
        if (why != REASON_DEADLINE) s->refused[why]++;
        f.text_offset += (uint32_t)a->body_size;
        wire_put_fault(&again, &f);
        if (again.failed) a->faults.failed = true;
        else memcpy(a->faults.at + i * wire_fault_size, again.at, wire_fault_size);
        buf_fini(&again);
    }
}

static bool fill_segments(struct sending *o, struct answer *a)
{
    size_t count = a->piece_count + 1;

    o->segments = mem_array(count, sizeof *o->segments);
    if (o->segments == NULL) return false;
    for (size_t i = 0; i < a->piece_count; i++) {
        const struct piece *p = &a->pieces[i];
        const uint8_t *base = p->version != NULL ? p->version->host : a->small.at;
        o->segments[i] = (struct segment){base + p->offset, (size_t)p->size, p->version};
    }
    o->segments[a->piece_count] = (struct segment){a->fault_text.at, a->fault_text.size, NULL};
    o->out.segments = o->segments;
    o->out.segment_count = a->piece_count + (a->fault_text.size > 0);
    return true;
}

static bool compose(struct sending *o, const struct request *r, struct wire_header *h, struct answer *a)
{
    place_fault_texts(r->server, a);
    buf_add(&a->desc, a->faults.at, a->faults.size);
    if (a->failed || a->fixed.failed || a->desc.failed || a->faults.failed || a->fault_text.failed ||
        a->small.failed || !fill_segments(o, a))
        return false;
    h->method = r->header.method;
    h->flags = WIRE_FLAG_ANSWER;
    h->worker = r->header.worker;
    h->epoch = r->session != NULL ? r->session->epoch : r->header.epoch;
    h->sequence = r->header.sequence;
    h->session = r->session != NULL ? r->session->number : 0;
    return wire_head_write(&o->out.head, h, bytes_of(a->fixed.at, a->fixed.size), bytes_of(a->desc.at, a->desc.size),
                           a->body_size + a->fault_text.size, NULL, 0);
}

static void send_answer(const struct request *r, enum status status, enum reason reason, struct answer *a)
{
    struct wire_header h = {.status = (uint16_t)status, .reason = (uint16_t)reason};
    struct sending *o;
    struct error e;

    if (r->peer == NULL) { /* its connection is gone; the client asks again over another */
        answer_fini(a);
        return;
    }
    o = mem_zero(sizeof *o);
    if (o == NULL || !compose(o, r, &h, a)) {
        if (o != NULL) sending_free(o);
        answer_fini(a);
        error_retry(&e, REASON_NO_MEMORY, RETRY_MS, "no memory for an answer");
        if (reason != REASON_NO_MEMORY) answer_refusal(r, &e);
        else log_warn("server", "no memory even for an error; the client has to ask again");
        return;
    }
    o->server = r->server;
    o->out.id = r->id;
    o->out.done = sent;
    o->small = a->small;
    o->faults = a->fault_text;
    o->pieces = a->pieces;
    o->piece_count = a->piece_count;
    a->small = a->fault_text = (struct buf){0};
    a->pieces = NULL;
    a->piece_count = 0;
    answer_fini(a);
    r->server->core.counters.bytes_out += h.body_size;
    log_debug("server", "%s %s, sequence %llu: %s", r->peer->address, wire_method_name(h.method) != NULL ?
              wire_method_name(h.method) : "?", (unsigned long long)h.sequence,
              status == STATUS_OK ? "ok" : reason_code(reason));
    r->peer->ops->answer(r->peer->link, &o->out);
}

void answer_send(const struct request *r, struct answer *a) { send_answer(r, STATUS_OK, REASON_NONE, a); }

void answer_error(const struct request *r, const struct error *e)
{
    if (r->session != NULL && r->header.sequence > 0) session_forget(r->session, r->header.sequence);
    answer_refusal(r, e);
}

void answer_refusal(const struct request *r, const struct error *e)
{
    struct answer a = {0};
    struct wire_error fixed = {.retry_ms = e->retry_ms};

    r->server->refused[e->reason]++;
    wire_put_error(&a.fixed, &fixed);
    answer_copy(&a, e->text, strlen(e->text));
    send_answer(r, e->status, e->reason, &a);
}

void answer_text(const struct request *r, const char *text, size_t size)
{
    struct answer a = {0};

    answer_copy(&a, text, size);
    answer_send(r, &a);
}

static int add_text(const char *text, size_t size, void *ctx)
{
    buf_add(ctx, text, size);
    return ((struct buf *)ctx)->failed ? -1 : 0;
}

bool json_text(const json_t *document, size_t flags, struct buf *out)
{
    if (document == NULL || json_dump_callback(document, add_text, out, flags) != 0) out->failed = true;
    return !out->failed;
}

void answer_json(const struct request *r, json_t *document)
{
    struct buf text = {0};
    bool whole = json_text(document, JSON_COMPACT, &text);
    bool named = (wire_method_flags(r->header.method) & WIRE_WRITES) && r->header.sequence > 0 && r->session != NULL;
    struct error e;

    json_decref(document);
    if (!whole || text.size > JSON_SIZE_MAX * 2) {
        if (!whole) error_retry(&e, REASON_NO_MEMORY, RETRY_MS, "no memory for an answer");
        else error_set(&e, REASON_TOO_LARGE, "the answer is too large; ask for less");
        answer_error(r, &e);
    } else {
        /* A longer answer is one of a question, such as a dry run: asked again, it is answered anew. */
        if (named && text.size <= RESULT_SIZE_MAX) session_result(r->session, r->header.sequence, text.at, text.size);
        else if (named) session_forget(r->session, r->header.sequence);
        answer_text(r, (const char *)text.at, text.size);
    }
    buf_fini(&text);
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

uint64_t server_tick(struct server *s, uint64_t now_ms)
{
    uint64_t next = core_tick(&s->core, now_ms);

    if (!s->core.embedded) {
        if (now_ms >= s->expire_ms) { /* looks at every pin of every client: not each millisecond */
            sessions_expire(s);
            s->expire_ms = now_ms + 1000;
        }
        if (!list_empty(&s->sessions) && next > s->expire_ms) next = s->expire_ms;
    }
    flush_decided(s);
    return next;
}

void server_poll(struct server *s)
{
    core_poll(&s->core);
    flush_decided(s);
}

bool server_busy(const struct server *s) { return s->core.task_count > 0 || server_has_work(s); }

void server_settle(struct server *s)
{
    core_settle(&s->core);
    flush_decided(s);
}
