/* Mailboxes: values that a trainer on this machine puts into, or finds in, memory of the GPU. The frames are ordinary
 * Pushes and Pulls that name places in the mailbox in place of carrying bytes; the device copies between there and
 * where the values of pushes and versions lie, in the order of the key's queue. The answer tells that the copies are
 * done: from then on the place is the client's again. */
#include "service/op_data.h"

#include "service/account.h"
#include "service/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- boxes ------------------------------------------------------------------------------------------------------- */

struct box *box_hold(struct box *b)
{
    b->holds++;
    return b;
}

void box_drop(struct box *b)
{
    if (b == NULL || --b->holds > 0) return;
    b->server->box_bytes -= b->mem.size;
    account_add(&b->server->core, -(int64_t)b->mem.size);
    device_mem_free(&b->mem);
    mem_free(b);
}

static void take_back(struct session *s)
{
    box_drop(s->box);
    s->box = NULL;
}

void box_peer_gone(struct session *s, const struct peer *p)
{
    if (s->box != NULL && s->box->peer == p) take_back(s);
}

static uint64_t room(const struct server *s)
{
    uint64_t most = s->core.limits.mailbox_max > 0 ? s->core.limits.mailbox_max : MAILBOXES_SIZE_MAX;

    return most > s->box_bytes ? most - s->box_bytes : 0;
}

static uint64_t size_max(const struct server *s)
{
    return s->core.limits.mailbox_max > 0 && s->core.limits.mailbox_max < MAILBOX_SIZE_MAX ? s->core.limits.mailbox_max
                                                                                          : MAILBOX_SIZE_MAX;
}

/* A card does not order its copies with the work of the CPU, where keys may lie when the GPUs are full. */
static const char *why_none(const struct server *s)
{
    if (s->core.device->uuid[0] == '\0') return "";
    if (s->core.device->cpu != NULL) return ", and with --device-full host on the CPU as well";
    bool leaves_none = s->host == NULL || s->host[0] == '\0' || size_max(s) < MAILBOX_SIZE_MIN;
    return leaves_none ? ", and --mailbox-max leaves no room" : NULL;
}

static bool is_offered(const struct server *s) { return why_none(s) == NULL; }

json_t *mailbox_offer(const struct server *s)
{
    if (!is_offered(s)) return json_null();
    return json_pack("{s:s,s:s,s:I}", "host", s->host, "gpu", s->core.device->uuid,
                     "size_max", (json_int_t)size_max(s));
}

static enum status check_wish(const struct server *s, struct bytes host, uint32_t size, struct error *e)
{
    if (!is_offered(s))
        return error_set(e, REASON_UNIMPLEMENTED, "there are no mailboxes here: values lie on the %s device%s",
                         device_kind(s->core.device), why_none(s));
    if (!bytes_equal(host, bytes_text(s->host)))
        return error_set(e, REASON_UNIMPLEMENTED, "a mailbox is for clients on the daemon's machine, which is host %s",
                         s->host);
    if (size < MAILBOX_SIZE_MIN || size > size_max(s))
        return error_set(e, REASON_BAD_ARGUMENT, "/size: a mailbox has from %d to %" PRIu64 " bytes", MAILBOX_SIZE_MIN,
                         size_max(s));
    if (size > room(s))
        return error_set(e, REASON_LIMIT, "no room for a mailbox of %u bytes: %" PRIu64 " are taken by other clients', "
                         "and --mailbox-max bounds them", size, s->box_bytes);
    return STATUS_OK;
}

static enum status box_new(struct server *s, const struct peer *p, uint32_t size, struct box **out,
                           struct mem_handle *handle, struct error *e)
{
    struct box *b = mem_zero(sizeof *b);

    if (b == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a mailbox");
    *b = (struct box){.server = s, .peer = p, .holds = 1};
    enum status st = account_check(&s->core, size, 0, "a mailbox", e);
    if (st == STATUS_OK) st = device_shared_new(s->core.device, size, &b->mem, handle, e);
    if (st != STATUS_OK) {
        mem_free(b);
        return st;
    }
    b->id = s->next_box++;
    s->box_bytes += b->mem.size;
    account_add(&s->core, (int64_t)b->mem.size);
    *out = b;
    return STATUS_OK;
}

static json_t *handle_json(const struct mem_handle *h)
{
    char text[2 * sizeof h->at + 1];

    for (size_t i = 0; i < sizeof h->at; i++) snprintf(text + 2 * i, 3, "%02x", h->at[i]);
    return json_string(text);
}

void mailbox_open(struct request *r, struct bytes host, uint32_t size)
{
    struct server *s = r->server;
    struct mem_handle handle;
    struct box *b = NULL;
    struct error e;

    take_back(r->session); /* its client has closed it, or lost the connection that had it */
    if (size == 0) {
        answer_json(r, json_object());
        return;
    }
    enum status st = check_wish(s, host, size, &e);
    if (st == STATUS_OK) st = box_new(s, r->peer, size, &b, &handle, &e);
    if (st != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    r->session->box = b;
    answer_json(r, json_pack("{s:I,s:I,s:s,s:o}", "mailbox", (json_int_t)b->id, "size", (json_int_t)size, "gpu",
                             s->core.device->uuid, "handle", handle_json(&handle)));
}

/* ---- places in them ---------------------------------------------------------------------------------------------- */

enum status box_at(const struct session *s, const struct wire_place *place, uint64_t size, void **at, struct error *e)
{
    const struct box *b = s->box;

    if (b == NULL || b->id != place->mailbox)
        return error_set(e, REASON_NO_MAILBOX, "this client has no mailbox %" PRIu64 " (any more): it ends with the "
                         "connection that asked for it", place->mailbox);
    if (place->offset % WIRE_ALIGN != 0 || place->offset > b->mem.size || size > b->mem.size - place->offset)
        return error_set(e, REASON_BAD_ARGUMENT, "%" PRIu64 " bytes at %" PRIu64 " do not lie in a mailbox of %zu; "
                         "offsets are multiples of %d", size, place->offset, b->mem.size, WIRE_ALIGN);
    *at = (uint8_t *)b->mem.at + place->offset;
    return STATUS_OK;
}

enum status box_places(const struct incoming *in, uint32_t count, struct reader *out, struct error *e)
{
    uint64_t size = (uint64_t)count * wire_place_size;

    if (in->header.body_size != size || (in->body == NULL && size > 0))
        return error_set(e, REASON_MALFORMED, "a body of %" PRIu64 " bytes for %u entries whose values lie in a "
                         "mailbox; each has %d that say where", in->header.body_size, count, wire_place_size);
    *out = reader_of(bytes_of(in->body, (size_t)size));
    return STATUS_OK;
}

/* ---- Push -------------------------------------------------------------------------------------------------------- */

/* A Push that is answered when its values have been copied from the mailbox. */
struct copied {
    struct request *request;
    struct box *box;                 /* held; NULL: none was there */
    struct answer answer;
    struct landed done;
    struct error failed;             /* its reason is not NONE: the copies have failed */
    uint32_t pending;                /* queues, and the one who begins */
    struct way {
        struct task task;
        struct copied *of;
    } ways[CORE_QUEUES];
};

static struct copied *copied_new(const struct request *r)
{
    struct copied *c = mem_zero(sizeof *c);

    if (c == NULL) return NULL;
    c->request = request_keep(r);
    if (c->request == NULL) {
        mem_free(c);
        return NULL;
    }
    if (r->session->box != NULL) c->box = box_hold(r->session->box);
    c->pending = 1;
    return c;
}

static void copied_pass(struct copied *c)
{
    if (--c->pending > 0) return;
    if (c->failed.reason != REASON_NONE) {
        answer_error(c->request, &c->failed);
        answer_fini(&c->answer);
    } else {
        push_answer(c->request, &c->answer, c->done);
    }
    box_drop(c->box);
    request_free(c->request);
    mem_free(c);
}

static void way_passed(struct task *t, enum status s)
{
    struct copied *c = CONTAINER_OF(t, struct way, task)->of;

    if (s != STATUS_OK) core_why(&c->request->server->core, "values were copied from a mailbox", &c->failed);
    copied_pass(c);
}

/* One value, or a part of one, on its way from the mailbox to where pushes wait. */
static enum status feed(struct batch *b, const struct entry *x, const struct request *r, const struct wire_place *place,
                        struct copied *c, bool *complete, struct error *e)
{
    struct staging *s;
    bool repeat = false;
    void *at = NULL;
    enum status st = push_open(b, x, r->header.sequence, true, &s, &repeat, e);

    *complete = st == STATUS_OK && repeat;
    if (st != STATUS_OK || repeat) return st;
    st = box_at(r->session, place, x->size, &at, e);
    if (st != STATUS_OK) {
        if (s->have == 0) staging_free(s);
        return st;
    }
    c->ways[s->key->queue_index].of = c;
    b->store->core->counters.bytes_in += x->size;
    st = staging_feed(s, x->offset, at, x->size, e);
    *complete = st == STATUS_OK && s->complete;
    return *complete ? store_push_record(s, e) : st;
}

static void feed_all(struct batch *b, const struct request *r, struct reader *places, struct copied *c)
{
    for (uint32_t i = 0; i < b->count && !b->entries.failed; i++) {
        struct wire_place place;
        bool complete = false;
        struct entry x;
        struct error e;
        enum status st = data_read_entry(b, &x, &e);
        wire_get_place(places, &place);
        if (st == STATUS_OK) st = feed(b, &x, r, &place, c, &complete, &e);
        if (st != STATUS_OK) answer_fault(&c->answer, i, &e);
        c->done.complete += complete && st == STATUS_OK;
        c->done.applied += complete && st == STATUS_OK && data_is_applied(b, &x);
    }
}

void mailbox_push(struct request *r, const struct incoming *in, struct batch *b)
{
    struct reader places;
    struct copied *c = NULL;
    struct error e;
    enum status st = box_places(in, b->count, &places, &e);

    if (st == STATUS_OK) c = copied_new(r);
    if (st == STATUS_OK && c == NULL) st = error_retry(&e, REASON_NO_MEMORY, RETRY_MS, "no memory for a push");
    if (st != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    feed_all(b, r, &places, c);
    for (unsigned i = 0; i < CORE_QUEUES; i++) {
        if (c->ways[i].of == NULL) continue;
        c->ways[i].task.run = way_passed;
        c->pending++;
        core_after(&r->server->core, i, &c->ways[i].task);
    }
    copied_pass(c);
}
