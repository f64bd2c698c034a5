/* Which node gets the next extent, so that all nodes have their shares. Pure: no calls, no locks.

   Each node's bytes over its weight are kept alike (Webster's method): the node with the least
   (bytes + half an extent) / weight is next. What goes is taken off again, so that the shares hold
   for what there is. Threads that ask at the same time may both get one node; the next extents make
   up for it. */
#ifndef RACKPOOL_SHARES_H
#define RACKPOOL_SHARES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define NODES_MAX 64
#define NODE_NUMBERS 1024
#define WEIGHT_MAX 255
/* A huge page: extents end where one does, so that none is cut. */
#define EXTENT_BYTES (2ull << 20)
/* So many extents before they are made twice as long: a process has 65,530 mappings at most, and
   most of them are the program's own. At 1 TiB there are seven times as many. */
#define EXTENTS_SMALL 4096

struct shares {
  unsigned count;
  uint16_t node[NODES_MAX];
  uint16_t weight[NODES_MAX];
  _Atomic int64_t bytes[NODES_MAX];
  /* Runs of extents that the kernel keeps apart, about. */
  _Atomic int64_t extents;
};

static inline uint64_t amount(const struct shares *s, unsigned i)
{
  int64_t bytes = atomic_load_explicit(&s->bytes[i], memory_order_relaxed);
  return bytes < 0 ? 0 : (uint64_t)bytes;
}

/* The index of the node that gets the next so many bytes. */
static inline unsigned next_node(const struct shares *s, uint64_t bytes)
{
  unsigned best = 0;
  uint64_t best_load = 2 * amount(s, 0) + bytes;
  for (unsigned i = 1; i < s->count; i++) {
    uint64_t load = 2 * amount(s, i) + bytes;
    /* Addresses have 57 bits at most, weights 8: no overflow for what a process can map. */
    if (load * s->weight[best] < best_load * s->weight[i]) {
      best = i;
      best_load = load;
    }
  }
  return best;
}

static inline void add_bytes(struct shares *s, unsigned i, int64_t bytes)
{
  atomic_fetch_add_explicit(&s->bytes[i], bytes, memory_order_relaxed);
}

/* The length of an extent of a mapping of so many bytes, in bytes; a power of two. */
static inline uint64_t extent_bytes(const struct shares *s, uint64_t length)
{
  int64_t extents = atomic_load_explicit(&s->extents, memory_order_relaxed);
  uint64_t bytes = EXTENT_BYTES, count_max = EXTENTS_SMALL;
  while (extents >= EXTENTS_SMALL && bytes < EXTENT_BYTES << 16) {
    bytes *= 2;
    count_max = count_max > 1 ? count_max / 2 : 1;
    extents -= EXTENTS_SMALL;
  }
  /* One long mapping after the other takes less and less, too. */
  while (length / bytes > count_max)
    bytes *= 2;
  return bytes;
}

static inline bool parse_number(const char **text, unsigned max, uint16_t *number)
{
  unsigned value = 0;
  const char *at = *text;
  for (; *at >= '0' && *at <= '9'; at++) {
    value = value * 10 + (unsigned)(*at - '0');
    if (value > max)
      return false;
  }
  if (at == *text)
    return false;
  *text = at;
  *number = (uint16_t)value;
  return true;
}

/* Reads weights such as 0=3,1=1. */
static inline bool parse_shares(struct shares *s, const char *text)
{
  s->count = 0;
  do {
    unsigned i = s->count;
    if (i == NODES_MAX || !parse_number(&text, NODE_NUMBERS - 1, &s->node[i]) || *text++ != '=')
      return false;
    if (!parse_number(&text, WEIGHT_MAX, &s->weight[i]) || s->weight[i] == 0)
      return false;
    s->bytes[i] = 0;
    s->count++;
  } while (*text++ == ',');
  s->extents = 0;
  return text[-1] == '\0';
}

#endif
