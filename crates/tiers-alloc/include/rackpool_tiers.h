/* An allocator whose arenas take memory from the memory nodes that a policy names.

   Link with `pkg-config --cflags --libs rackpool_tiers`. All functions may be called by any thread;
   a block is given back by any thread, and by no other allocator. The child of a fork goes on with
   all arenas; but if another thread may end at that moment, or take its first block of an arena, it
   calls exec before it allocates. */
#ifndef RACKPOOL_TIERS_H
#define RACKPOOL_TIERS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lives until the process ends; there are at most 64. */
typedef struct rackpool_tiers_arena rackpool_tiers_arena;

/* What the program knows of a block's use, for policies by hint. */
enum rackpool_tiers_hint { RACKPOOL_TIERS_NEAR = 0, RACKPOOL_TIERS_FAR = 1 };

enum rackpool_tiers_error {
  RACKPOOL_TIERS_OK = 0,
  RACKPOOL_TIERS_POLICY = 1,
  RACKPOOL_TIERS_NAME = 2,
  RACKPOOL_TIERS_NODE = 3,
  RACKPOOL_TIERS_REFUSED = 4,
  RACKPOOL_TIERS_ADDRESSES = 5,
  RACKPOOL_TIERS_ARENAS = 6,
};

/* Makes an arena, and answers 0 or an error, with NULL for the arena. The name is for statistics: 1
   to 32 letters, digits, '.', '_' and '-'. Policies:
     bind:1                                from node 1; NULL where it is full
     preferred:1                           from node 1; from others where it is full
     weighted:0=3,1=1                      by exact shares; from others where one is full
     bind:0=3,1=1                          by exact shares, from no other nodes
     size:4096;preferred:0;preferred:1     up to 4096 bytes from the first, longer from the last
     hint;preferred:0;preferred:1          by the hint: near, far */
int rackpool_tiers_arena_create(const char *name, const char *policy, rackpool_tiers_arena **arena);

const char *rackpool_tiers_error_text(int error);

/* The arena by the policy in the variable RACKPOOL_TIERS_POLICY, made at the first call. NULL, and
   a line on standard error, if there can be none. */
rackpool_tiers_arena *rackpool_tiers_default_arena(void);

/* As in C and POSIX: NULL and ENOMEM if there is no memory; blocks of no bytes are blocks; calloc
   and reallocarray refuse a product that overflows; aligned_alloc takes any size. realloc moves a
   block of another arena into this one, and keeps a block where its hint put it. */
void *rackpool_tiers_malloc(rackpool_tiers_arena *arena, size_t size);
void *rackpool_tiers_malloc_hint(rackpool_tiers_arena *arena, size_t size, int hint);
void *rackpool_tiers_calloc(rackpool_tiers_arena *arena, size_t count, size_t size);
void *rackpool_tiers_realloc(rackpool_tiers_arena *arena, void *block, size_t size);
void *rackpool_tiers_reallocarray(rackpool_tiers_arena *arena, void *block, size_t count,
                                  size_t size);
void *rackpool_tiers_aligned_alloc(rackpool_tiers_arena *arena, size_t alignment, size_t size);
int rackpool_tiers_posix_memalign(rackpool_tiers_arena *arena, void **block, size_t alignment,
                                  size_t size);
void rackpool_tiers_free(void *block);
/* 0 for NULL. */
size_t rackpool_tiers_usable_size(const void *block);

/* Bytes of addresses that a node was given to. */
uint64_t rackpool_tiers_node_bytes(rackpool_tiers_arena *arena, unsigned node);
/* How many blocks are in use of the class (powers of two) that blocks of this size belong to, and
   how many bytes they have. Looks at the whole arena. */
uint64_t rackpool_tiers_class_blocks(rackpool_tiers_arena *arena, size_t size, uint64_t *bytes);
/* Writes the figures of all arenas as Prometheus reads them, ended by a zero byte, as much as the
   buffer holds. The answer is the length without that byte, as snprintf's. */
size_t rackpool_tiers_prometheus(char *buffer, size_t size);

#ifdef __cplusplus
}
#endif
#endif
