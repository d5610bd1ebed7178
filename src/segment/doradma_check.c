/* Checking a segment's head. The header and the JSON are copied out of the segment first, each byte
 * once: what a hostile owner changes later has no effect on the view. */
#include "segment/doradma.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/checked.h"
#include "segment/doradma_json.h"

static tb_status corrupt(const char *field, uint64_t value, const char *limit, uint64_t bound)
{
    return TB__FAIL(TB_E_CORRUPT, "segment header: %s is %" PRIu64 ", %s %" PRIu64, field, value,
                    limit, bound);
}

/* Copies the header but for the generation, which its owner writes all the time. */
static tb_status read_header(const void *segment, uint64_t mapped_bytes,
                             struct tb__doradma_header *header)
{
    const char *base = segment;
    const size_t after = TB__DORADMA_GEN_OFFSET + sizeof header->write_gen;
    if (mapped_bytes < sizeof *header) {
        return TB__FAIL(TB_E_CORRUPT, "segment of %" PRIu64 " bytes, a header alone has %zu",
                        mapped_bytes, sizeof *header);
    }
    header->write_gen = 0;
    memcpy(header, base, TB__DORADMA_GEN_OFFSET);
    memcpy((char *)header + after, base + after, sizeof *header - after);
    /* Whatever is read from here on is the copy: the compiler may not go back to the segment. */
    atomic_signal_fence(memory_order_seq_cst);
    if (memcmp(header->magic, TB__DORADMA_MAGIC, sizeof header->magic) != 0) {
        uint64_t magic;
        memcpy(&magic, header->magic, sizeof magic);
        return TB__FAIL(TB_E_CORRUPT,
                        "segment header: magic is 0x%016" PRIx64 ", \"DORADMA\\0\" is expected",
                        magic);
    }
    return TB_OK;
}

static tb_status read_json(const void *segment, uint64_t mapped_bytes,
                           const struct tb__doradma_header *header, struct tb__doradma_json *json)
{
    char text[TB__DORADMA_JSON_MAX];
    uint64_t bytes = header->json_len;
    if (bytes > sizeof text) {
        return corrupt("json_len", bytes, "at most", sizeof text);
    }
    if (!tb__range_fits(sizeof *header, bytes, mapped_bytes)) {
        return corrupt("json_len", bytes, "the segment behind the header has",
                       mapped_bytes - sizeof *header);
    }
    if (header->data_offset < sizeof *header + bytes) {
        return corrupt("data_offset", header->data_offset, "the JSON ends at",
                       sizeof *header + bytes);
    }
    memcpy(text, (const char *)segment + sizeof *header, (size_t)bytes);
    atomic_signal_fence(memory_order_seq_cst);
    return tb__doradma_json_parse(text, (size_t)bytes, json);
}

/* The first tensor: dtype and shape from the JSON. */
static tb_status view_tensor(const struct tb__doradma_json *json, struct tb__doradma_view *view)
{
    tb_tensor tensor = {.ndim = json->ndim};
    size_t bytes;
    memcpy(tensor.shape, json->shape, sizeof tensor.shape);
    if (tb_dtype_parse(json->dtype, &tensor.dtype) != TB_OK) {
        return TB__FAIL(TB_E_CORRUPT, "segment header: dtype `%.60s` is not known", json->dtype);
    }
    if (tb_tensor_bytes(&tensor, &bytes) != TB_OK) {
        return TB__FAIL(TB_E_CORRUPT, "segment header: shape of %d dimensions: the size overflows",
                        json->ndim);
    }
    view->dtype = tensor.dtype;
    view->ndim = tensor.ndim;
    memcpy(view->shape, tensor.shape, sizeof view->shape);
    view->tensor_bytes = bytes;
    memcpy(view->pinned_type, json->pinned_type, sizeof view->pinned_type);
    memcpy(view->sender_shmem, json->sender_shmem, sizeof view->sender_shmem);
    return TB_OK;
}

static tb_status check_numbers(const struct tb__doradma_header *header)
{
    uint64_t half;
    memcpy(&half, header->uid, sizeof half);
    if (header->version != TB__GEOMETRY_VERSION) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "segment header: version is %u, this library knows %d: use the same "
                        "release of tensorbus in both processes",
                        header->version, TB__GEOMETRY_VERSION);
    }
    if ((header->flags & ~TB__GEOMETRY_FLAGS) != 0) {
        return corrupt("flags", header->flags, "known bits are", TB__GEOMETRY_FLAGS);
    }
    if (!tb__doradma_place_ok(header->device_kind, header->flags)) {
        return corrupt("device_kind", header->device_kind, "the flags are", header->flags);
    }
    if (header->ipc_flag != (header->device_kind == TB__PLACE_IPC)) {
        return corrupt("ipc_flag", header->ipc_flag, "device_kind is", header->device_kind);
    }
    if (header->slot_count < 1 || header->slot_count > TB_MAX_SLOTS) {
        return corrupt("slot_count", header->slot_count, "1 to", TB_MAX_SLOTS);
    }
    if ((header->flags & TB__GEOMETRY_EXPORT) != 0 && header->slot_count != 1) {
        return corrupt("slot_count", header->slot_count, "a pool for foreign readers has", 1);
    }
    if ((header->flags & TB__GEOMETRY_LIVE) != 0 && header->slot_count != 1) {
        return corrupt("slot_count", header->slot_count, "a live pool has", 1);
    }
    if (header->policy != TB_LATEST && header->policy != TB_EVERY) {
        return corrupt("policy", header->policy, "0 to", TB_EVERY);
    }
    if (header->max_leases < 1 || header->max_leases > TB_MAX_LEASES) {
        return corrupt("max_leases", header->max_leases, "1 to", TB_MAX_LEASES);
    }
    if (header->record_bytes != TB__RECORD_BYTES) {
        return corrupt("record_bytes", header->record_bytes, "it is", TB__RECORD_BYTES);
    }
    if (half != header->creator) {
        return corrupt("creator", header->creator, "the uid begins with", half);
    }
    return TB_OK;
}

/* Generations, counters and records: aligned, between JSON and data, apart from each other. */
static tb_status check_areas(const struct tb__doradma_header *header)
{
    const struct {
        const char *name;
        uint64_t offset;
        uint64_t bytes;
    } areas[] = {
        {"gens_offset", header->gens_offset, tb__doradma_gens_bytes(header->slot_count)},
        {"counters_offset", header->counters_offset, TB__COUNTERS_BYTES},
        {"records_offset", header->records_offset, (uint64_t)header->slot_count * TB__RECORD_BYTES},
    };
    uint64_t json_end = sizeof *header + header->json_len;
    for (int i = 0; i < 3; i++) {
        if (areas[i].offset % 64 != 0) {
            return corrupt(areas[i].name, areas[i].offset, "it is a multiple of", 64);
        }
        if (areas[i].offset < json_end) {
            return corrupt(areas[i].name, areas[i].offset, "the JSON ends at", json_end);
        }
        if (!tb__range_fits(areas[i].offset, areas[i].bytes, header->data_offset)) {
            return corrupt(areas[i].name, areas[i].offset, "its area must end before data_offset",
                           header->data_offset);
        }
        for (int k = 0; k < i; k++) {
            if (areas[i].offset < areas[k].offset + areas[k].bytes &&
                areas[k].offset < areas[i].offset + areas[i].bytes) {
                return corrupt(areas[i].name, areas[i].offset,
                               k == 0 ? "it overlaps gens_offset" : "it overlaps counters_offset",
                               areas[k].offset);
            }
        }
    }
    return TB_OK;
}

/* Slots of memory that the owner adopted: anywhere in it, any distance apart. */
static tb_status check_adopted(const struct tb__doradma_header *header)
{
    uint64_t extent;
    if (header->slot_stride < header->slot_bytes || header->slot_stride == 0) {
        return corrupt("slot_stride", header->slot_stride, "slot_bytes is", header->slot_bytes);
    }
    if (!tb__doradma_extent(header->slot_stride, header->slot_count, header->slot_bytes, &extent)) {
        return corrupt("slot_stride", header->slot_stride, "it overflows, times slot_count",
                       header->slot_count);
    }
    if (!tb__range_fits(header->device_offset, extent, header->device_bytes)) {
        return corrupt("device_offset", header->device_offset,
                       "with the slots behind it, it must fit device_bytes,", header->device_bytes);
    }
    return TB_OK;
}

static tb_status check_slots(const struct tb__doradma_header *header, uint64_t mapped_bytes)
{
    uint64_t slots_bytes;
    if (header->segment_bytes > mapped_bytes) {
        return corrupt("segment_bytes", header->segment_bytes, "the segment has", mapped_bytes);
    }
    if (header->data_offset % TB__SEGMENT_PAGE != 0) {
        return corrupt("data_offset", header->data_offset, "it is a multiple of", TB__SEGMENT_PAGE);
    }
    if (header->data_offset > header->segment_bytes) {
        return corrupt("data_offset", header->data_offset, "segment_bytes is",
                       header->segment_bytes);
    }
    if ((header->flags & TB__GEOMETRY_ADOPTED) != 0) {
        return check_adopted(header);
    }
    if (header->slot_stride == 0 || header->slot_stride % TB__SEGMENT_PAGE != 0) {
        return corrupt("slot_stride", header->slot_stride, "it is a multiple of", TB__SEGMENT_PAGE);
    }
    if (header->slot_bytes > header->slot_stride) {
        return corrupt("slot_bytes", header->slot_bytes, "slot_stride is", header->slot_stride);
    }
    int on_device = header->device_kind != TB__PLACE_SEGMENT;
    uint64_t room_bytes =
        on_device ? header->device_bytes : header->segment_bytes - header->data_offset;
    if (!tb__mul(header->slot_stride, header->slot_count, &slots_bytes) ||
        slots_bytes > room_bytes) {
        return corrupt("slot_stride", header->slot_stride,
                       on_device ? "times slot_count it must fit device_bytes,"
                                 : "times slot_count it must fit behind data_offset, in bytes",
                       room_bytes);
    }
    return TB_OK;
}

static tb_status check_tensor(const struct tb__doradma_header *header,
                              const struct tb__doradma_json *json,
                              const struct tb__doradma_view *view)
{
    if (header->dtype != view->dtype) {
        return corrupt("dtype", header->dtype, "the JSON has", view->dtype);
    }
    if (header->ndim != view->ndim) {
        return TB__FAIL(TB_E_CORRUPT, "segment header: ndim is %d, the JSON's shape has %d",
                        header->ndim, view->ndim);
    }
    if (json->size != view->tensor_bytes) {
        return corrupt("size", json->size, "dtype and shape make", view->tensor_bytes);
    }
    if (view->tensor_bytes > header->slot_bytes) {
        return corrupt("size", view->tensor_bytes, "slot_bytes is", header->slot_bytes);
    }
    return TB_OK;
}

static void fill_own(const struct tb__doradma_header *header, struct tb__doradma_view *view)
{
    view->flags = header->flags;
    view->slot_count = header->slot_count;
    view->policy = header->policy;
    view->max_leases = header->max_leases;
    view->slot_stride = header->slot_stride;
    view->slot_bytes = header->slot_bytes;
    view->gens_offset = header->gens_offset;
    view->counters_offset = header->counters_offset;
    view->records_offset = header->records_offset;
    view->data_offset = header->data_offset;
    view->segment_bytes = header->segment_bytes;
    view->creator = header->creator;
    view->ipc_present = header->ipc_flag == 1;
    view->device_kind = header->device_kind;
    view->device_bytes = header->device_bytes;
    view->device_offset = (header->flags & TB__GEOMETRY_ADOPTED) != 0 ? header->device_offset : 0;
    memcpy(view->device_uuid, header->device_uuid, sizeof view->device_uuid);
    memcpy(view->ipc_handle, header->ipc_handle, sizeof view->ipc_handle);
    memcpy(view->uid, header->uid, sizeof view->uid);
}

/* dora's own: what its readers check, and that the tensor fits its size. */
static tb_status check_foreign(const struct tb__doradma_header *header, uint64_t mapped_bytes,
                               const struct tb__doradma_json *json, struct tb__doradma_view *view)
{
    view->foreign = 1;
    view->ipc_present = header->ipc_flag == 1;
    if (header->ipc_flag > 1) {
        return corrupt("ipc_flag", header->ipc_flag, "0 to", 1);
    }
    if (json->size == 0) {
        return corrupt("size", json->size, "at least", 1);
    }
    if (view->tensor_bytes > json->size) {
        return corrupt("size", json->size, "dtype and shape make", view->tensor_bytes);
    }
    if (header->data_offset > mapped_bytes) {
        return corrupt("data_offset", header->data_offset, "the segment has", mapped_bytes);
    }
    if (!view->ipc_present && json->size > mapped_bytes - header->data_offset) {
        return corrupt("size", json->size, "behind data_offset the segment has",
                       mapped_bytes - header->data_offset);
    }
    view->slot_count = 1;
    view->slot_stride = json->size;
    view->slot_bytes = json->size;
    view->data_offset = header->data_offset;
    view->segment_bytes = mapped_bytes;
    memcpy(view->ipc_handle, header->ipc_handle, sizeof view->ipc_handle);
    return TB_OK;
}

static tb_status check(const void *segment, uint64_t mapped_bytes, int allow_foreign,
                       struct tb__doradma_view *out)
{
    struct tb__doradma_header header = {.json_len = 0};
    struct tb__doradma_json json = {.size = 0};
    struct tb__doradma_view view = {.foreign = 0};
    TB__TRY(read_header(segment, mapped_bytes, &header));
    int own = memcmp(header.geometry_magic, TB__GEOMETRY_MAGIC, sizeof header.geometry_magic) == 0;
    if (!own && !allow_foreign) {
        return TB__FAIL(TB_E_CORRUPT, "segment header: geometry magic is not \"%s\"",
                        TB__GEOMETRY_MAGIC);
    }
    if (own) {
        TB__TRY(check_numbers(&header));
    }
    TB__TRY(read_json(segment, mapped_bytes, &header, &json));
    TB__TRY(view_tensor(&json, &view));
    if (own) {
        TB__TRY(check_slots(&header, mapped_bytes));
        TB__TRY(check_areas(&header));
        TB__TRY(check_tensor(&header, &json, &view));
        fill_own(&header, &view);
    } else {
        TB__TRY(check_foreign(&header, mapped_bytes, &json, &view));
    }
    *out = view;
    return TB_OK;
}

tb_status tb__doradma_check(const void *segment, uint64_t mapped_bytes,
                            struct tb__doradma_view *out)
{
    return check(segment, mapped_bytes, 0, out);
}

tb_status tb__doradma_check_any(const void *segment, uint64_t mapped_bytes,
                                struct tb__doradma_view *out)
{
    return check(segment, mapped_bytes, 1, out);
}
