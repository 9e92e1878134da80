/* What the commands print: messages, tables, numbers, JSON. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "common/error.h"
#include "io/new_file.h"

int ea_exit_of(ea_status status) {
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

int ea_exit_failed(ea_status status) {
  ea_message("%s", ea_last_error());
  return ea_exit_of(status);
}

int ea_exit_failed_in(const char *path, ea_status status) {
  const char *text = ea_last_error();
  const size_t n = strlen(path);
  const bool named = !strncmp(text, path, n) && text[n] == ':';
  if (status != EA_ERR_INVALID || named) return ea_exit_failed(status);
  ea_message("%s: %s", path, text);
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

static void print_cell(FILE *stream, const ea_column *column, const char *text, bool last) {
  const int padding = column->width - text_width(text);
  if (!column->left) fprintf(stream, "%*s", padding > 0 ? padding : 0, "");
  fputs(text, stream);
  if (!last) fprintf(stream, "%*s", COLUMN_GAP + (column->left && padding > 0 ? padding : 0), "");
}

/* At least as wide as its header. */
static ea_column widened(const ea_column *column) {
  ea_column out = *column;
  const int width = text_width(column->header);
  if (out.width < width) out.width = width;
  return out;
}

void ea_header_print(FILE *stream, const ea_column *columns, int num_columns) {
  const bool bold = ea_wants_color(stream);
  if (bold) fputs("\033[1m", stream);
  for (int c = 0; c < num_columns; c++) {
    const ea_column column = widened(&columns[c]);
    print_cell(stream, &column, column.header, c == num_columns - 1);
  }
  fputs(bold ? "\033[0m\n" : "\n", stream);
}

void ea_row_print(FILE *stream, const ea_column *columns, int num_columns, ...) {
  va_list args;
  va_start(args, num_columns);
  for (int c = 0; c < num_columns; c++) {
    const ea_column column = widened(&columns[c]);
    print_cell(stream, &column, va_arg(args, const char *), c == num_columns - 1);
  }
  fputc('\n', stream);
  va_end(args);
}

static void fit_columns(ea_table *table) {
  for (int c = 0; c < table->num_columns; c++) {
    for (int r = 0; r < table->num_rows; r++) {
      const int width = text_width(cell_of(table, r, c));
      if (width > table->columns[c].width) table->columns[c].width = width;
    }
    table->columns[c] = widened(&table->columns[c]);
  }
}

static void print_rows(const ea_table *table, FILE *stream) {
  const int last = table->num_columns - 1;
  int indent = 0;
  for (int c = 0; c < last; c++) indent += table->columns[c].width + COLUMN_GAP;
  const int room = terminal_width(stream) - indent;
  const bool wrap = table->columns[last].left && room >= MIN_WRAPPED && room < table->columns[last].width;
  for (int r = 0; r < table->num_rows; r++) {
    for (int c = 0; c < last; c++) print_cell(stream, &table->columns[c], cell_of(table, r, c), false);
    if (wrap) {
      print_wrapped(stream, cell_of(table, r, last), indent, room);
    } else {
      print_cell(stream, &table->columns[last], cell_of(table, r, last), true);
    }
    fputc('\n', stream);
  }
}

void ea_table_print(ea_table *table, FILE *stream) {
  if (!table) return;
  fit_columns(table);
  ea_header_print(stream, table->columns, table->num_columns);
  print_rows(table, stream);
  for (int i = 0; i < table->num_rows * table->num_columns; i++) free(table->cells[i]);
  free(table->cells);
  free(table);
}

/* ------------------------------------------------------------------------------------
 * JSON
 * ---------------------------------------------------------------------------------- */

json_t *ea_json_date(void) {
  char text[32] = "";
  const time_t now = time(NULL);
  struct tm utc;
  if (gmtime_r(&now, &utc)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return json_string(text);
}

#define JSON_STYLE (JSON_INDENT(2) | JSON_REAL_PRECISION(9))

bool ea_json_print(json_t *value, FILE *stream) {
  errno = 0;
  const bool ok = value && json_dumpf(value, stream, JSON_STYLE) == 0 && fputc('\n', stream) != EOF;
  if (!ok) ea_message("JSON: %s", errno ? strerror(errno) : "out of memory");
  json_decref(value);
  return ok;
}

json_t *ea_json_as_written(const json_t *value) {
  char *text = json_dumps(value, JSON_STYLE);
  json_t *read = text ? json_loads(text, 0, NULL) : NULL;
  free(text);
  return read;
}

static int write_part(const char *text, size_t size, void *file) {
  ea_new_file_write(file, text, size);
  return 0;
}

/* Into a file that is dropped when anything fails. */
static ea_status write_json(const json_t *value, const char *path) {
  ea_new_file *file;
  const ea_status status = ea_new_file_open(path, &file);
  if (status != EA_OK) return status;
  if (!value || json_dump_callback(value, write_part, file, JSON_STYLE) != 0) {
    ea_new_file_discard(file);
    return ea_fail(EA_ERR_OUT_OF_MEMORY, "%s: no memory for its JSON", path);
  }
  ea_new_file_write(file, "\n", 1);
  return ea_new_file_commit(file);
}

bool ea_json_write(json_t *value, const char *path) {
  const ea_status status = write_json(value, path);
  if (status != EA_OK) ea_message("%s", ea_last_error());
  json_decref(value);
  return status == EA_OK;
}
