/* Names of store types and the options document of paramd_create. */
#include "api/client/client_options.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

static struct error e;

TEST(types_become_what_they_say)
{
    static const struct {
        const char *given, *name, *canonical;
        bool embedded;
    } rows[] = {
        {"local", "local", "local", true},
        {"LOCAL", "local", "local", true},
        {"device", "device", "device", true},
        {"local_device", "local_device", "device", true},
        {"NCCL", "nccl", "nccl", true},
        {"dist_device_async", "dist_device_async", "dist_async", false},
        {"dist_sync_nccl", "dist_sync_nccl", "dist_sync", false},
        {"local_allreduce_cpu", "local_allreduce_cpu", "local", true},
        {"local_allreduce_device", "local_allreduce_device", "device", true},
        {"local_update_cpu", "local_update_cpu", "local", true},
        {"dist", "dist", "dist_sync", false},
        {"dist_sync", "dist_sync", "dist_sync", false},
        {"Dist_Device_Sync", "dist_device_sync", "dist_sync", false},
        {"dist_sync_device", "dist_sync_device", "dist_sync", false},
        {"dist_async", "dist_async", "dist_async", false},
        {"dist_gpu_async", "dist_gpu_async", "dist_async", false},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct client_type t;
        CHECK_OK(client_type_parse(rows[i].given, &t, &e), &e);
        CHECK_TEXT(t.name, rows[i].name);
        CHECK_TEXT(t.canonical, rows[i].canonical);
        CHECK_EQ(t.embedded, rows[i].embedded);
    }
}

TEST(types_that_do_not_work_say_what_does)
{
    static const struct {
        const char *given;
        enum status status;
        const char *says;
    } rows[] = {
        {"lokal", STATUS_INVALID_ARGUMENT, "none of local device nccl dist sync async update allreduce cpu gpu (joined"},
        {"", STATUS_INVALID_ARGUMENT, "local"},
        {"_", STATUS_INVALID_ARGUMENT, "none of"},
        {"dist__sync", STATUS_INVALID_ARGUMENT, "none of"},
        {"dist_", STATUS_INVALID_ARGUMENT, "none of"},
        {"local ", STATUS_INVALID_ARGUMENT, "none of"},
        {"dist_sync_async", STATUS_INVALID_ARGUMENT, "both"},
        {"local_dist", STATUS_INVALID_ARGUMENT, "both"},
        {"dist_ssp", STATUS_UNIMPLEMENTED, "dist_sync or dist_async"},
        {"p3", STATUS_UNIMPLEMENTED, "dist_sync"},
        {"dist_sync_tree", STATUS_UNIMPLEMENTED, "leave the word out"},
        {"local_local_local_local_local_local_local_local_local_local_local_local", STATUS_INVALID_ARGUMENT, "letters"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct client_type t;
        CHECK_EQ(client_type_parse(rows[i].given, &t, &e), rows[i].status);
        CHECK_EQ(e.status, rows[i].status);
        CHECK_SAYS(e.text, rows[i].says);
    }
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static enum status read_options(const char *type, const char *document, struct client_options *o)
{
    struct client_type t;

    CHECK_OK(client_type_parse(type, &t, &e), &e);
    return client_options_read(&t, document, o, &e);
}

static void check_create(const struct client_options *o, const char *want)
{
    char text[2048];

    CHECK(o->create.size < sizeof text);
    memcpy(text, o->create.at, o->create.size);
    text[o->create.size] = '\0';
    CHECK_TEXT(text, want);
}

static void clear_environment(void)
{
    unsetenv("PARAMD_URL");
    unsetenv("PARAMD_TOKEN");
    unsetenv("PARAMD_ON_REINIT");
}

TEST(without_options_the_standards_hold_and_nothing_is_stated)
{
    struct client_options o;

    clear_environment();
    CHECK_OK(read_options("dist_sync", NULL, &o), &e);
    CHECK_TEXT(o.url, "tcp://127.0.0.1:7700");
    CHECK_EQ(o.front.port, 7700);
    CHECK_EQ(o.connect_ms, 5000);
    CHECK_EQ(o.connections, 1);
    CHECK(o.bulk && !o.nanomsg && !o.own_worker && !o.embedded);
    check_create(&o, "{\"type\":\"dist_sync\",\"store\":\"default\"}");
    client_options_fini(&o);
}

TEST(options_of_the_store_go_into_the_document_and_others_do_not)
{
    struct client_options o;

    clear_environment();
    CHECK_OK(read_options("dist_sync", "{\"store\": \"s\", \"num_workers\": 2, \"round_timeout\": 1.5,"
                          " \"elastic\": true, \"engine\": \"nanomsg\", \"bulk\": false, \"connections\": 3,"
                          " \"connect_timeout\": 0.25,"
                          " \"worker_id\": \"000102030405060708090a0b0c0d0eFF\", \"worker_name\": \"w\","
                          " \"token\": \"t\", \"on_reinit\": \"keep\", \"url\": \"ipc:///run/door\"}", &o), &e);
    check_create(&o, "{\"type\":\"dist_sync\",\"store\":\"s\",\"num_workers\":2,\"round_timeout\":1.5,"
                     "\"elastic\":true}");
    CHECK(o.nanomsg && !o.bulk && o.own_worker && o.front.is_path);
    CHECK_EQ(o.connections, 3);
    CHECK_EQ(o.connect_ms, 250);
    CHECK_EQ(o.worker.at[15], 0xff);
    CHECK_EQ(o.on_reinit, REINIT_KEEP);
    CHECK_TEXT(o.token, "t");
    CHECK_TEXT(o.worker_name, "w");
    CHECK_TEXT(o.front.path, "/run/door");
    client_options_fini(&o);
}

TEST(the_environment_speaks_where_the_options_do_not)
{
    struct client_options o;

    setenv("PARAMD_URL", "tcp://[::1]:99", 1);
    setenv("PARAMD_TOKEN", "from outside", 1);
    setenv("PARAMD_ON_REINIT", "replace", 1);
    CHECK_OK(read_options("dist_async", NULL, &o), &e);
    CHECK_TEXT(o.front.host, "::1");
    CHECK_EQ(o.front.port, 99);
    CHECK_TEXT(o.token, "from outside");
    CHECK_EQ(o.on_reinit, REINIT_REPLACE);
    client_options_fini(&o);
    CHECK_OK(read_options("local", NULL, &o), &e);
    CHECK(o.embedded);
    client_options_fini(&o);
    CHECK_OK(read_options("local", "{\"url\": \"tcp://host:1\", \"on_reinit\": \"error\"}", &o), &e);
    CHECK(!o.embedded);
    CHECK_TEXT(o.front.host, "host");
    CHECK_EQ(o.on_reinit, REINIT_ERROR);
    client_options_fini(&o);
    setenv("PARAMD_ON_REINIT", "maybe", 1);
    CHECK_EQ(read_options("local", NULL, &o), STATUS_INVALID_ARGUMENT);
    clear_environment();
}

TEST(options_that_are_wrong_are_named)
{
    static const struct {
        const char *document, *code, *says;
    } rows[] = {
        {"[]", "malformed-json", "object"},
        {"{", "malformed-json", "line"},
        {"{\"a\": 1, \"a\": 2}", "malformed-json", "duplicate"},
        {"{\"conect_timeout\": 1}", "unknown-parameter", "connect_timeout"},
        {"{\"xyzzy\": 1}", "unknown-parameter", "xyzzy"},
        {"{\"num_workers\": -1}", "invalid-argument", "num_workers"},
        {"{\"num_workers\": 1.5}", "invalid-argument", "whole number"},
        {"{\"num_workers\": \"2\"}", "invalid-argument", "\"2\""},
        {"{\"round_timeout\": 0}", "invalid-argument", "seconds"},
        {"{\"connect_timeout\": 1e30}", "invalid-argument", "seconds"},
        {"{\"connect_timeout\": false}", "invalid-argument", "seconds"},
        {"{\"elastic\": 1}", "invalid-argument", "true or false"},
        {"{\"bulk\": \"off\"}", "invalid-argument", "true or false"},
        {"{\"engine\": \"zmq\"}", "invalid-argument", "nanomsg"},
        {"{\"connections\": 0}", "invalid-argument", "1 to 8"},
        {"{\"connections\": 9}", "invalid-argument", "1 to 8"},
        {"{\"worker_id\": \"12\"}", "invalid-argument", "32 hexadecimal"},
        {"{\"worker_id\": \"0001020304050607080g0a0b0c0d0e0f\"}", "invalid-argument", "32 hexadecimal"},
        {"{\"worker_id\": \"00000000000000000000000000000000\"}", "invalid-argument", "zero"},
        {"{\"worker_name\": \"\"}", "invalid-argument", "empty"},
        {"{\"on_reinit\": \"ask\"}", "invalid-argument", "error, replace, keep"},
        {"{\"on_late\": 3}", "invalid-argument", "string"},
        {"{\"url\": \"http://a:1\"}", "invalid-argument", "tcp://"},
        {"{\"url\": \"tcp://a\"}", "invalid-argument", "port"},
        {"{\"url\": \"tcp://:1\"}", "invalid-argument", "host"},
        {"{\"url\": \"tcp://a:0\"}", "invalid-argument", "port"},
        {"{\"url\": \"tcp://a:65536\"}", "invalid-argument", "port"},
        {"{\"url\": \"tcp://a:1x\"}", "invalid-argument", "port"},
        {"{\"url\": \"ipc://run\"}", "invalid-argument", "begins with /"},
    };

    clear_environment();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct client_options o;
        CHECK(read_options("dist_async", rows[i].document, &o) != STATUS_OK);
        CHECK_TEXT(reason_code(e.reason), rows[i].code);
        CHECK_SAYS(e.text, rows[i].says);
    }
}

TEST(an_option_that_is_null_counts_as_left_out)
{
    struct client_options o;

    clear_environment();
    CHECK_OK(read_options("dist_async", "{\"num_workers\": null, \"token\": null}", &o), &e);
    check_create(&o, "{\"type\":\"dist_async\",\"store\":\"default\"}");
    client_options_fini(&o);
}
