/* The kernels for Python: an object of one variant, whose methods take addresses and numbers. They release the
   interpreter lock while they compute.

   Only what is in the stable ABI of Python 3.11 is used, so one build serves every later Python too. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "experts.h"
#include "heads.h"

typedef struct {
    PyObject_HEAD
    Kernels kernels;
} Object;

#define KERNELS(object) (&((Object *)(object))->kernels)

/* Converts integers from Python. A value of -1 means an error, as no address and no count is negative. */
static int take(const char *name, PyObject *const *given, Py_ssize_t count, int64_t *numbers, Py_ssize_t expected) {
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, count);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        numbers[i] = PyLong_AsLongLong(given[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

/* The same, where the last arguments are floats: epsilon, and an offset where one is asked for. */
static int take_epsilon(const char *name, PyObject *const *given, Py_ssize_t count, int64_t *numbers,
                        Py_ssize_t expected, float *epsilon, float *offset) {
    Py_ssize_t floats = offset ? 2 : 1;
    if (count != expected + floats) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected + floats, count);
        return 0;
    }
    *epsilon = (float)PyFloat_AsDouble(given[expected]);
    if (offset)
        *offset = (float)PyFloat_AsDouble(given[expected + 1]);
    return !PyErr_Occurred() && take(name, given, expected, numbers, expected);
}

static PyObject *multiply(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[6];
    if (!take("multiply", given, count, n, 6))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_multiply(KERNELS(self), (Type)n[0], (const Linear *)n[1], (const void *)n[2], (const void *)n[3],
                     (void *)n[4], n[5]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *rms_norm(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[6];
    float epsilon, offset;
    if (!take_epsilon("rms_norm", given, count, n, 6, &epsilon, &offset))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_rms_norm(KERNELS(self), (Type)n[0], (const void *)n[1], (const void *)n[2], (void *)n[3], n[4], n[5],
                     epsilon, offset);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *layer_norm(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[7];
    float epsilon;
    if (!take_epsilon("layer_norm", given, count, n, 7, &epsilon, NULL))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_layer_norm(KERNELS(self), (Type)n[0], (const void *)n[1], (const void *)n[2], (const void *)n[3],
                       (void *)n[4], n[5], n[6], epsilon);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *gelu(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[5];
    if (!take("gelu", given, count, n, 5))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_gelu(KERNELS(self), (Type)n[0], (const void *)n[1], (void *)n[2], n[3], n[4]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *silu_times(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[5];
    if (!take("silu_times", given, count, n, 5))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_silu_times(KERNELS(self), (Type)n[0], (const void *)n[1], (void *)n[2], n[3], n[4]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *gelu_times(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[5];
    if (!take("gelu_times", given, count, n, 5))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_gelu_times(KERNELS(self), (Type)n[0], (const void *)n[1], (void *)n[2], n[3], n[4]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *attend(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[7];
    if (!take("attend", given, count, n, 7))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_attend(KERNELS(self), (Type)n[0], (void *)n[1], n[2], (void *)n[3], (const Run *)n[4], n[5],
                   (const Attention *)n[6]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *run_layer(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[8];
    float epsilon;
    if (!take_epsilon("run_layer", given, count, n, 8, &epsilon, NULL))
        return NULL;
    const Adapters adapters = {(const AdapterRows *)n[6], n[7]};
    Py_BEGIN_ALLOW_THREADS;
    kernels_run_layer(KERNELS(self), (Type)n[0], (const Layer *)n[1], &adapters, (void *)n[2], n[3], (const Run *)n[4],
                      n[5], epsilon);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *run_experts(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[6];
    if (!take("run_experts", given, count, n, 6))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_run_experts(KERNELS(self), (Type)n[0], (const Experts *)n[1], (const void *)n[2], (const void *)n[3],
                        (void *)n[4], n[5]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *multiply_heads(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[9];
    if (!take("multiply_heads", given, count, n, 9))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_multiply_heads(KERNELS(self), (Type)n[0], (const Linear *)n[1], n[2], (const void *)n[3], n[4], n[5],
                           (void *)n[6], n[7], n[8]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *lay_out(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[5];
    if (!take("lay_out", given, count, n, 5))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_lay_out(KERNELS(self), (Type)n[0], (const void *)n[1], n[2], n[3], (void *)n[4]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *likelihoods(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[3];
    if (!take("likelihoods", given, count, n, 3))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    kernels_likelihoods(KERNELS(self), (Type)n[0], (Likelihoods *)n[1], n[2]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_make_rope_tables(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    int64_t n[6];
    (void)self;
    if (!take("make_rope_tables", given, count, n, 6))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    make_rope_tables((Type)n[0], (const float *)n[1], n[2], n[3], (void *)n[4], (void *)n[5]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_mask_logits(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    int64_t n[4];
    (void)module;
    if (!take("mask_logits", given, count, n, 4))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    mask_logits((Type)n[0], (void *)n[1], (const uint32_t *)n[2], n[3]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_digest(PyObject *self, PyObject *nothing) {
    uint64_t made;
    (void)nothing;
    Py_BEGIN_ALLOW_THREADS;
    made = digest(KERNELS(self));
    Py_END_ALLOW_THREADS;
    return PyUnicode_FromFormat("%08x%08x", (unsigned)(made >> 32), (unsigned)made);
}

static PyObject *create(PyTypeObject *type, PyObject *given, PyObject *named) {
    const char *variant, *level, *reason;
    int threads;
    static char *names[] = {"variant", "level", "threads", NULL};
    if (!PyArg_ParseTupleAndKeywords(given, named, "ssi", names, &variant, &level, &threads))
        return NULL;
    const Variant *found = find_variant(variant, level, &reason);
    if (!found)
        return PyErr_Format(PyExc_ValueError, "%s", reason);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Object *made = (Object *)allocate(type, 0);
    if (made)
        made->kernels = (Kernels){found, threads < 1 ? 1 : threads};
    return (PyObject *)made;
}

static PyObject *levels(PyObject *module, PyObject *nothing) {
    (void)module, (void)nothing;
    PyObject *made = PyList_New(0);
    for (const char *const *level = find_levels(); made && *level; level++) {
        PyObject *name = PyUnicode_FromString(*level);
        if (!name || PyList_Append(made, name))
            Py_CLEAR(made);
        Py_XDECREF(name);
    }
    return made;
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

static PyMethodDef methods[] = {
    {"multiply", FAST(multiply), "(type, linear, rows, residual, out, row count)"},
    {"rms_norm", FAST(rms_norm), "(type, in, weight, out, rows, size, epsilon, offset)"},
    {"layer_norm", FAST(layer_norm), "(type, in, weight, bias, out, rows, size, epsilon)"},
    {"gelu", FAST(gelu), "(type, in, out, rows, size)"},
    {"silu_times", FAST(silu_times), "(type, in, out, rows, size)"},
    {"gelu_times", FAST(gelu_times), "(type, in, out, rows, size)"},
    {"attend", FAST(attend), "(type, rows, stride, out, runs, run count, attention)"},
    {"run_layer", FAST(run_layer), "(type, layer, hidden, rows, runs, run count, adapters, adapter count, epsilon)"},
    {"run_experts", FAST(run_experts), "(type, experts, rows, residual, out, row count)"},
    {"multiply_heads", FAST(multiply_heads),
     "(type, maps, heads, rows, row stride, head stride, out, out stride, row count)"},
    {"lay_out", FAST(lay_out), "(type, matrix, outputs, inputs, panels)"},
    {"likelihoods", FAST(likelihoods), "(type, rows, row count)"},
    {"make_rope_tables", FAST(py_make_rope_tables), "(type, frequencies, half, positions, cosines, sines)"},
    {"digest", py_digest, METH_NOARGS, "A hash of results: kernels with other digests compute other bits."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "(variant, level, threads): the kernels of kernels.h. Raises ValueError if this CPU lacks them."},
    {Py_tp_methods, methods},
    {Py_tp_new, create},
    {0, NULL},
};

static PyType_Spec kernels_spec = {"compiled.Kernels", sizeof(Object), 0, Py_TPFLAGS_DEFAULT, slots};

static PyMethodDef functions[] = {
    {"levels", levels, METH_NOARGS, "The levels of vector instructions that this CPU has, best first."},
    {"mask_logits", FAST(py_mask_logits), "(type, row, mask, size)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "compiled", "The engine's kernels for CPUs.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_compiled(void) {
    PyObject *type = PyType_FromSpec(&kernels_spec);
    PyObject *module = type ? PyModule_Create(&definition) : NULL;
    if (module && (PyModule_AddObjectRef(module, "Kernels", type) || PyModule_AddIntMacro(module, LAYER_ROWS) ||
                   PyModule_AddIntMacro(module, INTERFACE) || PyModule_AddIntMacro(module, PANEL) ||
                   PyModule_AddIntMacro(module, INPUTS)))
        Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
