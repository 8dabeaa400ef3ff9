#!/bin/sh
# usage: trim.sh ENVIRONMENT     removes what an image does not need of its packages, then compiles the rest to bytecode
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
python=$1/bin/python
cd "$1"/lib/python3.*/site-packages

sed '/^#/d; /^$/d' "$folder/unused.txt" | while read -r glob; do
  ls -d $glob >/dev/null  # fails if nothing matches
  rm -r $glob
done
find . -regex '.*\.\(c\|cc\|h\|pxd\|pyi\|pyx\)' -delete

# Modules whose wheels hold symbols: 25 MB of them.
strip --strip-unneeded PIL/_imaging.*.so contourpy/*.so httptools/parser/*.so kiwisolver/*.so matplotlib/*.so \
  matplotlib/backends/_backend_agg.*.so pybase64/*.so tokenizers/*.so uvloop/*.so

# Except what an export from the hub alone imports. It cannot be made later where the file system is read-only.
"$python" -m compileall -q --invalidation-mode unchecked-hash \
  -x '/(filelock|fontTools|fsspec|gguf|httpcore2|httpx2|huggingface_hub|tqdm|yaml)/' .
