/* SPDX-License-Identifier: MIT-0 */
/* cube_space: the positions in space of points on cells of a cubed sphere, on the surface of a
 * cube, and the directions of their components there. Beyond an edge of its face the plane is bent
 * down. Only the frames of the faces are taken from halo.h, but no edge, turn or neighbour. */
#ifndef CUBE_SPACE_H
#define CUBE_SPACE_H

/* Outward, x and y of each face: axis 1, 2 or 3, negative for the opposite direction. */
static const int cube_frame[6][3] = {{1, 2, 3},    {2, -1, 3},  {3, -1, -2},
                                     {-1, -3, -2}, {-2, -3, 1}, {-3, 2, 1}};

static int64_t cube_size(int64_t v)
{
    return v < 0 ? -v : v;
}

static void cube_add(int64_t *p, int axis, int64_t times)
{
    p[cube_size(axis) - 1] += axis < 0 ? -times : times;
}

/* Returns twice the distance of point i from the middle of a face, for cell centres, lower and
 * upper cell faces. */
static int64_t cube_along(int64_t n, int32_t points, int64_t i)
{
    return 2 * i - n +
           (points == DPAR_HALO_AT_CELLS       ? 1
            : points == DPAR_HALO_AT_LOW_FACES ? 0
                                               : 2);
}

/* Returns one name for a direction: on a cube's edge the direction out of one face is the direction
 * into the other. */
static int cube_direction(int64_t n, const int64_t *p, int axis)
{
    int d, own = (int)cube_size(axis) - 1;
    for (d = 0; d < own && cube_size(p[own]) == n; d++) {
        if (cube_size(p[d]) == n) { /* its end continues in that of an earlier axis */
            const int off = (axis > 0) == (p[own] > 0);
            return (off == (p[d] > 0) ? -1 : 1) * (d + 1);
        }
    }
    return axis;
}

/* Returns where point x is on a cube from -n to n. Component 0 is u along the last dim, component 1
 * is v along the one before. Sets *direction to the component's axis. Returns 0 beyond two
 * edges. */
static int cube_position(const dpar_halo *h, int component, const int64_t *x, int64_t *p,
                         int *direction)
{
    const int32_t last = h->grid.dims - 1;
    const int64_t n = h->grid.extent[last];
    const int *f = cube_frame[x[0]];
    const int64_t a = cube_along(n, h->points[last], x[last]);
    const int64_t b = cube_along(n, h->points[last - 1], x[last - 1]);
    const int64_t ea = cube_size(a) - n, eb = cube_size(b) - n;
    if ((ea > 0 && eb > 0) || ea > 2 * n || eb > 2 * n) {
        return 0;
    }
    p[0] = p[1] = p[2] = 0;
    cube_add(p, f[0], n - (ea > 0 ? ea : 0) - (eb > 0 ? eb : 0));
    cube_add(p, f[1], ea > 0 ? (a > 0 ? n : -n) : a);
    cube_add(p, f[2], eb > 0 ? (b > 0 ? n : -n) : b);
    if (component == 0) {
        *direction = ea > 0 ? (a > 0 ? -f[0] : f[0]) : f[1];
    } else {
        *direction = eb > 0 ? (b > 0 ? -f[0] : f[0]) : f[2];
    }
    *direction = cube_direction(n, p, *direction);
    return 1;
}

#endif
