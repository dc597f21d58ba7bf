#include "service/settings.h"

#include "api/limits.h"
#include "gpu/cards.h"
#include "service/base/mem.h"
#include "service/transport_common.h"
#include "service/updater.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum setting_kind { kind_urls, kind_text, kind_choice, kind_flag, kind_bytes, kind_count, kind_seconds, kind_grace };
enum setting_reload { FIXED, LIVE };

static const struct setting_row {
    enum setting_kind kind;
    size_t offset;
    const char *name, *argument, *standard;
    enum setting_reload reload;
    const char *group, *text;
} rows[] = {
#define SETTING_ROW(kind, field, flag, argument, standard, reload, group, text) \
    {kind_##kind, offsetof(struct settings, field), flag, argument, standard, reload, group, text},
    SETTINGS(SETTING_ROW)
#undef SETTING_ROW
};

/* Flags that are no settings; a row each as well. */
static const struct { const char *name, *text; size_t offset; } asks[] = {
    {"print-config", "print every value and where it is from, and end", offsetof(struct settings, print)},
    {"check-config", "read and check everything, and end", offsetof(struct settings, check)},
    {"version", "print \"paramd\" and the version, and end", offsetof(struct settings, version)},
    {"help", "print this, and end", offsetof(struct settings, help)},
};

enum {
    ASK_COUNT = sizeof asks / sizeof asks[0],
    NAME_SIZE = 40,                      /* of any name below, with its zero */
    THREADS_MAX = 1024,
    HELP_WIDTH = 98,
    HELP_INDENT = 32
};

/* Where a value stands, for sentences. */
struct place {
    enum setting_origin from;
    const char *file;
    unsigned line;
};

/* ---- names ------------------------------------------------------------------------------------------------------ */

/* "token-file" -> "PARAMD_TOKEN_FILE" */
static const char *environment_name(const char *name, char out[NAME_SIZE])
{
    int n = snprintf(out, NAME_SIZE, "PARAMD_%s", name);

    for (int i = 0; i < n && i < NAME_SIZE; i++) out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
    return out;
}

/* A name in a file may be written with '_' as well. */
static bool same_name(const char *name, const char *written, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (name[i] != written[i] && !(name[i] == '-' && written[i] == '_')) return false;
    return name[size] == '\0';
}

static int row_find(const char *written, size_t size, enum setting_origin from)
{
    for (int i = 0; i < SETTING_COUNT; i++) {
        size_t own = strlen(rows[i].name);
        if (from == ORIGIN_FILE ? same_name(rows[i].name, written, size)
                                : own == size && memcmp(rows[i].name, written, size) == 0)
            return i;
    }
    return -1;
}

/* Begins a sentence about a setting: "--listen", "PARAMD_LISTEN" or "paramd.conf:3: listen". */
static void say_place(const struct setting_row *r, const struct place *p, char *out, size_t room)
{
    char name[NAME_SIZE];

    if (p->from == ORIGIN_FILE) snprintf(out, room, "%.200s:%u: %s", p->file, p->line, r->name);
    else if (p->from == ORIGIN_ENVIRONMENT) snprintf(out, room, "%s", environment_name(r->name, name));
    else snprintf(out, room, "--%s", r->name);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static enum status bad(const struct setting_row *r, const struct place *p, const char *value, const char *wanted,
                       struct error *e)
{
    char place[300];

    say_place(r, p, place, sizeof place);
    return error_set(e, REASON_BAD_ARGUMENT, "%s: '%.80s' is no %s", place, value, wanted);
}

/* Digits and, for bytes, one of the suffixes. */
static bool read_whole(const char *value, const char *suffixes, uint64_t *out)
{
    char *end;
    const char *suffix;

    if (value[0] < '0' || value[0] > '9') return false;
    errno = 0;
    *out = strtoull(value, &end, 10);
    if (errno != 0) return false;
    if (*end != '\0' && (suffix = strchr(suffixes, tolower((unsigned char)*end))) != NULL) {
        unsigned shift = 10 * (unsigned)(suffix - suffixes + 1);
        if (*out > UINT64_MAX >> shift) return false;
        *out <<= shift;
        end++;
    }
    return *end == '\0';
}

static bool read_seconds(const char *value, uint64_t least_ms, uint64_t *out)
{
    char *end;
    double seconds;

    if (value[0] != '.' && (value[0] < '0' || value[0] > '9')) return false;
    seconds = strtod(value, &end);
    if (*end != '\0' || !(seconds * 1000 >= (double)least_ms && seconds * 1000 <= TIMEOUT_MAX_MS)) return false;
    *out = (uint64_t)llround(seconds * 1000);
    return true;
}

static bool read_flag_word(const char *value, bool *out)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(value, words[i]) != 0) continue;
        *out = i % 2 == 1;
        return true;
    }
    return false;
}

static bool is_choice(const char *words, const char *value)
{
    size_t size = strlen(value);

    for (;; words++) {
        size_t n = strcspn(words, "|");
        if (n == size && memcmp(words, value, n) == 0) return true;
        words += n;
        if (*words == '\0') return false;
    }
}

static bool add_url(struct settings_urls *urls, bool first, const char *value)
{
    if (first) urls->count = 0;
    if (urls->count == LISTEN_MAX || value[0] == '\0') return false;
    urls->at[urls->count++] = value;
    return true;
}

/* A value of a source that counts for more replaces that of one that counts for less; within one source the last. */
static enum status set(struct settings *s, int row, const struct place *p, const char *value, struct error *e)
{
    const struct setting_row *r = &rows[row];
    void *field = (char *)s + r->offset;
    bool first = s->origins[row].from != p->from, fits = true;
    const char *wanted = "value";
    char words[80];

    switch (r->kind) {
    case kind_text:
        *(const char **)field = value;
        fits = value[0] != '\0';
        wanted = r->argument;
        break;
    case kind_choice:
        *(const char **)field = value;
        fits = is_choice(r->argument, value);
        snprintf(words, sizeof words, "choice: it is one of %s", r->argument);
        wanted = words;
        break;
    case kind_flag:
        fits = read_flag_word(value, field);
        wanted = "flag: it is true or false";
        break;
    case kind_bytes:
        fits = read_whole(value, "kmgt", field);
        wanted = "number of bytes, such as 512m";
        break;
    case kind_count:
        fits = read_whole(value, "", field) && *(uint64_t *)field <= THREADS_MAX;
        wanted = "number from 0 to 1024";
        break;
    case kind_seconds:
    case kind_grace:
        fits = read_seconds(value, r->kind == kind_seconds, field);
        wanted = r->kind == kind_seconds ? "number of seconds from 0.001 to 604800"
                                         : "number of seconds from 0 to 604800";
        break;
    case kind_urls:
        fits = add_url(field, first || p->from == ORIGIN_STANDARD, value);
        wanted = "URL, or one too many: at most 8";
        break;
    }
    s->origins[row].from = p->from;
    s->origins[row].line = p->line;
    return fits ? STATUS_OK : bad(r, p, value, wanted, e);
}

/* ---- flags ------------------------------------------------------------------------------------------------------ */

static enum status unknown_flag(const char *flag, size_t size, struct error *e)
{
    const char *names[SETTING_COUNT + ASK_COUNT + 2] = {"config"};

    for (size_t i = 0; i < SETTING_COUNT; i++) names[i + 1] = rows[i].name;
    for (size_t i = 0; i < ASK_COUNT; i++) names[SETTING_COUNT + 1 + i] = asks[i].name;
    const char *near = nearest_name(bytes_of(flag, size), names);
    if (near != NULL && strlen(near) == size && memcmp(near, flag, size) == 0) /* only --help=3 comes so far */
        return error_set(e, REASON_BAD_ARGUMENT, "--%s takes no value", near);
    return error_set(e, REASON_BAD_ARGUMENT, near != NULL ? "--%.*s: no such flag; did you mean --%s?"
                                                          : "--%.*s: no such flag; see --help",
                     (int)(size < 80 ? size : 80), flag, near);
}

static bool read_ask(struct settings *s, const char *flag)
{
    for (size_t i = 0; i < ASK_COUNT; i++) {
        if (strcmp(asks[i].name, flag) != 0) continue;
        *(bool *)((char *)s + asks[i].offset) = true;
        return true;
    }
    return false;
}

/* The flag's value: behind '=', or the next argument. */
static const char *flag_value(const char *flag, size_t size, int argc, char **argv, int *i)
{
    if (flag[size] == '=') return flag + size + 1;
    return *i + 1 < argc ? argv[++*i] : NULL;
}

static enum status read_flag(struct settings *s, int argc, char **argv, int *i, bool apply, struct error *e)
{
    const char *flag = argv[*i] + 2, *value, *argument = "FILE";
    size_t size = strcspn(flag, "=");
    bool is_config = size == 6 && memcmp(flag, "config", 6) == 0;
    int row = row_find(flag, size, ORIGIN_FLAG);

    if (read_ask(s, flag)) return STATUS_OK;
    if (row < 0 && !is_config) return unknown_flag(flag, size, e);
    if (row >= 0) argument = rows[row].argument;
    if (row >= 0 && rows[row].kind == kind_flag) value = flag[size] == '=' ? flag + size + 1 : "true";
    else value = flag_value(flag, size, argc, argv, i);
    if (value == NULL) return error_set(e, REASON_BAD_ARGUMENT, "--%.*s needs %s", (int)size, flag, argument);
    if (is_config) s->config = value;
    else if (apply) return set(s, row, &(struct place){.from = ORIGIN_FLAG}, value, e);
    return STATUS_OK;
}

static enum status read_flags(int argc, char **argv, bool apply, struct settings *s, struct error *e)
{
    enum status st = STATUS_OK;

    for (int i = 1; i < argc && st == STATUS_OK; i++) {
        if (strcmp(argv[i], "-h") == 0) s->help = true;
        else if (strncmp(argv[i], "--", 2) == 0) st = read_flag(s, argc, argv, &i, apply, e);
        else st = error_set(e, REASON_BAD_ARGUMENT, "'%.80s' is no flag; see --help", argv[i]);
    }
    return st;
}

/* ---- environment ------------------------------------------------------------------------------------------------ */

static enum status set_list(struct settings *s, int row, const char *list, struct error *e)
{
    const struct place p = {.from = ORIGIN_ENVIRONMENT};
    char *at = s->owned[1] = mem_text(list, strlen(list));
    enum status st = STATUS_OK;

    if (at == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the settings");
    for (char *item; st == STATUS_OK && (item = strsep(&at, ",")) != NULL;) st = set(s, row, &p, item, e);
    return st;
}

/* An empty one is as none: that is how a compose file or a manifest leaves a variable out. */
static enum status read_environment(struct settings *s, struct error *e)
{
    const struct place p = {.from = ORIGIN_ENVIRONMENT};
    char name[NAME_SIZE];
    enum status st = STATUS_OK;

    for (int i = 0; i < SETTING_COUNT && st == STATUS_OK; i++) {
        const char *value = getenv(environment_name(rows[i].name, name));
        if (value == NULL || value[0] == '\0') continue;
        st = rows[i].kind == kind_urls ? set_list(s, i, value, e) : set(s, i, &p, value, e);
    }
    return st;
}

void settings_strangers(void (*say)(const char *name, const char *near))
{
    /* Other programs of paramd read these. */
    static const char *const others[] = {"PARAMD_CONFIG", "PARAMD_URL", "PARAMD_ON_REINIT",
                                         "PARAMD_STORE", "PARAMD_CUDA_PLUGIN", "PARAMD_NCCL", "PARAMD_LIBRARY",
                                         "PARAMD_DAEMON", "PARAMD_BIN"};
    enum { OTHER_COUNT = sizeof others / sizeof others[0] };
    char own[SETTING_COUNT][NAME_SIZE], name[128];
    const char *known[SETTING_COUNT + OTHER_COUNT + 1] = {NULL};

    for (size_t i = 0; i < SETTING_COUNT; i++) known[i] = environment_name(rows[i].name, own[i]);
    for (size_t i = 0; i < OTHER_COUNT; i++) known[SETTING_COUNT + i] = others[i];
    for (char **at = environ; *at != NULL; at++) {
        size_t size = strcspn(*at, "="), i = 0;
        if (strncmp(*at, "PARAMD_", 7) != 0 || size >= sizeof name) continue;
        memcpy(name, *at, size);
        name[size] = '\0';
        while (known[i] != NULL && strcmp(known[i], name) != 0) i++;
        if (known[i] == NULL) say(name, nearest_name(bytes_text(name), known));
    }
}

/* ---- file ------------------------------------------------------------------------------------------------------- */

static enum status load(const char *path, char **out, struct error *e)
{
    char *text = mem_new(SETTINGS_FILE_SIZE_MAX + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t size = 0;
    ssize_t n = fd >= 0 && text != NULL ? 1 : -1;

    while (n > 0 && size <= SETTINGS_FILE_SIZE_MAX) {
        n = read(fd, text + size, SETTINGS_FILE_SIZE_MAX + 1 - size);
        if (n > 0) size += (size_t)n;
    }
    int why = errno;
    if (fd >= 0) close(fd);
    *out = text;
    if (text == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for %.200s", path);
    if (n < 0) return error_set(e, REASON_BAD_ARGUMENT, "--config %.200s: %s", path, strerror(why));
    if (size > SETTINGS_FILE_SIZE_MAX || memchr(text, '\0', size) != NULL)
        return error_set(e, REASON_BAD_ARGUMENT, "--config %.200s: no text of at most %d bytes", path,
                         SETTINGS_FILE_SIZE_MAX);
    text[size] = '\0';
    return STATUS_OK;
}

/* Cuts a comment (a '#' at the start or behind a blank) and blanks at both ends. */
static char *trim(char *line)
{
    while (isblank((unsigned char)*line)) line++;
    for (char *at = line; *at != '\0'; at++)
        if (*at == '#' && (at == line || isblank((unsigned char)at[-1]))) *at = '\0';
    for (size_t n = strlen(line); n > 0 && isspace((unsigned char)line[n - 1]); n--) line[n - 1] = '\0';
    return line;
}

static enum status unknown_entry(const struct place *p, const char *name, size_t size, struct error *e)
{
    const char *names[SETTING_COUNT + 1] = {NULL};

    for (size_t i = 0; i < SETTING_COUNT; i++) names[i] = rows[i].name;
    const char *near = nearest_name(bytes_of(name, size), names);
    return error_set(e, REASON_BAD_ARGUMENT, near != NULL ? "%.200s:%u: '%.*s' is no setting; did you mean %s?"
                                                          : "%.200s:%u: '%.*s' is no setting; see --help",
                     p->file, p->line, (int)(size < 80 ? size : 80), name, near);
}

static enum status read_entry(struct settings *s, const struct place *p, char *line, struct error *e)
{
    size_t size = strcspn(line, "= \t");
    char *equals = line + size + strspn(line + size, " \t");
    int row = row_find(line, size, ORIGIN_FILE);

    if (*equals != '=' || size == 0)
        return error_set(e, REASON_BAD_ARGUMENT, "%.200s:%u: an entry is written NAME = VALUE", p->file, p->line);
    if (row < 0) return unknown_entry(p, line, size, e);
    return set(s, row, p, trim(equals + 1), e);
}

static enum status read_file(struct settings *s, struct error *e)
{
    struct place p = {.from = ORIGIN_FILE, .file = s->config};
    enum status st = load(s->config, &s->owned[0], e);
    char *at = s->owned[0];

    for (char *line; st == STATUS_OK && (line = strsep(&at, "\n")) != NULL;) {
        p.line++;
        line = trim(line);
        if (*line != '\0') st = read_entry(s, &p, line, e);
    }
    return st;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static enum status read_standards(struct settings *s, struct error *e)
{
    enum status st = STATUS_OK;

    for (int i = 0; i < SETTING_COUNT && st == STATUS_OK; i++)
        if (rows[i].standard[0] != '\0')
            st = set(s, i, &(struct place){.from = ORIGIN_STANDARD}, rows[i].standard, e);
    return st;
}

enum status settings_read(int argc, char **argv, struct settings *out, struct error *e)
{
    struct settings s = {.help = false};
    enum status st = read_flags(argc, argv, false, &s, e);

    if (st == STATUS_OK && s.config == NULL) s.config = getenv("PARAMD_CONFIG");
    if (st == STATUS_OK) st = read_standards(&s, e);
    if (st == STATUS_OK && !s.help && !s.version) { /* these are answered whatever is written elsewhere */
        if (s.config != NULL && s.config[0] != '\0') st = read_file(&s, e);
        if (st == STATUS_OK) st = read_environment(&s, e);
        if (st == STATUS_OK) st = read_flags(argc, argv, true, &s, e);
    }
    if (st != STATUS_OK) settings_fini(&s);
    else *out = s;
    return st;
}

void settings_fini(struct settings *s)
{
    for (size_t i = 0; i < sizeof s->owned / sizeof s->owned[0]; i++) {
        mem_free(s->owned[i]);
        s->owned[i] = NULL;
    }
}

/* ---- what can be told beforehand -------------------------------------------------------------------------------- */

/* Reachable from this machine only. A name other than localhost may lead anywhere. */
static bool is_local_host(const char *host)
{
    struct in_addr four;
    struct in6_addr six;

    if (strcmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

static enum status check_door(const struct settings *s, const char *flag, const char *url, struct error *e)
{
    struct address a;
    enum status st = address_parse(url, &a, e);

    if (st != STATUS_OK) {
        char why[ERROR_TEXT_SIZE];
        memcpy(why, e->text, sizeof why);
        return error_set(e, REASON_BAD_ARGUMENT, "--%s: %.400s%s", flag, why,
                         strcmp(flag, "bulk") == 0 ? "; off means no bulk door" : "");
    }
    if (a.ipc || is_local_host(a.host) || s->token_file != NULL || s->insecure) return STATUS_OK;
    return error_set(e, REASON_BAD_ARGUMENT, "--%s %.200s can be reached from other machines: give --token-file, or "
                     "--insecure if the network is trusted", flag, url);
}

/* The admin port's address is one without "tcp://". */
static enum status check_web(const struct settings *s, const char *flag, const char *address, bool exposed,
                             struct error *e)
{
    struct settings all = *s;
    char url[300];

    if (strchr(address, ':') == NULL)
        return error_set(e, REASON_BAD_ARGUMENT, "--%s: \"%.200s\" has no port; HOST:PORT is expected, or off", flag,
                         address);
    if ((size_t)snprintf(url, sizeof url, "tcp://%s", address) >= sizeof url)
        return error_set(e, REASON_BAD_ARGUMENT, "--%s: the address is too long", flag);
    all.insecure |= exposed;
    return check_door(&all, flag, url, e);
}

static enum status check_device(const char *device, struct error *e)
{
    struct cards cards;

    if (strcmp(device, "auto") == 0 || strcmp(device, "cpu") == 0 || cards_parse(device, &cards)) return STATUS_OK;
    return error_set(e, REASON_BAD_ARGUMENT, "--device %.80s: one of auto, cpu, cuda:N and cuda:N,M (%d at most, none "
                     "twice)", device, ARRAY_MEMBERS_MAX);
}

static bool is_off(const char *setting) { return strcmp(setting, "off") == 0; }

enum status settings_check(const struct settings *s, struct error *e)
{
    enum status st = STATUS_OK;

    for (unsigned i = 0; i < s->listen.count && st == STATUS_OK; i++) st = check_door(s, "listen", s->listen.at[i], e);
    if (st == STATUS_OK && s->bulk != NULL && !is_off(s->bulk)) st = check_door(s, "bulk", s->bulk, e);
    if (st == STATUS_OK && !is_off(s->admin)) st = check_web(s, "admin", s->admin, false, e);
    if (st == STATUS_OK && !is_off(s->probe)) st = check_web(s, "probe", s->probe, true, e);
    if (st == STATUS_OK) st = check_device(s->device, e);
    return st;
}

static bool same_urls(const struct settings_urls *a, const struct settings_urls *b)
{
    for (unsigned i = 0; i < a->count && i < b->count; i++)
        if (strcmp(a->at[i], b->at[i]) != 0) return false;
    return a->count == b->count;
}

static bool same_text(const char *a, const char *b) { return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0); }

static bool same_value(const struct setting_row *r, const struct settings *a, const struct settings *b)
{
    const void *x = (const char *)a + r->offset, *y = (const char *)b + r->offset;

    switch (r->kind) {
    case kind_urls: return same_urls(x, y);
    case kind_text:
    case kind_choice: return same_text(*(const char *const *)x, *(const char *const *)y);
    case kind_flag: return *(const bool *)x == *(const bool *)y;
    default: return *(const uint64_t *)x == *(const uint64_t *)y;
    }
}

const char *settings_fixed_difference(const struct settings *a, const struct settings *b)
{
    for (size_t i = 0; i < SETTING_COUNT; i++)
        if (rows[i].reload == FIXED && !same_value(&rows[i], a, b)) return rows[i].name;
    return NULL;
}

/* ---- for people ------------------------------------------------------------------------------------------------- */

/* A text in lines that fit, the first beginning behind `left`. */
static void print_wrapped(FILE *to, const char *left, const char *text)
{
    int column = fprintf(to, "  %-*s", HELP_INDENT - 2, left);

    if (column > HELP_INDENT) { /* the left side is too long */
        fprintf(to, "\n%*s", HELP_INDENT, "");
        column = HELP_INDENT;
    }
    while (*text != '\0') {
        int size = (int)strcspn(text, " ");
        if (column > HELP_INDENT && column + 1 + size > HELP_WIDTH) {
            fprintf(to, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        }
        column += fprintf(to, "%s%.*s", column > HELP_INDENT ? " " : "", size, text);
        text += size + (text[size] == ' ');
    }
    fputc('\n', to);
}

static void print_row(FILE *to, const struct setting_row *r)
{
    char left[64], text[300];
    bool says = r->standard[0] != '\0' && r->kind != kind_flag;

    if (r->group != NULL) fprintf(to, "\n%s\n", r->group);
    snprintf(left, sizeof left, "--%s %s", r->name, r->argument);
    snprintf(text, sizeof text, "%s%s%s%s%s", r->text, says ? " [" : "", says ? r->standard : "", says ? "]" : "",
             r->reload == LIVE ? " *" : "");
    print_wrapped(to, left, text);
}

void settings_help(FILE *to)
{
    fputs("paramd: a parameter store. Trainers push gradients and pull values; an updater runs here.\n\n"
          "usage: paramd [flags]\n", to);
    for (size_t i = 0; i < SETTING_COUNT; i++) print_row(to, &rows[i]);
    fputs("\nSettings themselves\n", to);
    print_wrapped(to, "--config FILE", "lines NAME = VALUE, with # for comments; the names are those of the flags");
    for (size_t i = 0; i < ASK_COUNT; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s", asks[i].name);
        print_wrapped(to, left, asks[i].text);
    }
    fputs("\nEach is read from the environment as well: --token-file from PARAMD_TOKEN_FILE, --config from\n"
          "PARAMD_CONFIG.\n"
          "A flag counts before the environment, that before the file, that before the standard.\n"
          "SIGHUP reads file and token anew: what is marked * may change, or else nothing does.\n"
          "SIGTERM ends the daemon after what is under way; a second one at once.\n"
          "It says `paramd ready ...` with its addresses on stdout when it serves.\n"
          "Exit status: 0 ended as told, 1 it could not start or go on, 2 the settings are wrong.\n", to);
}

static void print_value(const struct setting_row *r, const void *field, unsigned index, char *out, size_t room)
{
    const uint64_t *number = field;          /* of the kinds that are one */

    switch (r->kind) {
    case kind_urls: snprintf(out, room, "%s", ((const struct settings_urls *)field)->at[index]); break;
    case kind_text:
    case kind_choice: snprintf(out, room, "%s", *(const char *const *)field); break;
    case kind_flag: snprintf(out, room, "%s", *(const bool *)field ? "true" : "false"); break;
    case kind_seconds:
    case kind_grace: snprintf(out, room, "%.10g", (double)*number / 1000); break;
    case kind_bytes:
    case kind_count: snprintf(out, room, "%" PRIu64, *number); break;
    }
}

static void print_setting(const struct settings *s, int row, unsigned index, FILE *to)
{
    const struct setting_row *r = &rows[row];
    char value[400], origin[300], name[NAME_SIZE];
    const void *field = (const char *)s + r->offset;

    if (s->origins[row].from == ORIGIN_STANDARD && r->standard[0] == '\0') {
        fprintf(to, "# %s is not set\n", r->name);
        return;
    }
    switch (s->origins[row].from) {
    case ORIGIN_STANDARD: snprintf(origin, sizeof origin, "default"); break;
    case ORIGIN_FILE: snprintf(origin, sizeof origin, "%.200s:%u", s->config, s->origins[row].line); break;
    case ORIGIN_ENVIRONMENT: snprintf(origin, sizeof origin, "%s", environment_name(r->name, name)); break;
    case ORIGIN_FLAG: snprintf(origin, sizeof origin, "flag"); break;
    }
    print_value(r, field, index, value, sizeof value);
    fprintf(to, "%-14s = %-30s # %s%s\n", r->name, value, origin,
            row == SETTING_token_file ? "; what stands in it is not shown" : "");
}

void settings_print(const struct settings *s, FILE *to)
{
    for (int i = 0; i < SETTING_COUNT; i++) {
        if (rows[i].group != NULL) fprintf(to, "%s# %s\n", i > 0 ? "\n" : "", rows[i].group);
        unsigned count = rows[i].kind == kind_urls ? s->listen.count : 1;
        for (unsigned k = 0; k < count; k++) print_setting(s, i, k, to);
    }
}
