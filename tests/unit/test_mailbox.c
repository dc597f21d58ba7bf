/* The mailbox: order, bounds, the descriptor, and four threads that post at once. */
#include "service/base/mailbox.h"

#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

struct note {
    struct mail mail;
    int id;
};

static int opened[64];
static size_t opened_count;

static void note_open(struct mail *m)
{
    struct note *n = CONTAINER_OF(m, struct note, mail);

    CHECK(!list_linked(&m->node));
    CHECK(opened_count < sizeof opened / sizeof opened[0]);
    opened[opened_count++] = n->id;
}

static struct mailbox *box(size_t requests_max, struct note *notes, int count)
{
    struct mailbox *b = NULL;
    struct error e;

    opened_count = 0;
    for (int i = 0; i < count; i++) notes[i] = (struct note){.mail.open = note_open, .id = i};
    CHECK_OK(mailbox_new(requests_max, &b, &e), &e);
    return b;
}

static bool readable(const struct mailbox *b)
{
    struct pollfd p = {.fd = mailbox_fd(b), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

TEST(mail_is_opened_in_the_order_of_posting_whatever_its_kind)
{
    struct note notes[10];
    struct mailbox *b = box(10, notes, 10);

    for (int i = 0; i < 10; i++) {
        if (i % 3 == 0) mailbox_notice(b, &notes[i].mail);
        else CHECK(mailbox_request(b, &notes[i].mail));
    }
    CHECK_EQ(opened_count, 0);
    mailbox_take(b);
    CHECK_EQ(opened_count, 10);
    for (int i = 0; i < 10; i++) CHECK_EQ(opened[i], i);
    mailbox_free(b);
}

TEST(a_request_to_a_full_box_is_refused_and_stays_the_senders)
{
    struct note notes[4];
    struct mailbox *b = box(3, notes, 4);

    for (int i = 0; i < 3; i++) CHECK(mailbox_request(b, &notes[i].mail));
    CHECK(!mailbox_request(b, &notes[3].mail));
    CHECK(!list_linked(&notes[3].mail.node));
    mailbox_take(b);
    CHECK_EQ(opened_count, 3);
    CHECK(mailbox_request(b, &notes[3].mail));
    mailbox_take(b);
    CHECK_EQ(opened_count, 4);
    mailbox_free(b);
}

TEST(a_notice_is_never_refused)
{
    struct note notes[40];
    struct mailbox *b = box(0, notes, 40);

    CHECK(!mailbox_request(b, &notes[0].mail));
    for (int i = 0; i < 40; i++) mailbox_notice(b, &notes[i].mail);
    mailbox_take(b);
    CHECK_EQ(opened_count, 40);
    mailbox_free(b);
}

TEST(posting_twice_is_once)
{
    struct note notes[2];
    struct mailbox *b = box(2, notes, 2);

    mailbox_notice(b, &notes[0].mail);
    mailbox_notice(b, &notes[0].mail);
    CHECK(mailbox_request(b, &notes[1].mail));
    CHECK(mailbox_request(b, &notes[1].mail));
    mailbox_notice(b, &notes[0].mail);
    mailbox_take(b);
    CHECK_EQ(opened_count, 2);
    CHECK(opened[0] == 0 && opened[1] == 1);
    mailbox_notice(b, &notes[0].mail);
    mailbox_take(b);
    CHECK_EQ(opened_count, 3);
    mailbox_free(b);
}

TEST(the_descriptor_is_readable_while_something_lies_in_the_box)
{
    struct note notes[3];
    struct mailbox *b = box(1, notes, 3);

    CHECK(!readable(b));
    mailbox_take(b);
    CHECK(!readable(b));
    for (int round = 0; round < 5; round++) {
        CHECK(mailbox_request(b, &notes[0].mail));
        CHECK(readable(b));
        CHECK(!mailbox_request(b, &notes[1].mail));
        mailbox_notice(b, &notes[2].mail);
        CHECK(readable(b));
        mailbox_take(b);
        CHECK(!readable(b));
    }
    CHECK_EQ(opened_count, 10);
    mailbox_free(b);
}

struct again {
    struct mail mail, *other;
    struct mailbox *box;
    unsigned opened, stop;
};

static void again_open(struct mail *m)
{
    struct again *a = CONTAINER_OF(m, struct again, mail);

    a->opened++;
    if (a->other != NULL) mailbox_notice(a->box, a->other);
    if (a->opened < a->stop) mailbox_notice(a->box, m);
}

TEST(a_mail_that_posts_itself_again_waits_for_the_next_take)
{
    struct mailbox *b = box(1, NULL, 0);
    struct again a = {.mail.open = again_open, .box = b, .stop = 3};

    mailbox_notice(b, &a.mail);
    for (unsigned i = 1; i <= 3; i++) {
        CHECK(readable(b));
        mailbox_take(b);
        CHECK_EQ(a.opened, i);
    }
    CHECK(!readable(b));
    mailbox_free(b);
}

TEST(what_open_posts_behind_other_mail_is_not_forgotten)
{
    struct note notes[2];
    struct mailbox *b = box(4, notes, 2);
    struct again a = {.mail.open = again_open, .box = b, .other = &notes[1].mail};

    mailbox_notice(b, &a.mail);
    mailbox_notice(b, &notes[0].mail);
    mailbox_take(b);
    CHECK_EQ(opened_count, 1);
    CHECK(readable(b));
    mailbox_take(b);
    CHECK_EQ(opened_count, 2);
    CHECK_EQ(opened[1], 1);
    CHECK(!readable(b));
    mailbox_free(b);
}

TEST(what_is_inside_at_the_end_is_not_opened)
{
    struct note notes[2];
    int64_t before = mem_live();
    struct mailbox *b = box(2, notes, 2);

    mailbox_notice(b, &notes[0].mail);
    CHECK(mailbox_request(b, &notes[1].mail));
    mailbox_free(b);
    CHECK_EQ(opened_count, 0);
    CHECK_EQ(mem_live(), before);
    mailbox_free(NULL);
}

TEST(a_box_without_memory_or_descriptor_says_so)
{
    struct mailbox *b = NULL;
    struct rlimit was, none;
    struct error e;
    int64_t before = mem_live();

    mem_fault_at(1);
    CHECK_EQ(mailbox_new(1, &b, &e), STATUS_RESOURCE_EXHAUSTED);
    mem_fault_at(0);
    CHECK_EQ(e.reason, REASON_NO_MEMORY);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = was.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum status s = mailbox_new(1, &b, &e);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
    CHECK_EQ(s, STATUS_UNAVAILABLE);
    CHECK_EQ(e.reason, REASON_SYSTEM);
    CHECK_SAYS(e.text, "Too many open files");
    CHECK(b == NULL);
    CHECK_EQ(mem_live(), before);
}

/* ---- four posters, one taker ---- */

enum { POSTERS = 4, EACH = 10000, DEPTH = 64 };

struct letter {
    struct mail mail;
    struct poster *from;
    unsigned number;
};

struct poster {
    struct mailbox *box;
    struct letter *letters;
    struct mail notice;
    atomic_uint posted;      /* how often the notice was to be posted so far; written before posting */
    atomic_uint refused;
    unsigned seen;           /* the taker's: what `posted` was when the notice was last opened */
    unsigned next;           /* the taker's: the number that must come now */
    unsigned bad, notices;   /* the taker's */
};

static size_t received;

static void letter_open(struct mail *m)
{
    struct letter *l = CONTAINER_OF(m, struct letter, mail);

    if (l->number != l->from->next++) l->from->bad++;
    received++;
}

static void notice_open(struct mail *m)
{
    struct poster *p = CONTAINER_OF(m, struct poster, notice);

    p->seen = atomic_load(&p->posted);
    p->notices++;
}

static void *post_all(void *argument)
{
    struct poster *p = argument;

    for (unsigned i = 0; i < EACH; i++) {
        while (!mailbox_request(p->box, &p->letters[i].mail)) {
            atomic_fetch_add(&p->refused, 1);
            sched_yield();
        }
        if (i % 7 != 0) continue;
        atomic_fetch_add(&p->posted, 1);
        mailbox_notice(p->box, &p->notice);
    }
    return NULL;
}

static void poster_init(struct poster *p, struct mailbox *b)
{
    *p = (struct poster){.box = b, .notice.open = notice_open};
    p->letters = mem_array(EACH, sizeof *p->letters);
    CHECK(p->letters != NULL);
    for (unsigned i = 0; i < EACH; i++)
        p->letters[i] = (struct letter){.mail.open = letter_open, .from = p, .number = i};
}

static bool all_seen(const struct poster *posters)
{
    for (int i = 0; i < POSTERS; i++)
        if (posters[i].seen < (EACH + 6) / 7) return false;
    return received == (size_t)POSTERS * EACH;
}

/* Sleeps only on the descriptor: a wake that got lost would leave it there until the time limit. */
static void take_all(struct mailbox *b, const struct poster *posters)
{
    while (!all_seen(posters)) {
        struct pollfd p = {.fd = mailbox_fd(b), .events = POLLIN};
        CHECK_EQ(poll(&p, 1, -1), 1);
        mailbox_take(b);
    }
}

TEST(four_posters_lose_nothing_double_nothing_and_keep_their_order)
{
    static struct poster posters[POSTERS];
    pthread_t threads[POSTERS];
    struct mailbox *b = box(DEPTH, NULL, 0);

    test_time_limit(60);
    received = 0;
    for (int i = 0; i < POSTERS; i++) poster_init(&posters[i], b);
    for (int i = 0; i < POSTERS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, post_all, &posters[i]), 0);
    take_all(b, posters);
    for (int i = 0; i < POSTERS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    mailbox_take(b);
    CHECK_EQ(received, POSTERS * EACH);
    for (int i = 0; i < POSTERS; i++) {
        CHECK_EQ(posters[i].bad, 0);
        CHECK_EQ(posters[i].next, EACH);
        CHECK(posters[i].notices >= 1 && posters[i].notices <= (EACH + 6) / 7);
        mem_free(posters[i].letters);
    }
    mailbox_take(b);
    CHECK(!readable(b));
    mailbox_free(b);
}

static void *ping(void *argument)
{
    struct poster *p = argument;

    for (unsigned i = 0; i < EACH; i++)
        while (!mailbox_request(p->box, &p->letters[i].mail)) sched_yield();
    return NULL;
}

/* A box of one is empty at every other post, where a lost wake would show. */
TEST(a_box_of_one_never_forgets_to_wake_the_taker)
{
    static struct poster posters[POSTERS];
    pthread_t threads[POSTERS];
    struct mailbox *b = box(1, NULL, 0);

    test_time_limit(60);
    received = 0;
    for (int i = 0; i < POSTERS; i++) {
        poster_init(&posters[i], b);
        posters[i].seen = EACH;
    }
    for (int i = 0; i < POSTERS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, ping, &posters[i]), 0);
    take_all(b, posters);
    for (int i = 0; i < POSTERS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < POSTERS; i++) {
        CHECK_EQ(posters[i].bad, 0);
        mem_free(posters[i].letters);
    }
    mailbox_free(b);
}
