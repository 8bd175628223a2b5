/* SPDX-License-Identifier: MIT-0 */
/* Collects spans for launches: dpar_mem.span. */
#include "spans.h"

#include "operations.h"

DPARI_INTERNAL int dpari_cuda_span_piece(const dpar_mem_span *s, int stochastic, dpari_cuda_span *p)
{
    const int floats =
        dpari_cuda_is_float(s->to_type) && (s->from == NULL || dpari_cuda_is_float(s->from_type));
    const int same = s->to_type == s->from_type && s->from != NULL && s->scale == 1.0 &&
                     !s->accumulate && !stochastic;
    const int zero = s->from == NULL && s->scale == 0.0 && !s->accumulate;
    int64_t count = s->count;
    int32_t width;
    if (count < 0 || dpar_type_bytes(s->to_type) == 0 || !(floats || same || zero) ||
        (count > 0 && s->to == NULL)) {
        return -1;
    }
    if (count == 0) {
        return 0;
    }
    memset(p, 0, sizeof *p);
    width = dpari_cuda_width(s->to_type);
    p->to = (unsigned char *)s->to;
    p->from = (const unsigned char *)s->from;
    p->to_type = s->to_type;
    p->from_type = s->from == NULL ? s->to_type : s->from_type;
    p->scale = s->scale;
    p->add = s->accumulate != 0;
    p->stochastic = stochastic != 0;
    p->count = count;
    if (same || zero) {
        p->count = count * width;
        p->head = (int64_t)((16 - (uintptr_t)p->to % 16) % 16);
        p->even = s->from == NULL || ((uintptr_t)p->from + (uintptr_t)p->head) % 16 == 0;
        p->units = (p->count + 15) / 16 + 2;
        p->raw = 1;
        return 1;
    }
    p->head = dpari_cuda_head(s->to, width);
    p->units = dpari_cuda_fours(count, p->head);
    p->even = (uint8_t)(s->from == NULL ||
                        dpari_cuda_even(s->from, p->head, dpari_cuda_width(s->from_type)));
    if (width <= 4 && dpari_cuda_width(p->from_type) <= 4) {
        p->raw = s->from != NULL && s->scale == 1.0 && !s->accumulate && !stochastic ? 2 : 3;
    }
    return 1;
}

static dpar_status dpari_cuda_span_flush(dpar_cuda *gpu, dpari_cuda_spans_large *b)
{
    dpar_status st = DPAR_OK;
    if (b->n > dpari_cuda_spans_small::ROOM) {
        st = dpari_cuda_span_now<0>(gpu, b);
    } else if (b->n > 0) {
        dpari_cuda_spans_small s;
        dpari_cuda_shrink(&s, b);
        st = dpari_cuda_span_now<0>(gpu, &s);
    }
    b->n = 0;
    return st;
}

DPARI_INTERNAL dpar_status dpari_cuda_spans(void *ctx, const dpar_mem_span *spans, int32_t n)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_spans_large b;
    dpari_cuda_span piece;
    dpar_status st = DPAR_OK;
    int32_t i;
    b.n = 0;
    b.room = 0;
    for (i = 0; i < n; i++) {
        if (dpari_cuda_span_piece(&spans[i], 0, &piece) < 0) {
            return dpari_cuda_wrong(gpu, "span");
        }
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        if (dpari_cuda_span_piece(&spans[i], 0, &piece) > 0) {
            st = b.n == dpari_cuda_most<dpari_cuda_spans_small, dpari_cuda_spans_large>(gpu)
                     ? dpari_cuda_span_flush(gpu, &b)
                     : DPAR_OK;
            b.piece[b.n++] = piece;
        }
    }
    return st == DPAR_OK ? dpari_cuda_span_flush(gpu, &b) : st;
}
