/* A process that exits without closing its node: exit(0) while frames are in flight must not lose
 * them. At exit the outputs are closed and what needs this process is taken first, within the time
 * that tb_node_close() takes. A kill skips this; what is in the rings arrives even then. */
#include <stdlib.h>

#include "node/node.h"

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static tb_node *nodes;

static void at_exit(void)
{
    for (;;) {
        pthread_mutex_lock(&list_mutex);
        tb_node *node = nodes;
        nodes = node != NULL ? node->next : NULL;
        pthread_mutex_unlock(&list_mutex);
        if (node == NULL) {
            return;
        }
        /* In a child that exits, the parent's node is none of its business. */
        if (tb__bus_check(node->bus) == TB_OK) {
            tb__node_finish_outputs(node);
        }
    }
}

static void install(void)
{
    /* Without room for the handler only the courtesy is lost. */
    (void)atexit(at_exit);
}

void tb__node_list_add(tb_node *node)
{
    pthread_once(&once, install);
    pthread_mutex_lock(&list_mutex);
    node->next = nodes;
    nodes = node;
    pthread_mutex_unlock(&list_mutex);
}

void tb__node_list_remove(tb_node *node)
{
    pthread_mutex_lock(&list_mutex);
    tb_node **at = &nodes;
    while (*at != NULL && *at != node) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = node->next;
    }
    pthread_mutex_unlock(&list_mutex);
}
