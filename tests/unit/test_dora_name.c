/* dora's names and ids: tables, exhaustive over the shapes that matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "segment/dora_name.h"

#define OK(call) assert_int_equal((call), TB_OK)
#define INVALID(call) assert_int_equal((call), TB_E_INVALID)

static const char name64[] = "n234567890123456789012345678901234567890123456789012345678901234";
static const char name65[] = "n2345678901234567890123456789012345678901234567890123456789012345";

static void segment_names(void **state)
{
    (void)state;
    static const struct {
        const char *machine;
        const char *flow;
        const char *node;
        uint64_t counter;
        const char *name; /* NULL: refused */
    } rows[] = {
        {NULL, "5f0e", "sender", 7, "dora_pool_5f0e_sender_7"},
        {"", "5f0e", "sender", 7, "dora_pool_5f0e_sender_7"},
        {"A", "5f0e", "sender_node", 12345, "dora_pool_A_5f0e_sender_node_12345"},
        {"A", "0191-8c7e-22d1", "a.b-c_", UINT64_MAX,
         "dora_pool_A_0191-8c7e-22d1_a.b-c__18446744073709551615"},
        {NULL, "f", "n", 0, "dora_pool_f_n_0"},
        {"a/b", "f", "n", 0, NULL},
        {"..", "f", "n", 0, NULL},
        {NULL, "", "n", 0, NULL},
        {NULL, NULL, "n", 0, NULL},
        {NULL, "f/g", "n", 0, NULL},
        {NULL, "f", "", 0, NULL},
        {NULL, "f", NULL, 0, NULL},
        {NULL, "f", "dora", 0, NULL},
        {NULL, "f", ".n", 0, NULL},
        {NULL, "f", "n n", 0, NULL},
        {name65, "f", "n", 0, NULL},
        {NULL, name65, "n", 0, NULL},
        {NULL, "f", name65, 0, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[TB__DORA_NAME_SIZE] = "unchanged";
        tb_status status = tb__dora_segment_name(rows[i].machine, rows[i].flow, rows[i].node,
                                                 rows[i].counter, name);
        assert_int_equal(status, rows[i].name != NULL ? TB_OK : TB_E_INVALID);
        assert_string_equal(name, rows[i].name != NULL ? rows[i].name : "unchanged");
    }
    char longest[TB__DORA_NAME_SIZE];
    OK(tb__dora_segment_name(name64, name64, name64, UINT64_MAX, longest));
    assert_int_equal(strlen(longest), 10 + 3 * 64 + 3 + 20);
    assert_string_equal(longest + strlen(longest) - 21, "_18446744073709551615");
}

static void explicit_names(void **state)
{
    (void)state;
    char name[256];
    OK(tb__dora_explicit_name_check("dora_pool_x"));
    OK(tb__dora_explicit_name_check("dora_pool_"));
    OK(tb__dora_explicit_name_check("dora_pool_a.b.c"));
    INVALID(tb__dora_explicit_name_check(NULL));
    INVALID(tb__dora_explicit_name_check(""));
    INVALID(tb__dora_explicit_name_check("dora_pool"));
    INVALID(tb__dora_explicit_name_check("Dora_pool_x"));
    INVALID(tb__dora_explicit_name_check("/dora_pool_x"));
    INVALID(tb__dora_explicit_name_check("xdora_pool_x"));
    INVALID(tb__dora_explicit_name_check("dora_pool_x/y"));
    assert_non_null(strstr(tb_last_error_text(), "has a `/`"));
    INVALID(tb__dora_explicit_name_check("dora_pool_.."));
    INVALID(tb__dora_explicit_name_check("dora_pool_a..b"));
    for (int length = 120; length < 140; length++) {
        snprintf(name, sizeof name, "dora_pool_%0*d", length - 10, 0);
        assert_int_equal(strlen(name), length);
        assert_int_equal(tb__dora_explicit_name_check(name), length <= 128 ? TB_OK : TB_E_INVALID);
    }
}

static void ids_round_trip(void **state)
{
    (void)state;
    static const char *const nodes[] = {"sender", "sender_node", "a_1",      "_",   "__", "a_",
                                        "_7",     "1",           "pool_x_1", "a.b", "-",  name64};
    static const uint64_t counters[] = {0, 1, 9, 10, 12345, UINT64_MAX - 1, UINT64_MAX};
    for (size_t n = 0; n < sizeof nodes / sizeof nodes[0]; n++) {
        for (size_t c = 0; c < sizeof counters / sizeof counters[0]; c++) {
            char id[TB_POOL_ID_SIZE];
            char expected[TB_POOL_ID_SIZE];
            char node[TB__NAME_SIZE];
            uint64_t counter = 99;
            OK(tb__dora_pool_id(nodes[n], counters[c], id));
            snprintf(expected, sizeof expected, "pool_%s_%llu", nodes[n],
                     (unsigned long long)counters[c]);
            assert_string_equal(id, expected);
            OK(tb__dora_pool_id_parse(id, node, &counter));
            assert_string_equal(node, nodes[n]);
            assert_true(counter == counters[c]);
        }
    }
    char id[TB_POOL_ID_SIZE] = "unchanged";
    INVALID(tb__dora_pool_id("dora", 1, id));
    INVALID(tb__dora_pool_id("a/b", 1, id));
    INVALID(tb__dora_pool_id(name65, 1, id));
    assert_string_equal(id, "unchanged");
}

static void bad_ids_are_refused(void **state)
{
    (void)state;
    static const char *const ids[] = {
        "",
        "pool",
        "pool_",
        "pool_7",
        "pool__7", /* no node */
        "pool_a",
        "pool_a_",
        "pool_a_x",
        "pool_a_-1",
        "pool_a_+1",
        "pool_a_ 1",
        "pool_a_1 ",
        "pool_a_01",
        "pool_a_00",
        "pool_a_1.0",
        "pool_a_18446744073709551616",
        "pool_a_99999999999999999999999",
        "Pool_a_1",
        "dora_pool_a_1",
        "pool_.a_1",
        "pool_a/b_1",
        "pool_../x_1",
        "pool_dora_1",
        "pool_n2345678901234567890123456789012345678901234567890123456789012345_1",
    };
    char node[TB__NAME_SIZE] = "unchanged";
    uint64_t counter = 99;
    INVALID(tb__dora_pool_id_parse(NULL, node, &counter));
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        if (tb__dora_pool_id_parse(ids[i], node, &counter) != TB_E_INVALID) {
            fail_msg("accepted: %s", ids[i]);
        }
    }
    char *endless = malloc(100000);
    memset(endless, '_', 99999);
    endless[99999] = '\0';
    memcpy(endless, "pool_", 5);
    endless[99998] = '1';
    INVALID(tb__dora_pool_id_parse(endless, node, &counter));
    free(endless);
    assert_string_equal(node, "unchanged");
    assert_int_equal(counter, 99);
}

static void candidates_are_machine_first(void **state)
{
    (void)state;
    char names[2][TB__DORA_NAME_SIZE];
    int count = 0;
    OK(tb__dora_candidates("A", "f0", "pool_sender_node_5", names, &count));
    assert_int_equal(count, 2);
    assert_string_equal(names[0], "dora_pool_A_f0_sender_node_5");
    assert_string_equal(names[1], "dora_pool_f0_sender_node_5");
    OK(tb__dora_candidates(NULL, "f0", "pool_sender_node_5", names, &count));
    assert_int_equal(count, 1);
    assert_string_equal(names[0], "dora_pool_f0_sender_node_5");
    OK(tb__dora_candidates("", "f0", "pool_sender_node_5", names, &count));
    assert_int_equal(count, 1);
    count = 7;
    INVALID(tb__dora_candidates("A/", "f0", "pool_x_5", names, &count));
    INVALID(tb__dora_candidates("A", "", "pool_x_5", names, &count));
    INVALID(tb__dora_candidates("A", "f0", "pool_x", names, &count));
    assert_int_equal(count, 7);
}

static void counter_goes_up_and_wraps(void **state)
{
    (void)state;
    struct tb__dora_counter counter;
    tb__dora_counter_init(&counter, UINT64_MAX - 1);
    assert_true(tb__dora_counter_take(&counter) == UINT64_MAX - 1);
    assert_true(tb__dora_counter_take(&counter) == UINT64_MAX);
    assert_true(tb__dora_counter_take(&counter) == 0);
    assert_true(tb__dora_counter_take(&counter) == 1);
    uint64_t first = tb__dora_counter_process();
    for (uint64_t i = 1; i <= 1000; i++) {
        assert_true(tb__dora_counter_process() == first + i);
    }
    /* Randomly seeded: a start below 2^32 would come once in four billion runs. */
    assert_true(first > UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segment_names),
        cmocka_unit_test(explicit_names),
        cmocka_unit_test(ids_round_trip),
        cmocka_unit_test(bad_ids_are_refused),
        cmocka_unit_test(candidates_are_machine_first),
        cmocka_unit_test(counter_goes_up_and_wraps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
