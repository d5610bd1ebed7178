/* Logs of nodes: files, rotation, lines, the tail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flow/logs.h"

static char directory[64];
static int directory_fd;
static struct tb__log log_state;
static char lines[1 << 18]; /* what the sink got: "L:text\n" for lines, "P:text\n" for progress */
static size_t lines_length;

static void record(char kind, const char *text, size_t length)
{
    assert_true(lines_length + length + 3 < sizeof lines);
    lines[lines_length++] = kind;
    lines[lines_length++] = ':';
    memcpy(lines + lines_length, text, length);
    lines_length += length;
    lines[lines_length++] = '\n';
    lines[lines_length] = '\0';
}

static void on_line(void *context, uint32_t node, const char *text, size_t length)
{
    (void)context;
    assert_int_equal(node, 7);
    record('L', text, length);
}

static void on_progress(void *context, uint32_t node, const char *text, size_t length)
{
    (void)context;
    (void)node;
    record('P', text, length);
}

static int begin(void **state)
{
    (void)state;
    static const struct tb__log_sink sink = {.line = on_line, .progress = on_progress};
    snprintf(directory, sizeof directory, "/tmp/tb-logs-XXXXXX");
    assert_non_null(mkdtemp(directory));
    directory_fd = open(directory, O_RDONLY | O_DIRECTORY);
    memset(&log_state, 0, sizeof log_state);
    lines_length = 0;
    lines[0] = '\0';
    return tb__log_open(&log_state, directory_fd, "cam", 7, &sink) == TB_OK ? 0 : -1;
}

static int finish(void **state)
{
    (void)state;
    tb__log_fini(&log_state);
    for (unsigned i = 0; i <= TB__LOG_FILES; i++) {
        char name[64];
        tb__log_file_name("cam", i, name, sizeof name);
        (void)unlinkat(directory_fd, name, 0);
    }
    close(directory_fd);
    return rmdir(directory);
}

static void write_text(const char *text)
{
    tb__log_write(&log_state, text, strlen(text));
}

/* A file's bytes; "" when it is not there. */
static const char *contents(unsigned index)
{
    static char buffers[TB__LOG_FILES + 1][4096];
    char name[64];
    tb__log_file_name("cam", index, name, sizeof name);
    char *buffer = buffers[index];
    int fd = openat(directory_fd, name, O_RDONLY);
    ssize_t got = fd >= 0 ? read(fd, buffer, 4095) : 0;
    buffer[got > 0 ? got : 0] = '\0';
    if (fd >= 0) {
        close(fd);
    }
    return buffer;
}

static void lines_and_progress(void **state)
{
    static const struct {
        const char *parts[4];
        const char *seen;
    } cases[] = {
        {{"one\ntwo\n"}, "L:one\nL:two\n"},
        {{"on", "e\n\n", "x"}, "P:on\nL:one\nL:\nP:x\n"},
        {{"dos\r\nline\r", "\n"}, "L:dos\nP:line\nL:line\n"},
        {{"\r10%", "\r20%", "\r30%\n"}, "P:10%\nP:20%\nL:30%\n"},
        {{"10%\r", "20%\r", "\n"}, "P:10%\nP:20%\nL:20%\n"},
        {{"a\rb\rc\rd"}, "P:d\n"}, /* the newest state of a batch is enough */
        {{"a\r\r\r\n"}, "L:a\n"},
        {{"\r\r\n"}, "L:\n"},
        {{"long text\rab\n"}, "L:ab\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int k = 0; k < 4 && cases[i].parts[k] != NULL; k++) {
            write_text(cases[i].parts[k]);
        }
        assert_string_equal(lines, cases[i].seen);
        finish(state);
        begin(state);
    }
}

static void the_end_is_a_line(void **state)
{
    (void)state;
    write_text("no newline");
    assert_string_equal(lines, "P:no newline\n");
    tb__log_end(&log_state);
    assert_string_equal(lines, "P:no newline\nL:no newline\n");
    tb__log_end(&log_state);
    assert_string_equal(lines, "P:no newline\nL:no newline\n");
}

static void long_lines_come_in_pieces(void **state)
{
    (void)state;
    char text[3 * TB__LOG_LINE_MAX + 1];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\n';
    tb__log_write(&log_state, text, sizeof text);
    assert_int_equal(lines_length, 3 * (TB__LOG_LINE_MAX + 3));
    struct stat info;
    assert_int_equal(fstatat(directory_fd, "log_cam.txt", &info, 0), 0);
    assert_int_equal(info.st_size, sizeof text);
}

static void files_change_at_the_end_of_a_line(void **state)
{
    (void)state;
    log_state.file_limit = 20;
    write_text("one two three\n");  /* 14 bytes */
    write_text("four\nfive six\n"); /* "four\n" still fits */
    assert_string_equal(contents(1), "one two three\nfour\n");
    assert_string_equal(contents(0), "five six\n");
    write_text("12345678901234567890"); /* does not fit behind, but alone: the next file */
    assert_string_equal(contents(1), "five six\n");
    assert_string_equal(contents(0), "12345678901234567890");
    write_text("x\n"); /* the line goes on in the next file */
    assert_string_equal(contents(1), "12345678901234567890");
    assert_string_equal(contents(0), "x\n");
}

static void a_line_longer_than_a_file(void **state)
{
    (void)state;
    log_state.file_limit = 8;
    write_text("abcdefghijklmnopqrst\n");
    assert_string_equal(contents(2), "abcdefgh");
    assert_string_equal(contents(1), "ijklmnop");
    assert_string_equal(contents(0), "qrst\n");
}

static void the_oldest_files_go(void **state)
{
    (void)state;
    log_state.file_limit = 4;
    for (char c = 'a'; c <= 'j'; c++) {
        const char line[] = {c, c, c, '\n', '\0'};
        write_text(line);
    }
    for (unsigned i = 0; i < TB__LOG_FILES; i++) {
        char c = (char)('j' - i);
        const char line[] = {c, c, c, '\n', '\0'};
        assert_string_equal(contents(i), line);
    }
    assert_string_equal(contents(TB__LOG_FILES), "");
    assert_int_equal(log_state.total_bytes, 40);
    assert_int_equal(log_state.lost_bytes, 0);
}

/* Any cutting of the input gives the same bytes in the files. */
static void cutting_makes_no_difference(void **state)
{
    static const char text[] = "alpha\nbe\r\n\ngamma delta epsilon zeta eta theta\niota\nkappa";
    for (size_t cut = 1; cut < sizeof text; cut++) {
        log_state.file_limit = 200;
        for (size_t at = 0; at < sizeof text - 1; at += cut) {
            size_t left = sizeof text - 1 - at;
            tb__log_write(&log_state, text + at, left < cut ? left : cut);
        }
        tb__log_end(&log_state);
        assert_string_equal(contents(0), text);
        assert_memory_equal(log_state.tail, text, sizeof text - 1);
        assert_int_equal(log_state.tail_length, sizeof text - 1);
        finish(state);
        begin(state);
    }
}

static void the_tail_is_the_newest(void **state)
{
    (void)state;
    char text[1000];
    for (int i = 0; i < 30; i++) {
        memset(text, 'a' + i % 26, sizeof text);
        tb__log_write(&log_state, text, sizeof text);
    }
    assert_int_equal(log_state.tail_length, TB__LOG_TAIL_BYTES);
    assert_int_equal(log_state.tail[TB__LOG_TAIL_BYTES - 1], 'a' + 29 % 26);
    assert_int_equal(log_state.tail[TB__LOG_TAIL_BYTES - 1001], 'a' + 28 % 26);
    char big[2 * TB__LOG_TAIL_BYTES];
    memset(big, '1', sizeof big);
    big[sizeof big - 1] = '2';
    tb__log_write(&log_state, big, sizeof big);
    assert_int_equal(log_state.tail[0], '1');
    assert_int_equal(log_state.tail[TB__LOG_TAIL_BYTES - 1], '2');
}

static void what_cannot_be_kept_is_counted(void **state)
{
    (void)state;
    close(log_state.file_fd);
    log_state.file_fd = open("/dev/full", O_WRONLY);
    write_text("lost\n");
    assert_int_equal(log_state.lost_bytes, 5);
    assert_string_equal(lines, "L:lost\n"); /* shown all the same */
}

static void names_of_files_do_not_collide(void **state)
{
    (void)state;
    char rotated[64];
    char newest[64];
    tb__log_file_name("a", 1, rotated, sizeof rotated);
    tb__log_file_name("a.1", 0, newest, sizeof newest);
    assert_string_not_equal(rotated, newest);
    tb__log_file_name("a.txt.1", 0, newest, sizeof newest);
    assert_string_not_equal(rotated, newest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_and_progress, begin, finish),
        cmocka_unit_test_setup_teardown(the_end_is_a_line, begin, finish),
        cmocka_unit_test_setup_teardown(long_lines_come_in_pieces, begin, finish),
        cmocka_unit_test_setup_teardown(files_change_at_the_end_of_a_line, begin, finish),
        cmocka_unit_test_setup_teardown(a_line_longer_than_a_file, begin, finish),
        cmocka_unit_test_setup_teardown(the_oldest_files_go, begin, finish),
        cmocka_unit_test_setup_teardown(cutting_makes_no_difference, begin, finish),
        cmocka_unit_test_setup_teardown(the_tail_is_the_newest, begin, finish),
        cmocka_unit_test_setup_teardown(what_cannot_be_kept_is_counted, begin, finish),
        cmocka_unit_test(names_of_files_do_not_collide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
