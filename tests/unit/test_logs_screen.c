/* The screen: prefixes, a reader that does not read, notices of what was dropped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "flow/logs_screen.h"

static const char *const names[] = {"one", "two"};
static int reader; /* the other end of the screen */
static int writer;
static struct tb__screen screen;
static struct tb__log_sink sink;

static void open_screen(int fds[2], int colour)
{
    reader = fds[0];
    writer = fds[1];
    fcntl(reader, F_SETFL, O_NONBLOCK);
    assert_int_equal(tb__screen_open(&screen, writer, colour, names, 2), TB_OK);
    sink = tb__screen_sink(&screen);
}

static int begin(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    open_screen(fds, 0);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    tb__screen_fini(&screen);
    close(reader);
    close(writer);
    return 0;
}

static void line(uint32_t node, const char *text)
{
    sink.line(sink.context, node, text, strlen(text));
}

static char got[8 << 20];
static size_t got_length;

static void read_some(void)
{
    ssize_t now;
    while ((now = read(reader, got + got_length, sizeof got - 1 - got_length)) > 0) {
        got_length += (size_t)now;
    }
    got[got_length] = '\0';
}

static const char *read_all(void)
{
    got_length = 0;
    tb__screen_flush(&screen);
    read_some();
    return got;
}

static void prefixes(void **state)
{
    (void)state;
    line(0, "hello");
    line(1, "");
    line(TB__SCREEN_RUNNER, "mine");
    tb__screen_note(&screen, "number %d", 5);
    tb__screen_plain(&screen, "Detected");
    line(0, "\033[2J");
    assert_string_equal(read_all(), "one | hello\ntwo | \ntensorbus | mine\ntensorbus | number 5\n"
                                    "Detected\none | \\x1b[2J\n");
}

static void colours(void **state)
{
    finish(state);
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    open_screen(fds, 1);
    line(0, "x");
    line(1, "y");
    assert_string_equal(read_all(), "\033[36mone |\033[0m x\n\033[33mtwo |\033[0m y\n");
}

static void no_progress_but_on_a_terminal(void **state)
{
    (void)state;
    sink.progress(sink.context, 0, "10%", 3);
    line(0, "20%");
    assert_string_equal(read_all(), "one | 20%\n");
}

/* The descriptor that we were given stays as it was: the shell has it too. */
static void the_given_descriptor_is_not_changed(void **state)
{
    (void)state;
    assert_true(screen.owned);
    assert_int_equal(fcntl(writer, F_GETFL) & O_NONBLOCK, 0);
}

static void check_slow_reader(void)
{
    enum { LINES = 400000 };
    char text[32];
    unsigned long long shown = 0;
    unsigned long long said = 0;
    for (int i = 0; i < LINES; i++) {
        snprintf(text, sizeof text, "line %08d", i);
        line(0, text);
        if (i % 1000 == 0) {
            tb__screen_flush(&screen); /* must not wait although nobody reads */
        }
    }
    assert_true(screen.dropped_lines > 0);
    int left;
    got_length = 0;
    do {
        left = tb__screen_flush(&screen);
        read_some();
    } while (left);
    line(1, "after");
    tb__screen_flush(&screen);
    read_some();
    /* Memory functions, not string functions: those measure all that follows, or a sanitizer does.
     */
    const char *end = got + got_length;
    for (const char *at = got, *next; at < end; at = next) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        assert_non_null(newline);
        next = newline + 1;
        size_t length = (size_t)(next - at);
        shown += length > 11 && memcmp(at, "one | line ", 11) == 0;
        if (length > 12 && length < 512 && memcmp(at, "tensorbus | ", 12) == 0) {
            char said_text[512];
            unsigned long long count;
            memcpy(said_text, at + 12, length - 12);
            said_text[length - 12] = '\0';
            said += sscanf(said_text, "%llu lines are not shown", &count) == 1 ? count : 0;
        }
    }
    assert_true(shown > 100000);
    assert_int_equal(shown + said, LINES);
    assert_non_null(strstr(got, "two | after\n"));
}

static void a_reader_that_does_not_read(void **state)
{
    (void)state;
    check_slow_reader();
}

/* A socket cannot be opened anew, so it is asked before each small write. */
static void a_socket_that_nobody_reads(void **state)
{
    finish(state);
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    open_screen(fds, 0);
    assert_false(screen.owned);
    check_slow_reader();
}

static void a_reader_that_is_gone(void **state)
{
    (void)state;
    close(reader);
    for (int i = 0; i < 1000; i++) {
        line(0, "text");
        assert_false(tb__screen_flush(&screen));
    }
    assert_true(screen.broken);
    tb__screen_finish(&screen, -1);
    reader = dup(writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(prefixes, begin, finish),
        cmocka_unit_test_setup_teardown(colours, begin, finish),
        cmocka_unit_test_setup_teardown(no_progress_but_on_a_terminal, begin, finish),
        cmocka_unit_test_setup_teardown(the_given_descriptor_is_not_changed, begin, finish),
        cmocka_unit_test_setup_teardown(a_reader_that_does_not_read, begin, finish),
        cmocka_unit_test_setup_teardown(a_socket_that_nobody_reads, begin, finish),
        cmocka_unit_test_setup_teardown(a_reader_that_is_gone, begin, finish),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
