/* What is known of operators: one row each, for MXNet's names of every age and ONNX's. From the row come the
 * colour, the roles of inputs, the label, the sentence, and how shapes follow. Static data, any thread. */
#ifndef WEB_VIZ_OPS_H
#define WEB_VIZ_OPS_H

#include "web/viz/graph.h"

enum viz_family {
    FAMILY_OTHER,
    FAMILY_DATA,
    FAMILY_LAYER,
    FAMILY_ACTIVATION,
    FAMILY_NORM,
    FAMILY_POOL,
    FAMILY_SHAPE,
    FAMILY_SOFTMAX,
    FAMILY_LOSS,
    FAMILY_MATH,
    FAMILY_BLOCK,
    FAMILY_COUNT
};
extern const char *const viz_family_names[FAMILY_COUNT]; /* classes of the picture: "layer" */

struct viz_op {
    const char *names;               /* small letters without _; spaces between */
    enum viz_family family;
    const char *slots;               /* names of the inputs, in order; "" : all are data */
    void (*infer)(struct viz_graph *g, struct viz_node *n);
    const char *detail;              /* template: behind the operator's name in a picture */
    const char *phrase;              /* template: in a sentence */
};

/* Never NULL: an operator that is not known has a row too. NULL asks for a variable's. */
const struct viz_op *viz_op_find(const char *op);
bool viz_op_is(const struct viz_node *n, const char *name);  /* has this name in its row */
/* Outputs that a user sees: MXNet keeps the mask of a Dropout, the statistics of a BatchNorm and the like to itself
 * unless something uses them. At least 1. */
uint32_t viz_outputs_shown(const struct viz_node *n);
/* "weight" for input 1 of a Convolution; "" when the row says nothing. */
struct bytes viz_op_slot(const struct viz_op *op, size_t input);

/* Appends a template with the node's own in place of
 *   {attr}          the value of an attribute; of a list the numbers, joined by x
 *   {attr|other}    `other` when the attribute is missing
 *   {inputs}        names of the inputs that are no parameters; {data} of those that are
 *                   no label; {label}: " against" it
 *   {op}, {over}    the operator; its axes, in words */
void viz_op_fill(struct buf *out, const char *template, const struct viz_graph *g, const struct viz_node *n);
/* The same with a text of the caller's for {inputs} and {data}. */
void viz_op_fill_for(struct buf *out, const char *template, const struct viz_graph *g, const struct viz_node *n,
                     const char *inputs);
void viz_name_quote(struct buf *out, const char *name);      /* `name` */

#endif
