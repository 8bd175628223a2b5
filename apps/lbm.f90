! SPDX-License-Identifier: MIT-0
! lbm - flow in a box whose lid moves, by the lattice-Boltzmann method (D3Q19), domain-parallel: the
! box is cut over ranks, and after each step dpar exchanges what streams over the cuts.
!
!   cc -O2 -I. -c bindings/fortran/dpar.c
!   gfortran -O3 -ffp-contract=off -cpp bindings/fortran/dpar.f90 apps/lbm.f90 dpar.o -o lbm
!   ./lbm 2
!
!   cavity of 64 x 64 x 1 cells, Re 100.0; ranks: 1 x 2 x 1
!     Re 100, u along y:   Marchi     here
!               0.0625  -0.04197  -0.04181
!               0.1250  -0.07713  -0.07684
!               ...
!     Re 100, v along x:   Marchi     here
!               0.0625   0.09481   0.09451
!               ...
!   furthest from Marchi et al., of the lid's speed: u -0.00063 at y = 0.8125, v  0.00074 at x =
!   0.8125
!     Re 100, u along y:     Ghia     here
!     ...
!   steps: 18304; mass gained: -1.1E-16 of all; fingerprint of all bits: 000007EAC54C4272
!   speed: ...
!
! The fingerprint is the same on any number of ranks.
! The same program under a launcher (mpirun -np 4 ./lbm) joins the ranks that were started, over
! shared memory; over MPI: mpicc -O2 -DUSE_MPI for dpar.c and mpif90 -DUSE_MPI for the rest.
!
!   lbm [RANKS] [n=64] [span=1] [re=100] [u=0.1] [steps=N] [until=1e-7] [table] [quiet]
!
! n x n cells across, `span` cells deep: periodic in that direction, which is the flow in the plane;
! span=0 gives a cube with walls all round. It ends after `steps`, or when the velocities at the
! centre lines change by less than `until` of the lid's in n steps. `table`: flows of Re 100, 400
! and 1000 (up to `re`) with 16, 32, ... n cells, a line each.
!
! Method. Two relaxation times (Ginzburg): walls lie half-way between cells when the product of
! (tau+ - 1/2) and (tau- - 1/2) is 3/16, whatever the viscosity. Populations are kept as what they
! differ from those at rest, and equilibria have the density 1 in front of the velocities (He and
! Luo), which is right for steady flow. A population of direction c comes from the cell at -c: it
! needs a halo on that side alone, so each of the 18 that move is a field of its own with a halo of
! width 1 on up to two sides, edges too, no corners; dpar sends all of them as one message a peer.
! 5 of 19 populations go through a face, one through an edge.
!
! The references. C. H. Marchi, R. Suero, L. K. Araki, The lid-driven square cavity flow: numerical
! solution with a 1024 x 1024 grid, J. Braz. Soc. Mech. Sci. Eng. 31 (2009) 186-198: extrapolated,
! right to 1e-6 or better, here to five digits. U. Ghia, K. N. Ghia, C. T. Shin, High-Re solutions
! for incompressible flow using the Navier-Stokes equations and a multigrid method, J. Comput. Phys.
! 48 (1982) 387-411, tables I and II (129 x 129 cells), which everybody compares with; -0.23827 at x
! = 0.9063 for Re 400 lies off the curve of its neighbours and is known as a misprint: left out.
!
! How far the centre lines are from both at their worst points, of the lid's speed, by resolution
! (lbm 2 table n=128 re=1000; the same with u = 0.05 and 0.2):
!
!     Re      n   u: Marchi  v: Marchi  order     u: Ghia    v: Ghia
!    100     16    0.01529    0.01864      -     0.01453    0.01068
!    100     32    0.00328    0.00388    2.3     0.00281    0.00597
!    100     64    0.00063    0.00074    2.4     0.00439    0.00865
!    100    128    0.00013    0.00015    2.3     0.00484    0.00914
!    400     32    0.03253    0.03770      -     0.03152    0.02709
!    400     64    0.00621    0.00709    2.4     0.00550    0.00192
!    400    128    0.00130    0.00153    2.2     0.00275    0.00484
!   1000     64    0.01855    0.02753      -     0.01676    0.00871
!   1000    128    0.00365    0.00579    2.2     0.00449    0.01252
!
! It falls with the square of the cells towards Marchi's. Ghia's table is itself up to 0.009 off at
! Re 100: where both tables have a point, at 1/2, they differ by 0.0033 and 0.0030, and its least v,
! -0.24533, is -0.25380 by Botella and Peyret (Comput. Fluids 27 (1998) 421-433), -0.25377 by
! Marchi's nearest point.
!
! Exit code: 0 fine, 1 an error, 2 bad input (one message on stderr).
module cavity
    use, intrinsic :: iso_fortran_env, only: error_unit, output_unit
    use dpar
    implicit none
    integer, parameter :: q = 18, fields = 18, wp = c_double
    ! Directions in pairs: 2k is opposite to 2k - 1. The first six go through faces.
    integer, parameter :: cx(0:q) = [0, 1, -1, 0, 0, 0, 0, 1, -1, 1, -1, 1, -1, 1, -1, 0, 0, 0, 0]
    integer, parameter :: cy(0:q) = [0, 0, 0, 1, -1, 0, 0, 1, -1, -1, 1, 0, 0, 0, 0, 1, -1, 1, -1]
    integer, parameter :: cz(0:q) = [0, 0, 0, 0, 0, 1, -1, 0, 0, 0, 0, 1, -1, -1, 1, 1, -1, -1, 1]
    real(wp), parameter :: w_rest = 1.0_wp / 3, w_face = 1.0_wp / 18, w_edge = 1.0_wp / 36

    type settings
        integer :: ranks = 0, n = 64, span = 1, steps = 0 ! ranks 0: 1, or what a launcher says
        real(wp) :: re = 100, u = 0.1_wp, until = 1e-7_wp
        logical :: table = .false., quiet = .false., silent = .false.
    end type
    type(settings), target :: chosen
    character(len=*), parameter :: usage = &
        "lbm [RANKS] [n=64] [span=1] [re=100] [u=0.1] [steps=N] [until=1e-7] [table] [quiet]"
    character(len=6), parameter :: author(2) = ["Marchi", "Ghia  "]
    real, parameter :: missing = -9
    type(dpar_why) :: why

    ! One rank's part of the box.
    type block
        type(c_ptr) :: world = c_null_ptr, x(2) = c_null_ptr
        integer :: extent(3), lower(3), upper(3) ! cells of the whole; of this rank, both included
        integer :: parts(3)                      ! ranks along x, y, z
        logical :: any = .false.                 ! has this rank cells?
        real(wp), pointer :: f(:, :, :, :) => null(), g(:, :, :, :) => null()
        type(c_ptr) :: memory(2) = c_null_ptr
    end type

contains

    subroutine need(status, what)
        integer(c_int32_t), intent(in) :: status
        character(len=*), intent(in) :: what
        if (status >= 0) return
        write (error_unit, '(4a)') "lbm: " // what // ": ", &
            dpar_string(dpar_status_text(status)), ": ", dpar_string(why)
        stop 1, quiet=.true.
    end subroutine

    ! Cuts the box over the ranks: dims of dpar are z, y, x; a span of one cell is not cut.
    subroutine cut(s, b, halo)
        type(settings), intent(in) :: s
        type(block), intent(inout) :: b
        type(dpar_halo), intent(out) :: halo
        type(dpar_mesh) :: mesh
        type(dpar_cart_choose_desc) :: grid
        type(dpar_placement) :: placement(3)
        type(dpar_box) :: box
        integer(c_int64_t) :: cells(3)
        integer(c_int32_t) :: parts(3)
        integer :: d
        b%extent = [s%n, s%n, merge(s%n, s%span, s%span == 0)]
        cells = b%extent(3:1:-1)
        parts = 0
        grid%ranks = dpar_comm_size(b%world)
        grid%dims = 3
        grid%cells(:2) = cells
        grid%weight(:2) = [1, 1, 4] ! faces across x lie in pieces of one number
        call need(dpar_cart_choose_parts(grid, parts, why=why), "a grid of ranks")
        b%parts = parts(3:1:-1)
        call need(dpar_mesh_init_names(mesh, ["z", "y", "x"], parts, DPAR_ORDER_LAST_FASTEST, 0, why), "mesh")
        do d = 1, 3
            placement(d) = dpar_shard_by(d - 1, DPAR_SPLIT_EVEN, 0_c_int64_t)
        end do
        call need(dpar_layout_init(halo%grid, mesh, 3, cells, placement, why=why), "layout")
        halo%shape = DPAR_STENCIL_BOX
        halo%low(0:2) = 1
        halo%high(0:2) = 1
        halo%periodic = merge(1, 0, s%span > 0) ! bit 0: z
        call need(dpar_halo_check(halo, why), "halo")
        b%any = dpar_halo_owned(halo, dpar_comm_rank(b%world), box) /= 0
        if (b%any) call dpar_box_bounds(box, b%lower, b%upper)
    end subroutine

    ! Two sets of populations with one more cell all round, in memory that other ranks reach, and
    ! for each a plan of what streams in.
    subroutine prepare(b, halo, halos, field)
        type(block), intent(inout) :: b
        type(dpar_halo), intent(in) :: halo
        type(dpar_halo), intent(inout), target :: halos(fields)
        type(dpar_halo_field), intent(inout), target :: field(fields, 2)
        real(wp), pointer :: flat(:)
        integer(c_int64_t) :: bytes, cells
        integer :: set, i
        cells = product(int(b%upper - b%lower + 3, c_int64_t))
        if (.not. b%any) cells = 0
        do set = 1, 2
            flat => null()
            bytes = (q + 1) * cells * 8
            if (b%any) then
                call need(dpar_comm_alloc(b%world, bytes, b%memory(set)), "memory for the cells")
                call c_f_pointer(b%memory(set), flat, [(q + 1) * cells])
                flat = 0
                associate (l => b%lower - 1, h => b%upper + 1)
                    if (set == 1) b%f(l(1):h(1), l(2):h(2), l(3):h(3), 0:q) => flat
                    if (set == 2) b%g(l(1):h(1), l(2):h(2), l(3):h(3), 0:q) => flat
                end associate
            end if
            do i = 1, q
                halos(i) = halo
                halos(i)%low(0:2) = merge(1, 0, [cz(i), cy(i), cx(i)] > 0)
                halos(i)%high(0:2) = merge(1, 0, [cz(i), cy(i), cx(i)] < 0)
                field(i, set)%halo = c_loc(halos(i))
                field(i, set)%type = DPAR_F64
                if (.not. b%any) cycle
                field(i, set)%data = c_loc(flat(i * cells + 1))
                call dpar_halo_field_bounds(field(i, set), dpar_comm_rank(b%world), b%lower - 1, b%upper + 1)
            end do
            call plan(b, field(:, set), b%x(set))
        end do
    end subroutine

    subroutine plan(b, field, x)
        type(block), intent(in) :: b
        type(dpar_halo_field), intent(in), target :: field(fields)
        type(c_ptr), intent(inout) :: x
        type(dpar_halo_plan_desc) :: options
        options%field = c_loc(field)
        options%field_count = fields
        call need(dpar_halo_plan_make(b%world, options, x, why), "exchange")
    end subroutine

    ! What comes back from the walls stands in the cells beyond them, so that `advance` has no
    ! walls: half-way bounce-back, with what the lid gives. For box: the cells that read it.
    ! What comes back from the lid's two ends gets nothing from it: the side walls are there too. It
    ! would carry a mass of u / 6 a step in at one corner and out at the other, a flow of u / 6n
    ! through all of the box, and errors would fall with 1/n alone.
    subroutine reflect(b, f, u, lower, upper)
        type(block), intent(in) :: b
        real(wp), intent(inout), pointer :: f(:, :, :, :)
        real(wp), intent(in) :: u
        integer, intent(in) :: lower(3), upper(3)
        integer :: side, d, at(3), first(3), last(3)
        do d = 1, 3
            if (d == 3 .and. b%extent(3) /= b%extent(1)) cycle
            do side = 1, 2
                first = lower
                last = upper
                at = [1, 1, 1]
                if (side == 2) at = b%extent
                if (at(d) < lower(d) .or. at(d) > upper(d)) cycle
                first(d) = at(d)
                last(d) = at(d)
                call reflect_plane(b, f, u, first, last, d, side)
            end do
        end do
    end subroutine

    subroutine reflect_plane(b, f, u, first, last, d, side)
        type(block), intent(in) :: b
        real(wp), intent(inout), pointer :: f(:, :, :, :)
        real(wp), intent(in) :: u
        integer, intent(in) :: first(3), last(3), d, side
        integer :: i, o, x, y, z, c(3), at(3)
        real(wp) :: lid
        do i = 1, q
            c = [cx(i), cy(i), cz(i)]
            if (c(d) /= merge(1, -1, side == 1)) cycle
            o = merge(i + 1, i - 1, mod(i, 2) == 1)
            do z = first(3), last(3)
                do y = first(2), last(2)
                    do x = first(1), last(1)
                        at = [x, y, z] - c
                        lid = 0
                        if (at(2) > b%extent(2) .and. at(1) >= 1 .and. at(1) <= b%extent(1)) &
                            lid = 6 * merge(w_face, w_edge, i <= 6) * c(1) * u
                        f(at(1), at(2), at(3), i) = f(x, y, z, o) + lid
                    end do
                end do
            end do
        end do
    end subroutine

    ! One step of the cells of a box: populations come from their upstream cells and collide.
    subroutine advance(f, g, lower, upper, plus, minus)
        real(wp), intent(in), pointer :: f(:, :, :, :)
        real(wp), intent(inout), pointer :: g(:, :, :, :)
        integer, intent(in) :: lower(3), upper(3)
        real(wp), intent(in) :: plus, minus
        integer :: y, z
        do z = lower(3), upper(3)
            do y = lower(2), upper(2)
                call advance_row(lbound(f), ubound(f), f, g, lower(1), upper(1), y, z, plus, minus)
            end do
        end do
    end subroutine

    subroutine advance_row(l, h, f, g, first, last, y, z, plus, minus)
        integer, intent(in) :: l(4), h(4), first, last, y, z
        real(wp), intent(in) :: f(l(1):h(1), l(2):h(2), l(3):h(3), 0:q), plus, minus
        real(wp), intent(inout) :: g(l(1):h(1), l(2):h(2), l(3):h(3), 0:q)
        real(wp) :: p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, &
                  p17, p18
        real(wp) :: rho, u, v, w, base
        integer :: x
        !GCC$ ivdep
        do x = first, last
            p0 = f(x, y, z, 0)
            p1 = f(x - 1, y, z, 1)
            p2 = f(x + 1, y, z, 2)
            p3 = f(x, y - 1, z, 3)
            p4 = f(x, y + 1, z, 4)
            p5 = f(x, y, z - 1, 5)
            p6 = f(x, y, z + 1, 6)
            p7 = f(x - 1, y - 1, z, 7)
            p8 = f(x + 1, y + 1, z, 8)
            p9 = f(x - 1, y + 1, z, 9)
            p10 = f(x + 1, y - 1, z, 10)
            p11 = f(x - 1, y, z - 1, 11)
            p12 = f(x + 1, y, z + 1, 12)
            p13 = f(x - 1, y, z + 1, 13)
            p14 = f(x + 1, y, z - 1, 14)
            p15 = f(x, y - 1, z - 1, 15)
            p16 = f(x, y + 1, z + 1, 16)
            p17 = f(x, y - 1, z + 1, 17)
            p18 = f(x, y + 1, z - 1, 18)
            u = (p1 - p2) + ((p7 - p8) + (p9 - p10)) + ((p11 - p12) + (p13 - p14))
            v = (p3 - p4) + ((p7 - p8) - (p9 - p10)) + ((p15 - p16) + (p17 - p18))
            w = (p5 - p6) + ((p11 - p12) - (p13 - p14)) + ((p15 - p16) - (p17 - p18))
            rho = p0 + ((p1 + p2) + (p3 + p4) + (p5 + p6)) + ((p7 + p8) + (p9 + p10)) + &
                  ((p11 + p12) + (p13 + p14)) + ((p15 + p16) + (p17 + p18))
            base = rho - 1.5_wp * (u * u + v * v + w * w)
            g(x, y, z, 0) = p0 - plus * (p0 - w_rest * base)
            call pair(p1, p2, w_face, u, base, plus, minus, g(x, y, z, 1), g(x, y, z, 2))
            call pair(p3, p4, w_face, v, base, plus, minus, g(x, y, z, 3), g(x, y, z, 4))
            call pair(p5, p6, w_face, w, base, plus, minus, g(x, y, z, 5), g(x, y, z, 6))
            call pair(p7, p8, w_edge, u + v, base, plus, minus, g(x, y, z, 7), g(x, y, z, 8))
            call pair(p9, p10, w_edge, u - v, base, plus, minus, g(x, y, z, 9), g(x, y, z, 10))
            call pair(p11, p12, w_edge, u + w, base, plus, minus, g(x, y, z, 11), g(x, y, z, 12))
            call pair(p13, p14, w_edge, u - w, base, plus, minus, g(x, y, z, 13), g(x, y, z, 14))
            call pair(p15, p16, w_edge, v + w, base, plus, minus, g(x, y, z, 15), g(x, y, z, 16))
            call pair(p17, p18, w_edge, v - w, base, plus, minus, g(x, y, z, 17), g(x, y, z, 18))
        end do
    end subroutine

    ! Two opposite populations a and b: their sum and their difference relax at two rates.
    pure subroutine pair(a, b, weight, cu, base, plus, minus, to_a, to_b)
        real(wp), intent(in) :: a, b, weight, cu, base, plus, minus
        real(wp), intent(out) :: to_a, to_b
        real(wp) :: even, odd
        even = plus * (0.5_wp * (a + b) - weight * (base + 4.5_wp * cu * cu))
        odd = minus * (0.5_wp * (a - b) - weight * 3 * cu)
        to_a = a - even - odd
        to_b = b - even + odd
    end subroutine

    ! One step: cells that need nothing from others while it comes, the rest after that.
    subroutine step(b, halo, x, f, g, u, plus, minus)
        type(block), intent(in) :: b
        type(dpar_halo), intent(in) :: halo
        type(c_ptr), intent(in) :: x
        real(wp), intent(inout), pointer :: f(:, :, :, :), g(:, :, :, :)
        real(wp), intent(in) :: u, plus, minus
        type(dpar_box) :: box
        integer :: lower(3), upper(3), n
        call need(dpar_halo_plan_begin(x), "begin")
        if (b%any) then
            call reflect(b, f, u, b%lower, b%upper)
            if (dpar_halo_interior(halo, dpar_comm_rank(b%world), box) /= 0) then
                call dpar_box_bounds(box, lower, upper)
                call advance(f, g, lower, upper, plus, minus)
            end if
        end if
        call need(dpar_halo_plan_end(x), "end")
        n = 0
        do while (dpar_halo_boundary(halo, dpar_comm_rank(b%world), n, box) /= 0)
            call dpar_box_bounds(box, lower, upper)
            call advance(f, g, lower, upper, plus, minus)
            n = n + 1
        end do
    end subroutine

    ! Velocities along the centre lines of the middle plane, the same on all ranks: u(y) at x = 1/2
    ! in line(:, 1), v(x) at y = 1/2 in line(:, 2); for even n the middle is a face between cells.
    ! Collisions keep momentum: it does not matter that populations are those before streaming.
    subroutine centre_lines(b, f, line)
        type(block), intent(in) :: b
        real(wp), intent(in), pointer :: f(:, :, :, :)
        real(wp), intent(out) :: line(:, :)
        real(wp), target :: mine(b%extent(1), 4), all(b%extent(1), 4)
        integer :: x, y, z, k, middle(2)
        mine = 0
        z = (b%extent(3) + 1) / 2
        middle = [(b%extent(1) + 1) / 2, b%extent(1) / 2 + 1]
        if (b%any) then
            if (z >= b%lower(3) .and. z <= b%upper(3)) then
                do y = b%lower(2), b%upper(2)
                    do x = b%lower(1), b%upper(1)
                        do k = 1, 2
                            if (x == middle(k)) mine(y, k) = sum(f(x, y, z, 0:q) * cx)
                            if (y == middle(k)) mine(x, 2 + k) = sum(f(x, y, z, 0:q) * cy)
                        end do
                    end do
                end do
            end if
        end if
        ! one rank has the number, the others 0: no rounding
        call need(dpar_all_reduce(b%world, c_loc(mine), c_loc(all), int(size(mine), c_int64_t), &
                                  DPAR_F64, DPAR_SUM), "centre lines")
        line(:, 1) = 0.5_wp * (all(:, 1) + all(:, 2))
        line(:, 2) = 0.5_wp * (all(:, 3) + all(:, 4))
    end subroutine

    ! Sums that do not depend on how the box is cut: mass in units of 2^-44 (what the density sum
    ! differs from 1 a cell), and a fingerprint of all bits of all populations.
    subroutine sums(b, f, mass, bits)
        type(block), intent(in) :: b
        real(wp), intent(in), pointer :: f(:, :, :, :)
        real(wp), intent(out) :: mass
        integer(c_int64_t), intent(out) :: bits
        integer(c_int64_t), target :: mine(2), all(2)
        integer(c_int64_t) :: cell, h
        integer :: x, y, z, i
        mine = 0
        if (b%any) then
            do z = b%lower(3), b%upper(3)
                do y = b%lower(2), b%upper(2)
                    do x = b%lower(1), b%upper(1)
                        mine(1) = mine(1) + nint(sum(f(x, y, z, 0:q)) * 2.0_wp**44, c_int64_t)
                        cell = x + b%extent(1) * (y + int(b%extent(2), c_int64_t) * z)
                        h = ishft(cell, 5)
                        do i = 0, q
                            h = ieor(ishftc(h, 7), transfer(f(x, y, z, i), h))
                            h = ieor(h, ishft(h, -29))
                        end do
                        mine(2) = mine(2) + iand(ieor(h, ishft(h, -32)), 4294967295_c_int64_t)
                    end do
                end do
            end do
        end if
        call need(dpar_all_reduce(b%world, c_loc(mine), c_loc(all), 2_c_int64_t, DPAR_I64, &
                                  DPAR_SUM), "sums")
        mass = real(all(1), wp) / 2.0_wp**44
        bits = all(2)
    end subroutine

    ! ---- the references ----

    ! Where, and the velocity over the lid's: u along y (line 1), v along x (line 2).
    subroutine reference(source, re, line, at, value)
        integer, intent(in) :: source, re, line
        real(wp), intent(out) :: at(15), value(15)
        integer :: i
        if (source == 1) then
            at = [(i / 16.0_wp, i=1, 15)]
        else if (line == 1) then
            at = [7, 8, 9, 13, 22, 36, 58, 64, 79, 94, 109, 122, 123, 124, 125] / 128.0_wp
        else
            at = [8, 9, 10, 12, 20, 29, 30, 64, 103, 110, 116, 121, 122, 123, 124] / 128.0_wp
        end if
        select case (100 * re + 10 * source + line)
        case (10011)
            value = [-0.04197, -0.07713, -0.10982, -0.14193, -0.17271, -0.19847, -0.21296, &
                     -0.20915, -0.18208, -0.13126, -0.06025, 0.02787, 0.14043, 0.31056, 0.59747]
        case (10012)
            value = [0.09481, 0.14924, 0.17434, 0.17924, 0.16913, 0.14573, 0.10878, 0.05754, &
                     -0.00775, -0.08407, -0.16301, -0.22783, -0.25377, -0.21869, -0.12332]
        case (40011)
            value = [-0.09260, -0.17875, -0.26392, -0.32123, -0.32025, -0.26631, -0.19073, &
                     -0.11505, -0.04257, 0.03024, 0.10546, 0.18131, 0.25220, 0.31683, 0.46958]
        case (40012)
            value = [0.18513, 0.26225, 0.29748, 0.30096, 0.26831, 0.20657, 0.13057, 0.05206, &
                     -0.02471, -0.10088, -0.18211, -0.28099, -0.40004, -0.44901, -0.27035]
        case (100011)
            value = [-0.20233, -0.34785, -0.38441, -0.31895, -0.24569, -0.18373, -0.12341, &
                     -0.06206, 0.00056, 0.06525, 0.13357, 0.20791, 0.28844, 0.36255, 0.42293]
        case (100012)
            value = [0.28071, 0.36504, 0.36785, 0.30710, 0.23127, 0.16056, 0.09297, 0.02580, &
                     -0.04184, -0.11080, -0.18168, -0.25338, -0.33157, -0.46778, -0.45615]
        case (10021)
            value = [-0.03717, -0.04192, -0.04775, -0.06434, -0.10150, -0.15662, -0.21090, &
                     -0.20581, -0.13641, 0.00332, 0.23151, 0.68717, 0.73722, 0.78871, 0.84123]
        case (10022)
            value = [0.09233, 0.10091, 0.10890, 0.12317, 0.16077, 0.17507, 0.17527, 0.05454, &
                     -0.24533, -0.22445, -0.16914, -0.10313, -0.08864, -0.07391, -0.05906]
        case (40021)
            value = [-0.08186, -0.09266, -0.10338, -0.14612, -0.24299, -0.32726, -0.17119, &
                     -0.11477, 0.02135, 0.16256, 0.29093, 0.55892, 0.61756, 0.68439, 0.75837]
        case (40022)
            value = [0.18360, 0.19713, 0.20920, 0.22965, 0.28124, 0.30203, 0.30174, 0.05186, &
                     -0.38598, -0.44993, missing, -0.22847, -0.19254, -0.15663, -0.12146]
        case (100021)
            value = [-0.18109, -0.20196, -0.22220, -0.29730, -0.38289, -0.27805, -0.10648, &
                     -0.06080, 0.05702, 0.18719, 0.33304, 0.46604, 0.51117, 0.57492, 0.65928]
        case (100022)
            value = [0.27485, 0.29012, 0.30353, 0.32627, 0.37095, 0.33075, 0.32235, 0.02526, &
                     -0.31966, -0.42665, -0.51550, -0.39188, -0.33714, -0.27669, -0.21388]
        case default
            value = missing
        end select
    end subroutine

    ! The velocity at `at` (0..1) by a cubic through the four nearest cells, walls among them.
    real(wp) function between(line, at, at_0, at_1)
        real(wp), intent(in) :: line(:), at, at_0, at_1
        real(wp) :: place(0:size(line) + 1), value(0:size(line) + 1), term
        integer :: n, i, j, k
        n = size(line)
        place = [0.0_wp, [((i - 0.5_wp) / n, i=1, n)], 1.0_wp]
        value = [at_0, line, at_1]
        k = max(0, min(n - 2, int(at * n + 0.5_wp) - 1))
        between = 0
        do i = k, k + 3
            term = value(i)
            do j = k, k + 3
                if (j /= i) term = term * (at - place(j)) / (place(i) - place(j))
            end do
            between = between + term
        end do
    end function

    ! How far the centre lines are from each reference at its worst point: most(line, source).
    subroutine compare(s, line, say, most)
        type(settings), intent(in) :: s
        real(wp), intent(in) :: line(:, :)
        logical, intent(in) :: say
        real(wp), intent(out) :: most(2, 2)
        character(len=1), parameter :: name(2) = ["u", "v"], along(2) = ["y", "x"]
        real(wp) :: at(15), value(15), mine, off, where_(2)
        integer :: source, k, i
        most = 0
        do source = 1, 2
            do k = 1, 2
                call reference(source, nint(s%re), k, at, value)
                if (s%span == 0 .or. all(value == missing)) return
                if (say .and. .not. s%quiet) write (*, '(a,i0,6a)') "  Re ", nint(s%re), ", ", &
                    name(k), " along ", along(k), ":   " // adjustr(author(source)), "     here"
                do i = 1, 15
                    if (value(i) == missing) cycle
                    mine = between(line(:, k) / s%u, at(i), 0.0_wp, merge(1.0_wp, 0.0_wp, k == 1))
                    off = mine - value(i)
                    if (abs(off) > abs(most(k, source))) where_(k) = at(i)
                    if (abs(off) > abs(most(k, source))) most(k, source) = off
                    if (say .and. .not. s%quiet) write (*, '(f18.4,2f10.5)') at(i), value(i), mine
                end do
            end do
            if (say) write (*, '(2(a,f8.5,3a,f6.4))') "furthest from " // trim(author(source)) // &
                " et al., of the lid's speed: u ", most(1, source), " at ", along(1), " = ", &
                where_(1), ", v ", most(2, source), " at ", along(2), " = ", where_(2)
        end do
    end subroutine

    ! ---- one rank ----

    integer(c_int) function rank_main(world, arg) bind(c)
        type(c_ptr), value :: world, arg
        type(settings), pointer :: s
        real(wp) :: most(2, 2)
        call c_f_pointer(arg, s)
        if (s%table) then
            call table(world, s)
        else
            call flow(world, s, most)
        end if
        rank_main = 0
    end function

    ! How far flows of different Reynolds numbers are from the references, by resolution.
    subroutine table(world, s)
        type(c_ptr), intent(in) :: world
        type(settings), intent(in) :: s
        type(settings) :: each
        integer, parameter :: numbers(3) = [100, 400, 1000], coarsest(3) = [16, 32, 64]
        real(wp) :: most(2, 2), before(2)
        character(len=7) :: order
        integer :: k
        logical :: first
        first = dpar_comm_rank(world) == 0
        if (first) write (*, '(a)') &
            "    Re      n   u: Marchi  v: Marchi  order     u: Ghia    v: Ghia"
        each = s
        each%quiet = .true.
        each%silent = .true.
        do k = 1, size(numbers)
            if (numbers(k) > s%re) exit
            each%re = numbers(k)
            each%n = coarsest(k)
            do while (each%n <= s%n)
                call flow(world, each, most)
                order = "      -"
                if (each%n > coarsest(k)) write (order, '(f7.1)') &
                    log(maxval(abs(before)) / maxval(abs(most(:, 1)))) / log(2.0_wp)
                if (first) write (*, '(i6,i7,2f11.5,a,1x,2f11.5)') numbers(k), each%n, &
                    abs(most(:, 1)), order, abs(most(:, 2))
                flush (6)
                before = most(:, 1)
                each%n = 2 * each%n
            end do
        end do
    end subroutine

    subroutine flow(world, s, most)
        type(c_ptr), intent(in) :: world
        type(settings), intent(in) :: s
        real(wp), intent(out) :: most(2, 2)
        type(block) :: b
        type(dpar_halo), target :: halo, halos(fields)
        type(dpar_halo_field), target :: field(fields, 2)
        real(wp), allocatable :: line(:, :)
        real(wp) :: mass, cells
        integer(c_int64_t) :: bits, began, ended, rate
        integer :: t
        logical :: say
        b%world = world
        say = dpar_comm_rank(world) == 0 .and. .not. s%silent
        call cut(s, b, halo)
        call prepare(b, halo, halos, field)
        allocate (line(s%n, 2))
        if (say) write (*, '(3(a,i0),a,f0.1,3(a,i0),a,i0)') "cavity of ", b%extent(1), &
            " x ", b%extent(2), " x ", b%extent(3), " cells, Re ", s%re, "; ranks: ", b%parts(1), &
            " x ", b%parts(2), " x ", b%parts(3)
        call system_clock(began, rate)
        call run(s, b, halo, line, t)
        call system_clock(ended)
        call sums(b, b%f, mass, bits)
        call compare(s, line, say, most)
        if (say) then
            cells = product(real(b%extent, wp))
            write (*, '(a,i0,a,es8.1,a,z16.16)') "steps: ", t, "; mass gained: ", mass / cells, &
                " of all; fingerprint of all bits: ", bits
            write (*, '(a,f0.2,a,i0,a)') "speed: ", cells * t / 1e6_wp * rate / (ended - began), &
                " million cells a second on ", dpar_comm_size(world), " ranks"
            flush (6)
        end if
        do t = 1, 2
            call need(dpar_halo_plan_free(b%x(t)), "free")
            call dpar_comm_release(b%world, b%memory(t))
        end do
    end subroutine

    subroutine run(s, b, halo, line, t)
        type(settings), intent(in) :: s
        type(block), intent(inout) :: b
        type(dpar_halo), intent(in) :: halo
        real(wp), intent(out) :: line(:, :)
        integer, intent(out) :: t
        real(wp) :: old(size(line, 1), 2), plus, minus, change
        ! nu = (1 / plus - 1/2) / 3
        plus = 1 / (3 * s%u * s%n / s%re + 0.5_wp)
        minus = 1 / (0.1875_wp / (1 / plus - 0.5_wp) + 0.5_wp)
        old = 0
        t = 0
        do
            call step(b, halo, b%x(1), b%f, b%g, s%u, plus, minus)
            call step(b, halo, b%x(2), b%g, b%f, s%u, plus, minus)
            t = t + 2
            if (s%steps > 0 .and. t >= s%steps) exit
            if (s%steps > 0 .or. mod(t, 2 * s%n) /= 0) cycle
            call centre_lines(b, b%f, line)
            call steady(b, line, t)
            change = maxval(abs(line - old)) / s%u / 2
            old = line
            if (change < s%until) exit
        end do
        call centre_lines(b, b%f, line)
        call steady(b, line, t)
    end subroutine

    ! Nothing is faster than a cell a step, or no number at all: then the flow has blown up.
    subroutine steady(b, line, t)
        type(block), intent(in) :: b
        real(wp), intent(in) :: line(:, :)
        integer, intent(in) :: t
        if (all(abs(line) < 1)) return
        if (dpar_comm_rank(b%world) == 0) write (error_unit, '(a,i0,a)') &
            "lbm: blown up by step ", t, ": more cells, a smaller re or u"
        flush (error_unit)
        call need(dpar_barrier(b%world), "barrier")
        stop 1, quiet=.true.
    end subroutine

    ! What the words say; *fault: a sentence, blank when all is fine.
    subroutine parse(s, fault)
        type(settings), intent(inout) :: s
        character(len=*), intent(out) :: fault
        character(len=80) :: word
        integer :: i, length
        fault = ""
        do i = 1, command_argument_count()
            call get_command_argument(i, word, length)
            if (word == "--help" .or. word == "-h") then
                write (output_unit, '(a)') usage
                stop
            end if
            if (length > len(word)) fault = "no setting is as long as '" // word // "...'"
            if (fault == "" .and. again(i)) fault = "'" // trim(word) // "' is the second of its kind"
            if (fault == "") call setting(s, word, fault)
            if (fault /= "") return
        end do
        if (s%table .and. (s%n < 16 .or. s%re < 100)) fault = "a table begins with n=16 and re=100"
        if (s%span == s%n) fault = "span is n: span=0 is the cube with walls all round"
    end subroutine

    ! Does an earlier word set the same?
    logical function again(i)
        integer, intent(in) :: i
        character(len=80) :: word, before
        integer :: k
        again = .false.
        call get_command_argument(i, word)
        do k = 1, i - 1
            call get_command_argument(k, before)
            again = again .or. name_of(before) == name_of(word)
        end do
    end function

    ! `n=` of n=64; of a number of ranks nothing.
    character(len=80) function name_of(word)
        character(len=*), intent(in) :: word
        name_of = word(:index(word, "="))
        if (name_of == "" .and. verify(trim(word), "+-0123456789") /= 0) name_of = word
    end function

    subroutine setting(s, word, fault)
        type(settings), intent(inout) :: s
        character(len=*), intent(in) :: word
        character(len=*), intent(inout) :: fault
        select case (name_of(word))
        case ("n="); call whole(word, "n", 4, 4096, s%n, fault)
        case ("span="); call whole(word, "span", 0, 4096, s%span, fault)
        case ("steps="); call whole(word, "steps", 0, 1000000000, s%steps, fault)
        case (""); call whole(word, "the number of ranks", 1, 1024, s%ranks, fault)
        case ("re="); call real_number(word, "re", 0.01_wp, 1e5_wp, s%re, fault)
        case ("u="); call real_number(word, "u", 0.001_wp, 0.3_wp, s%u, fault)
        case ("until="); call real_number(word, "until", 1e-15_wp, 1.0_wp, s%until, fault)
        case ("table"); s%table = .true.
        case ("quiet"); s%quiet = .true.
        case default; fault = "'" // trim(word) // "' is no setting: " // usage
        end select
    end subroutine

    subroutine whole(word, what, least, most, number, fault)
        character(len=*), intent(in) :: word, what
        integer, intent(in) :: least, most
        integer, intent(inout) :: number
        character(len=*), intent(inout) :: fault
        character(len=24) :: text(2)
        integer :: at, wrong, value
        at = index(word, "=") + 1
        value = least - 1
        wrong = verify(trim(word(at:)), "+-0123456789")
        if (wrong == 0) read (word(at:), *, iostat=wrong) value
        if (wrong == 0 .and. value >= least .and. value <= most) then
            number = value
            return
        end if
        write (text, '(i0)') least, most
        fault = what // " is a whole number from " // trim(text(1)) // " to " // trim(text(2)) // &
            ", not '" // trim(word(at:)) // "'"
    end subroutine

    subroutine real_number(word, what, least, most, number, fault)
        character(len=*), intent(in) :: word, what
        real(wp), intent(in) :: least, most
        real(wp), intent(inout) :: number
        character(len=*), intent(inout) :: fault
        character(len=24) :: text(2)
        real(wp) :: value
        integer :: at, wrong
        at = index(word, "=") + 1
        value = -1
        wrong = verify(trim(word(at:)), "+-0123456789.eEdD")
        if (wrong == 0) read (word(at:), *, iostat=wrong) value
        if (wrong == 0 .and. value >= least .and. value <= most) then
            number = value
            return
        end if
        write (text, '(es7.1)') least, most
        fault = what // " is a number from " // trim(text(1)) // " to " // trim(text(2)) // &
            ", not '" // trim(word(at:)) // "'"
    end subroutine

    ! Is there a cell for each rank, also in the smallest box?
    subroutine fit(s, fault)
        type(settings), intent(in) :: s
        character(len=*), intent(inout) :: fault
        type(dpar_cart_choose_desc) :: grid
        integer(c_int32_t) :: parts(3)
        integer(c_int64_t) :: n
        n = merge(min(s%n, 16), s%n, s%table)
        parts = 0
        grid%ranks = s%ranks
        grid%dims = 3
        grid%cells(:2) = [merge(n, int(s%span, c_int64_t), s%span == 0), n, n]
        grid%weight(:2) = [1, 1, 4]
        if (dpar_cart_choose_parts(grid, parts, why=why) < 0) fault = dpar_string(why)
    end subroutine
end module

program lbm
    use cavity
#ifdef USE_MPI
    use mpi
#endif
    implicit none
#ifndef USE_MPI
    type(dpar_launcher_info) :: job
#endif
    type(c_ptr) :: world
    character(len=400) :: fault
    integer :: result, rank = 0, ranks = 0
    call parse(chosen, fault)
#ifdef USE_MPI
    call MPI_Init(result)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, result)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, result)
#else
    call need(dpar_launcher_detect(job, why), "launcher")
    if (job%kind /= DPAR_LAUNCHER_NONE) then
        rank = job%rank
        ranks = job%size
    end if
#endif
    if (fault == "" .and. ranks > 0 .and. chosen%ranks > 0 .and. chosen%ranks /= ranks) &
        fault = "under a launcher its own option says how many ranks there are"
    if (chosen%ranks == 0) chosen%ranks = max(ranks, 1)
    if (fault == "") call fit(chosen, fault)
    if (fault /= "") then
        if (rank == 0) write (error_unit, '(2a)') "lbm: ", trim(fault)
#ifdef USE_MPI
        call MPI_Finalize(result)
#endif
        stop 2, quiet=.true.
    end if
#ifdef USE_MPI
    call need(dpar_mpi_make(MPI_COMM_WORLD, comm=world, why=why), "MPI")
    if (rank_main(world, c_loc(chosen)) /= 0) stop 1, quiet=.true.
    call need(dpar_comm_free(world), "close")
    call MPI_Finalize(result)
#else
    if (job%kind /= DPAR_LAUNCHER_NONE) then
        call need(dpar_init(world, why=why), "world")
        result = rank_main(world, c_loc(chosen))
        call need(dpar_comm_free(world), "close")
        if (result /= 0) stop 1, quiet=.true.
    else
        call need(dpar_launch(chosen%ranks, rank_main, c_loc(chosen), why=why), "ranks")
    end if
#endif
end program
