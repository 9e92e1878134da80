/* The plot of a timeline: some microseconds of one block, a row for each of its warps that were recorded. */
#include <string.h>

#include "common/error.h"
#include "cuda/kernels/timeline.h"
#include "plot_script.h"
#include "timeline.h"

/* Phases that look alike: what copies or waits for something has that thing's colour, and waits are pale. */
typedef struct look {
  const char *color, *text_color;
  ea_mark_kind kinds[4]; /* EA_MARK_NONE: no more */
} look;

static const look looks[] = {
    {"#2f6bb0", "#ffffff", {EA_MARK_ISSUE_S, EA_MARK_COPY_K}},
    {"#21918c", "#ffffff", {EA_MARK_ISSUE_O, EA_MARK_COPY_V}},
    {"#d8842a", "#ffffff", {EA_MARK_SOFTMAX}},
    {"#8d6cab", "#ffffff", {EA_MARK_BEGIN, EA_MARK_COPY_Q}},
    {"#8fb0d9", "#222222", {EA_MARK_WAIT_S}},
    {"#86c5c1", "#222222", {EA_MARK_WAIT_O}},
    {"#c9daef", "#222222", {EA_MARK_WAIT_K, EA_MARK_SLOT_K}},
    {"#cbe6e4", "#222222", {EA_MARK_WAIT_V, EA_MARK_SLOT_V}},
    {"#f3d9bd", "#222222", {EA_MARK_WAIT_P, EA_MARK_WAIT_MAX}},
    {"#dccfe6", "#222222", {EA_MARK_WAIT_Q, EA_MARK_SLOT_Q}},
    {"#e4e4e4", "#222222", {EA_MARK_WAIT_TURN, EA_MARK_MEET}},
    {"#444444", "#ffffff", {EA_MARK_FINISH}},
    {"#999999", "#ffffff", {EA_MARK_FIND}},
};
enum { NUM_LOOKS = sizeof looks / sizeof looks[0] };

static int look_of(ea_mark_kind kind) {
  for (int l = 0; l < NUM_LOOKS; l++) {
    for (int k = 0; k < 4 && looks[l].kinds[k] != EA_MARK_NONE; k++) {
      if (looks[l].kinds[k] == kind) return l;
    }
  }
  return NUM_LOOKS - 1;
}

/* The kind that a phase is called after; EA_MARK_NONE: none is. */
static ea_mark_kind kind_called(const char *name) {
  for (int kind = EA_MARK_NONE + 1; kind < EA_MARK_END; kind++) {
    if (!strcmp(ea_mark_name((ea_mark_kind)kind), name)) return (ea_mark_kind)kind;
  }
  return EA_MARK_NONE;
}

typedef struct row {
  int tid;
  char name[32];
} row;

typedef struct picture {
  const json_t *events;
  int block;
  double from_us, length_us;
  row rows[EA_MARK_TRACKS];
  int num_rows;
} picture;

/* ---- reading ------------------------------------------------------------------------------------- */

static bool is_of_block(const json_t *event, int block) {
  const json_t *pid = json_object_get(event, "pid");
  return json_is_integer(pid) && json_integer_value(pid) == block;
}

/* A phase of the block; false: something else. */
static bool read_phase(const json_t *event, const picture *p, ea_mark_kind *kind, int *tid, double *begin_us,
                       double *end_us) {
  if (strcmp(ea_plot_text(event, "cat"), "phase") != 0 || !is_of_block(event, p->block)) return false;
  const json_t *begin = json_object_get(event, "ts"), *duration = json_object_get(event, "dur");
  *kind = kind_called(ea_plot_text(event, "name"));
  *tid = (int)json_integer_value(json_object_get(event, "tid"));
  *begin_us = json_number_value(begin);
  *end_us = *begin_us + json_number_value(duration);
  return *kind != EA_MARK_NONE && json_is_number(begin) && json_is_number(duration);
}

static void read_rows(picture *p) {
  size_t i;
  json_t *event;
  json_array_foreach((json_t *)p->events, i, event) {
    if (strcmp(ea_plot_text(event, "name"), "thread_name") != 0 || !is_of_block(event, p->block)) continue;
    if (p->num_rows == EA_MARK_TRACKS) break;
    row *r = &p->rows[p->num_rows++];
    r->tid = (int)json_integer_value(json_object_get(event, "tid"));
    snprintf(r->name, sizeof r->name, "%s", ea_plot_text(json_object_get(event, "args"), "name"));
  }
}

/* From the top; -1: there is no such row. */
static int row_of(const picture *p, int tid) {
  for (int r = 0; r < p->num_rows; r++) {
    if (p->rows[r].tid == tid) return r;
  }
  return -1;
}

/* Where not asked for: from the middle of what all rows have. False: there is nothing. */
static bool choose_view(const ea_plot_view *view, picture *p) {
  double first_us[EA_MARK_TRACKS] = {0}, last_us[EA_MARK_TRACKS] = {0}, begin_us, end_us;
  bool found[EA_MARK_TRACKS] = {false};
  size_t i;
  json_t *event;
  json_array_foreach((json_t *)p->events, i, event) {
    ea_mark_kind kind;
    int tid;
    if (!read_phase(event, p, &kind, &tid, &begin_us, &end_us)) continue;
    const int r = row_of(p, tid);
    if (r < 0) continue;
    if (!found[r] || begin_us < first_us[r]) first_us[r] = begin_us;
    if (!found[r] || end_us > last_us[r]) last_us[r] = end_us;
    found[r] = true;
  }
  bool any = false;
  double first = 0, last = 0;
  for (int r = 0; r < p->num_rows; r++) {
    if (!found[r]) continue;
    if (!any || first_us[r] > first) first = first_us[r];
    if (!any || last_us[r] < last) last = last_us[r];
    any = true;
  }
  const double middle = (first + last - p->length_us) / 2;
  p->from_us = view->from_us >= 0 ? view->from_us : middle > first ? middle : first;
  return any;
}

static bool read_picture(const json_t *root, const ea_plot_view *view, picture *p) {
  *p = (picture){.events = json_object_get(root, "traceEvents"), .block = view->block, .length_us = view->length_us};
  if (!json_is_array(p->events)) {
    (void)ea_fail(EA_ERR_INVALID, "traceEvents: found no list, allowed the timeline of a launch");
    return false;
  }
  read_rows(p);
  if (p->num_rows > 0 && choose_view(view, p)) return true;
  (void)ea_fail(EA_ERR_INVALID, "block: found no span of block %d, allowed one that was recorded", p->block);
  return false;
}

/* ---- the script ----------------------------------------------------------------------------------- */

/* Half of a bar, where rows are 1 apart. */
#define HALF_BAR 0.36

/* A phase as it is drawn: where it is in view, relative to the view's beginning. */
typedef struct bar {
  ea_mark_kind kind;
  int row;
  double begin_us, end_us;
  const json_t *tile; /* NULL: not of one */
} bar;

static bool read_bar(const picture *p, const json_t *event, bar *b) {
  int tid;
  if (!read_phase(event, p, &b->kind, &tid, &b->begin_us, &b->end_us)) return false;
  b->row = row_of(p, tid);
  b->tile = json_object_get(json_object_get(event, "args"), "tile");
  b->begin_us -= p->from_us;
  b->end_us -= p->from_us;
  if (b->row < 0 || b->end_us <= 0 || b->begin_us >= p->length_us) return false;
  if (b->begin_us < 0) b->begin_us = 0;
  if (b->end_us > p->length_us) b->end_us = p->length_us;
  return true;
}

/* Bars of one look, as gnuplot's boxxyerror takes them; marks the kinds among them. */
static void print_bars(const picture *p, int l, bool drawn[EA_NUM_MARK_KINDS], FILE *script) {
  size_t i;
  json_t *event;
  bar b;
  fprintf(script, "$bars%d << EOD\n", l);
  json_array_foreach((json_t *)p->events, i, event) {
    if (!read_bar(p, event, &b) || look_of(b.kind) != l) continue;
    fprintf(script, "%.9g %d %.9g %.9g %.9g %.9g\n", b.begin_us, -b.row, b.begin_us, b.end_us, -b.row - HALF_BAR,
            -b.row + HALF_BAR);
    drawn[b.kind] = true;
  }
  fputs("EOD\n", script);
}

/* A tile's number in bars of one look that have room for it; how many. */
static int print_tiles(const picture *p, int l, FILE *script) {
  size_t i;
  json_t *event;
  bar b;
  int count = 0;
  fprintf(script, "$tiles%d << EOD\n", l);
  json_array_foreach((json_t *)p->events, i, event) {
    if (!read_bar(p, event, &b) || look_of(b.kind) != l || !b.tile) continue;
    if (b.end_us - b.begin_us < 0.025 * p->length_us) continue;
    fprintf(script, "%.9g %d \"%d\"\n", (b.begin_us + b.end_us) / 2, -b.row, (int)json_integer_value(b.tile));
    count++;
  }
  fputs("EOD\n", script);
  return count;
}

static void print_heading(const json_t *root, const picture *p, FILE *script) {
  const json_t *shape = json_object_get(root, "shape"), *plan = json_object_get(root, "plan");
  char title[160], subtitle[320], device[128];
  snprintf(title, sizeof title, "%s, block %d, from %.1f us", ea_plot_text(plan, "kernel"), p->block, p->from_us);
  ea_plot_device_text(json_object_get(root, "device"), device, sizeof device);
  snprintf(subtitle, sizeof subtitle, "%s, %d/%d heads, %s, depth %d, extattn %s, %s", device,
           (int)json_integer_value(json_object_get(shape, "num_q_heads")),
           (int)json_integer_value(json_object_get(shape, "num_kv_heads")), ea_plot_text(shape, "batch"),
           (int)json_integer_value(json_object_get(plan, "stages")), ea_plot_text(root, "version"),
           ea_plot_text(root, "date"));
  ea_plot_style(script, title, subtitle);
}

/* Heights in pixels: the heading, rows, the axis, the key. */
static void print_axes(const picture *p, int num_entries, ea_plot_format format, FILE *script) {
  const int heading = 80, rows = 52 * p->num_rows, axis = 62;
  const int key_rows = (num_entries + 3) / 4, key = 24 * key_rows + 10;
  const double height = heading + rows + axis + key;
  ea_plot_terminal(script, format, height);
  fprintf(script,
          "set label 1 at screen 0.02,%.9g\n"
          "set label 2 at screen 0.02,%.9g\n"
          "set rmargin at screen 0.98\nset lmargin at screen 0.155\nset tmargin at screen %.9g\n"
          "set bmargin at screen %.9g\nunset grid\nset border 1\n"
          "set xrange [0:%.9g]\nset yrange [%.9g:0.5]\nset xlabel 'us' offset 0,0.4 textcolor rgb '#222222'\n"
          "set key at screen 0.57,%.9g center top vertical maxrows %d width 0 samplen 1.2 spacing 1.3 font ',12'\n"
          "set style fill solid 1.0 noborder\nset ytics scale 0 (",
          1 - 28 / height, 1 - 54 / height, 1 - heading / height, (axis + key) / height, p->length_us,
          0.5 - p->num_rows, key / height, key_rows);
  for (int r = 0; r < p->num_rows; r++) {
    fputs(r ? ", " : "", script);
    ea_plot_quoted(script, p->rows[r].name);
    fprintf(script, " %d", -r);
  }
  fputs(")\n", script);
}

/* "wait K, wait K free": what of a look is in the picture; "" for nothing. */
static void name_look(int l, const bool drawn[EA_NUM_MARK_KINDS], char *text, size_t n) {
  text[0] = 0;
  for (int k = 0; k < 4 && looks[l].kinds[k] != EA_MARK_NONE; k++) {
    const size_t used = strlen(text);
    if (!drawn[looks[l].kinds[k]]) continue;
    snprintf(text + used, n - used, "%s%s", used ? ", " : "", ea_mark_name(looks[l].kinds[k]));
  }
}

static void print_script(const json_t *root, const picture *p, ea_plot_format format, FILE *script) {
  bool drawn[EA_NUM_MARK_KINDS] = {false};
  char names[NUM_LOOKS][64];
  int num_entries = 0, tiles[NUM_LOOKS];
  print_heading(root, p, script);
  for (int l = 0; l < NUM_LOOKS; l++) {
    print_bars(p, l, drawn, script);
    tiles[l] = print_tiles(p, l, script);
    name_look(l, drawn, names[l], sizeof names[l]);
    num_entries += names[l][0] != 0;
  }
  print_axes(p, num_entries, format, script);
  fputs("plot NaN notitle", script);
  for (int l = 0; l < NUM_LOOKS; l++) {
    if (!names[l][0]) continue; /* gnuplot does not survive empty data */
    fprintf(script, ", $bars%d using 1:2:3:4:5:6 with boxxyerror linecolor rgb '%s' title '%s'", l, looks[l].color,
            names[l]);
    if (tiles[l] == 0) continue;
    fprintf(script, ", $tiles%d using 1:2:3 with labels font ',10' textcolor rgb '%s' notitle", l, looks[l].text_color);
  }
  fputc('\n', script);
}

bool ea_plot_timeline_script(const json_t *result, const ea_plot_view *view, ea_plot_format format, FILE *script) {
  picture p;
  if (!read_picture(result, view, &p)) return false;
  print_script(result, &p, format, script);
  return true;
}
