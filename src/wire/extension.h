/* Messages of the extension channel, between a node and its runner.
 *
 *   STORE, LOAD, DROP, REQUEST   u32 flags  u16 space bytes  u16 key bytes  u64 value bytes,
 *                                space, key, then the value unless CARRIED
 *   VALUE                        u32 flags  u32 0  u64 value bytes, then the value unless CARRIED
 *   DROPPED                      u64 keys that were lost before these  u32 count  u32 0, then for
 *                                each: u16 space bytes  u16 key bytes, space, key
 *
 * A value above TB__EXT_INLINE_MAX comes as a sealed memory file (CARRIED: one descriptor), which
 * the runner passes on without looking into it. Spaces and keys are UTF-8 without NUL. Pure
 * functions; what is decoded points into the message. */
#ifndef TB_WIRE_EXTENSION_H
#define TB_WIRE_EXTENSION_H

#include <fcntl.h>

#include <tensorbus/extension.h>

#include "wire/wire.h"

#define TB__EXT_INLINE_MAX 32768u
#define TB__EXT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

#define TB__EXT_CARRIED 1u /* STORE, REQUEST, VALUE */
#define TB__EXT_REMOVE 2u  /* LOAD: drop it as well */
#define TB__EXT_ABSENT 4u  /* VALUE: there is none */

struct tb__ext_key {
    const char *space; /* not terminated */
    const char *key;
    uint16_t space_bytes;
    uint16_t key_bytes;
};

struct tb__ext_request {
    uint32_t flags;
    struct tb__ext_key name;
    uint64_t value_bytes;
    const uint8_t *value; /* NULL when CARRIED */
};

#define TB__EXT_HEAD_BYTES 16
#define TB__EXT_REQUEST_MAX                                                                        \
    (TB__EXT_HEAD_BYTES + TB_EXTENSION_SPACE_MAX + TB_EXTENSION_KEY_MAX + TB__EXT_INLINE_MAX)
#define TB__EXT_VALUE_MAX (TB__EXT_HEAD_BYTES + TB__EXT_INLINE_MAX)

/* Write a request whose parts are within their limits. Returns its bytes. */
uint32_t tb__ext_request_encode(const struct tb__ext_request *request,
                                uint8_t out[TB__EXT_REQUEST_MAX]);

/* Check a request of this type. TB_E_PROTOCOL names what is wrong. */
tb_status tb__ext_request_decode(uint16_t type, const uint8_t *body, size_t bytes,
                                 struct tb__ext_request *out);

struct tb__ext_reply {
    uint32_t flags;
    uint64_t value_bytes;
    const uint8_t *value; /* NULL when CARRIED or ABSENT */
};

uint32_t tb__ext_reply_encode(const struct tb__ext_reply *reply, uint8_t out[TB__EXT_VALUE_MAX]);
tb_status tb__ext_reply_decode(const uint8_t *body, size_t bytes, struct tb__ext_reply *out);

/* A DROPPED message while it is put together. */
struct tb__ext_batch {
    uint32_t bytes;
    uint32_t count;
    uint8_t body[TB__WIRE_MAX_BODY];
};

void tb__ext_batch_begin(struct tb__ext_batch *batch, uint64_t lost);
/* Add a key; 0: the message is full. */
int tb__ext_batch_add(struct tb__ext_batch *batch, const struct tb__ext_key *name);

/* Check a whole DROPPED message; then take its `count` keys one by one: *at begins at 0. */
tb_status tb__ext_batch_check(const uint8_t *body, size_t bytes, uint64_t *lost, uint32_t *count);
void tb__ext_batch_next(const uint8_t *body, size_t *at, struct tb__ext_key *out);

#endif
