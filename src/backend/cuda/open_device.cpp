#include "backend/cuda/open_device.h"

#include <fmt/format.h>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/kernel_probe.h"
#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::string no_device_reason(cudaError_t status, int driver, int built_for) {
  if (driver == 0) return "no NVIDIA driver is installed (libcuda.so.1 was not found); --backend cpu does without";
  if (status == cudaErrorInsufficientDriver || driver / 1000 < built_for / 1000) {
    return fmt::format("the NVIDIA driver is too old: it supports CUDA {}, this build needs {}.0 or newer",
                       version_text(driver), built_for / 1000);
  }
  if (status == cudaSuccess || status == cudaErrorNoDevice)
    return "there is no NVIDIA GPU here that CUDA can see; --backend cpu does without";
  return fmt::format("no usable NVIDIA GPU: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
}

std::string capability_problem(const std::string& name, int major, int minor, bool has_code) {
  if (major < 9) {
    return fmt::format(
        "{} is too old: it has compute capability {}.{}, the CUDA backend needs 9.0 (Hopper); "
        "--backend cpu does without",
        name, major, minor);
  }
  if (!has_code) {
    return fmt::format(
        "this build has no code for {} (compute capability {}.{}); build it with "
        "-DTENSORFOLD_CUDA_ARCHITECTURES={}{}a",
        name, major, minor, major, minor);
  }
  return {};
}

Device open_device(int index) {
  int driver = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0)
    fail(ErrorKind::unsupported, "{}", no_device_reason(status, driver, CUDART_VERSION));
  if (index < 0 || index >= devices)
    fail(ErrorKind::invalid_request, "there is no GPU {}; this machine has {}, counted from 0", index, devices);
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "read the GPU's properties");
  if (std::string problem = capability_problem(properties.name, properties.major, properties.minor, true);
      !problem.empty())
    fail(ErrorKind::unsupported, "{}", problem);
  cuda_check(cudaSetDevice(index), "select the GPU");
  if (std::string problem = capability_problem(properties.name, properties.major, properties.minor, has_kernels());
      !problem.empty())
    fail(ErrorKind::unsupported, "{}", problem);
  Device device;
  device.name = properties.name;
  device.processors = properties.multiProcessorCount;
  device.shared_bytes = properties.sharedMemPerBlockOptin;
  device.cooperative = properties.cooperativeLaunch != 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "ask for the GPU's memory");
  device.free_bytes = free_bytes;
  return device;
}

}  // namespace tensorfold::backend::cuda
