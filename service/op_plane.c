/* The methods of the plane: what a worker says of it and asks for. */
#include "service/op.h"

#include "service/base/mem.h"
#include "service/plane.h"

#include <string.h>

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static enum status get_number(json_t *in, const char *name, uint64_t *out, struct error *e)
{
    json_t *v = json_object_get(in, name);

    *out = (uint64_t)json_integer_value(v);
    if (json_is_integer(v) && json_integer_value(v) > 0) return STATUS_OK;
    return error_set(e, REASON_BAD_ARGUMENT, "/%s: a whole number from 1", name);
}

/* The store and who asks; a daemon that goes begins nothing. */
static enum status get_member(struct request *r, json_t *in, bool begins, struct store **s, struct worker **w,
                              struct error *e)
{
    enum status st = get_store(r, in, s, e);

    if (st == STATUS_OK && begins && r->server->draining)
        st = error_set(e, REASON_DRAINING, "the daemon is shutting down; join the plane again when it is back");
    return st == STATUS_OK ? session_worker(r->session, *s, w, e) : st;
}

static enum status get_entries(json_t *in, struct plane_announcement *a, struct plane_entry **entries, struct error *e)
{
    json_t *keys = json_object_get(in, "keys");

    a->count = json_array_size(keys);
    if (a->count < 1 || a->count > PLANE_KEYS_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "/keys: a list of 1 to %d pairs [id, step]", PLANE_KEYS_MAX);
    a->entries = *entries = mem_array(a->count, sizeof **entries);
    if (*entries == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a call of a plane");
    for (size_t i = 0; i < a->count; i++) {
        json_t *pair = json_array_get(keys, i), *id = json_array_get(pair, 0), *step = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_integer(id) || !json_is_integer(step))
            return error_set(e, REASON_BAD_ARGUMENT, "/keys/%zu: [id, step]", i);
        (*entries)[i] = (struct plane_entry){(uint64_t)json_integer_value(id), (uint64_t)json_integer_value(step)};
    }
    return STATUS_OK;
}

/* ---- methods ---------------------------------------------------------------------------------------------------- */

void method_PlaneJoin(struct request *r, json_t *in)
{
    uint64_t epoch = 0;
    struct store *s;
    struct worker *w;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    if (st == STATUS_OK) st = get_member(r, in, true, &s, &w, &e);
    if (st == STATUS_OK) st = plane_join(s, w, &epoch, &e);
    if (st == STATUS_OK) answer_json(r, json_pack("{s:I}", "epoch", (json_int_t)epoch));
    else answer_error(r, &e);
}

static json_t *id_json(const struct nccl_id *id)
{
    char text[2 * sizeof id->bytes + 1];

    if (id == NULL) return json_null();
    for (size_t i = 0; i < sizeof id->bytes; i++) snprintf(text + 2 * i, 3, "%02x", (unsigned char)id->bytes[i]);
    return json_string(text);
}

void method_Plane(struct request *r, json_t *in)
{
    static const char *const states[] = {"forming", "joining", "ready", "broken"};
    struct worker *w = NULL;
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    if (session_worker(r->session, s, &w, NULL) != STATUS_OK) w = NULL;
    struct plane_facts f = plane_look(s, w);
    answer_json(r, json_pack("{s:I,s:s,s:I,s:I,s:o,s:I,s:I,s:I,s:s?}", "epoch", (json_int_t)f.epoch,
                             "state", f.epoch == 0 ? "none" : states[f.state], "ranks", (json_int_t)f.ranks,
                             "rank", (json_int_t)f.rank, "id", id_json(f.id), "left_ms", (json_int_t)f.left_ms,
                             "called", (json_int_t)f.called, "counted", (json_int_t)f.counted, "why", f.why));
}

void method_PlaneCall(struct request *r, json_t *in)
{
    struct plane_announcement a = {.pulls = json_is_true(json_object_get(in, "pull"))};
    struct plane_entry *entries = NULL;
    struct store *s;
    struct worker *w;
    struct error e;

    enum status st = only(in, ONLY("store", "epoch", "call", "pull", "keys"), &e);
    if (st == STATUS_OK) st = get_member(r, in, true, &s, &w, &e);
    if (st == STATUS_OK) st = get_number(in, "epoch", &a.epoch, &e);
    if (st == STATUS_OK) st = get_number(in, "call", &a.number, &e);
    if (st == STATUS_OK) st = get_entries(in, &a, &entries, &e);
    if (st == STATUS_OK) st = plane_call(s, w, &a, &e);
    mem_free(entries);
    if (st == STATUS_OK) answer_json(r, json_object());
    else answer_error(r, &e);
}

void method_PlaneLeave(struct request *r, json_t *in)
{
    struct bytes why;
    uint64_t epoch;
    struct store *s;
    struct worker *w;
    struct error e;

    enum status st = only(in, ONLY("store", "epoch", "why"), &e);
    if (st == STATUS_OK) st = get_member(r, in, false, &s, &w, &e);
    if (st == STATUS_OK) st = get_number(in, "epoch", &epoch, &e);
    if (st == STATUS_OK) st = get_text(in, "why", false, &why, &e);
    if (st == STATUS_OK) answer_json(r, json_pack("{s:I}", "counted", (json_int_t)plane_leave(s, w, epoch, why)));
    else answer_error(r, &e);
}
