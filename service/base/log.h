/* The log: one line an event on stderr, any thread. Levels: error (someone must act), warn (someone should know),
 * info (start, stop, change of state), debug (a request). Nothing above debug is written once per request, and nothing
 * ever holds a token or the bytes of a tensor.
 *
 *     ts=2025-01-31T12:00:00.125Z level=warn component=round msg="round 7 of key 'w' failed: waits for rank 2"
 *     {"ts":"2025-01-31T12:00:00.125Z","level":"warn","component":"round","msg":"..."}
 *
 * Repeated warnings are folded: of one kind (the same place in the code) LOG_BURST lines come out within
 * LOG_FOLD_MS, of the same sentence one; the rest is counted, and told with `repeated` when the time is over. So a
 * hostile peer cannot fill a disk.
 *
 * As a library has it, whoever logs writes. After log_start a thread of its own writes, and nobody waits for a stderr
 * that nobody reads: what finds no room is counted, and told in one line when writing works again. */
#ifndef SERVICE_BASE_LOG_H
#define SERVICE_BASE_LOG_H

#include "service/base/status.h"

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_OFF = -1 };
enum log_format { LOG_TEXT, LOG_JSON };
enum { LOG_BURST = 5, LOG_FOLD_MS = 10000, LOG_QUEUE_SIZE = 256 << 10 };

/* What is less important than this is dropped. The default is LOG_WARN, so that an embedding program is not talked
 * over. Any thread, any time. */
void log_set_level(enum log_level least);
void log_set_format(enum log_format format);
/* Lines begin with "<4>" and so on, the priorities that journald reads. */
void log_set_priorities(bool on);
bool log_wants(enum log_level level);
/* `format` is a literal: its address tells one kind of event from another. */
void log_write(enum log_level level, const char *module, const char *format, ...) PRINTF_LIKE(3, 4);
/* Tells what was folded and whose time is over at now_ms (of clock_ms); UINT64_MAX: everything. Whoever has a tick. */
void log_flush(uint64_t now_ms);

/* From now on lines are queued and a thread writes them. For a process that serves; once, before other threads log. */
enum status log_start(struct error *e) MUST_CHECK;
/* What is queued is written, if that can be done until until_ms (of clock_ms). Nobody else may log any more. */
void log_stop(uint64_t until_ms);
/* A whole line as it is, ended by '\n', in the order of the others. At most 2048 bytes. */
void log_line(const char *line);
uint64_t log_lost(void);                         /* lines that could not be written since log_start. Any thread */

#define log_error(module, ...) log_write(LOG_ERROR, module, __VA_ARGS__)
#define log_warn(module, ...) log_write(LOG_WARN, module, __VA_ARGS__)
#define log_info(module, ...) log_write(LOG_INFO, module, __VA_ARGS__)
/* Its arguments are not looked at unless somebody reads it. */
#define log_debug(module, ...)                                              \
    do {                                                                    \
        if (log_wants(LOG_DEBUG)) log_write(LOG_DEBUG, module, __VA_ARGS__); \
    } while (0)

#endif
