/* SPDX-License-Identifier: MIT-0 */
/* 01 - who owns what: of a row, and of a grid.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/01_who_owns_what.c -o build/01 && build/01
 *
 *   1000 rows in 7 chunks: part 3 has 143, from 429 on; row 500 is of part 3
 *   6 x 20 cells on 6 ranks, as 3 x 2:
 *   0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 1 1
 *   0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 1 1
 *   2 2 2 2 2 2 2 2 2 2 3 3 3 3 3 3 3 3 3 3
 *   2 2 2 2 2 2 2 2 2 2 3 3 3 3 3 3 3 3 3 3
 *   4 4 4 4 4 4 4 4 4 4 5 5 5 5 5 5 5 5 5 5
 *   4 4 4 4 4 4 4 4 4 4 5 5 5 5 5 5 5 5 5 5
 *   rank 5 has 2 x 10 cells, from (4, 10) on
 */
#include "dpar.h"
#include <stdio.h>

int main(void)
{
    const int64_t cells[2] = {6, 20};
    int32_t parts[2] = {0, 0}; /* 0: to be chosen */
    int64_t first[2] = {0}, count[2] = {0}, cell[2];
    dpar_why why;

    /* a row: by the rule of torch.chunk, MPI's darray and others; 7 more rules have names */
    dpar_split_range(DPAR_SPLIT_CHUNK, 1000, 7, 3, &first[0], &count[0]);
    printf("1000 rows in 7 chunks: part 3 has %d, from %d on; row 500 is of part %d\n",
           (int)count[0], (int)first[0], (int)dpar_split_owner(DPAR_SPLIT_CHUNK, 1000, 7, 500));

    /* a grid: as MPI_Dims_create and MPI_Cart */
    if (dpar_cart_dims(6, 2, parts, &why) < 0) {
        return puts(why.text);
    }
    printf("6 x 20 cells on 6 ranks, as %d x %d:\n", (int)parts[0], (int)parts[1]);
    for (cell[0] = 0; cell[0] < cells[0]; cell[0]++) {
        for (cell[1] = 0; cell[1] < cells[1]; cell[1]++) {
            printf("%d%s", (int)dpar_cart_owner(2, cells, parts, cell),
                   cell[1] + 1 < cells[1] ? " " : "\n");
        }
    }
    dpar_cart_range(2, cells, parts, 5, first, count);
    printf("rank 5 has %d x %d cells, from (%d, %d) on\n", (int)count[0], (int)count[1],
           (int)first[0], (int)first[1]);
    return 0;
}
