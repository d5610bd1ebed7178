/* Pools whose slots are a GPU's memory that somebody else allocated: what is taken, how readers get
 * at it, and until when it is used. What is refused is in test_gpu_adopt_refused.c, host memory in
 * tests/proc. */
#include "gpu/gpu_adopt.h"

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

static const struct test tests[] = {
    TEST(readers_use_the_very_plain_memory, 60),
    TEST(readers_use_the_very_virtual_memory, 60),
    TEST(the_owner_s_own_attachments_are_in_nobody_s_way, 30),
    TEST(a_reader_s_death_gives_plain_memory_back, 30),
    TEST(an_owner_s_death_leaves_its_frames_to_readers, 30),
    TEST(memory_of_our_own_is_adopted, 60),
    TEST(our_own_on_a_device_without_virtual_memory, 60),
    TEST(our_own_on_an_integrated_device, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
