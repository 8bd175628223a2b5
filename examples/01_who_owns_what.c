/* SPDX-License-Identifier: MIT-0 */
/* 01 - finds out which part owns a row, and which rank owns a cell of a grid.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/01_who_owns_what.c -o build/01 && build/01
 *
 *   1000 rows in 7 chunks: part 3 owns 143, from row 429 on; row 500 belongs to part 3
 *   6 x 20 cells on 3 x 2 ranks:
 *   0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 1 1
 *   0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 1 1
 *   2 2 2 2 2 2 2 2 2 2 3 3 3 3 3 3 3 3 3 3
 *   2 2 2 2 2 2 2 2 2 2 3 3 3 3 3 3 3 3 3 3
 *   4 4 4 4 4 4 4 4 4 4 5 5 5 5 5 5 5 5 5 5
 *   4 4 4 4 4 4 4 4 4 4 5 5 5 5 5 5 5 5 5 5
 *   rank 5 owns 2 x 10 cells, from cell (4, 10) on
 */
#include "dpar.h"
#include <stdio.h>

int main(void)
{
    const int64_t cells[2] = {6, 20};
    int32_t parts[2] = {0, 0}; /* 0 lets dpar choose */
    int64_t first[2], count[2], cell[2];
    dpar_why why;

    /* Rows, by the rule of torch.chunk. Other DPAR_SPLIT_x are the rules of other systems. */
    if (dpar_split_range(DPAR_SPLIT_CHUNK, 1000, 7, 3, &first[0], &count[0]) < 0) {
        fprintf(stderr, "there is no part 3\n");
        return 1;
    }
    printf("1000 rows in 7 chunks: part 3 owns %d, from row %d on; row 500 belongs to part %d\n",
           (int)count[0], (int)first[0], (int)dpar_split_owner(DPAR_SPLIT_CHUNK, 1000, 7, 500));

    /* A grid, with the process grid and the ranks of MPI_Dims_create and MPI_Cart_create. */
    if (dpar_cart_dims(6, 2, parts, &why) < 0) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    printf("6 x 20 cells on %d x %d ranks:\n", (int)parts[0], (int)parts[1]);
    for (cell[0] = 0; cell[0] < cells[0]; cell[0]++) {
        for (cell[1] = 0; cell[1] < cells[1]; cell[1]++) {
            printf("%d ", (int)dpar_cart_owner(2, cells, parts, cell));
        }
        printf("\n");
    }
    if (dpar_cart_range(2, cells, parts, 5, first, count) < 0) {
        fprintf(stderr, "there is no rank 5\n");
        return 1;
    }
    printf("rank 5 owns %d x %d cells, from cell (%d, %d) on\n", (int)count[0], (int)count[1],
           (int)first[0], (int)first[1]);
    return 0;
}
