/* Metadata on the wire, between the public tb_metadata and the bytes of a message.
 *
 * Encoding, little-endian, without padding; no keys are no bytes at all:
 *   u32 number of keys, at least 1
 *   per key: u8 type, u8 key length (1 to 255), u16 0, u32 value length, key, value
 * Values: bool u8 (0 or 1); int64 and double 8 bytes; string its bytes; lists of int64 and double
 * 8 bytes each; list of strings u32 count, then u32 length and bytes of each (no NUL inside). */
#ifndef TB_WIRE_METADATA_WIRE_H
#define TB_WIRE_METADATA_WIRE_H

#include <tensorbus/metadata.h>

/* Encoded size, 0 for NULL or without keys, never above TB_METADATA_MAX. */
size_t tb__metadata_encoded_bytes(const tb_metadata *metadata);

/* Write exactly tb__metadata_encoded_bytes() bytes. */
void tb__metadata_encode(const tb_metadata *metadata, uint8_t *out);

/* Check and copy metadata that a peer sent; no bytes are no keys. The caller destroys *out.
 * TB_E_PROTOCOL names what is wrong; TB_E_NOMEM. */
tb_status tb__metadata_decode(const uint8_t *bytes, size_t size, tb_metadata **out);

/* Metadata without keys that lives for ever and is never changed. */
const tb_metadata *tb__metadata_empty(void);

#endif
