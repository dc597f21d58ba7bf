/* paramctl: the command line. A command and a flag are a row each; from the rows come the reader and --help. */
#include "api/paramctl/paramctl.h"

#include "service/updater.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum flag_kind { FLAG_TEXT, FLAG_ON, FLAG_BYTES, FLAG_SECONDS };
enum { ANYWHERE = 1, KEYS = 2, GET = 4, PULL = 8, PUT = 16, PUSH = 32, BENCH = 64, TOP = 128, VIZ = 256, SUMMARY = 512,
       STATS = 1024, DELETE = 2048, UPDATER = 4096 };

static const struct flag_row {
    const char *name, *argument;
    enum flag_kind kind;
    size_t offset;
    unsigned commands;                           /* that have it */
    const char *text;
} flags[] = {
    {"url", "URL", FLAG_TEXT, offsetof(struct ctl, url), ANYWHERE,
     "front door [PARAMD_URL, else tcp://127.0.0.1:7700]"},
    {"store", "NAME", FLAG_TEXT, offsetof(struct ctl, store), ANYWHERE, "[PARAMD_STORE, else default]"},
    {"token-file", "FILE", FLAG_TEXT, offsetof(struct ctl, token_file), ANYWHERE,
     "[the token in PARAMD_TOKEN, else the file PARAMD_TOKEN_FILE]"},
    {"timeout", "SECONDS", FLAG_SECONDS, offsetof(struct ctl, timeout), ANYWHERE,
     "to connect [5]; get and pull with --wait: for the newer version, too [no end]"},
    {"json", "", FLAG_ON, offsetof(struct ctl, json), ANYWHERE, "answers and errors as JSON"},
    {"limit", "N", FLAG_BYTES, offsetof(struct ctl, limit), KEYS, "keys that are listed; 0: all [1000]"},
    {"npy", "FILE", FLAG_TEXT, offsetof(struct ctl, npy), GET, "write the value there instead of printing it"},
    {"into", "FOLDER", FLAG_TEXT, offsetof(struct ctl, into), PULL, "write each value there as KEY.npy"},
    {"wait", "", FLAG_ON, offsetof(struct ctl, wait), GET | PULL | PUSH,
     "get, pull: until there is a newer version; push: until it is applied"},
    {"force", "", FLAG_ON, offsetof(struct ctl, force), PUT | DELETE, "also while a round of the key is open, which fails"},
    {"states", "keep|reset|convert", FLAG_TEXT, offsetof(struct ctl, states), UPDATER,
     "what becomes of the optimizer's slots [keep]"},
    {"dry-run", "", FLAG_ON, offsetof(struct ctl, dry_run), UPDATER,
     "set: only tells what would become of the store's keys"},
    {"dtype", "TYPE", FLAG_TEXT, offsetof(struct ctl, dtype), PUT | PUSH, "of a JSON value [the key's, else float32]"},
    {"key-type", "int|str", FLAG_TEXT, offsetof(struct ctl, key_type), GET | PULL | PUT | PUSH | STATS | DELETE,
     "of KEY [the store's; in an empty store a number is a number]"},
    {"size", "BYTES", FLAG_BYTES, offsetof(struct ctl, size), BENCH, "of the large value [4m]"},
    {"seconds", "SECONDS", FLAG_SECONDS, offsetof(struct ctl, seconds), BENCH, "for all of it [4]"},
    {"interval", "SECONDS", FLAG_SECONDS, offsetof(struct ctl, interval), TOP, "between two looks [1]"},
    {"once", "", FLAG_ON, offsetof(struct ctl, once), TOP, "one screen, then end"},
    {"out", "FILE", FLAG_TEXT, offsetof(struct ctl, out), VIZ | SUMMARY, "or -o: write there [stdout]"},
    {"format", "FORMAT", FLAG_TEXT, offsetof(struct ctl, format), VIZ,
     "svg png pdf dot json text [by the name of the file, else svg]"},
    {"engine", "own|dot", FLAG_TEXT, offsetof(struct ctl, engine), VIZ,
     "who places the boxes; dot is Graphviz's, of the package graphviz [own]"},
    {"view", "VIEW", FLAG_TEXT, offsetof(struct ctl, view), VIZ | SUMMARY,
     "default full blocks mxnet [default]; of a summary: mxnet prints what print_summary does"},
    {"direction", "WAY", FLAG_TEXT, offsetof(struct ctl, direction), VIZ, "down up right [down; of keys right]"},
    {"color", "WHAT", FLAG_TEXT, offsetof(struct ctl, color_by), VIZ,
     "op size version updater norm grad_norm update_ratio staleness [op]"},
    {"shape", "NAME=DIMS", FLAG_TEXT, offsetof(struct ctl, shape), VIZ | SUMMARY,
     "of the inputs, such as 'data=N,3,224,224;label=N'"},
    {"expand", "IDS", FLAG_TEXT, offsetof(struct ctl, expand), VIZ, "blocks that are drawn opened, such as n12,n40"},
    {"live", "", FLAG_ON, offsetof(struct ctl, live), VIZ | SUMMARY, "ask the store for what it knows of the parameters"},
    {"text", "", FLAG_ON, offsetof(struct ctl, as_text), VIZ, "numbered sentences instead of a drawing"},
};
enum { FLAG_COUNT = sizeof flags / sizeof flags[0] };

static const struct command {
    const char *name, *arguments;
    int least, most;
    unsigned bit;
    int (*run)(const struct ctl *c);
    const char *text, *more;
} commands[] = {
    {"info", "", 0, 0, ANYWHERE, run_info, "what the daemon is and has done", ""},
    {"health", "", 0, 0, ANYWHERE, run_health, "whether it serves",
     "Ends with 0 when it serves, and with 6 when it drains or does not answer.\n"},
    {"stores", "", 0, 0, ANYWHERE, run_stores, "the stores", ""},
    {"store", "create|delete|reset NAME", 1, 3, ANYWHERE, run_store, "creates, deletes or empties a store",
     "TYPE is dist_sync or dist_async [dist_sync]; JSON has more options. reset keeps the store and its options.\n"
     "  paramctl store create new dist_async\n"
     "  paramctl store create new '{\"type\": \"dist_sync\", \"num_workers\": 4}'\n"
     "  paramctl store delete default\n"},
    {"keys", "[PREFIX]", 0, 1, KEYS, run_keys, "the keys of a store", ""},
    {"get", "KEY", 1, 1, GET, run_get, "the value of a key",
     "Prints it as numpy does: more than 1000 elements are abbreviated. With --json all of them come out.\n"
     "  paramctl get fc1_weight --npy fc1.npy\n"},
    {"put", "KEY FILE.npy|JSON", 2, 2, PUT, run_put, "replaces a value, or creates the key",
     "The updater is not asked. Keys are created in stores without workers, for which paramctl joins for a moment.\n"
     "  paramctl put bias '[0, 0, 0.5]'\n"},
    {"delete", "KEY...", 1, ARGS_MAX, DELETE, run_delete, "deletes keys and their values", "Deletes all of them or, when one is refused, none.\n"},
    {"push", "KEY FILE.npy|JSON", 2, 2, PUSH, run_push, "pushes a gradient, as a worker of the store",
     "It joins the store for that time: in a dist_sync store the rounds wait for it as for any worker.\n"
     "  paramctl push bias grad.npy --wait\n"},
    {"pull", "KEY...", 1, ARGS_MAX, PULL, run_pull, "several values, each of one version: what they are like, or files",
     "  paramctl pull w b --into /tmp/model\n"},
    {"stats", "KEY", 1, 1, STATS, run_stats, "norms, extremes, NaNs and histograms of a key",
     "Looking starts the measuring: gradient and update are told from the next step on.\n"
     "  paramctl stats fc1_weight\n"},
    {"updater", "[get|set|check WHAT]", 0, 2, UPDATER, run_updater, "the updater of a store",
     "WHAT is the name of an updater, a document, or a file with a document or a text in the updater language.\n"
     "  paramctl updater set sgd\n"
     "  paramctl updater set '{\"type\": \"sgd\", \"learning_rate\": 0.1}'\n"
     "  paramctl updater set adam --states convert --dry-run\n"
     "  paramctl updater set rule.txt      a text in the updater language, or a file with a document; - is stdin\n"
     "  paramctl updater check rule.txt    what the text or document is and does; no daemon is asked\n"
     "  paramctl updater check rule.txt --url tcp://127.0.0.1:7700    and what would become of a store's keys under it\n"
     "  paramctl updater check adam --store s\n"},
    {"workers", "[dismiss NAME|RANK]", 0, 2, ANYWHERE, run_workers, "who has joined a store",
     "A dead worker that is dismissed is no longer waited for.\n"},
    {"rounds", "", 0, 0, ANYWHERE, run_rounds, "open rounds and barriers, and who is missing in them", ""},
    {"top", "", 0, 0, TOP, run_top, "rates, stores and open rounds, refreshed; q ends", ""},
    {"bench", "", 0, 0, BENCH, run_bench, "a quick push and pull figure, in a store of its own", ""},
    {"viz", "[FILE]", 0, 1, VIZ, run_viz, "draws a network (MXNet symbol file, ONNX), or the keys of a store",
     "png and pdf need rsvg-convert (package librsvg2-bin).\n"
     "  paramctl viz net-symbol.json -o net.svg\n"
     "  paramctl viz net-symbol.json --live --color version -o net.svg\n"
     "  paramctl viz -o keys.svg\n"},
    {"summary", "[FILE]", 0, 1, SUMMARY, run_summary, "the layers of a network, their shapes and parameters",
     "  paramctl summary net-symbol.json --shape data=1,3,224,224\n"},
    {"describe", "[METHOD]", 0, 1, ANYWHERE, run_describe, "methods of the protocol; of binary ones the fields", ""},
    {"call", "METHOD [JSON]", 1, 2, ANYWHERE, run_call, "any JSON method",
     "  paramctl call GetStore '{\"store\": \"default\"}'\n"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

/* ---- help ------------------------------------------------------------------------------------------------------- */

static void print_flags(FILE *to, unsigned which)
{
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        char left[40];
        if ((flags[i].commands & which) == 0) continue;
        snprintf(left, sizeof left, "--%s %s", flags[i].name, flags[i].argument);
        fprintf(to, "  %-20s %s\n", left, flags[i].text);
    }
}

static int help(FILE *to, int code)
{
    fputs("paramctl: looks into a paramd daemon. Looking joins no store.\n\n"
          "usage: paramctl COMMAND [ARGUMENTS] [flags]\n\n", to);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        char left[40];
        snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].arguments);
        fprintf(to, "  %-34s %s\n", left, commands[i].text);
    }
    fputs("\n`paramctl COMMAND --help` tells more. Flags of all commands:\n\n", to);
    print_flags(to, ANYWHERE);
    fputs("  --help, --version\n\nNO_COLOR in the environment: no bold.\nExit status: 0 ok, 1 error, 2 usage, "
          "3 not found, 4 conflict, 5 not authorised, 6 unavailable.\n", to);
    return code;
}

static int help_command(const struct command *c)
{
    printf("usage: paramctl %s%s%s [flags]\n\n%s\n%s\n", c->name, c->arguments[0] != '\0' ? " " : "", c->arguments,
           c->text, c->more);
    print_flags(stdout, c->bit | ANYWHERE);
    return 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static bool read_bytes(const char *text, uint64_t *out)
{
    static const char suffixes[] = "kmgt";
    char *end;
    const char *suffix;

    if (text[0] < '0' || text[0] > '9') return false;
    *out = strtoull(text, &end, 10);
    if (*end != '\0' && (suffix = strchr(suffixes, *end | 0x20)) != NULL) {
        unsigned shift = 10 * (unsigned)(suffix - suffixes + 1);
        if (*out > UINT64_MAX >> shift) return false;
        *out <<= shift;
        end++;
    }
    return *end == '\0';
}

static int set_flag(struct ctl *c, const struct flag_row *f, const char *value)
{
    void *field = (char *)c + f->offset;
    char *end;

    switch (f->kind) {
    case FLAG_TEXT: *(const char **)field = value; return 0;
    case FLAG_ON: *(bool *)field = true; return 0;
    case FLAG_BYTES:
        if (read_bytes(value, field)) return 0;
        return complain_usage("--%s: '%s' is no number", f->name, value);
    case FLAG_SECONDS: break;
    }
    *(double *)field = strtod(value, &end);
    if (*end == '\0' && end != value && *(double *)field >= 0.001 && *(double *)field <= 604800) return 0;
    return complain_usage("--%s: '%s' is no number of seconds", f->name, value);
}

static int unknown_flag(const char *flag, size_t size)
{
    const char *names[FLAG_COUNT + 3] = {"help", "version"};

    for (size_t i = 0; i < FLAG_COUNT; i++) names[i + 2] = flags[i].name;
    const char *near = nearest_name(bytes_of(flag, size), names);
    return complain_usage(near != NULL ? "--%.*s: no such flag; did you mean --%s?"
                                       : "--%.*s: no such flag; see --help", (int)size, flag, near);
}

static const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[COMMAND_COUNT + 1] = {NULL};

    for (size_t i = 0; i < COMMAND_COUNT; i++) names[i] = commands[i].name;
    const char *near = nearest_name(bytes_text(name), names);
    return complain_usage(near != NULL ? "no command '%s'; did you mean %s?" : "no command '%s'; see --help", name,
                          near);
}

/* What main reads the command line into. */
struct line {
    struct ctl ctl;
    const struct command *command;
    const struct flag_row *odd;                  /* the last flag that not every command has */
    bool help, version;
};

static int foreign_flag(const struct command *c, const struct flag_row *f)
{
    return complain_usage("%s has no flag --%s; see paramctl %s --help", c->name, f->name, c->name);
}

static int read_flag(struct line *l, int argc, char **argv, int *i, const char *flag)
{
    const char *value = NULL;
    size_t size = strcspn(flag, "=");

    for (size_t k = 0; k < FLAG_COUNT; k++) {
        const struct flag_row *f = &flags[k];
        if (strlen(f->name) != size || memcmp(f->name, flag, size) != 0) continue;
        if (f->kind == FLAG_ON && flag[size] == '=') return complain_usage("--%s takes no value", f->name);
        if (f->kind != FLAG_ON) value = flag[size] == '=' ? flag + size + 1 : *i + 1 < argc ? argv[++*i] : NULL;
        if (f->kind != FLAG_ON && value == NULL) return complain_usage("--%s needs %s", f->name, f->argument);
        if ((f->commands & ANYWHERE) == 0) l->odd = f;
        if (l->command != NULL && l->odd != NULL && (l->odd->commands & l->command->bit) == 0)
            return foreign_flag(l->command, f);
        return set_flag(&l->ctl, f, value);
    }
    return unknown_flag(flag, size);
}

static int read_word(struct line *l, const char *word)
{
    if (l->command == NULL) {
        l->command = command_find(word);
        return l->command != NULL ? 0 : unknown_command(word);
    }
    if (l->ctl.arg_count == ARGS_MAX) return complain_usage("more than %d arguments", ARGS_MAX);
    l->ctl.args[l->ctl.arg_count++] = word;
    return 0;
}

/* Behind "--" nothing is a flag; a lone "-", or a negative number, never is. */
static int read_line(struct line *l, int argc, char **argv)
{
    bool words = false;
    int code = 0;

    for (int i = 1; i < argc && code == 0; i++) {
        const char *a = argv[i];
        if (!words && strcmp(a, "--") == 0) words = true;
        else if (!words && (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0)) l->help = true;
        else if (!words && strcmp(a, "--version") == 0) l->version = true;
        else if (!words && strcmp(a, "-o") == 0) code = read_flag(l, argc, argv, &i, "out");
        else if (!words && strncmp(a, "--", 2) == 0) code = read_flag(l, argc, argv, &i, a + 2);
        else if (!words && a[0] == '-' && a[1] > '9')
            code = complain_usage("%s: flags begin with two dashes; see --help", a);
        else code = read_word(l, a);
    }
    return code;
}

int main(int argc, char **argv)
{
    struct line l = {.ctl = {.limit = 1000, .size = 4 << 20, .seconds = 4, .interval = 1}};
    struct ctl *c = &l.ctl;
    const char *plain = getenv("NO_COLOR"), *terminal = getenv("TERM");
    int code = read_line(&l, argc, argv);

    if (code != 0) return code;
    if (l.version) return puts(paramd_version()) < 0;
    if (l.help) return l.command != NULL ? help_command(l.command) : help(stdout, 0);
    if (l.command == NULL) return help(stderr, EXIT_USAGE);
    if (l.odd != NULL && (l.odd->commands & l.command->bit) == 0)
        return foreign_flag(l.command, l.odd);
    if (c->key_type != NULL && strcmp(c->key_type, "int") != 0 && strcmp(c->key_type, "str") != 0)
        return complain_usage("--key-type %s: it is int or str", c->key_type);
    if (c->arg_count < l.command->least || c->arg_count > l.command->most)
        return complain_usage("usage: paramctl %s %s", l.command->name, l.command->arguments);
    c->color = isatty(STDOUT_FILENO) && (plain == NULL || plain[0] == '\0') && terminal != NULL &&
               strcmp(terminal, "dumb") != 0;
    code = l.command->run(c);
    /* A full disk or a closed pipe must not look like success. */
    return fflush(stdout) == 0 && ferror(stdout) == 0 ? code : code != 0 ? code : EXIT_ERROR;
}
