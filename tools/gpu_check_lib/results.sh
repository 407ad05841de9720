# JSON lines, on standard output and in the file of results, and what is read out of them. Sourced by gpu-check.

# "text", as JSON.
quote() {
  local text="${1//\\/\\\\}"
  text="${text//\"/\\\"}"
  printf '"%s"' "${text//[$'\001'-$'\037']/ }"
}

say() {
  printf '%s\n' "$1"
  printf '%s\n' "$1" >>"$results"
}

# field LINE NAME: its value, without quotes; nothing if there is none.
field() {
  local pattern="\"$2\":(\"[^\"]*\"|[^],}]*)"
  if [[ $1 =~ $pattern ]]; then
    local value="${BASH_REMATCH[1]}"
    value="${value#\"}"
    printf '%s' "${value%\"}"
  fi
}

# In thousandths, to be compared: 0.9876 is 988.
thousandths() {
  local value
  value="$(printf '%.3f' "$1")"
  value="${value/./}"
  printf '%d' "$((10#${value#-}))"
}

# reaches FOUND NEEDED: it is there, and no less.
reaches() {
  [[ $1 =~ ^[0-9.e+-]+$ ]] && [ "$(thousandths "$1")" -ge "$(thousandths "$2")" ]
}

# smallest FIELD: reads lines, prints the smallest value that is not null.
smallest() {
  local line value least=""
  while IFS= read -r line; do
    value="$(field "$line" "$1")"
    [[ $value =~ ^[0-9.e+-]+$ ]] || continue
    if [ -z "$least" ] || [ "$(thousandths "$value")" -lt "$(thousandths "$least")" ]; then least="$value"; fi
  done
  printf '%s' "$least"
}

# lines PATTERN: of the results, those that have all these words in them.
lines() {
  local line word
  while IFS= read -r line; do
    for word in "$@"; do
      [[ $line == *"$word"* ]] || continue 2
    done
    printf '%s\n' "$line"
  done <"$results"
}

# goal NAME NEEDED FOUND MET: found and met may be null.
goal() {
  say "{\"goal\":$(quote "$1"),\"needed\":$2,\"found\":$3,\"met\":$4,\"stand_in\":$stand_in}"
}

# A goal of figures: NAME NEEDED FOUND, met if found is no less. On the stand-in it is not judged.
timing_goal() {
  local met=null
  if [ -n "$3" ] && [ "$stand_in" = false ]; then
    met=true
    reaches "$3" "$2" || { met=false; missed=1; }
  elif [ "$stand_in" = false ]; then
    wrong=1
  fi
  goal "$1" "$2" "${3:-null}" "$met"
}

# A figure that is right or wrong: NAME NEEDED FOUND, met if found is no less.
figure_goal() {
  local met=true
  reaches "$3" "$2" || { met=false; wrong=1; }
  goal "$1" "$2" "${3:-null}" "$met"
}

# A goal of what is right: NAME STEP..., met if all these steps were ok.
right_goal() {
  local name="$1" met=true step
  shift
  for step in "$@"; do
    [ -n "$(lines "\"step\":\"$step\"" '"ok":true')" ] || met=false
  done
  [ "$met" = true ] || wrong=1
  goal "$name" true "$met" "$met"
}
