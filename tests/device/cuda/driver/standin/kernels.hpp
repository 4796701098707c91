// CUDA C++ on a CPU, as far as our kernels need it: a thread per thread, blocks one after another.
#pragma once

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

struct Dim {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline thread_local Dim threadIdx, blockIdx, blockDim, gridDim;
inline thread_local unsigned standin_sm;
inline std::unique_ptr<std::barrier<>> standin_barrier;

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __syncthreads() standin_barrier->arrive_and_wait()

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

template <typename Part> Part __ldg(const Part *from)
{
    return *from;
}

inline void __threadfence_system()
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

inline unsigned long long atomicAdd(unsigned long long *word, unsigned long long more)
{
    return __atomic_fetch_add(word, more, __ATOMIC_RELAXED);
}

inline unsigned long long standin_now_ns()
{
    return std::chrono::steady_clock::now().time_since_epoch().count();
}

template <typename Body>
void standin_run(Dim grid, Dim block, const std::vector<unsigned> &sms, Body body)
{
    for (unsigned at = 0; at < grid.x; ++at) {
        standin_barrier = std::make_unique<std::barrier<>>(block.x);
        std::vector<std::thread> threads;
        for (unsigned thread = 0; thread < block.x; ++thread)
            threads.emplace_back([&, thread] {
                threadIdx = {thread, 0, 0};
                blockIdx = {at, 0, 0};
                blockDim = block;
                gridDim = grid;
                standin_sm = sms[at % sms.size()];
                body();
            });
        for (std::thread &one : threads)
            one.join();
    }
}
