#include "api/client/drive.h"

#include "api/client/seat.h"
#include "service/base/clock.h"
#include "service/base/mem.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    LOOK_MS = 500,               /* how often the background thread looks whether somebody drives */
    MOMENT_MS = 2,               /* how long it leaves small requests to a caller who has driven since it looked last */
    /* How long a call of many slices looks for the next answer before it sleeps. A sleeper is woken on the processor of
     * whoever wakes it, where there are few, and daemon and client then take turns on one. */
    LOOK_NS = 200000
};

/* ---- one turn ---------------------------------------------------------------------------------------------------- */

static uint64_t run_links(struct paramd *kv, uint64_t now, const bool *readable)
{
    uint64_t due = UINT64_MAX;

    for (unsigned i = 0; i < kv->link_count; i++) {
        struct link *l = kv->links[i];
        uint64_t at = l->ops->run(l, now, readable != NULL && readable[i]);
        if (at < due) due = at;
    }
    return due;
}

/* The engine moves and what it has to send is sent, until nothing moves any more without time or the network. Answers
 * when something is due. */
static uint64_t move(struct paramd *kv)
{
    uint64_t now = clock_ms(), before, due, links;

    do {
        before = engine_activity(kv->engine);
        due = engine_tick(kv->engine, now);
        links = run_links(kv, now, NULL);
    } while (engine_activity(kv->engine) != before);
    return links < due ? links : due;
}

static int timeout_of(uint64_t due)
{
    uint64_t now = clock_ms();

    if (due <= now) return 0;
    return due - now < 3600000 ? (int)(due - now) : 3600000;
}

static void drain(int kick)
{
    uint64_t count;

    while (read(kick, &count, sizeof count) < 0 && errno == EINTR) continue;
}

enum { FDS_MAX = 1 + LANES_MAX * LINK_FDS_MAX };

/* What is to be polled; from[i] is where link i begins. */
static unsigned watch_links(struct paramd *kv, struct pollfd fds[FDS_MAX], unsigned from[LANES_MAX + 1])
{
    fds[0] = (struct pollfd){.fd = kv->kick, .events = POLLIN};
    from[0] = 1;
    for (unsigned i = 0; i < kv->link_count; i++)
        from[i + 1] = from[i] + kv->links[i]->ops->watch(kv->links[i], &fds[from[i]]);
    return from[kv->link_count];
}

static int poll_until(struct pollfd *fds, unsigned count, uint64_t due, bool sliced)
{
    uint64_t end = sliced ? clock_ns() + LOOK_NS : 0;

    while (sliced && clock_ns() < end) {
        int ready = poll(fds, count, 0);
        if (ready != 0) return ready;
        sched_yield();
    }
    return poll(fds, count, timeout_of(due));
}

/* Polls, without the lock, until something can be read or written, or it is time. */
static void poll_links(struct paramd *kv, uint64_t due, bool *readable)
{
    struct pollfd fds[FDS_MAX];
    unsigned from[LANES_MAX + 1];

    kv->polled_count = watch_links(kv, fds, from);
    kv->poll_until = due;
    memcpy(kv->polled, fds, kv->polled_count * sizeof fds[0]);
    kv->driving = true;
    bool sliced = kv->sliced > 0;
    pthread_mutex_unlock(&kv->lock);
    int ready = poll_until(fds, from[kv->link_count], due, sliced);
    pthread_mutex_lock(&kv->lock);
    kv->driving = false;
    if (ready <= 0) return;
    if (fds[0].revents != 0) drain(kv->kick);
    for (unsigned i = 0; i < kv->link_count; i++)
        for (unsigned f = from[i]; f < from[i + 1]; f++) readable[i] |= fds[f].revents != 0;
}

static bool is_over(const struct op *op) { return op != NULL && op_result(op)->finished; }

static void turn(struct paramd *kv, const struct op *op, uint64_t until)
{
    uint64_t finished = engine_finished(kv->engine), due = move(kv);
    bool readable[LANES_MAX] = {false};

    if (!is_over(op)) {
        poll_links(kv, due < until ? due : until, readable);
        uint64_t now = clock_ms();
        (void)engine_tick(kv->engine, now);
        (void)run_links(kv, now, readable);
    }
    if (kv->waiters > 0 && (finished != engine_finished(kv->engine) || is_over(op)))
        pthread_cond_broadcast(&kv->turn);
}

static struct timespec moment(uint64_t ms)
{
    return (struct timespec){.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
}

static void sleep_on(struct paramd *kv, pthread_cond_t *on, uint64_t until)
{
    struct timespec at = moment(until);

    if (until == UINT64_MAX) pthread_cond_wait(on, &kv->lock);
    else pthread_cond_timedwait(on, &kv->lock, &at);
}

static void kick(struct paramd *kv)
{
    uint64_t one = 1;

    if (kv->kick >= 0 && write(kv->kick, &one, sizeof one) < 0) return; /* full: it is awake */
}

/* Whether he who polls has to know of something: an earlier time, or other things to poll for. */
static bool is_news(struct paramd *kv, uint64_t due)
{
    struct pollfd fds[FDS_MAX];
    unsigned from[LANES_MAX + 1], count = watch_links(kv, fds, from);

    if (due < kv->poll_until || count != kv->polled_count) return true;
    for (unsigned i = 0; i < count; i++)
        if (fds[i].fd != kv->polled[i].fd || fds[i].events != kv->polled[i].events) return true;
    return false;
}

void drive_until(struct paramd *kv, const struct op *op, uint64_t until)
{
    while (!is_over(op) && clock_ms() < until) {
        if (!kv->driving) {
            kv->turns++;
            turn(kv, op, until);
            continue;
        }
        kv->waiters++;
        if (kv->background_drives) kick(kv);
        sleep_on(kv, &kv->turn, until);
        kv->waiters--;
    }
    /* One of those who still wait drives on. */
    if (kv->waiters > 0 && !kv->driving) pthread_cond_broadcast(&kv->turn);
}

/* ---- the background thread --------------------------------------------------------------------------------------- */

static void mind(struct paramd *kv)
{
    kv->minding = true;
    sleep_on(kv, &kv->idle, clock_ms() + MOMENT_MS);
    kv->minding = false;
}

/* Who drives sends heartbeats, too. When he leaves, the next one must not be late. */
static uint32_t look_ms(const struct paramd *kv)
{
    uint32_t half = engine_heartbeat_ms(kv->engine) / 2;

    return half < 1 ? 1 : half < LOOK_MS ? half : LOOK_MS;
}

static void *background(void *arg)
{
    struct paramd *kv = arg;
    uint64_t turns = 0;

    pthread_mutex_lock(&kv->lock);
    while (!kv->stopping) {
        if (kv->driving || kv->waiters > 0) {
            sleep_on(kv, &kv->idle, clock_ms() + look_ms(kv));
        } else if (engine_busy(kv->engine) && turns != kv->turns && engine_is_light(kv->engine)) {
            turns = kv->turns;
            mind(kv);
        } else if (engine_busy(kv->engine)) {
            kv->background_drives = true;
            turn(kv, NULL, UINT64_MAX);
            kv->background_drives = false;
            if (kv->waiters > 0) pthread_cond_broadcast(&kv->turn);
        } else {
            uint64_t due = move(kv);
            if (!engine_busy(kv->engine)) sleep_on(kv, &kv->idle, due);
        }
    }
    pthread_mutex_unlock(&kv->lock);
    return NULL;
}

/* Signals are for the program's own threads. */
static enum status start_thread(struct paramd *kv, struct error *e)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&kv->thread, NULL, background, kv);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) return error_set(e, REASON_SYSTEM, "no thread for heartbeats: %s", strerror(code));
    kv->has_thread = true;
    return STATUS_OK;
}

static void stop_thread(struct paramd *kv)
{
    if (!kv->has_thread) return;
    pthread_mutex_lock(&kv->lock);
    kv->stopping = true;
    pthread_cond_signal(&kv->idle);
    kick(kv);
    pthread_mutex_unlock(&kv->lock);
    pthread_join(kv->thread, NULL);
}

/* ---- forks -------------------------------------------------------------------------------------------------------- */

/* Forks between the first handle and this process. Each call looks at it, where asking the kernel for the process's number
 * is a twentieth of a small push. */
static atomic_uint forks;
static int no_forks_seen;        /* why they are not counted; 0: they are */

static void count_fork(void) { atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed); }
static void begin_count(void) { no_forks_seen = pthread_atfork(NULL, NULL, count_fork); }

static enum status remember_forks(struct paramd *kv, struct error *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, begin_count);
    kv->forks = atomic_load_explicit(&forks, memory_order_relaxed);
    return no_forks_seen == 0 ? STATUS_OK : error_set(e, REASON_SYSTEM, "forks cannot be seen: %s", strerror(no_forks_seen));
}

bool drive_has_forked(const struct paramd *kv) { return kv->forks != atomic_load_explicit(&forks, memory_order_relaxed); }

/* ---- entering and leaving ---------------------------------------------------------------------------------------- */

enum status drive_enter(struct paramd *kv, struct error *e)
{
    if (kv == NULL) return error_set(e, REASON_BAD_ARGUMENT, "the store handle is NULL: paramd_create opens one");
    if (drive_has_forked(kv))
        return error_set(e, REASON_FORKED, "this handle was opened before the process forked: open one in the child");
    if (atomic_load(&kv->inside) && pthread_equal(kv->inside_thread, pthread_self()))
        return error_set(e, REASON_REENTRANT, "the store cannot be used from inside its updater function");
    pthread_mutex_lock(&kv->lock);
    (void)engine_tick(kv->engine, clock_ms());
    return STATUS_OK;
}

/* Somebody is to look after what is under way. */
static void leave_to_others(struct paramd *kv)
{
    bool light = engine_is_light(kv->engine);

    if (kv->driving || !kv->has_thread || !light || !engine_may_gather(kv->engine)) {
        uint64_t due = move(kv);
        if (kv->driving) {
            if (is_news(kv, due)) kick(kv);
            return;
        }
    }
    if (kv->has_thread && kv->waiters == 0 && !(kv->minding && light)) pthread_cond_signal(&kv->idle);
}

void drive_leave(struct paramd *kv)
{
    if (engine_busy(kv->engine)) leave_to_others(kv);
    pthread_mutex_unlock(&kv->lock);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static enum status fill_random(void *at, size_t size, struct error *e)
{
    if (getrandom(at, size, 0) == (ssize_t)size) return STATUS_OK;
    return error_set(e, REASON_SYSTEM, "no random numbers: %s", strerror(errno));
}

static enum status add_link(struct paramd *kv, enum role role, const uint8_t seed[16], struct error *e)
{
    struct link *l = NULL;
    enum status s;

    if (kv->options.embedded) s = link_direct_new(seed, kv->options.needs_gpu, &l, e);
    else s = kv->options.nanomsg ? link_nn_new(&l, e) : link_sp_new(&l, e);
    if (s != STATUS_OK) return s;
    kv->links[kv->link_count++] = l;
    return engine_add_link(kv->engine, role, l, e);
}

static enum status add_links(struct paramd *kv, const uint8_t seed[16], struct error *e)
{
    enum status s = add_link(kv, ROLE_CONTROL, seed, e);

    if (kv->options.embedded || s != STATUS_OK) return s;
    s = add_link(kv, ROLE_WAIT, seed, e);
    for (unsigned i = 0; s == STATUS_OK && i < kv->options.connections; i++) s = add_link(kv, ROLE_DATA, seed, e);
    return s;
}

static void init_locks(struct paramd *kv)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&kv->lock, NULL);
    pthread_mutex_init(&kv->seat_lock, NULL);
    pthread_cond_init(&kv->turn, &monotonic);
    pthread_cond_init(&kv->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static enum status open_kick(struct paramd *kv, struct error *e)
{
    if (kv->options.embedded) return STATUS_OK;
    kv->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return kv->kick >= 0 ? STATUS_OK : error_set(e, REASON_SYSTEM, "no eventfd: %s", strerror(errno));
}

enum status drive_new(const struct client_type *type, struct client_options *options, struct paramd **out,
                      struct error *e)
{
    struct paramd *kv = mem_zero(sizeof *kv);
    struct engine_config c = {0};

    if (kv == NULL) {
        client_options_fini(options);
        return error_set(e, REASON_NO_MEMORY, "no memory for a store handle");
    }
    kv->type = *type;
    kv->options = *options;
    kv->kick = -1;
    init_locks(kv);
    c.options = &kv->options;

    enum status s = remember_forks(kv, e);
    if (s == STATUS_OK) s = fill_random(c.seed, sizeof c.seed, e);
    if (s == STATUS_OK && !options->own_worker) s = fill_random(&kv->options.worker, sizeof kv->options.worker, e);
    if (s == STATUS_OK) s = open_kick(kv, e);
    if (s == STATUS_OK) s = engine_new(&c, clock_ms(), &kv->engine, e);
    if (s == STATUS_OK) s = add_links(kv, c.seed, e);
    if (s == STATUS_OK && !kv->options.embedded) s = start_thread(kv, e);
    if (s == STATUS_OK) {
        *out = kv;
        kv = NULL;
    }
    drive_free(kv);
    return s;
}

void drive_free(struct paramd *kv)
{
    if (kv == NULL) return;
    stop_thread(kv);
    seat_free(kv->seat);
    engine_free(kv->engine);
    for (unsigned i = 0; i < kv->link_count; i++) kv->links[i]->ops->free(kv->links[i]);
    if (kv->kick >= 0) close(kv->kick);
    pthread_cond_destroy(&kv->idle);
    pthread_cond_destroy(&kv->turn);
    pthread_mutex_destroy(&kv->seat_lock);
    pthread_mutex_destroy(&kv->lock);
    client_options_fini(&kv->options);
    mem_free(kv);
}
