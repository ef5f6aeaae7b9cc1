// A pretended libnvidia-ml: how much memory this process has, which the text of an out-of-memory
// error says. The values are those of NVIDIA's nvml.h.

#include <cstddef>

#include <unistd.h>

namespace {

using nvmlReturn_t = int;
constexpr nvmlReturn_t NVML_SUCCESS = 0;
constexpr nvmlReturn_t NVML_ERROR_NOT_SUPPORTED = 3;

// The beginning of nvmlProcessInfo_v1_t; only the first element is written.
struct Process {
    unsigned id;
    unsigned long long used_bytes;
};

int the_card;

}  // namespace

extern "C" {

std::size_t pretended_process_bytes();  // cudart.cpp

nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *, void **device) {
    *device = &the_card;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(void *, unsigned *count, Process *processes) {
    *count = 1;
    processes[0].id = getpid();
    processes[0].used_bytes = pretended_process_bytes();
    return NVML_SUCCESS;
}

// Looked up with the others, but not called: on one card nothing asks for its peers.

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType() { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2() { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2() { return NVML_ERROR_NOT_SUPPORTED; }

}  // extern "C"
