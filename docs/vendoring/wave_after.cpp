// SPDX-License-Identifier: MIT-0
// wave - the wave equation in a box, fourth order in space (13 points, halo of 2), periodic in
// x and y, over MPI. After: dpar exchanges.
#include "dpar_halo.h"
#include "dpar_mpi.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

enum { N0 = 14, N1 = 19, N2 = 23, W = 2, STEPS = 40 }; // z, y, x

struct Block {
    MPI_Comm comm;
    int parts[3] = {0, 0, 0}, coord[3], size[3], first[3]; // ranks; own cells; their first
    std::vector<double> now, old;

    std::size_t at(int z, int y, int x) const { // own cells from 0, halo from -W
        return ((std::size_t)(z + W) * (size[1] + 2 * W) + (y + W)) * (size[2] + 2 * W) + (x + W);
    }
};

class Exchange {
    Block &b;

public:
    dpar_grid *grid;

    explicit Exchange(Block &block) : b(block) {
        dpar_grid_desc d = {};
        dpar_why why;
        d.cells[0] = N0;
        d.cells[1] = N1;
        d.cells[2] = N2;
        d.halo = W;
        d.star = 1; // no corners
        d.type = DPAR_F64;
        if (dpar_mpi_grid_make(b.comm, nullptr, &d, &grid, &why) < 0) {
            MPI_Abort(b.comm, dpar_fail(nullptr, &why));
        }
    }

    void operator()() {
        if (dpar_grid_exchange(grid, &b.now[b.at(0, 0, 0)]) < 0) {
            MPI_Abort(b.comm, dpar_fail(grid->comm, nullptr));
        }
    }
};

static void step(Block &b) {
    const std::ptrdiff_t sy = b.size[2] + 2 * W, sz = sy * (b.size[1] + 2 * W);
    for (int z = 0; z < b.size[0]; z++) {
        for (int y = 0; y < b.size[1]; y++) {
            for (int x = 0; x < b.size[2]; x++) {
                const double *u = &b.now[b.at(z, y, x)];
                double near = u[-1] + u[1], far = u[-2] + u[2];
                near += u[-sy] + u[sy] + u[-sz] + u[sz];
                far += u[-2 * sy] + u[2 * sy] + u[-2 * sz] + u[2 * sz];
                double &other = b.old[b.at(z, y, x)];
                other = 2 * *u - other + 0.1 * ((16 * near - far) / 12 - 7.5 * *u);
            }
        }
    }
    b.now.swap(b.old);
}

// A sum that does not depend on how the box is cut: of 32 bits of each cell and its place.
static void fingerprint(const Block &b) {
    unsigned long long mine = 0, all = 0;
    for (int z = 0; z < b.size[0]; z++) {
        for (int y = 0; y < b.size[1]; y++) {
            for (int x = 0; x < b.size[2]; x++) {
                std::uint64_t bits;
                std::memcpy(&bits, &b.now[b.at(z, y, x)], sizeof(bits));
                int place = ((b.first[0] + z) * N1 + b.first[1] + y) * N2 + b.first[2] + x;
                bits ^= (std::uint64_t)place << 32;
                mine += (bits ^ bits >> 32) & 0xffffffffu;
            }
        }
    }
    int rank;
    MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, b.comm);
    MPI_Comm_rank(b.comm, &rank);
    if (rank == 0) {
        std::printf("wave %016llx\n", all);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    Block b;
    const int n[3] = {N0, N1, N2}, ring[3] = {0, 1, 1};
    int ranks, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 3, b.parts);
    MPI_Cart_create(MPI_COMM_WORLD, 3, b.parts, ring, 0, &b.comm);
    MPI_Comm_rank(b.comm, &rank);
    MPI_Cart_coords(b.comm, rank, 3, b.coord);
    for (int d = 0; d < 3; d++) { // the first n % parts ranks have one cell more
        int p = b.coord[d], q = n[d] / b.parts[d], more = n[d] % b.parts[d];
        b.size[d] = q + (p < more);
        b.first[d] = p * q + (p < more ? p : more);
    }
    b.now.assign(b.at(b.size[0] + W - 1, b.size[1] + W - 1, b.size[2] + W - 1) + 1, 0.0);
    b.old = b.now;
    for (int z = 0; z < b.size[0]; z++) {
        for (int y = 0; y < b.size[1]; y++) {
            for (int x = 0; x < b.size[2]; x++) {
                int i = b.first[0] + z, j = b.first[1] + y, k = b.first[2] + x;
                b.now[b.at(z, y, x)] = i * 3 % 5 + j * 5 % 7 + k * 7 % 11;
            }
        }
    }
    b.old = b.now;
    Exchange exchange(b);
    for (int t = 0; t < STEPS; t++) {
        exchange();
        step(b);
    }
    fingerprint(b);
    dpar_grid_free(exchange.grid);
    MPI_Finalize();
    return 0;
}
