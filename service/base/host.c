#include "service/base/host.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

void host_id(char out[HOST_ID_SIZE])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, HOST_ID_SIZE - 1) : -1;

    if (fd >= 0) close(fd);
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}
