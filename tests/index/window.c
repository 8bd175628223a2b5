/* SPDX-License-Identifier: MIT-0 */
/* Tests window against a convolution over the whole line (facts/halo.md 4.8), torch's definitions
 * of pooling and transposed convolutions, and NATTEN's of attention. halo_window.c runs the same
 * over arrays. Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"

/* More outputs than any of these windows has. */
static const int64_t many = INT64_C(1) << 60;

/* Computes how far the needs of outputs [y0, y1) reach beyond a block of inputs. Unless the line is
 * a ring, no rank owns padding. */
static void reach_of(const dpar_window *v, int64_t n, int ring, int64_t own_lo, int64_t own_hi,
                     int64_t y0, int64_t y1, int64_t *low, int64_t *high)
{
    int64_t lo, hi;
    *low = *high = 0;
    if (!dpari_window_reads(v, n, many, y0, y1, &lo, &hi)) {
        return;
    }
    if (!ring) {
        lo = lo < 0 ? 0 : lo < n ? lo : n;
        hi = hi < lo ? lo : hi < n ? hi : n;
    }
    *low = own_lo - lo;
    *high = hi - own_hi;
}

/* Compares a convolution over the whole line with one over what each rank has and needs: n,
 * kernel, stride, dilation and padding of facts/halo.md 4.8's sweep, outputs balanced or with
 * their inputs. */
static void check_convolution(const dpar_window *v, int64_t n, int parts, int follow)
{
    int64_t in[64], out[64], m = 0, y, k, s = v->stride, d = v->dilation;
    int part;
    dpar_split blocks, outputs;
    int64_t next = 0;
    if (dpar_window_outputs(v, n, &m, NULL) != DPAR_OK) {
        CHECK(n + v->pad_low + v->pad_high < d * (v->kernel - 1) + 1);
        return;
    }
    for (y = 0; y < n; y++) {
        in[y] = y * y % 23 + 1;
    }
    for (y = 0; y < m; y++) {
        for (k = 0, out[y] = 0; k < v->kernel; k++) {
            int64_t i = s * y - v->pad_low + d * k;
            out[y] += i >= 0 && i < n ? (k + 1) * in[i] : 0;
        }
    }
    CHECK(s * (m - 1) + d * (v->kernel - 1) + 1 <= n + v->pad_low + v->pad_high); /* m fits, */
    CHECK(s * m + d * (v->kernel - 1) + 1 > n + v->pad_low + v->pad_high);        /* m + 1 no */
    CHECK_INT(dpar_split_init(&blocks, DPAR_SPLIT_EVEN, n, parts, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_split_init(&outputs, DPAR_SPLIT_EVEN, m, parts, 0, NULL), DPAR_OK);
    for (part = 0; part < parts; part++) {
        int64_t lo = dpar_split_part_first(&blocks, part),
                hi = lo + dpar_split_part_count(&blocks, part);
        int64_t y0 = dpar_split_part_first(&outputs, part),
                y1 = y0 + dpar_split_part_count(&outputs, part);
        int64_t low, high, a = 0, b = 0;
        if (follow) {
            dpari_window_owned(v, n, m, lo, hi, &y0, &y1);
            for (y = 0; y < m; y++) { /* the owner of input clamp(stride y) */
                int64_t at = s * y < n ? s * y : n - 1;
                CHECK_INT(y >= y0 && y < y1, at >= lo && at < hi);
            }
        }
        CHECK(y0 == next || y1 == y0);
        next = y1 > y0 ? y1 : next;
        reach_of(v, n, 0, lo, hi, y0, y1, &low, &high);
        CHECK_INT(dpari_window_reads(v, n, m, y0, y1, &a, &b), y1 > y0);
        if (y1 <= y0) {
            CHECK(low == 0 && high == 0);
            continue;
        }
        for (y = y0; y < y1; y++) { /* only inputs of the block and its halo are read */
            int64_t sum = 0;
            for (k = 0; k < v->kernel; k++) {
                int64_t i = s * y - v->pad_low + d * k;
                CHECK(i >= a && i < b);
                sum += i >= lo - low && i < hi + high ? (k + 1) * in[i] : 0;
            }
            CHECK_INT(sum, out[y]);
        }
        CHECK(s * y0 - v->pad_low == a && s * (y1 - 1) - v->pad_low + d * (v->kernel - 1) == b - 1);
        reach_of(v, n, 1, lo, hi, y0, y1, &low, &high);
        CHECK(lo - low == a && hi + high == b);
    }
    CHECK_INT(next, m);
}

static void test_convolution(void)
{
    int64_t n;
    int parts, cases = 0;
    for (n = 8; n <= 32; n += 3) {
        for (parts = 2; parts <= 4; parts++) {
            dpar_window v;
            memset(&v, 0, sizeof v);
            for (v.kernel = 1; v.kernel <= 7; v.kernel += 2) {
                for (v.stride = 1; v.stride <= 4; v.stride++) {
                    for (v.dilation = 1; v.dilation <= 2; v.dilation++) {
                        int64_t most = (v.dilation * (v.kernel - 1) + 1) / 2;
                        for (v.pad_low = 0; v.pad_low <= most; v.pad_low++) {
                            v.pad_high = v.pad_low;
                            check_convolution(&v, n, parts, 0);
                            check_convolution(&v, n, parts, 1);
                            v.pad_high = v.pad_low / 2;
                            check_convolution(&v, n, parts, 1);
                            cases++;
                        }
                    }
                }
            }
        }
    }
    CHECK(cases >= 4632 / 2);
}

/* Checks torch.nn.MaxPool1d's ceil_mode by its documentation: rounds up, but the last window must
 * begin inside the input or the left padding. */
static void test_pool(void)
{
    int64_t n, m, y;
    dpar_window v;
    memset(&v, 0, sizeof v);
    v.ceil_mode = 1;
    for (n = 1; n <= 20; n++) {
        for (v.kernel = 1; v.kernel <= 4; v.kernel++) {
            for (v.stride = 1; v.stride <= 4; v.stride++) {
                for (v.pad_low = 0; v.pad_low <= v.kernel / 2; v.pad_low++) {
                    v.pad_high = v.pad_low;
                    if (dpar_window_outputs(&v, n, &m, NULL) != DPAR_OK) {
                        continue;
                    }
                    for (y = 0; y * v.stride + v.kernel - v.pad_low < n + v.pad_high; y++) {
                    }
                    y += y * v.stride < n + v.pad_low; /* the window that reaches the end */
                    CHECK_INT(m, y);
                }
            }
        }
    }
}

/* Checks a transposed convolution: output y reads inputs i with y = stride i - pad + dilation k. */
static void test_transposed(void)
{
    dpar_window v;
    int64_t n = 9, y0, y1, i, lo = 0, hi = 0;
    memset(&v, 0, sizeof v);
    v.kind = DPAR_WINDOW_TRANSPOSED;
    for (v.kernel = 1; v.kernel <= 4; v.kernel++) {
        for (v.stride = 1; v.stride <= 3; v.stride++) {
            for (v.pad_low = 0; v.pad_low < 3; v.pad_low++) {
                for (y0 = 0; y0 < 30; y0++) {
                    for (y1 = y0; y1 < 32; y1++) {
                        int any = dpari_window_reads(&v, n, many, y0, y1, &lo, &hi), used = 0;
                        for (i = 0; i < n; i++) { /* its span, whether or not a tap hits an input */
                            int64_t first = v.stride * i - v.pad_low, last = first + v.kernel - 1;
                            int hit = y0 < y1 && first < y1 && last >= y0;
                            used += hit;
                            CHECK(!hit || (any && i >= lo && i < hi));
                            CHECK(hit || !any || i < lo || i >= hi);
                        }
                        CHECK_INT(any, used > 0);
                    }
                }
            }
        }
    }
}

/* Checks NATTEN: a query's keys are the `kernel` nearest of its dilation group, centred where
 * possible. */
static void test_attention(void)
{
    dpar_window v;
    int64_t n, i, first;
    memset(&v, 0, sizeof v);
    for (n = 1; n <= 20; n++) {
        for (v.kernel = 1; v.kernel <= 7; v.kernel += 2) {
            for (v.dilation = 1; v.dilation <= 3; v.dilation++) {
                for (i = 0; i < n; i++) {
                    int64_t members = 0, low = i, high = i, k;
                    for (k = i % v.dilation; k < n; k += v.dilation) {
                        members++;
                    }
                    first = dpari_window_start(&v, n, i);
                    if (members < v.kernel) {
                        CHECK_INT(first, -1);
                        continue;
                    }
                    for (k = 1; k < v.kernel;) { /* grows on both sides in turns, where possible */
                        if (low - v.dilation >= 0 &&
                            (high - i >= i - low || high + v.dilation >= n)) {
                            low -= v.dilation;
                            k++;
                        } else {
                            high += v.dilation;
                            k++;
                        }
                    }
                    CHECK_INT(first, low);
                    CHECK(first + (v.kernel - 1) * v.dilation < n);
                }
                CHECK_INT(dpari_window_start(&v, n, n), -1);
                CHECK_INT(dpari_window_start(&v, n, -1), -1);
            }
        }
    }
}

/* Checks outputs that do not exist, as far out as numbers reach. */
static void test_edges(void)
{
    const int64_t far_out[] = {INT64_MIN, -1, 0, 7, INT64_C(1) << 60, INT64_MAX};
    dpar_window v, transposed;
    int64_t lo = 77, hi = 77, y0, y1;
    int i, j;
    memset(&v, 0, sizeof v);
    v.kernel = 3;
    v.stride = 2;
    v.pad_low = 1;
    transposed = v;
    transposed.kind = DPAR_WINDOW_TRANSPOSED;
    for (i = 0; i < 6; i++) {
        for (j = 0; j < 6; j++) {
            int64_t a = far_out[i], b = far_out[j];
            int some = a >= 0 && b > a && b <= many;
            CHECK_INT(dpari_window_reads(&v, 100, many, a, b, &lo, &hi), some);
            CHECK(some || (lo == 77 && hi == 77));
            lo = hi = 77;
            CHECK_INT(dpari_window_reads(&transposed, 100, many, a, b, &lo, &hi), some && a < 100);
            lo = hi = 77;
            dpari_window_owned(&v, 100, 50, a, b, &y0, &y1);
            CHECK(y0 >= 0 && y1 >= y0 && y1 <= 50);
            reach_of(&v, 100, 0, 0, 100, a, b, &y0, &y1);
        }
    }
    v.kernel = 0;
    CHECK_INT(dpari_window_start(&v, 100, 5), -1);
    v.kernel = INT64_MIN;
    CHECK_INT(dpari_window_start(&v, 100, 5), -1);
    v.kernel = INT64_MAX;
    CHECK_INT(dpari_window_start(&v, 100, 5), -1);
}

static void test_refusals(void)
{
    dpar_window v;
    int64_t m = 77;
    int n;
    dpar_why why;
    memset(&v, 0, sizeof v);
    CHECK_INT(dpar_window_outputs(&v, 8, &m, &why), DPAR_E_ARG);
    v.kernel = 5;
    CHECK_INT(dpar_window_outputs(&v, 4, &m, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the kernel spans 5 elements, more than 4 inputs and 0 of padding");
    v.stride = -1;
    CHECK_INT(dpar_window_outputs(&v, 8, &m, &why), DPAR_E_ARG);
    v.stride = 0;
    CHECK_INT(dpar_window_outputs(&v, -1, &m, &why), DPAR_E_RANGE);
    v.dilation = INT64_MAX;
    CHECK_INT(dpar_window_outputs(&v, 8, &m, &why), DPAR_E_RANGE);
    v.dilation = 1;
    v.pad_low = INT64_MAX;
    CHECK_INT(dpar_window_outputs(&v, 8, &m, &why), DPAR_E_RANGE);
    CHECK_INT(m, 77);
    v.dilation = 1;
    v.stride = 1;
    for (n = 0; n < 5; n++) { /* each up to 2^30 and not more; negative values are refused */
        int64_t *field[5], before;
        field[0] = &v.kernel;
        field[1] = &v.stride;
        field[2] = &v.dilation;
        field[3] = &v.pad_low;
        field[4] = &v.pad_high;
        v.kernel = 5;
        v.pad_low = v.pad_high = 0;
        before = *field[n];
        *field[n] = INT64_C(1) << 30;
        CHECK_INT(dpar_window_outputs(&v, INT64_C(1) << 40, &m, NULL), DPAR_OK);
        *field[n] += 1;
        m = 77;
        CHECK_INT(dpar_window_outputs(&v, INT64_C(1) << 40, &m, &why), DPAR_E_RANGE);
        *field[n] = -1;
        CHECK_INT(dpar_window_outputs(&v, INT64_C(1) << 40, &m, &why), DPAR_E_ARG);
        CHECK_INT(m, 77);
        *field[n] = before;
    }
    CHECK_INT(dpar_window_outputs(&v, INT64_C(1) << 60, &m, NULL), DPAR_OK);
    CHECK_INT(dpar_window_outputs(&v, (INT64_C(1) << 60) + 1, &m, &why), DPAR_E_RANGE);
    v.pad_low = v.pad_high = 2;
    CHECK_INT(dpar_window_outputs(&v, 1, &m, NULL), DPAR_OK); /* few inputs, or only padding */
    CHECK_INT(m, 1);
    v.pad_high = 3;
    CHECK_INT(dpar_window_outputs(&v, 0, &m, NULL), DPAR_OK);
    CHECK_INT(m, 1);
    v.pad_high = 0;
    v.dilation = v.stride = 0;
    CHECK_INT(dpari_window_start(&v, 9, 4), 2);
    v.pad_low = 0;
    CHECK_INT(dpar_window_outputs(&v, 8, &m, NULL), DPAR_OK); /* stride 0 and dilation 0 mean 1 */
    CHECK_INT(m, 4);
}

int main(void)
{
    test_convolution();
    test_pool();
    test_transposed();
    test_attention();
    test_edges();
    test_refusals();
    return CHECK_DONE();
}
