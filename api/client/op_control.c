/* Operations of one JSON request: any method; and opening a store, which is two (one for a handle that only looks). */
#include "api/client/documents.h"
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <string.h>

/* ---- any JSON method --------------------------------------------------------------------------------------------- */

struct op_json {
    struct op op;
    unsigned method;
    bool asked;
    struct buf request, answer;
};

static struct op_json *json_op(struct op *op) { return (struct op_json *)(void *)op; }

static struct call *document_call(struct op *op, unsigned method, const struct buf *document)
{
    struct call *c = call_new(op, method);

    if (c == NULL) return NULL;
    buf_add(&c->body, document->at, document->size);
    c->body_size = c->body.size;
    c->answer_size = method == WIRE_List || method == WIRE_Stats || method == WIRE_Describe ? JSON_SIZE_MAX : 1024;
    return c;
}

static struct call *json_next(struct op *op, enum role role)
{
    struct op_json *j = json_op(op);

    if (role != ROLE_CONTROL || j->asked) return NULL;
    j->asked = true;
    return document_call(op, j->method, &j->request);
}

static void json_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct op_json *j = json_op(op);
    struct error e;

    (void)c;
    if (op->result.finished) return;
    if (why != NULL) {
        op_fail(op, why);
        return;
    }
    if (in->body != NULL) buf_add(&j->answer, in->body, in->header.body_size);
    buf_add(&j->answer, "", 1);
    if (j->answer.failed) {
        error_set(&e, REASON_NO_MEMORY, "no memory for the answer");
        op_fail(op, &e);
        return;
    }
    op_finish(op);
}

static void json_free(struct op *op)
{
    buf_fini(&json_op(op)->request);
    buf_fini(&json_op(op)->answer);
}

static void json_what(const struct op *op, struct buf *out)
{
    buf_format(out, " %s", wire_method_name(((const struct op_json *)(const void *)op)->method));
}

static const struct op_ops json_ops = {
    .name = "call", .need = NEED_NOTHING, .size = sizeof(struct op_json), .next = json_next, .answer = json_answer, .free = json_free,
    .what = json_what,
};

enum status op_json(struct engine *en, unsigned method, struct bytes members, bool whole, struct op **out,
                    struct error *e)
{
    struct op *op;
    enum status s = op_new(en, &json_ops, false, &op, e);

    if (s != STATUS_OK) return s;
    struct buf *b = &json_op(op)->request;
    json_op(op)->method = method;
    buf_text(b, "{");
    if (!whole) buf_format(b, "\"store\":%u%s", en->store, members.size > 0 ? "," : "");
    buf_add(b, members.at, members.size);
    buf_text(b, "}");
    if (b->failed) {
        op_abandon(op);
        return error_set(e, REASON_NO_MEMORY, "no memory for a request");
    }
    if (b->size > JSON_SIZE_MAX) {
        size_t size = b->size;
        op_abandon(op);
        return error_set(e, REASON_TOO_LARGE, "%s: the document has %zu bytes, at most %d: name fewer keys in one call",
                         wire_method_name(method), size, JSON_SIZE_MAX);
    }
    op_want(op, ROLE_CONTROL);
    engine_pump(en);
    *out = op;
    return STATUS_OK;
}

const char *op_answer(const struct op *op)
{
    return op->ops != &json_ops ? NULL : (const char *)((const struct op_json *)(const void *)op)->answer.at;
}

/* ---- opening a store: Create and Join; one that only looks asks for the store, if it named one ------------------ */

struct op_open {
    struct op op;
    bool created, asked;
};

static struct op_open *open_op(struct op *op) { return (struct op_open *)(void *)op; }

static struct call *open_next(struct op *op, enum role role)
{
    struct op_open *o = open_op(op);
    const struct client_options *options = op->engine->options;
    struct buf join = {0}, nothing = {.at = (uint8_t *)(uintptr_t)"{}", .size = 2};

    if (role != ROLE_CONTROL || o->asked) return NULL;
    o->asked = true;
    if (!options->join && !options->store_named) return document_call(op, WIRE_Health, &nothing);
    if (!options->join) return document_call(op, WIRE_GetStore, &options->find);
    if (!o->created) return document_call(op, WIRE_Create, &options->create);
    buf_format(&join, "{\"store\":%u", op->engine->store);
    if (options->worker_name[0] != '\0') {
        buf_text(&join, ",\"name\":");
        doc_put_text(&join, bytes_text(options->worker_name));
    }
    buf_text(&join, "}");
    struct call *c = document_call(op, WIRE_Join, &join);
    if (c != NULL && join.failed) c->body.failed = true;
    buf_fini(&join);
    return c;
}

static enum status read_created(struct engine *en, struct bytes document, struct error *e)
{
    json_t *doc;
    enum status s = doc_read(document, &doc, e);

    if (s != STATUS_OK) return s;
    const json_t *round = json_object_get(doc, "round_timeout");
    double ms = json_is_number(round) ? json_number_value(round) * 1000 : ROUND_TIMEOUT_MS;
    en->round_ms = ms >= 0 && ms <= TIMEOUT_MAX_MS ? (uint32_t)ms : ROUND_TIMEOUT_MS;
    en->store = (uint32_t)doc_u64(doc, "id", 0);
    json_decref(doc);
    return STATUS_OK;
}

static const struct error *no_type_yet(struct error *e)
{
    error_set(e, REASON_NO_STORE, "the store has no type yet: its first worker creates it, or: "
              "paramctl store create default dist_async");
    return e;
}

static void open_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct op_open *o = open_op(op);
    struct error e;

    if (op->result.finished) return;
    if (why != NULL) {
        op_fail(op, why);
        return;
    }
    struct bytes document = bytes_of(in->body, in->body != NULL ? in->header.body_size : 0);
    if (c->method == WIRE_Join) {
        engine_read_join(op->engine, document);
        op_finish(op);
    } else if (c->method == WIRE_Health) {
        engine_begin_looking(op->engine);
        op_finish(op);
    } else if (read_created(op->engine, document, &e) != STATUS_OK) {
        op_fail(op, &e);
    } else if (c->method == WIRE_GetStore) {
        engine_begin_looking(op->engine);
        if (op->engine->store == 0) op_fail(op, no_type_yet(&e));
        else op_finish(op);
    } else {
        o->created = true;
        o->asked = false;
        op_want(op, ROLE_CONTROL);
    }
}

static const struct op_ops open_ops = {
    .name = "create", .need = NEED_NOTHING, .size = sizeof(struct op_open), .next = open_next, .answer = open_answer,
};

static enum status open_new(struct engine *en, bool created, struct op **out, struct error *e)
{
    struct op *op;
    enum status s = op_new(en, &open_ops, true, &op, e);

    if (s != STATUS_OK) return s;
    open_op(op)->created = created;
    op_want(op, ROLE_CONTROL);
    *out = op;
    return STATUS_OK;
}

enum status op_create(struct engine *en, struct op **out, struct error *e)
{
    enum status s = open_new(en, false, out, e);

    if (s == STATUS_OK) op_set_deadline(*out, en->options->connect_ms);
    return s;
}

enum status op_rejoin(struct engine *en, struct op **out, struct error *e) { return open_new(en, true, out, e); }
