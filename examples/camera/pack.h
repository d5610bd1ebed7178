/* The zlib format (RFC 1950) and the checksum of PNG: with zlib where it is installed, else stored,
 * in blocks that are not compressed. Any thread. */
#ifndef EXAMPLES_CAMERA_PACK_H
#define EXAMPLES_CAMERA_PACK_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32 of a chunk of PNG. */
uint32_t pack_crc32(const uint8_t *data, size_t bytes);

/* The most that pack() writes for so many bytes. */
size_t pack_bound(size_t bytes);

/* Pack into room for pack_bound(bytes); returns how many bytes were written. */
size_t pack(const uint8_t *from, size_t bytes, uint8_t *to);

/* The same without zlib. */
size_t pack_stored(const uint8_t *from, size_t bytes, uint8_t *to);

#endif
