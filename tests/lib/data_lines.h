/* SPDX-License-Identifier: MIT-0 */
/* data_lines: reads the files of tests/data/pipeline. */
#ifndef DPAR_DATA_LINES_H
#define DPAR_DATA_LINES_H

/* Copies the lines of NAME.csv except comments, ended by NUL. Returns their bytes. */
static size_t data_lines(const char *name, char *text, size_t room)
{
    static char line[1 << 14];
    char path[128];
    size_t n = 0;
    FILE *f;
    snprintf(path, sizeof path, "tests/data/pipeline/%s.csv", name);
    f = fopen(path, "r");
    CHECK(f != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const size_t k = strlen(line);
        const int fits = n + k < room;
        if (line[0] == '#') {
            continue;
        }
        CHECK(fits);
        if (fits) {
            memcpy(text + n, line, k);
            n += k;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    text[n] = 0;
    return n;
}

#endif
