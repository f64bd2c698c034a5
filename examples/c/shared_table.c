/* A hash table that programs of all racks share. Started without a pool it makes one of its own.

     cc shared_table.c $(pkg-config --cflags --libs rackpool) && ./a.out [MASTER [RACK]] */
#include <rackpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(rp_status status, const char *what) {
  char text[256] = "";
  if (status == RP_OK)
    return;
  rp_last_text(text, sizeof text);
  fprintf(stderr, "%s: %s (%s)\n", what, text, rp_last_code());
  exit(1);
}

int main(int count, char **words) {
  rp_options options = RP_OPTIONS_INIT;
  rp_cluster *cluster = NULL;
  rp_pool *pool = NULL;
  rp_handle *handle = NULL;
  uint32_t table = 0;
  char master[64] = "", value[64] = "";
  size_t bytes = 0;

  if (count > 1) {
    options.master = words[1];
    options.rack = count > 2 ? (uint16_t)atoi(words[2]) : 0;
  } else {
    rp_cluster_options own = RP_CLUSTER_OPTIONS_INIT;
    check(rp_cluster_start(&own, &cluster), "a pool of its own");
    check(rp_cluster_master(cluster, master, sizeof master), "its address");
    options.master = master;
  }
  check(rp_open(&options, &pool), "joining");
  check(rp_handle_open(pool, &handle), "a handle");
  check(rp_table_open(handle, "colours", RP_TABLE_CREATE, &table), "the table");

  rp_status status = rp_table_put(handle, table, "sky", 3, "blue", 4, RP_PUT_INSERT);
  if (status == RP_OCCUPIED)
    puts("another program was first");
  else
    check(status, "storing");
  check(rp_table_get(handle, table, "sky", 3, value, sizeof value, &bytes), "reading");
  printf("the sky is %.*s\n", (int)bytes, value);

  check(rp_handle_close(handle), "closing");
  check(rp_close(pool), "leaving");
  if (cluster != NULL)
    check(rp_cluster_stop(cluster), "stopping");
  return 0;
}
