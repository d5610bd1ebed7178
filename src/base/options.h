/* Visible structs that grow from release to release. Each begins with its size as its caller knows
 * it, so that programs and libraries of different releases understand each other: what one side
 * does not know is zero. Pure functions; any thread. */
#ifndef TB_BASE_OPTIONS_H
#define TB_BASE_OPTIONS_H

#include <stddef.h>

#include "base/error.h"

/* No struct comes near it: a larger size was never set. */
#define TB__STRUCT_MAX 4096

/* Copy options that a caller gave; NULL means all defaults. Missing fields are zero. TB_E_INVALID:
 * its size was not set. TB_E_UNSUPPORTED: a field that this library does not know is not zero. */
tb_status tb__options_read(const char *type, const void *given, void *out, size_t out_size);
#define TB__OPTIONS(type, given, out) TB__TRY(tb__options_read(#type, (given), (out), sizeof(type)))

/* Fill a struct that a caller wants to have filled, whose first field is the size that it knows.
 * Fields that this library does not know become zero. TB_E_INVALID: its size was not set. */
tb_status tb__info_write(const char *type, void *out, const void *known, size_t known_size);
#define TB__INFO(type, out, known) tb__info_write(#type, (out), (known), sizeof(type))

#endif
