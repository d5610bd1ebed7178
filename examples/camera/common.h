/* What every node of the camera has: a clock, and a way to say what failed. */
#ifndef EXAMPLES_CAMERA_COMMON_H
#define EXAMPLES_CAMERA_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <tensorbus/status.h>

/* CLOCK_MONOTONIC, as the stamps of events and frames. */
static inline int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Tell what a call of Tensorbus could not do, and why. Returns -1. */
static inline int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, tb_last_error_text());
    return -1;
}

#endif
