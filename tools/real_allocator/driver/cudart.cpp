// A pretended libcudart, and the functions of libcuda that it gives out: what PyTorch's caching
// allocator calls, on one card whose memory is kept in Python (card.py).
//
// The prototypes are written out, so that no CUDA toolkit is needed; types and values are those of
// NVIDIA's cuda_runtime_api.h and cuda.h. Functions that the allocator does not call are missing:
// libc10_cuda.so is bound lazily (real.py), and if a release calls one, the loader ends the process
// and names it.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using cudaError_t = int;
using CUresult = int;
using Address = std::uintptr_t;

constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorMemoryAllocation = 2;
constexpr CUresult CUDA_SUCCESS = 0;
constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
constexpr int cudaDriverEntryPointSuccess = 0;
constexpr int cudaDriverEntryPointSymbolNotFound = 1;
constexpr unsigned DRIVER_VERSION = 12000;

// The beginning of cudaDeviceProp, the same in CUDA 12 and 13. The caller has zeroed the whole.
struct cudaDeviceProp {
    char name[256];
    char identifiers[32];
    std::size_t totalGlobalMem;
};

// What the card answers; `Answers` of card.py. An address of 0 says that there is no room.
struct Card {
    std::size_t (*total_bytes)();
    std::size_t (*free_bytes)();
    std::size_t (*process_bytes)();
    Address (*allocate)(std::size_t bytes);
    void (*free)(Address address);
    Address (*place)(std::size_t bytes);
    void (*vacate)(Address address);
    int (*reserve)(std::size_t bytes);
    void (*give_back)(std::size_t bytes);
};

Card card;
int capturing = 0;
cudaError_t last_error = cudaSuccess;

}  // namespace

extern "C" {

// For Python and nvml.cpp.

void pretend_card(const Card *answers) { card = *answers; }
void pretend_capture(int on) { capturing = on; }
std::size_t pretended_process_bytes() { return card.process_bytes(); }

// Memory.

cudaError_t cudaMalloc(void **pointer, std::size_t bytes) {
    Address address = card.allocate(bytes);
    if (!address) return last_error = cudaErrorMemoryAllocation;
    *pointer = reinterpret_cast<void *>(address);
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
    card.free(reinterpret_cast<Address>(pointer));
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t *free_bytes, std::size_t *total_bytes) {
    *free_bytes = card.free_bytes();
    *total_bytes = card.total_bytes();
    return cudaSuccess;
}

// Errors: the allocator clears that of a refused cudaMalloc.

cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

// The one card.

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
    std::strcpy(properties->name, "pretended");
    properties->totalGlobalMem = card.total_bytes();
    return cudaSuccess;
}

// Its name in CUDA 12.
cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp *properties, int device) {
    return cudaGetDeviceProperties(properties, device);
}

// Streams and captures; nothing runs, so everything is done at once.

cudaError_t cudaStreamIsCapturing(void *, int *status) {
    *status = capturing;
    return cudaSuccess;
}

// The arguments after these may be null, and so are left alone.
cudaError_t cudaStreamGetCaptureInfo(void *, int *status, unsigned long long *id) {
    *status = capturing;
    if (id) *id = 1;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(int *) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(void *) { return cudaSuccess; }

}  // extern "C"

// libcuda, whose functions expandable segments use. They are looked up by name.

namespace {

CUresult cuMemAddressReserve(
    Address *address, std::size_t bytes, std::size_t, Address, unsigned long long) {
    *address = card.place(bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(Address address, std::size_t) {
    card.vacate(address);
    return CUDA_SUCCESS;
}

// A handle is the number of bytes that it stands for: more is never asked about it.
CUresult cuMemCreate(
    unsigned long long *handle, std::size_t bytes, const void *, unsigned long long) {
    if (!card.reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(unsigned long long handle) {
    card.give_back(handle);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(Address, std::size_t, std::size_t, unsigned long long, unsigned long long) {
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(Address, std::size_t) { return CUDA_SUCCESS; }
CUresult cuMemSetAccess(Address, std::size_t, const void *, std::size_t) { return CUDA_SUCCESS; }

CUresult cuDeviceGet(int *device, int) {
    *device = 0;
    return CUDA_SUCCESS;
}

// The card has none of the optional abilities.
CUresult cuDeviceGetAttribute(int *value, int, int) {
    *value = 0;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char **text) {
    *text = "pretended";
    return CUDA_SUCCESS;
}

CUresult not_pretended() {
    std::fputs("driver/cudart.cpp lacks a function of libcuda that was called\n", stderr);
    std::abort();
}

struct Entry {
    const char *name;
    void *function;
};

#define ENTRY(function) {#function, reinterpret_cast<void *>(function)}
const Entry entries[] = {
    ENTRY(cuMemAddressReserve),
    ENTRY(cuMemAddressFree),
    ENTRY(cuMemCreate),
    ENTRY(cuMemRelease),
    ENTRY(cuMemMap),
    ENTRY(cuMemUnmap),
    ENTRY(cuMemSetAccess),
    ENTRY(cuDeviceGet),
    ENTRY(cuDeviceGetAttribute),
    ENTRY(cuGetErrorString),
};
#undef ENTRY

}  // namespace

// PyTorch looks up all functions at once, and insists on those of CUDA 12.0, most of which the
// allocator never calls.
extern "C" cudaError_t cudaGetDriverEntryPointByVersion(
    const char *name, void **function, unsigned version, unsigned long long, int *found) {
    *function = version > DRIVER_VERSION ? nullptr : reinterpret_cast<void *>(not_pretended);
    for (const Entry &entry : entries) {
        if (!std::strcmp(entry.name, name)) *function = entry.function;
    }
    *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// What builds for CUDA 12 call.
extern "C" cudaError_t cudaGetDriverEntryPoint(
    const char *name, void **function, unsigned long long flags, int *found) {
    return cudaGetDriverEntryPointByVersion(name, function, DRIVER_VERSION, flags, found);
}
