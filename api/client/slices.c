#include "api/client/slices.h"

#include "api/client/op.h"

#include <string.h>

enum { SLICE_KEYS = 512, SLICES_AT_ONCE = 8 };

/* ---- which calls ------------------------------------------------------------------------------------------------- */

static bool is_long(const struct tensors *t) { return t->count >= 2 * SLICE_KEYS; }

/* Each found once, with a value that fits. */
bool slices_can_run(struct paramd *kv, const struct tensors *t)
{
    struct engine *en = kv->engine;
    uint64_t stamp = ++en->stamp, size;
    struct error e;

    if (!is_long(t)) return false;
    for (size_t n = 0; n < t->count; n++) {
        struct key_name name;
        if (tensor_check(&en->gpu, &t->values[n], &t->keys[n], &size, &e) != STATUS_OK ||
            key_name_of(&t->keys[n], &name, &e) != STATUS_OK)
            return false;
        struct key *k = keys_find(en->keys, &name);
        if (k == NULL || k->stamp == stamp || !key_is_known(en, k) || tensor_fits(&t->values[n], k, &e) != STATUS_OK)
            return false;
        k->stamp = stamp;
    }
    return true;
}

static bool same_key(const struct paramd_key *a, const struct paramd_key *b)
{
    if (a->name == NULL || b->name == NULL) return a->name == b->name && a->number == b->number;
    size_t size = a->name_size > 0 ? a->name_size : strlen(a->name);
    return size == (b->name_size > 0 ? b->name_size : strlen(b->name)) && memcmp(a->name, b->name, size) == 0;
}

bool slices_match(const struct tensors *a, const struct tensors *b)
{
    if (a->count != b->count) return false;
    for (size_t n = 0; n < a->count && a->keys != b->keys; n++)
        if (!same_key(&a->keys[n], &b->keys[n])) return false;
    return true;
}

/* ---- one kind of work --------------------------------------------------------------------------------------------- */

static enum status begin_pull(struct engine *en, const struct tensors *t, struct op **out, struct error *e)
{
    return op_pull(en, t, NULL, out, e);
}

struct slices {
    struct paramd *kv;
    const struct tensors *t;         /* NULL: nothing to do */
    enum status (*begin)(struct engine *en, const struct tensors *t, struct op **out, struct error *e);
    size_t begun, over;              /* slices */
    struct op *ops[SLICES_AT_ONCE];  /* a ring */
    struct error failed;             /* status OK: none has */
};

static size_t count_of(const struct slices *s)
{
    return s->t != NULL ? (s->t->count + SLICE_KEYS - 1) / SLICE_KEYS : 0;
}

static void fail(struct slices *s, const struct error *e)
{
    if (s->failed.status == STATUS_OK) s->failed = *e;
}

/* Begins those up to `end` that there is room for. After a fault none. */
static void begin(struct slices *s, size_t end)
{
    while (s->begun < end && s->begun - s->over < SLICES_AT_ONCE && s->failed.status == STATUS_OK) {
        size_t first = s->begun * SLICE_KEYS, left = s->t->count - first;
        struct tensors slice = {left < SLICE_KEYS ? left : SLICE_KEYS, s->t->keys + first, s->t->values + first,
                                s->t->priority};
        struct error e;
        if (s->begin(s->kv->engine, &slice, &s->ops[s->begun % SLICES_AT_ONCE], &e) != STATUS_OK) {
            fail(s, &e);
            return;
        }
        s->begun++;
    }
}

/* Takes the result of the oldest one. false: there is none, or it is under way and nobody wants to wait. */
static bool take(struct slices *s, bool wait)
{
    struct op *oldest = s->ops[s->over % SLICES_AT_ONCE];

    if (s->begun == s->over) return false;
    if (wait) drive_until(s->kv, oldest, UINT64_MAX);
    if (!op_result(oldest)->finished) return false;
    if (op_result(oldest)->error.status != STATUS_OK) fail(s, &op_result(oldest)->error);
    op_release(oldest);
    s->over++;
    return true;
}

enum status slices_run(struct paramd *kv, const struct tensors *push, const struct tensors *pull, struct error *e)
{
    struct slices pushes = {.kv = kv, .t = push, .begin = op_push}, pulls = {.kv = kv, .t = pull, .begin = begin_pull};

    kv->sliced++;
    do {
        begin(&pushes, count_of(&pushes));
        while (take(&pulls, false)) continue;
        if (pull != NULL && pushes.failed.status == STATUS_OK)
            begin(&pulls, push != NULL ? pushes.over : count_of(&pulls));
    } while (take(&pushes, true) || take(&pulls, true));
    kv->sliced--;
    *e = pushes.failed.status != STATUS_OK ? pushes.failed : pulls.failed;
    return e->status;
}
