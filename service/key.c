#include "service/key.h"

#include "api/wire.h"
#include "service/account.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/store.h"
#include "service/wait.h"
#include "service/watch.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool key_name_equal(const struct key_name *a, const struct key_name *b)
{
    if (a->is_text != b->is_text) return false;
    return a->is_text ? bytes_equal(a->text, b->text) : a->number == b->number;
}

const char *key_name_print(const struct key_name *n, char out[KEY_PRINT_SIZE])
{
    if (n->is_text) snprintf(out, KEY_PRINT_SIZE, "key '%.*s'", (int)n->text.size, (const char *)n->text.at);
    else snprintf(out, KEY_PRINT_SIZE, "key %" PRId64, n->number);
    return out;
}

struct bytes key_name_bytes(const struct key_name *n, char room[KEY_NUMBER_SIZE])
{
    if (n->is_text) return n->text;
    snprintf(room, KEY_NUMBER_SIZE, "%" PRId64, n->number);
    return bytes_text(room);
}

const char *shape_print(const struct key_shape *s, char out[SHAPE_PRINT_SIZE])
{
    size_t n = (size_t)snprintf(out, SHAPE_PRINT_SIZE, "%s (", dtype_numpy(s->dtype));

    for (unsigned i = 0; i < s->ndim; i++)
        n += (size_t)snprintf(out + n, SHAPE_PRINT_SIZE - n, "%s%" PRId64, i > 0 ? ", " : "", s->dims[i]);
    snprintf(out + n, SHAPE_PRINT_SIZE - n, s->ndim == 1 ? ",)" : ")");
    return out;
}

bool shape_equal(const struct key_shape *a, const struct key_shape *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->dims, b->dims, a->ndim * sizeof a->dims[0]) == 0;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

struct key *key_hold(struct key *k)
{
    k->holds++;
    return k;
}

static void key_free(struct task *t, enum status s)
{
    struct key *k = CONTAINER_OF(t, struct key, task);

    (void)s;
    k->core->key_count--;
    if (k->home & HOME_ON_CPU) k->core->keys_on_cpu--;
    core_room_free(k->core, &(struct room){k->home, k->shape.count, k->kept, k->counted});
    account_floor_goes(k->core);
    watch_free(k);
    version_free_all(k);
    state_fini(k);
    mem_free((void *)k->name.text.at);
    mem_free(k);
}

void key_drop(struct key *k)
{
    if (k == NULL || --k->holds > 0) return;
    /* Work that nobody waited for, such as the zeroing of slots, may still be under way. */
    k->task = (struct task){.run = key_free};
    core_after(k->core, k->queue_index, &k->task);
}

/* The memory in which the value arrived becomes the value. */
static enum status first_version(struct key *k, struct staging *value, struct error *e)
{
    struct version *v = version_blank(k), *spare;
    enum status s = v != NULL ? staging_settle(value, k->queue, e) : error_set(e, REASON_NO_MEMORY, "no memory for a key");

    if (s != STATUS_OK) {
        version_forget(v);
        return s;
    }
    v->mem = value->mem;
    v->host = v->mem.host;
    value->mem = (struct dmem){0};
    k->buffers = 1;
    version_publish(k, v, 1);
    s = version_acquire(k, &spare, e);
    if (s == STATUS_OK) list_append(&k->spares, &spare->node);
    return s;
}

static uint64_t counts_for(const struct key_shape *shape, uint64_t state_size)
{
    return KEY_VERSIONS * shape->size + state_size + KEY_COST;
}

uint64_t key_needs(const struct store *store, const struct key_name *name, const struct key_shape *shape)
{
    return counts_for(shape, state_needs(store_updater(store), name, shape));
}

static uint64_t push_needs(const struct key_shape *shape)
{
    return shape->size + shape->count * dtype_size(dtype_sum(shape->dtype));
}

uint64_t key_needs_free(const struct store *store, const struct key_shape *shape, uint64_t state_size)
{
    const struct store_options *o = &store->options;
    /* Sums in the order of ranks begin when all contributions are there. */
    uint64_t held = o->mode == MODE_SYNC && o->sum_order == SUM_RANK && o->num_workers > 1 ? o->num_workers - 1 : 0;
    uint64_t push = push_needs(shape) + held * shape->size, copy = state_size + STATE_PIECES * WIRE_ALIGN;

    return push > copy || state_size == 0 ? push : copy;
}

uint64_t key_floor(const struct key *k) { return key_needs_free(k->store, &k->shape, key_kept_state(k)); }

struct room key_room(const struct store *store, const struct key_name *name, const struct key_shape *shape)
{
    uint64_t counted = key_needs(store, name, shape);

    return core_room_new(store->core, shape->count, state_is_whole(store_updater(store), shape),
                         counted - KEY_COST + push_needs(shape), counted);
}

void key_keep(struct key *k, uint64_t state_size)
{
    uint64_t counted = counts_for(&k->shape, state_size), size = counted - KEY_COST + push_needs(&k->shape);

    device_home_keep(k->core->device, k->home, (size_t)k->shape.count, (int64_t)(size - k->kept));
    account_add(k->core, (int64_t)(counted - k->counted));
    k->kept = size;
    k->counted = counted;
}

uint64_t key_kept_state(const struct key *k) { return k->counted - counts_for(&k->shape, 0); }

static void take_room(struct key *k, struct room *r)
{
    k->home = r->home;
    k->kept = r->size;
    k->counted = r->counted;
    r->size = r->counted = 0;
    if (k->home & HOME_ON_CPU) k->core->keys_on_cpu++;
}

/* All its memory, at its home. */
static enum status furnish(struct key *k, struct staging *value, struct error *e)
{
    enum status s = first_version(k, value, e);
    return s == STATUS_OK ? state_fit(k, store_updater(k->store), e) : s;
}

/* Nobody has seen it yet. Its bytes are still in the pinned memory where they arrived, and must be at their new place
 * before somebody reads them, as the CPU's memory is read without asking the device. */
static enum status furnish_on_cpu(struct key *k, struct staging *value, struct error *e)
{
    struct core *c = k->core;

    struct room r = {k->home, k->shape.count, k->kept, k->counted};

    core_quiet(c, k->queue_index);
    version_free_all(k);
    if (value->mem.size > 0) core_mem_free(c, &value->mem);
    core_room_move(c, &r);
    take_room(k, &r);
    enum status s = core_mem_new(c, (size_t)k->shape.size, key_place(k, k->shape.dtype), &value->mem, e);
    if (s == STATUS_OK) s = furnish(k, value, e);
    core_quiet(c, k->queue_index);
    return s;
}

static void tell_home(const struct key *k)
{
    char name[KEY_PRINT_SIZE];

    if (k->home & HOME_ON_CPU)
        log_info("store", "'%s': %s lies on the CPU: %s has no room for it", k->store->name,
                 key_name_print(&k->name, name), device_kind(k->core->device));
}

enum status key_new(struct store *store, const struct init_wanted *wanted, struct staging *value, struct key **out,
                    struct error *e)
{
    struct core *c = store->core;
    struct key *k = mem_zero(sizeof *k);
    unsigned queue_index = (unsigned)(c->next_key % CORE_QUEUES);
    enum status s;

    if (k == NULL) {
        s = error_set(e, REASON_NO_MEMORY, "no memory for a key");
        goto out;
    }
    k->store = store;
    k->core = c;
    c->key_count++;
    k->holds = 1;
    c->next_key++;
    k->name = wanted->name;
    k->name.text = bytes_of(NULL, wanted->name.text.size);
    k->shape = wanted->shape;
    k->job = store->job;
    k->queue_index = (uint8_t)queue_index;
    k->queue = c->queues[queue_index];
    list_init(&k->versions);
    list_init(&k->spares);
    list_init(&k->updates);
    list_init(&k->waiters);
    if (wanted->name.is_text) {
        k->name.text.at = mem_text(wanted->name.text.at, wanted->name.text.size);
        if (k->name.text.at == NULL) {
            s = error_set(e, REASON_NO_MEMORY, "no memory for a key's name");
            goto out;
        }
    }
    take_room(k, &value->room);
    uint64_t needs = key_needs(store, &wanted->name, &wanted->shape); /* the updater may be another than when it began */
    if (needs > k->counted) {
        s = account_check(c, needs - k->counted, key_needs_free(store, &k->shape, needs - counts_for(&k->shape, 0)),
                          "a new key", e);
        if (s != STATUS_OK) goto out;
    }
    s = furnish(k, value, e);
    if (value->pin != NULL && core_may_move(c, k->home, s, e)) s = furnish_on_cpu(k, value, e);
    if (s != STATUS_OK) goto out;
    tell_home(k);
    account_floor_comes(c, key_floor(k));
    *out = k;
    k = NULL; /* the store's now */
out:
    staging_free_after(value, queue_index);
    key_drop(k);
    return s;
}

struct mem_place key_place(const struct key *k, enum dtype t) { return mem_place_of(k->home, dtype_size(t)); }

uint64_t key_version(const struct key *k) { return k->current->number; }

uint64_t key_version_ahead(const struct key *k)
{
    uint64_t version = key_version(k) + k->busy + (k->rounds[0] != NULL) + (k->rounds[1] != NULL);

    LIST_EACH(struct update, u, node, &k->updates) version++;
    return version + 1;
}

/* ---- updates ---------------------------------------------------------------------------------------------------- */

static void update_next(struct key *k);

static void update_end(struct update *u, const struct error *e)
{
    struct key *k = u->key;

    k->busy = k->turning = false;
    if (u->sum.size > 0) core_mem_free(k->core, &u->sum);
    staging_free(u->last);
    u->last = NULL;
    updater_drop(u->updater);
    u->updater = NULL;
    u->done(u, e);
    waits_check(&k->waiters);
}

static void turn_ran(struct task *t, enum status s)
{
    struct update *u = CONTAINER_OF(t, struct update, task);
    struct key *k = key_hold(u->key);
    struct error e;

    if (s != STATUS_OK) core_why(k->core, "it was at work for a key", &e);
    update_end(u, s == STATUS_OK ? NULL : &e);
    update_next(k);
    key_drop(k);
}

static void update_ran(struct task *t, enum status s)
{
    struct update *u = CONTAINER_OF(t, struct update, task);
    struct key *k = key_hold(u->key);
    struct error e;

    if (s != STATUS_OK) {
        core_why(k->core, "it updated a key", &e);
    } else if (u->flags & WORK_OVERFLOW) {
        char shape[SHAPE_PRINT_SIZE], name[KEY_PRINT_SIZE];
        s = error_set(&e, REASON_SUM_OVERFLOW, "%s in store '%s': the result does not fit %s; the value is unchanged",
                      key_name_print(&k->name, name), k->store->name, shape_print(&k->shape, shape));
    }
    if (s == STATUS_OK) {
        if (u->kind != UPDATE_SET) state_stepped(k, u->product);
        k->core->counters.updates++;
        version_publish(k, u->to, key_version(k) + 1);
    } else {
        version_release(u->to);
    }
    watch_step_end(k, u, s == STATUS_OK);
    update_end(u, s == STATUS_OK ? NULL : &e);
    update_next(k);
    key_drop(k);
}

/* Nothing to compute: assignment of a sum that lies whole in one buffer of the value's type. That buffer becomes the
 * value, and the spare takes its place. Not where a master has to follow. */
static bool update_by_exchange(struct update *u, enum rule_id rule)
{
    struct key *k = u->key;
    struct dmem *from = u->sum.size > 0 ? &u->sum : u->last != NULL ? &u->last->mem : NULL;
    bool same_type = u->sum.size == 0 || dtype_sum(k->shape.dtype) == k->shape.dtype;

    if (k->state.places & 1u << STATE_MASTER) return false;
    if (rule != RULE_assign || from == NULL || !same_type || (u->sum.size > 0 && u->last != NULL)) return false;
    struct dmem mem = u->to->mem;
    u->to->mem = *from;
    u->to->host = u->to->mem.host;
    *from = mem;
    return true;
}

static enum status update_start(struct update *u, struct error *e)
{
    struct key *k = u->key;
    struct step s;
    bool fits = u->kind == UPDATE_SET || k->state.updater == u->updater;
    enum status st = fits ? STATUS_OK : state_fit(k, u->updater, e);

    if (st != STATUS_OK) return st;
    step_init(&s, k->shape.dtype, (size_t)k->shape.count, &u->flags);
    s.sum = u->sum;
    if (u->last != NULL) {
        st = staging_settle(u->last, k->queue, e);
        if (st != STATUS_OK) return st;
        s.last = u->last->mem;
    } else {
        s.last = u->lent;
    }
    st = version_acquire(k, &u->to, e);
    if (st != STATUS_OK) return st;
    /* A set is no step of the optimizer: its state stays, and only the master follows. */
    if (u->kind != UPDATE_SET) state_step(k, u, &s, &u->product);
    else s.rule = RULE_assign, s.master = state_at(&k->state, STATE_MASTER), s.scalars = (struct rule_scalars){0};
    watch_step_begin(k, u, &s);
    if (s.count == 0) return STATUS_OK;
    if (!update_by_exchange(u, s.rule)) {
        s.from = k->current->mem;
        s.to = u->to->mem;
        st = device_step(k->queue, &s);
    }
    if (st == STATUS_OK) {
        watch_step_given(k, u);
        return st;
    }
    version_release(u->to);
    u->to = NULL;
    *e = *device_error(k->core->device);
    return st;
}

static void update_next(struct key *k)
{
    struct error e;

    if (k->starting) return; /* the loop below goes on when work that ran at once comes back here */
    k->starting = true;
    while (!k->busy) {
        struct update *u = LIST_FIRST(struct update, node, &k->updates);
        if (u == NULL) break;
        list_remove(&u->node);
        k->busy = true;
        k->turning = u->kind == UPDATE_TURN;
        if ((k->turning ? u->turn(u, &e) : update_start(u, &e)) == STATUS_OK) {
            u->task.run = k->turning ? turn_ran : update_ran;
            core_after(k->core, k->queue_index, &u->task);
        } else {
            core_quiet(k->core, k->queue_index); /* its sum may still be being made */
            if (!k->turning) watch_step_end(k, u, false);
            update_end(u, &e);
        }
    }
    k->starting = false;
}

void key_update(struct update *u)
{
    struct key *k = key_hold(u->key);

    list_append(&k->updates, &u->node);
    if (!k->deleted && !list_empty(&k->store->swaps)) swaps_follow(k);
    update_next(k);
    key_drop(k);
}
