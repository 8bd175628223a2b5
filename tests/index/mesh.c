/* SPDX-License-Identifier: MIT-0 */
/* Tests mesh by brute force over every mesh of 3 axes and up to 64 ranks, in both orders, and with
 * Megatron's closed forms (the formulas of its own test for order tp-cp-ep-dp-pp). Run with:
 * tests/run test index. */
#include "dpar.h"

#include "axes.h"
#include "check.h"

/* Lists the ranks that share every coordinate except those of `which`, in ascending order. */
static int members(const dpar_mesh *m, uint32_t which, int rank, int *out)
{
    int r, n = 0, axis;
    for (r = 0; r < m->size; r++) {
        int same = 1;
        for (axis = 0; axis < m->axes; axis++) {
            same = same &&
                   ((which >> axis & 1u) || mesh_coord(m, r, axis) == mesh_coord(m, rank, axis));
        }
        if (same) {
            out[n++] = r;
        }
    }
    return n;
}

static void check_groups(const dpar_mesh *m)
{
    int list[64], rank, i, n;
    uint32_t which;
    for (which = 0; which < 8; which++) {
        for (rank = 0; rank < m->size; rank++) {
            n = members(m, which, rank, list);
            CHECK_INT(dpar_mesh_group_size(m, which), n);
            for (i = 0; i < n; i++) {
                CHECK_INT(dpar_mesh_group_member(m, which, rank, i), list[i]);
                if (list[i] == rank) {
                    CHECK_INT(dpar_mesh_group_index(m, which, rank), i);
                }
            }
        }
    }
}

static void test_brute_force(void)
{
    int32_t size[3], order;
    for (order = 0; order < 2; order++) {
        for (size[0] = 1; size[0] <= 64; size[0]++) {
            for (size[1] = 1; size[0] * size[1] <= 64; size[1]++) {
                for (size[2] = 1; size[0] * size[1] * size[2] <= 64; size[2]++) {
                    dpar_mesh m;
                    int32_t c[3], rank = 0;
                    CHECK_INT(dpar_mesh_init(&m, "a b c", size, order, 0, NULL), DPAR_OK);
                    CHECK_INT(m.size, size[0] * size[1] * size[2]);
                    for (rank = 0; rank < m.size; rank++) {
                        /* last fastest: rank = (c0 n1 + c1) n2 + c2, or mirrored */
                        int32_t e = order == DPAR_ORDER_LAST_FASTEST ? 2 : 0, s = 2 - e;
                        c[e] = rank % size[e];
                        c[1] = rank / size[e] % size[1];
                        c[s] = rank / size[e] / size[1];
                        CHECK_INT(mesh_coord(&m, rank, 0), c[0]);
                        CHECK_INT(mesh_coord(&m, rank, 1), c[1]);
                        CHECK_INT(mesh_coord(&m, rank, 2), c[2]);
                        CHECK_INT(dpar_mesh_rank(&m, c), rank);
                    }
                    check_groups(&m);
                }
            }
        }
    }
}

/* Checks that the members of the group of `rank` are first, first + step, ... */
static void check_line(const dpar_mesh *m, uint32_t which, int32_t rank, int32_t first,
                       int32_t step, int32_t count)
{
    int32_t i;
    CHECK_INT(dpar_mesh_group_size(m, which), count);
    CHECK_INT(dpar_mesh_group_index(m, which, rank), (rank - first) / step);
    for (i = 0; i < count; i++) {
        CHECK_INT(dpar_mesh_group_member(m, which, rank, i), first + i * step);
    }
}

/* Megatron's rank generator, order tp-cp-dp-pp, n = W/pp, every rank (facts/index_math.md 2.9):
 * tp {i tp ..}; cp {i n + j tp cp + k, step tp}; dp {i n + j, step tp cp}; dp with cp {i n + j,
 * step tp}; pp {i, step n}; tp with pp: the i-th members of every "dp with cp" group. */
static void check_megatron(int32_t tp, int32_t cp, int32_t dp, int32_t pp)
{
    int32_t size[4], rank, i, n = tp * cp * dp;
    dpar_mesh m;
    size[0] = tp;
    size[1] = cp;
    size[2] = dp;
    size[3] = pp;
    CHECK_INT(dpar_mesh_init(&m, "tp cp dp pp", size, DPAR_ORDER_FIRST_FASTEST, n * pp, NULL),
              DPAR_OK);
    CHECK_INT(dpar_mesh_find(&m, "dp"), 2);
    CHECK_INT(dpar_mesh_find(&m, "ep"), -1);
    for (rank = 0; rank<n * pp; rank += n> 512 ? 37 : 1) {
        int32_t stage = rank / n * n, block = stage + rank % n / (tp * cp) * (tp * cp);
        check_line(&m, 1u << 0, rank, rank / tp * tp, 1, tp);
        check_line(&m, 1u << 1, rank, block + rank % tp, tp, cp);
        check_line(&m, 1u << 2, rank, stage + rank % (tp * cp), tp * cp, dp);
        check_line(&m, 1u << 1 | 1u << 2, rank, stage + rank % tp, tp, dp * cp);
        check_line(&m, 1u << 3, rank, rank % n, n, pp);
        for (i = 0; i < tp * pp; i++) { /* tp fastest, then pp */
            CHECK_INT(dpar_mesh_group_member(&m, 1u << 0 | 1u << 3, rank, i),
                      rank % n / tp * tp + i % tp + i / tp * n);
        }
    }
}

static void test_megatron(void)
{
    int32_t tp, cp, dp, pp;
    for (tp = 1; tp <= 8; tp *= 2) {
        for (cp = 1; cp <= 4; cp++) {
            for (dp = 1; dp <= 5; dp += 2) {
                for (pp = 1; pp <= 5; pp++) {
                    check_megatron(tp, cp, dp, pp);
                }
            }
        }
    }
    check_megatron(8, 4, 21, 16); /* 10752 ranks */
}

/* Checks meshes whose first rank is not 0; a rank outside has no coordinates. */
static void test_offset(void)
{
    static const int32_t size[] = {4, 3};
    int32_t coord[2] = {1, 2};
    dpar_mesh m;
    CHECK_INT(dpar_mesh_init(&m, "tp dp", size, DPAR_ORDER_FIRST_FASTEST, 0, NULL), DPAR_OK);
    m.first_rank = 6;
    CHECK_INT(dpar_mesh_rank(&m, coord), 6 + 1 + 8);
    CHECK_INT(mesh_coord(&m, 15, 1), 2);
    CHECK_INT(dpar_mesh_group_member(&m, 1u, 15, 3), 17);
    CHECK_INT(mesh_coord(&m, 5, 0), -1);
    CHECK_INT(mesh_coord(&m, 18, 0), -1);
    CHECK_INT(mesh_coord(&m, -2147483647 - 1, 0), -1);
    CHECK_INT(mesh_coord(&m, 2147483647, 0), -1);
    CHECK_INT(mesh_coord(&m, 7, 2), -1);
    CHECK_INT(dpar_mesh_group_member(&m, 1u, 5, 0), -1);
    CHECK_INT(dpar_mesh_group_member(&m, 1u, 7, 4), -1);
    CHECK_INT(dpar_mesh_group_index(&m, 1u, 18), -1);
    coord[0] = 4;
    CHECK_INT(dpar_mesh_rank(&m, coord), -1);
    CHECK_INT(dpar_mesh_init(&m, "", size, DPAR_ORDER_FIRST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(m.size, 1);
}

static void test_refusals(void)
{
    int32_t size[2] = {4, -1};
    dpar_mesh m, before;
    dpar_why why;
    memset(&m, 7, sizeof m);
    before = m;
    CHECK_INT(dpar_mesh_init(&m, "tp dp", size, DPAR_ORDER_FIRST_FASTEST, 10, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "the other axes make 4 ranks, which do not divide 10");
    CHECK(memcmp(&m, &before, sizeof m) == 0); /* written only on success */
    CHECK_INT(dpar_mesh_init(&m, "tp dp", size, DPAR_ORDER_FIRST_FASTEST, 12, &why), DPAR_OK);
    CHECK_INT(m.axis[1].size, 3);
    size[0] = -1; /* the first axis too may be the wrong one */
    size[1] = 4;
    CHECK_INT(dpar_mesh_init(&m, "tp dp", size, DPAR_ORDER_LAST_FASTEST, 12, &why), DPAR_OK);
    CHECK(m.axis[0].size == 3 && m.axis[0].stride == 4 && m.size == 12);
    size[0] = 4;
    size[1] = 0;
    CHECK_INT(dpar_mesh_init(&m, "tp dp", size, DPAR_ORDER_FIRST_FASTEST, 12, &why), DPAR_E_ARG);
    size[0] = size[1] = 2147483647;
    CHECK_INT(dpar_mesh_init(&m, "tp dp", size, DPAR_ORDER_FIRST_FASTEST, 0, &why), DPAR_E_RANGE);
    size[0] = size[1] = 2;
    CHECK_INT(dpar_mesh_init(&m, "dp dp", size, DPAR_ORDER_FIRST_FASTEST, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "axes 0 and 1 are both called 'dp'");
    CHECK_INT(dpar_mesh_init(&m, "sixteen_letters_", size, DPAR_ORDER_FIRST_FASTEST, 0, &why),
              DPAR_E_ARG);
}

/* ---- vectors of facts/index_math.md, section C; [X] functions executed there, [T] upstream tests
 */

static dpar_mesh ordered(const char *order, int tp, int cp, int dp, int pp)
{
    int32_t size[4];
    dpar_mesh m;
    size[0] = tp;
    size[1] = cp;
    size[2] = dp;
    size[3] = pp;
    CHECK_INT(dpar_mesh_init_from_order(&m, order, "tp cp dp pp", size, 0, NULL), DPAR_OK);
    return m;
}

static uint32_t set_of(const dpar_mesh *m, const char *a, const char *b, const char *c)
{
    const char *name[3];
    uint32_t set = 0;
    int i;
    name[0] = a;
    name[1] = b;
    name[2] = c;
    for (i = 0; i < 3 && name[i] != NULL; i++) {
        int32_t axis = dpar_mesh_find(m, name[i]);
        CHECK(axis >= 0);
        set |= 1u << axis;
    }
    return set;
}

/* Checks the list of all groups, one after the other. */
static void groups(const dpar_mesh *m, uint32_t which, const int *expect)
{
    int32_t g, i, n = dpar_mesh_group_size(m, which), k = 0;
    CHECK_INT(n * (m->size / n), m->size);
    CHECK_INT(dpar_mesh_group_member(m, ~which, m->first_rank, m->size / n), -1);
    for (g = 0; g < m->size / n; g++) {
        int32_t first = dpar_mesh_group_member(m, ~which, m->first_rank, g);
        for (i = 0; i < n; i++) {
            int32_t rank = dpar_mesh_group_member(m, which, first, i);
            CHECK_INT(rank, expect[k]);
            CHECK_INT(dpar_mesh_group_index(m, ~which, rank), g);
            CHECK_INT(dpar_mesh_group_index(m, which, rank), i);
            k++;
        }
    }
}

static void test_megatron_groups(void)
{
    static const int tp[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const int cp[] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    static const int dp[] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
    static const int pp[] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
    static const int dp_cp[] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    static const int tp_pp[] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
    static const int tp_dp[] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    static const int tp_ep_pp[] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
    static const int c5_dp[] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    static const int c5_pp[] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    static const int c6[] = {0,  2,  4,  1,  3,  5,  6,  8,  10, 7,  9,  11,
                             12, 14, 16, 13, 15, 17, 18, 20, 22, 19, 21, 23};
    static const int c7_dp[] = {0, 4, 1, 5, 2, 6, 3, 7}, c7_pp[] = {0, 2, 1, 3, 4, 6, 5, 7};
    static const int32_t expert_size[] = {1, 4, 2, 2}, wrong_size[] = {1, 4, 1, 4};
    dpar_mesh m = ordered("tp-cp-dp-pp", 2, 2, 2, 2), e;
    dpar_why why;
    groups(&m, set_of(&m, "tp", NULL, NULL), tp); /* C1 to C3 */
    groups(&m, set_of(&m, "cp", NULL, NULL), cp);
    groups(&m, set_of(&m, "dp", NULL, NULL), dp);
    groups(&m, set_of(&m, "pp", NULL, NULL), pp);
    groups(&m, set_of(&m, "dp", "cp", NULL), dp_cp);
    groups(&m, set_of(&m, "tp", "pp", NULL), tp_pp);
    groups(&m, set_of(&m, "tp", "dp", NULL), tp_dp);
    groups(&m, set_of(&m, "dp", "tp", NULL), tp_dp);
    groups(&m, set_of(&m, "tp", "dp", "cp"), tp);
    CHECK_INT(dpar_mesh_view(&e, &m, "etp ep edp pp", expert_size, DPAR_ORDER_FIRST_FASTEST, &why),
              DPAR_OK);
    groups(&e, set_of(&e, "ep", NULL, NULL), tp); /* C4 */
    groups(&e, set_of(&e, "edp", NULL, NULL), dp);
    groups(&e, set_of(&e, "etp", "ep", "pp"), tp_ep_pp);
    CHECK_INT(dpar_mesh_view(&e, &m, "etp ep edp pp", wrong_size, DPAR_ORDER_FIRST_FASTEST, &why),
              DPAR_E_DIVIDE);
    CHECK_TEXT(why.text,
               "axis 'pp' has size 2, stride 8 in the mesh, but 4, 4 in the view: their groups differ");
    CHECK_INT(dpari_mesh_agree(&m, &e, NULL), DPAR_OK); /* e is as it was */
    m = ordered("tp-cp-dp-pp", 2, 1, 2, 4);             /* C5 */
    groups(&m, set_of(&m, "dp", NULL, NULL), c5_dp);
    groups(&m, set_of(&m, "pp", NULL, NULL), c5_pp);
    m = ordered("tp-cp-dp-pp", 2, 1, 3, 4); /* C6 */
    groups(&m, set_of(&m, "dp", NULL, NULL), c6);
    m = ordered("tp-pp-dp", 2, 1, 2, 2); /* C7: a missing name of size 1 is appended */
    groups(&m, set_of(&m, "dp", NULL, NULL), c7_dp);
    groups(&m, set_of(&m, "pp", NULL, NULL), c7_pp);
    CHECK_INT(dpar_mesh_find(&m, "cp"), 3);
}

static dpar_mesh pairs(int32_t n, const int32_t *size, const int32_t *stride)
{
    dpar_mesh m;
    int32_t i;
    CHECK_INT(dpar_mesh_init(&m, axis_names(n), size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    for (i = 0; i < n; i++) {
        m.axis[i].stride = stride[i];
    }
    return m;
}

static dpar_mesh pair2(int32_t s0, int32_t s1, int32_t d0, int32_t d1)
{
    int32_t size[2], stride[2];
    size[0] = s0;
    size[1] = s1;
    stride[0] = d0;
    stride[1] = d1;
    return pairs(2, size, stride);
}

static dpar_mesh pair1(int32_t s, int32_t d)
{
    return pairs(1, &s, &d);
}

/* Returns the k-th rank of the mesh's list, last axis fastest. */
static int32_t image(const dpar_mesh *m, int32_t k)
{
    int32_t coord[DPAR_MAX_AXES], i;
    for (i = m->axes - 1; i >= 0; i--) {
        coord[i] = k % m->axis[i].size;
        k /= m->axis[i].size;
    }
    return dpar_mesh_rank(m, coord);
}

static void images(const dpar_mesh *m, const int *expect)
{
    int32_t k;
    for (k = 0; k < m->size; k++) {
        CHECK_INT(image(m, k), expect[k]);
    }
}

static void test_layout_algebra(void)
{
    static const int c8[] = {0, 2, 4, 1, 3, 5}, c11[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int c13[] = {0, 2, 4, 6}, c13b[] = {1, 3, 5, 7};
    static const int c14[] = {0, 4, 1, 5, 2, 6, 3, 7}, pipe_data[] = {0, 1, 4, 5};
    static const int32_t size222[] = {2, 2, 2}, size24[] = {2, 4};
    dpar_mesh m, g;
    uint32_t dp_cp;
    m = pair2(2, 3, 3, 1); /* C8 */
    images(&m, c11);
    m = pair2(2, 3, 1, 2);
    images(&m, c8);
    CHECK(dpari_mesh_injective(&m));
    m = pair2(2, 3, 6, 1); /* C12 */
    CHECK(dpari_mesh_injective(&m));
    m = pair2(2, 3, 2, 1);
    CHECK(!dpari_mesh_injective(&m));
    m = pair2(4, 2, 1, 1);
    CHECK(!dpari_mesh_injective(&m));
    CHECK_INT(dpar_mesh_init(&m, "dp cp tp", size222, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK); /* C13 */
    dp_cp = set_of(&m, "dp", "cp", NULL);
    CHECK_INT(dpar_mesh_slice(&g, &m, dp_cp, 4, NULL), DPAR_OK);
    images(&g, c13);
    CHECK_INT(dpar_mesh_slice(&g, &m, dp_cp, 7, NULL), DPAR_OK);
    images(&g, c13b);
    CHECK_INT(mesh_coord(&g, 4, 0), -1); /* between its ranks, but not one of them */
    groups(&m, 5u, ((const int[]){0, 1, 4, 5, 2, 3, 6, 7})); /* dp and tp do not chain */
    CHECK_INT(dpar_mesh_init(&m, "x y", size24, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK); /* C14 */
    groups(&m, 1u, c14);
    groups(&m, 2u, c11);
    CHECK_INT(dpar_mesh_init(&m, "dp cp tp", size222, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK); /* C15 */
    groups(&m, 1u, c14);
    groups(&m, 2u, ((const int[]){0, 2, 1, 3, 4, 6, 5, 7}));
    CHECK_INT(dpar_mesh_slice(&g, &m, 4u, 2, NULL), DPAR_OK); /* pipe=0, data=1 */
    images(&g, ((const int[]){2, 3}));
    CHECK_INT(dpar_mesh_slice(&g, &m, 5u, 0, NULL), DPAR_OK); /* data=0 */
    images(&g, pipe_data);
    CHECK_INT(dpar_mesh_find(&m, "expert"), -1);
}

/* Checks C16 (torchtitan test_parallel_dims.py), C17 (both conventions), C23 (jax: extents local to
 * hosts). */
static void test_more_vectors(void)
{
    static const int32_t cp2[] = {2, 1, 1, 2, 3}, cp2tp4[] = {1, 1, 1, 2, 4};
    static const int32_t shard[] = {1, 2, -1, 1, 2}, twos[] = {2, 2, 2, 2};
    dpar_mesh m;
    CHECK_INT(dpar_mesh_init(&m, "pp dp_replicate dp_shard cp tp", shard, DPAR_ORDER_LAST_FASTEST,
                             8, NULL),
              DPAR_OK);
    CHECK_INT(m.axis[dpar_mesh_find(&m, "dp_shard")].size, 2);
    CHECK_INT(
        dpar_mesh_init(&m, "pp dp_replicate dp_shard cp tp", cp2, DPAR_ORDER_LAST_FASTEST, 0, NULL),
        DPAR_OK);
    CHECK_INT(dpar_mesh_group_size(&m, set_of(&m, "pp", "cp", "tp")), 12);
    /* its sequence lengths must be multiples of 2 cp tp: 16 for cp 2, tp 4 */
    CHECK_INT(dpar_mesh_init(&m, "pp dp_replicate dp_shard cp tp", cp2tp4, DPAR_ORDER_LAST_FASTEST,
                             0, NULL),
              DPAR_OK);
    CHECK_INT(2 * dpar_mesh_group_size(&m, set_of(&m, "cp", "tp", NULL)), 16);
    CHECK_INT(dpar_mesh_init(&m, "pp dp cp tp", twos, DPAR_ORDER_LAST_FASTEST, 16, NULL), DPAR_OK);
    CHECK(mesh_coord(&m, 5, 0) == 0 && mesh_coord(&m, 5, 1) == 1);
    CHECK(mesh_coord(&m, 5, 2) == 0 && mesh_coord(&m, 5, 3) == 1);
    m = ordered("tp-cp-dp-pp", 2, 2, 2, 2);
    CHECK(mesh_coord(&m, 5, 0) == 1 && mesh_coord(&m, 5, 1) == 0);
    CHECK(mesh_coord(&m, 5, 2) == 1 && mesh_coord(&m, 5, 3) == 0);
    CHECK_INT(dpar_mesh_init(&m, "a b c", twos, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_mesh_group_size(&m, 7u) / dpar_mesh_group_size(&m, 7u & 4u), 4); /* c: a host */
    CHECK_INT(dpar_mesh_group_size(&m, 5u) / dpar_mesh_group_size(&m, 5u & 4u), 2);
    CHECK_INT(dpar_mesh_group_size(&m, 2u) / dpar_mesh_group_size(&m, 2u & 4u), 2);
}

/* Compares any two pairs of sizes and strides with a list of their ranks: whether they are
 * injective, and their coordinates. */
static void test_any_strides(void)
{
    int32_t s0, s1, d0, d1, k, j;
    for (s0 = 1; s0 <= 4; s0++)
        for (s1 = 1; s1 <= 4; s1++)
            for (d0 = 1; d0 <= 6; d0++)
                for (d1 = 1; d1 <= 6; d1++) {
                    dpar_mesh m = pair2(s0, s1, d0, d1);
                    int same = 0, rank, coord[2];
                    for (k = 0; k < m.size; k++) {
                        for (j = 0; j < k; j++) {
                            same += image(&m, j) == image(&m, k);
                        }
                    }
                    CHECK_INT(dpari_mesh_injective(&m), same == 0);
                    for (rank = -1; rank < 50 && same == 0; rank++) {
                        int in = 0;
                        for (k = 0; k < m.size; k++) {
                            in += image(&m, k) == rank;
                        }
                        CHECK_INT(dpar_mesh_coords(&m, rank, coord), in);
                        CHECK(!in || dpar_mesh_rank(&m, coord) == rank);
                    }
                }
}

/* Fills the memory that the next call finds on the stack. */
static int dirty(int value)
{
    volatile char junk[8192];
    size_t i;
    for (i = 0; i < sizeof junk; i++) {
        junk[i] = (char)value;
    }
    return junk[0] + junk[sizeof junk - 1];
}

/* Checks whether two meshes agree: an axis that both have must have the same ranks through the
 * first one. Takes any sizes, strides and first ranks, with the name first or last. */
static void test_agree(void)
{
    static const char have[][4] = {"a b", "c a", "b d"};
    int32_t code, i, j, x, y;
    for (code = 0; code < 3 * 3 * 2 * 3 * 3 * 3 * 3; code++) {
        int32_t left = code, size[2] = {2, 2};
        int agree = 1;
        const char *first = have[left % 3], *second = have[left / 3 % 3];
        dpar_mesh a, b;
        CHECK_INT(dpar_mesh_init(&a, first, size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_mesh_init(&b, second, size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        left /= 9;
        b.first_rank = left % 2;
        left /= 2;
        for (i = 0; i < 2; i++, left /= 9) {
            b.axis[i].size = 1 + left % 3;
            b.axis[i].stride = 1 + left / 3 % 3;
        }
        for (x = 1; x <= 3; x++) {
            a.axis[0].size = a.axis[1].size = x;
            for (i = 0, agree = 1; i < 2; i++) {
                for (j = 0; j < 2; j++) {
                    int same = x == b.axis[j].size && b.first_rank == 0;
                    for (y = 0; y < x; y++) {
                        same = same && y * a.axis[i].stride == y * b.axis[j].stride;
                    }
                    agree = agree && (same || first[2 * i] != second[2 * j]);
                }
            }
            CHECK_INT(dpari_mesh_agree(&a, &b, NULL), agree ? DPAR_OK : DPAR_E_DIVIDE);
        }
    }
}

/* Checks that a view of evenly spaced ranks lists the same ranks, whatever its order. */
static void test_view(void)
{
    static const int32_t sizes[] = {2, 3, 4};
    dpar_mesh m = pair1(24, 3), v;
    int32_t order, k;
    m.first_rank = 5;
    for (order = 0; order < 2; order++) {
        CHECK_INT(dpar_mesh_view(&v, &m, "x y z", sizes, order, NULL), DPAR_OK);
        for (k = 0; k < 24; k++) {
            int32_t c[3];
            c[0] = order == DPAR_ORDER_LAST_FASTEST ? k / 12 : k % 2;
            c[1] = order == DPAR_ORDER_LAST_FASTEST ? k / 4 % 3 : k / 2 % 3;
            c[2] = order == DPAR_ORDER_LAST_FASTEST ? k % 4 : k / 6;
            CHECK_INT(dpar_mesh_rank(&v, c), 5 + 3 * k);
        }
    }
}

/* Checks nodes and the ranks inside them: rank = the slow coordinates, then the fast ones, last
 * fastest. */
static void test_nodes(void)
{
    static const char list[][48] = {"", "ten_chars_.node ten_chars_", "a.node b.node a b",
                                    "a.node b.node c.node a b c", "a.n b.n c.n d.n a b c d"};
    static const int32_t slow[] = {2, 3, 1, 2}, fast[] = {2, 1, 3, 2};
    dpar_mesh m;
    int32_t axes, k, i, size[8];
    for (axes = 0; axes <= 4; axes++) {
        for (i = 0; i < axes; i++) {
            size[i] = slow[i];
            size[axes + i] = fast[i];
        }
        CHECK(dirty(0xAA) != 0);
        CHECK_INT(dpar_mesh_init(&m, list[axes], size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(m.axes, 2 * axes);
        for (k = 0; k < m.size; k++) {
            int32_t rest = k;
            for (i = axes - 1; i >= 0; i--) {
                CHECK_INT(mesh_coord(&m, k, axes + i), rest % fast[i]);
                rest /= fast[i];
            }
            for (i = axes - 1; i >= 0; i--) {
                CHECK_INT(mesh_coord(&m, k, i), rest % slow[i]);
                rest /= slow[i];
            }
            CHECK_INT(rest, 0);
        }
    }
}

/* Checks order strings: empty words, repeated names, names missing first or last, 8 and 9 axes. */
static void test_ordered(void)
{
    static const char *const order[] = {"b-c-d-e-f-g-h", "a-b-c-d-e-f-g", "a-b-c-d-e-f-g-h"};
    int32_t size[9] = {1, 2, 2, 1, 1, 1, 1, 1, 3}, k;
    dpar_mesh m;
    dpar_why why;
    CHECK_INT(dpar_mesh_init_from_order(&m, "-a--b,", " a, b  ", size, 0, &why), DPAR_OK);
    CHECK(m.axes == 2 && m.axis[1].stride == 1 && strcmp(m.axis[1].name, "b") == 0);
    CHECK_INT(dpar_mesh_init_from_order(&m, "long-long-long", "", size, 0, &why), DPAR_E_UNKNOWN);
    CHECK_TEXT(why.text, "'long' is in the order, but has no size");
    CHECK_INT(dpar_mesh_init_from_order(&m, "a", "aa", size, 0, &why), DPAR_E_UNKNOWN);
    CHECK_INT(dpar_mesh_init_from_order(&m, "aa", "a", size, 0, &why), DPAR_E_UNKNOWN);
    CHECK_INT(
        dpar_mesh_init_from_order(&m, "a_word_of_34_characters__________x", "", size, 0, &why),
        DPAR_E_UNKNOWN); /* the message quotes 32 characters */
    CHECK_TEXT(why.text, "'a_word_of_34_characters_________' is in the order, but has no size");
    CHECK_INT(dpar_mesh_init_from_order(&m, "a-b-b", "a b c", size, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "'b' is in the order twice");
    CHECK_INT(dpar_mesh_init_from_order(&m, "c", "b c", size + 1, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "'b' has size 2, but is not in the order");
    CHECK_INT(dpar_mesh_init_from_order(&m, "b", "a a b", size, 0, &why), DPAR_E_ARG);
    for (k = 0; k < 3; k++) {
        CHECK_INT(dpar_mesh_init_from_order(&m, order[k], axis_names(8), size, 4, NULL), DPAR_OK);
        CHECK_INT(m.axes, 8);
        CHECK_TEXT(m.axis[7].name, k == 0 ? "a" : "h");
        /* a ninth name: it may not be omitted, and there is no memory for it */
        CHECK_INT(dpar_mesh_init_from_order(&m, order[k], axis_names(9), size, 4, &why),
                  DPAR_E_ARG);
        CHECK_TEXT(why.text, "'i' has size 3, but is not in the order");
        size[8] = 1;
        CHECK_INT(dpar_mesh_init_from_order(&m, order[k], axis_names(9), size, 4, &why),
                  DPAR_E_ARG);
        CHECK_TEXT(why.text, "a mesh has at most 8 axes");
        size[8] = 3;
    }
    CHECK_INT(dpar_mesh_init_from_order(&m, "i", axis_names(9), size, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "a mesh has at most 8 axes");
}

/* Checks the longest name, and a rank that does not exist. */
static void test_limits(void)
{
    static const int32_t sizes[] = {2, 3, 4};
    dpar_mesh m, n;
    CHECK_INT(dpar_mesh_init(&m, "fifteen_letters b c", sizes, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK);
    CHECK_INT(dpar_mesh_slice(&n, &m, 7u, 0, NULL), DPAR_OK);
    CHECK_TEXT(n.axis[0].name, "fifteen_letters");
    CHECK(n.axes == 3 && n.size == 24 && dpari_mesh_same(&n, &m));
    CHECK_INT(dpar_mesh_shift(&m, 99, 0, 1, 1), -1);
}

static void test_shift(void)
{
    static const int32_t nodes[] = {2, 1, 2, 4};
    dpar_mesh m;
    int32_t i;
    CHECK_INT(dpar_mesh_init(&m, "dp.node tp.node dp tp", nodes, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK); /* 2 nodes of 2 x 4 */
    CHECK_INT(m.size, 16);
    for (i = 0; i < 16; i++) { /* rank = node 8 + dp 4 + tp; dp as a whole: slow part major */
        CHECK_INT(mesh_coord(&m, i, dpar_mesh_find(&m, "dp.node")), i / 8);
        CHECK_INT(dpar_mesh_group_index(&m, set_of(&m, "dp", "dp.node", NULL), i),
                  i / 8 * 2 + i / 4 % 2);
    }
    for (i = 0; i < 20; i++) { /* shift along dp.node and tp */
        CHECK_INT(dpar_mesh_shift(&m, 5, 3, i - 10, 1), 4 + (1 + i - 10 + 20) % 4);
        CHECK_INT(dpar_mesh_shift(&m, 5, 3, i - 10, 0), i - 10 >= -1 && i - 10 <= 2 ? i - 5 : -1);
    }
    CHECK_INT(dpar_mesh_shift(&m, 4, 3, 1, 0), 5); /* from its first coordinate on */
    CHECK_INT(dpar_mesh_shift(&m, 4, 0, 1, 0), 12); /* along the first axis */
    CHECK_INT(dpar_mesh_shift(&m, 4, -1, 1, 0), -1);
    CHECK_INT(dpar_mesh_shift(&m, 4, 3, -1, 1), 7);
    CHECK_INT(dpar_mesh_shift(&m, 16, 3, 1, 1), -1);
    CHECK_INT(dpar_mesh_shift(&m, 5, 3, INT64_MIN, 0), -1);
    CHECK_INT(dpar_mesh_shift(&m, 5, 3, INT64_MIN, 1), 5); /* 2^63 is a multiple of 4 */
}

static void test_more_refusals(void)
{
    static const int32_t size[] = {2, 3}, one[] = {2};
    dpar_mesh m, v;
    dpar_why why;
    CHECK_INT(dpar_mesh_init_from_order(&m, "tp-cp", "tp dp", size, 0, &why), DPAR_E_UNKNOWN);
    CHECK_TEXT(why.text, "'cp' is in the order, but has no size");
    CHECK_INT(dpar_mesh_init_from_order(&m, "tp", "tp dp", size, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "'dp' has size 3, but is not in the order");
    CHECK_INT(dpar_mesh_init_from_order(&m, "tp-tp", "tp dp", size, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_mesh_init_from_order(&m, "tp-dp", "tp dp", size, 7, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "the axes make 6 ranks, but there are 7");
    CHECK_INT(dpar_mesh_init_from_order(&m, "tp-dp", "tp dp", size, 6, &why), DPAR_OK);
    m.first_rank = 10;
    CHECK_INT(dpar_mesh_rank(&m, one), -1); /* tp = 2 of 2 */
    CHECK_INT(dpar_mesh_slice(&v, &m, 1u, 9, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 9 is not in the mesh of 6 ranks from 10 on");
}

/* Checks limits and refusals one by one. */
static void test_edges(void)
{
    int32_t size[9], k;
    dpar_mesh m, other, out;
    dpar_why why;
    for (k = 0; k < 9; k++) {
        size[k] = 2;
    }
    CHECK_INT(dpar_mesh_init(&m, "a b c d e f g h", size, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK);
    CHECK_INT(dpar_mesh_init(&out, "a b c d e f g h i", size, DPAR_ORDER_LAST_FASTEST, 0, &why),
              DPAR_E_ARG);
    CHECK_INT(dpar_mesh_init(&out, "a b", size, DPAR_ORDER_LAST_FASTEST, -4, &why), DPAR_E_ARG);
    size[0] = INT32_MAX; /* the largest number of ranks */
    size[1] = 1;
    CHECK_INT(dpar_mesh_init(&out, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(out.size, INT32_MAX);
    size[1] = 2;
    CHECK_INT(dpar_mesh_init(&out, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, &why), DPAR_E_RANGE);
    size[0] = 3;
    size[1] = -1;
    CHECK_INT(dpar_mesh_init(&out, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, &why), DPAR_E_ARG);
    size[0] = 1; /* one rank in all, still reported and checked */
    CHECK_INT(dpar_mesh_init(&out, "a b", size, DPAR_ORDER_LAST_FASTEST, 1, NULL), DPAR_OK);
    size[0] = size[1] = -1;
    CHECK_INT(dpar_mesh_init(&out, "a b", size, DPAR_ORDER_LAST_FASTEST, 4, &why), DPAR_E_ARG);
    size[0] = 2;
    size[1] = 1;
    CHECK_INT(dpar_mesh_init(&out, "a b", size, DPAR_ORDER_LAST_FASTEST, 1, &why), DPAR_E_DIVIDE);
    /* compares sizes, strides and the first rank, but not names or strides of one rank */
    size[0] = 2;
    size[1] = 3;
    CHECK_INT(dpar_mesh_init(&m, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK(dpari_mesh_same(&m, &m));
    other = m;
    other.axes = 1;
    CHECK(!dpari_mesh_same(&m, &other));
    other = m;
    other.first_rank = 1;
    CHECK(!dpari_mesh_same(&m, &other));
    for (k = 0; k < 2; k++) {
        other = m;
        other.axis[k].stride += 7;
        CHECK(!dpari_mesh_same(&m, &other));
        other = m;
        other.axis[k].size += 1;
        CHECK(!dpari_mesh_same(&m, &other));
    }
    other = m;
    other.axis[1].size = m.axis[1].size = 1;
    other.axis[1].stride = 5;
    CHECK(dpari_mesh_same(&m, &other));
    /* injective: strides of at least 1 where there are two ranks, the last axis too */
    for (k = 0; k < 2; k++) {
        CHECK_INT(dpar_mesh_init(&m, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        m.axis[k].stride = 0;
        CHECK(!dpari_mesh_injective(&m));
        m.axis[k].size = 1;
        CHECK(dpari_mesh_injective(&m));
    }
}

int main(void)
{
    test_brute_force();
    test_megatron();
    test_offset();
    test_refusals();
    test_megatron_groups();
    test_layout_algebra();
    test_more_vectors();
    test_any_strides();
    test_agree();
    test_view();
    test_nodes();
    test_ordered();
    test_limits();
    test_shift();
    test_more_refusals();
    test_edges();
    return CHECK_DONE();
}
