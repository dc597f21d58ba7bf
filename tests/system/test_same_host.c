/* Trainers whose values lie on a GPU, and a daemon on the same machine: two processes on the stand-in for CUDA, which
 * share its memory as CUDA IPC would, or on a GPU (PARAMD_TEST_PLUGIN). What goes through the mailbox must give what goes
 * through host memory. */
#include "api/client/paramd.h"
#include "gpu/group_nccl.h"
#include "gpu/plugin.h"
#include "service/base/mem.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proxy.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_CALL(call) do { if ((call) != 0) test_fail(__FILE__, __LINE__, "%s: %s", #call, e.text); } while (0)

static struct paramd_error e;
static struct error error;
static struct daemon *server;    /* of the test that runs; ended by the next one if it failed */
static struct device *gpu;       /* this process's: where its arrays lie */
static struct queue *queue;

/* ---- both sides -------------------------------------------------------------------------------------------------- */

/* For this process and for those that it starts: the stand-in, or the plug-in for the GPU of this machine. */
static void choose_plugin(const char *policy)
{
    if (!sim_present()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    setenv("PARAMD_CUDA_PLUGIN", sim_path(), 1);
    setenv("CUSIM_SHARE", "1", 1);
    setenv("CUSIM_POLICY", policy, 1);
}

/* The stand-in fills all memory that it hands out, and without a limit the daemon takes it by 256 MiB. */
#define LIMITED "--device-memory", "64m"

static void start_on(const char *cards, const char *flag, const char *value)
{
    daemon_kill(server);
    server = NULL;
    server = daemon_start(&(struct daemon_options){.more = {"--device", cards, LIMITED, flag, value}});
}

static void start(const char *policy, const char *flag, const char *value)
{
    choose_plugin(policy);
    start_on("cuda:0", flag, value);
}

static void need_control(void)
{
    if (sim_replaced()) test_skip("what CUDA answers and how many cards there are the stand-in for CUDA is told");
}

/* The daemon has two GPUs, of which this process sees the first. */
static void start_with_two(const char *cards)
{
    need_control();
    choose_plugin("random");
    setenv("CUSIM_DEVICES", "2", 1);
    start_on(cards, NULL, NULL);
    setenv("CUSIM_DEVICES", "1", 1);
}

static void stop(void)
{
    struct daemon *d = server;

    server = NULL;
    CHECK_EQ(daemon_stop(d), 0);
}

static void gpu_begin(void)
{
    if (gpu != NULL) return;
    CHECK_OK(cuda_device_new(&(struct card){.chunk_size = 1}, &gpu, &error), &error);
    CHECK_OK(device_queue_new(gpu, &queue, &error), &error);
}

/* ---- arrays on the GPU ------------------------------------------------------------------------------------------- */

struct array {
    struct dmem mem;
    int64_t count;
};

static void finish(void)
{
    uint64_t mark;

    CHECK_EQ(device_record(queue, &mark), STATUS_OK);
    CHECK_EQ(device_wait(queue, mark), STATUS_OK);
}

static void write_array(struct array *a, float value)
{
    float *host = malloc((size_t)a->count * 4);

    for (int64_t i = 0; i < a->count; i++) host[i] = value;
    CHECK_EQ(device_upload(queue, a->mem, 0, host, (size_t)a->count * 4), STATUS_OK);
    finish();
    free(host);
}

static struct array array_new(int64_t count, float value)
{
    struct array a = {.count = count};

    gpu_begin();
    CHECK_OK(device_mem_new(gpu, (size_t)count * 4, &a.mem, &error), &error);
    write_array(&a, value);
    return a;
}

/* Its value, when all elements are equal. */
static float read_array(const struct array *a)
{
    float *host = malloc((size_t)a->count * 4), first;

    CHECK_EQ(device_download(queue, host, a->mem, 0, (size_t)a->count * 4), STATUS_OK);
    finish();
    first = host[0];
    for (int64_t i = 0; i < a->count; i++)
        if (host[i] != first)
            test_fail(__FILE__, __LINE__, "element %lld is %g, the first is %g", (long long)i, (double)host[i],
                      (double)first);
    free(host);
    return first;
}

static struct paramd_tensor tensor(struct array *a)
{
    return (struct paramd_tensor){a->mem.at, PARAMD_F32 | PARAMD_CUDA, 1, &a->count};
}

/* ---- a store ----------------------------------------------------------------------------------------------------- */

static struct paramd *open_at(const char *url, const char *more)
{
    char options[1024];
    struct paramd *kv;

    snprintf(options, sizeof options, "{\"url\": \"%s\", \"async_default\": \"add\"%s}", url, more);
    CHECK_CALL(paramd_create("dist_async", options, &kv, &e));
    return kv;
}

static struct paramd *open_store(const char *more) { return open_at(server->data, more); }

/* A mailbox of less than is usual: the stand-in fills all of it. */
#define WITH_BOX ", \"mailbox\": 1048576"
enum { BOX = 1 << 20 };

/* What the daemon says of itself: bytes of all mailboxes. */
static long long mailbox_bytes(struct paramd *kv)
{
    char *text;

    CHECK_CALL(paramd_call(kv, "Stats", "{}", &text, &e));
    json_t *j = json_loads(text, 0, NULL), *memory = json_object_get(json_object_get(j, "daemon"), "memory");
    long long n = json_integer_value(json_object_get(memory, "mailboxes"));
    CHECK(json_is_integer(json_object_get(memory, "mailboxes")));
    json_decref(j);
    paramd_text_free(text);
    return n;
}

static void init_key(struct paramd *kv, int64_t number, struct array *a)
{
    struct paramd_key k = PARAMD_INT(number);
    struct paramd_tensor t = tensor(a);
    CHECK_CALL(paramd_init(kv, 1, &k, &t, &e));
}

static void push_key(struct paramd *kv, int64_t number, struct array *a)
{
    struct paramd_key k = PARAMD_INT(number);
    struct paramd_tensor t = tensor(a);
    CHECK_CALL(paramd_push(kv, 1, &k, &t, 0, &e));
}

static float pull_key(struct paramd *kv, int64_t number, struct array *a)
{
    struct paramd_key k = PARAMD_INT(number);
    struct paramd_tensor t = tensor(a);
    write_array(a, -77);
    CHECK_CALL(paramd_pull(kv, 1, &k, &t, 0, &e));
    return read_array(a);
}

/* Small and large, with the own and the other ways of arrays in one call. */
static void use(struct paramd *kv)
{
    enum { KEYS = 40 };
    static const int64_t sizes[] = {1, 3, 1000, 5000, 300000};
    struct array arrays[KEYS], large = array_new(300000, 2), again = array_new(300000, 0);
    struct paramd_key keys[KEYS];
    struct paramd_tensor values[KEYS];
    int64_t of_host = 8;
    float host[8] = {0};

    for (int i = 0; i < KEYS; i++) {
        arrays[i] = array_new(sizes[i % 4], (float)i);
        keys[i] = (struct paramd_key)PARAMD_INT(i);
        values[i] = tensor(&arrays[i]);
    }
    values[7] = (struct paramd_tensor){host, PARAMD_F32, 1, &of_host};
    CHECK_CALL(paramd_init(kv, KEYS, keys, values, &e));
    for (int turn = 0; turn < 3; turn++) CHECK_CALL(paramd_push(kv, KEYS, keys, values, 0, &e));
    for (int i = 0; i < KEYS; i++) write_array(&arrays[i], -77);
    host[0] = 5;
    CHECK_CALL(paramd_pull(kv, KEYS, keys, values, 0, &e));
    for (int i = 0; i < KEYS; i++)
        if (i != 7) CHECK_EQ(read_array(&arrays[i]), 4 * i);
    CHECK_EQ(host[0], 0);

    init_key(kv, 100, &large);
    push_key(kv, 100, &large);
    /* Two values of one key are summed; two outputs of one key are equal, wherever they lie. */
    struct paramd_key twice[] = {PARAMD_INT(100), PARAMD_INT(100)};
    struct paramd_tensor both[] = {tensor(&large), tensor(&large)};
    CHECK_CALL(paramd_push(kv, 2, twice, both, 0, &e));
    CHECK_EQ(pull_key(kv, 100, &again), 8);
    float *out = malloc(300000 * 4);
    both[0] = (struct paramd_tensor){out, PARAMD_F32, 1, &large.count};
    CHECK_CALL(paramd_pull(kv, 2, twice, both, 0, &e));
    CHECK_EQ(read_array(&large), 8);
    CHECK(out[0] == 8 && out[299999] == 8);
    write_array(&large, 1);
    struct paramd_tensor set = tensor(&large);
    CHECK_CALL(paramd_set(kv, 1, twice, &set, 0, &e));
    CHECK_EQ(pull_key(kv, 100, &again), 1);
    free(out);
    for (int i = 0; i < KEYS; i++) device_mem_free(&arrays[i].mem);
    device_mem_free(&large.mem);
    device_mem_free(&again.mem);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

TEST(values_on_the_gpu_go_through_a_mailbox)
{
    static const char *const policies[] = {"lazy", "random", "eager"};

    for (int i = 0; i < (SIM_SEEDS > 1 && !sim_replaced() ? 3 : 1); i++) {
        start(policies[i], NULL, NULL);
        struct paramd *kv = open_store(WITH_BOX), *look = open_store(", \"join\": false");
        CHECK_EQ(mailbox_bytes(look), 0);
        use(kv);
        CHECK_EQ(mailbox_bytes(look), BOX);
        paramd_close(kv);
        for (int tries = 0; tries < 200 && mailbox_bytes(look) != 0; tries++) poll(NULL, 0, 10);
        CHECK_EQ(mailbox_bytes(look), 0);
        paramd_close(look);
        stop();
    }
}

TEST(a_small_mailbox_takes_large_values_in_parts)
{
    start("random", NULL, NULL);
    struct paramd *kv = open_store(", \"mailbox\": 65536, \"connections\": 3"), *look = open_store(", \"join\": false");
    use(kv);
    CHECK_EQ(mailbox_bytes(look), 65536);
    paramd_close(kv);
    paramd_close(look);
    stop();
}

TEST(where_there_is_no_mailbox_values_on_the_gpu_go_through_host_memory)
{
    static const struct { const char *cards, *flag, *value, *more; } table[] = {
        {"cuda:0", NULL, NULL, ", \"mailbox\": 0"},
        {"cuda:0", "--mailbox-max", "1k", WITH_BOX},
        {"cuda:0", "--mailbox-max", "64m", ", \"mailbox\": 67108864"}, /* the GPU has not so much left */
        {"cpu", NULL, NULL, WITH_BOX},
        {"cuda:0", NULL, NULL, ", \"engine\": \"nanomsg\", \"bulk\": false, \"mailbox\": 0"},
    };

    choose_plugin("random");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        start_on(table[i].cards, table[i].flag, table[i].value);
        struct paramd *kv = open_store(table[i].more);
        use(kv);
        CHECK_EQ(mailbox_bytes(kv), 0);
        paramd_close(kv);
        stop();
    }
}

TEST(a_store_in_the_process_takes_values_on_the_gpu)
{
    struct paramd *kv;

    choose_plugin("random");
    CHECK_CALL(paramd_create("local", NULL, &kv, &e));
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
    use(kv);
    paramd_close(kv);
}

/* From 1 MiB on they go to the group from where they lie. */
TEST(a_store_of_type_nccl_sums_lists_of_values_on_the_gpu)
{
    enum { COUNT = 1 << 18 };
    struct paramd_key key = PARAMD_STR("w"), keys[] = {key, key, key};
    struct nccl nccl;
    struct paramd *kv;
    char *stats;

    choose_plugin("random");
    sim_nccl(true);
    if (nccl_open(&nccl, &error) != STATUS_OK) test_skip(error.text);
    CHECK_CALL(paramd_create("nccl", NULL, &kv, &e));
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
    struct array a = array_new(COUNT, 1), b = array_new(COUNT, 20), c = array_new(COUNT, 300);
    struct paramd_tensor list[] = {tensor(&a), tensor(&b), tensor(&c)}, out = tensor(&a);
    CHECK_CALL(paramd_init(kv, 1, &key, list, &e));
    CHECK_CALL(paramd_push(kv, 3, keys, list, 0, &e));
    CHECK_CALL(paramd_pull(kv, 1, &key, &out, 0, &e));
    CHECK(read_array(&a) == 322);
    CHECK_CALL(paramd_call(kv, "Stats", "{}", &stats, &e));
    CHECK_SAYS(stats, "\"summed\":1,\"by\":\"nccl\"");
    paramd_text_free(stats);
    device_mem_free(&a.mem), device_mem_free(&b.mem), device_mem_free(&c.mem);
    paramd_close(kv);
}

TEST(several_gpus_as_one_lend_mailboxes_of_the_first)
{
    start_with_two("cuda:0,1");
    struct paramd *kv = open_store(WITH_BOX);
    use(kv);
    CHECK_EQ(mailbox_bytes(kv), BOX);
    paramd_close(kv);
    stop();
}

TEST(a_mailbox_that_cannot_be_opened_here_goes_back)
{
    need_control();
    start("random", NULL, NULL);
    struct paramd *kv = open_store(WITH_BOX);
    gpu_begin();
    sim_fail("cudaIpcOpenMemHandle", 1, 304 /* cudaErrorOperatingSystem */);
    use(kv);
    CHECK_EQ(mailbox_bytes(kv), 0);
    paramd_close(kv);
    stop();
}

TEST(trainers_with_mailboxes_of_their_own_sum_in_rounds)
{
    struct paramd *kv[2];
    char options[300];

    start("random", NULL, NULL);
    struct array a = array_new(70000, 1), b = array_new(70000, 10);
    snprintf(options, sizeof options, "{\"url\": \"%s\", \"num_workers\": 2%s}", server->data, WITH_BOX);
    for (int i = 0; i < 2; i++) CHECK_CALL(paramd_create("dist_sync", options, &kv[i], &e));
    init_key(kv[0], 1, &a);
    init_key(kv[1], 1, &a);
    for (int turn = 0; turn < 5; turn++) {
        write_array(&a, 1);
        write_array(&b, 10);
        push_key(kv[0], 1, &a);
        push_key(kv[1], 1, &b);
        CHECK_EQ(pull_key(kv[0], 1, &a), 11);
        CHECK_EQ(pull_key(kv[1], 1, &b), 11);
    }
    CHECK_EQ(mailbox_bytes(kv[0]), 2 * BOX);
    for (int i = 0; i < 2; i++) paramd_close(kv[i]);
    device_mem_free(&a.mem);
    device_mem_free(&b.mem);
    stop();
}

TEST(an_address_that_is_none_of_a_gpus_is_refused_and_nothing_is_pushed)
{
    start("random", NULL, NULL);
    struct paramd *kv = open_store(WITH_BOX);
    struct array a = array_new(8, 1);
    struct paramd_key k = PARAMD_INT(1);
    float host[8] = {0};
    struct paramd_tensor wrong = {host, PARAMD_F32 | PARAMD_CUDA, 1, &a.count};

    init_key(kv, 1, &a);
    CHECK_EQ(paramd_push(kv, 1, &k, &wrong, 0, &e), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "key 1: 0x");
    CHECK_EQ(paramd_pull(kv, 1, &k, &wrong, 0, &e), STATUS_INVALID_ARGUMENT);
    wrong.data = (char *)a.mem.at + 4; /* the last element lies behind the end, which a GPU rounds up */
    if (!sim_replaced()) CHECK_EQ(paramd_push(kv, 1, &k, &wrong, 0, &e), STATUS_INVALID_ARGUMENT);
    push_key(kv, 1, &a);
    CHECK_EQ(pull_key(kv, 1, &a), 2);
    wrong.dtype = PARAMD_CUDA | 99;
    CHECK_EQ(paramd_push(kv, 1, &k, &wrong, 0, &e), STATUS_INVALID_ARGUMENT);
    device_mem_free(&a.mem);
    paramd_close(kv);
    stop();
}

TEST(pushes_through_a_mailbox_count_once_over_a_network_that_breaks)
{
    enum { PUSHES = 100 };
    static struct proxy proxy;

    if (sim_replaced()) test_skip("CUDA leaves undefined what becomes of copies to a mailbox whose connection has broken");
    choose_plugin("random");
    daemon_kill(server);
    server = daemon_start(&(struct daemon_options){.no_bulk = true, .more = {"--device", "cuda:0", LIMITED}});
    proxy_start(&proxy, server->data, 0);
    struct paramd *kv = open_at(proxy.url, ", \"mailbox\": 65536");
    struct array a = array_new(4000, 0);
    init_key(kv, 1, &a);
    write_array(&a, 1);
    atomic_store(&proxy.cut_after, 10000);
    for (int i = 0; i < PUSHES; i++) push_key(kv, 1, &a);
    CHECK_EQ(pull_key(kv, 1, &a), PUSHES);
    CHECK(atomic_load(&proxy.cuts) > 3);
    atomic_store(&proxy.cut_after, 0);
    CHECK_EQ(mailbox_bytes(kv), 65536);
    device_mem_free(&a.mem);
    paramd_close(kv);
    proxy_stop(&proxy);
    stop();
}

/* ---- a trainer that is killed ------------------------------------------------------------------------------------ */

/* In a process of its own, which knows from PARAMD_TEST_PUSHER where the daemon is: pushes until it is killed. */
static void push_for_ever(const char *url)
{
    struct paramd *kv = open_at(url, WITH_BOX);
    struct array a = array_new(300000, 1);

    init_key(kv, 1, &a);
    for (int i = 0;; i++) {
        push_key(kv, 1, &a);
        if (i == 3 && write(STDOUT_FILENO, "!", 1) != 1) return;
    }
}

TEST(a_trainer_killed_in_the_middle_of_a_push_leaves_no_mailbox_behind)
{
    const char *url = getenv("PARAMD_TEST_PUSHER");
    int ends[2];
    char said = 0;

    if (url != NULL) push_for_ever(url);
    start("random", NULL, NULL);
    CHECK_EQ(pipe(ends), 0);
    fflush(NULL);
    pid_t trainer = fork();
    if (trainer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], STDOUT_FILENO);
        setenv("PARAMD_TEST_PUSHER", server->data, 1);
        execl("/proc/self/exe", "test_same_host", "a_trainer_killed", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while (read(ends[0], &said, 1) == 1 && said != '!') continue;
    CHECK_EQ(said, '!');
    struct paramd *kv = open_store(WITH_BOX);
    CHECK_EQ(mailbox_bytes(kv), BOX);
    kill(trainer, SIGKILL);
    CHECK_EQ(waitpid(trainer, NULL, 0), trainer);
    close(ends[0]);
    for (int tries = 0; tries < 500 && mailbox_bytes(kv) != 0; tries++) poll(NULL, 0, 10);
    CHECK_EQ(mailbox_bytes(kv), 0);
    struct array a = array_new(300000, 1);
    float before = pull_key(kv, 1, &a); /* all of one push or nothing of it */
    write_array(&a, 1);
    push_key(kv, 1, &a);
    CHECK_EQ(pull_key(kv, 1, &a), before + 1);
    device_mem_free(&a.mem);
    paramd_close(kv);
    stop();
}

/* ---- a daemon on a GPU that this process does not see ------------------------------------------------------------ */

TEST(a_gpu_that_the_trainer_does_not_see_means_host_memory)
{
    start_with_two("cuda:1");
    struct paramd *kv = open_store(WITH_BOX);
    use(kv);
    CHECK_EQ(mailbox_bytes(kv), 0);
    paramd_close(kv);
    stop();
}

TEST(a_token_is_asked_for_before_a_mailbox_is)
{
    char file[] = "/tmp/paramd-token-XXXXXX";
    int fd = mkstemp(file);
    struct paramd *kv;

    CHECK(fd >= 0 && write(fd, "secret-token-of-it", 18) == 18);
    start("random", "--token-file", file);
    char options[300];
    snprintf(options, sizeof options, "{\"url\": \"%s\"}", server->data);
    CHECK_EQ(paramd_create("dist_async", options, &kv, &e), STATUS_UNAUTHENTICATED);
    kv = open_store(", \"token\": \"secret-token-of-it\"" WITH_BOX);
    use(kv);
    CHECK_EQ(mailbox_bytes(kv), BOX);
    paramd_close(kv);
    stop();
    unlink(file);
    close(fd);
}

/* ---- every call of CUDA that a trainer makes, failing ---------------------------------------------------------------- */

/* This process is on one GPU, the mailbox and two of three arrays lie on the other. */
enum { MINE = 1, OTHER = 0, OUT_OF_MEMORY = 2, UNKNOWN_ERROR = 999 };

struct swept {
    struct paramd_key key;
    int64_t count;
    void *at, *second;           /* arrays on the GPU */
    float value;                 /* of the key */
};

/* The third goes through the mailbox in parts. */
static struct swept swept[] = {{.count = 100}, {.count = 90}, {.count = 2500}};
enum { SWEPT = sizeof swept / sizeof swept[0], SMALL_BOX = 64 << 10 };

static void fill_swept(void *at, const struct swept *k, float value)
{
    float *host = malloc((size_t)k->count * 4);

    for (int64_t i = 0; i < k->count; i++) host[i] = value;
    sim_array_copy(at, host, (size_t)k->count * 4);
    free(host);
}

static float one_value(const float *host, const struct swept *k)
{
    for (int64_t i = 1; i < k->count; i++)
        if (host[i] != host[0]) test_fail(__FILE__, __LINE__, "key %lld is torn", (long long)k->key.number);
    return host[0];
}

static float look_at_array(const void *at, const struct swept *k)
{
    float *host = malloc((size_t)k->count * 4);

    sim_array_copy(host, at, (size_t)k->count * 4);
    float value = one_value(host, k);
    free(host);
    return value;
}

/* By a way that has nothing to do with CUDA. */
static float look_at_key(struct paramd *kv, const struct swept *k)
{
    float *host = malloc((size_t)k->count * 4);
    struct paramd_tensor out = {host, PARAMD_F32, 1, &k->count};

    CHECK_CALL(paramd_pull(kv, 1, &k->key, &out, 0, &e));
    float value = one_value(host, k);
    free(host);
    return value;
}

static struct paramd_tensor array_of(struct swept *k, void *at)
{
    return (struct paramd_tensor){at, PARAMD_F32 | PARAMD_CUDA, 1, &k->count};
}

/* Whether a call went well. If not it says what CUDA does; either way nothing is under way any more that reads or writes the
 * caller's arrays or a slot, and he finds his GPU and no error of others. */
static bool went(int status)
{
    int card, left;

    sim_thread(&card, &left);
    CHECK_EQ(card, MINE);
    CHECK_EQ(left, 0);
    CHECK_EQ(sim_pending(), 0);
    if (status != 0) CHECK_SAYS(e.text, "CUDA error");
    if (status != 0) CHECK(status == STATUS_UNAVAILABLE || status == STATUS_RESOURCE_EXHAUSTED);
    return status == 0;
}

/* All values of one call, each given `times`: those of a call that fails count once or not at all, a single one not at all.
 * Whatever it was, it is over: the next one counts. */
static void push_swept(struct paramd *kv, struct swept *first, unsigned count, unsigned times)
{
    struct paramd_key keys[2 * SWEPT];
    struct paramd_tensor values[2 * SWEPT];
    bool well = false;

    for (unsigned n = 0; n < count * times; n++) {
        keys[n] = first[n % count].key;
        values[n] = array_of(&first[n % count], first[n % count].at);
    }
    for (int tries = 0; !well && tries < 2; tries++) {
        for (unsigned n = 0; n < count; n++) fill_swept(first[n].at, &first[n], 3);
        well = went(paramd_push(kv, count * times, keys, values, 0, &e));
        for (unsigned n = 0; n < count; n++) {
            float before = first[n].value, now = first[n].value = look_at_key(kv, &first[n]);
            bool counted = now == before + 3 * (float)times;
            if (well ? !counted : !(now == before || (count > 1 && counted)))
                test_fail(__FILE__, __LINE__, "key %lld went from %g to %g", (long long)keys[n].number, (double)before,
                          (double)now);
        }
    }
    CHECK(well);
}

static void set_swept(struct paramd *kv, struct swept *k, float value)
{
    struct paramd_tensor t = array_of(k, k->at);

    fill_swept(k->at, k, value);
    if (went(paramd_set(kv, 1, &k->key, &t, 0, &e))) {
        k->value = value;
    } else {
        CHECK_EQ(look_at_key(kv, k), k->value);
        CHECK_CALL(paramd_set(kv, 1, &k->key, &t, 0, &e));
        k->value = value;
    }
    CHECK_EQ(look_at_key(kv, k), k->value);
}

static void pull_swept(struct paramd *kv, struct swept *first, unsigned count)
{
    struct paramd_key keys[2 * SWEPT];
    struct paramd_tensor out[2 * SWEPT];
    bool well = false;

    for (unsigned n = 0; n < 2 * count; n++) {
        struct swept *k = &first[n / 2];
        keys[n] = k->key;
        out[n] = array_of(k, n % 2 == 0 ? k->at : k->second);
    }
    for (int tries = 0; !well && tries < 2; tries++) {
        for (unsigned n = 0; n < 2 * count; n++) fill_swept(out[n].data, &first[n / 2], -77);
        well = went(paramd_pull(kv, 2 * count, keys, out, 0, &e));
    }
    CHECK(well);
    for (unsigned n = 0; n < count; n++) {
        CHECK_EQ(look_at_array(first[n].at, &first[n]), first[n].value);
        CHECK_EQ(look_at_array(first[n].second, &first[n]), first[n].value);
    }
}

static void init_swept(struct paramd *kv)
{
    struct paramd_key keys[SWEPT];
    struct paramd_tensor values[SWEPT];

    for (unsigned n = 0; n < SWEPT; n++) {
        keys[n] = swept[n].key;
        values[n] = array_of(&swept[n], swept[n].at);
        fill_swept(swept[n].at, &swept[n], swept[n].value = (float)n);
    }
    if (!went(paramd_init(kv, SWEPT, keys, values, &e))) CHECK_CALL(paramd_init(kv, SWEPT, keys, values, &e));
    for (unsigned n = 0; n < SWEPT; n++) CHECK_EQ(look_at_key(kv, &swept[n]), n);
}

/* A trainer from its first call to its last, of which the nth of this function fails. false: there are not so many. */
static bool trainer_life(const char *function, int nth, int why)
{
    struct cusim_stats before = sim_stats(), after;
    int64_t live = mem_live(), live_there = sim_plugin()->mem_live();
    struct paramd *kv = open_store(", \"mailbox\": 65536");
    struct paramd_key keys[SWEPT];

    sim_fail(function, nth, why);
    init_swept(kv);
    for (unsigned n = 0; n < SWEPT; n++) push_swept(kv, &swept[n], 1, 1);
    push_swept(kv, swept, SWEPT, 1);
    push_swept(kv, &swept[1], 1, 2);
    pull_swept(kv, swept, SWEPT);
    set_swept(kv, &swept[2], 9);
    for (unsigned n = 0; n < SWEPT; n++) pull_swept(kv, &swept[n], 1);
    for (unsigned n = 0; n < SWEPT; n++) keys[n] = swept[n].key, swept[n].key.number += SWEPT;
    CHECK_CALL(paramd_delete(kv, SWEPT, keys, 1, &e));
    bool in_box = sim_stats().live_bytes > before.live_bytes;
    paramd_close(kv);
    (void)went(0);
    after = sim_stats();
    bool met = after.met > before.met;
    sim_fail(function, 0, 0);
    CHECK_EQ(mem_live(), live);
    CHECK_EQ(sim_plugin()->mem_live(), live_there);
    /* What cannot be given back goes with the process. */
    CHECK_EQ(after.live_streams - before.live_streams, met && strcmp(function, "cudaStreamDestroy") == 0);
    CHECK_EQ(after.live_bytes - before.live_bytes, met && strcmp(function, "cudaIpcCloseMemHandle") == 0 ? SMALL_BOX : 0);
    CHECK_EQ(after.mistakes, 0);
    CHECK(in_box || met);
    CHECK(!in_box || !met || strcmp(function, "cudaIpcOpenMemHandle") != 0);
    return met;
}

static void fail_each_call(const char *function, int why)
{
    int nth = 1;

    while (trainer_life(function, nth, why)) nth++;
    if (nth == 1) test_fail(__FILE__, __LINE__, "a trainer never calls %s", function);
}

static void swept_arrays(void)
{
    if (gpu != NULL) device_queue_free(queue), device_free(gpu), gpu = NULL;
    CHECK_OK(sim_anew(CUSIM_LAZY, 2, &error), &error);
    for (unsigned n = 0; n < SWEPT; n++) {
        sim_thread_set(n == 1 ? MINE : OTHER);
        swept[n].key = (struct paramd_key)PARAMD_INT(1000 + (int64_t)n);
        swept[n].at = sim_array_new((size_t)swept[n].count * 4);
        swept[n].second = sim_array_new((size_t)swept[n].count * 4);
    }
    sim_thread_set(MINE);
}

/* The trainer's side in this process, on which CUDA fails; the daemon's is as it should be. */
TEST(whatever_call_of_cuda_fails_a_trainer_is_told_or_goes_through_host_memory_and_each_push_counts_once)
{
    if (SIM_RACES_ONLY) test_skip("the builds without the thread sanitizer do that");
    need_control();
    unsigned functions = 0;
    start("random", NULL, NULL);
    swept_arrays();
    for (const struct cusim_call *c = sim_calls(); c->source != NULL; c++) {
        if (strcmp(c->source, "cuda_trainer") != 0) continue;
        fail_each_call(c->function, UNKNOWN_ERROR);
        if (SIM_SEEDS > 1) fail_each_call(c->function, OUT_OF_MEMORY);
        functions++;
    }
    CHECK(functions > 8);
    struct paramd *look = open_store(", \"join\": false");
    for (int tries = 0; tries < 200 && mailbox_bytes(look) != 0; tries++) poll(NULL, 0, 10);
    CHECK_EQ(mailbox_bytes(look), 0);
    paramd_close(look);
    stop();
}
