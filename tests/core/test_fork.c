/* A child of fork() computes what its parent did, to the bit (promise 3), also when the parent's OpenMP threads, which
 * no child has, were used before: on the thread that forked, on another one, and with a context of the child's own. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

enum { THREADS = 3, DEADLINE_S = 60 };

typedef struct results {
  float out[2][FIX_OUT_BYTES / sizeof(float)]; /* of the cpu family and of the reference */
  float lse[2][FIX_LSE_BYTES / sizeof(float)];
  float merged[FIX_OUT_BYTES / sizeof(float)];
} results;

static ea_context *open_cpu(int num_threads) {
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.num_threads = num_threads;
  ea_context *context = NULL;
  return ea_context_create(&options, &context) ? NULL : context;
}

static ea_status run_family(ea_context *context, fixture *f, ea_family family) {
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  options.family = family;
  ea_plan *plan = NULL;
  size_t bytes = 0;
  ea_status status = ea_plan_create(context, &f->problem, &options, &plan);
  if (!status) status = ea_workspace_size(plan, &f->batch, &bytes);
  void *workspace = aligned_alloc(256, (bytes + 256) / 256 * 256);
  if (!status && workspace) status = ea_run(plan, &f->batch, workspace, bytes, NULL);
  free(workspace);
  ea_plan_destroy(plan);
  return status;
}

static ea_status merge(ea_context *context, fixture *f, float *merged) {
  ea_merge_args args = EA_MERGE_ARGS_INIT;
  args.dtype = EA_F32;
  args.num_tokens = FIX_TOKENS;
  args.num_heads = FIX_Q_HEADS;
  args.head_dim_v = FIX_DIM_V;
  args.out_a.data = args.out_b.data = f->out;
  args.lse_a = args.lse_b = f->lse;
  args.out.data = merged;
  return ea_merge(context, &args, NULL);
}

/* Every parallel region of the library. */
static ea_status compute(ea_context *context, results *r) {
  fixture f = fixture_make();
  memset(r, 0, sizeof *r);
  ea_status status = EA_OK;
  for (int i = 0; i < 2 && !status; ++i) {
    f.batch.out.data = r->out[i];
    f.batch.lse = r->lse[i];
    status = run_family(context, &f, i == 0 ? EA_FAMILY_CPU : EA_FAMILY_REFERENCE);
    memcpy(f.out, r->out[i], FIX_OUT_BYTES);
    memcpy(f.lse, r->lse[i], FIX_LSE_BYTES);
  }
  if (!status) status = merge(context, &f, r->merged);
  fixture_free(&f);
  return status;
}

static int same_bits(const void *a, const void *b, size_t bytes) {
  return memcmp(a, b, bytes) == 0;
}

/* In the child: the exit status, 0 when all is as in the parent. */
static int child(ea_context *context, const results *wanted) {
  alarm(DEADLINE_S);
  results found;
  for (int i = 0; i < 2; ++i) { /* what the first call leaves behind must serve the next */
    if (!context || compute(context, &found)) return 2;
    if (!same_bits(&found, wanted, sizeof found)) return 3;
  }
  return 0;
}

static void assert_child_answers(pid_t pid) {
  int status = 0;
  assert_true(pid > 0);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  if (WIFSIGNALED(status)) fail_msg("the child ended by signal %d (14: it hung)", WTERMSIG(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_child_uses_its_parents_context(void **state) {
  results r;
  assert_int_equal(compute(*state, &r), EA_OK);
  const pid_t pid = fork();
  if (pid == 0) _exit(child(*state, &r));
  assert_child_answers(pid);
  results again; /* and the parent goes on as before */
  assert_int_equal(compute(*state, &again), EA_OK);
  assert_memory_equal(&again, &r, sizeof r);
}

static void a_child_opens_a_context_of_its_own(void **state) {
  results r;
  assert_int_equal(compute(*state, &r), EA_OK);
  for (int num_threads = 0; num_threads <= 2 * THREADS; ++num_threads) {
    const pid_t pid = fork();
    if (pid == 0) _exit(child(open_cpu(num_threads), &r));
    assert_child_answers(pid);
  }
}

static void a_child_of_a_child_answers(void **state) {
  results r;
  assert_int_equal(compute(*state, &r), EA_OK);
  const pid_t pid = fork();
  if (pid == 0) {
    int status = 0;
    const int own = child(*state, &r);
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(child(*state, &r));
    _exit(own || waitpid(grandchild, &status, 0) != grandchild || status != 0);
  }
  assert_child_answers(pid);
}

typedef struct task {
  ea_context *context;
  results *r;
  int status;
} task;

static void *compute_in_a_thread(void *argument) {
  task *t = argument;
  t->status = child(t->context, t->r);
  return NULL;
}

static int child_thread(ea_context *context, results *wanted) {
  task t = {context, wanted, -1};
  pthread_t thread;
  alarm(DEADLINE_S);
  if (pthread_create(&thread, NULL, compute_in_a_thread, &t) || pthread_join(thread, NULL)) return 4;
  return t.status;
}

static void a_thread_of_a_child_answers(void **state) {
  results r;
  assert_int_equal(compute(*state, &r), EA_OK);
  const pid_t pid = fork();
  if (pid == 0) _exit(child_thread(*state, &r));
  assert_child_answers(pid);
}

/* The parent's other threads have OpenMP threads of their own; one of them forks. */
static void *fork_in_a_thread(void *argument) {
  task *t = argument;
  t->status = child(t->context, t->r);
  alarm(0); /* child() had set it, in this process */
  const pid_t pid = fork();
  if (pid == 0) _exit(child(t->context, t->r));
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) t->status = 5;
  return NULL;
}

static void a_child_of_any_thread_answers(void **state) {
  results r;
  assert_int_equal(compute(*state, &r), EA_OK);
  task t = {*state, &r, -1};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, fork_in_a_thread, &t), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(t.status, 0);
}

static int open_context(void **state) {
  *state = open_cpu(THREADS);
  return *state ? 0 : -1;
}

static int close_context(void **state) {
  ea_context_destroy(*state);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_child_uses_its_parents_context), cmocka_unit_test(a_child_opens_a_context_of_its_own),
      cmocka_unit_test(a_child_of_a_child_answers),       cmocka_unit_test(a_thread_of_a_child_answers),
      cmocka_unit_test(a_child_of_any_thread_answers),
  };
  return cmocka_run_group_tests(tests, open_context, close_context);
}
