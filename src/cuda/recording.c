/* See recording.h: memory for the marks on the device, and a copy of it here. */
#include "cuda/recording.h"

#include <stdlib.h>

#include "common/context.h"
#include "common/error.h"
#include "cuda/device.h"
#include "cuda/memory.h"

struct ea_recording {
  ea_context *context;
  ea_marks_place place; /* on the device */
  size_t bytes;
  void *fetched; /* the same here; NULL: not yet */
};

static size_t marks_of_block(const ea_marks_place *place) {
  return (size_t)EA_MARK_TRACKS << place->records_log2;
}

static ea_status allocate(ea_recording *r) {
  const size_t block_bytes = sizeof(ea_marked_block) + marks_of_block(&r->place) * sizeof(ea_mark);
  void *memory = NULL;
  r->bytes = (size_t)r->place.blocks * block_bytes;
  ea_status status = ea_mem_alloc(r->context, r->bytes, &memory);
  r->place.timeline = memory;
  if (status == EA_OK) status = ea_mem_set(r->context, memory, 0, r->bytes, NULL);
  if (status == EA_OK) status = ea_stream_synchronize(r->context, NULL);
  return status;
}

ea_status ea_recording_possible(void) {
  if (ea_images_record) return EA_OK;
  return ea_fail(EA_ERR_UNSUPPORTED,
                 "this build: found kernels that record no times, allowed one configured with -DEA_TRACE=ON");
}

ea_status ea_recording_begin(ea_context *context, int32_t blocks, int32_t records_log2, ea_recording **recording) {
  if (!context->cuda) return ea_fail(EA_ERR_UNSUPPORTED, "context: found a CPU, allowed for recording: a GPU");
  const ea_status possible = ea_recording_possible();
  if (possible != EA_OK) return possible;
  ea_recording *r = calloc(1, sizeof *r);
  if (!r) return ea_fail(EA_ERR_OUT_OF_MEMORY, "host memory: found none for a recording");
  r->context = context;
  r->place = (ea_marks_place){.blocks = blocks, .records_log2 = records_log2};
  const ea_status status = allocate(r);
  if (status != EA_OK) {
    ea_recording_end(r);
    return status;
  }
  context->cuda->marks = r->place;
  *recording = r;
  return EA_OK;
}

ea_status ea_recording_fetch(ea_recording *r) {
  if (!r->fetched) r->fetched = malloc(r->bytes);
  if (!r->fetched) return ea_fail(EA_ERR_OUT_OF_MEMORY, "host memory: found none for %zu bytes of marks", r->bytes);
  return ea_mem_download(r->context, r->fetched, r->place.timeline, r->bytes, NULL);
}

const ea_marked_block *ea_recording_block(const ea_recording *r, int32_t block) {
  const ea_marked_block *header = (const ea_marked_block *)r->fetched + block;
  return block < r->place.blocks && header->end_clock != 0 ? header : NULL;
}

const ea_mark *ea_recording_track(const ea_recording *r, int32_t block, int32_t track) {
  const ea_marked_block *headers = r->fetched;
  const ea_mark *marks = (const ea_mark *)(const void *)(headers + r->place.blocks);
  return marks + (size_t)block * marks_of_block(&r->place) + ((size_t)track << r->place.records_log2);
}

void ea_recording_end(ea_recording *r) {
  if (!r) return;
  r->context->cuda->marks = (ea_marks_place){0};
  ea_mem_free(r->context, r->place.timeline);
  free(r->fetched);
  free(r);
}
