/* The error record of a thread: what a failure leaves behind, and what it does not touch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/error.h"
#include "child_output.h"

static void zero_before_the_first_failure(void **state)
{
    (void)state;
    static const tb_error zero;
    tb_error error;
    memset(&error, 0x5a, sizeof error);
    tb_last_error(&error);
    assert_memory_equal(&error, &zero, sizeof error);
    assert_string_equal(tb_last_error_text(), "");
}

static tb_status fail_here(int value)
{
    return TB__FAIL(TB_E_MISMATCH, "value %d, not 8", value);
}

static void a_failure_records_who_and_why(void **state)
{
    (void)state;
    tb_error error;
    assert_int_equal(fail_here(7), TB_E_MISMATCH);
    tb_last_error(&error);
    assert_int_equal(error.status, TB_E_MISMATCH);
    assert_int_equal(error.errno_value, 0);
    assert_int_equal(error.cuda_code, 0);
    assert_string_equal(error.where, "fail_here");
    assert_string_equal(error.text, "value 7, not 8");
    assert_string_equal(tb_last_error_text(), "value 7, not 8");

    errno = ENOSPC;
    assert_int_equal(TB__FAIL_ERRNO(TB_E_NOMEM, "sizing %s", "x"), TB_E_NOMEM);
    tb_last_error(&error);
    assert_int_equal(error.errno_value, ENOSPC);
    assert_string_equal(error.text, "sizing x: No space left on device");

    assert_int_equal(tb__error_copy(TB_E_FREED, "peer", "100% gone: %s%n"), TB_E_FREED);
    tb_last_error(&error);
    assert_string_equal(error.where, "peer");
    assert_string_equal(error.text, "100% gone: %s%n");
}

static void a_text_may_be_built_from_the_text_before(void **state)
{
    (void)state;
    (void)TB__FAIL(TB_E_SYSTEM, "inner");
    (void)TB__FAIL(TB_E_SYSTEM, "outer (%s)", tb_last_error_text());
    assert_string_equal(tb_last_error_text(), "outer (inner)");
}

static void long_texts_are_cut_and_stay_one_line(void **state)
{
    (void)state;
    char longer[2000];
    tb_error error;
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    errno = EIO;
    (void)TB__FAIL_ERRNO(TB_E_SYSTEM, "%s", longer);
    tb_last_error(&error);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    longer[sizeof error.text - 6] = '\0';
    errno = EIO;
    (void)TB__FAIL_ERRNO(TB_E_SYSTEM, "%s", longer);
    tb_last_error(&error);
    assert_string_equal(error.text + sizeof error.text - 6, ": Inp");
    (void)tb__error_set(TB_E_SYSTEM, 0, longer, "x");
    tb_last_error(&error);
    assert_int_equal(strlen(error.where), sizeof error.where - 1);
    (void)TB__FAIL(TB_E_INVALID, "name `%s`", "a\nb\x1b[2Jc\x7f\td\xc3\xa9\xc2\x9bm\xc2\xa9\xc2");
    assert_string_equal(tb_last_error_text(), "name `a?b?[2Jc??d\xc3\xa9??m\xc2\xa9\xc2`");
}

static void limits_on_open_files_name_the_way_out(void **state)
{
    (void)state;
    static const struct {
        int errno_value;
        const char *part;
    } cases[] = {
        {EMFILE, "making x: Too many open files (raise the limit: ulimit -n)"},
        {ENFILE, "(raise the system's limit: sysctl fs.file-max)"},
        {ETOOMANYREFS, "(raise the limit: ulimit -n)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        errno = cases[i].errno_value;
        (void)TB__FAIL_ERRNO(TB_E_LIMIT, "making x");
        assert_non_null(strstr(tb_last_error_text(), cases[i].part));
    }
}

static void a_limit_on_addresses_names_the_way_out(void **state)
{
    (void)state;
    struct rlimit before, limited;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    errno = ENOMEM;
    (void)TB__FAIL_ERRNO(TB_E_NOMEM, "mapping x");
    int had = before.rlim_cur != RLIM_INFINITY;
    assert_int_equal(strstr(tb_last_error_text(), "ulimit -v") != NULL, had);
    limited = before;
    limited.rlim_cur = (rlim_t)1 << 46; /* more than is needed: sanitizers map 20 TiB */
    if (setrlimit(RLIMIT_AS, &limited) != 0) {
        skip();
    }
    errno = ENOMEM;
    (void)TB__FAIL_ERRNO(TB_E_NOMEM, "mapping x");
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_string_equal(tb_last_error_text(), "mapping x: Cannot allocate memory (this process's "
                                              "addresses are limited: ulimit -v)");
}

static void a_probe_puts_the_record_back(void **state)
{
    (void)state;
    tb_error kept, error;
    errno = ENOSPC;
    (void)TB__FAIL_ERRNO(TB_E_NOMEM, "the user's");
    tb_last_error(&kept);
    (void)TB__FAIL(TB_E_NOT_FOUND, "a probe's");
    tb__error_restore(&kept);
    tb_last_error(&error);
    assert_memory_equal(&error, &kept, sizeof error);
    assert_string_equal(tb_last_error_text(), "the user's: No space left on device");
}

static tb_status try_it(tb_status inner, int *reached)
{
    TB__TRY(inner);
    *reached = 1;
    return TB_OK;
}

static void failures_and_outcomes_are_passed_on(void **state)
{
    (void)state;
    int reached = 0;
    assert_int_equal(try_it(TB_E_STALE, &reached), TB_E_STALE);
    assert_int_equal(try_it(TB_AGAIN, &reached), TB_AGAIN);
    assert_int_equal(reached, 0);
    assert_int_equal(try_it(TB_OK, &reached), TB_OK);
    assert_int_equal(reached, 1);
}

static void *fail_in_a_thread(void *unused)
{
    (void)unused;
    static char text[8];
    snprintf(text, sizeof text, "%s", tb_last_error_text());
    (void)TB__FAIL(TB_E_INVALID, "thread");
    return text;
}

static void each_thread_has_its_own(void **state)
{
    (void)state;
    pthread_t thread;
    void *text;
    (void)TB__FAIL(TB_E_INVALID, "main");
    assert_int_equal(pthread_create(&thread, NULL, fail_in_a_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &text), 0);
    assert_string_equal(text, "");
    assert_string_equal(tb_last_error_text(), "main");
}

/* Every number of the header has its name, and no other has one. */
static void names_of_statuses(void **state)
{
    (void)state;
    static const char *const names[] = {
        "TB_E_INCOMPLETE", "TB_E_BUSY",       "TB_E_CORRUPT", "TB_E_NOT_ACKED", "TB_E_UNSUPPORTED",
        "TB_E_MISMATCH",   "TB_E_LIMIT",      "TB_E_DENIED",  "TB_E_PROTOCOL",  "TB_E_FORKED",
        "TB_E_DEADLOCK",   "TB_E_OWNER_DIED", "TB_E_STALE",   "TB_E_FREED",     "TB_E_EXISTS",
        "TB_E_NOT_FOUND",  "TB_E_SYSTEM",     "TB_E_NOMEM",   "TB_E_INVALID",   "TB_OK",
        "TB_AGAIN",        "TB_CLOSED",
    };
    for (int status = -100; status <= 100; status++) {
        int known = status >= TB_E_INCOMPLETE && status <= TB_CLOSED;
        assert_string_equal(tb_status_name((tb_status)status),
                            known ? names[status - TB_E_INCOMPLETE] : "TB_E_?");
    }
    assert_string_equal(tb_version(), TB_VERSION);
}

static void break_an_invariant(void *argument)
{
    (void)argument;
    signal(SIGABRT, SIG_DFL); /* cmocka catches it */
    TB_ASSERT(1 + 1 == 2);
    TB_ASSERT(1 + 1 == 3);
}

static void a_broken_invariant_aborts_and_says_where(void **state)
{
    (void)state;
    char text[256];
    int status = child_output(break_an_invariant, NULL, text, sizeof text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "broken invariant: 1 + 1 == 3"));
    assert_non_null(strstr(text, "test_error.c:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_before_the_first_failure),
        cmocka_unit_test(a_failure_records_who_and_why),
        cmocka_unit_test(a_text_may_be_built_from_the_text_before),
        cmocka_unit_test(long_texts_are_cut_and_stay_one_line),
        cmocka_unit_test(limits_on_open_files_name_the_way_out),
        cmocka_unit_test(a_limit_on_addresses_names_the_way_out),
        cmocka_unit_test(a_probe_puts_the_record_back),
        cmocka_unit_test(failures_and_outcomes_are_passed_on),
        cmocka_unit_test(each_thread_has_its_own),
        cmocka_unit_test(names_of_statuses),
        cmocka_unit_test(a_broken_invariant_aborts_and_says_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
