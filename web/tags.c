#include "web/tags.h"

#include <string.h>

bool tag_listed(const char *header, const char *tag)
{
    size_t size = strlen(tag);

    for (const char *at = header; at != NULL && *at != '\0';) {
        at += strspn(at, " \t,");
        if (*at == '*') return true;
        bool weak = strncmp(at, "W/", 2) == 0;
        at += weak ? 2 : 0;
        const char *end = *at == '"' ? strchr(at + 1, '"') : NULL;
        if (end == NULL) return false; /* no list of tags */
        if (!weak && (size_t)(end - at - 1) == size && memcmp(at + 1, tag, size) == 0) return true;
        at = end + 1;
    }
    return false;
}

/* For a shell: in single quotes, which only end at the next one. */
static void quote(struct buf *out, struct bytes text)
{
    const char *at = text.at;

    buf_text(out, "'");
    for (size_t i = 0; i < text.size; i++)
        if (at[i] == '\'') buf_text(out, "'\\''");
        else buf_add(out, &at[i], 1);
    buf_text(out, "'");
}

/* -g: brackets in the path are no pattern. */
static void write_curl(struct exchange *x, const char *tag, struct buf *out)
{
    struct buf url = {0}, header = {0};

    exchange_origin(x, &url);
    buf_text(&url, x->target.raw);
    buf_format(&header, "If-Match: \"%s\"", tag);
    buf_format(out, "curl -g -X %s ", x->method);
    quote(out, bytes_of(url.at, url.size));
    buf_text(out, " -H ");
    quote(out, bytes_of(header.at, header.size));
    if (exchange_has_token(x)) buf_text(out, " -H \"Authorization: Bearer $PARAMD_TOKEN\"");
    if (x->body.size > 0) {
        buf_text(out, " -H 'Content-Type: application/json' --data-raw ");
        quote(out, bytes_of(x->body.at, x->body.size));
    }
    out->failed = out->failed || url.failed || header.failed;
    buf_fini(&url);
    buf_fini(&header);
}

void say_precondition(struct exchange *x, enum reason r, const char *tag, json_t *current, const char *detail)
{
    struct buf line = {0};
    struct error e;

    write_curl(x, tag, &line);
    json_t *members = json_pack("{s:s++,s:o*,s:s%}", "current_etag", "\"", tag, "\"", "current", current, "curl",
                                line.failed ? "" : (const char *)line.at, line.failed ? (size_t)0 : line.size);
    buf_fini(&line);
    say_header(x, "ETag", "\"%s\"", tag);
    error_set(&e, r, "%s", detail);
    say_error(x, &e, members);
}
