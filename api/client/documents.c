#include "api/client/documents.h"

#include <string.h>

void doc_put_text(struct buf *b, struct bytes text)
{
    const char *at = text.at, *end = at + text.size, *plain = at;

    buf_text(b, "\"");
    for (; at < end; at++) {
        if ((unsigned char)*at >= 0x20 && *at != '"' && *at != '\\') continue;
        buf_add(b, plain, (size_t)(at - plain));
        buf_format(b, "\\u%04x", (unsigned)(unsigned char)*at);
        plain = at + 1;
    }
    buf_add(b, plain, (size_t)(at - plain));
    buf_text(b, "\"");
}

enum status doc_read(struct bytes text, json_t **out, struct error *e)
{
    json_error_t why;

    *out = text.at != NULL ? json_loadb(text.at, text.size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why) : NULL;
    if (*out == NULL) return error_set(e, REASON_INTERNAL, "the daemon's answer is no JSON document");
    return STATUS_OK;
}

uint64_t doc_u64(const json_t *object, const char *name, uint64_t standard)
{
    const json_t *v = json_object_get(object, name);

    return json_is_integer(v) ? (uint64_t)json_integer_value(v) : standard;
}

bool doc_bool(const json_t *object, const char *name, bool standard)
{
    const json_t *v = json_object_get(object, name);

    return json_is_boolean(v) ? json_is_true(v) : standard;
}

const char *doc_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text != NULL ? text : "";
}
