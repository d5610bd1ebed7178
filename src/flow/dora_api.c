/* Finding the folder of the Python modules that stand in for dora's. Main thread of a command,
 * before anything of a flow runs. */
#include "flow/dora_api.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "flow/arena.h"
#include "flow/build_find.h"
#include "flow/problems.h"
#include "flow/spawn.h"

/* A cold start of Python on a busy machine takes seconds. */
#define ANSWER_NS INT64_C(10000000000)
#define ANSWER_BYTES (PATH_MAX + 16)

static int has_file(const struct tb__flow *flow, const char *folder, const char *name)
{
    struct stat info;
    const char *path = tb__arena_format(flow->arena, "%s/%s", folder, name);
    return path != NULL && stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static int is_the_folder(const struct tb__flow *flow, const char *folder)
{
    return has_file(flow, folder, "dora/__init__.py") &&
           has_file(flow, folder, "dora_tensor_pool/__init__.py");
}

/* ---- beside this program ---- */

/* Patterns behind the directory of the program: a build folder with the Python package; one without
 * it, which has a link to the source; a prefix or a virtual environment into which pip has
 * installed both. */
static const char *const beside[] = {"/../python/tensorbus/dora_api", "/dora_api",
                                     "/../lib*/python3*/*-packages/tensorbus/dora_api"};

static const char *program_directory(const struct tb__flow *flow)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0) {
        return NULL;
    }
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    *slash = '\0'; /* the kernel's paths are absolute */
    return tb__arena_copy(flow->arena, path, (size_t)(slash - path));
}

/* The last match of a pattern that is the folder: of several Pythons the newest. */
static const char *find_matching(const struct tb__flow *flow, const char *directory,
                                 const char *pattern)
{
    glob_t matches;
    const char *found = NULL;
    const char *whole = tb__arena_format(flow->arena, "%s%s", directory, pattern);
    if (whole == NULL || glob(whole, GLOB_NOSORT, NULL, &matches) != 0) {
        return NULL;
    }
    for (size_t i = 0; i < matches.gl_pathc; i++) {
        if (is_the_folder(flow, matches.gl_pathv[i]) &&
            (found == NULL || strverscmp(matches.gl_pathv[i], found) > 0)) {
            found = tb__arena_copy(flow->arena, matches.gl_pathv[i], strlen(matches.gl_pathv[i]));
        }
    }
    globfree(&matches);
    return found;
}

static const char *find_beside(const struct tb__flow *flow)
{
    const char *directory = program_directory(flow);
    const char *found = NULL;
    for (size_t i = 0; directory != NULL && found == NULL && i < sizeof beside / sizeof beside[0];
         i++) {
        found = find_matching(flow, directory, beside[i]);
    }
    return found;
}

/* ---- asking an interpreter ---- */

/* Read to the end; 0 when it does not come in time. */
static int read_answer(int borrow_fd, char answer[ANSWER_BYTES])
{
    int64_t deadline_ns = tb__deadline_ns(ANSWER_NS);
    size_t used = 0;
    for (;;) {
        struct pollfd fd = {.fd = borrow_fd, .events = POLLIN};
        int64_t left_ms = tb__left_ns(deadline_ns) / 1000000;
        int ready = poll(&fd, 1, (int)left_ms);
        if (ready < 0 && errno == EINTR) {
            continue;
        }
        ssize_t got = ready > 0 ? read(borrow_fd, answer + used, ANSWER_BYTES - 1 - used) : -1;
        if (got <= 0) {
            answer[used] = '\0';
            return got == 0;
        }
        used += (size_t)got;
    }
}

/* Run a program with the node's environment and directory and take its output. 0: it cannot be
 * started, or does not end in time. */
static int run_for_output(const struct tb__flow_node *node, const char *program, char **argv,
                          char **environment, char answer[ANSWER_BYTES])
{
    int pipe_fds[2];
    pid_t pid;
    int status;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        return 0;
    }
    const struct tb__spawn question = {.program = program,
                                       .argv = argv,
                                       .environment = environment,
                                       .directory = node->working_dir,
                                       .output_fd = pipe_fds[1],
                                       .quiet = 1};
    int failed = tb__spawn(&question, &pid);
    tb__fd_close(&pipe_fds[1]);
    int answered = failed == 0 && read_answer(pipe_fds[0], answer);
    tb__fd_close(&pipe_fds[0]);
    if (failed == 0) {
        kill(-pid, SIGKILL); /* what has answered has nothing more to do */
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
    }
    return answered;
}

/* Where the interpreter would import the package from, as the node would; NULL: nowhere. */
static const char *ask(const struct tb__flow *flow, const struct tb__flow_node *node,
                       const char *python)
{
    static const char question[] =
        "import importlib.util as u; s = u.find_spec('tensorbus'); "
        "print(*(s.submodule_search_locations or () if s else ()), sep='\\n')";
    char answer[ANSWER_BYTES];
    char *argv[] = {(char *)python, (char *)"-c", (char *)question, NULL};
    char **environment = tb__step_environment(flow, node, node->venv);
    if (environment == NULL || !run_for_output(node, python, argv, environment, answer)) {
        return NULL;
    }
    char *rest = answer;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        const char *folder = tb__arena_format(flow->arena, "%s/dora_api", line);
        if (folder != NULL && is_the_folder(flow, folder)) {
            return folder;
        }
    }
    return NULL;
}

/* ---- the result ---- */

/* The directory of a path, cut off its text: the neighbours of a link, not of what it leads to. */
static const char *parent_of(const struct tb__flow *flow, const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    while (length > 0 && path[length - 1] != '/') {
        length--;
    }
    return length > 0 ? tb__arena_copy(flow->arena, path, length) : ".";
}

/* A build folder's package is nobody else's: it may be imported from there, behind all others. What
 * pip has installed for one interpreter is not shown to another. */
static const char *package_parent(const struct tb__flow *flow, const char *folder)
{
    const char *package = parent_of(flow, folder);
    const char *parent = package != NULL ? parent_of(flow, package) : NULL;
    char resolved[PATH_MAX];
    if (parent == NULL || !has_file(flow, package, "_core.abi3.so") ||
        realpath(parent, resolved) == NULL) {
        return NULL;
    }
    size_t length = strlen(resolved);
    int installed = length > 9 && strcmp(resolved + length - 9, "-packages") == 0;
    return installed ? NULL : tb__arena_copy(flow->arena, resolved, length);
}

static void take(const struct tb__flow *flow, struct tb__flow_node *node, const char *folder)
{
    char resolved[PATH_MAX];
    node->python_last = package_parent(flow, folder);
    if (realpath(folder, resolved) != NULL) {
        node->python_first = tb__arena_copy(flow->arena, resolved, strlen(resolved));
    }
}

static void not_found(const struct tb__flow *flow, const struct tb__flow_node *node,
                      const char *python, struct tb__flow_problems *problems)
{
    const char *directory = program_directory(flow);
    directory = directory != NULL ? directory : "?";
    tb__problem(problems, node->path_place,
                "node `%s`: --dora-api needs the folder `dora_api` of the Python package, which is "
                "not at %.200s%s, %.200s%s, %.200s%s, nor in the package `tensorbus` of %.200s: "
                "install the package there (pip install), or set TENSORBUS_DORA_API to the folder",
                node->id, directory, beside[0], directory, beside[1], directory, beside[2], python);
}

static const char *own_python_path(const struct tb__flow_node *node)
{
    for (uint32_t i = 0; i < node->env_count; i++) {
        if (strcmp(node->env[i].key, "PYTHONPATH") == 0) {
            return node->env[i].value;
        }
    }
    return "";
}

/* An earlier node of the same interpreter has the answer; 1 also when that was a problem. */
static int take_from_neighbour(const struct tb__flow *flow, struct tb__flow_node *node,
                               const char *python)
{
    for (const struct tb__flow_node *other = flow->nodes; other < node; other++) {
        if (other->venv == NULL && other->argv != NULL && tb__is_python(other) &&
            strcmp(other->argv[0], python) == 0 &&
            strcmp(own_python_path(other), own_python_path(node)) == 0) {
            node->python_first = other->python_first;
            node->python_last = other->python_last;
            return 1;
        }
    }
    return 0;
}

void tb__dora_api_find(struct tb__flow *flow, struct tb__flow_node *node, const char *python,
                       struct tb__flow_problems *problems)
{
    const char *told = getenv("TENSORBUS_DORA_API");
    node->python_first = NULL;
    node->python_last = NULL;
    if (node->venv == NULL && take_from_neighbour(flow, node, python)) {
        return;
    }
    if (told != NULL && told[0] != '\0') {
        if (is_the_folder(flow, told)) {
            take(flow, node, told);
        } else {
            tb__problem(problems, node->path_place,
                        "node `%s`: TENSORBUS_DORA_API is %.300s, and there are no "
                        "dora/__init__.py and dora_tensor_pool/__init__.py: unset it, or set it to "
                        "the folder `dora_api` of the Python package",
                        node->id, told);
        }
        return;
    }
    const char *found = node->venv != NULL ? ask(flow, node, python) : find_beside(flow);
    if (found == NULL) {
        found = node->venv != NULL ? find_beside(flow) : ask(flow, node, python);
    }
    if (found != NULL) {
        take(flow, node, found);
    } else if (!flow->arena->failed) {
        not_found(flow, node, python, problems);
    }
}
