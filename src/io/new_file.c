/* Complete or not there: O_TMPFILE and linkat where the file system has them, a temporary
 * name and rename elsewhere, and where an older file is to be replaced. */
#include "io/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/error.h"

#define STREAM_BUFFER_BYTES (1 << 20)
#define MAX_NAME_ATTEMPTS 16

static const int interrupts[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
enum { NUM_INTERRUPTS = sizeof interrupts / sizeof interrupts[0] };

typedef enum file_kind {
  KIND_ANONYMOUS, /* no name yet */
  KIND_TEMPORARY, /* called temp */
  KIND_SPECIAL    /* a device, a pipe or standard output: nothing to name or to remove */
} file_kind;

struct ea_new_file {
  FILE *stream;
  int write_error; /* errno of the first write that failed, or 0 */
  file_kind kind;
  char *given;         /* as the caller said it, for messages */
  char *path;          /* symbolic links followed */
  char *folder;        /* of path, with its final slash */
  char temp[PATH_MAX]; /* a name in folder; "" while there is none */
  struct sigaction saved[NUM_INTERRUPTS];
};

static bool is_standard_output(const char *path) {
  return strcmp(path, "-") == 0;
}

static ea_status failed(const char *path) {
  const char *name = is_standard_output(path) ? "standard output" : path;
  return ea_fail(EA_ERR_DEVICE, "%s: cannot write: %s", name, strerror(errno));
}

/* While a temporary name exists. Blocking them would not do: another thread of the process
 * would take the signal and end it all the same. Losing one does no harm where writing the
 * file is the last thing that the command does. */
static void ignore_interrupts(ea_new_file *file) {
  const struct sigaction ignore = {.sa_handler = SIG_IGN};
  for (int i = 0; i < NUM_INTERRUPTS; ++i) sigaction(interrupts[i], &ignore, &file->saved[i]);
}

static void restore_interrupts(const ea_new_file *file) {
  for (int i = 0; i < NUM_INTERRUPTS; ++i) sigaction(interrupts[i], &file->saved[i], NULL);
}

static bool make_temp_name(ea_new_file *file) {
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) return false;
  const int n = snprintf(file->temp, sizeof file->temp, "%s.extattn-%016" PRIx64 ".tmp", file->folder, random);
  if (n > 0 && (size_t)n < sizeof file->temp) return true;
  file->temp[0] = '\0';
  errno = ENAMETOOLONG;
  return false;
}

static void remove_temp(ea_new_file *file) {
  if (file->temp[0]) unlink(file->temp);
  file->temp[0] = '\0';
}

static int open_temporary(ea_new_file *file) {
  for (int attempt = 0; attempt < MAX_NAME_ATTEMPTS && make_temp_name(file); ++attempt) {
    const int fd = open(file->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
    file->temp[0] = '\0';
    if (errno != EEXIST) break;
  }
  return -1;
}

/* Behind what has been printed already. */
static int open_standard_output(void) {
  return fflush(stdout) == 0 ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0) : -1;
}

/* Opens what the path calls for, and sets the kind. */
static int open_by_kind(ea_new_file *file) {
  struct stat existing;
  if (is_standard_output(file->given)) return open_standard_output();
  if (stat(file->path, &existing) == 0 && !S_ISREG(existing.st_mode)) {
    file->kind = KIND_SPECIAL;
    return open(file->path, O_WRONLY | O_CLOEXEC); /* a folder fails here, as it should */
  }
  if (access("/proc/self/fd", X_OK) == 0) { /* what linkat will need */
    file->kind = KIND_ANONYMOUS;
    const int fd = open(file->folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
  }
  file->kind = KIND_TEMPORARY;
  ignore_interrupts(file);
  return open_temporary(file);
}

/* Ends everything that has begun, except for what has its final name. Keeps errno. */
static void finish(ea_new_file *file) {
  const int reason = errno;
  if (file->stream) fclose(file->stream);
  remove_temp(file);
  if (file->kind == KIND_TEMPORARY) restore_interrupts(file);
  free(file->folder);
  free(file->path);
  free(file->given);
  free(file);
  errno = reason;
}

static bool set_paths(ea_new_file *file, const char *path) {
  file->path = realpath(path, NULL);          /* a link keeps pointing to what will be written */
  if (!file->path) file->path = strdup(path); /* nothing there yet */
  file->given = strdup(path);
  if (!file->path || !file->given) return false;
  const char *slash = strrchr(file->path, '/');
  file->folder = slash ? strndup(file->path, (size_t)(slash - file->path) + 1) : strdup("./");
  return file->folder != NULL;
}

ea_status ea_new_file_open(const char *path, ea_new_file **file) {
  ea_new_file *begun = calloc(1, sizeof *begun);
  if (!begun) return ea_fail(EA_ERR_OUT_OF_MEMORY, "%s: cannot write: out of memory", path);
  begun->kind = KIND_SPECIAL;
  const int fd = set_paths(begun, path) ? open_by_kind(begun) : -1;
  if (fd >= 0) begun->stream = fdopen(fd, "wb");
  if (!begun->stream) {
    if (fd >= 0) close(fd);
    finish(begun);
    return failed(path);
  }
  setvbuf(begun->stream, NULL, _IOFBF, STREAM_BUFFER_BYTES);
  *file = begun;
  return EA_OK;
}

void ea_new_file_write(ea_new_file *file, const void *data, size_t bytes) {
  if (file->write_error || bytes == 0) return;
  errno = 0;
  if (fwrite(data, 1, bytes, file->stream) != bytes) file->write_error = errno ? errno : EIO;
}

/* Gives an anonymous file its own name where nothing has it yet, else a temporary one. */
static bool name_anonymous(ea_new_file *file) {
  char self[64];
  snprintf(self, sizeof self, "/proc/self/fd/%d", fileno(file->stream));
  if (linkat(AT_FDCWD, self, AT_FDCWD, file->path, AT_SYMLINK_FOLLOW) == 0) return true;
  for (int attempt = 0; attempt < MAX_NAME_ATTEMPTS && errno == EEXIST && make_temp_name(file); ++attempt) {
    if (linkat(AT_FDCWD, self, AT_FDCWD, file->temp, AT_SYMLINK_FOLLOW) == 0) return true;
    file->temp[0] = '\0';
  }
  return false;
}

static bool rename_temp(ea_new_file *file) {
  if (!file->temp[0]) return true;
  if (rename(file->temp, file->path) != 0) return false;
  file->temp[0] = '\0';
  return true;
}

static bool put_in_place(ea_new_file *file) {
  if (file->kind == KIND_SPECIAL) return true;
  if (file->kind == KIND_TEMPORARY) return rename_temp(file);
  ignore_interrupts(file);
  const bool ok = name_anonymous(file) && rename_temp(file);
  const int reason = errno;
  remove_temp(file);
  restore_interrupts(file);
  errno = reason;
  return ok;
}

static bool flush_to_disk(ea_new_file *file) {
  if (file->write_error) {
    errno = file->write_error;
    return false;
  }
  if (fflush(file->stream) != 0) return false;
  return file->kind == KIND_SPECIAL || fsync(fileno(file->stream)) == 0;
}

/* The name survives a power failure only when the folder is on disk too. Best effort: not
 * every file system lets a folder be flushed. */
static void sync_folder(const ea_new_file *file) {
  const int fd = open(file->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

ea_status ea_new_file_commit(ea_new_file *file) {
  ea_status status = EA_OK;
  if (!flush_to_disk(file) || !put_in_place(file)) {
    status = failed(file->given);
  } else if (file->kind != KIND_SPECIAL) {
    sync_folder(file);
  }
  finish(file);
  return status;
}

void ea_new_file_discard(ea_new_file *file) {
  finish(file);
}
