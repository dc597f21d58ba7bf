#include "web/routes.h"

#include "service/base/mem.h"
#include "service/updater.h"

#include <stdio.h>
#include <string.h>

const struct route routes[ROUTE_COUNT] = {
#define ROUTE_ROW(face, method, path, body, flags, query, handler, about) \
    {HTTP_##face, #method, path, BODY_##body, flags, query, handle_##handler, about},
    ROUTES(ROUTE_ROW)
#undef ROUTE_ROW
};

size_t route_index(const struct route *r) { return r != NULL ? (size_t)(r - routes) : ROUTE_COUNT; }

/* ---- decoding --------------------------------------------------------------------------------------------------- */

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes `from` up to `end` to *to and ends it with a zero; *to steps behind it. The text gets no longer. */
static enum status decode(const char *from, const char *end, bool plus, char **to, struct error *e)
{
    char *start = *to, *at = *to;

    while (from < end) {
        int c = (unsigned char)*from++;
        if (c == '%') {
            int high = from < end ? hex(from[0]) : -1, low = high >= 0 && from + 1 < end ? hex(from[1]) : -1;
            if (low < 0)
                return error_set(e, REASON_BAD_PATH, "%% must be followed by two hex digits; a %% itself is %%25");
            c = high << 4 | low;
            from += 2;
        } else if (plus && c == '+') {
            c = ' ';
        }
        if (c == '\0') return error_set(e, REASON_BAD_PATH, "%%00 is in no name");
        *at++ = (char)c;
    }
    *at = '\0';
    *to = at + 1;
    if (at - start > NAME_SIZE_MAX)
        return error_set(e, REASON_BAD_PATH, "a name of %zu bytes; at most %d", (size_t)(at - start), NAME_SIZE_MAX);
    if (!bytes_is_utf8(bytes_text(start))) return error_set(e, REASON_BAD_PATH, "a name is not UTF-8");
    return STATUS_OK;
}

static enum status read_path(struct target *t, const char *from, const char *end, char **to, struct error *e)
{
    if (from == end || *from != '/')
        return error_set(e, REASON_BAD_PATH, "the request line must name a path, such as /v1/info");
    if (end - from == 1) return STATUS_OK; /* the root has no segments */
    while (from < end) {
        const char *slash = memchr(from + 1, '/', (size_t)(end - from - 1)), *stop = slash != NULL ? slash : end;
        if (t->segment_count == SEGMENTS_MAX)
            return error_set(e, REASON_NO_PATH, "nothing lies so deep; a / inside a name is written %%2F");
        t->segments[t->segment_count++] = *to;
        enum status s = decode(from + 1, stop, false, to, e);
        if (s != STATUS_OK) return s;
        from = stop;
    }
    return STATUS_OK;
}

static enum status read_query(struct target *t, const char *from, char **to, struct error *e)
{
    while (*from != '\0') {
        const char *end = from + strcspn(from, "&"), *equals = memchr(from, '=', (size_t)(end - from));
        enum status s = STATUS_OK;
        if (end > from && t->query_count == QUERY_MAX)
            return error_set(e, REASON_UNKNOWN_FIELD, "no route has more than %d query parameters", QUERY_MAX);
        if (end > from) {
            t->query[t->query_count].name = *to;
            s = decode(from, equals != NULL ? equals : end, true, to, e);
            t->query[t->query_count++].value = *to;
            if (s == STATUS_OK) s = decode(equals != NULL ? equals + 1 : end, end, true, to, e);
        }
        if (s != STATUS_OK) return s;
        from = *end == '&' ? end + 1 : end;
    }
    return STATUS_OK;
}

enum status target_read(const char *raw, struct target *out, struct error *e)
{
    size_t size = strlen(raw);
    const char *end = raw + strcspn(raw, "?");
    struct target t = {.raw = mem_text(raw, size), .text = mem_new(size + SEGMENTS_MAX + 2 * QUERY_MAX + 2)};
    char *to = t.text;
    enum status s = t.raw != NULL && t.text != NULL ? STATUS_OK
                                                    : error_set(e, REASON_NO_MEMORY, "no memory for a request");

    if (s == STATUS_OK) s = read_path(&t, raw, end, &to, e);
    if (s == STATUS_OK && *end == '?') s = read_query(&t, end + 1, &to, e);
    *out = t; /* also when it failed: the raw text is of use, and target_fini frees it */
    return s;
}

void target_fini(struct target *t)
{
    mem_free(t->raw);
    mem_free(t->text);
}

void target_encode(struct buf *out, struct bytes name)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~.";
    const char *at = name.at;
    /* A segment of dots would be resolved away on its way. */
    bool dots = name.size > 0 && name.size <= 2 && at[0] == '.' && at[name.size - 1] == '.';

    for (size_t i = 0; i < name.size; i++)
        if (at[i] != '\0' && strchr(plain, at[i]) != NULL && !dots) buf_add(out, &at[i], 1);
        else buf_format(out, "%%%02X", (unsigned char)at[i]);
}

/* ---- the router ------------------------------------------------------------------------------------------------- */

static const char **named(struct exchange *x, const char *name, size_t size)
{
    const struct { const char *name; const char **at; } names[] = {
        {"{store}", &x->store}, {"{key}", &x->key}, {"{worker}", &x->worker}, {"{name}", &x->name},
        {"{slot}", &x->slot},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i].name) == size && memcmp(names[i].name, name, size) == 0) return names[i].at;
    return NULL;
}

static bool fits(const struct target *t, const char *path, struct exchange *fill)
{
    size_t i = 0;

    for (const char *at = path; *at == '/' && at[1] != '\0'; i++) {
        size_t size = strcspn(++at, "/");
        if (i == t->segment_count) return false;
        if (*at == '{' && fill != NULL) *named(fill, at, size) = t->segments[i];
        if (*at != '{' && (strlen(t->segments[i]) != size || memcmp(t->segments[i], at, size) != 0)) return false;
        at += size;
    }
    return i == t->segment_count;
}

/* As /v1/... was meant: so that a wrong path is answered with what there is. */
static enum status no_path(enum http_face face, struct error *e)
{
    return error_set(e, REASON_NO_PATH, face == HTTP_ADMIN
                     ? "nothing is here; GET /v1 lists what there is, GET /v1/info tells about the daemon; a / inside a "
                       "key is written %%2F" : "nothing is here; there are /livez, /readyz and /metrics");
}

static enum status check_names(const struct exchange *x, struct error *e)
{
    for (size_t i = 0; i < x->target.segment_count; i++)
        if (x->target.segments[i][0] == '\0') return error_set(e, REASON_BAD_PATH, "a name in the path is empty");
    return STATUS_OK;
}

enum status route_find(struct exchange *x, enum http_face face, char allow[64], struct error *e)
{
    const struct route *found = NULL;
    size_t used = 0;

    allow[0] = '\0';
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        const struct route *r = &routes[i];
        if (r->face != face || !fits(&x->target, r->path, NULL)) continue;
        if (strcmp(r->method, x->method) == 0) found = r;
        used += (size_t)snprintf(allow + used, 64 - used, "%s%s%s", used > 0 ? ", " : "", r->method,
                                 strcmp(r->method, "GET") == 0 ? ", HEAD" : "");
    }
    if (used == 0) return no_path(face, e);
    if (found == NULL) return error_set(e, REASON_METHOD_NOT_ALLOWED, "only %s is answered here", allow);
    x->route = found;
    x->store = "default";
    fits(&x->target, found->path, x);
    return check_names(x, e);
}

enum { NAMES_MAX = 8, NAMES_TEXT = 128 };

enum status route_check_query(const struct exchange *x, struct error *e)
{
    const char *names[NAMES_MAX + 1] = {NULL};
    char text[NAMES_TEXT];
    size_t count = 0;

    snprintf(text, sizeof text, "%s", x->route->query);
    for (char *at = text, *word; count < NAMES_MAX && (word = strsep(&at, " ")) != NULL;)
        if (*word != '\0') names[count++] = word;
    for (size_t i = 0; i < x->target.query_count; i++) {
        const char *name = x->target.query[i].name;
        size_t k = 0;
        while (names[k] != NULL && strcmp(names[k], name) != 0) k++;
        for (size_t j = 0; j < i; j++)
            if (strcmp(x->target.query[j].name, name) == 0)
                return error_set(e, REASON_UNKNOWN_FIELD, "%.100s is given twice", name);
        if (names[k] != NULL) continue;
        const char *near = nearest_name(bytes_text(name), names);
        if (near != NULL) return error_set(e, REASON_UNKNOWN_FIELD, "%.100s: unknown; did you mean %s?", name, near);
        return error_set(e, REASON_UNKNOWN_FIELD, *x->route->query != '\0'
                         ? "%.100s: unknown; the query parameters here are %s" : "%.100s: no query parameters here",
                         name, x->route->query);
    }
    return STATUS_OK;
}
