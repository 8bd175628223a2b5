/* SPDX-License-Identifier: MIT-0 */
/* mesh: brute force over every mesh of up to 3 axes and 64 ranks, both orders; Megatron's closed
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
        for (size[0] = 1; size[0] <= 4; size[0]++) {
            for (size[1] = 1; size[1] <= 4; size[1]++) {
                for (size[2] = 1; size[2] <= 4; size[2]++) {
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

/* Megatron, order tp-cp-dp-pp: dp group (i, j) = {i n + j, step tp cp, to (i+1) n}, n = W/pp. */
static void test_megatron(void)
{
    static const char *const axis[] = {"tp", "cp", "dp", "pp"};
    static const int32_t size[] = {4, 2, 3, 5};
    dpar_mesh m;
    int32_t rank, n = 4 * 2 * 3, i;
    CHECK_INT(dpar_mesh_init(&m, 4, axis, size, DPAR_FIRST_FASTEST, 120, NULL), DPAR_OK);
    CHECK_INT(dpar_mesh_find(&m, "dp"), 2);
    CHECK_INT(dpar_mesh_find(&m, "ep"), -1);
    for (rank = 0; rank < 120; rank++) {
        int32_t base = rank / n * n + rank % 8;
        for (i = 0; i < 3; i++) {
            CHECK_INT(dpar_mesh_group_member(&m, 1u << 2, rank, i), base + 8 * i);
        }
        for (i = 0; i < 5; i++) { /* pp: {i, step n} */
            CHECK_INT(dpar_mesh_group_member(&m, 1u << 3, rank, i), rank % n + n * i);
        }
    }
}

static void test_refusals(void)
{
    static const char *const axis[] = {"tp", "dp"};
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
}

int main(void)
{
    test_brute_force();
    test_megatron();
    test_refusals();
    return CHECK_DONE();
}
