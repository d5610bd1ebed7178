/* Memory of one flow: many small pieces that are freed together. One thread at a time.
 *
 * Running out of memory is remembered in `failed`: a step may go on with what it has and the caller
 * of the whole looks once, at the end. */
#ifndef TB_FLOW_ARENA_H
#define TB_FLOW_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct tb__flow_arena {
    struct tb__arena_block *blocks; /* newest first */
    int failed;                     /* 1: an allocation has failed */
    size_t expanded_bytes;          /* text that variables have grown to, see TB__FLOW_TEXT_MAX */
};

struct tb__flow_arena *tb__arena_create(void);
void tb__arena_destroy(struct tb__flow_arena *arena);

/* Zeroed, aligned for any object; NULL when memory is short (and `failed` is set). */
void *tb__arena_alloc(struct tb__flow_arena *arena, size_t bytes);
void *tb__arena_array(struct tb__flow_arena *arena, size_t count, size_t bytes_each);

/* A terminated copy of `length` bytes. */
char *tb__arena_copy(struct tb__flow_arena *arena, const char *text, size_t length);
char *tb__arena_format(struct tb__flow_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
