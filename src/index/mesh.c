/* SPDX-License-Identifier: MIT-0 */
#include "mesh.h"

#include "../base/arith.h"

/* The one size that is -1 becomes what `ranks` leaves. */
static dpar_status dpari_mesh_infer(dpar_mesh *m, int32_t unknown, int32_t ranks, dpar_why *why)
{
    int64_t rest = 1;
    int32_t i;
    for (i = 0; i < m->axes; i++) {
        if (i != unknown && (!dpari_mul(rest, m->axis[i].size, &rest) || rest > INT32_MAX)) {
            return dpari_say(DPAR_E_RANGE, why, "the mesh has more than 2^31 - 1 ranks", 0, 0, 0,
                             0);
        }
    }
    if (unknown < 0) {
        m->size = (int32_t)rest;
    } else if (ranks % rest != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "the other axes' # ranks do not divide #", rest, ranks,
                         0, 0);
    } else {
        m->axis[unknown].size = (int32_t)(ranks / rest);
        m->size = ranks;
    }
    if (ranks > 0 && m->size != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why, "the axes make # ranks, there are #", m->size, ranks,
                         0, 0);
    }
    return DPAR_OK;
}

static void dpari_mesh_strides(dpar_mesh *m, int32_t order)
{
    int32_t i, stride = 1;
    for (i = 0; i < m->axes; i++) {
        dpar_axis *a = &m->axis[order == DPAR_FIRST_FASTEST ? i : m->axes - 1 - i];
        a->stride = stride;
        stride *= a->size;
    }
}

/* A name is 1 to 15 characters and no other axis has it: a cut or second one could not be found. */
static dpar_status dpari_mesh_name(dpar_mesh *m, int32_t i, const char *name, dpar_why *why)
{
    size_t n = dpari_length(name);
    int32_t k;
    if (n == 0 || n >= sizeof(m->axis[i].name)) {
        return dpari_say_word(DPAR_E_ARG, why,
                              "axis name '@' has # characters: 1 to 15 are allowed", name, n,
                              (int64_t)n, 0, 0, 0);
    }
    for (k = 0; k < i; k++) {
        if (dpari_same(m->axis[k].name, name)) {
            return dpari_say_word(DPAR_E_ARG, why, "axes # and # are both called '@'", name, n, k,
                                  i, 0, 0);
        }
    }
    dpari_copy_text(m->axis[i].name, sizeof(m->axis[i].name), name, n);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mesh_init(dpar_mesh *mesh, int32_t axes, const char *const *names,
                                    const int32_t *sizes, int32_t order, int32_t ranks,
                                    dpar_why *why)
{
    dpar_mesh m;
    dpar_status st;
    int32_t i, unknown = -1;
    if (axes < 0 || axes > DPAR_MAX_AXES || ranks < 0) {
        return dpari_say(DPAR_E_ARG, why, "a mesh has 0 to 8 axes, not #; ranks=#", axes, ranks, 0,
                         0);
    }
    dpari_zero(&m, sizeof(m));
    m.axes = axes;
    for (i = 0; i < axes; i++) {
        if (sizes[i] < 1 && (sizes[i] != -1 || unknown >= 0 || ranks == 0)) {
            return dpari_say_word(DPAR_E_ARG, why,
                                  "axis '@' has size #: sizes are at least 1, and one may be -1 "
                                  "where the number of ranks is given",
                                  names[i], dpari_length(names[i]), sizes[i], 0, 0, 0);
        }
        unknown = sizes[i] == -1 ? i : unknown;
        m.axis[i].size = sizes[i];
        st = dpari_mesh_name(&m, i, names[i], why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = dpari_mesh_infer(&m, unknown, ranks, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_mesh_strides(&m, order);
    *mesh = m;
    return DPAR_OK;
}

DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name)
{
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        if (dpari_same(mesh->axis[i].name, name)) {
            return i;
        }
    }
    return -1;
}

DPAR_API int32_t dpar_mesh_coord(const dpar_mesh *mesh, int32_t rank, int32_t axis)
{
    if (rank < mesh->offset || axis < 0 || axis >= mesh->axes ||
        rank - mesh->offset >= mesh->size) {
        return -1;
    }
    return (rank - mesh->offset) / mesh->axis[axis].stride % mesh->axis[axis].size;
}

DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord)
{
    int32_t i, rank = mesh->offset;
    for (i = 0; i < mesh->axes; i++) {
        if (coord[i] < 0 || coord[i] >= mesh->axis[i].size) {
            return -1;
        }
        rank += coord[i] * mesh->axis[i].stride;
    }
    return rank;
}

/* The chosen axis with the next larger stride than `after`; -1 when there is none. Axes of size 1
 * are passed over. */
static int32_t dpari_mesh_next_axis(const dpar_mesh *mesh, uint32_t which, int32_t after)
{
    int32_t i, best = -1;
    for (i = 0; i < mesh->axes; i++) {
        const dpar_axis *a = &mesh->axis[i];
        if ((which >> i & 1u) && a->size > 1 && a->stride > after &&
            (best < 0 || a->stride < mesh->axis[best].stride)) {
            best = i;
        }
    }
    return best;
}

DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which)
{
    int32_t i, n = 1;
    for (i = 0; i < mesh->axes; i++) {
        n *= which >> i & 1u ? mesh->axis[i].size : 1;
    }
    return n;
}

DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index)
{
    int32_t axis = dpari_mesh_next_axis(mesh, which, 0);
    if (index < 0 || index >= dpar_mesh_group_size(mesh, which) ||
        (mesh->axes > 0 && dpar_mesh_coord(mesh, rank, 0) < 0)) {
        return -1;
    }
    while (axis >= 0) {
        const dpar_axis *a = &mesh->axis[axis];
        rank += (index % a->size - dpar_mesh_coord(mesh, rank, axis)) * a->stride;
        index /= a->size;
        axis = dpari_mesh_next_axis(mesh, which, a->stride);
    }
    return rank;
}

DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank)
{
    int32_t axis = dpari_mesh_next_axis(mesh, which, 0), index = 0, weight = 1;
    if (mesh->axes > 0 && dpar_mesh_coord(mesh, rank, 0) < 0) {
        return -1;
    }
    while (axis >= 0) {
        index += dpar_mesh_coord(mesh, rank, axis) * weight;
        weight *= mesh->axis[axis].size;
        axis = dpari_mesh_next_axis(mesh, which, mesh->axis[axis].stride);
    }
    return index;
}

DPAR_API void dpar_mesh_group_nodes(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                    int32_t per_node, int32_t *nodes, int32_t *most)
{
    int32_t i, n = dpar_mesh_group_size(mesh, which), last = -1, here = 0;
    *nodes = 0;
    *most = 0;
    for (i = 0; i < n; i++) { /* members ascend, so a node's members are neighbours here */
        int32_t node = dpar_mesh_group_member(mesh, which, rank, i) / (per_node > 0 ? per_node : 1);
        here = node == last ? here + 1 : 1;
        *nodes += node != last;
        *most = here > *most ? here : *most;
        last = node;
    }
}
