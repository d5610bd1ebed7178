/* The runtime directory and the flow's directory: safe to use, locked while names change. */
#ifndef TB_ENDPOINT_DIRECTORY_H
#define TB_ENDPOINT_DIRECTORY_H

#include <stdint.h>

#include "base/error.h"
#include "base/name.h"

#define TB__PATH_SIZE 4096

struct tb__directory {
    int flow_fd;              /* the flow's directory; sockets are named relative to it */
    char path[TB__PATH_SIZE]; /* of the flow's directory, for messages and tools */
};

/* Runtime directory from `directory`, else the environment. Buffer of TB__PATH_SIZE. */
tb_status tb__directory_runtime_path(const char *directory, char path[TB__PATH_SIZE]);

/* Open (and create) <runtime>/<flow>. Refuses what is no directory of this uid with mode 0700 (0770
 * with allow_gid). */
tb_status tb__directory_open(struct tb__directory *dir, const char *directory, const char *flow,
                             uint32_t allow_gid);
void tb__directory_close(struct tb__directory *dir);

/* Exclusive lock against other starters; *out_take_fd holds it until closed. TB_E_NOT_FOUND when
 * the directory was removed meanwhile. */
tb_status tb__directory_lock(const struct tb__directory *dir, int *out_take_fd);

/* Give it back. A forked child may have the descriptor too, so closing alone would not. */
void tb__directory_unlock(int *take_fd);

#endif
