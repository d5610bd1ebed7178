/* GPU pools and dora's tensor-pool, both ways: our pools by the DORADMA header's IPC handle, opened
 * here with the driver's calls alone as dora's reader does; and its pools, made here byte by byte
 * as its nodes do, opened by tb_dora_pool_open(). */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tensorbus/dora_pool.h>
#include <unistd.h>

#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)30000)
#define BYTES ((uint64_t)WORDS * 4)
#define JSON                                                                                       \
    "{\"size\": 120000, \"dtype\": \"torch.uint32\", \"shape\": [30000], \"pinned_type\": "        \
    "\"cuda\"}"

/* A name that no other run has; the same in all of a test's processes. */
static char file_name[64];

static void name_file(void)
{
    snprintf(file_name, sizeof file_name, "dora_pool_test_gpu_%d", (int)getpid());
}

static void file_path(char path[96])
{
    snprintf(path, 96, "/dev/shm/%s", file_name);
}

static int file_is_there(void)
{
    char path[96];
    struct stat info;
    file_path(path);
    return stat(path, &info) == 0;
}

static uint64_t *word_at(uint8_t *base, size_t offset)
{
    return (uint64_t *)(void *)(base + offset);
}

/* ------------------------------------------------------------------ dora's reader */

enum act { LOOK, SHUT, GENERATION, END };

struct heard {
    uint64_t generation;
    uint32_t first, last;
};

/* As dora's: opens the handle once, looks at the word before and after. */
static void doras_reader(void *argument)
{
    enum act act;
    char path[96];
    struct stat info;
    struct tb__ipc_handle handle;
    uint64_t address;
    (void)argument;
    gpu_begin();
    parent_pause("begun");
    file_path(path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && fstat(fd, &info) == 0);
    CHECK_EQ(info.st_mode & 07777, 0600);
    uint8_t *base = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK((void *)base != MAP_FAILED);
    close(fd);
    /* The header, byte for byte. */
    uint64_t json_bytes = *word_at(base, 8), data_offset = *word_at(base, 16);
    CHECK(memcmp(base, "DORADMA", 8) == 0);
    CHECK_EQ(json_bytes, strlen(JSON));
    CHECK(memcmp(base + 256, JSON, strlen(JSON)) == 0);
    CHECK_EQ(data_offset % 256, 0);
    CHECK_EQ(data_offset, info.st_size); /* a head alone: the payload is the GPU's */
    CHECK_EQ(*word_at(base, 24), 1);
    memcpy(handle.bytes, base + 32, sizeof handle.bytes);
    CHECK_CUDA(tb__cuda()->ipc_open_mem_handle(&address, handle, 1));
    do {
        struct heard heard = {0};
        parent_hear(&act, sizeof act);
        heard.generation = __atomic_load_n(word_at(base, 96), __ATOMIC_ACQUIRE);
        if (act == LOOK) {
            CHECK_CUDA(tb__cuda()->memcpy_dtoh_async(&heard.first, address, 4, NULL));
            CHECK_CUDA(tb__cuda()->memcpy_dtoh_async(&heard.last, address + BYTES - 4, 4, NULL));
            CHECK_CUDA(tb__cuda()->stream_synchronize(NULL));
            CHECK_EQ(__atomic_load_n(word_at(base, 96), __ATOMIC_RELAXED), heard.generation);
        } else if (act == SHUT) {
            CHECK_CUDA(tb__cuda()->ipc_close_mem_handle(address));
        }
        parent_tell(&heard, sizeof heard);
    } while (act != END);
    munmap(base, (size_t)info.st_size);
}

static struct heard tell(struct child *reader, enum act act)
{
    struct heard heard;
    child_tell(reader, &act, sizeof act);
    child_hear(reader, &heard, sizeof heard);
    return heard;
}

static tb_pool_options export_options(void)
{
    tb_pool_options options = gpu_words_options("frames", TB_CUDA(0), WORDS, 0);
    options.doradma_name = file_name;
    return options;
}

static void doras_reader_opens_a_pool_of_ours(void)
{
    struct child reader;
    tb_pool *pool;
    tb_loan *loan;
    tb_frame *frame;
    struct gpu_brake brake;
    gpu_skip_foreign_reads();
    name_file();
    child_start(&reader, "dora", doras_reader, NULL);
    child_await(&reader, "begun");
    const struct tb__gpu *gpu = gpu_begin();
    if (gpu->integrated) {
        harness_skip("integrated GPUs have no IPC handles");
    }
    tb_bus *bus = gpu_open_bus("owner");
    tb_cuda_stream stream = gpu_stream();
    gpu_brake_init(&brake);
    tb_pool_options options = export_options();
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    /* Another reader, ours, by the same handle. */
    tb_reader *ours = gpu_open_reader(bus, "owner/frames", 0);
    child_go(&reader);
    CHECK_EQ(tell(&reader, GENERATION).generation % 2, 1); /* nothing yet */
    for (uint32_t n = 1; n <= 5; n++) {
        CHECK_OK(tb_pool_loan(pool, TB_SECONDS(5), &loan));
        CHECK_EQ(tell(&reader, GENERATION).generation % 2, 1);
        gpu_fill(tb_loan_tensor(loan), 100 + n, stream);
        if (n % 2 == 0) { /* not complete before the GPU has done it */
            gpu_brake_put(&brake, gpu, stream);
            CHECK_OK(tb_loan_publish_on(loan, stream, NULL));
            CHECK_EQ(tell(&reader, GENERATION).generation % 2, 1);
            gpu_brake_off(&brake);
            CHECK_WITHIN_MS(gpu_pool_stats(pool).frames == n, 5000);
        } else {
            gpu_synchronize(stream);
            CHECK_OK(tb_loan_publish(loan, NULL));
        }
        struct heard heard = tell(&reader, LOOK);
        CHECK_EQ(heard.generation, 2 * n);
        CHECK_EQ(heard.first, 100 + n);
        CHECK_EQ(heard.last, 100 + n);
        CHECK_OK(tb_reader_newest(ours, TB_SECONDS(5), &frame));
        gpu_check(tb_frame_tensor(frame), 100 + n);
        tb_frame_release(frame);
    }
    tell(&reader, SHUT);
    tb_reader_close(ours);
    tb_pool_close(pool);
    CHECK(!file_is_there());
    tell(&reader, END);
    child_join(&reader);
    tb_bus_close(bus);
    gpu_stream_end(stream);
    gpu_brake_end(&brake);
}

static void an_export_needs_memory_with_a_handle(void)
{
    tb_pool *pool = NULL;
    gpu_need_fake();
    name_file();
    gpu_machine("devices=1;integrated=0");
    gpu_begin();
    tb_bus *bus = gpu_open_bus("owner");
    tb_pool_options options = export_options();
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), "no memory with a legacy IPC handle");
    CHECK_HAS(tb_last_error_text(), "use a pool on the CPU");
    CHECK(!file_is_there());
    CHECK(pool == NULL);
    tb_bus_close(bus);
}

/* The four verbs: a pool for foreign readers beside the one for ours. */
static void tb_register_exports_gpu_pools(void)
{
    struct child reader;
    char id[TB_POOL_ID_SIZE];
    uint64_t memory;
    tb_frame *frame;
    gpu_skip_foreign_reads();
    name_file();
    child_start(&reader, "dora", doras_reader, NULL);
    child_await(&reader, "begun");
    const struct tb__gpu *gpu = gpu_begin();
    if (gpu->integrated) {
        harness_skip("integrated GPUs have no IPC handles");
    }
    tb_bus *bus = gpu_open_bus("owner");
    tb_cuda_stream stream = gpu_stream();
    CHECK_CUDA(tb__cuda()->mem_alloc(&memory, BYTES));
    tb_tensor tensor = gpu_words((void *)(uintptr_t)memory, TB_CUDA(0), WORDS);
    tb_register_options options = {.size = sizeof options, .doradma_name = file_name};
    gpu_fill(&tensor, 1, stream);
    gpu_synchronize(stream);
    CHECK_OK(tb_register_with(bus, &tensor, &options, id));
    child_go(&reader);
    CHECK_EQ(tell(&reader, LOOK).first, 1);
    for (uint32_t n = 2; n < 5; n++) {
        gpu_fill(&tensor, n, stream);
        gpu_synchronize(stream);
        CHECK_OK(tb_write(bus, id, &tensor, TB_SECONDS(5)));
        CHECK_EQ(tell(&reader, LOOK).last, n);
        CHECK_OK(tb_read(bus, id, TB_SECONDS(5), &frame));
        gpu_check(tb_frame_tensor(frame), n);
        tb_frame_release(frame);
    }
    tell(&reader, SHUT);
    CHECK_OK(tb_free(bus, id));
    tell(&reader, END);
    child_join(&reader);
    tb_bus_close(bus);
    CHECK(!file_is_there());
    CHECK_CUDA(tb__cuda()->mem_free(memory));
    gpu_stream_end(stream);
}

/* ------------------------------------------------------------------ dora's node */

/* A pool as its nodes make it. */
struct node {
    uint8_t *base;
    size_t bytes;
    uint64_t memory; /* a GPU's */
    tb_cuda_stream stream;
};

static void node_file(struct node *node, const char *json, uint64_t payload)
{
    char path[96];
    file_path(path);
    uint64_t json_bytes = strlen(json);
    uint64_t data_offset = 256 + (json_bytes + 255) / 256 * 256;
    node->bytes = data_offset + payload;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)node->bytes) == 0);
    node->base = mmap(NULL, node->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK((void *)node->base != MAP_FAILED);
    close(fd);
    memcpy(node->base, "DORADMA", 8);
    *word_at(node->base, 8) = json_bytes;
    *word_at(node->base, 16) = data_offset;
    memcpy(node->base + 256, json, json_bytes);
}

/* Its write: the word odd, the bytes, the word even. */
static void node_write(struct node *node, uint32_t value, int finish)
{
    uint64_t *word = word_at(node->base, 96);
    uint64_t g = *word | 1;
    __atomic_store_n(word, g, __ATOMIC_SEQ_CST);
    if (node->memory != 0) {
        tb_tensor tensor = gpu_words((void *)(uintptr_t)node->memory, TB_CUDA(0), WORDS);
        gpu_fill(&tensor, value, node->stream);
        gpu_synchronize(node->stream);
    } else {
        uint32_t *words = (uint32_t *)(void *)(node->base + *word_at(node->base, 16));
        for (int64_t i = 0; i < WORDS; i++) {
            words[i] = value;
        }
    }
    if (finish) {
        __atomic_store_n(word, g + 1, __ATOMIC_SEQ_CST);
    }
}

static void node_end(struct node *node)
{
    char path[96];
    file_path(path);
    munmap(node->base, node->bytes);
    unlink(path);
}

enum node_act { WRITE, BEGIN_WRITE, REMOVE, NODE_END };

struct node_ask {
    enum node_act act;
    uint32_t value;
};

static void doras_node(void *argument)
{
    struct node node = {0};
    struct node_ask ask;
    struct tb__ipc_handle handle;
    char path[96];
    (void)argument;
    gpu_begin();
    node.stream = gpu_stream();
    CHECK_CUDA(tb__cuda()->mem_alloc(&node.memory, BYTES));
    CHECK_CUDA(tb__cuda()->ipc_get_mem_handle(&handle, node.memory));
    node_file(&node, JSON, 0);
    memcpy(node.base + 32, handle.bytes, sizeof handle.bytes);
    *word_at(node.base, 24) = 1;
    parent_reached("registered");
    do {
        parent_hear(&ask, sizeof ask);
        if (ask.act == WRITE || ask.act == BEGIN_WRITE) {
            node_write(&node, ask.value, ask.act == WRITE);
        } else if (ask.act == REMOVE) {
            file_path(path);
            CHECK(unlink(path) == 0);
        }
        parent_tell(&ask.act, sizeof ask.act);
    } while (ask.act != NODE_END);
    node_end(&node);
    CHECK_CUDA(tb__cuda()->mem_free(node.memory));
    gpu_stream_end(node.stream);
}

static void node_must(struct child *node, enum node_act act, uint32_t value)
{
    struct node_ask ask = {act, value};
    enum node_act done;
    child_tell(node, &ask, sizeof ask);
    child_hear(node, &done, sizeof done);
}

/* On its own GPU, found by trying when nobody names it. */
static void a_gpu_pool_of_dora_s_is_read_in_place(void)
{
    struct child node;
    tb_dora_pool *pool;
    tb_tensor tensor;
    uint64_t generation = 0;
    gpu_skip_foreign_reads();
    name_file();
    gpu_machine("devices=2;peer=0-1");
    child_start(&node, "node", doras_node, NULL);
    child_await(&node, "registered");
    gpu_begin();
    CHECK_OK(tb_dora_pool_open(file_name, TB_CPU, &pool));
    CHECK_STATUS(tb_dora_pool_read(pool, 0, TB_POLL, &tensor, &generation), TB_AGAIN);
    CHECK_HAS(tb_last_error_text(), "nothing was written");
    for (uint32_t n = 1; n <= 4; n++) {
        node_must(&node, WRITE, 200 + n);
        CHECK_OK(tb_dora_pool_read(pool, generation, TB_SECONDS(5), &tensor, &generation));
        CHECK_EQ(generation, 2 * n);
        CHECK_EQ(tensor.dtype, TB_U32);
        CHECK_EQ(tensor.device, TB_CUDA(0));
        CHECK_EQ(tensor.shape[0], WORDS);
        gpu_check(&tensor, 200 + n);
        CHECK_OK(tb_dora_pool_check(pool, generation));
        CHECK_STATUS(tb_dora_pool_read(pool, generation, TB_MILLIS(3), &tensor, &generation),
                     TB_AGAIN);
        CHECK_HAS(tb_last_error_text(), "nothing new");
    }
    node_must(&node, BEGIN_WRITE, 300);
    CHECK_STATUS(tb_dora_pool_check(pool, generation), TB_E_STALE);
    CHECK_STATUS(tb_dora_pool_read(pool, 0, TB_POLL, &tensor, &generation), TB_AGAIN);
    CHECK_HAS(tb_last_error_text(), "a write is not over");
    node_must(&node, WRITE, 301); /* it heals itself */
    CHECK_OK(tb_dora_pool_read(pool, generation, TB_POLL, &tensor, &generation));
    gpu_check(&tensor, 301);
    node_must(&node, REMOVE, 0);
    CHECK_STATUS(tb_dora_pool_read(pool, 0, TB_POLL, &tensor, &generation), TB_E_FREED);
    tb_dora_pool_close(pool);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_NOT_FOUND);
    node_must(&node, NODE_END, 0);
    child_join(&node);
}

/* Without a peer the other GPU says why it cannot; the one that has the memory is found. */
static void a_gpu_pool_is_found_on_the_gpu_that_has_it(void)
{
    struct child node;
    tb_dora_pool *pool;
    tb_tensor tensor;
    uint64_t generation;
    struct tb__gpu_scope scope;
    gpu_need_fake();
    name_file();
    gpu_machine("devices=2");
    child_start(&node, "node", doras_node, NULL);
    child_await(&node, "registered");
    gpu_begin();
    node_must(&node, WRITE, 9);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CUDA(1), &pool), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), "cuIpcOpenMemHandle");
    CHECK_OK(tb__gpu_enter(gpu_second(), &scope));
    CHECK_OK(tb_dora_pool_open(file_name, TB_CPU, &pool));
    tb__gpu_leave(&scope);
    CHECK_OK(tb_dora_pool_read(pool, 0, TB_POLL, &tensor, &generation));
    CHECK_EQ(tensor.device, TB_CUDA(0));
    gpu_check(&tensor, 9);
    tb_dora_pool_close(pool);
    gpu_fake()->fail("cuIpcOpenMemHandle_v2:1:2,cuIpcOpenMemHandle_v2:2:2");
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_NOMEM);
    gpu_fake()->fail(NULL);
    node_must(&node, NODE_END, 0);
    child_join(&node);
}

/* ------------------------------------------------------------------ host memory, bad files */

static void a_host_pool_of_dora_s_is_read_in_place(void)
{
    static const char json[] =
        "{\"size\": 120000, \"dtype\": \"torch.uint32\", \"shape\": [30000], "
        "\"pinned_type\": \"cpu\"}";
    struct node node = {0};
    tb_dora_pool *pool;
    tb_tensor tensor;
    uint64_t generation;
    name_file();
    node_file(&node, json, BYTES);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CUDA(0), &pool), TB_E_MISMATCH);
    CHECK_OK(tb_dora_pool_open(file_name, TB_CPU, &pool));
    node_write(&node, 5, 1);
    CHECK_OK(tb_dora_pool_read(pool, 0, TB_POLL, &tensor, &generation));
    CHECK_EQ(tensor.device, TB_CPU);
    const uint32_t *words = tensor.data;
    CHECK_EQ(words[0], 5);
    node_write(&node, 6, 1); /* in place: it is the very memory */
    CHECK_EQ(words[WORDS - 1], 6);
    CHECK_STATUS(tb_dora_pool_check(pool, generation), TB_E_STALE);
    char path[96];
    file_path(path);
    CHECK(truncate(path, 4096) == 0);
    CHECK_STATUS(tb_dora_pool_read(pool, 0, TB_POLL, &tensor, &generation), TB_E_CORRUPT);
    CHECK_HAS(tb_last_error_text(), "cut short");
    tb_dora_pool_close(pool);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_CORRUPT);
    node_end(&node);
}

/* A mirror's payload lies anywhere; and names where it comes from. */
static void mirrors_lead_to_their_origin_or_are_refused(void)
{
    char json[256];
    char origin[64];
    struct node node = {0}, mirror = {0};
    tb_dora_pool *pool;
    tb_tensor tensor;
    uint64_t generation;
    name_file();
    node_file(&node,
              "{\"size\": 120000, \"dtype\": \"torch.uint32\", \"shape\": [30000], "
              "\"pinned_type\": \"cpu\"}",
              BYTES);
    node_write(&node, 5, 1);
    snprintf(origin, sizeof origin, "%s", file_name);
    snprintf(file_name, sizeof file_name, "dora_pool_test_mirror_%d", (int)getpid());
    snprintf(json, sizeof json,
             "{\"dtype\":\"torch.uint32\",\"pinned_type\":\"cpu\",\"sender_shmem\":\"%s\","
             "\"shape\":[30000],\"size\":120000}",
             origin);
    node_file(&mirror, json, BYTES + 256);
    *word_at(mirror.base, 16) = 256 + strlen(json) + (strlen(json) % 4 == 0); /* never aligned */
    *word_at(mirror.base, 96) = 2;
    CHECK_OK(tb_dora_pool_open(file_name, TB_CPU, &pool));
    CHECK_OK(tb_dora_pool_read(pool, 0, TB_POLL, &tensor, &generation));
    CHECK_EQ(((uint32_t *)tensor.data)[3], 5);
    tb_dora_pool_close(pool);
    char mirror_name[64];
    snprintf(mirror_name, sizeof mirror_name, "%s", file_name);
    snprintf(file_name, sizeof file_name, "%s", origin);
    node_end(&node);
    CHECK_STATUS(tb_dora_pool_open(mirror_name, TB_CPU, &pool), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), "not aligned to elements of 4 bytes");
    snprintf(file_name, sizeof file_name, "%s", mirror_name);
    node_end(&mirror);
}

static void what_is_no_pool_of_dora_s_is_refused(void)
{
    static const char *const names[] = {"", "pool", "dora_pool", "../dora_pool_x",
                                        "dora_pool_/../../etc/passwd"};
    tb_dora_pool *pool = NULL;
    tb_tensor tensor;
    uint64_t generation;
    struct stat info;
    char path[96];
    name_file();
    file_path(path);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_STATUS(tb_dora_pool_open(names[i], TB_CPU, &pool), TB_E_INVALID);
    }
    CHECK_STATUS(tb_dora_pool_open(NULL, TB_CPU, &pool), TB_E_INVALID);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, NULL), TB_E_INVALID);
    CHECK_STATUS(tb_dora_pool_read(NULL, 0, TB_POLL, &tensor, &generation), TB_E_INVALID);
    CHECK_STATUS(tb_dora_pool_check(NULL, 0), TB_E_INVALID);
    tb_dora_pool_close(NULL);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_NOT_FOUND);
    CHECK(mkfifo(path, 0600) == 0); /* nobody writes into it */
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_CORRUPT);
    CHECK(unlink(path) == 0);
    CHECK(symlink("/etc/passwd", path) == 0);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_SYSTEM);
    CHECK(unlink(path) == 0);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_NOT_FOUND); /* empty */
    CHECK(ftruncate(fd, 4096) == 0);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_NOT_FOUND); /* zeros */
    /* A look allocates none of its maker's memory, which a full /dev/shm would not have. */
    CHECK(fstat(fd, &info) == 0);
    CHECK_EQ(info.st_blocks, 0);
    CHECK(write(fd, "DORADMB", 8) == 8);
    CHECK_STATUS(tb_dora_pool_open(file_name, TB_CPU, &pool), TB_E_CORRUPT);
    close(fd);
    CHECK(unlink(path) == 0);
    CHECK(pool == NULL);
}

static const struct test tests[] = {
    TEST(doras_reader_opens_a_pool_of_ours, 30),
    TEST(an_export_needs_memory_with_a_handle, 30),
    TEST(tb_register_exports_gpu_pools, 30),
    TEST(a_gpu_pool_of_dora_s_is_read_in_place, 30),
    TEST(a_gpu_pool_is_found_on_the_gpu_that_has_it, 30),
    TEST(a_host_pool_of_dora_s_is_read_in_place, 30),
    TEST(mirrors_lead_to_their_origin_or_are_refused, 30),
    TEST(what_is_no_pool_of_dora_s_is_refused, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
