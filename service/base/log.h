/* The log: one line an event on stderr, any thread. Levels: error (someone must act), warn (someone should know),
 * info (start, stop, change of state), debug (a request). Nothing above debug is written once per request. */
#ifndef SERVICE_BASE_LOG_H
#define SERVICE_BASE_LOG_H

#include "service/base/status.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_OFF = -1 };

/* What is less important than this is dropped. Set once by main, before threads; the default is LOG_WARN, so that
 * an embedding program is not talked over. */
void log_set_level(enum log_level least);
void log_write(enum log_level level, const char *module, const char *format, ...) PRINTF_LIKE(3, 4);

#define log_error(module, ...) log_write(LOG_ERROR, module, __VA_ARGS__)
#define log_warn(module, ...) log_write(LOG_WARN, module, __VA_ARGS__)
#define log_info(module, ...) log_write(LOG_INFO, module, __VA_ARGS__)
#define log_debug(module, ...) log_write(LOG_DEBUG, module, __VA_ARGS__)

#endif
