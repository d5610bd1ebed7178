/* Sending: one encoding of a message for all subscribers of an output.
 *
 * A send first waits for room in all backpressure queues, then, if it must, prepares frames (a
 * carrier for a large value, a hold on a handle's frame) without the output's mutex, then looks
 * again and writes to all rings under it: all backpressure subscribers get the message, or nobody
 * does. Users' threads, several at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/error.h"
#include "node/node.h"
#include "wire/message.h"
#include "wire/metadata_wire.h"

/* One call of tb_node_send(). */
struct job {
    tb_node *node;
    struct tb__output *output;
    const void *data;         /* BYTES, or a packed TENSOR */
    const tb_tensor *strided; /* a TENSOR that must be packed; then data is NULL */
    const tb_part *parts;     /* PARTS; then data is NULL */
    size_t part_count;
    uint8_t *packed;   /* heap copy of tensor or parts for an inline message */
    uint8_t *metadata; /* heap, encoded; NULL without */
    struct tb__message message;
    int64_t deadline_ns;
    struct tb__hold *carrier; /* CARRIED */
    struct tb__hold *handle;  /* HANDLE with a backpressure subscriber */
};

/* What an output's subscribers need, as far as known under its mutex. */
struct survey {
    uint32_t subscribers; /* living */
    uint32_t backpressure;
    uint32_t room_bytes; /* of the smallest ring */
    int has_room;
};

static void survey_take(const struct tb__output *output, struct survey *out)
{
    *out = (struct survey){.room_bytes = UINT32_MAX, .has_room = 1};
    for (const struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        if (tb__subscriber_is_dead(at)) {
            continue;
        }
        out->subscribers++;
        out->backpressure += at->policy == TB__BACKPRESSURE;
        out->has_room &= tb__subscriber_has_room(at);
        if (at->ring.geometry.room_bytes < out->room_bytes) {
            out->room_bytes = at->ring.geometry.room_bytes;
        }
    }
}

/* ---- waiting ---- */

static void set_waiting(struct tb__output *output)
{
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        tb__subscriber_set_waiting(output, at);
    }
}

/* Mutex held. From here on subscribers ring when they take a message. */
static void begin_wait(struct tb__output *output)
{
    output->sleepers++;
    set_waiting(output);
    /* Pairs with the fence in tb__stream_advance(): it sees the waiting word, or we see its move.
     */
    tb__fence_full();
}

static void end_wait(struct tb__output *output)
{
    output->sleepers--;
    set_waiting(output);
}

/* Sleep until something may have changed since `seen`, also when a subscriber dies. Mutex held on
 * both sides. */
static void sleep_once(struct tb__output *output, uint32_t seen, int64_t deadline_ns)
{
    struct tb__subscriber *kept[TB__MAX_LIVES];
    struct tb__life_watch lives[TB__MAX_LIVES];
    uint32_t count = 0;
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        uint32_t alive = tb__a32_load_acquire(&at->page.shm->reader_life);
        if (alive == 0 || tb__life_died(alive)) {
            continue;
        }
        if (count == TB__MAX_LIVES) {
            int64_t soon_ns = tb__deadline_ns(TB__UNWATCHED_NS);
            deadline_ns = soon_ns < deadline_ns ? soon_ns : deadline_ns;
            break;
        }
        lives[count] = (struct tb__life_watch){&at->page.shm->reader_life, alive};
        at->references++;
        kept[count++] = at;
    }
    pthread_mutex_unlock(&output->mutex);
    tb__bus_sleep(output->bus, seen, lives, count, deadline_ns);
    pthread_mutex_lock(&output->mutex);
    for (uint32_t i = 0; i < count; i++) {
        tb__subscriber_unref(output, kept[i]);
    }
}

static tb_status fail_again(const struct tb__output *output)
{
    const char *who = "";
    for (const struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        if (!tb__subscriber_is_dead(at) && !tb__subscriber_has_room(at)) {
            who = tb__lifeline_peer_name(at->line);
        }
    }
    return TB__FAIL(TB_AGAIN, "output `%s`: the queue of `%s` stayed full", output->config->name,
                    who);
}

/* Mutex held. TB_OK with a survey that has room. */
static tb_status wait_for_room(struct job *job, struct survey *survey)
{
    struct tb__output *output = job->output;
    tb_status status = TB_OK;
    int waiting = 0;
    for (;;) {
        uint32_t seen = tb__bus_bell(output->bus);
        survey_take(output, survey);
        if (output->closed) {
            status = TB__FAIL(TB_CLOSED, "output `%s` is closed", output->config->name);
            break;
        }
        if (survey->has_room) {
            break;
        }
        if (tb__left_ns(job->deadline_ns) == 0) {
            status = fail_again(output);
            break;
        }
        if (!waiting) {
            begin_wait(output);
            waiting = 1;
            continue;
        }
        sleep_once(output, seen, job->deadline_ns);
    }
    if (waiting) {
        end_wait(output);
    }
    return status;
}

/* ---- frames ---- */

static uint32_t reap_all(tb_node *node)
{
    uint32_t released = 0;
    for (size_t i = 0; i < node->config.output_count; i++) {
        released += tb__output_reap(&node->outputs[i]);
    }
    return released;
}

static uint32_t give_up_oldest(tb_node *node)
{
    uint32_t released = 0;
    for (size_t i = 0; i < node->config.output_count && released == 0; i++) {
        released = tb__output_give_up_oldest(&node->outputs[i]);
    }
    return released;
}

static void for_all_outputs(tb_node *node, void (*call)(struct tb__output *output))
{
    for (size_t i = 0; i < node->config.output_count; i++) {
        pthread_mutex_lock(&node->outputs[i].mutex);
        call(&node->outputs[i]);
        pthread_mutex_unlock(&node->outputs[i].mutex);
    }
}

/* A frame could not be had: let go of what was taken, else (for a carrier) of what a drop_oldest
 * queue may lose, else wait for a subscriber of any output. */
static tb_status make_way(struct job *job, int may_drop)
{
    if (reap_all(job->node) != 0 || (may_drop && give_up_oldest(job->node) != 0)) {
        return TB_OK;
    }
    if (tb__left_ns(job->deadline_ns) == 0) {
        return TB_AGAIN;
    }
    for_all_outputs(job->node, begin_wait);
    uint32_t seen = tb__bus_bell(job->node->bus);
    if (reap_all(job->node) == 0) {
        pthread_mutex_lock(&job->output->mutex);
        sleep_once(job->output, seen, job->deadline_ns);
        pthread_mutex_unlock(&job->output->mutex);
    }
    for_all_outputs(job->node, end_wait);
    return TB_OK;
}

/* Whether the value does not lie in one piece. */
static int is_scattered(const struct job *job)
{
    return job->strided != NULL || job->parts != NULL;
}

static void gather(const struct job *job, uint8_t *dst, size_t working_set_bytes)
{
    if (job->strided != NULL) {
        tb__copy_strided(dst, job->strided);
        return;
    }
    for (size_t i = 0; i < job->part_count; i++) {
        if (job->parts[i].bytes != 0) {
            tb__copy_store(dst, job->parts[i].data, job->parts[i].bytes, working_set_bytes);
            dst += job->parts[i].bytes;
        }
    }
}

static void fill_carrier(const struct job *job, const struct tb__carrier *carrier,
                         uint64_t metadata_offset)
{
    if (is_scattered(job)) {
        gather(job, carrier->data, (size_t)carrier->working_set_bytes);
    } else if (job->message.value_bytes != 0) {
        tb__copy_store(carrier->data, job->data, (size_t)job->message.value_bytes,
                       (size_t)carrier->working_set_bytes);
    }
    if (job->message.flags & TB__MESSAGE_METADATA_CARRIED) {
        memset(carrier->data + job->message.value_bytes, 0,
               (size_t)(metadata_offset - job->message.value_bytes));
        memcpy(carrier->data + metadata_offset, job->metadata, job->message.metadata_bytes);
    }
}

static tb_status make_carrier(struct job *job)
{
    uint64_t metadata_offset;
    uint64_t bytes;
    if (!tb__carrier_layout(&job->message, &metadata_offset, &bytes)) {
        return TB__FAIL(TB_E_LIMIT, "a value of %llu bytes",
                        (unsigned long long)job->message.value_bytes);
    }
    struct tb__carrier carrier;
    tb_status status;
    while ((status = tb__carriers_loan(&job->node->carriers, bytes, &carrier)) == TB_AGAIN) {
        TB__TRY(make_way(job, 1));
    }
    TB__TRY(status);
    fill_carrier(job, &carrier, metadata_offset);
    return tb__carriers_publish(&job->node->carriers, &carrier, bytes, &job->message.carrier,
                                &job->carrier);
}

static tb_status hold_handle(struct job *job)
{
    tb_status status;
    while ((status = tb__lender_hold(&job->node->lender, &job->message.handle, &job->handle)) ==
           TB_E_BUSY) {
        TB__TRY(make_way(job, 0));
    }
    return status;
}

/* ---- preparing ---- */

/* Flags that make the message fit rings of this room. */
static uint32_t flags_for(const struct tb__message *message, uint32_t room_bytes)
{
    struct tb__message trial = *message;
    struct tb__message_layout layout;
    if (tb__message_layout(&trial, &layout) && layout.bytes <= room_bytes &&
        ((trial.flags & TB__MESSAGE_CARRIED) || trial.value_bytes <= TB__INLINE_MAX)) {
        return trial.flags;
    }
    trial.flags = TB__MESSAGE_CARRIED;
    if (trial.value_bytes == 0 || !tb__message_layout(&trial, &layout) ||
        layout.bytes > room_bytes) {
        trial.flags |= TB__MESSAGE_METADATA_CARRIED;
    }
    return trial.flags;
}

static int is_prepared(const struct job *job, const struct survey *survey)
{
    return flags_for(&job->message, survey->room_bytes) == job->message.flags &&
           (job->message.kind != TB_VALUE_HANDLE || survey->backpressure == 0 ||
            job->handle != NULL) &&
           (job->message.flags != 0 || !is_scattered(job) || job->packed != NULL);
}

static tb_status prepare(struct job *job, const struct survey *survey)
{
    struct tb__message *message = &job->message;
    if (message->kind == TB_VALUE_HANDLE && survey->backpressure != 0 && job->handle == NULL) {
        TB__TRY(hold_handle(job));
    }
    uint32_t flags = flags_for(message, survey->room_bytes);
    if (flags != message->flags) {
        /* A subscriber with smaller slots came between: what was made does not do. */
        tb__hold_unref(job->carrier);
        job->carrier = NULL;
        message->flags = flags;
        return make_carrier(job);
    }
    if (flags == 0 && is_scattered(job) && job->packed == NULL) {
        job->packed = malloc((size_t)message->value_bytes + 1);
        if (job->packed == NULL) {
            return TB__FAIL(TB_E_NOMEM, "no memory to pack a value");
        }
        gather(job, job->packed, (size_t)message->value_bytes);
    }
    return TB_OK;
}

/* ---- delivering ---- */

static tb_status reserve_holds(struct tb__output *output)
{
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        TB__TRY(tb__hold_queue_reserve(&at->holds, 2));
    }
    return TB_OK;
}

static void deliver_to(struct job *job, struct tb__subscriber *subscriber,
                       const struct tb__message_layout *layout, const struct tb__ring_part *parts,
                       size_t part_count)
{
    int backpressure = subscriber->policy == TB__BACKPRESSURE;
    uint64_t number = tb__ring_head(&subscriber->ring) + 1;
    if (job->carrier != NULL) {
        tb__hold_queue_push(&subscriber->holds, number, job->carrier);
    }
    if (backpressure && job->handle != NULL) {
        tb__hold_queue_push(&subscriber->holds, number, job->handle);
    }
    if (job->message.flags != 0 || job->message.kind == TB_VALUE_HANDLE) {
        subscriber->last_frame = number;
    }
    /* Before the message: whoever takes it sees that its frame is kept. */
    tb__subscriber_set_waiting(job->output, subscriber);
    tb__ring_write(&subscriber->ring, job->message.stamp_ns, layout->bytes, parts, part_count);
}

/* Mutex held, room everywhere. */
static tb_status deliver(struct job *job)
{
    struct tb__output *output = job->output;
    struct tb__message *message = &job->message;
    struct tb__message_layout layout;
    if (job->carrier != NULL || job->handle != NULL) {
        TB__TRY(reserve_holds(output));
    }
    int fits = tb__message_layout(message, &layout);
    TB_ASSERT(fits);
    message->sequence = ++output->sequence;
    message->stamp_ns = tb__now_ns();
    uint8_t head[TB__MESSAGE_HEAD_MAX];
    tb__message_encode_head(message, head);
    struct tb__ring_part parts[3] = {{0, head, layout.head_bytes}};
    size_t part_count = 1;
    if (message->metadata_bytes != 0 && !(message->flags & TB__MESSAGE_METADATA_CARRIED)) {
        parts[part_count++] =
            (struct tb__ring_part){layout.metadata_offset, job->metadata, message->metadata_bytes};
    }
    if (message->value_bytes != 0 && !(message->flags & TB__MESSAGE_CARRIED)) {
        parts[part_count++] = (struct tb__ring_part){layout.value_offset,
                                                     job->packed != NULL ? job->packed : job->data,
                                                     (size_t)message->value_bytes};
    }
    if (message->kind == TB_VALUE_HANDLE) {
        tb__output_note_pool(output, message->handle.pool_uid);
    }
    if (message->flags != 0) {
        tb__output_note_pool(output, message->carrier.pool_uid);
    }
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        if (!tb__subscriber_is_dead(at)) {
            deliver_to(job, at, &layout, parts, part_count);
        }
    }
    /* Pairs with the fence in tb__stream_arm(): it sees the message, or we see that it sleeps. */
    tb__fence_full();
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        tb__subscriber_wake(at);
    }
    return TB_OK;
}

static tb_status run(struct job *job)
{
    for (;;) {
        struct survey survey;
        tb__output_reap(job->output);
        pthread_mutex_lock(&job->output->mutex);
        tb_status status = wait_for_room(job, &survey);
        int done = status != TB_OK || survey.subscribers == 0;
        if (status == TB_OK && done) {
            job->output->sequence++; /* a subscriber that is just restarting missed it */
        }
        if (!done && is_prepared(job, &survey)) {
            status = deliver(job);
            done = 1;
        }
        pthread_mutex_unlock(&job->output->mutex);
        if (done) {
            return status;
        }
        TB__TRY(prepare(job, &survey));
    }
}

/* ---- the call ---- */

static tb_status describe_tensor(struct job *job, const tb_tensor *tensor)
{
    size_t bytes;
    if (tensor == NULL) {
        return TB__FAIL(TB_E_INVALID, "the tensor is NULL");
    }
    TB__TRY(tb_tensor_bytes(tensor, &bytes));
    if (tensor->device != TB_CPU) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "a tensor on device 0x%x: send a handle of a pool on that device",
                        (unsigned)tensor->device);
    }
    if (tensor->data == NULL && bytes != 0) {
        return TB__FAIL(TB_E_INVALID, "a tensor of %zu bytes without data", bytes);
    }
    job->message.dtype = tensor->dtype;
    job->message.ndim = tensor->ndim;
    memcpy(job->message.shape, tensor->shape, 8 * (size_t)tensor->ndim);
    job->message.value_bytes = bytes;
    if (bytes != 0 && !tb_tensor_is_packed(tensor)) {
        job->strided = tensor;
    } else {
        job->data = tensor->data;
    }
    return TB_OK;
}

static tb_status describe_parts(struct job *job, const tb_part *parts, size_t count)
{
    uint64_t bytes = 0;
    if (parts == NULL && count != 0) {
        return TB__FAIL(TB_E_INVALID, "%zu parts without their array", count);
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].data == NULL && parts[i].bytes != 0) {
            return TB__FAIL(TB_E_INVALID, "part %zu: %zu bytes without data", i, parts[i].bytes);
        }
        if (!tb__add(bytes, parts[i].bytes, &bytes)) {
            return TB__FAIL(TB_E_LIMIT, "%zu parts of more than 2^64 bytes", count);
        }
    }
    job->message.kind = TB_VALUE_BYTES;
    job->message.value_bytes = bytes;
    job->parts = bytes != 0 ? parts : NULL;
    job->part_count = count;
    return TB_OK;
}

static tb_status describe(struct job *job, const tb_value *value)
{
    job->message.kind = value->kind;
    switch (value->kind) {
    case TB_VALUE_NONE:
        return TB_OK;
    case TB_VALUE_BYTES:
        if (value->data == NULL && value->bytes != 0) {
            return TB__FAIL(TB_E_INVALID, "%zu bytes without data", value->bytes);
        }
        job->data = value->data;
        job->message.value_bytes = value->bytes;
        return TB_OK;
    case TB_VALUE_PARTS:
        return describe_parts(job, value->data, value->bytes);
    case TB_VALUE_TENSOR:
        return describe_tensor(job, value->tensor);
    case TB_VALUE_HANDLE:
        if (value->handle == NULL || value->handle->generation == 0 ||
            value->handle->generation % 2 != 0 || value->handle->slot >= TB_MAX_SLOTS ||
            value->handle->flags != 0) {
            return TB__FAIL(TB_E_INVALID, "these bytes are no handle of a frame");
        }
        job->message.handle = *value->handle;
        return TB_OK;
    default:
        return TB__FAIL(TB_E_INVALID, "value of unknown kind %d", (int)value->kind);
    }
}

static tb_status add_metadata(struct job *job, const tb_metadata *metadata)
{
    size_t bytes = tb__metadata_encoded_bytes(metadata);
    if (bytes == 0) {
        return TB_OK;
    }
    job->metadata = malloc(bytes);
    if (job->metadata == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for %zu bytes of metadata", bytes);
    }
    tb__metadata_encode(metadata, job->metadata);
    job->message.metadata_bytes = (uint32_t)bytes;
    return TB_OK;
}

static tb_status find_output(tb_node *node, const char *name, struct tb__output **out)
{
    char list[400] = "";
    for (size_t i = 0, used = 0; i < node->config.output_count; i++) {
        const char *candidate = node->outputs[i].config->name;
        if (name != NULL && strcmp(candidate, name) == 0) {
            *out = &node->outputs[i];
            return TB_OK;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s`%s`", i > 0 ? ", " : "",
                                 candidate);
        used = used < sizeof list ? used : sizeof list - 1;
    }
    return TB__FAIL(TB_E_NOT_FOUND, "node `%s` has no output `%.80s`; it has: %s",
                    node->config.node, name != NULL ? name : "(null)",
                    list[0] != '\0' ? list : "none");
}

tb_status tb_node_send(tb_node *node, const char *output, tb_value value,
                       const tb_metadata *metadata, int64_t timeout_ns)
{
    TB__TRY(tb__node_check(node));
    struct job job = {.node = node, .deadline_ns = tb__deadline_ns(timeout_ns)};
    TB__TRY(find_output(node, output, &job.output));
    TB__TRY(describe(&job, &value));
    if (job.message.value_bytes > TB__CARRIER_MAX_BYTES) {
        return TB__FAIL(TB_E_LIMIT,
                        "output `%s`: a value of %llu bytes: at most %llu are possible; send a "
                        "handle of a pool instead",
                        output, (unsigned long long)job.message.value_bytes,
                        (unsigned long long)TB__CARRIER_MAX_BYTES);
    }
    tb_status status = add_metadata(&job, metadata);
    if (status == TB_OK) {
        status = run(&job);
    }
    tb__hold_unref(job.carrier);
    tb__hold_unref(job.handle);
    free(job.packed);
    free(job.metadata);
    return status;
}

tb_status tb_node_close_output(tb_node *node, const char *output)
{
    TB__TRY(tb__node_check(node));
    struct tb__output *found;
    TB__TRY(find_output(node, output, &found));
    tb__output_close(found);
    return TB_OK;
}
