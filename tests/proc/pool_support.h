/* What the pool tests share: short ways to open, register, write a number and check a frame. Every
 * frame that they write holds one number in all its elements, so that a torn one shows. */
#ifndef TB_TESTS_POOL_SUPPORT_H
#define TB_TESTS_POOL_SUPPORT_H

#include <stdlib.h>

#include <tensorbus/tensorbus.h>

#include "harness/harness.h"

static inline tb_bus *open_bus(const char *name)
{
    tb_bus *bus;
    tb_bus_options options = {.size = sizeof options, .name = name};
    CHECK_OK(tb_bus_open(&options, &bus));
    return bus;
}

/* Options of a pool of `elements` int64. */
static inline tb_pool_options words_options(const char *name, int64_t elements, uint32_t slots)
{
    return (tb_pool_options){.size = sizeof(tb_pool_options),
                             .name = name,
                             .dtype = TB_I64,
                             .ndim = 1,
                             .shape = {elements},
                             .slots = slots};
}

static inline tb_pool *register_words(tb_bus *bus, const char *name, int64_t elements,
                                      uint32_t slots)
{
    tb_pool *pool;
    tb_pool_options options = words_options(name, elements, slots);
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    return pool;
}

static inline tb_reader *open_reader(tb_bus *bus, const char *path)
{
    tb_reader *reader;
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_SECONDS(20)};
    CHECK_OK(tb_reader_open(bus, path, &options, &reader));
    return reader;
}

static inline tb_reader *open_every(tb_bus *bus, const char *path)
{
    tb_reader *reader;
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_SECONDS(20), .every = 1};
    CHECK_OK(tb_reader_open(bus, path, &options, &reader));
    return reader;
}

static inline void fill_words(const tb_tensor *tensor, int64_t value)
{
    int64_t *words = tensor->data;
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        words[i] = value;
    }
}

/* Loan, fill, publish; the status of the loan. */
static inline tb_status write_words(tb_pool *pool, int64_t value, int64_t timeout_ns,
                                    tb_handle *out)
{
    tb_loan *loan;
    tb_status status = tb_pool_loan(pool, timeout_ns, &loan);
    if (status == TB_OK) {
        fill_words(tb_loan_tensor(loan), value);
        CHECK_OK(tb_loan_publish(loan, out));
    }
    return status;
}

/* The number that a frame holds; a failure when its elements differ. */
static inline int64_t words_value(const tb_frame *frame)
{
    const tb_tensor *tensor = tb_frame_tensor(frame);
    const int64_t *words = tensor->data;
    for (int64_t i = 1; i < tensor->shape[0]; i++) {
        if (words[i] != words[0]) {
            FAIL("torn: element %lld is %lld, element 0 is %lld", (long long)i, (long long)words[i],
                 (long long)words[0]);
        }
    }
    return words[0];
}

static inline tb_frame_info info_of(const tb_frame *frame)
{
    tb_frame_info info = {.size = sizeof info};
    CHECK_OK(tb_frame_get_info(frame, &info));
    return info;
}

static inline tb_pool_stats stats_of(tb_pool *pool)
{
    tb_pool_stats stats = {.size = sizeof stats};
    CHECK_OK(tb_pool_get_stats(pool, &stats));
    return stats;
}

/* Value at a per cent rank; sorts. */
static inline int compare_int64(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static inline int64_t percentile(int64_t *values, size_t count, unsigned per_cent)
{
    qsort(values, count, sizeof *values, compare_int64);
    return values[(count - 1) * per_cent / 100];
}

#endif
