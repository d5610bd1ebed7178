/* The head of a data segment: dora's DORADMA header, our geometry in its reserved bytes, and the
 * JSON that describes the first tensor.
 *
 *   0        header, 256 bytes               written once, but for the word at 96
 *   256      JSON, padded with zeros to 256  written once
 *   gens     word 0: head generation; word 1 + s: generation of slot s; in whole 64-byte lines: the
 *            head and up to 7 slots share one
 *   counters 256 bytes
 *   records  256 bytes per slot
 *   data     slots, each of `slot_stride` bytes, page-aligned. None in a pool of a GPU, whose slots
 *            lie in the same way in an allocation of its own, nor in one whose slots are memory of
 *            its user's: those begin at `device_offset` of it, as far apart as the user has said
 *
 * The word at 96 is the seqlock that a foreign reader obeys. In a pool of one slot it is that
 * slot's generation (gens word 1 is then unused) and the segment is a complete DORADMA pool. With
 * more slots it stays 1, odd: a foreign reader refuses instead of reading torn bytes.
 *
 * The owner lays a segment out and writes its head before anyone else can see it. A reader checks
 * the head of what it mapped and works with the view, never with the header again: its owner may be
 * hostile. Pure functions; any thread. Little-endian, fixed width. */
#ifndef TB_SEGMENT_DORADMA_H
#define TB_SEGMENT_DORADMA_H

#include <stddef.h>
#include <stdint.h>

#include <tensorbus/pool.h>

#include "base/error.h"

#define TB__DORADMA_HEADER_BYTES 256
#define TB__DORADMA_MAGIC "DORADMA" /* with its terminator: 8 bytes */
#define TB__DORADMA_GEN_OFFSET 96
#define TB__DORADMA_JSON_MAX 4096     /* accepted; ours is below 512 */
#define TB__GEOMETRY_MAGIC "TBUSGEO1" /* without a terminator */
#define TB__GEOMETRY_VERSION 1
#define TB__COUNTERS_BYTES 256
#define TB__RECORD_BYTES 256
#define TB__SEGMENT_PAGE 4096 /* unit of slots, whatever the kernel's page size */

/* Geometry flags. Unknown ones are refused. */
#define TB__GEOMETRY_VARYING 1u  /* shape and strides may differ from frame to frame */
#define TB__GEOMETRY_EXPORT 2u   /* a /dev/shm file for foreign readers; one slot, not sealed */
#define TB__GEOMETRY_LIVE 4u     /* one slot, written in place whoever holds it */
#define TB__GEOMETRY_DEVICE 8u   /* the slots lie in a GPU's memory, not behind data_offset */
#define TB__GEOMETRY_ADOPTED 16u /* the slots lie in their user's memory: a GPU's, or a memfd's */
#define TB__GEOMETRY_FLAGS 31u

/* All fields are written by the owner before publication and never again, except write_gen. */
struct tb__doradma_header {
    uint8_t magic[8];
    uint64_t json_len;    /* bytes of JSON text, without padding */
    uint64_t data_offset; /* of slot 0 */
    uint64_t ipc_flag;    /* 1: ipc_handle holds a CUDA IPC memory handle */
    uint8_t ipc_handle[64];
    uint64_t write_gen; /* atomic, written by the owner, read by all: never through this field */
    uint8_t geometry_magic[8]; /* anything else: a pool of dora's, the rest has no meaning */
    uint32_t version;
    uint32_t flags;
    uint32_t slot_count;  /* 1 to TB_MAX_SLOTS */
    uint32_t policy;      /* tb_policy */
    uint64_t slot_stride; /* from slot to slot */
    uint64_t slot_bytes;  /* capacity of one slot */
    uint64_t gens_offset;
    uint64_t counters_offset;
    uint64_t records_offset;
    uint64_t segment_bytes;
    uint64_t creator; /* endpoint id of the owner; the first half of uid */
    uint8_t uid[16];
    uint32_t dtype;
    int32_t ndim;            /* of the first shape, which is in the JSON */
    uint32_t max_leases;     /* 1 to TB_MAX_LEASES */
    uint32_t record_bytes;   /* TB__RECORD_BYTES */
    uint8_t device_uuid[16]; /* TB__GEOMETRY_DEVICE: of the GPU; else 0 */
    uint64_t device_bytes;   /* of the allocation with the slots; 0: they are behind data_offset */
    uint32_t device_kind;    /* enum tb__doradma_place: how the allocation travels */
    uint8_t reserved[4];     /* 0, ignored */
    uint64_t device_offset;  /* TB__GEOMETRY_ADOPTED: of slot 0 in the allocation; else 0 */
};

#define TB__HEADER_AT(field, offset)                                                               \
    _Static_assert(offsetof(struct tb__doradma_header, field) == (offset), #field)
TB__HEADER_AT(magic, 0);
TB__HEADER_AT(json_len, 8);
TB__HEADER_AT(data_offset, 16);
TB__HEADER_AT(ipc_flag, 24);
TB__HEADER_AT(ipc_handle, 32);
TB__HEADER_AT(write_gen, TB__DORADMA_GEN_OFFSET);
TB__HEADER_AT(geometry_magic, 104);
TB__HEADER_AT(version, 112);
TB__HEADER_AT(flags, 116);
TB__HEADER_AT(slot_count, 120);
TB__HEADER_AT(policy, 124);
TB__HEADER_AT(slot_stride, 128);
TB__HEADER_AT(slot_bytes, 136);
TB__HEADER_AT(gens_offset, 144);
TB__HEADER_AT(counters_offset, 152);
TB__HEADER_AT(records_offset, 160);
TB__HEADER_AT(segment_bytes, 168);
TB__HEADER_AT(creator, 176);
TB__HEADER_AT(uid, 184);
TB__HEADER_AT(dtype, 200);
TB__HEADER_AT(ndim, 204);
TB__HEADER_AT(max_leases, 208);
TB__HEADER_AT(record_bytes, 212);
TB__HEADER_AT(device_uuid, 216);
TB__HEADER_AT(device_bytes, 232);
TB__HEADER_AT(device_kind, 240);
TB__HEADER_AT(reserved, 244);
TB__HEADER_AT(device_offset, 248);
_Static_assert(sizeof(struct tb__doradma_header) == TB__DORADMA_HEADER_BYTES, "header size");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "segments are little-endian in place");

/* Where the slots lie, and how a reader gets at them. */
enum tb__doradma_place {
    TB__PLACE_SEGMENT = 0, /* behind data_offset */
    TB__PLACE_VMM = 1,     /* CUDA virtual memory: a descriptor comes with the segment */
    TB__PLACE_IPC = 2,     /* the header's ipc_handle */
    TB__PLACE_MAPPED = 3,  /* host memory that an integrated GPU maps: a descriptor comes */
    TB__PLACE_DMABUF = 4,  /* adopted: another driver's, by its DMA-BUF descriptor */
    TB__PLACE_MEMFD = 5,   /* adopted: host memory of the owner's, by its memfd */
};

/* Whether a place is a GPU's: where its pointers are for that GPU alone. */
static inline int tb__place_is_gpu(uint32_t place)
{
    return place != TB__PLACE_SEGMENT && place != TB__PLACE_MEMFD;
}

/* What the owner wants. */
struct tb__doradma_spec {
    uint32_t slots;
    uint32_t policy;
    uint32_t max_leases;
    uint32_t flags;      /* TB__GEOMETRY_* */
    uint64_t slot_bytes; /* at least the packed size of dtype and shape */
    tb_dtype dtype;
    int32_t ndim;
    int64_t shape[TB_MAX_NDIM];
    uint64_t creator;
    uint8_t uid[16]; /* begins with `creator`, little-endian */
    /* TB__GEOMETRY_DEVICE or ADOPTED; else 0. */
    uint32_t device_kind;
    uint64_t device_bytes;
    uint8_t device_uuid[16];
    uint8_t ipc_handle[64]; /* TB__PLACE_IPC */
    /* TB__GEOMETRY_ADOPTED; else 0. */
    uint64_t slot_stride;
    uint64_t device_offset;
};

/* Where everything lies. */
struct tb__doradma_layout {
    uint64_t json_bytes;
    uint64_t gens_offset;
    uint64_t counters_offset;
    uint64_t records_offset;
    uint64_t data_offset;
    uint64_t slot_stride;
    uint64_t segment_bytes;
};

/* Compute the layout. TB_E_INVALID names the argument, TB_E_LIMIT an overflow. */
TB_MUST_USE tb_status tb__doradma_layout(const struct tb__doradma_spec *spec,
                                         struct tb__doradma_layout *out);

/* Write everything in front of data_offset: header, JSON, and zeros for generations, counters and
 * records. `segment` is aligned to 64 and has at least layout.data_offset bytes. The magic is
 * written last, so that a foreign reader that opens the name early finds no pool yet. */
TB_MUST_USE tb_status tb__doradma_init(void *segment, const struct tb__doradma_spec *spec);

/* A checked copy of a head: every range lies inside the mapped bytes, every number is in its
 * limits. */
struct tb__doradma_view {
    int foreign;     /* 1: a pool of dora's own: one slot, no gens, counters or records */
    int ipc_present; /* 1: ipc_handle names the GPU memory in which the payload is */
    uint32_t flags;
    uint32_t slot_count;
    uint32_t policy;
    uint32_t max_leases; /* 0 when foreign */
    uint64_t slot_stride;
    uint64_t slot_bytes;
    uint64_t gens_offset; /* 0 when foreign, as the next two */
    uint64_t counters_offset;
    uint64_t records_offset;
    uint64_t data_offset; /* 4096-aligned; any byte when foreign */
    uint64_t segment_bytes;
    uint64_t creator; /* 0 when foreign */
    uint8_t uid[16];
    tb_dtype dtype;
    int32_t ndim;
    int64_t shape[TB_MAX_NDIM];
    uint64_t tensor_bytes; /* packed size of dtype and shape; at most slot_bytes */
    uint32_t device_kind;  /* enum tb__doradma_place */
    uint64_t device_bytes;
    uint64_t device_offset;
    uint8_t device_uuid[16];
    uint8_t ipc_handle[64];
    char pinned_type[32];   /* the receiver's kind of device, "" when missing */
    char sender_shmem[256]; /* a mirror's origin, "" when missing */
};

/* Check the head of one of our segments, whose first `mapped_bytes` bytes are readable. Generations
 * are not looked at. TB_E_CORRUPT names the field and both values; TB_E_UNSUPPORTED a newer
 * version. Both checks are in doradma_check.c. */
TB_MUST_USE tb_status tb__doradma_check(const void *segment, uint64_t mapped_bytes,
                                        struct tb__doradma_view *out);

/* The same, but a segment that dora wrote is taken too (view.foreign). */
TB_MUST_USE tb_status tb__doradma_check_any(const void *segment, uint64_t mapped_bytes,
                                            struct tb__doradma_view *out);

/* Whether a place goes with geometry flags. */
static inline int tb__doradma_place_ok(uint32_t place, uint32_t flags)
{
    int is_adopted = (flags & TB__GEOMETRY_ADOPTED) != 0;
    return place <= TB__PLACE_MEMFD &&
           tb__place_is_gpu(place) == ((flags & TB__GEOMETRY_DEVICE) != 0) &&
           (is_adopted ? place != TB__PLACE_SEGMENT : place <= TB__PLACE_MAPPED);
}

/* Bytes from the first slot's to the last one's end, where the stride is any. 0: it overflows. */
static inline int tb__doradma_extent(uint64_t stride, uint32_t slot_count, uint64_t slot_bytes,
                                     uint64_t *out)
{
    return !__builtin_mul_overflow(stride, (uint64_t)slot_count - 1, out) &&
           !__builtin_add_overflow(*out, slot_bytes, out);
}

/* Size of the area of generations. */
static inline uint64_t tb__doradma_gens_bytes(uint32_t slot_count)
{
    return (8 * (1 + (uint64_t)slot_count) + 63) & ~UINT64_C(63);
}

/* Offset of a slot's generation word. */
static inline uint64_t tb__doradma_gen_offset(uint32_t slot_count, uint64_t gens_offset,
                                              uint32_t slot)
{
    return slot_count == 1 ? TB__DORADMA_GEN_OFFSET : gens_offset + 8 * (1 + (uint64_t)slot);
}

#endif
