/* Reading logs. The directory's name comes from a file that others can write, so everything is
 * opened without following links, must be a regular file, and is read in bounded pieces.
 *
 * Following looks at the files ten times a second: a log has one writer, which knows nothing of its
 * readers. When the newest file has been renamed, what is left of it is read before its successor.
 * One thread. */
#include "flow/logs_read.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/name.h"
#include "flow/flow.h"
#include "flow/logs.h"
#include "flow/logs_text.h"
#include "flow/run_directory.h"

#define LOOK_NS INT64_C(100000000)
#define READ_BYTES 65536
#define OPEN_FILE (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
#define OPEN_DIRECTORY (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#define ID_LENGTH 8 /* hex digits at the start of a directory's name */

/* One node's log while it is printed. */
struct reading {
    char name[TB__NAME_SIZE];
    int fd; /* newest file, -1: not there */
    char line[TB__LOG_LINE_MAX];
    size_t line_length;
};

struct printer {
    const struct tb__logs_read_options *options;
    FILE *out;
    int directory_fd;
    struct reading *readings;
    uint32_t count;
};

static int open_log(const struct printer *printer, const char *node, unsigned index)
{
    char name[TB__NAME_SIZE + 32];
    struct stat info;
    tb__log_file_name(node, index, name, sizeof name);
    int fd = openat(printer->directory_fd, name, OPEN_FILE);
    if (fd >= 0 && (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))) {
        tb__fd_close(&fd);
    }
    return fd;
}

/* ---- printing ---- */

static void print_line(const struct printer *printer, struct reading *reading)
{
    char text[TB__LOG_TEXT_ROOM(TB__LOG_LINE_MAX)];
    const char *shown = reading->line;
    size_t length = reading->line_length;
    if (printer->count > 1) {
        fprintf(printer->out, "%s | ", reading->name);
    }
    if (printer->options->terminal) {
        length = tb__log_text(reading->line, length, text);
        shown = text;
    }
    (void)fwrite(shown, 1, length, printer->out);
    (void)fputc('\n', printer->out);
    reading->line_length = 0;
}

static void print_bytes(const struct printer *printer, struct reading *reading, const char *bytes,
                        size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == '\n') {
            print_line(printer, reading);
        } else {
            if (reading->line_length == sizeof reading->line) {
                print_line(printer, reading);
            }
            reading->line[reading->line_length++] = bytes[i];
        }
    }
}

/* Print from the file's present offset to its end. */
static void print_rest(const struct printer *printer, struct reading *reading, int fd)
{
    char buffer[READ_BYTES];
    ssize_t got;
    while (fd >= 0 && (got = read(fd, buffer, sizeof buffer)) > 0) {
        print_bytes(printer, reading, buffer, (size_t)got);
    }
}

/* Where the last `lines` lines of a file begin; *found is how many there are (at most `lines`). A
 * line that has no newline yet counts. */
static off_t last_lines(int fd, uint64_t lines, uint64_t *found)
{
    char buffer[READ_BYTES];
    off_t size = lseek(fd, 0, SEEK_END);
    off_t end = size;
    *found = 0;
    while (end > 0) {
        size_t length = end < READ_BYTES ? (size_t)end : READ_BYTES;
        off_t begin = end - (off_t)length;
        if (pread(fd, buffer, length, begin) != (ssize_t)length) {
            break;
        }
        for (size_t i = length; i > 0; i--) {
            off_t at = begin + (off_t)i; /* behind the byte that is looked at */
            if (buffer[i - 1] == '\n' && at != size && ++*found == lines) {
                return at;
            }
        }
        end = begin;
    }
    *found += size > 0; /* the first line */
    return 0;
}

/* What is kept of one node, the oldest file first. Leaves the newest open at its end. */
static void print_kept(const struct printer *printer, struct reading *reading)
{
    int fds[TB__LOG_FILES];
    uint64_t left = printer->options->lines;
    int oldest = -1;
    for (unsigned i = 0; i < TB__LOG_FILES && left > 0; i++) {
        fds[i] = open_log(printer, reading->name, i);
        if (fds[i] < 0) {
            break;
        }
        oldest = (int)i;
        uint64_t found = 0;
        off_t begin = left == UINT64_MAX ? 0 : last_lines(fds[i], left, &found);
        (void)lseek(fds[i], begin, SEEK_SET);
        left -= found;
    }
    for (int i = oldest; i >= 0; i--) {
        print_rest(printer, reading, fds[i]);
        if (i > 0) {
            tb__fd_close(&fds[i]);
        }
    }
    reading->fd = oldest >= 0 ? fds[0] : open_log(printer, reading->name, 0);
    if (oldest < 0 && reading->fd >= 0) { /* no lines were asked for */
        (void)lseek(reading->fd, 0, SEEK_END);
    }
}

/* ---- following ---- */

static int same_file(int left, int right)
{
    struct stat a;
    struct stat b;
    return fstat(left, &a) == 0 && fstat(right, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static void follow_one(const struct printer *printer, struct reading *reading)
{
    int newest = open_log(printer, reading->name, 0);
    print_rest(printer, reading, reading->fd);
    if (newest < 0 || (reading->fd >= 0 && same_file(newest, reading->fd))) {
        tb__fd_close(&newest);
        return;
    }
    /* Rotated. Files between the two were missed if it happened more than once since the last
     * look; find where we were. */
    for (unsigned i = TB__LOG_FILES - 1; i > 0 && reading->fd >= 0; i--) {
        int older = open_log(printer, reading->name, i);
        if (older >= 0 && same_file(older, reading->fd)) {
            for (unsigned k = i - 1; k > 0; k--) {
                int between = open_log(printer, reading->name, k);
                print_rest(printer, reading, between);
                tb__fd_close(&between);
            }
        }
        tb__fd_close(&older);
    }
    tb__fd_close(&reading->fd);
    reading->fd = newest;
    print_rest(printer, reading, newest);
}

static int still_runs(const struct tb__logs_read_options *options)
{
    int fd = openat(options->root_fd, options->flow, OPEN_DIRECTORY | O_NOFOLLOW);
    int runs = fd >= 0 && tb__run_directory_locked(fd);
    tb__fd_close(&fd);
    return runs;
}

static void follow(const struct printer *printer)
{
    for (int runs = 1; runs;) {
        runs = still_runs(printer->options); /* before the look, so that nothing is missed */
        for (uint32_t i = 0; i < printer->count; i++) {
            follow_one(printer, &printer->readings[i]);
        }
        if (fflush(printer->out) != 0) {
            return; /* nobody reads any more */
        }
        struct timespec pause = tb__timespec(LOOK_NS);
        nanosleep(&pause, NULL);
    }
}

/* ---- which nodes ---- */

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct reading *)left)->name, ((const struct reading *)right)->name);
}

/* The node whose newest file this is: log_<node>.txt. */
static int node_of_file(const char *file, char node[TB__NAME_SIZE])
{
    size_t length = strlen(file);
    if (length <= 8 || length - 8 >= TB__NAME_SIZE || strncmp(file, "log_", 4) != 0 ||
        strcmp(file + length - 4, ".txt") != 0) {
        return 0;
    }
    memcpy(node, file + 4, length - 8);
    node[length - 8] = '\0';
    return tb__name_valid(node);
}

static tb_status list_nodes(struct printer *printer)
{
    const struct tb__logs_read_options *options = printer->options;
    int copy = openat(printer->directory_fd, ".", OPEN_DIRECTORY);
    DIR *stream = copy >= 0 ? fdopendir(copy) : NULL;
    printer->readings = calloc(TB__FLOW_NODES_MAX, sizeof *printer->readings);
    if (stream == NULL || printer->readings == NULL) {
        tb_status status = TB__FAIL_ERRNO(TB_E_SYSTEM, "reading `%s`", options->directory);
        if (stream != NULL) {
            closedir(stream);
        } else {
            tb__fd_close(&copy);
        }
        return status;
    }
    struct dirent *entry;
    char names[256] = "";
    size_t used = 0;
    while (printer->count < TB__FLOW_NODES_MAX && (entry = readdir(stream)) != NULL) {
        struct reading *reading = &printer->readings[printer->count];
        if (!node_of_file(entry->d_name, reading->name)) {
            continue;
        }
        if (used < sizeof names) {
            used += (size_t)snprintf(names + used, sizeof names - used, " %s", reading->name);
        }
        if (options->node == NULL || strcmp(options->node, reading->name) == 0) {
            reading->fd = -1;
            printer->count++;
        }
    }
    closedir(stream);
    qsort(printer->readings, printer->count, sizeof *printer->readings, by_name);
    if (printer->count == 0) {
        return TB__FAIL(TB_E_NOT_FOUND, "no log of node `%.64s` in `%s`; there are:%s",
                        options->node != NULL ? options->node : "*", options->directory, names);
    }
    return TB_OK;
}

tb_status tb__logs_print(const struct tb__logs_read_options *options, FILE *out)
{
    struct printer printer = {.options = options, .out = out};
    printer.directory_fd = open(options->directory, OPEN_DIRECTORY);
    if (printer.directory_fd < 0) {
        return TB__FAIL_ERRNO(TB_E_NOT_FOUND, "opening the directory of logs `%s`",
                              options->directory);
    }
    tb_status status = list_nodes(&printer);
    for (uint32_t i = 0; status == TB_OK && i < printer.count; i++) {
        print_kept(&printer, &printer.readings[i]);
        if (options->flow == NULL && printer.readings[i].line_length > 0) {
            print_line(&printer, &printer.readings[i]);
        }
    }
    if (status == TB_OK && options->flow != NULL) {
        follow(&printer);
    }
    for (uint32_t i = 0; i < printer.count; i++) {
        if (printer.readings[i].line_length > 0) {
            print_line(&printer, &printer.readings[i]);
        }
        tb__fd_close(&printer.readings[i].fd);
    }
    free(printer.readings);
    tb__fd_close(&printer.directory_fd);
    return status;
}

/* ---- ended runs ---- */

/* Whether "<id>-<name>" is a run with this id or name. */
static int directory_fits(const char *directory, const char *which)
{
    size_t digits = strspn(directory, "0123456789abcdef");
    if (digits != ID_LENGTH || directory[digits] != '-' ||
        !tb__name_valid(directory + digits + 1)) {
        return 0;
    }
    return which == NULL || strcmp(directory + digits + 1, which) == 0 ||
           (strlen(which) == ID_LENGTH && strncmp(directory, which, ID_LENGTH) == 0);
}

tb_status tb__logs_find(const char *out_directory, const char *which, char *path, size_t size)
{
    DIR *stream = opendir(out_directory);
    struct timespec newest = {.tv_sec = 0};
    struct dirent *entry;
    int found = 0;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        struct stat info;
        if (!directory_fits(entry->d_name, which) ||
            fstatat(dirfd(stream), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISDIR(info.st_mode)) {
            continue;
        }
        int newer = !found || info.st_mtim.tv_sec > newest.tv_sec ||
                    (info.st_mtim.tv_sec == newest.tv_sec && info.st_mtim.tv_nsec > newest.tv_nsec);
        if (newer && snprintf(path, size, "%s/%s", out_directory, entry->d_name) < (int)size) {
            newest = info.st_mtim;
            found = 1;
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    if (found) {
        return TB_OK;
    }
    return which != NULL ? TB__FAIL(TB_E_NOT_FOUND,
                                    "no flow `%.64s` is running, and none of that id or name has "
                                    "logs in `%s`",
                                    which, out_directory)
                         : TB__FAIL(TB_E_NOT_FOUND, "no flow is running, and `%s` has no logs",
                                    out_directory);
}
