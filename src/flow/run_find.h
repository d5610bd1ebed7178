/* The flows that run, for tools: one by its id or name, or all. */
#ifndef TB_FLOW_RUN_FIND_H
#define TB_FLOW_RUN_FIND_H

#include "flow/run_state.h"

#define TB__STATE_FLOWS_MAX 1024

/* All flows whose runner lives, sorted by start; at most TB__STATE_FLOWS_MAX. Flows whose file
 * cannot be read are counted in *out_unreadable. The caller frees with tb__state_list_free(). */
tb_status tb__state_list(int root_fd, struct tb__state **out, uint32_t *out_count,
                         uint32_t *out_unreadable);
void tb__state_list_free(struct tb__state *list, uint32_t count);

/* The running flow with this id or name; NULL or "": the only one. TB_E_NOT_FOUND says what runs;
 * TB_E_INVALID: several have the name. */
tb_status tb__state_find(int root_fd, const char *which, struct tb__state *out);

/* The same in the runtime directory. Without one nothing runs. */
tb_status tb__state_find_running(const char *which, struct tb__state *out);

#endif
