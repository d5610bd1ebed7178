/* Every case of the choices that need no GPU: our own path, and the reference system's rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/dora_rule.h"
#include "cuda/path.h"

#define LIMIT ((uint64_t)1000)

/* Rows: source (pageable, locked, GPU); columns: destination. */
static enum tb__path expected(const struct tb__path_case *c)
{
    static const enum tb__path small[3][3] = {
        {TB__PATH_CPU, TB__PATH_CPU, TB__PATH_DRIVER},
        {TB__PATH_CPU, TB__PATH_CPU, TB__PATH_DMA},
        {TB__PATH_DRIVER, TB__PATH_DMA, TB__PATHS},
    };
    static const enum tb__path large[3][3] = {
        {TB__PATH_CPU, TB__PATH_CPU, TB__PATH_REGISTER},
        {TB__PATH_CPU, TB__PATH_CPU, TB__PATH_DMA},
        {TB__PATH_REGISTER, TB__PATH_DMA, TB__PATHS},
    };
    /* [exportable][same device][peer] */
    static const enum tb__path gpus[2][2][2] = {
        {{TB__PATH_STAGED, TB__PATH_STAGED}, {TB__PATH_STAGED, TB__PATH_STAGED}},
        {{TB__PATH_STAGED, TB__PATH_PEER}, {TB__PATH_SAME_DEVICE, TB__PATH_SAME_DEVICE}},
    };
    if (c->bytes == 0) {
        return TB__PATH_NONE;
    }
    enum tb__path path = (c->bytes < LIMIT ? small : large)[c->src][c->dst];
    return path == TB__PATHS ? gpus[c->exportable][c->same_device][c->peer] : path;
}

static void every_case_of_the_path(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, LIMIT - 1, LIMIT, LIMIT + 1, UINT64_MAX};
    int cases = 0, seen[TB__PATHS] = {0};
    for (int src = 0; src < TB__MEMORY_CLASSES; src++) {
        for (int dst = 0; dst < TB__MEMORY_CLASSES; dst++) {
            for (int flags = 0; flags < 8; flags++) {
                for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                    struct tb__path_case c = {.src = (enum tb__memory_class)src,
                                              .dst = (enum tb__memory_class)dst,
                                              .same_device = flags & 1,
                                              .peer = flags >> 1 & 1,
                                              .exportable = flags >> 2 & 1,
                                              .bytes = sizes[i]};
                    enum tb__path path = tb__path_choose(&c, LIMIT);
                    assert_int_equal(path, expected(&c));
                    seen[path]++;
                    cases++;
                }
            }
        }
    }
    assert_int_equal(cases, 432);
    for (int path = 0; path < TB__PATHS; path++) {
        assert_true(seen[path] > 0);
    }
}

static void paths_have_names(void **state)
{
    (void)state;
    static const char *const names[] = {"none",     "cpu",         "dma",  "driver",
                                        "register", "same-device", "peer", "staged"};
    for (int i = 0; i < TB__PATHS; i++) {
        assert_string_equal(tb__path_name((enum tb__path)i), names[i]);
    }
    assert_string_equal(tb__path_name(TB__PATHS), "?");
    assert_string_equal(tb__path_name((enum tb__path) - 1), "?");
}

static void what_comes_back_is_registered(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes, seen;
        int expected;
    } cases[] = {
        {0, 0, 0},         {0, 5, 0},         {1, 0, 0},     {1, 1, 1},
        {LIMIT - 1, 0, 0}, {LIMIT - 1, 1, 1}, {LIMIT, 0, 1}, {LIMIT + 1, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(tb__should_register(cases[i].bytes, cases[i].seen, LIMIT),
                         cases[i].expected);
    }
}

/* ------------------------------------------------------------------ the reference system's rules
 */

static void should_pin(void **state)
{
    (void)state;
    const uint64_t limit = 26214400;
    static const uint64_t sizes[] = {0, 1, 26214399, 26214400, 26214401, 1 << 30, UINT64_MAX};
    assert_int_equal(TB__DORA_PIN_BYTES, limit);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(tb__should_pin(0, sizes[i]), sizes[i] > limit);
        assert_int_equal(tb__should_pin(1, sizes[i]), 0);
    }
}

static void classify_transport_in_8_cases(void **state)
{
    (void)state;
    /* same device, peer access, CUDA source */
    static const char *const names[2][2][2] = {
        {{"SameDeviceDtoD", "HostStagingTransit"}, {"SameDeviceDtoD", "P2PPeerAccess"}},
        {{"SameDeviceDtoD", "SameDeviceDtoD"}, {"SameDeviceDtoD", "SameDeviceDtoD"}},
    };
    static const int pairs[][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {3, 2}, {2, 2}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        int same = pairs[i][0] == pairs[i][1];
        for (int peer = 0; peer < 2; peer++) {
            for (int cuda = 0; cuda < 2; cuda++) {
                assert_string_equal(tb__dora_transport_name(tb__classify_transport(
                                        pairs[i][0], pairs[i][1], peer, cuda)),
                                    names[same][peer][cuda]);
            }
        }
    }
    assert_string_equal(tb__dora_transport_name((enum tb__dora_transport)3), "?");
}

static void classify_write_path_reaches_5(void **state)
{
    (void)state;
    /* CUDA source, transit buffer */
    static const char *const gpu_pool[2][2] = {{"CpuToGpuPoolDma", "CpuToGpuPoolDma"},
                                               {"GpuToGpuPoolDtoD", "GpuToGpuPoolTransit"}};
    static const char *const shmem[2] = {"CpuToShmem", "GpuToShmem"};
    static const uint64_t flags[] = {0, 1, 2, UINT64_MAX}; /* only 1 is a GPU pool */
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        for (int cuda = 0; cuda < 2; cuda++) {
            for (int transit = 0; transit < 2; transit++) {
                assert_string_equal(
                    tb__dora_write_name(tb__classify_write_path(flags[i], cuda, transit)),
                    flags[i] == 1 ? gpu_pool[cuda][transit] : shmem[cuda]);
            }
        }
    }
    assert_string_equal(tb__dora_write_name((enum tb__dora_write)5), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_of_the_path),
        cmocka_unit_test(paths_have_names),
        cmocka_unit_test(what_comes_back_is_registered),
        cmocka_unit_test(should_pin),
        cmocka_unit_test(classify_transport_in_8_cases),
        cmocka_unit_test(classify_write_path_reaches_5),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
