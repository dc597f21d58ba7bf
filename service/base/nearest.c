#include "service/base/nearest.h"

#include <ctype.h>
#include <string.h>

enum { NAME_COMPARED_MAX = 48 };             /* longer words are near to nothing */

static unsigned least_of(unsigned a, unsigned b) { return a < b ? a : b; }

static bool same_letter(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

/* One row of the distance table. d[0] is the row to fill, d[1] and d[2] are those before it. Case does not count, so
 * that "SGD" is near "sgd". */
static void distance_row(unsigned *const d[3], const char *a, size_t i, const char *b, size_t b_size)
{
    d[0][0] = (unsigned)i;
    for (size_t j = 1; j <= b_size; j++) {
        unsigned best = least_of(d[1][j] + 1, d[0][j - 1] + 1);
        best = least_of(best, d[1][j - 1] + !same_letter(a[i - 1], b[j - 1]));
        if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]))
            best = least_of(best, d[2][j - 2] + 1);
        d[0][j] = best;
    }
}

static unsigned distance(const char *a, size_t a_size, const char *b, size_t b_size)
{
    unsigned rows[3][NAME_COMPARED_MAX + 1];

    for (size_t j = 0; j <= b_size; j++) rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= a_size; i++)
        distance_row((unsigned *const[3]){rows[i % 3], rows[(i + 2) % 3], rows[(i + 1) % 3]}, a, i, b, b_size);
    return rows[a_size % 3][b_size];
}

const char *nearest_name(struct bytes word, const char *const *names)
{
    const char *nearest = NULL;
    unsigned best = (unsigned)(least_of((unsigned)word.size, NAME_COMPARED_MAX) / 3) + 1;

    if (word.size > NAME_COMPARED_MAX) return NULL;
    for (; *names != NULL; names++) {
        size_t size = strlen(*names);
        unsigned d = size <= NAME_COMPARED_MAX ? distance(word.at, word.size, *names, size) : best;
        if (d >= best) continue;
        best = d;
        nearest = *names;
    }
    return nearest;
}
