/* KeyStats: statistics of one key, or the norms of many. What is due is measured on the device first (watch.h); the
 * request is kept until that is done, and then answered with what is known. */
#include "service/op.h"

#include "service/base/mem.h"
#include "service/watch.h"

#include <math.h>

struct look {
    struct request *request;
    bool one;
    unsigned pending;                        /* queues, and the one who gives to them */
    struct turn {
        struct task task;
        struct look *look;
    } turns[CORE_QUEUES];
    size_t count;
    struct key *keys[];                      /* held; NULL: unknown */
};

/* ---- what is known, as JSON; what is no number is null ---------------------------------------------------------- */

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *norm(uint64_t version, const struct stats *s) { return version > 0 ? number(stats_norm(s)) : json_null(); }

static json_t *ratio(const struct watch_results *x) { return x->step_version > 0 ? number(x->ratio) : json_null(); }

static json_t *whole_or_null(int64_t n) { return n >= 0 ? json_integer((json_int_t)n) : json_null(); }

static json_t *stats_json(uint64_t version, const struct stats *s)
{
    uint64_t finite = s->count - s->nans - s->infinities;
    json_t *bins;

    if (version == 0) return json_null();
    bins = json_array();
    for (int i = 0; i < STATS_BINS; i++) json_array_append_new(bins, json_integer((json_int_t)s->bins[i]));
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:{s:i,s:o}}", "version", (json_int_t)version,
                     "count", (json_int_t)s->count, "nans", (json_int_t)s->nans,
                     "infinities", (json_int_t)s->infinities, "zeros", (json_int_t)s->zeros,
                     "norm", number(stats_norm(s)), "mean", number(finite > 0 ? s->sum / (double)finite : NAN),
                     "min", number(s->min), "max", number(s->max),
                     "histogram", "least_exponent", (int)STATS_EXPONENT_MIN, "counts", bins);
}

static json_t *key_stats_json(const struct key *k)
{
    static const struct watch_results nothing;
    const struct watch_results *x = watch_results(k) != NULL ? watch_results(k) : &nothing;

    return json_pack("{s:o,s:s,s:I,s:s,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "key", key_name_json(&k->name),
                     "key_type", k->name.is_text ? "str" : "int", "id", (json_int_t)k->id,
                     "dtype", dtype_numpy(k->shape.dtype), "version", (json_int_t)key_version(k),
                     "value", stats_json(x->value_version, &x->value),
                     "gradient", stats_json(x->step_version, &x->gradient),
                     "update", stats_json(x->step_version, &x->update), "update_ratio", ratio(x),
                     "contributors", x->step_version > 0 ? json_integer(x->contributors) : json_null(),
                     "staleness", whole_or_null(x->step_version > 0 ? x->staleness : -1),
                     "behind", whole_or_null(watch_behind(k)));
}

static json_t *key_norms_json(const struct key *k)
{
    static const struct watch_results nothing;
    const struct watch_results *x = watch_results(k) != NULL ? watch_results(k) : &nothing;

    return json_pack("{s:o,s:I,s:o,s:o,s:o,s:o}", "key", key_name_json(&k->name),
                     "version", (json_int_t)key_version(k), "norm", norm(x->value_version, &x->value),
                     "grad_norm", norm(x->step_version, &x->gradient), "update_ratio", ratio(x),
                     "staleness", whole_or_null(watch_behind(k)));
}

static json_t *norms_json(const struct look *l)
{
    json_t *items = json_array();

    for (size_t i = 0; i < l->count && items != NULL; i++) {
        const struct key *k = l->keys[i];
        if (json_array_append_new(items, k != NULL && !k->deleted ? key_norms_json(k) : json_null()) == 0) continue;
        json_decref(items); /* a list with a gap would be taken for the whole */
        items = NULL;
    }
    return json_pack("{s:o}", "items", items);
}

/* ---- looking ---------------------------------------------------------------------------------------------------- */

static void look_free(struct look *l)
{
    if (l == NULL) return;
    for (size_t i = 0; i < l->count; i++) key_drop(l->keys[i]);
    request_free(l->request);
    mem_free(l);
}

static void pass(struct look *l)
{
    char name[KEY_PRINT_SIZE];
    struct error e;

    if (--l->pending > 0) return;
    if (l->one && l->keys[0]->deleted) {
        error_set(&e, REASON_KEY_DELETED, "%s was deleted", key_name_print(&l->keys[0]->name, name));
        answer_error(l->request, &e);
    } else {
        answer_json(l->request, l->one ? key_stats_json(l->keys[0]) : norms_json(l));
    }
    look_free(l);
}

/* On a lost device nothing more is known than before; the answer says so by its nulls. */
static void turn_came(struct task *t, enum status s)
{
    (void)s;
    pass(CONTAINER_OF(t, struct turn, task)->look);
}

static enum status look_at_all(struct look *l, bool waits[CORE_QUEUES], struct error *e)
{
    enum status st = STATUS_OK;

    for (size_t i = 0; i < l->count && st == STATUS_OK; i++) {
        bool pending = false;
        if (l->keys[i] == NULL) continue;
        st = watch_look(l->keys[i], l->one, &pending, e);
        if (pending) waits[l->keys[i]->queue_index] = true;
        /* Of many, what has no room is not known. */
        if (!l->one && st != STATUS_OK) st = STATUS_OK;
    }
    return st;
}

static struct look *look_new(const struct request *r, size_t count)
{
    struct look *l = mem_zero(sizeof *l + count * sizeof(struct key *));

    if (l == NULL) return NULL;
    l->request = request_keep(r);
    if (l->request != NULL) return l;
    mem_free(l);
    return NULL;
}

static enum status find_keys(struct look *l, struct store *s, json_t *names, struct error *e)
{
    json_t *v;
    size_t i;

    json_array_foreach(names, i, v) {
        struct key_name name;
        enum status st = key_name_from_json(v, &name, e);
        if (st == STATUS_OK) st = store_key_check(s, &name, e);
        if (st != STATUS_OK) return st;
        struct key *k = store_key_find(s, &name);
        if (k == NULL && l->one) return store_no_key(s, &name, e);
        l->keys[l->count++] = k != NULL ? key_hold(k) : NULL;
    }
    return STATUS_OK;
}

void key_stats_look(struct request *r, struct store *s, json_t *names, bool one)
{
    struct look *l = look_new(r, json_array_size(names));
    bool waits[CORE_QUEUES] = {false};
    struct error e;
    enum status st = l != NULL ? STATUS_OK : error_set(&e, REASON_NO_MEMORY, "no memory for statistics");

    if (l != NULL) l->one = one;
    if (st == STATUS_OK) st = find_keys(l, s, names, &e);
    if (st == STATUS_OK) st = look_at_all(l, waits, &e);
    if (st != STATUS_OK) {
        look_free(l);
        answer_error(r, &e);
        return;
    }
    l->pending = 1;
    for (unsigned i = 0; i < CORE_QUEUES; i++) {
        if (!waits[i]) continue;
        l->turns[i] = (struct turn){.task.run = turn_came, .look = l};
        l->pending++;
        core_after(&r->server->core, i, &l->turns[i].task);
    }
    pass(l);
}
