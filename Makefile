# `make demo` and `make test` work on a bare Debian or Ubuntu with Python 3.11 or later: each first makes .venv.

VENV := .venv
PYTEST := $(VENV)/bin/pytest
# A worker for each processor; what shares a Spark session or a Java build stays with one worker.
SIDE_BY_SIDE := -n auto --maxprocesses 4
INSTALLED := $(VENV)/installed
# Where Spark finds its Java, for a recipe line; empty when there is none.
WITH_JAVA = JAVA_HOME=$$(scripts/find-java) && export JAVA_HOME &&

.PHONY: help install demo test debug check all bench interop soak spark crash kill crashes damage
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

install: $(INSTALLED)  ## make .venv with everything in it, at the versions of constraints.txt

$(INSTALLED): pyproject.toml constraints.txt scripts/make-venv
	@PYTHON="$(PYTHON)" scripts/make-venv

demo: $(INSTALLED)  ## 336,776 messages sent, read back, archived by Spark, and reconciled
	@$(WITH_JAVA) $(VENV)/bin/python demo/demo.py

test: $(INSTALLED)  ## all tests, long ones in a short form: some minutes
	@$(WITH_JAVA) exec $(PYTEST) $(SIDE_BY_SIDE) -m "not soak and (not interop or interop_short)" $(STRICT)

debug: $(INSTALLED)  ## clients and network once more, with asyncio in debug mode
	@exec $(PYTEST) $(SIDE_BY_SIDE) -o asyncio_debug=true tests/client tests/net

check: $(INSTALLED)  ## everything short: format, lint, types, then the tests, none of them slow without saying so
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(MAKE) --no-print-directory debug
	@$(MAKE) --no-print-directory test STRICT=--strict-slow

all: check interop soak spark crashes crash kill damage  ## everything, long: an hour or two

interop: $(INSTALLED)  ## the genuine Java client and servers against ours, both ways (needs Java and Maven)
	@$(WITH_JAVA) exec $(PYTEST) --timeout 600 -m interop tests/interop

soak: $(INSTALLED)  ## random schedules of members that come, go and break; minutes
	@exec $(PYTEST) -m soak tests/soak

spark: $(INSTALLED)  ## all Spark tests, with an archive's driver killed at every point and a project run twice; minutes
	@$(WITH_JAVA) exec $(PYTEST) --timeout 1200 -m "soak or not soak" tests/spark

crashes: $(INSTALLED)  ## a broker killed at every write of a random schedule, a log cut at every byte; minutes (CRASH_SEED, CRASH_RUNS)
	@exec $(PYTEST) --timeout 3600 -rA -m soak tests/crashes tests/recovery

crash: $(INSTALLED)  ## the store on a disk that forgets, fails and stops: N random lives (N=1000), or the one of SEED
	@exec $(VENV)/bin/python -m tests.simulation.run $(if $(SEED),--seed $(SEED),$(or $(N),1000))

damage: $(INSTALLED)  ## random damage anywhere in a broker's folder: refused, repaired or named; minutes (DAMAGE_SEED, DAMAGE_RUNS)
	@exec $(PYTEST) --timeout 3600 -rA -m soak tests/broker/test_damage_search.py

kill: $(INSTALLED)  ## a real server killed with SIGKILL N times (N=50) under load: every confirmed message is consumed
	@exec $(VENV)/bin/python -m tests.kills.run $(or $(N),50) $(if $(SEED),--seed $(SEED))

bench: $(INSTALLED)  ## one table: speed and memory beside a C server and the genuine broker
	@$(VENV)/bin/python benchmarks/end_to_end.py
