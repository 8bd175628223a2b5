/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_selftest: it accepts this machine, which passes golden.txt and all other tests too;
 * and its message if a sum differs. tests/compile/targets.sh breaks divisions, splits, halos and
 * schedules, and checks that the self-test notices. Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"

int main(void)
{
    dpar_why why;
    memcpy(why.text, "untouched", 10);
    CHECK_INT(dpar_selftest(&why), DPAR_OK);
    CHECK_INT(dpar_selftest(NULL), DPAR_OK);
    CHECK_TEXT(why.text, "untouched");
    CHECK_INT(dpari_differs(17, 4000000000u, "splits", &why), DPAR_E_MISMATCH);
    CHECK_TEXT(why.text,
               "splits differ here (checksum 17, not 4000000000): a fault of the compiler");
    CHECK_INT(dpari_differs(17, 18, "splits", NULL), DPAR_E_MISMATCH);
    /* FNV-1a with whole words, from 0: (1 * p ^ 0) * p modulo 2^32, p = 16777619 */
    CHECK_INT(dpari_digest(0, 1), (uint32_t)(UINT64_C(16777619) * UINT64_C(16777619)));
    CHECK_INT(
        dpari_digest(0, -1),
        (uint32_t)((((UINT64_C(0xffffffff) * 16777619u) & 0xffffffffu) ^ 0xffffffffu) * 16777619u));
    CHECK(dpari_digest(dpari_digest(0, 1), 2) != dpari_digest(dpari_digest(0, 2), 1));
    return CHECK_DONE();
}
