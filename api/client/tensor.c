#include "api/client/op.h"

#include "gpu/loops.h"
#include "service/base/mem.h"

#include <assert.h>
#include <stdio.h>

enum { SHAPE_TEXT_MAX = 200 };

static void shape_text(const int64_t *dims, unsigned ndim, char to[SHAPE_TEXT_MAX])
{
    int at = snprintf(to, SHAPE_TEXT_MAX, "[");

    for (unsigned i = 0; i < ndim; i++)
        at += snprintf(to + at, SHAPE_TEXT_MAX - (size_t)at, "%s%lld", i > 0 ? ", " : "", (long long)dims[i]);
    snprintf(to + at, SHAPE_TEXT_MAX - (size_t)at, "]");
}

static_assert(SHAPE_TEXT_MAX > DIMS_MAX * 22 + 3, "a shape of the longest numbers fits");

static bool tensor_is_sound(const struct paramd_tensor *t, uint64_t *size)
{
    uint64_t count;

    int dtype = tensor_dtype(t);

    return dtype >= 0 && dtype_known((unsigned)dtype) && t->ndim >= 0 && t->ndim <= DIMS_MAX &&
           (t->ndim == 0 || t->shape != NULL) &&
           wire_shape_size(t->shape, (unsigned)t->ndim, dtype_size((enum dtype)dtype), &count, size) &&
           (*size == 0 || t->data != NULL);
}

/* What is wrong with it. Apart from the check, so that a call with thousands of good keys formats no names. */
static enum status tensor_fault(const struct paramd_tensor *t, const struct key_name *n, struct error *e)
{
    char name[80];
    uint64_t count, size;
    int dtype = tensor_dtype(t);

    key_name_text(n, name, sizeof name);
    if (dtype < 0 || !dtype_known((unsigned)dtype))
        return error_set(e, REASON_BAD_ARGUMENT, "key %s: there is no dtype %d", name, t->dtype);
    if (t->ndim < 0 || t->ndim > DIMS_MAX || (t->ndim > 0 && t->shape == NULL))
        return error_set(e, REASON_BAD_ARGUMENT, "key %s: a value has 0 to %d dimensions, not %d", name, DIMS_MAX,
                         t->ndim);
    if (!wire_shape_size(t->shape, (unsigned)t->ndim, dtype_size((enum dtype)dtype), &count, &size))
        return error_set(e, REASON_BAD_ARGUMENT, "key %s: the shape has a negative dimension or more than 1 TiB", name);
    return error_set(e, REASON_BAD_ARGUMENT, "key %s: the value has no data", name);
}

/* The same with the key's name before what is wrong. */
static enum status check_address(struct gpu *g, const struct paramd_tensor *t, const struct key_name *n, uint64_t size,
                                 struct error *e)
{
    struct error why;
    char name[80];

    if (gpu_check(g, t->data, size, &why) == STATUS_OK) return STATUS_OK;
    key_name_text(n, name, sizeof name);
    return error_set(e, why.reason, "key %s: %.380s", name, why.text);
}

enum status tensor_check(struct gpu *g, const struct paramd_tensor *t, const struct paramd_key *k, uint64_t *size,
                         struct error *e)
{
    struct key_name n;
    enum status s = key_name_of(k, &n, e);

    if (s != STATUS_OK) return s;
    if (!tensor_is_sound(t, size)) return tensor_fault(t, &n, e);
    return tensor_on_gpu(t) ? check_address(g, t, &n, *size, e) : STATUS_OK;
}

static bool same_shape(const struct paramd_tensor *t, const struct key *k)
{
    if ((unsigned)t->ndim != k->ndim) return false;
    for (unsigned i = 0; i < k->ndim; i++)
        if (t->shape[i] != k->shape[i]) return false;
    return true;
}

bool tensors_match(const struct paramd_tensor *a, const struct paramd_tensor *b)
{
    if (tensor_dtype(a) != tensor_dtype(b) || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

enum status tensor_fits(const struct paramd_tensor *t, const struct key *k, struct error *e)
{
    char name[80], have[SHAPE_TEXT_MAX], given[SHAPE_TEXT_MAX];

    unsigned dtype = (unsigned)tensor_dtype(t);

    if (dtype == k->dtype && same_shape(t, k)) return STATUS_OK;
    key_name_text(&k->name, name, sizeof name);
    if (dtype != k->dtype) {
        const char *want = dtype_numpy(k->dtype);
        bool half = k->dtype == DTYPE_bf16; /* NumPy has no such name */
        return error_set(e, REASON_SHAPE_MISMATCH, "key %s: the key is %s, the value %s: convert it with %s%s%s",
                         name, want, dtype_numpy((enum dtype)dtype), half ? "paramd.to_bfloat16(array)" : ".astype('",
                         half ? "" : want, half ? "" : "')");
    }
    shape_text(k->shape, k->ndim, have);
    shape_text(t->shape, (unsigned)t->ndim, given);
    return error_set(e, REASON_SHAPE_MISMATCH, "key %s: the key has shape %s, the value %s", name, have, given);
}

/* Sums are taken in dtype_sum, such as 64 bits for integers, and written back in the key's own type. */
static uint32_t narrow(enum dtype type, size_t count, void *sum, void *to)
{
    uint32_t flags = 0;
    struct step s = {
        .rule = RULE_assign, .type = type, .count = count,
        .sum = {.at = sum, .host = sum, .size = count * dtype_size(dtype_sum(type))},
        .from = {.at = to, .host = to, .size = count * dtype_size(type)},
        .to = {.at = to, .host = to, .size = count * dtype_size(type)}, .flags = &flags,
    };
    return loops_step(&s, 0, count);
}

enum status tensor_fetch(struct gpu *g, const struct paramd_tensor *t, uint64_t size, void **out, struct error *e)
{
    void *to = mem_aligned((size_t)size);

    if (to == NULL)
        return error_set(e, REASON_NO_MEMORY, "no host memory for a value of %llu bytes", (unsigned long long)size);
    enum status s = gpu_copy(g, to, t->data, size, e);
    if (s == STATUS_OK) s = gpu_settle(g, e);
    if (s == STATUS_OK) *out = to;
    else mem_free(to);
    return s;
}

/* Adds one value to the sum, or begins it. */
static enum status sum_one(struct gpu *g, const struct paramd_tensor *t, const struct key *k, bool first, void *sum,
                           uint32_t *flags, struct error *e)
{
    size_t elements = k->size / dtype_size(k->dtype);
    void *fetched = NULL;
    enum status s = tensor_on_gpu(t) ? tensor_fetch(g, t, k->size, &fetched, e) : STATUS_OK;

    if (s != STATUS_OK) return s;
    const void *from = fetched != NULL ? fetched : t->data;
    if (first) loops_widen(k->dtype, sum, from, elements);
    else *flags |= loops_add(k->dtype, sum, from, elements);
    mem_free(fetched);
    return STATUS_OK;
}

enum status tensor_sum(struct gpu *g, const struct tensors *t, const size_t *indices, size_t count, const struct key *k,
                       void **out, struct error *e)
{
    enum status s = STATUS_OK;
    size_t elements = k->size / dtype_size(k->dtype);
    uint32_t flags = 0;
    char name[80];

    key_name_text(&k->name, name, sizeof name);
    void *sum = mem_aligned(elements * dtype_size(dtype_sum(k->dtype)));
    if (sum == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the sum of key %s", name);
    for (size_t i = 0; i < count && s == STATUS_OK; i++)
        s = sum_one(g, &t->values[indices[i]], k, i == 0, sum, &flags, e);
    if (s != STATUS_OK) {
        mem_free(sum);
        return s;
    }
    /* In place: an element is never wider than its sum, and the loop goes upwards. */
    if (dtype_sum(k->dtype) != k->dtype) flags |= narrow(k->dtype, elements, sum, sum);
    if (flags & WORK_OVERFLOW) {
        mem_free(sum);
        return error_set(e, REASON_SUM_OVERFLOW, "key %s: the sum of %zu values does not fit %s", name, count,
                         dtype_numpy(k->dtype));
    }
    *out = sum;
    return STATUS_OK;
}
