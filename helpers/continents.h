/* SPDX-License-Identifier: MIT-0 */
/* continents: a land mask in the shape of the earth, from ellipses with ragged coasts. In integers,
 * so that it is the same on all machines. */
#ifndef CONTINENTS_H
#define CONTINENTS_H

#include <stdint.h>

/* Returns a triangle wave of `at` between -period / 4 and period / 4. */
static inline int64_t wave(int64_t at, int64_t period)
{
    const int64_t phase = (at % period + period) % period;
    const int64_t up = phase < period / 2 ? phase : period - phase;
    return up - period / 4;
}

/* True if a place is land. Both angles are in hundredths of a degree: latitude from -9000 in the
 * south to 9000, longitude from -18000 to 18000. */
static inline int is_land(int64_t latitude, int64_t longitude)
{
    static const struct {
        int16_t latitude, longitude, high, wide; /* centre and half axes, in degrees */
    } ellipse[] = {{50, -105, 21, 33}, {64, -100, 8, 45}, {64, -150, 7, 17}, {23, -101, 10, 9},
                   {11, -84, 4, 7},    {-8, -60, 18, 19}, {-35, -66, 19, 8}, {73, -41, 11, 13},
                   {14, 5, 19, 23},    {15, 30, 17, 13},  {-14, 26, 20, 13}, {-20, 47, 6, 3},
                   {24, 46, 9, 9},     {46, 9, 8, 19},    {61, 16, 8, 9},    {57, 60, 16, 37},
                   {62, 110, 13, 62},  {38, 95, 18, 30},  {21, 78, 12, 8},   {17, 103, 8, 6},
                   {0, 113, 5, 6},     {-1, 102, 4, 5},   {-5, 141, 4, 8},   {-25, 134, 12, 20},
                   {-42, 172, 5, 3},   {37, 138, 5, 3},   {54, -3, 4, 4},    {65, -19, 2, 4},
                   {-92, 0, 19, 400},  {13, 122, 5, 3},   {19, -75, 2, 6},   {75, -90, 6, 18}};
    const int64_t coast = wave(3 * latitude + 2 * longitude, 4000) +
                          wave(7 * latitude - 5 * longitude, 3000) +
                          wave(13 * latitude + 17 * longitude, 2000);
    int i;
    for (i = 0; i < (int)(sizeof ellipse / sizeof *ellipse); i++) {
        const int64_t high = ellipse[i].high, wide = ellipse[i].wide;
        const int64_t y = 10 * (latitude - 100 * ellipse[i].latitude) / high;
        int64_t x = longitude - 100 * ellipse[i].longitude;
        x = 10 * ((x + 54000) % 36000 - 18000) / wide; /* the nearest of its images */
        if (x * x + y * y < 1000000 + 150 * coast) {
            return 1;
        }
    }
    return 0;
}

/* Counts the ocean cells of each block of a grid with rows from north to south. A grid of 720 x
 * 1440 cells has cells of a quarter of a degree. ocean: [blocks]. */
static inline void count_ocean(int64_t rows, int64_t columns, int64_t high, int64_t wide,
                               double *ocean)
{
    const int64_t across = (columns + wide - 1) / wide, blocks = (rows + high - 1) / high * across;
    int64_t i, j;
    for (i = 0; i < blocks; i++) {
        ocean[i] = 0;
    }
    for (i = 0; i < rows; i++) {
        for (j = 0; j < columns; j++) {
            const int64_t latitude = 9000 - 9000 * (2 * i + 1) / rows;
            const int64_t longitude = 18000 * (2 * j + 1) / columns - 18000;
            ocean[i / high * across + j / wide] += !is_land(latitude, longitude);
        }
    }
}

#endif
