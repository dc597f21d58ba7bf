/* The networks that somebody has put here to be drawn: files by name, bounded in number and bytes. They belong to
 * the admin door, not to the core, and end with the daemon.
 *
 * Any thread; a lock that is held for moments only. */
#ifndef WEB_NETWORKS_H
#define WEB_NETWORKS_H

#include "service/base/bytes.h"
#include "web/viz/viz.h"

#include <jansson.h>

enum {
    NETWORKS_MAX = 64,
    NETWORK_SIZE_MAX = 16 << 20,     /* of a file; ONNX with its weights is better drawn by `paramctl viz` */
    NETWORKS_SIZE_MAX = 128 << 20
};

struct networks;

/* Never changes once it is there. */
struct network {
    char *name;
    struct buf file;
    struct viz_facts facts;
    uint64_t serial;                 /* another for every file that was ever put here, from 1 */
    json_t *variables;               /* names; not to be touched by who holds it but to read */
    int holders;                     /* networks.c's */
};

struct networks *networks_new(void);             /* NULL: no memory */
void networks_free(struct networks *n);          /* nobody holds one. NULL is nothing. */

/* Takes the file's bytes on success. *replaced: there was one of this name. NETWORK_INVALID and so on as
 * viz_check; LIMIT. */
enum status networks_put(struct networks *n, const char *name, struct buf *file, bool *replaced,
                         struct error *e) MUST_CHECK;
/* Stays valid until it is dropped, also when it is replaced or removed meanwhile. NULL: there is none. */
struct network *networks_hold(struct networks *n, const char *name);
void network_drop(struct networks *n, struct network *held);     /* NULL is nothing */
bool networks_remove(struct networks *n, const char *name);
/* {"name", "nodes", "edges", "parameters", "bytes"} each, by name. NULL: no memory. */
json_t *networks_list(struct networks *n);

/* Tags of drawings by what they are made from: the file's serial (0: none) and all options, with what the store says
 * of its keys. Who has the drawing of the same inputs need not have it made again to learn that it is the same. */
enum { DRAWING_TAG_SIZE = 40, DRAWINGS_REMEMBERED = 128 };
struct drawing_id { uint64_t serial, a, b; };
struct drawing_id networks_drawing(uint64_t serial, const char *inputs);
void networks_remember(struct networks *n, struct drawing_id id, const char *tag);
bool networks_recall(struct networks *n, struct drawing_id id, char tag[DRAWING_TAG_SIZE]);

/* One drawing at a time is converted to png or pdf; false: one is. */
bool networks_begin_convert(struct networks *n);
void networks_end_convert(struct networks *n);

#endif
