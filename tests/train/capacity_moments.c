/* SPDX-License-Identifier: MIT-0 */
/* capacity_moments: the capacity of experts, the moments of two sets, by hand. */
#include "dpar_train.h"

#include "check.h"

#include <string.h>

static void test_capacity(void)
{
    dpar_experts_desc l;
    dpar_why why;
    memset(&l, 0, sizeof l);
    CHECK_INT(dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, 11, 1, 1, &why), DPAR_OK);
    l.choices = 1;
    CHECK(dpari_expert_capacity(&l, 10) == INT64_MAX); /* DROP_NONE */
    l.drop = DPAR_EXPERTS_DROP_POSITION;
    l.capacity_factor = 1.1; /* in doubles 1.1 x 10 / 11 is above 1 */
    CHECK_INT(dpari_expert_capacity(&l, 10), 1);
    CHECK_INT(dpari_expert_capacity(&l, 11), 2);
    CHECK_INT(dpari_expert_capacity(&l, 0), 0);
    CHECK(dpari_expert_capacity(&l, INT64_MAX / 2) == INT64_MAX);
}

/* Numbers around 1e8, one by one and in two sets: against two passes over all of them. */
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
    test_capacity();
    test_moments();
    return CHECK_DONE();
}
