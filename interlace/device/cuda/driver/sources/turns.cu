// A batch begins and ends: which parameters are its own, and when it was.
//
// Two parameter blocks take turns in mapped memory, so that a batch is described while the one
// before it runs. What kernels in between need of the block is read over the link once, here.

typedef unsigned long long u64;

// Words of a block, as in memory/parameters.py.
#define TURNS_SEQUENCE 1
#define TURNS_BEGAN 2
#define TURNS_ENDED 3

__device__ __forceinline__ u64 turns_now_ns()
{
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// One block of threads. Whoever's turn it is, both blocks and the turn are asked for together.
extern "C" __global__ void begin(u64 blocks, u64 words, u64 turn_word, u64 target)
{
    const u64 now = turns_now_ns();
    volatile u64 *turns = reinterpret_cast<volatile u64 *>(turn_word);
    const volatile u64 *even = reinterpret_cast<const volatile u64 *>(blocks);
    const volatile u64 *odd = even + words;
    u64 *own = reinterpret_cast<u64 *>(target);
    const u64 turn = *turns;
    for (u64 at = threadIdx.x; at < words; at += blockDim.x) {
        const u64 first = even[at], second = odd[at];
        own[at] = turn % 2 ? second : first;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const u64 mine = blocks + (turn % 2 ? words * sizeof(u64) : 0);
        reinterpret_cast<volatile u64 *>(mine)[TURNS_BEGAN] = now;
        own[TURNS_ENDED] = mine + TURNS_ENDED * sizeof(u64);  // where, instead of when
        *turns = turn + 1;
    }
}

// The host reads the flag with acquire order: what was published before is then visible to it.
extern "C" __global__ void finish(u64 flag, u64 block)
{
    if (blockIdx.x != 0 || threadIdx.x != 0)
        return;
    const volatile u64 *own = reinterpret_cast<const volatile u64 *>(block);
    const u64 sequence = own[TURNS_SEQUENCE], ended = own[TURNS_ENDED];
    *reinterpret_cast<volatile u64 *>(ended) = turns_now_ns();
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(flag), "l"(sequence) : "memory");
}
