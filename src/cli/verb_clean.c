/* `tensorbus clean`: remove what a kill of everything left behind. */
#include <string.h>

#include <tensorbus/status.h>

#include "base/fd.h"
#include "cli/cli.h"
#include "flow/run_directory.h"
#include "pool/observe.h"

static const char help[] =
    "usage: tensorbus clean [--json]\n"
    "\n"
    "Remove directories and sockets in the runtime directory whose processes are gone. What a\n"
    "live process uses is never touched: a directory whose runner lives, or in which a socket\n"
    "answers. Also the files in /dev/shm of pools for foreign readers whose owner was killed.\n"
    "Needed only after runner and guard were killed together, or a power cut: runs clean up after\n"
    "themselves. A program outside any flow that is ended by SIGKILL leaves its socket in\n"
    "`default`, which goes as well.\n"
    "\n"
    "  --json    {\"directories\",\"sockets\",\"exports\",\"live\",\"failed\"}: removed, removed,\n"
    "            removed, left alone, could not be removed\n"
    "\n"
    "exit codes: 0 ok, 1 something could not be removed, 2 wrong usage\n"
    "\n"
    "example:\n"
    "  tensorbus clean\n";

static void report(const char *what, const char *name)
{
    printf("removed %s %s\n", what, name);
}

int tb__verb_clean(int argc, char **argv)
{
    char path[TB__RUN_PATH_SIZE];
    struct tb__sweep sweep = {0, 0, 0, 0};
    int json = 0;
    int root_fd = -1;
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") != 0) {
            return argv[i][0] == '-' ? tb__cli_unknown_option("clean", argv[i], help)
                                     : tb__cli_usage("clean", "unknown word `%s`", argv[i]);
        }
        json = 1;
    }
    tb_status status = tb__run_root_open(0, path, &root_fd);
    if (status == TB_OK) {
        status = tb__run_root_sweep(root_fd, json ? NULL : report, &sweep);
        tb__fd_close(&root_fd);
    } else if (status == TB_E_NOT_FOUND) {
        status = TB_OK; /* then there is nothing to clean */
    }
    if (status != TB_OK) {
        return tb__cli_failed("clean");
    }
    unsigned exports = tb__exports_sweep(json ? NULL : report);
    if (json) {
        printf("{\"directories\":%u,\"sockets\":%u,\"exports\":%u,\"live\":%u,\"failed\":%u}\n",
               sweep.directories, sweep.sockets, exports, sweep.live, sweep.failed);
    } else {
        fprintf(stderr, "removed: %u %s, %u %s; in use: %u\n", sweep.directories,
                sweep.directories == 1 ? "directory" : "directories", sweep.sockets,
                sweep.sockets == 1 ? "socket" : "sockets", sweep.live);
    }
    if (sweep.failed > 0) {
        fprintf(stderr, "tensorbus clean: %u could not be removed\n", sweep.failed);
    }
    return sweep.failed > 0 ? TB__EXIT_FAILED : TB__EXIT_OK;
}
