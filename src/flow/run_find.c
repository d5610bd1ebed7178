/* Finding running flows by what their runners left in the runtime directory. Any thread; nothing is
 * kept. */
#include "flow/run_find.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "flow/run_directory.h"

#define OPEN_DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static int has_live_runner(int root_fd, const char *flow)
{
    int fd = openat(root_fd, flow, OPEN_DIRECTORY);
    int live = fd >= 0 && tb__run_directory_locked(fd);
    tb__fd_close(&fd);
    return live;
}

static int by_start(const void *left, const void *right)
{
    const struct tb__state *a = left;
    const struct tb__state *b = right;
    if (a->started_ns != b->started_ns) {
        return a->started_ns < b->started_ns ? -1 : 1;
    }
    return strcmp(a->flow, b->flow);
}

void tb__state_list_free(struct tb__state *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        tb__state_fini(&list[i]);
    }
    free(list);
}

/* Add one directory's flow to the list, which has room. */
static uint32_t list_one(int root_fd, const char *name, struct tb__state *slot,
                         uint32_t *unreadable)
{
    if (!tb__name_valid(name) || !has_live_runner(root_fd, name)) {
        return 0;
    }
    if (tb__state_read(root_fd, name, slot) != TB_OK) {
        (*unreadable)++;
        return 0;
    }
    if (strcmp(slot->flow, name) != 0) { /* it speaks of another flow */
        tb__state_fini(slot);
        (*unreadable)++;
        return 0;
    }
    return 1;
}

tb_status tb__state_list(int root_fd, struct tb__state **out, uint32_t *out_count,
                         uint32_t *out_unreadable)
{
    int fd = openat(root_fd, ".", OPEN_DIRECTORY);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    struct tb__state *list = calloc(TB__STATE_FLOWS_MAX, sizeof *list);
    if (stream == NULL || list == NULL) {
        tb_status status = TB__FAIL_ERRNO(TB_E_SYSTEM, "reading the runtime directory");
        if (stream != NULL) {
            closedir(stream);
        } else {
            tb__fd_close(&fd);
        }
        free(list);
        return status;
    }
    uint32_t count = 0;
    uint32_t unreadable = 0;
    struct dirent *entry;
    while (count < TB__STATE_FLOWS_MAX && (entry = readdir(stream)) != NULL) {
        count += list_one(root_fd, entry->d_name, &list[count], &unreadable);
    }
    closedir(stream);
    qsort(list, count, sizeof *list, by_start);
    *out = list;
    *out_count = count;
    *out_unreadable = unreadable;
    return TB_OK;
}

/* " ID (NAME)" for each, as far as it fits. */
static const char *enumerate(const struct tb__state *list, uint32_t count, char *buffer,
                             size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (uint32_t i = 0; i < count && used < size; i++) {
        int length = snprintf(buffer + used, size - used, "%s%s (%s)", i > 0 ? ", " : "",
                              list[i].flow, list[i].name);
        used += length > 0 ? (size_t)length : 0;
    }
    return buffer;
}

static tb_status pick(const struct tb__state *list, uint32_t count, const char *which,
                      uint32_t *out)
{
    char names[300];
    uint32_t matches = 0;
    int any = which == NULL; /* an empty word is none: a script's variable may be unset */
    for (uint32_t i = 0; i < count; i++) {
        if (!any && strcmp(list[i].flow, which) == 0) {
            *out = i;
            return TB_OK;
        }
        if (any || strcmp(list[i].name, which) == 0) {
            *out = i;
            matches++;
        }
    }
    if (matches == 1) {
        return TB_OK;
    }
    enumerate(list, count, names, sizeof names);
    if (count == 0) {
        return TB__FAIL(TB_E_NOT_FOUND, "no flow is running");
    }
    if (matches == 0) {
        return TB__FAIL(TB_E_NOT_FOUND, "no running flow has the id or name `%.64s`; running: %s",
                        which, names);
    }
    return TB__FAIL(TB_E_INVALID, "several flows fit, name one by its id: %s", names);
}

tb_status tb__state_find(int root_fd, const char *which, struct tb__state *out)
{
    struct tb__state *list;
    uint32_t count;
    uint32_t unreadable;
    TB__TRY(tb__state_list(root_fd, &list, &count, &unreadable));
    uint32_t index = 0;
    tb_status status = pick(list, count, which, &index);
    if (status == TB_OK) {
        *out = list[index];
        list[index].nodes = NULL; /* moved */
        list[index].count = 0;
    }
    tb__state_list_free(list, count);
    return status;
}

tb_status tb__state_find_running(const char *which, struct tb__state *out)
{
    char path[TB__RUN_PATH_SIZE];
    int root_fd = -1;
    tb_status status = tb__run_root_open(0, path, &root_fd);
    if (status == TB_E_NOT_FOUND) {
        return TB__FAIL(TB_E_NOT_FOUND, "no flow is running");
    }
    TB__TRY(status);
    status = tb__state_find(root_fd, which, out);
    tb__fd_close(&root_fd);
    return status;
}
