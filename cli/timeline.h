/* A launch's timeline, as `extattn trace` shows it: what each recorded warp did, from when to when. Made of the
 * marks that the kernel left (cuda/recording.h). */
#ifndef EA_CLI_TIMELINE_H
#define EA_CLI_TIMELINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "cuda/recording.h"

/* What a warp does for a while. Spans of a track follow each other without a gap. */
typedef struct ea_span {
  ea_mark_kind kind;
  int32_t tile; /* -1: not of a tile */
  int32_t item; /* number of the item in its block */
  double begin_us, end_us;
} ea_span;

/* An item as its block's producer describes it; -1: not recorded. */
typedef struct ea_timeline_item {
  int32_t token, rows, kv_head, first_step, gather_end, end_step;
} ea_timeline_item;

typedef struct ea_timeline_track {
  char name[32];  /* "consumer 0" */
  int32_t number; /* among the tracks of its block */
  ea_span *spans;
  int32_t num_spans;
  uint32_t dropped; /* marks for which there was no room */
} ea_timeline_track;

typedef struct ea_timeline_block {
  int32_t number;
  int32_t multiprocessor;
  ea_timeline_track tracks[EA_MARK_TRACKS];
  int32_t num_tracks;
  ea_timeline_item *items;
  int32_t num_items;
} ea_timeline_block;

/* Times are microseconds from the beginning of the first recorded block. */
typedef struct ea_timeline {
  ea_timeline_block *blocks;
  int32_t num_blocks;
  double cycles_per_us; /* the multiprocessors' clock, by the GPU's timer */
  int64_t num_spans, num_dropped;
} ea_timeline;

const char *ea_mark_name(ea_mark_kind kind);

/* Of a recording that was fetched, of its first `blocks` blocks. EA_ERR_DEVICE when there is nothing in it. */
ea_status ea_timeline_make(const ea_recording *recording, int32_t blocks, ea_timeline *timeline);
/* Fine on what is zero. */
void ea_timeline_free(ea_timeline *timeline);

/* Events of Chrome's trace format: a process a block, a thread a track; items, and the spans in them. */
json_t *ea_timeline_events(const ea_timeline *timeline);

/* For each kind of track and each phase: how often, how long. As a table and as JSON. */
void ea_timeline_print(const ea_timeline *timeline, FILE *stream);
json_t *ea_timeline_summary(const ea_timeline *timeline);

#endif
