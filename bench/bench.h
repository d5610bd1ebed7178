/* The frame of `tensorbus bench local` and `bench gpu`: groups of rows, and how they report.
 *
 * A group measures what belongs in one alternation (ours, the floor) and reports one or more rows.
 * Groups run one after another in one process, which never opens a bus: each side of a measurement
 * is a process of its own (processes.h). What a group does not report is skipped, with the reason.
 */
#ifndef TB_BENCH_BENCH_H
#define TB_BENCH_BENCH_H

#include <stdio.h>

#include "bench/goals.h"
#include "bench/stats.h"

/* What `--explain` says; rows that differ in size alone share one. */
struct tb__bench_text {
    const char *does;     /* what both sides do */
    const char *interval; /* what the time or count spans */
    const char *floor;    /* what it is divided by, or what bounds it */
};

struct tb__bench_row {
    const char *name;
    const char *unit;
    const struct tb__bench_text *text;
};

struct tb__bench;

struct tb__bench_group {
    const struct tb__bench_row *rows;
    size_t count;
    tb_status (*run)(struct tb__bench *bench);
};

/* What one `tensorbus bench NAME` measures. */
struct tb__bench_suite {
    const char *name;
    const struct tb__bench_group *const *groups; /* in the order of the table */
    size_t group_count;
    const struct tb__goal *goals;
    size_t goal_count;
    /* A line more about the machine; or NULL. Returns 0 when no row can be measured, which the line
     * explains. */
    int (*describe)(FILE *out);
};
extern const struct tb__bench_suite tb__suite_local;
extern const struct tb__bench_suite tb__suite_gpu;

struct tb__bench_options {
    const struct tb__bench_suite *suite;
    const char *pattern; /* substring of row names, or NULL for all */
    const char *example; /* flow of the pool example, or NULL to look for it */
    int quick;           /* fewer samples */
    int json;
    int check;
    int skipped; /* the table, too, when no row can be measured */
};

/* Run what matches and print. Returns 0; 1 when `check` is set and a goal is not met or skipped; 2
 * when nothing matches. */
int tb__bench_run(const struct tb__bench_options *options);

void tb__bench_list(FILE *out, const struct tb__bench_suite *suite);
/* Returns 0 when there is no such row. */
int tb__bench_explain(FILE *out, const struct tb__bench_suite *suite, const char *name);

/* For groups. */

int tb__bench_quick(const struct tb__bench *bench);
const char *tb__bench_example(const struct tb__bench *bench);
/* Whether a row is asked for: a group may leave out what nobody wants to see. */
int tb__bench_wants(const struct tb__bench *bench, const char *row);
/* Blocks per variant: at least 5. */
int tb__bench_blocks(const struct tb__bench *bench, int full);

/* Report a row. `baseline` is NAN when there is none. The note says what else was seen. */
void tb__bench_report(struct tb__bench *bench, const char *row, const struct tb__figure *figure,
                      double baseline, const char *note, ...) __attribute__((format(printf, 5, 6)));
/* The same where the blocks of `baseline` were measured in turn with those of `figure`: the ratio
 * is that of tb__figure_over(). */
void tb__bench_report_rounds(struct tb__bench *bench, const char *row,
                             const struct tb__figure *figure, const struct tb__figure *baseline,
                             const char *note, ...) __attribute__((format(printf, 5, 6)));
void tb__bench_skip(struct tb__bench *bench, const char *row, const char *reason, ...)
    __attribute__((format(printf, 3, 4)));

#endif
