/* A timeline for Perfetto and for people. See timeline.h. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "timeline.h"

/* ---- Chrome's trace format (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) ------------ */

static void add_metadata(json_t *events, const char *what, int32_t pid, int32_t tid, const char *key, json_t *value) {
  json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:i, s:{s:o}}", "name", what, "ph", "M", "pid", pid, "tid",
                                          tid, "args", key, value));
}

static void add_span(json_t *events, int32_t pid, int32_t tid, const ea_span *span) {
  json_t *args = json_pack("{s:i}", "item", span->item);
  if (span->tile >= 0) json_object_set_new(args, "tile", json_integer(span->tile));
  json_array_append_new(events, json_pack("{s:s, s:s, s:s, s:f, s:f, s:i, s:i, s:o}", "name", ea_mark_name(span->kind),
                                          "cat", "phase", "ph", "X", "ts", span->begin_us, "dur",
                                          span->end_us - span->begin_us, "pid", pid, "tid", tid, "args", args));
}

static json_t *item_json(const ea_timeline_item *item, int32_t number) {
  json_t *args = json_pack("{s:i}", "item", number);
  const struct {
    ea_mark_kind kind;
    int32_t value;
  } notes[] = {{EA_MARK_ITEM_TOKEN, item->token},       {EA_MARK_ITEM_ROWS, item->rows},
               {EA_MARK_ITEM_HEAD, item->kv_head},      {EA_MARK_ITEM_FIRST, item->first_step},
               {EA_MARK_ITEM_GATHER, item->gather_end}, {EA_MARK_ITEM_END, item->end_step}};
  for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++) {
    if (notes[i].value < 0) continue;
    json_object_set_new(args, ea_mark_name(notes[i].kind), json_integer(notes[i].value));
  }
  return args;
}

/* Looking for an item, or waiting for one, is not yet work on it. */
static bool is_before_item(ea_mark_kind kind) {
  return kind == EA_MARK_FIND || kind == EA_MARK_MEET || kind == EA_MARK_WAIT_Q;
}

/* Spans [first, end) are of one item of the block. Behind the last item there is a search for one more. */
static void add_item(json_t *events, const ea_timeline_block *block, const ea_timeline_track *track, int32_t first,
                     int32_t end) {
  const int32_t number = track->spans[first].item;
  while (first < end && is_before_item(track->spans[first].kind)) first++;
  if (first == end || number < 0 || block->items[number].token < 0) return;
  const double begin_us = track->spans[first].begin_us, end_us = track->spans[end - 1].end_us;
  char name[32];
  snprintf(name, sizeof name, "item %d", number);
  json_array_append_new(events, json_pack("{s:s, s:s, s:s, s:f, s:f, s:i, s:i, s:o}", "name", name, "cat", "item", "ph",
                                          "X", "ts", begin_us, "dur", end_us - begin_us, "pid", block->number, "tid",
                                          track->number, "args", item_json(&block->items[number], number)));
}

static void add_track(json_t *events, const ea_timeline_block *block, const ea_timeline_track *track) {
  add_metadata(events, "thread_name", block->number, track->number, "name", json_string(track->name));
  add_metadata(events, "thread_sort_index", block->number, track->number, "sort_index", json_integer(track->number));
  for (int32_t first = 0, end; first < track->num_spans; first = end) {
    for (end = first + 1; end < track->num_spans && track->spans[end].item == track->spans[first].item;) end++;
    add_item(events, block, track, first, end);
    for (int32_t i = first; i < end; i++) add_span(events, block->number, track->number, &track->spans[i]);
  }
}

json_t *ea_timeline_events(const ea_timeline *timeline) {
  json_t *events = json_array();
  for (int32_t b = 0; b < timeline->num_blocks; b++) {
    const ea_timeline_block *block = &timeline->blocks[b];
    char name[64];
    snprintf(name, sizeof name, "block %d, multiprocessor %d", block->number, block->multiprocessor);
    add_metadata(events, "process_name", block->number, 0, "name", json_string(name));
    for (int32_t t = 0; t < block->num_tracks; t++) add_track(events, block, &block->tracks[t]);
  }
  return events;
}

/* ---- the summary ------------------------------------------------------------------------------- */

/* One phase of one track, over all blocks. */
typedef struct phase {
  const char *track;
  ea_mark_kind kind;
  int64_t count;
  double median_us, total_us;
  double share; /* of the track's time */
} phase;

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Each track, in turn. NULL: there is none with this number in the block. */
static const ea_timeline_track *find_track(const ea_timeline_block *block, int32_t number) {
  for (int32_t t = 0; t < block->num_tracks; t++) {
    if (block->tracks[t].number == number) return &block->tracks[t];
  }
  return NULL;
}

/* Durations of a track's spans of one kind (EA_MARK_NONE: of any), into `us` where it is not NULL. */
static int64_t collect(const ea_timeline *timeline, int32_t number, ea_mark_kind kind, double *us, double *total_us) {
  int64_t count = 0;
  *total_us = 0;
  for (int32_t b = 0; b < timeline->num_blocks; b++) {
    const ea_timeline_track *track = find_track(&timeline->blocks[b], number);
    for (int32_t i = 0; track && i < track->num_spans; i++) {
      const ea_span *span = &track->spans[i];
      if (kind != EA_MARK_NONE && span->kind != kind) continue;
      if (us) us[count] = span->end_us - span->begin_us;
      *total_us += span->end_us - span->begin_us;
      count++;
    }
  }
  return count;
}

static const char *track_name(const ea_timeline *timeline, int32_t number) {
  for (int32_t b = 0; b < timeline->num_blocks; b++) {
    const ea_timeline_track *track = find_track(&timeline->blocks[b], number);
    if (track) return track->name;
  }
  return "?";
}

enum { MAX_PHASES = EA_MARK_TRACKS * EA_NUM_MARK_KINDS };

/* How many there are; 0 when out of memory. */
static int find_phases(const ea_timeline *timeline, phase phases[MAX_PHASES]) {
  double *us = calloc((size_t)timeline->num_spans + 1, sizeof *us);
  int num_phases = 0;
  for (int32_t number = 0; us && number < EA_MARK_TRACKS; number++) {
    double track_us;
    if (collect(timeline, number, EA_MARK_NONE, NULL, &track_us) == 0) continue;
    for (int kind = EA_MARK_NONE + 1; kind < EA_MARK_END; kind++) {
      phase p = {.track = track_name(timeline, number), .kind = (ea_mark_kind)kind};
      p.count = collect(timeline, number, p.kind, us, &p.total_us);
      if (p.count == 0) continue;
      qsort(us, (size_t)p.count, sizeof *us, compare_doubles);
      p.median_us = us[p.count / 2];
      p.share = track_us > 0 ? p.total_us / track_us : 0;
      phases[num_phases++] = p;
    }
  }
  free(us);
  return num_phases;
}

void ea_timeline_print(const ea_timeline *timeline, FILE *stream) {
  static const ea_column columns[] = {
      {"warp of", true, 0},    {"phase", true, 0},     {"count", false, 0},
      {"median us", false, 0}, {"total us", false, 0}, {"share %", false, 0},
  };
  phase phases[MAX_PHASES];
  const int num_phases = find_phases(timeline, phases);
  ea_table *table = ea_table_new(columns, sizeof columns / sizeof columns[0]);
  for (int i = 0; i < num_phases; i++) {
    const phase *p = &phases[i];
    char median[32], total[32], share[32];
    snprintf(median, sizeof median, "%.3f", p->median_us);
    snprintf(total, sizeof total, "%.1f", p->total_us);
    snprintf(share, sizeof share, "%.1f", 100 * p->share);
    const bool same = i > 0 && !strcmp(phases[i - 1].track, p->track);
    ea_table_add(table, same ? "" : p->track, ea_mark_name(p->kind), ea_count_text(p->count).text, median, total,
                 share);
  }
  ea_table_print(table, stream);
}

json_t *ea_timeline_summary(const ea_timeline *timeline) {
  phase phases[MAX_PHASES];
  const int num_phases = find_phases(timeline, phases);
  json_t *list = json_array();
  for (int i = 0; i < num_phases; i++) {
    const phase *p = &phases[i];
    json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "track", p->track, "phase",
                                          ea_mark_name(p->kind), "count", (json_int_t)p->count, "median_us",
                                          p->median_us, "total_us", p->total_us, "share", p->share));
  }
  return list;
}
