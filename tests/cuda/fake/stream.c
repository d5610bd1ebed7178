/* Streams: a thread each, that does what was enqueued, in order, as late as it likes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

#define STREAM_MAGIC UINT64_C(0x5354524541464b45)
#define POLL_NS 50000

static struct CUstream_st *streams;
static struct CUstream_st *closed; /* never freed: others' work may name them */

struct CUstream_st *stream_next(struct CUstream_st *stream)
{
    return stream == NULL ? streams : stream->next;
}

struct work *work_make(const char *name, work_fn *run)
{
    struct work *work = calloc(1, sizeof *work);
    if (work == NULL) {
        abort();
    }
    work->name = name;
    work->run = run;
    return work;
}

/* ------------------------------------------------------------------ the thread */

static int may_run(struct work *work)
{
    for (int i = 0; i < work->after_count; i++) {
        if (work->after[i]->done < work->after_ticket[i]) {
            return 0;
        }
    }
    return work->ready == NULL || work->ready(work);
}

/* Words in memory change without telling us, so it is looked at again and again. */
static void wait_a_moment(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += POLL_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&fake.changed, &fake.lock, &until);
}

static void *stream_run(void *argument)
{
    struct CUstream_st *stream = argument;
    fake_lock();
    for (;;) {
        struct work *work = stream->first;
        if (work == NULL) {
            if (stream->closing) {
                break;
            }
            pthread_cond_wait(&stream->wake, &fake.lock);
            continue;
        }
        /* A broken context does nothing any more; its streams run empty. */
        int broken = stream->context->broken;
        if (!broken && !may_run(work)) {
            wait_a_moment();
            continue;
        }
        int code = broken ? 0 : fake_async_failure(work->name);
        pthread_mutex_unlock(&fake.lock);
        if (code == 0 && !broken) {
            code = work->run(work);
        }
        fake_lock();
        if (code != 0) {
            stream->context->broken = code;
        }
        stream->first = work->next;
        stream->last = stream->first == NULL ? NULL : stream->last;
        stream->done = work->ticket;
        free(work->owned);
        free(work);
        pthread_cond_broadcast(&fake.changed);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

/* ------------------------------------------------------------------ handles */

static struct CUstream_st *stream_make(struct fake_context *context, int non_blocking)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        abort();
    }
    pthread_cond_init(&stream->wake, NULL);
    stream->magic = STREAM_MAGIC;
    stream->context = context;
    stream->non_blocking = non_blocking;
    stream->next = streams;
    streams = stream;
    if (pthread_create(&stream->thread, NULL, stream_run, stream) != 0) {
        abort();
    }
    return stream;
}

struct CUstream_st *stream_of(tb__stream handle, int *error)
{
    struct fake_context *context = NULL;
    if (handle != NULL && handle != TB__STREAM_LEGACY && handle != TB__STREAM_PER_THREAD) {
        for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next) {
            if (stream == handle && stream->magic == STREAM_MAGIC && !stream->closing) {
                *error = stream->context->broken;
                return stream->context->broken == 0 ? stream : NULL;
            }
        }
        *error = TB__CUDA_INVALID_HANDLE;
        return NULL;
    }
    *error = fake_context_check(&context);
    if (*error != 0) {
        return NULL;
    }
    struct CUstream_st **place =
        handle == TB__STREAM_PER_THREAD ? &context->per_thread : &context->legacy;
    if (*place == NULL) {
        *place = stream_make(context, 0);
        (*place)->is_default = 1;
    }
    return *place;
}

static void work_after(struct work *work, struct CUstream_st *stream, uint64_t ticket)
{
    if (stream->done < ticket && work->after_count < 64) {
        work->after[work->after_count] = stream;
        work->after_ticket[work->after_count++] = ticket;
    }
}

/* The context's default stream waits for all others that did not opt out, and they for it. Its
 * first work also waits where those that did wait for words: see fake.h. */
static void order_by_default(struct CUstream_st *stream, struct work *work)
{
    struct CUstream_st *legacy = stream->context->legacy;
    if (stream == legacy) {
        for (struct CUstream_st *other = streams; other != NULL; other = other->next) {
            if (other != stream && other->context == stream->context) {
                work_after(work, other,
                           !other->non_blocking    ? other->enqueued
                           : legacy->enqueued == 0 ? other->waits
                                                   : 0);
            }
        }
    } else if (legacy != NULL && !stream->non_blocking) {
        work_after(work, legacy, legacy->enqueued);
    }
}

void stream_enqueue(struct CUstream_st *stream, struct work *work)
{
    while (fake.queue != 0 && stream->enqueued - stream->done >= fake.queue) {
        pthread_cond_wait(&fake.changed, &fake.lock);
    }
    order_by_default(stream, work);
    work->ticket = ++stream->enqueued;
    if (stream->last != NULL) {
        stream->last->next = work;
    } else {
        stream->first = work;
    }
    stream->last = work;
    pthread_cond_signal(&stream->wake);
}

int stream_wait_ticket(struct CUstream_st *stream, uint64_t ticket)
{
    while (stream->done < ticket) {
        pthread_cond_wait(&fake.changed, &fake.lock);
    }
    return stream->context->broken;
}

int context_wait(struct fake_context *context)
{
    for (;;) {
        struct CUstream_st *busy = NULL;
        for (struct CUstream_st *s = streams; s != NULL; s = s->next) {
            busy = s->context == context && s->done < s->enqueued ? s : busy;
        }
        if (busy == NULL) {
            return context->broken;
        }
        pthread_cond_wait(&fake.changed, &fake.lock);
    }
}

void device_run_empty(int device)
{
    for (struct CUstream_st *s = streams; s != NULL;) {
        int busy = s->context->device == device && s->context->broken && s->done < s->enqueued;
        if (busy) {
            pthread_cond_wait(&fake.changed, &fake.lock);
        }
        s = busy ? streams : s->next;
    }
}

/* ------------------------------------------------------------------ calls */

FAKE_API int cuStreamCreate(tb__stream *out, unsigned flags)
{
    ENTER("cuStreamCreate");
    struct fake_context *context = NULL;
    fake_lock();
    int code = fake_context_check(&context);
    if (code == 0 && flags > TB__STREAM_NON_BLOCKING) {
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code == 0) {
        *out = stream_make(context, flags == TB__STREAM_NON_BLOCKING);
    }
    return fake_unlock(code);
}

FAKE_API int cuStreamDestroy_v2(tb__stream handle)
{
    int code = fake_enter_release("cuStreamDestroy_v2");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    struct CUstream_st **at = &streams;
    while (*at != NULL && *at != handle) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        return fake_unlock(TB__CUDA_INVALID_HANDLE);
    }
    /* What is enqueued is still done, as with the real one, which does not wait for it. */
    *at = handle->next;
    handle->next = closed;
    closed = handle;
    handle->closing = 1;
    pthread_detach(handle->thread);
    pthread_cond_signal(&handle->wake);
    return fake_unlock(code);
}

FAKE_API int cuStreamSynchronize(tb__stream handle)
{
    ENTER("cuStreamSynchronize");
    int code = 0;
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    return fake_unlock(stream == NULL ? code : stream_wait_ticket(stream, stream->enqueued));
}

FAKE_API int cuStreamQuery(tb__stream handle)
{
    ENTER("cuStreamQuery");
    int code = 0;
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    if (stream != NULL) {
        code = stream->done < stream->enqueued ? TB__CUDA_NOT_READY : 0;
    }
    return fake_unlock(code);
}

FAKE_API int cuStreamGetCtx(tb__stream handle, tb__context *out)
{
    ENTER("cuStreamGetCtx");
    int code = 0;
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    if (stream != NULL) {
        *out = (tb__context)stream->context;
    }
    return fake_unlock(code);
}

static int host_function(struct work *work)
{
    struct fake_context *context = (struct fake_context *)(uintptr_t)work->args[2];
    tb__host_fn *function = NULL;
    memcpy(&function, &work->args[0], sizeof function);
    pthread_mutex_lock(&context->callbacks);
    function((void *)(uintptr_t)work->args[1]);
    pthread_mutex_unlock(&context->callbacks);
    return 0;
}

FAKE_API int cuLaunchHostFunc(tb__stream handle, tb__host_fn *function, void *argument)
{
    ENTER("cuLaunchHostFunc");
    int code = 0;
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    if (stream != NULL) {
        struct work *work = work_make("cuLaunchHostFunc", host_function);
        memcpy(&work->args[0], &function, sizeof function);
        work->args[1] = (uint64_t)(uintptr_t)argument;
        work->args[2] = (uint64_t)(uintptr_t)stream->context;
        stream_enqueue(stream, work);
    }
    return fake_unlock(code);
}

/* ------------------------------------------------------------------ words in memory */

static int word_write(struct work *work)
{
    uint64_t *word = (uint64_t *)(uintptr_t)work->args[0];
    __atomic_store_n(word, work->args[1], __ATOMIC_SEQ_CST);
    return 0;
}

static int word_reached(struct work *work)
{
    const uint64_t *word = (uint64_t *)(uintptr_t)work->args[0];
    return (int64_t)(__atomic_load_n(word, __ATOMIC_SEQ_CST) - work->args[1]) >= 0;
}

static int nothing(struct work *work)
{
    (void)work;
    return 0;
}

/* The lock is held. */
static int word_enqueue(struct CUstream_st *stream, uint64_t address, uint64_t value, int writing)
{
    char *word = fake_resolve(address, 8, stream->context->device, writing);
    if (word == NULL || address % 8 != 0) {
        return TB__CUDA_INVALID_VALUE;
    }
    struct work *work = work_make(writing ? "cuStreamWriteValue64_v2" : "cuStreamWaitValue64_v2",
                                  writing ? word_write : nothing);
    work->ready = writing ? NULL : word_reached;
    work->args[0] = (uint64_t)(uintptr_t)word;
    work->args[1] = value;
    stream_enqueue(stream, work);
    stream->waits = writing ? stream->waits : stream->enqueued;
    return 0;
}

static int word_call(tb__stream handle, uint64_t address, uint64_t value, unsigned flags,
                     int writing)
{
    int code = 0;
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    if (stream != NULL && !fake.devices[stream->context->device].stream_ops) {
        code = TB__CUDA_NOT_SUPPORTED;
    }
    if (code == 0 && flags != 0) {
        code = TB__CUDA_INVALID_VALUE; /* nothing but the default and GEQ is used */
    }
    return fake_unlock(code != 0 ? code : word_enqueue(stream, address, value, writing));
}

FAKE_API int cuStreamWriteValue64_v2(tb__stream handle, uint64_t address, uint64_t value,
                                     unsigned flags)
{
    ENTER("cuStreamWriteValue64_v2");
    return word_call(handle, address, value, flags, 1);
}

FAKE_API int cuStreamWaitValue64_v2(tb__stream handle, uint64_t address, uint64_t value,
                                    unsigned flags)
{
    ENTER("cuStreamWaitValue64_v2");
    return word_call(handle, address, value, flags, 0);
}

FAKE_API int cuStreamBatchMemOp_v2(tb__stream handle, unsigned count, struct tb__mem_op *ops,
                                   unsigned flags)
{
    ENTER("cuStreamBatchMemOp_v2");
    int code = 0;
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    if (stream != NULL && !fake.devices[stream->context->device].stream_ops) {
        code = TB__CUDA_NOT_SUPPORTED;
    }
    if (code == 0 && (flags != 0 || count == 0 || count > 256)) {
        code = TB__CUDA_INVALID_VALUE;
    }
    for (unsigned i = 0; code == 0 && i < count; i++) {
        if (ops[i].flags != 0 || (ops[i].operation != TB__STREAM_MEM_OP_WAIT_VALUE_64 &&
                                  ops[i].operation != TB__STREAM_MEM_OP_WRITE_VALUE_64)) {
            code = TB__CUDA_INVALID_VALUE;
        } else {
            code = word_enqueue(stream, ops[i].address, ops[i].value,
                                ops[i].operation == TB__STREAM_MEM_OP_WRITE_VALUE_64);
        }
    }
    return fake_unlock(code);
}
