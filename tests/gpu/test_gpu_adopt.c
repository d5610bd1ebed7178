/* Pools whose slots are a GPU's memory that somebody else allocated: what is taken and how readers
 * get at it, what is refused by name (G17), until when it is used, and failures of every call.
 * Host memory is in tests/proc. */
#include <fcntl.h>
#include <sys/mman.h>
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

static void theirs_map(struct theirs *it, const struct tb__gpu *gpu)
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

static struct theirs theirs_make(enum source source, const struct tb__gpu *gpu)
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

static void theirs_drop(struct theirs *it, const struct tb__gpu *gpu)
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

static void count_release(void *context)
{
    ++*(_Atomic int *)context;
}

static tb_adoption adoption_of(uint64_t address, _Atomic int *releases)
{
    return (tb_adoption){.size = sizeof(tb_adoption),
                         .data = (void *)(uintptr_t)address,
                         .stride_bytes = SLOT_BYTES + 4096 + 4,
                         .release = count_release,
                         .context = releases};
}

static tb_status adopt(tb_bus *bus, tb_device device, const tb_adoption *adoption, tb_pool **out)
{
    tb_pool_options options = {.size = sizeof options,
                               .name = "frames",
                               .dtype = TB_U32,
                               .ndim = 1,
                               .shape = {WORDS},
                               .device = device,
                               .slots = SLOTS,
                               .adopt = adoption};
    return tb_pool_register(bus, &options, out);
}

static tb_tensor words_at(uint64_t address)
{
    return (tb_tensor){.data = (void *)(uintptr_t)address,
                       .device = TB_CUDA(0),
                       .dtype = TB_U32,
                       .ndim = 1,
                       .shape = {WORDS}};
}

/* ------------------------------------------------------------------ a reader */

enum act { HOLD, SEE, LET_GO, CLOSE_READER, OPEN_AGAIN, END };

static void reader_role(void *argument)
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
            tb_tensor here = {.data = &word, .dtype = TB_U32, .ndim = 1, .shape = {1}};
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

static uint32_t tell(struct child *reader, enum act act)
{
    uint32_t word;
    child_tell(reader, &act, sizeof act);
    child_hear(reader, &word, sizeof word);
    return word;
}

/* ------------------------------------------------------------------ tests */

struct owner {
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_pool *pool;
    tb_cuda_stream stream;
    _Atomic int releases;
};

static void owner_begin(struct owner *owner, struct child *reader)
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

static void owner_end(struct owner *owner)
{
    tb_bus_close(owner->bus);
    gpu_stream_end(owner->stream);
}

/* The frame that a reader holds is the owner's memory: what he writes there past all rules, it
 * sees. */
static void check_same_memory(struct owner *owner, struct child *reader, uint64_t slot)
{
    tb_tensor words = words_at(slot);
    CHECK_EQ(tell(reader, HOLD), 0);
    CHECK_EQ(tell(reader, SEE), 11);
    gpu_fill(&words, 12, owner->stream);
    gpu_synchronize(owner->stream);
    CHECK_EQ(tell(reader, SEE), 12);
}

/* G14, G17 */
static void adopt_and_read(enum source source)
{
    struct child reader;
    struct owner owner;
    tb_loan *loan;
    if (source == PLAIN) {
        gpu_skip_foreign_reads();
    }
    owner_begin(&owner, &reader);
    if (source == VIRTUAL && !owner.gpu->vmm) {
        harness_skip("no virtual memory");
    }
    struct theirs theirs = theirs_make(source, owner.gpu);
    tb_adoption adoption = adoption_of(theirs.address + OFFSET, &owner.releases);
    CHECK_OK(adopt(owner.bus, source == PLAIN ? TB_CPU : TB_CUDA(0), &adoption, &owner.pool));
    child_await(&reader, "attached");
    CHECK_OK(tb_pool_loan(owner.pool, TB_POLL, &loan));
    const tb_tensor *slot = tb_loan_tensor(loan);
    CHECK_EQ(slot->device, TB_CUDA(0));
    uint64_t at = (uint64_t)(uintptr_t)slot->data;
    CHECK_EQ((at - theirs.address - OFFSET) % adoption.stride_bytes, 0);
    CHECK_LT((at - theirs.address - OFFSET) / adoption.stride_bytes, SLOTS);
    gpu_fill(slot, 11, owner.stream);
    CHECK_OK(tb_loan_publish_on(loan, owner.stream, NULL));
    check_same_memory(&owner, &reader, at);
    CHECK_EQ(gpu_pool_stats(owner.pool).copies, 0);
    tb_pool_close(owner.pool);
    harness_sleep_us(20000);
    CHECK_EQ(owner.releases, 0);
    CHECK_EQ(tell(&reader, SEE), 12);
    tell(&reader, LET_GO);
    if (source == PLAIN) {
        harness_sleep_us(100000);
        CHECK_EQ(owner.releases, 0);
        tell(&reader, CLOSE_READER);
    }
    CHECK_WITHIN_MS(owner.releases == 1, 2000);
    theirs_drop(&theirs, owner.gpu);
    tell(&reader, END);
    child_join(&reader);
    owner_end(&owner);
    CHECK_EQ(owner.releases, 1);
}

/* Not freed while another process has it open: in use until the last reader has gone. */
static void readers_use_the_very_plain_memory(void)
{
    adopt_and_read(PLAIN);
}

/* In use until the last frame is released. */
static void readers_use_the_very_virtual_memory(void)
{
    adopt_and_read(VIRTUAL);
}

/* A handle that is opened in the owner's own process leaves an attachment there, which is kept, but
 * opens no memory. */
static void the_owner_s_own_attachments_are_in_nobody_s_way(void)
{
    struct owner owner;
    tb_handle handle;
    tb_frame *frame;
    owner_begin(&owner, NULL);
    struct theirs theirs = theirs_make(PLAIN, owner.gpu);
    tb_adoption adoption = adoption_of(theirs.address, &owner.releases);
    CHECK_OK(adopt(owner.bus, 0, &adoption, &owner.pool));
    gpu_publish(owner.pool, 31, owner.stream, &handle);
    gpu_synchronize(owner.stream);
    CHECK_WITHIN_MS(tb_frame_open(owner.bus, &handle, TB_POLL, &frame) == TB_OK, 5000);
    gpu_check(tb_frame_tensor(frame), 31);
    tb_pool_close(owner.pool);
    harness_sleep_us(20000);
    CHECK_EQ(owner.releases, 0); /* it is held */
    tb_frame_release(frame);
    CHECK_WITHIN_MS(owner.releases == 1, 5000);
    theirs_drop(&theirs, owner.gpu);
    owner_end(&owner);
}

/* A reader that is killed holds nothing any more, be it attached or not. */
static void a_reader_s_death_gives_plain_memory_back(void)
{
    struct child reader;
    struct owner owner;
    gpu_skip_foreign_reads();
    owner_begin(&owner, &reader);
    struct theirs theirs = theirs_make(PLAIN, owner.gpu);
    tb_adoption adoption = adoption_of(theirs.address, &owner.releases);
    CHECK_OK(adopt(owner.bus, 0, &adoption, &owner.pool));
    child_await(&reader, "attached");
    gpu_publish(owner.pool, 11, owner.stream, NULL);
    gpu_synchronize(owner.stream);
    tell(&reader, HOLD);
    CHECK_EQ(tell(&reader, SEE), 11);
    tb_pool_close(owner.pool);
    harness_sleep_us(20000);
    CHECK_EQ(owner.releases, 0);
    child_kill(&reader);
    CHECK_WITHIN_MS(owner.releases == 1, 5000);
    theirs_drop(&theirs, owner.gpu);
    owner_end(&owner);
}

static void an_owner_role(void *argument)
{
    struct owner owner;
    (void)argument;
    owner_begin(&owner, NULL);
    struct theirs theirs = theirs_make(VIRTUAL, owner.gpu);
    tb_adoption adoption = adoption_of(theirs.address + OFFSET, &owner.releases);
    CHECK_OK(adopt(owner.bus, 0, &adoption, &owner.pool));
    gpu_publish(owner.pool, 21, owner.stream, NULL);
    gpu_synchronize(owner.stream);
    parent_pause("published");
}

/* G06 for adopted memory. */
static void an_owner_s_death_leaves_its_frames_to_readers(void)
{
    struct child owner;
    tb_frame *frame, *next;
    child_start(&owner, "owner", an_owner_role, NULL);
    child_await(&owner, "published");
    gpu_begin();
    tb_bus *bus = gpu_open_bus("reader");
    tb_reader *reader = gpu_open_reader(bus, "owner/frames", 0);
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
    child_kill(&owner);
    gpu_check(tb_frame_tensor(frame), 21);
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(20), &next), TB_E_OWNER_DIED);
    gpu_check(tb_frame_tensor(frame), 21);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

/* tb_alloc()'s: on whatever the device's memory is shared by. */
static void memory_of_our_own_is_adopted(void)
{
    struct owner owner;
    owner_begin(&owner, NULL);
    static const tb_memory_kind kinds[] = {TB_MEMORY_DEVICE, TB_MEMORY_SHARED_PINNED};
    for (int i = 0; i < 2; i++) {
        tb_memory *memory;
        tb_frame *frame;
        CHECK_OK(tb_alloc(&(tb_memory_options){.size = sizeof(tb_memory_options),
                                               .kind = kinds[i],
                                               .bytes = BYTES},
                          &memory));
        uint64_t base = (uint64_t)(uintptr_t)tb_memory_data(memory);
        tb_adoption adoption = adoption_of(base + OFFSET, &owner.releases);
        CHECK_OK(adopt(owner.bus, 0, &adoption, &owner.pool));
        tb_reader *reader = gpu_open_reader(owner.bus, "owner/frames", 0);
        tb_tensor source = words_at(0);
        uint64_t words;
        CHECK_CUDA(tb__cuda()->mem_alloc(&words, SLOT_BYTES));
        source.data = (void *)(uintptr_t)words;
        gpu_fill(&source, 30u + (uint32_t)i, owner.stream);
        CHECK_OK(tb_pool_write_on(owner.pool, &source, owner.stream, TB_POLL, NULL));
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        CHECK_EQ(tb_frame_tensor(frame)->device, i == 0 ? TB_CUDA(0) : TB_CPU);
        gpu_check(tb_frame_tensor(frame), 30u + (uint32_t)i);
        /* And back: the reader's mapping of host slots is page-locked for the copy. */
        gpu_fill(&source, 0, owner.stream);
        CHECK_OK(tb_frame_copy_on(frame, &source, owner.stream));
        gpu_synchronize(owner.stream);
        gpu_check(&source, 30u + (uint32_t)i);
        tb_frame_release(frame);
        tb_reader_close(reader);
        tb_pool_close(owner.pool);
        CHECK_WITHIN_MS(owner.releases == i + 1, 5000);
        if (i == 0) { /* it is ours as before */
            tb_tensor whole = words_at(base);
            gpu_fill(&whole, 50, owner.stream);
            gpu_synchronize(owner.stream);
            gpu_check(&whole, 50);
        }
        CHECK_CUDA(tb__cuda()->mem_free(words));
        tb_memory_free(memory);
    }
    owner_end(&owner);
}

static void our_own_on_a_device_without_virtual_memory(void)
{
    gpu_need_fake();
    gpu_machine("devices=1;no_vmm=0");
    memory_of_our_own_is_adopted();
}

static void our_own_on_an_integrated_device(void)
{
    gpu_need_fake();
    gpu_machine("devices=1;no_vmm=0;integrated=0");
    memory_of_our_own_is_adopted();
}

/* ------------------------------------------------------------------ refused */

/* G17 */
static void g17_what_cannot_be_shared_is_refused_by_name(void)
{
    static const struct {
        enum source source;
        const char *kind, *way_out;
    } cases[] = {
        {MANAGED, "a pool cannot adopt the managed memory", "copy it into a pool"},
        {STREAM_ORDERED, "a pool cannot adopt the stream-ordered memory", "allocate device memory"},
        {CLOSED, "a pool cannot adopt the virtual memory", "allocate device memory"},
    };
    struct owner owner;
    owner_begin(&owner, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        owner.pool = NULL;
        if ((cases[i].source == MANAGED && !owner.gpu->managed) ||
            (cases[i].source == STREAM_ORDERED && !owner.gpu->memory_pools) ||
            (cases[i].source == CLOSED && !owner.gpu->vmm)) {
            continue;
        }
        struct theirs theirs = theirs_make(cases[i].source, owner.gpu);
        tb_adoption adoption = adoption_of(theirs.address, &owner.releases);
        CHECK_STATUS(adopt(owner.bus, 0, &adoption, &owner.pool), TB_E_UNSUPPORTED);
        CHECK_HAS(tb_last_error_text(), cases[i].kind);
        CHECK_HAS(tb_last_error_text(), cases[i].way_out);
        CHECK(owner.pool == NULL);
        theirs_drop(&theirs, owner.gpu);
    }
    CHECK_EQ(owner.releases, 0);
    owner_end(&owner);
}

static void what_does_not_fit_is_refused(void)
{
    gpu_machine("devices=2");
    struct owner owner;
    owner_begin(&owner, NULL);
    struct theirs theirs = theirs_make(PLAIN, owner.gpu);
    tb_adoption adoption = adoption_of(theirs.address + BYTES - SLOT_BYTES, &owner.releases);
    tb_pool_options options = {.size = sizeof options,
                               .dtype = TB_U32,
                               .ndim = 1,
                               .shape = {WORDS},
                               .slots = SLOTS,
                               .adopt = &adoption};
    /* A real driver's block may be larger than what was asked for: so far it never is. */
    CHECK_STATUS(tb_pool_register(owner.bus, &options, &owner.pool), TB_E_INVALID);
    CHECK_HAS(tb_last_error_text(), "reach beyond it");
    adoption.data = (void *)(uintptr_t)(theirs.address + 2);
    CHECK_STATUS(tb_pool_register(owner.bus, &options, &owner.pool), TB_E_INVALID);
    CHECK_HAS(tb_last_error_text(), "an element's 4 bytes");
    adoption.data = (void *)(uintptr_t)theirs.address;
    options.pinned = 1;
    CHECK_STATUS(tb_pool_register(owner.bus, &options, &owner.pool), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), "a GPU's");
    options.pinned = 0;
    int count;
    CHECK_OK(tb__gpu_count(&count));
    options.device = count > 1 ? TB_CUDA(1) : TB_CUDA(7);
    CHECK_STATUS(tb_pool_register(owner.bus, &options, &owner.pool),
                 count > 1 ? TB_E_MISMATCH : TB_E_NOT_FOUND);
    CHECK_HAS(tb_last_error_text(), count > 1 ? "lies on cuda:0" : "cuda:7");
    options.device = TB_CUDA_CURRENT;
    CHECK_OK(tb_pool_register(owner.bus, &options, &owner.pool));
    tb_pool_close(owner.pool);
    CHECK_EQ(owner.releases, 1);
    theirs_drop(&theirs, owner.gpu);
    owner_end(&owner);
}

/* ------------------------------------------------------------------ DMA-BUF */

/* A camera's buffer: the fake takes a memfd for one. */
static void a_dma_buf_is_adopted_where_the_driver_imports_it(void)
{
    gpu_need_fake();
    gpu_machine("devices=1;integrated=0");
    struct child reader;
    struct owner owner;
    tb_loan *loan;
    owner_begin(&owner, &reader);
    int fd = memfd_create("camera", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
    uint8_t *camera = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK((void *)camera != MAP_FAILED);
    tb_adoption adoption = adoption_of(0, &owner.releases);
    adoption.by = TB_ADOPT_DMABUF;
    adoption.fd = fd;
    adoption.offset = OFFSET;
    adoption.bytes = BYTES - OFFSET;
    CHECK_OK(adopt(owner.bus, TB_CUDA(0), &adoption, &owner.pool));
    close(fd);
    child_await(&reader, "attached");
    CHECK_OK(tb_pool_loan(owner.pool, TB_POLL, &loan));
    CHECK_OK(tb_loan_publish(loan, NULL)); /* the first slot: as the camera left it */
    for (int64_t i = 0; i < WORDS; i++) {
        ((uint32_t *)(void *)(camera + OFFSET))[i] = 77;
    }
    CHECK_EQ(tell(&reader, HOLD), 0);
    CHECK_EQ(tell(&reader, SEE), 77);
    tb_pool_close(owner.pool);
    CHECK_EQ(owner.releases, 0);
    tell(&reader, LET_GO);
    CHECK_WITHIN_MS(owner.releases == 1, 2000);
    tell(&reader, END);
    child_join(&reader);
    munmap(camera, BYTES);
    owner_end(&owner);
}

static void a_dma_buf_is_refused_elsewhere(void)
{
    gpu_need_fake();
    gpu_machine("devices=1;no_dma_buf=0");
    struct owner owner;
    owner_begin(&owner, NULL);
    int fd = memfd_create("camera", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
    tb_adoption adoption = adoption_of(0, &owner.releases);
    adoption.by = TB_ADOPT_DMABUF;
    adoption.fd = fd;
    unsigned before = harness_fd_count();
    CHECK_STATUS(adopt(owner.bus, TB_CUDA(0), &adoption, &owner.pool), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), "cuImportExternalMemory");
    CHECK_HAS(tb_last_error_text(), "copy the buffer into a pool");
    adoption.offset = BYTES - 4096;
    CHECK_STATUS(adopt(owner.bus, TB_CUDA(0), &adoption, &owner.pool), TB_E_INVALID);
    CHECK_HAS(tb_last_error_text(), "of a DMA-BUF of 8388608 bytes");
    CHECK_EQ(harness_fd_count(), before);
    close(fd);
    owner_end(&owner);
}

/* ------------------------------------------------------------------ every call fails once */

static void every_call_s_failure_leaves_the_memory_alone(void)
{
    gpu_need_fake();
    gpu_machine("devices=1");
    struct owner owner;
    owner_begin(&owner, NULL);
    struct theirs theirs[2] = {theirs_make(PLAIN, owner.gpu), theirs_make(VIRTUAL, owner.gpu)};
    int fd = memfd_create("camera", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
    gpu_fake()->own();
    for (int way = 0; way < 3; way++) {
        tb_adoption adoption = adoption_of(way < 2 ? theirs[way].address : 0, &owner.releases);
        adoption.by = way < 2 ? TB_ADOPT_ADDRESS : TB_ADOPT_DMABUF;
        adoption.fd = way < 2 ? 0 : fd;
        int failed = 1;
        int refused = 0;
        for (unsigned n = 1; failed; n++) {
            char rule[64];
            struct fake_leaks leaks;
            int before = owner.releases;
            unsigned fds = harness_fd_count();
            snprintf(rule, sizeof rule, "*:%u:%d", n, TB__CUDA_OUT_OF_MEMORY);
            gpu_fake()->fail(rule);
            tb_status status = adopt(owner.bus, way < 2 ? 0 : TB_CUDA(0), &adoption, &owner.pool);
            failed = gpu_fake()->has_failed();
            refused += status != TB_OK;
            gpu_fake()->fail(NULL);
            if (status == TB_OK) {
                tb_pool_close(owner.pool);
            }
            CHECK_EQ(owner.releases, before + (status == TB_OK));
            CHECK_EQ(harness_fd_count(), fds);
            gpu_fake()->leaks(&leaks);
            CHECK_EQ(leaks.allocations + leaks.blocks + leaks.reservations + leaks.externals, 0);
        }
        CHECK_LT(0, refused);
    }
    gpu_fake()->own();
    theirs_drop(&theirs[0], owner.gpu);
    theirs_drop(&theirs[1], owner.gpu);
    close(fd);
    owner_end(&owner);
}

static const struct test tests[] = {
    TEST(readers_use_the_very_plain_memory, 60),
    TEST(readers_use_the_very_virtual_memory, 60),
    TEST(the_owner_s_own_attachments_are_in_nobody_s_way, 30),
    TEST(a_reader_s_death_gives_plain_memory_back, 30),
    TEST(an_owner_s_death_leaves_its_frames_to_readers, 30),
    TEST(memory_of_our_own_is_adopted, 60),
    TEST(our_own_on_a_device_without_virtual_memory, 60),
    TEST(our_own_on_an_integrated_device, 60),
    TEST(g17_what_cannot_be_shared_is_refused_by_name, 30),
    TEST(what_does_not_fit_is_refused, 30),
    TEST(a_dma_buf_is_adopted_where_the_driver_imports_it, 30),
    TEST(a_dma_buf_is_refused_elsewhere, 30),
    TEST(every_call_s_failure_leaves_the_memory_alone, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
