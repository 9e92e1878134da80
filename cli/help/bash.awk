# Completion for bash. The values of options come from the help, too; `=` and `:` split words
# in bash, so `--option=value` and `cuda:1` arrive in pieces.

function words_of_options(name,    i, out) {
  out = ""
  for (i = 1; i <= num_options[name]; i++) {
    out = out (out == "" ? "" : " ") long[name, i]
    if (short[name, i] != "") out = out " " short[name, i]
  }
  return out
}

# "--device|-d", a pattern of a case.
function pattern(name, i) {
  return long[name, i] (short[name, i] == "" ? "" : "|" short[name, i])
}

function print_values(name,    i, words) {
  for (i = 1; i <= num_options[name]; i++) {
    if (takes[name, i] == "") continue
    words = option_choices(name, i)
    printf "        %s) ", pattern(name, i)
    if (words != "") {
      printf "_extattn_words '%s'", words
    } else if (is_file(takes[name, i])) {
      printf "_extattn_files"
    } else if (is_folder(takes[name, i])) {
      printf "_extattn_files -d"
    } else {
      printf ":" # any text: nothing to offer
    }
    print "; return ;;"
  }
}

function print_command(name,    words) {
  print "    " name ")"
  print "      case $option in"
  print_values(name)
  print "      esac"
  words = operand_choices(name)
  if (words == "" && is_file(operand(name))) {
    printf "      _extattn_options '%s' || _extattn_files\n", words_of_options(name)
  } else {
    printf "      _extattn_options '%s' || _extattn_words '%s'\n", words_of_options(name), words
  }
  print "      ;;"
}

END {
  all = ""
  for (c = 1; c <= num_commands; c++) all = all (c > 1 ? " " : "") command[c]
  print "# bash completion for extattn " version
  print ""
  print "_extattn_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$word\"); }"
  print ""
  print "# Offers files, or with -d folders."
  print "_extattn_files() {"
  print "  compopt -o filenames 2>/dev/null"
  print "  mapfile -t COMPREPLY < <(compgen \"${1:--f}\" -- \"$word\")"
  print "}"
  print ""
  print "# Offers options where one has been begun."
  print "_extattn_options() { [[ $word == -* ]] && _extattn_words \"$1\"; }"
  print ""
  print "_extattn() {"
  print "  local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}"
  print "  COMPREPLY=()"
  print "  if [[ $word == = ]]; then"
  print "    word="
  print "  elif [[ $option == = ]]; then"
  print "    option=${COMP_WORDS[COMP_CWORD - 2]}"
  print "  fi"
  print "  if ((COMP_CWORD == 1)); then"
  print "    _extattn_words '" all " --help --usage --version'"
  print "    return"
  print "  fi"
  print "  case $command in"
  print "    help) ((COMP_CWORD > 2)) || _extattn_words '" all "' ;;"
  for (c = 1; c <= num_commands; c++) {
    if (command[c] != "help") print_command(command[c])
  }
  print "  esac"
  print "}"
  print ""
  print "complete -F _extattn extattn"
}
