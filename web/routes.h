/* What the HTTP doors answer: one table. From it come the router, Allow, the checks of the query, the list at /v1, the
 * labels of the metrics; and rest.md has a section for each row (a test checks it).
 *
 * Any thread; no state. */
#ifndef WEB_ROUTES_H
#define WEB_ROUTES_H

#include "web/exchange.h"
#include "web/http.h"

enum route_body { BODY_NONE, BODY_JSON, BODY_VALUE };
enum { ROUTE_OPEN = 1 };             /* needs no token: nothing in it is secret */

/*    face   method  path                                              body   flags       query
 *           handler       about */
#define ROUTES(X)                                                                                                  \
    X(ADMIN, GET,    "/",                                              NONE,  ROUTE_OPEN, "",                      \
             page,         "a page of stores and keys")                                                            \
    X(ADMIN, GET,    "/ui/page.css",                                   NONE,  ROUTE_OPEN, "",                      \
             page_css,     "its looks")                                                                            \
    X(ADMIN, GET,    "/ui/page.js",                                    NONE,  ROUTE_OPEN, "",                      \
             page_js,      "its script")                                                                           \
    X(ADMIN, GET,    "/problems/{name}",                               NONE,  ROUTE_OPEN, "",                      \
             problem_type, "what an error code means")                                                             \
    X(ADMIN, GET,    "/v1",                                            NONE,  0,          "",                      \
             index,        "this list")                                                                            \
    X(ADMIN, GET,    "/v1/info",                                       NONE,  0,          "",                      \
             info,         "version, device, memory, doors")                                                       \
    X(ADMIN, GET,    "/v1/stores",                                     NONE,  0,          "",                      \
             stores,       "all stores")                                                                           \
    X(ADMIN, POST,   "/v1/stores",                                     JSON,  0,          "",                      \
             store_create, "creates a store")                                                                      \
    X(ADMIN, GET,    "/v1/stores/{store}",                             NONE,  0,          "",                      \
             store_get,    "one store: options, counts, updater")                                                  \
    X(ADMIN, DELETE, "/v1/stores/{store}",                             NONE,  0,          "",                      \
             store_delete, "deletes a store with all its keys")                                                    \
    X(ADMIN, POST,   "/v1/stores/{store}/reset",                       NONE,  0,          "",                      \
             store_reset,  "drops keys and updater, keeps options and workers")                                    \
    X(ADMIN, GET,    "/v1/stores/{store}/keys",                        NONE,  0,          "prefix limit cursor",   \
             keys,         "keys of a store, a page at a time")                                                    \
    X(ADMIN, GET,    "/v1/stores/{store}/keys/{key}",                  NONE,  0,          "type",                  \
             key_get,      "one key: dtype, shape, version, updates")                                              \
    X(ADMIN, PUT,    "/v1/stores/{store}/keys/{key}",                  VALUE, 0,          "type format dtype shape", \
             key_put,      "inits a key with a value")                                                             \
    X(ADMIN, DELETE, "/v1/stores/{store}/keys/{key}",                  NONE,  0,          "type force",            \
             key_delete,   "deletes a key")                                                                        \
    X(ADMIN, GET,    "/v1/stores/{store}/keys/{key}/value",            NONE,  0,          "type format",           \
             key_value,    "the value as JSON, npy or raw bytes")                                                  \
    X(ADMIN, GET,    "/v1/stores/{store}/keys/{key}/stats",            NONE,  0,          "type",                  \
             key_stats,    "norms, extremes, NaNs and histograms of value, gradient and update")                  \
    X(ADMIN, GET,    "/v1/stores/{store}/keys/{key}/slots",            NONE,  0,          "type",                  \
             key_slots,    "what the updater keeps for it: slots and counters")                                    \
    X(ADMIN, GET,    "/v1/stores/{store}/keys/{key}/slots/{slot}",     NONE,  0,          "type format",           \
             key_slot,     "a slot as JSON, npy or raw bytes")                                                     \
    X(ADMIN, GET,    "/v1/stores/{store}/updater",                     NONE,  0,          "",                      \
             updater_get,  "the updater's document")                                                               \
    X(ADMIN, PUT,    "/v1/stores/{store}/updater",                     JSON,  0,          "dry_run states",        \
             updater_put,  "swaps the updater between two versions")                                               \
    X(ADMIN, GET,    "/v1/stores/{store}/workers",                     NONE,  0,          "",                      \
             workers,      "who has joined, and when it was last heard of")                                        \
    X(ADMIN, GET,    "/v1/stores/{store}/rounds",                      NONE,  0,          "",                      \
             rounds,       "what hangs: open rounds, who is missing, since when")                                  \
    X(ADMIN, POST,   "/v1/stores/{store}/workers/{worker}/dismiss",    NONE,  0,          "",                      \
             dismiss,      "a dead worker is no longer waited for")                                                \
    X(ADMIN, GET,    "/v1/keys",                                       NONE,  0,          "prefix limit cursor",   \
             keys,         "the same for the store `default`")                                                     \
    X(ADMIN, GET,    "/v1/keys/{key}",                                 NONE,  0,          "type",                  \
             key_get,      "the same for the store `default`")                                                     \
    X(ADMIN, PUT,    "/v1/keys/{key}",                                 VALUE, 0,          "type format dtype shape", \
             key_put,      "the same for the store `default`")                                                     \
    X(ADMIN, DELETE, "/v1/keys/{key}",                                 NONE,  0,          "type force",            \
             key_delete,   "the same for the store `default`")                                                     \
    X(ADMIN, GET,    "/v1/keys/{key}/value",                           NONE,  0,          "type format",           \
             key_value,    "the same for the store `default`")                                                     \
    X(ADMIN, GET,    "/v1/keys/{key}/stats",                           NONE,  0,          "type",                  \
             key_stats,    "the same for the store `default`")                                                     \
    X(ADMIN, GET,    "/v1/keys/{key}/slots",                           NONE,  0,          "type",                  \
             key_slots,    "the same for the store `default`")                                                     \
    X(ADMIN, GET,    "/v1/keys/{key}/slots/{slot}",                    NONE,  0,          "type format",           \
             key_slot,     "the same for the store `default`")                                                     \
    X(ADMIN, GET,    "/networks/{name}",                               NONE,  ROUTE_OPEN, "",                      \
             network_page, "a page that shows a network, with live colours")                                       \
    X(ADMIN, GET,    "/ui/network.css",                                NONE,  ROUTE_OPEN, "",                      \
             network_css,  "its looks")                                                                            \
    X(ADMIN, GET,    "/ui/network.js",                                 NONE,  ROUTE_OPEN, "",                      \
             network_js,   "its script")                                                                           \
    X(ADMIN, GET,    "/ui/graph.css",                                  NONE,  ROUTE_OPEN, "",                      \
             graph_css,    "the looks of drawings that are shown in a page")                                       \
    X(ADMIN, GET,    "/v1/networks",                                   NONE,  0,          "",                      \
             networks,     "all networks that are kept")                                                           \
    X(ADMIN, PUT,    "/v1/networks/{name}",                            VALUE, 0,          "",                      \
             network_put,  "keeps a symbol file or an ONNX model")                                                 \
    X(ADMIN, GET,    "/v1/networks/{name}",                            NONE,  0,          "",                      \
             network_get,  "the file, as it was put")                                                              \
    X(ADMIN, DELETE, "/v1/networks/{name}",                            NONE,  0,          "",                      \
             network_delete, "forgets it")                                                                         \
    X(ADMIN, GET,    "/v1/networks/{name}/graph",                      NONE,  0,          "format view direction color store shape expand style", \
             network_graph, "the drawing: svg, png, pdf, dot, json, text")                                         \
    X(ADMIN, GET,    "/v1/networks/{name}/summary",                    NONE,  0,          "format store shape view", \
             network_summary, "a table of layers and parameters")                                                  \
    X(ADMIN, GET,    "/v1/networks/{name}/text",                       NONE,  0,          "store shape",           \
             network_text, "the network in numbered sentences")                                                    \
    X(ADMIN, GET,    "/v1/stores/{store}/graph",                       NONE,  0,          "format view direction color expand style", \
             store_graph,  "the keys of a store, drawn as a tree")                                                 \
    X(PROBE, GET,    "/livez",                                         NONE,  ROUTE_OPEN, "",                      \
             livez,        "a restart would not help")                                                             \
    X(PROBE, GET,    "/readyz",                                        NONE,  ROUTE_OPEN, "",                      \
             readyz,       "give me traffic")                                                                      \
    X(PROBE, GET,    "/metrics",                                       NONE,  ROUTE_OPEN, "",                      \
             metrics,      "for Prometheus")

enum {
#define ROUTE_COUNT_ONE(...) +1
    ROUTE_COUNT = 0 ROUTES(ROUTE_COUNT_ONE)
#undef ROUTE_COUNT_ONE
};

struct route {
    enum http_face face;
    const char *method;
    const char *path;
    enum route_body body;
    unsigned flags;
    const char *query;               /* names, with spaces between */
    void (*handle)(struct exchange *x);
    const char *about;
};

extern const struct route routes[ROUTE_COUNT];
size_t route_index(const struct route *r);   /* ROUTE_COUNT for NULL */

/* Splits and decodes what a request line asks for, once: segments at raw slashes, then %XX in each. BAD_PATH and
 * BAD_ARGUMENT for bad hex, NUL, what is not UTF-8, what is empty or too long. */
enum status target_read(const char *raw, struct target *out, struct error *e) MUST_CHECK;
void target_fini(struct target *t);
/* Percent-encodes a name as one segment. */
void target_encode(struct buf *out, struct bytes name);

/* Sets x->route and what its path names. NO_PATH, or METHOD_NOT_ALLOWED with the methods in `allow`. */
enum status route_find(struct exchange *x, enum http_face face, char allow[64], struct error *e) MUST_CHECK;
/* Every parameter is one that the route has, given once. UNKNOWN_FIELD with the nearest. */
enum status route_check_query(const struct exchange *x, struct error *e) MUST_CHECK;

#define ROUTE_HANDLER(face, method, path, body, flags, query, handler, about) void handle_##handler(struct exchange *x);
ROUTES(ROUTE_HANDLER)
#undef ROUTE_HANDLER

#endif
