#include "service/updater.h"

#include "gpu/program.h"
#include "gpu/rules.h"
#include "service/base/mem.h"
#include "service/updater_document.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void updater_free(struct updater *u)
{
    if (u == NULL) return;
    for (size_t i = 0; i < u->override_count; i++) mem_free(u->overrides[i].match);
    mem_free(u->overrides);
    mem_free(u->schedule);
    program_free(u->program);
    mem_free(u->program_text);
    mem_free(u->text);
    mem_free(u);
}

static enum status parse(struct bytes json, struct updater **out, struct buf *all, struct error *e)
{
    struct updater *u = mem_zero(sizeof *u);
    enum status s;

    if (u == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for an updater");
    u->holds = 1;
    s = document_read(json, u, all, e);
    if (s == STATUS_OK) s = document_write(u, e);
    if (s != STATUS_OK) goto out;
    *out = u;
    u = NULL;
out:
    updater_free(u);
    return s;
}

enum status updater_parse(struct bytes json, struct updater **out, struct error *e)
{
    return parse(json, out, NULL, e);
}

enum status updater_check(struct bytes json, struct buf *faults, struct error *e)
{
    struct updater *u = NULL;
    enum status s = parse(json, &u, faults, e);

    updater_drop(u);
    return s;
}

struct updater *updater_hold(struct updater *u)
{
    u->holds++;
    return u;
}

void updater_drop(struct updater *u)
{
    if (u == NULL) return;
    assert(u->holds > 0);
    if (--u->holds == 0) updater_free(u);
}

void updater_follow(struct updater *u, const struct updater *before, enum updater_states how)
{
    u->resets = (before != NULL ? before->resets : 0) + (how == STATES_RESET);
    u->conversions = (before != NULL ? before->conversions : 0) + (how == STATES_CONVERT);
}

const char *updater_text(const struct updater *u) { return u->text; }
const char *updater_type(const struct updater *u) { return u->row->name; }
bool updater_equal(const struct updater *a, const struct updater *b) { return a == b || strcmp(a->text, b->text) == 0; }

/* ---- for one key ------------------------------------------------------------------------------------------------ */

/* A star stands for any bytes, a question mark for one. On a mismatch only the last star takes one byte more: what an
 * earlier one could take, that one can, too. */
static bool matches(const char *pattern, struct bytes name)
{
    const char *at = name.size > 0 ? name.at : "", *end = at + name.size, *star = NULL, *from = NULL;

    while (at < end) {
        if (*pattern == '*') {
            star = ++pattern;
            from = at;
        } else if (*pattern == *at || *pattern == '?') {
            pattern++;
            at++;
        } else if (star != NULL) {
            pattern = star;
            at = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

/* The last override for the name that says something of this member; NULL: none does. */
static const struct override *said_last(const struct updater *u, struct bytes name, unsigned member)
{
    for (size_t i = u->override_count; i-- > 0;)
        if (u->overrides[i].has_own[member] && matches(u->overrides[i].match, name))
            return &u->overrides[i];
    return NULL;
}

static bool is_set(const struct updater *u, struct bytes name, unsigned member)
{
    const struct override *o = said_last(u, name, member);
    return o != NULL && o->own[member] != 0;
}

const char *updater_frozen(const struct updater *u, struct bytes name)
{
    const struct override *o = said_last(u, name, KEY_FROZEN);
    return o != NULL && o->own[KEY_FROZEN] != 0 ? o->match : NULL;
}

/* Integer rules are those of updaters without numbers, which are one rule for every key. */
static bool takes_integers(const struct updater *u)
{
    return !u->row->common && rule_takes_integers(u->row->rule(u->hypers, NULL));
}

enum status updater_fits(const struct updater *u, struct bytes name, enum dtype t, struct error *e)
{
    if (!dtype_is_integer(t) || takes_integers(u)) return STATUS_OK;
    if (is_set(u, name, KEY_ASSIGN) || is_set(u, name, KEY_FROZEN)) return STATUS_OK;
    return error_set(e, REASON_UPDATER_UNFIT,
                     "%s needs fractions, which %s values do not have: give the updater's document "
                     "\"overrides\": [{\"match\": \"%.*s\", \"assign\": true}], and pushes of the "
                     "key assign, or \"frozen\": true, and they are refused",
                     u->row->name, dtype_name(t), (int)(name.size < 100 ? name.size : 100),
                     name.size > 0 ? (const char *)name.at : "");
}

size_t updater_overrides(const struct updater *u) { return u->override_count; }
const char *updater_override_pattern(const struct updater *u, size_t index) { return u->overrides[index].match; }
bool use_overridden(const struct updater_use *use, size_t index) { return use->overrides[index / 64] >> (index % 64) & 1; }

static void override(const struct updater *u, size_t i, struct updater_use *use)
{
    const struct override *o = &u->overrides[i];

    use->overrides[i / 64] |= (uint64_t)1 << (i % 64);
    if (o->has_own[KEY_LR_MULT]) use->lr_mult = o->own[KEY_LR_MULT];
    if (o->has_own[KEY_WD_MULT]) use->wd_mult = o->own[KEY_WD_MULT];
    if (o->has_own[KEY_FROZEN]) use->frozen = o->own[KEY_FROZEN] != 0;
    if (o->has_own[KEY_ASSIGN]) use->assigns = o->own[KEY_ASSIGN] != 0;
}

void use_hypers(const struct updater *u, const struct updater_use *use, double out[UPDATER_HYPERS_MAX])
{
    memcpy(out, u->hypers, sizeof u->hypers);
    for (size_t i = 0; i < u->override_count; i++)
        for (unsigned h = 0; use_overridden(use, i) && h < UPDATER_HYPERS_MAX; h++)
            if (u->overrides[i].has[h]) out[h] = u->overrides[i].hypers[h];
}

/* Of names, not of numbers that a daemon gives, so that another daemon draws the same. */
static uint64_t seed_of(struct bytes name, double seed)
{
    uint64_t h = (uint64_t)seed + 1;
    for (size_t i = 0; i < name.size; i++) h = random_mix(h + ((const unsigned char *)name.at)[i] + 1);
    return random_mix(h);
}

void updater_use(const struct updater *u, const struct rule_key *key, enum dtype type, struct updater_use *out)
{
    double hypers[UPDATER_HYPERS_MAX];

    *out = (struct updater_use){.lr_mult = 1, .wd_mult = 1};
    for (size_t i = 0; i < u->override_count; i++)
        if (matches(u->overrides[i].match, key->name)) override(u, i, out);
    use_hypers(u, out, hypers);
    /* A frozen integer makes no step: it has the rule that such values can have. */
    if (out->frozen && dtype_is_integer(type) && !takes_integers(u)) out->assigns = true;
    out->rule = out->assigns ? RULE_assign : u->row->rule(hypers, key);
    out->program = out->assigns ? NULL : u->program;
    out->columns = rule_columns(out->rule, key);
    if (out->rule == RULE_sgld) out->seed = seed_of(key->name, hypers[H_OWN]);
    out->has_master = dtype_is_half(type) && rule_reads_value(out->rule) &&
                      (!u->row->common || hypers[H_PRECISION] != 0);
}

unsigned use_slots(const struct updater_use *use)
{
    return use->program != NULL ? use->program->slot_count : rule_slots(use->rule);
}

const char *use_slot_name(const struct updater_use *use, unsigned slot)
{
    return use->program != NULL ? use->program->slots[slot].name : rule_slot_name(use->rule, slot);
}

size_t use_slot_count(const struct updater_use *use, unsigned slot, size_t count)
{
    return use->program != NULL ? count : rule_slot_count(use->rule, slot, count, use->columns);
}

bool use_slot_from_value(const struct updater_use *use, unsigned slot)
{
    return use->program != NULL ? use->program->slots[slot].starts_as_stored : rule_slot_from_value(use->rule, slot);
}

uint64_t updater_state_size(const struct updater_use *use, uint64_t count, enum dtype type)
{
    uint64_t elements = use->has_master ? count : 0;

    for (unsigned i = 0; i < use_slots(use); i++) elements += use_slot_count(use, i, (size_t)count);
    return elements * dtype_size(dtype_sum(type)) + step_scratch_size(use->rule, (size_t)count);
}

static double rate_at(const struct updater *u, double rate, const struct updater_use *use, uint64_t num_update)
{
    return (u->schedule != NULL ? schedule_rate(u->schedule, rate, num_update) : rate) * use->lr_mult;
}

static double rate_of(const struct updater *u, const struct updater_use *use, uint64_t num_update)
{
    double hypers[UPDATER_HYPERS_MAX];

    use_hypers(u, use, hypers);
    return rate_at(u, hypers[H_RATE], use, num_update);
}

/* The params of a program for one key: the schedule's rate first, then the key's factors. */
static void use_params(const struct updater *u, const struct updater_use *use, uint64_t num_update,
                       double out[PROGRAM_PARAMS_MAX])
{
    double factors[PROGRAM_PARAMS_MAX];

    memcpy(out, u->params, sizeof u->params);
    if (u->schedule != NULL)
        out[u->scheduled] = schedule_rate(u->schedule, out[u->scheduled], num_update);
    for (unsigned p = 0; p < u->program->param_count; p++) factors[p] = 1;
    for (size_t i = 0; i < u->override_count; i++)
        for (unsigned p = 0; use_overridden(use, i) && p < u->program->param_count; p++)
            if (u->overrides[i].has_factor[p]) factors[p] = u->overrides[i].factors[p];
    for (unsigned p = 0; p < u->program->param_count; p++) out[p] *= factors[p];
}

static void run_host_part(const struct updater *u, const struct updater_use *use,
                          const struct update_moment *m, struct step *s)
{
    double params[PROGRAM_PARAMS_MAX];
    const double moments[EXPR_MOMENT_COUNT] = {
        [EXPR_MOMENT_step] = (double)m->t, [EXPR_MOMENT_contributors] = m->contributors,
        [EXPR_MOMENT_num_workers] = m->num_workers, [EXPR_MOMENT_staleness] = (double)m->staleness,
    };
    use_params(u, use, m->num_update, params);
    program_scalars(u->program, params, moments, s->program_scalars);
}

double updater_schedule_end(const struct updater *u, double *rate)
{
    double end = u->schedule != NULL ? schedule_end(u->schedule) : INFINITY;

    double base = u->program != NULL ? u->params[u->scheduled] : u->hypers[H_RATE];
    if (isfinite(end)) *rate = schedule_rate(u->schedule, base, (uint64_t)end);
    return end;
}

void updater_step(const struct updater *u, const struct updater_use *use, uint64_t updates, struct update_moment *m,
                  struct step *s)
{
    double hypers[UPDATER_HYPERS_MAX];

    use_hypers(u, use, hypers);
    if (u->row->common) {
        hypers[H_RATE] = rate_at(u, hypers[H_RATE], use, m->num_update);
        hypers[H_WD] *= use->wd_mult;
    }
    m->lr_mult = use->lr_mult;
    s->rule = use->rule;
    s->columns = use->columns;
    s->stream = random_mix(use->seed + updates);
    s->scalars = (struct rule_scalars){0};
    if (!use->assigns) u->row->scalars(hypers, m, &s->scalars);
    s->program = use->program;
    if (use->program != NULL) run_host_part(u, use, m, s);
}

/* ---- from one updater to the next ------------------------------------------------------------------------------- */

static int slot_by_name(const struct updater_use *use, const char *name)
{
    for (unsigned i = 0; i < use_slots(use); i++)
        if (strcmp(use_slot_name(use, i), name) == 0) return (int)i;
    return -1;
}

static double hyper(const struct updater *u, const struct updater_use *use, const char *name, double otherwise)
{
    double hypers[UPDATER_HYPERS_MAX];

    use_hypers(u, use, hypers);
    for (unsigned i = 0; i < u->row->hyper_count; i++)
        if (strcmp(u->row->hypers[i].name, name) == 0) return hypers[i];
    return otherwise;
}

/* Slots that remember gradients hold c * (g + d*g' + d*d*g'' ...) of the gradients so far, newest first. */
struct memory {
    int slot;                        /* -1: there is none */
    double c, d;
};

static struct memory memory_of(const struct updater *u, const struct updater_use *use, double rate)
{
    struct memory m = {.slot = slot_by_name(use, "mean")};

    if (m.slot >= 0) {
        m.d = hyper(u, use, use->rule == RULE_lion ? "beta2" : "beta1", hyper(u, use, "rho", hyper(u, use, "momentum", 0)));
        m.c = 1 - m.d;
        return m;
    }
    m.d = hyper(u, use, "momentum", 0);
    m.slot = slot_by_name(use, "velocity");
    m.c = 1;
    if (m.slot >= 0) return m;
    m.slot = slot_by_name(use, "momentum");
    m.c = -rate;
    return m;
}

/* The new slot gets the old one's memory at its own scale: a mean of the same gradients, or the movement that they have
 * at the new rate. */
static bool convert_memory(struct memory old, const char *name, double rate, struct slot_origin *out)
{
    double c = strcmp(name, "mean") == 0 ? 1 - old.d : strcmp(name, "velocity") == 0 ? 1 : -rate;

    if (old.slot < 0 || old.c == 0) return false;
    *out = (struct slot_origin){ORIGIN_CONVERTED, (unsigned)old.slot, RULE_scaled, c / old.c};
    return true;
}

/* A variance of which nothing is known but the mean is taken as its square; after t steps from zero both have their
 * bias. From a sum of squares, or to one, it is their mean. */
static bool convert_var(struct memory old, int squares, double t, double beta2, struct slot_origin *out)
{
    double scale = (1 - old.d) / old.c, mean = 1 - pow(old.d, t), var = 1 - pow(beta2, t);

    if (t < 1) return false;
    if (squares >= 0) {
        *out = (struct slot_origin){ORIGIN_CONVERTED, (unsigned)squares, RULE_scaled, var / t};
        return true;
    }
    if (old.slot < 0 || old.c == 0 || old.d >= 1) return false;
    *out = (struct slot_origin){ORIGIN_CONVERTED, (unsigned)old.slot, RULE_squared, scale * scale * var / (mean * mean)};
    return true;
}

static bool convert_squares(int var, double t, double beta2, struct slot_origin *out)
{
    double bias = 1 - pow(beta2, t);

    if (var < 0 || bias <= 0) return false;
    *out = (struct slot_origin){ORIGIN_CONVERTED, (unsigned)var, RULE_scaled, t / bias};
    return true;
}

static double beta2_of(const struct updater *u, const struct updater_use *use)
{
    return hyper(u, use, "beta2", hyper(u, use, "rho", 0));
}

static bool convert(const struct updater *old, const struct updater_use *old_use, const struct updater *u,
                    const struct updater_use *use, const char *name, uint64_t t, uint64_t num_update,
                    struct slot_origin *out)
{
    struct memory memory = memory_of(old, old_use, rate_of(old, old_use, num_update));

    if (strcmp(name, "mean") == 0 || strcmp(name, "momentum") == 0 || strcmp(name, "velocity") == 0)
        return convert_memory(memory, name, rate_of(u, use, num_update), out);
    if (strcmp(name, "var") == 0)
        return convert_var(memory, slot_by_name(old_use, "squares"), (double)t, beta2_of(u, use), out);
    if (strcmp(name, "squares") == 0)
        return convert_squares(slot_by_name(old_use, "var"), (double)t, beta2_of(old, old_use), out);
    return false;
}

/* A bias correction is right only for slots that began when the count did. */
static bool counts(const struct updater *u) { return u->program != NULL ? program_counts(u->program) : u->row->counts; }

bool updater_origins(const struct updater *old, const struct updater_use *old_use, const struct updater *u,
                     const struct updater_use *use, uint64_t t, uint64_t num_update,
                     struct slot_origin out[STEP_SLOTS_MAX])
{
    /* nadam's product is of all steps since its slots began, so no other rule can leave them to it. */
    bool all = old == NULL || use->rule != RULE_nadam || old_use->rule == RULE_nadam;

    memset(out, 0, STEP_SLOTS_MAX * sizeof *out);
    if (old == NULL) return false;
    if (u->resets != old->resets) return false;
    for (unsigned i = 0; i < use_slots(use); i++) {
        const char *name = use_slot_name(use, i);
        int same = slot_by_name(old_use, name);
        if (same >= 0) out[i] = (struct slot_origin){.kind = ORIGIN_KEPT, .slot = (unsigned)same};
        else if (u->conversions == old->conversions || !convert(old, old_use, u, use, name, t, num_update, &out[i])) all = false;
    }
    if (all || !counts(u)) return true;
    memset(out, 0, STEP_SLOTS_MAX * sizeof *out);
    return false;
}
