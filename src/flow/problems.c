/* The list of a file's mistakes, and the guess at what was meant. One thread at a time. */
#include "flow/problems.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "flow/yaml_tree.h"

#define TEXT_BYTES 1024
#define WORD_MAX 40 /* longer words are not guessed at */

/* C0 and C1 control characters and what a cut has left of a UTF-8 sequence become `?`. */
static void clean(char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        size_t step = tb__utf8_length(text, left);
        if (step == 0 || tb__utf8_control(text, step)) {
            step = step > 0 ? step : 1;
            memset(text, '?', step);
        }
        text += step;
        left -= step;
    }
}

void tb__problem(struct tb__flow_problems *problems, struct tb__flow_place place,
                 const char *format, ...)
{
    if (problems->count == TB__FLOW_PROBLEMS_MAX) {
        problems->unlisted++;
        return;
    }
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    clean(text);
    char *copy = strdup(text);
    if (copy == NULL) {
        problems->unlisted++;
        return;
    }
    problems->list[problems->count++] = (struct tb__flow_problem){.place = place, .text = copy};
}

void tb__problems_name(struct tb__flow_problems *problems, const char *file)
{
    if (problems->file == NULL) {
        problems->file = strdup(file[0] != '\0' ? file : "``");
        if (problems->file != NULL) {
            clean(problems->file);
        }
    }
}

uint32_t tb__problems_total(const struct tb__flow_problems *problems)
{
    return problems->count + problems->unlisted;
}

static int is_after(struct tb__flow_place a, struct tb__flow_place b)
{
    return a.line > b.line || (a.line == b.line && a.column > b.column);
}

/* Insertion sort: at most 20, and it keeps the order of equal places. */
void tb__problems_sort(struct tb__flow_problems *problems)
{
    for (uint32_t i = 1; i < problems->count; i++) {
        struct tb__flow_problem moving = problems->list[i];
        uint32_t at = i;
        while (at > 0 && is_after(problems->list[at - 1].place, moving.place)) {
            problems->list[at] = problems->list[at - 1];
            at--;
        }
        problems->list[at] = moving;
    }
}

static void print_one(const struct tb__flow_problems *problems,
                      const struct tb__flow_problem *problem, FILE *out)
{
    const char *file = problems->file != NULL ? problems->file : "flow";
    if (problem->place.line == 0) {
        fprintf(out, "%s: %s\n", file, problem->text);
    } else {
        fprintf(out, "%s:%u:%u: %s\n", file, problem->place.line, problem->place.column,
                problem->text);
    }
}

void tb__flow_problems_print(const struct tb__flow_problems *problems, FILE *out)
{
    for (uint32_t i = 0; i < problems->count; i++) {
        print_one(problems, &problems->list[i], out);
    }
    if (problems->unlisted > 0) {
        fprintf(out, "%s: and %u more\n", problems->file != NULL ? problems->file : "flow",
                problems->unlisted);
    }
}

tb_status tb__problems_fail(const struct tb__flow_problems *problems, tb_status status,
                            const char *where)
{
    if (problems->count == 0) {
        return tb__error_set(status, 0, where, "%u mistakes", problems->unlisted);
    }
    const struct tb__flow_problem *first = &problems->list[0];
    const char *file = problems->file != NULL ? problems->file : "flow";
    uint32_t others = tb__problems_total(problems) - 1;
    char more[48] = "";
    if (others > 0) {
        snprintf(more, sizeof more, " (and %u more)", others);
    }
    if (first->place.line == 0) {
        return tb__error_set(status, 0, where, "%s: %s%s", file, first->text, more);
    }
    return tb__error_set(status, 0, where, "%s:%u:%u: %s%s", file, first->place.line,
                         first->place.column, first->text, more);
}

void tb__flow_problems_fini(struct tb__flow_problems *problems)
{
    for (uint32_t i = 0; i < problems->count; i++) {
        free(problems->list[i].text);
    }
    free(problems->file);
    *problems = (struct tb__flow_problems){0};
}

static unsigned least(unsigned a, unsigned b, unsigned c)
{
    unsigned smaller = a < b ? a : b;
    return smaller < c ? smaller : c;
}

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b. */
static unsigned distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    unsigned rows[3][WORD_MAX + 1]; /* the row being filled and the two above it */
    for (unsigned j = 0; j <= b_length; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        unsigned *now = rows[i % 3];
        unsigned *above = rows[(i + 2) % 3];
        unsigned *above2 = rows[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            unsigned replace = above[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = least(above[j] + 1, now[j - 1] + 1, replace);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                above2[j - 2] + 1 < now[j]) {
                now[j] = above2[j - 2] + 1;
            }
        }
    }
    return rows[a_length % 3][b_length];
}

const char *tb__nearest(const char *word, const char *const *candidates, size_t count)
{
    size_t length = strlen(word);
    const char *best = NULL;
    unsigned best_distance = 0;
    if (length == 0 || length > WORD_MAX) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(candidates[i]);
        if (other == 0 || other > WORD_MAX) {
            continue;
        }
        unsigned away = distance(word, length, candidates[i], other);
        /* One slip in a short word; more of them make another word of it, `show` of `stop`. */
        size_t longest = length > other ? length : other;
        unsigned allowed = longest < 6 ? 1 : longest < 12 ? 2 : 3;
        if (away <= allowed && away < longest && (best == NULL || away < best_distance)) {
            best = candidates[i];
            best_distance = away;
        }
    }
    return best;
}
