/* The kernels for Python, by addresses of tensors, and whether this CPU has what they need. The lock of the interpreter is not held while they compute. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

static int take(const char *name, PyObject *const *given, Py_ssize_t count, int64_t *numbers, Py_ssize_t expected) {
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd numbers, not %zd", name, expected, count);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        numbers[i] = PyLong_AsLongLong(given[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

static PyObject *py_supported(PyObject *module, PyObject *nothing) {
    return PyBool_FromLong(__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
}

static PyObject *py_scratch_floats(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    int64_t n[2];
    if (!take("scratch_floats", given, count, n, 2))
        return NULL;
    return PyLong_FromLongLong(scratch_floats(n[0], n[1]));
}

static PyObject *py_rms_norm(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    int64_t n[5];
    double epsilon = count == 6 ? PyFloat_AsDouble(given[5]) : 0.0;
    if ((epsilon == -1.0 && PyErr_Occurred()) || !take("rms_norm", given, count - 1, n, 5))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    rms_norm((const bf16 *)n[0], (const bf16 *)n[1], (bf16 *)n[2], n[3], n[4], (float)epsilon);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_silu_times(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    int64_t n[4];
    if (!take("silu_times", given, count, n, 4))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    silu_times((const bf16 *)n[0], (bf16 *)n[1], n[2], n[3]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_multiply(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    int64_t n[9];
    if (!take("multiply", given, count, n, 9))
        return NULL;
    Linear linear = {(const bf16 *)n[0], (const bf16 *)n[1], n[2], n[3], n[4]};
    Py_BEGIN_ALLOW_THREADS;
    multiply_rows(&linear, (const bf16 *)n[5], (const bf16 *)n[6], (bf16 *)n[7], n[8]);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_attend(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    int64_t n[14];
    if (!take("attend", given, count, n, 14))
        return NULL;
    Cache cache = {(bf16 *)n[5], (bf16 *)n[6], n[7], n[8], n[9], n[10]};
    Attention attention = {cache, (const bf16 *)n[11], (const bf16 *)n[12], (float *)n[13]};
    Py_BEGIN_ALLOW_THREADS;
    attend((bf16 *)n[0], n[1], (bf16 *)n[2], (const Run *)n[3], n[4], &attention);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_run_layer(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    int64_t n[5];
    double epsilon = count == 6 ? PyFloat_AsDouble(given[5]) : 0.0;
    if ((epsilon == -1.0 && PyErr_Occurred()) || !take("run_layer", given, count - 1, n, 5))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    run_layer((const Layer *)n[0], (bf16 *)n[1], n[2], (const Run *)n[3], n[4], (float)epsilon);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"supported", py_supported, METH_NOARGS, "Whether this CPU has what the kernels need."},
    {"scratch_floats", (PyCFunction)(void (*)(void))py_scratch_floats, METH_FASTCALL,
     "(positions, head_dim): floats that attend works in."},
    {"rms_norm", (PyCFunction)(void (*)(void))py_rms_norm, METH_FASTCALL, "(in, weight, out, rows, size, epsilon)"},
    {"silu_times", (PyCFunction)(void (*)(void))py_silu_times, METH_FASTCALL, "(in, out, rows, size)"},
    {"multiply", (PyCFunction)(void (*)(void))py_multiply, METH_FASTCALL,
     "(matrix, bias, inputs, outputs, span, rows, residual, out, row count)"},
    {"attend", (PyCFunction)(void (*)(void))py_attend, METH_FASTCALL,
     "(rows, stride, out, runs, run count, keys, values, slots, kv heads, group, head_dim, cosines, sines, scratch)"},
    {"run_layer", (PyCFunction)(void (*)(void))py_run_layer, METH_FASTCALL,
     "(layer, hidden, rows, runs, run count, epsilon)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "compiled", "Kernels for AVX512-BF16.", -1, methods};

PyMODINIT_FUNC PyInit_compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddIntMacro(module, BITS) || PyModule_AddIntMacro(module, LAYER_ROWS)))
        Py_CLEAR(module);
    return module;
}
