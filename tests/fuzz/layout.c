/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes layouts against lists of owned indices: a few bytes describe a mesh, an array and its
 * placements. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds argv[1] fixed
 * pseudo-random inputs. Run with: tests/compile/fuzz.sh. */
#include "dpar.h"

#include <stdlib.h>
#include <string.h>

#include "layout_oracle.h"
#include "layout_bytes.h"

static void check_rank(const dpar_layout *l, int rank)
{
    int list[64], d, i, k, n;
    int32_t coord[DPAR_MAX_AXES], found[DPAR_MAX_AXES];
    int64_t shape[DPAR_MAX_DIMS], offset[DPAR_MAX_DIMS], local, run;
    must(dpar_mesh_coords(&l->mesh, rank, coord));
    must(dpar_mesh_rank(&l->mesh, coord) == rank);
    dpar_layout_local(l, rank, shape, offset);
    for (d = 0; d < l->dims; d++) {
        n = owned(l, coord, d, list);
        must(shape[d] == n);
        must(offset[d] == (n > 0 ? list[0] : l->extent[d]));
        must(dpar_layout_global(l, rank, d, n, &run) == -1);
        for (i = 0, k = 0; i < l->extent[d]; i++) {
            int here = k < n && list[k] == i;
            must(dpari_layout_before(l, rank, d, i) == k);
            memcpy(found, coord, sizeof found);
            must(dpar_layout_locate(l, d, i, found, &local, &run));
            must((memcmp(found, coord, (size_t)l->mesh.axes * sizeof found[0]) == 0) == here);
            if (here) {
                must(local == k && dpar_layout_global(l, rank, d, k, NULL) == i);
                for (k++; run > 1; run--, k++, i++) {
                    must(k < n && list[k] == i + 1);
                    must(dpari_layout_before(l, rank, d, i + 1) == k);
                }
                must(k == n || list[k] != i + 1);
            }
        }
    }
}

static void check_boxes(const dpar_layout *l, int rank)
{
    dpar_box_cursor cursor;
    dpar_box box;
    int64_t elements = 0, at[DPAR_MAX_DIMS];
    int d;
    memset(&cursor, 0, sizeof cursor);
    while (dpar_layout_next(l, rank, &cursor, &box, at)) {
        for (d = 0; d < l->dims; d++) {
            must(dpari_layout_before(l, rank, d, box.lo[d]) == at[d]);
        }
        elements += dpar_box_volume(&box);
    }
    must(elements == dpar_layout_count(l, rank));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes from;
    dpar_mesh mesh;
    dpar_layout l;
    int64_t extent[DPAR_MAX_DIMS], cuts[DPAR_MAX_AXES][8];
    int32_t dims, rank;
    from.data = data;
    from.left = size;
    mesh = take_mesh(&from, 24);
    dims = take_extents(&from, extent, 40);
    if (take_layout(&from, &l, &mesh, dims, extent, cuts) != DPAR_OK) {
        return 0;
    }
    for (rank = mesh.first_rank; rank < mesh.first_rank + mesh.size; rank++) {
        check_rank(&l, rank);
        check_boxes(&l, rank);
    }
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
int main(int argc, char **argv)
{
    return feed_random(argc > 1 ? atol(argv[1]) : 100000);
}
#endif
