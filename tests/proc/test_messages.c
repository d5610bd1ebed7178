/* What a user reads when something fails: the thing, the value, the way out. And that success, and
 * "nothing new", leave the last error alone although probes inside them have failed. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "proc/pool_support.h"

#define MOST_WORDS 5

struct situation {
    const char *name;
    tb_status (*provoke)(tb_bus *bus);
    tb_status status;
    const char *words[MOST_WORDS];
};

static void check_words(const char *name, const char *const words[MOST_WORDS])
{
    const char *text = tb_last_error_text();
    for (int i = 0; i < MOST_WORDS && words[i] != NULL; i++) {
        if (strstr(text, words[i]) == NULL) {
            FAIL("%s: `%s` lacks `%s`", name, text, words[i]);
        }
    }
    size_t length = strlen(text);
    if (length == 0 || strchr(",;:", text[length - 1]) != NULL) {
        FAIL("%s: `%s` is no full sentence", name, text);
    }
}

/* ---- slots ---- */

static tb_status all_slots_held(tb_bus *bus)
{
    tb_pool *pool = register_words(bus, "front", 16, 2);
    tb_reader *reader = open_reader(bus, "cam/front");
    tb_frame *frame;
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_OK(write_words(pool, 2, TB_POLL, NULL));
    return write_words(pool, 3, TB_POLL, NULL);
}

static tb_status all_slots_on_loan(tb_bus *bus)
{
    tb_pool *pool = register_words(bus, "front", 16, 1);
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    return write_words(pool, 1, TB_POLL, NULL);
}

static tb_pool *register_every(tb_bus *bus, uint32_t wait_readers)
{
    tb_pool *pool;
    tb_pool_options options = words_options("front", 16, 2);
    options.policy = TB_EVERY;
    options.wait_readers = wait_readers;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    return pool;
}

static tb_status a_reader_is_behind(tb_bus *bus)
{
    tb_pool *pool = register_every(bus, 0);
    tb_reader *reader = open_every(bus, "cam/front");
    tb_frame *frame;
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    CHECK_OK(write_words(pool, 2, TB_POLL, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    return write_words(pool, 3, TB_POLL, NULL);
}

static tb_status readers_are_awaited(tb_bus *bus)
{
    return write_words(register_every(bus, 2), 1, TB_POLL, NULL);
}

/* ---- ends ---- */

static tb_status read_of_a_freed_pool(tb_bus *bus)
{
    tb_pool *pool = register_words(bus, "front", 16, 2);
    tb_reader *reader = open_reader(bus, "cam/front");
    tb_frame *frame;
    CHECK_OK(tb_pool_free(pool));
    return tb_reader_next(reader, TB_FOREVER, &frame);
}

static tb_status handle_of_a_freed_pool(tb_bus *bus)
{
    tb_pool *pool = register_words(bus, "front", 16, 2);
    tb_reader *reader = open_reader(bus, "cam/front");
    tb_frame *frame;
    tb_handle handle;
    CHECK_OK(write_words(pool, 1, TB_POLL, &handle));
    CHECK_OK(tb_pool_free(pool));
    return tb_reader_frame(reader, &handle, &frame);
}

static tb_status open_of_a_freed_pool(tb_bus *bus)
{
    tb_reader *reader;
    CHECK_OK(tb_pool_free(register_words(bus, "front", 16, 2)));
    return tb_reader_open(bus, "cam/front", NULL, &reader);
}

static tb_status write_to_a_freed_pool(tb_bus *bus)
{
    tb_pool *pool = register_words(bus, "front", 16, 2);
    CHECK_OK(tb_pool_free(pool));
    return write_words(pool, 1, TB_POLL, NULL);
}

static tb_status a_frame_that_is_gone(tb_bus *bus)
{
    tb_pool *pool = register_words(bus, "front", 16, 1);
    tb_handle handle;
    tb_frame *frame;
    CHECK_OK(write_words(pool, 1, TB_POLL, &handle));
    CHECK_OK(write_words(pool, 2, TB_POLL, NULL));
    return tb_frame_open(bus, &handle, TB_POLL, &frame);
}

/* ---- options ---- */

static tb_status a_forgotten_dtype(tb_bus *bus)
{
    tb_pool *pool;
    tb_pool_options options = words_options("front", 16, 2);
    options.dtype = 0;
    return tb_pool_register(bus, &options, &pool);
}

static tb_status a_pool_beyond_memory(tb_bus *bus)
{
    tb_pool *pool;
    tb_pool_options options = words_options("front", INT64_C(1) << 39, 2);
    return tb_pool_register(bus, &options, &pool);
}

static tb_status a_name_that_is_taken(tb_bus *bus)
{
    tb_pool *pool;
    tb_pool_options options = words_options("front", 16, 2);
    register_words(bus, "front", 16, 2);
    return tb_pool_register(bus, &options, &pool);
}

static tb_status one_reader_too_many(tb_bus *bus)
{
    tb_bus *owner;
    tb_reader *reader;
    tb_bus_options options = {.size = sizeof options, .name = "few", .max_pages = 2};
    CHECK_OK(tb_bus_open(&options, &owner));
    register_words(owner, "front", 16, 2);
    open_reader(bus, "few/front");
    open_reader(bus, "few/front");
    tb_status status = tb_reader_open(bus, "few/front", NULL, &reader);
    tb_bus_close(owner);
    return status;
}

static tb_status one_connection_too_many(tb_bus *bus)
{
    tb_bus *owner, *first;
    tb_reader *reader;
    tb_bus_options options = {.size = sizeof options, .name = "few", .max_connections = 1};
    /* First: a bus that opens knocks at the others' sockets, which counts for a moment. */
    CHECK_OK(tb_bus_open(NULL, &first));
    CHECK_OK(tb_bus_open(&options, &owner));
    register_words(owner, "front", 16, 2);
    open_reader(first, "few/front");
    tb_status status = tb_reader_open(bus, "few/front", NULL, &reader);
    tb_bus_close(first);
    tb_bus_close(owner);
    return status;
}

/* ---- names ---- */

static tb_status an_unknown_pool(tb_bus *bus)
{
    static const char *const names[] = {"rear", "a", "b", "c", "front", "d", "_own"};
    tb_reader *reader;
    CHECK_OK(tb_pool_free(register_words(bus, "frnt2", 16, 2)));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        register_words(bus, names[i], 16, 2);
    }
    return tb_reader_open(bus, "cam/frnt", NULL, &reader);
}

static tb_status a_pool_where_there_is_none(tb_bus *bus)
{
    tb_reader *reader;
    return tb_reader_open(bus, "cam/frnt", NULL, &reader);
}

static tb_status an_unknown_process(tb_bus *bus)
{
    tb_bus *other = open_bus("detector");
    tb_reader *reader;
    tb_status status = tb_reader_open(bus, "kam/front", NULL, &reader);
    tb_bus_close(other);
    return status;
}

/* ---- owners that are gone: a handle knows their id alone ---- */

static tb_status handle_of_a_closed_pool(tb_bus *bus)
{
    tb_bus *user = open_bus("user");
    tb_pool *pool = register_words(bus, "front", 16, 2);
    tb_handle handle;
    tb_frame *frame;
    CHECK_OK(write_words(pool, 1, TB_POLL, &handle));
    tb_pool_close(pool);
    tb_status status = tb_frame_open(user, &handle, TB_POLL, &frame);
    tb_bus_close(user);
    return status;
}

/* A handle of a bus with these options, which is closed; `stays`: it is opened before that. */
static tb_status handle_of(tb_bus *bus, const tb_bus_options *options, int stays)
{
    tb_bus *owner;
    tb_handle handle;
    tb_frame *frame;
    tb_status status = TB_OK;
    CHECK_OK(tb_bus_open(options, &owner));
    CHECK_OK(write_words(register_words(owner, "front", 16, 2), 1, TB_POLL, &handle));
    if (stays) {
        status = tb_frame_open(bus, &handle, TB_POLL, &frame);
    }
    tb_bus_close(owner);
    return stays ? status : tb_frame_open(bus, &handle, TB_POLL, &frame);
}

static tb_status handle_of_a_closed_bus(tb_bus *bus)
{
    return handle_of(bus, NULL, 0);
}

static tb_status handle_of_another_flow(tb_bus *bus)
{
    return handle_of(bus, &(tb_bus_options){.size = sizeof(tb_bus_options), .flow = "night"}, 1);
}

static const struct situation situations[] = {
    {"all slots held",
     all_slots_held,
     TB_AGAIN,
     {"pool `front`: none of 2 slots is free: `cam` (pid ",
      ") holds 1; release frames sooner or register more slots"}},
    {"all slots on loan",
     all_slots_on_loan,
     TB_AGAIN,
     {"pool `front`: none of 1 slots is free: 1 on loan; publish loans sooner or register"}},
    {"a reader is behind",
     a_reader_is_behind,
     TB_AGAIN,
     {"`cam` (pid ", ") holds 1 and has 1 to take; release frames sooner or register more slots"}},
    {"readers are awaited",
     readers_are_awaited,
     TB_AGAIN,
     {"pool `front`", "0 of the 2 readers", "`every`", "lower wait_readers"}},
    {"read of a freed pool",
     read_of_a_freed_pool,
     TB_E_FREED,
     {"pool `cam/front` was freed", "cannot be read any more; open the pool that replaces it"}},
    {"handle of a freed pool",
     handle_of_a_freed_pool,
     TB_E_FREED,
     {"pool `cam/front` was freed", "cannot be read any more; open the pool that replaces it"}},
    {"open of a freed pool",
     open_of_a_freed_pool,
     TB_E_FREED,
     {"pool `cam/front` was freed: open the pool that replaces it"}},
    {"write to a freed pool",
     write_to_a_freed_pool,
     TB_E_FREED,
     {"pool `front` was freed: it cannot be written any more; register another one"}},
    {"a frame that is gone",
     a_frame_that_is_gone,
     TB_E_STALE,
     {"frame 1 of pool `cam/front` was overwritten: use more slots, a backpressure "
      "input, or the policy every with a reader of every frame"}},
    {"a forgotten dtype", a_forgotten_dtype, TB_E_INVALID, {"dtype is 0: set it, such as TB_F32"}},
    {"a pool beyond memory",
     a_pool_beyond_memory,
     TB_E_NOMEM,
     {"pool `front`: 8.0 TiB (87960930", " bytes) in 2 slots do not fit: ", " GiB (", " available",
      "use fewer slots or a smaller shape"}},
    {"a name that is taken",
     a_name_that_is_taken,
     TB_E_EXISTS,
     {"process `cam` has a pool `front` already", "another name or free that one first"}},
    {"one reader too many",
     one_reader_too_many,
     TB_E_LIMIT,
     {"uid ", "readers at process `few`", "larger max_pages"}},
    {"one connection too many",
     one_connection_too_many,
     TB_E_LIMIT,
     {"uid ", "the 1 connections to process `few`", "larger max_connections"}},
    {"an unknown pool",
     an_unknown_pool,
     TB_E_NOT_FOUND,
     {"process `cam` has no pool `frnt`; it has `front`, `a`, `b`, `c`, `d` and 1 more"}},
    {"a pool where there is none",
     a_pool_where_there_is_none,
     TB_E_NOT_FOUND,
     {"process `cam` has no pool `frnt`; it has none"}},
    {"an unknown process",
     an_unknown_process,
     TB_E_NOT_FOUND,
     {"no process named `kam`: there are `cam`, `detector` in `", "/default`"}},
    {"handle of a closed pool",
     handle_of_a_closed_pool,
     TB_E_STALE,
     {"process `cam` (pid ", ") has closed the pool that this handle names: open handles of the "}},
    {"handle of a closed bus",
     handle_of_a_closed_bus,
     TB_E_NOT_FOUND,
     {"no process with id ", ", which this handle names: it has closed its bus or ended",
      "another TENSORBUS_DIR; a handle is to be opened while its process runs; this bus is in `"}},
    {"handle of another flow",
     handle_of_another_flow,
     TB_E_NOT_FOUND,
     {"the process with id ", ", which this handle names, is in flow `night`: open a bus of that ",
      "/default`"}},
};

static void each_text_has_thing_value_and_way_out(void)
{
    for (size_t i = 0; i < TEST_COUNT(situations); i++) {
        const struct situation *at = &situations[i];
        tb_bus *bus = open_bus("cam");
        tb_status status = at->provoke(bus);
        if (status != at->status) {
            FAIL("%s: %s, %s is due: %s", at->name, tb_status_name(status),
                 tb_status_name(at->status), tb_last_error_text());
        }
        check_words(at->name, at->words);
        tb_bus_close(bus);
    }
}

static void nobody_is_there(void)
{
    tb_bus *bus;
    tb_reader *reader;
    CHECK_OK(tb_bus_open(NULL, &bus));
    CHECK_STATUS(tb_reader_open(bus, "cam/front", NULL, &reader), TB_E_NOT_FOUND);
    CHECK_HAS(tb_last_error_text(), "no process named `cam`: start it");
    CHECK_HAS(tb_last_error_text(), "TENSORBUS_DIR");
    tb_bus_close(bus);
}

static void owner_of_one(void *name)
{
    tb_handle handle;
    tb_bus *bus;
    tb_bus_options options = {.size = sizeof options, .name = name};
    CHECK_OK(tb_bus_open(&options, &bus));
    CHECK_OK(write_words(register_words(bus, "front", 16, 2), 1, TB_POLL, &handle));
    parent_tell(&handle, sizeof handle);
    parent_pause("ready");
    tb_bus_close(bus);
}

/* Its name, as long as its link is there; the id, which the handle holds, in any case. */
static void a_killed_owner_is_named(void)
{
    struct child named, nameless;
    tb_handle handles[2];
    tb_frame *frame;
    tb_reader *reader;
    char id[32];
    child_start(&named, "named", owner_of_one, (char[]){"cam"});
    child_hear(&named, &handles[0], sizeof handles[0]);
    child_start(&nameless, "nameless", owner_of_one, NULL);
    child_hear(&nameless, &handles[1], sizeof handles[1]);
    tb_bus *bus = open_bus("user");
    child_kill(&named);
    child_kill(&nameless);
    for (int i = 0; i < 2; i++) {
        uint64_t number;
        memcpy(&number, handles[i].pool_uid, sizeof number);
        snprintf(id, sizeof id, "%016llx, which", (unsigned long long)number);
        const char *const words[MOST_WORDS] = {
            i == 0 ? "process `cam` with id " : "the process with id ", id,
            " has ended without closing its bus (killed, or crashed), and its frames are gone: ",
            "start it again and open its new handles; its socket is left in `", "/default`"};
        CHECK_STATUS(tb_frame_open(bus, &handles[i], TB_POLL, &frame), TB_E_NOT_FOUND);
        check_words("a killed owner", words);
    }
    static const char *const by_path[MOST_WORDS] = {
        "process `cam` has ended without closing its bus (killed, or crashed): start it again; "};
    CHECK_STATUS(tb_reader_open(bus, "cam/front", NULL, &reader), TB_E_NOT_FOUND);
    check_words("by path", by_path);
    tb_bus_close(bus);
}

/* It is waited for once; then it is left alone for a while, and that is said. */
static void a_stopped_owner_is_named(void)
{
    struct child owner;
    tb_handle handle;
    tb_frame *frame;
    child_start(&owner, "owner", owner_of_one, NULL);
    child_hear(&owner, &handle, sizeof handle);
    child_await(&owner, "ready");
    tb_bus *bus = open_bus("user");
    child_signal(&owner, SIGSTOP);
    static const char *const first[MOST_WORDS] = {"process ", " did not answer within 1 s: "};
    CHECK_STATUS(tb_frame_open(bus, &handle, TB_POLL, &frame), TB_E_NOT_FOUND);
    check_words("stopped", first);
    static const char *const then[MOST_WORDS] = {
        "the process with id ", ", which this handle names, did not answer just now and is not "};
    CHECK_STATUS(tb_frame_open(bus, &handle, TB_POLL, &frame), TB_E_NOT_FOUND);
    check_words("stopped before", then);
    child_signal(&owner, SIGCONT);
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(bus);
}

/* ---- what leaves the last error alone ---- */

static void open_only(void *unused)
{
    (void)unused;
    open_bus("gone");
    parent_pause("ready");
}

static void a_bus_that_sweeps_the_dead_opens_in_silence(void)
{
    struct child dead;
    child_start(&dead, "dead", open_only, NULL);
    child_await(&dead, "ready");
    child_kill(&dead);
    CHECK_STR(tb_last_error_text(), "");
    tb_bus *bus = open_bus("gone"); /* takes the dead one's name, too */
    CHECK_STR(tb_last_error_text(), "");
    tb_bus_close(bus);
    CHECK_STR(tb_last_error_text(), "");
}

static void a_pool_without_its_runner_registers_in_silence(void)
{
    setenv("TENSORBUS_RUNNER", "nobody", 1);
    tb_bus *bus = open_bus("cam");
    register_words(bus, "front", 16, 2);
    CHECK_STR(tb_last_error_text(), "");
    tb_bus_close(bus);
}

/* Waits for the process, then for its pool; reads all that was published before the goodbye. */
static void read_to_the_end(void *unused)
{
    (void)unused;
    tb_bus *bus = open_bus("user");
    parent_reached("opening");
    tb_reader *reader = open_reader(bus, "cam/front");
    CHECK_STR(tb_last_error_text(), "");
    tb_frame *frame;
    CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), TB_AGAIN);
    CHECK_STATUS(tb_reader_next(reader, TB_MILLIS(1), &frame), TB_AGAIN);
    CHECK_STR(tb_last_error_text(), "");
    parent_pause("open");
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame)); /* the owner is gone already */
    CHECK_EQ(words_value(frame), 1);
    tb_frame_release(frame);
    CHECK_STR(tb_last_error_text(), "");
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(20), &frame), TB_CLOSED);
    static const char *const words[MOST_WORDS] = {"process `cam` (pid ",
                                                  "owner of pool `front`, said goodbye"};
    check_words("goodbye", words);
    tb_bus_close(bus);
}

static void waiting_is_silent_and_a_goodbye_says_so(void)
{
    struct child user;
    child_start(&user, "user", read_to_the_end, NULL);
    child_await(&user, "opening");
    harness_sleep_us(20000); /* for some attempts in vain */
    tb_bus *bus = open_bus("cam");
    harness_sleep_us(20000);
    tb_pool *pool = register_words(bus, "front", 16, 2);
    child_await(&user, "open");
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    CHECK_STR(tb_last_error_text(), "");
    tb_bus_close(bus);
    child_go(&user);
    child_join(&user);
}

static void an_earlier_error_stays(void)
{
    tb_bus *bus = open_bus("cam");
    tb_pool *pool = register_words(bus, "front", 16, 2);
    tb_reader *reader;
    CHECK_STATUS(tb_reader_open(bus, "cam/rear", NULL, &reader), TB_E_NOT_FOUND);
    tb_error before, after;
    tb_last_error(&before);
    reader = open_reader(bus, "cam/front");
    tb_frame *frame;
    CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), TB_AGAIN);
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    tb_frame_release(frame);
    tb_last_error(&after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(each_text_has_thing_value_and_way_out, 30),
    TEST(nobody_is_there, 10),
    TEST(a_killed_owner_is_named, 10),
    TEST(a_stopped_owner_is_named, 20),
    TEST(a_bus_that_sweeps_the_dead_opens_in_silence, 10),
    TEST(a_pool_without_its_runner_registers_in_silence, 10),
    TEST(waiting_is_silent_and_a_goodbye_says_so, 30),
    TEST(an_earlier_error_stays, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
