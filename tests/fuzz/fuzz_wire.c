/* What a peer may send: bytes into a connection, and into every decoder of the protocol.
 *
 * The first byte chooses: how the connection is (side, mapping), how it places bodies and how the stream is cut. From
 * the rest every frame whose checksums the fuzzer cannot find is repaired, so that it gets past the header. */
#include "api/sp.h"
#include "service/base/mem.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct target {
    struct sp_conn *sp;
    uint8_t *memory;             /* of the present body, exactly as large: the byte behind it is an error */
    unsigned choice;
    unsigned placed;
};

static unsigned sum;             /* so that reading what was handed over is not optimised away */

static void touch(const void *at, size_t size)
{
    for (size_t i = 0; i < size; i++) sum += ((const volatile uint8_t *)at)[i];
}

static enum placement place(void *ctx, const struct incoming *in, void **at)
{
    struct target *t = ctx;

    t->placed++;
    if (t->choice % 3 == 1) {
        mem_free(t->memory);
        t->memory = mem_new(in->header.body_size);
        *at = t->memory;
        return t->memory != NULL ? PLACE_AT : PLACE_DROP;
    }
    return t->choice % 3 == 0 ? PLACE_SCRATCH : PLACE_DROP;
}

struct answer {
    struct outgoing o;
    struct segment segment;
    uint8_t body[64];
};

static void answer_done(struct outgoing *o, bool sent)
{
    (void)sent;
    buf_fini(&o->head);
    mem_free(CONTAINER_OF(o, struct answer, o));
}

static void decode(struct bytes b)
{
#define DECODE(name, LIST)                                  \
    {                                                       \
        struct reader r = reader_of(b);                     \
        struct wire_##name m;                               \
        while (wire_get_##name(&r, &m)) touch(&m, 1);       \
        reader_pad(&r, b.at, 8);                            \
    }
    WIRE_MESSAGES(DECODE)
#undef DECODE
}

static void frame(void *ctx, const struct incoming *in)
{
    struct target *t = ctx;
    struct wire_header h = in->header;

    touch(in->fixed.at, in->fixed.size);
    touch(in->desc.at, in->desc.size);
    if (in->body != NULL) touch(in->body, in->header.body_size);
    if (in->status != STATUS_OK) {
        if (in->error->text[0] == '\0') abort();
        return;
    }
    decode(in->desc);
    struct answer *a = mem_zero(sizeof *a);
    if (a == NULL) return;
    a->segment = (struct segment){a->body, sizeof a->body, a};
    a->o = (struct outgoing){.id = in->id, .segments = &a->segment, .segment_count = 1, .done = answer_done};
    (void)wire_head_write(&a->o.head, &h, (struct bytes){0}, (struct bytes){0}, sizeof a->body, NULL, 0);
    sp_send(t->sp, &a->o);
    if (t->choice & 64) (void)sp_detach(t->sp, a, NULL);
}

static const struct sp_handler handler = {place, frame};

/* Makes headers whose checksum is wrong right, wherever the magic stands. */
static void repair(uint8_t *at, size_t size)
{
    for (size_t i = 0; i + WIRE_HEADER_SIZE <= size; i++) {
        if (memcmp(at + i, "PRMD", 4) != 0) continue;
        uint32_t crc = crc32c(0, at + i, WIRE_HEADER_SIZE - 4);
        for (int k = 0; k < 4; k++) at[i + WIRE_HEADER_SIZE - 4 + (size_t)k] = (uint8_t)(crc >> (8 * k));
    }
}

static void run(struct target *t, int tap, const uint8_t *at, size_t size)
{
    struct error e;
    size_t bite = t->choice & 128 ? 1 : 8192;        /* growing, so that a long input costs few calls */
    char sink[4096];

    while (size > 0) {
        size_t n = size < bite ? size : bite;
        bite += bite / 8 + 1;
        ssize_t k = send(tap, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k <= 0) return;
        at += k;
        size -= (size_t)k;
        if (sp_read(t->sp, 1 << 16, &e) != STATUS_OK || sp_write(t->sp, &e) != STATUS_OK) return;
        if (t->choice & 32 && t->placed % 3 == 2) sp_discard(t->sp);
        while (recv(tap, sink, sizeof sink, MSG_DONTWAIT) > 0) continue;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct target t = {0};
    struct error e;
    int fds[2];

    if (size < 1 || size > 1 << 16 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) return 0;
    uint8_t *copy = mem_new(size);
    if (copy == NULL) abort();
    memcpy(copy, data, size);
    repair(copy, size);
    decode(bytes_of(copy + 1, size - 1));
    struct wire_header h;
    (void)wire_header_read(bytes_of(copy + 1, size - 1), size - 1, &h, &e);
    t.choice = copy[0];
    unsigned self = t.choice & 4 ? SP_REQ : SP_REP;
    if (sp_new(fds[0], self, t.choice & 8, FRAME_SIZE_MAX, &handler, &t, &t.sp, &e) != STATUS_OK) abort();
    run(&t, fds[1], copy + 1, size - 1);
    sp_trim(t.sp);
    sp_free(t.sp);
    close(fds[1]);
    mem_free(t.memory);
    mem_free(copy);
    return 0;
}
