/* The camera example's search for moving objects: what it must find, and what it must not. */
#include "examples/camera/blob.c"
#include "examples/camera/detect.c"
#include "examples/camera/track.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sys/mman.h>

enum { WIDTH = 320, HEIGHT = 240 };

/* A film that the test draws: frames lie in memory that the detector cannot write. */
struct film {
    struct detector *detector;
    uint8_t *rgb;
    size_t bytes;
    struct box boxes[DETECT_MAX_BOXES];
    int count;
};

static void film_begin(struct film *film)
{
    film->bytes = (size_t)WIDTH * HEIGHT * 3;
    film->detector = detector_create(WIDTH, HEIGHT);
    film->rgb = mmap(NULL, film->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_non_null(film->detector);
    assert_ptr_not_equal(film->rgb, MAP_FAILED);
}

static void film_end(struct film *film)
{
    detector_destroy(film->detector);
    munmap(film->rgb, film->bytes);
}

/* A street without traffic: walls of many shades, moved by (dx, dy) pixels. */
static void draw_background(struct film *film, int dx, int dy, int brightness)
{
    assert_int_equal(mprotect(film->rgb, film->bytes, PROT_READ | PROT_WRITE), 0);
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < WIDTH; x++) {
            const uint32_t wall = (uint32_t)((x + dx + 1000) / 21 * 31 + (y + dy + 1000) / 17);
            const int shade = (int)(wall * 2654435761u >> 24) * 70 / 255 - 35;
            memset(film->rgb + ((size_t)y * WIDTH + (size_t)x) * 3, brightness + shade, 3);
        }
    }
}

static void draw_shaded_square(struct film *film, int left, int top, int side, int shade)
{
    for (int y = top; y < top + side; y++) {
        for (int x = left; x < left + side; x++) {
            if (x >= 0 && y >= 0 && x < WIDTH && y < HEIGHT) {
                memset(film->rgb + ((size_t)y * WIDTH + (size_t)x) * 3, shade, 3);
            }
        }
    }
}

static void draw_square(struct film *film, int left, int top, int side)
{
    draw_shaded_square(film, left, top, side, 250);
}

static void film_show(struct film *film)
{
    assert_int_equal(mprotect(film->rgb, film->bytes, PROT_READ), 0);
    film->count = detector_run(film->detector, film->rgb, film->boxes);
}

static double overlap(const struct box *box, int left, int top, int side)
{
    const struct box truth = {0, left, top, side, side};
    const int width = min_int(box->x + box->width, left + side) - max_int(box->x, left);
    const int height = min_int(box->y + box->height, top + side) - max_int(box->y, top);
    const double common = width > 0 && height > 0 ? (double)width * height : 0;
    return common / (area(box) + area(&truth) - common);
}

static void finds_nothing_where_nothing_moves(void **state)
{
    (void)state;
    struct film film;
    film_begin(&film);
    for (int i = 0; i < 60; i++) {
        draw_background(&film, 0, 0, 100 + i % 3); /* a lamp that flickers a little */
        film_show(&film);
        assert_int_equal(film.count, 0);
    }
    assert_int_equal(detector_cuts(film.detector), 0);
    film_end(&film);
}

static void follows_one_object_under_one_number(void **state)
{
    (void)state;
    struct film film;
    film_begin(&film);
    int seen = 0;
    int32_t id = 0;
    for (int i = 0; i < 60; i++) {
        const int left = -40 + 5 * i, top = 90 + i / 3;
        draw_background(&film, 0, 0, 100);
        draw_square(&film, left, top, 40);
        film_show(&film);
        if (left > 20 && left < WIDTH - 45) {
            assert_int_equal(film.count, 1);
            assert_true(overlap(&film.boxes[0], left, top, 40) > 0.4);
            assert_true(id == 0 || id == film.boxes[0].id);
            id = film.boxes[0].id;
            seen++;
        }
        for (int k = 0; k < film.count; k++) {
            const struct box *box = &film.boxes[k];
            assert_true(box->x >= 0 && box->y >= 0 && box->width > 0 && box->height > 0);
            assert_true(box->x + box->width <= WIDTH && box->y + box->height <= HEIGHT);
        }
    }
    assert_true(seen > 30);
    assert_true(id > 0);
    film_end(&film);
}

static void tells_two_objects_apart(void **state)
{
    (void)state;
    struct film film;
    film_begin(&film);
    int both = 0;
    for (int i = 0; i < 40; i++) {
        draw_background(&film, 0, 0, 100);
        draw_square(&film, 10 + 6 * i, 20, 36);
        draw_square(&film, 270 - 6 * i, 170, 50);
        film_show(&film);
        if (film.count == 2) {
            both++;
            assert_int_not_equal(film.boxes[0].id, film.boxes[1].id);
            /* The larger one comes first, and it is the lower one. */
            assert_true(film.boxes[0].y > film.boxes[1].y);
        }
    }
    assert_true(both > 25);
    film_end(&film);
}

static void follows_slow_light(void **state)
{
    (void)state;
    struct film film;
    film_begin(&film);
    int both = 0;
    for (int i = 0; i < 140; i++) {
        draw_background(&film, 0, 0, 60 + i / 2); /* the sun comes out: 60 of 255 in the end */
        if (i > 100) {
            draw_shaded_square(&film, 10 + 4 * (i - 100), 100, 40, 5);
            draw_shaded_square(&film, 300 - 4 * (i - 100), 100, 40, 5);
        }
        film_show(&film);
        assert_true(i > 100 || film.count == 0);
        both += film.count == 2;
    }
    assert_true(both > 15); /* two on one level, not one across the changed wall between them */
    film_end(&film);
}

static void ignores_a_swaying_camera(void **state)
{
    (void)state;
    struct film film;
    film_begin(&film);
    int false_boxes = 0;
    for (int i = 0; i < 120; i++) {
        /* Some 10 pixels to and fro: five cells, more than the tolerance of one. */
        draw_background(&film, (int)lround(10 * sin(i / 12.0)), (int)lround(4 * sin(i / 17.0)),
                        100);
        film_show(&film);
        false_boxes += film.count;
    }
    assert_int_equal(false_boxes, 0);
    assert_int_equal(detector_cuts(film.detector), 0);
    film_end(&film);
}

static void starts_anew_after_a_cut(void **state)
{
    (void)state;
    struct film film;
    film_begin(&film);
    for (int i = 0; i < 60; i++) {
        draw_background(&film, i < 30 ? 0 : 77, 0, i < 30 ? 80 : 170);
        draw_square(&film, 3 * i, 60, 40);
        film_show(&film);
        if (i == 30) {
            assert_int_equal(film.count, 0); /* nothing is known about the new scene yet */
        }
    }
    assert_int_equal(detector_cuts(film.detector), 1);
    assert_int_equal(film.count, 1);
    film_end(&film);
}

static void forgets_an_object_that_stopped(void **state)
{
    (void)state;
    struct film film;
    film_begin(&film);
    int moving = 0;
    for (int i = 0; i < 80; i++) {
        draw_background(&film, 0, 0, 100);
        draw_square(&film, i < 25 ? 40 + 6 * i : 190, 100, 40);
        film_show(&film);
        moving += i < 25 && film.count > 0;
        if (i > 45) {
            assert_int_equal(film.count, 0);
        }
    }
    assert_true(moving > 12);
    film_end(&film);
}

static void takes_every_size(void **state)
{
    (void)state;
    static const int sizes[][2] = {{1, 1}, {1, 400}, {400, 1}, {7, 5}, {161, 97}, {1921, 3}};
    struct box boxes[DETECT_MAX_BOXES];
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t bytes = (size_t)sizes[i][0] * (size_t)sizes[i][1] * 3;
        uint8_t *rgb = calloc(1, bytes); /* exactly: a sanitizer sees a step beyond */
        struct detector *detector = detector_create(sizes[i][0], sizes[i][1]);
        assert_non_null(detector);
        for (int frame = 0; frame < 6; frame++) {
            memset(rgb, frame * 40, bytes);
            (void)detector_run(detector, rgb, boxes);
        }
        detector_destroy(detector);
        free(rgb);
    }
    assert_null(detector_create(0, 5));
    assert_null(detector_create(5, -1));
    assert_null(detector_create(MAX_SIDE + 1, 5));
    detector_destroy(NULL);
}

static void closes_finds_and_joins_regions(void **state)
{
    (void)state;
    enum { COLUMNS = 12, ROWS = 6 };
    static const char picture[] = "##.#........"
                                  "##.#......#."
                                  "...........#"
                                  "............"
                                  ".#.......##."
                                  ".........##.";
    uint8_t mask[COLUMNS * ROWS], scratch[COLUMNS * ROWS];
    int32_t stack[COLUMNS * ROWS];
    struct blob blobs[BLOB_MAX];
    for (int i = 0; i < COLUMNS * ROWS; i++) {
        mask[i] = picture[i] == '#';
    }
    /* The block, the bar, the diagonal pair and the square; the single cell is too small. */
    assert_int_equal(blob_find(mask, stack, COLUMNS, ROWS, 2, blobs), 4);
    assert_int_equal(blob_merge(blobs, 4, 2), 2);

    for (int i = 0; i < COLUMNS * ROWS; i++) {
        mask[i] = picture[i] == '#';
    }
    blob_close(mask, scratch, COLUMNS, ROWS, 1);
    assert_int_equal(mask[2], 1); /* the gap between block and bar */
    assert_int_equal(mask[6], 0); /* open ground stays open */
    assert_int_equal(mask[0], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_nothing_where_nothing_moves),
        cmocka_unit_test(follows_one_object_under_one_number),
        cmocka_unit_test(tells_two_objects_apart),
        cmocka_unit_test(follows_slow_light),
        cmocka_unit_test(ignores_a_swaying_camera),
        cmocka_unit_test(starts_anew_after_a_cut),
        cmocka_unit_test(forgets_an_object_that_stopped),
        cmocka_unit_test(takes_every_size),
        cmocka_unit_test(closes_finds_and_joins_regions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
