/* Events. */
#include "cuda/event.h"

/* Result of a call that has no arguments worth telling but the event's device. */
static tb_status report(int result, const char *call, const struct tb__gpu *gpu)
{
    return result == TB__CUDA_SUCCESS ? TB_OK
                                      : tb__cuda_fail(result, call, "cuda:%d", gpu->ordinal);
}

tb_status tb__gpu_event_create_at(const struct tb__stream_at *at, struct tb__gpu_event *out)
{
    const struct tb__gpu *gpu = at->gpu;
    tb__event event = NULL;
    int result = tb__cuda()->event_create(&event, TB__EVENT_DISABLE_TIMING);
    TB__TRY(report(result, "cuEventCreate", gpu));
    *out = (struct tb__gpu_event){.gpu = gpu, .event = event};
    return TB_OK;
}

tb_status tb__gpu_event_create(const struct tb__gpu *gpu, tb__stream stream,
                               struct tb__gpu_event *out)
{
    struct tb__stream_at at = {.stream = stream, .gpu = gpu};
    TB__TRY(tb__stream_enter(stream, gpu, &at.scope));
    tb_status status = tb__gpu_event_create_at(&at, out);
    tb__stream_leave(&at);
    return status;
}

void tb__gpu_event_destroy(struct tb__gpu_event *event)
{
    struct tb__gpu_scope scope;
    if (event->gpu != NULL && tb__gpu_enter_to_free(event->gpu, &scope)) {
        tb__cuda_note(tb__cuda()->event_destroy(event->event), "cuEventDestroy", "cuda:%d",
                      event->gpu->ordinal);
        tb__gpu_leave(&scope);
    }
    *event = (struct tb__gpu_event){0};
}

tb_status tb__gpu_event_record_at(const struct tb__gpu_event *event, const struct tb__stream_at *at)
{
    return report(tb__cuda()->event_record(event->event, at->stream), "cuEventRecord", event->gpu);
}

tb_status tb__gpu_event_record(const struct tb__gpu_event *event, tb__stream stream)
{
    struct tb__stream_at at = {.stream = stream, .gpu = event->gpu};
    TB__TRY(tb__stream_enter(stream, event->gpu, &at.scope));
    tb_status status = tb__gpu_event_record_at(event, &at);
    tb__stream_leave(&at);
    return status;
}

tb_status tb__gpu_event_wait_at(const struct tb__gpu_event *event, const struct tb__stream_at *at)
{
    return report(tb__cuda()->stream_wait_event(at->stream, event->event, 0), "cuStreamWaitEvent",
                  at->gpu);
}

tb_status tb__gpu_event_wait(const struct tb__gpu_event *event, tb__stream stream,
                             const struct tb__gpu *stream_gpu)
{
    struct tb__stream_at at = {.stream = stream, .gpu = stream_gpu};
    TB__TRY(tb__stream_enter(stream, stream_gpu, &at.scope));
    tb_status status = tb__gpu_event_wait_at(event, &at);
    tb__stream_leave(&at);
    return status;
}

tb_status tb__gpu_event_query(const struct tb__gpu_event *event)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(event->gpu, &scope));
    int result = tb__cuda()->event_query(event->event);
    tb__gpu_leave(&scope);
    return result == TB__CUDA_NOT_READY ? TB_AGAIN : report(result, "cuEventQuery", event->gpu);
}

tb_status tb__gpu_event_synchronize(const struct tb__gpu_event *event)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(event->gpu, &scope));
    int result = tb__cuda()->event_synchronize(event->event);
    tb__gpu_leave(&scope);
    return report(result, "cuEventSynchronize", event->gpu);
}

tb_status tb__stream_follow(tb__stream first, const struct tb__gpu *first_gpu, tb__stream second,
                            const struct tb__gpu *second_gpu)
{
    struct tb__gpu_event event;
    TB__TRY(tb__gpu_event_create(first_gpu, first, &event));
    tb_status status = tb__gpu_event_record(&event, first);
    if (status == TB_OK) {
        status = tb__gpu_event_wait(&event, second, second_gpu);
    }
    tb__gpu_event_destroy(&event);
    return status;
}
