/* The front of python/tensorbus/bench_dora. */
#ifndef TB_CLI_BENCH_DORA_H
#define TB_CLI_BENCH_DORA_H

/* Run the bench in Python with these words in the place of this process. Returns an exit code when
 * that could not be done. */
int tb__bench_dora(int argc, char **argv);

#endif
