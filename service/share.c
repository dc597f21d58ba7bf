#include "service/share.h"

#include "service/base/mem.h"

#include <stddef.h>

struct share *share_new(void)
{
    struct share *s = mem_zero(sizeof *s);

    if (s != NULL) s->holds = 1;
    return s;
}

struct share *share_hold(struct share *s)
{
    if (s != NULL) s->holds++;
    return s;
}

void share_drop(struct share *s)
{
    if (s != NULL && --s->holds == 0) mem_free(s);
}

void share_add(struct share *s, int64_t bytes)
{
    if (s != NULL) s->staging += (uint64_t)bytes;
}
