/* Samples, blocks and what is said of them.
 *
 * A series collects the samples of one variant, block after block. The figure of a row is the
 * median over blocks of the blocks' medians; its spread is the smallest and largest block;
 * percentiles such as p99 are taken over the pooled samples of all blocks. */
#ifndef TB_BENCH_STATS_H
#define TB_BENCH_STATS_H

#include <stddef.h>

#include "base/error.h"

#define TB__BENCH_MAX_BLOCKS 32

struct tb__series {
    double *values; /* in the order of arrival */
    size_t count;
    size_t capacity;
    int blocks;
    size_t ends[TB__BENCH_MAX_BLOCKS]; /* count at the end of each block */
};

/* What a row prints: a figure, its spread, and every block. */
struct tb__figure {
    double value;
    double min;
    double max;
    int blocks;
    double block[TB__BENCH_MAX_BLOCKS];
};

tb_status tb__series_init(struct tb__series *series, size_t capacity);
void tb__series_fini(struct tb__series *series);

/* A sample beyond the capacity is an error of the row, not dropped in silence. */
tb_status tb__series_add(struct tb__series *series, double value);
void tb__series_end_block(struct tb__series *series);

/* Percentile (0 to 1) of `count` values, which are sorted in place; nearest rank. NaN when empty.
 */
double tb__percentile(double *values, size_t count, double rank);

/* Median over blocks of each block's percentile `rank`, times `scale`. */
tb_status tb__series_blocks(const struct tb__series *series, double rank, double scale,
                            struct tb__figure *out);

/* Percentile over the pooled samples of all blocks, times `scale`; the blocks' own as spread. */
tb_status tb__series_pooled(const struct tb__series *series, double rank, double scale,
                            struct tb__figure *out);

/* Figure from one number per block. */
void tb__figure_of(const double *values, int count, struct tb__figure *out);

/* Median over rounds of a block of one over the block of the other in the same round: what a
 * machine that changes its pace from second to second does to both is left out. NaN: no common
 * round. */
double tb__figure_over(const struct tb__figure *figure, const struct tb__figure *baseline);

#endif
