#include "web/viz/viz.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { CONVERT_MEMORY = 1 << 30, PIECE = 64 << 10 };

/* The drawing lies in a file without a name, so that nothing need be fed to the child while it is read from. */
static int file_of(struct bytes svg)
{
    int fd = memfd_create("paramd.svg", MFD_CLOEXEC);

    for (size_t done = 0; fd >= 0 && done < svg.size;) {
        ssize_t n = write(fd, (const char *)svg.at + done, svg.size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            close(fd);
            return -1;
        }
        done += (size_t)n;
    }
    if (fd >= 0) lseek(fd, 0, SEEK_SET);
    return fd;
}

/* Directly, never by a shell; with no descriptor but the three, and with signals as a new program expects them. 0
 * or an error number. */
static int start(int in, int out, const char *format, pid_t *pid)
{
    char *const arguments[] = {(char *)(uintptr_t) "rsvg-convert", (char *)(uintptr_t) "--unlimited",
                               (char *)(uintptr_t) "--format", (char *)(uintptr_t)format, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attrs;
    sigset_t none, standard;
    int code = posix_spawn_file_actions_init(&files);

    if (code != 0) return code;
    code = posix_spawnattr_init(&attrs);
    if (code != 0) goto out;
    sigemptyset(&none);
    sigemptyset(&standard);
    sigaddset(&standard, SIGPIPE);
    sigaddset(&standard, SIGTERM);
    sigaddset(&standard, SIGINT);
    posix_spawnattr_setsigmask(&attrs, &none);
    posix_spawnattr_setsigdefault(&attrs, &standard);
    posix_spawnattr_setflags(&attrs, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    code = posix_spawn_file_actions_adddup2(&files, in, 0);
    if (code == 0) code = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (code == 0) code = posix_spawn_file_actions_addopen(&files, 2, "/dev/null", 1, 0);
    if (code == 0) code = posix_spawn_file_actions_addclosefrom_np(&files, 3);
    if (code == 0) code = posix_spawnp(pid, "rsvg-convert", &files, &attrs, arguments, environ);
    posix_spawnattr_destroy(&attrs);
out:
    posix_spawn_file_actions_destroy(&files);
    return code;
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Takes what the child writes, until it ends or its time is over. */
static enum status collect(int fd, struct buf *out, struct error *e)
{
    int64_t until = now_ms() + CONVERT_MS;
    size_t start_size = out->size;

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = until - now_ms();
        if (left <= 0)
            return error_set(e, REASON_DEADLINE, "rsvg-convert did not end within %d s; svg is quicker",
                             CONVERT_MS / 1000);
        if (poll(&p, 1, (int)left) <= 0) continue;
        void *room = buf_room(out, PIECE);
        if (room == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the drawing");
        ssize_t n = read(fd, room, PIECE);
        out->size -= PIECE - (n > 0 ? (size_t)n : 0);
        if (n == 0) return STATUS_OK;
        if (n < 0 && errno != EINTR) return error_set(e, REASON_SYSTEM, "rsvg-convert: %s", strerror(errno));
        if (out->size - start_size > CONVERTED_MAX)
            return error_set(e, REASON_TOO_LARGE, "the drawing has more than %d bytes; svg is smaller",
                             CONVERTED_MAX);
    }
}

static enum status end(pid_t pid, enum status s, const char *format, struct error *e)
{
    int state = 0;

    if (s != STATUS_OK) kill(pid, SIGKILL);
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR) continue;
    if (s != STATUS_OK || (WIFEXITED(state) && WEXITSTATUS(state) == 0)) return s;
    if (WIFEXITED(state) && WEXITSTATUS(state) == 127) /* how some systems tell that there is no such program */
        return error_set(e, REASON_UNIMPLEMENTED,
                         "%s needs rsvg-convert: install the package librsvg2-bin. svg needs nothing.", format);
    return error_set(
        e, REASON_TOO_LARGE,
        "rsvg-convert could not make %s of this drawing, perhaps because it is too large; svg can be had", format);
}

enum status viz_convert(struct bytes svg, const char *format, struct buf *out, struct error *e)
{
    struct rlimit memory = {CONVERT_MEMORY, CONVERT_MEMORY};
    int pipes[2] = {-1, -1}, in = file_of(svg);
    enum status s;
    pid_t pid;

    if (in < 0 || pipe2(pipes, O_CLOEXEC) != 0) {
        s = error_set(e, REASON_SYSTEM, "no room for another file: %s", strerror(errno));
        goto out;
    }
    int code = start(in, pipes[1], format, &pid);
    if (code != 0) {
        s = code == ENOENT
                ? error_set(e, REASON_UNIMPLEMENTED,
                            "%s needs rsvg-convert: install the package librsvg2-bin. svg needs nothing.", format)
                : error_set(e, REASON_SYSTEM, "rsvg-convert: %s", strerror(code));
        goto out;
    }
    prlimit(pid, RLIMIT_AS, &memory, NULL);
    close(pipes[1]);
    pipes[1] = -1;
    s = collect(pipes[0], out, e);
    s = end(pid, s, format, e);
out:
    if (in >= 0) close(in);
    if (pipes[0] >= 0) close(pipes[0]);
    if (pipes[1] >= 0) close(pipes[1]);
    return s;
}
