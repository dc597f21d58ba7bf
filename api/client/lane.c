#include "api/client/lane.h"

#include "api/client/box.h"
#include "api/client/documents.h"
#include "service/base/host.h"
#include "service/base/log.h"

#include <string.h>

static uint64_t random_next(struct engine *en)
{
    uint64_t z = (en->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
    return z ^ (z >> 32);
}

/* Doubling, and up to half of it less: clients that lost the same daemon do not come back at the same moment. */
static uint64_t backoff(struct engine *en, unsigned attempts)
{
    uint64_t ms = attempts < 5 ? (uint64_t)BACKOFF_MS << attempts : BACKOFF_MAX_MS;

    return ms - random_next(en) % (ms / 2 + 1);
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

void call_close(struct call *c)
{
    struct op *op = c->op;

    list_remove(&c->node);
    c->state = CALL_CLOSED;
    c->op = NULL;
    if (!c->in_link) call_free(c);
    if (op != NULL) op_call_over(op);
}

static void call_lost(struct call *c, const struct error *why)
{
    list_remove(&c->node);
    c->state = CALL_CLOSED;
    if (c->op != NULL) op_step_answer(c->op, c, NULL, why);
    if (c->state == CALL_CLOSED) call_close(c);
}

static void sent(struct outgoing *o, bool whole)
{
    struct call *c = CONTAINER_OF(o, struct call, out);

    (void)whole;
    c->in_link = false;
    if (c->state == CALL_FLIGHT) c->lane->unsent--;
    if (c->state == CALL_CLOSED && c->op == NULL) call_free(c);
}

static uint32_t left_ms(const struct engine *en, const struct op *op)
{
    if (op == NULL || op->deadline == UINT64_MAX) return 0;
    if (op->deadline <= en->now) return 1;
    uint64_t ms = op->deadline - en->now;
    return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

/* Writes the head anew: session and time left are those of this sending. */
static bool compose(struct lane *l, struct call *c)
{
    struct engine *en = l->engine;
    struct wire_header h = {
        .method = c->method, .flags = c->flags, .worker = en->options->worker, .epoch = en->session.epoch,
        .sequence = c->sequence, .session = en->session.session, .deadline_ms = left_ms(en, c->op),
        .priority = c->op != NULL ? c->op->priority : 0,
    };
    struct bytes fixed = bytes_of(c->fixed.at, c->fixed.size), desc = bytes_of(c->desc.at, c->desc.size);

    if (c->segments == NULL && c->body.size > 0) {
        if (!call_segments(c, 1)) return false;
        call_segment(c, c->body.at, c->body.size, NULL);
    }
    buf_clear(&c->out.head);
    if (!wire_head_write(&c->out.head, &h, fixed, desc, c->body_size, NULL, 0)) return false;
    c->out.id = c->id = (en->next_id++ & 0x7fffffffu) | 0x80000000u;
    c->out.segments = c->segments;
    c->out.segment_count = c->segment_count;
    c->out.values = c->values;
    c->out.value_count = c->value_count;
    c->out.done = sent;
    return true;
}

static bool is_bulk(const struct call *c) { return c->body_size > BATCH_SIZE / 4 || c->answer_size > BATCH_SIZE / 4; }
/* libnanomsg's REP may drop such an answer, or any answer behind it, when another one is on its way. */
static bool is_alone(const struct lane *l, const struct call *c)
{
    return l->front && !l->engine->options->embedded && c->answer_size > REP_IN_FLIGHT_REPLY_MAX;
}

static bool has_room(const struct lane *l, const struct call *c)
{
    const struct engine *en = l->engine;

    if (c->in_link || l->alone_flights > 0) return false;
    if (is_alone(l, c) && l->flights > 0) return false;
    if (l->flights >= (c->kind == CALL_WAIT ? WAITS_IN_FLIGHT : en->session.in_flight_small)) return false;
    if (is_bulk(c) && l->bulk_flights >= en->session.in_flight_bulk) return false;
    return en->in_flight == 0 || c->body_size == 0 || en->in_flight + c->body_size <= en->session.window;
}

static void fly(struct lane *l, struct call *c)
{
    if (l->flights++ == 0) l->heard = l->engine->now;
    l->bulk_flights += is_bulk(c);
    l->alone_flights += is_alone(l, c);
    l->engine->in_flight += c->body_size;
    c->state = CALL_FLIGHT;
    c->lane = l;
    list_remove(&c->node);
    list_append(&l->flight, &c->node);
}

void lane_land(struct lane *l, struct call *c)
{
    l->flights--;
    l->unsent -= c->in_link;
    l->bulk_flights -= is_bulk(c);
    l->alone_flights -= is_alone(l, c);
    l->engine->in_flight -= c->body_size;
    if (l->placing == c) l->placing = NULL;
    list_remove(&c->node);
}

static void send_call(struct lane *l, struct call *c)
{
    if (!compose(l, c)) {
        struct error e;
        error_set(&e, REASON_NO_MEMORY, "no memory for a request");
        call_lost(c, &e);
        return;
    }
    fly(l, c);
    l->engine->activity++;
    c->in_link = true;
    l->unsent++;
    l->link->ops->send(l->link, &c->out);
}

struct call *lane_find(struct lane *l, uint32_t id)
{
    if (l->hello != NULL && l->hello->id == id) return l->hello;
    LIST_EACH(struct call, c, node, &l->flight)
        if (c->id == id) return c;
    return NULL;
}

void call_retry(struct call *c, uint32_t ms)
{
    c->refused++;
    c->retry_at = c->op->engine->now + ms;
    c->state = CALL_LATER;
    list_append(&c->lane->later, &c->node);
}

static struct call *call_of(struct list *in, const struct op *op)
{
    LIST_EACH(struct call, c, node, in)
        if (c->op == op) return c;
    return NULL;
}

/* Each loss may change the lists, so the search begins anew. */
void lane_drop(struct lane *l, struct op *op, const struct error *why)
{
    struct call *c = l->held;

    if (c != NULL && c->op == op) {
        l->held = NULL;
        call_lost(c, why);
    }
    while ((c = call_of(&l->again, op)) != NULL || (c = call_of(&l->later, op)) != NULL) call_lost(c, why);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static bool is_control(const struct lane *l) { return l == l->engine->lanes[0]; }

static bool wants_bulk(const struct lane *l)
{
    const struct engine *en = l->engine;

    return l->roles == 1u << ROLE_DATA && en->has_bulk && en->options->bulk && !en->bulk_failed;
}

static void enter(struct lane *l, enum lane_state state)
{
    l->state = state;
    l->since = l->engine->now;
}

static void open_link(struct lane *l)
{
    struct engine *en = l->engine;

    l->front = !wants_bulk(l);
    en->activity++;
    enter(l, LANE_OPENING);
    l->link->ops->open(l->link, l->front ? &en->options->front : &en->bulk);
}

void lane_reset(struct lane *l, const struct error *why)
{
    struct engine *en = l->engine;

    box_lane_down(en, l);
    l->link->ops->close(l->link);
    if (l->state == LANE_UP) {
        l->attempts = 0;
        l->down_since = en->now;
    }
    l->why = *why;
    l->open_at = en->now + backoff(en, l->attempts++);
    enter(l, LANE_CLOSED);
    if (l->hello != NULL) {
        struct call *hello = l->hello;
        l->hello = NULL;
        hello->state = CALL_CLOSED;
        if (!hello->in_link) call_free(hello);
    }
    /* Nothing new was sent while something was left to be repeated, so what flew comes before what did not yet. */
    while (!list_empty(&l->flight)) {
        struct call *c = CONTAINER_OF(l->flight.head.prev, struct call, node);
        lane_land(l, c);
        if (c->op->result.finished) {
            call_lost(c, why);
            continue;
        }
        c->state = CALL_AGAIN;
        list_prepend(&l->again, &c->node);
    }
}

/* Data goes through the front door from now on, when only the bulk door cannot be reached. */
static void give_bulk_up(struct lane *l)
{
    struct engine *en = l->engine;
    char text[ADDRESS_TEXT_MAX];

    address_text(&en->bulk, text);
    log_warn("client", "bulk door %s cannot be reached within %d ms (%s): data goes through %s, which is slower", text,
             BULK_OPEN_MS, l->why.status != STATUS_OK ? l->why.text : "no answer", en->options->url);
    en->bulk_failed = true;
}

static uint64_t check_open(struct lane *l)
{
    struct engine *en = l->engine;
    struct error e;

    if (!l->front && en->lanes[0]->state == LANE_UP && en->now >= l->down_since + BULK_OPEN_MS) {
        if (!en->bulk_failed) give_bulk_up(l);
        error_set(&e, REASON_UNREACHABLE, "the bulk door does not answer");
        lane_reset(l, &e);
        l->open_at = en->now;
        return en->now;
    }
    uint64_t most = l->since + en->options->connect_ms;
    if (en->now >= most) {
        error_set(&e, REASON_UNREACHABLE, "no answer");
        lane_reset(l, &e);
        return l->open_at;
    }
    return l->front || l->down_since + BULK_OPEN_MS >= most ? most : l->down_since + BULK_OPEN_MS;
}

static uint64_t check_mute(struct lane *l)
{
    struct error e;

    if (l->flights == 0 || l->engine->options->embedded) return UINT64_MAX;
    if (l->engine->now < l->heard + MUTE_MS) return l->heard + MUTE_MS;
    error_set(&e, REASON_UNREACHABLE, "no answer for %d s", MUTE_MS / 1000);
    lane_reset(l, &e);
    return l->open_at;
}

static uint64_t later_due(const struct lane *l)
{
    uint64_t due = UINT64_MAX;

    LIST_EACH(struct call, c, node, &l->later)
        if (c->retry_at < due) due = c->retry_at;
    return due;
}

uint64_t lane_tick(struct lane *l)
{
    struct engine *en = l->engine;

    if (en->lost.status != STATUS_OK || (!is_control(l) && !en->session.known)) return UINT64_MAX;
    if (l->state == LANE_CLOSED) {
        if (en->now < l->open_at) return l->open_at;
        open_link(l);
    }
    if (l->state != LANE_UP) return check_open(l);
    uint64_t mute = check_mute(l), later = later_due(l);
    return later < mute ? later : mute;
}

/* ---- HELLO ------------------------------------------------------------------------------------------------------ */

static struct call *hello_new(struct lane *l)
{
    const struct client_options *o = l->engine->options;
    struct call *c = call_new(NULL, WIRE_Hello);

    if (c == NULL) return NULL;
    buf_text(&c->body, "{\"client\":\"libparamd 1\"");
    if (o->token[0] != '\0') {
        buf_text(&c->body, ",\"token\":");
        doc_put_text(&c->body, bytes_text(o->token));
    }
    if (o->worker_name[0] != '\0') {
        buf_text(&c->body, ",\"name\":");
        doc_put_text(&c->body, bytes_text(o->worker_name));
    }
    buf_text(&c->body, "}");
    c->body_size = c->body.size;
    if (!c->body.failed && compose(l, c)) return c;
    call_free(c);
    return NULL;
}

void lane_up(struct lane *l)
{
    struct error e;

    enter(l, LANE_HELLO);
    l->hello = hello_new(l);
    if (l->hello == NULL) {
        error_set(&e, REASON_NO_MEMORY, "no memory for HELLO");
        lane_reset(l, &e);
        return;
    }
    l->hello->lane = l;
    l->hello->in_link = true;
    l->link->ops->send(l->link, &l->hello->out);
}

static bool instance_of(const char *text, struct wire_id *out)
{
    static const char digits[] = "0123456789abcdef";

    if (strlen(text) != 32) return false;
    for (size_t i = 0; i < 16; i++) {
        const char *high = strchr(digits, text[2 * i]), *low = strchr(digits, text[2 * i + 1]);
        if (high == NULL || low == NULL) return false;
        out->at[i] = (uint8_t)((high - digits) * 16 + (low - digits));
    }
    return true;
}

static uint64_t bounded(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* Where the bulk door is: on the host that was dialled unless the daemon says otherwise. */
static void read_bulk(struct engine *en, const json_t *bulk)
{
    const char *host = doc_text(bulk, "host"), *path = doc_text(bulk, "path");
    uint64_t port = doc_u64(bulk, "port", 0);

    en->bulk = en->options->front;
    en->has_bulk = true;
    if (*path != '\0' && strlen(path) < sizeof en->bulk.path) {
        en->bulk.is_path = true;
        memcpy(en->bulk.path, path, strlen(path) + 1);
    } else if (port > 0 && port <= 65535 && strlen(host) < sizeof en->bulk.host) {
        if (*host != '\0') memcpy(en->bulk.host, host, strlen(host) + 1);
        else if (en->bulk.is_path) memcpy(en->bulk.host, "127.0.0.1", 10);
        en->bulk.is_path = false;
        en->bulk.port = (uint16_t)port;
    } else {
        en->has_bulk = false;
    }
}

static void read_limits(struct session *s, const json_t *limits)
{
    s->part_max = bounded(doc_u64(limits, "part", PART_SIZE), 4096, PART_SIZE_MAX);
    s->in_flight_bulk = (unsigned)bounded(doc_u64(limits, "in_flight_bulk", IN_FLIGHT_BULK), 1, 64);
    s->in_flight_small = (unsigned)bounded(doc_u64(limits, "in_flight_small", IN_FLIGHT_SMALL), 1, 64);
    s->window = bounded(doc_u64(limits, "window", MIB(64)), 1, UINT64_MAX / 2);
}

/* Only a daemon on this machine can lend memory of its GPU. */
static uint64_t read_mailbox(const json_t *offer)
{
    char host[HOST_ID_SIZE];

    host_id(host);
    return host[0] != '\0' && strcmp(host, doc_text(offer, "host")) == 0 ? doc_u64(offer, "size_max", 0) : 0;
}

static enum status read_session(struct engine *en, const json_t *doc, struct error *e)
{
    struct session s = {.known = true};

    if (!instance_of(doc_text(doc, "instance"), &s.instance))
        return error_set(e, REASON_INTERNAL, "HELLO was answered without a valid instance");
    if (en->session.known && memcmp(s.instance.at, en->session.instance.at, sizeof s.instance.at) != 0)
        return error_set(e, REASON_RESTARTED, "the daemon at %s was restarted, and what it held in memory is gone: "
                         "open the store anew and init its keys from a checkpoint", en->options->url);
    s.session = (uint32_t)doc_u64(doc, "session", 0);
    s.epoch = (uint32_t)doc_u64(doc, "epoch", 0);
    s.heartbeat_ms = (uint32_t)bounded(doc_u64(doc, "heartbeat_ms", HEARTBEAT_MS), 10, 3600000);
    read_limits(&s, json_object_get(doc, "limits"));
    if (json_is_object(json_object_get(doc, "bulk"))) read_bulk(en, json_object_get(doc, "bulk"));
    s.box_max = read_mailbox(json_object_get(doc, "mailbox"));
    en->session = s;
    return STATUS_OK;
}

void lane_hello_answer(struct lane *l, const struct incoming *in, const struct error *why)
{
    struct error e = {0};
    struct call *hello = l->hello;
    json_t *doc = NULL;

    l->hello = NULL;
    hello->state = CALL_CLOSED;
    if (!hello->in_link) call_free(hello);
    if (why != NULL) e = *why;
    else if (doc_read(bytes_of(in->body, in->body != NULL ? in->header.body_size : 0), &doc, &e) == STATUS_OK)
        (void)read_session(l->engine, doc, &e);
    json_decref(doc);
    if (e.status == STATUS_OK) {
        enter(l, LANE_UP);
        l->attempts = 0;
    } else if (e.retry_ms > 0) {
        lane_reset(l, &e);
    } else {
        engine_lose(l->engine, &e);
    }
}

/* ---- pumping ---------------------------------------------------------------------------------------------------- */

static bool pump_again(struct lane *l)
{
    for (struct call *c; (c = LIST_FIRST(struct call, node, &l->again)) != NULL;) {
        if (!has_room(l, c)) return false;
        send_call(l, c);
        if (l->state != LANE_UP) return false;
    }
    LIST_EACH(struct call, c, node, &l->later) {
        if (c->retry_at > l->engine->now || !has_room(l, c)) continue;
        list_remove(&c->node);
        list_append(&l->again, &c->node);
    }
    while (!list_empty(&l->again)) {
        struct call *c = LIST_FIRST(struct call, node, &l->again);
        if (!has_room(l, c)) return false;
        send_call(l, c);
    }
    return true;
}

/* The next request of whoever is first in priority, or NULL. */
static struct call *ask(struct lane *l)
{
    for (unsigned role = 0; role < ROLE_COUNT; role++) {
        struct list *ready = &l->engine->ready[role];
        struct op *op;
        if (!(l->roles >> role & 1)) continue;
        while ((op = LIST_FIRST(struct op, ready[role], ready)) != NULL) {
            struct call *c = op_step_next(op, (enum role)role);
            if (c != NULL) return c;
            if (LIST_FIRST(struct op, ready[role], ready) == op) list_remove(&op->ready[role]);
        }
    }
    return NULL;
}

void lane_pump(struct lane *l)
{
    if (l->state != LANE_UP || !pump_again(l)) return;
    while (l->state == LANE_UP) {
        struct call *c = l->held;
        /* Asking costs the operation something, so it is only done when any request at all could go. */
        if (c == NULL && (l->alone_flights > 0 || l->flights >= WAITS_IN_FLIGHT)) return;
        l->held = NULL;
        if (c == NULL) c = ask(l);
        if (c == NULL) return;
        c->lane = l;
        if (!has_room(l, c)) {
            l->held = c;
            return;
        }
        send_call(l, c);
    }
}
