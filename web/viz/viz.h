/* The one entrance: a network file and a document of options in, a drawing or a text out. The daemon, the command
 * line and Python all come through here.
 *
 *   format       svg png pdf dot json summary summary-json text             [svg]
 *   engine       own; dot: Graphviz places the boxes, of svg png pdf        [own]
 *   view         default full blocks mxnet                                  [default]
 *   direction    down up right                       [down; mxnet: up, as MXNet draws; keys alone: right]
 *   color        op size updater version norm grad_norm update_ratio staleness  [op]
 *   title        text                                                       [plot]
 *   shapes       {"data": [1, 3, 224, 224]}, or text: "data=1,3,224,224;label=N"
 *   dtypes       {"data": "float32"}
 *   keys         [{"key", "shape", "dtype", "updater", "version", "norm", ...}]: what a store holds
 *   store        its name                                                   [default]
 *   expand       ["n12"], or "n12,n40": blocks that stay open
 *   hide_weights view mxnet: parameters are not drawn                       [true]
 *   node_attrs   dot: {"shape": "oval"}
 *   style        svg: the rules for looks are inside                        [true]
 *   line_length, positions   summary: as in MXNet's print_summary; four positions give its four columns. With view
 *                mxnet the summary is print_summary's, line by line
 *
 * Any thread; no globals, no files, no clock. png and pdf start rsvg-convert and wait for it, at most CONVERT_MS; engine
 * dot starts Graphviz's dot, at most DOT_MS. */
#ifndef WEB_VIZ_VIZ_H
#define WEB_VIZ_VIZ_H

#include "service/base/bytes.h"

#include <jansson.h>
#include <stdbool.h>

enum {
    VIZ_SVG_MAX = 8 << 20,           /* of a drawing. One that is larger is drawn by blocks; then it is refused. */
    VIZ_TEXT_MAX = 32 << 20,         /* of any other result */
    CONVERT_MS = 5000,
    DOT_MS = 60000,                  /* it takes minutes for thousands of nodes */
    CONVERTED_MAX = 64 << 20
};

/* `file` is a symbol file or ONNX; empty: the keys alone are drawn, as a tree. Appends to out. *media: its type,
 * static. The errors name the place in the file, or the option. */
enum status viz_render(struct bytes file, const json_t *options, struct buf *out, const char **media,
                       struct error *e) MUST_CHECK;
struct viz_facts {
    size_t nodes, edges, parameters;
};

/* Reads a file and tells what is in it, for whoever keeps files. *variables (may be NULL): a new list of their
 * names. */
enum status viz_check(struct bytes file, struct viz_facts *facts, json_t **variables, struct error *e) MUST_CHECK;
/* Does a store have to measure for this colour (KeyStats)? Its names are those of the answer. NULL: no. */
bool viz_is_measured(const char *color);
/* "image/svg+xml" for "svg"; NULL: no such format. */
const char *viz_media(const char *format);

/* The rules for the looks of an SVG that has none inside. */
extern const char viz_svg_style[];
/* SVG to "png" or "pdf" by rsvg-convert. UNIMPLEMENTED names the package when it is not installed. */
enum status viz_convert(struct bytes svg, const char *format, struct buf *out, struct error *e) MUST_CHECK;
/* DOT text to "svg", "png" or "pdf" by Graphviz's dot; the same. */
enum status viz_run_dot(struct bytes dot, const char *format, struct buf *out, struct error *e) MUST_CHECK;

#endif
