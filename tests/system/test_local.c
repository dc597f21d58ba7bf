/* The store inside one process, through the public interface: the facts of MXNet's tutorial, functions as updaters,
 * both kinds of keys, and what is refused. */
#include "api/client/paramd.h"
#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 6 };
static const int64_t shape[] = {2, 3};

static struct paramd_error e;

#define CHECK_CALL(call) do { if ((call) != 0) test_fail(__FILE__, __LINE__, "%s: %s", #call, e.text); } while (0)
#define CHECK_REFUSED(call, code)                                                                            \
    do {                                                                                                     \
        CHECK((call) != 0);                                                                                  \
        CHECK_TEXT(e.reason, code);                                                                          \
        CHECK(e.text[0] != '\0');                                                                            \
    } while (0)

static struct paramd *open_type(const char *type)
{
    struct paramd *kv;
    CHECK_CALL(paramd_create(type, NULL, &kv, &e));
    return kv;
}

static struct paramd_key key_3 = PARAMD_INT(3);

static struct paramd_tensor f32(float *data) { return (struct paramd_tensor){data, PARAMD_F32, 2, shape}; }

static void fill(float *to, float value)
{
    for (int i = 0; i < N; i++) to[i] = value;
}

static void check_all(const float *got, float want)
{
    for (int i = 0; i < N; i++) CHECK_NEAR(got[i], want, 0);
}

static void init_with(struct paramd *kv, struct paramd_key *key, float value)
{
    float w[N];
    fill(w, value);
    struct paramd_tensor t = f32(w);
    CHECK_CALL(paramd_init(kv, 1, key, &t, &e));
}

static void push_with(struct paramd *kv, struct paramd_key *key, float value)
{
    float g[N];
    fill(g, value);
    struct paramd_tensor t = f32(g);
    CHECK_CALL(paramd_push(kv, 1, key, &t, 0, &e));
}

static void check_pull(struct paramd *kv, struct paramd_key *key, float want)
{
    float w[N];
    fill(w, -1);
    struct paramd_tensor t = f32(w);
    CHECK_CALL(paramd_pull(kv, 1, key, &t, 0, &e));
    check_all(w, want);
}

/* ---- the tutorial ------------------------------------------------------------------------------------------------ */

TEST(what_was_initialised_is_pulled)
{
    struct paramd *kv = open_type("local");
    init_with(kv, &key_3, 2);
    check_pull(kv, &key_3, 2);
    paramd_close(kv);
}

TEST(a_push_without_updater_is_assigned)
{
    struct paramd *kv = open_type("local");
    init_with(kv, &key_3, 2);
    push_with(kv, &key_3, 8);
    check_pull(kv, &key_3, 8);
    push_with(kv, &key_3, 8);
    check_pull(kv, &key_3, 8);
    paramd_close(kv);
}

TEST(values_of_one_key_in_one_push_are_summed)
{
    struct paramd *kv = open_type("local");
    float ones[N];
    struct paramd_key keys[3] = {key_3, key_3, key_3};
    struct paramd_tensor t[3] = {f32(ones), f32(ones), f32(ones)};

    init_with(kv, &key_3, 2);
    fill(ones, 1);
    CHECK_CALL(paramd_push(kv, 3, keys, t, 0, &e));
    check_pull(kv, &key_3, 3);
    paramd_close(kv);
}

TEST(lists_of_keys_are_pushed_and_pulled)
{
    struct paramd *kv = open_type("device");
    enum { KEYS = 300 };
    static float values[KEYS][N], back[KEYS][N];
    static struct paramd_key keys[KEYS];
    static struct paramd_tensor in[KEYS], out[KEYS];

    for (int i = 0; i < KEYS; i++) {
        keys[i] = (struct paramd_key)PARAMD_INT(KEYS - i);
        fill(values[i], (float)i);
        in[i] = f32(values[i]);
        out[i] = f32(back[i]);
    }
    CHECK_CALL(paramd_init(kv, KEYS, keys, in, &e));
    for (int i = 0; i < KEYS; i++) fill(values[i], (float)i + 1000);
    CHECK_CALL(paramd_push(kv, KEYS, keys, in, 0, &e));
    CHECK_CALL(paramd_pull(kv, KEYS, keys, out, 0, &e));
    for (int i = 0; i < KEYS; i++) check_all(back[i], (float)i + 1000);
    paramd_close(kv);
}

TEST(outputs_of_one_key_get_the_same_bytes)
{
    struct paramd *kv = open_type("local");
    float a[N] = {0}, b[N] = {0};
    struct paramd_key keys[2] = {key_3, key_3};
    struct paramd_tensor out[2] = {f32(a), f32(b)};

    init_with(kv, &key_3, 4);
    CHECK_CALL(paramd_pull(kv, 2, keys, out, 0, &e));
    check_all(a, 4);
    check_all(b, 4);
    paramd_close(kv);
}

TEST(string_keys_work)
{
    struct paramd *kv = open_type("local");
    struct paramd_key key = PARAMD_STR("conv0_weight \"\xc3\xa9\"");

    init_with(kv, &key, 2);
    push_with(kv, &key, 5);
    check_pull(kv, &key, 5);
    paramd_close(kv);
}

TEST(a_value_of_many_parts_is_pushed_and_pulled_whole)
{
    enum { COUNT = 3000001 };
    struct paramd *kv = open_type("local");
    int64_t dims[] = {COUNT};
    float *a = malloc(COUNT * sizeof *a), *b = calloc(COUNT, sizeof *b);
    struct paramd_tensor in = {a, PARAMD_F32, 1, dims}, out = {b, PARAMD_F32, 1, dims};

    for (int i = 0; i < COUNT; i++) a[i] = (float)i;
    CHECK_CALL(paramd_init(kv, 1, &key_3, &in, &e));
    CHECK_CALL(paramd_pull(kv, 1, &key_3, &out, 0, &e));
    CHECK(memcmp(a, b, COUNT * sizeof *a) == 0);
    for (int i = 0; i < COUNT; i++) a[i] = (float)-i;
    CHECK_CALL(paramd_push(kv, 1, &key_3, &in, 0, &e));
    CHECK_CALL(paramd_pull(kv, 1, &key_3, &out, 0, &e));
    CHECK(memcmp(a, b, COUNT * sizeof *a) == 0);
    CHECK_CALL(paramd_set(kv, 1, &key_3, &out, 0, &e));
    free(a);
    free(b);
    paramd_close(kv);
}

TEST(an_empty_and_a_scalar_value_work)
{
    struct paramd *kv = open_type("local");
    int64_t none[] = {0, 4};
    double x = 2.5, y = 0;
    struct paramd_key keys[2] = {PARAMD_INT(1), PARAMD_INT(2)};
    struct paramd_tensor in[2] = {{NULL, PARAMD_F32, 2, none}, {&x, PARAMD_F64, 0, NULL}};
    struct paramd_tensor out[2] = {{NULL, PARAMD_F32, 2, none}, {&y, PARAMD_F64, 0, NULL}};

    CHECK_CALL(paramd_init(kv, 2, keys, in, &e));
    CHECK_CALL(paramd_push(kv, 2, keys, in, 0, &e));
    CHECK_CALL(paramd_pull(kv, 2, keys, out, 0, &e));
    CHECK_NEAR(y, 2.5, 0);
    paramd_close(kv);
}

/* ---- updaters ---------------------------------------------------------------------------------------------------- */

TEST(an_updater_document_is_used)
{
    struct paramd *kv = open_type("local");
    init_with(kv, &key_3, 2);
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
    push_with(kv, &key_3, 8);
    check_pull(kv, &key_3, 10);
    CHECK_CALL(paramd_set_updater(kv, NULL, &e));
    push_with(kv, &key_3, 8);
    check_pull(kv, &key_3, 8);
    paramd_close(kv);
}

TEST(an_updater_is_set_with_options_and_says_what_it_drops)
{
    struct paramd *kv = open_type("local");
    char *answer = NULL;

    init_with(kv, &key_3, 2);
    CHECK_CALL(paramd_set_updater_with(kv, "{\"type\": \"sgd\", \"momentum\": 0.9}", NULL, NULL, &e));
    CHECK_CALL(paramd_set_updater_with(kv, "{\"type\": \"sgd\"}", "{\"states\": \"reset\", \"dry_run\": true}", &answer, &e));
    CHECK_SAYS(answer, "\"report\"");
    CHECK_SAYS(answer, "\"dropped\":[{\"name\":\"momentum\",\"from\":0.9");
    paramd_text_free(answer);
    CHECK_CALL(paramd_set_updater_with(kv, "{\"type\": \"sgd\"}", "{}", &answer, &e)); /* it was dry */
    CHECK_SAYS(answer, "\"changed\":true");
    CHECK_SAYS(answer, "\"to\":0}");
    paramd_text_free(answer);
    CHECK_REFUSED(paramd_set_updater_with(kv, NULL, "{\"states\": \"drop\"}", &answer, &e), "invalid-argument");
    CHECK(answer == NULL);
    CHECK_REFUSED(paramd_set_updater_with(kv, NULL, "{\"store\": 1}", NULL, &e), "invalid-argument");
    CHECK_REFUSED(paramd_set_updater_with(kv, NULL, "[]", NULL, &e), "invalid-argument");
    paramd_close(kv);
}

TEST(a_faulty_updater_document_is_refused)
{
    struct paramd *kv = open_type("local");
    CHECK_REFUSED(paramd_set_updater(kv, "{\"type\": ", &e), "malformed-json");
    CHECK_REFUSED(paramd_set_updater(kv, "{\"type\": \"sdg\"}", &e), "validation-failed");
    CHECK_SAYS(e.text, "sgd");
    paramd_close(kv);
}

struct seen {
    struct paramd *kv;
    int64_t order[8];
    char name[16];
    size_t count;
    int answer, inner;
};

static int twice_the_sum(void *ctx, const struct paramd_key *key, const struct paramd_tensor *sum,
                         struct paramd_tensor *stored)
{
    struct seen *s = ctx;
    const float *g = sum->data;
    float *w = stored->data;

    s->order[s->count++] = key->number;
    if (key->name != NULL) strncpy(s->name, key->name, sizeof s->name - 1);
    if (s->answer != 0 && s->count == 2) return s->answer;
    if (s->kv != NULL) s->inner = paramd_barrier(s->kv, "inside", NULL);
    for (int i = 0; i < N; i++) w[i] += 2 * g[i];
    return 0;
}

TEST(a_function_updates_before_push_returns)
{
    struct paramd *kv = open_type("local");
    struct seen seen = {0};

    init_with(kv, &key_3, 2);
    CHECK_CALL(paramd_set_updater_function(kv, twice_the_sum, &seen, &e));
    push_with(kv, &key_3, 8);
    CHECK_EQ(seen.count, 1);
    check_pull(kv, &key_3, 18);
    CHECK_CALL(paramd_set_updater_function(kv, NULL, NULL, &e));
    push_with(kv, &key_3, 8);
    CHECK_EQ(seen.count, 1);
    check_pull(kv, &key_3, 8);
    paramd_close(kv);
}

TEST(a_function_gets_the_name_of_a_string_key)
{
    struct paramd *kv = open_type("local");
    struct paramd_key key = PARAMD_STR("weight");
    struct seen seen = {0};

    init_with(kv, &key, 2);
    CHECK_CALL(paramd_set_updater_function(kv, twice_the_sum, &seen, &e));
    push_with(kv, &key, 1);
    CHECK_TEXT(seen.name, "weight");
    check_pull(kv, &key, 4);
    paramd_close(kv);
}

TEST(a_function_is_called_in_the_order_of_keys_with_sums)
{
    struct paramd *kv = open_type("local");
    struct paramd_key keys[4] = {PARAMD_INT(9), PARAMD_INT(-4), PARAMD_INT(9), PARAMD_INT(5)};
    struct paramd_key each[3] = {PARAMD_INT(9), PARAMD_INT(-4), PARAMD_INT(5)};
    float ones[N];
    struct paramd_tensor t[4] = {f32(ones), f32(ones), f32(ones), f32(ones)};
    struct seen seen = {0};

    fill(ones, 1);
    CHECK_CALL(paramd_init(kv, 3, each, t, &e));
    CHECK_CALL(paramd_set_updater_function(kv, twice_the_sum, &seen, &e));
    CHECK_CALL(paramd_push(kv, 4, keys, t, 0, &e));
    CHECK_EQ(seen.count, 3);
    CHECK_EQ(seen.order[0], -4);
    CHECK_EQ(seen.order[1], 5);
    CHECK_EQ(seen.order[2], 9);
    check_pull(kv, &each[0], 5);
    check_pull(kv, &each[1], 3);
    paramd_close(kv);
}

TEST(a_function_that_fails_leaves_this_and_later_keys)
{
    struct paramd *kv = open_type("local");
    struct paramd_key keys[3] = {PARAMD_INT(1), PARAMD_INT(2), PARAMD_INT(3)};
    float ones[N];
    struct paramd_tensor t[3] = {f32(ones), f32(ones), f32(ones)};
    struct seen seen = {.answer = 7};

    fill(ones, 1);
    CHECK_CALL(paramd_init(kv, 3, keys, t, &e));
    CHECK_CALL(paramd_set_updater_function(kv, twice_the_sum, &seen, &e));
    CHECK_REFUSED(paramd_push(kv, 3, keys, t, 0, &e), "callback-failed");
    CHECK_EQ(e.status, 10);
    check_pull(kv, &keys[0], 3);
    check_pull(kv, &keys[1], 1);
    check_pull(kv, &keys[2], 1);
    paramd_close(kv);
}

TEST(a_call_from_inside_a_function_is_refused)
{
    struct paramd *kv = open_type("local");
    struct seen seen = {.kv = kv};

    init_with(kv, &key_3, 2);
    CHECK_CALL(paramd_set_updater_function(kv, twice_the_sum, &seen, &e));
    push_with(kv, &key_3, 1);
    CHECK_EQ(seen.inner, 9);
    check_pull(kv, &key_3, 4);
    paramd_close(kv);
}

TEST(a_document_removes_a_function)
{
    struct paramd *kv = open_type("local");
    struct seen seen = {0};

    init_with(kv, &key_3, 2);
    CHECK_CALL(paramd_set_updater_function(kv, twice_the_sum, &seen, &e));
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
    push_with(kv, &key_3, 1);
    CHECK_EQ(seen.count, 0);
    check_pull(kv, &key_3, 3);
    paramd_close(kv);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

TEST(an_unknown_key_is_named)
{
    struct paramd *kv = open_type("local");
    float g[N] = {0};
    struct paramd_tensor t = f32(g);

    CHECK_REFUSED(paramd_push(kv, 1, &key_3, &t, 0, &e), "no-such-key");
    CHECK_EQ(e.status, 5);
    CHECK_SAYS(e.text, "key 3 was not initialised");
    CHECK_REFUSED(paramd_pull(kv, 1, &key_3, &t, 0, &e), "no-such-key");
    struct paramd_info info;
    CHECK_REFUSED(paramd_describe(kv, &key_3, &info, &e), "no-such-key");
    init_with(kv, &key_3, 2);
    check_pull(kv, &key_3, 2);
    paramd_close(kv);
}

TEST(an_unknown_key_among_known_ones_stops_the_whole_call)
{
    struct paramd *kv = open_type("local");
    struct paramd_key keys[2] = {PARAMD_INT(3), PARAMD_INT(4)};
    float g[N];
    struct paramd_tensor t[2] = {f32(g), f32(g)};

    init_with(kv, &key_3, 2);
    fill(g, 7);
    CHECK_REFUSED(paramd_push(kv, 2, keys, t, 0, &e), "no-such-key");
    check_pull(kv, &key_3, 2);
    paramd_close(kv);
}

TEST(another_dtype_is_refused_with_the_cure)
{
    struct paramd *kv = open_type("local");
    double g[N] = {0};
    struct paramd_tensor t = {g, PARAMD_F64, 2, shape};

    init_with(kv, &key_3, 2);
    CHECK_REFUSED(paramd_push(kv, 1, &key_3, &t, 0, &e), "shape-mismatch");
    CHECK_EQ(e.status, 3);
    CHECK_SAYS(e.text, "the key is float32, the value float64: convert it with .astype('float32')");
    CHECK_REFUSED(paramd_pull(kv, 1, &key_3, &t, 0, &e), "shape-mismatch");
    paramd_close(kv);
}

TEST(another_shape_is_refused_naming_both)
{
    struct paramd *kv = open_type("local");
    float g[N] = {0};
    int64_t other[] = {3, 2};
    struct paramd_tensor t = {g, PARAMD_F32, 2, other};

    init_with(kv, &key_3, 2);
    CHECK_REFUSED(paramd_push(kv, 1, &key_3, &t, 0, &e), "shape-mismatch");
    CHECK_SAYS(e.text, "[2, 3]");
    CHECK_SAYS(e.text, "[3, 2]");
    paramd_close(kv);
}

TEST(arguments_that_make_no_sense_are_refused)
{
    struct paramd *kv = open_type("local");
    float g[N] = {0};
    int64_t negative[] = {-1};
    struct paramd_key empty = {"", 0, 0}, broken = {"\xff", 1, 0};
    struct paramd_tensor bad[] = {
        {g, 8, 2, shape}, {g, -1, 2, shape}, {g, PARAMD_F32, 9, shape}, {g, PARAMD_F32, -1, shape},
        {g, PARAMD_F32, 1, NULL}, {NULL, PARAMD_F32, 2, shape}, {g, PARAMD_F32, 1, negative},
    };
    struct paramd_tensor good = f32(g);

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_REFUSED(paramd_init(kv, 1, &key_3, &bad[i], &e), "invalid-argument");
    CHECK_REFUSED(paramd_init(kv, 1, &empty, &good, &e), "invalid-argument");
    CHECK_REFUSED(paramd_init(kv, 1, &broken, &good, &e), "invalid-argument");
    CHECK_REFUSED(paramd_barrier(kv, "", &e), "invalid-argument");
    paramd_close(kv);
}

TEST(a_second_init_is_refused_and_nothing_of_it_applied)
{
    struct paramd *kv = open_type("local");
    struct paramd_key keys[2] = {PARAMD_INT(4), PARAMD_INT(3)};
    float w[N];
    struct paramd_tensor t[2] = {f32(w), f32(w)};

    init_with(kv, &key_3, 2);
    fill(w, 9);
    CHECK_REFUSED(paramd_init(kv, 2, keys, t, &e), "key-exists");
    CHECK_EQ(e.status, 6);
    CHECK_SAYS(e.text, "3");
    check_pull(kv, &key_3, 2);
    CHECK_REFUSED(paramd_pull(kv, 1, &keys[0], t, 0, &e), "no-such-key");
    paramd_close(kv);
}

TEST(a_key_twice_in_one_init_is_refused)
{
    struct paramd *kv = open_type("local");
    struct paramd_key keys[2] = {key_3, key_3};
    float w[N] = {0};
    struct paramd_tensor t[2] = {f32(w), f32(w)};

    CHECK_REFUSED(paramd_init(kv, 2, keys, t, &e), "invalid-argument");
    paramd_close(kv);
}

TEST(mixed_key_types_are_refused)
{
    struct paramd *kv = open_type("local");
    struct paramd_key text = PARAMD_STR("w");
    float w[N] = {0};
    struct paramd_tensor t = f32(w);

    init_with(kv, &key_3, 2);
    CHECK_REFUSED(paramd_init(kv, 1, &text, &t, &e), "mixed-key-types");
    paramd_close(kv);
}

TEST(a_sum_of_integers_that_does_not_fit_is_out_of_range)
{
    struct paramd *kv = open_type("local");
    int8_t a[N] = {100, 1, 1, 1, 1, 1}, back[N];
    struct paramd_key keys[2] = {key_3, key_3};
    struct paramd_tensor t[2] = {{a, PARAMD_I8, 2, shape}, {a, PARAMD_I8, 2, shape}}, out = {back, PARAMD_I8, 2, shape};

    CHECK_CALL(paramd_init(kv, 1, keys, t, &e));
    CHECK_REFUSED(paramd_push(kv, 2, keys, t, 0, &e), "sum-overflow");
    CHECK_EQ(e.status, 11);
    CHECK_CALL(paramd_pull(kv, 1, keys, &out, 0, &e));
    CHECK_EQ(back[0], 100);
    a[0] = 50;
    CHECK_CALL(paramd_push(kv, 2, keys, t, 0, &e));
    CHECK_CALL(paramd_pull(kv, 1, keys, &out, 0, &e));
    CHECK_EQ(back[0], 100);
    CHECK_EQ(back[1], 2);
    paramd_close(kv);
}

TEST(a_failed_push_is_told_by_the_next_pull)
{
    struct paramd *kv = open_type("local");
    int8_t a[N] = {100, 0, 0, 0, 0, 0}, back[N] = {0};
    struct paramd_tensor t = {a, PARAMD_I8, 2, shape}, out = {back, PARAMD_I8, 2, shape};

    CHECK_CALL(paramd_init(kv, 1, &key_3, &t, &e));
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
    CHECK_CALL(paramd_push(kv, 1, &key_3, &t, 0, &e));
    CHECK_REFUSED(paramd_pull(kv, 1, &key_3, &out, 0, &e), "sum-overflow");
    CHECK_CALL(paramd_pull(kv, 1, &key_3, &out, 0, &e));
    CHECK_EQ(back[0], 100);
    paramd_close(kv);
}

TEST(types_that_do_not_work_are_refused)
{
    struct paramd *kv = (struct paramd *)1;

    CHECK_REFUSED(paramd_create("lokal", NULL, &kv, &e), "invalid-argument");
    CHECK(kv == NULL);
    CHECK_SAYS(e.text, "local device nccl dist sync async");
    setenv("PARAMD_CUDA_PLUGIN", "/nowhere/paramd-cuda.so", 1);
    CHECK(paramd_create("nccl", NULL, &kv, &e) == 9);
    CHECK_SAYS(e.text, "nccl sums on GPUs, and none can be used: /nowhere/paramd-cuda.so");
    CHECK_SAYS(e.text, "local, device, dist_sync and dist_async give the same values");
    setenv("PARAMD_DEVICE", "cpu", 1);
    CHECK(paramd_create("nccl", NULL, &kv, &e) == 9);
    CHECK_SAYS(e.text, "PARAMD_DEVICE is cpu");
    unsetenv("PARAMD_DEVICE");
    unsetenv("PARAMD_CUDA_PLUGIN");
    CHECK(paramd_create("dist_ssp", NULL, &kv, &e) == 12);
    CHECK_REFUSED(paramd_create("local", "{\"num_worker\": 1}", &kv, &e), "unknown-parameter");
    CHECK_SAYS(e.text, "num_workers");
    CHECK_REFUSED(paramd_create("local", "{\"connections\": \"many\"}", &kv, &e), "invalid-argument");
    CHECK_REFUSED(paramd_create("local", "[", &kv, &e), "malformed-json");
}

TEST(a_closed_port_is_unavailable_with_the_cure)
{
    struct paramd *kv;

    CHECK_REFUSED(paramd_create("dist_async", "{\"url\": \"tcp://127.0.0.1:1\", \"connect_timeout\": 0.2}", &kv, &e),
                  "unreachable");
    CHECK_EQ(e.status, 14);
    CHECK_SAYS(e.text, "tcp://127.0.0.1:1");
    CHECK_SAYS(e.text, "paramd --listen");
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

TEST(a_handle_knows_its_facts)
{
    struct paramd *kv = open_type("Local_AllReduce_CPU");
    struct paramd_info info;

    CHECK_TEXT(paramd_type(kv), "local_allreduce_cpu");
    CHECK_EQ(paramd_rank(kv), 0);
    CHECK_EQ(paramd_num_workers(kv), 1);
    CHECK_EQ(paramd_num_dead(kv), 0);
    init_with(kv, &key_3, 2);
    push_with(kv, &key_3, 3);
    CHECK_CALL(paramd_wait(kv, 1, &key_3, &e));
    CHECK_CALL(paramd_describe(kv, &key_3, &info, &e));
    CHECK_EQ(info.dtype, PARAMD_F32);
    CHECK_EQ(info.ndim, 2);
    CHECK_EQ(info.shape[1], 3);
    CHECK_EQ(info.version, 2);
    CHECK_CALL(paramd_barrier(kv, "b", &e));
    paramd_close(kv);
}

TEST(set_and_delete_work)
{
    struct paramd *kv = open_type("local");
    float w[N];
    struct paramd_tensor t = f32(w);

    init_with(kv, &key_3, 2);
    fill(w, 6);
    CHECK_CALL(paramd_set(kv, 1, &key_3, &t, 0, &e));
    check_pull(kv, &key_3, 6);
    CHECK_CALL(paramd_delete(kv, 1, &key_3, 0, &e));
    CHECK_REFUSED(paramd_pull(kv, 1, &key_3, &t, 0, &e), "no-such-key");
    init_with(kv, &key_3, 1);
    push_with(kv, &key_3, 4);
    check_pull(kv, &key_3, 4);
    paramd_close(kv);
}

TEST(pushpull_and_broadcast_give_what_they_say)
{
    struct paramd *kv = open_type("local");
    float w[N], g[N], out[N] = {0};
    struct paramd_tensor value = f32(w), grad = f32(g), output = f32(out);

    fill(w, 2);
    fill(g, 5);
    CHECK_CALL(paramd_broadcast(kv, 1, &key_3, &value, 1, &key_3, &output, 0, &e));
    check_all(out, 2);
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
    CHECK_CALL(paramd_pushpull(kv, 1, &key_3, &grad, 1, &key_3, &output, 0, &e));
    check_all(out, 7);
    CHECK_CALL(paramd_pushpull(kv, 1, &key_3, &grad, 0, NULL, NULL, 0, &e));
    check_all(g, 12);
    paramd_close(kv);
}

/* Each public function that can fail, with one argument NULL that it needs. */
TEST(a_null_argument_is_refused_and_nothing_happens)
{
    struct paramd *kv = open_type("local"), *other;
    float w[N] = {0};
    struct paramd_tensor t = f32(w), no_data = {NULL, PARAMD_F32, 2, shape}, no_shape = {w, PARAMD_F32, 2, NULL};
    struct paramd_info info;
    struct paramd_op *op;
    char *answer;
    int result;
#define NULL_CALLS(X)                                                                                          \
    X(paramd_create(NULL, NULL, &other, &e))                                                                   \
    X(paramd_create("local", NULL, NULL, &e))                                                                  \
    X(paramd_create("", NULL, &other, &e))                                                                     \
    X(paramd_create_start(NULL, NULL, &other, &op, &e))                                                        \
    X(paramd_create_start("local", NULL, NULL, &op, &e))                                                       \
    X(paramd_create_start("local", NULL, &other, NULL, &e))                                                    \
    X(paramd_leave(NULL, &e))                                                                                  \
    X(paramd_init(NULL, 1, &key_3, &t, &e))                                                                    \
    X(paramd_init(kv, 1, NULL, &t, &e))                                                                        \
    X(paramd_init(kv, 1, &key_3, NULL, &e))                                                                    \
    X(paramd_init(kv, 1, &key_3, &no_data, &e))                                                                \
    X(paramd_init(kv, 1, &key_3, &no_shape, &e))                                                               \
    X(paramd_push(NULL, 1, &key_3, &t, 0, &e))                                                                 \
    X(paramd_push(kv, 1, NULL, &t, 0, &e))                                                                     \
    X(paramd_push(kv, 1, &key_3, NULL, 0, &e))                                                                 \
    X(paramd_pull(NULL, 1, &key_3, &t, 0, &e))                                                                 \
    X(paramd_pull(kv, 1, NULL, &t, 0, &e))                                                                     \
    X(paramd_pull(kv, 1, &key_3, NULL, 0, &e))                                                                 \
    X(paramd_pushpull(NULL, 1, &key_3, &t, 0, NULL, NULL, 0, &e))                                              \
    X(paramd_pushpull(kv, 1, NULL, &t, 0, NULL, NULL, 0, &e))                                                  \
    X(paramd_pushpull(kv, 1, &key_3, &t, 1, NULL, &t, 0, &e))                                                  \
    X(paramd_broadcast(NULL, 1, &key_3, &t, 1, &key_3, &t, 0, &e))                                             \
    X(paramd_broadcast(kv, 1, &key_3, &t, 1, &key_3, NULL, 0, &e))                                             \
    X(paramd_broadcast(kv, 1, &key_3, &t, 1, NULL, &t, 0, &e))                                                 \
    X(paramd_set(NULL, 1, &key_3, &t, 0, &e))                                                                  \
    X(paramd_set(kv, 1, NULL, &t, 0, &e))                                                                      \
    X(paramd_set(kv, 1, &key_3, NULL, 0, &e))                                                                  \
    X(paramd_delete(NULL, 1, &key_3, 0, &e))                                                                   \
    X(paramd_delete(kv, 1, NULL, 0, &e))                                                                       \
    X(paramd_wait(NULL, 0, NULL, &e))                                                                          \
    X(paramd_wait(kv, 1, NULL, &e))                                                                            \
    X(paramd_describe(NULL, &key_3, &info, &e))                                                                \
    X(paramd_describe(kv, NULL, &info, &e))                                                                    \
    X(paramd_describe(kv, &key_3, NULL, &e))                                                                   \
    X(paramd_plane_join(NULL, "cuda:0", &e))                                                                   \
    X(paramd_plane_join(kv, NULL, &e))                                                                         \
    X(paramd_plane_push(NULL, 1, &key_3, &t, NULL, &e))                                                        \
    X(paramd_plane_push(kv, 1, NULL, &t, NULL, &e))                                                            \
    X(paramd_plane_leave(NULL, &e))                                                                            \
    X(paramd_barrier(NULL, "b", &e))                                                                           \
    X(paramd_barrier(kv, NULL, &e))                                                                            \
    X(paramd_set_updater(NULL, NULL, &e))                                                                      \
    X(paramd_set_updater_function(NULL, NULL, NULL, &e))                                                       \
    X(paramd_get_states(NULL, 1, &key_3, &op, &e))                                                             \
    X(paramd_get_states(kv, 1, NULL, &op, &e))                                                                 \
    X(paramd_get_states(kv, 1, &key_3, NULL, &e))                                                              \
    X(paramd_set_states(NULL, 0, NULL, NULL, &e))                                                              \
    X(paramd_set_states(kv, 1, &key_3, NULL, &e))                                                              \
    X(paramd_call(NULL, "Stats", NULL, &answer, &e))                                                           \
    X(paramd_call(kv, NULL, NULL, &answer, &e))                                                                \
    X(paramd_call(kv, "Stats", NULL, NULL, &e))                                                                \
    X(paramd_init_start(kv, 1, NULL, &t, &op, &e))                                                             \
    X(paramd_init_start(kv, 1, &key_3, &t, NULL, &e))                                                          \
    X(paramd_push_start(kv, 1, NULL, &t, 0, &op, &e))                                                          \
    X(paramd_push_start(kv, 1, &key_3, &t, 0, NULL, &e))                                                       \
    X(paramd_pull_start(kv, 1, &key_3, NULL, 0, &op, &e))                                                      \
    X(paramd_pull_start(kv, 1, &key_3, &t, 0, NULL, &e))                                                       \
    X(paramd_pull_newer_start(kv, 1, NULL, &t, NULL, NULL, 0, 0, &op, &e))                                     \
    X(paramd_pull_newer_start(kv, 1, &key_3, &t, NULL, NULL, 0, 0, NULL, &e))                                  \
    X(paramd_set_start(kv, 1, NULL, &t, 0, &op, &e))                                                           \
    X(paramd_set_start(kv, 1, &key_3, &t, 0, NULL, &e))                                                        \
    X(paramd_wait_start(kv, 1, NULL, &op, &e))                                                                 \
    X(paramd_wait_start(kv, 0, NULL, NULL, &e))                                                                \
    X(paramd_barrier_start(kv, NULL, &op, &e))                                                                 \
    X(paramd_barrier_start(kv, "b", NULL, &e))                                                                 \
    X(paramd_call_start(kv, NULL, NULL, &op, &e))                                                              \
    X(paramd_call_start(kv, "Stats", NULL, NULL, &e))                                                          \
    X(paramd_get_states_start(kv, 1, NULL, &op, &e))                                                           \
    X(paramd_get_states_start(kv, 1, &key_3, NULL, &e))                                                        \
    X(paramd_set_states_start(kv, 1, &key_3, NULL, &op, &e))                                                   \
    X(paramd_set_states_start(kv, 0, NULL, NULL, NULL, &e))
#define CHECK_NULL(call) CHECK_REFUSED(call, "invalid-argument");
    NULL_CALLS(CHECK_NULL)
#undef CHECK_NULL
    CHECK(paramd_init(kv, 1, NULL, &t, NULL) != 0); /* the error may be NULL, too */
    CHECK_TEXT(paramd_type(NULL), "");
    CHECK_EQ(paramd_rank(NULL), -1);
    CHECK_EQ(paramd_num_workers(NULL), -1);
    CHECK_EQ(paramd_num_dead(NULL), -1);
    CHECK_EQ(paramd_op_wait(NULL, 0, &result, &e), 1);
    CHECK_TEXT(e.reason, "invalid-argument");
    CHECK(paramd_op_answer(NULL) == NULL && paramd_op_states(NULL) == NULL);
    paramd_op_deadline(NULL, 1);
    paramd_op_free(NULL);
    paramd_text_free(NULL);
    paramd_close(NULL);
    CHECK_REFUSED(paramd_describe(kv, &key_3, &info, &e), "no-such-key");
    CHECK_CALL(paramd_init(kv, 0, NULL, NULL, &e));
    CHECK_CALL(paramd_push(kv, 0, NULL, NULL, 0, &e));
    CHECK_CALL(paramd_pull(kv, 0, NULL, NULL, 0, &e));
    CHECK_CALL(paramd_broadcast(kv, 0, NULL, NULL, 0, NULL, NULL, 0, &e));
    CHECK_CALL(paramd_set_states(kv, 0, NULL, NULL, &e));
    CHECK_CALL(paramd_delete(kv, 0, NULL, 0, &e));
    paramd_close(kv);
}

TEST(an_output_that_does_not_fit_stops_the_call_before_its_first_effect)
{
    struct paramd *kv = open_type("local");
    const int64_t flat[] = {N};
    float w[N], g[N], out[N] = {0};
    struct paramd_tensor value = f32(w), grad = f32(g), unfit = {out, PARAMD_F32, 1, flat};
    struct paramd_key key_4 = PARAMD_INT(4);
    struct paramd_info info;

    fill(w, 2);
    fill(g, 5);
    CHECK_REFUSED(paramd_broadcast(kv, 1, &key_3, &value, 1, &key_3, &unfit, 0, &e), "shape-mismatch");
    CHECK_REFUSED(paramd_describe(kv, &key_3, &info, &e), "no-such-key");
    unfit = (struct paramd_tensor){NULL, PARAMD_F32, 2, shape};
    CHECK_REFUSED(paramd_broadcast(kv, 1, &key_3, &value, 1, &key_3, &unfit, 0, &e), "invalid-argument");
    CHECK_REFUSED(paramd_broadcast(kv, 1, &key_3, &value, 1, &key_4, &value, 0, &e), "invalid-argument");
    CHECK_REFUSED(paramd_describe(kv, &key_3, &info, &e), "no-such-key");
    init_with(kv, &key_3, 2);
    unfit = (struct paramd_tensor){out, PARAMD_F32, 1, flat};
    CHECK_REFUSED(paramd_pushpull(kv, 1, &key_3, &grad, 1, &key_3, &unfit, 0, &e), "shape-mismatch");
    CHECK_REFUSED(paramd_pushpull(kv, 1, &key_3, &grad, 1, &key_4, &value, 0, &e), "no-such-key");
    check_pull(kv, &key_3, 2);
    paramd_close(kv);
}

TEST(when_one_key_cannot_be_deleted_none_is)
{
    struct paramd *kv = open_type("local");
    struct paramd_key keys[] = {PARAMD_INT(3), PARAMD_INT(4)};

    init_with(kv, &key_3, 2);
    CHECK_REFUSED(paramd_delete(kv, 2, keys, 0, &e), "no-such-key");
    check_pull(kv, &key_3, 2);
    paramd_close(kv);
}

/* ---- calls that are so long that they go in slices ---------------------------------------------------------------- */

enum { LONG = 1500 };
static struct long_call {
    struct paramd_key keys[LONG];
    float grads[LONG][N], outs[LONG][N];
    struct paramd_tensor in[LONG], out[LONG];
} many;

/* Keys 0, 1, ... with the value 0, updater add; grads are the number of the place. */
static struct paramd *open_long(void)
{
    struct paramd *kv = open_type("local");

    for (int i = 0; i < LONG; i++) {
        many.keys[i] = (struct paramd_key)PARAMD_INT(i);
        many.in[i] = f32(many.grads[i]);
        many.out[i] = f32(many.outs[i]);
        fill(many.grads[i], 0);
    }
    CHECK_CALL(paramd_init(kv, LONG, many.keys, many.in, &e));
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
    for (int i = 0; i < LONG; i++) fill(many.grads[i], (float)i);
    return kv;
}

static void check_long(struct paramd *kv, int key, float want)
{
    struct paramd_key k = PARAMD_INT(key);
    check_pull(kv, &k, want);
}

TEST(a_long_pushpull_gives_each_key_its_own)
{
    struct paramd *kv = open_long();
    for (int round = 1; round < 4; round++) {
        CHECK_CALL(paramd_pushpull(kv, LONG, many.keys, many.in, LONG, many.keys, many.out, 0, &e));
        for (int i = 0; i < LONG; i++) check_all(many.outs[i], (float)(round * i));
    }
    CHECK_CALL(paramd_pushpull(kv, LONG, many.keys, many.in, 0, NULL, NULL, 0, &e));
    for (int i = 0; i < LONG; i++) check_all(many.grads[i], (float)(4 * i));
    paramd_close(kv);
}

TEST(a_long_pushpull_may_pull_other_keys_than_it_pushes)
{
    struct paramd *kv = open_long();
    static struct paramd_key backwards[LONG];
    for (int i = 0; i < LONG; i++) backwards[i] = many.keys[LONG - 1 - i];
    CHECK_CALL(paramd_pushpull(kv, LONG, many.keys, many.in, LONG, backwards, many.out, 0, &e));
    for (int i = 0; i < LONG; i++) check_all(many.outs[i], (float)(LONG - 1 - i));
    paramd_close(kv);
}

TEST(repeats_in_a_long_push_are_one_contribution)
{
    struct paramd *kv = open_long();
    many.keys[LONG - 1] = many.keys[1];
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"assign\"}", &e));
    CHECK_CALL(paramd_push(kv, LONG, many.keys, many.in, 0, &e));
    check_long(kv, 1, 1 + LONG - 1);
    check_long(kv, LONG - 1, 0);
    paramd_close(kv);
}

TEST(a_fault_anywhere_in_a_long_push_stops_the_whole_call)
{
    struct paramd *kv = open_long();
    const int64_t flat[] = {N};

    many.keys[LONG - 1] = (struct paramd_key)PARAMD_INT(LONG);
    CHECK_REFUSED(paramd_push(kv, LONG, many.keys, many.in, 0, &e), "no-such-key");
    many.keys[LONG - 1] = (struct paramd_key)PARAMD_INT(LONG - 1);
    many.in[LONG - 1] = (struct paramd_tensor){many.grads[LONG - 1], PARAMD_F32, 1, flat};
    CHECK_REFUSED(paramd_pushpull(kv, LONG, many.keys, many.in, LONG, many.keys, many.out, 0, &e), "shape-mismatch");
    check_long(kv, 1, 0);
    paramd_close(kv);
}

TEST(an_output_that_does_not_fit_leaves_all_outputs_of_a_long_pull)
{
    struct paramd *kv = open_long();
    const int64_t flat[] = {N};

    CHECK_CALL(paramd_pull(kv, LONG, many.keys, many.out, 0, &e));
    for (int i = 0; i < LONG; i++) fill(many.outs[i], -1);
    many.out[LONG - 1] = (struct paramd_tensor){many.outs[LONG - 1], PARAMD_F32, 1, flat};
    CHECK_REFUSED(paramd_pull(kv, LONG, many.keys, many.out, 0, &e), "shape-mismatch");
    for (int i = 0; i < LONG; i++) check_all(many.outs[i], -1);
    paramd_close(kv);
}

/* ---- calls that need several requests: all is checked before the first is applied ------------------------------- */

enum { MANY = 10000 };
static struct many_keys {
    struct paramd_key keys[MANY];
    struct paramd_tensor values[MANY];
    float data[N];
} tall;

static struct paramd *open_tall(void)
{
    fill(tall.data, 1);
    for (int i = 0; i < MANY; i++) {
        tall.keys[i] = (struct paramd_key)PARAMD_INT(i);
        tall.values[i] = f32(tall.data);
    }
    return open_type("local");
}

TEST(a_refused_init_of_many_keys_takes_none_over)
{
    struct paramd *kv = open_tall();
    struct paramd_key last = PARAMD_INT(MANY - 1);

    init_with(kv, &last, 5);
    CHECK_REFUSED(paramd_init(kv, MANY, tall.keys, tall.values, &e), "key-exists");
    CHECK_CALL(paramd_init(kv, MANY - 1, tall.keys, tall.values, &e));
    check_pull(kv, &last, 5);
    paramd_close(kv);
}

TEST(many_keys_are_deleted_together_or_not_at_all)
{
    struct paramd *kv = open_tall();
    struct paramd_info info;

    CHECK_CALL(paramd_init(kv, MANY - 1, tall.keys, tall.values, &e));
    CHECK_REFUSED(paramd_delete(kv, MANY, tall.keys, 0, &e), "no-such-key");
    CHECK_CALL(paramd_describe(kv, &tall.keys[0], &info, &e));
    tall.keys[MANY - 1] = tall.keys[0];
    CHECK_CALL(paramd_delete(kv, MANY, tall.keys, 0, &e));
    CHECK_REFUSED(paramd_describe(kv, &tall.keys[MANY - 2], &info, &e), "no-such-key");
    paramd_close(kv);
}

TEST(a_document_that_is_too_large_is_refused_here_with_its_size)
{
    struct paramd *kv = open_type("local");
    static char text[(1 << 20) + 100];
    char *answer;

    memset(text, ' ', sizeof text - 1);
    memcpy(text, "{\"prefix\": \"", 12);
    memset(text + 12, 'a', sizeof text - 20);
    memcpy(text + sizeof text - 3, "\"}", 3);
    CHECK_REFUSED(paramd_call(kv, "List", text, &answer, &e), "too-large");
    CHECK_SAYS(e.text, "at most 1048576");
    paramd_close(kv);
}

TEST(an_unknown_key_in_a_long_pull_is_named)
{
    struct paramd *kv = open_long();
    many.keys[LONG - 1] = (struct paramd_key)PARAMD_INT(LONG);
    CHECK_REFUSED(paramd_pull(kv, LONG, many.keys, many.out, 0, &e), "no-such-key");
    CHECK_SAYS(e.text, "1500");
    paramd_close(kv);
}

TEST(keys_deleted_between_long_calls_are_not_mistaken_for_others)
{
    struct paramd *kv = open_long();
    CHECK_CALL(paramd_push(kv, LONG, many.keys, many.in, 0, &e));
    CHECK_CALL(paramd_delete(kv, 700, many.keys + 300, 0, &e));
    for (int i = 300; i < 1000; i++) fill(many.outs[i], 9);
    CHECK_CALL(paramd_init(kv, 700, many.keys + 300, many.out + 300, &e));
    CHECK_CALL(paramd_pushpull(kv, LONG, many.keys, many.in, LONG, many.keys, many.out, 0, &e));
    for (int i = 0; i < LONG; i++) check_all(many.outs[i], (float)(i >= 300 && i < 1000 ? 9 + i : 2 * i));
    paramd_close(kv);
}

TEST(only_what_is_newer_is_pulled)
{
    struct paramd *kv = open_type("local");
    float w[N];
    struct paramd_tensor t = f32(w);
    uint64_t newer = 1, version = 0;
    struct paramd_op *op;
    int result;

    init_with(kv, &key_3, 2);
    fill(w, -1);
    CHECK_CALL(paramd_pull_newer_start(kv, 1, &key_3, &t, &newer, &version, 0, 0, &op, &e));
    CHECK_EQ(paramd_op_wait(op, 10000, &result, &e), 1);
    CHECK_EQ(result, 0);
    CHECK_EQ(version, 1);
    check_all(w, -1);
    paramd_op_free(op);

    push_with(kv, &key_3, 8);
    CHECK_CALL(paramd_pull_newer_start(kv, 1, &key_3, &t, &newer, &version, 1, 0, &op, &e));
    CHECK_EQ(paramd_op_wait(op, 10000, &result, &e), 1);
    CHECK_EQ(result, 0);
    CHECK_EQ(version, 2);
    check_all(w, 8);
    paramd_op_free(op);
    paramd_close(kv);
}

TEST(waiting_for_what_never_comes_ends_at_the_deadline)
{
    struct paramd *kv = open_type("local");
    float w[N];
    struct paramd_tensor t = f32(w);
    uint64_t newer = 1;
    struct paramd_op *op;
    int result = 0;

    init_with(kv, &key_3, 2);
    CHECK_CALL(paramd_pull_newer_start(kv, 1, &key_3, &t, &newer, NULL, 1, 0, &op, &e));
    CHECK_EQ(paramd_op_wait(op, 0, &result, &e), 0);
    paramd_op_deadline(op, 50);
    CHECK_EQ(paramd_op_wait(op, 20000, &result, &e), 1);
    CHECK_EQ(result, 4);
    CHECK_SAYS(e.text, "key 3");
    paramd_op_free(op);
    check_pull(kv, &key_3, 2);
    paramd_close(kv);
}

TEST(an_operation_can_be_cancelled)
{
    struct paramd *kv = open_type("local");
    float w[N];
    struct paramd_tensor t = f32(w);
    uint64_t newer = 1;
    struct paramd_op *op;

    init_with(kv, &key_3, 2);
    CHECK_CALL(paramd_pull_newer_start(kv, 1, &key_3, &t, &newer, NULL, 1, 0, &op, &e));
    paramd_op_free(op);
    push_with(kv, &key_3, 5);
    check_pull(kv, &key_3, 5);
    paramd_close(kv);
}

TEST(a_json_method_answers_a_document)
{
    struct paramd *kv = open_type("local");
    char *answer;

    init_with(kv, &key_3, 2);
    CHECK_CALL(paramd_call(kv, "List", "{}", &answer, &e));
    CHECK_SAYS(answer, "\"items\"");
    paramd_text_free(answer);
    CHECK_CALL(paramd_call(kv, "GetUpdater", NULL, &answer, &e));
    CHECK_SAYS(answer, "assign");
    paramd_text_free(answer);
    CHECK_REFUSED(paramd_call(kv, "Push", "{}", &answer, &e), "unknown-method");
    CHECK_REFUSED(paramd_call(kv, "List", "[]", &answer, &e), "malformed-json");
    paramd_close(kv);
}

TEST(after_leaving_a_handle_can_only_be_closed)
{
    struct paramd *kv = open_type("local");
    float w[N] = {0};
    struct paramd_tensor t = f32(w);

    CHECK_CALL(paramd_leave(kv, &e));
    CHECK_REFUSED(paramd_init(kv, 1, &key_3, &t, &e), "closed");
    paramd_close(kv);
}

TEST(a_handle_cannot_cross_a_fork)
{
    struct paramd *kv = open_type("local");
    int status = 0;

    pid_t child = fork();
    if (child == 0) {
        int code = paramd_barrier(kv, "b", &e);
        paramd_close(kv);
        _exit(code == 9 && strcmp(e.reason, "used-after-fork") == 0 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
    init_with(kv, &key_3, 2);
    paramd_close(kv);
}

static void *push_many(void *arg)
{
    struct paramd *kv = arg;
    float ones[N];
    struct paramd_tensor t = f32(ones);

    fill(ones, 1);
    for (int i = 0; i < 200; i++)
        if (paramd_push(kv, 1, &key_3, &t, 0, NULL) != 0) return arg;
    return NULL;
}

TEST(threads_take_turns)
{
    struct paramd *kv = open_type("local");
    pthread_t threads[4];
    void *failed;

    init_with(kv, &key_3, 0);
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"add\"}", &e));
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, push_many, kv) == 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    check_pull(kv, &key_3, 800);
    paramd_close(kv);
}

TEST(closing_gives_all_memory_back)
{
    int64_t before = mem_live();
    struct paramd *kv = open_type("local");

    init_with(kv, &key_3, 2);
    push_with(kv, &key_3, 3);
    paramd_close(kv);
    CHECK_EQ(mem_live(), before);
    paramd_close(NULL);
    paramd_op_free(NULL);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

enum { STATE_KEYS = 4 };
static const int64_t state_counts[STATE_KEYS] = {3, 700000, 0, 1300000};     /* parts of 1 MiB, and frames of 4 */

static void begin_adam(struct paramd *kv, struct paramd_key keys[STATE_KEYS], float *g)
{
    for (int k = 0; k < STATE_KEYS; k++) {
        keys[k] = (struct paramd_key)PARAMD_INT(k);
        struct paramd_tensor t = {g, PARAMD_F32, 1, &state_counts[k]};
        CHECK_CALL(paramd_init(kv, 1, &keys[k], &t, &e));
    }
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"adam\"}", &e));
}

static void push_all(struct paramd *kv, struct paramd_key keys[STATE_KEYS], float *g)
{
    for (int k = 0; k < STATE_KEYS; k++) {
        struct paramd_tensor t = {g, PARAMD_F32, 1, &state_counts[k]};
        CHECK_CALL(paramd_push(kv, 1, &keys[k], &t, 0, &e));
    }
}

static bool same_states(const struct paramd_state *a, const struct paramd_state *b)
{
    for (int k = 0; k < STATE_KEYS; k++) {
        if (a[k].updates != b[k].updates || a[k].slot_count != b[k].slot_count) return false;
        for (size_t i = 0; i < a[k].slot_count; i++)
            if (memcmp(a[k].slots[i].data, b[k].slots[i].data, a[k].slots[i].count * sizeof(float)) != 0) return false;
    }
    return true;
}

TEST(states_of_any_size_are_got_and_put_back)
{
    int64_t before = mem_live();
    struct paramd *kv = open_type("local");
    struct paramd_key keys[STATE_KEYS];
    struct paramd_op *early, *late;
    float *g = malloc((size_t)state_counts[3] * sizeof *g);

    for (int64_t i = 0; i < state_counts[3]; i++) g[i] = (float)(i % 1009) - 500;
    begin_adam(kv, keys, g);
    push_all(kv, keys, g);
    CHECK_CALL(paramd_get_states(kv, STATE_KEYS, keys, &early, &e));
    const struct paramd_state *s = paramd_op_states(early);
    CHECK_TEXT(s[3].updater, "adam");
    CHECK_EQ(s[3].slot_count, 2);
    CHECK_TEXT(s[3].slots[1].name, "var");
    CHECK_EQ(s[3].slots[1].count, state_counts[3]);
    CHECK_EQ(s[2].slot_count, 0);
    CHECK_NEAR(((float *)s[3].slots[0].data)[1300000 - 1], 0.1 * (float)(1299999 % 1009 - 500), 1e-4);
    push_all(kv, keys, g);
    CHECK_CALL(paramd_set_states(kv, STATE_KEYS, keys, s, &e));
    CHECK_CALL(paramd_get_states(kv, STATE_KEYS, keys, &late, &e));
    CHECK(same_states(s, paramd_op_states(late)));
    paramd_op_free(early), paramd_op_free(late);
    paramd_close(kv);
    free(g);
    CHECK_EQ(mem_live(), before);
}

TEST(when_one_state_does_not_fit_none_is_put)
{
    struct paramd *kv = open_type("local");
    struct paramd_key keys[STATE_KEYS], twice[2] = {PARAMD_INT(1), PARAMD_INT(1)}, unknown = PARAMD_INT(77);
    struct paramd_op *early, *late;
    struct paramd_state changed[STATE_KEYS];
    struct paramd_slot slots[2];
    float *g = calloc((size_t)state_counts[3], sizeof *g);

    begin_adam(kv, keys, g);
    push_all(kv, keys, g);
    CHECK_CALL(paramd_get_states(kv, STATE_KEYS, keys, &early, &e));
    memcpy(changed, paramd_op_states(early), sizeof changed);
    memcpy(slots, changed[3].slots, sizeof slots);
    push_all(kv, keys, g);
    changed[3].slots = slots;
    slots[0].count--;
    CHECK_REFUSED(paramd_set_states(kv, STATE_KEYS, keys, changed, &e), "shape-mismatch");
    slots[0].count++;
    slots[0].name = "momentum";
    CHECK_REFUSED(paramd_set_states(kv, STATE_KEYS, keys, changed, &e), "no-such-slot");
    slots[0].name = NULL;
    CHECK_REFUSED(paramd_set_states(kv, STATE_KEYS, keys, changed, &e), "invalid-argument");
    changed[3].updater = "sgd", changed[3].slot_count = 0;
    CHECK_REFUSED(paramd_set_states(kv, STATE_KEYS, keys, changed, &e), "updater-incompatible");
    CHECK_REFUSED(paramd_set_states(kv, 2, twice, changed, &e), "invalid-argument");
    CHECK_REFUSED(paramd_set_states(kv, 1, &unknown, changed, &e), "no-such-key");
    CHECK_CALL(paramd_set_states(kv, 0, NULL, NULL, &e));
    CHECK_CALL(paramd_get_states(kv, STATE_KEYS, keys, &late, &e));
    for (int k = 0; k < STATE_KEYS; k++) CHECK_EQ(paramd_op_states(late)[k].updates, 2);
    paramd_op_free(early), paramd_op_free(late);
    paramd_close(kv);
    free(g);
}

static int keep_nothing(void *ctx, const struct paramd_key *key, const struct paramd_tensor *sum,
                        struct paramd_tensor *stored)
{
    (void)ctx, (void)key, (void)sum, (void)stored;
    return 0;
}

TEST(a_function_keeps_its_states_itself)
{
    struct paramd *kv = open_type("local");
    struct paramd_op *op = NULL;

    init_with(kv, &key_3, 1);
    CHECK_CALL(paramd_set_updater_function(kv, keep_nothing, NULL, &e));
    CHECK_REFUSED(paramd_get_states(kv, 1, &key_3, &op, &e), "updater-incompatible");
    CHECK(op == NULL);
    paramd_close(kv);
}

static void short_life(void)
{
    struct paramd_op *states;
    struct paramd *kv;
    struct paramd_key keys[2] = {PARAMD_INT(3), PARAMD_INT(3)};
    float a[N] = {1}, b[N] = {2};
    struct paramd_tensor t[2] = {f32(a), f32(b)};

    if (paramd_create("local", NULL, &kv, &e) != 0) return;
    if (paramd_init(kv, 1, keys, t, &e) == 0) {
        (void)paramd_set_updater(kv, "{\"type\": \"add\"}", &e);
        (void)paramd_push(kv, 2, keys, t, 0, &e);
        (void)paramd_pull(kv, 2, keys, t, 0, &e);
        (void)paramd_set_updater(kv, "{\"type\": \"adam\"}", &e);
        (void)paramd_push(kv, 1, keys, t, 0, &e);
        if (paramd_get_states(kv, 1, keys, &states, &e) == 0) {
            (void)paramd_set_states(kv, 1, keys, paramd_op_states(states), &e);
            paramd_op_free(states);
        }
    }
    paramd_close(kv);
}

TEST(any_allocation_may_fail)
{
    for (uint64_t n = 1;; n++) {
        int64_t before = mem_live();
        mem_fault_at(n);
        short_life();
        bool hit = mem_fault_hit();
        mem_fault_at(0);
        CHECK_EQ(mem_live(), before);
        if (!hit) break;
    }
}
