/* Collecting the mistakes of a file: see struct tb__flow_problems in flow.h. */
#ifndef TB_FLOW_PROBLEMS_H
#define TB_FLOW_PROBLEMS_H

#include "flow/flow.h"

/* Add one. Control characters of the text (it quotes the file) become `?`, so that a file cannot
 * send escape sequences to a terminal. */
void tb__problem(struct tb__flow_problems *problems, struct tb__flow_place place,
                 const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Name the file, unless it is named already; cleaned in the same way. */
void tb__problems_name(struct tb__flow_problems *problems, const char *file);

/* In the order of the file. */
void tb__problems_sort(struct tb__flow_problems *problems);

/* Record the first problem as the thread's last error and return `status`. */
tb_status tb__problems_fail(const struct tb__flow_problems *problems, tb_status status,
                            const char *where);

/* How many there are, listed or not. */
uint32_t tb__problems_total(const struct tb__flow_problems *problems);

/* The candidate nearest to `word` when it is near enough to be a slip of the fingers, else NULL. */
const char *tb__nearest(const char *word, const char *const *candidates, size_t count);

#endif
