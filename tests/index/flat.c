/* SPDX-License-Identifier: MIT-0 */
/* Tests flat: FSDP1's flat parameters (pytorch test_fsdp_flatten_params.py), Megatron's buckets (a
 * port of its param_and_grad_buffer), DDP's buckets, and intervals as boxes. Vectors A15-A17 and
 * D1-D5 of facts/index_math.md. Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"

/* D1, D2: fp32 parameters of 21, 35 and 25 elements, aligned to 16 bytes, over 2 ranks: 21 + (3) +
 * 35 + (1) + 25 = 85, padded to 86. The ends in PyTorch's test are inclusive. */
static void test_flat_parameter(void)
{
    static const int64_t numel[] = {21, 35, 25};
    int64_t start[3];
    dpari_flat f;
    dpar_piece p;
    CHECK_INT(dpari_flat_init(&f, 3, numel, 4, 2, start, NULL), DPAR_OK);
    CHECK(start[0] == 0 && start[1] == 24 && start[2] == 60);
    CHECK(f.total == 85 && f.shard == 43 && f.ranks == 2);
    CHECK(dpari_flat_piece(&f, start[0], 21, 0, &p) && p.in_param == 0 && p.count == 21);
    CHECK(dpari_flat_piece(&f, start[1], 35, 0, &p) && p.in_param == 0 && p.count == 19);
    CHECK(p.in_shard == 24 && p.in_buffer == 24 && p.in_bucket == 24);
    CHECK(!dpari_flat_piece(&f, start[2], 25, 0, &p));
    CHECK(!dpari_flat_piece(&f, start[0], 21, 1, &p));
    CHECK(dpari_flat_piece(&f, start[1], 35, 1, &p) && p.in_param == 19 && p.count == 16);
    CHECK_INT(p.in_shard, 0);
    CHECK(dpari_flat_piece(&f, start[2], 25, 1, &p) && p.in_param == 0 && p.count == 25);
    CHECK(p.in_shard == 17 && p.in_buffer == 60);
    CHECK(!dpari_flat_piece(&f, start[2], 25, 2, &p) && !dpari_flat_piece(&f, 0, 21, -1, &p));
    CHECK(!dpari_flat_piece(&f, 2, INT64_MAX, 0, &p) && !dpari_flat_piece(&f, -2, 8, 0, &p));
    CHECK(!dpari_flat_piece(&f, 2, -1, 0, &p) && dpari_flat_piece(&f, 2, INT64_MAX - 2, 0, &p));
    CHECK(!dpari_flat_piece(&f, 2, INT64_MIN, 0, &p) &&
          !dpari_flat_piece(&f, -2, INT64_MIN, 0, &p));
}

/* Checks that every element of every parameter is in exactly one shard, in order. */
/* Checks that one bucket in forward order is the same as a flat parameter. */
static void check_forward(const dpari_flat *f, const int64_t *numel, int64_t align,
                          const int64_t *start)
{
    dpar_buckets_desc how;
    dpar_bucket b;
    int64_t at[4];
    int32_t n = 0, i, r;
    memset(&how, 0, sizeof how);
    how.params = 4;
    how.count = numel;
    how.align = align;
    how.ranks = f->ranks;
    how.forward = 1;
    CHECK_INT(dpar_buckets_init(&how, at, &b, 1, &n, NULL), DPAR_OK);
    CHECK(n == 1 && b.lo == 0 && b.hi == f->shard * f->ranks && b.used == f->total);
    CHECK(b.first_param == 0 && b.end_param == 4);
    CHECK(memcmp(at, start, sizeof at) == 0);
    for (i = 0; i < 4; i++) {
        for (r = -1; r <= f->ranks; r++) {
            dpar_piece p, q;
            int has = dpari_flat_piece(f, start[i], numel[i], r, &p);
            CHECK_INT(dpar_bucket_piece(&b, f->ranks, at[i], numel[i], r, &q), has);
            CHECK(!has || memcmp(&p, &q, sizeof p) == 0);
        }
    }
    how.size = 6; /* several buckets: in order, each closed when it is full */
    {
        dpar_bucket some[4];
        CHECK_INT(dpar_buckets_init(&how, at, some, 4, &n, NULL), DPAR_OK);
        for (i = 0; i < n; i++) {
            CHECK_INT(some[i].first_param, i > 0 ? some[i - 1].end_param : 0);
            CHECK_INT(some[i].lo, i > 0 ? some[i - 1].hi : 0);
            CHECK(i == n - 1 || some[i].used >= 6);
        }
        CHECK_INT(some[n - 1].end_param, 4);
    }
}

static void test_flat_all(void)
{
    int64_t numel[4], start[4], align, k;
    int trial, i;
    int32_t ranks, r;
    for (trial = 0; trial < 256; trial++) {
        for (i = 0; i < 4; i++) {
            numel[i] = (trial >> 2 * i & 3) * (i + 2);
        }
        for (align = 1; align <= 4; align++) {
            for (ranks = 1; ranks <= 5; ranks++) {
                dpari_flat f;
                int64_t end = 0;
                CHECK_INT(dpari_flat_init(&f, 4, numel, align, ranks, start, NULL), DPAR_OK);
                check_forward(&f, numel, align, start);
                for (i = 0; i < 4; i++) {
                    int64_t seen = 0;
                    CHECK(start[i] >= end && start[i] - end < align && start[i] % align == 0);
                    end = start[i] + numel[i];
                    for (r = 0; r < ranks; r++) {
                        dpar_piece p;
                        if (dpari_flat_piece(&f, start[i], numel[i], r, &p)) {
                            CHECK(p.count > 0);
                            CHECK_INT(p.in_param, seen);
                            seen += p.count;
                            k = r * f.shard + p.in_shard;
                            CHECK(k == start[i] + p.in_param && p.in_shard + p.count <= f.shard);
                        }
                    }
                    CHECK_INT(seen, numel[i]);
                }
                CHECK_INT(f.total, end);
                CHECK(f.shard * ranks >= end && f.shard * ranks - end < ranks);
            }
        }
    }
}

/* Returns the description of the buckets of Megatron's distributed optimizer. */
static dpar_buckets_desc megatron(int64_t size, int32_t ranks)
{
    dpar_buckets_desc how;
    memset(&how, 0, sizeof how);
    how.size = size;
    how.align = 64;
    how.multiple = 128;
    how.ranks = ranks;
    return how;
}

static dpar_status make(dpar_buckets_desc *how, int32_t params, const int64_t *numel,
                        int64_t *start, dpar_bucket *bucket, int32_t room, int32_t *buckets,
                        dpar_why *why)
{
    how->params = params;
    how->count = numel;
    return dpar_buckets_init(how, start, bucket, room, buckets, why);
}

/* Checks D3, D4, D5: parameters of 100, 30 and 200 elements. */
static void test_megatron(void)
{
    static const int64_t numel[] = {100, 30, 200};
    dpar_buckets_desc how = megatron(0, 4);
    int64_t start[3];
    dpar_bucket b[3];
    dpar_piece p;
    int32_t n = 0;
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, NULL), DPAR_OK);
    CHECK(start[2] == 0 && start[1] == 256 && start[0] == 320);
    CHECK(n == 1 && b[0].lo == 0 && b[0].hi == 512 && b[0].used == 420);
    CHECK(b[0].first_param == 0 && b[0].end_param == 3);
    CHECK(!dpar_bucket_piece(&b[0], 4, start[2], 200, 2, &p)); /* shards have 128 elements */
    CHECK(dpar_bucket_piece(&b[0], 4, start[2], 200, 1, &p));
    CHECK(p.in_param == 128 && p.count == 72 && p.in_shard == 0 && p.in_bucket == 128);
    CHECK(dpar_bucket_piece(&b[0], 4, start[0], 100, 3, &p));
    CHECK(p.in_param == 64 && p.count == 36 && p.in_shard == 0 && p.in_buffer == 384);
    how.size = 150;
    n = 0;
    CHECK_INT(make(&how, 3, numel, start, NULL, 0, &n, NULL), DPAR_OK);
    CHECK_INT(n, 2);
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, NULL), DPAR_OK);
    CHECK(b[0].lo == 0 && b[0].hi == 256 && b[0].used == 200);
    CHECK(b[1].lo == 256 && b[1].hi == 512 && b[1].used == 164);
    CHECK(b[0].first_param == 2 && b[0].end_param == 3 && b[1].first_param == 0 &&
          b[1].end_param == 2);
    CHECK(start[1] == 256 && start[0] == 320);
    CHECK(dpar_bucket_piece(&b[1], 4, start[1], 30, 0, &p));
    CHECK(p.in_bucket == 0 && p.in_buffer == 256 && p.in_shard == 0 && p.count == 30);
    CHECK(dpar_bucket_piece(&b[1], 4, start[0], 100, 1, &p)); /* shares of 64: [320, 384) */
    CHECK(p.in_param == 0 && p.count == 64 && p.in_bucket == 64 && p.in_shard == 0);
    CHECK(!dpar_bucket_piece(&b[1], 4, start[1], 30, 4, &p));
    CHECK(!dpar_bucket_piece(&b[1], 4, start[1], 30, -1, &p));
    CHECK(!dpar_bucket_piece(&b[1], 0, start[1], 30, 0, &p));
    how = megatron(0, 3);
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, NULL), DPAR_OK);
    CHECK(n == 1 && b[0].hi == 768);
    how.multiple = 65536;
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, NULL), DPAR_OK);
    CHECK_INT(b[0].hi, 3 * 65536);
}

/* Checks DDP in fp32: the first bucket closes at 2^18 elements, the others at 25 2^18; no gaps. */
static void test_ddp(void)
{
    int64_t numel[200], start[200], total = 0, at = 0;
    dpar_buckets_desc how = dpari_bucketing_ddp(4);
    dpar_bucket b[50];
    int32_t i, n, last = 200;
    CHECK(how.first == 1 << 18 && how.size == 25 << 18);
    CHECK(dpari_bucketing_ddp(1).first == 1 << 20 && dpari_bucketing_ddp(1).size == 25 << 20);
    CHECK(dpari_bucketing_ddp(0).first == 1 << 20 && dpari_bucketing_ddp(3).size == 8738134);
    for (i = 0; i < 200; i++) {
        numel[i] = 1000 + i * 7919 % 300000;
        total += numel[i];
    }
    CHECK_INT(make(&how, 200, numel, start, b, 50, &n, NULL), DPAR_OK);
    CHECK(n > 3 && n <= 50);
    for (i = 199; i >= 0; i--) {
        CHECK_INT(start[i], at);
        at += numel[i];
    }
    for (i = 0; i < n; i++) {
        int64_t limit = i == 0 ? how.first : how.size;
        CHECK(b[i].end_param == last && b[i].hi - b[i].lo == b[i].used);
        CHECK(i == n - 1 || b[i].used >= limit);            /* closed when full, */
        CHECK(b[i].used - numel[b[i].first_param] < limit); /* and not before */
        CHECK_INT(b[i].lo, start[b[i].end_param - 1]);
        last = b[i].first_param;
    }
    CHECK(last == 0 && b[n - 1].hi == total);
    how.first = 1; /* one parameter, then the others */
    how.size = 0;
    CHECK_INT(make(&how, 200, numel, start, b, 50, &n, NULL), DPAR_OK);
    CHECK(n == 2 && b[0].first_param == 199);
    how.first = how.size = numel[199]; /* closed by exactly as many elements */
    memset(b, 0x5a, sizeof b);
    CHECK_INT(make(&how, 200, numel, start, b, 1, &n, NULL), DPAR_OK);
    CHECK(n > 1 && b[0].used == numel[199] && b[0].first_param == 199 &&
          b[1].first_param == 0x5a5a5a5a);
    CHECK_INT(make(&how, 0, numel, start, b, 50, &n, NULL), DPAR_OK);
    CHECK_INT(n, 0);
}

/* ---- intervals ------------------------------------------------------------------------------- */

static void check_box(const dpar_box *box, int64_t a, int64_t b, int64_t c, int64_t x, int64_t y,
                      int64_t z)
{
    CHECK(box->lo[0] == a && box->lo[1] == b && (box->dims < 3 || box->lo[2] == c));
    CHECK(box->hi[0] - a == x && box->hi[1] - b == y && (box->dims < 3 || box->hi[2] - c == z));
}

/* A15: pytorch test_block_shard.py: (3,4,5) in blocks of 5 over 2: rows of blocks by CHUNK. A16:
 * (2,3,2) over 4: rows 2, 2, 2, 0. A17: [0, 6) and [6, 12) of (3, 4). */
static void test_vectors(void)
{
    static const int64_t flat[] = {3, 4}, blocks[] = {3, 4, 5};
    int64_t at = 0;
    dpar_box box;
    dpar_split rows;
    CHECK(dpar_flat_next(2, flat, &at, 6, &box));
    check_box(&box, 0, 0, 0, 1, 4, 0);
    CHECK(dpar_flat_next(2, flat, &at, 6, &box));
    check_box(&box, 1, 0, 0, 1, 2, 0);
    CHECK(!dpar_flat_next(2, flat, &at, 6, &box));
    CHECK(dpar_flat_next(2, flat, &at, 12, &box));
    check_box(&box, 1, 2, 0, 1, 2, 0);
    CHECK(dpar_flat_next(2, flat, &at, 12, &box));
    check_box(&box, 2, 0, 0, 1, 4, 0);
    CHECK(!dpar_flat_next(2, flat, &at, 12, &box));

    CHECK_INT(dpar_split_init(&rows, DPAR_SPLIT_CHUNK, 12, 2, 0, NULL), DPAR_OK);
    at = 5 * dpar_split_part_first(&rows, 0);
    CHECK(dpar_flat_next(3, blocks, &at, 30, &box));
    check_box(&box, 0, 0, 0, 1, 4, 5);
    CHECK(dpar_flat_next(3, blocks, &at, 30, &box));
    check_box(&box, 1, 0, 0, 1, 2, 5);
    CHECK(!dpar_flat_next(3, blocks, &at, 30, &box));
    { /* not an array, not an index in it, or behind its end */
        int64_t empty[2] = {5, 0}, huge[2] = {INT64_MAX, 2}, small[2] = {5, 4}, edge = -3;
        CHECK(!dpar_flat_next(2, small, &edge, 30, &box));
        CHECK_INT(edge, -3);
        edge = 0;
        CHECK(!dpar_flat_next(2, empty, &edge, 3, &box));
        CHECK(!dpar_flat_next(2, huge, &edge, 3, &box));
        edge = INT64_MAX - 1;
        CHECK(!dpar_flat_next(1, huge, &edge, -5, &box));
        edge = 18;
        CHECK(dpar_flat_next(2, small, &edge, 30, &box));
        CHECK(box.lo[0] == 4 && box.hi[0] == 5 && box.lo[1] == 2 && box.hi[1] == 4 && edge == 20);
        CHECK(!dpar_flat_next(2, small, &edge, 30, &box));
    }
    CHECK_INT(5 * dpar_split_part_first(&rows, 1), 30);
    CHECK(dpar_flat_next(3, blocks, &at, 60, &box));
    check_box(&box, 1, 2, 0, 1, 2, 5);
    CHECK(dpar_flat_next(3, blocks, &at, 60, &box));
    check_box(&box, 2, 0, 0, 1, 4, 5);
    CHECK(!dpar_flat_next(3, blocks, &at, 60, &box));

    CHECK_INT(dpar_split_init(&rows, DPAR_SPLIT_CHUNK, 6, 4, 0, NULL), DPAR_OK);
    CHECK(dpar_split_part_count(&rows, 2) == 2 && dpar_split_part_count(&rows, 3) == 0);
    at = 2 * dpar_split_part_first(&rows, 3);
    CHECK(!dpar_flat_next(3, blocks, &at, 12, &box));
}

/* Checks every interval of every small array: the boxes are disjoint, in order, and few. */
static void test_all_intervals(void)
{
    int64_t e[6], lo, hi, at, i, total;
    for (e[0] = 0; e[0] <= 3; e[0]++) {
        for (e[1] = 1; e[1] <= 4; e[1]++) {
            for (e[2] = 1; e[2] <= 3; e[2]++) {
                total = e[0] * e[1] * e[2];
                for (lo = 0; lo <= total; lo++) {
                    for (hi = lo; hi <= total; hi++) {
                        int64_t next = lo;
                        dpar_box box;
                        int n = 0;
                        at = lo;
                        while (dpar_flat_next(3, e, &at, hi, &box)) {
                            int64_t a, b, c;
                            for (a = box.lo[0]; a < box.hi[0]; a++) {
                                for (b = box.lo[1]; b < box.hi[1]; b++) {
                                    for (c = box.lo[2]; c < box.hi[2]; c++) {
                                        CHECK_INT((a * e[1] + b) * e[2] + c, next);
                                        next++;
                                    }
                                }
                            }
                            CHECK_INT(at, next);
                            n++;
                        }
                        CHECK_INT(next, hi);
                        CHECK(n <= 5);
                    }
                }
            }
        }
    }
    e[0] = INT64_C(1) << 40;
    e[1] = 1000;
    at = 999;
    for (i = 0; i < 3; i++) {
        dpar_box box;
        CHECK(dpar_flat_next(2, e, &at, (INT64_C(1) << 40) * 1000 - 1, &box));
        CHECK(dpar_box_volume(&box) > 0);
    }
    CHECK_INT(at, (INT64_C(1) << 40) * 1000 - 1);
    {
        dpar_box box;
        at = 0;
        CHECK(!dpar_flat_next(0, e, &at, 1, &box) && !dpar_flat_next(7, e, &at, 1, &box));
        CHECK(dpar_flat_next(1, e, &at, 5, &box) && box.hi[0] == 5 && at == 5);
        e[1] = e[2] = e[3] = e[4] = e[5] = 2;
        at = 0;
        CHECK(dpar_flat_next(6, e, &at, 64, &box) && box.dims == 6 && at == 64);
    }
}

static void test_refusals(void)
{
    int64_t numel[] = {5, -1, 3}, start[] = {7, 7, 7};
    dpari_flat f = {9, 9, 9};
    dpar_buckets_desc how;
    dpar_bucket b[3];
    int32_t n = 77;
    dpar_why why;
    CHECK_INT(dpari_flat_init(&f, 3, numel, 4, 2, start, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "parameter 1 has a negative count, -1");
    CHECK_INT(dpari_flat_init(&f, 3, numel, 0, 2, start, &why), DPAR_E_ARG);
    CHECK_INT(dpari_flat_init(&f, 3, numel, 4, 0, start, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "params 3 must be at least 0, align 4 and ranks 0 at least 1");
    CHECK_INT(dpari_flat_init(&f, -1, numel, 4, 1, start, &why), DPAR_E_ARG);
    numel[1] = INT64_C(1) << 62;
    CHECK_INT(dpari_flat_init(&f, 3, numel, 4, 2, start, &why), DPAR_E_RANGE);
    CHECK_INT(dpari_flat_init(&f, 3, numel, INT64_MAX, 2, start, &why), DPAR_E_RANGE);
    numel[1] = (INT64_C(1) << 62) - 8;
    CHECK_INT(dpari_flat_init(&f, 2, numel, 8, INT32_MAX, start, &why), DPAR_E_RANGE);
    CHECK(f.ranks == 9 && start[0] == 7);
    numel[1] = (INT64_C(1) << 62) - 5; /* ends at 2^62, the last end that fits */
    CHECK_INT(dpari_flat_init(&f, 2, numel, 1, 1, start, NULL), DPAR_OK);
    CHECK_INT(dpari_flat_init(&f, 3, numel, 1, 1, start, &why), DPAR_E_RANGE);
    CHECK_INT(dpari_flat_init(&f, 0, numel, 1, 1, start, NULL), DPAR_OK);
    CHECK(f.total == 0 && f.shard == 0);
    start[0] = 7;
    numel[1] = 4;
    how = megatron(-1, 4);
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "params=3, first=0, size=-1, ranks=4, align=64, multiple=128: none may be "
                         "negative");
    how = megatron(8, -4);
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, &why), DPAR_E_ARG);
    how = megatron(8, INT32_MAX);
    how.multiple = INT64_MAX - 1;
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, &why), DPAR_E_RANGE);
    CHECK_INT(make(&how, -1, numel, start, b, 3, &n, &why), DPAR_E_ARG);
    how.multiple = INT64_C(1) << 62;
    how.ranks = 1;
    numel[0] = (INT64_C(1) << 62) - 300;
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, &why), DPAR_E_RANGE);
    numel[0] = -5;
    CHECK_INT(make(&how, 3, numel, start, b, 3, &n, &why), DPAR_E_ARG);
    CHECK(n == 77 && start[0] == 7);
}

int main(void)
{
    test_flat_parameter();
    test_flat_all();
    test_megatron();
    test_ddp();
    test_vectors();
    test_all_intervals();
    test_refusals();
    return CHECK_DONE();
}
