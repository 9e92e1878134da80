/* Files are complete or not there: when the disk fills up, when a step fails, when a signal
 * comes, on file systems that know unnamed files and on ones that do not. System calls are
 * wrapped by the linker (--wrap), so that they fail when told to. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/new_file.h"
#include "support.h"

/* What goes wrong. */
static struct {
  bool no_unnamed_files;
  int fsync_error;
  int rename_error;
  int linkat_error;
} trouble;

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): the linker's names */
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);

static int fails(int error) {
  errno = error;
  return -1;
}

int __wrap_open(const char *path, int flags, ...) {
  if (trouble.no_unnamed_files && (flags & O_TMPFILE) == O_TMPFILE) return fails(EOPNOTSUPP);
  va_list args;
  va_start(args, flags);
  mode_t mode = 0;
  if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) mode = va_arg(args, mode_t);
  va_end(args);
  return __real_open(path, flags, mode);
}

int __wrap_fsync(int fd) {
  return trouble.fsync_error ? fails(trouble.fsync_error) : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to) {
  return trouble.rename_error ? fails(trouble.rename_error) : __real_rename(from, to);
}

int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  return trouble.linkat_error ? fails(trouble.linkat_error) : __real_linkat(from_folder, from, to_folder, to, flags);
}

/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static void check_content(const char *path, const char *text) {
  size_t n;
  unsigned char *bytes = read_bytes(path, &n);
  assert_int_equal(n, strlen(text));
  assert_memory_equal(bytes, text, n);
  free(bytes);
}

static ea_status write_text(const char *path, const char *text) {
  ea_new_file *file;
  const ea_status status = ea_new_file_open(path, &file);
  if (status) return status;
  ea_new_file_write(file, text, strlen(text));
  return ea_new_file_commit(file);
}

static void says(const char *message) {
  if (!strstr(ea_last_error(), message)) fail_msg("found '%s', wanted '%s'", ea_last_error(), message);
}

/* Each test runs in both ways. */
static int with_unnamed_files(void **state) {
  (void)state;
  memset(&trouble, 0, sizeof trouble);
  return 0;
}

static int with_temporary_names(void **state) {
  (void)state;
  memset(&trouble, 0, sizeof trouble);
  trouble.no_unnamed_files = true;
  return 0;
}

static int remove_f(void **state) {
  (void)state;
  remove("f");
  return count_files(); /* nothing else was left */
}

static void new_and_over_an_old_one(void **state) {
  (void)state;
  assert_int_equal(write_text("f", "old"), EA_OK);
  check_content("f", "old");
  assert_int_equal(write_text("f", "new"), EA_OK);
  check_content("f", "new");
  assert_int_equal(count_files(), 1);
}

static void permissions_follow_the_umask(void **state) {
  (void)state;
  const mode_t before = umask(027);
  assert_int_equal(write_text("f", ""), EA_OK);
  umask(before);
  struct stat info;
  assert_int_equal(stat("f", &info), 0);
  assert_int_equal(info.st_mode & 0777, 0640);
}

static void not_there_before_it_is_complete(void **state) {
  (void)state;
  ea_new_file *file;
  assert_int_equal(ea_new_file_open("f", &file), EA_OK);
  ea_new_file_write(file, "abc", 3);
  assert_int_equal(access("f", F_OK), -1);
  assert_int_equal(count_files(), trouble.no_unnamed_files ? 1 : 0);
  ea_new_file_discard(file);
  assert_int_equal(count_files(), 0);
}

static void a_full_disk(void **state) {
  (void)state;
  assert_int_equal(write_text("f", "old"), EA_OK);
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const struct rlimit small = {4096, limit.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0); /* as a full disk, but with EFBIG */
  signal(SIGXFSZ, SIG_IGN);
  ea_new_file *file;
  assert_int_equal(ea_new_file_open("f", &file), EA_OK);
  static const char block[65536];
  for (int i = 0; i < 64; ++i) ea_new_file_write(file, block, sizeof block);
  assert_int_equal(ea_new_file_commit(file), EA_ERR_DEVICE);
  says("f: cannot write: File too large");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  check_content("f", "old");
  assert_int_equal(count_files(), 1);
}

static void a_disk_that_fails(void **state) {
  (void)state;
  trouble.fsync_error = EIO;
  assert_int_equal(write_text("f", "abc"), EA_ERR_DEVICE);
  says("f: cannot write: Input/output error");
  assert_int_equal(count_files(), 0);
}

static void a_name_that_cannot_be_given(void **state) {
  (void)state;
  assert_int_equal(write_text("f", "old"), EA_OK);
  trouble.rename_error = EACCES;
  assert_int_equal(write_text("f", "new"), EA_ERR_DEVICE);
  says("f: cannot write: Permission denied");
  check_content("f", "old");
  assert_int_equal(count_files(), 1);
}

static void a_file_that_cannot_be_named(void **state) {
  (void)state;
  trouble.linkat_error = EPERM;
  assert_int_equal(write_text("f", "abc"), EA_ERR_DEVICE);
  says("f: cannot write: Operation not permitted");
  assert_int_equal(count_files(), 0);
}

/* A child is killed between open and commit by a signal that it cannot or does not ignore. */
static int killed_while_writing(int signal_number) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    ea_new_file *file;
    if (ea_new_file_open("f", &file)) _exit(10);
    ea_new_file_write(file, "abc", 3);
    raise(signal_number);
    _exit(ea_new_file_commit(file) ? 11 : 0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

static void signals_leave_nothing(void **state) {
  (void)state;
  const int status = killed_while_writing(SIGTERM);
  if (trouble.no_unnamed_files) { /* held off until the file is complete */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_content("f", "abc");
    assert_int_equal(count_files(), 1);
  } else {
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_int_equal(count_files(), 0);
  }
}

static void not_even_sigkill_leaves_something(void **state) {
  (void)state;
  const int status = killed_while_writing(SIGKILL);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  assert_int_equal(count_files(), 0);
}

static void signals_work_again_afterwards(void **state) {
  (void)state;
  assert_int_equal(write_text("f", "abc"), EA_OK);
  struct sigaction now;
  assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
  assert_true(now.sa_handler == SIG_DFL);
}

static void folders_that_are_not_there(void **state) {
  (void)state;
  ea_new_file *file;
  assert_int_equal(ea_new_file_open("no/f", &file), EA_ERR_DEVICE);
  says("no/f: cannot write: No such file or directory");
  assert_int_equal(ea_new_file_open(".", &file), EA_ERR_DEVICE);
  says(".: cannot write: Is a directory");
}

static void devices_are_written_to(void **state) {
  (void)state;
  assert_int_equal(write_text("/dev/null", "abc"), EA_OK);
  struct stat info;
  assert_int_equal(stat("/dev/null", &info), 0);
  assert_true(S_ISCHR(info.st_mode));
  assert_int_equal(write_text("/dev/full", "abc"), EA_ERR_DEVICE);
  says("/dev/full: cannot write: No space left on device");
}

static void links_keep_pointing(void **state) {
  (void)state;
  assert_int_equal(write_text("f", "old"), EA_OK);
  assert_int_equal(symlink("f", "link"), 0);
  assert_int_equal(write_text("link", "new"), EA_OK);
  check_content("f", "new");
  struct stat info;
  assert_int_equal(lstat("link", &info), 0);
  assert_true(S_ISLNK(info.st_mode));
  remove("link");
}

#define BOTH(test)                                                                                                     \
  {#test ", no names", test, with_unnamed_files, remove_f, NULL}, {                                                    \
#test ", temporary names", test, with_temporary_names, remove_f, NULL                                              \
  }

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(new_and_over_an_old_one),
      BOTH(permissions_follow_the_umask),
      BOTH(not_there_before_it_is_complete),
      BOTH(a_full_disk),
      BOTH(a_disk_that_fails),
      BOTH(a_name_that_cannot_be_given),
      cmocka_unit_test_setup_teardown(a_file_that_cannot_be_named, with_unnamed_files, remove_f),
      BOTH(signals_leave_nothing),
      cmocka_unit_test_setup_teardown(not_even_sigkill_leaves_something, with_unnamed_files, remove_f),
      BOTH(signals_work_again_afterwards),
      BOTH(folders_that_are_not_there),
      BOTH(devices_are_written_to),
      BOTH(links_keep_pointing),
  };
  return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
