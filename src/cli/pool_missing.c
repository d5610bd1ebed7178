/* See pool_missing.h. Flows are directories of the runtime directory; processes are in them by
 * their sockets. */
#include "cli/pool_missing.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/near.h"
#include "endpoint/names.h"
#include "flow/run_directory.h"
#include "flow/run_find.h"

#define LOOK_MOST 4096

/* ---- directories ---- */

typedef int entry_look(int borrow_fd, const char *name, void *context);

/* Calls `look` for each entry until it returns 1. Returns whether one did. */
static int find_entry(int at_fd, const char *path, entry_look *look, void *context)
{
    int fd = openat(at_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (entries == NULL) {
        tb__fd_close(&fd);
        return 0;
    }
    int found = 0;
    struct dirent *entry;
    for (int i = 0; !found && i < LOOK_MOST && (entry = readdir(entries)) != NULL; i++) {
        found = look(dirfd(entries), entry->d_name, context);
    }
    closedir(entries);
    return found;
}

/* Processes that were killed leave their sockets; one that is stopped counts as alive. */
static int listens(const struct tb__directory *directory, uint64_t id)
{
    int fd = -1;
    tb_status status = tb__names_connect(directory, id, &fd);
    tb__fd_close(&fd);
    return status == TB_OK || status == TB_AGAIN;
}

static int is_live_socket(int borrow_fd, const char *name, void *context)
{
    struct tb__directory directory = {.flow_fd = borrow_fd};
    char *end;
    uint64_t id = strtoull(name, &end, 16);
    (void)context;
    return end == name + 16 && strcmp(end, ".sock") == 0 && listens(&directory, id);
}

static int has_process(int root_fd, const char *flow, const char *process)
{
    struct tb__directory directory = {
        .flow_fd = openat(root_fd, flow, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
    uint64_t id;
    int has = directory.flow_fd >= 0 && tb__names_resolve(&directory, process, &id) == TB_OK &&
              listens(&directory, id);
    tb__fd_close(&directory.flow_fd);
    return has;
}

/* ---- what there is ---- */

struct others {
    const char *except; /* a directory; NULL: none */
    const struct tb__state *running;
    uint32_t count;
    struct tb__near near; /* of directories with processes, without a running flow */
};

static int offer_directory(int root_fd, const char *name, void *context)
{
    struct others *others = context;
    for (uint32_t i = 0; i < others->count; i++) {
        if (strcmp(others->running[i].flow, name) == 0) {
            return 0;
        }
    }
    if (tb__name_valid(name) && (others->except == NULL || strcmp(name, others->except) != 0) &&
        find_entry(root_fd, name, is_live_socket, NULL)) {
        tb__near_offer(&others->near, name);
    }
    return 0;
}

struct text {
    char bytes[400];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length =
        vsnprintf(text->bytes + text->used, sizeof text->bytes - text->used, format, arguments);
    va_end(arguments);
    text->used += length > 0 ? (size_t)length : 0;
    text->used = text->used < sizeof text->bytes ? text->used : sizeof text->bytes - 1;
}

#define SHOWN_MOST 3

/* "; running: `ab12` (cam); processes are in `default`", "" when there is nothing. Returns whether
 * there is something. */
static int add_others(struct text *text, int root_fd, const char *wanted, const char *except)
{
    struct tb__state *running = NULL;
    uint32_t count = 0;
    uint32_t unreadable = 0;
    char near[TB__NEAR_TEXT];
    if (tb__state_list(root_fd, &running, &count, &unreadable) != TB_OK) {
        count = 0;
    }
    struct others others = {.except = except, .running = running, .count = count};
    tb__near_begin(&others.near, wanted);
    find_entry(root_fd, ".", offer_directory, &others);
    uint32_t shown = 0;
    for (uint32_t i = 0; i < count && shown < SHOWN_MOST; i++) {
        if (except == NULL || strcmp(running[i].flow, except) != 0) {
            add(text, "%s`%s` (%s)", shown > 0 ? ", " : "; running: ", running[i].flow,
                running[i].name);
            shown++;
        }
    }
    if (count > shown && shown == SHOWN_MOST) {
        add(text, " and more");
    }
    if (others.near.count > 0) {
        add(text, "; %sprocesses are in %s", shown > 0 || except != NULL ? "other " : "",
            tb__near_text(&others.near, near));
    }
    tb__state_list_free(running, count);
    return shown > 0 || others.near.count > 0;
}

tb_status tb__pool_fail_flow(int root_fd, const char *root, const char *which)
{
    struct text text = {.used = 0};
    char asked[TB__NAME_SIZE + 32] = "no flow is running";
    if (which != NULL) {
        snprintf(asked, sizeof asked, "there is no flow `%.64s`", which);
    }
    if (which != NULL && tb__name_valid(which) && has_process(root_fd, "default", which)) {
        add(&text, ", but a process in `default`, whose pools `tensorbus pool list default` shows");
    }
    return add_others(&text, root_fd, which != NULL ? which : "", NULL)
               ? TB__FAIL(TB_E_NOT_FOUND, "%s%s", asked, text.bytes)
               : TB__FAIL(TB_E_NOT_FOUND, "%s: nobody is in `%.300s`", asked, root);
}

struct search {
    const char *process;
    const char *except;
    char flow[TB__NAME_SIZE];
};

static int look_for_process(int root_fd, const char *name, void *context)
{
    struct search *search = context;
    if (!tb__name_valid(name) || strcmp(name, search->except) == 0 ||
        !has_process(root_fd, name, search->process)) {
        return 0;
    }
    tb__name_copy(search->flow, name);
    return 1;
}

void tb__pool_say_elsewhere(const char *verb, const char *process, const char *flow)
{
    char root[TB__RUN_PATH_SIZE];
    int root_fd = -1;
    tb_error kept;
    struct search search = {.process = process, .except = flow};
    tb_last_error(&kept);
    if (tb__run_root_open(0, root, &root_fd) == TB_OK &&
        find_entry(root_fd, ".", look_for_process, &search)) {
        fprintf(stderr, "tensorbus %s: process `%s` is in flow `%s`: add `--flow %s`\n", verb,
                process, search.flow, search.flow);
    }
    tb__fd_close(&root_fd);
    tb__error_restore(&kept);
}

void tb__pool_say_none(const char *flow, size_t processes)
{
    char root[TB__RUN_PATH_SIZE];
    int root_fd = -1;
    struct text text = {.used = 0};
    if (tb__run_root_open(0, root, &root_fd) == TB_OK) {
        add_others(&text, root_fd, flow, flow);
    }
    tb__fd_close(&root_fd);
    fprintf(stderr, "no pools in flow `%s`: %s%s\n", flow,
            processes == 0   ? "nobody is in it"
            : processes == 1 ? "its process has none"
                             : "its processes have none",
            text.bytes);
}
