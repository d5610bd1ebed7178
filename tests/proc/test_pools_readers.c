/* Who reads a pool, as its owner tells tools: `tensorbus pool info`. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pool/observe.h"
#include "proc/forger.h"
#include "proc/pool_support.h"

/* Opens as many readers as it is told, and stays until it is told to end. */
static void reader_role(void *name)
{
    uint32_t readers;
    tb_bus *bus;
    tb_bus_options options = {.size = sizeof options, .name = name};
    CHECK_OK(tb_bus_open(&options, &bus));
    parent_hear(&readers, sizeof readers);
    for (uint32_t i = 0; i < readers; i++) {
        open_reader(bus, "owner/frames");
    }
    parent_pause("reading");
    tb_bus_close(bus);
}

static void start_reader(struct child *child, const char *role, char *name, uint32_t readers)
{
    child_start(child, role, reader_role, name);
    child_tell(child, &readers, sizeof readers);
}

static void end_reader(struct child *child)
{
    child_go(child);
    child_join(child);
}

/* What `tensorbus pool info` says of owner/frames. */
static void info_by_command(const char *words, char *out, size_t size)
{
    char command[256];
    snprintf(command, sizeof command, "%s/bin/tensorbus pool info %s --flow default owner/frames",
             TB_BINARY_DIR, words);
    FILE *pipe = popen(command, "re");
    CHECK(pipe != NULL);
    out[fread(out, 1, size - 1, pipe)] = '\0';
    CHECK_EQ(pclose(pipe), 0);
}

static void info_names_the_readers(void)
{
    struct child named, nameless;
    char out[4096], line[128];
    if (access(TB_BINARY_DIR "/bin/tensorbus", X_OK) != 0) {
        harness_skip("this build has no command");
    }
    harness_before_fork();
    start_reader(&named, "named", (char[]){"detector"}, 2);
    start_reader(&nameless, "nameless", NULL, 1);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 4, 8);
    info_by_command("", out, sizeof out); /* at any time: they may be here already */
    child_await(&named, "reading");
    child_await(&nameless, "reading");
    CHECK_EQ(stats_of(pool).readers, 3);
    info_by_command("", out, sizeof out);
    CHECK_HAS(out, "\nreaders      3: ");
    snprintf(line, sizeof line, "2 of `detector` (pid %d)", (int)named.pid);
    CHECK_HAS(out, line);
    snprintf(line, sizeof line, "pid %d", (int)nameless.pid);
    CHECK_HAS(out, line);
    info_by_command("--json", out, sizeof out);
    CHECK_HAS(out, "\"readers\":3,");
    CHECK_HAS(out, ",\"reader_processes\":[{");
    snprintf(line, sizeof line, "{\"process\":\"detector\",\"pid\":%d}", (int)named.pid);
    CHECK_HAS(out, line);
    snprintf(line, sizeof line, "{\"process\":null,\"pid\":%d}", (int)nameless.pid);
    CHECK_HAS(out, line);
    end_reader(&named);
    end_reader(&nameless);
    CHECK_WITHIN_MS(stats_of(pool).readers == 0, 5000);
    info_by_command("", out, sizeof out);
    CHECK_HAS(out, "\nreaders      0\n");
    info_by_command("--json", out, sizeof out);
    CHECK_HAS(out, ",\"reader_processes\":[]}\n");
    tb_bus_close(bus);
}

/* More than one answer holds: all are counted. */
static void more_readers_than_are_listed(void)
{
    enum { READERS = TB__READERS_LISTED + 3 };
    struct tb__observed_readers seen;
    tb_bus *bus = open_bus("owner");
    tb_bus *user = open_bus("user");
    register_words(bus, "frames", 4, 4);
    for (int i = 0; i < READERS; i++) {
        open_reader(user, "owner/frames");
    }
    CHECK_OK(tb__pool_readers(user, "owner/frames", &seen));
    CHECK_EQ(seen.count, READERS);
    CHECK_EQ(seen.listed, TB__READERS_LISTED);
    for (uint32_t i = 0; i < seen.listed; i++) {
        CHECK_STR(seen.readers[i].process, "user");
        CHECK_EQ(seen.readers[i].pid, getpid());
    }
    free(seen.readers);
    CHECK_STATUS(tb__pool_readers(user, "owner/other", &seen), TB_E_NOT_FOUND);
    CHECK_HAS(tb_last_error_text(), "process `owner` has no pool `other`; it has `frames`");
    tb_bus_close(user);
    tb_bus_close(bus);
}

/* ---- owners that lie ---- */

static const struct lie {
    const char *error; /* NULL: none, the list is right */
    struct tb__reader_names_wire head;
    uint32_t bytes;
    char name; /* the first byte of a name that is not terminated; 0: "a" */
} lies[] = {
    {NULL, {9, 1}, 88, 0},
    {"a list of readers as type 27 with 7 bytes", {0, 0}, 7, 0},
    {"a list of 2 of 1 readers with 168 bytes", {1, 2}, 168, 0},
    {"a list of 1 of 1 readers with 87 bytes", {1, 1}, 87, 0},
    {"a list of 1 of 1 readers with 168 bytes", {1, 1}, 168, 0},
    {"a list of 300 of 300 readers with 24008 bytes", {300, 300}, 24008, 0},
    {"a list of 4294967295 of 4294967295 readers with 88 bytes", {~0u, ~0u}, 88, 0},
    {"a list of readers with an invalid name", {1, 1}, 88, 'a'},
    {"a list of readers with an invalid name", {1, 1}, 88, '/'},
};

static void answer_readers(int fd, uint32_t request, size_t index)
{
    static struct {
        struct tb__reader_names_wire head;
        struct tb__reader_name_wire names[300];
    } body;
    const struct lie *lie = &lies[index];
    memset(&body, 0, sizeof body);
    body.head = lie->head;
    body.names[0].pid = 5;
    memset(body.names[0].name, lie->name, sizeof body.names[0].name);
    if (lie->name == 0) {
        body.names[0].name[0] = 'a';
    }
    CHECK_OK(tb__packet_send(fd, &(struct tb__packet){.type = TB__MSG_READER_NAMES,
                                                      .request = request,
                                                      .body = &body,
                                                      .body_bytes = lie->bytes}));
}

static void liar_role(void *unused)
{
    (void)unused;
    forger_serve(TB__MSG_POOL_READERS, TEST_COUNT(lies), answer_readers);
}

static void lists_of_liars_are_refused(void)
{
    struct child liar;
    struct tb__observed_readers seen;
    child_start(&liar, "forger", liar_role, NULL);
    child_await(&liar, "open");
    for (size_t i = 0; i < TEST_COUNT(lies); i++) {
        tb_bus *bus = open_bus("client");
        if (lies[i].error == NULL) {
            CHECK_OK(tb__pool_readers(bus, "forger/frames", &seen));
            CHECK_EQ(seen.count, 9);
            CHECK_EQ(seen.listed, 1);
            CHECK_STR(seen.readers[0].process, "a");
            CHECK_EQ(seen.readers[0].pid, 5);
            free(seen.readers);
        } else {
            CHECK_STATUS(tb__pool_readers(bus, "forger/frames", &seen), TB_E_PROTOCOL);
            CHECK_HAS(tb_last_error_text(), lies[i].error);
        }
        tb_bus_close(bus);
    }
    child_join(&liar);
}

static const struct test tests[] = {
    TEST(info_names_the_readers, 30),
    TEST(more_readers_than_are_listed, 60),
    TEST(lists_of_liars_are_refused, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
