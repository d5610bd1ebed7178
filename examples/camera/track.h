/* Tracks: the same number for the same object from frame to frame.
 *
 * A track is begun by a box that no track claims, is confirmed when it has been seen a few times
 * (only then is it shown, so that flicker gets no number), follows the box that overlaps it best,
 * and ends when it has not been seen for a while. Plain data; zero-initialise it. One thread at a
 * time. */
#ifndef EXAMPLES_CAMERA_TRACK_H
#define EXAMPLES_CAMERA_TRACK_H

#include "detect.h"

struct track {
    struct box box;   /* smoothed; its id is 0 until the track is confirmed */
    int seen, unseen; /* frames in all; frames since it was last seen */
    int in_use;
};

struct tracker {
    struct track tracks[DETECT_MAX_BOXES];
    int32_t last_id;
};

/* Give the boxes of one frame to their tracks. `found` needs no ids.
 * Returns how many confirmed boxes were written to `out`, largest first. */
int tracker_step(struct tracker *tracker, const struct box *found, int found_count,
                 struct box out[DETECT_MAX_BOXES]);

/* Forget all tracks, for a cut; numbers go on where they were. */
void tracker_reset(struct tracker *tracker);

#endif
