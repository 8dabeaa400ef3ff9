#!/bin/sh
# usage: export.sh MODELS [wait]
#
# Exports each model of a list into the store, once: pods that share the store take turns, and a model that is there as its
# line says is left alone. With `wait` nothing is exported: it ends when another pod has done so. MODELS has a line for each
# model, NAME SOURCE OPTION... Checkpoints are staged on the store's volume, which has room for them.
set -eu
store=$INLAY_STORE
here=$(readlink -f "$1")

# whether the store holds the model as its line says, in a format that this version reads
is_there() {
  [ "$(cat "$store/.$1.line" 2>/dev/null)" = "$2" ] && inlay describe "$store/$1" >/dev/null 2>&1 </dev/null
}

if [ "${2-}" = wait ]; then
  while read -r name line; do
    until is_there "$name" "$line"; do sleep "${POLL_SECONDS-5}"; done
  done <"$here"
  exit
fi

exec 9>"$store/.export.lock"
flock 9
rm -rf "$store"/.staging "$store"/.*.partial-* # of an export that was killed
while read -r name line; do
  is_there "$name" "$line" && continue
  mkdir -p "$store/.staging"
  rm -f "$store/.$name.line"
  set -- $line
  TMPDIR=$store/.staging inlay export "$@" "$store/$name" </dev/null
  echo "$line" >"$store/.$name.line"
done <"$here"
rm -rf "$store/.staging"
