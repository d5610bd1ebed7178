/* Heads as readers see them: dora's own are understood, hostile ones are refused with the name of
 * the field (case P15). */
#include "tests/unit/segment_fixture.h"

static void check_refused(const void *segment, uint64_t bytes, tb_status status, const char *text)
{
    struct tb__doradma_view view;
    struct tb__doradma_view before;
    memset(&view, 0x5a, sizeof view);
    memcpy(&before, &view, sizeof view);
    assert_int_equal(tb__doradma_check(segment, bytes, &view), status);
    assert_memory_equal(&view, &before, sizeof view);
    if (strstr(tb_last_error_text(), text) == NULL) {
        fail_msg("`%s` is not in `%s`", text, tb_last_error_text());
    }
}

static void foreign_pools_are_understood(void **state)
{
    (void)state;
    struct tb__doradma_view view;
    size_t size;
    uint8_t *node = read_golden("dora_node.bin", &size);
    check_refused(node, size, TB_E_CORRUPT, "geometry magic");
    OK(tb__doradma_check_any(node, size, &view));
    assert_int_equal(view.foreign, 1);
    assert_int_equal(view.slot_count, 1);
    assert_int_equal(view.data_offset, 512);
    assert_int_equal(view.slot_bytes, 24);
    assert_int_equal(view.tensor_bytes, 24);
    assert_int_equal(view.dtype, TB_F32);
    assert_int_equal(view.ndim, 2);
    assert_int_equal(view.shape[1], 3);
    assert_int_equal(view.ipc_present, 0);
    assert_int_equal(tb__doradma_check_any(node, size - 1, &view), TB_E_CORRUPT);
    free(node);

    uint8_t *mirror = read_golden("dora_mirror.bin", &size);
    OK(tb__doradma_check_any(mirror, size, &view));
    assert_int_equal(view.data_offset, size - 24);
    assert_string_equal(view.sender_shmem, "dora_pool_A_5f0e_sender_node_12345");
    free(mirror);

    uint8_t *gpu = read_golden("dora_gpu.bin", &size);
    OK(tb__doradma_check_any(gpu, size, &view));
    assert_int_equal(view.ipc_present, 1);
    assert_int_equal(view.ipc_handle[63], 63);
    assert_string_equal(view.pinned_type, "cuda");
    put(gpu, 24, 8, 0); /* without the handle the payload would have to be in the segment */
    assert_int_equal(tb__doradma_check_any(gpu, size, &view), TB_E_CORRUPT);
    free(gpu);
}

static void foreign_numbers_are_checked(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        uint64_t value;
        const char *text;
    } rows[] = {
        {16, 513, "size is 24, behind data_offset the segment has 23"},
        {16, 537, "data_offset is 537, the segment has 536"},
        {16, UINT64_MAX, "data_offset is 18446744073709551615, the segment has 536"},
        {16, 300, "data_offset is 300, the JSON ends"},
        {24, 2, "ipc_flag is 2"},
        {8, 281, "json_len is 281, the segment behind the header has 280"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tb__doradma_view view;
        size_t size;
        uint8_t *node = read_golden("dora_node.bin", &size);
        put(node, rows[i].offset, 8, rows[i].value);
        assert_int_equal(tb__doradma_check_any(node, size, &view), TB_E_CORRUPT);
        if (strstr(tb_last_error_text(), rows[i].text) == NULL) {
            fail_msg("`%s` is not in `%s`", rows[i].text, tb_last_error_text());
        }
        free(node);
    }
}

static void foreign_size_zero_is_refused(void **state)
{
    (void)state;
    size_t size;
    struct tb__doradma_view view;
    uint8_t *node = read_golden("dora_node.bin", &size);
    uint8_t *digits = (uint8_t *)strstr((char *)node + 256, "24");
    memcpy(digits, " 0", 2);
    assert_int_equal(tb__doradma_check_any(node, size, &view), TB_E_CORRUPT);
    assert_non_null(strstr(tb_last_error_text(), "size is 0, at least 1"));
    memcpy(strstr((char *)node + 256, "[2"), "[0", 2);
    assert_int_equal(tb__doradma_check_any(node, size, &view), TB_E_CORRUPT);
    assert_non_null(strstr(tb_last_error_text(), "size is 0, at least 1"));
    memcpy(strstr((char *)node + 256, "[0"), "[2", 2);
    memcpy(digits, "20", 2); /* smaller than float32[2, 3] */
    assert_int_equal(tb__doradma_check_any(node, size, &view), TB_E_CORRUPT);
    assert_non_null(strstr(tb_last_error_text(), "size is 20"));
    free(node);
}

static void p15_hostile_numbers_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        uint16_t offset;
        uint8_t width;
        uint64_t value;
        const char *text;
    } rows[] = {
        {0, 1, 'd', "magic"},
        {7, 1, '1', "magic"},
        {8, 8, UINT64_C(1) << 63, "json_len is 9223372036854775808, at most 4096"},
        {8, 8, UINT64_MAX, "json_len is 18446744073709551615"},
        {8, 8, 4097, "json_len is 4097, at most 4096"},
        {8, 8, 4096, "data_offset is 4096, the JSON ends at 4352"},
        {8, 8, 0, "byte 0 of 0"},
        {8, 8, 10, "byte 10 of 10"},
        {16, 8, 0, "data_offset is 0, the JSON ends at 3"},
        {16, 8, 320, "data_offset is 320, the JSON ends at 329"},
        {16, 8, UINT64_MAX, "data_offset is 18446744073709551615"},
        {16, 8, 1 << 20, "data_offset is 1048576, segment_bytes is 16384"},
        {16, 8, 4096 + 256, "data_offset is 4352, it is a multiple of 4096"},
        {16, 8, 8192, "slot_stride is 4096, times slot_count"},
        {24, 8, 1, "ipc_flag is 1"},
        {104, 1, 'X', "geometry magic"},
        {112, 4, 0, ""},
        {112, 4, 2, "version is 2"},
        {116, 4, 32, "flags is 32, known bits are 31"},
        {116, 4, 8, "device_kind is 0, the flags are 8"},
        {116, 4, 16, "device_kind is 0, the flags are 16"},
        {240, 4, TB__PLACE_VMM, "device_kind is 1, the flags are 0"},
        {240, 4, TB__PLACE_MEMFD, "device_kind is 5, the flags are 0"},
        {240, 4, 6, "device_kind is 6"},
        {116, 4, TB__GEOMETRY_LIVE, "slot_count is 3, a live pool has 1"},
        {116, 4, TB__GEOMETRY_EXPORT, "slot_count is 3, a pool for foreign readers has 1"},
        {120, 4, 0, "slot_count is 0"},
        {120, 4, 257, "slot_count is 257"},
        {120, 4, UINT64_C(1) << 31, "slot_count is 2147483648, 1 to 256"},
        {120, 4, 256, "slot_stride"},
        {124, 4, 2, "policy is 2"},
        {128, 8, 0, "slot_stride is 0, it is"},
        {128, 8, 64, "slot_stride is 64"},
        {128, 8, 8192, "slot_stride is 8192, times slot_count"},
        {128, 8, UINT64_MAX - 4095, "slot_stride is 18446744073709547520"},
        {136, 8, 4097, "slot_bytes is 4097, slot_stride is 4096"},
        {136, 8, 15, "size is 16, slot_bytes is 15"},
        {144, 8, 0, "gens_offset is 0, the JSON ends"},
        {144, 8, 513, "gens_offset is 513, it is a multiple of 64"},
        {144, 8, 4096, "gens_offset is 4096"},
        {144, 8, UINT64_MAX - 63, "gens_offset is 18446744073709551552"},
        {152, 8, 512, "counters_offset is 512, it overlaps gens_offset 512"},
        {152, 8, 4096 - 192, "counters_offset is 3904"},
        {160, 8, 512 + 64, "records_offset is 576, it overlaps counters_offset 576"},
        {160, 8, 4096 - 256, "records_offset is 3840"},
        {168, 8, 16385, "segment_bytes is 16385, the segment has 16384"},
        {168, 8, UINT64_MAX, "segment_bytes is 18446744073709551615"},
        {168, 8, 0, "segment_bytes is 0"},
        {176, 8, 1, "creator is 1"},
        {200, 4, TB_F32, "dtype is 73730"},
        {200, 4, 0, "dtype is 0"},
        {204, 4, 2, "ndim is 2, the JSON's shape has 1"},
        {204, 4, UINT32_MAX, "ndim is -1"},
        {208, 4, 0, "max_leases is 0"},
        {208, 4, 65, "max_leases is 65"},
        {212, 4, 128, "record_bytes is 128"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes;
        uint8_t *segment = make_small(&bytes);
        assert_int_equal(bytes, 16384);
        put(segment, rows[i].offset, rows[i].width, rows[i].value);
        int newer = rows[i].offset == 112;
        check_refused(segment, bytes, newer ? TB_E_UNSUPPORTED : TB_E_CORRUPT, rows[i].text);
        free(segment);
    }
}

/* Three slots of 16 bytes, 24 bytes apart, from byte 40 of a memfd of 104 bytes on. */
static uint8_t *make_adopted(uint64_t *bytes)
{
    struct tb__doradma_spec spec = spec_of(3, TB_U8, 16);
    spec.ndim = 1;
    spec.shape[0] = 16;
    spec.flags = TB__GEOMETRY_ADOPTED;
    spec.device_kind = TB__PLACE_MEMFD;
    spec.device_bytes = 104;
    spec.device_offset = 40;
    spec.slot_stride = 24;
    return make_segment(&spec, bytes);
}

static void p15_adopted_slots_lie_within_their_memory(void **state)
{
    (void)state;
    static const struct {
        uint16_t offset;
        uint8_t width;
        uint64_t value;
        const char *text;
    } rows[] = {
        {116, 4, 0, "device_kind is 5, the flags are 0"},
        {116, 4, TB__GEOMETRY_ADOPTED | TB__GEOMETRY_DEVICE, "device_kind is 5, the flags are 24"},
        {240, 4, TB__PLACE_SEGMENT, "device_kind is 0, the flags are 16"},
        {240, 4, TB__PLACE_VMM, "device_kind is 1, the flags are 16"},
        {240, 4, TB__PLACE_DMABUF, "device_kind is 4, the flags are 16"},
        {128, 8, 0, "slot_stride is 0"},
        {128, 8, 15, "slot_stride is 15, slot_bytes is 16"},
        {128, 8, 25, "device_offset is 40, with the slots behind it"},
        {128, 8, UINT64_C(1) << 63, "slot_stride is 9223372036854775808, it overflows"},
        {136, 8, 17, "device_offset is 40"},
        {232, 8, 103, "it must fit device_bytes, 103"},
        {232, 8, 0, "it must fit device_bytes, 0"},
        {248, 8, 41, "device_offset is 41"},
        {248, 8, UINT64_MAX, "device_offset is 18446744073709551615"},
        {24, 8, 1, "ipc_flag is 1"},
    };
    struct tb__doradma_view view;
    uint64_t bytes;
    uint8_t *segment = make_adopted(&bytes);
    assert_int_equal(bytes, 4096); /* the slots are elsewhere */
    OK(tb__doradma_check(segment, bytes, &view));
    assert_int_equal(view.device_offset, 40);
    assert_int_equal(view.slot_stride, 24);
    assert_int_equal(view.device_kind, TB__PLACE_MEMFD);
    free(segment);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        segment = make_adopted(&bytes);
        put(segment, rows[i].offset, rows[i].width, rows[i].value);
        check_refused(segment, bytes, TB_E_CORRUPT, rows[i].text);
        free(segment);
    }
}

static void p15_truncated_segments_are_refused(void **state)
{
    (void)state;
    uint64_t bytes;
    uint8_t *segment = make_small(&bytes);
    struct tb__doradma_view view;
    for (uint64_t size = 0; size < bytes; size = size < 1024 ? size + 1 : size + 511) {
        uint8_t *cut = malloc(size > 0 ? size : 1);
        memcpy(cut, segment, size);
        check_refused(cut, size, TB_E_CORRUPT, "");
        assert_int_equal(tb__doradma_check_any(cut, size, &view), TB_E_CORRUPT);
        free(cut);
    }
    OK(tb__doradma_check(segment, bytes, &view));
    OK(tb__doradma_check(segment, bytes, &view));
    free(segment);
}

static void replace_json(uint8_t *segment, const char *text)
{
    put(segment, 8, 8, strlen(text));
    memcpy(segment + 256, text, strlen(text));
}

static void p15_hostile_json_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *text;
    } rows[] = {
        {"{\"size\": 0, \"dtype\": \"torch.uint8\", \"shape\": [16]}", "size is 0"},
        {"{\"size\": 17, \"dtype\": \"torch.uint8\", \"shape\": [16]}", "size is 17"},
        {"{\"size\": 16, \"dtype\": \"torch.\\\"uint8\", \"shape\": [16]}",
         "dtype `torch.\"uint8`"},
        {"{\"size\": 16, \"dtype\": \"torch.\"uint8\", \"shape\": [16]}", "byte"},
        {"{\"size\": 16, \"dtype\": \"torch.uint9\", \"shape\": [16]}", "dtype `torch.uint9`"},
        {"{\"size\": 16, \"dtype\": \"torch.int8\", \"shape\": [16]}", "dtype is"},
        {"{\"size\": 16, \"dtype\": \"uint8\", \"shape\": [4, 4]}", "ndim is 1"},
        {"{\"size\": 16, \"dtype\": \"uint8\", \"shape\": [-16]}", "dimension 0 of shape is -16"},
        {"{\"size\": 16, \"dtype\": \"uint8\", \"shape\": [1,1,1,1,1,1,1,1,16]}", "8 dimensions"},
        {"{\"size\": 16, \"dtype\": \"uint8\", \"shape\": [9223372036854775807, 2]}", "overflow"},
        {"{\"size\": 16, \"dtype\": \"uint8\"}", "shape"},
        {"[]", "`{` is expected"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes;
        uint8_t *segment = make_small(&bytes);
        replace_json(segment, rows[i].json);
        check_refused(segment, bytes, TB_E_CORRUPT, rows[i].text);
        free(segment);
    }
}

static void p15_nested_json_is_refused(void **state)
{
    (void)state;
    uint64_t bytes;
    struct tb__doradma_spec spec = spec_of(64, TB_U8, 16); /* a head with room for 4096 bytes */
    uint8_t *segment = make_segment(&spec, &bytes);
    put(segment, 8, 8, 10000);
    memset(segment + 256, '[', 10000);
    check_refused(segment, bytes, TB_E_CORRUPT, "json_len is 10000");
    put(segment, 8, 8, 4096);
    memcpy(segment + 256, "{\"a\":", 5);
    check_refused(segment, bytes, TB_E_CORRUPT, "nested deeper than 32 levels");
    free(segment);
}

/* The check asks for areas apart from each other, not for our order, and takes each limit itself.
 */
static void limits_themselves_are_accepted(void **state)
{
    (void)state;
    uint64_t bytes;
    uint8_t *segment = make_small(&bytes);
    struct tb__doradma_view view;
    put(segment, 144, 8, 4096 - 64);                 /* gens at the very end, */
    put(segment, 152, 8, 4096 - 64 - 256);           /* counters before them, */
    put(segment, 160, 8, 4096 - 64 - 256 - 3 * 256); /* records before those */
    put(segment, 8, 8, 256);                         /* JSON up to the next area */
    memset(segment + 256 + strlen((char *)segment + 256), ' ', 256);
    memset(segment + 512, 0, 256);
    OK(tb__doradma_check(segment, bytes, &view));
    put(segment, 160, 8, 512);
    OK(tb__doradma_check(segment, bytes, &view));
    put(segment, 160, 8, 448);
    check_refused(segment, bytes, TB_E_CORRUPT, "records_offset is 448, the JSON ends at 512");
    put(segment, 160, 8, 512);
    put(segment, 208, 4, 1);
    put(segment, 136, 8, 4096);
    OK(tb__doradma_check(segment, bytes, &view));
    assert_sound(&view, bytes);
    put(segment, 208, 4, TB_MAX_LEASES);
    put(segment, 136, 8, 16);
    OK(tb__doradma_check(segment, bytes, &view));
    free(segment);
}

/* Every bit of the head: whatever is not refused must still be safe to use. */
static void p15_any_flipped_bit_is_refused_or_harmless(void **state)
{
    (void)state;
    uint64_t bytes;
    uint8_t *segment = make_small(&bytes);
    int accepted = 0;
    for (size_t bit = 0; bit < 512 * 8; bit++) {
        struct tb__doradma_view view;
        segment[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (tb__doradma_check_any(segment, bytes, &view) == TB_OK) {
            assert_sound(&view, bytes);
            accepted++;
        }
        segment[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(accepted > 0 && accepted < 512 * 8);
    free(segment);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(foreign_pools_are_understood),
        cmocka_unit_test(foreign_numbers_are_checked),
        cmocka_unit_test(foreign_size_zero_is_refused),
        cmocka_unit_test(p15_hostile_numbers_are_refused_by_name),
        cmocka_unit_test(p15_adopted_slots_lie_within_their_memory),
        cmocka_unit_test(p15_truncated_segments_are_refused),
        cmocka_unit_test(p15_hostile_json_is_refused),
        cmocka_unit_test(p15_nested_json_is_refused),
        cmocka_unit_test(limits_themselves_are_accepted),
        cmocka_unit_test(p15_any_flipped_bit_is_refused_or_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
