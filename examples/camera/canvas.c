/* See canvas.h. Edges are smooth because a pixel takes as much of the colour as the shape covers of
 * it, which for a round pen follows from the distance to its line. */
#include "canvas.h"

#include "font.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One instruction each; libm's, which mind NaN, are calls. */
static inline float min_float(float a, float b)
{
    return a < b ? a : b;
}

static inline float max_float(float a, float b)
{
    return a > b ? a : b;
}

struct canvas *canvas_create(int width, int height, colour background)
{
    struct canvas *canvas = calloc(1, sizeof(*canvas));
    if (!canvas) {
        return NULL;
    }
    canvas->width = width;
    canvas->height = height;
    canvas->rgb = calloc((size_t)width * (size_t)height, 3);
    if (!canvas->rgb) {
        free(canvas);
        return NULL;
    }
    canvas_fill(canvas, (struct area){0, 0, width, height, 0}, background, 1);
    return canvas;
}

void canvas_destroy(struct canvas *canvas)
{
    if (canvas) {
        free(canvas->rgb);
        free(canvas);
    }
}

void canvas_blend(struct canvas *canvas, int x, int y, colour value, float opacity)
{
    if (x < 0 || y < 0 || x >= canvas->width || y >= canvas->height || opacity <= 0) {
        return;
    }
    uint8_t *pixel = canvas->rgb + ((size_t)y * (size_t)canvas->width + (size_t)x) * 3;
    for (int i = 0; i < 3; i++) {
        const float target = (float)(value >> (16 - 8 * i) & 0xff);
        const float mixed = (float)pixel[i] + min_float(opacity, 1) * (target - (float)pixel[i]);
        pixel[i] = (uint8_t)(mixed + 0.5f);
    }
}

/* Distance of a pixel's middle from the edge of an area: negative inside. Both count from its
 * corner. */
static float edge_distance(const struct area *area, int column, int row)
{
    const float width = (float)area->width, height = (float)area->height;
    const float radius = (float)area->radius;
    const float dx = fabsf((float)column + 0.5f - width / 2) - (width / 2 - radius);
    const float dy = fabsf((float)row + 0.5f - height / 2) - (height / 2 - radius);
    const float outside = hypotf(max_float(dx, 0), max_float(dy, 0));
    return outside + min_float(max_float(dx, dy), 0) - radius;
}

static float coverage(float distance)
{
    return max_float(0, min_float(1, 0.5f - distance));
}

void canvas_fill(struct canvas *canvas, struct area area, colour value, float opacity)
{
    const int x0 = area.x < 0 ? -area.x : 0, y0 = area.y < 0 ? -area.y : 0;
    for (int row = y0; row < area.height && area.y + row < canvas->height; row++) {
        for (int column = x0; column < area.width && area.x + column < canvas->width; column++) {
            canvas_blend(canvas, area.x + column, area.y + row, value,
                         opacity * coverage(edge_distance(&area, column, row)));
        }
    }
}

void canvas_outline(struct canvas *canvas, struct area area, int thickness, colour value)
{
    const int edge = area.radius + thickness;
    for (int row = 0; row < area.height; row++) {
        const int edge_row = row < edge || row >= area.height - edge;
        for (int column = 0; column < area.width; column++) {
            if (!edge_row && column == thickness + 1 && area.width > 2 * thickness + 2) {
                column = area.width - thickness - 1; /* nothing to draw in the middle */
            }
            const float outer = edge_distance(&area, column, row);
            const float ring = max_float(outer, -outer - (float)thickness);
            canvas_blend(canvas, area.x + column, area.y + row, value, coverage(ring));
        }
    }
}

static float segment_distance(float px, float py, const struct font_stroke *stroke, int i)
{
    const int next = i + 1 < stroke->count ? i + 1 : i; /* a dot is a line without length */
    const float ax = stroke->x[i], ay = stroke->y[i];
    const float bx = stroke->x[next] - ax, by = stroke->y[next] - ay;
    const float length2 = bx * bx + by * by;
    float t = length2 > 0 ? ((px - ax) * bx + (py - ay) * by) / length2 : 0;
    t = max_float(0, min_float(1, t));
    return hypotf(px - ax - t * bx, py - ay - t * by);
}

/* Draw one character whose grid origin is at (x, y), `unit` pixels per grid unit. A pixel takes the
 * nearest stroke only, so that crossing strokes do not show. */
static void draw_character(struct canvas *canvas, float x, float y, float unit,
                           const struct text_style *style, unsigned char character)
{
    const float pen = style->size * style->weight / 2;
    const int left = (int)floorf(x - pen - 1), top = (int)floorf(y - pen - 1);
    const int right = (int)ceilf(x + (float)font_width(character) * unit + pen + 1);
    const int bottom = (int)ceilf(y + 16 * unit + pen + 1);
    struct font_stroke strokes[8];
    int count = 0;
    while (count < 8 && font_stroke(character, count, &strokes[count])) {
        count++;
    }
    for (int py = top; py <= bottom; py++) {
        for (int px = left; px <= right; px++) {
            const float gx = ((float)px + 0.5f - x) / unit, gy = ((float)py + 0.5f - y) / unit;
            float nearest = 1e9f;
            for (int s = 0; s < count; s++) {
                for (int i = 0; i < strokes[s].count; i++) {
                    nearest = min_float(nearest, segment_distance(gx, gy, &strokes[s], i));
                }
            }
            canvas_blend(canvas, px, py, style->value, coverage(nearest * unit - pen));
        }
    }
}

void canvas_text(struct canvas *canvas, float x, float y, const struct text_style *style,
                 const char *text)
{
    const float unit = style->size / FONT_CAP_HEIGHT;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        draw_character(canvas, x, y, unit, style, *c);
        x += (float)(font_width(*c) + FONT_LETTER_GAP) * unit;
    }
}

float canvas_text_width(const struct text_style *style, const char *text)
{
    int units = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        units += font_width(*c) + FONT_LETTER_GAP;
    }
    return units ? (float)(units - FONT_LETTER_GAP) * style->size / FONT_CAP_HEIGHT : 0;
}

/* Part of source element k that lies between begin and end. */
static float share(int k, float begin, float end)
{
    return max_float(0, min_float(end, (float)(k + 1)) - max_float(begin, (float)k));
}

/* Mean of the source rows between begin and end (in rows), weighted by the share of each. */
static void mean_rows(const uint8_t *from, int row_bytes, int rows, float begin, float end,
                      float *to)
{
    memset(to, 0, (size_t)row_bytes * sizeof(float));
    for (int row = (int)begin; row < rows && (float)row < end; row++) {
        const float weight = share(row, begin, end) / (end - begin);
        const uint8_t *bytes = from + (size_t)row * (size_t)row_bytes;
        for (int i = 0; i < row_bytes; i++) {
            to[i] += weight * (float)bytes[i];
        }
    }
}

/* The same along a row of pixels. */
static void mean_columns(const float *from, int from_width, uint8_t *to, int to_width)
{
    const float ratio = (float)from_width / (float)to_width;
    for (int x = 0; x < to_width; x++) {
        const float begin = (float)x * ratio, end = (float)(x + 1) * ratio;
        float sum[3] = {0.5f, 0.5f, 0.5f};
        for (int k = (int)begin; k < from_width && (float)k < end; k++) {
            const float weight = share(k, begin, end) / ratio;
            for (int channel = 0; channel < 3; channel++) {
                sum[channel] += weight * from[k * 3 + channel];
            }
        }
        for (int channel = 0; channel < 3; channel++) {
            to[x * 3 + channel] = (uint8_t)min_float(sum[channel], 255);
        }
    }
}

int canvas_scale(const uint8_t *from, int from_width, int from_height, uint8_t *to, int to_width,
                 int to_height)
{
    const float ratio = (float)from_height / (float)to_height;
    float *row = malloc((size_t)from_width * 3 * sizeof(float));
    if (!row) {
        return -1;
    }
    for (int y = 0; y < to_height; y++) {
        mean_rows(from, from_width * 3, from_height, (float)y * ratio, (float)(y + 1) * ratio, row);
        mean_columns(row, from_width, to + (size_t)y * (size_t)to_width * 3, to_width);
    }
    free(row);
    return 0;
}
