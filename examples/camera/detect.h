/* Finding what moves in a film, on the frame as it lies in shared memory: the pixels are only read.
 *
 * The life of a detector: create it for one frame size, run it on each frame in order, destroy it.
 * It keeps a small grid of brightness, the learned background of that grid, and the tracks that
 * give an object the same number from frame to frame. One thread at a time. */
#ifndef EXAMPLES_CAMERA_DETECT_H
#define EXAMPLES_CAMERA_DETECT_H

#include <stdint.h>

enum { DETECT_MAX_BOXES = 32 };

/* One moving object, in pixels. Five int32 in this order are also a row of the `boxes` message. */
struct box {
    int32_t id;
    int32_t x, y, width, height;
};

struct detector;

/* Returns NULL when memory is short or the size is not 1 to 16384 a side. */
struct detector *detector_create(int width, int height);
void detector_destroy(struct detector *detector);

/* Look at the next frame, packed RGB, and write the objects that move in it.
 * Returns how many there are, at most DETECT_MAX_BOXES; the largest come first. */
int detector_run(struct detector *detector, const uint8_t *rgb, struct box boxes[DETECT_MAX_BOXES]);

/* How often the picture changed as a whole: a cut, or a lamp switched on. */
int detector_cuts(const struct detector *detector);

#endif
