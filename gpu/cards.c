#include "gpu/cards.h"

#include "gpu/plugin.h"

#include <stdio.h>
#include <string.h>

static bool has(const struct cards *c, unsigned number)
{
    for (unsigned i = 0; i < c->count; i++)
        if (c->numbers[i] == number) return true;
    return false;
}

/* A number of the list, as the name of one card. */
static bool add(struct cards *c, const char *number, size_t size)
{
    char name[16];
    struct card card;

    if (size == 0 || size > 4 || c->count == ARRAY_MEMBERS_MAX) return false;
    snprintf(name, sizeof name, "cuda:%.*s", (int)size, number);
    if (!card_parse(name, &card) || has(c, card.number)) return false;
    c->numbers[c->count++] = card.number;
    return true;
}

bool cards_parse(const char *name, struct cards *out)
{
    struct cards c = {0};

    if (strncmp(name, "cuda", 4) != 0 || (name[4] != '\0' && name[4] != ':')) return false;
    if (name[4] == '\0') c.count = 1;
    for (const char *at = name + 4; *at != '\0';) {
        size_t size = strcspn(at + 1, ",");
        if (!add(&c, at + 1, size)) return false;
        at += 1 + size;
    }
    *out = c;
    return true;
}

/* "cuda:0,1", and the card's own name; cards of one daemon are alike. */
static void name_all(struct device *d, const struct cards *c, const struct device *first)
{
    size_t at = 0;

    for (unsigned i = 0; i < c->count && at < sizeof d->name; i++)
        at += (size_t)snprintf(d->name + at, sizeof d->name - at, "%s%u", i == 0 ? "cuda:" : ",", c->numbers[i]);
    snprintf(d->card, sizeof d->card, "%s", first->card);
}

enum status cards_open(const struct cards *c, struct device **out, struct error *e)
{
    struct device *members[ARRAY_MEMBERS_MAX], *cpu = NULL;
    unsigned opened = 0;
    enum status s = STATUS_OK;

    while (opened < c->count && s == STATUS_OK) {
        struct card card = {.number = c->numbers[opened], .memory_max = c->memory_max};
        s = cuda_device_new(&card, &members[opened], e);
        if (s == STATUS_OK) opened++;
    }
    if (s == STATUS_OK && c->cpu_when_full) s = cpu_device_new(c->threads, &cpu, e);
    if (s == STATUS_OK && (opened > 1 || cpu != NULL)) {
        /* takes them also when it fails */
        s = array_device_new(&(struct array_config){.members = members, .count = opened, .cpu = cpu}, out, e);
        if (s == STATUS_OK) name_all(*out, c, array_member(*out, 0));
        return s;
    }
    if (s == STATUS_OK) *out = members[0];
    for (unsigned i = 0; i < opened && s != STATUS_OK; i++) device_free(members[i]);
    return s;
}
