/* Events. Their counts lie in a memfd, so that those of another process are waited for alike. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

#define EVENT_MAGIC UINT64_C(0x4556454e54464b45)
#define HANDLE_EVENT 2u

struct words {
    uint64_t magic;
    uint64_t recorded;
    uint64_t completed;
};

struct CUevent_st {
    struct CUevent_st *next;
    struct words *words;
    struct fake_context *context; /* whose failures it tells of */
    int fd;
    unsigned flags;
    int destroyed;
    int references; /* of enqueued work */
};

static struct CUevent_st *events;
static struct CUevent_st *destroyed; /* that enqueued work still refers to */

int event_count(void)
{
    int count = 0;
    for (struct CUevent_st *event = events; event != NULL; event = event->next) {
        count++;
    }
    return count;
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* A broken context is told by everything that belongs to it. */
static int event_check(tb__event event)
{
    for (struct CUevent_st *at = events; at != NULL; at = at->next) {
        if (at == event) {
            return at->context != NULL ? at->context->broken : 0;
        }
    }
    return TB__CUDA_INVALID_HANDLE;
}

/* Takes the descriptor. */
static struct CUevent_st *event_make(int fd, unsigned flags, struct fake_context *context)
{
    void *words = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (words == MAP_FAILED || event == NULL) {
        abort();
    }
    *event = (struct CUevent_st){
        .next = events, .words = words, .context = context, .fd = fd, .flags = flags};
    events = event;
    return event;
}

static void event_drop(struct CUevent_st *event)
{
    if (event->destroyed && event->references == 0) {
        struct CUevent_st **at = &destroyed;
        while (*at != event) {
            at = &(*at)->next;
        }
        *at = event->next;
        munmap(event->words, PAGE);
        close(event->fd);
        free(event);
    }
}

FAKE_API int cuEventCreate(tb__event *out, unsigned flags)
{
    ENTER("cuEventCreate");
    struct fake_context *context = NULL;
    fake_lock();
    int code = fake_context_check(&context);
    int shared = (flags & TB__EVENT_INTERPROCESS) != 0;
    if (code == 0 && shared && (flags & TB__EVENT_DISABLE_TIMING) == 0) {
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code == 0 && shared && !fake.devices[context->device].ipc_events) {
        code = TB__CUDA_NOT_SUPPORTED;
    }
    if (code != 0) {
        return fake_unlock(code);
    }
    int fd = memfd_create("fake-cuda-event", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, PAGE) != 0) {
        abort();
    }
    *out = event_make(fd, flags, context);
    (*out)->words->magic = EVENT_MAGIC;
    return fake_unlock(0);
}

FAKE_API int cuEventDestroy_v2(tb__event event)
{
    int code = fake_enter_release("cuEventDestroy_v2");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    struct CUevent_st **at = &events;
    while (*at != NULL && *at != event) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        return fake_unlock(TB__CUDA_INVALID_HANDLE);
    }
    *at = event->next;
    event->next = destroyed;
    destroyed = event;
    event->destroyed = 1;
    event_drop(event);
    return fake_unlock(code);
}

static int complete(struct work *work)
{
    struct CUevent_st *event = (struct CUevent_st *)(uintptr_t)work->args[0];
    fake_lock();
    if (load(&event->words->completed) < work->args[1]) {
        __atomic_store_n(&event->words->completed, work->args[1], __ATOMIC_SEQ_CST);
    }
    event->references--;
    event_drop(event);
    return fake_unlock(0);
}

FAKE_API int cuEventRecord(tb__event event, tb__stream handle)
{
    ENTER("cuEventRecord");
    int code = 0;
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    if (code == 0) {
        code = event_check(event);
    }
    if (code == 0) {
        struct work *work = work_make("cuEventRecord", complete);
        work->args[0] = (uint64_t)(uintptr_t)event;
        work->args[1] = __atomic_add_fetch(&event->words->recorded, 1, __ATOMIC_SEQ_CST);
        event->references++;
        stream_enqueue(stream, work);
    }
    return fake_unlock(code);
}

static int completed(struct work *work)
{
    const struct CUevent_st *event = (struct CUevent_st *)(uintptr_t)work->args[0];
    return load(&event->words->completed) >= work->args[1];
}

static int let_go(struct work *work)
{
    struct CUevent_st *event = (struct CUevent_st *)(uintptr_t)work->args[0];
    fake_lock();
    event->references--;
    event_drop(event);
    return fake_unlock(0);
}

FAKE_API int cuStreamWaitEvent(tb__stream handle, tb__event event, unsigned flags)
{
    ENTER("cuStreamWaitEvent");
    int code = flags == 0 ? 0 : TB__CUDA_INVALID_VALUE;
    fake_lock();
    struct CUstream_st *stream = code == 0 ? stream_of(handle, &code) : NULL;
    if (code == 0) {
        code = event_check(event);
    }
    if (code == 0) {
        struct work *work = work_make("cuStreamWaitEvent", let_go);
        work->ready = completed;
        work->args[0] = (uint64_t)(uintptr_t)event;
        work->args[1] = load(&event->words->recorded);
        event->references++;
        stream_enqueue(stream, work);
    }
    return fake_unlock(code);
}

FAKE_API int cuEventQuery(tb__event event)
{
    ENTER("cuEventQuery");
    fake_lock();
    int code = event_check(event);
    if (code == 0 && load(&event->words->completed) < load(&event->words->recorded)) {
        code = TB__CUDA_NOT_READY;
    }
    return fake_unlock(code);
}

FAKE_API int cuEventSynchronize(tb__event event)
{
    ENTER("cuEventSynchronize");
    fake_lock();
    int code = event_check(event);
    uint64_t until = code == 0 ? load(&event->words->recorded) : 0;
    while (code == 0 && load(&event->words->completed) < until) {
        fake_unlock(0);
        usleep(20);
        fake_lock();
        code = event_check(event);
    }
    return fake_unlock(code);
}

FAKE_API int cuIpcGetEventHandle(struct tb__ipc_handle *out, tb__event event)
{
    ENTER("cuIpcGetEventHandle");
    fake_lock();
    int code = event_check(event);
    if (code == 0 && (event->flags & TB__EVENT_INTERPROCESS) == 0) {
        code = TB__CUDA_INVALID_HANDLE;
    }
    if (code == 0) {
        handle_make(out, event->fd, HANDLE_EVENT);
    }
    return fake_unlock(code);
}

FAKE_API int cuIpcOpenEventHandle(tb__event *out, struct tb__ipc_handle handle)
{
    ENTER("cuIpcOpenEventHandle");
    struct fake_context *context = NULL;
    int fd = -1;
    fake_lock();
    int code = fake_context_check(&context);
    if (code == 0) {
        code = handle_open(&handle, HANDLE_EVENT, &fd);
    }
    uint64_t magic = 0;
    if (code == 0 &&
        (pread(fd, &magic, sizeof magic, 0) != (ssize_t)sizeof magic || magic != EVENT_MAGIC)) {
        close(fd);
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code == 0) {
        *out = event_make(fd, TB__EVENT_INTERPROCESS | TB__EVENT_DISABLE_TIMING, context);
    }
    return fake_unlock(code);
}
