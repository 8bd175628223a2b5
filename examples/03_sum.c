/* SPDX-License-Identifier: MIT-0 */
/* 03 - four ranks add up their numbers. With the argument `die` one of them is killed, and the
 * others end with an error that names it.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/03_sum.c -o build/03 && build/03 --ranks 4
 *
 *   the sum of 1 to 4 is 10, the largest is 4
 *
 *   build/03 --ranks 4 die; echo "exit code $?"
 *
 *   the sum of 1 to 4 is 10, the largest is 4
 *   rank ... of 4: all-reduce #3 (1 f64, avg) of 4 ranks: rank 2 was killed by signal 9 ...
 *   exit code 1
 *
 * The same program runs under mpiexec -n 4 build/03, srun and torchrun.
 */
#include "dpar_comm.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

static int work(dpar_comm *world, void *arg)
{
    const int *dies = (const int *)arg;
    const double sum = dpar_sum(world, world->rank + 1);
    const double largest = dpar_max(world, world->rank + 1);
    if (world->rank == 0) {
        printf("the sum of 1 to %d is %g, the largest is %g\n", (int)world->size, sum, largest);
    }
    if (*dies && world->rank == 2) {
        raise(SIGKILL);
    }
    dpar_mean(world, 1); /* the third all-reduce, which the killed rank never reaches */
    if (world->status < 0) {
        return dpar_fail(world, NULL); /* one rank prints world->why */
    }
    return 0;
}

int main(int argc, char **argv)
{
    int dies = argc > 1 && strcmp(argv[argc - 1], "die") == 0;
    return dpar_launch_main(argc, argv, work, &dies);
}
