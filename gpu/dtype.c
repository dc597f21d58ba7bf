#include "gpu/dtype.h"

#include "gpu/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

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

bool dtype_put_real(enum dtype t, double v, void *to)
{
    float f = (float)v;
    uint16_t half;

    assert(!dtype_is_integer(t));
    if (t == DTYPE_f64) {
        memcpy(to, &v, sizeof v);
        return true;
    }
    if (t == DTYPE_f32) {
        memcpy(to, &f, sizeof f);
        return isfinite(f) || !isfinite(v);
    }
    half = t == DTYPE_f16 ? half_narrow_f16(f) : half_narrow_bf16(f);
    memcpy(to, &half, sizeof half);
    return isfinite(t == DTYPE_f16 ? half_widen_f16(half) : half_widen_bf16(half)) || !isfinite(v);
}
