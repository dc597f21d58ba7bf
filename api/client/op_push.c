/* Push and Set: sums of repeated keys, frames of many small values, large values in parts, and each key's
 * contributions one after another. */
#include "api/client/box.h"
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    FRAME_ENTRIES = 4096,
    LIST_SIZE_MIN = 1 << 20,     /* bytes of a value */
    PIECES_HERE = 16,            /* of a frame: more need memory for a moment */
    RENEWALS_MAX = 3,            /* of what is known of a key, within one push */
    REFUSED_MAX_MS = 250         /* a refused push is offered again at least this often */
};

enum item_state {
    ITEM_QUEUED,                 /* for the key's turn */
    ITEM_UNKNOWN,                /* the key has to be described anew */
    ITEM_READY,                  /* has something to send */
    ITEM_FLYING,                 /* all is sent, or the first part is, on trial */
    ITEM_LATER,                  /* refused for now */
    ITEM_DONE
};

/* One key's contribution. */
struct item {
    struct turn turn;
    struct list_node node;       /* of push->ready or push->later */
    struct key *key;
    uint64_t step, id;           /* as it was sent, and of which creation of the key; 0: not yet */
    enum item_state state;
    size_t first, count;         /* of push->grouped: which values of the call */
    const void *data;            /* the value, or the sum */
    bool on_gpu;                 /* data is an address there */
    bool in_box;                 /* its parts go through the mailbox */
    void *sum;                   /* owned; NULL: there was one value, or the store sums them */
    const void **list;           /* owned: the values, where the store sums them; else NULL */
    uint64_t sent, accepted;     /* bytes of a value in parts */
    uint64_t sequence;           /* of its parts */
    unsigned open;               /* requests in flight */
    bool restart;                /* refused: begins again when nothing of it is in flight */
    bool cautious;               /* refused before: one part goes ahead alone */
    unsigned refused, renewed;
    uint64_t retry_at;
};

struct op_push {
    struct op op;
    struct tensors t;
    unsigned method;             /* WIRE_Push, WIRE_Set; 0: only the sums are wanted */
    bool force, grouped_yet;
    size_t *slots;               /* for each value: which of the operation's keys */
    size_t *grouped;             /* the values, those of one key together and in their order */
    struct item *items;
    size_t item_count, left;
    struct list ready, later;
    struct error failed;         /* the first; status OK: none */
};

static struct op_push *push_op(struct op *op) { return (struct op_push *)(void *)op; }
static struct op_push *push_of(const struct item *i) { return push_op(i->turn.op); }

static void enter(struct item *i, enum item_state state)
{
    struct op_push *p = push_of(i);

    i->state = state;
    list_remove(&i->node);
    if (state == ITEM_LATER) list_append(&p->later, &i->node);
    if (state != ITEM_READY) return;
    list_append(&p->ready, &i->node);
    op_want(&p->op, ROLE_DATA);
}

/* ---- the end of a contribution ----------------------------------------------------------------------------------- */

static void give_turn_back(struct item *i)
{
    enter(i, ITEM_DONE);
    key_turn_end(i->key, &i->turn);
}

static void learn_recorded(struct item *i)
{
    struct key *k = i->key;

    if (push_of(i)->method != WIRE_Push) return;
    if (k->recorded < i->step) k->recorded = i->step;
    if (k->next_step <= i->step) k->next_step = i->step + 1;
}

static void item_over(struct item *i, const struct error *why)
{
    struct op_push *p = push_of(i);

    if (why == NULL) learn_recorded(i);
    else if (p->failed.status == STATUS_OK) p->failed = *why;
    give_turn_back(i);
    if (--p->left > 0) return;
    if (p->failed.status == STATUS_OK) op_finish(&p->op);
    else op_fail(&p->op, &p->failed);
}

/* The operation has ended before this did: only what the key has to know still counts. */
static void item_orphaned(struct item *i, bool recorded, bool lost)
{
    if (i->state == ITEM_DONE) return;
    if (lost) i->key->uncertain = true;
    if (recorded) learn_recorded(i);
    if (recorded || i->open == 0) give_turn_back(i);
}

static void push_ended(struct op *op)
{
    struct op_push *p = push_op(op);

    for (size_t n = 0; p->grouped_yet && n < p->item_count; n++) {
        struct item *i = &p->items[n];
        if (i->state == ITEM_DONE) continue;
        if (i->open == 0) give_turn_back(i);
        else enter(i, ITEM_FLYING);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void item_again(struct item *i)
{
    struct op_push *p = push_of(i);

    i->restart = false;
    i->sent = i->accepted = 0;
    i->sequence = 0;
    i->cautious = i->refused > 0;
    if (i->retry_at <= p->op.engine->now) {
        enter(i, ITEM_READY);
        return;
    }
    enter(i, ITEM_LATER);
    op_wake_at(&p->op, i->retry_at);
}

/* Whether it may be tried again, and then when. */
static bool may_retry(struct item *i, const struct error *e)
{
    struct op_push *p = push_of(i);
    struct engine *en = p->op.engine;
    uint64_t wait = e->retry_ms;

    switch (e->reason) {
    case REASON_STEP_ORDER:
        i->key->uncertain = true;
        wait = wait > 0 ? wait : RETRY_MS;
        break;
    case REASON_NOT_JOINED:
        if (i->renewed++ >= RENEWALS_MAX) return false;
        engine_rejoin(en);
        i->key->known = 0;
        break;
    case REASON_NO_KEY:
    case REASON_KEY_DELETED:
        if (i->renewed++ >= RENEWALS_MAX) return false;
        i->key->known = 0;
        break;
    case REASON_SEQUENCE_OLD:
    case REASON_NO_MAILBOX:
        if (i->renewed++ >= RENEWALS_MAX) return false;
        break;
    default:
        if (wait == 0) return false;
        wait <<= i->refused < 4 ? i->refused : 4;
        break;
    }
    if (wait > REFUSED_MAX_MS) wait = REFUSED_MAX_MS;
    if (wait > 0) i->refused++;
    i->retry_at = en->now + wait;
    op_hint(&p->op, e);
    return true;
}

static void item_refused(struct item *i, const struct error *e)
{
    i->open--;
    if (push_of(i)->op.result.finished) {
        item_orphaned(i, false, false);
        return;
    }
    if (i->state == ITEM_DONE) return;
    if (!i->restart && !may_retry(i, e)) {
        item_over(i, e);
        return;
    }
    i->restart = true;
    enter(i, ITEM_FLYING);
    if (i->open == 0) item_again(i);
}

/* Its end need not be asked for; those of earlier pushes that nobody was told of still have to be. */
static void learn_applied(struct item *i)
{
    if (i->key->applied + 1 == i->step) i->key->applied = i->step;
}

static void item_accepted(struct item *i, const struct call *c, bool recorded)
{
    struct op_push *p = push_of(i);
    struct error e;

    i->open--;
    i->accepted += c->size;
    if (p->op.result.finished) {
        item_orphaned(i, recorded, false);
    } else if (i->state == ITEM_DONE) {
        return;
    } else if (recorded) {
        item_over(i, NULL);
    } else if (i->restart) {
        if (i->open == 0) item_again(i);
    } else if (i->accepted >= i->key->size && i->open == 0) {
        /* All parts were taken, and yet it is not whole: the daemon has dropped some for lack of progress. */
        error_set(&e, REASON_INTERNAL, "a value that was sent whole was not recorded");
        if (i->renewed++ < RENEWALS_MAX) item_again(i);
        else item_over(i, &e);
    } else if (i->cautious) {
        i->cautious = false;
        enter(i, ITEM_READY);
    }
}

static void push_wake(struct op *op)
{
    LIST_EACH(struct item, i, node, &push_op(op)->later) {
        if (i->retry_at <= op->engine->now) enter(i, ITEM_READY);
        else op_wake_at(op, i->retry_at);
    }
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void call_refused(struct call *c, const struct error *why, bool lost)
{
    for (size_t n = 0; n < c->item_count; n++) {
        struct item *i = c->items[n];
        if (lost && push_of(i)->op.result.finished) {
            i->open--;
            item_orphaned(i, false, true);
        } else {
            item_refused(i, why);
        }
    }
}

static void push_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct reader fixed = reader_of(in != NULL ? in->fixed : bytes_of("", 0));
    struct wire_push_done push = {0};
    struct wire_set_done set = {0};
    uint64_t box = c->box;
    struct error e;
    uint32_t index;

    box_give(op->engine, c);
    if (why != NULL) {
        call_refused(c, why, in == NULL);
        return;
    }
    if (c->method == WIRE_Push) wire_get_push_done(&fixed, &push);
    else wire_get_set_done(&fixed, &set);
    bool whole = c->size == 0 || push.recorded > 0 || set.count > 0;
    bool applied = push.recorded == c->item_count && push.applied == c->item_count;
    struct answer_reader a = answer_of(in);
    for (uint32_t n = 0; n < push.faults + set.faults && answer_next_fault(&a, &index, &e); n++) {
        if (index >= c->item_count || c->items[index] == NULL) continue;
        if (e.reason == REASON_NO_MAILBOX) box_refused(op->engine, box);
        item_refused(c->items[index], &e);
        c->items[index] = NULL;
    }
    for (size_t n = 0; n < c->item_count; n++) {
        if (c->items[n] == NULL) continue;
        if (applied) learn_applied(c->items[n]);
        item_accepted(c->items[n], c, whole);
    }
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static uint64_t part_size(const struct op_push *p)
{
    uint64_t most = p->op.engine->session.part_max;

    return most < PART_SIZE ? most : PART_SIZE;
}

static void put_entry(struct call *c, struct item *i, uint64_t offset, uint64_t size)
{
    i->step = c->method == WIRE_Push ? i->key->next_step : 0;
    i->id = i->key->id;
    wire_put_push_entry(&c->desc, &(struct wire_push_entry){
        .key = i->key->id, .step = i->step, .offset = offset, .size = size,
        .total = i->key->size, .dtype = (uint8_t)i->key->dtype, .codec = CODEC_NONE,
    });
}

static struct call *frame_new(struct op_push *p, size_t entries)
{
    struct call *c = call_new(&p->op, p->method);
    size_t told = entries < FAULT_TEXTS_MAX ? entries : FAULT_TEXTS_MAX;

    if (c == NULL) return NULL;
    wire_put_push(&c->fixed, &(struct wire_push){
        .store = p->op.engine->store, .count = (uint32_t)entries, .force = p->force,
    });
    /* At worst each entry is refused. */
    c->answer_size = entries * wire_fault_size + told * 128;
    if (!call_items(c, entries)) c->desc.failed = true;
    return c;
}

static void take(struct call *c, struct item *i)
{
    c->items[c->item_count++] = i;
    i->open++;
}

static struct call *part(struct op_push *p, struct item *i)
{
    uint64_t left = i->key->size - i->sent, most = part_size(p), size = left < most ? left : most;
    struct call *c = frame_new(p, 1);

    if (c == NULL || c->desc.failed) return c;
    if (!call_segments(c, 1)) {
        c->desc.failed = true;
        return c;
    }
    if (i->sequence == 0) i->sequence = c->sequence;
    c->sequence = i->sequence;
    c->offset = i->sent;
    c->size = size;
    c->body_size = size;
    put_entry(c, i, i->sent, size);
    call_segment(c, (const char *)i->data + i->sent, size, &p->op);
    take(c, i);
    i->sent += size;
    if (i->sent == i->key->size || i->cautious) enter(i, ITEM_FLYING);
    return c;
}

/* Values that the store's GPUs sum; the frame names them, as they lie in the process of the store. */
static struct call *list(struct op_push *p, struct item *i)
{
    struct call *c = frame_new(p, 1);

    if (c == NULL || c->desc.failed) return c;
    c->values = i->list;
    c->value_count = i->count;
    c->size = i->key->size;
    put_entry(c, i, 0, 0);
    take(c, i);
    i->sent = i->key->size;
    enter(i, ITEM_FLYING);
    return c;
}

static bool is_large(const struct op_push *p, const struct item *i) { return i->key->size > part_size(p); }

/* How many of those that are ready go into one frame. */
static size_t batch_count(const struct op_push *p)
{
    uint64_t size = 0;
    size_t count = 0;

    LIST_EACH(struct item, i, node, &p->ready) {
        if (count == FRAME_ENTRIES || i->on_gpu || is_large(p, i) || i->list != NULL || !key_is_known(p->op.engine, i->key))
            break;
        size += i->key->size;
        if (count > 0 && size > part_size(p)) break;
        count++;
    }
    return count;
}

static struct call *batch(struct op_push *p)
{
    size_t count = batch_count(p);
    struct piece here[PIECES_HERE], *pieces = count <= PIECES_HERE ? here : mem_array(count, sizeof *pieces);
    struct call *c = frame_new(p, count);

    if (c == NULL || pieces == NULL || c->desc.failed) goto out;
    for (size_t n = 0; n < count; n++) {
        struct item *i = LIST_FIRST(struct item, node, &p->ready);
        put_entry(c, i, 0, i->key->size);
        pieces[n] = (struct piece){i->data, i->key->size};
        take(c, i);
        enter(i, ITEM_FLYING);
    }
    if (!call_lay_out(c, pieces, count, &p->op)) c->desc.failed = true;
out:
    if (c != NULL && pieces == NULL) c->desc.failed = true;
    if (pieces != here) mem_free(pieces);
    return c;
}

/* ---- values on a GPU: by way of a slot of the mailbox, or of the request's own memory ---------------------------- */

/* How many of those that are ready go into one request, and how many bytes they are with what lies between them. */
static size_t gpu_count(const struct op_push *p, uint64_t most, uint64_t *size)
{
    size_t count = 0;

    *size = 0;
    LIST_EACH(struct item, i, node, &p->ready) {
        uint64_t end = wire_aligned(*size) + i->key->size;
        if (count == FRAME_ENTRIES || !i->on_gpu || end > most || !key_is_known(p->op.engine, i->key)) break;
        *size = end;
        count++;
    }
    return count;
}

/* The memory that the copies go to: the slot's or, with zeros between the values, the request's. */
static uint8_t *gpu_room(const struct engine *en, struct call *c, uint64_t size)
{
    if (c->box != 0) return box_memory(en, c);
    uint8_t *to = buf_room(&c->body, (size_t)size);
    if (to != NULL) memset(to, 0, (size_t)size);
    c->body_size = size;
    return to;
}

/* The next `count` values, or a part of c->size bytes of the next one. */
static enum status gpu_fill(struct op_push *p, struct call *c, uint8_t *to, size_t count, struct error *e)
{
    struct gpu *gpu = &p->op.engine->gpu;
    enum status s = STATUS_OK;

    for (uint64_t at = 0, n = 0; n < count && s == STATUS_OK; n++) {
        struct item *i = LIST_FIRST(struct item, node, &p->ready);
        uint64_t size = c->size > 0 ? c->size : i->key->size;
        put_entry(c, i, c->offset, size);
        if (c->box != 0) box_put_place(c, at);
        s = gpu_copy(gpu, to + at, (const char *)i->data + c->offset, size, e);
        at = wire_aligned(at + size);
        take(c, i);
        if (c->size > 0) i->sent += size;
        if (c->size == 0 || i->sent == i->key->size || i->cautious) enter(i, ITEM_FLYING);
    }
    return s == STATUS_OK ? gpu_settle(gpu, e) : s;
}

static void begin_part(struct call *c, struct item *i, uint64_t size, bool in_box)
{
    if (i->sequence == 0) i->sequence = c->sequence;
    c->sequence = i->sequence;
    c->offset = i->sent;
    c->size = size;
    i->in_box = in_box;
}

static struct call *gpu_frame(struct op_push *p, struct item *first, bool in_box)
{
    struct engine *en = p->op.engine;
    uint64_t most = in_box ? box_slot_size(en) : part_size(p), left = first->key->size - first->sent;
    uint64_t size = left < most ? left : most;
    bool is_part = first->key->size > most || first->sent > 0;
    size_t count = is_part ? 1 : gpu_count(p, most, &size);
    struct call *c = frame_new(p, count);
    struct error e;

    if (c == NULL || c->desc.failed) return c;
    if (in_box) box_take(en, c);
    if (is_part) begin_part(c, first, size, in_box);
    uint8_t *to = gpu_room(en, c, size);
    if (to == NULL || gpu_fill(p, c, to, count, &e) == STATUS_OK) return c; /* without memory it is unmade */
    op_fail(&p->op, &e);
    c->desc.failed = true;
    return c;
}

/* The parts of one value go the same way. When that is closed meanwhile it begins anew. */
static bool goes_on(struct item *i, bool in_box)
{
    if (i->sent == 0 || i->in_box == in_box) return true;
    i->restart = true;
    enter(i, ITEM_FLYING);
    if (i->open == 0) item_again(i);
    return false;
}

static struct call *push_next(struct op *op, enum role role)
{
    struct op_push *p = push_op(op);
    struct item *i;

    if (role != ROLE_DATA) return NULL;
    while ((i = LIST_FIRST(struct item, node, &p->ready)) != NULL) {
        bool known = key_is_known(op->engine, i->key);
        if (known && i->on_gpu) {
            enum box_use use = p->method == WIRE_Push ? box_use(op->engine) : BOX_NEVER;
            if (use == BOX_LATER) return NULL;
            if (goes_on(i, use == BOX_NOW)) return gpu_frame(p, i, use == BOX_NOW);
            continue;
        }
        if (known) return i->list != NULL ? list(p, i) : is_large(p, i) ? part(p, i) : batch(p);
        enter(i, ITEM_UNKNOWN);
        if (!op->resolving) op_resolve(op);
        if (op->result.finished) break;
    }
    return NULL;
}

/* ---- beginning --------------------------------------------------------------------------------------------------- */

static void have_turn(struct turn *t)
{
    struct item *i = CONTAINER_OF(t, struct item, turn);

    enter(i, ITEM_READY);
}

static enum status check_fit(const struct op_push *p, struct error *e)
{
    for (size_t n = 0; n < p->t.count; n++) {
        enum status s = tensor_fits(&p->t.values[n], p->op.held[p->slots[n]], e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

/* A counting sort of the values by key, which keeps their order. */
static void group(struct op_push *p)
{
    size_t at = 0;

    for (size_t n = 0; n < p->t.count; n++) p->items[p->slots[n]].count++;
    for (size_t k = 0; k < p->item_count; k++) {
        p->items[k].first = at;
        at += p->items[k].count;
        p->items[k].count = 0;
    }
    for (size_t n = 0; n < p->t.count; n++) {
        struct item *i = &p->items[p->slots[n]];
        p->grouped[i->first + i->count++] = n;
    }
}

static int by_order(const void *a, const void *b)
{
    const struct key *x = ((const struct item *)a)->key, *y = ((const struct item *)b)->key;

    if (x->name.type == KEY_INT && y->name.type == KEY_INT) return key_name_compare(&x->name, &y->name);
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Whether the store sums the values itself, on its GPUs. Small ones are summed sooner here, and what a group does not sum
 * (gpu/group.h) has to be. */
static bool is_for_gpus(const struct op_push *p, const struct item *i)
{
    return p->op.engine->options->needs_gpu && p->op.engine->options->embedded && p->method == WIRE_Push &&
           i->key->size >= LIST_SIZE_MIN && (i->key->dtype == DTYPE_f32 || i->key->dtype == DTYPE_f64);
}

/* The store's streams know nothing of CUDA's default stream, so what that was given before the call is waited for: a byte
 * that is copied by way of ours comes after it. */
static enum status await_values(struct op_push *p, const struct item *i, struct error *e)
{
    struct gpu *gpu = &p->op.engine->gpu;
    enum status s = STATUS_OK;
    char byte;

    for (size_t n = 0; n < i->count && s == STATUS_OK; n++) {
        const struct paramd_tensor *t = &p->t.values[p->grouped[i->first + n]];
        if (!tensor_on_gpu(t)) continue;
        s = gpu_copy(gpu, &byte, t->data, 1, e);
        if (s == STATUS_OK) s = gpu_settle(gpu, e);
    }
    return s;
}

static enum status make_list(struct op_push *p, struct item *i, struct error *e)
{
    i->list = mem_array(i->count, sizeof *i->list);
    if (i->list == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for %zu values", i->count);
    for (size_t n = 0; n < i->count; n++) i->list[n] = p->t.values[p->grouped[i->first + n]].data;
    return await_values(p, i, e);
}

static enum status sum_of(struct op_push *p, struct item *i, struct error *e)
{
    struct gpu *gpu = &p->op.engine->gpu;
    const struct paramd_tensor *first = &p->t.values[p->grouped[i->first]];

    if (i->count > 1 && is_for_gpus(p, i)) return make_list(p, i, e);
    enum status s = i->count == 1 ? tensor_fetch(gpu, first, i->key->size, &i->sum, e)
                                  : tensor_sum(gpu, &p->t, &p->grouped[i->first], i->count, i->key, &i->sum, e);
    if (s == STATUS_OK) i->data = i->sum;
    return s;
}

static enum status sum_up(struct op_push *p, struct error *e)
{
    for (size_t k = 0; k < p->item_count; k++) {
        struct item *i = &p->items[k];
        i->turn.op = &p->op;
        i->turn.have = have_turn;
        i->key = p->op.held[k];
        const struct paramd_tensor *t = &p->t.values[p->grouped[i->first]];
        i->data = t->data;
        i->on_gpu = tensor_on_gpu(t) && i->key->size > 0;
        if (i->count == 1 && !(i->on_gpu && p->method == 0)) continue;
        i->on_gpu = false;
        enum status s = sum_of(p, i, e);
        if (s != STATUS_OK) return s;
    }
    size_t sorted = 1; /* as a rule they come in order */
    while (sorted < p->item_count && by_order(&p->items[sorted - 1], &p->items[sorted]) <= 0) sorted++;
    if (sorted < p->item_count) qsort(p->items, p->item_count, sizeof *p->items, by_order);
    return STATUS_OK;
}

static void set_out(struct op_push *p)
{
    p->left = p->item_count;
    p->grouped_yet = true;
    for (size_t k = 0; k < p->item_count; k++) {
        struct item *i = &p->items[k];
        enter(i, ITEM_QUEUED);
        if (key_turn_queue(i->key, &i->turn)) enter(i, ITEM_READY);
    }
}

/* Its answer was lost, and a worker that was found dead meanwhile is not told so of a repeat: it must not be sent under
 * the step that comes next. */
static bool was_recorded(const struct item *i)
{
    return i->step > 0 && i->id == i->key->id && i->key->told >= i->step;
}

static void described_again(struct op_push *p)
{
    for (size_t k = 0; k < p->item_count && !p->op.result.finished; k++) {
        struct item *i = &p->items[k];
        if (i->state != ITEM_UNKNOWN) continue;
        if (was_recorded(i)) item_over(i, NULL);
        else enter(i, ITEM_READY);
    }
}

static void push_resolved(struct op *op)
{
    struct op_push *p = push_op(op);
    struct error e;
    enum status s = check_fit(p, &e);

    if (s == STATUS_OK && !p->grouped_yet) {
        group(p);
        s = sum_up(p, &e);
    }
    if (s != STATUS_OK) op_fail(op, &e);
    else if (p->method == 0) op_finish(op);
    else if (p->grouped_yet) described_again(p);
    else if (p->item_count == 0) op_finish(op);
    else set_out(p);
}

static enum status check_call(struct op_push *p, struct error *e)
{
    uint64_t size;

    for (size_t n = 0; n < p->t.count; n++) {
        bool is_new;
        enum status s = tensor_check(&p->op.engine->gpu, &p->t.values[n], &p->t.keys[n], &size, e);
        if (s == STATUS_OK) s = op_hold(&p->op, &p->t.keys[n], &p->slots[n], &is_new, e);
        if (s != STATUS_OK) return s;
        if (!is_new && p->method == WIRE_Set)
            return error_set(e, REASON_BAD_ARGUMENT, "a key occurs twice: set has one value for each key");
    }
    p->item_count = p->op.held_count;
    p->items = mem_array(p->item_count, sizeof *p->items);
    return p->items != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for %zu keys", p->item_count);
}

static void push_free(struct op *op)
{
    struct op_push *p = push_op(op);

    for (size_t k = 0; p->items != NULL && k < p->item_count; k++) {
        mem_free(p->items[k].sum);
        mem_free(p->items[k].list);
    }
    mem_free(p->items);
    mem_free(p->slots);
    mem_free(p->grouped);
}

static void push_what(const struct op *op, struct buf *out)
{
    const struct op_push *p = (const struct op_push *)(const void *)op;
    size_t told = 0;

    for (size_t k = 0; p->grouped_yet && k < p->item_count && told < 5; k++) {
        char name[80];
        if (p->items[k].state == ITEM_DONE) continue;
        key_name_text(&p->items[k].key->name, name, sizeof name);
        buf_format(out, "%s%s", told++ > 0 ? ", " : " of key ", name);
    }
    if (p->left > told) buf_format(out, " and %zu more", p->left - told);
}

#define PUSH_OPS(word, needs)                                                                                \
    {.name = word, .need = needs, .size = sizeof(struct op_push), .resolved = push_resolved,                 \
     .next = push_next, .answer = push_answer, .wake = push_wake, .ended = push_ended, .free = push_free,    \
     .what = push_what}

static const struct op_ops push_ops = PUSH_OPS("push", NEED_MEMBER), set_ops = PUSH_OPS("set", NEED_STORE);

static enum status begin(struct engine *en, const struct tensors *t, unsigned method, bool force, struct op **out,
                         struct error *e)
{
    struct op *op;
    enum status s = op_new(en, method == WIRE_Set ? &set_ops : &push_ops, false, &op, e);

    if (s != STATUS_OK) return s;
    struct op_push *p = push_op(op);
    list_init(&p->ready);
    list_init(&p->later);
    op->priority = t->priority;
    p->t = *t;
    p->method = method;
    p->force = force;
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

enum status op_push(struct engine *en, const struct tensors *t, struct op **out, struct error *e)
{
    return begin(en, t, WIRE_Push, false, out, e);
}

enum status op_set(struct engine *en, const struct tensors *t, bool force, struct op **out, struct error *e)
{
    return begin(en, t, WIRE_Set, force, out, e);
}

enum status op_sums(struct engine *en, const struct tensors *t, struct op **out, struct error *e)
{
    return begin(en, t, 0, false, out, e);
}

size_t op_sums_count(const struct op *op) { return ((const struct op_push *)(const void *)op)->item_count; }

struct contribution op_sums_at(const struct op *op, size_t at)
{
    const struct op_push *p = (const struct op_push *)(const void *)op;

    return (struct contribution){p->grouped[p->items[at].first], p->items[at].data, p->items[at].key->size};
}
