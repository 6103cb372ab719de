#!/usr/bin/env bash
# Records chapters on a machine with a GPU that has no Jupyter and no network.
#
#     tutorials/scripts/record_gpu.sh [option …] WHEELS OUT [CHAPTER …]
#
#     tutorials/scripts/record_gpu.sh --bundle wheels out 00 04
#
# WHEELS   a folder with what the machine lacks, or - where it lacks nothing
# OUT      a new folder, for recordings, notebooks and a log
# CHAPTER  a number (04), a name (04_loading) or a path
#
# --seconds N   end and save after so many in all (570): what runs then is cut
# --bundle      leave two files only: recordings.tar.gz and log.txt
# --quick       try it in quick mode; no claim is judged by it
#
# It needs Linux, Python 3.11 or later with pip (PYTHON names it, or else python3), and
# there torch 2.11 or later, torchvision, numpy, scipy, pandas, matplotlib, tensorboard.
# The rest is about 20 MB. Fetch it where there is a network, for the Python and the
# processor of that machine:
#
#     python3 -m pip download --dest wheels --python-version 3.12 \
#       --only-binary=:all: --platform manylinux_2_28_x86_64 \
#       --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
#       ipykernel ipywidgets nbclient nbformat ipyparallel psutil cloudpickle nvidia-ml-py
#
# Nothing of the machine is changed: all goes into a temporary folder and into OUT.
# Exit status: 0 all that was asked for is there, 1 something is not (the log says
# what), 2 it was asked for wrongly.
set -euo pipefail

missing=(ipykernel ipywidgets nbclient nbformat ipyparallel psutil cloudpickle nvidia-ml-py)
present="torch torchvision numpy scipy pandas matplotlib tensorboard"
python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

refuse() {
  echo "record_gpu.sh: $1" >&2
  exit 2
}

limit=570 bundle=false quick=()
while [[ ${1:-} == --* ]]; do
  case $1 in
    --seconds) limit=${2:-} && shift 2 || refuse "--seconds needs a number" ;;
    --bundle) bundle=true && shift ;;
    --quick) quick=(--quick) && shift ;;
    *) refuse "$1 is no option: the head of this file lists them" ;;
  esac
done
[[ $limit =~ ^[1-9][0-9]*$ ]] || refuse "--seconds $limit is not a whole number"
(($# >= 3)) || refuse "say WHEELS OUT CHAPTER …: the head of this file has an example"
wheels=$1 out=$2
shift 2
[[ $wheels == - || -d $wheels ]] || refuse "there is no folder $wheels for WHEELS"
"$python" -c "import importlib.util as find
exit(any(find.find_spec(name) is None for name in '$present'.split()))" ||
  refuse "$python lacks some of $present: say PYTHON=another"

chapters=()
for name in "$@"; do
  found=$name
  if [[ ! -f $found ]]; then
    found=$(compgen -G "$root/tutorials/${name}_*.ipynb" || true)
    [[ $found ]] || found=$root/tutorials/${name%.ipynb}.ipynb
  fi
  [[ -f $found ]] || refuse "there is no chapter $name in tutorials/"
  chapters+=("$found")
done

mkdir -p "$out"
[[ -z $(ls -A "$out") ]] || refuse "$out is not empty: name a new folder for OUT"
out=$(cd "$out" && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

# Whatever Python, Jupyter and the kit would write into a home goes there, too.
export IPYTHONDIR=$temporary/ipython JUPYTER_CONFIG_DIR=$temporary/jupyter/config
export JUPYTER_DATA_DIR=$temporary/jupyter/data MPLCONFIGDIR=$temporary/matplotlib
export JUPYTER_RUNTIME_DIR=$temporary/jupyter/runtime
export KIT_CACHE=${KIT_CACHE:-$temporary/kit}
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

install() {
  [[ $wheels != - ]] || return 0
  echo "== Installing from $wheels into a temporary folder"
  "$python" -m pip install --quiet --no-index --find-links "$wheels" \
    --target "$temporary/packages" "${missing[@]}" || return 1
  PYTHONPATH=$temporary/packages:$PYTHONPATH
  # The kernel that is started is the one that was installed now.
  export JUPYTER_PATH=$temporary/packages/share/jupyter
}

record() {
  local left=$((limit - SECONDS))
  echo "== Recording ${#chapters[@]} chapter(s), $left s are left"
  ((left > 0)) || return 1
  "$python" "$root/tutorials/scripts/record.py" --into "$out" --seconds "$left" \
    "${quick[@]}" "${chapters[@]}"
}

# No `set -e` in here: what failed is told at the end, with what is there all the same.
main() {
  local status=0
  install || return 1
  "$python" -m kit machine
  record || status=1
  echo "== After $SECONDS s there is:"
  (cd "$out" && find . -type f ! -name log.txt | sort)
  cat <<'END'
== To bring it into the repository:
   *.json into tutorials/recordings/, then
   `python tutorials/scripts/claims.py --write`.
   NN_name.ipynb into tutorials/, if readers shall see this machine's outputs there.
   NN_name_cut.ipynb is of a chapter that was cut: for looking at only.
END
  ((status == 0)) || echo "== Not all that was asked for is there: see above."
  return "$status"
}

status=0
main 2>&1 | tee "$out/log.txt" || status=1
if $bundle; then
  mapfile -t files < <(cd "$out" && find . -type f ! -name log.txt)
  if ((${#files[@]})); then
    tar --create --gzip --file "$out/recordings.tar.gz" --directory "$out" "${files[@]}"
    (cd "$out" && rm -f "${files[@]}")
  fi
fi
exit "$status"
