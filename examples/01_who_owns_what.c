/* SPDX-License-Identifier: MIT-0 */
/* 01 - a matrix of 10 x 6 on 2 x 2 ranks: which part does each rank own, and who owns one element?
 *
 *   cc -DDPAR_IMPLEMENTATION -I. examples/01_who_owns_what.c -o 01 && ./01
 *
 *   rank 0: rows 0 to 4, columns 0 to 2
 *   rank 1: rows 0 to 4, columns 3 to 5
 *   rank 2: rows 5 to 9, columns 0 to 2
 *   rank 3: rows 5 to 9, columns 3 to 5
 *   element (7, 4) is on rank 3, at (2, 1) of its array
 */
#include "dpar.h"
#include <stdio.h>

int main(void)
{
    const int32_t ranks[2] = {2, 2};
    const int64_t extent[2] = {10, 6}, element[2] = {7, 4};
    int64_t shape[2], first[2], at[2] = {0, 0};
    dpar_placement cut[2];
    dpar_mesh mesh;
    dpar_layout matrix;
    dpar_why why;
    int32_t rank, owner;
    cut[0] = dpar_shard(0); /* the first mesh axis cuts the rows */
    cut[1] = dpar_shard(1); /* the second cuts the columns */
    if (dpar_mesh_init(&mesh, "y x", ranks, DPAR_LAST_FASTEST, 0, &why) < 0 ||
        dpar_layout_init(&matrix, &mesh, 2, extent, cut, &why) < 0) {
        puts(why.text);
        return 1;
    }
    for (rank = 0; rank < 4; rank++) {
        dpar_layout_local(&matrix, rank, shape, first);
        printf("rank %d: rows %d to %d, columns %d to %d\n", (int)rank, (int)first[0],
               (int)(first[0] + shape[0] - 1), (int)first[1], (int)(first[1] + shape[1] - 1));
    }
    owner = dpar_layout_owner(&matrix, element, 0, at);
    printf("element (7, 4) is on rank %d, at (%d, %d) of its array\n", (int)owner, (int)at[0],
           (int)at[1]);
    return 0;
}
