/* When readers take their page faults: all of them while attaching, or each at the first touch. */
#include "proc/adopt_support.h"

#include <sys/resource.h>

#define WORDS ((int64_t)1 << 21) /* 16 MiB */
#define SLOTS 4
/* The kernel maps at most so much around a fault: 64 KiB, or a huge page where memfds have them. */
#define AROUND_BYTES ((int64_t)2 << 20)
#define POOL_FAULTS (WORDS * 8 * SLOTS / AROUND_BYTES)
#define FRAME_FAULTS (WORDS * 8 / AROUND_BYTES)
/* What attaching takes beside the slots; AddressSanitizer's own pages are counted, too. */
#if defined(__SANITIZE_ADDRESS__)
#define FEW 256
#else
#define FEW 48
#endif

static long faults(void)
{
    struct rusage usage;
    CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt;
}

static void owner(void *argument)
{
    (void)argument;
    char id[TB_POOL_ID_SIZE];
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", WORDS, SLOTS);
    int64_t *words = calloc((size_t)WORDS, sizeof *words);
    struct memory memory;
    tb_pool *adopted;
    memory_make(&memory, (size_t)WORDS * 8 * SLOTS);
    tb_adoption adoption = memory_adoption(&memory, 0, 0, NULL);
    adoption.release = NULL;
    CHECK_OK(register_adopted(bus, "adopted", WORDS, SLOTS, &adoption, &adopted));
    tb_tensor tensor = {
        .data = words, .device = TB_CPU, .dtype = TB_I64, .ndim = 1, .shape = {WORDS}};
    CHECK(words != NULL);
    CHECK_OK(tb_pool_write(pool, &tensor, TB_SECONDS(1), NULL));
    CHECK_OK(tb_pool_write(adopted, &tensor, TB_SECONDS(1), NULL));
    CHECK_OK(tb_register(bus, &tensor, id));
    CHECK_OK(tb_write(bus, id, &tensor, TB_SECONDS(1)));
    parent_tell(id, sizeof id);
    parent_pause("open");
    free(words);
    tb_bus_close(bus);
    memory_drop(&memory);
}

/* Faults of attaching and of the first pass over a frame. */
static void count(tb_bus *bus, const char *path, uint32_t no_prefault, long *attaching,
                  long *reading)
{
    tb_reader_options options = {.size = sizeof options, .no_prefault = no_prefault};
    tb_reader *reader;
    tb_frame *frame;
    long before = faults();
    CHECK_OK(tb_reader_open(bus, path, &options, &reader));
    *attaching = faults() - before;
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(1), &frame));
    before = faults();
    CHECK_EQ(words_value(frame), 0);
    *reading = faults() - before;
    tb_frame_release(frame);
    tb_reader_close(reader);
}

static void begin(struct child *child, char id[TB_POOL_ID_SIZE])
{
    child_start(child, "owner", owner, NULL);
    child_hear(child, id, TB_POOL_ID_SIZE);
    child_await(child, "open");
}

static void end(struct child *child, tb_bus *bus)
{
    child_go(child);
    tb_bus_close(bus);
    child_join(child);
}

static void a_reader_takes_its_faults_when_it_attaches(void)
{
    struct child child;
    char id[TB_POOL_ID_SIZE];
    long attaching;
    long reading;
    begin(&child, id);
    tb_bus *bus = open_bus("reader");
    count(bus, "owner/frames", 0, &attaching, &reading);
    CHECK(attaching >= POOL_FAULTS);
    CHECK(reading < FRAME_FAULTS);
    count(bus, "owner/frames", 1, &attaching, &reading);
    CHECK(attaching < FEW);
    CHECK(reading >= FRAME_FAULTS);
    end(&child, bus);
}

/* The kernel does not count what it maps by itself when it is asked to. */
static void adopted_memory_is_mapped_as_the_reader_wants_it(void)
{
    struct child child;
    char id[TB_POOL_ID_SIZE];
    long attaching;
    long reading;
#if defined(__SANITIZE_ADDRESS__)
    harness_skip("AddressSanitizer's shadow of what is read is counted, too");
#endif
    begin(&child, id);
    tb_bus *bus = open_bus("reader");
    count(bus, "owner/adopted", 0, &attaching, &reading);
    CHECK(reading < FRAME_FAULTS);
    count(bus, "owner/adopted", 1, &attaching, &reading);
    CHECK(attaching < FEW);
    CHECK(reading >= FRAME_FAULTS);
    end(&child, bus);
}

/* Whoever attaches on the way of a frame does not wait for pages that it may never look at. */
static void reading_by_id_or_handle_does_not_map_the_whole_pool(void)
{
    struct child child;
    char id[TB_POOL_ID_SIZE];
    tb_frame *frame;
    begin(&child, id);
    tb_bus *bus = open_bus("reader");
    long before = faults();
    CHECK_OK(tb_read(bus, id, TB_SECONDS(1), &frame));
    CHECK(faults() - before < FEW);
    tb_frame_info info = {.size = sizeof info};
    CHECK_OK(tb_frame_get_info(frame, &info));
    tb_frame_release(frame);
    tb_bus_close(bus);
    bus = open_bus("reader");
    before = faults();
    CHECK_OK(tb_frame_open(bus, &info.handle, TB_SECONDS(1), &frame));
    CHECK(faults() - before < FEW);
    CHECK_EQ(words_value(frame), 0);
    tb_frame_release(frame);
    end(&child, bus);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_reader_takes_its_faults_when_it_attaches, 20),
        TEST(adopted_memory_is_mapped_as_the_reader_wants_it, 20),
        TEST(reading_by_id_or_handle_does_not_map_the_whole_pool, 20),
    };
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
