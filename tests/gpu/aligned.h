/* SPDX-License-Identifier: MIT-0 */
/* aligned: tests the kernels of dpar_cuda.h for known types and alignment, with which models are
 * trained. They work in units of 16 bytes; sizes fill the last unit or do not. Results are compared
 * with the host's table where equal bits are guaranteed, otherwise with the general kernel, which
 * gets the same numbers one element further on: the bits must be equal. */

static int guarded(const bytes_of &x)
{
    for (size_t i = 0; i < GUARD; i++) {
        if (x[i] != POISON || x[x.size() - 1 - i] != POISON) {
            printf("a guard was written\n");
            return 0;
        }
    }
    return 1;
}

/* An array that is twice in device memory: aligned, and `off` bytes further on. */
struct pair_of {
    twin even, odd;
    pair_of(int64_t n, int64_t off) : even(n, 0), odd(n, off)
    {
    }
    void fill(int32_t type)
    {
        even.fill(type, 0);
        copy();
    }
    void copy()
    {
        memcpy(odd.h(), even.h(), (size_t)even.bytes);
        even.give();
        odd.give();
    }
    void *at(int which)
    {
        return which ? odd.d() : even.d();
    }
    int same()
    {
        const bytes_of x = even.taken(), y = odd.taken();
        return x == y && guarded(x) && guarded(y);
    }
};

/* Tests all forms of AdamW in f64 and in f32. */
static void test_aligned_steps(void)
{
    static const struct {
        /* how: 1 stochastic, 2 with a copy, 3 with a rest, 4 SGD */
        int32_t weight, gradient, moment, how;
    } forms[] = {{DPAR_F32, DPAR_F32, DPAR_F32, 0},    {DPAR_F32, DPAR_BF16, DPAR_F32, 2},
                 {DPAR_BF16, DPAR_BF16, DPAR_F32, 3},  {DPAR_BF16, DPAR_BF16, DPAR_F32, 1},
                 {DPAR_BF16, DPAR_BF16, DPAR_BF16, 1}, {DPAR_F32, DPAR_F32, DPAR_F32, 4}};
    for (int turn = 0; turn < 24; turn++) {
        const auto &f = forms[turn / 2 % 6];
        const int64_t n = turn < 12 ? 2100 + 3 * turn : 1 + below(40),
                      wide = dpar_type_bytes(f.weight);
        pair_of w(n * wide, wide), g(n * dpar_type_bytes(f.gradient), 4), rest(n * 2, 2);
        pair_of m(n * dpar_type_bytes(f.moment), 4), v(n * dpar_type_bytes(f.moment), 4);
        pair_of copy(n * 2, 2);
        dpar_optimizer o = f.how == 4 ? sgd(0.9) : adamw();
        o.decay = 0.1;
        o.seed = random_bits();
        o.stochastic = f.how == 1;
        o.moment_type = f.moment == DPAR_BF16 ? DPAR_BF16 : DPAR_TYPE_NONE;
        w.fill(f.weight);
        g.fill(f.gradient);
        m.fill(f.moment);
        v.fill(f.moment);
        rest.fill(DPAR_BF16);
        copy.fill(DPAR_BF16);
        for (int64_t i = 0; i < n; i++) {
            write_at(v.even.h(), i, f.moment, fabs(read_at(v.even.h(), i, f.moment)));
        }
        v.copy();
        for (int which = 0; which < 2; which++) {
            dpar_optimizer_piece piece;
            dpar_mem_optimize x;
            memset(&piece, 0, sizeof piece);
            memset(&x, 0, sizeof x);
            piece.weight = w.at(which);
            piece.gradient = g.at(which);
            piece.m = m.at(which);
            piece.v = v.at(which);
            piece.weight_type = f.weight;
            piece.gradient_type = f.gradient;
            piece.count = n;
            piece.index = 4000 + 4 * (uint64_t)turn;
            x.optimizer = &o;
            x.piece = &piece;
            x.step = 3;
            x.rate = 0.01;
            x.factor = 0.5;
            x.copy = f.how == 2 ? copy.at(which) : NULL;
            x.copy_type = DPAR_BF16;
            x.remainder = f.how == 3 ? (int16_t *)rest.at(which) : NULL;
            gpu.max_blocks = fast.max_blocks = turn % 3 == 0;
            CHECK_INT(turn % 2 ? quick_layers.optimize(quick.ctx, &x)
                               : device_layers.optimize(device.ctx, &x),
                      DPAR_OK);
            CHECK_INT(device.wait(device.ctx), DPAR_OK);
        }
        gpu.max_blocks = fast.max_blocks = 0;
        CHECK(w.same() && g.same() && m.same() && v.same() && copy.same() && rest.same());
    }
}

static void test_aligned_sums(void)
{
    for (int turn = 0; turn < 16; turn++) {
        const int32_t type = turn % 2 ? DPAR_BF16 : DPAR_F32;
        const int64_t count = turn < 4 ? 2100 + turn : 1 + below(70), parts = 1 + below(9);
        const int64_t stride = (count + 7) / 8 * 8;
        twin to(count * dpar_type_bytes(type), 0), from(parts * stride * dpar_type_bytes(type), 0);
        dpar_mem_reduce r;
        memset(&r, 0, sizeof r);
        to.fill(type, 1);
        from.fill(type, 1);
        r.count = count;
        r.parts = parts;
        r.stride = stride;
        r.to_type = r.from_type = type;
        r.sum_type = turn / 2 % 2 ? DPAR_F64 : DPAR_F32;
        r.op = turn / 4 % 2 ? DPAR_AVG : DPAR_SUM;
        r.accumulate = (int32_t)below(2);
        r.scale = below(2) == 0 ? 1.0 : 1.0 / 3.0;
        gpu.max_blocks = turn % 3 == 0;
        on_both(&dpar_mem::reduce, &r, [&](int on_device) {
            r.to = to.at(on_device);
            r.from = from.at(on_device);
        });
        gpu.max_blocks = 0;
        CHECK(to.same(type, type == DPAR_F32 ? 0.0 : -1.0)); /* NaN payloads may differ */
    }
    for (int turn = 0; turn < 6; turn++) { /* rounded up or down by random numbers */
        const int64_t count = turn == 0 ? 4100 : 1 + below(60);
        twin to(count * 2, 0), from(count * 4, 0);
        dpar_mem_round round;
        memset(&round, 0, sizeof round);
        to.fill(DPAR_BF16, 1);
        from.fill(DPAR_F32, 1);
        round.count = count;
        round.from_type = DPAR_F32;
        round.seed = random_bits();
        round.stream = random_bits();
        round.index = random_bits() >> 20 & ~UINT64_C(3);
        on_both(&dpar_mem_layers::round, &round, [&](int on_device) {
            round.to = to.at(on_device);
            round.from = from.at(on_device);
        });
        CHECK(to.same(DPAR_BF16, -1.0));
    }
}

/* Tests boxes that are more work than a wave: casts and sums. */
static void test_aligned_boxes(void)
{
    static const int32_t types[][3] = {
        {DPAR_F32, DPAR_F64, DPAR_COPY},  {DPAR_F64, DPAR_F32, DPAR_COPY},
        {DPAR_BF16, DPAR_F32, DPAR_COPY}, {DPAR_F32, DPAR_BF16, DPAR_COPY},
        {DPAR_F32, DPAR_F32, DPAR_SUM},   {DPAR_F64, DPAR_F64, DPAR_SUM},
        {DPAR_F32, DPAR_F32, DPAR_MAX},   {DPAR_F16, DPAR_F32, DPAR_COPY}};
    const int32_t units = gpu.multiprocessors;
    for (int turn = 0; turn < 16; turn++) {
        const int32_t tt = types[turn % 8][0], ft = types[turn % 8][1];
        const int64_t rows = 33 + below(9), width = 400, step = 408;
        twin to(rows * step * dpar_type_bytes(tt), 0), from(rows * step * dpar_type_bytes(ft), 0);
        dpar_mem_box b[2];
        to.fill(tt, 1);
        from.fill(ft, 1);
        memset(b, 0, sizeof b);
        for (int k = 0; k < 2; k++) {
            b[k].to_type = tt;
            b[k].from_type = ft;
            b[k].round_type = dpar_type_bytes(tt) < dpar_type_bytes(ft) ? tt : ft;
            b[k].op = types[turn % 8][2];
            b[k].negate = b[k].op != DPAR_COPY && turn >= 8;
            b[k].dims = 2;
            b[k].extent[0] = k ? rows - 30 : 30;
            b[k].extent[1] = width;
            b[k].to_stride[0] = b[k].from_stride[0] = step;
            b[k].to_stride[1] = b[k].from_stride[1] = 1;
        }
        /* Sums may overlap. In the second run the boxes are known, in the third other blocks do
         * them. */
        const int64_t second = b[0].op != DPAR_COPY && turn % 3 == 0 ? 20 : 30;
        gpu.multiprocessors = 1; /* so that a wave is small */
        for (int time = 0; time < 6; time++) {
            const int on_device = time % 2 == 0;
            for (int k = 0; k < 2; k++) {
                const int64_t at = k * second * step;
                b[k].to = (unsigned char *)to.at(on_device) + at * dpar_type_bytes(tt);
                b[k].from = (unsigned char *)from.at(on_device) + at * dpar_type_bytes(ft);
            }
            const dpar_mem &table = on_device ? device : host;
            gpu.max_blocks = time / 2 == 2 ? 3 : 0;
            gpu.launches = 0;
            CHECK_INT(table.move(table.ctx, b, 2), DPAR_OK);
            CHECK_INT(gpu.launches, on_device);
        }
        gpu.max_blocks = 0;
        gpu.multiprocessors = units;
        CHECK(to.same(tt, b[0].op == DPAR_COPY ? -1.0 : 0.0)); /* NaN payloads may differ */
    }
}

static void test_aligned_rows(void)
{
    for (int turn = 0; turn < 12; turn++) {
        const int32_t type = turn % 2 ? DPAR_BF16 : DPAR_F32;
        const int64_t rows = 1 + below(7), k = 1 + below(3), have = 4 + below(9);
        const int64_t width = turn < 2 ? 8400 : 8 * (1 + below(40)), wide = dpar_type_bytes(type);
        twin to(rows * width * wide, 0), from(have * width * wide, 0), at(rows * k * 8, 0);
        twin weight(rows * k * 4, 0);
        pair_of a((rows + k) * width * wide, wide), b(have * width * wide, wide);
        pair_of sums(rows * 8, 0);
        dpar_mem_combine m;
        dpar_mem_dot d;
        to.fill(type, 0);
        from.fill(type, 0);
        weight.fill(DPAR_F32, 0);
        a.fill(type);
        b.fill(type);
        sums.fill(DPAR_F64);
        memset(&m, 0, sizeof m);
        m.index = any_index(&at, rows * k, have, turn / 2 % 2, turn % 5 == 0);
        m.rows = rows;
        m.choices = k;
        m.width = width;
        m.to_type = m.from_type = type;
        m.weight_type = DPAR_F32;
        on_both(&dpar_mem_layers::combine, &m, [&](int on_device) {
            m.to = to.at(on_device);
            m.from = from.at(on_device);
            m.weight = turn % 3 ? weight.at(on_device) : NULL;
            m.index.at = at.at(on_device);
        });
        CHECK(to.same(type, -1.0));
        memset(&d, 0, sizeof d);
        d.index = m.index;
        d.rows = rows;
        d.choices = k;
        d.width = width;
        d.to_type = DPAR_F64;
        d.type = type;
        d.index.at = at.d();
        for (int which = 0; which < 2; which++) {
            d.to = sums.at(which);
            d.a = a.at(which);
            d.b = b.at(which);
            CHECK_INT(device_layers.dot(device.ctx, &d), DPAR_OK);
        }
        CHECK(sums.same());
    }
}

/* Tests consecutive planes: moments, and the phases of a norm that read them. */
static void test_aligned_planes(void)
{
    for (int turn = 0; turn < 8; turn++) {
        const int32_t type = turn % 2 ? DPAR_BF16 : DPAR_F32;
        const int64_t points = turn < 2 ? 41000 : 4 * (1 + below(1200)), channels = 4;
        const int64_t gap = turn % 3 == 0 ? 4 : 0, step = points + gap,
                      wide = dpar_type_bytes(type);
        pair_of x(channels * step * wide, wide), dy(channels * step * wide, wide);
        pair_of to(channels * step * wide, wide), sums(channels * 16, 0), part(2 * 24, 0);
        twin saved(2 * 16, 0), total(2 * 24, 0), scale(channels * 4, 0);
        dpar_mem_moments o;
        dpar_mem_norm m;
        x.fill(type);
        dy.fill(type);
        to.fill(type);
        sums.fill(DPAR_F64);
        part.fill(DPAR_F64);
        saved.fill(DPAR_F64, 0);
        total.fill(DPAR_F64, 0);
        scale.fill(DPAR_F32, 0);
        memset(&o, 0, sizeof o);
        o.type = type;
        o.planes = o.channels = (int32_t)channels;
        o.groups = 2;
        o.dims = 1;
        o.extent[0] = points;
        o.stride[0] = 1;
        o.step = step;
        memset(&m, 0, sizeof m);
        m.type = type;
        m.planes = m.channels = (int32_t)channels;
        m.groups = 2;
        m.dims = 1;
        m.extent[0] = points;
        m.x.stride[0] = m.dy.stride[0] = m.to.stride[0] = 1;
        m.x.step = m.dy.step = m.to.step = step;
        m.scale = scale.d();
        m.saved = (double *)saved.d();
        for (int which = 0; which < 2; which++) {
            o.x = x.at(which);
            o.to = (double *)part.at(which);
            CHECK_INT(device_layers.moments(device.ctx, &o), DPAR_OK);
        }
        CHECK(part.same());
        for (int32_t phase = DPAR_MEM_NORM_APPLY; phase <= DPAR_MEM_NORM_GRADIENT && turn % 2 == 0;
             phase++) {
            for (int which = 0; which < 2; which++) {
                m.phase = phase;
                m.x.data = x.at(which);
                m.dy.data = dy.at(which);
                m.to.data = to.at(which);
                m.sums = (double *)sums.at(which);
                m.total = (double *)total.d();
                CHECK_INT(device_layers.norm(device.ctx, &m), DPAR_OK);
            }
            CHECK(to.same() && sums.same());
        }
    }
}

/* Compares quotients computed with the reciprocal of the divisor with divisions. */
static void test_aligned_quotients(void)
{
    for (int i = 0; i < 200000; i++) {
        const uint64_t any = random_bits();
        const int size = (int)(any >> 48 & 0xff) % 164 - 64, of_x = (int)(any >> 56) % 22 - 12;
        dpari_cuda_scaling by;
        by.scale = ldexpf(1.0f + (float)(any & 0x7fffff) / 8388608.0f, size);
        by.inverse = 1.0f / by.scale;
        const float x = ldexpf(-1.0f - (float)(any >> 24 & 0x7fffff) / 8388608.0f, size + of_x);
        if (dpari_cuda_scaled(x, by) != x / by.scale) {
            CHECK_NEAR((double)x, (double)by.scale, -1.0);
            return;
        }
    }
    CHECK(1);
}

/* Tests blocks whose scale is a power of two, with quotients at the limit between two codes, and
 * other blocks. */
static void test_aligned_codes(void)
{
    for (int turn = 0; turn < 24; turn++) {
        const int32_t type = turn % 2 ? DPAR_BF16 : DPAR_F32,
                      code_type = turn / 2 % 2 ? DPAR_I8 : DPAR_F8;
        const int64_t block = turn / 4 % 3 == 0 ? 128 : turn / 4 % 3 == 1 ? 32 : 512;
        const int64_t count = 5 * block + (turn % 3 == 0 ? 0 : 3);
        const double most = code_type == DPAR_F8 ? 448.0 : 127.0;
        twin x(count * dpar_type_bytes(type), 0), back(count * dpar_type_bytes(type), 0);
        twin code(6 * block, 0), scale(6 * 4, 0);
        dpar_mem_quantize q;
        x.fill(type, 0);
        back.fill(type, 0);
        for (int64_t i = 0; i < count && turn < 16; i++) {
            const double size = ldexp(1.0, (int)(i / block) * 40 - 100);
            const double tie = (double)(below(4096) - 2048) / (code_type == DPAR_F8 ? 1024.0 : 2.0);
            const double one = below(3) == 0 ? tie * 0.99999994 : tie;
            write_at(x.h(), i, type,
                     size * (i % block == 0     ? most
                             : fabs(one) > most ? most
                                                : one));
        }
        x.give();
        memset(&q, 0, sizeof q);
        q.count = count;
        q.block = q.code_step = block;
        q.scale_step = 4;
        q.type = type;
        q.code_type = code_type;
        on_both(&dpar_mem_layers::quantize, &q, [&](int on_device) {
            q.x = x.at(on_device);
            q.code = code.at(on_device);
            q.scale = scale.at(on_device);
        });
        on_both(&dpar_mem_layers::dequantize, &q, [&](int on_device) {
            q.x = back.at(on_device);
            q.code = code.at(on_device);
            q.scale = scale.at(on_device);
        });
        CHECK(code.same(DPAR_U8, -1.0) && scale.same(DPAR_U8, -1.0) && back.same(type, -1.0));
    }
}

static void test_aligned(void)
{
    test_aligned_steps();
    test_aligned_sums();
    test_aligned_boxes();
    test_aligned_rows();
    test_aligned_planes();
    test_aligned_quotients();
    test_aligned_codes();
}
