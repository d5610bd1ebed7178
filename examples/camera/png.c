/* See png.h. A PNG file is a signature and chunks: header (IHDR), one compressed stream of filtered
 * rows (IDAT), end (IEND). Each row gets the filter whose differences are smallest. */
#include "png.h"

#include "pack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PIXEL_BYTES = 3,
    FILTERS = 5,         /* none, sub, up, average, Paeth: their numbers in the file */
    CHUNK_OVERHEAD = 12, /* length, type, checksum */
    HEADER_BYTES = 13,
    SIGNATURE_BYTES = 8
};

static void put_u32(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)(value >> 24);
    to[1] = (uint8_t)(value >> 16);
    to[2] = (uint8_t)(value >> 8);
    to[3] = (uint8_t)value;
}

/* Write one chunk and return the place behind it. The data may already lie where it belongs. */
static uint8_t *put_chunk(uint8_t *to, const char *type, const uint8_t *data, uint32_t bytes)
{
    put_u32(to, bytes);
    memcpy(to + 4, type, 4);
    if (bytes && data != to + 8) {
        memcpy(to + 8, data, bytes);
    }
    put_u32(to + 8 + bytes, pack_crc32(to + 4, (size_t)bytes + 4));
    return to + CHUNK_OVERHEAD + bytes;
}

static int paeth(int left, int up, int corner)
{
    const int estimate = left + up - corner;
    const int to_left = abs(estimate - left), to_up = abs(estimate - up);
    const int to_corner = abs(estimate - corner);
    if (to_left <= to_up && to_left <= to_corner) {
        return left;
    }
    return to_up <= to_corner ? up : corner;
}

static int predict(int filter, int left, int up, int corner)
{
    switch (filter) {
    case 1:
        return left;
    case 2:
        return up;
    case 3:
        return (left + up) / 2;
    case 4:
        return paeth(left, up, corner);
    default:
        return 0;
    }
}

/* Filter one row; `above` is NULL for the first. Returns the sum of the differences' sizes. */
static uint64_t filter_row(int filter, const uint8_t *row, const uint8_t *above, size_t bytes,
                           uint8_t *to)
{
    uint64_t sum = 0;
    to[0] = (uint8_t)filter;
    for (size_t i = 0; i < bytes; i++) {
        const int left = i >= PIXEL_BYTES ? row[i - PIXEL_BYTES] : 0;
        const int up = above ? above[i] : 0;
        const int corner = above && i >= PIXEL_BYTES ? above[i - PIXEL_BYTES] : 0;
        to[i + 1] = (uint8_t)(row[i] - predict(filter, left, up, corner));
        sum += (uint64_t)abs((int8_t)to[i + 1]);
    }
    return sum;
}

/* All rows with their best filters, height × (1 + 3 × width) bytes. NULL when memory is short. */
static uint8_t *filter_rows(const uint8_t *rgb, size_t row_bytes, int height)
{
    uint8_t *filtered = malloc((row_bytes + 1) * (size_t)height);
    uint8_t *attempt = malloc(row_bytes + 1);
    for (int y = 0; filtered && attempt && y < height; y++) {
        const uint8_t *row = rgb + (size_t)y * row_bytes;
        uint8_t *to = filtered + (size_t)y * (row_bytes + 1);
        uint64_t best = UINT64_MAX;
        for (int filter = 0; filter < FILTERS; filter++) {
            const uint64_t sum =
                filter_row(filter, row, y ? row - row_bytes : NULL, row_bytes, attempt);
            if (sum < best) {
                best = sum;
                memcpy(to, attempt, row_bytes + 1);
            }
        }
    }
    if (!attempt) {
        free(filtered);
        filtered = NULL;
    }
    free(attempt);
    return filtered;
}

int png_encode(const uint8_t *rgb, int width, int height, uint8_t **out, size_t *out_bytes)
{
    static const uint8_t signature[SIGNATURE_BYTES] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    /* One IDAT chunk holds everything; its length is 31 bits and this keeps far from it. */
    if (width < 1 || height < 1 || (int64_t)width * height > 256 * 1024 * 1024) {
        errno = EINVAL;
        return -1;
    }
    const size_t row_bytes = (size_t)width * PIXEL_BYTES;
    const size_t filtered_bytes = (row_bytes + 1) * (size_t)height;
    uint8_t *filtered = filter_rows(rgb, row_bytes, height);
    uint8_t *file =
        malloc(SIGNATURE_BYTES + 3 * CHUNK_OVERHEAD + HEADER_BYTES + pack_bound(filtered_bytes));
    if (!filtered || !file) {
        free(filtered);
        free(file);
        errno = ENOMEM;
        return -1;
    }
    uint8_t header[HEADER_BYTES] = {0};
    put_u32(header, (uint32_t)width);
    put_u32(header + 4, (uint32_t)height);
    header[8] = 8; /* bits */
    header[9] = 2; /* RGB; compression, filter method and interlace stay 0 */
    memcpy(file, signature, sizeof(signature));
    uint8_t *end = put_chunk(file + SIGNATURE_BYTES, "IHDR", header, sizeof(header));
    const size_t packed_bytes = pack(filtered, filtered_bytes, end + 8);
    free(filtered);
    end = put_chunk(end, "IDAT", end + 8, (uint32_t)packed_bytes);
    end = put_chunk(end, "IEND", NULL, 0);
    *out = file;
    *out_bytes = (size_t)(end - file);
    return 0;
}

static int write_all(int fd, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        const ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        data += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int png_write(const char *path, const uint8_t *rgb, int width, int height)
{
    char partial[PATH_MAX];
    uint8_t *file = NULL;
    size_t bytes = 0;
    if (snprintf(partial, sizeof(partial), "%s.part", path) >= (int)sizeof(partial)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (png_encode(rgb, width, height, &file, &bytes) != 0) {
        return -1;
    }
    const int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = fd < 0 ? -1 : write_all(fd, file, bytes);
    if (fd >= 0 && close(fd) != 0) {
        rc = -1;
    }
    if (rc == 0) {
        rc = rename(partial, path);
    }
    if (rc != 0 && fd >= 0) {
        const int saved = errno;
        unlink(partial);
        errno = saved;
    }
    free(file);
    return rc;
}
