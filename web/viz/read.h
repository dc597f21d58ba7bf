/* Readers of networks. Each fills an empty graph, or fails with the place of the fault; the graph is to be freed
 * in any case. They take hostile input: every number is compared before it is used, nothing recurses.
 *
 * Pure; any thread. */
#ifndef WEB_VIZ_READ_H
#define WEB_VIZ_READ_H

#include "web/viz/graph.h"

/* By its first byte: a symbol file of MXNet's, or ONNX. */
enum status viz_read(struct viz_graph *g, struct bytes file, struct error *e) MUST_CHECK;

/* MXNet's symbol JSON of 0.8 to 2.0: attributes under attrs, attr or param, inputs as pairs or triples. Statistics
 * that files before 0.9 leave out are added. */
enum status viz_read_symbol(struct viz_graph *g, struct bytes file, struct error *e) MUST_CHECK;
/* ONNX. Weights are stepped over, not copied; bodies of control flow are not drawn. */
enum status viz_read_onnx(struct viz_graph *g, struct bytes file, struct error *e) MUST_CHECK;
/* The keys of a store as a tree: one node for each prefix (up to the last . / or _), its keys as parameters. */
enum status viz_read_keys(struct viz_graph *g, const char *store, const struct viz_key *keys, size_t count,
                          struct error *e) MUST_CHECK;

#endif
