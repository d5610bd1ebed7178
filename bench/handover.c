/* The loops of both sides, and the parent's alternation.
 *
 * For each sample the sender waits for a gap, prepares, stamps and publishes; the receiver takes,
 * stamps and drops. The next sample starts only when the last has been received, so nothing is ever
 * overwritten and sample i is the same frame on both sides. */
#include "bench/handover.h"

#include <string.h>

#include "base/clock.h"
#include "bench/ticks.h"

#define ASLEEP_GAP_NS INT64_C(1050000)
#define BUSY_GAP_NS 1500.0
#define RECEIVE_TIMEOUT TB_SECONDS(10)

static void sleep_ns(int64_t ns)
{
    struct timespec time = tb__timespec(ns);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static tb_status wait_received(struct tb__handover *h, uint32_t index)
{
    int64_t deadline = tb__deadline_ns(RECEIVE_TIMEOUT);
    for (uint64_t i = 1;
         atomic_load_explicit(&h->stamps->received[index], memory_order_acquire) == 0; i++) {
        if (h->asleep) {
            sleep_ns(50000);
        }
        if ((h->asleep || (i & 0xffff) == 0) && tb__left_ns(deadline) == 0) {
            return TB__FAIL(TB_AGAIN, "%s: sample %u was not received", h->way.name, index);
        }
    }
    return TB_OK;
}

/* Uneven gaps, so that the samples do not keep step with a timer of the machine. */
static void gap(const struct tb__handover *h, uint32_t index)
{
    uint32_t mixed = index * 2654435761u;
    if (h->asleep) {
        sleep_ns(ASLEEP_GAP_NS + (int64_t)(mixed >> 16 & 0xffff) * 3);
    } else {
        tb__ticks_spin_ns(BUSY_GAP_NS + (double)(mixed >> 16 & 0x1ff));
    }
}

static tb_status send_block(struct tb__handover *h, uint32_t block, uint32_t samples)
{
    const struct tb__way_type *type = h->way.type;
    while (atomic_load_explicit(&h->way.shm->receiving, memory_order_acquire) != block) {
        sleep_ns(50000);
    }
    for (uint32_t i = 0; i < samples; i++) {
        gap(h, i);
        TB__TRY(type->prepare(&h->way));
        h->stamps->sent[i] = tb__ticks();
        TB__TRY(type->publish(&h->way));
        TB__TRY(wait_received(h, i));
    }
    return TB_OK;
}

static tb_status receive_block(struct tb__handover *h, uint32_t block, uint32_t samples)
{
    const struct tb__way_type *type = h->way.type;
    uint64_t slept = type->slept != NULL ? type->slept(&h->way) : 0;
    for (uint32_t i = 0; i < samples; i++) {
        atomic_store_explicit(&h->stamps->received[i], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&h->way.shm->receiving, block, memory_order_release);
    for (uint32_t i = 0; i < samples; i++) {
        TB__TRY(type->take(&h->way));
        uint64_t now = tb__ticks();
        atomic_store_explicit(&h->stamps->received[i], now, memory_order_release);
        TB__TRY(type->drop(&h->way));
    }
    h->way.shm->slept = type->slept != NULL ? type->slept(&h->way) - slept : 0;
    return TB_OK;
}

/* A command is the block's number and its samples. */
static uint64_t block_command(uint32_t block, uint32_t samples)
{
    return (uint64_t)block << 32 | samples;
}

static tb_status side_loop(struct tb__side *side, struct tb__handover *h,
                           tb_status (*block)(struct tb__handover *, uint32_t, uint32_t))
{
    uint64_t command;
    tb__side_reply(side, 1);
    while ((command = tb__side_wait(side)) != TB__SIDE_STOP) {
        TB__TRY(block(h, (uint32_t)(command >> 32), (uint32_t)command));
        tb__side_reply(side, 1);
    }
    h->way.type->close(&h->way);
    return TB_OK;
}

static tb_status sender_main(struct tb__side *side, void *argument)
{
    struct tb__handover *h = argument;
    TB__TRY(h->way.type->open_sender(&h->way));
    return side_loop(side, h, send_block);
}

static tb_status receiver_main(struct tb__side *side, void *argument)
{
    struct tb__handover *h = argument;
    TB__TRY(h->way.type->open_receiver(&h->way));
    return side_loop(side, h, receive_block);
}

static tb_status start(struct tb__handover *h, const struct tb__handover_plan *plan, int first_cpu,
                       int second_cpu)
{
    TB_ASSERT(plan->samples <= TB__HANDOVER_MAX_SAMPLES);
    TB__TRY(tb__series_init(&h->series, (size_t)plan->samples * (size_t)plan->blocks));
    TB__TRY(tb__way_init(&h->way));
    h->stamps = tb__shared_map(sizeof *h->stamps);
    if (h->stamps == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no shared memory for time stamps");
    }
    TB__TRY(tb__side_start(&h->sender, "sender", first_cpu, sender_main, h));
    TB__TRY(tb__side_answer(&h->sender, NULL));
    TB__TRY(tb__side_start(&h->receiver, "receiver", second_cpu, receiver_main, h));
    return tb__side_answer(&h->receiver, NULL);
}

static tb_status measure_block(struct tb__handover *h, uint32_t block, uint32_t samples)
{
    /* The sender first: it sleeps until the receiver is ready, which may spin on our processor. */
    TB__TRY(tb__side_command(&h->sender, block_command(block, samples)));
    TB__TRY(tb__side_command(&h->receiver, block_command(block, samples)));
    TB__TRY(tb__side_answer(&h->receiver, NULL));
    TB__TRY(tb__side_answer(&h->sender, NULL));
    for (uint32_t i = 0; i < samples; i++) {
        TB__TRY(tb__series_add(&h->series,
                               tb__ticks_to_ns(h->stamps->sent[i], h->stamps->received[i])));
    }
    tb__series_end_block(&h->series);
    h->slept += h->way.shm->slept;
    return TB_OK;
}

/* A way that fails is left out from then on; the others, such as the floor, are still measured. */
tb_status tb__handover_measure(struct tb__handover *handovers, int count,
                               const struct tb__handover_plan *plan)
{
    int first_cpu, second_cpu;
    tb_status status = TB_OK;
    TB__TRY(tb__two_cpus(&first_cpu, &second_cpu));
    for (int i = 0; i < count; i++) {
        handovers[i].status = start(&handovers[i], plan, first_cpu, second_cpu);
        status = status == TB_OK ? handovers[i].status : status;
    }
    for (int block = 1; block <= plan->blocks; block++) {
        for (int i = 0; i < count; i++) {
            if (handovers[i].status == TB_OK) {
                handovers[i].status = measure_block(&handovers[i], (uint32_t)block, plan->samples);
                status = status == TB_OK ? handovers[i].status : status;
            }
        }
    }
    for (int i = 0; i < count; i++) {
        /* The receiver first: a sender that says goodbye is not what is measured. */
        tb__side_stop(&handovers[i].receiver);
        tb__side_stop(&handovers[i].sender);
    }
    return status;
}

void tb__handover_fini(struct tb__handover *handover)
{
    tb__series_fini(&handover->series);
    tb__way_fini(&handover->way);
    tb__shared_unmap(handover->stamps, sizeof *handover->stamps);
    handover->stamps = NULL;
}
