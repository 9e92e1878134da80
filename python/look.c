/* A call's torch tensors, looked at in C: Python takes half a microsecond for the address, shape, strides and type of
 * one, and a call has nine or more.
 *
 * Three functions that Python calls (extattn/_look.py makes them; _attention.py says what a call is): look() checks
 * the inputs and options and packs them into an ea_batch and a key, workspace_bytes() and run() are ea_workspace_size
 * and ea_run for it.
 * What is out of the ordinary is not refused here: look() and run() then say that they cannot, and Python's own way
 * finds the words, or a meaning. So everything that passes here has to pass there, and mean the same.
 *
 * Tensors come in through DLPack's exchange of C functions (dlpack.h, DLPackExchangeAPI). No Python header is needed:
 * what is declared below is part of Python's stable ABI (METH_FASTCALL since 3.10, but not another before). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "extattn.h"

/* ---- Python (docs.python.org/3/c-api/stable.html) ------------------------------------------------ */

typedef void PyObject;
typedef ptrdiff_t Py_ssize_t;

typedef struct PyMethodDef {
  const char *ml_name;
  PyObject *(*ml_meth)(PyObject *self, PyObject *const *args, Py_ssize_t num_args);
  int ml_flags;
  const char *ml_doc;
} PyMethodDef;

#define METH_FASTCALL 0x0080

void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
PyObject *PyObject_Type(PyObject *object);
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
PyObject *PyObject_CallObject(PyObject *callable, PyObject *arguments);
char *PyByteArray_AsString(PyObject *array);
PyObject *PyBytes_FromStringAndSize(const char *bytes, Py_ssize_t size);
PyObject *PyLong_FromLong(long value);
PyObject *PyLong_FromSize_t(size_t value);
void *PyLong_AsVoidPtr(PyObject *number);
size_t PyLong_AsSize_t(PyObject *number);
long long PyLong_AsLongLong(PyObject *number);
double PyFloat_AsDouble(PyObject *number);
PyObject *PyErr_Occurred(void);
void PyErr_Clear(void);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);

/* ---- DLPack (dlpack.h, version 1) ---------------------------------------------------------------- */

typedef struct dl_tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t *shape, *strides; /* the tensor's own */
  uint64_t byte_offset;
} dl_tensor;

enum { DL_CPU = 1, DL_CUDA = 2 };
enum { DL_INT = 0 };

static ea_dtype dtype_of(const dl_tensor *tensor) {
  static const struct {
    uint8_t code, bits;
    ea_dtype dtype;
  } types[] = {{4, 16, EA_BF16}, {2, 16, EA_F16},  {2, 32, EA_F32}, {0, 32, EA_I32},
               {0, 64, EA_I64},  {10, 8, EA_E4M3}, {12, 8, EA_E5M2}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    if (tensor->type_code == types[i].code && tensor->type_bits == types[i].bits && tensor->type_lanes == 1) {
      return types[i].dtype;
    }
  }
  return EA_DTYPE_NONE;
}

/* ---- what the functions of one thread share ------------------------------------------------------ */

/* What a plan depends on, beside the family's name; Python's dictionary finds the plan by these bytes. */
typedef struct call_key {
  int64_t device; /* -1: the CPU */
  int64_t dtype, cache_dtype, index_dtype, sinks_dtype;
  int64_t q_heads, kv_heads, head_dim, head_dim_v, page_size;
  int64_t shared_kv;
  int64_t causal, skip_prefix_custom_mask, skip_prefix, skip_extend;
  int64_t window_left, xai_temperature_len, stages;
  int64_t has_softmax_scale;
  double softmax_scale, logit_cap, k_scale, v_scale;
} call_key;

/* In a bytearray of Python's; its first members are filled by _look.py. */
typedef struct look_state {
  PyObject *none, *true_object, *false_object;
  PyObject *int_type, *float_type, *str_type;
  PyObject *is_grad_enabled, *requires_grad;          /* a function; the name of an attribute */
  int (*tensor_of)(PyObject *object, dl_tensor *out); /* DLPack's dltensor_from_py_object_no_sync */
  ea_status (*workspace_size)(const ea_plan *plan, const ea_batch *batch, size_t *bytes);
  ea_status (*run)(const ea_plan *plan, const ea_batch *batch, void *workspace, size_t bytes, void *stream);
  bool grad_mode; /* whether a tensor that requires grad is refused */
  call_key key;
  ea_batch batch;
} look_state;

/* For _look.py to make room. */
__attribute__((visibility("default"))) extern const size_t ea_look_state_bytes;
const size_t ea_look_state_bytes = sizeof(look_state);

static look_state *state_of(PyObject *self) {
  return (look_state *)(void *)PyByteArray_AsString(self);
}

static PyObject *not_here(const look_state *state) {
  Py_IncRef(state->none);
  return state->none;
}

/* ---- options: none is taken here for what Python would refuse ------------------------------------ */

static bool is_of(PyObject *object, const PyObject *type) {
  PyObject *found = PyObject_Type(object);
  Py_DecRef(found); /* the object keeps it */
  return found == type;
}

static bool get_bool(const look_state *state, PyObject *object, int64_t *value) {
  *value = object == state->true_object;
  return *value || object == state->false_object;
}

static bool get_int(const look_state *state, PyObject *object, int64_t *value) {
  if (!is_of(object, state->int_type)) return false;
  *value = PyLong_AsLongLong(object);
  if (*value != -1 || !PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

static bool get_number(const look_state *state, PyObject *object, double *value) {
  if (!is_of(object, state->float_type) && !is_of(object, state->int_type)) return false;
  *value = PyFloat_AsDouble(object);
  if (*value != -1.0 || !PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

static bool get_scale(const look_state *state, PyObject *object, double *value) {
  *value = 1.0;
  return object == state->none || get_number(state, object, value);
}

enum { NUM_OPTIONS = 12 };

/* causal, softmax_scale, logit_cap, window_left, skip_prefix_custom_mask, k_scale, v_scale, xai_temperature_len,
 * skip_prefix, skip_extend, family, stages. */
static bool look_at_options(look_state *state, PyObject *const options[NUM_OPTIONS]) {
  call_key *key = &state->key;
  key->has_softmax_scale = options[1] != state->none;
  if (key->has_softmax_scale && !get_number(state, options[1], &key->softmax_scale)) return false;
  if (options[10] != state->none && !is_of(options[10], state->str_type)) return false;
  return get_bool(state, options[0], &key->causal) && get_number(state, options[2], &key->logit_cap) &&
         get_int(state, options[3], &key->window_left) && get_bool(state, options[4], &key->skip_prefix_custom_mask) &&
         get_scale(state, options[5], &key->k_scale) && get_scale(state, options[6], &key->v_scale) &&
         get_int(state, options[7], &key->xai_temperature_len) && get_bool(state, options[8], &key->skip_prefix) &&
         get_bool(state, options[9], &key->skip_extend) && get_int(state, options[11], &key->stages);
}

/* ---- looking ------------------------------------------------------------------------------------- */

static bool requires_grad(const look_state *state, PyObject *tensor) {
  PyObject *answer = PyObject_GetAttr(tensor, state->requires_grad);
  if (!answer) {
    PyErr_Clear();
    return true;
  }
  Py_DecRef(answer); /* True and False outlive it */
  return answer != state->false_object;
}

static bool is_grad_mode(const look_state *state) {
  PyObject *answer = PyObject_CallObject(state->is_grad_enabled, NULL);
  if (!answer) {
    PyErr_Clear();
    return true;
  }
  Py_DecRef(answer);
  return answer != state->false_object;
}

/* A tensor of that many dimensions whose rows are contiguous and no other stride is 0 or negative. */
static bool get_tensor(const look_state *state, PyObject *object, int32_t ndim, dl_tensor *tensor) {
  if (object == state->none) return false;
  if (state->tensor_of(object, tensor) != 0) {
    PyErr_Clear(); /* not a tensor, or one without memory: Python says it better */
    return false;
  }
  if (tensor->ndim != ndim || !tensor->strides) return false;
  if (state->grad_mode && tensor->type_code != DL_INT && requires_grad(state, object)) return false;
  if (tensor->device_type != DL_CPU && tensor->device_type != DL_CUDA) return false;
  for (int32_t i = 0; i < ndim - 1; i++) {
    if (tensor->strides[i] <= 0) return false;
  }
  if (tensor->byte_offset) tensor->data = (char *)tensor->data + tensor->byte_offset;
  return tensor->strides[ndim - 1] == 1;
}

static int64_t device_of(const dl_tensor *tensor) {
  return tensor->device_type == DL_CPU ? -1 : tensor->device_id;
}

static bool is_like(const dl_tensor *tensor, const call_key *key, int64_t dtype) {
  return device_of(tensor) == key->device && (int64_t)dtype_of(tensor) == dtype;
}

static bool has_shape(const dl_tensor *tensor, int64_t tokens, int64_t heads, int64_t dim) {
  return tensor->shape[0] == tokens && tensor->shape[1] == heads && tensor->shape[2] == dim;
}

static ea_tensor packed(const dl_tensor *tensor) {
  return (ea_tensor){tensor->data, tensor->strides[0], tensor->strides[1]};
}

/* [slots, heads, dim], or [pages, page_size, heads, dim]. */
static bool get_pool(const look_state *state, PyObject *object, dl_tensor *tensor) {
  return get_tensor(state, object, 3, tensor) || (tensor->ndim == 4 && get_tensor(state, object, 4, tensor));
}

static ea_cache packed_pool(const dl_tensor *tensor) {
  const int64_t *strides = tensor->strides;
  return (ea_cache){tensor->data, strides[0], strides[tensor->ndim == 4 ? 1 : 0], strides[tensor->ndim - 2]};
}

static bool look_at_pools(look_state *state, PyObject *k_object, PyObject *v_object) {
  call_key *key = &state->key;
  dl_tensor k = {0}, v = {0};
  if (!get_pool(state, k_object, &k) || !get_pool(state, v_object, &v)) return false;
  const int32_t ndim = k.ndim;
  key->cache_dtype = (int64_t)dtype_of(&k);
  key->kv_heads = k.shape[ndim - 2];
  key->head_dim_v = v.shape[ndim - 1];
  key->page_size = ndim == 4 ? k.shape[1] : 1;
  if (key->cache_dtype == EA_DTYPE_NONE || k.shape[ndim - 1] != key->head_dim || v.ndim != ndim) return false;
  if (!is_like(&k, key, key->cache_dtype) || !is_like(&v, key, key->cache_dtype)) return false;
  if (memcmp(v.shape, k.shape, (size_t)(ndim - 1) * sizeof *k.shape) != 0) return false;
  state->batch.num_pages = k.shape[0];
  state->batch.k_cache = packed_pool(&k);
  state->batch.v_cache = packed_pool(&v);
  return true;
}

static bool look_at_rows(look_state *state, PyObject *q_object, PyObject *k_object, PyObject *v_object,
                         PyObject *k_cache, PyObject *v_cache) {
  call_key *key = &state->key;
  dl_tensor q, k, v;
  if (!get_tensor(state, q_object, 3, &q)) return false;
  key->device = device_of(&q);
  key->dtype = (int64_t)dtype_of(&q);
  key->q_heads = q.shape[1];
  key->head_dim = q.shape[2];
  if (key->dtype == EA_DTYPE_NONE || !look_at_pools(state, k_cache, v_cache)) return false;
  const int64_t tokens = q.shape[0];
  if (!get_tensor(state, k_object, 3, &k) || !get_tensor(state, v_object, 3, &v)) return false;
  if (!is_like(&k, key, key->dtype) || !is_like(&v, key, key->dtype)) return false;
  if (!has_shape(&k, tokens, key->kv_heads, key->head_dim)) return false;
  if (!has_shape(&v, tokens, key->kv_heads, key->head_dim_v)) return false;
  state->batch.num_tokens = tokens;
  state->batch.q = packed(&q);
  state->batch.k = packed(&k);
  state->batch.v = packed(&v);
  return true;
}

/* Latent attention: v and v_cache are the first columns of k and k_cache. */
static bool is_shared(const ea_batch *batch, const call_key *key) {
  return key->head_dim_v <= key->head_dim && memcmp(&batch->v_cache, &batch->k_cache, sizeof batch->k_cache) == 0 &&
         memcmp(&batch->v, &batch->k, sizeof batch->k) == 0;
}

static bool look_at_arrays(look_state *state, PyObject *qo_object, PyObject *kv_object, PyObject *at_object,
                           PyObject *sinks_object) {
  call_key *key = &state->key;
  ea_batch *batch = &state->batch;
  dl_tensor qo, kv, at, sinks;
  if (!get_tensor(state, qo_object, 1, &qo) || !is_like(&qo, key, EA_I32) || qo.shape[0] < 1) return false;
  if (!get_tensor(state, kv_object, 1, &kv) || !is_like(&kv, key, EA_I32) || kv.shape[0] < qo.shape[0]) return false;
  if (!get_tensor(state, at_object, 1, &at)) return false;
  key->index_dtype = (int64_t)dtype_of(&at);
  if (key->index_dtype != EA_I32 && key->index_dtype != EA_I64) return false;
  if (!is_like(&at, key, key->index_dtype)) return false;
  batch->num_seqs = qo.shape[0] - 1;
  batch->num_kv_indices = at.shape[0];
  batch->qo_indptr = qo.data;
  batch->kv_indptr = kv.data;
  batch->kv_indices = at.data;
  if (sinks_object == state->none) return true;
  if (!get_tensor(state, sinks_object, 1, &sinks) || sinks.shape[0] != key->q_heads) return false;
  key->sinks_dtype = (int64_t)dtype_of(&sinks);
  if (key->sinks_dtype != EA_F32 && key->sinks_dtype != key->dtype) return false;
  batch->sinks = sinks.data;
  return is_like(&sinks, key, key->sinks_dtype);
}

/* (q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sinks, the options): the call's key, or None: not
 * here. */
static PyObject *look(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
  look_state *state = state_of(self);
  if (num_args != 9 + NUM_OPTIONS) return not_here(state);
  memset(&state->key, 0, sizeof state->key);
  state->batch = (ea_batch)EA_BATCH_INIT;
  state->grad_mode = is_grad_mode(state);
  if (!look_at_options(state, args + 9)) return not_here(state);
  if (!look_at_rows(state, args[0], args[1], args[2], args[3], args[4])) return not_here(state);
  if (!look_at_arrays(state, args[5], args[6], args[7], args[8])) return not_here(state);
  state->key.shared_kv = is_shared(&state->batch, &state->key);
  return PyBytes_FromStringAndSize((const char *)&state->key, sizeof state->key);
}

/* ---- running what was looked at last ------------------------------------------------------------- */

/* (plan): the bytes, or None: refused, which run() will say again. */
static PyObject *workspace_bytes(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
  const look_state *state = state_of(self);
  size_t bytes;
  if (num_args != 1 || state->workspace_size(PyLong_AsVoidPtr(args[0]), &state->batch, &bytes) != EA_OK) {
    return not_here(state);
  }
  return PyLong_FromSize_t(bytes);
}

static bool look_at_results(look_state *state, PyObject *out_object, PyObject *lse_object) {
  const call_key *key = &state->key;
  ea_batch *batch = &state->batch;
  dl_tensor out, lse;
  if (!get_tensor(state, out_object, 3, &out) || !is_like(&out, key, key->dtype)) return false;
  if (!has_shape(&out, batch->num_tokens, key->q_heads, key->head_dim_v)) return false;
  batch->out = packed(&out);
  if (lse_object == state->none) return true;
  if (!get_tensor(state, lse_object, 2, &lse) || !is_like(&lse, key, EA_F32)) return false;
  if (lse.shape[0] != batch->num_tokens || lse.shape[1] != key->q_heads) return false;
  batch->lse = lse.data;
  batch->lse_token_stride = lse.strides[0];
  batch->lse_head_stride = lse.strides[1];
  return true;
}

/* (plan, out, lse or None, workspace, its bytes, stream): the status, or -1: not here. Other threads of Python's may
 * run meanwhile. */
static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
  look_state *state = state_of(self);
  if (num_args != 6 || !look_at_results(state, args[1], args[2])) return PyLong_FromLong(-1);
  const ea_plan *plan = PyLong_AsVoidPtr(args[0]);
  void *workspace = PyLong_AsVoidPtr(args[3]);
  const size_t bytes = PyLong_AsSize_t(args[4]);
  void *stream = PyLong_AsVoidPtr(args[5]);
  if (PyErr_Occurred()) return NULL;
  void *thread = PyEval_SaveThread();
  const ea_status status = state->run(plan, &state->batch, workspace, bytes, stream);
  PyEval_RestoreThread(thread);
  return PyLong_FromLong((long)status);
}

/* Python makes functions of these; it keeps a pointer to them. */
__attribute__((visibility("default"))) extern const PyMethodDef ea_look_methods[3];
const PyMethodDef ea_look_methods[3] = {{"look", look, METH_FASTCALL, NULL},
                                        {"workspace_bytes", workspace_bytes, METH_FASTCALL, NULL},
                                        {"run", run, METH_FASTCALL, NULL}};
