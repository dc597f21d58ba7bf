#include "service/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool notify_manager(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t size = path != NULL ? strlen(path) : 0;
    int fd;

    if (size < 2 || size >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@')) return true;
    memcpy(to.sun_path, path, size);
    if (path[0] == '@') to.sun_path[0] = '\0'; /* an abstract one */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return true;
    bool full = sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&to,
                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)) < 0 &&
                (errno == EAGAIN || errno == ENOBUFS);
    close(fd);
    return !full;
}
