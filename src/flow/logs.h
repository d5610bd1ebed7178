/* What one node prints: kept in files, and cut into lines for the screen. */
#ifndef TB_FLOW_LOGS_H
#define TB_FLOW_LOGS_H

#include <stdint.h>

#include "base/error.h"
#include "base/name.h"

#define TB__LOG_FILES 5
#define TB__LOG_FILE_BYTES (10u << 20)
#define TB__LOG_LINE_MAX 4096 /* longer lines are shown in pieces; the files keep them whole */
#define TB__LOG_TAIL_BYTES 8192

/* Where lines go. `line` gets a whole line without its newline; `progress` the present text of a
 * line that is not finished, or that is being rewritten with carriage returns. */
struct tb__log_sink {
    void (*line)(void *context, uint32_t node, const char *text, size_t length);
    void (*progress)(void *context, uint32_t node, const char *text, size_t length);
    void *context;
};

struct tb__log {
    struct tb__log_sink sink;
    uint32_t node;        /* given to the sink */
    int directory_fd;     /* borrowed */
    int file_fd;          /* -1: none, see `lost_bytes` */
    int at_line_start;    /* of the file */
    uint64_t file_bytes;  /* in the newest file */
    uint64_t file_limit;  /* TB__LOG_FILE_BYTES; smaller in tests */
    uint64_t total_bytes; /* printed so far */
    uint64_t lost_bytes;  /* not kept because writing failed (a full disk) */
    char name[TB__NAME_SIZE];
    char line[TB__LOG_LINE_MAX];
    size_t line_length;
    int rewriting; /* a carriage return came: the next byte starts the line anew */
    char tail[TB__LOG_TAIL_BYTES];
    size_t tail_length;
};

/* Begin log_<name>.txt in a directory. Zero-initialised before; fini also after a failure. */
tb_status tb__log_open(struct tb__log *log, int borrow_directory_fd, const char *name,
                       uint32_t node, const struct tb__log_sink *sink);
void tb__log_fini(struct tb__log *log);

/* Take bytes as they come from the node's pipe. Never fails: what cannot be kept is counted. */
void tb__log_write(struct tb__log *log, const char *bytes, size_t length);

/* The node's process has ended: what is left is a line. */
void tb__log_end(struct tb__log *log);

/* "log_<name>.txt" for index 0, "log_<name>.txt.1" for the file before it, and so on. */
void tb__log_file_name(const char *name, unsigned index, char *out, size_t size);

#endif
