/* `tensorbus bench local`: measure this machine and the library on it. `bench dora`: see
 * bench_dora.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/worker.h"
#include "cli/bench_dora.h"
#include "cli/cli.h"

static const char help_text[] =
    "usage: tensorbus bench local [options]\n"
    "       tensorbus bench gpu [options]      (one NVIDIA GPU is needed)\n"
    "       tensorbus bench dora [options]     (its own words: tensorbus bench dora --help)\n"
    "\n"
    "Measures, on this machine and in one run, what copying and waking cost at least, and what\n"
    "Tensorbus makes of it. Floors and rows alternate in blocks; figures are medians over blocks.\n"
    "Takes under five minutes. Spinning rows need two free cores: leave the machine alone\n"
    "meanwhile.\n"
    "\n"
    "options:\n"
    "  --quick            fewer samples (about a minute)\n"
    "  --row PATTERN      only rows whose name contains PATTERN\n"
    "  --list             names of all rows\n"
    "  --explain ROW      what a row does, what its interval spans, what its floor is\n"
    "  --check            exit 1 when a goal is not met or its row was skipped\n"
    "  --skipped          list all rows also where none can be measured, as without a GPU\n"
    "  --json             one JSON object instead of the table; words go to standard error\n"
    "  --example FLOW     flow of the pool example (default: examples/pool/cpu2cpu.yml, looked\n"
    "                     for here and up to two folders above)\n"
    "  -h, --help         this text\n"
    "\n"
    "exit codes: 0 ok, 1 a goal was not met (--check), 2 usage\n"
    "\n"
    "examples:\n"
    "  tensorbus bench local --quick\n"
    "  tensorbus bench local --row handover --json\n"
    "  tensorbus bench local --explain write/cold/6.2MB\n";

/* What was asked for besides measuring. */
struct request {
    struct tb__bench_options options;
    const char *explain;
    int list;
    uint64_t worker_frames; /* hidden: run the counted loop, for strace */
};

static int parse_worker(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || value == 0 || value > 1000000000) {
        return tb__cli_usage("bench", "`%s` is not a number of frames", text);
    }
    *out = value;
    return TB__EXIT_OK;
}

static int parse_option(int argc, char **argv, int *index, struct request *out)
{
    const char *word = argv[*index];
    static const char *const with_value[] = {"--row", "--explain", "--example", "--worker"};
    const char *value = NULL;
    for (size_t i = 0; i < sizeof with_value / sizeof with_value[0]; i++) {
        if (strcmp(word, with_value[i]) == 0) {
            if (++*index >= argc) {
                return tb__cli_usage("bench", "%s needs a value", word);
            }
            value = argv[*index];
        }
    }
    if (strcmp(word, "--quick") == 0) {
        out->options.quick = 1;
    } else if (strcmp(word, "--json") == 0) {
        out->options.json = 1;
    } else if (strcmp(word, "--check") == 0) {
        out->options.check = 1;
    } else if (strcmp(word, "--skipped") == 0) {
        out->options.skipped = 1;
    } else if (strcmp(word, "--list") == 0) {
        out->list = 1;
    } else if (strcmp(word, "--row") == 0) {
        out->options.pattern = value;
    } else if (strcmp(word, "--explain") == 0) {
        out->explain = value;
    } else if (strcmp(word, "--example") == 0) {
        out->options.example = value;
    } else if (strcmp(word, "--worker") == 0) {
        return parse_worker(value, &out->worker_frames);
    } else {
        return tb__cli_unknown_option("bench", word, help_text);
    }
    return TB__EXIT_OK;
}

static int run_request(const struct request *request)
{
    if (request->worker_frames > 0) {
        return tb__worker_main(request->worker_frames);
    }
    if (request->list) {
        tb__bench_list(stdout, request->options.suite);
        return TB__EXIT_OK;
    }
    if (request->explain != NULL) {
        if (!tb__bench_explain(stdout, request->options.suite, request->explain)) {
            return tb__cli_usage("bench", "no row `%s`: --list names them", request->explain);
        }
        return TB__EXIT_OK;
    }
    int result = tb__bench_run(&request->options);
    if (result == 2) {
        return tb__cli_usage("bench", "no row contains `%s`: --list names them",
                             request->options.pattern);
    }
    return result == 0 ? TB__EXIT_OK : TB__EXIT_FAILED;
}

int tb__verb_bench(int argc, char **argv)
{
    struct request request = {.list = 0};
    if (argc >= 2 && strcmp(argv[1], "dora") == 0) {
        return tb__bench_dora(argc - 2, argv + 2);
    }
    if (tb__cli_help(argc, argv, help_text)) {
        return TB__EXIT_OK;
    }
    const struct tb__bench_suite *const suites[] = {&tb__suite_local, &tb__suite_gpu};
    for (size_t i = 0; argc >= 2 && i < sizeof suites / sizeof suites[0]; i++) {
        if (strcmp(argv[1], suites[i]->name) == 0) {
            request.options.suite = suites[i];
        }
    }
    if (request.options.suite == NULL) {
        return tb__cli_usage("bench", "what to measure: `tensorbus bench local`, `bench gpu` or "
                                      "`bench dora`");
    }
    for (int i = 2; i < argc; i++) {
        int parsed = parse_option(argc, argv, &i, &request);
        if (parsed != TB__EXIT_OK) {
            return parsed;
        }
    }
    return run_request(&request);
}
