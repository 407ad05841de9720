# Completion in bash for prd and prdctl. It asks the program itself (--help), so that it knows what the installed version
# does: commands, options, the values of those that take one of a few, and the names of jobs.

# Reads --help. "commands", "options" or "takes OPTION": its values, "file" for any text, "none" for numbers, "" for a flag;
# "positional N", from 1 on: its values, "job" for the name of one. Where it says "run", each positional may be a job's.
_prd_help() {
  awk -v want="$1" -v option="${2-}" '
    function words(kind) { gsub(/^[^{]*[{]|[}].*$/, "", kind); gsub(",", " ", kind); return kind }
    /^[A-Z][a-z]+:$/ { section = $1; next }
    /^[^ ]/ { section = "" }
    section == "Subcommands:" && /^  [a-z]/ && want == "commands" { print $1 }
    section == "Positionals:" && /^  [a-z]/ && want == "positional" {
      at++
      if ($1 == "run" || (at == option && $1 == "job")) print "job"
      else if (at == option && match($2, /[{].*[}]/)) print words($2)
    }
    section == "Options:" && /^  -/ {
      count = split($1, names, ",")
      kind = match($2, /^(TEXT|INT|UINT|FLOAT)([:=]|$)/) ? $2 : ""
      for (i = 1; i <= count; i++) {
        if (want == "options") print names[i]
        if (want == "takes" && names[i] == option) {
          if (match(kind, /[{][^}]*[}]/)) print words(kind)
          else if (kind ~ /^TEXT/) print "file"
          else if (kind != "") print "none"
        }
      }
    }'
}

_prd() {
  local program=$1 current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command= help top takes word i at=1 given
  # Bash cuts --option=value into three words.
  if [ "$current" = = ]; then
    current=
  elif [ "$before" = = ]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  COMPREPLY=()
  top=$("$program" --help 2>/dev/null) || return 0
  help=$top
  local commands=" $(_prd_help commands <<<"$top" | tr '\n' ' ')"
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word != -* && $commands == *" $word "* && -z $(_prd_help takes "${COMP_WORDS[i - 1]}" <<<"$top") ]]; then
      command=$word
      help=$("$program" "$command" --help 2>/dev/null) || return 0
      break
    fi
  done

  given=
  for ((i++; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == -* ]]; then
      given=$(printf '%s\n%s\n' "$help" "$top" | _prd_help takes "$word" | head -n 1)
    elif [[ $word != = ]]; then
      [ -n "$given" ] || at=$((at + 1))
      given=
    fi
  done

  takes=
  [[ $before == -* ]] && takes=$(printf '%s\n%s\n' "$help" "$top" | _prd_help takes "$before" | head -n 1)
  if [ -z "$takes" ] && [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$(printf '%s\n%s\n' "$help" "$top" | _prd_help options | sort -u)" -- "$current"))
  elif [[ $before == -r || $before == --run || $before == --job ]]; then
    COMPREPLY=($(compgen -W "$(_prd_jobs "$program")" -- "$current"))
  elif [ "$takes" = file ]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  elif [ "$takes" = none ]; then
    :
  elif [ -n "$takes" ]; then
    COMPREPLY=($(compgen -W "$takes" -- "$current"))
  elif [ -z "$command" ]; then
    COMPREPLY=($(compgen -W "$commands" -- "$current"))
  else
    word=$(_prd_help positional "$at" <<<"$help")
    [ "$word" = job ] && word=$(_prd_jobs "$program")
    COMPREPLY=($(compgen -W "$word" -- "$current"))
  fi
}

# The names of the jobs of the daemon, or of the files, that the line names.
_prd_jobs() {
  local program=$1 where=() i
  for ((i = 1; i < COMP_CWORD - 1; i++)); do
    case ${COMP_WORDS[i]} in
      --admin | --state-dir | --key | --server-key) where+=("${COMP_WORDS[i]}" "${COMP_WORDS[i + 1]}") ;;
    esac
  done
  "$program" "${where[@]}" --timeout-ms 500 --json jobs 2>/dev/null | grep -o '"job": *"[A-Za-z0-9_./-]*"' | cut -d'"' -f4 | sort -u
}

complete -F _prd prd prdctl
