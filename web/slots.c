/* What an updater keeps for a key, over HTTP: the list of slots with the key's counters, and a slot as JSON, .npy or raw
 * bytes. */
#include "web/json.h"
#include "web/keys.h"
#include "web/routes.h"

#include <inttypes.h>
#include <string.h>

enum { SLOTS_MAX = 16, ATTEMPTS = 5 };

struct slot {
    char name[UINT8_MAX + 1];
    struct tensor tensor;
};

/* A state without its bytes. */
struct state {
    uint64_t updates, since_begun;
    double product;
    char updater[UINT8_MAX + 1];
    unsigned count;
    struct slot slots[SLOTS_MAX];
};

/* ---- asking ----------------------------------------------------------------------------------------------------- */

/* slot: 0 all, n the nth; size 0: descriptions only. */
struct part {
    uint64_t copy, offset, size;
    uint32_t slot;
};

static enum status call(struct exchange *x, const struct place *p, const struct seen *k, const struct part *part,
                        struct reply *r, struct error *e)
{
    struct wire_states f = {.store = (uint32_t)p->store, .count = 1};
    struct wire_states_entry entry = {.key = (uint64_t)k->id, .copy = part->copy, .offset = part->offset,
                                      .size = part->size, .slot = part->slot};
    struct wire_states_done done;
    struct buf fixed = {0}, desc = {0};

    wire_put_states(&fixed, &f);
    wire_put_states_entry(&desc, &entry);
    struct question q = {.method = WIRE_GetStates, .flags = part->size == 0 ? WIRE_FLAG_CHECK : 0,
                         .fixed = bytes_of(fixed.at, fixed.size), .desc = bytes_of(desc.at, desc.size)};
    enum status s = fixed.failed || desc.failed ? error_set(e, REASON_NO_MEMORY, "no memory for a request")
                                                : door_call(x->door, &q, r, e);
    buf_fini(&fixed);
    buf_fini(&desc);
    if (s != STATUS_OK) return s;
    struct reader in = reader_of(r->fixed);
    if (!wire_get_states_done(&in, &done)) return error_set(e, REASON_INTERNAL, "an answer cannot be read");
    return done.faults > 0 ? fault_of(r, wire_state_size, e) : STATUS_OK;
}

static bool read_name(struct reader *in, const uint8_t *start, size_t size, char out[UINT8_MAX + 1])
{
    const void *at = reader_take(in, size);

    if (at != NULL) memcpy(out, at, size);
    out[at != NULL ? size : 0] = '\0';
    reader_pad(in, start, 8);
    return !in->failed;
}

/* A slot has the shape of its key where it has as many elements, else it is a line. */
static void shape_slot(struct slot *s, const struct wire_slot *f, const struct seen *k)
{
    s->tensor = k->tensor;
    if (f->count != k->tensor.count) {
        s->tensor.ndim = 1;
        s->tensor.dims[0] = (int64_t)f->count;
    }
    s->tensor.dtype = (enum dtype)f->dtype;
    s->tensor.count = f->count;
    s->tensor.size = f->count * dtype_size(s->tensor.dtype);
}

static bool read_state(const struct reply *r, const struct seen *k, struct wire_state *f, struct state *out)
{
    struct reader in = reader_of(r->desc);
    const uint8_t *start = in.at;
    struct wire_slot slot;

    if (!wire_get_state(&in, f) || f->slots > SLOTS_MAX || !read_name(&in, start, f->updater_size, out->updater))
        return false;
    out->updates = f->updates;
    out->since_begun = f->since_begun;
    out->product = wire_to_double(f->product);
    for (out->count = 0; out->count < f->slots; out->count++) {
        struct slot *s = &out->slots[out->count];
        if (!wire_get_slot(&in, &slot) || !dtype_known(slot.dtype) || slot.count > VALUE_SIZE_MAX / 8 ||
            !read_name(&in, start, slot.name_size, s->name))
            return false;
        shape_slot(s, &slot, k);
    }
    return true;
}

static enum status describe(struct exchange *x, const struct place *p, const struct seen *k, struct state *out,
                            struct error *e)
{
    struct reply r = {.bytes = {0}};
    struct wire_state f;
    enum status s = call(x, p, k, &(struct part){.size = 0}, &r, e);

    if (s == STATUS_OK && !read_state(&r, k, &f, out)) s = error_set(e, REASON_INTERNAL, "an answer cannot be read");
    reply_fini(&r);
    return s;
}

/* ---- the list --------------------------------------------------------------------------------------------------- */

static json_t *shape_json(const struct tensor *t)
{
    json_t *shape = json_array();

    for (unsigned i = 0; i < t->ndim; i++) json_array_append_new(shape, json_integer(t->dims[i]));
    return shape;
}

static json_t *slots_json(const struct state *st)
{
    json_t *items = json_array();

    for (unsigned i = 0; i < st->count; i++) {
        const struct slot *s = &st->slots[i];
        json_t *row = json_pack("{s:s,s:s,s:o,s:I,s:I}", "name", s->name, "dtype", dtype_numpy(s->tensor.dtype), "shape",
                                shape_json(&s->tensor), "count", (json_int_t)s->tensor.count, "bytes",
                                (json_int_t)s->tensor.size);
        if (json_array_append_new(items, row) == 0) continue;
        json_decref(items);
        return NULL; /* a list with a gap would be taken for the whole */
    }
    return items;
}

void handle_key_slots(struct exchange *x)
{
    struct place p;
    struct seen k;
    struct state st;
    struct error e;
    json_t *row = find_place(x, &p) ? find_key(x, &p, &k) : NULL;

    if (row == NULL) return;
    if (describe(x, &p, &k, &st, &e) != STATUS_OK) say_error(x, &e, NULL);
    else say_json(x, 200, json_pack("{s:O,s:O,s:s,s:I,s:I,s:f,s:o}", "key", json_object_get(row, "key"), "key_type",
                                    json_object_get(row, "key_type"), "updater", st.updater, "updates",
                                    (json_int_t)st.updates, "since_begun", (json_int_t)st.since_begun, "product",
                                    st.product, "items", slots_json(&st)));
    json_decref(row);
}

/* ---- one slot --------------------------------------------------------------------------------------------------- */

/* One part of the slot, out of the copy that part->copy names (0: a new one; then st and *t are of that). */
static enum status read_part(struct exchange *x, const struct place *p, const struct seen *k, struct part *part,
                             struct state *st, struct buf *out, struct error *e)
{
    struct reply r = {.bytes = {0}};
    struct wire_state f;
    struct state now;
    enum status s = call(x, p, k, part, &r, e);

    if (s != STATUS_OK) goto out;
    if (!read_state(&r, k, &f, &now) || f.size > r.body.size || f.offset != part->offset)
        s = error_set(e, REASON_INTERNAL, "an answer cannot be read");
    else if (part->copy == 0 && (now.count != 1 || strcmp(now.slots[0].name, x->slot) != 0))
        s = error_retry(e, REASON_VERSION_REVOKED, RETRY_MS, "the updater was swapped meanwhile; ask again");
    else if (f.size == 0 && f.offset < f.total)
        s = error_set(e, REASON_INTERNAL, "an answer cannot be read");
    if (s != STATUS_OK) goto out;
    if (part->copy == 0) *st = now;
    part->copy = f.copy;
    part->offset += f.size;
    buf_add(out, r.body.at, (size_t)f.size);
    if (out->failed) s = error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory for the slot");
out:
    reply_fini(&r);
    return s;
}

/* All bytes of slot number n of one moment, appended; st becomes what was true then. */
static enum status read_slot(struct exchange *x, const struct place *p, const struct seen *k, unsigned n,
                             struct state *st, struct buf *out, struct error *e)
{
    size_t start = out->size;
    enum status s = STATUS_OK;

    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct part part = {.slot = n + 1, .size = PART_SIZE};
        out->size = start;
        do s = read_part(x, p, k, &part, st, out, e);
        while (s == STATUS_OK && part.offset < st->slots[0].tensor.size);
        if (s == STATUS_OK || e->reason != REASON_VERSION_REVOKED) break;
    }
    return s;
}

static enum status write_json(struct exchange *x, const struct place *p, const struct seen *k, unsigned n,
                              struct state *st, struct error *e)
{
    struct buf bytes = {0}, data = {0};
    char shape[SHAPE_TEXT_SIZE];
    const struct tensor *t = &st->slots[n].tensor;
    enum status s = STATUS_OK;

    if (t->count > VALUE_JSON_ELEMENTS_MAX) return value_write_json(t, NULL, &data, e);
    s = read_slot(x, p, k, n, st, &bytes, e);
    t = &st->slots[0].tensor;
    if (s == STATUS_OK) s = value_write_json(t, bytes.at, &data, e);
    if (s != STATUS_OK) goto out;
    shape_text(t, shape);
    if (t->ndim == 1) shape[strlen(shape) - 1] = '\0'; /* JSON has no lone comma */
    buf_text(&x->out, "{\"key\": ");
    json_write_text(&x->out, bytes_text(p->name));
    buf_text(&x->out, ", \"slot\": ");
    json_write_text(&x->out, bytes_text(st->slots[0].name));
    buf_format(&x->out, ", \"shape\": [%s], \"dtype\": \"%s\", \"updates\": %" PRIu64 ", \"data\": ", shape,
               dtype_numpy(t->dtype), st->updates);
    buf_add(&x->out, data.at, data.size);
    buf_text(&x->out, "}\n");
out:
    buf_fini(&bytes);
    buf_fini(&data);
    return s;
}

static enum status write_slot(struct exchange *x, enum form form, const struct place *p, const struct seen *k,
                              unsigned n, struct state *st, struct error *e)
{
    const struct tensor *t = &st->slots[n].tensor;
    enum status s = STATUS_OK;

    if (form == FORM_JSON) return write_json(x, p, k, n, st, e);
    if (t->size > VALUE_SENT_MAX)
        return error_set(e, REASON_TOO_LARGE, "a slot of %" PRIu64 " bytes; over HTTP at most %d are sent: use a client of "
                         "the binary protocol", t->size, VALUE_SENT_MAX);
    if (!exchange_reserve(x, t->size))
        return error_retry(e, REASON_LIMIT, 1000, "other answers take all the memory there is for them");
    if (form == FORM_NPY) s = npy_write_header(t, &x->out, e);
    return s == STATUS_OK ? read_slot(x, p, k, n, st, &x->out, e) : s;
}

static enum status find_slot(const struct exchange *x, const struct state *st, unsigned *n, struct error *e)
{
    for (*n = 0; *n < st->count; ++*n)
        if (strcmp(st->slots[*n].name, x->slot) == 0) return STATUS_OK;
    return error_set(e, REASON_NO_SLOT, "key '%.200s' has no slot '%.100s' under its updater, %s; .../slots lists them",
                     x->key, x->slot, st->updater);
}

void handle_key_slot(struct exchange *x)
{
    enum form form = wanted_form(x);
    char shape[SHAPE_TEXT_SIZE];
    struct place p;
    struct seen k;
    struct state st;
    struct error e;
    unsigned n;

    if (form == FORM_NONE) return;
    json_t *row = find_place(x, &p) ? find_key(x, &p, &k) : NULL;
    if (row == NULL) return;
    json_decref(row);
    enum status s = describe(x, &p, &k, &st, &e);
    if (s == STATUS_OK) s = find_slot(x, &st, &n, &e);
    if (s == STATUS_OK) s = write_slot(x, form, &p, &k, n, &st, &e);
    if (s != STATUS_OK) {
        say_error(x, &e, e.reason == REASON_JSON_TOO_LARGE ? other_forms(x) : NULL);
        return;
    }
    x->code = 200;
    x->type = form_media(form);
    say_header(x, "Vary", "Accept");
    say_header(x, "Paramd-Updates", "%" PRIu64, st.updates);
    say_header(x, "Paramd-Dtype", "%s", dtype_numpy(st.slots[0].tensor.dtype));
    say_header(x, "Paramd-Shape", "%s", shape_text(&st.slots[0].tensor, shape));
}
