#include "service/watch.h"

#include "service/base/mem.h"
#include "service/key.h"
#include "service/store.h"

#include <math.h>

double stats_norm(const struct stats *s) { return sqrt(s->sum_squares); }

static uint64_t cost_of(const struct key *k) { return k->shape.count > WATCH_SMALL ? k->shape.count : WATCH_SMALL; }
static bool is_small(const struct key *k) { return k->shape.count <= WATCH_SMALL; }
static uint64_t ms_of(uint64_t elements) { return elements / WATCH_RATE * 1000 + elements % WATCH_RATE * 1000 / WATCH_RATE; }

/* From one measurement of a key to its next. */
static uint64_t turn_ms(const struct core *c) { return ms_of(c->watch_cost); }

/* ---- watches ---------------------------------------------------------------------------------------------------- */

static bool is_busy(const struct watch *w) { return w->value.version != NULL || w->step.busy; }

void watch_free(struct key *k)
{
    struct watch *w = k->watch;

    if (w == NULL) return;
    list_remove(&w->node);
    k->core->watch_cost -= cost_of(k);
    k->core->watch_count--;
    k->watch = NULL;
    mem_free(w);
}

/* The results of a busy one are still being written: it goes at a later time. */
static bool drop_first_idle(struct core *c)
{
    LIST_EACH(struct watch, w, node, &c->watches) {
        if (is_busy(w)) continue;
        watch_free(w->key);
        return true;
    }
    return false;
}

uint64_t watches_tick(struct core *c)
{
    LIST_EACH(struct watch, w, node, &c->watches) {
        if (c->now_ms < w->looked_ms + WATCH_MS) return w->looked_ms + WATCH_MS;
        if (!is_busy(w)) watch_free(w->key);
    }
    return UINT64_MAX;
}

static enum status watch_new(struct key *k, struct error *e)
{
    struct core *c = k->core;
    struct watch *w;

    if (c->watch_count >= WATCHES_MAX && !drop_first_idle(c))
        return error_retry(e, REASON_LIMIT, RETRY_MS, "%d keys are being measured already", WATCHES_MAX);
    w = mem_zero(sizeof *w);
    if (w == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the statistics of a key");
    w->key = k;
    k->watch = w;
    list_append(&c->watches, &w->node);
    c->watch_count++;
    c->watch_cost += cost_of(k);
    w->value_due_ms = w->step_due_ms =
        c->now_ms + (c->watch_cost > WATCH_AT_ONCE ? ms_of(c->watch_cost - WATCH_AT_ONCE) : 0);
    return STATUS_OK;
}

const struct watch_results *watch_results(const struct key *k) { return k->watch != NULL ? &k->watch->known : NULL; }

int64_t watch_behind(const struct key *k)
{
    const struct store *s = k->store;
    uint64_t version = key_version(k);
    int64_t most = -1;

    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        const struct progress *p = w != NULL && w->state == WORKER_MEMBER ? worker_seen(w, k) : NULL;
        if (p == NULL || p->pulled == 0 || p->pulled > version) continue;
        if ((int64_t)(version - p->pulled) > most) most = (int64_t)(version - p->pulled);
    }
    return most;
}

/* ---- the value -------------------------------------------------------------------------------------------------- */

static void value_measured(struct task *t, enum status s)
{
    struct watch_value *v = CONTAINER_OF(t, struct watch_value, task);
    struct version *version = v->version;
    struct watch_results *known = &CONTAINER_OF(v, struct watch, value)->known;

    if (s == STATUS_OK && version->number > known->value_version) {
        known->value = v->stats;
        known->value_version = version->number;
    }
    v->version = NULL;
    version_drop(version); /* and the key perhaps, with the watch */
}

/* The version is held: an update that is under way already may end its time before it has been measured. */
static void measure_value(struct key *k)
{
    struct watch_value *v = &k->watch->value;
    struct version *current = k->current;

    k->watch->value_due_ms = k->core->now_ms + turn_ms(k->core);
    if (device_stats(k->queue, current->mem, (struct dmem){0}, k->shape.dtype, (size_t)k->shape.count, &v->stats) !=
        STATUS_OK)
        return; /* the device is lost, or short of memory: not known */
    v->version = version_hold(current);
    v->task.run = value_measured;
    core_after(k->core, k->queue_index, &v->task);
}

static bool value_wanted(const struct key *k, bool surely)
{
    const struct watch *w = k->watch;

    if (w->value.version != NULL || w->known.value_version == key_version(k)) return false;
    return is_small(k) || (surely && w->known.value_version == 0) || k->core->now_ms >= w->value_due_ms;
}

enum status watch_look(struct key *k, bool surely, bool *pending, struct error *e)
{
    enum status s = k->watch == NULL ? watch_new(k, e) : STATUS_OK;

    *pending = false;
    if (s != STATUS_OK) return s;
    k->watch->looked_ms = k->core->now_ms;
    list_remove(&k->watch->node);
    list_append(&k->core->watches, &k->watch->node);
    if (value_wanted(k, surely)) measure_value(k);
    *pending = is_busy(k->watch);
    return STATUS_OK;
}

/* ---- a step ----------------------------------------------------------------------------------------------------- */

/* The sum lies nowhere as a whole while its last part is to be added in the step's own pass. */
static bool fold_last(struct key *k, struct step *s)
{
    if (s->sum.size == 0 || s->last.size == 0) return true;
    if (device_add(k->queue, s->sum, s->last, s->type, s->count, s->flags) != STATUS_OK) return false;
    s->last = (struct dmem){0};
    return true;
}

void watch_step_begin(struct key *k, const struct update *u, struct step *s)
{
    struct watch *w = k->watch;

    if (w == NULL || w->step.busy || u->kind == UPDATE_SET || s->count == 0) return;
    if (k->core->now_ms < w->step_due_ms || !fold_last(k, s)) return;
    struct dmem gradient = s->sum.size > 0 ? s->sum : s->last;
    enum dtype type = s->sum.size > 0 ? dtype_sum(s->type) : s->type;
    w->step_due_ms = w->value_due_ms = k->core->now_ms + turn_ms(k->core);
    w->step.staleness = u->based_on > 0 && u->based_on <= key_version(k) ? (int64_t)(key_version(k) - u->based_on) : -1;
    w->step.busy = device_stats(k->queue, gradient, (struct dmem){0}, type, s->count, &w->step.gradient) == STATUS_OK;
    w->step.whole = false;
}

void watch_step_given(struct key *k, const struct update *u)
{
    struct watch *w = k->watch;
    size_t count = (size_t)k->shape.count;

    if (w == NULL || !w->step.busy) return;
    w->step.whole =
        device_stats(k->queue, u->to->mem, k->current->mem, k->shape.dtype, count, &w->step.update) == STATUS_OK &&
        device_stats(k->queue, u->to->mem, (struct dmem){0}, k->shape.dtype, count, &w->step.value) == STATUS_OK;
}

void watch_step_end(struct key *k, const struct update *u, bool good)
{
    struct watch *w = k->watch;

    if (w == NULL || !w->step.busy) return;
    w->step.busy = false;
    if (!good || !w->step.whole) return;
    double value = stats_norm(&w->step.value), update = stats_norm(&w->step.update);
    struct watch_results *known = &w->known;
    known->step_version = known->value_version = key_version(k);
    known->gradient = w->step.gradient;
    known->update = w->step.update;
    known->value = w->step.value;
    known->ratio = value > 0 && isfinite(value) && isfinite(update) ? update / value : NAN;
    known->contributors = u->contributors;
    known->staleness = w->step.staleness;
}
