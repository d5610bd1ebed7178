/* A strict scanner of JSON (RFC 8259) for untrusted bytes, already copied by the caller: allocates
 * nothing, does not recurse, bounds nesting. Each function goes past what it read; a refusal
 * (TB_E_CORRUPT, naming the byte) ends the use of the scanner. Pure functions; any thread. */
#ifndef TB_SEGMENT_JSON_SCAN_H
#define TB_SEGMENT_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define TB__JSON_DEPTH_MAX 32

struct tb__json {
    const unsigned char *text;
    size_t bytes;
    size_t at; /* cursor, 0 to bytes */
};

/* Refuse at the cursor: records "pool metadata, byte 12 of 90: <what>". */
tb_status tb__json_refuse(const struct tb__json *json, const char *what);

/* Whether `expected` comes next; if so, go past it. Space on both sides is skipped. */
int tb__json_take(struct tb__json *json, unsigned char expected);

/* A string, decoded into `buffer` as far as it fits, terminated; *length is its full length, and
 * may count NUL bytes. `size` 0: only check it. */
TB_MUST_USE tb_status tb__json_string(struct tb__json *json, char *buffer, size_t size,
                                      size_t *length);

/* An integer from 0 to INT64_MAX; the message names it as `what`. */
TB_MUST_USE tb_status tb__json_integer(struct tb__json *json, const char *what, uint64_t *out);

/* Any value. The caller's own object counts as one level of nesting. */
TB_MUST_USE tb_status tb__json_skip_value(struct tb__json *json);

#endif
