/* Connected regions of a grid of cells, and their bounding boxes. Pure functions over the caller's
 * memory. */
#ifndef EXAMPLES_CAMERA_BLOB_H
#define EXAMPLES_CAMERA_BLOB_H

#include <stdint.h>

enum { BLOB_MAX = 64 };

/* A region, in cells: columns left..right and rows top..bottom, both included. */
struct blob {
    int left, top, right, bottom;
    int cells;
};

/* Morphological closing, in place: gaps of up to 2 × radius cells between set cells (non-zero
 * bytes) are filled. `scratch` has as many bytes as the mask. */
void blob_close(uint8_t *mask, uint8_t *scratch, int columns, int rows, int radius);

/* Find the regions of cells that touch each other (also by a corner). Clears the mask. `stack` has
 * room for columns × rows entries. Of more than BLOB_MAX regions the largest are kept.
 * Returns how many. */
int blob_find(uint8_t *mask, int32_t *stack, int columns, int rows, int min_cells,
              struct blob blobs[BLOB_MAX]);

/* Join regions whose boxes overlap or lie within `gap` cells of each other. Returns how many
 * remain. */
int blob_merge(struct blob *blobs, int count, int gap);

#endif
