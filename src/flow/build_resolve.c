/* From a node's `path` to what execve() takes. Looks at the file system, starts nothing. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flow/arena.h"
#include "flow/build_find.h"
#include "flow/dora_api.h"
#include "flow/expand.h"
#include "flow/problems.h"
#include "flow/validate.h"

extern char **environ;

int tb__is_python(const struct tb__flow_node *node)
{
    size_t length = strlen(node->path);
    return length > 3 && strcmp(node->path + length - 3, ".py") == 0;
}

const char *tb__node_path_list(const struct tb__flow_node *node)
{
    for (uint32_t i = 0; i < node->env_count; i++) {
        if (strcmp(node->env[i].key, "PATH") == 0) {
            return node->env[i].value;
        }
    }
    const char *list = tb__environment_get(environ, "PATH", 4);
    return list != NULL ? list : "/usr/local/bin:/usr/bin:/bin";
}

/* NULL when the file can be run (or read, for a script), else why not. */
static const char *why_not(const char *path, int script)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        return errno == EACCES ? "is not accessible" : "does not exist";
    }
    if (!S_ISREG(info.st_mode)) {
        return S_ISDIR(info.st_mode) ? "is a directory" : "is not a regular file";
    }
    if (faccessat(AT_FDCWD, path, script ? R_OK : X_OK, AT_EACCESS) != 0) {
        return script ? "is not readable" : "is not executable: chmod +x it";
    }
    return NULL;
}

static const char *find_on_path(const struct tb__flow *flow, const char *name, const char *list,
                                int script)
{
    while (list != NULL) {
        size_t length = strcspn(list, ":");
        if (length > 0 && list[0] == '/') { /* a relative entry would depend on the directory */
            const char *path = tb__arena_format(flow->arena, "%.*s/%s", (int)length, list, name);
            if (path != NULL && why_not(path, script) == NULL) {
                return path;
            }
        }
        list = list[length] == ':' ? list + length + 1 : NULL;
    }
    return NULL;
}

const char *tb__find_program(const struct tb__flow *flow, const char *name, const char *directory,
                             const char *path_list, int script, const char **out_why)
{
    int bare = strchr(name, '/') == NULL;
    const char *why = "is not on PATH";
    if (directory != NULL) {
        const char *path = tb__join_path(flow->arena, directory, name);
        why = path != NULL ? why_not(path, script) : "out of memory";
        if (why == NULL) {
            return path;
        }
    }
    /* A file that lies there but cannot be run is what was meant: do not run another. */
    if (bare && (directory == NULL || strcmp(why, "does not exist") == 0)) {
        const char *path = find_on_path(flow, name, path_list, script);
        if (path != NULL) {
            return path;
        }
        why = directory != NULL ? "is neither there nor on PATH" : "is not on PATH";
    }
    *out_why = why;
    return NULL;
}

const char *tb__venv_path(const struct tb__flow *flow, const struct tb__flow_node *node,
                          const struct tb__flow_build_options *options)
{
    const char *out = options->out_directory != NULL ? options->out_directory : "out";
    char here[PATH_MAX];
    if (out[0] != '/' && getcwd(here, sizeof here) != NULL) {
        return tb__arena_format(flow->arena, "%s/%s/%s/venv/%s", here, out, flow->name, node->id);
    }
    return tb__arena_format(flow->arena, "%s/%s/venv/%s", out, flow->name, node->id);
}

/* What stands before the script's own arguments: interpreter and -u. NULL after a problem. */
static const char *find_python(struct tb__flow *flow, struct tb__flow_node *node,
                               const struct tb__flow_build_options *options,
                               struct tb__flow_problems *problems)
{
    const char *why = "";
    if (!options->uv) {
        const char *python =
            tb__find_program(flow, "python3", NULL, tb__node_path_list(node), 0, &why);
        if (python == NULL) {
            tb__problem(problems, node->path_place,
                        "node `%s` is a Python file, and python3 %s: install it", node->id, why);
        }
        return python;
    }
    node->venv = tb__venv_path(flow, node, options);
    const char *python =
        node->venv != NULL ? tb__find_program(flow, "bin/python", node->venv, NULL, 0, &why) : NULL;
    if (python == NULL && !options->unbuilt_allowed) {
        tb__problem(problems, node->path_place,
                    "node `%s`: its Python environment %s is not there: run `tensorbus build --uv "
                    "%s` first",
                    node->id, node->venv != NULL ? node->venv : "", flow->file);
    }
    return python;
}

static void missing_program(const struct tb__flow_node *node, const char *why,
                            struct tb__flow_problems *problems)
{
    const char *way_out = node->build_count > 0
                              ? "its `build` steps have not made it: run `tensorbus build`"
                              : "build it first, give this node `build` steps of its own, or "
                                "correct `path`";
    tb__problem(problems, node->path_place,
                "program of node `%s`: `%.200s` %s (seen from %.200s); %s", node->id, node->path,
                why, node->working_dir, way_out);
}

static int is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static void resolve_node(struct tb__flow *flow, struct tb__flow_node *node,
                         const struct tb__flow_build_options *options,
                         struct tb__flow_problems *problems)
{
    int script = tb__is_python(node);
    const char *why = "";
    node->program = NULL;
    node->argv = NULL;
    node->venv = NULL;
    node->python_first = NULL;
    node->python_last = NULL;
    if (!is_directory(node->working_dir)) {
        tb__problem(problems, node->path_place,
                    "working directory of node `%s`: %.300s is not a directory", node->id,
                    node->working_dir);
        return;
    }
    const char *program = tb__find_program(flow, node->path, node->working_dir,
                                           tb__node_path_list(node), script, &why);
    if (program == NULL) {
        if (!options->unbuilt_allowed || node->build_count == 0) {
            missing_program(node, why, problems);
        }
        return;
    }
    const char *python = script ? find_python(flow, node, options, problems) : NULL;
    if (script && python == NULL) {
        return;
    }
    if (script && options->dora_api) {
        tb__dora_api_find(flow, node, python, problems);
    }
    char **argv = tb__arena_array(flow->arena, (size_t)node->args_count + 4, sizeof *argv);
    if (argv == NULL) {
        return;
    }
    uint32_t used = 0;
    if (script) {
        argv[used++] = (char *)python; /* the arena's */
        argv[used++] = (char *)"-u";
    }
    argv[used++] = (char *)program;
    for (uint32_t i = 0; i < node->args_count; i++) {
        argv[used++] = node->args[i];
    }
    node->program = program;
    node->argv = argv;
}

tb_status tb__flow_resolve(struct tb__flow *flow, const struct tb__flow_build_options *options,
                           struct tb__flow_problems *problems)
{
    static const struct tb__flow_build_options defaults;
    uint32_t before = tb__problems_total(problems);
    tb__problems_name(problems, flow->file);
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        resolve_node(flow, &flow->nodes[i], options != NULL ? options : &defaults, problems);
    }
    if (flow->arena->failed) {
        return TB__FAIL(TB_E_NOMEM, "%s: out of memory", flow->file);
    }
    if (tb__problems_total(problems) != before) {
        tb__problems_sort(problems);
        return tb__problems_fail(problems, TB_E_INVALID, __func__);
    }
    return TB_OK;
}
