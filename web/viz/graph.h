/* A network as it was read: nodes in topological order, each with attributes and inputs. Readers (read.h) make it,
 * shape.h fills in what follows from it, view.h and text.h look at it.
 *
 * Pure memory: no thread, no clock, no global. One thread at a time. All text is UTF-8 without NUL, and everything
 * but the array of nodes lies in the graph's arena, so it lives as long as the graph. */
#ifndef WEB_VIZ_GRAPH_H
#define WEB_VIZ_GRAPH_H

#include "service/base/bytes.h"
#include "web/viz/arena.h"

enum {
    VIZ_NODES_MAX = 20000, /* above that nobody reads a picture, and a layout takes longer than a request may */
    VIZ_EDGES_MAX = 60000,
    VIZ_NAME_MAX = 1024, /* bytes of a name, an operator, an attribute's name */
    VIZ_VALUE_MAX = 4096, /* bytes of an attribute's value; more is cut, as it is only shown */
    VIZ_ATTRS_MAX = 256, /* of one node */
    VIZ_OUTPUTS_MAX = 4096, /* of one node */
    VIZ_JSON_SIZE_MAX = 16 << 20,
    VIZ_JSON_VALUES_MAX = 1500000, /* of a file; each costs jansson some 80 bytes, whatever it costs its sender */
    VIZ_JSON_DEPTH_MAX = 64,
    VIZ_INTS_MAX = 16, /* elements of a constant that shapes may follow from */
    VIZ_DIMS = 8,
    VIZ_MEMORY_MAX = 192 << 20 /* of one graph */
};

enum { VIZ_UNKNOWN = -1, VIZ_BATCH = -2 };   /* dimensions that are no numbers: "?" and "N" */

struct viz_shape {
    int ndim;                        /* VIZ_UNKNOWN: nothing is known */
    int64_t dims[VIZ_DIMS];
};

/* The names are numpy's and ml_dtypes', then bits of an element (0: not known), then the numbers of MXNet's and ONNX's files; -1: it has none. Row 0 is not known. */
#define VIZ_DTYPES(X)                       \
    X(unknown,         0, -1,  0)           \
    X(float32,        32,  0,  1)           \
    X(float64,        64,  1, 11)           \
    X(float16,        16,  2, 10)           \
    X(bfloat16,       16, 12, 16)           \
    X(uint8,           8,  3,  2)           \
    X(int8,            8,  5,  3)           \
    X(uint16,         16,  9,  4)           \
    X(int16,          16,  8,  5)           \
    X(int32,          32,  4,  6)           \
    X(int64,          64,  6,  7)           \
    X(uint32,         32, 10, 12)           \
    X(uint64,         64, 11, 13)           \
    X(uint4,           4, -1, 21)           \
    X(int4,            4, -1, 22)           \
    X(uint2,           2, -1, 25)           \
    X(int2,            2, -1, 26)           \
    X(bool,            8,  7,  9)           \
    X(string,          0, -1,  8)           \
    X(complex64,      64, -1, 14)           \
    X(complex128,    128, -1, 15)           \
    X(float8e4m3fn,    8, -1, 17)           \
    X(float8e4m3fnuz,  8, -1, 18)           \
    X(float8e5m2,      8, -1, 19)           \
    X(float8e5m2fnuz,  8, -1, 20)           \
    X(float8e8m0,      8, -1, 24)           \
    X(float4e2m1,      4, -1, 23)

enum viz_dtype {
#define VIZ_DTYPE_ENUM(name, bits, mxnet, onnx) VIZ_DTYPE_##name,
    VIZ_DTYPES(VIZ_DTYPE_ENUM)
#undef VIZ_DTYPE_ENUM
    VIZ_DTYPE_COUNT
};

const char *viz_dtype_name(enum viz_dtype t);            /* "float32"; "?" */
/* Bytes of so many elements; those of less than a byte are packed. False: not known, or too many. */
bool viz_dtype_bytes(enum viz_dtype t, uint64_t count, uint64_t *out);
enum viz_dtype viz_dtype_find(const char *name);         /* VIZ_DTYPE_unknown: no such */
enum viz_dtype viz_dtype_mxnet(int64_t number);
enum viz_dtype viz_dtype_onnx(uint64_t number);

/* What a node is for. A reader may leave ROLE_NONE; viz_roles decides by where the node is used. */
enum viz_role {
    ROLE_NONE,
    ROLE_OP,
    ROLE_DATA,                       /* comes in with each batch */
    ROLE_LABEL,                      /* comes in too, and is what the loss compares with */
    ROLE_PARAM,                      /* is learned, or at least kept */
    ROLE_AUX                         /* kept and counted, but not learned: running statistics */
};

struct viz_attr {
    const char *name, *value;
};

struct viz_input {
    uint32_t node, output;
};

/* Numbers that a store may know of a parameter; NAN: not known. They are names of `color` too. */
#define VIZ_MEASURES(X)                                                         \
    X(version,      "version")                                                  \
    X(norm,         "norm of the value")                                        \
    X(grad_norm,    "norm of the gradient")                                     \
    X(update_ratio, "norm of the last update by norm of the value")             \
    X(staleness,    "updates that the slowest worker has not seen")

enum viz_measure {
#define VIZ_MEASURE_ENUM(name, about) MEASURE_##name,
    VIZ_MEASURES(VIZ_MEASURE_ENUM)
#undef VIZ_MEASURE_ENUM
    MEASURE_COUNT
};

/* A key of a store, as lent by whoever asked it. */
struct viz_key {
    const char *name;
    struct viz_shape shape;
    enum viz_dtype dtype;
    const char *updater;             /* NULL: not known */
    double measures[MEASURE_COUNT];
};

struct viz_node {
    const char *name;
    const char *op;                  /* NULL: a variable */
    const struct viz_op *kind;       /* what ops.h knows of op; never NULL */
    enum viz_role role;
    enum viz_dtype dtype;
    const struct viz_attr *attrs;
    const struct viz_input *inputs;
    const int64_t *ints;             /* of a constant with integers, or NULL */
    struct viz_shape *shapes;        /* of the outputs */
    const struct viz_key *key;       /* of the store that is this parameter, or NULL */
    uint32_t attr_count, input_count, output_count, int_count;
    uint32_t consumers;              /* how often an output is an input */
    uint32_t outputs_used;           /* the first outputs, as far as one is an input or a head */
    bool head;                       /* an output of the network */
    bool is_kept;                    /* the file has a value for it, so it is a parameter wherever it is used */
};

struct viz_graph {                   /* zeroed: empty */
    struct arena arena;
    struct viz_node *nodes;
    size_t node_count, node_capacity;
    size_t edge_count;
    bool is_np_shape;                /* 0 is a size and () a scalar (numpy, ONNX); else both mean unknown */
    bool is_onnx;                    /* its operators mean what ONNX says of these names */
    bool is_tree;                    /* of keys; there is no network */
};

void viz_graph_fini(struct viz_graph *g);

/* An empty node at the end; its number. Pointers to nodes are invalid after it. name and op are copied; op NULL: a
 * variable. TOO_LARGE above VIZ_NODES_MAX or with texts that are too long. */
enum status viz_node_add(struct viz_graph *g, struct bytes name, struct bytes op, uint32_t *index,
                         struct error *e) MUST_CHECK;
/* Lends room for the inputs of the last node. NULL and *e: too many, or no memory. */
struct viz_input *viz_inputs_new(struct viz_graph *g, size_t count, struct error *e) MUST_CHECK;
/* Gives a node so many outputs of unknown shape. */
enum status viz_outputs_set(struct viz_graph *g, uint32_t index, size_t count, struct error *e) MUST_CHECK;
/* The text cut at a character to at most `most` bytes, in the arena; NULL: no memory. */
const char *viz_text(struct viz_graph *g, struct bytes from, size_t most) MUST_CHECK;
enum status viz_no_memory(struct error *e);

/* After all nodes are there: counts consumers, marks heads when the file named none, decides the roles. */
void viz_roles(struct viz_graph *g);
/* Binds keys of a store to the variables that have their names; those become parameters. The keys, and what they
 * point to, must outlive the graph. */
enum status viz_bind_keys(struct viz_graph *g, const struct viz_key *keys, size_t count,
                          struct error *e) MUST_CHECK;

/* The value of an attribute, under the name that MXNet or ONNX has for it; NULL: not there. */
const char *viz_attr(const struct viz_node *n, const char *name);
int64_t viz_attr_int(const struct viz_node *n, const char *name, int64_t otherwise);
bool viz_attr_true(const struct viz_node *n, const char *name);
/* "(3, 3)", "[3,3]" or "3"; None in it is `none`. How many there are; 0 when it is missing, holds anything else, or
 * has more than `most`: a part of a list would say something wrong. */
size_t viz_attr_list(const struct viz_node *n, const char *name, int64_t none, int64_t *out, size_t most);
/* The same for one number for each dimension; None is VIZ_UNKNOWN. */
size_t viz_attr_ints(const struct viz_node *n, const char *name, int64_t out[VIZ_DIMS]);

static inline bool viz_is_param(const struct viz_node *n) { return n->role == ROLE_PARAM || n->role == ROLE_AUX; }

/* "64x3x7x7"; "?" when nothing is known, "scalar". */
enum { VIZ_SHAPE_TEXT = 192 };
const char *viz_shape_text(const struct viz_shape *s, char out[VIZ_SHAPE_TEXT]);
/* Elements; false: not known, or more than 2^62. */
bool viz_shape_count(const struct viz_shape *s, uint64_t *out);
/* "64,3" with N for the batch and ? for unknown; brackets around are allowed. */
bool viz_shape_read(const char *text, struct viz_shape *out);

#endif
