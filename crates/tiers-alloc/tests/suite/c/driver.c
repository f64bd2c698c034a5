/* Uses every function of rackpool_tiers.h; exits with 77 where memory policies are refused. */
#include "rackpool_tiers.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is_so)                                                                               \
  do {                                                                                             \
    if (!(is_so)) {                                                                                \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #is_so);                          \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

#define BLOCKS 20000

static void *blocks[BLOCKS];
static rackpool_tiers_arena *arena;

static void *take(void *unused)
{
  for (int i = 0; i < BLOCKS; i++) {
    size_t size = (size_t)(i * 37 % 5000);
    blocks[i] = rackpool_tiers_malloc(arena, size);
    CHECK(blocks[i] != NULL && rackpool_tiers_usable_size(blocks[i]) >= size);
    memset(blocks[i], i, size);
  }
  return unused;
}

static void errors(void)
{
  rackpool_tiers_arena *none = arena;
  CHECK(rackpool_tiers_arena_create("x", "nonsense", &none) == RACKPOOL_TIERS_POLICY);
  CHECK(none == NULL);
  CHECK(rackpool_tiers_arena_create("x", NULL, &none) == RACKPOOL_TIERS_POLICY);
  CHECK(rackpool_tiers_arena_create("a b", "bind:0", &none) == RACKPOOL_TIERS_NAME);
  CHECK(rackpool_tiers_arena_create("x", "bind:1023", &none) == RACKPOOL_TIERS_NODE);
  CHECK(strstr(rackpool_tiers_error_text(RACKPOOL_TIERS_NODE), "node") != NULL);
  errno = 0;
  CHECK(rackpool_tiers_malloc(arena, (size_t)-1) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(rackpool_tiers_calloc(arena, (size_t)-1 / 2, 3) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(rackpool_tiers_aligned_alloc(arena, 24, 8) == NULL && errno == EINVAL);
  void *block = NULL;
  CHECK(rackpool_tiers_posix_memalign(arena, &block, 4, 8) == EINVAL);
  CHECK(rackpool_tiers_malloc(NULL, 1) == NULL);
}

static void family(void)
{
  char *text = rackpool_tiers_malloc(arena, 6);
  strcpy(text, "hello");
  text = rackpool_tiers_realloc(arena, text, 100 << 20);
  CHECK(strcmp(text, "hello") == 0 && rackpool_tiers_usable_size(text) >= 100 << 20);
  text[(100 << 20) - 1] = 1;
  text = rackpool_tiers_realloc(arena, text, 6);
  CHECK(strcmp(text, "hello") == 0);
  rackpool_tiers_free(text);
  char *zeros = rackpool_tiers_calloc(arena, 1000, 1000);
  for (int i = 0; i < 1000 * 1000; i++)
    CHECK(zeros[i] == 0);
  rackpool_tiers_free(zeros);
  errno = 0;
  CHECK(rackpool_tiers_reallocarray(arena, NULL, (size_t)-1 / 2, 3) == NULL && errno == ENOMEM);
  zeros = rackpool_tiers_reallocarray(arena, NULL, 100, 50);
  CHECK(rackpool_tiers_usable_size(zeros) >= 5000);
  rackpool_tiers_free(zeros);
  for (size_t alignment = 8; alignment <= 64 << 20; alignment *= 2) {
    void *block = NULL;
    CHECK(rackpool_tiers_posix_memalign(arena, &block, alignment, 100) == 0);
    CHECK((uintptr_t)block % alignment == 0);
    memset(block, 1, 100);
    rackpool_tiers_free(block);
    block = rackpool_tiers_aligned_alloc(arena, alignment, alignment);
    CHECK(block != NULL && (uintptr_t)block % alignment == 0);
    rackpool_tiers_free(block);
  }
  rackpool_tiers_free(NULL);
  CHECK(rackpool_tiers_usable_size(NULL) == 0);
  void *far = rackpool_tiers_malloc_hint(arena, 10, RACKPOOL_TIERS_FAR);
  CHECK(far != NULL);
  rackpool_tiers_free(far);
}

#define FORKS 20
#define CHURNING 3

static pthread_barrier_t churning;
static volatile int is_over;

/* Blocks whose extents are given nodes over and over. */
static void *churn(void *unused)
{
  rackpool_tiers_free(rackpool_tiers_malloc(arena, 100));
  rackpool_tiers_free(rackpool_tiers_malloc_hint(arena, 100, RACKPOOL_TIERS_FAR));
  pthread_barrier_wait(&churning);
  while (!is_over) {
    void *block = rackpool_tiers_malloc(arena, 100 << 20);
    CHECK(block != NULL);
    rackpool_tiers_free(block);
  }
  return unused;
}

/* The child of a process whose threads are in the midst of the allocator, which uses arenas of its
   parent and a thread of its own. It is ended if it waits for ever. */
static void child(void *of_parent)
{
  pthread_t thread;
  alarm(20);
  rackpool_tiers_free(of_parent);
  for (int i = 0; i < 50; i++) {
    void *block = rackpool_tiers_malloc(arena, (size_t)i << 20);
    CHECK(block != NULL);
    rackpool_tiers_free(block);
  }
  CHECK(pthread_create(&thread, NULL, take, NULL) == 0 && pthread_join(thread, NULL) == 0);
  _exit(0);
}

static void forks(void)
{
  pthread_t threads[CHURNING];
  CHECK(pthread_barrier_init(&churning, NULL, CHURNING + 1) == 0);
  for (int i = 0; i < CHURNING; i++)
    CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
  pthread_barrier_wait(&churning);
  for (int i = 0; i < FORKS; i++) {
    void *block = rackpool_tiers_malloc(arena, 1000);
    int status;
    pid_t pid = fork();
    if (pid == 0)
      child(block);
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    rackpool_tiers_free(block);
  }
  is_over = 1;
  for (int i = 0; i < CHURNING; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Until there is no room: the last one is refused, and those before work. */
static void many_arenas(void)
{
  rackpool_tiers_arena *last = arena, *next = arena;
  int count = 1, error;
  while ((error = rackpool_tiers_arena_create("many", "preferred:0", &next)) == RACKPOOL_TIERS_OK) {
    last = next;
    count++;
  }
  CHECK(error == RACKPOOL_TIERS_ARENAS && next == NULL && count == 64);
  void *block = rackpool_tiers_malloc(last, 100);
  CHECK(block != NULL);
  rackpool_tiers_free(block);
}

int main(void)
{
  int error = rackpool_tiers_arena_create("driver", "hint;preferred:0;bind:0", &arena);
  if (error == RACKPOOL_TIERS_REFUSED) {
    puts(rackpool_tiers_error_text(error));
    return 77;
  }
  CHECK(error == RACKPOOL_TIERS_OK && arena != NULL);
  errors();
  family();
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, take, NULL) == 0 && pthread_join(thread, NULL) == 0);
  uint64_t bytes = 0;
  CHECK(rackpool_tiers_class_blocks(arena, 4096, &bytes) > BLOCKS / 5 && bytes > 0);
  CHECK(rackpool_tiers_node_bytes(arena, 0) > 0 && rackpool_tiers_node_bytes(arena, 1) == 0);
  size_t length = rackpool_tiers_prometheus(NULL, 0);
  char *metrics = malloc(length + 1000);
  size_t written = rackpool_tiers_prometheus(metrics, length + 1000);
  CHECK(written < length + 1000 && strlen(metrics) == written);
  CHECK(strstr(metrics, "rackpool_tiers_placed_bytes{arena=\"driver\"") != NULL);
  CHECK(rackpool_tiers_prometheus(metrics, 10) == written && strlen(metrics) == 9);
  free(metrics);
  /* By another thread than the one that took them. */
  for (int i = 0; i < BLOCKS; i++) {
    size_t size = (size_t)(i * 37 % 5000);
    for (size_t at = 0; at < size; at += 97)
      CHECK(((unsigned char *)blocks[i])[at] == (unsigned char)i);
    rackpool_tiers_free(blocks[i]);
  }
  CHECK(rackpool_tiers_default_arena() == NULL);
  forks();
  many_arenas();
  return 0;
}
