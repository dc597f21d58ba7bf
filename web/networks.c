#include "web/networks.h"

#include "service/base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct networks {
    pthread_mutex_t lock;            /* guards what follows, holders too */
    struct network *all[NETWORKS_MAX];   /* by name */
    size_t count;
    uint64_t size;                   /* bytes of all that are listed */
    uint64_t serial;                 /* of the last file */
    struct { struct drawing_id id; char tag[DRAWING_TAG_SIZE]; } drawings[DRAWINGS_REMEMBERED];
    size_t drawing_next;             /* the oldest is replaced */
    _Atomic bool converts;
};

struct networks *networks_new(void)
{
    struct networks *n = mem_zero(sizeof *n);

    if (n != NULL) pthread_mutex_init(&n->lock, NULL);
    return n;
}

static void network_free(struct network *f)
{
    if (f == NULL) return;
    mem_free(f->name);
    buf_fini(&f->file);
    json_decref(f->variables);
    mem_free(f);
}

static void let_go(struct network *f)
{
    if (f != NULL && --f->holders == 0) network_free(f);
}

void networks_free(struct networks *n)
{
    if (n == NULL) return;
    for (size_t i = 0; i < n->count; i++) let_go(n->all[i]);
    pthread_mutex_destroy(&n->lock);
    mem_free(n);
}

/* The place of a name, or where it would be. */
static size_t place_of(const struct networks *n, const char *name, bool *found)
{
    size_t i = 0;

    while (i < n->count && strcmp(n->all[i]->name, name) < 0) i++;
    *found = i < n->count && strcmp(n->all[i]->name, name) == 0;
    return i;
}

static enum status make(const char *name, struct bytes file, struct network **out, struct error *e)
{
    struct network *f = mem_zero(sizeof *f);
    enum status s;

    if (file.size > NETWORK_SIZE_MAX) {
        s = error_set(e, REASON_TOO_LARGE,
                      "a file of %zu bytes; at most %d are kept. `paramctl viz FILE` draws larger ones.",
                      file.size, NETWORK_SIZE_MAX);
        goto out;
    }
    if (f != NULL) f->name = mem_text(name, strlen(name));
    s = f != NULL && f->name != NULL ? viz_check(file, &f->facts, &f->variables, e)
                                     : error_set(e, REASON_NO_MEMORY, "no memory for a network");
    if (s != STATUS_OK) goto out;
    f->holders = 1;
    *out = f;
    f = NULL;
out:
    network_free(f);
    return s;
}

/* Under the lock. */
static enum status insert(struct networks *n, struct network *f, size_t size, bool *replaced, struct network **old,
                          struct error *e)
{
    size_t at = place_of(n, f->name, replaced), freed = *replaced ? n->all[at]->file.size : 0;

    if (!*replaced && n->count == NETWORKS_MAX)
        return error_set(e, REASON_LIMIT, "%d networks are kept already; delete one", NETWORKS_MAX);
    if (n->size - freed + size > NETWORKS_SIZE_MAX)
        return error_set(e, REASON_LIMIT, "the networks would have more than %d bytes together; delete one",
                         NETWORKS_SIZE_MAX);
    f->serial = ++n->serial;
    if (*replaced) *old = n->all[at];
    else memmove(&n->all[at + 1], &n->all[at], (n->count++ - at) * sizeof n->all[0]);
    n->all[at] = f;
    n->size += size - freed;
    return STATUS_OK;
}

enum status networks_put(struct networks *n, const char *name, struct buf *file, bool *replaced, struct error *e)
{
    struct network *f = NULL, *old = NULL;
    enum status s = make(name, bytes_of(file->at, file->size), &f, e);

    if (s != STATUS_OK) return s;
    pthread_mutex_lock(&n->lock);
    s = insert(n, f, file->size, replaced, &old, e);
    if (s == STATUS_OK) {
        f->file = *file;
        *file = (struct buf){0};
        let_go(old);
    }
    pthread_mutex_unlock(&n->lock);
    if (s != STATUS_OK) network_free(f);
    return s;
}

struct network *networks_hold(struct networks *n, const char *name)
{
    struct network *f = NULL;
    bool found;

    pthread_mutex_lock(&n->lock);
    size_t at = place_of(n, name, &found);
    if (found) {
        f = n->all[at];
        f->holders++;
    }
    pthread_mutex_unlock(&n->lock);
    return f;
}

void network_drop(struct networks *n, struct network *held)
{
    pthread_mutex_lock(&n->lock);
    let_go(held);
    pthread_mutex_unlock(&n->lock);
}

bool networks_remove(struct networks *n, const char *name)
{
    bool found;

    pthread_mutex_lock(&n->lock);
    size_t at = place_of(n, name, &found);
    if (found) {
        n->size -= n->all[at]->file.size;
        let_go(n->all[at]);
        memmove(&n->all[at], &n->all[at + 1], (--n->count - at) * sizeof n->all[0]);
    }
    pthread_mutex_unlock(&n->lock);
    return found;
}

json_t *networks_list(struct networks *n)
{
    json_t *items = json_array();

    pthread_mutex_lock(&n->lock);
    for (size_t i = 0; i < n->count; i++) {
        const struct network *f = n->all[i];
        json_array_append_new(items, json_pack("{s:s,s:I,s:I,s:I,s:I}", "name", f->name, "nodes",
                                               (json_int_t)f->facts.nodes, "edges", (json_int_t)f->facts.edges,
                                               "parameters", (json_int_t)f->facts.parameters, "bytes",
                                               (json_int_t)f->file.size));
    }
    pthread_mutex_unlock(&n->lock);
    return items;
}

struct drawing_id networks_drawing(uint64_t serial, const char *inputs)
{
    struct drawing_id id = {serial, 0xcbf29ce484222325u, 0x84222325cbf29ce4u};

    for (; *inputs != '\0'; inputs++) {
        id.a = (id.a ^ (unsigned char)*inputs) * 0x100000001b3u;
        id.b = (id.b + (unsigned char)*inputs) * 0x9e3779b97f4a7c15u;
        id.b ^= id.b >> 29;
    }
    return id;
}

static bool same_drawing(struct drawing_id x, struct drawing_id y)
{
    return x.serial == y.serial && x.a == y.a && x.b == y.b;
}

void networks_remember(struct networks *n, struct drawing_id id, const char *tag)
{
    pthread_mutex_lock(&n->lock);
    size_t at = n->drawing_next++ % DRAWINGS_REMEMBERED;
    n->drawings[at].id = id;
    snprintf(n->drawings[at].tag, sizeof n->drawings[at].tag, "%s", tag);
    pthread_mutex_unlock(&n->lock);
}

bool networks_recall(struct networks *n, struct drawing_id id, char tag[DRAWING_TAG_SIZE])
{
    bool found = false;

    pthread_mutex_lock(&n->lock);
    for (size_t i = 0; i < DRAWINGS_REMEMBERED && !found; i++) {
        found = n->drawings[i].tag[0] != '\0' && same_drawing(n->drawings[i].id, id);
        if (found) snprintf(tag, DRAWING_TAG_SIZE, "%s", n->drawings[i].tag);
    }
    pthread_mutex_unlock(&n->lock);
    return found;
}

bool networks_begin_convert(struct networks *n) { return !atomic_exchange(&n->converts, true); }
void networks_end_convert(struct networks *n) { atomic_store(&n->converts, false); }
