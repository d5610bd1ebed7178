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
    tb_device sender;   /* sender_device: where the sender's frame lies */
    tb_device receiver; /* receiver_device: where the pool lies */
    const char *sender_name;
    const char *receiver_name;
};

/* Read sender_device, receiver_device, message_num, memory_pool_scenario and cross_machine. Ends
 * the process with an explanation when a value is not one that this example can do. */
struct example_config example_configure(const char *node);

/* End the process with an explanation unless both devices are `cpu`. */
void example_need_cpu(const char *node, const struct example_config *config);

/* Say what failed, with the library's explanation, and end the process with status 1. */
_Noreturn void example_fail(const char *node, const char *what);

/* The tensor of a frame over `data` on a device. */
tb_tensor example_tensor(int64_t *data, tb_device device);

/* Print "<who> preview: [0, 1, 2, 3, 4, ...]", with " on cuda:N" for a GPU's tensor. */
void example_preview(const char *node, const char *who, const tb_tensor *tensor);

/* Element 0 of a tensor on any device. */
int64_t example_get_count(const char *node, const tb_tensor *tensor);
void example_set_count(const char *node, const tb_tensor *tensor, int64_t count);

/* The sender's own frame: element k is k. */
struct example_source {
    tb_tensor tensor;
    tb_memory *memory; /* what a GPU uses; else NULL, and the tensor's data is from malloc() */
};

/* Allocate and fill it on the sender's device. Ends the process with an explanation when that is
 * not there. */
struct example_source example_source_create(const char *node, const struct example_config *config);
void example_source_destroy(struct example_source *source);

/* Start a GPU's driver ahead: that takes some 0.1 s, which is no part of the first frame's way.
 * Where it cannot be had the sender says so. */
void example_open_device(tb_device device);

/* As example_fail(), with what the flow needs when `status` says that a device is not there. */
_Noreturn void example_fail_device(const char *node, const struct example_config *config,
                                   const char *what, tb_status status);

int64_t example_now_ns(void);

/* Progress: a bar on a terminal, else a line for each quarter. Call after frame `done` of `total`.
 */
void example_progress(int64_t done, int64_t total);

/* Print "Average transfer throughput: X MB/s" (MB = 2^20 bytes). */
void example_throughput(uint64_t bytes, int64_t duration_ns);

/* Value of an integer in metadata; the process ends when it is missing. */
int64_t example_integer(const char *node, const tb_event *event, const char *key);

#endif
