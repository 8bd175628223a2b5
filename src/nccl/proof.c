/* SPDX-License-Identifier: MIT-0 */
/* Computes proofs by SipHash-2-4 over the numbers that both sides have drawn, and draws random
 * numbers from /dev/urandom. There is no weaker source, because the key protects the job. */
#include "proof.h"

#include "../base/arith.h"
#include "state.h"

static uint64_t dpari_nccl_turned(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void dpari_nccl_sip_rounds(uint64_t *v, int n)
{
    for (; n > 0; n--) {
        v[0] += v[1];
        v[1] = dpari_nccl_turned(v[1], 13) ^ v[0];
        v[0] = dpari_nccl_turned(v[0], 32);
        v[2] += v[3];
        v[3] = dpari_nccl_turned(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = dpari_nccl_turned(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = dpari_nccl_turned(v[1], 17) ^ v[2];
        v[2] = dpari_nccl_turned(v[2], 32);
    }
}

/* Returns the hash of n words, which are at most 31, under a key. The constants are those of the
 * paper's variant with a result of 128 bits. */
static dpari_nccl_bits dpari_nccl_sip(const dpari_nccl_bits *key, const uint64_t *word, int32_t n)
{
    dpari_nccl_bits out;
    uint64_t v[4];
    int32_t i;
    v[0] = key->word[0] ^ UINT64_C(0x736f6d6570736575);
    v[1] = key->word[1] ^ UINT64_C(0x646f72616e646f6d) ^ 0xee;
    v[2] = key->word[0] ^ UINT64_C(0x6c7967656e657261);
    v[3] = key->word[1] ^ UINT64_C(0x7465646279746573);
    for (i = 0; i <= n; i++) { /* one more word, with the number of bytes in its highest byte */
        const uint64_t m = i < n ? word[i] : (uint64_t)n * 8 << 56;
        v[3] ^= m;
        dpari_nccl_sip_rounds(v, 2);
        v[0] ^= m;
    }
    v[2] ^= 0xee;
    dpari_nccl_sip_rounds(v, 4);
    out.word[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    dpari_nccl_sip_rounds(v, 4);
    out.word[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
    return out;
}

DPARI_INTERNAL int dpari_nccl_alike(const dpari_nccl_bits *a, const dpari_nccl_bits *b)
{
    return ((a->word[0] ^ b->word[0]) | (a->word[1] ^ b->word[1])) == 0;
}

DPARI_INTERNAL int dpari_nccl_draw(dpari_nccl_bits *to)
{
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    char *at = (char *)to;
    size_t left = sizeof *to;
    ssize_t got = -1;
    while (fd >= 0 && left > 0 && ((got = read(fd, at, left)) > 0 || (got < 0 && errno == EINTR))) {
        at += got > 0 ? got : 0;
        left -= got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return left == 0 ? 0 : -1;
}

DPARI_INTERNAL dpari_nccl_bits dpari_nccl_prove(const dpari_nccl_world *world, int by_root,
                                                int32_t rank, const dpari_nccl_bits *caller,
                                                const dpari_nccl_bits *called)
{
    uint64_t word[7];
    word[0] = (uint64_t)by_root;
    word[1] = world->side.card.job;
    word[2] = (uint64_t)rank << 32 | (uint64_t)world->size;
    memcpy(word + 3, caller, sizeof *caller);
    memcpy(word + 5, called, sizeof *called);
    return dpari_nccl_sip(&world->side.card.key, word, 7);
}
