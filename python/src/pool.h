/* tensorbus.Pool, and the slots that its loans and their views look at.
 *
 * A tb_pool belongs to its bus: dropping the Pool object ends nothing, since handles of its frames
 * are still on their way and readers have frames to take. free() ends it, and gives the memory back
 * as soon as no call, loan or view uses it. */
#ifndef PY_POOL_H
#define PY_POOL_H

#include "bus.h"

/* One slot that was lent to Python. A slot belongs to one writer at a time, and its writer alone
 * changes `protected`; the others change with the GIL. */
struct py_pool_slot {
    void *data;
    size_t views;  /* exported views of any loan, of former ones too, that may be written through */
    int protected; /* its memory is read-only now */
    int guard;     /* number of its range, -1: none */
};

struct py_pool {
    PyObject_HEAD struct py_bus *bus; /* owned */
    tb_pool *pool;                    /* NULL: closed, after free() */
    tb_tensor proto;                  /* what frames look like; data NULL */
    int varying;
    const char *policy;
    tb_handle last;
    int has_last;
    int freed;                  /* by free() here */
    int streamed;               /* its frames may be published on streams */
    int is_adopted;             /* its slots are the user's own memory */
    struct py_adopted *adopted; /* that of a tensor; the library's, while it is open; or NULL */
    size_t users;               /* calls without the GIL, loans and their views */
    tb_pool_stats stats;        /* as they were at the registration, and once closed at the end */
    struct py_pool_slot slots[TB_MAX_SLOTS];
    struct py_kept *kept; /* sources that a GPU may still copy from */
    int slot_count;       /* atomic: slots are appended with the GIL, looked up without */
    char name[65];
};

int py_pool_add(PyObject *module);

/* Raise what a call on a pool has failed with; misuse after free() is logged as well. `verb` is
 * "release", "read" or "write". Returns NULL. */
PyObject *py_pool_raise(struct py_pool *pool, tb_status status, const char *verb);

/* 0 when a call may go ahead; else -1 with an exception set. */
int py_pool_check(struct py_pool *pool, const char *verb);

/* A call, loan or view begins to use the pool, and ends. With the GIL. */
void py_pool_use(struct py_pool *pool);
void py_pool_unuse(struct py_pool *pool);

/* pool_write.c: method write(). */
extern const char py_pool_write_doc[];
PyObject *py_pool_write(PyObject *self, PyObject *args, PyObject *kwargs);

/* pool_about.c: methods stats() and readers(). */
PyObject *py_pool_stats(PyObject *self, PyObject *unused);
PyObject *py_pool_readers(PyObject *self, PyObject *unused);

/* Remember the newest frame. */
void py_pool_published(struct py_pool *pool, const tb_handle *handle);

/* The slot of a loan; made when it is new. With the GIL. */
struct py_pool_slot *py_pool_slot_of(struct py_pool *pool, const tb_loan *loan);

/* Make a slot writable again after it was borrowed; make it read-only before it is published if
 * something still looks at it. For its writer, with the GIL or without. Returns 0 or errno. */
int py_pool_slot_open(struct py_pool *pool, const tb_loan *loan);
int py_pool_slot_seal(struct py_pool *pool, const tb_loan *loan);

/* Speak for the slots that are read-only. With the GIL. */
void py_pool_guard(struct py_pool *pool);
void py_pool_slot_forget(struct py_pool_slot *slot);

#endif
