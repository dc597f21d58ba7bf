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

    return t->dtype >= 0 && dtype_known((unsigned)t->dtype) && t->ndim >= 0 && t->ndim <= DIMS_MAX &&
           (t->ndim == 0 || t->shape != NULL) &&
           wire_shape_size(t->shape, (unsigned)t->ndim, dtype_size((enum dtype)t->dtype), &count, size) &&
           (*size == 0 || t->data != NULL);
}

/* What is wrong with it. Apart from the check, so that a call with thousands of good keys formats no names. */
static enum status tensor_fault(const struct paramd_tensor *t, const struct key_name *n, struct error *e)
{
    char name[80];
    uint64_t count, size;

    key_name_text(n, name, sizeof name);
    if (t->dtype < 0 || !dtype_known((unsigned)t->dtype))
        return error_set(e, REASON_BAD_ARGUMENT, "key %s: there is no dtype %d", name, t->dtype);
    if (t->ndim < 0 || t->ndim > DIMS_MAX || (t->ndim > 0 && t->shape == NULL))
        return error_set(e, REASON_BAD_ARGUMENT, "key %s: a value has 0 to %d dimensions, not %d", name, DIMS_MAX,
                         t->ndim);
    if (!wire_shape_size(t->shape, (unsigned)t->ndim, dtype_size((enum dtype)t->dtype), &count, &size))
        return error_set(e, REASON_BAD_ARGUMENT, "key %s: the shape has a negative dimension or more than 1 TiB", name);
    return error_set(e, REASON_BAD_ARGUMENT, "key %s: the value has no data", name);
}

enum status tensor_check(const struct paramd_tensor *t, const struct paramd_key *k, uint64_t *size, struct error *e)
{
    struct key_name n;
    enum status s = key_name_of(k, &n, e);

    if (s != STATUS_OK) return s;
    return tensor_is_sound(t, size) ? STATUS_OK : tensor_fault(t, &n, e);
}

static bool same_shape(const struct paramd_tensor *t, const struct key *k)
{
    if ((unsigned)t->ndim != k->ndim) return false;
    for (unsigned i = 0; i < k->ndim; i++)
        if (t->shape[i] != k->shape[i]) return false;
    return true;
}

enum status tensor_fits(const struct paramd_tensor *t, const struct key *k, struct error *e)
{
    char name[80], have[SHAPE_TEXT_MAX], given[SHAPE_TEXT_MAX];

    if ((unsigned)t->dtype == k->dtype && same_shape(t, k)) return STATUS_OK;
    key_name_text(&k->name, name, sizeof name);
    if ((unsigned)t->dtype != k->dtype) {
        const char *want = dtype_numpy(k->dtype);
        return error_set(e, REASON_SHAPE_MISMATCH, "key %s: the key is %s, the value %s: convert it with .astype('%s')",
                         name, want, dtype_numpy((enum dtype)t->dtype), want);
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

enum status tensor_sum(const struct tensors *t, const size_t *indices, size_t count, const struct key *k, void **out,
                       struct error *e)
{
    size_t elements = k->size / dtype_size(k->dtype);
    uint32_t flags = 0;
    char name[80];

    key_name_text(&k->name, name, sizeof name);
    void *sum = mem_aligned(elements * dtype_size(dtype_sum(k->dtype)));
    if (sum == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the sum of key %s", name);
    loops_widen(k->dtype, sum, t->values[indices[0]].data, elements);
    for (size_t i = 1; i < count; i++) flags |= loops_add(k->dtype, sum, t->values[indices[i]].data, elements);
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
