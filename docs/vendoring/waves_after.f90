! SPDX-License-Identifier: MIT-0
! waves - linear shallow water with rotation on a plane that is periodic in x and y, over MPI.
! After: dpar exchanges.
module plane
    use mpi
    use dpar
    implicit none
    integer, parameter :: nx = 67, ny = 41, steps = 80
    integer :: comm, parts(2), coord(2) ! ranks along x and y, and this one's place
    integer :: mx, my, x0, y0           ! own cells; how many lie before them
    double precision, allocatable, target :: h(:, :), u(:, :), v(:, :)
    type(c_ptr) :: grid, fields(3)

contains

    subroutine exchange_init()
        type(dpar_why) :: why
        if (dpar_mpi_grid_make(comm, &
            desc=dpar_grid_desc_init([nx, ny], 1, star=.true., type=DPAR_F64), &
            grid=grid, why=why) < 0) error stop "exchange: " // dpar_string(why)
        fields = [c_loc(h(1, 1)), c_loc(u(1, 1)), c_loc(v(1, 1))]
    end subroutine

    subroutine step()
        double precision, dimension(mx, my) :: dh, du, dv
        integer :: i, j
        do j = 1, my
            do i = 1, mx
                dh(i, j) = u(i + 1, j) - u(i - 1, j) + v(i, j + 1) - v(i, j - 1)
                du(i, j) = h(i + 1, j) - h(i - 1, j) - 0.2d0 * v(i, j)
                dv(i, j) = h(i, j + 1) - h(i, j - 1) + 0.2d0 * u(i, j)
            end do
        end do
        h(1:mx, 1:my) = h(1:mx, 1:my) - 0.1d0 * dh
        u(1:mx, 1:my) = u(1:mx, 1:my) - 0.1d0 * du
        v(1:mx, 1:my) = v(1:mx, 1:my) - 0.1d0 * dv
    end subroutine

    ! A sum that does not depend on how the plane is cut: of 32 bits of each cell and its place.
    subroutine fingerprint()
        integer, parameter :: long = selected_int_kind(18)
        integer(long) :: mine, all_, bits
        integer :: i, j, rank, error
        mine = 0
        do j = 1, my
            do i = 1, mx
                bits = ieor(transfer(h(i, j), bits), ishftc(transfer(u(i, j), bits), 21))
                bits = ieor(bits, ishftc(transfer(v(i, j), bits), 42))
                bits = ieor(bits, ishft(int(x0 + i + nx * (y0 + j), long), 32))
                mine = mine + iand(ieor(bits, ishft(bits, -32)), 4294967295_long)
            end do
        end do
        call MPI_Reduce(mine, all_, 1, MPI_INTEGER8, MPI_SUM, 0, comm, error)
        call MPI_Comm_rank(comm, rank, error)
        if (rank == 0) write (*, '(a,z16.16)') "waves ", all_
    end subroutine

    ! Of n cells the first mod(n, p) ranks have one more than the others.
    subroutine share(n, p, k, first, cells)
        integer, intent(in) :: n, p, k
        integer, intent(out) :: first, cells
        cells = n / p + merge(1, 0, k < mod(n, p))
        first = k * (n / p) + min(k, mod(n, p))
    end subroutine
end module

program waves
    use plane
    implicit none
    integer :: ranks, rank, error, i, j, t
    call MPI_Init(error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    parts = 0
    call MPI_Dims_create(ranks, 2, parts, error)
    call MPI_Cart_create(MPI_COMM_WORLD, 2, parts, [.true., .true.], .false., comm, error)
    call MPI_Comm_rank(comm, rank, error)
    call MPI_Cart_coords(comm, rank, 2, coord, error)
    call share(nx, parts(1), coord(1), x0, mx)
    call share(ny, parts(2), coord(2), y0, my)
    allocate (h(0:mx + 1, 0:my + 1), u(0:mx + 1, 0:my + 1), v(0:mx + 1, 0:my + 1))
    u = 0
    v = 0
    do j = 1, my
        do i = 1, mx
            h(i, j) = mod((x0 + i) * 7, 13) + mod((y0 + j) * 5, 11)
        end do
    end do
    call exchange_init()
    do t = 1, steps
        if (dpar_grid_exchange_many(grid, fields, 3, 0) < 0) error stop dpar_grid_message(grid)
        call step()
    end do
    call fingerprint()
    if (dpar_grid_free(grid) < 0) error stop "exchange: the end"
    call MPI_Finalize(error)
end program
