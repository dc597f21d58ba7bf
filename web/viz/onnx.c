#include "web/viz/read.h"

#include "service/base/map.h"
#include "web/viz/ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* ---- protobuf's wire format ---------------------------------------------------------------------------------- */

enum pb_wire { PB_VARINT = 0, PB_64 = 1, PB_BYTES = 2, PB_32 = 5 };

/* A message that is walked; fields are looked at in place. */
struct message {
    const uint8_t *at, *end;
    const uint8_t *file;             /* where the file begins, for errors */
};

struct field {
    uint32_t number;
    enum pb_wire wire;
    uint64_t value;                  /* of a number */
    struct bytes bytes;              /* of a string, a message, packed numbers */
};

static struct message message_of(const struct message *in, struct bytes b)
{
    return (struct message){b.at, (const uint8_t *)b.at + b.size, in->file};
}

static bool varint(struct message *m, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        uint8_t b = *m->at++;
        *out |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return true;
    }
    return false;
}

static bool fixed(struct message *m, size_t size, uint64_t *out)
{
    if ((size_t)(m->end - m->at) < size) return false;
    *out = 0;
    for (size_t i = 0; i < size; i++) *out |= (uint64_t)m->at[i] << (8 * i);
    m->at += size;
    return true;
}

static bool field_value(struct message *m, struct field *f)
{
    uint64_t size;

    switch (f->wire) {
    case PB_VARINT: return varint(m, &f->value);
    case PB_64: return fixed(m, 8, &f->value);
    case PB_32: return fixed(m, 4, &f->value);
    case PB_BYTES:
        if (!varint(m, &size) || size > (uint64_t)(m->end - m->at)) return false;
        f->bytes = bytes_of(m->at, (size_t)size);
        m->at += size;
        return true;
    }
    return false; /* groups, which nobody writes any more, and what is none */
}

/* 1: a field; 0: the end; -1: the message is broken, and *e says where. */
static int next(struct message *m, struct field *f, struct error *e)
{
    const uint8_t *start = m->at;
    uint64_t key;

    if (m->at == m->end) return 0;
    *f = (struct field){.bytes = bytes_of("", 0)};
    if (varint(m, &key) && key >> 3 > 0 && key >> 3 < 1u << 29) {
        f->number = (uint32_t)(key >> 3);
        f->wire = (enum pb_wire)(key & 7);
        if (field_value(m, f)) return 1;
    }
    error_set(e, REASON_NETWORK_INVALID, "byte %zu: this is neither a symbol file nor ONNX, or it is cut off",
              (size_t)(start - m->file));
    return -1;
}

/* Repeated numbers come packed or one by one. */
static size_t numbers(const struct message *in, const struct field *f, int64_t *out, size_t count, size_t most)
{
    struct message m = message_of(in, f->bytes);
    uint64_t v;

    if (f->wire == PB_VARINT && count < most) out[count++] = (int64_t)f->value;
    while (f->wire == PB_BYTES && count < most && m.at < m.end && varint(&m, &v)) out[count++] = (int64_t)v;
    return count;
}

static float as_float(uint64_t bits)
{
    uint32_t b = (uint32_t)bits;
    float v;

    memcpy(&v, &b, sizeof v);
    return v;
}

/* ---- values -------------------------------------------------------------------------------------------------- */

/* What a name stands for: the output of a node, or what is known about it before it gets one. */
struct value {
    struct bytes name;
    struct viz_shape shape;
    enum viz_dtype dtype;
    const int64_t *ints;
    uint32_t int_count;
    uint32_t node, output;
    bool made;                       /* node and output say where */
    bool kept;                       /* the file has its elements */
};

struct onnx {
    struct viz_graph *g;
    struct map *values;
    struct error *e;
    size_t node;                     /* of the file, for errors */
};

static struct value *value_at(struct onnx *o, struct bytes name)
{
    struct value *v = map_find(o->values, name);

    if (v != NULL) return v;
    if (!bytes_is_utf8(name) || name.size > VIZ_NAME_MAX) {
        error_set(o->e, REASON_NETWORK_INVALID, "near node %zu: a name is not UTF-8, or longer than %d bytes",
                  o->node, VIZ_NAME_MAX);
        return NULL;
    }
    if (map_count(o->values) > 4 * (size_t)VIZ_EDGES_MAX) {
        error_set(o->e, REASON_TOO_LARGE, "more than %d named values", 4 * VIZ_EDGES_MAX);
        return NULL;
    }
    v = ARENA_NEW(&o->g->arena, 1, struct value);
    if (v == NULL) {
        viz_no_memory(o->e);
        return NULL;
    }
    v->name = name;
    v->shape.ndim = VIZ_UNKNOWN;
    return map_put(o->values, name, v, o->e) == STATUS_OK ? v : NULL;
}

/* TensorShapeProto.Dimension: a number, or a name, which is what changes from batch to batch. */
static int read_dim(const struct message *in, struct bytes b, int64_t *out, struct error *e)
{
    struct message m = message_of(in, b);
    struct field f;
    int more;

    *out = VIZ_UNKNOWN;
    while ((more = next(&m, &f, e)) > 0) {
        if (f.number == 1 && f.wire == PB_VARINT)
            *out = f.value <= (uint64_t)1 << 48 ? (int64_t)f.value : VIZ_UNKNOWN;
        if (f.number == 2 && f.wire == PB_BYTES) *out = VIZ_BATCH;
    }
    return more;
}

static int read_shape(const struct message *in, struct bytes b, struct viz_shape *out, struct error *e)
{
    struct message m = message_of(in, b);
    struct viz_shape s = {0};
    struct field f;
    int more;

    while ((more = next(&m, &f, e)) > 0) {
        if (f.number != 1 || f.wire != PB_BYTES) continue;
        if (s.ndim == VIZ_DIMS) return 0; /* stays unknown */
        if (read_dim(&m, f.bytes, &s.dims[s.ndim++], e) < 0) return -1;
    }
    if (more == 0) *out = s;
    return more;
}

/* TypeProto: of a tensor; others stay unknown. */
static int read_type(const struct message *in, struct bytes b, struct value *v, struct error *e)
{
    struct message m = message_of(in, b);
    struct field f, t;
    int more;

    while ((more = next(&m, &f, e)) > 0) {
        if (f.number != 1 || f.wire != PB_BYTES) continue;
        struct message tensor = message_of(&m, f.bytes);
        while ((more = next(&tensor, &t, e)) > 0) {
            if (t.number == 1 && t.wire == PB_VARINT) v->dtype = viz_dtype_onnx(t.value);
            if (t.number == 2 && t.wire == PB_BYTES && read_shape(&tensor, t.bytes, &v->shape, e) < 0) return -1;
        }
        if (more < 0) return more;
    }
    return more;
}

/* ValueInfoProto; NULL and *e when it is broken. *out NULL: it has no name. */
static int read_value_info(struct onnx *o, const struct message *in, struct bytes b, struct value **out)
{
    struct message m = message_of(in, b);
    struct field f;
    struct value said = {.shape = {.ndim = VIZ_UNKNOWN}};
    int more;

    *out = NULL;
    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.number == 1 && f.wire == PB_BYTES) said.name = f.bytes;
        if (f.number == 2 && f.wire == PB_BYTES && read_type(&m, f.bytes, &said, o->e) < 0) return -1;
    }
    if (more < 0 || said.name.size == 0) return more;
    *out = value_at(o, said.name);
    if (*out == NULL) return -1;
    if (said.shape.ndim >= 0) (*out)->shape = said.shape;
    if (said.dtype != VIZ_DTYPE_unknown) (*out)->dtype = said.dtype;
    return 0;
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

struct tensor {
    struct bytes name, raw;
    int64_t dims[VIZ_DIMS + 1], ints[VIZ_INTS_MAX + 1];
    size_t ndim, int_count;
    uint64_t dtype;
};

static int read_tensor(struct onnx *o, const struct message *in, struct bytes b, struct tensor *t)
{
    struct message m = message_of(in, b);
    struct field f;
    int more;

    *t = (struct tensor){0};
    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.number == 1) t->ndim = numbers(&m, &f, t->dims, t->ndim, VIZ_DIMS + 1);
        if (f.number == 2 && f.wire == PB_VARINT) t->dtype = f.value;
        if (f.number == 7 || f.number == 5) t->int_count = numbers(&m, &f, t->ints, t->int_count, VIZ_INTS_MAX + 1);
        if (f.number == 8 && f.wire == PB_BYTES) t->name = f.bytes;
        if (f.number == 9 && f.wire == PB_BYTES) t->raw = f.bytes;
    }
    return more;
}

/* Small integers, from which shapes follow, may lie in raw bytes. */
static void take_raw_ints(struct tensor *t)
{
    size_t size = t->dtype == 7 ? 8 : t->dtype == 6 ? 4 : 0;

    if (size == 0 || t->int_count > 0 || t->raw.size % size != 0 || t->raw.size / size > VIZ_INTS_MAX) return;
    for (size_t i = 0; i < t->raw.size; i += size) {
        struct message m = {(const uint8_t *)t->raw.at + i, (const uint8_t *)t->raw.at + t->raw.size, NULL};
        uint64_t v = 0;
        if (!fixed(&m, size, &v)) return;
        t->ints[t->int_count++] = size == 8 ? (int64_t)v : (int32_t)(uint32_t)v;
    }
}

static int keep_tensor(struct onnx *o, struct tensor *t, struct value *v)
{
    take_raw_ints(t);
    v->kept = true;
    v->dtype = viz_dtype_onnx(t->dtype);
    v->shape = (struct viz_shape){.ndim = t->ndim <= VIZ_DIMS ? (int)t->ndim : VIZ_UNKNOWN};
    for (size_t i = 0; i < t->ndim && i < VIZ_DIMS; i++)
        v->shape.dims[i] = t->dims[i] >= 0 && t->dims[i] <= (int64_t)1 << 48 ? t->dims[i] : VIZ_UNKNOWN;
    if (t->int_count == 0 || t->int_count > VIZ_INTS_MAX) return 0;
    int64_t *ints = ARENA_NEW(&o->g->arena, t->int_count, int64_t);
    if (ints == NULL) return viz_no_memory(o->e), -1;
    memcpy(ints, t->ints, t->int_count * sizeof *ints);
    v->ints = ints;
    v->int_count = (uint32_t)t->int_count;
    return 0;
}

static int read_initializer(struct onnx *o, const struct message *in, struct bytes b)
{
    struct tensor t;

    if (read_tensor(o, in, b, &t) < 0) return -1;
    if (t.name.size == 0) return 0;
    struct value *v = value_at(o, t.name);
    return v != NULL ? keep_tensor(o, &t, v) : -1;
}

/* ---- nodes --------------------------------------------------------------------------------------------------- */

/* AttributeProto, as text. *ints: what a Constant's tensor holds. */
struct attribute {
    struct bytes name;
    struct buf text;
    struct tensor tensor;
    size_t listed;
};

enum { LISTED_MAX = 64 };            /* elements of a list that are shown */

static void list_one(struct attribute *a, const char *format, double number)
{
    if (a->listed < LISTED_MAX) {
        buf_text(&a->text, a->listed == 0 ? "(" : ", ");
        buf_format(&a->text, format, number);
    } else if (a->listed == LISTED_MAX) {
        buf_text(&a->text, ", ...");
    }
    a->listed++;
}

static void list_ints(struct attribute *a, const struct message *in, const struct field *f)
{
    int64_t v[LISTED_MAX + 1];
    size_t count = numbers(in, f, v, 0, LISTED_MAX + 1);

    for (size_t i = 0; i < count; i++) list_one(a, "%.0f", (double)v[i]);
}

static void list_floats(struct attribute *a, const struct message *in, const struct field *f)
{
    struct message m = message_of(in, f->bytes);
    uint64_t v;

    if (f->wire == PB_32) list_one(a, "%g", (double)as_float(f->value));
    while (f->wire == PB_BYTES && a->listed <= LISTED_MAX && fixed(&m, 4, &v))
        list_one(a, "%g", (double)as_float(v));
}

static int read_attribute_field(struct onnx *o, const struct message *m, const struct field *f, struct attribute *a)
{
    switch (f->number) {
    case 1: if (f->wire == PB_BYTES) a->name = f->bytes; break;
    case 2: if (f->wire == PB_32) buf_format(&a->text, "%g", (double)as_float(f->value)); break;
    case 3: if (f->wire == PB_VARINT) buf_format(&a->text, "%" PRId64, (int64_t)f->value); break;
    case 4:
        if (f->wire == PB_BYTES) buf_add(&a->text, f->bytes.at, f->bytes.size < VIZ_VALUE_MAX ? f->bytes.size : 0);
        break;
    case 5:
        if (f->wire == PB_BYTES && read_tensor(o, m, f->bytes, &a->tensor) < 0) return -1;
        buf_text(&a->text, "tensor");
        break;
    case 6: case 11: buf_text(&a->text, "not drawn"); break; /* bodies of control flow */
    case 7: list_floats(a, m, f); break;
    case 8: list_ints(a, m, f); break;
    case 9: list_one(a, "%.0f strings", 1); break;
    default: break;
    }
    return 0;
}

static int read_attribute(struct onnx *o, const struct message *in, struct bytes b, struct viz_attr *out,
                          struct tensor *tensor)
{
    struct message m = message_of(in, b);
    struct attribute a = {0};
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0)
        if (read_attribute_field(o, &m, &f, &a) < 0) {
            more = -1;
            break;
        }
    if (a.listed > 0) buf_text(&a.text, ")");
    if (a.tensor.dtype != 0) *tensor = a.tensor;
    struct bytes text = bytes_of(a.text.at, a.text.size);
    if (more == 0 && (!bytes_is_utf8(a.name) || a.name.size > VIZ_NAME_MAX || !bytes_is_utf8(text)))
        text = bytes_text("(no text)");
    if (more == 0) out->name = viz_text(o->g, bytes_is_utf8(a.name) ? a.name : bytes_text("?"), VIZ_NAME_MAX);
    if (more == 0) out->value = viz_text(o->g, text, VIZ_VALUE_MAX);
    if (more == 0 && (a.text.failed || out->name == NULL || out->value == NULL)) more = (viz_no_memory(o->e), -1);
    buf_fini(&a.text);
    return more;
}

/* NodeProto in two steps: first what it consists of, then with everything counted. */
struct node {
    struct bytes name, op;
    size_t inputs, outputs, attrs;
};

static int count_node(struct onnx *o, struct message m, struct node *n)
{
    struct field f;
    int more;

    *n = (struct node){.op = bytes_text("")};
    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.wire != PB_BYTES) continue;
        if (f.number == 1) n->inputs += f.bytes.size > 0;
        if (f.number == 2) n->outputs++;
        if (f.number == 3) n->name = f.bytes;
        if (f.number == 4) n->op = f.bytes;
        if (f.number == 5) n->attrs++;
    }
    return more;
}

static enum status node_fault(struct onnx *o, const char *what)
{
    return error_set(o->e, REASON_NETWORK_INVALID, "node %zu: %s", o->node, what);
}

/* A variable is added where it is first used, so that the order stays topological. */
static enum status make_variable(struct onnx *o, struct value *v)
{
    enum status s = viz_node_add(o->g, v->name, (struct bytes){0}, &v->node, o->e);

    if (s == STATUS_OK) s = viz_outputs_set(o->g, v->node, 1, o->e);
    if (s != STATUS_OK) return s;
    struct viz_node *n = &o->g->nodes[v->node];
    n->shapes[0] = v->shape;
    n->dtype = v->dtype;
    n->ints = v->ints;
    n->int_count = v->int_count;
    n->is_kept = v->kept;
    if (!v->kept) n->role = ROLE_DATA;
    v->made = true;
    return STATUS_OK;
}

static enum status find_inputs(struct onnx *o, struct message m, const struct node *n, struct value **out)
{
    struct field f;
    size_t count = 0;
    enum status s = STATUS_OK;

    while (s == STATUS_OK && next(&m, &f, o->e) > 0) {
        if (f.number != 1 || f.wire != PB_BYTES || f.bytes.size == 0 || count == n->inputs) continue;
        struct value *v = map_find(o->values, f.bytes);
        if (v == NULL || (!v->made && !v->kept))
            return error_set(o->e, REASON_NETWORK_INVALID,
                             "node %zu ('%.*s'): input %zu, '%.*s', is made by nothing before it", o->node,
                             bytes_is_utf8(n->name) ? (int)(n->name.size < 100 ? n->name.size : 100) : 0,
                             (const char *)n->name.at, count,
                             bytes_is_utf8(f.bytes) ? (int)(f.bytes.size < 100 ? f.bytes.size : 100) : 0,
                             (const char *)f.bytes.at);
        if (!v->made) s = make_variable(o, v);
        out[count++] = v;
    }
    return s;
}

static enum status read_node_attrs(struct onnx *o, struct message m, const struct node *n, uint32_t at)
{
    struct viz_attr *attrs = ARENA_NEW(&o->g->arena, n->attrs, struct viz_attr);
    struct tensor tensor = {0};
    struct value constant = {0};
    struct field f;
    size_t count = 0;

    if (attrs == NULL) return viz_no_memory(o->e);
    while (next(&m, &f, o->e) > 0)
        if (f.number == 5 && f.wire == PB_BYTES && count < n->attrs)
            if (read_attribute(o, &m, f.bytes, &attrs[count++], &tensor) < 0) return o->e->status;
    struct viz_node *node = &o->g->nodes[at];
    node->attrs = attrs;
    node->attr_count = (uint32_t)count;
    if (tensor.dtype == 0 || !viz_op_is(node, "constant")) return STATUS_OK;
    if (keep_tensor(o, &tensor, &constant) < 0) return o->e->status;
    node->ints = constant.ints;
    node->int_count = constant.int_count;
    node->dtype = constant.dtype;
    if (node->output_count > 0) node->shapes[0] = constant.shape;
    return STATUS_OK;
}

static enum status give_outputs(struct onnx *o, struct message m, uint32_t at)
{
    struct viz_node *n = &o->g->nodes[at];
    struct field f;
    uint32_t output = 0;

    while (next(&m, &f, o->e) > 0) {
        if (f.number != 2 || f.wire != PB_BYTES) continue;
        struct value *v = f.bytes.size > 0 ? value_at(o, f.bytes) : NULL;
        if (v == NULL && f.bytes.size > 0) return o->e->status;
        if (v != NULL && v->made) return node_fault(o, "one of its outputs has been made before");
        if (v != NULL) {
            v->made = true;
            v->node = at;
            v->output = output;
            n->shapes[output] = v->shape;
            if (output == 0) n->dtype = v->dtype;
        }
        output++;
    }
    return STATUS_OK;
}

static enum status read_node(struct onnx *o, struct message m)
{
    char made[VIZ_NAME_MAX + 32];
    struct node n;
    uint32_t at;

    if (count_node(o, m, &n) < 0) return o->e->status;
    if (!bytes_is_utf8(n.name) || !bytes_is_utf8(n.op) || n.op.size > VIZ_NAME_MAX)
        return node_fault(o, "its name is no text");
    if (n.op.size == 0) return node_fault(o, "no operator");
    if (n.attrs > VIZ_ATTRS_MAX) return node_fault(o, "too many attributes");
    if (n.inputs > VIZ_EDGES_MAX - o->g->edge_count)
        return error_set(o->e, REASON_TOO_LARGE, "more than %d edges", VIZ_EDGES_MAX);
    if (n.name.size == 0) {
        snprintf(made, sizeof made, "%.*s%zu", (int)n.op.size, (const char *)n.op.at, o->node);
        n.name = bytes_text(made);
    }
    struct value **from = ARENA_NEW(&o->g->arena, n.inputs, struct value *);
    if (from == NULL) return viz_no_memory(o->e);
    enum status s = find_inputs(o, m, &n, from);
    if (s == STATUS_OK) s = viz_node_add(o->g, n.name, n.op, &at, o->e);
    if (s != STATUS_OK) return s;
    struct viz_input *inputs = viz_inputs_new(o->g, n.inputs, o->e);
    if (inputs == NULL) return o->e->status;
    for (size_t i = 0; i < n.inputs; i++) inputs[i] = (struct viz_input){from[i]->node, from[i]->output};
    s = viz_outputs_set(o->g, at, n.outputs, o->e);
    if (s == STATUS_OK) s = give_outputs(o, m, at);
    return s == STATUS_OK ? read_node_attrs(o, m, &n, at) : s;
}

/* ---- the graph ----------------------------------------------------------------------------------------------- */

/* Names first: initializers and shapes may stand behind the nodes that use them. */
static int read_names(struct onnx *o, struct message m)
{
    struct value *v;
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.wire != PB_BYTES) continue;
        if (f.number == 5 && read_initializer(o, &m, f.bytes) < 0) return -1;
        if ((f.number == 12 || f.number == 13) && read_value_info(o, &m, f.bytes, &v) < 0) return -1;
    }
    return more;
}

/* Inputs become variables in the order of the file, but for those that are weights (IR 3 lists them too). */
static enum status read_graph_inputs(struct onnx *o, struct message m)
{
    struct value *v;
    struct field f;
    enum status s = STATUS_OK;

    while (s == STATUS_OK && next(&m, &f, o->e) > 0) {
        if (f.number != 11 || f.wire != PB_BYTES) continue;
        if (read_value_info(o, &m, f.bytes, &v) < 0) return o->e->status;
        if (v != NULL && !v->kept && !v->made) s = make_variable(o, v);
    }
    return s;
}

static enum status read_graph_nodes(struct onnx *o, struct message m)
{
    struct field f;
    enum status s = STATUS_OK;

    while (s == STATUS_OK && next(&m, &f, o->e) > 0) {
        if (f.number != 1 || f.wire != PB_BYTES) continue;
        s = read_node(o, message_of(&m, f.bytes));
        o->node++;
    }
    return s;
}

static void mark_heads(struct onnx *o, struct message m)
{
    struct value *v;
    struct field f;

    while (next(&m, &f, o->e) > 0)
        if (f.number == 12 && f.wire == PB_BYTES && read_value_info(o, &m, f.bytes, &v) == 0 && v != NULL &&
            v->made)
            o->g->nodes[v->node].head = true;
}

static enum status read_graph(struct onnx *o, struct message m)
{
    if (read_names(o, m) < 0) return o->e->status;
    enum status s = read_graph_inputs(o, m);
    if (s == STATUS_OK) s = read_graph_nodes(o, m);
    if (s == STATUS_OK) mark_heads(o, m);
    if (s == STATUS_OK && o->g->node_count == 0)
        s = error_set(o->e, REASON_NETWORK_INVALID, "the network has no nodes");
    return s;
}

static enum status find_graph(struct onnx *o, struct bytes file)
{
    struct message m = {file.at, (const uint8_t *)file.at + file.size, file.at};
    struct bytes graph = {0};
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0)
        if (f.number == 7 && f.wire == PB_BYTES) graph = f.bytes;
    if (more < 0) return o->e->status;
    if (graph.at == NULL) return error_set(o->e, REASON_NETWORK_INVALID, "no graph in it: this is no ONNX model");
    return read_graph(o, message_of(&m, graph));
}

enum status viz_read_onnx(struct viz_graph *g, struct bytes file, struct error *e)
{
    struct onnx o = {.g = g, .e = e};
    uint8_t seed[16];

    if (getrandom(seed, sizeof seed, 0) != sizeof seed) return error_set(e, REASON_SYSTEM, "no random numbers");
    o.values = map_new(seed);
    if (o.values == NULL) return viz_no_memory(e);
    enum status s = find_graph(&o, file);
    map_free(o.values);
    return s;
}
