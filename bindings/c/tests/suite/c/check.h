/* What the test programs share: a call that has to answer a status, and a pool of two racks. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif

#include <rackpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(wanted, call) expect(__LINE__, #call, (wanted), (call))
#define CHECK(call) EXPECT(RP_OK, call)
#define HOLDS(condition) \
  ((condition) ? (void)0 : (fprintf(stderr, "line %d: not %s\n", __LINE__, #condition), exit(1)))

static inline void expect(int line, const char *call, rp_status wanted, rp_status got) {
  char text[512] = "";
  if (wanted == got)
    return;
  rp_last_text(text, sizeof text);
  fprintf(stderr, "line %d: %s is %s, not %s: %s (%s)\n", line, call, rp_status_name(got),
          rp_status_name(wanted), rp_last_code(), text);
  exit(1);
}

static inline rp_cluster *start(char *master, size_t size) {
  rp_cluster *cluster = NULL;
  CHECK(rp_cluster_start(&(rp_cluster_options)RP_CLUSTER_OPTIONS_INIT, &cluster));
  CHECK(rp_cluster_master(cluster, master, size));
  return cluster;
}

static inline rp_pool *join(const char *master, uint16_t rack, uint64_t timeout_ms) {
  rp_options options = RP_OPTIONS_INIT;
  rp_pool *pool = NULL;
  options.master = master;
  options.rack = rack;
  options.timeout_ms = timeout_ms;
  CHECK(rp_open(&options, &pool));
  return pool;
}

static inline rp_handle *handle_of(rp_pool *pool) {
  rp_handle *handle = NULL;
  CHECK(rp_handle_open(pool, &handle));
  return handle;
}

#endif
