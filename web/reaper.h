/* Cuts off connections that are too slow. libmicrohttpd's own time-out is for silence only: one byte a second keeps a
 * connection for ever. A thread looks at all lines every half second; how many bytes moved it asks the kernel.
 *
 *    headers not complete       HEADERS_MS after the connection began
 *    nothing asked again        IDLE_MS after the last answer
 *    a body coming in           less than RATE over BODY_MS
 *    an answer going out        less than RATE over ANSWER_MS
 *    once the door drains       nothing moved of a body or an answer for DRAIN_STILL_MS
 *
 * A new connection that would be one too many, of its address or of all, pushes out the one that has been idle longest,
 * or one that has sent no request for FRESH_MS; without such a one it is cut itself.
 *
 * Cutting is shutdown(): libmicrohttpd then notices and closes. It tells line_close before it closes the descriptor,
 * and both take one lock, so the number cannot mean another connection. */
#ifndef WEB_REAPER_H
#define WEB_REAPER_H

#include "service/base/list.h"
#include "service/base/status.h"

#include <stdatomic.h>
#include <sys/socket.h>

enum { HEADERS_MS = 10000, IDLE_MS = 30000, BODY_MS = 10000, ANSWER_MS = 30000, RATE_MIN = 16 << 10,
       FRESH_MS = 1000 };

/* What a connection is at. WORKING: the daemon itself is busy with it; that is never the client's fault. */
enum line_phase { LINE_HEADERS, LINE_BODY, LINE_WORKING, LINE_ANSWER, LINE_IDLE, LINE_PHASES };
extern const char *const line_phase_names[LINE_PHASES];

struct reaper;
struct line;

/* How many connections there may be before one has to go. */
struct reaper_bounds { unsigned of_one, of_all; };

/* cuts: lent; counts what was cut, by phase. */
enum status reaper_start(_Atomic uint64_t cuts[LINE_PHASES], struct reaper_bounds bounds, struct reaper **out,
                         struct error *e) MUST_CHECK;
void reaper_drain(struct reaper *r);             /* any thread */
void reaper_stop(struct reaper *r);              /* all lines are closed. NULL is nothing. */

/* Any thread. NULL: no memory; the other calls take it and do nothing. */
struct line *line_open(struct reaper *r, int fd, const struct sockaddr_storage *from);
void line_phase(struct line *l, enum line_phase p);
/* One more wrong token came over it; how many that makes. */
unsigned line_wrong_token(struct line *l);
void line_close(struct line *l);

#endif
