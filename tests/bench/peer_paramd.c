/* paramd: the daemon that was built beside this program, its C client, type dist_async, updater add. */
#include "tests/bench/peer.h"

#include "api/client/paramd.h"
#include "api/limits.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READY_MS = 10000, FINISH_MS = 60000, UNDER_WAY_MAX = 64 };

/* ---- server ----------------------------------------------------------------------------------------------------- */

/* build/bench/NAME -> build/paramd */
static void daemon_path(char *out, size_t size)
{
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    self[n > 0 ? n : 0] = '\0';
    for (int i = 0; i < 2; i++)
        if (strrchr(self, '/') != NULL) *strrchr(self, '/') = '\0';
    snprintf(out, size, "%s/paramd", self);
}

static void become_daemon(const char *path, int ready)
{
    dup2(ready, STDOUT_FILENO);
    execl(path, path, "--listen", "tcp://127.0.0.1:0", "--bulk", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0",
          "--probe", "127.0.0.1:0", "--log", "error", (char *)NULL);
    bench_fail("%s cannot be started", path);
}

static bool start(char address[ADDRESS_MAX], pid_t *pid)
{
    char path[600], line[512], *data;
    int ready[2];

    daemon_path(path, sizeof path);
    if (pipe(ready) != 0) bench_fail("no pipe");
    *pid = child_fork();
    if (*pid == 0) become_daemon(path, ready[1]);
    close(ready[1]);
    if (!child_line(ready[0], line, sizeof line, READY_MS) || (data = strstr(line, "data=")) == NULL)
        bench_fail("%s does not get ready", path);
    close(ready[0]);
    snprintf(address, ADDRESS_MAX, "%.*s", (int)strcspn(data + 5, " ,"), data + 5);
    return true;
}

/* ---- client ----------------------------------------------------------------------------------------------------- */

struct paramd_client {
    struct peer_client client;
    struct paramd *kv;
    struct paramd_key *keys;
    struct paramd_tensor *grads, *outs;
    int64_t shape[1];
    struct paramd_op *under_way[UNDER_WAY_MAX];  /* a ring */
    unsigned begun, finished;
};

static void must(int status, const struct paramd_error *e)
{
    if (status != 0) bench_fail("paramd: %s", e->text);
}

static void make_arrays(struct paramd_client *p)
{
    const struct job *j = p->client.job;

    p->keys = bench_memory(j->keys * sizeof *p->keys);
    p->grads = bench_memory(j->keys * sizeof *p->grads);
    p->outs = bench_memory(j->keys * sizeof *p->outs);
    p->shape[0] = (int64_t)(j->size / sizeof(float));
    for (unsigned i = 0; i < j->keys; i++) {
        p->keys[i] = (struct paramd_key)PARAMD_INT((int64_t)i);
        p->grads[i] = (struct paramd_tensor){(char *)p->client.grad + j->size * i, PARAMD_F32, 1, p->shape};
        p->outs[i] = (struct paramd_tensor){(char *)p->client.out + j->size * i, PARAMD_F32, 1, p->shape};
    }
}

static void open_client(struct peer_client *c)
{
    struct paramd_client *p = (struct paramd_client *)c;
    struct paramd_error e;
    char options[ADDRESS_MAX + 64];

    make_arrays(p);
    snprintf(options, sizeof options, "{\"url\": \"%s\", \"num_workers\": %u}", c->address, c->job->clients);
    must(paramd_create("dist_async", options, &p->kv, &e), &e);
    must(paramd_set_updater(p->kv, "{\"type\": \"add\"}", &e), &e);
    memset(c->out, 0, job_size(c->job));
    must(paramd_init(p->kv, c->job->keys, p->keys, p->outs, &e), &e);
}

/* One at a time is done with the calls that wait, as a trainer would; several under way with those that start. */
static void do_now(struct paramd_client *p, enum work w, unsigned key)
{
    unsigned n = p->client.job->keys_per_op;
    struct paramd_key *keys = p->keys + key;
    struct paramd_error e;

    if (w == WORK_PUSH) must(paramd_push(p->kv, n, keys, p->grads + key, 0, &e), &e);
    else if (w == WORK_PULL) must(paramd_pull(p->kv, n, keys, p->outs + key, 0, &e), &e);
    else must(paramd_pushpull(p->kv, n, keys, p->grads + key, n, keys, p->outs + key, 0, &e), &e);
    if (w == WORK_PUSH && p->client.job->answer == ANSWER_APPLIED) must(paramd_wait(p->kv, n, keys, &e), &e);
}

static void begin(struct peer_client *c, enum work w, unsigned op)
{
    struct paramd_client *p = (struct paramd_client *)c;
    unsigned n = c->job->keys_per_op, key = op * n;
    struct paramd_op **started = &p->under_way[p->begun % UNDER_WAY_MAX];
    struct paramd_error e;

    if (c->job->depth == 1) {
        do_now(p, w, key);
        return;
    }
    p->begun++;
    must(w == WORK_PUSH ? paramd_push_start(p->kv, n, p->keys + key, p->grads + key, 0, started, &e)
                        : paramd_pull_start(p->kv, n, p->keys + key, p->outs + key, 0, started, &e), &e);
}

static void finish(struct peer_client *c, enum work w, unsigned op)
{
    struct paramd_client *p = (struct paramd_client *)c;
    struct paramd_op *oldest;
    struct paramd_error e;
    int status;

    (void)w, (void)op;
    if (p->finished == p->begun) return;
    oldest = p->under_way[p->finished++ % UNDER_WAY_MAX];
    if (paramd_op_wait(oldest, FINISH_MS, &status, &e) == 0) bench_fail("paramd: no answer in a minute");
    must(status, &e);
    paramd_op_free(oldest);
}

static void settle(struct peer_client *c)
{
    struct paramd_error e;

    must(paramd_wait(((struct paramd_client *)c)->kv, 0, NULL, &e), &e);
}

const struct peer peer_paramd = {
    .name = "paramd", .frame_max = PART_SIZE, .sums = true, .checksum = "off", .pushed = "recorded",
    .pulled = "one version",
    .start = start,
    .client_size = sizeof(struct paramd_client), .open = open_client, .begin = begin, .finish = finish,
    .settle = settle,
};
