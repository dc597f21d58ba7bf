/* Files of numpy, format 1.0 to 3.0: six bytes "\x93NUMPY", version, length of the header, the header (a Python
 * dictionary), the elements. */
#include "api/paramctl/paramctl.h"

#include "gpu/npy.h"
#include "service/base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_SIZE_MAX = 65536 };

static bool fail(const char *path, const char *why)
{
    complain_usage("%s: %s", path, why);
    return false;
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
    struct npy_header h = {.ndim = 0};
    struct error e;

    if (!read_header(f, header)) return fail(path, "it is not an .npy file");
    if (npy_header_read(*header, &h, &e) != STATUS_OK) return fail(path, e.text);
    if (!value_new((int)h.dtype, (int)h.ndim, h.dims, out)) return false;
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
    const char *type = npy_type_name((enum dtype)v->tensor.dtype);

    if (type == NULL) return fail(path, "numpy has no type for bfloat16; print it, or take --json");
    size_t size = write_header(v, type, header);
    FILE *f = fopen(path, "we");
    if (f == NULL) return fail(path, strerror(errno));
    bool written = fwrite(header, 1, size, f) == size && fwrite(v->tensor.data, 1, v->size, f) == v->size;
    written &= fclose(f) == 0;
    return written || fail(path, strerror(errno));
}
