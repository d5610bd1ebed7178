/* Sending: one encoding of a message for all subscribers of an output.
 *
 * A send first waits for room in all backpressure queues, then, if it must, prepares frames (a
 * carrier for a large value, a hold on a handle's frame) without the output's mutex, then looks
 * again and writes to all rings under it: all backpressure subscribers get the message, or nobody
 * does. Users' threads, several at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/error.h"
#include "node/node.h"
#include "node/room.h"
#include "node/value.h"
#include "wire/message.h"
#include "wire/metadata_wire.h"

/* One call of tb_node_send(). */
struct job {
    tb_node *node;
    struct tb__output *output;
    struct tb__value_source source;
    uint8_t *packed;   /* heap copy of tensor or parts for an inline message */
    uint8_t *metadata; /* heap, encoded; NULL without */
    struct tb__message message;
    int64_t deadline_ns;
    struct tb__hold *carrier; /* CARRIED */
    struct tb__hold *handle;  /* HANDLE with a backpressure subscriber */
};

/* ---- frames ---- */

static void fill_carrier(const struct job *job, const struct tb__carrier *carrier,
                         uint64_t metadata_offset)
{
    if (tb__value_is_scattered(&job->source)) {
        tb__value_gather(&job->source, carrier->data, (size_t)carrier->working_set_bytes);
    } else if (job->message.value_bytes != 0) {
        tb__copy_store(carrier->data, job->source.data, (size_t)job->message.value_bytes,
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
        TB__TRY(tb__room_make(job->node, job->output, 1, job->deadline_ns));
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
        TB__TRY(tb__room_make(job->node, job->output, 0, job->deadline_ns));
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

static int is_prepared(const struct job *job, const struct tb__survey *survey)
{
    return flags_for(&job->message, survey->room_bytes) == job->message.flags &&
           (job->message.kind != TB_VALUE_HANDLE || survey->backpressure == 0 ||
            job->handle != NULL) &&
           (job->message.flags != 0 || !tb__value_is_scattered(&job->source) ||
            job->packed != NULL);
}

static tb_status prepare(struct job *job, const struct tb__survey *survey)
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
    if (flags == 0 && tb__value_is_scattered(&job->source) && job->packed == NULL) {
        job->packed = malloc((size_t)message->value_bytes + 1);
        if (job->packed == NULL) {
            return TB__FAIL(TB_E_NOMEM, "no memory to pack a value");
        }
        tb__value_gather(&job->source, job->packed, (size_t)message->value_bytes);
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
        parts[part_count++] = (struct tb__ring_part){
            layout.value_offset, job->packed != NULL ? job->packed : job->source.data,
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
        struct tb__survey survey;
        tb__output_reap(job->output);
        pthread_mutex_lock(&job->output->mutex);
        tb_status status = tb__room_wait(job->output, job->deadline_ns, &survey);
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
    TB__TRY(tb__value_describe(&value, &job.message, &job.source));
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
