#include "api/client/type.h"

#include <stdio.h>
#include <string.h>

/* What a word adds to a type. HINT: accepted for the sake of old scripts; it changes no result here. */
enum {
    WORD_HINT = 0, WORD_LOCAL = 1, WORD_DEVICE = 2, WORD_DIST = 4, WORD_SYNC = 8, WORD_ASYNC = 16,
    WORD_NCCL = 32
};

/*    word        adds          reason to refuse it, or NONE, and the sentence */
#define WORDS(X)                                                                                                 \
    X(local,      WORD_LOCAL,   NONE, "")                                                                        \
    X(device,     WORD_DEVICE,  NONE, "")                                                                        \
    X(nccl,       WORD_NCCL,    NONE, "")                                                                        \
    X(dist,       WORD_DIST,    NONE, "")                                                                        \
    X(sync,       WORD_SYNC,    NONE, "")                                                                        \
    X(async,      WORD_ASYNC,   NONE, "")                                                                        \
    X(ssp,        WORD_DIST,    UNIMPLEMENTED,                                                                   \
      "stale synchronous stores are not in this version: use dist_sync or dist_async")                           \
    X(p3,         WORD_DIST,    UNIMPLEMENTED,                                                                   \
      "slicing by priority is not in this version: use dist_sync and give each push a priority")                 \
    X(tree,       WORD_HINT,    UNIMPLEMENTED,                                                                   \
      "sums over a tree of GPUs are not in this version: leave the word out, the results are the same")          \
    X(update,     WORD_HINT,    NONE, "")                                                                        \
    X(allreduce,  WORD_HINT,    NONE, "")                                                                        \
    X(cpu,        WORD_HINT,    NONE, "")                                                                        \
    X(gpu,        WORD_HINT,    NONE, "")

static const struct word {
    const char *text;
    unsigned adds;
    enum reason refusal;
    const char *why;
} words[] = {
#define WORD_ROW(word, adds, reason, why) {#word, adds, REASON_##reason, why},
    WORDS(WORD_ROW)
#undef WORD_ROW
};

enum { WORD_LIST_SIZE = 128 };

/* The words that work, each with a space before it. */
static const char *word_list(char out[WORD_LIST_SIZE])
{
    size_t n = 0;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].refusal == REASON_NONE && n < WORD_LIST_SIZE)
            n += (size_t)snprintf(out + n, WORD_LIST_SIZE - n, " %s", words[i].text);
    return out;
}

static const struct word *find(const char *text, size_t size)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].text) == size && memcmp(words[i].text, text, size) == 0) return &words[i];
    return NULL;
}

static enum status lower(const char *name, char to[TYPE_NAME_MAX], struct error *e)
{
    size_t size = strlen(name);

    if (size == 0 || size >= TYPE_NAME_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "a store type has 1 to %d letters, for example local or dist_sync",
                         TYPE_NAME_MAX - 1);
    for (size_t i = 0; i <= size; i++)
        to[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
    return STATUS_OK;
}

/* The kinds that the words say, or'ed together. */
static enum status collect(const char *name, unsigned *kinds, struct error *e)
{
    char list[WORD_LIST_SIZE];

    for (const char *at = name;; at++) {
        size_t size = strcspn(at, "_");
        const struct word *w = find(at, size);
        if (w == NULL)
            return error_set(e, REASON_BAD_ARGUMENT, "unknown store type \"%s\": \"%.*s\" is none of%s (joined by _)",
                             name, (int)size, at, word_list(list));
        if (w->refusal != REASON_NONE) return error_set(e, w->refusal, "store type \"%s\": %s", name, w->why);
        *kinds |= w->adds;
        at += size;
        if (*at == '\0') return STATUS_OK;
    }
}

enum status client_type_parse(const char *name, struct client_type *out, struct error *e)
{
    unsigned kinds = 0;
    enum status s = lower(name, out->name, e);

    if (s == STATUS_OK) s = collect(out->name, &kinds, e);
    if (s != STATUS_OK) return s;
    if ((kinds & WORD_SYNC) && (kinds & WORD_ASYNC))
        return error_set(e, REASON_BAD_ARGUMENT, "store type \"%s\" is both sync and async: leave one out", out->name);
    out->embedded = (kinds & (WORD_DIST | WORD_SYNC | WORD_ASYNC)) == 0;
    if (!out->embedded && (kinds & WORD_LOCAL))
        return error_set(e, REASON_BAD_ARGUMENT, "store type \"%s\" is both in this process (local) and in a daemon: "
                         "leave one out", out->name);
    if (out->embedded) out->canonical = (kinds & WORD_NCCL) ? "nccl" : (kinds & WORD_DEVICE) ? "device" : "local";
    else out->canonical = (kinds & WORD_ASYNC) ? "dist_async" : "dist_sync";
    return STATUS_OK;
}
