/* Groups of devices: what a call does on each kind of device, what is refused, and that a broken group stays so. */
#include "gpu/array.h"
#include "gpu/group_nccl.h"
#include "service/base/mem.h"
#include "tests/lib/faulty_device.h"
#include "tests/lib/late_device.h"
#include "tests/lib/test.h"

#include <string.h>

enum { RANKS = 3, COUNT = 70001, ROOT = 1 };

static struct error error;

/* A group of three members, the last of which can be made to fail, with a queue each. */
struct fixture {
    struct device *devices[RANKS];
    struct group *group;
    struct group_piece pieces[RANKS];
    size_t size;
};

static struct device *member(unsigned i, bool late)
{
    struct device *d = NULL, *outer = NULL;

    if (late && i < RANKS - 1) CHECK_OK(late_device_new(i + 1, &d, &error), &error);
    else CHECK_OK(cpu_device_new(i + 1, &d, &error), &error);
    if (i < RANKS - 1) return d;
    CHECK_OK(faulty_device_new(d, &outer, &error), &error);
    return outer;
}

static struct dmem room(struct device *d, size_t size)
{
    struct dmem m;
    CHECK_OK(device_mem_new(d, size, &m, &error), &error);
    return m;
}

static void finish(struct queue *q)
{
    uint64_t mark;
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
}

/* Rank r's element i is an integer, so that sums are exact. */
static double element(unsigned rank, size_t i) { return (double)((i * 7 + rank * 1000) % 251); }

static void store_at(enum dtype t, void *at, size_t i, double v)
{
    if (t == DTYPE_f64) ((double *)at)[i] = v;
    else if (t == DTYPE_f32) ((float *)at)[i] = (float)v;
    else ((uint8_t *)at)[i] = (uint8_t)v;
}

static double read_at(enum dtype t, const void *at, size_t i)
{
    return t == DTYPE_f64 ? ((const double *)at)[i] : t == DTYPE_f32 ? ((const float *)at)[i] : ((const uint8_t *)at)[i];
}

/* Each with `given` elements to give and room for `taken`. */
static void open_group(struct fixture *f, bool late, enum dtype t, size_t given, size_t taken)
{
    char *host = mem_new(given * 8);

    *f = (struct fixture){.size = dtype_size(t)};
    CHECK(host != NULL);
    for (unsigned r = 0; r < RANKS; r++) {
        struct group_piece *p = &f->pieces[r];
        f->devices[r] = member(r, late);
        CHECK_OK(device_queue_new(f->devices[r], &p->queue, &error), &error);
        p->from = room(f->devices[r], given * f->size);
        p->to = room(f->devices[r], taken * f->size);
        for (size_t i = 0; i < given; i++) store_at(t, host, i, element(r, i));
        CHECK_EQ(device_upload(p->queue, p->from, 0, host, given * f->size), STATUS_OK);
        CHECK_EQ(device_zero(p->queue, p->to, taken * f->size), STATUS_OK);
        finish(p->queue);
    }
    mem_free(host);
    CHECK_OK(group_local_new(f->devices, RANKS, &f->group, &error), &error);
    CHECK_EQ(group_look(f->group, 0), GROUP_READY);
}

static void close_group(struct fixture *f)
{
    group_leave(f->group);
    for (unsigned r = 0; r < RANKS; r++) {
        device_queue_free(f->pieces[r].queue);
        device_mem_free(&f->pieces[r].from);
        device_mem_free(&f->pieces[r].to);
        device_free(f->devices[r]);
    }
}

static double total(size_t i) { return element(0, i) + element(1, i) + element(2, i); }

static double expected(const struct group_call *c, unsigned rank, size_t i)
{
    switch (c->kind) {
    case GROUP_REDUCE: return rank == c->root ? total(i) : 0;
    case GROUP_ALL_REDUCE: return total(i);
    case GROUP_BROADCAST: return element(c->root, i);
    case GROUP_REDUCE_SCATTER: return total(rank * c->count + i);
    default: return element((unsigned)(i / c->count), i % c->count);
    }
}

static void check_call(enum group_kind kind, enum dtype t, bool late)
{
    struct group_call c = {.kind = kind, .type = t, .count = COUNT, .root = ROOT};
    size_t given = kind == GROUP_REDUCE_SCATTER ? RANKS * COUNT : COUNT;
    size_t taken = kind == GROUP_ALL_GATHER ? RANKS * COUNT : COUNT;
    struct fixture f;
    char *got = mem_new(taken * 8);

    CHECK(got != NULL);
    open_group(&f, late, t, given, taken);
    CHECK_EQ(group_give(f.group, &c, f.pieces), STATUS_OK);
    for (unsigned r = 0; r < RANKS; r++) {
        CHECK_EQ(device_download(f.pieces[r].queue, got, f.pieces[r].to, 0, taken * f.size), STATUS_OK);
        finish(f.pieces[r].queue);
        for (size_t i = 0; i < taken; i++)
            if (read_at(t, got, i) != expected(&c, r, i))
                test_fail(__FILE__, __LINE__, "kind %d, rank %u, element %zu: %g, not %g", kind, r, i, read_at(t, got, i),
                          expected(&c, r, i));
    }
    CHECK_EQ(group_look(f.group, 0), GROUP_READY);
    close_group(&f);
    mem_free(got);
}

TEST(every_call_gives_every_rank_its_due)
{
    for (int late = 0; late < 2; late++)
        for (int kind = 0; kind < GROUP_KINDS_END; kind++) {
            check_call((enum group_kind)kind, DTYPE_f32, late);
            check_call((enum group_kind)kind, DTYPE_f64, late);
        }
    check_call(GROUP_BROADCAST, DTYPE_u8, true);
    check_call(GROUP_ALL_GATHER, DTYPE_u8, true);
}

TEST(a_sum_may_take_the_place_of_what_was_given)
{
    struct group_call c = {.kind = GROUP_ALL_REDUCE, .type = DTYPE_f32, .count = COUNT};
    struct group_piece pieces[RANKS];
    struct fixture f;
    float last;

    open_group(&f, true, DTYPE_f32, COUNT, COUNT);
    memcpy(pieces, f.pieces, sizeof pieces);
    for (unsigned r = 0; r < RANKS; r++) pieces[r].to = pieces[r].from;
    CHECK_EQ(group_give(f.group, &c, pieces), STATUS_OK);
    CHECK_EQ(device_download(pieces[2].queue, &last, pieces[2].to, 4 * (COUNT - 1), 4), STATUS_OK);
    finish(pieces[2].queue);
    CHECK(last == (float)total(COUNT - 1));
    close_group(&f);
}

/* 1e8 + 3 - 1e8 in f32 is 0 or 8, as one takes it. */
TEST(sums_of_one_process_are_in_the_order_of_the_ranks)
{
    static const float given[RANKS] = {1e8f, 3.0f, -1e8f};
    struct group_call c = {.kind = GROUP_REDUCE, .type = DTYPE_f32, .count = 1, .root = 2};
    struct fixture f;
    float got;

    open_group(&f, true, DTYPE_f32, 1, 1);
    for (unsigned r = 0; r < RANKS; r++)
        CHECK_EQ(device_upload(f.pieces[r].queue, f.pieces[r].from, 0, &given[r], 4), STATUS_OK);
    CHECK_EQ(group_give(f.group, &c, f.pieces), STATUS_OK);
    CHECK_EQ(device_download(f.pieces[2].queue, &got, f.pieces[2].to, 0, 4), STATUS_OK);
    finish(f.pieces[2].queue);
    CHECK(got == (given[0] + given[1]) + given[2]);
    close_group(&f);
}

TEST(bad_calls_are_refused_and_leave_the_group_as_it_is)
{
    const struct group_call good = {.kind = GROUP_ALL_REDUCE, .type = DTYPE_f32, .count = 8};
    struct group_piece pieces[RANKS];
    struct group_call c;
    struct fixture f;

    open_group(&f, true, DTYPE_f32, 8, 8);
    memcpy(pieces, f.pieces, sizeof pieces);
#define REFUSED(part)                                                              \
    do {                                                                           \
        CHECK_EQ(group_give(f.group, &c, pieces), STATUS_INVALID_ARGUMENT);        \
        CHECK_SAYS(group_error(f.group)->text, part);                              \
        memcpy(pieces, f.pieces, sizeof pieces);                                   \
        c = good;                                                                  \
    } while (0)
    c = good;
    c.count = 9;
    REFUSED("ALL_REDUCE by the group, rank 0: memory has fewer");
    c.count = SIZE_MAX;
    REFUSED("fewer");
    c.kind = GROUP_ALL_GATHER;
    c.count = 3;
    REFUSED("fewer");
    c.kind = GROUP_REDUCE_SCATTER;
    c.count = 3;
    REFUSED("fewer");
    c.kind = GROUP_KINDS_END;
    REFUSED("no such kind");
    c.root = RANKS;
    REFUSED("no such kind, dtype or root");
    c.type = DTYPE_i32;
    REFUSED("a group sums f32 and f64");
    pieces[1].from = pieces[0].from;
    REFUSED("rank 1: memory is none, or of another device");
    pieces[2].to = (struct dmem){0};
    REFUSED("rank 2: memory is none");
    pieces[2].queue = pieces[1].queue;
    REFUSED("rank 2: queue is of another device");
    c.kind = GROUP_ALL_GATHER;
    c.count = 2;
    pieces[0].to = pieces[0].from;
    REFUSED("'to' is the memory of 'from'");
#undef REFUSED
    CHECK_EQ(group_look(f.group, 0), GROUP_READY);
    CHECK_EQ(group_give(f.group, &c, pieces), STATUS_OK);
    c.kind = GROUP_REDUCE;
    c.root = ROOT;
    pieces[0].to = pieces[2].to = (struct dmem){0}; /* what a rank does not need */
    CHECK_EQ(group_give(f.group, &c, pieces), STATUS_OK);
    close_group(&f);
}

TEST(an_aborted_group_refuses_and_says_why)
{
    struct group_call c = {.kind = GROUP_ALL_REDUCE, .type = DTYPE_f32, .count = 8};
    struct fixture f;

    open_group(&f, false, DTYPE_f32, 8, 8);
    group_abort(f.group, "worker 'w1' is dead");
    group_abort(f.group, "something else");
    CHECK_EQ(group_look(f.group, 0), GROUP_BROKEN);
    CHECK_EQ(group_give(f.group, &c, f.pieces), STATUS_CANCELLED);
    CHECK_SAYS(group_error(f.group)->text, "worker 'w1' is dead");
    close_group(&f);
}

TEST(a_member_that_fails_anywhere_breaks_the_group_and_the_next_one_works)
{
    struct group_call c = {.kind = GROUP_REDUCE_SCATTER, .type = DTYPE_f32, .count = 8};

    for (uint64_t n = 1;; n++) {
        struct fixture f;
        open_group(&f, true, DTYPE_f32, RANKS * 8, 8);
        faulty_device_fail_at(f.devices[2], n, FAULT_REFUSED);
        enum status s = group_give(f.group, &c, f.pieces);
        bool hit = faulty_device_hit(f.devices[2]);
        CHECK_EQ(s == STATUS_OK, !hit);
        CHECK_EQ(group_look(f.group, 0), hit ? GROUP_BROKEN : GROUP_READY);
        if (hit) CHECK(group_give(f.group, &c, f.pieces) != STATUS_OK);
        faulty_device_fail_at(f.devices[2], 0, FAULT_REFUSED);
        if (hit && !f.devices[2]->lost) { /* it was memory: the next epoch */
            group_leave(f.group);
            CHECK_OK(group_local_new(f.devices, RANKS, &f.group, &error), &error);
            CHECK_EQ(group_give(f.group, &c, f.pieces), STATUS_OK);
        }
        close_group(&f);
        if (!hit) return;
    }
}

TEST(every_failing_allocation_is_a_status)
{
    struct group_call c = {.kind = GROUP_ALL_REDUCE, .type = DTYPE_f32, .count = 8};
    struct group *g = NULL;
    struct fixture f;

    for (uint64_t n = 1;; n++) {
        open_group(&f, true, DTYPE_f32, 8, 8);
        mem_fault_at(n);
        enum status s = group_local_new(f.devices, RANKS, &g, &error);
        if (s == STATUS_OK) s = group_give(g, &c, f.pieces);
        bool hit = mem_fault_hit();
        mem_fault_at(0);
        group_leave(g);
        g = NULL;
        close_group(&f);
        CHECK_EQ(s == STATUS_OK, !hit);
        if (!hit) return;
    }
}

TEST(a_group_of_one_is_a_group)
{
    struct group_call c = {.kind = GROUP_ALL_REDUCE, .type = DTYPE_f32, .count = 8};
    struct group *g = NULL;
    struct fixture f;

    open_group(&f, true, DTYPE_f32, 8, 8);
    CHECK_OK(group_local_new(f.devices, 1, &g, &error), &error);
    CHECK_EQ(group_give(g, &c, f.pieces), STATUS_OK);
    group_leave(g);
    CHECK_EQ(group_local_new(f.devices, 0, &g, &error), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(group_local_new(f.devices, GROUP_MEMBERS_MAX + 1, &g, &error), STATUS_INVALID_ARGUMENT);
    close_group(&f);
}

TEST(nccl_is_here_or_the_sentence_says_that_it_is_not)
{
    struct nccl n;

    if (nccl_open(&n, &error) == STATUS_OK) {
        CHECK(n.GetUniqueId != NULL && n.AllGather != NULL);
        return;
    }
    CHECK_EQ(error.status, STATUS_UNIMPLEMENTED);
    CHECK_SAYS(error.text, "libnccl.so.2");
}
