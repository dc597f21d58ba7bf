#include "gpu/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CARDS_MAX = 64 };

bool card_parse(const char *name, struct card *out)
{
    char *end;
    unsigned long n = 0;

    if (strncmp(name, "cuda", 4) != 0) return false;
    if (name[4] != '\0') {
        if (name[4] != ':' || name[5] < '0' || name[5] > '9') return false;
        n = strtoul(name + 5, &end, 10);
        if (*end != '\0' || n >= CARDS_MAX) return false;
    }
    *out = (struct card){.number = (unsigned)n};
    return true;
}

/* The file that this code was loaded from. */
static bool own_path(char out[PATH_MAX])
{
    struct link_map *map = NULL;
    Dl_info info;
    bool found = dladdr1((const void *)&plugin_open, &info, (void **)&map, RTLD_DL_LINKMAP) != 0 && map != NULL;

    /* The loader has no name for the program itself. */
    return realpath(found && map->l_name[0] != '\0' ? map->l_name : "/proc/self/exe", out) != NULL;
}

static enum status plugin_path(char out[PATH_MAX + 32], struct error *e)
{
    const char *told = secure_getenv("PARAMD_CUDA_PLUGIN");
    char own[PATH_MAX];

    if (told != NULL && told[0] != '\0') {
        if (told[0] != '/' || strlen(told) >= PATH_MAX)
            return error_set(e, REASON_BAD_ARGUMENT, "PARAMD_CUDA_PLUGIN is no absolute path: %.200s", told);
        strcpy(out, told);
        return STATUS_OK;
    }
    if (!own_path(own)) return error_set(e, REASON_SYSTEM, "cannot tell where this program lies");
    *strrchr(own, '/') = '\0';
    snprintf(out, PATH_MAX + 32, "%s/paramd-cuda.so", own);
    return STATUS_OK;
}

enum status plugin_open(const struct device_plugin **out, struct error *e)
{
    const struct device_plugin *p = NULL;
    char path[PATH_MAX + 32];
    enum status s = plugin_path(path, e);

    if (s != STATUS_OK) return s;
    if (access(path, F_OK) != 0)
        return error_set(e, REASON_UNIMPLEMENTED, "%s: there is no such file; `make` builds it where nvcc is", path);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (so == NULL) return error_set(e, REASON_UNIMPLEMENTED, "%s", dlerror());
    p = dlsym(so, DEVICE_PLUGIN_SYMBOL);
    if (p == NULL) return error_set(e, REASON_UNIMPLEMENTED, "%s is no device plug-in of paramd", path);
    if (p->abi != DEVICE_PLUGIN_ABI)
        return error_set(e, REASON_UNIMPLEMENTED, "%s is of another build of paramd; build both together", path);
    *out = p;
    return STATUS_OK;
}

enum status cuda_device_new(const struct card *c, struct device **out, struct error *e)
{
    const struct device_plugin *p;
    enum status s = plugin_open(&p, e);

    return s == STATUS_OK ? p->open(c, out, e) : s;
}
