/* The plot of a bench suite: the speed of each shape at each pipeline depth, and the ceiling. */
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "plot_script.h"

enum { MAX_DEPTHS = 8, MAX_SHAPES = 64 };

/* The rows of one shape. */
typedef struct shape {
  char label[160];
  double speed[MAX_DEPTHS]; /* 0: not measured */
} shape;

typedef struct bench_data {
  shape shapes[MAX_SHAPES];
  int num_shapes;
  int depths[MAX_DEPTHS]; /* as asked for; 0: automatic */
  int num_depths;
  bool memory_bound; /* speed is GB/s, else TFLOP/s */
  double ceiling;    /* 0: not known */
} bench_data;

static int find_depth(bench_data *data, int depth) {
  for (int i = 0; i < data->num_depths; i++) {
    if (data->depths[i] == depth) return i;
  }
  if (data->num_depths == MAX_DEPTHS) return -1;
  data->depths[data->num_depths] = depth;
  return data->num_depths++;
}

static int find_shape(bench_data *data, const char *label) {
  for (int i = 0; i < data->num_shapes; i++) {
    if (!strcmp(data->shapes[i].label, label)) return i;
  }
  if (data->num_shapes == MAX_SHAPES) return -1;
  snprintf(data->shapes[data->num_shapes].label, sizeof data->shapes[0].label, "%s", label);
  return data->num_shapes++;
}

/* "64 x (8192+512), w 1024"; of a trace "100 requests". */
static bool batch_text(const json_t *row, char *text, size_t n) {
  double requests, seqs, prefix, extend, window;
  if (json_object_get(row, "requests")) {
    if (!ea_plot_number(row, "requests", true, &requests)) return false;
    snprintf(text, n, "%.0f requests", requests);
    return true;
  }
  if (!ea_plot_number(row, "seqs", true, &seqs) || !ea_plot_number(row, "prefix", false, &prefix) ||
      !ea_plot_number(row, "extend", true, &extend) || !ea_plot_number(row, "window", false, &window)) {
    return false;
  }
  char tokens[64], windowed[24] = "";
  const char *shortest = json_is_true(json_object_get(row, "ragged")) ? "1 to " : "";
  if (prefix > 0) {
    snprintf(tokens, sizeof tokens, "(%.0f+%s%.0f)", prefix, shortest, extend);
  } else {
    snprintf(tokens, sizeof tokens, "%s%.0f", shortest, extend);
  }
  if (window > 0) snprintf(windowed, sizeof windowed, ", w %.0f", window);
  snprintf(text, n, "%.0f x %s%s", seqs, tokens, windowed);
  return true;
}

/* Of the types that there are; "" for none (records of long ago have none). */
static const char *type_name(const json_t *row) {
  static const ea_dtype types[] = {EA_BF16, EA_F16, EA_F32};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    if (!strcmp(ea_plot_text(row, "dtype"), ea_dtype_name(types[i]))) return ea_dtype_name(types[i]);
  }
  return "";
}

/* Three lines: type and head dimensions, heads (and "ordered" where slots are), batch. Of our own words and numbers, so
 * it needs no quoting. */
static bool make_label(const json_t *row, char *label, size_t n) {
  double dim, dim_v, heads_q, heads_kv;
  char dims[32], batch[96];
  if (!ea_plot_number(row, "head_dim", true, &dim) || !ea_plot_number(row, "head_dim_v", true, &dim_v) ||
      !ea_plot_number(row, "num_q_heads", true, &heads_q) || !ea_plot_number(row, "num_kv_heads", true, &heads_kv) ||
      !batch_text(row, batch, sizeof batch)) {
    return false;
  }
  snprintf(dims, sizeof dims, dim == dim_v ? "%.0f" : "%.0f/%.0f", dim, dim_v);
  const char *type = type_name(row);
  const bool ordered = !strcmp(ea_plot_text(row, "slots"), "ordered");
  snprintf(label, n, "%s%s%s\\n%.0f/%.0f%s\\n%s", type, *type ? " " : "", dims, heads_q, heads_kv,
           ordered ? ", ordered" : "", batch);
  return true;
}

static bool read_row(const json_t *row, bench_data *data) {
  double depth, speed;
  char label[160];
  if (!ea_plot_number(row, "stages_asked", false, &depth) || !make_label(row, label, sizeof label)) return false;
  const int s = find_shape(data, label), d = find_depth(data, depth < 1e6 ? (int)depth : 0);
  if (s < 0 || d < 0) {
    (void)ea_fail(EA_ERR_INVALID, "rows: found more than %d shapes or %d depths, allowed these", MAX_SHAPES,
                  MAX_DEPTHS);
    return false;
  }
  if (json_object_get(row, "error")) return true; /* it did not fit: no bar */
  if (!ea_plot_number(row, data->memory_bound ? "gbytes_per_s" : "tflops", true, &speed)) return false;
  data->shapes[s].speed[d] = speed;
  return true;
}

static bool read_bench(const json_t *root, bench_data *data) {
  const json_t *rows = json_object_get(root, "rows"), *ceilings = json_object_get(root, "ceilings");
  data->memory_bound = json_is_true(json_object_get(root, "memory_bound"));
  if (json_array_size(rows) == 0) {
    (void)ea_fail(EA_ERR_INVALID, "rows: found none, allowed the result of a suite");
    return false;
  }
  for (size_t i = 0; i < json_array_size(rows); i++) {
    if (!read_row(json_array_get(rows, i), data)) return false;
  }
  return ea_plot_number(ceilings, data->memory_bound ? "copy_gbytes_per_s" : "product_tflops", false, &data->ceiling);
}

static void print_data(const bench_data *data, FILE *script) {
  fputs("$shapes << EOD\n", script);
  for (int s = 0; s < data->num_shapes; s++) {
    fprintf(script, "\"%s\"", data->shapes[s].label);
    for (int d = 0; d < data->num_depths; d++) {
      const double speed = data->shapes[s].speed[d];
      if (speed > 0) {
        fprintf(script, " %.9g", speed);
      } else {
        fputs(" NaN", script);
      }
    }
    fputc('\n', script);
  }
  fputs("EOD\n", script);
}

static void print_script(const json_t *root, const bench_data *data, ea_plot_format format, FILE *script) {
  static const char *const colors[MAX_DEPTHS] = {"#b3c6e0", "#6f97c8", "#2f6bb0", "#d8842a",
                                                 "#5ec962", "#21918c", "#8d6cab", "#888888"};
  const char *unit = data->memory_bound ? "GB/s" : "TFLOP/s";
  char title[128], subtitle[256], device[128];
  snprintf(title, sizeof title, "extattn bench %s", ea_plot_text(root, "suite"));
  ea_plot_device_text(json_object_get(root, "device"), device, sizeof device);
  snprintf(subtitle, sizeof subtitle, "%s, extattn %s, %s", device, ea_plot_text(root, "version"),
           ea_plot_text(root, "date"));
  ea_plot_terminal(script, format, EA_PLOT_HEIGHT);
  ea_plot_style(script, title, subtitle);
  fprintf(script,
          "set rmargin at screen 0.97\nset bmargin at screen 0.2\nset ylabel '%s' offset 0,0 textcolor rgb '#222222'\n"
          "set xlabel 'type, head dim, heads, batch' offset 0,-2.2 textcolor rgb '#222222'\nset yrange [0:*]\n"
          "unset grid\nset grid ytics linecolor rgb '#dddddd' linewidth 1 dashtype 1\n"
          "set style data histograms\nset style histogram clustered gap 1\nset style fill solid 1.0 noborder\n"
          "set xtics scale 0 font ',12'\n",
          unit);
  print_data(data, script);
  fputs("plot", script);
  for (int d = 0; d < data->num_depths; d++) {
    char depth[24] = "depth auto";
    if (data->depths[d] > 0) snprintf(depth, sizeof depth, "depth %d", data->depths[d]);
    fprintf(script, "%s $shapes using %d:xtic(1) linecolor rgb '%s' title '%s'", d ? "," : "", d + 2, colors[d], depth);
  }
  if (data->ceiling > 0) {
    fprintf(script, ", %.9g with lines dashtype 2 linewidth 1.5 linecolor rgb '#888888' title '%s, %.4g %s'",
            data->ceiling, data->memory_bound ? "a copy" : "cuBLAS", data->ceiling, unit);
  }
  fputc('\n', script);
}

bool ea_plot_bench_script(const json_t *result, ea_plot_format format, FILE *script) {
  bench_data *data = calloc(1, sizeof *data);
  if (!data) {
    (void)ea_fail(EA_ERR_OUT_OF_MEMORY, "result: no memory");
    return false;
  }
  const bool ok = read_bench(result, data);
  if (ok) print_script(result, data, format, script);
  free(data);
  return ok;
}
