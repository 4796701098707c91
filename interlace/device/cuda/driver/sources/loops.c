/* The poller of flags must not wait for Python. Addresses are 64-bit integers, as ctypes
   and numba hand them over. */
#include <sched.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef uint64_t u64;

static u64 load(u64 address) { return __atomic_load_n((const u64 *)address, __ATOMIC_ACQUIRE); }
static void store(u64 address, u64 value) { __atomic_store_n((u64 *)address, value, __ATOMIC_RELEASE); }

/* Watch flags until told to stop. flags and wanted are addresses of a word per lane, line_bytes
   apart; seen of a word per lane, this function's own. It tells tell_fd of every change, and sleeps
   on wake_fd while each flag has come to what is wanted. scratch is two words: for reads, and one
   that is set to stop. Between sweeps it rests rest_us, or yields if that is 0. */
void watch_flags(u64 flags, u64 wanted, u64 seen, u64 lanes, u64 line_bytes,
                 int tell_fd, int wake_fd, u64 scratch, uint32_t rest_us)
{
    while (load(scratch + sizeof(u64)) == 0) {
        int changed = 0, behind = 0;
        for (u64 lane = 0; lane < lanes; lane++) {
            const u64 flag = load(flags + lane * line_bytes);
            if (flag != load(seen + lane * sizeof(u64))) {
                store(seen + lane * sizeof(u64), flag);
                changed = 1;
            }
            if (flag < load(wanted + lane * line_bytes))
                behind = 1;
        }
        if (changed)
            eventfd_write(tell_fd, 1);
        if (!behind)
            eventfd_read(wake_fd, (eventfd_t *)scratch);
        else if (rest_us == 0)
            sched_yield();
        else
            usleep(rest_us);
    }
}
