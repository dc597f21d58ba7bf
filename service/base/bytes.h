/* Bytes that somebody else owns (struct bytes) and bytes that grow (struct buf). Any thread, no sharing. */
#ifndef SERVICE_BASE_BYTES_H
#define SERVICE_BASE_BYTES_H

#include "service/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {               /* borrowed; valid as long as its owner says */
    const void *at;
    size_t size;
};

static inline struct bytes bytes_of(const void *at, size_t size) { return (struct bytes){at, size}; }
struct bytes bytes_text(const char *text);             /* without the ending zero */
bool bytes_equal(struct bytes a, struct bytes b);
int bytes_compare(struct bytes a, struct bytes b);     /* bytewise, a prefix is smaller */
/* Bytes of the well-formed character (RFC 3629, table 3-7 of Unicode) with which `left` bytes, at least one, begin; 0: there
 * is none, or it is NUL. */
size_t utf8_length(const void *at, size_t left);
/* Well-formed UTF-8 (no surrogates, no overlong forms) without NUL. */
bool bytes_is_utf8(struct bytes b);
/* Bytes of the character at `at`, before an ending zero, that a terminal would obey instead of showing it; 0: it is
 * plain. These are C0, DEL, C1, the marks that turn the direction of writing or end a line (U+200E, U+200F,
 * U+2028..U+202E, U+2066..U+2069), and each byte that is no UTF-8, which some terminals read as C1. */
size_t text_control(const char *at);
/* Each of them becomes '?', in place. With `lines`, '\n' stays. For every name on its way to a terminal. */
void text_plain(char *text, bool lines);
/* Such a character as JSON writes it, "\u001b"; answers as text_control does, and writes nothing for 0. */
size_t text_escape(char to[7], const char *at);

struct buf {                 /* zeroed: empty. Owns its block. */
    uint8_t *at;
    size_t size;
    size_t capacity;
    bool failed;             /* sticky: an append found no memory; the content is of no use */
};

/* Appends; on lack of memory sets failed and goes on doing nothing, so a composer checks once at the end. */
void buf_add(struct buf *b, const void *from, size_t size);
void buf_text(struct buf *b, const char *text);
void buf_format(struct buf *b, const char *format, ...) PRINTF_LIKE(2, 3);
/* The shortest decimal number that reads back the same, with a point or an exponent whatever the process's language is, as
 * JSON and the updater language write it; "null" when it is not finite. */
void buf_number(struct buf *b, double number);
/* Appends `size` bytes, uninitialised, and lends them; NULL when failed. */
void *buf_room(struct buf *b, size_t size);
/* Zeros until size is a multiple of align. */
void buf_pad(struct buf *b, size_t align);
void buf_clear(struct buf *b);       /* keeps the block */
void buf_fini(struct buf *b);

#endif
