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
#include <utility>

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

template <typename... Arguments>
int call(char *text, void *method, void *self, Arguments... arguments) {
    try {
        reinterpret_cast<void (*)(void *, Arguments...)>(method)(self, arguments...);
        return 0;
    } catch (const std::exception &error) {
        std::snprintf(text, TEXT_BYTES, "%s", error.what());
        return 1;
    }
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

void get_device_stats(void *method, void *self, char *bytes) {
    using Method = DeviceStats (*)(void *, DeviceIndex);
    DeviceStats stats = reinterpret_cast<Method>(method)(self, DEVICE);
    std::memcpy(bytes, stats.bytes, STATS_BYTES);
}

}  // extern "C"
