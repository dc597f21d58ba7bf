#include "service/version.h"

#include "service/account.h"
#include "service/base/mem.h"
#include "service/key.h"
#include "service/store.h"

#include <assert.h>

struct version *version_blank(struct key *k)
{
    struct version *v = NULL;

    for (unsigned i = 0; i < KEY_VERSIONS && v == NULL; i++) {
        if (k->own_taken >> i & 1) continue;
        k->own_taken |= (uint8_t)(1u << i);
        v = &k->own[i];
        *v = (struct version){.key = k};
    }
    if (v != NULL) return v;
    v = mem_zero(sizeof *v);
    if (v != NULL) v->key = k;
    return v;
}

void version_forget(struct version *v)
{
    if (v == NULL) return;
    struct key *k = v->key;
    if (v < k->own || v >= k->own + KEY_VERSIONS) mem_free(v);
    else k->own_taken &= (uint8_t)~(1u << (v - k->own));
}

static void free_buffer(struct version *v)
{
    struct core *c = v->key->core;

    core_mem_free(c, &v->mem);
    if (v->pin != NULL) device_pin_free(c->device, v->pin);
    v->pin = NULL;
    v->host = NULL;
}

static void retire(struct version *v)
{
    struct key *k = v->key;

    list_remove(&v->node);
    if (list_empty(&k->spares) && !k->deleted) {
        /* The copy for readers is one of the old bytes. */
        v->host = v->mem.host;
        list_append(&k->spares, &v->node);
        return;
    }
    free_buffer(v);
    if (k->buffers-- > KEY_VERSIONS) account_add(k->core, -(int64_t)k->shape.size);
    version_forget(v);
}

static enum status version_new(struct key *k, struct version **out, struct error *e)
{
    struct version *v = version_blank(k);
    enum status s;

    if (v == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a version");
    s = core_mem_new(k->core, (size_t)k->shape.size, key_place(k, k->shape.dtype), &v->mem, e);
    if (s != STATUS_OK) {
        version_forget(v);
        return s;
    }
    v->host = v->mem.host;
    if (k->buffers++ >= KEY_VERSIONS) account_add(k->core, (int64_t)k->shape.size);
    *out = v;
    return STATUS_OK;
}

/* The oldest that only readers want. One that the device is at work with is not taken; but one that it copies down can
 * be, since the next step comes behind the copy. */
static struct version *oldest_held(struct key *k, bool fetched_too)
{
    LIST_EACH(struct version, v, node, &k->versions)
        if (v != k->current && (fetched_too || !v->fetching) && v->lent == 0) return v;
    return NULL;
}

/* Takes its memory. Its struct lives on, without memory, until the last reader has let go. */
static enum status take_from_readers(struct key *k, struct version *oldest, struct version **out, struct error *e)
{
    struct version *v = version_blank(k);

    if (v == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a version");
    list_remove(&oldest->node);
    oldest->revoked = true;
    k->core->counters.versions_revoked++;
    version_hold(oldest); /* the readers may all let go at once */
    if (k->core->detach != NULL) k->core->detach(k->core->hook_ctx, oldest);
    v->mem = oldest->mem;
    v->pin = oldest->pin;
    v->host = v->mem.host;
    oldest->mem = (struct dmem){0};
    oldest->pin = NULL;
    oldest->host = NULL;
    version_drop(oldest);
    *out = v;
    return STATUS_OK;
}

enum status version_acquire(struct key *k, struct version **out, struct error *e)
{
    struct version *v = LIST_FIRST(struct version, node, &k->spares), *oldest;
    enum status s;

    if (v != NULL) {
        list_remove(&v->node);
        *out = v;
        return STATUS_OK;
    }
    bool has_room = k->buffers < KEY_VERSIONS || account_has_room(k->core, k->shape.size);
    oldest = oldest_held(k, !has_room);
    /* While the device is at work with all that could be taken, there is one more than versions_max. */
    if ((has_room && k->buffers < k->store->options.versions_max) || oldest == NULL) {
        s = version_new(k, out, e);
        if (s == STATUS_OK || oldest == NULL) return s;
    }
    return take_from_readers(k, oldest, out, e);
}

void version_publish(struct key *k, struct version *v, uint64_t number)
{
    struct version *old = k->current;

    v->number = number;
    list_append(&k->versions, &v->node);
    k->current = v;
    if (old != NULL && old->holds == 0 && !old->fetching) retire(old);
}

void version_release(struct version *v)
{
    retire(v);
}

struct version *version_hold(struct version *v)
{
    key_hold(v->key);
    v->holds++;
    return v;
}

void version_drop(struct version *v)
{
    if (v == NULL) return;
    struct key *k = v->key;
    assert(v->holds > 0);
    if (--v->holds == 0) {
        if (v->revoked) version_forget(v);
        else if (v != k->current && !v->fetching) retire(v);
    }
    key_drop(k);
}

struct version *version_find(struct key *k, uint64_t number)
{
    LIST_EACH(struct version, v, node, &k->versions)
        if (v->number == number) return v;
    return NULL;
}

/* ---- the copy for readers, where the CPU cannot reach the device's memory ---------------------------------------- */

void version_fetch(struct version *v, struct task *t)
{
    struct key *k = v->key;
    enum status s = STATUS_OK;
    void *pin = v->pin;

    if (v->host != NULL) {
        t->run(t, STATUS_OK);
        return;
    }
    if (!v->fetching) {
        if (pin == NULL) s = device_pin_new(k->core->device, (size_t)k->shape.size, &pin, NULL);
        if (s == STATUS_OK) {
            v->pin = pin;
            s = device_download(k->queue, pin, v->mem, 0, (size_t)k->shape.size);
        }
        if (s != STATUS_OK) {
            t->run(t, s);
            return;
        }
        v->fetching = true;
        k->core->counters.copies_down++;
    }
    core_after(k->core, k->queue_index, t);
}

void version_fetched(struct version *v)
{
    if (v->revoked || v->host != NULL) return;
    v->fetching = false;
    v->host = v->pin;
}

void version_free_all(struct key *k)
{
    LIST_EACH(struct version, v, node, &k->spares) {
        list_remove(&v->node);
        free_buffer(v);
        version_forget(v);
    }
    LIST_EACH(struct version, v, node, &k->versions) {
        assert(v->holds == 0);
        list_remove(&v->node);
        free_buffer(v);
        version_forget(v);
    }
    if (k->buffers > KEY_VERSIONS) account_add(k->core, -(int64_t)((k->buffers - KEY_VERSIONS) * k->shape.size));
    k->buffers = 0;
    k->current = NULL;
}
