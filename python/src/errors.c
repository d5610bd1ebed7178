/* One exception class per status. */
#include "errors.h"

#include <stdarg.h>
#include <string.h>

/* `base`: the built-in class that the new one derives from beside Error, so that code which knows
 * nothing of Tensorbus catches what it means. */
static const struct {
    tb_status status;
    const char *name;
    PyObject **base;
    const char *doc;
} table[] = {
    {TB_AGAIN, "tensorbus.AgainError", &PyExc_TimeoutError,
     "Nothing new, no free slot or no room within the timeout."},
    {TB_CLOSED, "tensorbus.ClosedError", &PyExc_EOFError,
     "The other side said goodbye, or the object was closed."},
    {TB_E_INVALID, "tensorbus.InvalidError", &PyExc_ValueError, "An argument is wrong."},
    {TB_E_NOMEM, "tensorbus.NoMemoryError", &PyExc_MemoryError,
     "Memory, address space or file-system space is short."},
    {TB_E_SYSTEM, "tensorbus.SystemCallError", &PyExc_OSError, "A system call failed: see .errno."},
    {TB_E_NOT_FOUND, "tensorbus.NotFoundError", &PyExc_LookupError,
     "No such process, pool, output or frame."},
    {TB_E_EXISTS, "tensorbus.ExistsError", &PyExc_FileExistsError,
     "The name is taken by a live process or pool."},
    {TB_E_FREED, "tensorbus.FreedError", &PyExc_RuntimeError, "The pool was freed."},
    {TB_E_STALE, "tensorbus.StaleError", &PyExc_LookupError,
     "The frame was overwritten, or belongs to a former pool."},
    {TB_E_OWNER_DIED, "tensorbus.OwnerDiedError", &PyExc_ConnectionError,
     "The owner's process ended without saying goodbye."},
    {TB_E_DEADLOCK, "tensorbus.DeadlockError", &PyExc_RuntimeError,
     "The caller waits for what only the caller can give back."},
    {TB_E_FORKED, "tensorbus.ForkedError", &PyExc_RuntimeError,
     "The object belongs to the parent process: make one in the child."},
    {TB_E_PROTOCOL, "tensorbus.ProtocolError", &PyExc_ConnectionError,
     "The peer sent what the protocol does not allow."},
    {TB_E_DENIED, "tensorbus.DeniedError", &PyExc_PermissionError,
     "Permissions, user id, or an unsafe directory."},
    {TB_E_LIMIT, "tensorbus.LimitError", &PyExc_RuntimeError,
     "A documented limit or quota is reached."},
    {TB_E_MISMATCH, "tensorbus.MismatchError", &PyExc_ValueError,
     "dtype, shape or size differ from what was registered."},
    {TB_E_UNSUPPORTED, "tensorbus.UnsupportedError", &PyExc_NotImplementedError,
     "Not possible here: device, kernel, dtype."},
    {TB_E_NOT_ACKED, "tensorbus.NotAckedError", &PyExc_TimeoutError,
     "A reader that must acknowledge has not, or is gone."},
    {TB_E_CORRUPT, "tensorbus.CorruptError", &PyExc_RuntimeError,
     "Shared bytes fail their checks."},
    {TB_E_INCOMPLETE, "tensorbus.IncompleteError", &PyExc_RuntimeError,
     "A GPU never finished the frame: its producer died or its stream failed."},
    {TB_E_BUSY, "tensorbus.BusyError", &PyExc_RuntimeError,
     "All leases of this reader are in use: release frames, or open it with more max_leases."},
};
#define TABLE_SIZE (sizeof table / sizeof table[0])
_Static_assert(TABLE_SIZE <= PY_ERROR_COUNT, "room for every class");

static PyObject *make_class(PyObject *module, const char *name, const char *doc, PyObject *bases)
{
    PyObject *made = PyErr_NewExceptionWithDoc(name, doc, bases, NULL);
    if (made != NULL && PyModule_AddObjectRef(module, name + sizeof "tensorbus." - 1, made) != 0) {
        Py_CLEAR(made);
    }
    return made;
}

int py_errors_add(PyObject *module)
{
    struct py_state *state = py_state_of_module(module);
    state->error = make_class(module, "tensorbus.Error",
                              "Base of all failures: .status, .text, .errno, .where.", NULL);
    if (state->error == NULL) {
        return -1;
    }
    for (size_t i = 0; i < TABLE_SIZE; i++) {
        PyObject *bases = PyTuple_Pack(2, state->error, *table[i].base);
        if (bases == NULL) {
            return -1;
        }
        state->errors[i] = make_class(module, table[i].name, table[i].doc, bases);
        Py_DECREF(bases);
        if (state->errors[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

PyObject *py_error_class(const struct py_state *state, tb_status status)
{
    for (size_t i = 0; i < TABLE_SIZE; i++) {
        if (table[i].status == status) {
            return state->errors[i];
        }
    }
    return state->error;
}

int py_error_is(struct py_state *state, tb_status status)
{
    if (!PyErr_ExceptionMatches(py_error_class(state, status))) {
        return 0;
    }
    PyErr_Clear();
    return 1;
}

static int set_attribute(PyObject *error, const char *name, PyObject *take_value)
{
    int result = take_value != NULL ? PyObject_SetAttrString(error, name, take_value) : -1;
    Py_XDECREF(take_value);
    return result;
}

/* Takes the text. */
static void raise_text(struct py_state *state, tb_status status, PyObject *take_text,
                       int errno_value, const char *where)
{
    PyObject *class = py_error_class(state, status);
    PyObject *error =
        take_text != NULL ? PyObject_CallFunctionObjArgs(class, take_text, NULL) : NULL;
    if (error == NULL) {
        Py_XDECREF(take_text);
        return;
    }
    PyObject *number = errno_value != 0 ? PyLong_FromLong(errno_value) : Py_NewRef(Py_None);
    if (set_attribute(error, "text", take_text) == 0 &&
        set_attribute(error, "status", PyLong_FromLong(status)) == 0 &&
        set_attribute(error, "errno", number) == 0 &&
        set_attribute(error, "where", PyUnicode_FromString(where)) == 0) {
        PyErr_SetObject(class, error);
    }
    Py_DECREF(error);
}

PyObject *py_raise(struct py_state *state, tb_status status)
{
    tb_error last;
    tb_last_error(&last);
    if (last.status != status) {
        /* An outcome that is no failure leaves no text: nothing new, say. */
        last = (tb_error){.status = status};
    }
    PyObject *text;
    if (last.text[0] != '\0') {
        text = PyUnicode_DecodeUTF8(last.text, (Py_ssize_t)strlen(last.text), "replace");
    } else if (status == TB_AGAIN) {
        text = PyUnicode_FromString("nothing new within the timeout");
    } else if (status == TB_CLOSED) {
        text = PyUnicode_FromString("the other side said goodbye");
    } else {
        text = PyUnicode_FromString(tb_status_name(status));
    }
    raise_text(state, status, text, last.errno_value, last.where);
    return NULL;
}

PyObject *py_fail(struct py_state *state, tb_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    PyObject *text = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    raise_text(state, status, text, 0, "");
    return NULL;
}
