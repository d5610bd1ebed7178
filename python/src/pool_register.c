/* Making pools: from keywords to tb_pool_options. */
#include "pool_register.h"

#include <string.h>

#include "adopt.h"
#include "dtype.h"
#include "errors.h"
#include "log.h"
#include "pool.h"
#include "shape.h"
#include "wait.h"

const char py_pool_register_doc[] =
    "register($type, like, *, name=None, slots=4, policy=\"latest\", device=None, max_leases=4,\n"
    "         wait_readers=0, capacity_bytes=None, ackers=(), require_zero_copy=False,\n"
    "         lock_memory=False, prefault=True, doradma_name=None, bus=None, copy_threads=1,\n"
    "         adopt=False, adopt_offset=0)\n"
    "--\n\n"
    "Register a pool for tensors like `like`: an array or tensor (its elements are not written),\n"
    "or tensorbus.Spec(shape, dtype).\n\n"
    "name: unique in this process; None: \"pool-<n>\".\n"
    "slots: 1 to 256. Memory is slots times the tensor's size, checked against what the machine\n"
    "has, allocated and touched now (prefault=False: when first used).\n"
    "policy: \"latest\": any slot that nobody holds is written next, slow readers miss frames;\n"
    "\"every\": only slots that every reader opened with every=True has taken.\n"
    "device: \"cpu\", \"cuda:0\"; None: that of `like`. \"cuda\" is the device that is current.\n"
    "max_leases: frames that one reader may hold at once, at most 64.\n"
    "wait_readers: the first write waits for so many readers that want every frame.\n"
    "capacity_bytes: size of a slot, for frames whose shapes vary; None: all have like's shape.\n"
    "ackers: names of processes that must acknowledge frames: see wait_acked().\n"
    "require_zero_copy: write() is an error. lock_memory: keep the slots in RAM.\n"
    "doradma_name: export as a file for foreign readers of dora's format (one slot).\n"
    "bus: None: the process's default one.\n"
    "copy_threads: threads that share the copy of a write() of 4 MiB or more, the caller among\n"
    "them, at most 32; faster when as many processors are free. The source must be contiguous.\n"
    "adopt: True: the slots are the memory of `like`, a contiguous tensor on a GPU, which is kept\n"
    "until the pool is freed and no reader uses it; between the two only loans may write it. It\n"
    "is one slot, or with slots=n its n items along the first dimension are; a loan is a slot\n"
    "with what it holds. PyTorch's memory is shared as the whole block that it lies in, until\n"
    "every reader has detached. UnsupportedError says what cannot be shared and why.\n"
    "adopt: a descriptor or file: of a memfd that takes seals, of which `like` is an array over a\n"
    "writable shared mapping; the slots are the array as above. Or `like` is a Spec: the slots "
    "are\n"
    "the memfd's memory, mapped here, or that of a DMA-BUF for the GPU `device`.\n"
    "adopt_offset: byte of the descriptor's memory where the first slot begins.\n\n"
    "Raises ExistsError (the name), NoMemoryError (names needed and available), InvalidError,\n"
    "UnsupportedError (device), LimitError. Thread-safe. Waits: about 0.7 s per GiB.";

struct request {
    tb_pool_options options;
    PyObject *ackers; /* a sequence of str, kept while its names are used */
    const char *names[TB_MAX_SLOTS + 1];
    tb_adoption adoption;
    struct py_adopted *adopted; /* until the pool is registered; or NULL */
};

static int take_policy(struct py_state *state, const char *text, tb_pool_options *options)
{
    if (text == NULL || strcmp(text, "latest") == 0) {
        options->policy = TB_LATEST;
    } else if (strcmp(text, "every") == 0) {
        options->policy = TB_EVERY;
    } else {
        py_fail(state, TB_E_INVALID, "no policy `%s`: \"latest\" or \"every\" are possible", text);
        return -1;
    }
    return 0;
}

static int take_ackers(struct py_state *state, PyObject *given, struct request *request)
{
    if (given == NULL || given == Py_None) {
        return 0;
    }
    if (PyUnicode_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "ackers is a sequence of names, not one str");
        return -1;
    }
    request->ackers = PySequence_Tuple(given);
    Py_ssize_t count = request->ackers != NULL ? PyTuple_Size(request->ackers) : -1;
    if (count > TB_MAX_SLOTS) {
        py_fail(state, TB_E_LIMIT, "%zd ackers: at most %d are possible", count, TB_MAX_SLOTS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        request->names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(request->ackers, i), NULL);
        if (request->names[i] == NULL) {
            return -1;
        }
    }
    if (count > 0) {
        request->options.ackers = request->names;
    }
    return count < 0 ? -1 : 0;
}

/* Numbers that C keeps unsigned. 0 in C stands for a default, so a 0 that was given is refused
 * where it makes no sense. */
static int take_count(struct py_state *state, const char *what, PyObject *given, long long least,
                      long long most, uint64_t *out)
{
    if (given == NULL || given == Py_None) {
        return 0;
    }
    long long value = PyLong_AsLongLong(given);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (value < least || value > most) {
        py_fail(state, TB_E_INVALID, "%s is %lld: %lld to %lld are possible", what, value, least,
                most);
        return -1;
    }
    *out = (uint64_t)value;
    return 0;
}

/* With options->device as it was asked for, and slots as given: 0 if not. */
static int take_adopted(struct py_state *state, PyObject *like, PyObject *device,
                        struct request *request)
{
    tb_pool_options *options = &request->options;
    tb_device wanted = options->device;
    if (!py_adopt_is_of(&request->adoption, like)) {
        request->adoption.by = wanted == TB_CPU ? TB_ADOPT_MEMFD : TB_ADOPT_DMABUF;
        options->adopt = &request->adoption;
        return 0;
    }
    if (py_adopt(state, like, options->slots, options, &request->adoption, &request->adopted) !=
        0) {
        return -1;
    }
    if (device == NULL || device == Py_None) {
        return 0;
    }
    if ((wanted == TB_CPU) != (options->device == TB_CPU)) {
        py_fail(state, TB_E_MISMATCH, "adopt: the tensor lies %s, device is \"%S\"",
                wanted == TB_CPU ? "on a GPU" : "in main memory", device);
        return -1;
    }
    options->device = wanted; /* which the library compares */
    return 0;
}

static int parse(struct py_state *state, PyObject *args, PyObject *kwargs, struct request *request,
                 PyObject **out_bus)
{
    static char *names[] = {"like",         "name",
                            "slots",        "policy",
                            "device",       "max_leases",
                            "wait_readers", "capacity_bytes",
                            "ackers",       "require_zero_copy",
                            "lock_memory",  "prefault",
                            "doradma_name", "bus",
                            "copy_threads", "adopt",
                            "adopt_offset", NULL};
    tb_pool_options *options = &request->options;
    PyObject *like, *slots = NULL, *device = NULL, *max_leases = NULL, *wait_readers = NULL;
    PyObject *capacity = NULL, *ackers = NULL, *copy_threads = NULL, *adopt = NULL, *offset = NULL;
    const char *policy = NULL;
    int zero_copy = 0, lock_memory = 0, prefault = 1;
    *out_bus = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$zOsOOOOOpppzOOOO:register", names, &like,
                                     &options->name, &slots, &policy, &device, &max_leases,
                                     &wait_readers, &capacity, &ackers, &zero_copy, &lock_memory,
                                     &prefault, &options->doradma_name, out_bus, &copy_threads,
                                     &adopt, &offset)) {
        return -1;
    }
    tb_tensor tensor = {.device = TB_CPU};
    uint64_t counts[4] = {0, 0, 0, 0};
    if (py_adopt_parse(state, adopt, offset, &request->adoption) != 0 ||
        (!py_adopt_is_of(&request->adoption, like) && py_like(state, like, &tensor) != 0) ||
        py_device_from(state, device, &tensor.device) != 0 ||
        take_policy(state, policy, options) != 0 || take_ackers(state, ackers, request) != 0 ||
        take_count(state, "slots", slots, 1, TB_MAX_SLOTS, &counts[0]) != 0 ||
        take_count(state, "max_leases", max_leases, 1, TB_MAX_LEASES, &counts[1]) != 0 ||
        take_count(state, "wait_readers", wait_readers, 0, UINT32_MAX, &counts[2]) != 0 ||
        take_count(state, "copy_threads", copy_threads, 1, TB_MAX_COPY_THREADS, &counts[3]) != 0 ||
        take_count(state, "capacity_bytes", capacity, 1, INT64_MAX, &options->capacity_bytes) !=
            0) {
        return -1;
    }
    options->dtype = tensor.dtype;
    options->ndim = tensor.ndim;
    memcpy(options->shape, tensor.shape, sizeof options->shape);
    options->device = tensor.device;
    options->slots = (uint32_t)counts[0];
    options->max_leases = (uint32_t)counts[1];
    options->wait_readers = (uint32_t)counts[2];
    options->copy_threads = (uint32_t)counts[3];
    options->require_zero_copy = (uint32_t)zero_copy;
    options->lock_memory = (uint32_t)lock_memory;
    options->no_prefault = !prefault;
    return request->adoption.size != 0 ? take_adopted(state, like, device, request) : 0;
}

static PyObject *wrap(PyTypeObject *type, struct py_bus *bus, tb_pool *pool,
                      const tb_pool_options *options, struct py_adopted *adopted)
{
    struct py_pool *self = (struct py_pool *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->bus = (struct py_bus *)Py_NewRef((PyObject *)bus);
    self->pool = pool;
    self->proto =
        (tb_tensor){.dtype = options->dtype, .device = options->device, .ndim = options->ndim};
    memcpy(self->proto.shape, options->shape, sizeof self->proto.shape);
    self->varying = options->capacity_bytes > 0;
    self->is_adopted = options->adopt != NULL;
    self->adopted = adopted;
    self->policy = options->policy == TB_EVERY ? "every" : "latest";
    PyOS_snprintf(self->name, sizeof self->name, "%s", tb_pool_name(pool));
    self->stats.size = sizeof self->stats;
    tb_status status = tb_pool_get_stats(pool, &self->stats);
    if (status != TB_OK) {
        self->pool = NULL; /* the caller's again */
        Py_DECREF((PyObject *)self);
        return py_raise(bus->state, status);
    }
    return (PyObject *)self;
}

static PyObject *make(PyTypeObject *type, struct py_bus *bus, struct request *request)
{
    const tb_pool_options *options = &request->options;
    tb_pool *pool = NULL;
    struct py_wait wait;
    struct py_adopted *adopted = request->adopted;
    py_wait_begin(&wait, bus);
    tb_status status = tb_pool_register(bus->bus, options, &pool);
    int interrupted = py_wait_end(&wait) != 0;
    if (status == TB_OK) {
        request->adopted = NULL; /* comes back when the pool ends */
    }
    PyObject *self = NULL;
    if (!interrupted && status == TB_OK) {
        self = wrap(type, bus, pool, options, adopted);
    } else if (!interrupted) {
        py_raise(bus->state, status);
    }
    if (self == NULL && status == TB_OK && bus->bus != NULL) {
        tb_pool_close(pool);
    }
    py_log_drain(); /* last: whoever gets the lines may close the bus */
    return self;
}

PyObject *py_pool_register(PyObject *type, PyObject *args, PyObject *kwargs)
{
    struct py_state *state = PyType_GetModuleState((PyTypeObject *)type);
    struct request request = {.options = {.size = sizeof request.options}};
    PyObject *given_bus;
    PyObject *self = NULL;
    if (parse(state, args, kwargs, &request, &given_bus) == 0) {
        struct py_bus *bus = py_bus_from(state, given_bus);
        if (bus != NULL) {
            self = make((PyTypeObject *)type, bus, &request);
            Py_DECREF((PyObject *)bus);
        }
    }
    Py_XDECREF(request.ackers);
    if (request.adopted != NULL) {
        PyObject *error, *value, *trace;
        PyErr_Fetch(&error, &value, &trace); /* the tensor's deleter may be written in Python */
        py_adopt_let_go(request.adopted);
        PyErr_Restore(error, value, trace);
    }
    return self;
}
