/* What every device must do, run on each of a table of devices; then what single ones promise beside that. */
#include "gpu/array.h"
#include "gpu/half.h"
#include "gpu/loops.h"
#include "gpu/whole.h"
#include "service/base/mem.h"
#include "tests/lib/faulty_device.h"
#include "tests/lib/late_device.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* One element of a rule at a time, to compare bits with. */
#define REAL float
#define REAL_ROOT sqrtf
#define NAME(x) x##_f32
#include "gpu/rules.h"
#undef REAL
#undef REAL_ROOT
#undef NAME
#define REAL double
#define REAL_ROOT sqrt
#define NAME(x) x##_f64
#include "gpu/rules.h"
#undef REAL
#undef REAL_ROOT
#undef NAME

enum { CPU, LATE, FAULTY, SIM, CPUS, LATES, MIXED, RESORT };

static const struct {
    int kind;
    unsigned n;              /* threads, or the seed; of several: how many */
} devices[] = {{CPU, 1}, {CPU, 2}, {CPU, 4}, {LATE, 1}, {LATE, 2}, {LATE, 3}, {FAULTY, 2}, {SIM, 4}, {SIM, 5}, {SIM, 6},
               {CPUS, 2}, {CPUS, 3}, {LATES, 2}, {LATES, 3}, {MIXED, 2}, {RESORT, 2}};

enum { DEVICES = sizeof devices / sizeof devices[0] };

static struct error error;

/* Where a test's memory lies: on several devices in parts, else 0. Drawn anew for each device. */
static uint32_t home;

/* Several as one, with parts that are small and of an odd number of alignments; RESORT: late ones and, for the memory of the
 * test, the CPU. */
static struct device *array_open(int kind, unsigned n)
{
    struct device *members[3], *cpu = NULL, *d = NULL;

    if (kind == RESORT) CHECK_OK(cpu_device_new(2, &cpu, &error), &error);
    for (unsigned i = 0; i < n; i++) {
        bool late = kind == LATES || kind == RESORT || (kind == MIXED && i > 0);
        if (late) CHECK_OK(late_device_new(10 * n + i, &members[i], &error), &error);
        else CHECK_OK(cpu_device_new(n, &members[i], &error), &error);
    }
    struct array_config c = {.members = members, .count = n, .part = 960 + n * DMEM_ALIGN, .cpu = cpu};
    CHECK_OK(array_device_new(&c, &d, &error), &error);
    return d;
}

static struct device *device_open(int kind, unsigned n)
{
    struct device *d = NULL, *outer = NULL;

    if (kind >= CPUS) return array_open(kind, n);
    if (kind == SIM) CHECK_OK(sim_device_new(n, &d, &error), &error);
    else if (kind == LATE) CHECK_OK(late_device_new(n, &d, &error), &error);
    else CHECK_OK(cpu_device_new(n, &d, &error), &error);
    if (kind != FAULTY) return d;
    CHECK_OK(faulty_device_new(d, &outer, &error), &error);
    return outer;
}

/* The thread sanitizer looks at those that have threads of their own, one of each kind; the stand-in's are in test_cuda.c and the
 * store's tests, as it has work for each thread of a kernel. */
static bool has_threads(unsigned i)
{
    return devices[i].n == 2 && (devices[i].kind == CPU || devices[i].kind == CPUS || devices[i].kind == MIXED);
}

static bool there_is(unsigned i)
{
    if (SIM_RACES_ONLY) return has_threads(i);
    if (sim_replaced()) return devices[i].kind == SIM && devices[i].n == 4;
    return devices[i].kind != SIM || (devices[i].n < 4 + SIM_SEEDS && sim_present());
}

static bool is_cuda(const struct device *d) { return strncmp(device_kind(d), "cuda", 4) == 0; }

/* On the stand-in under a sanitizer each thread of a kernel with barriers costs as much as a thread of the machine, and to the
 * thread sanitizer all elements of all devices do. There a test takes each n-th case. */
static size_t each(const struct device *d, size_t n) { return SIM_RACES_ONLY || (SIM_SEEDS == 1 && is_cuda(d)) ? n : 1; }

static void check_clean(int kind)
{
    const char *remains = kind == SIM ? sim_remains() : NULL;
    if (remains != NULL) test_fail(__FILE__, __LINE__, "the stand-in for CUDA: %s", remains);
}

static void on_each_device(void (*body)(struct device *d))
{
    for (unsigned i = 0; i < DEVICES; i++) {
        int64_t before = mem_live();
        if (!there_is(i)) continue;
        struct device *d = device_open(devices[i].kind, devices[i].n);
        home = d->cpu != NULL ? HOME_ON_CPU : device_home_new(d, SIZE_MAX, false, 0);
        body(d);
        home = 0;
        CHECK_EQ(d->bytes_held, 0);
        device_free(d);
        CHECK_EQ(mem_live(), before);
        check_clean(devices[i].kind);
    }
}

#define DEVICE_TEST(name)                                  \
    static void on_device_##name(struct device *d);        \
    TEST(name) { on_each_device(on_device_##name); }       \
    static void on_device_##name(struct device *d)

/* ---- helpers ---------------------------------------------------------------------------------------------------- */

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

/* Room for elements of a type, which on several devices is cut. */
static struct dmem room_as(struct device *d, enum dtype t, size_t size)
{
    struct dmem m;
    CHECK_OK(device_mem_new_at(d, size, mem_place_of(home, dtype_size(t)), &m, &error), &error);
    return m;
}

static void finish(struct queue *q)
{
    uint64_t mark;
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
}

static struct dmem bring(struct queue *q, const void *from, size_t size)
{
    struct dmem m = room(q->device, size);
    CHECK_EQ(device_upload(q, m, 0, from, size), STATUS_OK);
    finish(q);
    return m;
}

static struct dmem bring_as(struct queue *q, enum dtype t, const void *from, size_t size)
{
    struct dmem m = room_as(q->device, t, size);
    CHECK_EQ(device_upload(q, m, 0, from, size), STATUS_OK);
    finish(q);
    return m;
}

static void fetch(struct queue *q, void *to, struct dmem from, size_t size)
{
    CHECK_EQ(device_download(q, to, from, 0, size), STATUS_OK);
    finish(q);
}

static void *host_room(size_t size)
{
    void *p = mem_zero(size);
    CHECK(p != NULL);
    return p;
}

/* Numbers that fit every type and whose sums of a few are exact in f32. */
static void set(enum dtype t, void *at, size_t i, int64_t v)
{
    switch (t) {
    case DTYPE_f32: ((float *)at)[i] = (float)v / 8; break;
    case DTYPE_f64: ((double *)at)[i] = (double)v / 7; break;
    case DTYPE_f16: ((uint16_t *)at)[i] = half_narrow_f16((float)v / 8); break;
    case DTYPE_bf16: ((uint16_t *)at)[i] = half_narrow_bf16((float)v / 8); break;
    case DTYPE_i8: ((int8_t *)at)[i] = (int8_t)v; break;
    case DTYPE_u8: ((uint8_t *)at)[i] = (uint8_t)v; break;
    case DTYPE_i32: ((int32_t *)at)[i] = (int32_t)v; break;
    default: ((int64_t *)at)[i] = v; break;
    }
}

/* An element of a type that is computed in f32. */
static float single(enum dtype t, const void *at, size_t i)
{
    switch (t) {
    case DTYPE_f16: return half_widen_f16(((const uint16_t *)at)[i]);
    case DTYPE_bf16: return half_widen_bf16(((const uint16_t *)at)[i]);
    default: return ((const float *)at)[i];
    }
}

static void set_single(enum dtype t, void *at, size_t i, float v)
{
    switch (t) {
    case DTYPE_f16: ((uint16_t *)at)[i] = half_narrow_f16(v); break;
    case DTYPE_bf16: ((uint16_t *)at)[i] = half_narrow_bf16(v); break;
    default: ((float *)at)[i] = v;
    }
}

static int64_t integer(enum dtype t, const void *at, size_t i)
{
    switch (t) {
    case DTYPE_i8: return ((const int8_t *)at)[i];
    case DTYPE_u8: return ((const uint8_t *)at)[i];
    case DTYPE_i32: return ((const int32_t *)at)[i];
    default: return ((const int64_t *)at)[i];
    }
}

static void set_random(enum dtype t, void *at, size_t count, uint64_t *random)
{
    for (size_t i = 0; i < count; i++) set(t, at, i, (int64_t)(rng_next(random) % 31));
}

static const enum dtype types[] = {DTYPE_f32, DTYPE_f64, DTYPE_f16, DTYPE_bf16, DTYPE_i8, DTYPE_u8, DTYPE_i32,
                                   DTYPE_i64};
enum { TYPES = sizeof types / sizeof types[0], LARGE = (1 << 20) + 3, MIDDLE = 3 * (64 << 10) + 5 };

/* ---- memory and copies ------------------------------------------------------------------------------------------ */

DEVICE_TEST(what_is_uploaded_comes_back_from_any_offset)
{
    struct queue *q = open_queue(d);
    struct dmem m = room_as(d, DTYPE_f32, 300);
    char in[200], out[100] = {0};

    for (size_t i = 0; i < sizeof in; i++) in[i] = (char)i;
    CHECK_EQ(device_zero(q, m, 300), STATUS_OK);
    CHECK_EQ(device_upload(q, m, 7, in, 200), STATUS_OK);
    CHECK_EQ(device_download(q, out, m, 19, 100), STATUS_OK);
    finish(q);
    CHECK(memcmp(out, in + 12, 100) == 0);
    CHECK_EQ(device_download(q, out, m, 206, 94), STATUS_OK);
    finish(q);
    CHECK_EQ(out[0], in[199]);
    for (size_t i = 1; i < 94; i++) CHECK_EQ(out[i], 0);
    device_mem_free(&m);
    device_queue_free(q);
}

DEVICE_TEST(large_copies_are_whole)
{
    size_t size = (5u << 20) + 11;
    struct queue *q = open_queue(d);
    struct dmem a = room_as(d, DTYPE_f16, size), b = room_as(d, DTYPE_f16, size);
    unsigned char *in = host_room(size), *out = host_room(size);

    for (size_t i = 0; i < size; i++) in[i] = (unsigned char)(i * 7 + i / 251);
    CHECK_EQ(device_upload(q, a, 0, in, size), STATUS_OK);
    CHECK_EQ(device_zero(q, b, size), STATUS_OK);
    CHECK_EQ(device_copy(q, b, a, size - 5), STATUS_OK);
    fetch(q, out, b, size);
    CHECK(memcmp(out, in, size - 5) == 0);
    for (size_t i = size - 5; i < size; i++) CHECK_EQ(out[i], 0);
    device_mem_free(&a), device_mem_free(&b);
    device_queue_free(q);
    mem_free(in), mem_free(out);
}

DEVICE_TEST(memory_is_aligned_and_counted)
{
    struct dmem a = room(d, 1), b = room(d, 1000), none = {0};
    void *pin;

    CHECK_EQ((uintptr_t)a.at % DMEM_ALIGN_SMALL, 0);
    CHECK_EQ((uintptr_t)b.at % DMEM_ALIGN, 0);
    CHECK_EQ(d->bytes_held, 1001);
    device_mem_free(&a);
    CHECK_EQ(d->bytes_held, 1000);
    CHECK(a.device == NULL && a.at == NULL && a.size == 0);
    device_mem_free(&b);
    device_mem_free(&none);
    a = room(d, 0);
    CHECK_EQ(a.size, 1);
    device_mem_free(&a);
    CHECK_OK(device_pin_new(d, 5000, &pin, &error), &error);
    memset(pin, 1, 5000);
    device_pin_free(d, pin);
    device_pin_free(d, NULL);
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

DEVICE_TEST(marks_rise_and_pass_in_order)
{
    size_t count = MIDDLE;
    struct queue *q = open_queue(d);
    struct dmem m = room_as(d, DTYPE_f32, count * 4);
    uint64_t mark[6], passed = 99, before = 0;

    CHECK_EQ(device_passed(q, &passed), STATUS_OK);
    CHECK_EQ(passed, 0);
    CHECK_EQ(device_wait(q, 0), STATUS_OK);
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(device_zero(q, m, i % 2 ? 16 : count * 4), STATUS_OK);
        CHECK_EQ(device_record(q, &mark[i]), STATUS_OK);
        CHECK(i == 0 || mark[i] > mark[i - 1]);
    }
    CHECK_EQ(device_wait(q, mark[3]), STATUS_OK);
    CHECK_EQ(device_passed(q, &before), STATUS_OK);
    CHECK(before >= mark[3] && before <= mark[5]);
    CHECK_EQ(device_wait(q, mark[5]), STATUS_OK);
    CHECK_EQ(device_wait(q, mark[0]), STATUS_OK);
    CHECK_EQ(device_passed(q, &passed), STATUS_OK);
    CHECK_EQ(passed, mark[5]);
    device_mem_free(&m);
    device_queue_free(q);
}

DEVICE_TEST(passed_comes_to_every_mark_without_waiting)
{
    struct queue *q = open_queue(d);
    struct dmem m = room_as(d, DTYPE_f32, 4 * MIDDLE);
    uint64_t mark, passed = 0;

    for (int i = 0; i < 5; i++) CHECK_EQ(device_zero(q, m, 4 * MIDDLE), STATUS_OK);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    while (passed < mark) CHECK_EQ(device_passed(q, &passed), STATUS_OK);
    device_mem_free(&m);
    device_queue_free(q);
}

DEVICE_TEST(a_queue_is_idle_only_when_all_its_marks_have_passed)
{
    struct queue *q = open_queue(d);
    struct dmem m = room_as(d, DTYPE_f32, 4 * MIDDLE);
    uint64_t mark, passed = 0;

    for (int i = 0; i < 30; i++) {
        CHECK_EQ(device_zero(q, m, i % 3 > 0 ? 16 : 4 * MIDDLE), STATUS_OK);
        CHECK_EQ(device_record(q, &mark), STATUS_OK);
        bool idle = device_idle(q);
        CHECK_EQ(device_passed(q, &passed), STATUS_OK);
        CHECK(!idle || passed == mark);
        if (i % 5 == 0) CHECK_EQ(device_wait(q, mark), STATUS_OK);
    }
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
    while (d->ops->idle != NULL && !device_idle(q)) continue;      /* so that the caller's work needs no marks for ever */
    device_mem_free(&m);
    device_queue_free(q);
}

DEVICE_TEST(a_queue_that_is_freed_has_done_its_work)
{
    size_t size = 4 * MIDDLE;
    struct queue *q = open_queue(d), *small = open_queue(d);
    struct dmem m = room(d, size), n = room(d, 16);
    unsigned char *out = host_room(size), *pin;
    char byte = 0;

    CHECK_OK(device_pin_new(d, 16, (void **)&pin, &error), &error);
    memset(out, 1, size);
    CHECK_EQ(device_zero(q, m, size), STATUS_OK);
    CHECK_EQ(device_download(q, out, m, 0, size), STATUS_OK);
    device_queue_free(q);
    for (size_t i = 0; i < size; i++) CHECK_EQ(out[i], 0);
    memcpy(pin, "abc", 4);
    CHECK_EQ(device_upload(small, n, 0, pin, 4), STATUS_OK);
    CHECK_EQ(device_download(small, &byte, n, 1, 1), STATUS_OK);
    device_queue_free(small);
    CHECK_EQ(byte, 'b');
    device_mem_free(&m), device_mem_free(&n);
    device_pin_free(d, pin);
    mem_free(out);
}

/* Random programs over a few queues and buffers, in which each call awaits what it depends on, against the same
 * program done at once on the host. */
enum { QUEUES = 3, BUFFERS = 5, PROGRAM = 60 };

struct machine {
    struct queue *q[QUEUES];
    struct dmem buffer[BUFFERS];
    float *model[BUFFERS], *source, *out;
    uint64_t mark[QUEUES];           /* of the queue's last call */
    int writer[BUFFERS];             /* queue, or -1 */
    uint64_t written[BUFFERS];
    uint64_t read[BUFFERS][QUEUES];
    size_t count;
    uint64_t random;
    uint32_t flags;
    bool careless;                   /* leaves the awaits out */
};

static void depend(struct machine *m, int q, int buffer, bool write)
{
    if (m->careless) return;
    if (m->writer[buffer] >= 0)
        CHECK_EQ(device_await(m->q[q], m->q[m->writer[buffer]], m->written[buffer]), STATUS_OK);
    for (int other = 0; write && other < QUEUES; other++)
        CHECK_EQ(device_await(m->q[q], m->q[other], m->read[buffer][other]), STATUS_OK);
}

static void program_call(struct machine *m, int q, int to, int from, unsigned kind, size_t count)
{
    switch (kind) {
    case 0:
        CHECK_EQ(device_copy(m->q[q], m->buffer[to], m->buffer[from], count * 4), STATUS_OK);
        memcpy(m->model[to], m->model[from], count * 4);
        break;
    case 1:
        CHECK_EQ(device_upload(m->q[q], m->buffer[to], 4, m->source, (count - 1) * 4), STATUS_OK);
        memcpy(m->model[to] + 1, m->source, (count - 1) * 4);
        break;
    default:
        CHECK_EQ(device_add(m->q[q], m->buffer[to], m->buffer[from], DTYPE_f32, count, &m->flags), STATUS_OK);
        for (size_t i = 0; i < count; i++) m->model[to][i] += m->model[from][i];
    }
}

static void program_step(struct machine *m)
{
    int q = (int)(rng_next(&m->random) % QUEUES), to = (int)(rng_next(&m->random) % BUFFERS);
    int from = (to + 1 + (int)(rng_next(&m->random) % (BUFFERS - 1))) % BUFFERS;
    size_t count = rng_next(&m->random) % 2 ? m->count : 50;

    depend(m, q, from, false);
    depend(m, q, to, true);
    program_call(m, q, to, from, (unsigned)(rng_next(&m->random) % 3), count);
    CHECK_EQ(device_record(m->q[q], &m->mark[q]), STATUS_OK);
    m->writer[to] = q;
    m->written[to] = m->mark[q];
    m->read[from][q] = m->mark[q];
}

static void machine_open(struct machine *m, struct device *d, uint64_t seed, size_t count)
{
    *m = (struct machine){.count = count, .random = seed};
    m->source = host_room(count * 4);
    m->out = host_room(count * 4);
    set_random(DTYPE_f32, m->source, count, &m->random);
    for (int i = 0; i < QUEUES; i++) m->q[i] = open_queue(d);
    for (int i = 0; i < BUFFERS; i++) {
        m->writer[i] = -1;
        m->model[i] = host_room(count * 4);
        set_random(DTYPE_f32, m->model[i], count, &m->random);
        m->buffer[i] = bring_as(m->q[0], DTYPE_f32, m->model[i], count * 4);
    }
}

/* Closes; answers whether the device came to what the host did. */
static bool machine_agrees(struct machine *m)
{
    bool same = true;

    for (int i = 0; i < QUEUES; i++) finish(m->q[i]);
    for (int i = 0; i < BUFFERS; i++) {
        fetch(m->q[0], m->out, m->buffer[i], m->count * 4);
        same = same && memcmp(m->out, m->model[i], m->count * 4) == 0;
        device_mem_free(&m->buffer[i]);
        mem_free(m->model[i]);
    }
    for (int i = 0; i < QUEUES; i++) device_queue_free(m->q[i]);
    mem_free(m->source);
    mem_free(m->out);
    return same;
}

DEVICE_TEST(queues_are_in_order_and_awaits_are_respected)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct machine m;
        machine_open(&m, d, seed, seed % 2 ? 200 : MIDDLE);
        for (int i = 0; i < PROGRAM; i++) program_step(&m);
        CHECK(machine_agrees(&m));
    }
}

TEST(the_late_device_finds_forgotten_awaits)
{
    unsigned found = 0;

    for (unsigned seed = 1; seed <= 10; seed++) {
        struct device *d = device_open(LATE, seed);
        struct machine m;
        machine_open(&m, d, seed, 60);
        m.careless = true;
        for (int i = 0; i < PROGRAM; i++) program_step(&m);
        found += !machine_agrees(&m);
        device_free(d);
    }
    CHECK(found >= 8);
}

/* b is held up by c, so that its await of a still stands when a goes. */
static void count_streams(void *ctx, void *stream) { *(unsigned *)ctx += stream != NULL; }

DEVICE_TEST(queues_that_are_streams_take_calls_and_others_say_that_they_are_none)
{
    bool has_streams = strncmp(device_kind(d), "cuda", 4) == 0;
    struct queue *q = open_queue(d);
    unsigned count = 0;

    CHECK_EQ(device_queue_call(q, count_streams, &count), has_streams ? STATUS_OK : STATUS_UNIMPLEMENTED);
    if (!has_streams) CHECK_SAYS(device_error(d)->text, "is no stream");
    finish(q);
    CHECK_EQ(count, has_streams);
    device_queue_free(q);
}

DEVICE_TEST(a_queue_may_go_while_others_await_its_marks)
{
    struct queue *a = open_queue(d), *b = open_queue(d), *c = open_queue(d);
    struct dmem m = room_as(d, DTYPE_f32, 4 * MIDDLE), busy = room_as(d, DTYPE_f32, 4 * LARGE);
    uint64_t mark, late;
    char byte = 1;

    for (int i = 0; i < 20; i++) CHECK_EQ(device_zero(c, busy, 4 * LARGE), STATUS_OK);
    CHECK_EQ(device_record(c, &late), STATUS_OK);
    CHECK_EQ(device_zero(a, m, 4 * MIDDLE), STATUS_OK);
    CHECK_EQ(device_record(a, &mark), STATUS_OK);
    CHECK_EQ(device_await(b, c, late), STATUS_OK);
    CHECK_EQ(device_await(b, a, mark), STATUS_OK);
    CHECK_EQ(device_upload(b, m, 0, "x", 1), STATUS_OK);
    CHECK_EQ(device_download(b, &byte, m, 0, 1), STATUS_OK);
    device_queue_free(a);
    device_queue_free(c);
    finish(b);
    CHECK_EQ(byte, 'x');
    device_queue_free(b);
    device_mem_free(&m), device_mem_free(&busy);
}

static void count_up(void *ctx) { atomic_fetch_add((atomic_int *)ctx, 1); }

TEST(a_mark_that_passes_on_its_own_is_told)
{
    for (unsigned i = 0; i < DEVICES; i++) {
        if (!there_is(i)) continue;
        struct device *d = device_open(devices[i].kind, devices[i].n);
        atomic_int told = 0;
        d->notify = count_up;
        d->notify_ctx = &told;
        struct queue *q = open_queue(d);
        struct dmem m = room(d, 4 * LARGE);
        uint64_t mark, passed = 0;
        CHECK_EQ(device_zero(q, m, 4 * LARGE), STATUS_OK);
        CHECK_EQ(device_record(q, &mark), STATUS_OK);
        while (passed < mark) CHECK_EQ(device_passed(q, &passed), STATUS_OK);
        device_queue_free(q);
        device_mem_free(&m);
        device_free(d);
        CHECK(atomic_load(&told) > 0 || devices[i].kind != LATE); /* the CPU may be done before it is asked */
        if (devices[i].kind == CPU) CHECK(atomic_load(&told) <= 1);
    }
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */

static void widen_and_add(struct queue *q, enum dtype t, size_t count)
{
    size_t size = count * dtype_size(t), sum_size = count * dtype_size(dtype_sum(t));
    char *x = host_room(size), *y = host_room(size), *got = host_room(sum_size), *want = host_room(sum_size);
    uint64_t random = count;
    uint32_t flags = 0;

    set_random(t, x, count, &random);
    set_random(t, y, count, &random);
    for (size_t i = 0; i < count; i++) {
        if (dtype_sum(t) == DTYPE_f32) ((float *)want)[i] = single(t, x, i) + single(t, y, i);
        else if (t == DTYPE_f64) ((double *)want)[i] = ((double *)x)[i] + ((double *)y)[i];
        else ((int64_t *)want)[i] = integer(t, x, i) + integer(t, y, i);
    }
    struct dmem a = bring_as(q, t, x, size), b = bring_as(q, t, y, size), sum = room_as(q->device, dtype_sum(t), sum_size);
    CHECK_EQ(device_widen(q, sum, a, t, count), STATUS_OK);
    CHECK_EQ(device_add(q, sum, b, t, count, &flags), STATUS_OK);
    fetch(q, got, sum, sum_size);
    CHECK(memcmp(got, want, sum_size) == 0);
    CHECK_EQ(flags, 0);
    device_mem_free(&a), device_mem_free(&b), device_mem_free(&sum);
    mem_free(x), mem_free(y), mem_free(got), mem_free(want);
}

DEVICE_TEST(widen_and_add_are_right_for_every_type_and_size)
{
    struct queue *q = open_queue(d);

    for (int t = 0; t < TYPES; t++) {
        for (size_t count = 1; count <= 100; count += each(d, 7)) widen_and_add(q, types[t], count);
        widen_and_add(q, types[t], t < 5 ? LARGE : MIDDLE);
    }
    device_queue_free(q);
}

DEVICE_TEST(a_sum_that_leaves_i64_is_told)
{
    struct queue *q = open_queue(d);
    int64_t sum[3] = {INT64_MAX - 1, INT64_MIN, 0}, one[3] = {1, 0, INT64_MIN}, more[3] = {1, 0, 0};
    int64_t less[3] = {0, -1, 0};
    struct dmem s = bring(q, sum, 24), a = bring(q, one, 24), b = bring(q, more, 24), c = bring(q, less, 24);
    uint32_t flags = 0, again = 0;

    CHECK_EQ(device_add(q, s, a, DTYPE_i64, 3, &flags), STATUS_OK);
    finish(q);
    CHECK_EQ(flags, 0);
    CHECK_EQ(device_add(q, s, b, DTYPE_i64, 3, &flags), STATUS_OK);
    CHECK_EQ(device_upload(q, s, 0, sum, 24), STATUS_OK);
    CHECK_EQ(device_add(q, s, c, DTYPE_i64, 3, &again), STATUS_OK);
    finish(q);
    CHECK_EQ(flags, WORK_OVERFLOW);
    CHECK_EQ(again, WORK_OVERFLOW);
    device_mem_free(&s), device_mem_free(&a), device_mem_free(&b), device_mem_free(&c);
    device_queue_free(q);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static double as_double(enum dtype t, const void *at, size_t i)
{
    if (t == DTYPE_f64) return ((const double *)at)[i];
    return dtype_is_integer(t) ? (double)integer(t, at, i) : (double)single(t, at, i);
}

/* Any bits at all, and now and then a number that is near 1. */
static void set_any(enum dtype t, void *at, size_t i, uint64_t *random)
{
    uint64_t bits = rng_next(random);

    if (rng_next(random) % 4 == 0) set(t, at, i, (int64_t)(bits % 31) - (t == DTYPE_u8 ? 0 : 15));
    else memcpy((char *)at + i * dtype_size(t), &bits, dtype_size(t));
}

/* By frexp, in long double, one after the other. */
struct expected {
    struct stats s;
    long double sum, sum_squares, size;
};

static void expect_element(struct expected *want, double x)
{
    struct stats *s = &want->s;
    int exponent = 0;

    s->count++;
    if (isnan(x)) s->nans++;
    else if (isinf(x)) s->infinities++;
    if (!isfinite(x)) return;
    if (s->count - s->nans - s->infinities == 1) s->min = s->max = x;
    s->min = fmin(s->min, x);
    s->max = fmax(s->max, x);
    want->sum += x;
    want->sum_squares += (long double)x * x;
    want->size += fabsl(x);
    frexp(x, &exponent);          /* |x| is 2^(exponent - 1) or more, and less than 2^exponent */
    if (x == 0) s->zeros++;
    else s->bins[exponent <= -44 ? 0 : exponent > 18 ? 63 : exponent + 44]++;
}

static void check_stats(const struct stats *got, const struct expected *want)
{
    const struct stats *s = &want->s;
    long double unit = 0x1p-53L, n = (long double)s->count;

    CHECK_EQ(got->count, s->count);
    CHECK_EQ(got->nans, s->nans);
    CHECK_EQ(got->infinities, s->infinities);
    CHECK_EQ(got->zeros, s->zeros);
    for (int i = 0; i < STATS_BINS; i++) CHECK_EQ(got->bins[i], s->bins[i]);
    CHECK(got->min == s->min || (isnan(got->min) && isnan(s->min)));
    CHECK(got->max == s->max || (isnan(got->max) && isnan(s->max)));
    CHECK(!(got->min == 0 && signbit(got->min)) && !(got->max == 0 && signbit(got->max)));
    if (want->sum_squares > (long double)DBL_MAX) CHECK(isinf(got->sum_squares));
    else CHECK(fabsl(got->sum_squares - want->sum_squares) <= (n + 1) * unit * want->sum_squares + n * 0x1p-1074L);
    if (want->size <= (long double)DBL_MAX) CHECK(fabsl(got->sum - want->sum) <= n * unit * want->size);
}

static void stats_of(struct queue *q, enum dtype t, const void *a, const void *minus, size_t count)
{
    size_t size = count * dtype_size(t);
    struct dmem m = bring_as(q, t, a, size), by = minus != NULL ? bring_as(q, t, minus, size) : (struct dmem){0};
    struct expected want = {.s = {.min = NAN, .max = NAN}};
    struct stats got;

    memset(&got, 0xa5, sizeof got);
    CHECK_EQ(device_stats(q, m, by, t, count, &got), STATUS_OK);
    finish(q);
    for (size_t i = 0; i < count; i++)
        expect_element(&want, as_double(t, a, i) - (minus != NULL ? as_double(t, minus, i) : 0));
    check_stats(&got, &want);
    device_mem_free(&m), device_mem_free(&by);
}

static void stats_of_random(struct queue *q, enum dtype t, size_t count)
{
    char *a = host_room(count * 8), *minus = host_room(count * 8);
    uint64_t random = count;

    for (size_t i = 0; i < count; i++) set_any(t, a, i, &random), set_any(t, minus, i, &random);
    stats_of(q, t, a, NULL, count);
    stats_of(q, t, a, minus, count);
    mem_free(a), mem_free(minus);
}

DEVICE_TEST(statistics_are_right_for_every_type_and_size)
{
    struct queue *q = open_queue(d);

    for (int t = 0; t < TYPES; t++) {
        for (size_t count = 1; count <= 40; count += each(d, 13)) stats_of_random(q, types[t], count);
        stats_of_random(q, types[t], 1023), stats_of_random(q, types[t], 1025), stats_of_random(q, types[t], MIDDLE);
    }
    device_queue_free(q);
}

/* Each power of two and its neighbours: a bin has its lower edge and not its upper one. */
DEVICE_TEST(bins_have_their_lower_edge)
{
    struct queue *q = open_queue(d);
    double x[6 * 2200];
    size_t n = 0;

    for (int e = -1074; e <= 1023; e++) {
        double edge = ldexp(1, e);
        x[n++] = edge, x[n++] = -edge, x[n++] = nextafter(edge, 0), x[n++] = nextafter(edge, INFINITY);
    }
    x[n++] = DBL_MAX, x[n++] = -INFINITY, x[n++] = -0.0, x[n++] = NAN;
    stats_of(q, DTYPE_f64, x, NULL, n);
    device_queue_free(q);
}

DEVICE_TEST(statistics_of_special_numbers)
{
    struct queue *q = open_queue(d);
    float nothing[3] = {NAN, INFINITY, -INFINITY}, zeros[4] = {-0.0f, 0, -0.0f, 0}, same[2] = {INFINITY, 3};
    double large[2] = {1e200, -1e200};
    int64_t far[2] = {INT64_MAX, INT64_MIN}, away[2] = {INT64_MIN, INT64_MAX};

    stats_of(q, DTYPE_f32, nothing, NULL, 3);
    stats_of(q, DTYPE_f32, zeros, NULL, 4);
    stats_of(q, DTYPE_f32, same, same, 2);         /* infinity - infinity is NaN */
    stats_of(q, DTYPE_f64, large, NULL, 2);
    stats_of(q, DTYPE_i64, far, away, 2);          /* further apart than an i64 is long */
    device_queue_free(q);
}

DEVICE_TEST(statistics_are_of_what_was_there_in_the_order_of_the_queue)
{
    struct queue *q = open_queue(d);
    float *ones = host_room(4 * MIDDLE);
    struct stats first, second, none;

    for (size_t i = 0; i < MIDDLE; i++) ones[i] = 1;
    struct dmem m = bring_as(q, DTYPE_f32, ones, 4 * MIDDLE);
    CHECK_EQ(device_stats(q, m, (struct dmem){0}, DTYPE_f32, MIDDLE, &first), STATUS_OK);
    CHECK_EQ(device_zero(q, m, 4 * MIDDLE), STATUS_OK);
    CHECK_EQ(device_stats(q, m, m, DTYPE_f32, MIDDLE, &second), STATUS_OK);
    CHECK_EQ(device_stats(q, m, (struct dmem){0}, DTYPE_f32, 0, &none), STATUS_OK);
    finish(q);
    CHECK(first.sum == MIDDLE && first.min == 1);
    CHECK_EQ(first.bins[45], MIDDLE);
    CHECK_EQ(second.zeros, MIDDLE);
    CHECK(none.count == 0 && none.sum == 0 && isnan(none.max));
    device_mem_free(&m);
    mem_free(ones);
    device_queue_free(q);
}

DEVICE_TEST(bad_statistics_are_refused)
{
    struct queue *q = open_queue(d);
    struct dmem m = room(d, 64), odd = m, none = {0};
    struct stats out;

    odd.at = (char *)m.at + 1;
    CHECK_EQ(device_stats(q, m, none, DTYPE_f32, 17, &out), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(device_stats(q, m, m, DTYPE_f64, 9, &out), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(device_stats(q, none, none, DTYPE_f32, 1, &out), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(device_stats(q, odd, none, DTYPE_f32, 1, &out), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(device_stats(q, m, odd, DTYPE_f32, 1, &out), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(device_stats(q, m, none, DTYPE_f32, SIZE_MAX / 2, &out), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(device_stats(q, m, none, (enum dtype)99, 1, &out), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(device_stats(q, m, none, DTYPE_f32, 1, NULL), STATUS_INVALID_ARGUMENT);
    device_mem_free(&m);
    device_queue_free(q);
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static void (*const element_f32[RULE_COUNT])(const float *, struct place, float, float *, float *) = {
#define ELEMENT(name, slots, slot0, slot1, slot2) [RULE_##name] = rule_##name##_f32,
    ELEMENT_RULES(ELEMENT)
#undef ELEMENT
};
static void (*const element_f64[RULE_COUNT])(const double *, struct place, double, double *, double *) = {
#define ELEMENT(name, slots, slot0, slot1, slot2) [RULE_##name] = rule_##name##_f64,
    ELEMENT_RULES(ELEMENT)
#undef ELEMENT
};

/* Where a step's result goes, and which of its inputs are there. */
enum { TO_NEW, TO_FROM, TO_SUM, TO_LAST, TO_COUNT };
enum { SUM_ONLY = 1, LAST_ONLY = 2, BOTH = 3 };

enum { SLOTS = STEP_SLOTS_MAX };
/* So near to 2^32 that larger trials cross it. */
#define STREAM UINT64_C(0xffffff80)

struct trial {
    enum rule_id rule;
    enum dtype type;
    size_t count;
    int inputs, to;
    bool master;
    size_t columns;
};

/* What a step works on, on the host. */
struct arrays {
    char *sum, *last, *w, *master, *slots[SLOTS], *scratch;
};

static void expect_f32(const struct trial *x, const struct rule_scalars *a, struct arrays *h)
{
    float v[RULE_SCALARS_MAX], s[SLOTS] = {0}, w;

    for (int k = 0; k < RULE_SCALARS_MAX; k++) v[k] = (float)a->v[k];
    for (size_t i = 0; i < x->count; i++) {
        float g = x->inputs & SUM_ONLY ? ((const float *)h->sum)[i] : 0;
        if (x->inputs & LAST_ONLY) g = x->inputs == BOTH ? g + single(x->type, h->last, i) : single(x->type, h->last, i);
        for (unsigned k = 0; k < rule_slots(x->rule); k++) s[k] = ((float *)h->slots[k])[i];
        w = x->master ? ((float *)h->master)[i] : single(x->type, h->w, i);
        element_f32[x->rule](v, random_place(STREAM + i), g, &w, s);
        for (unsigned k = 0; k < rule_slots(x->rule); k++) ((float *)h->slots[k])[i] = s[k];
        if (x->master) ((float *)h->master)[i] = w;
        set_single(x->type, h->w, i, w);
    }
}

static void expect_f64(const struct trial *x, const struct rule_scalars *a, struct arrays *h)
{
    for (size_t i = 0; i < x->count; i++) {
        const double *last = (const double *)h->last;
        double g = x->inputs & SUM_ONLY ? ((const double *)h->sum)[i] : 0, s[SLOTS] = {0};
        if (x->inputs & LAST_ONLY) g = x->inputs == BOTH ? g + last[i] : last[i];
        for (unsigned k = 0; k < rule_slots(x->rule); k++) s[k] = ((double *)h->slots[k])[i];
        element_f64[x->rule](a->v, random_place(STREAM + i), g, &((double *)h->w)[i], s);
        for (unsigned k = 0; k < rule_slots(x->rule); k++) ((double *)h->slots[k])[i] = s[k];
    }
}

static void expect_integer(const struct trial *x, struct arrays *h)
{
    for (size_t i = 0; i < x->count; i++) {
        int64_t g = (x->inputs & SUM_ONLY ? ((const int64_t *)h->sum)[i] : 0);
        if (x->inputs & LAST_ONLY) g += integer(x->type, h->last, i);
        int64_t r = x->rule == RULE_assign ? g : x->rule == RULE_add ? g + integer(x->type, h->w, i) : g / 3;
        set(x->type, h->w, i, r);
    }
}

static struct dmem at_host(void *at, size_t size) { return (struct dmem){.at = at, .host = at, .size = size}; }

/* A whole rule's step has no second formula here (test_rules.c has it): that every device comes to the bits of the
 * loops run in one piece is the fact. */
static void expect_whole(const struct trial *x, struct step s, struct arrays *h)
{
    size_t size = x->count * dtype_size(x->type), real = x->count * dtype_size(dtype_sum(x->type));

    if (x->inputs & SUM_ONLY) s.sum = at_host(h->sum, real);
    if (x->inputs & LAST_ONLY) s.last = at_host(h->last, size);
    s.from = s.to = at_host(h->w, size);
    for (unsigned k = 0; k < rule_slots(x->rule); k++) s.slots[k] = at_host(h->slots[k], real);
    if (x->master) s.master = at_host(h->master, real);
    s.scratch = at_host(h->scratch, step_scratch_size(x->rule, x->count));
    CHECK_EQ(loops_step(&s, 0, s.count), 0);
}

/* A step on host arrays; h->w becomes the result. */
static void expect(const struct trial *x, const struct step *s, struct arrays *h)
{
    if (rule_is_whole(x->rule)) expect_whole(x, *s, h);
    else if (dtype_is_integer(x->type)) expect_integer(x, h);
    else if (x->type == DTYPE_f64) expect_f64(x, &s->scalars, h);
    else expect_f32(x, &s->scalars, h);
}

/* Scalars that make every rule do something to every element, and no NaN. */
static struct rule_scalars some_scalars(enum rule_id r)
{
    struct rule_scalars a = {{0.7, 1.5, 0.01, 0.1, 0.9, 0.1, 0.99, 0.01, 1e-3}};

    for (int i = 9; i < RULE_SCALARS_MAX; i++) a.v[i] = 0.5;
    if (r == RULE_average) a.v[AVERAGE_CONTRIBUTORS] = 3;
    return a;
}

static char *random_room(enum dtype t, size_t count, uint64_t *random)
{
    char *p = host_room(count * dtype_size(t) + 1);
    set_random(t, p, count, random);
    return p;
}

static void one_step(struct queue *q, const struct trial *x)
{
    enum dtype real = dtype_sum(x->type);
    size_t size = x->count * dtype_size(x->type), real_size = x->count * dtype_size(real);
    size_t scratch_size = step_scratch_size(x->rule, x->count);
    uint64_t random = x->count;
    uint32_t flags = 0, in_parts = home;
    size_t master_count = x->master ? x->count : 0, master_size = master_count * dtype_size(real);
    struct arrays h = {.sum = random_room(real, x->count, &random), .last = random_room(x->type, x->count, &random),
                       .w = random_room(x->type, x->count, &random), .master = random_room(real, master_count, &random),
                       .scratch = host_room(scratch_size + 1)};
    char *got = host_room(real_size);
    struct step s = {.rule = x->rule, .scalars = some_scalars(x->rule), .type = x->type, .count = x->count,
                     .flags = &flags, .columns = x->columns, .stream = STREAM};

    for (unsigned k = 0; k < rule_slots(x->rule); k++) h.slots[k] = random_room(real, x->count, &random);
    if (rule_is_whole(x->rule)) home &= ~(uint32_t)HOME_IN_PARTS;
    struct dmem from = bring_as(q, x->type, h.w, size), to = room_as(q->device, x->type, size);
    struct dmem scratch = room_as(q->device, DTYPE_f64, scratch_size), sum = bring_as(q, real, h.sum, real_size);
    struct dmem last = bring_as(q, x->type, h.last, size), master = bring_as(q, real, h.master, master_size);
    struct dmem slots[SLOTS];
    for (unsigned k = 0; k < rule_slots(x->rule); k++) slots[k] = bring_as(q, real, h.slots[k], real_size);
    home = in_parts;
    if (x->inputs & SUM_ONLY) s.sum = sum;
    if (x->inputs & LAST_ONLY) s.last = last;
    if (x->master) s.master = master;
    if (scratch_size > 0) s.scratch = scratch;
    s.from = from;
    s.to = x->to == TO_FROM ? from : x->to == TO_SUM ? sum : x->to == TO_LAST ? last : to;
    for (unsigned k = 0; k < rule_slots(x->rule); k++) s.slots[k] = slots[k];

    CHECK_EQ(device_step(q, &s), STATUS_OK);
    finish(q);
    expect(x, &s, &h);
    fetch(q, got, s.to, size);
    if (memcmp(got, h.w, size) != 0 || flags != 0)
        test_fail(__FILE__, __LINE__, "%s %s on %s, %zu elements, inputs %d, to %d, master %d, columns %zu",
                  rule_name(x->rule), dtype_name(x->type), device_kind(q->device), x->count, x->inputs, x->to, x->master,
                  x->columns);
    if (x->master) {
        fetch(q, got, master, real_size);
        CHECK(memcmp(got, h.master, real_size) == 0);
    }
    for (unsigned k = 0; k < rule_slots(x->rule); k++) {
        fetch(q, got, slots[k], real_size);
        CHECK(memcmp(got, h.slots[k], real_size) == 0);
    }
    device_mem_free(&from), device_mem_free(&to), device_mem_free(&sum), device_mem_free(&last);
    device_mem_free(&master), device_mem_free(&scratch);
    mem_free(h.sum), mem_free(h.last), mem_free(h.w), mem_free(h.master), mem_free(h.scratch), mem_free(got);
    for (unsigned k = 0; k < rule_slots(x->rule); k++) {
        device_mem_free(&slots[k]);
        mem_free(h.slots[k]);
    }
}

static bool is_trial(const struct trial *x)
{
    if (dtype_is_integer(x->type) && !rule_takes_integers(x->rule)) return false;
    if (x->master && !dtype_is_half(x->type)) return false;
    /* With both inputs the sums of u8 and i8 stay below 127. */
    return x->to != TO_SUM || dtype_sum(x->type) == x->type;
}

/* Two rules with every size; the others, whose loops come from the same templates, with some. */
DEVICE_TEST(steps_are_right_for_every_rule_type_and_size)
{
    struct queue *q = open_queue(d);

    for (unsigned r = 0; r < RULE_COUNT; r++)
        for (int t = 0; t < TYPES; t++)
            for (size_t count = 1; count <= 100; count += each(d, 9) * (r == RULE_add || r == RULE_adam ? 1 : 1 + (count + r) % 13)) {
                struct trial x = {(enum rule_id)r, types[t], count, 1 + (int)(count % 3), (int)(count / 3 % TO_COUNT),
                                  count % 2 == 0 && dtype_is_half(types[t]), count % 7 == 0 ? count / 7 : 1};
                if (is_trial(&x)) one_step(q, &x);
            }
    device_queue_free(q);
}

/* Each rule with some of the types, as their loops come from one template; and with few on devices that cut nothing. */
DEVICE_TEST(large_steps_are_right_for_every_rule_and_type)
{
    struct queue *q = open_queue(d);
    bool cuts = strcmp(device_kind(d), "cpu") == 0;

    for (unsigned r = 0; r < RULE_COUNT; r++)
        for (int t = 0; t < TYPES; t++) {
            size_t count = t == 0 && (r == RULE_add || r == RULE_adam) ? LARGE : t == 0 ? MIDDLE : 70001;
            struct trial x = {(enum rule_id)r, types[t], count, BOTH, TO_NEW, dtype_is_half(types[t]), 1};
            bool taken = cuts ? t == 0 || (r + (unsigned)t) % 4 == 0 || rule_takes_integers(x.rule)
                              : r % 8 == 0 || r == RULE_sgld;
            if (taken && is_trial(&x)) one_step(q, &x);
        }
    device_queue_free(q);
}

/* Rows that are short, that fill a block, that need several, and that need several parts. */
DEVICE_TEST(rows_of_any_length_are_right)
{
    static const size_t columns[] = {1, 3, 8, 255, 256, 257, 1023, 1024, 1025, 4096, 65535, 65536, 65537, 100003};
    static const enum rule_id rules[] = {RULE_groupadagrad, RULE_adafactor};
    const size_t rows_max = is_cuda(d) ? 2000 / each(d, 3) : SIZE_MAX;       /* a row takes a block of threads, with barriers */
    struct queue *q = open_queue(d);

    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i += each(d, 3))
        for (int r = 0; r < 2; r++) {
            size_t rows = 1 + 150000 / columns[i] < rows_max ? 1 + 150000 / columns[i] : rows_max;
            struct trial x = {rules[r], types[i % 4], rows * columns[i], BOTH, TO_FROM, false, columns[i]};
            one_step(q, &x);
        }
    device_queue_free(q);
}

DEVICE_TEST(a_step_may_write_over_what_it_reads)
{
    struct queue *q = open_queue(d);

    for (int t = 0; t < TYPES; t++)
        for (int inputs = SUM_ONLY; inputs <= BOTH; inputs++)
            for (int to = 0; to < TO_COUNT; to++) {
                struct trial x = {dtype_is_integer(types[t]) ? RULE_add : RULE_adam, types[t],
                                  inputs == BOTH ? 70000 : 20000, inputs, to, false, 1};
                if (is_trial(&x)) one_step(q, &x);
                x.rule = RULE_lans;
                if (!dtype_is_integer(types[t]) && inputs == BOTH && is_trial(&x)) one_step(q, &x);
            }
    device_queue_free(q);
}

/* A step of one element: the sum, the value, what becomes of it, and whether that fits. */
static const struct {
    enum dtype type;
    enum rule_id rule;
    int64_t sum, value, want;
    bool over;
} edges[] = {
    {DTYPE_i8, RULE_assign, 127, 0, 127, false},       {DTYPE_i8, RULE_assign, 128, 0, 0, true},
    {DTYPE_i8, RULE_assign, -128, 0, -128, false},     {DTYPE_i8, RULE_assign, -129, 0, 0, true},
    {DTYPE_i8, RULE_add, 100, 27, 127, false},         {DTYPE_i8, RULE_add, 100, 28, 0, true},
    {DTYPE_u8, RULE_assign, 255, 0, 255, false},       {DTYPE_u8, RULE_assign, 256, 0, 0, true},
    {DTYPE_u8, RULE_assign, -1, 0, 0, true},           {DTYPE_u8, RULE_add, -5, 5, 0, false},
    {DTYPE_i32, RULE_add, 1, INT32_MAX - 1, INT32_MAX, false}, {DTYPE_i32, RULE_add, 1, INT32_MAX, 0, true},
    {DTYPE_i32, RULE_average, 3 * (int64_t)INT32_MIN, 0, INT32_MIN, false},
    {DTYPE_i32, RULE_average, 3 * (int64_t)INT32_MAX + 3, 0, 0, true},
    {DTYPE_i64, RULE_add, INT64_MAX, 0, INT64_MAX, false}, {DTYPE_i64, RULE_add, INT64_MAX, 1, 0, true},
    {DTYPE_i64, RULE_add, INT64_MIN, -1, 0, true},
    {DTYPE_i32, RULE_average, 8, 0, 2, false},         {DTYPE_i32, RULE_average, -8, 0, -2, false},
    {DTYPE_i64, RULE_average, INT64_MIN, 0, INT64_MIN / 3, false},
};

DEVICE_TEST(integers_tell_what_does_not_fit_and_average_towards_zero)
{
    struct queue *q = open_queue(d);

    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        char value[8], out[8];
        uint32_t flags = 0;
        set(edges[i].type, value, 0, edges[i].value);
        struct dmem sum = bring(q, &edges[i].sum, 8), w = bring(q, value, dtype_size(edges[i].type));
        struct step s = {.rule = edges[i].rule, .scalars = {{3}}, .type = edges[i].type, .count = 1, .sum = sum,
                         .from = w, .to = w, .flags = &flags};
        CHECK_EQ(device_step(q, &s), STATUS_OK);
        fetch(q, out, w, dtype_size(edges[i].type));
        CHECK_EQ(flags, edges[i].over ? WORK_OVERFLOW : 0);
        if (!edges[i].over) CHECK_EQ(integer(edges[i].type, out, 0), edges[i].want);
        device_mem_free(&sum), device_mem_free(&w);
    }
    device_queue_free(q);
}

/* The wrapped sum fits the type again, so only the adding can tell. */
DEVICE_TEST(a_sum_with_the_last_that_leaves_i64_is_told)
{
    struct queue *q = open_queue(d);
    int64_t most = INT64_MAX, one = 1;
    uint32_t flags = 0;
    struct dmem sum = bring(q, &most, 8), last = bring(q, &one, 8), w = room(d, 8);
    struct step s = {.rule = RULE_assign, .type = DTYPE_i64, .count = 1, .sum = sum, .last = last, .from = w, .to = w,
                     .flags = &flags};

    CHECK_EQ(device_zero(q, w, 8), STATUS_OK);
    CHECK_EQ(device_step(q, &s), STATUS_OK);
    finish(q);
    CHECK_EQ(flags, WORK_OVERFLOW);
    device_mem_free(&sum), device_mem_free(&last), device_mem_free(&w);
    device_queue_free(q);
}

DEVICE_TEST(one_element_that_does_not_fit_is_told_wherever_it_stands)
{
    struct queue *q = open_queue(d);
    size_t count = MIDDLE;
    int32_t *x = host_room(count * 4);
    uint32_t flags = 0;

    x[count - 2] = INT32_MAX;
    struct dmem last = bring_as(q, DTYPE_i32, x, count * 4);
    struct step s = {.rule = RULE_add, .type = DTYPE_i32, .count = count, .last = last, .from = last, .to = last,
                     .flags = &flags};
    CHECK_EQ(device_step(q, &s), STATUS_OK);
    finish(q);
    CHECK_EQ(flags, WORK_OVERFLOW);
    device_mem_free(&last);
    device_queue_free(q);
    mem_free(x);
}

DEVICE_TEST(nan_and_infinity_go_through_a_step)
{
    struct queue *q = open_queue(d);
    float g[4] = {NAN, INFINITY, -INFINITY, 1}, out[4];
    uint32_t flags = 0;
    struct dmem sum = bring(q, g, 16), w = room(d, 16);
    struct step s = {.rule = RULE_assign, .type = DTYPE_f32, .count = 4, .sum = sum, .from = w, .to = w,
                     .flags = &flags};

    CHECK_EQ(device_zero(q, w, 16), STATUS_OK);
    CHECK_EQ(device_step(q, &s), STATUS_OK);
    s.rule = RULE_sgd;
    s.scalars = (struct rule_scalars){{[GRAD_RESCALE] = 1, [GRAD_CLIP] = INFINITY, [SGD_LR] = 0.5}};
    CHECK_EQ(device_zero(q, w, 16), STATUS_OK);
    CHECK_EQ(device_step(q, &s), STATUS_OK);
    fetch(q, out, w, 16);
    CHECK(isnan(out[0]) && out[1] == -INFINITY && out[2] == INFINITY && out[3] == -0.5f);
    device_mem_free(&sum), device_mem_free(&w);
    device_queue_free(q);
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

#define REFUSED(call, part)                                      \
    do {                                                         \
        CHECK_EQ(call, STATUS_INVALID_ARGUMENT);                 \
        CHECK_SAYS(device_error(d)->text, part);                 \
    } while (0)

DEVICE_TEST(bad_pieces_are_refused)
{
    struct queue *q = open_queue(d);
    struct device *elsewhere = device_open(CPU, 1);
    struct dmem m = room(d, 64), other = room(elsewhere, 64), none = {0}, odd = m;
    char host[64] = {0};
    uint64_t work = d->work_count;
    uint32_t flags = 0;

    odd.at = (char *)m.at + 2;
    odd.size -= 2;
    REFUSED(device_upload(q, m, 65, host, 1), "smaller");
    REFUSED(device_upload(q, m, 60, host, 5), "smaller");
    REFUSED(device_upload(q, m, 1, host, SIZE_MAX), "smaller");
    REFUSED(device_upload(q, m, SIZE_MAX, host, 2), "smaller");
    REFUSED(device_upload(q, m, 0, NULL, 2), "NULL");
    REFUSED(device_upload(q, none, 0, host, 2), "no memory");
    REFUSED(device_upload(q, other, 0, host, 2), "another device");
    REFUSED(device_download(q, host, m, 64, 1), "smaller");
    REFUSED(device_download(q, NULL, m, 0, 1), "NULL");
    REFUSED(device_copy(q, m, m, 8), "overlaps");
    REFUSED(device_copy(q, m, other, 8), "another device");
    REFUSED(device_zero(q, m, 65), "smaller");
    REFUSED(device_widen(q, m, m, DTYPE_f32, 4), "overlaps");
    REFUSED(device_widen(q, m, none, DTYPE_i8, 4), "no memory");
    REFUSED(device_add(q, m, odd, DTYPE_f32, 2, &flags), "aligned");
    REFUSED(device_add(q, m, odd, DTYPE_f32, SIZE_MAX / 2, &flags), "fewer");
    REFUSED(device_add(q, m, odd, (enum dtype)77, 2, &flags), "no dtype");
    REFUSED(device_add(q, m, odd, DTYPE_i8, 2, NULL), "overlaps");
    CHECK_EQ(d->work_count, work);
    CHECK_EQ(device_upload(q, none, 9, NULL, 0), STATUS_OK);
    CHECK_EQ(device_zero(q, m, 64), STATUS_OK);
    CHECK_EQ(d->work_count, work + 1);
    finish(q);
    device_mem_free(&m), device_mem_free(&other);
    device_queue_free(q);
    device_free(elsewhere);
}

DEVICE_TEST(bad_steps_are_refused)
{
    struct queue *q = open_queue(d);
    struct dmem w = room(d, 64), sum = room(d, 128), slot = room(d, 64), scratch = room(d, 4096), none = {0};
    uint32_t flags = 0;
    const struct step good = {.rule = RULE_momentum, .type = DTYPE_f32, .count = 16, .sum = sum, .from = w, .to = w,
                              .slots = {slot}, .flags = &flags};
    struct step s;

#define WITH(field, v, part)                     \
    do {                                         \
        s = good;                                \
        s.field = v;                             \
        REFUSED(device_step(q, &s), part);       \
    } while (0)
    WITH(rule, (enum rule_id)RULE_COUNT, "rule");
    WITH(type, (enum dtype)DTYPE_COUNT, "no dtype");
    WITH(type, DTYPE_i32, "fractions");
    WITH(count, 17, "fewer");
    WITH(count, SIZE_MAX, "fewer");
    WITH(flags, NULL, "flags");
    WITH(sum, none, "both left out");
    WITH(from, none, "from");
    WITH(to, none, "to");
    WITH(slots[0], none, "slots[0]");
    WITH(slots[0], w, "overlaps");
    WITH(slots[0], sum, "overlaps");
    WITH(rule, RULE_average, "contributors");
    s = good;
    s.to.at = (char *)w.at + 4, s.to.size = 60, s.count = 15;
    REFUSED(device_step(q, &s), "overlaps");
    s = (struct step){.rule = RULE_add, .type = DTYPE_i32, .count = 16, .sum = sum, .from = w, .to = sum,
                      .flags = &flags};
    REFUSED(device_step(q, &s), "overlaps");
    WITH(master, slot, "f16 and bf16");
    WITH(rule, RULE_lars_momentum, "scratch");
    s = good;
    s.type = DTYPE_bf16;
    s.master = w;
    REFUSED(device_step(q, &s), "overlaps");
    s = good;
    s.rule = RULE_groupadagrad;
    s.scratch = scratch;
    REFUSED(device_step(q, &s), "rows");
    s.columns = 5;
    REFUSED(device_step(q, &s), "rows");
    s.columns = 4;
    s.slots[0].size = 12;
    REFUSED(device_step(q, &s), "slots[0]");
#undef WITH
    s = good;
    s.count = 0;
    CHECK_EQ(device_step(q, &s), STATUS_OK);
    device_mem_free(&w), device_mem_free(&sum), device_mem_free(&slot), device_mem_free(&scratch);
    device_queue_free(q);
}

/* A master keeps what the value cannot: 1 + 256 times 2^-10 in bf16, whose unit there is 2^-7. */
DEVICE_TEST(a_master_keeps_what_the_value_rounds_away)
{
    struct queue *q = open_queue(d);
    float one = 1, small = 0x1p-10f, master;
    uint16_t value = half_narrow_bf16(1), plain = value;
    uint32_t flags = 0;
    struct dmem sum = bring(q, &small, 4), m = bring(q, &one, 4), w = bring(q, &value, 2), p = bring(q, &plain, 2);
    struct step s = {.rule = RULE_add, .type = DTYPE_bf16, .count = 1, .sum = sum, .flags = &flags};

    for (int i = 0; i < 256; i++) {
        s.from = s.to = w;
        s.master = m;
        CHECK_EQ(device_step(q, &s), STATUS_OK);
        s.from = s.to = p;
        s.master = (struct dmem){0};
        CHECK_EQ(device_step(q, &s), STATUS_OK);
    }
    fetch(q, &master, m, 4);
    fetch(q, &value, w, 2);
    fetch(q, &plain, p, 2);
    CHECK(master == 1.25f);
    CHECK(half_widen_bf16(value) == 1.25f);
    CHECK(half_widen_bf16(plain) == 1);
    device_mem_free(&sum), device_mem_free(&m), device_mem_free(&w), device_mem_free(&p);
    device_queue_free(q);
}

DEVICE_TEST(marks_that_are_not_recorded_are_refused)
{
    struct queue *q = open_queue(d), *other = open_queue(d), *foreign;
    struct device *elsewhere = device_open(CPU, 1);
    uint64_t mark;

    foreign = open_queue(elsewhere);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    REFUSED(device_wait(q, mark + 1), "not recorded");
    REFUSED(device_await(other, q, mark + 1), "not recorded");
    REFUSED(device_await(q, foreign, 0), "another device");
    CHECK_EQ(device_await(other, q, mark), STATUS_OK);
    CHECK_EQ(device_await(q, q, mark), STATUS_OK);
    device_queue_free(q), device_queue_free(other), device_queue_free(foreign), device_queue_free(NULL);
    device_free(elsewhere);
}

/* ---- what single devices promise -------------------------------------------------------------------------------- */

static unsigned threads_of_process(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/task");

    CHECK(dir != NULL);
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n - 2;
}

TEST(small_work_of_the_cpu_is_done_at_once_and_starts_no_thread)
{
    struct device *d = device_open(CPU, 4);
    struct queue *q = open_queue(d);
    unsigned before = threads_of_process();
    float x[4] = {1, 2, 3, 4}, out[4];
    uint64_t mark, passed;
    uint32_t flags = 0;
    struct dmem a = room(d, 16), b = room(d, 16);

    CHECK_EQ(device_upload(q, a, 0, x, 16), STATUS_OK);
    CHECK_EQ(device_widen(q, b, a, DTYPE_f32, 4), STATUS_OK);
    CHECK_EQ(device_add(q, b, a, DTYPE_f32, 4, &flags), STATUS_OK);
    CHECK_EQ(device_download(q, out, b, 0, 16), STATUS_OK);
    CHECK(out[0] == 2 && out[3] == 8);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_passed(q, &passed), STATUS_OK);
    CHECK_EQ(passed, mark);
    CHECK_EQ(threads_of_process(), before);
    CHECK_TEXT(device_kind(d), "cpu");
    CHECK(a.host == a.at);
    device_mem_free(&a), device_mem_free(&b);
    device_queue_free(q);
    device_free(d);
}

TEST(a_busy_queue_of_the_cpu_does_not_hold_up_another)
{
    struct device *d = device_open(CPU, 1);
    struct queue *busy = open_queue(d), *q = open_queue(d);
    struct dmem big = room(d, 4 * LARGE), small = room(d, 16);
    uint64_t mark, passed;

    for (int i = 0; i < 50; i++) CHECK_EQ(device_zero(busy, big, 4 * LARGE), STATUS_OK);
    CHECK_EQ(device_zero(q, small, 16), STATUS_OK);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_passed(q, &passed), STATUS_OK);
    CHECK_EQ(passed, mark);
    device_queue_free(busy), device_queue_free(q);
    device_mem_free(&big), device_mem_free(&small);
    device_free(d);
}

TEST(too_many_threads_are_refused)
{
    struct device *d = NULL;

    CHECK_EQ(cpu_device_new(100000, &d, &error), STATUS_INVALID_ARGUMENT);
    CHECK_OK(cpu_device_new(0, &d, &error), &error);
    device_free(d);
    device_free(NULL);
}

TEST(the_late_device_does_nothing_until_it_is_asked)
{
    struct device *d = device_open(LATE, 1);
    struct queue *q = open_queue(d);
    struct dmem m = room(d, 4);
    char in[4] = "abc", out[4] = "---";

    CHECK(m.host == NULL);
    CHECK_EQ(device_upload(q, m, 0, in, 4), STATUS_OK);
    CHECK_EQ(device_download(q, out, m, 0, 4), STATUS_OK);
    CHECK_EQ(late_device_pending(d), 2);
    CHECK_TEXT(out, "---");
    memcpy(in, "xyz", 4);        /* the fault that it is for: the buffer was the device's */
    finish(q);
    CHECK_TEXT(out, "xyz");
    CHECK_EQ(late_device_pending(d), 0);
    device_mem_free(&m);
    device_queue_free(q);
    device_free(d);
}

/* A small life of a key: answers the first status that is not OK, and gives all back whatever happens. */
static enum status life(struct device *d, size_t count, float *out)
{
    struct queue *q = NULL, *side = NULL;
    struct dmem w = {0}, sum = {0};
    struct stats stats;
    float *host = NULL;
    uint64_t mark = 0, passed;
    uint32_t flags = 0;
    enum status s;

    if ((s = device_queue_new(d, &q, &error)) != STATUS_OK) goto out;
    if ((s = device_queue_new(d, &side, &error)) != STATUS_OK) goto out;
    if ((s = device_mem_new(d, count * 4, &w, &error)) != STATUS_OK) goto out;
    if ((s = device_mem_new(d, count * 4, &sum, &error)) != STATUS_OK) goto out;
    if ((s = device_pin_new(d, count * 4, (void **)&host, &error)) != STATUS_OK) goto out;
    for (size_t i = 0; i < count; i++) host[i] = 2;
    if ((s = device_zero(q, w, count * 4)) != STATUS_OK) goto out;
    if ((s = device_upload(q, sum, 0, host, count * 4)) != STATUS_OK) goto out;
    if ((s = device_record(q, &mark)) != STATUS_OK) goto out;
    if ((s = device_await(side, q, mark)) != STATUS_OK) goto out;
    struct step step = {.rule = RULE_add, .type = DTYPE_f32, .count = count, .sum = sum, .last = sum, .from = w,
                        .to = w, .flags = &flags};
    if ((s = device_step(side, &step)) != STATUS_OK) goto out;
    if ((s = device_stats(side, w, sum, DTYPE_f32, count, &stats)) != STATUS_OK) goto out;
    if ((s = device_download(side, host, w, 0, count * 4)) != STATUS_OK) goto out;
    if ((s = device_record(side, &mark)) != STATUS_OK) goto out;
    if ((s = device_passed(side, &passed)) != STATUS_OK) goto out;
    if ((s = device_wait(side, mark)) != STATUS_OK) goto out;
    *out = host[count - 1];
out:
    device_queue_free(q);
    device_queue_free(side);
    device_mem_free(&w);
    device_mem_free(&sum);
    device_pin_free(d, host);
    return s;
}

/* What was refused is told with its reason, and only a loss ends the device: SYSTEM has the same status. */
static void check_refused(struct device *d, enum fault_mode mode, enum status s)
{
    bool is_system = mode == FAULT_SYSTEM || mode == FAULT_SYSTEM_MARK, is_memory = s == STATUS_RESOURCE_EXHAUSTED;
    enum reason reason = is_system ? REASON_SYSTEM : is_memory ? REASON_NO_MEMORY : REASON_DEVICE_LOST;
    float out;

    CHECK_EQ(device_error(d)->reason, reason);
    CHECK_EQ(s, reason_status(reason));
    CHECK_EQ(d->lost, reason == REASON_DEVICE_LOST);
    CHECK_EQ(life(d, 10, &out), d->lost ? STATUS_UNAVAILABLE : STATUS_OK);
}

/* calls: of a life, that count in this mode. */
static void fault_sweep(int inner, enum fault_mode mode, uint64_t calls)
{
    for (uint64_t n = 1;; n++) {
        int64_t before = mem_live();
        struct device *d = NULL;
        float out = 0;
        CHECK_OK(faulty_device_new(device_open(inner, 2), &d, &error), &error);
        faulty_device_fail_at(d, n, mode);
        enum status s = life(d, MIDDLE, &out);
        bool hit = faulty_device_hit(d);
        if (hit) check_refused(d, mode, s);
        device_free(d);
        CHECK_EQ(mem_live(), before);
        if (hit) continue;
        CHECK_EQ(s, STATUS_OK);
        CHECK(out == 4);
        CHECK_EQ(n, calls + 1);
        return;
    }
}

TEST(every_failing_call_of_a_device_is_a_status)
{
    static const struct { enum fault_mode mode; uint64_t calls; } modes[] = {
        {FAULT_REFUSED, 15}, {FAULT_ACCEPTED, 15}, {FAULT_MEMORY, 3}, {FAULT_SYSTEM, 11}, {FAULT_SYSTEM_MARK, 4}};

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        fault_sweep(CPU, modes[i].mode, modes[i].calls);
        fault_sweep(LATE, modes[i].mode, modes[i].calls);
    }
}

TEST(a_loss_is_seen_also_by_who_wants_no_sentence)
{
    struct device *d = device_open(FAULTY, 1);
    struct queue *q;

    faulty_device_fail_at(d, 1, FAULT_SYSTEM);
    CHECK_EQ(device_queue_new(d, &q, NULL), STATUS_UNAVAILABLE);
    CHECK(!d->lost);
    faulty_device_fail_at(d, 1, FAULT_REFUSED);
    CHECK_EQ(device_queue_new(d, &q, NULL), STATUS_UNAVAILABLE);
    CHECK(d->lost);
    device_free(d);
}

TEST(every_failing_allocation_of_a_device_is_a_status)
{
    for (int kind = CPU; kind <= LATE; kind++)
        for (uint64_t n = 1;; n++) {
            int64_t before = mem_live();
            struct device *d = NULL;
            float out = 0;
            mem_fault_at(n);
            enum status s = kind == CPU ? cpu_device_new(2, &d, &error) : late_device_new(2, &d, &error);
            if (s == STATUS_OK) s = life(d, MIDDLE, &out);
            bool hit = mem_fault_hit();
            mem_fault_at(0);
            device_free(d);
            CHECK_EQ(mem_live(), before);
            CHECK_EQ(s, hit ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK);
            if (!hit) break;
            CHECK(n < 50);
        }
}

/* ---- types ------------------------------------------------------------------------------------------------------ */

TEST(types_are_known_by_both_names)
{
    enum dtype t = DTYPE_f64;

    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        CHECK(dtype_known(i));
        CHECK(dtype_parse(bytes_text(dtype_name((enum dtype)i)), &t) && t == (enum dtype)i);
        CHECK(dtype_parse(bytes_text(dtype_numpy((enum dtype)i)), &t) && t == (enum dtype)i);
    }
    CHECK(!dtype_known(DTYPE_COUNT));
    CHECK(!dtype_parse(bytes_text("float"), &t));
    CHECK(!dtype_parse(bytes_text(""), &t));
    CHECK_EQ(dtype_sum(DTYPE_bf16), DTYPE_f32);
    CHECK_EQ(dtype_sum(DTYPE_u8), DTYPE_i64);
    CHECK(dtype_is_integer(DTYPE_i8) && !dtype_is_integer(DTYPE_f16));
    CHECK(dtype_is_half(DTYPE_bf16) && dtype_is_half(DTYPE_f16) && !dtype_is_half(DTYPE_f32));
}

/* ---- f16 and bf16 ----------------------------------------------------------------------------------------------- */

/* A layout of bits, read as the standard says it, in double. */
struct layout {
    unsigned exponent_bits, mantissa_bits;
};

static const struct layout f16_layout = {5, 10}, bf16_layout = {8, 7};

static double value_of(struct layout l, uint16_t h)
{
    int bias = (1 << (l.exponent_bits - 1)) - 1, exponent = h >> l.mantissa_bits & ((1 << l.exponent_bits) - 1);
    int mantissa = h & ((1 << l.mantissa_bits) - 1);
    double sign = h >> 15 ? -1 : 1;

    if (exponent == (1 << l.exponent_bits) - 1) return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - (int)l.mantissa_bits);
    return sign * ldexp(mantissa + (1 << l.mantissa_bits), exponent - bias - (int)l.mantissa_bits);
}

static bool same_float(double a, double b) { return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b); }

static void every_value(struct layout l, float (*widen)(uint16_t), uint16_t (*narrow)(float))
{
    for (unsigned i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i, back = narrow(widen(h));
        double want = value_of(l, h);
        if (!same_float((double)widen(h), want)) test_fail(__FILE__, __LINE__, "%04x is %g, not %g", i, (double)widen(h), want);
        CHECK_EQ(signbit(widen(h)) != 0, h >> 15);
        /* NaN comes back quiet, with its sign and payload. */
        CHECK_EQ(back, isnan(want) ? h | 1 << (l.mantissa_bits - 1) : h);
    }
}

/* Between each two neighbours: the middle, and just beside it. Infinity stands where the next number would be. */
static void every_middle(struct layout l, uint16_t (*narrow)(float))
{
    unsigned infinity = ((1u << l.exponent_bits) - 1) << l.mantissa_bits;

    for (unsigned i = 0; i < infinity; i++) {
        double low = value_of(l, (uint16_t)i), high = i + 1 < infinity ? value_of(l, (uint16_t)(i + 1)) : 0;
        if (i + 1 == infinity) high = low + (low - value_of(l, (uint16_t)(i - 1)));
        float middle = (float)((low + high) / 2);
        if ((double)middle != (low + high) / 2) continue; /* below the floats; none of f16 */
        CHECK_EQ(narrow(middle), i % 2 == 0 ? i : i + 1);
        CHECK_EQ(narrow(-middle), (i % 2 == 0 ? i : i + 1) | 0x8000);
        CHECK_EQ(narrow(nextafterf(middle, 0)), i);
        if (i + 1 < infinity || l.exponent_bits < 8) CHECK_EQ(narrow(nextafterf(middle, INFINITY)), i + 1);
    }
}

static float widen_f16(uint16_t h) { return half_widen_f16(h); }
static float widen_bf16(uint16_t h) { return half_widen_bf16(h); }
static uint16_t narrow_f16(float f) { return half_narrow_f16(f); }
static uint16_t narrow_bf16(float f) { return half_narrow_bf16(f); }

TEST(every_half_is_widened_exactly_and_comes_back)
{
    every_value(f16_layout, widen_f16, narrow_f16);
    every_value(bf16_layout, widen_bf16, narrow_bf16);
}

TEST(narrowing_rounds_to_nearest_and_ties_to_even)
{
    every_middle(f16_layout, narrow_f16);
    every_middle(bf16_layout, narrow_bf16);
}

TEST(narrowing_keeps_nan_and_infinity)
{
    CHECK_EQ(narrow_f16(INFINITY), 0x7c00);
    CHECK_EQ(narrow_bf16(-INFINITY), 0xff80);
    CHECK_EQ(narrow_f16(65519.99f), 0x7bff);
    CHECK_EQ(narrow_f16(65520), 0x7c00);
    CHECK_EQ(narrow_f16(3e38f), 0x7c00);
    CHECK_EQ(narrow_bf16(3.4e38f), 0x7f80);
    CHECK(isnan(widen_f16(narrow_f16(half_float(0x7f800001)))));
    CHECK(isnan(widen_bf16(narrow_bf16(half_float(0xff800001)))));
    CHECK_EQ(narrow_f16(0x1p-26f), 0);
    CHECK_EQ(narrow_f16(-0x1p-26f), 0x8000);
}

/* The loops, which may be built for other instructions. */
TEST(the_loops_narrow_and_widen_every_value_alike)
{
    static uint16_t h[65536], back[65536];
    static float f[65536];

    for (unsigned i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++) {
        enum dtype type = t == 0 ? DTYPE_f16 : DTYPE_bf16;
        loops_widen(type, f, h, 65536);
        loops_narrow(type, back, f, 65536);
        for (unsigned i = 0; i < 65536; i++) {
            CHECK_EQ(half_bits(f[i]), half_bits(t == 0 ? widen_f16(h[i]) : widen_bf16(h[i])));
            CHECK_EQ(back[i], t == 0 ? narrow_f16(f[i]) : narrow_bf16(f[i]));
        }
    }
}
