/* SPDX-License-Identifier: MIT-0 */
/* launch: tests the table of launchers with the environment variables that each launcher sets: each
 * row, incomplete rows, mixed rows, and environments that only resemble a launcher. The variables
 * were recorded from the launchers for Open MPI 4.1.4 and 5.0.11, MPICH 4.0.2 and 5.0.2, Intel MPI
 * 2021.19 and torchrun 2.15. The other rows follow the documents or sources that are named there.
 * These tests do not change the environment. */
#include "dpar_comm.h"

#include "check.h"

#include <stdlib.h>
#include <unistd.h>

/* Looks a name up in a list "A=1", "B=2", ..., NULL in place of the environment. */
static const char *listed(const void *user, const char *name)
{
    const char *const *list = (const char *const *)user;
    size_t n = strlen(name);
    for (; *list != NULL; list++) {
        if (strncmp(*list, name, n) == 0 && (*list)[n] == '=') {
            return *list + n + 1;
        }
    }
    return NULL;
}

static dpar_launcher_info job;
static int32_t nodes;
static dpar_why why;

static dpar_status find(const char *const *list)
{
    dpari_site site;
    site.env = listed;
    site.user = list;
    site.root = "";
    memset(&job, 0x55, sizeof job);
    why.text[0] = 0;
    nodes = -7;
    return dpari_job_from(&site, &job, &nodes, &why);
}

/* Checks that the row of a launcher is chosen, with these numbers. */
static void expect(const char *const *list, int launcher, int rank, int size, int local_rank,
                   int local_size, int in_nodes, const char *id)
{
    CHECK_INT(find(list), DPAR_OK);
    CHECK_TEXT(why.text, "");
    CHECK_TEXT(dpari_launcher_name(job.kind), dpari_launcher_name(launcher));
    CHECK_INT(job.rank, rank);
    CHECK_INT(job.size, size);
    CHECK_INT(job.local_rank, local_rank);
    CHECK_INT(job.local_size, local_size);
    CHECK_INT(nodes, in_nodes);
    CHECK_TEXT(job.id, id);
}

/* Checks that detection fails, that the message contains `word`, and that nothing is written. */
static void refuse(const char *const *list, const char *word)
{
    CHECK_INT(find(list), DPAR_E_ARG);
    if (strstr(why.text, word) == NULL) {
        CHECK_TEXT(why.text, word);
    }
    CHECK_INT(job.rank, 0x55555555);
    CHECK_INT(nodes, -7);
}

#define LIST(...) static const char *const list[] = {__VA_ARGS__, NULL};

static void test_rows(void)
{
    {
        static const char *const list[] = {"HOME=/", NULL};
        expect(list, DPAR_LAUNCHER_NONE, 0, 1, 0, 1, 1, "");
    }
    {
        LIST("DPAR_RANK=2", "DPAR_SIZE=4", "DPAR_LOCAL_RANK=0", "DPAR_LOCAL_SIZE=2",
             "DPAR_JOB=mine")
        expect(list, DPAR_LAUNCHER_DPAR, 2, 4, 0, 2, 0, "mine");
    }
    {
        LIST("DPAR_RANK=2", "DPAR_SIZE=4")
        expect(list, DPAR_LAUNCHER_DPAR, 2, 4, -1, -1, 0, "");
    }
    { /* torchrun 2.15 --nnodes 2 --nproc-per-node 4 */
        LIST("RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1",
             "MASTER_ADDR=n1", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=x",
             "TORCHELASTIC_RESTART_COUNT=2")
        expect(list, DPAR_LAUNCHER_TORCHRUN, 5, 8, 1, 4, 0, "x@n1:29500#2");
    }
    { /* torch's own "env://", without torchrun */
        LIST("RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=n1", "MASTER_PORT=29500")
        expect(list, DPAR_LAUNCHER_TORCHRUN, 0, 1, -1, -1, 0, "@n1:29500");
    }
    {
        LIST("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=3",
             "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_RANK=3", "PMIX_NAMESPACE=1189871617",
             "OMPI_MCA_ess_base_jobid=7")
        expect(list, DPAR_LAUNCHER_OPENMPI, 3, 4, 3, 4, 1, "1189871617");
    }
    {
        LIST("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_MCA_ess_base_jobid=7")
        expect(list, DPAR_LAUNCHER_OPENMPI, 3, 4, -1, -1, 0, "7");
    }
    { /* Open MPI 5.0.11, which PRRTE starts */
        LIST("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
             "OMPI_COMM_WORLD_LOCAL_SIZE=2", "OMPI_COMM_WORLD_NODE_RANK=1", "OMPI_UNIVERSE_SIZE=2",
             "OMPI_VERSION=5.0.11", "PMIX_RANK=1", "PMIX_NAMESPACE=prterun-vm-17799@1",
             "PRTE_LAUNCHED=1")
        expect(list, DPAR_LAUNCHER_OPENMPI, 1, 2, 1, 2, 1, "prterun-vm-17799@1");
    }
    {
        LIST("PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=8", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2",
             "HYDI_CONTROL_FD=7")
        expect(list, DPAR_LAUNCHER_HYDRA, 1, 2, 1, 2, 1, "");
    }
    { /* Intel MPI 2021.19; MPICH 5.0.2 sets the variables of MPICH 4 above and PMI_HOSTNAME */
        LIST("PMI_RANK=1", "PMI_SIZE=4", "PMI_FD=9", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2",
             "HYDRA_BSTRAP_LAUNCHER=ssh", "I_MPI_INFO_NP=1", "I_MPI_PIN_INFO=0,1")
        expect(list, DPAR_LAUNCHER_HYDRA, 1, 4, 1, 2, 0, "");
    }
    { /* mpiexec of PALS under PBS (Polaris, Aurora: docs.alcf.anl.gov); names as in HPE's pals.h */
        LIST("PMI_RANK=9", "PMI_SIZE=16", "PMI_LOCAL_RANK=1", "PMI_LOCAL_SIZE=4", "PALS_APID=abc",
             "PALS_RANKID=9", "PBS_JOBID=12.desched1")
        expect(list, DPAR_LAUNCHER_PALS, 9, 16, 1, 4, 0, "12.desched1+abc");
    }
    {
        LIST("PALS_RANKID=9", "PALS_NRANKS=16", "PALS_LOCAL_RANKID=1", "PALS_LOCAL_SIZE=8",
             "PALS_APID=abc")
        expect(list, DPAR_LAUNCHER_PALS, 9, 16, 1, 8, 0, "+abc");
    }
    {
        LIST("PALS_RANKID=9", "PALS_SIZE=12", "PALS_LOCAL_RANKID=1")
        expect(list, DPAR_LAUNCHER_PALS, 9, 12, 1, -1, 0, "");
    }
    { /* mpirun_rsh: MVAPICH2's user guide */
        LIST("MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=6", "MV2_COMM_WORLD_LOCAL_RANK=1",
             "MV2_COMM_WORLD_LOCAL_SIZE=3", "MPIRUN_HOST=h", "MPIRUN_ID=77")
        expect(list, DPAR_LAUNCHER_MVAPICH, 1, 6, 1, 3, 0, "h:77");
    }
    { /* flux-environment(7), with -opmi=none */
        LIST("FLUX_TASK_RANK=7", "FLUX_JOB_SIZE=8", "FLUX_TASK_LOCAL_ID=3", "FLUX_JOB_NNODES=2",
             "FLUX_JOB_ID=fx1")
        expect(list, DPAR_LAUNCHER_FLUX, 7, 8, 3, 4, 2, "fx1");
    }
    { /* the default: the variables of the simple PMI server are set too */
        LIST("PMI_RANK=7", "PMI_SIZE=8", "PMI_FD=22", "FLUX_TASK_RANK=7", "FLUX_JOB_SIZE=8",
             "FLUX_TASK_LOCAL_ID=3", "FLUX_JOB_NNODES=2", "FLUX_JOB_ID=fx1")
        expect(list, DPAR_LAUNCHER_FLUX, 7, 8, 3, 4, 2, "fx1");
    }
    { /* Flux on a Cray (shell/plugins/cray_pals.c of flux-coral2): a rank without a size */
        LIST("PALS_RANKID=7", "PALS_NODEID=1", "PALS_APID=99", "PALS_SPOOL_DIR=/t",
             "PALS_APINFO=/t/a", "FLUX_TASK_RANK=7", "FLUX_JOB_SIZE=8", "FLUX_TASK_LOCAL_ID=3",
             "FLUX_JOB_NNODES=2", "FLUX_JOB_ID=fx1")
        expect(list, DPAR_LAUNCHER_FLUX, 7, 8, 3, 4, 2, "fx1");
    }
    { /* 5 ranks on 2 nodes, 3 and 2, in an unknown order */
        LIST("FLUX_TASK_RANK=4", "FLUX_JOB_SIZE=5", "FLUX_TASK_LOCAL_ID=1", "FLUX_JOB_NNODES=2")
        expect(list, DPAR_LAUNCHER_FLUX, 4, 5, 1, -1, 2, "");
    }
    { /* as in PyTorch Lightning's LSFEnvironment and IBM's jsrun */
        LIST("JSM_NAMESPACE_RANK=3", "JSM_NAMESPACE_SIZE=12", "JSM_NAMESPACE_LOCAL_RANK=3",
             "LSB_JOBID=5", "PMIX_RANK=3")
        expect(list, DPAR_LAUNCHER_JSRUN, 3, 12, 3, -1, 0, "5");
    }
    { /* srun(1), output environment variables */
        LIST("SLURM_PROCID=8", "SLURM_NTASKS=99", "SLURM_STEP_ID=3", "SLURM_STEP_NUM_TASKS=11",
             "SLURM_LOCALID=0", "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE=4(x2),3",
             "SLURM_JOB_ID=42")
        expect(list, DPAR_LAUNCHER_SLURM, 8, 11, 0, 3, 3, "42.3");
    }
    {
        LIST("SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_LOCALID=1",
             "SLURM_STEP_TASKS_PER_NODE=4", "SLURM_JOBID=42")
        expect(list, DPAR_LAUNCHER_SLURM, 1, 4, 1, 4, 1, "42.0");
    }
}

/* Checks that an inner launcher wins and that numbers of two rows are never mixed. */
static void test_mixed(void)
{
    { /* mpirun inside sbatch: both sets of variables are there */
        LIST("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2",
             "SLURM_LOCALID=0", "SLURM_JOB_ID=42", "OMPI_COMM_WORLD_RANK=5",
             "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1",
             "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=9")
        expect(list, DPAR_LAUNCHER_OPENMPI, 5, 8, 1, 4, 0, "9");
    }
    { /* torchrun inside srun */
        LIST("SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0",
             "RANK=4", "WORLD_SIZE=8", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=4")
        expect(list, DPAR_LAUNCHER_TORCHRUN, 4, 8, 0, 4, 0, "");
    }
    { /* the variables of dpar take precedence */
        LIST("RANK=4", "WORLD_SIZE=8", "DPAR_RANK=1", "DPAR_SIZE=2", "PMI_RANK=0", "PMI_SIZE=1")
        expect(list, DPAR_LAUNCHER_DPAR, 1, 2, -1, -1, 0, "");
    }
    { /* srun --mpi=pmi2 (plugins/mpi/pmi2/mpi_pmi2.c): Slurm knows the node, PMI does not */
        LIST("PMI_RANK=5", "PMI_SIZE=8", "PMI_FD=3", "SLURM_PROCID=5", "SLURM_STEP_ID=0",
             "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=1", "SLURM_NODEID=1",
             "SLURM_STEP_TASKS_PER_NODE=4(x2)", "SLURM_JOB_ID=1")
        expect(list, DPAR_LAUNCHER_SLURM, 5, 8, 1, 4, 2, "1.0");
    }
    { /* srun --mpi=cray_shasta (LUMI, Frontier, Perlmutter), Slurm before 23.02: PALS has no size
       */
        LIST("PALS_RANKID=5", "PALS_NODEID=1", "PALS_APID=42.3", "PALS_SPOOL_DIR=/t",
             "PALS_APINFO=/t/a", "SLURM_PROCID=5", "SLURM_STEP_ID=3", "SLURM_STEP_NUM_TASKS=8",
             "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_STEP_TASKS_PER_NODE=4(x2)",
             "SLURM_JOB_ID=42")
        expect(list, DPAR_LAUNCHER_SLURM, 5, 8, 1, 4, 2, "42.3");
    }
    /* from 23.02 on the variables of PMI are set too
     * (plugins/mpi/cray_shasta/mpi_cray_shasta.c) */
    {
        LIST("PALS_RANKID=5", "PALS_NODEID=1", "PALS_APID=42.3", "PALS_LOCAL_RANKID=1",
             "PMI_RANK=5", "PMI_SIZE=8", "PMI_LOCAL_RANK=1", "PMI_LOCAL_SIZE=4",
             "PMI_UNIVERSE_SIZE=8", "PMI_JOBID=42", "SLURM_PROCID=5", "SLURM_STEP_ID=3",
             "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=1", "SLURM_NODEID=1",
             "SLURM_STEP_TASKS_PER_NODE=4(x2)", "SLURM_JOB_ID=42")
        expect(list, DPAR_LAUNCHER_SLURM, 5, 8, 1, 4, 2, "42.3");
    }
    { /* a PALS job other than the step or the Flux job in which it was started */
        LIST("PALS_RANKID=5", "PALS_NRANKS=6", "PALS_LOCAL_RANKID=1", "PALS_APID=a",
             "FLUX_TASK_RANK=0", "FLUX_JOB_SIZE=1", "SLURM_PROCID=0", "SLURM_STEP_ID=3",
             "SLURM_STEP_NUM_TASKS=1")
        expect(list, DPAR_LAUNCHER_PALS, 5, 6, 1, -1, 0, "+a");
    }
    { /* MPICH's mpiexec inside flux run: another job with the same numbers */
        LIST("PMI_RANK=0", "PMI_SIZE=1", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1",
             "FLUX_TASK_RANK=0", "FLUX_JOB_SIZE=1", "FLUX_JOB_NNODES=1")
        expect(list, DPAR_LAUNCHER_HYDRA, 0, 1, 0, 1, 1, "");
    }
    { /* MPICH's mpiexec inside srun: another job than the step */
        LIST("PMI_RANK=1", "PMI_SIZE=3", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=3", "SLURM_PROCID=0",
             "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1")
        expect(list, DPAR_LAUNCHER_HYDRA, 1, 3, 1, 3, 1, "");
    }
    { /* srun --mpi=pmix */
        LIST("PMIX_RANK=1", "SLURM_PROCID=1", "SLURM_STEP_ID=4", "SLURM_STEP_NUM_TASKS=2",
             "SLURM_LOCALID=1", "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_JOB_ID=1")
        expect(list, DPAR_LAUNCHER_SLURM, 1, 2, 1, 2, 1, "1.4");
    }
}

/* Tests environments that resemble a launcher but are none. */
static void test_false_positives(void)
{
    { /* salloc or sbatch without srun */
        LIST("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_LOCALID=0", "SLURM_JOB_ID=42",
             "SLURM_NODEID=0")
        expect(list, DPAR_LAUNCHER_NONE, 0, 1, 0, 1, 1, "");
    }
    { /* the shell of an allocation is a step of its own, 2^32 - 6; the batch script is 2^32 - 5 */
        LIST("SLURM_PROCID=0", "SLURM_STEP_ID=4294967290", "SLURM_STEP_NUM_TASKS=8",
             "SLURM_JOB_ID=42")
        expect(list, DPAR_LAUNCHER_NONE, 0, 1, 0, 1, 1, "");
    }
    {
        LIST("SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=8")
        expect(list, DPAR_LAUNCHER_NONE, 0, 1, 0, 1, 1, "");
    }
    { /* left over in a shell: sizes without a rank, names with the same beginning only */
        LIST("WORLD_SIZE=8", "LOCAL_RANK=1", "RANKS=3", "OMPI_COMM_WORLD_SIZE=2", "PMI_SIZE=2",
             "PMI_RANKS=1", "MASTER_ADDR=h")
        expect(list, DPAR_LAUNCHER_NONE, 0, 1, 0, 1, 1, "");
    }
}

static void test_refused(void)
{
    {
        LIST("PMIX_RANK=0", "PMIX_NAMESPACE=3")
        refuse(list, "no variable has the number of ranks");
    }
    {
        LIST("DPAR_RANK=0")
        refuse(list, "DPAR_RANK is set but DPAR_SIZE is not");
    }
    {
        LIST("DPAR_SIZE=4")
        refuse(list, "DPAR_SIZE is set but DPAR_RANK is not");
    }
    {
        LIST("RANK=3", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=8")
        refuse(list, "torchrun: RANK is set but WORLD_SIZE is not");
    }
    {
        LIST("OMPI_COMM_WORLD_RANK=3", "WORLD_SIZE=4", "PMI_SIZE=4")
        refuse(list, "Open MPI: OMPI_COMM_WORLD_RANK is set but OMPI_COMM_WORLD_SIZE is not");
    }
    {
        LIST("PALS_RANKID=3")
        refuse(list, "PALS_RANKID is set but none of");
    }
    {
        LIST("FLUX_TASK_RANK=3")
        refuse(list, "FLUX_JOB_SIZE is not");
    }
    {
        LIST("SLURM_STEP_ID=3", "SLURM_STEP_NUM_TASKS=2")
        refuse(list, "SLURM_PROCID is not");
    }
    {
        LIST("DPAR_RANK=4", "DPAR_SIZE=4")
        refuse(list, "rank 4 is not in a job of 4 ranks (0 .. 3)");
    }
    {
        LIST("DPAR_RANK=0", "DPAR_SIZE=0")
        refuse(list, "the job has 0 ranks");
    }
    {
        LIST("DPAR_RANK=1", "DPAR_SIZE=4", "DPAR_LOCAL_SIZE=5")
        refuse(list, "5 ranks on this node, but 4 in the whole job");
    }
    {
        LIST("DPAR_RANK=1", "DPAR_SIZE=4", "DPAR_LOCAL_SIZE=0")
        refuse(list, "0 ranks on this node");
    }
    {
        LIST("DPAR_RANK=1", "DPAR_SIZE=4", "DPAR_LOCAL_SIZE=2", "DPAR_LOCAL_RANK=2")
        refuse(list, "local rank 2 does not fit 2 ranks");
    }
    {
        LIST("DPAR_RANK=1", "DPAR_SIZE=4", "DPAR_LOCAL_RANK=4")
        refuse(list, "local rank 4 does not fit 4 ranks");
    }
    {
        LIST("SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_NODEID=1",
             "SLURM_STEP_TASKS_PER_NODE=4")
        refuse(list, "SLURM_STEP_TASKS_PER_NODE is \"4\"");
    }
    {
        LIST("SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=7",
             "SLURM_STEP_TASKS_PER_NODE=4,3")
        refuse(list, "SLURM_NODEID is not set");
    }
}

static void test_numbers(void)
{
    static const char *const bad[] = {"",           "12x", "x",   "-1",
                                      "+1",         " 1",  "1 ",  "1.0",
                                      "2147483648", "0x1", "1e3", "99999999999999999999999999",
                                      NULL};
    const char *list[3];
    char text[64];
    int64_t v = 7;
    int i;
    list[1] = "DPAR_SIZE=4";
    list[2] = NULL;
    for (i = 0; bad[i] != NULL; i++) {
        snprintf(text, sizeof text, "DPAR_RANK=%s", bad[i]);
        list[0] = text;
        refuse(list, "DPAR_RANK is \"");
        CHECK(strstr(why.text, "whole number") != NULL);
    }
    CHECK_INT(dpari_job_number("2147483647", INT32_MAX, &v), 1);
    CHECK_INT(v, 2147483647);
    CHECK_INT(dpari_job_number("007", INT32_MAX, &v), 1);
    CHECK_INT(v, 7);
}

static void test_tasks(void)
{
    static const char *const bad[] = {
        "",         ",",  "4,",   "4(x", "4(x2",   "4(2)", "4(x0)",      "4(x2)3",
        "x2",       "-4", "4 ,3", "4;3", "4(x2),", "4(x)", "2147483648", "1(x2147483647),1(x2)",
        "4(x2),,3", NULL};
    int32_t tasks = -1, n = -1, node;
    int i;
    for (node = 0; node < 3; node++) { /* the example of the manual */
        CHECK_INT(dpari_job_tasks("4(x2),3", node, &tasks, &n), 1);
        CHECK_INT(tasks, node < 2 ? 4 : 3);
        CHECK_INT(n, 3);
    }
    CHECK_INT(dpari_job_tasks("4(x2),3", 3, &tasks, &n), 0);
    CHECK_INT(dpari_job_tasks("4(x2),3", -1, &tasks, &n), 0);
    CHECK_INT(dpari_job_tasks("4(x2),4", -1, &tasks, &n), 1);
    CHECK_INT(n, 3);
    CHECK_INT(dpari_job_tasks("1,2,3(x1000000),4", 1000001, &tasks, &n), 1);
    CHECK_INT(tasks, 3);
    CHECK_INT(dpari_job_tasks("1,2,3(x1000000),4", 1000002, &tasks, &n), 1);
    CHECK_INT(tasks, 4);
    for (i = 0; bad[i] != NULL; i++) {
        tasks = n = 9;
        if (dpari_job_tasks(bad[i], 0, &tasks, &n) != 0) {
            CHECK_TEXT(bad[i], "refused");
        }
        CHECK_INT(tasks, 9);
    }
}

/* Checks that a name longer than its buffer keeps its beginning and that different names stay
 * different. */
static void test_long_id(void)
{
    char text[600], first[64];
    const char *list[4];
    list[0] = "DPAR_RANK=0";
    list[1] = "DPAR_SIZE=2";
    list[2] = text;
    list[3] = NULL;
    memset(text, 'a', sizeof text);
    memcpy(text, "DPAR_JOB=", 9);
    text[300] = 0;
    CHECK_INT(find(list), DPAR_OK);
    CHECK_INT(strlen(job.id), 63);
    memcpy(first, job.id, 64);
    text[299] = 'b';
    CHECK_INT(find(list), DPAR_OK);
    CHECK_INT(strlen(job.id), 63);
    CHECK(strcmp(first, job.id) != 0);
    CHECK(strncmp(first, job.id, 46) == 0);
    text[9 + 63] = 0; /* fits completely */
    CHECK_INT(find(list), DPAR_OK);
    CHECK_TEXT(job.id, text + 9);
    /* the end of a longer name would not be read, so two names could be confused */
    memset(text + 9, 'a', sizeof text - 9);
    text[9 + 511] = 0;
    CHECK_INT(find(list), DPAR_OK);
    text[9 + 511] = 'a';
    text[9 + 512] = 0;
    CHECK_INT(find(list), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the name of this job has 512 characters, but at most 511 are allowed");
}

/* Checks the case where PALS gives the size only as a file with one line per rank. */
static void test_nodefile(void)
{
    char name[] = "/tmp/dpar_test_XXXXXX", text[64];
    const char *list[4];
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    CHECK_INT(write(fd, "n1\nn1\nn2\nn2\n", 12), 12);
    snprintf(text, sizeof text, "PBS_NODEFILE=%s", name);
    list[0] = "PALS_RANKID=3";
    list[1] = "PALS_LOCAL_SIZE=2";
    list[2] = text;
    list[3] = NULL;
    expect(list, DPAR_LAUNCHER_PALS, 3, 4, -1, 2, 0, "");
    list[0] = "PALS_RANKID=4";
    refuse(list, "rank 4 is not in a job of 4");
    CHECK_INT(write(fd, "n3", 2), 2); /* the last line may lack its newline */
    expect(list, DPAR_LAUNCHER_PALS, 4, 5, -1, 2, 0, "");
    close(fd);
    unlink(name);
}

static void test_names(void)
{
    int i, k;
    for (i = 0; i < DPAR_LAUNCHER_COUNT; i++) {
        CHECK(strcmp(dpari_launcher_name(i), "?") != 0);
        for (k = 0; k < i; k++) {
            CHECK(strcmp(dpari_launcher_name(i), dpari_launcher_name(k)) != 0);
        }
    }
    CHECK_TEXT(dpari_launcher_name(-1), "?");
    CHECK_TEXT(dpari_launcher_name(DPAR_LAUNCHER_COUNT), "?");
    CHECK_INT(dpar_launcher_detect(NULL, &why), DPAR_E_ARG);
}

/* Checks that sockets of different jobs have different names and those of one job the same name.
 * Abstract names begin with a zero byte, files are in /tmp. */
static void test_socket_names(void)
{
    struct sockaddr_un a, b;
    dpar_launcher_info j;
    socklen_t n, m;
    memset(&j, 0, sizeof j);
    j.kind = DPAR_LAUNCHER_DPAR;
    j.size = 4;
    strcpy(j.id, "one");
    n = dpari_meet_name(&j, 0, 0, &a);
    CHECK(a.sun_path[0] == 0 && strncmp(a.sun_path + 1, "dpar.", 5) == 0);
    j.rank = 3;
    /* another size has the same name: the greeting detects it, so that a message is possible */
    j.size = 5;
    m = dpari_meet_name(&j, 0, 0, &b);
    CHECK(n == m && memcmp(&a, &b, n) == 0);
    m = dpari_meet_name(&j, 1, 0, &b);
    CHECK(n == m && memcmp(&a, &b, n) != 0);
    strcpy(j.id, "two");
    m = dpari_meet_name(&j, 0, 0, &b);
    CHECK(n == m && memcmp(&a, &b, n) != 0);
    j.kind = DPAR_LAUNCHER_TORCHRUN;
    dpari_meet_name(&j, 0, 0, &a);
    CHECK(memcmp(&a, &b, n) != 0);
    m = dpari_meet_name(&j, 0, 1, &b);
    CHECK(strncmp(b.sun_path, "/tmp/dpar.", 10) == 0);
    CHECK_INT(m, offsetof(struct sockaddr_un, sun_path) + strlen(b.sun_path) + 1);
}

/* Passes something that is not shared memory, and a job that is too large. */
static void test_handed_over(void)
{
    static dpari_world w;
    static dpari_rank ranks[1];
    dpari_segment s;
    dpar_launcher_info large;
    int pipes[2];
    memset(&s, 0, sizeof s);
    CHECK(dpari_segment_open(&s, -1, &why) < 0);
    CHECK(strstr(why.text, "the shared memory passed to this rank: ") != NULL);
    memset(&large, 0, sizeof large);
    large.size = 5000;
    CHECK_INT(dpari_job_try(&large, NULL, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "5000 ranks, but shared memory joins at most 1024");
    CHECK_INT(pipe(pipes), 0); /* a pipe cannot be locked */
    w.rank = ranks;
    w.segment.fd = pipes[0];
    CHECK(dpari_world_enter(&w, 1, &why) < 0);
    CHECK(strstr(why.text, "start: taking the lock of this rank: ") != NULL);
    CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

/* Checks that a failure of a device's memory breaks its communicator. */
static int device_fails(dpar_comm *c, void *arg)
{
    CHECK_INT(dpari_do_ended(c, DPAR_E_SYSTEM, "span"), DPAR_E_SYSTEM);
    CHECK_TEXT(c->why.text, "rank 0: span of its dpar_mem failed");
    CHECK(c->status == DPAR_E_SYSTEM && arg == NULL);
    return 0;
}

int main(void)
{
    dpar_world_desc o;
    memset(&o, 0, sizeof o);
    o.threads = 1; /* so that the checks count in this process */
    (void)dpar_launch(1, device_fails, NULL, &o, NULL);
    test_handed_over();
    test_rows();
    test_mixed();
    test_false_positives();
    test_refused();
    test_numbers();
    test_tasks();
    test_long_id();
    test_nodefile();
    test_names();
    test_socket_names();
    return CHECK_DONE();
}
