/* The log: levels, both formats, one line an event whatever the message holds, and folding. */
#include "service/base/log.h"

#include "service/base/clock.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char text[65536];
static int real = -1, ends[2] = {-1, -1};

/* stderr becomes a pipe until said() gives it back. What other tests left folded is told before. */
static void listen_to_stderr(enum log_level least)
{
    log_set_level(LOG_OFF);
    log_flush(UINT64_MAX);
    CHECK_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    real = dup(STDERR_FILENO);
    CHECK(real >= 0);
    dup2(ends[1], STDERR_FILENO);
    log_set_level(least);
}

static const char *said(void)
{
    dup2(real, STDERR_FILENO);
    close(real);
    close(ends[1]);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    text[n > 0 ? n : 0] = '\0';
    log_set_level(LOG_WARN);
    log_set_format(LOG_TEXT);
    log_set_priorities(false);
    return text;
}

static size_t lines(const char *s)
{
    size_t n = 0;
    for (; *s != '\0'; s++) n += *s == '\n';
    return n;
}

TEST(a_line_tells_time_level_component_and_message)
{
    int year, month, day, hour, minute, second, ms;

    listen_to_stderr(LOG_WARN);
    log_warn("core", "key %d", 7);
    const char *s = said();
    CHECK_EQ(sscanf(s, "ts=%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &year, &month, &day, &hour, &minute, &second, &ms), 7);
    CHECK_SAYS(s, "Z level=warn component=core msg=\"key 7\"\n");
    CHECK_EQ(lines(s), 1);
}

TEST(a_json_line_is_one_object_whatever_the_message_holds)
{
    listen_to_stderr(LOG_INFO);
    log_set_format(LOG_JSON);
    log_info("core", "a \"key\" \\ named\n\x1b[2J\x7f \xc3\xa4 \xff \xe2\x82");
    const char *s = said();
    json_t *j = json_loads(s, 0, NULL);
    CHECK(j != NULL);
    CHECK_EQ(lines(s), 1);
    CHECK_TEXT(json_string_value(json_object_get(j, "level")), "info");
    CHECK_TEXT(json_string_value(json_object_get(j, "component")), "core");
    CHECK_TEXT(json_string_value(json_object_get(j, "msg")), "a \"key\" \\ named\n\x1b[2J\x7f \xc3\xa4 ? ??");
    CHECK_EQ(strlen(json_string_value(json_object_get(j, "ts"))), strlen("2025-01-31T12:00:00.125Z"));
    json_decref(j);
}

TEST(what_is_less_important_than_the_level_is_dropped)
{
    for (int least = LOG_OFF; least <= LOG_DEBUG; least++) {
        listen_to_stderr((enum log_level)least);
        log_error("m", "x");
        log_warn("m", "x ");
        log_info("m", "x");
        log_debug("m", "x");
        CHECK_EQ(lines(said()), least + 1);
    }
}

TEST(what_nobody_reads_is_not_even_made)
{
    int made = 0;

    listen_to_stderr(LOG_INFO);
    log_debug("m", "%d", ++made);
    said();
    CHECK_EQ(made, 0);
}

TEST(a_message_with_line_ends_and_escapes_stays_one_line)
{
    listen_to_stderr(LOG_INFO);
    log_info("m", "name a\nb\r\x1b[2J\tc\x7f\" x=\"y");
    const char *s = said();
    CHECK_EQ(lines(s), 1);
    CHECK_SAYS(s, "component=m msg=\"name a\\nb\\u000d\\u001b[2J\\u0009c\\u007f\\\" x=\\\"y\"\n");
}

TEST(what_a_terminal_would_obey_is_escaped)
{
    listen_to_stderr(LOG_INFO);
    log_info("m", "a\xC2\x9B" "2J\xE2\x80\xAE" "b\xE2\x81\xA6" "c\x9B" "d \xC3\xB6 \xE2\x82\xAC");
    CHECK_SAYS(said(), "msg=\"a\\u009b2J\\u202eb\\u2066c?d \xC3\xB6 \xE2\x82\xAC\"\n");
}

TEST(a_message_of_any_length_is_one_ended_line)
{
    char long_one[2000];

    for (size_t size = 850; size < 950; size++) {
        for (int kind = 0; kind < 2; kind++) {
            memset(long_one, kind == 0 ? 'a' : 1, size);
            long_one[size] = '\0';
            listen_to_stderr(LOG_INFO);
            log_info("m", "%s", long_one);
            const char *s = said();
            size_t n = strlen(s);
            CHECK_EQ(lines(s), 1);
            CHECK(n > 850 && s[n - 1] == '\n' && s[n - 2] == '"');
        }
    }
}

TEST(journald_gets_priorities)
{
    listen_to_stderr(LOG_DEBUG);
    log_set_priorities(true);
    log_error("m", "journal");
    log_debug("m", "x");
    const char *s = said();
    CHECK_EQ(strncmp(s, "<3>ts=", 6), 0);
    CHECK_SAYS(s, "\n<7>ts=");
}

static void warn_of(int n) { log_warn("door", "peer %d is no good", n); }

TEST(the_same_warning_is_written_once_and_counted)
{
    listen_to_stderr(LOG_WARN);
    for (int i = 0; i < 1000; i++) warn_of(1);
    log_flush(clock_ms());
    log_flush(clock_ms() + LOG_FOLD_MS);
    log_flush(clock_ms() + LOG_FOLD_MS);
    const char *s = said();
    CHECK_EQ(lines(s), 2);
    CHECK_SAYS(s, "msg=\"peer 1 is no good\"\n");
    CHECK_SAYS(s, "msg=\"peer 1 is no good\" repeated=999\n");
}

TEST(warnings_of_one_kind_stop_after_a_few_and_the_last_one_tells_how_many)
{
    listen_to_stderr(LOG_WARN);
    log_set_format(LOG_JSON);
    for (int i = 0; i < 1000; i++) warn_of(i);
    log_flush(UINT64_MAX);
    const char *s = said();
    CHECK_EQ(lines(s), LOG_BURST + 1);
    CHECK_SAYS(s, "peer 4 is no good\"}\n");
    CHECK_SAYS(s, "\"msg\":\"peer 999 is no good\",\"repeated\":995}\n");
}

TEST(another_kind_of_warning_is_not_folded_with_it)
{
    listen_to_stderr(LOG_WARN);
    for (int i = 0; i < 10; i++) warn_of(1);
    log_warn("door", "no descriptors");
    log_error("door", "no memory");
    CHECK_EQ(lines(said()), 3);
}

TEST(information_is_never_folded)
{
    listen_to_stderr(LOG_INFO);
    for (int i = 0; i < 20; i++) log_info("m", "again");
    CHECK_EQ(lines(said()), 20);
}

#define KIND(n) log_warn("m", "kind " #n);
#define KINDS_10(n) KIND(n##0) KIND(n##1) KIND(n##2) KIND(n##3) KIND(n##4) KIND(n##5) KIND(n##6) KIND(n##7) KIND(n##8) KIND(n##9)
TEST(more_kinds_than_are_remembered_lose_no_line)
{
    listen_to_stderr(LOG_WARN);
    KINDS_10(1) KINDS_10(2) KINDS_10(3) KINDS_10(4) KINDS_10(5)
    CHECK_EQ(lines(said()), 50);
}

/* ---- the thread that writes ------------------------------------------------------------------------------------- */

static struct error e;

/* stderr becomes a pipe, blocking as an inherited one, that nobody reads until the test does. */
static void listen_to_nothing(void)
{
    log_set_level(LOG_OFF);
    log_flush(UINT64_MAX);
    CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
    real = dup(STDERR_FILENO);
    CHECK(real >= 0);
    dup2(ends[1], STDERR_FILENO);
    log_set_level(LOG_INFO);
    CHECK_OK(log_start(&e), &e);
}

static void give_stderr_back(void)
{
    dup2(real, STDERR_FILENO);
    close(real);
    close(ends[1]);
    log_set_level(LOG_WARN);
}

/* Reads until `word` has come; what came. */
static const char *read_until(const char *word)
{
    static char all[1 << 20];
    size_t have = 0;

    for (all[0] = '\0'; strstr(all, word) == NULL; all[have] = '\0') {
        ssize_t n = read(ends[0], all + have, sizeof all - 1 - have);
        CHECK(n > 0);
        have += (size_t)n;
    }
    return all;
}

enum { FLOOD = 10000 };

TEST(who_logs_does_not_wait_for_a_stderr_that_nobody_reads)
{
    unsigned long long lost = 0;

    listen_to_nothing();
    for (int i = 0; i < FLOOD; i++) log_info("m", "line %d of a flood that no pipe has room for", i);
    CHECK(log_lost() > 0);
    CHECK_EQ(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
    const char *s = read_until("could not be written");
    const char *gap = strstr(s, "component=log msg=\"");
    CHECK(gap != NULL);
    CHECK_EQ(sscanf(gap, "component=log msg=\"%llu lines of the log could not be written here", &lost), 1);
    CHECK_EQ(lost, log_lost());
    CHECK_EQ(lines(s) - 1 + lost, FLOOD);        /* each is there or counted */
    log_info("m", "after the gap");
    CHECK_SAYS(read_until("after the gap"), "after the gap");
    log_stop(clock_ms() + 60000);
    give_stderr_back();
    close(ends[0]);
}

TEST(the_end_does_not_wait_for_a_stderr_that_nobody_reads)
{
    listen_to_nothing();
    for (int i = 0; i < FLOOD; i++) log_info("m", "line %d of a flood that no pipe has room for", i);
    log_stop(clock_ms());                        /* returns, or the test's time limit ends it */
    CHECK_SAYS(read_until("could not be written"), "line 0 of");  /* the thread goes on by itself, and ends */
    give_stderr_back();
    close(ends[0]);
}

TEST(what_is_logged_before_the_end_is_written)
{
    listen_to_nothing();
    log_info("m", "the last words");
    log_line("paramd: as it is\n");
    log_stop(clock_ms() + 60000);
    give_stderr_back();
    const char *s = read_until("as it is");
    CHECK_SAYS(s, "msg=\"the last words\"\nparamd: as it is\n");
    close(ends[0]);
}

TEST(lines_of_a_closed_pipe_are_counted)
{
    listen_to_nothing();
    close(ends[0]);
    log_info("m", "to nobody");
    for (int i = 0; log_lost() == 0; i++) CHECK(usleep(1000) == 0 && i < 60000);
    CHECK_EQ(log_lost(), 1);
    log_stop(clock_ms() + 60000);
    give_stderr_back();
}
