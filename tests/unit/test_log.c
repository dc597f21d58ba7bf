/* The log: levels, and one line an event whatever the message holds. */
#include "service/base/log.h"

#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char text[8192];
static int real = -1, ends[2] = {-1, -1};

/* stderr becomes a pipe until said() gives it back. */
static void listen_to_stderr(enum log_level least)
{
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
    return text;
}

static size_t lines(const char *s)
{
    size_t n = 0;
    for (; *s != '\0'; s++) n += *s == '\n';
    return n;
}

TEST(a_line_tells_time_level_module_and_message)
{
    int year, month, day, hour, minute, second, ms;

    listen_to_stderr(LOG_WARN);
    log_warn("core", "key %d", 7);
    const char *s = said();
    CHECK_EQ(sscanf(s, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &year, &month, &day, &hour, &minute, &second, &ms), 7);
    CHECK_SAYS(s, "Z warn  core: key 7\n");
    CHECK_EQ(lines(s), 1);
}

TEST(what_is_less_important_than_the_level_is_dropped)
{
    for (int least = LOG_OFF; least <= LOG_DEBUG; least++) {
        listen_to_stderr((enum log_level)least);
        log_error("m", "x");
        log_warn("m", "x");
        log_info("m", "x");
        log_debug("m", "x");
        CHECK_EQ(lines(said()), least + 1);
    }
}

TEST(a_message_with_line_ends_stays_one_line)
{
    listen_to_stderr(LOG_INFO);
    log_info("m", "name a\nb\r\x1b[2J\tc\x7f");
    const char *s = said();
    CHECK_EQ(lines(s), 1);
    CHECK_SAYS(s, "m: name a?b??[2J?c?\n");
}

TEST(a_message_of_any_length_is_one_ended_line)
{
    char long_one[2000];

    for (size_t size = 940; size < 1060; size++) {
        memset(long_one, 'a', size);
        long_one[size] = '\0';
        listen_to_stderr(LOG_INFO);
        log_info("m", "%s", long_one);
        const char *s = said();
        size_t n = strlen(s);
        CHECK_EQ(lines(s), 1);
        CHECK(n > 900 && n <= 1024 && s[n - 1] == '\n' && s[n - 2] == 'a');
    }
}
