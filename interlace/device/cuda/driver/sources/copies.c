// Copies, records and waits in one call, without the interpreter between them.

#include <stdint.h>

typedef int (*copy_call)(uint64_t, uint64_t, uint64_t, uint64_t);
typedef int (*record_call)(uint64_t, uint64_t);
typedef int (*wait_call)(uint64_t, uint64_t, unsigned);

enum { COPY, RECORD, WAIT };

// Steps of four words: what, then (target, source, bytes) or an event. 0, or (step + 1) << 32 and
// the status of the step that failed.
uint64_t copy_groups(const uint64_t *words, uint64_t steps, uint64_t stream, copy_call copy,
                     record_call record, wait_call wait)
{
    for (uint64_t at = 0; at < steps; ++at, words += 4) {
        const int status = words[0] == COPY     ? copy(words[1], words[2], words[3], stream)
                           : words[0] == RECORD ? record(words[1], stream)
                                                : wait(stream, words[1], 0);
        if (status)
            return (at + 1) << 32 | (uint32_t)status;
    }
    return 0;
}
