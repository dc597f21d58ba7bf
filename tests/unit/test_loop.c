#include "service/base/loop.h"
#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct error e;
static struct loop *loop;

static struct loop *loop_fresh(void)
{
    CHECK_OK(loop_new(&loop, &e), &e);
    return loop;
}

/* A watch on an eventfd that counts its calls and, once, removes another. */
struct probe {
    struct watch watch;
    struct probe *victim;
    unsigned calls;
    uint32_t events;
    bool take;
};

static void probe_close(struct probe *p)
{
    loop_remove(loop, &p->watch);
    close(p->watch.fd);
}

static void probe_ready(struct watch *w, uint32_t events)
{
    struct probe *p = CONTAINER_OF(w, struct probe, watch);
    uint64_t count;

    p->calls++;
    p->events = events;
    if (p->take) CHECK(read(w->fd, &count, sizeof count) == (ssize_t)sizeof count);
    if (p->victim == NULL) return;
    struct probe *victim = p->victim;
    p->victim = NULL;
    probe_close(victim);
    mem_free(victim);
}

static struct probe *probe_new(unsigned count, uint32_t events)
{
    struct probe *p = mem_zero(sizeof *p);

    CHECK(p != NULL);
    p->watch = (struct watch){.fd = eventfd(count, EFD_NONBLOCK), .ready = probe_ready};
    CHECK_OK(loop_add(loop, &p->watch, events, &e), &e);
    return p;
}

static void probe_free(struct probe *p)
{
    probe_close(p);
    mem_free(p);
}

TEST(a_ready_descriptor_is_called_with_its_events)
{
    loop_fresh();
    struct probe *p = probe_new(1, EPOLLIN);
    loop_turn(loop, -1);
    CHECK_EQ(p->calls, 1);
    CHECK_EQ(p->events, EPOLLIN);
    probe_free(p);
    loop_free(loop);
}

TEST(readiness_that_is_not_taken_comes_again)
{
    loop_fresh();
    struct probe *p = probe_new(1, EPOLLIN);
    loop_turn(loop, 0);
    loop_turn(loop, 0);
    CHECK_EQ(p->calls, 2);
    p->take = true;
    loop_turn(loop, 0);
    loop_turn(loop, 0);
    CHECK_EQ(p->calls, 3);
    probe_free(p);
    loop_free(loop);
}

TEST(changed_events_hold_from_the_next_turn)
{
    loop_fresh();
    struct probe *p = probe_new(0, EPOLLIN);
    loop_turn(loop, 0);
    CHECK_EQ(p->calls, 0);
    loop_change(loop, &p->watch, EPOLLIN | EPOLLOUT);
    loop_turn(loop, 0);
    CHECK_EQ(p->events, EPOLLOUT);
    loop_change(loop, &p->watch, 0);
    loop_turn(loop, 0);
    CHECK_EQ(p->calls, 1);
    probe_free(p);
    loop_free(loop);
}

/* Whichever of the two is called first, the other is gone by then and may not be called. */
TEST(a_callback_may_free_another_watch_of_the_same_batch)
{
    loop_fresh();
    struct probe *a = probe_new(1, EPOLLIN), *b = probe_new(1, EPOLLIN);
    a->victim = b;
    b->victim = a;
    loop_turn(loop, 0);
    struct probe *left = a->watch.fd >= 0 && a->calls == 1 && a->victim == NULL ? a : b;
    CHECK_EQ(left->calls, 1);
    probe_free(left);
    CHECK_EQ(mem_live(), 1);     /* the loop */
    loop_free(loop);
}

static struct probe *reborn;

static void remove_self(struct watch *w, uint32_t events)
{
    struct probe *p = CONTAINER_OF(w, struct probe, watch);

    (void)events;
    probe_close(p);
    mem_free(p);
    reborn = probe_new(0, EPOLLIN);
}

TEST(a_callback_may_free_itself_and_a_new_watch_in_its_place_is_not_called)
{
    loop_fresh();
    struct probe *p = probe_new(1, EPOLLIN);
    p->watch.ready = remove_self;
    loop_turn(loop, 0);
    loop_turn(loop, 0);
    CHECK_EQ(reborn->calls, 0);
    probe_free(reborn);
    loop_free(loop);
}

TEST(more_descriptors_than_one_batch_are_all_served)
{
    struct probe *p[300];

    loop_fresh();
    for (size_t i = 0; i < 300; i++) {
        p[i] = probe_new(1, EPOLLIN);
        p[i]->take = true;
    }
    for (int i = 0; i < 3; i++) loop_turn(loop, 0);
    for (size_t i = 0; i < 300; i++) {
        CHECK_EQ(p[i]->calls, 1);
        probe_free(p[i]);
    }
    loop_free(loop);
}

/* ---- tasks ---------------------------------------------------------------------------------------------------- */

struct job {
    struct loop_task task;
    struct job *cancels;
    unsigned calls;
    bool again;
};

static void job_run(struct loop_task *t)
{
    struct job *j = CONTAINER_OF(t, struct job, task);

    j->calls++;
    if (j->again) loop_later(loop, t);
    if (j->cancels != NULL) list_remove(&j->cancels->task.node);
}

TEST(a_task_runs_once_and_before_the_loop_waits)
{
    struct job j = {.task.run = job_run};

    loop_fresh();
    loop_later(loop, &j.task);
    loop_later(loop, &j.task);
    loop_turn(loop, 0);
    loop_turn(loop, 0);
    CHECK_EQ(j.calls, 1);
    loop_free(loop);
}

TEST(a_task_that_asks_for_itself_does_not_keep_the_loop_from_its_descriptors)
{
    struct job j = {.task.run = job_run, .again = true};

    loop_fresh();
    struct probe *p = probe_new(1, EPOLLIN);
    loop_later(loop, &j.task);
    loop_turn(loop, -1);
    CHECK_EQ(p->calls, 1);
    CHECK_EQ(j.calls, 2);        /* once before the wait, once after */
    list_remove(&j.task.node);
    probe_free(p);
    loop_free(loop);
}

TEST(with_a_task_left_a_turn_does_not_wait)
{
    struct job j = {.task.run = job_run, .again = true};

    loop_fresh();
    loop_later(loop, &j.task);
    test_time_limit(20);
    loop_turn(loop, -1);
    CHECK(j.calls > 0);
    list_remove(&j.task.node);
    loop_free(loop);
}

TEST(a_task_may_take_back_one_behind_it)
{
    struct job last = {.task.run = job_run}, second = {.task.run = job_run};
    struct job first = {.task.run = job_run, .cancels = &second};

    loop_fresh();
    loop_later(loop, &first.task);
    loop_later(loop, &second.task);
    loop_later(loop, &last.task);
    loop_turn(loop, 0);
    CHECK_EQ(second.calls, 0);
    CHECK_EQ(last.calls, 1);
    loop_free(loop);
}

/* ---- failures ------------------------------------------------------------------------------------------------- */

TEST(a_descriptor_that_cannot_be_watched_is_an_error)
{
    struct watch w = {.fd = -1, .ready = probe_ready};

    loop_fresh();
    CHECK_EQ(loop_add(loop, &w, EPOLLIN, &e), STATUS_UNAVAILABLE);
    CHECK_SAYS(e.text, "cannot be watched");
    loop_free(loop);
}

TEST(a_loop_without_memory_is_an_error)
{
    mem_fault_at(1);
    CHECK_EQ(loop_new(&loop, &e), STATUS_RESOURCE_EXHAUSTED);
    mem_fault_at(0);
    CHECK_EQ(mem_live(), 0);
    loop_free(NULL);
}

static bool is_spent_at_once(void *ctx)
{
    (void)ctx;
    return true;
}

TEST(a_turn_that_is_spent_puts_the_others_off_and_none_is_left_out)
{
    enum { PROBES = 5 };
    struct probe *p[PROBES];

    loop_fresh();
    loop_bound(loop, is_spent_at_once, NULL);
    for (int i = 0; i < PROBES; i++) p[i] = probe_new(1, EPOLLIN); /* always ready */
    for (int n = 0; n < 3 * PROBES; n++) {
        unsigned calls = 0;
        loop_turn(loop, 0);
        for (int i = 0; i < PROBES; i++) calls += p[i]->calls;
        CHECK_EQ(calls, n + 1);
    }
    for (int i = 0; i < PROBES; i++) CHECK_EQ(p[i]->calls, 3);
    /* One that goes is not called, though it was put off. */
    loop_turn(loop, 0);
    probe_free(p[PROBES - 1]);
    for (int n = 0; n < PROBES; n++) loop_turn(loop, 0);
    for (int i = 0; i < PROBES - 1; i++) probe_free(p[i]);
    loop_free(loop);
}
