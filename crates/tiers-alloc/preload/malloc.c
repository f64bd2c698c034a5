/* The malloc family of an unchanged program, from the default arena of rackpool_tiers. Built by
     cc -O2 -shared -fPIC malloc.c -o malloc.so $(pkg-config --cflags --libs rackpool_tiers)
   and used by
     RACKPOOL_TIERS_POLICY='size:4096;preferred:0;preferred:1' LD_PRELOAD=./malloc.so PROGRAM */
#include "../include/rackpool_tiers.h"
#include <errno.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
#define ARENA rackpool_tiers_default_arena()

PUBLIC void *malloc(size_t size) { return rackpool_tiers_malloc(ARENA, size); }

PUBLIC void *calloc(size_t count, size_t size) { return rackpool_tiers_calloc(ARENA, count, size); }

PUBLIC void *realloc(void *block, size_t size)
{
  return rackpool_tiers_realloc(ARENA, block, size);
}

PUBLIC void *reallocarray(void *block, size_t count, size_t size)
{
  return rackpool_tiers_reallocarray(ARENA, block, count, size);
}

PUBLIC void free(void *block)
{
  int error = errno;
  rackpool_tiers_free(block);
  errno = error;
}

/* Programs that were linked before glibc 2.26 have it. */
PUBLIC void cfree(void *block) { free(block); }

PUBLIC void *aligned_alloc(size_t alignment, size_t size)
{
  return rackpool_tiers_aligned_alloc(ARENA, alignment, size);
}

/* As in glibc, an alignment that is no power of two is made one. */
PUBLIC void *memalign(size_t alignment, size_t size)
{
  size_t power = 1;
  while (power < alignment && power << 1 != 0)
    power <<= 1;
  return rackpool_tiers_aligned_alloc(ARENA, power, size);
}

PUBLIC int posix_memalign(void **block, size_t alignment, size_t size)
{
  return rackpool_tiers_posix_memalign(ARENA, block, alignment, size);
}

PUBLIC void *valloc(size_t size)
{
  return rackpool_tiers_aligned_alloc(ARENA, (size_t)sysconf(_SC_PAGESIZE), size);
}

PUBLIC void *pvalloc(size_t size)
{
  size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes;
  if (__builtin_add_overflow(size, page - 1, &bytes)) {
    errno = ENOMEM;
    return NULL;
  }
  return rackpool_tiers_aligned_alloc(ARENA, page, bytes / page * page);
}

PUBLIC size_t malloc_usable_size(void *block) { return rackpool_tiers_usable_size(block); }
