/* SPDX-License-Identifier: MIT-0 */
/* 11 - finds out which rows and columns of which file each rank needs, when 8 ranks read a
 * checkpoint that 6 ranks wrote.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/11_reshard.c -o build/11 && build/11
 *
 *   rank 2 reads 4 x 20 elements of file 1, from its element (4, 0) on
 *   rank 2 reads 8 x 20 elements of file 2, from its element (0, 0) on
 *   8 ranks read 16 boxes; of 1920 elements 0 are wrong
 */
#include "dpar.h"
#include <stdio.h>
enum { ROWS = 48, COLUMNS = 40, WRITERS = 6, READERS = 8 };

/* Returns the element at a place of the whole array. */
static float element(int64_t row, int64_t column)
{
    return (float)(1000 * row + column);
}

int main(void)
{
    static float file[WRITERS][ROWS / WRITERS][COLUMNS]; /* what the files contain */
    const int64_t extent[2] = {ROWS, COLUMNS};
    const int32_t bands[2] = {WRITERS, 1}; /* the writers cut only rows */
    const int32_t blocks[2] = {4, 2};      /* the readers cut rows and columns */
    const dpar_placement cut[2] = {dpar_shard(0), dpar_shard(1)};
    int64_t shape[2], first[2], wrong = 0, boxes = 0;
    dpar_mesh writers, readers;
    dpar_layout saved, wanted;
    dpar_redistribute_cursor cursor;
    dpar_transfer box;
    dpar_why why;
    if (dpar_mesh_init(&writers, "y x", bands, DPAR_ORDER_LAST_FASTEST, 0, &why) < 0 ||
        dpar_mesh_init(&readers, "y x", blocks, DPAR_ORDER_LAST_FASTEST, 0, &why) < 0 ||
        dpar_layout_init(&saved, &writers, 2, extent, cut, &why) < 0 ||
        dpar_layout_init(&wanted, &readers, 2, extent, cut, &why) < 0) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    for (int32_t rank = 0; rank < WRITERS; rank++) {
        dpar_layout_local(&saved, rank, shape, first);
        for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
            const int64_t y = i / shape[1], x = i % shape[1];
            file[rank][y][x] = element(first[0] + y, first[1] + x);
        }
    }
    for (int32_t rank = 0; rank < READERS; rank++) { /* computes its list without communication */
        dpar_redistribute_first(&cursor, &saved, &wanted, rank, DPAR_TRANSFER_RECV,
                                DPAR_REDISTRIBUTE_PRIMARY);
        while (dpar_redistribute_next(&cursor, &box)) {
            const int64_t *from = box.theirs; /* the box's first element in the file */
            if (rank == 2) {
                printf("rank 2 reads %d x %d elements of file %d, from its element (%d, %d) on\n",
                       (int)box.extent[0], (int)box.extent[1], (int)box.peer, (int)from[0],
                       (int)from[1]);
            }
            for (int64_t i = 0; i < box.extent[0] * box.extent[1]; i++) {
                const int64_t y = i / box.extent[1], x = i % box.extent[1];
                const float read = file[box.peer][from[0] + y][from[1] + x];
                wrong += read != element(box.global[0] + y, box.global[1] + x);
            }
            boxes++;
        }
    }
    printf("8 ranks read %d boxes; of 1920 elements %d are wrong\n", (int)boxes, (int)wrong);
    return wrong != 0;
}
