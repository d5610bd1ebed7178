/* Loading: read the file, make the tree, check the root and its nodes, then the wiring. What goes
 * wrong is collected; the flow is handed out only when nothing did. One thread at a time. */
#include "flow/validate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/name.h"

extern char **environ;

char *tb__join_path(struct tb__flow_arena *arena, const char *directory, const char *path)
{
    if (path[0] == '/') {
        return tb__arena_copy(arena, path, strlen(path));
    }
    return tb__arena_format(arena, "%s/%s", directory, path);
}

int32_t tb__flow_find_node(const struct tb__flow *flow, const char *id)
{
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        if (strcmp(flow->nodes[i].id, id) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

const char *tb__flow_policy_name(enum tb__flow_policy policy)
{
    return policy == TB__FLOW_BACKPRESSURE ? "backpressure" : "drop_oldest";
}

static void take_root_env(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow *flow = target;
    tb__check_env(checker, value);
    flow->env = (struct tb__flow_env *)checker->scope.env; /* the arena's */
    flow->env_count = checker->scope.env_count;
}

static void take_exit_when(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow *flow = target;
    tb__check_bool(checker, "`exit_when_nodes_finish`", value, &flow->exit_when_nodes_finish);
}

static void take_nodes(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow *flow = target;
    if (value->kind != TB__YAML_LIST || value->count == 0) {
        tb__problem(checker->problems, value->place,
                    "`nodes` must be a list of at least one node (`- id: ...`), this is %s",
                    value->kind == TB__YAML_LIST ? "an empty list" : tb__yaml_kind_name(value));
        return;
    }
    if (value->count > TB__FLOW_NODES_MAX) {
        tb__problem(checker->problems, value->place, "%u nodes, %d are allowed", value->count,
                    TB__FLOW_NODES_MAX);
        return;
    }
    flow->nodes = tb__arena_array(checker->arena, value->count, sizeof *flow->nodes);
    uint32_t index = 0;
    for (const struct tb__yaml *item = value->first; item != NULL && flow->nodes != NULL;
         item = item->next) {
        tb__check_node(checker, index++, item);
    }
}

static void check_root(struct tb__checker *checker, const struct tb__yaml *root)
{
    static const struct tb__key keys[] = {
        {"env", take_root_env}, /* first: the nodes expand it */
        {"exit_when_nodes_finish", take_exit_when},
        {"nodes", take_nodes},
    };
    if (root->kind != TB__YAML_MAP) {
        tb__problem(checker->problems, root->place, "a flow is a map with `nodes:`, this is %s",
                    tb__yaml_kind_name(root));
        return;
    }
    tb__check_keys(checker, root, "the root of the file", keys, sizeof keys / sizeof keys[0],
                   checker->flow);
    if (tb__yaml_get(root, "nodes") == NULL) {
        tb__problem(checker->problems, root->place,
                    "`nodes` is missing: a flow lists its nodes under it");
    }
    tb__check_wiring(checker);
}

/* "dir/my flow.yml" -> "my_flow": a valid name, for directories and lists. */
static const char *flow_name(struct tb__flow_arena *arena, const char *file)
{
    const char *slash = strrchr(file, '/');
    const char *base = slash != NULL ? slash + 1 : file;
    const char *dot = strrchr(base, '.');
    int yaml = dot != NULL && (strcmp(dot, ".yml") == 0 || strcmp(dot, ".yaml") == 0);
    size_t length = yaml ? (size_t)(dot - base) : strlen(base);
    length = length < TB__NAME_SIZE ? length : TB__NAME_SIZE - 1;
    char *name = tb__arena_copy(arena, base, length);
    for (size_t i = 0; name != NULL && i < length; i++) {
        const char letter[] = {name[i], '\0'};
        if (!tb__name_valid(letter) && (name[i] != '.' || i == 0)) {
            name[i] = '_';
        }
    }
    return length > 0 ? name : "flow";
}

static const char *directory_of(struct tb__flow_arena *arena, const char *file)
{
    const char *slash = strrchr(file, '/');
    if (slash == NULL) {
        return ".";
    }
    return slash == file ? "/" : tb__arena_copy(arena, file, (size_t)(slash - file));
}

static struct tb__flow *new_flow(const char *file, const char *directory)
{
    struct tb__flow_arena *arena = tb__arena_create();
    struct tb__flow *flow = arena != NULL ? tb__arena_alloc(arena, sizeof *flow) : NULL;
    if (flow == NULL) {
        tb__arena_destroy(arena);
        return NULL;
    }
    flow->arena = arena;
    flow->file = tb__arena_copy(arena, file, strlen(file));
    flow->directory = directory != NULL ? tb__arena_copy(arena, directory, strlen(directory))
                                        : directory_of(arena, file);
    flow->name = flow_name(arena, file);
    return flow;
}

void tb__flow_destroy(struct tb__flow *flow)
{
    if (flow != NULL) {
        tb__arena_destroy(flow->arena); /* flow is in it */
    }
}

static tb_status parse_into(struct tb__flow *flow, const char *text, size_t length,
                            const struct tb__flow_options *options,
                            struct tb__flow_problems *problems)
{
    static const struct tb__flow_options defaults;
    struct tb__checker checker = {.flow = flow,
                                  .arena = flow->arena,
                                  .problems = problems,
                                  .options = options != NULL ? options : &defaults};
    checker.scope = (struct tb__scope){.arena = flow->arena,
                                       .problems = problems,
                                       .environment = checker.options->environment,
                                       .owner = "the root"};
    if (checker.scope.environment == NULL) {
        checker.scope.environment = environ;
    }
    if (length > TB__FLOW_FILE_MAX) {
        tb__problem(problems, (struct tb__flow_place){0},
                    "the file has %zu bytes, a flow has at most %u (1 MiB)", length,
                    TB__FLOW_FILE_MAX);
        return tb__problems_fail(problems, TB_E_LIMIT, __func__);
    }
    const struct tb__yaml *root = tb__yaml_parse(flow->arena, text, length, problems);
    if (root != NULL) {
        check_root(&checker, root);
    }
    if (flow->arena->failed) {
        return TB__FAIL(TB_E_NOMEM, "%s: out of memory while it was read", flow->file);
    }
    if (tb__problems_total(problems) > 0) {
        tb__problems_sort(problems);
        return tb__problems_fail(problems, TB_E_INVALID, __func__);
    }
    return TB_OK;
}

/* `take_flow` as new_flow() made it, or did not. */
static tb_status parse(struct tb__flow *take_flow, const char *text, size_t length,
                       const struct tb__flow_options *options, struct tb__flow_problems *problems,
                       struct tb__flow **out)
{
    if (take_flow == NULL) {
        return TB__FAIL(TB_E_NOMEM, "%s: out of memory",
                        problems->file != NULL ? problems->file : "a flow");
    }
    tb_status status = parse_into(take_flow, text, length, options, problems);
    if (status != TB_OK) {
        tb__flow_destroy(take_flow);
        return status;
    }
    *out = take_flow;
    return TB_OK;
}

tb_status tb__flow_parse(const char *text, size_t length, const char *file,
                         const struct tb__flow_options *options, struct tb__flow_problems *problems,
                         struct tb__flow **out)
{
    tb__problems_name(problems, file);
    return parse(new_flow(file, NULL), text, length, options, problems, out);
}

/* A reading failure concerns the whole file: record it as its one problem. */
static tb_status read_failed(struct tb__flow_problems *problems, int error)
{
    tb_status status = error == ENOENT || error == ENOTDIR ? TB_E_NOT_FOUND
                       : error == EACCES || error == EPERM ? TB_E_DENIED
                                                           : TB_E_SYSTEM;
    tb__problem(problems, (struct tb__flow_place){0}, "cannot be read: %s", strerror(error));
    return tb__problems_fail(problems, status, __func__);
}

/* Read a regular file whole. Its size is looked at before a byte is read, and not believed. */
static tb_status read_open(int borrow_fd, struct tb__flow_problems *problems, char *buffer,
                           size_t *out_length)
{
    struct stat info;
    if (fstat(borrow_fd, &info) != 0) {
        return read_failed(problems, errno);
    }
    if (!S_ISREG(info.st_mode)) {
        tb__problem(problems, (struct tb__flow_place){0}, "is %s: name a YAML file",
                    S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
        return tb__problems_fail(problems, TB_E_INVALID, __func__);
    }
    if (info.st_size > (off_t)TB__FLOW_FILE_MAX) {
        tb__problem(problems, (struct tb__flow_place){0},
                    "the file has %lld bytes, a flow has at most %u (1 MiB)",
                    (long long)info.st_size, TB__FLOW_FILE_MAX);
        return tb__problems_fail(problems, TB_E_LIMIT, __func__);
    }
    size_t used = 0;
    while (used <= TB__FLOW_FILE_MAX) {
        ssize_t got = read(borrow_fd, buffer + used, TB__FLOW_FILE_MAX + 1 - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return read_failed(problems, errno);
        }
        if (got == 0) {
            break;
        }
        used += (size_t)got;
    }
    *out_length = used; /* one byte too many is refused by the parser */
    return TB_OK;
}

/* The absolute directory of a path, "" when it cannot be told. */
static void absolute_directory(const char *path, char out[PATH_MAX])
{
    char copy[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    out[0] = '\0';
    if (length < sizeof copy) {
        memcpy(copy, path, length);
        copy[length] = '\0';
        if (realpath(length > 0 ? copy : ".", out) == NULL) {
            out[0] = '\0';
        }
    }
}

tb_status tb__flow_load(const char *path, const struct tb__flow_options *options,
                        struct tb__flow_problems *problems, struct tb__flow **out)
{
    tb__problems_name(problems, path);
    /* Not to hang on a FIFO: it is refused after opening. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return read_failed(problems, errno);
    }
    char *buffer = malloc(TB__FLOW_FILE_MAX + 1);
    size_t length = 0;
    tb_status status = buffer != NULL ? read_open(fd, problems, buffer, &length)
                                      : TB__FAIL(TB_E_NOMEM, "%s: out of memory", path);
    tb__fd_close(&fd);
    char directory[PATH_MAX];
    absolute_directory(path, directory);
    if (status == TB_OK && directory[0] == '\0') {
        status = read_failed(problems, ENAMETOOLONG);
    }
    if (status == TB_OK) {
        status = parse(new_flow(path, directory), buffer, length, options, problems, out);
    }
    free(buffer);
    return status;
}
