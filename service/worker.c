#include "service/worker.h"

#include "service/base/mem.h"
#include "service/share.h"
#include "service/store.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

struct worker *worker_hold(struct worker *w)
{
    w->holds++;
    return w;
}

void worker_drop(struct worker *w)
{
    if (w == NULL || --w->holds > 0) return;
    for (size_t i = 0; i < w->note_count; i++) mem_free(w->notes[i].text);
    for (size_t i = 0; i < w->progress_pages; i++) mem_free(w->progress[i]);
    mem_free(w->progress);
    mem_free(w->name);
    share_drop(w->share);
    mem_free(w);
}

/* Those of the present start of the worker. */
static struct progress *present(const struct worker *w, struct progress *p)
{
    if (p->start != w->start) {
        p->next = p->init_call = 0;
        p->start = w->start;
    }
    return p;
}

/* The place of the key; NULL: its page is not there. */
static struct progress *place(const struct worker *w, const struct key *k)
{
    size_t page = k->slot / PROGRESS_PAGE;

    if (page >= w->progress_pages || w->progress[page] == NULL) return NULL;
    return &w->progress[page][k->slot % PROGRESS_PAGE];
}

static struct progress *make_place(struct worker *w, const struct key *k, struct error *e)
{
    size_t page = k->slot / PROGRESS_PAGE;

    if (page >= w->progress_pages &&
        mem_grow((void **)&w->progress, &w->progress_pages, page + 1, sizeof *w->progress, e) != STATUS_OK)
        return NULL;
    if (w->progress[page] == NULL) w->progress[page] = mem_array(PROGRESS_PAGE, sizeof **w->progress);
    if (w->progress[page] == NULL) {
        error_set(e, REASON_NO_MEMORY, "no memory to know how far a worker is");
        return NULL;
    }
    return place(w, k);
}

struct progress *worker_progress(struct worker *w, const struct key *k, struct error *e)
{
    /* The slot of a deleted key may be another's by now, which must not lose its place to what is still under way. */
    if (k->deleted && worker_seen(w, k) == NULL) {
        error_set(e, REASON_KEY_DELETED, "the key was deleted");
        return NULL;
    }
    struct progress *p = place(w, k);
    if (p == NULL) p = make_place(w, k, e);
    if (p == NULL) return NULL;
    if (p->key != k->id) *p = (struct progress){.key = k->id, .start = w->start};
    return present(w, p);
}

const struct progress *worker_seen(const struct worker *w, const struct key *k)
{
    struct progress *p = place(w, k);

    return p != NULL && p->key == k->id ? present(w, p) : NULL;
}

void worker_begin_anew(struct worker *w) { w->start++; }

uint64_t worker_next_step(const struct worker *w, const struct key *k)
{
    const struct progress *p = worker_seen(w, k);

    if (p != NULL && p->next > 0) return p->next;
    /* Without rounds a step only counts this worker's pushes. With rounds a newcomer starts with the oldest open one
     * that needs it, else with the one after the newest: keys that are pushed at different rates have different
     * steps, so this is asked for each key. */
    uint64_t recorded = p != NULL ? p->recorded : 0;
    if (w->store->options.mode != MODE_SYNC) return recorded + 1;
    for (int i = 0; i < 2; i++) {
        const struct round *r = k->rounds[i];
        if (r != NULL && r->step > recorded && round_needs(r, w)) return r->step;
    }
    return (recorded > k->opened_step ? recorded : k->opened_step) + 1;
}

uint64_t worker_tell_step(struct worker *w, const struct key *k)
{
    uint64_t step = worker_next_step(w, k);
    struct progress *p = worker_progress(w, k, NULL);

    if (p != NULL) p->next = step;
    return step;
}

static uint64_t shift(uint64_t bits, uint64_t by) { return by < 64 ? bits << by : 0; }

void worker_recorded(struct progress *p, uint64_t step)
{
    p->pending = shift(p->pending, step - p->recorded) | 1;
    p->recorded = step;
    p->next = step + 1;
}

void worker_unrecorded(struct progress *p, const struct progress *before)
{
    uint64_t by = p->recorded - before->recorded;

    /* Others of its steps may have been decided meanwhile. */
    p->pending = by < 64 ? p->pending >> by : before->pending;
    p->recorded = before->recorded;
    p->next = before->next;
}

void worker_applied(struct worker *w, const struct key *k, uint64_t step, uint64_t version, const struct error *why)
{
    struct progress *p = worker_progress(w, k, NULL);

    if (why != NULL) worker_note(w, k->id, step, why);
    if (p == NULL) return;
    if (step > p->applied) {
        p->failed = shift(p->failed, step - p->applied);
        p->applied = step;
    }
    if (p->recorded - step < 64) p->pending &= ~((uint64_t)1 << (p->recorded - step));
    if (why == NULL) {
        p->applied_version = version;
    } else if (p->applied - step < 64) {
        p->failed |= (uint64_t)1 << (p->applied - step);
        p->failed_reason = why->reason;
    }
}

bool worker_failed(const struct progress *p, uint64_t step)
{
    return step <= p->applied && p->applied - step < 64 && (p->failed >> (p->applied - step) & 1);
}

bool worker_pending(const struct progress *p, uint64_t step)
{
    return step > p->applied || (p->recorded - step < 64 && (p->pending >> (p->recorded - step) & 1));
}

/* Notes of keys make room first: what they say in words the key's progress knows, too. */
static void forget_a_note(struct worker *w)
{
    size_t at = 0;

    while (at < NOTES_MAX && w->notes[at].key == 0) at++;
    if (at == NOTES_MAX) at = 0;
    mem_free(w->notes[at].text);
    memmove(&w->notes[at], &w->notes[at + 1], (NOTES_MAX - 1 - at) * sizeof w->notes[0]);
    w->note_count--;
    w->notes_lost++;
}

void worker_note(struct worker *w, uint64_t key, uint64_t number, const struct error *e)
{
    if (w->note_count == NOTES_MAX) forget_a_note(w);
    struct note n = {.key = key, .number = number, .status = e->status, .reason = e->reason};
    n.text = mem_text(e->text, strlen(e->text)); /* without memory the reason's title has to do */
    w->notes[w->note_count++] = n;
}

const struct note *worker_note_find(const struct worker *w, uint64_t key, uint64_t number)
{
    for (size_t i = 0; i < w->note_count; i++)
        if (w->notes[i].key == key && w->notes[i].number == number) return &w->notes[i];
    return NULL;
}

const char *worker_print(const struct worker *w, char out[WORKER_PRINT_SIZE])
{
    snprintf(out, WORKER_PRINT_SIZE, "worker '%s' (rank %u)", w->name, w->rank);
    return out;
}
