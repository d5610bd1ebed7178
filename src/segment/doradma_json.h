/* The JSON object behind a DORADMA header: written as Python's json.dumps would, and parsed
 * strictly.
 *
 * The parser takes bytes from an untrusted segment (already copied by the caller), allocates
 * nothing, does not recurse, and bounds everything by constants. Pure functions; any thread. */
#ifndef TB_SEGMENT_DORADMA_JSON_H
#define TB_SEGMENT_DORADMA_JSON_H

#include <stddef.h>
#include <stdint.h>

#include <tensorbus/tensor.h>

#include "base/error.h"

#define TB__JSON_BYTES_MAX 65536

struct tb__doradma_json {
    uint64_t size; /* payload bytes */
    char dtype[64];
    int32_t ndim;
    int64_t shape[TB_MAX_NDIM]; /* not negative; entries from ndim on are 0 */
    char pinned_type[32];       /* "" when missing */
    char sender_shmem[256];     /* "" when missing */
};

/* Write {"size": ..., "dtype": ..., "shape": [...], "pinned_type": ...}, then sender_shmem unless
 * it is empty; no terminator. TB_E_INVALID: a string that is not ASCII, a shape that the parser
 * would refuse. TB_E_LIMIT: more than `size` bytes. */
TB_MUST_USE tb_status tb__doradma_json_write(const struct tb__doradma_json *json, char *buffer,
                                             size_t size, size_t *out_bytes);

/* Parse. size, dtype and shape must be there, once; unknown keys are skipped, but must be well
 * formed. TB_E_CORRUPT says at which byte and what; nothing is written to *out then. */
TB_MUST_USE tb_status tb__doradma_json_parse(const char *text, size_t bytes,
                                             struct tb__doradma_json *out);

#endif
