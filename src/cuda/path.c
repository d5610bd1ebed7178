/* The choice of a path. */
#include "cuda/path.h"

#include <stddef.h>

static enum tb__path between_gpus(const struct tb__path_case *c)
{
    if (!c->exportable) {
        return TB__PATH_STAGED;
    }
    if (c->same_device) {
        return TB__PATH_SAME_DEVICE;
    }
    return c->peer ? TB__PATH_PEER : TB__PATH_STAGED;
}

enum tb__path tb__path_choose(const struct tb__path_case *c, uint64_t register_min_bytes)
{
    if (c->bytes == 0) {
        return TB__PATH_NONE;
    }
    if (c->src == TB__GPU && c->dst == TB__GPU) {
        return between_gpus(c);
    }
    if (c->src != TB__GPU && c->dst != TB__GPU) {
        return TB__PATH_CPU;
    }
    if (c->src != TB__HOST_PAGEABLE && c->dst != TB__HOST_PAGEABLE) {
        return TB__PATH_DMA;
    }
    return c->bytes >= register_min_bytes ? TB__PATH_REGISTER : TB__PATH_DRIVER;
}

const char *tb__path_name(enum tb__path path)
{
    static const char *const names[] = {"none",     "cpu",         "dma",  "driver",
                                        "register", "same-device", "peer", "staged"};
    return path >= 0 && path < TB__PATHS ? names[path] : "?";
}

int tb__should_register(uint64_t bytes, uint64_t times_seen, uint64_t register_min_bytes)
{
    return bytes > 0 && (times_seen > 0 || bytes >= register_min_bytes);
}
