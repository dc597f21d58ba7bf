/* What a client may write into a document: every JSON method with any body, the options of a store, updaters and type
 * names. The first byte chooses the method, the second how the rest becomes the text: as it is or byte by byte out of a
 * table of words, bare or in braces behind a valid "store".
 *
 *   build/fuzz/fuzz_json -max_total_time=180 build/fuzz/corpus_json
 *   (link: all of service/base api gpu service but main, settings, notify and transport_*) */
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MUST(condition)                                                                             \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                                \
        }                                                                                           \
    } while (0)

static struct server *server;
static struct device *device;
static struct peer *peer;
static uint32_t epoch, session, answers;
static uint64_t store, sequence;

static void answer(void *link, struct outgoing *o)
{
    struct buf body = {0};
    struct wire_header h;
    struct error e;

    (void)link;
    answers++;
    for (size_t i = 0; i < o->segment_count; i++) buf_add(&body, o->segments[i].at, o->segments[i].size);
    (void)buf_room(&body, 1);
    MUST(wire_header_read(bytes_of(o->head.at, o->head.size), o->head.size + body.size - 1, &h, &e) == STATUS_OK);
    MUST(bytes_is_utf8(bytes_of(body.at, body.size - 1)));
    MUST(reason_status((enum reason)h.reason) == h.status);
    if (h.status == STATUS_OK) {
        json_t *j = json_loadb((const char *)body.at, body.size - 1, 0, NULL);
        MUST(j != NULL);
        if (h.method == WIRE_Hello) {
            epoch = (uint32_t)json_integer_value(json_object_get(j, "epoch"));
            session = (uint32_t)json_integer_value(json_object_get(j, "session"));
        }
        if (h.method == WIRE_Create) store = (uint64_t)json_integer_value(json_object_get(j, "id"));
        json_decref(j);
    }
    buf_fini(&body);
    o->done(o, true);
}

static void detach(void *link, const void *owner) { (void)link, (void)owner; }
static void discard(void *link) { (void)link; }
static const struct peer_ops ops = {.door = "fuzz", .answer = answer, .detach = detach, .discard = discard};

static void ask(unsigned method, struct bytes body)
{
    static const struct wire_id id = {{1}};
    uint64_t seq = wire_method_flags(method) & WIRE_WRITES ? ++sequence : 0;
    struct wire_header h = {.method = (uint8_t)method, .worker = id, .epoch = epoch, .session = session,
                            .sequence = seq, .body_size = body.size};
    struct incoming in = {.id = 1, .header = h, .fixed = {"", 0}, .desc = {"", 0}, .body = (void *)(uintptr_t)body.at};
    uint32_t before = answers;
    void *at;

    if (body.size > 0) MUST(server_place(peer, &in, &at) != PLACE_AT);
    server_frame(peer, &in);
    MUST(answers == before + 1);
}

static void set_up(void)
{
    struct server_config c = {.seed = {7}, .instance = {{1}}};
    struct error e;

    MUST(cpu_device_new(1, &device, &e) == STATUS_OK);
    c.device = device;
    MUST(server_new(&c, 1000, &server, &e) == STATUS_OK);
    MUST(server_peer_new(server, &ops, &answers, "fuzz", &peer, &e) == STATUS_OK);
    epoch = session = 0;
    ask(WIRE_Hello, bytes_text("{}"));
    ask(WIRE_Create, bytes_text("{\"store\": \"s\", \"type\": \"dist_async\"}"));
    ask(WIRE_Join, bytes_text("{\"store\": \"s\"}"));
    ask(WIRE_Barrier, bytes_text("{\"store\": \"s\", \"name\": \"x\"}"));
}

static void parsers(struct bytes text)
{
    struct store_options options;
    struct updater *u = NULL, *again = NULL;
    enum store_mode mode;
    char type[64];
    struct error e = {.text = ""};
    json_t *j = json_loadb(text.at, text.size, 0, NULL);

    if (json_is_object(j)) {
        if (options_parse(j, (const char *const[]){"store", NULL}, &options, &e) != STATUS_OK)
            MUST(bytes_is_utf8(bytes_text(e.text)) && e.text[0] != '\0');
        else MUST(options_agree(&options, &options, "s", &e) == STATUS_OK);
    }
    json_decref(j);
    if (updater_parse(text, &u, &e) == STATUS_OK) {
        MUST(updater_parse(bytes_text(updater_text(u)), &again, &e) == STATUS_OK && updater_equal(u, again));
    } else {
        MUST(bytes_is_utf8(bytes_text(e.text)) && e.text[0] != '\0');
    }
    updater_drop(u);
    updater_drop(again);
    if (bytes_is_utf8(text) && type_parse(text, type, &mode, &e) != STATUS_OK)
        MUST(bytes_is_utf8(bytes_text(e.text)));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    log_set_level(LOG_OFF);
    json_set_alloc_funcs(mem_new, mem_free);
    return 0;
}

static const char *const words[] = {
    "{", "}", "[", "]", ",", ":", "{}", "[]", "null", "true", "false", "0", "1", "-1", "2", "4", "0.5", "1e30", "-0.0",
    "4294967296", "9223372036854775807", "-9223372036854775808", "1e400", "\"\"", "\"a\"", "\"s\"", "\"\\u0000\"",
    "\"\xc3\xa9\"", "\"\xff\"", "\"store\":", "\"name\":", "\"key\":", "\"keys\":", "\"force\":", "\"prefix\":",
    "\"after\":", "\"limit\":", "\"updater\":", "\"type\":", "\"worker\":", "\"token\":", "\"client\":", "\"etag\":",
    "\"dry_run\":", "\"dist_sync\"", "\"dist_async\"", "\"local\"", "\"dist_device_sync\"", "\"nccl\"", "\"p3\"",
    "\"sgd\"", "\"adam\"", "\"add\"", "\"average\"", "\"sdg\"", "\"learning_rate\":", "\"momentum\":", "\"wd\":",
    "\"rescale_grad\":", "\"clip_gradient\":", "\"beta1\":", "\"epsilon\":", "\"lerning_rate\":",
#define OPTION_WORD(kind, name, standard, least, most, choices) "\"" #name "\":",
    STORE_OPTIONS(OPTION_WORD)
#undef OPTION_WORD
    "\"fail\"", "\"proceed\"", "\"drop\"", "\"carry\"", "\"apply\"", "\"arrival\"", "\"rank\"", "\"assign\"",
    "\"error\"", "\"x\"", "\"y\"", "\"dist_sync_async\"", "\"local_dist\"", "\"a_\"",
};

static void write_text(struct buf *text, const uint8_t *data, size_t size, unsigned how)
{
    if (how & 1) buf_format(text, "{\"store\": %llu, ", (unsigned long long)store);
    if (how & 2)
        for (size_t i = 0; i < size; i++) buf_text(text, words[data[i] % (sizeof words / sizeof words[0])]);
    else buf_add(text, data, size);
    if (how & 1) buf_text(text, "}");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf text = {0};
    int64_t live = mem_live();

    if (size < 2) return 0;
    set_up();
    write_text(&text, data + 2, size - 2, data[1]);
    struct bytes body = bytes_of(text.size > 0 ? text.at : (const uint8_t *)"", text.size);
    unsigned method = data[0] % WIRE_METHODS_END;
    if (wire_method_is_json(method)) ask(method, body);
    parsers(body);
    ask(WIRE_Stats, bytes_text("{}"));
    buf_fini(&text);
    server_peer_gone(peer);
    server_free(server);
    device_free(device);
    MUST(mem_live() == live);
    return 0;
}
