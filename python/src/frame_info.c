/* FrameInfo, PoolStats, ReaderStats: tuples whose items have names. */
#include "frame_info.h"

#include <string.h>

#include "handle.h"

static PyStructSequence_Field info_fields[] = {
    {"handle", "the Handle that names the frame"},
    {"sequence", "number of the write in its pool, from 1"},
    {"generation", "twice the sequence"},
    {"stamp_ns", "when it was published, ns on the owner's CLOCK_MONOTONIC (time.monotonic_ns())"},
    {"missed", "frames between the reader's last one and this that it will not see"},
    {"lane", "how the bytes became readable: direct, dma, staged, mirror, copy"},
    {"copies", "copies of the payload between the producer's memory and this frame"},
    {"producer", "name of the owner's process, \"\" when it has none"},
    {"pool", "name of the pool"},
    {NULL, NULL},
};

static PyStructSequence_Field pool_fields[] = {
    {"frames", "published"},
    {"bytes", "published, payload"},
    {"copies", "frames that write() copied in"},
    {"copied_bytes", "that write() copied in"},
    {"drops", "loans and writes that found no slot in time"},
    {"overwrites", "frames overwritten that at least one reader had not taken"},
    {"waits", "loans and writes that slept"},
    {"wakeups", "readers woken by system call"},
    {"readers", "attached now"},
    {"held", "leases held now"},
    {"slots", "of the pool"},
    {"freed", "whether it was freed"},
    {"slot_bytes", "size of a slot"},
    {"troubles", "that readers told of: memory that they could not map, contexts that broke"},
    {"trouble", "the newest: status, who, and what; None without one"},
    {NULL, NULL},
};

static PyStructSequence_Field reader_fields[] = {
    {"frames", "returned"},
    {"missed", "overwritten before this reader took them"},
    {"stale", "handles that came too late"},
    {"waits", "calls that slept"},
    {"held", "frames held now"},
    {"max_leases", "frames that may be held at once"},
    {"lane", "how bytes become readable"},
    {"incomplete", "frames given back that a GPU had not finished"},
    {NULL, NULL},
};

static PyStructSequence_Desc descriptions[] = {
    {"tensorbus.FrameInfo", "What is known about a frame.", info_fields, 9},
    {"tensorbus.PoolStats", "Counters of a pool since its registration.", pool_fields, 15},
    {"tensorbus.ReaderStats", "Counters of a reader since it attached.", reader_fields, 8},
};

int py_frame_info_add(PyObject *module)
{
    struct py_state *state = py_state_of_module(module);
    static const enum py_slot types[] = {PY_FRAME_INFO_TYPE, PY_POOL_STATS_TYPE,
                                         PY_READER_STATS_TYPE};
    for (int i = 0; i < 3; i++) {
        PyObject *type = (PyObject *)PyStructSequence_NewType(&descriptions[i]);
        if (type == NULL) {
            return -1;
        }
        state->slots[types[i]] = type;
        if (PyModule_AddObjectRef(module, descriptions[i].name + sizeof "tensorbus." - 1, type) !=
            0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *lane_name(tb_lane lane)
{
    static const char *const names[] = {"direct", "dma", "staged", "mirror", "copy"};
    return PyUnicode_FromString(lane >= 0 && lane <= TB_LANE_COPY ? names[lane] : "?");
}

static PyObject *number(uint64_t value)
{
    return PyLong_FromUnsignedLongLong(value);
}

/* Takes the items; one that is NULL has set an exception. */
static PyObject *make(struct py_state *state, enum py_slot type, PyObject **items, int count)
{
    PyObject *made = PyStructSequence_New((PyTypeObject *)state->slots[type]);
    int failed = made == NULL;
    for (int i = 0; i < count; i++) {
        failed |= items[i] == NULL;
        if (made != NULL) {
            PyStructSequence_SetItem(made, i, items[i]);
        } else {
            Py_XDECREF(items[i]);
        }
    }
    if (failed) {
        Py_CLEAR(made);
    }
    return made;
}

PyObject *py_frame_info_new(struct py_state *state, const tb_frame_info *info)
{
    PyObject *items[] = {
        py_handle_new(state, &info->handle),
        number(info->sequence),
        number(info->generation),
        number(info->stamp_ns),
        number(info->missed),
        lane_name(info->lane),
        number(info->copies),
        PyUnicode_FromString(info->producer),
        PyUnicode_FromString(info->pool),
    };
    return make(state, PY_FRAME_INFO_TYPE, items, 9);
}

/* Cut off by the library, perhaps within a character. */
static PyObject *trouble_text(const tb_pool_stats *stats)
{
    if (stats->troubles == 0) {
        return Py_NewRef(Py_None);
    }
    PyObject *text =
        PyUnicode_DecodeUTF8(stats->trouble, (Py_ssize_t)strlen(stats->trouble), "replace");
    PyObject *whole =
        text != NULL ? PyUnicode_FromFormat("%s: %U", tb_status_name(stats->trouble_status), text)
                     : NULL;
    Py_XDECREF(text);
    return whole;
}

PyObject *py_pool_stats_new(struct py_state *state, const tb_pool_stats *stats)
{
    PyObject *items[] = {
        number(stats->frames),       number(stats->bytes),    number(stats->copies),
        number(stats->copied_bytes), number(stats->drops),    number(stats->overwrites),
        number(stats->waits),        number(stats->wakeups),  number(stats->readers),
        number(stats->held),         number(stats->slots),    PyBool_FromLong(stats->freed != 0),
        number(stats->slot_bytes),   number(stats->troubles), trouble_text(stats),
    };
    return make(state, PY_POOL_STATS_TYPE, items, 15);
}

PyObject *py_reader_stats_new(struct py_state *state, const tb_reader_stats *stats)
{
    PyObject *items[] = {
        number(stats->frames),  number(stats->missed),     number(stats->stale),
        number(stats->waits),   number(stats->held),       number(stats->max_leases),
        lane_name(stats->lane), number(stats->incomplete),
    };
    return make(state, PY_READER_STATS_TYPE, items, 8);
}
