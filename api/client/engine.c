#include "api/client/engine.h"

#include "api/client/box.h"
#include "api/client/documents.h"
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    LIGHT_SIZE = 64 << 10,       /* of pushes under way that are light together */
    HEARTBEAT_MAX_MS = 3600000,
    OWN_OP_MS = 2000             /* a heartbeat or a joining is given up after four periods, or this */
};

/* ---- life ------------------------------------------------------------------------------------------------------- */

enum status engine_new(const struct engine_config *c, uint64_t now_ms, struct engine **out, struct error *e)
{
    struct engine *en = mem_zero(sizeof *en);

    if (en == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a store handle");
    enum status s = keys_new(c->seed, &en->keys, e);
    if (s != STATUS_OK) {
        mem_free(en);
        return s;
    }
    en->options = c->options;
    en->now = now_ms;
    en->due = UINT64_MAX;
    en->heartbeat_at = UINT64_MAX;
    memcpy(&en->random, c->seed, sizeof en->random);
    memcpy(&en->next_id, c->seed + 8, sizeof en->next_id);
    en->num_workers = 1;
    en->round_ms = ROUND_TIMEOUT_MS;
    list_init(&en->ops);
    for (unsigned r = 0; r < ROLE_COUNT; r++) list_init(&en->ready[r]);
    *out = en;
    return STATUS_OK;
}

static struct lane *lane_new(struct engine *en, unsigned roles, struct link *link)
{
    struct lane *l = mem_zero(sizeof *l);

    if (l == NULL) return NULL;
    *l = (struct lane){.engine = en, .link = link, .roles = roles, .front = true, .open_at = en->now,
                       .down_since = en->now};
    list_init(&l->flight);
    list_init(&l->again);
    list_init(&l->later);
    return l;
}

enum status engine_add_link(struct engine *en, enum role role, struct link *link, struct error *e)
{
    unsigned all = (1u << ROLE_COUNT) - 1;

    assert(en->lane_count < LANES_MAX);
    struct lane *l = lane_new(en, en->options->embedded ? all : 1u << role, link);
    if (l == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a connection");
    link->engine = en;
    link->lane = en->lane_count;
    en->lanes[en->lane_count++] = l;
    return STATUS_OK;
}

void engine_free(struct engine *en)
{
    struct error e;

    if (en == NULL) return;
    error_set(&e, REASON_CLOSED, "the handle is closed");
    op_release(en->rejoin);
    op_release(en->heartbeat);
    box_fini(en);
    assert(list_empty(&en->ops));
    for (unsigned i = 0; i < en->lane_count; i++) lane_reset(en->lanes[i], &e);
    for (unsigned i = 0; i < en->lane_count; i++) mem_free(en->lanes[i]);
    gpu_fini(&en->gpu);
    keys_free(en->keys);
    mem_free(en);
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

void engine_due(struct engine *en, uint64_t at)
{
    if (at < en->due) en->due = at;
}

uint64_t engine_sequence(struct engine *en) { return ++en->sequence; }

bool engine_trouble(const struct engine *en, struct error *e)
{
    for (unsigned i = 0; i < en->lane_count; i++) {
        const struct lane *l = en->lanes[i];
        if (l->state == LANE_UP || (i > 0 && !en->session.known)) continue;
        error_set(e, REASON_UNREACHABLE, "no connection to %s for %.1f s (%s)%s%s", en->options->url,
                  (double)(en->now - l->down_since) / 1000, l->why.status != STATUS_OK ? l->why.text : "no answer",
                  en->session.known ? "" : ": start a daemon there with: paramd --listen ",
                  en->session.known ? "" : en->options->url);
        return true;
    }
    return false;
}

/* Why an operation has come to its deadline: the daemon's own sentence if it gave one, else the connection. */
static void op_expire(struct op *op)
{
    struct engine *en = op->engine;
    struct buf what = {0};
    struct error e, trouble;

    if (op->ops->what != NULL) op->ops->what(op, &what);
    buf_add(&what, "", 1);
    const char *of = what.failed ? "" : (const char *)what.at;
    double seconds = (double)(op->deadline - op->begun) / 1000;
    if (engine_trouble(en, &trouble))
        error_set(&e, REASON_UNREACHABLE, "%s%s: %s", op->ops->name, of, trouble.text);
    else if (op->hint.status != STATUS_OK)
        error_set(&e, REASON_DEADLINE, "%s%s: not done within %.1f s: %s", op->ops->name, of, seconds, op->hint.text);
    else
        error_set(&e, REASON_DEADLINE, "%s%s: not done within %.1f s", op->ops->name, of, seconds);
    buf_fini(&what);
    op_fail(op, &e);
}

/* Does what is due for one operation; false: nothing was. */
static bool tick_op(struct engine *en, struct op *op)
{
    if (op->deadline <= en->now) {
        op_expire(op);
        return true;
    }
    if (op->wake_at <= en->now) {
        op->wake_at = UINT64_MAX;
        op->ops->wake(op);
        return true;
    }
    engine_due(en, op->deadline < op->wake_at ? op->deadline : op->wake_at);
    return false;
}

static void tick_ops(struct engine *en)
{
    if (en->now < en->due) return;
again:
    en->due = UINT64_MAX;
    LIST_EACH(struct op, op, node, &en->ops)
        if (tick_op(en, op)) goto again; /* it may have ended others, so the list is another one */
}

static void own_op_begin(struct engine *en, struct op **slot, enum status s)
{
    if (s != STATUS_OK) *slot = NULL;
    else op_set_deadline(*slot, en->heartbeat_ms * 4 > OWN_OP_MS ? en->heartbeat_ms * 4 : OWN_OP_MS);
}

static void tick_heartbeat(struct engine *en)
{
    if (!engine_joined(en) || en->closed || en->options->embedded || en->now < en->heartbeat_at) return;
    en->heartbeat_at = en->now + en->heartbeat_ms;
    if (en->heartbeat != NULL || en->lost.status != STATUS_OK) return;
    own_op_begin(en, &en->heartbeat, op_json(en, WIRE_Heartbeat, bytes_of("", 0), true, &en->heartbeat, NULL));
}

uint64_t engine_tick(struct engine *en, uint64_t now_ms)
{
    uint64_t due = UINT64_MAX;

    if (now_ms > en->now) en->now = now_ms;
    tick_heartbeat(en);
    tick_ops(en);
    for (unsigned i = 0; i < en->lane_count; i++) {
        uint64_t at = lane_tick(en->lanes[i]);
        if (at < due) due = at;
    }
    engine_pump(en);
    if (engine_joined(en) && en->heartbeat_at < due) due = en->heartbeat_at;
    return en->due < due ? en->due : due;
}

/* ---- the engine's own operations -------------------------------------------------------------------------------- */

void engine_rejoin(struct engine *en)
{
    if (en->rejoin != NULL || en->closed || !en->options->join || en->lost.status != STATUS_OK) return;
    own_op_begin(en, &en->rejoin, op_rejoin(en, &en->rejoin, NULL));
}

static const json_t *own_store(const struct engine *en, const json_t *stores)
{
    for (size_t i = 0; i < json_array_size(stores); i++) {
        const json_t *item = json_array_get(stores, i);
        if (doc_u64(item, "id", 0) == en->store) return item;
    }
    return NULL;
}

/* The daemon says of which stores we are a worker; when ours is missing it has found us dead meanwhile. */
static void read_heartbeat(struct engine *en, const char *text)
{
    json_t *doc;

    if (doc_read(bytes_text(text), &doc, NULL) != STATUS_OK) return;
    const json_t *stores = json_object_get(doc, "stores"), *mine = own_store(en, stores);
    if (mine != NULL) {
        en->num_workers = (uint32_t)doc_u64(mine, "num_workers", en->num_workers);
        en->num_dead = (uint32_t)doc_u64(mine, "dead", 0);
    } else if (json_is_array(stores)) {
        engine_rejoin(en);
    }
    json_decref(doc);
}

static void look_after_own(struct engine *en)
{
    struct op *op = en->heartbeat;

    if (op != NULL && op->result.finished) {
        en->heartbeat = NULL;
        if (op->result.error.status == STATUS_OK) read_heartbeat(en, op_answer(op));
        op_release(op);
    }
    box_asked(en);
    op = en->rejoin;
    if (op != NULL && op->result.finished) {
        en->rejoin = NULL;
        op_release(op);
        LIST_EACH(struct op, waiting, node, &en->ops)
        {
            if (waiting->resolving) op_want(waiting, ROLE_CONTROL);
            if (waiting->waiting) op_want(waiting, ROLE_WAIT);
        }
    }
}

void engine_pump(struct engine *en)
{
    en->pump_again = true;
    if (en->pumping) return;
    en->pumping = true;
    while (en->pump_again) {
        en->pump_again = false;
        look_after_own(en);
        for (unsigned i = 0; i < en->lane_count; i++) lane_pump(en->lanes[i]);
    }
    en->pumping = false;
}

void engine_lose(struct engine *en, const struct error *why)
{
    struct error e = *why; /* why may lie in what is ended below */

    if (en->lost.status != STATUS_OK) return;
    en->lost = e;
    while (!list_empty(&en->ops)) op_fail(LIST_FIRST(struct op, node, &en->ops), &e);
    for (unsigned i = 0; i < en->lane_count; i++) lane_reset(en->lanes[i], &e);
}

void engine_detach(struct engine *en, struct op *op)
{
    struct error e;

    error_set(&e, REASON_CANCELLED, "the operation has ended");
    for (unsigned i = 0; i < en->lane_count; i++) {
        struct lane *l = en->lanes[i];
        lane_drop(l, op, &e);
        if (l->placing != NULL && l->placing->op == op) l->link->ops->discard(l->link);
        if (op->calls == 0 || l->state == LANE_CLOSED || l->state == LANE_OPENING) continue;
        if (!l->link->ops->detach(l->link, op)) lane_reset(l, &e);
    }
}

/* ---- what links report ------------------------------------------------------------------------------------------ */

static struct lane *lane_of(struct link *link) { return link->engine->lanes[link->lane]; }

void engine_link_up(struct link *link)
{
    struct lane *l = lane_of(link);

    link->engine->activity++;
    if (l->state == LANE_OPENING) lane_up(l);
}

void engine_link_down(struct link *link, const struct error *why)
{
    struct lane *l = lane_of(link);

    link->engine->activity++;
    if (l->state != LANE_CLOSED) lane_reset(l, why);
    engine_pump(link->engine);
}

void engine_progress(struct link *link) { lane_of(link)->heard = link->engine->now; }

enum placement engine_place(struct link *link, const struct incoming *in, void **at)
{
    struct lane *l = lane_of(link);
    struct call *c = in->status == STATUS_OK ? lane_find(l, in->id) : NULL;

    if (c == NULL) return PLACE_DROP;
    if (in->header.status != 0 || c->kind != CALL_OWN || c->op == NULL) return PLACE_SCRATCH;
    if (c->op->result.finished) return PLACE_DROP;
    if (c->op->ops->place == NULL) return PLACE_SCRATCH;
    enum placement p = c->op->ops->place(c->op, c, in, at);
    if (p == PLACE_AT) l->placing = c;
    return p;
}

/* What is wrong with an answer as a whole; false: nothing. */
static bool read_refusal(const struct incoming *in, struct error *e)
{
    struct reader r = reader_of(in->fixed);
    struct wire_error wire;

    if (in->header.status == 0) return false;
    enum reason reason = reason_from_wire(in->header.reason);
    wire_get_error(&r, &wire);
    bool told = in->body != NULL && in->header.body_size > 0;
    int size = (int)(in->header.body_size < ERROR_TEXT_SIZE ? in->header.body_size : ERROR_TEXT_SIZE);
    error_retry(e, reason, wire.retry_ms, "%.*s", told ? size : 100,
                told ? (const char *)in->body : reason_title(reason));
    e->status = status_from_wire(in->header.status);
    return true;
}

static bool is_damaged(const struct incoming *in)
{
    return (in->header.flags & WIRE_FLAG_BODY_CRC) != 0 && in->body != NULL &&
           crc32c(0, in->body, in->header.body_size) != in->header.body_crc;
}

enum { REFUSALS_MAX = 3 };

/* Refusals that the engine deals with by itself. */
static bool handle_refusal(struct lane *l, struct call *c, const struct error *e)
{
    struct engine *en = l->engine;
    bool data = c->method == WIRE_Push || c->method == WIRE_Set;

    if (c->op->result.finished) return false;
    if (e->reason == REASON_NO_HELLO) {
        c->state = CALL_AGAIN;
        list_append(&l->again, &c->node);
        lane_reset(l, e);
        return true;
    }
    if (e->reason == REASON_STALE_EPOCH || e->reason == REASON_RESTARTED) {
        engine_lose(en, e);
        return false;
    }
    if (e->reason == REASON_NOT_JOINED && engine_joined(en) && c->op != en->rejoin && c->refused < REFUSALS_MAX) {
        engine_rejoin(en);
        if (data) return false; /* the steps are others now */
        call_retry(c, BACKOFF_MS);
        return true;
    }
    if (data || e->retry_ms == 0) return false;
    op_hint(c->op, e);
    call_retry(c, e->retry_ms);
    return true;
}

static void answer_call(struct lane *l, struct call *c, const struct incoming *in)
{
    struct error e;
    bool refused = read_refusal(in, &e);

    lane_land(l, c);
    c->state = CALL_CLOSED;
    if (refused && handle_refusal(l, c, &e)) return;
    op_step_answer(c->op, c, in, refused ? &e : NULL);
    if (c->state == CALL_CLOSED) call_close(c);
}

void engine_answer(struct link *link, const struct incoming *in)
{
    struct engine *en = link->engine;
    struct lane *l = lane_of(link);
    struct call *c = in->status == STATUS_OK ? lane_find(l, in->id) : NULL;
    struct error e;

    en->activity++;
    l->heard = en->now;
    if (in->status != STATUS_OK) {
        lane_reset(l, in->error);
    } else if (is_damaged(in)) {
        error_set(&e, REASON_CHECKSUM, "an answer was damaged on its way");
        lane_reset(l, &e);
    } else if (c != NULL && c == l->hello) {
        lane_hello_answer(l, in, read_refusal(in, &e) ? &e : NULL);
    } else if (c != NULL) {
        answer_call(l, c, in);
    }
    engine_pump(en);
}

/* ---- facts ------------------------------------------------------------------------------------------------------ */

void engine_read_join(struct engine *en, struct bytes document)
{
    json_t *doc;

    if (doc_read(document, &doc, NULL) != STATUS_OK) return;
    en->rank = (uint32_t)doc_u64(doc, "rank", 0);
    en->num_workers = (uint32_t)doc_u64(doc, "num_workers", 1);
    uint64_t period = doc_u64(doc, "heartbeat_ms", en->session.heartbeat_ms);
    en->heartbeat_ms = (uint32_t)(period < 1 ? 1 : period < HEARTBEAT_MAX_MS ? period : HEARTBEAT_MAX_MS);
    json_decref(doc);
    en->joined = true;
    en->joining++;
    en->heartbeat_at = en->now + en->heartbeat_ms;
}

void engine_begin_looking(struct engine *en)
{
    en->joined = true;
    en->joining++;
}

bool engine_has_store(const struct engine *en) { return en->store != 0; }
bool engine_joined(const struct engine *en) { return en->joined && en->options->join; }
unsigned engine_rank(const struct engine *en) { return en->rank; }
unsigned engine_num_workers(const struct engine *en) { return en->num_workers; }
uint32_t engine_heartbeat_ms(const struct engine *en) { return engine_joined(en) ? en->heartbeat_ms : UINT32_MAX; }
unsigned engine_num_dead(const struct engine *en) { return en->num_dead; }

bool engine_busy(const struct engine *en)
{
    for (unsigned i = 0; i < en->lane_count; i++)
        if (en->lanes[i]->state == LANE_OPENING || en->lanes[i]->state == LANE_HELLO) return true;
    return !list_empty(&en->ops);
}

bool engine_is_light(const struct engine *en)
{
    if (en->in_flight > LIGHT_SIZE) return false;
    for (unsigned i = 0; i < en->lane_count; i++)
        if (en->lanes[i]->state != LANE_UP || en->lanes[i]->bulk_flights > 0) return false;
    return true;
}

bool engine_may_gather(const struct engine *en)
{
    for (unsigned i = 0; i < en->lane_count; i++)
        if (en->lanes[i]->unsent > 0 && en->lanes[i]->unsent == en->lanes[i]->flights) return false;
    return true;
}

uint64_t engine_finished(const struct engine *en) { return en->finished; }
uint64_t engine_activity(const struct engine *en) { return en->activity; }
void engine_close_store(struct engine *en) { en->closed = true; }

void engine_forget(struct engine *en, size_t count, const struct paramd_key *keys)
{
    struct key_name n;
    struct key *k;

    for (size_t i = 0; i < count; i++) {
        if (key_name_of(&keys[i], &n, NULL) != STATUS_OK || keys_hold(en->keys, &n, &k, NULL) != STATUS_OK) continue;
        k->known = 0;
        if (list_empty(&k->turns)) k->id = 0;
        keys_release(en->keys, k);
    }
}
