/* SPDX-License-Identifier: MIT-0 */
/* Computes many results of this header, mixes them into checksums and compares these with constants
 * that were computed on other targets. */
#include "selftest.h"

#include "halo.h"
#include "index_private.h"
#include "redistribute.h"

DPARI_API DPARI_COLD uint32_t dpari_digest(uint32_t sum, int64_t v)
{
    const uint32_t prime = UINT32_C(16777619); /* FNV-1a over the two halves of v */
    sum = (sum ^ (uint32_t)(v & INT64_C(0xffffffff))) * prime;
    return (sum ^ (uint32_t)((uint64_t)v >> 32)) * prime;
}

DPARI_API DPARI_COLD dpar_status dpari_differs(uint32_t sum, uint32_t right, const char *what,
                                               dpar_why *why)
{
    if (sum == right) {
        return DPAR_OK;
    }
    return dpari_say(DPAR_E_MISMATCH, why,
                     "%s differ here (checksum %ld, not %ld): a fault of the compiler", what,
                     (int64_t)sum, (int64_t)right);
}

/* Division, products and shifts of 64 bits, which small processors leave to the compiler's library.
 * The dividend is `volatile`, so that no compiler computes the results beforehand. */
static DPARI_COLD uint32_t dpari_prove_arithmetic(void)
{
    volatile int64_t dividend = INT64_C(-7000000000000000001);
    uint32_t sum = 0;
    int64_t by;
    for (by = 3; by < INT64_MAX / 2000; by = by * 1291 + 7) {
        sum = dpari_digest(sum, dividend / by);
        sum = dpari_digest(sum, (int64_t)((uint64_t)dividend % (uint64_t)by >> (by & 31)));
    }
    return sum;
}

static DPARI_COLD uint32_t dpari_prove_splits(void)
{
    dpar_split s;
    uint32_t sum = 0;
    int64_t i, local;
    int32_t rule;
    for (rule = 0; rule < DPAR_SPLIT_RULE_COUNT; rule++) {
        /* refuses RAGGED, so that the split before it is used again */
        dpar_split_init(&s, rule, INT64_C(100000000019), 7, 3, NULL);
        for (i = 1; i < s.count; i *= 9) {
            sum = dpari_digest(sum, dpar_split_locate(&s, i, &local, NULL));
            sum = dpari_digest(sum, local);
        }
    }
    return sum;
}

/* 11 x 13 cells on 2 x 3 ranks, a ring in x, folded in the north. The grid is made in place,
 * because this must run in 4 KB. */
static DPARI_COLD uint32_t dpari_prove_halos(void)
{
    static const int32_t sizes[2] = {2, 3};
    dpar_halo h;
    dpar_layout *layout = &h.grid;
    dpar_halo_cursor walk;
    dpar_transfer t;
    uint32_t sum = 0;
    int32_t i;
    dpari_zero(&h, sizeof(h));
    h.folds = h.mirror = 1;
    h.periodic = 2;
    for (i = 0; i < 2; i++) {
        layout->extent[i] = 11 + 2 * i;
        layout->axis[i].kind = DPAR_PLACEMENT_SHARD;
        layout->axis[i].dim = i;
        h.low[i] = h.high[i] = 2;
    }
    dpar_mesh_init(&layout->mesh, "y x", sizes, DPAR_ORDER_LAST_FASTEST, 0, NULL);
    dpar_layout_init(layout, &layout->mesh, 2, layout->extent, layout->axis, NULL);
    for (i = 0; i < 6; i++) {
        dpar_halo_first(&walk, &h, i, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL);
        while (dpar_halo_next(&walk, &t)) {
            sum = dpari_digest(sum, t.peer * t.mine[0] + t.theirs[1]);
        }
    }
    return sum;
}

/* The checksums come from x86-64; tests/embedded/golden.txt has more detailed ones of all
 * targets. */
DPAR_API DPARI_COLD dpar_status dpar_selftest(dpar_why *why)
{
    dpar_status st =
        dpari_differs(dpari_prove_arithmetic(), UINT32_C(1066461148), "64-bit divisions", why);
    if (st == DPAR_OK) {
        st = dpari_differs(dpari_prove_splits(), UINT32_C(1507437185), "splits", why);
    }
    if (st == DPAR_OK) {
        st = dpari_differs(dpari_prove_halos(), UINT32_C(2509784167), "halos", why);
    }
    return st;
}
