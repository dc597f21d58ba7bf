/* Every bound of the protocol and of the store, each with its reason. A number that enters is compared with its bound
 * before it is added to, multiplied or allocated. */
#ifndef API_LIMITS_H
#define API_LIMITS_H

#define KIB(n) ((size_t)(n) << 10)
#define MIB(n) ((size_t)(n) << 20)

enum {
    WIRE_VERSION = 1,
    WIRE_HEADER_SIZE = 76,           /* = 12 mod 16: with the 4-byte request id in front the body can be 16-aligned */
    WIRE_ALIGN = 16,                 /* where tensor bytes begin, counted from the request id */

    /* Above 32 MiB allocating libraries fall off a cliff (fresh page faults), below 256 KiB the calls cost too much. */
    PART_SIZE = 1 << 20,             /* of a large value, standard */
    PART_SIZE_MIN = 256 << 10,
    PART_SIZE_MAX = 4 << 20,
    FRAME_SIZE_MAX = (4 << 20) + (64 << 10),     /* a whole SP message with the request id */
    FRAME_HEAD_MAX = 2 << 20,        /* header, fixed fields and descriptors of one frame */
    BATCH_SIZE = 1 << 20,            /* small values are gathered into frames of about this */
    SMALL_VALUE_SIZE = 16 << 10,     /* up to this a value is copied into an answer; above, the answer refers to it */

    KEY_NAME_SIZE_MAX = 512,
    STORE_NAME_SIZE_MAX = 128,
    WORKER_NAME_SIZE_MAX = 128,
    BARRIER_NAME_SIZE_MAX = 128,
    TOKEN_SIZE_MAX = 4096,
    JSON_SIZE_MAX = 1 << 20,         /* of a control method's document */
    JSON_DEPTH_MAX = 32,
    DIMS_MAX = 8,
    ENTRIES_MAX = 32768,             /* keys in one frame */
    FAULT_TEXTS_MAX = 64,            /* entries of one answer that are refused with a sentence; others with the code */

    STORES_MAX = 1024,
    WORKERS_MAX = 4096,              /* of one store, those that have left included until the job ends */
    KEYS_MAX = 1 << 24,              /* of one store */
    SESSIONS_MAX = 16384,            /* clients known to the daemon */
    WAITS_MAX = 64,                  /* Wait requests of one client that hang at once */
    NOTES_MAX = 256,                 /* failed contributions remembered for one worker */
    DEDUPE_WINDOW = 256,             /* named requests of one client that are remembered; 4 x what may be in flight */

    IN_FLIGHT_BULK = 4,              /* requests on one bulk connection */
    IN_FLIGHT_SMALL = 16,
    REP_IN_FLIGHT_REPLY_MAX = 16 << 10,  /* libnanomsg's REP drops a larger answer behind another one silently */
    SEND_QUEUE_MAX = 8 << 20,        /* bytes that wait for one reader; then nothing more is read from it */
    CONNECTIONS_MAX = 4096,

    VERSIONS_MAX = 4,                /* of one key held at once, the newest included */
    GREETING_MS = 2000,              /* a connection says what it is, or goes */
    PROGRESS_MS = 30000,             /* a frame or a partial push that does not move for so long is dropped */

    HEARTBEAT_MS = 2000,
    WORKER_TIMEOUT_MS = 10000,
    ROUND_TIMEOUT_MS = 60000,
    START_TIMEOUT_MS = 60000,
    CONNECT_TIMEOUT_MS = 5000,
    DEADLINE_SLACK_MS = 10000,       /* a client's deadline lies so much behind the daemon's, whose error names names */
    TIMEOUT_MAX_MS = 7 * 24 * 3600 * 1000,
    WAIT_MAX_MS = 1000,              /* one Wait hangs at most so long; the client asks again */
    RETRY_MS = 20                    /* what a refused push is told to wait */
};

#define VALUE_SIZE_MAX ((uint64_t)1 << 40)   /* bytes of one dense value */

#endif
