#include "web/value.h"

#include "gpu/half.h"
#include "gpu/npy.h"
#include "web/json.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name, *media;
} forms[] = {
    [FORM_JSON] = {"json", "application/json"},
    [FORM_NPY] = {"npy", "application/x-npy"},
    [FORM_RAW] = {"raw", "application/octet-stream"},
};
enum { FORM_COUNT = sizeof forms / sizeof forms[0] };

/* ---- forms ------------------------------------------------------------------------------------------------------ */

enum form form_find(const char *name)
{
    for (int f = FORM_JSON; f < FORM_COUNT; f++)
        if (strcmp(forms[f].name, name) == 0) return (enum form)f;
    return FORM_NONE;
}

const char *form_media(enum form f) { return forms[f].media; }

static enum form form_of_range(const char *at, size_t size)
{
    if (size == 3 && memcmp(at, "*/*", 3) == 0) return FORM_JSON;
    if (size == 13 && strncasecmp(at, "application/*", 13) == 0) return FORM_JSON;
    for (int f = FORM_JSON; f < FORM_COUNT; f++)
        if (strlen(forms[f].media) == size && strncasecmp(forms[f].media, at, size) == 0) return (enum form)f;
    return FORM_NONE;
}

enum form form_of_media(const char *type)
{
    size_t size = strcspn(type, "; \t");
    enum form f = form_of_range(type, size);

    return size > 0 && type[size - 1] == '*' ? FORM_NONE : f;
}

/* A range such as "application/json;q=0.5": its quality in thousandths. */
static int quality_of(const char *range, size_t size)
{
    for (const char *at = range, *end = range + size; (at = memchr(at, ';', (size_t)(end - at))) != NULL;) {
        at += 1 + strspn(at + 1, " \t");
        if (end - at >= 2 && strncasecmp(at, "q=", 2) == 0) return (int)(strtod(at + 2, NULL) * 1000);
    }
    return 1000;
}

enum form form_accept(const char *accept)
{
    enum form best = FORM_NONE;
    int best_quality = 0;

    if (accept == NULL || *accept == '\0') return FORM_JSON;
    for (const char *at = accept; *at != '\0';) {
        at += strspn(at, ", \t");
        size_t size = strcspn(at, ",");
        enum form f = form_of_range(at, strcspn(at, ",; \t"));
        int quality = quality_of(at, size);
        if (f != FORM_NONE && quality > best_quality) {
            best = f;
            best_quality = quality;
        }
        at += size;
    }
    return best;
}

/* ---- shapes ----------------------------------------------------------------------------------------------------- */

const char *shape_text(const struct tensor *t, char out[SHAPE_TEXT_SIZE])
{
    size_t n = 0;

    out[0] = '\0';
    for (unsigned i = 0; i < t->ndim; i++)
        n += (size_t)snprintf(out + n, SHAPE_TEXT_SIZE - n, "%s%" PRId64, i > 0 ? ", " : "", t->dims[i]);
    if (t->ndim == 1) snprintf(out + n, SHAPE_TEXT_SIZE - n, ",");
    return out;
}

static enum status measure(struct tensor *t, struct error *e)
{
    if (wire_shape_size(t->dims, t->ndim, dtype_size(t->dtype), &t->count, &t->size)) return STATUS_OK;
    return error_set(e, REASON_TOO_LARGE, "a shape with negative dimensions, or of more bytes than a value may have");
}

/* "4,4", "4," with spaces allowed. */
static enum status read_dims(const char *text, size_t size, struct tensor *t, struct error *e)
{
    const char *end = text + size;

    t->ndim = 0;
    for (const char *at = text; at < end;) {
        while (at < end && *at == ' ') at++;
        if (at == end) break;
        uint64_t v = 0;
        const char *start = at;
        for (; at < end && *at >= '0' && *at <= '9' && v <= VALUE_SIZE_MAX; at++) v = v * 10 + (uint64_t)(*at - '0');
        if (at == start || v > VALUE_SIZE_MAX || t->ndim == DIMS_MAX)
            return error_set(e, REASON_BAD_ARGUMENT, "a shape is up to %d whole numbers with commas between, such as "
                             "4,4", DIMS_MAX);
        t->dims[t->ndim++] = (int64_t)v;
        while (at < end && *at == ' ') at++;
        if (at < end && *at++ != ',')
            return error_set(e, REASON_BAD_ARGUMENT, "a shape is whole numbers with commas between, such as 4,4");
    }
    return STATUS_OK;
}

enum status shape_parse(const char *text, struct tensor *t, struct error *e)
{
    return read_dims(text, strlen(text), t, e);
}

enum status raw_check(struct tensor *t, uint64_t size, struct error *e)
{
    char shape[SHAPE_TEXT_SIZE];
    enum status s = measure(t, e);

    if (s != STATUS_OK || t->size == size) return s;
    return error_set(e, REASON_SHAPE_MISMATCH, "%" PRIu64 " bytes are no %s of shape (%s), which has %" PRIu64, size,
                     dtype_numpy(t->dtype), shape_text(t, shape), t->size);
}

/* ---- JSON out --------------------------------------------------------------------------------------------------- */

/* As json.dumps(..., allow_nan) has no standard way, the names of the protobuf JSON mapping. */
static bool write_special(struct buf *out, double v)
{
    if (isfinite(v)) return false;
    buf_text(out, isnan(v) ? "\"NaN\"" : v > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    return true;
}

static void write_f64(struct buf *out, double v)
{
    if (!write_special(out, v)) json_write_number(out, v);
}

static void write_f32(struct buf *out, float v)
{
    char text[40];

    if (write_special(out, (double)v)) return;
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    buf_text(out, text);
    if (strpbrk(text, ".e") == NULL) buf_text(out, ".0"); /* a float stays one to the reader */
}

static void write_element(struct buf *out, enum dtype t, const uint8_t *at)
{
    union { float f; double d; uint16_t h; int8_t b; int32_t i; int64_t l; } v;

    memcpy(&v, at, dtype_size(t));
    switch (t) {
    case DTYPE_f32: write_f32(out, v.f); return;
    case DTYPE_f64: write_f64(out, v.d); return;
    case DTYPE_f16: write_f32(out, half_widen_f16(v.h)); return;
    case DTYPE_bf16: write_f32(out, half_widen_bf16(v.h)); return;
    case DTYPE_i8: buf_format(out, "%d", v.b); return;
    case DTYPE_u8: buf_format(out, "%u", *at); return;
    case DTYPE_i32: buf_format(out, "%" PRId32, v.i); return;
    case DTYPE_i64: buf_format(out, "\"%" PRId64 "\"", v.l); return;
    case DTYPE_COUNT: break;
    }
}

/* The elements of one sub-array from *at on. */
static void write_nested(struct buf *out, const struct tensor *t, unsigned depth, const uint8_t **at)
{
    if (depth == t->ndim) {
        write_element(out, t->dtype, *at);
        *at += dtype_size(t->dtype);
        return;
    }
    buf_text(out, "[");
    for (int64_t i = 0; i < t->dims[depth]; i++) {
        if (i > 0) buf_text(out, ", ");
        write_nested(out, t, depth + 1, at);
    }
    buf_text(out, "]");
}

/* What is to be written, brackets included: (2, 10^9, 0) has no elements and no end of brackets. */
static bool is_long(const struct tensor *t)
{
    uint64_t lists = 1;

    if (t->count > VALUE_JSON_ELEMENTS_MAX) return true;
    for (unsigned i = 0; i < t->ndim && t->dims[i] > 0; i++) {
        if ((uint64_t)t->dims[i] > VALUE_JSON_ELEMENTS_MAX / lists) return true;
        lists *= (uint64_t)t->dims[i];
    }
    return false;
}

enum status value_write_json(const struct tensor *t, const void *from, struct buf *out, struct error *e)
{
    const uint8_t *at = from;

    if (is_long(t))
        return error_set(e, REASON_JSON_TOO_LARGE, "%" PRIu64 " elements; JSON carries at most %d: ask for ?format=npy "
                         "or ?format=raw", t->count, VALUE_JSON_ELEMENTS_MAX);
    write_nested(out, t, 0, &at);
    return out->failed ? error_set(e, REASON_NO_MEMORY, "no memory for an answer") : STATUS_OK;
}

/* ---- JSON in ---------------------------------------------------------------------------------------------------- */

enum status json_check_depth(struct bytes text, struct error *e)
{
    const char *at = text.at;
    int depth = 0;
    bool quoted = false;

    for (size_t i = 0; i < text.size; i++) {
        if (quoted && at[i] == '\\') i++;
        else if (at[i] == '"') quoted = !quoted;
        else if (!quoted && (at[i] == '[' || at[i] == '{') && ++depth > JSON_DEPTH_MAX)
            return error_set(e, REASON_BAD_JSON, "brackets nest more than %d deep", JSON_DEPTH_MAX);
        else if (!quoted && (at[i] == ']' || at[i] == '}')) depth--;
    }
    return STATUS_OK;
}

/* Any JSON number, or one of the three names. */
static bool read_real(const json_t *v, double *out)
{
    static const struct { const char *name; double v; } names[] = {
        {"NaN", NAN}, {"Infinity", INFINITY}, {"-Infinity", -INFINITY},
    };
    if (json_is_number(v)) *out = json_number_value(v);
    for (size_t i = 0; json_is_string(v) && i < 3; i++)
        if (strcmp(json_string_value(v), names[i].name) == 0) {
            *out = names[i].v;
            return true;
        }
    return json_is_number(v);
}

static bool read_whole(const json_t *v, int64_t least, int64_t most, int64_t *out)
{
    char *end = NULL;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
    } else if (json_is_string(v) && json_string_length(v) > 0) {
        errno = 0;
        *out = strtoll(json_string_value(v), &end, 10);
        if (errno != 0 || *end != '\0' || json_string_value(v)[0] == ' ') return false;
    } else {
        return false;
    }
    return *out >= least && *out <= most;
}

static bool put(struct buf *out, const void *from, size_t size)
{
    buf_add(out, from, size);
    return true;
}

/* A number that the type can only hold as infinity is refused: whoever means infinity writes its name. */
static bool read_element(const json_t *v, enum dtype t, struct buf *out)
{
    uint8_t element[8];
    int64_t n = 0;
    double d = 0;

    switch (t) {
    case DTYPE_f32:
    case DTYPE_f64:
    case DTYPE_f16:
    case DTYPE_bf16: return read_real(v, &d) && dtype_put_real(t, d, element) && put(out, element, dtype_size(t));
    case DTYPE_i8: return read_whole(v, INT8_MIN, INT8_MAX, &n) && put(out, &(int8_t){(int8_t)n}, 1);
    case DTYPE_u8: return read_whole(v, 0, UINT8_MAX, &n) && put(out, &(uint8_t){(uint8_t)n}, 1);
    case DTYPE_i32: return read_whole(v, INT32_MIN, INT32_MAX, &n) && put(out, &(int32_t){(int32_t)n}, 4);
    case DTYPE_i64: return read_whole(v, INT64_MIN, INT64_MAX, &n) && put(out, &n, 8);
    case DTYPE_COUNT: break;
    }
    return false;
}

/* The elements below v, of which the dimensions are known. flat: in one list, whatever the shape. */
static enum status read_nested(const json_t *v, const struct tensor *t, unsigned depth, struct buf *out, struct error *e)
{
    const json_t *item;
    size_t i;

    if (depth == t->ndim) {
        size_t index = out->size / dtype_size(t->dtype);
        if (read_element(v, t->dtype, out)) return STATUS_OK;
        if (json_is_number(v) && !dtype_is_integer(t->dtype))
            return error_set(e, REASON_BAD_ARGUMENT, "/data: element %zu, %g, is too large for %s; write \"Infinity\" if "
                             "that is meant", index, json_number_value(v), dtype_numpy(t->dtype));
        return error_set(e, REASON_BAD_ARGUMENT, "/data: element %zu cannot be stored as %s", index, dtype_numpy(t->dtype));
    }
    if (!json_is_array(v) || json_array_size(v) != (size_t)t->dims[depth])
        return error_set(e, REASON_SHAPE_MISMATCH, "/data: at depth %u a list of %" PRId64 " is expected", depth,
                         t->dims[depth]);
    json_array_foreach(v, i, item) {
        enum status s = read_nested(item, t, depth + 1, out, e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

static enum status shape_of_nesting(const json_t *v, struct tensor *t, struct error *e)
{
    for (t->ndim = 0; json_is_array(v); v = json_array_get(v, 0)) {
        if (t->ndim == DIMS_MAX) return error_set(e, REASON_BAD_ARGUMENT, "/data: at most %d dimensions", DIMS_MAX);
        t->dims[t->ndim++] = (int64_t)json_array_size(v);
    }
    return STATUS_OK;
}

static enum status read_shape(const json_t *shape, struct tensor *t, struct error *e)
{
    const json_t *item;
    size_t i;

    if (!json_is_array(shape) || json_array_size(shape) > DIMS_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "/shape: a list of at most %d whole numbers", DIMS_MAX);
    t->ndim = (unsigned)json_array_size(shape);
    json_array_foreach(shape, i, item) {
        if (!json_is_integer(item)) return error_set(e, REASON_BAD_ARGUMENT, "/shape/%zu: a whole number", i);
        t->dims[i] = json_integer_value(item);
    }
    return STATUS_OK;
}

/* A flat list with a shape is as good as a nested one. */
static bool is_flat(const json_t *data, const struct tensor *t)
{
    return t->ndim > 1 && json_is_array(data) && json_array_size(data) == t->count &&
           !json_is_array(json_array_get(data, 0));
}

static enum status read_members(const json_t *in, struct tensor *t, struct buf *out, struct error *e)
{
    const json_t *dtype = json_object_get(in, "dtype"), *shape = json_object_get(in, "shape");
    const json_t *data = json_object_get(in, "data");
    enum status s = STATUS_OK;

    *t = (struct tensor){.dtype = DTYPE_f32};
    if (data == NULL) return error_set(e, REASON_BAD_ARGUMENT, "/data: the elements, such as [[1, 2], [3, 4]]");
    if (dtype != NULL && (!json_is_string(dtype) || !dtype_parse(bytes_text(json_string_value(dtype)), &t->dtype)))
        return error_set(e, REASON_BAD_ARGUMENT, "/dtype: a name such as float32 or int64");
    s = shape != NULL ? read_shape(shape, t, e) : shape_of_nesting(data, t, e);
    if (s == STATUS_OK) s = measure(t, e);
    if (s != STATUS_OK) return s;
    struct tensor line = {.dtype = t->dtype, .ndim = 1, .dims = {(int64_t)t->count}};
    s = read_nested(data, is_flat(data, t) ? &line : t, 0, out, e);
    if (s == STATUS_OK && out->failed) s = error_set(e, REASON_NO_MEMORY, "no memory for a value");
    return s;
}

enum status value_read_json(struct bytes text, struct tensor *t, struct buf *out, struct error *e)
{
    enum status s = json_check_depth(text, e);
    json_error_t why;

    if (s != STATUS_OK) return s;
    json_t *in = json_loadb(text.at, text.size, JSON_REJECT_DUPLICATES, &why);
    if (in == NULL)
        return error_set(e, REASON_BAD_JSON, "line %d, column %d: %s", why.line, why.column, why.text);
    if (!json_is_object(in))
        s = error_set(e, REASON_BAD_ARGUMENT, "a value is {\"dtype\": ..., \"shape\": ..., \"data\": ...}");
    const char *name;
    json_t *value;
    json_object_foreach(in, name, value)
        if (s == STATUS_OK && strcmp(name, "dtype") != 0 && strcmp(name, "shape") != 0 && strcmp(name, "data") != 0)
            s = error_set(e, REASON_UNKNOWN_FIELD, "/%.100s: unknown; a value has dtype, shape and data", name);
    if (s == STATUS_OK) s = read_members(in, t, out, e);
    json_decref(in);
    return s;
}

/* ---- .npy ------------------------------------------------------------------------------------------------------- */

enum { NPY_LEAD = 10, NPY_ALIGN = 64 };

enum status npy_write_header(const struct tensor *t, struct buf *out, struct error *e)
{
    char shape[SHAPE_TEXT_SIZE], text[2 * SHAPE_TEXT_SIZE];
    const char *name = npy_type_name(t->dtype);

    if (name == NULL)
        return error_set(e, REASON_NOT_ACCEPTABLE, "%s has no name in .npy files; ask for ?format=raw or json",
                         dtype_numpy(t->dtype));
    size_t used = (size_t)snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", name,
                                   shape_text(t, shape));
    size_t whole = (NPY_LEAD + used + 1 + NPY_ALIGN - 1) / NPY_ALIGN * NPY_ALIGN;
    uint16_t size = (uint16_t)(whole - NPY_LEAD);
    buf_add(out, "\x93NUMPY\x01\x00", 8);
    buf_add(out, &(uint8_t[2]){(uint8_t)size, (uint8_t)(size >> 8)}, 2);
    buf_text(out, text);
    while (!out->failed && out->size % NPY_ALIGN != NPY_ALIGN - 1) buf_text(out, " ");
    buf_text(out, "\n");
    return out->failed ? error_set(e, REASON_NO_MEMORY, "no memory for an answer") : STATUS_OK;
}

enum status npy_read(struct bytes file, struct tensor *t, struct bytes *elements, struct error *e)
{
    const uint8_t *at = file.at;
    char header[1024];

    if (file.size < 12 || memcmp(at, "\x93NUMPY", 6) != 0 || at[6] < 1 || at[6] > 3)
        return error_set(e, REASON_BAD_ARGUMENT, "the body is no .npy file");
    size_t lead = at[6] == 1 ? 10 : 12;
    uint64_t size = at[8] | (uint64_t)at[9] << 8;
    if (lead == 12) size |= (uint64_t)at[10] << 16 | (uint64_t)at[11] << 24;
    if (size >= sizeof header || size > file.size - lead)
        return error_set(e, REASON_BAD_ARGUMENT, "the .npy header has %" PRIu64 " bytes; a plain array's has fewer than "
                         "%zu", size, sizeof header);
    memcpy(header, at + lead, size);
    header[size] = '\0';
    struct npy_header h = {.ndim = 0};
    enum status s = npy_header_read(header, &h, e);
    *t = (struct tensor){.dtype = h.dtype, .ndim = h.ndim};
    memcpy(t->dims, h.dims, sizeof h.dims);
    *elements = bytes_of(at + lead + size, file.size - lead - (size_t)size);
    return s == STATUS_OK ? raw_check(t, elements->size, e) : s;
}
