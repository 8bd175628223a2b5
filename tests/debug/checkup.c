/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_doctor: each complaint is made if and only if its cause is there, on machines and jobs
 * made up here; files of /proc and /sys are from this test's own folder. Run with: tests/run test
 * debug. */
#include "dpar_debug.h"

#include "check.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const *variables; /* "A=1", ..., NULL */
static char root[64];

static const char *listed(const void *user, const char *name)
{
    const char *const *list;
    size_t n = strlen(name);
    (void)user;
    for (list = variables; *list != NULL; list++) {
        if (strncmp(*list, name, n) == 0 && (*list)[n] == '=') {
            return *list + n + 1;
        }
    }
    return NULL;
}

static dpari_site site;

/* ---- complaints ------------------------------------------------------------------------------ */

/* Makes a node without faults: 4 ranks of one node on 8 cores with 4 GPUs. */
static dpari_checkup healthy(void)
{
    dpari_checkup c;
    memset(&c, 0, sizeof c);
    c.job.kind = DPAR_LAUNCHER_OPENMPI;
    c.job.rank = c.job.local_rank = 1;
    c.job.size = c.job.local_size = c.here = 4;
    c.nodes = 1;
    c.cores = c.allowed = 8;
    c.memory = INT64_C(64) << 30;
    c.shm = c.shm_free = INT64_C(32) << 30;
    c.memfd = 1;
    c.quota = INT32_MAX;
    c.addresses = -1;
    c.open_files = 1024;
    c.file_bytes = -1;
    c.gpus = 4;
    return c;
}

static char text[16384];

/* Checks the number of complaints, and that one of them contains `word`. Each is one line with a
 * remedy. */
static void judge(const dpari_checkup *c, int wrong, const char *word, int line)
{
    dpar_text t;
    const char *at;
    int lines = 0;
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpari_doctor_judge(&site, c, &t), wrong);
    CHECK(t.used < sizeof text);
    for (at = text; *at != 0; lines++) {
        const char *end = strchr(at, '\n'), *remedy = strstr(at, " -> ");
        CHECK(strncmp(at, "WRONG: ", 7) == 0);
        CHECK(end != NULL && remedy != NULL && remedy < end);
        if (end == NULL) {
            break;
        }
        at = end + 1;
    }
    CHECK_INT(lines, wrong);
    if (strstr(text, word) == NULL || (wrong == 0 && text[0] != 0)) {
        printf("line %d: no \"%s\" in: %s\n", line, word, text);
        CHECK(0);
    }
}
#define JUDGE(c, wrong, word) judge(&(c), wrong, word, __LINE__)

static void test_cores_and_memory(void)
{
    dpari_checkup c = healthy();
    JUDGE(c, 0, "");
    c.here = c.cores;
    c.gpus = 0;
    JUDGE(c, 0, "");
    c.here++;
    JUDGE(c, 1, "9 ranks run on 8 cores");
    c = healthy();
    c.quota = 400;
    JUDGE(c, 0, "");
    c.quota = 150;
    JUDGE(c, 1, "grants 150 hundredths of a core to 4 ranks");
    c = healthy();
    c.memory_limit = INT64_C(4) * (2 << 20); /* 2 MiB per rank: 640 KiB shared, others its own */
    JUDGE(c, 0, "");
    c.memory_limit--;
    JUDGE(c, 1, "the cgroup grants 8191 KiB to 4 ranks, which take 2048 KiB each");
    c = healthy();
    c.memfd = 0;
    JUDGE(c, 0, "");
    c.shm_free = (4 * 640 + 64) << 10; /* 640 KiB per rank, 64 KiB for all together */
    JUDGE(c, 0, "");
    c.shm_free--;
    JUDGE(c, 1, "/dev/shm has 2623 KiB free, 4 ranks share memory through it and take 2624 KiB");
    c.memfd = 1;
    JUDGE(c, 0, "");
    c.shm = c.shm_free = -1;
    JUDGE(c, 0, "");
    c.memfd = 0;
    JUDGE(c, 1, "/dev/shm has 0 KiB free");
}

static void test_limits(void)
{
    dpari_checkup c = healthy();
    c.addresses = 5 * c.memory;
    JUDGE(c, 0, "");
    c.addresses = 5 * c.memory - 1;
    JUDGE(c, 1, "ulimit -v");
    c = healthy();
    c.open_files = 72;
    JUDGE(c, 0, "");
    c.open_files = 71;
    JUDGE(c, 1, "ulimit -n is 71: 4 ranks");
    c = healthy();
    c.file_bytes = (INT64_C(4) * (65536 + 16) + 64) << 10; /* addresses, lines of ranks, header */
    JUDGE(c, 0, "");
    c.file_bytes--;
    JUDGE(c, 1, "ulimit -f is 262271 KiB: the memory that 4 ranks share");
    c.memory = INT64_C(24) << 30; /* halved eight times: 96 MiB */
    c.file_bytes = (INT64_C(4) * (98304 + 16) + 64) << 10;
    JUDGE(c, 0, "");
    c.file_bytes--;
    JUDGE(c, 1, "ulimit -f is 393343 KiB");
    c.here = c.job.size = c.job.local_size = 1; /* may launch two */
    JUDGE(c, 0, "");
    c.file_bytes = 1000 << 10;
    JUDGE(c, 1, "ulimit -f is 1000 KiB: the memory that 2 ranks share");
    c = healthy();
    c.job_status = DPAR_E_ARG;
    strcpy(c.job_why.text, "torchrun: RANK is set");
    JUDGE(c, 1, "torchrun: RANK is set -> dpar_init will fail");
}

static void test_gpus(void)
{
    static const char *const none[] = {NULL}, *const two[] = {"CUDA_VISIBLE_DEVICES=0,1", NULL},
                             *const four[] = {"CUDA_VISIBLE_DEVICES=0,1,2,3", NULL},
                             *const one[] = {"CUDA_VISIBLE_DEVICES=2", NULL};
    dpari_checkup c = healthy();
    variables = none;
    c.gpus = 2;
    JUDGE(c, 1, "4 ranks of this node see 2 GPUs:");
    c.gpus = 1;
    JUDGE(c, 1, "see 1 GPUs");
    c.gpus = 0;
    JUDGE(c, 0, "");
    c = healthy();
    variables = four;
    JUDGE(c, 0, "");
    variables = two;
    JUDGE(c, 1, "see 2 GPUs (CUDA_VISIBLE_DEVICES)");
    variables = one; /* a device of its own, as launchers set it */
    JUDGE(c, 0, "");
    variables = none;
    c.job.local_rank = -1;
    JUDGE(c, 1, "Open MPI does not say the local rank, so no rank knows which of 4 GPUs");
    c.job.size = 1;
    c.here = 1;
    JUDGE(c, 0, "");
}

/* ---- the ranks together ---------------------------------------------------------------------- */

enum { MOST = 1000 };
static dpari_doctor_who who[MOST];
static dpari_doctor_rank chart[MOST];
static int32_t node[MOST], ranks[MOST];
static char mark[MOST];

/* Makes nodes "n1", "n2", ... without faults, of `each` ranks, in order or round robin: 64 cores,
 * each rank bound to a core. */
static dpari_doctor_job healthy_job(int n, int each, int turns)
{
    dpari_doctor_job job;
    const int nodes = (n + each - 1) / each;
    int r;
    memset(&job, 0, sizeof job);
    memset(who, 0, sizeof who);
    memset(chart, 0, sizeof chart);
    for (r = 0; r < n; r++) {
        const int place = turns ? r % nodes : r / each, local = turns ? r / nodes : r % each;
        dpari_checkup *facts = &chart[r].facts;
        who[r].version = DPAR_VERSION;
        who[r].rank_bytes = (int32_t)sizeof chart[0];
        who[r].machine = (uint64_t)place + 1;
        who[r].share = turns ? place : place * each;
        snprintf(who[r].host, sizeof who[r].host, "n%d", place + 1);
        facts->cpus[local / 64] = (uint64_t)1 << local % 64;
        facts->cores = 64;
        facts->gpus = 8;
        facts->job.size = n;
        facts->job.local_rank = local;
        snprintf(facts->gpu, sizeof facts->gpu, "%d", local);
        facts->memory = INT64_C(64) << 30;
        facts->shm = INT64_C(32) << 30;
        strcpy(facts->mpi, "libmpi.so.40.30.4");
        chart[r].timeout_s = 300;
    }
    job.size = n;
    job.who = who;
    job.rank = chart;
    job.node = node;
    job.ranks = ranks;
    job.mark = mark;
    dpari_doctor_find_nodes(&job);
    CHECK_INT(job.nodes, nodes);
    return job;
}

/* Checks the number of complaints, each a line with a remedy, and that one of them begins like
 * this. */
static void compare(dpari_doctor_job *job, int wrong, const char *begins, int line)
{
    dpar_text t;
    const char *at;
    int lines = 0, found = begins[0] == 0;
    dpar_text_init(&t, text, sizeof text);
    job->out = &t;
    job->wrong = 0;
    dpari_doctor_compare(job);
    CHECK_INT(job->wrong, wrong);
    CHECK(t.used < sizeof text);
    for (at = text; *at != 0; at = strchr(at, '\n') + 1) {
        const char *remedy = strstr(at, " -> ");
        found = found || strncmp(at, begins, strlen(begins)) == 0;
        if (strncmp(at, "WRONG: ", 7) == 0) {
            CHECK(remedy != NULL && remedy < strchr(at, '\n'));
            lines++;
        }
    }
    CHECK_INT(lines, wrong < DPARI_DOCTOR_LINES ? wrong : DPARI_DOCTOR_LINES);
    if (!found) {
        printf("line %d: no \"%s\" in: %s\n", line, begins, text);
        CHECK(0);
    }
}
#define COMPARE(job, wrong, begins) compare(&(job), wrong, begins, __LINE__)

static void test_versions(void)
{
    dpari_doctor_job job = healthy_job(4, 2, 0);
    dpar_text t;
    dpar_text_init(&t, text, sizeof text);
    job.out = &t;
    job.rank = NULL; /* what these ranks would report next no rank here can read */
    dpari_doctor_versions(&job);
    CHECK_INT(job.wrong, 0);
    CHECK_INT(t.used, 0);
    who[3].version = 10203;
    dpari_doctor_versions(&job);
    CHECK_INT(job.wrong, 1);
    CHECK(strncmp(text, "WRONG: rank 3 on n2: built with dpar 1.2.3, rank 0 with ", 55) == 0);
    who[3].version = who[0].version;
    who[1].rank_bytes++;
    job.out = &job.none;
    dpari_doctor_versions(&job);
    CHECK_INT(job.wrong, 2);
    CHECK_INT((int)sizeof who[0], 128); /* the same in all versions */
}

static void test_binding(void)
{
    dpari_doctor_job job = healthy_job(8, 4, 0);
    int r;
    COMPARE(job, 0, "");
    for (r = 4; r < 8; r++) {
        chart[r].facts.cpus[0] = 1; /* all bound to one core, the usual mistake */
    }
    COMPARE(job, 1, "WRONG: ranks 4 to 7 on n2: bound to one core, 0 of 64 -> ");
    chart[7].facts.cpus[15] = (uint64_t)7 << 61; /* CPUs 1021 to 1023 */
    COMPARE(job, 1, "WRONG: ranks 4 to 6 on n2: bound to one core, 0 of 64 -> ");
    job = healthy_job(8, 4, 0);
    chart[1].facts.cpus[0] = chart[3].facts.cpus[0] = (uint64_t)1 << 9;
    COMPARE(job, 1, "WRONG: ranks 1, 3 on n1: bound to one core, 9 of 64 -> ");
    for (r = 0; r < 3; r++) {
        chart[r].facts.cpus[0] = 3;
    }
    COMPARE(job, 1, "WRONG: ranks 0 to 2 on n1: bound to the same 2 cores of 64 -> ");
    for (r = 0; r < 4; r++) {
        chart[r].facts.cpus[0] =
            (uint64_t)(r < 3 ? 1 + r : 3); /* 1, 2, 3, 3: four on two, no three on one */
    }
    COMPARE(job, 1, "WRONG: ranks 0 to 3 on n1: may together use 2 of 64 cores -> ");
    for (r = 0; r < 4; r++) {
        chart[r].facts.cores = 2; /* the machine has no more, which is reported elsewhere */
    }
    COMPARE(job, 0, "");
    job = healthy_job(8, 4, 0);
    for (r = 0; r < 8; r++) {
        chart[r].facts.cpus[0] = UINT64_MAX;
    }
    COMPARE(job, 0, "");
}

static void test_compare(void)
{
    dpari_doctor_job job = healthy_job(4, 4, 0);
    int r;
    chart[3].facts.job.local_rank = 1;
    COMPARE(job, 1, "WRONG: ranks 1, 3 on n1: both are local rank 1 -> ");
    chart[3].facts.job.local_rank = 3;
    strcpy(chart[0].facts.gpu, "GPU-8f1a");
    strcpy(chart[2].facts.gpu, "GPU-8f1a");
    COMPARE(job, 1, "WRONG: ranks 0, 2 on n1: use the same GPU (GPU-8f1a) -> ");
    chart[0].facts.gpu[0] = chart[2].facts.gpu[0] = 0; /* none at all */
    COMPARE(job, 0, "");
    job = healthy_job(8, 4, 0);
    strcpy(chart[7].facts.gpu, "0"); /* on another node it is another device, */
    COMPARE(job, 1, "WRONG: ranks 4, 7 on n2: use the same GPU (0) -> ");
    job = healthy_job(8, 4, 0);
    chart[5].facts.shm = INT64_C(64) << 20;
    COMPARE(job, 1,
            "WRONG: rank 5 on n2: /dev/shm holds 64.0 MiB, that of rank 0 on n1 32.0 GiB; MPI");
    chart[5].facts.shm = INT64_C(1) << 30; /* small, but enough */
    COMPARE(job, 0, "");
    chart[5].facts.shm = -1;
    COMPARE(job, 1, "WRONG: rank 5 on n2: /dev/shm does not exist, that of rank 0 on n1 32.0 GiB");
    for (r = 0; r < 8; r++) {
        chart[r].facts.shm = INT64_C(64) << 20; /* equal: each reports what that means */
    }
    COMPARE(job, 0, "");
    strcpy(chart[6].facts.mpi, "libmpi.so.40.20.3");
    COMPARE(job, 1,
            "WRONG: rank 6 on n2: MPI is libmpi.so.40.20.3, on rank 0 libmpi.so.40.30.4 -> ");
    strcpy(chart[6].facts.mpi, chart[0].facts.mpi);
    chart[2].timeout_s = 20;
    COMPARE(job, 1, "WRONG: rank 2 on n1: the deadline is 20 s, on rank 0 300 s ");
    chart[2].timeout_s = 300;
    who[2].share = who[3].share = 2;
    COMPARE(
        job, 1,
        "WRONG: ranks 2, 3 on n1: do not share memory with the first rank of the same node -> ");
}

/* Checks containers, which have host names of their own and one kernel. */
static void test_containers(void)
{
    dpari_doctor_job job = healthy_job(6, 2, 0);
    int r;
    who[4].machine = who[5].machine = who[0].machine;
    COMPARE(
        job, 0,
        "note: ranks 0, 1, 4, 5 on several nodes: on one machine, whose 64 cores each of 2 nodes "
        "counts as its own");
    for (r = 0; r < 6; r++) {
        chart[r].facts.cores = 3;
    }
    COMPARE(
        job, 1,
        "WRONG: ranks 0, 1, 4, 5 on several nodes: on one machine, whose 3 cores each of 2 nodes");
    job = healthy_job(6, 2, 0);
    for (r = 0; r < 6; r++) {
        who[r].machine = 0; /* no rank knows */
    }
    COMPARE(job, 0, "");
    CHECK_TEXT(text, "");
}

/* Checks what ranks report about themselves: equal lines once, numbers separately, with the ranks
 * that report them. */
static void test_own(void)
{
    static const char *const says[] = {"WRONG: 7 threads -> end\n", "WRONG: 9 threads -> end\n", "",
                                       "WRONG: 12 threads -> end\nWRONG: other -> do\n"};
    dpari_doctor_job job = healthy_job(4, 2, 0);
    int r;
    for (r = 0; r < 4; r++) {
        strcpy(chart[r].text, says[r]);
    }
    COMPARE(job, 2,
            "WRONG: ranks 0, 1, 3 on several nodes: 7 threads -> end\n"
            "WRONG: rank 3 on n2: other -> do\n");
    strcpy(chart[3].text, "WRONG: other -> cut"); /* as if there were no place for its end */
    COMPARE(job, 2, "WRONG: rank 3 on n2: other -> cut\n");
    job = healthy_job(1000, 8, 0);
    for (r = 0; r < 1000; r++) {
        snprintf(chart[r].text, 64, "WRONG: 8 ranks, %d -> fewer\n", r);
    }
    COMPARE(job, 1, "WRONG: all 1000 ranks: 8 ranks, 0 -> fewer\n");
    CHECK(strlen(text) < 60);
    for (r = 0; r < 1000; r++) {
        strcpy(chart[r].facts.gpu, "0"); /* 7 of 8 of each node: a screenful */
        chart[r].text[0] = 0;
    }
    COMPARE(job, DPARI_DOCTOR_LINES, "WRONG: ranks 0, 1 on n1: use the same GPU (0) -> ");
    CHECK(strlen(text) < 6000);
    for (r = 0; r < 1000; r++) {
        snprintf(chart[r].text, 64, "WRONG: %c%c%c -> fewer\n", 'a' + r / 100, 'a' + r / 10 % 10,
                 'a' + r % 10);
    }
    COMPARE(job, 1000, "... and 976 more\n");
    CHECK(strlen(text) < 6000);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Writes a file below root, with its folders. */
static void put(const char *path, const char *content)
{
    char full[256];
    size_t i;
    FILE *f;
    snprintf(full, sizeof full, "%s%s", root, path);
    for (i = 1; full[i] != 0; i++) {
        if (full[i] == '/') {
            full[i] = 0;
            mkdir(full, 0700);
            full[i] = '/';
        }
    }
    f = fopen(full, "w");
    CHECK(f != NULL);
    if (f != NULL) {
        fputs(content, f);
        fclose(f);
    }
}

/* Checks lines as the kernel writes them. */
static void test_mpi(void)
{
    dpari_checkup c;
    memset(&c, 0, sizeof c);
    put("/proc/self/maps",
        "55d0c0a00000-55d0c0a01000 r--p 00000000 fe:00 123   /opt/libmpi/a.out\n"
        "7fa741000000-7fa741001000 rw-p 00000000 00:00 0 \n"
        "7fa741002000-7fa741003000 r--p 00000000 fe:00 5     /usr/lib/libmpi_mpifh.so.40.30.0\n"
        "7fa7410d8000-7fa741101000 r--p 00000000 fe:00 6     /usr/lib/libmpi.so.40.30.4\n"
        "7fa741101000-7fa7411c8000 r-xp 00029000 fe:00 6     /usr/lib/libmpi.so.40.30.4\n");
    dpari_doctor_files(&site, &c);
    CHECK_TEXT(c.mpi, "libmpi.so.40.30.4");
    put("/proc/self/maps",
        "7fc93f000000-7fc93f08e000 r--p 00000000 fe:00 7    /usr/lib/libmpich.so.12.2.2\n");
    dpari_doctor_files(&site, &c);
    CHECK_TEXT(c.mpi, "libmpich.so.12.2.2");
    put("/proc/self/maps",
        "7fc93f000000-7fc93f08e000 r--p 00000000 fe:00 7    /usr/lib/libc.so.6\n");
    dpari_doctor_files(&site, &c);
    CHECK_TEXT(c.mpi, "");
}

static void test_files(void)
{
    static const char *const none[] = {NULL};
    dpari_checkup c;
    variables = none;
    memset(&c, 0, sizeof c);
    dpari_doctor_files(&site, &c); /* no files */
    CHECK(c.yama == 0 && c.gpus == 0 && c.gpu[0] == 0 && c.mpi[0] == 0);
    put("/proc/sys/kernel/yama/ptrace_scope", "1\n");
    put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "");
    put("/proc/driver/nvidia/gpus/0000:02:00.0/information", "");
    put("/dev/nvidia0", "");
    dpari_doctor_files(&site, &c);
    CHECK_INT(c.yama, 1);
    CHECK_INT(c.gpus, 2);
}

static void test_devices_of_a_container(void)
{
    char path[160];
    snprintf(path, sizeof path, "rm -rf '%s/proc/driver'", root);
    CHECK_INT(system(path), 0);
    put("/dev/nvidia1", "");
    put("/dev/nvidiactl", "");
    put("/dev/nvidia-uvm", "");
    CHECK_INT(dpari_doctor_gpus(&site), 2);
}

/* Checks the device that a rank takes from those that it sees. */
static void test_own_gpu(void)
{
    static const char *const none[] = {NULL},
                             *const some[] = {"CUDA_VISIBLE_DEVICES=5,GPU-ab,7", NULL},
                             *const hidden[] = {"CUDA_VISIBLE_DEVICES=", NULL};
    static const char *const want[] = {"5", "GPU-ab", "7", "5"};
    dpari_checkup c = healthy();
    int i;
    for (i = 0; i < 4; i++) {
        c.job.local_rank = i;
        variables = some;
        dpari_doctor_own_gpu(&site, &c);
        CHECK_TEXT(c.gpu, want[i]);
        variables = none;
        dpari_doctor_own_gpu(&site, &c);
        CHECK(c.gpu[0] == '0' + i && c.gpu[1] == 0);
        variables = hidden;
        dpari_doctor_own_gpu(&site, &c);
        CHECK_TEXT(c.gpu, "");
    }
}

/* Checks that missing numbers of a launcher (Open MPI leaves some to a process that it did not
 * start) are not a fault once there is a communicator. */
static void test_joined(void)
{
    static const char *const none[] = {NULL};
    dpari_checkup c = healthy();
    dpar_comm world;
    memset(&world, 0, sizeof world);
    world.size = 4;
    world.rank = 2;
    c.gpus = 0;
    c.job_status = DPAR_E_ARG;
    variables = none;
    dpari_doctor_joined(&world, &c);
    JUDGE(c, 0, "");
    CHECK_INT(c.job.rank, 2);
    CHECK_INT(c.job.local_rank, -1);
}

/* Checks the real machine: its lines, and that the number returned is the number of complaints. */
static void test_here(void)
{
    dpar_text t;
    int32_t wrong, said = 0;
    const char *at = text;
    dpar_text_init(&t, text, sizeof text);
    wrong = dpar_doctor(NULL, &t);
    CHECK(t.used < sizeof text);
    CHECK(strncmp(text, "dpar ", 5) == 0);
    CHECK(strstr(text, "\nlauncher   ") != NULL && strstr(text, "\nwill use   ") != NULL);
    while ((at = strstr(at, "\nWRONG: ")) != NULL) {
        said++;
        at++;
    }
    CHECK_INT(wrong, said);
    CHECK((strstr(text, "nothing is wrong") != NULL) == (wrong == 0));
}

int main(void)
{
    static const char *const none[] = {NULL};
    char command[96];
    strcpy(root, "/tmp/dpar_test_XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    site.env = listed;
    site.user = NULL;
    site.root = root;
    variables = none;
    test_cores_and_memory();
    test_limits();
    test_gpus();
    test_versions();
    test_binding();
    test_compare();
    test_containers();
    test_own();
    test_files();
    test_mpi();
    test_devices_of_a_container();
    test_own_gpu();
    test_joined();
    test_here();
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK_INT(system(command), 0);
    return CHECK_DONE();
}
