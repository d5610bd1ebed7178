/* P28: the runtime directory: created, or refused with the reason; never used when it is not safe.
 */
#include "proc/pool_support.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char base[256]; /* directory in which the tests make theirs */

/* <base>/<name>, in a buffer that the next call reuses. */
static const char *at(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", base, name);
    return path;
}

static tb_status open_in(const char *directory, tb_bus **out)
{
    tb_bus_options options = {.size = sizeof options, .name = "owner", .directory = directory};
    return tb_bus_open(&options, out);
}

/* Opens there, and is found by a second bus through the same directory. */
static void check_works(const char *directory)
{
    tb_bus *owner;
    tb_bus *consumer;
    tb_frame *frame;
    CHECK_OK(open_in(directory, &owner));
    tb_pool *pool = register_words(owner, "frames", 16, 2);
    CHECK_OK(write_words(pool, 8, TB_POLL, NULL));
    tb_bus_options options = {.size = sizeof options, .directory = directory};
    CHECK_OK(tb_bus_open(&options, &consumer));
    tb_reader *reader = open_reader(consumer, "owner/frames");
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(1), &frame));
    CHECK_EQ(words_value(frame), 8);
    tb_frame_release(frame);
    tb_bus_close(consumer);
    tb_bus_close(owner);
}

static void check_refused(const char *directory, tb_status wanted, const char *reason)
{
    tb_bus *bus;
    CHECK_STATUS(open_in(directory, &bus), wanted);
    CHECK_HAS(tb_last_error_text(), directory);
    CHECK_HAS(tb_last_error_text(), reason);
}

static void begin(void)
{
    snprintf(base, sizeof base, "%s", harness_dir());
    umask(022);
}

static void P28_missing(void)
{
    struct stat status;
    begin();
    check_works(at("fresh"));
    CHECK(stat(at("fresh"), &status) == 0);
    CHECK_EQ(status.st_mode & 07777, 0700);
    CHECK(stat(at("fresh/default"), &status) == 0 || errno == ENOENT);
    check_works(at("fresh")); /* once more: it exists now */
}

static void P28_unsafe_modes(void)
{
    static const mode_t modes[] = {0777, 0770, 0750, 0701, 01777};
    begin();
    CHECK(mkdir(at("open"), 0700) == 0);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        CHECK(chmod(at("open"), modes[i]) == 0);
        check_refused(at("open"), TB_E_DENIED, "mode");
    }
    CHECK(chmod(at("open"), 0700) == 0);
    check_works(at("open"));
    CHECK(chmod(at("open/default"), 0777) == 0); /* the flow's own directory counts as well */
    tb_bus *bus;
    CHECK_STATUS(open_in(at("open"), &bus), TB_E_DENIED);
}

static void P28_not_a_directory(void)
{
    begin();
    CHECK(mkdir(at("real"), 0700) == 0);
    char target[1024];
    snprintf(target, sizeof target, "%s", at("real"));
    CHECK(symlink(target, at("link")) == 0);
    tb_bus *bus;
    CHECK_STATUS(open_in(at("link"), &bus), TB_E_DENIED);
    CHECK_HAS(tb_last_error_text(), "link");
    CHECK_STATUS(open_in(at("link/"), &bus), TB_E_DENIED); /* a slash would follow it */
    int fd = open(at("file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0700);
    CHECK(fd >= 0);
    close(fd);
    CHECK_STATUS(open_in(at("file"), &bus), TB_E_DENIED);
    CHECK_HAS(tb_last_error_text(), "file");
    CHECK(unlink(at("link")) == 0 && unlink(at("file")) == 0);
    CHECK(open_in(at("no/such/parent"), &bus) < 0);
    CHECK_HAS(tb_last_error_text(), "no/such/parent");
}

static void P28_foreign_owner(void)
{
    begin();
    CHECK(mkdir(at("foreign"), 0700) == 0);
    if (chown(at("foreign"), 12345, (gid_t)-1) != 0) {
        check_refused("/", TB_E_DENIED, "uid"); /* root's, and we are not */
        return;
    }
    check_refused(at("foreign"), TB_E_DENIED, "uid");
}

/* Far beyond the 108 bytes of a socket's address. */
static void P28_long_path(void)
{
    char name[200];
    begin();
    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    check_works(at(name));
    char deep[1024];
    snprintf(deep, sizeof deep, "%.500s/%s", at(name), name);
    check_works(deep);
}

/* In a mount namespace of its own: a file system with room for almost nothing. */
static void full_file_system(void *argument)
{
    const char *options = argument;
    tb_bus *bus;
    begin();
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        parent_reached("not allowed");
        return;
    }
    parent_reached("allowed");
    CHECK(mkdir(at("small"), 0700) == 0);
    CHECK(mount("tmpfs", at("small"), "tmpfs", 0, options) == 0);
    CHECK(open_in(at("small"), &bus) < 0);
    CHECK_HAS(tb_last_error_text(), "No space left on device");
    CHECK_HAS(tb_last_error_text(), "small");
    CHECK(umount(at("small")) == 0);
    check_works(at("small"));
}

static void P28_full_file_system(void)
{
    static char one_inode[] = "mode=0700,nr_inodes=1";    /* the flow's directory does not fit */
    static char three_inodes[] = "mode=0700,nr_inodes=3"; /* that and a lock do, no socket */
    char *cases[] = {one_inode, three_inodes};
    for (int i = 0; i < 2; i++) {
        struct child child;
        child_start(&child, "full", full_file_system, cases[i]);
        struct {
            char name[48];
        } said;
        child_hear(&child, &said, sizeof said);
        child_join(&child);
        if (strcmp(said.name, "allowed") != 0) {
            harness_skip("mounting needs root");
        }
        CHECK(rmdir(at("small")) == 0 || errno == ENOENT || errno == ENOTEMPTY);
        begin();
        char command[400];
        snprintf(command, sizeof command, "rm -rf '%s/small'", base);
        CHECK(system(command) == 0);
    }
}

static void P28_from_the_environment(void)
{
    struct stat status;
    begin();
    CHECK(mkdir(at("xdg"), 0700) == 0);
    CHECK(setenv("XDG_RUNTIME_DIR", at("xdg"), 1) == 0);
    CHECK(unsetenv("TENSORBUS_DIR") == 0);
    check_works(NULL);
    CHECK(stat(at("xdg/tensorbus"), &status) == 0 && S_ISDIR(status.st_mode));
    CHECK(setenv("TENSORBUS_DIR", at("ours"), 1) == 0);
    CHECK(setenv("TENSORBUS_FLOW", "abcd1234", 1) == 0);
    check_works(NULL);
    CHECK(stat(at("ours"), &status) == 0 && S_ISDIR(status.st_mode));

    static const char *const bad_flows[] = {"..", ".hidden", "a/b", "has space"};
    for (size_t i = 0; i < sizeof bad_flows / sizeof bad_flows[0]; i++) {
        tb_bus *bus;
        CHECK(setenv("TENSORBUS_FLOW", bad_flows[i], 1) == 0);
        CHECK_STATUS(open_in(NULL, &bus), TB_E_INVALID);
        CHECK_HAS(tb_last_error_text(), bad_flows[i]);
    }
}

static void P28_bad_names(void)
{
    static const char *const names[] = {"", ".", "..", ".x", "a/b", "a b", "a\n"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        tb_bus *bus;
        tb_bus_options options = {.size = sizeof options, .name = names[i]};
        CHECK_STATUS(tb_bus_open(&options, &bus), TB_E_INVALID);
    }
}

/* Too few descriptors for a bus, from none to all but one: the status says that, and nothing leaks.
 */
static void too_few_descriptors_are_a_limit(void)
{
    struct rlimit all;
    tb_bus *bus;
    int refused = 0;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
    unsigned open_now = harness_fd_count();
    for (int more = 0; more < 32; more++) {
        struct rlimit few = {open_now + (rlim_t)more, all.rlim_max};
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        tb_status status = tb_bus_open(NULL, &bus);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &all), 0);
        if (status == TB_OK) {
            tb_bus_close(bus);
            break;
        }
        CHECK_STATUS(status, TB_E_LIMIT);
        CHECK_HAS(tb_last_error_text(), "Too many open files");
        CHECK_EQ(harness_fd_count(), open_now);
        refused++;
    }
    CHECK_LE(4, refused);
    CHECK_LT(refused, 32);
}

static const struct test tests[] = {
    TEST(P28_missing, 10),
    TEST(P28_unsafe_modes, 10),
    TEST(P28_not_a_directory, 10),
    TEST(P28_foreign_owner, 10),
    TEST(P28_long_path, 10),
    TEST(P28_full_file_system, 10),
    TEST(P28_from_the_environment, 10),
    TEST(P28_bad_names, 10),
    TEST(too_few_descriptors_are_a_limit, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
