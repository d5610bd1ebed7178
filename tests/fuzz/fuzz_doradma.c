/* Any bytes as a segment: whatever the check accepts must be safe to use as its view says. */
#include <stdint.h>
#include <stdlib.h>

#include "segment/doradma.h"

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require_range(uint64_t offset, uint64_t bytes, uint64_t total)
{
    REQUIRE(offset <= total && bytes <= total - offset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tb__doradma_view view;
    struct tb__doradma_view own;
    if (tb__doradma_check_any(data, size, &view) != TB_OK) {
        REQUIRE(tb__doradma_check(data, size, &own) != TB_OK);
        return 0;
    }
    REQUIRE((tb__doradma_check(data, size, &own) == TB_OK) == !view.foreign);
    REQUIRE(view.slot_count >= 1 && view.slot_count <= TB_MAX_SLOTS);
    REQUIRE(view.ndim >= 0 && view.ndim <= TB_MAX_NDIM && tb_dtype_bytes(view.dtype) > 0);
    REQUIRE(view.tensor_bytes <= view.slot_bytes && view.slot_bytes <= view.slot_stride);
    tb_tensor tensor = {.dtype = view.dtype, .ndim = view.ndim};
    for (int32_t i = 0; i < view.ndim; i++) {
        tensor.shape[i] = view.shape[i];
    }
    size_t bytes;
    REQUIRE(tb_tensor_bytes(&tensor, &bytes) == TB_OK && bytes == view.tensor_bytes);
    if (view.ipc_present) {
        return 0;
    }
    require_range(0, view.segment_bytes, size);
    for (uint32_t slot = 0; slot < view.slot_count; slot++) {
        uint64_t gen = tb__doradma_gen_offset(view.slot_count, view.gens_offset, slot);
        int here = view.device_kind == TB__PLACE_SEGMENT;
        require_range((here ? view.data_offset : view.device_offset) + slot * view.slot_stride,
                      view.slot_bytes, here ? size : view.device_bytes);
        require_range(gen, 8, view.data_offset);
        REQUIRE(gen % 8 == 0);
        if (!view.foreign) {
            require_range(view.records_offset + slot * TB__RECORD_BYTES, TB__RECORD_BYTES,
                          view.data_offset);
        }
    }
    return 0;
}
