/* Reading the logs of a run back, for `tensorbus logs`. */
#ifndef TB_FLOW_LOGS_READ_H
#define TB_FLOW_LOGS_READ_H

#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

struct tb__logs_read_options {
    const char *directory; /* of one run */
    const char *node;      /* NULL: all */
    uint64_t lines;        /* the last so many of each node; UINT64_MAX: all that is kept */
    int root_fd;           /* runtime directory, for `flow` */
    const char *flow;      /* follow the files while this flow runs; NULL: do not follow */
    int terminal;          /* escape what is no text */
};

/* Print. TB_E_NOT_FOUND: no such directory or node, naming those that exist. */
tb_status tb__logs_print(const struct tb__logs_read_options *options, FILE *out);

/* Directory of the newest ended run with this id or name (NULL: any) in an `out` directory. */
tb_status tb__logs_find(const char *out_directory, const char *which, char *path, size_t size);

#endif
