/* Transits, and the list that keeps them. */
#include "cuda/transit.h"

#include <pthread.h>
#include <stdlib.h>

#define MAX_TRANSITS 16

static struct {
    pthread_mutex_t lock;
    pthread_cond_t given;
    struct tb__transit *all;
    unsigned count;
} list = {.lock = PTHREAD_MUTEX_INITIALIZER, .given = PTHREAD_COND_INITIALIZER};

/* ------------------------------------------------------------------ making, taking apart */

static void chunks_free(struct tb__transit *transit)
{
    struct tb__gpu_scope scope;
    for (int i = 0; i < TB__CHUNKS; i++) {
        struct tb__chunk *chunk = &transit->chunks[i];
        tb__gpu_event_destroy(&chunk->filled);
        tb__gpu_event_destroy(&chunk->done);
        if (chunk->host != NULL && tb__gpu_enter_to_free(transit->dst, &scope)) {
            tb__cuda_note(tb__cuda()->mem_free_host(chunk->host), "cuMemFreeHost", "a chunk");
            tb__gpu_leave(&scope);
        }
        chunk->host = NULL;
    }
    transit->has_chunks = 0;
}

static void transit_destroy(struct tb__transit *transit)
{
    if (transit == NULL) {
        return;
    }
    chunks_free(transit);
    tb__gpu_event_destroy(&transit->end);
    if (transit->src != NULL) {
        tb__stream_destroy(transit->src, transit->in);
    }
    tb__stream_destroy(transit->dst, transit->out);
    free(transit);
}

static tb_status transit_create(const struct tb__gpu *src, const struct tb__gpu *dst,
                                struct tb__transit **out)
{
    struct tb__transit *transit = calloc(1, sizeof *transit);
    if (transit == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a transit");
    }
    transit->src = src;
    transit->dst = dst;
    transit->in_use = 1;
    tb_status status = tb__stream_create(dst, &transit->out);
    if (status == TB_OK && src != NULL) {
        status = tb__stream_create(src, &transit->in);
    }
    if (status == TB_OK) {
        status = tb__gpu_event_create(dst, transit->out, &transit->end);
    }
    if (status != TB_OK) {
        transit_destroy(transit);
        return status;
    }
    *out = transit;
    return TB_OK;
}

static tb_status chunk_create(const struct tb__transit *transit, struct tb__chunk *chunk)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(transit->dst, &scope));
    int result =
        tb__cuda()->mem_host_alloc(&chunk->host, TB__CHUNK_BYTES, TB__MEMHOSTALLOC_PORTABLE);
    tb__gpu_leave(&scope);
    if (result != TB__CUDA_SUCCESS) {
        chunk->host = NULL;
        return tb__cuda_fail(result, "cuMemHostAlloc", "%llu bytes of pinned memory",
                             (unsigned long long)TB__CHUNK_BYTES);
    }
    TB__TRY(tb__gpu_event_create(transit->dst, transit->out, &chunk->done));
    return transit->src != NULL ? tb__gpu_event_create(transit->src, transit->in, &chunk->filled)
                                : TB_OK;
}

static tb_status chunks_need(struct tb__transit *transit)
{
    for (int i = 0; !transit->has_chunks && i < TB__CHUNKS; i++) {
        tb_status status = chunk_create(transit, &transit->chunks[i]);
        if (status != TB_OK) {
            chunks_free(transit);
            return status;
        }
    }
    transit->has_chunks = 1;
    return TB_OK;
}

/* ------------------------------------------------------------------ the list */

/* Whether all that was enqueued is done: 1, or 0; -1 when its streams are broken. */
static int at_rest(const struct tb__transit *transit)
{
    tb_error kept;
    tb_last_error(&kept);
    /* The last event comes after everything on both streams, unless marking it has failed. */
    tb_status out = transit->failed ? tb__stream_query(transit->out, transit->dst)
                                    : tb__gpu_event_query(&transit->end);
    tb_status in = transit->failed && transit->src != NULL
                       ? tb__stream_query(transit->in, transit->src)
                       : TB_OK;
    tb__error_restore(&kept);
    return out < 0 || in < 0 ? -1 : out == TB_OK && in == TB_OK;
}

static void list_remove(struct tb__transit *transit)
{
    struct tb__transit **at = &list.all;
    while (*at != transit) {
        at = &(*at)->next;
    }
    *at = transit->next;
    list.count--;
}

/* The best one between two devices: at rest, else (any = 1) with work still enqueued. Broken ones
 * are taken apart on the way. The lock is held. */
static struct tb__transit *list_find(const struct tb__gpu *src, const struct tb__gpu *dst, int any)
{
    struct tb__transit *next = NULL;
    for (struct tb__transit *transit = list.all; transit != NULL; transit = next) {
        next = transit->next;
        if (transit->in_use || transit->src != src || transit->dst != dst) {
            continue;
        }
        int rests = at_rest(transit);
        if (rests < 0) {
            list_remove(transit);
            transit_destroy(transit);
        } else if (rests || (any && !transit->failed)) {
            return transit;
        }
    }
    return NULL;
}

/* Make room by one between other devices. The lock is held. */
static int list_evict(void)
{
    for (struct tb__transit *transit = list.all; transit != NULL; transit = transit->next) {
        if (!transit->in_use && at_rest(transit) != 0) {
            list_remove(transit);
            transit_destroy(transit);
            return 1;
        }
    }
    return 0;
}

/* The lock is held, and given up while all are in use. */
static tb_status list_take(const struct tb__gpu *src, const struct tb__gpu *dst,
                           struct tb__transit **out)
{
    for (;;) {
        struct tb__transit *transit = list_find(src, dst, 0);
        if (transit == NULL && (list.count < MAX_TRANSITS || list_evict())) {
            TB__TRY(transit_create(src, dst, &transit));
            transit->next = list.all;
            list.all = transit;
            list.count++;
        }
        if (transit == NULL) {
            transit = list_find(src, dst, 1);
        }
        if (transit != NULL) {
            transit->in_use = 1;
            transit->failed = 0;
            *out = transit;
            return TB_OK;
        }
        pthread_cond_wait(&list.given, &list.lock);
    }
}

tb_status tb__transit_take(const struct tb__gpu *src, const struct tb__gpu *dst, int with_chunks,
                           struct tb__transit **out)
{
    struct tb__transit *transit = NULL;
    TB__TRY(tb__cuda_need());
    pthread_mutex_lock(&list.lock);
    tb_status status = list_take(src, dst, &transit);
    pthread_mutex_unlock(&list.lock);
    TB__TRY(status);
    status = with_chunks ? chunks_need(transit) : TB_OK;
    if (status != TB_OK) {
        tb__transit_give(transit);
        return status;
    }
    *out = transit;
    return TB_OK;
}

void tb__transit_give(struct tb__transit *transit)
{
    pthread_mutex_lock(&list.lock);
    transit->in_use = 0;
    pthread_cond_signal(&list.given);
    pthread_mutex_unlock(&list.lock);
}

void tb__transit_trim(void)
{
    if (!tb__cuda_is_open()) {
        return;
    }
    pthread_mutex_lock(&list.lock);
    while (list_evict()) {
    }
    pthread_mutex_unlock(&list.lock);
}

/* ------------------------------------------------------------------ the way through */

tb_status tb__transit_begin(struct tb__transit *transit, tb__stream stream,
                            const struct tb__gpu *stream_gpu)
{
    TB__TRY(tb__stream_follow(stream, stream_gpu, transit->out, transit->dst));
    return transit->src != NULL ? tb__stream_follow(stream, stream_gpu, transit->in, transit->src)
                                : TB_OK;
}

tb_status tb__transit_end(struct tb__transit *transit, tb__stream stream,
                          const struct tb__gpu *stream_gpu)
{
    TB__TRY(tb__gpu_event_record(&transit->end, transit->out));
    return tb__gpu_event_wait(&transit->end, stream, stream_gpu);
}

void tb__transit_abandon(struct tb__transit *transit, tb__stream stream,
                         const struct tb__gpu *stream_gpu)
{
    tb_error kept;
    tb_last_error(&kept);
    /* What fills a chunk may be enqueued, what waits for it not. */
    tb_status status = transit->src != NULL ? tb__stream_follow(transit->in, transit->src,
                                                                transit->out, transit->dst)
                                            : TB_OK;
    if (status != TB_OK || tb__transit_end(transit, stream, stream_gpu) != TB_OK) {
        (void)!tb__stream_synchronize(transit->out, transit->dst);
        if (transit->src != NULL) {
            (void)!tb__stream_synchronize(transit->in, transit->src);
        }
        transit->failed = 1;
    }
    tb__error_restore(&kept);
}

tb_status tb__transit_bracket(const struct tb__gpu *gpu, tb__stream stream,
                              const struct tb__gpu *stream_gpu, tb__enqueue *enqueue,
                              const void *work, int *result)
{
    struct tb__transit *transit = NULL;
    *result = TB__CUDA_SUCCESS;
    if (stream_gpu == gpu) {
        return enqueue(work, stream, result);
    }
    TB__TRY(tb__transit_take(NULL, gpu, 0, &transit));
    tb_status status = tb__transit_begin(transit, stream, stream_gpu);
    if (status == TB_OK) {
        status = enqueue(work, transit->out, result);
    }
    if (status == TB_OK) {
        status = tb__transit_end(transit, stream, stream_gpu);
    }
    if (status != TB_OK) {
        tb__transit_abandon(transit, stream, stream_gpu);
    }
    tb__transit_give(transit);
    return status;
}

tb_status tb__transit_chunk(struct tb__transit *transit, struct tb__chunk **out)
{
    struct tb__chunk *chunk = &transit->chunks[transit->next_chunk++ % TB__CHUNKS];
    TB__TRY(transit->src != NULL ? tb__gpu_event_wait(&chunk->done, transit->in, transit->src)
                                 : tb__gpu_event_synchronize(&chunk->done));
    *out = chunk;
    return TB_OK;
}

tb_status tb__transit_send(struct tb__transit *transit, struct tb__chunk *chunk, uint64_t dst,
                           uint64_t bytes)
{
    struct tb__gpu_scope scope;
    if (transit->src != NULL) {
        TB__TRY(tb__gpu_event_record(&chunk->filled, transit->in));
        TB__TRY(tb__gpu_event_wait(&chunk->filled, transit->out, transit->dst));
    }
    TB__TRY(tb__gpu_enter(transit->dst, &scope));
    int result = tb__cuda()->memcpy_htod_async(dst, chunk->host, bytes, transit->out);
    tb__gpu_leave(&scope);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemcpyHtoDAsync", "%llu bytes to cuda:%d, staged",
                             (unsigned long long)bytes, transit->dst->ordinal);
    }
    return tb__gpu_event_record(&chunk->done, transit->out);
}

static tb_status fill(struct tb__transit *transit, struct tb__chunk *chunk, uint64_t src,
                      uint64_t bytes)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(transit->src, &scope));
    int result = tb__cuda()->memcpy_dtoh_async(chunk->host, src, bytes, transit->in);
    tb__gpu_leave(&scope);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuMemcpyDtoHAsync", "%llu bytes of cuda:%d, staged",
                               (unsigned long long)bytes, transit->src->ordinal);
}

tb_status tb__transit_copy(struct tb__transit *transit, uint64_t dst, uint64_t src, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t now = bytes - done < TB__CHUNK_BYTES ? bytes - done : TB__CHUNK_BYTES;
        struct tb__chunk *chunk = NULL;
        TB__TRY(tb__transit_chunk(transit, &chunk));
        TB__TRY(fill(transit, chunk, src + done, now));
        TB__TRY(tb__transit_send(transit, chunk, dst + done, now));
        done += now;
    }
    return TB_OK;
}
