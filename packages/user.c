/* SPDX-License-Identifier: MIT-0 */
/* What every package must build: ranks that run. The sum of the ranks of three is 3. */
#include "dpar_comm.h"

static int rank(dpar_comm *world, void *unused)
{
    int32_t mine = world->rank, sum = -1;
    (void)unused;
    return dpar_all_reduce(world, &mine, &sum, 1, DPAR_I32, DPAR_SUM, NULL) != DPAR_OK || sum != 3;
}

int main(void)
{
    return dpar_launch(3, rank, NULL, NULL, NULL) != DPAR_OK;
}
