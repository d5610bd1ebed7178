/* The driver, its devices and contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake/fake.h"

#define MAX_DEPTH 32

static _Thread_local struct {
    struct fake_context *contexts[MAX_DEPTH];
    int depth;
} stack;

static struct fake_context *destroyed; /* never freed: streams may still refer to them */

struct fake_context *fake_current(void)
{
    return stack.depth > 0 ? stack.contexts[stack.depth - 1] : NULL;
}

int fake_context_check(struct fake_context **out)
{
    *out = fake_current();
    if (*out == NULL) {
        return TB__CUDA_INVALID_CONTEXT;
    }
    if ((*out)->is_primary && (*out)->retained == 0) {
        return TB__CUDA_CONTEXT_IS_DESTROYED;
    }
    return (*out)->broken;
}

static void after_fork(void)
{
    static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    fake.lock = unlocked;
    fake.forked = fake.initialised;
}

/* ------------------------------------------------------------------ driver */

FAKE_API int cuInit(unsigned flags)
{
    ENTER("cuInit");
    if (flags != 0) {
        return TB__CUDA_INVALID_VALUE;
    }
    fake_lock();
    if (!fake.initialised) {
        fake_configure();
        pthread_atfork(NULL, NULL, after_fork);
        fake.initialised = fake.device_count > 0;
    }
    return fake_unlock(fake.device_count > 0 ? 0 : TB__CUDA_NO_DEVICE);
}

FAKE_API int cuDriverGetVersion(int *out)
{
    *out = 13000;
    return 0;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int error_index(int code)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == code) {
            return (int)i;
        }
    }
    return -1;
}

FAKE_API int cuGetErrorName(int code, const char **out)
{
    int i = error_index(code);
    *out = i >= 0 ? errors[i].name : NULL;
    return i >= 0 ? 0 : TB__CUDA_INVALID_VALUE;
}

FAKE_API int cuGetErrorString(int code, const char **out)
{
    int i = error_index(code);
    *out = i >= 0 ? errors[i].text : NULL;
    return i >= 0 ? 0 : TB__CUDA_INVALID_VALUE;
}

/* ------------------------------------------------------------------ devices */

static int device_check(int device)
{
    return device >= 0 && device < fake.device_count ? 0 : TB__CUDA_INVALID_DEVICE;
}

FAKE_API int cuDeviceGetCount(int *out)
{
    ENTER("cuDeviceGetCount");
    *out = fake.empty ? 0 : fake.device_count;
    return 0;
}

FAKE_API int cuDeviceGet(int *out, int ordinal)
{
    ENTER("cuDeviceGet");
    *out = ordinal;
    return device_check(ordinal);
}

FAKE_API int cuDeviceGetName(char *out, int size, int device)
{
    ENTER("cuDeviceGetName");
    if (device_check(device) != 0) {
        return TB__CUDA_INVALID_DEVICE;
    }
    snprintf(out, (size_t)size, "Fake GPU %d", fake.devices[device].physical);
    return 0;
}

FAKE_API int cuDeviceTotalMem_v2(size_t *out, int device)
{
    ENTER("cuDeviceTotalMem_v2");
    if (device_check(device) != 0) {
        return TB__CUDA_INVALID_DEVICE;
    }
    *out = fake.devices[device].total;
    return 0;
}

FAKE_API int cuDeviceGetUuid(struct tb__cuda_uuid *out, int device)
{
    ENTER("cuDeviceGetUuid");
    if (device_check(device) != 0) {
        return TB__CUDA_INVALID_DEVICE;
    }
    fake_uuid(fake.devices[device].physical, 0, out->bytes);
    return 0;
}

FAKE_API int cuDeviceGetUuid_v2(struct tb__cuda_uuid *out, int device)
{
    ENTER("cuDeviceGetUuid_v2");
    if (device_check(device) != 0) {
        return TB__CUDA_INVALID_DEVICE;
    }
    fake_uuid(fake.devices[device].physical, fake.devices[device].mig, out->bytes);
    return 0;
}

FAKE_API int cuDeviceGetAttribute(int *out, int attribute, int device)
{
    ENTER("cuDeviceGetAttribute");
    if (device_check(device) != 0) {
        return TB__CUDA_INVALID_DEVICE;
    }
    const struct fake_device *d = &fake.devices[device];
    const struct {
        int attribute, value;
    } values[] = {
        {TB__ATTRIBUTE_MAX_PITCH, 0x7fffffff},
        {TB__ATTRIBUTE_INTEGRATED, d->integrated},
        {TB__ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {TB__ATTRIBUTE_UNIFIED_ADDRESSING, d->unified},
        {TB__ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {TB__ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {TB__ATTRIBUTE_MANAGED_MEMORY, d->managed},
        {TB__ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
        {TB__ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, d->managed},
        {TB__ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, d->same_pointer},
        {TB__ATTRIBUTE_HOST_REGISTER_SUPPORTED, d->host_register},
        {TB__ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, d->vmm},
        {TB__ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, d->posix_fd},
        {TB__ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, d->read_only_register},
        {TB__ATTRIBUTE_MEMORY_POOLS_SUPPORTED, d->pools},
        {TB__ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, d->stream_ops},
        {TB__ATTRIBUTE_DMA_BUF_SUPPORTED, d->dma_buf},
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i].attribute == attribute) {
            *out = values[i].value;
            return 0;
        }
    }
    return TB__CUDA_INVALID_VALUE;
}

FAKE_API int cuDeviceCanAccessPeer(int *out, int device, int peer)
{
    ENTER("cuDeviceCanAccessPeer");
    if (device_check(device) != 0 || device_check(peer) != 0) {
        return TB__CUDA_INVALID_DEVICE;
    }
    *out = device != peer && fake_peers(device, peer);
    return 0;
}

/* ------------------------------------------------------------------ contexts */

FAKE_API int cuDevicePrimaryCtxRetain(tb__context *out, int device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    if (device_check(device) != 0) {
        return TB__CUDA_INVALID_DEVICE;
    }
    fake_lock();
    fake.primaries[device].retained++;
    *out = (tb__context)&fake.primaries[device];
    return fake_unlock(0);
}

FAKE_API int cuDevicePrimaryCtxRelease_v2(int device)
{
    int code = fake_enter_release("cuDevicePrimaryCtxRelease_v2");
    fake_lock();
    if (device_check(device) == 0 && fake.primaries[device].retained > 0) {
        fake.primaries[device].retained--;
    }
    return fake_unlock(code);
}

FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    ENTER("cuDevicePrimaryCtxGetState");
    *flags = 0;
    *active = device_check(device) == 0 && fake.primaries[device].retained > 0;
    return device_check(device);
}

FAKE_API int cuCtxCreate_v2(tb__context *out, unsigned flags, int device)
{
    ENTER("cuCtxCreate_v2");
    (void)flags;
    if (device_check(device) != 0 || stack.depth == MAX_DEPTH) {
        return TB__CUDA_INVALID_DEVICE;
    }
    struct fake_context *context = calloc(1, sizeof *context);
    fake_lock();
    context->device = device;
    pthread_mutex_init(&context->callbacks, NULL);
    context->next = fake.contexts;
    fake.contexts = context;
    stack.contexts[stack.depth++] = context;
    *out = (tb__context)context;
    return fake_unlock(0);
}

FAKE_API int cuCtxDestroy_v2(tb__context context)
{
    int code = fake_enter_release("cuCtxDestroy_v2");
    fake_lock();
    for (struct fake_context **at = &fake.contexts; *at != NULL; at = &(*at)->next) {
        struct fake_context *found = *at;
        if (found == (struct fake_context *)context) {
            *at = found->next;
            found->next = destroyed;
            destroyed = found;
            break;
        }
    }
    if (fake_current() == (struct fake_context *)context) {
        stack.depth--;
    }
    return fake_unlock(code);
}

FAKE_API int cuCtxGetCurrent(tb__context *out)
{
    ENTER("cuCtxGetCurrent");
    *out = (tb__context)fake_current();
    return 0;
}

FAKE_API int cuCtxSetCurrent(tb__context context)
{
    ENTER("cuCtxSetCurrent");
    stack.depth -= stack.depth > 0;
    if (context != NULL) {
        stack.contexts[stack.depth++] = (struct fake_context *)context;
    }
    return 0;
}

FAKE_API int cuCtxGetDevice(int *out)
{
    ENTER("cuCtxGetDevice");
    struct fake_context *context = fake_current();
    if (context == NULL) {
        return TB__CUDA_INVALID_CONTEXT;
    }
    *out = context->device;
    return 0;
}

FAKE_API int cuCtxPushCurrent_v2(tb__context handle)
{
    ENTER("cuCtxPushCurrent_v2");
    struct fake_context *context = (struct fake_context *)handle;
    if (context == NULL || stack.depth == MAX_DEPTH) {
        return TB__CUDA_INVALID_VALUE;
    }
    if (context->is_primary && context->retained == 0) {
        return TB__CUDA_CONTEXT_IS_DESTROYED;
    }
    stack.contexts[stack.depth++] = context;
    return 0;
}

FAKE_API int cuCtxPopCurrent_v2(tb__context *out)
{
    int code = fake_enter_release("cuCtxPopCurrent_v2");
    if (stack.depth == 0) {
        return TB__CUDA_INVALID_CONTEXT;
    }
    *out = (tb__context)stack.contexts[--stack.depth];
    return code;
}

FAKE_API int cuCtxSynchronize(void)
{
    ENTER("cuCtxSynchronize");
    struct fake_context *context = NULL;
    fake_lock();
    int code = fake_context_check(&context);
    return fake_unlock(code != 0 ? code : context_wait(context));
}

FAKE_API int cuCtxEnablePeerAccess(tb__context peer, unsigned flags)
{
    ENTER("cuCtxEnablePeerAccess");
    struct fake_context *context = NULL;
    struct fake_context *other = (struct fake_context *)peer;
    fake_lock();
    int code = fake_context_check(&context);
    if (code == 0 && (flags != 0 || other == NULL)) {
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code == 0 && !fake_peers(context->device, other->device)) {
        code = TB__CUDA_PEER_ACCESS_UNSUPPORTED;
    }
    if (code == 0 && (context->peers >> other->device & 1)) {
        code = TB__CUDA_PEER_ACCESS_ALREADY_ENABLED;
    }
    if (code == 0) {
        context->peers |= 1u << other->device;
    }
    return fake_unlock(code);
}
