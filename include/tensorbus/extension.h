/* The extension channel: opaque values under (space, key), kept by the runner of the flow.
 *
 * For what nodes built on top of Tensorbus must tell each other and what must not outlive its
 * maker: descriptors of memory, of devices, of files. A node stores a value, sends its key as an
 * ordinary message, others load it. Nobody looks into a value. It lives until anybody drops it, its
 * owner's process ends (in order or by a crash), or the flow ends; a restarted node begins with
 * none. Whoever stored or loaded a key is told when it is dropped, the dropping node included: each
 * process has a list of such keys, which tb_extension_drain() empties. The list fills by itself,
 * whether or not the node asks for events.
 *
 * `space` keeps users of the channel apart: 0 to TB_EXTENSION_SPACE_MAX bytes of UTF-8; keys have 0
 * to TB_EXTENSION_KEY_MAX. A flow has 8192 values; when they are used up, a node that has fewer
 * than 16 may still store up to 16. The values of one node have 256 MiB at most, keys included, and
 * 64 of them may be larger than 32 KiB (fewer where the runner may not open that many files). This
 * is a channel for descriptors: tensors belong into pools.
 *
 * A call is one round trip to the runner, tens of microseconds. All calls fail with TB_E_NOT_FOUND
 * in a node that no runner started, and when the runner does not answer for 10 s; with
 * TB_E_OWNER_DIED or TB_CLOSED when the runner is gone, and the values with it. */
#ifndef TENSORBUS_EXTENSION_H
#define TENSORBUS_EXTENSION_H

#include <tensorbus/node.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TB_EXTENSION_SPACE_MAX 255    /* bytes */
#define TB_EXTENSION_KEY_MAX 1024     /* bytes */
#define TB_EXTENSION_MAX 67108864     /* bytes of one value: 64 MiB */
#define TB_EXTENSION_DROPPED_MAX 4096 /* keys in a process's list; beyond, the oldest are lost */

typedef struct tb_extension_value tb_extension_value;
typedef struct tb_extension_keys tb_extension_keys;

/** Store a value, or replace one that this node stored.
 *  Units:   size in bytes, 0 to TB_EXTENSION_MAX.
 *  Owner:   bytes stay the caller's (NULL if size is 0); the value belongs to this node.
 *  Returns: TB_OK, TB_E_DENIED (another node's key: names it), TB_E_LIMIT (the value, this node's
 *           or the flow's values, shared memory), TB_E_INVALID (NULL, space, key), TB_E_NOMEM,
 *           TB_E_FORKED, and see above.
 *  Threads: any.   Waits: one round trip.   Source: src/node/extension.c */
TB_API TB_MUST_USE tb_status tb_extension_store(tb_node *node, const char *space, const char *key,
                                                const void *bytes, size_t size);

/** Load a value; with `remove` 1, drop it in the same round trip: one of several callers gets it.
 *  Owner:   the caller; end with tb_extension_value_release(). It does not change when the key is
 *           stored anew or dropped.
 *  Returns: TB_OK, TB_AGAIN (no such key), TB_E_LIMIT (open files), TB_E_INVALID (NULL, space,
 *           key), TB_E_NOMEM, TB_E_FORKED, and see above.
 *  Threads: any.   Waits: one round trip.   Source: src/node/extension.c */
TB_API TB_MUST_USE tb_status tb_extension_load(tb_node *node, const char *space, const char *key,
                                               int remove, tb_extension_value **out);

/** Drop a value, whoever stored it. A key that is not there is no failure, and nobody is told.
 *  Returns: TB_OK, TB_E_INVALID (NULL, space, key), TB_E_FORKED, and see above.
 *  Threads: any.   Waits: one round trip.   Source: src/node/extension.c */
TB_API TB_MUST_USE tb_status tb_extension_drop(tb_node *node, const char *space, const char *key);

/** Take the keys of a space that were dropped since the last call, in the order of their drops. A
 *  key that was stored and dropped again stands there twice. What this process drops itself is
 *  there when the call that dropped it returns.
 *  Units:   timeout in ns on CLOCK_MONOTONIC, for at least one key; 0 polls, -1 waits for ever.
 *  Owner:   the caller; end with tb_extension_keys_destroy().
 *  Returns: TB_OK (one key at least, or keys that were lost), TB_AGAIN (none within the timeout),
 *           TB_E_INVALID (NULL, space), TB_E_NOMEM, TB_E_FORKED, TB_E_NOT_FOUND (no runner),
 *           TB_E_OWNER_DIED and TB_CLOSED (the runner is gone, and no key is left).
 *  Threads: any.   Waits: up to the timeout; with 0 no system call.
 *  Source:  src/node/extension.c */
TB_API TB_MUST_USE tb_status tb_extension_drain(tb_node *node, const char *space,
                                                int64_t timeout_ns, tb_extension_keys **out);

/** Ask the half of an extension that lives in the runner. No runner of this release has one.
 *  Owner:   bytes stay the caller's; *out as tb_extension_load().
 *  Returns: TB_E_NOT_FOUND (no extension registered under "SPACE" on this daemon), TB_E_LIMIT (more
 *           than TB_EXTENSION_MAX bytes), TB_E_INVALID (NULL, space), TB_E_NOMEM, TB_E_FORKED, and
 *           see above.
 *  Threads: any.   Waits: one round trip.   Source: src/node/extension.c */
TB_API TB_MUST_USE tb_status tb_extension_request(tb_node *node, const char *space,
                                                  const void *bytes, size_t size,
                                                  tb_extension_value **out);

/** The bytes of a value, read-only.
 *  Units:   *size in bytes.
 *  Owner:   borrowed, live until the release.   Returns: never NULL, also when *size is 0; NULL and
 *           0 for NULL.
 *  Threads: any.   Waits: never.   Source: src/node/extension.c */
TB_API const void *tb_extension_value_bytes(const tb_extension_value *value, size_t *size);

/** Give a value back. NULL is allowed.
 *  Owner:   takes the value.   Threads: one, the last.   Waits: never.
 *  Source:  src/node/extension.c */
TB_API void tb_extension_value_release(tb_extension_value *value);

/** Number of keys; the key at an index; how many were lost since the last call, of any space of
 *  this process, because nobody took them in time.
 *  Owner:   keys are borrowed, live until tb_extension_keys_destroy().
 *  Returns: 0, "" and 0 for NULL, "" beyond the end.   Threads: any.   Waits: never.
 *  Source:  src/node/dropped.c */
TB_API size_t tb_extension_keys_count(const tb_extension_keys *keys);
TB_API const char *tb_extension_keys_at(const tb_extension_keys *keys, size_t index);
TB_API uint64_t tb_extension_keys_lost(const tb_extension_keys *keys);

/** Give the keys back. NULL is allowed.
 *  Owner:   takes the keys.   Threads: one, the last.   Waits: never.
 *  Source:  src/node/dropped.c */
TB_API void tb_extension_keys_destroy(tb_extension_keys *keys);

#ifdef __cplusplus
}
#endif
#endif
