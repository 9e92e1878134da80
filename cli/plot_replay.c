/* The plot of a replay: each batch's time against its visible pairs, with lines of equal speed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "plot_script.h"

typedef struct batch {
  double visible_pairs, elapsed_ms;
  double prefix_share; /* of the keys: prefix / (prefix + new), 0 to 1 */
} batch;

typedef struct replay_data {
  batch *batches;
  size_t num_batches;
  double flop_per_pair;
  double tflops;      /* of all batches */
  double best_tflops; /* of one */
  double min_pairs, max_pairs, min_ms, max_ms;
  bool log_axes;
  char title[256], subtitle[256];
} replay_data;

/* ------------------------------------------------------------------------------------
 * The result, read back
 * ---------------------------------------------------------------------------------- */

static bool read_batch(const json_t *item, batch *b) {
  double prefix, extend;
  if (!ea_plot_number(item, "visible_pairs", true, &b->visible_pairs) ||
      !ea_plot_number(item, "elapsed_ms", true, &b->elapsed_ms) ||
      !ea_plot_number(item, "prefix_tokens", false, &prefix) || !ea_plot_number(item, "new_tokens", true, &extend)) {
    return false;
  }
  b->prefix_share = prefix / (prefix + extend);
  return true;
}

static bool read_batches(const json_t *list, replay_data *data) {
  data->num_batches = json_array_size(list);
  if (data->num_batches == 0) {
    (void)ea_fail(EA_ERR_INVALID, "batches: found none, allowed the result of a run");
    return false;
  }
  data->batches = calloc(data->num_batches, sizeof *data->batches);
  if (!data->batches) {
    (void)ea_fail(EA_ERR_OUT_OF_MEMORY, "batches: no memory for %zu", data->num_batches);
    return false;
  }
  for (size_t i = 0; i < data->num_batches; i++) {
    batch *b = &data->batches[i];
    if (!read_batch(json_array_get(list, i), b)) return false;
    const double tflops = data->flop_per_pair * b->visible_pairs / b->elapsed_ms * 1e-9;
    if (tflops > data->best_tflops) data->best_tflops = tflops;
    if (i == 0 || b->visible_pairs < data->min_pairs) data->min_pairs = b->visible_pairs;
    if (i == 0 || b->elapsed_ms < data->min_ms) data->min_ms = b->elapsed_ms;
    if (b->visible_pairs > data->max_pairs) data->max_pairs = b->visible_pairs;
    if (b->elapsed_ms > data->max_ms) data->max_ms = b->elapsed_ms;
  }
  return true;
}

static int compare_pairs(const void *a, const void *b) {
  const double x = ((const batch *)a)->visible_pairs, y = ((const batch *)b)->visible_pairs;
  return (x > y) - (x < y);
}

/* Log axes pay where the middle four fifths of the batches differ by a factor of five or more. */
static void choose_axes(replay_data *data) {
  qsort(data->batches, data->num_batches, sizeof *data->batches, compare_pairs);
  const size_t tenth = data->num_batches / 10;
  const double low = data->batches[tenth].visible_pairs;
  const double high = data->batches[data->num_batches - 1 - tenth].visible_pairs;
  data->log_axes = high >= 5 * low;
}

/* The last part of a path. */
static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static bool read_heading(const json_t *root, replay_data *data) {
  const json_t *trace = json_object_get(root, "trace"), *shape = json_object_get(root, "shape");
  double requests, heads_q, heads_kv, dim, dim_v;
  if (!ea_plot_number(trace, "requests", true, &requests) || !ea_plot_number(shape, "num_q_heads", true, &heads_q) ||
      !ea_plot_number(shape, "num_kv_heads", true, &heads_kv) || !ea_plot_number(shape, "head_dim", true, &dim) ||
      !ea_plot_number(shape, "head_dim_v", true, &dim_v)) {
    return false;
  }
  data->flop_per_pair = 2 * (dim + dim_v) * heads_q;
  snprintf(data->title, sizeof data->title, "%s: %.0f requests in %zu batches", base_name(ea_plot_text(trace, "path")),
           requests, json_array_size(json_object_get(root, "batches")));
  char dims[32], device[128];
  snprintf(dims, sizeof dims, dim == dim_v ? "%.0f" : "%.0f/%.0f", dim, dim_v);
  ea_plot_device_text(json_object_get(root, "device"), device, sizeof device);
  snprintf(data->subtitle, sizeof data->subtitle, "%s, %.0f/%.0f heads, head dim %s, %s, slots: %s", device, heads_q,
           heads_kv, dims, ea_plot_text(shape, "dtype"), ea_plot_text(json_object_get(root, "pool"), "slots"));
  return true;
}

static bool read_replay(const json_t *root, replay_data *data) {
  return read_heading(root, data) && read_batches(json_object_get(root, "batches"), data) &&
         ea_plot_number(json_object_get(root, "totals"), "tflops", true, &data->tflops);
}

/* ------------------------------------------------------------------------------------
 * The script
 * ---------------------------------------------------------------------------------- */

/* A unit for axis numbers of a readable length. */
typedef struct unit {
  double size;
  const char *name;
} unit;

static unit unit_of(double largest) {
  if (largest >= 2e9) return (unit){1e9, "billions"};
  if (largest >= 2e6) return (unit){1e6, "millions"};
  if (largest >= 2e3) return (unit){1e3, "thousands"};
  return (unit){1, "number"};
}

/* A log axis with some room around the values, and numbers at 1, 2 and 5 of each decade, or at
 * 1 where there are many decades. */
static void print_log_axis(FILE *script, char axis, double min, double max) {
  const double first = min / 1.4, last = max * 1.4;
  const bool many = last / first > 300;
  fprintf(script, "set %crange [%.9g:%.9g]\nset %ctics (", axis, first, last, axis);
  const char *separator = "";
  for (int decade = (int)floor(log10(first)); decade <= (int)log10(last) + 1; decade++) {
    for (int digit = 1; digit <= 9; digit++) {
      const double tic = digit * pow(10, decade);
      if (tic < first || tic > last) continue;
      const bool labelled = digit == 1 || (!many && (digit == 2 || digit == 5));
      fputs(separator, script);
      if (labelled) {
        fprintf(script, "'%g' %g", tic, tic);
      } else {
        fprintf(script, "'' %g 1", tic);
      }
      separator = ", ";
    }
  }
  fputs(")\n", script);
}

static void print_axes(const replay_data *data, unit x, FILE *script) {
  fputs("set format x '%g'\n"
        "set rmargin at screen 0.87\n"
        "set ylabel 'time of a batch, ms' offset 0,0 textcolor rgb '#222222'\n"
        "set cblabel 'prefix, % of the keys' offset -0.5,0 textcolor rgb '#222222'\n"
        "set cbrange [0:100]\n"
        "set cbtics 25 in\n"
        "set colorbox user origin 0.895,0.17 size 0.018,0.6\n"
        "set palette defined (0 '#440154', 25 '#3b528b', 50 '#21918c', 75 '#5ec962', 100 '#d8c520')\n",
        script);
  fprintf(script, "set xlabel 'visible pairs of tokens in a batch, %s' textcolor rgb '#222222'\n", x.name);
  if (data->log_axes) {
    fputs("set logscale xy\n", script);
    print_log_axis(script, 'x', data->min_pairs / x.size, data->max_pairs / x.size);
    print_log_axis(script, 'y', data->min_ms, data->max_ms);
  } else {
    fprintf(script, "set xrange [0:%.9g]\nset yrange [0:%.9g]\n", data->max_pairs / x.size * 1.05, data->max_ms * 1.15);
  }
}

static void print_script(const replay_data *data, ea_plot_format format, FILE *script) {
  const unit x = unit_of(data->max_pairs);
  ea_plot_terminal(script, format, EA_PLOT_HEIGHT);
  ea_plot_style(script, data->title, data->subtitle);
  print_axes(data, x, script);
  fputs("$batches << EOD\n", script);
  for (size_t i = 0; i < data->num_batches; i++) {
    const batch *b = &data->batches[i];
    fprintf(script, "%.17g %.17g %.17g\n", b->visible_pairs / x.size, b->elapsed_ms, 100 * b->prefix_share);
  }
  fputs("EOD\n", script);
  /* Equal speed is a straight line on both kinds of axes. */
  const double ms_per_tflops = data->flop_per_pair * x.size * 1e-9;
  fprintf(script, "mean(x) = x * %.17g\nbest(x) = x * %.17g\n", ms_per_tflops / data->tflops,
          ms_per_tflops / data->best_tflops);
  fprintf(script,
          "plot mean(x) with lines linewidth 1.5 linecolor rgb '#888888' title '%.3g TFLOP/s, all batches', "
          "best(x) with lines linewidth 1.5 dashtype 2 linecolor rgb '#888888' title '%.3g TFLOP/s, the best batch', "
          "$batches using 1:2 with points pointtype 7 pointsize 0.85 linecolor rgb '#ffffff' notitle, "
          "$batches using 1:2:3 with points pointtype 7 pointsize 0.65 linecolor palette notitle\n",
          data->tflops, data->best_tflops);
}

bool ea_plot_replay_script(const json_t *result, ea_plot_format format, FILE *script) {
  replay_data data = {0};
  const bool ok = read_replay(result, &data);
  if (ok) {
    choose_axes(&data);
    print_script(&data, format, script);
  }
  free(data.batches);
  return ok;
}
