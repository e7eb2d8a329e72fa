// The used part of Python's C interface: Python's header, or without it the same declarations.
//
// Pythons without their header are common where nothing is compiled (Debian's `python3`, its
// images). The limited API is stable from 3.11 on ("Stable Application Binary Interface" in
// Python's manual), so these declarations hold for all later versions with a global interpreter
// lock.

#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000  // one build for Python 3.11 and all later ones

#if __has_include(<Python.h>) && !defined(FORETELL_WITHOUT_PYTHON_H)
#include <Python.h>
#else

#include <stddef.h>
#include <stdint.h>

extern "C" {

typedef intptr_t Py_ssize_t;
struct PyTypeObject;
struct PyThreadState;
struct PyObject {
    Py_ssize_t ob_refcnt;
    PyTypeObject* ob_type;
};
struct Py_buffer {
    void* buf;
    PyObject* obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char* format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void* internal;
};
typedef PyObject* (*PyCFunction)(PyObject*, PyObject*);
struct PyMethodDef {
    const char* ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char* ml_doc;
};
struct PyModuleDef_Base {
    PyObject ob_base;
    PyObject* (*m_init)(void);
    Py_ssize_t m_index;
    PyObject* m_copy;
};
struct PyModuleDef {
    PyModuleDef_Base m_base;
    const char *m_name, *m_doc;
    Py_ssize_t m_size;
    PyMethodDef* m_methods;
    void *m_slots, *m_traverse, *m_clear, *m_free;
};

extern PyObject _Py_NoneStruct;
extern PyObject *PyExc_RuntimeError, *PyExc_TypeError, *PyExc_ValueError;

void Py_DecRef(PyObject*);
void Py_IncRef(PyObject*);
PyObject* Py_NewRef(PyObject*);
PyObject* Py_BuildValue(const char*, ...);
PyObject* PyBool_FromLong(long);
void PyBuffer_Release(Py_buffer*);
PyObject* PyDict_New(void);
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyErr_NewExceptionWithDoc(const char*, const char*, PyObject*, PyObject*);
PyObject* PyErr_Occurred(void);
void PyErr_SetString(PyObject*, const char*);
void PyEval_RestoreThread(PyThreadState*);
PyThreadState* PyEval_SaveThread(void);
double PyFloat_AsDouble(PyObject*);
PyObject* PyFloat_FromDouble(double);
int PyList_Append(PyObject*, PyObject*);
PyObject* PyList_New(Py_ssize_t);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLongLong(long long);
int PyModule_AddObjectRef(PyObject*, const char*, PyObject*);
PyObject* PyModule_Create2(PyModuleDef*, int);
int PyObject_GetBuffer(PyObject*, Py_buffer*, int);
int PyObject_IsTrue(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject*);
unsigned long PyType_GetFlags(PyTypeObject*);
PyObject* PyUnicode_FromString(const char*);

}  // extern "C"

#define PyMODINIT_FUNC extern "C" __attribute__((visibility("default"))) PyObject*
#define PyModuleDef_HEAD_INIT {{1, nullptr}, nullptr, 0, nullptr}
#define PyModule_Create(definition) PyModule_Create2(definition, 3)
#define Py_None (&_Py_NoneStruct)
#define Py_DECREF(object) Py_DecRef(object)
#define Py_XDECREF(object) Py_DecRef(object)
#define Py_XINCREF(object) Py_IncRef(object)
#define PyTuple_Check(object) ((PyType_GetFlags((object)->ob_type) & (1UL << 26)) != 0)
#define Py_BEGIN_ALLOW_THREADS { PyThreadState* _save = PyEval_SaveThread();
#define Py_END_ALLOW_THREADS PyEval_RestoreThread(_save); }
constexpr int METH_FASTCALL = 0x0080, PyBUF_SIMPLE = 0, PyBUF_WRITABLE = 1, PyBUF_ND = 8;

#endif
