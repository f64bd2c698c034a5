/* rackpool for C: a memory pool for clusters, see `man 3 rackpool`.

   Link with `pkg-config --cflags --libs rackpool`. Rules:
   - Every call but the few that say otherwise answers a status; RP_OK is 0. Why the last one of
     this thread failed is told by rp_last_code, rp_last_text and rp_last_retry until the next call
     that fails.
   - A handle is used by one thread at a time; a thread that calls meanwhile gets RP_MISUSE, and so
     does every call with something that was closed, or is of another kind. Nothing is corrupted.
   - After a fork the child gets RP_FORKED for all that was opened before, and opens its own.
   - No call runs code of the program, installs a signal handler or changes the allocator. Calls
     that wait do so for the time limit of the pool or handle, then answer RP_TIMEOUT,
     RP_UNREACHABLE or RP_OUTCOME_UNKNOWN.
   - Memory that is given is used until the call returns, and no longer.
   - Structures that begin with `size` may grow: set it to their size as compiled (the *_INIT macros
     do). Bytes that the library does not know have to be zero; others are never changed meaning. */
#ifndef RACKPOOL_H
#define RACKPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RP_ABI_VERSION 0

/* The version of the interface that the library has; it serves programs of its own and of lower
   ones. */
uint32_t rp_abi_version(void);

typedef int32_t rp_status;
enum {
  RP_OK = 0,
  RP_NOT_FOUND = 1,       /* no such allocation, name or key */
  RP_LOST = 2,            /* what was there is gone, or no longer ours */
  RP_FULL = 3,            /* no memory there: free some, or use another rack */
  RP_BUSY = 4,            /* not now: retry after a pause */
  RP_TIMEOUT = 5,         /* no answer in time: repeating the call does no harm */
  RP_UNREACHABLE = 6,     /* a rack or the master is not there: nothing was done */
  RP_OUTCOME_UNKNOWN = 7, /* done once or not at all: read before trying again */
  RP_OCCUPIED = 8,        /* the word, key or lock is taken */
  RP_INVALID = 9,         /* an argument or option makes no sense */
  RP_DENIED = 10,         /* the caller may not */
  RP_CORRUPT = 11,        /* bytes of a region, peer or table make no sense */
  RP_VERSION = 12,        /* a peer, region or table is of another release */
  RP_IO = 13,             /* the operating system refused something */
  RP_MISUSE = 14,         /* a rule above was broken: nothing was done */
  RP_FORKED = 15,         /* it is of the parent process */
  RP_INTERNAL = 16,       /* a bug of rackpool; what was used cannot be used any more */
  RP_TOO_SMALL = 17       /* it does not fit into the memory given: nothing was read */
};

/* Its name, such as "RP_BUSY"; of an unknown one "RP_UNKNOWN". */
const char *rp_status_name(rp_status status);

/* Of the last call of this thread that failed: a stable word such as "not-mapped" ("" if none did);
   whether the same call may succeed later; one line of text, as much of it as fits, with a zero
   behind it. Its whole length is answered. */
const char *rp_last_code(void);
int rp_last_retry(void);
size_t rp_last_text(char *text, size_t size);

typedef struct rp_cluster rp_cluster;
typedef struct rp_pool rp_pool;
typedef struct rp_handle rp_handle;
typedef struct rp_pin rp_pin;
/* An address in the pool; 0 is none. Each process has the same one for the same memory. */
typedef uint64_t rp_addr;

/* ---- Pools ---- */

enum { RP_READ_ONLY = 1, RP_SHARED_CONNECTIONS = 2, RP_FROM_ENVIRONMENT = 4 };

typedef struct {
  size_t size;
  const char *master;      /* HOST:PORT, several with commas; NULL: 127.0.0.1:7400 */
  uint16_t rack;           /* the rack that this program runs in */
  uint16_t shard_plus_one; /* 0: any shard of the rack */
  uint32_t flags;          /* of those above */
  uint64_t timeout_ms;     /* how long calls wait; 0: 10 s */
  const char *fabric;      /* auto, shm, tcp, verbs or proxied; NULL: auto */
  const char *secret_file; /* the pool's secret; NULL: none */
} rp_options;
#define RP_OPTIONS_INIT {sizeof(rp_options), NULL, 0, 0, 0, 0, NULL, NULL}

/* Joins a pool. With RP_FROM_ENVIRONMENT the variables RACKPOOL_* (as the command has them) say
   what the options do not. A pool is used by any thread; its handles stay when it is closed. */
rp_status rp_open(const rp_options *options, rp_pool **pool);
rp_status rp_close(rp_pool *pool);

/* One thread's way into the pool: its own session. Closing gives back its locks, its buffers and
   what it owns. */
rp_status rp_handle_open(rp_pool *pool, rp_handle **handle);
rp_status rp_handle_close(rp_handle *handle);
/* How long each later call may wait, instead of what the options say; 0 for that again. */
rp_status rp_set_timeout(rp_handle *handle, uint64_t timeout_ms);
rp_status rp_page_bytes(rp_handle *handle, uint64_t *bytes);

/* A pool in this process for tests: a master and racks with memory of 64 MiB unless it is said. */
typedef struct {
  size_t size;
  uint16_t racks;       /* 0: 2 */
  uint16_t reserved[3]; /* zero */
  uint64_t rack_bytes;  /* 0: 64 MiB */
  uint64_t page_bytes;  /* 0: 64 KiB */
} rp_cluster_options;
#define RP_CLUSTER_OPTIONS_INIT {sizeof(rp_cluster_options), 0, {0, 0, 0}, 0, 0}

rp_status rp_cluster_start(const rp_cluster_options *options, rp_cluster **cluster);
rp_status rp_cluster_stop(rp_cluster *cluster);
/* The address of its master, for rp_open. */
rp_status rp_cluster_master(rp_cluster *cluster, char *text, size_t size);
/* Ends a rack as if its host had died; starts it with new memory: what it had is lost. */
rp_status rp_cluster_stop_rack(rp_cluster *cluster, uint16_t rack);
rp_status rp_cluster_start_rack(rp_cluster *cluster, uint16_t rack);

/* ---- Memory ---- */

/* Where memory is taken from. */
typedef uint32_t rp_placement;
enum {
  RP_AUTO = 0,     /* as the pool's policy says */
  RP_LOCAL = 1,    /* the own rack */
  RP_SPREAD = 2,   /* any rack */
  RP_NEAR = 3,     /* the nearest memory of the own rack */
  RP_FAR = 4,      /* the farthest */
  RP_RACK_0 = 0x10000,
  RP_TIER_0 = 0x20000
};
#define RP_RACK(number) ((rp_placement)(RP_RACK_0 + (number)))
#define RP_TIER(number) ((rp_placement)(RP_TIER_0 + (number)))

/* Allocates zeroed bytes, which outlive the process; rp_alloc_owned: until the handle ends. */
rp_status rp_alloc(rp_handle *handle, uint64_t bytes, rp_placement placement, rp_addr *addr);
rp_status rp_alloc_owned(rp_handle *handle, uint64_t bytes, rp_placement placement, rp_addr *addr);
rp_status rp_free(rp_handle *handle, rp_addr addr, uint64_t bytes);
/* The same together with a word of 8 bytes in the pool that gets the address, or loses it, in the
   same step, whichever process dies when. The word holds 0 before, RP_OCCUPIED otherwise. */
rp_status rp_alloc_into(rp_handle *handle, rp_addr word, uint64_t bytes, rp_addr *addr);
rp_status rp_free_from(rp_handle *handle, rp_addr word, uint64_t bytes);

/* Aligned pieces of up to 8 bytes are read and written at once, longer ones may be torn. When a
   write has returned, every reader sees it. After an error `to` holds anything. */
rp_status rp_read(rp_handle *handle, rp_addr addr, void *to, size_t bytes);
rp_status rp_write(rp_handle *handle, rp_addr addr, const void *from, size_t bytes);
/* Many pieces under one wait; the memory of those that are read does not overlap. */
typedef struct {
  rp_addr addr;
  void *data;
  size_t bytes;
} rp_piece;
typedef struct {
  rp_addr addr;
  const void *data;
  size_t bytes;
} rp_const_piece;
rp_status rp_readv(rp_handle *handle, const rp_piece *pieces, size_t count);
rp_status rp_writev(rp_handle *handle, const rp_const_piece *pieces, size_t count);

/* Words of 8 bytes, aligned. rp_cas answers RP_OK in any case; it has swapped if `found` is what
   was expected. */
rp_status rp_read_u64(rp_handle *handle, rp_addr addr, uint64_t *value);
rp_status rp_write_u64(rp_handle *handle, rp_addr addr, uint64_t value);
rp_status rp_cas(rp_handle *handle, rp_addr addr, uint64_t expected, uint64_t desired,
                 uint64_t *found);
rp_status rp_fetch_add(rp_handle *handle, rp_addr addr, uint64_t n, uint64_t *before);

/* Makes what was written durable, in memory that persists. */
rp_status rp_persist(rp_handle *handle, rp_addr addr, uint64_t bytes);

/* Addresses under names, which the master keeps. rp_root_set sets it if it is `expected` now (0: if
   there is none; addr 0 removes the name); `now` is what is there afterwards. */
rp_status rp_root(rp_handle *handle, const char *name, rp_addr *addr);
rp_status rp_root_set(rp_handle *handle, const char *name, rp_addr expected, rp_addr addr,
                      rp_addr *now);

/* ---- Direct access ---- */

/* Memory of the own rack, or of a mapped one, within one page, at an address that is a multiple of
   8: it stays where it is until rp_unpin, by any thread, also if the handle is closed. Others read
   and write it meanwhile. At most 7 a handle. rp_pin_revoked: 1 if the page is wanted elsewhere or
   was freed, so unpin soon. */
rp_status rp_pin_open(rp_handle *handle, rp_addr addr, uint64_t bytes, rp_pin **pin, void **data);
rp_status rp_pin_revoked(rp_pin *pin, int *revoked);
rp_status rp_unpin(rp_pin *pin);

/* ---- Locks ---- */

enum { RP_LOCK_READ = 0, RP_LOCK_WRITE = 1 };
#define RP_WAIT_DEFAULT UINT64_MAX

/* Locks `bytes` bytes within one page, 0 for the line of 64 bytes at addr; waits for wait_ms, 0
   tries. `lock` names it at this handle; `token` grows with each grant of the rack. A lock ends
   with its handle and its process. */
rp_status rp_lock(rp_handle *handle, rp_addr addr, uint64_t bytes, int mode, uint64_t wait_ms,
                  uint64_t *lock, uint64_t *token);
/* Gives it back; RP_LOST if it was not ours any more. */
rp_status rp_unlock(rp_handle *handle, uint64_t lock);
rp_status rp_lock_check(rp_handle *handle, uint64_t lock);

/* ---- Submissions ---- */

/* Memory that the library owns and transfers use without a copy by the handle, named by a number.
   It is the program's but for the time of a submission. */
rp_status rp_buffer_open(rp_handle *handle, size_t bytes, uint32_t *buffer, void **data);
/* RP_BUSY while a submission has it. */
rp_status rp_buffer_close(rp_handle *handle, uint32_t buffer);
/* Begin to transfer the first `bytes` bytes of a buffer; at most 64 are under way. */
rp_status rp_submit_read(rp_handle *handle, rp_addr addr, uint32_t buffer, size_t bytes,
                         uint64_t *ticket);
rp_status rp_submit_write(rp_handle *handle, rp_addr addr, uint32_t buffer, size_t bytes,
                          uint64_t *ticket);
typedef struct {
  uint64_t ticket;
  uint32_t buffer;
  rp_status status; /* of the transfer */
} rp_completion;
/* What has ended, up to `max` of them; rp_wait waits for the first. None in time: count 0. */
rp_status rp_poll(rp_handle *handle, rp_completion *completions, size_t max, size_t *count);
rp_status rp_wait(rp_handle *handle, uint64_t timeout_ms, rp_completion *completions, size_t max,
                  size_t *count);
/* A descriptor that is readable when rp_poll may have something; ask before each sleep. */
rp_status rp_completion_fd(rp_handle *handle, int *fd);

/* ---- Tables: keys of 1 byte to 64 KiB, shared by all programs of the pool ---- */

enum { RP_TABLE_OPEN = 0, RP_TABLE_CREATE = 1 };
enum { RP_PUT_ALWAYS = 0, RP_PUT_INSERT = 1, RP_PUT_UPDATE = 2 };

/* `table` names it at this handle. RP_TABLE_CREATE makes one that is not there. */
rp_status rp_table_open(rp_handle *handle, const char *name, int mode, uint32_t *table);
/* RP_NOT_FOUND without the key, RP_TOO_SMALL if the value is longer than `size`; `bytes` is its
   length then too. */
rp_status rp_table_get(rp_handle *handle, uint32_t table, const void *key, size_t key_bytes,
                       void *value, size_t size, size_t *bytes);
/* RP_PUT_INSERT: RP_OCCUPIED if the key is there; RP_PUT_UPDATE: RP_NOT_FOUND if it is not. */
rp_status rp_table_put(rp_handle *handle, uint32_t table, const void *key, size_t key_bytes,
                       const void *value, size_t value_bytes, int mode);
rp_status rp_table_delete(rp_handle *handle, uint32_t table, const void *key, size_t key_bytes);
/* Many keys. Each entry gets its own status; the call fails only where none could be tried. */
typedef struct {
  const void *key;
  size_t key_bytes;
  void *value;        /* of a put: only read */
  size_t value_bytes; /* of a get: the room before, the length after */
  rp_status status;
  uint32_t reserved; /* zero */
} rp_entry;
rp_status rp_table_get_many(rp_handle *handle, uint32_t table, rp_entry *entries, size_t count);
rp_status rp_table_put_many(rp_handle *handle, uint32_t table, rp_entry *entries, size_t count);
rp_status rp_table_delete_many(rp_handle *handle, uint32_t table, rp_entry *entries, size_t count);
/* Keys that begin with a prefix, in order, as they were when the scan was opened. rp_scan_next:
   RP_NOT_FOUND after the last; RP_TOO_SMALL, and the same key again, if `size` is too small. */
rp_status rp_scan_open(rp_handle *handle, uint32_t table, const void *prefix, size_t prefix_bytes,
                       uint32_t *scan);
rp_status rp_scan_next(rp_handle *handle, uint32_t scan, void *key, size_t size, size_t *key_bytes,
                       uint64_t *value_bytes);
rp_status rp_scan_close(rp_handle *handle, uint32_t scan);

/* ---- Named objects: those of `rackpool shell put`; names are of 1 byte to 64 KiB ---- */

rp_status rp_object_put(rp_handle *handle, const char *name, const void *data, size_t bytes);
rp_status rp_object_get(rp_handle *handle, const char *name, void *to, size_t size, size_t *bytes);
rp_status rp_object_stat(rp_handle *handle, const char *name, uint64_t *bytes);
rp_status rp_object_delete(rp_handle *handle, const char *name);
/* The names that begin with a prefix, as a scan. */
rp_status rp_object_list(rp_handle *handle, const char *prefix, uint32_t *scan);

/* ---- What the pool tells about itself ---- */

typedef struct {
  size_t size; /* set before; what the library does not know stays as it is */
  uint64_t page;
  uint64_t offset_bytes;
  uint64_t generation;
  uint32_t frame;
  uint16_t rack;
  uint16_t shard;
  uint8_t own_rack;
  uint8_t mapped; /* by loads and stores; else by one-sided operations */
  uint8_t replicated;
  uint8_t translation_cached;
  char path[12];
  char why[240]; /* cut at the end */
} rp_explanation;
/* Where an address lives, and how this handle reaches it. */
rp_status rp_explain(rp_handle *handle, rp_addr addr, rp_explanation *explanation);

enum { RP_JSON = 0, RP_PROMETHEUS = 1 };
/* Counters of the pool as text with a zero behind it; `bytes` is its length without. */
rp_status rp_stats(rp_handle *handle, int format, char *text, size_t size, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
