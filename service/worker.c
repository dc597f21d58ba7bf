#include "service/worker.h"

#include "service/base/mem.h"
#include "service/store.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { NOTES = sizeof((struct worker *)0)->notes / sizeof(struct note) };

struct worker *worker_hold(struct worker *w)
{
    w->holds++;
    return w;
}

void worker_drop(struct worker *w)
{
    if (w == NULL || --w->holds > 0) return;
    for (size_t i = 0; i < w->note_count; i++) mem_free(w->notes[i].text);
    mem_free(w->progress);
    mem_free(w->name);
    mem_free(w);
}

struct progress *worker_progress(struct worker *w, const struct key *k, struct error *e)
{
    enum status s = mem_grow((void **)&w->progress, &w->progress_capacity, (size_t)k->slot + 1, sizeof *w->progress, e);

    if (s != STATUS_OK) return NULL;
    struct progress *p = &w->progress[k->slot];
    if (p->key != k->id) *p = (struct progress){.key = k->id};
    return p;
}

const struct progress *worker_seen(const struct worker *w, const struct key *k)
{
    if (k->slot >= w->progress_capacity || w->progress[k->slot].key != k->id) return NULL;
    return &w->progress[k->slot];
}

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

void worker_note(struct worker *w, uint64_t key, uint64_t number, const struct error *e)
{
    if (w->note_count == NOTES) {
        mem_free(w->notes[0].text);
        memmove(&w->notes[0], &w->notes[1], (NOTES - 1) * sizeof w->notes[0]);
        w->note_count--;
        w->notes_lost++;
    }
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
