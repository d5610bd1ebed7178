/* Heads as owners write them: golden bytes that a program of its own wrote, every number of slots,
 * every dtype, shapes (case P17), bad specs. */
#include "tests/unit/segment_fixture.h"

static void golden_one_slot(void **state)
{
    (void)state;
    struct tb__doradma_spec spec = spec_of(1, TB_I64, UINT64_C(61440000));
    struct tb__doradma_layout layout;
    size_t size;
    uint8_t *golden = read_golden("own_int64_1_slot.bin", &size);
    spec.ndim = 1;
    spec.shape[0] = 15000 * 512;
    OK(tb__doradma_layout(&spec, &layout));
    assert_int_equal(layout.data_offset, 4096);
    assert_int_equal(layout.segment_bytes, 4096 + 61440000);
    assert_int_equal(size, layout.data_offset);
    uint8_t *head = malloc(size);
    memset(head, 0xee, size);
    OK(tb__doradma_init(head, &spec));
    assert_memory_equal(head, golden, size);
    assert_string_equal((const char *)head + 256,
                        "{\"size\": 61440000, \"dtype\": \"torch.int64\", \"shape\": [7680000], "
                        "\"pinned_type\": \"cpu\"}");
    free(head);
    free(golden);
}

static void golden_three_slots(void **state)
{
    (void)state;
    struct tb__doradma_spec spec = spec_of(3, TB_U8, 8000000);
    uint64_t bytes;
    size_t size;
    uint8_t *golden = read_golden("own_uint8_3_slots.bin", &size);
    spec.ndim = 3;
    spec.shape[0] = 1080;
    spec.shape[1] = 1920;
    spec.shape[2] = 3;
    spec.policy = TB_EVERY;
    spec.max_leases = 7;
    spec.flags = TB__GEOMETRY_VARYING;
    uint8_t *segment = make_segment(&spec, &bytes);
    assert_memory_equal(segment, golden, size);
    assert_int_equal(segment[size], 0xee); /* no byte of a slot is touched */
    struct tb__doradma_view view;
    OK(tb__doradma_check(segment, bytes, &view));
    assert_int_equal(view.foreign, 0);
    assert_int_equal(view.slot_count, 3);
    assert_int_equal(view.policy, TB_EVERY);
    assert_int_equal(view.max_leases, 7);
    assert_int_equal(view.flags, TB__GEOMETRY_VARYING);
    assert_int_equal(view.slot_bytes, 8000000);
    assert_int_equal(view.slot_stride, 8003584);
    assert_int_equal(view.tensor_bytes, 1080 * 1920 * 3);
    assert_int_equal(view.data_offset, size);
    assert_int_equal(view.segment_bytes, bytes);
    assert_int_equal(view.creator, CREATOR);
    assert_memory_equal(view.uid, spec.uid, sizeof view.uid);
    assert_int_equal(view.dtype, TB_U8);
    assert_int_equal(view.ndim, 3);
    assert_memory_equal(view.shape, spec.shape, sizeof view.shape);
    assert_string_equal(view.pinned_type, "cpu");
    free(segment);
    free(golden);
}

static void word_96_is_the_one_slots_generation(void **state)
{
    (void)state;
    for (uint32_t slots = 1; slots <= TB_MAX_SLOTS; slots++) {
        struct tb__doradma_spec spec = spec_of(slots, TB_U8, 1);
        struct tb__doradma_layout layout;
        spec.max_leases = slots <= TB_MAX_LEASES ? slots : 1;
        OK(tb__doradma_layout(&spec, &layout));
        uint8_t *head = malloc(layout.data_offset);
        OK(tb__doradma_init(head, &spec));
        assert_int_equal(head[96], slots == 1 ? 0 : 1);
        for (uint32_t slot = 0; slot < slots; slot++) {
            uint64_t at = tb__doradma_gen_offset(slots, layout.gens_offset, slot);
            if (slots == 1) {
                assert_int_equal(at, 96);
            } else {
                assert_int_equal(at, layout.gens_offset + 8 + 8 * slot);
                assert_true(at + 8 <= layout.counters_offset);
            }
        }
        /* Nobody's area touches another's, and a slot is a whole page. */
        assert_int_equal(layout.gens_offset % 256, 0);
        assert_int_equal(layout.counters_offset % 64, 0);
        assert_int_equal(layout.records_offset, layout.counters_offset + 256);
        assert_true(layout.records_offset + 256 * slots <= layout.data_offset);
        assert_int_equal(layout.data_offset % 4096, 0);
        assert_true(layout.data_offset - layout.records_offset - 256 * slots < 4096);
        assert_int_equal(layout.slot_stride, 4096);
        free(head);
    }
    /* dora's readers take 0 for a complete frame. */
    struct tb__doradma_spec spec = spec_of(1, TB_U8, 1);
    uint64_t bytes;
    spec.flags = TB__GEOMETRY_EXPORT;
    uint8_t *segment = make_segment(&spec, &bytes);
    assert_int_equal(segment[96], 1);
    free(segment);
}

static void check_shape(int32_t ndim, const int64_t *shape, uint64_t tensor_bytes)
{
    struct tb__doradma_spec spec = spec_of(2, TB_F64, tensor_bytes);
    struct tb__doradma_view view;
    uint64_t bytes;
    spec.ndim = ndim;
    for (int32_t i = 0; i < ndim; i++) {
        spec.shape[i] = shape[i];
    }
    uint8_t *segment = make_segment(&spec, &bytes);
    OK(tb__doradma_check(segment, bytes, &view));
    assert_sound(&view, bytes);
    assert_int_equal(view.ndim, ndim);
    assert_memory_equal(view.shape, spec.shape, sizeof view.shape);
    assert_int_equal(view.tensor_bytes, tensor_bytes);
    free(segment);
}

static void p17_shapes_round_trip(void **state)
{
    (void)state;
    check_shape(0, NULL, 8);
    check_shape(1, (int64_t[]){0}, 0);
    check_shape(3, (int64_t[]){5, 0, 7}, 0);
    check_shape(1, (int64_t[]){1000}, 8000);
    check_shape(8, (int64_t[]){1, 2, 3, 1, 2, 3, 1, 2}, 576);
}

static void every_dtype_round_trips(void **state)
{
    (void)state;
    int known = 0;
    for (uint32_t code = 0; code < 20; code++) {
        for (uint32_t bits = 8; bits <= 128; bits *= 2) {
            struct tb__doradma_spec spec = spec_of(1, TB_DTYPE(code, bits, 1), 64);
            struct tb__doradma_view view;
            uint64_t bytes;
            if (tb_dtype_bytes(spec.dtype) == 0) {
                continue;
            }
            uint8_t *segment = make_segment(&spec, &bytes);
            OK(tb__doradma_check(segment, bytes, &view));
            assert_int_equal(view.dtype, spec.dtype);
            free(segment);
            known++;
        }
    }
    assert_int_equal(known, 4 + 4 + 4 + 1 + 3 + 1 + 8);
}

static void dtypes_have_torchs_names_where_they_exist(void **state)
{
    (void)state;
    static const struct {
        tb_dtype dtype;
        const char *text;
    } rows[] = {
        {TB_BF16, "\"torch.bfloat16\""},
        {TB_BOOL, "\"torch.bool\""},
        {TB_DTYPE(TB_CODE_FLOAT8_E4M3FN, 8, 1), "\"torch.float8_e4m3fn\""},
        {TB_DTYPE(TB_CODE_FLOAT8_E3M4, 8, 1), "\"float8_e3m4\""},
        {TB_DTYPE(TB_CODE_FLOAT, 32, 4), "\"float32x4\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tb__doradma_spec spec = spec_of(1, rows[i].dtype, 64);
        uint64_t bytes;
        uint8_t *segment = make_segment(&spec, &bytes);
        assert_non_null(strstr((const char *)segment + 256, rows[i].text));
        free(segment);
    }
}

static void bad_specs_are_refused(void **state)
{
    (void)state;
    struct tb__doradma_layout layout;
    for (int row = 0; row < 14; row++) {
        struct tb__doradma_spec spec = spec_of(2, TB_U8, 16);
        tb_status expected = TB_E_INVALID;
        spec.ndim = 1;
        spec.shape[0] = 16;
        switch (row) {
        case 0:
            spec.slots = 0;
            break;
        case 1:
            spec.slots = TB_MAX_SLOTS + 1;
            break;
        case 2:
            spec.max_leases = 0;
            break;
        case 3:
            spec.max_leases = TB_MAX_LEASES + 1;
            break;
        case 4:
            spec.policy = 2;
            break;
        case 5:
            spec.flags = 4;
            break;
        case 6:
            spec.flags = TB__GEOMETRY_EXPORT;
            break;
        case 7:
            spec.creator ^= 1;
            break;
        case 8:
            spec.shape[0] = 17;
            break;
        case 9:
            spec.shape[0] = -1;
            break;
        case 10:
            spec.ndim = 9;
            break;
        case 11:
            spec.dtype = TB_DTYPE(TB_CODE_OPAQUE, 64, 1);
            break;
        case 12:
            spec.slot_bytes = UINT64_MAX;
            expected = TB_E_LIMIT;
            break;
        default:
            spec.slot_bytes = UINT64_C(1) << 62;
            expected = TB_E_LIMIT;
            break;
        }
        memset(&layout, 0x5a, sizeof layout);
        assert_int_equal(tb__doradma_layout(&spec, &layout), expected);
        assert_int_equal(layout.json_bytes, UINT64_C(0x5a5a5a5a5a5a5a5a));
        uint8_t byte = 0x5a;
        assert_int_equal(tb__doradma_init(&byte, &spec), expected);
        assert_int_equal(byte, 0x5a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_one_slot),
        cmocka_unit_test(golden_three_slots),
        cmocka_unit_test(word_96_is_the_one_slots_generation),
        cmocka_unit_test(p17_shapes_round_trip),
        cmocka_unit_test(every_dtype_round_trips),
        cmocka_unit_test(dtypes_have_torchs_names_where_they_exist),
        cmocka_unit_test(bad_specs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
