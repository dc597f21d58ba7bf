#include "api/client/box.h"

#include "api/client/documents.h"
#include "api/client/lane.h"
#include "service/base/host.h"
#include "service/base/log.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- asking ------------------------------------------------------------------------------------------------------ */

struct op_box {
    struct op op;
    bool asked;
    bool returned;               /* it could not be opened here, and goes back */
};

static struct op_box *box_op(struct op *op) { return (struct op_box *)(void *)op; }

static uint64_t wanted_size(const struct engine *en)
{
    uint64_t most = en->session.box_max;

    return en->options->mailbox < most ? en->options->mailbox : most;
}

static struct call *box_next(struct op *op, enum role role)
{
    struct op_box *b = box_op(op);
    char host[HOST_ID_SIZE];

    if (role != ROLE_DATA || b->asked) return NULL;
    struct call *c = call_new(op, WIRE_Mailbox);
    if (c == NULL) return NULL;
    b->asked = true;
    host_id(host);
    if (b->returned) buf_text(&c->body, "{}");
    else buf_format(&c->body, "{\"host\":\"%s\",\"size\":%llu}", host, (unsigned long long)wanted_size(op->engine));
    c->body_size = c->body.size;
    c->answer_size = 1024;
    return c;
}

static bool read_handle(const char *text, struct mem_handle *out)
{
    unsigned byte;

    if (strlen(text) != 2 * sizeof out->at) return false;
    for (size_t i = 0; i < sizeof out->at; i++) {
        if (sscanf(text + 2 * i, "%2x", &byte) != 1) return false;
        out->at[i] = (uint8_t)byte;
    }
    return true;
}

static enum status open_box(struct engine *en, const struct lane *l, const struct incoming *in, struct error *e)
{
    struct box *b = &en->box;
    struct mem_handle handle;
    json_t *doc;
    enum status s = doc_read(bytes_of(in->body, in->body != NULL ? in->header.body_size : 0), &doc, e);

    if (s != STATUS_OK) return s;
    uint64_t size = doc_u64(doc, "size", 0), id = doc_u64(doc, "mailbox", 0);
    if (id == 0 || size < MAILBOX_SIZE_MIN || size > MAILBOX_SIZE_MAX || !read_handle(doc_text(doc, "handle"), &handle))
        s = error_set(e, REASON_INTERNAL, "the daemon's answer to Mailbox cannot be read");
    else s = gpu_open(&en->gpu, doc_text(doc, "gpu"), &handle, &b->at, e);
    json_decref(doc);
    if (s != STATUS_OK) return s;
    b->state = BOX_OPEN;
    b->id = id;
    b->slot_size = size / BOX_SLOTS / WIRE_ALIGN * WIRE_ALIGN;
    b->lane = l;
    return STATUS_OK;
}

static void box_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct op_box *b = box_op(op);
    struct error e;

    if (op->result.finished) return;
    if (why != NULL || b->returned) {
        if (why != NULL) op_hint(op, why);
        op_finish(op);
    } else if (open_box(op->engine, c->lane, in, &e) != STATUS_OK) {
        op_hint(op, &e);
        b->returned = true;
        b->asked = false;
        op_want(op, ROLE_DATA);
    } else {
        op_finish(op);
    }
}

static const struct op_ops box_ops = {
    .name = "mailbox", .need = NEED_NOTHING, .size = sizeof(struct op_box), .next = box_next, .answer = box_answer,
};

static bool is_offered(const struct engine *en)
{
    return !en->options->embedded && wanted_size(en) >= MAILBOX_SIZE_MIN;
}

static void ask(struct engine *en)
{
    struct box *b = &en->box;

    if (op_new(en, &box_ops, true, &b->op, NULL) != STATUS_OK) return;
    b->state = BOX_ASKING;
    b->op->priority = INT_MAX;
    op_set_deadline(b->op, en->session.heartbeat_ms * 4);
    op_want(b->op, ROLE_DATA);
}

void box_asked(struct engine *en)
{
    struct box *b = &en->box;

    if (b->op == NULL || !b->op->result.finished) return;
    if (b->state == BOX_ASKING) {
        b->state = BOX_NONE;
        log_info("client", "values on a GPU go through host memory: %s",
                 b->op->hint.status != STATUS_OK ? b->op->hint.text : b->op->result.error.text);
    }
    op_release(b->op);
    b->op = NULL;
    LIST_EACH(struct op, op, node, &en->ops) op_want(op, ROLE_DATA);
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static const uint32_t all_slots = (1u << BOX_SLOTS) - 1;

enum box_use box_use(struct engine *en)
{
    struct box *b = &en->box;

    if (b->state == BOX_UNASKED && !is_offered(en)) b->state = BOX_NONE;
    if (b->state == BOX_UNASKED) ask(en);
    if (b->state == BOX_ASKING) return BOX_LATER;
    if (b->state != BOX_OPEN) return BOX_NEVER;
    b->full = b->taken == all_slots;
    return b->full ? BOX_LATER : BOX_NOW;
}

uint64_t box_slot_size(const struct engine *en) { return en->box.slot_size; }

void box_take(struct engine *en, struct call *c)
{
    struct box *b = &en->box;

    c->slot = (unsigned)__builtin_ctz(~b->taken & all_slots);
    c->slot_at = c->slot * b->slot_size;
    c->box = b->id;
    c->flags |= WIRE_FLAG_MAILBOX;
    b->taken |= 1u << c->slot;
}

uint8_t *box_memory(const struct engine *en, const struct call *c) { return (uint8_t *)en->box.at + c->slot_at; }

void box_put_place(struct call *c, uint64_t offset)
{
    wire_put_place(&c->body, &(struct wire_place){.mailbox = c->box, .offset = c->slot_at + offset});
    c->body_size = c->body.size;
}

bool box_has(const struct engine *en, const struct call *c) { return c->box != 0 && c->box == en->box.id; }

void box_give(struct engine *en, struct call *c)
{
    struct box *b = &en->box;

    if (box_has(en, c)) b->taken &= ~(1u << c->slot);
    c->box = 0;
    if (!b->full) return;
    b->full = false;
    LIST_EACH(struct op, op, node, &en->ops) op_want(op, ROLE_DATA);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Copies are never under way here: who begins one waits for it. */
static void lose(struct engine *en)
{
    gpu_close(&en->gpu, en->box.at);
    en->box = (struct box){.state = BOX_UNASKED, .full = en->box.full, .op = en->box.op};
}

void box_refused(struct engine *en, uint64_t box)
{
    if (box != 0 && box == en->box.id) lose(en);
}

void box_lane_down(struct engine *en, const struct lane *l)
{
    if (en->box.state == BOX_OPEN && en->box.lane == l) lose(en);
}

void box_fini(struct engine *en)
{
    op_release(en->box.op);
    en->box.op = NULL;
    lose(en);
    en->box.state = BOX_NONE;
}
