/* SPDX-License-Identifier: MIT-0 */
/* doctor - shows what dpar finds on this machine, what it will use, and what is wrong.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. commands/doctor.c -o doctor
 *   ./doctor                     checks this process only
 *   mpirun -n 4 ./doctor --join  compares the ranks of a job on one node; rank 0 prints
 *
 *   mpicc -O2 -DDOCTOR_MPI -DDPAR_IMPLEMENTATION -I. commands/doctor.c -o doctor_mpi
 *   mpirun -n 256 ./doctor_mpi --join       the same on any number of nodes
 *
 *   ./doctor --cluster this.cluster         measures this machine into a file for plan --cluster
 *
 * prints a few lines ("launcher   Open MPI: rank 0 of 4, ..."), one "WRONG: ... -> what to do" for
 * each fault, and finally "nothing is wrong". With --join it also prints a line for each node, and
 * the latency and bandwidth inside nodes and between them. To the report of dpar_doctor it adds
 * what does not concern dpar itself (doctor_machine.h) and what must be measured (doctor_links.h);
 * what --cluster measures is in measure.h. Exit code: 0 nothing is wrong, 1 something is, 2 bad
 * input. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* CPU_SET */
#endif
#include "dpar_cost.h"
#include "dpar_debug.h"
#ifdef DOCTOR_MPI
#include "dpar_mpi.h"
#endif

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char program[] = "doctor";
static const char help[] =
    "doctor: what dpar finds on this machine, what it will use, and what is wrong\n"
    "\n"
    "  doctor [options]    checks this process only\n"
    "\n"
    "  --join       join the job in which it was started, and show how its ranks reach each\n"
    "               other, a line for each node, the latency and bandwidth of messages inside\n"
    "               nodes and between them, and what is wrong with any rank. Rank 0 prints. Takes\n"
    "               seconds. On several nodes use build/doctor_mpi (mpicc -O2 -DDOCTOR_MPI)\n"
    "  --cluster F  measure this machine and write the result to the file F for plan --cluster F:\n"
    "               memory, products, calls, messages inside and between nodes, halos, and all\n"
    "               ranks at work at once. It measures the ranks of the job with --join; "
    "otherwise\n"
    "               it forks --ranks N ranks (by default one per core)\n"
    "  --again      keep the values that are already in F if they are better. Run it repeatedly\n"
    "               on a machine that is also used by others\n"
    "  --seconds S  time for the measurement, about S seconds (default 20; more on a busy "
    "machine)\n"
    "  -h, --help   show this text\n"
    "  --version    show the version of dpar\n"
    "\n"
    "Exit code: 0 nothing is wrong, 1 something is, 2 bad input (one message on stderr)\n"
    "\n"
    "examples\n"
    "  doctor\n"
    "  mpirun -n 4 doctor --join\n"
    "  mpirun -n 256 doctor_mpi --join\n"
    "  doctor --cluster this.cluster && plan gpt2 --cluster this.cluster --batch 2\n"
    "  doctor --cluster pair.cluster --ranks 2 --seconds 60\n"
    "  mpirun -n 8 doctor_mpi --join --cluster two_nodes.cluster\n";

#include "../helpers/options.h"

#include "../helpers/measure.h"

#include "doctor_machine.h"

#include "doctor_links.h"

static const char *cluster_path;
static double cluster_seconds = 20.0;
static int cluster_again;

/* Reads the file of an earlier measurement. Returns 0, or 1 with a message in *why. */
static int read_earlier(char *text, size_t room, dpar_cluster *was, dpar_why *why)
{
    FILE *file = cluster_again ? fopen(cluster_path, "rb") : NULL;
    size_t n;
    text[0] = 0;
    if (file == NULL) {
        return 0;
    }
    n = fread(text, 1, room, file);
    fclose(file);
    if (n == room) {
        snprintf(why->text, sizeof why->text, "%.100s has more than %lu bytes", cluster_path,
                 (unsigned long)room - 1);
        text[0] = 0;
        return 1;
    }
    text[n] = 0;
    return dpar_cluster_read(was, text, strlen(text), why) < 0;
}

/* Prints the text of dpar_doctor, which found `found` things, and what this program found: first
 * the facts, then what is wrong, then how many things are. Returns the exit code. */
static int print_report(const char *text, int found, const doctor_lines *facts,
                        const doctor_lines *wrong)
{
    const char *line = text, *faults, *end;
    const int all = found + wrong->wrong;
    while (line[0] != 0 && strncmp(line, "WRONG: ", 7) != 0 && strncmp(line, "note: ", 6) != 0) {
        end = strchr(line, '\n');
        if (end == NULL || end[1] == 0) {
            break; /* the verdict */
        }
        line = end + 1;
    }
    faults = line;
    while ((end = strchr(line, '\n')) != NULL && end[1] != 0) {
        line = end + 1;
    }
    printf("%.*s%s%.*s%s", (int)(faults - text), text, facts->text, (int)(line - faults), faults,
           wrong->text);
    if (wrong->wrong > DOCTOR_LINES) {
        printf("... and %d more\n", wrong->wrong - DOCTOR_LINES);
    }
    if (all == 0) {
        printf("nothing is wrong\n");
    } else {
        printf("%d thing%s wrong\n", all, all > 1 ? "s are" : " is");
    }
    return options_finish(all > 0);
}

/* Prints the lines WRONG of a rank that has lost the others. */
static void print_lost(const char *text, int rank)
{
    for (; *text != 0; text += strcspn(text, "\n"), text += *text != 0) {
        if (strncmp(text, "WRONG", 5) == 0) {
            printf("rank %d: %.*s\n", rank, (int)strcspn(text, "\n"), text);
        }
    }
}

/* Prints the report about this process. If `why` is not NULL, it says why the ranks could not
 * connect; what this process finds about itself may be the reason. Returns the exit code. */
static int alone(dpar_comm *world, const char *why, const char *remedy)
{
    static char text[16384], says[4096], faults[8192];
    machine_facts machine;
    doctor_lines facts, wrong;
    dpar_text out;
    int found;
    dpar_text_init(&out, text, sizeof text);
    found = (int)dpar_doctor(world, &out);
    doctor_lines_init(&facts, says, sizeof says);
    doctor_lines_init(&wrong, faults, sizeof faults);
    machine_look(&machine);
    machine_say(&machine, &facts);
    machine_judge(&machine, &wrong);
    if (why != NULL) {
        doctor_wrong(&wrong, "the ranks could not connect: %s -> %s", why, remedy);
    }
    return print_report(text, found, &facts, &wrong);
}

/* Prints the report about all ranks. Returns the exit code. */
static int look(dpar_comm *world)
{
    static char text[65536], says[16384], faults[16384];
    machine_facts machine;
    doctor_lines facts, wrong;
    dpar_text out;
    double newest, oldest, code;
    int found;
    if (world->size == 1) {
        return alone(world, NULL, NULL);
    }
    machine_look(&machine); /* now, because other ranks wait in dpar_doctor and use their cores */
    dpar_text_init(&out, text, sizeof text);
    found = (int)dpar_doctor(world, &out);
    doctor_lines_init(&facts, says, sizeof says);
    doctor_lines_init(&wrong, faults, sizeof faults);
    newest = dpar_max(world, DPAR_VERSION);
    oldest = dpar_min(world, DPAR_VERSION);
    if (newest <= oldest) { /* ranks of another version may measure in another manner */
        links_look(world, &machine, &facts, &wrong);
    }
    if (world->rank == 0) {
        code = print_report(text, found, &facts, &wrong);
    } else {
        print_lost(text, (int)world->rank);
        code = options_finish(found > 0);
    }
    code = dpar_max(world, code);
    return world->status < 0 ? 1 : (int)code;
}

/* Checks, before anything is measured, that the file can be written. An existing file keeps its
 * contents, a new one is removed again. Returns 0, or 1 with a message in *why. */
static int unwritable(dpar_why *why)
{
    struct stat info;
    const int exists = stat(cluster_path, &info) == 0;
    int file;
    if (exists && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
        return 0; /* opening and closing a pipe would end its reader */
    }
    file = open(cluster_path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (file >= 0) {
        close(file);
        remove(cluster_path);
        return 0;
    }
    file =
        open(cluster_path, O_WRONLY); /* it exists, or is a link to a file that may not exist yet */
    if (file >= 0) {
        close(file);
        return 0;
    }
    if (errno == ENOENT && lstat(cluster_path, &info) == 0) {
        return 0; /* such a link: the file is made when there is something to write */
    }
    snprintf(why->text, sizeof why->text, "cannot write '%s'", cluster_path);
    return 1;
}

/* Lets the ranks agree whether one of them has a message. Returns the exit code 2, or 0 if none
 * has. */
static int refused(dpar_comm *world, int bad, const dpar_why *why)
{
    const int any = dpar_max(world, bad) > 0.0;
    if (bad) {
        (void)dpar_fail(world, why);
    }
    return any ? 2 : 0;
}

/* Measures the machine. Rank 0 writes the file and prints a line. `node` is the node of this rank,
 * 0..nodes-1. */
static int gauge(dpar_comm *world, int32_t node, int32_t nodes)
{
    static char joined[2000], text[65536];
    static dpar_cluster was;
    const int first = world->rank == 0;
    measured found;
    dpar_why why;
    dpar_text out;
    double off = 0.0;
    int bad = first && (unwritable(&why) || read_earlier(text, sizeof text, &was, &why));
    int code = refused(world, bad, &why);
    if (code != 0) {
        return code;
    }
    if (measure_all(world, node, nodes, cluster_seconds, &found, &why)) {
        return dpar_fail(world, &why);
    }
    dpar_text_init(&out, joined, sizeof joined);
    dpar_comm_describe(world, &out);
    bad = 0;
    joined[strcspn(joined, "\n")] = 0;
    if (first && text[0] != 0 && !measure_better(&found, &was, text)) {
        snprintf(why.text, sizeof why.text,
                 "--again: '%s' was measured with another number of nodes or ranks", cluster_path);
        bad = 1;
    } else if (first) {
        off = measure_fit(&found);
        bad = cluster_write(cluster_path, &found, joined);
        snprintf(why.text, sizeof why.text, "cannot write '%s'", cluster_path);
    }
    code = refused(world, bad, &why);
    if (code == 0 && first) {
        printf("%s: %d rank%s on %d node%s; the fitted halo rates are at most %.0f %% off the "
               "measurements\n",
               cluster_path, (int)found.ranks, options_plural(found.ranks, "s"), (int)nodes,
               options_plural(nodes, "s"), 100.0 * off);
    }
    return options_finish(code);
}

#ifdef DOCTOR_MPI

/* Checks that all nodes have the same number of ranks, which a cluster file assumes, and measures.
 */
static int gauge_nodes(dpar_comm *world)
{
    MPI_Comm near;
    int local = 0, size = 1, first = 0, least = 0, most = 0, mine, node;
    dpar_why why;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near);
    MPI_Comm_rank(near, &local);
    MPI_Comm_size(near, &size);
    MPI_Comm_free(&near);
    MPI_Allreduce(&size, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&size, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    mine = local == 0;
    MPI_Exscan(&mine, &first, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    node = mine ? first : first - 1;
    if (world->rank == 0) {
        node = 0; /* MPI_Exscan leaves `first` undefined there */
    }
    if (least != most || node != world->rank / size) {
        snprintf(why.text, sizeof why.text,
                 "the nodes have %d to %d ranks, or the ranks of a node are not consecutive: give "
                 "each node the same number of ranks, in order",
                 least, most);
        return dpar_fail(world, &why);
    }
    return gauge(world, node, world->size / size);
}

/* Detects a program of one MPI that was started by the mpirun of another: then each process is a
 * job of its own. Returns -1 if that is not so, otherwise the exit code. */
static int alike(int size)
{
    char why[200];
    dpar_launcher_info job;
    if (size > 1 || dpar_launcher_detect(&job, NULL) != DPAR_OK || job.size <= 1) {
        return -1;
    }
    if (job.rank > 0) {
        return 1; /* rank 0 prints */
    }
    snprintf(why, sizeof why, "the launcher started %d ranks, but MPI knows only this one",
             (int)job.size);
    return alone(NULL, why, "start it with the mpirun of the MPI whose mpicc built it");
}

static int together(void)
{
    dpar_mpi_desc desc;
    dpar_comm *world = NULL;
    dpar_why why;
    int code, rank = 0, size = 1;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    code = alike(size);
    if (code < 0) {
        memset(&desc, 0, sizeof desc);
        desc.timeout_s = 60;
        if (dpar_mpi_make(MPI_COMM_WORLD, &desc, &world, &why) == DPAR_OK) {
            code = cluster_path != NULL ? gauge_nodes(world) : look(world);
            if (world->status < 0) {
                /* because MPI_Finalize may wait for unfinished messages for ever */
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
            dpar_comm_free(world);
        } else {
            code = rank > 0 ? 1 : alone(NULL, why.text, "see this message");
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
        return alone(NULL, why.text,
                     "start all ranks with one launcher, on one node, from one program "
                     "(on several nodes use doctor_mpi)");
    }
    code = cluster_path != NULL ? gauge(world, 0, 1) : look(world);
    dpar_comm_free(world);
    return code;
}

#endif

/* Keeps each rank on a core of its own if there are enough. Two ranks that a busy system puts on
 * one core would measure its scheduler. */
static void keep_to_core(int32_t rank, int32_t ranks)
{
#if defined(__linux__) && defined(CPU_SET)
    cpu_set_t allowed, one;
    int cpu;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) >= ranks) {
        for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (CPU_ISSET(cpu, &allowed) && rank-- == 0) {
                CPU_ZERO(&one);
                CPU_SET(cpu, &one);
                (void)sched_setaffinity(0, sizeof one, &one);
            }
        }
    }
#else
    (void)rank;
    (void)ranks;
#endif
}

static int forked(dpar_comm *world, void *unused)
{
    (void)unused;
    keep_to_core(world->rank, world->size);
    return gauge(world, 0, 1);
}

/* Forks ranks, one per core unless `ranks` is given, and measures. */
static int fork_and_gauge(char *name, int ranks)
{
    char number[40];
    char *words[3] = {name, number, NULL};
#if defined(_SC_NPROCESSORS_ONLN)
    ranks = ranks > 0 ? ranks : (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
    snprintf(number, sizeof number, "--ranks=%d", ranks > 0 ? ranks : 1);
    return dpar_launch_main(2, words, forked, NULL);
}

/* Refuses options that would be ignored. `seconds` and `ranks` are 0 if they were not given.
 * Returns -1 to go on, or 2 after a message. */
static int refuse_unused(double seconds, int join, int ranks)
{
    if (ranks > 0 && (join || cluster_path == NULL)) {
        return complain("--ranks needs --cluster and cannot be used with --join", NULL);
    }
    if (cluster_path == NULL && seconds > 0.0) {
        return complain("--seconds needs --cluster: nothing is measured without it", NULL);
    }
    if (cluster_path == NULL && cluster_again) {
        return complain("--again needs --cluster: nothing is measured without it", NULL);
    }
    if (cluster_path != NULL && strcmp(cluster_path, "-") == 0) {
        return complain("--cluster needs the name of a file, not", cluster_path);
    }
    return -1;
}

int main(int argc, char **argv)
{
    int join = 0, ranks = 0, code;
    double seconds = 0.0;
    const option list[] = {{"--join", OPTION_FLAG, &join, 0, 0},
                           {"--cluster", OPTION_WORD, &cluster_path, 0, 0},
                           {"--again", OPTION_FLAG, &cluster_again, 0, 0},
                           {"--ranks", OPTION_INT, &ranks, 1, 1024},
                           {"--seconds", OPTION_REAL, &seconds, 0.001, 86400}};
    code = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (code < 0) {
        code = refuse_unused(seconds, join, ranks);
    }
    if (code >= 0) {
        return code;
    }
    if (seconds > 0.0) {
        cluster_seconds = seconds;
    }
    if (join) {
        return together();
    }
    return cluster_path != NULL ? fork_and_gauge(argv[0], ranks) : alone(NULL, NULL, NULL);
}
