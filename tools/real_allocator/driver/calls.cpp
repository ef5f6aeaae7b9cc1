// Calls of methods of PyTorch's C++ allocator, for ctypes, which knows neither exceptions nor
// std::function, nor how a C++ object is returned.
//
// A method is called by its address, as a function whose first argument is the object: so GCC's C++
// ABI passes it. Most functions here return whether the method threw; `text` then has the message.

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace {

using DeviceIndex = signed char;  // c10::DeviceIndex
using PoolId = std::pair<unsigned long long, unsigned long long>;  // c10::MempoolId_t
using Stream = void *;  // cudaStream_t

constexpr int DEVICES = 1;
constexpr DeviceIndex DEVICE = 0;
constexpr std::size_t TEXT_BYTES = 8192;  // those of real.py
constexpr std::size_t STATS_BYTES = 4096;  // more than any release's DeviceStats

// As PyTorch's DeviceStats, it has a destructor, and so is returned in memory of the caller's. This
// one does nothing: the little that a method allocated for its map is lost.
struct DeviceStats {
    char bytes[STATS_BYTES];
    ~DeviceStats() {}
};

using State = std::shared_ptr<void>;  // c10's points to an AllocatorState
std::vector<State> states;

// As c10::DataPtr, but without what would free the block.
struct DataPtr {
    void *data;
    void *others[3];
};

struct CheckpointDelta {
    std::vector<void *> freed;
    std::vector<DataPtr> created;
};

template <typename Calls>
int attempt(char *text, Calls calls) {
    try {
        calls();
        return 0;
    } catch (const std::exception &error) {
        std::snprintf(text, TEXT_BYTES, "%s", error.what());
        return 1;
    }
}

template <typename... Arguments>
int call(char *text, void *method, void *self, Arguments... arguments) {
    return attempt(text, [&] {
        reinterpret_cast<void (*)(void *, Arguments...)>(method)(self, arguments...);
    });
}

}  // namespace

extern "C" {

int call_init(void *method, void *self, char *text) {
    return call(text, method, self, DEVICES);
}

int call_malloc(
    void *method, void *self, char *text, void **pointer, std::size_t bytes, Stream stream) {
    return call(text, method, self, pointer, DEVICE, bytes, stream);
}

int call_free(void *method, void *self, char *text, void *pointer) {
    return call(text, method, self, pointer);
}

int call_empty_cache(void *method, void *self, char *text) {
    return call(text, method, self, PoolId(0, 0));
}

int call_set_fraction(void *method, void *self, char *text, double fraction) {
    return call(text, method, self, fraction, DEVICE);
}

int call_begin_pool(void *method, void *self, char *text, unsigned long long id) {
    std::function<bool(Stream)> every_stream = [](Stream) { return true; };
    return call(text, method, self, DEVICE, PoolId(0, id), every_stream);
}

int call_on_pool(void *method, void *self, char *text, unsigned long long id) {
    return call(text, method, self, DEVICE, PoolId(0, id));
}

int call_on_device(void *method, void *self, char *text) {
    return call(text, method, self, DEVICE);
}

int call_get_state(void *method, void *self, char *text, unsigned long long id) {
    using Method = State (*)(void *, DeviceIndex, PoolId);
    return attempt(text, [&] {
        states.push_back(reinterpret_cast<Method>(method)(self, DEVICE, PoolId(0, id)));
    });
}

// `answer` gets how many blocks were freed, how many are in use, and the addresses of both.
int call_set_state(
    void *method, void *self, char *text, std::size_t number, std::size_t *answer) {
    using Method = CheckpointDelta (*)(void *, DeviceIndex, State);
    return attempt(text, [&] {
        CheckpointDelta delta = reinterpret_cast<Method>(method)(self, DEVICE, states.at(number));
        *answer++ = delta.freed.size();
        *answer++ = delta.created.size();
        for (void *pointer : delta.freed) *answer++ = reinterpret_cast<std::size_t>(pointer);
        for (DataPtr &each : delta.created) *answer++ = reinterpret_cast<std::size_t>(each.data);
    });
}

void get_device_stats(void *method, void *self, char *bytes) {
    using Method = DeviceStats (*)(void *, DeviceIndex);
    DeviceStats stats = reinterpret_cast<Method>(method)(self, DEVICE);
    std::memcpy(bytes, stats.bytes, STATS_BYTES);
}

}  // extern "C"
