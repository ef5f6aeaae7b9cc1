// The CUDA runtime, driver and cuBLAS of a card that computes nothing.
//
// Here are the functions that write a result; `__init__.py` makes one that returns a status for every
// other function that torch's libraries import. Prototypes have the parameters that are read or
// written, and are those of NVIDIA's cuda_runtime_api.h, cuda.h and cublas_api.h; what a release
// names or numbers in its own way is in properties.c, what Triton's kernels need in triton.c.
//
// Memory of the card is address space that nobody may touch. Each segment lies above the last one,
// so where freed segments are taken again is not judged. Pinned memory is memory.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, OUT_OF_MEMORY = 2 };
enum { DEVICE_TO_HOST = 2 };
enum { SEGMENTS = 1 << 16 };

static const size_t ARENA_BYTES = (size_t)1 << 42;
static const size_t PAGE_BYTES = (size_t)2 << 20;  // cudaMalloc gives whole pages of 2 MiB

size_t pretended_total_bytes(void);
int pretended_driver_version(void);

// Memory -----------------------------------------------------------------------------------------

struct arena {
    char *start, *next;
};

static struct arena card, host;
static struct {
    char *start;
    size_t bytes;
} segments[SEGMENTS];
static size_t used_bytes;
static int last_error;

static char *take(struct arena *arena, int access, size_t bytes) {
    if (!arena->start) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        char *mapped = mmap(NULL, ARENA_BYTES, access, flags, -1, 0);
        uintptr_t aligned = ((uintptr_t)mapped + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
        arena->start = arena->next = (char *)aligned;
    }
    char *start = arena->next;
    arena->next += (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    return start;
}

static int is_in(const struct arena *arena, const void *pointer) {
    return arena->start <= (const char *)pointer && (const char *)pointer < arena->next;
}

EXPORT int cudaMalloc(void **pointer, size_t bytes) {
    size_t place = 0;
    while (place < SEGMENTS && segments[place].start) place++;
    if (used_bytes + bytes > pretended_total_bytes() || place == SEGMENTS)
        return last_error = OUT_OF_MEMORY;
    *pointer = segments[place].start = take(&card, PROT_NONE, bytes);
    used_bytes += segments[place].bytes = bytes;
    return SUCCESS;
}

EXPORT int cudaFree(void *pointer) {
    for (size_t place = 0; pointer && place < SEGMENTS; place++) {
        if (segments[place].start != pointer) continue;
        used_bytes -= segments[place].bytes;
        segments[place].start = NULL;
        return SUCCESS;
    }
    return SUCCESS;
}

EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = pretended_total_bytes();
    *free_bytes = *total_bytes - used_bytes;
    return SUCCESS;
}

EXPORT int cudaHostAlloc(void **pointer, size_t bytes) {
    *pointer = take(&host, PROT_READ | PROT_WRITE, bytes);
    return SUCCESS;
}

// The type of the memory: 0 unregistered, 1 pinned, 2 the card's.
EXPORT int pretended_memory_type(const void *pointer) {
    return is_in(&host, pointer) ? 1 : is_in(&card, pointer) ? 2 : 0;
}

// What comes back from the card is zeros.
EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    if (kind == DEVICE_TO_HOST || (is_in(&card, from) && !is_in(&card, to))) memset(to, 0, bytes);
    return SUCCESS;
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind) {
    return cudaMemcpy(to, from, bytes, kind);
}

EXPORT int cudaMemcpy2DAsync(void *to, size_t step, const void *from, size_t from_step, size_t width,
                             size_t height, int kind) {
    for (size_t row = 0; row < height; row++)
        cudaMemcpy((char *)to + row * step, (const char *)from + row * from_step, width, kind);
    return SUCCESS;
}

// The one card -----------------------------------------------------------------------------------

static int write_int(int *result, int value) {
    *result = value;
    return SUCCESS;
}

static int write_zero(void *handle, int *result) {
    (void)handle;
    return write_int(result, 0);
}

EXPORT int cudaGetDeviceCount(int *count) { return write_int(count, 1); }
EXPORT int cudaGetDevice(int *device) { return write_int(device, 0); }
EXPORT int cudaDriverGetVersion(int *version) {
    return write_int(version, pretended_driver_version());
}
EXPORT int cudaRuntimeGetVersion(int *version) {
    return write_int(version, pretended_driver_version());
}
EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *greatest = -5;
    return write_int(least, 0);
}
EXPORT int cudaDeviceCanAccessPeer(int *can) { return write_int(can, 0); }

// Which error, and its text.
EXPORT int cudaGetLastError(void) {
    int error = last_error;
    last_error = SUCCESS;
    return error;
}
EXPORT int cudaPeekAtLastError(void) { return last_error; }
EXPORT const char *cudaGetErrorString(int error) {
    return error == OUT_OF_MEMORY ? "out of memory" : "an error of the pretended card";
}
EXPORT const char *cudaGetErrorName(int error) { return cudaGetErrorString(error); }

// Streams and events: whatever is asked for is done -------------------------------------------------

static int new_handle(void **handle) {
    static uintptr_t last = 4096;
    *handle = (void *)__atomic_add_fetch(&last, 64, __ATOMIC_RELAXED);
    return SUCCESS;
}

EXPORT int cudaStreamCreate(void **stream) { return new_handle(stream); }
EXPORT int cudaStreamCreateWithFlags(void **stream) { return new_handle(stream); }
EXPORT int cudaStreamCreateWithPriority(void **stream) { return new_handle(stream); }
EXPORT int cudaStreamGetPriority(void *stream, int *priority) { return write_zero(stream, priority); }
EXPORT int cudaStreamIsCapturing(void *stream, int *status) { return write_zero(stream, status); }
EXPORT int cudaStreamGetCaptureInfo(void *stream, int *status) { return write_zero(stream, status); }
EXPORT int cudaStreamGetCaptureInfo_v2(void *stream, int *status) { return write_zero(stream, status); }
EXPORT int cudaEventCreate(void **event) { return new_handle(event); }
EXPORT int cudaEventCreateWithFlags(void **event) { return new_handle(event); }
EXPORT int cudaEventElapsedTime(float *milliseconds) {
    *milliseconds = 1;
    return SUCCESS;
}

// Kernels: as many blocks fit on a multiprocessor as have its threads. Registers may allow fewer.

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                         int threads) {
    (void)kernel;
    return write_int(blocks, CARD_THREADS / threads);
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                                  int threads) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads);
}
EXPORT int cudaGetSymbolAddress(void **pointer) {
    *pointer = take(&card, PROT_NONE, PAGE_BYTES);
    return SUCCESS;
}

// The driver -------------------------------------------------------------------------------------

static int nothing(void) { return SUCCESS; }

EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, uint64_t flags, int *found) {
    (void)flags;
    void *here = dlsym(RTLD_DEFAULT, name);
    *function = here ? here : (void *)nothing;
    return found ? write_int(found, 0) : SUCCESS;
}

EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                            uint64_t flags, int *found) {
    (void)version;
    return cudaGetDriverEntryPoint(name, function, flags, found);
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    (void)device;
    *flags = 0;
    return write_int(active, 1);
}
EXPORT int cuDevicePrimaryCtxRetain(void **context) { return new_handle(context); }
EXPORT int cuCtxGetCurrent(void **context) { return new_handle(context); }
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *kernel, int threads) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads);
}
EXPORT int cuGetErrorString(int error, const char **text) {
    *text = cudaGetErrorString(error);
    return SUCCESS;
}

// cuBLAS -----------------------------------------------------------------------------------------

EXPORT int cublasCreate_v2(void **handle) { return new_handle(handle); }
EXPORT int cublasGetMathMode(void *handle, int *mode) { return write_zero(handle, mode); }
EXPORT int cublasGetPointerMode_v2(void *handle, int *mode) { return write_zero(handle, mode); }
EXPORT int cublasLtMatmulDescCreate(void **description) { return new_handle(description); }
EXPORT int cublasLtMatmulPreferenceCreate(void **preference) { return new_handle(preference); }
EXPORT int cublasLtMatrixLayoutCreate(void **layout) { return new_handle(layout); }

// One algorithm, without a workspace of its own. The result is a cublasLtMatmulHeuristicResult_t.
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c,
                                          void *d, void *preference, int wanted, void *results,
                                          int *count) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)wanted;
    memset(results, 0, 8 * sizeof(uint64_t) + sizeof(size_t) + 2 * sizeof(int) + 4 * sizeof(int));
    return write_int(count, 1);
}
