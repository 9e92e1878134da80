/* From marks to spans. See timeline.h. */
#include "timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"

static const struct {
  const char *name;
  bool of_tile;
} kinds[EA_NUM_MARK_KINDS] = {
#define KIND(kind, name, of_tile) {name, of_tile},
    EA_MARKS(KIND)
#undef KIND
};

const char *ea_mark_name(ea_mark_kind kind) {
  return kinds[kind].name;
}

static ea_mark_kind kind_of(ea_mark mark) {
  return (ea_mark_kind)(mark.what >> EA_MARK_TILE_BITS);
}

static int32_t number_of(ea_mark mark) {
  return (int32_t)(mark.what & ((1u << EA_MARK_TILE_BITS) - 1));
}

static bool begins_item(ea_mark_kind kind) {
  return kind == EA_MARK_FIND || kind == EA_MARK_WAIT_Q;
}

static bool tells_of_item(ea_mark_kind kind) {
  return kind > EA_MARK_END && kind < EA_NUM_MARK_KINDS;
}

/* ---- clocks ------------------------------------------------------------------------------------ */

/* How to place a block's cycles on the common axis. */
typedef struct block_clock {
  int64_t begin_clock;
  double begin_us, us_per_cycle;
} block_clock;

/* The rate is taken from all blocks together: the GPU's timer passes in steps of up to a microsecond. */
static double find_rate(const ea_recording *recording, int32_t blocks, int64_t *first_ns) {
  double cycles = 0, ns = 0;
  *first_ns = INT64_MAX;
  for (int32_t b = 0; b < blocks; b++) {
    const ea_marked_block *header = ea_recording_block(recording, b);
    if (!header) continue;
    cycles += (double)(header->end_clock - header->begin_clock);
    ns += (double)(header->end_ns - header->begin_ns);
    if (header->begin_ns < *first_ns) *first_ns = header->begin_ns;
  }
  return cycles > 0 && ns > 0 ? ns * 1e-3 / cycles : 0;
}

/* A mark has half of the clock: the rest follows from the mark before. In whole nanoseconds, as programs that read
 * Chrome's format keep them: fractions would make neighbours overlap there. */
static double time_of(ea_mark mark, const block_clock *clock, int64_t *cycles) {
  *cycles += (uint32_t)(mark.clock - (uint32_t)*cycles);
  const double us = clock->begin_us + (double)(*cycles - clock->begin_clock) * clock->us_per_cycle;
  return round(us * 1e3) * 1e-3;
}

/* ---- tracks ------------------------------------------------------------------------------------ */

static int32_t count_marks(const ea_mark *marks) {
  int32_t count = 0;
  while (marks[count].what != 0) count++;
  return count;
}

static void describe_item(ea_timeline_block *block, int32_t item, ea_mark mark) {
  if (item < 0 || item >= block->num_items) return;
  ea_timeline_item *to = &block->items[item];
  const int32_t value = number_of(mark);
  switch (kind_of(mark)) {
  case EA_MARK_ITEM_TOKEN:
    to->token = value;
    break;
  case EA_MARK_ITEM_ROWS:
    to->rows = value;
    break;
  case EA_MARK_ITEM_HEAD:
    to->kv_head = value;
    break;
  case EA_MARK_ITEM_FIRST:
    to->first_step = value;
    break;
  case EA_MARK_ITEM_GATHER:
    to->gather_end = value;
    break;
  case EA_MARK_ITEM_END:
    to->end_step = value;
    break;
  default:
    break;
  }
}

/* A mark ends the span before it. The last one, where it does not end the track, is of a span whose end was dropped. */
static void read_track(const ea_mark *marks, int32_t count, const block_clock *clock, ea_timeline_block *block,
                       ea_timeline_track *track) {
  int64_t cycles = clock->begin_clock;
  int32_t item = -1;
  ea_span *open = NULL;
  for (int32_t i = 0; i < count; i++) {
    const ea_mark_kind kind = kind_of(marks[i]);
    const double now_us = time_of(marks[i], clock, &cycles);
    if (tells_of_item(kind)) {
      describe_item(block, item, marks[i]);
      continue;
    }
    if (open) {
      open->end_us = now_us;
      track->num_spans++;
    }
    if (kind == EA_MARK_END) break;
    if (begins_item(kind)) item++;
    open = &track->spans[track->num_spans];
    *open = (ea_span){kind, kinds[kind].of_tile ? number_of(marks[i]) : -1, item, now_us, now_us};
  }
}

static void name_track(ea_timeline_track *track, bool one_producer) {
  const int32_t number = track->number;
  if (number >= EA_MARK_PRODUCERS) {
    snprintf(track->name, sizeof track->name, "consumer %d", number - EA_MARK_PRODUCERS);
  } else if (one_producer) {
    snprintf(track->name, sizeof track->name, "producer");
  } else {
    snprintf(track->name, sizeof track->name, "producer warp %d", number);
  }
}

/* ---- blocks ------------------------------------------------------------------------------------ */

static ea_status allocate_items(ea_timeline_block *block, int32_t count) {
  block->items = calloc((size_t)count + 1, sizeof *block->items);
  if (!block->items) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for %d items", count);
  for (int32_t i = 0; i < count; i++) block->items[i] = (ea_timeline_item){-1, -1, -1, -1, -1, -1};
  block->num_items = count;
  return EA_OK;
}

static int32_t count_items(const ea_mark *marks) {
  int32_t count = 0;
  for (; marks->what != 0; marks++) count += begins_item(kind_of(*marks));
  return count;
}

static ea_status read_block(const ea_recording *recording, const block_clock *clock, ea_timeline_block *block) {
  int32_t num_items = 0, num_producers = 0;
  for (int32_t t = 0; t < EA_MARK_TRACKS; t++) {
    const ea_mark *marks = ea_recording_track(recording, block->number, t);
    const int32_t items = count_items(marks);
    if (items > num_items) num_items = items;
    if (t < EA_MARK_PRODUCERS && marks->what != 0) num_producers++;
  }
  const ea_status status = allocate_items(block, num_items);
  if (status != EA_OK) return status;
  for (int32_t t = 0; t < EA_MARK_TRACKS; t++) {
    const ea_mark *marks = ea_recording_track(recording, block->number, t);
    const int32_t count = count_marks(marks);
    if (count == 0) continue;
    ea_timeline_track *track = &block->tracks[block->num_tracks];
    *track = (ea_timeline_track){.number = t, .spans = calloc((size_t)count, sizeof(ea_span))};
    if (!track->spans) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for %d spans", count);
    block->num_tracks++;
    track->dropped = ea_recording_block(recording, block->number)->dropped[t];
    name_track(track, num_producers == 1);
    read_track(marks, count, clock, block, track);
  }
  return EA_OK;
}

static ea_status read_blocks(const ea_recording *recording, int32_t blocks, ea_timeline *timeline) {
  int64_t first_ns;
  const double us_per_cycle = find_rate(recording, blocks, &first_ns);
  if (us_per_cycle <= 0) return ea_fail(EA_ERR_DEVICE, "recording: found no block in it, or a timer that stands still");
  timeline->cycles_per_us = 1 / us_per_cycle;
  for (int32_t b = 0; b < blocks; b++) {
    const ea_marked_block *header = ea_recording_block(recording, b);
    if (!header) continue;
    const block_clock clock = {header->begin_clock, (double)(header->begin_ns - first_ns) * 1e-3, us_per_cycle};
    ea_timeline_block *block = &timeline->blocks[timeline->num_blocks++];
    *block = (ea_timeline_block){.number = b, .multiprocessor = (int32_t)header->multiprocessor};
    const ea_status status = read_block(recording, &clock, block);
    if (status != EA_OK) return status;
    for (int32_t t = 0; t < block->num_tracks; t++) {
      timeline->num_spans += block->tracks[t].num_spans;
      timeline->num_dropped += block->tracks[t].dropped;
    }
  }
  return EA_OK;
}

ea_status ea_timeline_make(const ea_recording *recording, int32_t blocks, ea_timeline *timeline) {
  *timeline = (ea_timeline){.blocks = calloc((size_t)blocks, sizeof *timeline->blocks)};
  if (!timeline->blocks) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for %d blocks", blocks);
  const ea_status status = read_blocks(recording, blocks, timeline);
  if (status != EA_OK) ea_timeline_free(timeline);
  return status;
}

void ea_timeline_free(ea_timeline *timeline) {
  for (int32_t b = 0; b < timeline->num_blocks; b++) {
    ea_timeline_block *block = &timeline->blocks[b];
    for (int32_t t = 0; t < block->num_tracks; t++) free(block->tracks[t].spans);
    free(block->items);
  }
  free(timeline->blocks);
  *timeline = (ea_timeline){0};
}
