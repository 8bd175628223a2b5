/* SPDX-License-Identifier: MIT-0 */
/* Reduces more than 2^31 elements: 2 ranks, one byte each, from private and from registered memory,
 * in place (4.3 GB in all). Each element is compared with the serial value. Skips (77) if the
 * machine has less memory. */
#include "dpar_comm.h"

#include "check.h"
#include <stdlib.h>
#include <unistd.h>

#define COUNT ((INT64_C(1) << 31) + 4099)

/* Element i of a rank repeats one value in each block of 4096, so that filling and checking are
 * fast. Sums stay below 256. */
enum { BLOCK = 4096 };
static int value(int64_t i, int32_t rank)
{
    return (int)((i / BLOCK) % 101) + rank;
}

static int64_t length(int64_t i)
{
    return COUNT - i < BLOCK ? COUNT - i : BLOCK;
}

static void fill(uint8_t *x, int32_t rank)
{
    for (int64_t i = 0; i < COUNT; i += BLOCK) {
        memset(x + i, value(i, rank), (size_t)length(i));
    }
}

/* Returns the first block that is wrong, or -1. */
static int64_t wrong(const uint8_t *x, int sum)
{
    uint8_t expected[BLOCK];
    for (int64_t i = 0; i < COUNT; i += BLOCK) {
        memset(expected, sum ? value(i, 0) + value(i, 1) : value(i, 0), sizeof expected);
        if (memcmp(x + i, expected, (size_t)length(i)) != 0) {
            return i;
        }
    }
    return -1;
}

static void both(dpar_comm *c, uint8_t *x)
{
    fill(x, c->rank);
    CHECK_INT(dpar_all_reduce(c, x, x, COUNT, DPAR_U8, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(wrong(x, 1), -1);
    fill(x, c->rank);
    CHECK_INT(dpar_broadcast(c, x, COUNT, DPAR_U8, 0, NULL), DPAR_OK);
    CHECK_INT(wrong(x, 0), -1);
    fill(x, c->rank);
    if (c->rank == 0) {
        CHECK_INT(dpar_send(c, x, COUNT, DPAR_U8, 1, 0, NULL), DPAR_OK);
    } else {
        CHECK_INT(dpar_recv(c, x, COUNT, DPAR_U8, 0, 0, NULL), DPAR_OK);
    }
    CHECK_INT(wrong(x, 0), -1);
}

static int large(dpar_comm *c, void *arg)
{
    uint8_t *x = (uint8_t *)malloc((size_t)COUNT);
    void *shared = NULL;
    (void)arg;
    if (x) {
        both(c, x);
    }
    CHECK(x != NULL);
    free(x);
    CHECK_INT(dpar_comm_alloc(c, COUNT, &shared), DPAR_OK);
    both(c, (uint8_t *)shared);
    dpar_comm_release(c, shared);
    return CHECK_DONE();
}

int main(void)
{
    dpar_why why = {"", 0};
    dpar_status s;
    if (sysconf(_SC_AVPHYS_PAGES) / 1024 * (sysconf(_SC_PAGESIZE) / 1024) < 6000) {
        printf("less than 6 GB of memory are free\n");
        return 77;
    }
    s = dpar_launch(2, large, NULL, NULL, &why);
    if (s != DPAR_OK) {
        printf("%s\n", why.text);
    }
    return s != DPAR_OK;
}
