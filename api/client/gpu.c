#include "api/client/gpu.h"

#include "gpu/plugin.h"

static enum status begin(struct gpu *g, struct error *e)
{
    const struct device_plugin *p;
    struct error why;

    if (g->copier != NULL) return STATUS_OK;
    enum status s = plugin_open(&p, &why);
    if (s == STATUS_OK) s = p->trainer->copier_new(&g->copier, &why);
    if (s == STATUS_OK) g->ops = p->trainer;
    else error_set(e, REASON_NO_GPU, "a value lies on a GPU, and CUDA cannot be used: %.380s", why.text);
    return s == STATUS_OK ? s : reason_status(REASON_NO_GPU);
}

void gpu_fini(struct gpu *g)
{
    if (g->copier != NULL) g->ops->copier_free(g->copier);
    *g = (struct gpu){0};
}

enum status gpu_check(struct gpu *g, const void *at, uint64_t size, struct error *e)
{
    bool there = true;
    enum status s = begin(g, e);

    if (s == STATUS_OK && size > 0) s = g->ops->on_gpu(at, (size_t)size, &there, e);
    if (s != STATUS_OK || there) return s;
    return error_set(e, REASON_BAD_ARGUMENT, "%p is no address on a GPU that this process sees, or %llu bytes do not "
                     "lie there", at, (unsigned long long)size);
}

enum status gpu_copy(struct gpu *g, void *to, const void *from, uint64_t size, struct error *e)
{
    enum status s = begin(g, e);
    return s == STATUS_OK ? g->ops->copy(g->copier, to, from, (size_t)size, e) : s;
}

enum status gpu_settle(struct gpu *g, struct error *e)
{
    return g->copier != NULL ? g->ops->settle(g->copier, e) : STATUS_OK;
}

enum status gpu_open(struct gpu *g, const char *uuid, const struct mem_handle *handle, void **out, struct error *e)
{
    enum status s = begin(g, e);
    return s == STATUS_OK ? g->ops->open(uuid, handle, out, e) : s;
}

void gpu_close(struct gpu *g, void *at)
{
    if (at != NULL) g->ops->close(at);
}
