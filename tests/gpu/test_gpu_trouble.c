/* What hinders a reader is told to the owner, who counts it, logs it and shows it: G12. */
#include "gpu/gpu_roles.h"
#include "pool/observe.h"
#include "proc/hostile.h"

#define WORDS ((int64_t)1 << 16)

/* ------------------------------------------------------------------ readers that fail */

enum act { OPEN, COPY, WAIT, BREAK, MEND, CLOSE, END };

struct ask {
    enum act act;
    char rule[64]; /* of the fake driver, for this act */
    const char *path;
    uint32_t ordered;
};

static tb_status reader_do(const struct ask *ask, tb_bus *bus, tb_reader **reader,
                           tb_cuda_stream stream, tb_tensor *device)
{
    tb_reader_options options = {
        .size = sizeof options, .wait_ns = TB_SECONDS(20), .stream_ordered = ask->ordered};
    tb_frame *frame;
    tb_status status = TB_OK;
    switch (ask->act) {
    case OPEN:
        return tb_reader_open(bus, ask->path, &options, reader);
    case COPY:
    case WAIT:
        CHECK_OK(tb_reader_newest(*reader, TB_SECONDS(20), &frame));
        status = ask->act == COPY ? tb_frame_copy_on(frame, device, stream)
                                  : tb_frame_wait_on(frame, stream);
        if (ask->act == COPY && status == TB_OK) {
            gpu_synchronize(stream);
        }
        tb_frame_release(frame);
        return status;
    case BREAK:
    case MEND:
        gpu_fake()->break_device(0, ask->act == BREAK ? TB__CUDA_LAUNCH_FAILED : 0);
        return TB_OK;
    case CLOSE:
        tb_reader_close(*reader);
        *reader = NULL;
        return TB_OK;
    default:
        return TB_OK;
    }
}

static void reader_role(void *argument)
{
    struct ask ask;
    tb_reader *reader = NULL;
    uint64_t memory;
    (void)argument;
    gpu_begin();
    tb_bus *bus = gpu_open_bus("victim");
    tb_cuda_stream stream = gpu_stream();
    CHECK_CUDA(tb__cuda()->mem_alloc(&memory, WORDS * 4));
    tb_tensor device = gpu_words((void *)(uintptr_t)memory, TB_CUDA(0), WORDS);
    parent_reached("begun");
    do {
        parent_hear(&ask, sizeof ask);
        gpu_fake()->fail(ask.rule[0] != '\0' ? ask.rule : NULL);
        tb_status status = reader_do(&ask, bus, &reader, stream, &device);
        gpu_fake()->fail(NULL);
        parent_tell(&status, sizeof status);
    } while (ask.act != END);
    tb_bus_close(bus);
    gpu_stream_end(stream);
    CHECK_CUDA(tb__cuda()->mem_free(memory));
}

static tb_status tell(struct child *reader, struct ask ask)
{
    tb_status status;
    child_tell(reader, &ask, sizeof ask);
    child_hear(reader, &status, sizeof status);
    return status;
}

/* ------------------------------------------------------------------ the owner */

struct owner {
    const struct tb__gpu *gpu;
    struct child reader;
    tb_bus *bus;
    tb_pool *frames; /* on the GPU */
    tb_pool *host;
    tb_cuda_stream stream;
    struct gpu_brake brake;
};

static void owner_begin(struct owner *owner)
{
    *owner = (struct owner){0};
    gpu_need_fake();
    child_start(&owner->reader, "victim", reader_role, NULL);
    child_await(&owner->reader, "begun");
    owner->gpu = gpu_begin();
    owner->bus = gpu_open_bus("owner");
    owner->frames = gpu_register(owner->bus, "frames", TB_CUDA(0), WORDS, 2);
    owner->host = gpu_register(owner->bus, "host", TB_CPU, WORDS, 2);
    owner->stream = gpu_stream();
    gpu_brake_init(&owner->brake);
}

static void owner_end(struct owner *owner)
{
    CHECK_OK(tell(&owner->reader, (struct ask){.act = END}));
    child_join(&owner->reader);
    tb_bus_close(owner->bus);
    gpu_brake_off(&owner->brake);
    gpu_stream_end(owner->stream);
    gpu_brake_end(&owner->brake);
}

static void check_told(tb_pool *pool, uint64_t count, tb_status status, const char *call)
{
    CHECK_WITHIN_MS(gpu_pool_stats(pool).troubles >= count, 5000);
    tb_pool_stats stats = gpu_pool_stats(pool);
    CHECK_EQ(stats.troubles, count);
    CHECK_EQ(stats.trouble_status, status);
    CHECK_HAS(stats.trouble, "`victim` (pid ");
    CHECK_HAS(stats.trouble, call);
}

/* What `tensorbus pool info` of this build must, or (part NULL) must not, say of troubles. A build
 * without the command has nothing to look at. */
static void check_pool_info(const char *words, const char *part)
{
    char command[4096];
    char text[4096];
    if (access(TB_BINARY_DIR "/bin/tensorbus", X_OK) != 0) {
        return;
    }
    snprintf(command, sizeof command,
             TB_BINARY_DIR "/bin/tensorbus pool info %s --flow default owner/frames", words);
    FILE *pipe = popen(command, "re");
    CHECK(pipe != NULL);
    size_t got = fread(text, 1, sizeof text - 1, pipe);
    text[got] = '\0';
    CHECK_EQ(pclose(pipe), 0);
    if (part != NULL) {
        CHECK_HAS(text, part);
    } else {
        CHECK(strstr(text, "trouble") == NULL);
    }
}

/* ------------------------------------------------------------------ tests */

/* G12: the lease is returned, both ends get the reason, the reader is detached. */
static void g12_an_import_that_is_denied_is_told_to_both_ends(void)
{
    struct owner owner;
    tb_loan *loan;
    owner_begin(&owner);
    check_pool_info("", NULL);
    gpu_publish(owner.frames, 1, owner.stream, NULL);
    for (uint64_t n = 1; n <= 2; n++) {
        struct ask ask = {
            .act = OPEN, .rule = "cuMemImportFromShareableHandle:1:801", .path = "owner/frames"};
        CHECK_STATUS(tell(&owner.reader, ask), TB_E_UNSUPPORTED);
        check_told(owner.frames, n, TB_E_UNSUPPORTED, "cuMemImportFromShareableHandle");
        CHECK_WITHIN_MS(gpu_pool_stats(owner.frames).readers == 0, 2000);
        CHECK_EQ(gpu_pool_stats(owner.frames).held, 0);
    }
    CHECK_LE(1, harness_log_count("pool `frames`: reader `victim` (pid"));
    CHECK_LE(1,
             harness_log_count("is in trouble: TB_E_UNSUPPORTED: cuMemImportFromShareableHandle"));
    /* Both slots are free: one is the newest, the other can be had. */
    CHECK_OK(tb_pool_loan(owner.frames, TB_POLL, &loan));
    tb_loan_cancel(loan);
    check_pool_info("", "troubles     2 of readers, the newest: TB_E_UNSUPPORTED: `victim` (pid");
    check_pool_info("--json", "\"troubles\":2,\"trouble\":\"TB_E_UNSUPPORTED: `victim` (pid");
    /* Without the failure it attaches, and nothing is added. */
    CHECK_OK(tell(&owner.reader, (struct ask){.act = OPEN, .path = "owner/frames"}));
    CHECK_EQ(gpu_pool_stats(owner.frames).readers, 1);
    CHECK_EQ(gpu_pool_stats(owner.frames).troubles, 2);
    owner_end(&owner);
}

/* Where page-locking is not to be had, copies go another way: the owner hears why they are slow. */
static void a_registration_that_is_refused_is_told_once(void)
{
    struct owner owner;
    tb_handle handle;
    owner_begin(&owner);
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(owner.host, TB_POLL, &loan));
    memset(tb_loan_tensor(loan)->data, 1, WORDS * 4);
    CHECK_OK(tb_loan_publish(loan, &handle));
    CHECK_OK(tell(&owner.reader, (struct ask){.act = OPEN, .path = "owner/host", .ordered = 1}));
    struct ask ask = {.act = COPY, .rule = "cuMemHostRegister_v2:1:2"};
    CHECK_OK(tell(&owner.reader, ask));
    check_told(owner.host, 1, TB_E_NOMEM, "cuMemHostRegister");
    CHECK_OK(tb_pool_loan(owner.host, TB_POLL, &loan));
    CHECK_OK(tb_loan_publish(loan, &handle));
    CHECK_OK(tell(&owner.reader, ask)); /* the same again */
    CHECK_OK(tell(&owner.reader, (struct ask){.act = CLOSE}));
    CHECK_WITHIN_MS(gpu_pool_stats(owner.host).readers == 0, 2000);
    CHECK_EQ(gpu_pool_stats(owner.host).troubles, 1); /* told before it was closed, if at all */
    CHECK_EQ(gpu_pool_stats(owner.frames).troubles, 0);
    owner_end(&owner);
}

/* A reader's context breaks while it waits for frames; it gives up and detaches. */
static void a_broken_context_is_told(void)
{
    struct owner owner;
    owner_begin(&owner);
    CHECK_OK(tell(&owner.reader, (struct ask){.act = OPEN, .path = "owner/frames", .ordered = 1}));
    gpu_brake_put(&owner.brake, owner.gpu, owner.stream);
    gpu_publish(owner.frames, 1, owner.stream, NULL);
    CHECK_OK(tell(&owner.reader, (struct ask){.act = BREAK}));
    CHECK_STATUS(tell(&owner.reader, (struct ask){.act = WAIT}), TB_E_SYSTEM);
    check_told(owner.frames, 1, TB_E_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED");
    CHECK_OK(tell(&owner.reader, (struct ask){.act = MEND}));
    CHECK_OK(tell(&owner.reader, (struct ask){.act = CLOSE}));
    CHECK_WITHIN_MS(gpu_pool_stats(owner.frames).readers == 0, 2000);
    check_told(owner.frames, 1, TB_E_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED");
    gpu_brake_off(&owner.brake);
    owner_end(&owner);
}

/* Mistakes of a reader's user are told to him alone. */
static void mistakes_are_not_told(void)
{
    struct owner owner;
    owner_begin(&owner);
    gpu_publish(owner.frames, 1, owner.stream, NULL);
    tb_reader *reader = gpu_open_reader(owner.bus, "owner/frames", 0);
    tb_frame *frame;
    tb_tensor wrong = {.device = TB_CUDA(0), .dtype = TB_U8, .ndim = 1, .shape = {3}};
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(5), &frame));
    CHECK_STATUS(tb_frame_copy_on(frame, &wrong, owner.stream), TB_E_MISMATCH);
    tb_frame_release(frame);
    tb_reader_close(reader);
    CHECK_WITHIN_MS(gpu_pool_stats(owner.frames).readers == 0, 2000);
    CHECK_EQ(gpu_pool_stats(owner.frames).troubles, 0);
    owner_end(&owner);
}

/* ------------------------------------------------------------------ hostile readers */

static uint64_t raw_attach(int fd)
{
    char packet[2048];
    struct tb__wire_header header;
    struct tb__pool_wire answer;
    struct tb__pool_open_wire open = {.flags = TB__OPEN_BY_NAME, .name = "host"};
    CHECK(raw_message(fd, raw_header(TB__MSG_POOL_OPEN, sizeof open), &open, sizeof open, NULL, 0));
    CHECK_EQ(raw_receive(fd, packet, sizeof packet, 5000), sizeof header + sizeof answer);
    memcpy(&header, packet, sizeof header);
    memcpy(&answer, packet + sizeof header, sizeof answer);
    CHECK_EQ(header.type, TB__MSG_POOL);
    return answer.reader_id;
}

static void raw_trouble(int fd, const struct tb__trouble_wire *wire, size_t bytes)
{
    CHECK(raw_message(fd, raw_header(TB__MSG_READER_TROUBLE, bytes), wire, bytes, NULL, 0));
}

/* What it says is shown, so it is cleaned; what it may not say hangs it up. */
static void hostile_words_are_cleaned_or_refused(void)
{
    tb_bus *bus = gpu_open_bus("owner");
    tb_pool *pool = gpu_register(bus, "host", TB_CPU, 16, 2);
    int fd = raw_greeted("owner");
    struct tb__trouble_wire wire = {.reader_id = raw_attach(fd), .status = TB_E_NOMEM};
    memset(wire.text, 'x', sizeof wire.text); /* no end */
    memcpy(wire.text, "a\033[2J\nb\377c\303\251\302\233", 13);
    raw_trouble(fd, &wire, sizeof wire);
    CHECK_WITHIN_MS(gpu_pool_stats(pool).troubles == 1, 2000);
    tb_pool_stats stats = gpu_pool_stats(pool);
    CHECK_HAS(stats.trouble, "`hostile` (pid ");
    CHECK_HAS(stats.trouble, ": a?[2J?b?c\303\251??xxx");
    CHECK_EQ(stats.trouble[sizeof stats.trouble - 1], '\0');
    CHECK_EQ(strlen(stats.trouble), sizeof stats.trouble - 1);
    wire.reader_id += 77; /* somebody else's */
    raw_trouble(fd, &wire, sizeof wire);
    wire.reader_id -= 77;
    raw_trouble(fd, &wire, sizeof wire);
    CHECK_WITHIN_MS(gpu_pool_stats(pool).troubles == 2, 2000);
    close(fd);
    for (int i = 0; i < 2; i++) {
        fd = raw_greeted("owner");
        wire.reader_id = raw_attach(fd);
        wire.status = i == 0 ? TB_OK : TB_E_NOMEM;
        raw_trouble(fd, &wire, i == 0 ? sizeof wire : sizeof wire - 1);
        CHECK(raw_hangs_up(fd, 2000));
        close(fd);
    }
    CHECK_EQ(gpu_pool_stats(pool).troubles, 2);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(g12_an_import_that_is_denied_is_told_to_both_ends, 30),
    TEST(a_registration_that_is_refused_is_told_once, 30),
    TEST(a_broken_context_is_told, 30),
    TEST(mistakes_are_not_told, 30),
    TEST(hostile_words_are_cleaned_or_refused, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
