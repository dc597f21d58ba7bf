/* What the CUDA device promises beside what every device does (test_device.c), on the stand-in for CUDA: it gathers small
 * work without changing its order, every failing call of CUDA is a status, and nothing is left behind. */
#include "gpu/device.h"

#include "gpu/plugin.h"
#include "service/base/mem.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Of cudaError_t; the tests of the plug-in compile where CUDA is not. */
enum { SLOT_SIZE = 64 << 10, OUT_OF_MEMORY = 2, UNKNOWN_ERROR = 999 };

static struct error error;

static void need_sim(void)
{
    if (!sim_present()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
}

static struct device *open_sim(unsigned seed)
{
    struct device *d = NULL;
    CHECK_OK(sim_device_new(seed, &d, &error), &error);
    return d;
}

static void close_sim(struct device *d)
{
    device_free(d);
    if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}

static struct queue *open_queue(struct device *d)
{
    struct queue *q = NULL;
    CHECK_OK(device_queue_new(d, &q, &error), &error);
    return q;
}

static struct dmem room(struct device *d, size_t size)
{
    struct dmem m;
    CHECK_OK(device_mem_new(d, size, &m, &error), &error);
    return m;
}

static void *pinned(struct device *d, size_t size)
{
    void *p = NULL;
    CHECK_OK(device_pin_new(d, size, &p, &error), &error);
    return p;
}

static void finish(struct queue *q)
{
    uint64_t mark;
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
}

TEST(it_says_what_it_is)
{
    need_sim();
    struct device *d = open_sim(3);
    struct dmem m = room(d, 100);

    CHECK_TEXT(device_kind(d), "cuda:1");
    CHECK_SAYS(d->card, "stand-in");
    CHECK(m.host == NULL);
    device_mem_free(&m);
    close_sim(d);
}

/* ---- holding the device thread up, so that what is given meanwhile is taken at once ---------------------------------- */

struct gate {
    sem_t entered, go;
    atomic_bool shut;
};

/* The device thread's: it comes here when the first mark passes. */
static void pass_gate(void *ctx)
{
    struct gate *g = ctx;

    if (!atomic_exchange(&g->shut, false)) return;
    sem_post(&g->entered);
    while (sem_wait(&g->go) != 0) continue;
}

/* Before the device's first work. */
static void put_gate(struct gate *g, struct device *d)
{
    sem_init(&g->entered, 0, 0);
    sem_init(&g->go, 0, 0);
    d->notify = pass_gate;
    d->notify_ctx = g;
}

static void shut_gate(struct gate *g, struct queue *q)
{
    uint64_t mark;

    atomic_store(&g->shut, true);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    while (sem_wait(&g->entered) != 0) continue;
}

static void open_gate(struct gate *g)
{
    sem_post(&g->go);
}

static void close_gate(struct gate *g)
{
    sem_destroy(&g->entered);
    sem_destroy(&g->go);
}

/* 300 small keys: pushed, stepped, each with a mark, and read. */
TEST(small_keys_of_one_queue_go_out_as_one_launch_a_stage)
{
    enum { KEYS = 300, COUNT = 100 };
    need_sim();
    for (unsigned seed = 3; seed < 6; seed++) {
        struct device *d = open_sim(seed);
        struct queue *q = open_queue(d);
        struct gate gate = {.shut = false};
        put_gate(&gate, d);
        struct dmem sum[KEYS], value[KEYS];
        float *in = pinned(d, KEYS * COUNT * 4), *out = pinned(d, KEYS * COUNT * 4);
        uint64_t mark = 0;
        uint32_t flags = 0;

        for (int k = 0; k < KEYS; k++) {
            sum[k] = room(d, COUNT * 4), value[k] = room(d, COUNT * 4);
            CHECK_EQ(device_zero(q, value[k], COUNT * 4), STATUS_OK);
            for (int i = 0; i < COUNT; i++) in[k * COUNT + i] = (float)(k + i);
        }
        finish(q);
        shut_gate(&gate, q);
        uint64_t launches = sim_stats().launches, copies = sim_stats().h2d;
        for (int k = 0; k < KEYS; k++) {
            struct step s = {.rule = k % 2 ? RULE_add : RULE_test, .type = DTYPE_f32, .count = COUNT, .last = sum[k],
                             .from = value[k], .to = value[k], .scalars = {{k % 5}}, .flags = &flags};
            CHECK_EQ(device_upload(q, sum[k], 0, in + k * COUNT, COUNT * 4), STATUS_OK);
            CHECK_EQ(device_step(q, &s), STATUS_OK);
            CHECK_EQ(device_download(q, out + k * COUNT, value[k], 0, COUNT * 4), STATUS_OK);
            CHECK_EQ(device_record(q, &mark), STATUS_OK);
        }
        open_gate(&gate);
        CHECK_EQ(device_wait(q, mark), STATUS_OK);
        CHECK_EQ(sim_stats().launches - launches, 6);        /* 256 and 44, three stages */
        CHECK_EQ(sim_stats().h2d, copies);
        for (int k = 0; k < KEYS; k++)
            for (int i = 0; i < COUNT; i++)
                CHECK(out[k * COUNT + i] == (float)(k + i) * (k % 2 ? 1 : (float)(k % 5)));
        for (int k = 0; k < KEYS; k++) device_mem_free(&sum[k]), device_mem_free(&value[k]);
        device_pin_free(d, in), device_pin_free(d, out);
        device_queue_free(q);
        close_sim(d);
        close_gate(&gate);
    }
}

/* ---- any order of small and large calls on few buffers: the same as on the CPU ---------------------------------------- */

enum { BUFFERS = 6, COUNT = 300, LARGE = 40000, CALLS = 150 };

struct side {
    struct device *d;
    struct queue *q;
    struct dmem buffer[BUFFERS], slot[2];
    float *host[3];
    uint32_t flags;
};

static void side_open(struct side *s, struct device *d, uint64_t seed)
{
    *s = (struct side){.d = d, .q = open_queue(d)};
    for (int i = 0; i < 3; i++) {
        s->host[i] = pinned(d, LARGE * 4);
        for (int k = 0; k < LARGE; k++) s->host[i][k] = (float)(rng_next(&seed) % 17);
    }
    for (int i = 0; i < BUFFERS; i++) {
        s->buffer[i] = room(d, LARGE * 4);
        CHECK_EQ(device_zero(s->q, s->buffer[i], LARGE * 4), STATUS_OK);
    }
    for (int i = 0; i < 2; i++) {
        s->slot[i] = room(d, LARGE * 4);
        CHECK_EQ(device_zero(s->q, s->slot[i], LARGE * 4), STATUS_OK);
    }
    finish(s->q);
}

static void side_close(struct side *s)
{
    for (int i = 0; i < 3; i++) device_pin_free(s->d, s->host[i]);
    for (int i = 0; i < BUFFERS; i++) device_mem_free(&s->buffer[i]);
    for (int i = 0; i < 2; i++) device_mem_free(&s->slot[i]);
    device_queue_free(s->q);
}

/* A piece of a buffer that begins somewhere in it. */
static struct dmem piece(struct dmem m, size_t offset)
{
    m.at = (char *)m.at + 4 * offset;
    m.size -= 4 * offset;
    return m;
}

static void call(struct side *s, uint64_t random)
{
    unsigned to = (unsigned)(random % BUFFERS), from = (to + 1 + (unsigned)(random >> 8) % (BUFFERS - 1)) % BUFFERS;
    size_t count = (random >> 16) % 5 == 0 ? LARGE - 50 : 1 + (random >> 24) % COUNT, offset = (random >> 40) % 40;
    float *host = s->host[(random >> 34) % 3];
    struct dmem t = piece(s->buffer[to], offset), f = s->buffer[from];
    struct step step = {.rule = (random >> 36) % 2 ? RULE_momentum : RULE_add, .type = DTYPE_f32, .count = count,
                        .sum = f, .from = t, .to = t, .slots = {s->slot[to % 2]}, .flags = &s->flags,
                        .scalars = {{1, 8, 0, 0.5, 0.25 + (double)(random >> 50 & 63)}}};
    uint64_t mark;

    switch ((random >> 44) % 9) {
    case 0: case 1: CHECK_EQ(device_upload(s->q, s->buffer[to], 4 * offset, host, count * 4), STATUS_OK); break;
    case 2: CHECK_EQ(device_download(s->q, host, f, 0, count * 4), STATUS_OK); break;
    case 3: CHECK_EQ(device_copy(s->q, t, f, count * 4), STATUS_OK); break;
    case 4: CHECK_EQ(device_zero(s->q, t, count * 4), STATUS_OK); break;
    case 5: CHECK_EQ(device_add(s->q, t, f, DTYPE_f32, count, &s->flags), STATUS_OK); break;
    case 6: CHECK_EQ(device_widen(s->q, t, f, DTYPE_f32, count), STATUS_OK); break;
    default: CHECK_EQ(device_step(s->q, &step), STATUS_OK);
    }
    if ((random >> 60) % 4 == 0) CHECK_EQ(device_record(s->q, &mark), STATUS_OK);
}

static void same_bytes(struct side *a, struct side *b)
{
    for (int i = 0; i < BUFFERS + 2; i++) {
        struct dmem x = i < BUFFERS ? a->buffer[i] : a->slot[i - BUFFERS], y = i < BUFFERS ? b->buffer[i] : b->slot[i - BUFFERS];
        float *p = mem_new(LARGE * 4), *r = mem_new(LARGE * 4);
        CHECK(p != NULL && r != NULL);
        CHECK_EQ(device_download(a->q, p, x, 0, LARGE * 4), STATUS_OK);
        CHECK_EQ(device_download(b->q, r, y, 0, LARGE * 4), STATUS_OK);
        finish(a->q), finish(b->q);
        CHECK(memcmp(p, r, LARGE * 4) == 0);
        mem_free(p), mem_free(r);
    }
    for (int i = 0; i < 3; i++) CHECK(memcmp(a->host[i], b->host[i], LARGE * 4) == 0);
}

TEST(gathering_changes_no_order)
{
    need_sim();
    for (unsigned seed = 3; seed < 3 + SIM_ORDERS; seed++) {
        struct device *cpu = NULL, *sim = open_sim(seed);
        struct side a, b;
        struct gate gate = {.shut = false};
        uint64_t random = seed;

        CHECK_OK(cpu_device_new(1, &cpu, &error), &error);
        put_gate(&gate, sim);
        side_open(&a, cpu, seed), side_open(&b, sim, seed);
        shut_gate(&gate, b.q);
        for (int i = 0; i < CALLS; i++) {
            uint64_t r = rng_next(&random);
            call(&a, r), call(&b, r);
        }
        open_gate(&gate);
        finish(a.q), finish(b.q);
        same_bytes(&a, &b);
        side_close(&a), side_close(&b);
        device_free(cpu);
        close_sim(sim);
        close_gate(&gate);
    }
}

/* ---- the caller's end of a copy lies on a GPU: of a trainer in the same process --------------------------------------- */

/* In turn from the host, from this card and from another, with work between, and back to each. */
static void mix_sides(struct device *d, struct device *other, size_t count)
{
    struct queue *q = open_queue(d), *beside = open_queue(other);
    size_t size = count * 4;
    struct dmem sum = room(d, size), in = room(d, size), mine = room(d, size), theirs = room(other, size), back = room(other, size);
    float *one = mem_array(count, 4), *two = mem_array(count, 4), *four = pinned(d, size), *out = mem_zero(3 * size);
    uint32_t flags = 0;

    CHECK(one != NULL && two != NULL && out != NULL);
    for (size_t i = 0; i < count; i++) one[i] = (float)i, two[i] = 2 * (float)i, four[i] = 4 * (float)i;
    CHECK_EQ(device_upload(beside, theirs, 0, two, size), STATUS_OK);
    CHECK_EQ(device_upload(q, mine, 0, one, size), STATUS_OK);
    finish(q), finish(beside);
    CHECK_EQ(device_zero(q, sum, size), STATUS_OK);
    const void *from[] = {mine.at, theirs.at, four, two, theirs.at, mine.at};
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) {
        CHECK_EQ(device_upload(q, in, 0, from[i], size), STATUS_OK);
        CHECK_EQ(device_add(q, sum, in, DTYPE_f32, count, &flags), STATUS_OK);
    }
    CHECK_EQ(device_download(q, back.at, sum, 0, size), STATUS_OK);
    CHECK_EQ(device_download(q, mine.at, sum, 0, size), STATUS_OK);
    CHECK_EQ(device_add(q, sum, in, DTYPE_f32, count, &flags), STATUS_OK);
    CHECK_EQ(device_download(q, out, sum, 0, size), STATUS_OK);
    finish(q);
    CHECK_EQ(device_download(q, out + count, mine, 0, size), STATUS_OK);
    CHECK_EQ(device_download(beside, out + 2 * count, back, 0, size), STATUS_OK);
    finish(q), finish(beside);
    for (size_t i = 0; i < count; i++) {
        CHECK(out[i] == 13 * (float)i);      /* 1 + 2 + 4 + 2 + 2 + 1, and once more 1 */
        CHECK(out[count + i] == 12 * (float)i && out[2 * count + i] == 12 * (float)i);
    }
    device_mem_free(&sum), device_mem_free(&in), device_mem_free(&mine), device_mem_free(&theirs), device_mem_free(&back);
    device_pin_free(d, four);
    mem_free(one), mem_free(two), mem_free(out);
    device_queue_free(q), device_queue_free(beside);
}

TEST(copies_from_and_to_memory_of_this_and_of_another_gpu_are_work_like_any)
{
    need_sim();
    for (unsigned seed = 3; seed < 9; seed++) {
        struct device *d = open_sim(seed), *other = NULL;
        struct card card = {.number = 1 - seed % 2, .chunk_size = 1, .slot_size = SLOT_SIZE};

        CHECK_OK(cuda_device_new(&card, &other, &error), &error);
        CHECK(strcmp(device_kind(d), device_kind(other)) != 0);
        mix_sides(d, other, COUNT);
        mix_sides(d, other, LARGE);
        device_free(other);
        close_sim(d);
    }
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

/* ---- calls on a queue's stream ---------------------------------------------------------------------------------------- */

/* What a library would do: it puts work of its own on the stream that it is handed. */
struct library {
    float *at;
    float found;
    unsigned calls, calls_without_stream;
};

static void take_and_double(void *ctx)
{
    struct library *l = ctx;

    memcpy(&l->found, l->at, sizeof l->found);
    memcpy(l->at, &(float){2 * l->found}, sizeof *l->at);
}

static void library_call(void *ctx, void *stream)
{
    struct library *l = ctx;

    l->calls++;
    if (stream == NULL) l->calls_without_stream++;
    else sim_enqueue(stream, NULL, take_and_double, l);
}

/* Small work on both sides of it, which is gathered. */
TEST(a_call_is_made_in_its_queues_order_and_marks_wait_for_what_it_puts_on_the_stream)
{
    need_sim();
    for (unsigned seed = 3; seed < 12; seed++) {
        struct device *d = open_sim(seed);
        struct queue *q = open_queue(d);
        struct gate gate = {.shut = false};
        put_gate(&gate, d);
        struct dmem m = room(d, 4), sum = room(d, 4);
        float *in = pinned(d, 4), *out = pinned(d, 4);
        struct library l = {.at = m.at};
        uint64_t first, mark;
        uint32_t flags = 0;

        *in = 3;
        shut_gate(&gate, q);
        CHECK_EQ(device_upload(q, m, 0, in, 4), STATUS_OK);
        CHECK_EQ(device_record(q, &first), STATUS_OK);
        CHECK_EQ(device_queue_call(q, library_call, &l), STATUS_OK);
        CHECK_EQ(device_record(q, &mark), STATUS_OK);
        open_gate(&gate);
        CHECK_EQ(device_wait(q, mark), STATUS_OK);
        CHECK(l.found == 3);
        CHECK_EQ(device_queue_call(q, library_call, &l), STATUS_OK);
        CHECK_EQ(device_widen(q, sum, m, DTYPE_f32, 1), STATUS_OK);
        CHECK_EQ(device_add(q, sum, m, DTYPE_f32, 1, &flags), STATUS_OK);
        CHECK_EQ(device_download(q, out, sum, 0, 4), STATUS_OK);
        finish(q);
        CHECK(l.found == 6 && *out == 24);
        CHECK_EQ(l.calls, 2);
        CHECK_EQ(l.calls_without_stream, 0);
        device_queue_free(q);
        device_mem_free(&m), device_mem_free(&sum);
        device_pin_free(d, in), device_pin_free(d, out);
        close_sim(d);
        close_gate(&gate);
    }
}

TEST(a_call_that_was_taken_comes_once_and_without_a_stream_when_the_device_is_lost)
{
    need_sim();
    for (unsigned seed = 3; seed < 6; seed++) {
        struct device *d = open_sim(seed);
        struct queue *q = open_queue(d);
        struct gate gate = {.shut = false};
        put_gate(&gate, d);
        struct dmem m = room(d, 4);
        struct library l = {.at = m.at};
        uint64_t mark;

        shut_gate(&gate, q);
        sim_fail("cudaMemsetAsync", 1, UNKNOWN_ERROR);
        CHECK_EQ(device_zero(q, m, 4), STATUS_OK);
        CHECK_EQ(device_queue_call(q, library_call, &l), STATUS_OK);
        CHECK_EQ(device_record(q, &mark), STATUS_OK);
        open_gate(&gate);
        CHECK_EQ(device_wait(q, mark), STATUS_UNAVAILABLE);
        CHECK_EQ(device_queue_call(q, library_call, &l), STATUS_UNAVAILABLE);
        device_queue_free(q);
        CHECK_EQ(l.calls, 1);
        CHECK_EQ(l.calls_without_stream, 1);
        device_mem_free(&m);
        device_free(d);
        CHECK_EQ(sim_plugin()->mem_live(), 0);
        close_gate(&gate);
    }
}

/* ---- an item that waits for others, in the midst of a turn of the device thread ---------------------------------------- */

enum { SLOTS = 4, AT_ONCE = 8 };     /* the ring's, and statistics at once */

/* A queue that stands still until it is let go. */
struct hold {
    struct gate gate;
    sem_t told;
    atomic_bool let_go;
    int thread;              /* the device's */
};

static void tell_hold(void *ctx)
{
    struct hold *h = ctx;

    pass_gate(&h->gate);
    sem_post(&h->told);
}

static bool is_let_go(void *ctx) { return atomic_load(&((struct hold *)ctx)->let_go); }
static void nothing(void *ctx) { (void)ctx; }

static void hold_stream(void *ctx, void *stream)
{
    ((struct hold *)ctx)->thread = gettid();
    sim_enqueue(stream, is_let_go, nothing, ctx);
}

static void hold_new(struct hold *h, struct device *d)
{
    put_gate(&h->gate, d);
    sem_init(&h->told, 0, 0);
    atomic_init(&h->gate.shut, false);
    atomic_init(&h->let_go, false);
    d->notify = tell_hold;
    d->notify_ctx = h;
}

static void hold_end(struct hold *h)
{
    sem_destroy(&h->told);
    close_gate(&h->gate);
}

/* As the kernel says. */
static bool is_asleep(int thread)
{
    char name[64], state = '?';

    snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
    FILE *f = fopen(name, "r");
    CHECK(f != NULL && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
    fclose(f);
    return state == 'S';
}

enum waiting_item { WAITING_UPLOAD, WAITING_DOWNLOAD, WAITING_STATS, WAITING_ITEMS };

/* More than fits at once, on a queue that stands still. */
static void give_too_much(struct queue *q, struct dmem m, enum waiting_item what)
{
    static char host[(SLOTS + 2) * SLOT_SIZE];
    static struct stats stats[AT_ONCE + 2];
    uint64_t mark;

    if (what == WAITING_UPLOAD) CHECK_EQ(device_upload(q, m, 0, host, sizeof host), STATUS_OK);
    if (what == WAITING_DOWNLOAD) CHECK_EQ(device_download(q, host, m, 0, sizeof host), STATUS_OK);
    for (int i = 0; i < AT_ONCE + 2 && what == WAITING_STATS; i++) {
        CHECK_EQ(device_stats(q, m, (struct dmem){0}, DTYPE_f32, 4, &stats[i]), STATUS_OK);
        CHECK_EQ(device_record(q, &mark), STATUS_OK);
    }
}

/* Work of another queue is given with it, so that it passes while the item waits. */
static void get_stuck(struct hold *h, struct queue *held, struct queue *other, struct dmem m[2], enum waiting_item what)
{
    uint64_t mark, passed = 0;

    shut_gate(&h->gate, other);
    CHECK_EQ(device_queue_call(held, hold_stream, h), STATUS_OK);
    CHECK_EQ(device_zero(other, m[1], m[1].size), STATUS_OK);
    CHECK_EQ(device_record(other, &mark), STATUS_OK);
    give_too_much(held, m[0], what);
    open_gate(&h->gate);
    while (passed < mark) {
        while (sem_wait(&h->told) != 0) continue;
        CHECK_EQ(device_passed(other, &passed), STATUS_OK);
    }
}

TEST(while_an_item_waits_for_others_the_thread_tells_of_what_passes_and_sleeps)
{
    need_sim();
    for (unsigned seed = 3; seed < 6; seed++)
        for (int what = 0; what < WAITING_ITEMS; what++) {
            struct device *d = open_sim(seed);
            struct queue *held = open_queue(d), *other = open_queue(d);
            struct dmem m[2] = {room(d, (SLOTS + 2) * SLOT_SIZE), room(d, SLOT_SIZE)};
            struct hold h;

            hold_new(&h, d);
            get_stuck(&h, held, other, m, (enum waiting_item)what);
            while (!is_asleep(h.thread)) continue;
            atomic_store(&h.let_go, true);
            finish(held);
            device_queue_free(held), device_queue_free(other);
            device_mem_free(&m[0]), device_mem_free(&m[1]);
            close_sim(d);
            hold_end(&h);
        }
}

TEST(an_error_that_the_caller_meets_ends_the_device_also_while_an_item_waits_for_others)
{
    need_sim();
    for (unsigned seed = 3; seed < 6; seed++)
        for (int what = 0; what < WAITING_ITEMS; what++) {
            struct device *d = open_sim(seed);
            struct queue *held = open_queue(d), *other = open_queue(d);
            struct dmem m[2] = {room(d, (SLOTS + 2) * SLOT_SIZE), room(d, SLOT_SIZE)}, more;
            struct hold h;

            hold_new(&h, d);
            get_stuck(&h, held, other, m, (enum waiting_item)what);
            sim_fail("cudaMalloc", 1, UNKNOWN_ERROR);
            CHECK_EQ(device_mem_new(d, SLOT_SIZE, &more, &error), STATUS_UNAVAILABLE);
            CHECK_SAYS(error.text, "taking memory: CUDA error 999");
            CHECK(d->lost);
            atomic_store(&h.let_go, true);
            device_queue_free(held), device_queue_free(other);
            device_mem_free(&m[0]), device_mem_free(&m[1]);
            device_free(d);
            CHECK_EQ(sim_plugin()->mem_live(), 0);
            hold_end(&h);
        }
}

/* ---- marks without memory ------------------------------------------------------------------------------------------------ */

/* Whether memory was wanted for it, of which there is none. */
static bool record_without_memory(struct queue *q, uint64_t *mark)
{
    sim_plugin()->mem_fault_at(1);
    CHECK_EQ(device_record(q, mark), STATUS_OK);
    bool hit = sim_plugin()->mem_fault_hit();
    sim_plugin()->mem_fault_at(0);
    return hit;
}

struct opener { struct gate *gate; int thread; };

static void *open_when_asleep(void *ctx)
{
    struct opener *o = ctx;

    while (!is_asleep(o->thread)) continue;
    open_gate(o->gate);
    return NULL;
}

/* A second one waits until the first has passed. */
TEST(a_mark_never_fails_for_lack_of_memory)
{
    need_sim();
    for (unsigned seed = 3; seed < 6; seed++) {
        struct device *d = open_sim(seed);
        struct queue *q = open_queue(d);
        struct gate gate = {.shut = false};
        put_gate(&gate, d);
        struct opener opener = {&gate, gettid()};
        struct dmem m = room(d, SLOT_SIZE);
        uint64_t first, second, passed;
        pthread_t thread;

        shut_gate(&gate, q);
        do CHECK_EQ(device_zero(q, m, m.size), STATUS_OK);
        while (!record_without_memory(q, &first));
        CHECK_EQ(device_zero(q, m, m.size), STATUS_OK);
        CHECK_EQ(pthread_create(&thread, NULL, open_when_asleep, &opener), 0);
        CHECK(record_without_memory(q, &second));
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK(second > first);
        CHECK_EQ(device_passed(q, &passed), STATUS_OK);
        CHECK(passed >= first);
        CHECK_EQ(device_wait(q, second), STATUS_OK);
        device_queue_free(q);
        device_mem_free(&m);
        close_sim(d);
        close_gate(&gate);
    }
}

TEST(a_hard_limit_is_said_with_figures_and_changes_nothing_else)
{
    need_sim();
    struct device *d = open_sim(4), *small = NULL;
    struct dmem a, b;

    CHECK_OK(cuda_device_new(&(struct card){.number = 1, .memory_max = 1 << 20, .chunk_size = 64 << 10, .slot_size = SLOT_SIZE}, &small, &error), &error);
    a = room(small, 900 << 10);
    CHECK_EQ(device_mem_new(small, 200 << 10, &b, &error), STATUS_RESOURCE_EXHAUSTED);
    CHECK_SAYS(error.text, "no memory of the GPU for 204800 bytes: 921600 of at most 1048576 are taken");
    b = room(small, 100 << 10);
    device_mem_free(&a), device_mem_free(&b);
    a = room(small, 1 << 20);
    device_mem_free(&a);
    CHECK(!small->lost);
    device_free(small);
    /* Without a limit the card says it. */
    CHECK_EQ(device_mem_new(d, (size_t)3 << 30, &a, &error), STATUS_RESOURCE_EXHAUSTED);
    CHECK_SAYS(error.text, "the card has");
    a = room(d, 1 << 20);
    device_mem_free(&a);
    close_sim(d);
}

/* ---- failures ------------------------------------------------------------------------------------------------------- */

/* A small life, which answers the first status that is not OK and gives all back. Right: so were all results. */
static enum status life(struct device *d, bool *right)
{
    enum { N = 70000, FEW = 10, STATS = 9 };     /* one more than find room before somebody waits */
    struct queue *q = NULL, *side = NULL, *last = NULL;
    struct dmem w = {0}, sum = {0}, whole = {0}, ints = {0}, scratch = {0};
    float *host = NULL, *plain = mem_zero(N * 4), *late = mem_zero(N * 4);
    struct stats few[STATS], stats;
    uint64_t mark = 0, passed;
    uint32_t flags = 0;
    enum status s = plain == NULL || late == NULL ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK;

#define DO(call) if (s == STATUS_OK) s = call
    DO(device_queue_new(d, &q, &error));
    DO(device_queue_new(d, &side, &error));
    DO(device_queue_new(d, &last, &error));
    DO(device_mem_new(d, N * 4, &w, &error));
    DO(device_mem_new(d, N * 4, &sum, &error));
    DO(device_mem_new(d, N * 8, &ints, &error));
    DO(device_mem_new(d, step_scratch_size(RULE_lamb, N), &scratch, &error));
    DO(device_mem_new(d, N * 4, &whole, &error));
    DO(device_pin_new(d, N * 4, (void **)&host, &error));
    for (size_t i = 0; s == STATUS_OK && i < N; i++) host[i] = plain[i] = 2;
    DO(device_zero(q, w, N * 4));
    for (int i = 0; i < STATS; i++) DO(device_stats(q, w, (struct dmem){0}, DTYPE_f32, FEW, &few[i]));
    DO(device_upload(q, sum, 0, host, N * 4));
    DO(device_upload(q, w, 0, plain, 8));
    DO(device_zero(q, ints, N * 8));
    DO(device_add(q, ints, sum, DTYPE_i32, 100, &flags));
    DO(device_record(q, &mark));
    DO(device_await(side, q, mark));
    struct step step = {.rule = RULE_add, .type = DTYPE_f32, .count = N, .sum = sum, .last = sum, .from = w, .to = w,
                        .flags = &flags};
    struct step lars = {.rule = RULE_lars, .type = DTYPE_f32, .count = N, .sum = sum, .from = w, .to = whole,
                        .scratch = scratch, .flags = &flags};
    DO(device_step(side, &step));
    DO(device_step(side, &lars));
    step.count = FEW;
    DO(device_step(side, &step));
    DO(device_stats(side, w, (struct dmem){0}, DTYPE_f32, N, &stats));
    DO(device_download(side, plain, w, 0, N * 4));
    DO(device_copy(side, whole, w, N * 4));
    DO(device_download(side, host, whole, 0, N * 4));
    DO(device_record(side, &mark));
    DO(device_passed(side, &passed));
    DO(device_wait(side, mark));
    DO(device_download(last, late, w, 0, N * 4));
#undef DO
    device_queue_free(last);                     /* after which what it was given is done */
    if (s == STATUS_OK) {
        *right = stats.count == N && stats.min == 4 && stats.max == 10;
        for (size_t i = 0; i < N; i++) {
            float want = 4.0f + (i < 2 ? 2.0f : 0.0f) + (i < FEW ? 4.0f : 0.0f);
            *right &= host[i] == want && plain[i] == want && late[i] == want;
        }
        for (int i = 0; i < STATS; i++) *right &= few[i].zeros == FEW;
    }
    device_queue_free(q);
    device_queue_free(side);
    device_mem_free(&w), device_mem_free(&sum), device_mem_free(&whole), device_mem_free(&ints), device_mem_free(&scratch);
    device_pin_free(d, host);
    mem_free(plain), mem_free(late);
    return s;
}

static enum status open_card(struct device **d)
{
    return cuda_device_new(&(struct card){.number = 1, .chunk_size = 1, .slot_size = SLOT_SIZE}, d, &error);
}

/* The stand-in anew, without a device. */
static void begin(unsigned seed)
{
    device_free(open_sim(seed));
}

/* What it comes to that a call fails. One at opening that is not QUIET makes an open that fails. */
enum outcome {
    LOST,                    /* the device is: the life is told, or the next when it comes as a queue is freed */
    REFUSED,                 /* what was asked for is, and the device goes on */
    QUIET,                   /* nobody is told: it only asked, or what it gives back goes with the process */
    LOST_OR_QUIET            /* it comes before both kinds */
};

/* As in a container that may not: trainers then send through host memory, and the keys stay. */
static void fail_sharing(int why)
{
    struct device *d = open_sim(4);
    struct mem_handle handle;
    struct dmem m;

    sim_fail("cudaIpcGetMemHandle", 1, why);
    CHECK_EQ(device_shared_new(d, 1 << 20, &m, &handle, &error), STATUS_UNIMPLEMENTED);
    CHECK_SAYS(error.text, "sharing memory with another process: CUDA error");
    CHECK_EQ(sim_stats().met, 1);
    CHECK(!d->lost);
    CHECK_EQ(d->bytes_held, 0);
    m = room(d, 1 << 20);
    device_mem_free(&m);
    close_sim(d);
}

/* What the sources of the device call of CUDA that can fail. */
static const struct function {
    const char *name;
    enum outcome outcome;
    void (*fail)(int why);   /* a life does not call it: this makes it fail */
    bool takes;              /* memory: the lack of it is no loss of the device */
    bool gives;              /* what it does not give back is left over */
    const char *after;       /* is called once more when this one has found no memory, and then changes nothing */
} functions[] = {
    {.name = "cudaGetDeviceCount", .outcome = LOST}, {.name = "cudaGetDeviceProperties", .outcome = LOST},
    {.name = "cudaSetDevice", .outcome = LOST_OR_QUIET, .gives = true},
    {.name = "cudaMalloc", .outcome = LOST, .takes = true}, {.name = "cudaFree", .outcome = QUIET, .gives = true},
    {.name = "cudaMemGetInfo", .outcome = LOST, .after = "cudaMalloc"},
    {.name = "cudaHostAlloc", .outcome = LOST, .takes = true},
    {.name = "cudaFreeHost", .outcome = QUIET, .gives = true}, {.name = "cudaPointerGetAttributes", .outcome = QUIET},
    {.name = "cudaStreamCreateWithFlags", .outcome = LOST, .takes = true},
    {.name = "cudaStreamDestroy", .outcome = QUIET, .gives = true},
    {.name = "cudaStreamSynchronize", .outcome = LOST}, {.name = "cudaStreamWaitEvent", .outcome = LOST},
    {.name = "cudaDeviceSynchronize", .outcome = LOST}, {.name = "cudaEventCreateWithFlags", .outcome = LOST},
    {.name = "cudaEventDestroy", .outcome = QUIET, .gives = true}, {.name = "cudaEventRecord", .outcome = LOST},
    {.name = "cudaEventQuery", .outcome = LOST}, {.name = "cudaMemsetAsync", .outcome = LOST},
    {.name = "cudaMemcpyAsync", .outcome = LOST}, {.name = "cudaLaunchKernel", .outcome = LOST},
    {.name = "cudaIpcGetMemHandle", .fail = fail_sharing},
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0], NTH_MAX = SIM_SEEDS > 1 ? 24 : 2 };

static const struct function *function_of(const char *name)
{
    for (unsigned f = 0; f < FUNCTIONS; f++)
        if (strcmp(functions[f].name, name) == 0) return &functions[f];
    return NULL;
}

/* Whether a life and, after it, another went as they must. */
static bool went_as(enum outcome outcome, struct device *d, enum status s, bool right)
{
    bool quiet = outcome == QUIET || (outcome == LOST_OR_QUIET && s == STATUS_OK), again = false;

    enum status wanted = quiet ? STATUS_OK : outcome == REFUSED ? STATUS_RESOURCE_EXHAUSTED : STATUS_UNAVAILABLE;
    if (s != wanted && !(outcome == LOST && s == STATUS_OK)) return false;
    if (quiet && !right) return false;
    s = life(d, &again);
    if (quiet || outcome == REFUSED) return s == STATUS_OK && again && !d->lost;
    return s == STATUS_UNAVAILABLE && error.reason == REASON_DEVICE_LOST && d->lost &&
           strstr(device_error(d)->text, "CUDA error") != NULL;
}

/* One life in which the nth call of the function fails, perhaps after another call; false: it was not called so often. */
static bool failing_life(const struct function *f, unsigned seed, int nth, int why, const char *after)
{
    struct device *d = NULL;
    bool right = false, is_right;
    unsigned before_it = after != NULL;
    int64_t before = mem_live();

    begin(seed);
    if (after != NULL) sim_fail(after, 1, OUT_OF_MEMORY);
    sim_fail(f->name, nth, why);
    enum status s = open_card(&d);
    if (s != STATUS_OK) {
        is_right = f->outcome != QUIET && strstr(error.text, "CUDA error") != NULL &&
                   s == (f->takes && why == OUT_OF_MEMORY ? STATUS_RESOURCE_EXHAUSTED : STATUS_UNAVAILABLE);
    } else {
        s = life(d, &right);
        enum outcome outcome = after != NULL || (f->takes && why == OUT_OF_MEMORY) ? REFUSED : f->outcome;
        is_right = sim_stats().met > before_it ? went_as(outcome, d, s, right) : before_it || (s == STATUS_OK && right);
        device_free(d);
    }
    struct cusim_stats left = sim_stats();
    if (!f->gives) is_right &= left.live_bytes + left.live_pinned + left.live_streams + left.live_events == 0;
    if (!is_right || left.mistakes > 0)
        test_fail(__FILE__, __LINE__, "call %d of %s, seed %u: %s; %s", nth, f->name, seed, error.text, sim_remains());
    CHECK_EQ(mem_live(), before);
    CHECK_EQ(sim_plugin()->mem_live(), 0);
    return left.met > before_it;
}

/* Whether a call comes may depend on what runs when: then on the seed. */
static void fail_each(const struct function *f, int why)
{
    enum { SEEDS = 30 };
    unsigned seed = 3;

    while (!failing_life(f, seed, 1, why, NULL))
        if (++seed == 3 + SEEDS) test_fail(__FILE__, __LINE__, "%s is never called", f->name);
    for (int nth = 2; nth <= NTH_MAX && failing_life(f, seed + (unsigned)nth % 3, nth, why, NULL); nth += nth < 8 ? 1 : 7) continue;
}

TEST(every_failing_call_of_cuda_has_its_outcome)
{
    if (SIM_RACES_ONLY) test_skip("the builds without the thread sanitizer do that");
    need_sim();
    for (unsigned f = 0; f < FUNCTIONS; f++) {
        if (functions[f].fail != NULL) {
            functions[f].fail(UNKNOWN_ERROR);
            functions[f].fail(OUT_OF_MEMORY);
            continue;
        }
        fail_each(&functions[f], UNKNOWN_ERROR);
        if (functions[f].takes) fail_each(&functions[f], OUT_OF_MEMORY);
        if (functions[f].after != NULL) CHECK(failing_life(&functions[f], 3, 2, UNKNOWN_ERROR, functions[f].after));
    }
}

/* Those with tests of their own: see sim_calls. */
static bool is_elsewhere(const char *source)
{
    return strcmp(source, "cuda_trainer") == 0 || strcmp(source, "cuda_program") == 0;
}

TEST(no_function_of_cuda_that_the_device_calls_is_left_out)
{
    bool called[FUNCTIONS] = {false};

    need_sim();
    for (const struct cusim_call *c = sim_calls(); c->source != NULL; c++) {
        const struct function *f = function_of(c->function);
        if (is_elsewhere(c->source)) continue;
        if (f == NULL) test_fail(__FILE__, __LINE__, "%s.c calls %s, which has no row", c->source, c->function);
        called[f - functions] = true;
    }
    for (unsigned f = 0; f < FUNCTIONS; f++)
        if (!called[f]) test_fail(__FILE__, __LINE__, "%s has a row, and nobody calls it", functions[f].name);
}

/* ---- what the plug-in forgets ------------------------------------------------------------------------------------------ */

/* Every call of one function says that all is well and does nothing, in a life under each order. Whether one of the seeds shows
 * it, in a wrong result, a status or a mistake that the stand-in counts. */
static bool is_found(const char *function, unsigned seeds)
{
    bool shown = false;

    for (unsigned seed = 0; seed < seeds && !shown; seed++) {
        struct device *d = NULL;
        bool right = false;
        begin(seed);
        CHECK_OK(open_card(&d), &error);
        if (function != NULL) sim_skip(function, 0);
        shown = life(d, &right) != STATUS_OK || !right;
        device_free(d);
        shown |= sim_stats().mistakes > 0;
    }
    return shown;
}

TEST(a_life_without_a_fault_shows_none)
{
    need_sim();
    CHECK(!is_found(NULL, SIM_SEEDS > 1 ? SIM_ORDERS : 1));
}

/* The plug-in without its waits, marks and clearing is not what the tests pass. */
TEST(a_plug_in_that_forgets_to_order_its_work_is_found)
{
    static const char *const forgotten[] = {"cudaStreamWaitEvent", "cudaEventRecord", "cudaEventQuery", "cudaStreamSynchronize",
                                            "cudaDeviceSynchronize", "cudaMemsetAsync", "cudaMemcpyAsync", "cudaLaunchKernel"};

    need_sim();
    if (SIM_SEEDS == 1) test_skip("wrong values are looked for; a sanitizer would stop at the first race");
    for (size_t i = 0; i < sizeof forgotten / sizeof forgotten[0]; i++)
        if (!is_found(forgotten[i], 3 * SIM_ORDERS)) test_fail(__FILE__, __LINE__, "without %s all is well", forgotten[i]);
}

TEST(a_kernel_that_fails_loses_the_device_for_ever)
{
    need_sim();
    for (unsigned seed = 3; seed < 6; seed++)
        for (int nth = 1; nth <= 5; nth++) {
            struct device *d = open_sim(seed);
            bool right;
            sim_fault_kernel(nth, 0);
            CHECK_EQ(life(d, &right), STATUS_UNAVAILABLE);
            CHECK_EQ(life(d, &right), STATUS_UNAVAILABLE);
            CHECK_EQ(error.reason, REASON_DEVICE_LOST);
            CHECK_SAYS(error.text, "device is lost: ");
            CHECK_SAYS(error.text, "CUDA error 700 cudaErrorIllegalAddress");
            device_free(d);
            CHECK_EQ(sim_plugin()->mem_live(), 0);
        }
}

TEST(every_failing_allocation_of_the_plug_in_is_a_status)
{
    if (SIM_RACES_ONLY) test_skip("the builds without the thread sanitizer do that");
    need_sim();
    for (uint64_t n = 1;; n += SIM_SEEDS > 1 ? 1 : 5) {
        struct device *d = NULL;
        bool right = false;

        begin(4);
        sim_plugin()->mem_fault_at(n);
        enum status s = open_card(&d);
        bool opened = s == STATUS_OK;
        if (opened) s = life(d, &right);
        bool hit = sim_plugin()->mem_fault_hit();
        sim_plugin()->mem_fault_at(0);
        if (opened && hit && s != STATUS_OK) CHECK_EQ(life(d, &right), STATUS_OK);
        if (opened) device_free(d);
        CHECK_EQ(sim_plugin()->mem_live(), 0);
        CHECK(s == STATUS_OK || s == STATUS_RESOURCE_EXHAUSTED);
        if (!hit) break;
        CHECK(n < 200);
    }
}
