/* The pool layer of a bus: serves other processes' requests about pools, and ends with the bus. The
 * handlers and the hang-up hook run on the service thread. */
#define TB_LOG_TOPIC "pool"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/near.h"
#include "pool/state.h"

struct tb__pool_layer *tb__pool_layer_of(const tb_bus *bus)
{
    return tb__bus_layer(bus, TB__LAYER_POOL);
}

uint32_t tb__thread_id(void)
{
    static _Thread_local uint32_t id;
    if (id == 0) {
        id = (uint32_t)syscall(SYS_gettid);
    }
    return id;
}

/* ---- finding ---- */

static tb_pool *find_pool(struct tb__pool_layer *layer, const struct tb__pool_open_wire *wire)
{
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        int same = wire->flags & TB__OPEN_BY_UID
                       ? memcmp(pool->uid, wire->uid, sizeof pool->uid) == 0
                       : strcmp(pool->name, wire->name) == 0;
        if (same) {
            return pool;
        }
    }
    return NULL;
}

static struct tb__attached *find_attached(struct tb__pool_layer *layer,
                                          const struct tb__lifeline *line, uint64_t reader_id,
                                          tb_pool **out_pool)
{
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        for (struct tb__attached *who = pool->attached; who != NULL; who = who->next) {
            if (who->reader_id == reader_id && who->line == line) {
                *out_pool = pool;
                return who;
            }
        }
    }
    return NULL;
}

static tb_status read_open(const struct tb__msg *msg, struct tb__pool_open_wire *wire)
{
    TB__TRY(tb__wire_body(msg, wire, sizeof *wire, 0));
    uint32_t by = wire->flags & (TB__OPEN_BY_NAME | TB__OPEN_BY_UID);
    if ((wire->flags & ~TB__OPEN_KNOWN_FLAGS) != 0 ||
        (by != TB__OPEN_BY_NAME && by != TB__OPEN_BY_UID)) {
        return TB__FAIL(TB_E_PROTOCOL, "pool request with flags 0x%x", wire->flags);
    }
    if (!tb__wire_name_ok(wire->name, sizeof wire->name, by == TB__OPEN_BY_UID)) {
        return TB__FAIL(TB_E_PROTOCOL, "pool request with an invalid name");
    }
    if (wire->max_leases > TB_MAX_LEASES) {
        return TB__FAIL(TB_E_PROTOCOL, "pool request for %u leases, at most %u are possible",
                        wire->max_leases, TB_MAX_LEASES);
    }
    return TB_OK;
}

static void fail_not_found(const struct tb__pool_layer *layer,
                           const struct tb__pool_open_wire *wire)
{
    if (wire->flags & TB__OPEN_BY_UID) {
        TB__FAIL(TB_E_STALE, "process `%s` has no such pool any more", tb_bus_name(layer->bus));
    } else {
        struct tb__near near;
        char text[TB__NEAR_TEXT];
        tb__near_begin(&near, wire->name);
        for (const tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
            if (!atomic_load(&pool->freed)) {
                tb__near_offer(&near, pool->name);
            }
        }
        tb__near_text(&near, text);
        TB__FAIL(TB_E_NOT_FOUND, "process `%s` has no pool `%s`; it has %s",
                 tb_bus_name(layer->bus), wire->name, text[0] != '\0' ? text : "none");
    }
}

/* ---- requests ---- */

static tb_status hold_request(struct tb__pool_layer *layer, struct tb__lifeline *line,
                              uint32_t request, const struct tb__pool_open_wire *wire)
{
    uint32_t count = 0;
    for (struct tb__pending_open *at = layer->pending; at != NULL; at = at->next) {
        count += at->line == line;
    }
    if (count >= 64) {
        return TB__FAIL(TB_E_LIMIT, "64 requests wait on this connection already");
    }
    struct tb__pending_open *pending = calloc(1, sizeof *pending);
    if (pending == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a waiting request");
    }
    *pending = (struct tb__pending_open){layer->pending, line, request, *wire};
    layer->pending = pending;
    return TB_OK;
}

/* Attach or refuse. 0: it has to wait, for the pool or for the hand-over before it. Bus mutex held.
 */
static int answer_open(struct tb__pool_layer *layer, struct tb__lifeline *line, uint32_t request,
                       const struct tb__pool_open_wire *wire)
{
    tb_pool *pool = find_pool(layer, wire);
    if (layer->closing) {
        TB__FAIL(TB_E_NOT_FOUND, "process `%s` is closing", tb_bus_name(layer->bus));
    } else if (pool == NULL && (wire->flags & TB__OPEN_WAIT)) {
        return 0;
    } else if (pool == NULL) {
        fail_not_found(layer, wire);
    } else if (atomic_load(&pool->freed)) {
        TB__FAIL(TB_E_FREED, "pool `%s/%s` was freed: open the pool that replaces it",
                 tb_bus_name(layer->bus), pool->name);
    } else {
        return tb__attach(pool, line, request, wire);
    }
    tb__lifeline_reply_error(line, request);
    return 1;
}

static void serve_open(struct tb__pool_layer *layer, struct tb__lifeline *line,
                       const struct tb__msg *msg)
{
    struct tb__pool_open_wire wire;
    if (read_open(msg, &wire) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    tb__bus_lock(layer->bus);
    if (!answer_open(layer, line, msg->request, &wire) &&
        hold_request(layer, line, msg->request, &wire) != TB_OK) {
        tb__lifeline_reply_error(line, msg->request);
    }
    tb__bus_unlock(layer->bus);
}

/* The line is free for another hand-over: whoever waits for that comes next. */
static void landed(void *state, struct tb__lifeline *line)
{
    struct tb__pool_layer *layer = state;
    tb__bus_lock(layer->bus);
    struct tb__pending_open **at = &layer->pending;
    while (*at != NULL) {
        struct tb__pending_open *pending = *at;
        if (pending->line != line || !answer_open(layer, line, pending->request, &pending->wire)) {
            at = &pending->next;
            continue;
        }
        *at = pending->next;
        free(pending);
    }
    tb__bus_unlock(layer->bus);
}

static void serve_mapped(struct tb__pool_layer *layer, struct tb__lifeline *line,
                         const struct tb__msg *msg)
{
    struct tb__reader_wire wire;
    if (tb__wire_body(msg, &wire, sizeof wire, 0) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    tb__bus_lock(layer->bus);
    /* Not for any number: else a client could have descriptors held open for all its readers. */
    if (wire.reader_id != 0 && wire.reader_id == tb__lifeline_flight_reader(line)) {
        tb__lifeline_flight_end(line);
    }
    tb_pool *pool;
    struct tb__attached *who = find_attached(layer, line, wire.reader_id, &pool);
    if (who != NULL && who->page_fd >= 0) {
        if (tb__page_seal(who->page_fd) != TB_OK) {
            tb_log_warn_limited("pool `%s`: %s", pool->name, tb_last_error_text());
        }
        tb__fd_close(&who->page_fd);
    }
    tb__bus_unlock(layer->bus);
}

static void serve_close(struct tb__pool_layer *layer, struct tb__lifeline *line,
                        const struct tb__msg *msg)
{
    struct tb__reader_wire wire;
    if (tb__wire_body(msg, &wire, sizeof wire, 0) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool;
    struct tb__attached *who = find_attached(layer, line, wire.reader_id, &pool);
    if (who != NULL) {
        if (wire.reader_id == tb__lifeline_flight_reader(line)) {
            tb__lifeline_flight_end(line);
        }
        tb__detach(pool, who);
    }
    tb__bus_unlock(layer->bus);
    tb__lifeline_reply(line, msg->request, TB__MSG_OK, NULL, 0, NULL, 0);
}

/* A wake-up descriptor must be what readers make: closing another one could hold us up, a TCP
 * socket that lingers for one. */
static tb_status check_poke(int borrow_fd)
{
    int domain = -1;
    socklen_t size = sizeof domain;
    if (getsockopt(borrow_fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) {
        return TB__FAIL(TB_E_PROTOCOL, "a wake-up descriptor that is no local socket");
    }
    return TB_OK;
}

static void serve_fd(struct tb__pool_layer *layer, struct tb__lifeline *line, struct tb__msg *msg)
{
    struct tb__reader_wire wire;
    tb_status status = tb__wire_body(msg, &wire, sizeof wire, 1);
    if (status == TB_OK) {
        status = check_poke(msg->fds[0]);
    }
    if (status != TB_OK) {
        tb__lifeline_reply_error(line, msg->request);
        if (status != TB_E_LIMIT) { /* which is our own */
            tb__lifeline_drop(line);
        }
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool;
    struct tb__attached *who = find_attached(layer, line, wire.reader_id, &pool);
    if (who != NULL && who->poke_fd < 0) {
        /* Pairs with the acquire load in tb__wake_armed(). */
        __atomic_store_n(&who->poke_fd, msg->fds[0], __ATOMIC_RELEASE);
        msg->fds[0] = -1;
    }
    tb__bus_unlock(layer->bus);
    tb__lifeline_reply(line, msg->request, TB__MSG_OK, NULL, 0, NULL, 0);
}

static void serve_free(struct tb__pool_layer *layer, struct tb__lifeline *line,
                       const struct tb__msg *msg)
{
    struct tb__pool_open_wire wire;
    if (read_open(msg, &wire) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool = find_pool(layer, &wire);
    int was_freed = pool == NULL || atomic_exchange(&pool->freed, 1);
    if (was_freed) {
        TB__FAIL(TB_E_FREED, "pool `%s/%s` does not exist or was freed", tb_bus_name(layer->bus),
                 pool != NULL ? pool->name : wire.name);
        tb__lifeline_reply_error(line, msg->request);
    } else {
        /* With the mutex held: its owner may see that it is freed and close it. */
        tb__a64_store_relaxed(&pool->segment.counters->freed, 1);
        tb__pages_tell(pool, TB__PAGE_FREED);
        tb__pool_announce(pool, TB__MSG_POOL_REMOVED);
        tb__lifeline_reply(line, msg->request, TB__MSG_OK, NULL, 0, NULL, 0);
        tb__bus_ring_self(layer->bus); /* writers may wait for a slot */
    }
    tb__bus_unlock(layer->bus);
}

static void serve_list(struct tb__pool_layer *layer, struct tb__lifeline *line,
                       const struct tb__msg *msg)
{
    char names[TB__WIRE_MAX_BODY];
    uint32_t used = 0;
    tb__bus_lock(layer->bus);
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        size_t length = strlen(pool->name) + 1;
        if (!atomic_load(&pool->freed) && used + length <= sizeof names) {
            memcpy(names + used, pool->name, length);
            used += (uint32_t)length;
        }
    }
    tb__bus_unlock(layer->bus);
    tb__lifeline_reply(line, msg->request, TB__MSG_POOL_NAMES, names, used, NULL, 0);
}

static void serve_observe(struct tb__pool_layer *layer, struct tb__lifeline *line,
                          const struct tb__msg *msg)
{
    struct tb__pool_open_wire wire;
    if (read_open(msg, &wire) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool = find_pool(layer, &wire);
    if (pool == NULL) {
        fail_not_found(layer, &wire);
        tb__lifeline_reply_error(line, msg->request);
    } else {
        struct tb__pool_wire answer = {.segment_bytes = pool->segment.view.segment_bytes,
                                       .max_leases = pool->max_leases,
                                       .flags = pool->export_path != NULL ? TB__POOL_EXPORTED : 0};
        memcpy(answer.uid, pool->uid, sizeof answer.uid);
        tb__name_copy(answer.name, pool->name);
        tb__lifeline_reply(line, msg->request, TB__MSG_POOL, &answer, sizeof answer,
                           &pool->segment_fd, 1);
    }
    tb__bus_unlock(layer->bus);
}

static void cancel_pending(struct tb__pool_layer *layer, const struct tb__lifeline *line,
                           uint32_t request)
{
    tb__bus_lock(layer->bus);
    struct tb__pending_open **at = &layer->pending;
    while (*at != NULL) {
        struct tb__pending_open *pending = *at;
        if (pending->line == line && (request == 0 || pending->request == request)) {
            *at = pending->next;
            free(pending);
        } else {
            at = &pending->next;
        }
    }
    tb__bus_unlock(layer->bus);
}

/* The caller gave up while our answer was on its way: it will never map what it was sent. */
static void cancel_answered(struct tb__pool_layer *layer, struct tb__lifeline *line,
                            uint32_t request)
{
    tb__bus_lock(layer->bus);
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        struct tb__attached *who = pool->attached;
        while (who != NULL &&
               !(who->line == line && who->request == request && who->page_fd >= 0)) {
            who = who->next;
        }
        if (who != NULL) {
            tb__lifeline_flight_end(line);
            tb__detach(pool, who);
            break;
        }
    }
    tb__bus_unlock(layer->bus);
}

static void serve(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    struct tb__pool_layer *layer = context;
    uint32_t request;
    switch (msg->type) {
    case TB__MSG_POOL_OPEN:
        serve_open(layer, line, msg);
        break;
    case TB__MSG_POOL_MAPPED:
        serve_mapped(layer, line, msg);
        break;
    case TB__MSG_READER_CLOSE:
        serve_close(layer, line, msg);
        break;
    case TB__MSG_READER_FD:
        serve_fd(layer, line, msg);
        break;
    case TB__MSG_POOL_FREE:
        serve_free(layer, line, msg);
        break;
    case TB__MSG_POOL_LIST:
        serve_list(layer, line, msg);
        break;
    case TB__MSG_POOL_OBSERVE:
        serve_observe(layer, line, msg);
        break;
    case TB__MSG_CANCEL:
        if (tb__wire_body(msg, &request, sizeof request, 0) == TB_OK && request != 0) {
            cancel_pending(layer, line, request);
            cancel_answered(layer, line, request);
        }
        break;
    default:
        break;
    }
}

/* ---- life ---- */

static void hangup(void *state, struct tb__lifeline *line)
{
    struct tb__pool_layer *layer = state;
    cancel_pending(layer, line, 0);
    tb__bus_lock(layer->bus);
    for (tb_reader *reader = layer->readers; reader != NULL; reader = reader->next) {
        /* An event loop hears of its owner's end, whoever else may have the other end open. */
        int fd = reader->line == line ? __atomic_load_n(&reader->poke_fd, __ATOMIC_ACQUIRE) : -1;
        if (fd >= 0) {
            shutdown(fd, SHUT_RDWR);
        }
    }
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        struct tb__attached *who = pool->attached;
        while (who != NULL) {
            int theirs = who->line == line && !tb__a32_load_relaxed(&who->gone);
            if (theirs) {
                tb__detach(pool, who);
            }
            /* Detaching may take others out that are gone: from the beginning, then. */
            who = theirs ? pool->attached : who->next;
        }
    }
    tb__bus_unlock(layer->bus);
}

/* A child must not keep the memory of pools alive, nor hold the ends of wake-up descriptors. */
static void forked(void *state)
{
    struct tb__pool_layer *layer = state;
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        tb__fd_close(&pool->segment_fd);
        for (struct tb__attached *who = pool->attached; who != NULL; who = who->next) {
            tb__fd_close(&who->page_fd);
            tb__fd_close(&who->poke_fd);
        }
    }
    for (tb_reader *reader = layer->readers; reader != NULL; reader = reader->next) {
        tb__fd_close(&reader->poke_fd);
    }
}

/* The bus says goodbye: readers elsewhere learn it through their pages, at once. */
static void closing(void *state)
{
    struct tb__pool_layer *layer = state;
    while (layer->readers != NULL) {
        tb_reader_close(layer->readers);
    }
    tb__watch_stop(layer);
    /* Whoever attached before this is told below; nobody attaches after it. */
    tb__bus_lock(layer->bus);
    layer->closing = 1;
    tb__bus_unlock(layer->bus);
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        tb__pages_tell(pool, atomic_load(&pool->freed) ? TB__PAGE_FREED : TB__PAGE_GOODBYE);
    }
    tb__lifeline_unref(atomic_exchange(&layer->runner, NULL));
}

static void destroy(void *state)
{
    struct tb__pool_layer *layer = state;
    while (layer->pools != NULL) {
        tb_pool_close(layer->pools);
    }
    while (layer->pending != NULL) {
        struct tb__pending_open *pending = layer->pending;
        layer->pending = pending->next;
        free(pending);
    }
    pthread_mutex_destroy(&layer->cache_mutex);
    pthread_mutex_destroy(&layer->runner_mutex);
    pthread_mutex_destroy(&layer->watch_mutex);
    free(layer);
}

static tb_status opening(tb_bus *bus)
{
    static const struct tb__bus_layer hooks = {closing, destroy, hangup, forked};
    struct tb__pool_layer *layer = calloc(1, sizeof *layer);
    if (layer == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a bus");
    }
    layer->bus = bus;
    pthread_mutex_init(&layer->cache_mutex, NULL);
    pthread_mutex_init(&layer->runner_mutex, NULL);
    pthread_mutex_init(&layer->watch_mutex, NULL);
    tb__bus_set_layer(bus, TB__LAYER_POOL, &hooks, layer);
    tb__bus_on_landed(bus, landed, layer);
    tb__bus_handle(bus, TB__MSG_POOL_OPEN, TB__MSG_POOL_OBSERVE, serve, layer);
    tb__bus_handle(bus, TB__MSG_CANCEL, TB__MSG_CANCEL, serve, layer);
    return TB_OK;
}

__attribute__((constructor)) static void register_layer(void)
{
    tb__bus_on_open(opening);
}

/* ---- the runner ---- */

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
