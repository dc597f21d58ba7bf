#include "tests/lib/proxy.h"

#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void close_pair(struct proxy *p, unsigned i)
{
    struct linger at_once = {1, 0};

    for (int k = 0; k < 2; k++) {
        setsockopt(p->pairs[i].ends[k], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(p->pairs[i].ends[k]);
    }
    p->pairs[i] = p->pairs[--p->count];
}

static void accept_pair(struct proxy *p)
{
    int in = accept(p->listener, NULL, NULL), out = socket(AF_INET, SOCK_STREAM, 0);

    if (in < 0 || p->count == 64 || connect(out, (struct sockaddr *)&p->target, sizeof p->target) != 0) {
        close(in);
        close(out);
        return;
    }
    p->pairs[p->count++] = (struct pair){{in, out}};
}

static bool carry(struct proxy *p, int from, int to)
{
    static char block[8192];
    ssize_t size = read(from, block, sizeof block);

    if (size <= 0) return false;
    p->carried += (size_t)size;
    size_t cut_after = atomic_load(&p->cut_after);
    if (cut_after > 0 && p->carried > cut_after) size = size / 2; /* a cut in the middle of a frame */
    for (ssize_t done = 0, n; done < size; done += n)
        if ((n = write(to, block + done, (size_t)(size - done))) <= 0) return false;
    return true;
}

static void *run_proxy(void *arg)
{
    struct proxy *p = arg;

    while (!atomic_load(&p->stop)) {
        struct pollfd fds[1 + 128] = {{.fd = p->listener, .events = POLLIN}};
        unsigned count = p->count;
        for (unsigned i = 0; i < 2 * count; i++)
            fds[1 + i] = (struct pollfd){.fd = p->pairs[i / 2].ends[i % 2], .events = POLLIN};
        poll(fds, 1 + 2 * count, 50);
        for (unsigned i = count; i-- > 0;) {
            bool alive = true;
            for (unsigned k = 0; k < 2 && alive; k++)
                if (fds[1 + 2 * i + k].revents != 0) alive = carry(p, p->pairs[i].ends[k], p->pairs[i].ends[1 - k]);
            if (!alive) close_pair(p, i);
        }
        if (fds[0].revents != 0) accept_pair(p);
        size_t cut_after = atomic_load(&p->cut_after);
        if (cut_after == 0 || p->carried <= cut_after) continue;
        while (p->count > 0) close_pair(p, 0);
        p->carried = 0;
        atomic_fetch_add(&p->cuts, 1);
    }
    while (p->count > 0) close_pair(p, 0);
    return NULL;
}

void proxy_start(struct proxy *p, const char *url, size_t cut_after)
{
    struct sockaddr_in me = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof me;

    memset(p, 0, sizeof *p);
    p->target = me;
    p->target.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    atomic_store(&p->cut_after, cut_after);
    p->listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(p->listener, (struct sockaddr *)&me, sizeof me) == 0 && listen(p->listener, 64) == 0);
    getsockname(p->listener, (struct sockaddr *)&me, &size);
    snprintf(p->url, sizeof p->url, "tcp://127.0.0.1:%u", ntohs(me.sin_port));
    CHECK(pthread_create(&p->thread, NULL, run_proxy, p) == 0);
}

void proxy_stop(struct proxy *p)
{
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    close(p->listener);
}
