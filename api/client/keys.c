#include "api/client/keys.h"

#include "api/client/op.h"
#include "service/base/mem.h"

#include <stdio.h>
#include <string.h>

struct keys {
    struct map *by_name, *by_number;
    struct key *last;            /* looked up */
    uint64_t freed;
};

enum status keys_new(const uint8_t seed[16], struct keys **out, struct error *e)
{
    struct keys *t = mem_zero(sizeof *t);

    if (t != NULL) t->by_name = map_new(seed);
    if (t != NULL) t->by_number = map_new(seed);
    if (t == NULL || t->by_name == NULL || t->by_number == NULL) {
        keys_free(t);
        return error_set(e, REASON_NO_MEMORY, "no memory for a table of keys");
    }
    *out = t;
    return STATUS_OK;
}

void keys_free(struct keys *t)
{
    size_t at = 0;

    if (t == NULL) return;
    for (struct key *k; t->by_name != NULL && t->by_number != NULL && (k = keys_next(t, &at)) != NULL;) mem_free(k);
    map_free(t->by_name);
    map_free(t->by_number);
    mem_free(t);
}

enum status key_name_of(const struct paramd_key *k, struct key_name *out, struct error *e)
{
    *out = (struct key_name){KEY_INT, k->number, {NULL, 0}};
    if (k->name == NULL) return STATUS_OK;
    out->type = KEY_STR;
    out->number = 0;
    out->text = bytes_of(k->name, k->name_size > 0 ? k->name_size : strlen(k->name));
    if (out->text.size == 0 || out->text.size > KEY_NAME_SIZE_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "a key has %zu bytes: it must have 1 to %d", out->text.size,
                         KEY_NAME_SIZE_MAX);
    if (!bytes_is_utf8(out->text))
        return error_set(e, REASON_BAD_ARGUMENT, "a key must be UTF-8 without NUL");
    return STATUS_OK;
}

void key_name_text(const struct key_name *n, char *to, size_t size)
{
    if (n->type == KEY_INT) snprintf(to, size, "%lld", (long long)n->number);
    else snprintf(to, size, "\"%.*s\"", (int)(n->text.size < 60 ? n->text.size : 60), (const char *)n->text.at);
}

int key_name_compare(const struct key_name *a, const struct key_name *b)
{
    if (a->type != b->type) return a->type < b->type ? -1 : 1;
    if (a->type == KEY_STR) return bytes_compare(a->text, b->text);
    return a->number < b->number ? -1 : a->number > b->number;
}

static struct key *key_new(const struct key_name *n)
{
    struct key *k = mem_zero(sizeof *k + n->text.size);

    if (k == NULL) return NULL;
    k->name = *n;
    if (n->type == KEY_STR) {
        memcpy(k + 1, n->text.at, n->text.size);
        k->name.text.at = k + 1;
    }
    list_init(&k->turns);
    list_init(&k->quiet);
    return k;
}

static struct key *guess(const struct keys *t, const struct key_name *n)
{
    struct key *k = t->last != NULL && t->last->after_freed == t->freed ? t->last->after : NULL;

    return k != NULL && key_name_compare(&k->name, n) == 0 ? k : NULL;
}

/* With thousands of keys the table is in no cache, and the key itself is read anyway. */
struct key *keys_find(struct keys *t, const struct key_name *n)
{
    struct key *k = guess(t, n);

    if (k == NULL) k = n->type == KEY_STR ? map_find(t->by_name, n->text) : map_find_u64(t->by_number, (uint64_t)n->number);
    if (k != NULL && t->last != NULL) {
        t->last->after = k;
        t->last->after_freed = t->freed;
    }
    if (k == NULL) return NULL;
    t->last = k;
    __builtin_prefetch(k->after);
    return k;
}

enum status keys_hold(struct keys *t, const struct key_name *n, struct key **out, struct error *e)
{
    struct key *k = keys_find(t, n);

    if (k == NULL) {
        k = key_new(n);
        if (k == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a key");
        enum status s = n->type == KEY_STR ? map_put(t->by_name, n->text, k, e)
                                           : map_put_u64(t->by_number, (uint64_t)n->number, k, e);
        if (s != STATUS_OK) {
            mem_free(k);
            return s;
        }
    }
    k->uses++;
    *out = k;
    return STATUS_OK;
}

void keys_release(struct keys *t, struct key *k)
{
    if (--k->uses > 0 || k->id != 0) return;
    if (k->name.type == KEY_STR) map_remove(t->by_name, k->name.text);
    else map_remove_u64(t->by_number, (uint64_t)k->name.number);
    mem_free(k);
    t->last = NULL;
    t->freed++;
}

/* The places of one map come behind those of the other. */
struct key *keys_next(const struct keys *t, size_t *at)
{
    const size_t names = SIZE_MAX / 2;
    struct key *k = *at < names ? map_next(t->by_number, at) : NULL;

    if (k != NULL) return k;
    size_t place = *at < names ? 0 : *at - names;
    k = map_next(t->by_name, &place);
    *at = names + place;
    return k;
}

void key_learn(struct key *k, const struct key_facts *f, uint64_t joining)
{
    bool same = k->id == f->id, before = same && k->known == joining;
    uint64_t count;

    k->id = f->id;
    k->dtype = f->dtype;
    k->ndim = f->ndim;
    for (unsigned i = 0; i < f->ndim; i++) k->shape[i] = f->shape[i];
    if (!wire_shape_size(k->shape, k->ndim, dtype_size(k->dtype), &count, &k->size)) k->size = 0;
    k->next_step = f->next_step;
    /* Within one joining the steps up to next_step are ours, and may include one whose answer was lost: its end is
     * still to be asked for. A new joining starts at a step of the store's choice, which says nothing of what was recorded
     * before; the end of that is still to be asked for, too. */
    k->told = f->tells_recorded ? f->recorded : 0;
    if (f->tells_recorded) k->recorded = f->recorded;
    else if (before || !same) k->recorded = f->next_step - 1;
    if (!same || k->applied > k->recorded) k->applied = k->recorded;
    k->known = joining;
    k->uncertain = false;
}

bool key_turn_queue(struct key *k, struct turn *t)
{
    bool first = list_empty(&k->turns);

    list_append(&k->turns, &t->node);
    k->begun++;
    return first;
}

bool key_quiet_wait(struct key *k, struct quiet *q)
{
    if (list_empty(&k->turns)) return false;
    q->until = k->begun;
    list_append(&k->quiet, &q->node);
    return true;
}

void key_turn_end(struct key *k, struct turn *t)
{
    bool had = LIST_FIRST(struct turn, node, &k->turns) == t;

    list_remove(&t->node);
    k->ended++;
    struct turn *next = LIST_FIRST(struct turn, node, &k->turns);
    if (had && next != NULL) next->have(next);
    LIST_EACH(struct quiet, q, node, &k->quiet) {
        if (k->ended < q->until && next != NULL) continue;
        list_remove(&q->node);
        op_quiet(q->op);
    }
}
