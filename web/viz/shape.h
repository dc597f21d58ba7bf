/* What shapes follow from those of the inputs, for the common operators. What does not follow stays unknown and is
 * shown as "?"; nothing here is an error but a shape given for no variable.
 *
 * Pure; one thread at a time for a graph. */
#ifndef WEB_VIZ_SHAPE_H
#define WEB_VIZ_SHAPE_H

#include "web/viz/graph.h"

/* Completes the shapes: what variables say of themselves (`__shape__`, where a zero is not known), then the rules of
 * the operators, from the inputs to the outputs and back, until nothing more follows. Keys are bound and given
 * shapes set before: what is known already is never replaced, only unknown dimensions are filled in. */
void viz_infer(struct viz_graph *g);
/* Sets the shape of a variable. BAD_ARGUMENT names the variables that there are. */
enum status viz_shape_give(struct viz_graph *g, const char *variable, const struct viz_shape *shape,
                           struct error *e) MUST_CHECK;

/* The functions of ops.h's rows, in shape.c and shape_ops.c. */
#define VIZ_INFERS(X)                                                                                         \
    X(nothing) X(same) X(convolution) X(deconvolution) X(dense) X(embedding) X(batch_norm) X(layer_norm)      \
    X(leaky) X(pooling) X(global_pooling) X(concat) X(flatten) X(reshape) X(broadcast) X(reduce)              \
    X(arg_reduce) X(transpose) X(dot) X(batch_dot) X(matmul) X(swap_axes) X(expand_dims) X(squeeze)           \
    X(slice_axis) X(split) X(stack) X(upsampling) X(one_hot) X(take) X(rnn) X(softmax_output)                 \
    X(regression_output) X(filled) X(cross_entropy) X(equal) X(im2col)                                           \
    X(same_or_flat) X(gamma) X(each) X(where) X(sequence) X(sequence_last) X(pad) X(repeat) X(tile)           \
    X(broadcast_to) X(broadcast_axis) X(broadcast_like) X(slice) X(slice_like) X(diag) X(pick) X(topk)        \
    X(depth_to_space) X(space_to_depth) X(adaptive_pooling) X(resize) X(correlation) X(shape_array)           \
    X(size_array) X(random) X(sample) X(multinomial) X(arange) X(arange_like) X(linspace) X(eye) X(ctc)       \
    X(moments) X(recurrent)
#define VIZ_INFER_DECLARE(name) void infer_##name(struct viz_graph *g, struct viz_node *n);
VIZ_INFERS(VIZ_INFER_DECLARE)
#undef VIZ_INFER_DECLARE

#endif
