/* The goal table of the bench against the one in docs/benchmarks.md, in both directions; and the
 * words of the documentation against the numbers of the rows. */
#include "bench/goals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *document;

static int read_document(void **state)
{
    (void)state;
    FILE *file = fopen(TB_SOURCE_DIR "/docs/benchmarks.md", "r");
    if (file == NULL) {
        return -1;
    }
    document = calloc(1, 65536);
    size_t got = document != NULL ? fread(document, 1, 65535, file) : 0;
    fclose(file);
    return got > 0 ? 0 : -1;
}

static int free_document(void **state)
{
    (void)state;
    free(document);
    return 0;
}

/* "ratio ≤ 1.1" */
static int parse_goal(const char *text, struct tb__goal *out)
{
    static const struct {
        const char *words;
        enum tb__goal_kind kind;
    } forms[] = {
        {"value ≤ ", TB__GOAL_VALUE_AT_MOST},
        {"ratio ≤ ", TB__GOAL_RATIO_AT_MOST},
        {"ratio ≥ ", TB__GOAL_RATIO_AT_LEAST},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        size_t length = strlen(forms[i].words);
        if (strncmp(text, forms[i].words, length) == 0) {
            char *end;
            out->kind = forms[i].kind;
            out->limit = strtod(text + length, &end);
            return strncmp(end, " |", 2) == 0;
        }
    }
    return 0;
}

/* The goal of a row in the document; 0 when it has none. */
static int documented(const char *row, struct tb__goal *out)
{
    char start[128];
    snprintf(start, sizeof start, "\n| `%s` | ", row);
    const char *line = strstr(document, start);
    return line != NULL && parse_goal(line + strlen(start), out);
}

static void every_goal_is_documented(void **state)
{
    (void)state;
    for (size_t i = 0; i < TB__GOAL_COUNT; i++) {
        struct tb__goal goal = {.row = tb__goals[i].row};
        if (!documented(goal.row, &goal)) {
            fail_msg("docs/benchmarks.md has no goal for %s", goal.row);
        }
        assert_int_equal(goal.kind, tb__goals[i].kind);
        assert_true(goal.limit == tb__goals[i].limit);
    }
}

static void every_documented_goal_exists(void **state)
{
    (void)state;
    size_t lines = 0;
    for (const char *line = document; (line = strstr(line, "\n| `")) != NULL; line++) {
        const char *name = line + 4;
        struct tb__goal goal;
        const char *cell = strchr(name, '`');
        if (cell == NULL || strncmp(cell, "` | ", 4) != 0 || !parse_goal(cell + 4, &goal)) {
            continue; /* a line of another table */
        }
        int found = 0;
        for (size_t i = 0; i < TB__GOAL_COUNT; i++) {
            found |= strlen(tb__goals[i].row) == (size_t)(cell - name) &&
                     strncmp(tb__goals[i].row, name, (size_t)(cell - name)) == 0;
        }
        if (!found) {
            fail_msg("bench/goals.h has no %.*s", (int)(cell - name), name);
        }
        lines++;
    }
    assert_int_equal(lines, TB__GOAL_COUNT);
}

static void no_row_has_two_goals(void **state)
{
    (void)state;
    for (size_t i = 0; i < TB__GOAL_COUNT; i++) {
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(tb__goals[i].row, tb__goals[j].row);
        }
    }
}

/* What the project set out to reach, word by word, and the limits of the rows that show it. */
static const struct {
    const char *line;
    const char *rows; /* prefix of the rows' names */
    const char *also; /* what the names end in, or "" */
    double limit;
} promises[] = {
    {"p50 over the bare futex wake-up; p99 over its p99 | ≤ 1.1; ≤ 1.3 |", "handover/blocking",
     "p50", 1.1},
    {"p50 over the bare futex wake-up; p99 over its p99 | ≤ 1.1; ≤ 1.3 |", "handover/blocking",
     "p99", 1.3},
    {"p50 / p99 | ≤ 0.12 / 0.20 µs on two free cores |", "handover/spinning", "p50", 0.12},
    {"p50 / p99 | ≤ 0.12 / 0.20 µs on two free cores |", "handover/spinning", "p99", 0.20},
    {"untouched, blocking, p50 | ≤ 1.05 |", "handover/256MiB", "p50", 1.05},
    {"for that size and cache state, ≥ 1 MiB | ≥ 0.95 |", "write/", "", 0.95},
    {"when no reader sleeps | 0 |", "syscalls/", "", 0},
    {"| ≤ 15 ns / ≤ 20 ns; in a tight loop ≤ 3 ns |", "publish/written", "/64", 15},
    {"| ≤ 15 ns / ≤ 20 ns; in a tight loop ≤ 3 ns |", "publish/written", "/1000", 20},
    {"| ≤ 15 ns / ≤ 20 ns; in a tight loop ≤ 3 ns |", "publish/tight", "", 3},
    {"1080p 30 Hz hand-over | ≤ 0.5 % of a core |", "cpu/", "", 0.5},
    {"cpu2cpu over the best copy | ≥ 0.95 |", "example/", "", 0.95},
    {"4 GiB resident | ≤ 10 / ≤ 25 ms |", "kill/reader/known", "", 10},
    {"4 GiB resident | ≤ 10 / ≤ 25 ms |", "kill/owner/known", "", 10},
    {"4 GiB resident | ≤ 10 / ≤ 25 ms |", "kill/reader/slots", "", 25},
    {"4 slots, 2 readers | ≤ 64 KiB |", "memory/", "", 64},
};

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static void rows_keep_the_promises(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof promises / sizeof promises[0]; i++) {
        int rows = 0;
        if (strstr(document, promises[i].line) == NULL) {
            fail_msg("docs/benchmarks.md does not say: %s", promises[i].line);
        }
        for (size_t j = 0; j < TB__GOAL_COUNT; j++) {
            if (strncmp(tb__goals[j].row, promises[i].rows, strlen(promises[i].rows)) == 0 &&
                ends_with(tb__goals[j].row, promises[i].also)) {
                assert_true(tb__goals[j].limit == promises[i].limit);
                rows++;
            }
        }
        assert_true(rows > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_goal_is_documented),
        cmocka_unit_test(every_documented_goal_exists),
        cmocka_unit_test(no_row_has_two_goals),
        cmocka_unit_test(rows_keep_the_promises),
    };
    return cmocka_run_group_tests(tests, read_document, free_document);
}
