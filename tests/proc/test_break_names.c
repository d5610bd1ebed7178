/* Bad days of the runtime directory: names that are half made, as long as can be, or out of reach.
 * Each of these went wrong once. */
#include "proc/hostile.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>

static unsigned hidden_entries(const char *path)
{
    unsigned count = 0;
    DIR *entries = opendir(path);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        count += entry->d_name[0] == '.' && strcmp(entry->d_name, ".") != 0 &&
                 strcmp(entry->d_name, "..") != 0;
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return count;
}

/* A process that was killed between binding its socket and giving it its name leaves a hidden one;
 * the next start sweeps it. */
static void half_made_names_are_swept(void)
{
    char path[300];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    tb_bus *bus = open_bus("first");
    tb_bus_close(bus);
    snprintf(path, sizeof path, "%s/default", harness_dir());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.60s/default/.0123456789abcdef.tmp",
             harness_dir());
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    close(fd);
    char link[340];
    snprintf(link, sizeof link, "%s/.0123456789abcdef.link", path);
    CHECK(symlink("0123456789abcdef.sock", link) == 0);
    CHECK_EQ(hidden_entries(path), 2);
    bus = open_bus("second");
    CHECK_EQ(hidden_entries(path), 0);
    tb_bus_close(bus);
}

/* Runs in a process of its own, which loses its /proc. */
static void start_without_proc(void *argument)
{
    tb_bus *bus;
    char go;
    (void)argument;
    parent_hear(&go, 1);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/proc", "tmpfs", 0, NULL) != 0) {
        parent_reached("not allowed");
        return;
    }
    tb_status status = tb_bus_open(NULL, &bus);
    CHECK(umount("/proc") == 0); /* the harness needs it */
    CHECK_LT(status, 0);
    parent_reached("failed");
}

/* A process without /proc cannot connect to anybody: it must not take the living for dead. */
static void names_survive_a_start_without_proc(void)
{
    struct child blind;
    struct {
        char name[48];
    } point;
    tb_reader *reader;
    child_start(&blind, "blind", start_without_proc, NULL);
    tb_bus *owner = open_bus("owner");
    tb_bus *client = open_bus("client");
    register_words(owner, "frames", 8, 2);
    child_go(&blind);
    child_hear(&blind, &point, sizeof point);
    child_join(&blind);
    CHECK_OK(tb_reader_open(client, "owner/frames", NULL, &reader));
    tb_bus_close(client);
    tb_bus_close(owner);
    if (strcmp(point.name, "failed") != 0) {
        harness_skip("mounting takes rights that this user lacks");
    }
}

/* The longest name that is allowed is one like any other: the next start does not sweep it. */
static void longest_name(void)
{
    char name[65];
    char path[140];
    memset(name, 'n', 64);
    name[64] = '\0';
    snprintf(path, sizeof path, "%s/%s", name, name);
    tb_bus *owner = open_bus(name);
    tb_pool *pool = register_words(owner, name, 8, 2);
    tb_bus *client = open_bus("client");
    for (int i = 0; i < 3; i++) {
        tb_reader *reader;
        tb_frame *frame;
        tb_bus *other;
        CHECK_OK(tb_reader_open(client, path, NULL, &reader));
        CHECK_OK(write_words(pool, i, 0, NULL));
        CHECK_OK(tb_reader_next(reader, 0, &frame));
        CHECK_STR(info_of(frame).producer, name);
        CHECK_STR(info_of(frame).pool, name);
        tb_frame_release(frame);
        tb_reader_close(reader);
        CHECK_STATUS(
            tb_bus_open(&(tb_bus_options){.size = sizeof(tb_bus_options), .name = name}, &other),
            TB_E_EXISTS);
    }
    tb_bus_close(client);
    tb_bus_close(owner);
}

static const struct test tests[] = {
    TEST(half_made_names_are_swept, 10),
    TEST(longest_name, 10),
    TEST(names_survive_a_start_without_proc, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
