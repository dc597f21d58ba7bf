/* Tensors as documents: JSON, NumPy's .npy, raw bytes. Pure functions, any thread; numbers out of documents are
 * compared with their bounds before anything is allocated for them. */
#ifndef WEB_VALUE_H
#define WEB_VALUE_H

#include "api/wire.h"
#include "gpu/dtype.h"

enum form { FORM_NONE, FORM_JSON, FORM_NPY, FORM_RAW };
enum { VALUE_JSON_ELEMENTS_MAX = 10000, SHAPE_TEXT_SIZE = 200 };

struct tensor {
    enum dtype dtype;
    unsigned ndim;
    int64_t dims[DIMS_MAX];
    uint64_t count, size;            /* elements, bytes */
};

/* "json", "npy", "raw"; FORM_NONE: no such. */
enum form form_find(const char *name);
const char *form_media(enum form f);         /* "application/x-npy" */
/* The best that an Accept header allows; NULL takes anything. FORM_NONE: none. */
enum form form_accept(const char *accept);
/* Of a Content-Type; FORM_NONE: none of ours. */
enum form form_of_media(const char *type);

/* "4, 4", "4," or "": what stands between a shape's brackets. */
const char *shape_text(const struct tensor *t, char out[SHAPE_TEXT_SIZE]);
/* "4,4" as in ?shape=, "" for a scalar. BAD_ARGUMENT. */
enum status shape_parse(const char *text, struct tensor *t, struct error *e) MUST_CHECK;

/* Appends the `data` member's text, nested as the shape. Numbers are the shortest that read back as the same bits; NaN
 * and infinities and 64-bit integers are strings. JSON_TOO_LARGE names the other forms. */
enum status value_write_json(const struct tensor *t, const void *from, struct buf *out, struct error *e) MUST_CHECK;
/* The bytes before the elements. NOT_ACCEPTABLE for bfloat16, which .npy has no name for. */
enum status npy_write_header(const struct tensor *t, struct buf *out, struct error *e) MUST_CHECK;

/* {"dtype"?, "shape"?, "data"}: elements to *out (owned by the caller, also on failure). Without dtype float32, without
 * shape that of the nesting. */
enum status value_read_json(struct bytes text, struct tensor *t, struct buf *out, struct error *e) MUST_CHECK;
/* *elements lies in `file`. */
enum status npy_read(struct bytes file, struct tensor *t, struct bytes *elements, struct error *e) MUST_CHECK;
/* t has dtype and shape; are `size` bytes its elements? SHAPE_MISMATCH. */
enum status raw_check(struct tensor *t, uint64_t size, struct error *e) MUST_CHECK;

/* Brackets nest at most JSON_DEPTH_MAX deep; to be asked before a document is given to a parser. BAD_JSON. */
enum status json_check_depth(struct bytes text, struct error *e) MUST_CHECK;

#endif
