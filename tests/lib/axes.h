/* SPDX-License-Identifier: MIT-0 */
/* axes: names for the axes of a test's mesh, whose number the test chooses. */
#ifndef AXES_H
#define AXES_H

#include "dpar.h"

/* Returns "a b c" for 3. axes is 0 to 9, one more than allowed. */
static inline const char *axis_names(int axes)
{
    static const char *const names[] = {
        "",          "a",           "a b",           "a b c",           "a b c d",
        "a b c d e", "a b c d e f", "a b c d e f g", "a b c d e f g h", "a b c d e f g h i"};
    return names[axes];
}

/* Returns a rank's coordinate along an axis; -1 if the rank is outside or the axis does not
 * exist. */
static inline int32_t mesh_coord(const dpar_mesh *m, int32_t rank, int32_t axis)
{
    int32_t coord[DPAR_MAX_AXES];
    return axis >= 0 && axis < m->axes && dpar_mesh_coords(m, rank, coord) ? coord[axis] : -1;
}

/* Sets placements that cut in this order of the axes. */
static inline void cut_in(dpar_placement *p, int32_t axes, const int32_t *order)
{
    int32_t k;
    for (k = 0; k < axes; k++) {
        p[order[k]].order = k;
    }
}

/* Returns the axes of a layout whose placement is of a kind, as bits. */
static inline uint32_t axes_that(const dpar_layout *l, int32_t kind)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < l->mesh.axes; i++) {
        set |= l->axis[i].kind == kind ? 1u << i : 0;
    }
    return set;
}

#endif
