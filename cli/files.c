/* See files.h. */
#include "files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "io/new_file.h"

bool ea_is_dash(const char *path) {
  return path && !strcmp(path, "-");
}

/* ------------------------------------------------------------------------------------
 * Which file a path is
 * ---------------------------------------------------------------------------------- */

/* What is there, by device and number; what is not there yet, by its folder's and its name. */
typedef struct identity {
  bool known;
  dev_t device;
  ino_t number;
  const char *name; /* "": the file itself is there */
} identity;

static identity identity_of(const struct stat *info, const char *name) {
  /* A terminal or /dev/null loses nothing when it is taken twice. */
  return (identity){.known = !S_ISCHR(info->st_mode), info->st_dev, info->st_ino, name};
}

static identity identify(const ea_file_use *file) {
  struct stat info;
  if (ea_is_dash(file->path)) {
    const bool there = fstat(file->written ? STDOUT_FILENO : STDIN_FILENO, &info) == 0;
    return there ? identity_of(&info, "") : (identity){0};
  }
  if (stat(file->path, &info) == 0) return identity_of(&info, "");
  const char *slash = strrchr(file->path, '/');
  char *folder = slash ? strndup(file->path, (size_t)(slash - file->path) + 1) : strdup(".");
  const bool there = folder && stat(folder, &info) == 0;
  free(folder);
  return there ? identity_of(&info, slash ? slash + 1 : file->path) : (identity){0};
}

static bool is_same(const ea_file_use *a, const ea_file_use *b) {
  if (a->written && b->written && ea_is_dash(a->path) && ea_is_dash(b->path)) return true;
  const identity x = identify(a), y = identify(b);
  return x.known && y.known && x.device == y.device && x.number == y.number && !strcmp(x.name, y.name);
}

static int refuse_same(const ea_file_use *output, const ea_file_use *other) {
  if (ea_is_dash(output->path)) {
    ea_message("%s: found standard output, taken by %s, allowed another file", output->what, other->what);
  } else {
    ea_message("%s: found '%s', taken by %s, allowed another file", output->what, output->path, other->what);
  }
  return EA_EXIT_BAD_INPUT;
}

/* ------------------------------------------------------------------------------------
 * Whether it can be written
 * ---------------------------------------------------------------------------------- */

static int refuse_unwritable(const char *path, int error) {
  ea_message("%s: cannot write: %s", path, strerror(error));
  return EA_EXIT_FAILURE;
}

static int check_writable(const char *path) {
  struct stat info;
  const bool there = stat(path, &info) == 0;
  if (there && S_ISDIR(info.st_mode)) return refuse_unwritable(path, EISDIR);
  if (there && access(path, W_OK) != 0) return refuse_unwritable(path, errno);
  if (there && !S_ISREG(info.st_mode)) return EA_EXIT_OK; /* who reads a pipe would notice that it is opened twice */
  ea_new_file *file;
  const ea_status status = ea_new_file_open(path, &file);
  if (status != EA_OK) return ea_exit_failed(status);
  ea_new_file_discard(file);
  return EA_EXIT_OK;
}

int ea_folder_check(const char *option, const char *path) {
  struct stat info;
  errno = 0;
  if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) errno = ENOTDIR;
  if (!errno) (void)access(path, W_OK | X_OK);
  if (!errno) return EA_EXIT_OK;
  ea_message("%s: found '%s': %s, allowed a folder to write into", option, path, strerror(errno));
  return EA_EXIT_FAILURE;
}

int ea_files_check(const ea_file_use *files, int num_files) {
  const ea_file_use text = EA_FILE_WRITTEN("standard output", "-");
  struct stat printed;
  const bool text_in_file = fstat(STDOUT_FILENO, &printed) == 0 && S_ISREG(printed.st_mode);
  for (int i = 0; i < num_files; i++) {
    if (!files[i].path || !files[i].written) continue;
    if (text_in_file && !ea_is_dash(files[i].path) && is_same(&files[i], &text)) return refuse_same(&files[i], &text);
    for (int j = 0; j < num_files; j++) {
      const bool other = files[j].path && (j < i || !files[j].written);
      if (other && is_same(&files[i], &files[j])) return refuse_same(&files[i], &files[j]);
    }
  }
  for (int i = 0; i < num_files; i++) {
    if (!files[i].path || !files[i].written || ea_is_dash(files[i].path)) continue;
    const int code = check_writable(files[i].path);
    if (code != EA_EXIT_OK) return code;
  }
  return EA_EXIT_OK;
}
