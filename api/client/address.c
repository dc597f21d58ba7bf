#include "api/client/address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status bad_url(const char *url, const char *why, struct error *e)
{
    return error_set(e, REASON_BAD_ARGUMENT, "url \"%.200s\": %s; write it like tcp://127.0.0.1:7700 or "
                     "ipc:///run/paramd/door", url, why);
}

static enum status parse_path(const char *url, const char *path, struct address *out, struct error *e)
{
    if (path[0] != '/') return bad_url(url, "the path of a Unix socket begins with /", e);
    if (strlen(path) >= sizeof out->path) return bad_url(url, "the path is too long for a Unix socket", e);
    out->is_path = true;
    memcpy(out->path, path, strlen(path) + 1);
    return STATUS_OK;
}

static bool parse_port(const char *text, uint16_t *port)
{
    char *end;

    if (*text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    if (errno != 0 || *end != '\0' || n == 0 || n > 65535) return false;
    *port = (uint16_t)n;
    return true;
}

enum status address_of_url(const char *url, struct address *out, struct error *e)
{
    memset(out, 0, sizeof *out);
    if (strncmp(url, "ipc://", 6) == 0) return parse_path(url, url + 6, out, e);
    if (strncmp(url, "unix://", 7) == 0) return parse_path(url, url + 7, out, e);
    if (strncmp(url, "tcp://", 6) != 0) return bad_url(url, "it begins with neither tcp:// nor ipc://", e);

    const char *host = url + 6, *colon = strrchr(host, ':');
    if (colon == NULL) return bad_url(url, "the port is missing", e);
    size_t size = (size_t)(colon - host);
    if (size >= 2 && host[0] == '[' && host[size - 1] == ']') {
        host++;
        size -= 2;
    }
    if (size == 0 || size >= sizeof out->host) return bad_url(url, "the host is missing or too long", e);
    if (!parse_port(colon + 1, &out->port)) return bad_url(url, "the port is no number from 1 to 65535", e);
    memcpy(out->host, host, size);
    return STATUS_OK;
}

void address_text(const struct address *a, char text[ADDRESS_TEXT_MAX])
{
    bool six = strchr(a->host, ':') != NULL;

    if (a->is_path) snprintf(text, ADDRESS_TEXT_MAX, "ipc://%s", a->path);
    else snprintf(text, ADDRESS_TEXT_MAX, "tcp://%s%s%s:%u", six ? "[" : "", a->host, six ? "]" : "", a->port);
}
