/* A client for tests: talks to a server in the same process, without sockets, threads or a clock of its own. Frames are
 * made with api/wire.h, so these tests state what the protocol does, and the device underneath can be any.
 *
 * A call that fails ends the test, except through the `try_` forms, which give back the status and the sentence. */
#ifndef TESTS_LIB_DIRECT_H
#define TESTS_LIB_DIRECT_H

#include "api/wire.h"
#include "service/server.h"

#include <jansson.h>

struct fixture {
    struct device *device;
    struct server *server;
    uint64_t now_ms;
    bool in_turns;
};

/* Takes the device. */
struct fixture *fixture_new(struct device *device, uint64_t staging_max);
void fixture_free(struct fixture *f);
void fixture_advance(struct fixture *f, uint64_t ms);        /* time passes, in one step */
/* For devices that defer: runs all that is outstanding. */
void fixture_settle(struct fixture *f);
/* From now on the server works in turns, as in the daemon's loop: each request comes in a turn of its own, settling takes
 * as many as are needed, and what is long is cut into pieces. */
void fixture_begin_turns(struct fixture *f);
void fixture_turn(struct fixture *f);                        /* one turn, in which nothing comes in */

/* One connection of one client. */
struct client {
    struct fixture *fixture;
    struct peer *peer;
    struct wire_id id;
    uint32_t epoch, session, next_id;
    uint64_t sequence;
    uint32_t store, rank;
    struct answered *answers;        /* that have come and were not taken */
    bool held;                       /* the server still works on the last frame */
    struct buf head;                 /* of it, kept as long */
    void *body;
};

/* An answer, owned by the taker. */
struct answered {
    struct answered *next;
    uint32_t id;
    struct wire_header header;
    uint8_t *bytes;
    struct bytes fixed, desc, body;
};
void answered_free(struct answered *a);

struct client *client_connect(struct fixture *f, unsigned number);       /* without hello */
struct client *client_new(struct fixture *f, unsigned number);           /* connects and says hello */
struct client *client_again(struct client *c);                           /* another connection of the same start */
void client_gone(struct client *c);                                      /* the connection ends; frees c */

/* Sends; the answer comes by client_take(id), at once or after time or the device have moved on (NULL: not yet). */
uint32_t client_send(struct client *c, unsigned method, unsigned flags, uint64_t sequence, struct bytes fixed,
                     struct bytes desc, struct bytes body);
struct answered *client_take(struct client *c, uint32_t id);
/* Takes after settling the device; ends the test when there is none. */
struct answered *client_await(struct client *c, uint32_t id);

/* JSON methods. The format is of json_pack's text kind: plain JSON. NULL with *e filled when refused. */
json_t *try_json(struct client *c, unsigned method, struct error *e, const char *format, ...) PRINTF_LIKE(4, 5);
void do_json(struct client *c, unsigned method, const char *format, ...) PRINTF_LIKE(3, 4);
/* Creates (or finds) the store "s" with these options, e.g. "\"type\": \"dist_sync\", \"num_workers\": 2", and joins. */
void client_join(struct client *c, const char *options);
/* One that does, as a client_new. */
struct client *client_joined(struct fixture *f, unsigned number, const char *options);

/* Float keys with integer names; one entry a frame. */
enum status try_init(struct client *c, int64_t key, const float *value, size_t count, uint64_t call, int on_reinit,
                     enum init_outcome *outcome, uint64_t *id, struct error *e);
uint64_t do_init(struct client *c, int64_t key, float value, size_t count);              /* answers the key's id */
enum status try_push(struct client *c, uint64_t id, uint64_t step, const void *value, size_t size, enum dtype t,
                     struct error *e);
void do_push(struct client *c, uint64_t id, uint64_t step, float value, size_t count);
enum status try_pull(struct client *c, uint64_t id, uint64_t version, void *out, size_t size, uint64_t *got,
                     struct error *e);
/* The value's first element; all must be equal. */
float do_pull(struct client *c, uint64_t id, size_t count);
enum wait_state do_wait(struct client *c, unsigned kind, uint64_t key, uint64_t number, uint32_t time_ms,
                        struct error *e);

#endif
