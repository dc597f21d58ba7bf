#include "tests/lib/daemon.h"

#include "tests/lib/test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_SIZE = 1024, LINE_SIZE = 1024, READY_MS = 20000, STOP_MS = 10000 };

/* Upwards from the test's own binary, the first paramd. */
static bool find_near(char path[PATH_SIZE])
{
    char self[PATH_SIZE - 16];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);

    if (size < 0) return false;
    self[size] = '\0';
    for (char *slash; (slash = strrchr(self, '/')) != NULL && slash != self;) {
        *slash = '\0';
        snprintf(path, PATH_SIZE, "%s/paramd", self);
        if (access(path, X_OK) == 0) return true;
    }
    return false;
}

static void find_binary(char path[PATH_SIZE])
{
    const char *named = getenv("PARAMD_BIN");

    if (named != NULL) {
        snprintf(path, PATH_SIZE, "%s", named);
        return;
    }
    if (find_near(path)) return;
    snprintf(path, PATH_SIZE, "build/paramd");
    if (access(path, X_OK) != 0) test_skip("there is no paramd binary: make, or set PARAMD_BIN");
}

static void run_child(const char *path, const struct daemon_options *o, int out)
{
    const char *argv[24] = {path, "--listen", o->listen != NULL ? o->listen : "tcp://127.0.0.1:0", "--bulk",
                            o->no_bulk ? "off" : "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0", "--probe",
                            "127.0.0.1:0"};
    size_t count = 9;

    for (size_t i = 0; i < 8 && o->more[i] != NULL; i++) argv[count++] = o->more[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDOUT_FILENO);
    execv(path, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static bool read_line(int fd, char line[LINE_SIZE])
{
    size_t have = 0;

    while (have < LINE_SIZE - 1) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, READY_MS) <= 0 || read(fd, line + have, 1) != 1) return false;
        if (line[have] == '\n') break;
        have++;
    }
    line[have] = '\0';
    return true;
}

static void take_word(const char *line, const char *name, char out[128])
{
    const char *at = strstr(line, name);

    if (at == NULL) return;
    at += strlen(name);
    snprintf(out, 128, "%.*s", (int)strcspn(at, " "), at);
}

struct daemon *daemon_start(const struct daemon_options *options)
{
    static const struct daemon_options none;
    char path[PATH_SIZE], line[LINE_SIZE];
    int ends[2];

    find_binary(path);
    if (pipe2(ends, O_CLOEXEC) != 0) abort();
    struct daemon *d = calloc(1, sizeof *d);
    d->pid = fork();
    if (d->pid == 0) run_child(path, options != NULL ? options : &none, ends[1]);
    close(ends[1]);
    bool ready = false;
    while (!ready && read_line(ends[0], line)) ready = strncmp(line, "paramd ready ", 13) == 0;
    close(ends[0]);
    if (!ready) {
        daemon_kill(d);
        test_fail(__FILE__, __LINE__, "%s did not say that it is ready", path);
    }
    take_word(line, "data=", d->data);
    take_word(line, "bulk=", d->bulk);
    take_word(line, "admin=", d->admin);
    take_word(line, "probe=", d->probe);
    return d;
}

static bool wait_end(pid_t pid, int ms)
{
    struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

    if (p.fd < 0) return false;
    bool ended = poll(&p, 1, ms) == 1;
    close(p.fd);
    return ended;
}

int daemon_stop(struct daemon *d)
{
    int status = 0;

    if (d == NULL) return 0;
    kill(d->pid, SIGTERM);
    if (!wait_end(d->pid, STOP_MS)) kill(d->pid, SIGKILL);
    waitpid(d->pid, &status, 0);
    free(d);
    return status;
}

void daemon_kill(struct daemon *d)
{
    if (d == NULL) return;
    kill(d->pid, SIGKILL);
    waitpid(d->pid, NULL, 0);
    free(d);
}
