#include "gpu/rule.h"

#include "gpu/rules.h"

static const struct {
    const char *name;
    unsigned slots;
    const char *slot[RULE_SLOTS_MAX];
} facts[RULES_END] = {
#define RULE_FACTS(name, slots, slot0, slot1, slot2) [RULE_##name] = {#name, slots, {slot0, slot1, slot2}},
    RULES(RULE_FACTS)
#undef RULE_FACTS
    [RULE_program] = {"program", 0, {"", "", ""}},       /* its slots are the text's */
};

unsigned rule_slots(enum rule_id r) { return facts[r].slots; }
const char *rule_slot_name(enum rule_id r, unsigned slot) { return facts[r].slot[slot]; }
const char *rule_name(enum rule_id r) { return facts[r].name; }

#define OR_SLOT(name, number) || (r == RULE_##name && slot == number)
#define OR_RULE(name) || r == RULE_##name
#define OR_ROW(name, slots, slot0, slot1, slot2) || r == RULE_##name

size_t rule_slot_count(enum rule_id r, unsigned slot, size_t count, size_t columns)
{
    if (false SLOTS_OF_ROWS(OR_SLOT)) return columns > 0 ? count / columns : 0;
    if (false SLOTS_OF_COLUMNS(OR_SLOT)) return columns;
    return count;
}

bool rule_slot_from_value(enum rule_id r, unsigned slot) { return false SLOTS_FROM_VALUE(OR_SLOT); }
bool rule_is_whole(enum rule_id r) { return false WHOLE_RULES(OR_ROW); }
bool rule_has_rows(enum rule_id r) { return r == RULE_groupadagrad || r == RULE_adafactor; }
bool rule_reads_value(enum rule_id r) { return !(false RULES_WITHOUT_VALUE(OR_RULE)); }
bool rule_takes_integers(enum rule_id r) { return false INTEGER_RULES(OR_RULE); }

/* groupadagrad: a row is what one index of the first dimension has; a value of fewer than two dimensions is a column.
 * adafactor: a column is one index of the last dimension. */
size_t rule_columns(enum rule_id r, const struct rule_key *key)
{
    if (!rule_has_rows(r) || key->count == 0) return (size_t)key->count;
    if (key->ndim < 2) return 1;
    return (size_t)(r == RULE_groupadagrad ? (int64_t)key->count / key->dims[0] : key->dims[key->ndim - 1]);
}
