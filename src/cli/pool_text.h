/* A look at a pool in words, for the pool verbs. */
#ifndef TB_CLI_POOL_TEXT_H
#define TB_CLI_POOL_TEXT_H

#include "pool/observe.h"

#define TB__POOL_DEVICE_TEXT 16

const char *tb__pool_lane_name(tb_lane lane);

/* How a GPU's allocation travels between processes. */
const char *tb__pool_place_name(enum tb__doradma_place place);

/* "latest", "every" or "live". */
const char *tb__pool_policy_name(const struct tb__observation *seen);

int tb__pool_is_on_gpu(const struct tb__observation *seen);

/* "cpu", or the GPU by the beginning of its UUID: its number differs between processes. Returns
 * `text`. */
const char *tb__pool_device_text(const struct tb__observation *seen,
                                 char text[TB__POOL_DEVICE_TEXT]);

/* How long ago the newest frame was published; -1 when there is none. */
double tb__pool_age_s(const struct tb__observation *seen);

/* Who reads it: "3: `motion` (pid 12), 2 of `view` (pid 14)"; how many alone when `readers` is
 * NULL.
 */
void tb__pool_print_readers(const struct tb__observation *seen,
                            const struct tb__observed_readers *readers);

/* The object that the verb's help describes, without a newline. */
void tb__pool_print_json(const char *process, const struct tb__observation *seen);

/* The same with `reader_processes`, which is null when `readers` is NULL. */
void tb__pool_print_info_json(const char *process, const struct tb__observation *seen,
                              const struct tb__observed_readers *readers);

#endif
