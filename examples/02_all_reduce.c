/* SPDX-License-Identifier: MIT-0 */
/* 02 - four ranks on this machine add up what each of them has. No MPI, no library.
 *
 *   cc -DDPAR_IMPLEMENTATION -I. examples/02_all_reduce.c -o 02 && ./02
 *
 *   rank 0 of 4: the sum of 1 to 4 is 10
 *   rank 1 of 4: the sum of 1 to 4 is 10
 *   rank 2 of 4: the sum of 1 to 4 is 10
 *   rank 3 of 4: the sum of 1 to 4 is 10
 */
#include "dpar_comm.h"
#include <stdio.h>

/* What each rank runs. */
static int each(dpar_comm *world, void *unused)
{
    int32_t mine = world->rank + 1, sum = 0;
    (void)unused;
    if (dpar_all_reduce(world, &mine, &sum, 1, DPAR_I32, DPAR_SUM, NULL) < 0) {
        fprintf(stderr, "%s\n", world->why.text);
        return 1;
    }
    printf("rank %d of %d: the sum of 1 to %d is %d\n", (int)world->rank, (int)world->size,
           (int)world->size, (int)sum);
    return 0;
}

int main(void)
{
    return dpar_launch(4, each, NULL) < 0;
}
