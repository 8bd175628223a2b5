/* SPDX-License-Identifier: MIT-0 */
/* layout_bytes - makes meshes, arrays and layouts from a fuzzer's bytes. */
#ifndef DPAR_LAYOUT_BYTES_H
#define DPAR_LAYOUT_BYTES_H

#include "axes.h"
#include "must.h"

typedef struct bytes {
    const uint8_t *data;
    size_t left;
} bytes;

static int take(bytes *b, int below)
{
    if (b->left == 0) {
        return 0;
    }
    b->left--;
    return *b->data++ % below;
}

static inline dpar_mesh take_mesh(bytes *b, int most)
{
    int32_t size[4], axes = take(b, 5), i;
    dpar_mesh m;
    for (i = 0; i < axes; i++) {
        size[i] = 1 + take(b, most < 5 ? most : 5);
        most /= size[i];
    }
    must(dpar_mesh_init(&m, axis_names(axes), size, take(b, 2), 0, NULL) == DPAR_OK);
    m.first_rank = take(b, 4);
    return m;
}

static inline int32_t take_extents(bytes *b, int64_t *extent, int most)
{
    int32_t dims = take(b, 4), d;
    for (d = 0; d < dims; d++) {
        extent[d] = take(b, most);
    }
    return dims;
}

/* Makes any placement, legal or not; cuts[axis] must outlive the layout. */
static inline dpar_status take_layout(bytes *b, dpar_layout *l, const dpar_mesh *mesh, int32_t dims,
                                      const int64_t *extent, int64_t (*cuts)[8])
{
    dpar_placement p[DPAR_MAX_AXES];
    int32_t order[DPAR_MAX_AXES], i, k;
    dpar_why why;
    dpar_status st;
    for (i = 0; i < mesh->axes; i++) {
        int kind = take(b, 8), at = 0;
        order[i] = i;
        p[i] = kind == 0 ? dpar_partial(take(b, DPAR_OP_COUNT + 1)) : dpar_replicate();
        if (kind > 2) {
            p[i] = dpar_shard_by(take(b, 5) - 1, take(b, DPAR_SPLIT_RULE_COUNT + 1), take(b, 6));
            p[i].source = take(b, 4);
        }
        if (p[i].rule == DPAR_SPLIT_RAGGED) {
            int dim = p[i].dim + (p[i].dim < 0 ? dims : 0);
            int64_t end = dim >= 0 && dim < dims ? extent[dim] : 0;
            for (k = 0; k <= mesh->axis[i].size; k++) {
                cuts[i][k] = k == mesh->axis[i].size && at <= end ? end : at;
                at += take(b, 9);
            }
            p[i].cuts = cuts[i];
        }
    }
    for (i = 0; i < mesh->axes; i++) {
        int32_t swap = order[i];
        k = i + take(b, mesh->axes - i);
        order[i] = order[k];
        order[k] = swap;
    }
    cut_in(p, mesh->axes, order);
    st = dpar_layout_init(l, mesh, dims, extent, p, &why);
    must(st == DPAR_OK || why.text[0] != 0);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef DPAR_FUZZ_MAIN
static int feed_random(long runs)
{
    uint8_t data[96];
    uint64_t x = 88172645463325252u;
    for (; runs > 0; runs--) {
        size_t i;
        for (i = 0; i < sizeof data; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            data[i] = (uint8_t)(x >> 24);
        }
        LLVMFuzzerTestOneInput(data, sizeof data);
    }
    return 0;
}
#endif

#endif
