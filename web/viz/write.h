/* Writers of pictures and of text. Every name goes through the escape of its format: a network is somebody else's.
 *
 * They append to a buffer and tell of lack of memory by it (buf.failed). Pure; any thread. */
#ifndef WEB_VIZ_WRITE_H
#define WEB_VIZ_WRITE_H

#include "web/viz/view.h"

#include <jansson.h>

/* A placed picture as SVG: no script, no reference outside, classes for all looks. with_style: the rules are
 * inside; without it a page brings viz_svg_style (viz.h). */
void viz_write_svg(struct buf *out, const struct viz_picture *p, const char *title, bool with_style);
/* Boxes with places and colours, arrows with points: what a page needs to refresh a picture or to draw its own. */
void viz_write_json(struct buf *out, const struct viz_picture *p, const char *title);
/* For Graphviz; needs no places. attrs: an object of node attributes that replace the standard ones, or NULL. */
void viz_write_dot(struct buf *out, const struct viz_picture *p, const char *title, const json_t *attrs);

struct viz_table {
    unsigned width;                  /* characters of a line; 0: 120 */
    double positions[8];             /* where columns end, as parts of the width or as characters */
    size_t position_count;           /* 0: all columns. Four: those of MXNet's print_summary. */
};

/* Every layer, its shape, its parameters, and the totals. */
void viz_write_summary(struct buf *out, const struct viz_graph *g, const struct viz_table *t);
/* As MXNet's print_summary prints it, with its four columns. shows_shapes: the shapes of inputs were given; MXNet
 * leaves the column empty otherwise. */
void viz_write_print_summary(struct buf *out, const struct viz_graph *g, const struct viz_table *t,
                             bool shows_shapes);
/* Layers and totals as numbers. */
void viz_write_summary_json(struct buf *out, const struct viz_graph *g);
/* Numbered sentences, one for each step from the inputs to the outputs. The picture: view default, not placed. */
void viz_write_description(struct buf *out, const struct viz_picture *p);

/* Escapes. What XML has no character for becomes U+FFFD. */
void viz_add_xml(struct buf *out, const char *text);
void viz_add_json_text(struct buf *out, const char *text);   /* with quotes */
/* 96,000 */
void viz_add_count(struct buf *out, uint64_t n);

#endif
