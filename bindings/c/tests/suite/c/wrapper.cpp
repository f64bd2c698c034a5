// The wrapper for C++, with exceptions and without.
#include <rackpool.hpp>

#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#define HOLDS(condition)                                                                           \
  ((condition) ? (void)0                                                                           \
               : (std::fprintf(stderr, "line %d: not %s\n", __LINE__, #condition), std::exit(1)))

#ifdef RACKPOOL_NO_EXCEPTIONS
#define DONE(call) must(call)
template <class T> T must(rackpool::result<T> got) {
  if (!got)
    std::fprintf(stderr, "%s\n", got.failure().what());
  return got.take();
}
template <class F> rp_status status_of(F call) {
  auto got = call();
  return got ? RP_OK : got.failure().status();
}
#else
#define DONE(call) call
template <class T> T must(T got) { return got; }
template <class F> rp_status status_of(F call) {
  try {
    call();
  } catch (const rackpool::error &error) {
    HOLDS(!error.code().empty() && std::strlen(error.what()) > 0);
    return error.status();
  }
  return RP_OK;
}
#endif

// A list in memory that two processes share.
struct node {
  std::uint64_t value;
  rackpool::offset_ptr<node> next;
};

static void structures(rackpool::handle &handle, const std::string &master) {
  const auto page = must(handle.page_bytes());
  const rp_addr addr = must(handle.alloc(page, RP_LOCAL));
  auto pin = must(handle.pin_memory(addr, page));
  rackpool::shared_resource memory(pin);
  std::pmr::polymorphic_allocator<node> allocator(&memory);
  node *first = nullptr;
  for (std::uint64_t value = 1; value <= 100; value++) {
    node *made = new (allocator.allocate(1)) node{value, {}};
    made->next = first;
    first = made;
  }
  memory.publish(first);
  const auto used = memory.used();
  void *last = memory.allocate(1000, 64);
  memory.deallocate(last, 1000, 64);
  HOLDS(memory.used() >= used && memory.used() < used + 64);

  const pid_t child = fork();
  if (child == 0) {
    auto pool = must(rackpool::pool::open({master, 0, 5000, {}, false}));
    auto own = must(pool.attach());
    auto mapped = must(own.pin_memory(addr, page));
    rackpool::shared_resource shared(mapped);
    std::uint64_t sum = 0;
    for (node *at = shared.root<node>(); at != nullptr; at = at->next.get())
      sum += at->value;
    _exit(sum == 5050 && mapped.data() != nullptr ? 7 : 1);
  }
  int status = 0;
  HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  HOLDS(!must(pin.is_revoked()));

  std::vector<int> numbers{1, 2, 3};
  rackpool::offset_ptr<int> at(numbers.data()), end = at + 3;
  HOLDS(end - at == 3 && at[2] == 3 && *++at == 2 && at < end && !rackpool::offset_ptr<int>());
}

int main() {
  auto cluster = must(rackpool::cluster::start());
  const auto master = must(cluster.master());
  auto pool = must(rackpool::pool::open({master, 0, 5000, {}, false}));
  auto handle = must(pool.attach());

  const rp_addr addr = must(handle.alloc(4096, RP_RACK(1)));
  DONE(handle.write(addr, std::string_view("hello")));
  std::array<char, 5> text{};
  DONE(handle.read(addr, text));
  HOLDS(std::string_view(text.data(), 5) == "hello");
  DONE(handle.write_u64(addr, 40));
  HOLDS(must(handle.fetch_add(addr, 2)) == 40);
  std::uint64_t expected = 41;
  HOLDS(!must(handle.compare_exchange(addr, expected, 7)) && expected == 42);
  HOLDS(must(handle.compare_exchange(addr, expected, 7)) && must(handle.read_u64(addr)) == 7);
  HOLDS(!must(handle.root("nothing")).has_value());
  HOLDS(must(handle.set_root("name", 0, addr)) == addr && must(handle.root("name")) == addr);
  HOLDS(status_of([&] { return handle.alloc(0); }) == RP_INVALID);

  {
    auto lock = must(handle.lock_range(addr, 64));
    HOLDS(lock.token() > 0);
    auto other = must(pool.attach());
    HOLDS(status_of([&] { return other.lock_range(addr, 64, RP_LOCK_READ, 0); }) == RP_TIMEOUT);
    DONE(lock.check());
  }
  auto lock = must(handle.lock_range(addr, 64, RP_LOCK_READ));
  DONE(lock.unlock());

  auto table = must(handle.open_table("fruit"));
  const std::string apple = "apple";
  HOLDS(must(table.insert(apple, std::string("green"))));
  HOLDS(!must(table.insert(apple, std::string("red"))));
  HOLDS(must(table.update(apple, std::string(1000, 'r'))));
  HOLDS(must(table.get(apple)) == std::string(1000, 'r'));
  HOLDS(must(table.keys()) == std::vector<std::string>{apple});
  HOLDS(must(table.erase(apple)) && !must(table.erase(apple)));
  HOLDS(!must(table.get(apple)).has_value());
  const std::vector<std::uint32_t> numbers{1, 2, 3};
  DONE(handle.put_object("numbers", numbers));
  HOLDS(must(handle.get_object("numbers"))->size() == 12);
  HOLDS(!must(handle.get_object("none")).has_value());

  structures(handle, master);
  DONE(handle.free(addr, 4096));
  std::puts("all done");
}
