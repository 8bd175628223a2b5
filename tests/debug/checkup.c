/* SPDX-License-Identifier: MIT-0 */
/* Tests doctor: each complaint is made if and only if its cause is there, on machines made up here;
 * files of /proc and /sys are from this test's own folder. Run with: tests/run test debug. */
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
    c.yama = -1;
    c.page = 4096;
    c.addresses = c.locked = -1;
    c.open_files = 1024;
    c.file_bytes = -1;
    c.runnable = 5; /* the 4 ranks and another process */
    c.gpus = 4;
    c.links.count = 2;
    strcpy(c.links.name[0], "lo");
    strcpy(c.links.name[1], "eth0");
    c.up = 3;
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
    c.quota = 4.0;
    JUDGE(c, 0, "");
    c.quota = 1.5;
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
    c.shm = c.shm_free = 64 << 20;
    JUDGE(c, 1, "NCCL keeps its buffers");
    c.gpus = 0;
    JUDGE(c, 0, "");
    c.shm = c.shm_free = -1;
    JUDGE(c, 0, "");
    c.memfd = 0;
    JUDGE(c, 1, "/dev/shm has 0 KiB free");
}

static void test_load(void)
{
    dpari_checkup c = healthy();
    c.runnable = 4 + 7; /* the ranks, and others on all cores except one */
    JUDGE(c, 0, "");
    c.runnable++;
    JUDGE(c, 1, "8 threads want a core besides those of the ranks and there are 8 cores, so");
    c.beside = 1; /* one of them is a rank of another container */
    JUDGE(c, 0, "");
    c.runnable = -1;
    JUDGE(c, 0, "");
}

/* Checks a note about small shared memory: made if there are GPUs, /dev/shm is below 64 MiB, and
 * there is no complaint about it. */
static void test_note(void)
{
    dpari_checkup c = healthy();
    static const struct {
        int32_t gpus, here, says;
        int64_t shm;
    } row[] = {{4, 1, 1, 65536},    {4, 1, 1, (64 << 20) - 1},
               {4, 1, 0, 64 << 20}, {0, 1, 0, 65536},
               {4, 4, 0, 65536}, /* WRONG in that case */
               {4, 1, 1, -1},       {4, 4, 1, -1}};
    size_t i;
    for (i = 0; i < sizeof row / sizeof row[0]; i++) {
        dpar_text t;
        c.gpus = row[i].gpus;
        c.here = row[i].here;
        c.shm = c.shm_free = row[i].shm;
        dpar_text_init(&t, text, sizeof text);
        dpari_doctor_note(&c, &t);
        CHECK_INT(strncmp(text, "note: /dev/shm holds ", 21) == 0, row[i].says);
        CHECK_INT(t.used > 0, row[i].says);
    }
}

static void test_limits(void)
{
    dpari_checkup c = healthy();
    c.addresses = 5 * c.memory;
    JUDGE(c, 0, "");
    c.addresses = 5 * c.memory - 1;
    JUDGE(c, 1, "ulimit -v");
    c = healthy();
    c.locked = 8 << 20;
    JUDGE(c, 0, "");
    c.infiniband = 1;
    JUDGE(c, 1, "ulimit -l is 8192 KiB");
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

/* Makes a job of 2 such nodes. */
static dpari_checkup spread(void)
{
    dpari_checkup c = healthy();
    c.job.size = 8;
    c.nodes = 2;
    return c;
}

static void test_network(void)
{
    static const char *const none[] = {NULL}, *const lo[] = {"NCCL_SOCKET_IFNAME=lo", NULL},
                             *const eth[] = {"NCCL_SOCKET_IFNAME=eth", NULL},
                             *const not_lo[] = {"NCCL_SOCKET_IFNAME=^docker,lo", NULL},
                             *const exact[] = {"NCCL_SOCKET_IFNAME==eth", NULL},
                             *const absent[] = {"NCCL_SOCKET_IFNAME=ib,hsn", NULL};
    dpari_checkup c = spread();
    variables = none;
    JUDGE(c, 0, "");
    c.links.count = 4;
    strcpy(c.links.name[2], "eth1");
    strcpy(c.links.name[3], "docker0");
    c.up = 15;
    JUDGE(c, 1, "2 network interfaces are up and NCCL_SOCKET_IFNAME does not say");
    c.up = 11; /* eth1 is down */
    JUDGE(c, 0, "");
    c.up = 15;
    c.job.size = 4;
    c.nodes = 1; /* does not matter on one node */
    JUDGE(c, 0, "");
    c = spread();
    c.links.count = 3;
    strcpy(c.links.name[2], "eth1");
    c.up = 7;
    c.gpus = 0; /* nor without NCCL */
    JUDGE(c, 0, "");
    c.gpus = 4;
    variables = eth;
    JUDGE(c, 0, "");
    variables = not_lo;
    JUDGE(c, 0, "");
    variables = lo;
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME=lo is this machine's own loopback");
    variables = exact;
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME==eth names no interface");
    variables = absent;
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME=ib,hsn names no interface");
    c.job.size = 4;
    c.nodes = 1;
    JUDGE(c, 1, "names no interface");
    variables = lo;
    JUDGE(c, 0, "");
    CHECK_INT(dpari_doctor_takes("eth0,ib", "ib3"), 1);
    CHECK_INT(dpari_doctor_takes("eth0,ib", "eth01"), 1); /* the beginning of a name is enough */
    CHECK_INT(dpari_doctor_takes("=eth0,ib0", "eth01"), 0);
    CHECK_INT(dpari_doctor_takes("=eth0,ib0", "ib0"), 1);
    CHECK_INT(dpari_doctor_takes("^eth0,ib", "ib3"), 0);
    CHECK_INT(dpari_doctor_takes("^eth0,ib", "hsn0"), 1);
    CHECK_INT(dpari_doctor_takes("", "eth0"), 0);
}

static void test_slingshot(void)
{
    /* what Derecho's and HPE's pages ask for */
    static const char *const all[] = {
        "NCCL_SOCKET_IFNAME=hsn",         "NCCL_NET=AWS Libfabric",
        "FI_CXI_DISABLE_HOST_REGISTER=1", "FI_MR_CACHE_MONITOR=userfaultfd",
        "FI_CXI_DEFAULT_CQ_SIZE=131072",  "NCCL_CROSS_NIC=1",
        "NCCL_NET_GDR_LEVEL=PHB",         "MPICH_GPU_SUPPORT_ENABLED=1",
        "MPICH_OFI_NIC_POLICY=GPU",       NULL};
    const char *less[10];
    dpari_checkup c = spread();
    int i, skip;
    c.slingshot = 1;
    c.job.kind = DPAR_LAUNCHER_PALS;
    strcpy(c.links.name[0], "hsn0");
    c.links.count = 3;
    strcpy(c.links.name[2], "hsn1");
    c.up = 7;
    variables = all;
    JUDGE(c, 0, "");
    for (skip = 0; skip < 9; skip++) {
        char name[40];
        int n = 0;
        for (i = 0; i < 9; i++) {
            if (i != skip) {
                less[n++] = all[i];
            }
        }
        less[n] = NULL;
        snprintf(name, sizeof name, "%.*s is not set -> export ", (int)strcspn(all[skip], "="),
                 all[skip]);
        variables = less;
        JUDGE(c, 1, name);
    }
    c.job.kind = DPAR_LAUNCHER_SLURM; /* not Cray's MPI */
    less[7] = NULL;
    variables = less;
    JUDGE(c, 0, "");
    less[7] = "PALS_APID=42.0"; /* but this is: srun --mpi=cray_shasta */
    less[8] = NULL;
    JUDGE(c, 2, "MPICH_OFI_NIC_POLICY is not set -> export ");
    c.job.kind = DPAR_LAUNCHER_PALS;
    less[7] = all[7];
    less[8] = "NCCL_NET_GDR_LEVEL=PHB";
    for (i = 0; i < 8; i++) {
        less[i] = all[i == 6 ? 8 : i];
    }
    less[0] = "NCCL_SOCKET_IFNAME=eth0";
    less[9] = NULL;
    variables = less;
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME is eth0 -> export NCCL_SOCKET_IFNAME=hsn");
    less[0] = NULL;
    JUDGE(c, 9, "AWS Libfabric");
    c.job.kind = DPAR_LAUNCHER_TORCHRUN; /* no MPI */
    JUDGE(c, 7, "AWS Libfabric");
    c.gpus = 0;
    JUDGE(c, 0, "");
}

/* ---- the ranks together ---------------------------------------------------------------------- */

enum { MOST = 1000 };
static dpari_doctor_who who[MOST];
static dpari_doctor_chart chart[MOST];
static char numbers[MOST * 20];

/* Makes nodes "n1", "n2", ... without faults, of `each` ranks, in order or round robin: 64 cores,
 * one socket, each rank bound to a core. Messages in a node take 1 us and have 8 GB/s, between
 * nodes 10 us and 2.5 GB/s. */
static dpari_doctor_job healthy_job(int n, int each, int turns)
{
    dpari_doctor_job job;
    const int nodes = (n + each - 1) / each;
    int r, round;
    memset(&job, 0, sizeof job);
    memset(who, 0, sizeof who);
    memset(chart, 0, sizeof chart);
    for (r = 0; r < n; r++) {
        const int node = turns ? r % nodes : r / each, local = turns ? r / nodes : r % each;
        who[r].version = DPAR_VERSION;
        who[r].chart_bytes = (int32_t)sizeof chart[0];
        who[r].machine = (uint64_t)node + 1;
        who[r].share = turns ? node : node * each;
        who[r].socket = -1;
        snprintf(who[r].host, sizeof who[r].host, "n%d", node + 1);
        chart[r].cpus[local / 64] = (uint64_t)1 << local % 64;
        chart[r].cores = 64;
        chart[r].sockets = 1;
        chart[r].gpus = 8;
        chart[r].local_rank = local;
        snprintf(chart[r].gpu, sizeof chart[r].gpu, "%d", local);
        chart[r].memory = INT64_C(64) << 30;
        chart[r].shm = INT64_C(32) << 30;
        chart[r].port = 25000;
        strcpy(chart[r].ports, "eth0 25 Gb/s");
        strcpy(chart[r].mpi, "libmpi.so.40.30.4");
        chart[r].timeout_s = 300;
        chart[r].within.peer = chart[r].between.peer = -1;
    }
    job.size = n;
    job.who = who;
    job.chart = chart;
    job.text = "";
    CHECK(dpari_doctor_job_bytes(n) <= (int64_t)sizeof numbers);
    dpari_doctor_number_nodes(&job, numbers);
    for (round = 0; round < dpari_doctor_rounds(&job); round++) {
        for (r = 0; r < n; r++) {
            const int32_t peer = dpari_doctor_meets(&job, round, r);
            const int far = round >= job.most - 1;
            if (peer >= 0 && dpari_doctor_leads(&job, round, r)) {
                dpari_doctor_link *link = far ? &chart[r].between : &chart[r].within;
                CHECK_INT(link->peer, -1);
                link->peer = peer;
                link->latency_s = far ? 10e-6 : 1e-6;
                link->bytes_s = far ? 2.5e9 : 8e9;
            }
        }
    }
    return job;
}

/* Checks the number of complaints, each a line with a remedy, and that one of them begins like
 * this. */
static void compare(const dpari_doctor_job *job, int wrong, const char *begins, int line)
{
    dpar_text t;
    const char *at;
    int lines = 0, found = begins[0] == 0;
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpari_doctor_compare(job, &t), wrong);
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

/* Checks which ranks exchange messages: the same seen from both, one pair of a node at a time, each
 * rank of a node with its neighbours there once, each node with the next one once. */
static void test_rounds(void)
{
    static const int shape[][3] = {{1, 1, 0}, {2, 1, 0},  {2, 2, 0},  {3, 1, 0},
                                   {4, 2, 1}, {5, 5, 0},  {6, 2, 0},  {8, 3, 0},
                                   {9, 3, 1}, {12, 2, 0}, {35, 5, 1}, {14, 2, 0}};
    size_t k;
    for (k = 0; k < sizeof shape / sizeof shape[0]; k++) {
        const int n = shape[k][0], each = shape[k][1], nodes = (n + each - 1) / each;
        dpari_doctor_job job = healthy_job(n, each, shape[k][2]);
        int pairs = 0, round, r;
        CHECK_INT(job.nodes, nodes);
        for (round = 0; round < dpari_doctor_rounds(&job); round++) {
            int busy[MOST] = {0};
            for (r = 0; r < n; r++) {
                const int32_t peer = dpari_doctor_meets(&job, round, r);
                if (peer < 0) {
                    continue;
                }
                CHECK(peer != r && peer < n);
                CHECK_INT(dpari_doctor_meets(&job, round, peer), r);
                CHECK_INT(
                    dpari_doctor_leads(&job, round, r) + dpari_doctor_leads(&job, round, peer), 1);
                CHECK((job.node[r] == job.node[peer]) == (round < job.most - 1));
                busy[job.node[r]]++;
                pairs += r < peer;
            }
            for (r = 0; r < nodes; r++) {
                CHECK(busy[r] <= 2);
                CHECK(round < job.most - 1 || busy[r] <= 1);
            }
        }
        CHECK_INT(pairs, n - nodes + (nodes > 2 ? nodes : nodes - 1));
    }
}

static void test_levels(void)
{
    dpari_doctor_job job = healthy_job(6, 3, 0);
    dpar_text t;
    int r;
    CHECK_INT(dpari_doctor_level(&job, 0, 2), DPARI_DOCTOR_MEMORY);
    CHECK_INT(dpari_doctor_level(&job, 2, 3), DPARI_DOCTOR_BETWEEN);
    who[0].socket = who[2].socket = 1;
    CHECK_INT(dpari_doctor_level(&job, 0, 2), DPARI_DOCTOR_SOCKET);
    CHECK_INT(dpari_doctor_level(&job, 0, 1), DPARI_DOCTOR_MEMORY);
    who[2].share = 2;
    CHECK_INT(dpari_doctor_level(&job, 0, 2), DPARI_DOCTOR_UNSHARED);
    for (r = 0; r < 6; r++) {
        who[r].share = -1; /* NCCL: on a node, and without a complaint */
    }
    CHECK_INT(dpari_doctor_level(&job, 0, 2), DPARI_DOCTOR_UNSHARED);
    CHECK_INT(dpari_doctor_level(&job, 2, 3), DPARI_DOCTOR_BETWEEN);
    COMPARE(job, 0, "");
    job = healthy_job(6, 3, 0);
    chart[0].within.latency_s = 2e-6;
    chart[4].within.latency_s = 0.5e-6; /* 0.5, 1, 1, 2: the upper of the two in the middle is 1 */
    chart[3].within.bytes_s = 7e9;      /* 7, 8, 8, 8 */
    dpar_text_init(&t, text, sizeof text);
    dpari_doctor_say_levels(&job, &t);
    CHECK_TEXT(text,
               "within     a node, by memory: 8 B in 1 us, 1 MiB at 8 GB/s, medians of 4 pairs; "
               "worst 2 us "
               "(ranks 0 and 1 on n1), 7 GB/s (ranks 3 and 4 on n2)\n"
               "between    nodes: 8 B in 10 us, 1 MiB at 2.5 GB/s (ranks 0 on n1 and 3 on n2)\n");
}

static void test_nodes(void)
{
    dpari_doctor_job job = healthy_job(5, 3, 0);
    dpar_text t;
    chart[4].cpus[0] = 3;
    strcpy(chart[3].ports, "");
    dpar_text_init(&t, text, sizeof text);
    dpari_doctor_say_nodes(&job, &t);
    CHECK_TEXT(
        text,
        "n1         ranks 0 to 2 on 64 cores of 1 socket, each bound to 1 core, memory 64 GiB, "
        "/dev/shm 32.0 GiB, 8 GPUs; eth0 25 Gb/s\n"
        "n2         ranks 3, 4 on 64 cores of 1 socket, each bound to 1 to 2 cores, memory 64 GiB, "
        "/dev/shm 32.0 GiB, 8 GPUs; no port is up\n");
    job = healthy_job(4, 2, 1); /* distributed round robin, with one rank not bound */
    chart[0].cpus[0] = chart[2].cpus[0] = UINT64_MAX;
    dpar_text_init(&t, text, sizeof text);
    dpari_doctor_say_nodes(&job, &t);
    CHECK(strncmp(text, "n1         ranks 0, 2 on 64 cores of 1 socket, not bound, memory", 64) ==
          0);
    /* 125 nodes, of which one differs */
    job = healthy_job(1000, 8, 0);
    chart[80].shm = INT64_C(16) << 30;
    dpar_text_init(&t, text, sizeof text);
    dpari_doctor_say_nodes(&job, &t);
    CHECK(strncmp(text, "n1         to n10: 10 nodes, on each 8 ranks on 64 cores", 56) == 0);
    CHECK(strstr(text, "\nn11        ranks 80 to 87 on 64 cores") != NULL);
    CHECK(strstr(text, "\nn12        to n125: 114 nodes, on each 8 ranks on 64 cores") != NULL);
    CHECK(t.used < 500);
}

static void test_versions(void)
{
    dpari_doctor_job job = healthy_job(4, 2, 0);
    dpar_text t;
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpari_doctor_versions(&job, &t), 0);
    CHECK_INT(t.used, 0);
    job.chart = NULL; /* what these ranks would report next no rank here can read */
    who[3].version = 10203;
    CHECK_INT(dpari_doctor_versions(&job, &t), 1);
    CHECK(strncmp(text, "WRONG: rank 3 on n2: built with dpar 1.2.3, rank 0 with ", 55) == 0);
    who[3].version = who[0].version;
    who[1].chart_bytes++;
    CHECK_INT(dpari_doctor_versions(&job, NULL), 1);
    CHECK_INT((int)sizeof who[0], 128); /* the same in all versions */
}

static void test_binding(void)
{
    dpari_doctor_job job = healthy_job(8, 4, 0);
    int r;
    COMPARE(job, 0, "");
    for (r = 4; r < 8; r++) {
        chart[r].cpus[0] = 1; /* all bound to one core, the usual mistake */
    }
    COMPARE(job, 1, "WRONG: ranks 4 to 7 on n2: bound to one core, 0 of 64 -> ");
    chart[7].cpus[15] = (uint64_t)7 << 61; /* CPUs 1021 to 1023 */
    COMPARE(job, 1, "WRONG: ranks 4 to 6 on n2: bound to one core, 0 of 64 -> ");
    job = healthy_job(8, 4, 0);
    chart[1].cpus[0] = chart[3].cpus[0] = (uint64_t)1 << 9;
    COMPARE(job, 1, "WRONG: ranks 1, 3 on n1: bound to one core, 9 of 64 -> ");
    for (r = 0; r < 3; r++) {
        chart[r].cpus[0] = 3;
    }
    COMPARE(job, 1, "WRONG: ranks 0 to 2 on n1: bound to the same 2 cores of 64 -> ");
    for (r = 0; r < 4; r++) {
        chart[r].cpus[0] =
            (uint64_t)(r < 3 ? 1 + r : 3); /* 1, 2, 3, 3: four on two, no three on one */
    }
    COMPARE(job, 1, "WRONG: ranks 0 to 3 on n1: may together use 2 of 64 cores -> ");
    for (r = 0; r < 4; r++) {
        chart[r].cores = 2; /* the machine has no more, which is reported elsewhere */
    }
    COMPARE(job, 0, "");
    job = healthy_job(8, 4, 0);
    for (r = 0; r < 8; r++) {
        chart[r].cpus[0] = UINT64_MAX;
        chart[r].sockets = 2;
    }
    COMPARE(job, 1,
            "WRONG: all 8 ranks: not bound, and may move away from their memory to another of 2 "
            "sockets -> ");
    who[5].socket = 0;
    COMPARE(job, 1, "WRONG: 7 ranks (0 to 4, 6, 7) on several nodes: not bound");
}

static void test_compare(void)
{
    dpari_doctor_job job = healthy_job(4, 4, 0);
    int r;
    chart[3].local_rank = 1;
    COMPARE(job, 1, "WRONG: ranks 1, 3 on n1: both are local rank 1 -> ");
    chart[3].local_rank = 3;
    strcpy(chart[0].gpu, "GPU-8f1a");
    strcpy(chart[2].gpu, "GPU-8f1a");
    COMPARE(job, 1, "WRONG: ranks 0, 2 on n1: use the same GPU (GPU-8f1a) -> ");
    chart[0].gpu[0] = chart[2].gpu[0] = 0; /* none at all */
    COMPARE(job, 0, "");
    job = healthy_job(8, 4, 0);
    strcpy(chart[7].gpu, "0"); /* on another node it is another device, */
    COMPARE(job, 1, "WRONG: ranks 4, 7 on n2: use the same GPU (0) -> ");
    job = healthy_job(8, 4, 0);
    chart[5].shm = INT64_C(64) << 20;
    COMPARE(job, 1,
            "WRONG: rank 5 on n2: /dev/shm holds 64.0 MiB, that of rank 0 on n1 32.0 GiB; MPI");
    chart[5].shm = INT64_C(1) << 30; /* small, but enough */
    COMPARE(job, 0, "");
    chart[5].shm = -1;
    COMPARE(job, 1, "WRONG: rank 5 on n2: /dev/shm does not exist, that of rank 0 on n1 32.0 GiB");
    for (r = 0; r < 8; r++) {
        chart[r].shm = INT64_C(64) << 20; /* equal: each reports what that means */
    }
    COMPARE(job, 0, "");
    strcpy(chart[6].mpi, "libmpi.so.40.20.3");
    COMPARE(job, 1,
            "WRONG: rank 6 on n2: MPI is libmpi.so.40.20.3, on rank 0 libmpi.so.40.30.4 -> ");
    strcpy(chart[6].mpi, chart[0].mpi);
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
        chart[r].cores = 3;
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

static void test_speeds(void)
{
    dpari_doctor_job job = healthy_job(8, 4, 0);
    chart[5].within.latency_s = 8e-6; /* exactly at the limit, with median 1 */
    chart[5].within.bytes_s = 1.6e9;  /* and with median 8 */
    COMPARE(job, 0, "");
    chart[5].within.latency_s = 8.1e-6;
    COMPARE(
        job, 1,
        "WRONG: ranks 5 and 6 on n2: 8.1 us and 1.6 GB/s, the median of 6 such pairs is 1 us and 8 "
        "GB/s -> look for other programs on their cores");
    chart[5].within.latency_s = 1e-6;
    chart[5].within.bytes_s = 1.59e9;
    COMPARE(job, 1, "WRONG: ranks 5 and 6 on n2: 1 us and 1.59 GB/s");
    chart[4].cores = chart[5].cores = chart[6].cores = 3; /* waits for a core, which is reported */
    COMPARE(job, 0, "");
    job = healthy_job(4, 1, 0);
    chart[2].between.bytes_s = 0.4e9;
    COMPARE(job, 1,
            "WRONG: ranks 2 on n3 and 3 on n4: 10 us and 0.4 GB/s, the median of 4 such pairs is "
            "10 us");
    job = healthy_job(2, 1, 0);
    chart[0].between.bytes_s = 0.3125e9; /* 2.5 of 25 Gb/s */
    COMPARE(job, 0, "");
    chart[0].between.bytes_s = 0.312e9;
    COMPARE(job, 1,
            "WRONG: between nodes 0.312 GB/s (2.5 Gb/s), where each has a port of 25 Gb/s -> ");
    chart[1].port = 1000;
    COMPARE(job, 0, "");
    chart[1].port = 0; /* the driver does not report it */
    COMPARE(job, 0, "");
}

/* Checks what ranks report about themselves: equal lines once, numbers separately, with the ranks
 * that report them. */
static void test_own(void)
{
    static const char *const says[] = {"note: a\nWRONG: 7 threads -> end\n",
                                       "WRONG: 9 threads -> end\nnote: a\n", "",
                                       "WRONG: 12 threads -> end\nWRONG: other -> do\n"};
    dpari_doctor_job job = healthy_job(4, 2, 0);
    static char all[MOST * 64];
    char *at = all;
    int r;
    for (r = 0; r < 4; r++) {
        chart[r].text_bytes = (int64_t)strlen(says[r]);
        strcpy(at, says[r]);
        at += strlen(says[r]);
    }
    job.text = all;
    COMPARE(job, 2,
            "note: ranks 0, 1 on n1: a\n"
            "WRONG: ranks 0, 1, 3 on several nodes: 7 threads -> end\n"
            "WRONG: rank 3 on n2: other -> do\n");
    job = healthy_job(1000, 8, 0);
    at = all;
    for (r = 0; r < 1000; r++) {
        chart[r].text_bytes = snprintf(at, 64, "WRONG: 8 ranks, %d -> fewer\n", r);
        at += chart[r].text_bytes;
    }
    job.text = all;
    COMPARE(job, 1, "WRONG: all 1000 ranks: 8 ranks, 0 -> fewer\n");
    CHECK(strlen(text) < 60);
    for (r = 0; r < 1000; r++) {
        strcpy(chart[r].gpu, "0"); /* 7 of 8 of each node: a screenful, and how many more */
        chart[r].text_bytes = 0;
    }
    dpari_doctor_compare(&job, &(dpar_text){text, sizeof text, 0, 0, 0});
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

/* Checks what is stored of the links in a chart. */
static void test_ports(dpari_checkup *c)
{
    dpari_doctor_chart one;
    int i;
    memset(&one, 0, sizeof one);
    dpari_doctor_own_ports(c, &one);
    CHECK_TEXT(one.ports, "hsn0 200 Gb/s");
    CHECK_INT(one.port, 200000);
    c->links.count = 12; /* more than it can hold */
    c->up = 0xfff;
    for (i = 0; i < 12; i++) {
        snprintf(c->links.name[i], sizeof c->links.name[i], "ib%d", i);
        c->speed[i] = i == 11 ? 400000 : 2500;
    }
    memset(&one, 0, sizeof one);
    dpari_doctor_own_ports(c, &one);
    CHECK(strncmp(one.ports, "ib0 2.5 Gb/s, ib1 2.5 Gb/s, ", 28) == 0);
    CHECK_TEXT(one.ports + strlen(one.ports) - 8, "b/s, ...");
    CHECK_INT(one.port, 400000);
}

/* Checks two sockets of four CPUs each, of which one is turned off. */
static void test_sockets(void)
{
    static const int8_t socket[] = {0, 0, 36, 36, 0, -1, 36, 36};
    uint64_t cpus[DPARI_CPU_WORDS];
    dpari_checkup c;
    int i;
    memset(&c, 0, sizeof c);
    memset(cpus, 0, sizeof cpus);
    c.cores = 7;
    dpari_doctor_sockets(&site, cpus, &c); /* no files */
    CHECK_INT(c.sockets, 0);
    CHECK_INT(c.socket, -1);
    for (i = 0; i < 8; i++) {
        char path[96], value[8];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id",
                 i);
        snprintf(value, sizeof value, "%d\n", socket[i]);
        if (socket[i] >= 0) {
            put(path, value);
        }
    }
    cpus[0] = 1 << 2 | 1 << 7;
    dpari_doctor_sockets(&site, cpus, &c);
    CHECK_INT(c.sockets, 2);
    CHECK_INT(c.socket, 36);
    cpus[0] |= 1;
    dpari_doctor_sockets(&site, cpus, &c);
    CHECK_INT(c.socket, -1);
}

/* Checks lines as the kernel writes them. */
static void test_mpi(void)
{
    dpari_checkup c;
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
    int i;
    variables = none;
    memset(&c, 0, sizeof c);
    dpari_doctor_files(&site, &c); /* no files */
    CHECK_INT(c.memory, 0);
    CHECK(c.quota == 0.0 && c.memory_limit == 0 && c.yama == -1 && c.gpus == 0);
    CHECK_INT(c.runnable, -1);
    CHECK(c.load[0] == 0);
    CHECK(c.links.count == 0 && !c.slingshot && !c.infiniband && c.huge[0] == 0);
    put("/proc/meminfo",
        "MemTotal:       24748808 kB\nMemFree: 1 kB\nMemAvailable:   21600000 kB\n");
    put("/proc/loadavg", "11.29 8.15 6.02 13/807 29121\n");
    put("/proc/sys/kernel/yama/ptrace_scope", "1\n");
    put("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n");
    put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "");
    put("/proc/driver/nvidia/gpus/0000:02:00.0/information", "");
    put("/dev/nvidia0", "");
    put("/sys/class/net/lo/operstate", "unknown\n");
    put("/sys/class/net/hsn0/operstate", "up\n");
    put("/sys/class/net/hsn0/speed", "200000\n");
    put("/sys/class/net/lo/speed", "-1\n"); /* drivers write this for unknown */
    put("/sys/class/net/eth1/operstate", "down\n");
    put("/sys/class/infiniband/mlx5_0/x", "");
    dpari_doctor_files(&site, &c);
    CHECK_INT(c.memory, INT64_C(24748808) * 1024);
    CHECK_INT(c.memory_free, INT64_C(21600000) * 1024);
    CHECK_INT(c.yama, 1);
    CHECK_INT(c.runnable, 13);
    CHECK_TEXT(c.load, "11.29");
    CHECK_TEXT(c.huge, "never");
    CHECK_INT(c.gpus, 2);
    CHECK_INT(c.links.count, 3);
    CHECK_INT(__builtin_popcount(c.up), 2);
    for (i = 0; i < c.links.count; i++) {
        CHECK_INT(c.speed[i], strcmp(c.links.name[i], "hsn0") == 0 ? 200000 : 0);
    }
    CHECK_INT(c.slingshot, 1);
    CHECK_INT(c.infiniband, 1);
    test_ports(&c);
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

static void test_cgroups(void)
{
    /* version 2: the least of the group's and its parents' limits */
    put("/proc/self/cgroup", "0::/user.slice/job_1/step\n");
    put("/sys/fs/cgroup/user.slice/job_1/step/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/user.slice/job_1/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/user.slice/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/user.slice/job_1/step/memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
    CHECK_NEAR(dpari_doctor_quota(&site), 1.5, 1e-12);
    CHECK_INT(dpari_doctor_memory_limit(&site), 1073741824);
    /* in a container its own group is the root */
    put("/proc/self/cgroup", "0::/\n");
    CHECK_NEAR(dpari_doctor_quota(&site), 0.0, 0.0);
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    put("/sys/fs/cgroup/memory.max", "4096\n");
    CHECK_NEAR(dpari_doctor_quota(&site), 0.5, 1e-12);
    CHECK_INT(dpari_doctor_memory_limit(&site), 4096);
    /* version 1, controllers in lists */
    put("/proc/self/cgroup",
        "5:devices:/x\n4:memory,hugetlb:/docker/a\n3:cpuset:/\n2:cpu,cpuacct:/docker/a\n");
    put("/sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us", "100000\n");
    CHECK_NEAR(dpari_doctor_quota(&site), 0.0, 0.0);
    CHECK_INT(dpari_doctor_memory_limit(&site), 0);
    put("/sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us", "225000\n");
    put("/sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "2147483648\n");
    CHECK_NEAR(dpari_doctor_quota(&site), 2.25, 1e-12);
    CHECK_INT(dpari_doctor_memory_limit(&site), INT64_C(2147483648));
}

/* Checks the device that a rank takes from those that it sees. */
static void test_own_gpu(void)
{
    static const char *const none[] = {NULL},
                             *const some[] = {"CUDA_VISIBLE_DEVICES=5,GPU-ab,7", NULL},
                             *const hidden[] = {"CUDA_VISIBLE_DEVICES=", NULL};
    static const char *const want[] = {"5", "GPU-ab", "7", "5"};
    dpari_checkup c = healthy();
    dpari_doctor_chart chart;
    int i;
    for (i = 0; i < 4; i++) {
        c.job.local_rank = i;
        variables = some;
        memset(&chart, 0, sizeof chart);
        dpari_doctor_own_gpu(&site, &c, &chart);
        CHECK_TEXT(chart.gpu, want[i]);
        variables = none;
        memset(&chart, 0, sizeof chart);
        dpari_doctor_own_gpu(&site, &c, &chart);
        CHECK(chart.gpu[0] == '0' + i && chart.gpu[1] == 0);
        variables = hidden;
        memset(&chart, 0, sizeof chart);
        dpari_doctor_own_gpu(&site, &c, &chart);
        CHECK_TEXT(chart.gpu, "");
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
    test_load();
    test_note();
    test_limits();
    test_gpus();
    test_network();
    test_slingshot();
    test_rounds();
    test_levels();
    test_nodes();
    test_versions();
    test_binding();
    test_compare();
    test_containers();
    test_speeds();
    test_own();
    test_files();
    test_sockets();
    test_mpi();
    test_devices_of_a_container();
    test_cgroups();
    test_own_gpu();
    test_joined();
    test_here();
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK_INT(system(command), 0);
    return CHECK_DONE();
}
