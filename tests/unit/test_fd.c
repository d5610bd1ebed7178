/* Descriptors and memfds: what is set on them, what a peer's descriptor must be, small files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define OK(call) assert_int_equal((call), TB_OK)
#define BASE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static void closing(void **state)
{
    (void)state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int kept = fd;
    assert_true(fd >= 0);
    errno = ENOTTY;
    tb__fd_close(&fd);
    assert_int_equal(fd, -1);
    assert_int_equal(errno, ENOTTY);
    assert_int_equal(fcntl(kept, F_GETFD), -1);
    errno = ENOTTY;
    tb__fd_close(&fd);
    assert_int_equal(fd, -1);
    assert_int_equal(errno, ENOTTY);
    fd = 12345; /* not open: close fails, errno is kept */
    tb__fd_close(&fd);
    assert_int_equal(errno, ENOTTY);
}

static void a_memfd_has_its_size_and_seals(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4095, 4096, 4097, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int fd = -1;
        uint64_t bytes = 0;
        struct stat info;
        OK(tb__memfd_create("test", sizes[i], &fd));
        assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        assert_int_equal(fcntl(fd, F_GET_SEALS), BASE_SEALS);
        assert_int_equal(fstat(fd, &info), 0);
        assert_int_equal(info.st_size, sizes[i]);
        assert_int_equal(ftruncate(fd, (off_t)sizes[i] + 1), -1);
        assert_int_equal(ftruncate(fd, (off_t)sizes[i] - 1), -1);
        OK(tb__memfd_check(fd, BASE_SEALS, sizes[i], 0, &bytes));
        assert_int_equal(bytes, sizes[i]);
        OK(tb__memfd_seal(fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
        assert_ptr_equal(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        assert_int_equal(tb__memfd_seal(fd, F_SEAL_WRITE), TB_E_SYSTEM);
        assert_non_null(strstr(tb_last_error_text(), "sealing"));
        tb__fd_close(&fd);
    }
}

static void impossible_memfds_are_errors_without_a_descriptor(void **state)
{
    (void)state;
    int fd = 77;
    assert_int_equal(tb__memfd_create("test", UINT64_MAX, &fd), TB_E_NOMEM);
    assert_int_equal(fd, 77);
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    tb_status status = tb__memfd_create("test", 4096, &fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(status, TB_E_LIMIT);
    assert_int_equal(fd, 77);
}

static void check_refused(int fd, int seals, uint64_t max_bytes, int allocated, const char *text)
{
    uint64_t bytes = 77;
    assert_int_equal(tb__memfd_check(fd, seals, max_bytes, allocated, &bytes), TB_E_PROTOCOL);
    assert_int_equal(bytes, 77);
    if (strstr(tb_last_error_text(), text) == NULL) {
        fail_msg("`%s` is not in `%s`", text, tb_last_error_text());
    }
}

static void what_a_peer_may_send(void **state)
{
    (void)state;
    int fd = -1;
    uint64_t bytes = 0;
    OK(tb__memfd_create("test", 10000, &fd));
    check_refused(fd, BASE_SEALS | F_SEAL_SEAL, 10000, 0, "seals 0x6, 0x7 are needed");
    check_refused(fd, BASE_SEALS, 9999, 0, "10000 bytes, 1 to 9999 are allowed");
    check_refused(fd, BASE_SEALS, 10000, 1, "sparse memory: 0 of 10000 bytes");
    assert_int_equal(posix_fallocate(fd, 0, 8192), 0);
    check_refused(fd, BASE_SEALS, 10000, 1, "sparse memory: 8192 of 10000 bytes");
    assert_int_equal(posix_fallocate(fd, 0, 10000), 0);
    OK(tb__memfd_check(fd, BASE_SEALS, 10000, 1, &bytes));
    assert_int_equal(bytes, 10000);
    OK(tb__memfd_check(fd, 0, UINT64_MAX, 1, &bytes));
    tb__fd_close(&fd);

    OK(tb__memfd_create("test", 0, &fd));
    check_refused(fd, BASE_SEALS, 10000, 0, "memory of 0 bytes");
    tb__fd_close(&fd);

    fd = memfd_create("plain", MFD_CLOEXEC);
    check_refused(fd, BASE_SEALS, 10000, 0, "seals 0x1");
    tb__fd_close(&fd);
}

static void other_descriptors_are_refused(void **state)
{
    (void)state;
    int pipe_fds[2];
    char path[] = "/tmp/tb-test-fd-XXXXXX";
    assert_int_equal(pipe(pipe_fds), 0);
    check_refused(pipe_fds[0], 0, 100, 0, "no sealed memory");
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    check_refused(-1, 0, 100, 0, "no sealed memory");
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    check_refused(null, 0, 100, 0, "no sealed memory");
    close(null);
    int directory = open("/", O_RDONLY | O_CLOEXEC);
    check_refused(directory, 0, 100, 0, "no ");
    close(directory);
    /* A file may have seals where /tmp is a tmpfs, but never the ones that are asked for. */
    int file = mkstemp(path);
    assert_true(file >= 0);
    unlink(path);
    assert_int_equal(ftruncate(file, 50), 0);
    check_refused(file, BASE_SEALS, 100, 0, "a peer sent");
    close(file);
}

static void small_files(void **state)
{
    (void)state;
    char path[] = "/tmp/tb-test-fd-XXXXXX";
    char text[16];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    memset(text, 'x', sizeof text);
    assert_int_equal(tb__file_read(path, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(write(fd, "0123456789abcdefghij", 20), 20);
    assert_int_equal(tb__file_read(path, text, sizeof text), 15);
    assert_string_equal(text, "0123456789abcde");
    for (size_t size = 1; size <= 32; size++) {
        char *exact = malloc(size);
        long expected = size - 1 < 20 ? (long)size - 1 : 20;
        assert_int_equal(tb__file_read(path, exact, size), expected);
        assert_int_equal(strlen(exact), expected);
        free(exact);
    }
    close(fd);
    unlink(path);
    errno = 0;
    assert_int_equal(tb__file_read(path, text, sizeof text), -1);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(tb__file_read("/", text, sizeof text), -1);
    assert_int_equal(errno, EISDIR);
    char status[8192];
    assert_true(tb__file_read("/proc/self/status", status, sizeof status) > 100);
    assert_non_null(strstr(status, "VmRSS"));
}

static int count_open(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

static int before;

static int remember_descriptors(void **state)
{
    (void)state;
    before = count_open();
    return 0;
}

static int none_is_left(void **state)
{
    (void)state;
    return count_open() == before ? 0 : -1;
}

int main(void)
{
#define FD_TEST(function)                                                                          \
    cmocka_unit_test_setup_teardown(function, remember_descriptors, none_is_left)
    const struct CMUnitTest tests[] = {
        FD_TEST(closing),
        FD_TEST(a_memfd_has_its_size_and_seals),
        FD_TEST(impossible_memfds_are_errors_without_a_descriptor),
        FD_TEST(what_a_peer_may_send),
        FD_TEST(other_descriptors_are_refused),
        FD_TEST(small_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
