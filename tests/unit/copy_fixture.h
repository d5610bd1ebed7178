/* For tests of the team that shares large copies. */
#ifndef TB_TESTS_UNIT_COPY_FIXTURE_H
#define TB_TESTS_UNIT_COPY_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/copy_team.h"

/* Bytes of a copy that is shared. */
#define LARGE (TB__COPY_TEAM_MIN_BYTES + 4097)

static inline void fill(uint8_t *bytes, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(seed >> 24);
    }
}

static inline void wait_for_help(const struct tb__copy_team *team, unsigned long before)
{
    for (int i = 0; i < 5000 && tb__copy_team_helped(team) == before; i++) {
        usleep(1000);
    }
    assert_true(tb__copy_team_helped(team) > before);
}

#endif
