/* Objects that are not there: a status that says which, never a crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tensorbus/tensorbus.h>

static void refused(tb_status status, const char *what, int line)
{
    if (status != TB_E_INVALID || strstr(tb_last_error_text(), what) == NULL) {
        fail_msg("line %d: %s, %s", line, tb_status_name(status), tb_last_error_text());
    }
}
#define REFUSED(call, what) refused((call), (what), __LINE__)

static void readers_and_frames(void **state)
{
    (void)state;
    tb_frame *frame = NULL;
    tb_reader *reader = NULL;
    tb_handle handle = {.generation = 2};
    tb_reader_stats stats = {.size = sizeof stats};
    tb_frame_info info = {.size = sizeof info};
    uint64_t sequence;
    size_t bytes;
    int fd;
    REFUSED(tb_reader_open(NULL, "a/b", NULL, &reader), "bus");
    REFUSED(tb_reader_open_handle(NULL, &handle, NULL, &reader), "bus");
    REFUSED(tb_frame_open(NULL, &handle, 0, &frame), "bus");
    REFUSED(tb_reader_next(NULL, 0, &frame), "reader");
    REFUSED(tb_reader_newest(NULL, 0, &frame), "reader");
    REFUSED(tb_reader_frame(NULL, &handle, &frame), "reader");
    REFUSED(tb_reader_copy_newest(NULL, &bytes, sizeof bytes, &bytes, &sequence), "reader");
    REFUSED(tb_reader_ack(NULL, NULL), "reader");
    REFUSED(tb_reader_fd(NULL, &fd), "reader");
    REFUSED(tb_reader_free_pool(NULL), "reader");
    REFUSED(tb_reader_get_stats(NULL, &stats), "reader");
    REFUSED(tb_frame_get_info(NULL, &info), "frame");
    REFUSED(tb_frame_hold(NULL, &frame), "frame");
    assert_null(tb_frame_tensor(NULL));
    tb_frame_release(NULL);
    tb_reader_close(NULL);
}

static void pools_and_loans(void **state)
{
    (void)state;
    tb_pool *pool = NULL;
    tb_loan *loan = NULL;
    tb_handle handle = {.generation = 2};
    tb_pool_options options = {.size = sizeof options};
    tb_pool_stats stats = {.size = sizeof stats};
    tb_tensor tensor = {.dtype = TB_U8};
    size_t bytes;
    REFUSED(tb_pool_register(NULL, &options, &pool), "bus");
    REFUSED(tb_pool_loan(NULL, 0, &loan), "pool");
    REFUSED(tb_pool_write(NULL, &tensor, 0, NULL), "pool");
    REFUSED(tb_pool_wait_acked(NULL, &handle, 0), "pool");
    REFUSED(tb_pool_free(NULL), "pool");
    REFUSED(tb_pool_get_stats(NULL, &stats), "pool");
    REFUSED(tb_pool_get_readers(NULL, NULL, 0, &(uint32_t){0}), "pool");
    REFUSED(tb_loan_promise(NULL, &handle), "loan");
    REFUSED(tb_loan_reshape(NULL, 0, NULL, NULL), "loan");
    REFUSED(tb_loan_publish(NULL, NULL), "loan");
    REFUSED(tb_tensor_bytes(NULL, &bytes), "tensor");
    assert_null(tb_loan_tensor(NULL));
    assert_string_equal(tb_pool_name(NULL), "");
    assert_string_equal(tb_bus_name(NULL), "");
    assert_int_equal(tb_bus_id(NULL), 0);
    tb_loan_cancel(NULL);
    tb_pool_close(NULL);
    tb_bus_close(NULL);
}

static void metadata(void **state)
{
    (void)state;
    tb_metadata *values;
    REFUSED(tb_metadata_set_int64(NULL, "key", 1), "metadata");
    REFUSED(tb_metadata_set_strings(NULL, "key", NULL, 0), "metadata");
    assert_int_equal(tb_metadata_create(&values), TB_OK);
    REFUSED(tb_metadata_set_int64s(values, "key", NULL, 3), "values");
    REFUSED(tb_metadata_set_doubles(values, "key", NULL, 3), "values");
    REFUSED(tb_metadata_set_strings(values, "key", NULL, 3), "values");
    REFUSED(tb_metadata_set_bool(values, NULL, 1), "key");
    assert_int_equal(tb_metadata_set_int64s(values, "key", NULL, 0), TB_OK);
    tb_metadata_destroy(values);
    tb_metadata_destroy(NULL);
}

static void extensions(void **state)
{
    (void)state;
    tb_extension_value *value;
    tb_extension_keys *keys;
    size_t size = 1;
    REFUSED(tb_extension_store(NULL, "space", "key", "v", 1), "node");
    REFUSED(tb_extension_load(NULL, "space", "key", 0, &value), "node");
    REFUSED(tb_extension_drop(NULL, "space", "key"), "node");
    REFUSED(tb_extension_drain(NULL, "space", 0, &keys), "node");
    REFUSED(tb_extension_request(NULL, "space", "v", 1, &value), "node");
    assert_null(tb_extension_value_bytes(NULL, &size));
    assert_int_equal(size, 0);
    assert_int_equal(tb_extension_keys_count(NULL), 0);
    assert_string_equal(tb_extension_keys_at(NULL, 0), "");
    assert_int_equal(tb_extension_keys_lost(NULL), 0);
    tb_extension_value_release(NULL);
    tb_extension_keys_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_and_frames),
        cmocka_unit_test(pools_and_loans),
        cmocka_unit_test(metadata),
        cmocka_unit_test(extensions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
