// What the stand-ins for NVIDIA's libraries share: memory, streams, handles.
#pragma once
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

using Time = std::chrono::steady_clock::time_point;
using Guard = std::lock_guard<std::mutex>;

// CUresult.
enum : int {
  DONE = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713,
  LAUNCH_FAILED = 719,
  NOT_WHILE_NOTED = 900,
  NOTES_SPOILT = 901,
};

[[noreturn]] inline void wrong(const char* what) {
  std::fprintf(stderr, "a GPU would not notice: %s\n", what);
  std::abort();
}

inline long number(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atol(text) : otherwise;
}

// Whether this is the call that is to fail: "cuMemHostAlloc 3" is the third of that name.
inline bool is_to_fail(const char* call) {
  static std::atomic<long> calls{0};
  const char* said = std::getenv("BALLAST_STAND_IN_FAILS");
  size_t length = std::strlen(call);
  if (!said || std::strncmp(said, call, length) != 0 || said[length] != ' ') return false;
  return ++calls == std::atol(said + length);
}

// Memory, by its first address.
struct Range {
  size_t bytes;
  enum Kind { DEVICE, PINNED, REGISTERED } kind;
  uint64_t elsewhere = 0;  // where the device has it, if not there
};

inline std::mutex memory_lock;
inline std::map<uint64_t, Range> memory;
inline size_t taken = 0;
inline const size_t TOTAL = number("BALLAST_STAND_IN_MEMORY", 16l << 30);
// What a graph takes for each of its kernels.
inline const size_t GRAPH_BYTES = number("BALLAST_STAND_IN_GRAPH_BYTES", 1l << 12);

// Asserts that there is such memory.
inline void look_at(uint64_t first, size_t bytes, bool on_device) {
  Guard guard(memory_lock);
  auto after = memory.upper_bound(first);
  if (after == memory.begin()) wrong("memory of nobody's");
  auto [begin, range] = *std::prev(after);
  if (first + bytes > begin + range.bytes) wrong("memory of nobody's, or beyond somebody's");
  if (range.elsewhere) wrong("host memory by an address that only the host has");
  if (on_device != (range.kind == Range::DEVICE)) wrong(on_device ? "host memory as a device's" : "a device's memory as the host's");
}

inline bool is_device(uint64_t first) {
  Guard guard(memory_lock);
  auto after = memory.upper_bound(first);
  return after != memory.begin() && std::prev(after)->second.kind == Range::DEVICE;
}

inline bool is_any_pinned() {
  Guard guard(memory_lock);
  return std::any_of(memory.begin(), memory.end(), [](const auto& range) { return range.second.kind != Range::DEVICE; });
}

// What nobody has written is nonsense, in the first MiB: memory that is never used shall not be taken.
inline uint64_t map_memory(size_t bytes, Range::Kind kind) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  std::memset(at, 0xa5, std::min(bytes, size_t(1) << 20));
  memory[(uint64_t)at] = {bytes, kind};
  return (uint64_t)at;
}

// Memory of the host's a second time, where a device has it that has addresses of its own.
inline uint64_t map_again(uint64_t at, size_t bytes) {
  int file = memfd_create("registered", 0);
  bool is_there = file >= 0 && ftruncate(file, bytes) == 0;
  for (size_t done = 0; is_there && done < bytes;) {
    ssize_t more = pwrite(file, (const char*)at + done, bytes - done, done);
    is_there = more > 0;
    done += is_there ? more : 0;
  }
  auto map = [&](void* where, int flags) { return mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file, 0); };
  void* there = is_there ? map(nullptr, 0) : MAP_FAILED;
  if (there == MAP_FAILED || map((void*)at, MAP_FIXED) == MAP_FAILED) wrong("there is no room for the stand-in");
  close(file);
  return (uint64_t)there;
}

// A moment that a stream comes to.
struct Moment {
  std::mutex lock;
  std::condition_variable changed;
  bool reached = false;
  Time when;
  void reach() {
    Guard guard(lock);
    reached = true;
    when = std::chrono::steady_clock::now();
    changed.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> held(lock);
    changed.wait(held, [&] { return reached; });
  }
};

struct Stream {
  std::mutex lock;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  // What it is asked for is noted down there instead of being done.
  std::vector<std::function<void()>>* notes = nullptr;
  bool ends = false;
  unsigned state;
  std::thread thread;

  explicit Stream(unsigned seed) : state(seed * 2654435761u | 1), thread([this] { serve(); }) {}

  void ask(std::function<void()> task) {
    Guard guard(lock);
    if (notes) return notes->push_back(std::move(task));
    tasks.push_back(std::move(task));
    changed.notify_all();
  }

  // That of all that is under way: notes are not.
  std::shared_ptr<Moment> moment() {
    auto moment = std::make_shared<Moment>();
    Guard guard(lock);
    tasks.push_back([moment] { moment->reach(); });
    changed.notify_all();
    return moment;
  }

  void serve() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [&] { return ends || !tasks.empty(); });
        if (tasks.empty()) return;
        task = std::move(tasks.front());
        tasks.pop_front();
      }
      state = state * 1664525u + 1013904223u;
      if (state >> 29 == 0) std::this_thread::sleep_for(std::chrono::microseconds(state >> 20 & 0xff));
      task();
    }
  }

  ~Stream() {
    {
      Guard guard(lock);
      ends = true;
      changed.notify_all();
    }
    thread.join();
  }
};

struct Event {
  bool is_timed;
  std::mutex lock;
  std::shared_ptr<Moment> last;  // where it was recorded last
  std::shared_ptr<Moment> recorded() {
    Guard guard(lock);
    return last;
  }
};

// A module's library, which runs one kernel at a time.
struct Module {
  using Start = int (*)(const char*, unsigned, unsigned, unsigned, unsigned, const void*, unsigned);
  Start start;
  unsigned (*arguments)(const char*);
};
struct Function {
  Module* module;
  std::string name;
  unsigned arguments, most_bytes;
};

// After so many kernels the device is lost: every call says so, and no kernel is run any more.
inline std::atomic<long> kernels_left{number("BALLAST_STAND_IN_LAUNCHES", 1l << 60)};
inline bool is_lost() { return kernels_left <= 0; }

struct Launched {
  Function* function;
  unsigned x, y, threads, bytes;
  std::vector<uint64_t> words;
  void run() const {
    if (--kernels_left <= 0) return;
    int wrong_launch = function->module->start(function->name.c_str(), x, y, threads, bytes, words.data(), function->arguments);
    if (wrong_launch) wrong("a kernel that does not start");
  }
};

struct Node {
  std::function<void()> work;
  std::vector<Node*> after;
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  bool is_noted = false;
};
struct Exec {
  std::vector<std::function<void()>> work;
  size_t bytes;
  bool is_there = false;
};

// Handles that somebody has.
template <class T>
struct Handles {
  std::mutex lock;
  std::set<T*> all;
  T* add(T* one) {
    Guard guard(lock);
    all.insert(one);
    return one;
  }
  size_t size() {
    Guard guard(lock);
    return all.size();
  }
  bool has(T* one) {
    Guard guard(lock);
    return all.count(one) == 1;
  }
  bool remove(T* one) {
    Guard guard(lock);
    return all.erase(one) == 1;
  }
};

inline Handles<Stream> streams;
inline Handles<Event> events;
inline Handles<Module> modules;
inline Handles<Function> functions;
inline Handles<Graph> graphs;
inline Handles<Exec> execs;

inline std::atomic<bool> is_started{false};
inline char context;  // its address is the one context
inline std::mutex context_lock;
inline unsigned retainers = 0;
inline thread_local void* current = nullptr;

inline void wait_for_all() {
  std::vector<std::shared_ptr<Moment>> ends;
  {
    Guard guard(streams.lock);
    for (Stream* stream : streams.all) ends.push_back(stream->moment());
  }
  for (auto& end : ends) end->wait();
}

inline Stream* usual() {
  static Stream* stream = streams.add(new Stream(99));
  return stream;
}

// Whether a stream notes down what this thread asks it for, and something that may not be asked for meanwhile has spoilt the notes.
inline thread_local bool is_noting = false, is_spoilt = false;

#define CALL extern "C" __attribute__((visibility("default"))) int
#define IN_CONTEXT                                   \
  if (current != &context) return INVALID_CONTEXT; \
  if (is_lost()) return LAUNCH_FAILED
// What a device may have no memory for.
#define MAY_FAIL \
  if (is_to_fail(__func__)) return OUT_OF_MEMORY
#define NOT_WHILE_NOTING \
  if (is_noting) return is_spoilt = true, NOT_WHILE_NOTED
#define KNOWN(all, one) \
  if (!all.has(one)) return INVALID_HANDLE
