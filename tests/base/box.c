/* SPDX-License-Identifier: MIT-0 */
/* Tests boxes: volumes, intersections and containment, by counting every cell of small boxes, and
 * volumes at the limits of 64 bits. Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"

static dpar_box box_of(int32_t dims, int64_t lo0, int64_t hi0, int64_t lo1, int64_t hi1)
{
    dpar_box box;
    memset(&box, 0, sizeof(box));
    box.dims = dims;
    box.lo[0] = lo0;
    box.hi[0] = hi0;
    box.lo[1] = lo1;
    box.hi[1] = hi1;
    return box;
}

static int has_cell(const dpar_box *box, int64_t y, int64_t x)
{
    return y >= box->lo[0] && y < box->hi[0] && x >= box->lo[1] && x < box->hi[1];
}

/* Compares two boxes of two dims whose bounds are between -2 and 2 with their cells. */
static void compare(const dpar_box *a, const dpar_box *b)
{
    int64_t cells = 0, common = 0, y, x;
    dpar_box both = box_of(0, 7, 7, 7, 7);
    int meet;
    for (y = -2; y < 2; y++) {
        for (x = -2; x < 2; x++) {
            cells += has_cell(b, y, x);
            common += has_cell(a, y, x) && has_cell(b, y, x);
        }
    }
    CHECK_INT(dpar_box_volume(b), cells);
    meet = dpari_box_intersect(a, b, &both);
    CHECK_INT(meet, common > 0);
    if (!meet) {
        CHECK(both.dims == 0 && both.lo[0] == 7); /* written only if there is an intersection */
    } else {
        CHECK_INT(dpar_box_volume(&both), common);
        for (y = -2; y < 2; y++) {
            for (x = -2; x < 2; x++) {
                CHECK_INT(has_cell(&both, y, x), has_cell(a, y, x) && has_cell(b, y, x));
            }
        }
    }
    /* A box contains another if no cell of the other is outside. */
    CHECK_INT(dpari_box_contains(a, b), common == cells);
}

/* Returns number `n` of the 25 pairs of bounds from -2 to 2, including empty and reversed ones. */
static dpar_box numbered(int32_t n)
{
    return box_of(2, n % 5 - 2, n / 5 % 5 - 2, n / 25 % 5 - 2, n / 125 % 5 - 2);
}

static void test_small(void)
{
    for (int32_t i = 0; i < 625; i++) {
        const dpar_box a = numbered(i);
        for (int32_t j = 0; j < 625; j += 7) {
            const dpar_box b = numbered((j + i) % 625);
            compare(&a, &b);
        }
    }
}

static void test_dims(void)
{
    const dpar_box line = box_of(1, 0, 4, 0, 0), plane = box_of(2, 0, 4, 0, 4);
    const dpar_box point = box_of(0, 0, 0, 0, 0);
    dpar_box both;
    CHECK_INT(dpar_box_volume(&point), 1); /* the product of no extents */
    CHECK(!dpari_box_intersect(&line, &plane, &both));
    CHECK(!dpari_box_contains(&plane, &line));
    CHECK(dpari_box_contains(&point, &point));
}

/* Checks that the result is -1 if the number of elements does not fit in 63 bits. An empty box has
 * 0 elements, however large its other dims are. */
static void test_limits(void)
{
    dpar_box box = box_of(2, 0, INT64_C(3037000499), 0, INT64_C(3037000499));
    dpar_transfer transfer;
    CHECK_INT(dpar_box_volume(&box), INT64_C(9223372030926249001));
    box.hi[1] = INT64_C(3037000500);
    box.hi[0] = INT64_C(3037000500);
    CHECK_INT(dpar_box_volume(&box), -1);
    box = box_of(2, INT64_MIN, INT64_MAX, 0, 1);
    CHECK_INT(dpar_box_volume(&box), -1);
    box = box_of(2, -1, INT64_MAX - 1, 0, 1);
    CHECK_INT(dpar_box_volume(&box), INT64_MAX);
    box.hi[0] = INT64_MAX;
    CHECK_INT(dpar_box_volume(&box), -1);
    box = box_of(2, INT64_MIN, INT64_MAX, 5, 5);
    CHECK_INT(dpar_box_volume(&box), 0);

    memset(&transfer, 0, sizeof(transfer));
    CHECK_INT(dpar_transfer_volume(&transfer), 1);
    transfer.dims = 3;
    transfer.extent[0] = 2;
    transfer.extent[1] = 3;
    transfer.extent[2] = 7;
    CHECK_INT(dpar_transfer_volume(&transfer), 42);
    transfer.extent[2] = INT64_MAX / 4;
    CHECK_INT(dpar_transfer_volume(&transfer), -1);
}

int main(void)
{
    test_small();
    test_dims();
    test_limits();
    return CHECK_DONE();
}
