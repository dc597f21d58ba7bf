/* The documents of the admin port, except keys and their values (keys.c). */
#include "web/page.h"
#include "web/routes.h"
#include "web/tags.h"
#include "web/value.h"

#include "service/updater.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ---- the page --------------------------------------------------------------------------------------------------- */

void say_file(struct exchange *x, struct bytes file, const char *type)
{
    x->code = 200;
    x->type = type;
    x->fixed = file.at;
    x->fixed_size = file.size;
    say_header(x, "Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
               "'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
    say_header(x, "Referrer-Policy", "no-referrer");
    say_header(x, "Cross-Origin-Opener-Policy", "same-origin");
}

void handle_page(struct exchange *x) { say_file(x, page_html(), "text/html; charset=utf-8"); }
void handle_page_css(struct exchange *x) { say_file(x, page_css(), "text/css; charset=utf-8"); }
void handle_page_js(struct exchange *x) { say_file(x, page_js(), "text/javascript; charset=utf-8"); }

/* ---- what is here ----------------------------------------------------------------------------------------------- */

void handle_index(struct exchange *x)
{
    json_t *items = json_array();

    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        if (routes[i].face != HTTP_ADMIN) continue;
        json_array_append_new(items, json_pack("{s:s,s:s,s:s,s:s}", "method", routes[i].method, "path", routes[i].path,
                                               "query", routes[i].query, "about", routes[i].about));
    }
    say_json(x, 200, json_pack("{s:o,s:n,s:I}", "items", items, "next_cursor", "total",
                               (json_int_t)json_array_size(items)));
}

void handle_problem_type(struct exchange *x)
{
    for (uint32_t i = 1; reason_from_wire(i) == (enum reason)i; i++) {
        enum reason r = (enum reason)i;
        if (strcmp(reason_code(r), x->name) != 0) continue;
        say_json(x, 200, json_pack("{s:s,s:s,s:i,s:s}", "code", reason_code(r), "title", reason_title(r), "status",
                                   (int)reason_http(r), "status_name", status_name(reason_status(r))));
        return;
    }
    say_problem(x, REASON_NO_PATH, "there is no error with this code");
}

void handle_info(struct exchange *x)
{
    json_t *said = ask(x, WIRE_Stats, json_object());

    if (said != NULL) say_json(x, 200, json_incref(json_object_get(said, "daemon")));
    json_decref(said);
}

void handle_livez(struct exchange *x)
{
    if (exchange_is_alive(x)) say_text(x, 200, "alive\n");
    else say_text(x, 503, "the core has taken no mail for half a minute\n");
}

void handle_readyz(struct exchange *x)
{
    if (exchange_is_ready(x)) say_text(x, 200, "ready\n");
    else say_text(x, 503, "not ready: starting or draining\n");
}

/* ---- stores ----------------------------------------------------------------------------------------------------- */

static json_t *store_name(const struct exchange *x) { return json_pack("{s:s}", "store", x->store); }

/* A list as all lists are answered: everything at once. */
static void say_list(struct exchange *x, json_t *said)
{
    if (said == NULL) return;
    if (json_object_get(said, "total") == NULL)
        json_object_set_new(said, "total", json_integer((json_int_t)json_array_size(json_object_get(said, "items"))));
    json_object_set_new(said, "next_cursor", json_null());
    say_json(x, 200, said);
}

void handle_stores(struct exchange *x) { say_list(x, ask(x, WIRE_ListStores, json_object())); }

void handle_store_get(struct exchange *x)
{
    json_t *said = ask(x, WIRE_GetStore, store_name(x));
    if (said != NULL) say_json(x, 200, said);
}

static bool read_body(struct exchange *x, json_t **out)
{
    struct bytes body = bytes_of(x->body.at, x->body.size);
    json_error_t why;
    struct error e;

    if (json_check_depth(body, &e) != STATUS_OK) {
        say_error(x, &e, NULL);
        return false;
    }
    *out = json_loadb(body.at != NULL ? body.at : "", body.size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (*out != NULL) return true;
    say_problem(x, REASON_BAD_JSON, "line %d, column %d: %s", why.line, why.column, why.text);
    return false;
}

static void say_location(struct exchange *x, const char *store)
{
    struct buf b = {0};

    target_encode(&b, bytes_text(store));
    if (!b.failed) say_header(x, "Location", "/v1/stores/%.*s", (int)b.size, (const char *)b.at);
    buf_fini(&b);
}

void handle_store_create(struct exchange *x)
{
    json_t *in, *made, *said;

    if (!read_body(x, &in)) return;
    made = ask(x, WIRE_Create, in);
    if (made == NULL) return;
    bool created = json_is_true(json_object_get(made, "created"));
    x->store = json_string_value(json_object_get(made, "store"));
    said = ask(x, WIRE_GetStore, store_name(x));
    if (said != NULL) {
        json_object_set_new(said, "created", json_boolean(created));
        say_location(x, x->store);
        say_json(x, created ? 201 : 200, said);
    }
    json_decref(made);
}

void handle_store_delete(struct exchange *x)
{
    json_t *said = ask(x, WIRE_DeleteStore, store_name(x));

    if (said != NULL) say_nothing(x, 204);
    json_decref(said);
}

void handle_store_reset(struct exchange *x)
{
    json_t *said = ask(x, WIRE_ResetStore, store_name(x));
    if (said != NULL) say_json(x, 200, said);
}

/* Keys as text, whatever they are. */
static void add_key_types(json_t *items)
{
    json_t *item;
    size_t i;

    json_array_foreach(items, i, item) {
        json_t *key = json_object_get(item, "key");
        char text[32];
        json_object_set_new(item, "key_type", json_string(json_is_integer(key) ? "int" : "str"));
        if (!json_is_integer(key)) continue;
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(key));
        json_object_set_new(item, "key", json_string(text));
    }
}

/* ---- workers and rounds ----------------------------------------------------------------------------------------- */

/* The core counts ages; the wall clock is ours. */
static void add_since(json_t *items)
{
    struct timespec now;
    json_t *item;
    size_t i;

    clock_gettime(CLOCK_REALTIME, &now);
    json_array_foreach(items, i, item) {
        double at = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - json_real_value(json_object_get(item, "age"));
        time_t whole = (time_t)at;
        char text[40], day[32];
        struct tm tm;
        gmtime_r(&whole, &tm);
        strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
        snprintf(text, sizeof text, "%s.%03dZ", day, (int)((at - (double)whole) * 1000));
        json_object_set_new(item, "since", json_string(text));
        json_object_set_new(item, "since_unix_ms", json_integer((json_int_t)(at * 1000)));
    }
}

void handle_workers(struct exchange *x) { say_list(x, ask(x, WIRE_Workers, store_name(x))); }

void handle_rounds(struct exchange *x)
{
    json_t *said = ask(x, WIRE_Rounds, store_name(x));

    if (said == NULL) return;
    add_since(json_object_get(said, "items"));
    add_since(json_object_get(said, "barriers"));
    add_key_types(json_object_get(said, "items"));
    say_list(x, said);
}

/* By name; who has a number for a name is found by name first, then by rank. */
void handle_dismiss(struct exchange *x)
{
    json_t *said = ask_quietly(x, WIRE_Dismiss, json_pack("{s:s,s:s}", "store", x->store, "worker", x->worker));
    size_t digits = strspn(x->worker, "0123456789");

    if (said == NULL && x->error.reason == REASON_NO_WORKER && x->worker[digits] == '\0' && digits < 10)
        said = ask_quietly(x, WIRE_Dismiss, json_pack("{s:s,s:I}", "store", x->store, "worker",
                                                      (json_int_t)strtoll(x->worker, NULL, 10)));
    if (said != NULL) say_nothing(x, 204);
    else say_error(x, &x->error, NULL);
    json_decref(said);
}

/* ---- the updater ------------------------------------------------------------------------------------------------ */

void handle_updater_get(struct exchange *x)
{
    json_t *said = ask(x, WIRE_GetUpdater, store_name(x));
    const char *tag = json_string_value(json_object_get(said, "etag"));

    if (said == NULL) return;
    say_header(x, "ETag", "\"%s\"", tag);
    if (tag_listed(exchange_header(x, "If-None-Match"), tag)) say_nothing(x, 304);
    else say_json(x, 200, json_incref(json_object_get(said, "updater")));
    json_decref(said);
}

/* Lines "/pointer: sentence" as [{pointer, detail}]. */
static json_t *faults_json(const struct buf *lines, const struct error *e)
{
    json_t *list = json_array();
    const char *at = lines->size > 0 ? (const char *)lines->at : e->text;
    const char *end = at + (lines->size > 0 ? lines->size : strlen(e->text));

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at)), *to = stop != NULL ? stop : end;
        const char *colon = *at == '/' ? memmem(at, (size_t)(to - at), ": ", 2) : NULL;
        const char *rest = colon != NULL ? colon + 2 : at;
        size_t size = colon != NULL ? (size_t)(colon - at) : 0;
        json_array_append_new(list, json_pack("{s:s%,s:s%}", "pointer", at, size, "detail", rest, (size_t)(to - rest)));
        at = to + 1;
    }
    return list;
}

/* Every fault at once, with its place. false after telling. */
static bool check_document(struct exchange *x)
{
    struct bytes body = bytes_of(x->body.at != NULL ? (const void *)x->body.at : "", x->body.size);
    struct buf faults = {0};
    struct error e;
    enum status s = json_check_depth(body, &e);

    if (s == STATUS_OK) s = updater_check(body, &faults, &e);
    bool listed = s != STATUS_OK && e.reason == REASON_UPDATER_INVALID;
    if (s != STATUS_OK) say_error(x, &e, listed ? json_pack("{s:o}", "errors", faults_json(&faults, &e)) : NULL);
    buf_fini(&faults);
    return s == STATUS_OK;
}

static bool read_flag(struct exchange *x, const char *name, bool *out)
{
    const char *text = exchange_query(x, name);

    *out = text != NULL && strcmp(text, "true") == 0;
    if (text == NULL || *out || strcmp(text, "false") == 0) return true;
    say_problem(x, REASON_BAD_ARGUMENT, "%s is true or false", name);
    return false;
}

static void say_swapped(struct exchange *x, json_t *swapped, json_t *before, bool dry_run)
{
    json_t *after = dry_run ? NULL : ask(x, WIRE_GetUpdater, store_name(x));

    if (!dry_run && after == NULL) return;
    add_key_types(json_object_get(swapped, "first_versions"));
    json_object_set(swapped, "previous", json_object_get(before, "updater"));
    if (after != NULL) {
        json_object_update(swapped, after);
        say_header(x, "ETag", "\"%s\"", json_string_value(json_object_get(after, "etag")));
    }
    json_object_set_new(swapped, "dry_run", json_boolean(dry_run));
    json_decref(after);
    say_json(x, 200, json_incref(swapped));
}

/* The swap happens only if the updater is still the one whose tag was compared. */
static void swap(struct exchange *x, json_t *before, bool dry_run)
{
    const char *tag = json_string_value(json_object_get(before, "etag"));
    json_t *document, *said;

    if (!read_body(x, &document)) return;
    said = ask_quietly(x, WIRE_SetUpdater, json_pack("{s:s,s:o,s:s,s:b,s:s*}", "store", x->store, "updater", document,
                                                     "etag", tag, "dry_run", dry_run,
                                                     "states", exchange_query(x, "states")));
    if (said != NULL) say_swapped(x, said, before, dry_run);
    else say_error(x, &x->error, NULL);
    json_decref(said);
}

void handle_updater_put(struct exchange *x)
{
    const char *match = exchange_header(x, "If-Match");
    bool dry_run;

    if (!read_flag(x, "dry_run", &dry_run) || !check_document(x)) return;
    for (int attempt = 0; attempt < 3; attempt++) { /* with * somebody else's swap between our two steps is no matter */
        json_t *before = ask(x, WIRE_GetUpdater, store_name(x));
        if (before == NULL) return;
        const char *tag = json_string_value(json_object_get(before, "etag"));
        bool fits = tag_listed(match, tag);
        x->error.reason = REASON_NONE;
        if (fits) swap(x, before, dry_run);
        else say_precondition(x, match == NULL ? REASON_ETAG_REQUIRED : REASON_ETAG_MISMATCH, tag,
                              json_incref(json_object_get(before, "updater")),
                              match == NULL ? "If-Match must name the updater that is to be replaced, or be *"
                                            : "the updater is another by now; look at it, then repeat with its tag");
        json_decref(before);
        if (!fits || x->error.reason != REASON_ETAG_MISMATCH) return;
    }
}
