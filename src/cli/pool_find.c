/* Finding processes and pools for the pool verbs. */
#include "cli/pool_find.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/pool_missing.h"
#include "endpoint/bus.h"
#include "endpoint/names.h"
#include "flow/run_directory.h"
#include "flow/run_find.h"

#define MOST_PROCESSES 4096

tb_status tb__pool_find_flow(const char *which, char flow[TB__NAME_SIZE])
{
    char path[TB__RUN_PATH_SIZE];
    int root_fd = -1;
    tb_status status = tb__run_root_open(0, path, &root_fd);
    if (status == TB_E_NOT_FOUND) {
        return TB__FAIL(TB_E_NOT_FOUND,
                        "nothing runs: there is no runtime directory `%.300s` (TENSORBUS_DIR "
                        "chooses another)",
                        path);
    }
    TB__TRY(status);
    struct tb__state state;
    status = tb__state_find(root_fd, which, &state);
    if (status == TB_OK) {
        tb__name_copy(flow, state.flow);
        tb__state_fini(&state);
    } else if (status == TB_E_NOT_FOUND) {
        const char *name = which != NULL ? which : "default";
        struct stat info;
        if (tb__name_valid(name) && fstatat(root_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(info.st_mode)) {
            tb__name_copy(flow, name);
            status = TB_OK;
        } else {
            status = tb__pool_fail_flow(root_fd, path, which);
        }
    }
    tb__fd_close(&root_fd);
    return status;
}

tb_status tb__pool_tool_bus(const char *flow, tb_bus **out)
{
    return tb_bus_open(&(tb_bus_options){.size = sizeof(tb_bus_options), .flow = flow}, out);
}

int tb__pool_process_listens(tb_bus *bus, const char *process)
{
    struct tb__directory directory = {.flow_fd = tb__bus_flow_fd(bus)};
    uint64_t id;
    int fd = -1;
    snprintf(directory.path, sizeof directory.path, "%s", tb__bus_flow_path(bus));
    if (tb__names_resolve(&directory, process, &id) != TB_OK) {
        return 0;
    }
    tb_status status = tb__names_connect(&directory, id, &fd);
    tb__fd_close(&fd);
    return status == TB_OK || status == TB_AGAIN; /* its queue is full: it is there all the same */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names are links `<name>.sock`; sockets themselves are `<id>.sock`. */
static char *name_of_link(int directory_fd, const char *file)
{
    size_t length = strlen(file);
    struct stat info;
    if (length <= 5 || strcmp(file + length - 5, ".sock") != 0 ||
        fstatat(directory_fd, file, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(info.st_mode)) {
        return NULL;
    }
    char *name = strndup(file, length - 5);
    if (name != NULL && !tb__name_valid(name)) {
        free(name);
        return NULL;
    }
    return name;
}

tb_status tb__pool_each_process(tb_bus *bus, void (*found)(void *context, const char *process),
                                void *context)
{
    int fd = openat(tb__bus_flow_fd(bus), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    char **names = calloc(MOST_PROCESSES, sizeof *names);
    if (entries == NULL || names == NULL) {
        tb__fd_close(&fd);
        free(names);
        return TB__FAIL(TB_E_SYSTEM, "cannot read `%s`", tb__bus_flow_path(bus));
    }
    size_t count = 0;
    struct dirent *entry;
    while (count < MOST_PROCESSES && (entry = readdir(entries)) != NULL) {
        names[count] = name_of_link(dirfd(entries), entry->d_name);
        count += names[count] != NULL;
    }
    closedir(entries);
    qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        found(context, names[i]);
        free(names[i]);
    }
    free(names);
    return TB_OK;
}
