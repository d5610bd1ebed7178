/* What a run has found, and how it is shown: a text table or JSON. */
#ifndef TB_BENCH_REPORT_H
#define TB_BENCH_REPORT_H

#include "bench/bench.h"
#include "bench/machine.h"

#define TB__BENCH_MAX_ROWS 128

enum tb__met {
    TB__MET_NO_GOAL = 0,
    TB__MET_YES,
    TB__MET_NO,
    TB__MET_SKIPPED, /* there is a goal, but no figure */
};

struct tb__result {
    const struct tb__bench_row *row;
    struct tb__figure figure;
    double baseline;             /* NAN: none */
    double ratio;                /* NAN: none */
    int by_rounds;               /* the ratio is given: see tb__figure_over() */
    const struct tb__goal *goal; /* NULL: none */
    int skipped;
    enum tb__met met;
    double steal_percent;    /* while the group ran up to this report */
    double pressure_percent; /* -1: the kernel does not say */
    char note[256];
};

/* The goal of a row, or NULL. */
const struct tb__goal *tb__goal_find(const struct tb__bench_suite *suite, const char *row);

/* Fill in ratio, goal and met. */
void tb__result_judge(struct tb__result *result, const struct tb__bench_suite *suite);

/* The machine. Returns 0 when no row can be measured on it, which is said. */
int tb__report_machine(FILE *out, const struct tb__bench_suite *suite,
                       const struct tb__machine *machine);
/* The head of the table. */
void tb__report_columns(FILE *out, const struct tb__machine *machine);
void tb__report_row(FILE *out, const struct tb__result *result);
void tb__report_blocks(FILE *out, const struct tb__result *results, size_t count);
/* Names of goals not met or skipped; returns how many. */
int tb__report_goals(FILE *out, const struct tb__result *results, size_t count);
void tb__report_json(FILE *out, const struct tb__bench_suite *suite,
                     const struct tb__machine *machine, const struct tb__result *results,
                     size_t count);

#endif
