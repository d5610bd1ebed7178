/* Rows of what a hand-over at camera rate costs both processes. */
#include "bench/rows.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/copy.h"
#include "bench/processes.h"
#include "bench/ways.h"

#define SLOTS 4
#define FRAME_BYTES 6220800
#define FRAME_STRIDE 6221824
#define PERIOD_NS INT64_C(33333333)

_Static_assert(FRAME_STRIDE % 4096 == 0 && FRAME_STRIDE >= FRAME_BYTES, "slots are whole pages");

static const struct tb__bench_text filled_text = {
    .does =
        "A producer fills a 1080p frame (6,220,800 bytes) 30 times a second and publishes it; a "
        "consumer on the other core sleeps in tb_reader_next(), sums the frame and releases it. "
        "Alternates with the same two programs without loan, publish, acquire and release: the "
        "producer fills the same ring at the same rate, the consumer sums as many frames at once.",
    .interval =
        "User and system time of all threads of both processes, per wall time, minus that of the "
        "programs without hand-over.",
    .floor = "One wake-up per frame: about 10 us of both processes, 0.03 % of a core.",
};
static const struct tb__bench_text untouched_text = {
    .does = "As cpu/1080p30, with frames that neither side touches.",
    .interval =
        "User and system time of all threads of both processes, per wall time, minus that of the "
        "programs without hand-over.",
    .floor = "One wake-up per frame: about 10 us of both processes, 0.03 % of a core.",
};
static const struct tb__bench_row rows[] = {
    {"cpu/1080p30", "%", &filled_text},
    {"cpu/1080p30/untouched", "%", &untouched_text},
};

struct cpu_shm {
    double used_ns[2]; /* per side, of the last block */
    double wall_ns;
    uint64_t sum;
};

struct cpu_job {
    const char *name; /* endpoint; NULL: without hand-over */
    int touched;
    struct cpu_shm *shm;
    uint8_t *ring; /* without hand-over: what is filled and summed */
    struct tb__side producer;
    struct tb__side consumer;
};

static double process_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void sleep_until(int64_t time_ns)
{
    struct timespec time = tb__timespec(time_ns);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) {
    }
}

static tb_status produce(const struct cpu_job *job, tb_pool *pool, const void *source,
                         uint32_t frames)
{
    int64_t next = tb__now_ns();
    for (uint32_t i = 0; i < frames; i++) {
        tb_loan *loan = NULL;
        void *slot = job->ring + i % SLOTS * (size_t)FRAME_STRIDE;
        next += PERIOD_NS;
        sleep_until(next);
        if (pool != NULL) {
            TB__TRY(tb_pool_loan(pool, TB_SECONDS(1), &loan));
            slot = tb_loan_tensor(loan)->data;
        }
        if (job->touched) {
            tb__copy_store(slot, source, FRAME_BYTES, SLOTS * FRAME_BYTES);
        }
        if (pool != NULL) {
            TB__TRY(tb_loan_publish(loan, NULL));
        }
    }
    return TB_OK;
}

static uint64_t sum_words(const void *data)
{
    const uint64_t *words = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < FRAME_BYTES / 8; i++) {
        sum += words[i];
    }
    return sum;
}

static tb_status consume(const struct cpu_job *job, tb_reader *reader, uint32_t frames)
{
    for (uint32_t i = 0; i < frames; i++) {
        tb_frame *frame = NULL;
        const void *slot = job->ring + i % SLOTS * (size_t)FRAME_STRIDE;
        if (reader != NULL) {
            tb_status status = tb_reader_next(reader, TB_SECONDS(5), &frame);
            if (status != TB_OK) {
                return status == TB_AGAIN ? TB__FAIL(TB_AGAIN, "no frame came") : status;
            }
            slot = tb_frame_tensor(frame)->data;
        }
        if (job->touched) {
            job->shm->sum += sum_words(slot);
        }
        tb_frame_release(frame);
    }
    return TB_OK;
}

static tb_status producer_main(struct tb__side *side, void *argument)
{
    struct cpu_job *job = argument;
    static uint8_t source[FRAME_BYTES];
    tb_bus *bus = NULL;
    tb_pool *pool = NULL;
    uint64_t frames;
    memset(source, 3, sizeof source);
    if (job->name != NULL) {
        TB__TRY(tb__way_register(job->name, TB_CPU, FRAME_BYTES, SLOTS, &bus, &pool));
    }
    tb__side_reply(side, 1);
    while ((frames = tb__side_wait(side)) != TB__SIDE_STOP) {
        double used = process_ns();
        int64_t start = tb__now_ns();
        TB__TRY(produce(job, pool, source, (uint32_t)frames));
        job->shm->used_ns[0] = process_ns() - used;
        job->shm->wall_ns = (double)(tb__now_ns() - start);
        tb__side_reply(side, 1);
    }
    tb_pool_close(pool);
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status consumer_main(struct tb__side *side, void *argument)
{
    struct cpu_job *job = argument;
    tb_bus *bus = NULL;
    tb_reader *reader = NULL;
    uint64_t frames;
    if (job->name != NULL) {
        TB__TRY(tb__way_attach(job->name, 0, &bus, &reader));
    }
    tb__side_reply(side, 1);
    while ((frames = tb__side_wait(side)) != TB__SIDE_STOP) {
        double used = process_ns();
        TB__TRY(consume(job, reader, (uint32_t)frames));
        job->shm->used_ns[1] = process_ns() - used;
        tb__side_reply(side, 1);
    }
    tb_reader_close(reader);
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status job_start(struct cpu_job *job, int first_cpu, int second_cpu)
{
    job->shm = tb__shared_map(sizeof *job->shm);
    job->ring = tb__shared_map((size_t)FRAME_STRIDE * SLOTS);
    if (job->shm == NULL || job->ring == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no shared memory for frames");
    }
    TB__TRY(tb__side_start(&job->producer, "producer", first_cpu, producer_main, job));
    TB__TRY(tb__side_answer(&job->producer, NULL));
    TB__TRY(tb__side_start(&job->consumer, "consumer", second_cpu, consumer_main, job));
    return tb__side_answer(&job->consumer, NULL);
}

static tb_status job_block(struct cpu_job *job, uint32_t frames, double *percent)
{
    TB__TRY(tb__side_command(&job->consumer, frames));
    TB__TRY(tb__side_command(&job->producer, frames));
    TB__TRY(tb__side_answer(&job->producer, NULL));
    TB__TRY(tb__side_answer(&job->consumer, NULL));
    *percent = 100.0 * (job->shm->used_ns[0] + job->shm->used_ns[1]) / job->shm->wall_ns;
    return TB_OK;
}

static void job_fini(struct cpu_job *job)
{
    tb__side_stop(&job->consumer);
    tb__side_stop(&job->producer);
    tb__shared_unmap(job->shm, sizeof *job->shm);
    tb__shared_unmap(job->ring, (size_t)FRAME_STRIDE * SLOTS);
}

static tb_status run_row(struct tb__bench *bench, int touched)
{
    struct cpu_job jobs[2] = {{.name = NULL, .touched = touched},
                              {.name = "camera", .touched = touched}};
    double percent[2][TB__BENCH_MAX_BLOCKS], extra[TB__BENCH_MAX_BLOCKS];
    int first, second, blocks = tb__bench_blocks(bench, 5);
    uint32_t frames = tb__bench_quick(bench) ? 15 : 45;
    tb_status status = tb__two_cpus(&first, &second);
    for (int i = 0; i < 2 && status == TB_OK; i++) {
        status = job_start(&jobs[i], first, second);
    }
    for (int block = 0; block < blocks && status == TB_OK; block++) {
        for (int i = 0; i < 2 && status == TB_OK; i++) {
            status = job_block(&jobs[i], frames, &percent[i][block]);
        }
        if (status == TB_OK) {
            extra[block] = percent[1][block] - percent[0][block];
        }
    }
    if (status == TB_OK) {
        struct tb__figure figure, with, without;
        tb__figure_of(extra, blocks, &figure);
        tb__figure_of(percent[1], blocks, &with);
        tb__figure_of(percent[0], blocks, &without);
        tb__bench_report(bench, rows[!touched].name, &figure, NAN,
                         "of a core; with hand-over %.3f %%, without %.3f %%", with.value,
                         without.value);
    }
    job_fini(&jobs[0]);
    job_fini(&jobs[1]);
    return status;
}

static tb_status cpu_run(struct tb__bench *bench)
{
    for (int touched = 1; touched >= 0; touched--) {
        if (tb__bench_wants(bench, rows[!touched].name)) {
            TB__TRY(run_row(bench, touched));
        }
    }
    return TB_OK;
}

const struct tb__bench_group tb__group_cpu = {rows, sizeof rows / sizeof rows[0], cpu_run};
