/* Uses every function of the header as it is meant. */
#include "check.h"
#include <poll.h>

static void memory(rp_handle *here, rp_handle *there) {
  char to[32] = "";
  uint64_t page = 0, value = 0;
  rp_addr far = 0, word = 0, object = 0, owned = 0;
  CHECK(rp_page_bytes(here, &page));
  HOLDS(page == 64 << 10);
  CHECK(rp_alloc(here, page, RP_RACK(1), &far));
  CHECK(rp_write(here, far, "across racks", 13));
  CHECK(rp_read(there, far, to, 13));
  HOLDS(strcmp(to, "across racks") == 0);
  CHECK(rp_read(here, far, NULL, 0));

  char first[4] = "", second[4] = "";
  const rp_const_piece written[] = {{far + 64, "one", 4}, {far + 128, "two", 4}};
  const rp_piece read[] = {{far + 64, first, 4}, {far + 128, second, 4}};
  CHECK(rp_writev(here, written, 2));
  CHECK(rp_readv(there, read, 2));
  HOLDS(strcmp(first, "one") == 0 && strcmp(second, "two") == 0);

  CHECK(rp_alloc(here, 64, RP_LOCAL, &word));
  CHECK(rp_write_u64(here, word, 40));
  CHECK(rp_fetch_add(there, word, 2, &value));
  HOLDS(value == 40);
  CHECK(rp_cas(there, word, 42, 7, &value));
  HOLDS(value == 42);
  CHECK(rp_cas(there, word, 42, 8, &value));
  HOLDS(value == 7);
  CHECK(rp_read_u64(here, word, &value));
  HOLDS(value == 7);
  CHECK(rp_write_u64(here, word, 0));
  CHECK(rp_alloc_into(here, word, 4096, &object));
  CHECK(rp_read_u64(here, word, &value));
  HOLDS(value == object);
  CHECK(rp_free_from(here, word, 4096));
  CHECK(rp_alloc_owned(here, 100, RP_NEAR, &owned));
  CHECK(rp_free(here, owned, 100));
  EXPECT(RP_DENIED, rp_persist(here, word, 8)); /* this memory does not persist */

  rp_addr now = 0;
  CHECK(rp_root_set(here, "all", 0, far, &now));
  HOLDS(now == far);
  CHECK(rp_root(there, "all", &now));
  HOLDS(now == far);
  CHECK(rp_root_set(here, "all", far, 0, &now));
  CHECK(rp_free(here, word, 64));
  CHECK(rp_free(here, far, page));
}

static void pins_and_locks(rp_handle *here, rp_handle *there) {
  rp_addr addr = 0;
  rp_pin *pin = NULL;
  void *data = NULL;
  int revoked = 1;
  char to[8] = "";
  uint64_t lock = 0, token = 0;
  CHECK(rp_alloc(here, 4096, RP_LOCAL, &addr));
  CHECK(rp_pin_open(here, addr, 4096, &pin, &data));
  memcpy(data, "direct", 7);
  CHECK(rp_read(there, addr, to, 7));
  HOLDS(strcmp(to, "direct") == 0);
  CHECK(rp_pin_revoked(pin, &revoked));
  HOLDS(revoked == 0);
  CHECK(rp_unpin(pin));

  CHECK(rp_lock(there, addr, 4096, RP_LOCK_WRITE, RP_WAIT_DEFAULT, &lock, &token));
  EXPECT(RP_TIMEOUT, rp_lock(here, addr, 0, RP_LOCK_READ, 0, &(uint64_t){0}, &(uint64_t){0}));
  HOLDS(rp_last_retry() == 1 && strcmp(rp_last_code(), "lock-timeout") == 0);
  CHECK(rp_lock_check(there, lock));
  CHECK(rp_unlock(there, lock));
  CHECK(rp_free(here, addr, 4096));
}

static void submissions(rp_handle *here) {
  rp_addr addr = 0;
  uint32_t buffer = 0;
  void *data = NULL;
  uint64_t ticket = 0;
  rp_completion done[2];
  size_t count = 9;
  int fd = -1;
  CHECK(rp_alloc(here, 1 << 16, RP_RACK(1), &addr));
  CHECK(rp_buffer_open(here, 1 << 16, &buffer, &data));
  memset(data, 'x', 1 << 16);
  CHECK(rp_submit_write(here, addr, buffer, 1 << 16, &ticket));
  CHECK(rp_wait(here, 5000, done, 2, &count));
  HOLDS(count == 1 && done[0].ticket == ticket && done[0].status == RP_OK);
  memset(data, 0, 1 << 16);
  CHECK(rp_submit_read(here, addr, buffer, 100, &ticket));
  for (int tries = 0; tries < 1000; tries++) {
    CHECK(rp_poll(here, done, 2, &count));
    if (count == 1)
      break;
    CHECK(rp_completion_fd(here, &fd));
    struct pollfd ready = {fd, POLLIN, 0};
    poll(&ready, 1, 100);
  }
  HOLDS(count == 1 && done[0].buffer == buffer && done[0].status == RP_OK);
  HOLDS(((char *)data)[99] == 'x' && ((char *)data)[100] == 0);
  EXPECT(RP_NOT_FOUND, rp_submit_read(here, 0xffff0000, buffer, 100, &ticket) == RP_OK
                           ? (rp_wait(here, 5000, done, 1, &count), done[0].status)
                           : RP_NOT_FOUND);
  ((char *)data)[0] = 'y'; /* still ours after a submission that failed */
  CHECK(rp_buffer_close(here, buffer));
  CHECK(rp_free(here, addr, 1 << 16));
}

static void tables(rp_handle *here, rp_handle *there) {
  uint32_t table = 0, same = 0, scan = 0;
  char value[8] = "", key[8] = "";
  size_t bytes = 0;
  uint64_t length = 0;
  CHECK(rp_table_open(here, "fruit", RP_TABLE_CREATE, &table));
  CHECK(rp_table_put(here, table, "apple", 5, "green", 5, RP_PUT_INSERT));
  EXPECT(RP_OCCUPIED, rp_table_put(here, table, "apple", 5, "red", 3, RP_PUT_INSERT));
  EXPECT(RP_NOT_FOUND, rp_table_put(here, table, "pear", 4, "red", 3, RP_PUT_UPDATE));
  CHECK(rp_table_open(there, "fruit", RP_TABLE_OPEN, &same));
  CHECK(rp_table_get(there, same, "apple", 5, value, 8, &bytes));
  HOLDS(bytes == 5 && memcmp(value, "green", 5) == 0);
  EXPECT(RP_TOO_SMALL, rp_table_get(there, same, "apple", 5, value, 4, &bytes));
  HOLDS(bytes == 5);

  rp_entry many[] = {{"b", 1, "2", 1, 0, 0}, {"c", 1, "3", 1, 0, 0}, {"", 0, "", 0, 0, 0}};
  CHECK(rp_table_put_many(here, table, many, 3));
  HOLDS(many[0].status == RP_OK && many[1].status == RP_OK && many[2].status == RP_INVALID);
  char room[2] = "";
  many[0].value = &room[0], many[1].value = &room[1], many[1].key = "d";
  CHECK(rp_table_get_many(there, same, many, 2));
  HOLDS(room[0] == '2' && many[0].value_bytes == 1 && many[1].status == RP_NOT_FOUND);
  many[1].key = "c";

  CHECK(rp_scan_open(there, same, "", 0, &scan));
  EXPECT(RP_TOO_SMALL, rp_scan_next(there, scan, key, 2, &bytes, &length));
  CHECK(rp_scan_next(there, scan, key, 8, &bytes, &length));
  HOLDS(bytes == 5 && memcmp(key, "apple", 5) == 0 && length == 5);
  CHECK(rp_scan_next(there, scan, key, 8, &bytes, &length));
  CHECK(rp_scan_next(there, scan, key, 8, &bytes, &length));
  EXPECT(RP_NOT_FOUND, rp_scan_next(there, scan, key, 8, &bytes, &length));
  CHECK(rp_scan_close(there, scan));
  CHECK(rp_table_delete_many(here, table, many, 2));
  CHECK(rp_table_delete(here, table, "apple", 5));
  EXPECT(RP_NOT_FOUND, rp_table_delete(here, table, "apple", 5));
}

static void objects(rp_handle *here, rp_handle *there) {
  char *large = calloc(1, 1 << 20);
  char name[8] = "";
  size_t bytes = 0;
  uint64_t length = 0;
  uint32_t scan = 0;
  HOLDS(large != NULL);
  memset(large, 'z', 1 << 20);
  CHECK(rp_object_put(here, "large", large, 1 << 20));
  memset(large, 0, 1 << 20);
  CHECK(rp_object_stat(there, "large", &length));
  HOLDS(length == 1 << 20);
  CHECK(rp_object_get(there, "large", large, 1 << 20, &bytes));
  HOLDS(bytes == 1 << 20 && large[0] == 'z' && large[bytes - 1] == 'z');
  CHECK(rp_object_list(there, "la", &scan));
  CHECK(rp_scan_next(there, scan, name, 8, &bytes, &length));
  HOLDS(bytes == 5 && memcmp(name, "large", 5) == 0 && length == 1 << 20);
  CHECK(rp_scan_close(there, scan));
  CHECK(rp_object_delete(here, "large"));
  EXPECT(RP_NOT_FOUND, rp_object_get(there, "large", large, 1, &bytes));
  free(large);
}

static void reports(rp_handle *here) {
  rp_addr addr = 0;
  rp_explanation told = {.size = sizeof told};
  size_t bytes = 0;
  char *text = malloc(1 << 16);
  HOLDS(text != NULL);
  CHECK(rp_alloc(here, 64, RP_RACK(1), &addr));
  CHECK(rp_explain(here, addr, &told));
  HOLDS(told.rack == 1 && !told.own_rack && !told.mapped && strcmp(told.path, "tcp") == 0);
  CHECK(rp_free(here, addr, 64));
  EXPECT(RP_TOO_SMALL, rp_stats(here, RP_JSON, text, 2, &bytes));
  CHECK(rp_stats(here, RP_JSON, text, 1 << 16, &bytes));
  HOLDS(text[0] == '{' && strlen(text) == bytes);
  CHECK(rp_stats(here, RP_PROMETHEUS, text, 1 << 16, &bytes));
  HOLDS(strstr(text, "# TYPE rackpool_") != NULL);
  free(text);
}

int main(void) {
  char master[64];
  HOLDS(rp_abi_version() == RP_ABI_VERSION);
  HOLDS(strcmp(rp_status_name(RP_BUSY), "RP_BUSY") == 0);
  HOLDS(strcmp(rp_status_name(99), "RP_UNKNOWN") == 0);
  HOLDS(strcmp(rp_last_code(), "") == 0 && rp_last_text(NULL, 0) == 0);
  rp_cluster *cluster = start(master, sizeof master);
  rp_pool *zero = join(master, 0, 0), *one = join(master, 1, 0);
  rp_handle *here = handle_of(zero), *there = handle_of(one);
  CHECK(rp_set_timeout(here, 2000));
  CHECK(rp_set_timeout(here, 0));
  memory(here, there);
  pins_and_locks(here, there);
  submissions(here);
  tables(here, there);
  objects(here, there);
  reports(here);
  CHECK(rp_close(zero));
  CHECK(rp_handle_close(here)); /* it stays when its pool is closed */
  CHECK(rp_handle_close(there));
  CHECK(rp_close(one));
  CHECK(rp_cluster_stop(cluster));
  puts("all done");
  return 0;
}
