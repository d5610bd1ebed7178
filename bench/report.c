/* Showing results. The text table is written row by row as groups end; JSON at the end. */
#include "bench/report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench/ticks.h"
#include "cli/cli.h"

const struct tb__goal *tb__goal_find(const struct tb__bench_suite *suite, const char *row)
{
    for (size_t i = 0; i < suite->goal_count; i++) {
        if (strcmp(suite->goals[i].row, row) == 0) {
            return &suite->goals[i];
        }
    }
    return NULL;
}

void tb__result_judge(struct tb__result *result, const struct tb__bench_suite *suite)
{
    result->goal = tb__goal_find(suite, result->row->name);
    if (!result->by_rounds) {
        result->ratio = result->figure.value / result->baseline;
    }
    if (result->skipped) {
        result->met = result->goal != NULL ? TB__MET_SKIPPED : TB__MET_NO_GOAL;
        return;
    }
    if (result->goal == NULL) {
        result->met = TB__MET_NO_GOAL;
        return;
    }
    /* Comparisons with NAN are false: a missing figure or baseline meets nothing. */
    int met = 0;
    switch (result->goal->kind) {
    case TB__GOAL_VALUE_AT_MOST:
        met = result->figure.value <= result->goal->limit;
        break;
    case TB__GOAL_RATIO_AT_MOST:
        met = result->ratio <= result->goal->limit;
        break;
    case TB__GOAL_RATIO_AT_LEAST:
        met = result->ratio >= result->goal->limit;
        break;
    }
    result->met = met ? TB__MET_YES : TB__MET_NO;
}

static const char *met_text(enum tb__met met)
{
    static const char *const texts[] = {"", "yes", "NO", "skipped"};
    return texts[met];
}

/* Four significant digits, without an exponent where that is readable. */
static const char *number(double value, char text[24])
{
    if (isnan(value)) {
        text[0] = '\0';
    } else if (value != 0 && fabs(value) < 0.001) {
        snprintf(text, 24, "%.1e", value);
    } else if (fabs(value) < 9.9995) {
        snprintf(text, 24, "%.3f", value);
    } else if (fabs(value) < 999.95) {
        snprintf(text, 24, "%.1f", value);
    } else {
        snprintf(text, 24, "%.0f", value);
    }
    return text;
}

static const char *goal_text(const struct tb__goal *goal, const char *unit, char text[40])
{
    char limit[24];
    text[0] = '\0';
    if (goal != NULL) {
        int of_value = goal->kind == TB__GOAL_VALUE_AT_MOST;
        snprintf(limit, sizeof limit, "%g", goal->limit);
        snprintf(text, 40, "%s %s%s%s", goal->kind == TB__GOAL_RATIO_AT_LEAST ? ">=" : "<=", limit,
                 of_value ? " " : "x", of_value ? unit : "");
    }
    return text;
}

int tb__report_machine(FILE *out, const struct tb__bench_suite *suite,
                       const struct tb__machine *machine)
{
    fprintf(out, "tensorbus bench %s, version %s\n", suite->name, tb_version());
    fprintf(out,
            "%s, %d processors, last-level cache %" PRIu64 " MiB, memory %" PRIu64
            " GiB, %s, clock: %s\n",
            machine->processor, machine->cpus, machine->cache_bytes >> 20,
            machine->memory_bytes >> 30, machine->kernel, tb__ticks_source());
    return suite->describe == NULL || suite->describe(out);
}

void tb__report_columns(FILE *out, const struct tb__machine *machine)
{
    if (machine->realtime) {
        fprintf(out, "Real-time priority: other programs do not interrupt what is measured.\n");
    }
    fprintf(out,
            "GB = 1e9 bytes. Figures are medians over alternating blocks, p99 over all samples; "
            "[smallest..largest block].\nsteal: taken by the hypervisor; pressure: some task "
            "waited for a processor (our own spinning sides count too).\n\n");
    fprintf(out, "%-30s %9s %-6s %9s %6s %-12s %-7s %-20s %6s %8s  %s\n", "row", "value", "unit",
            "baseline", "ratio", "goal", "met", "[min..max]", "steal%", "pressure", "seen");
}

/* Why a row is skipped; what many rows in a row lack is said once. `side: reason`. */
static const char *skipped_text(const char *note)
{
    static char last[sizeof((struct tb__result *)0)->note];
    const char *reason = strstr(note, ": ");
    reason = reason != NULL ? reason + 2 : note;
    if (strcmp(reason, last) == 0) {
        return "as above";
    }
    snprintf(last, sizeof last, "%s", reason);
    return note;
}

void tb__report_row(FILE *out, const struct tb__result *result)
{
    char value[24], baseline[24], ratio[24], goal[40], low[24], high[24], spread[56], pressure[24];
    const struct tb__figure *figure = &result->figure;
    goal_text(result->goal, result->row->unit, goal);
    if (result->skipped) {
        fprintf(out, "%-30s %9s %-6s %9s %6s %-12s %-7s %s\n", result->row->name, "-",
                result->row->unit, "", "", goal, "skipped", skipped_text(result->note));
        fflush(out);
        return;
    }
    spread[0] = '\0';
    if (figure->blocks > 1) {
        snprintf(spread, sizeof spread, "[%s..%s]", number(figure->min, low),
                 number(figure->max, high));
    }
    snprintf(pressure, sizeof pressure, "-");
    if (result->pressure_percent >= 0) {
        snprintf(pressure, sizeof pressure, "%.1f%%", result->pressure_percent);
    }
    fprintf(out, "%-30s %9s %-6s %9s %6s %-12s %-7s %-20s %6.2f %8s  %s\n", result->row->name,
            number(figure->value, value), result->row->unit, number(result->baseline, baseline),
            number(result->ratio, ratio), goal, met_text(result->met), spread,
            result->steal_percent, pressure, result->note);
    fflush(out);
}

void tb__report_blocks(FILE *out, const struct tb__result *results, size_t count)
{
    fprintf(out, "\nAll blocks, in the order of measurement:\n");
    for (size_t i = 0; i < count; i++) {
        const struct tb__figure *figure = &results[i].figure;
        if (results[i].skipped || figure->blocks < 2) {
            continue;
        }
        fprintf(out, "%-30s", results[i].row->name);
        for (int block = 0; block < figure->blocks; block++) {
            char text[24];
            fprintf(out, " %s", number(figure->block[block], text));
        }
        fprintf(out, "\n");
    }
}

int tb__report_goals(FILE *out, const struct tb__result *results, size_t count)
{
    int missed = 0, met = 0;
    for (size_t i = 0; i < count; i++) {
        met += results[i].met == TB__MET_YES;
        missed += results[i].met == TB__MET_NO || results[i].met == TB__MET_SKIPPED;
    }
    fprintf(out, "\ngoals: %d met, %d not met or skipped\n", met, missed);
    for (size_t i = 0; i < count; i++) {
        if (results[i].met == TB__MET_NO || results[i].met == TB__MET_SKIPPED) {
            fprintf(out, "  %s: %s\n", results[i].met == TB__MET_NO ? "not met" : "skipped",
                    results[i].row->name);
        }
    }
    return missed;
}

/* JSON has no NAN. */
static void json_number(FILE *out, const char *key, double value)
{
    if (isfinite(value)) {
        fprintf(out, ",\"%s\":%.6g", key, value);
    } else {
        fprintf(out, ",\"%s\":null", key);
    }
}

static void json_row(FILE *out, const struct tb__result *result)
{
    char goal[40];
    const struct tb__figure *figure = &result->figure;
    fprintf(out, "{\"name\":");
    tb__cli_json_string(out, result->row->name);
    json_number(out, "value", result->skipped ? NAN : figure->value);
    fprintf(out, ",\"unit\":");
    tb__cli_json_string(out, result->row->unit);
    json_number(out, "baseline", result->skipped ? NAN : result->baseline);
    json_number(out, "ratio", result->skipped ? NAN : result->ratio);
    fprintf(out, ",\"goal\":");
    if (result->goal != NULL) {
        tb__cli_json_string(out, goal_text(result->goal, result->row->unit, goal));
    } else {
        fprintf(out, "null");
    }
    fprintf(out, ",\"met\":%s",
            result->met == TB__MET_NO_GOAL ? "null"
            : result->met == TB__MET_YES   ? "true"
                                           : "false");
    fprintf(out, ",\"skipped\":%s", result->skipped ? "true" : "false");
    json_number(out, "min", result->skipped ? NAN : figure->min);
    json_number(out, "max", result->skipped ? NAN : figure->max);
    fprintf(out, ",\"blocks\":[");
    for (int i = 0; !result->skipped && i < figure->blocks; i++) {
        fprintf(out, isfinite(figure->block[i]) ? "%s%.6g" : "%snull", i > 0 ? "," : "",
                figure->block[i]);
    }
    fprintf(out, "]");
    json_number(out, "steal_percent", result->steal_percent);
    json_number(out, "pressure_percent",
                result->pressure_percent >= 0 ? result->pressure_percent : NAN);
    fprintf(out, ",\"note\":");
    tb__cli_json_string(out, result->note);
    fprintf(out, "}");
}

void tb__report_json(FILE *out, const struct tb__bench_suite *suite,
                     const struct tb__machine *machine, const struct tb__result *results,
                     size_t count)
{
    fprintf(out, "{\"bench\":\"%s\",\"machine\":{\"processor\":", suite->name);
    tb__cli_json_string(out, machine->processor);
    fprintf(out, ",\"kernel\":");
    tb__cli_json_string(out, machine->kernel);
    fprintf(out,
            ",\"processors\":%d,\"cache_bytes\":%" PRIu64 ",\"memory_bytes\":%" PRIu64
            ",\"clock\":",
            machine->cpus, machine->cache_bytes, machine->memory_bytes);
    tb__cli_json_string(out, tb__ticks_source());
    fprintf(out, ",\"realtime\":%s},\"rows\":[", machine->realtime ? "true" : "false");
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s\n", i > 0 ? "," : "");
        json_row(out, &results[i]);
    }
    fprintf(out, "\n]}\n");
}
