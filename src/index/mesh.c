/* SPDX-License-Identifier: MIT-0 */
#include "mesh.h"

#include "inner.h"

static void dpari_mesh_strides(dpar_mesh *m, int32_t order)
{
    int32_t i, stride = 1;
    for (i = 0; i < m->axes; i++) {
        dpar_axis *a = &m->axis[order == DPAR_FIRST_FASTEST ? i : m->axes - 1 - i];
        a->stride = stride;
        stride *= a->size;
    }
}

static dpar_status dpari_mesh_full(dpar_why *why)
{
    return dpari_say(DPAR_E_ARG, why, "a mesh has at most # axes", DPAR_MAX_AXES, 0, 0, 0);
}

static int dpari_mesh_between(char c)
{
    return c == ' ' || (c | 1) == '-'; /* a comma or a dash */
}

/* The next word of a list of names: *at moves to it. Its length; 0: there is none. */
static size_t dpari_mesh_word(const char **at)
{
    size_t n = 0;
    while (dpari_mesh_between(**at)) {
        ++*at;
    }
    while ((*at)[n] != 0 && !dpari_mesh_between((*at)[n]) && n < 32) {
        n++;
    }
    return n;
}

/* A name is 1 to 15 characters and no other axis has it: a cut or second one could not be found. */
static dpar_status dpari_mesh_name(dpar_mesh *m, int32_t i, const char *name, size_t n,
                                   dpar_why *why)
{
    int32_t k;
    if (n == 0 || n >= sizeof(m->axis[i].name)) {
        return dpari_say_word(DPAR_E_ARG, why,
                              "axis name '@' has # characters: 1 to 15 are allowed", name, n,
                              (int64_t)n, 0, 0, 0);
    }
    for (k = 0; k < i; k++) {
        if (dpari_spells(name, n, m->axis[k].name)) {
            return dpari_say_word(DPAR_E_ARG, why, "axes # and # are both called '@'", name, n, k,
                                  i, 0, 0);
        }
    }
    dpari_copy_text(m->axis[i].name, sizeof(m->axis[i].name), name, n);
    return DPAR_OK;
}

/* A mesh while its axes are listed: its size is the product of the sizes that are known. */
typedef struct dpari_mesh_list {
    dpar_mesh mesh;
    int32_t ranks, unknown; /* the axis whose size is -1, or -1 */
} dpari_mesh_list;

static void dpari_mesh_start(dpari_mesh_list *l, int32_t ranks)
{
    dpari_zero(l, sizeof(*l));
    l->mesh.size = 1;
    l->ranks = ranks;
    l->unknown = -1;
}

static dpar_status dpari_mesh_append(dpari_mesh_list *l, const char *name, size_t n, int32_t size,
                                     dpar_why *why)
{
    dpar_mesh *m = &l->mesh;
    int64_t product = m->size;
    if (m->axes == DPAR_MAX_AXES) {
        return dpari_mesh_full(why);
    }
    if (size == -1 && l->unknown < 0 && l->ranks != 0) {
        l->unknown = m->axes;
    } else if (size < 1) {
        return dpari_say_word(DPAR_E_ARG, why,
                              "axis '@' has size #: sizes are at least 1, and one may be -1 where "
                              "the number of ranks is given",
                              name, n, size, 0, 0, 0);
    } else {
        product *= size;
    }
    if (product > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why, "the mesh has more than 2^31 - 1 ranks", 0, 0, 0, 0);
    }
    m->size = (int32_t)product;
    m->axis[m->axes].size = size;
    return dpari_mesh_name(m, m->axes++, name, n, why);
}

static dpar_status dpari_mesh_finish(dpari_mesh_list *l, int32_t order, dpar_mesh *mesh,
                                     dpar_why *why)
{
    dpar_mesh *m = &l->mesh;
    const int32_t ranks = l->ranks;
    if (ranks < 0) {
        return dpari_say(DPAR_E_ARG, why, "a mesh of # ranks: 0 means whatever the axes make",
                         ranks, 0, 0, 0);
    }
    if (l->unknown >= 0) {
        if (ranks % m->size != 0) {
            return dpari_say(DPAR_E_DIVIDE, why, "the other axes' # ranks do not divide #", m->size,
                             ranks, 0, 0);
        }
        m->axis[l->unknown].size = ranks / m->size;
        m->size = ranks;
    }
    if (ranks > 0 && m->size != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why, "the axes make # ranks, there are #", m->size, ranks,
                         0, 0);
    }
    dpari_mesh_strides(m, order);
    *mesh = *m;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_mesh_init(dpar_mesh *mesh, const char *names,
                                               const int32_t *sizes, int32_t order, int32_t ranks,
                                               dpar_why *why)
{
    dpari_mesh_list l;
    dpar_status st = DPAR_OK;
    size_t n;
    dpari_mesh_start(&l, ranks);
    for (; st == DPAR_OK && (n = dpari_mesh_word(&names)) > 0; names += n) {
        st = dpari_mesh_append(&l, names, n, *sizes++, why);
    }
    return st == DPAR_OK ? dpari_mesh_finish(&l, order, mesh, why) : st;
}

DPARI_DOOR int dpari_mesh_same(const dpar_mesh *a, const dpar_mesh *b)
{
    int32_t i;
    if (a->axes != b->axes || a->offset != b->offset) {
        return 0;
    }
    for (i = 0; i < a->axes; i++) {
        const dpar_axis *x = &a->axis[i], *y = &b->axis[i];
        if (x->size != y->size || (x->size > 1 && x->stride != y->stride)) {
            return 0;
        }
    }
    return 1;
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

/* ---- coordinates ---------------------------------------------------------------------------- */

/* The axes in `which` that have more than one rank, the largest stride first; how many. */
static int32_t dpari_mesh_sorted(const dpar_mesh *m, uint32_t which, int32_t *axis)
{
    int32_t i, k, n = 0;
    for (i = 0; i < m->axes; i++) {
        if ((which >> i & 1u) == 0 || m->axis[i].size < 2) {
            continue;
        }
        for (k = n++; k > 0 && m->axis[axis[k - 1]].stride < m->axis[i].stride; k--) {
            axis[k] = axis[k - 1];
        }
        axis[k] = i;
    }
    return n;
}

/* A search for digits: sum = digit[0] stride[0] + digit[1] stride[1] + ..., strides descending. */
typedef struct dpari_digits {
    const dpar_mesh *mesh;
    int32_t axis[DPAR_MAX_AXES], n;
    int32_t signs; /* digits from -(size - 1) instead of from 0, and not all of them 0 */
    int32_t digit[DPAR_MAX_AXES], low[DPAR_MAX_AXES];
    int64_t rest[DPAR_MAX_AXES + 1];
} dpari_digits;

/* The digits that the k-th may be, given what the smaller strides can still reach: one where
 * strides are nested, else a few. Begins at the largest. */
static void dpari_digits_bound(dpari_digits *s, int32_t k)
{
    const dpar_axis *a = &s->mesh->axis[s->axis[k]];
    int64_t most = a->size - 1, reach = 0, rest = s->rest[k], low, high;
    int32_t i;
    for (i = k + 1; i < s->n; i++) {
        const dpar_axis *b = &s->mesh->axis[s->axis[i]];
        reach += dpari_least((int64_t)(b->size - 1) * b->stride, INT64_C(1) << 40);
    }
    low = -dpari_floor_div(reach - rest, a->stride);
    high = dpari_floor_div(rest + (s->signs ? reach : 0), a->stride);
    s->low[k] = (int32_t)dpari_most(s->signs ? -most : 0, dpari_least(low, most + 1));
    s->digit[k] = (int32_t)dpari_least(most, dpari_most(high, -most - 1));
}

static int dpari_digits_done(const dpari_digits *s)
{
    int32_t i;
    for (i = 0; s->signs && i < s->n; i++) {
        if (s->digit[i] != 0) {
            return 1;
        }
    }
    return !s->signs;
}

/* Depth first; the bounds make every leaf reach sum exactly. */
static int dpari_digits_find(dpari_digits *s, const dpar_mesh *m, int64_t sum, int signs)
{
    int32_t k = 0;
    s->mesh = m;
    s->n = dpari_mesh_sorted(m, UINT32_MAX, s->axis);
    s->signs = signs;
    s->rest[0] = sum;
    if (s->n == 0) {
        return sum == 0 && !signs;
    }
    dpari_digits_bound(s, 0);
    while (k >= 0) {
        if (s->digit[k] < s->low[k]) { /* none left: one less of the axis before */
            k--;
            if (k >= 0) {
                s->digit[k]--;
            }
            continue;
        }
        s->rest[k + 1] = s->rest[k] - (int64_t)s->digit[k] * m->axis[s->axis[k]].stride;
        if (k + 1 < s->n) {
            dpari_digits_bound(s, ++k);
        } else if (dpari_digits_done(s)) {
            return 1;
        } else {
            s->digit[k]--;
        }
    }
    return 0;
}

DPARI_DOOR DPARI_COLD int dpari_mesh_injective(const dpar_mesh *mesh)
{
    dpari_digits s;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        if (mesh->axis[i].size > 1 && mesh->axis[i].stride < 1) {
            return 0;
        }
    }
    return !dpari_digits_find(&s, mesh, 0, 1);
}

DPAR_API int dpar_mesh_coords(const dpar_mesh *mesh, int32_t rank, int32_t *coord)
{
    dpari_digits s;
    int32_t i;
    if (rank < mesh->offset || !dpari_digits_find(&s, mesh, (int64_t)rank - mesh->offset, 0)) {
        return 0;
    }
    for (i = 0; i < mesh->axes; i++) {
        coord[i] = 0;
    }
    for (i = 0; i < s.n; i++) {
        coord[s.axis[i]] = s.digit[i];
    }
    return 1;
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

DPAR_API int32_t dpar_mesh_shift(const dpar_mesh *mesh, int32_t rank, int32_t axis, int64_t steps,
                                 int wrap)
{
    int32_t coord[DPAR_MAX_AXES], at, size;
    int64_t to;
    if (axis < 0 || axis >= mesh->axes || !dpar_mesh_coords(mesh, rank, coord)) {
        return -1;
    }
    at = coord[axis];
    size = mesh->axis[axis].size;
    if (wrap) {
        to = (at + steps % size + size) % size;
    } else if (steps < -at || steps >= size - at) {
        return -1;
    } else {
        to = at + steps;
    }
    return rank + ((int32_t)to - at) * mesh->axis[axis].stride;
}

/* ---- groups --------------------------------------------------------------------------------- */

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
    int32_t axis[DPAR_MAX_AXES], coord[DPAR_MAX_AXES], n;
    if (index < 0 || index >= dpar_mesh_group_size(mesh, which) ||
        !dpar_mesh_coords(mesh, rank, coord)) {
        return -1;
    }
    n = dpari_mesh_sorted(mesh, which, axis);
    while (n-- > 0) {
        const dpar_axis *a = &mesh->axis[axis[n]];
        rank += (index % a->size - coord[axis[n]]) * a->stride;
        index /= a->size;
    }
    return rank;
}

DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank)
{
    int32_t axis[DPAR_MAX_AXES], coord[DPAR_MAX_AXES], i, n, index = 0;
    if (!dpar_mesh_coords(mesh, rank, coord)) {
        return -1;
    }
    n = dpari_mesh_sorted(mesh, which, axis);
    for (i = 0; i < n; i++) {
        index = index * mesh->axis[axis[i]].size + coord[axis[i]];
    }
    return index;
}

/* ---- algebra -------------------------------------------------------------------------------- */

/* Appends an axis; the name may come with a digit behind it. */
static int dpari_mesh_add(dpar_mesh *m, const char *name, int32_t digit, int32_t size,
                          int32_t stride)
{
    dpar_axis *a = &m->axis[m->axes];
    size_t n;
    if (m->axes >= DPAR_MAX_AXES) {
        return 0;
    }
    dpari_zero(a, sizeof(*a));
    dpari_copy_text(a->name, sizeof(a->name) - (digit >= 0), name, sizeof(a->name));
    n = dpari_length(a->name);
    if (digit >= 0) {
        a->name[n] = (char)('0' + digit);
    }
    a->size = size;
    a->stride = stride;
    m->axes++;
    m->size *= size;
    return 1;
}

static void dpari_mesh_empty(dpar_mesh *m, int32_t offset)
{
    dpari_zero(m, sizeof(*m));
    m->size = 1;
    m->offset = offset;
}

DPAR_API DPARI_COLD dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh,
                                                uint32_t which, int32_t rank, dpar_why *why)
{
    int32_t coord[DPAR_MAX_AXES], i;
    dpar_mesh m;
    if (!dpar_mesh_coords(mesh, rank, coord)) {
        return dpari_say(DPAR_E_ARG, why, "rank # is not in the mesh of # ranks from # on", rank,
                         mesh->size, mesh->offset, 0);
    }
    dpari_mesh_empty(&m, rank);
    for (i = 0; i < mesh->axes; i++) {
        const dpar_axis *a = &mesh->axis[i];
        if (which >> i & 1u) {
            (void)dpari_mesh_add(&m, a->name, -1, a->size, a->stride);
            m.offset -= coord[i] * a->stride;
        }
    }
    *out = m;
    return DPAR_OK;
}

/* The one axis that those in `which` make, in order from first to last. */
static dpar_status dpari_mesh_chain(const dpar_mesh *mesh, uint32_t which, dpar_axis *one,
                                    dpar_why *why)
{
    int32_t axis[DPAR_MAX_AXES], n = dpari_mesh_sorted(mesh, which, axis), i;
    one->size = 1;
    one->stride = n > 0 ? mesh->axis[axis[n - 1]].stride : 1;
    for (i = n - 1; i >= 0; i--) {
        const dpar_axis *a = &mesh->axis[axis[i]];
        if (a->stride != one->stride * one->size) {
            return dpari_say_word(
                DPAR_E_DIVIDE, why,
                "axis '@' has stride #, the faster ones reach #: they are not one "
                "axis, but their set is a group all the same",
                a->name, sizeof(a->name), a->stride, one->stride * one->size, 0, 0);
        }
        one->size *= a->size;
    }
    return DPAR_OK;
}

/* The axes in `which` become one, in the place of the first of them. They must chain: each stride
 * the next size times the next stride; E_DIVIDE otherwise. */
DPARI_FN dpar_status dpari_mesh_flatten(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                        const char *name, dpar_why *why)
{
    dpar_mesh m;
    dpar_axis one;
    int32_t i, done = 0, at = -1;
    dpar_status st = dpari_mesh_chain(mesh, which, &one, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_mesh_empty(&m, mesh->offset);
    for (i = 0; i < mesh->axes; i++) {
        const dpar_axis *a = &mesh->axis[i];
        if ((which >> i & 1u) == 0) {
            (void)dpari_mesh_add(&m, a->name, -1, a->size, a->stride);
        } else if (!done++) {
            (void)dpari_mesh_add(&m, "", -1, one.size, one.stride);
            at = m.axes - 1;
        }
    }
    for (i = 0; i < m.axes && st == DPAR_OK; i++) { /* later axes may have the name too */
        const char *called = i == at ? name : m.axis[i].name;
        st = dpari_mesh_name(&m, i, called, dpari_length(called), why);
    }
    if (st == DPAR_OK) {
        *out = m;
    }
    return st;
}

/* One axis becomes several, whose sizes (one may be -1) multiply to its own. With FIRST_FASTEST
 * these are hierarchical groups: level k has the product of the sizes before it as its stride. */
DPARI_FN dpar_status dpari_mesh_unflatten(dpar_mesh *out, const dpar_mesh *mesh, int32_t axis,
                                          const char *names, const int32_t *sizes, int32_t order,
                                          dpar_why *why)
{
    dpar_mesh m;
    int32_t i, n;
    dpar_status st;
    if (axis < 0 || axis >= mesh->axes) {
        return dpari_say(DPAR_E_ARG, why, "axis #: the mesh has #", axis, mesh->axes, 0, 0);
    }
    st = dpar_mesh_init(&m, names, sizes, order, mesh->axis[axis].size, why);
    if (st != DPAR_OK) {
        return st;
    }
    n = m.axes;
    if (mesh->axes - 1 + n > DPAR_MAX_AXES) {
        return dpari_mesh_full(why);
    }
    for (i = n - 1; i >= 0; i--) { /* the parts go where the axis was, the others around them */
        m.axis[axis + i] = m.axis[i];
        m.axis[axis + i].stride *= mesh->axis[axis].stride;
    }
    for (i = 0; i < mesh->axes; i++) {
        if (i != axis) {
            m.axis[i < axis ? i : i + n - 1] = mesh->axis[i];
        }
    }
    m.axes = mesh->axes - 1 + n;
    m.size = mesh->size;
    m.offset = mesh->offset;
    for (i = 0; i < m.axes && st == DPAR_OK; i++) {
        st = dpari_mesh_name(&m, i, m.axis[i].name, dpari_length(m.axis[i].name), why);
    }
    if (st == DPAR_OK) {
        *out = m;
    }
    return st;
}

/* Axis i of the result is axis perm[i]. Ranks stay where they are. */
DPARI_FN dpar_status dpari_mesh_transpose(dpar_mesh *out, const dpar_mesh *mesh,
                                          const int32_t *perm, dpar_why *why)
{
    dpar_mesh m = *mesh;
    uint32_t seen = 0;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        if (perm[i] < 0 || perm[i] >= mesh->axes || (seen >> perm[i] & 1u)) {
            return dpari_say(DPAR_E_ARG, why, "perm[#] = #: it must name each of # axes once", i,
                             perm[i], mesh->axes, 0);
        }
        seen |= (uint32_t)1 << perm[i];
        m.axis[i] = mesh->axis[perm[i]];
    }
    *out = m;
    return DPAR_OK;
}

/* As few axes as list the same ranks in the same order: chains are merged (the first name stays),
 * axes of size 1 dropped. */
DPARI_FN dpar_status dpari_mesh_coalesce(dpar_mesh *out, const dpar_mesh *mesh)
{
    dpar_mesh m;
    int32_t i;
    dpari_mesh_empty(&m, mesh->offset);
    for (i = 0; i < mesh->axes; i++) {
        const dpar_axis *a = &mesh->axis[i];
        dpar_axis *last = &m.axis[m.axes > 0 ? m.axes - 1 : 0];
        if (a->size == 1) {
            continue;
        }
        if (m.axes > 0 && last->stride == a->size * a->stride) {
            last->size *= a->size;
            last->stride = a->stride;
            m.size *= a->size;
        } else {
            (void)dpari_mesh_add(&m, a->name, -1, a->size, a->stride);
        }
    }
    *out = m;
    return DPAR_OK;
}

/* A mesh's coalesced axes without their names. */
typedef struct dpari_rows {
    int32_t n, size[DPAR_MAX_AXES], stride[DPAR_MAX_AXES];
} dpari_rows;

DPARI_FN void dpari_mesh_rows(const dpar_mesh *mesh, dpari_rows *rows)
{
    int32_t i, n = 0;
    for (i = 0; i < mesh->axes; i++) {
        int32_t size = mesh->axis[i].size, stride = mesh->axis[i].stride;
        if (n > 0 && size > 1 && rows->stride[n - 1] == size * stride) {
            rows->size[n - 1] *= size;
            rows->stride[n - 1] = stride;
        } else if (size > 1) {
            rows->size[n] = size;
            rows->stride[n++] = stride;
        }
    }
    rows->n = n;
}

/* A step of `step` positions in outer's list: by how much each coordinate grows. Which one it is
 * when it is one alone, else -1. */
DPARI_FN int32_t dpari_mesh_digits(const dpari_rows *outer, int32_t step, int32_t *digit)
{
    int32_t i, only = -1, used = 0;
    for (i = outer->n - 1; i >= 0; i--) {
        digit[i] = i > 0 ? step % outer->size[i] : step;
        step = i > 0 ? step / outer->size[i] : 0;
        if (digit[i] > 0) {
            only = i;
            used++;
        }
    }
    return used == 1 ? only : -1;
}

/* The first digit that makes a name which neither mesh has; 10: all of them are taken. */
DPARI_FN int32_t dpari_mesh_free_digit(const dpar_mesh *m, const dpar_mesh *inner, const char *name)
{
    char with[16];
    size_t n;
    int32_t digit;
    dpari_copy_text(with, sizeof(with) - 1, name, sizeof(with));
    n = dpari_length(with);
    with[n + 1] = 0;
    for (digit = 1; digit < 10; digit++) {
        with[n] = (char)('0' + digit);
        if (dpar_mesh_find(m, with) < 0 && dpar_mesh_find(inner, with) < 0) {
            break;
        }
    }
    return digit;
}

/* Positions 0, stride, 2 stride, ... in outer's list, as axes of ranks: they run along one axis of
 * outer to its end and go on with the next, or move in several at once. reach[k] grows by how far
 * they take coordinate k. */
DPARI_UNUSED DPARI_APART dpar_status dpari_mesh_compose_axis(dpar_mesh *m, const dpari_rows *outer,
                                                             const dpar_mesh *inner, int32_t axis,
                                                             int64_t *reach, dpar_why *why)
{
    const dpar_axis *a = &inner->axis[axis];
    int32_t size[DPAR_MAX_AXES + 1], stride[DPAR_MAX_AXES + 1], digit[DPAR_MAX_AXES];
    int32_t rest = a->size, step = a->stride, i, k, n = 0;
    while (rest > 1) {
        int32_t take = rest;
        k = dpari_mesh_digits(outer, step, digit);
        if (k > 0 && outer->size[k] % digit[k] == 0) {
            take = (int32_t)dpari_least(rest, outer->size[k] / digit[k]);
        }
        if (rest % take != 0) {
            return dpari_say(DPAR_E_DIVIDE, why, "# positions do not fill outer's # evenly", rest,
                             take, 0, 0);
        }
        size[n] = take;
        stride[n] = 0;
        for (i = 0; i < outer->n; i++) {
            stride[n] += digit[i] * outer->stride[i];
            reach[i] += (int64_t)(take - 1) * digit[i];
        }
        n++;
        rest /= take;
        step = rest > 1 ? step * take : step; /* the next axis of outer, from its start */
    }
    if (n == 0) { /* one rank: its stride never matters */
        return dpari_mesh_add(m, a->name, -1, 1, 1) ? DPAR_OK : dpari_mesh_full(why);
    }
    for (i = n - 1; i >= 0; i--) {
        k = i < n - 1 ? dpari_mesh_free_digit(m, inner, a->name) : -1;
        if (k > 9 || !dpari_mesh_add(m, a->name, k, size[i], stride[i])) {
            return dpari_mesh_full(why);
        }
    }
    return DPAR_OK;
}

/* inner's ranks, taken as positions in outer's list (last axis fastest): outer after inner.
 * E_DIVIDE when an inner axis passes from one row of outer into the next (outer coalesced), but for
 * one that runs along whole rows from their starts; E_RANGE when inner leaves outer. Its axes have
 * inner's names; an inner axis that runs along several outer ones becomes several, the later with a
 * digit added. */
DPARI_FN dpar_status dpari_mesh_compose(dpar_mesh *out, const dpar_mesh *outer,
                                        const dpar_mesh *inner, dpar_why *why)
{
    dpar_mesh m;
    dpari_rows rows;
    int32_t i, at[DPAR_MAX_AXES];
    int64_t last = inner->offset, reach[DPAR_MAX_AXES];
    dpar_status st = DPAR_OK;
    for (i = 0; i < inner->axes && last < outer->size; i++) {
        last += (int64_t)(inner->axis[i].size - 1) * inner->axis[i].stride;
    }
    if (inner->offset < 0 || last >= outer->size) {
        return dpari_say(DPAR_E_RANGE, why, "inner takes positions # to #, outer has # ranks",
                         inner->offset, last, outer->size, 0);
    }
    dpari_mesh_rows(outer, &rows);
    dpari_mesh_empty(&m, outer->offset);
    (void)dpari_mesh_digits(&rows, inner->offset, at);
    for (i = 0; i < rows.n; i++) {
        m.offset += at[i] * rows.stride[i];
        reach[i] = at[i];
    }
    for (i = 0; i < inner->axes && st == DPAR_OK; i++) {
        st = dpari_mesh_compose_axis(&m, &rows, inner, i, reach, why);
    }
    /* a coordinate that would pass its end carries into the next: no stride says that */
    for (i = 0; i < rows.n && st == DPAR_OK; i++) {
        if (reach[i] >= rows.size[i]) {
            st = dpari_say(DPAR_E_DIVIDE, why,
                           "inner's positions pass from one row of # of outer into the next",
                           rows.size[i], 0, 0, 0);
        }
    }
    if (st == DPAR_OK) {
        *out = m;
    }
    return st;
}

/* The first ranks of the groups that mesh's image and its shifts make of 0..world-1: with the mesh
 * they list the world once. mesh's offset is ignored. E_DIVIDE when there is none. Axes are named
 * "g0", "g1", ... */
DPARI_FN dpar_status dpari_mesh_complement(dpar_mesh *out, const dpar_mesh *mesh, int32_t world,
                                           dpar_why *why)
{
    int32_t axis[DPAR_MAX_AXES], n = dpari_mesh_sorted(mesh, UINT32_MAX, axis), i, g, gaps = 0;
    int32_t size[DPAR_MAX_AXES + 1], stride[DPAR_MAX_AXES + 1];
    int64_t reach = 1;
    dpar_mesh m;
    for (i = n; i >= 0; i--) { /* from the smallest stride: the gap below it */
        int64_t next = i > 0 ? mesh->axis[axis[i - 1]].stride : world;
        if (next < reach || next % reach != 0) {
            return dpari_say(DPAR_E_DIVIDE, why, "# ranks of the mesh do not tile #", reach, next,
                             0, 0);
        }
        if (next > reach) {
            size[gaps] = (int32_t)(next / reach);
            stride[gaps++] = (int32_t)reach;
        }
        reach = i > 0 ? next * mesh->axis[axis[i - 1]].size : next;
    }
    dpari_mesh_empty(&m, 0);
    for (g = gaps - 1; g >= 0; g--) {
        if (!dpari_mesh_add(&m, "g", gaps - 1 - g, size[g], stride[g])) {
            return dpari_mesh_full(why);
        }
    }
    *out = m;
    return DPAR_OK;
}

/* ---- other ways to make one ----------------------------------------------------------------- */

/* The place of a word in a list of names; -1: it is not there. */
static int32_t dpari_mesh_named(const char *names, const char *word, size_t length)
{
    int32_t i;
    size_t n, k;
    for (i = 0; (n = dpari_mesh_word(&names)) > 0; i++, names += n) {
        for (k = 0; n == length && k < n && names[k] == word[k]; k++) {
        }
        if (n == length && k == n) {
            return i;
        }
    }
    return -1;
}

DPAR_API DPARI_COLD dpar_status dpar_mesh_ordered(dpar_mesh *mesh, const char *order,
                                                  const char *names, const int32_t *sizes,
                                                  int32_t ranks, dpar_why *why)
{
    const char *word;
    uint32_t used = 0;
    int32_t i;
    size_t n;
    dpari_mesh_list l;
    dpar_status st = DPAR_OK;
    dpari_mesh_start(&l, ranks);
    for (; st == DPAR_OK && (n = dpari_mesh_word(&order)) > 0; order += n) {
        i = dpari_mesh_named(names, order, n);
        if (i < 0) {
            return dpari_say_word(DPAR_E_UNKNOWN, why, "'@' of the order has no size", order, n, 0,
                                  0, 0, 0);
        }
        if (i >= DPAR_MAX_AXES) {
            return dpari_mesh_full(why);
        }
        if (used >> i & 1u) {
            return dpari_say_word(DPAR_E_ARG, why, "'@' is in the order twice", order, n, 0, 0, 0,
                                  0);
        }
        used |= (uint32_t)1 << i;
        st = dpari_mesh_append(&l, order, n, sizes[i], why);
    }
    for (i = 0, word = names; st == DPAR_OK && (n = dpari_mesh_word(&word)) > 0; i++, word += n) {
        if (i < DPAR_MAX_AXES && (used >> i & 1u)) {
            continue;
        }
        if (sizes[i] != 1) {
            return dpari_say_word(DPAR_E_ARG, why, "'@' has size # and is not in the order", word,
                                  n, sizes[i], 0, 0, 0);
        }
        st = dpari_mesh_append(&l, word, n, 1, why);
    }
    return st == DPAR_OK ? dpari_mesh_finish(&l, DPAR_FIRST_FASTEST, mesh, why) : st;
}

/* Are the axes that two meshes share by name the same groups of ranks (size, stride, first rank)?
 */
static dpar_status dpari_mesh_agree(const dpar_mesh *a, const dpar_mesh *b, dpar_why *why)
{
    int32_t i, k;
    for (i = 0; i < a->axes; i++) {
        const dpar_axis *x = &a->axis[i], *y;
        k = dpar_mesh_find(b, x->name);
        if (k < 0) {
            continue;
        }
        y = &b->axis[k];
        if (x->size != y->size || (x->size > 1 && x->stride != y->stride) ||
            a->offset != b->offset) {
            return dpari_say_word(DPAR_E_DIVIDE, why,
                                  "axis '@' is # ranks # apart in one view and # ranks # apart in "
                                  "the other: their groups differ",
                                  x->name, sizeof(x->name), x->size, x->stride, y->size, y->stride);
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh,
                                               const char *names, const int32_t *sizes,
                                               int32_t order, dpar_why *why)
{
    dpar_mesh m;
    dpar_axis one;
    int32_t i;
    dpar_status st = dpari_mesh_chain(mesh, UINT32_MAX, &one, why);
    if (st == DPAR_OK) {
        st = dpar_mesh_init(&m, names, sizes, order, mesh->size, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    m.offset = mesh->offset;
    for (i = 0; i < m.axes; i++) {
        m.axis[i].stride *= one.stride;
    }
    st = dpari_mesh_agree(mesh, &m, why);
    if (st == DPAR_OK) {
        *view = m;
    }
    return st;
}
