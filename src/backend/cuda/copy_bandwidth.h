// The floor under decoding on a GPU: how fast its memory is read and written.
#pragma once

namespace tensorfold::backend::cuda {

/// Bytes a second, read and written ones both counted, of copying 1 GiB inside device `index`'s memory, the best of
/// eight. Throws what opening the device throws; the stand-in too.
double measure_copy_bandwidth(int index);

}  // namespace tensorfold::backend::cuda
