/* Names for tests of what a host name stands for, whatever this machine's hosts file says: getaddrinfo of a test program
 * knows these, and asks the C library's for all others.
 *
 *   two.test   127.0.0.1, twice, as a hosts file of two lines gives it; 192.0.2.9, which no machine has; 127.0.0.2
 *   late.test  127.0.0.9, where nobody listens, then 127.0.0.1 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name, *address[4]; } names[] = {
    {"two.test", {"127.0.0.1", "127.0.0.1", "192.0.2.9", "127.0.0.2"}},
    {"late.test", {"127.0.0.9", "127.0.0.1"}},
};

typedef int look_up(const char *restrict, const char *restrict, const struct addrinfo *restrict, struct addrinfo **restrict);

__attribute__((visibility("default"))) look_up getaddrinfo;

int getaddrinfo(const char *restrict host, const char *restrict port, const struct addrinfo *restrict hints,
                struct addrinfo **restrict out)
{
    look_up *real = (look_up *)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *const *address = NULL;
    struct addrinfo **at = out;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && host != NULL; i++)
        if (strcmp(host, names[i].name) == 0) address = names[i].address;
    if (address == NULL) return real(host, port, hints, out);
    for (unsigned i = 0; i < 4 && address[i] != NULL; i++) {
        if (real(address[i], port, hints, at) != 0) abort();
        while (*at != NULL) at = &(*at)->ai_next;
    }
    return 0;
}
