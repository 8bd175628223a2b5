/* SPDX-License-Identifier: MIT-0 */
/* Included by strategies.cc: tests halo exchanges of several fields in three dims, with edges and
 * corners, and their adjoint. The bits must be the host's. There are two kernels for each exchange,
 * whatever the number of neighbours and of overlapping boxes. Also captured in a graph and
 * replayed. */

enum { HALO_FIELDS = 4, HALO_ROOM = 4000 };

struct halo_case {
    dpar_halo h;
    dpar_halo_field f[HALO_FIELDS];
    dpar_halo_plan *x;
    void *memory;
    int64_t n;
    int on_device;
};

/* Fields are f64 and f32 alternately; tests of the host cover folds and shifts. */
static void halo_open_as(halo_case *k, dpar_comm *c, int on_device, uint32_t periodic,
                         int32_t shape, int32_t way)
{
    dpar_halo_plan_desc options;
    memset(&options, 0, sizeof options);
    options.method = way;
    const int32_t ranks[2] = {c->size == 4 ? 2 : c->size, c->size == 4 ? 2 : 1};
    const int64_t cells[3] = {3 * ranks[0], 3 * ranks[1], 4};
    const dpar_placement cut[2] = {dpar_shard(0), dpar_shard(1)};
    dpar_mesh mesh;
    dpar_box box;
    dpar_why why;
    int64_t bytes = 0;
    memset(k, 0, sizeof *k);
    k->on_device = on_device;
    right(dpar_mesh_init(&mesh, "z y", ranks, DPAR_ORDER_LAST_FASTEST, 0, &why), why.text);
    right(dpar_layout_init(&k->h.grid, &mesh, 3, cells, cut, &why), why.text);
    for (int d = 0; d < 3; d++) {
        k->h.low[d] = 1;
        k->h.high[d] = d == 1 ? 2 : 1;
    }
    k->h.periodic = periodic;
    k->h.shape = shape;
    CHECK(dpar_halo_box(&k->h, c->rank, &box));
    k->n = dpar_box_volume(&box);
    CHECK(HALO_FIELDS * k->n <= HALO_ROOM);
    for (int i = 0; i < HALO_FIELDS; i++) {
        k->f[i].halo = &k->h;
        k->f[i].type = i % 2 ? DPAR_F32 : DPAR_F64;
        k->f[i].mem = on_device ? c->mem : NULL;
        right(dpar_comm_alloc(c, k->n * 8, &k->f[i].data), c->why.text);
    }
    right(plan_bytes(c, k->f, HALO_FIELDS, &options, &bytes, &why), why.text);
    k->memory = room(bytes);
    right(plan_init(k->memory, bytes, c, k->f, HALO_FIELDS, &options, &k->x, &why), why.text);
}

static void halo_open(halo_case *k, dpar_comm *c, int on_device, uint32_t periodic, int32_t shape)
{
    halo_open_as(k, c, on_device, periodic, shape, DPAR_HALO_AUTO);
}

static void halo_fill(halo_case *k, int rank)
{
    for (int i = 0; i < HALO_FIELDS; i++) {
        static double wide[HALO_ROOM];
        static float narrow[HALO_ROOM];
        const void *from = i % 2 ? (const void *)narrow : (const void *)wide;
        const int64_t bytes = k->n * dpar_type_bytes(k->f[i].type);
        for (int64_t e = 0; e < k->n; e++) {
            /* Whole numbers, because the host may exchange one dim after the other
             * (options.ordered), which rounds sums of corners in another order. */
            narrow[e] = (float)(int)(1000.0f * number(e + 1000 * i, rank, 5));
            wide[e] = 3.0 * (double)narrow[e];
        }
        if (k->on_device) {
            upload(k->f[i].data, from, bytes);
            cuda(cudaStreamSynchronize(device.stream));
        } else {
            memcpy(k->f[i].data, from, (size_t)bytes);
        }
    }
}

static void halo_read(halo_case *k, unsigned char *out)
{
    for (int i = 0; i < HALO_FIELDS; i++, out += 8 * k->n) {
        const int64_t bytes = k->n * dpar_type_bytes(k->f[i].type);
        memset(out, 0, (size_t)(8 * k->n));
        if (k->on_device) {
            download(out, k->f[i].data, bytes);
        } else {
            memcpy(out, k->f[i].data, (size_t)bytes);
        }
    }
}

static void halo_close(halo_case *k, dpar_comm *c)
{
    right(dpar_halo_plan_free(k->x), c->why.text);
    for (int i = 0; i < HALO_FIELDS; i++) {
        dpar_comm_release(c, k->f[i].data);
    }
    free(k->memory);
}

static void halo_once(halo_case *k, dpar_comm *c, int mode)
{
    right(mode == 0   ? dpar_halo_plan_begin(k->x)
          : mode == 1 ? dpar_halo_plan_reduce_begin(k->x, DPAR_SUM)
                      : dpar_halo_plan_reduce_begin(k->x, DPAR_MAX),
          c->why.text);
    right(dpar_halo_plan_end(k->x), c->why.text);
}

static int halo_kernels(dpar_comm *host, void *arg)
{
    static unsigned char want[8 * HALO_ROOM], got[8 * HALO_ROOM];
    halo_case a, b;
    (void)arg;
    begin(host);
    for (int turn = 0; turn < 3; turn++) {
        const uint32_t periodic = turn == 0 ? 0 : 7;
        const int32_t shape = turn == 2 ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
        halo_open(&a, host, 0, periodic, shape);
        halo_open(&b, device.c, 1, periodic, shape);
        CHECK_INT(a.n, b.n);
        for (int mode = 0; mode < 3; mode++) { /* forward, adjoint sums, adjoint maxima */
            cudaGraph_t graph = NULL;
            cudaGraphExec_t exec = NULL;
            const int64_t most = host->size == 1 && periodic == 0 ? 0 : 2; /* nothing is moved */
            halo_fill(&a, host->rank);
            halo_fill(&b, host->rank);
            halo_once(&a, host, mode);
            device.gpu.launches = device.adder.launches = 0;
            halo_once(&b, device.c, mode);
            halo_read(&a, want);
            halo_read(&b, got);
            CHECK(memcmp(want, got, (size_t)(8 * HALO_FIELDS * a.n)) == 0);
            CHECK(device.gpu.launches + device.adder.launches <= most);
            CHECK(most == 0 || device.gpu.launches > 0);
            cuda(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal));
            halo_once(&b, device.c, mode);
            cuda(cudaStreamEndCapture(device.stream, &graph));
            cuda(cudaGraphInstantiate(&exec, graph, 0));
            for (int again = 0; again < 2; again++) {
                halo_once(&a, host, mode);
                cuda(cudaGraphLaunch(exec, device.stream));
            }
            halo_read(&a, want);
            halo_read(&b, got);
            CHECK(memcmp(want, got, (size_t)(8 * HALO_FIELDS * a.n)) == 0);
            cuda(cudaGraphExecDestroy(exec));
            cuda(cudaGraphDestroy(graph));
        }
        halo_close(&a, host);
        halo_close(&b, device.c);
    }
    return end();
}

/* ---- exchanges through shared device memory ---- */

/* Returns how many peers an exchange reaches in this way, by messages for example. */
static int halo_ways(const halo_case *k, const char *way)
{
    char text[4000];
    dpar_text t;
    int n = 0;
    dpar_text_init(&t, text, sizeof text);
    dpar_halo_plan_report(k->x, &t);
    for (const char *at = text; (at = strstr(at, way)) != NULL; at++) {
        n++;
    }
    return n;
}

enum { NEAR_TIMES = 10 };

/* Runs consecutive exchanges without a wait on the host: own cells are set before each one (a copy
 * on the stream), all cells are saved after it. f, a: forward or adjoint, called; F, A:
 * replayed. */
static void near_run(halo_case *k, dpar_comm *c, const char *order, unsigned char *out)
{
    const int64_t bytes = 8 * HALO_FIELDS * k->n;
    cudaGraph_t graph[2];
    cudaGraphExec_t exec[2];
    void *kept = NULL, *given = NULL;
    right(dpar_comm_alloc(c, bytes * NEAR_TIMES, &kept), c->why.text);
    right(dpar_comm_alloc(c, bytes * NEAR_TIMES, &given), c->why.text);
    for (int t = 0; t < NEAR_TIMES; t++) {
        halo_fill(k, c->rank + 7 * t);
        for (int i = 0; i < HALO_FIELDS; i++) {
            cuda(cudaMemcpyAsync((char *)given + t * bytes + i * 8 * k->n, k->f[i].data,
                                 (size_t)(k->n * dpar_type_bytes(k->f[i].type)),
                                 cudaMemcpyDeviceToDevice, device.stream));
        }
    }
    for (int g = 0; g < 2; g++) {
        cuda(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal));
        halo_once(k, c, g);
        cuda(cudaStreamEndCapture(device.stream, &graph[g]));
        cuda(cudaGraphInstantiate(&exec[g], graph[g], 0));
    }
    for (int t = 0; t < NEAR_TIMES; t++) {
        for (int after = 0; after < 2; after++) {
            for (int i = 0; i < HALO_FIELDS; i++) {
                char *at = (char *)(after ? kept : given) + t * bytes + i * 8 * k->n;
                cuda(cudaMemcpyAsync(after ? at : (char *)k->f[i].data,
                                     after ? (char *)k->f[i].data : at,
                                     (size_t)(k->n * dpar_type_bytes(k->f[i].type)),
                                     cudaMemcpyDeviceToDevice, device.stream));
            }
            if (!after && (order[t] == 'F' || order[t] == 'A')) {
                cuda(cudaGraphLaunch(exec[order[t] == 'A'], device.stream));
            } else if (!after) {
                halo_once(k, c, order[t] == 'a');
            }
        }
    }
    download(out, kept, bytes * NEAR_TIMES);
    for (int g = 0; g < 2; g++) {
        cuda(cudaGraphExecDestroy(exec[g]));
        cuda(cudaGraphDestroy(graph[g]));
    }
    dpar_comm_release(c, kept);
    dpar_comm_release(c, given);
}

/* Checks that the bits are those of messages, which were compared with the host's above. 4 ranks:
 * on one node, then (stand-ins) on two. With NEAR_AS in the environment no memory is lent. */
static int halo_near_on(dpar_comm *host, int nodes)
{
    static unsigned char want[8 * HALO_ROOM * NEAR_TIMES], got[8 * HALO_ROOM * NEAR_TIMES];
    static const char *const orders[] = {"ffaaffaffa", "FFFFAAAFFA", "fFfFFaAfFf"};
    halo_case a, b;
    if (nodes) {
        setenv("NCCL_HOSTID", host->rank < 2 ? "node0" : "node1", 1);
    }
    begin(host);
    for (int turn = 0; turn < 3; turn++) {
        const uint32_t periodic = turn == 0 ? 0 : 7;
        const int32_t shape = turn == 2 ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
        halo_open_as(&a, device.c, 1, periodic, shape, DPAR_HALO_MESSAGES);
        halo_open_as(&b, device.c, 1, periodic, shape, DPAR_HALO_AUTO);
        CHECK_INT(halo_ways(&a, "packed"), 0);
#if defined(FAKE_CUDA)
        const int peers = halo_ways(&a, "message");
        const int near = getenv("NEAR_AS") != NULL ? 0 : nodes && peers > 0 ? 1 : peers;
        CHECK_INT(halo_ways(&b, "packed"), near);
        CHECK_INT(halo_ways(&b, "message"), peers - near);
#endif
        near_run(&a, device.c, orders[turn], want);
        near_run(&b, device.c, orders[turn], got);
        CHECK(memcmp(want, got, (size_t)(8 * HALO_FIELDS * a.n * NEAR_TIMES)) == 0);
        halo_close(&a, device.c);
        halo_close(&b, device.c);
    }
    return end();
}

static int halo_near(dpar_comm *host, void *arg)
{
    (void)arg;
    return halo_near_on(host, 0);
}

static int halo_two_nodes(dpar_comm *host, void *arg)
{
    (void)arg;
    return host->size < 4 ? 0 : halo_near_on(host, 1);
}
