#include "service/state.h"

#include "gpu/rules.h"
#include "service/base/mem.h"
#include "service/key.h"
#include "service/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Memory on its way out: work that names it may be under way. */
struct leaving {
    struct task task;
    struct list_node node;                   /* core->leavings, while it has memory */
    struct core *core;
    unsigned queue_index;
    struct dmem mem[STATE_PIECES];
};

static void free_left(struct leaving *l)
{
    list_remove(&l->node);
    for (unsigned i = 0; i < STATE_PIECES; i++)
        if (l->mem[i].size > 0) core_mem_free(l->core, &l->mem[i]);
}

static void leave(struct task *t, enum status s)
{
    struct leaving *l = CONTAINER_OF(t, struct leaving, task);

    (void)s;
    free_left(l);
    mem_free(l);
}

void state_leavings_free(struct core *c)
{
    for (struct leaving *l; (l = LIST_FIRST(struct leaving, node, &c->leavings)) != NULL;) {
        core_quiet(c, l->queue_index);
        free_left(l);
    }
}

/* Takes *l, which may be NULL for lack of memory: then it waits. */
static void leave_behind(struct key *k, struct leaving *l, const struct dmem mem[STATE_PIECES])
{
    if (l == NULL) {
        core_quiet(k->core, k->queue_index);
        for (unsigned i = 0; i < STATE_PIECES; i++) {
            struct dmem m = mem[i];
            if (m.size > 0) core_mem_free(k->core, &m);
        }
        return;
    }
    l->core = k->core;
    l->queue_index = k->queue_index;
    list_append(&k->core->leavings, &l->node);
    memcpy(l->mem, mem, sizeof l->mem);
    l->task.run = leave;
    core_after(k->core, k->queue_index, &l->task);
}

void state_fini(struct key *k)
{
    for (int i = 0; i < __builtin_popcount(k->state.places); i++) core_mem_free(k->core, &k->state.pieces[i]);
    mem_free(k->state.pieces);
    k->state.pieces = NULL;
    k->state.places = 0;
    updater_drop(k->state.updater);
    k->state.updater = NULL;
}

/* ---- fitting an updater ----------------------------------------------------------------------------------------- */

static struct rule_key rule_key_of(const struct key *k, char room[KEY_NUMBER_SIZE])
{
    return (struct rule_key){key_name_bytes(&k->name, room), k->shape.ndim, k->shape.dims, k->shape.count};
}

static enum dtype real_type(const struct key *k) { return dtype_sum(k->shape.dtype); }

uint64_t state_needs(const struct updater *u, const struct key_name *name, const struct key_shape *shape)
{
    struct updater_use use;
    char room[KEY_NUMBER_SIZE];

    updater_use(u, &(struct rule_key){key_name_bytes(name, room), shape->ndim, shape->dims, shape->count}, shape->dtype,
                &use);
    return updater_state_size(&use, shape->count, shape->dtype);
}

bool state_is_whole(const struct updater *u, const struct key_shape *shape)
{
    struct updater_use use;

    updater_use(u, &(struct rule_key){{NULL, 0}, shape->ndim, shape->dims, shape->count}, shape->dtype, &use);
    return rule_is_whole(use.rule);
}

/* Memory that is spread over several devices has no sum over all elements. */
static enum status check_whole(const struct key *k, const struct updater *u, const struct updater_use *use,
                               struct error *e)
{
    if (!(k->home & HOME_IN_PARTS) || !rule_is_whole(use->rule)) return STATUS_OK;
    return error_set(e, REASON_UPDATER_UNFIT, "%s needs the value in one piece, and it lies in parts on several devices: "
                     "delete the key, set the updater and initialise the key again, or take an updater that goes by "
                     "elements", updater_type(u));
}

enum status state_fits(const struct key *k, const struct updater *u, struct error *e)
{
    char room[KEY_NUMBER_SIZE];
    struct rule_key key = rule_key_of(k, room);
    struct updater_use use;
    enum status s = updater_fits(u, key.name, k->shape.dtype, e);

    if (s != STATUS_OK || !(k->home & HOME_IN_PARTS)) return s;
    updater_use(u, &key, k->shape.dtype, &use);
    return check_whole(k, u, &use, e);
}

enum status state_takes_push(const struct key *k, struct error *e)
{
    char room[KEY_NUMBER_SIZE], name[KEY_PRINT_SIZE];
    const char *pattern = updater_frozen(store_updater(k->store), key_name_bytes(&k->name, room));

    if (pattern == NULL) return STATUS_OK;
    return error_set(e, REASON_KEY_FROZEN,
                     "%s is frozen by {\"match\": \"%.100s\", \"frozen\": true} in the updater of "
                     "store '%s': push the other keys only, set() its value, or set the updater "
                     "again without that override",
                     key_name_print(&k->name, name), pattern, k->store->name);
}

/* The state as it will be, with its pieces by place, and where each comes from. */
struct fitting {
    struct state state;
    struct dmem mem[STATE_PIECES];           /* size 0: none */
    struct slot_origin origins[STEP_SLOTS_MAX];
    bool fresh[STATE_PIECES];
};

static size_t piece_size(const struct key *k, const struct updater_use *use, unsigned i)
{
    size_t count = (size_t)k->shape.count, one = dtype_size(real_type(k));

    if (i == STATE_SCRATCH) return step_scratch_size(use->rule, count);
    if (i == STATE_MASTER) return use->has_master ? count * one : 0;
    return i < use_slots(use) ? use_slot_count(use, i, count) * one : 0;
}

static bool is_kept(const struct key *k, const struct fitting *f, unsigned i, unsigned *from)
{
    *from = i == STATE_MASTER ? i : i < STEP_SLOTS_MAX ? f->origins[i].slot : 0;
    return (i == STATE_MASTER || (i < STEP_SLOTS_MAX && f->origins[i].kind == ORIGIN_KEPT)) &&
           (k->state.places & 1u << *from);
}

static enum status pack(struct fitting *f, struct error *e)
{
    unsigned count = 0;

    f->state.pieces = NULL;
    f->state.places = 0;
    for (unsigned i = 0; i < STATE_PIECES; i++) f->state.places |= (uint32_t)(f->mem[i].size > 0) << i;
    if (f->state.places == 0) return STATUS_OK;
    f->state.pieces = mem_new((size_t)__builtin_popcount(f->state.places) * sizeof *f->state.pieces);
    if (f->state.pieces == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the state of a key");
    for (unsigned i = 0; i < STATE_PIECES; i++)
        if (f->mem[i].size > 0) f->state.pieces[count++] = f->mem[i];
    return STATUS_OK;
}

/* All memory first, so that what fails for lack of it has given the device no work. */
static enum status find_memory(struct key *k, struct fitting *f, struct error *e)
{
    enum status s = STATUS_OK;
    unsigned from;

    for (unsigned i = 0; i < STATE_PIECES && s == STATUS_OK; i++) {
        size_t size = piece_size(k, &f->state.use, i);
        if (size == 0) continue;
        if (is_kept(k, f, i, &from)) {
            f->mem[i] = state_at(&k->state, from);
            continue;
        }
        s = core_mem_new(k->core, size, key_place(k, real_type(k)), &f->mem[i], e);
        f->fresh[i] = s == STATUS_OK;
    }
    if (s == STATUS_OK) s = pack(f, e);
    for (unsigned i = 0; s != STATUS_OK && i < STATE_PIECES; i++)
        if (f->fresh[i]) core_mem_free(k->core, &f->mem[i]);
    return s;
}

/* The value as it is, in the type of sums. */
static enum status copy_value(struct key *k, struct dmem to)
{
    struct dmem master = state_at(&k->state, STATE_MASTER);
    size_t count = (size_t)k->shape.count;

    if (master.size > 0) return device_copy(k->queue, to, master, count * dtype_size(real_type(k)));
    return device_widen(k->queue, to, k->current->mem, k->shape.dtype, count);
}

static enum status convert(struct key *k, struct dmem to, const struct slot_origin *origin)
{
    struct step s = {.rule = origin->rule, .type = real_type(k), .count = (size_t)k->shape.count,
                     .sum = state_at(&k->state, origin->slot), .from = to, .to = to, .flags = &k->state.flags};

    s.scalars.v[SCALED_BY] = origin->by;
    return device_step(k->queue, &s);
}

static enum status fill(struct key *k, const struct fitting *f, unsigned i)
{
    struct dmem to = f->mem[i];

    if (i == STATE_SCRATCH) return STATUS_OK;
    if (i == STATE_MASTER || use_slot_from_value(&f->state.use, i)) return copy_value(k, to);
    if (f->origins[i].kind == ORIGIN_CONVERTED) return convert(k, to, &f->origins[i]);
    return device_zero(k->queue, to, piece_size(k, &f->state.use, i));
}

/* What there was and is no longer part of the state. */
static bool find_rest(const struct key *k, const struct fitting *f, struct dmem rest[STATE_PIECES])
{
    bool any = false;

    for (unsigned i = 0; i < STATE_PIECES; i++) {
        struct dmem m = state_at(&k->state, i);
        bool stays = m.size == 0;
        for (unsigned j = 0; j < STATE_PIECES; j++) stays |= f->mem[j].at == m.at;
        rest[i] = stays ? (struct dmem){0} : m;
        any |= !stays;
    }
    return any;
}

/* Answers whether the count of updates goes on. */
static bool fitting_begin(const struct key *k, const struct updater *u, struct fitting *f)
{
    const struct state *old = &k->state;
    char room[KEY_NUMBER_SIZE];
    struct rule_key key = rule_key_of(k, room);

    *f = (struct fitting){.state = *old};
    updater_use(u, &key, k->shape.dtype, &f->state.use);
    if (updater_origins(old->updater, &old->use, u, &f->state.use, old->updates - old->begun,
                        store_num_update(k->store), f->origins))
        return true;
    f->state.begun = old->updates;
    f->state.product = 1;
    return false;
}

void state_outlook(const struct key *k, const struct updater *u, struct state_outlook *out)
{
    struct fitting f;
    bool goes_on = fitting_begin(k, u, &f);

    *out = (struct state_outlook){.goes_on = goes_on, .use = f.state.use};
    memcpy(out->origins, f.origins, sizeof out->origins);
    for (unsigned i = 0; i < STATE_PIECES; i++) {
        size_t size = piece_size(k, &f.state.use, i);
        unsigned from;
        out->size_now += state_at(&k->state, i).size;
        out->size_then += size;
        out->size_fresh += is_kept(k, &f, i, &from) ? 0 : size;
    }
}

enum status state_fit(struct key *k, struct updater *u, struct error *e)
{
    struct leaving *l = NULL;
    struct dmem rest[STATE_PIECES];
    struct fitting f;
    uint64_t size = 0;
    char room[KEY_NUMBER_SIZE];
    enum status s = updater_fits(u, key_name_bytes(&k->name, room), k->shape.dtype, e);

    if (s != STATUS_OK || k->state.updater == u) return s;
    fitting_begin(k, u, &f);
    s = check_whole(k, u, &f.state.use, e);
    if (s == STATUS_OK) s = find_memory(k, &f, e);
    if (s != STATUS_OK) return s;
    for (unsigned i = 0; i < STATE_PIECES && s == STATUS_OK && k->shape.count > 0; i++)
        if (f.fresh[i]) s = fill(k, &f, i);
    if (s != STATUS_OK) {
        *e = *device_error(k->core->device);
        for (unsigned i = 0; i < STATE_PIECES; i++) rest[i] = f.fresh[i] ? f.mem[i] : (struct dmem){0};
        leave_behind(k, NULL, rest);
        mem_free(f.state.pieces);
        return s;
    }
    if (find_rest(k, &f, rest)) {
        l = mem_zero(sizeof *l);
        leave_behind(k, l, rest);
    }
    updater_drop(k->state.updater);
    mem_free(k->state.pieces);
    k->state = f.state;
    k->state.updater = updater_hold(u);
    for (unsigned i = 0; i < STATE_PIECES; i++) size += f.mem[i].size;
    /* While it is behind the store it is on its way to an updater for which room is kept already. */
    bool behind = !k->deleted && u != store_updater(k->store);
    key_keep(k, behind && key_kept_state(k) > size ? key_kept_state(k) : size);
    return STATUS_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

void state_step(const struct key *k, const struct update *u, struct step *s, double *product)
{
    const struct state *x = &k->state;
    uint64_t updates = x->updates + 1, num_update = store_num_update(k->store);
    struct update_moment m = {.t = updates - x->begun, .contributors = u->contributors, .product = x->product};

    m.num_workers = store_num_workers(k->store);
    m.staleness = u->based_on > 0 && u->based_on < key_version(k) ? key_version(k) - u->based_on : 0;
    m.num_update = updates > num_update ? updates : num_update;
    updater_step(x->updater, &x->use, updates, &m, s);
    *product = m.product;
    for (unsigned i = 0; i < step_slots(s); i++) s->slots[i] = state_at(x, i);
    s->master = state_at(x, STATE_MASTER);
    s->scratch = state_at(x, STATE_SCRATCH);
}

void state_stepped(struct key *k, double product)
{
    k->state.updates++;
    k->state.product = product;
    /* A deleted key's last steps end after the store has been reset. */
    if (!k->deleted && k->state.updates > k->store->num_update) k->store->num_update = k->state.updates;
}

/* ---- seen from outside ------------------------------------------------------------------------------------------ */

static unsigned pieces_of(const struct key *k, const struct updater_use *use, struct state_piece out[STATE_PIECES])
{
    size_t one = dtype_size(real_type(k));
    unsigned n = 0;

    for (unsigned i = 0; i < STATE_SCRATCH; i++) {
        uint64_t size = piece_size(k, use, i);
        if (size == 0) continue;
        out[n++] = (struct state_piece){.name = i == STATE_MASTER ? "master" : use_slot_name(use, i), .place = i,
                                        .dtype = real_type(k), .count = size / one, .size = size};
    }
    return n;
}

unsigned state_pieces(const struct key *k, struct state_piece out[STATE_PIECES])
{
    return k->state.updater != NULL ? pieces_of(k, &k->state.use, out) : 0;
}

unsigned state_expects(const struct key *k, const struct updater *u, struct state_piece out[STATE_PIECES])
{
    struct updater_use use;
    char room[KEY_NUMBER_SIZE];
    struct rule_key key = rule_key_of(k, room);

    updater_use(u, &key, k->shape.dtype, &use);
    return pieces_of(k, &use, out);
}

static enum status lined_up(struct key *k, enum status s, struct task *t, struct error *e)
{
    if (s != STATUS_OK) *e = *device_error(k->core->device);
    else if (t != NULL) core_after(k->core, k->queue_index, t);
    return s;
}

enum status state_read(struct key *k, const struct state_piece *piece, void *to, struct task *t, struct error *e)
{
    return lined_up(k, device_download(k->queue, to, state_at(&k->state, piece->place), 0, (size_t)piece->size), t, e);
}

enum status state_write(struct key *k, const struct state_piece *piece, const void *from, struct task *t,
                        struct error *e)
{
    return lined_up(k, device_upload(k->queue, state_at(&k->state, piece->place), 0, from, (size_t)piece->size), t, e);
}

/* So many that none overflows, and that a double and a reader of JSON hold each. */
#define UPDATES_MAX ((uint64_t)1 << 53)

enum status state_check_counters(uint64_t updates, uint64_t since_begun, double product, struct error *e)
{
    if (since_begun <= updates && updates <= UPDATES_MAX && product >= 0 && product <= 1) return STATUS_OK;
    return error_set(e, REASON_BAD_ARGUMENT, "counters of a key: %" PRIu64 " updates, %" PRIu64 " of them since its "
                     "slots began, product %g", updates, since_begun, product);
}

enum status state_restore(struct key *k, uint64_t updates, uint64_t since_begun, double product, struct error *e)
{
    struct store *s = k->store;
    enum status st = state_check_counters(updates, since_begun, product, e);

    if (st != STATUS_OK) return st;
    if (k->state.updates >= s->num_update && updates < k->state.updates) s->num_update_lowered = true;
    k->state.updates = updates;
    k->state.begun = updates - since_begun;
    k->state.product = product;
    if (updates > s->num_update) s->num_update = updates;
    return STATUS_OK;
}
