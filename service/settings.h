/* What can be set when the daemon starts: one row each. From the rows come the struct, the reader of the command line
 * and --help. */
#ifndef SERVICE_SETTINGS_H
#define SERVICE_SETTINGS_H

#include "service/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { LISTEN_MAX = 8 };

/*    kind   field         flag            argument      standard                  text */
#define SETTINGS(X)                                                                                                  \
    X(urls,  listen,       "listen",       "URL",        "tcp://127.0.0.1:7700",   "front door; may be repeated "   \
                                                                                   "(tcp:// or ipc://, port 0: any)") \
    X(text,  bulk,         "bulk",         "URL|off",    "",                       "bulk door for tensors (standard: " \
                                                                                   "the front door's host, port "    \
                                                                                   "7701)")                          \
    X(text,  admin,        "admin",        "HOST:PORT",  "127.0.0.1:7780",         "JSON over HTTP")                 \
    X(text,  probe,        "probe",        "HOST:PORT",  "127.0.0.1:7781",         "/livez and /readyz")             \
    X(text,  advertise,    "advertise",    "HOST",       "",                       "host that clients shall dial for " \
                                                                                   "the bulk door")                  \
    X(text,  device,       "device",       "auto|cpu",   "auto",                   "where the arithmetic is done")   \
    X(text,  token_file,   "token-file",   "FILE",       "",                       "clients must show what stands "  \
                                                                                   "in it")                          \
    X(flag,  insecure,     "insecure",     "",           "",                       "listen beyond this machine "     \
                                                                                   "without a token")                \
    X(bytes, staging_max,  "staging-max",  "BYTES",      "",                       "memory for pushes on their way " \
                                                                                   "(suffixes k m g; standard: a "   \
                                                                                   "quarter of the machine's)")      \
    X(count, threads,      "threads",      "N",          "",                       "workers of the CPU device "      \
                                                                                   "(standard: one a core)")         \
    X(count, drain_timeout, "drain-timeout", "SECONDS",  "10",                     "for what is under way when the " \
                                                                                   "daemon is told to stop")         \
    X(text,  log,          "log",          "LEVEL",      "info",                   "error, warn, info or debug")

struct settings_urls { const char *at[LISTEN_MAX]; unsigned count; };
typedef struct settings_urls settings_urls;
typedef const char *settings_text;
typedef bool settings_flag;
typedef uint64_t settings_bytes;
typedef uint64_t settings_count;

struct settings {
#define SETTING_FIELD(kind, field, flag, argument, standard, text) settings_##kind field;
    SETTINGS(SETTING_FIELD)
#undef SETTING_FIELD
    bool help, version;
};

/* Reads the command line; texts are lent from argv. BAD_ARGUMENT with the nearest known flag. */
enum status settings_read(int argc, char **argv, struct settings *out, struct error *e) MUST_CHECK;
void settings_help(FILE *to);

#endif
