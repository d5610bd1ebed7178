/* Running groups of rows: which are asked for, in order, with what is skipped filled in. */
#include "bench/bench.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include "bench/machine.h"
#include "bench/processes.h"
#include "bench/report.h"
#include "bench/ticks.h"

struct tb__bench {
    const struct tb__bench_options *options;
    const struct tb__bench_group *group; /* the one that runs */
    struct tb__disturbance group_start;
    struct tb__result results[TB__BENCH_MAX_ROWS];
    size_t count;
};

int tb__bench_quick(const struct tb__bench *bench)
{
    return bench->options->quick;
}

const char *tb__bench_example(const struct tb__bench *bench)
{
    return bench->options->example;
}

int tb__bench_blocks(const struct tb__bench *bench, int full)
{
    return bench->options->quick || full < 5 ? 5 : full;
}

static int wants(const struct tb__bench_options *options, const char *row)
{
    return options->pattern == NULL || strstr(row, options->pattern) != NULL;
}

int tb__bench_wants(const struct tb__bench *bench, const char *row)
{
    return wants(bench->options, row);
}

static const struct tb__bench_row *row_find(const struct tb__bench_group *group, const char *name)
{
    for (size_t i = 0; i < group->count; i++) {
        if (strcmp(group->rows[i].name, name) == 0) {
            return &group->rows[i];
        }
    }
    return NULL;
}

static int reported(const struct tb__bench *bench, const char *name)
{
    for (size_t i = 0; i < bench->count; i++) {
        if (strcmp(bench->results[i].row->name, name) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Keep a result and show it. Rows that nobody asked for were measured for others' sake. */
static void keep(struct tb__bench *bench, struct tb__result *result, const char *name)
{
    struct tb__disturbance now;
    result->row = row_find(bench->group, name);
    TB_ASSERT(result->row != NULL && bench->count < TB__BENCH_MAX_ROWS);
    if (!tb__bench_wants(bench, name) || reported(bench, name)) {
        return;
    }
    tb__disturbance_read(&now);
    tb__disturbance_between(&bench->group_start, &now, &result->steal_percent,
                            &result->pressure_percent);
    tb__result_judge(result, bench->options->suite);
    bench->results[bench->count++] = *result;
    if (!bench->options->json) {
        tb__report_row(stdout, result);
    }
}

void tb__bench_report(struct tb__bench *bench, const char *row, const struct tb__figure *figure,
                      double baseline, const char *note, ...)
{
    struct tb__result result = {.figure = *figure, .baseline = baseline};
    va_list arguments;
    va_start(arguments, note);
    vsnprintf(result.note, sizeof result.note, note, arguments);
    va_end(arguments);
    keep(bench, &result, row);
}

void tb__bench_report_rounds(struct tb__bench *bench, const char *row,
                             const struct tb__figure *figure, const struct tb__figure *baseline,
                             const char *note, ...)
{
    struct tb__result result = {.figure = *figure,
                                .baseline = baseline->value,
                                .ratio = tb__figure_over(figure, baseline),
                                .by_rounds = 1};
    va_list arguments;
    va_start(arguments, note);
    vsnprintf(result.note, sizeof result.note, note, arguments);
    va_end(arguments);
    keep(bench, &result, row);
}

void tb__bench_skip(struct tb__bench *bench, const char *row, const char *reason, ...)
{
    struct tb__result result = {.skipped = 1, .baseline = NAN};
    va_list arguments;
    va_start(arguments, reason);
    vsnprintf(result.note, sizeof result.note, reason, arguments);
    va_end(arguments);
    result.figure.value = NAN;
    keep(bench, &result, row);
}

static int group_wanted(const struct tb__bench_options *options,
                        const struct tb__bench_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        if (wants(options, group->rows[i].name)) {
            return 1;
        }
    }
    return 0;
}

static void group_run(struct tb__bench *bench, const struct tb__bench_group *group)
{
    bench->group = group;
    tb__disturbance_read(&bench->group_start);
    tb_status status = tb__runtime_create();
    if (status == TB_OK) {
        status = group->run(bench);
        tb__runtime_remove();
    }
    for (size_t i = 0; i < group->count; i++) {
        if (!reported(bench, group->rows[i].name)) {
            tb__bench_skip(bench, group->rows[i].name, "%s",
                           status == TB_OK ? "not measured" : tb_last_error_text());
        }
    }
}

/* One line instead of a table of rows that all lack the same. Returns how many goals are missed. */
static int say_nothing_measured(const struct tb__bench_options *options)
{
    const struct tb__bench_suite *suite = options->suite;
    int rows = 0, goals = 0;
    for (size_t i = 0; i < suite->group_count; i++) {
        for (size_t j = 0; j < suite->groups[i]->count; j++) {
            const char *name = suite->groups[i]->rows[j].name;
            rows += wants(options, name);
            goals += wants(options, name) && tb__goal_find(suite, name) != NULL;
        }
    }
    printf("No row can be measured here, %d %s skipped: --skipped lists them, as does --json.\n",
           rows, rows == 1 ? "is" : "are");
    printf("\ngoals: 0 met, %d not met or skipped\n", goals);
    return goals;
}

int tb__bench_run(const struct tb__bench_options *options)
{
    static struct tb__bench bench;
    struct tb__machine machine;
    int any = 0;
    bench = (struct tb__bench){.options = options};
    const struct tb__bench_suite *suite = options->suite;
    for (size_t i = 0; i < suite->group_count; i++) {
        any |= group_wanted(options, suite->groups[i]);
    }
    if (!any) {
        return 2;
    }
    tb__interrupts_watch();
    signal(SIGPIPE, SIG_IGN); /* a side that died is an error of its row */
    tb__ticks_calibrate();
    tb__machine_find(&machine);
    if (!options->json) {
        int ready = tb__report_machine(stdout, suite, &machine);
        if (!ready && !options->skipped) {
            int goals = say_nothing_measured(options);
            return options->check && goals > 0 ? 1 : 0;
        }
        tb__report_columns(stdout, &machine);
    }
    for (size_t i = 0; i < suite->group_count; i++) {
        if (group_wanted(options, suite->groups[i])) {
            group_run(&bench, suite->groups[i]);
        }
    }
    if (options->json) {
        tb__report_json(stdout, suite, &machine, bench.results, bench.count);
    } else {
        tb__report_blocks(stdout, bench.results, bench.count);
    }
    FILE *words = options->json ? stderr : stdout;
    int missed = tb__report_goals(words, bench.results, bench.count);
    return options->check && missed > 0 ? 1 : 0;
}

void tb__bench_list(FILE *out, const struct tb__bench_suite *suite)
{
    for (size_t i = 0; i < suite->group_count; i++) {
        for (size_t j = 0; j < suite->groups[i]->count; j++) {
            const struct tb__bench_row *row = &suite->groups[i]->rows[j];
            fprintf(out, "%s\n", row->name);
        }
    }
}

#define TITLE_COLUMNS 17
#define TEXT_COLUMNS 80

/* "title: " and a text in lines of at most 80 characters beside it. */
static void print_wrapped(FILE *out, const char *title, const char *text)
{
    int column = fprintf(out, "%-*s", TITLE_COLUMNS, title);
    while (*text != '\0') {
        int word = (int)strcspn(text, " ");
        if (column > TITLE_COLUMNS && column + 1 + word > TEXT_COLUMNS) {
            fprintf(out, "\n%*s", TITLE_COLUMNS, "");
            column = TITLE_COLUMNS;
        }
        if (column > TITLE_COLUMNS) {
            column += fprintf(out, " ");
        }
        column += fprintf(out, "%.*s", word, text);
        text += word;
        text += strspn(text, " ");
    }
    fprintf(out, "\n");
}

int tb__bench_explain(FILE *out, const struct tb__bench_suite *suite, const char *name)
{
    for (size_t i = 0; i < suite->group_count; i++) {
        const struct tb__bench_row *row = row_find(suite->groups[i], name);
        if (row == NULL) {
            continue;
        }
        const struct tb__goal *goal = tb__goal_find(suite, name);
        fprintf(out, "%s (%s)\n\n", row->name, row->unit);
        print_wrapped(out, "What it does:", row->text->does);
        print_wrapped(out, "What it spans:", row->text->interval);
        print_wrapped(out, "Floor:", row->text->floor);
        if (goal != NULL) {
            fprintf(out, "Goal:            %s %s %g\n",
                    goal->kind == TB__GOAL_VALUE_AT_MOST ? "value" : "value over baseline",
                    goal->kind == TB__GOAL_RATIO_AT_LEAST ? "at least" : "at most", goal->limit);
        }
        fprintf(out, "To reproduce:    tensorbus bench %s --row %s\n", suite->name, name);
        return 1;
    }
    return 0;
}
