/* Names of pools as dora's tensor-pool builds them: segment names, pool ids, their counter.
 *
 *   segment  dora_pool_{machine}_{flow}_{node}_{counter}, without {machine}_ when there is none
 *   id       pool_{node}_{counter}: what travels between nodes
 *
 * Node ids may hold underscores, so an id is split at its last one. Pure functions but for the
 * counter of the process; any thread. */
#ifndef TB_SEGMENT_DORA_NAME_H
#define TB_SEGMENT_DORA_NAME_H

#include <stdatomic.h>
#include <stdint.h>

#include <tensorbus/tensor_pool.h>

#include "base/error.h"
#include "base/name.h"

#define TB__DORA_PREFIX "dora_pool_"
#define TB__DORA_NAME_SIZE 254         /* what glibc's shm_open takes, and the terminator */
#define TB__DORA_EXPLICIT_NAME_MAX 128 /* characters of a name that a user chose */

/* Build a segment's name. `machine` is NULL or "" when there is none; machine, flow and node have
 * only characters of names. TB_E_INVALID names the part, TB_E_LIMIT a name that the system would
 * refuse. */
TB_MUST_USE tb_status tb__dora_segment_name(const char *machine, const char *flow, const char *node,
                                            uint64_t counter, char out[TB__DORA_NAME_SIZE]);

/* Check a name that a user chose: begins with dora_pool_, no `/`, no `..`, at most 128 characters.
 */
TB_MUST_USE tb_status tb__dora_explicit_name_check(const char *name);

/* Build a pool id. TB_E_INVALID: not a node id, or "dora", which is reserved. */
TB_MUST_USE tb_status tb__dora_pool_id(const char *node, uint64_t counter,
                                       char out[TB_POOL_ID_SIZE]);

/* Split a pool id at its last underscore. The counter is decimal as tb__dora_pool_id() writes it.
 */
TB_MUST_USE tb_status tb__dora_pool_id_parse(const char *id, char node[TB__NAME_SIZE],
                                             uint64_t *counter);

/* The names under which a reader looks for a pool, in order: with the machine, then without. Writes
 * 1 or 2 names and their number. */
TB_MUST_USE tb_status tb__dora_candidates(const char *machine, const char *flow, const char *id,
                                          char out[2][TB__DORA_NAME_SIZE], int *count);

/* A counter of registrations: starts anywhere, goes up by one, wraps. */
struct tb__dora_counter {
    _Atomic uint64_t next;
};

void tb__dora_counter_init(struct tb__dora_counter *counter, uint64_t seed);
uint64_t tb__dora_counter_take(struct tb__dora_counter *counter);

/* The next number of this process, whose counter starts at a random one. */
uint64_t tb__dora_counter_process(void);

#endif
