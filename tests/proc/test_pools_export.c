/* Pools for foreign readers: a file /dev/shm/dora_pool_*, read here as dora's tensor-pool would,
 * with nothing of the library; its end with its owner, in order or by a kill. */
#include "proc/foreign.h"
#include "proc/pool_support.h"

#define WORDS 30000

/* 1: out holds a complete frame; 0: "try again". */
static int foreign_read(const struct foreign *foreign, int64_t out[WORDS], uint64_t *generation)
{
    CHECK(memcmp(foreign->base, "DORADMA", 8) == 0);
    uint64_t json_bytes = foreign_word(foreign, 8);
    uint64_t data_offset = foreign_word(foreign, 16);
    char json[512];
    CHECK_LT(json_bytes, sizeof json);
    memcpy(json, foreign->base + 256, json_bytes);
    json[json_bytes] = '\0';
    CHECK_STR(json, "{\"size\": 240000, \"dtype\": \"torch.int64\", \"shape\": [30000], "
                    "\"pinned_type\": \"cpu\"}");
    CHECK_LE(data_offset + 240000, foreign->bytes);
    CHECK_EQ(data_offset % 256, 0);
    CHECK_EQ(foreign_word(foreign, 24), 0);
    *generation = foreign_word(foreign, 96);
    if (*generation % 2 != 0) {
        return 0;
    }
    for (size_t i = 0; i < WORDS; i++) {
        out[i] = (int64_t)__atomic_load_n(
            (const uint64_t *)(const void *)(foreign->base + data_offset) + i, __ATOMIC_RELAXED);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return foreign_word(foreign, 96) == *generation;
}

static tb_pool *register_export(tb_bus *bus, const char *name)
{
    tb_pool *pool;
    tb_pool_options options = words_options("frames", WORDS, 1);
    options.doradma_name = name;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    return pool;
}

static void a_foreign_reader_reads_what_is_written(void)
{
    const char *name = foreign_name("read");
    int64_t *words = malloc(WORDS * sizeof *words);
    uint64_t generation;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_export(bus, name);
    struct foreign foreign = foreign_open(name);
    /* Nothing was written: zeros must not look like a frame. */
    CHECK_EQ(foreign_read(&foreign, words, &generation), 0);
    for (int64_t value = 1; value <= 5; value++) {
        CHECK_OK(write_words(pool, value, TB_POLL, NULL));
        CHECK_EQ(foreign_read(&foreign, words, &generation), 1);
        CHECK_EQ(generation, 2 * value);
        CHECK_EQ(words[0], value);
        CHECK_EQ(words[WORDS - 1], value);
    }
    /* While it is written, and after the write was given up, there is no frame. */
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_EQ(foreign_read(&foreign, words, &generation), 0);
    tb_loan_cancel(loan);
    CHECK_EQ(foreign_read(&foreign, words, &generation), 0);
    CHECK_OK(write_words(pool, 6, TB_POLL, NULL));
    CHECK_EQ(foreign_read(&foreign, words, &generation), 1);
    CHECK_EQ(words[0], 6);
    /* Our own readers read the same pool. */
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *frame;
    CHECK_OK(tb_reader_newest(reader, TB_POLL, &frame));
    CHECK_EQ(words_value(frame), 6);
    tb_frame_release(frame);
    tb_reader_close(reader);
    tb_pool_close(pool);
    CHECK(!foreign_is_there(name));
    foreign_close(&foreign);
    free(words);
    tb_bus_close(bus);
}

/* Until the parent says a word. The pauses leave a foreign reader time for a whole frame. */
static void write_all_the_time(void *argument)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_export(bus, argument);
    parent_reached("registered");
    for (int64_t value = 1; !parent_has_spoken(); value++) {
        CHECK_OK(write_words(pool, value, TB_SECONDS(10), NULL));
        harness_sleep_us(value % 100);
    }
    tb_bus_close(bus);
}

static void a_foreign_reader_never_takes_a_torn_frame(void)
{
    const char *name = foreign_name("torn");
    int64_t *words = malloc(WORDS * sizeof *words);
    struct child owner;
    char done = 1;
    unsigned long taken = 0, wanted = harness_scale(2000, 200000);
    int64_t end = harness_now_ns() + TB_SECONDS(40);
    uint64_t generation = 0, before = 0;
    child_start(&owner, "owner", write_all_the_time, (void *)(uintptr_t)name);
    child_await(&owner, "registered");
    struct foreign foreign = foreign_open(name);
    while (taken < wanted && harness_now_ns() < end) {
        if (!foreign_read(&foreign, words, &generation)) {
            continue;
        }
        CHECK_LE(before, generation);
        before = generation;
        for (size_t i = 0; i < WORDS; i++) {
            if (words[i] != (int64_t)(generation / 2)) {
                FAIL("word %zu of generation %llu is %lld", i, (unsigned long long)generation,
                     (long long)words[i]);
            }
        }
        taken++;
    }
    CHECK_LE(100, taken); /* on a busy machine fewer than wanted */
    child_tell(&owner, &done, sizeof done);
    child_join(&owner);
    CHECK(!foreign_is_there(name));
    foreign_close(&foreign);
    free(words);
}

static void register_and_stay(void *argument)
{
    tb_bus *bus = open_bus(NULL);
    tb_pool *pool = register_export(bus, argument);
    CHECK_OK(write_words(pool, 7, TB_POLL, NULL));
    char word;
    parent_reached("registered");
    parent_hear(&word, sizeof word);
    tb_bus_close(bus);
}

static void files_of_killed_owners_are_swept_and_others_are_not(void)
{
    char dead[96], live[96], dora[160];
    struct child victim, survivor;
    char word = 1;
    snprintf(dead, sizeof dead, "%s", foreign_name("dead"));
    snprintf(live, sizeof live, "%s", foreign_name("live"));
    snprintf(dora, sizeof dora, "/dev/shm/%s", foreign_name("dora"));
    child_start(&victim, "victim", register_and_stay, dead);
    child_start(&survivor, "survivor", register_and_stay, live);
    child_await(&victim, "registered");
    child_await(&survivor, "registered");
    /* A pool of dora's own has no lock that would tell: it is none of our business. */
    int fd = open(dora, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, "DORADMA", 8), 8);
    CHECK(ftruncate(fd, 600) == 0);
    close(fd);
    child_kill(&victim);
    CHECK(foreign_is_there(dead));

    tb_bus *bus = open_bus("next");
    tb_pool *pool = register_export(bus, foreign_name("next"));
    CHECK(!foreign_is_there(dead));
    CHECK(foreign_is_there(live));
    CHECK(foreign_is_there(dora + strlen("/dev/shm/")));
    unlink(dora);
    /* The name can be had again at once. */
    tb_pool *again;
    tb_pool_options options = words_options("again", WORDS, 1);
    options.doradma_name = dead;
    CHECK_OK(tb_pool_register(bus, &options, &again));
    tb_pool_close(again);
    tb_pool_close(pool);
    tb_bus_close(bus);
    child_tell(&survivor, &word, sizeof word);
    child_join(&survivor);
    CHECK(!foreign_is_there(live));
}

static void what_cannot_be_exported_is_refused(void)
{
    static const char *const bad[] = {"", "frames", "dora_pool_a/b", "dora_pool_..",
                                      "/dora_pool_x"};
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = NULL;
    tb_pool_options options = words_options("frames", WORDS, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        options.doradma_name = bad[i];
        CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_INVALID);
    }
    options.doradma_name = foreign_name("bad");
    options.slots = 2;
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_INVALID);
    options.slots = 1;
    options.capacity_bytes = WORDS * 8 * 2;
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_INVALID);
    CHECK(!foreign_is_there(options.doradma_name));

    options.capacity_bytes = 0;
    options.slots = 0; /* the default is the one that is possible */
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    CHECK_EQ(stats_of(pool).slots, 1);
    tb_pool *second;
    options.name = "second";
    CHECK_STATUS(tb_pool_register(bus, &options, &second), TB_E_EXISTS);
    CHECK_HAS(tb_last_error_text(), options.doradma_name);
    CHECK(foreign_is_there(options.doradma_name));
    CHECK_OK(tb_pool_free(pool));
    tb_pool_close(pool);
    CHECK(!foreign_is_there(options.doradma_name));
    tb_bus_close(bus);
}

/* Anybody may make files there: what is no file must not hold up an export. */
static void a_pipe_in_the_way_holds_nobody_up(void)
{
    char path[160];
    snprintf(path, sizeof path, "/dev/shm/%s", foreign_name("pipe"));
    CHECK_EQ(mkfifo(path, 0600), 0);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = words_options("frames", WORDS, 1);
    options.doradma_name = foreign_name("beside_a_pipe");
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    CHECK_EQ(unlink(path), 0);
    tb_bus_close(bus);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_foreign_reader_reads_what_is_written, 20),
        TEST(a_foreign_reader_never_takes_a_torn_frame, 60),
        TEST(files_of_killed_owners_are_swept_and_others_are_not, 20),
        TEST(what_cannot_be_exported_is_refused, 20),
        TEST(a_pipe_in_the_way_holds_nobody_up, 10),
    };
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
