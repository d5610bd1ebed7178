/* Out of descriptors: each call names the limit, however far it came, and leaves nothing behind. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proc/pool_support.h"

static tb_status open_and_close_bus(tb_bus *bus)
{
    tb_bus *another;
    (void)bus;
    /* With a name: what a failure leaves of it would show at the test's end. */
    tb_bus_options options = {.size = sizeof options, .name = "another"};
    tb_status status = tb_bus_open(&options, &another);
    if (status == TB_OK) {
        tb_bus_close(another);
    }
    return status;
}

static tb_status register_and_close(tb_bus *bus)
{
    tb_pool *pool;
    tb_pool_options options = words_options("mine", 16, 2);
    tb_status status = tb_pool_register(bus, &options, &pool);
    if (status == TB_OK) {
        tb_pool_close(pool);
    }
    return status;
}

static tb_status open_and_close_reader(tb_bus *bus)
{
    tb_reader *reader;
    tb_status status = tb_reader_open(bus, "cam/front", NULL, &reader);
    if (status == TB_OK) {
        tb_reader_close(reader);
    }
    return status;
}

static tb_reader *kept_reader;

static tb_status make_reader_fd(tb_bus *bus)
{
    int fd;
    (void)bus;
    return tb_reader_fd(kept_reader, &fd);
}

/* Take all descriptors up to the limit. */
#define FEW_FILES 64
static unsigned take_descriptors(int taken[FEW_FILES])
{
    unsigned count = 0;
    while ((taken[count] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) >= 0) {
        count++;
    }
    return count;
}

/* With 0, 1, 2... descriptors left, until the call succeeds: however far it comes, a failure names
 * the limit. Returns how many failed. */
static unsigned call_with_few_descriptors(const char *name, tb_status (*call)(tb_bus *),
                                          tb_bus *bus)
{
    for (unsigned left = 0; left < FEW_FILES; left++) {
        int taken[FEW_FILES];
        unsigned count = take_descriptors(taken);
        CHECK_LT(left, count);
        for (unsigned i = 0; i < left; i++) {
            close(taken[--count]);
        }
        tb_status status = call(bus);
        while (count > 0) {
            close(taken[--count]);
        }
        if (status == TB_OK) {
            return left;
        }
        CHECK_STATUS(status, TB_E_LIMIT);
        if (strstr(tb_last_error_text(), "ulimit -n") == NULL) {
            FAIL("%s, %u left: %s", name, left, tb_last_error_text());
        }
    }
    FAIL("%s never succeeds", name);
}

static void own_front(void *unused)
{
    (void)unused;
    tb_bus *bus = open_bus("cam");
    tb_pool *pool = register_words(bus, "front", 16, 4);
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    parent_pause("ready");
    tb_bus_close(bus);
}

static void too_many_open_files_name_the_limit(void)
{
    static const struct {
        const char *name;
        tb_status (*call)(tb_bus *);
        unsigned fewest; /* failures that there must be at least */
    } calls[] = {
        {"tb_bus_open", open_and_close_bus, 4},
        {"tb_pool_register", register_and_close, 1},
        {"tb_reader_open", open_and_close_reader, 1},
        {"tb_reader_fd", make_reader_fd, 1},
    };
    struct child owner;
    child_start(&owner, "owner", own_front, NULL);
    child_await(&owner, "ready");
    tb_bus *bus = open_bus("user");
    struct rlimit before, few;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = FEW_FILES;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (size_t i = 0; i < TEST_COUNT(calls); i++) {
        if (calls[i].call == make_reader_fd) {
            kept_reader = open_reader(bus, "cam/front");
        }
        CHECK_LE(calls[i].fewest, call_with_few_descriptors(calls[i].name, calls[i].call, bus));
    }
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    tb_bus_close(bus);
    child_go(&owner);
    child_join(&owner);
}

/* A bus that closes when there is no descriptor left to lock the directory with. */
static void a_bus_without_descriptors_leaves_no_socket(void)
{
    int taken[FEW_FILES];
    struct rlimit before, few;
    tb_bus *bus;
    bus = open_bus("cam");
    CHECK_EQ(harness_socket_count(), 2); /* the socket and its name */
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = FEW_FILES;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    unsigned count = take_descriptors(taken);
    tb_bus_close(bus);
    while (count > 0) {
        close(taken[--count]);
    }
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(harness_socket_count(), 0);
    CHECK_STR(tb_last_error_text(), "");
}

static const struct test tests[] = {
    TEST(too_many_open_files_name_the_limit, 60),
    TEST(a_bus_without_descriptors_leaves_no_socket, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
