! SPDX-License-Identifier: MIT-0
! 16 - the same matrix in Fortran: Jacobi's steps on rows that 4 ranks share.
!
!   cc -O2 -I. -c bindings/fortran/dpar.c -o build/16.o
!   gfortran -O2 -Jbuild/ -o build/16 bindings/fortran/dpar.f90 examples/16_points.f90 build/16.o
!   build/16 --ranks 4
!
!   4 ranks: x(0) is 2.018662

module ring
    use dpar
    implicit none
    integer, parameter :: n = 1000 ! row i: 4 at i, -1 at both neighbours and at its opposite
contains
    integer(c_int) function solve(world, unused) bind(c)
        type(c_ptr), value :: world, unused
        type(c_ptr) :: p
        type(dpar_why) :: why
        integer(c_int64_t), allocatable :: id(:, :), ghost(:)
        integer(c_int32_t), allocatable :: at(:, :)
        real(c_double), allocatable, target :: x(:)
        integer(c_int64_t) :: first, own, i, k
        integer :: step
        solve = 1
        first = n * dpar_comm_rank(world) / dpar_comm_size(world)
        own = n * (dpar_comm_rank(world) + 1) / dpar_comm_size(world) - first
        allocate (id(3, own), at(3, own))
        do i = 1, own
            k = first + i - 1 ! ids count from 0, and go on from rank to rank
            id(:, i) = [mod(k + 1, int(n, 8)), mod(k + n - 1, int(n, 8)), n - 1 - k]
        end do
        ghost = pack(id, id < first .or. id >= first + own) ! what others have
        if (dpar_points_make(world, n=own, ghosts=ghost, m=size(ghost, kind=8), plan=p, why=why) < 0) then
            print *, dpar_string(why)
            return
        end if
        if (dpar_points_to_local(p, id, size(id, kind=8), at) < 0) return
        at = at + 1 ! Fortran counts from 1
        allocate (x(own + size(ghost))) ! the others' values lie behind own ones
        x = 0
        do step = 1, 200
            if (dpar_points_exchange(p, x) < 0) return
            x(:own) = [((mod(first + i - 1, 7_8) + sum(x(at(:, i)))) / 4, i=1, own)]
        end do
        if (dpar_comm_rank(world) == 0) print '(i0, a, f8.6)', dpar_comm_size(world), " ranks: x(0) is ", x(1)
        flush (6)
        solve = dpar_points_free(p)
    end function
end module

program main
    use ring
    if (dpar_launch_program(solve) /= 0) stop 1 ! --ranks 4 here, or mpiexec, srun, torchrun
end program
