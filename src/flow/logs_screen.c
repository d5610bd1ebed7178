/* Lines on their way to standard output.
 *
 * A terminal that is stopped (Ctrl-S) or a slow pipe must not slow the nodes, so lines wait in a
 * bounded buffer and are dropped, counted and said when it is full (the log files have them). The
 * output is opened anew for that, since setting O_NONBLOCK on the descriptor that we were given
 * would change it for the shell as well. On a terminal a node's progress bar is one line at the
 * bottom that is rewritten; elsewhere only its last state is printed.
 *
 * Driven by the runner's loop; one thread. */
#include "flow/logs_screen.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "flow/logs_text.h"

#define RUNNER_NAME "tensorbus"
#define PREFIX_ROOM (TB__NAME_SIZE + 32)
#define ERASE_LINE "\r\033[K"

tb_status tb__screen_open(struct tb__screen *screen, int borrow_fd, int colour,
                          const char *const *names, uint32_t name_count)
{
    *screen = (struct tb__screen){.fd = borrow_fd, .names = names, .name_count = name_count};
    screen->buffer = malloc(TB__SCREEN_BUFFER_BYTES);
    if (screen->buffer == NULL) {
        return TB__FAIL(TB_E_NOMEM, "%u bytes for lines on their way to the screen",
                        TB__SCREEN_BUFFER_BYTES);
    }
    struct stat info;
    screen->plain_file = fstat(borrow_fd, &info) == 0 && S_ISREG(info.st_mode);
    screen->terminal = isatty(borrow_fd);
    screen->colour = colour;
    if (!screen->plain_file) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", borrow_fd);
        int fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd >= 0) {
            screen->fd = fd;
            screen->owned = 1;
        } /* else a socket or another user's terminal: see ready() */
    }
    return TB_OK;
}

void tb__screen_fini(struct tb__screen *screen)
{
    if (screen->owned) {
        tb__fd_close(&screen->fd);
        screen->owned = 0;
    }
    free(screen->buffer);
    screen->buffer = NULL;
}

/* Room for `bytes` more, or 0. */
static int make_room(struct tb__screen *screen, size_t bytes)
{
    if (screen->sent > 0 && TB__SCREEN_BUFFER_BYTES - screen->used < bytes) {
        memmove(screen->buffer, screen->buffer + screen->sent, screen->used - screen->sent);
        screen->used -= screen->sent;
        screen->sent = 0;
    }
    return TB__SCREEN_BUFFER_BYTES - screen->used >= bytes;
}

static void put(struct tb__screen *screen, const char *text, size_t length)
{
    memcpy(screen->buffer + screen->used, text, length);
    screen->used += length;
}

static void put_prefix(struct tb__screen *screen, uint32_t node)
{
    static const char *const colours[] = {"36", "33", "35", "32", "34",
                                          "96", "93", "95", "92", "94"};
    const char *name = node < screen->name_count ? screen->names[node] : RUNNER_NAME;
    char text[PREFIX_ROOM];
    int length;
    if (screen->colour) {
        const char *colour =
            node < screen->name_count ? colours[node % (sizeof colours / sizeof colours[0])] : "1";
        length = snprintf(text, sizeof text, "\033[%sm%s |\033[0m ", colour, name);
    } else {
        length = snprintf(text, sizeof text, "%s | ", name);
    }
    put(screen, text, (size_t)length);
}

static void erase_live(struct tb__screen *screen)
{
    if (screen->live_drawn) {
        put(screen, ERASE_LINE, sizeof ERASE_LINE - 1);
        screen->live_drawn = 0;
    }
}

static void put_line(struct tb__screen *screen, uint32_t node, const char *text, size_t length)
{
    erase_live(screen);
    put_prefix(screen, node);
    screen->used += tb__log_text(text, length, screen->buffer + screen->used);
    put(screen, "\n", 1);
}

/* Once there is room again, say what is missing. */
static void put_notice(struct tb__screen *screen)
{
    char text[160];
    int length = snprintf(text, sizeof text,
                          "%llu lines are not shown here, the output is read too slowly; the log "
                          "files have them",
                          (unsigned long long)screen->dropped_lines);
    screen->dropped_lines = 0;
    put_line(screen, TB__SCREEN_RUNNER, text, (size_t)length);
}

static void on_line(void *context, uint32_t node, const char *text, size_t length)
{
    struct tb__screen *screen = context;
    if (screen->live_length > 0 && screen->live_node == node) {
        screen->live_length = 0;
    }
    if (screen->broken) {
        return;
    }
    size_t need = TB__LOG_TEXT_ROOM(length) + 2 * PREFIX_ROOM;
    /* After a drop the buffer must have half its room again, or each line would bring a notice. */
    size_t wanted = screen->dropped_lines > 0 ? TB__SCREEN_BUFFER_BYTES / 2 : need;
    if (!make_room(screen, wanted)) {
        screen->dropped_lines++;
        screen->dropped_total++;
        return;
    }
    if (screen->dropped_lines > 0) {
        put_notice(screen);
    }
    put_line(screen, node, text, length);
}

static void on_progress(void *context, uint32_t node, const char *text, size_t length)
{
    struct tb__screen *screen = context;
    if (!screen->terminal) {
        return;
    }
    screen->live_node = node;
    screen->live_length = length < sizeof screen->live ? length : sizeof screen->live;
    memcpy(screen->live, text, screen->live_length);
    if (make_room(screen, sizeof ERASE_LINE)) {
        erase_live(screen);
    }
}

/* Bytes of a text (made by tb__log_text) that fit into some columns, one column per character. */
static size_t cut_columns(const char *text, size_t length, size_t columns)
{
    size_t at = 0;
    while (at < length) {
        unsigned char byte = (unsigned char)text[at];
        if (byte == 0x1b) {
            while (at < length && text[at] != 'm') {
                at++;
            }
        } else if ((byte & 0xc0) != 0x80 && columns-- == 0) {
            break;
        }
        at += at < length;
    }
    return at;
}

static void draw_live(struct tb__screen *screen)
{
    char text[TB__LOG_TEXT_ROOM(TB__LOG_LINE_MAX)];
    if (screen->live_length == 0 || screen->live_drawn || screen->broken ||
        !make_room(screen, sizeof text + 2 * PREFIX_ROOM)) {
        return;
    }
    struct winsize window = {.ws_col = 80};
    if (ioctl(screen->fd, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) {
        window.ws_col = 80; /* not told */
    }
    const char *name =
        screen->live_node < screen->name_count ? screen->names[screen->live_node] : RUNNER_NAME;
    size_t taken = strlen(name) + 4; /* " | " and the last column, where terminals wrap */
    size_t columns = window.ws_col > taken ? window.ws_col - taken : 0;
    size_t length = tb__log_text(screen->live, screen->live_length, text);
    put_prefix(screen, screen->live_node);
    put(screen, text, cut_columns(text, length, columns));
    if (screen->colour) {
        put(screen, "\033[0m", 4);
    }
    screen->live_drawn = 1;
}

struct tb__log_sink tb__screen_sink(struct tb__screen *screen)
{
    return (struct tb__log_sink){.line = on_line, .progress = on_progress, .context = screen};
}

void tb__screen_note(struct tb__screen *screen, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length > 0) {
        size_t shown = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
        on_line(screen, TB__SCREEN_RUNNER, text, shown);
    }
}

void tb__screen_plain(struct tb__screen *screen, const char *text)
{
    size_t length = strlen(text);
    if (!screen->broken && make_room(screen, length + PREFIX_ROOM)) {
        erase_live(screen);
        put(screen, text, length);
        put(screen, "\n", 1);
    }
}

/* Whether writing a little would not wait. Needed only where the output could not be opened anew.
 */
static int ready(const struct tb__screen *screen)
{
    struct pollfd poll_fd = {.fd = screen->fd, .events = POLLOUT};
    return screen->owned || screen->plain_file || poll(&poll_fd, 1, 0) == 1;
}

int tb__screen_flush(struct tb__screen *screen)
{
    draw_live(screen);
    while (screen->sent < screen->used && !screen->broken && ready(screen)) {
        size_t left = screen->used - screen->sent;
        /* A shared pipe or terminal that is ready takes at least this much. */
        size_t most = screen->owned || screen->plain_file ? left : 1024;
        ssize_t done = write(screen->fd, screen->buffer + screen->sent, left < most ? left : most);
        if (done > 0) {
            screen->sent += (size_t)done;
        } else if (done < 0 && errno == EAGAIN) {
            break;
        } else if (done == 0 || errno != EINTR) {
            screen->broken = 1;
        }
    }
    if (screen->sent == screen->used || screen->broken) {
        screen->sent = 0;
        screen->used = 0;
    }
    return screen->used > screen->sent;
}

void tb__screen_finish(struct tb__screen *screen, int64_t timeout_ns)
{
    int64_t deadline = tb__deadline_ns(timeout_ns);
    for (;;) {
        /* The buffer may be full now: the notice follows as soon as there is room for it. */
        if (screen->dropped_lines > 0 && make_room(screen, 2 * PREFIX_ROOM + 1024)) {
            put_notice(screen);
        }
        int unsent = tb__screen_flush(screen);
        if (screen->broken || (!unsent && screen->dropped_lines == 0)) {
            return;
        }
        int64_t left = tb__left_ns(deadline);
        if (left == 0) {
            return;
        }
        struct pollfd poll_fd = {.fd = screen->fd, .events = POLLOUT};
        int64_t slice = left < 1000000000 ? left : 1000000000;
        (void)poll(&poll_fd, 1, (int)(slice / 1000000) + 1);
    }
}
