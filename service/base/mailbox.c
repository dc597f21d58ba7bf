#include "service/base/mailbox.h"

#include "service/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct mailbox {
    pthread_mutex_t lock;    /* guards mails and count; held for a few instructions, never across a call that waits */
    struct list mails;
    size_t count;
    size_t requests_max;
    int fd;
    bool (*is_spent)(void *ctx);     /* the taker's; NULL: nothing bounds a call */
    void *ctx;
};

enum status mailbox_new(size_t requests_max, struct mailbox **out, struct error *e)
{
    struct mailbox *b = mem_zero(sizeof *b);

    if (b == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a mailbox");
    b->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (b->fd < 0) {
        enum status s = error_set(e, REASON_SYSTEM, "no event descriptor: %s", strerror(errno));
        mem_free(b);
        return s;
    }
    pthread_mutex_init(&b->lock, NULL);
    list_init(&b->mails);
    b->requests_max = requests_max;
    *out = b;
    return STATUS_OK;
}

void mailbox_free(struct mailbox *b)
{
    if (b == NULL) return;
    close(b->fd);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

int mailbox_fd(const struct mailbox *b) { return b->fd; }

void mailbox_bound(struct mailbox *b, bool (*is_spent)(void *ctx), void *ctx)
{
    b->is_spent = is_spent;
    b->ctx = ctx;
}

/* It can only fail when the counter is full, and then the descriptor is readable anyway. */
static void wake(struct mailbox *b)
{
    uint64_t one = 1;
    if (write(b->fd, &one, sizeof one) < 0) return;
}

static bool post(struct mailbox *b, struct mail *m, size_t count_max)
{
    bool first = false, posted = true;

    pthread_mutex_lock(&b->lock);
    if (list_linked(&m->node)) {
        posted = true;
    } else if (b->count >= count_max) {
        posted = false;
    } else {
        first = list_empty(&b->mails);
        list_append(&b->mails, &m->node);
        b->count++;
    }
    pthread_mutex_unlock(&b->lock);
    if (first) wake(b);
    return posted;
}

bool mailbox_request(struct mailbox *b, struct mail *m) { return post(b, m, b->requests_max); }
void mailbox_notice(struct mailbox *b, struct mail *m) { post(b, m, SIZE_MAX); }

bool mailbox_withdraw(struct mailbox *b, struct mail *m)
{
    pthread_mutex_lock(&b->lock);
    bool inside = list_linked(&m->node);
    list_remove(&m->node);
    if (inside) b->count--;
    pthread_mutex_unlock(&b->lock);
    return inside;
}

static size_t count_of(struct mailbox *b)
{
    pthread_mutex_lock(&b->lock);
    size_t count = b->count;
    pthread_mutex_unlock(&b->lock);
    return count;
}

static struct mail *pop(struct mailbox *b)
{
    pthread_mutex_lock(&b->lock);
    struct mail *m = LIST_FIRST(struct mail, node, &b->mails);
    if (m != NULL) {
        list_remove(&m->node);
        b->count--;
    }
    pthread_mutex_unlock(&b->lock);
    return m;
}

/* What is posted meanwhile waits for the next call: a mail that posts itself again, or senders that are faster than
 * the taker, would else keep it from its other work for ever. */
void mailbox_take(struct mailbox *b)
{
    uint64_t signals;

    /* Before the count: what is posted from here on to an empty box makes the descriptor readable anew. */
    if (read(b->fd, &signals, sizeof signals) < 0 && errno != EAGAIN) return;
    size_t left = count_of(b);
    for (struct mail *m; left > 0 && (m = pop(b)) != NULL; left--) {
        m->open(m);
        if (b->is_spent != NULL && b->is_spent(b->ctx)) break;
    }
    /* What was posted behind others had no wake of its own. */
    if (count_of(b) > 0) wake(b);
}
