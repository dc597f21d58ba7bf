/* Statuses, reasons and errors: what can go wrong, written once.
 *
 * STATUSES are gRPC's canonical codes with their numbers, so that any client library has a name for them.
 * REASONS are the distinct refusals of paramd: a stable code that a program may compare, the status it
 * belongs to, the HTTP code it becomes, and a title. A sentence for the person at hand is written where the
 * failure is known (error_set) and passed up untouched.
 *
 * Any thread. Nothing here allocates. */
#ifndef SERVICE_BASE_STATUS_H
#define SERVICE_BASE_STATUS_H

#include <stdint.h>

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(text, args) __attribute__((format(printf, text, args)))

/*    name                 wire  text */
#define STATUSES(X)                                             \
    X(OK,                    0, "ok")                           \
    X(CANCELLED,             1, "cancelled")                    \
    X(UNKNOWN,               2, "unknown error")                \
    X(INVALID_ARGUMENT,      3, "invalid argument")             \
    X(DEADLINE_EXCEEDED,     4, "deadline exceeded")            \
    X(NOT_FOUND,             5, "not found")                    \
    X(ALREADY_EXISTS,        6, "already exists")               \
    X(PERMISSION_DENIED,     7, "permission denied")            \
    X(RESOURCE_EXHAUSTED,    8, "resource exhausted")           \
    X(FAILED_PRECONDITION,   9, "failed precondition")          \
    X(ABORTED,              10, "aborted")                      \
    X(OUT_OF_RANGE,         11, "out of range")                 \
    X(UNIMPLEMENTED,        12, "unimplemented")                \
    X(INTERNAL,             13, "internal error")               \
    X(UNAVAILABLE,          14, "unavailable")                  \
    X(DATA_LOSS,            15, "data loss")                    \
    X(UNAUTHENTICATED,      16, "unauthenticated")

enum status {
#define STATUS_ENUM(name, wire, text) STATUS_##name = wire,
    STATUSES(STATUS_ENUM)
#undef STATUS_ENUM
};

/* The numbers travel in every error answer: a row keeps its number for ever, a new one goes to the end.
 *    number  name               code                    status               http  title */
#define REASONS(X)                                                                                              \
    X( 0, NONE,              "none",                 OK,                  200, "no error")                     \
    X( 1, NO_MEMORY,         "out-of-memory",        RESOURCE_EXHAUSTED,  507, "out of memory")                \
    X( 2, MALFORMED,         "malformed-frame",      INVALID_ARGUMENT,    400, "malformed frame")              \
    X( 3, BAD_ARGUMENT,      "invalid-argument",     INVALID_ARGUMENT,    400, "invalid argument")             \
    X( 4, BAD_JSON,          "malformed-json",       INVALID_ARGUMENT,    400, "malformed JSON")               \
    X( 5, UNKNOWN_FIELD,     "unknown-parameter",    INVALID_ARGUMENT,    400, "unknown field")                \
    X( 6, NO_STORE,          "no-such-store",        NOT_FOUND,           404, "no such store")                \
    X( 7, NO_KEY,            "no-such-key",          NOT_FOUND,           404, "no such key")                  \
    X( 8, NO_WORKER,         "no-such-worker",       NOT_FOUND,           404, "no such worker")               \
    X( 9, KEY_EXISTS,        "key-exists",           ALREADY_EXISTS,      409, "key exists already")           \
    X(10, STORE_DIFFERS,     "store-differs",        FAILED_PRECONDITION, 409, "store has other options")      \
    X(11, MIXED_KEYS,        "mixed-key-types",      FAILED_PRECONDITION, 409, "mixed key types")              \
    X(12, SHAPE_MISMATCH,    "shape-mismatch",       INVALID_ARGUMENT,    422, "shape or dtype differs")       \
    X(13, UPDATER_INVALID,   "validation-failed",    INVALID_ARGUMENT,    422, "updater document is invalid")  \
    X(14, UPDATER_UNFIT,     "updater-incompatible", FAILED_PRECONDITION, 422, "updater does not fit")         \
    X(15, NOT_JOINED,        "not-joined",           FAILED_PRECONDITION, 409, "worker has not joined")        \
    X(16, STALE_EPOCH,       "stale-epoch",          FAILED_PRECONDITION, 409, "a newer epoch has joined")     \
    X(17, STEP_AHEAD,        "step-ahead",           RESOURCE_EXHAUSTED,  429, "more than one step ahead")     \
    X(18, STEP_ORDER,        "step-order",           ABORTED,             409, "an earlier step is missing")   \
    X(19, STAGING_FULL,      "staging-full",         RESOURCE_EXHAUSTED,  429, "staging memory is full")       \
    X(20, IN_FLIGHT,         "in-flight-limit",      RESOURCE_EXHAUSTED,  429, "too much in flight")           \
    X(21, TOO_LARGE,         "too-large",            INVALID_ARGUMENT,    413, "too large")                    \
    X(22, WORKER_DEAD,       "worker-dead",          FAILED_PRECONDITION, 409, "a worker is dead")             \
    X(23, ROUND_FAILED,      "round-failed",         ABORTED,             409, "round failed")                 \
    X(24, ROUND_OPEN,        "round-open",           FAILED_PRECONDITION, 409, "a round is open")              \
    X(25, PUSH_LATE,         "push-late",            ABORTED,             409, "push came after its round")    \
    X(26, START_TIMEOUT,     "start-timeout",        DEADLINE_EXCEEDED,   504, "workers did not all join")     \
    X(27, DEADLINE,          "deadline",             DEADLINE_EXCEEDED,   504, "deadline exceeded")            \
    X(28, SUM_OVERFLOW,      "sum-overflow",         OUT_OF_RANGE,        422, "sum does not fit the dtype")   \
    X(29, SEQUENCE_OLD,      "sequence-too-old",     OUT_OF_RANGE,        409, "repeat is older than window")  \
    X(30, VERSION_REVOKED,   "version-revoked",      ABORTED,             409, "version no longer held")       \
    X(31, UNKNOWN_METHOD,    "unknown-method",       UNIMPLEMENTED,       501, "unknown method")               \
    X(32, UNIMPLEMENTED,     "unimplemented",        UNIMPLEMENTED,       501, "not available")                \
    X(33, NO_HELLO,          "hello-required",       FAILED_PRECONDITION, 400, "HELLO must come first")        \
    X(34, BAD_TOKEN,         "invalid-token",        UNAUTHENTICATED,     401, "token missing or wrong")       \
    X(35, DRAINING,          "draining",             UNAVAILABLE,         503, "daemon is draining")           \
    X(36, UNREACHABLE,       "unreachable",          UNAVAILABLE,         503, "no answer")                    \
    X(37, RESTARTED,         "daemon-restarted",     DATA_LOSS,           503, "daemon restarted")             \
    X(38, DEVICE_LOST,       "device-unavailable",   UNAVAILABLE,         503, "device is lost")               \
    X(39, CHECKSUM,          "checksum",             DATA_LOSS,           400, "checksum differs")             \
    X(40, CANCELLED,         "cancelled",            CANCELLED,           499, "cancelled")                    \
    X(41, CLOSED,            "closed",               FAILED_PRECONDITION, 409, "handle is closed")             \
    X(42, FORKED,            "used-after-fork",      FAILED_PRECONDITION, 409, "handle crossed a fork")        \
    X(43, UPDATER_NEEDED,    "updater-needed",       FAILED_PRECONDITION, 409, "updater needs to be set")      \
    X(44, LIMIT,             "limit-reached",        RESOURCE_EXHAUSTED,  429, "a limit is reached")           \
    X(45, SYSTEM,            "system",               UNAVAILABLE,         503, "operating system refused")     \
    X(46, INTERNAL,          "internal",             INTERNAL,            500, "internal error")               \
    X(47, REENTRANT,         "reentrant-call",       FAILED_PRECONDITION, 409, "call from inside an updater")  \
    X(48, CALLBACK_FAILED,   "callback-failed",      ABORTED,             409, "the caller's function failed") \
    X(49, KEY_DELETED,       "key-deleted",          ABORTED,             409, "key was deleted")              \
    X(50, ETAG_MISMATCH,     "etag-mismatch",        FAILED_PRECONDITION, 412, "it has changed meanwhile")     \
    X(51, ETAG_REQUIRED,     "precondition-required", FAILED_PRECONDITION, 428, "If-Match is required")        \
    X(52, NO_PATH,           "no-such-path",         NOT_FOUND,           404, "nothing is at this path")      \
    X(53, METHOD_NOT_ALLOWED, "method-not-allowed",  UNIMPLEMENTED,       405, "method not allowed here")      \
    X(54, NOT_ACCEPTABLE,    "not-acceptable",       INVALID_ARGUMENT,    406, "no such representation")       \
    X(55, MEDIA_TYPE,        "unsupported-media-type", INVALID_ARGUMENT,  415, "media type is not taken here") \
    X(56, HOST_NOT_ALLOWED,  "host-not-allowed",     PERMISSION_DENIED,   403, "Host is not this machine")     \
    X(57, ORIGIN_NOT_ALLOWED, "origin-not-allowed",  PERMISSION_DENIED,   403, "page of another origin")       \
    X(58, FRAMING,           "ambiguous-framing",    INVALID_ARGUMENT,    400, "request can be read two ways") \
    X(59, BAD_PATH,          "invalid-key",          INVALID_ARGUMENT,    400, "a name in the path is none")   \
    X(60, BAD_CURSOR,        "bad-cursor",           INVALID_ARGUMENT,    400, "cursor is not of this list")   \
    X(61, JSON_TOO_LARGE,    "value-too-large-for-json", INVALID_ARGUMENT, 413, "value is too large for JSON")   \
    X(62, NETWORK_INVALID,   "network-invalid",      INVALID_ARGUMENT,    422, "network file is invalid")      \
    X(63, NO_NETWORK,        "no-such-network",      NOT_FOUND,           404, "no such network")              \
    X(64, NO_SLOT,           "no-such-slot",         NOT_FOUND,           404, "no such slot")                 \
    X(65, NO_GPU,            "no-gpu",               FAILED_PRECONDITION, 409, "there is no usable GPU")         \
    X(66, NO_MAILBOX,        "no-such-mailbox",      NOT_FOUND,           404, "no such mailbox")              \
    X(67, NO_PLANE,          "no-plane",             FAILED_PRECONDITION, 409, "not on a plane")               \
    X(68, PLANE_BUSY,        "plane-busy",           FAILED_PRECONDITION, 409, "key is pushed on the plane")   \
    X(69, PLANE_BROKEN,      "plane-broken",         ABORTED,             409, "the plane's epoch is over")    \
    X(70, PLANE_COUNTED,     "plane-counted",        ABORTED,             409, "counted, but its values did not come") \
    X(71, KEY_FROZEN,        "key-frozen",           FAILED_PRECONDITION, 409, "pushes of the key are refused")

enum reason {
#define REASON_ENUM(number, name, code, status, http, title) REASON_##name = number,
    REASONS(REASON_ENUM)
#undef REASON_ENUM
};

enum { ERROR_TEXT_SIZE = 512 };

/* An error as it travels: filled where the failure is known. Valid only where a status other than OK came back. */
struct error {
    enum status status;
    enum reason reason;
    uint32_t retry_ms;               /* when to try again; 0: there is no point */
    char text[ERROR_TEXT_SIZE];      /* a sentence with its cure, UTF-8, always ended */
};

/* Writes the sentence and answers the reason's status, so that callers can `return error_set(...)`.
 * A text that is too long is cut at a character, bytes that are no UTF-8 become '?'. e may be NULL: then only the status
 * is answered. */
enum status error_set(struct error *e, enum reason r, const char *format, ...) PRINTF_LIKE(3, 4);

/* As error_set, and tells when trying again may help. */
enum status error_retry(struct error *e, enum reason r, uint32_t retry_ms, const char *format, ...) PRINTF_LIKE(4, 5);

/* "NOT_FOUND" and so on; "UNKNOWN" for a number that is none. Static text. */
const char *status_name(enum status s);
/* A number from the wire; STATUS_UNKNOWN if it is none of ours. */
enum status status_from_wire(uint32_t wire);

/* Facts of a reason. A number from the wire that is none of ours becomes REASON_INTERNAL. Static text. */
enum reason reason_from_wire(uint32_t wire);
const char *reason_code(enum reason r);
const char *reason_title(enum reason r);
enum status reason_status(enum reason r);
unsigned reason_http(enum reason r);

#endif
