/* The library under test inside a program: nodes 0 to 3 are policies of node 0 that the kernel
   keeps apart (VIRTUAL_NODES), so that all calls are the kernel's own. A check that does not hold
   ends the program. */
#include "place.c"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((uintptr_t)1 << 20)
#define CHECK(holds)                                                   \
  do {                                                                 \
    if (!(holds)) {                                                    \
      printf("line %d: %s does not hold\n", __LINE__, #holds);         \
      exit(1);                                                         \
    }                                                                  \
  } while (0)

static uint64_t random_state = 88172645463325252ull;

static uint64_t random_number(uint64_t below)
{
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state % below;
}

static void begin(const char *weights)
{
  CHECK(parse_shares(&shares, weights));
  is_on = true;
}

/* Bytes of a range by index of node, as the kernel says. */
static void count(uintptr_t at, uintptr_t end, uint64_t *bytes)
{
  for (; at < end; at += 4096) {
    int i = owner(at);
    CHECK(i >= 0);
    bytes[i] += 4096;
  }
}

static void shares_are_exact_for_any_weights_and_extents(void)
{
  for (int round = 0; round < 200; round++) {
    struct shares s = {0};
    uint64_t sum = 0, all = 0, largest = 0;
    s.count = 1 + (unsigned)random_number(8);
    for (unsigned i = 0; i < s.count; i++) {
      s.weight[i] = (uint16_t)(1 + random_number(255));
      sum += s.weight[i];
    }
    for (int step = 0; step < 3000; step++) {
      uint64_t bytes = (1 + random_number(512)) * 4096;
      /* The model: of all nodes the one with the least load, the first of equals. */
      unsigned i = next_node(&s, bytes), least = 0;
      for (unsigned j = 1; j < s.count; j++) {
        double load = (2.0 * (double)s.bytes[j] + (double)bytes) / s.weight[j];
        double best = (2.0 * (double)s.bytes[least] + (double)bytes) / s.weight[least];
        if (load < best * (1 - 1e-12))
          least = j;
      }
      CHECK(i == least);
      add_bytes(&s, i, (int64_t)bytes);
      all += bytes;
      largest = bytes > largest ? bytes : largest;
    }
    for (unsigned i = 0; i < s.count; i++) {
      double exact = (double)all * s.weight[i] / (double)sum;
      double off = (double)s.bytes[i] - exact;
      CHECK(off < (double)largest * s.count && -off < (double)largest * s.count);
    }
  }
}

static void texts_are_read_or_refused(void)
{
  struct shares s;
  CHECK(parse_shares(&s, "0=3,1=1") && s.count == 2 && s.weight[0] == 3 && s.node[1] == 1);
  CHECK(parse_shares(&s, "1023=255") && s.node[0] == 1023);
  const char *wrong[] = {"", "0", "0=", "=1", "0=0", "0=256", "1024=1", "0=1,", "0=1 ", "0=1;1=1"};
  for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
    CHECK(!parse_shares(&s, wrong[i]));
}

static void mappings_are_dealt_out_and_go_off_the_books(void)
{
  begin("0=3,1=1");
  const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  uintptr_t at = (uintptr_t)mmap(NULL, 400 * MIB, prot, flags, -1, 0);
  uint64_t bytes[2] = {0, 0};
  count(at, at + 400 * MIB, bytes);
  CHECK(bytes[0] == (uint64_t)shares.bytes[0] && bytes[1] == (uint64_t)shares.bytes[1]);
  CHECK(bytes[0] >= 298 * MIB && bytes[0] <= 302 * MIB);
  /* No huge page is cut. */
  for (uintptr_t page = at; page < at + 400 * MIB - 4096; page += 4096)
    CHECK((page + 4096) % EXTENT_BYTES == 0 || owner(page) == owner(page + 4096));
  CHECK(munmap((void *)(at + 100 * MIB), 200 * MIB) == 0);
  bytes[0] = bytes[1] = 0;
  count(at, at + 100 * MIB, bytes);
  count(at + 300 * MIB, at + 400 * MIB, bytes);
  CHECK(bytes[0] == (uint64_t)shares.bytes[0] && bytes[1] == (uint64_t)shares.bytes[1]);
  CHECK(munmap((void *)at, 400 * MIB) == 0);
  CHECK(shares.bytes[0] == 0 && shares.bytes[1] == 0);
}

static void a_kept_half_of_many_mappings_has_its_shares(void)
{
  begin("0=2,1=1,2=1");
  const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  static uintptr_t kept[500];
  uint64_t bytes[3] = {0, 0, 0};
  for (int i = 0; i < 500; i++) {
    kept[i] = (uintptr_t)mmap(NULL, 64 * 1024, prot, flags, -1, 0);
    munmap(mmap(NULL, 64 * 1024, prot, flags, -1, 0), 64 * 1024);
  }
  for (int i = 0; i < 500; i++)
    count(kept[i], kept[i] + 64 * 1024, bytes);
  /* One mapping that ends no extent may be in two. */
  const int64_t exact[3] = {250 * 65536, 125 * 65536, 125 * 65536};
  for (int i = 0; i < 3; i++)
    CHECK(llabs((int64_t)bytes[i] - exact[i]) < 65536 && bytes[i] == (uint64_t)shares.bytes[i]);
  for (int i = 0; i < 500; i++)
    munmap((void *)kept[i], 64 * 1024);
}

static void other_memory_is_left_alone(void)
{
  begin("0=3,1=1");
  const int prot = PROT_READ | PROT_WRITE;
  const int others[] = {MAP_SHARED | MAP_ANONYMOUS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK};
  for (int i = 0; i < 2; i++) {
    uintptr_t at = (uintptr_t)mmap(NULL, 8 * MIB, prot, others[i], -1, 0);
    CHECK(owner(at) == FOREIGN && owner(at + 4 * MIB) == FOREIGN);
    mprotect((void *)at, 8 * MIB, PROT_READ);
    CHECK(owner(at) == FOREIGN);
    munmap((void *)at, 8 * MIB);
  }
  CHECK(mmap(NULL, 0, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
  CHECK(munmap((void *)1, 4096) == -1 && errno == EINVAL);
  CHECK(shares.bytes[0] == 0 && shares.bytes[1] == 0);
}

static void reservations_are_placed_when_they_are_made_accessible(void)
{
  begin("0=1,1=1");
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  uintptr_t at = (uintptr_t)mmap(NULL, 64 * MIB, PROT_NONE, flags, -1, 0);
  at = (at + 2 * MIB - 1) & ~(2 * MIB - 1);
  CHECK(owner(at) == MARKED && shares.bytes[0] + shares.bytes[1] == 0);
  uint64_t bytes[2] = {0, 0};
  /* As a thread's heap grows; it changes nodes where an extent ends. */
  for (uintptr_t grown = 0; grown < 16 * MIB; grown += 128 * 1024)
    CHECK(mprotect((void *)(at + grown), 128 * 1024, PROT_READ | PROT_WRITE) == 0);
  CHECK(owner(at + 16 * MIB) == MARKED && owner(at) == owner(at + 2 * MIB - 4096));
  count(at, at + 16 * MIB, bytes);
  CHECK(bytes[0] == 8 * MIB && bytes[1] == 8 * MIB);
  CHECK(mprotect((void *)at, 16 * MIB, PROT_READ) == 0);
  CHECK(shares.bytes[0] == (int64_t)(8 * MIB));
  /* As Java commits: a new mapping in its place. */
  const int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  void *again = mmap((void *)at, 32 * MIB, PROT_READ | PROT_WRITE, fixed, -1, 0);
  CHECK(again == (void *)at);
  bytes[0] = bytes[1] = 0;
  count(at, at + 32 * MIB, bytes);
  CHECK(bytes[0] == 16 * MIB && shares.bytes[0] == (int64_t)(16 * MIB));
  munmap((void *)at, 62 * MIB);
  CHECK(shares.bytes[0] == 0 && shares.bytes[1] == 0);
}

static void parts_of_an_extent_are_told_apart(void)
{
  begin("0=1,1=1");
  const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  uintptr_t at = (uintptr_t)mmap(NULL, 64 * MIB, PROT_NONE, flags, -1, 0);
  at = (at + 2 * MIB - 1) & ~(2 * MIB - 1);
  const uintptr_t small = 128 * 1024;
  CHECK(mprotect((void *)at, small, prot) == 0 && mprotect((void *)at, MIB, prot) == 0);
  CHECK(owner(at + MIB - 4096) == owner(at) && owner(at + MIB) == MARKED);
  CHECK(shares.bytes[0] + shares.bytes[1] == (int64_t)MIB);
  CHECK(mprotect((void *)(at + 5 * MIB), MIB, prot) == 0);
  CHECK(mprotect((void *)(at + 4 * MIB), 2 * MIB, prot) == 0);
  CHECK(shares.bytes[0] + shares.bytes[1] == (int64_t)(3 * MIB));
  /* What the kernel refuses changes no books. */
  CHECK(mmap((void *)at, MIB, prot, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED);
  CHECK(shares.bytes[0] + shares.bytes[1] == (int64_t)(3 * MIB));
  munmap((void *)at, 62 * MIB);
  CHECK(shares.bytes[0] == 0 && shares.bytes[1] == 0);
}

static void fill(uintptr_t at, uintptr_t bytes)
{
  for (uintptr_t i = 0; i < bytes; i += 4096)
    *(uintptr_t *)(at + i) = i;
}

static void require_filled(uintptr_t at, uintptr_t bytes)
{
  for (uintptr_t i = 0; i < bytes; i += 4096)
    CHECK(*(uintptr_t *)(at + i) == i);
}

static void a_mapping_of_several_extents_grows_moves_and_shrinks(void)
{
  begin("0=1,1=1");
  const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  uintptr_t at = (uintptr_t)mmap(NULL, 20 * MIB, prot, flags, -1, 0);
  fill(at, 20 * MIB);
  /* Something stands in its way. */
  mmap((void *)(at + 20 * MIB), 4096, PROT_READ, flags | MAP_FIXED_NOREPLACE, -1, 0);
  CHECK(mremap((void *)at, 20 * MIB, 40 * MIB, 0) == MAP_FAILED && errno == ENOMEM);
  uintptr_t to = (uintptr_t)mremap((void *)at, 20 * MIB, 40 * MIB, MREMAP_MAYMOVE);
  CHECK(to != (uintptr_t)MAP_FAILED && to != at && owner(at) == FOREIGN);
  require_filled(to, 20 * MIB);
  fill(to, 40 * MIB);
  uint64_t bytes[2] = {0, 0};
  count(to, to + 40 * MIB, bytes);
  CHECK(bytes[0] >= 18 * MIB && bytes[0] <= 22 * MIB);
  uintptr_t less = (uintptr_t)mremap((void *)to, 40 * MIB, 10 * MIB, MREMAP_MAYMOVE);
  CHECK(less == to);
  require_filled(to, 10 * MIB);
  uintptr_t more = (uintptr_t)mremap((void *)to, 10 * MIB, 12 * MIB, 0);
  CHECK(more == to);
  require_filled(to, 10 * MIB);
  /* To a place of the caller's, over what was there. */
  uintptr_t there = (uintptr_t)mmap(NULL, 30 * MIB, prot, flags, -1, 0);
  void *moved = mremap((void *)to, 12 * MIB, 14 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, there);
  CHECK(moved == (void *)there);
  require_filled(there, 10 * MIB);
  bytes[0] = bytes[1] = 0;
  count(there, there + 30 * MIB, bytes);
  CHECK(bytes[0] >= 12 * MIB && bytes[0] <= 18 * MIB);
  CHECK(mremap((void *)(at + 64 * 1024 * MIB), 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED);
  munmap((void *)there, 30 * MIB);
}

static void extents_grow_before_the_kernel_has_no_mappings_left(void)
{
  begin("0=1,1=1");
  CHECK(extent_bytes(&shares, 4096) == EXTENT_BYTES);
  CHECK(extent_bytes(&shares, EXTENTS_SMALL * EXTENT_BYTES) == EXTENT_BYTES);
  CHECK(extent_bytes(&shares, 8 * EXTENTS_SMALL * EXTENT_BYTES) == 8 * EXTENT_BYTES);
  shares.extents = 2 * EXTENTS_SMALL;
  CHECK(extent_bytes(&shares, 4096) == 4 * EXTENT_BYTES);
  shares.extents = INT64_MAX;
  CHECK(extent_bytes(&shares, 4096) == EXTENT_BYTES << 16);
  /* Reservations of 16 TiB, as sanitizers make them. */
  shares.extents = 0;
  for (int i = 0; i < 100; i++)
    shares.extents += (16ll << 40) / (int64_t)extent_bytes(&shares, 16ull << 40);
  CHECK(shares.extents < 65530 / 2);
}

static void a_child_has_the_books_of_its_own_memory(void)
{
  begin("0=1,1=1");
  const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  uintptr_t at = (uintptr_t)mmap(NULL, 8 * MIB, prot, flags, -1, 0);
  long child = call(SYS_clone, 17, 0, 0, 0, 0, 0);
  if (child == 0) {
    munmap((void *)at, 8 * MIB);
    call(SYS_exit_group, shares.bytes[0] == 0 && shares.bytes[1] == 0 ? 0 : 1, 0, 0, 0, 0, 0);
  }
  int status = -1;
  call(SYS_wait4, child, (long)&status, 0, 0, 0, 0);
  CHECK(status == 0 && shares.bytes[0] + shares.bytes[1] == (int64_t)(8 * MIB));
}

/* Kills a process for the calls by which memory is placed. */
static void shut_in(bool by_prctl)
{
  struct sock_filter lines[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ, SYS_mbind, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ, SYS_get_mempolicy, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof(lines) / sizeof(*lines), lines};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (by_prctl)
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
  else
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

static void a_program_that_shuts_itself_in_is_left_alone(void)
{
  for (int way = 0; way < 2; way++) {
    begin("0=1,1=1");
    long child = call(SYS_clone, 17, 0, 0, 0, 0, 0);
    if (child == 0) {
      shut_in(way == 0);
      const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
      void *at = mmap(NULL, 8 * MIB, PROT_NONE, flags, -1, 0);
      bool is_well = at != MAP_FAILED && mprotect(at, 8 * MIB, PROT_READ | PROT_WRITE) == 0;
      is_well = is_well && munmap(at, 8 * MIB) == 0;
      call(SYS_exit_group, is_well ? 0 : 1, 0, 0, 0, 0, 0);
    }
    int status = -1;
    call(SYS_wait4, child, (long)&status, 0, 0, 0, 0);
    CHECK(status == 0);
  }
  CHECK(prctl(PR_GET_DUMPABLE) == 1 && syscall(SYS_close, -1) == -1 && errno == EBADF);
  /* To ask is not to do. */
  const uint32_t action = SECCOMP_RET_ERRNO;
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1 && is_on);
  CHECK(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0 && is_on);
}

/* The filter holds after exec, and the library there knows nothing of it. */
static void what_a_program_that_is_shut_in_starts_has_no_placement(void)
{
  begin("0=1,1=1");
  copy(library, 0, "/nowhere/place.so");
  long child = call(SYS_clone, 17, 0, 0, 0, 0, 0);
  if (child == 0) {
    shut_in(true);
    char script[] = "test -z \"$RACKPOOL_TIERS_PLACE\" -a \"$A\" = b";
    char *const words[] = {"sh", "-c", script, NULL};
    char *const entries[] = {"RACKPOOL_TIERS_PLACE=0=1", "A=b", NULL};
    execve("/bin/sh", words, entries);
    call(SYS_exit_group, 1, 0, 0, 0, 0, 0);
  }
  int status = -1;
  call(SYS_wait4, child, (long)&status, 0, 0, 0, 0);
  CHECK(status == 0);
  library[0] = '\0';
}

int main(void)
{
  shares_are_exact_for_any_weights_and_extents();
  texts_are_read_or_refused();
  extents_grow_before_the_kernel_has_no_mappings_left();
  mappings_are_dealt_out_and_go_off_the_books();
  a_kept_half_of_many_mappings_has_its_shares();
  other_memory_is_left_alone();
  reservations_are_placed_when_they_are_made_accessible();
  parts_of_an_extent_are_told_apart();
  a_mapping_of_several_extents_grows_moves_and_shrinks();
  a_child_has_the_books_of_its_own_memory();
  a_program_that_shuts_itself_in_is_left_alone();
  what_a_program_that_is_shut_in_starts_has_no_placement();
  puts("all hold");
  return 0;
}
