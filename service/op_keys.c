/* The JSON methods that go over keys: Describe, List and Delete. What takes longer than a turn of the loop goes on in the
 * next one: rows are written to the answer's text one by one, and what is found of a key is what is there when its row is
 * written. */
#include "service/op.h"

#include "service/base/log.h"
#include "service/base/mem.h"

#include <string.h>

/* A page ends early, at LIST_TEXT bytes, so that its document is not refused as too large. */
enum { LIST_STANDARD = 1000, LIST_MAX = 5000, LIST_TEXT = JSON_SIZE_MAX * 2 - (64 << 10), ROW_WORK = 4 };

/* A request that goes over keys. */
struct walk {
    struct job job;
    struct request *request;
    json_t *in;                      /* held; what the next three point into */
    uint32_t store;
    struct bytes prefix;             /* List */
    json_t *keys;                    /* Describe, Delete: a list */
    size_t next;                     /* of them */
    uint32_t left;                   /* List: rows that the page has still room for */
    bool has_after, has_total;
    struct key_name after;           /* its text lies in `name` */
    char name[KEY_NAME_SIZE_MAX];
    size_t total;
    bool force, dry_run, really;
    struct buf text;
};

static void walk_free(struct walk *x)
{
    buf_fini(&x->text);
    json_decref(x->in);
    request_free(x->request);
    mem_free(x);
}

static bool walk_refused(struct walk *x, enum status st, const struct error *e)
{
    if (st == STATUS_OK) return false;
    answer_error(x->request, e);
    walk_free(x);
    return true;
}

/* The store as it is by now. */
static enum status walk_store(const struct walk *x, struct store **out, struct error *e)
{
    *out = store_at(&x->request->server->core, x->store);
    return *out != NULL ? STATUS_OK : error_set(e, REASON_NO_STORE, "the store was deleted meanwhile");
}

/* A copy of the request and its document goes on with this. */
static struct walk *walk_new(struct request *r, json_t *in, const struct store *s, bool (*run)(struct job *j))
{
    struct walk *x = mem_zero(sizeof *x);
    struct error e;

    if (x != NULL) x->request = request_keep(r);
    if (x == NULL || x->request == NULL) {
        mem_free(x);
        error_retry(&e, REASON_NO_MEMORY, RETRY_MS, "no memory for a request");
        answer_error(r, &e);
        return NULL;
    }
    x->job.run = run;
    x->in = json_incref(in);
    x->keys = json_object_get(in, "keys");
    x->store = s->id;
    return x;
}

static void walk_answer(struct walk *x)
{
    struct error e;

    if (x->text.failed) error_retry(&e, REASON_NO_MEMORY, RETRY_MS, "no memory for an answer");
    else if (x->text.size > JSON_SIZE_MAX * 2) error_set(&e, REASON_TOO_LARGE, "the answer is too large; ask for less");
    if (x->text.failed || x->text.size > JSON_SIZE_MAX * 2) answer_error(x->request, &e);
    else answer_text(x->request, (const char *)x->text.at, x->text.size);
    walk_free(x);
}

/* Shall the rest wait for the next turn? */
static bool walk_rests(const struct walk *x) { return core_is_spent(&x->request->server->core); }

/* ---- rows ------------------------------------------------------------------------------------------------------- */

static json_t *shape_json(const struct key_shape *s)
{
    json_t *shape = json_array();

    for (unsigned i = 0; i < s->ndim; i++) {
        if (json_array_append_new(shape, json_integer(s->dims[i])) == 0) continue;
        json_decref(shape);
        return NULL;
    }
    return shape;
}

static json_t *key_json(const struct key *k, struct worker *w)
{
    uint64_t next = w != NULL ? worker_tell_step(w, k) : 0;
    const struct progress *p = w != NULL ? worker_seen(w, k) : NULL;

    return json_pack("{s:o,s:s,s:I,s:s,s:o,s:I,s:I,s:I,s:I,s:s}", "key", key_name_json(&k->name),
                     "key_type", k->name.is_text ? "str" : "int", "id", (json_int_t)k->id,
                     "dtype", dtype_numpy(k->shape.dtype), "shape", shape_json(&k->shape), "version",
                     (json_int_t)key_version(k), "updates", (json_int_t)k->state.updates, "next_step", (json_int_t)next,
                     "recorded", (json_int_t)(p != NULL ? p->recorded : 0),
                     "device", device_home_name(k->core->device, k->home));
}

/* Takes the row. */
static void add_row(struct walk *x, json_t *row)
{
    bool is_first = x->text.at != NULL && x->text.size > 0 && x->text.at[x->text.size - 1] == '[';

    if (!is_first) buf_text(&x->text, ",");
    (void)json_text(row, JSON_COMPACT | JSON_ENCODE_ANY, &x->text);
    json_decref(row);
    core_spend(&x->request->server->core, ROW_WORK);
}

static struct worker *worker_or_null(struct request *r, const struct store *s)
{
    struct worker *w;
    return session_worker(r->session, s, &w, NULL) == STATUS_OK ? w : NULL;
}

/* ---- Describe --------------------------------------------------------------------------------------------------- */

static bool describe_piece(struct job *j)
{
    struct walk *x = CONTAINER_OF(j, struct walk, job);
    struct store *s;
    struct error e;
    enum status st = walk_store(x, &s, &e);
    struct worker *w = st == STATUS_OK ? worker_or_null(x->request, s) : NULL;

    for (size_t from = x->next; st == STATUS_OK && x->next < json_array_size(x->keys); x->next++) {
        struct key_name name;
        if (walk_rests(x) && x->next > from) return false;
        st = key_name_from_json(json_array_get(x->keys, x->next), &name, &e);
        if (st == STATUS_OK) st = store_key_check(s, &name, &e);
        if (st != STATUS_OK) break;
        const struct key *k = store_key_find(s, &name);
        add_row(x, k != NULL ? key_json(k, w) : json_null());
    }
    if (walk_refused(x, st, &e)) return true;
    buf_text(&x->text, "]}");
    walk_answer(x);
    return true;
}

void method_Describe(struct request *r, json_t *in)
{
    json_t *keys = json_object_get(in, "keys");
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store", "keys"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK && (!json_is_array(keys) || json_array_size(keys) > ENTRIES_MAX))
        st = error_set(&e, REASON_BAD_ARGUMENT, "/keys: a list of at most %d keys", ENTRIES_MAX);
    if (st != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    struct walk *x = walk_new(r, in, s, describe_piece);
    if (x == NULL) return;
    buf_text(&x->text, "{\"items\":[");
    request_begin(x->request, &x->job);
}

/* ---- List ------------------------------------------------------------------------------------------------------- */

/* The next row is the one behind k, whether k stays or not. */
static void go_behind(struct walk *x, const struct key *k)
{
    x->after = k->name;
    x->has_after = true;
    if (!k->name.is_text) return;
    memcpy(x->name, k->name.text.at, k->name.text.size);
    x->after.text.at = x->name;
}

static bool list_piece(struct job *j)
{
    struct walk *x = CONTAINER_OF(j, struct walk, job);
    const struct key *k = NULL;
    struct store *s;
    struct error e;
    size_t i = 0;

    if (walk_refused(x, walk_store(x, &s, &e), &e)) return true;
    struct worker *w = worker_or_null(x->request, s);
    struct order_page page = order_find(&s->order, x->prefix, x->has_after ? &x->after : NULL);
    if (!x->has_total) x->total = page.total;
    x->has_total = true;
    for (; i < page.count && x->left > 0 && (i == 0 || !walk_rests(x)); i++, x->left--) {
        k = order_at(&s->order, page.first + i);
        add_row(x, key_json(k, w));
        if (x->text.size >= LIST_TEXT) x->left = 1;
    }
    if (k != NULL) go_behind(x, k);
    if (i < page.count && x->left > 0) return false;
    buf_text(&x->text, "],\"next\":");
    json_t *next = i < page.count && x->has_after ? key_name_json(&x->after) : json_null();
    (void)json_text(next, JSON_COMPACT | JSON_ENCODE_ANY, &x->text);
    json_decref(next);
    buf_format(&x->text, ",\"total\":%zu}", x->total);
    walk_answer(x);
    return true;
}

void method_List(struct request *r, json_t *in)
{
    json_t *after = json_object_get(in, "after");
    struct key_name pivot = {.is_text = false};
    struct bytes prefix;
    struct store *s;
    struct error e;
    uint32_t limit = 0;

    enum status st = only(in, ONLY("store", "prefix", "after", "limit"), &e);
    if (st == STATUS_OK && is_unset_default(r, in)) {
        answer_json(r, json_pack("{s:[],s:n,s:i}", "items", "next", "total", 0));
        return;
    }
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK) st = get_text(in, "prefix", false, &prefix, &e);
    if (st == STATUS_OK) st = get_count(in, "limit", LIST_STANDARD, LIST_MAX, &limit, &e);
    if (st == STATUS_OK && after != NULL) st = key_name_from_json(after, &pivot, &e);
    if (st != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    struct walk *x = walk_new(r, in, s, list_piece);
    if (x == NULL) return;
    x->prefix = prefix;
    x->left = limit;
    x->has_after = after != NULL;
    x->after = pivot;
    buf_text(&x->text, "{\"items\":[");
    request_begin(x->request, &x->job);
}

/* ---- Delete ----------------------------------------------------------------------------------------------------- */

/* Is it still the one that the caller has seen? */
static enum status check_seen(const struct key *k, json_t *in, struct error *e)
{
    json_t *id = json_object_get(in, "id"), *version = json_object_get(in, "version");
    char name[KEY_PRINT_SIZE];

    if ((id == NULL || json_integer_value(id) == (json_int_t)k->id) &&
        (version == NULL || json_integer_value(version) == (json_int_t)key_version(k)))
        return STATUS_OK;
    return error_set(e, REASON_ETAG_MISMATCH, "%s has id %llu and version %llu by now", key_name_print(&k->name, name),
                     (unsigned long long)k->id, (unsigned long long)key_version(k));
}

static enum status delete_one(struct walk *x, struct store *s, json_t *v, struct error *e)
{
    struct key_name name;
    struct key *k = NULL;
    enum status st = key_name_from_json(v, &name, e);

    if (st == STATUS_OK) k = store_key_find(s, &name);
    if (st == STATUS_OK && k == NULL) st = store_no_key(s, &name, e);
    if (st == STATUS_OK) st = check_seen(k, x->in, e);
    if (st == STATUS_OK && !x->force) st = round_none_open(k, e);
    return st == STATUS_OK && x->really ? store_key_delete(s, k, x->force, e) : st;
}

/* First all are looked at, so that a fault in one leaves all as they are. A key that is gone when it is to be deleted was
 * named twice, or another has deleted it: that is what was asked for. */
static bool delete_piece(struct job *j)
{
    struct walk *x = CONTAINER_OF(j, struct walk, job);
    struct store *s;
    struct error e;
    enum status st = walk_store(x, &s, &e);

    for (size_t from = x->next; st == STATUS_OK && x->next < json_array_size(x->keys); x->next++) {
        if (walk_rests(x) && x->next > from) return false;
        st = delete_one(x, s, json_array_get(x->keys, x->next), &e);
        core_spend(&x->request->server->core, x->really ? WORK_DELETE : 1);
        if (st != STATUS_OK && x->really && e.reason == REASON_NO_KEY) st = STATUS_OK;
    }
    if (walk_refused(x, st, &e)) return true;
    if (!x->really && !x->dry_run) {
        x->really = true;
        x->next = 0;
        return delete_piece(j);
    }
    answer_json(x->request, json_pack("{s:I}", "deleted", x->dry_run ? (json_int_t)0 : (json_int_t)json_array_size(x->keys)));
    walk_free(x);
    return true;
}

void method_Delete(struct request *r, json_t *in)
{
    bool force, dry_run = false;
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store", "keys", "force", "id", "version", "dry_run"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK && !json_is_array(json_object_get(in, "keys")))
        st = error_set(&e, REASON_BAD_ARGUMENT, "/keys: a list of keys");
    if (st == STATUS_OK) st = get_flag(in, "force", &force, &e);
    if (st == STATUS_OK) st = get_flag(in, "dry_run", &dry_run, &e);
    if (st != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    struct walk *x = walk_new(r, in, s, delete_piece);
    if (x == NULL) return;
    x->force = force;
    x->dry_run = dry_run;
    request_begin(x->request, &x->job);
}
