/* Wait: hangs until conditions are decided, or time is up. */
#include "service/op_data.h"

#include "service/base/mem.h"

#include <inttypes.h>
#include <string.h>

static enum status find_condition_key(struct condition *c, uint64_t id, struct error *e)
{
    c->key = store_key_at(c->store, id);
    return c->key != NULL ? STATUS_OK : error_set(e, REASON_NO_KEY, "there is no key with id %" PRIu64 " in store '%s'; "
                                                  "it may have been deleted or replaced", id, c->store->name);
}

static enum status read_condition(struct request *r, struct reader *in, struct condition *c, struct error *e)
{
    const uint8_t *start = in->at;
    struct wire_wait_entry f;
    struct worker *w;
    enum status st;

    if (!wire_get_wait_entry(in, &f)) return error_set(e, REASON_MALFORMED, "a condition is cut off");
    struct bytes name = bytes_of(reader_take(in, f.name_size), f.name_size);
    reader_pad(in, start, 8);
    if (in->failed || f.kind < WAIT_TICKET || f.kind > WAIT_COUNTED)
        return error_set(e, REASON_MALFORMED, "a condition of kind %u", f.kind);
    st = data_find_store(r->server, f.store, &c->store, e);
    if (st != STATUS_OK) return st;
    c->kind = (enum wait_kind)f.kind;
    c->number = f.number;
    if (session_worker(r->session, c->store, &w, e) == STATUS_OK) c->worker = worker_hold(w);
    else if (f.kind != WAIT_VERSION) return e->status;
    switch (c->kind) {
    case WAIT_TICKET:
    case WAIT_VERSION: return find_condition_key(c, f.key, e);
    case WAIT_BARRIER: c->number = f.key; return STATUS_OK;
    case WAIT_PLANE:
    case WAIT_COUNTED: c->epoch = f.key; return STATUS_OK;
    case WAIT_INIT: break;
    }
    c->name = (struct key_name){.is_text = f.key_type == KEY_STR, .number = (int64_t)f.number, .text = name};
    return store_key_check(c->store, &c->name, e);
}

/* The names of conditions lie in the frame, which goes; they are copied behind each other. */
static bool keep_names(struct wait *w, struct bytes desc, void **block)
{
    const uint8_t *from = desc.at;
    uint8_t *copy;
    bool any = false;

    for (uint32_t i = 0; i < w->count; i++) any |= w->conditions[i].kind == WAIT_INIT && w->conditions[i].name.is_text;
    if (!any) return true;
    copy = mem_new(desc.size);
    if (copy == NULL) return false;
    if (desc.size > 0) memcpy(copy, from, desc.size);
    for (uint32_t i = 0; i < w->count; i++) {
        struct condition *c = &w->conditions[i];
        if (c->kind == WAIT_INIT && c->name.is_text) c->name.text.at = copy + ((const uint8_t *)c->name.text.at - from);
    }
    *block = copy;
    return true;
}

struct wait_request {
    struct request *request;
    void *names;
};

void wait_answer(struct wait *w)
{
    struct wait_request *owner = w->owner;
    struct wire_wait_done f = {0};
    struct answer a = {0};

    for (uint32_t i = 0; i < w->count; i++) {
        const struct condition *c = &w->conditions[i];
        struct wire_wait_result x = {.index = i, .state = c->state, .version = c->version};
        struct error e;
        if (c->state != WAIT_PENDING || c->text != NULL) {
            wire_put_wait_result(&a.desc, &x);
            f.count++;
        }
        if (c->state == WAIT_DONE || (c->state == WAIT_PENDING && c->text == NULL)) continue;
        error_set(&e, c->state == WAIT_FAILED ? c->reason : REASON_DEADLINE, "%s",
                  c->text != NULL ? c->text : reason_title(c->reason));
        answer_fault(&a, i, &e);
    }
    f.faults = a.fault_count;
    wire_put_wait_done(&a.fixed, &f);
    owner->request->session->waits--;
    owner->request->session->share->conditions -= w->count;
    answer_send(owner->request, &a);
    request_free(owner->request);
    mem_free(owner->names);
    mem_free(owner);
    wait_free(w);
}

/* A Wait in hand: each of its conditions is read and looked at in one go, as a key may go between two pieces. */
struct waiting {
    struct frame_job frame;
    struct wait *wait;               /* owned; its names lie in the frame as yet */
    struct reader desc;
    uint32_t next;
};

static struct waiting *waiting_of(struct frame_job *f) { return CONTAINER_OF(f, struct waiting, frame); }

static void waiting_drop(struct frame_job *f)
{
    struct waiting *x = waiting_of(f);
    struct session *s = f->request.session;

    s->waits--;
    s->share->conditions -= x->wait->count;
    wait_free(x->wait);
}

static enum status wait_check(const struct request *r, const struct incoming *in, struct wire_wait *f, struct error *e)
{
    struct reader fixed = reader_of(in->fixed);
    enum status st = wire_get_wait(&fixed, f) ? STATUS_OK : error_set(e, REASON_MALFORMED, "fixed fields of Wait");

    if (st == STATUS_OK) st = data_check_count(f->count, in->desc, wire_wait_entry_size, e);
    if (st == STATUS_OK && (r->session->waits >= WAITS_MAX || r->session->share->conditions + f->count > CONDITIONS_MAX))
        st = error_retry(e, REASON_LIMIT, RETRY_MS, "%u Waits of this client with %u conditions hang already",
                         r->session->waits, r->session->share->conditions);
    return st;
}

static enum status look_next(struct waiting *x, struct error *e)
{
    struct condition *c = &x->wait->conditions[x->next];

    if (read_condition(&x->frame.request, &x->desc, c, e) != STATUS_OK) {
        if (x->desc.failed || e->reason == REASON_MALFORMED) return e->status;
        c->state = WAIT_FAILED;
        c->reason = e->reason;
        c->text = mem_text(e->text, strlen(e->text));
    }
    wait_look(x->wait, c);
    return STATUS_OK;
}

/* All conditions hang, or are decided: the wait is the core's. */
static enum status wait_hand_over(struct waiting *x, struct error *e)
{
    struct wait_request *owner = mem_zero(sizeof *owner);

    if (owner == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a wait");
    owner->request = request_keep(&x->frame.request);
    if (owner->request == NULL || !keep_names(x->wait, x->frame.in.desc, &owner->names)) {
        request_free(owner->request);
        mem_free(owner);
        return error_set(e, REASON_NO_MEMORY, "no memory for a wait");
    }
    x->wait->owner = owner;
    x->wait->answer = wait_answer;
    wait_begin(x->wait);
    return STATUS_OK;
}

static bool wait_piece(struct frame_job *f)
{
    struct waiting *x = waiting_of(f);
    enum status st = STATUS_OK;
    struct error e;

    for (uint32_t from = x->next; st == STATUS_OK && x->next < x->wait->count; x->next++) {
        if (frame_is_spent(f) && x->next > from) return false;
        st = look_next(x, &e);
    }
    if (st == STATUS_OK) st = wait_hand_over(x, &e);
    if (st == STATUS_OK) return true;
    waiting_drop(f);
    answer_error(&f->request, &e);
    return true;
}

void method_Wait(struct request *r, const struct incoming *in)
{
    struct waiting x = {.frame = {.request = *r, .in = *in, .run = wait_piece, .drop = waiting_drop},
                        .desc = reader_of(in->desc)};
    struct wire_wait f;
    struct error e;
    enum status st = wait_check(r, in, &f, &e);

    if (st == STATUS_OK) {
        x.wait = wait_new(&r->server->core, f.count);
        if (x.wait == NULL) st = error_set(&e, REASON_NO_MEMORY, "no memory for a wait");
    }
    if (st != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    r->session->waits++;
    r->session->share->conditions += f.count;
    x.wait->want = f.want == 0 ? 1 : f.want < f.count ? f.want : f.count;
    x.wait->deadline_ms = r->server->core.now_ms + (f.time_ms < WAIT_MAX_MS ? f.time_ms : WAIT_MAX_MS);
    frame_begin(&x.frame, sizeof x);
}
