#include "web/viz/graph.h"

#include "service/base/map.h"
#include "web/viz/ops.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- element types ------------------------------------------------------------------------------------------- */

static const struct { const char *name; uint64_t bits; int64_t mxnet, onnx; } dtypes[] = {
#define DTYPE_ROW(name, bits, mxnet, onnx) {#name, bits, mxnet, onnx},
    VIZ_DTYPES(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *viz_dtype_name(enum viz_dtype t) { return t == VIZ_DTYPE_unknown ? "?" : dtypes[t].name; }

bool viz_dtype_bytes(enum viz_dtype t, uint64_t count, uint64_t *out)
{
    uint64_t bits = dtypes[t].bits;

    if (bits == 0 || count > (UINT64_MAX - 7) / bits) return false;
    *out = (count * bits + 7) / 8;
    return true;
}

enum viz_dtype viz_dtype_find(const char *name)
{
    for (unsigned i = 1; i < VIZ_DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0) return (enum viz_dtype)i;
    return VIZ_DTYPE_unknown;
}

enum viz_dtype viz_dtype_mxnet(int64_t number)
{
    for (unsigned i = 1; i < VIZ_DTYPE_COUNT; i++)
        if (number >= 0 && dtypes[i].mxnet == number) return (enum viz_dtype)i;
    return VIZ_DTYPE_unknown;
}

enum viz_dtype viz_dtype_onnx(uint64_t number)
{
    for (unsigned i = 1; i < VIZ_DTYPE_COUNT; i++)
        if (number <= INT64_MAX && dtypes[i].onnx == (int64_t)number) return (enum viz_dtype)i;
    return VIZ_DTYPE_unknown;
}

/* ---- building ------------------------------------------------------------------------------------------------ */

enum status viz_no_memory(struct error *e) { return error_set(e, REASON_NO_MEMORY, "no memory for the network"); }

void viz_graph_fini(struct viz_graph *g)
{
    arena_fini(&g->arena);
    mem_free(g->nodes);
    *g = (struct viz_graph){.arena = {.limit = g->arena.limit}};
}

const char *viz_text(struct viz_graph *g, struct bytes from, size_t most)
{
    const char *at = from.at;
    size_t size = from.size;

    if (size > most)
        for (size = most; size > 0 && ((unsigned char)at[size] & 0xC0) == 0x80;) size--;
    return arena_text(&g->arena, at, size);
}

enum status viz_node_add(struct viz_graph *g, struct bytes name, struct bytes op, uint32_t *index, struct error *e)
{
    if (g->node_count >= VIZ_NODES_MAX)
        return error_set(e, REASON_TOO_LARGE, "the network has more than %d nodes", VIZ_NODES_MAX);
    if (name.size > VIZ_NAME_MAX || op.size > VIZ_NAME_MAX)
        return error_set(e, REASON_TOO_LARGE, "node %zu: a name of %zu bytes; at most %d", g->node_count,
                         name.size > op.size ? name.size : op.size, VIZ_NAME_MAX);
    void *nodes = g->nodes;
    enum status s = mem_grow(&nodes, &g->node_capacity, g->node_count + 1, sizeof *g->nodes, e);
    g->nodes = nodes;
    if (s != STATUS_OK) return s;
    struct viz_node *n = &g->nodes[g->node_count];
    *n = (struct viz_node){.name = viz_text(g, name, VIZ_NAME_MAX)};
    if (op.at != NULL) n->op = viz_text(g, op, VIZ_NAME_MAX);
    if (n->name == NULL || (op.at != NULL && n->op == NULL)) return viz_no_memory(e);
    n->kind = viz_op_find(n->op);
    n->role = n->op != NULL ? ROLE_OP : ROLE_NONE;
    *index = (uint32_t)g->node_count++;
    return STATUS_OK;
}

struct viz_input *viz_inputs_new(struct viz_graph *g, size_t count, struct error *e)
{
    struct viz_node *n = &g->nodes[g->node_count - 1];

    if (count > VIZ_EDGES_MAX - g->edge_count) {
        error_set(e, REASON_TOO_LARGE,
                  "node %zu ('%.100s'): with its %zu inputs the network has more than %d edges", g->node_count - 1,
                  n->name, count, VIZ_EDGES_MAX);
        return NULL;
    }
    struct viz_input *inputs = ARENA_NEW(&g->arena, count, struct viz_input);
    if (inputs == NULL) {
        viz_no_memory(e);
        return NULL;
    }
    g->edge_count += count;
    n->inputs = inputs;
    n->input_count = (uint32_t)count;
    return inputs;
}

enum status viz_outputs_set(struct viz_graph *g, uint32_t index, size_t count, struct error *e)
{
    struct viz_node *n = &g->nodes[index];

    if (count > VIZ_OUTPUTS_MAX)
        return error_set(e, REASON_TOO_LARGE, "node %u ('%.100s') has %zu outputs; at most %d", index, n->name,
                         count, VIZ_OUTPUTS_MAX);
    n->shapes = ARENA_NEW(&g->arena, count, struct viz_shape);
    if (n->shapes == NULL) return viz_no_memory(e);
    n->output_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) n->shapes[i].ndim = VIZ_UNKNOWN;
    return STATUS_OK;
}

/* ---- roles --------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* By its name alone, for inputs of operators that the table knows nothing about. */
static enum viz_role role_of_name(const struct viz_node *n)
{
    static const struct { const char *end; enum viz_role role; } ends[] = {
        {"_weight", ROLE_PARAM}, {"_bias", ROLE_PARAM}, {"_beta", ROLE_PARAM}, {"_gamma", ROLE_PARAM},
        {"_parameters", ROLE_PARAM}, {"_moving_mean", ROLE_AUX}, {"_moving_var", ROLE_AUX},
        {"_running_mean", ROLE_AUX},
        {"_running_var", ROLE_AUX}, {"_label", ROLE_LABEL},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends_with(n->name, ends[i].end)) return ends[i].role;
    return viz_attr(n, "__init__") != NULL ? ROLE_PARAM : ROLE_DATA;
}

static bool slot_begins(struct bytes slot, const char *with)
{
    size_t size = strlen(with);
    return slot.size >= size && memcmp(slot.at, with, size) == 0;
}

static enum viz_role role_of_slot(const struct viz_node *user, size_t input, const struct viz_node *n)
{
    struct bytes slot = viz_op_slot(user->kind, input);

    if (slot.size == 0 || slot_begins(slot, "data") || slot_begins(slot, "state")) return role_of_name(n);
    if (slot_begins(slot, "label")) return ROLE_LABEL;
    return slot_begins(slot, "moving") ? ROLE_AUX : ROLE_PARAM;
}

/* What the file has a value for is no data, and integers among it are no weights. */
static enum viz_role role_of_kept(const struct viz_node *n, enum viz_role role)
{
    bool is_integer = n->dtype >= VIZ_DTYPE_uint8 && n->dtype <= VIZ_DTYPE_bool;

    if (!n->is_kept) return role;
    return is_integer ? ROLE_AUX : role == ROLE_AUX ? ROLE_AUX : ROLE_PARAM;
}

static void use(struct viz_node *n, const struct viz_node *user, size_t input)
{
    n->consumers++;
    if (user->inputs[input].output >= n->outputs_used)
        n->outputs_used = user->inputs[input].output + 1;
    if (n->op != NULL || n->role == ROLE_DATA) return; /* who is data for one is data */
    enum viz_role role = role_of_kept(n, role_of_slot(user, input, n));
    if (n->role == ROLE_NONE || role == ROLE_DATA) n->role = role;
}

void viz_roles(struct viz_graph *g)
{
    bool heads = false;

    for (size_t i = 0; i < g->node_count; i++) {
        const struct viz_node *user = &g->nodes[i];
        heads = heads || user->head;
        for (size_t k = 0; k < user->input_count; k++) use(&g->nodes[user->inputs[k].node], user, k);
    }
    for (size_t i = 0; i < g->node_count; i++) {
        struct viz_node *n = &g->nodes[i];
        if (!heads && n->consumers == 0 && n->op != NULL) n->head = true;
        if (n->role == ROLE_NONE) n->role = role_of_kept(n, role_of_name(n));
    }
}

enum status viz_bind_keys(struct viz_graph *g, const struct viz_key *keys, size_t count, struct error *e)
{
    uint8_t seed[16];
    enum status s = STATUS_OK;
    struct map *m;

    if (getrandom(seed, sizeof seed, 0) != sizeof seed) return error_set(e, REASON_SYSTEM, "no random numbers");
    m = map_new(seed);
    if (m == NULL) return viz_no_memory(e);
    for (size_t i = 0; i < count && s == STATUS_OK; i++)
        if (map_find(m, bytes_text(keys[i].name)) == NULL)
            s = map_put(m, bytes_text(keys[i].name), (void *)(uintptr_t)&keys[i], e);
    for (size_t i = 0; i < g->node_count && s == STATUS_OK; i++) {
        struct viz_node *n = &g->nodes[i];
        if (n->op != NULL) continue;
        n->key = map_find(m, bytes_text(n->name));
        if (n->key == NULL) continue;
        if (n->role != ROLE_AUX) n->role = ROLE_PARAM;
        if (n->key->dtype != VIZ_DTYPE_unknown) n->dtype = n->key->dtype;
        if (n->output_count > 0 && n->key->shape.ndim >= 0)
            n->shapes[0] = n->key->shape; /* the store has the last word */
    }
    map_free(m);
    return s;
}

/* ---- attributes ---------------------------------------------------------------------------------------------- */

const char *viz_attr(const struct viz_node *n, const char *name)
{
    static const char *const onnx[][2] = {
        {"kernel", "kernel_shape"}, {"stride", "strides"}, {"pad", "pads"}, {"dilate", "dilations"},
        {"num_group", "group"},
        {"axis", "axes"}, {"axes", "perm"}, {"keepdims", "keep_dims"}, {"eps", "epsilon"}, {"shape", "newshape"},
    };
    for (uint32_t i = 0; i < n->attr_count; i++)
        if (strcmp(n->attrs[i].name, name) == 0) return n->attrs[i].value;
    for (size_t k = 0; k < sizeof onnx / sizeof onnx[0]; k++)
        for (uint32_t i = 0; strcmp(onnx[k][0], name) == 0 && i < n->attr_count; i++)
            if (strcmp(n->attrs[i].name, onnx[k][1]) == 0) return n->attrs[i].value;
    return NULL;
}

int64_t viz_attr_int(const struct viz_node *n, const char *name, int64_t otherwise)
{
    int64_t v[VIZ_DIMS];

    return viz_attr_ints(n, name, v) == 1 ? v[0] : otherwise;
}

bool viz_attr_true(const struct viz_node *n, const char *name)
{
    const char *v = viz_attr(n, name);
    return v != NULL && (strcmp(v, "True") == 0 || strcmp(v, "true") == 0 || strcmp(v, "1") == 0);
}

size_t viz_attr_list(const struct viz_node *n, const char *name, int64_t none, int64_t *out,
                     size_t most)
{
    const char *at = viz_attr(n, name);
    size_t count = 0;

    if (at != NULL && strcmp(at, "None") == 0) return 0;
    while (at != NULL && *at != '\0') {
        char *end;
        at += strspn(at, "([ ,)]L\"'");
        if (*at == '\0') break;
        if (count == most) return 0;
        if (strncmp(at, "None", 4) == 0) {
            out[count++] = none;
            at += 4;
            continue;
        }
        out[count] = strtoll(at, &end, 10);
        if (end == at) return 0;
        count++;
        at = end + (*end == '.' ? 1 + strspn(end + 1, "0") : 0);
    }
    return count;
}

size_t viz_attr_ints(const struct viz_node *n, const char *name, int64_t out[VIZ_DIMS])
{
    return viz_attr_list(n, name, VIZ_UNKNOWN, out, VIZ_DIMS);
}

/* ---- shapes -------------------------------------------------------------------------------------------------- */

const char *viz_shape_text(const struct viz_shape *s, char out[VIZ_SHAPE_TEXT])
{
    size_t at = 0;

    if (s->ndim <= 0) return strcpy(out, s->ndim == 0 ? "scalar" : "?");
    for (int i = 0; i < s->ndim; i++) {
        if (i > 0) out[at++] = 'x';
        if (s->dims[i] == VIZ_BATCH) at += (size_t)snprintf(out + at, VIZ_SHAPE_TEXT - at, "N");
        else if (s->dims[i] < 0) at += (size_t)snprintf(out + at, VIZ_SHAPE_TEXT - at, "?");
        else at += (size_t)snprintf(out + at, VIZ_SHAPE_TEXT - at, "%" PRId64, s->dims[i]);
    }
    return out;
}

bool viz_shape_count(const struct viz_shape *s, uint64_t *out)
{
    uint64_t n = 1;

    if (s->ndim < 0) return false;
    for (int i = 0; i < s->ndim; i++)
        if (s->dims[i] < 0 || __builtin_mul_overflow(n, (uint64_t)s->dims[i], &n) || n > (uint64_t)1 << 62)
            return false;
    *out = n;
    return true;
}

bool viz_shape_read(const char *text, struct viz_shape *out)
{
    bool bracket = *text == '(' || *text == '[';
    const char *at = text + bracket;

    *out = (struct viz_shape){0};
    for (;;) {
        char *end;
        at += strspn(at, " ");
        if (*at == '\0' || *at == ')' || *at == ']') break;
        if (out->ndim == VIZ_DIMS) return false;
        int64_t *dim = &out->dims[out->ndim++];
        if (*at == 'N') *dim = VIZ_BATCH, at++;
        else if (*at == '?') *dim = VIZ_UNKNOWN, at++;
        else {
            *dim = isdigit((unsigned char)*at) ? strtoll(at, &end, 10) : -1;
            if (*dim < 0 || *dim > (int64_t)1 << 48) return false;
            at = end;
        }
        at += strspn(at, " ");
        if (*at == ',' || *at == 'x') at++;
        else if (*at != '\0' && *at != ')' && *at != ']') return false;
    }
    if ((*at != '\0') != bracket) return false;
    return at[bracket] == '\0' && (bracket || out->ndim > 0);
}
