/* See spawn.h. */
#include "flow/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <unistd.h>

static int prepare(const struct tb__spawn *spawn, posix_spawn_file_actions_t *actions,
                   posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    const int steps[] = {
        posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0),
        posix_spawn_file_actions_adddup2(actions, spawn->output_fd, STDOUT_FILENO),
        spawn->quiet
            ? posix_spawn_file_actions_addopen(actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0)
            : 0,
        posix_spawn_file_actions_addchdir_np(actions, spawn->directory),
        posix_spawnattr_setsigmask(attributes, &none),
        posix_spawnattr_setsigdefault(attributes, &all),
        posix_spawnattr_setpgroup(attributes, 0),
        posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF |
                                                 POSIX_SPAWN_SETSIGMASK),
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (steps[i] != 0) {
            return steps[i];
        }
    }
    return 0;
}

int tb__spawn(const struct tb__spawn *spawn, pid_t *out_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        return error;
    }
    error = posix_spawnattr_init(&attributes);
    if (error == 0) {
        error = prepare(spawn, &actions, &attributes);
        if (error == 0) {
            error = posix_spawn(out_pid, spawn->program, &actions, &attributes, spawn->argv,
                                spawn->environment);
        }
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return error;
}
