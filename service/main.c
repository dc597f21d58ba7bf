/* paramd: the daemon. The order of set-up and tear-down, and the loop of the core thread. */
#include "service/base/clock.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/settings.h"
#include "service/transport.h"
#include "web/http.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <malloc.h>
#include <nanomsg/nn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { MAILBOX_REQUESTS = 1024, DOORS_MAX = LISTEN_MAX + 1 };

struct daemon {
    struct settings settings;
    char *token;
    struct loop *loop;
    struct mailbox *mailbox;
    struct watch mail_watch;
    struct watch signal_watch;
    struct mail device_mail;         /* "marks may have passed" */
    struct device *device;
    struct server *server;
    struct transport *doors[DOORS_MAX];
    unsigned door_count;
    struct transport *bulk;          /* one of doors, or NULL */
    struct http *admin, *probe;
    uint64_t drain_until_ms;         /* 0: serving */
    bool stop;
};

/* The watches carry no context of their own, and there is one daemon in a process. */
static struct daemon the;

/* ---- events ----------------------------------------------------------------------------------------------------- */

static void take_mail(struct watch *w, uint32_t events)
{
    (void)w;
    (void)events;
    mailbox_take(the.mailbox);
}

static void device_moved(void *ctx)
{
    (void)ctx;
    mailbox_notice(the.mailbox, &the.device_mail);
}

static void poll_device(struct mail *m)
{
    (void)m;
    server_poll(the.server);
}

static void drain(void)
{
    log_info("main", "told to stop: what is under way is finished first, for at most %llu s",
             (unsigned long long)the.settings.drain_timeout);
    the.drain_until_ms = clock_ms() + the.settings.drain_timeout * 1000;
    http_set_ready(the.probe, false);
    server_drain(the.server);
    for (unsigned i = 0; i < the.door_count; i++) transport_drain(the.doors[i]);
}

static void take_signal(struct watch *w, uint32_t events)
{
    struct signalfd_siginfo info;

    (void)events;
    while (read(w->fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (the.drain_until_ms != 0) the.stop = true;
        else drain();
    }
}

/* ---- set-up ----------------------------------------------------------------------------------------------------- */

static enum status read_token(const char *path, char **out, struct error *e)
{
    char text[TOKEN_SIZE_MAX + 2];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : -1;

    if (fd >= 0) close(fd);
    if (n < 0) return error_set(e, REASON_BAD_ARGUMENT, "--token-file %s: %s", path, strerror(errno));
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ')) n--;
    if (n == 0 || n > TOKEN_SIZE_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "--token-file %s: a token has 1 to %d bytes", path, TOKEN_SIZE_MAX);
    *out = mem_text(text, (size_t)n);
    return *out != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for the token");
}

/* Loopback, or a path: reachable from this machine only. */
static bool is_local(const char *address)
{
    const char *host = strstr(address, "://");

    host = host != NULL ? host + 3 : address;
    return strncmp(address, "ipc://", 6) == 0 || strncmp(address, "unix://", 7) == 0 || strncmp(host, "127.", 4) == 0 ||
           strncmp(host, "localhost:", 10) == 0 || strncmp(host, "[::1]", 5) == 0;
}

static enum status check_exposed(const char *flag, const char *address, struct error *e)
{
    if (is_local(address) || the.token != NULL || the.settings.insecure) return STATUS_OK;
    return error_set(e, REASON_BAD_ARGUMENT, "--%s %s can be reached from other machines: give --token-file, or "
                     "--insecure if the network is trusted", flag, address);
}

static enum status check_settings(struct error *e)
{
    const struct settings *s = &the.settings;
    enum status st = STATUS_OK;

    if (s->token_file != NULL) st = read_token(s->token_file, &the.token, e);
    for (unsigned i = 0; i < s->listen.count && st == STATUS_OK; i++) st = check_exposed("listen", s->listen.at[i], e);
    if (st == STATUS_OK && s->bulk != NULL && strcmp(s->bulk, "off") != 0) st = check_exposed("bulk", s->bulk, e);
    if (st == STATUS_OK) st = check_exposed("admin", s->admin, e);
    if (st != STATUS_OK) return st;
    if (strcmp(s->device, "auto") != 0 && strcmp(s->device, "cpu") != 0)
        return error_set(e, REASON_BAD_ARGUMENT, "--device %s: this build knows auto and cpu", s->device);
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; i++)
        if (strcmp(levels[i], s->log) == 0) {
            log_set_level((enum log_level)i);
            return STATUS_OK;
        }
    return error_set(e, REASON_BAD_ARGUMENT, "--log %s: one of error warn info debug", s->log);
}

static enum status watch_signals(struct error *e)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    the.signal_watch = (struct watch){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .ready = take_signal};
    if (the.signal_watch.fd < 0) return error_set(e, REASON_SYSTEM, "signalfd: %s", strerror(errno));
    return loop_add(the.loop, &the.signal_watch, EPOLLIN, e);
}

static enum status start_core(struct error *e)
{
    struct server_config c = {.staging_max = the.settings.staging_max, .token = the.token,
                              .advertise = the.settings.advertise};
    enum status s = loop_new(&the.loop, e);

    if (s == STATUS_OK) s = mailbox_new(MAILBOX_REQUESTS, &the.mailbox, e);
    if (s == STATUS_OK) {
        the.mail_watch = (struct watch){.fd = mailbox_fd(the.mailbox), .ready = take_mail};
        s = loop_add(the.loop, &the.mail_watch, EPOLLIN, e);
    }
    if (s == STATUS_OK) s = watch_signals(e);
    if (s == STATUS_OK) s = cpu_device_new((unsigned)the.settings.threads, &the.device, e);
    if (s != STATUS_OK) return s;
    the.device_mail.open = poll_device;
    the.device->notify = device_moved;
    c.device = the.device;
    if (getrandom(c.seed, sizeof c.seed, 0) != sizeof c.seed ||
        getrandom(&c.instance, sizeof c.instance, 0) != sizeof c.instance)
        return error_set(e, REASON_SYSTEM, "getrandom: %s", strerror(errno));
    return server_new(&c, clock_ms(), &the.server, e);
}

typedef enum status open_door(const struct transport_config *, const char *, struct transport **, struct error *);

static enum status add_door(open_door *open, const char *url, struct transport **out, struct error *e)
{
    struct transport_config c = {.server = the.server, .loop = the.loop, .mailbox = the.mailbox, .now_ms = clock_ms};
    enum status s = open(&c, url, out, e);

    if (s == STATUS_OK) the.doors[the.door_count++] = *out;
    return s;
}

/* Without --bulk it stands beside the front door: its host, port 7701, or any port when the front door took any. */
static void standard_bulk(const char *listen, char out[300])
{
    const char *colon = strrchr(listen, ':');

    if (strncmp(listen, "tcp://", 6) != 0 || colon == NULL || colon - listen > 200) snprintf(out, 300, "tcp://127.0.0.1:0");
    else snprintf(out, 300, "%.*s:%s", (int)(colon - listen), listen, strcmp(colon, ":0") == 0 ? "0" : "7701");
}

static enum status open_doors(struct error *e)
{
    const struct settings *s = &the.settings;
    struct transport *t;
    char beside[300];
    enum status st = STATUS_OK;

    for (unsigned i = 0; i < s->listen.count && st == STATUS_OK; i++)
        st = add_door(transport_nanomsg_open, s->listen.at[i], &t, e);
    if (st != STATUS_OK || (s->bulk != NULL && strcmp(s->bulk, "off") == 0)) return st;
    standard_bulk(s->listen.at[0], beside);
    const char *url = s->bulk != NULL ? s->bulk : beside;
    st = add_door(transport_sp_open, url, &the.bulk, e);
    if (st != STATUS_OK) return st;
    const char *path = transport_port(the.bulk) == 0 ? strstr(transport_url(the.bulk), "://") : NULL;
    server_set_bulk(the.server, transport_port(the.bulk), path != NULL ? path + 3 : NULL);
    return STATUS_OK;
}

static enum status start_web(struct error *e)
{
    struct http_config c = {.server = the.server, .mailbox = the.mailbox, .token = the.token};
    enum status s = http_start(&c, HTTP_ADMIN, the.settings.admin, &the.admin, e);

    if (s == STATUS_OK) s = http_start(&c, HTTP_PROBE, the.settings.probe, &the.probe, e);
    return s;
}

static void say_ready(void)
{
    printf("paramd ready data=");
    for (unsigned i = 0, n = 0; i < the.door_count; i++)
        if (the.doors[i] != the.bulk) printf("%s%s", n++ > 0 ? "," : "", transport_url(the.doors[i]));
    printf(" bulk=%s admin=%s probe=%s device=%s\n", the.bulk != NULL ? transport_url(the.bulk) : "off",
           http_url(the.admin), http_url(the.probe), device_kind(the.device));
    fflush(stdout);
    http_set_ready(the.probe, true);
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */

static uint64_t tick(uint64_t now_ms)
{
    uint64_t next = server_tick(the.server, now_ms);

    for (unsigned i = 0; i < the.door_count; i++) {
        uint64_t t = transport_tick(the.doors[i], now_ms);
        if (t < next) next = t;
    }
    return next;
}

static bool drained(uint64_t now_ms)
{
    if (now_ms >= the.drain_until_ms) return true;
    if (server_busy(the.server)) return false;
    for (unsigned i = 0; i < the.door_count; i++)
        if (!transport_idle(the.doors[i])) return false;
    return true;
}

static void serve(void)
{
    uint64_t ticked_ms = 0, next_ms = 0;

    while (!the.stop) {
        uint64_t now = clock_ms();
        if (now != ticked_ms) next_ms = tick(now);
        /* What the last turn did may have brought a nearer deadline; within the millisecond it is looked for again. */
        uint64_t wait = now == ticked_ms ? 1 : next_ms > now ? next_ms - now : 0;
        ticked_ms = now;
        if (the.drain_until_ms != 0) {
            if (drained(now)) return;
            wait = wait < 20 ? wait : 20;
        }
        loop_turn(the.loop, wait < 60000 ? (int)wait : 60000);
    }
}

/* In the reverse order of set-up. */
static void tear_down(void)
{
    http_stop(the.admin);
    http_stop(the.probe);
    for (unsigned i = the.door_count; i-- > 0;) transport_close(the.doors[i]);
    if (the.mailbox != NULL) mailbox_take(the.mailbox);
    if (the.server != NULL) server_settle(the.server);
    server_free(the.server);
    device_free(the.device);
    if (the.signal_watch.fd > 0) {
        loop_remove(the.loop, &the.signal_watch);
        close(the.signal_watch.fd);
    }
    if (the.mailbox != NULL) loop_remove(the.loop, &the.mail_watch);
    mailbox_free(the.mailbox);
    loop_free(the.loop);
    mem_free(the.token);
    nn_term();
}

/* libnanomsg allocates each message; freed blocks that go back to the kernel would fault in afresh every time. */
static void tune_malloc(void)
{
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

int main(int argc, char **argv)
{
    struct error e;
    enum status s = settings_read(argc, argv, &the.settings, &e);

    if (s != STATUS_OK) {
        fprintf(stderr, "paramd: %s\n", e.text);
        return 2;
    }
    if (the.settings.help) settings_help(stdout);
    if (the.settings.version) puts("paramd 0.1.0");
    if (the.settings.help || the.settings.version) return 0;
    tune_malloc();
    json_set_alloc_funcs(mem_new, mem_free);
    s = check_settings(&e);
    bool configured = s == STATUS_OK;
    if (s == STATUS_OK) s = start_core(&e);
    if (s == STATUS_OK) s = open_doors(&e);
    if (s == STATUS_OK) s = start_web(&e);
    if (s == STATUS_OK) {
        say_ready();
        serve();
        log_info("main", "stopped");
    } else {
        fprintf(stderr, "paramd: %s\n", e.text);
    }
    tear_down();
    return s == STATUS_OK ? 0 : configured ? 1 : 2;
}
