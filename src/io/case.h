/* A case: one whole batch in host memory, and its form on disk (a safetensors file), so
 * that a call recorded in one place can be replayed in any other. Writing is in the library,
 * for captured calls; reading is for the command and the tests. */
#ifndef EA_IO_CASE_H
#define EA_IO_CASE_H

#include <stdbool.h>
#include <stddef.h>

#include "extattn.h"

/* One piece of memory that pointers of a batch point into. */
typedef struct ea_storage {
  void *data; /* never NULL, also when bytes is 0 */
  size_t bytes;
  bool owned; /* from ea_case_alloc; otherwise a piece of the mapped file: read-only */
} ea_storage;

#define EA_CASE_MAX_STORAGES 16

/*
 * problem and batch hold host pointers, each into one of the storages (or NULL), so a
 * runner copies every storage to its device once and moves the pointers over with
 * ea_case_rebase: views stay views (v inside k, K and V interleaved in one buffer).
 * out and lse of the batch are the runner's to set; here they are NULL.
 */
typedef struct ea_case {
  ea_problem problem;
  ea_batch batch;
  ea_storage storages[EA_CASE_MAX_STORAGES];
  size_t num_storages;
  void *map; /* the mapped file, or NULL */
  size_t map_bytes;
} ea_case;

/* An empty case, ready to be filled and to be freed. */
void ea_case_init(ea_case *c);

/* Frees what a case holds and leaves it empty. Fine on an empty case. */
void ea_case_free(ea_case *c);

/* Adds an owned storage of zeroed memory, 64-byte aligned. EA_ERR_OUT_OF_MEMORY. */
ea_status ea_case_alloc(ea_case *c, size_t bytes, void **data);

/*
 * The batch with every pointer p that lies in storage i moved to bases[i] + (p - storages[i].data);
 * bases has num_storages entries. qo_indptr_host and kv_indptr_host point to the case's
 * own arrays. out, lse and NULL pointers stay as they are.
 */
ea_batch ea_case_rebase(const ea_case *c, void *const *bases);

/*
 * Reads a case file. Tensors are mapped, and copied only where the file does not align
 * them to their elements. The header is checked in full, and types and shapes against
 * each other; values (slots, indptr, the options' ranges) are left to ea_plan_create and
 * ea_run. On failure c is empty; EA_ERR_INVALID names the tensor or option, what was
 * found and what is allowed.
 *
 * The file must not shrink while the case is in use: the kernel answers an access past
 * its new end with SIGBUS.
 */
ea_status ea_case_read(const char *path, ea_case *c);

/*
 * Sets problem.shared_kv where v and v_cache are, bit for bit, the first Dv columns of k
 * and k_cache (latent attention: a file holds both, so a view has to be found again);
 * returns whether they are. The result of the call is the same either way.
 */
bool ea_case_find_shared_kv(ea_case *c);

/*
 * Writes a case file, packed: strides are not kept, v and v_cache of a shared_kv case are
 * written out in full. The file appears complete under its name or not at all.
 * EA_ERR_DEVICE when the operating system fails to write it.
 */
ea_status ea_case_write(const char *path, const ea_case *c);

/* Writes the result of a case in the same way: out [T, Hq, Dv] of type problem.dtype and
 * lse [T, Hq] f32, both packed. */
ea_status ea_case_result_write(const char *path, const ea_case *c, const void *out, const float *lse);

#endif
