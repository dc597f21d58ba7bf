/* Widening and narrowing of f16 and bf16; gpu/half.h says what they promise.
 *
 * No guard: the includer says what becomes of the text. HALF(...) is the code itself for a compiler that reads this file,
 * and a string literal for the CUDA text. Before that it defines
 *     HALF_INLINE              how a function begins
 *     half_float(uint32_t)     the float with these bits
 *     half_bits(float)         its bits as a uint32_t */

HALF(
HALF_INLINE float half_widen_bf16(uint16_t h)
{
    uint32_t x = (uint32_t)h << 16;
    return half_float((x & 0x7fffffff) > 0x7f800000 ? x | 0x400000 : x);
}

HALF_INLINE uint16_t half_narrow_bf16(float f)
{
    uint32_t x = half_bits(f), rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16, nan = x >> 16 | 0x40;
    return (uint16_t)((x & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* Written with masks: a conditional around a float operation, which might trap, keeps compilers from making vectors. */
HALF_INLINE uint32_t half_choose(bool which, uint32_t yes, uint32_t no)
{
    uint32_t mask = 0u - (uint32_t)which;
    return (yes & mask) | (no & ~mask);
}

/* Exponents move by 112. A subnormal m * 2^-24 is (2^-14 + m * 2^-24) - 2^-14; the first of these has m as its
 * mantissa. */
HALF_INLINE float half_widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, m = (uint32_t)(h & 0x7fff) << 13;
    uint32_t normal = m + (112u << 23), small = half_bits(half_float(m + (113u << 23)) - 0x1p-14f);
    uint32_t quiet = (uint32_t)(m > 31u << 23) << 22, x = half_choose(m < 1u << 23, small, normal);

    return half_float(sign | half_choose(m >= 31u << 23, m | 0x7f800000 | quiet, x));
}

/* Below 2^-14 the result's unit is 2^-24, which is that of floats from 0.5 to 1: adding 0.5 rounds. */
HALF_INLINE uint16_t half_narrow_f16(float f)
{
    uint32_t bits = half_bits(f), x = bits & 0x7fffffff, is_small = 0u - (uint32_t)(x < 113u << 23);
    uint32_t normal = (x + 0xfff + (x >> 13 & 1) - (112u << 23)) >> 13, nan = 0x7e00 | (x >> 13 & 0x3ff);
    uint32_t small = half_bits(half_float(x & is_small) + 0.5f) - half_bits(0.5f);
    uint32_t h = (small & is_small) | (normal & ~is_small);

    h = half_choose(x >= 0x477ff000, 0x7c00, h); /* from 65520 on the nearest is 65536, which there is not */
    h = half_choose(x > 0x7f800000, nan, h);
    return (uint16_t)((bits >> 16 & 0x8000) | h);
}
)
