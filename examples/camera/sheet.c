/* See sheet.h. */
#include "sheet.h"

#include "canvas.h"
#include "png.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILES = 12,
    MAX_FIRST_STRIDE = 5,
    KEPT_MAX = 8 * TILES, /* pictures at hand; half of them go when all places are taken */
    MARGIN = 44,
    GAP = 22,
    HEADER = 128,
    CAPTION = 34,
    FOOTER = 44,
    CARD_WIDTH = 178,
    CARD_HEIGHT = 84,
    CARD_GAP = 14,
    WIDE_TILE = 460,
    SLIM_TILE = 300 /* for films that are higher than wide */
};

static const colour background = 0x0e1217, panel = 0x19202a, line = 0x2b3643;
static const colour bright = 0xf2f6fa, dim = 0x93a3b5, accent = 0x3ddc97;

/* Told apart at a glance, also side by side and on grey streets. */
static const colour palette[] = {0xffd23f, 0x3ddc97, 0xff6b6b, 0x4cc9f0,
                                 0xf78fff, 0xff9f1c, 0xb8f35a, 0x9d8cff};

struct picture {
    int64_t index;
    double pts_s;
    int box_count;
    struct box boxes[DETECT_MAX_BOXES]; /* in pixels of the film */
    uint8_t *rgb;
};

struct sheet {
    int width, height;           /* of the film */
    int tile_width, tile_height; /* of a small picture */
    int64_t stride;              /* one frame in so many is kept */
    int count;
    struct picture kept[KEPT_MAX];
};

struct sheet *sheet_create(int width, int height, int64_t expected_frames)
{
    struct sheet *sheet = calloc(1, sizeof(*sheet));
    if (!sheet) {
        return NULL;
    }
    sheet->width = width;
    sheet->height = height;
    sheet->tile_width = width < height ? SLIM_TILE : WIDE_TILE;
    sheet->tile_height = (int)lround((double)sheet->tile_width * height / width);
    sheet->tile_height = sheet->tile_height < 1 ? 1 : sheet->tile_height;
    sheet->tile_height = sheet->tile_height > 2 * WIDE_TILE ? 2 * WIDE_TILE : sheet->tile_height;
    /* Four to choose from for each place; more at first when the film is long or its length
     * unknown, so that one that is stopped early has its pictures too. */
    sheet->stride = expected_frames / (KEPT_MAX / 2);
    sheet->stride = sheet->stride > MAX_FIRST_STRIDE ? MAX_FIRST_STRIDE : sheet->stride;
    sheet->stride = sheet->stride < 1 ? 1 : sheet->stride;
    return sheet;
}

void sheet_destroy(struct sheet *sheet)
{
    if (!sheet) {
        return;
    }
    for (int i = 0; i < sheet->count; i++) {
        free(sheet->kept[i].rgb);
    }
    free(sheet);
}

/* Make room: drop every other picture and take new ones half as often. */
static void thin_out(struct sheet *sheet)
{
    sheet->stride *= 2;
    int kept = 0;
    for (int i = 0; i < sheet->count; i++) {
        if (sheet->kept[i].index % sheet->stride == 0) {
            sheet->kept[kept++] = sheet->kept[i];
        } else {
            free(sheet->kept[i].rgb);
        }
    }
    sheet->count = kept;
}

int sheet_offer(struct sheet *sheet, const struct sheet_frame *frame)
{
    if (frame->index % sheet->stride != 0) {
        return 0;
    }
    if (sheet->count == KEPT_MAX) {
        thin_out(sheet);
        if (sheet->count == KEPT_MAX || frame->index % sheet->stride != 0) {
            return 0;
        }
    }
    struct picture *picture = &sheet->kept[sheet->count];
    picture->rgb = malloc((size_t)sheet->tile_width * (size_t)sheet->tile_height * 3);
    if (!picture->rgb || canvas_scale(frame->rgb, sheet->width, sheet->height, picture->rgb,
                                      sheet->tile_width, sheet->tile_height) != 0) {
        free(picture->rgb);
        return -1;
    }
    picture->index = frame->index;
    picture->pts_s = frame->pts_s;
    picture->box_count = frame->box_count < DETECT_MAX_BOXES ? frame->box_count : DETECT_MAX_BOXES;
    memcpy(picture->boxes, frame->boxes, (size_t)picture->box_count * sizeof(struct box));
    sheet->count++;
    return 1;
}

/* How much there is to see: the share of the picture that the three largest boxes take, with small
 * ones counting for more than their area. */
static double interest(const struct sheet *sheet, const struct picture *picture)
{
    double sum = 0;
    for (int i = 0; i < picture->box_count && i < 3; i++) {
        const struct box *box = &picture->boxes[i];
        sum += sqrt((double)box->width * box->height / ((double)sheet->width * sheet->height));
    }
    return sum;
}

/* The picture for one place: of those in its part of the film, the one with the most to see;
 * between equals, the one nearest to the middle. */
static const struct picture *choose(const struct sheet *sheet, int place, int places)
{
    const int first = place * sheet->count / places;
    const int last = (place + 1) * sheet->count / places;
    const int middle = (first + last) / 2;
    int best = middle < sheet->count ? middle : sheet->count - 1;
    for (int i = first; i < last; i++) {
        const double more = interest(sheet, &sheet->kept[i]) - interest(sheet, &sheet->kept[best]);
        if (more > 1e-9 || (more > -1e-9 && abs(i - middle) < abs(best - middle))) {
            best = i;
        }
    }
    return &sheet->kept[best];
}

static colour box_colour(const struct box *box)
{
    return palette[(uint32_t)box->id % (sizeof(palette) / sizeof(palette[0]))];
}

/* A box of the film in pixels of the small picture. */
static struct box scale_box(const struct sheet *sheet, const struct box *box)
{
    const double sx = (double)sheet->tile_width / sheet->width;
    const double sy = (double)sheet->tile_height / sheet->height;
    const int x = (int)(box->x * sx), y = (int)(box->y * sy);
    return (struct box){box->id, x, y, (int)ceil((box->x + box->width) * sx) - x,
                        (int)ceil((box->y + box->height) * sy) - y};
}

/* The number of an object: above its box where there is room, else inside it. */
static void draw_tag(struct canvas *canvas, int left, int top, const struct sheet *sheet,
                     const struct box *film_box)
{
    char label[16];
    const struct box box = scale_box(sheet, film_box);
    const struct text_style style = {9.5f, 0.17f, 0x0b0e12};
    snprintf(label, sizeof(label), "%d", box.id);
    const int width = (int)canvas_text_width(&style, label) + 11, height = 17;
    const int room = sheet->tile_width - width;
    const int x = left + (box.x < room ? box.x : room);
    const int y = top + (box.y >= height ? box.y - height + 1 : box.y);
    canvas_fill(canvas, (struct area){x, y, width, height, 3}, box_colour(film_box), 1);
    canvas_text(canvas, (float)x + 5.5f, (float)y + 4, &style, label);
}

/* Outlines first, then the numbers, small objects last: a number is never crossed out. */
static void draw_boxes(struct canvas *canvas, int left, int top, const struct sheet *sheet,
                       const struct picture *picture)
{
    for (int i = 0; i < picture->box_count; i++) {
        const struct box box = scale_box(sheet, &picture->boxes[i]);
        const struct area area = {left + box.x, top + box.y, box.width, box.height, 3};
        canvas_outline(canvas, area, 2, box_colour(&box));
    }
    for (int i = 0; i < picture->box_count; i++) {
        draw_tag(canvas, left, top, sheet, &picture->boxes[i]);
    }
}

static void draw_tile(struct canvas *canvas, int left, int top, const struct sheet *sheet,
                      const struct picture *picture)
{
    const size_t row_bytes = (size_t)sheet->tile_width * 3;
    for (int y = 0; y < sheet->tile_height; y++) {
        memcpy(canvas->rgb + ((size_t)(top + y) * (size_t)canvas->width + (size_t)left) * 3,
               picture->rgb + (size_t)y * row_bytes, row_bytes);
    }
    draw_boxes(canvas, left, top, sheet, picture);
    const struct area frame = {left - 1, top - 1, sheet->tile_width + 2, sheet->tile_height + 2, 0};
    canvas_outline(canvas, frame, 1, line);

    char text[64];
    const struct text_style number = {11, 0.15f, bright}, rest = {11, 0.13f, dim};
    const float y = (float)(top + sheet->tile_height + 11);
    const int length = snprintf(text, sizeof(text), "frame %lld", (long long)picture->index + 1);
    canvas_text(canvas, (float)left, y, &number, text);
    if (picture->box_count && length > 0) {
        const float x = (float)left + canvas_text_width(&number, text) + 14;
        snprintf(text, sizeof(text), "%d moving", picture->box_count);
        canvas_text(canvas, x, y, &rest, text);
    }
    const long long milliseconds = llround(picture->pts_s * 1000);
    snprintf(text, sizeof(text), "%02lld:%02lld.%03lld", milliseconds / 60000,
             milliseconds / 1000 % 60, milliseconds % 1000);
    canvas_text(canvas, (float)(left + sheet->tile_width) - canvas_text_width(&rest, text), y,
                &rest, text);
}

static void draw_header(struct canvas *canvas, const struct sheet_text *text)
{
    const struct text_style title = {34, 0.15f, bright}, subtitle = {13, 0.13f, dim};
    canvas_fill(canvas, (struct area){MARGIN, MARGIN + 2, 6, 66, 3}, accent, 1);
    canvas_text(canvas, MARGIN + 24, MARGIN, &title, text->title);
    canvas_text(canvas, MARGIN + 25, MARGIN + 54, &subtitle, text->subtitle);
    for (int i = 0; i < SHEET_CARDS; i++) {
        const int x =
            canvas->width - MARGIN - (SHEET_CARDS - i) * (CARD_WIDTH + CARD_GAP) + CARD_GAP;
        const int y = MARGIN - 8;
        const struct text_style value = {21, 0.15f, accent}, label = {11, 0.14f, dim};
        canvas_fill(canvas, (struct area){x, y, CARD_WIDTH, CARD_HEIGHT, 9}, panel, 1);
        canvas_text(canvas, (float)x + 18, (float)y + 18, &value, text->cards[i].value);
        canvas_text(canvas, (float)x + 18, (float)y + 56, &label, text->cards[i].label);
    }
}

int sheet_write(const struct sheet *sheet, const char *path, const struct sheet_text *text)
{
    const int columns = sheet->tile_width == SLIM_TILE ? 6 : 4;
    const int places = sheet->count < TILES ? sheet->count : TILES;
    const int rows = places ? (places + columns - 1) / columns : 1;
    const int width = 2 * MARGIN + columns * sheet->tile_width + (columns - 1) * GAP;
    const int height = MARGIN + HEADER + rows * (sheet->tile_height + CAPTION + GAP) + FOOTER;
    struct canvas *canvas = canvas_create(width, height, background);
    if (!canvas) {
        errno = ENOMEM;
        return -1;
    }
    draw_header(canvas, text);
    for (int i = 0; i < places; i++) {
        const int left = MARGIN + i % columns * (sheet->tile_width + GAP);
        const int top = MARGIN + HEADER - 24 + i / columns * (sheet->tile_height + CAPTION + GAP);
        draw_tile(canvas, left, top, sheet, choose(sheet, i, places));
    }
    const struct text_style footer = {12, 0.13f, dim};
    canvas_text(canvas, MARGIN, (float)(height - MARGIN - 6), &footer, text->footer);
    const int rc = png_write(path, canvas->rgb, width, height);
    const int saved = errno;
    canvas_destroy(canvas);
    errno = saved;
    return rc == 0 ? places : -1;
}
