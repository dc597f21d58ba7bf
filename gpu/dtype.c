#include "gpu/dtype.h"

const struct dtype_facts dtype_facts[DTYPE_COUNT] = {
#define DTYPE_FACTS(number, name, size, sum, numpy) [number] = {#name, numpy, size, DTYPE_##sum},
    DTYPES(DTYPE_FACTS)
#undef DTYPE_FACTS
};

bool dtype_parse(struct bytes name, enum dtype *out)
{
    for (unsigned t = 0; t < DTYPE_COUNT; t++) {
        if (!bytes_equal(name, bytes_text(dtype_facts[t].name)) && !bytes_equal(name, bytes_text(dtype_facts[t].numpy))) continue;
        *out = (enum dtype)t;
        return true;
    }
    return false;
}
