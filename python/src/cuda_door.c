/* libcuda, as far as the extension needs it. */
#include "cuda_door.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "errors.h"

#define NOT_READY 600
#define DEVICE_ORDINAL 9 /* of cuPointerGetAttribute */
#define DISABLE_TIMING 2 /* of cuEventCreate */

static struct {
    int (*ctx_get_current)(void **context);
    int (*ctx_get_device)(int *device);
    int (*ctx_push)(void *context);
    int (*ctx_pop)(void **context);
    int (*primary_retain)(void **context, int device);
    int (*primary_release)(int device);
    int (*stream_get_ctx)(void *stream, void **context);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_synchronize)(void *event);
    int (*event_destroy)(void *event);
    int (*pointer_get_attribute)(void *out, int attribute, uint64_t address);
} cuda;

static const struct {
    const char *name;
    void *where;
} calls[] = {
    {"cuCtxGetCurrent", &cuda.ctx_get_current},
    {"cuCtxGetDevice", &cuda.ctx_get_device},
    {"cuCtxPushCurrent_v2", &cuda.ctx_push},
    {"cuCtxPopCurrent_v2", &cuda.ctx_pop},
    {"cuDevicePrimaryCtxRetain", &cuda.primary_retain},
    {"cuDevicePrimaryCtxRelease_v2", &cuda.primary_release},
    {"cuStreamGetCtx", &cuda.stream_get_ctx},
    {"cuStreamWaitEvent", &cuda.stream_wait_event},
    {"cuEventCreate", &cuda.event_create},
    {"cuEventRecord", &cuda.event_record},
    {"cuEventQuery", &cuda.event_query},
    {"cuEventSynchronize", &cuda.event_synchronize},
    {"cuEventDestroy_v2", &cuda.event_destroy},
    {"cuPointerGetAttribute", &cuda.pointer_get_attribute},
};

/* Whether libcuda is there: asked again until it is, since another library may load it any time. */
static int is_open(void)
{
    static _Atomic int found;
    if (found) {
        return 1;
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; library != NULL && i < sizeof calls / sizeof calls[0]; i++) {
        void *symbol = dlsym(library, calls[i].name);
        if (symbol == NULL) {
            return 0;
        }
        *(void **)calls[i].where = symbol;
    }
    found = library != NULL;
    return found;
}

int py_cuda_current(void)
{
    void *context = NULL;
    int device = 0;
    if (!is_open() || cuda.ctx_get_current(&context) != 0 || context == NULL ||
        cuda.ctx_get_device(&device) != 0) {
        return 0;
    }
    return device;
}

int py_cuda_device_of(const void *address)
{
    int device = -1;
    if (!is_open() ||
        cuda.pointer_get_attribute(&device, DEVICE_ORDINAL, (uint64_t)(uintptr_t)address) != 0) {
        return -1;
    }
    return device;
}

/* ---- contexts ---- */

static int is_default(tb_cuda_stream stream)
{
    return (uintptr_t)stream <= 2;
}

/* A context made current for a stream; `primary`: retained for it. */
struct scope {
    int pushed;
    int primary; /* number of its device, -1: none */
};

/* Default streams belong to the context that is current; where none is, to the primary one of
 * `device`. Returns the driver's code. */
static int enter(tb_cuda_stream stream, int device, struct scope *scope)
{
    void *context = NULL;
    int code = 0;
    *scope = (struct scope){.primary = -1};
    if (!is_default(stream)) {
        code = cuda.stream_get_ctx(stream, &context);
    } else if (cuda.ctx_get_current(&context) == 0 && context != NULL) {
        return 0;
    } else {
        code = cuda.primary_retain(&context, device);
        scope->primary = code == 0 ? device : -1;
    }
    if (code == 0) {
        code = cuda.ctx_push(context);
        scope->pushed = code == 0;
    }
    return code;
}

static void leave(const struct scope *scope)
{
    void *context;
    if (scope->pushed) {
        (void)cuda.ctx_pop(&context);
    }
    if (scope->primary >= 0) {
        (void)cuda.primary_release(scope->primary);
    }
}

/* ---- order ---- */

/* Without the GIL. Returns the driver's code, and which call it is of. */
static int follow(tb_cuda_stream stream, tb_cuda_stream other, const char **call)
{
    struct scope scope;
    void *event = NULL;
    *call = "cuStreamGetCtx";
    int code = enter(is_default(other) ? stream : other, 0, &scope);
    if (code == 0) {
        *call = "cuEventCreate";
        code = cuda.event_create(&event, DISABLE_TIMING);
    }
    if (code == 0) {
        *call = "cuEventRecord";
        code = cuda.event_record(event, other);
    }
    if (code == 0) {
        *call = "cuStreamWaitEvent";
        code = cuda.stream_wait_event(stream, event, 0);
    }
    if (event != NULL) {
        (void)cuda.event_destroy(event); /* its work goes on */
    }
    leave(&scope);
    return code;
}

int py_cuda_follow(struct py_state *state, tb_cuda_stream stream, tb_cuda_stream other)
{
    const char *call;
    if (stream == other || (uintptr_t)stream + (uintptr_t)other == 1) {
        return 0; /* NULL and 1 are the same stream */
    }
    if (!is_open()) {
        py_fail(state, TB_E_UNSUPPORTED, "a stream was given, but no CUDA driver is loaded");
        return -1;
    }
    PyThreadState *thread = PyEval_SaveThread();
    int code = follow(stream, other, &call);
    PyEval_RestoreThread(thread);
    if (code != 0) {
        py_fail(state, TB_E_SYSTEM,
                "%s(stream %p) failed with CUDA error %d while stream %p was ordered behind it: "
                "is it a stream of a live context?",
                call, (void *)other, code, (void *)stream);
        return -1;
    }
    return 0;
}

struct py_cuda_mark {
    void *event;
};

struct py_cuda_mark *py_cuda_mark(tb_cuda_stream stream, tb_device device)
{
    struct scope scope;
    struct py_cuda_mark *mark = is_open() ? calloc(1, sizeof *mark) : NULL;
    if (mark == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    int code = enter(stream, (int)(device & 0xffff), &scope);
    if (code == 0) {
        code = cuda.event_create(&mark->event, DISABLE_TIMING);
    }
    if (code == 0) {
        code = cuda.event_record(mark->event, stream);
    }
    leave(&scope);
    PyEval_RestoreThread(thread);
    if (code != 0) {
        py_cuda_unmark(mark);
        return NULL;
    }
    return mark;
}

int py_cuda_passed(const struct py_cuda_mark *mark)
{
    return cuda.event_query(mark->event) != NOT_READY;
}

void py_cuda_await(const struct py_cuda_mark *mark)
{
    PyThreadState *thread = PyEval_SaveThread();
    (void)cuda.event_synchronize(mark->event);
    PyEval_RestoreThread(thread);
}

void py_cuda_unmark(struct py_cuda_mark *take_mark)
{
    if (take_mark->event != NULL) {
        (void)cuda.event_destroy(take_mark->event);
    }
    free(take_mark);
}
