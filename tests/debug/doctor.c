/* SPDX-License-Identifier: MIT-0 */
/* doctor: each complaint is made where its cause is and is not where it is not, on machines made up
 * here; files of /proc and /sys come from a folder of this test's own. */
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

/* ---- judgement -------------------------------------------------------------------------------- */

/* A node with nothing wrong: 4 ranks of one node on 8 cores with 4 GPUs. */
static dpari_checkup healthy(void)
{
    dpari_checkup c;
    memset(&c, 0, sizeof c);
    c.job.launcher = DPAR_LAUNCHER_OPENMPI;
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
    c.runnable = 5; /* the 4 ranks and one */
    c.gpus = 4;
    c.links.count = 2;
    strcpy(c.links.name[0], "lo");
    strcpy(c.links.name[1], "eth0");
    c.up = 3;
    return c;
}

static char text[16384];

/* How many complaints; one of them holds `word`. Each is one line with a remedy. */
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
    c.memory_limit = INT64_C(4) * (2 << 20); /* 2 MiB a rank: 640 KiB shared, the rest its own */
    JUDGE(c, 0, "");
    c.memory_limit--;
    JUDGE(c, 1, "the cgroup grants 8191 KiB to 4 ranks, which take 2048 KiB each");
    c = healthy();
    c.memfd = 0;
    JUDGE(c, 0, "");
    c.shm_free = (4 * 640 + 64) << 10; /* 640 KiB a rank, 64 KiB that are of all */
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
    c.runnable = 4 + 7; /* the ranks, and others on all cores but one */
    JUDGE(c, 0, "");
    c.runnable++;
    JUDGE(c, 1, "8 threads want a core besides those of the ranks and there are 8 cores");
    c.runnable = -1;
    JUDGE(c, 0, "");
}

/* A note where GPUs are, /dev/shm is below 64 MiB and nothing is said of it as a fault. */
static void test_note(void)
{
    dpari_checkup c = healthy();
    static const struct {
        int32_t gpus, here, says;
        int64_t shm;
    } row[] = {{4, 1, 1, 65536},          {4, 1, 1, (64 << 20) - 1}, {4, 1, 0, 64 << 20},
               {0, 1, 0, 65536},          {4, 4, 0, 65536}, /* WRONG then */
               {4, 1, 1, -1},             {4, 4, 1, -1}};
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
    c.file_bytes = (INT64_C(4) * (65536 + 16) + 64) << 10; /* addresses, lines of ranks, head */
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
    variables = one; /* a device of its own, as launchers give */
    JUDGE(c, 0, "");
    variables = none;
    c.job.local_rank = -1;
    JUDGE(c, 1, "Open MPI does not say the local rank, so no rank knows which of 4 GPUs");
    c.job.size = 1;
    c.here = 1;
    JUDGE(c, 0, "");
}

/* A job of 2 such nodes. */
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
    c.nodes = 1; /* on one node it does not matter */
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
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME=lo is this machine's own loop");
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
    CHECK_INT(dpari_doctor_takes("eth0,ib", "eth01"), 1); /* a beginning is enough */
    CHECK_INT(dpari_doctor_takes("=eth0,ib0", "eth01"), 0);
    CHECK_INT(dpari_doctor_takes("=eth0,ib0", "ib0"), 1);
    CHECK_INT(dpari_doctor_takes("^eth0,ib", "ib3"), 0);
    CHECK_INT(dpari_doctor_takes("^eth0,ib", "hsn0"), 1);
    CHECK_INT(dpari_doctor_takes("", "eth0"), 0);
}

static void test_slingshot(void)
{
    /* what Derecho's and HPE's pages ask for */
    static const char *const all[] = {"NCCL_SOCKET_IFNAME=hsn",
                                      "NCCL_NET=AWS Libfabric",
                                      "FI_CXI_DISABLE_HOST_REGISTER=1",
                                      "FI_MR_CACHE_MONITOR=userfaultfd",
                                      "FI_CXI_DEFAULT_CQ_SIZE=131072",
                                      "NCCL_CROSS_NIC=1",
                                      "NCCL_NET_GDR_LEVEL=PHB",
                                      "MPICH_GPU_SUPPORT_ENABLED=1",
                                      "MPICH_OFI_NIC_POLICY=GPU",
                                      NULL};
    const char *less[10];
    dpari_checkup c = spread();
    int i, skip;
    c.slingshot = 1;
    c.job.launcher = DPAR_LAUNCHER_PALS;
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
    c.job.launcher = DPAR_LAUNCHER_TORCHRUN; /* no MPI */
    JUDGE(c, 7, "AWS Libfabric");
    c.gpus = 0;
    JUDGE(c, 0, "");
}

/* ---- the ranks together ----------------------------------------------------------------------- */

static void compare(const dpari_doctor_chart *charts, int n, int cores, int wrong, const char *word)
{
    dpar_text t;
    int me;
    for (me = 0; me < n; me++) {
        dpar_text_init(&t, text, sizeof text);
        CHECK_INT(dpari_doctor_compare(charts, n, me, cores, &t), wrong);
        if (strstr(text, word) == NULL) {
            CHECK_TEXT(text, word);
        }
    }
}

static void test_compare(void)
{
    dpari_doctor_chart c[4];
    int i;
    memset(c, 0, sizeof c);
    for (i = 0; i < 4; i++) {
        c[i].host = 77;
        c[i].cpus[0] = (uint64_t)1 << i; /* each bound to its own core */
        c[i].local_rank = i;
        c[i].gpu[0] = (char)('0' + i);
    }
    compare(c, 4, 64, 0, "");
    c[3].local_rank = 1;
    compare(c, 4, 64, 1, "ranks 1 and 3 are on one node and both are local rank 1");
    c[3].local_rank = 3;
    strcpy(c[0].gpu, "GPU-8f1a");
    strcpy(c[2].gpu, "GPU-8f1a");
    compare(c, 4, 64, 1, "ranks 0 and 2 take the same GPU (GPU-8f1a)");
    c[2].host = 78; /* on another node it is another one */
    compare(c, 4, 64, 0, "");
    c[2].host = 77;
    c[0].gpu[0] = c[2].gpu[0] = 0; /* none at all */
    compare(c, 4, 64, 0, "");
    for (i = 0; i < 4; i++) {
        c[i].cpus[0] = 1; /* all bound to one core, the classic mistake */
    }
    compare(c, 4, 64, 1, "the 4 ranks of this node may use 1 of its 64 cores");
    compare(c, 1, 64, 0, "");
    c[3].cpus[15] = (uint64_t)7 << 61; /* CPUs 1021 to 1023 */
    compare(c, 4, 1024, 0, "");
    memset(c, 0, sizeof c);
    for (i = 0; i < 4; i++) {
        c[i].cpus[0] = 3; /* the machine has no more: said elsewhere */
        c[i].local_rank = -1;
    }
    compare(c, 4, 2, 0, "");
}

/* ---- files ------------------------------------------------------------------------------------ */

/* root + path, folders and all. */
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

static void test_files(void)
{
    static const char *const none[] = {NULL};
    dpari_checkup c;
    variables = none;
    memset(&c, 0, sizeof c);
    dpari_doctor_files(&site, &c); /* nothing is there */
    CHECK_INT(c.memory, 0);
    CHECK(c.quota == 0.0 && c.memory_limit == 0 && c.yama == -1 && c.gpus == 0);
    CHECK_INT(c.runnable, -1);
    CHECK(c.load[0] == 0);
    CHECK(c.links.count == 0 && !c.slingshot && !c.infiniband && c.huge[0] == 0);
    put("/proc/meminfo", "MemTotal:       24748808 kB\nMemFree: 1 kB\nMemAvailable:   21600000 kB\n");
    put("/proc/loadavg", "11.29 8.15 6.02 13/807 29121\n");
    put("/proc/sys/kernel/yama/ptrace_scope", "1\n");
    put("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n");
    put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "");
    put("/proc/driver/nvidia/gpus/0000:02:00.0/information", "");
    put("/dev/nvidia0", "");
    put("/sys/class/net/lo/operstate", "unknown\n");
    put("/sys/class/net/hsn0/operstate", "up\n");
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
    CHECK_INT(c.slingshot, 1);
    CHECK_INT(c.infiniband, 1);
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
    /* version 2: the least of the group and those above it */
    put("/proc/self/cgroup", "0::/user.slice/job_1/step\n");
    put("/sys/fs/cgroup/user.slice/job_1/step/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/user.slice/job_1/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/user.slice/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/user.slice/job_1/step/memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
    CHECK_NEAR(dpari_doctor_quota(&site), 1.5, 1e-12);
    CHECK_INT(dpari_doctor_memory_limit(&site), 1073741824);
    /* in a container its own group is the top one */
    put("/proc/self/cgroup", "0::/\n");
    CHECK_NEAR(dpari_doctor_quota(&site), 0.0, 0.0);
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    put("/sys/fs/cgroup/memory.max", "4096\n");
    CHECK_NEAR(dpari_doctor_quota(&site), 0.5, 1e-12);
    CHECK_INT(dpari_doctor_memory_limit(&site), 4096);
    /* version 1, controllers in lists */
    put("/proc/self/cgroup", "5:devices:/x\n4:memory,hugetlb:/docker/a\n3:cpuset:/\n2:cpu,cpuacct:/docker/a\n");
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

/* The device that a rank takes of those it sees. */
static void test_own_gpu(void)
{
    static const char *const none[] = {NULL}, *const some[] = {"CUDA_VISIBLE_DEVICES=5,GPU-ab,7", NULL},
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

/* The real one: its lines, and that the number it returns is the number of complaints. */
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
    test_compare();
    test_files();
    test_devices_of_a_container();
    test_cgroups();
    test_own_gpu();
    test_here();
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK_INT(system(command), 0);
    return CHECK_DONE();
}
