/* Blocks of at least 16 KiB, handed out from the front. */
#include "flow/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

#define BLOCK_BYTES 16384

struct tb__arena_block {
    struct tb__arena_block *next;
    size_t size;
    size_t used;
    _Alignas(max_align_t) unsigned char bytes[];
};

struct tb__flow_arena *tb__arena_create(void)
{
    return calloc(1, sizeof(struct tb__flow_arena));
}

void tb__arena_destroy(struct tb__flow_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    while (arena->blocks != NULL) {
        struct tb__arena_block *block = arena->blocks;
        arena->blocks = block->next;
        free(block);
    }
    free(arena);
}

static struct tb__arena_block *new_block(struct tb__flow_arena *arena, size_t bytes)
{
    size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    uint64_t total;
    struct tb__arena_block *block = NULL;
    if (tb__add(sizeof *block, size, &total) && total <= SIZE_MAX) {
        block = calloc(1, (size_t)total);
    }
    if (block == NULL) {
        arena->failed = 1;
        return NULL;
    }
    block->size = size;
    block->next = arena->blocks;
    arena->blocks = block;
    return block;
}

void *tb__arena_alloc(struct tb__flow_arena *arena, size_t bytes)
{
    uint64_t rounded;
    if (!tb__round_up(bytes > 0 ? bytes : 1, _Alignof(max_align_t), &rounded)) {
        arena->failed = 1;
        return NULL;
    }
    struct tb__arena_block *block = arena->blocks;
    if (block == NULL || rounded > block->size - block->used) {
        block = new_block(arena, (size_t)rounded);
        if (block == NULL) {
            return NULL;
        }
    }
    void *out = block->bytes + block->used;
    block->used += (size_t)rounded;
    return out;
}

void *tb__arena_array(struct tb__flow_arena *arena, size_t count, size_t bytes_each)
{
    uint64_t total;
    if (!tb__mul(count, bytes_each, &total) || total > SIZE_MAX) {
        arena->failed = 1;
        return NULL;
    }
    return tb__arena_alloc(arena, (size_t)total);
}

char *tb__arena_copy(struct tb__flow_arena *arena, const char *text, size_t length)
{
    char *out = length < SIZE_MAX ? tb__arena_alloc(arena, length + 1) : NULL;
    if (out != NULL && length > 0) {
        memcpy(out, text, length);
    }
    return out;
}

char *tb__arena_format(struct tb__flow_arena *arena, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *out = length >= 0 ? tb__arena_alloc(arena, (size_t)length + 1) : NULL;
    if (out != NULL) {
        vsnprintf(out, (size_t)length + 1, format, again);
    } else {
        arena->failed = 1;
    }
    va_end(again);
    va_end(arguments);
    return out;
}
