/* The four verbs' table of pools: bounded, and given back when others free. Misuse is in
 * test_pools_free.c (P08). */
#include "proc/pool_support.h"

#define POOLS 100
#define ATTACHED_MOST 64 /* of other processes; see tensor_pool.c */

static tb_tensor word_tensor(int64_t *word)
{
    return (tb_tensor){.data = word, .dtype = TB_I64, .ndim = 1, .shape = {1}};
}

static int64_t read_word(tb_bus *bus, const char *id)
{
    tb_frame *frame;
    CHECK_OK(tb_read(bus, id, TB_SECONDS(2), &frame));
    int64_t word = *(const int64_t *)tb_frame_tensor(frame)->data;
    tb_frame_release(frame);
    return word;
}

static void owner_of_many(void *argument)
{
    (void)argument;
    char id[TB_POOL_ID_SIZE];
    tb_bus *bus = open_bus("owner");
    for (int64_t i = 0; i < POOLS; i++) {
        tb_tensor tensor = word_tensor(&i);
        CHECK_OK(tb_register(bus, &tensor, id));
        parent_tell(id, sizeof id);
    }
    parent_pause("registered");
    tb_bus_close(bus);
}

static void attachments_are_bounded(void)
{
    static char ids[POOLS][TB_POOL_ID_SIZE];
    struct child owner;
    tb_frame *held;
    child_start(&owner, "owner", owner_of_many, NULL);
    tb_bus *bus = open_bus("consumer");
    unsigned mappings = harness_memfd_count();
    for (int i = 0; i < POOLS; i++) {
        child_hear(&owner, ids[i], sizeof ids[i]);
        CHECK_EQ(read_word(bus, ids[i]), i);
        if (i == 0) {
            CHECK_OK(tb_read(bus, ids[0], TB_POLL, &held)); /* kept although it is the oldest */
        }
    }
    child_await(&owner, "registered");
    /* A segment and a page each; the held one is beyond the bound; and the doorbell. */
    CHECK_LE(harness_memfd_count(), mappings + 2 * (ATTACHED_MOST + 2) + 1);
    CHECK_EQ(*(const int64_t *)tb_frame_tensor(held)->data, 0);
    for (int i = 0; i < POOLS; i++) { /* those given up are attached again */
        CHECK_EQ(read_word(bus, ids[i]), i);
    }
    tb_frame_release(held);
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(bus);
}

static void freer_of_many(void *argument)
{
    (void)argument;
    char id[TB_POOL_ID_SIZE];
    tb_bus *bus = open_bus("freer");
    for (int i = 0; i < POOLS; i++) {
        parent_hear(id, sizeof id);
        CHECK_OK(tb_free(bus, id));
        parent_reached("freed");
    }
    CHECK_LE(harness_memfd_count(), 8); /* nothing of the freed ones is kept here */
    tb_bus_close(bus);
}

/* The owner does nothing but register: what others have freed goes all the same. */
static void freed_by_others(void)
{
    struct child freer;
    char id[TB_POOL_ID_SIZE];
    child_start(&freer, "freer", freer_of_many, NULL);
    tb_bus *bus = open_bus("owner");
    unsigned mappings = harness_memfd_count();
    unsigned fds = harness_fd_count();
    for (int64_t i = 0; i < POOLS; i++) {
        tb_tensor tensor = word_tensor(&i);
        CHECK_OK(tb_register(bus, &tensor, id));
        child_tell(&freer, id, sizeof id);
        child_await(&freer, "freed");
        CHECK_LE(harness_memfd_count(), mappings + 12);
        CHECK_LE(harness_fd_count(), fds + 6);
    }
    child_join(&freer);
    tb_bus_close(bus);
}

static void wrong_arguments(void)
{
    char id[TB_POOL_ID_SIZE];
    int64_t word = 1;
    tb_tensor tensor = word_tensor(&word);
    tb_frame *frame;
    tb_bus *nameless = open_bus(NULL);
    CHECK_STATUS(tb_register(nameless, &tensor, id), TB_E_INVALID);
    CHECK_HAS(tb_last_error_text(), "name");
    tb_bus_close(nameless);
    tb_bus *bus = open_bus("owner");
    CHECK_STATUS(tb_register(bus, NULL, id), TB_E_INVALID);
    CHECK_STATUS(tb_register(NULL, &tensor, id), TB_E_INVALID);
    CHECK_STATUS(tb_write(bus, NULL, &tensor, TB_POLL), TB_E_INVALID);
    CHECK_STATUS(tb_read(bus, NULL, TB_POLL, &frame), TB_E_INVALID);
    CHECK_STATUS(tb_free(bus, NULL), TB_E_INVALID);
    CHECK_OK(tb_register(bus, &tensor, id));
    tensor.dtype = TB_F64;
    CHECK_STATUS(tb_write(bus, id, &tensor, TB_POLL), TB_E_MISMATCH);
    CHECK_EQ(read_word(bus, id), 1);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(attachments_are_bounded, 20),
    TEST(freed_by_others, 20),
    TEST(wrong_arguments, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
