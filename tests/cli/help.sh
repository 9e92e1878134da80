#!/usr/bin/env bash
# The manual page and the completions cover every command and option that --help knows.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
help=$3/help
manual=$help/extattn.1

# What --help knows, read off its first column in the form that people see.
commands=$("$extattn" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p')
options_of() { "$extattn" help "$1" | sed -nE 's/^ +(-[^-], )?(--[a-z][a-z0-9-]*).*/\2/p' | sort -u; }
shorts_of() { "$extattn" help "$1" | sed -nE 's/^ +(-[^-]), --.*/\1/p' | sort -u; }

# --- the manual page ---------------------------------------------------------------------

# section COMMAND: its part of the page, without roff's escapes.
section() { sed -n "/^\.SS extattn ${1/-/\\\\-} /,/^\.S[SH] /p" "$manual" | sed 's/\\-/-/g; s/\\f[BIR]//g; s/\\&//g'; }
for command in $commands; do
  [ "$command" != help ] || continue
  section "$command" >"$work/section"
  [ "$(wc -l <"$work/section")" -gt 5 ] || fail "$command is not in the manual page"
  listed=$(grep -oE '^(-[^-], )?--[a-z][a-z0-9-]*' "$work/section" | grep -oE -e '--[a-z0-9-]+' | sort -u)
  printf '%s\n' --help --usage --version "$listed" | sort -u >"$work/listed"
  options_of "$command" >"$work/options"
  [ "$(wc -l <"$work/options")" -gt 3 ] || fail "$command: no options in its help"
  checks=$((checks + 1))
  diff "$work/options" "$work/listed" >"$work/diff" || fail "$command: help (<) and manual page (>): $(cat "$work/diff")"
done
for option in help usage version; do grep -q "\\\\-\\\\-$option" "$manual" || fail "--$option is not in the manual page"; done
# Every variable that the sources look at.
sed -n '/^\.SH ENVIRONMENT/,/^\.SH FILES/p' "$manual" >"$work/section"
variables=$(grep -rhoE '(getenv|environ\.get)\((EA_[A-Z_]*|VARIABLE[A-Z_]*|"[A-Z_]+")' "$source/src" "$source/cli" "$source/python" \
  --include=*.c --include=*.py --include=*.cpp | grep -o '"[A-Z_]*"' | tr -d '"'
  grep -rhoE '^#define [A-Z_]*VARIABLE[A-Z_]* "[A-Z_]+"' "$source/src" | grep -o '"[A-Z_]*"' | tr -d '"'
  echo OMP_NUM_THREADS)
[ "$(wc -l <<<"$variables")" -gt 6 ] || fail "found only these variables in the sources: $variables"
for variable in $variables; do
  checks=$((checks + 1))
  grep -qw -e "$variable" "$work/section" || fail "$variable is not in the manual page"
done
if command -v groff >/dev/null; then
  checks=$((checks + 1))
  groff -man -ww -Tutf8 -z "$manual" 2>"$work/err" || fail "groff fails"
  [ ! -s "$work/err" ] || fail "groff warns: $(head -n 5 "$work/err")"
fi

# --- bash --------------------------------------------------------------------------------

# complete WORD...: what bash offers for the last of the words.
complete_words() {
  COMPREPLY=()
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  _extattn
  printf '%s\n' "${COMPREPLY[@]}"
}
# shellcheck source=/dev/null
. "$help/extattn"
grep -q -- '-F _extattn' <<<"$(complete -p extattn)" || fail "bash: nothing completes extattn"

# offers WORD... = EXPECTED...: exactly these, in any order.
offers() {
  local words=()
  while [ "$1" != === ]; do words+=("$1") && shift; done
  shift
  checks=$((checks + 1))
  diff <(complete_words "${words[@]}" | sort -u) <(printf '%s\n' "$@" | sort -u) >"$work/diff" ||
    fail "bash: ${words[*]}: offered (<), expected (>): $(cat "$work/diff")"
}
# shellcheck disable=SC2086 # lists of words
offers extattn '' === $commands --help --usage --version
# shellcheck disable=SC2086
offers extattn help '' === $commands
for command in $commands; do
  [ "$command" != help ] || continue
  # shellcheck disable=SC2046
  offers extattn "$command" - === $(options_of "$command") $(shorts_of "$command")
done
offers extattn plan --dtype '' === bf16 f16 f32
offers extattn plan --dtype = f === f16 f32
offers extattn plan --dtype = === bf16 f16 f32
offers extattn replay x --device c === cpu cuda
offers extattn replay -d '' === auto cpu cuda
offers extattn replay --slots '' === ordered shuffled pages:
offers extattn plan --isa avx === avx2 avx512 avx512_bf16
# shellcheck disable=SC2046 # words
offers extattn check --promise '' === $("$extattn" check --promise 0 2>&1 | grep -oE '[a-z_]+( \([0-9]\))?(,|$)' | grep -oE '^[a-z_]+')
offers extattn check -p b === bits
offers extattn replay --budget '' === ''
offers extattn replay --cou === --counts-only
cd "$work" || exit
mkdir sub
touch one.jsonl 'two words.jsonl'
offers extattn replay o === one.jsonl options
offers extattn replay tw === 'two words.jsonl'
offers extattn replay --output su === sub
offers extattn replay --plot su === sub
offers extattn plot -o su === sub
offers extattn check --directory '' === sub
offers extattn check --directory o ===
offers extattn bench s === seed
offers extattn bench r === ragged replay
offers extattn bench c === chunks cpu
offers extattn trace o === one.jsonl options
cd "$OLDPWD" || exit

# --- zsh ---------------------------------------------------------------------------------

for command in $commands; do
  grep -q "^  '$command:" "$help/_extattn" || fail "zsh: $command is missing"
  [ "$command" != help ] || continue
  sed -n "/^    $command)\$/,/^      ;;/p" "$help/_extattn" >"$work/section"
  for option in $(options_of "$command"); do
    checks=$((checks + 1))
    grep -qE -e "(^ +'|,)$option(=?\[|=?\}')" "$work/section" || fail "zsh: $command $option is missing"
  done
done
# A colon ends a part of a specification, in a list of words too.
! grep -nE ":\([^)]*[^\\]:" "$help/_extattn" || fail "zsh: a colon that is not escaped"
if command -v zsh >/dev/null; then
  checks=$((checks + 1))
  zsh -n "$help/_extattn" || fail "zsh cannot parse the completion"
fi
finish
