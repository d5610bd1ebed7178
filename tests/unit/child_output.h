/* What a child of the test process writes to standard error. Include cmocka.h before. */
#ifndef TB_TESTS_CHILD_OUTPUT_H
#define TB_TESTS_CHILD_OUTPUT_H

#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

/* Run `body` in a child, and wait for its end. text: terminated, cut at `size`. Returns its status,
 * as waitpid() has it. */
static inline int child_output(void (*body)(void *argument), void *argument, char *text,
                               size_t size)
{
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_fds[1], STDERR_FILENO);
        body(argument);
        _exit(0);
    }
    close(pipe_fds[1]);
    size_t used = 0;
    ssize_t got;
    while ((got = read(pipe_fds[0], text + used, size - 1 - used)) > 0) {
        used += (size_t)got;
    }
    text[used] = '\0';
    close(pipe_fds[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

#endif
