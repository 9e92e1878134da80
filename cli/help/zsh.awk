# Completion for zsh.

function escaped(text) {
  gsub(/\\/, "\\\\", text)
  gsub(/\[/, "\\[", text)
  gsub(/\]/, "\\]", text)
  gsub(/:/, "\\:", text)
  gsub(/'/, "'\\''", text)
  return text
}

# What completes an argument: the end of a specification of _arguments.
function action(argument, words) {
  if (words != "") return "(" escaped(words) ")"
  return is_file(argument) ? "_files" : is_folder(argument) ? "_files -/" : " "
}

function print_option(name, i,    says_it, value, typed) {
  typed = short[name, i]
  sub(/\?/, "\\?", typed) # a pattern, where it is not quoted
  says_it = "[" escaped(says[name, i]) "]"
  value = takes[name, i] == "" ? "" : ":" escaped(takes[name, i]) ":" action(takes[name, i], option_choices(name, i))
  if (short[name, i] == "") {
    printf "        '%s%s%s%s'", long[name, i], value == "" ? "" : "=", says_it, value
  } else {
    printf "        '(%s %s)'{%s,%s}'%s%s'", short[name, i], long[name, i], typed (value == "" ? "" : "+"),
      long[name, i] (value == "" ? "" : "="), says_it, value
  }
}

function print_command(name,    i) {
  print "    " name ")"
  printf "      _arguments -s -S"
  for (i = 1; i <= num_options[name]; i++) {
    print " \\"
    print_option(name, i)
  }
  if (operand(name) != "") {
    printf " \\\n        '1:%s:%s'", escaped(operand(name)), action(operand(name), operand_choices(name))
  }
  print "\n      ;;"
}

END {
  print "#compdef extattn"
  print "# zsh completion for extattn " version
  print ""
  print "local -a commands"
  print "commands=("
  for (c = 1; c <= num_commands; c++) print "  '" command[c] ":" escaped(summary[command[c]]) "'"
  print ")"
  print ""
  print "local context state state_descr line"
  print "local -A opt_args"
  print "_arguments -C '(- *)'{-\\?,--help}'[give the list of commands]' '(- *)--usage[give a short usage message]' \\"
  print "  '(- *)'{-V,--version}'[print the version]' '1:command:->command' '*::argument:->argument'"
  print ""
  print "case $state in"
  print "command) _describe command commands ;;"
  print "argument)"
  print "  case $words[1] in"
  print "    help) _describe command commands ;;"
  for (c = 1; c <= num_commands; c++) {
    if (command[c] != "help") print_command(command[c])
  }
  print "  esac"
  print "  ;;"
  print "esac"
}
