/* Beside torch.multiprocessing: a Python script measures both, because both are used from Python.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "bench/gpu.h"
#include "bench/rows.h"

static const struct tb__bench_text there_text = {
    "as gpu/torch/p50, up to a torch.Tensor that the other process's stream may use; untouched",
    "from just before the hand-over to that tensor",
    "the same",
};
static const struct tb__bench_text read_text = {
    "two Python processes: one hands a CUDA tensor of 64 MiB over for each frame, through a queue "
    "of torch.multiprocessing, or as a frame of a pool; the other takes it, asleep until then, and "
    "reads one element by .item(), which waits for the GPU",
    "from just before the hand-over to just after the element was read",
    "torch.multiprocessing, in the same run and the same interpreter: the fastest of its Queue, "
    "its SimpleQueue, and that with tensors that are used again",
};
static const struct tb__bench_text floor_text = {
    "as gpu/torch/p50, with nothing handed over: a byte through a pipe wakes the other process, "
    "which reads one element of a tensor of its own",
    "from just before the byte is written to just after the element was read",
    "torch.multiprocessing, as gpu/torch/p50: what no hand-over can be below that wakes a process "
    "by a pipe and ends with .item()",
};
enum { READ, THERE, FLOOR, ROWS };
static const struct tb__bench_row rows[ROWS] = {
    [READ] = {"gpu/torch/p50", "us", &read_text},
    [THERE] = {"gpu/torch/there/p50", "us", &there_text},
    [FLOOR] = {"gpu/torch/floor/p50", "us", &floor_text},
};

struct found {
    double ours;   /* FLOOR: that of nothing */
    double theirs; /* the fastest way's */
    char fastest[32];
};

/* A line of the script's, such as "torch_simple_queue_us 655.0" or "torch_read_us 680.0". */
static void look_at(const char *line, struct found found[ROWS])
{
    char way[32];
    double us;
    if (sscanf(line, "%31s %lf", way, &us) != 2) {
        return;
    }
    char *read = strstr(way, "_read_us");
    char *end = read != NULL ? read : strstr(way, "_us");
    struct found *at = &found[read != NULL ? READ : THERE];
    if (end == NULL) {
        return;
    }
    *end = '\0';
    if (strcmp(way, "ours") == 0) {
        at->ours = us;
    } else if (strcmp(way, "floor") == 0 && read != NULL) {
        found[FLOOR].ours = us;
    } else if (strncmp(way, "torch", 5) == 0 && !(us >= at->theirs)) {
        at->theirs = us;
        memcpy(at->fastest, way, sizeof at->fastest);
    }
}

static tb_status torch_run(struct tb__bench *bench)
{
    const char *script = getenv("TENSORBUS_TORCH_BENCH");
    const char *python = getenv("TENSORBUS_PYTHON");
    char command[1200];
    char line[400] = "";
    struct found found[ROWS];
    for (int i = 0; i < ROWS; i++) {
        found[i] = (struct found){.ours = NAN, .theirs = NAN};
    }
    snprintf(command, sizeof command, "%s %s 2>/dev/null", python != NULL ? python : "python3",
             script != NULL ? script : "bench/gpu_torch.py");
    FILE *output = popen(command, "re");
    while (output != NULL && fgets(line, sizeof line, output) != NULL) {
        look_at(line, found);
    }
    int status = output != NULL ? pclose(output) : -1;
    found[FLOOR].theirs = found[READ].theirs;
    memcpy(found[FLOOR].fastest, found[READ].fastest, sizeof found[FLOOR].fastest);
    for (int i = 0; i < ROWS; i++) {
        if (status != 0 || isnan(found[i].ours) || isnan(found[i].theirs)) {
            tb__bench_skip(bench, rows[i].name,
                           "`%s` gave no figures: PyTorch and the Python package "
                           "are needed",
                           command);
            continue;
        }
        struct tb__figure figure;
        tb__figure_of(&found[i].ours, 1, &figure);
        tb__bench_report(bench, rows[i].name, &figure, found[i].theirs,
                         "medians; the fastest of torch.multiprocessing was %s", found[i].fastest);
    }
    return TB_OK;
}

const struct tb__bench_group tb__group_gpu_torch = {rows, ROWS, torch_run};
