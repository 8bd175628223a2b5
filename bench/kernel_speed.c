/* SPDX-License-Identifier: MIT-0 */
/* kernel_speed - measures the loops with which the shared-memory engine copies and adds, and
 * compares them with memcpy and with a streaming copy of the same size. Two processes run at once,
 * each on a core and on memory of its own, because that is how ranks run.
 *
 * A round counts as long as the slower process took; printed are the smallest and the median of all
 * rounds. GB/s are the bytes of one array over the median time, in one process. "times the floor"
 * is the time of the loop over that of memcpy, or of the streaming copy if the loop streams: 1
 * means that it is as fast as a copy.
 *
 * It takes no arguments. Exit codes: 0 done; 1 no memory, or no two cores; 2 arguments.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/kernel_speed.c -o build/kernel_speed &&
 *   build/kernel_speed */
#define _GNU_SOURCE
#include "dpar_comm.h"

#include "../helpers/clock.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 31, KERNELS = 13, ARRAYS = 4 };

/* What both processes share: a barrier for two, and the seconds that each took. */
typedef struct meeting {
    volatile uint32_t arrived[2][32]; /* 128 bytes apart */
    volatile double seconds[2];
} meeting;

/* Waits until the other process is here too. `me` is 0 in the parent and 1 in the child. */
static void meet(meeting *common, int me)
{
    const uint32_t round = common->arrived[me][0] + 1;
    __atomic_store_n(&common->arrived[me][0], round, __ATOMIC_RELEASE);
    while ((int32_t)(__atomic_load_n(&common->arrived[1 - me][0], __ATOMIC_ACQUIRE) - round) < 0) {
        if (getppid() == 1) { /* the other process has ended */
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

/* Returns 1 if a kernel stores past the caches. */
static int streams(int kernel)
{
    return kernel == 1 || kernel == 3 || kernel == 8 || kernel == 10 || kernel == 12;
}

/* Returns to how many arrays a kernel writes its sum. */
static int results_of(int kernel)
{
    return (kernel >= 6 && kernel <= 8) || kernel == 12 ? 2 : 1;
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
        dpari_kern_reduce(out, results_of(kernel), in, 2, count, type, DPAR_SUM, streams(kernel));
    }
}

static int by_size(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Times all kernels on arrays of so many bytes and prints a table. The kernels take turns, so that
 * whatever disturbs the machine disturbs all of them. */
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

int main(int argc, char **argv)
{
    static const int64_t sizes[] = {64 << 10, 1 << 20, 64 << 20};
    const size_t capacity = (64 << 20) + 4096;
    void *shared =
        mmap(NULL, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cpu_set_t allowed, mine;
    char *array[ARRAYS];
    int me, i, cpu;
    pid_t child;
    if (argc > 1) {
        fprintf(stderr, "kernel_speed: argument '%s': this program takes no arguments\n", argv[1]);
        return 2;
    }
    if (shared == MAP_FAILED) {
        perror("kernel_speed: no memory that two processes share");
        return 1;
    }
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        perror("kernel_speed: the cores that it may use are not known");
        return 1;
    }
    if (CPU_COUNT(&allowed) < 2) {
        fprintf(stderr, "kernel_speed: it may use %d core; it needs two\n", CPU_COUNT(&allowed));
        return 1;
    }
    child = fork();
    me = child == 0;
    CPU_ZERO(&mine);
    if (child < 0) {
        perror("kernel_speed: the second process cannot be started");
        return 1;
    }
    i = 0;
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) {
            if (i == me) {
                CPU_SET(cpu, &mine);
            }
            i++;
        }
    }
    if (sched_setaffinity(0, sizeof(mine), &mine) != 0) {
        perror("kernel_speed: a process cannot be kept on its core");
        return 1;
    }
    for (i = 0; i < ARRAYS; i++) {
        array[i] = (char *)aligned_alloc(4096, capacity);
        if (array[i] == NULL) {
            fprintf(stderr, "kernel_speed: no memory for array %d of %d (%zu bytes)\n", i + 1,
                    ARRAYS, capacity);
            return 1;
        }
        memset(array[i], 0, capacity); /* sums of zeros stay zero, and cost as much as any others */
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
