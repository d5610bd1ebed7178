/* See pack.h. */
#include "pack.h"

#include <string.h>

#ifdef CAMERA_HAS_ZLIB
#include <zlib.h>
#endif

enum {
    BLOCK_BYTES = 65535, /* that one stored block holds */
    BLOCK_HEAD = 5,      /* last or not; length and its complement, low byte first */
    FRAME_BYTES = 6,     /* two bytes before the blocks, the checksum behind them */
    ADLER_PRIME = 65521
};

uint32_t pack_crc32(const uint8_t *data, size_t bytes)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
        }
    }
    return ~crc;
}

static uint32_t adler32_of(const uint8_t *data, size_t bytes)
{
    uint32_t low = 1, high = 0;
    for (size_t i = 0; i < bytes; i++) {
        low = (low + data[i]) % ADLER_PRIME;
        high = (high + low) % ADLER_PRIME;
    }
    return high << 16 | low;
}

size_t pack_stored(const uint8_t *from, size_t bytes, uint8_t *to)
{
    uint8_t *at = to;
    const uint32_t sum = adler32_of(from, bytes);
    *at++ = 0x78;
    *at++ = 0x01;
    do {
        const size_t now = bytes < BLOCK_BYTES ? bytes : BLOCK_BYTES;
        bytes -= now;
        const uint8_t head[BLOCK_HEAD] = {bytes == 0, (uint8_t)now, (uint8_t)(now >> 8),
                                          (uint8_t)~now, (uint8_t)(~now >> 8)};
        memcpy(at, head, BLOCK_HEAD);
        if (now) {
            memcpy(at + BLOCK_HEAD, from, now);
        }
        at += BLOCK_HEAD + now;
        from += now;
    } while (bytes);
    for (int shift = 24; shift >= 0; shift -= 8) {
        *at++ = (uint8_t)(sum >> shift);
    }
    return (size_t)(at - to);
}

size_t pack_bound(size_t bytes)
{
    /* Compressed is never more than stored: what would be is stored. */
    return bytes + (bytes / BLOCK_BYTES + 1) * BLOCK_HEAD + FRAME_BYTES;
}

size_t pack(const uint8_t *from, size_t bytes, uint8_t *to)
{
#ifdef CAMERA_HAS_ZLIB
    uLongf packed = (uLongf)pack_bound(bytes);
    if (compress2(to, &packed, from, (uLong)bytes, 6) == Z_OK) {
        return (size_t)packed;
    }
#endif
    return pack_stored(from, bytes, to);
}
