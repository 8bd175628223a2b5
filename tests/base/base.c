/* SPDX-License-Identifier: MIT-0 */
/* Tests the statuses and their messages. Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"

/* Checks the statuses' numbers, which are part of the interface: other languages and result files
 * contain them. */
static void test_statuses(void)
{
    static const int32_t numbers[] = {
        DPAR_OK,      DPAR_DONE,      DPAR_MORE,       DPAR_E_ARG,    DPAR_E_RANGE, DPAR_E_ROOM,
        DPAR_E_PARSE, DPAR_E_UNKNOWN, DPAR_E_DIVIDE,   DPAR_E_MEMORY, DPAR_E_NONE,  DPAR_E_STUCK,
        DPAR_E_PEER,  DPAR_E_TIMEOUT, DPAR_E_MISMATCH, DPAR_E_SYSTEM};
    int32_t i, k;
    for (i = 0; i < 16; i++) {
        CHECK_INT(numbers[i], i < 3 ? i : 2 - i);
        CHECK(strcmp(dpar_status_text(numbers[i]), "unknown status") != 0);
        for (k = 0; k < i; k++) {
            CHECK(strcmp(dpar_status_text(numbers[i]), dpar_status_text(numbers[k])) != 0);
        }
    }
    CHECK_TEXT(dpar_status_text(DPAR_OK), "ok");
    CHECK_TEXT(dpar_status_text(DPAR_E_DIVIDE), "sizes do not divide");
    CHECK_TEXT(dpar_status_text(DPAR_SKIPPED),
               "the step was skipped because a gradient is not finite");
    CHECK_TEXT(dpar_status_text(4), "unknown status");
    CHECK_TEXT(dpar_status_text(-14), "unknown status");
    CHECK_TEXT(dpar_status_text(-77), "unknown status");
}

/* Checks that messages support the printf formats that dpar needs. */
static void test_messages(void)
{
    dpar_why why;
    CHECK_INT(dpari_say(DPAR_E_DIVIDE, &why, "tp=%d does not divide %ld heads", (int32_t)12,
                        (int64_t)-32),
              DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "tp=12 does not divide -32 heads");
    CHECK_INT(dpari_wrong(&why, "'%.*s' of %s, 100 %%", (int32_t)3, "abcdef", "these"), DPAR_E_ARG);
    CHECK_TEXT(why.text, "'abc' of these, 100 %");
    CHECK_INT(dpari_wrong(&why, "%ld and %ld", INT64_MIN, INT64_MAX), DPAR_E_ARG);
    CHECK_TEXT(why.text, "-9223372036854775808 and 9223372036854775807");
    CHECK_INT(dpari_say(DPAR_E_ARG, NULL, "%d", (int32_t)1), DPAR_E_ARG);
}

int main(void)
{
    test_statuses();
    test_messages();
    return CHECK_DONE();
}
