/* Tells the runner, if any, of pools that come and go. Runs on threads that register and free
 * pools; of those that go, also on the service thread. */
#define TB_LOG_TOPIC "pool"
#include "pool/announce.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"

/* Once, by the first thread that registers a pool; the others wait for its result. */
static void look_for_runner(struct tb__pool_layer *layer, const char *runner)
{
    pthread_mutex_lock(&layer->runner_mutex);
    if (!layer->runner_looked_up) {
        struct tb__lifeline *line;
        tb_error kept;
        tb_last_error(&kept);
        layer->runner_looked_up = 1;
        if (tb__bus_connect(layer->bus, runner, 0, tb__now_ns(), &line) == TB_OK) {
            atomic_store(&layer->runner, line);
        } else {
            tb_log_info("no runner to tell about pools: %s", tb_last_error_text());
            tb__error_restore(&kept); /* a pool is registered without one as well */
        }
    }
    pthread_mutex_unlock(&layer->runner_mutex);
}

void tb__pool_announce(tb_pool *pool, uint16_t type)
{
    struct tb__pool_layer *layer = pool->layer;
    const char *runner = getenv("TENSORBUS_RUNNER");
    /* Names that begin with `_` are the library's own pools: nobody has to free them. */
    if (runner == NULL || runner[0] == '\0' || pool->name[0] == '_') {
        return;
    }
    if (type == TB__MSG_POOL_ADDED) {
        look_for_runner(layer, runner);
    }
    struct tb__lifeline *line = atomic_load(&layer->runner);
    if (line != NULL) {
        struct tb__name_wire wire = {{0}};
        tb__name_copy(wire.name, pool->name);
        tb_status ignored = tb__lifeline_send(line, type, &wire, sizeof wire);
        (void)ignored;
    }
}
