/* Sizes as text: the units' edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/size.h"

static void sizes_read_well_and_exactly(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 bytes"},
        {1, "1 byte"},
        {1023, "1023 bytes"},
        {1024, "1.0 KiB (1024 bytes)"},
        {1536, "1.5 KiB (1536 bytes)"},
        {1048575, "1.0 MiB (1048575 bytes)"},
        {6220800, "5.9 MiB (6220800 bytes)"},
        {12884901888, "12.0 GiB (12884901888 bytes)"},
        {UINT64_MAX, "16.0 EiB (18446744073709551615 bytes)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[TB__SIZE_TEXT];
        assert_string_equal(tb__size_text(cases[i].bytes, text), cases[i].text);
        assert_true(strlen(text) < TB__SIZE_TEXT - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_read_well_and_exactly)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
