/* SPDX-License-Identifier: MIT-0 */
/* kernel_speed - the loops of the shared-memory engine beside memcpy and beside a streaming copy:
 * two processes at once, one a core, each on memory of its own. GB/s are bytes of one array over
 * time, in one process; of every round the slower process counts, of all rounds the smallest and
 * the median time. The ratio is to the floor of the same size: memcpy, or the streaming copy.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/kernel_speed.c -o build/kernel_speed &&
 *   build/kernel_speed
 */
#define _GNU_SOURCE
#include "dpar_comm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 31, KERNELS = 13, ARRAYS = 4 };

/* What both processes see: a barrier of two, and the seconds of each. */
typedef struct meeting {
    volatile uint32_t arrived[2][32]; /* 128 bytes apart */
    volatile double seconds[2];
} meeting;

static double now(void)
{
    struct timespec stamp;
    clock_gettime(CLOCK_MONOTONIC, &stamp);
    return (double)stamp.tv_sec + 1e-9 * (double)stamp.tv_nsec;
}

static void meet(meeting *common, int me)
{
    const uint32_t round = common->arrived[me][0] + 1;
    __atomic_store_n(&common->arrived[me][0], round, __ATOMIC_RELEASE);
    while ((int32_t)(__atomic_load_n(&common->arrived[1 - me][0], __ATOMIC_ACQUIRE) - round) < 0) {
        if (getppid() == 1) { /* the other one is gone */
            _exit(1);
        }
    }
}

static const char *name_of(int kernel)
{
    static const char *const names[KERNELS] = {
        "memcpy",
        "copy, streaming",
        "a = b + c, f32",
        "a = b + c, f32, streaming",
        "a += b, f32",
        "a = b + c, f32, off by 4 bytes",
        "a, b = a + b, f32",
        "a, d = b + c, f32",
        "a, d = b + c, f32, streaming",
        "a = b + c, bf16",
        "a = b + c, bf16, streaming",
        "a = b + c, f16",
        "a, d = b + c, bf16, streaming",
    };
    return names[kernel];
}

static int streams(int kernel)
{
    return kernel == 1 || kernel == 3 || kernel == 8 || kernel == 10 || kernel == 12;
}

static void run(int kernel, char *const *array, int64_t bytes)
{
    const int32_t narrow = kernel == 11 ? DPAR_F16 : DPAR_BF16;
    const int32_t type = kernel < 9 ? DPAR_F32 : narrow;
    const int64_t count = bytes / dpar_type_bytes(type);
    const int shift = kernel == 5 ? 4 : 0;
    const int own = kernel == 4 || kernel == 6;
    const void *in[2];
    void *out[2];
    in[0] = own ? array[0] : array[1] + shift;
    in[1] = own ? array[1] : array[2] + 2 * shift;
    out[0] = array[0] + 3 * shift;
    out[1] = own ? array[1] : array[3];
    if (kernel == 0) {
        memcpy(array[0], array[1], (size_t)bytes);
    } else if (kernel == 1) {
        dpari_kern_copy(array[0], array[1], bytes, 1);
    } else {
        dpari_kern_reduce(out, kernel >= 6 && kernel != 9 && kernel != 10 && kernel != 11 ? 2 : 1,
                          in, 2, count, type, DPAR_SUM, streams(kernel));
    }
}

static int by_size(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Kernels take turns, so that what disturbs the machine disturbs all. */
static void measure(meeting *common, int me, char *const *array, int64_t bytes)
{
    static double taken[KERNELS][ROUNDS];
    const int times = (int)((8 << 20) / bytes) + 1;
    int k, r, t;
    for (r = -1; r < ROUNDS; r++) {
        for (k = 0; k < KERNELS; k++) {
            double since;
            run(k, array, bytes);
            meet(common, me);
            since = now();
            for (t = 0; t < times; t++) {
                run(k, array, bytes);
            }
            common->seconds[me] = (now() - since) / times;
            meet(common, me);
            if (r >= 0) {
                taken[k][r] = common->seconds[common->seconds[1] > common->seconds[0]];
            }
            meet(common, me);
        }
    }
    if (me != 0) {
        return;
    }
    for (k = 0; k < KERNELS; k++) {
        qsort(taken[k], ROUNDS, sizeof(double), by_size);
    }
    printf("\n%lld KiB, two processes         us, smallest / median   GB/s of the median  "
           "times the floor\n",
           (long long)(bytes >> 10));
    for (k = 0; k < KERNELS; k++) {
        const double median = taken[k][ROUNDS / 2], floor = taken[streams(k)][ROUNDS / 2];
        printf("%-32s %10.1f / %8.1f %18.1f %16.2f\n", name_of(k), 1e6 * taken[k][0], 1e6 * median,
               1e-9 * (double)bytes / median, median / floor);
    }
}

int main(void)
{
    static const int64_t sizes[] = {64 << 10, 1 << 20, 64 << 20};
    const size_t room = (64 << 20) + 4096;
    void *shared =
        mmap(NULL, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cpu_set_t allowed, mine;
    char *array[ARRAYS];
    int me, i, cpu;
    pid_t child;
    if (shared == MAP_FAILED || sched_getaffinity(0, sizeof(allowed), &allowed) != 0 ||
        CPU_COUNT(&allowed) < 2) {
        fprintf(stderr,
                "kernel_speed: needs memory that two processes share, and two cores that it "
                "may use\n");
        return 1;
    }
    child = fork();
    me = child == 0;
    CPU_ZERO(&mine);
    for (cpu = 0, i = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && i++ == me) {
            CPU_SET(cpu, &mine);
        }
    }
    if (child < 0) {
        perror("kernel_speed: the second process does not start");
        return 1;
    }
    if (sched_setaffinity(0, sizeof(mine), &mine) != 0) {
        perror("kernel_speed: a process cannot be kept on its core");
        return 1;
    }
    for (i = 0; i < ARRAYS; i++) {
        array[i] = (char *)aligned_alloc(4096, room);
        if (array[i] == NULL) {
            fprintf(stderr, "kernel_speed: no memory for array %d of %d (%zu bytes)\n", i + 1,
                    ARRAYS, room);
            return 1;
        }
        memset(array[i], 0, room); /* zeros: sums of them stay so, and cost as any other */
    }
    for (i = 0; i < 3; i++) {
        measure((meeting *)shared, me, array, sizes[i]);
    }
    if (me == 1) {
        _exit(0);
    }
    waitpid(child, &i, 0);
    return i != 0;
}
