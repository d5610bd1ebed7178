/* Writing by copy: for data that already lies elsewhere. */
#include "pool/write.h"
#include "base/copy.h"
#include "base/copy_team.h"
#include "pool/state.h"
#include "pool/support.h"
#include "pool/wake.h"

static tb_status check_fixed(const tb_pool *pool, const tb_tensor *tensor, size_t bytes)
{
    int same = tensor->dtype == pool->proto.dtype && tensor->ndim == pool->proto.ndim;
    for (int32_t i = 0; same && i < tensor->ndim; i++) {
        same = tensor->shape[i] == pool->proto.shape[i];
    }
    if (same) {
        return TB_OK;
    }
    char given[160];
    char wanted[160];
    return TB__FAIL(TB_E_MISMATCH,
                    "pool `%s` holds %s (%zu bytes), a write of %s (%zu bytes) does not fit: "
                    "register another pool, or one with capacity_bytes",
                    pool->name, tb_tensor_describe(&pool->proto, wanted, sizeof wanted),
                    pool->proto_bytes, tb_tensor_describe(tensor, given, sizeof given), bytes);
}

static tb_status check_varying(const tb_pool *pool, const tb_tensor *tensor, size_t bytes)
{
    char given[160];
    if (tensor->dtype != pool->proto.dtype) {
        char name[32];
        return TB__FAIL(TB_E_MISMATCH, "pool `%s` holds %s, a write of %s does not fit", pool->name,
                        tb_dtype_name(pool->proto.dtype, name),
                        tb_tensor_describe(tensor, given, sizeof given));
    }
    if (bytes > pool->segment.view.slot_bytes) {
        return TB__FAIL(TB_E_MISMATCH,
                        "pool `%s` has slots of %llu bytes, a write of %s has %zu bytes",
                        pool->name, (unsigned long long)pool->segment.view.slot_bytes,
                        tb_tensor_describe(tensor, given, sizeof given), bytes);
    }
    return TB_OK;
}

tb_status tb__write_check(const tb_pool *pool, const tb_tensor *tensor, size_t *bytes)
{
    if (pool->require_zero_copy) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s` forbids copies (require_zero_copy): use tb_pool_loan()",
                        pool->name);
    }
    TB__TRY(tb_tensor_bytes(tensor, bytes));
    if (tensor->device != TB_CPU && !TB_IS_CUDA(tensor->device)) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s`: the source is on device 0x%x: TB_CPU and TB_CUDA(n) are "
                        "possible",
                        pool->name, (unsigned)tensor->device);
    }
    if (tensor->data == NULL && *bytes > 0) {
        return TB__FAIL(TB_E_INVALID, "pool `%s`: the source of %zu bytes is NULL", pool->name,
                        *bytes);
    }
    return pool->varying ? check_varying(pool, tensor, *bytes) : check_fixed(pool, tensor, *bytes);
}

/* Waking a thread takes as long as the end of a large copy: those that sleep are woken before it,
 * and look for the frame for a moment (acquire.c). Whoever is asleep when it is there is rung
 * then. */
static void wake_early(void *context)
{
    tb__wake_early(context, TB__WAKE_ALL);
}

/* Whoever falls asleep during the copy misses an early ring alone. */
static int has_readers(tb_pool *pool)
{
    const struct tb__page_set *set = tb__pages_enter(pool);
    int some = set != NULL && set->count > 0;
    tb__pages_leave(pool);
    return some;
}

/* The copy that was begun ahead, if it is this one. */
static int finish_ahead(tb_loan *loan, const tb_tensor *tensor, size_t bytes)
{
    if (loan->ahead == NULL) {
        return 0;
    }
    int same = loan->ahead == tensor->data && loan->ahead_bytes == bytes &&
               tb_tensor_is_packed(tensor) && tensor->device == TB_CPU;
    tb__write_ahead_end(loan, same);
    return same;
}

static tb_status copy_in(tb_loan *loan, const tb_tensor *tensor, size_t bytes)
{
    const tb_pool *pool = loan->pool;
    int done = finish_ahead(loan, tensor, bytes);
    if (pool->device != NULL || tensor->device != TB_CPU) {
        return tb__write_device(loan, tensor, bytes);
    }
    if (pool->varying) {
        TB__TRY(tb_loan_reshape(loan, tensor->ndim, tensor->shape, NULL));
    }
    if (!done && tb_tensor_is_packed(tensor)) {
        struct tb__copy_near near = {wake_early, loan->pool};
        tb__copy_team_store(pool->copy_team, loan->tensor.data, tensor->data, bytes,
                            pool->slots * pool->segment.view.slot_stride,
                            has_readers(loan->pool) ? &near : NULL);
    } else if (!done) {
        tb__copy_strided(loan->tensor.data, tensor);
    }
    tb__loan_count_copy(loan, bytes);
    return TB_OK;
}

static tb_status check_loan(const tb_loan *loan, const tb_tensor *tensor, size_t *bytes)
{
    if (loan == NULL || tensor == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", loan == NULL ? "loan" : "tensor");
    }
    TB__TRY(tb__bus_check(loan->pool->bus));
    return tb__write_check(loan->pool, tensor, bytes);
}

tb_status tb_loan_write(tb_loan *loan, const tb_tensor *tensor)
{
    size_t bytes;
    TB__TRY(check_loan(loan, tensor, &bytes));
    return copy_in(loan, tensor, bytes);
}

tb_status tb_loan_write_ahead(tb_loan *loan, const tb_tensor *tensor)
{
    size_t bytes;
    TB__TRY(check_loan(loan, tensor, &bytes));
    const tb_pool *pool = loan->pool;
    if (loan->ahead != NULL) {
        tb__write_ahead_end(loan, 0);
    }
    if (pool->varying) { /* which may not be what was promised */
        TB__TRY(tb_loan_reshape(loan, tensor->ndim, tensor->shape, NULL));
    }
    if (pool->device == NULL && tensor->device == TB_CPU && tb_tensor_is_packed(tensor) &&
        tb__copy_team_begin(pool->copy_team, loan->tensor.data, tensor->data, bytes,
                            pool->slots * pool->segment.view.slot_stride)) {
        loan->ahead = tensor->data;
        loan->ahead_bytes = bytes;
    }
    return TB_OK;
}

void tb__write_ahead_end(tb_loan *loan, int finish)
{
    struct tb__copy_near near = {wake_early, loan->pool};
    if (finish) {
        tb__copy_team_finish(loan->pool->copy_team, has_readers(loan->pool) ? &near : NULL);
    } else {
        tb__copy_team_abandon(loan->pool->copy_team);
    }
    loan->ahead = NULL;
}

tb_status tb_pool_check(tb_pool *pool, const tb_tensor *tensor)
{
    if (pool == NULL || tensor == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", pool == NULL ? "pool" : "tensor");
    }
    TB__TRY(tb__bus_check(pool->bus));
    size_t bytes;
    return tb__write_check(pool, tensor, &bytes);
}

tb_status tb_pool_write(tb_pool *pool, const tb_tensor *tensor, int64_t timeout_ns, tb_handle *out)
{
    if (pool == NULL || tensor == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", pool == NULL ? "pool" : "tensor");
    }
    TB__TRY(tb__bus_check(pool->bus));
    size_t bytes;
    TB__TRY(tb__write_check(pool, tensor, &bytes));
    tb_loan *loan;
    TB__TRY(tb_pool_loan(pool, timeout_ns, &loan));
    tb_status status = copy_in(loan, tensor, bytes);
    if (status != TB_OK) {
        tb_loan_cancel(loan);
        return status;
    }
    return tb_loan_publish(loan, out);
}
