/* Requests to attach that cannot be answered yet: the pool does not exist, or the hand-over before
 * it on the same connection is not over. At most 64 wait per connection; they go with it. Runs on
 * the service thread and on threads that register pools, with the bus mutex held. */
#include "pool/pending.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PER_LINE 64

/* Take out, and free, those of which `done` says so. */
static void sweep(struct tb__pool_layer *layer,
                  int (*done)(const struct tb__pending_open *pending, void *context), void *context)
{
    struct tb__pending_open **at = &layer->pending;
    while (*at != NULL) {
        struct tb__pending_open *pending = *at;
        if (done(pending, context)) {
            *at = pending->next;
            free(pending);
        } else {
            at = &pending->next;
        }
    }
}

static tb_status keep(struct tb__pool_layer *layer, struct tb__lifeline *line, uint32_t request,
                      const struct tb__pool_open_wire *wire)
{
    uint32_t count = 0;
    for (struct tb__pending_open *at = layer->pending; at != NULL; at = at->next) {
        count += at->line == line;
    }
    if (count >= MAX_PER_LINE) {
        return TB__FAIL(TB_E_LIMIT, "%d requests wait on this connection already", MAX_PER_LINE);
    }
    struct tb__pending_open *pending = calloc(1, sizeof *pending);
    if (pending == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a waiting request");
    }
    *pending = (struct tb__pending_open){layer->pending, line, request, *wire};
    layer->pending = pending;
    return TB_OK;
}

/* Attach or refuse. 0: it has to wait, for the pool or for the hand-over before it. */
static int answer_open(struct tb__pool_layer *layer, struct tb__lifeline *line, uint32_t request,
                       const struct tb__pool_open_wire *wire)
{
    tb_pool *pool = tb__pool_find(layer, wire);
    if (layer->closing) {
        TB__FAIL(TB_E_NOT_FOUND, "process `%s` is closing", tb_bus_name(layer->bus));
    } else if (pool == NULL && (wire->flags & TB__OPEN_WAIT)) {
        return 0;
    } else if (pool == NULL) {
        tb__pool_fail_missing(layer, wire);
    } else if (atomic_load(&pool->freed)) {
        TB__FAIL(TB_E_FREED, "pool `%s/%s` was freed: open the pool that replaces it",
                 tb_bus_name(layer->bus), pool->name);
    } else {
        return tb__attach(pool, line, request, wire);
    }
    tb__lifeline_reply_error(line, request);
    return 1;
}

void tb__pending_open(struct tb__pool_layer *layer, struct tb__lifeline *line, uint32_t request,
                      const struct tb__pool_open_wire *wire)
{
    if (!answer_open(layer, line, request, wire) && keep(layer, line, request, wire) != TB_OK) {
        tb__lifeline_reply_error(line, request);
    }
}

static int done_for_pool(const struct tb__pending_open *pending, void *context)
{
    tb_pool *pool = context;
    return (pending->wire.flags & TB__OPEN_BY_NAME) != 0 &&
           strcmp(pending->wire.name, pool->name) == 0 &&
           tb__attach(pool, pending->line, pending->request, &pending->wire);
}

void tb__pending_serve(struct tb__pool_layer *layer, tb_pool *pool)
{
    tb_error kept;
    tb_last_error(&kept);
    sweep(layer, done_for_pool, pool);
    /* Who was refused has been told; the pool is registered all the same. */
    tb__error_restore(&kept);
}

/* Whose request it is that ends here; for a cancelled one, its number. */
struct ending {
    struct tb__pool_layer *layer;
    const struct tb__lifeline *line;
    uint32_t request;
};

/* The line is free for another hand-over: whoever waits for that comes next. */
static int done_for_line(const struct tb__pending_open *pending, void *context)
{
    const struct ending *ending = context;
    return pending->line == ending->line &&
           answer_open(ending->layer, pending->line, pending->request, &pending->wire);
}

void tb__pending_landed(void *state, struct tb__lifeline *line)
{
    struct tb__pool_layer *layer = state;
    tb__bus_lock(layer->bus);
    sweep(layer, done_for_line, &(struct ending){.layer = layer, .line = line});
    tb__bus_unlock(layer->bus);
}

static int is_cancelled(const struct tb__pending_open *pending, void *context)
{
    const struct ending *ending = context;
    return pending->line == ending->line &&
           (ending->request == 0 || pending->request == ending->request);
}

void tb__pending_cancel(struct tb__pool_layer *layer, const struct tb__lifeline *line,
                        uint32_t request)
{
    sweep(layer, is_cancelled, &(struct ending){.line = line, .request = request});
}

static int always(const struct tb__pending_open *pending, void *context)
{
    (void)pending;
    (void)context;
    return 1;
}

void tb__pending_fini(struct tb__pool_layer *layer)
{
    sweep(layer, always, NULL);
}
