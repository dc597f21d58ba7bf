#include "api/client/paramd_viz.h"

#include "service/base/mem.h"
#include "web/viz/viz.h"

#include <stdio.h>

static int tell(const struct error *from, struct paramd_error *to)
{
    if (to == NULL) return (int)from->status;
    *to = (struct paramd_error){.status = (int)from->status, .retry_ms = from->retry_ms};
    snprintf(to->reason, sizeof to->reason, "%s", reason_code(from->reason));
    snprintf(to->text, sizeof to->text, "%s", from->text);
    return to->status;
}

static enum status read_options(const char *text, json_t **out, struct error *e)
{
    json_error_t where;

    *out = NULL;
    if (text == NULL) return STATUS_OK;
    *out = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    return *out != NULL ? STATUS_OK
                        : error_set(e, REASON_BAD_JSON, "options: line %d, column %d: %s", where.line,
                                    where.column, where.text);
}

int paramd_viz_render(const void *file, size_t size, const char *options, char **result, size_t *result_size,
                      struct paramd_error *e)
{
    struct buf out = {0};
    const char *media;
    struct error error;
    json_t *o;
    enum status s = read_options(options, &o, &error);

    if (s == STATUS_OK) s = viz_render(bytes_of(file, size), o, &out, &media, &error);
    json_decref(o);
    if (s == STATUS_OK) buf_add(&out, "", 1);
    if (s == STATUS_OK && out.failed) s = error_set(&error, REASON_NO_MEMORY, "no memory for the drawing");
    if (s != STATUS_OK) {
        buf_fini(&out);
        return tell(&error, e);
    }
    *result = (char *)out.at;
    *result_size = out.size - 1;
    return 0;
}

void paramd_viz_free(char *result) { mem_free(result); }
