/* Until when adopted memory is used: the word comes once, and not while anybody holds a frame; what
 * kills, forks and closing in the middle change about it. */
#include "proc/adopt_support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "pool/state.h"

#define WORDS 512
#define SLOT_BYTES (WORDS * 8)
#define SLOTS 3

/* ------------------------------------------------------------------ a reader that does as told */

enum act { LEAVE_HEIR, HOLD, LET_GO, LOOK, CHECK_SAME, NEXT_IS_FREED, NEXT_IS_DEAD, END };

static void reader_role(void *argument)
{
    (void)argument;
    enum act act;
    tb_bus *bus = open_bus("reader");
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *frame = NULL;
    int64_t value = 0;
    parent_reached("attached");
    do {
        int64_t answer = 0;
        parent_hear(&act, sizeof act);
        switch (act) {
        case LEAVE_HEIR:
            /* Past the library's fork handlers: it keeps the connection open. */
            answer = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
            if (answer == 0) {
                harness_sleep_us(1500000);
                _exit(0);
            }
            break;
        case HOLD:
            CHECK_OK(tb_reader_newest(reader, TB_SECONDS(20), &frame));
            answer = value = words_value(frame);
            break;
        case LET_GO:
            tb_frame_release(frame);
            frame = NULL;
            break;
        case LOOK:
        case CHECK_SAME:
            answer = words_value(frame);
            CHECK(act == LOOK || answer == value);
            break;
        case NEXT_IS_FREED:
            CHECK_STATUS(tb_reader_newest(reader, TB_POLL, &frame), TB_E_FREED);
            break;
        case NEXT_IS_DEAD:
            CHECK_STATUS(tb_reader_newest(reader, TB_SECONDS(20), &frame), TB_E_OWNER_DIED);
            break;
        case END:
            break;
        }
        parent_tell(&answer, sizeof answer);
    } while (act != END);
    tb_bus_close(bus);
}

static int64_t tell(struct child *reader, enum act act)
{
    int64_t answer;
    child_tell(reader, &act, sizeof act);
    child_hear(reader, &answer, sizeof answer);
    return answer;
}

/* ------------------------------------------------------------------ the owner */

struct owner {
    struct memory memory;
    struct releases releases;
    tb_bus *bus;
    tb_pool *pool;
};

static void owner_begin_with(struct owner *owner, uint32_t slots, uint32_t live)
{
    *owner = (struct owner){.releases = {.count = 0}};
    owner->bus = open_bus("owner");
    memory_make(&owner->memory, SLOTS * SLOT_BYTES);
    owner->releases.spoil = &owner->memory;
    tb_adoption adoption = memory_adoption(&owner->memory, 0, 0, &owner->releases);
    adoption.data = owner->memory.base;
    tb_pool_options options = words_options("frames", WORDS, slots);
    options.adopt = &adoption;
    options.live = live;
    CHECK_OK(tb_pool_register(owner->bus, &options, &owner->pool));
    CHECK_OK(write_words(owner->pool, 7, TB_POLL, NULL));
}

static void owner_begin(struct owner *owner)
{
    owner_begin_with(owner, SLOTS, 0);
}

/* With a reader that holds a frame. It is forked before the owner uses the library. */
static void begin_with_holder(struct owner *owner, struct child *reader)
{
    child_start(reader, "reader", reader_role, NULL);
    owner_begin(owner);
    child_await(reader, "attached");
    CHECK_EQ(tell(reader, HOLD), 7);
}

static void owner_end(struct owner *owner)
{
    tb_bus_close(owner->bus);
    CHECK_EQ(owner->releases.count, 1);
    CHECK_EQ(owner->releases.process, getpid());
    memory_drop(&owner->memory);
}

/* ------------------------------------------------------------------ held, and let go */

static void the_word_comes_when_the_last_frame_is_released(void)
{
    struct child reader;
    struct owner owner;
    begin_with_holder(&owner, &reader);
    unsigned fds = harness_fd_count();
    tb_pool_close(owner.pool);
    CHECK_EQ(owner.releases.count, 0);
    /* It may be written by now, were it not held: the reader looks again and again. */
    for (int i = 0; i < 100; i++) {
        tell(&reader, CHECK_SAME);
    }
    tell(&reader, NEXT_IS_FREED);
    CHECK_EQ(owner.releases.count, 0);
    tell(&reader, LET_GO);
    CHECK_WITHIN_MS(owner.releases.count == 1, 2000);
    CHECK(!pthread_equal(owner.releases.thread, pthread_self()));
    CHECK_EQ(((int64_t *)(void *)owner.memory.base)[3], -4); /* the callback may write it */
    tell(&reader, NEXT_IS_FREED);
    CHECK_LT(harness_fd_count(), fds);
    tell(&reader, END);
    child_join(&reader);
    owner_end(&owner);
}

/* A live pool's slot goes on to other generations under who holds it. */
static void a_live_pool_s_holder_counts_whatever_was_written_since(void)
{
    struct child reader;
    struct owner owner;
    child_start(&reader, "reader", reader_role, NULL);
    owner_begin_with(&owner, 1, 1);
    child_await(&reader, "attached");
    CHECK_EQ(tell(&reader, HOLD), 7);
    CHECK_OK(write_words(owner.pool, 8, TB_POLL, NULL));
    CHECK_OK(write_words(owner.pool, 9, TB_POLL, NULL));
    CHECK_EQ(tell(&reader, LOOK), 9);
    tb_pool_close(owner.pool);
    harness_sleep_us(30000);
    CHECK_EQ(tell(&reader, LOOK), 9);
    CHECK_EQ(owner.releases.count, 0);
    tell(&reader, LET_GO);
    CHECK_WITHIN_MS(owner.releases.count == 1, 2000);
    tell(&reader, END);
    child_join(&reader);
    owner_end(&owner);
}

/* Freed by another process: the word waits for the owner's own close. */
static void a_pool_that_a_reader_frees_is_its_owner_s_until_he_closes_it(void)
{
    struct owner owner;
    tb_loan *loan;
    owner_begin(&owner);
    tb_bus *bus = open_bus("other");
    tb_reader *reader = open_reader(bus, "owner/frames");
    CHECK_OK(tb_pool_loan(owner.pool, TB_POLL, &loan));
    CHECK_OK(tb_reader_free_pool(reader));
    tb_bus_close(bus);
    CHECK_EQ(stats_of(owner.pool).freed, 1);
    CHECK_EQ(owner.releases.count, 0);
    fill_words(tb_loan_tensor(loan), 8);
    CHECK_STATUS(tb_loan_publish(loan, NULL), TB_E_FREED);
    tb_pool_close(owner.pool);
    CHECK_EQ(owner.releases.count, 1);
    owner_end(&owner);
}

/* ------------------------------------------------------------------ deaths */

static void a_reader_s_death_ends_its_claims(void)
{
    struct child reader;
    struct owner owner;
    begin_with_holder(&owner, &reader);
    tb_pool_close(owner.pool);
    harness_sleep_us(5000);
    CHECK_EQ(owner.releases.count, 0);
    child_kill(&reader);
    CHECK_WITHIN_MS(owner.releases.count == 1, 2000);
    owner_end(&owner);
}

/* ... also when a process that it has left behind keeps its connection: its page tells. */
static void a_reader_s_death_is_seen_without_a_hang_up(void)
{
    struct child reader;
    struct owner owner;
    begin_with_holder(&owner, &reader);
    pid_t heir = (pid_t)tell(&reader, LEAVE_HEIR);
    tb_pool_close(owner.pool);
    child_kill(&reader);
    CHECK_WITHIN_MS(owner.releases.count == 1, 700);
    CHECK_EQ(kill(heir, 0), 0);
    owner_end(&owner);
    harness_sleep_us(1500000); /* until the heir has ended, too */
}

static void owner_role(void *argument)
{
    struct owner owner;
    (void)argument;
    owner_begin(&owner);
    parent_pause("published");
}

/* The pages stay as long as somebody maps them. */
static void an_owner_s_death_leaves_readers_their_frames(void)
{
    struct child owner;
    tb_frame *frame;
    child_start(&owner, "owner", owner_role, NULL);
    child_await(&owner, "published");
    tb_bus *bus = open_bus("reader");
    tb_reader *reader = open_reader(bus, "owner/frames");
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
    child_kill(&owner);
    CHECK_EQ(words_value(frame), 7);
    tb_frame *again;
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(20), &again), TB_E_OWNER_DIED);
    CHECK_EQ(words_value(frame), 7);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

/* A child of the owner has the memory, and none of the duties. */
static void a_forked_child_tells_nobody(void)
{
    struct owner owner;
    tb_pool *pool;
    harness_before_fork();
    owner_begin(&owner);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        tb_adoption adoption = memory_adoption(&owner.memory, 0, 0, &owner.releases);
        int fine = register_adopted(owner.bus, "mine", WORDS, 1, &adoption, &pool) == TB_E_FORKED;
        tb_pool_close(owner.pool);
        tb_bus_close(owner.bus);
        fine = fine && owner.releases.count == 0;
        fine = fine && ((int64_t *)(void *)owner.memory.base)[5] == 7; /* the user's mapping */
        _exit(fine ? 0 : 1);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(owner.releases.count, 0);
    tb_pool_close(owner.pool);
    CHECK_EQ(owner.releases.count, 1);
    owner_end(&owner);
}

/* ------------------------------------------------------------------ the bus closes */

static void *let_go_later(void *argument)
{
    harness_sleep_us(100000);
    tell(argument, LET_GO);
    return NULL;
}

/* With the pool open, and with the pool closed before: the bus's close waits for the reader. */
static void closing_the_bus_waits_for_holders(void)
{
    for (int closed = 0; closed < 2; closed++) {
        struct child reader;
        struct owner owner;
        pthread_t thread;
        begin_with_holder(&owner, &reader);
        if (closed) {
            tb_pool_close(owner.pool);
        }
        CHECK_EQ(pthread_create(&thread, NULL, let_go_later, &reader), 0);
        int64_t before_ns = harness_now_ns();
        owner_end(&owner);
        CHECK_LE(100000000, harness_now_ns() - before_ns);
        pthread_join(thread, NULL);
        tell(&reader, END);
        child_join(&reader);
    }
}

/* Not for ever: then the memory is not given back, and the user is told by whom it is used. */
static void a_holder_that_never_lets_go_is_named(void)
{
    struct child reader;
    struct owner owner;
    begin_with_holder(&owner, &reader);
    tb_pool_close(owner.pool);
    int64_t before_ns = harness_now_ns();
    tb_bus_close(owner.bus);
    CHECK_LE(9000000000, harness_now_ns() - before_ns);
    CHECK_EQ(owner.releases.count, 0);
    CHECK_EQ(harness_log_count("pool `frames` is closed, but its adopted memory is still used"), 1);
    CHECK_EQ(harness_log_count("`reader` (pid"), 1);
    tell(&reader, CHECK_SAME);
    tell(&reader, LET_GO);
    tell(&reader, END);
    child_join(&reader);
    CHECK_EQ(owner.releases.count, 0);
    memory_drop(&owner.memory);
}

/* ------------------------------------------------------------------ races */

/* Takes frames as fast as it can; no word of one may ever be negative: that is what the memory is
 * filled with after its end. */
static void greedy_reader(void *argument)
{
    unsigned long rounds = *(unsigned long *)argument;
    unsigned long frames = 0;
    tb_bus *bus = open_bus("greedy");
    for (unsigned long i = 0; i < rounds; i++) {
        tb_reader *reader = open_reader(bus, "owner/frames");
        tb_status status = TB_OK;
        tb_frame *kept = NULL;
        tb_handle handle = {.generation = 0};
        parent_reached("attached");
        while (status >= 0) {
            tb_frame *frame;
            status = handle.generation != 0 && frames % 3 != 0
                         ? tb_reader_frame(reader, &handle, &frame)
                         : tb_reader_newest(reader, TB_MILLIS(1), &frame);
            if (status == TB_OK) {
                CHECK_LT(0, words_value(frame));
                tb_frame_release(kept);
                kept = frame;
                handle = info_of(frame).handle;
                frames++;
            } else if (status == TB_E_STALE || status == TB_E_BUSY) {
                handle.generation = 0;
                status = TB_OK;
            }
            if (kept != NULL) {
                CHECK_LT(0, words_value(kept));
            }
        }
        CHECK_STATUS(status, TB_E_FREED);
        tb_frame_release(kept);
        tb_reader_close(reader);
        parent_pause("again");
    }
    CHECK_LT(0, frames);
    tb_bus_close(bus);
}

static void nobody_gets_a_frame_once_the_memory_is_free(void)
{
    unsigned long rounds = harness_scale(40, 2000);
    struct child reader;
    child_start(&reader, "greedy", greedy_reader, &rounds);
    for (unsigned long i = 0; i < rounds; i++) {
        struct owner owner;
        owner_begin(&owner);
        child_await(&reader, "attached");
        for (int64_t n = 1; n < 30 + (int64_t)(i % 7); n++) {
            (void)!write_words(owner.pool, n, TB_MILLIS(5), NULL);
        }
        tb_pool_close(owner.pool);
        CHECK_WITHIN_MS(owner.releases.count == 1, 5000);
        child_await(&reader, "again");
        owner_end(&owner);
        child_go(&reader);
    }
    child_join(&reader);
}

/* A reader that has looked whether the pool is freed, and leases only after it was: as fast as it
 * can, by the protocol alone. */
struct late {
    tb_reader *reader;
    _Atomic int quit;
    unsigned long held, torn;
};

static void *late_reader(void *argument)
{
    struct late *late = argument;
    const struct tb__segment *segment = &late->reader->segment;
    struct tb__a64 *entry = tb__page_entry(late->reader->page.shm, 0);
    tb__lease_note_entry(late->reader->page.shm, 0);
    while (!late->quit) {
        for (uint32_t s = 0; s < SLOTS; s++) {
            const volatile int64_t *words =
                (const volatile int64_t *)(const void *)tb__segment_slot(segment, s);
            uint64_t g = tb__a64_load_acquire(&segment->gens[s]);
            if (tb__gen_is_frame(g) &&
                tb__lease_try(&segment->gens[s], entry, g) == TB__LEASE_HELD) {
                late->held++;
                int64_t before = words[0];
                if (late->held % 256 == 0) {
                    harness_sleep_us(1);
                }
                late->torn += before < 0 || words[0] < 0 || words[WORDS - 1] < 0;
            }
            tb__a64_store_seq(entry, 0);
            for (int i = 0; i < 300; i++) { /* it would never end otherwise */
                tb__pause();
            }
        }
    }
    return NULL;
}

static void nobody_leases_a_slot_once_the_memory_is_free(void)
{
    unsigned long rounds = harness_scale(400, 20000);
    unsigned long held = 0;
    tb_bus *other = open_bus("other");
    for (unsigned long i = 0; i < rounds; i++) {
        struct owner owner;
        struct late late = {.quit = 0};
        pthread_t thread;
        owner_begin(&owner);
        for (int64_t n = 1; n <= SLOTS; n++) {
            CHECK_OK(write_words(owner.pool, n, TB_POLL, NULL));
        }
        late.reader = open_reader(other, "owner/frames");
        CHECK_EQ(pthread_create(&thread, NULL, late_reader, &late), 0);
        harness_sleep_us((unsigned)(i % 50));
        tb_pool_close(owner.pool);
        CHECK_WITHIN_MS(owner.releases.count == 1, 5000);
        late.quit = 1;
        pthread_join(thread, NULL);
        CHECK_EQ(late.torn, 0);
        held += late.held;
        for (uint32_t s = 0; s < SLOTS; s++) {
            CHECK(!tb__gen_is_frame(tb__a64_load_seq(&late.reader->segment.gens[s])));
        }
        tb_reader_close(late.reader);
        owner_end(&owner);
    }
    CHECK_LT(0, held);
    tb_bus_close(other);
}

/* Registered and ended again and again, with a reader each time: nothing is left. */
static void nothing_piles_up(void)
{
    unsigned fds = 0;
    tb_bus *bus = open_bus("owner");
    tb_bus *other = open_bus("other");
    struct memory memory;
    struct releases releases = {0};
    memory_make(&memory, SLOTS * SLOT_BYTES);
    for (int i = 0; i < 200; i++) {
        tb_pool *pool;
        tb_frame *frame;
        tb_adoption adoption = memory_adoption(&memory, 0, 0, &releases);
        adoption.data = memory.base;
        CHECK_OK(register_adopted(bus, "frames", WORDS, SLOTS, &adoption, &pool));
        CHECK_OK(write_words(pool, i + 1, TB_POLL, NULL));
        tb_reader *reader = open_reader(other, "owner/frames");
        CHECK_OK(tb_reader_newest(reader, TB_POLL, &frame));
        CHECK_EQ(words_value(frame), i + 1);
        if (i % 2 == 0) {
            tb_reader_close(reader); /* the frame goes with it */
            tb_pool_close(pool);
        } else {
            tb_pool_close(pool);
            CHECK_EQ(releases.count, i);
            tb_reader_close(reader);
        }
        CHECK_WITHIN_MS(releases.count == i + 1, 2000);
        if (i == 10) {
            fds = harness_fd_count();
        }
    }
    CHECK_WITHIN_MS(harness_fd_count() <= fds, 2000);
    CHECK_EQ(harness_memfd_count(), 1 + 2); /* the memory, two doorbells */
    tb_bus_close(other);
    tb_bus_close(bus);
    memory_drop(&memory);
}

static const struct test tests[] = {
    TEST(the_word_comes_when_the_last_frame_is_released, 30),
    TEST(a_live_pool_s_holder_counts_whatever_was_written_since, 30),
    TEST(a_pool_that_a_reader_frees_is_its_owner_s_until_he_closes_it, 30),
    TEST(a_reader_s_death_ends_its_claims, 30),
    TEST(a_reader_s_death_is_seen_without_a_hang_up, 30),
    TEST(an_owner_s_death_leaves_readers_their_frames, 30),
    TEST(a_forked_child_tells_nobody, 30),
    TEST(closing_the_bus_waits_for_holders, 30),
    TEST(a_holder_that_never_lets_go_is_named, 60),
    TEST(nobody_gets_a_frame_once_the_memory_is_free, 120),
    TEST(nobody_leases_a_slot_once_the_memory_is_free, 120),
    TEST(nothing_piles_up, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
