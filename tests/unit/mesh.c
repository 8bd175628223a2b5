/* SPDX-License-Identifier: MIT-0 */
/* mesh: brute force over every mesh of 3 axes and up to 64 ranks, both orders; Megatron's closed
 * forms (its own test's formulas for order tp-cp-ep-dp-pp). */
#include "dpar.h"

#include "check.h"

static const char *const names[] = {"a", "b", "c"};

/* Ranks that share every coordinate but those of `which`, in ascending order. */
static int members(const dpar_mesh *m, uint32_t which, int rank, int *out)
{
    int r, n = 0, axis;
    for (r = 0; r < m->size; r++) {
        int same = 1;
        for (axis = 0; axis < m->axes; axis++) {
            same = same && ((which >> axis & 1u) ||
                            dpar_mesh_coord(m, r, axis) == dpar_mesh_coord(m, rank, axis));
        }
        if (same) {
            out[n++] = r;
        }
    }
    return n;
}

static void check_groups(const dpar_mesh *m)
{
    int list[64], rank, i, n, node;
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
            for (node = 1; node <= 8; node *= 2) {
                int count[64] = {0}, nodes = 0, most = 0;
                int32_t got_nodes, got_most;
                for (i = 0; i < n; i++) {
                    nodes += count[list[i] / node]++ == 0;
                    most = count[list[i] / node] > most ? count[list[i] / node] : most;
                }
                dpar_mesh_group_nodes(m, which, rank, node, &got_nodes, &got_most);
                CHECK_INT(got_nodes, nodes);
                CHECK_INT(got_most, most);
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
                    CHECK_INT(dpar_mesh_init(&m, 3, names, size, order, 0, NULL), DPAR_OK);
                    CHECK_INT(m.size, size[0] * size[1] * size[2]);
                    for (rank = 0; rank < m.size; rank++) {
                        /* last fastest: rank = (c0 n1 + c1) n2 + c2, and mirrored */
                        int32_t e = order == DPAR_LAST_FASTEST ? 2 : 0, s = 2 - e;
                        c[e] = rank % size[e];
                        c[1] = rank / size[e] % size[1];
                        c[s] = rank / size[e] / size[1];
                        CHECK_INT(dpar_mesh_coord(&m, rank, 0), c[0]);
                        CHECK_INT(dpar_mesh_coord(&m, rank, 1), c[1]);
                        CHECK_INT(dpar_mesh_coord(&m, rank, 2), c[2]);
                        CHECK_INT(dpar_mesh_rank(&m, c), rank);
                    }
                    check_groups(&m);
                }
            }
        }
    }
}

/* The members of the group of `rank` must be first, first + step, ... */
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
 * tp {i tp ..}; cp {i n + j tp cp + k, step tp}; dp {i n + j, step tp cp}; dp with cp {i n + j, step
 * tp}; pp {i, step n}; tp with pp: the i-th members of every "dp with cp" group. */
static void check_megatron(int32_t tp, int32_t cp, int32_t dp, int32_t pp)
{
    static const char *const axis[] = {"tp", "cp", "dp", "pp"};
    int32_t size[4], rank, i, n = tp * cp * dp;
    dpar_mesh m;
    size[0] = tp;
    size[1] = cp;
    size[2] = dp;
    size[3] = pp;
    CHECK_INT(dpar_mesh_init(&m, 4, axis, size, DPAR_FIRST_FASTEST, n * pp, NULL), DPAR_OK);
    CHECK_INT(dpar_mesh_find(&m, "dp"), 2);
    CHECK_INT(dpar_mesh_find(&m, "ep"), -1);
    for (rank = 0; rank < n * pp; rank += n > 512 ? 37 : 1) {
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

/* Ranks may begin anywhere; what lies outside has no place. */
static void test_offset(void)
{
    static const char *const axis[] = {"tp", "dp"};
    static const int32_t size[] = {4, 3};
    int32_t coord[2] = {1, 2}, nodes, most;
    dpar_mesh m;
    CHECK_INT(dpar_mesh_init(&m, 2, axis, size, DPAR_FIRST_FASTEST, 0, NULL), DPAR_OK);
    m.offset = 6;
    CHECK_INT(dpar_mesh_rank(&m, coord), 6 + 1 + 8);
    CHECK_INT(dpar_mesh_coord(&m, 15, 1), 2);
    CHECK_INT(dpar_mesh_group_member(&m, 1u, 15, 3), 17);
    dpar_mesh_group_nodes(&m, 1u, 6, 8, &nodes, &most); /* 6 7 | 8 9 */
    CHECK_INT(nodes, 2);
    CHECK_INT(most, 2);
    CHECK_INT(dpar_mesh_coord(&m, 5, 0), -1);
    CHECK_INT(dpar_mesh_coord(&m, 18, 0), -1);
    CHECK_INT(dpar_mesh_coord(&m, -2147483647 - 1, 0), -1);
    CHECK_INT(dpar_mesh_coord(&m, 2147483647, 0), -1);
    CHECK_INT(dpar_mesh_coord(&m, 7, 2), -1);
    CHECK_INT(dpar_mesh_group_member(&m, 1u, 5, 0), -1);
    CHECK_INT(dpar_mesh_group_member(&m, 1u, 7, 4), -1);
    CHECK_INT(dpar_mesh_group_index(&m, 1u, 18), -1);
    coord[0] = 4;
    CHECK_INT(dpar_mesh_rank(&m, coord), -1);
    CHECK_INT(dpar_mesh_init(&m, 0, axis, size, DPAR_FIRST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(m.size, 1);
}

static void test_refusals(void)
{
    static const char *const axis[] = {"tp", "dp"}, *const twice[] = {"dp", "dp"};
    static const char *const long_name[] = {"sixteen_letters_"};
    int32_t size[2] = {4, -1};
    dpar_mesh m, before;
    dpar_why why;
    memset(&m, 7, sizeof m);
    before = m;
    CHECK_INT(dpar_mesh_init(&m, 2, axis, size, DPAR_FIRST_FASTEST, 10, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "the other axes' 4 ranks do not divide 10");
    CHECK(memcmp(&m, &before, sizeof m) == 0); /* written only on success */
    CHECK_INT(dpar_mesh_init(&m, 2, axis, size, DPAR_FIRST_FASTEST, 12, &why), DPAR_OK);
    CHECK_INT(m.axis[1].size, 3);
    size[1] = 0;
    CHECK_INT(dpar_mesh_init(&m, 2, axis, size, DPAR_FIRST_FASTEST, 12, &why), DPAR_E_ARG);
    size[0] = size[1] = 2147483647;
    CHECK_INT(dpar_mesh_init(&m, 2, axis, size, DPAR_FIRST_FASTEST, 0, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_mesh_init(&m, 9, axis, size, DPAR_FIRST_FASTEST, 0, &why), DPAR_E_ARG);
    size[0] = size[1] = 2;
    CHECK_INT(dpar_mesh_init(&m, 2, twice, size, DPAR_FIRST_FASTEST, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "axes 0 and 1 are both called 'dp'");
    CHECK_INT(dpar_mesh_init(&m, 1, long_name, size, DPAR_FIRST_FASTEST, 0, &why), DPAR_E_ARG);
}

int main(void)
{
    test_brute_force();
    test_megatron();
    test_offset();
    test_refusals();
    return CHECK_DONE();
}
