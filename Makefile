# SPDX-License-Identifier: MIT-0
# make run: plan a real model on a real machine, run ranks on this one. make test: everything that needs only cc and make.
CC ?= cc
FORTRAN ?= gfortran
CFLAGS ?= -O2
PREFIX ?= /usr/local
BUILD = build
EXAMPLES = $(BUILD)/plan $(BUILD)/pipeline $(BUILD)/ranks $(BUILD)/doctor $(BUILD)/shallow_water $(BUILD)/mg $(BUILD)/unet
SPEEDS = $(BUILD)/plan_speed $(BUILD)/index_speed $(BUILD)/order_speed $(BUILD)/kernel_speed $(BUILD)/strategies $(BUILD)/overlap
PASTED = tools/amalgamate tools/first_screen.txt $(wildcard src/*/*.h src/*/*.c)

.POSIX:
.PHONY: help run examples test gates lint accuracy bench performance fuzz clean install

help:
	@echo 'make run        plan Llama-3-70B and a weather U-Net, draw a pipeline; pictures in build/; 4 ranks here;'
	@echo '                15 days of weather on a planet, on 2; 20 steps of a GPT on 4'
	@echo 'make test       all tests that need only cc and make'
	@echo 'make gates      the long checks: compilers, dialects, targets, sanitizers, fuzzing, packaging,'
	@echo '                models of the protocols, ranks that fail (half an hour)'
	@echo 'make accuracy   regenerate docs/accuracy.md from the published tables in tests/data/cost'
	@echo 'make bench      configurations a second; ns an index, ms a transfer list; ns an action; GB/s of the'
	@echo '                reductions; collectives beside Open MPI and MPICH (minutes)'
	@echo 'make performance   communicators and halos beside Open MPI, MPICH, PETSc, strategies'
	@echo '                beside PyTorch, whose python is PYTHON (17 minutes): docs/performance.md;'
	@echo '                NPB=DIR: and examples/mg beside the mg.A.x there'
	@echo 'make examples   build/plan build/pipeline build/ranks build/doctor build/shallow_water build/mg build/unet build/train_gpt'
	@echo 'make build/lbm  the Fortran example (gfortran)'
	@echo 'make dpar.h     regenerate the header from src/; make bindings/fortran/dpar.f90: the Fortran module'
	@echo 'make lint       widths, lengths, names, documentation'
	@echo 'make install PREFIX=/usr/local'

dpar.h: $(PASTED)
	tools/amalgamate > $@.new && mv $@.new $@

bindings/fortran/dpar.f90: tools/fortran bindings/fortran/helpers.inc dpar_mpi.h $(PASTED)
	tools/fortran > $@.new && mv $@.new $@

# Fortran: not among the examples, which need a C compiler alone.
$(BUILD)/lbm: examples/lbm.f90 bindings/fortran/dpar.f90 bindings/fortran/dpar.c dpar.h
	@mkdir -p $(BUILD)/fortran
	$(CC) $(CFLAGS) -DDPAR_NO_COST -I. -c bindings/fortran/dpar.c -o $(BUILD)/fortran/dpar.o
	$(FORTRAN) -O3 -ffp-contract=off -cpp -J$(BUILD)/fortran bindings/fortran/dpar.f90 examples/lbm.f90 $(BUILD)/fortran/dpar.o -o $@

$(EXAMPLES): dpar.h
	@mkdir -p $(BUILD)
	$(CC) $(CFLAGS) -DDPAR_IMPLEMENTATION -I. examples/$(@F).c -o $@

$(BUILD)/plan: examples/plan.c
$(BUILD)/pipeline: examples/pipeline.c
$(BUILD)/ranks: examples/ranks.c
$(BUILD)/doctor: examples/doctor.c
$(BUILD)/shallow_water: examples/shallow_water.c
$(BUILD)/mg: examples/mg.c
$(BUILD)/unet: examples/unet.c

$(BUILD)/train_gpt: examples/train_gpt.c examples/gpt.h examples/gpt_host.h examples/train_options.h examples/train_files.h examples/train_plan.h dpar.h
	@mkdir -p $(BUILD)
	$(CC) $(CFLAGS) -DDPAR_IMPLEMENTATION -I. examples/train_gpt.c -o $@ -lm

examples: $(EXAMPLES) $(BUILD)/train_gpt

run: $(BUILD)/plan $(BUILD)/pipeline $(BUILD)/ranks $(BUILD)/shallow_water $(BUILD)/train_gpt
	./$(BUILD)/plan llama-3-70b --cluster 8x8:a100-80,nvlink=300,nic=8x25 --batch 512 --top 6 --explain --svg $(BUILD)/llama-3-70b.svg
	@echo
	./$(BUILD)/plan unet-0.25deg --cluster derecho --gpus 16 --top 6 --svg $(BUILD)/unet-0.25deg.svg
	@echo
	./$(BUILD)/pipeline --schedule zbv --stages 4 --micro 8 --latency 0.25 --svg $(BUILD)/zbv.svg
	@echo
	./$(BUILD)/ranks 4
	@echo
	./$(BUILD)/shallow_water --case 2 --table --ranks 2
	@echo
	./$(BUILD)/shallow_water --case 5 --days 15 --ranks 2 --every 120 --frames $(BUILD)/planet_
	@echo
	./$(BUILD)/train_gpt --pp 2 --dp 2 --zero 2 --schedule zbv --steps 20 --check --trace $(BUILD)/train_gpt.json
	@echo
	@echo 'pictures: $(BUILD)/llama-3-70b.svg $(BUILD)/unet-0.25deg.svg $(BUILD)/zbv.svg $(BUILD)/planet_0360.ppm; a trace: $(BUILD)/train_gpt.json'

test:
	@CC="$(CC)" CFLAGS="$(CFLAGS)" sh tests/run

gates:
	@CC="$(CC)" CFLAGS="$(CFLAGS)" sh tests/run gates

lint:
	@sh tools/lint

$(BUILD)/accuracy: bench/accuracy.c dpar.h
	@mkdir -p $(BUILD)
	$(CC) $(CFLAGS) -DDPAR_IMPLEMENTATION -I. bench/accuracy.c -o $@ -lm

accuracy: $(BUILD)/accuracy
	./$(BUILD)/accuracy > docs/accuracy.md.new && mv docs/accuracy.md.new docs/accuracy.md

$(SPEEDS): dpar.h
	@mkdir -p $(BUILD)
	$(CC) $(CFLAGS) -DDPAR_IMPLEMENTATION -I. bench/$(@F).c -o $@

$(BUILD)/plan_speed: bench/plan_speed.c
$(BUILD)/index_speed: bench/index_speed.c
$(BUILD)/order_speed: bench/order_speed.c
$(BUILD)/kernel_speed: bench/kernel_speed.c
$(BUILD)/strategies: bench/strategies.c
$(BUILD)/overlap: bench/overlap.c

bench: $(SPEEDS)
	./$(BUILD)/plan_speed
	./$(BUILD)/index_speed
	./$(BUILD)/order_speed
	./$(BUILD)/kernel_speed
	./$(BUILD)/strategies 1
	./$(BUILD)/overlap
	sh bench/comm_speed.sh 1 || [ $$? -eq 77 ]

performance: dpar.h $(BUILD)/strategies $(BUILD)/overlap
	sh bench/comm_speed.sh 5 > docs/performance.md.new
	echo >> docs/performance.md.new
	sh bench/halo.sh 5 >> docs/performance.md.new
	echo >> docs/performance.md.new
	sh bench/strategies.sh >> docs/performance.md.new
	if [ -n "$(NPB)" ]; then echo; NPB="$(NPB)" sh bench/mg.sh; fi >> docs/performance.md.new
	mv docs/performance.md.new docs/performance.md

fuzz:
	@sh tests/compile/fuzz.sh

install: dpar.h bindings/fortran/dpar.f90
	mkdir -p $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/dpar/fortran
	cp dpar.h dpar_mpi.h dpar_cuda.h dpar_nccl.h $(DESTDIR)$(PREFIX)/include/
	cp bindings/fortran/dpar.f90 bindings/fortran/dpar.c $(DESTDIR)$(PREFIX)/share/dpar/fortran/
	sed 's|@PREFIX@|$(PREFIX)|' tools/dpar.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/dpar.pc

clean:
	rm -rf $(BUILD)
