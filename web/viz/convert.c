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

enum { CONVERT_MEMORY = 1 << 30, PIECE = 64 << 10, TOOL_ARGUMENTS = 4 };

/* A program that makes one drawing of what it reads. */
struct tool {
    const char *arguments[TOOL_ARGUMENTS + 1];       /* its name first */
    const char *package, *instead;
    int64_t limit_ms;
};

/* The drawing lies in a file without a name, so that nothing need be fed to the child while it is read from. */
static int file_of(struct bytes text)
{
    int fd = memfd_create("paramd", MFD_CLOEXEC);

    for (size_t done = 0; fd >= 0 && done < text.size;) {
        ssize_t n = write(fd, (const char *)text.at + done, text.size - done);
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
static int start(const struct tool *t, int in, int out, pid_t *pid)
{
    char *arguments[TOOL_ARGUMENTS + 1];
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attrs;
    sigset_t none, standard;
    int code = posix_spawn_file_actions_init(&files);

    if (code != 0) return code;
    for (int i = 0; i <= TOOL_ARGUMENTS; i++) arguments[i] = (char *)(uintptr_t)t->arguments[i];
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
    if (code == 0) code = posix_spawnp(pid, arguments[0], &files, &attrs, arguments, environ);
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
static enum status collect(const struct tool *t, int fd, struct buf *out, struct error *e)
{
    int64_t until = now_ms() + t->limit_ms;
    size_t start_size = out->size;

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = until - now_ms();
        if (left <= 0)
            return error_set(e, REASON_DEADLINE, "%s did not end within %d s; %s is quicker", t->arguments[0],
                             (int)(t->limit_ms / 1000), t->instead);
        if (poll(&p, 1, (int)left) <= 0) continue;
        void *room = buf_room(out, PIECE);
        if (room == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the drawing");
        ssize_t n = read(fd, room, PIECE);
        out->size -= PIECE - (n > 0 ? (size_t)n : 0);
        if (n == 0) return STATUS_OK;
        if (n < 0 && errno != EINTR) return error_set(e, REASON_SYSTEM, "%s: %s", t->arguments[0], strerror(errno));
        if (out->size - start_size > CONVERTED_MAX)
            return error_set(e, REASON_TOO_LARGE, "the drawing has more than %d bytes; svg is smaller",
                             CONVERTED_MAX);
    }
}

static enum status not_there(const struct tool *t, struct error *e)
{
    return error_set(e, REASON_UNIMPLEMENTED, "this needs the program %s: install the package %s. %s needs nothing.",
                     t->arguments[0], t->package, t->instead);
}

static enum status end(const struct tool *t, pid_t pid, enum status s, struct error *e)
{
    int state = 0;

    if (s != STATUS_OK) kill(pid, SIGKILL);
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR) continue;
    if (s != STATUS_OK || (WIFEXITED(state) && WEXITSTATUS(state) == 0)) return s;
    if (WIFEXITED(state) && WEXITSTATUS(state) == 127) /* how some systems tell that there is no such program */
        return not_there(t, e);
    return error_set(e, REASON_TOO_LARGE, "%s could not make this drawing, perhaps because it is too large; %s can be had",
                     t->arguments[0], t->instead);
}

static enum status run(const struct tool *t, struct bytes text, struct buf *out, struct error *e)
{
    struct rlimit memory = {CONVERT_MEMORY, CONVERT_MEMORY};
    int pipes[2] = {-1, -1}, in = file_of(text);
    enum status s;
    pid_t pid;

    if (in < 0 || pipe2(pipes, O_CLOEXEC) != 0) {
        s = error_set(e, REASON_SYSTEM, "no room for another file: %s", strerror(errno));
        goto out;
    }
    int code = start(t, in, pipes[1], &pid);
    if (code != 0) {
        s = code == ENOENT ? not_there(t, e) : error_set(e, REASON_SYSTEM, "%s: %s", t->arguments[0], strerror(code));
        goto out;
    }
    prlimit(pid, RLIMIT_AS, &memory, NULL);
    close(pipes[1]);
    pipes[1] = -1;
    s = collect(t, pipes[0], out, e);
    s = end(t, pid, s, e);
out:
    if (in >= 0) close(in);
    if (pipes[0] >= 0) close(pipes[0]);
    if (pipes[1] >= 0) close(pipes[1]);
    return s;
}

enum status viz_convert(struct bytes svg, const char *format, struct buf *out, struct error *e)
{
    struct tool t = {{"rsvg-convert", "--unlimited", "--format", format}, "librsvg2-bin", "svg", CONVERT_MS};

    return run(&t, svg, out, e);
}

/* UTF-8 is what our DOT text is in, whatever the locale. */
enum status viz_run_dot(struct bytes dot, const char *format, struct buf *out, struct error *e)
{
    const char *as = strcmp(format, "png") == 0 ? "-Tpng" : strcmp(format, "pdf") == 0 ? "-Tpdf" : "-Tsvg";
    struct tool t = {{"dot", as, "-Gcharset=UTF-8"}, "graphviz", "the engine 'own'", DOT_MS};

    return run(&t, dot, out, e);
}
