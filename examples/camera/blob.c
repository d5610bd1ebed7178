/* See blob.h. */
#include "blob.h"

#include <string.h>

/* One pass of dilation (any = 1) or erosion (any = 0) along one axis. Cells outside count as set
 * for erosion, so that a region at the picture's edge keeps its edge. */
static void spread(const uint8_t *from, uint8_t *to, int count, int stride, int radius, int any)
{
    for (int i = 0; i < count; i++) {
        const int first = i < radius ? 0 : i - radius;
        const int last = i + radius >= count ? count - 1 : i + radius;
        uint8_t value = (uint8_t)!any;
        for (int k = first; k <= last; k++) {
            if ((from[k * stride] != 0) == any) {
                value = (uint8_t)any;
                break;
            }
        }
        to[i * stride] = value;
    }
}

static void spread_both(uint8_t *mask, uint8_t *scratch, int columns, int rows, int radius, int any)
{
    for (int y = 0; y < rows; y++) {
        spread(mask + y * columns, scratch + y * columns, columns, 1, radius, any);
    }
    for (int x = 0; x < columns; x++) {
        spread(scratch + x, mask + x, rows, columns, radius, any);
    }
}

void blob_close(uint8_t *mask, uint8_t *scratch, int columns, int rows, int radius)
{
    spread_both(mask, scratch, columns, rows, radius, 1);
    spread_both(mask, scratch, columns, rows, radius, 0);
}

/* Flood one region from a set cell and clear it. A cell is cleared when it is pushed, so it is
 * pushed once and the stack never holds more than all cells. */
static struct blob flood(uint8_t *mask, int32_t *stack, int columns, int rows, int start)
{
    struct blob blob = {columns, rows, -1, -1, 0};
    int depth = 0;
    stack[depth++] = start;
    mask[start] = 0;
    while (depth > 0) {
        const int cell = stack[--depth];
        const int x = cell % columns, y = cell / columns;
        blob.cells++;
        blob.left = x < blob.left ? x : blob.left;
        blob.right = x > blob.right ? x : blob.right;
        blob.top = y < blob.top ? y : blob.top;
        blob.bottom = y > blob.bottom ? y : blob.bottom;
        for (int ny = y - 1; ny <= y + 1; ny++) {
            for (int nx = x - 1; nx <= x + 1; nx++) {
                if (nx >= 0 && ny >= 0 && nx < columns && ny < rows && mask[ny * columns + nx]) {
                    mask[ny * columns + nx] = 0;
                    stack[depth++] = ny * columns + nx;
                }
            }
        }
    }
    return blob;
}

int blob_find(uint8_t *mask, int32_t *stack, int columns, int rows, int min_cells,
              struct blob blobs[BLOB_MAX])
{
    int count = 0;
    for (int cell = 0; cell < columns * rows; cell++) {
        if (!mask[cell]) {
            continue;
        }
        const struct blob blob = flood(mask, stack, columns, rows, cell);
        if (blob.cells < min_cells) {
            continue;
        }
        if (count < BLOB_MAX) {
            blobs[count++] = blob;
            continue;
        }
        int smallest = 0;
        for (int i = 1; i < count; i++) {
            smallest = blobs[i].cells < blobs[smallest].cells ? i : smallest;
        }
        if (blobs[smallest].cells < blob.cells) {
            blobs[smallest] = blob;
        }
    }
    return count;
}

static int close_together(const struct blob *a, const struct blob *b, int gap)
{
    return a->left <= b->right + gap && b->left <= a->right + gap && a->top <= b->bottom + gap &&
           b->top <= a->bottom + gap;
}

int blob_merge(struct blob *blobs, int count, int gap)
{
    for (int i = 0; i < count; i++) {
        for (int k = i + 1; k < count; k++) {
            struct blob *a = &blobs[i];
            const struct blob *b = &blobs[k];
            if (!close_together(a, b, gap)) {
                continue;
            }
            a->left = b->left < a->left ? b->left : a->left;
            a->top = b->top < a->top ? b->top : a->top;
            a->right = b->right > a->right ? b->right : a->right;
            a->bottom = b->bottom > a->bottom ? b->bottom : a->bottom;
            a->cells += b->cells;
            blobs[k] = blobs[--count];
            i = -1; /* the grown box may now touch one that was passed over */
            break;
        }
    }
    return count;
}
