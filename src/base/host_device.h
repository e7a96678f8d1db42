// Functions that compile for the host and for devices alike.
#pragma once

#if defined(__CUDACC__)
#define TENSORFOLD_HOST_DEVICE __host__ __device__
#else
#define TENSORFOLD_HOST_DEVICE
#endif
