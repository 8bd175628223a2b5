! SPDX-License-Identifier: MIT-0
! 06 - computes the plate of example 04 in Fortran, on 4 ranks.
!
!   cc -O2 -I. -c bindings/fortran/dpar.c -o build/06.o
!   gfortran -O2 -Jbuild/ -o build/06 bindings/fortran/dpar.f90 examples/06_heat.f90 build/06.o
!   build/06 --ranks 4
!
!   4 ranks: 1079.3662 is the sum of all cells after 500 steps

module plate
    use dpar
    use, intrinsic :: iso_fortran_env, only: error_unit, output_unit
    implicit none
    integer, parameter :: steps = 500
contains
    integer(c_int) function heat(world, unused) bind(c)
        type(c_ptr), value :: world, unused
        type(c_ptr) :: plan
        type(dpar_grid), pointer :: grid
        type(dpar_grid_desc) :: desc
        type(dpar_why) :: why
        real(c_double), allocatable, target :: u(:, :), next(:, :)
        real(c_double), target :: mine, total
        integer :: nx, ny, step
        heat = 1
        desc = dpar_grid_desc_init([100, 120], halo=1, periodic=[.true., .false.])
        if (dpar_grid_make(world, desc, plan, why) < 0) then
            write (error_unit, *) dpar_string(why)
            return
        end if
        call c_f_pointer(plan, grid)
        nx = int(grid%count(1)) ! Fortran's first dim is dpar's last
        ny = int(grid%count(0))
        allocate (u(0:nx + 1, 0:ny + 1), next(nx, ny))
        u = 0
        if (grid%first(0) == 0) u(:, 0) = 1 ! hot below y's low end
        if (dpar_grid_attach(plan, c_loc(u(1, 1)), DPAR_F64, why=why) < 0) then
            write (error_unit, *) dpar_string(why)
            return
        end if
        do step = 1, steps
            if (dpar_grid_exchange(plan, c_loc(u(1, 1))) < 0) then
                write (error_unit, *) dpar_comm_message(world)
                return
            end if
            next = u(1:nx, 1:ny) + 0.2d0 * (u(0:nx - 1, 1:ny) + u(2:nx + 1, 1:ny) + &
                u(1:nx, 0:ny - 1) + u(1:nx, 2:ny + 1) - 4 * u(1:nx, 1:ny))
            u(1:nx, 1:ny) = next
        end do
        mine = sum(u(1:nx, 1:ny))
        if (dpar_all_reduce(world, c_loc(mine), c_loc(total), 1_c_int64_t, DPAR_F64, &
            DPAR_SUM) < 0) then
            write (error_unit, *) dpar_comm_message(world)
            return
        end if
        if (dpar_comm_rank(world) == 0) then
            print '(i0, a, f9.4, a, i0, a)', dpar_comm_size(world), " ranks: ", total, &
                " is the sum of all cells after ", steps, " steps"
            flush (output_unit)
        end if
        if (dpar_grid_free(plan) == 0) heat = 0
    end function
end module

program main
    use plate
    ! The number of ranks is that of --ranks, mpiexec, srun or torchrun.
    if (dpar_launch_program(heat) /= 0) stop 1
end program
