#include "gpu/npy.h"

#include <stdio.h>
#include <string.h>

static const char *const names[DTYPE_COUNT] = {
    [DTYPE_f32] = "<f4", [DTYPE_f64] = "<f8", [DTYPE_f16] = "<f2", [DTYPE_i8] = "|i1",
    [DTYPE_u8] = "|u1",  [DTYPE_i32] = "<i4", [DTYPE_i64] = "<i8",
};

const char *npy_type_name(enum dtype t) { return names[t]; }

/* What stands behind 'name': or "name": in a header. NULL: it is not there. */
static const char *member(const char *text, const char *name)
{
    char quoted[32];

    for (const char *quote = "'\""; *quote != '\0'; quote++) {
        snprintf(quoted, sizeof quoted, "%c%s%c", *quote, name, *quote);
        const char *at = strstr(text, quoted);
        if (at == NULL) continue;
        at += strlen(quoted);
        at += strspn(at, " ");
        return *at == ':' ? at + 1 + strspn(at + 1, " ") : NULL;
    }
    return NULL;
}

/* "<f4" and "=f4" are one type here, as is "f4"; elements of one byte have no order. */
static bool is_type(struct bytes word, const char *name)
{
    const char *at = word.at;
    bool ordered = word.size > 0 && strchr("<>=|", at[0]) != NULL;

    if (ordered && at[0] == '>' && name[2] != '1') return false;
    if (ordered && at[0] == '|' && name[2] != '1') return false;
    return bytes_equal(bytes_of(at + ordered, word.size - ordered), bytes_text(name + 1));
}

static enum status read_type(const char *at, enum dtype *out, struct error *e)
{
    const char *end = *at == '\'' || *at == '"' ? strchr(at + 1, *at) : NULL;

    if (end == NULL)
        return error_set(e, REASON_BAD_ARGUMENT, "the elements of the .npy file are records; save one of their fields");
    struct bytes word = bytes_of(at + 1, (size_t)(end - at - 1));
    for (unsigned t = 0; t < DTYPE_COUNT; t++) {
        if (names[t] == NULL || !is_type(word, names[t])) continue;
        *out = (enum dtype)t;
        return STATUS_OK;
    }
    return error_set(e, REASON_BAD_ARGUMENT, "elements of type '%.*s' are not stored here; save "
                     "array.astype('float32') or another of float64 float16 int8 uint8 int32 int64",
                     word.size < 16 ? (int)word.size : 16, (const char *)word.at);
}

/* "(4, 4)", "(4,)", "()"; Python 2 wrote "(4L,)". */
static bool read_shape(const char *at, struct npy_header *out)
{
    if (*at++ != '(') return false;
    for (out->ndim = 0;;) {
        at += strspn(at, " ");
        if (*at == ')') return true;
        uint64_t n = 0;
        const char *start = at;
        for (; *at >= '0' && *at <= '9' && n <= VALUE_SIZE_MAX; at++) n = n * 10 + (uint64_t)(*at - '0');
        if (at == start || n > VALUE_SIZE_MAX || out->ndim == DIMS_MAX) return false;
        out->dims[out->ndim++] = (int64_t)n;
        at += *at == 'L';
        at += strspn(at, " ");
        if (*at == ',') at++;
        else if (*at != ')') return false;
    }
}

enum status npy_header_read(const char *text, struct npy_header *out, struct error *e)
{
    const char *type = member(text, "descr"), *order = member(text, "fortran_order");
    const char *shape = member(text, "shape");

    if (type == NULL || order == NULL || shape == NULL)
        return error_set(e, REASON_BAD_ARGUMENT, "the .npy header lacks one of descr, fortran_order and shape");
    enum status s = read_type(type, &out->dtype, e);
    if (s != STATUS_OK) return s;
    if (strncmp(order, "False", 5) != 0)
        return error_set(e, REASON_BAD_ARGUMENT, "the array is in Fortran order; save numpy.ascontiguousarray(array)");
    if (read_shape(shape, out)) return STATUS_OK;
    return error_set(e, REASON_BAD_ARGUMENT, "the shape in the .npy header is not a tuple of at most %d sizes", DIMS_MAX);
}
