/* A real daemon for system tests: build/paramd as a child process, on free ports of this machine.
 *
 * PARAMD_BIN names the binary; else it is looked for from where the test's binary lies (build/[variant/]paramd). A
 * failure to start ends the test. */
#ifndef TESTS_LIB_DAEMON_H
#define TESTS_LIB_DAEMON_H

#include <stdbool.h>
#include <sys/types.h>

struct daemon {
    pid_t pid;
    char data[128];              /* tcp://127.0.0.1:... of the front door */
    char bulk[128];              /* "off" without one */
    char admin[128];             /* http://... */
    char probe[128];
};

struct daemon_options {
    bool no_bulk;
    const char *listen;          /* NULL: tcp://127.0.0.1:0 */
    const char *more[8];         /* further arguments, ended by NULL */
};

/* options may be NULL. */
struct daemon *daemon_start(const struct daemon_options *options);
/* SIGTERM, and SIGKILL when it does not go. Answers how it exited (as waitpid says). NULL is nothing. */
int daemon_stop(struct daemon *d);
/* Ends it without a word, as a crash does. */
void daemon_kill(struct daemon *d);

#endif
