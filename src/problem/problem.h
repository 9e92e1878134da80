/* The described call: validation on the host, error texts, defaults resolved. Nothing is
 * run or written before a problem and a batch have passed here. */
#ifndef EA_PROBLEM_PROBLEM_H
#define EA_PROBLEM_PROBLEM_H

#include "extattn.h"
#include "problem/call.h"

/* Copies the caller's problem over the defaults and checks every field (head counts, dims,
 * types, finite scales ...). On success out holds the resolved problem: cache_dtype,
 * sinks_dtype, head_dim_v, softmax_scale (never 0), window_left (0: none) and
 * xai_temperature_len (0: none) explicit. */
ea_status ea_problem_resolve(const ea_problem *callers, ea_problem *out);

/* num_seqs and num_tokens of a batch by themselves: within 32 bits, no tokens without a sequence. */
ea_status ea_check_batch_size(int64_t num_seqs, int64_t num_tokens);

/* Puts a resolved problem and the caller's batch together: defaults of strides, pointers
 * that must be there, strides that must not overlap in out and lse. Reads no tensor and
 * no index array, so it serves host and device memory alike. What cannot be needed may be
 * NULL in the call: k and v with skip_extend, kv_indices and the caches where there is no
 * prefix or with skip_prefix, everything where num_tokens is 0. */
ea_status ea_call_make(const ea_problem *resolved, const ea_batch *callers, ea_call *call);

/* Checks the index arrays in host memory: qo_indptr, kv_indptr (first 0, last T and at most
 * num_kv_indices, never decreasing, lengths within EA_MAX_SEQ_LEN), and that a prefix has
 * kv_indices and caches to come from. The call's own arrays are not looked at. */
ea_status ea_check_indptr(const ea_call *call, const int32_t *qo_indptr, const int32_t *kv_indptr);

/* Checks all that the arrays of a call in host memory hold: ea_check_indptr, every slot
 * within [0, num_slots) (unless skip_prefix: then they are not looked at), masks within
 * custom_mask_bytes, window_kv_offsets not negative. */
ea_status ea_check_host_arrays(const ea_call *call);

/* Checks that out, lse and the workspace (NULL or 0 bytes: none) each have memory of their own: that none of it can
 * be another's, nor that of any input that the call holds. Reads none of it. Counts are taken at their word, so what
 * the arrays hold is better checked first. */
ea_status ea_check_apart(const ea_call *call, const void *workspace, size_t workspace_bytes);

#endif
