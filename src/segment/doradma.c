/* Laying out and writing a segment's head, for its owner. */
#include "segment/doradma.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "segment/doradma_json.h"

/* dora's readers know PyTorch's names; a dtype that PyTorch lacks has ours. */
static void dtype_name(tb_dtype dtype, char out[64])
{
    static const tb_dtype torch[] = {
        TB_I8,
        TB_I16,
        TB_I32,
        TB_I64,
        TB_U8,
        TB_U16,
        TB_U32,
        TB_U64,
        TB_F16,
        TB_F32,
        TB_F64,
        TB_BF16,
        TB_C64,
        TB_C128,
        TB_BOOL,
        TB_DTYPE(TB_CODE_COMPLEX, 32, 1),
        TB_DTYPE(TB_CODE_FLOAT8_E4M3FN, 8, 1),
        TB_DTYPE(TB_CODE_FLOAT8_E4M3FNUZ, 8, 1),
        TB_DTYPE(TB_CODE_FLOAT8_E5M2, 8, 1),
        TB_DTYPE(TB_CODE_FLOAT8_E5M2FNUZ, 8, 1),
        TB_DTYPE(TB_CODE_FLOAT8_E8M0FNU, 8, 1),
    };
    char own[32];
    const char *prefix = "";
    for (size_t i = 0; i < sizeof torch / sizeof torch[0]; i++) {
        if (torch[i] == dtype) {
            prefix = "torch.";
        }
    }
    snprintf(out, 64, "%s%s", prefix, tb_dtype_name(dtype, own));
}

/* The JSON of a spec; its length decides where everything else lies. */
static tb_status spec_json(const struct tb__doradma_spec *spec, char *buffer, size_t size,
                           size_t *out_bytes)
{
    tb_tensor tensor = {.dtype = spec->dtype, .ndim = spec->ndim};
    int on_device = (spec->flags & TB__GEOMETRY_DEVICE) != 0;
    struct tb__doradma_json json = {.ndim = spec->ndim};
    memcpy(json.pinned_type, on_device ? "cuda" : "cpu", on_device ? 5 : 4);
    size_t bytes;
    memcpy(tensor.shape, spec->shape, sizeof tensor.shape);
    memcpy(json.shape, spec->shape, sizeof json.shape);
    TB__TRY(tb_tensor_bytes(&tensor, &bytes));
    if (bytes > spec->slot_bytes) {
        return TB__FAIL(TB_E_INVALID,
                        "slots of %" PRIu64 " bytes cannot hold the first tensor, %zu bytes",
                        spec->slot_bytes, bytes);
    }
    json.size = bytes;
    dtype_name(spec->dtype, json.dtype);
    return tb__doradma_json_write(&json, buffer, size, out_bytes);
}

static tb_status check_spec(const struct tb__doradma_spec *spec)
{
    uint64_t half;
    memcpy(&half, spec->uid, sizeof half);
    if (spec->slots < 1 || spec->slots > TB_MAX_SLOTS) {
        return TB__FAIL(TB_E_INVALID, "%u slots: 1 to %d are possible", spec->slots, TB_MAX_SLOTS);
    }
    if (spec->max_leases < 1 || spec->max_leases > TB_MAX_LEASES) {
        return TB__FAIL(TB_E_INVALID, "max_leases %u: 1 to %d are possible", spec->max_leases,
                        TB_MAX_LEASES);
    }
    if (spec->policy != TB_LATEST && spec->policy != TB_EVERY) {
        return TB__FAIL(TB_E_INVALID, "policy %u is not known", spec->policy);
    }
    if ((spec->flags & ~TB__GEOMETRY_FLAGS) != 0) {
        return TB__FAIL(TB_E_INVALID, "geometry flags 0x%x are not known", spec->flags);
    }
    if ((spec->flags & TB__GEOMETRY_EXPORT) != 0 && spec->slots != 1) {
        return TB__FAIL(TB_E_INVALID, "a pool for foreign readers has one slot, not %u",
                        spec->slots);
    }
    if ((spec->flags & TB__GEOMETRY_LIVE) != 0 && spec->slots != 1) {
        return TB__FAIL(TB_E_INVALID, "a live pool has one slot, not %u", spec->slots);
    }
    if (!tb__doradma_place_ok(spec->device_kind, spec->flags)) {
        return TB__FAIL(TB_E_INVALID, "device kind %u with geometry flags 0x%x", spec->device_kind,
                        spec->flags);
    }
    if ((spec->flags & TB__GEOMETRY_ADOPTED) != 0 && spec->slot_stride < spec->slot_bytes) {
        return TB__FAIL(TB_E_INVALID, "slots of %" PRIu64 " bytes, %" PRIu64 " bytes apart",
                        spec->slot_bytes, spec->slot_stride);
    }
    if (half != spec->creator) {
        return TB__FAIL(TB_E_INVALID,
                        "pool uid begins with %016" PRIx64 ", not its owner's %016" PRIx64, half,
                        spec->creator);
    }
    return TB_OK;
}

/* Slots are whole pages, one at least, so that two never share a page. */
static int slot_stride(uint64_t slot_bytes, uint64_t *out)
{
    return tb__round_up(slot_bytes > 0 ? slot_bytes : 1, TB__SEGMENT_PAGE, out);
}

static tb_status lay_out(const struct tb__doradma_spec *spec, uint64_t json_bytes,
                         struct tb__doradma_layout *out)
{
    /* At most 256 slots: nothing in front of the data can overflow. */
    struct tb__doradma_layout layout = {.json_bytes = json_bytes};
    uint64_t slots_bytes;
    layout.gens_offset = TB__DORADMA_HEADER_BYTES + ((json_bytes + 255) & ~UINT64_C(255));
    layout.counters_offset = layout.gens_offset + tb__doradma_gens_bytes(spec->slots);
    layout.records_offset = layout.counters_offset + TB__COUNTERS_BYTES;
    uint64_t end = layout.records_offset + (uint64_t)spec->slots * TB__RECORD_BYTES;
    layout.data_offset = (end + TB__SEGMENT_PAGE - 1) & ~(uint64_t)(TB__SEGMENT_PAGE - 1);
    if (spec->flags & TB__GEOMETRY_ADOPTED) {
        layout.slot_stride = spec->slot_stride;
        layout.segment_bytes = layout.data_offset;
        *out = layout;
        return TB_OK;
    }
    if (!slot_stride(spec->slot_bytes, &layout.slot_stride) ||
        !tb__mul(layout.slot_stride, spec->slots, &slots_bytes) ||
        !tb__add(layout.data_offset, slots_bytes, &layout.segment_bytes) ||
        layout.segment_bytes > INT64_MAX) {
        return TB__FAIL(TB_E_LIMIT, "%u slots of %" PRIu64 " bytes: the size overflows",
                        spec->slots, spec->slot_bytes);
    }
    if (spec->flags & TB__GEOMETRY_DEVICE) {
        layout.segment_bytes = layout.data_offset;
    }
    *out = layout;
    return TB_OK;
}

tb_status tb__doradma_layout(const struct tb__doradma_spec *spec, struct tb__doradma_layout *out)
{
    char json[1024];
    size_t json_bytes;
    TB__TRY(check_spec(spec));
    TB__TRY(spec_json(spec, json, sizeof json, &json_bytes));
    return lay_out(spec, json_bytes, out);
}

tb_status tb__doradma_init(void *segment, const struct tb__doradma_spec *spec)
{
    char json[1024];
    size_t json_bytes;
    struct tb__doradma_layout layout;
    TB__TRY(check_spec(spec));
    TB__TRY(spec_json(spec, json, sizeof json, &json_bytes));
    TB__TRY(lay_out(spec, json_bytes, &layout));
    struct tb__doradma_header header = {
        .json_len = json_bytes,
        .data_offset = layout.data_offset,
        .ipc_flag = spec->device_kind == TB__PLACE_IPC,
        /* See doradma.h. 0: never written. 1, odd: nothing that a foreign reader may read. */
        .write_gen = spec->slots == 1 && (spec->flags & TB__GEOMETRY_EXPORT) == 0 ? 0 : 1,
        .version = TB__GEOMETRY_VERSION,
        .flags = spec->flags,
        .slot_count = spec->slots,
        .policy = spec->policy,
        .slot_stride = layout.slot_stride,
        .slot_bytes = spec->slot_bytes,
        .gens_offset = layout.gens_offset,
        .counters_offset = layout.counters_offset,
        .records_offset = layout.records_offset,
        .segment_bytes = layout.segment_bytes,
        .creator = spec->creator,
        .dtype = spec->dtype,
        .ndim = spec->ndim,
        .max_leases = spec->max_leases,
        .record_bytes = TB__RECORD_BYTES,
        .device_bytes = spec->device_bytes,
        .device_kind = spec->device_kind,
        .device_offset = spec->device_offset,
    };
    memcpy(header.ipc_handle, spec->ipc_handle, sizeof header.ipc_handle);
    memcpy(header.device_uuid, spec->device_uuid, sizeof header.device_uuid);
    memcpy(header.geometry_magic, TB__GEOMETRY_MAGIC, sizeof header.geometry_magic);
    memcpy(header.uid, spec->uid, sizeof header.uid);
    char *base = segment;
    memset(base + sizeof header, 0, (size_t)layout.data_offset - sizeof header);
    memcpy(base + sizeof header, json, json_bytes);
    memcpy(base, &header, sizeof header);
    /* Pairs with the foreign reader's check of the magic before it looks at anything else. */
    atomic_thread_fence(memory_order_release);
    memcpy(base, TB__DORADMA_MAGIC, sizeof header.magic);
    return TB_OK;
}
