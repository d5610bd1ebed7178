/* Writing pictures as PNG files (8 bits, RGB), compressed by zlib. */
#ifndef EXAMPLES_CAMERA_PNG_H
#define EXAMPLES_CAMERA_PNG_H

#include <stddef.h>
#include <stdint.h>

/* Encode packed RGB rows. The caller frees *out. Returns 0, or -1 with errno set (EINVAL for a size
 * that PNG cannot have, ENOMEM). */
int png_encode(const uint8_t *rgb, int width, int height, uint8_t **out, size_t *out_bytes);

/* Encode and write to a file that appears under its name only when it is whole. Returns 0, or -1
 * with errno set. */
int png_write(const char *path, const uint8_t *rgb, int width, int height);

#endif
