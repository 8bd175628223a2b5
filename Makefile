# SPDX-License-Identifier: MIT-0
# make run: plan a real model on a real machine, run ranks on this one. make test: what a contributor runs.
# Both need only cc and make.
CC ?= cc
MPICC ?= mpicc
FORTRAN ?= gfortran
CFLAGS ?= -O2
PREFIX ?= /usr/local
B = build
HEADERS = dpar.h dpar_schedule.h dpar_cost.h dpar_proof.h dpar_comm.h dpar_halo.h dpar_blocks.h dpar_points.h dpar_particles.h dpar_pencil.h dpar_exact.h \
	dpar_train.h dpar_spatial.h dpar_debug.h
ENGINES = dpar_mpi.h dpar_nccl.h dpar_cuda.h
OBJECTS = $(B)/dpar.o $(B)/dpar_schedule.o $(B)/dpar_cost.o $(B)/dpar_proof.o $(B)/dpar_comm.o $(B)/dpar_halo.o \
	$(B)/dpar_blocks.o $(B)/dpar_points.o $(B)/dpar_particles.o $(B)/dpar_pencil.o $(B)/dpar_exact.o \
	$(B)/dpar_train.o $(B)/dpar_spatial.o $(B)/dpar_debug.o
COMMANDS = $(B)/plan $(B)/pipeline $(B)/doctor $(B)/decompose $(shell command -v $(MPICC) > /dev/null 2>&1 && echo $(B)/doctor_mpi)
APPS = $(B)/ranks $(B)/reshard $(B)/shallow_water $(B)/mg $(B)/fem $(B)/unet $(B)/llama $(B)/train_gpt
SPEEDS = $(B)/plan_speed $(B)/index_speed $(B)/order_speed $(B)/kernel_speed $(B)/p2p_speed $(B)/grid_speed $(B)/strategies \
	$(B)/overlap $(B)/host_kernels $(B)/scale
RUN = $(B)/plan $(B)/pipeline $(B)/ranks $(B)/shallow_water $(B)/train_gpt
# as many at a time as there are cores
PARALLEL = $(MAKE) -j$$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 2)

.PHONY: help run commands man apps examples docs headers sizes all-headers test gates nightly lint soak accuracy bench performance \
	calibrate loop \
	playground playground-pictures fuzz clean install test-index test-schedule test-cost test-host test-comm test-halo test-blocks test-points test-particles test-pencil test-exact test-train test-spatial test-debug test-mpi test-gpu

help:
	@echo 'make run        plan Llama-3-70B and a weather U-Net, draw a pipeline; pictures in build/; 4 ranks here;'
	@echo '                15 days of weather on a planet, on 2; 20 steps of a GPT on 4'
	@echo 'make test       what a contributor runs (5 minutes); make test-index, -schedule, -cost, -host, -comm, -halo,'
	@echo '                -points, -pencil, -blocks, -exact, -train, -spatial, -debug, -mpi: the tests of one folder; test-gpu: on stand-ins (10 minutes)'
	@echo 'make gates      what each push pays beyond that: compilers, dialects, targets, sanitizers, fuzzing,'
	@echo '                packaging, models of the protocols, ranks that fail, each in part'
	@echo 'make nightly    all of that, whole (hours)'
	@echo 'make commands   build/plan build/pipeline build/doctor build/decompose; where there is an mpicc (or'
	@echo '                MPICC=...) build/doctor_mpi, the doctor for jobs on several nodes'
	@echo 'make man        build/man/plan.1, ...: what the commands say by --help'
	@echo 'make examples   build/01_... ; make apps: build/ranks build/reshard build/shallow_water build/mg build/fem'
	@echo '                build/unet build/llama build/train_gpt; make build/lbm: the Fortran one (gfortran)'
	@echo 'make headers    regenerate the headers from src/; make sizes: their sizes; make dpar_all.h: all in one'
	@echo 'make docs       regenerate docs/api.md, the index of all names, and the pictures of the guide'
	@echo 'make playground regenerate docs/playground/index.html, the page (clang, wasm-ld)'
	@echo 'make accuracy   regenerate docs/records/accuracy.md from the published tables in tests/data/cost'
	@echo 'make calibrate  measures this machine into build/this.cluster, for plan --cluster build/this.cluster'
	@echo 'make loop       and runs what plan, collectives and halos predict of it: a table (3 minutes)'
	@echo 'make bench      configurations a second; ns an index, ms a transfer list; ns an action; GB/s of the'
	@echo '                reductions; collectives, and exchanges of particles, pencils, shared nodes and'
	@echo '                lattices, beside Open MPI and MPICH (minutes)'
	@echo 'make performance   communicators, halos and exchanges of simulation codes beside Open MPI, MPICH, PETSc,'
	@echo '                strategies beside PyTorch, whose python is PYTHON (25 minutes): docs/records/performance.md;'
	@echo '                NPB=DIR: and apps/mg beside the mg.A.x there'
	@echo 'make soak       random work and random faults for SECONDS=3600: docs/reliability.md'
	@echo 'make lint       widths, names, documentation'
	@echo 'make install PREFIX=/usr/local'

# ---- headers: pasted from src/ ----

PASTED = tools/amalgamate tools/headers src/base/*.[ch]
dpar.h: $(PASTED) src/index/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_schedule.h: $(PASTED) src/schedule/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_cost.h: $(PASTED) src/cost/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_proof.h: $(PASTED) src/proof/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_comm.h: $(PASTED) src/host/* src/comm/* src/exchange/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_halo.h: $(PASTED) src/halo/* src/host/strided_loops.h
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_points.h: $(PASTED) src/points/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_particles.h: $(PASTED) src/particles/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_pencil.h: $(PASTED) src/pencil/* src/host/strided_loops.h
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_exact.h: $(PASTED) src/exact/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_blocks.h: $(PASTED) src/blocks/* src/host/strided_loops.h
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_train.h: $(PASTED) src/host/* src/train/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_spatial.h: $(PASTED) src/spatial/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_debug.h: $(PASTED) src/debug/* src/halo/halo_view.*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_mpi.h: $(PASTED) src/mpi/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_nccl.h: $(PASTED) src/nccl/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_cuda.h: $(PASTED) src/cuda/*
	tools/amalgamate $@ > $@.new && mv $@.new $@
dpar_all.h: $(HEADERS) src/all.txt
	tools/amalgamate $@ > $@.new && mv $@.new $@

bindings/fortran/dpar.f90: tools/fortran bindings/fortran/helpers.inc dpar_mpi.h $(HEADERS)
	tools/fortran > $@.new && mv $@.new $@

headers: $(HEADERS) $(ENGINES)

sizes: $(HEADERS)
	@CC="$(CC)" sh tools/sizes

# ---- the library: one object a header ----

$(B)/dpar.o: dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_INDEX_IMPLEMENTATION -x c -c dpar.h -o $@
$(B)/dpar_schedule.o: dpar_schedule.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_SCHEDULE_IMPLEMENTATION -x c -c dpar_schedule.h -o $@
$(B)/dpar_cost.o: dpar_cost.h dpar_schedule.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_COST_IMPLEMENTATION -x c -c dpar_cost.h -o $@
$(B)/dpar_proof.o: dpar_proof.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_PROOF_IMPLEMENTATION -x c -c dpar_proof.h -o $@
$(B)/dpar_comm.o: dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_COMM_IMPLEMENTATION -x c -c dpar_comm.h -o $@
$(B)/dpar_halo.o: dpar_halo.h dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_HALO_IMPLEMENTATION -x c -c dpar_halo.h -o $@
$(B)/dpar_points.o: dpar_points.h dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_POINTS_IMPLEMENTATION -x c -c dpar_points.h -o $@
$(B)/dpar_particles.o: dpar_particles.h dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_PARTICLES_IMPLEMENTATION -x c -c dpar_particles.h -o $@

$(B)/dpar_pencil.o: dpar_pencil.h dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_PENCIL_IMPLEMENTATION -x c -c dpar_pencil.h -o $@
# The functions for grids and meshes are in it, as the headers of these are included before.
$(B)/dpar_exact.o: dpar_exact.h dpar_halo.h dpar_points.h dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_EXACT_IMPLEMENTATION -include ./dpar_halo.h -include ./dpar_points.h -x c -c dpar_exact.h -o $@
$(B)/dpar_blocks.o: dpar_blocks.h dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_BLOCKS_IMPLEMENTATION -x c -c dpar_blocks.h -o $@
$(B)/dpar_train.o: dpar_train.h dpar_comm.h dpar_schedule.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_TRAIN_IMPLEMENTATION -x c -c dpar_train.h -o $@
$(B)/dpar_spatial.o: dpar_spatial.h dpar_train.h dpar_halo.h dpar_comm.h dpar_schedule.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_SPATIAL_IMPLEMENTATION -x c -c dpar_spatial.h -o $@
$(B)/dpar_debug.o: dpar_debug.h dpar_halo.h dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_DEBUG_IMPLEMENTATION -x c -c dpar_debug.h -o $@
$(B)/libdpar.a: $(OBJECTS)
	rm -f $@
	ar rc $@ $(OBJECTS)

# ---- programs ----

LINK = $(CC) $(CFLAGS) -I. $< $(B)/libdpar.a -o $@ -lm
$(B)/plan: commands/plan.c helpers/options.h commands/machine.h $(B)/libdpar.a
	$(LINK)
$(B)/pipeline: commands/pipeline.c helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/doctor: commands/doctor.c commands/doctor_links.h commands/doctor_machine.h helpers/clock.h helpers/measure.h \
		helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/doctor_mpi: commands/doctor.c commands/doctor_links.h commands/doctor_machine.h helpers/clock.h helpers/measure.h \
		helpers/options.h dpar_mpi.h $(B)/libdpar.a
	$(MPICC) $(CFLAGS) -DDOCTOR_MPI -DDPAR_MPI_IMPLEMENTATION -I. $< $(B)/libdpar.a -o $@ -lm
$(B)/decompose: commands/decompose.c commands/decompose_proof.h commands/decompose_blocks.h helpers/options.h commands/machine.h $(B)/libdpar.a
	$(LINK)
$(B)/ranks: apps/ranks.c apps/start.h helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/reshard: apps/reshard.c helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/shallow_water: apps/shallow_water.c apps/start.h helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/mg: apps/mg.c apps/start.h helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/fem: apps/fem.c apps/start.h helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/unet: apps/unet.c apps/start.h helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/llama: apps/llama.c helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/train_gpt: apps/train_gpt.c apps/start.h apps/gpt.h apps/gpt_host.h apps/gpt_loops.h apps/gpt_products.h apps/gpt_rows.h helpers/options.h apps/train_options.h apps/train_files.h apps/train_plan.h apps/train_rates.h apps/train_trace.h $(B)/libdpar.a
	$(LINK)
$(B)/plan_speed: bench/plan_speed.c $(B)/libdpar.a
	$(LINK)
$(B)/index_speed: bench/index_speed.c $(B)/libdpar.a
	$(LINK)
$(B)/order_speed: bench/order_speed.c $(B)/libdpar.a
	$(LINK)
$(B)/p2p_speed: bench/p2p_speed.c $(B)/libdpar.a
	$(LINK)
$(B)/grid_speed: bench/grid_speed.c $(B)/libdpar.a
	$(CC) $(CFLAGS) -I. bench/grid_speed.c $(B)/libdpar.a -o $@
$(B)/strategies: bench/strategies.c $(B)/libdpar.a
	$(LINK)
$(B)/overlap: bench/overlap.c $(B)/libdpar.a
	$(LINK)
$(B)/scale: bench/scale.c bench/scale_lines.h bench/scale_lists.h bench/scale_replay.h $(B)/libdpar.a
	$(LINK)
$(B)/loop: bench/loop.c helpers/measure.h helpers/options.h $(B)/libdpar.a
	$(LINK)
$(B)/accuracy: bench/accuracy.c helpers/memory_rows.h helpers/net_rows.h $(B)/libdpar.a
	$(LINK)
$(B)/host_kernels: bench/host_kernels.c $(B)/libdpar.a
	$(CC) -O3 -march=native -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math \
	    -ffinite-math-only -DPLAIN -c bench/host_kernels.c -o $(B)/plain.o
	$(CC) $(CFLAGS) -I. bench/host_kernels.c $(B)/plain.o $(B)/libdpar.a -o $@ -lm
# looks at what is inside
$(B)/kernel_speed: bench/kernel_speed.c dpar_comm.h dpar.h
	@mkdir -p $(B)
	$(CC) $(CFLAGS) -DDPAR_STATIC -DDPAR_IMPLEMENTATION -I. bench/kernel_speed.c -o $@

# Fortran: not among the apps, which need a C compiler alone.
$(B)/lbm: apps/lbm.f90 bindings/fortran/dpar.f90 bindings/fortran/dpar.c $(HEADERS)
	@mkdir -p $(B)/fortran
	$(CC) $(CFLAGS) -I. -c bindings/fortran/dpar.c -o $(B)/fortran/dpar.o
	$(FORTRAN) -O3 -ffp-contract=off -cpp -J$(B)/fortran bindings/fortran/dpar.f90 apps/lbm.f90 $(B)/fortran/dpar.o -o $@

commands: $(COMMANDS)
# Man pages of what each says by --help.
PAGES = $(B)/man/plan.1 $(B)/man/pipeline.1 $(B)/man/decompose.1 $(B)/man/doctor.1
man: $(PAGES)
$(PAGES): $(B)/man/%.1: $(B)/% tools/man
	@mkdir -p $(B)/man
	@tools/man $< > $@.new && mv $@.new $@
apps: $(APPS)
# As each says in its first lines: nothing but its command.
examples:
	@mkdir -p $(B)
	@for each in examples/[0-9]*.c; do \
	    grep -q '^ \*   cc ' $$each || continue; \
	    if grep -q '^#include <fftw3.h>' $$each && ! echo '#include <fftw3.h>' | $(CC) -E - > /dev/null 2>&1; then \
	        echo "fftw3.h: not found, $$each skipped"; continue; fi; \
	    number=$$(basename $$each | sed 's/_.*//'); \
	    libraries=$$(sed -n '/^ \*   cc /s/.* -o build\/[0-9]*\( -l[-a-z0-9 ]*\)$$/\1/p' $$each); \
	    echo "$(CC) $(CFLAGS) -DDPAR_IMPLEMENTATION -I. $$each -o $(B)/$$number$$libraries"; \
	    $(CC) $(CFLAGS) -DDPAR_IMPLEMENTATION -I. $$each -o $(B)/$$number$$libraries || exit 1; \
	done

run:
	@echo 'building the library (one object a header) and five programs...'
	@$(PARALLEL) $(RUN)
	./$(B)/plan llama-3-70b --cluster 8x8:a100-80,nvlink=300,nic=8x25 --batch 512 --top 6 --explain --svg $(B)/llama-3-70b.svg
	@echo
	./$(B)/plan unet-0.25deg --cluster derecho --gpus 16 --top 6 --svg $(B)/unet-0.25deg.svg
	@echo
	./$(B)/pipeline --schedule zbv --stages 4 --micro 8 --latency 0.25 --svg $(B)/zbv.svg
	@echo
	./$(B)/ranks 4
	@echo
	./$(B)/shallow_water --case 2 --table --ranks 2
	@echo
	./$(B)/shallow_water --case 5 --days 15 --ranks 2 --every 120 --frames $(B)/planet_
	@echo
	./$(B)/train_gpt --pp 2 --dp 2 --zero 2 --schedule zbv --steps 20 --check --trace $(B)/train_gpt.json
	@echo
	@echo 'pictures: $(B)/llama-3-70b.svg $(B)/unet-0.25deg.svg $(B)/zbv.svg $(B)/planet_0360.ppm; a trace: $(B)/train_gpt.json'

# ---- tests ----

TESTS = CC="$(CC)" CFLAGS="$(CFLAGS)" sh tests/run
test:
	@$(TESTS) test
gates:
	@$(TESTS) gate
nightly:
	@$(TESTS) night
test-index:
	@$(TESTS) test index
test-schedule:
	@$(TESTS) test schedule
test-cost:
	@$(TESTS) test cost
test-host:
	@$(TESTS) test host
test-comm:
	@$(TESTS) test comm
test-halo:
	@$(TESTS) test halo
test-points:
	@$(TESTS) test points
test-particles:
	@$(TESTS) test particles

test-pencil:
	@$(TESTS) test pencil
test-exact:
	@$(TESTS) test exact
test-blocks:
	@$(TESTS) test blocks
test-train:
	@$(TESTS) test train
test-spatial:
	@$(TESTS) test spatial
test-debug:
	@$(TESTS) test debug
test-mpi:
	@$(TESTS) test mpi
test-gpu:
	@$(TESTS) gate gpu

lint:
	@sh tools/lint

SECONDS = 3600
SEED = 1
soak:
	@sh tests/soak.sh $(SECONDS) $(SEED)

fuzz:
	@sh tests/compile/fuzz.sh

# ---- documents and measurements ----

docs/records/gpu.md: tools/gpu-record tests/gpu/record
	tools/gpu-record
docs/api.md: tools/api tools/headers $(HEADERS) $(ENGINES)
	tools/api > $@.new && mv $@.new $@
DRAWN = layouts meshes moving halo blocks points partition pipeline memory time training trouble
PICTURES = $(DRAWN:%=docs/guide/%.svg)
DRAW = $(wildcard docs/guide/pictures/*.c)
$(B)/pictures: $(DRAW) docs/guide/pictures/pictures.h $(B)/libdpar.a
	$(CC) $(CFLAGS) -I. $(DRAW) $(B)/libdpar.a -o $@ -lm
$(PICTURES): docs/guide/%.svg: $(B)/pictures
	./$(B)/pictures $* > $@.new && mv $@.new $@
docs: docs/api.md $(PICTURES)
# One file, with dpar in it as wasm (clang, wasm-ld); its pictures need a Chromium.
playground:
	tools/playground
playground-pictures:
	python3 tests/playground/look.py $${CHROMIUM:-chromium} pictures docs/playground

accuracy: $(B)/accuracy
	./$(B)/accuracy --svg docs/records/accuracy.svg > docs/records/accuracy.md.new && mv docs/records/accuracy.md.new docs/records/accuracy.md

calibrate: $(B)/doctor
	sh bench/loop.sh calibrate
loop: $(B)/doctor $(B)/plan $(B)/loop $(B)/shallow_water $(B)/unet $(B)/train_gpt
	sh bench/loop.sh

bench:
	@$(PARALLEL) $(SPEEDS)
	./$(B)/plan_speed
	./$(B)/index_speed
	./$(B)/order_speed
	./$(B)/kernel_speed
	./$(B)/p2p_speed
	./$(B)/grid_speed
	./$(B)/strategies 1
	./$(B)/overlap
	./$(B)/host_kernels
	./$(B)/scale
	sh bench/comm_speed.sh 1 || [ $$? -eq 77 ]
	sh bench/by_hand.sh 1 || [ $$? -eq 77 ]

performance: $(B)/strategies $(B)/overlap $(B)/host_kernels $(B)/train_gpt
	sh bench/comm_speed.sh 5 > docs/records/performance.md.new
	echo >> docs/records/performance.md.new
	sed -n '/^## Over MPI/,/^## Halo exchanges/p' docs/records/performance.md | sed '$$d' >> docs/records/performance.md.new
	sh bench/halo.sh 5 >> docs/records/performance.md.new
	echo >> docs/records/performance.md.new
	sh bench/strategies.sh >> docs/records/performance.md.new
	echo >> docs/records/performance.md.new
	sh bench/by_hand.sh 5 >> docs/records/performance.md.new
	echo >> docs/records/performance.md.new
	if [ -n "$(NPB)" ]; then NPB="$(NPB)" sh bench/mg.sh; else sed -n '/^## NAS MG/,$$p' docs/records/performance.md; fi >> docs/records/performance.md.new
	mv docs/records/performance.md.new docs/records/performance.md

# The commands make their man pages and have to run here: a CC for elsewhere leaves them out.
install: $(HEADERS) $(ENGINES) bindings/fortran/dpar.f90
	mkdir -p $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/dpar/fortran
	cp $(HEADERS) dpar_mpi.h dpar_cuda.h dpar_nccl.h $(DESTDIR)$(PREFIX)/include/
	cp bindings/fortran/dpar.f90 bindings/fortran/dpar.c $(DESTDIR)$(PREFIX)/share/dpar/fortran/
	sed 's|@PREFIX@|$(PREFIX)|' tools/dpar.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/dpar.pc
	@if $(MAKE) -s man; then \
	    mkdir -p $(DESTDIR)$(PREFIX)/share/man/man1 && cp $(PAGES) $(DESTDIR)$(PREFIX)/share/man/man1/; \
	else \
	    echo 'the commands could not be built or do not run here: no man pages are installed'; \
	fi

clean:
	rm -rf $(B)
