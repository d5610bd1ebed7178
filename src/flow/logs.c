/* Logs of nodes.
 *
 * The files keep the bytes exactly as they were printed, so nothing is lost to line length,
 * carriage returns or binary output. The newest is log_<node>.txt; when it is full it becomes
 * log_<node>.txt.1, and so on: the newest 40 to 50 MiB are there. Files change at the end of a line
 * where there is one. The screen gets lines (see logs_screen.c).
 *
 * Driven by the runner's loop; one thread. */
#define TB_LOG_TOPIC "flow"
#include "flow/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"

#define FILE_NAME_SIZE 128

void tb__log_file_name(const char *name, unsigned index, char *out, size_t size)
{
    if (index == 0) {
        snprintf(out, size, "log_%s.txt", name);
    } else {
        snprintf(out, size, "log_%s.txt.%u", name, index);
    }
}

static tb_status open_file(struct tb__log *log)
{
    char name[FILE_NAME_SIZE];
    tb__log_file_name(log->name, 0, name, sizeof name);
    log->file_bytes = 0;
    log->at_line_start = 1;
    log->file_fd = openat(log->directory_fd, name,
                          O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (log->file_fd < 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "creating the log file `%s`", name);
    }
    return TB_OK;
}

tb_status tb__log_open(struct tb__log *log, int borrow_directory_fd, const char *name,
                       uint32_t node, const struct tb__log_sink *sink)
{
    log->sink = *sink;
    log->node = node;
    log->directory_fd = borrow_directory_fd;
    log->file_limit = TB__LOG_FILE_BYTES;
    tb__name_copy(log->name, name);
    return open_file(log);
}

void tb__log_fini(struct tb__log *log)
{
    if (log->name[0] != '\0') { /* else never opened, and file_fd is 0 */
        tb__fd_close(&log->file_fd);
    }
}

static void rotate(struct tb__log *log)
{
    char from[FILE_NAME_SIZE];
    char to[FILE_NAME_SIZE];
    tb__fd_close(&log->file_fd);
    for (unsigned i = TB__LOG_FILES - 1; i > 0; i--) {
        tb__log_file_name(log->name, i - 1, from, sizeof from);
        tb__log_file_name(log->name, i, to, sizeof to);
        (void)renameat(log->directory_fd, from, log->directory_fd, to);
    }
    if (open_file(log) != TB_OK) {
        tb_log_warn_limited("node `%s`: %s; its output is no longer kept", log->name,
                            tb_last_error_text());
    }
}

/* Append to the newest file; what does not fit on the disk is counted, and said. */
static void append(struct tb__log *log, const char *bytes, size_t length)
{
    while (length > 0 && log->file_fd >= 0) {
        ssize_t put = write(log->file_fd, bytes, length);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            tb_log_warn_limited("node `%s`: writing its log file: %s", log->name, strerror(errno));
            break;
        }
        log->file_bytes += (uint64_t)put;
        log->at_line_start = bytes[put - 1] == '\n';
        bytes += put;
        length -= (size_t)put;
    }
    log->lost_bytes += length;
}

/* How many of the next bytes still belong to the present file: up to the last newline that fits. */
static size_t fitting(const struct tb__log *log, const char *bytes, size_t length)
{
    uint64_t room = log->file_limit > log->file_bytes ? log->file_limit - log->file_bytes : 0;
    if (length <= room) {
        return length;
    }
    const char *newline = memrchr(bytes, '\n', (size_t)room);
    if (newline != NULL) {
        return (size_t)(newline - bytes) + 1;
    }
    return log->at_line_start && log->file_bytes > 0 ? 0 : (size_t)room;
}

static void keep(struct tb__log *log, const char *bytes, size_t length)
{
    while (length > 0) {
        size_t now = fitting(log, bytes, length);
        append(log, bytes, now);
        bytes += now;
        length -= now;
        if (length > 0) {
            rotate(log);
        }
    }
}

static void keep_tail(struct tb__log *log, const char *bytes, size_t length)
{
    if (length >= sizeof log->tail) {
        memcpy(log->tail, bytes + length - sizeof log->tail, sizeof log->tail);
        log->tail_length = sizeof log->tail;
        return;
    }
    size_t room = sizeof log->tail - log->tail_length;
    if (length > room) {
        size_t drop = length - room;
        memmove(log->tail, log->tail + drop, log->tail_length - drop);
        log->tail_length -= drop;
    }
    memcpy(log->tail + log->tail_length, bytes, length);
    log->tail_length += length;
}

static void emit_line(struct tb__log *log)
{
    log->sink.line(log->sink.context, log->node, log->line, log->line_length);
    log->line_length = 0;
    log->rewriting = 0;
}

static void emit_progress(struct tb__log *log)
{
    if (log->line_length > 0) {
        log->sink.progress(log->sink.context, log->node, log->line, log->line_length);
    }
}

/* Add text without newline or carriage return to the present line. */
static void add_text(struct tb__log *log, const char *text, size_t length)
{
    if (length > 0 && log->rewriting) {
        log->line_length = 0;
        log->rewriting = 0;
    }
    while (length > 0) {
        if (log->line_length == sizeof log->line) {
            emit_line(log);
        }
        size_t room = sizeof log->line - log->line_length;
        size_t now = length < room ? length : room;
        memcpy(log->line + log->line_length, text, now);
        log->line_length += now;
        text += now;
        length -= now;
    }
}

/* The first newline or carriage return, or the end. */
static size_t text_length(const char *bytes, size_t length)
{
    const char *newline = memchr(bytes, '\n', length);
    size_t end = newline != NULL ? (size_t)(newline - bytes) : length;
    const char *carriage = memchr(bytes, '\r', end);
    return carriage != NULL ? (size_t)(carriage - bytes) : end;
}

static void split(struct tb__log *log, const char *bytes, size_t length)
{
    while (length > 0) {
        size_t text = text_length(bytes, length);
        add_text(log, bytes, text);
        if (text == length) {
            break;
        }
        if (bytes[text] == '\n') {
            emit_line(log);
        } else {
            log->rewriting = 1;
        }
        bytes += text + 1;
        length -= text + 1;
    }
    emit_progress(log); /* one per batch is enough: the newest */
}

void tb__log_write(struct tb__log *log, const char *bytes, size_t length)
{
    log->total_bytes += length;
    keep(log, bytes, length);
    keep_tail(log, bytes, length);
    split(log, bytes, length);
}

void tb__log_end(struct tb__log *log)
{
    if (log->line_length > 0) {
        emit_line(log);
    }
}
