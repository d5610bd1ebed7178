/* Samples, blocks, medians and percentiles. Pure functions apart from allocation. */
#include "bench/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tb_status tb__series_init(struct tb__series *series, size_t capacity)
{
    *series = (struct tb__series){.capacity = capacity};
    series->values = calloc(capacity > 0 ? capacity : 1, sizeof(double));
    if (series->values == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for %zu samples", capacity);
    }
    return TB_OK;
}

void tb__series_fini(struct tb__series *series)
{
    free(series->values);
    *series = (struct tb__series){0};
}

tb_status tb__series_add(struct tb__series *series, double value)
{
    if (series->count == series->capacity) {
        return TB__FAIL(TB_E_LIMIT, "more than %zu samples", series->capacity);
    }
    series->values[series->count++] = value;
    return TB_OK;
}

void tb__series_end_block(struct tb__series *series)
{
    TB_ASSERT(series->blocks < TB__BENCH_MAX_BLOCKS);
    series->ends[series->blocks++] = series->count;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tb__percentile(double *values, size_t count, double rank)
{
    if (count == 0) {
        return NAN;
    }
    qsort(values, count, sizeof *values, by_value);
    if (rank == 0.5 && count % 2 == 0) {
        return (values[count / 2 - 1] + values[count / 2]) / 2;
    }
    double position = ceil(rank * (double)count) - 1;
    size_t index = position <= 0 ? 0 : (size_t)position;
    return values[index < count ? index : count - 1];
}

/* Percentile of a part of the series, which stays as it is. */
static tb_status part_percentile(const struct tb__series *series, size_t from, size_t to,
                                 double rank, double *out)
{
    double *copy = malloc((to - from + 1) * sizeof *copy);
    if (copy == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory to sort %zu samples", to - from);
    }
    memcpy(copy, series->values + from, (to - from) * sizeof *copy);
    *out = tb__percentile(copy, to - from, rank);
    free(copy);
    return TB_OK;
}

void tb__figure_of(const double *values, int count, struct tb__figure *out)
{
    TB_ASSERT(count >= 0 && count <= TB__BENCH_MAX_BLOCKS);
    double sorted[TB__BENCH_MAX_BLOCKS];
    *out = (struct tb__figure){.blocks = count};
    if (count > 0) {
        memcpy(out->block, values, (size_t)count * sizeof *values);
        memcpy(sorted, values, (size_t)count * sizeof *values);
    }
    out->value = tb__percentile(sorted, (size_t)count, 0.5);
    out->min = count > 0 ? sorted[0] : NAN;
    out->max = count > 0 ? sorted[count - 1] : NAN;
}

double tb__figure_over(const struct tb__figure *figure, const struct tb__figure *baseline)
{
    double ratios[TB__BENCH_MAX_BLOCKS];
    int rounds = figure->blocks < baseline->blocks ? figure->blocks : baseline->blocks;
    for (int i = 0; i < rounds; i++) {
        ratios[i] = figure->block[i] / baseline->block[i];
    }
    return tb__percentile(ratios, (size_t)rounds, 0.5);
}

tb_status tb__series_blocks(const struct tb__series *series, double rank, double scale,
                            struct tb__figure *out)
{
    double values[TB__BENCH_MAX_BLOCKS];
    size_t from = 0;
    for (int i = 0; i < series->blocks; i++) {
        TB__TRY(part_percentile(series, from, series->ends[i], rank, &values[i]));
        values[i] *= scale;
        from = series->ends[i];
    }
    tb__figure_of(values, series->blocks, out);
    return TB_OK;
}

tb_status tb__series_pooled(const struct tb__series *series, double rank, double scale,
                            struct tb__figure *out)
{
    double pooled;
    TB__TRY(tb__series_blocks(series, rank, scale, out));
    TB__TRY(part_percentile(series, 0, series->count, rank, &pooled));
    out->value = pooled * scale;
    return TB_OK;
}
