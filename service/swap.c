#include "service/swap.h"

#include "service/base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Answers up to REP_IN_FLIGHT_REPLY_MAX may share a connection with others. A name grows to six times its size when it
 * is full of control characters. */
enum { FIRST_VERSIONS_SIZE = 12 << 10, FIRST_VERSION_SIZE = 48, ESCAPE = 6 };
/* Comparisons of names with patterns, and as much for a key's slots, that one report may cost the core: some 0.1 s. */
enum { LOOKS_MAX = 1 << 20, LOOKS_OF_KEY = 8, LOOKS_OF_A_UNIT = 128 };
/* A key above it takes a whole-tensor rule, which runs over it several times, longer than a person expects of a step. */
enum { WHOLE_LARGE = 256 << 20 };
enum { NAMES_MAX = 64, TALLY_NAME_SIZE = PROGRAM_NAME_SIZE_MAX + 1, WARNING_SIZE = 1024 };

/* Takes the item; without memory for it the list goes and is NULL, since one with a gap would be taken for the whole. */
static void append(json_t **list, json_t *item)
{
    if (*list != NULL && json_array_append_new(*list, item) == 0) return;
    if (*list == NULL) json_decref(item);
    json_decref(*list);
    *list = NULL;
}

static json_t *name_json(const struct key_name *n)
{
    return n->is_text ? json_stringn(n->text.at, n->text.size) : json_integer(n->number);
}

json_t *swap_first_versions(const struct store *s)
{
    json_t *list = json_array();
    size_t size = 0;

    for (size_t i = 0; i < s->slot_count; i++) {
        const struct key *k = store_slot(s, i);
        if (k == NULL) continue;
        size += FIRST_VERSION_SIZE + ESCAPE * k->name.text.size;
        if (size > FIRST_VERSIONS_SIZE) break;
        append(&list, json_pack("{s:o,s:I}", "key", name_json(&k->name), "version",
                                   (json_int_t)key_version_ahead(k)));
    }
    return list;
}

/* ---- looking at the keys ---------------------------------------------------------------------------------------- */

/* What becomes of the slots of one name. */
struct tally {
    char name[TALLY_NAME_SIZE];      /* a copy: the updater that has it may go meanwhile */
    uint64_t kept, converted, anew, dropped;
};

struct swap_report {
    const struct updater *u;
    enum updater_states how;
    size_t at;                       /* slots before it have been looked at */
    uint64_t keys, looked_at, now, then;
    uint64_t begin_anew;             /* keys whose count of updates does */
    uint64_t lost;                   /* of these, such as have something to lose that was not meant to go */
    uint64_t parted;                 /* others, of which a slot goes while another begins */
    uint64_t rounded;                /* f16 and bf16 keys without a master */
    struct key *large;               /* held; the largest under a rule that sees whole tensors; NULL: none */
    uint64_t *matched;               /* keys, by override */
    struct tally tallies[NAMES_MAX];
    unsigned tally_count;
};

/* Names beyond NAMES_MAX, which takes as many programs, share the last place. */
static struct tally *tally_of(struct swap_report *l, const char *name)
{
    for (unsigned i = 0; i < l->tally_count; i++)
        if (strcmp(l->tallies[i].name, name) == 0) return &l->tallies[i];
    if (l->tally_count == NAMES_MAX) return &l->tallies[NAMES_MAX - 1];
    struct tally *t = &l->tallies[l->tally_count++];
    snprintf(t->name, sizeof t->name, "%s", l->tally_count < NAMES_MAX ? name : "others");
    return t;
}

static void look_at_slots(struct swap_report *l, const struct key *k, bool stepped, const struct state_outlook *o)
{
    const struct updater_use *old = &k->state.use;
    bool goes_on[STEP_SLOTS_MAX] = {false}, goes = false, begins = false;

    for (unsigned i = 0; i < use_slots(&o->use); i++) {
        struct tally *t = tally_of(l, use_slot_name(&o->use, i));
        begins |= o->origins[i].kind == ORIGIN_NEW;
        if (o->origins[i].kind == ORIGIN_NEW) t->anew++;
        else if (o->origins[i].kind == ORIGIN_KEPT) t->kept++;
        else t->converted++;
        if (o->origins[i].kind != ORIGIN_NEW) goes_on[o->origins[i].slot] = true;
    }
    for (unsigned i = 0; k->state.updater != NULL && i < use_slots(old); i++) {
        goes |= !goes_on[i];
        if (!goes_on[i]) tally_of(l, use_slot_name(old, i))->dropped++;
    }
    l->parted += stepped && o->goes_on && goes && begins;
}

static void look_at_master(struct swap_report *l, const struct key *k, const struct state_outlook *o)
{
    bool is_there = state_at(&k->state, STATE_MASTER).size > 0;

    if (!is_there && !o->use.has_master) return;
    struct tally *t = tally_of(l, "master");
    if (!is_there) t->anew++;
    else if (o->use.has_master) t->kept++;
    else t->dropped++;
}

static void look_at_key(struct swap_report *l, struct key *k)
{
    bool stepped = k->state.updater != NULL && k->state.updates > k->state.begun;
    struct state_outlook o;

    core_spend(k->core, 1 + (LOOKS_OF_KEY + updater_overrides(l->u)) / LOOKS_OF_A_UNIT);
    state_outlook(k, l->u, &o);
    l->now += o.size_now;
    l->then += o.size_then;
    l->begin_anew += stepped && !o.goes_on;
    l->lost += stepped && !o.goes_on && l->how != STATES_RESET && use_slots(&k->state.use) > 0;
    l->rounded += dtype_is_half(k->shape.dtype) && !o.use.has_master && o.use.program == NULL &&
                  rule_reads_value(o.use.rule);
    if (o.use.program == NULL && rule_is_whole(o.use.rule) && k->shape.size >= WHOLE_LARGE &&
        (l->large == NULL || k->shape.size > l->large->shape.size)) {
        key_drop(l->large);
        l->large = key_hold(k);
    }
    look_at_slots(l, k, stepped, &o);
    look_at_master(l, k, &o);
    for (size_t i = 0; i < updater_overrides(l->u); i++) l->matched[i] += use_overridden(&o.use, i);
}

struct swap_report *swap_report_new(const struct store *s, const struct updater *u, enum updater_states how)
{
    struct swap_report *l = mem_zero(sizeof *l);

    if (l == NULL) return NULL;
    l->u = u;
    l->how = how;
    l->keys = map_count(s->keys);
    l->matched = mem_zero((updater_overrides(u) + 1) * sizeof *l->matched);
    if (l->matched != NULL) return l;
    mem_free(l);
    return NULL;
}

void swap_report_free(struct swap_report *l)
{
    if (l == NULL) return;
    key_drop(l->large);
    mem_free(l->matched);
    mem_free(l);
}

bool swap_report_look(struct swap_report *l, const struct store *s)
{
    uint64_t most = LOOKS_MAX / (LOOKS_OF_KEY + updater_overrides(l->u));
    size_t from = l->at;

    for (; l->at < s->slot_count && l->looked_at < most; l->at++) {
        if (core_is_spent(s->core) && l->at > from) return false;
        if (store_slot(s, l->at) == NULL) continue;
        look_at_key(l, store_slot(s, l->at));
        l->looked_at++;
    }
    return true;
}

/* ---- telling ---------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void warn(json_t **list, const char *format, ...)
{
    char text[WARNING_SIZE];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    append(list, json_string(text));
}

static void warn_of_schedule(json_t **list, struct store *s, const struct updater *u)
{
    double rate = 0, end = updater_schedule_end(u, &rate);

    if ((double)store_num_update(s) >= end)
        warn(list, "/schedule: it ended at update %.0f, and the store has done %" PRIu64 ": the rate stays at %g", end,
             s->num_update, rate);
}

static void warn_of_keys(json_t **list, const struct swap_report *l, const struct store *s)
{
    char name[KEY_PRINT_SIZE];

    for (size_t i = 0; l->looked_at > 0 && l->looked_at == l->keys && i < updater_overrides(l->u); i++)
        if (l->matched[i] == 0) warn(list, "/overrides/%zu/match: no key has such a name", i);
    if (l->lost > 0)
        warn(list, "the state of %" PRIu64 " of the keys begins anew: %s needs slots that began together%s", l->lost,
             updater_type(l->u), l->how == STATES_KEEP ? "; states=convert makes of the present ones what can be made" : "");
    if (l->parted > 0 && l->how == STATES_KEEP)
        warn(list, "slots of %" PRIu64 " of the keys go, and the others that %s has begin anew; states=convert makes of the "
             "present ones what can be made", l->parted, updater_type(l->u));
    if (l->rounded > 0)
        warn(list, "/multi_precision: %" PRIu64 " float16 or bfloat16 keys have no f32 master; what moves them by less "
             "than half a unit in the last place is lost", l->rounded);
    if (l->large != NULL)
        warn(list, "%s has %" PRIu64 " bytes: %s needs sums over whole keys, and goes over it several times in each step",
             key_name_print(&l->large->name, name), l->large->shape.size, updater_type(l->u));
    if (!list_empty(&s->rounds)) warn(list, "rounds that are open by now close under the present updater");
}

static json_t *warnings_json(const struct swap_report *l, struct store *s)
{
    json_t *list = json_array();

    warn_of_schedule(&list, s, l->u);
    warn_of_keys(&list, l, s);
    return list;
}

static json_t *overrides_json(const struct swap_report *l)
{
    json_t *list = json_array();

    for (size_t i = 0; i < updater_overrides(l->u); i++)
        append(&list, json_pack("{s:s,s:I}", "match", updater_override_pattern(l->u, i), "keys",
                                   (json_int_t)l->matched[i]));
    return list;
}

static json_t *slots_json(const struct swap_report *l)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < l->tally_count; i++) {
        const struct tally *t = &l->tallies[i];
        append(&list, json_pack("{s:s,s:I,s:I,s:I,s:I}", "name", t->name, "kept", (json_int_t)t->kept, "converted",
                                   (json_int_t)t->converted, "anew", (json_int_t)t->anew, "dropped",
                                   (json_int_t)t->dropped));
    }
    return list;
}

json_t *swap_report_json(const struct swap_report *l, struct store *s)
{
    return json_pack("{s:I,s:I,s:o,s:{s:I,s:I},s:o,s:I,s:o}", "keys", (json_int_t)l->keys, "keys_looked_at",
                     (json_int_t)l->looked_at, "overrides", overrides_json(l), "state_bytes", "now", (json_int_t)l->now,
                     "then", (json_int_t)l->then, "slots", slots_json(l), "begin_anew", (json_int_t)l->begin_anew,
                     "warnings", warnings_json(l, s));
}
