/* Segment heads: ours against golden bytes that a program of its own wrote, dora's are understood,
 * hostile ones are refused with the field's name. Segments lie in blocks of exactly their size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "segment/doradma.h"

#define OK(call) assert_int_equal((call), TB_OK)
#define CREATOR UINT64_C(0x1122334455667788)

static struct tb__doradma_spec spec_of(uint32_t slots, tb_dtype dtype, uint64_t slot_bytes)
{
    struct tb__doradma_spec spec = {
        .slots = slots,
        .max_leases = 4,
        .slot_bytes = slot_bytes,
        .dtype = dtype,
        .creator = CREATOR,
        .uid = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5,
                0xa6, 0xa7},
    };
    return spec;
}

/* A whole segment; the caller frees. */
static uint8_t *make_segment(const struct tb__doradma_spec *spec, uint64_t *bytes)
{
    struct tb__doradma_layout layout;
    OK(tb__doradma_layout(spec, &layout));
    uint8_t *segment = malloc(layout.segment_bytes);
    memset(segment, 0xee, layout.segment_bytes);
    OK(tb__doradma_init(segment, spec));
    *bytes = layout.segment_bytes;
    return segment;
}

/* Three slots of 16 bytes: the smallest that has everything. */
static uint8_t *make_small(uint64_t *bytes)
{
    struct tb__doradma_spec spec = spec_of(3, TB_U8, 16);
    spec.ndim = 1;
    spec.shape[0] = 16;
    return make_segment(&spec, bytes);
}

static uint8_t *read_golden(const char *name, size_t *size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/unit/golden/%s", TB_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("%s is missing", path);
    }
    uint8_t *data = malloc(65536);
    *size = fread(data, 1, 65536, file);
    fclose(file);
    uint8_t *exact = malloc(*size);
    memcpy(exact, data, *size);
    free(data);
    return exact;
}

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

static void put(uint8_t *segment, size_t offset, size_t width, uint64_t value)
{
    memcpy(segment + offset, &value, width);
}

/* What everybody who uses a view relies on. */
static void assert_sound(const struct tb__doradma_view *view, uint64_t mapped)
{
    assert_in_range(view->slot_count, 1, TB_MAX_SLOTS);
    assert_true(view->segment_bytes <= mapped && view->data_offset <= view->segment_bytes);
    assert_true(view->slot_bytes <= view->slot_stride);
    assert_true(view->slot_stride <= (view->segment_bytes - view->data_offset) / view->slot_count);
    assert_true(view->tensor_bytes <= view->slot_bytes);
    assert_in_range(view->ndim, 0, TB_MAX_NDIM);
    assert_true(tb_dtype_bytes(view->dtype) > 0);
    if (!view->foreign) {
        assert_true(view->gens_offset % 64 == 0 && view->counters_offset % 64 == 0 &&
                    view->records_offset % 64 == 0 && view->data_offset % 4096 == 0);
        assert_true(view->gens_offset + 8 * (1 + view->slot_count) <= view->data_offset);
        assert_true(view->counters_offset + TB__COUNTERS_BYTES <= view->data_offset);
        assert_true(view->records_offset + view->slot_count * TB__RECORD_BYTES <=
                    view->data_offset);
        assert_in_range(view->max_leases, 1, TB_MAX_LEASES);
    }
}

/* ------------------------------------------------------------------ golden bytes */

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
        assert_int_equal(layout.slot_stride, 4096);
        free(head);
    }
}

/* ------------------------------------------------------------------ dora's own segments */

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
    put(gpu, 24, 8, 2);
    assert_int_equal(tb__doradma_check_any(gpu, size, &view), TB_E_CORRUPT);
    free(gpu);
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
    assert_non_null(strstr(tb_last_error_text(), "size is 0"));
    memcpy(digits, "20", 2); /* smaller than float32[2, 3] */
    assert_int_equal(tb__doradma_check_any(node, size, &view), TB_E_CORRUPT);
    assert_non_null(strstr(tb_last_error_text(), "size is 20"));
    free(node);
}

/* ------------------------------------------------------------------ P15 */

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
        {116, 4, 4, "flags is 4, known bits are 3"},
        {116, 4, TB__GEOMETRY_EXPORT, "slot_count is 3, a pool for foreign readers has 1"},
        {120, 4, 0, "slot_count is 0"},
        {120, 4, 257, "slot_count is 257"},
        {120, 4, UINT64_C(1) << 31, "slot_count is 2147483648, 1 to 256"},
        {120, 4, 256, "slot_stride"},
        {124, 4, 2, "policy is 2"},
        {128, 8, 0, "slot_stride is 0"},
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

/* ------------------------------------------------------------------ P17, specs */

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
        cmocka_unit_test(foreign_pools_are_understood),
        cmocka_unit_test(foreign_size_zero_is_refused),
        cmocka_unit_test(p15_hostile_numbers_are_refused_by_name),
        cmocka_unit_test(p15_truncated_segments_are_refused),
        cmocka_unit_test(p15_hostile_json_is_refused),
        cmocka_unit_test(p15_nested_json_is_refused),
        cmocka_unit_test(p15_any_flipped_bit_is_refused_or_harmless),
        cmocka_unit_test(p17_shapes_round_trip),
        cmocka_unit_test(every_dtype_round_trips),
        cmocka_unit_test(dtypes_have_torchs_names_where_they_exist),
        cmocka_unit_test(bad_specs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
