/* SPDX-License-Identifier: MIT-0 */
/* 11 - a checkpoint that 6 ranks wrote is read by 8: which rows and columns of whose file?
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/11_reshard.c -o build/11 && build/11
 *
 *   rank 2 reads 4 x 20 elements of file 1, from its element (4, 0) on
 *   rank 2 reads 8 x 20 elements of file 2, from its element (0, 0) on
 *   8 ranks read 16 boxes; of 1920 elements 0 are wrong
 */
#include "dpar.h"
#include <stdio.h>

int main(void)
{
    const int64_t extent[2] = {48, 40};
    const int32_t bands[2] = {6, 1}, blocks[2] = {4, 2}; /* of rows alone; of rows and columns */
    const dpar_placement cut[2] = {dpar_shard(0), dpar_shard(1)};
    int64_t shape[2], first[2], y, x, i, boxes = 0, wrong = 0;
    dpar_mesh six, eight;
    dpar_layout saved, wanted;
    dpar_redistribute_cursor walk;
    dpar_transfer t;
    int32_t rank;
    FILE *file[6];
    float row[40];
    dpar_mesh_init(&six, "y x", bands, DPAR_ORDER_LAST_FASTEST, 0, NULL);
    dpar_mesh_init(&eight, "y x", blocks, DPAR_ORDER_LAST_FASTEST, 0, NULL);
    dpar_layout_init(&saved, &six, 2, extent, cut, NULL);
    dpar_layout_init(&wanted, &eight, 2, extent, cut, NULL);
    for (rank = 0; rank < 6; rank++) { /* its file has its rows; element (y, x) is 1000 y + x */
        file[rank] = tmpfile();
        dpar_layout_local(&saved, rank, shape, first);
        for (i = 0; i < shape[0] * shape[1]; i++) {
            row[0] = (float)(1000 * (first[0] + i / shape[1]) + i % shape[1]);
            fwrite(row, sizeof *row, 1, file[rank]);
        }
    }
    for (rank = 0; rank < 8; rank++) { /* each finds its boxes alone, without asking the others */
        dpar_redistribute_first(&walk, &saved, &wanted, rank, DPAR_TRANSFER_RECV,
                                DPAR_REDISTRIBUTE_PRIMARY);
        for (; dpar_redistribute_next(&walk, &t); boxes++) {
            if (rank == 2) {
                printf("rank 2 reads %d x %d elements of file %d, from its element (%d, %d) on\n",
                       (int)t.extent[0], (int)t.extent[1], (int)t.peer, (int)t.theirs[0],
                       (int)t.theirs[1]);
            }
            for (y = 0; y < t.extent[0]; y++) { /* a row of a file has 40 elements */
                fseek(file[t.peer], (long)(4 * (40 * (t.theirs[0] + y) + t.theirs[1])), SEEK_SET);
                wrong += fread(row, 4, (size_t)t.extent[1], file[t.peer]) < 1;
                for (x = 0; x < t.extent[1]; x++) {
                    wrong += (int64_t)row[x] != 1000 * (t.global[0] + y) + t.global[1] + x;
                }
            }
        }
    }
    printf("8 ranks read %d boxes; of 1920 elements %d are wrong\n", (int)boxes, (int)wrong);
    return wrong != 0;
}
