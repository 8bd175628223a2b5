/* SPDX-License-Identifier: MIT-0 */
/* Tests dpari_expert_capacity against values computed by hand. */
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
    CHECK(dpari_expert_capacity(&l, 10) == INT64_MAX); /* DPAR_EXPERTS_DROP_NONE: no limit */
    l.drop = DPAR_EXPERTS_DROP_POSITION;
    l.capacity_factor = 1.1; /* in doubles 1.1 x 10 / 11 is above 1 */
    CHECK_INT(dpari_expert_capacity(&l, 10), 1);
    CHECK_INT(dpari_expert_capacity(&l, 11), 2);
    CHECK_INT(dpari_expert_capacity(&l, 0), 0);
    CHECK(dpari_expert_capacity(&l, INT64_MAX / 2) == INT64_MAX);
}

int main(void)
{
    test_capacity();
    return CHECK_DONE();
}
