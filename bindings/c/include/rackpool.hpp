// rackpool for C++17, over rackpool.h: objects that close themselves, views instead of pointers
// with lengths, and failures as exceptions; or as results, with RACKPOOL_NO_EXCEPTIONS defined
// before this header is included (in all files of a program alike).
//
//     auto pool = rackpool::pool::open({"127.0.0.1:7400", 0});
//     auto handle = pool.attach();
//     rp_addr addr = handle.alloc(4096);
//     handle.write(addr, std::string_view("hello"));
//
// The rules of rackpool.h hold: a handle, and what came from it, is used by one thread at a time.
#ifndef RACKPOOL_HPP
#define RACKPOOL_HPP

#include "rackpool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace rackpool {

// Why a call failed.
class error : public std::runtime_error {
public:
  // Of the last call of this thread that failed, which answered `status`.
  explicit error(rp_status status)
      : std::runtime_error(text()), status_(status), code_(rp_last_code()),
        retry_(rp_last_retry() != 0) {}

  rp_status status() const noexcept { return status_; }
  // A stable word such as "not-mapped".
  const std::string &code() const noexcept { return code_; }
  // Whether the same call may succeed later.
  bool may_retry() const noexcept { return retry_; }

private:
  static std::string text() {
    std::string text(rp_last_text(nullptr, 0) + 1, '\0');
    text.resize(std::min(rp_last_text(text.data(), text.size()), text.size() - 1));
    return text;
  }

  rp_status status_;
  std::string code_;
  bool retry_;
};

// A value, or why there is none.
template <class T> class result {
public:
  result(T value) : value_(std::move(value)) {}
  result(error failure) : failure_(std::move(failure)) {}

  explicit operator bool() const noexcept { return value_.has_value(); }
  T &operator*() noexcept { return *value_; }
  T *operator->() noexcept { return &*value_; }
  const error &failure() const noexcept { return *failure_; }
  // Ends the program where there is none.
  T take() {
    if (!value_)
      std::abort();
    return std::move(*value_);
  }

private:
  std::optional<T> value_;
  std::optional<error> failure_;
};

struct nothing {};

#ifdef RACKPOOL_NO_EXCEPTIONS
template <class T> using outcome = result<std::conditional_t<std::is_void_v<T>, nothing, T>>;
#else
template <class T> using outcome = T;
#endif

namespace detail {

template <class T> outcome<T> ended(rp_status status, T value) {
#ifdef RACKPOOL_NO_EXCEPTIONS
  if (status != RP_OK)
    return error(status);
#else
  if (status != RP_OK)
    throw error(status);
#endif
  return value;
}

inline outcome<void> ended(rp_status status) {
#ifdef RACKPOOL_NO_EXCEPTIONS
  if (status != RP_OK)
    return error(status);
  return nothing{};
#else
  if (status != RP_OK)
    throw error(status);
#endif
}

// Of what is not there: nothing, instead of a failure.
template <class T> outcome<std::optional<T>> found(rp_status status, T value) {
  if (status == RP_NOT_FOUND)
    return std::optional<T>();
  return ended<std::optional<T>>(status, std::optional<T>(std::move(value)));
}

template <class T, rp_status (*Close)(T *)> struct closer {
  // A child of a fork leaves what is its parent's alone: the library sees to that.
  void operator()(T *open) const noexcept { (void)Close(open); }
};
template <class T, rp_status (*Close)(T *)> using owned = std::unique_ptr<T, closer<T, Close>>;

} // namespace detail

// Memory that is read: of a string, a vector or an array of plain values, or as it is given.
class bytes_view {
public:
  bytes_view(const void *data, std::size_t size) : data_(data), size_(size) {}
  template <class C, class V = std::remove_pointer_t<decltype(std::declval<const C &>().data())>,
            class = std::enable_if_t<std::is_trivially_copyable_v<V>>>
  bytes_view(const C &of) : data_(of.data()), size_(of.size() * sizeof(V)) {}

  const void *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

private:
  const void *data_;
  std::size_t size_;
};

// Memory that is written.
class bytes_span {
public:
  bytes_span(void *data, std::size_t size) : data_(data), size_(size) {}
  template <class C, class V = std::remove_pointer_t<decltype(std::declval<C &>().data())>,
            class = std::enable_if_t<std::is_trivially_copyable_v<V> && !std::is_const_v<V>>>
  bytes_span(C &of) : data_(of.data()), size_(of.size() * sizeof(V)) {}

  void *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

private:
  void *data_;
  std::size_t size_;
};

// A pool of this process, for tests.
class cluster {
public:
  static outcome<cluster> start(std::uint16_t racks = 2) {
    rp_cluster_options options = RP_CLUSTER_OPTIONS_INIT;
    rp_cluster *open = nullptr;
    options.racks = racks;
    const rp_status status = rp_cluster_start(&options, &open);
    return detail::ended<cluster>(status, cluster(open));
  }

  outcome<std::string> master() const {
    std::array<char, 64> text{};
    const rp_status status = rp_cluster_master(open_.get(), text.data(), text.size());
    return detail::ended<std::string>(status, text.data());
  }

  outcome<void> stop_rack(std::uint16_t rack) {
    return detail::ended(rp_cluster_stop_rack(open_.get(), rack));
  }
  outcome<void> start_rack(std::uint16_t rack) {
    return detail::ended(rp_cluster_start_rack(open_.get(), rack));
  }

private:
  explicit cluster(rp_cluster *open) : open_(open) {}
  detail::owned<rp_cluster, rp_cluster_stop> open_;
};

// How to join a pool; more than is here is in rp_options.
struct options {
  std::string master = "127.0.0.1:7400";
  std::uint16_t rack = 0;
  std::uint64_t timeout_ms = 0;
  std::string secret_file = {};
  bool read_only = false;
};

class handle;

// Any thread uses it.
class pool {
public:
  static outcome<pool> open(const options &chosen) {
    rp_options options = RP_OPTIONS_INIT;
    options.master = chosen.master.c_str();
    options.rack = chosen.rack;
    options.timeout_ms = chosen.timeout_ms;
    options.flags = chosen.read_only ? RP_READ_ONLY : 0;
    options.secret_file = chosen.secret_file.empty() ? nullptr : chosen.secret_file.c_str();
    return open(options);
  }
  static outcome<pool> open(const rp_options &options) {
    rp_pool *open = nullptr;
    const rp_status status = rp_open(&options, &open);
    return detail::ended<pool>(status, pool(open));
  }
  inline outcome<handle> attach() const;

private:
  friend class handle;
  explicit pool(rp_pool *open) : open_(open) {}
  detail::owned<rp_pool, rp_close> open_;
};

// Memory of a mapped rack as it is. Others may write to it meanwhile.
class pin {
public:
  void *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  // Whether its page is wanted elsewhere: end the pin soon.
  outcome<bool> is_revoked() const {
    int revoked = 0;
    const rp_status status = rp_pin_revoked(open_.get(), &revoked);
    return detail::ended<bool>(status, revoked != 0);
  }

private:
  friend class handle;
  pin(rp_pin *open, void *data, std::size_t size) : open_(open), data_(data), size_(size) {}
  detail::owned<rp_pin, rp_unpin> open_;
  void *data_;
  std::size_t size_;
};

// Held until its end, which is before that of its handle.
class lock {
public:
  lock(lock &&other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), number_(other.number_),
        token_(other.token_) {}
  lock &operator=(lock &&) = delete;
  ~lock() {
    if (handle_ != nullptr)
      (void)rp_unlock(handle_, number_);
  }
  // Grows with each grant of the rack: for services that refuse what is old.
  std::uint64_t token() const noexcept { return token_; }
  outcome<void> check() const { return detail::ended(rp_lock_check(handle_, number_)); }
  // Gives it back, and says how that went.
  outcome<void> unlock() {
    return detail::ended(rp_unlock(std::exchange(handle_, nullptr), number_));
  }

private:
  friend class handle;
  lock(rp_handle *handle, std::uint64_t number, std::uint64_t token)
      : handle_(handle), number_(number), token_(token) {}
  rp_handle *handle_;
  std::uint64_t number_;
  std::uint64_t token_;
};

// A table as one handle uses it, which outlives it.
class table {
public:
  outcome<std::optional<std::string>> get(bytes_view key) const {
    std::string value(256, '\0');
    std::size_t size = 0;
    rp_status status;
    while ((status = rp_table_get(handle_, number_, key.data(), key.size(), value.data(),
                                  value.size(), &size)) == RP_TOO_SMALL)
      value.resize(size);
    value.resize(size);
    return detail::found<std::string>(status, std::move(value));
  }
  outcome<void> put(bytes_view key, bytes_view value) const {
    return detail::ended(put(key, value, RP_PUT_ALWAYS));
  }
  // Whether the key was not there.
  outcome<bool> insert(bytes_view key, bytes_view value) const {
    const rp_status status = put(key, value, RP_PUT_INSERT);
    return status == RP_OCCUPIED ? outcome<bool>(false) : detail::ended<bool>(status, true);
  }
  // Whether the key was there.
  outcome<bool> update(bytes_view key, bytes_view value) const {
    return is_there(put(key, value, RP_PUT_UPDATE));
  }
  outcome<bool> erase(bytes_view key) const {
    return is_there(rp_table_delete(handle_, number_, key.data(), key.size()));
  }
  // The keys that begin with a prefix, sorted.
  outcome<std::vector<std::string>> keys(bytes_view prefix = {nullptr, 0}) const {
    std::vector<std::string> keys;
    std::uint32_t scan = 0;
    rp_status status = rp_scan_open(handle_, number_, prefix.data(), prefix.size(), &scan);
    if (status != RP_OK)
      return detail::ended<std::vector<std::string>>(status, {});
    std::string key(256, '\0');
    std::size_t size = 0;
    std::uint64_t value_bytes = 0;
    do {
      status = rp_scan_next(handle_, scan, key.data(), key.size(), &size, &value_bytes);
      if (status == RP_TOO_SMALL)
        key.resize(size);
      if (status == RP_OK)
        keys.emplace_back(key.data(), size);
    } while (status == RP_OK || status == RP_TOO_SMALL);
    (void)rp_scan_close(handle_, scan);
    return detail::ended<std::vector<std::string>>(status == RP_NOT_FOUND ? RP_OK : status,
                                                   std::move(keys));
  }

private:
  friend class handle;
  table(rp_handle *handle, std::uint32_t number) : handle_(handle), number_(number) {}
  rp_status put(bytes_view key, bytes_view value, int mode) const {
    return rp_table_put(handle_, number_, key.data(), key.size(), value.data(), value.size(), mode);
  }
  static outcome<bool> is_there(rp_status status) {
    return status == RP_NOT_FOUND ? outcome<bool>(false) : detail::ended<bool>(status, true);
  }
  rp_handle *handle_;
  std::uint32_t number_;
};

// One thread's way into the pool.
class handle {
public:
  static outcome<handle> open(const pool &of) {
    rp_handle *open = nullptr;
    const rp_status status = rp_handle_open(of.open_.get(), &open);
    return detail::ended<handle>(status, handle(open));
  }
  // For the functions of rackpool.h.
  rp_handle *get() const noexcept { return open_.get(); }

  outcome<rp_addr> alloc(std::uint64_t bytes, rp_placement placement = RP_AUTO) {
    rp_addr addr = 0;
    const rp_status status = rp_alloc(get(), bytes, placement, &addr);
    return detail::ended<rp_addr>(status, addr);
  }
  outcome<void> free(rp_addr addr, std::uint64_t bytes) {
    return detail::ended(rp_free(get(), addr, bytes));
  }
  outcome<void> read(rp_addr addr, bytes_span to) {
    return detail::ended(rp_read(get(), addr, to.data(), to.size()));
  }
  outcome<void> write(rp_addr addr, bytes_view from) {
    return detail::ended(rp_write(get(), addr, from.data(), from.size()));
  }
  outcome<std::uint64_t> read_u64(rp_addr addr) {
    std::uint64_t value = 0;
    const rp_status status = rp_read_u64(get(), addr, &value);
    return detail::ended<std::uint64_t>(status, value);
  }
  outcome<void> write_u64(rp_addr addr, std::uint64_t value) {
    return detail::ended(rp_write_u64(get(), addr, value));
  }
  // Whether it was swapped; `expected` is what was found.
  outcome<bool> compare_exchange(rp_addr addr, std::uint64_t &expected, std::uint64_t desired) {
    std::uint64_t found = 0;
    const rp_status status = rp_cas(get(), addr, expected, desired, &found);
    const bool is_swapped = status == RP_OK && found == expected;
    if (status == RP_OK)
      expected = found;
    return detail::ended<bool>(status, is_swapped);
  }
  outcome<std::uint64_t> fetch_add(rp_addr addr, std::uint64_t n) {
    std::uint64_t before = 0;
    const rp_status status = rp_fetch_add(get(), addr, n, &before);
    return detail::ended<std::uint64_t>(status, before);
  }
  outcome<void> persist(rp_addr addr, std::uint64_t bytes) {
    return detail::ended(rp_persist(get(), addr, bytes));
  }
  outcome<std::optional<rp_addr>> root(const std::string &name) {
    rp_addr addr = 0;
    const rp_status status = rp_root(get(), name.c_str(), &addr);
    return detail::found<rp_addr>(status, addr);
  }
  // What is under the name afterwards.
  outcome<rp_addr> set_root(const std::string &name, rp_addr expected, rp_addr addr) {
    rp_addr now = 0;
    const rp_status status = rp_root_set(get(), name.c_str(), expected, addr, &now);
    return detail::ended<rp_addr>(status, now);
  }
  outcome<std::uint64_t> page_bytes() {
    std::uint64_t bytes = 0;
    const rp_status status = rp_page_bytes(get(), &bytes);
    return detail::ended<std::uint64_t>(status, bytes);
  }
  outcome<class pin> pin_memory(rp_addr addr, std::size_t bytes) {
    rp_pin *open = nullptr;
    void *data = nullptr;
    const rp_status status = rp_pin_open(get(), addr, bytes, &open, &data);
    return detail::ended<class pin>(status, rackpool::pin(open, data, bytes));
  }
  // `bytes` within one page; 0 for the line of 64 bytes.
  outcome<class lock> lock_range(rp_addr addr, std::uint64_t bytes, int mode = RP_LOCK_WRITE,
                                 std::uint64_t wait_ms = RP_WAIT_DEFAULT) {
    std::uint64_t number = 0, token = 0;
    const rp_status status = rp_lock(get(), addr, bytes, mode, wait_ms, &number, &token);
    rp_handle *holder = status == RP_OK ? get() : nullptr;
    return detail::ended<class lock>(status, rackpool::lock(holder, number, token));
  }
  outcome<class table> open_table(const std::string &name, int mode = RP_TABLE_CREATE) {
    std::uint32_t number = 0;
    const rp_status status = rp_table_open(get(), name.c_str(), mode, &number);
    return detail::ended<class table>(status, rackpool::table(get(), number));
  }
  outcome<void> put_object(const std::string &name, bytes_view data) {
    return detail::ended(rp_object_put(get(), name.c_str(), data.data(), data.size()));
  }
  outcome<std::optional<std::string>> get_object(const std::string &name) {
    std::string data;
    std::size_t size = 0;
    rp_status status;
    while ((status = rp_object_get(get(), name.c_str(), data.data(), data.size(), &size)) ==
           RP_TOO_SMALL)
      data.resize(size);
    data.resize(size);
    return detail::found<std::string>(status, std::move(data));
  }

private:
  explicit handle(rp_handle *open) : open_(open) {}
  detail::owned<rp_handle, rp_handle_close> open_;
};

inline outcome<handle> pool::attach() const { return handle::open(*this); }

// A pointer that holds the distance to what it names, so that it is right in every process that
// has both mapped, wherever: for structures inside one pin.
template <class T> class offset_ptr {
public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using difference_type = std::ptrdiff_t;
  using pointer = T *;
  using reference = std::add_lvalue_reference_t<T>;
  using iterator_category = std::random_access_iterator_tag;
  template <class U> using rebind = offset_ptr<U>;

  offset_ptr(std::nullptr_t = nullptr) noexcept { set(nullptr); }
  explicit offset_ptr(T *to) noexcept { set(to); }
  offset_ptr(const offset_ptr &other) noexcept { set(other.get()); }
  template <class U, class = std::enable_if_t<std::is_convertible_v<U *, T *>>>
  offset_ptr(const offset_ptr<U> &other) noexcept {
    set(other.get());
  }
  template <class U, class = void, class = std::enable_if_t<!std::is_convertible_v<U *, T *>>>
  explicit offset_ptr(const offset_ptr<U> &other) noexcept {
    set(static_cast<T *>(other.get()));
  }
  offset_ptr &operator=(const offset_ptr &other) noexcept {
    set(other.get());
    return *this;
  }
  offset_ptr &operator=(T *to) noexcept {
    set(to);
    return *this;
  }

  T *get() const noexcept {
    if (distance_ == null)
      return nullptr;
    return reinterpret_cast<T *>(reinterpret_cast<std::uintptr_t>(this) +
                                 static_cast<std::uintptr_t>(distance_));
  }
  reference operator*() const noexcept { return *get(); }
  T *operator->() const noexcept { return get(); }
  template <class U = T> U &operator[](difference_type at) const noexcept { return get()[at]; }
  explicit operator bool() const noexcept { return distance_ != null; }
  template <class U = T> static offset_ptr pointer_to(U &to) noexcept {
    return offset_ptr(std::addressof(to));
  }

  offset_ptr &operator+=(difference_type by) noexcept { return *this = get() + by; }
  offset_ptr &operator-=(difference_type by) noexcept { return *this = get() - by; }
  offset_ptr &operator++() noexcept { return *this += 1; }
  offset_ptr &operator--() noexcept { return *this -= 1; }
  offset_ptr operator++(int) noexcept {
    offset_ptr before(*this);
    *this += 1;
    return before;
  }
  offset_ptr operator--(int) noexcept {
    offset_ptr before(*this);
    *this -= 1;
    return before;
  }
  friend offset_ptr operator+(offset_ptr at, difference_type by) noexcept { return at += by; }
  friend offset_ptr operator-(offset_ptr at, difference_type by) noexcept { return at -= by; }
  friend difference_type operator-(const offset_ptr &a, const offset_ptr &b) noexcept {
    return a.get() - b.get();
  }
  friend bool operator==(const offset_ptr &a, const offset_ptr &b) noexcept {
    return a.get() == b.get();
  }
  friend bool operator!=(const offset_ptr &a, const offset_ptr &b) noexcept { return !(a == b); }
  friend bool operator<(const offset_ptr &a, const offset_ptr &b) noexcept {
    return std::less<T *>()(a.get(), b.get());
  }

private:
  // No object begins in the middle of the pointer that names it.
  static constexpr std::int64_t null = 1;

  void set(T *to) noexcept {
    distance_ = to == nullptr ? null
                              : static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) -
                                                          reinterpret_cast<std::uintptr_t>(this));
  }

  std::int64_t distance_;
};

// A memory resource in a pin, which all processes that pin the same memory take from at once. What
// is given back is used again only if it was taken last; for more, put a
// std::pmr::unsynchronized_pool_resource on it, for one thread. New memory of the pool, which is
// zero, is an empty one.
class shared_resource : public std::pmr::memory_resource {
public:
  explicit shared_resource(const pin &memory)
      : head_(static_cast<head *>(memory.data())), size_(memory.size()) {
    if (size_ < sizeof(head))
      std::abort();
  }

  // The one object by which other processes find all others: the first one that is made there.
  // Until it is published, other processes get null.
  template <class T> T *root() const noexcept {
    const std::uint64_t offset = head_->root.load(std::memory_order_acquire);
    return offset == 0 ? nullptr : reinterpret_cast<T *>(start() + offset);
  }
  void publish(const void *root) noexcept {
    const auto offset = static_cast<const unsigned char *>(root) - start();
    head_->root.store(static_cast<std::uint64_t>(offset), std::memory_order_release);
  }
  std::size_t used() const noexcept { return sizeof(head) + head_->used.load(); }

private:
  struct head {
    std::atomic<std::uint64_t> used; // behind the head
    std::atomic<std::uint64_t> root; // offset in the pin
    std::uint64_t reserved[6];
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(head) == 64,
                "shared by processes");

  unsigned char *start() const noexcept { return reinterpret_cast<unsigned char *>(head_); }

  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    std::uint64_t used = head_->used.load();
    for (;;) {
      // Offsets are aligned where the pin is: at a line of 64 bytes, as the pool's memory.
      const std::uint64_t begin = (used + alignment - 1) & ~std::uint64_t(alignment - 1);
      const std::uint64_t room = size_ - sizeof(head);
      if (alignment > 64 || begin > room || bytes > room - begin)
        refuse();
      if (head_->used.compare_exchange_weak(used, begin + bytes))
        return start() + sizeof(head) + begin;
    }
  }
  void do_deallocate(void *at, std::size_t bytes, std::size_t) override {
    const auto begin = static_cast<std::uint64_t>(static_cast<unsigned char *>(at) - start() -
                                                  static_cast<std::ptrdiff_t>(sizeof(head)));
    std::uint64_t end = begin + bytes;
    head_->used.compare_exchange_strong(end, begin);
  }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
    return this == &other;
  }
  [[noreturn]] static void refuse() {
#ifdef RACKPOOL_NO_EXCEPTIONS
    std::abort();
#else
    throw std::bad_alloc();
#endif
  }

  head *head_;
  std::size_t size_;
};

} // namespace rackpool

#endif
