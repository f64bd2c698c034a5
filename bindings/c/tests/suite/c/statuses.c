/* Provokes each status of the header but RP_INTERNAL, which says that there is a bug. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char master[64];
static rp_cluster *cluster;
static rp_pool *pool;
static rp_handle *handle;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void arguments(void) {
  rp_addr addr = 0;
  uint64_t value = 0;
  rp_pool *other = NULL;
  char text[8];
  EXPECT(RP_INVALID, rp_alloc(handle, 0, RP_AUTO, &addr));
  EXPECT(RP_INVALID, rp_alloc(handle, 8, 77, &addr));
  EXPECT(RP_INVALID, rp_alloc(handle, 8, RP_AUTO, NULL));
  EXPECT(RP_INVALID, rp_read(handle, 8, NULL, 8));
  EXPECT(RP_INVALID, rp_read(handle, 8, text, SIZE_MAX));
  EXPECT(RP_INVALID, rp_root(handle, "\xff", &addr));
  EXPECT(RP_INVALID, rp_open(NULL, &other));
  HOLDS(rp_last_text(text, sizeof text) > 8 && strlen(text) == 7);
  EXPECT(RP_UNREACHABLE, rp_alloc(handle, 8, RP_RACK(9), &addr));
  EXPECT(RP_FULL, rp_alloc(handle, 128 << 20, RP_LOCAL, &addr));
  EXPECT(RP_NOT_FOUND, rp_root(handle, "nothing", &addr));
  CHECK(rp_alloc(handle, 1 << 16, RP_LOCAL, &addr));
  CHECK(rp_free(handle, addr, 1 << 16));
  EXPECT(RP_NOT_FOUND, rp_read_u64(handle, addr, &value));

  rp_options options = RP_OPTIONS_INIT;
  options.master = master;
  options.secret_file = "/nowhere/secret";
  EXPECT(RP_IO, rp_open(&options, &other));
  options.secret_file = NULL;
  options.fabric = "pigeon";
  EXPECT(RP_INVALID, rp_open(&options, &other));
}

static void rights(void) {
  rp_options options = RP_OPTIONS_INIT;
  rp_pool *reader = NULL;
  rp_addr addr = 0;
  options.master = master;
  options.flags = RP_READ_ONLY;
  CHECK(rp_open(&options, &reader));
  rp_handle *reads = handle_of(reader);
  CHECK(rp_alloc(handle, 64, RP_LOCAL, &addr));
  EXPECT(RP_DENIED, rp_write(reads, addr, "x", 1));
  CHECK(rp_free(handle, addr, 64));
  CHECK(rp_handle_close(reads));
  CHECK(rp_close(reader));
}

static void limits(void) {
  rp_addr addr = 0;
  rp_pin *pins[8];
  void *data = NULL;
  CHECK(rp_alloc(handle, 4096, RP_LOCAL, &addr));
  for (int i = 0; i < 7; i++)
    CHECK(rp_pin_open(handle, addr, 8, &pins[i], &data));
  EXPECT(RP_BUSY, rp_pin_open(handle, addr, 8, &pins[7], &data));
  HOLDS(rp_last_retry() == 1);
  for (int i = 0; i < 7; i++)
    CHECK(rp_unpin(pins[i]));
  EXPECT(RP_MISUSE, rp_unpin(pins[0]));
  CHECK(rp_free(handle, addr, 4096));
}

static void tables(void) {
  rp_addr plain = 0, header = 0, now = 0;
  uint32_t table = 0, version = 99;
  size_t bytes = 0;
  char value[2];
  EXPECT(RP_NOT_FOUND, rp_table_open(handle, "none", RP_TABLE_OPEN, &table));
  CHECK(rp_alloc(handle, 4096, RP_LOCAL, &plain));
  CHECK(rp_root_set(handle, "plain", 0, plain, &now));
  EXPECT(RP_CORRUPT, rp_table_open(handle, "plain", RP_TABLE_CREATE, &table));
  CHECK(rp_table_open(handle, "old", RP_TABLE_CREATE, &table));
  CHECK(rp_table_put(handle, table, "k", 1, "value", 5, RP_PUT_ALWAYS));
  EXPECT(RP_OCCUPIED, rp_table_put(handle, table, "k", 1, "v", 1, RP_PUT_INSERT));
  EXPECT(RP_TOO_SMALL, rp_table_get(handle, table, "k", 1, value, 2, &bytes));
  EXPECT(RP_MISUSE, rp_table_delete(handle, 77, "k", 1));
  CHECK(rp_root(handle, "old", &header));
  CHECK(rp_write(handle, header + 8, &version, sizeof version));
  rp_handle *other = handle_of(pool);
  EXPECT(RP_VERSION, rp_table_open(other, "old", RP_TABLE_OPEN, &table));
  CHECK(rp_handle_close(other));
}

struct waiting {
  rp_handle *handle;
  rp_addr addr;
  atomic_int began;
};

static void *wait_for_lock(void *argument) {
  struct waiting *waiting = argument;
  uint64_t lock = 0, token = 0;
  waiting->began = 1;
  EXPECT(RP_TIMEOUT,
         rp_lock(waiting->handle, waiting->addr, 0, RP_LOCK_WRITE, 700, &lock, &token));
  HOLDS(strcmp(rp_last_code(), "lock-timeout") == 0);
  return NULL;
}

static void threads(void) {
  struct waiting waiting = {handle_of(pool), 0, 0};
  pthread_t thread;
  uint64_t lock = 0, token = 0, value = 0;
  CHECK(rp_alloc(handle, 64, RP_LOCAL, &waiting.addr));
  CHECK(rp_lock(handle, waiting.addr, 0, RP_LOCK_WRITE, 0, &lock, &token));
  HOLDS(pthread_create(&thread, NULL, wait_for_lock, &waiting) == 0);
  while (!waiting.began)
    usleep(1000);
  usleep(200000);
  EXPECT(RP_MISUSE, rp_read_u64(waiting.handle, waiting.addr, &value));
  EXPECT(RP_MISUSE, rp_handle_close(waiting.handle));
  HOLDS(pthread_join(thread, NULL) == 0);
  CHECK(rp_read_u64(waiting.handle, waiting.addr, &value));
  EXPECT(RP_MISUSE, rp_unpin((rp_pin *)waiting.handle));
  CHECK(rp_handle_close(waiting.handle));
  EXPECT(RP_MISUSE, rp_read_u64(waiting.handle, waiting.addr, &value));
  EXPECT(RP_MISUSE, rp_handle_close(waiting.handle));
  EXPECT(RP_MISUSE, rp_handle_close(NULL));
  CHECK(rp_unlock(handle, lock));
  EXPECT(RP_MISUSE, rp_unlock(handle, lock));
  CHECK(rp_free(handle, waiting.addr, 64));
}

static void forks(void) {
  rp_addr addr = 0;
  rp_pin *pin = NULL;
  void *data = NULL;
  uint64_t value = 0;
  int status = 0;
  CHECK(rp_alloc(handle, 64, RP_LOCAL, &addr));
  CHECK(rp_write_u64(handle, addr, 1));
  CHECK(rp_pin_open(handle, addr, 64, &pin, &data));
  pid_t child = fork();
  if (child == 0) {
    EXPECT(RP_FORKED, rp_read_u64(handle, addr, &value));
    EXPECT(RP_FORKED, rp_handle_close(handle));
    EXPECT(RP_FORKED, rp_unpin(pin));
    EXPECT(RP_FORKED, rp_close(pool));
    EXPECT(RP_FORKED, rp_cluster_stop(cluster));
    rp_handle *own = handle_of(join(master, 1, 5000));
    CHECK(rp_fetch_add(own, addr, 1, &value));
    CHECK(rp_handle_close(own));
    _exit(7);
  }
  HOLDS(waitpid(child, &status, 0) == child);
  HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  CHECK(rp_read_u64(handle, addr, &value));
  HOLDS(value == 2);
  CHECK(rp_unpin(pin));
  CHECK(rp_free(handle, addr, 64));
}

struct adding {
  rp_handle *handle;
  rp_addr addr;
  rp_status status;
  double waited;
};

static void *add(void *argument) {
  struct adding *adding = argument;
  uint64_t before = 0;
  do {
    double began = seconds();
    adding->status = rp_fetch_add(adding->handle, adding->addr, 1, &before);
    adding->waited = seconds() - began;
  } while (adding->status == RP_OK);
  return NULL;
}

static void deaths(void) {
  rp_addr addr = 0;
  uint64_t value = 0;
  int unknown = 0;
  for (int tries = 0; tries < 20 && !unknown; tries++) {
    struct adding adding = {handle_of(pool), 0, RP_OK, 0};
    pthread_t thread;
    CHECK(rp_alloc(adding.handle, 1 << 16, RP_RACK(1), &addr));
    adding.addr = addr;
    CHECK(rp_set_timeout(adding.handle, 300));
    HOLDS(pthread_create(&thread, NULL, add, &adding) == 0);
    usleep(20000);
    CHECK(rp_cluster_stop_rack(cluster, 1));
    HOLDS(pthread_join(thread, NULL) == 0);
    unknown = adding.status == RP_OUTCOME_UNKNOWN;
    HOLDS(unknown || adding.status == RP_UNREACHABLE || adding.status == RP_TIMEOUT);
    HOLDS(adding.waited < 3);
    rp_status now = rp_read_u64(adding.handle, addr, &value);
    HOLDS(now == RP_UNREACHABLE || now == RP_TIMEOUT);
    CHECK(rp_cluster_start_rack(cluster, 1));
    CHECK(rp_handle_close(adding.handle));
  }
  HOLDS(unknown);
  rp_handle *after = handle_of(pool);
  EXPECT(RP_LOST, rp_read_u64(after, addr, &value));
  CHECK(rp_handle_close(after));
}

int main(void) {
  cluster = start(master, sizeof master);
  pool = join(master, 0, 3000);
  handle = handle_of(pool);
  arguments();
  rights();
  limits();
  tables();
  threads();
  forks();
  deaths();
  CHECK(rp_handle_close(handle));
  CHECK(rp_close(pool));
  CHECK(rp_cluster_stop(cluster));
  puts("all done");
  return 0;
}
