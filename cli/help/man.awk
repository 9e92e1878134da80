# The manual page: extattn.1.in with @VERSION@ and @COMMANDS@ filled in.

function escaped(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  sub(/^[.']/, "\\\\\\&&", text)
  return text
}

# "-n, --requests=N", the parts to be typed in bold and the argument in italics.
function option_title(name, i,    title) {
  title = short[name, i] == "" ? "" : "\\fB" escaped(short[name, i]) "\\fR, "
  title = title "\\fB" escaped(long[name, i]) "\\fR"
  return takes[name, i] == "" ? title : title "=\\fI" escaped(takes[name, i]) "\\fR"
}

# Paragraphs; lines that begin with two blanks are shown as they are.
function print_text(text,    lines, n, i, as_is) {
  n = split(text, lines, "\n")
  while (n > 0 && lines[n] == "") n--
  as_is = 0
  for (i = 1; i <= n; i++) {
    if (as_is != (lines[i] ~ /^  /)) {
      print as_is ? ".EE" : ".EX"
      as_is = !as_is
    }
    print lines[i] == "" && !as_is ? ".PP" : escaped(lines[i])
  }
  if (as_is) print ".EE"
}

function print_command(name,    line, i) {
  line = usage[name]
  sub(/^Usage: /, "", line)
  sub(/\n.*/, "", line)
  print ".SS " escaped(line)
  print_text(intro[name])
  for (i = 1; i <= num_options[name]; i++) {
    if (long[name, i] ~ /^--(help|usage|version)$/) continue # described once, for all commands
    if (group[name, i] != "") print ".PP\n" escaped(group[name, i])
    print ".TP\n" option_title(name, i) "\n" escaped(says[name, i])
  }
  if (outro[name] != "") print ".PP"
  print_text(outro[name])
}

END {
  while ((getline line < template) > 0) {
    gsub(/@VERSION@/, version, line)
    if (line != "@COMMANDS@") {
      print line
      continue
    }
    for (c = 1; c <= num_commands; c++) {
      if (command[c] != "help") print_command(command[c])
    }
  }
}
