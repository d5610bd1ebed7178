/* The camera example's contact sheet and what it is drawn with. */
#include "examples/camera/canvas.c"
#include "examples/camera/font.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The picture ends here instead of in a file. */
static struct {
    int width, height, count;
    uint8_t *rgb;
} written;

#define png_write catch_picture
#include "examples/camera/sheet.c"

int catch_picture(const char *path, const uint8_t *rgb, int width, int height)
{
    (void)path;
    const size_t bytes = (size_t)width * (size_t)height * 3;
    free(written.rgb);
    written.rgb = malloc(bytes);
    memcpy(written.rgb, rgb, bytes);
    written.width = width;
    written.height = height;
    written.count++;
    return 0;
}

static const struct sheet_text text = {
    "Title", "a film", "the end", {{"1", "a"}, {"2", "b"}, {"3", "c"}, {"4", "d"}, {"5", "e"}}};

static int count_pixels(colour value)
{
    int count = 0;
    for (int i = 0; i < written.width * written.height; i++) {
        const uint8_t *p = written.rgb + (size_t)i * 3;
        count += (uint32_t)(p[0] << 16 | p[1] << 8 | p[2]) == value;
    }
    return count;
}

/* Offer frames whose brightness rises with their number; the expected length may be wrong. */
static struct sheet *play(int width, int height, int64_t frames, int64_t expected)
{
    struct sheet *sheet = sheet_create(width, height, expected);
    const size_t bytes = (size_t)width * (size_t)height * 3;
    uint8_t *rgb = malloc(bytes);
    struct box box = {0, width / 4, height / 4, width / 2, height / 2};
    assert_non_null(sheet);
    for (int64_t i = 0; i < frames; i++) {
        memset(rgb, (int)(i * 255 / frames), bytes);
        const struct sheet_frame frame = {i, (double)i / 25, rgb, &box, 1};
        assert_true(sheet_offer(sheet, &frame) >= 0);
        assert_true(sheet->count <= KEPT_MAX);
    }
    free(rgb);
    return sheet;
}

static void pictures_are_spread_over_any_length(void **state)
{
    (void)state;
    static const int64_t plays[][2] = {{250, 250}, {5000, 0}, {5000, 100}, {300, 100000}, {40, 40}};
    for (size_t k = 0; k < sizeof(plays) / sizeof(plays[0]); k++) {
        struct sheet *sheet = play(32, 24, plays[k][0], plays[k][1]);
        const int places = TILES;
        assert_int_equal(sheet_write(sheet, "", &text), places);
        int64_t before = -1;
        for (int i = 0; i < places; i++) {
            const struct picture *picture = choose(sheet, i, places);
            assert_true(picture->index > before);
            before = picture->index;
            /* Each lies in its own part of the film, give or take the distance of kept pictures. */
            const double part = (double)plays[k][0] / places;
            const double off = fabs((double)picture->index - (i + 0.5) * part);
            assert_true(off <= part / 2 + (double)sheet->stride);
        }
        sheet_destroy(sheet);
    }
}

static void shape_and_colours_are_kept(void **state)
{
    (void)state;
    struct sheet *sheet = play(64, 36, 12, 12);
    assert_int_equal(sheet_write(sheet, "", &text), 12);
    assert_true(abs(sheet->tile_width * 36 - sheet->tile_height * 64) <= 32); /* half a pixel */
    assert_int_equal(written.width, 2 * MARGIN + 4 * WIDE_TILE + 3 * GAP);
    assert_true(count_pixels(palette[0]) > 12 * 2 * (WIDE_TILE / 2)); /* the boxes' outlines */
    assert_true(count_pixels(accent) > 500);                          /* the numbers of the cards */
    assert_true(count_pixels(bright) > 500);
    sheet_destroy(sheet);

    sheet = play(30, 60, 12, 12);
    assert_int_equal(sheet_write(sheet, "", &text), 12);
    assert_int_equal(sheet->tile_height, 2 * sheet->tile_width);
    assert_int_equal(written.width, 2 * MARGIN + 6 * SLIM_TILE + 5 * GAP);
    sheet_destroy(sheet);
}

static void a_film_of_one_frame_and_of_none_have_a_sheet(void **state)
{
    (void)state;
    struct sheet *sheet = play(32, 24, 1, 0);
    assert_int_equal(sheet_write(sheet, "", &text), 1);
    sheet_destroy(sheet);
    sheet = play(32, 24, 0, 0);
    assert_int_equal(sheet_write(sheet, "", &text), 0);
    sheet_destroy(sheet);
    sheet_destroy(NULL);
}

static void boxes_from_elsewhere_stay_in_the_picture(void **state)
{
    (void)state;
    const struct box wild[] = {{INT32_MIN, -500, -500, 2000, 2000}, {INT32_MAX, 31, 23, 900, 900}};
    uint8_t *rgb = calloc(1, 32 * 24 * 3);
    struct sheet *sheet = sheet_create(32, 24, 0);
    const struct sheet_frame frame = {0, 0, rgb, wild, 2};
    assert_int_equal(sheet_offer(sheet, &frame), 1);
    assert_int_equal(sheet_write(sheet, "", &text), 1); /* a sanitizer sees a step outside */
    sheet_destroy(sheet);
    free(rgb);
}

static void scaling_keeps_the_mean(void **state)
{
    (void)state;
    static const int sizes[][4] = {
        {640, 272, 460, 196}, {7, 5, 3, 2}, {3, 2, 50, 40}, {1, 1, 9, 9}};
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        const int *s = sizes[k], from_count = s[0] * s[1], to_count = s[2] * s[3];
        uint8_t *from = malloc((size_t)from_count * 3), *to = malloc((size_t)to_count * 3);
        double from_sum[3] = {0}, to_sum[3] = {0};
        for (int i = 0; i < from_count * 3; i++) {
            from[i] = (uint8_t)(i * 2654435761u >> 24);
            from_sum[i % 3] += from[i];
        }
        assert_int_equal(canvas_scale(from, s[0], s[1], to, s[2], s[3]), 0);
        for (int i = 0; i < to_count * 3; i++) {
            to_sum[i % 3] += to[i];
        }
        for (int c = 0; c < 3; c++) {
            assert_true(fabs(from_sum[c] / from_count - to_sum[c] / to_count) < 0.6);
        }
        free(from);
        free(to);
    }
}

static void every_character_is_drawn_within_its_width(void **state)
{
    (void)state;
    const struct text_style style = {24, 0.14f, 0xffffff};
    for (int c = 1; c < 256; c++) {
        const char word[2] = {(char)c, '\0'};
        struct canvas *canvas = canvas_create(80, 60, 0);
        canvas_text(canvas, 20, 12, &style, word);
        const int right = 20 + (int)ceilf(canvas_text_width(&style, word)) + 4;
        int inside = 0, outside_of_it = 0;
        for (int i = 0; i < 80 * 60; i++) {
            const int lit = canvas->rgb[i * 3] > 8, x = i % 80;
            inside += lit && x >= 16 && x <= right;
            outside_of_it += lit && (x < 16 || x > right);
        }
        assert_int_equal(outside_of_it, 0);
        assert_true(inside > 0 || c == ' ');
        canvas_destroy(canvas);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_are_spread_over_any_length),
        cmocka_unit_test(shape_and_colours_are_kept),
        cmocka_unit_test(a_film_of_one_frame_and_of_none_have_a_sheet),
        cmocka_unit_test(boxes_from_elsewhere_stay_in_the_picture),
        cmocka_unit_test(scaling_keeps_the_mean),
        cmocka_unit_test(every_character_is_drawn_within_its_width),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(written.rgb);
    return failed;
}
