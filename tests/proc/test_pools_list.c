/* Listing a process's pools, when they are more than fit one message. */
#include "proc/forger.h"

#include <signal.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "endpoint/bus.h"
#include "pool/observe.h"

#define MANY 1200 /* names of 64 characters: some 1,007 fit a message */
#define NEWER 8

/* "p0042xxx...": 64 characters. */
static void long_name(char name[65], int index)
{
    memset(name, 'x', 64);
    name[64] = '\0';
    int used = snprintf(name, 65, "p%04d", index);
    name[used] = 'x';
}

/* Which pool it is; -1: none of ours. */
static int index_of(const char *name)
{
    char expected[65];
    int index = -1;
    if (sscanf(name, "p%4d", &index) != 1 || index < 0 || index >= MANY + NEWER) {
        return -1;
    }
    long_name(expected, index);
    return strcmp(name, expected) == 0 ? index : -1;
}

static tb_pool *register_one(tb_bus *bus, int index)
{
    char name[65];
    long_name(name, index);
    return register_words(bus, name, 1, 1);
}

/* Obeys: 'f' frees every third pool; 'c' closes the newest NEWER and registers as many; 'q' ends.
 */
static void owner_role(void *argument)
{
    static tb_pool *pools[MANY];
    char order;
    (void)argument;
    tb_bus *bus = open_bus("owner");
    for (int i = 0; i < MANY; i++) {
        pools[i] = register_one(bus, i);
    }
    parent_reached("open");
    for (parent_hear(&order, 1); order != 'q'; parent_hear(&order, 1)) {
        for (int i = 0; order == 'f' && i < MANY; i += 3) {
            CHECK_OK(tb_pool_free(pools[i]));
        }
        for (int i = 0; order == 'c' && i < NEWER; i++) {
            tb_pool_close(pools[MANY - 1 - i]);
        }
        for (int i = 0; order == 'c' && i < NEWER; i++) {
            register_one(bus, MANY + i);
        }
        parent_reached("done");
    }
    tb_bus_close(bus);
}

static void start_owner(struct child *owner)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_max < MANY + 100) {
        harness_skip("a process may not have as many open files as that takes");
    }
    limit.rlim_cur = limit.rlim_cur < MANY + 100 ? MANY + 100 : limit.rlim_cur;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0); /* inherited */
    child_start(owner, "owner", owner_role, NULL);
    child_await(owner, "open");
}

static void obey(struct child *owner, char order)
{
    child_tell(owner, &order, 1);
    child_await(owner, "done");
}

static void end_owner(struct child *owner)
{
    child_tell(owner, "q", 1);
    child_join(owner);
}

/* Count each name; one that is none of ours is a failure. */
static void tally(const char *names, size_t count, uint8_t seen[MANY + NEWER])
{
    for (size_t i = 0; i < count; i++) {
        int index = index_of(names);
        if (index < 0) {
            FAIL("`%.80s` was never registered", names);
        }
        seen[index]++;
        names += strlen(names) + 1;
    }
}

static void all_pools_are_listed(void)
{
    struct child owner;
    char *names;
    size_t count;
    start_owner(&owner);
    tb_bus *bus = open_bus("client");
    for (int freed = 0; freed <= 1; freed++) {
        uint8_t seen[MANY + NEWER] = {0};
        if (freed) {
            obey(&owner, 'f');
        }
        CHECK_OK(tb__pools_list(bus, "owner", &names, &count));
        tally(names, count, seen);
        free(names);
        for (int i = 0; i < MANY; i++) {
            CHECK_EQ(seen[i], !(freed && i % 3 == 0));
        }
    }
    tb_bus_close(bus);
    end_owner(&owner);
}

/* `tensorbus pool list` opens a pool after the other. */
static void the_command_lists_them_all(void)
{
    static const char command[] = TB_BINARY_DIR "/bin/tensorbus";
    if (access(command, X_OK) != 0) {
        harness_skip("this build has no command");
    }
    struct child owner;
    char line[512];
    uint8_t seen[MANY + NEWER] = {0};
    harness_before_fork();
    start_owner(&owner);
    FILE *out = popen(TB_BINARY_DIR "/bin/tensorbus pool list default", "re");
    CHECK(out != NULL);
    while (fgets(line, sizeof line, out) != NULL) {
        char *name = strstr(line, "owner/");
        char *end = name != NULL ? strchr(name, ' ') : NULL;
        if (end != NULL) {
            *end = '\0';
            tally(name + strlen("owner/"), 1, seen);
        }
    }
    CHECK_EQ(pclose(out), 0);
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(seen[i], 1);
    }
    end_owner(&owner);
}

/* What `tensorbus pool list default` says on both streams. Returns its exit code. */
static int list_by_command(char *out, size_t size)
{
    FILE *pipe = popen(TB_BINARY_DIR "/bin/tensorbus pool list default 2>&1", "re");
    CHECK(pipe != NULL);
    size_t used = fread(out, 1, size - 1, pipe);
    out[used] = '\0';
    return pclose(pipe);
}

static void small_owner_role(void *argument)
{
    char order;
    tb_bus *bus = open_bus(argument);
    register_words(bus, "frames", 1, 3);
    parent_reached("open");
    parent_hear(&order, 1);
    tb_bus_close(bus);
}

#define STOPPED 10
#define PATIENCE_NS TB_SECONDS(5) /* for one that does not answer */

/* Columns are as wide as what is in them. A process that does not answer is named: a list without
 * its pools looks complete. All of them are waited for at once. */
static void what_is_left_out_is_said(void)
{
    struct child awake, stopped[STOPPED];
    char names[STOPPED][16];
    char out[8192];
    if (access(TB_BINARY_DIR "/bin/tensorbus", X_OK) != 0) {
        harness_skip("this build has no command");
    }
    harness_before_fork();
    child_start(&awake, "awake", small_owner_role, (char[]){"awake"});
    child_await(&awake, "open");
    for (int i = 0; i < STOPPED; i++) {
        snprintf(names[i], sizeof names[i], "stopped%d", i);
        child_start(&stopped[i], names[i], small_owner_role, names[i]);
        child_await(&stopped[i], "open");
    }
    CHECK_EQ(list_by_command(out, sizeof out), 0);
    CHECK_HAS(out, "pool             tensor    device  slots ");
    CHECK_HAS(out, "\nawake/frames     int64[1]  cpu         3 ");
    CHECK_HAS(out, "\nstopped0/frames  int64[1]  cpu         3 ");
    for (int i = 0; i < STOPPED; i++) {
        child_signal(&stopped[i], SIGSTOP);
    }
    int64_t begun_ns = harness_now_ns();
    CHECK_EQ(list_by_command(out, sizeof out), 0);
    CHECK_LT(harness_now_ns() - begun_ns, 2 * PATIENCE_NS);
    const char *at = out;
    for (int i = 0; i < STOPPED; i++) {
        char line[256];
        snprintf(line, sizeof line, "tensorbus pool list: `%s` is left out: process ", names[i]);
        at = strstr(at, line); /* in the order of the names */
        CHECK(at != NULL);
    }
    CHECK_HAS(at, " did not answer within 5 s: is it stopped?");
    CHECK_HAS(out, "\nawake/frames  int64[1]");
    for (int i = 0; i < STOPPED; i++) {
        child_signal(&stopped[i], SIGCONT);
        child_kill(&stopped[i]); /* its socket stays, and is no news */
    }
    CHECK_EQ(list_by_command(out, sizeof out), 0);
    CHECK(strstr(out, "left out") == NULL);
    child_tell(&awake, "q", 1);
    child_join(&awake);
}

/* One request; its names are tallied. Returns the number to ask on with. */
static uint64_t list_some(struct tb__lifeline *line, uint64_t before, uint8_t seen[MANY + NEWER])
{
    struct tb__pool_list_wire wire = {before};
    struct tb__packet question = {
        .type = TB__MSG_POOL_LIST, .body = &wire, .body_bytes = sizeof wire};
    struct tb__reply reply;
    size_t count = 0;
    CHECK_OK(tb__lifeline_call(line, &question, tb__deadline_ns(TB_SECONDS(20)), &reply));
    CHECK_EQ(reply.type, TB__MSG_POOL_NAMES);
    CHECK_LE(sizeof wire, reply.body_bytes);
    memcpy(&wire, reply.body, sizeof wire);
    for (uint32_t i = sizeof wire; i < reply.body_bytes; i++) {
        count += reply.body[i] == '\0';
    }
    tally((const char *)reply.body + sizeof wire, count, seen);
    tb__reply_fini(&reply);
    return wire.before;
}

/* Between two requests pools come and go: the others are listed, and once. */
static void pools_that_stay_are_listed_once(void)
{
    struct child owner;
    struct tb__lifeline *line;
    uint8_t seen[MANY + NEWER] = {0};
    start_owner(&owner);
    tb_bus *bus = open_bus("client");
    CHECK_OK(tb__bus_connect(bus, "owner", 0, tb__deadline_ns(TB_SECONDS(20)), &line));
    uint64_t before = list_some(line, 0, seen);
    CHECK_NE(before, 0);
    obey(&owner, 'c');
    CHECK_EQ(list_some(line, before, seen), 0);
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(seen[i], 1);
    }
    tb__lifeline_unref(line);
    tb_bus_close(bus);
    end_owner(&owner);
}

/* ------------------------------------------------------------------ owners that lie */

/* Of each the last reply is the wrong one. */
static const struct lie {
    const char *error; /* NULL: none, the list is right */
    struct lie_reply {
        uint64_t before;
        const char *names;
        uint32_t bytes; /* of the names; with `cut`, of the whole body */
        int cut;
    } replies[3];
} lies[] = {
    {NULL, {{7, "a\0b", 4, 0}, {3, "c", 2, 0}, {0, "", 0, 0}}},
    {"type 23 with 7 bytes", {{0, "", 7, 1}}},
    {"is cut off", {{0, "ab", 2, 0}}},
    {"does not go on", {{7, "", 0, 0}}},
    {"does not go on", {{7, "a", 2, 0}, {7, "b", 2, 0}}},
    {"does not go on", {{7, "a", 2, 0}, {8, "b", 2, 0}}},
};
#define LIES (sizeof lies / sizeof lies[0])

/* The n-th reply of all. */
static const struct lie_reply *nth_reply(size_t n)
{
    for (size_t i = 0; i < LIES; i++) {
        for (size_t k = 0; k < 3; k++) {
            const struct lie_reply *reply = &lies[i].replies[k];
            if (reply->names != NULL && n-- == 0) {
                return reply;
            }
        }
    }
    return NULL;
}

static void answer_list(int fd, uint32_t request, size_t index)
{
    char body[64];
    const struct lie_reply *reply = nth_reply(index);
    memcpy(body, &reply->before, 8);
    memcpy(body + 8, reply->names, reply->cut ? 0 : reply->bytes);
    CHECK_OK(tb__packet_send(
        fd, &(struct tb__packet){.type = TB__MSG_POOL_NAMES,
                                 .request = request,
                                 .body = body,
                                 .body_bytes = reply->cut ? reply->bytes : 8 + reply->bytes}));
}

static void liar_role(void *argument)
{
    size_t replies = 0;
    (void)argument;
    while (nth_reply(replies) != NULL) {
        replies++;
    }
    forger_serve(TB__MSG_POOL_LIST, replies, answer_list);
}

static void lists_of_liars_are_refused(void)
{
    struct child liar;
    child_start(&liar, "forger", liar_role, NULL);
    child_await(&liar, "open");
    for (size_t i = 0; i < LIES; i++) {
        char *names;
        size_t count;
        tb_bus *bus = open_bus("client");
        if (lies[i].error == NULL) {
            CHECK_OK(tb__pools_list(bus, "forger", &names, &count));
            CHECK_EQ(count, 3);
            CHECK_EQ(memcmp(names, "a\0b\0c", 6), 0);
            free(names);
        } else {
            CHECK_STATUS(tb__pools_list(bus, "forger", &names, &count), TB_E_PROTOCOL);
            CHECK_HAS(tb_last_error_text(), lies[i].error);
        }
        tb_bus_close(bus);
    }
    child_join(&liar);
}

static const struct test tests[] = {
    TEST(all_pools_are_listed, 60),       TEST(the_command_lists_them_all, 60),
    TEST(what_is_left_out_is_said, 60),   TEST(pools_that_stay_are_listed_once, 60),
    TEST(lists_of_liars_are_refused, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
