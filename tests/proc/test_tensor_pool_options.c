/* Registration with options: pools that foreign readers see as files, live pools, the refusals that
 * dora's nodes know; and the turn-taking of such nodes, which must not hang. */
#include "proc/foreign.h"
#include "proc/pool_support.h"

#include <pthread.h>

#define WORDS 1000

static tb_tensor words_of(int64_t *words)
{
    return (tb_tensor){.data = words, .dtype = TB_I64, .ndim = 1, .shape = {WORDS}};
}

static void fill(int64_t *words, int64_t value)
{
    for (int i = 0; i < WORDS; i++) {
        words[i] = value;
    }
}

static tb_register_options with(void)
{
    return (tb_register_options){.size = sizeof(tb_register_options)};
}

static tb_status write_value(tb_bus *bus, const char *id, int64_t value, int64_t timeout_ns)
{
    int64_t words[WORDS];
    tb_tensor tensor = words_of(words);
    fill(words, value);
    return tb_write(bus, id, &tensor, timeout_ns);
}

static void register_value(tb_bus *bus, const tb_register_options *options, int64_t value,
                           char id[TB_POOL_ID_SIZE])
{
    int64_t words[WORDS];
    tb_tensor tensor = words_of(words);
    fill(words, value);
    CHECK_OK(tb_register_with(bus, &tensor, options, id));
}

/* The number that the foreign reader finds, in all elements. */
static int64_t foreign_value(const struct foreign *foreign)
{
    CHECK(memcmp(foreign->base, "DORADMA", 8) == 0);
    CHECK_EQ(foreign_word(foreign, 96) % 2, 0);
    size_t offset = foreign_word(foreign, 16);
    int64_t value = (int64_t)foreign_word(foreign, offset);
    for (size_t i = 1; i < WORDS; i++) {
        CHECK_EQ((int64_t)foreign_word(foreign, offset + 8 * i), value);
    }
    return value;
}

/* ------------------------------------------------------------------ taking turns */

/* dora's receiver: asks for the next tensor while it holds this one, and only then lets the one
 * before go. */
static void receiver(void *argument)
{
    char id[TB_POOL_ID_SIZE];
    int64_t turns = *(const int64_t *)argument;
    tb_frame *held = NULL;
    parent_hear(id, sizeof id);
    tb_bus *bus = open_bus("receiver");
    for (int64_t turn = 1; turn <= turns; turn++) {
        tb_frame *frame;
        CHECK_OK(tb_read(bus, id, TB_SECONDS(5), &frame));
        CHECK_EQ(words_value(frame), turn);
        tb_frame_release(held);
        held = frame;
        parent_reached("next"); /* it holds the old tensor */
        parent_pause("written");
        CHECK_EQ(words_value(held), turn); /* which nobody has touched */
    }
    tb_frame_release(held);
    tb_bus_close(bus);
}

static void a_receiver_that_holds_the_old_tensor(void)
{
    struct child child;
    char id[TB_POOL_ID_SIZE];
    int64_t turns = 200;
    child_start(&child, "receiver", receiver, &turns);
    tb_bus *bus = open_bus("sender");
    register_value(bus, NULL, 1, id);
    child_tell(&child, id, sizeof id);
    for (int64_t turn = 2; turn <= turns + 1; turn++) {
        child_await(&child, "next");
        CHECK_OK(write_value(bus, id, turn, TB_POLL)); /* without any wait */
        child_await(&child, "written");
        child_go(&child);
    }
    child_join(&child);
    tb_bus_close(bus);
}

/* Each reader that lags behind takes a slot of its own. */
static void more_slots_for_readers_that_lag(void)
{
    char id[TB_POOL_ID_SIZE];
    tb_frame *frames[3];
    tb_bus *bus = open_bus("owner");
    tb_register_options options = with();
    options.slots = 4;
    register_value(bus, &options, 1, id);
    for (int64_t i = 0; i < 3; i++) {
        CHECK_OK(tb_read(bus, id, TB_POLL, &frames[i]));
        CHECK_OK(write_value(bus, id, i + 2, TB_POLL));
    }
    CHECK_STATUS(write_value(bus, id, 5, TB_POLL), TB_AGAIN);
    for (int64_t i = 0; i < 3; i++) {
        CHECK_EQ(words_value(frames[i]), i + 1);
        tb_frame_release(frames[i]);
    }
    CHECK_OK(write_value(bus, id, 5, TB_POLL));
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ live */

static void a_live_frame_changes_under_its_holder(void)
{
    char id[TB_POOL_ID_SIZE];
    tb_frame *frame;
    tb_frame *second;
    tb_bus *bus = open_bus("owner");
    tb_register_options options = with();
    options.live = 1;
    register_value(bus, &options, 1, id);
    CHECK_OK(tb_read(bus, id, TB_POLL, &frame));
    CHECK_EQ(info_of(frame).live, 1);
    CHECK_EQ(info_of(frame).sequence, 1);
    for (int64_t value = 2; value <= 100; value++) {
        CHECK_OK(write_value(bus, id, value, TB_POLL)); /* held or not */
        CHECK_EQ(words_value(frame), value);
    }
    CHECK_OK(tb_frame_hold(frame, &second)); /* of what is no more: a view all the same */
    CHECK_EQ(info_of(second).sequence, 1);
    tb_frame_release(frame);
    CHECK_OK(write_value(bus, id, 101, TB_POLL));
    CHECK_EQ(words_value(second), 101);
    CHECK_OK(tb_read(bus, id, TB_POLL, &frame));
    CHECK(tb_frame_tensor(frame)->data == tb_frame_tensor(second)->data);
    CHECK_EQ(info_of(frame).sequence, 101);
    CHECK_OK(tb_free(bus, id));
    CHECK_EQ(words_value(second), 101); /* mapped for as long as it is held */
    tb_frame_release(second);
    tb_frame_release(frame);

    options.live = 0;
    register_value(bus, &options, 1, id);
    CHECK_OK(tb_read(bus, id, TB_POLL, &frame));
    CHECK_EQ(info_of(frame).live, 0);
    CHECK_OK(write_value(bus, id, 2, TB_POLL));
    CHECK_EQ(words_value(frame), 1);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

/* Another process's holder, whom nothing stops either; and its death. */
static void live_holder(void *argument)
{
    (void)argument;
    char id[TB_POOL_ID_SIZE];
    tb_frame *frame;
    int64_t value = 0;
    parent_hear(id, sizeof id);
    tb_bus *bus = open_bus("holder");
    CHECK_OK(tb_read(bus, id, TB_SECONDS(5), &frame));
    parent_reached("held");
    for (;;) {
        parent_hear(&value, sizeof value);
        CHECK_EQ(words_value(frame), value);
        parent_reached("seen");
    }
}

static void a_live_pool_waits_for_nobody(void)
{
    char id[TB_POOL_ID_SIZE];
    struct child child;
    child_start(&child, "holder", live_holder, NULL);
    tb_bus *bus = open_bus("owner");
    tb_register_options options = with();
    options.live = 1;
    register_value(bus, &options, 1, id);
    child_tell(&child, id, sizeof id);
    child_await(&child, "held");
    for (int64_t value = 2; value < 100; value++) {
        CHECK_OK(write_value(bus, id, value, TB_POLL));
        child_tell(&child, &value, sizeof value);
        child_await(&child, "seen");
    }
    child_kill(&child);
    CHECK_OK(write_value(bus, id, 100, TB_POLL));
    tb_bus_close(bus);
}

static void live_pools_have_one_slot(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = words_options("live", 8, 0);
    options.live = 1;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    CHECK_EQ(stats_of(pool).slots, 1);
    tb_pool_close(pool);
    options.slots = 2;
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_INVALID);
    CHECK_HAS(tb_last_error_text(), "a live pool has one slot");
    options.slots = 1;
    options.policy = TB_EVERY;
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_INVALID);
    options.policy = TB_LATEST;
    options.capacity_bytes = 4096;
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_INVALID);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ foreign readers */

static void foreign_readers_see_every_write(void)
{
    char id[TB_POOL_ID_SIZE];
    tb_frame *frame;
    const char *name = foreign_name("named");
    tb_bus *bus = open_bus("owner");
    tb_register_options options = with();
    options.doradma_name = name;
    options.slots = 3;
    register_value(bus, &options, 1, id);
    CHECK(strncmp(id, "pool_owner_", 11) == 0);
    struct foreign foreign = foreign_open(name);
    CHECK_EQ(foreign_value(&foreign), 1);
    CHECK_OK(tb_read(bus, id, TB_POLL, &frame));
    CHECK_EQ(info_of(frame).live, 0);
    for (int64_t value = 2; value <= 50; value++) {
        CHECK_OK(write_value(bus, id, value, TB_POLL)); /* the frame is held */
        CHECK_EQ(foreign_value(&foreign), value);
        CHECK_EQ(foreign_word(&foreign, 96), 2 * value);
        CHECK_EQ(words_value(frame), 1);
    }
    /* What is not written for us is not written for them. */
    int64_t words[WORDS] = {0};
    tb_tensor wrong = words_of(words);
    wrong.shape[0] = WORDS - 1;
    CHECK_STATUS(tb_write(bus, id, &wrong, TB_POLL), TB_E_MISMATCH);
    CHECK_EQ(foreign_value(&foreign), 50);
    CHECK_OK(tb_free(bus, id));
    CHECK(!foreign_is_there(name)); /* though a frame is held */
    CHECK_EQ(words_value(frame), 1);
    CHECK_STATUS(write_value(bus, id, 51, TB_POLL), TB_E_FREED);
    CHECK_EQ(foreign_value(&foreign), 50); /* whoever has it mapped keeps it */
    tb_frame_release(frame);
    foreign_close(&foreign);
    register_value(bus, &options, 1, id); /* the name can be had again */
    CHECK(foreign_is_there(name));
    tb_bus_close(bus);
    CHECK(!foreign_is_there(name));
}

/* A live pool is itself the file. */
static void a_live_pool_for_foreign_readers(void)
{
    char id[TB_POOL_ID_SIZE];
    tb_frame *frame;
    const char *name = foreign_name("live");
    tb_bus *bus = open_bus("owner");
    unsigned mappings = harness_memfd_count();
    tb_register_options options = with();
    options.doradma_name = name;
    options.live = 1;
    register_value(bus, &options, 1, id);
    CHECK_EQ(harness_memfd_count(), mappings); /* no other memory */
    struct foreign foreign = foreign_open(name);
    CHECK_OK(tb_read(bus, id, TB_POLL, &frame));
    CHECK_OK(write_value(bus, id, 2, TB_POLL));
    CHECK_EQ(foreign_value(&foreign), 2);
    CHECK_EQ(words_value(frame), 2);
    tb_frame_release(frame);
    foreign_close(&foreign);
    CHECK_OK(tb_free(bus, id));
    CHECK(!foreign_is_there(name));
    tb_bus_close(bus);
}

static void names_as_dora_gives_them(void)
{
    static const char *const machines[] = {NULL, "", "lab"};
    for (size_t i = 0; i < 3; i++) {
        char id[TB_POOL_ID_SIZE];
        char name[300];
        tb_bus *bus = open_bus("a_node");
        tb_register_options options = with();
        options.exported = 1;
        if (machines[i] != NULL) {
            setenv("DORA_MACHINE_ID", machines[i], 1);
        }
        register_value(bus, &options, 3, id);
        CHECK(strncmp(id, "pool_a_node_", 12) == 0);
        snprintf(name, sizeof name, "dora_pool_%sdefault_a_node_%s", i == 2 ? "lab_" : "", id + 12);
        struct foreign foreign = foreign_open(name);
        CHECK_EQ(foreign_value(&foreign), 3);
        foreign_close(&foreign);
        tb_bus_close(bus);
        CHECK(!foreign_is_there(name));
    }
}

static void freeing_process(void *argument)
{
    (void)argument;
    char id[TB_POOL_ID_SIZE];
    parent_hear(id, sizeof id);
    tb_bus *bus = open_bus("other");
    CHECK_OK(tb_free(bus, id));
    tb_bus_close(bus);
}

/* Its owner learns of it at its next write. */
static void freed_by_another_process(void)
{
    char id[TB_POOL_ID_SIZE];
    struct child other;
    child_start(&other, "other", freeing_process, NULL);
    const char *name = foreign_name("freed");
    tb_bus *bus = open_bus("owner");
    tb_register_options options = with();
    options.doradma_name = name;
    register_value(bus, &options, 1, id);
    child_tell(&other, id, sizeof id);
    child_join(&other);
    CHECK_STATUS(write_value(bus, id, 2, TB_POLL), TB_E_FREED);
    CHECK(!foreign_is_there(name));
    tb_bus_close(bus);
}

struct writer {
    tb_bus *bus;
    const char *id;
    int64_t first;
};

static void *write_many(void *argument)
{
    const struct writer *writer = argument;
    for (int64_t i = 0; i < 500; i++) {
        CHECK_OK(write_value(writer->bus, writer->id, writer->first + i, TB_SECONDS(10)));
    }
    return NULL;
}

/* Both kinds of readers see the writes of several threads in the same order. */
static void several_writers(void)
{
    char id[TB_POOL_ID_SIZE];
    pthread_t threads[3];
    struct writer writers[3];
    tb_frame *frame;
    const char *name = foreign_name("writers");
    tb_bus *bus = open_bus("owner");
    tb_register_options options = with();
    options.doradma_name = name;
    register_value(bus, &options, 1, id);
    struct foreign foreign = foreign_open(name);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 3; i++) {
            writers[i] = (struct writer){bus, id, i * 1000};
            CHECK_EQ(pthread_create(&threads[i], NULL, write_many, &writers[i]), 0);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
        }
        CHECK_OK(tb_read(bus, id, TB_POLL, &frame));
        CHECK_EQ(words_value(frame), foreign_value(&foreign));
        tb_frame_release(frame);
    }
    foreign_close(&foreign);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ refusals */

static void refused(tb_bus *bus, const tb_tensor *tensor, const tb_register_options *options,
                    tb_status status, const char *text)
{
    char id[TB_POOL_ID_SIZE] = "untouched";
    CHECK_STATUS(tb_register_with(bus, tensor, options, id), status);
    CHECK_HAS(tb_last_error_text(), text);
    CHECK_STR(id, "untouched");
}

static void what_dora_refuses_is_refused(void)
{
    static int64_t words[WORDS];
    static const char *const bad_names[] = {"", "frames", "dora_pool_a/b", "dora_pool_.."};
    tb_tensor tensor = words_of(words);
    tb_bus *bus = open_bus("owner");
    tb_register_options options = with();
    unsigned mappings = harness_memfd_count();
    for (size_t i = 0; i < sizeof bad_names / sizeof bad_names[0]; i++) {
        char text[128];
        options.doradma_name = bad_names[i];
        snprintf(text, sizeof text, "invalid tensor pool name `%s`: must be non-empty, start with",
                 bad_names[i]);
        refused(bus, &tensor, &options, TB_E_INVALID, text);
    }
    options.doradma_name = NULL;
    options.machine = "B";
    refused(bus, &tensor, &options, TB_E_UNSUPPORTED, "machine `B`");
    options.machine = "";
    options.receiver = 5;
    refused(bus, &tensor, &options, TB_E_UNSUPPORTED, "use TB_CUDA(n)");
    options.receiver = TB_CUDA(0);
    options.host = 1;
    refused(bus, &tensor, &options, TB_E_INVALID, "choose one");
    options.receiver = TB_CPU;
    options.host = 0;
    options.slots = 1;
    refused(bus, &tensor, &options, TB_E_INVALID, "1 slots");
    options.live = 1;
    options.slots = 2;
    refused(bus, &tensor, &options, TB_E_INVALID, "2 slots: a live pool has one");
    options.live = 0;
    options.max_bytes = WORDS * 8 - 1;
    refused(bus, &tensor, &options, TB_E_LIMIT, "Invalid size: 8000 bytes");
    tb_tensor empty = {.dtype = TB_U8, .ndim = 1};
    refused(bus, &empty, &options, TB_E_LIMIT, "Invalid size: 0 bytes");
    options.max_bytes = 0;
    tb_tensor nowhere = tensor;
    nowhere.data = NULL;
    refused(bus, &nowhere, &options, TB_E_INVALID, "Invalid source pointer (NULL)");
    refused(bus, NULL, &options, TB_E_INVALID, "needs a tensor");
    options.size = 4;
    refused(bus, &tensor, &options, TB_E_INVALID, "tb_register_options");
    CHECK_EQ(harness_memfd_count(), mappings); /* nothing of them is left */
    char id[TB_POOL_ID_SIZE];
    options = with();
    options.max_bytes = WORDS * 8;
    CHECK_OK(tb_register_with(bus, &tensor, &options, id));
    tb_bus_close(bus);
}

static void a_name_that_is_taken(void)
{
    static int64_t words[WORDS];
    tb_tensor tensor = words_of(words);
    char id[TB_POOL_ID_SIZE];
    char text[200];
    tb_register_options options = with();
    tb_bus *bus = open_bus("owner");
    options.doradma_name = foreign_name("taken");
    register_value(bus, &options, 1, id);
    unsigned mappings = harness_memfd_count();
    snprintf(text, sizeof text,
             "failed to create pool shared memory `%s` (name collision with another node or "
             "leftover segment)",
             options.doradma_name);
    refused(bus, &tensor, &options, TB_E_EXISTS, text);
    options.live = 1;
    refused(bus, &tensor, &options, TB_E_EXISTS, text);
    CHECK_EQ(harness_memfd_count(), mappings);
    CHECK(foreign_is_there(options.doradma_name)); /* the first one's */
    CHECK_OK(write_value(bus, id, 2, TB_POLL));
    /* A file that was made in vain is none. */
    options = with();
    options.doradma_name = foreign_name("vain");
    options.slots = 257;
    refused(bus, &tensor, &options, TB_E_LIMIT, "257 slots");
    CHECK(!foreign_is_there(options.doradma_name));
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(a_receiver_that_holds_the_old_tensor, 30),
    TEST(more_slots_for_readers_that_lag, 10),
    TEST(a_live_frame_changes_under_its_holder, 20),
    TEST(a_live_pool_waits_for_nobody, 20),
    TEST(live_pools_have_one_slot, 10),
    TEST(foreign_readers_see_every_write, 20),
    TEST(a_live_pool_for_foreign_readers, 20),
    TEST(names_as_dora_gives_them, 20),
    TEST(freed_by_another_process, 20),
    TEST(several_writers, 60),
    TEST(what_dora_refuses_is_refused, 20),
    TEST(a_name_that_is_taken, 20),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
