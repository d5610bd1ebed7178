/* A runner's endpoint in the test process, for a flow that is given as text. */
#ifndef TB_TESTS_CONTROL_SUPPORT_H
#define TB_TESTS_CONTROL_SUPPORT_H

#include <string.h>

#include "base/fd.h"
#include "flow/control.h"
#include "flow/run_directory.h"
#include "harness/harness.h"

struct fixture {
    const char *flow_id;
    struct tb__flow *flow;
    struct tb__control *control;
};

static inline void open_control_of(struct fixture *it, const char *flow_id, const char *flow_text)
{
    struct tb__flow_problems problems = {0};
    it->flow_id = flow_id;
    CHECK_OK(
        tb__flow_parse(flow_text, strlen(flow_text), "/tmp/flow.yml", NULL, &problems, &it->flow));
    tb__flow_problems_fini(&problems);
    const struct tb__control_options options = {
        .flow = it->flow, .runtime_directory = harness_dir(), .flow_id = flow_id};
    CHECK_OK(tb__control_open(&options, &it->control));
}

static inline void close_control(struct fixture *it)
{
    char path[TB__RUN_PATH_SIZE];
    int root_fd = -1;
    CHECK_OK(tb__run_root_open(0, path, &root_fd));
    tb__run_directory_remove(root_fd, it->flow_id);
    tb__fd_close(&root_fd);
    tb__control_close(it->control);
    tb__flow_destroy(it->flow);
}

#endif
