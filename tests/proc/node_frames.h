/* Frames that node tests send by handle, written as the pool tests write theirs. */
#ifndef TB_TESTS_NODE_FRAMES_H
#define TB_TESTS_NODE_FRAMES_H

#include "proc/node_support.h"
#include "proc/pool_support.h"

static inline void send_frame(tb_node *node, tb_pool *pool, int64_t number)
{
    tb_handle handle;
    CHECK_OK(write_words(pool, number, TB_SECONDS(20), &handle));
    CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), NULL, TB_SECONDS(20)));
}

#endif
