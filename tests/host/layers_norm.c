/* SPDX-License-Identifier: MIT-0 */
/* Compares moments of samples, channels and groups with two passes over all numbers, and checks the
 * merge of the moments of two sets. */
#include "dpar_train.h"

#include "elements.h"

static dpar_mem_layers host;

/* Tests 2 samples of 6 channels of a x b x c points around 1000, in rows longer than the data. */
static void moments_case(int32_t type, int dims, int32_t groups)
{
    static double x[40000], to[12 * 3];
    const int64_t extent[3] = {3, 5, 300}, stride[3] = {1800, 330, 1}, step = 1000;
    const int32_t sets = groups == 0 ? 6 : 2 * groups;
    dpar_mem_moments m;
    int p, s, d, add;
    for (p = 0; p < 40000; p++) {
        write_at(x, p, type, 1000.0 + number());
    }
    memset(&m, 0, sizeof m);
    m.x = x;
    m.type = type;
    m.dims = dims;
    for (d = 0; d < dims; d++) {
        m.extent[d] = extent[3 - dims + d];
        m.stride[d] = stride[3 - dims + d];
    }
    m.planes = 12;
    m.step = step;
    m.channels = 6;
    m.groups = groups;
    m.to = to;
    for (add = 0; add < 2; add++) {
        m.accumulate = add;
        CHECK_INT(host.moments(NULL, &m), DPAR_OK);
        for (s = 0; s < sets; s++) {
            long double count = 0, mean = 0, m2 = 0;
            int pass;
            for (pass = 0; pass < 2; pass++) {
                for (p = 0; p < 12; p++) {
                    const int set = groups == 0 ? p % 6 : p / 6 * groups + p % 6 / (6 / groups);
                    int64_t i, j, k;
                    for (i = 0; i < (dims > 2 ? 3 : 1) && set == s; i++) {
                        for (j = 0; j < (dims > 1 ? 5 : 1); j++) {
                            for (k = 0; k < (dims > 0 ? 300 : 1); k++) {
                                const int64_t at = p * step + i * 1800 + j * 330 + k;
                                const long double v = (long double)read_at(x, at, type);
                                count += pass == 0;
                                mean += pass == 0 ? v : 0;
                                m2 += pass == 0 ? 0 : (v - mean) * (v - mean);
                            }
                        }
                    }
                }
                mean = pass == 0 ? mean / count : mean;
            }
            CHECK_NEAR(to[3 * s], (1 + add) * (double)count, 0.0);
            CHECK_NEAR(to[3 * s + 1], (double)mean, 1e-14);
            CHECK(fabs(to[3 * s + 2] - (1 + add) * (double)m2) <= 1e-10 * (1.0 + (double)m2));
        }
    }
}

/* Compares moments of numbers around 1e8, added one at a time and as two sets, with two passes over
 * all of them. */
static void test_moments(void)
{
    dpar_moments half[2], none, one;
    double mean = 0.0, m2 = 0.0;
    int i;
    memset(half, 0, sizeof half);
    memset(&none, 0, sizeof none);
    for (i = 0; i < 90; i++) {
        one.count = 1.0;
        one.mean = 1e8 + (double)(i * 37 % 90) / 90.0;
        one.m2 = 0.0;
        mean += one.mean / 90.0;
        dpari_moments_merge(&half[i < 20], &one);
        dpari_moments_merge(&half[i < 20], &none);
    }
    for (i = 0; i < 90; i++) {
        const double d = 1e8 + (double)(i * 37 % 90) / 90.0 - mean;
        m2 += d * d;
    }
    dpari_moments_merge(&half[0], &half[1]);
    CHECK_NEAR(half[0].count, 90.0, 0.0);
    CHECK(fabs(half[0].mean - mean) <= 1e-7);
    CHECK(fabs(half[0].m2 - m2) <= 1e-5 * (1.0 + m2));
}

int main(void)
{
    static const int32_t groups[3] = {0, 2, 6}; /* 0: one set for each channel over all samples */
    host = dpar_mem_host_layers();
    for (int i = 0; i < 4 * 4 * 3; i++) {
        moments_case(floats[i % 4], i / 4 % 4, groups[i / 16]);
    }
    test_moments();
    return CHECK_DONE();
}
