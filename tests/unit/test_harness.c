/* The harness itself: what it says of a test that takes too long. */
#include "tests/lib/test.h"

#include <sys/wait.h>
#include <unistd.h>

TEST(a_test_before_it_passes) { CHECK(true); }

TEST(a_test_that_takes_too_long_is_named_and_those_before_it_are_counted)
{
    char said[1000];
    int ends[2], status = 0;
    size_t have = 0;

    CHECK_EQ(pipe(ends), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[1]);
        test_time_limit(1);
        for (;;) pause();
    }
    close(ends[1]);
    for (ssize_t n; have < 999 && (n = read(ends[0], said + have, 999 - have)) > 0;) have += (size_t)n;
    said[have] = '\0';
    close(ends[0]);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    CHECK_SAYS(said, "a_test_that_takes_too_long_is_named_and_those_before_it_are_counted: ran past its limit of 4 s on the clock");
    CHECK_SAYS(said, " passed, 1 failed, 0 skipped\n");
}
