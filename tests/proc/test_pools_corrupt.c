/* P12, P15: numbers at their ends, and owners that lie. The owner here reaches into its own pool
 * (it maps it writable), or is none of ours and speaks the protocol by hand. */
#include "proc/forger.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "pool/state.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* ------------------------------------------------------------------ P12 */

/* Let a fresh pool believe that it has written nearly 2^63 frames. */
static void near_the_wrap(tb_pool *pool, uint64_t generation)
{
    tb__a64_store_relaxed(&pool->reserved, generation);
    tb__a64_store_relaxed(pool->segment.head, generation);
}

static void wrap_with(uint32_t slots, tb_policy policy)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = words_options("frames", 16, slots);
    tb_handle handles[12];
    tb_frame *frame;
    tb_frame *held = NULL;
    options.policy = policy;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    near_the_wrap(pool, UINT64_MAX - 9); /* 2^64 - 10: the fifth write wraps */
    tb_reader *reader;
    tb_reader_options reading = {.size = sizeof reading, .every = 1, .start_next = 1};
    CHECK_OK(tb_reader_open(bus, "owner/frames", &reading, &reader));
    uint64_t before = 0;
    for (int i = 0; i < 12; i++) {
        CHECK_OK(write_words(pool, i, TB_SECONDS(1), &handles[i]));
        CHECK_NE(handles[i].generation, 0);
        CHECK_EQ(handles[i].generation % 2, 0);
        CHECK(i == 0 || handles[i].generation != handles[i - 1].generation);
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        tb_frame_info info = info_of(frame);
        CHECK_EQ(words_value(frame), i);
        CHECK_EQ(info.missed, 0);
        CHECK(info.generation == handles[i].generation && info.generation != before);
        before = info.generation;
        if (i == 3 && slots > 2) {
            held = frame; /* over the wrap */
        } else {
            tb_frame_release(frame);
        }
        CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), TB_AGAIN);
    }
    CHECK_EQ(handles[3].generation, UINT64_MAX - 1);
    CHECK_EQ(handles[4].generation, 2);
    if (held != NULL) {
        CHECK_EQ(words_value(held), 3);
        CHECK_OK(tb_reader_frame(reader, &handles[3], &frame));
        tb_frame_release(frame);
        tb_frame_release(held);
    }
    CHECK_STATUS(tb_reader_frame(reader, &handles[0], &frame), TB_E_STALE);
    CHECK_OK(tb_reader_frame(reader, &handles[11], &frame));
    CHECK_EQ(words_value(frame), 11);
    tb_frame_release(frame);
    CHECK_EQ(stats_of(pool).overwrites, 0);
    tb_bus_close(bus);
}

static void P12_generations_wrap(void)
{
    for (uint32_t slots = 1; slots <= 4; slots++) {
        wrap_with(slots, TB_LATEST);
        wrap_with(slots, TB_EVERY);
    }
}

/* ------------------------------------------------------------------ P15, by a real owner */

struct lie {
    const char *field; /* in the error's text */
    uint32_t offset;   /* in the segment */
    uint32_t bytes;
    uint64_t value;
};

#define LIE(member, value)                                                                         \
    {                                                                                              \
#member, offsetof(struct tb__doradma_header, member),                                      \
            sizeof(((struct tb__doradma_header *)0)->member), value                                \
    }

static const struct lie lies[] = {
    LIE(json_len, (uint64_t)1 << 63),
    LIE(json_len, 10000),
    LIE(data_offset, UINT64_MAX - 4095),
    LIE(data_offset, (uint64_t)1 << 40),
    LIE(data_offset, 4097),
    LIE(slot_count, (uint64_t)1 << 31),
    LIE(slot_count, 0),
    LIE(slot_count, 257),
    LIE(slot_stride, 0),
    LIE(slot_stride, (uint64_t)1 << 62),
    LIE(slot_bytes, (uint64_t)1 << 62),
    LIE(slot_bytes, 1),
    LIE(gens_offset, UINT64_MAX),
    LIE(gens_offset, 1),
    LIE(counters_offset, UINT64_MAX - 63),
    LIE(records_offset, (uint64_t)1 << 33),
    LIE(segment_bytes, 0),
    LIE(segment_bytes, (uint64_t)1 << 45),
    LIE(dtype, 0xffffffff),
    LIE(ndim, 0x80000000),
    LIE(ndim, 9),
    LIE(max_leases, 0),
    LIE(max_leases, 0xffffffff),
    LIE(record_bytes, 8),
    LIE(policy, 77),
    LIE(flags, 0x80000000),
    LIE(version, 99),
    {"metadata", offsetof(struct tb__doradma_header, json_len), 8, 0},
    {"magic", 0, 8, 0x4141414141414141},
    {"geometry", offsetof(struct tb__doradma_header, geometry_magic), 8, 0},
    {"uid", offsetof(struct tb__doradma_header, uid) + 8, 8, 0x4141414141414141},
};

static const char *const bad_json[] = {
    "{\"size\": 128, \"dtype\": \"int\"64\", \"shape\": [16], \"pinned_type\": \"cpu\"}",
    "{\"size\": 128, \"dtype\": \"int64\\\", \"shape\": [16]}",
    "{\"size\": -1, \"dtype\": \"int64\", \"shape\": [16]}",
    "{\"size\": 1e400, \"dtype\": \"int64\", \"shape\": [16]}",
    "{\"size\": 128, \"dtype\": \"int64\", \"shape\": [99999999999999999999]}",
    "{\"size\": 128, \"dtype\": \"int64\", \"shape\": [-16]}",
    "{\"size\": 128, \"dtype\": \"int64\", \"shape\": [4294967296, 4294967296, 2]}",
    "{\"size\": 128, \"dtype\": \"int64\"",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
    "[[[[["
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
    "[",
    "",
};

/* Registers a pool that may be lied about: `lies`, then `bad_json`, one for each order. */
static void lying_owner(void *argument)
{
    (void)argument;
    static uint8_t saved[1024];
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 16, 3);
    uint8_t *base = pool->segment.base;
    uint64_t json_bytes;
    memcpy(saved, base, sizeof saved);
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    parent_reached("open");
    for (;;) {
        int32_t which;
        parent_hear(&which, sizeof which);
        if (which < 0) {
            break;
        }
        memcpy(base, saved, 512); /* header and JSON as they were */
        if (which < (int32_t)(sizeof lies / sizeof lies[0])) {
            memcpy(base + lies[which].offset, &lies[which].value, lies[which].bytes);
        } else if (which != 1000) {
            const char *json = bad_json[which - (int32_t)(sizeof lies / sizeof lies[0])];
            json_bytes = strlen(json);
            memcpy(base + 8, &json_bytes, 8);
            memset(base + 256, 0, 256);
            memcpy(base + 256, json, json_bytes);
        }
        parent_reached("lied");
    }
    tb_bus_close(bus);
}

static void check_refused(tb_bus *bus, const char *what)
{
    tb_reader *reader;
    unsigned long before = harness_rss_kib();
    tb_status status = tb_reader_open(bus, "owner/frames", NULL, &reader);
    if (status != TB_E_CORRUPT && status != TB_E_UNSUPPORTED && status != TB_E_PROTOCOL) {
        FAIL("%s: %s (%s)", what, tb_status_name(status), tb_last_error_text());
    }
    if (strcmp(what, "JSON") != 0) {
        CHECK_HAS(tb_last_error_text(), what);
    } else if (strstr(tb_last_error_text(), "metadata") == NULL) {
        CHECK_HAS(tb_last_error_text(), "segment header: ");
    }
    CHECK_LE(harness_rss_kib(),
             before + 4096 * harness_slowness()); /* no bad number was believed */
}

static void P15_lying_owner(void)
{
    struct child owner;
    int32_t count = sizeof lies / sizeof lies[0];
    int32_t json_count = sizeof bad_json / sizeof bad_json[0];
    int32_t honest = 1000;
    int32_t end = -1;
    tb_reader *reader;
    tb_frame *frame;
    child_start(&owner, "owner", lying_owner, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("consumer");
    for (int32_t i = 0; i < count + json_count; i++) {
        child_tell(&owner, &i, sizeof i);
        child_await(&owner, "lied");
        check_refused(bus, i < count ? lies[i].field : "JSON");
    }
    child_tell(&owner, &honest, sizeof honest);
    child_await(&owner, "lied");
    CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &reader));
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(1), &frame));
    CHECK_EQ(words_value(frame), 1);
    tb_frame_release(frame);
    child_tell(&owner, &end, sizeof end);
    child_join(&owner);
    tb_bus_close(bus);
}

/* After attaching: what the owner writes beside the payload is no more to be trusted. */
static void record_liar(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = words_options("frames", 16, 3);
    options.capacity_bytes = 4096; /* shapes vary, so that records are read */
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    for (int which = 0; which < 7; which++) {
        tb_handle handle;
        CHECK_OK(write_words(pool, which, TB_POLL, &handle));
        struct tb__record_shm *record = &pool->segment.records[handle.slot];
        if (which == 1) {
            tb__a32_store_relaxed(&record->ndim, 0x80000000);
        } else if (which == 2) {
            tb__a64_store_relaxed(&record->shape[0], UINT64_MAX / 2);
        } else if (which == 3) {
            tb__a64_store_relaxed(&record->shape[0], (uint64_t)-5);
        } else if (which == 4) {
            tb__a32_store_relaxed(&record->strided, 1);
            tb__a64_store_relaxed(&record->strides[0], (uint64_t)1 << 40);
        } else if (which == 5) {
            tb__a32_store_relaxed(&record->strided, 1);
            tb__a64_store_relaxed(&record->strides[0], (uint64_t)-8);
        }
        parent_pause("lied");
    }
    /* And generations that were never published. */
    for (uint64_t i = 0; i < 200; i++) {
        tb__a64_store_relaxed(pool->segment.head, i * 0x9e3779b97f4a7c15);
        tb__a64_store_relaxed(&pool->segment.gens[i % 3], i * 0xc2b2ae3d27d4eb4f);
        if (i % 50 == 0) {
            parent_pause("scrambled");
        }
    }
    parent_pause("end");
    _exit(0); /* its own pool is in ruins */
}

static void P15_lies_after_attaching(void)
{
    struct child owner;
    tb_frame *frame;
    char buffer[4096];
    size_t bytes;
    uint64_t sequence;
    child_start(&owner, "owner", record_liar, NULL);
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    for (int which = 0; which < 7; which++) {
        child_await(&owner, "lied");
        tb_status status = tb_reader_next(reader, TB_SECONDS(1), &frame);
        CHECK_STATUS(status, which == 0 || which == 6 ? TB_OK : TB_E_CORRUPT);
        if (status == TB_OK) {
            CHECK_EQ(words_value(frame), which);
            tb_frame_release(frame);
        }
        child_go(&owner);
    }
    for (int i = 0; i < 4; i++) {
        child_await(&owner, "scrambled");
        for (int k = 0; k < 10; k++) { /* anything but a fault or a hang */
            if (tb_reader_next(reader, TB_MILLIS(1), &frame) == TB_OK) {
                tb_frame_release(frame);
            }
            tb_status status =
                tb_reader_copy_newest(reader, buffer, sizeof buffer, &bytes, &sequence);
            CHECK(status != TB_OK || bytes <= sizeof buffer);
        }
        child_go(&owner);
    }
    child_await(&owner, "end");
    child_go(&owner);
    child_join(&owner);
    harness_allow_sockets(); /* it has not said goodbye */
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ P15, by hand */

/* What the owner by hand answers with. */
struct forgery {
    const char *name;
    const char *error; /* "" : it is accepted */
    int segment;       /* enum below */
    int page;
    uint32_t fd_count;
    uint32_t max_leases;
    int32_t body_bytes; /* instead of the right number; 0: right */
    uint16_t type;      /* instead of POOL; 0: right */
    uint64_t announced; /* instead of the right size; 0: right */
};

enum {
    GOOD,
    EMPTY,
    SHORT,
    UNSEALED,
    DEVICE,
    PIPE,
    SPARSE,
    ZEROS,
    TWO_PAGES,
};

static const struct forgery forgeries[] = {
    {"good", "", GOOD, GOOD, 2, 4, 0, 0, 0},
    {"empty segment", "0 bytes", EMPTY, GOOD, 2, 4, 0, 0, 0},
    {"short segment", "", SHORT, GOOD, 2, 4, 0, 0, 0},
    {"unsealed segment", "seals", UNSEALED, GOOD, 2, 4, 0, 0, 0},
    {"a device", "sealed memory", DEVICE, GOOD, 2, 4, 0, 0, 0},
    {"a pipe", "sealed memory", PIPE, GOOD, 2, 4, 0, 0, 0},
    {"sparse giant", "", SPARSE, GOOD, 2, 4, 0, 0, 0},
    {"zeros", "magic", ZEROS, GOOD, 2, 4, 0, 0, 0},
    {"no page", "descriptors", GOOD, GOOD, 1, 4, 0, 0, 0},
    {"nothing", "descriptors", GOOD, GOOD, 0, 4, 0, 0, 0},
    {"empty page", "bytes", GOOD, EMPTY, 2, 4, 0, 0, 0},
    {"large page", "bytes", GOOD, TWO_PAGES, 2, 4, 0, 0, 0},
    {"unsealed page", "seals", GOOD, UNSEALED, 2, 4, 0, 0, 0},
    {"pipe for a page", "sealed memory", GOOD, PIPE, 2, 4, 0, 0, 0},
    {"no leases", "malformed", GOOD, GOOD, 2, 0, 0, 0, 0},
    {"many leases", "malformed", GOOD, GOOD, 2, 0x7fffffff, 0, 0, 0},
    {"short body", "reply type", GOOD, GOOD, 2, 4, 8, 0, 0},
    {"wrong type", "reply type", GOOD, GOOD, 2, 4, 0, TB__MSG_OK, 0},
    {"wrong size", "announced", GOOD, GOOD, 2, 4, 0, 0, 1 << 20},
};

static const struct tb__doradma_spec forged_spec = {
    .slots = 2,
    .max_leases = 4,
    .slot_bytes = 128,
    .dtype = TB_I64,
    .ndim = 1,
    .shape = {16},
    .creator = FORGER_ID,
    .uid = {0x42, 0x42, 0, 0, 0, 0, 0, 0, 1},
};

/* A memfd of `bytes` with `contents` and seals. */
static int forge_memory(uint64_t bytes, const void *contents, size_t contents_bytes, int seals)
{
    int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    CHECK(contents_bytes == 0 ||
          pwrite(fd, contents, contents_bytes, 0) == (ssize_t)contents_bytes);
    CHECK(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static int forge(int kind, const void *contents, uint64_t bytes, int seals)
{
    int pipe_fds[2];
    switch (kind) {
    case EMPTY:
        return forge_memory(0, NULL, 0, seals);
    case SHORT:
        return forge_memory(100, contents, 100, seals);
    case UNSEALED:
        return forge_memory(bytes, contents, bytes, 0);
    case DEVICE:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    case PIPE:
        CHECK(pipe2(pipe_fds, O_CLOEXEC) == 0);
        close(pipe_fds[1]);
        return pipe_fds[0];
    case SPARSE:
        return forge_memory((uint64_t)1 << 42, NULL, 0, seals);
    case ZEROS:
        return forge_memory(bytes, NULL, 0, seals);
    case TWO_PAGES:
        return forge_memory(2 * bytes, NULL, 0, seals);
    default:
        return forge_memory(bytes, contents, bytes, seals);
    }
}

/* Answer one request for a pool. */
static void answer_with(int fd, uint32_t request, size_t index)
{
    const struct forgery *forgery = &forgeries[index];
    struct tb__doradma_layout layout;
    CHECK_OK(tb__doradma_layout(&forged_spec, &layout));
    void *contents = aligned_alloc(4096, layout.segment_bytes);
    CHECK(contents != NULL);
    memset(contents, 0, layout.segment_bytes);
    CHECK_OK(tb__doradma_init(contents, &forged_spec));
    int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
    int fds[2] = {forge(forgery->segment, contents, layout.segment_bytes,
                        fixed | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL),
                  forge(forgery->page, "", 0, fixed)};
    if (forgery->page == GOOD) {
        close(fds[1]);
        fds[1] = forge_memory(TB__PAGE_BYTES, NULL, 0, fixed);
    }
    struct stat info;
    CHECK(fstat(fds[0], &info) == 0);
    struct tb__pool_wire answer = {
        .reader_id = 7,
        .max_leases = forgery->max_leases,
        .segment_bytes = forgery->announced != 0 ? forgery->announced : (uint64_t)info.st_size,
        .name = "frames"};
    memcpy(answer.uid, forged_spec.uid, sizeof answer.uid);
    struct tb__packet packet = {
        .type = forgery->type != 0 ? forgery->type : TB__MSG_POOL,
        .request = request,
        .body = &answer,
        .body_bytes = forgery->body_bytes != 0 ? (uint32_t)forgery->body_bytes : sizeof answer,
        .borrow_fds = fds,
        .fd_count = forgery->fd_count};
    CHECK_OK(tb__packet_send(fd, &packet));
    close(fds[0]);
    close(fds[1]);
    free(contents);
}

static void forger(void *argument)
{
    (void)argument;
    forger_serve(TB__MSG_POOL_OPEN, sizeof forgeries / sizeof forgeries[0], answer_with);
}

static void P15_forged_descriptors(void)
{
    struct child owner;
    child_start(&owner, "forger", forger, NULL);
    child_await(&owner, "open");
    for (size_t i = 0; i < sizeof forgeries / sizeof forgeries[0]; i++) {
        tb_bus *bus = open_bus("consumer"); /* a connection of its own for each */
        tb_reader *reader;
        tb_frame *frame;
        unsigned mappings = harness_memfd_count();
        tb_status status = tb_reader_open(bus, "forger/frames", NULL, &reader);
        if ((status == TB_OK) != (i == 0)) {
            FAIL("%s: %s (%s)", forgeries[i].name, tb_status_name(status), tb_last_error_text());
        }
        if (i == 0) {
            CHECK_STATUS(tb_reader_newest(reader, TB_MILLIS(5), &frame), TB_AGAIN);
            tb_reader_close(reader);
        } else {
            CHECK_HAS(tb_last_error_text(), forgeries[i].error);
        }
        /* The doorbell of the connection may still be mapped, nothing else. */
        CHECK_LE(harness_memfd_count(), mappings + 1);
        tb_bus_close(bus);
    }
    child_join(&owner);
}

static const struct test tests[] = {
    TEST(P12_generations_wrap, 10),
    TEST(P15_lying_owner, 20),
    TEST(P15_lies_after_attaching, 20),
    TEST(P15_forged_descriptors, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
