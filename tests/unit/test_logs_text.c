/* What of a node's output reaches a terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "flow/logs_text.h"

static void text_and_colours_stay(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {
        {"", ""},
        {"plain text, tabs\tand ~", "plain text, tabs\tand ~"},
        {"größer → 日本 🚀", "größer → 日本 🚀"},
        {"\033[31mred", "\033[31mred\033[0m"},
        {"\033[1;38;5;200mx\033[m", "\033[1;38;5;200mx\033[m\033[0m"},
        {"\033[2Jclear", "\\x1b[2Jclear"},
        {"\033[31", "\\x1b[31"},
        {"\033", "\\x1b"},
        {"\033]0;title\007", "\\x1b]0;title\\x07"},
        {"\033[1111111111111111111111111111111111m", "\\x1b[1111111111111111111111111111111111m"},
        {"a\rb\bc\177", "a\\x0db\\x08c\\x7f"},
        {"\xff\xfe", "\\xff\\xfe"},
        {"\xc0\x80", "\\xc0\\x80"}, /* overlong */
        {"\xe0\x80\x80", "\\xe0\\x80\\x80"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},          /* a surrogate */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* beyond Unicode */
        {"\xc2\x9b[2J", "\\xc2\\x9b[2J"},             /* the one-character form of ESC [ */
        {"\xe2\x80\xae"
         "abc",
         "\\xe2\\x80\\xae"
         "abc"}, /* right-to-left override */
        {"cut \xe2\x82", "cut \\xe2\\x82"},
        {"cut \xf0\x9f", "cut \\xf0\\x9f"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[256];
        size_t length = tb__log_text(cases[i].in, strlen(cases[i].in), out);
        assert_true(length <= TB__LOG_TEXT_ROOM(strlen(cases[i].in)));
        out[length] = '\0';
        assert_string_equal(out, cases[i].out);
    }
    char out[16];
    assert_int_equal(tb__log_text("\0", 1, out), 4);
    assert_memory_equal(out, "\\x00", 4);
}

/* Whatever the bytes are: what comes out fits, and holds no control character but tab and colours.
 */
static void any_bytes(void **state)
{
    (void)state;
    enum { SIZE = 512 };
    char *out = malloc(TB__LOG_TEXT_ROOM(SIZE));
    unsigned seed = 1;
    for (int round = 0; round < 2000; round++) {
        char in[SIZE];
        size_t length = (size_t)(seed % SIZE);
        for (size_t i = 0; i < length; i++) {
            seed = seed * 1103515245 + 12345;
            /* Favour the bytes that matter. */
            static const char special[] = "\033[;m0\xc2\x9b\xe2\x80\xae\n\r";
            in[i] = seed & 0x10000 ? special[seed % (sizeof special - 1)] : (char)(seed >> 16);
        }
        size_t used = tb__log_text(in, length, out);
        assert_true(used <= TB__LOG_TEXT_ROOM(length));
        for (size_t i = 0; i < used; i++) {
            unsigned char byte = (unsigned char)out[i];
            if (byte == 0x1b) {
                assert_int_equal(out[i + 1], '[');
                while (out[++i] != 'm') {
                    assert_true(i < used && strchr("[;0123456789", out[i]) != NULL);
                }
            } else {
                assert_true(byte == '\t' || (byte >= 0x20 && byte != 0x7f));
            }
        }
        seed += 77;
    }
    free(out);
}

static void last_lines(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned lines;
        size_t at;
    } cases[] = {
        {"", 3, 0},           {"one", 1, 0},        {"one\n", 1, 0},      {"one\ntwo", 1, 4},
        {"one\ntwo\n", 1, 4}, {"one\ntwo\n", 2, 0}, {"one\ntwo\n", 9, 0}, {"a\n\n\nb\n", 2, 3},
        {"\n\n", 1, 1},       {"one\n", 0, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t length = strlen(cases[i].text);
        assert_int_equal(tb__log_last_lines(cases[i].text, length, cases[i].lines), cases[i].at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_colours_stay),
        cmocka_unit_test(any_bytes),
        cmocka_unit_test(last_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
