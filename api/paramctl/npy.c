/* Files of numpy, format 1.0 to 3.0: six bytes "\x93NUMPY", version, length of the header, the header (a Python
 * dictionary), the elements. */
#include "api/paramctl/paramctl.h"

#include "gpu/dtype.h"
#include "service/base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_SIZE_MAX = 65536 };

static const struct { const char *name; int dtype; } types[] = {
    {"<f4", PARAMD_F32}, {"<f8", PARAMD_F64}, {"<f2", PARAMD_F16}, {"|i1", PARAMD_I8},
    {"|u1", PARAMD_U8},  {"<i4", PARAMD_I32}, {"<i8", PARAMD_I64},
};
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

static bool fail(const char *path, const char *why)
{
    complain_usage("%s: %s", path, why);
    return false;
}

/* What stands behind 'name': in the header. */
static const char *entry(const char *header, const char *name)
{
    char quoted[32];

    snprintf(quoted, sizeof quoted, "'%s':", name);
    const char *found = strstr(header, quoted);
    if (found == NULL) return "";
    found += strlen(quoted);
    return found + strspn(found, " ");
}

static bool read_shape(const char *text, int64_t shape[8], int *ndim)
{
    if (*text++ != '(') return false;
    for (*ndim = 0;;) {
        char *end;
        text += strspn(text, " ,");
        if (*text == ')') return true;
        if (*text < '0' || *text > '9' || *ndim == 8) return false;
        errno = 0;
        shape[(*ndim)++] = strtoll(text, &end, 10);
        if (errno != 0) return false;
        text = end;
    }
}

static bool read_header(FILE *f, char **out)
{
    unsigned char head[12];
    size_t size, more;

    if (fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY", 6) != 0 || head[6] < 1 || head[6] > 3) return false;
    more = head[6] == 1 ? 0 : 2;
    if (fread(head + 10, 1, more, f) != more) return false;
    size = head[8] | (size_t)head[9] << 8;
    if (more > 0) size |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
    if (size == 0 || size > HEADER_SIZE_MAX || (*out = mem_zero(size + 1)) == NULL) return false;
    return fread(*out, 1, size, f) == size && strlen(*out) == size;
}

static bool read_all(FILE *f, const char *path, char **header, struct value *out)
{
    int64_t shape[8];
    int ndim, dtype = -1;

    if (!read_header(f, header)) return fail(path, "it is no .npy file");
    const char *descr = entry(*header, "descr");
    for (size_t i = 0; i < TYPE_COUNT; i++)
        if (descr[0] == '\'' && strncmp(descr + 1, types[i].name, 3) == 0 && descr[4] == '\'') dtype = types[i].dtype;
    if (dtype < 0) return fail(path, "its element type is none of float32 float64 float16 int8 uint8 int32 int64");
    if (strncmp(entry(*header, "fortran_order"), "False", 5) != 0)
        return fail(path, "it is in Fortran order; save numpy.ascontiguousarray of it");
    if (!read_shape(entry(*header, "shape"), shape, &ndim))
        return fail(path, "its shape has more than 8 dimensions, or is none");
    if (!value_new(dtype, ndim, shape, out)) return false;
    if (fread(out->tensor.data, 1, out->size, f) != out->size) return fail(path, "it ends before its last element");
    return true;
}

bool npy_read(const char *path, struct value *out)
{
    FILE *f = fopen(path, "re");
    char *header = NULL;

    if (f == NULL) return fail(path, strerror(errno));
    bool read = read_all(f, path, &header, out);
    fclose(f);
    mem_free(header);
    return read;
}

/* The header is filled up with blanks, so that the elements begin at a multiple of 64. */
static size_t write_header(const struct value *v, const char *type, unsigned char out[512])
{
    int n = snprintf((char *)out + 10, 480, "{'descr': '%s', 'fortran_order': False, 'shape': (", type);

    for (int d = 0; d < v->tensor.ndim; d++)
        n += snprintf((char *)out + 10 + n, 480 - (size_t)n, "%s%" PRId64, d > 0 ? ", " : "", v->shape[d]);
    n += snprintf((char *)out + 10 + n, 480 - (size_t)n, v->tensor.ndim == 1 ? ",), }" : "), }");
    size_t whole = ((size_t)n + 10 + 1 + 63) / 64 * 64;
    memset(out + 10 + n, ' ', whole - 11 - (size_t)n);
    out[whole - 1] = '\n';
    memcpy(out, "\x93NUMPY\1", 8); /* and the 0 of version 1.0 */
    out[8] = (unsigned char)((whole - 10) & 0xff);
    out[9] = (unsigned char)((whole - 10) >> 8);
    return whole;
}

bool npy_write(const char *path, const struct value *v)
{
    unsigned char header[512];
    const char *type = NULL;

    for (size_t i = 0; i < TYPE_COUNT; i++)
        if (types[i].dtype == v->tensor.dtype) type = types[i].name;
    if (type == NULL) return fail(path, "numpy has no type for bfloat16; print it, or take --json");
    size_t size = write_header(v, type, header);
    FILE *f = fopen(path, "we");
    if (f == NULL) return fail(path, strerror(errno));
    bool written = fwrite(header, 1, size, f) == size && fwrite(v->tensor.data, 1, v->size, f) == v->size;
    written &= fclose(f) == 0;
    return written || fail(path, strerror(errno));
}
