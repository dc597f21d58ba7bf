/* The header of an .npy file: a Python dictionary with type, order and shape, as numpy and others
 * write it. Any thread; nothing is allocated. */
#ifndef GPU_NPY_H
#define GPU_NPY_H

#include "api/limits.h"
#include "gpu/dtype.h"
#include "service/base/status.h"

struct npy_header {
    enum dtype dtype;
    unsigned ndim;
    int64_t dims[DIMS_MAX];
};

/* Reads the text between the length and the elements. INVALID_ARGUMENT, with what numpy calls to
 * cure it, for types that are not stored here, Fortran order, and more than DIMS_MAX dimensions. */
enum status npy_header_read(const char *text, struct npy_header *out, struct error *e) MUST_CHECK;
/* What numpy calls the type in a header, such as "<f4". NULL: it has no name for it. */
const char *npy_type_name(enum dtype t);

#endif
