/* See plot_script.h. */
#include "plot_script.h"

#include <math.h>
#include <string.h>

#include "common/error.h"

bool ea_plot_number(const json_t *object, const char *key, bool positive, double *value) {
  const json_t *number = json_object_get(object, key);
  *value = json_number_value(number);
  if (json_is_number(number) && isfinite(*value) && (positive ? *value > 0 : *value >= 0)) return true;
  (void)ea_fail(EA_ERR_INVALID, "%s: found %s, allowed a number %s 0", key, number ? "something else" : "nothing",
                positive ? ">" : ">=");
  return false;
}

const char *ea_plot_text(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "?";
}

void ea_plot_device_text(const json_t *device, char *text, size_t n) {
  const json_int_t threads = json_integer_value(json_object_get(device, "threads"));
  const char *name = ea_plot_text(device, "name"), *arch = ea_plot_text(device, "arch");
  if (strcmp(ea_plot_text(device, "type"), "cpu") != 0) {
    snprintf(text, n, "%s (%s)", name, arch);
  } else {
    snprintf(text, n, "%s (%s, %lld thread%s)", name, arch, (long long)threads, threads == 1 ? "" : "s");
  }
}

void ea_plot_quoted(FILE *script, const char *text) {
  fputc('\'', script);
  for (; *text; text++) {
    if (*text == '\'') fputc('\'', script);
    fputc((unsigned char)*text < ' ' ? '?' : *text, script);
  }
  fputc('\'', script);
}

void ea_plot_terminal(FILE *script, ea_plot_format format, double height) {
  static const char look[] = "enhanced background '#ffffff'";
  switch (format) {
  case EA_PLOT_SVG:
    fprintf(script, "set terminal svg size %d,%.0f dynamic %s font 'Helvetica,Arial,sans-serif,14'\n", EA_PLOT_WIDTH,
            height, look);
    break;
  case EA_PLOT_PNG: /* twice as fine */
    fprintf(script, "set terminal pngcairo size %d,%.0f %s font 'Sans,14' fontscale 1.5 linewidth 2 pointscale 2\n",
            2 * EA_PLOT_WIDTH, 2 * height, look);
    break;
  case EA_PLOT_PDF: /* 96 points of a screen are an inch */
    fprintf(script, "set terminal pdfcairo size %.9gin,%.9gin %s font 'Sans,14' fontscale 0.75\n", EA_PLOT_WIDTH / 96.0,
            height / 96.0, look);
    break;
  }
}

void ea_plot_style(FILE *script, const char *title, const char *subtitle) {
  static const char style[] = "set encoding utf8\n"
                              "set border 3 linecolor rgb '#555555'\n"
                              "set tics nomirror out textcolor rgb '#222222'\n"
                              "set format y '%g'\n"
                              "set grid xtics ytics linecolor rgb '#dddddd' linewidth 1 dashtype 1\n"
                              "set key at screen 0.09,0.88 left top horizontal reverse Left samplen 2.5 width 1 "
                              "noopaque textcolor rgb '#222222'\n"
                              "set lmargin at screen 0.095\n"
                              "set tmargin at screen 0.82\n"
                              "set bmargin at screen 0.13\n";
  fputs(style, script);
  fputs("set label 1 ", script);
  ea_plot_quoted(script, title);
  fputs(" at screen 0.095,0.955 left noenhanced font ',20' textcolor rgb '#111111'\nset label 2 ", script);
  ea_plot_quoted(script, subtitle);
  fputs(" at screen 0.095,0.905 left noenhanced font ',13' textcolor rgb '#666666'\n", script);
}
