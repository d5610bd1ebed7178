/* Opening the driver, and what its errors mean.
 *
 * The outcome is found once per process and kept, also a failure: libcuda keeps its own failures in
 * the same way. A forked child of a process that has initialised CUDA cannot use it (the driver's
 * state belongs to the parent), and cannot start it again. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TB_LOG_TOPIC "cuda"
#include "base/log.h"

enum { DOOR_UNKNOWN = 0, DOOR_OPEN = 1, DOOR_FAILED = 2, DOOR_FORKED = 3 };

static struct {
    pthread_mutex_t lock;
    atomic_int state;
    struct tb__cuda_api api;
    tb_error failure;
} door = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------ what results mean */

struct meaning {
    int result;
    tb_status status;
    const char *way_out;
};

#define BROKEN                                                                                     \
    "the context is broken and all that was in it is lost: end this process and start it again"

static const struct meaning meanings[] = {
    {TB__CUDA_OUT_OF_MEMORY, TB_E_NOMEM,
     "use fewer or smaller slots, or end other programs on the device (nvidia-smi lists them)"},
    {TB__CUDA_NOT_INITIALIZED, TB_E_FORKED,
     "CUDA was initialised before fork(): start the child with spawn or exec, or fork first"},
    {TB__CUDA_DEINITIALIZED, TB_E_SYSTEM, "this process is ending, and the driver has ended first"},
    {TB__CUDA_STUB_LIBRARY, TB_E_UNSUPPORTED,
     "libcuda.so.1 is the toolkit's stub for linking: take its folder out of LD_LIBRARY_PATH"},
    {TB__CUDA_DEVICE_UNAVAILABLE, TB_E_SYSTEM,
     "another process has the device to itself, or it was reset (nvidia-smi -q -d COMPUTE)"},
    {TB__CUDA_NO_DEVICE, TB_E_UNSUPPORTED, NULL},
    {TB__CUDA_INVALID_CONTEXT, TB_E_SYSTEM, "the context was destroyed while it was in use"},
    {TB__CUDA_PEER_ACCESS_UNSUPPORTED, TB_E_UNSUPPORTED,
     "these devices cannot reach each other's memory (nvidia-smi topo -p2p r)"},
    {TB__CUDA_CONTEXT_IS_DESTROYED, TB_E_SYSTEM, "the context was destroyed while it was in use"},
    {TB__CUDA_NOT_PERMITTED, TB_E_UNSUPPORTED, "the system or the container forbids it"},
    {TB__CUDA_NOT_SUPPORTED, TB_E_UNSUPPORTED, "this device or driver cannot do it"},
    {TB__CUDA_SYSTEM_NOT_READY, TB_E_SYSTEM,
     "the system's GPU services do not run yet (nvidia-fabricmanager on NVSwitch machines)"},
    {TB__CUDA_SYSTEM_DRIVER_MISMATCH, TB_E_SYSTEM,
     "libcuda and the kernel's driver are of different versions: reload the driver or reboot"},
    {TB__CUDA_COMPAT_NOT_SUPPORTED_ON_DEVICE, TB_E_UNSUPPORTED,
     "the compatibility package's libcuda is found before the driver's: see LD_LIBRARY_PATH"},
    {TB__CUDA_MPS_CONNECTION_FAILED, TB_E_SYSTEM, "the MPS daemon does not answer"},
    {TB__CUDA_STREAM_CAPTURE_UNSUPPORTED, TB_E_UNSUPPORTED,
     "the stream is being captured into a graph, where this cannot be"},
    {TB__CUDA_ECC_UNCORRECTABLE, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_NVLINK_UNCORRECTABLE, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_CONTAINED, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_ILLEGAL_ADDRESS, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_LAUNCH_TIMEOUT, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_ASSERT, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_HARDWARE_STACK_ERROR, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_ILLEGAL_INSTRUCTION, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_MISALIGNED_ADDRESS, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_INVALID_ADDRESS_SPACE, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_INVALID_PC, TB_E_SYSTEM, BROKEN},
    {TB__CUDA_LAUNCH_FAILED, TB_E_SYSTEM, BROKEN},
};

static const struct meaning *meaning_find(int result)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (meanings[i].result == result) {
            return &meanings[i];
        }
    }
    return NULL;
}

int tb__cuda_is_sticky(int result)
{
    const struct meaning *meaning = meaning_find(result);
    return meaning != NULL && meaning->way_out != NULL && strcmp(meaning->way_out, BROKEN) == 0;
}

/* What no single code tells: why the driver shows no device. */
static const char *why_no_device(char text[160])
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL) {
        snprintf(text, 160,
                 "CUDA_VISIBLE_DEVICES is `%.64s`: name devices that nvidia-smi -L lists", visible);
        return text;
    }
    return "the driver is there, a GPU is not: does nvidia-smi list one, and in a container, was "
           "it passed in (--gpus all)?";
}

/* "CALL(ARGUMENTS): NAME (code), text[: way out]" */
__attribute__((format(printf, 3, 0))) static void
describe(int result, const char *call, const char *format, va_list list, char *out, size_t size)
{
    char arguments[192];
    vsnprintf(arguments, sizeof arguments, format, list);
    const char *name = NULL;
    const char *said = NULL;
    if (door.api.get_error_name == NULL || door.api.get_error_name(result, &name) != 0) {
        name = NULL;
    }
    if (door.api.get_error_string == NULL || door.api.get_error_string(result, &said) != 0) {
        said = NULL;
    }
    char no_device[160];
    const struct meaning *meaning = meaning_find(result);
    const char *way_out = meaning == NULL                ? NULL
                          : result == TB__CUDA_NO_DEVICE ? why_no_device(no_device)
                                                         : meaning->way_out;
    snprintf(out, size, "%s(%s): %s (%d), %s%s%s", call, arguments,
             name != NULL ? name : "CUDA_ERROR_?", result,
             said != NULL ? said : "an error that this driver does not know",
             way_out != NULL ? ": " : "", way_out != NULL ? way_out : "");
}

tb_status tb__cuda_fail(int result, const char *call, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    describe(result, call, format, list, text, sizeof text);
    va_end(list);
    const struct meaning *meaning = meaning_find(result);
    return tb__error_set_cuda(meaning != NULL ? meaning->status : TB_E_SYSTEM, result, call, "%s",
                              text);
}

void tb__cuda_note(int result, const char *call, const char *format, ...)
{
    if (result == TB__CUDA_SUCCESS || result == TB__CUDA_DEINITIALIZED ||
        result == TB__CUDA_CONTEXT_IS_DESTROYED) {
        return;
    }
    char text[512];
    va_list list;
    va_start(list, format);
    describe(result, call, format, list, text, sizeof text);
    va_end(list);
    tb_log_warn_limited("%s", text);
}

/* ------------------------------------------------------------------ opening */

/* Fill one entry of the table; 0 when the library does not have it. A function's address goes into
 * a pointer to functions by its bytes, as dlsym's manual has it. */
static int find_call(void *library, const char *symbol, void *entry)
{
    void *found = dlsym(library, symbol);
    memcpy(entry, &found, sizeof found);
    return found != NULL;
}

static tb_status find_calls(void *library)
{
    const char *missing = NULL;
#define FIND_NEEDED(name, symbol, parameters)                                                      \
    if (!find_call(library, symbol, &door.api.name)) {                                             \
        missing = symbol;                                                                          \
    }
#define FIND_OPTIONAL(name, symbol, parameters) find_call(library, symbol, &door.api.name);
    TB__CUDA_NEEDED(FIND_NEEDED)
    TB__CUDA_OPTIONAL(FIND_OPTIONAL)
    if (missing != NULL) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "the NVIDIA driver is too old: libcuda.so.1 has no %s: install a driver "
                        "for CUDA 11 or newer",
                        missing);
    }
    return TB_OK;
}

static tb_status open_library(void **out)
{
    /* The second is where Windows puts it for its Linux machines. */
    static const char *const names[] = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
    char first[200] = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        *out = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (*out != NULL) {
            return TB_OK;
        }
        const char *said = dlerror();
        if (i == 0) {
            snprintf(first, sizeof first, "%s", said != NULL ? said : "?");
        }
    }
    return TB__FAIL(TB_E_UNSUPPORTED,
                    "GPUs need the NVIDIA driver's libcuda.so.1, which cannot be opened (%s): "
                    "install the driver, or in a container pass the GPU in (--gpus all); all that "
                    "uses the CPU works without",
                    first);
}

static tb_status door_open(void)
{
    void *library = NULL; /* stays open: its threads and handlers live until the process ends */
    TB__TRY(open_library(&library));
    TB__TRY(find_calls(library));
    int result = door.api.init(0);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuInit", "0");
    }
    int count = 0;
    result = door.api.device_get_count(&count);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuDeviceGetCount", "%s", "");
    }
    if (count == 0) {
        return tb__cuda_fail(TB__CUDA_NO_DEVICE, "cuDeviceGetCount", "%s", "");
    }
    return TB_OK;
}

/* In the child of a fork. The lock may have been held by a thread that is not here. */
static void after_fork_child(void)
{
    static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    door.lock = unlocked;
    if (atomic_load(&door.state) == DOOR_OPEN) {
        atomic_store(&door.state, DOOR_FORKED);
    }
}

static tb_status state_status(int state)
{
    if (state == DOOR_FAILED) {
        tb__error_restore(&door.failure);
        return door.failure.status;
    }
    if (state == DOOR_FORKED) {
        return TB__FAIL(TB_E_FORKED,
                        "CUDA was initialised before fork(), and a forked child cannot use it: "
                        "start the child with spawn or exec, or fork before the first use of a "
                        "GPU; the parent is not affected");
    }
    return TB_OK;
}

tb_status tb__cuda_need(void)
{
    /* Pairs with the release store below: the table is complete. */
    int state = atomic_load_explicit(&door.state, memory_order_acquire);
    if (state != DOOR_UNKNOWN) {
        return state_status(state);
    }
    pthread_mutex_lock(&door.lock);
    state = atomic_load_explicit(&door.state, memory_order_relaxed);
    if (state == DOOR_UNKNOWN) {
        static int handler_is_set;
        if (!handler_is_set) {
            handler_is_set = pthread_atfork(NULL, NULL, after_fork_child) == 0;
        }
        state = door_open() == TB_OK ? DOOR_OPEN : DOOR_FAILED;
        if (state == DOOR_FAILED) {
            tb_last_error(&door.failure);
        }
        atomic_store_explicit(&door.state, state, memory_order_release);
    }
    pthread_mutex_unlock(&door.lock);
    return state_status(state);
}

const struct tb__cuda_api *tb__cuda(void)
{
    return &door.api;
}

int tb__cuda_is_open(void)
{
    return atomic_load_explicit(&door.state, memory_order_acquire) == DOOR_OPEN;
}
