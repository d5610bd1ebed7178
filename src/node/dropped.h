/* The list of extension keys that were dropped, one per bus. */
#ifndef TB_NODE_DROPPED_H
#define TB_NODE_DROPPED_H

#include <tensorbus/extension.h>

#include "endpoint/bus.h"
#include "wire/extension.h"

/* From now on what comes on this line is believed. To be called before the runner can have anything
 * to tell. */
void tb__dropped_expect(tb_bus *bus, struct tb__lifeline *runner);

/* Take the keys of name->space. TB_AGAIN: none until the deadline. When the runner is gone and
 * nothing is left, TB_E_OWNER_DIED or TB_CLOSED. */
tb_status tb__dropped_drain(tb_bus *bus, struct tb__lifeline *runner,
                            const struct tb__ext_key *name, int64_t timeout_ns,
                            tb_extension_keys **out);

#endif
