/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_mpi_make when /dev/shm is full and memfd_create is not allowed, as in some containers.
 * It must return a communicator that uses messages and reports why, or one whose memory is
 * completely allocated, so that no later access ends in SIGBUS. What does not fit any more is
 * refused with a message.
 *   unshare -m sh -c 'mount -t tmpfs -o size=64k none /dev/shm && mpirun -np 4 full 64' */
#include "dpar_mpi.h"
#include "check.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int forbid_memfd(void)
{
    struct sock_filter rule[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, rule};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void sums(dpar_comm *c)
{
    enum { MOST = 1 << 20 };
    float *in = (float *)malloc(MOST * sizeof *in), *out = (float *)malloc(MOST * sizeof *out);
    int64_t n, i;
    for (i = 0; i < MOST; i++) {
        in[i] = (float)(c->rank + i % 5);
    }
    for (n = 1; n <= MOST; n *= 32) {
        CHECK_INT(dpar_all_reduce(c, in, out, n, DPAR_F32, DPAR_SUM, NULL), DPAR_OK);
        CHECK(out[n - 1] == (float)(c->size * (c->size - 1) / 2 + c->size * (int)((n - 1) % 5)));
    }
    free(in);
    free(out);
}

int main(int argc, char **argv)
{
    const int kib = argc > 1 ? atoi(argv[1]) : 0;
    dpar_comm *c = NULL;
    dpar_why why;
    dpar_text t;
    char text[600] = "";
    void *memory = NULL;
    int failed, flat;
    dpar_status status;
    MPI_Init(&argc, &argv);
    if (!forbid_memfd()) {
        puts("skipped: seccomp is not allowed");
        MPI_Abort(MPI_COMM_WORLD, 77);
    }
    status = dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why);
    if (status < 0) { /* one communicator fits in the node's memory, but not two */
        CHECK_INT(status, DPAR_E_MEMORY);
        CHECK(strstr(why.text, "no memory for a communicator") != NULL);
        failed = CHECK_DONE();
        MPI_Finalize();
        return failed;
    }
    dpar_text_init(&t, text, sizeof text);
    dpar_comm_describe(c, &t);
    flat = strstr(text, "all communication by MPI messages: ") != NULL;
    CHECK(flat ? strstr(text, "o space left") != NULL
               : c->node != NULL || c->engine.name[0] == 's');
    CHECK(flat || kib > 64); /* nothing fits into 64 KiB */
    if (c->rank == 0) {
        printf("%d KiB: %s\n", kib, text);
    }
    sums(c);
    if (!flat) {
        CHECK_INT(dpar_comm_alloc(c, (int64_t)kib << 10, &memory), DPAR_E_MEMORY);
        CHECK(memory == NULL);
        CHECK(c->why.text[0] != 0);
        if (c->rank == 0) {
            puts(c->why.text);
        }
        sums(c);
    }
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
    failed = CHECK_DONE();
    MPI_Finalize();
    return failed;
}
