/* Row of the memory that a pool reserves beyond its slots. */
#include "bench/rows.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/processes.h"
#include "bench/ways.h"

#define SLOTS 4
#define FRAME_BYTES 6220800
#define MAX_FILES 64

static const struct tb__bench_text text = {
    .does = "An owner with one pool of 6,220,800 byte frames in 4 slots, and two reader processes, "
            "each of which has taken a frame.",
    .interval = "Sizes of all memfds of the three processes, mapped (/proc/PID/maps) or open "
                "(/proc/PID/fd), each file once, minus 4 x 6,220,800.",
    .floor = "Rounding four slots to whole pages costs 4 KiB; a header, two pages and three "
             "doorbells are 6 more.",
};
static const struct tb__bench_row rows[] = {{"memory/reserved", "KiB", &text}};

struct file {
    uint64_t inode;
    uint64_t bytes;
};

struct files {
    struct file list[MAX_FILES];
    int count;
};

static tb_status files_note(struct files *files, uint64_t inode, uint64_t bytes)
{
    for (int i = 0; i < files->count; i++) {
        if (files->list[i].inode == inode) {
            if (bytes > files->list[i].bytes) {
                files->list[i].bytes = bytes;
            }
            return TB_OK;
        }
    }
    if (files->count == MAX_FILES) {
        return TB__FAIL(TB_E_LIMIT, "more than %d memfds", MAX_FILES);
    }
    files->list[files->count++] = (struct file){inode, bytes};
    return TB_OK;
}

/* Mappings: a file reaches at least as far as its furthest mapping. */
static tb_status files_of_maps(struct files *files, pid_t pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    tb_status status = TB_OK;
    if (maps == NULL) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot read %s", path);
    }
    while (status == TB_OK && fgets(line, sizeof line, maps) != NULL) {
        uint64_t from, to, offset, inode;
        if (strstr(line, "/memfd:") != NULL &&
            sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64, &from, &to,
                   &offset, &inode) == 4) {
            status = files_note(files, inode, offset + (to - from));
        }
    }
    fclose(maps);
    return status;
}

/* Open descriptors: the exact size. */
static tb_status files_of_descriptors(struct files *files, pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *directory = opendir(path);
    tb_status status = TB_OK;
    struct dirent *entry;
    if (directory == NULL) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot read %s", path);
    }
    while (status == TB_OK && (entry = readdir(directory)) != NULL) {
        char link[400], target[64] = "";
        struct stat info;
        snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
        ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
        if (length > 0 && strncmp(target, "/memfd:", 7) == 0 && stat(link, &info) == 0) {
            status = files_note(files, info.st_ino, (uint64_t)info.st_size);
        }
    }
    closedir(directory);
    return status;
}

static tb_status owner_main(struct tb__side *side, void *argument)
{
    tb_bus *bus = NULL;
    tb_pool *pool = NULL;
    (void)argument;
    TB__TRY(tb__way_register("reserved", TB_CPU, FRAME_BYTES, SLOTS, &bus, &pool));
    tb__side_reply(side, 1);
    while (tb__side_wait(side) != TB__SIDE_STOP) {
        tb_loan *loan;
        TB__TRY(tb_pool_loan(pool, TB_SECONDS(1), &loan));
        TB__TRY(tb_loan_publish(loan, NULL));
        tb__side_reply(side, 1);
    }
    tb_pool_close(pool);
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status reader_main(struct tb__side *side, void *argument)
{
    tb_bus *bus = NULL;
    tb_reader *reader;
    tb_frame *frame;
    (void)argument;
    TB__TRY(tb__way_attach("reserved", 0, &bus, &reader));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_status status = tb_reader_next(reader, TB_SECONDS(5), &frame);
    if (status != TB_OK) {
        return status == TB_AGAIN ? TB__FAIL(TB_AGAIN, "no frame came") : status;
    }
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_frame_release(frame);
    tb_reader_close(reader);
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status measure(struct tb__side sides[3], struct files *files)
{
    for (int i = 0; i < 3; i++) {
        TB__TRY(tb__side_start(&sides[i], i > 0 ? "reader" : "owner", -1,
                               i > 0 ? reader_main : owner_main, NULL));
        TB__TRY(tb__side_answer(&sides[i], NULL));
    }
    for (int i = 2; i >= 0; i--) {
        TB__TRY(tb__side_command(&sides[i], 1));
    }
    for (int i = 0; i < 3; i++) {
        TB__TRY(tb__side_answer(&sides[i], NULL));
    }
    for (int i = 0; i < 3; i++) {
        TB__TRY(files_of_maps(files, sides[i].pid));
        TB__TRY(files_of_descriptors(files, sides[i].pid));
    }
    return TB_OK;
}

static tb_status memory_run(struct tb__bench *bench)
{
    struct tb__side sides[3] = {{0}, {0}, {0}};
    struct files files = {.count = 0};
    tb_status status = measure(sides, &files);
    for (int i = 2; i >= 0; i--) {
        tb__side_stop(&sides[i]);
    }
    if (status == TB_OK) {
        uint64_t bytes = 0;
        for (int i = 0; i < files.count; i++) {
            bytes += files.list[i].bytes;
        }
        double extra = ((double)bytes - (double)SLOTS * FRAME_BYTES) / 1024;
        struct tb__figure figure;
        tb__figure_of(&extra, 1, &figure);
        tb__bench_report(bench, rows[0].name, &figure, NAN,
                         "%d memfds of %" PRIu64 " bytes together", files.count, bytes);
    }
    return status;
}

const struct tb__bench_group tb__group_memory = {rows, 1, memory_run};
