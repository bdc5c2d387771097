"""Tests that the CUDA emulation runs correct kernels and reports faulty ones."""

import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.cuda_emulation import emulation
from tests.cuda_emulation.emulation import EmulationError, Library, Options, Result

KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern __shared__ float4 dynamic_shared_memory[];

namespace {

constexpr unsigned kAll = 0xffffffff;

template <typename... Parameters, typename... Arguments>
int Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
           int dynamic_bytes, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = dynamic_bytes;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The sum of a row for each block, three times over.
template <bool kSyncsBeforeReads, bool kSyncsBeforeWrites>
__global__ void __launch_bounds__(256)
    BlockSum(const float* x, float* y, int width) {
  __shared__ float sums[8];
  for (int turn = 0; turn < 3; ++turn) {
    float sum = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      sum += __ldg(x + blockIdx.x * width + i) + turn;
    }
    for (int lane = warpSize / 2; lane > 0; lane /= 2) {
      sum += __shfl_xor_sync(kAll, sum, lane);
    }
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    if (kSyncsBeforeReads) __syncthreads();
    float total = 0;
    for (float one : sums) total += one;
    if (threadIdx.x == 37) __stcs(y + turn * gridDim.x + blockIdx.x, total);
    if (kSyncsBeforeWrites) __syncthreads();
  }
}

template <typename T>
__global__ void Copy(const T* x, T* y, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) __stwb(y + i, __ldcs(x + i));
}

__global__ void CopyEveryOther(const float* x, float* y) {
  __stwb(y + 2 * threadIdx.x, __ldcs(x + 2 * threadIdx.x));
}

// The first lane has no part in the first request.
__global__ void CopyAllButFirst(const float* x, float* y) {
  float value = 0;
  if (threadIdx.x > 0) value = __ldcs(x + threadIdx.x);
  for (int i = 0; i < 3; ++i) __stwb(y + 32 * i + threadIdx.x, value);
}

__global__ void Read(const float4* x, float* y, int size, int times) {
  float sum = 0;
  for (int t = 0; t < times; ++t) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size;
         i += gridDim.x * blockDim.x) {
      sum += __ldg(x + i).x;
    }
  }
  __stwb(y + blockIdx.x * blockDim.x + threadIdx.x, sum);
}

__global__ void Indices(int4* y) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread =
      (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  __syncthreads();
  __stcg(y + block * blockDim.x * blockDim.y * blockDim.z + thread,
         make_int4(block, threadIdx.x, threadIdx.y, threadIdx.z));
}

// All kinds, within segments.
__global__ void Shuffles(int* y, int width) {
  const int lane = threadIdx.x;
  __stwb(y + lane, __shfl_sync(kAll, lane, 5, width));
  __stwb(y + 32 + lane, __shfl_up_sync(kAll, lane, 3, width));
  __stwb(y + 64 + lane, __shfl_down_sync(kAll, lane, 3, width));
  __stwb(y + 96 + lane, __shfl_xor_sync(kAll, lane, 9, width));
}

// The halves of a warp go their own ways, and meet again.
__global__ void Halves(int* y) {
  int value = threadIdx.x;
  if (threadIdx.x < 16) {
    for (int lane = 8; lane > 0; lane /= 2) {
      value += __shfl_xor_sync(0xffff, value, lane);
    }
  } else {
    value = __shfl_down_sync(0xffff0000, value, 1);
  }
  __syncwarp();
  value = __shfl_xor_sync(kAll, value, 16);
  __stwb(y + threadIdx.x, value);
}

__global__ void Diverges(int how, float* y) {
  const int i = threadIdx.x;
  float value = i;
  switch (how) {
    case 0:
      if (i < 32) __syncthreads();
      if (i >= 32) __syncthreads();
      break;
    case 1:
      if (i == 7) return;
      value = __shfl_xor_sync(kAll, value, 1);
      break;
    case 2:
      if (i == 7) __syncthreads();
      value = __shfl_xor_sync(kAll, value, 1);
      if (i != 7) __syncthreads();
      break;
    case 3:
      if (i == 7) value = __shfl_down_sync(kAll, value, 1);
      if (i != 7) value = __shfl_xor_sync(kAll, value, 1);
      break;
    case 4:
      value = __shfl_xor_sync(0xff, value, 1);
      break;
    case 5:
      if (i < 8) value = __shfl_down_sync(0xff, value, 1);
      break;
    case 6:
      if (i == 7) __syncwarp();
      break;
    case 7:  // Allowed: a barrier does not wait for threads that returned.
      if (i % 2 == 0) return;
      __syncthreads();
      break;
    case 8:  // Lines of the same number in two headers.
#line 1 "first.cuh"
      if (i < 32) __syncthreads();
#line 1 "second.cuh"
      if (i >= 32) __syncthreads();
      break;
    case 9:
#line 1 "first.cuh"
      if (i == 7) value = __shfl_xor_sync(kAll, value, 1);
#line 1 "second.cuh"
      if (i != 7) value = __shfl_xor_sync(kAll, value, 1);
#line 1000 "kernels.cu"
  }
  __stwb(y + i, value);
}

__global__ void DynamicShared(float* y, int size) {
  float* shared = reinterpret_cast<float*>(dynamic_shared_memory);
  for (int i = threadIdx.x; i < size; i += blockDim.x) shared[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) __stwb(y, shared[size - 1]);
}

__global__ void Stores(float* y, int index) { __stwb(y + index, 1.0f); }

__global__ void LoadsAfterStore(float* y) {
  __stwb(y, 1.0f);
  __stwb(y + 1, __ldg(y));
}

template <typename... Parameters>
__global__ void Nothing(Parameters...) {}

}  // namespace

CUDA_EMULATION_EXPORT int block_sum(const float* x, float* y, int rows,
                                    int width, int missing) {
  auto kernel = missing == 0   ? BlockSum<true, true>
                : missing == 1 ? BlockSum<false, true>
                               : BlockSum<true, false>;
  return Launch(kernel, rows, 256, 0, x, y, width);
}
CUDA_EMULATION_EXPORT int copy(const void* x, void* y, int size) {
  return Launch(Copy<uint4>, (size + 63) / 64, 64, 0,
                static_cast<const uint4*>(x), static_cast<uint4*>(y), size);
}
CUDA_EMULATION_EXPORT int copy_every_other(const float* x, float* y) {
  return Launch(CopyEveryOther, 1, 64, 0, x, y);
}
CUDA_EMULATION_EXPORT int copy_all_but_first(const float* x, float* y) {
  return Launch(CopyAllButFirst, 1, 32, 0, x, y);
}
CUDA_EMULATION_EXPORT int read_again(const float4* x, float* y, int size,
                                     int blocks, int times) {
  return Launch(Read, blocks, 64, 0, x, y, size, times);
}
CUDA_EMULATION_EXPORT int indices(int4* y) {
  return Launch(Indices, dim3(2, 3, 2), dim3(5, 2, 4), 0, y);
}
CUDA_EMULATION_EXPORT int shuffles(int* y, int width) {
  return Launch(Shuffles, 1, 32, 0, y, width);
}
CUDA_EMULATION_EXPORT int halves(int* y) { return Launch(Halves, 1, 32, 0, y); }
CUDA_EMULATION_EXPORT int diverges(int how, float* y, int threads) {
  return Launch(Diverges, 2, threads, 0, how, y);
}
CUDA_EMULATION_EXPORT int dynamic_shared(float* y, int bytes, int allowed,
                                         int size) {
  const cudaError_t error = cudaFuncSetAttribute(
      DynamicShared, cudaFuncAttributeMaxDynamicSharedMemorySize, allowed);
  if (error != cudaSuccess) return error;
  return Launch(DynamicShared, 1, 64, bytes, y, size);
}
CUDA_EMULATION_EXPORT int stores(float* y, int index) {
  return Launch(Stores, 1, 1, 0, y, index);
}
CUDA_EMULATION_EXPORT int loads_after_store(float* y) {
  return Launch(LoadsAfterStore, 1, 1, 0, y);
}
CUDA_EMULATION_EXPORT int nothing(int x, int y, int z, int bx, int by, int bz) {
  const int error = Launch(Nothing<int>, dim3(x, y, z), dim3(bx, by, bz), 0, 1);
  return error == cudaGetLastError() && cudaGetLastError() == cudaSuccess
             ? error
             : cudaErrorUnknown;
}
CUDA_EMULATION_EXPORT int device(int* numbers, int block_size) {
  cudaDeviceGetAttribute(numbers, cudaDevAttrMultiProcessorCount, 0);
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      numbers + 1, Nothing<int>, block_size, 0);
}
CUDA_EMULATION_EXPORT int narrow(const float* x, unsigned short* bfloat16,
                                unsigned short* half, int size) {
  for (int i = 0; i < size; ++i) {
    bfloat16[i] = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
    half[i] = __half_as_ushort(__floats2half2_rn(0, x[i]).y);
  }
  return 0;
}
CUDA_EMULATION_EXPORT int widen(float* bfloat16, float* half) {
  for (int i = 0; i < 65536; ++i) {
    bfloat16[i] = __bfloat162float(__ushort_as_bfloat16(i));
    half[i] = __half22float2({__half{}, __ushort_as_half(i)}).y;
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    source = tmp_path_factory.mktemp("cuda_emulation") / "kernels.cu"
    source.write_text(KERNELS)
    return Library([source])


def _run(library: Library, function: str, *arguments, x=None, y=None, **options):
    """Calls a function with integers and with the given buffers x and y."""
    return library.run(
        function,
        [a if isinstance(a, str) else ctypes.c_int(a) for a in arguments],
        inputs={} if x is None else {"x": x},
        outputs={} if y is None else {"y": y},
        options=Options(**options),
    )


# Synchronization of threads.


def _block_sum(library: Library, missing: int, seed: int) -> np.ndarray:
    x = np.arange(5 * 300, dtype=np.float32).reshape(5, 300)
    arguments = ("x", "y", *x.shape, missing)
    y = ((3, 5), np.float32)
    return _run(library, "block_sum", *arguments, x=x, y=y, seed=seed)["y"] - (
        x.sum(-1) + 300 * np.arange(3, dtype=np.float32)[:, None]
    )


@pytest.mark.parametrize("seed", range(20))
def test_sums_over_a_block(library: Library, seed: int):
    np.testing.assert_array_equal(_block_sum(library, missing=0, seed=seed), 0)


@pytest.mark.parametrize("missing", [1, 2], ids=["read", "write"])
def test_shows_that_a_barrier_is_missing(library: Library, missing: int):
    errors = [_block_sum(library, missing, seed) for seed in range(1, 5)]
    assert all((error != 0).any() for error in errors)


@pytest.mark.parametrize("seed", [0, 1])
def test_gives_threads_their_indices(library: Library, seed: int):
    y = _run(library, "indices", "y", y=((12, 4, 2, 5, 4), np.int32), seed=seed)["y"]
    z, row, column = np.meshgrid(*map(np.arange, (4, 2, 5)), indexing="ij")
    for block in range(12):
        np.testing.assert_array_equal(y[block, ..., 0], block)
        np.testing.assert_array_equal(y[block, ..., 1], column)
        np.testing.assert_array_equal(y[block, ..., 2], row)
        np.testing.assert_array_equal(y[block, ..., 3], z)


@pytest.mark.parametrize("width", [8, 16, 32])
def test_shuffles(library: Library, width: int):
    y = _run(library, "shuffles", "y", width, y=((4, 32), np.int32), seed=1)["y"]
    lane = np.arange(32)
    within = lane % width
    np.testing.assert_array_equal(y[0], lane - within + 5)
    np.testing.assert_array_equal(y[1], np.where(within >= 3, lane - 3, lane))
    np.testing.assert_array_equal(y[2], np.where(within < width - 3, lane + 3, lane))
    other = lane ^ 9  # May be in an earlier segment, but not in a later one.
    inside = other // width <= lane // width
    np.testing.assert_array_equal(y[3], np.where(inside, other, lane))


@pytest.mark.parametrize("seed", range(4))
def test_shuffles_parts_of_a_warp(library: Library, seed: int):
    y = _run(library, "halves", "y", y=((32,), np.int32), seed=seed)["y"]
    np.testing.assert_array_equal(y[16:], 120)
    np.testing.assert_array_equal(y[:16], [*range(17, 32), 31])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("how", "threads", "message"),
    [
        (
            0,
            64,
            r"divergent __syncthreads in line \d+ of kernels.cu: others .* in line",
        ),
        (1, 32, r"divergent __shfl_xor_sync\(0xf{8}\).* waits for lane 7, .*returned"),
        (1, 20, r"waits for lane (7, which has returned|20, which does not exist)"),
        (2, 32, r"__shfl_xor_sync.* waits for lane 7, which is at __syncthreads in"),
        (3, 32, r"__shfl_\w+_sync.* waits for lane \d, which is at __shfl_\w+_sync\("),
        (4, 32, r"__shfl_xor_sync\(0x000000ff\).*: lane \d+ is not in the mask"),
        (5, 32, r"__shfl_down_sync\(0x000000ff\).*lane 7 reads lane 8, which is not"),
        (6, 32, r"divergent __syncwarp.*: lane 7 waits for lane \d, .* returned"),
        (8, 64, r"in line 1 of (first|second).cuh: .* in line 1 of (first|second).cuh"),
        (9, 32, r"in line 1 of second.cuh: .* waits .* in line 1 of first.cuh"),
    ],
    ids=[
        "two-barriers",
        "returned",
        "no-such-lane",
        "at-barrier",
        "two-shuffles",
        "not-in-mask",
        "reads-outside-mask",
        "syncwarp",
        "barriers-of-two-files",
        "shuffles-of-two-files",
    ],
)
def test_refuses_divergence(library: Library, how, threads, message, seed):
    where = (
        rf"diverges: launch 0, block \([01], 0, 0\), thread \(\d+, 0, 0\): .*{message}"
    )
    with pytest.raises(EmulationError, match=where):
        _run(library, "diverges", how, "y", threads, y=((64,), np.float32), seed=seed)
    # The library remains usable.
    np.testing.assert_array_equal(_block_sum(library, missing=0, seed=seed), 0)


def test_lets_threads_return_before_a_barrier(library: Library):
    y = _run(library, "diverges", 7, "y", 64, y=((64,), np.float32))["y"]
    np.testing.assert_array_equal(y[1::2], np.arange(1, 64, 2))
    assert np.isnan(y[::2]).all()


# Memory.


def test_copies(library: Library):
    x = np.arange(4 * 1000, dtype=np.uint32)
    y = _run(library, "copy", "x", "y", 1000, x=x, y=(x.shape, x.dtype))["y"]
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    ("size_x", "size_y", "message"),
    [
        (999, 1000, r"load of 16 bytes at byte 15984 of x in line \d+ of .*: out of"),
        (1000, 999, r"store of 16 bytes at byte 15984 of y in line \d+ of .*: out of"),
        (999.5, 1000, r"load of 16 bytes at byte 15984 of x .*: .* it has 15992"),
    ],
    ids=["load", "store", "half-inside"],
)
def test_refuses_to_leave_a_buffer(library: Library, size_x, size_y, message):
    x = np.zeros(int(4 * size_x), np.uint32)
    y = ((int(4 * size_y),), np.uint32)
    with pytest.raises(
        EmulationError, match=rf"block \(15, 0, 0\), thread \(39, 0, 0\): {message}"
    ):
        _run(library, "copy", "x", "y", 1000, x=x, y=y)


@pytest.mark.parametrize("index", [-1, 4, 1 << 30])
def test_refuses_other_addresses(library: Library, index: int):
    where = (
        "at 0x.*: not in any" if index > 4 else f"at byte {4 * index} of y .* out of"
    )
    with pytest.raises(EmulationError, match=f"store of 4 bytes {where}"):
        _run(library, "stores", "y", index, y=((4,), np.float32))


def test_refuses_misaligned_access(library: Library):
    x = np.zeros(64, np.uint32)
    with pytest.raises(
        EmulationError, match=r"store of 16 bytes at byte 0 of y .*misal"
    ):
        _run(library, "copy", "x", "y", 8, x=x, y=((64,), "u4"), byte_offsets={"y": 8})


def test_refuses_to_write_to_an_input(library: Library):
    with pytest.raises(EmulationError, match=r"store to x in line .*it is an input"):
        _run(library, "stores", "x", 0, x=np.zeros(4, np.float32))


def test_refuses_to_read_through_the_cache_that_does_not_see_stores(library: Library):
    with pytest.raises(EmulationError, match="stores to it and __ldg in one launch"):
        _run(library, "loads_after_store", "y", y=((4,), np.float32))


@pytest.mark.parametrize("num_bytes", [400, 100_000])
def test_has_dynamic_shared_memory(library: Library, num_bytes: int):
    arguments = ("dynamic_shared", "y", num_bytes, 100_000)
    y = ((1,), np.float32)
    assert _run(library, *arguments, num_bytes // 4, y=y)["y"] == num_bytes // 4 - 1
    with pytest.raises(EmulationError, match=f"past its {num_bytes} bytes of dynamic"):
        _run(library, *arguments, num_bytes // 4 + 1, y=y)


@pytest.mark.parametrize(("num_bytes", "allowed"), [(401, 400), (8, 300_000)])
def test_refuses_too_much_shared_memory(library: Library, num_bytes, allowed):
    with pytest.raises(EmulationError, match="cudaErrorInvalidValue"):
        _run(library, "dynamic_shared", "y", num_bytes, allowed, 1, y=((1,), "f4"))


# Traffic.


def test_counts_the_bytes_of_a_copy(library: Library):
    x = np.zeros(4 * 1000, np.uint32)
    y = (x.shape, x.dtype)
    result = _run(library, "copy", "x", "y", 1000, x=x, y=y, counts_traffic=True)
    read, written = result.traffic["x"], result.traffic["y"]
    for quantity in ("requested", "l2", "least_l2", "hbm"):
        assert getattr(read, f"{quantity}_read") == x.nbytes
        assert getattr(read, f"{quantity}_written") == 0
        assert getattr(written, f"{quantity}_read") == 0
        assert getattr(written, f"{quantity}_written") == x.nbytes
    assert read.read_requests == written.write_requests == 32
    assert result.total("hbm_read") == x.nbytes


def test_counts_the_sectors_of_scattered_access(library: Library):
    x = np.zeros(128, np.float32)
    y = (x.shape, x.dtype)
    result = _run(library, "copy_every_other", "x", "y", x=x, y=y, counts_traffic=True)
    read, written = result.traffic["x"], result.traffic["y"]
    assert (read.requested_read, read.least_l2_read, read.l2_read) == (256, 256, 512)
    assert written.l2_written == 512
    assert written.write_requests == 2


@pytest.mark.parametrize("seed", range(4))
def test_joins_the_lanes_of_a_request(library: Library, seed: int):
    x = np.zeros(32, np.float32)
    options = {"counts_traffic": True, "seed": seed}
    y = ((96,), np.float32)
    result = _run(library, "copy_all_but_first", "x", "y", x=x, y=y, **options)
    assert result.traffic["x"].read_requests == 1
    assert result.traffic["y"].write_requests == 3


def _read(library: Library, num_bytes: int, *, blocks: int, times: int, l2_bytes: int):
    x = np.zeros(num_bytes // 4, np.float32)
    arguments = ("x", "y", num_bytes // 16, blocks, times)
    y = ((64 * blocks,), np.float32)
    options = {"counts_traffic": True, "l2_bytes": l2_bytes}
    return _run(library, "read_again", *arguments, x=x, y=y, **options).traffic


@pytest.mark.parametrize("blocks", [1, 16])
def test_reads_what_fits_into_the_cache_once(library: Library, blocks: int):
    traffic = _read(library, 1 << 19, blocks=blocks, times=3, l2_bytes=1 << 20)
    assert traffic["x"].l2_read == 3 << 19
    assert traffic["x"].hbm_read == 1 << 19
    assert traffic["y"].hbm_written == 256 * blocks


@pytest.mark.parametrize("blocks", [1, 16])
def test_reads_what_does_not_fit_every_time(library: Library, blocks: int):
    traffic = _read(library, 1 << 20, blocks=blocks, times=3, l2_bytes=1 << 19)
    assert traffic["x"].hbm_read > 0.95 * (3 << 20)


# Host functions.


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 1, 1, 32, 1, 1),
        (1, 1, 1, 0, 1, 1),
        (1, 65536, 1, 1, 1, 1),
        (1, 1, 65536, 1, 1, 1),
        (1, 1, 1, 1025, 1, 1),
        (1, 1, 1, 64, 32, 1),
        (1, 1, 1, 1, 1, 65),
    ],
)
def test_refuses_a_launch(library: Library, sizes):
    with pytest.raises(EmulationError, match="cudaErrorInvalidConfiguration"):
        _run(library, "nothing", *sizes)


def test_launches_the_largest_block(library: Library):
    assert _run(library, "nothing", 1, 1, 1, 16, 1, 64).num_launches == 1


def test_fails_as_told(library: Library):
    options = {"failing_launch": 0, "launch_error": 701}
    with pytest.raises(EmulationError, match="cudaErrorLaunchOutOfResources"):
        _run(library, "nothing", 1, 1, 1, 1, 1, 1, **options)


@pytest.mark.parametrize(
    ("options", "block_size", "expected"),
    [
        ({}, 256, [132, 8]),
        ({}, 33, [132, 32]),
        ({"num_sms": 3, "threads_per_sm": 1536}, 1024, [3, 1]),
        ({"blocks_per_sm": 5}, 256, [132, 5]),
    ],
)
def test_is_the_device_of_the_options(library, options, block_size, expected):
    y = ((2,), np.int32)
    result = _run(library, "device", "y", block_size, y=y, **options)
    np.testing.assert_array_equal(result["y"], expected)


# Conversions.


def _floats() -> np.ndarray:
    """Returns all 16-bit floats, the midpoints between them, and neighbours of both."""
    halves = np.arange(65536, dtype=np.uint16)
    bfloat16 = halves.view(ml_dtypes.bfloat16).astype(np.float32)
    float16 = halves.view(np.float16).astype(np.float32)
    float16 = np.sort(float16[np.isfinite(float16)])
    between = (float16[1:] + float16[:-1]) / 2
    exact = np.concatenate([bfloat16, float16, between]).view(np.uint32)
    exact = np.concatenate([exact, exact[:65536] + 0x8000])
    offsets = np.arange(-2, 3)[:, None]
    return (exact + offsets).astype(np.uint32).ravel().view(np.float32)


def _bits(array: np.ndarray) -> np.ndarray:
    """Returns the bits, with all NaNs mapped to one."""
    bits = array.view(np.uint16)
    return np.where(np.isnan(array.astype(np.float32)), np.uint16(0x7FFF), bits)


def _narrow(library: Library, x: np.ndarray) -> Result:
    outputs = {name: (x.shape, np.uint16) for name in ("bfloat16", "half")}
    arguments = ["x", "bfloat16", "half", ctypes.c_int(x.size)]
    return library.run("narrow", arguments, inputs={"x": x}, outputs=outputs)


def test_rounds_to_nearest_even(library: Library):
    x = _floats()
    result = _narrow(library, x)
    with np.errstate(over="ignore", invalid="ignore"):
        bfloat16, half = x.astype(ml_dtypes.bfloat16), x.astype(np.float16)
    np.testing.assert_array_equal(result["bfloat16"], _bits(bfloat16))
    np.testing.assert_array_equal(result["half"], _bits(half))


def test_widens_exactly(library: Library):
    outputs = {name: ((65536,), np.float32) for name in ("bfloat16", "half")}
    result = library.run("widen", ["bfloat16", "half"], inputs={}, outputs=outputs)
    bits = np.arange(65536, dtype=np.uint16)
    for name, dtype in {"bfloat16": ml_dtypes.bfloat16, "half": np.float16}.items():
        expected = bits.view(dtype).astype(np.float32)
        np.testing.assert_array_equal(result[name], expected)
        np.testing.assert_array_equal(np.signbit(result[name]), np.signbit(expected))


def test_says_what_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(emulation, "_EMULATOR", [])
    source = tmp_path / "broken.cu"
    source.write_text("__global__ void Kernel() { undeclared(); }")
    with pytest.raises(EmulationError, match="undeclared"):
        Library([source])
