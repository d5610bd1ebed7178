/* A contact sheet: small pictures of a film, evenly spread over it, with what moved in them and a
 * title strip of measured numbers.
 *
 * The life of a sheet: create it for one film, offer it each frame (it takes a small picture of a
 * few, reading the frame in place), write it at the end, destroy it. It need not know how long the
 * film is: when it has many pictures it drops every other one and takes new ones half as often. One
 * thread. */
#ifndef EXAMPLES_CAMERA_SHEET_H
#define EXAMPLES_CAMERA_SHEET_H

#include "detect.h"

#include <stdint.h>

enum { SHEET_CARDS = 5 };

struct sheet;

struct sheet_frame {
    int64_t index; /* from 0 */
    double pts_s;
    const uint8_t *rgb; /* packed, of the film's size */
    const struct box *boxes;
    int box_count;
};

/* What stands above and below the pictures. */
struct sheet_text {
    const char *title;
    const char *subtitle;
    const char *footer;
    struct {
        const char *value;
        const char *label;
    } cards[SHEET_CARDS];
};

/* `expected_frames` is 0 when the length is not known. Returns NULL when memory is short. */
struct sheet *sheet_create(int width, int height, int64_t expected_frames);
void sheet_destroy(struct sheet *sheet);

/* Look at a frame and keep a small picture of it, or not. Returns 1 when it was kept, 0 when not,
 * -1 when memory is short. */
int sheet_offer(struct sheet *sheet, const struct sheet_frame *frame);

/* Draw the sheet and write it as PNG. Returns the number of pictures on it, or -1 with errno set.
 */
int sheet_write(const struct sheet *sheet, const char *path, const struct sheet_text *text);

#endif
