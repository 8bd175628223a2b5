! SPDX-License-Identifier: MIT-0
! Each kind of call from Fortran, over real ranks: every RANKS, or under a launcher, or over MPI
! with -DUSE_MPI (-cpp). Numbers that are expected follow from the indices alone.
module checks
    use dpar
    implicit none
    integer :: wrong = 0

contains

    subroutine check(fine, what)
        logical, intent(in) :: fine
        character(len=*), intent(in) :: what
        if (fine) return
        wrong = wrong + 1
        write (*, '(2a)') "wrong: ", what
        flush (6)
    end subroutine

    ! Without ranks: text, structs by value, arguments left out, refusals with a sentence.
    subroutine values()
        type(dpar_why) :: why
        type(dpar_mesh) :: mesh, view
        type(dpar_split) :: split
        type(dpar_layout) :: layout
        type(dpar_cart_choose_desc) :: grid
        type(dpar_placement) :: placement(2)
        integer(c_int32_t) :: parts(3), coord(2)
        integer(c_int32_t) :: status
        integer(c_int64_t) :: cut, shape_(2), offset(2), run, local
        call check(dpar_string(dpar_status_text(DPAR_E_ROOM)) &
                  == "the memory passed is too small", "text")
        call check(dpar_string(dpar_type_name(DPAR_BF16)) == "bf16", "type name")
        call check(dpar_string(c_null_ptr) == "", "no text")
        call check(dpar_type_bytes(DPAR_F64) == 8, "bytes of f64")
        parts = 0
        status = dpar_cart_dims(12, 3, parts)
        call check(status == DPAR_OK .and. all(parts == [3, 2, 2]), "dims_create")
        parts = 0
        grid%ranks = 7
        grid%dims = 2
        grid%cells(:1) = 2
        call check(dpar_cart_choose_parts(grid, parts, why=why) == DPAR_E_NONE, &
                  "a grid that does not fit")
        call check(len(dpar_string(why)) > 20, "a sentence")
        parts(:2) = 0
        grid%ranks = 6
        grid%cells(:1) = [30, 20]
        status = dpar_cart_choose_parts(grid, parts, cut=cut)
        call check(status == 0 .and. all(parts(:2) == [3, 2]) .and. cut == 2 * 20 + 30, &
                  "grid_create")
        call check(dpar_mesh_init_names(mesh, ["pipe ", "model"], [2, 3], DPAR_ORDER_LAST_FASTEST, 6, why) &
                  == 0, "mesh")
        call check(mesh%size == 6 .and. mesh%axis(0)%stride == 3 .and. mesh%axis(1)%size == 3, &
                  "mesh's axes")
        call check(dpar_string(mesh%axis(0)%name) == "pipe", "an axis's name")
        call check(dpar_mesh_find(mesh, "model" // c_null_char) == 1, "an axis by name")
        status = dpar_mesh_coords(mesh, 5, coord)
        call check(status /= 0 .and. all(coord == [1, 2]), "coordinates")
        call check(dpar_mesh_rank(mesh, [1, 0]) == 3, "a rank")
        status = dpar_mesh_view(view, mesh, "model pipe" // c_null_char, [3, 2], DPAR_ORDER_FIRST_FASTEST)
        call check(status == 0 .and. view%axis(0)%size == 3, "a view")
        call check(dpar_mesh_init_names(mesh, ["a", "b"], [2, 3], DPAR_ORDER_LAST_FASTEST, 7, why) &
                  == DPAR_E_DIVIDE, "7 ranks")
        call check(dpar_mesh_init_names(mesh, ["a", "b"], [2, 3], DPAR_ORDER_LAST_FASTEST, 6) == 0, &
                  "no sentence wanted")
        ! 10 over 4: 3 3 2 2 by EVEN; element 7 is the second of part 2
        call check(dpar_split_init(split, DPAR_SPLIT_EVEN, 10_c_int64_t, 4, 0_c_int64_t) == 0, "split")
        call check(dpar_split_part_count(split, 1) == 3 .and. dpar_split_part_first(split, 2) == 6, "a part")
        status = dpar_split_locate(split, 7_c_int64_t, run=run, local=local)
        call check(status == 2 .and. local == 1 .and. run == 1, "an element")
        call check(dpar_split_owner(DPAR_SPLIT_EVEN, 10_c_int64_t, 4, 9_c_int64_t) == 3, "an owner")
        call check(dpar_split_range(DPAR_SPLIT_EVEN, 10_c_int64_t, 4, 2, local, run) == 0, "a range")
        call check(local == 6 .and. run == 2, "the range")
        call check(dpar_cart_owner(2, [7_c_int64_t, 6_c_int64_t], [2, 3], [6_c_int64_t, 5_c_int64_t]) &
                  == 5, "the owner of a cell")
        status = dpar_cart_range(2, [7_c_int64_t, 6_c_int64_t], [2, 3], 5, shape_, offset)
        call check(all(shape_ == [4, 4]) .and. all(offset == [3, 2]), "a block")
        ! 7 x 6 over 2 x 3: CHUNK gives 4 + 3 rows, 2 columns each
        placement = [dpar_shard(0), dpar_shard_by(1, DPAR_SPLIT_EVEN, 0_c_int64_t)]
        call check(placement(2)%kind == DPAR_PLACEMENT_SHARD .and. placement(2)%dim == 1, &
                  "a struct that is returned")
        call check(dpar_layout_init(layout, mesh, 2, [7_c_int64_t, 6_c_int64_t], placement) == 0, &
                  "layout")
        call dpar_layout_local(layout, 5, shape_, offset)
        call check(all(shape_ == [3, 2]) .and. all(offset == [4, 4]), "a local shape")
        call dpar_layout_local(layout, 5, offset=offset)
        call check(all(offset == 4), "an argument left out")
        call pictures()
    end subroutine

    ! A process grid for 64 x 64 x 64 cells, and a picture of its halos.
    subroutine pictures()
        type(dpar_halo_cost_desc) :: job
        type(dpar_halo_cost) :: best, again
        type(dpar_halo_rates) :: rates
        type(dpar_mesh) :: mesh
        type(dpar_halo), target :: halo
        type(dpar_halo_cursor) :: walk
        type(dpar_halo_draw_desc) :: picture
        type(dpar_text) :: text
        character(kind=c_char), target :: svg(65536)
        integer :: d
        job%ranks = 4
        job%dims = 3
        job%cells(:2) = 64
        job%width(:2) = 1
        job%bytes = 8
        job%contiguous_bytes = 8
        call check(dpar_halo_cost_choose(job, grid=best) == 0, "the best grid")
        call check(product(best%parts(:2)) == 4 .and. best%parts(2) == 1 .and. best%seconds > 0, &
                  "does not cut runs of memory")
        again = best
        call dpar_halo_rates_init(rates)
        call check(dpar_halo_cost_predict(job, rates, again) == 0 .and. &
                   abs(again%seconds - best%seconds) <= 1e-9 * best%seconds, "its cost")
        call check(dpar_mesh_init_names(mesh, ["z", "y", "x"], best%parts(:2), DPAR_ORDER_LAST_FASTEST, 4) &
                  == 0, "its mesh")
        call check(dpar_layout_init(halo%grid, mesh, 3, job%cells(:2), &
                  [(dpar_shard(d), d=0, 2)]) == 0, "its layout")
        halo%low(0:2) = 1
        call check(dpar_halo_first(walk, halo, 0, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD) == 0, "a walk")
        call check(all(walk%own(0, :2) == 0) .and. all(walk%own(1, :2) == 64 / best%parts(:2)), &
                  "a table of two indices")
        picture%halo = c_loc(halo)
        picture%across = 1
        call dpar_text_init(text, c_loc(svg), int(size(svg), c_size_t))
        call check(dpar_halo_draw(text, picture, DPAR_HALO_SVG) == 0, "a picture")
        call check(dpar_string(c_loc(svg)) /= "" .and. all(svg(:4) == ["<", "s", "v", "g"]), "SVG")
    end subroutine

    ! A ring of 3 columns a rank and 4 rows, dims in Fortran's order: halos around x, none beyond y;
    ! two components, the whole array and back.
    subroutine grids(world)
        type(c_ptr), intent(in) :: world
        type(c_ptr) :: g, list(2)
        type(dpar_grid_desc) :: d
        type(dpar_grid_field) :: field
        type(dpar_grid_part) :: part
        type(dpar_why) :: why
        type(dpar_grid), pointer :: head
        type(dpar_box) :: box
        real(c_float), allocatable, target :: u(:, :), v(:, :, :), whole(:, :)
        integer :: ranks, x, x0, i, j
        ranks = dpar_comm_size(world)
        d = dpar_grid_desc_init([3 * ranks, 4], 1, [ranks, 1], [.true., .false.])
        call check(all(d%cells(:1) == [4, 3 * ranks]) .and. all(d%parts(:1) == [1, ranks]) .and. &
            all(d%periodic(:1) == [0, 1]) .and. d%order == DPAR_ORDER_FIRST_FASTEST, "a description")
        call check(dpar_grid_make(world, d, g, why) == 0, "a grid")
        call c_f_pointer(g, head)
        call check(all(head%count(:1) == [4, 3]) .and. head%first(1) == 3 * dpar_comm_rank(world), "its head")
        allocate (u(0:4, 0:5), v(2, 0:4, 0:5), whole(3 * ranks, 4))
        u = -1
        v = -1
        x0 = int(head%first(1))
        do j = 1, 4
            do i = 1, 3
                u(i, j) = real(x0 + i + 100 * j)
                v(:, i, j) = [u(i, j) + 0.5, -u(i, j)]
            end do
        end do
        call check(dpar_grid_attach(g, c_loc(u(1, 1)), DPAR_F32, why=why) == 0, "an array")
        field%components = 2
        call check(dpar_grid_attach(g, c_loc(v(1, 1, 1)), DPAR_F32, field, why) == 0, "another one")
        list = [c_loc(u(1, 1)), c_loc(v(1, 1, 1))]
        call check(dpar_grid_exchange_many(g, list, 2, 0) == 0, "an exchange of two")
        do j = 0, 5
            do i = 0, 4
                x = modulo(x0 + i - 1, 3 * ranks) + 1
                if (j == 0 .or. j == 5) then
                    call check(u(i, j) == -1 .and. all(v(:, i, j) == -1), "beyond the ends of y")
                else
                    call check(u(i, j) == x + 100 * j .and. v(1, i, j) == x + 100 * j + 0.5 .and. &
                        v(2, i, j) == -(x + 100 * j), "a halo of a grid")
                end if
            end do
        end do
        call check(dpar_grid_begin(g, c_loc(u(1, 1))) == 0, "begin")
        x = dpar_grid_interior(g, box)
        call check(x == 1 .and. box%lo(1) == 1 .and. box%hi(1) == 2 .and. box%hi(0) == 4, "the core")
        call check(dpar_grid_end(g, c_loc(u(1, 1))) == 0, "end")
        call check(dpar_grid_gather(g, c_loc(u(1, 1)), c_loc(whole)) == 0, "the whole array")
        if (dpar_comm_rank(world) == 0) then
            do j = 1, 4
                do i = 1, 3 * ranks
                    call check(whole(i, j) == i + 100 * j, "a cell of it")
                end do
            end do
        end if
        call check(dpar_grid_block(g, part=part) == 0, "a part of a file")
        call check(all(part%start(:1) == [0, x0]) .and. all(part%local_count(:1) == [6, 5]), "its place")
        call check(dpar_grid_free(g) == 0, "the end of a grid")
    end subroutine

    ! Arrays u(x, y, variable) that are passed whole, with halos in x and y only. Rank 0 has two cells
    ! more in x than the others.
    subroutine whole_arrays(world)
        type(c_ptr), intent(in) :: world
        type(c_ptr) :: g
        type(dpar_grid_desc) :: d
        type(dpar_why) :: why
        real(c_double), allocatable, target :: u(:, :, :)
        integer :: cells, ranks, n, x0, x, i, j, k
        ranks = dpar_comm_size(world)
        cells = 3 * ranks + 2
        n = merge(5, 3, dpar_comm_rank(world) == 0)
        x0 = merge(0, 3 * dpar_comm_rank(world) + 2, dpar_comm_rank(world) == 0)
        d = dpar_grid_desc_init([cells, 4, 2], [2, 1, 0], periodic=[.true., .false., .false.], type=DPAR_F64, &
            exchange_walls=.true., array_start=.true., expected_count=[n, 4, 2])
        call check(all(d%halo_low(:2) == [0, 1, 2]) .and. all(d%halo_high(:2) == [0, 1, 2]) .and. d%halo == 0 .and. &
            all(d%expected_count(:2) == [2, 4, n]) .and. d%array_start == 1 .and. d%exchange_walls == 1, "halos")
        call check(dpar_grid_make(world, d, g, why) == 0, "a grid of whole arrays: " // dpar_string(why))
        allocate (u(-1:n + 2, 0:5, 2))
        u = -1
        do k = 1, 2
            do j = 0, 5
                do i = 1, n
                    u(i, j, k) = x0 + i + 100 * j + 1000 * k
                end do
            end do
        end do
        call check(dpar_grid_exchange(g, c_loc(u)) == 0, "its exchange: " // dpar_grid_message(g))
        do k = 1, 2
            do j = 0, 5
                do i = -1, n + 2
                    x = modulo(x0 + i - 1, cells) + 1
                    call check(u(i, j, k) == x + 100 * j + 1000 * k, "a halo of a whole array")
                end do
            end do
        end do
        call check(dpar_grid_exchange(g, c_null_ptr) == DPAR_E_ARG, "no array")
        call check(index(dpar_grid_message(g), "does not belong to this grid") > 0, dpar_grid_message(g))
        call check(dpar_grid_free(g) == 0, "the end of that grid")
    end subroutine

    ! Complex arrays of both kinds on a ring, sums of complex numbers, prefixes and extremes.
    subroutine complex_numbers(world)
        type(c_ptr), intent(in) :: world
        type(c_ptr) :: g
        type(dpar_grid_desc) :: d
        type(dpar_grid_field) :: field
        complex(c_double_complex), allocatable, target :: psi(:, :), sums(:), pairs(:, :, :)
        complex(c_float_complex), allocatable, target :: phi(:, :)
        complex(c_double_complex) :: expected
        type(dpar_location) :: best(2)
        integer(c_int64_t), target :: mine, before
        type(dpar_why) :: why
        integer :: rank, ranks, x, i, j
        rank = dpar_comm_rank(world)
        ranks = dpar_comm_size(world)
        d = dpar_grid_desc_init([3 * ranks, 4], 1, [ranks, 1], [.true., .false.])
        call check(dpar_grid_make(world, d, g, why) == 0, "a grid of complex numbers")
        allocate (psi(0:4, 0:5), phi(0:4, 0:5), pairs(2, 0:4, 0:5), sums(5))
        psi = -1
        phi = -1
        pairs = -1
        do j = 1, 4
            do i = 1, 3
                psi(i, j) = cmplx(3 * rank + i, 0.5 * j, c_double_complex)
                phi(i, j) = cmplx(psi(i, j), kind=c_float_complex)
                pairs(:, i, j) = [psi(i, j), conjg(psi(i, j))]
            end do
        end do
        call check(dpar_grid_attach_complex(g, psi(1, 1), why=why) == 0, "a complex array")
        call check(dpar_grid_attach_complex(g, phi(1, 1)) == 0, "one of c_float_complex")
        field%components = 2
        call check(dpar_grid_attach_complex(g, pairs(1, 1, 1), field, why) == 0, "complex components")
        call check(dpar_grid_exchange(g, c_loc(psi(1, 1))) == 0, "its exchange")
        call check(dpar_grid_exchange_many(g, [c_loc(phi(1, 1)), c_loc(pairs(1, 1, 1))], 2, 0) == 0, &
            "theirs")
        do j = 0, 5
            do i = 0, 4
                x = modulo(3 * rank + i - 1, 3 * ranks) + 1
                expected = cmplx(x, 0.5 * j, c_double_complex)
                if (j == 0 .or. j == 5) expected = -1
                call check(psi(i, j) == expected, "a complex halo")
                call check(phi(i, j) == cmplx(expected, kind=c_float_complex), "one of c_float_complex")
                call check(pairs(1, i, j) == expected .and. pairs(2, i, j) == conjg(expected), &
                    "complex components of a halo")
            end do
        end do
        call check(dpar_grid_free(g) == 0, "the end of that grid")
        sums = [(cmplx(rank * i, 1 - i, c_double_complex), i=1, 5)]
        call check(dpar_sum_complex(world, sums, 5) == 0, "a complex sum")
        call check(all(sums == [(cmplx(i * ranks * (ranks - 1) / 2, ranks * (1 - i), &
            c_double_complex), i=1, 5)]), "its values")
        phi(:, 1) = cmplx(1, rank, c_float_complex)
        call check(dpar_sum_complex(world, phi(:, 1), 5) == 0, "a sum of c_float_complex")
        call check(all(phi(:, 1) == cmplx(ranks, ranks * (ranks - 1) / 2, c_float_complex)), "its value")
        mine = rank + 7
        before = -1
        call check(dpar_exscan(world, c_loc(mine), c_loc(before), 1_c_int64_t, DPAR_I64, DPAR_SUM) &
            == 0 .and. before == 7 * rank + rank * (rank - 1) / 2, "a prefix")
        best(1) = dpar_location(2.0_c_double * rank, 10_c_int64_t + rank)
        best(2) = dpar_location(-1.0_c_double, 10_c_int64_t + rank)
        call check(dpar_all_reduce_location(world, best, 2_c_int64_t, DPAR_MAX) == 0, "extremes")
        call check(best(1)%value == 2 * (ranks - 1) .and. best(1)%index == 9 + ranks .and. &
            best(2)%index == 10, "their locations")
    end subroutine

    subroutine collectives(world)
        type(c_ptr), intent(in) :: world
        integer(c_int64_t), target :: mine(5), all_(5)
        integer(c_int32_t), target :: to_right, from_left
        real(c_double), pointer :: registered(:)
        real(c_double), target :: total(3)
        type(dpar_call) :: calls(2)
        type(dpar_work), target :: works(2), work
        type(dpar_mesh) :: mesh
        type(c_ptr) :: memory, part
        integer :: rank, ranks, i
        rank = dpar_comm_rank(world)
        ranks = dpar_comm_size(world)
        mine = [(rank * 10_c_int64_t + i, i=1, 5)]
        call check(dpar_all_reduce(world, c_loc(mine), c_loc(all_), 5_c_int64_t, DPAR_I64, &
                  DPAR_SUM) == 0, "all-reduce")
        call check(all(all_ == [(5_c_int64_t * ranks * (ranks - 1) + i * ranks, i=1, 5)]), &
                  "its sums")
        to_right = rank
        ! optimizers must see that the batch writes here, though only its address goes there
        from_left = -1
        calls(1)%kind = DPAR_CALL_SEND
        calls(1)%type = DPAR_I32
        calls(1)%root = mod(rank + 1, ranks)
        calls(1)%in = c_loc(to_right)
        calls(1)%count = 1
        calls(2) = calls(1)
        calls(2)%kind = DPAR_CALL_RECV
        calls(2)%root = mod(rank + ranks - 1, ranks)
        calls(2)%in = c_null_ptr
        calls(2)%out = c_loc(from_left)
        call check(dpar_batch(world, calls, 2, works) == 0, "batch")
        call check(dpar_wait_all(works, 2) == 0, "its end")
        call check(from_left == mod(rank + ranks - 1, ranks), "from the left")
        call check(dpar_comm_alloc(world, 24_c_int64_t, memory) == 0, "registered memory")
        call c_f_pointer(memory, registered, [3])
        call check(all(registered == 0), "it is zeroed")
        registered = [1.0_c_double, rank + 0.5_c_double, -1.0_c_double * rank]
        call check(dpar_all_reduce(world, memory, c_loc(total), 3_c_int64_t, DPAR_F64, DPAR_MAX, &
                  work) == 0, "posted")
        call check(dpar_wait(work) == 0, "wait")
        call check(total(2) == ranks - 0.5 .and. total(3) == 0, "maxima")
        call dpar_comm_release(world, memory)
        call check(dpar_mesh_init_names(mesh, ["all"], [ranks], DPAR_ORDER_LAST_FASTEST, ranks) == 0, &
                  "a mesh of all")
        call check(dpar_comm_split_axes(world, mesh, 1, part) == 0, "split by axes")
        call check(dpar_comm_size(part) == ranks .and. dpar_comm_rank(part) == rank, "its ranks")
        call check(dpar_all_reduce(part, c_null_ptr, c_loc(all_), 5_c_int64_t, DPAR_I64, &
                  DPAR_OP_COUNT) == DPAR_E_ARG, &
                   "no such op")
        call check(len(dpar_comm_message(part)) > 10, "the sentence of a communicator")
        call check(dpar_comm_free(part) == 0, "close")
        call check(dpar_barrier(world) == 0, "barrier")
        call check(len(dpar_comm_report_string(world)) > 0, "a report")
    end subroutine

    ! A whole array a(13, 7) cut by columns becomes one cut by rows: nothing but Fortran's order.
    subroutine redistribute(world)
        type(c_ptr), intent(in) :: world
        type(dpar_mesh) :: mesh
        type(dpar_layout), target :: columns, rows
        type(dpar_redistribute_desc) :: move
        integer(c_int64_t) :: shape_(2), offset(2), extent(2)
        integer(c_int32_t), allocatable, target :: a(:, :), b(:, :)
        type(dpar_why) :: why
        integer :: ranks, i, j
        logical :: fine
        ranks = dpar_comm_size(world)
        extent = [7, 13]
        call check(dpar_mesh_init_names(mesh, ["r"], [ranks], DPAR_ORDER_LAST_FASTEST, ranks) == 0, &
                  "mesh of ranks")
        call check(dpar_layout_init(columns, mesh, 2, extent, [dpar_shard(0)]) == 0, "columns")
        call check(dpar_layout_init(rows, mesh, 2, extent, [dpar_shard_by(1, DPAR_SPLIT_EVEN, &
                  0_c_int64_t)]) == 0, "rows")
        call dpar_layout_local(columns, dpar_comm_rank(world), shape_, offset)
        allocate (a(shape_(2), shape_(1)))
        do j = 1, int(shape_(1))
            do i = 1, int(shape_(2))
                a(i, j) = int(100 * (offset(2) + i) + offset(1) + j)
            end do
        end do
        call dpar_layout_local(rows, dpar_comm_rank(world), shape_, offset)
        allocate (b(shape_(2), shape_(1)))
        b = -1
        move%type = DPAR_I32
        move%from = c_loc(columns)
        move%to = c_loc(rows)
        move%in = c_loc_of(a)
        move%out = c_loc_of(b)
        move%scratch_bytes = 1
        call check(dpar_redistribute(world, move, why) == DPAR_E_ROOM .and. why%bytes > 0, &
                   "bytes of a move")
        move%scratch_bytes = 0
        call check(dpar_redistribute(world, move, why) == 0, &
                   "redistribute " // dpar_string(why))
        move%type = DPAR_TYPE_NONE
        call check(dpar_redistribute(world, move, why) == DPAR_E_ARG, "a type that was left out")
        fine = .true.
        do j = 1, int(shape_(1))
            do i = 1, int(shape_(2))
                fine = fine .and. b(i, j) == 100 * (offset(2) + i) + offset(1) + j
            end do
        end do
        call check(fine, "a(i, j) on its new rank")
    end subroutine

    ! c_loc of an array that may be empty.
    type(c_ptr) function c_loc_of(a)
        integer(c_int32_t), intent(in), target :: a(:, :)
        c_loc_of = c_null_ptr
        if (size(a) > 0) c_loc_of = c_loc(a(1, 1))
    end function

    real(c_double) function value_at(i, j, k, q)
        integer, intent(in) :: i, j, k, q
        value_at = i + 100.0_c_double * j + 10000.0_c_double * k + 1000000.0_c_double * q
    end function

    ! Ids dealt out like cards; each rank reads both neighbours of its own ones, and gives twos back.
    subroutine points(world)
        type(c_ptr), intent(in) :: world
        integer, parameter :: n = 5
        type(c_ptr) :: p
        type(dpar_points), pointer :: head
        type(dpar_points_desc) :: desc
        type(dpar_points_field), target :: v(2)
        type(dpar_points_traffic) :: traffic
        type(dpar_why) :: why
        integer(c_int64_t), target :: own(n), ghost(2, n)
        integer(c_int64_t) :: all_
        integer(c_int32_t) :: at(2, n), peers
        real(c_double), target :: x(3 * n)
        real(c_float), target :: y(2, 3 * n)
        integer :: i
        all_ = n * dpar_comm_size(world)
        do i = 1, n
            own(i) = dpar_comm_rank(world) + (i - 1) * dpar_comm_size(world)
            ghost(:, i) = [mod(own(i) + 1, all_), mod(own(i) + all_ - 1, all_)]
        end do
        desc%own_count = n
        desc%own_id = c_loc(own)
        desc%ghost_count = size(ghost)
        desc%ghost_id = c_loc(ghost)
        call check(dpar_points_make(world, desc, p, why) == 0, "points: " // dpar_string(why))
        call c_f_pointer(p, head)
        call check(head%own_count == n .and. head%ghost_count == 2 * n .and. head%global_count == all_, "points")
        x(:n) = real(own, c_double)
        call check(dpar_points_exchange(p, x) == 0, "exchange of points")
        call check(all(nint(x(n + 1:), c_int64_t) == reshape(ghost, [2 * n])), "ghosts")
        y(1, :n) = real(own, c_float)
        y(2, :n) = -y(1, :n)
        v(1) = dpar_points_field(type=DPAR_F64, data=c_loc(x))
        v(2) = dpar_points_field(type=DPAR_F32, components=2, data=c_loc(y))
        call check(dpar_points_exchange_many(p, v, 2) == 0, "exchange of two vectors")
        call check(all(y(1, n + 1:) == x(n + 1:)) .and. all(y(2, n + 1:) == -x(n + 1:)), "two vectors")
        call check(dpar_points_to_local(p, ghost, size(ghost, kind=8), at) == 0, "local numbers")
        call check(all(x(at(1, :) + 1) == ghost(1, :)) .and. all(x(at(2, :) + 1) == ghost(2, :)), "places")
        x(:n) = 1
        x(n + 1:) = 2
        call check(dpar_points_reduce(p, x) == 0, "adding")
        call check(all(x(:n) == 5) .and. all(x(n + 1:) == 0), "each has two neighbours")
        peers = 0
        do while (dpar_points_peer(p, peers, traffic) == 1)
            peers = peers + 1
        end do
        call check(peers == head%peer_count, "peers")
        call check(dpar_points_free(p) == 0, "end of points")
    end subroutine

    ! The same with default integers as ids, on a line whose ends have a ghost that no rank sends.
    subroutine narrow_points(world)
        type(c_ptr), intent(in) :: world
        integer, parameter :: n = 5
        type(c_ptr) :: p
        type(dpar_points_desc) :: desc
        type(dpar_why) :: why
        integer(c_int32_t), target :: ghost(2)
        integer(c_int32_t) :: id(n + 2), at(n + 2), row(n), begin(n + 1), column(2 * n), first
        integer(c_int64_t) :: interior
        real(c_double), target :: x(n + 2)
        integer :: i
        first = n * dpar_comm_rank(world)
        ghost = [first - 1, first + n]
        desc%own_count = n
        desc%ghost_count = 2
        desc%ghost_id32 = c_loc(ghost)
        desc%unsent_ghosts = 1
        call check(dpar_points_make(world, desc, p, why) == 0, "narrow points: " // dpar_string(why))
        x = [(real(first + i, c_double), i = 0, n - 1), -1.0_c_double, real(first + n, c_double)]
        call check(dpar_points_exchange(p, x) == 0, "exchange of narrow points")
        call check(all(nint(x(n + 1:)) == ghost), "narrow ghosts")
        id = [(first + i, i = 0, n - 1), ghost]
        call check(dpar_points_to_local32(p, id, n + 2_c_int64_t, at) == 0, "narrow local numbers")
        call check(all(at == [(i, i = 0, n + 1)]), "narrow places")
        begin = [(2 * i, i = 0, n)]
        do i = 1, n ! each row reads its point and the next one
            column(2 * i - 1:2 * i) = [i - 1, merge(i, n + 1, i < n)]
        end do
        call check(dpar_points_interior_rows32(p, n + 0_c_int64_t, begin, column, row, interior) == 0, "narrow rows")
        call check(interior == merge(n, n - 1, dpar_comm_rank(world) == dpar_comm_size(world) - 1), "narrow interior")
        call check(dpar_points_free(p) == 0, "end of narrow points")
    end subroutine

    ! Particles on a ring, 0.25 apart, all on rank 0 at first. Each has two neighbours within 0.3, and
    ! adds its id to both of them. Bytes to the next rank say who sent them.
    subroutine drifting(world)
        type(c_ptr), intent(in) :: world
        type(dpar_particles_desc) :: desc
        type(dpar_particles_arrays) :: arrays
        type(dpar_particles_field), target :: field(2)
        type(dpar_particles_field) :: sums(1)
        type(dpar_particles), pointer :: head
        type(dpar_neighbours_desc) :: ring
        type(dpar_neighbours), pointer :: list
        type(dpar_why) :: why
        type(c_ptr) :: p, n
        type(c_ptr), pointer :: in(:)
        real(c_double), target :: x(100)
        integer(c_int64_t), target :: id(100), sum_(100), word(2)
        integer(c_int64_t), pointer :: came, length(:)
        integer(c_int32_t), target :: peer(2)
        integer(c_int64_t) :: i, j, all_
        integer(c_int32_t) :: ranks, rank
        ranks = dpar_comm_size(world)
        rank = dpar_comm_rank(world)
        all_ = 4 * ranks
        desc%dims = 1
        desc%high(0) = real(ranks, c_double)
        desc%periodic(0) = 1
        desc%cutoff = 0.3_c_double
        call check(dpar_particles_make(world, desc, p, why) == 0, "particles: " // dpar_string(why))
        call c_f_pointer(p, head)
        call check(head%parts(0) == ranks .and. head%low(0) == rank, "the block of a rank")
        call check(dpar_particles_owner(p, [-0.5_c_double]) == ranks - 1, "an owner")
        field(1) = dpar_particles_field(type=DPAR_F64, data=c_loc(x), is_position=1)
        field(2) = dpar_particles_field(type=DPAR_I64, data=c_loc(id))
        arrays%capacity = 100
        arrays%position = field(1)
        arrays%fields = c_loc(field)
        arrays%field_count = 2
        if (rank == 0) then
            arrays%count = all_
            do i = 1, all_
                x(i) = 0.25_c_double * i - 0.125_c_double
                id(i) = i
            end do
        end if
        call check(dpar_particles_migrate(p, arrays) == 0, "migration")
        call check(arrays%count == 4 .and. all(id(:4) > 4 * rank) .and. all(id(:4) <= 4 * rank + 4), "own ids")
        call check(dpar_particles_ghosts(p, arrays) == 0 .and. head%ghost_count == 2, "ghosts")
        x(:4) = x(:4) + 0.0625_c_double
        call check(dpar_particles_update_begin(p, field, 1) == 0, "an update begins")
        call check(dpar_particles_test(p) >= 0 .and. dpar_particles_end(p) == 0, "and ends")
        sum_ = 0
        do i = 1, 4
            do j = 1, 6
                if (i /= j .and. abs(x(i) - x(j)) < desc%cutoff) sum_(j) = sum_(j) + id(i)
            end do
        end do
        sums(1) = dpar_particles_field(type=DPAR_I64, data=c_loc(sum_))
        call check(dpar_particles_reduce(p, sums, 1) == 0, "sums")
        do i = 1, 4
            call check(sum_(i) == 2 + modulo(id(i) - 2, all_) + modulo(id(i), all_), "the ids of both neighbours")
        end do
        call check(dpar_particles_free(p) == 0, "end of particles")

        peer = [modulo(rank + 1, ranks), modulo(rank - 1 + ranks, ranks)]
        ring%count = merge(1, 2, peer(1) == peer(2))
        ring%rank = c_loc(peer)
        call check(dpar_neighbours_make(world, ring, n, why) == 0, "neighbours: " // dpar_string(why))
        word = rank
        call check(dpar_neighbours_exchange(n, [c_loc(word(1)), c_loc(word(2))], [8_c_int64_t, 8_c_int64_t]) == 0, &
                  "bytes to neighbours")
        call c_f_pointer(n, list)
        call c_f_pointer(list%in, in, [ring%count])
        call c_f_pointer(list%in_bytes, length, [ring%count])
        do i = 1, ring%count
            call c_f_pointer(in(i), came)
            call check(length(i) == 8 .and. came == peer(i), "bytes from neighbours")
        end do
        call check(dpar_neighbours_free(n) == 0, "end of neighbours")
    end subroutine

    ! Values whose sum a loop would lose: each rank adds 2**60, 1, -2**60 and 1.
    subroutine exact_sums(world)
        type(c_ptr), intent(in) :: world
        type(dpar_exact_term) :: terms(2)
        type(dpar_exact) :: mine(1)
        type(dpar_grid_desc) :: desc
        type(dpar_why) :: why
        type(c_ptr) :: grid
        real(c_double), target :: x(4), cells(12), result(2)
        real(c_double) :: total
        integer :: ranks
        ranks = dpar_comm_size(world)
        x = [2.0_c_double**60, 1.0_c_double, -2.0_c_double**60, 1.0_c_double]
        call check(dpar_exact_sum(world, c_loc(x), 4_c_int64_t, DPAR_F64, total) == 0, "an exact sum")
        call check(nint(total) == 2 * ranks, "its value")
        terms(1) = dpar_exact_dot_of(c_loc(x), c_loc(x), 2_c_int64_t, DPAR_F64)
        terms(2) = dpar_exact_norm_of(c_loc(x(2)), 1_c_int64_t, DPAR_F64)
        call check(dpar_exact_many(world, terms, 2, result) == 0, "two terms")
        call check(result(1) > 2.0_c_double**119 .and. nint(result(2)**2) == ranks, "their values")
        call check(dpar_exact_add(mine(1), c_loc(x), 4_c_int64_t, DPAR_F64) == 0, "a sum of this rank")
        call check(dpar_exact_all_reduce(world, mine, 1) == 0, "over all ranks")
        call check(nint(dpar_exact_result(mine(1), DPAR_F64)) == 2 * ranks, "the same value")
        desc%dims = 1
        desc%cells(0) = 8 * ranks
        desc%halo = 2
        desc%array_start = 1
        call check(dpar_grid_make(world, desc, grid, why) == 0, "a grid: " // dpar_string(why))
        cells = 1.0e300_c_double
        cells(3:10) = 0.5_c_double
        call check(dpar_exact_grid_sum(grid, c_loc(cells), DPAR_F64, sums=result) == 0, "a grid's sum")
        call check(nint(result(1)) == 4 * ranks, "without the halo")
        call check(dpar_grid_free(grid) == 0, "end of the grid")
    end subroutine

    ! The array a(nx, ny, nz): each point holds its own index, along x, then along z.
    subroutine pencils(world)
        type(c_ptr), intent(in) :: world
        integer(c_int64_t), parameter :: n(0:2) = [4, 5, 6] ! z, y, x
        type(dpar_pencil_desc) :: desc
        type(dpar_pencil), pointer :: head
        type(dpar_why) :: why
        type(c_ptr) :: p, a, b
        integer(c_int64_t) :: first(0:2), count(0:2), step(0:2), i, j, k
        real(c_double), pointer :: x(:)
        integer :: bad
        desc%size = n
        desc%type = DPAR_F64
        desc%order = DPAR_PENCIL_AXIS_LAST
        call check(dpar_pencil_make(world, desc, p, why) == 0, "pencils: " // dpar_string(why))
        call c_f_pointer(p, head)
        call check(product(head%grid) == dpar_comm_size(world), "the grid of pencils")
        a = dpar_pencil_array(p)
        b = dpar_pencil_array(p)
        call check(dpar_pencil_box(p, 2, first, count, step) == 0, "a box")
        call check(product(count) * 8 == head%bytes(2), "its bytes")
        call c_f_pointer(a, x, [product(n)])
        do k = 0, count(0) - 1
            do j = 0, count(1) - 1
                do i = 0, count(2) - 1
                    x(1 + k * step(0) + j * step(1) + i * step(2)) = &
                        real(100 * (first(0) + k) + 10 * (first(1) + j) + first(2) + i, c_double)
                end do
            end do
        end do
        call check(dpar_pencil_transpose(p, 2, 1, a, b) == 0, "from x to y")
        call check(dpar_pencil_begin(p, 1, 0, b, a) == 0, "from y to z")
        call check(dpar_pencil_test(p) >= 0, "a test")
        call check(dpar_pencil_end(p) == 0, "the end")
        call check(dpar_pencil_box(p, 0, first, count, step) == 0, "another box")
        bad = 0
        do k = 0, count(0) - 1
            do j = 0, count(1) - 1
                do i = 0, count(2) - 1
                    if (nint(x(1 + k * step(0) + j * step(1) + i * step(2)), c_int64_t) /= &
                        100 * (first(0) + k) + 10 * (first(1) + j) + first(2) + i) bad = bad + 1
                end do
            end do
        end do
        call check(bad == 0, "points along z")
        call check(dpar_pencil_free(p) == 0, "end of pencils")
        call dpar_comm_release(world, a)
        call dpar_comm_release(world, b)
    end subroutine

    ! Blocks of a(8, 6), of which one does not exist: the halo above a block has the row of the next one.
    subroutine many_blocks(world)
        type(c_ptr), intent(in) :: world
        integer(c_int8_t), target :: exists(6) = [1_c_int8_t, 1_c_int8_t, 1_c_int8_t, 0_c_int8_t, &
            1_c_int8_t, 1_c_int8_t]
        type(dpar_blocks_desc) :: desc
        type(dpar_blocks_field) :: field
        type(dpar_blocks_move_desc) :: change
        type(dpar_blocks_rebalance_result) :: result
        type(dpar_blocks), pointer :: head
        type(dpar_blocks_array), pointer :: array
        type(dpar_block), pointer :: own(:)
        type(c_ptr), pointer :: at(:)
        type(dpar_why) :: why
        type(c_ptr) :: b, u, list(1)
        real(c_double), pointer :: a(:)
        real(c_double), target :: weight(6), whole(8, 6)
        integer :: bad, i
        desc%dims = 2
        desc%cells(0:1) = [8_c_int64_t, 6_c_int64_t] ! dim 0 is x
        desc%block(0:1) = [4_c_int64_t, 2_c_int64_t]
        desc%halo_high(0) = 1
        desc%periodic(0) = 1
        desc%exists = c_loc(exists)
        call check(dpar_blocks_make(world, desc, b, why) == 0, "blocks: " // dpar_string(why))
        call c_f_pointer(b, head)
        field%order = DPAR_ORDER_FIRST_FASTEST
        call check(dpar_blocks_array_make(b, DPAR_F64, field, u, why) == 0, dpar_string(why))
        call c_f_pointer(u, array)
        call check(array%stride(0) == 1 .and. array%stride(1) == 5, "strides of blocks")
        weight = 1
        change%weight = c_loc(weight)
        change%steps = 1
        call check(dpar_blocks_move(b, change, result, why) == 0, dpar_string(why))
        call c_f_pointer(head%block, own, [head%count])
        call c_f_pointer(array%block, at, [head%count])
        do i = 1, head%count
            call c_f_pointer(at(i), a, [10])
            a = -1
            a([1, 6]) = own(i)%number + 1
        end do
        call check(dpar_blocks_exchange(b, u) == 0, "an exchange of blocks")
        bad = 0
        do i = 1, head%count
            call c_f_pointer(at(i), a, [10])
            if (nint(a(5)) /= merge(mod(own(i)%number + 3, 6) + 1, -1, mod(own(i)%number, 3) /= 0)) bad = bad + 1
        end do
        call check(bad == 0, "halos of blocks")
        list(1) = u
        call check(dpar_blocks_begin(b, list, 1) == 0, "begin of blocks")
        call check(dpar_blocks_test(b, u) >= 0, "test of blocks")
        call check(dpar_blocks_end(b, u) == 0, "end of an exchange of blocks")
        call check(dpar_blocks_gather(b, u, c_loc(whole)) == 0, "gather of blocks")
        call check(dpar_blocks_free(b) == 0, "end of blocks")
    end subroutine

    ! 12 x 12 quads, dealt out like cards, are cut along the curve and go there. What each corner then
    ! has as its coordinates, its own and those of others, is told by the id of its element alone.
    subroutine cutting(world)
        type(c_ptr), intent(in) :: world
        integer, parameter :: side = 12, quads = side * side, nodes = (side + 1) ** 2
        type(dpar_points_partition_desc) :: cloud
        type(dpar_points_migration_desc) :: piece
        type(dpar_points_migration), pointer :: to
        type(dpar_points_field), target :: v(1)
        type(dpar_why) :: why
        type(c_ptr) :: moved, p
        real(c_double), target :: centre(2, quads), xy(2, nodes), xy_new(2, 2 * nodes)
        integer(c_int64_t), target :: quad(quads), id(nodes), corner(4, quads), key(quads)
        integer(c_int64_t), pointer :: quad_new(:)
        integer(c_int32_t), target :: owner(quads)
        integer(c_int32_t), pointer :: corner_new(:, :)
        integer(c_int64_t), target :: total(2)
        integer(c_int64_t) :: at, k
        integer(c_int32_t) :: rank, ranks
        integer :: i, n, m, bad
        rank = dpar_comm_rank(world)
        ranks = dpar_comm_size(world)
        n = 0
        do i = rank, quads - 1, ranks
            n = n + 1
            quad(n) = i
            at = (side + 1) * (i / side) + mod(i, side)
            corner(:, n) = at + [0, 1, side + 2, side + 1]
            centre(:, n) = [real(c_double) :: mod(i, side) + 0.5, i / side + 0.5]
        end do
        m = 0
        do i = rank, nodes - 1, ranks
            m = m + 1
            id(m) = i
            xy(:, m) = [mod(i, side + 1), i / (side + 1)]
        end do
        cloud = dpar_points_partition_desc(dims=2, count=n, position=c_loc(centre), id=c_loc(quad))
        call check(dpar_points_partition(world, cloud, owner, key, why) == 0, &
                  "a partition: " // dpar_string(why))
        call check(all(owner(:n) >= 0 .and. owner(:n) < ranks) .and. all(key(:n) >= 0), "its owners")
        piece = dpar_points_migration_desc(point_count=m, id=c_loc(id), element_count=n, corner_count=4, &
                  corner=c_loc(corner), &
                  element_id=c_loc(quad), element_owner=c_loc(owner), element_order=c_loc(key))
        call check(dpar_points_migration_make(world, piece, moved, why) == 0, "a move: " // dpar_string(why))
        call c_f_pointer(moved, to)
        call check(abs(to%element_count * ranks - quads) < ranks, "as many elements as others")
        call check(dpar_points_make(world, to%desc, p, why) == 0, "its plan: " // dpar_string(why))
        xy_new = -1
        v(1) = dpar_points_field(type=DPAR_F64, components=2, data=c_loc(xy), ghosts=c_loc(xy_new))
        call check(dpar_points_exchange_many(to%points, v, 1) == 0, "coordinates move")
        v(1) = dpar_points_field(type=DPAR_F64, components=2, data=c_loc(xy_new))
        call check(dpar_points_exchange_many(p, v, 1) == 0, "and those of ghosts come")
        call c_f_pointer(to%corner, corner_new, [4_c_int64_t, to%element_count])
        call c_f_pointer(to%element_id, quad_new, [to%element_count])
        bad = 0
        do k = 1, to%element_count
            at = quad_new(k)
            if (any(nint(xy_new(1, corner_new(:, k) + 1)) /= mod(at, 12_8) + [0, 1, 1, 0]) .or. &
                any(nint(xy_new(2, corner_new(:, k) + 1)) /= at / 12 + [0, 0, 1, 1])) bad = bad + 1
        end do
        call check(bad == 0, "corners lie where their elements are")
        total = [to%desc%own_count, to%element_count]
        call check(dpar_all_reduce(world, c_loc(total), c_loc(total), 2_c_int64_t, DPAR_I64, DPAR_SUM) &
                  == 0, "a sum")
        call check(all(total == [nodes, quads]), "nothing is lost")
        owner(1) = merge(ranks, owner(1), rank == 0) ! no such rank
        call check(dpar_points_migration_make(world, piece, p, why) == DPAR_E_ARG, "an owner that is none")
        call check(len(dpar_string(why)) > 10, "its sentence")
        call check(dpar_points_free(p) == 0 .and. dpar_points_migration_free(moved) == 0, "end of the move")
    end subroutine

    ! Two fields of one grid of 11 x 7 x 5 in Fortran's order, x periodic: a(q, i, j, k) as dense as
    ! can be, and b(i, j, k) with a halo that is narrower than the array on every side.
    subroutine halos(world)
        type(c_ptr), intent(in) :: world
        integer, parameter :: n(3) = [11, 7, 5]
        type(dpar_halo), target :: wide, narrow
        type(dpar_halo_field), target :: field(2)
        type(dpar_halo_plan_desc) :: options
        type(dpar_mesh) :: mesh
        type(dpar_why) :: why
        type(dpar_box) :: box
        real(c_double), allocatable, target :: a(:, :, :, :), b(:, :, :)
        character(kind=c_char), allocatable, target :: memory(:)
        type(c_ptr) :: x
        integer(c_intptr_t) :: at
        integer(c_int32_t) :: parts(3)
        integer :: lo(3), hi(3), own_lo(3), own_hi(3), way
        integer :: blank(3) = 1
        logical :: any_
        parts = 0
        call check(dpar_cart_dims(dpar_comm_size(world), 3, parts) == 0, "ranks")
        call check(dpar_mesh_init_names(mesh, ["z", "y", "x"], parts, DPAR_ORDER_LAST_FASTEST, 0) == 0, "mesh")
        call check(dpar_layout_init(wide%grid, mesh, 3, int(n(3:1:-1), c_int64_t), &
                                    [dpar_shard(0), dpar_shard(1), dpar_shard(2)]) == 0, "layout")
        wide%shape = DPAR_STENCIL_BOX
        wide%periodic = 4 ! dim 2 of dpar: x
        narrow = wide
        wide%low(0:2) = [1, 2, 3]
        wide%high(0:2) = [2, 1, 2]
        narrow%low(0:2) = [1, 0, 1]
        narrow%high(0:2) = [0, 1, 1]
        any_ = dpar_halo_owned(wide, dpar_comm_rank(world), box) /= 0
        lo = blank
        hi = 0
        own_lo = blank
        own_hi = 0
        if (any_) then
            call dpar_box_bounds(box, own_lo, own_hi)
            if (dpar_halo_box(wide, dpar_comm_rank(world), box) == 0) call check(.false., "a box")
            call dpar_box_bounds(box, lo, hi)
        end if
        allocate (a(2, lo(1):hi(1), lo(2):hi(2), lo(3):hi(3)), b(lo(1):hi(1), lo(2):hi(2), &
                  lo(3):hi(3)))
        field%type = DPAR_F64
        field(1)%halo = c_loc(wide)
        field(1)%components = 2
        field(2)%halo = c_loc(narrow)
        if (any_) then
            field(1)%data = c_loc(a)
            field(2)%data = c_loc(b)
            call dpar_halo_field_bounds(field(2), dpar_comm_rank(world), lo, hi)
        end if
        do way = DPAR_HALO_AUTO, DPAR_HALO_MESSAGES
            options%method = way
            options%field = c_loc(field)
            options%field_count = 2
            options%bytes = 1
            call check(dpar_halo_plan_make(world, options, x, why) == DPAR_E_ROOM, "bytes")
            allocate (memory(why%bytes + 64))
            at = transfer(c_loc(memory), at)
            options%memory = c_loc(memory(1 + modulo(-at, 64_c_intptr_t)))
            options%bytes = why%bytes
            call check(dpar_halo_plan_make(world, options, x, why) == 0, "make: " // dpar_string(why))
            call fill(a, b, lo, hi, own_lo, own_hi)
            call check(dpar_halo_plan_begin(x) == 0, "begin")
            call check(dpar_halo_plan_end(x) == 0, "end")
            call judge(a, b, lo, hi, own_lo, own_hi, n, [3, 2, 1], [2, 1, 2], [1, 0, 1], [1, 1, 0])
            call check(len(dpar_halo_plan_report_string(x)) > 0, "a report of halos")
            call check(dpar_halo_plan_free(x) == 0, "free")
            options%memory = c_null_ptr
            deallocate (memory)
        end do
    end subroutine

    subroutine fill(a, b, lo, hi, own_lo, own_hi)
        integer, intent(in) :: lo(3), hi(3), own_lo(3), own_hi(3)
        real(c_double), intent(out) :: a(2, lo(1):hi(1), lo(2):hi(2), lo(3):hi(3))
        real(c_double), intent(out) :: b(lo(1):hi(1), lo(2):hi(2), lo(3):hi(3))
        integer :: i, j, k, q
        a = -1
        b = -1
        do k = own_lo(3), own_hi(3)
            do j = own_lo(2), own_hi(2)
                do i = own_lo(1), own_hi(1)
                    do q = 1, 2
                        a(q, i, j, k) = value_at(i, j, k, q)
                    end do
                    b(i, j, k) = value_at(i, j, k, 0)
                end do
            end do
        end do
    end subroutine

    ! Every cell of both arrays: what its indices say, or -1 beyond the box and outside b's widths.
    subroutine judge(a, b, lo, hi, own_lo, own_hi, n, a_low, a_high, b_low, b_high)
        integer, intent(in) :: lo(3), hi(3), own_lo(3), own_hi(3), n(3)
        integer, intent(in) :: a_low(3), a_high(3), b_low(3), b_high(3)
        real(c_double), intent(in) :: a(2, lo(1):hi(1), lo(2):hi(2), lo(3):hi(3))
        real(c_double), intent(in) :: b(lo(1):hi(1), lo(2):hi(2), lo(3):hi(3))
        integer :: i, j, k, q, x, bad
        logical :: inside
        if (any(own_hi < own_lo)) return
        call check(all(lo == own_lo - a_low) .and. all(hi == own_hi + a_high), "bounds")
        bad = 0
        do k = lo(3), hi(3)
            do j = lo(2), hi(2)
                do i = lo(1), hi(1)
                    x = modulo(i - 1, n(1)) + 1
                    inside = j >= 1 .and. j <= n(2) .and. k >= 1 .and. k <= n(3)
                    do q = 1, 2
                        if (a(q, i, j, k) /= merge(value_at(x, j, k, q), -1.0_c_double, &
                                  inside)) bad = bad + 1
                    end do
                    inside = inside .and. all([i, j, k] >= own_lo - b_low .and. [i, j, &
                              k] <= own_hi + b_high)
                    if (b(i, j, k) /= merge(value_at(x, j, k, 0), -1.0_c_double, &
                              inside)) bad = bad + 1
                end do
            end do
        end do
        call check(bad == 0, "halo cells")
    end subroutine

    integer(c_int) function rank_main(world, arg) bind(c)
        type(c_ptr), value :: world, arg
        integer(c_int), pointer :: given
        call c_f_pointer(arg, given)
        call check(given == 42, "what was given to the ranks")
        call collectives(world)
        call grids(world)
        call whole_arrays(world)
        call complex_numbers(world)
        call redistribute(world)
        call halos(world)
        call points(world)
        call narrow_points(world)
        call drifting(world)
        call pencils(world)
        call exact_sums(world)
        call many_blocks(world)
        call cutting(world)
        rank_main = wrong
    end function
end module

program every
    use checks
#ifdef USE_MPI
    use mpi
#endif
    implicit none
    integer(c_int), target :: given = 42
    integer(c_int32_t) :: ranks
    type(dpar_launcher_info) :: job
    type(dpar_why) :: why
    type(c_ptr) :: world
    character(len=8) :: word
#ifdef USE_MPI
    type(dpar_mpi_desc) :: options
    integer :: error
    call MPI_Init(error)
    options%rank_order = 1
    call check(dpar_mpi_make(MPI_COMM_WORLD, options, world, why) == 0, "MPI: " // dpar_string(why))
    ranks = rank_main(world, c_loc(given))
    call check(dpar_comm_free(world) == 0, "close")
    call MPI_Finalize(error)
#else
    call values()
    call get_command_argument(1, word)
    call check(dpar_launcher_detect(job, why) == 0, "launcher: " // dpar_string(why))
    if (job%kind /= DPAR_LAUNCHER_NONE) then
        call check(dpar_init(world, why=why) == 0, "init: " // dpar_string(why))
        ranks = rank_main(world, c_loc(given))
        call check(dpar_comm_free(world) == 0, "close")
    else
        read (word, *) ranks
        call check(dpar_launch(ranks, rank_main, c_loc(given)) == 0, "launch")
    end if
#endif
    if (wrong > 0) stop 1, quiet=.true.
end program
