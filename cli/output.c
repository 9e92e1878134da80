/* What the commands print: messages, tables, numbers, JSON. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

ea_exit ea_exit_of(ea_status status) {
  switch (status) {
  case EA_OK:
    return EA_EXIT_OK;
  case EA_ERR_INVALID:
    return EA_EXIT_BAD_INPUT;
  case EA_ERR_UNSUPPORTED:
  case EA_ERR_NO_DEVICE:
  case EA_ERR_OUT_OF_MEMORY:
  case EA_ERR_DOES_NOT_FIT:
    return EA_EXIT_DEVICE;
  default:
    return EA_EXIT_FAILURE;
  }
}

void ea_message(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%s: ", program_invocation_name);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
}

ea_exit ea_exit_failed(ea_status status) {
  ea_message("%s", ea_last_error());
  return ea_exit_of(status);
}

bool ea_wants_color(FILE *stream) {
  const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
  if (no_color && *no_color) return false;
  return isatty(fileno(stream)) && !(term && !strcmp(term, "dumb"));
}

ea_text ea_count_text(int64_t value) {
  char digits[24];
  const int n = snprintf(digits, sizeof digits, "%lld", (long long)value);
  ea_text out;
  char *o = out.text;
  for (int i = 0; i < n; i++) {
    const int left = n - i;
    if (left % 3 == 0 && i > 0 && digits[i - 1] != '-') *o++ = ',';
    *o++ = digits[i];
  }
  *o = 0;
  return out;
}

/* ------------------------------------------------------------------------------------
 * Tables
 * ---------------------------------------------------------------------------------- */

enum { MAX_COLUMNS = 16, COLUMN_GAP = 2, MIN_WRAPPED = 24 };

struct ea_table {
  ea_column columns[MAX_COLUMNS];
  int num_columns;
  int num_rows;
  char **cells; /* [num_rows][num_columns] */
};

ea_table *ea_table_new(const ea_column *columns, int num_columns) {
  ea_table *table = calloc(1, sizeof *table);
  if (!table || num_columns > MAX_COLUMNS) {
    free(table);
    return NULL;
  }
  memcpy(table->columns, columns, (size_t)num_columns * sizeof *columns);
  table->num_columns = num_columns;
  return table;
}

void ea_table_add(ea_table *table, ...) {
  if (!table) return;
  const size_t n = (size_t)table->num_columns, old = (size_t)table->num_rows * n;
  char **cells = realloc(table->cells, (old + n) * sizeof *cells);
  if (!cells) return;
  table->cells = cells;
  va_list args;
  va_start(args, table);
  for (size_t i = 0; i < n; i++) cells[old + i] = strdup(va_arg(args, const char *));
  va_end(args);
  table->num_rows++;
}

/* Characters, not bytes, of UTF-8 text. */
static int text_width(const char *text) {
  int width = 0;
  for (; *text; text++) width += ((unsigned char)*text & 0xC0) != 0x80;
  return width;
}

static const char *cell_of(const ea_table *table, int row, int column) {
  const char *cell = table->cells[row * table->num_columns + column];
  return cell ? cell : "";
}

static int terminal_width(FILE *stream) {
  struct winsize size;
  if (!isatty(fileno(stream)) || ioctl(fileno(stream), TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

/* Words of text in lines of at most width characters, the later ones behind an indent. */
static void print_wrapped(FILE *stream, const char *text, int indent, int width) {
  int used = 0;
  while (*text) {
    const size_t word = strcspn(text, " ");
    if (used && used + 1 + (int)word > width) {
      fprintf(stream, "\n%*s", indent, "");
      used = 0;
    }
    used += fprintf(stream, "%s%.*s", used ? " " : "", (int)word, text);
    text += word;
    text += strspn(text, " ");
  }
}

static void print_cell(FILE *stream, const char *text, int width, bool left, bool last) {
  const int padding = width - text_width(text);
  if (!left) fprintf(stream, "%*s", padding, "");
  fputs(text, stream);
  if (left && !last) fprintf(stream, "%*s", padding, "");
  if (!last) fprintf(stream, "%*s", COLUMN_GAP, "");
}

void ea_table_print(ea_table *table, FILE *stream) {
  if (!table) return;
  const int n = table->num_columns;
  int widths[MAX_COLUMNS], last_at = 0;
  for (int c = 0; c < n; c++) {
    widths[c] = text_width(table->columns[c].header);
    for (int r = 0; r < table->num_rows; r++) {
      const int width = text_width(cell_of(table, r, c));
      if (width > widths[c]) widths[c] = width;
    }
    if (c < n - 1) last_at += widths[c] + COLUMN_GAP;
  }
  const bool bold = ea_wants_color(stream);
  if (bold) fputs("\033[1m", stream);
  for (int c = 0; c < n; c++) {
    print_cell(stream, table->columns[c].header, widths[c], table->columns[c].left, c == n - 1);
  }
  fputs(bold ? "\033[0m\n" : "\n", stream);
  const int room = terminal_width(stream) - last_at;
  const bool wrap = table->columns[n - 1].left && room >= MIN_WRAPPED && room < widths[n - 1];
  for (int r = 0; r < table->num_rows; r++) {
    for (int c = 0; c < n - 1; c++) print_cell(stream, cell_of(table, r, c), widths[c], table->columns[c].left, false);
    if (wrap) {
      print_wrapped(stream, cell_of(table, r, n - 1), last_at, room);
    } else {
      print_cell(stream, cell_of(table, r, n - 1), widths[n - 1], table->columns[n - 1].left, true);
    }
    fputc('\n', stream);
  }
  for (int i = 0; i < table->num_rows * n; i++) free(table->cells[i]);
  free(table->cells);
  free(table);
}

bool ea_json_print(json_t *value, FILE *stream) {
  const bool ok = value && json_dumpf(value, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0;
  json_decref(value);
  if (ok && fputc('\n', stream) != EOF) return true;
  ea_message("JSON: %s", errno ? strerror(errno) : "out of memory");
  return false;
}
