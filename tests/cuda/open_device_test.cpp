// What a machine without a usable GPU is told. These need no GPU.
#include "backend/cuda/open_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(OpenDevice, NamesWhatIsMissing) {
  EXPECT_THAT(no_device_reason(cudaErrorInsufficientDriver, 0, 13000), HasSubstr("no NVIDIA driver is installed"));
  EXPECT_THAT(no_device_reason(cudaErrorInsufficientDriver, 12040, 13000),
              AllOf(HasSubstr("supports CUDA 12.4"), HasSubstr("needs 13.0")));
  EXPECT_THAT(no_device_reason(cudaErrorNoDevice, 13000, 13000), HasSubstr("no NVIDIA GPU"));
  EXPECT_THAT(no_device_reason(cudaSuccess, 13000, 13000), HasSubstr("no NVIDIA GPU"));
  EXPECT_THAT(no_device_reason(cudaErrorSystemNotReady, 13000, 13000), HasSubstr("cudaErrorSystemNotReady"));
}

TEST(OpenDevice, NamesTheComputeCapability) {
  EXPECT_THAT(capability_problem("NVIDIA A100", 8, 0, true), AllOf(HasSubstr("NVIDIA A100"), HasSubstr("8.0")));
  EXPECT_THAT(capability_problem("NVIDIA H200", 9, 0, true), IsEmpty());
  EXPECT_THAT(capability_problem("NVIDIA B200", 10, 0, false),
              AllOf(HasSubstr("10.0"), HasSubstr("TENSORFOLD_CUDA_ARCHITECTURES=100a")));
}

TEST(OpenDevice, FailsInOneLine) {
  int devices = 0;
  const bool usable = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    open_device(usable ? devices : 0);
    FAIL() << "such a GPU cannot be there";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()), AllOf(Not(HasSubstr("\n")), AnyOf(HasSubstr("GPU"), HasSubstr("driver"))));
  }
}

}  // namespace
}  // namespace tensorfold::backend::cuda
