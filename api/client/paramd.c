/* The library's calls: each is "begin, wait, end" of an operation of the engine. */
#include "api/client/paramd.h"

#include "api/client/documents.h"
#include "api/client/drive.h"
#include "api/client/keys.h"
#include "api/client/op.h"
#include "api/client/seat.h"
#include "api/client/slices.h"
#include "service/base/clock.h"
#include "service/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAVE_MS = 1000 };

struct paramd_op {
    struct paramd *kv;
    struct op *op;               /* NULL: it was over at once, with `over` */
    struct error over;
};

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static int tell(const struct error *from, struct paramd_error *to)
{
    if (to == NULL) return (int)from->status;
    *to = (struct paramd_error){.status = (int)from->status};
    if (from->status == STATUS_OK) return 0;
    to->retry_ms = from->retry_ms;
    strncpy(to->reason, reason_code(from->reason), sizeof to->reason - 1);
    memcpy(to->text, from->text, sizeof to->text);
    return to->status;
}

static int told(enum status s, struct error *from, struct paramd_error *to)
{
    if (s == STATUS_OK) from->status = STATUS_OK;
    return tell(from, to);
}

/* What a caller passes as NULL is refused before anything else is looked at. */
static int refuse_null(const char *what, struct paramd_error *e)
{
    struct error error;

    return told(error_set(&error, REASON_BAD_ARGUMENT, "%s is NULL", what), &error, e);
}

#define REQUIRE(holds, what) if (!(holds)) return refuse_null(what, e)

const char *paramd_status_name(int status)
{
    return status_name(status < 0 ? STATUS_UNKNOWN : status_from_wire((uint32_t)status));
}

const char *paramd_version(void) { return "paramd 0.1.0"; }

/* ---- begin, wait, end -------------------------------------------------------------------------------------------- */

/* Ends what began with drive_enter: waits for the operation, if it could be begun, and takes its result. */
static enum status complete(struct paramd *kv, enum status s, struct op *op, struct error *e)
{
    if (s == STATUS_OK) {
        drive_until(kv, op, UINT64_MAX);
        *e = op_result(op)->error;
        s = e->status;
        op_release(op);
    }
    drive_leave(kv);
    return s;
}

/* The same for one that goes on by itself. */
static enum status hand_out(struct paramd *kv, enum status s, struct op *op, struct paramd_op **out, struct error *e)
{
    struct paramd_op *p = s == STATUS_OK ? mem_zero(sizeof *p) : NULL;

    if (s == STATUS_OK && p == NULL) {
        op_release(op);
        s = error_set(e, REASON_NO_MEMORY, "no memory for an operation");
    }
    if (p != NULL) {
        *p = (struct paramd_op){.kv = kv, .op = op};
        *out = p;
    }
    drive_leave(kv);
    return s;
}

/* A call in both its forms; BEGIN sets s and op. */
#define BLOCKING(BEGIN)                                     \
    struct error error;                                     \
    struct op *op = NULL;                                   \
    enum status s = drive_enter(kv, &error);                \
    if (s != STATUS_OK) return told(s, &error, e);          \
    s = BEGIN;                                              \
    s = complete(kv, s, op, &error);                        \
    return told(s, &error, e)
#define STARTED(BEGIN)                                      \
    struct error error;                                     \
    struct op *op = NULL;                                   \
    enum status s = drive_enter(kv, &error);                \
    if (s != STATUS_OK) return told(s, &error, e);          \
    s = BEGIN;                                              \
    s = hand_out(kv, s, op, out, &error);                   \
    return told(s, &error, e)

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static enum status open_handle(const char *type, const char *options, struct paramd **out, struct error *e)
{
    struct client_type t;
    struct client_options o;

    enum status s = client_type_parse(type, &t, e);
    if (s == STATUS_OK) s = client_options_read(&t, options, &o, e);
    return s == STATUS_OK ? drive_new(&t, &o, out, e) : s;
}

int paramd_create(const char *type, const char *options, struct paramd **out, struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(type != NULL, "type");

    struct error error;
    struct op *op = NULL;
    struct paramd *kv = NULL;

    enum status s = open_handle(type, options, &kv, &error);
    if (s == STATUS_OK) s = drive_enter(kv, &error);
    if (s != STATUS_OK) return told(s, &error, e);
    s = op_create(kv->engine, &op, &error);
    s = complete(kv, s, op, &error);
    if (s == STATUS_OK) *out = kv;
    else drive_free(kv);
    return told(s, &error, e);
}

int paramd_create_start(const char *type, const char *options, struct paramd **out, struct paramd_op **operation,
                        struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(type != NULL, "type");
    REQUIRE(operation != NULL, "op");
    *operation = NULL;

    struct error error;
    struct op *op = NULL;
    struct paramd *kv = NULL;

    enum status s = open_handle(type, options, &kv, &error);
    if (s == STATUS_OK) s = drive_enter(kv, &error);
    if (s != STATUS_OK) return told(s, &error, e);
    s = op_create(kv->engine, &op, &error);
    s = hand_out(kv, s, op, operation, &error);
    if (s == STATUS_OK) *out = kv;
    else drive_free(kv);
    return told(s, &error, e);
}

static enum status leave(struct paramd *kv, uint32_t deadline_ms, struct error *e)
{
    struct op *op = NULL;
    enum status s = op_json(kv->engine, WIRE_Leave, bytes_of("", 0), false, &op, e);

    if (s != STATUS_OK) return s;
    if (deadline_ms > 0) op_set_deadline(op, deadline_ms);
    drive_until(kv, op, UINT64_MAX);
    *e = op_result(op)->error;
    op_release(op);
    engine_close_store(kv->engine);
    return e->status;
}

int paramd_leave(struct paramd *kv, struct paramd_error *e)
{
    struct error error;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    s = leave(kv, 0, &error);
    drive_leave(kv);
    return told(s, &error, e);
}

void paramd_close(struct paramd *kv)
{
    struct error e;

    /* Threads and connections of the parent are not ours to end. */
    if (kv == NULL || drive_has_forked(kv)) return;
    if (drive_enter(kv, &e) != STATUS_OK) return;
    if (engine_joined(kv->engine)) (void)leave(kv, LEAVE_MS, &e);
    drive_leave(kv);
    drive_free(kv);
}

const char *paramd_type(const struct paramd *kv) { return kv != NULL ? kv->type.name : ""; }

int paramd_rank(const struct paramd *kv) { return kv != NULL ? (int)engine_rank(kv->engine) : -1; }

static int number_of(struct paramd *kv, unsigned (*fact)(const struct engine *))
{
    if (drive_enter(kv, NULL) != STATUS_OK) return -1;
    int n = (int)fact(kv->engine);
    drive_leave(kv);
    return n;
}

int paramd_num_workers(struct paramd *kv) { return number_of(kv, engine_num_workers); }
int paramd_num_dead(struct paramd *kv) { return number_of(kv, engine_num_dead); }

/* ---- a function as updater --------------------------------------------------------------------------------------- */

static int call_function(struct paramd *kv, const struct paramd_key *key, const struct paramd_tensor *sum,
                         struct paramd_tensor *stored)
{
    kv->inside_thread = pthread_self();
    atomic_store(&kv->inside, true);
    int answer = kv->function(kv->function_ctx, key, sum, stored);
    atomic_store(&kv->inside, false);
    return answer;
}

static enum status wait_for(struct paramd *kv, enum status s, struct op *op, struct error *e)
{
    if (s != STATUS_OK) return s;
    drive_until(kv, op, UINT64_MAX);
    *e = op_result(op)->error;
    op_release(op);
    return e->status;
}

/* Reads the value, has the function change it, and writes it back. */
static enum status update_one(struct paramd *kv, const struct tensors *t, struct contribution c, struct error *e)
{
    const struct paramd_tensor *given = &t->values[c.index];
    void *sum_data = mem_aligned(c.size), *data = mem_aligned(c.size);
    struct paramd_tensor sum = *given, stored = *given;
    struct tensors one = {1, &t->keys[c.index], &stored, 0};
    struct op *op = NULL;
    enum status s;
    int answer;

    sum.data = sum_data;
    stored.data = data;
    sum.dtype &= ~PARAMD_CUDA;
    stored.dtype &= ~PARAMD_CUDA;
    if (sum_data == NULL || data == NULL) {
        s = error_set(e, REASON_NO_MEMORY, "no memory for an update");
        goto out;
    }
    if (c.size > 0) memcpy(sum_data, c.data, c.size);
    s = op_pull(kv->engine, &one, NULL, &op, e);
    s = wait_for(kv, s, op, e);
    if (s != STATUS_OK) goto out;
    answer = call_function(kv, one.keys, &sum, &stored);
    if (answer != 0) {
        s = error_set(e, REASON_CALLBACK_FAILED, "the updater function answered %d: this and later keys are unchanged",
                      answer);
        goto out;
    }
    stored.data = data; /* the function may have set another; the bytes that count are these */
    s = op_set(kv->engine, &one, true, &op, e);
    s = wait_for(kv, s, op, e);
out:
    mem_free(sum_data);
    mem_free(data);
    return s;
}

static enum status push_function(struct paramd *kv, const struct tensors *t, struct error *e)
{
    struct op *sums = NULL;
    enum status s = op_sums(kv->engine, t, &sums, e);

    if (s != STATUS_OK) return s;
    drive_until(kv, sums, UINT64_MAX);
    *e = op_result(sums)->error;
    s = e->status;
    for (size_t i = 0; s == STATUS_OK && i < op_sums_count(sums); i++) s = update_one(kv, t, op_sums_at(sums, i), e);
    op_release(sums);
    return s;
}

static int push_by_function(struct paramd *kv, const struct tensors *t, struct paramd_op **out, struct paramd_error *e)
{
    struct error error;
    struct paramd_op *p = out != NULL ? mem_zero(sizeof *p) : NULL;
    enum status s;

    if (out != NULL && p == NULL) s = error_set(&error, REASON_NO_MEMORY, "no memory for an operation");
    else s = push_function(kv, t, &error);
    drive_leave(kv);
    if (p == NULL) return told(s, &error, e);
    *p = (struct paramd_op){.kv = kv};
    if (s != STATUS_OK) p->over = error;
    *out = p;
    return told(STATUS_OK, &error, e);
}

int paramd_set_updater_function(struct paramd *kv, paramd_update *update, void *ctx, struct paramd_error *e)
{
    struct error error;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    if (!kv->options.embedded && update != NULL) {
        s = error_set(&error, REASON_UNIMPLEMENTED, "a function cannot run on a daemon: give a document such as "
                      "{\"type\": \"sgd\"}, or use type local");
    } else {
        kv->function = update;
        kv->function_ctx = ctx;
    }
    drive_leave(kv);
    return told(s, &error, e);
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static struct tensors tensors_of(size_t count, const struct paramd_key *keys, const struct paramd_tensor *values,
                                 int priority)
{
    return (struct tensors){count, keys, values, priority};
}

int paramd_init(struct paramd *kv, size_t count, const struct paramd_key *keys, const struct paramd_tensor *values,
                struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || values != NULL, "values");

    struct tensors t = tensors_of(count, keys, values, 0);
    BLOCKING(op_init(kv->engine, &t, &op, &error));
}

int paramd_init_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                      const struct paramd_tensor *values, struct paramd_op **out, struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || values != NULL, "values");

    struct tensors t = tensors_of(count, keys, values, 0);
    STARTED(op_init(kv->engine, &t, &op, &error));
}

static enum status push_all(struct paramd *kv, const struct tensors *t, struct error *e)
{
    struct op *op = NULL;

    if (slices_can_run(kv, t)) return slices_run(kv, t, NULL, e);
    enum status s = op_push(kv->engine, t, &op, e);
    return wait_for(kv, s, op, e);
}

static enum status pull_all(struct paramd *kv, const struct tensors *t, struct error *e)
{
    struct op *op = NULL;

    if (slices_can_run(kv, t)) return slices_run(kv, NULL, t, e);
    enum status s = op_pull(kv->engine, t, NULL, &op, e);
    return wait_for(kv, s, op, e);
}

static enum status push_and_pull(struct paramd *kv, const struct tensors *push, const struct tensors *pull,
                                 struct error *e)
{
    if (slices_match(push, pull) && slices_can_run(kv, push)) return slices_run(kv, push, pull, e);
    enum status s = push_all(kv, push, e);
    return s == STATUS_OK ? pull_all(kv, pull, e) : s;
}

/* Whether each output fits because the value pushed to the same key has its dtype and shape. */
static bool outputs_fit_values(const struct tensors *push, const struct tensors *pull)
{
    if (push == pull) return true;
    if (!slices_match(push, pull)) return false;
    for (size_t n = 0; n < pull->count; n++) {
        const struct paramd_tensor *a = &push->values[n], *b = &pull->values[n];
        bool plain = a->ndim >= 0 && a->ndim <= DIMS_MAX && a->shape != NULL && b->shape != NULL && b->data != NULL;
        if (!plain || tensor_on_gpu(b) || !tensors_match(a, b)) return false;
    }
    return true;
}

/* Before the push, which cannot be taken back. */
static enum status check_outputs(struct paramd *kv, const struct tensors *push, const struct tensors *pull,
                                 struct error *e)
{
    struct op *op = NULL;

    if (outputs_fit_values(push, pull)) return STATUS_OK;
    enum status s = op_check_outputs(kv->engine, pull, &op, e);
    return wait_for(kv, s, op, e);
}

int paramd_push(struct paramd *kv, size_t count, const struct paramd_key *keys, const struct paramd_tensor *values,
                int priority, struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || values != NULL, "values");

    struct tensors t = tensors_of(count, keys, values, priority);
    struct error error;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    if (kv->function != NULL) return push_by_function(kv, &t, NULL, e);
    s = push_all(kv, &t, &error);
    drive_leave(kv);
    return told(s, &error, e);
}

int paramd_push_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                      const struct paramd_tensor *values, int priority, struct paramd_op **out,
                      struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || values != NULL, "values");

    struct tensors t = tensors_of(count, keys, values, priority);
    struct error error;
    struct op *op = NULL;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    if (kv->function != NULL) return push_by_function(kv, &t, out, e);
    s = op_push(kv->engine, &t, &op, &error);
    s = hand_out(kv, s, op, out, &error);
    return told(s, &error, e);
}

int paramd_pull(struct paramd *kv, size_t count, const struct paramd_key *keys, struct paramd_tensor *outputs,
                int priority, struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || outputs != NULL, "outputs");

    struct tensors t = tensors_of(count, keys, outputs, priority);
    struct error error;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    s = pull_all(kv, &t, &error);
    drive_leave(kv);
    return told(s, &error, e);
}

int paramd_pull_start(struct paramd *kv, size_t count, const struct paramd_key *keys, struct paramd_tensor *outputs,
                      int priority, struct paramd_op **out, struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || outputs != NULL, "outputs");

    struct tensors t = tensors_of(count, keys, outputs, priority);
    STARTED(op_pull(kv->engine, &t, NULL, &op, &error));
}

int paramd_pull_newer_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                            struct paramd_tensor *outputs, const uint64_t *newer, uint64_t *versions, int wait,
                            int priority, struct paramd_op **out, struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || outputs != NULL, "outputs");

    struct tensors t = tensors_of(count, keys, outputs, priority);
    struct pull_newer n = {newer, versions, wait != 0};
    STARTED(op_pull(kv->engine, &t, &n, &op, &error));
}

int paramd_pushpull(struct paramd *kv, size_t count, const struct paramd_key *keys, const struct paramd_tensor *values,
                    size_t output_count, const struct paramd_key *output_keys, struct paramd_tensor *outputs,
                    int priority, struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || values != NULL, "values");
    REQUIRE(outputs == NULL || output_count == 0 || output_keys != NULL, "output_keys");

    struct tensors push = tensors_of(count, keys, values, priority);
    struct tensors pull = outputs != NULL ? tensors_of(output_count, output_keys, outputs, priority) : push;
    struct error error;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    if (outputs != NULL) s = check_outputs(kv, &push, &pull, &error);
    if (s == STATUS_OK && kv->function != NULL) {
        s = push_function(kv, &push, &error);
        if (s == STATUS_OK) s = pull_all(kv, &pull, &error);
    } else if (s == STATUS_OK) {
        s = push_and_pull(kv, &push, &pull, &error);
    }
    drive_leave(kv);
    return told(s, &error, e);
}

int paramd_broadcast(struct paramd *kv, size_t count, const struct paramd_key *keys, const struct paramd_tensor *values,
                     size_t output_count, const struct paramd_key *output_keys, struct paramd_tensor *outputs,
                     int priority, struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || values != NULL, "values");
    REQUIRE(outputs == NULL || output_count == 0 || output_keys != NULL, "output_keys");
    REQUIRE(output_count == 0 || outputs != NULL, "outputs");

    struct tensors init = tensors_of(count, keys, values, 0);
    struct tensors pull = tensors_of(output_count, output_keys, outputs, priority);
    struct error error;
    struct op *op = NULL;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    s = op_init_for(kv->engine, &init, &pull, &op, &error);
    s = wait_for(kv, s, op, &error);
    if (s == STATUS_OK) s = pull_all(kv, &pull, &error);
    drive_leave(kv);
    return told(s, &error, e);
}

int paramd_set(struct paramd *kv, size_t count, const struct paramd_key *keys, const struct paramd_tensor *values,
               int force, struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || values != NULL, "values");

    struct tensors t = tensors_of(count, keys, values, 0);
    BLOCKING(op_set(kv->engine, &t, force != 0, &op, &error));
}

int paramd_set_start(struct paramd *kv, size_t count, const struct paramd_key *keys, const struct paramd_tensor *values,
                     int force, struct paramd_op **out, struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || values != NULL, "values");

    struct tensors t = tensors_of(count, keys, values, 0);
    STARTED(op_set(kv->engine, &t, force != 0, &op, &error));
}

int paramd_wait(struct paramd *kv, size_t count, const struct paramd_key *keys, struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");

    BLOCKING(op_wait(kv->engine, count, keys, &op, &error));
}

int paramd_wait_start(struct paramd *kv, size_t count, const struct paramd_key *keys, struct paramd_op **out,
                      struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");

    STARTED(op_wait(kv->engine, count, keys, &op, &error));
}

int paramd_barrier(struct paramd *kv, const char *name, struct paramd_error *e)
{
    BLOCKING(op_barrier(kv->engine, name, &op, &error));
}

int paramd_barrier_start(struct paramd *kv, const char *name, struct paramd_op **out, struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;

    STARTED(op_barrier(kv->engine, name, &op, &error));
}

/* ---- the plane --------------------------------------------------------------------------------------------------- */

#define SEATED(DO)                                          \
    struct error error;                                     \
    pthread_mutex_lock(&kv->seat_lock);                     \
    enum status s = DO;                                     \
    pthread_mutex_unlock(&kv->seat_lock);                   \
    return told(s, &error, e)

int paramd_plane_join(struct paramd *kv, const char *device, struct paramd_error *e)
{
    REQUIRE(kv != NULL, "the store handle");
    REQUIRE(device != NULL, "device");

    SEATED(seat_join(kv, device, &error));
}

int paramd_plane_push(struct paramd *kv, size_t count, const struct paramd_key *keys,
                      const struct paramd_tensor *gradients, struct paramd_tensor *outputs, struct paramd_error *e)
{
    REQUIRE(kv != NULL, "the store handle");
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || gradients != NULL, "gradients");

    struct tensors t = tensors_of(count, keys, gradients, 0);
    SEATED(seat_push(kv, &t, outputs, &error));
}

int paramd_plane_leave(struct paramd *kv, struct paramd_error *e)
{
    REQUIRE(kv != NULL, "the store handle");

    SEATED(seat_leave(kv, &error));
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* A function keeps by itself what it keeps from step to step. */
static enum status check_updater(const struct paramd *kv, struct error *e)
{
    if (kv->function == NULL) return STATUS_OK;
    return error_set(e, REASON_UPDATER_UNFIT, "the updater is a function: what it keeps is its own, so save that yourself, "
                     "or set an updater by its document");
}

static enum status begin_get(struct paramd *kv, size_t count, const struct paramd_key *keys, struct op **op,
                             struct error *e)
{
    enum status s = check_updater(kv, e);

    return s == STATUS_OK ? op_get_states(kv->engine, count, keys, op, e) : s;
}

static enum status begin_set(struct paramd *kv, size_t count, const struct paramd_key *keys,
                             const struct paramd_state *states, struct op **op, struct error *e)
{
    enum status s = check_updater(kv, e);

    return s == STATUS_OK ? op_set_states(kv->engine, count, keys, states, op, e) : s;
}

int paramd_get_states_start(struct paramd *kv, size_t count, const struct paramd_key *keys, struct paramd_op **out,
                            struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");

    STARTED(begin_get(kv, count, keys, &op, &error));
}

int paramd_set_states_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                            const struct paramd_state *states, struct paramd_op **out, struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || states != NULL, "states");

    STARTED(begin_set(kv, count, keys, states, &op, &error));
}

int paramd_get_states(struct paramd *kv, size_t count, const struct paramd_key *keys, struct paramd_op **out,
                      struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(count == 0 || keys != NULL, "keys");

    int code = paramd_get_states_start(kv, count, keys, out, e), result = 0;

    if (code != 0) return code;
    while (!paramd_op_wait(*out, UINT32_MAX, &result, e)) continue;
    if (result == 0) return 0;
    paramd_op_free(*out);
    *out = NULL;
    return result;
}

int paramd_set_states(struct paramd *kv, size_t count, const struct paramd_key *keys, const struct paramd_state *states,
                      struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");
    REQUIRE(count == 0 || states != NULL, "states");

    BLOCKING(begin_set(kv, count, keys, states, &op, &error));
}

const struct paramd_state *paramd_op_states(const struct paramd_op *op)
{
    return op != NULL && op->op != NULL ? op_states_at(op->op) : NULL;
}

/* ---- JSON methods ------------------------------------------------------------------------------------------------ */

enum { KEYS_OF_DOCUMENT = 4096, KEYS_TEXT = 512 << 10 };

/* "keys":[3,4] of as many as one document holds; *put says how many. */
static enum status put_keys(struct buf *b, size_t count, const struct paramd_key *keys, size_t *put, struct error *e)
{
    struct key_name n;
    size_t i;

    buf_text(b, "\"keys\":[");
    for (i = 0; i < count && i < KEYS_OF_DOCUMENT && b->size < KEYS_TEXT; i++) {
        enum status s = key_name_of(&keys[i], &n, e);
        if (s != STATUS_OK) return s;
        if (i > 0) buf_text(b, ",");
        if (n.type == KEY_INT) buf_format(b, "%lld", (long long)n.number);
        else doc_put_text(b, n.text);
    }
    buf_text(b, "]");
    *put = i;
    return b->failed ? error_set(e, REASON_NO_MEMORY, "no memory for %zu keys", count) : STATUS_OK;
}

/* Asks, waits, and lends the answer to `read` (NULL: it says nothing). Locks by itself. */
struct request {
    unsigned method;
    struct buf members;
    enum status (*read)(void *ctx, const char *answer, struct error *e);
    void *ctx;
};

static enum status ask(struct paramd *kv, struct request *r, enum status s, struct error *e)
{
    struct op *op = NULL;

    if (s == STATUS_OK && r->members.failed) s = error_set(e, REASON_NO_MEMORY, "no memory for a request");
    if (s == STATUS_OK)
        s = op_json(kv->engine, r->method, bytes_of(r->members.at, r->members.size), false, &op, e);
    if (s == STATUS_OK) {
        drive_until(kv, op, UINT64_MAX);
        *e = op_result(op)->error;
        s = e->status;
        if (s == STATUS_OK && r->read != NULL) s = r->read(r->ctx, op_answer(op), e);
        op_release(op);
    }
    buf_fini(&r->members);
    return s;
}

struct deletion {
    size_t count;
    const struct paramd_key *keys;
    bool force, dry_run;
};

/* One request, about as many of the keys from `at` on as it holds; *put says how many. */
static enum status delete_some(struct paramd *kv, const struct deletion *d, size_t at, size_t *put, struct error *e)
{
    struct request r = {.method = WIRE_Delete};
    enum status s = put_keys(&r.members, d->count - at, d->keys + at, put, e);

    buf_format(&r.members, ",\"force\":%s,\"dry_run\":%s", d->force ? "true" : "false", d->dry_run ? "true" : "false");
    s = ask(kv, &r, s, e);
    if (s == STATUS_OK && !d->dry_run) engine_forget(kv->engine, *put, d->keys + at);
    return s;
}

/* A key that is named twice may be gone when its second request comes: that is what was asked for. */
static enum status delete_what_is_left(struct paramd *kv, const struct deletion *d, size_t at, size_t count,
                                       struct error *e)
{
    for (size_t i = 0; i < count; i++) {
        struct deletion one = {1, d->keys + at + i, d->force, false};
        size_t put;
        if (delete_some(kv, &one, 0, &put, e) != STATUS_OK && e->reason != REASON_NO_KEY) return e->status;
    }
    return STATUS_OK;
}

/* Several requests are all checked before the first is applied. */
static enum status delete_all(struct paramd *kv, struct deletion *d, struct error *e)
{
    enum status s = STATUS_OK;
    size_t put = 0, requests = 0;

    d->dry_run = true;
    for (size_t at = 0; s == STATUS_OK && at < d->count; at += put, requests++) s = delete_some(kv, d, at, &put, e);
    d->dry_run = false;
    if (s != STATUS_OK) return s;
    for (size_t at = 0; at < d->count; at += put) {
        s = delete_some(kv, d, at, &put, e);
        if (s != STATUS_OK && requests > 1 && e->reason == REASON_NO_KEY) s = delete_what_is_left(kv, d, at, put, e);
        if (s == STATUS_OK) continue;
        struct error why = *e;
        return error_retry(e, why.reason, why.retry_ms, "%.400s (the first %zu of %zu keys are deleted)", why.text, at,
                           d->count);
    }
    return STATUS_OK;
}

int paramd_delete(struct paramd *kv, size_t count, const struct paramd_key *keys, int force, struct paramd_error *e)
{
    REQUIRE(count == 0 || keys != NULL, "keys");

    struct deletion d = {count, keys, force != 0, false};
    struct error error;
    size_t put;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    s = count <= 1 ? delete_some(kv, &d, 0, &put, &error) : delete_all(kv, &d, &error);
    drive_leave(kv);
    return told(s, &error, e);
}

static enum status read_info(void *ctx, const char *answer, struct error *e)
{
    struct paramd_info *out = ctx;
    json_t *doc;
    enum dtype dtype;

    enum status s = doc_read(bytes_text(answer), &doc, e);
    if (s != STATUS_OK) return s;
    const json_t *item = json_array_get(json_object_get(doc, "items"), 0), *shape = json_object_get(item, "shape");
    memset(out, 0, sizeof *out);
    if (!json_is_object(item)) {
        s = error_set(e, REASON_NO_KEY, "the key was not initialised: call init with its first value");
    } else if (!dtype_parse(bytes_text(doc_text(item, "dtype")), &dtype) || json_array_size(shape) > DIMS_MAX) {
        s = error_set(e, REASON_INTERNAL, "the daemon's description of the key cannot be read");
    } else {
        out->dtype = (int)dtype;
        out->ndim = (int)json_array_size(shape);
        for (size_t i = 0; i < json_array_size(shape); i++)
            out->shape[i] = json_integer_value(json_array_get(shape, i));
        out->version = doc_u64(item, "version", 0);
        out->id = doc_u64(item, "id", 0);
    }
    json_decref(doc);
    return s;
}

int paramd_describe(struct paramd *kv, const struct paramd_key *key, struct paramd_info *out, struct paramd_error *e)
{
    REQUIRE(key != NULL, "key");
    REQUIRE(out != NULL, "out");

    struct error error;
    struct request r = {.method = WIRE_Describe, .read = read_info, .ctx = out};
    size_t put;
    enum status s = drive_enter(kv, &error);

    if (s != STATUS_OK) return told(s, &error, e);
    s = ask(kv, &r, put_keys(&r.members, 1, key, &put, &error), &error);
    drive_leave(kv);
    return told(s, &error, e);
}

static enum status check_document(const char *text, struct error *e)
{
    json_error_t why;
    json_t *doc = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);

    if (doc == NULL)
        return error_set(e, REASON_BAD_JSON, "line %d, column %d: %s", why.line, why.column, why.text);
    json_decref(doc);
    return STATUS_OK;
}

/* Appends the members of an object; dry_run gets the one of that name. The daemon checks them. */
static enum status put_options(struct buf *b, const char *options, bool *dry_run, struct error *e)
{
    json_t *doc = json_loads(options, JSON_REJECT_DUPLICATES, NULL);
    enum status s = STATUS_OK;

    if (!json_is_object(doc) || json_object_get(doc, "updater") != NULL ||
        json_object_get(doc, "store") != NULL)
        s = error_set(e, REASON_BAD_ARGUMENT,
                      "options: an object such as {\"states\": \"convert\", \"dry_run\": true}");
    char *text = s == STATUS_OK ? json_dumps(doc, JSON_COMPACT) : NULL;
    if (s == STATUS_OK && text == NULL)
        s = error_set(e, REASON_NO_MEMORY, "no memory for a request");
    if (text != NULL && strlen(text) > 2) buf_format(b, ",%.*s", (int)strlen(text) - 2, text + 1);
    *dry_run = json_is_true(json_object_get(doc, "dry_run"));
    json_decref(doc);
    free(text);
    return s;
}

static enum status keep_answer(void *ctx, const char *answer, struct error *e)
{
    char **out = ctx;

    *out = mem_text(answer, strlen(answer));
    return *out != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for the answer");
}

int paramd_set_updater(struct paramd *kv, const char *document, struct paramd_error *e)
{
    return paramd_set_updater_with(kv, document, NULL, NULL, e);
}

int paramd_set_updater_with(struct paramd *kv, const char *document, const char *options,
                            char **answer, struct paramd_error *e)
{
    if (answer != NULL) *answer = NULL;

    struct error error;
    struct request r = {
        .method = WIRE_SetUpdater, .read = answer != NULL ? keep_answer : NULL, .ctx = answer};
    enum status s = drive_enter(kv, &error);
    bool dry_run = false;

    if (s != STATUS_OK) return told(s, &error, e);
    if (document == NULL) document = "null";
    s = check_document(document, &error);
    buf_text(&r.members, "\"updater\":");
    buf_text(&r.members, document);
    if (s == STATUS_OK && options != NULL) s = put_options(&r.members, options, &dry_run, &error);
    s = ask(kv, &r, s, &error);
    if (s == STATUS_OK && !dry_run) kv->function = NULL;
    drive_leave(kv);
    return told(s, &error, e);
}

/* Methods that are not about one store that is open, or that the library does by itself. */
static bool names_no_store(unsigned method)
{
    return method == WIRE_Create || method == WIRE_DeleteStore || method == WIRE_ListStores ||
           method == WIRE_Heartbeat || method == WIRE_Health;
}

static enum status begin_call(struct paramd *kv, const char *method, const char *text, struct op **op, struct error *e)
{
    unsigned number = wire_method_find(bytes_text(method));
    json_error_t why;

    if (number == 0 || !wire_method_is_json(number) || number == WIRE_Hello || number == WIRE_Join)
        return error_set(e, REASON_UNKNOWN_METHOD, "\"%.60s\" is no JSON method that can be called here", method);
    json_t *doc = json_loads(text != NULL ? text : "{}", JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(doc)) {
        json_decref(doc);
        return error_set(e, REASON_BAD_JSON, "%s takes a JSON object", method);
    }
    bool whole = names_no_store(number) || !engine_has_store(kv->engine) || json_object_get(doc, "store") != NULL;
    char *members = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    if (members == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a request");
    enum status s = op_json(kv->engine, number, bytes_of(members + 1, strlen(members) - 2), whole, op, e);
    free(members);
    return s;
}

int paramd_call_start(struct paramd *kv, const char *method, const char *json, struct paramd_op **out,
                      struct paramd_error *e)
{
    REQUIRE(out != NULL, "out");
    *out = NULL;
    REQUIRE(method != NULL, "method");

    STARTED(begin_call(kv, method, json, &op, &error));
}

int paramd_call(struct paramd *kv, const char *method, const char *json, char **answer, struct paramd_error *e)
{
    REQUIRE(answer != NULL, "answer");
    *answer = NULL;
    REQUIRE(method != NULL, "method");

    struct paramd_op *op = NULL;
    int code = paramd_call_start(kv, method, json, &op, e), result = 0;

    if (code != 0) return code;
    while (!paramd_op_wait(op, UINT32_MAX, &result, e)) continue;
    if (result == 0) {
        const char *text = paramd_op_answer(op);
        *answer = mem_text(text, strlen(text));
        struct error error;
        if (*answer == NULL) result = told(error_set(&error, REASON_NO_MEMORY, "no memory for the answer"), &error, e);
    }
    paramd_op_free(op);
    return result;
}

void paramd_text_free(char *text) { mem_free(text); }

/* ---- started operations ------------------------------------------------------------------------------------------ */

void paramd_op_deadline(struct paramd_op *op, uint32_t ms)
{
    if (op == NULL || op->op == NULL || drive_enter(op->kv, NULL) != STATUS_OK) return;
    op_set_deadline(op->op, ms);
    drive_leave(op->kv);
}

int paramd_op_wait(struct paramd_op *op, uint32_t ms, int *result_status, struct paramd_error *e)
{
    struct error error;
    enum status s = STATUS_OK;
    bool finished = true;

    if (op == NULL) {
        s = error_set(&error, REASON_BAD_ARGUMENT, "the operation is NULL");
    } else if (op->op == NULL) {
        error = op->over;
        s = error.status;
    } else {
        s = drive_enter(op->kv, &error);
        if (s == STATUS_OK) {
            if (ms > 0) drive_until(op->kv, op->op, ms == UINT32_MAX ? UINT64_MAX : clock_ms() + ms);
            finished = op_result(op->op)->finished;
            error = op_result(op->op)->error;
            s = error.status;
            drive_leave(op->kv);
        }
    }
    if (!finished) return 0;
    int code = told(s, &error, e);
    if (result_status != NULL) *result_status = code;
    return 1;
}

const char *paramd_op_answer(const struct paramd_op *op)
{
    return op != NULL && op->op != NULL ? op_answer(op->op) : NULL;
}

void paramd_op_free(struct paramd_op *op)
{
    if (op == NULL) return;
    if (op->op != NULL && drive_enter(op->kv, NULL) == STATUS_OK) {
        op_release(op->op);
        drive_leave(op->kv);
    }
    mem_free(op);
}
