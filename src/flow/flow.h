/* A flow: the dataflow graph of one YAML file, validated.
 *
 * Life: tb__flow_load() reads the file (tb__flow_parse() takes it from memory), checks everything
 * that the text alone can tell, expands variables, and gives a graph that never changes afterwards.
 * All mistakes of a file are collected in a `tb__flow_problems`, not just the first.
 * tb__flow_build() runs the nodes' build steps; tb__flow_resolve() then finds each node's program
 * and fills in `argv`: only then can the nodes be started. tb__flow_destroy() frees everything. One
 * thread at a time.
 *
 * All strings belong to the flow, are UTF-8, hold no NUL, and are fully expanded. Relative paths
 * have been made absolute against the directory of the YAML file. */
#ifndef TB_FLOW_FLOW_H
#define TB_FLOW_FLOW_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

#define TB__FLOW_FILE_MAX (1u << 20) /* bytes of a YAML file */
#define TB__FLOW_DEPTH_MAX 16        /* nesting of maps and lists */
#define TB__FLOW_PROBLEMS_MAX 20     /* listed; the rest is counted */
#define TB__FLOW_NODES_MAX 256
#define TB__FLOW_PORTS_MAX 128        /* inputs of a node; outputs of a node */
#define TB__FLOW_ENV_MAX 256          /* keys of one `env` map */
#define TB__FLOW_ARGS_MAX 1024        /* words of `args`, words of a `build` line */
#define TB__FLOW_BUILD_MAX 64         /* `build` lines of a node */
#define TB__FLOW_VALUE_MAX 131071u    /* bytes of one argument or KEY=value: what execve() takes */
#define TB__FLOW_TEXT_MAX (16u << 20) /* bytes of all expanded text of a flow */
#define TB__FLOW_QUEUE_DEFAULT 10u
#define TB__FLOW_QUEUE_MAX 65536u
#define TB__FLOW_RESTARTS_MAX 1000000u
#define TB__FLOW_SECONDS_MAX 31536000 /* `input_timeout`, `restart_delay`, timers: one year */
#define TB__FLOW_PERIOD_MIN_NS 1000   /* the shortest timer */

enum tb__flow_policy {
    TB__FLOW_DROP_OLDEST = 0,  /* `drop_oldest`, the default */
    TB__FLOW_BACKPRESSURE = 1, /* `backpressure` */
};

enum tb__flow_restart {
    TB__FLOW_RESTART_NEVER = 0,      /* `never`, the default */
    TB__FLOW_RESTART_ON_FAILURE = 1, /* `on-failure`: exit code other than 0, or a signal */
    TB__FLOW_RESTART_ALWAYS = 2,     /* `always` */
};

/* Where a value stands in the file: both count from 1. */
struct tb__flow_place {
    uint32_t line;
    uint32_t column;
};

struct tb__flow_env {
    const char *key;
    const char *value;
    struct tb__flow_place place;
};

struct tb__flow_input {
    const char *id;
    int32_t source_node;    /* index in nodes[]; -1: a timer */
    uint32_t source_output; /* index in that node's outputs[] */
    const char *source;     /* as written: "camera/image", "tensorbus/timer/hz/30" */
    int64_t period_ns;      /* of a timer; else 0 */
    uint32_t queue_size;    /* messages, 1 to TB__FLOW_QUEUE_MAX */
    enum tb__flow_policy queue_policy;
    int64_t input_timeout_ns; /* silence that becomes an ERROR event; 0: none */
    struct tb__flow_place place;
};

struct tb__flow_output {
    const char *id;
    struct tb__flow_place place;
};

/* One line of `build`, split into words: build steps run without a shell. */
struct tb__flow_step {
    const char *text; /* as written */
    char **argv;      /* NULL-terminated, expanded */
    struct tb__flow_place place;
};

struct tb__flow_node {
    const char *id;          /* unique, a valid name, not reserved */
    const char *name;        /* `name`, else the id: for people */
    const char *description; /* "" when there is none */
    const char *path;        /* as written, expanded; not looked up yet */
    const char *working_dir; /* absolute when the file's directory is; the node's cwd */
    char **args;             /* NULL-terminated */
    struct tb__flow_step *build;
    struct tb__flow_env *env;      /* root env, then the node's own; each key once */
    struct tb__flow_input *inputs; /* in the order of the file */
    struct tb__flow_output *outputs;
    uint32_t args_count;
    uint32_t build_count;
    uint32_t env_count;
    uint32_t inputs_count;
    uint32_t outputs_count;
    enum tb__flow_restart restart_policy;
    uint32_t max_restarts;       /* 0: no limit */
    int64_t restart_delay_ns;    /* before the first restart; doubles from restart to restart */
    const char *machine;         /* `deploy.machine` as written, "" when there is none */
    struct tb__flow_place place; /* of the node's first key */
    struct tb__flow_place path_place;

    /* Filled by tb__flow_resolve(); NULL before. */
    const char *program; /* absolute path of the program or script */
    char **argv;         /* NULL-terminated: what execve() takes, argv[0] absolute */
    const char *venv;    /* the node's Python environment with `uv`, else NULL */
    /* With `dora_api`: folders in front of PYTHONPATH and behind it; NULL: none. */
    const char *python_first;
    const char *python_last;
};

struct tb__flow {
    const char *file;         /* as given: for messages */
    const char *directory;    /* of the file; absolute after tb__flow_load() */
    const char *name;         /* file name without .yml/.yaml, made a valid name */
    struct tb__flow_env *env; /* root env, expanded */
    uint32_t env_count;
    struct tb__flow_node *nodes; /* in the order of the file */
    uint32_t nodes_count;
    int exit_when_nodes_finish;   /* 1: timers do not keep a node alive: it is finished when
                                     all its other inputs are closed (nodes that have timers
                                     alone are not touched) */
    struct tb__flow_arena *arena; /* holds everything above */
};

/* The mistakes of a file. Zero-initialise; one can collect over several calls. */
struct tb__flow_problem {
    struct tb__flow_place place; /* line 0: concerns the whole file */
    char *text;                  /* one sentence or two, no newline at the end */
};
struct tb__flow_problems {
    char *file; /* name for the messages, set by the first call */
    struct tb__flow_problem list[TB__FLOW_PROBLEMS_MAX];
    uint32_t count;    /* in list[], in the order of the file */
    uint32_t unlisted; /* found beyond those */
};

void tb__flow_problems_fini(struct tb__flow_problems *problems);

/* One line for each: "file:line:column: text", then "and N more". */
void tb__flow_problems_print(const struct tb__flow_problems *problems, FILE *out);

struct tb__flow_options {
    char *const *environment; /* NULL: the process's own; "KEY=value" strings, NULL-ended */
    const char *machine;      /* this machine's name in `deploy.machine`; NULL: none */
    int allow_loader_env;     /* 1: `env` may set LD_PRELOAD and other LD_ variables */
};

/* Load and validate. `problems` must not be NULL. Options may be NULL.
 * Returns TB_OK and *out; TB_E_INVALID (the file is wrong: see problems); TB_E_NOT_FOUND,
 * TB_E_DENIED, TB_E_SYSTEM (it could not be read: also in problems); TB_E_LIMIT (too large: also in
 * problems); TB_E_NOMEM. The last error is the first problem. */
tb_status tb__flow_load(const char *path, const struct tb__flow_options *options,
                        struct tb__flow_problems *problems, struct tb__flow **out);

/* The same from memory: `file` is the name for messages and gives the directory. Opens no file. */
tb_status tb__flow_parse(const char *text, size_t length, const char *file,
                         const struct tb__flow_options *options, struct tb__flow_problems *problems,
                         struct tb__flow **out);

void tb__flow_destroy(struct tb__flow *flow);

/* Index of a node, -1 when there is none. */
int32_t tb__flow_find_node(const struct tb__flow *flow, const char *id);

struct tb__flow_build_options {
    const char *out_directory; /* NULL: "out" in the current directory */
    int uv;                    /* each .py node gets <out>/<flow name>/venv/<node id> */
    int dora_api;              /* resolve: Python nodes import `dora` from our package */
    int unbuilt_allowed;       /* resolve: a missing program is no problem when the node
                                  has build steps (validate before build) */
};

/* Run the build steps, node by node, line by line, in the node's working directory with its env;
 * with `uv` the Python environments are made first and `pip install` becomes `uv pip install`. The
 * steps' output goes to standard error. Options may be NULL. Returns TB_OK; TB_CLOSED (a step was
 * ended by Ctrl-C); TB_E_INVALID (a step failed: the error names node, line, step, exit);
 * TB_E_NOT_FOUND (uv or a step's program is missing). Waits for the steps. */
tb_status tb__flow_build(const struct tb__flow *flow, const struct tb__flow_build_options *options);

/* Find each node's program: a path with a slash relative to the node's working directory; a bare
 * name there first, then on PATH; a .py file is run by python3 -u, with `uv` by its own
 * environment's python. Fills program, argv, venv and, with `dora_api`, what PYTHONPATH gets.
 * Returns TB_OK or TB_E_INVALID with all that is missing or not executable in `problems`. May be
 * called again. */
tb_status tb__flow_resolve(struct tb__flow *flow, const struct tb__flow_build_options *options,
                           struct tb__flow_problems *problems);

/* Write the graph as Mermaid, or as Graphviz's language. Returns TB_OK or TB_E_SYSTEM. */
tb_status tb__flow_graph_mermaid(const struct tb__flow *flow, FILE *out);
tb_status tb__flow_graph_dot(const struct tb__flow *flow, FILE *out);

/* "drop_oldest", "backpressure". */
const char *tb__flow_policy_name(enum tb__flow_policy policy);

#endif
