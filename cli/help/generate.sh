#!/bin/sh
# The manual page and the shells' completions, made at build time from what `extattn help`
# prints, so that they cannot say anything else: generate.sh man|bash|zsh EXTATTN
set -eu

kind=${1:?usage: generate.sh man|bash|zsh EXTATTN}
extattn=${2:?usage: generate.sh man|bash|zsh EXTATTN}
here=$(dirname "$0")
"$extattn" --version >/dev/null # ends here when it cannot be run

# Every option on one line, and no note about short options.
export ARGP_HELP_FMT=rmargin=4000,no-dup-args-note
export LC_ALL=C

# All there is to know: the version, the list of commands, the help of each.
all_help() {
  "$extattn" --version | sed 's/^/@version /'
  commands=$("$extattn" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\)  *\(.*\)/\1\t\2/p')
  echo "$commands" | sed 's/^/@summary\t/'
  for command in $(echo "$commands" | cut -f 1); do
    [ "$command" != help ] || continue
    echo "@command $command"
    "$extattn" help "$command"
  done
}

help=$(all_help)
echo "$help" | awk -v template="$here/extattn.1.in" -f "$here/parse.awk" -f "$here/$kind.awk"
