#include "api/client/op.h"

#include "service/base/mem.h"

#include <string.h>

static const uint8_t zeros[WIRE_ALIGN];

struct call *call_new(struct op *op, unsigned method)
{
    struct call *c = mem_zero(sizeof *c);
    struct error e;

    if (c == NULL) {
        error_set(&e, REASON_NO_MEMORY, "no memory for a request");
        if (op != NULL) op_fail(op, &e);
        return NULL;
    }
    c->op = op;
    c->method = (uint8_t)method;
    if (op == NULL) return c;
    op->calls++;
    if (wire_method_flags(method) & WIRE_WRITES) c->sequence = engine_sequence(op->engine);
    return c;
}

void call_free(struct call *c)
{
    if (c == NULL) return;
    buf_fini(&c->fixed);
    buf_fini(&c->desc);
    buf_fini(&c->body);
    buf_fini(&c->out.head);
    buf_fini(&c->out.copies);
    mem_free(c->segments);
    mem_free(c->items);
    mem_free(c);
}

bool call_items(struct call *c, size_t count)
{
    c->items = mem_array(count, sizeof *c->items);
    return c->items != NULL;
}

bool call_segments(struct call *c, size_t count)
{
    c->segments = mem_array(count, sizeof *c->segments);
    c->segment_count = 0;
    return c->segments != NULL;
}

void call_segment(struct call *c, const void *at, size_t size, const void *owner)
{
    c->segments[c->segment_count++] = (struct segment){at, size, owner};
}

static uint64_t aligned(uint64_t n) { return (n + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN; }

/* Below this a copy costs less than a segment. */
static bool is_small(const struct piece *p) { return p->size <= SMALL_VALUE_SIZE; }

bool call_lay_out(struct call *c, const struct piece *pieces, size_t count, const void *owner)
{
    uint64_t small = 0;

    for (size_t i = 0; i < count; i++)
        if (is_small(&pieces[i])) small += aligned(pieces[i].size);
    /* The block of copies must not move once segments point into it. */
    uint8_t *to = small > 0 ? buf_room(&c->body, small) : NULL;
    if (c->body.failed || !call_segments(c, 2 * count + 1)) return false;

    for (size_t i = 0; i < count; i++) {
        uint64_t size = pieces[i].size, whole = i + 1 < count ? aligned(size) : size;
        struct segment *last = c->segment_count > 0 ? &c->segments[c->segment_count - 1] : NULL;
        c->body_size += whole;
        if (size == 0) continue;
        if (!is_small(&pieces[i])) {
            call_segment(c, pieces[i].at, size, owner);
            if (whole > size) call_segment(c, zeros, whole - size, NULL);
            continue;
        }
        memcpy(to, pieces[i].at, size);
        memset(to + size, 0, whole - size);
        if (last != NULL && (const uint8_t *)last->at + last->size == to) last->size += whole;
        else call_segment(c, to, whole, NULL);
        to += whole;
    }
    return true;
}

struct answer_reader answer_of(const struct incoming *in)
{
    return (struct answer_reader){reader_of(in->desc),
                                  bytes_of(in->body, in->body != NULL ? in->header.body_size : 0)};
}

bool answer_next_fault(struct answer_reader *a, uint32_t *index, struct error *out)
{
    struct wire_fault f;

    if (!wire_get_fault(&a->results, &f)) return false;
    enum reason r = reason_from_wire(f.reason);
    bool told = f.text_size > 0 && f.text_offset <= a->body.size && f.text_size <= a->body.size - f.text_offset;
    int size = (int)(f.text_size < ERROR_TEXT_SIZE ? f.text_size : ERROR_TEXT_SIZE);
    error_retry(out, r, f.retry_ms, "%.*s", told ? size : (int)strlen(reason_title(r)),
                told ? (const char *)a->body.at + f.text_offset : reason_title(r));
    out->status = status_from_wire(f.status);
    *index = f.index;
    return true;
}
