/* How far strides reach, at the edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/extent.h"

static void reach_of_strides(void **state)
{
    (void)state;
    static const struct {
        int32_t ndim;
        int64_t shape[3];
        int64_t strides[3];
        tb_dtype dtype;
        int fits;
        uint64_t bytes;
    } rows[] = {
        {0, {0}, {0}, TB_F32, 1, 4},
        {1, {5}, {1}, TB_U8, 1, 5},
        {1, {5}, {3}, TB_I16, 1, 26},
        {1, {5}, {0}, TB_I64, 1, 8}, /* one element, seen five times */
        {2, {2, 3}, {8, 2}, TB_U8, 1, 13},
        {3, {4, 0, 4}, {1, 1, 1}, TB_U8, 1, 0},
        {2, {0, 5}, {1, -1}, TB_U8, 0, 0}, /* negative, although nothing is there */
        {1, {2}, {-1}, TB_U8, 0, 0},
        {1, {1}, {INT64_MAX}, TB_U8, 1, 1},
        {1, {2}, {INT64_MAX}, TB_U8, 1, UINT64_C(1) << 63},
        {2, {3, 1}, {INT64_MAX, 1}, TB_U8, 1, UINT64_MAX},
        {2, {3, 2}, {INT64_MAX, 1}, TB_U8, 0, 0},
        {1, {4}, {INT64_MAX}, TB_U8, 0, 0},
        {1, {2}, {INT64_MAX}, TB_I16, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 99;
        tb_tensor tensor = {.dtype = rows[i].dtype, .ndim = rows[i].ndim};
        for (int32_t d = 0; d < rows[i].ndim; d++) {
            tensor.shape[d] = rows[i].shape[d];
        }
        int fits = tb__extent_bytes(&tensor, rows[i].strides, &bytes);
        if (fits != rows[i].fits || (fits && bytes != rows[i].bytes)) {
            fail_msg("row %zu: %d, %llu bytes", i, fits, (unsigned long long)bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reach_of_strides)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
