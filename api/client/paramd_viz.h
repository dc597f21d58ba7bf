/* Networks drawn, summed up and described, as part of libparamd: what the daemon does at /v1/networks, without a
 * daemon. The options, and what a file may be, are told in web/viz/viz.md.
 *
 * Any thread, no state. png and pdf start rsvg-convert and wait for it; nothing else leaves the process. */
#ifndef API_CLIENT_PARAMD_VIZ_H
#define API_CLIENT_PARAMD_VIZ_H

#include "api/client/paramd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* file: a symbol file or an ONNX model, size bytes; size 0: the keys in the options alone. options: JSON, or NULL
 * for the standard. On success *result has *result_size bytes and a zero behind them; it is for paramd_viz_free. */
PARAMD_API int paramd_viz_render(const void *file, size_t size, const char *options, char **result,
                                 size_t *result_size, struct paramd_error *e);
PARAMD_API void paramd_viz_free(char *result);

#ifdef __cplusplus
}
#endif

#endif
