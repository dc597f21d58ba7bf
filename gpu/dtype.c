#include "gpu/dtype.h"

static const struct {
    const char *name, *numpy;
    size_t size;
    enum dtype sum;
} facts[DTYPE_COUNT] = {
#define DTYPE_FACTS(number, name, size, sum, numpy) [number] = {#name, numpy, size, DTYPE_##sum},
    DTYPES(DTYPE_FACTS)
#undef DTYPE_FACTS
};

bool dtype_known(unsigned number) { return number < DTYPE_COUNT; }
size_t dtype_size(enum dtype t) { return facts[t].size; }
enum dtype dtype_sum(enum dtype t) { return facts[t].sum; }
bool dtype_is_integer(enum dtype t) { return facts[t].sum == DTYPE_i64; }
bool dtype_is_half(enum dtype t) { return t == DTYPE_f16 || t == DTYPE_bf16; }
const char *dtype_name(enum dtype t) { return facts[t].name; }
const char *dtype_numpy(enum dtype t) { return facts[t].numpy; }

bool dtype_parse(struct bytes name, enum dtype *out)
{
    for (unsigned t = 0; t < DTYPE_COUNT; t++) {
        if (!bytes_equal(name, bytes_text(facts[t].name)) && !bytes_equal(name, bytes_text(facts[t].numpy))) continue;
        *out = (enum dtype)t;
        return true;
    }
    return false;
}
