/* Handles that only look ("join": false): what they see, what they may not, and that nobody ever waits for them. */
#include "api/client/paramd.h"
#include "tests/lib/daemon.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

static struct paramd_error e;
static struct daemon *server;
static struct paramd *worker;    /* of a dist_sync store with one place */

#define CHECK_CALL(call) do { if ((call) != 0) test_fail(__FILE__, __LINE__, "%s: %s", #call, e.text); } while (0)

enum { LARGE = 1 << 20 };        /* elements: several frames */
static float small[3] = {1, 2, 3}, large[LARGE];
static int64_t small_shape[] = {3}, large_shape[] = {LARGE};
static const struct paramd_key keys[] = {PARAMD_STR("small"), PARAMD_STR("large")};

static struct paramd *open_handle(const char *type, const char *more)
{
    char options[512];
    struct paramd *kv;

    snprintf(options, sizeof options, "{\"url\": \"%s\"%s}", server->data, more);
    CHECK_CALL(paramd_create(type, options, &kv, &e));
    return kv;
}

static void begin(void)
{
    const struct paramd_tensor values[] = {{small, PARAMD_F32, 1, small_shape}, {large, PARAMD_F32, 1, large_shape}};

    daemon_kill(server);
    server = daemon_start(NULL);
    worker = open_handle("dist_sync", ", \"store\": \"s\", \"num_workers\": 1, \"worker_name\": \"w\"");
    for (int i = 0; i < LARGE; i++) large[i] = (float)i;
    CHECK_CALL(paramd_init(worker, 2, keys, values, &e));
}

static void end(void)
{
    struct daemon *d = server;

    paramd_close(worker);
    server = NULL;
    CHECK_EQ(daemon_stop(d), 0);
}

static void says(const char *document, const char *part)
{
    if (strstr(document, part) == NULL) test_fail(__FILE__, __LINE__, "%s is not in %s", part, document);
}

TEST(a_looker_pulls_and_describes_values_of_any_size)
{
    float got[3];
    static float got_large[LARGE];
    struct paramd_tensor outputs[] = {{got, PARAMD_F32, 1, small_shape}, {got_large, PARAMD_F32, 1, large_shape}};
    struct paramd_info info;

    begin();
    struct paramd *kv = open_handle("dist_async", ", \"store\": \"s\", \"join\": false"); /* of whatever type */
    CHECK_CALL(paramd_describe(kv, &keys[0], &info, &e));
    CHECK_EQ(info.version, 1);
    for (int i = 0; i < 3; i++) {
        CHECK_CALL(paramd_pull(kv, 2, keys, outputs, 0, &e));
        CHECK(memcmp(got, small, sizeof got) == 0 && memcmp(got_large, large, sizeof large) == 0);
        memset(got, 0, sizeof got);
        memset(got_large, 0, sizeof got_large);
    }
    paramd_close(kv);
    end();
}

TEST(a_looker_is_no_worker_and_no_round_waits_for_it)
{
    struct paramd_tensor gradient = {small, PARAMD_F32, 1, small_shape};
    char *answer;

    begin();
    struct paramd *kv = open_handle("dist_sync", ", \"store\": \"s\", \"join\": false");
    CHECK_CALL(paramd_call(kv, "Workers", "{}", &answer, &e));
    says(answer, "\"w\"");
    CHECK(strstr(strstr(answer, "\"name\"") + 1, "\"name\"") == NULL);
    paramd_text_free(answer);
    for (int i = 0; i < 3; i++) {
        CHECK_CALL(paramd_push(worker, 1, keys, &gradient, 0, &e));
        CHECK_CALL(paramd_wait(worker, 1, keys, &e));
    }
    CHECK_EQ(paramd_num_workers(worker), 1);
    paramd_close(kv);
    end();
}

TEST(what_is_for_workers_is_refused_before_anything_is_sent)
{
    struct paramd_tensor value = {small, PARAMD_F32, 1, small_shape};

    begin();
    struct paramd *kv = open_handle("dist_sync", ", \"store\": \"s\", \"join\": false");
    CHECK_EQ(paramd_push(kv, 1, keys, &value, 0, &e), 9);
    CHECK_TEXT(e.reason, "not-joined");
    CHECK_SAYS(e.text, "\"join\"");
    CHECK_EQ(paramd_init(kv, 1, keys, &value, &e), 9);
    CHECK_EQ(paramd_barrier(kv, "b", &e), 9);
    CHECK_TEXT(e.reason, "not-joined");
    paramd_close(kv);
    end();
}

TEST(a_looker_may_set_a_value_and_the_updater)
{
    float next[3] = {7, 8, 9}, got[3];
    struct paramd_tensor value = {next, PARAMD_F32, 1, small_shape}, output = {got, PARAMD_F32, 1, small_shape};

    begin();
    struct paramd *kv = open_handle("dist_sync", ", \"store\": \"s\", \"join\": false");
    CHECK_CALL(paramd_set(kv, 1, keys, &value, 0, &e));
    CHECK_CALL(paramd_pull(worker, 1, keys, &output, 0, &e));
    CHECK(memcmp(got, next, sizeof got) == 0);
    CHECK_CALL(paramd_set_updater(kv, "{\"type\": \"sgd\", \"learning_rate\": 1}", &e));
    CHECK_CALL(paramd_push(worker, 1, keys, &value, 0, &e));
    CHECK_CALL(paramd_pull(worker, 1, keys, &output, 0, &e));
    CHECK_EQ((int)got[0], 0);
    paramd_close(kv);
    end();
}

TEST(a_store_that_is_not_there_is_not_created)
{
    struct paramd *kv;
    char options[256], *answer;

    begin();
    snprintf(options, sizeof options, "{\"url\": \"%s\", \"store\": \"nowhere\", \"join\": false}", server->data);
    CHECK_EQ(paramd_create("dist_async", options, &kv, &e), 5);
    CHECK_SAYS(e.text, "nowhere");
    snprintf(options, sizeof options, "{\"url\": \"%s\", \"store\": \"default\", \"join\": false}", server->data);
    CHECK_EQ(paramd_create("dist_async", options, &kv, &e), 5);
    CHECK_CALL(paramd_call(worker, "ListStores", "{}", &answer, &e));
    CHECK(strstr(answer, "nowhere") == NULL);
    paramd_text_free(answer);
    end();
}

TEST(without_a_store_calls_go_as_they_are_and_values_are_refused)
{
    struct paramd_tensor output = {small, PARAMD_F32, 1, small_shape};
    char *answer;

    begin();
    struct paramd *kv = open_handle("dist_async", ", \"join\": false");
    CHECK_CALL(paramd_call(kv, "Stats", "{}", &answer, &e));
    says(answer, "counters");
    CHECK(strstr(answer, "\"rounds\"") == NULL);
    paramd_text_free(answer);
    CHECK_CALL(paramd_call(kv, "GetUpdater", "{\"store\": \"s\"}", &answer, &e));
    says(answer, "assign");
    paramd_text_free(answer);
    CHECK_EQ(paramd_pull(kv, 1, keys, &output, 0, &e), 5);
    CHECK_SAYS(e.text, "\"store\"");
    paramd_close(kv);
    end();
}

TEST(a_store_in_the_process_is_always_the_callers)
{
    struct paramd *kv;

    CHECK_EQ(paramd_create("local", "{\"join\": false}", &kv, &e), 3);
    CHECK_SAYS(e.text, "\"join\": false");
    CHECK_EQ(paramd_create("dist_sync", "{\"join\": 1}", &kv, &e), 3);
}
