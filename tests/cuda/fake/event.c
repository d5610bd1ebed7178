/* Events. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

struct CUevent_st {
    struct CUevent_st *next;
    struct fake_context *context; /* whose failures it tells of */
    uint64_t recorded;            /* this and the rest: the lock is held */
    uint64_t completed;
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

static void event_drop(struct CUevent_st *event)
{
    if (event->destroyed && event->references == 0) {
        struct CUevent_st **at = &destroyed;
        while (*at != event) {
            at = &(*at)->next;
        }
        *at = event->next;
        free(event);
    }
}

FAKE_API int cuEventCreate(tb__event *out, unsigned flags)
{
    ENTER("cuEventCreate");
    struct fake_context *context = NULL;
    fake_lock();
    int code = fake_context_check(&context);
    if (code == 0 && flags != TB__EVENT_DISABLE_TIMING) { /* the fake has no others */
        code = TB__CUDA_NOT_SUPPORTED;
    }
    if (code != 0) {
        return fake_unlock(code);
    }
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (event == NULL) {
        abort();
    }
    *event = (struct CUevent_st){.next = events, .context = context};
    events = *out = event;
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
    if (event->completed < work->args[1]) {
        event->completed = work->args[1];
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
        work->args[1] = ++event->recorded;
        event->references++;
        stream_enqueue(stream, work);
    }
    return fake_unlock(code);
}

static int completed(struct work *work)
{
    const struct CUevent_st *event = (struct CUevent_st *)(uintptr_t)work->args[0];
    return event->completed >= work->args[1];
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
        work->args[1] = event->recorded;
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
    if (code == 0 && event->completed < event->recorded) {
        code = TB__CUDA_NOT_READY;
    }
    return fake_unlock(code);
}

FAKE_API int cuEventSynchronize(tb__event event)
{
    ENTER("cuEventSynchronize");
    fake_lock();
    int code = event_check(event);
    uint64_t until = code == 0 ? event->recorded : 0;
    while (code == 0 && event->completed < until) {
        fake_unlock(0);
        usleep(20);
        fake_lock();
        code = event_check(event);
    }
    return fake_unlock(code);
}
