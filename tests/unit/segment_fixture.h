/* Segments for the tests of their heads. Blocks of exactly their size, so that a sanitizer sees a
 * read past the end. */
#ifndef TB_TESTS_UNIT_SEGMENT_FIXTURE_H
#define TB_TESTS_UNIT_SEGMENT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "segment/doradma.h"

#define OK(call) assert_int_equal((call), TB_OK)
#define CREATOR UINT64_C(0x1122334455667788)

static inline struct tb__doradma_spec spec_of(uint32_t slots, tb_dtype dtype, uint64_t slot_bytes)
{
    struct tb__doradma_spec spec = {
        .slots = slots,
        .max_leases = 4,
        .slot_bytes = slot_bytes,
        .dtype = dtype,
        .creator = CREATOR,
        .uid = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5,
                0xa6, 0xa7},
    };
    return spec;
}

/* A whole segment; the caller frees. */
static inline uint8_t *make_segment(const struct tb__doradma_spec *spec, uint64_t *bytes)
{
    struct tb__doradma_layout layout;
    OK(tb__doradma_layout(spec, &layout));
    uint8_t *segment = malloc(layout.segment_bytes);
    memset(segment, 0xee, layout.segment_bytes);
    OK(tb__doradma_init(segment, spec));
    *bytes = layout.segment_bytes;
    return segment;
}

/* Three slots of 16 bytes: the smallest that has everything. */
static inline uint8_t *make_small(uint64_t *bytes)
{
    struct tb__doradma_spec spec = spec_of(3, TB_U8, 16);
    spec.ndim = 1;
    spec.shape[0] = 16;
    return make_segment(&spec, bytes);
}

static inline uint8_t *read_golden(const char *name, size_t *size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/unit/golden/%s", TB_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("%s is missing", path);
    }
    uint8_t *data = malloc(65536);
    *size = fread(data, 1, 65536, file);
    fclose(file);
    uint8_t *exact = malloc(*size);
    memcpy(exact, data, *size);
    free(data);
    return exact;
}

static inline void put(uint8_t *segment, size_t offset, size_t width, uint64_t value)
{
    memcpy(segment + offset, &value, width);
}

/* What everybody who uses a view relies on. */
static inline void assert_sound(const struct tb__doradma_view *view, uint64_t mapped)
{
    assert_in_range(view->slot_count, 1, TB_MAX_SLOTS);
    assert_true(view->segment_bytes <= mapped && view->data_offset <= view->segment_bytes);
    assert_true(view->slot_bytes <= view->slot_stride);
    assert_true(view->slot_stride <= (view->segment_bytes - view->data_offset) / view->slot_count);
    assert_true(view->tensor_bytes <= view->slot_bytes);
    assert_in_range(view->ndim, 0, TB_MAX_NDIM);
    assert_true(tb_dtype_bytes(view->dtype) > 0);
    if (!view->foreign) {
        assert_true(view->gens_offset % 64 == 0 && view->counters_offset % 64 == 0 &&
                    view->records_offset % 64 == 0 && view->data_offset % 4096 == 0);
        assert_true(view->gens_offset + 8 * (1 + view->slot_count) <= view->data_offset);
        assert_true(view->counters_offset + TB__COUNTERS_BYTES <= view->data_offset);
        assert_true(view->records_offset + view->slot_count * TB__RECORD_BYTES <=
                    view->data_offset);
        assert_in_range(view->max_leases, 1, TB_MAX_LEASES);
    }
}

#endif
