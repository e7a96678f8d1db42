// The floor under decoding: how fast this machine's threads read memory.
#pragma once

namespace tensorfold::backend::cpu {

/// Bytes a second that `threads` threads (0: one a core) read from 512 MiB of huge pages, the best of five passes.
/// Throws Error(capacity).
double measure_read_bandwidth(int threads);

}  // namespace tensorfold::backend::cpu
