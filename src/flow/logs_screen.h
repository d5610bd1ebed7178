/* The runner's standard output: the lines of all nodes, prefixed, never waiting for the reader. */
#ifndef TB_FLOW_LOGS_SCREEN_H
#define TB_FLOW_LOGS_SCREEN_H

#include <stddef.h>
#include <stdint.h>

#include "flow/logs.h"

#define TB__SCREEN_BUFFER_BYTES (4u << 20)
#define TB__SCREEN_RUNNER UINT32_MAX /* lines of the runner itself: "tensorbus | " */

struct tb__screen {
    int fd;         /* written to */
    int owned;      /* fd was opened by us, non-blocking */
    int plain_file; /* writing never waits */
    int terminal;
    int colour;
    int broken;               /* the reader went away */
    const char *const *names; /* borrowed: prefixes by node index */
    uint32_t name_count;
    char *buffer;
    size_t used;            /* bytes in the buffer */
    size_t sent;            /* of those */
    uint64_t dropped_lines; /* since the last notice */
    uint64_t dropped_total;
    uint32_t live_node; /* of the progress line at the bottom of a terminal */
    size_t live_length; /* 0: none */
    int live_drawn;
    char live[TB__LOG_LINE_MAX];
};

/* `colour` as decided by the caller (terminal, NO_COLOR). */
tb_status tb__screen_open(struct tb__screen *screen, int borrow_fd, int colour,
                          const char *const *names, uint32_t name_count);
void tb__screen_fini(struct tb__screen *screen);

/* A sink for tb__log_open(). */
struct tb__log_sink tb__screen_sink(struct tb__screen *screen);

/* A line of the runner itself. */
void tb__screen_note(struct tb__screen *screen, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A line without any prefix, for words that tools look for. */
void tb__screen_plain(struct tb__screen *screen, const char *text);

/* Write what can be written without waiting. Returns 1 when something is left: call again when
 * `fd` is writable. */
int tb__screen_flush(struct tb__screen *screen);

/* Write everything, waiting at most that long for the reader; -1: for ever. */
void tb__screen_finish(struct tb__screen *screen, int64_t timeout_ns);

#endif
