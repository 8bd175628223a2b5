/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_doctor when ranks call it together, and what commands/doctor.c measures then. Rank 0
 * gets the whole report, the others the number of faults; a complaint is counted; messages of each
 * level are measured; a different deadline is found; the ranks stay synchronised, and the messages
 * of dpar_doctor are not counted.
 *     ./doctor_ranks [processes|threads] [ranks]      without arguments: both, 1 to 4 and 1 to 2 */
#include "dpar_debug.h"
#include "rank_program.h"

#include "../../../commands/doctor_machine.h"

#include "../../../commands/doctor_links.h"

static __thread char *page; /* ranks may be threads */

/* Calls the doctor on all ranks; all get one number, and rank 0 as many complaints. */
static int32_t asked(dpar_comm *c)
{
    const char *at;
    dpar_text t;
    int64_t said = 0;
    int32_t wrong;
    memset(page, 0, 1 << 16);
    dpar_text_init(&t, page, 1 << 16);
    wrong = dpar_doctor(c, &t);
    CHECK(t.used < 1 << 16);
    for (at = page; (at = strstr(at, "\nWRONG: ")) != NULL; at++) {
        said++;
    }
    CHECK_INT(all_sum(c, said), wrong);
    CHECK_INT(all_sum(c, wrong), (int64_t)wrong * c->size);
    if (c->size > 1 && c->rank > 0) {
        CHECK_INT(t.used, 0);
    } else {
        CHECK((strstr(page, "\nnothing is wrong\n") != NULL) == (wrong == 0));
    }
    return wrong;
}

static void says(const char *word)
{
    if (strstr(page, word) == NULL) {
        printf("no \"%s\" in: %s\n", word, page);
        CHECK(0);
    }
}

/* Checks the line of a level: the number of pairs, and numbers that a machine can have: 1 ns to 1
 * s, 1 MB/s to 1 TB/s. */
static void level(const char *text, const char *begins, int pairs)
{
    const char *line = strstr(text, begins);
    double us = 0, rate = 0;
    char unit = 0;
    int n = 1;
    CHECK((line != NULL) == (pairs > 0));
    if (line != NULL) {
        line += strlen(begins);
        CHECK_INT(sscanf(line, ": 8 B in %lf %cs, 1 MiB at %lf GB/s, medians of %d", &us, &unit,
                         &rate, &n),
                  pairs > 1 ? 4 : 3);
        CHECK(unit == 'u' || unit == 'm');
        us *= unit == 'm' ? 1000 : 1;
        CHECK_INT(n, pairs);
        CHECK(us > 1e-3 && us < 1e6 && rate > 1e-3 && rate < 1e3);
    }
}

/* Returns how many ranks share memory: all, those of a pair (as if nodes had two ranks), or one. */
static int sharing(const dpar_comm *c)
{
    const char *node = getenv("DPAR_MPI_NODE");
    return strcmp(c->engine.name, "mpi") != 0 ? c->size
           : node != NULL && atoi(node) > 0   ? atoi(node)
                                              : 1;
}

/* Measures the links of all ranks, and checks the lines on rank 0. */
static void levels(dpar_comm *c)
{
    const int n = c->size, each = sharing(c), nodes = (n + each - 1) / each;
    char *text = (char *)zeroed(1 << 14);
    machine_facts machine;
    doctor_lines facts, wrong;
    machine_look(&machine);
    doctor_lines_init(&facts, text, 1 << 13);
    doctor_lines_init(&wrong, text + (1 << 13), 1 << 13);
    links_look(c, &machine, &facts, &wrong);
    CHECK_INT(machine.ranks, n);
    if (c->rank == 0) {
        CHECK(strstr(text, ", memory ") != NULL);
        level(text, "\nwithin     a node, by memory", n - nodes);
        level(text, "\nwithin     a node, by messages", nodes - 1);
        level(text, "\nbetween    nodes", 0);
        CHECK(strstr(wrong.text, "cannot be measured") == NULL);
        CHECK((strstr(page, "not share memory with the first rank of the same node") != NULL) ==
              (nodes > 1));
    }
    free(text);
}

static int each(dpar_comm *c, void *arg)
{
    static const char *const lines[] = {"dpar ", "\nlauncher   ", "\njoined     "};
    int64_t sent[DPAR_CALL_COUNT];
    double deadline = c->timeout_s;
    int32_t wrong;
    size_t k;
    (void)arg;
    page = (char *)zeroed(1 << 16);
    memcpy(sent, c->sent, sizeof sent);
    (void)asked(c);
    for (k = 0; k < sizeof lines / sizeof lines[0] && c->rank == 0 && c->size > 1; k++) {
        says(lines[k]);
    }
    if (c->size > 1) {
        sent[DPAR_CALL_ALL_REDUCE] = c->sent[DPAR_CALL_ALL_REDUCE]; /* calls of this test */
        CHECK(memcmp(sent, c->sent, sizeof sent) == 0);
        levels(c);
        CHECK(strstr(page, "the deadline is") == NULL);
        c->timeout_s = c->rank == c->size - 1 ? deadline * 2 : deadline;
        wrong = asked(c);
        c->timeout_s = deadline;
        CHECK(wrong > 0);
        if (c->rank == 0) {
            char word[80];
            snprintf(word, sizeof word, "\nWRONG: rank %d on ", (int)c->size - 1);
            says(word);
            snprintf(word, sizeof word, ": the deadline is %g s, on rank 0 %g s", 2 * deadline,
                     deadline);
            says(word);
        }
    }
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    if (getenv("SAY") != NULL && c->rank == 0) {
        printf("%s\n", page);
    }
    free(page);
    return checks_failed;
}

/* The last rank leaves without calling the doctor. */
static int one_leaves(dpar_comm *c, void *arg)
{
    char word[40];
    dpar_text t;
    (void)arg;
    if (c->rank == c->size - 1) {
        return 0;
    }
    page = (char *)zeroed(1 << 16);
    dpar_text_init(&t, page, 1 << 16);
    CHECK(dpar_doctor(c, &t) > 0);
    CHECK(c->status < 0);
    says("WRONG: the ranks cannot be compared: ");
    snprintf(word, sizeof word, ", rank %d ", (int)c->size - 1);
    says(word);
    free(page);
    return checks_failed;
}

static void without_one(int n, const dpar_world_desc *o)
{
    dpar_why why;
    if (n > 1) {
        CHECK_INT(dpar_launch(n, one_leaves, NULL, o, &why), DPAR_OK);
    }
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 4, 2, without_one);
}
