/* What the tests of adopted memory of GPUs share: memory that somebody else allocated, a pool on
 * it, its owner, and a reader in another process that does as it is told. */
#ifndef TB_TESTS_GPU_ADOPT_H
#define TB_TESTS_GPU_ADOPT_H

#include <unistd.h>

#include "base/fd.h"
#include "cuda/adopt.h"
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)
#define SLOT_BYTES ((uint64_t)WORDS * 4)
#define SLOTS 3
#define BYTES ((uint64_t)8 << 20)
#define OFFSET ((uint64_t)1000000) /* G14: no page's beginning */

/* ------------------------------------------------------------------ memory of others */

enum source { PLAIN, VIRTUAL, CLOSED, MANAGED, STREAM_ORDERED, SOURCES };

struct theirs {
    enum source source;
    uint64_t address;
    unsigned long long handle;
};

static inline void theirs_map(struct theirs *it, const struct tb__gpu *gpu)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    struct tb__mem_prop prop = {.type = TB__MEM_ALLOCATION_TYPE_PINNED,
                                .requested_handle_types =
                                    it->source == VIRTUAL ? TB__MEM_HANDLE_TYPE_POSIX_FD : 0,
                                .location = {TB__MEM_LOCATION_TYPE_DEVICE, gpu->device}};
    struct tb__mem_access access = {.location = prop.location, .flags = TB__MEM_ACCESS_READWRITE};
    CHECK_CUDA(cuda->mem_create(&it->handle, BYTES, &prop, 0));
    CHECK_CUDA(cuda->mem_address_reserve(&it->address, BYTES, 0, 0, 0));
    CHECK_CUDA(cuda->mem_map(it->address, BYTES, 0, it->handle, 0));
    CHECK_CUDA(cuda->mem_set_access(it->address, BYTES, &access, 1));
}

static inline struct theirs theirs_make(enum source source, const struct tb__gpu *gpu)
{
    struct theirs it = {.source = source};
    struct tb__gpu_scope scope;
    CHECK_OK(tb__gpu_enter(gpu, &scope));
    switch (source) {
    case PLAIN:
        CHECK_CUDA(tb__cuda()->mem_alloc(&it.address, BYTES));
        break;
    case MANAGED:
        CHECK_CUDA(tb__cuda()->mem_alloc_managed(&it.address, BYTES, TB__MEM_ATTACH_GLOBAL));
        break;
    case STREAM_ORDERED:
        CHECK_CUDA(tb__cuda()->mem_alloc_async(&it.address, BYTES, NULL));
        break;
    default:
        theirs_map(&it, gpu);
        break;
    }
    tb__gpu_leave(&scope);
    return it;
}

static inline void theirs_drop(struct theirs *it, const struct tb__gpu *gpu)
{
    struct tb__gpu_scope scope;
    CHECK_OK(tb__gpu_enter(gpu, &scope));
    if (it->source == PLAIN || it->source == MANAGED) {
        CHECK_CUDA(tb__cuda()->mem_free(it->address));
    } else if (it->source == STREAM_ORDERED) {
        CHECK_CUDA(tb__cuda()->mem_free_async(it->address, NULL));
        CHECK_OK(tb__stream_synchronize(NULL, gpu));
    } else {
        CHECK_CUDA(tb__cuda()->mem_unmap(it->address, BYTES));
        CHECK_CUDA(tb__cuda()->mem_address_free(it->address, BYTES));
        CHECK_CUDA(tb__cuda()->mem_release(it->handle));
    }
    tb__gpu_leave(&scope);
}

/* ------------------------------------------------------------------ the pool */

static inline void count_release(void *context)
{
    ++*(_Atomic int *)context;
}

static inline tb_adoption adoption_of(uint64_t address, _Atomic int *releases)
{
    return (tb_adoption){.size = sizeof(tb_adoption),
                         .data = (void *)(uintptr_t)address,
                         .stride_bytes = SLOT_BYTES + 4096 + 4,
                         .release = count_release,
                         .context = releases};
}

static inline tb_status adopt(tb_bus *bus, tb_device device, const tb_adoption *adoption,
                              tb_pool **out)
{
    tb_pool_options options = gpu_words_options("frames", device, WORDS, SLOTS);
    options.adopt = adoption;
    return tb_pool_register(bus, &options, out);
}

static inline tb_tensor words_at(uint64_t address)
{
    return gpu_words((void *)(uintptr_t)address, TB_CUDA(0), WORDS);
}

/* ------------------------------------------------------------------ a reader */

enum act { HOLD, SEE, LET_GO, CLOSE_READER, OPEN_AGAIN, END };

static inline void reader_role(void *argument)
{
    tb_frame *frame = NULL;
    enum act act;
    (void)argument;
    gpu_begin();
    parent_reached("begun");
    tb_bus *bus = gpu_open_bus("reader");
    tb_reader *reader = gpu_open_reader(bus, "owner/frames", 0);
    parent_reached("attached");
    do {
        uint32_t word = 0;
        parent_hear(&act, sizeof act);
        if (act == HOLD) {
            CHECK_OK(tb_reader_newest(reader, TB_SECONDS(20), &frame));
            CHECK_EQ(gpu_info(frame).copies, 0);
            CHECK_EQ(tb_frame_tensor(frame)->device, TB_CUDA(0));
        } else if (act == SEE) {
            tb_tensor first = *tb_frame_tensor(frame);
            tb_tensor here = gpu_words(&word, TB_CPU, 1);
            first.shape[0] = 1;
            CHECK_OK(tb_copy(&here, &first));
            gpu_check(tb_frame_tensor(frame), word);
        } else if (act == LET_GO) {
            tb_frame_release(frame);
        } else if (act == CLOSE_READER) {
            tb_reader_close(reader);
        } else if (act == OPEN_AGAIN) {
            reader = gpu_open_reader(bus, "owner/frames", 0);
        }
        parent_tell(&word, sizeof word);
    } while (act != END);
    tb_bus_close(bus);
}

static inline uint32_t tell(struct child *reader, enum act act)
{
    uint32_t word;
    child_tell(reader, &act, sizeof act);
    child_hear(reader, &word, sizeof word);
    return word;
}

/* ------------------------------------------------------------------ an owner */

struct owner {
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_pool *pool;
    tb_cuda_stream stream;
    _Atomic int releases;
};

static inline void owner_begin(struct owner *owner, struct child *reader)
{
    if (reader != NULL) {
        child_start(reader, "reader", reader_role, NULL);
        child_await(reader, "begun");
    }
    owner->gpu = gpu_begin();
    owner->bus = gpu_open_bus("owner");
    owner->stream = gpu_stream();
    owner->releases = 0;
}

static inline void owner_end(struct owner *owner)
{
    tb_bus_close(owner->bus);
    gpu_stream_end(owner->stream);
}

/* The frame that a reader holds is the owner's memory: what he writes there past all rules, it
 * sees. */
static inline void check_same_memory(struct owner *owner, struct child *reader, uint64_t slot)
{
    tb_tensor words = words_at(slot);
    CHECK_EQ(tell(reader, HOLD), 0);
    CHECK_EQ(tell(reader, SEE), 11);
    gpu_fill(&words, 12, owner->stream);
    gpu_synchronize(owner->stream);
    CHECK_EQ(tell(reader, SEE), 12);
}

#endif
