/* SPDX-License-Identifier: MIT-0 */
/* layout_oracle: the indices that a rank owns, by the definition of each rule, cut by cut. Include
 * it after dpar.h. */
#ifndef DPAR_LAYOUT_ORACLE_H
#define DPAR_LAYOUT_ORACLE_H

#include "split_oracle.h"

/* Writes the indices of a dim that the ranks at coord own to list[]. Returns how many. */
static int owned(const dpar_layout *l, const int32_t *coord, int dim, int *list)
{
    int n = (int)l->extent[dim], i, k, kept;
    for (i = 0; i < n; i++) {
        list[i] = i;
    }
    for (k = 0; k < l->mesh.axes; k++) {
        int axis = l->order[k], p = l->mesh.axis[axis].size;
        const dpar_placement *how = &l->axis[axis];
        if (how->kind != DPAR_PLACEMENT_SHARD || how->dim != dim) {
            continue;
        }
        for (i = 0, kept = 0; i < n; i++) {
            int mine =
                how->rule == DPAR_SPLIT_RAGGED
                    ? how->cuts[coord[axis]] <= i && i < how->cuts[coord[axis] + 1]
                    : owner_of(how->rule, i, n, p, (int)how->block, how->source) == coord[axis];
            if (mine) {
                list[kept++] = list[i];
            }
        }
        n = kept;
    }
    return n;
}

#endif
