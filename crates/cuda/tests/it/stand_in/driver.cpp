// A driver of a device that is not there: what the crate calls of the driver API, over the host's memory and the kernels of
// emulate.h (nvrtc.cpp compiles them). Calls come back before their work is done, as a driver's do: every stream is a thread of
// its own, which rests now and then so that streams overtake each other. What a driver refuses is refused, and what it would not
// notice (memory of nobody's, copies of memory that is not pinned) ends the process.
#include "device.h"

CALL cuInit(unsigned flags) {
  is_started = true;
  return flags == 0 ? DONE : INVALID_VALUE;
}
// A version that no driver has: machine code is kept by it, and what is kept here shall not be found by another.
CALL cuDriverGetVersion(int* version) { return *version = 12990, DONE; }
CALL cuDeviceGetCount(int* count) { return *count = 1, is_started ? DONE : 3; }
CALL cuDeviceGet(int* device, int ordinal) { return *device = 7, ordinal == 0 ? DONE : INVALID_DEVICE; }
CALL cuDeviceGetName(char* name, int room, int) { return std::snprintf(name, room, "no GPU, but its stand-in"), DONE; }
CALL cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int MULTIPROCESSORS = 16, INTEGRATED = 18, MAJOR = 75, MINOR = 76;
  int capability = number("BALLAST_STAND_IN_ARCHITECTURE", 80);
  if (device != 7) return INVALID_VALUE;
  switch (attribute) {
    case MULTIPROCESSORS: return *value = 2, DONE;
    case INTEGRATED: return *value = number("BALLAST_STAND_IN_INTEGRATED", 0), DONE;
    case MAJOR: return *value = capability / 10, DONE;
    case MINOR: return *value = capability % 10, DONE;
    default: return INVALID_VALUE;
  }
}
CALL cuDevicePrimaryCtxRetain(void** retained, int device) {
  if (device != 7) return INVALID_DEVICE;
  Guard guard(context_lock);
  return retainers++, *retained = &context, DONE;
}
CALL cuDevicePrimaryCtxRelease_v2(int device) {
  if (device != 7) return INVALID_DEVICE;
  // Held throughout: whoever retains it meanwhile makes streams of its own.
  Guard guard(context_lock);
  if (retainers == 0) return INVALID_CONTEXT;
  // Whatever is left goes with the context, and who uses its handle after that has nobody's memory.
  if (--retainers == 0 && !is_lost()) {
    // One may be the context's own.
    if (streams.size() > 1) wrong("streams that are there after their context");
    if (events.size() > 0) wrong("events that are there after their context");
    if (modules.size() > 0) wrong("modules that are there after their context");
    if (is_any_pinned()) wrong("pinned memory that is there after its context");
  }
  return DONE;
}
CALL cuCtxSetCurrent(void* wanted) { return current = wanted, wanted == &context ? DONE : INVALID_CONTEXT; }

// Memory.
CALL cuMemGetInfo_v2(size_t* free, size_t* total) {
  IN_CONTEXT;
  Guard guard(memory_lock);
  return *free = TOTAL - taken, *total = TOTAL, DONE;
}
CALL cuMemAlloc_v2(uint64_t* at, size_t bytes) {
  IN_CONTEXT;
  NOT_WHILE_NOTING;
  if (bytes == 0) return INVALID_VALUE;
  Guard guard(memory_lock);
  if (bytes > TOTAL - taken) return OUT_OF_MEMORY;
  if (!(*at = map_memory(bytes, Range::DEVICE))) return OUT_OF_MEMORY;
  return taken += bytes, DONE;
}
// What is under way ends first, on a device that is lost too.
static int unmap(uint64_t at, Range::Kind kind) {
  NOT_WHILE_NOTING;
  wait_for_all();
  IN_CONTEXT;
  Guard guard(memory_lock);
  auto found = memory.find(at);
  if (found == memory.end() || found->second.kind != kind) return INVALID_VALUE;
  // Whoever uses it later is seen.
  munmap((void*)at, found->second.bytes);
  if (kind == Range::DEVICE) taken -= found->second.bytes;
  memory.erase(found);
  return DONE;
}
CALL cuMemFree_v2(uint64_t at) { return unmap(at, Range::DEVICE); }
CALL cuMemHostAlloc(void** at, size_t bytes, unsigned flags) {
  IN_CONTEXT;
  NOT_WHILE_NOTING;
  MAY_FAIL;
  if (bytes == 0 || flags > 7) return INVALID_VALUE;
  Guard guard(memory_lock);
  return *at = (void*)map_memory(bytes, Range::PINNED), *at ? DONE : OUT_OF_MEMORY;
}
CALL cuMemFreeHost(void* at) { return unmap((uint64_t)at, Range::PINNED); }
CALL cuMemHostGetDevicePointer_v2(uint64_t* there, void* at, unsigned flags) {
  IN_CONTEXT;
  MAY_FAIL;
  {
    Guard guard(memory_lock);
    auto found = memory.find((uint64_t)at);
    if (found != memory.end() && found->second.elsewhere) return *there = found->second.elsewhere, flags == 0 ? DONE : INVALID_VALUE;
  }
  look_at((uint64_t)at, 1, false);
  return *there = (uint64_t)at, flags == 0 ? DONE : INVALID_VALUE;
}
CALL cuMemHostRegister_v2(void* at, size_t bytes, unsigned flags) {
  IN_CONTEXT;
  NOT_WHILE_NOTING;
  if (bytes == 0 || flags > 15 || (uint64_t)at % 4096 || bytes % 4096) return INVALID_VALUE;
  Guard guard(memory_lock);
  auto after = memory.lower_bound((uint64_t)at);
  bool meets_after = after != memory.end() && after->first < (uint64_t)at + bytes;
  bool meets_before = after != memory.begin() && std::prev(after)->first + std::prev(after)->second.bytes > (uint64_t)at;
  if (meets_after || meets_before) return ALREADY_REGISTERED;
  memory[(uint64_t)at] = {bytes, Range::REGISTERED};
  if (number("BALLAST_STAND_IN_ELSEWHERE", 0)) {
    uint64_t there = memory[(uint64_t)at].elsewhere = map_again((uint64_t)at, bytes);
    memory[there] = {bytes, Range::REGISTERED};
  }
  return DONE;
}
CALL cuMemHostUnregister(void* at) {
  NOT_WHILE_NOTING;
  wait_for_all();
  IN_CONTEXT;
  Guard guard(memory_lock);
  auto found = memory.find((uint64_t)at);
  if (found == memory.end() || found->second.kind != Range::REGISTERED) return NOT_REGISTERED;
  auto [bytes, kind, elsewhere] = found->second;
  if (elsewhere) munmap((void*)elsewhere, bytes), memory.erase(elsewhere);
  return memory.erase(found), DONE;
}
CALL cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, Stream* stream) {
  IN_CONTEXT;
  KNOWN(streams, stream);
  look_at(at, bytes, true);
  return stream->ask([=] { std::memset((void*)at, value, bytes); }), DONE;
}
static int copy(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
  IN_CONTEXT;
  KNOWN(streams, stream);
  auto task = [=] {
    if (!is_lost()) std::memmove((void*)to, (void*)from, bytes);
  };
  return stream->ask(task), DONE;
}
CALL cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
  look_at(to, bytes, true);
  look_at((uint64_t)from, bytes, false);
  return copy(to, (uint64_t)from, bytes, stream);
}
CALL cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
  MAY_FAIL;
  look_at((uint64_t)to, bytes, false);
  look_at(from, bytes, true);
  return copy((uint64_t)to, from, bytes, stream);
}
CALL cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
  look_at(to, bytes, true);
  look_at(from, bytes, true);
  return copy(to, from, bytes, stream);
}
CALL cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
  look_at(to, bytes, is_device(to));
  look_at(from, bytes, is_device(from));
  return copy(to, from, bytes, stream);
}

// Streams and events.
CALL cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  IN_CONTEXT;
  return *least = 0, *greatest = -5, DONE;
}
CALL cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority) {
  IN_CONTEXT;
  static std::atomic<unsigned> made{0};
  if (flags > 1 || priority > 0 || priority < -5) return INVALID_VALUE;
  return *stream = streams.add(new Stream(++made + number("BALLAST_STAND_IN_SEED", 0))), DONE;
}
CALL cuStreamDestroy_v2(Stream* stream) {
  IN_CONTEXT;
  if (!streams.remove(stream)) return INVALID_HANDLE;
  return delete stream, DONE;
}
CALL cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  IN_CONTEXT;
  KNOWN(streams, stream);
  KNOWN(events, event);
  // What it names now; nothing if it was never recorded.
  if (auto moment = event->recorded()) stream->ask([moment] { moment->wait(); });
  return DONE;
}
CALL cuEventCreate(Event** event, unsigned flags) {
  IN_CONTEXT;
  MAY_FAIL;
  if (flags > 3) return INVALID_VALUE;
  *event = new Event;
  (*event)->is_timed = !(flags & 2);
  return events.add(*event), DONE;
}
CALL cuEventRecord(Event* event, Stream* stream) {
  IN_CONTEXT;
  MAY_FAIL;
  KNOWN(streams, stream);
  KNOWN(events, event);
  Guard guard(event->lock);
  return event->last = stream->moment(), DONE;
}
CALL cuEventSynchronize(Event* event) {
  IN_CONTEXT;
  NOT_WHILE_NOTING;
  KNOWN(events, event);
  if (auto moment = event->recorded()) moment->wait();
  return is_lost() ? LAUNCH_FAILED : DONE;
}
CALL cuEventElapsedTime(float* ms, Event* begin, Event* end) {
  IN_CONTEXT;
  KNOWN(events, begin);
  KNOWN(events, end);
  auto from = begin->recorded(), to = end->recorded();
  if (!begin->is_timed || !end->is_timed || !from || !to) return INVALID_HANDLE;
  Guard first(from->lock);
  std::unique_lock<std::mutex> second(to->lock, std::defer_lock);
  if (from != to) second.lock();
  if (!from->reached || !to->reached) return NOT_READY;
  return *ms = std::chrono::duration<float, std::milli>(to->when - from->when).count(), DONE;
}
CALL cuEventDestroy_v2(Event* event) {
  IN_CONTEXT;
  if (!events.remove(event)) return INVALID_HANDLE;
  return delete event, DONE;
}

// Kernels. An image is what nvrtc.cpp makes: the path of a library.
CALL cuModuleLoadData(Module** module, const void* image) {
  IN_CONTEXT;
  NOT_WHILE_NOTING;
  const std::string magic = "emulated:", path = (const char*)image;
  if (path.compare(0, magic.size(), magic) != 0) return INVALID_IMAGE;
  void* library = dlopen(path.c_str() + magic.size(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return INVALID_IMAGE;
  *module = new Module;
  (*module)->start = (Module::Start)dlsym(library, "ballast_launch");
  (*module)->arguments = (unsigned (*)(const char*))dlsym(library, "ballast_arguments");
  return modules.add(*module), (*module)->start && (*module)->arguments ? DONE : INVALID_IMAGE;
}
CALL cuModuleUnload(Module* module) {
  IN_CONTEXT;
  if (!modules.remove(module)) return INVALID_HANDLE;
  Guard guard(functions.lock);
  for (auto at = functions.all.begin(); at != functions.all.end();) at = (*at)->module == module ? functions.all.erase(at) : std::next(at);
  return DONE;
}
CALL cuModuleGetFunction(Function** function, Module* module, const char* name) {
  IN_CONTEXT;
  MAY_FAIL;
  KNOWN(modules, module);
  unsigned arguments = module->arguments(name);
  if (arguments == 0) return NOT_FOUND;
  return *function = functions.add(new Function{module, name, arguments, 48 << 10}), DONE;
}
CALL cuFuncSetAttribute(Function* function, int attribute, int value) {
  IN_CONTEXT;
  KNOWN(functions, function);
  // The most dynamic shared memory that a block is given.
  int architecture = number("BALLAST_STAND_IN_ARCHITECTURE", 80);
  bool is_large = architecture == 80 || architecture == 87;
  int most = architecture < 80 ? 64 : is_large ? 163 : architecture < 90 || architecture >= 120 ? 99 : 227;
  if (attribute != 8 || value < 0 || value > most << 10) return INVALID_VALUE;
  return function->most_bytes = value, DONE;
}
// Of each thread.
static int registers() { return number("BALLAST_STAND_IN_REGISTERS", 255); }
CALL cuFuncGetAttribute(int* value, int attribute, Function* function) {
  IN_CONTEXT;
  KNOWN(functions, function);
  return *value = registers(), attribute == 4 ? DONE : INVALID_VALUE;
}
CALL cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* function, int threads, size_t bytes) {
  IN_CONTEXT;
  KNOWN(functions, function);
  if (threads <= 0 || threads > 1024) return INVALID_VALUE;
  return *blocks = bytes <= function->most_bytes ? 65536 / (threads * ((registers() + 7) / 8 * 8)) : 0, DONE;
}
static int launched(Launched& to, Function* function, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned bytes, void** parameters,
                    void** extra) {
  IN_CONTEXT;
  KNOWN(functions, function);
  bool fits = grid[0] > 0 && grid[0] <= 0x7fffffff && grid[1] > 0 && grid[1] <= 65535 && grid[2] == 1;
  fits &= block[0] > 0 && block[0] <= 1024 && block[1] == 1 && block[2] == 1 && bytes <= function->most_bytes;
  if (!fits || !parameters || extra) return INVALID_VALUE;
  to = {function, grid[0], grid[1], block[0], bytes, std::vector<uint64_t>((function->arguments + 7) / 8)};
  std::memcpy(to.words.data(), parameters[0], function->arguments);
  return DONE;
}
CALL cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned bytes,
                    Stream* stream, void** parameters, void** extra) {
  KNOWN(streams, stream);
  Launched one;
  if (int refused = launched(one, function, {x, y, z}, {threads, ty, tz}, bytes, parameters, extra)) return refused;
  return stream->ask([one] { one.run(); }), DONE;
}

// Graphs.
struct NodeParameters {
  Function* function;
  unsigned grid[3], block[3], bytes;
  void** parameters;
  void** extra;
  void *kernel, *in;
};
CALL cuGraphCreate(Graph** graph, unsigned flags) {
  IN_CONTEXT;
  return *graph = graphs.add(new Graph), flags == 0 ? DONE : INVALID_VALUE;
}
CALL cuGraphAddKernelNode_v2(Node** node, Graph* graph, Node* const* after, size_t count, const NodeParameters* with) {
  KNOWN(graphs, graph);
  auto made = std::make_unique<Node>();
  Launched one;
  if (int refused = launched(one, with->function, with->grid, with->block, with->bytes, with->parameters, with->extra)) return refused;
  made->work = [one] { one.run(); };
  made->after.assign(after, after + count);
  *node = made.get();
  return graph->nodes.push_back(std::move(made)), DONE;
}
// A stream that notes down makes a graph of what it is asked for, each after the one before. It is asked by the thread that began.
static std::map<Stream*, std::unique_ptr<std::vector<std::function<void()>>>> noting;
static std::mutex noting_lock;
static std::atomic<long> noted{0};
static struct AtTheEnd {
  ~AtTheEnd() {
    if (noted < number("BALLAST_STAND_IN_NOTES", 0)) wrong("few graphs of what streams noted down");
  }
} at_the_end;
CALL cuStreamBeginCapture_v2(Stream* stream, int mode) {
  IN_CONTEXT;
  KNOWN(streams, stream);
  if (stream == usual() || mode < 0 || mode > 2 || is_noting) return INVALID_VALUE;
  Guard guard(noting_lock);
  auto& notes = noting[stream] = std::make_unique<std::vector<std::function<void()>>>();
  Guard mine(stream->lock);
  is_noting = true, is_spoilt = false;
  return stream->notes = notes.get(), DONE;
}
CALL cuStreamEndCapture(Stream* stream, Graph** graph) {
  IN_CONTEXT;
  KNOWN(streams, stream);
  Guard guard(noting_lock);
  auto found = noting.find(stream);
  if (found == noting.end()) return INVALID_VALUE;
  {
    Guard mine(stream->lock);
    stream->notes = nullptr;
  }
  is_noting = false;
  if (is_spoilt) return noting.erase(found), *graph = nullptr, NOTES_SPOILT;
  *graph = graphs.add(new Graph);
  for (auto& work : *found->second) {
    auto node = std::make_unique<Node>();
    node->work = std::move(work);
    if (!(*graph)->nodes.empty()) node->after.push_back((*graph)->nodes.back().get());
    (*graph)->nodes.push_back(std::move(node));
  }
  noting.erase(found);
  (*graph)->is_noted = true;
  return DONE;
}
// Kernels that do not wait for each other are run in any order: here, backwards.
CALL cuGraphInstantiateWithFlags(Exec** exec, Graph* graph, unsigned long long flags) {
  IN_CONTEXT;
  KNOWN(graphs, graph);
  const int NOT_SUPPORTED = 801;
  if (graph->is_noted && number("BALLAST_STAND_IN_UNMADE", 0)) return NOT_SUPPORTED;
  std::vector<std::function<void()>> work;
  std::set<Node*> done;
  while (done.size() < graph->nodes.size()) {
    size_t before = done.size();
    for (auto node = graph->nodes.rbegin(); node != graph->nodes.rend(); ++node) {
      bool may = !done.count(node->get());
      for (Node* other : (*node)->after) may &= done.count(other) == 1;
      if (!may) continue;
      done.insert(node->get());
      work.push_back((*node)->work);
    }
    if (done.size() == before) return INVALID_VALUE;
  }
  size_t bytes = work.size() * GRAPH_BYTES;
  noted += graph->is_noted;
  return *exec = execs.add(new Exec{std::move(work), bytes}), flags == 0 ? DONE : INVALID_VALUE;
}
CALL cuGraphUpload(Exec* exec, Stream* stream) {
  IN_CONTEXT;
  KNOWN(execs, exec);
  KNOWN(streams, stream);
  Guard guard(memory_lock);
  if (exec->is_there) return DONE;
  if (exec->bytes > TOTAL - taken) return OUT_OF_MEMORY;
  taken += exec->bytes;
  return exec->is_there = true, DONE;
}
CALL cuGraphLaunch(Exec* exec, Stream* stream) {
  IN_CONTEXT;
  KNOWN(execs, exec);
  KNOWN(streams, stream);
  for (const auto& work : exec->work) stream->ask(work);
  return DONE;
}
CALL cuGraphExecDestroy(Exec* exec) {
  IN_CONTEXT;
  if (!execs.remove(exec)) return INVALID_HANDLE;
  Guard guard(memory_lock);
  if (exec->is_there) taken -= exec->bytes;
  return delete exec, DONE;
}
CALL cuGraphDestroy(Graph* graph) {
  if (!graphs.remove(graph)) return INVALID_HANDLE;
  return delete graph, DONE;
}

static const char* said(int result) {
  switch (result) {
    case DONE: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case OUT_OF_MEMORY: return "out of memory";
    case INVALID_CONTEXT: return "invalid device context";
    case INVALID_HANDLE: return "invalid resource handle";
    case NOT_FOUND: return "named symbol not found";
    case NOT_READY: return "device not ready";
    case LAUNCH_FAILED: return "unspecified launch failure";
    case NOT_WHILE_NOTED: return "operation not permitted when stream is capturing";
    case NOTES_SPOILT: return "operation failed due to a previous error during capture";
    case ALREADY_REGISTERED: return "part or all of the requested memory range is already mapped";
    default: return "another error";
  }
}
CALL cuGetErrorName(int result, const char** name) { return *name = said(result), DONE; }
CALL cuGetErrorString(int result, const char** text) { return *text = said(result), DONE; }
