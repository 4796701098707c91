// Rows from anywhere into one array without gaps: the batch is put together on the GPU.
//
// A warp copies a piece of 2 KiB at a time, its four loads of 16 bytes per thread in flight
// together: what a copy over the link needs is bytes in flight, not threads. Row addresses are
// read once per block, beside the row count, so that only one round trip comes before the data.

typedef unsigned long long u64;

#define GATHER_PIECE_BYTES 2048
#define GATHER_CACHED_ROWS 1024

// Read once and never written while the kernel runs: past the L1, by the read-only path.
__device__ __forceinline__ uint4 gather_load(const uint4 *from)
{
    uint4 part;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(part.x), "=r"(part.y), "=r"(part.z), "=r"(part.w)
                 : "l"(from));
    return part;
}

__device__ __forceinline__ unsigned gather_load(const unsigned *from)
{
    return __ldg(from);
}

__device__ __forceinline__ unsigned char gather_load(const unsigned char *from)
{
    return __ldg(from);
}

template <typename Part>
__device__ __forceinline__ void gather_piece(u64 to, u64 from, unsigned nbytes, unsigned lane)
{
    const Part *source = reinterpret_cast<const Part *>(from);
    Part *target = reinterpret_cast<Part *>(to);
    const unsigned count = nbytes / sizeof(Part);
    for (unsigned begin = lane; begin < count; begin += 4 * 32) {
        Part parts[4];
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
            if (begin + 32 * i < count)
                parts[i] = gather_load(source + begin + 32 * i);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
            if (begin + 32 * i < count)
                target[begin + 32 * i] = parts[i];
    }
}

__device__ __forceinline__ void gather_zeroes(u64 to, unsigned nbytes, unsigned lane)
{
    unsigned char *target = reinterpret_cast<unsigned char *>(to);
    if ((to | nbytes) % 16 == 0)
        for (unsigned at = 16 * lane; at < nbytes; at += 16 * 32)
            *reinterpret_cast<uint4 *>(target + at) = make_uint4(0, 0, 0, 0);
    else
        for (unsigned at = lane; at < nbytes; at += 32)
            target[at] = 0;
}

__device__ __forceinline__ void gather_copy(u64 to, u64 from, unsigned nbytes, unsigned lane)
{
    const u64 alignment = to | from | nbytes;
    if (alignment % 16 == 0)
        gather_piece<uint4>(to, from, nbytes, lane);
    else if (alignment % 4 == 0)
        gather_piece<unsigned>(to, from, nbytes, lane);
    else
        gather_piece<unsigned char>(to, from, nbytes, lane);
}

extern "C" __global__ void gather_rows(u64 table, u64 rows_word, u64 target, u64 row_bytes,
                                       u64 capacity_rows)
{
    __shared__ u64 sources[GATHER_CACHED_ROWS];
    __shared__ u64 rows;
    const volatile u64 *addresses = reinterpret_cast<const volatile u64 *>(table);
    for (unsigned row = threadIdx.x; row < capacity_rows && row < GATHER_CACHED_ROWS;
         row += blockDim.x)
        sources[row] = addresses[row];
    if (threadIdx.x == 0)
        rows = *reinterpret_cast<const volatile u64 *>(rows_word);
    __syncthreads();

    const unsigned lane = threadIdx.x % 32;
    const u64 warps = static_cast<u64>(gridDim.x) * (blockDim.x / 32);
    const u64 pieces = (row_bytes + GATHER_PIECE_BYTES - 1) / GATHER_PIECE_BYTES;
    u64 piece = static_cast<u64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    for (; piece < capacity_rows * pieces; piece += warps) {
        const u64 row = piece / pieces;
        const u64 offset = (piece % pieces) * GATHER_PIECE_BYTES;
        const u64 left = row_bytes - offset;
        const unsigned nbytes = left < GATHER_PIECE_BYTES ? left : GATHER_PIECE_BYTES;
        const u64 to = target + row * row_bytes + offset;
        if (row >= rows) {
            gather_zeroes(to, nbytes, lane);
            continue;
        }
        const u64 from = (row < GATHER_CACHED_ROWS ? sources[row] : addresses[row]) + offset;
        gather_copy(to, from, nbytes, lane);
    }
}

// Rows of a lookup table, wherever it lies: on the host, only what is looked up crosses the link.
// An index that the table has no row for takes the nearest row.
extern "C" __global__ void embed_rows(u64 indices, u64 index_bytes, u64 count, u64 table_word,
                                      u64 target, u64 row_bytes, u64 table_rows)
{
    const u64 table = *reinterpret_cast<const volatile u64 *>(table_word);
    const unsigned lane = threadIdx.x % 32;
    const u64 warps = static_cast<u64>(gridDim.x) * (blockDim.x / 32);
    const u64 pieces = (row_bytes + GATHER_PIECE_BYTES - 1) / GATHER_PIECE_BYTES;
    const long long last = static_cast<long long>(table_rows) - 1;
    u64 piece = static_cast<u64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    for (; piece < count * pieces; piece += warps) {
        const u64 at = piece / pieces, offset = (piece % pieces) * GATHER_PIECE_BYTES;
        const u64 left = row_bytes - offset;
        long long row = index_bytes == 8 ? reinterpret_cast<const long long *>(indices)[at]
                                         : reinterpret_cast<const int *>(indices)[at];
        row = row < 0 ? 0 : row > last ? last : row;
        gather_copy(target + at * row_bytes + offset, table + row * row_bytes + offset,
                    left < GATHER_PIECE_BYTES ? left : GATHER_PIECE_BYTES, lane);
    }
}
