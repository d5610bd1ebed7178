/* Requests of other processes about this one's pools and their readers. All of it runs on the
 * service thread, which never waits. */
#define TB_LOG_TOPIC "pool"
#include "pool/serve.h"

#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/log.h"
#include "pool/announce.h"
#include "pool/pending.h"
#include "pool/trouble.h"

/* ---- what a request says; 0: it is malformed, and the line was dropped ---- */

static tb_status check_open(const struct tb__msg *msg, struct tb__pool_open_wire *wire)
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

static int read_open(struct tb__lifeline *line, const struct tb__msg *msg,
                     struct tb__pool_open_wire *wire)
{
    if (check_open(msg, wire) != TB_OK) {
        tb__lifeline_drop(line);
        return 0;
    }
    return 1;
}

static int read_reader(struct tb__lifeline *line, const struct tb__msg *msg, uint64_t *reader_id)
{
    struct tb__reader_wire wire;
    if (tb__wire_body(msg, &wire, sizeof wire, 0) != TB_OK) {
        tb__lifeline_drop(line);
        return 0;
    }
    *reader_id = wire.reader_id;
    return 1;
}

/* ---- which reader it means; bus mutex held ---- */

static int has_id(const struct tb__attached *who, uint64_t reader_id)
{
    return who->reader_id == reader_id;
}

/* Whether it was answered under this request, and has not said yet that it mapped what it got. */
static int was_answered(const struct tb__attached *who, uint64_t request)
{
    return who->request == request && who->page_fd >= 0;
}

static struct tb__attached *
find_attached(struct tb__pool_layer *layer, const struct tb__lifeline *line,
              int (*is)(const struct tb__attached *who, uint64_t number), uint64_t number,
              tb_pool **out_pool)
{
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        for (struct tb__attached *who = pool->attached; who != NULL; who = who->next) {
            if (who->line == line && is(who, number)) {
                *out_pool = pool;
                return who;
            }
        }
    }
    return NULL;
}

/* ---- requests ---- */

static void serve_open(struct tb__pool_layer *layer, struct tb__lifeline *line,
                       const struct tb__msg *msg)
{
    struct tb__pool_open_wire wire;
    if (read_open(line, msg, &wire)) {
        tb__bus_lock(layer->bus);
        tb__pending_open(layer, line, msg->request, &wire);
        tb__bus_unlock(layer->bus);
    }
}

static void serve_mapped(struct tb__pool_layer *layer, struct tb__lifeline *line,
                         const struct tb__msg *msg)
{
    uint64_t reader_id;
    if (!read_reader(line, msg, &reader_id)) {
        return;
    }
    tb__bus_lock(layer->bus);
    /* Not for any number: else a client could have descriptors held open for all its readers. */
    if (reader_id != 0 && reader_id == tb__lifeline_flight_reader(line)) {
        tb__lifeline_flight_end(line);
    }
    tb_pool *pool;
    struct tb__attached *who = find_attached(layer, line, has_id, reader_id, &pool);
    if (who != NULL && who->page_fd >= 0) {
        if (tb__page_seal(who->page_fd) != TB_OK) {
            tb_log_warn_limited("pool `%s`: %s", pool->name, tb_last_error_text());
        }
        tb__fd_close(&who->page_fd);
    }
    if (who != NULL && who->gates_fd >= 0) {
        if (tb__gates_seal(who->gates_fd) != TB_OK) {
            tb_log_warn_limited("pool `%s`: %s", pool->name, tb_last_error_text());
        }
        tb__fd_close(&who->gates_fd);
    }
    tb__bus_unlock(layer->bus);
}

static void serve_close(struct tb__pool_layer *layer, struct tb__lifeline *line,
                        const struct tb__msg *msg)
{
    uint64_t reader_id;
    if (!read_reader(line, msg, &reader_id)) {
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool;
    struct tb__attached *who = find_attached(layer, line, has_id, reader_id, &pool);
    if (who != NULL) {
        if (reader_id == tb__lifeline_flight_reader(line)) {
            tb__lifeline_flight_end(line);
        }
        tb__detach(pool, who);
    }
    tb__bus_unlock(layer->bus);
    tb__lifeline_reply_ok(line, msg->request);
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
    struct tb__attached *who = find_attached(layer, line, has_id, wire.reader_id, &pool);
    if (who != NULL && atomic_load_explicit(&who->poke_fd, memory_order_relaxed) < 0) {
        /* Pairs with the acquire load in ring_one() of wake.c. */
        atomic_store_explicit(&who->poke_fd, msg->fds[0], memory_order_release);
        msg->fds[0] = -1;
    }
    tb__bus_unlock(layer->bus);
    tb__lifeline_reply_ok(line, msg->request);
}

static void serve_free(struct tb__pool_layer *layer, struct tb__lifeline *line,
                       const struct tb__msg *msg)
{
    struct tb__pool_open_wire wire;
    if (!read_open(line, msg, &wire)) {
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool = tb__pool_find(layer, &wire);
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
        tb__lifeline_reply_ok(line, msg->request);
        tb__bus_ring_self(layer->bus); /* writers may wait for a slot */
    }
    tb__bus_unlock(layer->bus);
}

/* Names of pools older than the number asked for, as many as fit. Pools may come and go between two
 * requests: none that was there throughout is left out or comes twice. */
static void serve_list(struct tb__pool_layer *layer, struct tb__lifeline *line,
                       const struct tb__msg *msg)
{
    struct tb__pool_list_wire wire;
    char body[TB__WIRE_MAX_BODY];
    uint32_t used = sizeof wire;
    uint64_t last = 0;
    if (tb__wire_body(msg, &wire, sizeof wire, 0) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool = layer->pools;
    for (; pool != NULL; pool = pool->next) {
        if (atomic_load(&pool->freed) || (wire.before != 0 && pool->number >= wire.before)) {
            continue;
        }
        size_t length = strlen(pool->name) + 1;
        if (used + length > sizeof body) {
            break;
        }
        memcpy(body + used, pool->name, length);
        used += (uint32_t)length;
        last = pool->number;
    }
    wire.before = pool != NULL ? last : 0;
    tb__bus_unlock(layer->bus);
    memcpy(body, &wire, sizeof wire);
    tb__lifeline_reply(line, &(struct tb__packet){.type = TB__MSG_POOL_NAMES,
                                                  .request = msg->request,
                                                  .body = body,
                                                  .body_bytes = used});
}

static void serve_observe(struct tb__pool_layer *layer, struct tb__lifeline *line,
                          const struct tb__msg *msg)
{
    struct tb__pool_open_wire wire;
    if (!read_open(line, msg, &wire)) {
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool = tb__pool_find(layer, &wire);
    if (pool == NULL) {
        tb__pool_fail_missing(layer, &wire);
        tb__lifeline_reply_error(line, msg->request);
    } else {
        struct tb__pool_wire answer = {.segment_bytes = pool->segment.view.segment_bytes,
                                       .max_leases = pool->max_leases,
                                       .flags = pool->export_path != NULL ? TB__POOL_EXPORTED : 0};
        memcpy(answer.uid, pool->uid, sizeof answer.uid);
        tb__name_copy(answer.name, pool->name);
        tb__lifeline_reply(line, &(struct tb__packet){.type = TB__MSG_POOL,
                                                      .request = msg->request,
                                                      .body = &answer,
                                                      .body_bytes = sizeof answer,
                                                      .borrow_fds = &pool->segment_fd,
                                                      .fd_count = 1});
    }
    tb__bus_unlock(layer->bus);
}

static void serve_readers(struct tb__pool_layer *layer, struct tb__lifeline *line,
                          const struct tb__msg *msg)
{
    struct tb__pool_open_wire wire;
    struct {
        struct tb__reader_names_wire head;
        struct tb__reader_name_wire names[TB__READERS_LISTED];
    } body;
    if (!read_open(line, msg, &wire)) {
        return;
    }
    tb__bus_lock(layer->bus);
    tb_pool *pool = tb__pool_find(layer, &wire);
    if (pool == NULL) {
        tb__pool_fail_missing(layer, &wire);
        tb__lifeline_reply_error(line, msg->request);
    } else {
        uint32_t count = tb__stats_readers(pool, body.names, TB__READERS_LISTED);
        uint32_t listed = count < TB__READERS_LISTED ? count : TB__READERS_LISTED;
        body.head = (struct tb__reader_names_wire){count, listed};
        tb__lifeline_reply(
            line, &(struct tb__packet){
                      .type = TB__MSG_READER_NAMES,
                      .request = msg->request,
                      .body = &body,
                      .body_bytes = (uint32_t)(sizeof body.head + listed * sizeof body.names[0])});
    }
    tb__bus_unlock(layer->bus);
}

static void serve_trouble(struct tb__pool_layer *layer, struct tb__lifeline *line,
                          const struct tb__msg *msg)
{
    struct tb__trouble_wire wire;
    tb_pool *pool;
    if (tb__wire_body(msg, &wire, sizeof wire, 0) != TB_OK || wire.status >= 0) {
        tb__lifeline_drop(line);
        return;
    }
    tb__bus_lock(layer->bus);
    struct tb__attached *who = find_attached(layer, line, has_id, wire.reader_id, &pool);
    if (who != NULL) {
        tb__trouble_note(pool, who, &wire);
    }
    tb__bus_unlock(layer->bus);
}

static void serve_cancel(struct tb__pool_layer *layer, struct tb__lifeline *line,
                         const struct tb__msg *msg)
{
    uint32_t request;
    if (tb__wire_body(msg, &request, sizeof request, 0) != TB_OK || request == 0) {
        return;
    }
    tb__bus_lock(layer->bus);
    tb__pending_cancel(layer, line, request);
    /* Our answer may have been on its way already: the caller will never map what it was sent. */
    tb_pool *pool;
    struct tb__attached *who = find_attached(layer, line, was_answered, request, &pool);
    if (who != NULL) {
        tb__lifeline_flight_end(line);
        tb__detach(pool, who);
    }
    tb__bus_unlock(layer->bus);
}

void tb__pool_serve(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    struct tb__pool_layer *layer = context;
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
    case TB__MSG_POOL_READERS:
        serve_readers(layer, line, msg);
        break;
    case TB__MSG_READER_TROUBLE:
        serve_trouble(layer, line, msg);
        break;
    case TB__MSG_CANCEL:
        serve_cancel(layer, line, msg);
        break;
    default:
        break;
    }
}
