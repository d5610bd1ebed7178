/* A picture in memory and what is drawn into it: areas, scaled images, outlines, text.
 *
 * The life of a canvas: canvas_create(), draw, canvas_destroy(). Everything is clipped to the
 * canvas. One thread at a time. */
#ifndef EXAMPLES_CAMERA_CANVAS_H
#define EXAMPLES_CAMERA_CANVAS_H

#include <stdint.h>

typedef uint32_t colour; /* 0xRRGGBB */

struct canvas {
    int width, height;
    uint8_t *rgb; /* packed rows */
};

struct canvas *canvas_create(int width, int height, colour background);
void canvas_destroy(struct canvas *canvas);

/* Mix a colour into one pixel; opacity 0 to 1. */
void canvas_blend(struct canvas *canvas, int x, int y, colour value, float opacity);

/* A rectangle with round corners (radius 0: square ones). */
struct area {
    int x, y, width, height;
    int radius;
};
void canvas_fill(struct canvas *canvas, struct area area, colour value, float opacity);
/* Its outline, `thickness` pixels, inside the rectangle. */
void canvas_outline(struct canvas *canvas, struct area area, int thickness, colour value);

/* Text whose capitals are `size` pixels high, their top at y. `weight` is the pen's width as a
 * share of the size, such as 0.14. */
struct text_style {
    float size;
    float weight;
    colour value;
};
void canvas_text(struct canvas *canvas, float x, float y, const struct text_style *style,
                 const char *text);
float canvas_text_width(const struct text_style *style, const char *text);

/* Scale an image so that every source pixel counts with the area that it covers. `from` is packed
 * RGB of another size; `to` has room for to_width × to_height × 3 bytes. Returns 0, or -1 when
 * memory is short. */
int canvas_scale(const uint8_t *from, int from_width, int from_height, uint8_t *to, int to_width,
                 int to_height);

#endif
