/* Pull: own pushes first, then the newest value of each key. Small values come many to a frame; larger ones are read
 * from the link straight into the caller's array, in parts of one version if they are large. */
#include "api/client/box.h"
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <string.h>

enum {
    FRAME_ENTRIES = 4096,
    DIRECT_SIZE = 64 << 10,      /* from here on a value has a frame of its own and is read into its place */
    RENEWALS_MAX = 3
};

enum item_state {
    ITEM_UNKNOWN,                /* the key has to be described anew */
    ITEM_READY,                  /* has something to ask for */
    ITEM_FLYING,
    ITEM_LATER,                  /* refused for now */
    ITEM_DONE
};

/* One key's value. */
struct item {
    struct quiet quiet;
    struct list_node node;       /* of pull->ready or pull->later */
    struct op_pull *pull;
    struct key *key;
    enum item_state state;
    size_t first, count;         /* of pull->grouped: its outputs */
    size_t target;               /* the output that is read into; the others are copied */
    bool on_gpu;                 /* and lies there */
    uint64_t place;              /* in the slot of its request */
    uint64_t newer;              /* 0: always */
    uint64_t version;            /* that the parts are of; 0: not known yet */
    uint64_t asked, got;         /* bytes */
    unsigned open, renewed;
    bool restart;                /* when nothing of it is in flight, so that no old part comes over a new one */
    uint64_t retry_at;
};

struct op_pull {
    struct op op;
    struct tensors t;
    struct pull_newer newer;
    bool checks_only;
    bool begun;                  /* grouped, and waiting or pulling */
    bool pulling;
    size_t *slots, *grouped;
    struct item *items;
    size_t item_count, left;
    struct list ready, later;
    unsigned empty_answers;      /* in a row */
};

static struct op_pull *pull_op(struct op *op) { return (struct op_pull *)(void *)op; }

static void enter(struct item *i, enum item_state state)
{
    i->state = state;
    list_remove(&i->node);
    if (state == ITEM_LATER) list_append(&i->pull->later, &i->node);
    if (state != ITEM_READY) return;
    list_append(&i->pull->ready, &i->node);
    op_want(&i->pull->op, ROLE_DATA);
}

static uint8_t *place_of(const struct item *i, size_t output, uint64_t offset)
{
    return (uint8_t *)i->pull->t.values[output].data + offset;
}

/* ---- one value --------------------------------------------------------------------------------------------------- */

static bool is_wanted(const struct item *i, size_t output, uint64_t version)
{
    const uint64_t *newer = i->pull->newer.newer;

    return newer == NULL || newer[output] < version;
}

/* From the output that was read into to another one. */
static bool copy_over(const struct item *i, size_t output)
{
    struct op_pull *p = i->pull;
    struct gpu *gpu = &p->op.engine->gpu;
    void *to = place_of(i, output, 0), *from = place_of(i, i->target, 0);
    struct error e;
    enum status s = STATUS_OK;

    if (!i->on_gpu && !tensor_on_gpu(&p->t.values[output])) {
        memmove(to, from, i->key->size);
        return true;
    }
    if (to != from) s = gpu_copy(gpu, to, from, i->key->size, &e);
    if (s == STATUS_OK) s = gpu_settle(gpu, &e);
    if (s != STATUS_OK) op_fail(&p->op, &e);
    return s == STATUS_OK;
}

static void item_over(struct item *i, uint64_t version)
{
    struct op_pull *p = i->pull;

    for (size_t n = 0; n < i->count; n++) {
        size_t output = p->grouped[i->first + n];
        if (p->newer.versions != NULL) p->newer.versions[output] = version;
        if (output == i->target || i->key->size == 0) continue;
        if (!is_wanted(i, i->target, version) || !is_wanted(i, output, version)) continue;
        if (!copy_over(i, output)) return;
    }
    enter(i, ITEM_DONE);
    if (--p->left == 0) op_finish(&p->op);
}

static void item_again(struct item *i)
{
    i->restart = false;
    i->version = i->asked = i->got = 0;
    if (i->retry_at <= i->pull->op.engine->now) {
        enter(i, ITEM_READY);
        return;
    }
    enter(i, ITEM_LATER);
    op_wake_at(&i->pull->op, i->retry_at);
}

static void item_refused(struct item *i, const struct error *e)
{
    struct engine *en = i->pull->op.engine;
    bool renew = e->reason == REASON_NO_KEY || e->reason == REASON_KEY_DELETED || e->reason == REASON_NOT_JOINED;

    if (i->pull->op.result.finished) return;
    if (i->restart) {
        if (i->open == 0) item_again(i);
        return;
    }
    if (e->reason == REASON_NO_MAILBOX && i->renewed++ < RENEWALS_MAX) {
        /* Another one is asked for. */
    } else if (renew && i->renewed++ < RENEWALS_MAX) {
        i->key->known = 0;
        if (e->reason == REASON_NOT_JOINED) engine_rejoin(en);
    } else if (e->reason != REASON_VERSION_REVOKED && e->retry_ms == 0) {
        op_fail(&i->pull->op, e);
        return;
    }
    op_hint(&i->pull->op, e);
    i->retry_at = en->now + (e->reason == REASON_VERSION_REVOKED ? 0 : e->retry_ms);
    i->restart = true;
    enter(i, ITEM_FLYING);
    if (i->open == 0) item_again(i);
}

static void malformed(struct op_pull *p)
{
    struct error e;

    error_set(&e, REASON_INTERNAL, "the daemon's answer to Pull does not fit what was asked for");
    op_fail(&p->op, &e);
}

static bool is_of(const struct item *i, const struct wire_pull_result *r)
{
    return r->key == i->key->id && r->total == i->key->size && r->dtype == i->key->dtype && r->codec == CODEC_NONE;
}

static bool is_newer(const struct item *i, uint64_t version) { return i->newer == 0 || version > i->newer; }

/* A part, or a whole value, that was read into its place. */
static void item_part(struct item *i, const struct call *c, const struct incoming *in, const struct wire_pull_result *r)
{
    struct op_pull *p = i->pull;
    uint8_t *to = place_of(i, i->target, c->offset);

    if (i->restart) {
        if (i->open == 0) item_again(i);
        return;
    }
    if (i->version == 0 && !is_newer(i, r->version)) {
        item_over(i, r->version);
        return;
    }
    if (!is_of(i, r) || r->offset != c->offset || r->size != c->size || in->header.body_size < r->size ||
        (r->size > 0 && in->body == NULL) || (i->version != 0 && r->version != i->version)) {
        malformed(p);
        return;
    }
    if (r->size > 0 && in->body != to) memcpy(to, in->body, r->size);
    i->version = r->version;
    i->got += r->size;
    if (i->got == i->key->size) item_over(i, i->version);
    else if (i->asked < i->key->size && i->state == ITEM_FLYING) enter(i, ITEM_READY);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static bool is_direct(const struct call *c) { return c->size > 0; }

static enum placement pull_place(struct op *op, struct call *c, const struct incoming *in, void **at)
{
    struct reader fixed = reader_of(in->fixed), results = reader_of(in->desc);
    struct wire_pull_done done;
    struct wire_pull_result r;

    (void)op;
    if (!is_direct(c)) return PLACE_SCRATCH;
    struct item *i = c->items[0];
    if (i->restart) return PLACE_DROP;
    if (i->on_gpu) return PLACE_SCRATCH;
    if (!wire_get_pull_done(&fixed, &done) || done.count != 1 || done.faults != 0 ||
        !wire_get_pull_result(&results, &r))
        return PLACE_SCRATCH;
    if (!is_of(i, &r) || r.offset != c->offset || r.size != c->size || in->header.body_size != r.size ||
        (i->version != 0 && r.version != i->version) || !is_newer(i, r.version))
        return PLACE_SCRATCH;
    *at = place_of(i, i->target, c->offset);
    return PLACE_AT;
}

/* One value of a frame of many; false: the frame is not what it should be. */
static bool read_small(struct item *i, const struct wire_pull_result *r, const struct incoming *in, uint64_t *at)
{
    *at = (*at + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN;
    if (!is_newer(i, r->version)) {
        item_over(i, r->version);
        return true;
    }
    if (!is_of(i, r) || r->offset != 0 || r->size != r->total) return false;
    if (r->size > 0 && (in->body == NULL || *at > in->header.body_size || r->size > in->header.body_size - *at))
        return false;
    if (r->size > 0) memcpy(place_of(i, i->target, 0), (const uint8_t *)in->body + *at, r->size);
    *at += r->size;
    item_over(i, r->version);
    return true;
}

static void read_results(struct op_pull *p, struct call *c, const struct incoming *in, struct answer_reader *a,
                         uint32_t count)
{
    struct wire_pull_result r;
    uint64_t at = 0;

    for (uint32_t n = 0; n < count && wire_get_pull_result(&a->results, &r); n++) {
        struct item *i = c->items[n];
        if (p->op.result.finished) return;
        if (i == NULL) continue; /* refused; a fault has no bytes */
        if (is_direct(c)) {
            item_part(i, c, in, &r);
        } else if (!read_small(i, &r, in, &at)) {
            malformed(p);
        }
        c->items[n] = NULL;
    }
}

/* ---- values on a GPU --------------------------------------------------------------------------------------------- */

/* Queues the copy of what one result says. false: the operation has failed. */
static bool bring(struct item *i, const struct call *c, const struct incoming *in, const struct wire_pull_result *r,
                  uint64_t *at)
{
    struct engine *en = i->pull->op.engine;
    uint64_t size = is_direct(c) ? c->size : i->key->size;
    bool in_box = r->flags & RESULT_IN_MAILBOX;
    const uint8_t *from = in->body;
    struct error e;

    if (!in_box) *at = wire_aligned(*at);
    bool inside = in_box || (in->body != NULL && *at <= in->header.body_size && size <= in->header.body_size - *at);
    if (!is_of(i, r) || r->offset != c->offset || r->size != size || in_box != (c->box != 0) || !inside ||
        (i->version != 0 && r->version != i->version)) {
        malformed(i->pull);
        return false;
    }
    from = in_box ? box_memory(en, c) + i->place : from + *at;
    if (!in_box) *at += size;
    if (gpu_copy(&en->gpu, place_of(i, i->target, c->offset), from, size, &e) == STATUS_OK) return true;
    op_fail(&i->pull->op, &e);
    return false;
}

/* Whether a result has bytes for its item. */
static bool has_bytes(const struct item *i, const struct wire_pull_result *r)
{
    return i != NULL && !i->restart && (i->version != 0 || is_newer(i, r->version));
}

static void end_result(struct item *i, const struct call *c, const struct wire_pull_result *r)
{
    if (i->restart) {
        if (i->open == 0) item_again(i);
        return;
    }
    if (!has_bytes(i, r)) {
        item_over(i, r->version);
        return;
    }
    i->version = r->version;
    i->got += is_direct(c) ? c->size : i->key->size;
    if (i->got == i->key->size) item_over(i, i->version);
    else if (i->asked < i->key->size && i->state == ITEM_FLYING) enter(i, ITEM_READY);
}

/* All copies at once, and then what follows from their being done. */
static void read_gpu(struct op_pull *p, struct call *c, const struct incoming *in, struct answer_reader *a,
                     uint32_t count)
{
    struct answer_reader again = *a;
    struct wire_pull_result r;
    struct error e;
    uint64_t at = 0;

    for (uint32_t n = 0; n < count && wire_get_pull_result(&a->results, &r); n++)
        if (has_bytes(c->items[n], &r) && !bring(c->items[n], c, in, &r, &at)) break;
    if (gpu_settle(&p->op.engine->gpu, &e) != STATUS_OK) op_fail(&p->op, &e);
    for (uint32_t n = 0; n < count && !p->op.result.finished && wire_get_pull_result(&again.results, &r); n++) {
        if (c->items[n] == NULL) continue;
        end_result(c->items[n], c, &r);
        c->items[n] = NULL;
    }
}

static size_t gpu_count(const struct op_pull *p, uint64_t most)
{
    uint64_t end = 0;
    size_t count = 0;

    LIST_EACH(struct item, i, node, &p->ready) {
        end = wire_aligned(end) + i->key->size;
        if (count == FRAME_ENTRIES || !i->on_gpu || end > most || !key_is_known(p->op.engine, i->key)) break;
        count++;
    }
    return count;
}

/* What the frame had no room for is asked for again. */
static void ask_again(struct op_pull *p, struct call *c, uint32_t answered)
{
    p->empty_answers = answered > 0 ? 0 : p->empty_answers + 1;
    if (p->empty_answers > RENEWALS_MAX) {
        malformed(p);
        return;
    }
    for (size_t n = 0; n < c->item_count; n++) {
        struct item *i = c->items[n];
        if (i == NULL) continue;
        i->restart = true;
        enter(i, ITEM_FLYING);
        if (i->open == 0) item_again(i);
    }
}

static void read_answer(struct op_pull *p, struct call *c, const struct incoming *in)
{
    struct reader fixed = reader_of(in->fixed);
    struct answer_reader a = answer_of(in), faults = a;
    struct wire_pull_done done;
    struct error e;
    uint32_t index;

    wire_get_pull_done(&fixed, &done);
    if (done.count > c->item_count || !reader_take(&faults.results, (uint64_t)done.count * wire_pull_result_size)) {
        malformed(p);
        return;
    }
    for (uint32_t n = 0; n < done.faults && answer_next_fault(&faults, &index, &e); n++) {
        if (index >= c->item_count || c->items[index] == NULL) continue;
        if (e.reason == REASON_NO_MAILBOX) box_refused(p->op.engine, c->box);
        item_refused(c->items[index], &e);
        if (p->op.result.finished) return;
        c->items[index] = NULL;
    }
    if (done.count > 0 && c->on_gpu) read_gpu(p, c, in, &a, done.count);
    else read_results(p, c, in, &a, done.count);
    if (!p->op.result.finished) ask_again(p, c, done.count);
}

static void pull_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct op_pull *p = pull_op(op);

    for (size_t n = 0; n < c->item_count; n++) ((struct item *)c->items[n])->open--;
    if (!op->result.finished && why == NULL) {
        if (c->box == 0 || box_has(op->engine, c)) read_answer(p, c, in);
        else ask_again(p, c, 1); /* the values lie where this process does not look any more */
    } else {
        for (size_t n = 0; n < c->item_count && !op->result.finished; n++) item_refused(c->items[n], why);
    }
    box_give(op->engine, c);
}

static void pull_wake(struct op *op)
{
    LIST_EACH(struct item, i, node, &pull_op(op)->later) {
        if (i->retry_at <= op->engine->now) enter(i, ITEM_READY);
        else op_wake_at(op, i->retry_at);
    }
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static uint64_t part_size(const struct op_pull *p)
{
    uint64_t most = p->op.engine->session.part_max;

    return most < PART_SIZE ? most : PART_SIZE;
}

static void put_entry(struct call *c, struct item *i, uint64_t offset, uint64_t size)
{
    wire_put_pull_entry(&c->desc, &(struct wire_pull_entry){
        .key = i->key->id, .version = i->version, .newer = i->version == 0 ? i->newer : 0, .offset = offset,
        .size = size,
    });
    c->items[c->item_count++] = i;
    c->answer_size += wire_pull_result_size + size + WIRE_ALIGN;
    i->open++;
}

static struct call *frame_new(struct op_pull *p, size_t entries)
{
    struct call *c = call_new(&p->op, WIRE_Pull);

    if (c == NULL) return NULL;
    wire_put_pull(&c->fixed, &(struct wire_pull){.store = p->op.engine->store, .count = (uint32_t)entries});
    if (!call_items(c, entries)) c->desc.failed = true;
    return c;
}

static struct call *part(struct op_pull *p, struct item *i, uint64_t most)
{
    uint64_t left = i->key->size - i->asked;
    struct call *c = frame_new(p, 1);

    if (c == NULL || c->desc.failed) return c;
    c->offset = i->asked;
    c->size = left < most ? left : most;
    put_entry(c, i, c->offset, c->size);
    i->asked += c->size;
    /* The first answer names the version that the other parts ask for. */
    if (i->version == 0 || i->asked == i->key->size) enter(i, ITEM_FLYING);
    return c;
}

static bool is_large(const struct item *i) { return i->key->size >= DIRECT_SIZE; }

static struct call *batch(struct op_pull *p)
{
    uint64_t size = 0;
    size_t count = 0;

    LIST_EACH(struct item, i, node, &p->ready) {
        if (count == FRAME_ENTRIES || i->on_gpu || is_large(i) || !key_is_known(p->op.engine, i->key)) break;
        size += i->key->size + WIRE_ALIGN;
        if (count > 0 && size > part_size(p)) break;
        count++;
    }
    struct call *c = frame_new(p, count);
    if (c == NULL || c->desc.failed) return c;
    for (size_t n = 0; n < count; n++) {
        struct item *i = LIST_FIRST(struct item, node, &p->ready);
        put_entry(c, i, 0, 0);
        c->answer_size += i->key->size;
        enter(i, ITEM_FLYING);
    }
    return c;
}

/* Values on a GPU come into a slot of the mailbox, or in the answer and are brought there. */
static struct call *gpu_request(struct op_pull *p, struct item *first, bool in_box)
{
    struct engine *en = p->op.engine;
    uint64_t most = in_box ? box_slot_size(en) : part_size(p), at = 0;
    bool is_part = first->key->size > most || first->asked > 0;
    size_t count = is_part ? 1 : gpu_count(p, most);
    struct call *c = is_part ? NULL : frame_new(p, count);

    if (is_part) c = part(p, first, most);
    if (c == NULL || c->desc.failed) return c;
    c->on_gpu = true;
    if (in_box) box_take(en, c);
    for (size_t n = 0; n < count; n++) {
        struct item *i = is_part ? first : LIST_FIRST(struct item, node, &p->ready);
        if (!is_part) put_entry(c, i, 0, 0);
        if (!is_part) enter(i, ITEM_FLYING);
        c->answer_size += in_box || is_part ? 0 : i->key->size;
        i->place = at;
        if (in_box) box_put_place(c, at);
        at = wire_aligned(at + i->key->size);
    }
    if (in_box) c->answer_size = count * (wire_pull_result_size + wire_fault_size);
    return c;
}

static struct call *pull_next(struct op *op, enum role role)
{
    struct op_pull *p = pull_op(op);
    struct item *i;

    if (role != ROLE_DATA) return NULL;
    while ((i = LIST_FIRST(struct item, node, &p->ready)) != NULL) {
        bool known = key_is_known(op->engine, i->key);
        if (known && i->on_gpu) {
            enum box_use use = box_use(op->engine);
            return use != BOX_LATER ? gpu_request(p, i, use == BOX_NOW) : NULL;
        }
        if (known) return is_large(i) ? part(p, i, part_size(p)) : batch(p);
        enter(i, ITEM_UNKNOWN);
        if (!op->resolving) op_resolve(op);
        if (op->result.finished) break;
    }
    return NULL;
}

/* ---- beginning --------------------------------------------------------------------------------------------------- */

static void begin_pulling(struct op_pull *p)
{
    p->pulling = true;
    for (size_t k = 0; k < p->item_count; k++) enter(&p->items[k], ITEM_READY);
}

static void wait_for_newer(struct op_pull *p)
{
    struct error e;
    enum status s = STATUS_OK;

    op_conds_clear(&p->op);
    for (size_t k = 0; s == STATUS_OK && k < p->item_count; k++) {
        const struct item *i = &p->items[k];
        s = op_cond(&p->op, &(struct cond){.kind = WAIT_VERSION, .id = i->key->id, .number = i->newer + 1}, &e);
    }
    p->newer.wait = false;
    if (s == STATUS_OK) op_wait_for(&p->op, p->item_count > 0);
    else op_fail(&p->op, &e);
}

static void pull_waited(struct op *op)
{
    struct op_pull *p = pull_op(op);

    if (p->newer.wait) wait_for_newer(p);
    else begin_pulling(p);
}

static void pull_settled(struct op *op)
{
    struct op_pull *p = pull_op(op);
    struct error e;
    enum status s = STATUS_OK;

    for (size_t k = 0; s == STATUS_OK && k < p->item_count; k++) s = op_cond_pushes(op, p->items[k].key, &e);
    if (s == STATUS_OK) op_wait_for(op, op->cond_count);
    else op_fail(op, &e);
}

static void wait_for_turns(struct op_pull *p)
{
    for (size_t k = 0; k < p->item_count; k++) {
        struct item *i = &p->items[k];
        i->quiet.op = &p->op;
        if (key_quiet_wait(i->key, &i->quiet)) p->op.quiet_left++;
    }
    if (p->op.quiet_left == 0) pull_settled(&p->op);
}

static void group(struct op_pull *p)
{
    size_t at = 0;

    for (size_t n = 0; n < p->t.count; n++) p->items[p->slots[n]].count++;
    for (size_t k = 0; k < p->item_count; k++) {
        struct item *i = &p->items[k];
        i->pull = p;
        i->key = p->op.held[k];
        i->first = at;
        at += i->count;
        i->count = 0;
    }
    for (size_t n = 0; n < p->t.count; n++) {
        struct item *i = &p->items[p->slots[n]];
        const uint64_t *newer = p->newer.newer;
        if (i->count == 0 || (newer != NULL && newer[n] < newer[i->target])) i->target = n;
        if (newer != NULL) i->newer = newer[i->target];
        p->grouped[i->first + i->count++] = n;
    }
    for (size_t k = 0; k < p->item_count; k++) {
        struct item *i = &p->items[k];
        i->on_gpu = tensor_on_gpu(&p->t.values[i->target]) && i->key->size > 0;
    }
}

static void pull_resolved(struct op *op)
{
    struct op_pull *p = pull_op(op);
    struct error e;

    for (size_t n = 0; n < p->t.count; n++) {
        if (tensor_fits(&p->t.values[n], op->held[p->slots[n]], &e) == STATUS_OK) continue;
        op_fail(op, &e);
        return;
    }
    if (p->checks_only) {
        op_finish(op);
        return;
    }
    if (p->begun) {
        for (size_t k = 0; k < p->item_count; k++)
            if (p->items[k].state == ITEM_UNKNOWN && p->pulling) enter(&p->items[k], ITEM_READY);
        return;
    }
    p->begun = true;
    group(p);
    p->left = p->item_count;
    if (p->left == 0) op_finish(op);
    else wait_for_turns(p);
}

static enum status check_call(struct op_pull *p, struct error *e)
{
    uint64_t size;
    bool is_new;

    for (size_t n = 0; n < p->t.count; n++) {
        enum status s = tensor_check(&p->op.engine->gpu, &p->t.values[n], &p->t.keys[n], &size, e);
        if (s == STATUS_OK) s = op_hold(&p->op, &p->t.keys[n], &p->slots[n], &is_new, e);
        if (s != STATUS_OK) return s;
    }
    p->item_count = p->op.held_count;
    p->items = mem_array(p->item_count, sizeof *p->items);
    return p->items != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for %zu keys", p->item_count);
}

static void pull_ended(struct op *op)
{
    struct op_pull *p = pull_op(op);

    for (size_t k = 0; p->items != NULL && k < p->item_count; k++) list_remove(&p->items[k].quiet.node);
}

static void pull_free(struct op *op)
{
    struct op_pull *p = pull_op(op);

    mem_free(p->items);
    mem_free(p->slots);
    mem_free(p->grouped);
}

static void pull_what(const struct op *op, struct buf *out)
{
    const struct op_pull *p = (const struct op_pull *)(const void *)op;
    size_t told = 0;

    for (size_t k = 0; k < op->held_count && told < 5; k++) {
        char name[80];
        if (p->begun && p->items[k].state == ITEM_DONE) continue;
        key_name_text(&op->held[k]->name, name, sizeof name);
        buf_format(out, "%s%s", told++ > 0 ? ", " : " of key ", name);
    }
    if (op->held_count > 5) buf_format(out, " (%zu keys in all)", op->held_count);
}

static const struct op_ops pull_ops = {
    .name = "pull", .size = sizeof(struct op_pull), .resolved = pull_resolved, .waited = pull_waited,
    .settled = pull_settled, .next = pull_next, .answer = pull_answer, .place = pull_place, .wake = pull_wake,
    .ended = pull_ended, .free = pull_free, .what = pull_what,
};

static enum status begin(struct engine *en, const struct tensors *t, const struct pull_newer *newer, bool checks_only,
                         struct op **out, struct error *e)
{
    struct op *op;
    enum status s = op_new(en, &pull_ops, false, &op, e);

    if (s != STATUS_OK) return s;
    struct op_pull *p = pull_op(op);
    list_init(&p->ready);
    list_init(&p->later);
    op->priority = t->priority;
    p->t = *t;
    if (newer != NULL) p->newer = *newer;
    p->checks_only = checks_only;
    p->slots = mem_array(t->count, sizeof *p->slots);
    p->grouped = mem_array(t->count, sizeof *p->grouped);
    if (p->slots == NULL || p->grouped == NULL) s = error_set(e, REASON_NO_MEMORY, "no memory for %zu keys", t->count);
    else s = check_call(p, e);
    if (s != STATUS_OK) {
        op_abandon(op);
        return s;
    }
    op_resolve(op);
    engine_pump(en);
    *out = op;
    return STATUS_OK;
}

enum status op_pull(struct engine *en, const struct tensors *t, const struct pull_newer *newer, struct op **out,
                    struct error *e)
{
    return begin(en, t, newer, false, out, e);
}

enum status op_check_outputs(struct engine *en, const struct tensors *t, struct op **out, struct error *e)
{
    return begin(en, t, NULL, true, out, e);
}
