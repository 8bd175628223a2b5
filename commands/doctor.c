/* SPDX-License-Identifier: MIT-0 */
/* doctor - what dpar sees on this machine, what it will use, and what is wrong.
 *
 *   cc -DDPAR_IMPLEMENTATION -I. commands/doctor.c -o doctor
 *   ./doctor                     this process alone
 *   mpirun -n 4 ./doctor --join  the ranks of a job on one node, compared; rank 0 speaks
 *
 *   mpicc -DDOCTOR_MPI -DDPAR_IMPLEMENTATION -I. commands/doctor.c -o doctor_mpi
 *   mpirun -n 256 ./doctor_mpi --join       the same on any number of nodes
 *
 * prints a few lines ("launcher   Open MPI: rank 0 of 4, ..."), one "WRONG: ... -> what to do" for
 * each fault, and at last "nothing is wrong". Ranks that join get a line a node, and one a level:
 * latency and bandwidth in nodes and between them. Exit code: 0 nothing is wrong, 1 something is, 2
 * bad input. */
#include "dpar_debug.h"
#ifdef DOCTOR_MPI
#include "dpar_mpi.h"
#endif

#include <stdio.h>
#include <string.h>

static const char program[] = "doctor";
static const char help[] =
    "doctor: what dpar sees on this machine, what it will use, and what is wrong\n"
    "\n"
    "  doctor [options]    looks at this process alone\n"
    "\n"
    "  --join       joins the job that it was started in: how its ranks reach each other, a\n"
    "               line a node, latency and bandwidth of messages in a node and between\n"
    "               nodes, what is wrong with any rank; rank 0 prints. Seconds.\n"
    "               On several nodes: build/doctor_mpi, made with mpicc -DDOCTOR_MPI\n"
    "  -h, --help   this text\n"
    "  --version    which dpar this is\n"
    "\n"
    "Exit code: 0 nothing is wrong, 1 something is, 2 bad input (one sentence on stderr)\n"
    "\n"
    "examples\n"
    "  doctor\n"
    "  mpirun -n 4 doctor --join\n"
    "  mpirun -n 256 doctor_mpi --join\n";

#include "options.h"

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

/* The ranks do not meet: what each finds about itself may be the reason. */
static int alone(const char *why, const char *remedy)
{
    static char text[16384];
    dpar_text out;
    int wrong;
    dpar_text_init(&out, text, sizeof text);
    wrong = 1 + (int)dpar_doctor(NULL, &out);
    print_lines(text, -1);
    printf("WRONG: the ranks do not meet: %s -> %s\n", why, remedy);
    printf("%d thing%s wrong\n", wrong, wrong > 1 ? "s are" : " is");
    return options_finish(1);
}

static int look(dpar_comm *world)
{
    static char text[65536];
    dpar_text out;
    int wrong;
    dpar_text_init(&out, text, sizeof text);
    wrong = (int)dpar_doctor(world, &out);
    if (world == NULL || world->rank == 0) {
        fputs(text, stdout);
    } else {
        print_lines(text, (int)world->rank); /* nothing, unless the ranks lost each other */
    }
    return options_finish(wrong > 0);
}

#ifdef DOCTOR_MPI

/* A program of one MPI started by another's mpirun is a job of its own in each process. */
static int alike(int size)
{
    char why[200];
    dpar_start job;
    int code;
    if (size > 1 || dpar_start_read(&job, NULL) != DPAR_OK || job.size <= 1) {
        return -1;
    }
    if (job.rank > 0) {
        return 1; /* rank 0 speaks */
    }
    snprintf(why, sizeof why, "the launcher started %d ranks, and MPI knows of this one alone",
             (int)job.size);
    code = alone(why, "start it with the mpirun of the MPI whose mpicc built it");
    return code;
}

static int together(void)
{
    dpar_mpi_options o;
    dpar_comm *world = NULL;
    dpar_why why;
    int code, rank = 0, size = 1;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    code = alike(size);
    if (code < 0) {
        memset(&o, 0, sizeof o);
        o.timeout_s = 60;
        if (dpar_mpi_make(MPI_COMM_WORLD, &o, &world, &why) == DPAR_OK) {
            code = look(world);
            if (world->status < 0) {
                MPI_Abort(MPI_COMM_WORLD, 1); /* MPI may wait for ever for what was under way */
            }
            dpar_comm_close(world);
        } else {
            code = rank > 0 ? 1 : alone(why.text, "see the sentence");
        }
    }
    MPI_Finalize();
    return code;
}

#else

static int together(void)
{
    dpar_comm *world = NULL;
    dpar_why why;
    int code;
    if (dpar_init(&world, NULL, &why) != DPAR_OK) {
        return alone(why.text, "start all of them with one launcher, on one node, from one program "
                               "(on several nodes: doctor_mpi)");
    }
    code = look(world);
    dpar_comm_close(world);
    return code;
}

#endif

int main(int argc, char **argv)
{
    int join = 0, code;
    const option list[] = {{"--join", OPTION_FLAG, &join, 0, 0}};
    code = options_read(argc, argv, list, 1, NULL, 0);
    return code >= 0 ? code : join ? together() : look(NULL);
}
