/* SPDX-License-Identifier: MIT-0 */
/* gpt_apart A B BOUND: prints how much two checkpoints of train_gpt differ, whatever their types.
 * For the weights and for each array of the optimizer it is the 2-norm of the difference over that
 * of B. Exit code 1 if one is more than BOUND, 2 if the files are not two of the same model. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 32, WHOLE = 16 }; /* see train_files.h; head[2] is the bytes of a number */

static int open_one(const char *name, FILE **file, int64_t *head)
{
    *file = fopen(name, "rb");
    return *file == NULL || fread(head, 8, HEAD, *file) != HEAD ||
           memcmp(head, "dpar-gpt", 8) != 0 || (head[2] != 4 && head[2] != 8);
}

static int next(FILE *file, int64_t bytes, double *x)
{
    float narrow = 0.0f;
    if (bytes == 8) {
        return fread(x, 8, 1, file) != 1;
    }
    if (fread(&narrow, 4, 1, file) != 1) {
        return 1;
    }
    *x = (double)narrow;
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const arrays[] = {"weights", "first moments", "second moments"};
    int64_t head[2][HEAD], i;
    FILE *file[2] = {NULL, NULL};
    int a, far = 0;
    if (argc != 4 || open_one(argv[1], &file[0], head[0]) || open_one(argv[2], &file[1], head[1]) ||
        memcmp(head[0] + 3, head[1] + 3, (HEAD - 4) * 8) != 0 || head[0][WHOLE] < 1) {
        printf("gpt_apart: not two checkpoints of the same model and step\n");
        return 2;
    }
    for (a = 0; a < 3; a++) {
        double apart = 0.0, of = 0.0;
        for (i = 0; i < head[0][WHOLE]; i++) {
            double x, y;
            if (next(file[0], head[0][2], &x) || next(file[1], head[1][2], &y)) {
                printf("gpt_apart: truncated\n");
                return 2;
            }
            apart += (x - y) * (x - y);
            of += y * y;
        }
        apart = sqrt(apart / of);
        printf("%s%s by %.1e", a > 0 ? ", " : "", arrays[a], apart);
        far |= !(apart <= atof(argv[3]));
    }
    printf("\n");
    fclose(file[0]);
    fclose(file[1]);
    return far;
}
