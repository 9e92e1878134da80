/* Running the built command and keeping what it said. */
#include "command.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_ARGS 64

ran_command ran;

static void read_text(int fd, char *text) {
  const ssize_t n = pread(fd, text, MAX_TEXT - 1, 0);
  assert_true(n >= 0);
  text[n] = '\0';
  close(fd);
}

/* Runs the built command with the line's words; its files may take max_file_bytes. */
static void run_line(char *line, rlim_t max_file_bytes) {
  const char *elsewhere = getenv("EA_COMMAND"); /* where the tests were carried to another machine */
  char *argv[MAX_ARGS] = {elsewhere ? strdup(elsewhere) : strdup(EA_COMMAND)};
  int argc = 1;
  for (char *rest = line, *word; (word = strsep(&rest, " "));) {
    assert_true(argc < MAX_ARGS - 1);
    argv[argc++] = word;
  }
  const int out = memfd_create("out", 0), err = memfd_create("err", 0);
  const pid_t child = fork();
  assert_true(child >= 0 && out >= 0 && err >= 0);
  if (child == 0) {
    const struct rlimit limit = {max_file_bytes, max_file_bytes};
    if (max_file_bytes != RLIM_INFINITY) {
      setrlimit(RLIMIT_FSIZE, &limit);
      signal(SIGXFSZ, SIG_IGN);
    }
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(argv[0], argv);
    _exit(127);
  }
  free(argv[0]);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  read_text(out, ran.out);
  read_text(err, ran.err);
}

void extattn(const char *format, ...) {
  char line[MAX_TEXT];
  va_list args;
  va_start(args, format);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): the line above is lost on clang-tidy 14
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  run_line(line, RLIM_INFINITY);
}

void extattn_on_a_full_disk(const char *arguments) {
  char line[MAX_TEXT];
  snprintf(line, sizeof line, "%s", arguments);
  run_line(line, 4096); /* what OpenMP's runtime asks for is less */
}

void succeeded(const char *what) {
  if (ran.code != 0 || ran.err[0]) fail_msg("%s: exit code %d, '%s'", what, ran.code, ran.err);
}

void refused(const char *what, int code, const char *message) {
  const size_t length = strlen(ran.err);
  if (ran.code != code) fail_msg("%s: exit code %d, wanted %d ('%s')", what, ran.code, code, ran.err);
  if (strncmp(ran.err, message, strlen(message)) != 0) {
    fail_msg("%s: said '%s', wanted '%s'", what, ran.err, message);
  }
  if (length == 0 || strchr(ran.err, '\n') != ran.err + length - 1) fail_msg("%s: not one line: '%s'", what, ran.err);
  if (ran.out[0]) fail_msg("%s: printed '%s'", what, ran.out);
}
