/* `tensorbus bench dora`: hands over to Python, where the nodes that it measures are written. */
#include "cli/bench_dora.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define MODULE "tensorbus.bench_dora"

/* Path of this command; "" when it cannot be told. */
static void find_this_command(char *out, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", out, size - 1);
    out[length > 0 ? length : 0] = '\0';
}

/* The Python to run: the one that was named, else the one of the environment that this command is
 * installed in, else the one on PATH. */
static const char *find_python(const char *command, char *buffer, size_t size)
{
    const char *chosen = getenv("TENSORBUS_PYTHON");
    const char *slash = strrchr(command, '/');
    if (chosen != NULL && chosen[0] != '\0') {
        return chosen;
    }
    if (slash != NULL) {
        int length = snprintf(buffer, size, "%.*s/python3", (int)(slash - command), command);
        if (length > 0 && (size_t)length < size && access(buffer, X_OK) == 0) {
            return buffer;
        }
    }
    return "python3";
}

int tb__bench_dora(int argc, char **argv)
{
    char command[4096];
    char buffer[4096];
    find_this_command(command, sizeof command);
    const char *python = find_python(command, buffer, sizeof buffer);
    char **words = calloc((size_t)argc + 4, sizeof *words);
    /* The flows of the bench are run by this command, whatever PATH says. */
    if (words == NULL || setenv("TENSORBUS_COMMAND", command, 1) != 0) {
        fprintf(stderr, "tensorbus bench dora: %s\n", strerror(errno));
        free(words);
        return TB__EXIT_FAILED;
    }
    size_t count = 0;
    words[count++] = (char *)(uintptr_t)python;
    words[count++] = (char *)(uintptr_t) "-m";
    words[count++] = (char *)(uintptr_t)MODULE;
    for (int i = 0; i < argc; i++) {
        words[count++] = argv[i];
    }
    execvp(python, words);
    fprintf(stderr,
            "tensorbus bench dora: cannot run `%s`: %s; TENSORBUS_PYTHON names a Python that has "
            "tensorbus, dora-rs, dora-rs-cli and pyarrow\n",
            python, strerror(errno));
    free(words);
    return TB__EXIT_FAILED;
}
