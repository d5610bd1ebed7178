/* A small font of strokes: each glyph is a few lines and curves on a grid, drawn with a round pen,
 * so that one table gives smooth text of any size. Constant data. */
#ifndef EXAMPLES_CAMERA_FONT_H
#define EXAMPLES_CAMERA_FONT_H

enum {
    FONT_CAP_HEIGHT = 12, /* grid units from the top of a capital to the baseline */
    FONT_LETTER_GAP = 3,
    FONT_MAX_POINTS = 96 /* of one stroke, after curves were made into short lines */
};

/* A stroke as a chain of points, in grid units; y grows downwards, the baseline is FONT_CAP_HEIGHT.
 */
struct font_stroke {
    int count;
    float x[FONT_MAX_POINTS], y[FONT_MAX_POINTS];
};

/* Width of a character in grid units, without the gap to the next one. */
int font_width(unsigned char character);

/* Stroke number `index` of a character. Returns 1, or 0 when it has no more strokes. */
int font_stroke(unsigned char character, int index, struct font_stroke *out);

#endif
