/* What the index arrays and masks of a call hold, where the host can read them. Every later
 * access of a backend on the CPU is covered by these checks. */
#include "common/error.h"
#include "problem/problem.h"

/* One indptr: first 0, never decreasing, every entry at most max. */
static ea_status check_ascending(const char *name, const int32_t *indptr, int64_t num_seqs, int64_t max,
                                 const char *max_name) {
  if (indptr[0] != 0) return ea_fail(EA_ERR_INVALID, "%s[0]: found %d, allowed 0", name, indptr[0]);
  for (int64_t b = 1; b <= num_seqs; ++b) {
    if (indptr[b] < indptr[b - 1] || indptr[b] > max) {
      return ea_fail(EA_ERR_INVALID, "%s[%lld]: found %d, allowed %d (the entry before) to %lld (%s)", name,
                     (long long)b, indptr[b], indptr[b - 1], (long long)max, max_name);
    }
  }
  return EA_OK;
}

/* Positions have to stay within 32 bits. */
static ea_status check_lengths(int64_t num_seqs, const int32_t *qo_indptr, const int32_t *kv_indptr) {
  for (int64_t b = 0; b < num_seqs; ++b) {
    const int64_t prefix = (int64_t)kv_indptr[b + 1] - kv_indptr[b];
    const int64_t extend = (int64_t)qo_indptr[b + 1] - qo_indptr[b];
    if (prefix + extend > EA_MAX_SEQ_LEN) {
      return ea_fail(EA_ERR_INVALID, "kv_indptr[%lld]: found %lld prefix and %lld new tokens, allowed %d together",
                     (long long)b + 1, (long long)prefix, (long long)extend, EA_MAX_SEQ_LEN);
    }
  }
  return EA_OK;
}

/* With a prefix to read, what it is read from has to be there. */
static ea_status check_prefix_pointers(const ea_call *call, int64_t prefix_tokens) {
  if (prefix_tokens == 0 || call->skip_prefix) return EA_OK;
  const char *missing = !call->kv_indices     ? "kv_indices"
                        : !call->k_cache.data ? "k_cache.data"
                        : !call->v_cache.data ? "v_cache.data"
                                              : NULL;
  if (!missing) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "%s: found NULL, allowed memory as kv_indptr[%lld] says %lld prefix tokens", missing,
                 (long long)call->num_seqs, (long long)prefix_tokens);
}

ea_status ea_check_indptr(const ea_call *call, const int32_t *qo_indptr, const int32_t *kv_indptr) {
  const int64_t num_seqs = call->num_seqs;
  if (num_seqs == 0) return EA_OK;
  ea_status status = check_ascending("qo_indptr", qo_indptr, num_seqs, call->num_tokens, "num_tokens");
  if (!status) status = check_ascending("kv_indptr", kv_indptr, num_seqs, call->num_kv_indices, "num_kv_indices");
  if (status) return status;
  if (qo_indptr[num_seqs] != call->num_tokens) {
    return ea_fail(EA_ERR_INVALID, "qo_indptr[%lld]: found %d, allowed %lld (num_tokens)", (long long)num_seqs,
                   qo_indptr[num_seqs], (long long)call->num_tokens);
  }
  status = check_lengths(num_seqs, qo_indptr, kv_indptr);
  if (!status) status = check_prefix_pointers(call, kv_indptr[num_seqs]);
  return status;
}

static ea_status check_slots(const ea_call *call) {
  if (call->num_seqs == 0 || call->skip_prefix) return EA_OK;
  const int64_t count = call->kv_indptr[call->num_seqs];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = ea_load_index(call->kv_indices, call->index_dtype, i);
    if (slot >= 0 && slot < call->num_slots) continue;
    if (call->num_slots == 0) {
      return ea_fail(EA_ERR_INVALID, "kv_indices[%lld]: found %lld, allowed none (num_pages 0)", (long long)i,
                     (long long)slot);
    }
    return ea_fail(EA_ERR_INVALID, "kv_indices[%lld]: found %lld, allowed 0 to %lld (num_pages %lld * page_size %d)",
                   (long long)i, (long long)slot, (long long)call->num_slots - 1, (long long)call->num_pages,
                   call->page_size);
  }
  return EA_OK;
}

/* Sequence b's mask: its start and its E rows within custom_mask_bytes. E, P and the offset are
 * below 2^31 each, so a row is below 2^32 bytes and E rows are below 2^63. */
static ea_status check_mask(const ea_call *call, int64_t b) {
  const int64_t offset = call->window_kv_offsets ? call->window_kv_offsets[b] : 0;
  if (offset < 0) {
    return ea_fail(EA_ERR_INVALID, "window_kv_offsets[%lld]: found %lld, allowed 0 or more", (long long)b,
                   (long long)offset);
  }
  const int64_t start = ea_load_index(call->mask_indptr, call->mask_indptr_dtype, b);
  if (start < 0 || start > call->custom_mask_bytes) {
    return ea_fail(EA_ERR_INVALID, "mask_indptr[%lld]: found %lld, allowed 0 to %lld (custom_mask_bytes)", (long long)b,
                   (long long)start, (long long)call->custom_mask_bytes);
  }
  const int64_t prefix = (int64_t)call->kv_indptr[b + 1] - call->kv_indptr[b];
  const int64_t extend = (int64_t)call->qo_indptr[b + 1] - call->qo_indptr[b];
  const int64_t row_bytes = offset + prefix + extend;
  if (extend * row_bytes > call->custom_mask_bytes - start) {
    return ea_fail(EA_ERR_INVALID,
                   "custom_mask_bytes: found %lld, allowed %lld + %lld rows * %lld bytes or more for sequence %lld",
                   (long long)call->custom_mask_bytes, (long long)start, (long long)extend, (long long)row_bytes,
                   (long long)b);
  }
  return EA_OK;
}

ea_status ea_check_host_arrays(const ea_call *call) {
  ea_status status = ea_check_indptr(call, call->qo_indptr, call->kv_indptr);
  if (!status) status = check_slots(call);
  if (status || !call->custom_mask) return status;
  for (int64_t b = 0; b < call->num_seqs; ++b) {
    status = check_mask(call, b);
    if (status) return status;
  }
  return EA_OK;
}
