# The commands of the README. `make demo` and `make test` do all the set-up on a fresh
# Debian 12 machine; the building itself is CMake's (CMakePresets.json).
PREFIX ?= /usr/local

.PHONY: all demo test test-gpu test-python-torch wheel bench install clean help
.SILENT:

all:
	scripts/need.sh build
	scripts/build.sh release

demo:
	scripts/need.sh demo
	scripts/build.sh release extattn_cli
	echo '$$ build/extattn replay examples/traces/chat.jsonl --budget 512 --plot build/chat.svg'
	build/extattn replay examples/traces/chat.jsonl --budget 512 --plot build/chat.svg

test:
	scripts/need.sh test
	scripts/test.sh

test-gpu: all
	scripts/test_gpu.sh || [ $$? -eq 77 ] # 77: skipped, and it has said why

test-python-torch: all
	tests/python/run.sh build/tests/python/venv-torch "$$PWD/build/extattn" torch

wheel:
	scripts/wheel.sh

bench: all
	scripts/bench.sh

install: all
	scripts/install.sh build '$(PREFIX)'

clean:
	rm -rf build build-*

help:
	echo 'make            build everything into build/; the command is then build/extattn'
	echo 'make demo       build, replay an example trace, leave a plot'
	echo 'make test       every test: gcc, clang, sanitizers, fuzzing, linters, installation'
	echo 'make test-gpu   the tests that need a GPU, under compute-sanitizer too'
	echo 'make test-python-torch   the tests of the Python package with torch too (some 2 GB to download)'
	echo 'make wheel      a Python wheel for other machines, into build/wheel'
	echo 'make bench      measure this machine and record it under bench/results'
	echo 'make install    install into PREFIX ($(PREFIX))'
	echo 'make clean      remove what was built'
