/* What /metrics tells (Prometheus' text format 0.0.4), and the counters of the HTTP doors. Counting is by atomics, from
 * any thread; the struct is counted, so that the probe door may show the admin door's after that has stopped. */
#ifndef WEB_METRICS_H
#define WEB_METRICS_H

#include "web/reaper.h"
#include "web/routes.h"

/* Codes that have a counter of their own; others share the last. */
#define HTTP_CODES(X)                                                                                            \
    X(200) X(201) X(204) X(304) X(400) X(401) X(403) X(404) X(405) X(406) X(409) X(412) X(413) X(415) X(422)   \
    X(428) X(429) X(500) X(501) X(503) X(504) X(507) X(0)
enum {
#define HTTP_CODE_ONE(code) +1
    HTTP_CODE_COUNT = 0 HTTP_CODES(HTTP_CODE_ONE),
#undef HTTP_CODE_ONE
    HTTP_BUCKETS = 12
};

struct http_counts {
    _Atomic int holds;
    _Atomic uint64_t requests[ROUTE_COUNT + 1][HTTP_CODE_COUNT];     /* the last row: no route */
    _Atomic uint64_t buckets[HTTP_BUCKETS + 1];                      /* by duration, not added up */
    _Atomic uint64_t duration_us;
    _Atomic uint64_t cuts[LINE_PHASES];
    _Atomic int64_t connections;
    _Atomic uint64_t body_bytes;                                     /* held now */
};

struct http_counts *http_counts_new(void);       /* with one hold; NULL: no memory */
struct http_counts *http_counts_hold(struct http_counts *c);
void http_counts_drop(struct http_counts *c);    /* NULL is nothing */
void http_count(struct http_counts *c, const struct route *r, unsigned code, uint64_t ns);

#endif
