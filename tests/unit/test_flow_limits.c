/* The limits of a flow file: the last of everything that is allowed, and the first that is not. */
#include "flow/flow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NODE "nodes:\n  - id: a\n    path: p\n"

static tb_status parse(const char *text, size_t length, struct tb__flow_problems *problems,
                       struct tb__flow **out)
{
    return tb__flow_parse(text, length, "f.yml", NULL, problems, out);
}

static void limits_are_kept(void **state)
{
    static const struct {
        const char *head, *each;
        unsigned count;
        const char *says;
    } cases[] = {
        {"nodes:\n", "  - {id: a%u, path: p}\n", 257, "257 nodes, 256 are allowed"},
        {NODE "    env:\n", "      K%u: 1\n", 257, "has 257 keys, 256 are allowed"},
        {NODE "    outputs:\n", "      - o%u\n", 129, "has 129 outputs, 128 are allowed"},
        {NODE "    inputs:\n", "      i%u: dora/timer/hz/1\n", 129, "129 inputs, 128 are allowed"},
        {NODE "    args:\n", "      - w%u\n", 1025, "more than 1024 entries in one list"},
        {NODE "    args: >\n", "      w%u\n", 1025, "more than 1024 words"},
        {NODE "    build: |\n", "      w%u\n", 65, "more than 64 lines"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (unsigned over = 0; over < 2; over++) {
            char *text = NULL;
            size_t size = 0;
            FILE *out = open_memstream(&text, &size);
            fputs(cases[i].head, out);
            for (unsigned j = 0; j < cases[i].count - 1 + over; j++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                fprintf(out, cases[i].each, j);
#pragma GCC diagnostic pop
            }
            fclose(out);
            struct tb__flow_problems problems = {0};
            struct tb__flow *flow = NULL;
            tb_status status = parse(text, size, &problems, &flow);
            assert_int_equal(status, over ? TB_E_INVALID : TB_OK);
            if (over && strstr(problems.list[0].text, cases[i].says) == NULL) {
                fail_msg("expected %s: %s", cases[i].says, problems.list[0].text);
            }
            tb__flow_destroy(flow);
            tb__flow_problems_fini(&problems);
            free(text);
        }
    }
}

/* "Billion laughs" through variables: growth ends at a documented size, in a moment. */
static void variables_cannot_fill_memory(void **state)
{
    char text[8192] = "env:\n  A: xxxxxxxxxxxxxxxx\n";
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    (void)state;
    for (char key = 'B'; key <= 'P'; key++) {
        char line[32];
        snprintf(line, sizeof line, "  %c: $%c$%c\n", key, key - 1, key - 1);
        strcat(text, line);
    }
    strcat(text, NODE);
    assert_int_equal(parse(text, strlen(text), &problems, &flow), TB_E_INVALID);
    assert_non_null(strstr(problems.list[0].text, "longer than 131071 bytes when expanded"));
    tb__flow_problems_fini(&problems);

    /* Each value within its limit, all together not. */
    text[0] = '\0';
    strcat(text, "env:\n  A: xxxxxxxxxxxxxxxx\n");
    for (char key = 'B'; key <= 'M'; key++) {
        char line[32];
        snprintf(line, sizeof line, "  %c: $%c$%c\n", key, key - 1, key - 1);
        strcat(text, line);
    }
    strcat(text, NODE "    args: ");
    for (int i = 0; i < 300; i++) {
        strcat(text, "$M ");
    }
    strcat(text, "\n");
    assert_int_equal(parse(text, strlen(text), &problems, &flow), TB_E_INVALID);
    assert_non_null(strstr(problems.list[0].text, "longer than 16 MiB when expanded"));
    tb__flow_problems_fini(&problems);
}

/* execve() takes 131,071 bytes of "KEY=value", so a value has two bytes less than that with the
 * name K. */
static void env_ends_where_execve_does(void **state)
{
    const char head[] = NODE "    env: {K: ";
    (void)state;
    for (size_t over = 0; over < 2; over++) {
        size_t value = TB__FLOW_VALUE_MAX - 2 + over;
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        fprintf(out, "%s%0*d}\n", head, (int)value, 0);
        fclose(out);
        struct tb__flow_problems problems = {0};
        struct tb__flow *flow = NULL;
        assert_int_equal(parse(text, size, &problems, &flow), over ? TB_E_INVALID : TB_OK);
        assert_int_equal(problems.count, over);
        tb__flow_destroy(flow);
        tb__flow_problems_fini(&problems);
        free(text);
    }
}

static void text_over_the_limit_is_refused(void **state)
{
    char *text = malloc(TB__FLOW_FILE_MAX + 1);
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    (void)state;
    memset(text, '#', TB__FLOW_FILE_MAX + 1);
    memcpy(text, NODE, strlen(NODE));
    assert_int_equal(parse(text, TB__FLOW_FILE_MAX, &problems, &flow), TB_OK);
    tb__flow_destroy(flow);
    flow = NULL;
    assert_int_equal(parse(text, TB__FLOW_FILE_MAX + 1, &problems, &flow), TB_E_LIMIT);
    assert_null(flow);
    tb__flow_problems_fini(&problems);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(variables_cannot_fill_memory),
        cmocka_unit_test(env_ends_where_execve_does),
        cmocka_unit_test(text_over_the_limit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
