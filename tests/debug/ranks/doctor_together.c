/* SPDX-License-Identifier: MIT-0 */
/* doctor_together: what dpar_doctor says to ranks that ask together. Each names itself and all; a
 * complaint is counted; the ranks stay together.
 *     ./doctor_together [processes|threads] [ranks]        without: both, 1 to 4 and 1 to 2 */
#include "dpar_debug.h"
#include "rank_program.h"

static int each(dpar_comm *c, void *arg)
{
    static const char *const lines[] = {"dpar ", "\nlauncher   ", "\ncores      ", "\nmemory     ",
                                        "\nwill use   "};
    char *page = (char *)zeroed(1 << 16);
    const char *at = page;
    dpar_text t;
    int32_t wrong, said = 0;
    size_t k;
    (void)arg;
    dpar_text_init(&t, page, 1 << 16);
    wrong = dpar_doctor(c, &t);
    CHECK(t.used < 1 << 16);
    for (k = 0; k < sizeof lines / sizeof lines[0]; k++) {
        CHECK(strstr(page, lines[k]) != NULL);
    }
    while ((at = strstr(at, "\nWRONG: ")) != NULL) {
        said++;
        at++;
    }
    CHECK_INT(wrong, said);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    if (getenv("SAY") != NULL && c->rank == c->size - 1) {
        printf("%s\n", page);
    }
    free(page);
    return checks_failed;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 4, 2, NULL);
}
