/* SPDX-License-Identifier: MIT-0 */
/* doctor - what dpar sees on this machine, what it will use, and what is wrong.
 *
 *   cc -DDPAR_IMPLEMENTATION -I. commands/doctor.c -o doctor
 *   ./doctor                     this process alone
 *   mpirun -n 4 ./doctor --join  the ranks of a job, compared; rank 0 speaks
 *
 * prints a few lines ("launcher   Open MPI: rank 0 of 4, ..."), one "WRONG: ... -> what to do" for
 * each fault, and at last "nothing is wrong". Exit code: 0 nothing is wrong, 1 something is, 2 bad
 * input. */
#include "dpar_debug.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "doctor: what dpar sees on this machine, what it will use, and what is wrong\n"
    "\n"
    "  doctor [options]    looks at this process alone\n"
    "\n"
    "  --join       joins the job that it was started in and compares its ranks;\n"
    "               each rank looks, rank 0 prints, others print what is wrong with them\n"
    "  -h, --help   this text\n"
    "  --version    which dpar this is\n"
    "\n"
    "Exit code: 0 nothing is wrong, 1 something is, 2 bad input (one sentence on stderr)\n"
    "\n"
    "examples\n"
    "  doctor\n"
    "  mpirun -n 4 doctor --join\n";

/* The lines that say what is wrong; rank -1: the text but for its last line, the verdict. */
static void print_lines(const char *text, int rank)
{
    while (*text != 0) {
        size_t n = strcspn(text, "\n");
        if (rank < 0 && text[n] != 0 && text[n + 1] != 0) {
            printf("%.*s\n", (int)n, text);
        } else if (rank >= 0 && strncmp(text, "WRONG", 5) == 0) {
            printf("rank %d: %.*s\n", rank, (int)n, text);
        }
        text += n + (text[n] == '\n');
    }
}

/* What nobody could read was not said. */
static int finish(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return code;
    }
    fprintf(stderr, "doctor: stdout cannot be written\n");
    return 2;
}

/* The ranks do not meet: what each finds about itself may be the reason. */
static int alone(const char *why)
{
    static char text[16384];
    dpar_text out;
    int wrong;
    dpar_text_init(&out, text, sizeof text);
    wrong = 1 + (int)dpar_doctor(NULL, &out);
    print_lines(text, -1);
    printf("WRONG: the ranks do not meet: %s -> start all of them with one launcher, on one node, "
           "from one program\n",
           why);
    printf("%d thing%s wrong\n", wrong, wrong > 1 ? "s are" : " is");
    return finish(1);
}

int main(int argc, char **argv)
{
    static char text[16384];
    dpar_comm *world = NULL;
    dpar_text out;
    dpar_why why;
    int wrong, join = argc == 2 && strcmp(argv[1], "--join") == 0;
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(help, stdout);
        return finish(0);
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("doctor, dpar %d.%d.%d\n", DPAR_VERSION_MAJOR, DPAR_VERSION_MINOR,
               DPAR_VERSION_PATCH);
        return finish(0);
    }
    if (argc > 2) {
        fprintf(stderr, "doctor: takes one option, not also \"%s\"; --help shows them\n", argv[2]);
        return 2;
    }
    if (argc > 1 && !join) {
        fprintf(stderr, "doctor: \"%s\" is no option; --help shows them\n", argv[1]);
        return 2;
    }
    dpar_text_init(&out, text, sizeof text);
    if (join && dpar_init(&world, NULL, &why) != DPAR_OK) {
        return alone(why.text);
    }
    wrong = (int)dpar_doctor(world, &out);
    if (world == NULL || world->rank == 0) {
        fputs(text, stdout);
    } else {
        print_lines(text, (int)world->rank);
    }
    dpar_comm_close(world);
    return finish(wrong > 0);
}
