/* paramd: the daemon. The order of set-up and tear-down, the loop of the core thread, and what signals do. */
#include "gpu/cards.h"
#include "service/base/clock.h"
#include "service/base/host.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/base/writer.h"
#include "service/notify.h"
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
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAILBOX_REQUESTS = 1024, DOORS_MAX = LISTEN_MAX + 1,
    WRITING_MS = 500                 /* that the end waits for what stdout and stderr still have to take */
};

struct daemon {
    int argc;                        /* read again by SIGHUP */
    char **argv;
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
    uint64_t flush_ms;               /* when folded warnings are next looked at */
    uint64_t refused;                /* connections, as last told */
    bool lost_told;
    bool stop;
    char no_gpu[ERROR_TEXT_SIZE];    /* why --device auto took the CPU, else empty */
    struct writer *out;              /* stdout; NULL: nothing was said */
    char untold[80];                 /* the state that the service manager has had no room for; "": none */
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

/* Its queue may be full: then tick says it again. Of several states the last one counts. */
static void tell_manager(const char *state)
{
    if (notify_manager(state)) the.untold[0] = '\0';
    else if (state != the.untold) snprintf(the.untold, sizeof the.untold, "%s", state);
}

static void drain(void)
{
    log_info("main", "told to stop: what is under way is finished first, for at most %g s",
             (double)the.settings.drain_timeout / 1000);
    tell_manager("STOPPING=1");
    the.drain_until_ms = clock_ms() + the.settings.drain_timeout;
    if (the.probe != NULL) http_set_ready(the.probe, false);
    if (the.admin != NULL) http_drain(the.admin);
    server_drain(the.server);
    for (unsigned i = 0; i < the.door_count; i++) transport_drain(the.doors[i]);
}

/* ---- settings --------------------------------------------------------------------------------------------------- */

/* What the rows marked LIVE say. Nothing here can fail. */
static void apply_live(void)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    const struct settings *s = &the.settings;
    struct core_limits limits = {
        .memory_max = s->memory_max, .mailbox_max = s->mailbox_max,
        .standards = {(uint32_t)s->start_timeout, (uint32_t)s->round_timeout, (uint32_t)s->worker_timeout},
    };

    for (int i = 0; i < 4; i++)
        if (strcmp(levels[i], s->log) == 0) log_set_level((enum log_level)i);
    log_set_format(strcmp(s->log_format, "json") == 0 ? LOG_JSON : LOG_TEXT);
    if (the.server != NULL) server_set_limits(the.server, s->staging_max, &limits);
}

static enum status read_token(const char *path, char **out, struct error *e)
{
    char text[TOKEN_SIZE_MAX + 2];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : -1;

    if (fd >= 0) close(fd);
    if (n < 0) return error_set(e, REASON_BAD_ARGUMENT, "--token-file %s: %s", path, strerror(errno));
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ')) n--;
    if (n < TOKEN_SIZE_MIN || n > TOKEN_SIZE_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "--token-file %s: a token has %d to %d characters; make one by: head -c "
                         "24 /dev/urandom | base64 > FILE", path, TOKEN_SIZE_MIN, TOKEN_SIZE_MAX);
    for (ssize_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return error_set(e, REASON_BAD_ARGUMENT, "--token-file %s: %s; a token is one line of text", path,
                             text[i] == '\n' ? "it has several lines" : "it has control characters");
    *out = mem_text(text, (size_t)n);
    return *out != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for the token");
}

/* Everything that the daemon is told: read, checked, and the token fetched. On success *s is for settings_fini and
 * *token for mem_free. */
static enum status read_settings(struct settings *s, char **token, struct error *e)
{
    enum status st = settings_read(the.argc, the.argv, s, e);

    if (st != STATUS_OK || s->help || s->version) return st;
    st = settings_check(s, e);
    if (st == STATUS_OK && s->token_file != NULL) st = read_token(s->token_file, token, e);
    if (st != STATUS_OK) settings_fini(s);
    return st;
}

/* All or nothing: what can fail comes before anything is changed. */
static enum status reload(struct error *e)
{
    struct settings fresh = {.help = false};
    char *token = NULL, *copy = NULL;
    enum status st = read_settings(&fresh, &token, e);
    const char *fixed = st == STATUS_OK ? settings_fixed_difference(&the.settings, &fresh) : NULL;

    if (st != STATUS_OK) return st;
    if (fixed != NULL)
        st = error_set(e, REASON_BAD_ARGUMENT, "%s cannot change while the daemon runs; start it anew for that", fixed);
    if (st == STATUS_OK && token != NULL && (copy = mem_text(token, strlen(token))) == NULL)
        st = error_set(e, REASON_NO_MEMORY, "no memory for the token");
    if (st == STATUS_OK && the.admin != NULL) st = http_set_token(the.admin, token, e);
    if (st != STATUS_OK) {
        mem_free(token);
        mem_free(copy);
        settings_fini(&fresh);
        return st;
    }
    settings_fini(&the.settings);
    mem_free(the.token);
    the.settings = fresh;
    the.token = token;
    server_give_token(the.server, copy);
    apply_live();
    return STATUS_OK;
}

static void warn_open_token(void)
{
    const char *path = the.settings.token_file;
    struct stat file;

    if (path != NULL && stat(path, &file) == 0 && (file.st_mode & S_IROTH) != 0)
        log_warn("settings", "--token-file %s can be read by everybody on this machine: chmod o-r", path);
}

static void take_hangup(void)
{
    char state[80];
    struct error e;

    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(clock_ns() / 1000));
    tell_manager(state);
    if (reload(&e) == STATUS_OK) {
        log_info("main", "the settings were read anew");
        warn_open_token();
    } else {
        log_error("main", "the settings were not read anew, and nothing has changed: %s", e.text);
    }
    tell_manager("READY=1");
}

static void take_signal(struct watch *w, uint32_t events)
{
    struct signalfd_siginfo info;

    (void)events;
    while (read(w->fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGHUP && the.drain_until_ms == 0) take_hangup();
        else if (info.ssi_signo != SIGHUP && the.drain_until_ms == 0) drain();
        else if (info.ssi_signo != SIGHUP) the.stop = true;
    }
}

/* ---- set-up ----------------------------------------------------------------------------------------------------- */

static enum status watch_signals(struct error *e)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    the.signal_watch = (struct watch){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .ready = take_signal};
    if (the.signal_watch.fd < 0) return error_set(e, REASON_SYSTEM, "signalfd: %s", strerror(errno));
    return loop_add(the.loop, &the.signal_watch, EPOLLIN, e);
}

/* The GPU that was asked for, or, with auto, the first if it is usable. */
static enum status open_device(struct error *e)
{
    const struct settings *s = &the.settings;
    struct cards cards = {.count = 1};
    bool is_auto = strcmp(s->device, "auto") == 0;
    struct error why;

    if (!is_auto && !cards_parse(s->device, &cards)) return cpu_device_new((unsigned)s->threads, &the.device, e);
    cards.memory_max = s->device_memory;
    cards.cpu_when_full = strcmp(s->device_full, "host") == 0;
    cards.threads = (unsigned)s->threads;
    if (cards_open(&cards, &the.device, &why) == STATUS_OK) {
        log_info("main", "device %s: %s", device_kind(the.device), the.device->card);
        return STATUS_OK;
    }
    if (!is_auto) return error_set(e, why.reason, "no usable GPU: %s", why.text);
    snprintf(the.no_gpu, sizeof the.no_gpu, "%s", why.text);
    return cpu_device_new((unsigned)s->threads, &the.device, e);
}

static enum status start_core(struct error *e)
{
    char host[HOST_ID_SIZE];
    struct server_config c = {.staging_max = the.settings.staging_max, .token = the.token,
                              .advertise = the.settings.advertise, .host = host};
    enum status s = loop_new(&the.loop, e);

    if (s == STATUS_OK) s = mailbox_new(MAILBOX_REQUESTS, &the.mailbox, e);
    if (s == STATUS_OK) {
        the.mail_watch = (struct watch){.fd = mailbox_fd(the.mailbox), .ready = take_mail};
        s = loop_add(the.loop, &the.mail_watch, EPOLLIN, e);
    }
    if (s == STATUS_OK) s = watch_signals(e);
    if (s == STATUS_OK) s = open_device(e);
    if (s != STATUS_OK) return s;
    host_id(host);
    the.device_mail.open = poll_device;
    the.device->notify = device_moved;
    c.device = the.device;
    if (getrandom(c.seed, sizeof c.seed, 0) != sizeof c.seed ||
        getrandom(&c.instance, sizeof c.instance, 0) != sizeof c.instance)
        return error_set(e, REASON_SYSTEM, "getrandom: %s", strerror(errno));
    return server_new(&c, clock_ms(), &the.server, e);
}

/* What fails at a door or a port is told with the flag that gives it another address. */
static enum status at_flag(const char *flag, enum status s, struct error *e)
{
    char why[ERROR_TEXT_SIZE];

    if (s == STATUS_OK) return s;
    memcpy(why, e->text, sizeof why);
    return error_set(e, e->reason, "--%s: %.490s", flag, why);
}

typedef enum status open_door(const struct transport_config *, const char *, struct transport **, struct error *);

static enum status add_door(open_door *open, const char *url, struct transport **out, struct error *e)
{
    struct transport_config c = {.server = the.server, .loop = the.loop, .mailbox = the.mailbox, .now_ms = clock_ms,
                                 .address_max = (unsigned)the.settings.address_connections};
    enum status s = open(&c, url, out, e);

    if (s == STATUS_OK) the.doors[the.door_count++] = *out;
    return s;
}

static bool is_off(const char *setting) { return setting != NULL && strcmp(setting, "off") == 0; }

static bool is_unix(const char *url) { return strncmp(url, "ipc://", 6) == 0 || strncmp(url, "unix://", 7) == 0; }

/* 0: it names none. */
static unsigned long port_of(const char *address)
{
    const char *colon = strrchr(address, ':');
    return colon != NULL && !is_unix(address) ? strtoul(colon + 1, NULL, 10) : 0;
}

static bool is_given(const struct settings *s, unsigned long port)
{
    for (unsigned i = 0; i < s->listen.count; i++)
        if (port_of(s->listen.at[i]) == port) return true;
    return port_of(s->admin) == port || port_of(s->probe) == port;
}

/* Without --bulk it stands beside the first front door on TCP: its host and the port after it, or any port when the front
 * door took any, or the last one there is, or when that port has been given to another door. False where there is no front
 * door on TCP: then a port would let in whom the Unix socket's permissions keep out. */
static bool standard_bulk(const struct settings *s, char out[300])
{
    const char *listen = NULL;

    for (unsigned i = 0; i < s->listen.count && listen == NULL; i++)
        if (!is_unix(s->listen.at[i])) listen = s->listen.at[i];
    if (listen == NULL) return false;
    const char *colon = strrchr(listen, ':');
    unsigned long port = port_of(listen);

    if (port > 0) port = port < UINT16_MAX && !is_given(s, port + 1) ? port + 1 : 0;
    snprintf(out, 300, "%.*s:%lu", colon != NULL && colon - listen <= 280 ? (int)(colon - listen) : 0, listen, port);
    return true;
}

static enum status open_doors(struct error *e)
{
    const struct settings *s = &the.settings;
    struct transport *t;
    char beside[300];
    enum status st = STATUS_OK;

    /* Nine bytes to a Unix socket of libnanomsg's end the process, so there our own engine stands in for it. */
    for (unsigned i = 0; i < s->listen.count && st == STATUS_OK; i++)
        st = at_flag("listen", add_door(is_unix(s->listen.at[i]) ? transport_sp_open : transport_nanomsg_open,
                                        s->listen.at[i], &t, e), e);
    if (st != STATUS_OK || is_off(s->bulk)) return st;
    if (s->bulk == NULL && !standard_bulk(s, beside)) return STATUS_OK;
    const char *url = s->bulk != NULL ? s->bulk : beside;
    st = at_flag("bulk", add_door(transport_sp_open, url, &the.bulk, e), e);
    if (st != STATUS_OK) return st;
    const char *path = transport_port(the.bulk) == 0 ? strstr(transport_url(the.bulk), "://") : NULL;
    server_set_bulk(the.server, transport_port(the.bulk), path != NULL ? path + 3 : NULL);
    return STATUS_OK;
}

static enum status start_web(struct error *e)
{
    struct http_config c = {.server = the.server, .mailbox = the.mailbox, .token = the.token,
                            .hosts = {the.settings.advertise}};
    const struct settings *of = &the.settings;
    enum status s = STATUS_OK;

    if (!is_off(of->admin)) s = at_flag("admin", http_start(&c, HTTP_ADMIN, of->admin, &the.admin, e), e);
    c.beside = the.admin;
    if (s == STATUS_OK && !is_off(of->probe))
        s = at_flag("probe", http_start(&c, HTTP_PROBE, of->probe, &the.probe, e), e);
    return s;
}

/* Says a line on stdout without waiting for its reader. */
static void say(const struct buf *line)
{
    struct error e;
    enum status s = the.out != NULL ? STATUS_OK : writer_start(STDOUT_FILENO, WRITER_SIZE_MIN, NULL, &the.out, &e);

    if (s != STATUS_OK) log_warn("main", "stdout: %s", e.text);
    else if (!line->failed && line->size <= WRITER_LINE_MAX) (void)writer_add(the.out, (const char *)line->at, line->size);
}

static void say_ready(void)
{
    struct buf line = {0};

    buf_text(&line, "paramd ready data=");
    for (unsigned i = 0, n = 0; i < the.door_count; i++)
        if (the.doors[i] != the.bulk) buf_format(&line, "%s%s", n++ > 0 ? "," : "", transport_url(the.doors[i]));
    buf_format(&line, " bulk=%s admin=%s probe=%s device=%s\n", the.bulk != NULL ? transport_url(the.bulk) : "off",
               the.admin != NULL ? http_url(the.admin) : "off", the.probe != NULL ? http_url(the.probe) : "off",
               device_kind(the.device));
    say(&line);
    buf_fini(&line);
    /* After the line that says all is well: most machines have no GPU, and nothing is wrong there. */
    if (the.no_gpu[0] != '\0')
        log_info("main", "values are in host memory (--device auto): no usable GPU: %s", the.no_gpu);
    if (the.probe != NULL) http_set_ready(the.probe, true);
    tell_manager("READY=1");
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */

/* Connections that were not taken, or were ended for what the peer did. Always the same sentence: the log folds it. */
static void tell_refused(void)
{
    uint64_t refused = 0;

    for (unsigned i = 0; i < the.door_count; i++) refused += transport_refused(the.doors[i]);
    if (refused == the.refused) return;
    log_warn("door", "connections were refused so far, or ended for a fault of theirs; "
             "paramd_connections_refused_total in /metrics has how many and why, debug tells each");
    the.refused = refused;
}

/* A GPU that is lost stays so. What needs no device goes on; a supervisor learns of it by the probe. */
static void tell_lost(void)
{
    if (!the.device->lost || the.lost_told) return;
    the.lost_told = true;
    log_error("main", "%s", device_error(the.device)->text);
    if (the.probe != NULL) http_set_ready(the.probe, false);
}

static uint64_t tick(uint64_t now_ms)
{
    uint64_t next = server_tick(the.server, now_ms);

    tell_refused();
    tell_lost();
    if (now_ms >= the.flush_ms) {
        log_flush(now_ms);
        if (the.untold[0] != '\0') tell_manager(the.untold);
        the.flush_ms = now_ms + LOG_FOLD_MS / 10;
    }
    if (the.untold[0] != '\0' && next > the.flush_ms) next = the.flush_ms;

    for (unsigned i = 0; i < the.door_count; i++) {
        uint64_t t = transport_tick(the.doors[i], now_ms);
        if (t < next) next = t;
    }
    return next;
}

static bool drained(uint64_t now_ms)
{
    if (now_ms >= the.drain_until_ms) return true;
    if (server_busy(the.server) || (the.admin != NULL && !http_idle(the.admin))) return false;
    for (unsigned i = 0; i < the.door_count; i++)
        if (!transport_idle(the.doors[i])) return false;
    return true;
}

static uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void serve(void)
{
    uint64_t ticked_ms = 0, next_ms = 0, turned_ns = thread_ns();

    loop_bound(the.loop, server_is_spent, the.server);
    mailbox_bound(the.mailbox, server_is_spent, the.server);
    while (!the.stop) {
        uint64_t now = clock_ms(), began_ns = turned_ns;
        server_turn(the.server);
        if (now != ticked_ms) next_ms = tick(now);
        /* What the last turn did may have brought a nearer deadline; within the millisecond it is looked for again. */
        uint64_t wait = now == ticked_ms ? 1 : next_ms > now ? next_ms - now : 0;
        ticked_ms = now;
        if (the.drain_until_ms != 0) {
            if (drained(now)) return;
            wait = wait < 20 ? wait : 20;
        }
        if (server_has_work(the.server)) wait = 0;
        loop_turn(the.loop, wait < LOG_FOLD_MS ? (int)wait : LOG_FOLD_MS);
        turned_ns = thread_ns();
        server_tell_turn(the.server, turned_ns - began_ns);
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
    settings_fini(&the.settings);
    nn_term();
    log_flush(UINT64_MAX);
    uint64_t until_ms = clock_ms() + WRITING_MS;
    writer_stop(the.out, until_ms);
    log_stop(until_ms);
}

/* libnanomsg allocates each message; freed blocks that go back to the kernel would fault in afresh every time. */
static void tune_malloc(void)
{
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    /* Freed blocks of the fast bins are merged all at once when a larger one is asked for: thousands of small pushes in
     * one frame then cost half as much again (measured with 10,000 keys of 256 bytes). */
    mallopt(M_MXFAST, 0);
}

/* journald tells by this variable that stderr is its own, and reads priorities from the lines. */
static bool is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat at;
    char own[64];

    if (stream == NULL || fstat(STDERR_FILENO, &at) != 0) return false;
    snprintf(own, sizeof own, "%llu:%llu", (unsigned long long)at.st_dev, (unsigned long long)at.st_ino);
    return strcmp(own, stream) == 0;
}

static void warn_stranger(const char *name, const char *near)
{
    if (strcmp(name, "PARAMD_TOKEN") == 0 && the.settings.token_file != NULL) return; /* a client's, beside it */
    if (strcmp(name, "PARAMD_TOKEN") == 0)
        log_warn("settings", "PARAMD_TOKEN in the environment is for clients, and protects nothing here; write the token to "
                 "a file and name it by PARAMD_TOKEN_FILE");
    else if (near != NULL) log_warn("settings", "%s in the environment is no setting; did you mean %s?", name, near);
    else log_warn("settings", "%s in the environment is no setting", name);
}

static void warn_settings(void)
{
    settings_strangers(warn_stranger);
    warn_open_token();
}

/* What the command line asks for instead of a daemon; false: nothing. */
static bool answer_asks(const struct settings *s)
{
    if (s->print || s->check) warn_settings();
    if (s->help) settings_help(stdout);
    else if (s->version) puts("paramd 0.1.0");
    else if (s->print) settings_print(s, stdout);
    else if (s->check) puts("paramd: the settings are good");
    else return false;
    return true;
}

static enum status start(struct error *e)
{
    enum status s = log_start(e);

    if (s != STATUS_OK) return s;
    warn_settings();
    s = start_core(e);

    if (s != STATUS_OK) return s;
    apply_live();
    s = open_doors(e);
    if (s == STATUS_OK) s = start_web(e);
    return s;
}

int main(int argc, char **argv)
{
    struct error e;

    the.argc = argc;
    the.argv = argv;
    tune_malloc();
    json_set_alloc_funcs(mem_new, mem_free);
    if (read_settings(&the.settings, &the.token, &e) != STATUS_OK) {
        fprintf(stderr, "paramd: %s\n", e.text);
        return 2;
    }
    if (answer_asks(&the.settings)) {
        tear_down();
        return 0;
    }
    log_set_priorities(is_journal());
    apply_live();
    enum status s = start(&e);
    if (s == STATUS_OK) {
        say_ready();
        serve();
        log_info("main", "stopped");
    } else {
        char line[ERROR_TEXT_SIZE + 16];
        snprintf(line, sizeof line, "paramd: %s\n", e.text);
        log_line(line);
    }
    tear_down();
    return s == STATUS_OK ? 0 : 1;
}
