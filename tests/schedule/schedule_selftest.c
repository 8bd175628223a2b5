/* SPDX-License-Identifier: MIT-0 */
/* Tests that dpar_schedule's self-test accepts this machine. tests/compile/targets.sh breaks
 * schedules and checks that the self-test notices. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"

int main(void)
{
    dpar_why why;
    memcpy(why.text, "untouched", 10);
    CHECK_INT(dpar_schedule_selftest(&why), DPAR_OK);
    CHECK_TEXT(why.text, "untouched");
    CHECK_INT(dpar_schedule_selftest(NULL), DPAR_OK);
    return CHECK_DONE();
}
