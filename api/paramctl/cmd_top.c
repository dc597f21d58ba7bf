/* top: what goes on, once a second, until q or Ctrl-C. Where stdout is no terminal it prints one screen and ends. */
#include "api/paramctl/paramctl.h"

#include "service/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

enum { STORES_LOOKED_AT = 30 };

static volatile sig_atomic_t told_to_end;

static void end_soon(int number)
{
    (void)number;
    told_to_end = 1;
}

/* One look at the daemon. */
struct sight {
    uint64_t at_ns;
    json_t *stats, *stores, *rounds;             /* rounds: of all stores in one list */
};

static void sight_free(struct sight *s)
{
    json_decref(s->stats);
    json_decref(s->stores);
    json_decref(s->rounds);
    *s = (struct sight){.at_ns = 0};
}

static void add_rounds(json_t *all, const json_t *answer, const char *store)
{
    json_t *items = json_object_get(answer, "items"), *x;
    size_t i;

    json_array_foreach(items, i, x) {
        json_object_set_new(x, "store", json_string(store));
        json_array_append(all, x);
    }
    json_array_foreach(json_object_get(answer, "barriers"), i, x) {
        json_object_set_new(x, "store", json_string(store));
        json_object_set_new(x, "key", json_sprintf("barrier %s", json_string_value(json_object_get(x, "name"))));
        json_array_append(all, x);
    }
}

static int look_around(const struct ctl *c, struct paramd *kv, struct sight *s)
{
    int code = EXIT_ERROR;
    json_t *store;
    size_t i;

    *s = (struct sight){.at_ns = clock_ns(), .rounds = json_array()};
    s->stats = ask_on(c, kv, "Stats", json_object(), &code);
    if (s->stats != NULL) s->stores = ask_on(c, kv, "ListStores", json_object(), &code);
    if (s->stores == NULL) {
        sight_free(s);
        return code;
    }
    json_array_foreach(json_object_get(s->stores, "items"), i, store) {
        const char *name = json_string_value(json_object_get(store, "store"));
        json_int_t workers = json_integer_value(json_object_get(store, "workers"));
        if (i >= STORES_LOOKED_AT || name == NULL || workers == 0) continue;
        json_t *answer = ask_on(c, kv, "Rounds", json_pack("{s:s}", "store", name), &code);
        if (answer != NULL) add_rounds(s->rounds, answer, name);
        json_decref(answer);
    }
    return 0;
}

static double counter(const struct sight *s, const char *name)
{
    return json_number_value(json_object_get(json_object_get(s->stats, "counters"), name));
}

/* Per second since the sight before. */
static double rate(const struct sight *before, const struct sight *now, const char *name)
{
    if (before->stats == NULL || now->at_ns <= before->at_ns) return 0;
    return (counter(now, name) - counter(before, name)) * 1e9 / (double)(now->at_ns - before->at_ns);
}

static void print_sight(const struct ctl *c, FILE *to, const struct sight *before, const struct sight *now)
{
    const json_t *d = json_object_get(now->stats, "daemon"), *m = json_object_get(d, "memory");
    char a[CELL_SIZE], b[CELL_SIZE], x[CELL_SIZE];

    fprintf(to, "paramd %s on %s, ", cell(json_object_get(d, "version"), LOOK_TEXT, a),
            cell(json_object_get(d, "device"), LOOK_TEXT, b));
    fprintf(to, "up for %s, %s clients\n\n", cell(json_object_get(d, "uptime"), LOOK_SECONDS, a),
            cell(json_object_get(d, "clients"), LOOK_NUMBER, b));
    print_fact(c, to, "pushes", "%.0f/s, %s/s in", rate(before, now, "pushes_recorded"),
               bytes_text_of(rate(before, now, "bytes_in"), a));
    print_fact(c, to, "pulls", "%.0f/s, %s/s out", rate(before, now, "pulls"),
               bytes_text_of(rate(before, now, "bytes_out"), a));
    print_fact(c, to, "updates", "%.0f/s, %.0f rounds/s, %.0f rounds failed so far", rate(before, now, "updates"),
               rate(before, now, "rounds_closed"), counter(now, "rounds_failed"));
    print_fact(c, to, "memory", "%s of the device, %s of %s staging",
               bytes_text_of(json_number_value(json_object_get(m, "device")), a),
               bytes_text_of(json_number_value(json_object_get(m, "staging")), b),
               bytes_text_of(json_number_value(json_object_get(m, "staging_max")), x));
    fputc('\n', to);
    PRINT_TABLE(c, to, json_object_get(now->stores, "items"), {"STORE", "store", LOOK_TEXT}, {"TYPE", "type", LOOK_TEXT},
                {"KEYS", "keys", LOOK_NUMBER}, {"WORKERS", "workers", LOOK_NUMBER}, {"DEAD", "dead", LOOK_NUMBER});
    fputc('\n', to);
    if (json_array_size(now->rounds) == 0) fputs("no round is open\n", to);
    else
        PRINT_TABLE(c, to, now->rounds, {"STORE", "store", LOOK_TEXT}, {"OPEN ROUND OF", "key", LOOK_TEXT},
                    {"STEP", "step", LOOK_NUMBER}, {"FOR", "age", LOOK_SECONDS}, {"WAITS FOR", "waiting", LOOK_TEXT});
}

/* ---- the screen ------------------------------------------------------------------------------------------------- */

struct screen {
    struct termios before;
    bool keys;                                   /* stdin is a terminal: q is read */
};

static void screen_open(struct screen *s)
{
    struct termios raw;
    struct sigaction act = {.sa_handler = end_soon};

    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    s->keys = tcgetattr(STDIN_FILENO, &s->before) == 0;
    if (s->keys) {
        raw = s->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\033[?1049h\033[?25l", stdout); /* a screen of its own, without cursor */
    fflush(stdout);
}

static void screen_close(const struct screen *s)
{
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (s->keys) tcsetattr(STDIN_FILENO, TCSANOW, &s->before);
}

/* Each line is cleared to its end, then what is below: nothing flickers. */
static void screen_show(const char *text)
{
    fputs("\033[H", stdout);
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        printf("%.*s\033[K\n", (int)(end - text), text);
    fputs("\033[J\nq ends", stdout);
    fflush(stdout);
}

/* false: it shall end. */
static bool screen_wait(const struct screen *s, double seconds)
{
    struct pollfd in = {.fd = s->keys ? STDIN_FILENO : -1, .events = POLLIN};
    uint64_t until = clock_ms() + (uint64_t)(seconds * 1000);
    char key;

    for (uint64_t now; !told_to_end && (now = clock_ms()) < until;) {
        if (poll(&in, 1, (int)(until - now)) <= 0) continue;
        if (read(STDIN_FILENO, &key, 1) != 1) in.fd = -1;
        else if (key == 'q' || key == 'Q') return false;
    }
    return !told_to_end;
}

static char *drawn(const struct ctl *c, const struct sight *before, const struct sight *now)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);

    if (to == NULL) return NULL;
    print_sight(c, to, before, now);
    fclose(to);
    return text;
}

static int run_screen(const struct ctl *c, struct paramd *kv, struct sight *before)
{
    struct screen s;
    struct sight now;
    int code = 0;

    screen_open(&s);
    do {
        code = look_around(c, kv, &now);
        if (code != 0) break;
        char *text = drawn(c, before, &now);
        if (text != NULL) screen_show(text);
        free(text);
        sight_free(before);
        *before = now;
    } while (screen_wait(&s, c->interval));
    screen_close(&s);
    return told_to_end ? 0 : code;
}

/* Two looks, so that there are rates. */
static int run_once(const struct ctl *c, struct paramd *kv, struct sight *before)
{
    struct sight now;
    struct screen none = {.keys = false};
    int code = look_around(c, kv, before);

    if (code != 0) return code;
    screen_wait(&none, c->interval);
    code = look_around(c, kv, &now);
    if (code != 0) return code;
    if (c->json)
        show_json(json_pack("{s:O,s:O,s:O,s:{s:f,s:f,s:f,s:f}}", "stats", now.stats, "stores",
                            json_object_get(now.stores, "items"), "rounds", now.rounds, "per_second",
                            "pushes", rate(before, &now, "pushes_recorded"), "pulls", rate(before, &now, "pulls"),
                            "bytes_in", rate(before, &now, "bytes_in"), "bytes_out", rate(before, &now, "bytes_out")));
    else print_sight(c, stdout, before, &now);
    sight_free(&now);
    return 0;
}

int run_top(const struct ctl *c)
{
    struct sight before = {.at_ns = 0};
    int code = EXIT_ERROR;
    struct paramd *kv = open_daemon(c, &code);

    if (kv == NULL) return code;
    if (c->json || c->once || !isatty(STDOUT_FILENO)) code = run_once(c, kv, &before);
    else code = run_screen(c, kv, &before);
    sight_free(&before);
    paramd_close(kv);
    return code;
}
