#include "service/settings.h"

#include "service/updater.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum setting_kind { kind_urls, kind_text, kind_flag, kind_bytes, kind_count };

static const struct setting_row {
    enum setting_kind kind;
    size_t offset;
    const char *flag, *argument, *standard, *text;
} rows[] = {
#define SETTING_ROW(kind, field, flag, argument, standard, text) \
    {kind_##kind, offsetof(struct settings, field), flag, argument, standard, text},
    SETTINGS(SETTING_ROW)
#undef SETTING_ROW
};

enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

static enum status read_number(const struct setting_row *r, const char *value, uint64_t *out, struct error *e)
{
    static const char suffixes[] = "kmg";
    char *end;
    const char *suffix;

    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    bool sound = errno == 0 && end != value && value[0] >= '0' && value[0] <= '9';
    if (sound && r->kind == kind_bytes && *end != '\0' && (suffix = strchr(suffixes, *end | 0x20)) != NULL) {
        unsigned shift = 10 * (unsigned)(suffix - suffixes + 1);
        sound = n <= (UINT64_MAX >> shift);
        n <<= shift;
        end++;
    }
    if (!sound || *end != '\0')
        return error_set(e, REASON_BAD_ARGUMENT, "--%s: '%s' is no number%s", r->flag, value,
                         r->kind == kind_bytes ? " of bytes, such as 512m" : "");
    *out = n;
    return STATUS_OK;
}

static enum status set(struct settings *s, const struct setting_row *r, const char *value, struct error *e)
{
    void *field = (char *)s + r->offset;
    struct settings_urls *urls;

    switch (r->kind) {
    case kind_text: *(const char **)field = value; return STATUS_OK;
    case kind_flag: *(bool *)field = true; return STATUS_OK;
    case kind_bytes:
    case kind_count: return read_number(r, value, field, e);
    case kind_urls: break;
    }
    urls = field;
    if (urls->count == LISTEN_MAX) return error_set(e, REASON_BAD_ARGUMENT, "--%s: at most %d", r->flag, LISTEN_MAX);
    urls->at[urls->count++] = value;
    return STATUS_OK;
}

static enum status unknown(const char *flag, size_t size, struct error *e)
{
    const char *names[ROW_COUNT + 3] = {"help", "version"};

    for (size_t i = 0; i < ROW_COUNT; i++) names[i + 2] = rows[i].flag;
    const char *near = nearest_name(bytes_of(flag, size), names);
    return error_set(e, REASON_BAD_ARGUMENT, near != NULL ? "--%.*s: no such flag; did you mean --%s?"
                                                          : "--%.*s: no such flag; see --help", (int)size, flag, near);
}

static enum status read_flag(struct settings *s, const char *flag, int argc, char **argv, int *i, struct error *e)
{
    size_t size = strcspn(flag, "=");

    for (size_t k = 0; k < ROW_COUNT; k++) {
        const struct setting_row *r = &rows[k];
        if (strlen(r->flag) != size || memcmp(r->flag, flag, size) != 0) continue;
        if (r->kind == kind_flag)
            return flag[size] == '=' ? error_set(e, REASON_BAD_ARGUMENT, "--%s takes no value", r->flag)
                                     : set(s, r, NULL, e);
        if (flag[size] == '=') return set(s, r, flag + size + 1, e);
        if (*i + 1 >= argc) return error_set(e, REASON_BAD_ARGUMENT, "--%s needs %s", r->flag, r->argument);
        return set(s, r, argv[++*i], e);
    }
    return unknown(flag, size, e);
}

enum status settings_read(int argc, char **argv, struct settings *out, struct error *e)
{
    struct settings s = {.help = false};
    enum status st = STATUS_OK;

    for (size_t k = 0; k < ROW_COUNT && st == STATUS_OK; k++)
        if (rows[k].standard[0] != '\0' && rows[k].kind != kind_urls) st = set(&s, &rows[k], rows[k].standard, e);
    for (int i = 1; i < argc && st == STATUS_OK; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) s.help = true;
        else if (strcmp(a, "--version") == 0) s.version = true;
        else if (strncmp(a, "--", 2) == 0) st = read_flag(&s, a + 2, argc, argv, &i, e);
        else st = error_set(e, REASON_BAD_ARGUMENT, "'%s' is no flag; see --help", a);
    }
    if (st == STATUS_OK && s.listen.count == 0) s.listen.at[s.listen.count++] = "tcp://127.0.0.1:7700";
    if (st == STATUS_OK) *out = s;
    return st;
}

void settings_help(FILE *to)
{
    fputs("paramd: a parameter store. Trainers push gradients and pull values; an updater runs here.\n\n"
          "usage: paramd [flags]\n\n", to);
    for (size_t k = 0; k < ROW_COUNT; k++) {
        char left[64];
        snprintf(left, sizeof left, "--%s %s", rows[k].flag, rows[k].argument);
        fprintf(to, "  %-26s %s%s%s%s\n", left, rows[k].text, rows[k].standard[0] != '\0' ? " [" : "", rows[k].standard,
                rows[k].standard[0] != '\0' ? "]" : "");
    }
    fputs("  --help, --version\n\nIt says `paramd ready ...` with its addresses when it serves; SIGTERM stops it after what "
          "is under way.\n", to);
}
