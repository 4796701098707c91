// Outputs to memory that the host reads, and the word that says they are there.

typedef unsigned long long u64;

template <typename Part>
__device__ __forceinline__ void publish_parts(u64 to, u64 from, u64 nbytes)
{
    const Part *source = reinterpret_cast<const Part *>(from);
    Part *target = reinterpret_cast<Part *>(to);
    const u64 count = nbytes / sizeof(Part);
    const u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < count;
         at += threads)
        target[at] = source[at];
}

extern "C" __global__ void publish(u64 source, u64 target_word, u64 rows_word, u64 row_bytes)
{
    __shared__ u64 target;
    __shared__ u64 rows;
    if (threadIdx.x == 0) {
        target = *reinterpret_cast<const volatile u64 *>(target_word);
        rows = *reinterpret_cast<const volatile u64 *>(rows_word);
    }
    __syncthreads();
    const u64 nbytes = rows * row_bytes;
    const u64 alignment = source | target | nbytes;
    if (alignment % 16 == 0)
        publish_parts<uint4>(target, source, nbytes);
    else if (alignment % 4 == 0)
        publish_parts<unsigned>(target, source, nbytes);
    else
        publish_parts<unsigned char>(target, source, nbytes);
    __threadfence_system();
}

// The host reads the word with acquire order: what was published before is then visible to it.
extern "C" __global__ void signal(u64 flag, u64 sequence_word)
{
    if (blockIdx.x != 0 || threadIdx.x != 0)
        return;
    const u64 sequence = *reinterpret_cast<const volatile u64 *>(sequence_word);
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(flag), "l"(sequence) : "memory");
}
