/* A case's batch where a device reads it, with outputs and workspace. */
#ifndef EA_CLI_PLACE_H
#define EA_CLI_PLACE_H

#include "extattn.h"
#include "io/case.h"

typedef struct ea_placed {
  ea_context *context;
  ea_batch batch;                     /* out and lse included */
  void *inputs[EA_CASE_MAX_STORAGES]; /* on a GPU: copies of the case's storages */
  void *out, *lse, *workspace;
  size_t out_bytes, lse_bytes, workspace_bytes;
} ea_placed;

/* Placed in any case to be freed, also after a failure. A CPU reads the case's own memory. */
ea_status ea_place(ea_context *context, const ea_plan *plan, const ea_case *c, ea_placed *placed);
/* Fine on what is zero. */
void ea_placed_free(ea_placed *placed);

#endif
