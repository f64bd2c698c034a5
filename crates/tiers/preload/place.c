/* Places the private memory of an unchanged program on memory nodes by weights.

   Preloaded by `rackpool tiers run` where the kernel has no weighted interleave with these weights.
   In: RACKPOOL_TIERS_PLACE (weights), RACKPOOL_TIERS_NOTES (a file for counters). Private anonymous
   memory is given a node by mbind, extent by extent (shares.h), when it is mapped or, if it is a
   reservation without access, when it is made accessible; a reservation is marked by the policy
   MPOL_LOCAL until then, so that the kernel keeps the books and fork and exec need nothing. Memory
   of files, shared memory and stacks stay as they are. A node that is full is passed over
   (MPOL_PREFERRED): no program ends for it.

   glibc's malloc and its threads call mmap, brk and mprotect inside the library, past every symbol
   that could be interposed. So the first instructions of these functions are replaced by a jump to
   ours, as Open UCX does; the symbols are interposed as well, for where that is refused.

   A program that shuts itself in by seccomp is left alone from then on.

   Rules: no memory is allocated, no lock is taken, no function of the C library is called after the
   start; so everything may be called in signal handlers and between vfork and exec. */
#define _GNU_SOURCE
#include "shares.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define PUBLIC __attribute__((visibility("default")))

#define POLICY_PREFERRED 1
#define POLICY_LOCAL 4
#define POLICY_MODES 0x1fff
#define POLICY_STATIC_NODES (1 << 15)
#define POLICY_OF_ADDRESS 2
#define POLICY_MOVE 2
/* Operations of seccomp() up to this one set something, the others ask. */
#define SECCOMP_SETS_MAX 1
#define LONG_BITS (8 * sizeof(long))

/* What owner() says beside the index of a node. */
#define FOREIGN -1
#define MARKED -2

/* Addresses that are asked for at most when a long mapping goes. */
#define STEPS_MAX 65536
#define ENTRIES_MAX 1024
#define TEXT_MAX 4096

/* Counters that `rackpool tiers run` reads: see run/preload.rs. */
struct notes {
  _Atomic uint64_t processes;
  /* Of them, those in which the C library's own calls are seen. */
  _Atomic uint64_t patched;
  _Atomic uint64_t placed_bytes;
  _Atomic uint64_t refused_bytes;
  _Atomic uint64_t refused_error;
};

static struct notes own_notes;
static struct notes *notes = &own_notes;
static struct shares shares;
static bool is_on;
/* This process has a seccomp filter of its own, which holds for what it becomes by exec as well. */
static bool is_shut_in;
static char place_entry[TEXT_MAX], notes_entry[TEXT_MAX], library[TEXT_MAX];

extern void *__curbrk __attribute__((weak));
extern char **environ;

/* A system call without the C library, which may not be started yet, and without errno. */
static long call(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
#else
#error "only x86-64 and aarch64"
#endif
}

static bool is_error(long result) { return result < 0 && result > -4096; }

static long told(long result)
{
  if (!is_error(result))
    return result;
  errno = (int)-result;
  return -1;
}

static uintptr_t page_up(uintptr_t bytes) { return (bytes + 4095) & ~(uintptr_t)4095; }

static void note(_Atomic uint64_t *counter, uint64_t more)
{
  atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

#ifdef VIRTUAL_NODES
/* For tests on a machine with one node: nodes 0 to 3 are policies of node 0 that the kernel keeps
   apart, and that /proc/PID/numa_maps shows. */
static const int virtual_modes[] = {1, 2, 3, 5};
#endif

static long bind_to(uintptr_t at, uintptr_t length, unsigned node, bool moves)
{
  unsigned long mask[NODE_NUMBERS / LONG_BITS] = {0};
  long mode = POLICY_PREFERRED | POLICY_STATIC_NODES;
#ifdef VIRTUAL_NODES
  mode = virtual_modes[node];
  node = 0;
#endif
  mask[node / LONG_BITS] |= 1ul << node % LONG_BITS;
  long flags = moves ? POLICY_MOVE : 0;
  return call(SYS_mbind, (long)at, (long)length, mode, (long)mask, NODE_NUMBERS + 1, flags);
}

/* The index of the node that an address is placed on, FOREIGN or MARKED. */
static int owner(uintptr_t at)
{
  unsigned long mask[NODE_NUMBERS / LONG_BITS] = {0};
  int mode = 0;
  long result = call(SYS_get_mempolicy, (long)&mode, (long)mask, NODE_NUMBERS, (long)at,
                     POLICY_OF_ADDRESS, 0);
  if (is_error(result))
    return FOREIGN;
  mode &= POLICY_MODES;
  bool is_empty = true;
  for (unsigned i = 0; i < NODE_NUMBERS / LONG_BITS; i++)
    is_empty = is_empty && mask[i] == 0;
  /* Kernels before 5.14 show MPOL_LOCAL as the preference of no node. */
  if (mode == POLICY_LOCAL || (mode == POLICY_PREFERRED && is_empty))
    return MARKED;
#ifdef VIRTUAL_NODES
  for (unsigned i = 0; i < shares.count; i++)
    if (virtual_modes[shares.node[i]] == mode)
      return (int)i;
  return FOREIGN;
#endif
  if (mode != POLICY_PREFERRED)
    return FOREIGN;
  for (unsigned i = 0; i < shares.count; i++)
    if (mask[shares.node[i] / LONG_BITS] >> shares.node[i] % LONG_BITS & 1)
      return (int)i;
  return FOREIGN;
}

/* Gives a run of extents to a node; its bytes are counted already. */
static void settle(uintptr_t at, uintptr_t end, unsigned i, bool moves)
{
  if (at == end)
    return;
  long result = bind_to(at, end - at, shares.node[i], moves);
  if (!is_error(result)) {
    note(&notes->placed_bytes, end - at);
    atomic_fetch_add_explicit(&shares.extents, 1, memory_order_relaxed);
    return;
  }
  add_bytes(&shares, i, -(int64_t)(end - at));
  note(&notes->refused_bytes, end - at);
  atomic_store_explicit(&notes->refused_error, (uint64_t)-result, memory_order_relaxed);
  /* A filter or a kernel that refuses once refuses always. */
  if (result == -EPERM || result == -ENOSYS)
    is_on = false;
}

static uintptr_t extent_end(uintptr_t at, uintptr_t end, uint64_t extent)
{
  uintptr_t next = (at / extent + 1) * extent;
  return next == 0 || next > end ? end : next;
}

/* Deals a range out, extent by extent; neighbours on one node are one call. */
static void place(uintptr_t at, uintptr_t end, uint64_t extent_min, bool moves)
{
  uint64_t extent = extent_bytes(&shares, end - at);
  uintptr_t begin = at;
  int run = FOREIGN;
  if (extent < extent_min)
    extent = extent_min;
  while (at < end && is_on) {
    uintptr_t next = extent_end(at, end, extent);
    unsigned i = next_node(&shares, next - at);
    if ((int)i != run && run >= 0) {
      settle(begin, at, (unsigned)run, moves);
      begin = at;
    }
    run = (int)i;
    add_bytes(&shares, i, (int64_t)(next - at));
    at = next;
  }
  if (run >= 0)
    settle(begin, at, (unsigned)run, moves);
}

/* Memory that makes a heap longer stays on the heap's node up to the end of the extent. */
static void place_growth(uintptr_t at, uintptr_t end)
{
  uint64_t extent = extent_bytes(&shares, end - at);
  int before = at % extent == 0 ? FOREIGN : owner(at - 1);
  if (before >= 0) {
    uintptr_t next = extent_end(at, end, extent);
    add_bytes(&shares, (unsigned)before, (int64_t)(next - at));
    settle(at, next, (unsigned)before, false);
    /* The kernel joins it with what is before it. */
    atomic_fetch_sub_explicit(&shares.extents, 1, memory_order_relaxed);
    at = next;
  }
  place(at, end, 0, false);
}

/* A small mapping beside a placed one joins it once there are many extents. */
static void place_mapping(uintptr_t at, uintptr_t end, uint64_t extent_min, bool moves)
{
  int64_t extents = atomic_load_explicit(&shares.extents, memory_order_relaxed);
  uint64_t extent = extent_bytes(&shares, end - at);
  if (extents < EXTENTS_SMALL / 2 || at / extent != (end - 1) / extent || moves) {
    place(at, end, extent_min, moves);
    return;
  }
  int beside = at % extent == 0 ? FOREIGN : owner(at - 1);
  if (beside < 0 && end % extent != 0)
    beside = owner(end);
  if (beside < 0) {
    place(at, end, extent_min, moves);
    return;
  }
  add_bytes(&shares, (unsigned)beside, (int64_t)(end - at));
  settle(at, end, (unsigned)beside, false);
  atomic_fetch_sub_explicit(&shares.extents, 1, memory_order_relaxed);
}

/* So far are looks at a range apart, in bytes. */
static uint64_t step_bytes(uintptr_t length)
{
  uint64_t step = EXTENT_BYTES;
  while (length / step > STEPS_MAX)
    step *= 2;
  return step;
}

/* Where the part of a step ends that has the owner of its first page: parts end in the middle of a
   step where a heap ends or was moved. One between two parts of one owner is not found. */
static uintptr_t part_end(uintptr_t at, uintptr_t end, int first)
{
  if (owner(end - 4096) == first)
    return end;
  uintptr_t other = end - 4096;
  while (other - at > 4096) {
    uintptr_t middle = at + ((other - at) / 2 & ~(uintptr_t)4095);
    if (owner(middle) == first)
      at = middle;
    else
      other = middle;
  }
  return other;
}

/* Puts the placed parts of a range on the books or, by the sign, takes them off. */
static void count_range(uintptr_t at, uintptr_t length, int sign)
{
  uintptr_t end = at + length;
  uint64_t step = step_bytes(length);
  int run = FOREIGN;
  /* No call of the kernel takes such a range. */
  if (at % 4096 != 0)
    return;
  while (at < end) {
    int i = owner(at);
    uintptr_t next = part_end(at, extent_end(at, end, step), i);
    if (i >= 0) {
      add_bytes(&shares, (unsigned)i, sign * (int64_t)(next - at));
      if (i != run)
        atomic_fetch_add_explicit(&shares.extents, sign, memory_order_relaxed);
    }
    run = i;
    at = next;
  }
}

/* Takes a range that is about to go off the books; once it is gone another thread may have it. */
static void forget(uintptr_t at, uintptr_t length) { count_range(at, length, -1); }

/* Takes back what was forgotten where the kernel refused, as far as it is still there. */
static void recall(uintptr_t at, uintptr_t length) { count_range(at, length, 1); }

/* Places what is marked of a range that is accessible now. */
static void place_marked(uintptr_t at, uintptr_t end)
{
  uintptr_t begin = at;
  uint64_t step = step_bytes(end - at);
  while (at < end && is_on) {
    int i = owner(at);
    uintptr_t next = part_end(at, extent_end(at, end, step), i);
    if (i != MARKED) {
      if (begin < at)
        place_growth(begin, at);
      begin = next;
    }
    at = next;
  }
  if (begin < at)
    place_growth(begin, at);
}

static uint64_t page_bytes(int flags)
{
  unsigned shift = (unsigned)flags >> 26 & 63;
  if (!(flags & MAP_HUGETLB))
    return 4096;
  return shift == 0 ? EXTENT_BYTES : 1ull << shift;
}

PUBLIC void *mmap(void *to, size_t length, int prot, int flags, int fd, off_t offset)
{
  bool is_fixed = (flags & MAP_FIXED) && !(flags & MAP_FIXED_NOREPLACE);
  bool is_ours = is_on && (flags & MAP_ANONYMOUS) && (flags & MAP_TYPE) == MAP_PRIVATE &&
                 !(flags & (MAP_STACK | MAP_GROWSDOWN));
  bool is_forgotten = is_on && is_fixed;
  if (is_forgotten)
    forget((uintptr_t)to, page_up(length));
  long result = call(SYS_mmap, (long)to, (long)length, prot, flags, fd, offset);
  if (is_forgotten && is_error(result))
    recall((uintptr_t)to, page_up(length));
  if (is_error(result) || !is_ours)
    return (void *)told(result);
  uint64_t page = page_bytes(flags);
  uintptr_t at = (uintptr_t)result, end = at + ((length + page - 1) & ~(page - 1));
  /* It has its pages already. */
  bool moves = flags & (MAP_POPULATE | MAP_LOCKED);
  if (prot == PROT_NONE)
    call(SYS_mbind, (long)at, (long)(end - at), POLICY_LOCAL, 0, 0, 0);
  else if (is_fixed && page == 4096 && !moves)
    place_growth(at, end);
  else
    place_mapping(at, end, page, moves);
  return (void *)result;
}

PUBLIC void *mmap64(void *to, size_t length, int prot, int flags, int fd, off_t offset)
    __attribute__((alias("mmap")));

PUBLIC int munmap(void *at, size_t length)
{
  bool is_forgotten = is_on;
  if (is_forgotten)
    forget((uintptr_t)at, page_up(length));
  long result = call(SYS_munmap, (long)at, (long)length, 0, 0, 0, 0);
  if (is_forgotten && is_error(result))
    recall((uintptr_t)at, page_up(length));
  return (int)told(result);
}

PUBLIC int mprotect(void *at, size_t length, int prot)
{
  long result = call(SYS_mprotect, (long)at, (long)length, prot, 0, 0, 0);
  if (is_on && !is_error(result) && prot != PROT_NONE)
    place_marked((uintptr_t)at, (uintptr_t)at + page_up(length));
  return (int)told(result);
}

PUBLIC int brk(void *to)
{
  uintptr_t was = (uintptr_t)(&__curbrk && __curbrk ? __curbrk
                                                    : (void *)call(SYS_brk, 0, 0, 0, 0, 0, 0));
  uintptr_t first = page_up(was), last = page_up((uintptr_t)to);
  if (is_on && to && last < first)
    forget(last, first - last);
  uintptr_t now = (uintptr_t)call(SYS_brk, (long)to, 0, 0, 0, 0, 0);
  if (&__curbrk)
    __curbrk = (void *)now;
  if (now < (uintptr_t)to)
    return (int)told(-ENOMEM);
  if (is_on && page_up(now) > first)
    place_growth(first, page_up(now));
  return 0;
}

static long remap(uintptr_t from, uintptr_t length, uintptr_t new_length, int flags, uintptr_t to)
{
  return call(SYS_mremap, (long)from, (long)length, (long)new_length, flags, (long)to, 0);
}

/* Moves extents one by one, the last one to its new length; puts them back if one cannot move. */
static long move_extents(uintptr_t old, uintptr_t length, uintptr_t new_length, uintptr_t to)
{
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
  uintptr_t end = old + (length < new_length ? length : new_length);
  uintptr_t at = old;
  while (at < end) {
    uintptr_t next = part_end(at, extent_end(at, end, EXTENT_BYTES), owner(at));
    uintptr_t new_bytes = next == end ? old + new_length - at : next - at;
    long result = remap(at, next - at, new_bytes, flags, to + (at - old));
    if (is_error(result)) {
      uintptr_t moved = to, stop = to + (at - old);
      while (moved < stop) {
        next = part_end(moved, extent_end(moved, stop, EXTENT_BYTES), owner(moved));
        remap(moved, next - moved, next - moved, flags, old + (moved - to));
        moved = next;
      }
      return result;
    }
    at = next;
  }
  return (long)to;
}

/* The kernel moves and lengthens one mapping; where extents made it several, this does. */
static long remap_extents(uintptr_t old, uintptr_t length, uintptr_t new_length, int flags,
                          uintptr_t to)
{
  if (flags & MREMAP_FIXED)
    return move_extents(old, length, new_length, to);
  if (new_length <= length) {
    long result = new_length == length ? 0
                                       : call(SYS_munmap, (long)(old + new_length),
                                              (long)(length - new_length), 0, 0, 0, 0);
    return is_error(result) ? result : (long)old;
  }
  uintptr_t end = old + length, last = (end - 1) & ~(uintptr_t)(EXTENT_BYTES - 1);
  if (last < old)
    last = old;
  long result = remap(last, end - last, old + new_length - last, 0, 0);
  if (!is_error(result))
    return (long)old;
  if (!(flags & MREMAP_MAYMOVE))
    return result;
  /* A place as far from the start of a huge page as the old one. */
  uintptr_t room = new_length + EXTENT_BYTES;
  result = call(SYS_mmap, 0, (long)room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
  if (is_error(result))
    return result;
  uintptr_t begin = (uintptr_t)result;
  to = begin + ((old - begin) & (EXTENT_BYTES - 1));
  if (to > begin)
    call(SYS_munmap, (long)begin, (long)(to - begin), 0, 0, 0, 0);
  call(SYS_munmap, (long)(to + new_length), (long)(begin + room - to - new_length), 0, 0, 0, 0);
  result = move_extents(old, length, new_length, to);
  if (is_error(result))
    call(SYS_munmap, (long)to, (long)new_length, 0, 0, 0, 0);
  return result;
}

PUBLIC void *mremap(void *from, size_t old_length, size_t new_length, int flags, ...)
{
  uintptr_t old = (uintptr_t)from, to = 0;
  uintptr_t length = page_up(old_length), wanted = page_up(new_length);
  if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) {
    va_list list;
    va_start(list, flags);
    to = (uintptr_t)va_arg(list, void *);
    va_end(list);
  }
  int was = is_on && length ? owner(old) : FOREIGN;
  bool is_over = is_on && (flags & MREMAP_FIXED), is_less = was >= 0 && wanted < length;
  if (is_over)
    forget(to, wanted);
  if (is_less)
    forget(old + wanted, length - wanted);
  long result = remap(old, old_length, new_length, flags, to);
  if (result == -EFAULT && was >= 0 && wanted && !(flags & MREMAP_DONTUNMAP))
    result = remap_extents(old, length, wanted, flags, to);
  if (is_error(result) && is_over)
    recall(to, wanted);
  if (is_error(result) && is_less)
    recall(old + wanted, length - wanted);
  if (!is_error(result) && was >= 0 && wanted > length)
    place_growth((uintptr_t)result + length, (uintptr_t)result + wanted);
  return (void *)told(result);
}

static bool begins(const char *text, const char *with)
{
  while (*with)
    if (*text++ != *with++)
      return false;
  return true;
}

static bool contains(const char *text, const char *part)
{
  for (; *text; text++)
    if (begins(text, part))
      return true;
  return false;
}

static size_t copy(char *to, size_t at, const char *text)
{
  while (*text && at + 1 < TEXT_MAX)
    to[at++] = *text++;
  to[at] = '\0';
  return at;
}

/* A program that starts another one with an environment of its own keeps the placement; what is
   started by one that is shut in has none, since the filter holds for it too. */
PUBLIC int execve(const char *path, char *const argv[], char *const envp[])
{
  const char *preloads = NULL;
  const char *place_name = "RACKPOOL_TIERS_PLACE=";
  bool has_place = false, has_notes = notes_entry[0] == '\0';
  size_t count = 0;
  for (; envp && envp[count]; count++) {
    if (begins(envp[count], "LD_PRELOAD="))
      preloads = envp[count] + sizeof("LD_PRELOAD=") - 1;
    has_place = has_place || begins(envp[count], place_name);
    has_notes = has_notes || begins(envp[count], "RACKPOOL_TIERS_NOTES=");
  }
  bool is_whole = is_shut_in ? !has_place
                             : has_place && has_notes && preloads && contains(preloads, library);
  if (is_whole || library[0] == '\0' || count > ENTRIES_MAX)
    return (int)told(call(SYS_execve, (long)path, (long)argv, (long)envp, 0, 0, 0));
  /* On the stack, since after vfork all other memory is the parent's. */
  const char *entries[ENTRIES_MAX + 4];
  char preload_entry[TEXT_MAX];
  size_t to = 0;
  if (is_shut_in) {
    for (size_t i = 0; i < count; i++)
      if (!begins(envp[i], place_name))
        entries[to++] = envp[i];
    entries[to] = NULL;
    return (int)told(call(SYS_execve, (long)path, (long)argv, (long)entries, 0, 0, 0));
  }
  size_t length = copy(preload_entry, copy(preload_entry, 0, "LD_PRELOAD="), library);
  if (preloads && *preloads && !contains(preloads, library))
    copy(preload_entry, copy(preload_entry, length, ":"), preloads);
  for (size_t i = 0; i < count; i++)
    if (!begins(envp[i], "LD_PRELOAD="))
      entries[to++] = envp[i];
  entries[to++] = preload_entry;
  if (!has_place)
    entries[to++] = place_entry;
  if (!has_notes)
    entries[to++] = notes_entry;
  entries[to] = NULL;
  return (int)told(call(SYS_execve, (long)path, (long)argv, (long)entries, 0, 0, 0));
}

/* A program that shuts itself in (seccomp) may have said nothing of our calls, and be killed for
   them: from then on nothing is placed any more. Before the call: other threads are shut in too. */
static long set_filter(long number, long a, long b, long c, long d, long e, long f)
{
  bool was_on = is_on;
  is_on = false;
  long result = call(number, a, b, c, d, e, f);
  /* Programs try what the kernel has by calls that it refuses. */
  if (is_error(result))
    is_on = was_on;
  else
    is_shut_in = true;
  return told(result);
}

PUBLIC int prctl(int option, ...)
{
  va_list list;
  va_start(list, option);
  long a = va_arg(list, long), b = va_arg(list, long);
  long c = va_arg(list, long), d = va_arg(list, long);
  va_end(list);
  if (option == PR_SET_SECCOMP)
    return (int)set_filter(SYS_prctl, option, a, b, c, d, 0);
  return (int)told(call(SYS_prctl, option, a, b, c, d, 0));
}

PUBLIC long syscall(long number, ...)
{
  va_list list;
  va_start(list, number);
  long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
  long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
  va_end(list);
  if (number == SYS_seccomp && (unsigned)a <= SECCOMP_SETS_MAX)
    return set_filter(number, a, b, c, d, e, f);
  return told(call(number, a, b, c, d, e, f));
}

#if defined(__x86_64__)
#define JUMP_BYTES 14
static void write_jump(unsigned char *at, void *to)
{
  static const unsigned char jump[] = {0xff, 0x25, 0, 0, 0, 0};
  __builtin_memcpy(at, jump, sizeof(jump));
  __builtin_memcpy(at + sizeof(jump), &to, sizeof(to));
}
#else
#define JUMP_BYTES 16
static void write_jump(unsigned char *at, void *to)
{
  /* ldr x16, 8; br x16 */
  static const uint32_t jump[] = {0x58000050, 0xd61f0200};
  __builtin_memcpy(at, jump, sizeof(jump));
  __builtin_memcpy(at + sizeof(jump), &to, sizeof(to));
  __builtin___clear_cache((char *)at, (char *)at + JUMP_BYTES);
}
#endif

/* Declared weak: musl lacks it. */
extern int dladdr1(const void *, Dl_info *, void **, int) __attribute__((weak));

/* Has a function of the C library begin with a jump to ours. Before any other thread runs. */
static bool patch(const char *name, void *with)
{
  unsigned char *function = dlsym(RTLD_NEXT, name);
  const ElfW(Sym) *symbol = NULL;
  Dl_info info;
  if (!function || !dladdr1 || !dladdr1(function, &info, (void **)&symbol, RTLD_DL_SYMENT))
    return false;
  /* Another library's wrapper is left alone, and so is what is too short. */
  if (!info.dli_fname || !contains(info.dli_fname, "libc.so") || !symbol ||
      symbol->st_size < JUMP_BYTES)
    return false;
  uintptr_t first = (uintptr_t)function & ~(uintptr_t)4095;
  uintptr_t bytes = page_up((uintptr_t)function + JUMP_BYTES - first);
  int prot = PROT_READ | PROT_EXEC;
  if (is_error(call(SYS_mprotect, (long)first, (long)bytes, prot | PROT_WRITE, 0, 0, 0)))
    return false;
  write_jump(function, with);
  call(SYS_mprotect, (long)first, (long)bytes, prot, 0, 0, 0);
  return true;
}

static void open_notes(const char *path)
{
  long fd = call(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CLOEXEC, 0, 0, 0);
  if (is_error(fd))
    return;
  long at = call(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  call(SYS_close, fd, 0, 0, 0, 0, 0);
  if (!is_error(at))
    notes = (struct notes *)at;
}

static void start(char **entries)
{
  const char *place_name = "RACKPOOL_TIERS_PLACE=", *notes_name = "RACKPOOL_TIERS_NOTES=";
  for (; entries && *entries; entries++) {
    if (begins(*entries, place_name))
      copy(place_entry, 0, *entries);
    if (begins(*entries, notes_name))
      copy(notes_entry, 0, *entries);
  }
  if (!place_entry[0] || !parse_shares(&shares, place_entry + strlen(place_name)))
    return;
  if (notes_entry[0])
    open_notes(notes_entry + strlen(notes_name));
  Dl_info info;
  if (dladdr((void *)start, &info) && info.dli_fname && strlen(info.dli_fname) < TEXT_MAX / 2)
    copy(library, 0, info.dli_fname);
  note(&notes->processes, 1);
  is_on = true;
}

static void patch_all(void)
{
  /* All or none would be better and cannot be had: each one alone is right as well. */
  bool is_patched = patch("mmap", mmap) && patch("munmap", munmap) && patch("mprotect", mprotect);
  is_patched = is_patched && patch("mremap", mremap);
  is_patched = is_patched && &__curbrk && patch("brk", brk);
  patch("execve", execve);
  patch("prctl", prctl);
  patch("syscall", syscall);
  if (is_patched)
    note(&notes->patched, 1);
}

/* Before the constructors of all other libraries (-z initfirst): no thread runs yet. glibc gives
   the environment as third argument, also when `environ` is not set yet. */
__attribute__((constructor)) static void start_first(int argc, char **argv, char **envp)
{
  (void)argc;
  (void)argv;
  start(environ ? environ : &__curbrk ? envp : NULL);
  if (is_on)
    patch_all();
}
