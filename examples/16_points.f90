! SPDX-License-Identifier: MIT-0
! 16 - solves the system of example 15 in Fortran by Jacobi's method, on 4 ranks.
!
!   cc -O2 -I. -c bindings/fortran/dpar.c -o build/16.o
!   gfortran -O2 -Jbuild/ -o build/16 bindings/fortran/dpar.f90 examples/16_points.f90 build/16.o
!   build/16 --ranks 4
!
!   4 ranks: x(0) is 2.018662

module ring
    use dpar
    use, intrinsic :: iso_fortran_env, only: error_unit, output_unit
    implicit none
    ! Row i has 4 at i, and -1 at both its neighbours in a ring and at n - 1 - i.
    integer(c_int64_t), parameter :: n = 1000
contains
    integer(c_int) function solve(world, unused) bind(c)
        type(c_ptr), value :: world, unused
        type(c_ptr) :: plan
        type(dpar_points_desc) :: desc
        type(dpar_why) :: why
        integer(c_int64_t), allocatable :: id(:, :)
        integer(c_int64_t), allocatable, target :: ghost(:)
        integer(c_int32_t), allocatable :: column(:, :)
        real(c_double), allocatable, target :: x(:)
        integer(c_int64_t) :: first, own, i, k
        integer :: step
        solve = 1
        first = n * dpar_comm_rank(world) / dpar_comm_size(world)
        own = n * (dpar_comm_rank(world) + 1) / dpar_comm_size(world) - first
        allocate (id(3, own), column(3, own))
        do i = 1, own
            k = first + i - 1 ! ids count from 0 and continue from rank to rank
            id(:, i) = [mod(k + 1, n), mod(k + n - 1, n), n - 1 - k]
        end do
        ghost = pack(id, id < first .or. id >= first + own) ! the ids that other ranks own
        desc%own_count = own ! own_id is not set: ids are numbered consecutively over the ranks
        desc%ghost_count = size(ghost)
        desc%ghost_id = c_loc(ghost)
        if (dpar_points_make(world, desc, plan, why) < 0) then
            write (error_unit, *) dpar_string(why)
            return
        end if
        if (dpar_points_to_local(plan, id, size(id, kind=8), column) < 0) then
            write (error_unit, *) dpar_comm_message(world)
            return
        end if
        column = column + 1 ! dpar counts from 0, Fortran from 1
        allocate (x(own + size(ghost))) ! own values, then the ghosts'
        x = 0
        do step = 1, 200
            if (dpar_points_exchange(plan, x) < 0) then
                write (error_unit, *) dpar_comm_message(world)
                return
            end if
            x(:own) = [((mod(first + i - 1, 7_c_int64_t) + sum(x(column(:, i)))) / 4, i=1, own)]
        end do
        if (dpar_comm_rank(world) == 0) then
            print '(i0, a, f8.6)', dpar_comm_size(world), " ranks: x(0) is ", x(1)
            flush (output_unit)
        end if
        if (dpar_points_free(plan) == 0) solve = 0
    end function
end module

program main
    use ring
    ! The number of ranks is that of --ranks, mpiexec, srun or torchrun.
    if (dpar_launch_program(solve) /= 0) stop 1
end program
