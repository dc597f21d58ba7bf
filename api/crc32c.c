/* CRC-32C by tables of eight bytes a step, or by the processor's instruction where there is one. */
#include "api/wire.h"

#include <pthread.h>
#include <string.h>

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ 0x82f63b78u : c >> 1;
        table[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++) table[k][n] = (table[k - 1][n] >> 8) ^ table[0][table[k - 1][n] & 0xff];
}

static uint32_t by_table(uint32_t c, const uint8_t *p, size_t size)
{
    pthread_once(&once, fill);
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        w ^= c;
        c = table[7][w & 0xff] ^ table[6][(w >> 8) & 0xff] ^ table[5][(w >> 16) & 0xff] ^ table[4][(w >> 24) & 0xff] ^
            table[3][(w >> 32) & 0xff] ^ table[2][(w >> 40) & 0xff] ^ table[1][(w >> 48) & 0xff] ^ table[0][w >> 56];
    }
    while (size-- > 0) c = (c >> 8) ^ table[0][(c ^ *p++) & 0xff];
    return c;
}

#if defined __x86_64__
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t c, const uint8_t *p, size_t size)
{
    uint64_t wide = c;

    for (; size >= 8; p += 8, size -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        wide = __builtin_ia32_crc32di(wide, w);
    }
    c = (uint32_t)wide;
    while (size-- > 0) c = __builtin_ia32_crc32qi(c, *p++);
    return c;
}
#endif

uint32_t crc32c_by_table(uint32_t crc, const void *at, size_t size) { return ~by_table(~crc, at, size); }

uint32_t crc32c(uint32_t crc, const void *at, size_t size)
{
#if defined __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(~crc, at, size);
#endif
    return crc32c_by_table(crc, at, size);
}
