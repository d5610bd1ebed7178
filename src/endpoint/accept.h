/* Accepting connections of other processes, within quotas and with the descriptors that there are.
 * Service thread. */
#ifndef TB_ENDPOINT_ACCEPT_H
#define TB_ENDPOINT_ACCEPT_H

#include "endpoint/service.h"

/* The listening socket is readable: take some connections, and give those that may be their lines.
 */
void tb__accept_some(tb_bus *bus);

/* Close lines that never greeted; listen again after a pause for want of descriptors. Returns ms
 * until the next look, -1 for never. */
int tb__accept_housekeeping(tb_bus *bus);

#endif
