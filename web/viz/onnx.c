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
    size_t user;                     /* the last node that has it as an input through a body, from 1 */
};

/* A function of the file: what its nodes keep is made at the first call and shared by all. */
struct function {
    struct bytes body, domain;
    struct value **kept;
    size_t count;
    bool is_read;
};

struct onnx {
    struct viz_graph *g;
    struct map *values;
    struct map *functions;           /* by name */
    struct bytes batch;              /* the name of the dimension that changes from batch to batch */
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

/* TensorShapeProto.Dimension: a number, or a name. The first name there is stands for the batch; others are sizes of
 * their own, of which nothing is known. */
static int read_dim(struct onnx *o, const struct message *in, struct bytes b, int64_t *out)
{
    struct message m = message_of(in, b);
    struct field f;
    int more;

    *out = VIZ_UNKNOWN;
    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.number == 1 && f.wire == PB_VARINT)
            *out = f.value <= (uint64_t)1 << 48 ? (int64_t)f.value : VIZ_UNKNOWN;
        if (f.number != 2 || f.wire != PB_BYTES || f.bytes.size == 0) continue;
        if (o->batch.size == 0) o->batch = f.bytes;
        *out = bytes_equal(f.bytes, o->batch) ? VIZ_BATCH : VIZ_UNKNOWN;
    }
    return more;
}

static int read_shape(struct onnx *o, const struct message *in, struct bytes b, struct viz_shape *out)
{
    struct message m = message_of(in, b);
    struct viz_shape s = {0};
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.number != 1 || f.wire != PB_BYTES) continue;
        if (s.ndim == VIZ_DIMS) return 0; /* stays unknown */
        if (read_dim(o, &m, f.bytes, &s.dims[s.ndim++]) < 0) return -1;
    }
    if (more == 0) *out = s;
    return more;
}

/* TypeProto: of a tensor; others stay unknown. */
static int read_type(struct onnx *o, const struct message *in, struct bytes b, struct value *v)
{
    struct message m = message_of(in, b);
    struct field f, t;
    int more;

    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.number != 1 || f.wire != PB_BYTES) continue;
        struct message tensor = message_of(&m, f.bytes);
        while ((more = next(&tensor, &t, o->e)) > 0) {
            if (t.number == 1 && t.wire == PB_VARINT) v->dtype = viz_dtype_onnx(t.value);
            if (t.number == 2 && t.wire == PB_BYTES && read_shape(o, &tensor, t.bytes, &v->shape) < 0) return -1;
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
        if (f.number == 2 && f.wire == PB_BYTES && read_type(o, &m, f.bytes, &said) < 0) return -1;
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
    if (t->int_count == 0 || t->int_count > VIZ_INTS_MAX || (t->dtype != 6 && t->dtype != 7)) return 0;
    int64_t *ints = ARENA_NEW(&o->g->arena, t->int_count, int64_t);
    if (ints == NULL) return viz_no_memory(o->e), -1;
    memcpy(ints, t->ints, t->int_count * sizeof *ints);
    v->ints = ints;
    v->int_count = (uint32_t)t->int_count;
    return 0;
}

/* SparseTensorProto: a tensor of its values that names it, and the dimensions of the whole. */
static int read_sparse(struct onnx *o, const struct message *in, struct bytes b, struct tensor *t)
{
    struct message m = message_of(in, b);
    struct tensor whole = {0};
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.number == 1 && f.wire == PB_BYTES && read_tensor(o, &m, f.bytes, t) < 0) return -1;
        if (f.number == 3) whole.ndim = numbers(&m, &f, whole.dims, whole.ndim, VIZ_DIMS + 1);
    }
    whole.name = t->name;
    whole.dtype = t->dtype;
    *t = whole;
    return more;
}

static int read_initializer(struct onnx *o, const struct message *in, struct bytes b, bool is_sparse)
{
    struct tensor t = {0};

    if ((is_sparse ? read_sparse : read_tensor)(o, in, b, &t) < 0) return -1;
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
    uint64_t number, count;          /* of an integer; elements of a list */
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
    case 3: if (f->wire == PB_VARINT) a->number = f->value, buf_format(&a->text, "%" PRId64, (int64_t)f->value); break;
    case 4:
        if (f->wire == PB_BYTES) buf_add(&a->text, f->bytes.at, f->bytes.size < VIZ_VALUE_MAX ? f->bytes.size : 0);
        break;
    case 5:
        if (f->wire == PB_BYTES && read_tensor(o, m, f->bytes, &a->tensor) < 0) return -1;
        buf_text(&a->text, "tensor");
        break;
    case 6: case 11: buf_text(&a->text, "not drawn"); break; /* bodies of control flow */
    case 7:
        a->count += f->wire == PB_32 ? 1 : f->bytes.size / 4;
        list_floats(a, m, f);
        break;
    case 8:
        a->count += f->wire == PB_VARINT;
        for (size_t i = 0; i < f->bytes.size; i++) a->count += ((const uint8_t *)f->bytes.at)[i] < 0x80;
        a->tensor.int_count = numbers(m, f, a->tensor.ints, a->tensor.int_count, VIZ_INTS_MAX + 1);
        list_ints(a, m, f);
        break;
    case 9:
        a->count++;
        list_one(a, "%.0f strings", 1);
        break;
    case 22:
        if (f->wire == PB_BYTES && read_sparse(o, m, f->bytes, &a->tensor) < 0) return -1;
        buf_text(&a->text, "sparse tensor");
        break;
    default: break;
    }
    return 0;
}

/* The other forms in which a Constant may have its value. */
static void take_constant(struct attribute *a)
{
    static const struct { const char *name; uint64_t dtype; bool is_list; } forms[] = {
        {"value_int", 7, false},  {"value_float", 1, false},  {"value_string", 8, false},
        {"value_ints", 7, true},  {"value_floats", 1, true},  {"value_strings", 8, true},
    };
    struct tensor *t = &a->tensor;

    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (!bytes_equal(a->name, bytes_text(forms[i].name))) continue;
        t->dtype = forms[i].dtype;
        t->ndim = forms[i].is_list;
        t->dims[0] = (int64_t)a->count;
        if (t->dtype == 7 && !forms[i].is_list) t->ints[t->int_count++] = (int64_t)a->number;
    }
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
    take_constant(&a);
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
    struct bytes name, op, domain;
    size_t inputs, outputs, attrs;
};

static int count_node(struct onnx *o, struct message m, struct node *n)
{
    struct field f;
    int more;

    *n = (struct node){.op = bytes_text(""), .domain = bytes_text("")};
    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.wire != PB_BYTES) continue;
        if (f.number == 1) n->inputs += f.bytes.size > 0;
        if (f.number == 2) n->outputs++;
        if (f.number == 3) n->name = f.bytes;
        if (f.number == 4) n->op = f.bytes;
        if (f.number == 5) n->attrs++;
        if (f.number == 7) n->domain = f.bytes;
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

static bool is_standard(const struct node *n)
{
    return n->domain.size == 0 || bytes_equal(n->domain, bytes_text("ai.onnx"));
}

static bool is_op(const struct node *n, const char *op) { return is_standard(n) && bytes_equal(n->op, bytes_text(op)); }

/* The dimensions that a ConstantOfShape has, when they are in the file. */
static bool filled_dims(struct onnx *o, struct bytes shape, struct tensor *t)
{
    const struct value *v = map_find(o->values, shape);
    uint64_t count;

    if (v == NULL || !v->kept || !viz_shape_count(&v->shape, &count)) return false;
    if (v->int_count != count || count > VIZ_DIMS) return false;
    if (t->dtype == 0) t->dtype = 1;
    t->ndim = (size_t)count;
    t->int_count = 0;
    t->raw = bytes_text("");
    for (size_t i = 0; i < count; i++) t->dims[i] = v->ints[i];
    return true;
}

/* What the file holds in a node is kept like what it holds beside the nodes; a scalar stays an operator, as it is
 * part of a formula and no weight. 1: *t is what the node called *name keeps. */
static int read_kept(struct onnx *o, struct message m, const struct node *n, struct tensor *t, struct bytes *name)
{
    struct bytes input = bytes_text("");
    struct viz_attr attr;
    struct field f;
    int more;

    *t = (struct tensor){0};
    *name = input;
    if (!is_op(n, "Constant") && !is_op(n, "ConstantOfShape")) return 0;
    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.wire != PB_BYTES) continue;
        if (f.number == 1) input = f.bytes;
        if (f.number == 2) *name = f.bytes;
        if (f.number == 5 && read_attribute(o, &m, f.bytes, &attr, t) < 0) return -1;
    }
    if (more < 0) return more;
    if (is_op(n, "ConstantOfShape") && !filled_dims(o, input, t)) return 0;
    return t->dtype != 0 && t->ndim > 0 && name->size > 0;
}

/* ---- bodies -------------------------------------------------------------------------------------------------- */

/* Bodies of If, Loop and Scan, and functions of the file, are not drawn; what they keep and what they take from
 * outside are inputs of the node that has them. */
struct kept_list {
    struct value **all;              /* on the heap */
    size_t count, capacity;
};

enum { BODY_DEPTH_MAX = 16 };

static int list_kept(struct onnx *o, struct kept_list *l, struct value *v)
{
    void *all = l->all;

    if (v->user == o->node + 1) return 0;
    if (l->count >= VIZ_EDGES_MAX)
        return error_set(o->e, REASON_TOO_LARGE, "node %zu: its body has more than %d weights", o->node, VIZ_EDGES_MAX), -1;
    enum status s = mem_grow(&all, &l->capacity, l->count + 1, sizeof(struct value *), o->e);
    l->all = all;
    if (s != STATUS_OK) return -1;
    v->user = o->node + 1;
    l->all[l->count++] = v;
    return 0;
}

/* Integers from which shapes follow inside are no weights. */
static int list_tensor(struct onnx *o, struct kept_list *l, struct tensor *t, struct bytes name)
{
    take_raw_ints(t);
    if (t->int_count > 0 && t->int_count <= VIZ_INTS_MAX && (t->dtype == 6 || t->dtype == 7)) return 0;
    struct value *v = ARENA_NEW(&o->g->arena, 1, struct value);
    if (v == NULL) return viz_no_memory(o->e), -1;
    if (!bytes_is_utf8(name) || name.size > VIZ_NAME_MAX) name = bytes_text("(no name)");
    v->name = name;
    return keep_tensor(o, t, v) < 0 ? -1 : list_kept(o, l, v);
}

static int list_body(struct onnx *o, struct kept_list *l, struct message m, bool is_function, unsigned depth);

static int list_attribute(struct onnx *o, struct kept_list *l, struct message m, unsigned depth)
{
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0)
        if ((f.number == 6 || f.number == 11) && f.wire == PB_BYTES &&
            list_body(o, l, message_of(&m, f.bytes), false, depth + 1) < 0)
            return -1;
    return more;
}

static int list_function(struct onnx *o, struct kept_list *l, const struct message *in, const struct node *n,
                         unsigned depth)
{
    struct function *f = map_find(o->functions, n->op);
    struct kept_list own = {0};
    int s = 0;

    if (f == NULL || !bytes_equal(f->domain, n->domain)) return 0;
    if (!f->is_read) {
        f->is_read = true;           /* one that calls itself ends here */
        s = list_body(o, &own, message_of(in, f->body), true, depth + 1);
        f->kept = ARENA_NEW(&o->g->arena, own.count, struct value *);
        if (s == 0 && f->kept == NULL) s = (viz_no_memory(o->e), -1);
        for (size_t i = 0; s == 0 && i < own.count; i++) own.all[i]->user = 0, f->kept[f->count++] = own.all[i];
        mem_free(own.all);
    }
    for (size_t i = 0; s == 0 && i < f->count; i++) s = list_kept(o, l, f->kept[i]);
    return s;
}

/* What a node has in bodies of its own or in its function. */
static int list_node(struct onnx *o, struct kept_list *l, struct message m, const struct node *n, unsigned depth)
{
    struct message whole = m;
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0)
        if (f.number == 5 && f.wire == PB_BYTES && list_attribute(o, l, message_of(&m, f.bytes), depth) < 0) return -1;
    return more < 0 ? more : list_function(o, l, &whole, n, depth);
}

/* A node of a body, with what it takes from outside. A function sees nothing of the outside. */
static int list_inner(struct onnx *o, struct kept_list *l, struct message m, bool is_function, unsigned depth)
{
    struct message whole = m;
    struct bytes name;
    struct tensor t;
    struct field f;
    struct node n;

    if (count_node(o, m, &n) < 0) return -1;
    int kept = read_kept(o, m, &n, &t, &name);
    if (kept != 0) return kept < 0 ? -1 : list_tensor(o, l, &t, name);
    while (!is_function && next(&m, &f, o->e) > 0) {
        struct value *v = f.number == 1 && f.wire == PB_BYTES ? map_find(o->values, f.bytes) : NULL;
        if (v != NULL && (v->made || v->kept) && list_kept(o, l, v) < 0) return -1;
    }
    return list_node(o, l, whole, &n, depth);
}

static int list_body(struct onnx *o, struct kept_list *l, struct message m, bool is_function, unsigned depth)
{
    struct tensor t;
    struct field f;
    int more;

    if (depth > BODY_DEPTH_MAX)
        return error_set(o->e, REASON_TOO_LARGE, "node %zu: bodies in bodies, more than %d deep", o->node,
                         BODY_DEPTH_MAX), -1;
    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.wire != PB_BYTES) continue;
        if (!is_function && (f.number == 5 || f.number == 15)) {
            t = (struct tensor){0};
            if ((f.number == 15 ? read_sparse : read_tensor)(o, &m, f.bytes, &t) < 0) return -1;
            if (list_tensor(o, l, &t, t.name) < 0) return -1;
        }
        if (f.number == (is_function ? 7 : 1) && list_inner(o, l, message_of(&m, f.bytes), is_function, depth) < 0)
            return -1;
    }
    return more;
}

/* ---- a node and its inputs ----------------------------------------------------------------------------------- */

static enum status keep_node(struct onnx *o, struct tensor *t, struct bytes name)
{
    struct value *v = value_at(o, name);

    if (v == NULL) return o->e->status;
    if (v->made || v->kept) return node_fault(o, "one of its outputs has been made before");
    return keep_tensor(o, t, v) < 0 ? o->e->status : STATUS_OK;
}

/* The inputs that are stated, then those through bodies. *from is on the heap. */
static enum status list_inputs(struct onnx *o, struct message m, const struct node *n, struct kept_list *from)
{
    struct value **stated = ARENA_NEW(&o->g->arena, n->inputs, struct value *);
    struct kept_list bodies = {0};
    enum status s;

    if (stated == NULL) return viz_no_memory(o->e);
    s = find_inputs(o, m, n, stated);
    if (s != STATUS_OK) return s;
    for (size_t i = 0; i < n->inputs && s == STATUS_OK; i++) {
        stated[i]->user = 0;         /* an input may come twice */
        if (list_kept(o, from, stated[i]) < 0) s = o->e->status;
    }
    if (s == STATUS_OK && list_node(o, &bodies, m, n, 0) < 0) s = o->e->status;
    for (size_t i = 0; i < bodies.count && s == STATUS_OK; i++) {
        struct value *v = bodies.all[i];
        if (!v->made) s = make_variable(o, v);
        v->user = 0;
        if (s == STATUS_OK && list_kept(o, from, v) < 0) s = o->e->status;
    }
    mem_free(bodies.all);
    return s;
}

static enum status read_node(struct onnx *o, struct message m)
{
    struct kept_list from = {0};
    struct bytes name;
    struct tensor t;
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
    int kept = read_kept(o, m, &n, &t, &name);
    if (kept != 0) return kept < 0 ? o->e->status : keep_node(o, &t, name);
    enum status s = list_inputs(o, m, &n, &from);
    if (s == STATUS_OK) s = viz_node_add(o->g, n.name, n.op, &at, o->e);
    if (s != STATUS_OK) goto out;
    /* The same letters mean something else in another domain, or in a function of the file. */
    const struct function *own = map_find(o->functions, n.op);
    if (!is_standard(&n) || (own != NULL && bytes_equal(own->domain, n.domain))) o->g->nodes[at].kind = viz_op_find("");
    struct viz_input *inputs = viz_inputs_new(o->g, from.count, o->e);
    if (inputs == NULL) s = o->e->status;
    for (size_t i = 0; s == STATUS_OK && i < from.count; i++)
        inputs[i] = (struct viz_input){from.all[i]->node, from.all[i]->output};
    if (s == STATUS_OK) s = viz_outputs_set(o->g, at, n.outputs, o->e);
    if (s == STATUS_OK) s = give_outputs(o, m, at);
    if (s == STATUS_OK) s = read_node_attrs(o, m, &n, at);
out:
    mem_free(from.all);
    return s;
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
        if ((f.number == 5 || f.number == 15) && read_initializer(o, &m, f.bytes, f.number == 15) < 0) return -1;
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

static enum status mark_heads(struct onnx *o, struct message m)
{
    enum status s = STATUS_OK;
    struct value *v;
    struct field f;

    while (s == STATUS_OK && next(&m, &f, o->e) > 0)
        if (f.number == 12 && f.wire == PB_BYTES && read_value_info(o, &m, f.bytes, &v) == 0 && v != NULL) {
            if (v->kept && !v->made) s = make_variable(o, v);
            if (v->made) o->g->nodes[v->node].head = true;
        }
    return s;
}

/* Which name stands for the batch, the inputs tell first. */
static int find_batch(struct onnx *o, struct message m)
{
    struct value *v;
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0)
        if (f.number == 11 && f.wire == PB_BYTES && read_value_info(o, &m, f.bytes, &v) < 0) return -1;
    return more;
}

static enum status read_graph(struct onnx *o, struct message m)
{
    if (find_batch(o, m) < 0 || read_names(o, m) < 0) return o->e->status;
    enum status s = read_graph_inputs(o, m);
    if (s == STATUS_OK) s = read_graph_nodes(o, m);
    if (s == STATUS_OK) s = mark_heads(o, m);
    if (s == STATUS_OK && o->g->node_count == 0)
        s = error_set(o->e, REASON_NETWORK_INVALID, "the network has no nodes");
    return s;
}

/* FunctionProto: its name and domain. */
static int read_function(struct onnx *o, const struct message *in, struct bytes b)
{
    struct message m = message_of(in, b);
    struct function *fn = ARENA_NEW(&o->g->arena, 1, struct function);
    struct bytes name = bytes_text("");
    struct field f;
    int more;

    if (fn == NULL) return viz_no_memory(o->e), -1;
    *fn = (struct function){.body = b, .domain = bytes_text("")};
    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.number == 1 && f.wire == PB_BYTES) name = f.bytes;
        if (f.number == 10 && f.wire == PB_BYTES) fn->domain = f.bytes;
    }
    if (more < 0 || name.size == 0 || map_find(o->functions, name) != NULL) return more;
    return map_put(o->functions, name, fn, o->e) == STATUS_OK ? 0 : -1;
}

static enum status find_graph(struct onnx *o, struct bytes file)
{
    struct message m = {file.at, (const uint8_t *)file.at + file.size, file.at};
    struct bytes graph = {0};
    struct field f;
    int more;

    while ((more = next(&m, &f, o->e)) > 0) {
        if (f.number == 7 && f.wire == PB_BYTES) graph = f.bytes;
        if (f.number == 25 && f.wire == PB_BYTES && read_function(o, &m, f.bytes) < 0) return o->e->status;
    }
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
    o.functions = map_new(seed);
    g->is_onnx = true;
    g->is_np_shape = true;
    enum status s = o.values != NULL && o.functions != NULL ? find_graph(&o, file) : viz_no_memory(e);
    map_free(o.functions);
    map_free(o.values);
    return s;
}
