/* What the nodes of this example share: configuration from the environment, previews, progress and
 * throughput. Each node is one thread. */
#ifndef POOL_EXAMPLE_H
#define POOL_EXAMPLE_H

#include <stdint.h>

#include <tensorbus/tensorbus.h>

/* A frame: 15000 × 512 int64, 61,440,000 bytes. Element 0 counts frames, element k is k. */
#define EXAMPLE_ROWS 15000
#define EXAMPLE_COLUMNS 512
#define EXAMPLE_ELEMENTS ((size_t)EXAMPLE_ROWS * EXAMPLE_COLUMNS)
#define EXAMPLE_BYTES (EXAMPLE_ELEMENTS * sizeof(int64_t))

enum example_scenario {
    EXAMPLE_THROUGHPUT,       /* the receiver frees the pool after the last frame */
    EXAMPLE_DUPLICATE_FREE,   /* the receiver frees it twice */
    EXAMPLE_READ_AFTER_FREE,  /* the receiver frees it, then reads */
    EXAMPLE_WRITE_AFTER_FREE, /* the sender frees it before the last frame, then writes that */
    EXAMPLE_AUTO_CLEANUP,     /* nobody frees it: the runner does */
};

struct example_config {
    int64_t frames; /* message_num */
    enum example_scenario scenario;
    const char *scenario_name;
};

/* Read sender_device, receiver_device, message_num, memory_pool_scenario and cross_machine. Ends
 * the process with an explanation when a value is not one that this example can do. */
struct example_config example_configure(const char *node);

/* Say what failed, with the library's explanation, and end the process with status 1. */
_Noreturn void example_fail(const char *node, const char *what);

/* The tensor of a frame over `data`. */
tb_tensor example_tensor(int64_t *data);

/* Print "<who> preview: [0, 1, 2, 3, 4, ...]". */
void example_preview(const char *who, const int64_t *data);

int64_t example_now_ns(void);

/* Progress: a bar on a terminal, else a line for each quarter. Call after frame `done` of `total`.
 */
void example_progress(int64_t done, int64_t total);

/* Print "Average transfer throughput: X MB/s" (MB = 2^20 bytes). */
void example_throughput(uint64_t bytes, int64_t duration_ns);

/* Value of an integer in metadata; the process ends when it is missing. */
int64_t example_integer(const char *node, const tb_event *event, const char *key);

#endif
