/* The door: what is missing is said (G01), what fails is named, a forked child is told (G08). */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/order.h"
#include "tests/cuda/kit.h"
#include "tests/cuda/streams.h"

/* ------------------------------------------------------------------ G01 */

static void g01_no_gpu(void)
{
    unsetenv("CUDA_VISIBLE_DEVICES");
    FAILS(tb__cuda_need(), TB_E_UNSUPPORTED, "cuInit(0): CUDA_ERROR_NO_DEVICE (100)");
    FAILS(tb__cuda_need(), TB_E_UNSUPPORTED, "does nvidia-smi list one");
    tb_error error;
    tb_last_error(&error);
    CHECK_EQ(error.cuda_code, 100);
    CHECK(!tb__cuda_is_open());
    CHECK_EQ(kit_fake()->calls("cuInit"), 1); /* found once */
}

static void g01_a_driver_that_counts_none(void)
{
    FAILS(tb__cuda_need(), TB_E_UNSUPPORTED, "cuDeviceGetCount(): CUDA_ERROR_NO_DEVICE (100)");
}

static void g01_hidden_gpus(void)
{
    int count = 0;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    FAILS(tb__gpu_count(&count), TB_E_UNSUPPORTED, "CUDA_VISIBLE_DEVICES is ``");
}

/* Run again with another libcuda.so.1 (none that can be loaded, or an old one): this program with
 * --outcome prints what tb__cuda_need() says. */
static void outcome(const char *folder, char *text, size_t size)
{
    int pipes[2];
    fflush(NULL);
    CHECK_EQ(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        setenv("LD_LIBRARY_PATH", folder, 1);
        execl("/proc/self/exe", "test", "--outcome", (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    FILE *file = fdopen(pipes[0], "r");
    CHECK(fgets(text, (int)size, file) != NULL);
    fclose(file);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void g01_no_driver(void)
{
    char folder[] = "/tmp/tb-test-cuda-XXXXXX", path[64], text[1024];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    FILE *file = fopen(path, "we"); /* found first, and no library */
    CHECK(file != NULL);
    fclose(file);
    outcome(folder, text, sizeof text);
    unlink(path);
    rmdir(folder);
    CHECK(strstr(text, "TB_E_UNSUPPORTED: GPUs need the NVIDIA driver's libcuda.so.1, which cannot "
                       "be opened (") == text);
    CHECK(strstr(text, "install the driver") != NULL && strstr(text, "--gpus all") != NULL);
}

static void g01_old_driver(void)
{
    char text[1024];
    outcome(TB_BINARY_DIR "/tests/cuda/old", text, sizeof text);
    CHECK(strstr(text, "TB_E_UNSUPPORTED: the NVIDIA driver is too old: libcuda.so.1 has no cu") ==
          text);
}

/* A program that does not ask for a GPU does not load the driver. */
static void nothing_is_opened_before_it_is_needed(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        found += strstr(line, "libcuda.so") != NULL;
    }
    fclose(maps);
    CHECK_EQ(found, 0);
    CHECK(!tb__cuda_is_open());
}

static void g01_one_gpu_by_uuid(void)
{
    char text[TB__UUID_TEXT];
    int count = 0;
    const struct tb__gpu *gpu = NULL;
    setenv("CUDA_VISIBLE_DEVICES", "MIG-66616b65-2067-7075-2031-00000000004d", 1);
    OK(tb__gpu_count(&count));
    CHECK_EQ(count, 1);
    OK(tb__gpu_get(0, &gpu));
    CHECK(strcmp(tb__gpu_uuid_text(gpu->uuid, gpu->mig, text), getenv("CUDA_VISIBLE_DEVICES")) ==
          0);
    CHECK(gpu->mig);
    FAILS(tb__gpu_get(1, &gpu), TB_E_NOT_FOUND, "CUDA_VISIBLE_DEVICES is `MIG-66616b65");
}

static void the_driver_does_not_start(void)
{
    static const struct {
        int code;
        tb_status status;
        const char *text;
    } cases[] = {
        {TB__CUDA_STUB_LIBRARY, TB_E_UNSUPPORTED, "take its folder out of LD_LIBRARY_PATH"},
        {TB__CUDA_SYSTEM_DRIVER_MISMATCH, TB_E_SYSTEM, "reload the driver or reboot"},
        {TB__CUDA_UNKNOWN, TB_E_SYSTEM, "CUDA_ERROR_UNKNOWN (999), unknown error"},
        {TB__CUDA_NOT_INITIALIZED, TB_E_FORKED, "spawn or exec"}, /* the parent had used CUDA */
    };
    const char *which = getenv("TB_CASE");
    size_t i = (size_t)atoi(which != NULL ? which : "0");
    char rule[64];
    snprintf(rule, sizeof rule, "cuInit:1:%d", cases[i].code);
    kit_fake()->fail(rule);
    FAILS(tb__cuda_need(), cases[i].status, cases[i].text);
    FAILS(tb__cuda_need(), cases[i].status, cases[i].text);
}

static void one_start(void *number)
{
    setenv("TB_CASE", number, 1);
    the_driver_does_not_start();
}

static void each_way_not_to_start_is_told(void)
{
    static char numbers[4][2] = {"0", "1", "2", "3"};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(kit_child(one_start, numbers[i]), 0);
    }
}

/* ------------------------------------------------------------------ errors */

static void errors_name_call_code_and_way_out(void)
{
    static const struct {
        int code, sticky;
        tb_status status;
        const char *text;
    } cases[] = {
        {TB__CUDA_INVALID_VALUE, 0, TB_E_SYSTEM,
         "cuTest(7 bytes): CUDA_ERROR_INVALID_VALUE (1), invalid argument"},
        {TB__CUDA_OUT_OF_MEMORY, 0, TB_E_NOMEM, "use fewer or smaller slots"},
        {TB__CUDA_NOT_SUPPORTED, 0, TB_E_UNSUPPORTED, "this device or driver cannot do it"},
        {TB__CUDA_PEER_ACCESS_UNSUPPORTED, 0, TB_E_UNSUPPORTED, "nvidia-smi topo"},
        {TB__CUDA_ILLEGAL_ADDRESS, 1, TB_E_SYSTEM, "the context is broken"},
        {TB__CUDA_LAUNCH_FAILED, 1, TB_E_SYSTEM, "the context is broken"},
        {TB__CUDA_ECC_UNCORRECTABLE, 1, TB_E_SYSTEM, "end this process"},
        {TB__CUDA_CONTEXT_IS_DESTROYED, 0, TB_E_SYSTEM, "was destroyed"},
        {TB__CUDA_DEINITIALIZED, 0, TB_E_SYSTEM, "this process is ending"},
        {12345, 0, TB_E_SYSTEM, "CUDA_ERROR_? (12345), an error that this driver does not know"},
    };
    OK(tb__cuda_need());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tb_error error;
        FAILS(tb__cuda_fail(cases[i].code, "cuTest", "%d bytes", 7), cases[i].status,
              cases[i].text);
        tb_last_error(&error);
        CHECK_EQ(error.cuda_code, cases[i].code);
        CHECK_EQ(error.errno_value, 0);
        CHECK(strcmp(error.where, "cuTest") == 0);
        CHECK_EQ(tb__cuda_is_sticky(cases[i].code), cases[i].sticky);
    }
    TB__RETURNS(TB_E_INVALID, tb__error_set(TB_E_INVALID, 0, "x", "y"));
    tb_error error;
    tb_last_error(&error);
    CHECK_EQ(error.cuda_code, 0); /* an error without CUDA forgets the code */
}

static void a_broken_context_is_named_and_a_new_error_each_time(void)
{
    const struct tb__gpu *gpu = NULL;
    tb__stream stream = NULL;
    OK(tb__gpu_get(0, &gpu));
    OK(tb__stream_create(gpu, &stream));
    kit_fake()->break_device(0, TB__CUDA_ILLEGAL_ADDRESS);
    struct tb__device_memory memory;
    FAILS(tb__stream_synchronize(stream, gpu), TB_E_SYSTEM, "the context is broken");
    FAILS(tb__stream_query(stream, gpu), TB_E_SYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    (void)memory;
    tb__stream_destroy(gpu, stream);
}

/* ------------------------------------------------------------------ G08 */

static void in_the_child(void *argument)
{
    struct tb__device_memory *memory = argument;
    const struct tb__gpu *gpu = NULL;
    int count = 0, fd = -1;
    FAILS(tb__cuda_need(), TB_E_FORKED, "spawn or exec");
    FAILS(tb__gpu_count(&count), TB_E_FORKED, "the parent is not affected");
    FAILS(tb__gpu_get(0, &gpu), TB_E_FORKED, "fork()");
    FAILS(tb__device_alloc(memory->gpu, 4096, memory), TB_E_FORKED, "fork()");
    FAILS(tb__device_export_fd(memory, &fd), TB_E_FORKED, "fork()");
    FAILS(stream_write64(NULL, memory->gpu, memory->ptr, 1), TB_E_FORKED, "fork()");
    tb__device_free(memory); /* the parent's: nothing happens */
    CHECK_EQ(memory->kind, TB__DEVICE_NONE);
}

static void g08_fork_after_cuda(void)
{
    const struct tb__gpu *gpu = NULL;
    struct tb__device_memory memory;
    OK(tb__gpu_get(0, &gpu));
    OK(tb__device_alloc(gpu, 4096, &memory));
    kit_fill(0, memory.ptr, 4096, 6);
    CHECK_EQ(kit_child(in_the_child, &memory), 0);
    EXPECT(0, memory.ptr, 4096, 6);
    tb__device_free(&memory);
}

static void open_in_the_child(void *argument)
{
    (void)argument;
    int count = 0;
    OK(tb__gpu_count(&count));
}

static void fork_before_cuda_is_fine(void)
{
    int count = 0;
    CHECK_EQ(kit_child(open_in_the_child, NULL), 0);
    OK(tb__gpu_count(&count));
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        FAKE(g01_no_gpu, "devices=0"),
        FAKE(g01_a_driver_that_counts_none, "empty=1"),
        FAKE(g01_hidden_gpus, "devices=2"),
        FAKE(g01_no_driver, NULL),
        FAKE(g01_old_driver, NULL),
        ANY(nothing_is_opened_before_it_is_needed, NULL),
        FAKE(g01_one_gpu_by_uuid, "devices=3;mig=1"),
        FAKE(each_way_not_to_start_is_told, NULL),
        ANY(errors_name_call_code_and_way_out, NULL),
        FAKE(a_broken_context_is_named_and_a_new_error_each_time, NULL),
        ANY(g08_fork_after_cuda, NULL),
        ANY(fork_before_cuda_is_fine, NULL),
    };
    if (argc > 1 && strcmp(argv[1], "--outcome") == 0) {
        tb_status status = tb__cuda_need();
        printf("%s: %s\n", tb_status_name(status), tb_last_error_text());
        return 0;
    }
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}
