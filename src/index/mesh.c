/* SPDX-License-Identifier: MIT-0 */
/* Meshes. A rank is first_rank + the sum of coordinate x stride, so coordinates are the digits of a
 * number. For strides that nest, division gives the digits. For other strides, which a caller may
 * set, a depth-first search bounds each digit by the sum that the smaller strides can still reach.
 * Groups are the same sums over some of the axes. */
#include "mesh.h"

#include "index_private.h"

static void dpari_mesh_strides(dpar_mesh *mesh, int32_t order)
{
    int32_t i, stride = 1;
    for (i = 0; i < mesh->axes; i++) {
        dpar_mesh_axis *a = &mesh->axis[order == DPAR_ORDER_FIRST_FASTEST ? i : mesh->axes - 1 - i];
        a->stride = stride;
        stride *= a->size;
    }
}

static dpar_status dpari_mesh_full(dpar_why *why)
{
    return dpari_wrong(why, "a mesh has at most %d axes", (int32_t)DPAR_MAX_AXES);
}

static int dpari_mesh_between(char c)
{
    return c == ' ' || (c | 1) == '-'; /* a comma or a dash */
}

/* Moves *at to the next word of a list of names. Returns its length, or 0 if there is none. */
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

/* Checks that a name has 1 to 15 characters and that no other axis has it. An axis whose name is
 * cut or repeated could not be found. */
static dpar_status dpari_mesh_name(dpar_mesh *mesh, int32_t i, const char *name, size_t n,
                                   dpar_why *why)
{
    int32_t k;
    if (n == 0 || n >= sizeof(mesh->axis[i].name)) {
        return dpari_wrong(why, "axis name '%.*s' has %ld characters: 1 to 15 are allowed",
                           (int32_t)n, name, (int64_t)n);
    }
    for (k = 0; k < i; k++) {
        if (dpari_spells(name, n, mesh->axis[k].name)) {
            return dpari_wrong(why, "axes %d and %d are both called '%.*s'", k, i, (int32_t)n,
                               name);
        }
    }
    dpari_copy_text(mesh->axis[i].name, sizeof(mesh->axis[i].name), name, n);
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
    dpar_mesh *mesh = &l->mesh;
    int64_t product = mesh->size;
    if (mesh->axes == DPAR_MAX_AXES) {
        return dpari_mesh_full(why);
    }
    if (size == -1 && l->unknown < 0 && l->ranks != 0) {
        l->unknown = mesh->axes;
    } else if (size < 1) {
        return dpari_wrong(
            why, "axis '%.*s' has size %d: must be at least 1; one may be -1 if ranks is given",
            (int32_t)n, name, size);
    } else {
        product *= size;
    }
    if (product > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why, "the mesh has more than 2^31 - 1 ranks");
    }
    mesh->size = (int32_t)product;
    mesh->axis[mesh->axes].size = size;
    return dpari_mesh_name(mesh, mesh->axes++, name, n, why);
}

static dpar_status dpari_mesh_finish(dpari_mesh_list *l, int32_t order, dpar_mesh *mesh,
                                     dpar_why *why)
{
    dpar_mesh *m = &l->mesh;
    const int32_t ranks = l->ranks;
    if (ranks < 0) {
        return dpari_wrong(why, "ranks is %d: must be at least 0", ranks);
    }
    if (l->unknown >= 0) {
        if (ranks % m->size != 0) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "the other axes make %d ranks, which do not divide %d", m->size,
                             ranks);
        }
        m->axis[l->unknown].size = ranks / m->size;
        m->size = ranks;
    }
    if (ranks > 0 && m->size != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why, "the axes make %d ranks, but there are %d", m->size,
                         ranks);
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

DPARI_API int dpari_mesh_same(const dpar_mesh *a, const dpar_mesh *b)
{
    int32_t i;
    if (a->axes != b->axes || a->first_rank != b->first_rank) {
        return 0;
    }
    for (i = 0; i < a->axes; i++) {
        const dpar_mesh_axis *x = &a->axis[i], *y = &b->axis[i];
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

/* ---- coordinates ----------------------------------------------------------------------------- */

/* Lists the axes in `which` that have more than one rank, the largest stride first. Returns their
 * number. */
static int32_t dpari_mesh_sorted(const dpar_mesh *mesh, uint32_t which, int32_t *axis)
{
    int32_t i, k, n = 0;
    for (i = 0; i < mesh->axes; i++) {
        if ((which >> i & 1u) == 0 || mesh->axis[i].size < 2) {
            continue;
        }
        for (k = n++; k > 0 && mesh->axis[axis[k - 1]].stride < mesh->axis[i].stride; k--) {
            axis[k] = axis[k - 1];
        }
        axis[k] = i;
    }
    return n;
}

/* A search for digits: sum = digit[0] stride[0] + digit[1] stride[1] + ..., strides descending. */
typedef struct dpari_digits {
    const dpar_mesh *mesh;
    int32_t axis[DPAR_MAX_AXES], count;
    int32_t signs; /* 1 to allow digits from -(size - 1) on, and to require that they are not all
                      0 */
    int32_t digit[DPAR_MAX_AXES], low[DPAR_MAX_AXES];
    int64_t rest[DPAR_MAX_AXES + 1];
} dpari_digits;

/* Computes the range of digit k from the sum that the smaller strides can still reach, and starts
 * with the largest digit. If strides are nested, the range has one value, otherwise a few. */
static void dpari_digits_bound(dpari_digits *s, int32_t k)
{
    const dpar_mesh_axis *a = &s->mesh->axis[s->axis[k]];
    int64_t most = a->size - 1, reach = 0, rest = s->rest[k], low, high;
    int32_t i;
    for (i = k + 1; i < s->count; i++) {
        const dpar_mesh_axis *b = &s->mesh->axis[s->axis[i]];
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
    for (i = 0; s->signs && i < s->count; i++) {
        if (s->digit[i] != 0) {
            return 1;
        }
    }
    return !s->signs;
}

/* Searches depth-first. The bounds ensure that every leaf reaches the sum exactly. */
static int dpari_digits_find(dpari_digits *s, const dpar_mesh *mesh, int64_t sum, int signs)
{
    int32_t k = 0;
    s->mesh = mesh;
    s->count = dpari_mesh_sorted(mesh, UINT32_MAX, s->axis);
    s->signs = signs;
    s->rest[0] = sum;
    if (s->count == 0) {
        return sum == 0 && !signs;
    }
    dpari_digits_bound(s, 0);
    while (k >= 0) {
        if (s->digit[k] < s->low[k]) { /* no digit is left here, so lower the previous one */
            k--;
            if (k >= 0) {
                s->digit[k]--;
            }
            continue;
        }
        s->rest[k + 1] = s->rest[k] - (int64_t)s->digit[k] * mesh->axis[s->axis[k]].stride;
        if (k + 1 < s->count) {
            dpari_digits_bound(s, ++k);
        } else if (dpari_digits_done(s)) {
            return 1;
        } else {
            s->digit[k]--;
        }
    }
    return 0;
}

DPARI_API DPARI_COLD int dpari_mesh_injective(const dpar_mesh *mesh)
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
    if (rank < mesh->first_rank ||
        !dpari_digits_find(&s, mesh, (int64_t)rank - mesh->first_rank, 0)) {
        return 0;
    }
    for (i = 0; i < mesh->axes; i++) {
        coord[i] = 0;
    }
    for (i = 0; i < s.count; i++) {
        coord[s.axis[i]] = s.digit[i];
    }
    return 1;
}

DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord)
{
    int32_t i, rank = mesh->first_rank;
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

/* ---- groups ---------------------------------------------------------------------------------- */

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
        const dpar_mesh_axis *a = &mesh->axis[axis[n]];
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

/* ---- algebra --------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh,
                                                uint32_t which, int32_t rank, dpar_why *why)
{
    int32_t coord[DPAR_MAX_AXES], i;
    dpar_mesh m;
    if (!dpar_mesh_coords(mesh, rank, coord)) {
        return dpari_wrong(why, "rank %d is not in the mesh of %d ranks from %d on", rank,
                           mesh->size, mesh->first_rank);
    }
    dpari_zero(&m, sizeof(m));
    m.size = 1;
    m.first_rank = rank;
    for (i = 0; i < mesh->axes; i++) {
        const dpar_mesh_axis *a = &mesh->axis[i];
        if (which >> i & 1u) {
            m.axis[m.axes++] = *a;
            m.size *= a->size;
            m.first_rank -= coord[i] * a->stride;
        }
    }
    *out = m;
    return DPAR_OK;
}

/* Merges the axes from the first to the last one into a single axis. */
static dpar_status dpari_mesh_chain(const dpar_mesh *mesh, dpar_mesh_axis *one, dpar_why *why)
{
    int32_t axis[DPAR_MAX_AXES], n = dpari_mesh_sorted(mesh, UINT32_MAX, axis), i;
    one->size = 1;
    one->stride = n > 0 ? mesh->axis[axis[n - 1]].stride : 1;
    for (i = n - 1; i >= 0; i--) {
        const dpar_mesh_axis *a = &mesh->axis[axis[i]];
        if (a->stride != one->stride * one->size) {
            return dpari_say(
                DPAR_E_DIVIDE, why,
                "axis '%s' has stride %d, must be %d: a view needs a mesh without gaps", a->name,
                a->stride, one->stride * one->size);
        }
        one->size *= a->size;
    }
    return DPAR_OK;
}

/* ---- other functions that make a mesh -------------------------------------------------------- */

/* Returns the position of a word in a list of names, or -1. */
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

DPAR_API DPARI_COLD dpar_status dpar_mesh_init_from_order(dpar_mesh *mesh, const char *order,
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
            return dpari_say(DPAR_E_UNKNOWN, why, "'%.*s' is in the order, but has no size",
                             (int32_t)n, order);
        }
        if (i >= DPAR_MAX_AXES) {
            return dpari_mesh_full(why);
        }
        if (used >> i & 1u) {
            return dpari_wrong(why, "'%.*s' is in the order twice", (int32_t)n, order);
        }
        used |= (uint32_t)1 << i;
        st = dpari_mesh_append(&l, order, n, sizes[i], why);
    }
    for (i = 0, word = names; st == DPAR_OK && (n = dpari_mesh_word(&word)) > 0; i++, word += n) {
        if (i < DPAR_MAX_AXES && (used >> i & 1u)) {
            continue;
        }
        if (sizes[i] != 1) {
            return dpari_wrong(why, "'%.*s' has size %d, but is not in the order", (int32_t)n, word,
                               sizes[i]);
        }
        st = dpari_mesh_append(&l, word, n, 1, why);
    }
    return st == DPAR_OK ? dpari_mesh_finish(&l, DPAR_ORDER_FIRST_FASTEST, mesh, why) : st;
}

/* Checks that axes with the same name in two meshes have the same groups of ranks (size, stride,
 * first rank). */
static dpar_status dpari_mesh_agree(const dpar_mesh *a, const dpar_mesh *b, dpar_why *why)
{
    int32_t i, k;
    for (i = 0; i < a->axes; i++) {
        const dpar_mesh_axis *x = &a->axis[i], *y;
        k = dpar_mesh_find(b, x->name);
        if (k < 0) {
            continue;
        }
        y = &b->axis[k];
        if (x->size != y->size || (x->size > 1 && x->stride != y->stride) ||
            a->first_rank != b->first_rank) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "axis '%s' has size %d, stride %d in the mesh, but %d, %d in the "
                             "view: their groups differ",
                             x->name, x->size, x->stride, y->size, y->stride);
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh,
                                               const char *names, const int32_t *sizes,
                                               int32_t order, dpar_why *why)
{
    dpar_mesh m;
    dpar_mesh_axis one;
    int32_t i;
    dpar_status st = dpari_mesh_chain(mesh, &one, why);
    if (st == DPAR_OK) {
        st = dpar_mesh_init(&m, names, sizes, order, mesh->size, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    m.first_rank = mesh->first_rank;
    for (i = 0; i < m.axes; i++) {
        m.axis[i].stride *= one.stride;
    }
    st = dpari_mesh_agree(mesh, &m, why);
    if (st == DPAR_OK) {
        *view = m;
    }
    return st;
}
