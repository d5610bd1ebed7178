/* Running build steps, one after the other. Each step is a process group of its own; Ctrl-C,
 * SIGTERM and SIGHUP are taken by this thread while a step runs, passed on to the group, and end
 * the build. To be called while the process has one thread: the signals are blocked in the calling
 * thread. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "flow/arena.h"
#include "flow/build_find.h"
#include "flow/spawn.h"

#define KILL_AFTER_NS 5000000000 /* from the first Ctrl-C to SIGKILL */

extern char **environ;

struct build {
    const struct tb__flow *flow;
    const struct tb__flow_node *node;
    const struct tb__flow_build_options *options;
    const char *uv;   /* absolute path; NULL without `uv` */
    const char *venv; /* of the node, NULL when it has none */
};

static int has_key(const char *entry, const char *key)
{
    size_t length = strlen(key);
    return strncmp(entry, key, length) == 0 && entry[length] == '=';
}

/* Set KEY=value in a NULL-terminated array that has room for one more. */
static void set_entry(char **environment, char *entry, const char *key)
{
    size_t at = 0;
    while (entry != NULL && environment[at] != NULL && !has_key(environment[at], key)) {
        at++;
    }
    if (entry != NULL) {
        environment[at] = entry;
    }
}

char **tb__step_environment(const struct tb__flow *flow, const struct tb__flow_node *node,
                            const char *venv)
{
    struct tb__flow_arena *arena = flow->arena;
    size_t count = 0;
    while (environ != NULL && environ[count] != NULL) {
        count++;
    }
    char **out = tb__arena_array(arena, count + node->env_count + 3, sizeof *out);
    if (out == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = environ[i];
    }
    for (uint32_t i = 0; i < node->env_count; i++) {
        const struct tb__flow_env *env = &node->env[i];
        set_entry(out, tb__arena_format(arena, "%s=%s", env->key, env->value), env->key);
    }
    if (venv != NULL) {
        set_entry(out, tb__arena_format(arena, "VIRTUAL_ENV=%s", venv), "VIRTUAL_ENV");
        set_entry(out, tb__arena_format(arena, "PATH=%s/bin:%s", venv, tb__node_path_list(node)),
                  "PATH");
    }
    return arena->failed ? NULL : out;
}

static void step_signals(sigset_t *out)
{
    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
    sigaddset(out, SIGHUP);
    sigaddset(out, SIGCHLD);
}

/* Output goes to standard error: standard output is for data. */
static int spawn(const struct build *build, const char *program, char **argv, pid_t *out_pid)
{
    const struct tb__spawn step = {.program = program,
                                   .argv = argv,
                                   .environment =
                                       tb__step_environment(build->flow, build->node, build->venv),
                                   .directory = build->node->working_dir,
                                   .output_fd = STDERR_FILENO};
    return step.environment != NULL ? tb__spawn(&step, out_pid) : ENOMEM;
}

/* Wait for the child while passing signals on. Returns its wait status, -1 when it cannot be waited
 * for; *out_signal is the first signal that asked for the end, 0 for none. */
static int wait_step(pid_t pid, const sigset_t *signals, int *out_signal)
{
    int64_t kill_at_ns = INT64_MAX;
    *out_signal = 0;
    for (;;) {
        siginfo_t ended = {0};
        int status;
        if (waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR) {
            return -1;
        }
        if (ended.si_pid == pid) {
            if (*out_signal != 0) { /* what a shell has in the background ignores Ctrl-C */
                kill(-pid, SIGKILL);
            }
            return waitpid(pid, &status, 0) == pid ? status : -1;
        }
        if (tb__now_ns() >= kill_at_ns) {
            kill(-pid, SIGKILL);
        }
        /* SIGCHLD ends the wait; the slice is for the kill, and in case it went elsewhere. */
        struct timespec slice = tb__timespec(500000000);
        int number = sigtimedwait(signals, NULL, &slice);
        if (number > 0 && number != SIGCHLD) {
            kill(-pid, *out_signal == 0 ? number : SIGKILL);
            if (*out_signal == 0) {
                *out_signal = number;
                kill_at_ns = tb__now_ns() + KILL_AFTER_NS;
            }
        }
    }
}

static tb_status judge(const struct build *build, uint32_t line, const char *text, int status)
{
    const char *file = build->flow->file;
    const char *id = build->node->id;
    if (status >= 0 && WIFSIGNALED(status)) {
        return TB__FAIL(TB_E_INVALID,
                        "%s:%u: build of node `%s`: `%.200s` was ended by signal %d (%s)", file,
                        line, id, text, WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
    if (status < 0 || !WIFEXITED(status)) {
        return TB__FAIL(TB_E_SYSTEM, "%s:%u: build of node `%s`: `%.200s` cannot be waited for",
                        file, line, id, text);
    }
    if (WEXITSTATUS(status) != 0) {
        return TB__FAIL(TB_E_INVALID, "%s:%u: build of node `%s`: `%.200s` ended with exit code %d",
                        file, line, id, text, WEXITSTATUS(status));
    }
    return TB_OK;
}

/* `program` is absolute; `text` and `line` are for messages. */
static tb_status run_step(const struct build *build, const char *program, char **argv,
                          const char *text, uint32_t line)
{
    sigset_t signals, before;
    pid_t pid = -1;
    fprintf(stderr, "build %s: %s\n", build->node->id, text);
    step_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    int error = spawn(build, program, argv, &pid);
    int stopped_by = 0;
    int status = error == 0 ? wait_step(pid, &signals, &stopped_by) : -1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return TB__FAIL(TB_E_SYSTEM, "%s:%u: build of node `%s`: %s could not be started in %s: %s",
                        build->flow->file, line, build->node->id, program, build->node->working_dir,
                        strerror(error));
    }
    if (stopped_by != 0) {
        return TB_CLOSED;
    }
    return judge(build, line, text, status);
}

static tb_status find_uv(struct build *build)
{
    const char *why = "";
    build->uv = tb__find_program(build->flow, "uv", NULL, tb__node_path_list(build->node), 0, &why);
    if (build->uv == NULL) {
        return TB__FAIL(
            TB_E_NOT_FOUND,
            "--uv: the program `uv` %s: install it (`pip install uv`), or leave --uv out "
            "to use the python3 and the packages that are there",
            why);
    }
    return TB_OK;
}

/* One `mkdir -p` for the directory of the Python environments: uv makes the last part. */
static tb_status make_parents(const struct tb__flow *flow, const char *path)
{
    char *copy = tb__arena_copy(flow->arena, path, strlen(path));
    if (copy == NULL) {
        return TB__FAIL(TB_E_NOMEM, "%s: out of memory", flow->file);
    }
    for (char *slash = strchr(copy + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            return TB__FAIL_ERRNO(TB_E_SYSTEM, "directory %s could not be made", copy);
        }
        *slash = '/';
    }
    return TB_OK;
}

/* An environment per Python node; packages that the system has stay visible in it. */
static tb_status make_venv(struct build *build)
{
    const char *why;
    build->venv = NULL;
    TB__TRY(find_uv(build));
    const char *venv = tb__venv_path(build->flow, build->node, build->options);
    if (venv == NULL) {
        return TB__FAIL(TB_E_NOMEM, "%s: out of memory", build->flow->file);
    }
    if (tb__find_program(build->flow, "bin/python", venv, NULL, 0, &why) == NULL) {
        TB__TRY(make_parents(build->flow, venv));
        char *argv[] = {(char *)build->uv, (char *)"venv",
                        (char *)"--quiet", (char *)"--system-site-packages",
                        (char *)venv,      NULL};
        TB__TRY(run_step(build, build->uv, argv, "uv venv", build->node->place.line));
    }
    build->venv = venv;
    return TB_OK;
}

static tb_status run_line(const struct build *build, const struct tb__flow_step *step)
{
    char **argv = step->argv;
    const char *program = NULL;
    const char *why = "";
    size_t count = 0;
    TB_ASSERT(argv[0] != NULL); /* empty lines are no steps */
    while (argv[count] != NULL) {
        count++;
    }
    int pip = strcmp(argv[0], "pip") == 0 || strcmp(argv[0], "pip3") == 0;
    if (build->venv != NULL && pip && count > 1) {
        char **longer = tb__arena_array(build->flow->arena, count + 2, sizeof *longer);
        if (longer == NULL) {
            return TB__FAIL(TB_E_NOMEM, "%s: out of memory", build->flow->file);
        }
        longer[0] = (char *)"uv";
        memcpy(longer + 1, argv, (count + 1) * sizeof *argv);
        longer[1] = (char *)"pip";
        argv = longer;
        program = build->uv;
    }
    if (program == NULL) {
        int slash = strchr(argv[0], '/') != NULL;
        const char *list = tb__node_path_list(build->node);
        if (build->venv != NULL) {
            list = tb__arena_format(build->flow->arena, "%s/bin:%s", build->venv, list);
        }
        program = tb__find_program(build->flow, argv[0], slash ? build->node->working_dir : NULL,
                                   list, 0, &why);
    }
    if (program == NULL) {
        return TB__FAIL(TB_E_NOT_FOUND,
                        "%s:%u: build of node `%s`: `%.100s` %s (build steps run without a shell: "
                        "for `cd` and the like write sh -c '...')",
                        build->flow->file, step->place.line, build->node->id, argv[0], why);
    }
    return run_step(build, program, argv, step->text, step->place.line);
}

tb_status tb__flow_build(const struct tb__flow *flow, const struct tb__flow_build_options *options)
{
    static const struct tb__flow_build_options defaults;
    struct build build = {.flow = flow, .options = options != NULL ? options : &defaults};
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        build.node = &flow->nodes[i];
        build.venv = NULL;
        if (build.options->uv && tb__is_python(build.node)) {
            TB__TRY(make_venv(&build));
        }
        for (uint32_t j = 0; j < build.node->build_count; j++) {
            TB__TRY(run_line(&build, &build.node->build[j]));
        }
    }
    return TB_OK;
}
