! SPDX-License-Identifier: MIT-0
! 06 - the same in Fortran: heat on a plate that is cut over 4 ranks.
!
!   cc -O2 -I. -c bindings/fortran/dpar.c -o build/06.o
!   gfortran -O2 -Jbuild/ -o build/06 bindings/fortran/dpar.f90 examples/06_heat.f90 build/06.o
!   build/06 --ranks 4
!
!   4 ranks: 1079.3662 is the sum of all cells after 500 steps

module plate
    use dpar
    implicit none
contains
    integer(c_int) function heat(world, unused) bind(c)
        type(c_ptr), value :: world, unused
        type(c_ptr) :: g
        type(dpar_grid), pointer :: head
        type(dpar_grid_desc) :: d
        type(dpar_why) :: why
        real(c_double), allocatable, target :: u(:, :), v(:, :)
        real(c_double), target :: mine, all_
        integer :: nx, ny, step
        heat = 1
        d = dpar_grid_desc_init([100, 120], halo=1, periodic=[.true., .false.])
        if (dpar_grid_make(world, d, g, why) < 0) then
            print *, dpar_string(why)
            return
        end if
        call c_f_pointer(g, head)
        nx = int(head%own(1)) ! Fortran's first dim is dpar's last
        ny = int(head%own(0))
        allocate (u(0:nx + 1, 0:ny + 1), v(0:nx + 1, 0:ny + 1))
        u = 0
        if (head%first(0) == 0) u(:, 0) = 1 ! hot, beyond y's low end
        v = u
        if (dpar_grid_attach(g, c_loc(u(1, 1)), DPAR_F64, why=why) < 0) then
            print *, dpar_string(why)
            return
        end if
        do step = 1, 500
            if (dpar_grid_exchange(g, c_loc(u(1, 1))) < 0) return
            v(1:nx, 1:ny) = u(1:nx, 1:ny) + 0.2d0 * (u(0:nx - 1, 1:ny) + u(2:nx + 1, 1:ny) + &
                u(1:nx, 0:ny - 1) + u(1:nx, 2:ny + 1) - 4 * u(1:nx, 1:ny))
            u(1:nx, 1:ny) = v(1:nx, 1:ny)
        end do
        mine = sum(u(1:nx, 1:ny))
        if (dpar_all_reduce(world, c_loc(mine), c_loc(all_), 1_c_int64_t, DPAR_F64, &
            DPAR_SUM) < 0) return
        if (dpar_comm_rank(world) == 0) print '(i0, a, f9.4, a)', dpar_comm_size(world), " ranks: ", all_, &
            " is the sum of all cells after 500 steps"
        flush (6)
        heat = dpar_grid_free(g)
    end function
end module

program main
    use plate
    if (dpar_launch_program(heat) /= 0) stop 1 ! --ranks 4 here, or mpiexec, srun, torchrun
end program
