/* One HTTP request and its answer, as handlers see them: decoded path and query, the body, and what is to be said.
 * libmicrohttpd is not seen here; http.c brings requests in and answers out.
 *
 * Lives on one thread of a door, from the request line until the answer is sent. */
#ifndef WEB_EXCHANGE_H
#define WEB_EXCHANGE_H

#include "web/door.h"

struct http;
struct networks;
struct route;

enum {
    SEGMENTS_MAX = 8,                /* of a path */
    QUERY_MAX = 8,                   /* parameters of a route */
    HEADERS_MAX = 8,                 /* of an answer, besides those that all have */
    NAME_SIZE_MAX = 1024,            /* of a decoded segment or query value */
    JSON_BODY_MAX = JSON_SIZE_MAX / 2, /* of a request; it is wrapped into a document of the protocol */
    VALUE_BODY_MAX = 64 << 20,       /* of an upload */
    VALUE_SENT_MAX = 256 << 20,      /* of a value that is got */
    BODIES_MAX = 512 << 20           /* bytes of bodies, in and out, that a door holds at once */
};

struct target {
    char *raw;                       /* as it was sent, for the lines that tell what to type; owned */
    char *text;                      /* what the rest lies in, decoded; owned */
    char *segments[SEGMENTS_MAX];
    size_t segment_count;
    struct { const char *name; const char *value; } query[QUERY_MAX];
    size_t query_count;
};

struct exchange {
    struct http *http;
    struct door *door;
    void *connection;                /* libmicrohttpd's */
    const struct route *route;       /* NULL: none fits */
    const char *method;              /* as sent; GET for HEAD too */
    struct target target;
    const char *store, *key, *slot, *worker, *name; /* out of the path; store is "default" when the path names none */
    struct buf body;
    uint64_t room;                   /* what the budget gave */
    bool body_refused;               /* error tells why; the rest of it is thrown away */
    uint64_t began_ns;
    struct error error;              /* for whoever needs one */

    /* the answer: */
    unsigned code;                   /* 0: none yet */
    const char *type;
    struct buf out;
    const void *fixed;               /* static bytes in place of `out`, or NULL */
    size_t fixed_size;
    struct { const char *name; char *value; } headers[HEADERS_MAX];
    size_t header_count;
    bool hang_up;                    /* the connection ends with this answer */

    /* http.c's: */
    struct line *line;
    const char *head;                /* where the request begins in libmicrohttpd's buffer */
    bool begun;
    bool counted;
    bool has_body;
    uint64_t body_seen;              /* bytes that came, taken or not */
};

/* The value of a request's header; NULL: not there. Valid as long as the exchange. */
const char *exchange_header(const struct exchange *x, const char *name);
/* The value of a query parameter; NULL: not given. */
const char *exchange_query(const struct exchange *x, const char *name);
/* "http://127.0.0.1:7780", as the client has called it. */
void exchange_origin(const struct exchange *x, struct buf *out);
bool exchange_has_token(const struct exchange *x);
/* Bytes of the door's budget for bodies; false: there is no room now. Whatever was taken goes with the exchange. */
bool exchange_reserve(struct exchange *x, uint64_t size);
bool exchange_is_alive(const struct exchange *x);        /* the core has taken mail within half a minute */
bool exchange_is_ready(const struct exchange *x);
struct http_counts *exchange_counts(const struct exchange *x);   /* of the admin door, for a probe beside it */
/* Those of the admin door. */
struct networks *exchange_networks(const struct exchange *x);
/* What /metrics got from the core last; a probe door has one thread. */
json_t **exchange_last_stats(const struct exchange *x);

/* ---- answers; each handler gives one ---- */

void say_header(struct exchange *x, const char *name, const char *format, ...) PRINTF_LIKE(3, 4);
/* Takes the document; NULL: no memory. */
void say_json(struct exchange *x, unsigned code, json_t *document);
void say_nothing(struct exchange *x, unsigned code);
void say_text(struct exchange *x, unsigned code, const char *text);
/* application/problem+json, with the HTTP code of the reason, and further members (taken; may be NULL). */
void say_error(struct exchange *x, const struct error *e, json_t *members);
void say_problem(struct exchange *x, enum reason r, const char *format, ...) PRINTF_LIKE(3, 4);

/* A JSON method, or NULL after the error has been said. */
json_t *ask(struct exchange *x, unsigned method, json_t *in);
/* The same, and the error is left to the caller, in x->error. */
json_t *ask_quietly(struct exchange *x, unsigned method, json_t *in);

#endif
