#include "api/client/client_options.h"

#include "api/client/documents.h"
#include "service/updater.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define URL_STANDARD "tcp://127.0.0.1:7700"
enum { DATA_CONNECTIONS_MAX = 8, MAILBOX_SIZE = 128 << 20 };

struct option {
    const json_t *value;
    const char *name;
    struct client_options *out;
};

typedef enum status option_read(const struct option *o, struct error *e);

static enum status wrong(const struct option *o, const char *wanted, struct error *e)
{
    char *have = json_dumps(o->value, JSON_ENCODE_ANY);
    enum status s = error_set(e, REASON_BAD_ARGUMENT, "option \"%s\" is %.100s: it must be %s", o->name,
                              have != NULL ? have : "?", wanted);
    free(have);
    return s;
}

/* ---- one reader for each kind ----------------------------------------------------------------------------------- */

/* Goes to the daemon as it was written, which knows its bounds; here only the kind is checked. */
static enum status forward(const struct option *o, struct error *e)
{
    char *value = json_dumps(o->value, JSON_ENCODE_ANY);

    if (value == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for option \"%s\"", o->name);
    buf_format(&o->out->create, ",\"%s\":%s", o->name, value);
    free(value);
    return STATUS_OK;
}

static enum status read_count(const struct option *o, struct error *e)
{
    if (!json_is_integer(o->value) || json_integer_value(o->value) < 0)
        return wrong(o, "a whole number that is not negative", e);
    return forward(o, e);
}

static enum status read_seconds(const struct option *o, struct error *e)
{
    bool fits = json_is_number(o->value) && json_number_value(o->value) > 0;

    return fits ? forward(o, e) : wrong(o, "a number of seconds above 0", e);
}

static enum status read_word(const struct option *o, struct error *e)
{
    return json_is_string(o->value) ? forward(o, e) : wrong(o, "a string", e);
}

static enum status read_store(const struct option *o, struct error *e)
{
    if (!json_is_string(o->value)) return wrong(o, "a string", e);
    o->out->store_named = true;
    buf_clear(&o->out->find);
    buf_text(&o->out->find, "{\"store\":");
    doc_put_text(&o->out->find, bytes_of(json_string_value(o->value), json_string_length(o->value)));
    buf_text(&o->out->find, "}");
    return forward(o, e);
}

static enum status read_flag(const struct option *o, struct error *e)
{
    return json_is_boolean(o->value) ? forward(o, e) : wrong(o, "true or false", e);
}

static enum status read_connect(const struct option *o, struct error *e)
{
    double ms = json_is_number(o->value) ? ceil(json_number_value(o->value) * 1000) : 0;

    if (!(ms >= 1 && ms <= TIMEOUT_MAX_MS)) return wrong(o, "a number of seconds from 0.001 to a week", e);
    o->out->connect_ms = (uint32_t)ms;
    return STATUS_OK;
}

static enum status copy_text(const struct option *o, char *to, size_t size_max, struct error *e)
{
    size_t size = json_is_string(o->value) ? json_string_length(o->value) : 0;

    if (size == 0 || size > size_max || strlen(json_string_value(o->value)) != size)
        return wrong(o, "a string that is neither empty nor too long", e);
    memcpy(to, json_string_value(o->value), size + 1);
    return STATUS_OK;
}

static enum status read_url(const struct option *o, struct error *e)
{
    return copy_text(o, o->out->url, sizeof o->out->url - 1, e);
}

static enum status read_token(const struct option *o, struct error *e)
{
    return copy_text(o, o->out->token, TOKEN_SIZE_MAX, e);
}

static enum status read_worker_name(const struct option *o, struct error *e)
{
    return copy_text(o, o->out->worker_name, WORKER_NAME_SIZE_MAX, e);
}

static int hexadecimal(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static enum status read_worker_id(const struct option *o, struct error *e)
{
    const char *text = json_string_value(o->value);
    bool fits = text != NULL && strlen(text) == 32, some = false;

    for (size_t i = 0; fits && i < 16; i++) {
        int high = hexadecimal(text[2 * i]), low = hexadecimal(text[2 * i + 1]);
        fits = high >= 0 && low >= 0;
        if (fits) o->out->worker.at[i] = (uint8_t)(high * 16 + low);
        some |= fits && (high | low) != 0;
    }
    if (!fits || !some) return wrong(o, "32 hexadecimal digits that are not all zero", e);
    o->out->own_worker = true;
    return STATUS_OK;
}

static enum status on_reinit_of(const char *word, enum on_reinit *out, struct error *e)
{
    static const char *const words[] = {"error", "replace", "keep"};

    for (unsigned i = 0; i < 3; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        *out = (enum on_reinit)i;
        return STATUS_OK;
    }
    return error_set(e, REASON_BAD_ARGUMENT, "on_reinit \"%.50s\" is none of error, replace, keep", word);
}

static enum status read_on_reinit(const struct option *o, struct error *e)
{
    if (!json_is_string(o->value)) return wrong(o, "\"error\", \"replace\" or \"keep\"", e);
    return on_reinit_of(json_string_value(o->value), &o->out->on_reinit, e);
}

static enum status read_engine(const struct option *o, struct error *e)
{
    const char *word = json_string_value(o->value);

    if (word == NULL || (strcmp(word, "own") != 0 && strcmp(word, "nanomsg") != 0))
        return wrong(o, "\"own\" or \"nanomsg\"", e);
    o->out->nanomsg = strcmp(word, "nanomsg") == 0;
    return STATUS_OK;
}

static enum status read_bulk(const struct option *o, struct error *e)
{
    if (!json_is_boolean(o->value)) return wrong(o, "true or false", e);
    o->out->bulk = json_is_true(o->value);
    return STATUS_OK;
}

static enum status read_join(const struct option *o, struct error *e)
{
    if (!json_is_boolean(o->value)) return wrong(o, "true or false", e);
    o->out->join = json_is_true(o->value);
    return STATUS_OK;
}

static enum status read_connections(const struct option *o, struct error *e)
{
    json_int_t n = json_integer_value(o->value);

    if (n < 1 || n > DATA_CONNECTIONS_MAX) return wrong(o, "a whole number from 1 to 8", e);
    o->out->connections = (unsigned)n;
    return STATUS_OK;
}

static enum status read_mailbox(const struct option *o, struct error *e)
{
    json_int_t n = json_integer_value(o->value);

    if (!json_is_integer(o->value) || (n != 0 && n < MAILBOX_SIZE_MIN) || n > MAILBOX_SIZE_MAX)
        return wrong(o, "0, or bytes from 65536 to 268435456", e);
    o->out->mailbox = (uint64_t)n;
    return STATUS_OK;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

#define OPTIONS(X)                      \
    X(url, url)                         \
    X(store, store)                     \
    X(num_workers, count)               \
    X(worker_name, worker_name)         \
    X(worker_id, worker_id)             \
    X(round_timeout, seconds)           \
    X(start_timeout, seconds)           \
    X(connect_timeout, connect)         \
    X(worker_timeout, seconds)          \
    X(on_reinit, on_reinit)             \
    X(async_default, word)              \
    X(on_missing, word)                 \
    X(min_workers, count)               \
    X(on_late, word)                    \
    X(sum_order, word)                  \
    X(elastic, flag)                    \
    X(versions_max, count)              \
    X(token, token)                     \
    X(engine, engine)                   \
    X(bulk, bulk)                       \
    X(join, join)                       \
    X(connections, connections)         \
    X(mailbox, mailbox)

static const struct {
    const char *name;
    option_read *read;
} rows[] = {
#define OPTION_ROW(name, kind) {#name, read_##kind},
    OPTIONS(OPTION_ROW)
#undef OPTION_ROW
};

static const char *const names[] = {
#define OPTION_NAME(name, kind) #name,
    OPTIONS(OPTION_NAME)
#undef OPTION_NAME
    NULL
};

static option_read *find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].read;
    return NULL;
}

static enum status read_one(const struct option *o, struct error *e)
{
    option_read *read = find(o->name);

    if (read != NULL) return json_is_null(o->value) ? STATUS_OK : read(o, e);
    const char *near = nearest_name(bytes_text(o->name), names);
    return error_set(e, REASON_UNKNOWN_FIELD, "there is no option \"%.60s\"%s%s%s", o->name,
                     near != NULL ? "; did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?" : "");
}

static enum status read_all(json_t *document, struct client_options *out, struct error *e)
{
    struct option o = {.out = out};
    json_t *value;

    if (!json_is_object(document)) return error_set(e, REASON_BAD_JSON, "options are a JSON object");
    json_object_foreach(document, o.name, value) {
        o.value = value;
        enum status s = read_one(&o, e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

static enum status read_text(const char *text, struct client_options *out, struct error *e)
{
    json_error_t why;
    json_t *document = json_loads(text, JSON_REJECT_DUPLICATES, &why);

    if (document == NULL) return error_set(e, REASON_BAD_JSON, "options: line %d: %s", why.line, why.text);
    enum status s = read_all(document, out, e);
    json_decref(document);
    return s;
}

static enum status from_environment(struct client_options *o, struct error *e)
{
    const char *again = getenv("PARAMD_ON_REINIT"), *token = getenv("PARAMD_TOKEN");

    if (token != NULL && strlen(token) > TOKEN_SIZE_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "PARAMD_TOKEN is longer than %d bytes", TOKEN_SIZE_MAX);
    if (token != NULL) memcpy(o->token, token, strlen(token) + 1);
    return again != NULL && *again != '\0' ? on_reinit_of(again, &o->on_reinit, e) : STATUS_OK;
}

/* As the daemon reads it: without the end of its line. */
static enum status token_of_file(struct client_options *o, struct error *e)
{
    const char *path = getenv("PARAMD_TOKEN_FILE");
    int fd;

    if (o->token[0] != '\0' || path == NULL || *path == '\0') return STATUS_OK;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, o->token, sizeof o->token) : -1;
    int why = errno;
    if (fd >= 0) close(fd);
    bool whole = n < (ssize_t)sizeof o->token;
    while (n > 0 && whole && (o->token[n - 1] == '\n' || o->token[n - 1] == '\r' || o->token[n - 1] == ' ')) n--;
    o->token[n > 0 && whole ? n : 0] = '\0';
    if (n > 0 && whole) return STATUS_OK;
    return error_set(e, REASON_BAD_ARGUMENT, "PARAMD_TOKEN_FILE %.200s: %s", path,
                     n < 0 ? strerror(why) : "a token has 1 to 4096 bytes");
}

/* A type that lives in the process goes to a daemon only when a url was written down for it. */
static enum status choose_url(const struct client_type *type, struct client_options *o, struct error *e)
{
    const char *url = getenv("PARAMD_URL");

    o->embedded = type->embedded && o->url[0] == '\0';
    if (o->embedded && !o->join)
        return error_set(e, REASON_BAD_ARGUMENT, "\"join\": false is for looking into a daemon; a store inside the "
                         "process is always the caller's");
    if (o->embedded) return STATUS_OK;
    if (url == NULL || *url == '\0') url = URL_STANDARD;
    if (o->url[0] == '\0') {
        if (strlen(url) >= sizeof o->url) return error_set(e, REASON_BAD_ARGUMENT, "PARAMD_URL is too long");
        memcpy(o->url, url, strlen(url) + 1);
    }
    enum status s = address_of_url(o->url, &o->front, e);
    return s == STATUS_OK ? token_of_file(o, e) : s;
}

enum status client_options_read(const struct client_type *type, const char *document, struct client_options *out,
                                struct error *e)
{
    memset(out, 0, sizeof *out);
    out->connect_ms = CONNECT_TIMEOUT_MS;
    out->bulk = true;
    out->join = true;
    out->connections = 1;
    out->mailbox = MAILBOX_SIZE;
    out->needs_gpu = strcmp(type->canonical, "nccl") == 0;
    buf_format(&out->create, "{\"type\":\"%s\"", type->canonical);

    enum status s = from_environment(out, e);
    if (s == STATUS_OK && document != NULL) s = read_text(document, out, e);
    if (s == STATUS_OK) s = choose_url(type, out, e);
    if (!out->store_named) buf_text(&out->create, ",\"store\":\"default\"");
    buf_text(&out->create, "}");
    if (s == STATUS_OK && (out->create.failed || out->find.failed)) s = error_set(e, REASON_NO_MEMORY, "no memory for the options");
    if (s != STATUS_OK) client_options_fini(out);
    return s;
}

void client_options_fini(struct client_options *o)
{
    buf_fini(&o->create);
    buf_fini(&o->find);
    memset(o, 0, sizeof *o);
}
