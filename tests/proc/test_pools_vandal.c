/* P10, P20: readers that attack the memory which they were given. */
#include "proc/pool_support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------ P10 */

static void writing_consumer(void *argument)
{
    int way = *(int *)argument;
    signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit instead */
    tb_bus *bus = open_bus("vandal");
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *frame;
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(5), &frame));
    int64_t *words = tb_frame_tensor(frame)->data;
    if (way == 1) {
        uintptr_t page = (uintptr_t)words & ~(uintptr_t)4095;
        CHECK(mprotect((void *)page, 4096, PROT_READ | PROT_WRITE) != 0);
        CHECK_EQ(errno, EACCES);
    }
    *(volatile int64_t *)words = 666;
    FAIL("the write went through");
}

static void P10_consumer_writes_to_a_frame(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 1000, 2);
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *frame;
    CHECK_OK(write_words(pool, 5, TB_POLL, NULL));
    CHECK_OK(tb_reader_newest(reader, TB_POLL, &frame));
    for (int way = 0; way < 2; way++) {
        struct child vandal;
        child_start(&vandal, "vandal", writing_consumer, &way);
        child_join_signal(&vandal, SIGSEGV);
        CHECK_EQ(words_value(frame), 5);
    }
    tb_frame_release(frame);
    CHECK_OK(write_words(pool, 6, TB_SECONDS(1), NULL));
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ P20 */

/* Try everything on one descriptor of shared memory that may not be changed. */
static void attack(int fd, const char *what, int may_map_writable)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
        return;
    }
    if (ftruncate(fd, 0) == 0 || ftruncate(fd, status.st_size + 4096) == 0) {
        FAIL("%s: truncated", what);
    }
    if (may_map_writable) {
        return;
    }
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) {
        FAIL("%s: punched", what);
    }
    if (pwrite(fd, "x", 1, 0) == 1) {
        FAIL("%s: written", what);
    }
    if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) {
        FAIL("%s: mapped writable", what);
    }
}

/* Open a process's shared memory again through /proc, by descriptors or by mappings. Returns how
 * many could be opened. */
static unsigned attack_through(pid_t pid, const char *kind)
{
    char command[200];
    char line[600];
    unsigned opened = 0;
    snprintf(command, sizeof command, "ls -l /proc/%d/%s 2>/dev/null", (int)pid, kind);
    FILE *list = popen(command, "re");
    CHECK(list != NULL);
    while (fgets(line, sizeof line, list) != NULL) {
        char entry[100];
        char path[200];
        const char *arrow = strstr(line, " -> /memfd:");
        if (arrow == NULL || strstr(arrow, "test-log") != NULL) {
            continue;
        }
        const char *name = arrow;
        while (name > line && name[-1] != ' ') {
            name--;
        }
        snprintf(entry, sizeof entry, "%.*s", (int)(arrow - name), name);
        snprintf(path, sizeof path, "/proc/%d/%s/%s", (int)pid, kind, entry);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            continue;
        }
        opened++;
        /* A doorbell is a counter that everybody may ring: it can be mapped, not cut short. */
        attack(fd, arrow + 4, strstr(arrow, "bell") != NULL);
        close(fd);
    }
    pclose(list);
    return opened;
}

static void vandal_reader(void *argument)
{
    pid_t owner = *(pid_t *)argument;
    tb_bus *bus = open_bus("vandal");
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *frame;
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(5), &frame));
    harness_sleep_us(100000); /* the owner has sealed the page by now */
    CHECK_LT(0, attack_through(owner, "fd"));
    attack_through(owner, "map_files"); /* root alone may open these */
    attack_through(getpid(), "map_files");
    tb_frame_release(frame);
    parent_reached("attacked");
    /* Pull one's own page from under the owner's feet: only one's own mapping goes. */
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long from;
        unsigned long to;
        if (strstr(line, "/memfd:tensorbus-page") != NULL &&
            sscanf(line, "%lx-%lx", &from, &to) == 2) {
            mmap((void *)from, to - from, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        }
    }
    parent_pause("pulled");
    _exit(0); /* its own structures are in ruins */
}

static void P20_reader_attacks_the_memory(void)
{
    struct child vandal;
    pid_t self = getpid();
    child_start(&vandal, "vandal", vandal_reader, &self);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 4096, 3);
    int64_t value = 0;
    while (!child_has_spoken(&vandal, 1)) {
        CHECK_OK(write_words(pool, ++value, TB_SECONDS(1), NULL));
    }
    child_await(&vandal, "attacked");
    child_await(&vandal, "pulled");
    for (int i = 0; i < 100; i++) {
        CHECK_OK(write_words(pool, ++value, TB_SECONDS(1), NULL));
    }
    child_go(&vandal);
    child_join(&vandal);
    harness_allow_sockets(); /* it has not said goodbye */
    CHECK_WITHIN_MS(stats_of(pool).readers == 0, 2000);
    CHECK_OK(write_words(pool, ++value, TB_SECONDS(1), NULL));
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(P10_consumer_writes_to_a_frame, 20),
    TEST(P20_reader_attacks_the_memory, 20),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
