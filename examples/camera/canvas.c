/* See canvas.h. Edges are smooth because a pixel takes as much of the colour as the shape covers of
 * it, which for a round pen follows from the distance to its line. */
#include "canvas.h"

#include "font.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct canvas *canvas_create(int width, int height, colour background)
{
    struct canvas *canvas = calloc(1, sizeof(*canvas));
    if (!canvas) {
        return NULL;
    }
    canvas->width = width;
    canvas->height = height;
    canvas->rgb = malloc((size_t)width * (size_t)height * 3);
    if (!canvas->rgb) {
        free(canvas);
        return NULL;
    }
    canvas_fill(canvas, 0, 0, width, height, 0, background, 1);
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
        const float mixed = (float)pixel[i] + fminf(opacity, 1) * (target - (float)pixel[i]);
        pixel[i] = (uint8_t)(mixed + 0.5f);
    }
}

/* Distance of a point from a rectangle with round corners: negative inside. */
static float round_distance(float px, float py, float width, float height, float radius)
{
    const float dx = fabsf(px - width / 2) - (width / 2 - radius);
    const float dy = fabsf(py - height / 2) - (height / 2 - radius);
    const float outside = hypotf(fmaxf(dx, 0), fmaxf(dy, 0));
    return outside + fminf(fmaxf(dx, dy), 0) - radius;
}

static float coverage(float distance)
{
    return fmaxf(0, fminf(1, 0.5f - distance));
}

void canvas_fill(struct canvas *canvas, int x, int y, int width, int height, int radius,
                 colour value, float opacity)
{
    const int x0 = x < 0 ? -x : 0, y0 = y < 0 ? -y : 0;
    for (int row = y0; row < height && y + row < canvas->height; row++) {
        for (int column = x0; column < width && x + column < canvas->width; column++) {
            const float distance = round_distance((float)column + 0.5f, (float)row + 0.5f,
                                                  (float)width, (float)height, (float)radius);
            canvas_blend(canvas, x + column, y + row, value, opacity * coverage(distance));
        }
    }
}

void canvas_outline(struct canvas *canvas, int x, int y, int width, int height, int radius,
                    int thickness, colour value)
{
    for (int row = 0; row < height; row++) {
        const int edge_row = row < radius + thickness || row >= height - radius - thickness;
        for (int column = 0; column < width; column++) {
            if (!edge_row && column == thickness + 1 && width > 2 * thickness + 2) {
                column = width - thickness - 1; /* nothing to draw in the middle */
            }
            const float outer = round_distance((float)column + 0.5f, (float)row + 0.5f,
                                               (float)width, (float)height, (float)radius);
            const float ring = fmaxf(outer, -outer - (float)thickness);
            canvas_blend(canvas, x + column, y + row, value, coverage(ring));
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
    t = fmaxf(0, fminf(1, t));
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
                    nearest = fminf(nearest, segment_distance(gx, gy, &strokes[s], i));
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

/* One row or column: each target element is the mean of the source interval that it covers. */
static void scale_line(const float *from, int from_count, int stride_from, float *to, int to_count,
                       int stride_to)
{
    const float ratio = (float)from_count / (float)to_count;
    for (int i = 0; i < to_count; i++) {
        const float begin = (float)i * ratio, end = (float)(i + 1) * ratio;
        const int first = (int)begin;
        const int last = (int)ceilf(end) < from_count ? (int)ceilf(end) : from_count;
        float sum = 0, weights = 0;
        for (int k = first; k < last; k++) {
            const float weight = fminf(end, (float)(k + 1)) - fmaxf(begin, (float)k);
            sum += weight * from[k * stride_from];
            weights += weight;
        }
        to[i * stride_to] = weights > 0 ? sum / weights : from[(from_count - 1) * stride_from];
    }
}

int canvas_scale(const uint8_t *from, int from_width, int from_height, uint8_t *to, int to_width,
                 int to_height)
{
    float *line = malloc((size_t)from_width * 3 * sizeof(float));
    float *narrow = malloc((size_t)to_width * (size_t)from_height * 3 * sizeof(float));
    float *column = malloc((size_t)to_height * sizeof(float));
    if (!line || !narrow || !column) {
        free(line);
        free(narrow);
        free(column);
        return -1;
    }
    for (int y = 0; y < from_height; y++) {
        for (int i = 0; i < from_width * 3; i++) {
            line[i] = from[(size_t)y * (size_t)from_width * 3 + (size_t)i];
        }
        for (int channel = 0; channel < 3; channel++) {
            scale_line(line + channel, from_width, 3,
                       narrow + (size_t)y * (size_t)to_width * 3 + channel, to_width, 3);
        }
    }
    for (int i = 0; i < to_width * 3; i++) {
        scale_line(narrow + i, from_height, to_width * 3, column, to_height, 1);
        for (int y = 0; y < to_height; y++) {
            to[(size_t)y * (size_t)to_width * 3 + (size_t)i] = (uint8_t)(column[y] + 0.5f);
        }
    }
    free(line);
    free(narrow);
    free(column);
    return 0;
}
