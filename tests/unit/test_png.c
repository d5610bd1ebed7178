/* The camera example's PNG writer, read back by a small reader that follows the PNG specification.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#if __has_include(<zlib.h>)
#define CAMERA_HAS_ZLIB
#include "examples/camera/pack.c"
#include "examples/camera/png.c"

#include <sys/stat.h>

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

/* Check a chunk's place, type and checksum; returns its data. */
static const uint8_t *chunk(const uint8_t *file, size_t bytes, size_t *at, const char *type,
                            uint32_t *length)
{
    assert_true(bytes - *at >= CHUNK_OVERHEAD);
    *length = get_u32(file + *at);
    assert_true(*length <= bytes - *at - CHUNK_OVERHEAD);
    assert_memory_equal(file + *at + 4, type, 4);
    const uint8_t *data = file + *at + 8;
    assert_int_equal(get_u32(data + *length), (uint32_t)crc32(0, data - 4, *length + 4));
    *at += CHUNK_OVERHEAD + *length;
    return data;
}

/* Decode a file of ours to packed RGB. Counts which filters the rows had. */
static uint8_t *decode(const uint8_t *file, size_t bytes, int width, int height, int used[FILTERS])
{
    static const uint8_t signature[8] = {137, 80, 78, 71, 13, 10, 26, 10};
    size_t at = 8;
    uint32_t length;
    assert_memory_equal(file, signature, 8);
    const uint8_t *header = chunk(file, bytes, &at, "IHDR", &length);
    assert_int_equal(length, 13);
    assert_int_equal(get_u32(header), width);
    assert_int_equal(get_u32(header + 4), height);
    assert_memory_equal(header + 8, ((uint8_t[5]){8, 2, 0, 0, 0}), 5);
    const uint8_t *packed = chunk(file, bytes, &at, "IDAT", &length);
    const size_t row_bytes = (size_t)width * 3;
    uLongf filtered_bytes = (uLongf)((row_bytes + 1) * (size_t)height);
    uint8_t *filtered = malloc(filtered_bytes), *rgb = malloc(row_bytes * (size_t)height);
    assert_int_equal(uncompress(filtered, &filtered_bytes, packed, length), Z_OK);
    assert_int_equal(filtered_bytes, (row_bytes + 1) * (size_t)height);
    for (int y = 0; y < height; y++) {
        const uint8_t *from = filtered + (size_t)y * (row_bytes + 1);
        uint8_t *row = rgb + (size_t)y * row_bytes;
        assert_true(from[0] < FILTERS);
        used[from[0]]++;
        for (size_t i = 0; i < row_bytes; i++) {
            const int a = i >= 3 ? row[i - 3] : 0, b = y ? row[i - row_bytes] : 0;
            const int c = y && i >= 3 ? row[i - row_bytes - 3] : 0;
            const int p = a + b - c, pa = abs(p - a), pb = abs(p - b), pc = abs(p - c);
            const int guess[FILTERS] = {0, a, b, (a + b) / 2,
                                        pa <= pb && pa <= pc ? a
                                        : pb <= pc           ? b
                                                             : c};
            row[i] = (uint8_t)(from[i + 1] + guess[from[0]]);
        }
    }
    chunk(file, bytes, &at, "IEND", &length);
    assert_int_equal(length, 0);
    assert_int_equal(at, bytes);
    free(filtered);
    return rgb;
}

/* Areas, slopes and noise, so that every filter is the best one somewhere. */
static uint8_t *make_picture(int width, int height)
{
    uint8_t *rgb = malloc((size_t)width * (size_t)height * 3);
    uint32_t random = 12345;
    for (int y = 0; y < height; y++) {
        for (int i = 0; i < width * 3; i++) {
            random = random * 1664525 + 1013904223;
            const int noise = (int)(random >> 24), kind = y * 6 / height;
            const int values[6] = {0,
                                   i / 3 * 5,
                                   y * 7 + (i * 37 & 0xff),
                                   i / 3 + y * 2 + (noise & 7),
                                   (i / 3 * y) / 9,
                                   noise};
            rgb[(size_t)y * (size_t)width * 3 + (size_t)i] = (uint8_t)values[kind];
        }
    }
    return rgb;
}

static void pictures_come_back_as_they_were(void **state)
{
    (void)state;
    static const int sizes[][2] = {{1, 1}, {3, 1}, {1, 7}, {64, 48}, {333, 217}, {1001, 240}};
    int used[FILTERS] = {0};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const int width = sizes[i][0], height = sizes[i][1];
        uint8_t *rgb = make_picture(width, height), *file = NULL;
        size_t bytes = 0;
        assert_int_equal(png_encode(rgb, width, height, &file, &bytes), 0);
        uint8_t *back = decode(file, bytes, width, height, used);
        assert_memory_equal(back, rgb, (size_t)width * (size_t)height * 3);
        free(back);
        free(file);
        free(rgb);
    }
    for (int filter = 0; filter < FILTERS; filter++) {
        assert_true(used[filter] > 0);
    }
}

/* Where there is no zlib. */
static void stored_bytes_come_back_as_they_were(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 65534, 65535, 65536, 131070, 200000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t bytes = sizes[i];
        uint8_t *from = malloc(bytes + 1), *back = malloc(bytes + 1),
                *to = malloc(pack_bound(bytes));
        uLongf back_bytes = (uLongf)bytes + 1;
        for (size_t k = 0; k < bytes; k++) {
            from[k] = (uint8_t)(k * 2654435761u >> 13);
        }
        assert_int_equal(pack_crc32(from, bytes), (uint32_t)crc32(0, from, (uInt)bytes));
        const size_t packed = pack_stored(from, bytes, to);
        assert_true(packed <= pack_bound(bytes));
        assert_int_equal(uncompress(back, &back_bytes, to, (uLong)packed), Z_OK);
        assert_int_equal(back_bytes, bytes);
        assert_memory_equal(back, from, bytes);
        free(from);
        free(back);
        free(to);
    }
}

static void sizes_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const int sizes[][2] = {
        {0, 1}, {1, 0}, {-1, 5}, {100000, 100000}, {INT32_MAX, INT32_MAX}};
    uint8_t pixel[3] = {0}, *file = (uint8_t *)"untouched";
    size_t bytes = 77;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        errno = 0;
        assert_int_equal(png_encode(pixel, sizes[i][0], sizes[i][1], &file, &bytes), -1);
        assert_int_equal(errno, EINVAL);
        assert_string_equal((char *)file, "untouched");
        assert_int_equal(bytes, 77);
    }
}

static void a_file_appears_whole_or_not_at_all(void **state)
{
    (void)state;
    char folder[] = "/tmp/test_png_XXXXXX", path[64], partial[80];
    struct stat status;
    uint8_t *rgb = make_picture(40, 30);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/picture.png", folder);
    snprintf(partial, sizeof(partial), "%s.part", path);
    assert_int_equal(png_write(path, rgb, 40, 30), 0);
    assert_int_equal(stat(path, &status), 0);
    assert_true(status.st_size > 57);
    assert_int_equal(stat(partial, &status), -1);
    assert_int_equal(unlink(path), 0);

    /* A folder stands where the picture would go: the failure leaves no half file. */
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(png_write(path, rgb, 40, 30), -1);
    assert_int_not_equal(errno, 0);
    assert_int_equal(stat(partial, &status), -1);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(png_write("/nowhere/at/all.png", rgb, 40, 30), -1);
    assert_int_equal(errno, ENOENT);
    free(rgb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_come_back_as_they_were),
        cmocka_unit_test(stored_bytes_come_back_as_they_were),
        cmocka_unit_test(sizes_that_cannot_be_are_refused),
        cmocka_unit_test(a_file_appears_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else
int main(void)
{
    print_message("skipped: zlib is not installed, so the example is not built either\n");
    return 0;
}
#endif
