/* The JSON methods. Each reads its document, does its one thing and answers; the first line of a fault is the
 * member's JSON pointer. */
#include "service/op.h"

#include "service/base/log.h"
#include "service/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define PARAMD_VERSION "0.1.0"

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static struct bytes text_of(const json_t *v) { return bytes_of(json_string_value(v), json_string_length(v)); }

/* Refuses members that the method does not have; known ends with NULL. */
static enum status only(json_t *in, const char *const *known, struct error *e)
{
    const char *name;
    json_t *value;

    json_object_foreach(in, name, value) {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], name) != 0) i++;
        if (known[i] != NULL) continue;
        const char *near = nearest_name(bytes_text(name), known);
        return error_set(e, REASON_UNKNOWN_FIELD, near != NULL ? "/%s: unknown; did you mean '%s'?" : "/%s: unknown",
                         name, near);
    }
    return STATUS_OK;
}
#define ONLY(...) ((const char *const[]){__VA_ARGS__, NULL})

static enum status get_text(json_t *in, const char *name, bool needed, struct bytes *out, struct error *e)
{
    json_t *v = json_object_get(in, name);

    *out = bytes_of("", 0);
    if (v == NULL && !needed) return STATUS_OK;
    if (!json_is_string(v)) return error_set(e, REASON_BAD_ARGUMENT, "/%s: a text", name);
    *out = text_of(v);
    return STATUS_OK;
}

static enum status get_count(json_t *in, const char *name, uint32_t standard, uint32_t most, uint32_t *out,
                             struct error *e)
{
    json_t *v = json_object_get(in, name);

    *out = standard;
    if (v == NULL) return STATUS_OK;
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 1 || n > (json_int_t)most)
        return error_set(e, REASON_BAD_ARGUMENT, "/%s: a whole number from 1 to %u", name, most);
    *out = (uint32_t)n;
    return STATUS_OK;
}

/* "store" is an id or a name. */
static enum status get_store(struct request *r, json_t *in, struct store **out, struct error *e)
{
    json_t *v = json_object_get(in, "store");
    struct store *s = NULL;

    if (json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) <= UINT32_MAX) {
        s = store_at(&r->server->core, (uint32_t)json_integer_value(v));
        if (s == NULL)
            return error_set(e, REASON_NO_STORE, "there is no store with id %lld; it may have been deleted",
                             (long long)json_integer_value(v));
    } else if (json_is_string(v)) {
        s = store_find(&r->server->core, text_of(v));
        if (s == NULL)
            return error_set(e, REASON_NO_STORE, "there is no store '%.*s'; create it first",
                             (int)(json_string_length(v) < 200 ? json_string_length(v) : 200), json_string_value(v));
    } else {
        return error_set(e, REASON_BAD_ARGUMENT, "/store: the id that Create answered, or the store's name");
    }
    *out = s;
    return STATUS_OK;
}

enum status key_name_from_json(const json_t *v, struct key_name *out, struct error *e)
{
    *out = (struct key_name){.is_text = json_is_string(v)};
    if (json_is_string(v)) out->text = text_of(v);
    else if (json_is_integer(v)) out->number = json_integer_value(v);
    else return error_set(e, REASON_BAD_ARGUMENT, "a key is an integer or a text");
    return STATUS_OK;
}

json_t *key_name_json(const struct key_name *n)
{
    return n->is_text ? json_stringn(n->text.at, n->text.size) : json_integer(n->number);
}

/* Answers the error when st is one. */
static bool refused(struct request *r, enum status st, const struct error *e)
{
    if (st != STATUS_OK) answer_error(r, e);
    return st != STATUS_OK;
}

/* ---- the session ------------------------------------------------------------------------------------------------ */

static bool token_fits(const struct server *s, struct bytes token)
{
    size_t size = s->token != NULL ? strlen(s->token) : 0;
    unsigned char differ = 0;

    if (s->token == NULL) return true;
    if (token.size != size) return false;
    /* All bytes are looked at, so that the time tells nothing of how many were right. */
    for (size_t i = 0; i < size; i++) differ |= (unsigned char)(((const char *)token.at)[i] ^ s->token[i]);
    return differ == 0;
}

static json_t *hex_json(const struct wire_id *id)
{
    char text[33];

    for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", id->at[i]);
    return json_string(text);
}

static json_t *bulk_json(const struct server *s)
{
    json_t *j;

    if (s->config.bulk_port == 0 && s->bulk_path == NULL) return json_null();
    j = json_pack("{s:i}", "port", (int)s->config.bulk_port);
    if (j != NULL && s->advertise != NULL) json_object_set_new(j, "host", json_string(s->advertise));
    if (j != NULL && s->bulk_path != NULL) json_object_set_new(j, "path", json_string(s->bulk_path));
    return j;
}

static json_t *methods_json(void)
{
    json_t *list = json_array();

    for (unsigned m = 1; m < WIRE_METHODS_END; m++)
        if (wire_method_name(m) != NULL) json_array_append_new(list, json_string(wire_method_name(m)));
    return list;
}

static uint64_t window_of(const struct server *s) { return s->core.staging_max / 2; }

static json_t *limits_json(const struct server *s)
{
    return json_pack("{s:i,s:i,s:i,s:i,s:I}", "frame", FRAME_SIZE_MAX, "part", PART_SIZE, "in_flight_bulk",
                     IN_FLIGHT_BULK, "in_flight_small", IN_FLIGHT_SMALL, "window", (json_int_t)window_of(s));
}

json_t *server_info_json(const struct server *s)
{
    const struct core *c = &s->core;

    return json_pack("{s:s,s:o,s:s,s:f,s:i,s:i,s:{s:I,s:I,s:I,s:I},s:o,s:o}",
                     "version", PARAMD_VERSION, "instance", hex_json(&s->config.instance),
                     "device", device_kind(c->device), "uptime", (double)(c->now_ms - s->started_ms) / 1000.0,
                     "stores", (int)map_count(c->stores), "clients", (int)s->session_count,
                     "memory", "device", (json_int_t)c->device->bytes_held, "staging", (json_int_t)c->staging_used,
                     "staging_max", (json_int_t)c->staging_max, "cache", (json_int_t)c->cache_bytes,
                     "bulk", bulk_json(s), "limits", limits_json(s));
}

void method_Hello(struct request *r, json_t *in)
{
    struct server *s = r->server;
    struct bytes token, name, client;
    struct session *session = NULL;
    struct error e;

    enum status st = only(in, ONLY("client", "token", "name"), &e);
    if (st == STATUS_OK) st = get_text(in, "token", false, &token, &e);
    if (st == STATUS_OK) st = get_text(in, "name", false, &name, &e);
    if (st == STATUS_OK) st = get_text(in, "client", false, &client, &e);
    if (st == STATUS_OK && !token_fits(s, token))
        st = error_set(&e, REASON_BAD_TOKEN, "the token is %s; give the one of the daemon's --token-file",
                       token.size == 0 ? "missing" : "wrong");
    if (st == STATUS_OK) st = session_hello(s, &r->header, name, &session, &e);
    if (refused(r, st, &e)) return;
    session_attach(session, r->peer);
    session_touch(session);
    r->session = session;
    answer_json(r, json_pack("{s:o,s:I,s:I,s:[i],s:s,s:s,s:o,s:o,s:[s],s:o,s:i}",
                             "instance", hex_json(&s->config.instance), "session", (json_int_t)session->number,
                             "epoch", (json_int_t)session->epoch, "versions", WIRE_VERSION,
                             "version", PARAMD_VERSION, "device", device_kind(s->core.device),
                             "bulk", bulk_json(s), "limits", limits_json(s), "members", "self",
                             "methods", methods_json(), "heartbeat_ms", HEARTBEAT_MS));
}

void method_Health(struct request *r, json_t *in)
{
    (void)in;
    answer_json(r, json_pack("{s:s,s:s,s:s}", "status", r->server->draining ? "draining" : "serving", "version",
                             PARAMD_VERSION, "device", device_kind(r->server->core.device)));
}

void method_Heartbeat(struct request *r, json_t *in)
{
    json_t *list = json_array();

    (void)in;
    for (size_t i = 0; i < r->session->worker_count; i++) {
        const struct worker *w = r->session->workers[i];
        if (w->store == NULL || w->state != WORKER_MEMBER || w->epoch != r->session->epoch) continue;
        json_array_append_new(list, json_pack("{s:I,s:I,s:I,s:I}", "id", (json_int_t)w->store->id,
                                              "rank", (json_int_t)w->rank,
                                              "num_workers", (json_int_t)store_num_workers(w->store),
                                              "dead", (json_int_t)w->store->dead));
    }
    answer_json(r, json_pack("{s:o}", "stores", list));
}

/* ---- stores ----------------------------------------------------------------------------------------------------- */

static json_t *store_json(const struct store *s, bool created)
{
    json_t *j = json_pack("{s:I,s:s,s:b}", "id", (json_int_t)s->id, "store", s->name, "created", created);

    if (j != NULL && options_json(&s->options, j)) return j;
    json_decref(j);
    return NULL;
}

void method_Create(struct request *r, json_t *in)
{
    struct core *c = &r->server->core;
    struct store_options wanted;
    struct bytes name;
    struct error e;

    enum status st = get_text(in, "store", true, &name, &e);
    if (st == STATUS_OK) st = options_parse(in, ONLY("store"), &wanted, &e);
    if (refused(r, st, &e)) return;
    struct store *s = store_find(c, name);
    bool create = s == NULL;
    if (create) st = store_new(c, name, &wanted, &s, &e);
    else st = options_agree(&s->options, &wanted, s->name, &e);
    if (refused(r, st, &e)) return;
    answer_json(r, store_json(s, create));
}

void method_DeleteStore(struct request *r, json_t *in)
{
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (refused(r, st, &e)) return;
    log_info("server", "store '%s' is deleted", s->name);
    store_delete(s);
    answer_json(r, json_object());
}

void method_ListStores(struct request *r, json_t *in)
{
    json_t *items = json_array();
    size_t at = 0;

    (void)in;
    for (const struct store *s; (s = map_next(r->server->core.stores, &at)) != NULL;)
        json_array_append_new(items, json_pack("{s:s,s:I,s:s,s:I,s:I}", "store", s->name, "id", (json_int_t)s->id,
                                               "type", s->options.type, "keys", (json_int_t)map_count(s->keys),
                                               "workers", (json_int_t)s->members));
    answer_json(r, json_pack("{s:o}", "items", items));
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

static json_t *members_json(const struct store *s)
{
    json_t *list = json_array();

    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        if (w == NULL || w->state != WORKER_MEMBER) continue;
        json_array_append_new(list, json_pack("{s:I,s:s}", "rank", (json_int_t)w->rank, "name", w->name));
    }
    return list;
}

static uint64_t first_step(const struct store *s)
{
    uint64_t highest = 0;

    for (size_t i = 0; i < s->slot_count; i++)
        if (s->by_slot[i] != NULL && s->by_slot[i]->opened_step > highest) highest = s->by_slot[i]->opened_step;
    return highest + 1;
}

void method_Join(struct request *r, json_t *in)
{
    struct store *s;
    struct worker *w;
    struct bytes name;
    struct error e;

    enum status st = only(in, ONLY("store", "name"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK) st = get_text(in, "name", false, &name, &e);
    if (st == STATUS_OK && r->server->draining)
        st = error_set(&e, REASON_DRAINING, "the daemon is shutting down; join again when it is back");
    if (st == STATUS_OK) st = session_join(r->session, s, name, &w, &e);
    if (refused(r, st, &e)) return;
    answer_json(r, json_pack("{s:I,s:s,s:I,s:o,s:I,s:I,s:b,s:o}", "rank", (json_int_t)w->rank, "name", w->name,
                             "num_workers", (json_int_t)store_num_workers(s), "members", members_json(s),
                             "job", (json_int_t)s->job, "first_step", (json_int_t)first_step(s),
                             "lowest", store_lowest(s) == w, "options", store_json(s, false)));
}

void method_Leave(struct request *r, json_t *in)
{
    struct store *s;
    struct worker *w;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    /* Who is not there has left: a repeat of Leave is no fault. */
    if (refused(r, st, &e)) return;
    if (session_worker(r->session, s, &w, &e) == STATUS_OK) session_leave(r->session, w);
    answer_json(r, json_object());
}

void method_Barrier(struct request *r, json_t *in)
{
    struct store *s;
    struct worker *w;
    struct bytes name;
    uint64_t ticket;
    struct error e;

    enum status st = only(in, ONLY("store", "name"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK) st = get_text(in, "name", false, &name, &e);
    if (st == STATUS_OK) st = session_worker(r->session, s, &w, &e);
    if (st == STATUS_OK) st = store_barrier(s, w, name, &ticket, &e);
    if (refused(r, st, &e)) return;
    answer_json(r, json_pack("{s:I}", "ticket", (json_int_t)ticket));
}

static struct worker *worker_named(const struct store *s, const json_t *who)
{
    for (size_t i = 0; i < s->worker_count; i++) {
        struct worker *w = s->workers[i];
        if (w == NULL || w->state == WORKER_LEFT) continue;
        if (json_is_integer(who) && json_integer_value(who) == (json_int_t)w->rank) return w;
        if (json_is_string(who) && strcmp(json_string_value(who), w->name) == 0) return w;
    }
    return NULL;
}

void method_Dismiss(struct request *r, json_t *in)
{
    struct store *s;
    struct worker *w = NULL;
    struct error e;

    enum status st = only(in, ONLY("store", "worker"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK) w = worker_named(s, json_object_get(in, "worker"));
    if (st == STATUS_OK && w == NULL)
        st = error_set(&e, REASON_NO_WORKER, "/worker: store '%s' has no worker of that name or rank", s->name);
    if (st == STATUS_OK && w->state != WORKER_DEAD)
        st = error_set(&e, REASON_BAD_ARGUMENT, "worker '%s' is alive; only a dead one can be dismissed", w->name);
    if (refused(r, st, &e)) return;
    store_dismiss(s, w);
    answer_json(r, json_object());
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

static json_t *key_json(const struct key *k, struct worker *w)
{
    json_t *shape = json_array();
    uint64_t next = w != NULL ? worker_tell_step(w, k) : 0;

    for (unsigned i = 0; i < k->shape.ndim; i++) json_array_append_new(shape, json_integer(k->shape.dims[i]));
    return json_pack("{s:o,s:s,s:I,s:s,s:o,s:I,s:I}", "key", key_name_json(&k->name),
                     "key_type", k->name.is_text ? "str" : "int", "id", (json_int_t)k->id,
                     "dtype", dtype_numpy(k->shape.dtype), "shape", shape, "version", (json_int_t)key_version(k),
                     "next_step", (json_int_t)next);
}

static struct worker *worker_or_null(struct request *r, const struct store *s)
{
    struct worker *w;
    return session_worker(r->session, s, &w, NULL) == STATUS_OK ? w : NULL;
}

void method_Describe(struct request *r, json_t *in)
{
    json_t *keys = json_object_get(in, "keys"), *items = NULL, *v;
    struct store *s;
    struct error e;
    size_t i;

    enum status st = only(in, ONLY("store", "keys"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK && !json_is_array(keys)) st = error_set(&e, REASON_BAD_ARGUMENT, "/keys: a list of keys");
    if (refused(r, st, &e)) return;
    struct worker *w = worker_or_null(r, s);
    items = json_array();
    json_array_foreach(keys, i, v) {
        struct key_name name;
        st = key_name_from_json(v, &name, &e);
        if (st == STATUS_OK) st = store_key_check(s, &name, &e);
        if (st != STATUS_OK) break;
        const struct key *k = store_key_find(s, &name);
        json_array_append_new(items, k != NULL ? key_json(k, w) : json_null());
    }
    if (st != STATUS_OK) json_decref(items);
    if (refused(r, st, &e)) return;
    answer_json(r, json_pack("{s:o}", "items", items));
}

static int by_name(const void *a, const void *b)
{
    const struct key *x = *(struct key *const *)a, *y = *(struct key *const *)b;

    if (!x->name.is_text) return x->name.number < y->name.number ? -1 : x->name.number > y->name.number;
    return bytes_compare(x->name.text, y->name.text);
}

/* The keys of a store that begin with prefix and come after `after`, in order; *count of them. NULL: no memory. */
static struct key **select_keys(const struct store *s, struct bytes prefix, const struct key_name *after, size_t *count)
{
    struct key **list = mem_array(s->slot_count + 1, sizeof *list);
    struct key pivot = {.slot = 0}, *at_pivot = &pivot;

    *count = 0;
    if (after != NULL) pivot.name = *after;
    for (size_t i = 0; list != NULL && i < s->slot_count; i++) {
        struct key *k = s->by_slot[i];
        if (k == NULL) continue;
        if (prefix.size > 0 && (!k->name.is_text || k->name.text.size < prefix.size ||
                                memcmp(k->name.text.at, prefix.at, prefix.size) != 0))
            continue;
        if (after != NULL && (k->name.is_text != after->is_text || by_name(&k, &at_pivot) <= 0)) continue;
        list[(*count)++] = k;
    }
    if (list != NULL) qsort(list, *count, sizeof *list, by_name);
    return list;
}

void method_List(struct request *r, json_t *in)
{
    json_t *after = json_object_get(in, "after"), *items;
    struct key_name pivot = {.is_text = false};
    struct bytes prefix;
    struct store *s;
    struct error e;
    uint32_t limit;
    size_t count;

    enum status st = only(in, ONLY("store", "prefix", "after", "limit"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK) st = get_text(in, "prefix", false, &prefix, &e);
    if (st == STATUS_OK) st = get_count(in, "limit", 1000, 5000, &limit, &e);
    if (st == STATUS_OK && after != NULL) st = key_name_from_json(after, &pivot, &e);
    if (refused(r, st, &e)) return;
    struct key **keys = select_keys(s, prefix, after != NULL ? &pivot : NULL, &count);
    if (keys == NULL) {
        error_set(&e, REASON_NO_MEMORY, "no memory for a list of keys");
        answer_error(r, &e);
        return;
    }
    struct worker *w = worker_or_null(r, s);
    items = json_array();
    for (size_t i = 0; i < count && i < limit; i++) json_array_append_new(items, key_json(keys[i], w));
    json_t *next = count > limit ? key_name_json(&keys[limit - 1]->name) : json_null();
    mem_free(keys);
    answer_json(r, json_pack("{s:o,s:o,s:I}", "items", items, "next", next, "total", (json_int_t)map_count(s->keys)));
}

static enum status delete_all(struct store *s, json_t *keys, bool force, bool really, struct error *e)
{
    enum status st = STATUS_OK;
    json_t *v;
    size_t i;

    json_array_foreach(keys, i, v) {
        struct key_name name;
        struct key *k = NULL;
        char text[KEY_PRINT_SIZE];
        st = key_name_from_json(v, &name, e);
        if (st == STATUS_OK) k = store_key_find(s, &name);
        if (st == STATUS_OK && k == NULL) st = store_no_key(s, &name, e);
        if (st == STATUS_OK && !force && k->rounds[0] != NULL)
            st = error_set(e, REASON_ROUND_OPEN, "a round of %s is open; wait for it, or force",
                           key_name_print(&name, text));
        if (st == STATUS_OK && really) st = store_key_delete(s, k, force, e);
        if (st != STATUS_OK) break;
    }
    return st;
}

void method_Delete(struct request *r, json_t *in)
{
    json_t *keys = json_object_get(in, "keys"), *force = json_object_get(in, "force");
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store", "keys", "force"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK && !json_is_array(keys)) st = error_set(&e, REASON_BAD_ARGUMENT, "/keys: a list of keys");
    if (st == STATUS_OK && force != NULL && !json_is_boolean(force))
        st = error_set(&e, REASON_BAD_ARGUMENT, "/force: true or false");
    /* First all are looked at, so that a fault in one leaves all as they are. A key named twice fails the second time
     * only in the second pass, when it is gone: that is what was asked for. */
    if (st == STATUS_OK) st = delete_all(s, keys, json_is_true(force), false, &e);
    if (refused(r, st, &e)) return;
    if (delete_all(s, keys, json_is_true(force), true, &e) != STATUS_OK) log_debug("server", "%s", e.text);
    answer_json(r, json_pack("{s:I}", "deleted", (json_int_t)json_array_size(keys)));
}

/* ---- updater ---------------------------------------------------------------------------------------------------- */

void method_SetUpdater(struct request *r, json_t *in)
{
    json_t *document = json_object_get(in, "updater");
    struct updater *u = NULL;
    char *text = NULL;
    bool changed = false;
    uint64_t version = 0;
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store", "updater"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK && document == NULL)
        st = error_set(&e, REASON_BAD_ARGUMENT, "/updater: a document such as {\"type\": \"sgd\"}, or null for assign");
    if (st == STATUS_OK) {
        text = json_dumps(document, JSON_COMPACT | JSON_ENCODE_ANY);
        st = text != NULL ? updater_parse(bytes_text(text), &u, &e)
                          : error_set(&e, REASON_NO_MEMORY, "no memory for an updater");
    }
    if (st == STATUS_OK) st = store_set_updater(s, u, &changed, &version, &e);
    if (st == STATUS_OK && changed) log_info("server", "store '%s': updater %s", s->name, updater_text(u));
    updater_drop(u);
    free(text);
    if (refused(r, st, &e)) return;
    answer_json(r, json_pack("{s:b,s:I}", "changed", changed, "effective_from_version", (json_int_t)version));
}

void method_GetUpdater(struct request *r, json_t *in)
{
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (refused(r, st, &e)) return;
    answer_json(r, json_pack("{s:o}", "updater", json_loads(updater_text(store_updater(s)), 0, NULL)));
}

/* ---- what can be seen ------------------------------------------------------------------------------------------- */

static json_t *round_json(const struct round *x, uint64_t now_ms)
{
    struct buf who = {0};

    round_missing(x, &who);
    json_t *j = json_pack("{s:o,s:I,s:f,s:I,s:I,s:s%}", "key", key_name_json(&x->key->name), "step", (json_int_t)x->step,
                          "age", (double)(now_ms - x->opened_ms) / 1000.0,
                          "contributions", (json_int_t)x->update.contributors, "missing", (json_int_t)x->missing,
                          "waiting", who.failed ? "" : (const char *)who.at, who.failed ? (size_t)0 : who.size);
    buf_fini(&who);
    return j;
}

static json_t *worker_json(const struct worker *w, uint64_t now_ms)
{
    static const char *const states[] = {"member", "left", "dead"};

    return json_pack("{s:s,s:I,s:s,s:I,s:f}", "name", w->name, "rank", (json_int_t)w->rank, "state", states[w->state],
                     "epoch", (json_int_t)w->epoch, "seen", (double)(now_ms - w->seen_ms) / 1000.0);
}

static json_t *store_stats(const struct store *s)
{
    json_t *rounds = json_array(), *workers = json_array();
    uint64_t now = s->core->now_ms;

    LIST_EACH(struct round, x, node, &s->rounds)
        if (json_array_size(rounds) < 100) json_array_append_new(rounds, round_json(x, now));
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i] != NULL) json_array_append_new(workers, worker_json(s->workers[i], now));
    return json_pack("{s:s,s:I,s:b,s:I,s:I,s:I,s:o,s:o,s:b}", "store", s->name, "job", (json_int_t)s->job,
                     "started", s->started, "keys", (json_int_t)map_count(s->keys), "members", (json_int_t)s->members,
                     "dead", (json_int_t)s->dead, "workers", workers, "rounds", rounds, "assign_by_several_workers",
                     s->assign_warned);
}

void method_Stats(struct request *r, json_t *in)
{
    const struct core_counters *n = &r->server->core.counters;
    struct store *s = NULL;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    if (st == STATUS_OK && json_object_get(in, "store") != NULL) st = get_store(r, in, &s, &e);
    if (refused(r, st, &e)) return;
    json_t *j = json_pack("{s:o,s:{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}}", "daemon",
                          server_info_json(r->server), "counters",
                          "pushes_recorded", (json_int_t)n->pushes_recorded,
                          "pushes_repeated", (json_int_t)n->pushes_repeated, "updates", (json_int_t)n->updates,
                          "rounds_closed", (json_int_t)n->rounds_closed, "rounds_failed", (json_int_t)n->rounds_failed,
                          "pulls", (json_int_t)n->pulls, "bytes_in", (json_int_t)n->bytes_in,
                          "bytes_out", (json_int_t)n->bytes_out, "versions_revoked", (json_int_t)n->versions_revoked,
                          "copies_down", (json_int_t)n->copies_down, "frames", (json_int_t)r->server->frames,
                          "frames_refused", (json_int_t)r->server->frames_refused);
    if (j != NULL && s != NULL) json_object_set_new(j, "store", store_stats(s));
    answer_json(r, j);
}
