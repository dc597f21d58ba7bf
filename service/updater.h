/* An updater as a document: checked JSON on one side, a row with numbers on the other. An updater is immutable once a
 * store has it, and counted; a key's next step takes the one that the store has then, so a swap falls between versions.
 *
 * Core thread only (the count is plain). */
#ifndef SERVICE_UPDATER_H
#define SERVICE_UPDATER_H

#include "gpu/device.h"
#include "service/base/bytes.h"
#include "service/base/nearest.h"

enum { UPDATER_DOCUMENT_SIZE_MAX = 65536, UPDATER_OVERRIDES_MAX = 256 };

struct updater;

/* What becomes of a key's slots when an updater follows another. KEEP: those of the same names stay, unless the new rule
 * counts updates since its slots began and one of them is missing: then all begin anew. CONVERT: missing ones are made
 * of what is there, where that can be. RESET: all begin anew. */
enum updater_states { STATES_KEEP, STATES_RESET, STATES_CONVERT };

/* Reads {"type": "sgd", "learning_rate": 0.1, ...}. Every fault is told at once in e->text, each with its JSON pointer
 * and, for an unknown name, the nearest known one. `null` as the document means assign. The caller has the one hold. */
enum status updater_parse(struct bytes json, struct updater **out, struct error *e) MUST_CHECK;
/* The same checks, on any thread: *faults gets every fault as a line of its own, however many there are. */
enum status updater_check(struct bytes json, struct buf *faults, struct error *e) MUST_CHECK;
struct updater *updater_hold(struct updater *u);
void updater_drop(struct updater *u);                            /* NULL is nothing */
/* u, new and of no store yet, comes after `before` (NULL: nothing) in a store. A key that does not step under `before`
 * goes from an older one to u; what was asked for in between counts. */
void updater_follow(struct updater *u, const struct updater *before, enum updater_states how);

/* The document with every hyperparameter written out, keys in the order of the row: equal updaters, equal text. */
const char *updater_text(const struct updater *u);
const char *updater_type(const struct updater *u);
bool updater_equal(const struct updater *a, const struct updater *b);
/* Its overrides: how many, and the pattern of one. */
size_t updater_overrides(const struct updater *u);
const char *updater_override_pattern(const struct updater *u, size_t index);
/* The update from which on the schedule's rate stays as it is, and that rate, before factors of keys; INFINITY: it never
 * does, or there is no schedule. */
double updater_schedule_end(const struct updater *u, double *rate);
/* UPDATER_UNFIT with the reason when a value of this name and type cannot be under it. */
enum status updater_fits(const struct updater *u, struct bytes name, enum dtype t, struct error *e) MUST_CHECK;
/* The pattern of the override by which pushes of the key are refused; NULL: they are not. */
const char *updater_frozen(const struct updater *u, struct bytes name);

/* An updater as it is for one key, of which there is one in each key: so it says which overrides count, and the numbers
 * stay with the updater. Plain data; the program is the updater's. */
struct updater_use {
    enum rule_id rule;
    bool frozen;                     /* pushes are refused; its rule is that of the others, for reals */
    bool assigns;                    /* the sum becomes the value, whatever the updater does with others */
    bool has_master;                 /* the value is kept in f32 beside itself */
    const struct program *program;   /* of RULE_program, else NULL */
    uint64_t overrides[UPDATER_OVERRIDES_MAX / 64];  /* bit i: the updater's override i is for this key */
    double lr_mult, wd_mult;
    size_t columns;
    uint64_t seed;                   /* of the key's random numbers */
};

void updater_use(const struct updater *u, const struct rule_key *key, enum dtype type, struct updater_use *out);
/* Whether that override is for the key. */
bool use_overridden(const struct updater_use *use, size_t index);
/* Its numbers, in the order of the row, overrides applied. */
void use_hypers(const struct updater *u, const struct updater_use *use, double out[UPDATER_HYPERS_MAX]);
/* Its slots: those of the rule, or those that the program names. */
unsigned use_slots(const struct updater_use *use);
const char *use_slot_name(const struct updater_use *use, unsigned slot);
size_t use_slot_count(const struct updater_use *use, unsigned slot, size_t count);
bool use_slot_from_value(const struct updater_use *use, unsigned slot);
/* Bytes of slots and master for such a key. */
uint64_t updater_state_size(const struct updater_use *use, uint64_t count, enum dtype type);
/* Fills rule, scalars, columns and stream of a step. updates: the key's counter, this one included. m->product becomes
 * that of the next step. */
void updater_step(const struct updater *u, const struct updater_use *use, uint64_t updates, struct update_moment *m,
                  struct step *s);

/* Where a slot comes from when `u` follows `old` (NULL: nothing) at a key. */
struct slot_origin {
    enum { ORIGIN_NEW, ORIGIN_KEPT, ORIGIN_CONVERTED } kind;
    unsigned slot;                   /* of old */
    enum rule_id rule;               /* CONVERTED: scaled or squared, by this */
    double by;
};

/* Fills an origin for each slot of `use`; t: updates since old's slots began, num_update as in update_moment. Answers
 * whether the count t goes on, else it begins at 0 with these slots. */
bool updater_origins(const struct updater *old, const struct updater_use *old_use, const struct updater *u,
                     const struct updater_use *use, uint64_t t, uint64_t num_update,
                     struct slot_origin out[STEP_SLOTS_MAX]);

#endif
