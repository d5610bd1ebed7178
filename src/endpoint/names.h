/* Endpoints by name in a flow's directory: <id>.sock is a socket, <name>.sock a link to it. */
#ifndef TB_ENDPOINT_NAMES_H
#define TB_ENDPOINT_NAMES_H

#include "endpoint/directory.h"

/* Bind and listen under a temporary name, then take the names <id>.sock and, unless "",
 * <name>.sock. TB_E_EXISTS when a live process has the name. Sweeps dead sockets. */
tb_status tb__names_publish(const struct tb__directory *dir, uint64_t id, const char *name,
                            uint32_t allow_gid, int *out_take_listen_fd);

/* Take both names back, if they are still ours. */
void tb__names_withdraw(const struct tb__directory *dir, uint64_t id, const char *name);

/* Endpoint id that a name stands for now. TB_E_NOT_FOUND if none. */
tb_status tb__names_resolve(const struct tb__directory *dir, const char *name, uint64_t *out);

/* Make the last error say what became of the process `name`, which could not be reached: it has
 * ended, or there is none, but others. */
void tb__names_explain(const struct tb__directory *dir, const char *name);

/* The same for the owner of a handle, of which the endpoint id alone is known. */
void tb__names_explain_owner(const struct tb__directory *dir, uint64_t id);

/* Connect to an endpoint. TB_E_NOT_FOUND when nobody listens there; TB_AGAIN when its queue is
 * full. */
tb_status tb__names_connect(const struct tb__directory *dir, uint64_t id, int *out_take_fd);

#endif
