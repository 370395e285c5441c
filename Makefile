# `make demo` and `make test` work on a bare Debian or Ubuntu with Python 3.11 or later: each first makes .venv.

VENV := .venv
# All processes of all runs share what Python compiled once: tests start hundreds.
PYTEST := env PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/$(VENV)/bytecode $(VENV)/bin/pytest
# Workers as tests/conftest.py says; what shares a Spark session or a Java build stays with one worker.
SIDE_BY_SIDE := -n auto --maxprocesses 4
INSTALLED := $(VENV)/installed
BUILT := $(VENV)/built
COMPILED := $(wildcard src/pyromq/speedups/*.pyx src/pyromq/speedups/*.pxd src/pyromq/speedups/c/*.h)
BOTH_FORMS := $(addprefix tests/,remoting store net broker/producing broker/consuming client/producer speedups)
# Where Spark finds its Java, for a recipe line; empty when there is none.
WITH_JAVA = JAVA_HOME=$$(scripts/find-java) && export JAVA_HOME &&

.PHONY: protos platforms arm64 console browser help install demo failover-demo docs test debug pure check all bench interop soak spark crash sets kill kill-proxy failover endure crashes damage sanitize image wheels release-check size walk
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

install:  ## make .venv with everything in it, at the versions of constraints.txt, and compile the hot path
	@! grep -qs plain $(BUILT) || rm $(BUILT)  # by now there may be a compiler
	@$(MAKE) --silent --no-print-directory $(BUILT)

$(INSTALLED): pyproject.toml constraints.txt scripts/make-venv
	@PYTHON="$(PYTHON)" scripts/make-venv

$(BUILT): $(INSTALLED) $(COMPILED) setup.py scripts/build-speedups
	@scripts/build-speedups

demo: $(BUILT)  ## 336,776 messages sent, read back, archived by Spark, and reconciled
	@$(WITH_JAVA) $(VENV)/bin/python demo/demo.py

failover-demo: $(BUILT)  ## the demo's flights, sent to a replica set of three while its master is killed; half a minute
	@scripts/find-etcd
	@exec $(VENV)/bin/python demo/failover.py

test: $(BUILT)  ## all tests, long ones in a short form: some minutes
	@scripts/find-etcd
	@$(WITH_JAVA) exec $(PYTEST) $(SIDE_BY_SIDE) -m "not soak and not browser and (not interop or interop_short)" $(STRICT)

docs: $(BUILT)  ## build/documentation/html: the documentation as a site; a warning or a broken link fails
	@exec $(VENV)/bin/python -m scripts.documentation.build

debug: $(BUILT)  ## clients and network once more, with asyncio in debug mode
	@exec $(PYTEST) $(SIDE_BY_SIDE) -o asyncio_debug=true -m "not soak and not slow" tests/client tests/net

pure: $(BUILT)  ## in plain Python once more what has a compiled form
	@exec env PYROMQ_PURE=1 $(PYTEST) $(SIDE_BY_SIDE) $(BOTH_FORMS)

platforms: $(BUILT)  ## store, net, clients and the demo with macOS's names, clients, commands and console with Windows's; minutes
	@scripts/names-of darwin $(VENV)/bin/python -m pytest $(SIDE_BY_SIDE) $(addprefix tests/,remoting store net metrics nameserver broker client)
	@PYROMQ_TEST_SERVERS=1 PYROMQ_TEST_LOOP=selector scripts/names-of win32 $(VENV)/bin/python -m pytest $(SIDE_BY_SIDE) tests/client
	@PYROMQ_TEST_SERVERS=1 PYROMQ_TEST_LOOP=proactor scripts/names-of win32 $(VENV)/bin/python -m pytest $(SIDE_BY_SIDE) -m "not soak and not browser" tests/client tests/cli tests/console
	@scripts/names-of darwin $(VENV)/bin/python demo/demo.py

protos: $(BUILT)  ## the descriptors and stubs in src/pyromq/proxy/proto, from scripts/protos (needs a network)
	@scripts/make-protos

arm64: $(BUILT)  ## a wheel for Linux on arm64; its tests, a send and a pull under qemu-user (Debian, root; VERSION=3.11); minutes
	@scripts/try-arm64 $(VERSION)

check: $(BUILT)  ## everything short: format, lint, types, then the tests, none of them slow without saying so
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/mypy --platform darwin --exclude 'platforms/(linux|windows)'
	@$(VENV)/bin/mypy --platform win32 --follow-imports silent -p pyromq.client -p pyromq.cli -p pyromq.console -m pyromq.platforms.windows
	@$(MAKE) --no-print-directory debug pure docs
	@$(MAKE) --no-print-directory test STRICT=--strict-slow

all: check interop soak browser spark crashes crash sets kill failover damage sanitize image  ## everything, long, and all tests in plain Python too: an hour or two
	@PYROMQ_PURE=1 $(MAKE) --no-print-directory test

interop: $(BUILT)  ## the genuine Java client and servers against ours, both ways (needs Java and Maven)
	@$(WITH_JAVA) exec $(PYTEST) --timeout 600 -m interop tests/interop

soak: $(BUILT)  ## random schedules of members, and random loads with and without compiled parts; minutes
	@exec $(PYTEST) -m soak tests/soak tests/speedups tests/broker/permissions tests/console/test_many.py tests/client/consumer/push

spark: $(BUILT)  ## all Spark tests, with an archive's driver killed at every point and a project run twice; minutes
	@$(WITH_JAVA) exec $(PYTEST) --timeout 1200 -m "soak or not soak" tests/spark

crashes: $(BUILT)  ## brokers and replicas killed at every write of random schedules, a log cut at every byte; minutes (CRASH_SEED, CRASH_RUNS)
	@exec $(PYTEST) --timeout 3600 -rA --show-capture stdout --durations 5 -m soak tests/crashes tests/recovery tests/broker/replication tests/simulation tests/kills

sets: $(BUILT)  ## replica sets through random accidents: N lives (N=1000), or the one of SEED, with real stores for STORES=1; then faults
	@exec $(VENV)/bin/python -m tests.simulation.sets.run $(if $(STORES),--stores) $(if $(SEED),--seed $(SEED),$(or $(N),1000))
	@$(if $(SEED)$(STORES),,exec $(VENV)/bin/python -m tests.simulation.sets.run --faults 2000)

crash: $(BUILT)  ## the store on a disk that forgets, fails and stops: N random lives (N=1000), or the one of SEED
	@exec $(VENV)/bin/python -m tests.simulation.run $(if $(KIND),--kind $(KIND)) $(if $(SEED),--seed $(SEED),$(or $(N),1000))

image: $(BUILT)  ## what deploy/ runs, by a wheel in an empty environment, and what monitors it; minutes
	@exec $(PYTEST) --timeout 900 -m "soak or not soak" tests/deploy tests/metrics/test_monitoring.py

damage: $(BUILT)  ## random damage anywhere in a broker's folder: refused, repaired or named; minutes (DAMAGE_SEED, DAMAGE_RUNS)
	@exec $(PYTEST) --timeout 3600 -rA -m soak tests/broker/test_damage_search.py

kill: $(BUILT)  ## a real server killed with SIGKILL N times (N=50) under load: every confirmed message is consumed
	@exec $(VENV)/bin/python -m tests.kills.run $(or $(N),50) $(if $(SEED),--seed $(SEED))

kill-proxy: $(BUILT)  ## proxy and broker killed N times (N=30) under the official Python client: every confirmed message is received
	@exec $(VENV)/bin/python -m tests.kills.run_proxy $(or $(N),30) $(if $(SEED),--seed $(SEED))

failover: $(BUILT)  ## a replica set on a real etcd, under load: N accidents (N=20) to brokers, etcd and links; minutes (SEED, ONLY=kill,cut)
	@scripts/find-etcd
	@exec $(VENV)/bin/python -m tests.failover.run $(or $(N),20) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

endure: $(BUILT)  ## two clusters under load of every kind for HOURS (HOURS=2), one killed each round: nothing lost, nothing rises (LOAD=0.12)
	@exec $(VENV)/bin/python -m tests.endurance.run $(or $(HOURS),2) $(if $(LOAD),--load $(LOAD)) $(if $(SEED),--seed $(SEED))

sanitize: $(BUILT)  ## the compiled parts, each access to memory checked, against plain Python: half an hour (N, LOADS, SEED)
	@scripts/sanitize

size:  ## files, lines, imports and lengths of functions by package
	@python3 scripts/size.py

walk: $(BUILT)  ## files and calls that a send, a pull, a delivery, a close and a message's life pass in plain Python
	@$(VENV)/bin/python scripts/walk.py $(if $(FILES),--files)

wheels: $(BUILT)  ## dist/: the sources, and a wheel for each CPython on the PATH (or in PYTHONS='...'), built and tried
	@$(VENV)/bin/python scripts/make_wheels.py $(PYTHONS)

release-check: $(BUILT)  ## dist/: what `make wheels` makes, a wheel of plain Python, a bill of materials; all checked; minutes
	@exec $(VENV)/bin/python scripts/release_check.py $(PYTHONS)

console: $(BUILT)  ## the console before a cluster full of flights, until Ctrl-C
	@$(VENV)/bin/python demo/console.py

browser: $(BUILT)  ## every page and change of the console in Debian's chromium, with axe; minutes
	@exec $(PYTEST) -m "soak or not soak" tests/console/browser

bench: $(BUILT)  ## the tables of benchmarks/results.md: 25 minutes (T=list names them, T="servers delays", QUICK=1)
	@$(WITH_JAVA) exec $(VENV)/bin/python benchmarks/run.py $(T) $(if $(QUICK),--quick)
