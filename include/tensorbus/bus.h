/* The bus: a process's membership in a flow.
 *
 * A process opens one bus (more are possible, for tests), registers pools on it and opens readers
 * through it. The bus has an endpoint (a Unix socket in the runtime directory) through which other
 * processes reach what it owns, a doorbell that wakes its threads, and one service thread. Closing
 * it says goodbye: readers elsewhere keep the frames that they hold and then get TB_CLOSED. A
 * process that ends without closing is noticed within 10 ms; readers then get TB_E_OWNER_DIED.
 *
 * Runtime directory: $TENSORBUS_DIR, else $XDG_RUNTIME_DIR/tensorbus, else /tmp/tensorbus-<uid>.
 * Flow: $TENSORBUS_FLOW, else "default".
 *
 * fork: the child must not use the bus (TB_E_FORKED) and opens its own; the parent is undisturbed.
 */
#ifndef TENSORBUS_BUS_H
#define TENSORBUS_BUS_H

#include <tensorbus/handle.h>
#include <tensorbus/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tb_bus tb_bus;

typedef struct tb_bus_options {
    size_t size;           /* sizeof(tb_bus_options) */
    const char *name;      /* name of the endpoint; NULL: reachable by its id alone */
    const char *directory; /* runtime directory; NULL: from the environment */
    const char *flow;      /* NULL: from the environment */
    uint32_t allow_gid;    /* 0: same uid and root only; else a group whose members may connect */
    uint32_t max_connections; /* per uid; 0: 1024 */
    uint32_t max_pages;       /* readers and subscribers per uid; 0: 4096 */
    uint32_t hardened;        /* 1: make the process undumpable, so that no other process of the
                                 same uid can read its memory or descriptors through /proc */
} tb_bus_options;

/** Open a bus.
 *  Owner:   the caller; end with tb_bus_close(). Options are copied; NULL = all defaults.
 *  Returns: TB_OK, TB_E_INVALID (name, flow or path), TB_E_EXISTS (a live process has the name),
 *           TB_E_DENIED (the runtime directory is not safe), TB_E_NOT_FOUND (it vanishes again and
 *           again), TB_E_LIMIT (open files), TB_E_UNSUPPORTED (an option of a newer release),
 *           TB_E_SYSTEM, TB_E_NOMEM.
 *  Threads: any.   Waits: for the flow directory's lock: milliseconds, TB_E_SYSTEM after 10 s.
 *  Source:  src/endpoint/bus.c */
TB_API TB_MUST_USE tb_status tb_bus_open(const tb_bus_options *options, tb_bus **out);

/** Say goodbye and close. Pools, readers and frames of the bus that are still open are closed with
 *  it: their pointers are dead afterwards. NULL is allowed; in a forked child nothing happens.
 *  Owner:   takes the bus.
 *  Threads: one, after all other calls on the bus have returned.   Waits: milliseconds.
 *  Source:  src/endpoint/bus.c */
TB_API void tb_bus_close(tb_bus *bus);

/** The 64-bit endpoint id, first half of the uid of every pool of this bus.
 *  Returns: 0 for NULL.   Threads: any.   Waits: never.   Source: src/endpoint/bus.c */
TB_API uint64_t tb_bus_id(const tb_bus *bus);

/** Name of the endpoint.
 *  Owner:   borrowed, lives as long as the bus.   Returns: "" when it has none, and for NULL.
 *  Threads: any.   Waits: never.   Source: src/endpoint/bus.c */
TB_API const char *tb_bus_name(const tb_bus *bus);

#ifdef __cplusplus
}
#endif
#endif
