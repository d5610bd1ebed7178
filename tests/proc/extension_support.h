/* What the tests of the extension channel share: a runner's endpoint in the test process, and nodes
 * in children that do what they are told, one command at a time. */
#ifndef TB_TESTS_EXTENSION_SUPPORT_H
#define TB_TESTS_EXTENSION_SUPPORT_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "endpoint/bus.h"
#include "flow/run_environment.h"
#include "proc/control_support.h"
#include "proc/node_support.h"
#include "wire/extension.h"

#define FLOW_ID "e47e4510"
#define SPACE "test"

static const char flow_text[] = "nodes:\n"
                                "  - {id: a, path: x}\n"
                                "  - {id: b, path: x}\n"
                                "  - {id: c, path: x}\n";
enum { A, B, C };

/* ------------------------------------------------------------------ the runner's side */

static inline void open_control(struct fixture *it)
{
    open_control_of(it, FLOW_ID, flow_text);
}

/* ------------------------------------------------------------------ a node's side */

/* What a value of this seed holds at an index. */
static inline uint8_t pattern(unsigned seed, size_t index)
{
    return (uint8_t)((index * 2654435761u + seed) >> 13);
}

struct command {
    char op; /* see perform() */
    char space[64];
    char key[64];
    uint64_t size;
    unsigned seed;
    int remove;
    int count;
    int64_t timeout_ns;
};

struct answer {
    int status;
    char text[256];
    uint64_t size;
    int equal; /* the value is pattern(seed) */
    uint64_t count;
    uint64_t lost;
    char first[64];
    char last[64];
};

static inline void store_pattern(tb_node *node, const struct command *command,
                                 struct answer *answer)
{
    uint8_t *bytes = malloc(command->size + 1);
    for (size_t i = 0; i < command->size; i++) {
        bytes[i] = pattern(command->seed, i);
    }
    answer->status = tb_extension_store(node, command->space, command->key, bytes, command->size);
    free(bytes);
}

static inline void compare(const tb_extension_value *value, unsigned seed, struct answer *answer)
{
    size_t size;
    const uint8_t *bytes = tb_extension_value_bytes(value, &size);
    answer->size = size;
    answer->equal = bytes != NULL;
    for (size_t i = 0; i < size && answer->equal; i++) {
        answer->equal = bytes[i] == pattern(seed, i);
    }
}

static inline void drain(tb_node *node, const struct command *command, struct answer *answer)
{
    tb_extension_keys *keys;
    answer->status = tb_extension_drain(node, command->space, command->timeout_ns, &keys);
    if (answer->status == TB_OK) {
        answer->count = tb_extension_keys_count(keys);
        answer->lost = tb_extension_keys_lost(keys);
        snprintf(answer->first, sizeof answer->first, "%s", tb_extension_keys_at(keys, 0));
        if (answer->count != 0) {
            snprintf(answer->last, sizeof answer->last, "%s",
                     tb_extension_keys_at(keys, answer->count - 1));
        }
        tb_extension_keys_destroy(keys);
    }
}

/* s store, l load and compare, k load and keep, v compare what was kept, d drop, n drain, r
 * request, m store and drop many, h have an heir, q close in good order. */
static inline void perform(tb_node *node, const struct command *command, struct answer *answer)
{
    static tb_extension_value *kept;
    tb_extension_value *value = NULL;
    char key[64];
    switch (command->op) {
    case 's':
        store_pattern(node, command, answer);
        break;
    case 'l':
        answer->status =
            tb_extension_load(node, command->space, command->key, command->remove, &value);
        if (answer->status == TB_OK) {
            compare(value, command->seed, answer);
            tb_extension_value_release(value);
        }
        break;
    case 'k':
        answer->status = tb_extension_load(node, command->space, command->key, 0, &kept);
        break;
    case 'v':
        compare(kept, command->seed, answer);
        tb_extension_value_release(kept);
        kept = NULL;
        break;
    case 'd':
        answer->status = tb_extension_drop(node, command->space, command->key);
        break;
    case 'n':
        drain(node, command, answer);
        break;
    case 'r':
        answer->status = tb_extension_request(node, command->space, "abc", 3, &value);
        break;
    case 'm':
        for (int i = 0; i < command->count && answer->status == TB_OK; i++) {
            snprintf(key, sizeof key, "%d", i);
            answer->status = tb_extension_store(node, command->space, key, "v", 1);
            if (answer->status == TB_OK && command->remove) {
                answer->status = tb_extension_drop(node, command->space, key);
            }
        }
        break;
    case 'h':
        leave_heir(3000);
        break;
    default:
        FAIL("no command %c", command->op);
    }
    if (answer->status < 0) {
        snprintf(answer->text, sizeof answer->text, "%s", tb_last_error_text());
    }
}

/* A node of the flow in this process. */
static inline tb_node *open_flow_node(const char *name)
{
    tb_node *node;
    setenv("TENSORBUS_FLOW", FLOW_ID, 1);
    node_environment(name, "", "", TB__RUNNER_ENDPOINT);
    CHECK_OK(tb_node_open(&node));
    return node;
}

/* Children are forked before the endpoint opens (its thread does not live on in them), and open
 * their node when they are told to. */
static inline void node_role(void *argument)
{
    struct command command;
    struct answer answer = {0};
    parent_hear(&command, sizeof command);
    CHECK_EQ(command.op, 'o');
    tb_node *node = open_flow_node(argument);
    parent_tell(&answer, sizeof answer);
    for (parent_hear(&command, sizeof command); command.op != 'q';
         parent_hear(&command, sizeof command)) {
        answer = (struct answer){0};
        perform(node, &command, &answer);
        parent_tell(&answer, sizeof answer);
    }
    tb_node_close(node);
}

static inline void fork_node(struct child *child, const char *name)
{
    child_start(child, name, node_role, (void *)(uintptr_t)name);
}

static inline struct answer tell(struct child *child, struct command command)
{
    struct answer answer;
    if (command.space[0] == '\0') {
        snprintf(command.space, sizeof command.space, "%s", SPACE);
    }
    child_tell(child, &command, sizeof command);
    child_hear(child, &answer, sizeof answer);
    return answer;
}

static inline void begin_node(struct child *child)
{
    CHECK_EQ(tell(child, (struct command){.op = 'o'}).status, TB_OK);
}

/* Stop a child and see it stand. */
static inline void child_stop(struct child *child)
{
    int status;
    child_signal(child, SIGSTOP);
    CHECK_EQ(waitpid(child->pid, &status, WUNTRACED), child->pid);
    CHECK(WIFSTOPPED(status));
}

static inline void quit(struct child *child)
{
    struct command command = {.op = 'q'};
    child_tell(child, &command, sizeof command);
    child_join(child);
}

/* The runner's endpoint with the first nodes of the flow, up to three. */
static inline void begin_nodes(struct fixture *it, struct child *nodes, unsigned count)
{
    static const char *const names[] = {"a", "b", "c"};
    for (unsigned i = 0; i < count; i++) {
        fork_node(&nodes[i], names[i]);
    }
    open_control(it);
    for (unsigned i = 0; i < count; i++) {
        begin_node(&nodes[i]);
    }
}

static inline void end_nodes(struct fixture *it, struct child *nodes, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        quit(&nodes[i]);
    }
    close_control(it);
}

static inline struct command on_key(char op, const char *key)
{
    struct command command = {.op = op};
    snprintf(command.key, sizeof command.key, "%s", key);
    return command;
}

static inline int store(struct child *child, const char *key, uint64_t size, unsigned seed)
{
    struct command command = on_key('s', key);
    command.size = size;
    command.seed = seed;
    return tell(child, command).status;
}

/* Load a value, which must be this one. */
static inline void expect(struct child *child, const char *key, uint64_t size, unsigned seed)
{
    struct command command = on_key('l', key);
    command.seed = seed;
    struct answer answer = tell(child, command);
    CHECK_EQ(answer.status, TB_OK);
    CHECK_EQ(answer.size, size);
    CHECK_EQ(answer.equal, 1);
}

static inline int load_status(struct child *child, const char *key)
{
    return tell(child, on_key('l', key)).status;
}

static inline int drop(struct child *child, const char *key)
{
    return tell(child, on_key('d', key)).status;
}

static inline struct answer drain_for(struct child *child, int64_t timeout_ns)
{
    return tell(child, (struct command){.op = 'n', .timeout_ns = timeout_ns});
}

/* One key is told, within the time. */
static inline void expect_dropped(struct child *child, int64_t timeout_ns, const char *key)
{
    struct answer answer = drain_for(child, timeout_ns);
    CHECK_EQ(answer.status, TB_OK);
    CHECK_EQ(answer.count, 1);
    CHECK_EQ(answer.lost, 0);
    CHECK_STR(answer.first, key);
}

#endif
