/* SPDX-License-Identifier: MIT-0 */
/* Tests layout: compares all placements on all small meshes with lists of indices; vectors A1-A12,
 * A14, A18-A20 and B10 of facts/index_math.md (pytorch test/distributed/tensor/test_utils.py and
 * neighbouring files). Run with: tests/run test index. */
#include "dpar.h"

#include "axes.h"
#include "check.h"
#include "layout_oracle.h"

enum { MOST = 64 };

/* ---- brute force ----------------------------------------------------------------------------- */

static void check_dim(const dpar_layout *l, int rank, const int32_t *coord, int dim,
                      const int *list, int n)
{
    int32_t found[DPAR_MAX_AXES];
    int64_t local, run, back;
    int i, k, len;
    for (i = 0; i < n; i++) {
        CHECK_INT(dpar_layout_global(l, rank, dim, i, &run), list[i]);
        for (len = 1; i + len < n && list[i + len] == list[i] + len; len++) {
        }
        CHECK_INT(run, len);
        for (k = 0; k < l->mesh.axes; k++) {
            found[k] = -7;
        }
        CHECK(dpar_layout_locate(l, dim, list[i], found, &local, &back));
        CHECK_INT(local, i);
        CHECK_INT(back, len);
        for (k = 0; k < l->mesh.axes; k++) {
            int cuts = l->axis[k].kind == DPAR_PLACEMENT_SHARD && l->axis[k].dim == dim;
            CHECK_INT(found[k], cuts ? coord[k] : -7);
        }
    }
    CHECK_INT(dpar_layout_global(l, rank, dim, n, &run), -1);
    for (i = 0, k = 0; i <= l->extent[dim]; i++) {
        while (k < n && list[k] < i) {
            k++;
        }
        CHECK_INT(dpari_layout_before(l, rank, dim, i), k);
    }
}

static void check_boxes(const dpar_layout *l, int rank, int64_t elements)
{
    dpar_box_cursor cursor;
    dpar_box box;
    int64_t at[DPAR_MAX_DIMS], seen = 0, i, j;
    memset(&cursor, 0, sizeof cursor);
    while (dpar_layout_next(l, rank, &cursor, &box, at)) {
        seen += dpar_box_volume(&box);
        for (i = box.lo[0]; i < box.hi[0]; i++) {
            for (j = l->dims > 1 ? box.lo[1] : 0; j < (l->dims > 1 ? box.hi[1] : 1); j++) {
                CHECK_INT(dpari_layout_before(l, rank, 0, i), at[0] + i - box.lo[0]);
                CHECK(l->dims < 2 || dpari_layout_before(l, rank, 1, j) == at[1] + j - box.lo[1]);
            }
        }
    }
    CHECK_INT(seen, elements);
}

static void check_owners(const dpar_layout *l)
{
    int64_t index[2], local[2], i, j, columns = l->dims > 1 ? l->extent[1] : 1;
    int32_t copy, copies = dpari_layout_copies(l), rank, held[MOST];
    int64_t run;
    for (rank = 0; rank < l->mesh.size; rank++) {
        held[rank] = 0;
    }
    for (i = 0; i < l->extent[0]; i++) {
        for (j = 0; j < columns; j++) {
            index[0] = i;
            index[1] = j;
            for (copy = 0; copy < copies; copy++) {
                rank = dpar_layout_owner(l, index, copy, local);
                CHECK(rank >= 0 && rank < l->mesh.size);
                CHECK_INT(dpar_layout_owner(l, index, copy, NULL), rank);
                CHECK_INT(dpar_layout_is_primary(l, rank), copy == 0);
                CHECK_INT(dpar_layout_global(l, rank, 0, local[0], &run), i);
                CHECK(l->dims < 2 || dpar_layout_global(l, rank, 1, local[1], &run) == j);
                held[rank]++;
            }
            CHECK_INT(dpar_layout_owner(l, index, copies, local), -1);
        }
    }
    for (rank = 0; rank < l->mesh.size; rank++) {
        CHECK_INT(dpar_layout_count(l, rank), held[rank]);
    }
}

static void check_layout(const dpar_layout *l)
{
    int64_t shape[2], offset[2], stride[2];
    int list[MOST], rank, d, n;
    int32_t coord[DPAR_MAX_AXES];
    for (rank = 0; rank < l->mesh.size; rank++) {
        int64_t elements = 1;
        dpar_layout_local(l, rank, shape, offset);
        CHECK(dpar_mesh_coords(&l->mesh, rank, coord));
        for (d = 0; d < l->dims; d++) {
            int64_t lo = -5, hi = -5;
            n = owned(l, coord, d, list);
            CHECK_INT(shape[d], n);
            CHECK_INT(dpari_layout_span(l, coord, d, &lo, &hi), n > 0);
            CHECK_INT(lo, n > 0 ? list[0] : -5);
            CHECK_INT(hi, n > 0 ? list[n - 1] + 1 : -5);
            CHECK_INT(offset[d], n > 0 ? list[0] : l->extent[d]);
            check_dim(l, rank, coord, d, list, n);
            elements *= n;
        }
        CHECK_INT(dpar_layout_count(l, rank), elements);
        check_boxes(l, rank, elements);
        dpar_layout_strides(l, rank, NULL, stride);
        CHECK_INT(stride[l->dims - 1], 1);
        CHECK(l->dims < 2 || stride[0] == (shape[1] > 0 ? shape[1] : 1));
    }
    check_owners(l);
    CHECK(dpari_layout_same(l, l));
    dpar_layout_local(l, l->mesh.size, shape, offset);
    CHECK(shape[0] == 0 && offset[0] == l->extent[0]);
    CHECK_INT(dpar_layout_count(l, -1), 0);
}

static const int32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* Checks meshes of 3 axes of 1 to 3 ranks and arrays of 1 and 2 dims, with replicate, partial or
 * any rule on any dim for each axis, in all orders. Because all combinations are too many, takes
 * every k-th of them, with k prime. */
static void test_brute_force(void)
{
    static const int64_t extent[][2] = {{0, 3}, {1, 1}, {5, 2}, {7, 4}, {12, 3}, {13, 5}};
    static const int rules[] = {DPAR_SPLIT_CHUNK,        DPAR_SPLIT_EVEN,    DPAR_SPLIT_FLOOR,
                                DPAR_SPLIT_BLOCK_CYCLIC, DPAR_SPLIT_STRIDED, DPAR_SPLIT_ZIGZAG,
                                DPAR_SPLIT_CYCLIC};
    int code, dims, tried = 0;
    for (code = 0; code < 27 * 6 * 6 * 16 * 16 * 16; code += 97) {
        dpar_placement placement[3];
        int32_t size[3], i, rest = code;
        dpar_mesh mesh;
        dpar_layout l;
        const int64_t *e;
        const int32_t *order;
        for (i = 0; i < 3; i++, rest /= 3) {
            size[i] = 1 + rest % 3;
        }
        e = extent[rest % 6];
        order = orders[rest / 6 % 6];
        rest /= 36;
        dims = 1 + code % 2;
        for (i = 0; i < 3; i++, rest /= 16) {
            int what = rest % 16;
            placement[i] =
                what == 0   ? dpar_replicate()
                : what == 1 ? dpar_partial(DPAR_SUM)
                            : dpar_shard_by(what % dims, rules[(what - 2) / 2], 1 + (code / 5) % 3);
            placement[i].source = placement[i].rule == DPAR_SPLIT_BLOCK_CYCLIC ? code % size[i] : 0;
        }
        CHECK_INT(dpar_mesh_init(&mesh, "a b c", size, code % 2, 0, NULL), DPAR_OK);
        cut_in(placement, 3, order);
        CHECK_INT(dpar_layout_init(&l, &mesh, dims, e, placement, NULL), DPAR_OK);
        check_layout(&l);
        tried++;
    }
    CHECK(tried > 10000);
}

/* ---- vectors --------------------------------------------------------------------------------- */

static dpar_layout on(int32_t axes, const int32_t *size, int32_t dims, const int64_t *extent,
                      dpar_placement a, dpar_placement b, dpar_placement c)
{
    dpar_placement placement[3];
    dpar_mesh mesh;
    dpar_layout l;
    placement[0] = a;
    placement[1] = b;
    placement[2] = c;
    CHECK_INT(dpar_mesh_init(&mesh, axis_names(axes), size, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK);
    CHECK_INT(dpar_layout_init(&l, &mesh, dims, extent, placement, NULL), DPAR_OK);
    return l;
}

static dpar_placement ss(int32_t dim, int64_t factor)
{
    return dpar_shard_by(dim, DPAR_SPLIT_STRIDED, factor);
}

/* Checks (size, offset) of every rank of a 1-d array. */
static void lie(int64_t n, int32_t rows, int32_t columns, dpar_placement a, dpar_placement b,
                const int *expect)
{
    int32_t size[2], rank;
    dpar_layout l;
    size[0] = rows;
    size[1] = columns;
    l = on(2, size, 1, &n, a, b, b);
    for (rank = 0; rank < rows * columns; rank++) {
        int64_t shape, offset;
        dpar_layout_local(&l, rank, &shape, &offset);
        CHECK_INT(shape, expect[2 * rank]);
        CHECK_INT(offset, expect[2 * rank + 1]);
    }
}

static void owns(const dpar_layout *l, int32_t rank, int32_t dim, const int *expect, int n)
{
    int64_t run;
    int i;
    for (i = 0; i < n; i++) {
        CHECK_INT(dpar_layout_global(l, rank, dim, i, &run), expect[i]);
    }
    CHECK_INT(dpar_layout_global(l, rank, dim, n, &run), -1);
}

#define ARE64(...)                                                                                 \
    (const int64_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define ARE(...)                                                                                   \
    (const int[])                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void test_nested(void)
{
    static const int32_t a1_size[] = {30, 8}, by22[] = {2, 2}, by42[] = {4, 2};
    static const int64_t n4096 = 4096, a7[] = {2, 5}, a8[] = {8, 8}, n18 = 18, n8 = 8,
                         a14[] = {4, 8, 4};
    static const int64_t a10[] = {2, 4}, a18[] = {4, 2};
    static const int32_t two = 2;
    dpar_placement s0 = dpar_shard(0), s1 = dpar_shard(1);
    dpar_layout l = on(2, a1_size, 1, &n4096, ss(0, 8), s0, s0); /* A1 */
    int64_t shape[3], offset[3], stride[3];
    int d, t;
    for (d = 0; d < 30; d++) {
        for (t = 0; t < 8; t++) {
            dpar_layout_local(&l, d * 8 + t, shape, offset);
            CHECK_INT(shape[0], d < 28 ? 18 : d == 28 ? 8 : 0);
            CHECK_INT(offset[0], d < 28 ? 512 * t + 18 * d : d == 28 ? 512 * t + 504 : 4096);
        }
    }
    lie(18, 4, 2, s0, s0, ARE(3, 0, 2, 3, 3, 5, 2, 8, 3, 10, 2, 13, 2, 15, 1, 17));       /* A2 */
    lie(13, 4, 2, s0, s0, ARE(2, 0, 2, 2, 2, 4, 2, 6, 2, 8, 2, 10, 1, 12, 0, 13));        /* A3 */
    lie(18, 4, 2, ss(0, 2), s0, ARE(3, 0, 3, 9, 3, 3, 3, 12, 3, 6, 3, 15, 0, 18, 0, 18)); /* A4 */
    lie(18, 4, 2, s0, ss(0, 2), ARE(3, 0, 2, 2, 3, 5, 2, 7, 3, 10, 2, 12, 2, 15, 1, 16)); /* A5 */
    l = on(2, by42, 1, &n18, s0, ss(0, 2), s0);
    owns(&l, 0, 0, ARE(0, 1, 3), 3);
    owns(&l, 1, 0, ARE(2, 4), 2);
    lie(15, 4, 2, ss(0, 2), s0, ARE(2, 0, 2, 8, 2, 2, 2, 10, 2, 4, 2, 12, 2, 6, 1, 14)); /* A6 */
    l = on(2, by22, 2, a7, s1, s1, s1);                                                  /* A7 */
    for (t = 0; t < 4; t++) {
        static const int columns[] = {2, 1, 1, 1}, at[] = {0, 2, 3, 4};
        dpar_layout_local(&l, t, shape, offset);
        CHECK(shape[0] == 2 && offset[0] == 0 && shape[1] == columns[t] && offset[1] == at[t]);
    }
    l = on(2, by22, 2, a8, s0, s0, s0); /* A8: row blocks of 2 */
    for (t = 0; t < 4; t++) {
        dpar_layout_local(&l, t, shape, offset);
        CHECK(shape[0] == 2 && offset[0] == 2 * t);
    }
    l = on(2, by22, 2, a8, ss(0, 2), s0, s0);
    for (t = 0; t < 4; t++) {
        static const int block[] = {0, 2, 1, 3};
        dpar_layout_local(&l, t, shape, offset);
        CHECK(shape[0] == 2 && offset[0] == 2 * block[t]);
    }
    l = on(1, &two, 1, &n8, ss(0, 2), s0, s0); /* A9; A12 is in tests/index/split.c */
    owns(&l, 0, 0, ARE(0, 1, 4, 5), 4);
    l = on(2, by22, 2, a10, ss(1, 2), s1, s1); /* A10: columns 0, 2, 1, 3 of values 0..7 */
    owns(&l, 0, 1, ARE(0), 1);
    owns(&l, 1, 1, ARE(2), 1);
    owns(&l, 2, 1, ARE(1), 1);
    owns(&l, 3, 1, ARE(3), 1);
    l = on(1, &two, 3, a14, dpar_shard(-1), s0, s0); /* A14: Shard(2), strides of the shard's own */
    dpar_layout_local(&l, 0, shape, offset);
    CHECK(shape[0] == 4 && shape[1] == 8 && shape[2] == 2);
    dpar_layout_strides(&l, 0, NULL, stride);
    CHECK(stride[0] == 16 && stride[1] == 2 && stride[2] == 1);
    dpar_layout_strides(&l, 0, ARE64(32, 1, 8), stride); /* torch keeps the order of the dims */
    CHECK(stride[0] == 16 && stride[1] == 1 && stride[2] == 8);
    dpar_layout_strides(&l, 0, ARE64(1, 4, 32), stride); /* Fortran's */
    CHECK(stride[0] == 1 && stride[1] == 4 && stride[2] == 32);
    dpar_layout_strides(&l, 0, ARE64(7, 7, 7), stride); /* equal: C order */
    CHECK(stride[0] == 16 && stride[1] == 2 && stride[2] == 1);
    dpar_layout_strides(&l, 5, ARE64(1, 4, 32), stride); /* a rank outside the mesh holds nothing */
    CHECK(stride[0] == 1 && stride[1] == 1 && stride[2] == 1);
    for (t = 0; t < 4; t++) { /* A18: rows 0,1,2,3, then 0,2,1,3 */
        l = on(2, by22, 2, a18, s0, s0, s0);
        owns(&l, t, 0, ARE(t), 1);
        l = on(2, by22, 2, a18, ss(0, 2), s0, s0);
        owns(&l, t, 0, ARE(t % 2 * 2 + t / 2), 1);
    }
}

/* Checks A19: FSDP2, 5 rows over 4 ranks: 2 2 1 0. */
static void test_padding(void)
{
    static const int32_t four = 4;
    static const int64_t five = 5;
    static const int rows[] = {2, 2, 1, 0}, begins[] = {0, 2, 4, 5};
    dpar_layout l = on(1, &four, 1, &five, dpar_shard(0), dpar_shard(0), dpar_shard(0));
    int64_t shape, first;
    int32_t rank;
    for (rank = 0; rank < 4; rank++) {
        dpar_layout_local(&l, rank, &shape, NULL);
        CHECK_INT(shape, rows[rank]);
        dpar_layout_local(&l, rank, NULL, &first);
        CHECK_INT(first, begins[rank]);
    }
}

/* ---- refusals, extremes ---------------------------------------------------------------------- */

static void test_refusals(void)
{
    static const int32_t size[] = {2, 3};
    static const int64_t extent[] = {6, 4}, cuts[] = {0, 2, 6}, negative[] = {-1, 4};
    dpar_placement p[2];
    dpar_mesh mesh;
    dpar_layout l, before;
    dpar_why why;
    memset(&l, 3, sizeof l);
    before = l;
    CHECK_INT(dpar_mesh_init(&mesh, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    p[0] = dpar_shard(2);
    p[1] = dpar_replicate();
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "axis 0 shards dim 2, but the array has 2 dims");
    mesh.size = 0;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the mesh has 2 axes and 0 ranks: use dpar_mesh_init");
    mesh.size = 1;
    mesh.axes = -1;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the mesh has -1 axes and 1 ranks: use dpar_mesh_init");
    mesh.axes = DPAR_MAX_AXES + 1;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    CHECK_INT(dpar_mesh_init(&mesh, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    p[0] = dpar_shard(-3);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    p[0] = dpar_partial(DPAR_COPY);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "axis 0: op 0 is not a reduction");
    p[0].kind = 9;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    p[0] = dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, 0);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    p[0] = dpar_shard(0);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, negative, p, &why), DPAR_E_ARG);
    CHECK_INT(dpar_layout_init(&l, &mesh, 7, extent, p, &why), DPAR_E_ARG);
    p[1] = dpar_shard_by(0, DPAR_SPLIT_RAGGED, 0);
    p[1].cuts = cuts;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "axis 1: RAGGED must be the first cut of dim 0");
    p[0] = p[1];
    p[1] = dpar_shard(0);
    p[0].dim = 1;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "the cuts end at 6, but dim 1 has 4 elements");
    CHECK(memcmp(&l, &before, sizeof l) == 0);
    p[0].dim = 0;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, &why), DPAR_OK);
    CHECK_INT(dpar_layout_global(&l, 4, 0, 0, NULL), 4); /* rows 2..6 over 3: 2 2 0 */
    CHECK_INT(dpar_layout_count(&l, 5), 0);
    CHECK_INT(dpar_layout_global(&l, 4, 5, 0, NULL), -1);
    CHECK_INT(dpari_layout_before(&l, 4, -1, 0), 0);
}

static void test_extremes(void)
{
    static const int32_t size[] = {46340, 46341, 1};
    static const int64_t extent[] = {INT64_C(1) << 62, INT64_C(1) << 62};
    dpar_layout l = on(3, size, 2, extent, dpar_shard(0),
                       dpar_shard_by(0, DPAR_SPLIT_STRIDED, 12345), dpar_replicate());
    int64_t index[2] = {0, 0}, local[2], run;
    int32_t coord[DPAR_MAX_AXES], rank;
    int t;
    CHECK_INT(dpar_layout_count(&l, 0), -1);
    for (t = 0; t < 200; t++) {
        index[0] = extent[0] / 200 * t + 7 * t;
        index[1] = extent[1] - 1 - t;
        rank = dpar_layout_owner(&l, index, 0, local);
        CHECK(rank >= 0 && rank < l.mesh.size);
        CHECK_INT(dpar_layout_global(&l, rank, 0, local[0], &run), index[0]);
        CHECK_INT(dpari_layout_before(&l, rank, 0, index[0]), local[0]);
        CHECK(dpar_layout_locate(&l, 0, index[0], coord, local, &run) && run > 0);
    }
    index[0] = extent[0];
    CHECK_INT(dpar_layout_owner(&l, index, 0, local), -1);
}

/* Checks that negative dims count from the end, that unused entries are zero, and that the limits
 * themselves are legal. */
static void test_edges(void)
{
    static const int32_t size[] = {2, 3};
    static const int64_t extent[] = {6, 4, 1, 1, 1, 1}, cuts[] = {0, 1, 1, 4};
    static const int64_t huge[] = {0, INT64_C(1) << 62, INT64_C(1) << 62, 0}, minus[] = {-1, 6, -1};
    static const int64_t past[] = {(INT64_C(1) << 62) + 1, 6, (INT64_C(1) << 62) + 1};
    dpar_placement p[2];
    dpar_mesh mesh;
    dpar_layout l;
    dpar_box_cursor cursor;
    dpar_box box;
    int64_t local[2] = {7, 7}, index[2] = {5, 3}, run = 7;
    int32_t coord[2], k;
    CHECK_INT(dpar_mesh_init(&mesh, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    memset(&l, 3, sizeof l);
    p[0] = dpar_shard(-2);
    p[1] = dpar_shard_by(-1, DPAR_SPLIT_RAGGED, 0);
    p[1].cuts = cuts;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, NULL), DPAR_OK);
    CHECK(l.axis[0].dim == 0 && l.axis[1].dim == 1);
    for (k = 2; k < DPAR_MAX_DIMS; k++) {
        CHECK_INT(l.extent[k], 0);
    }
    for (k = 2; k < DPAR_MAX_AXES; k++) {
        CHECK(l.order[k] == 0 && l.axis[k].kind == 0 && l.axis[k].dim == 0);
    }
    for (k = -1; k <= 2; k += 3) { /* dims that do not exist */
        CHECK_INT(dpar_layout_global(&l, 0, k, 0, &run), -1);
        CHECK_INT(dpari_layout_before(&l, 0, k, 5), 0);
        CHECK(!dpar_layout_locate(&l, k, 0, coord, &local[0], &run));
        CHECK(!dpari_layout_span(&l, size, k, &local[0], &run));
    }
    CHECK(!dpar_layout_locate(&l, 0, -1, coord, &local[0], &run));
    CHECK(!dpar_layout_locate(&l, 0, 6, coord, &local[0], &run));
    CHECK(!dpar_layout_locate(&l, 1, 4, coord, &local[0], &run));
    CHECK_INT(dpar_layout_owner(&l, index, -1, local), -1);
    CHECK_INT(dpar_layout_owner(&l, index, 1, local), -1);
    CHECK(local[0] == 7 && local[1] == 7 && run == 7);
    p[1].dim = 1;
    p[0] = p[1];
    p[0].rule = 0;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, NULL), DPAR_E_ARG);
    p[0] = p[1] = dpar_partial(DPAR_OP_COUNT);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, NULL), DPAR_E_ARG);
    p[0] = p[1] = dpar_partial(DPAR_OP_COUNT - 1);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, NULL), DPAR_OK);
    p[0] = p[1] = dpar_replicate();
    CHECK_INT(dpar_layout_init(&l, &mesh, -1, extent, p, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_layout_init(&l, &mesh, DPAR_MAX_DIMS, extent, p, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&l, &mesh, 3, huge, p, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_count(&l, 0), 0);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, huge + 1, p, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_count(&l, 0), -1);
    CHECK_INT(dpar_layout_init(&l, &mesh, 3, huge + 1, p, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_count(&l, 0), 0);
    for (k = 0; k < 2; k++) { /* the first dim and the last, which no axis shards */
        CHECK_INT(dpar_layout_init(&l, &mesh, 2, minus + k, p, NULL), DPAR_E_ARG);
        CHECK_INT(dpar_layout_init(&l, &mesh, 2, past + k, p, NULL), DPAR_E_RANGE);
    }
    p[1].kind = 9; /* the last axis */
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, NULL), DPAR_E_ARG);
    p[1] = dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, 0);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, NULL), DPAR_E_ARG);
    p[0] = dpar_shard(1);
    p[1] = dpar_shard_by(-1, DPAR_SPLIT_RAGGED, 0); /* not the first cut of the last dim */
    p[1].cuts = cuts;
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, NULL), DPAR_E_ARG);
    p[0] = p[1] = dpar_replicate();
    CHECK_INT(dpar_layout_init(&l, &mesh, 0, NULL, p, NULL), DPAR_OK);
    memset(&cursor, 0, sizeof cursor);
    CHECK(!dpar_layout_next(&l, 6, &cursor, &box, NULL));
    CHECK(dpar_layout_next(&l, 5, &cursor, &box, NULL) && box.dims == 0);
    CHECK(!dpar_layout_next(&l, 5, &cursor, &box, NULL));
}

/* Checks that two layouts are the same if and only if everything that decides ownership is. */
static void test_same(void)
{
    static const int32_t size[] = {2, 2};
    static const int64_t extent[] = {8, 8, 8}, other[] = {8, 9, 8};
    static const int64_t cuts[] = {0, 1, 8}, equal[] = {0, 1, 8};
    dpar_placement p[2], q[2];
    dpar_mesh mesh;
    dpar_layout a, b;
    int k;
    CHECK_INT(dpar_mesh_init(&mesh, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
#define SAME(first, second, rank, of, turn, expect)                                                \
    do {                                                                                           \
        p[0] = first, p[1] = second;                                                               \
        p[0].order = turn, p[1].order = -(turn);                                                   \
        for (k = 0; k < 2; k++) {                                                                  \
            CHECK_INT(dpar_layout_init(&a, &mesh, 2, extent, q, NULL), DPAR_OK);                   \
            CHECK_INT(dpar_layout_init(&b, &mesh, rank, of, p, NULL), DPAR_OK);                    \
            CHECK_INT(k ? dpari_layout_same(&b, &a) : dpari_layout_same(&a, &b), expect);          \
        }                                                                                          \
    } while (0)
    q[0] = dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, 2);
    q[1] = dpar_shard(0);
    SAME(q[0], q[1], 2, extent, 0, 1);
    SAME(q[0], q[1], 3, extent, 0, 0);
    SAME(q[0], q[1], 2, other, 0, 0);
    SAME(q[0], q[1], 2, extent, 1, 0);
    SAME(dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, 3), q[1], 2, extent, 0, 0);
    SAME(dpar_shard_by(1, DPAR_SPLIT_BLOCK_CYCLIC, 2), q[1], 2, extent, 0, 0);
    SAME(dpar_shard_by(0, DPAR_SPLIT_STRIDED, 2), q[1], 2, extent, 0, 0);
    SAME(q[0], dpar_shard(1), 2, extent, 0, 0);
    SAME(q[0], dpar_replicate(), 2, extent, 0, 0);
    SAME(dpar_replicate(), q[1], 2, extent, 0, 0);
    q[0].source = 1;
    SAME(dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, 2), q[1], 2, extent, 0, 0);
    q[1] = dpar_shard(1); /* another dim, so that the order of the cuts does not matter */
    SAME(q[0], q[1], 2, extent, 1, 1);
    q[0] = dpar_partial(DPAR_SUM);
    SAME(dpar_partial(DPAR_SUM), q[1], 2, extent, 0, 1);
    SAME(dpar_partial(DPAR_MAX), q[1], 2, extent, 0, 0);
    q[1] = dpar_partial(DPAR_SUM); /* the last axis */
    SAME(q[0], dpar_partial(DPAR_MAX), 2, extent, 0, 0);
    q[1] = dpar_shard(1);
    SAME(dpar_replicate(), q[1], 2, extent, 0, 0);
    q[0] = dpar_shard_by(0, DPAR_SPLIT_RAGGED, 0);
    q[0].cuts = cuts;
    SAME(q[0], q[1], 2, extent, 0, 1);
    {
        dpar_placement r = q[0];
        r.cuts = equal; /* other memory, which is not read */
        SAME(r, q[1], 2, extent, 0, 0);
    }
    p[0] = dpar_replicate();
    mesh.first_rank = 4;
    CHECK_INT(dpar_layout_init(&b, &mesh, 2, extent, q, NULL), DPAR_OK);
    CHECK(!dpari_layout_same(&a, &b));
#undef SAME
}

/* Counts the full shardings on a mesh of three axes, with order: m! times the sum over i of C(m -
 * 1, i - 1) C(t, i) (DTensor's shard orders, by a port): 24, 60, 120 for 2, 3, 4 dims. */
static void test_full_shardings(void)
{
    static const int32_t size[] = {2, 2, 2}, expect[] = {24, 60, 120};
    static const int32_t order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const int64_t extent[] = {8, 8, 8, 8};
    static dpar_layout found[128];
    dpar_mesh mesh;
    int32_t dims, code, k, n, i;
    CHECK_INT(dpar_mesh_init(&mesh, "a b c", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    for (dims = 2; dims <= 4; dims++) {
        for (n = 0, code = 0; code < dims * dims * dims; code++) {
            for (k = 0; k < 6; k++) {
                dpar_placement p[3];
                dpar_layout l;
                p[0] = dpar_shard(code % dims);
                p[1] = dpar_shard(code / dims % dims);
                p[2] = dpar_shard(code / dims / dims);
                cut_in(p, 3, order[k]);
                CHECK_INT(dpar_layout_init(&l, &mesh, dims, extent, p, NULL), DPAR_OK);
                for (i = 0; i < n && !dpari_layout_same(&l, &found[i]); i++) {
                }
                if (i == n && n < 128) {
                    found[n++] = l;
                }
            }
        }
        CHECK_INT(n, expect[dims - 2]);
    }
}

/* Checks B10: MPI_Type_create_darray of [3, 4], NONE x BLOCK on 1 x 3 (MPICH and Open MPI
 * executed). */
static void test_darray(void)
{
    static const int32_t size[] = {1, 3};
    static const int64_t extent[] = {3, 4};
    static const int element[3][6] = {{0, 1, 4, 5, 8, 9}, {2, 3, 6, 7, 10, 11}, {0}};
    static const int count[] = {6, 6, 0};
    dpar_placement p[2];
    dpar_mesh mesh;
    dpar_layout l;
    int rank;
    p[0] = dpar_replicate();
    p[1] = dpar_shard(1);
    CHECK_INT(dpar_mesh_init(&mesh, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&l, &mesh, 2, extent, p, NULL), DPAR_OK);
    for (rank = 0; rank < 3; rank++) {
        int64_t shape[2], run;
        int i;
        CHECK_INT(dpar_layout_count(&l, rank), count[rank]);
        dpar_layout_local(&l, rank, shape, NULL);
        for (i = 0; i < count[rank]; i++) {
            CHECK_INT(dpar_layout_global(&l, rank, 0, i / shape[1], &run) * 4 +
                          dpar_layout_global(&l, rank, 1, i % shape[1], &run),
                      element[rank][i]);
        }
    }
}

int main(void)
{
    test_brute_force();
    test_nested();
    test_padding();
    test_refusals();
    test_extremes();
    test_full_shardings();
    test_edges();
    test_same();
    test_darray();
    return CHECK_DONE();
}
