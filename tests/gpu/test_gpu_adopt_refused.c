/* Memory of GPUs that pools refuse to adopt, by name (G17), DMA-BUFs, and failures of every call.
 */
#include "gpu/gpu_adopt.h"

#include <sys/mman.h>

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
    tb_pool_options options = gpu_words_options(NULL, TB_CPU, WORDS, SLOTS);
    options.adopt = &adoption;
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
