/* See track.h. */
#include "track.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FRAMES_TO_CONFIRM = 3,
    FRAMES_TO_HIDE = 2, /* a box is still shown when its object was missed so often */
    FRAMES_TO_FORGET = 12
};

static const double MIN_SCORE = 0.05;

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static double area(const struct box *box)
{
    return (double)box->width * box->height;
}

/* Overlap of two boxes, 0 to 1, over the geometric mean of their areas: an object that grows out of
 * a corner keeps its number, and a crumb inside a large box does not take the large one's. */
static double score(const struct box *a, const struct box *b)
{
    const int width = min_int(a->x + a->width, b->x + b->width) - max_int(a->x, b->x);
    const int height = min_int(a->y + a->height, b->y + b->height) - max_int(a->y, b->y);
    if (width <= 0 || height <= 0) {
        return 0;
    }
    return (double)width * height / sqrt(area(a) * area(b));
}

/* Move a track's box most of the way to where its object was found: edges that jitter by a cell
 * stand still, and a moving object is followed within a few frames. */
static void follow(struct box *box, const struct box *found)
{
    const int left = (box->x + 2 * found->x + 1) / 3;
    const int top = (box->y + 2 * found->y + 1) / 3;
    const int right = (box->x + box->width + 2 * (found->x + found->width) + 1) / 3;
    const int bottom = (box->y + box->height + 2 * (found->y + found->height) + 1) / 3;
    box->x = left;
    box->y = top;
    box->width = right - left;
    box->height = bottom - top;
}

/* Pair tracks and boxes, best overlap first; what is left over stays unpaired. */
static void pair(struct tracker *tracker, const struct box *found, int found_count, uint8_t *taken)
{
    uint8_t paired[DETECT_MAX_BOXES] = {0};
    for (;;) {
        double best = MIN_SCORE;
        int best_track = -1, best_box = -1;
        for (int t = 0; t < DETECT_MAX_BOXES; t++) {
            const struct track *track = &tracker->tracks[t];
            for (int b = 0; track->in_use && !paired[t] && b < found_count; b++) {
                /* Between equal overlaps the older track has the better claim. */
                const double value =
                    score(&track->box, &found[b]) + 1e-4 * min_int(track->seen, 999);
                if (!taken[b] && value > best && score(&track->box, &found[b]) > MIN_SCORE) {
                    best = value;
                    best_track = t;
                    best_box = b;
                }
            }
        }
        if (best_track < 0) {
            break;
        }
        struct track *track = &tracker->tracks[best_track];
        paired[best_track] = taken[best_box] = 1;
        follow(&track->box, &found[best_box]);
        track->seen++;
        track->unseen = 0;
        if (track->seen == FRAMES_TO_CONFIRM) {
            track->box.id = ++tracker->last_id;
        }
    }
    for (int t = 0; t < DETECT_MAX_BOXES; t++) {
        struct track *track = &tracker->tracks[t];
        /* An unconfirmed one that misses a frame was flicker. */
        if (track->in_use && !paired[t] &&
            (++track->unseen > FRAMES_TO_FORGET || track->seen < FRAMES_TO_CONFIRM)) {
            track->in_use = 0;
        }
    }
}

static void begin_track(struct tracker *tracker, const struct box *found)
{
    for (int t = 0; t < DETECT_MAX_BOXES; t++) {
        if (!tracker->tracks[t].in_use) {
            tracker->tracks[t] = (struct track){.box = *found, .seen = 1, .in_use = 1};
            tracker->tracks[t].box.id = 0;
            return;
        }
    }
}

static int larger_first(const void *a, const void *b)
{
    const double difference = area(b) - area(a);
    return difference > 0 ? 1 : difference < 0 ? -1 : 0;
}

int tracker_step(struct tracker *tracker, const struct box *found, int found_count,
                 struct box out[DETECT_MAX_BOXES])
{
    uint8_t taken[DETECT_MAX_BOXES] = {0};
    found_count = min_int(found_count, DETECT_MAX_BOXES);
    pair(tracker, found, found_count, taken);
    for (int b = 0; b < found_count; b++) {
        if (!taken[b]) {
            begin_track(tracker, &found[b]);
        }
    }
    int count = 0;
    for (int t = 0; t < DETECT_MAX_BOXES; t++) {
        const struct track *track = &tracker->tracks[t];
        if (track->in_use && track->box.id && track->unseen <= FRAMES_TO_HIDE) {
            out[count++] = track->box;
        }
    }
    qsort(out, (size_t)count, sizeof(*out), larger_first);
    return count;
}

void tracker_reset(struct tracker *tracker)
{
    memset(tracker->tracks, 0, sizeof(tracker->tracks));
}
