# Reads the help of all commands, as generate.sh puts it together, into arrays:
#   num_commands, command[i], summary[name]
#   usage[name], intro[name], outro[name]                      lines, each with its newline
#   num_options[name], group[name, i], short[name, i], long[name, i], takes[name, i], says[name, i]
# An option takes an argument of the name that the help shows: choices in `a|b|c`, a file in a
# name that begins with FILE or OUT, a folder in DIR, one of a list where the help has a list of that
# name ("Promises:" for PROMISE), anything in any other.

# "-n, --requests=N   Only the first N requests" or "--json   ..."
function add_option(name, line,    i, at, spec) {
  i = ++num_options[name]
  group[name, i] = heading
  heading = ""
  sub(/^ +/, "", line)
  at = match(line, /  +/)
  spec = at ? substr(line, 1, at - 1) : line
  says[name, i] = at ? substr(line, at + RLENGTH) : ""
  short[name, i] = ""
  if (spec ~ /^-[^-], /) {
    short[name, i] = substr(spec, 1, 2)
    spec = substr(spec, 5)
  }
  at = index(spec, "=")
  long[name, i] = at ? substr(spec, 1, at - 1) : spec
  takes[name, i] = at ? substr(spec, at + 1) : ""
}

# The words of an argument that can be typed as they stand; "" when there is no choice.
function choices(argument,    n, i, words, out) {
  if (argument !~ /\|/ || is_file(argument)) return ""
  out = ""
  n = split(argument, words, "|")
  for (i = 1; i <= n; i++) {
    sub(/\[.*/, "", words[i])
    sub(/:N$/, ":", words[i])
    if (words[i] !~ /^[A-Z]+$/) out = out (out == "" ? "" : " ") words[i]
  }
  return out
}

function is_file(argument) {
  return argument ~ /^(FILE|OUT|CASE|TRACE|RESULT)/
}

function is_folder(argument) {
  return argument == "DIR"
}

# What a command takes besides options: "TRACE", or "" for nothing.
function operand(name,    words, n) {
  n = split(usage[name], words, /[ \n]+/)
  while (n > 1 && words[n] == "") n--
  if (words[n] ~ /^\[[A-Z]+\]$/) words[n] = substr(words[n], 2, length(words[n]) - 2) # may be left out
  return words[n] ~ /^[A-Z][A-Za-z.]*$/ ? words[n] : ""
}

# Where an operand or an option's argument is one of a list that the help prints under its name ("Suites:"), the list.
function list_choices(name, argument,    lines, n, i, out, inside, word) {
  out = ""
  n = split(outro[name], lines, "\n")
  for (i = 1; i <= n; i++) {
    if (lines[i] ~ /^[^ ]/) inside = toupper(lines[i]) == argument "S:"
    if (!inside || lines[i] !~ /^  [a-z]/) continue
    word = lines[i]
    sub(/^ +/, "", word)
    sub(/ .*/, "", word)
    out = out (out == "" ? "" : " ") word
  }
  return out
}

function operand_choices(name) {
  return list_choices(name, operand(name))
}

# What can be typed behind an option; "" where there is no choice.
function option_choices(name, i) {
  return choices(takes[name, i]) != "" ? choices(takes[name, i]) : list_choices(name, takes[name, i])
}

BEGIN { heading = "" }

/^@version / { version = $NF; next }
/^@summary\t/ {
  split($0, field, "\t")
  command[++num_commands] = field[2]
  summary[field[2]] = field[3]
  next
}
/^@command / { name = $2; part = "usage"; last = 0; next }

part == "usage" && /^(Usage:|  or:)/ { usage[name] = usage[name] $0 "\n"; next }
part == "usage" { part = "intro" }

part != "outro" && /^ +(-[^-], )? *--[a-z]/ { part = "options"; add_option(name, $0); next }
part == "intro" { intro[name] = intro[name] $0 "\n"; next }

# Between the options: a group's heading, a description that did not fit behind its option.
part == "options" && /^ [^ ].*:$/ { heading = substr($0, 2); next }
part == "options" && /^        / {
  line = $0
  sub(/^ +/, "", line)
  i = num_options[name]
  says[name, i] = says[name, i] (says[name, i] == "" ? "" : " ") line
  next
}
part == "options" && /^$/ { next }
part == "options" { part = "outro" }
part == "outro" { outro[name] = outro[name] $0 "\n" }
