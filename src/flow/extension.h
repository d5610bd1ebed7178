/* The runner's table of the extension channel: opaque values by (space, key), who owns them, who
 * read them, and the keys that each node must still be told of.
 *
 * A table belongs to one run. It sends and receives nothing and knows nodes by their index:
 * extension_serve.c does the talking. Bounded: values of the flow, values, bytes and files of each
 * node, keys that wait for each node. Nothing of it is locked: the caller's mutex is. */
#ifndef TB_FLOW_EXTENSION_H
#define TB_FLOW_EXTENSION_H

#include "flow/flow.h"
#include "wire/extension.h"

/* Limits that users meet, see docs/flows.md. */
#define TB__EXT_ENTRIES_MAX 8192                 /* of a flow */
#define TB__EXT_ENTRIES_OWN 16                   /* that a node may have all the same */
#define TB__EXT_NODE_BYTES (UINT64_C(256) << 20) /* of a node's values, with spaces and keys */
#define TB__EXT_NODE_FILES 64                    /* values of a node that are carried */
#define TB__EXT_DROPPED_MAX TB_EXTENSION_DROPPED_MAX

struct tb__ext_table;

/* A value that outlives its entry while somebody refers to it. */
struct tb__ext_value {
    uint32_t references;
    int fd; /* sealed memory that holds it; -1: in bytes[] */
    uint64_t size;
    uint8_t bytes[];
};

/* `files`: how many carried values the process can keep open for all nodes together. */
tb_status tb__ext_table_create(const struct tb__flow *flow, uint64_t files,
                               struct tb__ext_table **out);
void tb__ext_table_destroy(struct tb__ext_table *table);

/* Make a value of bytes that are copied, or of a descriptor that is taken on success (*fd = -1) and
 * has passed its checks. */
tb_status tb__ext_value_create(const struct tb__ext_request *request, int *fd,
                               struct tb__ext_value **out);
void tb__ext_value_unref(struct tb__ext_value *value);

/* Store a value (a reference is taken) for a node. TB_E_DENIED: another node's key. TB_E_LIMIT
 * names which. */
tb_status tb__ext_store(struct tb__ext_table *table, uint32_t node, const struct tb__ext_key *name,
                        struct tb__ext_value *value);

/* The value of a key with a reference for the caller; the node is a reader of it from now on.
 * `remove` drops it. NULL: there is none. */
struct tb__ext_value *tb__ext_load(struct tb__ext_table *table, uint32_t node,
                                   const struct tb__ext_key *name, int remove);

/* Drop a key: who stored or read it is to be told. 0: it was not there. */
int tb__ext_drop(struct tb__ext_table *table, const struct tb__ext_key *name);

/* A node's process has ended: drop what it owned; nothing is to be told to it any more. */
void tb__ext_end(struct tb__ext_table *table, uint32_t node);

/* What a node is to be told next: fills a message with as many keys as fit. 0: nothing now, also
 * while the node has not taken the message before. After it was sent, call tb__ext_sent(). */
int tb__ext_batch(struct tb__ext_table *table, uint32_t node, struct tb__ext_batch *out);
void tb__ext_sent(struct tb__ext_table *table, uint32_t node, const struct tb__ext_batch *batch);
/* The node has taken it. */
void tb__ext_taken(struct tb__ext_table *table, uint32_t node);

uint32_t tb__ext_count(const struct tb__ext_table *table);

#endif
