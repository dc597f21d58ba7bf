#include "service/state_copy.h"

#include "api/limits.h"
#include "service/base/mem.h"
#include "service/share.h"
#include "service/staging.h"

enum status state_copy_new(struct core *c, struct share *u, uint64_t key, uint64_t size, struct state_copy **out,
                           struct error *e)
{
    struct state_copy *s = mem_zero(sizeof *s);
    void *bytes = NULL;
    enum status st = s != NULL ? staging_reserve(c, u, size, e) : error_set(e, REASON_NO_MEMORY, "no memory for a copy");

    if (st != STATUS_OK) {
        mem_free(s);
        return st;
    }
    if (size > 0) st = device_pin_new(c->device, (size_t)size, &bytes, e);
    if (st != STATUS_OK) {
        staging_return(c, u, size);
        mem_free(s);
        return st;
    }
    *s = (struct state_copy){.core = c, .share = share_hold(u), .holds = 1, .number = c->next_copy++, .key = key,
                             .bytes = bytes, .size = size, .left = size, .touched_ms = c->now_ms};
    *out = s;
    return STATUS_OK;
}

struct state_copy *state_copy_hold(struct state_copy *s)
{
    s->holds++;
    return s;
}

void state_copy_drop(struct state_copy *s)
{
    if (s == NULL || --s->holds > 0) return;
    staging_return(s->core, s->share, s->size);
    if (s->bytes != NULL) device_pin_free(s->core->device, s->bytes);
    share_drop(s->share);
    mem_free(s);
}

void state_copies_init(struct state_copies *all)
{
    list_init(&all->list);
    all->count = 0;
}

static void let_go(struct state_copies *all, struct state_copy *s)
{
    list_remove(&s->node);
    all->count--;
    state_copy_drop(s);
}

void state_copies_fini(struct state_copies *all)
{
    for (struct state_copy *s; (s = LIST_FIRST(struct state_copy, node, &all->list)) != NULL;) let_go(all, s);
}

void state_copies_sent(struct state_copies *all, struct state_copy *s, uint64_t sent)
{
    s->left -= sent < s->left ? sent : s->left;
    s->touched_ms = s->core->now_ms;
    state_copy_hold(s); /* the list's; it goes to its end */
    if (list_linked(&s->node)) let_go(all, s);
    if (s->left == 0) {
        state_copy_drop(s);
        return;
    }
    if (all->count == STATE_COPIES_MAX) let_go(all, LIST_FIRST(struct state_copy, node, &all->list));
    list_append(&all->list, &s->node);
    all->count++;
}

struct state_copy *state_copies_find(const struct state_copies *all, uint64_t number, uint64_t key)
{
    LIST_EACH(struct state_copy, s, node, &all->list)
        if (s->number == number && s->key == key) return s;
    return NULL;
}

void state_copies_expire(struct state_copies *all, uint64_t now_ms)
{
    for (struct state_copy *s; (s = LIST_FIRST(struct state_copy, node, &all->list)) != NULL;) {
        if (now_ms - s->touched_ms < PROGRESS_MS) return;
        let_go(all, s);
    }
}
