/* Who is told that a large copy is nearly done: once, when most of it is there and its end is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/copy_team.h"

#define MIB ((size_t)1 << 20)
#define BYTES (64 * MIB + 4097)
#define TRIES 20 /* a copy whose pace changes is told of too late, or not at all */

struct told {
    const uint8_t *dst;
    size_t bytes;
    unsigned count;
    uint8_t half;
    uint8_t end;
};

static void note(void *context)
{
    struct told *told = context;
    const volatile uint8_t *dst = told->dst;
    told->count++;
    told->half = dst[told->bytes / 2];
    told->end = dst[told->bytes - 1];
}

static void told_once_near_the_end(void **state)
{
    (void)state;
    uint8_t *src = malloc(BYTES);
    uint8_t *dst = malloc(BYTES);
    assert_true(src != NULL && dst != NULL);
    memset(src, 7, BYTES);
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct tb__copy_team *team;
        assert_int_equal(tb__copy_team_create(threads, &team), TB_OK);
        unsigned told_at_all = 0;
        for (int i = 0; i < TRIES; i++) {
            struct told told = {.dst = dst, .bytes = BYTES};
            struct tb__copy_near near = {note, &told};
            memset(dst, 0, BYTES);
            tb__copy_team_store(team, dst, src, BYTES, i % 2 == 0 ? 0 : SIZE_MAX, &near);
            assert_memory_equal(dst, src, BYTES);
            assert_in_range(told.count, 0, 1);
            if (told.count == 1) {
                assert_int_equal(told.half, 7);
                if (threads == 1) { /* else a helper may have come first */
                    assert_int_equal(told.end, 0);
                }
            }
            told_at_all += told.count;
        }
        assert_in_range(told_at_all, 1, TRIES);
        tb__copy_team_destroy(team);
    }
    free(src);
    free(dst);
}

/* One block has no pace. */
static void small_copies_tell_nobody(void **state)
{
    (void)state;
    uint8_t *src = calloc(1, MIB);
    uint8_t *dst = malloc(MIB);
    struct told told = {.dst = dst, .bytes = MIB};
    struct tb__copy_near near = {note, &told};
    assert_true(src != NULL && dst != NULL);
    for (int i = 0; i < TRIES; i++) {
        tb__copy_team_store(NULL, dst, src, MIB, 0, &near);
    }
    assert_int_equal(told.count, 0);
    free(src);
    free(dst);
}

/* What a copy that was begun ahead still has to do has its own pace. */
static void a_copy_that_was_begun_ahead_tells_at_most_once(void **state)
{
    (void)state;
    uint8_t *src = malloc(BYTES);
    uint8_t *dst = malloc(BYTES);
    struct tb__copy_team *team;
    assert_true(src != NULL && dst != NULL);
    memset(src, 7, BYTES);
    assert_int_equal(tb__copy_team_create(2, &team), TB_OK);
    for (int i = 0; i < TRIES; i++) {
        struct told told = {.dst = dst, .bytes = BYTES};
        struct tb__copy_near near = {note, &told};
        memset(dst, 0, BYTES);
        assert_true(tb__copy_team_begin(team, dst, src, BYTES, SIZE_MAX));
        tb__copy_team_finish(team, &near);
        assert_memory_equal(dst, src, BYTES);
        assert_in_range(told.count, 0, 1);
        if (told.count == 1) {
            assert_int_equal(told.half, 7);
        }
    }
    tb__copy_team_destroy(team);
    free(src);
    free(dst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(told_once_near_the_end),
        cmocka_unit_test(small_copies_tell_nobody),
        cmocka_unit_test(a_copy_that_was_begun_ahead_tells_at_most_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
