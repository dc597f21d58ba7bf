/* The store beside raw TCP, raw TCP that adds, the same with keys, bare libnanomsg and Redis: the same bytes to the same keys, the peers in turn.
 *
 * For a row every peer gets a fresh server and its client processes. A repetition lets each peer's clients do their
 * operations once and then, outside the measured time, settle and compare what the server holds with what it must
 * hold: the sum of all pushes, or the last one where a peer does not add. A first round is not counted. */
#include "tests/bench/peer.h"

#include "service/base/clock.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS_MAX = 4, ANSWER_MS = 120000 };

/* ---- the rows --------------------------------------------------------------------------------------------------- */

enum peer_number { PARAMD, TCP, TCP_ADDS, TCP_KEYS, NANOMSG, REDIS, PEERS };
static const struct peer *const peers[PEERS] = {&peer_paramd, &peer_tcp, &peer_tcp_adds, &peer_tcp_keys,
                                                 &peer_nanomsg, &peer_redis};

enum unit { UNIT_GB, UNIT_US, UNIT_MS, UNIT_KOPS };
static const char *const unit_names[] = {"GB/s", "us", "ms", "1000/s"};

struct row {
    const char *id, *text;
    struct job job;
    unsigned ops;                /* of one client in a repetition, a multiple of the job's distinct ones */
    enum unit unit;
    double goals[PEERS];         /* paramd's speed as a multiple of the peer's; 0: none */
};

#define MIB_KEY(work, answer, clients, mib) {work, answer, clients, 1, 1, 1, (size_t)(mib) << 20}

static const struct row rows[] = {
    {"P1", "push 64 MiB, recorded", MIB_KEY(WORK_PUSH, ANSWER_RECORDED, 1, 64), 3, UNIT_GB,
     {[TCP] = 0.6, [REDIS] = 5}},
    {"P1", "push 64 MiB, applied", MIB_KEY(WORK_PUSH, ANSWER_APPLIED, 1, 64), 3, UNIT_GB,
     {[TCP] = 0.6, [REDIS] = 5}},
    {"P1b", "pull 64 MiB", MIB_KEY(WORK_PULL, 0, 1, 64), 3, UNIT_GB, {[TCP] = 0.7, [REDIS] = 5}},
    {"P2", "push 1 MiB, applied", MIB_KEY(WORK_PUSH, ANSWER_APPLIED, 1, 1), 100, UNIT_GB, {[TCP] = 0.6, [REDIS] = 2}},
    {"P2", "push 1 MiB, recorded", MIB_KEY(WORK_PUSH, ANSWER_RECORDED, 1, 1), 100, UNIT_GB,
     {[TCP] = 0.6, [REDIS] = 2}},
    {"P2", "push 1 MiB, recorded, 4 under way", {WORK_PUSH, ANSWER_RECORDED, 1, 4, 4, 1, 1 << 20}, 100, UNIT_GB,
     {[TCP] = 0.6, [REDIS] = 2}},
    {"P2", "push 1 MiB, recorded", MIB_KEY(WORK_PUSH, ANSWER_RECORDED, 4, 1), 50, UNIT_GB,
     {[TCP] = 0.6, [REDIS] = 2}},
    {"P2", "push 4 MiB, applied", MIB_KEY(WORK_PUSH, ANSWER_APPLIED, 1, 4), 25, UNIT_GB, {[TCP] = 0.6, [REDIS] = 2}},
    {"P2", "push 4 MiB, recorded", MIB_KEY(WORK_PUSH, ANSWER_RECORDED, 1, 4), 25, UNIT_GB,
     {[TCP] = 0.6, [REDIS] = 2}},
    {"P2", "push 4 MiB, recorded", MIB_KEY(WORK_PUSH, ANSWER_RECORDED, 4, 4), 12, UNIT_GB,
     {[TCP] = 0.6, [REDIS] = 2}},
    {"P3", "10000 keys of 256 B, push + pull", {WORK_BOTH, ANSWER_APPLIED, 1, 1, 10000, 10000, 256}, 10, UNIT_MS,
     {[REDIS] = 3}},
    {"P4", "push 64 B, one at a time", {WORK_PUSH, ANSWER_RECORDED, 1, 1, 1, 1, 64}, 3000, UNIT_US, {[TCP] = 0.5}},
    {"P4", "push 64 B, 16 under way", {WORK_PUSH, ANSWER_RECORDED, 4, 16, 16, 1, 64}, 4000, UNIT_KOPS,
     {[NANOMSG] = 5}},
};

static const struct column columns[] = {
    {"id", -3}, {"work", -34}, {"clients", 7}, {"depth", 5}, {"peer", -8}, {"frame", 8}, {"checksum", -8},
    {"answer", -11}, {"median", 7}, {"least..most", -14}, {"unit", -6},
    {"cores", -9}, {"paramd is", 9}, {"goal", 7}, {"met", -16},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* ---- a client process ------------------------------------------------------------------------------------------- */

enum order { ORDER_RUN, ORDER_SETTLE, ORDER_CHECK };

struct command {
    enum order order;
    unsigned factor;             /* CHECK: what every key holds, in multiples of the gradient */
};

struct outcome {
    uint64_t begin_ns, end_ns, lost;
    bool right;
};

static void run_ops(const struct peer *p, struct peer_client *c, enum work w, unsigned ops)
{
    unsigned distinct = job_ops(c->job), sent = 0;

    for (unsigned done = 0; done < ops; done++) {
        for (; sent < ops && sent - done < c->job->depth; sent++) p->begin(c, w, sent % distinct);
        p->finish(c, w, done % distinct);
    }
}

/* Small whole numbers: their sums are exact in any order. */
static void fill_grad(float *grad, size_t count)
{
    for (size_t i = 0; i < count; i++) grad[i] = (float)(((uint32_t)i * 2654435761u) >> 28);
}

static bool holds(const struct peer *p, struct peer_client *c, unsigned factor)
{
    size_t count = job_size(c->job) / sizeof(float);

    memset(c->out, 0xff, job_size(c->job));
    for (unsigned op = 0; op < job_ops(c->job); op++) {
        p->begin(c, WORK_PULL, op);
        p->finish(c, WORK_PULL, op);
    }
    for (size_t i = 0; i < count; i++)
        if (!(c->out[i] == (float)factor * c->grad[i])) return false;
    return true;
}

static struct outcome obey(const struct peer *p, struct peer_client *c, const struct row *r, const struct command *cmd)
{
    struct outcome o = {.right = true};

    o.begin_ns = clock_ns();
    if (cmd->order == ORDER_RUN) run_ops(p, c, r->job.work, r->ops);
    o.end_ns = clock_ns();
    if (cmd->order == ORDER_SETTLE && p->settle != NULL) p->settle(c);
    if (cmd->order == ORDER_CHECK) o.right = holds(p, c, cmd->factor);
    o.lost = c->lost;
    return o;
}

/* Each client pushes every key once before it says that it is ready, so that there is something to pull. */
static void be_client(const struct peer *p, const struct row *r, const char *address, unsigned number, int fd)
{
    struct peer_client *c = bench_memory(p->client_size);
    struct outcome o = {.right = true};
    struct command cmd;
    char name[16];

    snprintf(name, sizeof name, "to %s", p->name);
    prctl(PR_SET_NAME, name); /* so that a profile tells the clients apart */
    memset(c, 0, p->client_size);
    c->job = &r->job;
    c->address = address;
    c->number = number;
    c->grad = bench_memory(job_size(&r->job));
    c->out = bench_memory(job_size(&r->job));
    fill_grad(c->grad, job_size(&r->job) / sizeof(float));
    memset(c->out, 0, job_size(&r->job));
    p->open(c);
    run_ops(p, c, WORK_PUSH, job_ops(&r->job));
    do {
        if (write(fd, &o, sizeof o) != (ssize_t)sizeof o || read(fd, &cmd, sizeof cmd) != (ssize_t)sizeof cmd) break;
        o = obey(p, c, r, &cmd);
    } while (true);
    _exit(0);
}

/* ---- a peer in a row -------------------------------------------------------------------------------------------- */

struct group {
    const struct peer *peer;
    const struct row *row;
    pid_t server, clients[CLIENTS_MAX];
    int fds[CLIENTS_MAX];
    unsigned pushes;             /* of every key, by all clients */
    uint64_t lost;
    struct figures seconds;
    struct figures server_cores, client_cores;   /* kept busy */
    char address[ADDRESS_MAX];
};

static void group_end(struct group *g)
{
    for (unsigned i = 0; i < CLIENTS_MAX && g->clients[i] > 0; i++) {
        child_end(g->clients[i]);
        close(g->fds[i]);
    }
    child_end(g->server);
}

/* The slowest client counts, from when the first one began. */
static double await_all(struct group *g)
{
    uint64_t begin = UINT64_MAX, end = 0;

    g->lost = 0;
    for (unsigned i = 0; i < g->row->job.clients; i++) {
        struct pollfd p = {.fd = g->fds[i], .events = POLLIN};
        struct outcome o;
        if (poll(&p, 1, ANSWER_MS) <= 0 || read(g->fds[i], &o, sizeof o) != (ssize_t)sizeof o)
            bench_fail("%s: a client of %s ended or hangs", g->row->id, g->peer->name);
        if (!o.right) bench_fail("%s: %s does not hold what was pushed", g->row->id, g->peer->name);
        if (o.begin_ns < begin) begin = o.begin_ns;
        if (o.end_ns > end) end = o.end_ns;
        g->lost += o.lost;
    }
    return end > begin ? (double)(end - begin) * 1e-9 : 0;
}

static double order_all(struct group *g, enum order order)
{
    unsigned pushes = g->peer->own_memory ? g->pushes / g->row->job.clients : g->pushes;
    struct command c = {order, g->peer->sums ? pushes : 1};

    for (unsigned i = 0; i < g->row->job.clients; i++)
        if (write(g->fds[i], &c, sizeof c) != (ssize_t)sizeof c)
            bench_fail("%s: a client of %s ended", g->row->id, g->peer->name);
    return await_all(g);
}

/* false: this peer is not on this machine. */
static bool group_begin(struct group *g, const struct peer *p, const struct row *r)
{
    *g = (struct group){.peer = p, .row = r};
    if (!p->start(g->address, &g->server)) return false;
    for (unsigned i = 0; i < r->job.clients; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) bench_fail("no socket pair");
        g->fds[i] = pair[0];
        g->clients[i] = child_fork();
        if (g->clients[i] == 0) {
            close(pair[0]);
            be_client(p, r, g->address, i, pair[1]);
        }
        close(pair[1]);
    }
    await_all(g);
    g->pushes = r->job.clients;
    return true;
}

static double processor_seconds(pid_t pid)
{
    struct timespec t = {0, 0};
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) == 0) clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double clients_seconds(const struct group *g)
{
    double sum = 0;

    for (unsigned i = 0; i < g->row->job.clients; i++) sum += processor_seconds(g->clients[i]);
    return sum;
}

static void measure(struct group *g, bool counted)
{
    double server = processor_seconds(g->server), clients = clients_seconds(g), seconds = order_all(g, ORDER_RUN);

    server = processor_seconds(g->server) - server;
    clients = clients_seconds(g) - clients;
    if (g->row->job.work != WORK_PULL) g->pushes += g->row->job.clients * (g->row->ops / job_ops(&g->row->job));
    order_all(g, ORDER_SETTLE);
    order_all(g, ORDER_CHECK);
    if (!counted) return;
    figures_add(&g->seconds, seconds);
    figures_add(&g->server_cores, server / seconds);
    figures_add(&g->client_cores, clients / seconds);
}

/* ---- what is printed -------------------------------------------------------------------------------------------- */

static double in_unit(const struct row *r, double seconds)
{
    double ops = (double)r->ops * r->job.clients;
    double size = (double)job_op_size(&r->job) * (r->job.work == WORK_BOTH ? 2 : 1);

    switch (r->unit) {
    case UNIT_GB: return ops * size / seconds * 1e-9;
    case UNIT_KOPS: return ops / seconds * 1e-3;
    case UNIT_US: return seconds / r->ops * 1e6;
    default: return seconds / r->ops * 1e3;
    }
}

static const char *answer_text(const struct group *g)
{
    if (g->row->job.work == WORK_PULL) return g->peer->pulled;
    return g->peer->sums && g->row->job.answer == ANSWER_APPLIED ? "summed" : g->peer->pushed;
}

static void print_group(struct bench *b, const struct group *g, const struct group *own)
{
    const struct row *r = g->row;
    size_t op = job_op_size(&r->job), frame_max = g->peer->frame_max;
    char cells[COLUMNS][48], least[16], most[16];
    const char *at[COLUMNS];
    double x = in_unit(r, figures_least(&g->seconds)), y = in_unit(r, figures_most(&g->seconds));
    double goal = r->goals[g->peer == own->peer ? PARAMD : (g - own)];
    struct figures ratio = figures_ratio(&g->seconds, &own->seconds);

    memset(cells, 0, sizeof cells);
    snprintf(cells[0], 48, "%s", r->id);
    snprintf(cells[1], 48, "%s", r->text);
    snprintf(cells[2], 48, "%u", r->job.clients);
    snprintf(cells[3], 48, "%u", r->job.depth);
    snprintf(cells[4], 48, "%s", g->peer->name);
    size_text(frame_max != 0 && op > frame_max ? frame_max : op, cells[5]);
    snprintf(cells[6], 48, "%s", g->peer->checksum);
    snprintf(cells[7], 48, "%s", answer_text(g));
    figures_text(in_unit(r, figures_median(&g->seconds)), cells[8]);
    figures_text(x < y ? x : y, least);
    figures_text(x < y ? y : x, most);
    snprintf(cells[9], 48, "%s..%s", least, most);
    snprintf(cells[10], 48, "%s", unit_names[r->unit]);
    snprintf(cells[11], 48, "%.1f + %.1f", figures_median(&g->server_cores), figures_median(&g->client_cores));
    if (g != own) {
        figures_text(figures_median(&ratio), least);
        snprintf(cells[12], 48, "x %s", least);
    }
    if (goal > 0) {
        snprintf(cells[13], 48, ">= %.3g", goal);
        snprintf(cells[14], 48, "%s", figures_median(&ratio) >= goal ? "yes" : "no");
    }
    if (g->lost > 0) snprintf(cells[14], 48, "%llu answers lost", (unsigned long long)g->lost);
    for (unsigned i = 0; i < COLUMNS; i++) at[i] = cells[i];
    bench_row(b, at);
}

static bool takes_part(const struct peer *p, const struct row *r) { return !p->many_keys || r->job.keys_per_op > 1; }

static void run_row(struct bench *b, const struct row *r)
{
    struct group groups[PEERS] = {0};
    bool here[PEERS];

    for (unsigned i = 0; i < PEERS; i++) here[i] = takes_part(peers[i], r) && group_begin(&groups[i], peers[i], r);
    for (unsigned n = 0; n <= b->repetitions; n++)
        for (unsigned i = 0; i < PEERS; i++)
            if (here[i]) measure(&groups[i], n > 0);
    for (unsigned i = 0; i < PEERS; i++)
        if (here[i]) print_group(b, &groups[i], &groups[PARAMD]);
        else if (takes_part(peers[i], r)) bench_note("%-3s  %-34s  %s is not installed", r->id, r->text, peers[i]->name);
    for (unsigned i = 0; i < PEERS; i++) group_end(&groups[i]);
}

int main(int argc, char **argv)
{
    struct bench b;

    bench_begin(&b, argc, argv, "paramd beside its peers: f32 over the loopback, type dist_async, updater add");
    bench_note("Checked after every repetition: paramd holds the sum of all pushes, the others the last one.\n"
               "An answer means: received, the bytes are in memory; stored, under their key; recorded, they will be\n"
               "counted exactly once; summed, the new value can be pulled. \"cores\": kept busy by server + clients.\n"
               "\"paramd is\": its speed as a multiple of the peer's, the median over the repetitions.");
    bench_table(&b, columns, COLUMNS);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (bench_wants(&b, rows[i].id, rows[i].text)) run_row(&b, &rows[i]);
    bench_end(&b);
    return 0;
}
