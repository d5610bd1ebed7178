/* A video source: a file, a capture device or a filter graph, decoded by FFmpeg's libraries.
 *
 * The life of a source: open it, then alternate source_read() (decode the next picture) and
 * source_convert() (write that picture as packed RGB into memory that the caller chose, so that a
 * camera can have it written straight into a loaned slot), then close it.
 *
 * A source belongs to one thread at a time. Whatever the file says about itself is checked here. */
#ifndef EXAMPLES_CAMERA_SOURCE_H
#define EXAMPLES_CAMERA_SOURCE_H

#include <stdint.h>

struct source;

struct source_info {
    int width, height;   /* of the pictures that source_convert() writes; square pixels */
    double fps;          /* 0 when the source does not say */
    int64_t frame_count; /* expected; 0 when the source does not say */
    int live;            /* 1: a device, which sets the pace by itself */
    char codec[32];
};

/* Open `name`: a path or URL, "/dev/video0" (Video4Linux), or "lavfi:GRAPH" (FFmpeg's filters).
 * Returns 0, or -1 after writing a full sentence to `error`. */
int source_open(const char *name, struct source **out, char *error, int error_size);
void source_close(struct source *source);

const struct source_info *source_get_info(const struct source *source);

/* Decode the next picture. *pts_s is its time in seconds from the first one.
 * Returns 1, 0 at the end, or -1 after writing to `error`. */
int source_read(struct source *source, double *pts_s, char *error, int error_size);

/* Convert the picture that source_read() found to packed RGB: height × width × 3 bytes at `rgb`.
 * Returns 0, or -1 after writing to `error`. */
int source_convert(struct source *source, uint8_t *rgb, char *error, int error_size);

/* Go back to the beginning, for playing a file in a loop. Returns 0, or -1 after writing to
 * `error`. */
int source_rewind(struct source *source, char *error, int error_size);

#endif
