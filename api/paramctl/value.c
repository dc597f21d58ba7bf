#include "api/paramctl/paramctl.h"

#include "api/limits.h"
#include "gpu/dtype.h"
#include "gpu/half.h"
#include "service/base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_MAX = 1000, EDGE = 3, NUMBER_SIZE = 40, FILE_SIZE_MAX = 64 << 20 };

/* ---- types ------------------------------------------------------------------------------------------------------ */

const char *dtype_text(int dtype)
{
    return dtype >= 0 && dtype_known((unsigned)dtype) ? dtype_numpy((enum dtype)dtype) : "?";
}

bool dtype_of(const char *name, int *out)
{
    enum dtype t;

    if (!dtype_parse(bytes_text(name), &t)) return false;
    *out = (int)t;
    return true;
}

const char *type_text(const struct paramd_tensor *t, char out[CELL_SIZE])
{
    size_t n = (size_t)snprintf(out, CELL_SIZE, "%s (", dtype_text(t->dtype));

    for (int d = 0; d < t->ndim && n < CELL_SIZE - 30; d++)
        n += (size_t)snprintf(out + n, CELL_SIZE - n, "%s%" PRId64, d > 0 ? ", " : "", t->shape[d]);
    snprintf(out + n, CELL_SIZE - n, t->ndim == 1 ? ",)" : ")");
    return out;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

bool value_new(int dtype, int ndim, const int64_t *shape, struct value *out)
{
    uint64_t count = 1, size = dtype_size((enum dtype)dtype);

    *out = (struct value){.tensor = {.dtype = dtype, .ndim = ndim}};
    out->tensor.shape = out->shape;
    for (int d = 0; d < ndim; d++) {
        out->shape[d] = shape[d];
        if (shape[d] < 0 || (shape[d] > 0 && count > VALUE_SIZE_MAX / 8 / (uint64_t)shape[d])) {
            complain_usage("a shape that is negative or too large");
            return false;
        }
        count *= (uint64_t)shape[d];
    }
    out->count = (size_t)count;
    out->size = (size_t)(count * size);
    out->tensor.data = mem_aligned(out->size);
    if (out->tensor.data == NULL) complain_usage("no memory for a value of %zu bytes", out->size);
    return out->tensor.data != NULL;
}

void value_free(struct value *v)
{
    mem_free(v->tensor.data);
    v->tensor.data = NULL;
}

static const void *at(const struct value *v, size_t index)
{
    return (const char *)v->tensor.data + index * dtype_size((enum dtype)v->tensor.dtype);
}

/* ---- single numbers --------------------------------------------------------------------------------------------- */

double value_at(const struct value *v, size_t index)
{
    const void *p = at(v, index);

    switch (v->tensor.dtype) {
    case PARAMD_F32: return (double)*(const float *)p;
    case PARAMD_F64: return *(const double *)p;
    case PARAMD_F16: return (double)half_widen_f16(*(const uint16_t *)p);
    case PARAMD_BF16: return (double)half_widen_bf16(*(const uint16_t *)p);
    case PARAMD_I8: return *(const int8_t *)p;
    case PARAMD_U8: return *(const uint8_t *)p;
    case PARAMD_I32: return *(const int32_t *)p;
    default: return (double)*(const int64_t *)p;
    }
}

static bool is_integer(int dtype) { return dtype_is_integer((enum dtype)dtype); }

/* Reads back as the same number. Not from one digit on: ten is 10 and not 1e+01. */
static void real_text(double x, bool is_double, char out[NUMBER_SIZE])
{
    for (int digits = is_double ? 15 : 6; digits <= 17; digits++) {
        snprintf(out, NUMBER_SIZE, "%.*g", digits, x);
        if (is_double ? strtod(out, NULL) == x : strtof(out, NULL) == (float)x) return;
    }
}

static void number_text(const struct value *v, size_t index, bool json, char out[NUMBER_SIZE])
{
    double x = value_at(v, index);

    if (is_integer(v->tensor.dtype))
        snprintf(out, NUMBER_SIZE, "%" PRId64,
                 v->tensor.dtype == PARAMD_I64 ? *(const int64_t *)at(v, index) : (int64_t)x);
    else if (isnan(x)) snprintf(out, NUMBER_SIZE, json ? "\"NaN\"" : "nan");
    else if (isinf(x) && json) snprintf(out, NUMBER_SIZE, x > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    else if (isinf(x)) snprintf(out, NUMBER_SIZE, x > 0 ? "inf" : "-inf");
    else real_text(x, v->tensor.dtype == PARAMD_F64, out);
}

/* ---- printing --------------------------------------------------------------------------------------------------- */

struct printing {
    FILE *to;
    const struct value *v;
    bool json, cut;              /* cut: only the first and last ones of each dimension */
    int width;                   /* of a number */
};

/* How many of `count` are printed at each end, and from where the end begins. */
static bool is_left_out(const struct printing *p, int64_t i, int64_t count)
{
    return p->cut && count > 2 * EDGE && i >= EDGE && i < count - EDGE;
}

static void print_dim(struct printing *p, int dim, size_t first, bool measure)
{
    const struct value *v = p->v;
    char text[NUMBER_SIZE];
    size_t stride = 1;

    if (dim == v->tensor.ndim) {
        number_text(v, first, p->json, text);
        if (!measure) fprintf(p->to, "%*s", p->width, text);
        else if ((int)strlen(text) > p->width) p->width = (int)strlen(text);
        return;
    }
    for (int d = dim + 1; d < v->tensor.ndim; d++) stride *= (size_t)v->shape[d];
    bool last = dim + 1 == v->tensor.ndim, begun = false, dots = false;
    if (!measure) fputc('[', p->to);
    for (int64_t i = 0; i < v->shape[dim]; i++) {
        bool out = is_left_out(p, i, v->shape[dim]);
        if (out && dots) continue;
        dots |= out;
        if (!measure && begun) {
            if (p->json || last) fputs(p->json ? ", " : " ", p->to);
            else fprintf(p->to, "\n%*s", dim + 1, "");
        }
        begun = true;
        if (!out) print_dim(p, dim + 1, first + (size_t)i * stride, measure);
        else if (!measure) fputs("...", p->to);
    }
    if (!measure) fputc(']', p->to);
}

void value_print(FILE *to, const struct value *v)
{
    struct printing p = {.to = to, .v = v, .cut = v->count > WHOLE_MAX};

    if (v->tensor.ndim > 0 && v->count > 0) print_dim(&p, 0, 0, true); /* numbers stand below each other */
    print_dim(&p, 0, 0, false);
    fputc('\n', to);
}

void value_print_json(FILE *to, const struct value *v)
{
    struct printing p = {.to = to, .v = v, .json = true};

    print_dim(&p, 0, 0, false);
}

/* ---- reading JSON ----------------------------------------------------------------------------------------------- */

static bool put_number(struct value *v, size_t index, const json_t *j)
{
    void *p = (char *)v->tensor.data + index * dtype_size((enum dtype)v->tensor.dtype);
    const char *word = json_string_value(j);
    double x = json_number_value(j);
    int64_t n = json_integer_value(j);

    if (word != NULL && !is_integer(v->tensor.dtype)) {
        if (strcmp(word, "NaN") == 0) x = (double)NAN;
        else if (strcmp(word, "Infinity") == 0) x = (double)INFINITY;
        else if (strcmp(word, "-Infinity") == 0) x = -(double)INFINITY;
        else return false;
    } else if (is_integer(v->tensor.dtype) ? !json_is_integer(j) : !json_is_number(j)) {
        return false;
    }
    switch (v->tensor.dtype) {
    case PARAMD_F32:
    case PARAMD_F64:
    case PARAMD_F16:
    case PARAMD_BF16: return dtype_put_real((enum dtype)v->tensor.dtype, x, p);
    case PARAMD_I8: *(int8_t *)p = (int8_t)n; return n >= INT8_MIN && n <= INT8_MAX;
    case PARAMD_U8: *(uint8_t *)p = (uint8_t)n; return n >= 0 && n <= UINT8_MAX;
    case PARAMD_I32: *(int32_t *)p = (int32_t)n; return n >= INT32_MIN && n <= INT32_MAX;
    default: *(int64_t *)p = n; return true;
    }
}

/* Writes a list that must have the shape from `dim` on. */
static bool fill(struct value *v, const json_t *j, int dim, size_t *index)
{
    if (dim == v->tensor.ndim) {
        if (put_number(v, (*index)++, j)) return true;
        if (json_is_number(j) && !is_integer(v->tensor.dtype))
            complain_usage("element %zu of the JSON value, %g, is too large for %s; write \"Infinity\" if that is meant",
                           *index - 1, json_number_value(j), dtype_text(v->tensor.dtype));
        else complain_usage("element %zu of the JSON value cannot be stored as %s", *index - 1, dtype_text(v->tensor.dtype));
        return false;
    }
    if (!json_is_array(j) || (int64_t)json_array_size(j) != v->shape[dim]) {
        complain_usage("the lists of the JSON value do not have one length in dimension %d", dim);
        return false;
    }
    for (size_t i = 0; i < json_array_size(j); i++)
        if (!fill(v, json_array_get(j, i), dim + 1, index)) return false;
    return true;
}

static bool from_json(const char *text, size_t size, int dtype, struct value *out)
{
    json_error_t why;
    json_t *j = json_loadb(text, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    int64_t shape[8];
    size_t index = 0;
    int ndim = 0;

    if (j == NULL) {
        complain_usage("the value is no JSON: line %d, column %d: %s", why.line, why.column, why.text);
        return false;
    }
    for (const json_t *at_dim = j; json_is_array(at_dim) && ndim < 8; at_dim = json_array_get(at_dim, 0))
        shape[ndim++] = (int64_t)json_array_size(at_dim);
    bool read = value_new(dtype, ndim, shape, out) && fill(out, j, 0, &index);
    json_decref(j);
    return read;
}

static bool load(FILE *f, char **out, size_t *size)
{
    size_t capacity = 0, n;

    *size = 0;
    do {
        if (*size > FILE_SIZE_MAX || mem_grow((void **)out, &capacity, *size + 65536, 1, NULL) != STATUS_OK)
            return false;
        n = fread(*out + *size, 1, 65536, f);
        *size += n;
    } while (n > 0);
    return ferror(f) == 0;
}

static bool from_file(const char *path, int dtype, struct value *out)
{
    bool is_stdin = strcmp(path, "-") == 0, read = false;
    FILE *f = is_stdin ? stdin : fopen(path, "re");
    char *text = NULL;
    size_t size = 0;

    if (f == NULL) {
        complain_usage("%s: %s (a value is a .npy file, JSON such as '[1, 2]', or a file with JSON)", path,
                       strerror(errno));
        return false;
    }
    if (load(f, &text, &size)) read = from_json(text, size, dtype, out);
    else complain_usage("%s: it cannot be read, or is larger than %d bytes; write a .npy file", path, FILE_SIZE_MAX);
    if (!is_stdin) fclose(f);
    mem_free(text);
    return read;
}

static bool is_npy(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".npy") == 0;
}

/* A list, a number, or one of the words that stand for numbers. */
static bool is_json(const char *text)
{
    return text[0] == '[' || text[0] == '"' || (text[0] >= '0' && text[0] <= '9') ||
           (text[0] == '-' && text[1] >= '0' && text[1] <= '9');
}

bool value_read(const char *argument, int dtype, struct value *out)
{
    bool read;

    *out = (struct value){.count = 0};
    if (is_npy(argument)) read = npy_read(argument, out);
    else if (is_json(argument)) read = from_json(argument, strlen(argument), dtype, out);
    else read = from_file(argument, dtype, out);
    if (!read) value_free(out);
    return read;
}
