/* gcc's OpenMP runtime keeps, for every thread that begins parallel regions, the threads of its last one, to use them
 * again. A child of fork() has the thread that forked and no other, so its next region would wait for ever for threads
 * that are not there. A thread that the child made itself begins with none: it is asked to begin the regions. (LLVM's
 * runtime forgets its threads in a child by itself; there the way round is only longer.) */
#include "cpu/region.h"

#include <pthread.h>
#include <stdbool.h>

/* Whether this thread is the one that came through a fork(). It belongs to the thread as what OpenMP keeps does, and
 * only the handler below sets it: no argument or context could tell, since a child may open a context of its own, and
 * another library may have used the same OpenMP in the parent. */
static _Thread_local bool came_through_fork;

static void note_fork(void) {
  came_through_fork = true;
}

/* When the library is loaded, before any fork that it has to know of. */
__attribute__((constructor)) static void watch_forks(void) {
  (void)pthread_atfork(NULL, NULL, note_fork);
}

typedef struct task {
  ea_cpu_region *region;
  void *argument;
  int num_threads;
} task;

static void *run_task(void *argument) {
  const task *t = argument;
  t->region(t->argument, t->num_threads);
  return NULL;
}

void ea_cpu_run_region(ea_cpu_region *region, void *argument, int num_threads) {
  if (came_through_fork && num_threads > 1) {
    task t = {region, argument, num_threads};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_task, &t) == 0) {
      (void)pthread_join(thread, NULL);
      return;
    }
    num_threads = 1; /* a region of one thread waits for no other */
  }
  region(argument, num_threads);
}
