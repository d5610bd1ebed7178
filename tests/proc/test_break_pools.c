/* Bad days of pools: opens that wait, readers that churn, frees and closes in the wrong moment, and
 * peers that stop or lie half way. Each of these went wrong once. */
#include "proc/hostile.h"

#include <pthread.h>
#include <signal.h>

#include "endpoint/lifeline.h"
#include "pool/state.h"

/* ------------------------------------------------------------------ an owner that answers */

struct answer {
    uint32_t fds;
    uint32_t memfds;
    uint32_t readers;
};

static struct answer ask(struct child *owner)
{
    struct answer answer;
    child_tell(owner, "?", 1);
    child_hear(owner, &answer, sizeof answer);
    return answer;
}

static void answer_until_quit(tb_pool *pool)
{
    for (char order = '?'; order != 'q';) {
        parent_hear(&order, 1);
        struct answer answer = {harness_fd_count(), harness_memfd_count(), stats_of(pool).readers};
        if (order == '?') {
            parent_tell(&answer, sizeof answer);
        }
    }
}

static void quit(struct child *owner)
{
    child_tell(owner, "q", 1);
    child_join(owner);
}

static void plain_owner(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 64, 4);
    CHECK_OK(write_words(pool, 1, 0, NULL));
    parent_reached("open");
    answer_until_quit(pool);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ opens that wait */

static void *open_what_never_comes(void *argument)
{
    tb_reader *reader;
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_SECONDS(2)};
    CHECK_STATUS(tb_reader_open(argument, "owner/never", &options, &reader), TB_E_NOT_FOUND);
    return NULL;
}

/* A thread that waits for a pool keeps no other thread from opening one of the same process. */
static void open_that_waits_holds_up_nobody(void)
{
    struct child owner;
    pthread_t waiting[3];
    child_start(&owner, "owner", plain_owner, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&waiting[i], NULL, open_what_never_comes, bus) == 0);
    }
    harness_sleep_us(100000);
    int64_t begun = harness_now_ns();
    for (int i = 0; i < 20; i++) {
        tb_reader *reader;
        CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &reader));
        tb_reader_close(reader);
    }
    CHECK_LT(harness_now_ns() - begun, TB_SECONDS(1));
    for (int i = 0; i < 3; i++) {
        pthread_join(waiting[i], NULL);
    }
    quit(&owner);
    tb_bus_close(bus);
}

static void late_owner(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pools[8];
    parent_pause("open");
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "late-%d", i);
        pools[i] = register_words(bus, name, 8, 2);
        CHECK_OK(write_words(pools[i], i, 0, NULL));
    }
    answer_until_quit(pools[0]);
    tb_bus_close(bus);
}

struct late {
    tb_bus *bus;
    int index;
};

static void *open_late_pool(void *argument)
{
    struct late *late = argument;
    char path[32];
    tb_frame *frame;
    snprintf(path, sizeof path, "owner/late-%d", late->index);
    tb_reader *reader = open_reader(late->bus, path);
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
    CHECK_EQ(words_value(frame), late->index);
    tb_frame_release(frame);
    tb_reader_close(reader);
    return NULL;
}

/* Many threads of one process wait on one connection for pools that all come at once: the answers
 * carry descriptors and go out one after the other. */
static void opens_that_wait_are_all_answered(void)
{
    struct child owner;
    pthread_t threads[8];
    struct late late[8];
    child_start(&owner, "owner", late_owner, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    for (int i = 0; i < 8; i++) {
        late[i] = (struct late){bus, i};
        CHECK(pthread_create(&threads[i], NULL, open_late_pool, &late[i]) == 0);
    }
    harness_sleep_us(100000);
    int64_t begun = harness_now_ns();
    child_go(&owner);
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_LT(harness_now_ns() - begun, TB_SECONDS(2) * harness_slowness());
    CHECK_WITHIN_MS(ask(&owner).readers == 0, 2000);
    quit(&owner);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ hand-overs */

/* Only the reader that was handed over ends the hand-over: a client that says so for another keeps
 * no page's descriptor open at the owner. */
static void mapped_for_a_foreign_reader(void)
{
    struct child owner;
    struct tb__pool_open_wire open = {.flags = TB__OPEN_BY_NAME, .name = "frames"};
    struct tb__reader_wire foreign = {.reader_id = 987654321};
    child_start(&owner, "owner", plain_owner, NULL);
    child_await(&owner, "open");
    uint32_t before = ask(&owner).fds;
    int fd = raw_greeted("owner");
    for (int i = 0; i < 200; i++) {
        char packet[2048];
        raw_message(fd, raw_header(TB__MSG_POOL_OPEN, sizeof open), &open, sizeof open, NULL, 0);
        raw_message(fd, raw_header(TB__MSG_POOL_MAPPED, sizeof foreign), &foreign, sizeof foreign,
                    NULL, 0);
        while (raw_receive(fd, packet, sizeof packet, 0) > 0) {
        }
        harness_sleep_us(200);
    }
    CHECK_LE(ask(&owner).fds, before + 4);
    close(fd);
    CHECK_WITHIN_MS(ask(&owner).fds == before, 2000);
    quit(&owner);
}

/* ------------------------------------------------------------------ blocked writers */

/* TB_EVERY and one slot: with a reader that takes nothing the second write waits. */
static void *write_until_freed(void *argument)
{
    tb_loan *loan;
    CHECK_STATUS(tb_pool_loan(argument, TB_FOREVER, &loan), TB_E_FREED);
    return NULL;
}

static tb_pool *register_every(tb_bus *bus, const char *name)
{
    tb_pool *pool;
    tb_pool_options options = words_options(name, 64, 1);
    options.policy = TB_EVERY;
    options.wait_readers = 1;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    return pool;
}

static void blocked_owner(void *argument)
{
    (void)argument;
    pthread_t writers[2];
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_every(bus, "frames");
    parent_reached("open");
    CHECK_OK(write_words(pool, 1, TB_SECONDS(20), NULL));
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&writers[i], NULL, write_until_freed, pool) == 0);
    }
    answer_until_quit(pool);
    for (int i = 0; i < 2; i++) {
        pthread_join(writers[i], NULL);
    }
    tb_bus_close(bus);
}

/* Readers that come and go while the owner's writers sleep leave nothing behind meanwhile. */
static void readers_churn_against_a_blocked_writer(void)
{
    struct child owner;
    child_start(&owner, "owner", blocked_owner, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    tb_reader *stalled = open_every(bus, "owner/frames");
    CHECK_WITHIN_MS(ask(&owner).readers == 1, 2000);
    struct answer before = ask(&owner);
    for (int i = 0; i < 300; i++) {
        tb_reader *reader;
        int fd;
        CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &reader));
        CHECK_OK(tb_reader_fd(reader, &fd));
        tb_reader_close(reader);
    }
    CHECK_WITHIN_MS(ask(&owner).readers == 1, 2000);
    struct answer after = ask(&owner);
    CHECK_LE(after.fds, before.fds + 4);
    CHECK_LE(after.memfds, before.memfds + 4);
    CHECK_OK(tb_reader_free_pool(stalled));
    quit(&owner);
    tb_bus_close(bus);
}

static void freed_owner(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    for (int i = 0; i < 8; i++) {
        char order;
        tb_loan *loan;
        tb_pool *pool = register_every(bus, "frames");
        CHECK_OK(write_words(pool, 1, TB_SECONDS(20), NULL));
        parent_reached("blocked");
        CHECK_STATUS(tb_pool_loan(pool, TB_FOREVER, &loan), TB_E_FREED);
        int64_t woken = harness_now_ns();
        parent_tell(&woken, sizeof woken);
        parent_hear(&order, 1);
        tb_pool_close(pool);
        parent_reached("closed"); /* until then who opens it is told that it was freed */
    }
    tb_bus_close(bus);
}

/* A writer that waits for a slot learns at once that another process had the pool freed. */
static void free_by_another_wakes_the_writer(void)
{
    struct child owner;
    int64_t latest = 0;
    child_start(&owner, "owner", freed_owner, NULL);
    tb_bus *bus = open_bus("client");
    for (int i = 0; i < 8; i++) {
        int64_t woken;
        tb_reader *reader = open_every(bus, "owner/frames");
        child_await(&owner, "blocked");
        harness_sleep_us(20000);
        int64_t begun = harness_now_ns();
        CHECK_OK(tb_reader_free_pool(reader));
        child_hear(&owner, &woken, sizeof woken);
        latest = woken - begun > latest ? woken - begun : latest;
        tb_reader_close(reader);
        child_go(&owner);
        child_await(&owner, "closed");
    }
    CHECK_LT(latest, 100000000LL * harness_slowness());
    child_join(&owner);
    tb_bus_close(bus);
}

#define WATCHERS 60

static void closing_owner(void *argument)
{
    tb_bus *bus = open_bus("owner");
    for (int i = 0; i < *(int *)argument; i++) {
        tb_loan *loan;
        tb_status status;
        tb_pool *pool = register_words(bus, "frames", 64, 2);
        parent_reached("registered");
        while ((status = tb_pool_loan(pool, 0, &loan)) == TB_OK) {
            tb_loan_cancel(loan);
        }
        CHECK_STATUS(status, TB_E_FREED);
        tb_pool_close(pool); /* while the service thread may still be about the freeing */
    }
    tb_bus_close(bus);
}

/* An owner that closes a pool in the very moment in which another process had it freed. */
static void close_right_after_free_by_another(void)
{
    struct child owner;
    int rounds = (int)harness_scale(100, 2000);
    child_start(&owner, "owner", closing_owner, &rounds);
    tb_bus *bus = open_bus("client");
    for (int i = 0; i < rounds; i++) {
        tb_reader *readers[WATCHERS]; /* all of whom the owner tells */
        child_await(&owner, "registered");
        for (int k = 0; k < WATCHERS; k++) {
            int fd;
            readers[k] = open_reader(bus, "owner/frames");
            CHECK_OK(tb_reader_fd(readers[k], &fd));
        }
        CHECK_OK(tb_reader_free_pool(readers[0]));
        for (int k = 0; k < WATCHERS; k++) {
            tb_reader_close(readers[k]);
        }
    }
    child_join(&owner);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ stopped peers */

#define MANY 600

/* An owner that is stopped hears nothing while its socket fills: what was closed meanwhile must not
 * hold up its writers for ever. */
static void stopped_owner(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = words_options("frames", 8, 1);
    options.policy = TB_EVERY;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    parent_pause("open");
    CHECK_OK(write_words(pool, 1, TB_SECONDS(5), NULL));
    parent_pause("stop me");
    /* All who are gone at once are gone after one moment's grace, not after one each. */
    CHECK_OK(write_words(pool, 2, TB_SECONDS(1) * harness_slowness(), NULL));
    tb_bus_close(bus);
}

static void closes_that_a_stopped_owner_misses(void)
{
    struct child owner;
    static tb_reader *readers[MANY];
    child_start(&owner, "owner", stopped_owner, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    open_reader(bus, "owner/frames"); /* the connection stays */
    for (int i = 0; i < MANY; i++) {
        readers[i] = open_every(bus, "owner/frames");
    }
    child_go(&owner);
    child_await(&owner, "stop me");
    child_signal(&owner, SIGSTOP);
    for (int i = 0; i < MANY; i++) {
        tb_reader_close(readers[i]);
    }
    child_signal(&owner, SIGCONT);
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(bus);
}

/* An owner that stands still half way through taking a frame away: its readers' time limits hold.
 */
static void claiming_owner(void *argument)
{
    (void)argument;
    tb_handle handle;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 8, 2);
    CHECK_OK(write_words(pool, 1, 0, &handle));
    tb__a64_store_seq(&pool->segment.gens[handle.slot], tb__gen_claimed(handle.generation));
    parent_tell(&handle, sizeof handle);
    parent_pause("claimed");
    tb__a64_store_seq(&pool->segment.gens[handle.slot], handle.generation);
    parent_pause("put back");
    tb_bus_close(bus);
}

static void owner_stands_still_in_a_claim(void)
{
    struct child owner;
    tb_handle handle;
    tb_frame *frame;
    child_start(&owner, "owner", claiming_owner, NULL);
    child_hear(&owner, &handle, sizeof handle);
    child_await(&owner, "claimed");
    tb_bus *bus = open_bus("client");
    tb_reader *reader = open_reader(bus, "owner/frames");
    int64_t begun = harness_now_ns();
    CHECK_STATUS(tb_reader_next(reader, 0, &frame), TB_AGAIN);
    CHECK_STATUS(tb_reader_newest(reader, TB_SECONDS(1) / 10, &frame), TB_AGAIN);
    CHECK_STATUS(tb_reader_frame(reader, &handle, &frame), TB_E_STALE);
    CHECK_STATUS(tb_frame_open(bus, &handle, 0, &frame), TB_E_STALE);
    CHECK_LT(harness_now_ns() - begun, TB_SECONDS(3) * harness_slowness());
    child_go(&owner);
    child_await(&owner, "put back");
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(2), &frame));
    CHECK_EQ(words_value(frame), 1);
    tb_frame_release(frame);
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ goodbyes */

static void leaving_owner(void *argument)
{
    for (int i = 0; i < *(int *)argument; i++) {
        tb_bus *bus = open_bus("owner");
        tb_pool *pool = register_words(bus, "frames", 8, 2);
        CHECK_OK(write_words(pool, i, 0, NULL));
        parent_reached("open");
        harness_sleep_us((unsigned)(i * 7 % 400));
        tb_bus_close(bus);
    }
}

/* Whoever attaches while the owner closes its bus is refused, or told goodbye: an owner that leaves
 * in good order never seems to have died or to have freed its pools. */
static void open_while_the_owner_leaves(void)
{
    struct child owner;
    int rounds = (int)harness_scale(400, 4000);
    child_start(&owner, "owner", leaving_owner, &rounds);
    tb_bus *bus = open_bus("client");
    for (int i = 0; i < rounds; i++) {
        child_await(&owner, "open");
        tb_status status;
        do {
            tb_reader *reader;
            status = tb_reader_open(bus, "owner/frames", NULL, &reader);
            if (status != TB_OK) {
                break;
            }
            tb_frame *frame;
            while ((status = tb_reader_next(reader, TB_SECONDS(1), &frame)) == TB_OK) {
                tb_frame_release(frame);
            }
            CHECK_STATUS(status, TB_CLOSED);
            tb_reader_close(reader);
        } while (!child_has_spoken(&owner, 0));
        if (status != TB_CLOSED) {
            CHECK_STATUS(status, TB_E_NOT_FOUND);
        }
    }
    child_join(&owner);
    tb_bus_close(bus);
}

/* A goodbye is heard although its sender closed without reading what it was sent. */
static void goodbye_with_unread_messages(void)
{
    int pair[2];
    uint8_t packet[TB__WIRE_MAX_BYTES];
    struct tb__msg msg;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    struct tb__packet unread = {.type = TB__MSG_CANCEL, .body = "1234", .body_bytes = 4};
    struct tb__packet goodbye = {.type = TB__MSG_GOODBYE};
    CHECK_OK(tb__packet_send(pair[0], &unread));
    CHECK_OK(tb__packet_send(pair[1], &goodbye));
    close(pair[1]);
    CHECK_OK(tb__packet_receive(pair[0], packet, &msg));
    CHECK_EQ(msg.type, TB__MSG_GOODBYE);
    CHECK_STATUS(tb__packet_receive(pair[0], packet, &msg), TB_CLOSED);
    close(pair[0]);
}

/* ------------------------------------------------------------------ silence */

/* A socket that accepts and says nothing, as that of a stopped process does. */
static int listen_in_silence(uint64_t id, const char *name)
{
    char link[300];
    char target[24];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(target, sizeof target, "%016llx.sock", (unsigned long long)id);
    snprintf(address.sun_path, sizeof address.sun_path, "%.60s/default/%.23s", harness_dir(),
             target);
    snprintf(link, sizeof link, "%s/default/%s.sock", harness_dir(), name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(fd, 100) == 0 && symlink(target, link) == 0);
    return fd;
}

static void *open_the_silent(void *argument)
{
    tb_reader *reader;
    CHECK_STATUS(tb_reader_open(argument, "silent/frames", NULL, &reader), TB_E_NOT_FOUND);
    return NULL;
}

/* A process that does not answer holds up who asks it: not those who ask others, and not one who
 * takes handles from a peer and finds many of them. */
static void silent_process_holds_up_nobody_else(void)
{
    struct child owner;
    pthread_t thread;
    child_start(&owner, "owner", plain_owner, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    int silent = listen_in_silence(0x1122334455667788, "silent");
    CHECK(pthread_create(&thread, NULL, open_the_silent, bus) == 0);
    harness_sleep_us(50000);
    int64_t begun = harness_now_ns();
    tb_reader *reader;
    CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &reader));
    CHECK_LT(harness_now_ns() - begun, TB_SECONDS(2));
    pthread_join(thread, NULL);
    begun = harness_now_ns();
    for (unsigned i = 0; i < 50; i++) {
        tb_frame *frame;
        tb_handle handle = {.generation = 2, .bytes = 8};
        uint64_t id = 0x1122334455667788;
        memcpy(handle.pool_uid, &id, sizeof id);
        handle.pool_uid[15] = (uint8_t)i; /* always another pool */
        CHECK_STATUS(tb_frame_open(bus, &handle, 0, &frame), TB_E_NOT_FOUND);
    }
    CHECK_LT(harness_now_ns() - begun, TB_SECONDS(3));
    close(silent);
    quit(&owner);
    harness_allow_sockets();
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(open_that_waits_holds_up_nobody, 20),     TEST(opens_that_wait_are_all_answered, 40),
    TEST(mapped_for_a_foreign_reader, 20),         TEST(readers_churn_against_a_blocked_writer, 30),
    TEST(free_by_another_wakes_the_writer, 40),    TEST(close_right_after_free_by_another, 60),
    TEST(closes_that_a_stopped_owner_misses, 60),  TEST(owner_stands_still_in_a_claim, 20),
    TEST(open_while_the_owner_leaves, 60),         TEST(goodbye_with_unread_messages, 10),
    TEST(silent_process_holds_up_nobody_else, 40),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
