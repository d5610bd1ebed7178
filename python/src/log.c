/* Log lines come from any thread, service threads included, and now and then with locks held: they
 * are put into a small queue and handed to `logging` by the next Python thread that passes. */
#include "log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <tensorbus/embed.h>

#define QUEUE_LINES 64

struct line {
    tb_log_level level;
    char topic[24];
    char text[1024];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct line queue[QUEUE_LINES];
static unsigned first, count, lost; /* mutex */
static int ready;                   /* something is queued; read without the mutex */

static int drain_pending(void *unused)
{
    (void)unused;
    py_log_drain();
    return 0;
}

static void take_line(void *context, tb_log_level level, const char *topic, const char *text)
{
    (void)context;
    pthread_mutex_lock(&mutex);
    int was_empty = count == 0;
    if (count == QUEUE_LINES) {
        lost++;
    } else {
        struct line *line = &queue[(first + count++) % QUEUE_LINES];
        line->level = level;
        snprintf(line->topic, sizeof line->topic, "%s", topic);
        snprintf(line->text, sizeof line->text, "%s", text);
    }
    __atomic_store_n(&ready, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mutex);
    if (was_empty) {
        /* The main thread comes by soon; when its list is full, the next call's drain does it. */
        (void)Py_AddPendingCall(drain_pending, NULL);
    }
}

static int next_line(struct line *out)
{
    pthread_mutex_lock(&mutex);
    int found = count > 0 || lost > 0;
    if (count > 0) {
        *out = queue[first];
        first = (first + 1) % QUEUE_LINES;
        count--;
    } else if (lost > 0) {
        *out = (struct line){.level = TB_LOG_WARN, .topic = "log"};
        snprintf(out->text, sizeof out->text, "%u log lines were lost: they came too fast", lost);
        lost = 0;
    }
    __atomic_store_n(&ready, count > 0 || lost > 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mutex);
    return found;
}

/* Returns -1 with an exception set. */
static int hand_over(int level, const char *topic, PyObject *text)
{
    PyObject *logging = PyImport_ImportModule("logging");
    PyObject *name = PyUnicode_FromFormat("tensorbus.%s", topic);
    PyObject *logger = logging != NULL && name != NULL
                           ? PyObject_CallMethod(logging, "getLogger", "O", name)
                           : NULL;
    PyObject *done =
        logger != NULL ? PyObject_CallMethod(logger, "log", "isO", level, "%s", text) : NULL;
    Py_XDECREF(logging);
    Py_XDECREF(name);
    Py_XDECREF(logger);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

void py_log(int level, const char *topic, PyObject *text)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (text == NULL || hand_over(level, topic, text) != 0) {
        PyErr_WriteUnraisable(NULL); /* a handler of the user's that raises */
    }
    PyErr_Restore(type, value, trace);
}

void py_log_drain(void)
{
    static const int levels[] = {40, 30, 20, 10};
    struct line line;
    while (__atomic_load_n(&ready, __ATOMIC_RELAXED) && next_line(&line)) {
        PyObject *text = PyUnicode_DecodeUTF8(line.text, (Py_ssize_t)strlen(line.text), "replace");
        py_log(levels[line.level], line.topic, text);
        Py_XDECREF(text);
    }
}

/* A thread that logs while another forks may hold the mutex: the child starts anew. */
static void in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    first = count = lost = 0;
    ready = 0;
}

static PyObject *log_to_stderr(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    py_log_drain();
    tb_log_set_sink(NULL, NULL);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_log_to_stderr", log_to_stderr, METH_NOARGS,
     "Write log lines to standard error from now on: the interpreter is about to end."},
    {NULL, NULL, 0, NULL},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void install(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

int py_log_add(PyObject *module)
{
    pthread_once(&once, install);
    tb_log_set_sink(take_line, NULL);
    return PyModule_AddFunctions(module, functions);
}
