/* Names of endpoints, nodes, pools and outputs: [A-Za-z0-9_.-]{1,64}, not starting with a dot. */
#ifndef TB_BASE_NAME_H
#define TB_BASE_NAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define TB__NAME_SIZE 65 /* 64 characters and the terminator */

/* Whether `name` is a valid name. NULL is not. */
int tb__name_valid(const char *name);

/* TB_OK, or TB_E_INVALID with the rule; `what` names the thing ("pool", "node id"). */
tb_status tb__name_check(const char *what, const char *name);

/* Split "owner/thing" into two valid names. */
tb_status tb__name_split(const char *path, char owner[TB__NAME_SIZE], char thing[TB__NAME_SIZE]);

/* 64 random bits from the kernel, never 0. */
uint64_t tb__random64(void);

/* Copy a name into a field of TB__NAME_SIZE bytes; `name` has been checked. */
void tb__name_copy(char out[TB__NAME_SIZE], const char *name);

#endif
