/* See detect.h. The steps for a frame:
 *   1. brightness of each cell of the grid (some 160 cells across), the mean of at most 16 pixels;
 *   2. a change of most cells at once is a cut: the background starts anew from this frame;
 *   3. the background follows when the camera sways;
 *   4. a cell is foreground when it differs from the learned background by more than its usual
 * noise *and* something near it changed lately: a place that an object left long ago is no object;
 *   5. small gaps are closed, connected cells become boxes, near boxes become one;
 *   6. tracks give the boxes their numbers;
 *   7. the background learns: quickly where nothing is going on, slowly under objects. */
#include "detect.h"

#include "blob.h"
#include "track.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    GRID_COLUMNS = 160,
    SAMPLES = 4, /* pixels read per cell and axis, at most */
    MAX_SIDE = 16384,
    MAX_SHIFT = 2,    /* cells that the camera may sway between two frames */
    RECENT_FRAMES = 3 /* how long a change counts as "lately" */
};

static const float MIN_CONTRAST = 14;   /* of 255, from the background */
static const float MIN_CHANGE = 7;      /* of 255, from the frame before */
static const float NOISE_FACTOR = 3.5f; /* times a cell's usual deviation */
static const float CUT_CHANGE = 20;
static const double CUT_SHARE = 0.5;        /* of all cells */
static const double MIN_AREA_SHARE = 0.003; /* of the picture */

/* One instruction each; libm's, which mind NaN, are calls. */
static inline float min_float(float a, float b)
{
    return a < b ? a : b;
}

static inline float max_float(float a, float b)
{
    return a > b ? a : b;
}

struct detector {
    int width, height;
    int columns, rows, cells;
    int cell_pixels;
    int frames; /* since the last cut */
    int cuts;
    float *luma; /* this frame */
    float *previous;
    float *background;
    float *deviation; /* of this frame from the background */
    float *spare;     /* for moving the background */
    float *noise;     /* mean absolute deviation from the background */
    uint8_t *age;     /* frames since the cell last changed, up to 255 */
    uint8_t *mask;
    uint8_t *scratch;
    int32_t *stack;
    struct tracker tracker;
};

struct detector *detector_create(int width, int height)
{
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE) {
        return NULL;
    }
    struct detector *d = calloc(1, sizeof(*d));
    if (!d) {
        return NULL;
    }
    d->width = width;
    d->height = height;
    d->cell_pixels = (width + GRID_COLUMNS - 1) / GRID_COLUMNS;
    d->columns = (width + d->cell_pixels - 1) / d->cell_pixels;
    d->rows = (height + d->cell_pixels - 1) / d->cell_pixels;
    d->cells = d->columns * d->rows;
    const size_t cells = (size_t)d->cells;
    d->luma = calloc(cells, sizeof(float));
    d->previous = calloc(cells, sizeof(float));
    d->background = calloc(cells, sizeof(float));
    d->deviation = calloc(cells, sizeof(float));
    d->spare = calloc(cells, sizeof(float));
    d->noise = calloc(cells, sizeof(float));
    d->age = malloc(cells);
    d->mask = malloc(cells);
    d->scratch = malloc(cells);
    d->stack = calloc(cells, sizeof(int32_t));
    if (!d->luma || !d->previous || !d->background || !d->deviation || !d->spare || !d->noise ||
        !d->age || !d->mask || !d->scratch || !d->stack) {
        detector_destroy(d);
        return NULL;
    }
    return d;
}

void detector_destroy(struct detector *d)
{
    if (!d) {
        return;
    }
    free(d->luma);
    free(d->previous);
    free(d->background);
    free(d->deviation);
    free(d->spare);
    free(d->noise);
    free(d->age);
    free(d->mask);
    free(d->scratch);
    free(d->stack);
    free(d);
}

int detector_cuts(const struct detector *d)
{
    return d->cuts;
}

/* Mean brightness of a cell over a regular sample of its pixels. */
static float cell_luma(const struct detector *d, const uint8_t *rgb, int column, int row)
{
    const int x0 = column * d->cell_pixels, y0 = row * d->cell_pixels;
    const int x1 = x0 + d->cell_pixels < d->width ? x0 + d->cell_pixels : d->width;
    const int y1 = y0 + d->cell_pixels < d->height ? y0 + d->cell_pixels : d->height;
    const int step = d->cell_pixels > SAMPLES ? d->cell_pixels / SAMPLES : 1;
    int sum = 0, count = 0;
    for (int y = y0; y < y1; y += step) {
        const uint8_t *pixel = rgb + ((size_t)y * (size_t)d->width + (size_t)x0) * 3;
        for (int x = x0; x < x1; x += step, pixel += 3 * step) {
            sum += 77 * pixel[0] + 150 * pixel[1] + 29 * pixel[2]; /* BT.601 weights × 256 */
            count++;
        }
    }
    return (float)sum / (float)(count * 256);
}

/* How far a value lies outside the values of a grid's cell and its neighbours. A hand-held camera
 * sways by less than a cell from frame to frame: that alone must be no change. */
static float outside(const struct detector *d, const float *grid, int column, int row, float value)
{
    const int x0 = column > 0 ? column - 1 : 0, y0 = row > 0 ? row - 1 : 0;
    const int x1 = column + 1 < d->columns ? column + 1 : column;
    const int y1 = row + 1 < d->rows ? row + 1 : row;
    float low = grid[y0 * d->columns + x0], high = low;
    for (int y = y0; y <= y1; y++) {
        const float *cells = grid + y * d->columns;
        for (int x = x0; x <= x1; x++) {
            low = min_float(low, cells[x]);
            high = max_float(high, cells[x]);
        }
    }
    return max_float(0, max_float(low - value, value - high));
}

/* Read the frame; note where it changed. Returns the share of cells that changed much. */
static double look(struct detector *d, const uint8_t *rgb)
{
    float *swap = d->previous;
    d->previous = d->luma;
    d->luma = swap;
    int changed_much = 0;
    for (int row = 0; row < d->rows; row++) {
        for (int column = 0; column < d->columns; column++) {
            const int i = row * d->columns + column;
            d->luma[i] = cell_luma(d, rgb, column, row);
            changed_much += fabsf(d->luma[i] - d->previous[i]) > CUT_CHANGE;
            if (outside(d, d->previous, column, row, d->luma[i]) > MIN_CHANGE) {
                d->age[i] = 0;
            } else if (d->age[i] < UINT8_MAX) {
                d->age[i]++;
            }
        }
    }
    return (double)changed_much / d->cells;
}

static void start_anew(struct detector *d)
{
    memcpy(d->background, d->luma, (size_t)d->cells * sizeof(float));
    memset(d->age, UINT8_MAX, (size_t)d->cells);
    for (int i = 0; i < d->cells; i++) {
        d->noise[i] = 2;
    }
    d->frames = 0;
    tracker_reset(&d->tracker);
}

/* Whether the cell or one beside it changed lately. */
static int active(const struct detector *d, int column, int row)
{
    for (int y = row - 1; y <= row + 1; y++) {
        for (int x = column - 1; x <= column + 1; x++) {
            if (x >= 0 && y >= 0 && x < d->columns && y < d->rows &&
                d->age[y * d->columns + x] < RECENT_FRAMES) {
                return 1;
            }
        }
    }
    return 0;
}

/* Mean absolute difference of this frame from the background moved by (dx, dy), on a sample of
 * cells. Large differences count as equally large: objects must not pull the picture along. */
static float misfit(const struct detector *d, int dx, int dy)
{
    float sum = 0;
    int count = 0;
    for (int row = MAX_SHIFT; row + MAX_SHIFT < d->rows; row += 2) {
        for (int column = MAX_SHIFT + row / 2 % 2; column + MAX_SHIFT < d->columns; column += 2) {
            const float difference = d->luma[row * d->columns + column] -
                                     d->background[(row - dy) * d->columns + column - dx];
            sum += min_float(fabsf(difference), MIN_CONTRAST);
            count++;
        }
    }
    return count ? sum / (float)count : 0;
}

static void shift_grid(struct detector *d, float **grid, int dx, int dy)
{
    float *moved = d->spare;
    for (int row = 0; row < d->rows; row++) {
        for (int column = 0; column < d->columns; column++) {
            const int y = row - dy, x = column - dx;
            const int known = x >= 0 && y >= 0 && x < d->columns && y < d->rows;
            const int i = row * d->columns + column;
            moved[i] = known ? (*grid)[y * d->columns + x] : d->luma[i];
        }
    }
    d->spare = *grid;
    *grid = moved;
}

/* When the camera has swayed by a cell or more since the background was learned, move what was
 * learned along with the picture. */
static void follow_sway(struct detector *d)
{
    const float here = misfit(d, 0, 0);
    float best = here;
    int best_dx = 0, best_dy = 0;
    for (int dy = -MAX_SHIFT; dy <= MAX_SHIFT; dy++) {
        for (int dx = -MAX_SHIFT; dx <= MAX_SHIFT; dx++) {
            const float value = misfit(d, dx, dy);
            if (value < best) {
                best = value;
                best_dx = dx;
                best_dy = dy;
            }
        }
    }
    /* With most of the picture in motion there is nothing to go by. */
    if (best < 0.9f * here && best < 0.6f * MIN_CONTRAST) {
        shift_grid(d, &d->background, best_dx, best_dy);
    }
}

/* What a cell of the mask says while the mask is made. */
enum mark { BACKGROUND = 0, DIFFERENT = 1, MOVING = 2, BETWEEN = 3 };

static void mark(struct detector *d)
{
    for (int row = 0; row < d->rows; row++) {
        for (int column = 0; column < d->columns; column++) {
            const int i = row * d->columns + column;
            const float limit = max_float(MIN_CONTRAST, NOISE_FACTOR * d->noise[i]);
            d->deviation[i] = outside(d, d->background, column, row, d->luma[i]);
            d->mask[i] = BACKGROUND;
            if (d->deviation[i] > limit) {
                d->mask[i] = active(d, column, row) ? MOVING : DIFFERENT;
            }
        }
    }
}

/* The inside of a plain object does not change while it moves, its edges do: in each unbroken run
 * of different cells, what lies between two moving ones belongs to them. A place that an object has
 * left joins such a run at one end only and stays out. */
static void fill_line(uint8_t *cells, int count, int stride)
{
    int last_moving = -1;
    for (int i = 0; i < count; i++) {
        const uint8_t value = cells[i * stride];
        if (value == BACKGROUND) {
            last_moving = -1;
        } else if (value == MOVING) {
            for (int k = last_moving + 1; last_moving >= 0 && k < i; k++) {
                cells[k * stride] = cells[k * stride] == DIFFERENT ? BETWEEN : cells[k * stride];
            }
            last_moving = i;
        }
    }
}

static void fill(struct detector *d)
{
    for (int row = 0; row < d->rows; row++) {
        fill_line(d->mask + row * d->columns, d->columns, 1);
    }
    for (int column = 0; column < d->columns; column++) {
        fill_line(d->mask + column, d->rows, d->columns);
    }
}

/* What moves hardly teaches; what differs but stands still becomes background soon. Leaves 1 for
 * foreground and 0 for the rest in the mask. */
static void learn(struct detector *d)
{
    const float settle = d->frames < 10 ? 0.2f : 0.05f;
    for (int i = 0; i < d->cells; i++) {
        const int foreground = d->mask[i] >= MOVING;
        const float rate = foreground || d->age[i] < RECENT_FRAMES ? 0.01f : settle;
        d->background[i] += rate * (d->luma[i] - d->background[i]);
        /* Fine detail that shimmers all the time ends up as noise, an object that passes not. */
        d->noise[i] += (foreground ? 0.01f : 0.03f) * (d->deviation[i] - d->noise[i]);
        d->mask[i] = (uint8_t)foreground;
    }
}

static int find_boxes(struct detector *d, struct box found[DETECT_MAX_BOXES])
{
    struct blob blobs[BLOB_MAX];
    const int min_cells = (int)fmax(4, MIN_AREA_SHARE * d->cells);
    blob_close(d->mask, d->scratch, d->columns, d->rows, 2);
    int count = blob_find(d->mask, d->stack, d->columns, d->rows, min_cells / 3, blobs);
    count = blob_merge(blobs, count, 1);
    int kept = 0;
    for (int i = 0; i < count && kept < DETECT_MAX_BOXES; i++) {
        if (blobs[i].cells < min_cells) {
            continue;
        }
        const int right = (blobs[i].right + 1) * d->cell_pixels;
        const int bottom = (blobs[i].bottom + 1) * d->cell_pixels;
        struct box *box = &found[kept++];
        box->id = 0;
        box->x = blobs[i].left * d->cell_pixels;
        box->y = blobs[i].top * d->cell_pixels;
        box->width = (right < d->width ? right : d->width) - box->x;
        box->height = (bottom < d->height ? bottom : d->height) - box->y;
    }
    return kept;
}

int detector_run(struct detector *d, const uint8_t *rgb, struct box boxes[DETECT_MAX_BOXES])
{
    struct box found[DETECT_MAX_BOXES];
    const double changed = look(d, rgb);
    const int first = d->frames == 0 && d->cuts == 0;
    if (first || changed > CUT_SHARE) {
        d->cuts += !first;
        start_anew(d);
        d->frames = 1;
        return 0;
    }
    d->frames++;
    follow_sway(d);
    mark(d);
    fill(d);
    learn(d);
    return tracker_step(&d->tracker, found, find_boxes(d, found), boxes);
}
