/* Trainers with GPUs, by libparamd, on the plane of a daemon: its server, a door and a clock in a thread of this program,
 * since the stand-in for NCCL joins what is in one process; a trainer is a thread with a handle and a card of its own. */
#include "api/client/paramd.h"
#include "service/base/clock.h"
#include "service/transport.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

/* ---- the daemon -------------------------------------------------------------------------------------------------- */

enum { TRAINERS = 2 };

static struct {
    struct loop *loop;
    struct mailbox *mailbox;
    struct watch mail_watch;
    struct mail moved, end;
    struct device *cards[TRAINERS + 1], *device;
    struct server *server;
    struct transport *door;
    pthread_t thread;
    bool stop;
} the;

static void take_mail(struct watch *w, uint32_t events) { (void)w, (void)events, mailbox_take(the.mailbox); }
static void device_moved(void *ctx) { (void)ctx, mailbox_notice(the.mailbox, &the.moved); }
static void poll_device(struct mail *m) { (void)m, server_poll(the.server); }
static void end(struct mail *m) { (void)m, the.stop = true; }

static void *serve(void *arg)
{
    (void)arg;
    while (!the.stop) {
        uint64_t now = clock_ms(), next = server_tick(the.server, now);
        (void)transport_tick(the.door, now);
        loop_turn(the.loop, next > now + 20 ? 20 : (int)(next > now ? next - now : 0));
    }
    return NULL;
}

static void start(unsigned seed)
{
    struct server_config c = {.seed = {1}, .instance = {{7}}};
    struct error e;

    if (!sim_present() || sim_replaced()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    memset(&the, 0, sizeof the);
    sim_nccl(true);
    CHECK_OK(sim_cards_new(seed, TRAINERS + 1, the.cards, &e), &e);
    the.device = the.cards[0];
    CHECK_OK(loop_new(&the.loop, &e), &e);
    CHECK_OK(mailbox_new(64, &the.mailbox, &e), &e);
    the.mail_watch = (struct watch){.fd = mailbox_fd(the.mailbox), .ready = take_mail};
    CHECK_OK(loop_add(the.loop, &the.mail_watch, EPOLLIN, &e), &e);
    the.moved.open = poll_device;
    the.end.open = end;
    the.device->notify = device_moved;
    c.device = the.device;
    CHECK_OK(server_new(&c, clock_ms(), &the.server, &e), &e);
    struct transport_config door = {.server = the.server, .loop = the.loop, .mailbox = the.mailbox, .now_ms = clock_ms};
    CHECK_OK(transport_sp_open(&door, "tcp://127.0.0.1:0", &the.door, &e), &e);
    CHECK_EQ(pthread_create(&the.thread, NULL, serve, NULL), 0);
}

static void stop(void)
{
    mailbox_notice(the.mailbox, &the.end);
    CHECK_EQ(pthread_join(the.thread, NULL), 0);
    transport_close(the.door);
    server_free(the.server);
    for (unsigned i = 0; i <= TRAINERS; i++) device_free(the.cards[i]);
    loop_remove(the.loop, &the.mail_watch);
    mailbox_free(the.mailbox);
    loop_free(the.loop);
    if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}

/* ---- a trainer --------------------------------------------------------------------------------------------------- */

enum { COUNT = 300, ROUNDS = 3 };
static const int64_t shape[] = {COUNT};
static struct paramd_key keys[] = {PARAMD_STR("bias"), PARAMD_STR("weight")};
enum { KEYS = sizeof keys / sizeof *keys };

struct trainer {
    unsigned rank;
    struct paramd *kv;
    struct paramd_error e;
    struct device *device;
    struct queue *queue;
    struct dmem gradient[KEYS], value[KEYS];
    struct paramd_tensor gradients[KEYS], values[KEYS];
};

/* What went wrong first, by any trainer. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char wrong[700];

static void expect_at(int line, bool is_true, const char *what, const struct trainer *t)
{
    pthread_mutex_lock(&lock);
    if (!is_true && wrong[0] == '\0')
        snprintf(wrong, sizeof wrong, "line %d, trainer %u: %s (%s)", line, t->rank, what, t->e.text);
    pthread_mutex_unlock(&lock);
}
#define EXPECT(condition) expect_at(__LINE__, (condition), #condition, t)

static void finish(struct trainer *t)
{
    uint64_t mark = 0;

    EXPECT(device_record(t->queue, &mark) == STATUS_OK && device_wait(t->queue, mark) == STATUS_OK);
}

static void open_card(struct trainer *t)
{
    t->device = the.cards[t->rank + 1];
    EXPECT(device_queue_new(t->device, &t->queue, NULL) == STATUS_OK);
    for (unsigned k = 0; k < KEYS; k++) {
        EXPECT(device_mem_new(t->device, COUNT * sizeof(float), &t->gradient[k], NULL) == STATUS_OK);
        EXPECT(device_mem_new(t->device, COUNT * sizeof(float), &t->value[k], NULL) == STATUS_OK);
        t->gradients[k] = (struct paramd_tensor){t->gradient[k].at, PARAMD_F32 | PARAMD_CUDA, 1, shape};
        t->values[k] = (struct paramd_tensor){t->value[k].at, PARAMD_F32 | PARAMD_CUDA, 1, shape};
    }
}

static void close_card(struct trainer *t)
{
    for (unsigned k = 0; k < KEYS; k++) {
        device_mem_free(&t->gradient[k]);
        device_mem_free(&t->value[k]);
    }
    device_queue_free(t->queue);
}

static void open_trainer(struct trainer *t, unsigned rank)
{
    float one[COUNT], *first[KEYS] = {one, one};
    struct paramd_tensor init[KEYS];
    char options[300];

    *t = (struct trainer){.rank = rank};
    open_card(t);
    snprintf(options, sizeof options, "{\"url\": \"%s\", \"store\": \"s\", \"num_workers\": %d, \"worker_name\": \"w%u\", "
             "\"on_reinit\": \"keep\"}", transport_url(the.door), TRAINERS, rank);
    EXPECT(paramd_create("dist_sync", options, &t->kv, &t->e) == 0);
    for (int i = 0; i < COUNT; i++) one[i] = 1;
    for (unsigned k = 0; k < KEYS; k++) init[k] = (struct paramd_tensor){first[k], PARAMD_F32, 1, shape};
    EXPECT(paramd_set_updater(t->kv, "{\"type\": \"sgd\", \"learning_rate\": 0.5}", &t->e) == 0);
    EXPECT(paramd_init(t->kv, KEYS, keys, init, &t->e) == 0);
}

static void close_trainer(struct trainer *t)
{
    paramd_close(t->kv);
    close_card(t);
}

static float gradient(unsigned rank, unsigned key, int i, int round) { return (float)((i + 7 * (int)(rank + key)) % 32 - round); }

static void upload(struct trainer *t, int round)
{
    float host[KEYS][COUNT];

    for (unsigned k = 0; k < KEYS; k++) {
        for (int i = 0; i < COUNT; i++) host[k][i] = gradient(t->rank, k, i, round);
        EXPECT(device_upload(t->queue, t->gradient[k], 0, host[k], sizeof host[k]) == STATUS_OK);
    }
    finish(t);
}

/* After so many rounds that all trainers from `first` took part in. */
static float expected(unsigned first, unsigned key, int i, int rounds)
{
    float w = 1;

    for (int round = 0; round < rounds; round++) {
        float sum = 0;
        for (unsigned rank = first; rank < TRAINERS; rank++) sum += gradient(rank, key, i, round);
        w -= 0.5f * sum;
    }
    return w;
}

static void check_outputs(struct trainer *t, int rounds)
{
    float host[COUNT];
    int faults = 0;

    for (unsigned k = 0; k < KEYS; k++) {
        EXPECT(device_download(t->queue, host, t->value[k], 0, sizeof host) == STATUS_OK);
        finish(t);
        for (int i = 0; i < COUNT; i++) faults += host[i] != expected(0, k, i, rounds);
    }
    EXPECT(faults == 0);
}

/* The same by the ordinary way. */
static void check_pulled(struct trainer *t, unsigned first, int rounds)
{
    float host[KEYS][COUNT];
    struct paramd_tensor out[KEYS];
    int faults = 0;

    for (unsigned k = 0; k < KEYS; k++) out[k] = (struct paramd_tensor){host[k], PARAMD_F32, 1, shape};
    EXPECT(paramd_pull(t->kv, KEYS, keys, out, 0, &t->e) == 0);
    for (unsigned k = 0; k < KEYS; k++)
        for (int i = 0; i < COUNT; i++) faults += host[k][i] != expected(first, k, i, rounds);
    EXPECT(faults == 0);
}

static void push_ordinarily(struct trainer *t, int round)
{
    float host[KEYS][COUNT];
    struct paramd_tensor given[KEYS];

    for (unsigned k = 0; k < KEYS; k++) {
        for (int i = 0; i < COUNT; i++) host[k][i] = gradient(t->rank, k, i, round);
        given[k] = (struct paramd_tensor){host[k], PARAMD_F32, 1, shape};
    }
    EXPECT(paramd_push(t->kv, KEYS, keys, given, 0, &t->e) == 0);
}

static void join(struct trainer *t)
{
    char card[16];

    snprintf(card, sizeof card, "cuda:%u", t->rank + 1);
    EXPECT(paramd_plane_join(t->kv, card, &t->e) == 0);
}

static void run(void *(*life)(void *))
{
    pthread_t threads[TRAINERS];

    wrong[0] = '\0';
    for (uintptr_t i = 0; i < TRAINERS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, life, (void *)i), 0);
    for (unsigned i = 0; i < TRAINERS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    if (wrong[0] != '\0') test_fail(__FILE__, __LINE__, "%s", wrong);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void *pushes_and_pulls(void *arg)
{
    struct trainer trainer, *t = &trainer;

    open_trainer(t, (unsigned)(uintptr_t)arg);
    EXPECT(paramd_plane_push(t->kv, KEYS, keys, t->gradients, t->values, &t->e) != 0);
    EXPECT(strcmp(t->e.reason, "no-plane") == 0);
    join(t);
    for (int round = 0; round < ROUNDS; round++) {
        upload(t, round);
        EXPECT(paramd_plane_push(t->kv, KEYS, keys, t->gradients, t->values, &t->e) == 0);
        check_outputs(t, round + 1);
    }
    check_pulled(t, 0, ROUNDS);
    t->gradients[0].dtype = PARAMD_F32;
    EXPECT(paramd_plane_push(t->kv, KEYS, keys, t->gradients, t->values, &t->e) != 0);
    EXPECT(strstr(t->e.text, "lies on its GPU") != NULL);
    t->gradients[0].dtype = PARAMD_F32 | PARAMD_CUDA;
    push_ordinarily(t, ROUNDS);
    check_pulled(t, 0, ROUNDS + 1);
    upload(t, ROUNDS + 1);
    EXPECT(paramd_plane_push(t->kv, KEYS, keys, t->gradients, NULL, &t->e) == 0);
    check_pulled(t, 0, ROUNDS + 2);
    EXPECT(paramd_barrier(t->kv, "end", &t->e) == 0);
    close_trainer(t);
    return NULL;
}

TEST(pushes_of_device_memory_are_summed_between_gpus_and_bring_the_new_values)
{
    for (unsigned seed = 0; seed < SIM_SEEDS; seed++) {
        start(seed);
        run(pushes_and_pulls);
        stop();
    }
}

/* Trainer 0 goes; trainer 1 is told, and goes on alone, first the ordinary way and then in the next epoch. */
static void *one_goes(void *arg)
{
    struct trainer trainer, *t = &trainer;

    open_trainer(t, (unsigned)(uintptr_t)arg);
    join(t);
    EXPECT(paramd_barrier(t->kv, "all there", &t->e) == 0);
    if (t->rank == 1) {
        upload(t, 0);
        EXPECT(paramd_plane_push(t->kv, KEYS, keys, t->gradients, t->values, &t->e) != 0);
        EXPECT(strcmp(t->e.reason, "plane-broken") == 0);
        EXPECT(strstr(t->e.text, "worker 'w0'") != NULL && strstr(t->e.text, "do not count") != NULL);
        push_ordinarily(t, 0);
        check_pulled(t, 1, 1);
        join(t);
        upload(t, 1);
        EXPECT(paramd_plane_push(t->kv, KEYS, keys, t->gradients, t->values, &t->e) == 0);
        check_pulled(t, 1, 2);
    }
    close_trainer(t);
    return NULL;
}

TEST(who_goes_is_named_to_the_others_who_go_on)
{
    start(1);
    run(one_goes);
    stop();
}

static void *differ(void *arg)
{
    struct trainer trainer, *t = &trainer;

    open_trainer(t, (unsigned)(uintptr_t)arg);
    join(t);
    upload(t, 0);
    EXPECT(paramd_plane_push(t->kv, 1, &keys[t->rank], t->gradients, t->values, &t->e) != 0);
    EXPECT(strcmp(t->e.reason, "plane-broken") == 0);
    EXPECT(strstr(t->e.text, "of key id") != NULL);
    join(t);
    EXPECT(paramd_plane_push(t->kv, KEYS, keys, t->gradients, t->values, &t->e) == 0);
    check_outputs(t, 1);
    EXPECT(paramd_barrier(t->kv, "end", &t->e) == 0);
    close_trainer(t);
    return NULL;
}

TEST(trainers_that_name_other_keys_are_told_so_and_join_the_next_epoch)
{
    start(2);
    run(differ);
    stop();
}

static void *without_a_card(void *arg)
{
    struct trainer trainer, *t = &trainer;

    open_trainer(t, (unsigned)(uintptr_t)arg);
    EXPECT(paramd_plane_join(t->kv, "gpu1", &t->e) != 0);
    EXPECT(strstr(t->e.text, "'gpu1' is no GPU") != NULL);
    EXPECT(paramd_plane_join(t->kv, "cuda:9", &t->e) != 0);
    push_ordinarily(t, 0);
    check_pulled(t, 0, 1);
    EXPECT(paramd_barrier(t->kv, "end", &t->e) == 0);
    close_trainer(t);
    return NULL;
}

TEST(a_card_that_is_not_there_is_refused_and_ordinary_pushes_work)
{
    start(1);
    run(without_a_card);
    stop();
}
