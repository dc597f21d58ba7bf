/* An updater as a document: checked JSON on one side, a row with numbers on the other. An updater is immutable and
 * counted; a key's next step takes the one that the store has then, so a swap falls between versions.
 *
 * Core thread only (the count is plain). */
#ifndef SERVICE_UPDATER_H
#define SERVICE_UPDATER_H

#include "gpu/device.h"
#include "service/base/bytes.h"

enum { UPDATER_DOCUMENT_SIZE_MAX = 65536 };

struct updater;

/* Reads {"type": "sgd", "learning_rate": 0.1, ...}. Every fault is told at once in e->text, each with its JSON pointer
 * and, for an unknown name, the nearest known one. `null` as the document means assign. The caller has the one hold. */
enum status updater_parse(struct bytes json, struct updater **out, struct error *e) MUST_CHECK;
struct updater *updater_hold(struct updater *u);
void updater_drop(struct updater *u);                            /* NULL is nothing */

/* The document with every hyperparameter written out, keys in the order of the row: equal updaters, equal text. */
const char *updater_text(const struct updater *u);
const char *updater_type(const struct updater *u);
bool updater_equal(const struct updater *a, const struct updater *b);

unsigned updater_slots(const struct updater *u);
const char *updater_slot_name(const struct updater *u, unsigned slot);
/* UPDATER_UNFIT with the reason when a value of this type cannot be under it. */
enum status updater_fits(const struct updater *u, enum dtype t, struct error *e) MUST_CHECK;
/* Fills rule and scalars of a step. */
void updater_step(const struct updater *u, const struct update_moment *m, struct step *s);

/* The nearest of `names` (NULL-ended) to a mistyped word, or NULL when none is near (Damerau-Levenshtein distance
 * at most a third of its length). For error sentences. */
const char *nearest_name(struct bytes word, const char *const *names);

#endif
