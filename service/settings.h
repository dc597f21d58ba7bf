/* What can be set when the daemon starts: one row each. From the rows come the struct, the flags, the PARAMD_* names,
 * the entries of the file, --help and --print-config.
 *
 * A value comes from the first of: flag, environment, file (--config FILE or PARAMD_CONFIG), standard. The names are
 * the same: --token-file FILE, PARAMD_TOKEN_FILE=FILE, `token-file = FILE`. Main thread only. */
#ifndef SERVICE_SETTINGS_H
#define SERVICE_SETTINGS_H

#include "service/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { LISTEN_MAX = 8, SETTINGS_FILE_SIZE_MAX = 64 << 10 };

/* Kinds: urls (may be repeated; in the environment with commas between), text, choice (one of the words of `argument`),
 * flag, count, bytes (suffixes k m g t), seconds (fractions allowed, kept in ms), grace (seconds, 0 allowed).
 * `reload`: LIVE ones follow a SIGHUP, FIXED ones hold until the daemon is started again.
 * The first row of a group carries its title.
 *
 *    kind     field           flag              argument                standard                reload  group, text */
#define SETTINGS(X)                                                                                                   \
    X(urls,    listen,         "listen",         "URL",                  "tcp://127.0.0.1:7700", FIXED, "Doors",      \
      "front door, tcp:// or ipc://; may be repeated. Port 0 takes any free one, here and below")                     \
    X(text,    bulk,           "bulk",           "URL|off",              "",                     FIXED, NULL,         \
      "bulk door for tensors; default: at the port after the first TCP front door's if no other door has it; else off")   \
    X(text,    advertise,      "advertise",      "HOST",                 "",                     FIXED, NULL,         \
      "host that clients shall dial for the bulk door; standard: the one they dialled")                               \
    X(text,    admin,          "admin",          "HOST:PORT|off",        "127.0.0.1:7780",       FIXED, NULL,         \
      "JSON over HTTP, for people and their tools")                                                                   \
    X(text,    probe,          "probe",          "HOST:PORT|off",        "127.0.0.1:7781",       FIXED, NULL,         \
      "/livez, /readyz and /metrics; nothing secret, no token")                                                       \
    X(count,   address_connections, "address-connections", "N",          "",                     FIXED, NULL,         \
      "connections of one address to one door; standard: a quarter of the door's, which are 4096 or a third of `ulimit -n`") \
    X(text,    token_file,     "token-file",     "FILE",                 "",                     LIVE,  "Access",     \
      "clients must show what stands in it; needed beyond this machine")                                              \
    X(flag,    insecure,       "insecure",       "",                     "false",                FIXED, NULL,         \
      "listen beyond this machine without a token")                                                                   \
    X(text,    device,         "device",         "auto|cpu|cuda:N,M",    "auto",                 FIXED,               \
      "Device and memory", "where values lie and updaters run; auto: the first GPU, or the CPU where none is usable; cuda:0,1: several as one") \
    X(bytes,   device_memory,  "device-memory",  "BYTES",                "",                     FIXED, NULL,         \
      "memory of each GPU that may be taken at all; standard: what it has free (suffixes k m g t)")                    \
    X(choice,  device_full,    "device-full",    "refuse|host",          "refuse",               FIXED, NULL,         \
      "a new key for which no GPU has room is refused, or lies in this machine's memory, where the CPU updates it")    \
    X(count,   threads,        "threads",        "N",                    "",                     FIXED, NULL,         \
      "workers of the CPU device; standard: one a core, at most 16")                                                  \
    X(bytes,   memory_max,     "memory-max",     "BYTES",                "",                     LIVE,  NULL,         \
      "for keys, optimizer states and values on their way; what would need more is refused; standard: no cap (suffixes k m g t)") \
    X(bytes,   staging_max,    "staging-max",    "BYTES",                "",                     LIVE,  NULL,         \
      "memory for pushes on their way; standard: a quarter of the machine's")                                         \
    X(bytes,   mailbox_max,    "mailbox-max",    "BYTES",                "",                     LIVE,  NULL,         \
      "memory of the GPU for mailboxes of trainers on this machine; standard: 1g; below 64k there are none")          \
    X(grace,   drain_timeout,  "drain-timeout",  "SECONDS",              "5",                    LIVE,  "Time",       \
      "for what is under way when the daemon is told to stop; a client that takes nothing for 2 s is not waited for")  \
    X(seconds, round_timeout,  "round-timeout",  "SECONDS",              "60",                   LIVE,  NULL,         \
      "new stores: a round that stays open for so long fails, and names the missing")                                 \
    X(seconds, worker_timeout, "worker-timeout", "SECONDS",              "10",                   LIVE,  NULL,         \
      "new stores: a worker that is silent for so long is dead")                                                      \
    X(seconds, start_timeout,  "start-timeout",  "SECONDS",              "60",                   LIVE,  NULL,         \
      "new stores: for all workers to join")                                                                          \
    X(choice,  log,            "log",            "error|warn|info|debug", "info",                LIVE,                \
      "Log (on stderr)",                                                                                              \
      "what is less important is left out; debug tells each request")                                                 \
    X(choice,  log_format,     "log-format",     "text|json",            "text",                 LIVE,  NULL,         \
      "key=value lines, or one JSON object a line")

struct settings_urls { const char *at[LISTEN_MAX]; unsigned count; };
typedef struct settings_urls settings_urls;
typedef const char *settings_text;
typedef const char *settings_choice;
typedef bool settings_flag;
typedef uint64_t settings_bytes;
typedef uint64_t settings_count;
typedef uint64_t settings_seconds;
typedef uint64_t settings_grace;

enum {
#define SETTING_INDEX(kind, field, ...) SETTING_##field,
    SETTINGS(SETTING_INDEX)
#undef SETTING_INDEX
    SETTING_COUNT
};

enum setting_origin { ORIGIN_STANDARD, ORIGIN_FILE, ORIGIN_ENVIRONMENT, ORIGIN_FLAG };

/* Texts are NULL, counts and bytes 0 when they are not set and have no standard. */
struct settings {
#define SETTING_FIELD(kind, field, ...) settings_##kind field;
    SETTINGS(SETTING_FIELD)
#undef SETTING_FIELD
    bool help, version, print, check;            /* what the command line asks for instead of a daemon */
    const char *config;                          /* the file, or NULL */
    struct { enum setting_origin from; unsigned line; } origins[SETTING_COUNT];
    char *owned[2];                              /* the file's text and the list out of the environment: lent above */
};

/* Reads flags, environment and file. Texts are lent from argv, from the environment and from what *out owns.
 * BAD_ARGUMENT names the place ("--lisen", "paramd.conf:3", "PARAMD_LOG") and, for a name that is none, the nearest.
 * *out is for settings_fini on success. */
enum status settings_read(int argc, char **argv, struct settings *out, struct error *e) MUST_CHECK;
void settings_fini(struct settings *s);          /* a zeroed one is nothing */

/* What can be told without doing it: URLs that are none, doors that others could reach without a token, a device whose
 * name is none. */
enum status settings_check(const struct settings *s, struct error *e) MUST_CHECK;

/* The flag of a FIXED setting in which the two differ, or NULL. */
const char *settings_fixed_difference(const struct settings *a, const struct settings *b);

/* Calls `say` for every PARAMD_* in the environment that is no setting; near: the nearest that is, or NULL. */
void settings_strangers(void (*say)(const char *name, const char *near));

void settings_help(FILE *to);
/* Each value and where it is from, as a file that --config would take. */
void settings_print(const struct settings *s, FILE *to);

#endif
