/* Checks on the device what ea_run takes on trust there: index arrays, slots, the extent of
 * masks (problem/arrays.c has the rules, and the host's half of the work).
 *
 * Says only that something is bad. The first bad entry and its text come from the host's own
 * check of a copy (cuda/validate.c), so a GPU and a CPU context say the same. Every array is
 * read within the bounds that the batch states, whatever the index arrays hold. */
#include "cuda/kernels/validate.h"

#include "problem/call.h"

/* Entry i of an indptr [last + 1]: first 0, never decreasing, the end as the batch says. */
__device__ static bool indptr_ok(const int32_t *indptr, int64_t i, int64_t last, int64_t end_min, int64_t end_max) {
  if (i == 0 && indptr[0] != 0) return false;
  if (i == last) return indptr[i] >= end_min && indptr[i] <= end_max;
  return indptr[i + 1] >= indptr[i];
}

/* Sequence b's positions stay within 32 bits. */
__device__ static bool length_ok(const ea_call &call, int64_t b) {
  const int64_t extend = (int64_t)call.qo_indptr[b + 1] - call.qo_indptr[b];
  const int64_t prefix = (int64_t)call.kv_indptr[b + 1] - call.kv_indptr[b];
  return extend + prefix <= EA_MAX_SEQ_LEN;
}

/* Sequence b's mask lies within custom_mask. Lengths are differences of 32-bit numbers, so no
 * product leaves 64 bits. */
__device__ static bool mask_ok(const ea_call &call, int64_t b) {
  const int64_t extend = (int64_t)call.qo_indptr[b + 1] - call.qo_indptr[b];
  const int64_t prefix = (int64_t)call.kv_indptr[b + 1] - call.kv_indptr[b];
  const int64_t offset = call.window_kv_offsets ? call.window_kv_offsets[b] : 0;
  const int64_t start = ea_load_index(call.mask_indptr, call.mask_indptr_dtype, b);
  if (offset < 0 || start < 0 || start > call.custom_mask_bytes) return false;
  return extend * (offset + prefix + extend) <= call.custom_mask_bytes - start;
}

/* Prefix tokens whose slots can be looked at. */
__device__ static int64_t readable_indices(const ea_call &call) {
  const int64_t end = call.kv_indptr[call.num_seqs];
  if (call.skip_prefix || !call.kv_indices) return 0;
  return end < call.num_kv_indices ? end : call.num_kv_indices;
}

/* With a prefix to read, what it is read from has to be there. */
__device__ static bool prefix_pointers_ok(const ea_call &call) {
  if (call.skip_prefix || call.kv_indptr[call.num_seqs] <= 0) return true;
  return call.kv_indices && call.k_cache.data && call.v_cache.data;
}

static __device__ bool indptrs_ok(const ea_call &call, int64_t first, int64_t step) {
  bool ok = prefix_pointers_ok(call);
  for (int64_t b = first; b <= call.num_seqs && ok; b += step) {
    ok = indptr_ok(call.qo_indptr, b, call.num_seqs, call.num_tokens, call.num_tokens) &&
         indptr_ok(call.kv_indptr, b, call.num_seqs, 0, call.num_kv_indices);
    if (b < call.num_seqs) ok = ok && length_ok(call, b) && (!call.custom_mask || mask_ok(call, b));
  }
  return ok;
}

static __device__ bool slots_ok(const ea_call &call, int64_t first, int64_t step) {
  const int64_t count = readable_indices(call);
  bool ok = true;
  for (int64_t i = first; i < count && ok; i += step) {
    const int64_t slot = ea_load_index(call.kv_indices, call.index_dtype, i);
    ok = slot >= 0 && slot < call.num_slots;
  }
  return ok;
}

/* Launched once for the index arrays and then once for the slots, which are looked at only when
 * the index arrays are good: they say how many there are. */
extern "C" __global__ void __launch_bounds__(EA_VALIDATE_THREADS)
    EA_KERNEL_NAME(const __grid_constant__ ea_call call, uint32_t *bad, int slots) {
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  if (slots && *bad) return;
  const bool ok = slots ? slots_ok(call, first, step) : indptrs_ok(call, first, step);
  if (!ok) atomicOr(bad, 1u);
}
