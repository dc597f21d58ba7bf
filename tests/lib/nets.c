#include "tests/lib/nets.h"

#include "tests/lib/test.h"

#include <stdarg.h>
#include <stdio.h>

static void begin(struct net *n, const char *op, const char *name)
{
    buf_text(&n->text, n->count++ == 0 ? "{\"nodes\": [\n" : ",\n");
    buf_format(&n->text, "{\"op\": \"%s\", \"name\": \"%s\"", op, name);
}

unsigned net_var(struct net *n, const char *name)
{
    begin(n, "null", name);
    buf_text(&n->text, ", \"inputs\": []}");
    return n->count - 1;
}

unsigned net_var_with(struct net *n, const char *name, const char *attrs, ...)
{
    char text[1000];
    va_list args;

    va_start(args, attrs);
    vsnprintf(text, sizeof text, attrs, args);
    va_end(args);
    begin(n, "null", name);
    buf_format(&n->text, ", \"attrs\": {%s}, \"inputs\": []}", text);
    return n->count - 1;
}

static unsigned add_op(struct net *n, const char *op, const char *name, const char *attrs, const int *inputs)
{
    begin(n, op, name);
    if (*attrs != '\0') buf_format(&n->text, ", \"attrs\": {%s}", attrs);
    buf_text(&n->text, ", \"inputs\": [");
    for (size_t i = 0; inputs[i] >= 0; i++) buf_format(&n->text, "%s[%d, 0, 0]", i > 0 ? ", " : "", inputs[i]);
    buf_text(&n->text, "]}");
    return n->count - 1;
}

unsigned net_op(struct net *n, const char *op, const char *name, const char *attrs, ...)
{
    int inputs[16];
    size_t count = 0;
    va_list args;

    va_start(args, attrs);
    do inputs[count] = va_arg(args, int);
    while (inputs[count] >= 0 && ++count < 15);
    va_end(args);
    inputs[count] = -1;
    return add_op(n, op, name, attrs, inputs);
}

unsigned net_op_of(struct net *n, const char *op, const char *name, unsigned node, unsigned output,
                   unsigned other)
{
    begin(n, op, name);
    buf_format(&n->text, ", \"inputs\": [[%u, %u, 0], [%u, 0, 0]]}", node, output, other);
    return n->count - 1;
}

struct bytes net_end(struct net *n, unsigned head)
{
    buf_format(&n->text, "\n], \"heads\": [[%u, 0, 0]], \"attrs\": {\"mxnet_version\": [\"int\", 10901]}}\n", head);
    buf_add(&n->text, "", 1);
    CHECK(!n->text.failed);
    return bytes_of(n->text.at, n->text.size - 1);
}

void net_fini(struct net *n)
{
    buf_fini(&n->text);
    n->count = 0;
}

struct bytes net_factorization(struct net *n, bool hidden)
{
    unsigned user = net_var(n, "user"), user_table = net_var(n, "user_weight");
    unsigned a = net_op(n, "Embedding", "user_embed", "\"input_dim\": \"1000\", \"output_dim\": \"64\"", user,
                        user_table, -1);
    unsigned item = net_var(n, "item"), item_table = net_var(n, "item_weight");
    unsigned b = net_op(n, "Embedding", "item_embed", "\"input_dim\": \"500\", \"output_dim\": \"64\"", item,
                        item_table, -1);
    if (hidden) {
        unsigned w = net_var(n, "hidden_weight"), bias = net_var(n, "hidden_bias");
        b = net_op(n, "FullyConnected", "hidden", "\"num_hidden\": \"64\"", b, w, bias, -1);
    }
    unsigned product = net_op(n, "elemwise_mul", "product", "", a, b, -1);
    unsigned sum = net_op(n, "sum_axis", "sum_ reducci\u00f3n", "\"axis\": \"1\"", product, -1);
    unsigned flat = net_op(n, "Flatten", "flatten", "", sum, -1), score = net_var(n, "score");
    return net_end(n, net_op(n, "LinearRegressionOutput", "loss", "", flat, score, -1));
}

static unsigned layer(struct net *n, unsigned x, const char *op, const char *name, const char *attrs,
                      const char *const *params)
{
    char text[80];
    int inputs[8] = {(int)x};
    size_t i = 0;

    for (; params[i] != NULL; i++) {
        snprintf(text, sizeof text, "%s_%s", name, params[i]);
        inputs[i + 1] = (int)net_var(n, text);
    }
    inputs[i + 1] = -1;
    return add_op(n, op, name, attrs, inputs);
}

static const char *const weight[] = {"weight", NULL}, *const weight_bias[] = {"weight", "bias", NULL};
static const char *const norm[] = {"gamma", "beta", "moving_mean", "moving_var", NULL}, *const none[] = {NULL};

static const char *named(char out[64], const char *prefix, unsigned i, const char *name)
{
    snprintf(out, 64, "%s%u_%s", prefix, i, name);
    return out;
}

static unsigned classifier(struct net *n, unsigned x)
{
    x = layer(n, x, "Flatten", "flatten", "", none);
    x = layer(n, x, "FullyConnected", "fc", "\"num_hidden\": \"10\"", weight_bias);
    return net_op(n, "SoftmaxOutput", "softmax", "", x, net_var(n, "softmax_label"), -1);
}

struct bytes net_residual(struct net *n, unsigned units)
{
    const char *conv = "\"kernel\": \"(3, 3)\", \"stride\": \"(1, 1)\", \"pad\": \"(1, 1)\", \"num_filter\": "
                       "\"16\", \"no_bias\": \"True\"";
    unsigned x = layer(n, net_var(n, "data"), "Convolution", "conv0", conv, weight);
    char t[64];

    for (unsigned i = 0; i < units; i++) {
        unsigned y = layer(n, x, "BatchNorm", named(t, "unit", i, "bn1"), "", norm);
        y = layer(n, y, "Activation", named(t, "unit", i, "relu1"), "\"act_type\": \"relu\"", none);
        y = layer(n, y, "Convolution", named(t, "unit", i, "conv1"), conv, weight);
        y = layer(n, y, "BatchNorm", named(t, "unit", i, "bn2"), "", norm);
        y = layer(n, y, "Convolution", named(t, "unit", i, "conv2"), conv, weight);
        x = net_op(n, "elemwise_add", named(t, "unit", i, "plus"), "", x, y, -1);
    }
    return net_end(n, classifier(n, x));
}

static unsigned branch(struct net *n, unsigned x, unsigned block, const char *name, unsigned kernel,
                       unsigned filters)
{
    char t[64], attrs[160];

    snprintf(attrs, sizeof attrs, "\"kernel\": \"(%u, %u)\", \"pad\": \"(%u, %u)\", \"num_filter\": \"%u\"",
             kernel, kernel, kernel / 2, kernel / 2, filters);
    x = layer(n, x, "Convolution", named(t, "in", block, name), attrs, weight_bias);
    char relu[80];
    snprintf(relu, sizeof relu, "%s_relu", t);
    return layer(n, x, "Activation", relu, "\"act_type\": \"relu\"", none);
}

struct bytes net_inception(struct net *n, unsigned blocks)
{
    const char *pool =
        "\"kernel\": \"(3, 3)\", \"stride\": \"(1, 1)\", \"pad\": \"(1, 1)\", \"pool_type\": \"max\"";
    unsigned x = net_var(n, "data");
    char t[64];

    for (unsigned i = 0; i < blocks; i++) {
        unsigned a = branch(n, x, i, "1x1", 1, 16 + i), b = branch(n, branch(n, x, i, "3r", 1, 8), i, "3x3", 3, 16);
        unsigned c = branch(n, branch(n, x, i, "5r", 1, 8), i, "5x5", 5, 16);
        unsigned d = branch(n, layer(n, x, "Pooling", named(t, "in", i, "pool"), pool, none), i, "proj", 1, 8);
        x = net_op(n, "Concat", named(t, "in", i, "concat"), "\"num_args\": \"4\"", a, b, c, d, -1);
    }
    return net_end(n, classifier(n, x));
}

struct bytes net_random(struct net *n, unsigned nodes, uint64_t seed)
{
    char t[64];

    net_var(n, "data");
    for (unsigned i = 1; i < nodes; i++) {
        int inputs[5];
        unsigned count = 1 + (unsigned)(rng_next(&seed) % 3), reach = i < 12 ? i : 12;
        for (unsigned k = 0; k < count; k++) inputs[k] = (int)(i - 1 - (unsigned)(rng_next(&seed) % reach));
        inputs[count] = -1;
        add_op(n, rng_next(&seed) % 2 == 0 ? "elemwise_add" : "Concat", named(t, "n", i, "x"), "", inputs);
    }
    return net_end(n, nodes - 1);
}
