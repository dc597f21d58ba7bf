/* The client against a real daemon, over both engines and with and without the bulk door. */
#include "api/client/paramd.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proxy.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct paramd_error e;
static struct daemon *server;    /* of the test that runs; ended by the next one if it failed */

#define CHECK_CALL(call) do { if ((call) != 0) test_fail(__FILE__, __LINE__, "%s: %s", #call, e.text); } while (0)

enum { N = 6 };
static const int64_t shape[] = {2, 3};
static struct paramd_key key_3 = PARAMD_INT(3);

static const struct way {
    const char *engine, *bulk;
} ways[] = {{"own", "true"}, {"own", "false"}, {"nanomsg", "true"}, {"nanomsg", "false"}};
enum { WAYS = sizeof ways / sizeof *ways };

static void start(const struct daemon_options *o)
{
    daemon_kill(server);
    server = NULL;
    server = daemon_start(o);
}

static void stop(void)
{
    struct daemon *d = server;

    server = NULL;
    CHECK_EQ(daemon_stop(d), 0);
}

/* more: further options, beginning with a comma, or "". */
static void options_of(const struct way *w, const char *url, const char *more, char to[1024])
{
    snprintf(to, 1024, "{\"url\": \"%s\", \"engine\": \"%s\", \"bulk\": %s%s}", url, w->engine, w->bulk, more);
}

static struct paramd *open_way(const struct way *w, const char *type, const char *more)
{
    char options[1024];
    struct paramd *kv;

    options_of(w, server->data, more, options);
    CHECK_CALL(paramd_create(type, options, &kv, &e));
    return kv;
}

static void fill(float *to, float value)
{
    for (int i = 0; i < N; i++) to[i] = value;
}

static struct paramd_tensor f32(float *data) { return (struct paramd_tensor){data, PARAMD_F32, 2, shape}; }

static void init_with(struct paramd *kv, float value)
{
    float w[N];
    fill(w, value);
    struct paramd_tensor t = f32(w);
    CHECK_CALL(paramd_init(kv, 1, &key_3, &t, &e));
}

static void push_with(struct paramd *kv, float value)
{
    float g[N];
    fill(g, value);
    struct paramd_tensor t = f32(g);
    CHECK_CALL(paramd_push(kv, 1, &key_3, &t, 0, &e));
}

static void check_pull(struct paramd *kv, float want)
{
    float w[N] = {0};
    struct paramd_tensor t = f32(w);
    CHECK_CALL(paramd_pull(kv, 1, &key_3, &t, 0, &e));
    for (int i = 0; i < N; i++) CHECK_NEAR(w[i], want, 0);
}

/* ---- one worker -------------------------------------------------------------------------------------------------- */

TEST(values_go_there_and_back_over_every_engine_and_door)
{
    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct paramd *kv = open_way(&ways[w], "dist_async", "");
        struct paramd_info info;
        init_with(kv, 2);
        check_pull(kv, 2);
        push_with(kv, 8);
        check_pull(kv, 8);
        CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
        push_with(kv, 8);
        check_pull(kv, 16);
        CHECK_CALL(paramd_describe(kv, &key_3, &info, &e));
        CHECK_EQ(info.version, 3);
        CHECK_CALL(paramd_barrier(kv, "end", &e));
        CHECK_CALL(paramd_delete(kv, 1, &key_3, 0, &e));
        init_with(kv, 1);
        check_pull(kv, 1);
        paramd_close(kv);
        stop();
    }
}

/* As localhost, where that is ::1 first and the daemon listens on 127.0.0.1. */
TEST(a_name_is_tried_at_each_of_its_addresses)
{
    char options[300];
    struct paramd *kv;

    start(NULL);
    snprintf(options, sizeof options, "{\"url\": \"tcp://late.test:%s\"}", strrchr(server->bulk, ':') + 1);
    CHECK_CALL(paramd_create("dist_async", options, &kv, &e));
    init_with(kv, 2);
    check_pull(kv, 2);
    paramd_close(kv);
    stop();
}

TEST(values_of_many_parts_go_there_and_back)
{
    enum { COUNT = 3000001 };
    int64_t dims[] = {COUNT};
    float *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b);
    struct paramd_tensor in = {a, PARAMD_F32, 1, dims}, out = {b, PARAMD_F32, 1, dims};

    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct paramd *kv = open_way(&ways[w], "dist_async", ", \"connections\": 2");
        for (int i = 0; i < COUNT; i++) a[i] = (float)i;
        CHECK_CALL(paramd_init(kv, 1, &key_3, &in, &e));
        for (int round = 1; round < 4; round++) {
            for (int i = 0; i < COUNT; i++) a[i] = (float)(i * round);
            memset(b, 0, COUNT * sizeof *b);
            CHECK_CALL(paramd_push(kv, 1, &key_3, &in, 0, &e));
            CHECK_CALL(paramd_pull(kv, 1, &key_3, &out, 0, &e));
            CHECK(memcmp(a, b, COUNT * sizeof *a) == 0);
        }
        CHECK_CALL(paramd_set(kv, 1, &key_3, &in, 0, &e));
        paramd_close(kv);
        stop();
    }
    free(a);
    free(b);
}

TEST(many_keys_of_all_sizes_travel_together)
{
    enum { KEYS = 3000 };
    static struct paramd_key keys[KEYS];
    static struct paramd_tensor in[KEYS], out[KEYS];
    static int64_t dims[KEYS];

    for (int i = 0; i < KEYS; i++) {
        dims[i] = i % 100 == 0 ? 40000 : i % 10 == 0 ? 5000 : i % 7;
        keys[i] = (struct paramd_key)PARAMD_INT(i * 3);
        in[i] = (struct paramd_tensor){malloc((size_t)dims[i] * 4 + 1), PARAMD_I32, 1, &dims[i]};
        out[i] = (struct paramd_tensor){malloc((size_t)dims[i] * 4 + 1), PARAMD_I32, 1, &dims[i]};
    }
    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct paramd *kv = open_way(&ways[w], "dist_async", "");
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < KEYS; i++)
                for (int64_t n = 0; n < dims[i]; n++) ((int32_t *)in[i].data)[n] = (int32_t)(i * 31 + n + round);
            if (round == 0) CHECK_CALL(paramd_init(kv, KEYS, keys, in, &e));
            else CHECK_CALL(paramd_push(kv, KEYS, keys, in, 0, &e));
            CHECK_CALL(paramd_pull(kv, KEYS, keys, out, 0, &e));
            for (int i = 0; i < KEYS; i++) CHECK(memcmp(in[i].data, out[i].data, (size_t)dims[i] * 4) == 0);
        }
        paramd_close(kv);
        stop();
    }
    for (int i = 0; i < KEYS; i++) {
        free(in[i].data);
        free(out[i].data);
    }
}

TEST(started_operations_go_on_by_themselves_and_in_order)
{
    enum { PUSHES = 40 };
    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct paramd *kv = open_way(&ways[w], "dist_async", "");
        static float g[PUSHES][N];
        static struct paramd_tensor t[PUSHES];
        struct paramd_op *ops[PUSHES], *pull;
        float out[N];
        struct paramd_tensor o = f32(out);
        int result;

        init_with(kv, 2);
        for (int i = 0; i < PUSHES; i++) {
            fill(g[i], (float)i);
            t[i] = f32(g[i]);
            CHECK_CALL(paramd_push_start(kv, 1, &key_3, &t[i], 0, &ops[i], &e));
        }
        CHECK_CALL(paramd_pull_start(kv, 1, &key_3, &o, 0, &pull, &e));
        CHECK_EQ(paramd_op_wait(pull, 20000, &result, &e), 1);
        CHECK_EQ(result, 0);
        CHECK_NEAR(out[0], PUSHES - 1, 0);
        for (int i = 0; i < PUSHES; i++) {
            CHECK_EQ(paramd_op_wait(ops[i], 0, &result, &e), 1);
            CHECK_EQ(result, 0);
            paramd_op_free(ops[i]);
        }
        paramd_op_free(pull);
        paramd_close(kv);
        stop();
    }
}

TEST(the_background_thread_finishes_what_nobody_waits_for)
{
    start(NULL);
    struct paramd *kv = open_way(&ways[0], "dist_async", ""), *reader = open_way(&ways[2], "dist_async", "");
    float g[N], out[N];
    struct paramd_tensor t = f32(g), o = f32(out);
    struct paramd_op *op, *newer;
    uint64_t version = 1;
    int result;

    init_with(kv, 2);
    fill(g, 5);
    CHECK_CALL(paramd_push_start(kv, 1, &key_3, &t, 0, &op, &e));
    /* Only the other handle is waited on. */
    CHECK_CALL(paramd_pull_newer_start(reader, 1, &key_3, &o, &version, NULL, 1, 0, &newer, &e));
    CHECK_EQ(paramd_op_wait(newer, 20000, &result, &e), 1);
    CHECK_EQ(result, 0);
    CHECK_NEAR(out[0], 5, 0);
    paramd_op_free(newer);
    CHECK_EQ(paramd_op_wait(op, 20000, &result, &e), 1);
    paramd_op_free(op);
    paramd_close(kv);
    paramd_close(reader);
    stop();
}

TEST(small_pushes_behind_others_leave_together_and_without_a_waiter)
{
    enum { KEYS = 12 };

    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct paramd *kv = open_way(&ways[w], "dist_async", ""), *reader = open_way(&ways[0], "dist_async", "");
        struct paramd_key keys[KEYS];
        struct paramd_tensor grads[KEYS];
        struct paramd_op *ops[KEYS];
        float g[N], out[N];
        struct paramd_tensor o = f32(out);
        int result;

        fill(g, 5);
        for (int i = 0; i < KEYS; i++) {
            keys[i] = (struct paramd_key)PARAMD_INT(i);
            grads[i] = f32(g);
        }
        CHECK_CALL(paramd_init(kv, KEYS, keys, grads, &e));
        CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
        /* A call that waits comes first, so the background thread leaves this handle to its caller at first. */
        CHECK_CALL(paramd_push(kv, 1, keys, grads, 0, &e));
        for (int i = 0; i < KEYS; i++) CHECK_CALL(paramd_push_start(kv, 1, &keys[i], &grads[i], 0, &ops[i], &e));
        for (int i = 0; i < KEYS; i++) {
            uint64_t version = i == 0 ? 2 : 1;
            struct paramd_op *newer;
            CHECK_CALL(paramd_pull_newer_start(reader, 1, &keys[i], &o, &version, NULL, 1, 0, &newer, &e));
            CHECK_EQ(paramd_op_wait(newer, 20000, &result, &e), 1);
            CHECK_EQ(result, 0);
            CHECK_NEAR(out[0], i == 0 ? 15 : 10, 0);
            paramd_op_free(newer);
        }
        for (int i = 0; i < KEYS; i++) {
            CHECK_EQ(paramd_op_wait(ops[i], 20000, &result, &e), 1);
            paramd_op_free(ops[i]);
        }
        paramd_close(kv);
        paramd_close(reader);
        stop();
    }
}

struct sharer {
    struct paramd *kv;
    int number, code;
    struct paramd_error e;
};

static void *share(void *arg)
{
    struct sharer *me = arg;
    struct paramd_key key = PARAMD_INT(me->number);
    float g[N], w[N];
    struct paramd_tensor grad = f32(g), out = f32(w);

    for (int i = 0; i < 100 && me->code == 0; i++) {
        fill(g, (float)i);
        me->code = paramd_push(me->kv, 1, &key, &grad, 0, &me->e);
        if (me->code == 0) me->code = paramd_pull(me->kv, 1, &key, &out, 0, &me->e);
        if (me->code == 0 && memcmp(g, w, sizeof g) != 0) me->code = -1;
    }
    return NULL;
}

TEST(threads_share_a_handle)
{
    enum { THREADS = 4 };
    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct paramd *kv = open_way(&ways[w], "dist_async", "");
        struct sharer s[THREADS] = {{0}};
        pthread_t threads[THREADS];
        float v[N] = {0};
        struct paramd_tensor value = f32(v);

        for (int i = 0; i < THREADS; i++) {
            struct paramd_key key = PARAMD_INT(i);
            CHECK_CALL(paramd_init(kv, 1, &key, &value, &e));
            s[i].kv = kv;
            s[i].number = i;
        }
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, share, &s[i]);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS; i++) {
            CHECK_TEXT(s[i].e.text, "");
            CHECK_EQ(s[i].code, 0);
        }
        paramd_close(kv);
        stop();
    }
}

/* ---- several workers --------------------------------------------------------------------------------------------- */

TEST(a_sync_round_sums_both_workers)
{
    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct paramd *a = open_way(&ways[w], "dist_sync", ", \"num_workers\": 2");
        struct paramd *b = open_way(&ways[w], "dist_sync", "");
        float other[N];
        struct paramd_tensor t = f32(other);
        struct paramd_op *op;
        int result;

        CHECK_EQ(paramd_rank(a), 0);
        CHECK_EQ(paramd_rank(b), 1);
        /* The second worker's init waits for the first one's. */
        fill(other, 99);
        CHECK_CALL(paramd_init_start(b, 1, &key_3, &t, &op, &e));
        CHECK_EQ(paramd_op_wait(op, 50, &result, &e), 0);
        init_with(a, 2);
        CHECK_EQ(paramd_op_wait(op, 20000, &result, &e), 1);
        CHECK_EQ(result, 0);
        paramd_op_free(op);
        check_pull(b, 2);
        for (int round = 1; round < 5; round++) {
            push_with(a, (float)round);
            push_with(b, 10);
            check_pull(a, (float)round + 10);
            check_pull(b, (float)round + 10);
        }
        paramd_close(a);
        paramd_close(b);
        stop();
    }
}

TEST(a_deadline_names_the_worker_that_is_missing)
{
    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct paramd *a = open_way(&ways[w], "dist_sync", ", \"num_workers\": 2, \"worker_name\": \"anna\"");
        struct paramd *b = open_way(&ways[w], "dist_sync", ", \"worker_name\": \"berta\"");
        float out[N];
        struct paramd_tensor o = f32(out);
        struct paramd_op *op;
        int result = 0;

        init_with(a, 2);
        push_with(a, 1);
        CHECK_CALL(paramd_pull_start(a, 1, &key_3, &o, 0, &op, &e));
        paramd_op_deadline(op, 400);
        CHECK_EQ(paramd_op_wait(op, 20000, &result, &e), 1);
        CHECK_EQ(result, 4);
        CHECK_SAYS(e.text, "berta");
        paramd_op_free(op);

        CHECK_CALL(paramd_barrier_start(b, "here", &op, &e));
        paramd_op_deadline(op, 400);
        CHECK_EQ(paramd_op_wait(op, 20000, &result, &e), 1);
        CHECK_EQ(result, 4);
        CHECK_SAYS(e.text, "anna");
        paramd_op_free(op);
        paramd_close(a);
        paramd_close(b);
        stop();
    }
}

TEST(an_init_that_waits_in_vain_names_rank_0)
{
    start(NULL);
    struct paramd *a = open_way(&ways[0], "dist_sync", ", \"num_workers\": 2, \"worker_name\": \"anna\"");
    struct paramd *b = open_way(&ways[0], "dist_sync", "");
    float w[N] = {0};
    struct paramd_tensor t = f32(w);
    struct paramd_op *op;
    int result = 0;

    CHECK_CALL(paramd_init_start(b, 1, &key_3, &t, &op, &e));
    paramd_op_deadline(op, 400);
    CHECK_EQ(paramd_op_wait(op, 20000, &result, &e), 1);
    CHECK_EQ(result, 4);
    CHECK_SAYS(e.text, "anna");
    CHECK_SAYS(e.text, "rank 0");
    paramd_op_free(op);
    paramd_close(a);
    paramd_close(b);
    stop();
}

struct trainer {
    struct paramd *kv;
    int steps, code;
    struct paramd_error e;
};

/* Keys in an order of its own: nothing may depend on it. */
static void *train(void *arg)
{
    struct trainer *me = arg;
    float g[N], w[N];
    struct paramd_tensor grad = f32(g), out = f32(w);

    fill(g, 1);
    for (int s = 0; s < me->steps && me->code == 0; s++) {
        for (int k = 0; k < 5 && me->code == 0; k++) {
            struct paramd_key key = PARAMD_INT((k * 2 + paramd_rank(me->kv) * 3) % 5);
            me->code = paramd_push(me->kv, 1, &key, &grad, -k, &me->e);
        }
        for (int k = 0; k < 5 && me->code == 0; k++) {
            struct paramd_key key = PARAMD_INT(k);
            me->code = paramd_pull(me->kv, 1, &key, &out, -k, &me->e);
        }
    }
    if (me->code == 0) me->code = paramd_barrier(me->kv, "trained", &me->e);
    return NULL;
}

TEST(trainers_in_any_order_agree_on_the_sums)
{
    enum { WORKERS = 3, STEPS = 30 };
    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        struct trainer t[WORKERS] = {{0}};
        pthread_t threads[WORKERS];
        float v[N] = {0};
        struct paramd_tensor value = f32(v);

        for (int i = 0; i < WORKERS; i++) {
            t[i].kv = open_way(&ways[(w + i) % WAYS], "dist_sync", ", \"num_workers\": 3");
            t[i].steps = STEPS;
        }
        for (int k = 0; k < 5; k++) {
            struct paramd_key key = PARAMD_INT(k);
            CHECK_CALL(paramd_init(t[0].kv, 1, &key, &value, &e));
        }
        CHECK_CALL(paramd_set_updater(t[1].kv, "{\"type\": \"add\"}", &e));
        for (int i = 0; i < WORKERS; i++) pthread_create(&threads[i], NULL, train, &t[i]);
        for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < WORKERS; i++) CHECK_TEXT(t[i].e.text, "");
        check_pull(t[2].kv, WORKERS * STEPS);
        for (int i = 0; i < WORKERS; i++) paramd_close(t[i].kv);
        stop();
    }
}

/* ---- long calls -------------------------------------------------------------------------------------------------- */

enum { LONG = 4000 };
struct long_trainer {
    struct paramd *kv;
    struct paramd_key keys[LONG];
    struct paramd_tensor in[LONG], out[LONG];
    float grads[LONG], outs[LONG];
    int code;
    struct paramd_error e;
};

/* backwards: the keys in the opposite order. Key k is pushed k. */
static void long_trainer_fill(struct long_trainer *t, bool backwards)
{
    static const int64_t one[] = {1};

    for (int i = 0; i < LONG; i++) {
        int k = backwards ? LONG - 1 - i : i;
        t->keys[i] = (struct paramd_key)PARAMD_INT(k);
        t->grads[i] = (float)k;
        t->in[i] = (struct paramd_tensor){&t->grads[i], PARAMD_F32, 1, one};
        t->out[i] = (struct paramd_tensor){&t->outs[i], PARAMD_F32, 1, one};
    }
}

static void *train_long(void *arg)
{
    struct long_trainer *t = arg;

    for (int round = 0; round < 5 && t->code == 0; round++)
        t->code = paramd_pushpull(t->kv, LONG, t->keys, t->in, LONG, t->keys, t->out, 0, &t->e);
    return NULL;
}

/* A pull ends when both have pushed, so a push that waited for pulls would never end. */
TEST(long_calls_in_opposite_orders_do_not_wait_for_each_other)
{
    static struct long_trainer t[2];

    for (int w = 0; w < WAYS; w++) {
        pthread_t threads[2];
        start(NULL);
        for (int i = 0; i < 2; i++) {
            t[i].code = 0;
            t[i].kv = open_way(&ways[w], "dist_sync", ", \"num_workers\": 2");
            long_trainer_fill(&t[i], i == 1);
        }
        memset(t[0].outs, 0, sizeof t[0].outs);
        CHECK_CALL(paramd_init(t[0].kv, LONG, t[0].keys, t[0].out, &e));
        CHECK_CALL(paramd_set_updater(t[0].kv, "{\"type\": \"add\"}", &e));
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, train_long, &t[i]);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < 2; i++) {
            CHECK_TEXT(t[i].e.text, "");
            for (int k = 0; k < LONG; k++) CHECK_NEAR(t[i].outs[k], 10 * t[i].grads[k], 0);
            paramd_close(t[i].kv);
        }
        stop();
    }
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

TEST(a_restarted_daemon_is_data_loss)
{
    for (int w = 0; w < WAYS; w++) {
        start(NULL);
        char url[128];
        snprintf(url, sizeof url, "%s", server->data);
        struct paramd *kv = open_way(&ways[w], "dist_async", "");
        float g[N] = {0};
        struct paramd_tensor t = f32(g);

        init_with(kv, 2);
        push_with(kv, 3);
        struct daemon_options again = {.listen = url};
        start(&again);
        CHECK_EQ(paramd_push(kv, 1, &key_3, &t, 0, &e), 15);
        CHECK_TEXT(e.reason, "daemon-restarted");
        CHECK_SAYS(e.text, url);
        CHECK_EQ(paramd_pull(kv, 1, &key_3, &t, 0, &e), 15);
        paramd_close(kv);
        stop();
    }
}

TEST(data_takes_the_front_door_when_the_bulk_door_cannot_be_reached)
{
    struct daemon_options o = {.more = {"--advertise", "127.0.0.77"}};
    for (int w = 0; w < WAYS; w += 2) {
        start(&o);
        struct paramd *kv = open_way(&ways[w], "dist_async", "");
        init_with(kv, 2);
        push_with(kv, 4);
        check_pull(kv, 4);
        paramd_close(kv);
        stop();
    }
}

TEST(a_daemon_without_bulk_door_works)
{
    struct daemon_options o = {.no_bulk = true};
    start(&o);
    struct paramd *kv = open_way(&ways[0], "dist_async", "");
    init_with(kv, 2);
    check_pull(kv, 2);
    paramd_close(kv);
    stop();
}

TEST(a_token_is_asked_for_and_shown)
{
    char path[] = "/tmp/paramd-token-XXXXXX", options[1024];
    int fd = mkstemp(path);
    struct paramd *kv;

    CHECK(fd >= 0 && write(fd, "secret-token-of-it\n", 19) == 19);
    close(fd);
    struct daemon_options o = {.more = {"--token-file", path}};
    start(&o);
    unlink(path);
    options_of(&ways[0], server->data, "", options);
    CHECK_EQ(paramd_create("dist_async", options, &kv, &e), 16);
    options_of(&ways[0], server->data, ", \"token\": \"secret-token-of-it\"", options);
    CHECK_CALL(paramd_create("dist_async", options, &kv, &e));
    init_with(kv, 2);
    check_pull(kv, 2);
    paramd_close(kv);
    stop();
}

TEST(a_local_type_with_url_lives_in_the_daemon)
{
    start(NULL);
    struct paramd *a = open_way(&ways[0], "local", ""), *b = open_way(&ways[0], "local", "");
    init_with(a, 2);
    check_pull(b, 2);
    CHECK(paramd_set_updater_function(a, (paramd_update *)1, NULL, &e) == 12);
    CHECK_SAYS(e.text, "{\"type\": \"sgd\"}");
    paramd_close(a);
    paramd_close(b);
    stop();
}

TEST(options_that_differ_are_refused)
{
    start(NULL);
    struct paramd *a = open_way(&ways[0], "dist_async", ""), *b;
    char options[1024];

    options_of(&ways[0], server->data, ", \"async_default\": \"add\"", options);
    CHECK_EQ(paramd_create("dist_async", options, &b, &e), 9);
    CHECK_TEXT(e.reason, "store-differs");
    options_of(&ways[0], server->data, ", \"store\": \"other\"", options);
    CHECK_CALL(paramd_create("dist_async", options, &b, &e));
    paramd_close(a);
    paramd_close(b);
    stop();
}

TEST(a_connected_handle_cannot_cross_a_fork)
{
    for (int w = 0; w < WAYS; w += 2) {
        start(NULL);
        struct paramd *kv = open_way(&ways[w], "dist_async", "");
        int status = 0;
        init_with(kv, 2);
        pid_t child = fork();
        if (child == 0) {
            float g[N];
            struct paramd_tensor t = f32(g);
            int code = paramd_pull(kv, 1, &key_3, &t, 0, &e);
            paramd_close(kv);
            _exit(code == 9 ? 0 : 1);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_EQ(status, 0);
        check_pull(kv, 2);
        paramd_close(kv);
        stop();
    }
}

TEST(heartbeats_tell_how_many_workers_there_are)
{
    start(NULL);
    struct paramd *a = open_way(&ways[0], "dist_async", ""), *b = open_way(&ways[2], "dist_async", "");
    struct pollfd none = {.fd = -1};

    CHECK_EQ(paramd_num_workers(b), 2);
    for (int tries = 0; tries < 200 && paramd_num_workers(a) != 2; tries++) poll(&none, 1, 50);
    CHECK_EQ(paramd_num_workers(a), 2);
    paramd_close(a);
    paramd_close(b);
    stop();
}

/* ---- a network that breaks --------------------------------------------------------------------------------------- */

TEST(every_push_counts_once_over_a_network_that_breaks)
{
    for (int w = 1; w < WAYS; w += 2) { /* all of it through the front door, which is behind the proxy */
        enum { PUSHES = 60 };
        static struct proxy proxy;
        char options[1024];
        struct paramd *kv;

        start(NULL);
        proxy_start(&proxy, server->data, 20000);
        options_of(&ways[w], proxy.url, "", options);
        CHECK_CALL(paramd_create("dist_async", options, &kv, &e));
        int64_t dims[] = {1000};
        static float ones[1000], out[1000];
        struct paramd_tensor t = {ones, PARAMD_F32, 1, dims}, o = {out, PARAMD_F32, 1, dims};
        memset(ones, 0, sizeof ones);
        CHECK_CALL(paramd_init(kv, 1, &key_3, &t, &e));
        CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
        for (int i = 0; i < 1000; i++) ones[i] = 1;
        for (int i = 0; i < PUSHES; i++) CHECK_CALL(paramd_push(kv, 1, &key_3, &t, 0, &e));
        CHECK_CALL(paramd_pull(kv, 1, &key_3, &o, 0, &e));
        for (int i = 0; i < 1000; i++) CHECK_NEAR(out[i], PUSHES, 0);
        CHECK(atomic_load(&proxy.cuts) > 3);
        atomic_store(&proxy.cut_after, 0);
        paramd_close(kv);
        proxy_stop(&proxy);
        stop();
    }
}
