#!/bin/sh
# Runs a command with its output in a file: logged.sh LOG COMMAND... Shows the file when the command fails.
set -u
log=$1
shift
if ! "$@" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
