/* Beside torch.multiprocessing: a Python script measures both, because both are used from Python.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "bench/gpu.h"
#include "bench/rows.h"

static const struct tb__bench_text text = {
    "two Python processes: one hands a CUDA tensor of 64 MiB over for each frame, through a queue "
    "of torch.multiprocessing, or as a frame of a pool; the other takes it and reads one element",
    "from just before the hand-over to just after the element was read",
    "torch.multiprocessing, in the same run and the same interpreter: the fastest of its Queue, "
    "its "
    "SimpleQueue, and that with tensors that are used again",
};
static const struct tb__bench_row rows[] = {{"gpu/torch/p50", "us", &text}};

/* A line of the script's, such as "torch_simple_queue_us 655.0". */
static void look_at_theirs(const char *line, double *theirs, char fastest[32])
{
    char way[32];
    double us;
    if (sscanf(line, "%31s %lf", way, &us) == 2 && strncmp(way, "torch", 5) == 0 &&
        !(us >= *theirs)) {
        *theirs = us;
        memcpy(fastest, way, sizeof way);
    }
}

static tb_status torch_run(struct tb__bench *bench)
{
    const char *script = getenv("TENSORBUS_TORCH_BENCH");
    const char *python = getenv("TENSORBUS_PYTHON");
    char command[1200];
    char line[400] = "";
    double ours = NAN;
    double theirs = NAN;
    char fastest[32] = "";
    snprintf(command, sizeof command, "%s %s 2>/dev/null", python != NULL ? python : "python3",
             script != NULL ? script : "bench/gpu_torch.py");
    FILE *output = popen(command, "re");
    while (output != NULL && fgets(line, sizeof line, output) != NULL) {
        sscanf(line, "ours_us %lf", &ours);
        look_at_theirs(line, &theirs, fastest);
    }
    int status = output != NULL ? pclose(output) : -1;
    if (status != 0 || isnan(ours) || isnan(theirs)) {
        tb__bench_skip(bench, rows[0].name,
                       "`%s` gave no figures: PyTorch and the Python package "
                       "are needed",
                       command);
        return TB_OK;
    }
    struct tb__figure figure;
    tb__figure_of(&ours, 1, &figure);
    tb__bench_report(bench, rows[0].name, &figure, theirs,
                     "medians; the fastest of torch.multiprocessing was %s", fastest);
    return TB_OK;
}

const struct tb__bench_group tb__group_gpu_torch = {rows, 1, torch_run};
