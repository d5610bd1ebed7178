/* Words, functions and questions of streams. */
#include "cuda/order.h"

#include <stdio.h>

#define BATCH 64 /* of 256 that the driver takes at once */

static int is_default(tb__stream stream)
{
    return stream == NULL || stream == TB__STREAM_LEGACY || stream == TB__STREAM_PER_THREAD;
}

/* The context of a stream that is no default one. */
static tb_status context_of(tb__stream stream, tb__context *out)
{
    int result = tb__cuda()->stream_get_ctx(stream, out);
    if (result == TB__CUDA_INVALID_HANDLE) {
        return tb__error_set_cuda(TB_E_INVALID, result, __func__,
                                  "%p is no stream of CUDA, or it was destroyed", (void *)stream);
    }
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuStreamGetCtx", "stream %p", (void *)stream);
}

tb_status tb__stream_enter(tb__stream stream, const struct tb__gpu *gpu, struct tb__gpu_scope *out)
{
    *out = (struct tb__gpu_scope){0};
    TB__TRY(tb__cuda_need());
    if (is_default(stream)) {
        return tb__gpu_enter(gpu, out);
    }
    tb__context wanted = NULL, current = NULL;
    TB__TRY(context_of(stream, &wanted));
    if (tb__cuda()->ctx_get_current(&current) == TB__CUDA_SUCCESS && current == wanted) {
        out->context = current;
        return TB_OK;
    }
    int result = tb__cuda()->ctx_push(wanted);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuCtxPushCurrent", "context of stream %p", (void *)stream);
    }
    *out = (struct tb__gpu_scope){.pushed = 1, .context = wanted};
    return TB_OK;
}

tb_status tb__stream_look(tb__stream stream, const struct tb__gpu *otherwise,
                          struct tb__stream_at *out)
{
    *out = (struct tb__stream_at){.stream = stream, .gpu = otherwise};
    TB__TRY(tb__cuda_need());
    if (is_default(stream)) {
        if (otherwise == NULL) {
            TB__TRY(tb__gpu_current(&out->gpu));
        }
        return tb__gpu_enter(out->gpu, &out->scope);
    }
    TB__TRY(tb__stream_enter(stream, NULL, &out->scope));
    tb_status status = tb__gpu_of_context(out->scope.context, &out->gpu);
    if (status != TB_OK) {
        tb__gpu_leave(&out->scope);
    }
    return status;
}

void tb__stream_leave(struct tb__stream_at *at)
{
    tb__gpu_leave(&at->scope);
}

tb_status tb__stream_device(tb__stream stream, const struct tb__gpu *otherwise,
                            const struct tb__gpu **out)
{
    TB__TRY(tb__cuda_need());
    if (is_default(stream) && otherwise != NULL) {
        *out = otherwise;
        return TB_OK;
    }
    if (is_default(stream)) {
        return tb__gpu_current(out);
    }
    struct tb__stream_at at;
    TB__TRY(tb__stream_look(stream, otherwise, &at));
    tb__stream_leave(&at);
    *out = at.gpu;
    return TB_OK;
}

enum tb__order_way tb__order_way(const struct tb__gpu *gpu)
{
    /* The words are host memory that both processes page-lock. */
    return gpu->stream_mem_ops_64 && gpu->host_register && gpu->can_map_host ? TB__ORDER_WORDS
                                                                             : TB__ORDER_CPU;
}

tb_status tb__stream_create(const struct tb__gpu *gpu, tb__stream *out)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(gpu, &scope));
    int result = tb__cuda()->stream_create(out, TB__STREAM_NON_BLOCKING);
    tb__gpu_leave(&scope);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuStreamCreate", "cuda:%d", gpu->ordinal);
}

void tb__stream_destroy(const struct tb__gpu *gpu, tb__stream stream)
{
    struct tb__gpu_scope scope;
    if (stream != NULL && tb__gpu_enter_to_free(gpu, &scope)) {
        tb__cuda_note(tb__cuda()->stream_destroy(stream), "cuStreamDestroy", "%p", (void *)stream);
        tb__gpu_leave(&scope);
    }
}

/* ------------------------------------------------------------------ words */

static tb_status words_check(const struct tb__gpu *gpu)
{
    return gpu->stream_mem_ops_64
               ? TB_OK
               : TB__FAIL(TB_E_UNSUPPORTED,
                          "streams of cuda:%d (%s) cannot wait for words in memory", gpu->ordinal,
                          gpu->name);
}

static tb_status one_inside(const struct tb__stream_at *at, const struct tb__stream_op *op)
{
    int result = op->write ? tb__cuda()->stream_write64(at->stream, op->address, op->value,
                                                        TB__STREAM_WRITE_VALUE_DEFAULT)
                           : tb__cuda()->stream_wait64(at->stream, op->address, op->value,
                                                       TB__STREAM_WAIT_VALUE_GEQ);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, op->write ? "cuStreamWriteValue64" : "cuStreamWaitValue64",
                               "stream %p of cuda:%d, word at 0x%llx, %llu", (void *)at->stream,
                               at->gpu->ordinal, (unsigned long long)op->address,
                               (unsigned long long)op->value);
}

static tb_status batch_inside(const struct tb__stream_at *at, const struct tb__stream_op *ops,
                              uint32_t count)
{
    struct tb__mem_op batch[BATCH];
    for (uint32_t done = 0; done < count;) {
        uint32_t now = count - done < BATCH ? count - done : BATCH;
        for (uint32_t i = 0; i < now; i++) {
            const struct tb__stream_op *op = &ops[done + i];
            batch[i] = (struct tb__mem_op){.operation = op->write ? TB__STREAM_MEM_OP_WRITE_VALUE_64
                                                                  : TB__STREAM_MEM_OP_WAIT_VALUE_64,
                                           .address = op->address,
                                           .value = op->value,
                                           .flags = op->write ? TB__STREAM_WRITE_VALUE_DEFAULT
                                                              : TB__STREAM_WAIT_VALUE_GEQ};
        }
        int result = tb__cuda()->stream_batch(at->stream, now, batch, 0);
        if (result != TB__CUDA_SUCCESS) {
            return tb__cuda_fail(result, "cuStreamBatchMemOp",
                                 "stream %p of cuda:%d, %u of %u words, the first at 0x%llx",
                                 (void *)at->stream, at->gpu->ordinal, now, count,
                                 (unsigned long long)ops[done].address);
        }
        done += now;
    }
    return TB_OK;
}

tb_status tb__stream_at_batch(const struct tb__stream_at *at, const struct tb__stream_op *ops,
                              uint32_t count)
{
    TB__TRY(words_check(at->gpu));
    return count == 1 ? one_inside(at, &ops[0]) : batch_inside(at, ops, count);
}

/* ------------------------------------------------------------------ the CPU's part */

tb_status tb__stream_at_host_func(const struct tb__stream_at *at, tb__host_fn *function,
                                  void *argument)
{
    int result = tb__cuda()->launch_host_func(at->stream, function, argument);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuLaunchHostFunc", "stream %p of cuda:%d",
                               (void *)at->stream, at->gpu->ordinal);
}

tb_status tb__stream_synchronize(tb__stream stream, const struct tb__gpu *gpu)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__stream_enter(stream, gpu, &scope));
    int result = tb__cuda()->stream_synchronize(stream);
    tb__gpu_leave(&scope);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuStreamSynchronize", "stream %p of cuda:%d",
                               (void *)stream, gpu->ordinal);
}

tb_status tb__stream_query(tb__stream stream, const struct tb__gpu *gpu)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__stream_enter(stream, gpu, &scope));
    int result = tb__cuda()->stream_query(stream);
    tb__gpu_leave(&scope);
    if (result == TB__CUDA_NOT_READY) {
        return TB_AGAIN;
    }
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuStreamQuery", "stream %p of cuda:%d", (void *)stream,
                               gpu->ordinal);
}
