/* A network that breaks, for system tests: carries connections to a daemon and cuts all of them whenever it has carried
 * `cut_after` bytes. It has a thread of its own. */
#ifndef TESTS_LIB_PROXY_H
#define TESTS_LIB_PROXY_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

struct proxy {
    int listener;
    struct sockaddr_in target;
    atomic_size_t cut_after;     /* 0: never */
    size_t carried;
    atomic_uint cuts;
    atomic_bool stop;
    struct pair { int ends[2]; } pairs[64];
    unsigned count;
    char url[128];
    pthread_t thread;
};

/* url: of the daemon. Its connections are made to p->url. A failure ends the test. */
void proxy_start(struct proxy *p, const char *url, size_t cut_after);
void proxy_stop(struct proxy *p);

#endif
