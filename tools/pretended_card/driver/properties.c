// What the card says about itself. The structures are those of the release's own header; __init__.py
// defines the figures of one card of graphmem's list.

#include <string.h>

#include <cuda_runtime_api.h>

#define EXPORT __attribute__((visibility("default")))

int pretended_memory_type(const void *pointer);

size_t pretended_total_bytes(void) { return CARD_BYTES; }
int pretended_driver_version(void) { return CUDART_VERSION; }

#if CUDART_VERSION < 13000
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    (void)device;
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, CARD_TITLE);
    properties->totalGlobalMem = CARD_BYTES;
    properties->major = CARD_MAJOR;
    properties->minor = CARD_MINOR;
    properties->multiProcessorCount = CARD_MULTIPROCESSORS;
    properties->maxThreadsPerMultiProcessor = CARD_THREADS;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = CARD_SHARED_BYTES;
    properties->sharedMemPerMultiprocessor = CARD_SHARED_BYTES + 1024;
    properties->l2CacheSize = CARD_L2_BYTES;
    properties->textureAlignment = 512;
    properties->maxBlocksPerMultiProcessor = 32;
    for (int axis = 0; axis < 3; axis++) {
        properties->maxGridSize[axis] = axis ? 65535 : 2147483647;
        properties->maxThreadsDim[axis] = axis == 2 ? 64 : 1024;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp card;
    cudaGetDeviceProperties(&card, device);
    switch (attribute) {
        case cudaDevAttrMaxGridDimX: *value = card.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: *value = card.maxGridSize[1]; break;
        case cudaDevAttrMaxGridDimZ: *value = card.maxGridSize[2]; break;
        case cudaDevAttrWarpSize: *value = card.warpSize; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = card.maxThreadsPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = card.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = card.sharedMemPerBlockOptin; break;
        case cudaDevAttrMultiProcessorCount: *value = card.multiProcessorCount; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = card.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrComputeCapabilityMajor: *value = card.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = card.minor; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = card.regsPerBlock; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
    (void)kernel;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = attributes->ptxVersion = 10 * CARD_MAJOR + CARD_MINOR;
    return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                            const void *pointer) {
    memset(attributes, 0, sizeof *attributes);
    attributes->type = pretended_memory_type(pointer);
    attributes->hostPointer = attributes->devicePointer = (void *)pointer;
    return cudaSuccess;
}
