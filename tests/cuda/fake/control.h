/* What a test asks of the fake libcuda. Found with dlsym() in the library that is loaded: where
 * that is a real driver, control() is NULL and tests that need the fake skip. */
#ifndef TB_TESTS_CUDA_FAKE_CONTROL_H
#define TB_TESTS_CUDA_FAKE_CONTROL_H

#include <stddef.h>
#include <stdint.h>

struct fake_leaks {
    int allocations; /* of device, pool, managed and page-locked memory */
    int registrations;
    int blocks;       /* physical memory of the virtual-memory calls, created or imported */
    int reservations; /* address ranges */
    int opened;       /* IPC memory */
    int externals;
    int streams;
    int events;
    int contexts;  /* besides the primary ones */
    int primaries; /* retained primary contexts: one a device is right */
    size_t device_bytes;
};

struct fake_control {
    /* Rules as in FAKE_CUDA_FAIL, in place of those before; NULL: none. Counting starts anew. */
    void (*fail)(const char *rules);
    /* Whether a rule has acted since. */
    int (*has_failed)(void);
    /* Calls so far; of one name, or of all (NULL). */
    unsigned long (*calls)(const char *name);
    void (*leaks)(struct fake_leaks *out);
    /* Where the bytes at a device address are, for a test that plays a kernel; NULL: nowhere. */
    void *(*bytes)(uint64_t address, size_t bytes);
    /* The last advice about managed memory, and about where: of a device (1, its number) or the
     * CPU. */
    void (*advice)(unsigned *advice, unsigned *type, int *id);
    /* What is there now is the test's, and no leak; called again: it is not any more. */
    void (*own)(void);
    /* Break the contexts of a device, as a kernel's illegal access would; 0: whole again. */
    void (*break_device)(int device, int code);
    /* Take the primary context away, as cudaDeviceReset() of another library does. */
    void (*reset_device)(int device);
};

#endif
