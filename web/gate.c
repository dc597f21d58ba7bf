#include "web/gate.h"

#include "web/routes.h"
#include "web/value.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- framing ---------------------------------------------------------------------------------------------------- */

/* Headers that we go by: two of them could be read as either. */
static const char *const single[] = {
    "Host", "Content-Length", "Transfer-Encoding", "Content-Type", "Authorization", "Origin", "If-Match",
    "If-None-Match",
};
enum { SINGLE_COUNT = sizeof single / sizeof single[0] };

struct headers {
    unsigned counts[SINGLE_COUNT];
    const char *fault;               /* what a header's form says against it */
    const char *from, *to;           /* all of them, in libmicrohttpd's buffer */
    const char *end;                 /* of the last value; NULL: none, or it does not lie there */
};

enum { LINE_END_MAX = 2, HEADERS_END_MAX = 4 };  /* \r\n; and the empty line */

static bool is_token(const char *name, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (name[i] <= 0x20 || name[i] >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", name[i]) != NULL) return false;
    return size > 0;
}

/* libmicrohttpd ends a value at a NUL and says nothing of what follows: "Bearer TOKEN\0..." would be the token. But all
 * lines lie behind each other in its buffer, so what it left out is a gap. */
static void check_gap(struct headers *h, const char *next, ptrdiff_t most)
{
    if (h->end != NULL && next > h->end && next - h->end > most) h->fault = "a header has a NUL in it";
}

static enum MHD_Result take_header(void *ctx, enum MHD_ValueKind kind, const char *name, size_t name_size,
                                   const char *value, size_t value_size)
{
    struct headers *h = ctx;

    (void)kind;
    if (!is_token(name, name_size)) h->fault = "a header's name has characters that none has";
    check_gap(h, name, LINE_END_MAX);
    h->end = value != NULL && value >= h->from && value + value_size <= h->to ? value + value_size : NULL;
    for (size_t i = 0; i < SINGLE_COUNT; i++)
        if (strlen(single[i]) == name_size && strncasecmp(single[i], name, name_size) == 0) h->counts[i]++;
    return MHD_YES;
}

static bool is_number(const char *text)
{
    size_t size = strspn(text, "0123456789");
    return size > 0 && size < 19 && text[size] == '\0';
}

static enum status check_framing(struct exchange *x, struct error *e)
{
    const char *length = exchange_header(x, "Content-Length"), *coding = exchange_header(x, "Transfer-Encoding");
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct headers h = {.from = x->head, .to = x->head + (size != NULL ? size->header_size : 0)};

    MHD_get_connection_values_n(x->connection, MHD_HEADER_KIND, take_header, &h);
    check_gap(&h, h.to, HEADERS_END_MAX);
    if (h.fault != NULL) return error_set(e, REASON_FRAMING, "%s", h.fault);
    for (size_t i = 0; i < SINGLE_COUNT; i++)
        if (h.counts[i] > 1) return error_set(e, REASON_FRAMING, "%s is given twice", single[i]);
    if (length != NULL && coding != NULL)
        return error_set(e, REASON_FRAMING, "Content-Length and Transfer-Encoding together");
    if (length != NULL && !is_number(length)) return error_set(e, REASON_FRAMING, "Content-Length is no number");
    if (coding != NULL && strcasecmp(coding, "chunked") != 0)
        return error_set(e, REASON_UNIMPLEMENTED, "Transfer-Encoding: only chunked is understood");
    x->has_body = coding != NULL || (length != NULL && strspn(length, "0") != strlen(length));
    return STATUS_OK;
}

/* ---- who asks --------------------------------------------------------------------------------------------------- */

static bool is_port(const char *text)
{
    size_t size = *text == ':' ? strspn(text + 1, "0123456789") : 0;
    return *text == '\0' || (size > 0 && size <= 5 && text[1 + size] == '\0');
}

/* A web page anywhere may have its own name resolve to 127.0.0.1 and then read what it likes here, as from its own
 * server. It cannot choose what the browser writes as Host, so names that are not ours are refused. Numbers are no
 * names, and where a token is asked for such a page has none. */
static bool host_fits(const char *host, const struct gate *g)
{
    char name[256];
    size_t size = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    struct in6_addr number;

    if (size >= sizeof name || size > strlen(host) || size == 0 || !is_port(host + size)) return false;
    memcpy(name, host, size);
    name[size] = '\0';
    if (name[0] == '[') {
        name[size - 1] = '\0';
        return inet_pton(AF_INET6, name + 1, &number) == 1;
    }
    if (g->token != NULL || inet_pton(AF_INET, name, &number) == 1 || strcasecmp(name, "localhost") == 0) return true;
    for (size_t i = 0; g->hosts[i] != NULL; i++)
        if (strcasecmp(name, g->hosts[i]) == 0) return true;
    return false;
}

static enum status check_origin(const struct exchange *x, const char *host, struct error *e)
{
    const char *origin = exchange_header(x, "Origin"), *name;

    if (origin == NULL) return STATUS_OK;
    name = strstr(origin, "://");
    if (name != NULL && (strncmp(origin, "http:", 5) == 0 || strncmp(origin, "https:", 6) == 0) &&
        strcasecmp(name + 3, host) == 0)
        return STATUS_OK;
    return error_set(e, REASON_ORIGIN_NOT_ALLOWED, "a page of another origin asks; only this daemon's own may");
}

enum status gate_check(struct exchange *x, const struct gate *g, struct error *e)
{
    const char *host = exchange_header(x, "Host");
    enum status s = check_framing(x, e);

    if (s != STATUS_OK) {
        x->hang_up = true;
        return s;
    }
    if (g->probe) return STATUS_OK;
    if (host == NULL || !host_fits(host, g)) {
        x->hang_up = true;
        return error_set(e, REASON_HOST_NOT_ALLOWED, "%s names no machine that this daemon knows as itself; call it by "
                         "its number, or start it with --advertise NAME or a token",
                         host != NULL ? "Host" : "no Host, which");
    }
    return check_origin(x, host, e);
}

/* All bytes are looked at, so that the time tells nothing of how many were right. */
static bool equal_text(const char *a, const char *b)
{
    size_t size = strlen(a);
    unsigned char differ = 0;

    if (strlen(b) != size) return false;
    for (size_t i = 0; i < size; i++) differ |= (unsigned char)(a[i] ^ b[i]);
    return differ == 0;
}

enum status gate_check_token(const struct exchange *x, const struct gate *g, struct error *e)
{
    const char *given = exchange_header(x, "Authorization");

    if (g->probe || g->token == NULL || (x->route->flags & ROUTE_OPEN) != 0) return STATUS_OK;
    if (given != NULL && strncasecmp(given, "Bearer ", 7) == 0 && equal_text(given + 7, g->token)) return STATUS_OK;
    return error_set(e, REASON_BAD_TOKEN, "the token is %s; give that of the daemon's --token-file: Authorization: "
                     "Bearer TOKEN", given == NULL ? "missing" : "wrong");
}

/* ---- bodies ----------------------------------------------------------------------------------------------------- */

uint64_t gate_body_max(const struct route *r)
{
    switch (r->body) {
    case BODY_NONE: return 0;
    case BODY_JSON: return JSON_BODY_MAX;
    case BODY_VALUE: break;
    }
    return VALUE_BODY_MAX;
}

enum status gate_check_body(struct exchange *x, struct error *e)
{
    const char *length = exchange_header(x, "Content-Length"), *type = exchange_header(x, "Content-Type");
    uint64_t most = gate_body_max(x->route);

    if (!x->has_body) return STATUS_OK;
    if (x->route->body == BODY_NONE) return error_set(e, REASON_BAD_ARGUMENT, "no body is taken here");
    if (length != NULL && strtoull(length, NULL, 10) > most)
        return error_set(e, REASON_TOO_LARGE, "a body of %s bytes; at most %" PRIu64 " are taken here", length, most);
    if (x->route->body == BODY_JSON && type != NULL && form_of_media(type) != FORM_JSON)
        return error_set(e, REASON_MEDIA_TYPE, "the body must be JSON; say so with -H 'Content-Type: application/json', "
                         "or use curl --json");
    return STATUS_OK;
}
