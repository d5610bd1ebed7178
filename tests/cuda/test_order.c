/* Streams that wait for words and events, in one process and in two. */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "cuda/device_memory.h"
#include "cuda/event.h"
#include "cuda/order.h"
#include "tests/cuda/kit.h"
#include "tests/cuda/streams.h"

static void need_words(void)
{
    if (!gpu_at(0)->stream_mem_ops_64) {
        kit_skip("streams of the device cannot wait for words");
    }
}

static uint64_t at(const struct words *words, int index)
{
    return words->registration.device_ptr + (uint64_t)index * 8;
}

static void a_stream_waits_for_a_word(void)
{
    need_words();
    struct words words = words_make();
    tb__stream stream = NULL;
    const struct tb__gpu *gpu = gpu_at(0);
    OK(tb__stream_create(gpu, &stream));
    OK(stream_wait64(stream, gpu, at(&words, 0), 5));
    OK(stream_write64(stream, gpu, at(&words, 1), 77));
    pause_ms(20);
    CHECK_EQ(tb__stream_query(stream, gpu), TB_AGAIN);
    CHECK_EQ(atomic_load(&words.host[1]), 0);
    atomic_store(&words.host[0], 4);
    pause_ms(5);
    CHECK_EQ(tb__stream_query(stream, gpu), TB_AGAIN);
    atomic_store(&words.host[0], 6);
    OK(tb__stream_synchronize(stream, gpu));
    CHECK_EQ(atomic_load(&words.host[1]), 77);
    OK(tb__stream_query(stream, gpu));
    /* The comparison wraps: a word just before its overflow has not reached one just after it. */
    atomic_store(&words.host[0], UINT64_MAX);
    OK(stream_wait64(stream, gpu, at(&words, 0), 1));
    pause_ms(5);
    CHECK_EQ(tb__stream_query(stream, gpu), TB_AGAIN);
    atomic_store(&words.host[0], 1);
    OK(tb__stream_synchronize(stream, gpu));
    tb__stream_destroy(gpu, stream);
    words_drop(&words);
}

static void a_batch_is_done_in_order(void)
{
    need_words();
    struct words words = words_make();
    tb__stream stream = NULL;
    const struct tb__gpu *gpu = gpu_at(0);
    struct tb__stream_op ops[200];
    OK(tb__stream_create(gpu, &stream));
    for (uint32_t i = 0; i < 200; i++) {
        ops[i] = (struct tb__stream_op){1, at(&words, (int)i % 100), i};
    }
    ops[150] = (struct tb__stream_op){0, at(&words, 300), 1};
    OK(stream_batch(stream, gpu, ops, 200));
    OK(stream_batch(stream, gpu, ops, 0));
    pause_ms(10);
    CHECK_EQ(tb__stream_query(stream, gpu), TB_AGAIN);
    CHECK_EQ(atomic_load(&words.host[49]), 149);
    CHECK_EQ(atomic_load(&words.host[51]), 51);
    atomic_store(&words.host[300], 1);
    OK(tb__stream_synchronize(stream, gpu));
    CHECK_EQ(atomic_load(&words.host[50]), 50);
    CHECK_EQ(atomic_load(&words.host[99]), 199);
    tb__stream_destroy(gpu, stream);
    words_drop(&words);
}

static void words_that_the_device_cannot_reach(void)
{
    tb__stream stream = NULL;
    OK(tb__stream_create(gpu_at(0), &stream));
    static uint64_t word;
    FAILS(stream_write64(stream, gpu_at(0), (uintptr_t)&word, 1), TB_E_SYSTEM,
          "cuStreamWriteValue64");
    struct tb__stream_op ops[2] = {{0, (uintptr_t)&word, 1}, {0, (uintptr_t)&word, 1}};
    FAILS(stream_batch(stream, gpu_at(0), ops, 1), TB_E_SYSTEM, "cuStreamWaitValue64");
    FAILS(stream_batch(stream, gpu_at(0), ops, 2), TB_E_SYSTEM, "cuStreamBatchMemOp");
    FAILS(stream_write64(NULL, gpu_at(1), (uintptr_t)&word, 1), TB_E_UNSUPPORTED,
          "cannot wait for words");
    FAILS(stream_batch(NULL, gpu_at(1), ops, 1), TB_E_UNSUPPORTED, "cuda:1 (Fake GPU 1)");
    tb__stream_destroy(gpu_at(0), stream);
}

/* Words need three abilities, all of them, and nothing else matters. */
static void the_way_follows_from_the_abilities(void)
{
    for (unsigned bits = 0; bits < 1u << 9; bits++) {
        struct tb__gpu gpu = {
            .stream_mem_ops_64 = bits & 1,
            .host_register = bits >> 1 & 1,
            .can_map_host = bits >> 2 & 1,
            .integrated = bits >> 3 & 1,
            .unified = bits >> 4 & 1,
            .host_pointer_is_device_pointer = bits >> 5 & 1,
            .read_only_host_register = bits >> 6 & 1,
            .vmm = bits >> 7 & 1,
            .mig = bits >> 8 & 1,
        };
        CHECK_EQ(tb__order_way(&gpu), (bits & 7) == 7 ? TB__ORDER_WORDS : TB__ORDER_CPU);
    }
}

static void a_device_can_be_told_to_do_without_words(void)
{
    setenv("TENSORBUS_GPU_ORDER", "cpu", 1);
    CHECK_EQ(tb__order_way(gpu_at(0)), TB__ORDER_CPU);
}

/* A look makes the stream's context current, once, and finds its device. */
static void a_look_at_a_stream(void)
{
    struct tb__stream_at at;
    tb__stream stream = NULL;
    tb__context current = NULL;
    OK(tb__stream_create(gpu_at(1), &stream));
    for (int i = 0; i < 2; i++) {
        unsigned long asked = kit_fake()->calls("cuCtxGetDevice");
        OK(tb__stream_look(stream, gpu_at(0), &at));
        CHECK(at.gpu == gpu_at(1) && at.stream == stream);
        CHECK_EQ(tb__cuda()->ctx_get_current(&current), 0);
        CHECK(current == at.scope.context && current != NULL);
        tb__stream_leave(&at);
        CHECK_EQ(tb__cuda()->ctx_get_current(&current), 0);
        CHECK(current == NULL);
        CHECK_EQ(kit_fake()->calls("cuCtxGetDevice"), asked); /* the primary one is known */
    }
    OK(tb__stream_look(NULL, gpu_at(1), &at));
    CHECK(at.gpu == gpu_at(1));
    tb__stream_leave(&at);
    tb__stream_destroy(gpu_at(1), stream);
    FAILS(tb__stream_look(stream, gpu_at(0), &at), TB_E_INVALID, "no stream of CUDA");
}

/* Somebody else has made the primary context: it is asked about once, and known from then on. */
static void a_primary_context_of_others_is_found_out(void)
{
    struct tb__stream_at at;
    tb__stream stream = NULL;
    tb__context others = NULL;
    OK(tb__cuda_need());
    CHECK_EQ(tb__cuda()->primary_retain(&others, 0), 0);
    CHECK_EQ(tb__cuda()->ctx_push(others), 0);
    CHECK_EQ(tb__cuda()->stream_create(&stream, TB__STREAM_NON_BLOCKING), 0);
    for (int i = 0; i < 3; i++) {
        unsigned long asked = kit_fake()->calls("cuCtxGetDevice");
        OK(tb__stream_look(stream, NULL, &at));
        CHECK(at.gpu == gpu_at(0));
        tb__stream_leave(&at);
        CHECK_EQ(kit_fake()->calls("cuCtxGetDevice") - asked, i == 0);
    }
    tb__stream_destroy(gpu_at(0), stream);
    CHECK_EQ(tb__cuda()->ctx_pop(&others), 0);
}

static void the_device_of_a_stream(void)
{
    tb__stream stream = NULL;
    const struct tb__gpu *found = NULL;
    struct tb__gpu_scope scope;
    OK(tb__stream_create(gpu_at(1), &stream));
    OK(tb__stream_device(stream, NULL, &found));
    CHECK(found == gpu_at(1));
    OK(tb__stream_device(stream, gpu_at(0), &found));
    CHECK(found == gpu_at(1));
    static const tb__stream defaults[] = {NULL, TB__STREAM_LEGACY, TB__STREAM_PER_THREAD};
    for (size_t i = 0; i < 3; i++) {
        OK(tb__stream_device(defaults[i], gpu_at(1), &found));
        CHECK(found == gpu_at(1));
        OK(tb__stream_device(defaults[i], NULL, &found));
        CHECK(found == gpu_at(0)); /* no context is current */
        OK(tb__gpu_enter(gpu_at(1), &scope));
        OK(tb__stream_device(defaults[i], NULL, &found));
        CHECK(found == gpu_at(1));
        tb__gpu_leave(&scope);
        OK(tb__stream_synchronize(defaults[i], gpu_at(1)));
    }
    tb__stream_destroy(gpu_at(1), stream);
    found = NULL;
    FAILS(tb__stream_device(stream, NULL, &found), TB_E_INVALID, "no stream of CUDA");
    CHECK(found == NULL);
}

/* ------------------------------------------------------------------ functions */

static void note(void *argument)
{
    atomic_int *count = argument;
    atomic_fetch_add(count, 1);
}

static void a_function_is_called_when_the_stream_gets_there(void)
{
    need_words();
    struct words words = words_make();
    atomic_int count = 0;
    tb__stream stream = NULL;
    const struct tb__gpu *gpu = gpu_at(0);
    OK(tb__stream_create(gpu, &stream));
    OK(stream_wait64(stream, gpu, at(&words, 0), 1));
    OK(stream_host_func(stream, gpu, note, &count));
    pause_ms(10);
    CHECK_EQ(atomic_load(&count), 0);
    atomic_store(&words.host[0], 1);
    OK(tb__stream_synchronize(stream, gpu));
    CHECK_EQ(atomic_load(&count), 1);
    tb__stream_destroy(gpu, stream);
    words_drop(&words);
}

/* ------------------------------------------------------------------ events */

static void a_stream_waits_for_an_event_of_another(void)
{
    need_words();
    struct words words = words_make();
    tb__stream first = NULL, second = NULL;
    struct tb__gpu_event event;
    const struct tb__gpu *gpu = gpu_at(0);
    OK(tb__stream_create(gpu, &first));
    OK(tb__stream_create(gpu, &second));
    OK(tb__gpu_event_create(gpu, NULL, &event));
    OK(tb__gpu_event_query(&event)); /* nothing was recorded */
    OK(stream_wait64(first, gpu, at(&words, 0), 1));
    OK(tb__gpu_event_record(&event, first));
    OK(tb__gpu_event_wait(&event, second, gpu));
    OK(stream_write64(second, gpu, at(&words, 1), 9));
    pause_ms(10);
    CHECK_EQ(tb__gpu_event_query(&event), TB_AGAIN);
    CHECK_EQ(atomic_load(&words.host[1]), 0);
    atomic_store(&words.host[0], 1);
    OK(tb__gpu_event_synchronize(&event));
    OK(tb__gpu_event_query(&event));
    OK(tb__stream_synchronize(second, gpu));
    CHECK_EQ(atomic_load(&words.host[1]), 9);
    tb__gpu_event_destroy(&event);
    tb__gpu_event_destroy(&event);
    tb__stream_destroy(gpu, first);
    tb__stream_destroy(gpu, second);
    words_drop(&words);
}

/* ------------------------------------------------------------------ two processes, one order */

#define FRAMES 50

/* Each side enqueues all its frames at once; words of both in shared memory let them take turns. */
static void turn_reader(int socket)
{
    char word = 0;
    uint64_t seen = 0;
    int fd = kit_receive(socket, &word, 1);
    void *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED);
    tb__fd_close(&fd);
    struct tb__host_registration registration = {0};
    const struct tb__gpu *gpu = gpu_at(0);
    tb__stream stream = NULL;
    OK(tb__host_register(gpu, shared, 8192, 0, &registration));
    OK(tb__stream_create(gpu, &stream));
    uint64_t base = registration.device_ptr;
    uint64_t copies[FRAMES];
    struct tb__host_registration target = {0};
    OK(tb__host_register(gpu, copies, sizeof copies, 0, &target));
    for (uint64_t i = 1; i <= FRAMES; i++) {
        OK(stream_wait64(stream, gpu, base, i));
        struct tb__gpu_scope scope;
        OK(tb__stream_enter(stream, gpu, &scope));
        CHECK_EQ(tb__cuda()->memcpy_dtoh_async(&copies[i - 1], base + 4096, 8, stream), 0);
        tb__gpu_leave(&scope);
        OK(stream_write64(stream, gpu, base + 64, i));
    }
    OK(tb__stream_synchronize(stream, gpu));
    for (uint64_t i = 1; i <= FRAMES; i++) {
        seen += copies[i - 1] == i * 1000;
    }
    CHECK_EQ(seen, FRAMES);
    tb__host_unregister(&target);
    tb__stream_destroy(gpu, stream);
    tb__host_unregister(&registration);
    munmap(shared, 8192);
}

static void two_processes_take_turns_without_their_cpus(void)
{
    struct kit_pair pair = kit_pair_start(turn_reader);
    need_words();
    int fd = -1;
    char word = 0;
    OK(tb__memfd_create("turns", 8192, &fd));
    void *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED);
    struct tb__host_registration registration = {0};
    const struct tb__gpu *gpu = gpu_at(0);
    tb__stream stream = NULL;
    OK(tb__host_register(gpu, shared, 8192, 0, &registration));
    OK(tb__stream_create(gpu, &stream));
    uint64_t base = registration.device_ptr;
    kit_send(pair.socket, &word, 1, fd);
    tb__fd_close(&fd);
    for (uint64_t i = 1; i <= FRAMES; i++) {
        const struct tb__stream_op ops[] = {
            {0, base + 64, i - 1}, {1, base + 4096, i * 1000}, {1, base, i}};
        OK(stream_batch(stream, gpu, ops, 3));
    }
    OK(tb__stream_synchronize(stream, gpu));
    kit_pair_end(&pair);
    tb__stream_destroy(gpu, stream);
    tb__host_unregister(&registration);
    munmap(shared, 8192);
}

/* ------------------------------------------------------------------ failures */

static tb_status use_all(void *argument)
{
    const struct words *words = argument;
    const struct tb__gpu *gpu = gpu_at(0);
    static atomic_int count;
    tb__stream stream = NULL;
    struct tb__gpu_event event = {0};
    const struct tb__stream_op ops[] = {{1, at(words, 0), 1}, {0, at(words, 0), 1}};
    tb_status status = tb__stream_create(gpu, &stream);
    if (status == TB_OK) {
        status = tb__gpu_event_create(gpu, stream, &event);
    }
    if (status == TB_OK) {
        status = stream_write64(stream, gpu, at(words, 1), 1);
    }
    if (status == TB_OK) {
        status = stream_wait64(stream, gpu, at(words, 1), 1);
    }
    if (status == TB_OK) {
        status = stream_batch(stream, gpu, ops, 2);
    }
    if (status == TB_OK) {
        status = stream_host_func(stream, gpu, note, &count);
    }
    if (status == TB_OK) {
        status = tb__gpu_event_record(&event, stream);
    }
    if (status == TB_OK) {
        status = tb__gpu_event_wait(&event, stream, gpu);
    }
    if (status == TB_OK) {
        status = tb__gpu_event_synchronize(&event);
    }
    if (status == TB_OK) {
        status = tb__stream_synchronize(stream, gpu);
    }
    tb__gpu_event_destroy(&event);
    tb__stream_destroy(gpu, stream);
    return status;
}

static void every_failing_call_leaves_nothing(void)
{
    struct words words = words_make();
    kit_fake()->own();
    CHECK(FAIL_EACH(use_all, &words, TB__CUDA_UNKNOWN) > 30);
    kit_fake()->own();
    words_drop(&words);
}

static void an_error_in_a_stream_is_reported_by_the_next_question(void)
{
    need_words();
    struct words words = words_make();
    tb__stream stream = NULL;
    OK(tb__stream_create(gpu_at(0), &stream));
    kit_fake()->fail("async:cuStreamWriteValue64_v2:1:719");
    OK(stream_write64(stream, gpu_at(0), at(&words, 0), 1));
    FAILS(tb__stream_synchronize(stream, gpu_at(0)), TB_E_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED (719)");
    CHECK_EQ(atomic_load(&words.host[0]), 0);
    FAILS(stream_write64(stream, gpu_at(0), at(&words, 0), 1), TB_E_SYSTEM,
          "the context is broken");
    kit_fake()->break_device(0, 0);
    tb__stream_destroy(gpu_at(0), stream);
    words_drop(&words);
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        ANY(a_stream_waits_for_a_word, NULL),
        ANY(a_batch_is_done_in_order, NULL),
        FAKE(words_that_the_device_cannot_reach, "devices=2;no_stream_ops=1"),
        FAKE(the_way_follows_from_the_abilities, NULL),
        ANY(a_device_can_be_told_to_do_without_words, NULL),
        FAKE(a_look_at_a_stream, "devices=2"),
        FAKE(a_primary_context_of_others_is_found_out, NULL),
        FAKE(the_device_of_a_stream, "devices=2"),
        ANY(a_function_is_called_when_the_stream_gets_there, NULL),
        ANY(a_stream_waits_for_an_event_of_another, NULL),
        ANY(two_processes_take_turns_without_their_cpus, NULL),
        FAKE(every_failing_call_leaves_nothing, NULL),
        FAKE(an_error_in_a_stream_is_reported_by_the_next_question, NULL),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}
