/* What the handlers of keys have in common: the key that a path names, and the form in which its bytes are wanted.
 * On the threads of a door, as handlers are. */
#ifndef WEB_KEYS_H
#define WEB_KEYS_H

#include "web/exchange.h"
#include "web/value.h"

enum { TAG_SIZE = 48 };

/* A key as the path names it. */
struct place {
    json_int_t store;                /* id; 0: `default` before its first Create */
    bool is_int;
    int64_t number;
    const char *name;                /* as written; lent */
};

/* What Describe says of it. */
struct seen {
    json_int_t id, version;
    struct tensor tensor;
    char tag[TAG_SIZE];
};

/* Which store, and of which type the key is: as ?type= says, or as the store's keys are. false after telling. */
bool find_place(struct exchange *x, struct place *p);
/* The row as it leaves, for json_decref, or NULL after telling. */
json_t *find_key(struct exchange *x, const struct place *p, struct seen *k);

/* The form that ?format= or Accept asks for; FORM_NONE after telling. */
enum form wanted_form(struct exchange *x);
/* Where the same is to be had in the forms that have no bound of their own. */
json_t *other_forms(struct exchange *x);

/* The first fault of an answer, which lies behind `at` bytes of results. */
enum status fault_of(const struct reply *r, uint64_t at, struct error *e) MUST_CHECK;

#endif
