/* What a tensorbus.Pool tells of itself while it is used: counters, and who reads it. */
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "frame_info.h"
#include "pool.h"

PyObject *py_pool_stats(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_pool *pool = (struct py_pool *)self;
    if (pool->pool != NULL) {
        tb_pool_stats stats = {.size = sizeof stats};
        if (py_bus_check(pool->bus) != 0) {
            return NULL;
        }
        tb_status status = tb_pool_get_stats(pool->pool, &stats);
        return status == TB_OK ? py_pool_stats_new(pool->bus->state, &stats)
                               : py_raise(pool->bus->state, status);
    }
    return py_pool_stats_new(pool->bus->state, &pool->stats);
}

static PyObject *list_of(char (*names)[65], uint32_t count)
{
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *name = PyUnicode_DecodeUTF8(names[i], (Py_ssize_t)strlen(names[i]), "replace");
        if (name == NULL || PyList_SetItem(list, i, name) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *py_pool_readers(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_pool *pool = (struct py_pool *)self;
    char(*names)[65] = NULL;
    uint32_t room = 0;
    uint32_t count = 0;
    tb_status status = TB_OK;
    if (py_bus_check(pool->bus) != 0) {
        return NULL;
    }
    if (pool->pool == NULL || pool->freed) {
        return PyList_New(0);
    }
    /* More may come between the two looks. */
    while ((status = tb_pool_get_readers(pool->pool, names, room, &count)) == TB_OK &&
           count > room) {
        room = count + 8;
        free(names);
        names = calloc(room, sizeof *names);
        if (names == NULL) {
            return PyErr_NoMemory();
        }
    }
    PyObject *list = status == TB_OK ? list_of(names, count) : py_raise(pool->bus->state, status);
    free(names);
    return list;
}
