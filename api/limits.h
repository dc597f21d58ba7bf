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
    TOKEN_SIZE_MIN = 16,             /* of a daemon's; fewer can be guessed */
    JSON_SIZE_MAX = 1 << 20,         /* of a control method's document */
    JSON_DEPTH_MAX = 32,
    DIMS_MAX = 8,
    ENTRIES_MAX = 32768,             /* keys in one frame */
    STATS_KEYS_MAX = 256,            /* whose norms one request asks for */
    FAULT_TEXTS_MAX = 64,            /* entries of one answer that are refused with a sentence; others with the code */

    STORES_MAX = 1024,
    STORES_OF_CLIENT_MAX = 64,       /* that one has created, and that it has joined */
    WORKERS_MAX = 4096,              /* of one store, those that have left included until the job ends */
    KEYS_MAX = 1 << 24,              /* of one store */
    KEY_COST = 1024,                 /* what a key counts for, besides its bytes, where memory is capped */
    SESSIONS_MAX = 16384,            /* clients known to the daemon */
    WAITS_MAX = 64,                  /* Wait requests of one client that hang at once */
    CONDITIONS_MAX = 2 * 32768,      /* of them together */
    NOTES_MAX = 16,                  /* failed contributions remembered with their sentence for one worker */
    BARRIERS_MAX = 256,              /* of one store that somebody waits at */
    BARRIERS_OF_WORKER_MAX = 16,     /* that one has come to and that are not complete */
    STAGINGS_MAX = 256,              /* values of one client that have begun to arrive */
    RANGES_MAX = 4096,               /* pieces with gaps between them that a value may arrive in */
    STATE_COPIES_MAX = 16,           /* states that one client fetches in parts at once */
    PLANE_KEYS_MAX = 1024,           /* of one call on a plane */
    PLANE_LOOK_MS = 100,             /* how often a group that joins or works is asked how it stands */
    PLANE_VERDICT_MS = 500,          /* so long a broken group is not told of, in case it becomes known who is gone */
    DEDUPE_WINDOW = 256,             /* named requests of one client that are remembered; 4 x what may be in flight */

    /* Of an updater program. A block of every register, 1 KiB each, stays in the first-level cache with the value,
     * the gradient and the slots. */
    PROGRAM_TEXT_SIZE_MAX = 8192,    /* bytes */
    PROGRAM_DEPTH_MAX = 48,          /* signs, powers, calls and parentheses within one another */
    PROGRAM_NODES_MAX = 1024,        /* numbers, names and operations */
    PROGRAM_PARAMS_MAX = 16,
    PROGRAM_SLOTS_MAX = 8,
    PROGRAM_LOCALS_MAX = 64,         /* names that it gives to values of its own */
    PROGRAM_NAME_SIZE_MAX = 32,
    PROGRAM_NUMBER_SIZE_MAX = 40,    /* digits, point and exponent of one number */
    PROGRAM_HOST_MAX = 192,          /* operations and leaves of the part that runs once a step */
    PROGRAM_SCALARS_MAX = 48,        /* results of that part which the element part reads */
    PROGRAM_INSTRUCTIONS_MAX = 256,  /* of the element part */
    PROGRAM_REGISTERS_MAX = 24,      /* values of an element that are wanted at once, arrays apart */
    PROGRAM_KERNELS_MAX = 16,        /* compiled, that a GPU keeps; then one makes room */
    PROGRAM_RESTED_STEPS = 256,      /* which no step has used for so many steps by other programs */

    /* Of the core's thread in one turn of its loop, in units of about 2 us: an entry of a frame, a key that is looked at,
     * WORK_BYTES that arrive. What is longer goes on in the next turn, so that a turn stays below 10 ms. */
    TURN_WORK = 1024,                /* for what comes in */
    JOB_WORK = 1024,                 /* for what earlier turns have left */
    WORK_BYTES = 8 << 10,
    WORK_INIT = 2,                   /* a new key */
    WORK_DELETE = 2,                 /* a key that goes */
    WORK_ROUND = 4,                  /* a round that fails, told to all who gave to it */
    STATES_AT_ONCE = 1024,           /* entries of a GetStates that one answer has at most */

    IN_FLIGHT_BULK = 4,              /* requests on one bulk connection */
    IN_FLIGHT_SMALL = 16,
    REP_IN_FLIGHT_REPLY_MAX = 16 << 10,  /* libnanomsg's REP drops a larger answer behind another one silently */
    SEND_QUEUE_MAX = 8 << 20,        /* bytes that wait for one reader; then nothing more is read from it */
    CONNECTIONS_MAX = 4096,          /* of one door */
    HELD_MAX = 512 << 20,            /* bytes that the bulk door holds for its peers: frames half received, and copies of
                                      * answers whose reader is slower than the value changes */
    HELD_OF_ADDRESS_MAX = HELD_MAX / 2,
    HELLO_FRAME_MAX = 64 << 10,      /* of who has not said HELLO */
    MALFORMED_MAX = 16,              /* frames in a row that are none; then the connection ends */

    MAILBOX_SIZE_MIN = 64 << 10,
    MAILBOX_SIZE_MAX = 256 << 20,    /* of a client's one; a larger value goes through it in parts */
    MAILBOXES_SIZE_MAX = 1 << 30,    /* of all together, standard */

    VERSIONS_MAX = 4,                /* of one key held at once, the newest included */
    GREETING_MS = 2000,              /* a connection says what it is, or goes */
    PROGRESS_MS = 30000,             /* a frame or a partial push that does not move for so long is dropped */
    PROGRESS_SIZE_MIN = 4 << 10,     /* bytes of a frame that do not end it; fewer in PROGRESS_MS are no move */

    PACE_MIN = 16 << 10,             /* bytes a second of a value that arrives in parts, over PACE_MS; whoever is slower */
    PACE_MS = 30000,                 /* loses its staging memory when another client waits for some */
    PACE_WAIT_MS = 5000,             /* so long after it was refused a client counts as waiting; it asks again sooner */
    DRAIN_STILL_MS = 2000,           /* while the daemon stops: a connection on which nothing moves is given up */
    WRONG_TOKENS_MAX = 10,           /* on one connection; then it ends */

    HEARTBEAT_MS = 2000,             /* of who has joined no store; Join tells a third of worker_timeout */
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
