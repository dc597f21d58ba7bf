/* The JSON methods. Each reads its document, does its one thing and answers; the first line of a fault is the
 * member's JSON pointer. */
#include "service/op.h"

#include "gpu/program.h"
#include "service/account.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/swap.h"
#include "service/updater_document.h"

#include <stdlib.h>
#include <string.h>

#define PARAMD_VERSION "0.1.0"
#define DEFAULT_STORE "default"
enum { ROUNDS_SHOWN = 100 };

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static struct bytes text_of(const json_t *v) { return bytes_of(json_string_value(v), json_string_length(v)); }

enum status only(json_t *in, const char *const *known, struct error *e)
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

/* Appends, taking the item; without memory for it the list goes and is NULL, since a list with a gap would be taken for
 * the whole. */
static void append(json_t **list, json_t *item)
{
    if (*list != NULL && json_array_append_new(*list, item) == 0) return;
    if (*list == NULL) json_decref(item);
    json_decref(*list);
    *list = NULL;
}

/* Sets a member, taking the value; without memory the object goes. */
static void set(json_t **object, const char *name, json_t *value)
{
    if (*object != NULL && json_object_set_new(*object, name, value) == 0) return;
    if (*object == NULL) json_decref(value);
    json_decref(*object);
    *object = NULL;
}

enum status get_text(json_t *in, const char *name, bool needed, struct bytes *out, struct error *e)
{
    json_t *v = json_object_get(in, name);

    *out = bytes_of("", 0);
    if (v == NULL && !needed) return STATUS_OK;
    if (!json_is_string(v)) return error_set(e, REASON_BAD_ARGUMENT, "/%s: a text", name);
    *out = text_of(v);
    return STATUS_OK;
}

enum status get_count(json_t *in, const char *name, uint32_t standard, uint32_t most, uint32_t *out,
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

enum status get_flag(json_t *in, const char *name, bool *out, struct error *e)
{
    json_t *v = json_object_get(in, name);

    *out = json_is_true(v);
    return v == NULL || json_is_boolean(v) ? STATUS_OK : error_set(e, REASON_BAD_ARGUMENT, "/%s: true or false", name);
}

enum status get_store(struct request *r, json_t *in, struct store **out, struct error *e)
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
        if (s == NULL && json_string_length(v) > STORE_NAME_SIZE_MAX)
            return error_set(e, REASON_NO_STORE, "there is no store of so long a name; %d bytes are the most",
                             STORE_NAME_SIZE_MAX);
        if (s == NULL)
            return error_set(e, REASON_NO_STORE, "there is no store '%s' yet; its first worker creates it, or: "
                             "paramctl store create %s dist_async", json_string_value(v), json_string_value(v));
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
    if (s->advertise != NULL) set(&j, "host", json_string(s->advertise));
    if (s->bulk_path != NULL) set(&j, "path", json_string(s->bulk_path));
    return j;
}

static json_t *methods_json(void)
{
    json_t *list = json_array();

    for (unsigned m = 1; m < WIRE_METHODS_END; m++)
        if (wire_method_name(m) != NULL) append(&list, json_string(wire_method_name(m)));
    return list;
}

static uint64_t window_of(const struct server *s) { return account_staging_most(&s->core) / 2; }

static json_t *limits_json(const struct server *s)
{
    return json_pack("{s:i,s:i,s:i,s:i,s:I}", "frame", FRAME_SIZE_MAX, "part", PART_SIZE, "in_flight_bulk",
                     IN_FLIGHT_BULK, "in_flight_small", IN_FLIGHT_SMALL, "window", (json_int_t)window_of(s));
}

static json_t *programs_json(struct device *d)
{
    struct device_programs p;

    device_programs(d, &p);
    return json_pack("{s:I,s:I,s:i,s:i,s:i,s:s?}", "compiled", (json_int_t)p.compiled, "interpreted",
                     (json_int_t)p.interpreted, "ready", (int)p.ready, "waiting", (int)p.waiting, "refused", (int)p.refused,
                     "why", p.why[0] != '\0' ? p.why : NULL);
}

json_t *server_info_json(const struct server *s)
{
    const struct core *c = &s->core;

    return json_pack("{s:s,s:o,s:s,s:s?,s:o,s:f,s:i,s:i,s:I,s:{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I},s:o,s:o,s:o,s:f}",
                     "version", PARAMD_VERSION, "instance", hex_json(&s->config.instance),
                     "device", device_kind(c->device), "card", c->device->card[0] != '\0' ? c->device->card : NULL,
                     "programs", programs_json(c->device),
                     "uptime", (double)(c->now_ms - s->started_ms) / 1000.0,
                     "stores", (int)map_count(c->stores), "clients", (int)(s->session_count - s->own_sessions),
                     "keys_on_cpu", (json_int_t)c->keys_on_cpu,
                     "memory", "device", (json_int_t)c->device->bytes_held,
                     "cpu", (json_int_t)(c->device->cpu != NULL ? c->device->cpu->bytes_held : 0),
                     "staging", (json_int_t)c->staging_used, "staging_max", (json_int_t)c->staging_max,
                     "used", (json_int_t)account_used(c), "max", (json_int_t)c->limits.memory_max,
                     "cached", (json_int_t)core_mem_cached(c),
                     "mailboxes", (json_int_t)s->box_bytes,
                     "heap", (json_int_t)mem_heap(), "blocks", (json_int_t)mem_live(),
                     "bulk", bulk_json(s), "mailbox", mailbox_offer(s), "limits", limits_json(s),
                     "longest_turn", (double)s->turn_ns_max / 1e9);
}

/* One line for a machine that tries (the log folds them): without the port, which is another one each time. */
static enum status refuse_token(struct peer *p, struct bytes token, struct error *e)
{
    const char *port = strncmp(p->address, "tcp:", 4) == 0 ? strrchr(p->address, ':') : strchr(p->address, ',');
    const char *what = token.size == 0 ? "missing" : "wrong";

    p->wrong_tokens += token.size > 0;
    log_warn("server", "%.*s said HELLO with a %s token; --token-file holds the right one",
             (int)(port != NULL ? (size_t)(port - p->address) : strlen(p->address)), p->address, what);
    if (p->wrong_tokens >= WRONG_TOKENS_MAX && p->ops->hang_up != NULL) p->ops->hang_up(p->link);
    return error_set(e, REASON_BAD_TOKEN, "the token is %s; give the one of the daemon's --token-file", what);
}

/* What comes after so many wrong ones in one go is not even compared, where the connection is about to end. */
static bool may_try_token(const struct peer *p) { return p->wrong_tokens < WRONG_TOKENS_MAX || p->ops->hang_up == NULL; }

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
    if (st == STATUS_OK && (!may_try_token(r->peer) || !token_fits(s, token))) st = refuse_token(r->peer, token, &e);
    /* One that could speak for many would need no connections to keep many clients alive. */
    if (st == STATUS_OK && r->session != NULL && memcmp(&r->session->id, &r->header.worker, sizeof r->header.worker) != 0)
        st = error_set(&e, REASON_BAD_ARGUMENT, "another client has said HELLO on this connection; open one for each");
    if (st == STATUS_OK) st = session_hello(s, &r->header, name, &session, &e);
    if (refused(r, st, &e)) return;
    if (r->peer->ops->admin && r->peer->session == NULL) s->own_sessions++;
    session_attach(session, r->peer);
    session_touch(session);
    r->session = session;
    answer_json(r, json_pack("{s:o,s:I,s:I,s:[i],s:s,s:s,s:b,s:o,s:o,s:o,s:[s],s:o,s:i}",
                             "instance", hex_json(&s->config.instance), "session", (json_int_t)session->number,
                             "epoch", (json_int_t)session->epoch, "versions", WIRE_VERSION,
                             "version", PARAMD_VERSION, "device", device_kind(s->core.device),
                             "plane", s->core.device->ops->queue_call != NULL, "bulk", bulk_json(s),
                             "mailbox", mailbox_offer(s), "limits", limits_json(s),
                             "members", "self", "methods", methods_json(), "heartbeat_ms", HEARTBEAT_MS));
}

void method_Mailbox(struct request *r, json_t *in)
{
    struct bytes host;
    uint32_t size;
    struct error e;
    enum status st = only(in, ONLY("host", "size"), &e);

    if (st == STATUS_OK) st = get_text(in, "host", false, &host, &e);
    if (st == STATUS_OK) st = get_count(in, "size", 0, MAILBOX_SIZE_MAX, &size, &e);
    if (refused(r, st, &e)) return;
    mailbox_open(r, host, size);
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
        append(&list, json_pack("{s:I,s:I,s:I,s:I}", "id", (json_int_t)w->store->id, "rank", (json_int_t)w->rank,
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
    if (create && wanted.needs_gpu && c->device->card[0] == '\0')
        st = error_set(&e, REASON_NO_GPU, "a store of type '%s' sums on GPUs, and this one has the %s device; device, "
                       "dist_sync and dist_async give the same values there", wanted.type, device_kind(c->device));
    else if (create) st = store_new(c, name, &wanted, r->session->share, &s, &e);
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

/* `default` is there from the start; the first Create of it decides what it is. Private stores have none. */
static bool default_unset(const struct server *s)
{
    return !s->core.embedded && store_find(&s->core, bytes_text(DEFAULT_STORE)) == NULL;
}

bool is_unset_default(const struct request *r, json_t *in)
{
    json_t *v = json_object_get(in, "store");
    return json_is_string(v) && strcmp(json_string_value(v), DEFAULT_STORE) == 0 && default_unset(r->server);
}

static json_t *key_type_json(const struct store *s)
{
    return s == NULL || s->kind == KEYS_UNDECIDED ? json_null() : json_string(s->kind == KEYS_INT ? "int" : "str");
}

/* A row of the list; NULL: `default` before its first Create. */
static json_t *store_row(const struct store *s)
{
    return json_pack("{s:s,s:I,s:s?,s:o,s:I,s:I,s:I}", "store", s != NULL ? s->name : DEFAULT_STORE,
                     "id", s != NULL ? (json_int_t)s->id : 0, "type", s != NULL ? s->options.type : NULL,
                     "key_type", key_type_json(s), "keys", s != NULL ? (json_int_t)map_count(s->keys) : 0,
                     "workers", s != NULL ? (json_int_t)s->members : 0, "dead", s != NULL ? (json_int_t)s->dead : 0);
}

static int by_name(const void *a, const void *b)
{
    const struct store *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* By name: what a person reads, and picks from, has an order that stays. */
void method_ListStores(struct request *r, json_t *in)
{
    const struct map *stores = r->server->core.stores;
    size_t at = 0, count = 0;
    struct error e;
    const struct store **all = mem_new((map_count(stores) + 1) * sizeof *all);

    (void)in;
    if (all == NULL) {
        (void)refused(r, error_set(&e, REASON_NO_MEMORY, "no memory for the list of stores"), &e);
        return;
    }
    json_t *items = json_array();
    while ((all[count] = map_next(stores, &at)) != NULL) count++;
    qsort(all, count, sizeof *all, by_name);
    if (default_unset(r->server)) append(&items, store_row(NULL));
    for (size_t i = 0; i < count; i++) append(&items, store_row(all[i]));
    mem_free(all);
    answer_json(r, json_pack("{s:o}", "items", items));
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

static json_t *members_json(const struct store *s)
{
    json_t *list = json_array();

    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        if (w == NULL || w->state != WORKER_MEMBER) continue;
        append(&list, json_pack("{s:I,s:s}", "rank", (json_int_t)w->rank, "name", w->name));
    }
    return list;
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
    answer_json(r, json_pack("{s:I,s:s,s:I,s:o,s:I,s:I,s:b,s:o,s:I}", "rank", (json_int_t)w->rank, "name", w->name,
                             "num_workers", (json_int_t)store_num_workers(s), "members", members_json(s),
                             "job", (json_int_t)s->job, "first_step", (json_int_t)(s->opened_step + 1),
                             "lowest", store_lowest(s) == w, "options", store_json(s, false),
                             "heartbeat_ms", (json_int_t)((s->options.worker_timeout + 2) / 3)));
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
        st = error_set(&e, REASON_NO_WORKER, "/worker: store '%s' has no worker of that name or rank; `paramctl "
                       "workers` lists them", s->name);
    if (st == STATUS_OK && w->state != WORKER_DEAD)
        st = error_set(&e, REASON_BAD_ARGUMENT, "worker '%s' is alive; only a dead one can be dismissed", w->name);
    if (refused(r, st, &e)) return;
    store_dismiss(s, w);
    answer_json(r, json_object());
}

/* ---- updater ---------------------------------------------------------------------------------------------------- */

/* Names the content: equal updaters, equal text. */
enum { ETAG_SIZE = 17 };

static const char *updater_etag(const struct store *s, char out[ETAG_SIZE])
{
    uint64_t hash = 0xcbf29ce484222325;

    for (const char *c = updater_text(store_updater(s)); *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    snprintf(out, ETAG_SIZE, "%016llx", (unsigned long long)hash);
    return out;
}

/* What becomes of the slots: "keep" when left out. */
static enum status get_states(json_t *in, enum updater_states *how, struct error *e)
{
    static const char *const words[] = {[STATES_KEEP] = "keep", [STATES_RESET] = "reset", [STATES_CONVERT] = "convert"};
    struct bytes word;
    enum status st = get_text(in, "states", false, &word, e);

    *how = STATES_KEEP;
    if (st != STATUS_OK || word.size == 0) return st;
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++)
        if (bytes_equal(word, bytes_text(words[i]))) {
            *how = (enum updater_states)i;
            return STATUS_OK;
        }
    return error_set(e, REASON_BAD_ARGUMENT, "/states: must be keep, reset or convert");
}

/* Settings borrow the document's names. */
static enum status get_params(json_t *in, struct program_setting out[PROGRAM_PARAMS_MAX], unsigned *count, struct error *e)
{
    json_t *params = json_object_get(in, "params"), *value;
    const char *name;

    *count = 0;
    if (params != NULL && !json_is_object(params)) return error_set(e, REASON_BAD_ARGUMENT, "/params: an object");
    json_object_foreach(params, name, value) {
        if (!json_is_number(value)) return error_set(e, REASON_BAD_ARGUMENT, "/params/%.64s: a number", name);
        if (*count == PROGRAM_PARAMS_MAX)
            return error_set(e, REASON_BAD_ARGUMENT, "/params: at most %d members", PROGRAM_PARAMS_MAX);
        out[(*count)++] = (struct program_setting){bytes_text(name), json_number_value(value)};
    }
    return STATUS_OK;
}

/* What a program document needs and does; NULL for other documents. */
static json_t *document_report(json_t *document)
{
    struct program_setting params[PROGRAM_PARAMS_MAX];
    const json_t *text = json_object_get(document, "text");
    struct buf report = {0};
    json_t *j = NULL;
    unsigned count;

    if (json_is_string(text) && get_params(document, params, &count, NULL) == STATUS_OK &&
        program_report(text_of(text), params, count, &report, NULL) == STATUS_OK)
        j = json_loadb((const char *)report.at, report.size, 0, NULL);
    buf_fini(&report);
    return j;
}

static enum status read_updater(const json_t *document, struct updater **out, struct error *e)
{
    struct buf text = {0};

    if (document == NULL)
        return error_set(e, REASON_BAD_ARGUMENT, "/updater: a document such as {\"type\": \"sgd\"}, or null for assign");
    enum status st = json_text(document, JSON_COMPACT | JSON_ENCODE_ANY, &text)
                         ? updater_parse(bytes_of(text.at, text.size), out, e)
                         : error_set(e, REASON_NO_MEMORY, "no memory for an updater");
    buf_fini(&text);
    return st;
}

/* SetUpdater, or a question after what it would do, in pieces: all keys are looked at; what is asked for is done; or a
 * report is made, of looks at the keys again. */
struct swapping {
    struct job job;
    struct request *request;
    json_t *in;                      /* held */
    json_t *would_be;                /* the document, lent by `in`; NULL: the swap is to be done */
    bool tells_updater;              /* how the updater reads with every number is told, too */
    struct bytes etag;               /* size 0: none was given */
    struct store_swap swap;
    struct swap_report *report;      /* owned; NULL: not begun */
    json_t *dropped;                 /* what the present updater has and the document leaves out; owned; NULL: not looked for */
};

static void swapping_free(struct swapping *x)
{
    swap_report_free(x->report);
    json_decref(x->dropped);
    swap_end(&x->swap);
    json_decref(x->in);
    request_free(x->request);
    mem_free(x);
}

static void warn_of_dropped(json_t *report, const json_t *dropped)
{
    size_t i;
    json_t *row;

    json_array_foreach(dropped, i, row) {
        struct buf from = {0}, to = {0};
        if (json_text(json_object_get(row, "from"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(9), &from) &&
            json_text(json_object_get(row, "to"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(9), &to))
            json_array_append_new(json_object_get(report, "warnings"),
                                  json_sprintf("/%s: goes from %.*s back to its default, %.*s, as the document does not say it",
                                               json_string_value(json_object_get(row, "name")), (int)from.size,
                                               (const char *)from.at, (int)to.size, (const char *)to.at));
        buf_fini(&from);
        buf_fini(&to);
    }
}

static void swapping_answer(struct swapping *x, bool changed)
{
    struct store *s = x->swap.store;
    json_t *j = json_pack("{s:b,s:I,s:O}", "changed", changed, "effective_from_version", (json_int_t)x->swap.version,
                          "dropped", x->dropped);
    json_t *program = x->would_be != NULL ? document_report(x->would_be) : NULL;

    if (changed) set(&j, "first_versions", swap_first_versions(s));
    if (program != NULL) set(&j, "program", program);
    if (x->report != NULL) set(&j, "report", swap_report_json(x->report, s));
    if (x->report != NULL && j != NULL) warn_of_dropped(json_object_get(j, "report"), x->dropped);
    if (x->tells_updater) set(&j, "updater", json_loads(updater_text(x->swap.updater), 0, NULL));
    answer_json(x->request, j);
    swapping_free(x);
}

static bool swapping_refused(struct swapping *x, enum status st, const struct error *e)
{
    if (st == STATUS_OK) return false;
    answer_error(x->request, e);
    swapping_free(x);
    return true;
}

static enum status check_etag(const struct store *s, struct bytes etag, struct error *e)
{
    char present[ETAG_SIZE];

    if (etag.size == 0 || bytes_equal(etag, bytes_text(updater_etag(s, present)))) return STATUS_OK;
    return error_set(e, REASON_ETAG_MISMATCH, "the updater of store '%s' is another by now: its etag is %s", s->name,
                     present);
}

/* false: the turn has no time for the rest of it. */
static bool make_report(struct swapping *x, enum status *st, struct error *e)
{
    struct store_swap *w = &x->swap;

    if (x->report == NULL) {
        updater_follow(w->updater, w->store->updater, w->how);
        x->report = swap_report_new(w->store, w->updater, w->how);
        if (x->report == NULL) *st = error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory for a report");
    }
    return *st != STATUS_OK || swap_report_look(x->report, w->store);
}

static bool swapping_piece(struct job *j)
{
    struct swapping *x = CONTAINER_OF(j, struct swapping, job);
    struct store_swap *w = &x->swap;
    enum status st = STATUS_OK;
    struct error e;

    if (!swap_look(w)) return false;
    if (swapping_refused(x, w->why.reason != REASON_NONE ? w->why.status : STATUS_OK, &w->why)) return true;
    if (x->would_be != NULL && !make_report(x, &st, &e)) return false;
    if (st == STATUS_OK) st = check_etag(w->store, x->etag, &e); /* as it is at the moment of the swap */
    if (swapping_refused(x, st, &e)) return true;
    bool changed = swap_changes(w);
    if (changed) st = swap_check_room(w, &e);
    x->dropped = document_dropped(store_updater(w->store), w->updater, json_object_get(x->in, "updater"));
    if (st == STATUS_OK && x->dropped == NULL) st = error_set(&e, REASON_NO_MEMORY, "no memory to compare updaters");
    if (swapping_refused(x, st, &e)) return true;
    if (x->would_be == NULL) swap_commit(w);
    if (changed && x->would_be == NULL) {
        log_info("server", "store '%s': updater %s", w->store->name, updater_text(w->updater));
    }
    swapping_answer(x, changed);
    return true;
}

/* u: held by the caller. */
static void swapping_begin(struct request *r, json_t *in, struct store *s, struct updater *u, enum updater_states how,
                           struct bytes etag, json_t *would_be)
{
    struct swapping *x = mem_zero(sizeof *x);
    struct error e;

    if (x != NULL) x->request = request_keep(r);
    if (x == NULL || x->request == NULL) {
        mem_free(x);
        error_retry(&e, REASON_NO_MEMORY, RETRY_MS, "no memory for a swap");
        answer_error(r, &e);
        return;
    }
    x->job.run = swapping_piece;
    x->in = json_incref(in);
    x->would_be = would_be;
    x->tells_updater = r->header.method == WIRE_UpdaterCheck;
    x->etag = etag;
    swap_begin(&x->swap, s, u, how);
    request_begin(x->request, &x->job);
}

void method_SetUpdater(struct request *r, json_t *in)
{
    enum updater_states how;
    json_t *document = json_object_get(in, "updater");
    struct updater *u = NULL;
    bool dry_run;
    struct bytes etag;
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store", "updater", "states", "etag", "dry_run"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK) st = get_text(in, "etag", false, &etag, &e);
    if (st == STATUS_OK) st = get_flag(in, "dry_run", &dry_run, &e);
    if (st == STATUS_OK) st = get_states(in, &how, &e);
    if (st == STATUS_OK) st = check_etag(s, etag, &e);
    if (st == STATUS_OK) st = read_updater(document, &u, &e);
    if (!refused(r, st, &e)) swapping_begin(r, in, s, u, how, etag, dry_run ? document : NULL);
    updater_drop(u);
}

/* A text, for which no store is asked. */
static void check_text(struct request *r, json_t *in)
{
    struct program_setting params[PROGRAM_PARAMS_MAX];
    struct buf report = {0};
    struct bytes text;
    unsigned count;
    struct error e;

    enum status st = only(in, ONLY("text", "params"), &e);
    if (st == STATUS_OK) st = get_text(in, "text", true, &text, &e);
    if (st == STATUS_OK) st = get_params(in, params, &count, &e);
    if (st == STATUS_OK) st = program_report(text, params, count, &report, &e);
    if (!refused(r, st, &e)) answer_json(r, json_loadb((const char *)report.at, report.size, 0, NULL));
    buf_fini(&report);
}

/* A document; and where a store is named, what would become of it. */
static void check_document(struct request *r, json_t *in)
{
    json_t *document = json_object_get(in, "updater"), *j = NULL;
    enum updater_states how;
    struct updater *u = NULL;
    struct store *s = NULL;
    struct error e;

    enum status st = only(in, ONLY("updater", "store", "states"), &e);
    if (st == STATUS_OK && json_object_get(in, "store") != NULL) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK) st = get_states(in, &how, &e);
    if (st == STATUS_OK) st = read_updater(document, &u, &e);
    if (refused(r, st, &e)) goto out;
    if (s != NULL) {
        swapping_begin(r, in, s, u, how, (struct bytes){NULL, 0}, document);
        goto out;
    }
    j = json_pack("{s:o*}", "program", document_report(document));
    set(&j, "updater", json_loads(updater_text(u), 0, NULL));
    answer_json(r, j);
out:
    updater_drop(u);
}

void method_UpdaterCheck(struct request *r, json_t *in)
{
    if (json_object_get(in, "updater") != NULL) check_document(r, in);
    else check_text(r, in);
}

void method_GetUpdater(struct request *r, json_t *in)
{
    char etag[ETAG_SIZE];
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (refused(r, st, &e)) return;
    answer_json(r, json_pack("{s:o,s:s}", "updater", json_loads(updater_text(store_updater(s)), 0, NULL), "etag",
                             updater_etag(s, etag)));
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

    LIST_EACH(struct round, x, node, &s->rounds) {
        if (json_array_size(rounds) >= ROUNDS_SHOWN) break;
        append(&rounds, round_json(x, now));
    }
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i] != NULL) append(&workers, worker_json(s->workers[i], now));
    return json_pack("{s:s,s:I,s:b,s:I,s:I,s:I,s:o,s:o,s:b}", "store", s->name, "job", (json_int_t)s->job,
                     "started", s->started, "keys", (json_int_t)map_count(s->keys), "members", (json_int_t)s->members,
                     "dead", (json_int_t)s->dead, "workers", workers, "rounds", rounds, "assign_by_several_workers",
                     s->assign_warned);
}

void method_KeyStats(struct request *r, json_t *in)
{
    json_t *key = json_object_get(in, "key"), *keys = json_object_get(in, "keys"), *names = NULL;
    struct store *s;
    struct error e;

    enum status st = only(in, ONLY("store", "key", "keys"), &e);
    if (st == STATUS_OK) st = get_store(r, in, &s, &e);
    if (st == STATUS_OK && (key != NULL) == (keys != NULL))
        st = error_set(&e, REASON_BAD_ARGUMENT, "/key: one key, or /keys: a list of them");
    if (st == STATUS_OK && keys != NULL && (!json_is_array(keys) || json_array_size(keys) > STATS_KEYS_MAX))
        st = error_set(&e, REASON_BAD_ARGUMENT, "/keys: a list of at most %d keys", STATS_KEYS_MAX);
    if (st == STATUS_OK) {
        names = key != NULL ? json_pack("[O]", key) : json_incref(keys);
        if (names == NULL) st = error_set(&e, REASON_NO_MEMORY, "no memory for statistics");
    }
    if (!refused(r, st, &e)) key_stats_look(r, s, names, key != NULL);
    json_decref(names);
}

static json_t *reasons_json(const uint64_t counts[REASONS_END])
{
    json_t *j = json_object();

    for (int i = 0; i < REASONS_END; i++)
        if (counts[i] > 0) set(&j, reason_code((enum reason)i), json_integer((json_int_t)counts[i]));
    return j;
}

/* Lists of values that the GPUs have summed, and by what. */
static json_t *lists_json(const struct core *c)
{
    const char *by = c->sums != NULL ? sums_kind(c->sums) : NULL, *why = by != NULL ? sums_why_not(c->sums) : "";

    return json_pack("{s:I,s:s?,s:s?}", "summed", (json_int_t)c->counters.lists_summed, "by", by,
                     "why_not_nccl", why[0] != '\0' ? why : NULL);
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
    if (r->server->core.embedded) set(&j, "lists", lists_json(&r->server->core));
    set(&j, "refused", reasons_json(r->server->refused));
    set(&j, "connections_refused", reasons_json(r->server->connections_refused));
    if (s != NULL) set(&j, "store", store_stats(s));
    answer_json(r, j);
}

void method_GetStore(struct request *r, json_t *in)
{
    struct store *s = NULL;
    char etag[ETAG_SIZE];
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    bool unset = st == STATUS_OK && is_unset_default(r, in);
    if (st == STATUS_OK && !unset) st = get_store(r, in, &s, &e);
    if (refused(r, st, &e)) return;
    json_t *j = store_row(s);
    if (j != NULL && s != NULL) {
        set(&j, "bytes", json_integer((json_int_t)s->bytes));
        set(&j, "job", json_integer((json_int_t)s->job));
        set(&j, "started", json_boolean(s->started));
        set(&j, "updater", json_loads(updater_text(store_updater(s)), 0, NULL));
        set(&j, "updater_etag", json_string(updater_etag(s, etag)));
        if (j != NULL && !options_json(&s->options, j)) {
            json_decref(j);
            j = NULL;
        }
    }
    answer_json(r, j);
}

void method_ResetStore(struct request *r, json_t *in)
{
    struct store *s = NULL;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    bool unset = st == STATUS_OK && is_unset_default(r, in);
    if (st == STATUS_OK && !unset) st = get_store(r, in, &s, &e);
    if (refused(r, st, &e)) return;
    size_t count = s != NULL ? map_count(s->keys) : 0;
    if (s != NULL) {
        store_reset(s);
        log_info("server", "store '%s' is reset: %zu keys are gone", s->name, count);
    }
    answer_json(r, json_pack("{s:I}", "deleted", (json_int_t)count));
}

void method_Workers(struct request *r, json_t *in)
{
    struct store *s = NULL;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    bool unset = st == STATUS_OK && is_unset_default(r, in);
    if (st == STATUS_OK && !unset) st = get_store(r, in, &s, &e);
    if (refused(r, st, &e)) return;
    json_t *items = json_array();
    for (size_t i = 0; s != NULL && i < s->worker_count; i++)
        if (s->workers[i] != NULL) append(&items, worker_json(s->workers[i], s->core->now_ms));
    answer_json(r, json_pack("{s:o}", "items", items));
}

static json_t *missing_json(const struct round *x)
{
    const struct store *s = x->key->store;
    json_t *list = json_array();

    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        if (w == NULL || !round_needs(x, w) || round_has(x, w)) continue;
        append(&list, json_pack("{s:s,s:I}", "name", w->name, "rank", (json_int_t)w->rank));
    }
    return list;
}

static json_t *barriers_json(const struct store *s)
{
    json_t *list = json_array();
    size_t at = 0;

    for (const struct barrier *b; (b = map_next(s->barriers, &at)) != NULL;) {
        struct buf who = {0};
        barrier_missing(s, b, &who);
        append(&list, json_pack("{s:s,s:f,s:s%}", "name", b->name, "age",
                                              (double)(s->core->now_ms - b->opened_ms) / 1000.0, "waiting",
                                              who.failed ? "" : (const char *)who.at, who.failed ? (size_t)0 : who.size));
        buf_fini(&who);
    }
    return list;
}

/* What hangs, since when, and who is missing; the oldest rounds first. */
void method_Rounds(struct request *r, json_t *in)
{
    struct store *s = NULL;
    struct error e;

    enum status st = only(in, ONLY("store"), &e);
    bool unset = st == STATUS_OK && is_unset_default(r, in);
    if (st == STATUS_OK && !unset) st = get_store(r, in, &s, &e);
    if (refused(r, st, &e)) return;
    json_t *items = json_array(), *barriers = s != NULL ? barriers_json(s) : json_array();
    if (s != NULL)
        LIST_EACH(struct round, x, node, &s->rounds) {
            if (json_array_size(items) >= ROUNDS_SHOWN) break;
            json_t *j = round_json(x, s->core->now_ms);
            set(&j, "missing", missing_json(x));
            append(&items, j);
        }
    answer_json(r, json_pack("{s:o,s:o,s:I}", "items", items, "barriers", barriers, "total",
                             (json_int_t)(s != NULL ? s->round_count : 0)));
}
