/* exp, log and tanh of the updater language: in double, out of + - * / and the bits of numbers only, which IEEE 754 rounds
 * in one way, so that every processor and every C library gives the same bits. A float's result is this one rounded.
 * Errors stay below 1.5 units in the last place of a double (test_program.c), so a float is nearly always the nearest.
 *
 * No guard: the includer says what becomes of the text. MATH(...) is the code itself for the CPU, and a string literal for
 * the CUDA text. Before that it defines
 *     MATH_INLINE          how a function begins
 *     math_bits(double)    its bits as an unsigned long long
 *     math_real(bits)      the double with these bits */

MATH(
/* condition ? a : b without a branch, which keeps compilers from vector code. */
MATH_INLINE double math_choose(bool condition, double a, double b)
{
    unsigned long long mask = 0 - (unsigned long long)condition;
    return math_real((math_bits(a) & mask) | (math_bits(b) & ~mask));
}

/* 0x1.8p52 + k, for whole k: the number's low bits are k's. 2^k, for -1022 <= k <= 1023. */
MATH_INLINE double math_power_of_two(double shifted)
{
    return math_real((math_bits(shifted) + 1023) << 52);
}

/* The whole number next to z / log(2). */
MATH_INLINE double math_halvings(double z)
{
    return z * 0x1.71547652b82fep+0 + 0x1.8p52 - 0x1.8p52;
}

/* e^(z - k*log(2)) - 1, where the exponent is at most log(2)/2 in size. log(2) is taken in two parts, the first so short
 * that its product with k is exact; the series ends where its rest is below 2^-57. */
MATH_INLINE double math_exp_rest(double z, double k)
{
    double r = (z - k * 0x1.62e42fefa38p-1) - k * 0x1.ef35793c7673p-45;
    double q = 1.0 / 6227020800;

    q = q * r + 1.0 / 479001600;
    q = q * r + 1.0 / 39916800;
    q = q * r + 1.0 / 3628800;
    q = q * r + 1.0 / 362880;
    q = q * r + 1.0 / 40320;
    q = q * r + 1.0 / 5040;
    q = q * r + 1.0 / 720;
    q = q * r + 1.0 / 120;
    q = q * r + 1.0 / 24;
    q = q * r + 1.0 / 6;
    q = q * r + 0.5;
    return r + r * r * q;
}

/* The power of two is multiplied in by halves: it may lie outside of what a number can be, where the result does not. */
MATH_INLINE double math_exp(double x)
{
    double z = math_choose(x > 710, 710, x);
    z = math_choose(z < -746, -746, z);
    double k = math_halvings(z);
    double half = k * 0.5 + 0x1.8p52;
    double rest = k - (half - 0x1.8p52) + 0x1.8p52;
    return (1 + math_exp_rest(z, k)) * math_power_of_two(half) * math_power_of_two(rest);
}

/* x = 2^k * m, sqrt(1/2) <= m < sqrt(2); then log(m) = 2*atanh(f / (2 + f)) with f = m - 1, of which f - f*f/2 is split
 * off, because it is nearly exact. */
MATH_INLINE double math_log(double x)
{
    double normal = math_choose(x < 0x1p-1022, x * 0x1p54, x);
    unsigned long long top = math_bits(normal) + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
    double k = math_real(top >> 52 | 0x4330000000000000ull) - (0x1p52 + 1023);
    k = math_choose(x < 0x1p-1022, k - 54, k);
    double f = math_real((top & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1;
    double s = f / (2 + f);
    double z = s * s;
    double half = 0.5 * f * f;
    double q = 2.0 / 23;

    q = q * z + 2.0 / 21;
    q = q * z + 2.0 / 19;
    q = q * z + 2.0 / 17;
    q = q * z + 2.0 / 15;
    q = q * z + 2.0 / 13;
    q = q * z + 2.0 / 11;
    q = q * z + 2.0 / 9;
    q = q * z + 2.0 / 7;
    q = q * z + 2.0 / 5;
    q = q * z + 2.0 / 3;
    q = q * z;
    double v = k * 0x1.62e42fefa38p-1 - ((half - (s * (half + q) + k * 0x1.ef35793c7673p-45)) - f);
    v = math_choose(x > 0x1.fffffffffffffp1023, x, v);
    v = math_choose(x == 0, math_real(0xfff0000000000000ull), v);
    v = math_choose(x < 0, math_real(0x7ff8000000000000ull), v);
    return math_choose(x == x, v, x);
}

/* -m / (2 + m) with m = e^(-2|x|) - 1, which loses nothing for small x; the sign is x's. */
MATH_INLINE double math_tanh(double x)
{
    double size = math_real(math_bits(x) & 0x7fffffffffffffffull);
    double z = math_choose(size > 22, -44, -2 * size);
    double k = math_halvings(z);
    double power = math_power_of_two(k + 0x1.8p52);
    double m = power * math_exp_rest(z, k) + (power - 1);
    double t = -m / (2 + m);
    return math_real((math_bits(t) & 0x7fffffffffffffffull) | (math_bits(x) & 0x8000000000000000ull));
}
)
